/* SPDX-License-Identifier: Apache-2.0 */
/*
** The network: every gradient against finite differences, what a prediction depends on and what it
** does not, memory. Numbers are held against PyTorch's in torch/torch_train.py, and split sequences
** against whole ones in property/property_train.c.
*/
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fail_alloc.h"
#include "net_problem.h"
#include "train/net.h"

#define N(array) ((int64_t)(sizeof(array) / sizeof((array)[0])))

/* Text and visual tokens, text alone, visual tokens alone, and single tokens of both. */
static const net_seq all_kinds[] = {{3, 12}, {0, 1}, {0, 9}, {1, 0}, {5, 0}, {2, 14}};
static const net_seq two[] = {{2, 10}, {3, 11}};

static train_net *net_of(kf_model model, kf_isa isa, int64_t keep_bytes) {
  train_net_options options = {.model = model, .isa = isa, .keep_bytes = keep_bytes};
  train_net *net = NULL;
  if (train_net_create(&options, &net)) fail_msg("%s", kf_last_error());
  return net;
}

static float *copy_of(const float *x, int64_t n) {
  float *copy = net_reserve(n, sizeof *copy);
  memcpy(copy, x, (size_t)n * sizeof *copy);
  return copy;
}

static bool same_bits(const float *a, const float *b, int64_t n) {
  return memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

static double size_of(const float *x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
  return sqrt(sum);
}

/* |a - b| / |b|. */
static double distance(const float *a, const float *b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
  return sqrt(sum) / fmax(size_of(b, n), 1e-30);
}

static void assert_grads_near(const net_problem *p, const float *want, double most) {
  for (int id = 0; id < TRAIN_N_TENSORS; id++) {
    const train_tensor *t = &p->params.tensor[id];
    double d = distance(p->grads + t->offset, want + t->offset, train_tensor_size(t));
    if (!(d <= most)) fail_msg("gradient of %s differs by %.2e", t->name, d);
  }
}

/* --------------------------------------------------------------- finite differences */

/* The loss with `step` times `way` added to a tensor. */
static double loss_at(train_net *net, const net_problem *p, const train_tensor *t,
                      const float *variant, double step) {
  double sum = 0;
  float *moved = copy_of(p->p, p->params.n_floats);
  for (int64_t i = 0; i < train_tensor_size(t); i++)
    moved[t->offset + i] = (float)(moved[t->offset + i] + step * variant[i]);
  if (train_net_forward(net, moved, &p->pack, p->prediction)) fail_msg("%s", kf_last_error());
  for (int64_t i = 0; i < p->pack.n_rows * TRAIN_VALUES; i++)
    sum += (double)p->d[i] * p->prediction[i];
  free(moved);
  return sum;
}

/* Along a way: of order 4, so that steps can be long and the model's rounding hardly counts. */
static double slope(train_net *net, const net_problem *p, const train_tensor *t,
                    const float *variant, double step) {
  double near = loss_at(net, p, t, variant, step) - loss_at(net, p, t, variant, -step);
  double far = loss_at(net, p, t, variant, 2 * step) - loss_at(net, p, t, variant, -2 * step);
  return (8 * near - far) / (12 * step);
}

/* The step, in deviations of the tensor's values, is where the errors of both ends are small.
** Measured on the models below: rounding, which falls with the step, makes up to 7e-4 of the
** gradient of the time's first bias, of which the loss knows little; the formula's own error, which
** grows with the fourth power, up to 4e-4 of that of the patches. A single value may move further:
** the model hardly notices. */
static const double step_all = 0.05, step_one = 0.3, most_error = 3e-3;

/* All values of a tensor at once, each up or down. The signs are random, so that whatever is wrong
** with a gradient is as large in the slope as it is itself. */
static void check_ways(train_net *net, const net_problem *p, int id) {
  const train_tensor *t = &p->params.tensor[id];
  int64_t n = train_tensor_size(t);
  const float *g = p->grads + t->offset;
  float *variant = net_reserve(n, sizeof *variant);
  dice d = {(uint64_t)id};
  for (int round = 0; round < 3; round++) {
    double want = 0;
    for (int64_t i = 0; i < n; i++) {
      variant[i] = dice_one_in(&d, 2) ? 1 : -1;
      want += (double)variant[i] * g[i];
    }
    double got = slope(net, p, t, variant, step_all * net_deviation(&p->params, id));
    if (!(fabs(got - want) <= most_error * size_of(g, n)))
      fail_msg("d=%d,layers=%d,heads=%d: slope along %s is %.6g, the gradient says %.6g, +-%.2g",
               p->params.model.dim, p->params.model.layers, p->params.model.heads, t->name, got,
               want, most_error * size_of(g, n));
  }
  free(variant);
}

/* Single values: of each third of a tensor, which is a layer where there are three, that with the
** largest gradient. */
static void check_values(train_net *net, const net_problem *p, int id) {
  const train_tensor *t = &p->params.tensor[id];
  int64_t n = train_tensor_size(t);
  const float *g = p->grads + t->offset;
  double most = 0;
  for (int64_t i = 0; i < n; i++) most = fmax(most, fabsf(g[i]));
  for (int64_t third = 0; third < 3; third++) {
    int64_t at = third * n / 3;
    for (int64_t i = at; i < (third + 1) * n / 3; i++)
      if (fabsf(g[i]) > fabsf(g[at])) at = i;
    float *variant = net_reserve(n, sizeof *variant);
    memset(variant, 0, (size_t)n * sizeof *variant);
    variant[at] = 1;
    double got = slope(net, p, t, variant, step_one * net_deviation(&p->params, id));
    if (!(fabs(got - g[at]) <= most_error * most))
      fail_msg("d=%d,layers=%d,heads=%d: slope of %s[%lld] is %.6g, its gradient %.6g",
               p->params.model.dim, p->params.model.layers, p->params.model.heads, t->name,
               (long long)at, got, (double)g[at]);
    free(variant);
  }
}

static void test_gradients(void **state) {
  (void)state;
  /* Heads of 2 (no angle is the frame's), 6 and 64; widths that vectors do not divide. */
  static const kf_model models[] = {{12, 1, 6}, {12, 3, 6},  {18, 1, 3},
                                    {18, 3, 3}, {128, 1, 2}, {64, 3, 1}};
  for (int64_t m = 0; m < N(models); m++) {
    net_problem p = net_make(models[m], N(all_kinds), all_kinds);
    train_net *net = net_of(models[m], KF_ISA_BEST, 0);
    net_run(net, &p);
    for (int id = 0; id < TRAIN_N_TENSORS; id++) {
      assert_true(size_of(p.grads + p.params.tensor[id].offset,
                          train_tensor_size(&p.params.tensor[id])) > 0.1);
      check_ways(net, &p, id);
      check_values(net, &p, id);
    }
    train_net_free(net);
    net_drop(&p);
  }
}

/* What the pack does not have, the loss does not know; what lies between tensors, nobody. */
static void test_unused_is_zero(void **state) {
  (void)state;
  const kf_model model = {18, 2, 3};
  net_problem p = net_make(model, N(two), two);
  train_net *net = net_of(model, KF_ISA_BEST, 0);
  net_run(net, &p); /* into NaN: gradients are written, not added */
  bool word[TRAIN_WORDS] = {0}, label[TRAIN_LABELS + 1] = {0};
  for (int64_t r = 0; r < p.pack.n_rows; r++) {
    if (p.row[r].word >= 0) word[p.row[r].word] = true;
    label[p.row[r].label] = true;
  }
  const struct {
    int id, n;
    const bool *used;
  } tables[] = {{TRAIN_WORD, TRAIN_WORDS, word}, {TRAIN_LABEL, TRAIN_LABELS + 1, label}};
  for (int k = 0; k < 2; k++)
    for (int64_t i = 0; i < tables[k].n; i++) {
      const float *g = p.grads + p.params.tensor[tables[k].id].offset + i * model.dim;
      for (int64_t j = 0; j < model.dim; j++) assert_true((g[j] != 0) == tables[k].used[i]);
    }
  for (int id = 0; id < TRAIN_N_TENSORS; id++) {
    const train_tensor *t = &p.params.tensor[id];
    int64_t end = id + 1 < TRAIN_N_TENSORS ? t[1].offset : p.params.n_floats;
    for (int64_t i = t->offset + train_tensor_size(t); i < end; i++) assert_true(p.grads[i] == 0);
  }
  float *first = copy_of(p.grads, p.params.n_floats);
  net_run(net, &p);
  assert_true(same_bits(first, p.grads, p.params.n_floats));
  free(first);
  train_net_free(net);
  net_drop(&p);
}

/* ------------------------------------------------------------ what depends on what */

/* A pack is its sequences, one by one: predictions do not depend on neighbours, gradients add up.
** Of the first pack the MLP takes more than one tile. */
static void check_alone(kf_model model, int64_t n_seqs, const net_seq *seq) {
  net_problem p = net_make(model, n_seqs, seq);
  train_net *net = net_of(model, KF_ISA_BEST, 0);
  int64_t n = p.params.n_floats, values = p.pack.n_rows * TRAIN_VALUES;
  net_run(net, &p);
  float *prediction = copy_of(p.prediction, values), *sum = net_reserve(n, sizeof *sum);
  float *grads = copy_of(p.grads, n), *all_d = p.d, *all_prediction = p.prediction;
  memset(sum, 0, (size_t)n * sizeof *sum);
  train_pack all = p.pack;
  for (int64_t s = 0; s < n_seqs; s++) {
    int64_t first = p.seq_off[s], len = p.seq_off[s + 1] - first;
    const int64_t seq_off[2] = {0, len};
    p.pack = (train_pack){.n_rows = len, .n_seqs = 1, .row = p.row + first, .seq_off = seq_off};
    p.d = all_d + first * TRAIN_VALUES;
    p.prediction = all_prediction + first * TRAIN_VALUES;
    net_run(net, &p);
    for (int64_t i = 0; i < n; i++) sum[i] += p.grads[i];
    /* Not bit for bit: BLAS sums up in another order where rows are few. */
    double d = distance(p.prediction, prediction + first * TRAIN_VALUES, len * TRAIN_VALUES);
    if (!(d <= 1e-5)) fail_msg("alone, sequence %lld differs by %.2e", (long long)s, d);
  }
  p.pack = all, p.d = all_d, p.prediction = all_prediction;
  memcpy(p.grads, grads, (size_t)n * sizeof *grads);
  assert_grads_near(&p, sum, 1e-4);
  free(prediction), free(sum), free(grads);
  train_net_free(net);
  net_drop(&p);
}

static void test_sequences_are_alone(void **state) {
  (void)state;
  static const net_seq many[] = {{30, 400}, {0, 300}, {10, 1}, {0, 500}};
  check_alone((kf_model){16, 2, 2}, N(many), many);
  check_alone((kf_model){48, 2, 2}, N(all_kinds), all_kinds);
}

/* Of two predictions, sequence `seq` differs and no other does, by a single bit. */
static void assert_only_seq_differs(const net_problem *p, const float *before, int64_t seq) {
  for (int64_t s = 0; s < p->pack.n_seqs; s++) {
    int64_t at = p->seq_off[s] * TRAIN_VALUES, n = p->seq_off[s + 1] * TRAIN_VALUES - at;
    if (s == seq) /* by more than any rounding */
      assert_true(distance(p->prediction + at, before + at, n) > 5e-4);
    else
      assert_true(same_bits(p->prediction + at, before + at, n));
  }
}

static void test_conditioning(void **state) {
  (void)state;
  const kf_model model = {32, 2, 2};
  net_problem p = net_make(model, N(all_kinds), all_kinds);
  train_net *net = net_of(model, KF_ISA_BEST, 0);
  int64_t n = p.pack.n_rows * TRAIN_VALUES;
  net_run(net, &p);
  float *before = copy_of(p.prediction, n);
  for (int64_t s = 0; s < p.pack.n_seqs; s++)
    for (int what = 0; what < 3; what++) {
      train_row *row = p.row + p.seq_off[s], *end = p.row + p.seq_off[s + 1], saved = *row;
      for (train_row *r = row; r < end; r++) {
        if (what == 0) r->time = saved.time < 0.5f ? saved.time + 0.3f : saved.time - 0.3f;
        if (what == 1) r->label = (saved.label + 1) % (TRAIN_LABELS + 1);
      }
      if (what == 2 && row->word >= 0) row->word = (saved.word + 1) % TRAIN_WORDS;
      if (what == 2 && row->word < 0) row->value[3] += 3;
      net_run(net, &p);
      assert_only_seq_differs(&p, before, s);
      for (train_row *r = row; r < end; r++) r->time = saved.time, r->label = saved.label;
      *row = saved;
    }
  net_run(net, &p);
  assert_true(same_bits(p.prediction, before, n));
  free(before);
  train_net_free(net);
  net_drop(&p);
}

/* Give one of the modulation's vectors this value, whatever the conditioning. */
static void fix_vector(net_problem *p, int64_t vector, float value) {
  int64_t d = p->params.model.dim;
  memset(p->p + p->params.tensor[TRAIN_MOD_W].offset + vector * d * d, 0,
         (size_t)(d * d) * sizeof(float));
  for (int64_t i = 0; i < d; i++)
    p->p[p->params.tensor[TRAIN_MOD_B].offset + vector * d + i] = value;
}

/* Which vector is which: behind a gate of 0 a branch learns nothing, and no weight does that sees
** only zeros, as where scale is -1 and shift 0. */
static void test_modulation(void **state) {
  (void)state;
  const kf_model model = {32, 1, 2};
  static const struct {
    int64_t gate, shift; /* -1: as they are; scale follows shift */
    bool silent[TRAIN_N_TENSORS];
  } cases[] = {
    {2, -1, {[TRAIN_QKV_W] = 1, [TRAIN_QKV_B] = 1, [TRAIN_PROJ_W] = 1, [TRAIN_PROJ_B] = 1}},
    {5, -1, {[TRAIN_FC1_W] = 1, [TRAIN_FC1_B] = 1, [TRAIN_FC2_W] = 1, [TRAIN_FC2_B] = 1}},
    {-1, 0, {[TRAIN_QKV_W] = 1}},
    {-1, 3, {[TRAIN_FC1_W] = 1}}};
  for (int64_t c = 0; c < N(cases); c++) {
    net_problem p = net_make(model, N(two), two);
    train_net *net = net_of(model, KF_ISA_BEST, 0);
    if (cases[c].gate >= 0) fix_vector(&p, cases[c].gate, 0);
    if (cases[c].shift >= 0)
      fix_vector(&p, cases[c].shift, 0), fix_vector(&p, cases[c].shift + 1, -1);
    net_run(net, &p);
    for (int id = 0; id < TRAIN_N_TENSORS; id++) {
      const train_tensor *t = &p.params.tensor[id];
      double size = size_of(p.grads + t->offset, train_tensor_size(t));
      if ((size == 0) != cases[c].silent[id])
        fail_msg("case %lld: the gradient of %s is %g", (long long)c, t->name, size);
    }
    train_net_free(net);
    net_drop(&p);
  }
  net_problem p = net_make(model, N(two), two);
  train_net *net = net_of(model, KF_ISA_BEST, 0);
  fix_vector(&p, 6, 0), fix_vector(&p, 7, -1); /* before the last product: its bias is left */
  net_run(net, &p);
  for (int64_t r = 0; r < p.pack.n_rows; r++)
    assert_true(same_bits(p.prediction + r * TRAIN_VALUES,
                          p.p + p.params.tensor[TRAIN_OUT_B].offset, TRAIN_VALUES));
  train_net_free(net);
  net_drop(&p);
}

/* Only differences of positions count, on each axis, and they do. Of the 8 angles of a head 2 are
** the frame's, 3 are y's and 3 x's. */
static void test_positions(void **state) {
  (void)state;
  const kf_model model = {64, 2, 4};
  static const net_seq seqs[] = {{3, 24}, {0, 18}};
  net_problem p = net_make(model, N(seqs), seqs);
  train_net *net = net_of(model, KF_ISA_BEST, 0);
  int64_t n_rows = p.seq_off[1], n = n_rows * TRAIN_VALUES;
  net_run(net, &p);
  float *before = copy_of(p.prediction, p.pack.n_rows * TRAIN_VALUES);
  for (int axis = 0; axis < 3; axis++) {
    for (int64_t r = 0; r < n_rows; r++) p.row[r].at[axis] += 5;
    net_run(net, &p);
    double d = distance(p.prediction, before, n);
    if (!(d <= 1e-5)) fail_msg("shifted along axis %d it differs by %.2e", axis, d);
    for (int64_t r = 0; r < n_rows; r++) p.row[r].at[axis] -= 5;
    int32_t first = p.row[3].at[axis], last = p.row[26].at[axis]; /* at 0, 0, 0 and 1, 2, 3 */
    p.row[3].at[axis] = last, p.row[26].at[axis] = first;
    net_run(net, &p);
    assert_only_seq_differs(&p, before, 0);
    p.row[3].at[axis] = first, p.row[26].at[axis] = last;
  }
  free(before);
  train_net_free(net);
  net_drop(&p);
}

/* Rows may come in any order: where a token is says its position, not its row. */
static void test_order_of_rows(void **state) {
  (void)state;
  const kf_model model = {32, 2, 2};
  static const net_seq one[] = {{4, 20}};
  net_problem p = net_make(model, 1, one);
  train_net *net = net_of(model, KF_ISA_BEST, 0);
  net_run(net, &p);
  int64_t n = p.pack.n_rows;
  float *before = copy_of(p.prediction, n * TRAIN_VALUES);
  for (int64_t i = 0; i < n / 2; i++) {
    train_row row = p.row[i];
    p.row[i] = p.row[n - 1 - i];
    p.row[n - 1 - i] = row;
  }
  net_run(net, &p);
  for (int64_t i = 0; i < n; i++)
    assert_true(distance(p.prediction + i * TRAIN_VALUES, before + (n - 1 - i) * TRAIN_VALUES,
                         TRAIN_VALUES) < 1e-5);
  free(before);
  train_net_free(net);
  net_drop(&p);
}

/* ---------------------------------------------------------- the same in other ways */

static void test_isas(void **state) {
  (void)state;
  static const kf_isa isas[] = {KF_ISA_BEST, KF_ISA_AVX2, KF_ISA_AVX512};
  static const kf_model models[] = {{18, 2, 3}, {128, 2, 2}};
  for (int64_t m = 0; m < N(models); m++)
    for (int64_t i = 0; i < N(isas); i++) {
      if (!train_pointwise_of(isas[i])) continue;
      net_problem p = net_make(models[m], N(all_kinds), all_kinds);
      train_net *portable = net_of(models[m], KF_ISA_PORTABLE, 0);
      train_net *net = net_of(models[m], isas[i], 0);
      int64_t n = p.pack.n_rows * TRAIN_VALUES;
      net_run(portable, &p);
      float *prediction = copy_of(p.prediction, n), *grads = copy_of(p.grads, p.params.n_floats);
      net_run(net, &p);
      assert_true(distance(p.prediction, prediction, n) < 1e-5);
      assert_grads_near(&p, grads, 1e-4);
      free(prediction), free(grads);
      train_net_free(net), train_net_free(portable);
      net_drop(&p);
    }
}

/* What is computed again has the bits of what would have been kept. */
static void test_kept_or_not(void **state) {
  (void)state;
  const kf_model model = {18, 3, 3};
  static const net_seq many[] = {{30, 500}, {0, 600}};
  net_problem p = net_make(model, N(many), many);
  int64_t n = p.pack.n_rows * TRAIN_VALUES, width = p.pack.n_rows * model.dim * 4;
  const struct {
    int64_t keep_bytes, n_kept;
  } cases[] = {{0, 3}, {1, 0}, {21 * width, 0}, {26 * width, 1}, {32 * width, 2}, {36 * width, 3}};
  float *prediction = NULL, *grads = NULL;
  for (int64_t i = 0; i < N(cases); i++) {
    train_net *net = net_of(model, KF_ISA_BEST, cases[i].keep_bytes);
    net_run(net, &p);
    assert_int_equal(net->n_kept, cases[i].n_kept);
    if (i == 0) prediction = copy_of(p.prediction, n), grads = copy_of(p.grads, p.params.n_floats);
    assert_true(same_bits(p.prediction, prediction, n));
    assert_true(same_bits(p.grads, grads, p.params.n_floats));
    train_net_free(net);
  }
  free(prediction), free(grads);
  net_drop(&p);
}

/* A rank may have nothing to do, at first or later. */
static void test_nothing(void **state) {
  (void)state;
  const kf_model model = {18, 2, 3};
  net_problem p = net_make(model, N(two), two), none = net_make(model, 0, NULL);
  train_net *net = net_of(model, KF_ISA_BEST, 0);
  free(none.row), free(none.prediction), free(none.d);
  none.row = NULL, none.pack.row = NULL, none.prediction = NULL, none.d = NULL;
  for (int round = 0; round < 2; round++) {
    for (int64_t i = 0; i < none.params.n_floats; i++) none.grads[i] = NAN;
    assert_int_equal(train_net_forward(net, none.p, &none.pack, NULL), KF_OK);
    assert_int_equal(train_net_backward(net, none.p, &none.pack, NULL, none.grads), KF_OK);
    for (int64_t i = 0; i < none.params.n_floats; i++) assert_true(none.grads[i] == 0);
    net_run(net, &p);
    assert_true(size_of(p.grads, p.params.n_floats) > 1);
  }
  train_net_free(net);
  train_net_free(NULL);
  net_drop(&none);
  net_drop(&p);
}

/* ------------------------------------------------------------------------ refusals */

static void assert_refused(train_net *net, const net_problem *p, const train_pack *pack,
                           const float *params) {
  assert_int_equal(train_net_backward(net, params, pack, p->d, p->grads), KF_EINVAL);
  assert_string_equal(kf_last_error(), "backward: another pack or other parameters than forward's");
}

static void test_refusals(void **state) {
  (void)state;
  const kf_model model = {18, 1, 3};
  net_problem p = net_make(model, N(two), two);
  train_net *net = net_of(model, KF_ISA_BEST, 0);
  train_pack other = p.pack;
  float *params = copy_of(p.p, p.params.n_floats);
  assert_refused(net, &p, &p.pack, p.p); /* nothing was forward yet */
  net_run(net, &p);
  assert_refused(net, &p, &other, p.p);
  assert_refused(net, &p, &p.pack, params);
  net_run(net, &p);
  train_net_options options = {.model = model, .isa = (kf_isa)9};
  train_net *none = NULL;
  int64_t n_bytes = 5;
  assert_int_equal(train_net_create(&options, &none), KF_EINVAL);
  assert_string_equal(kf_last_error(), "isa: this machine does not have it");
  options = (train_net_options){.model = {18, 1, 4}};
  assert_int_equal(train_net_create(&options, &none), KF_EINVAL);
  assert_int_equal(train_net_bytes(&options, 1, 1, &n_bytes), KF_EINVAL);
  assert_null(none);
  assert_int_equal(n_bytes, 5); /* written only on success */
  free(params);
  train_net_free(net);
  net_drop(&p);
}

/* -------------------------------------------------------------------------- memory */

static int64_t bytes_of(kf_model model, int64_t keep_bytes, int64_t n_rows, int64_t n_seqs) {
  train_net_options options = {.model = model, .keep_bytes = keep_bytes};
  int64_t n_bytes = -1;
  if (train_net_bytes(&options, n_rows, n_seqs, &n_bytes)) fail_msg("%s", kf_last_error());
  return n_bytes;
}

/* Floats of a row: 12 d of a layer and, of its attention's sums, one a head; two of LayerNorm a
** site; 8 d of all layers; the angles. A tile of the MLP is for all rows, 8 d each. Without what is
** kept of the MLP, a layer has 5 d less, and all together 5 d. */
static void test_bytes(void **state) {
  (void)state;
  const kf_model model = {64, 3, 2};
  const int64_t d = 64, layers = 3, n_mod = 6 * layers + 2;
  int64_t row = layers * (12 * d + 2) + 2 * (2 * layers + 1) + 8 * d + 32;
  int64_t seq = 2 * n_mod * d + 6 * d + TRAIN_TIME;
  assert_int_equal(bytes_of(model, 0, 0, 0), 0);
  for (int64_t n = 16; n <= 1024; n *= 2)
    assert_int_equal(bytes_of(model, 0, n, 0), 4 * n * (row + 8 * d));
  for (int64_t n = 1024; n <= 1 << 20; n *= 2) { /* however long: no row needs more than another */
    int64_t keep_all = (int64_t)1 << 50, tile = 1024 * 8 * d;
    assert_int_equal(bytes_of(model, keep_all, n, 0), 4 * (n * row + tile));
    assert_int_equal(bytes_of(model, 1, n, 0), 4 * (n * (row - (layers - 1) * 5 * d) + tile));
  }
  assert_int_equal(bytes_of(model, 0, 1 << 20, 0), bytes_of(model, (int64_t)2 << 30, 1 << 20, 0));
  for (int64_t s = 1; s < 100; s++)
    assert_int_equal(bytes_of(model, 0, 640, s) - bytes_of(model, 0, 640, 0), 4 * s * seq);
}

static void test_bytes_are_reserved(void **state) {
  (void)state;
  static const net_seq larger[] = {{30, 400}, {3, 290}, {0, 700}};
  static const kf_model models[] = {{18, 2, 3}, {64, 1, 1}};
  for (int64_t m = 0; m < N(models); m++)
    for (int64_t keep = 0; keep < 2; keep++) {
      net_problem p = net_make(models[m], N(larger), larger);
      train_net *net = net_of(models[m], KF_ISA_BEST, keep);
      net_run(net, &p);
      int64_t want = bytes_of(models[m], keep, p.pack.n_rows, p.pack.n_seqs);
      assert_in_range(net->block.cap_bytes, want, want + want / 8 + 128);
      train_net_free(net);
      net_drop(&p);
    }
}

/* Every product of DiT-S that is computed, one by one: y = x w^T is 2 * from * to a row, and so is
** the gradient of each of its two inputs; those of patches and waves are not wanted. */
static void test_flops(void **state) {
  (void)state;
  const kf_model model = {384, 12, 6};
  const double d = 384, layers = 12, n = 500;
  double qkv = 2 * d * 3 * d, proj = 2 * d * d, fc = 2 * d * 4 * d, patch = 2 * TRAIN_VALUES * d;
  double mod = 2 * d * (6 * layers + 2) * d, time1 = 2 * TRAIN_TIME * d, time2 = 2 * d * d;
  double scores = 2 * n * n * d; /* of all heads; as much as what they weigh */
  double linear = 3 * n * (layers * (qkv + proj + fc + fc) + patch) + 2 * n * patch;
  double once = 3 * (mod + time2) + 2 * time1;
  double attention =
    layers * (2 + 5) * scores; /* forward 2, backward scores again and 4 gradients */
  double want = linear + once + attention, got = train_net_flops(&model, 500);
  if (!(fabs(got - want) < 1e-12 * want)) fail_msg("%.9g FLOPs, expected %.9g", got, want);
  assert_true(train_net_flops(&model, 0) < 1e-2 * want); /* only what is once */
}

/* Fail each allocation of a step once, by a network that has done `before` (NULL: nothing); then
** all is well. Returns how many there are. */
static long fail_each(net_problem *before, net_problem *p) {
  for (long k = 1;; k++) {
    train_net *net = net_of(p->params.model, KF_ISA_BEST, 0);
    if (before) net_run(net, before);
    float *prediction = copy_of(p->prediction, p->pack.n_rows * TRAIN_VALUES);
    float *grads = copy_of(p->grads, p->params.n_floats);
    fail_alloc(k);
    kf_status status = train_net_forward(net, p->p, &p->pack, p->prediction);
    if (!status) status = train_net_backward(net, p->p, &p->pack, p->d, p->grads);
    bool failed = fail_alloc(0) >= k;
    assert_int_equal(status, failed ? KF_ENOMEM : KF_OK);
    if (failed) {
      assert_non_null(strstr(kf_last_error(), "out of memory: "));
      assert_refused(net, p, &p->pack, p->p); /* there is nothing to go back from */
      if (before) net_run(net, before);
      net_run(net, p);
    }
    assert_true(same_bits(p->prediction, prediction, p->pack.n_rows * TRAIN_VALUES));
    assert_true(same_bits(p->grads, grads, p->params.n_floats));
    free(prediction), free(grads);
    train_net_free(net);
    if (!failed) return k - 1;
  }
}

static void test_memory(void **state) {
  (void)state;
  const kf_model model = {18, 2, 3};
  train_net_options options = {.model = model};
  net_problem p = net_make(model, N(two), two), large = net_make(model, N(all_kinds), all_kinds);
  train_net *net = NULL;
  int64_t n_bytes = 5;
  for (long k = 1;; k++) {
    fail_alloc(k);
    kf_status status = train_net_create(&options, &net);
    if (fail_alloc(0) < k) break;
    assert_int_equal(status, KF_ENOMEM);
    assert_null(net);
    fail_alloc(k);
    assert_int_equal(train_net_bytes(&options, 10, 2, &n_bytes), KF_ENOMEM);
    fail_alloc(0);
    assert_int_equal(n_bytes, 5);
  }
  net_run(net, &p);
  net_run(net, &large);
  assert_true(fail_each(NULL, &p) >= 3); /* activations, sequences, workspace */
  assert_true(fail_each(&p, &large) >= 2);
  train_net_free(net);
  net_drop(&p), net_drop(&large);
}

/* Steps up to an eighth longer than the longest need nothing. */
static void test_no_allocation(void **state) {
  (void)state;
  static const net_seq seqs[][2] = {{{8, 152}, {0, 64}}, {{9, 170}, {1, 70}}, {{2, 3}, {0, 1}}};
  const kf_model model = {18, 2, 3};
  net_problem p[3];
  for (int i = 0; i < 3; i++) p[i] = net_make(model, 2, seqs[i]);
  train_net *net = net_of(model, KF_ISA_BEST, 0);
  net_run(net, &p[0]);
  fail_alloc(0);
  for (int i = 0; i < 6; i++) net_run(net, &p[i % 3]);
  assert_int_equal(fail_alloc(0), 0);
  train_net_free(net);
  for (int i = 0; i < 3; i++) net_drop(&p[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_gradients),
    cmocka_unit_test(test_unused_is_zero),
    cmocka_unit_test(test_sequences_are_alone),
    cmocka_unit_test(test_conditioning),
    cmocka_unit_test(test_modulation),
    cmocka_unit_test(test_positions),
    cmocka_unit_test(test_order_of_rows),
    cmocka_unit_test(test_isas),
    cmocka_unit_test(test_kept_or_not),
    cmocka_unit_test(test_nothing),
    cmocka_unit_test(test_refusals),
    cmocka_unit_test(test_bytes),
    cmocka_unit_test(test_bytes_are_reserved),
    cmocka_unit_test(test_flops),
    cmocka_unit_test(test_memory),
    cmocka_unit_test(test_no_allocation),
  };
  openblas_set_num_threads(1);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
