/* SPDX-License-Identifier: Apache-2.0 */
/* The model's tensors: where they lie, how many values they are, what they begin with. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "train/train.h"

#define N(array) ((int)(sizeof(array) / sizeof((array)[0])))

static train_params params_of(kf_model model) {
  train_params params;
  if (train_params_of(&model, &params)) fail_msg("%s", kf_last_error());
  return params;
}

/* -------------------------------------------------------------------------- layout */

static void test_layout(void **state) {
  (void)state;
  static const kf_model models[] = {{2, 1, 1}, {6, 5, 3}, {18, 3, 3}, {384, 12, 6}, {1152, 28, 16}};
  for (int m = 0; m < N(models); m++) {
    train_params p = params_of(models[m]);
    int64_t end = 0;
    assert_memory_equal(&p.model, &models[m], sizeof p.model);
    for (int id = 0; id < TRAIN_N_TENSORS; id++) {
      const train_tensor *t = &p.tensor[id];
      assert_non_null(t->name);
      for (int other = 0; other < id; other++)
        assert_string_not_equal(t->name, p.tensor[other].name);
      assert_int_equal(t->offset % 16, 0);
      assert_in_range(t->offset, end, end + 15); /* behind the one before, and not far */
      assert_true(train_tensor_size(t) > 0);
      end = t->offset + train_tensor_size(t);
    }
    assert_int_equal(p.n_floats % 16, 0);
    assert_in_range(p.n_floats, end, end + 15);
  }
}

static void assert_shape(const train_params *p, int id, const char *name, int n_dims,
                         const int64_t *dim) {
  const train_tensor *t = &p->tensor[id];
  int64_t size = 1;
  assert_string_equal(t->name, name);
  assert_int_equal(t->n_dims, n_dims);
  for (int i = 0; i < n_dims; i++) {
    assert_int_equal(t->dim[i], dim[i]);
    size *= dim[i];
  }
  assert_int_equal(train_tensor_size(t), size);
}

#define SHAPE(id, name, ...)                                                                       \
  assert_shape(&p, id, name, N(((int64_t[]){__VA_ARGS__})), (int64_t[]){__VA_ARGS__})

static void test_shapes(void **state) {
  (void)state;
  train_params p = params_of((kf_model){12, 5, 2});
  SHAPE(TRAIN_PATCH_W, "patch_w", 12, 16);
  SHAPE(TRAIN_PATCH_B, "patch_b", 12);
  SHAPE(TRAIN_WORD, "word", 64, 12);
  SHAPE(TRAIN_TIME1_W, "time1_w", 12, 256);
  SHAPE(TRAIN_TIME1_B, "time1_b", 12);
  SHAPE(TRAIN_TIME2_W, "time2_w", 12, 12);
  SHAPE(TRAIN_TIME2_B, "time2_b", 12);
  SHAPE(TRAIN_LABEL, "label", 11, 12);
  SHAPE(TRAIN_MOD_W, "mod_w", 32, 12, 12);
  SHAPE(TRAIN_MOD_B, "mod_b", 32, 12);
  SHAPE(TRAIN_QKV_W, "qkv_w", 5, 36, 12);
  SHAPE(TRAIN_QKV_B, "qkv_b", 5, 36);
  SHAPE(TRAIN_PROJ_W, "proj_w", 5, 12, 12);
  SHAPE(TRAIN_PROJ_B, "proj_b", 5, 12);
  SHAPE(TRAIN_FC1_W, "fc1_w", 5, 48, 12);
  SHAPE(TRAIN_FC1_B, "fc1_b", 5, 48);
  SHAPE(TRAIN_FC2_W, "fc2_w", 5, 12, 48);
  SHAPE(TRAIN_FC2_B, "fc2_b", 5, 12);
  SHAPE(TRAIN_OUT_W, "out_w", 16, 12);
  SHAPE(TRAIN_OUT_B, "out_b", 16);
}

/* A block has 18 d^2 weights and 15 d biases: 4 and 4 of attention, 8 and 5 of the MLP, 6 and 6 of
** its modulation. What comes before and after blocks is not as in the paper, but it is little. */
static void test_counts(void **state) {
  (void)state;
  static const struct {
    const char *name;
    double millions; /* as the DiT paper has it, for patches of 2 */
  } models[] = {{"DiT-S", 33}, {"DiT-B", 130}, {"DiT-L", 458}, {"DiT-XL", 675}};
  for (int m = 0; m < N(models); m++) {
    kf_model model;
    assert_int_equal(kf_model_parse(models[m].name, &model), KF_OK);
    train_params p = params_of(model);
    int64_t d = model.dim, count = 0;
    int64_t blocks = model.layers * (18 * d * d + 15 * d), last = 2 * (d * d + d);
    int64_t in = (16 + 1) * d + 64 * d + (256 + 1) * d + d * d + d + 11 * d, out = 16 * d + 16;
    for (int id = 0; id < TRAIN_N_TENSORS; id++) count += train_tensor_size(&p.tensor[id]);
    assert_int_equal(count, blocks + last + in + out);
    assert_true(fabs((double)count / 1e6 / models[m].millions - 1) < 0.03);
  }
}

static void refused(kf_model model, const char *sentence) {
  train_params params = {.n_floats = 5};
  assert_int_equal(train_params_of(&model, &params), KF_EINVAL);
  assert_string_equal(kf_last_error(), sentence);
  assert_int_equal(params.n_floats, 5); /* written only on success */
}

static void test_refusals(void **state) {
  (void)state;
  refused((kf_model){385, 1, 6},
          "model: width 385 with 6 heads, expected a width that the heads divide");
  refused((kf_model){2, 1, 3},
          "model: width 2 with 3 heads, expected a width that the heads divide");
  refused((kf_model){21, 1, 7}, "model: width 21 with 7 heads, expected heads of an even width");
  refused((kf_model){6, 1, 2}, "model: width 6 with 2 heads, expected heads of an even width");
  refused((kf_model){1, 1, 1}, "model: width 1 with 1 heads, expected heads of an even width");
  refused((kf_model){774, 1, 3},
          "model: width 774 with 3 heads, expected heads of a width of at most 256");
  params_of((kf_model){768, 1, 3}); /* 256 is the widest */
  params_of((kf_model){6, 1, 3});   /* 2 the narrowest */
}

/* -------------------------------------------------------------------- first values */

/* Every value of Xavier's is below the bound, and of many the largest is close to it, above and
** below; mean and variance are what they should be within 5 deviations of them. */
static void check_uniform(const char *name, const float *x, int64_t n, double bound) {
  double low = 0, high = 0, sum = 0, square = 0;
  for (int64_t i = 0; i < n; i++) {
    low = fmin(low, (double)x[i]), high = fmax(high, (double)x[i]);
    sum += x[i], square += (double)x[i] * x[i];
  }
  double variance = bound * bound / 3, spread = sqrt(4. / 5) * variance; /* of a square */
  if (!(low >= -bound && high <= bound && low < -0.99 * bound && high > 0.99 * bound))
    fail_msg("%s: from %g to %g, expected all up to %g", name, low, high, bound);
  if (!(fabs(sum) < 5 * sqrt(variance * n) && fabs(square - variance * n) < 5 * spread * sqrt(n)))
    fail_msg("%s: mean %g, variance %g, expected 0, %g", name, sum / n, square / n, variance);
}

static void check_normal(const char *name, const float *x, int64_t n) {
  const double variance = 0.02 * 0.02;
  double sum = 0, square = 0, most = 0;
  for (int64_t i = 0; i < n; i++) {
    sum += x[i], square += (double)x[i] * x[i];
    most = fmax(most, fabs((double)x[i]));
  }
  if (!(fabs(sum) < 5 * 0.02 * sqrt(n) &&
        fabs(square - variance * n) < 5 * variance * sqrt(2. * n)))
    fail_msg("%s: mean %g, variance %g, expected 0, %g", name, sum / n, square / n, variance);
  assert_true(most > 0.05 && most < 0.12); /* of thousands some are beyond 2.5 deviations, none 6 */
}

static void check_zero(const char *name, const float *x, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (x[i] != 0) fail_msg("%s begins with %g, expected 0", name, (double)x[i]);
}

static float *values_of(const train_params *p, uint64_t seed) {
  float *block = malloc((size_t)p->n_floats * sizeof *block);
  assert_non_null(block);
  memset(block, 0xff, (size_t)p->n_floats * sizeof *block);
  train_params_init(p, seed, block);
  return block;
}

static void test_first_values(void **state) {
  (void)state;
  const double d = 90;
  train_params p = params_of((kf_model){90, 3, 9});
  float *block = values_of(&p, 3);
  for (int id = 0; id < TRAIN_N_TENSORS; id++) {
    const train_tensor *t = &p.tensor[id];
    const float *x = block + t->offset;
    int64_t n = train_tensor_size(t), end = id + 1 < TRAIN_N_TENSORS ? t[1].offset : p.n_floats;
    switch (id) {
    case TRAIN_PATCH_W: check_uniform(t->name, x, n, sqrt(6 / (16 + d))); break;
    case TRAIN_QKV_W: /* three maps side by side */
    case TRAIN_PROJ_W: check_uniform(t->name, x, n, sqrt(6 / (d + d))); break;
    case TRAIN_FC1_W:
    case TRAIN_FC2_W: check_uniform(t->name, x, n, sqrt(6 / (d + 4 * d))); break;
    case TRAIN_WORD:
    case TRAIN_LABEL:
    case TRAIN_TIME1_W:
    case TRAIN_TIME2_W: check_normal(t->name, x, n); break;
    default: check_zero(t->name, x, n); break; /* biases, modulation, the last product */
    }
    check_zero("what follows a tensor", x + n, end - t->offset - n);
  }
  free(block);
}

/* The same seed gives the same bits; another, other values of every tensor that has any. No two
** tensors begin alike. */
static void test_seeds(void **state) {
  (void)state;
  train_params p = params_of((kf_model){18, 2, 3});
  float *a = values_of(&p, 5), *b = values_of(&p, 5), *c = values_of(&p, 6);
  assert_memory_equal(a, b, (size_t)p.n_floats * sizeof *a);
  for (int id = 0; id < TRAIN_N_TENSORS; id++) {
    const train_tensor *t = &p.tensor[id];
    const float *x = a + t->offset, *y = c + t->offset;
    int64_t same = 0, n = train_tensor_size(t);
    if (x[0] == 0) continue;
    for (int64_t i = 0; i < n; i++) same += x[i] == y[i];
    assert_int_equal(same, 0);
    for (int other = 0; other < id; other++) assert_true(x[0] != a[p.tensor[other].offset]);
  }
  free(a), free(b), free(c);
}

/* Linear maps, but no embedding and no bias. */
static void test_decay(void **state) {
  (void)state;
  train_params p = params_of((kf_model){18, 2, 3});
  for (int id = 0; id < TRAIN_N_TENSORS; id++) {
    const char *name = p.tensor[id].name;
    assert_int_equal(train_tensor_decays(id), strcmp(name + strlen(name) - 2, "_w") == 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_layout),       cmocka_unit_test(test_shapes),
    cmocka_unit_test(test_counts),       cmocka_unit_test(test_refusals),
    cmocka_unit_test(test_first_values), cmocka_unit_test(test_seeds),
    cmocka_unit_test(test_decay),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
