/* SPDX-License-Identifier: Apache-2.0 */
/*
** What kf_adaln refuses: the sentence says which thing, its value and what was expected, and not a
** byte is written.
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

#include <knapformer.h>

#define FAIL fail_msg
#include "adaln_problem.h"

#define N(array) ((int64_t)(sizeof(array) / sizeof((array)[0])))

enum { FORWARD = 0, BACKWARD = 1 };

static const int64_t lens[] = {2, 0, 3};

/* A good one with all there is, to be spoilt; a workspace for up to 3 threads. */
static problem *make_good(bool gate) {
  form f = {.dim = 8, .n_seqs = 3, .len = lens, .gate = gate, .dx_add = true};
  problem *p = make(&f, 1);
  p->a.n_threads = 3;
  p->a.workspace_bytes = kf_adaln_workspace(&p->a);
  p->a.workspace = checked(aligned_alloc(64, (size_t)p->a.workspace_bytes));
  memset(p->a.workspace, FILL, (size_t)p->a.workspace_bytes);
  p->a.n_threads = 1;
  fill_outputs(p);
  return p;
}

static void expect_untouched(const problem *p) {
  for (int i = 0; i < N_TENSORS; i++)
    if (is_written(p, i)) expect_filled(p->t[i].data, p->t[i].bytes, tensor_names[i]);
  expect_filled(p->a.workspace, (size_t)p->a.workspace_bytes, "workspace");
  expect_unspoilt(p);
}

static void drop_good(problem *p) {
  expect_untouched(p);
  free(p->a.workspace);
  drop(p);
}

static void expect_refusal(kf_status status, const char *sentence) {
  if (status != KF_EINVAL || strcmp(kf_last_error(), sentence) != 0)
    fail_msg("status %d, \"%s\", expected \"%s\"", (int)status, kf_last_error(), sentence);
}

static void refuse(const kf_adaln *a, int backward, const char *sentence) {
  expect_refusal(backward ? kf_adaln_backward(a) : kf_adaln_forward(a), sentence);
}

/* A shape: both passes, the check and the chunk table refuse it, and workspace is the least. */
static void refuse_shape(const kf_adaln *a, const char *sentence) {
  int64_t n = 42;
  for (int backward = 0; backward <= 1; backward++) {
    refuse(a, backward, sentence);
    expect_refusal(kf_adaln_check(a, backward), sentence);
  }
  expect_refusal(kf_adaln_chunks(a, NULL, NULL, &n), sentence);
  assert_int_equal(n, 42);
  assert_int_equal(kf_adaln_workspace(a), 64);
}

/* --------------------------------------------------------------------- numbers */

static void test_counts(void **state) {
  (void)state;
  problem *p = make_good(true);
  const kf_adaln good = p->a;
  kf_adaln a = good;
  refuse_shape(NULL, "adaln is NULL");
  a.dim = 0, refuse_shape(&a, "dim is 0, expected 1 to 1048576"), a = good;
  a.dim = -8, refuse_shape(&a, "dim is -8, expected 1 to 1048576"), a = good;
  a.dim = KF_MAX_DIM + 1, refuse_shape(&a, "dim is 1048577, expected 1 to 1048576"), a = good;
  a.n_tokens = -1;
  refuse_shape(&a, "n_tokens is -1, expected 0 to 2251799813685247 with dim 8"), a = good;
  a.n_seqs = -1, refuse_shape(&a, "n_seqs is -1, expected 0 to 2147483647"), a = good;
  a.n_threads = -1, refuse_shape(&a, "n_threads is -1, expected 0 or more"), a = good;
  a.mod_stride = 7;
  refuse_shape(&a, "mod_stride is 7, expected 0 or 8, the dim, to 67108864"), a = good;
  a.mod_stride = -8;
  refuse_shape(&a, "mod_stride is -8, expected 0 or 8, the dim, to 67108864");
  drop_good(p);
}

/* Whose products do not fit in 64 bits. */
static void test_overflows(void **state) {
  (void)state;
  problem *p = make_good(true);
  const kf_adaln good = p->a;
  kf_adaln a = good;
  a.n_tokens = INT64_MAX;
  refuse_shape(&a, "n_tokens is 9223372036854775807, expected 0 to 2251799813685247 with dim 8");
  a.dim = KF_MAX_DIM, a.n_tokens = INT64_MAX / KF_MAX_DIM;
  refuse_shape(&a, "n_tokens is 8796093022207, expected 0 to 137438953471 with dim 1048576");
  a = good;
  a.n_seqs = INT64_C(1) << 31;
  refuse_shape(&a, "n_seqs is 2147483648, expected 0 to 2147483647"), a = good;
  a.mod_stride = INT64_MAX;
  refuse_shape(&a, "mod_stride is 9223372036854775807, expected 0 or 8, the dim, to 67108864");
  a = good;
  /* As large as it may be: the workspace is a number, and the caller has not got it. */
  const int64_t cu[] = {0, 0, 0, INT64_C(137438953471)};
  a.dim = KF_MAX_DIM, a.n_tokens = cu[3], a.cu_seqlens = cu, a.n_threads = INT32_MAX;
  a.mod_stride = KF_MAX_DIM;
  int64_t need = kf_adaln_workspace(&a);
  assert_true(need > INT64_C(12) * KF_MAX_DIM * (cu[3] / KF_ADALN_CHUNK));
  assert_int_equal(need % 64, 0);
  assert_true(kf_adaln_forward(&a) == KF_EINVAL && strstr(kf_last_error(), "workspace_bytes is"));
  drop_good(p);
}

static void test_choices(void **state) {
  (void)state;
  problem *p = make_good(false);
  const kf_adaln good = p->a;
  kf_adaln a = good;
  a.dtype = (kf_dtype)3,
  refuse_shape(&a, "dtype is 3 (f64), expected 0 (f32), 1 (bf16) or 2 (f16)"), a = good;
  a.dtype = (kf_dtype)-1,
  refuse_shape(&a, "dtype is -1 (unknown), expected 0 (f32), 1 (bf16) or 2 (f16)"), a = good;
  a.rounding = (kf_rounding)2, refuse_shape(&a, "rounding is 2, expected 0 or 1"), a = good;
  a.rounding = (kf_rounding)-1, refuse_shape(&a, "rounding is -1, expected 0 or 1"), a = good;
  a.mod_fp32 = 1, a.rounding = KF_ROUND_EACH, a.dtype = KF_BF16;
  refuse_shape(&a, "mod_fp32 is 1 with rounding 1, expected 0, because every operation rounds to "
                   "dtype 1");
  a.dtype = KF_F16;
  refuse_shape(&a, "mod_fp32 is 1 with rounding 1, expected 0, because every operation rounds to "
                   "dtype 2");
  a = good;
  a.eps = -1e-6f, refuse_shape(&a, "eps is -1e-06, expected 0 or more"), a = good;
  a.eps = NAN, refuse_shape(&a, "eps is nan, expected 0 or more"), a = good;
  a.eps = INFINITY, refuse_shape(&a, "eps is inf, expected 0 or more"), a = good;
  for (int backward = 0; backward <= 1; backward++) {
    a.isa = (kf_isa)4, refuse(&a, backward, "isa is 4, expected 0 to 3");
    a.isa = (kf_isa)-1, refuse(&a, backward, "isa is -1, expected 0 to 3");
    assert_int_equal(kf_adaln_check(&a, backward), KF_OK); /* which is not about the CPU */
  }
  drop_good(p);
}

/* --------------------------------------------------------------------- sequences */

static void test_cu_seqlens(void **state) {
  (void)state;
  problem *p = make_good(false);
  int64_t cu[] = {0, 2, 2, 5};
  int32_t index[] = {0, 0, 2, 2, 2};
  kf_adaln a = p->a;
  a.cu_seqlens = cu, a.seq_index = index;
  refuse_shape(&a, "cu_seqlens and seq_index are both set, expected one of them");
  a.cu_seqlens = NULL, a.seq_index = NULL;
  refuse_shape(&a, "cu_seqlens and seq_index are both NULL, expected one of them for 5 tokens");
  a.cu_seqlens = cu;
  cu[0] = 1, refuse_shape(&a, "cu_seqlens[0] is 1, expected 0");
  cu[0] = -1, refuse_shape(&a, "cu_seqlens[0] is -1, expected 0"), cu[0] = 0;
  cu[2] = 1, refuse_shape(&a, "cu_seqlens[2] is 1, expected at least the 2 before it");
  cu[2] = 6, refuse_shape(&a, "cu_seqlens[3] is 5, expected at least the 6 before it");
  cu[2] = -7, refuse_shape(&a, "cu_seqlens[2] is -7, expected at least the 2 before it"), cu[2] = 2;
  cu[3] = 4, refuse_shape(&a, "cu_seqlens[3] is 4, expected n_tokens, 5");
  cu[3] = 6, refuse_shape(&a, "cu_seqlens[3] is 6, expected n_tokens, 5");
  a.n_seqs = 0, refuse_shape(&a, "cu_seqlens[0] is 0, expected n_tokens, 5");
  drop_good(p);
}

static void test_seq_index(void **state) {
  (void)state;
  problem *p = make_good(false);
  int32_t index[] = {0, 0, 2, 2, 2};
  kf_adaln a = p->a;
  a.cu_seqlens = NULL, a.seq_index = index;
  index[4] = 3, refuse_shape(&a, "seq_index[4] is 3, expected 0 to 2, n_seqs is 3"), index[4] = 2;
  index[0] = -1, refuse_shape(&a, "seq_index[0] is -1, expected 0 to 2, n_seqs is 3");
  drop_good(p);
}

static void test_chunk_table(void **state) {
  (void)state;
  problem *p = make_good(false);
  kf_adaln_chunk chunk[2] = {{42, 42, 42}, {42, 42, 42}};
  int64_t off[4] = {42}, n = 42;
  expect_refusal(kf_adaln_chunks(&p->a, NULL, NULL, NULL), "n_chunks is NULL");
  expect_refusal(kf_adaln_chunks(&p->a, chunk, NULL, &n),
                 "chunk_off is NULL and chunk is not, expected both or none");
  expect_refusal(kf_adaln_chunks(&p->a, NULL, off, &n),
                 "chunk is NULL and chunk_off is not, expected both or none");
  assert_true(n == 42 && off[0] == 42 && chunk[0].first == 42);
  drop_good(p);
}

/* --------------------------------------------------------------------- tensors */

typedef struct missing {
  const char *name;
  size_t field;
  bool forward, backward, gated;
} missing;

#define FIELD(name) #name, offsetof(kf_adaln, name)
static const missing fields[] = {
  {FIELD(x), true, true, false},        {FIELD(scale), true, true, false},
  {FIELD(shift), true, false, false},   {FIELD(y), true, false, false},
  {FIELD(residual), true, false, true}, {FIELD(u), true, true, true},
  {FIELD(mean), false, true, false},    {FIELD(rstd), false, true, false},
  {FIELD(dy), false, true, false},      {FIELD(dx), false, true, false},
  {FIELD(dscale), false, true, false},  {FIELD(dshift), false, true, false},
  {FIELD(du), false, true, true},       {FIELD(dgate), false, true, true},
};

static void refuse_null(const problem *p, const missing *m, int backward) {
  char sentence[100];
  kf_adaln a = p->a;
  memset((char *)&a + m->field, 0, sizeof(void *));
  snprintf(sentence, sizeof sentence, "%s is NULL, expected a tensor for %s%s", m->name,
           backward ? "backward" : "forward", m->gated ? " with a gate" : "");
  refuse(&a, backward, sentence);
  expect_refusal(kf_adaln_check(&a, backward), sentence);
}

/* Each that is needed is missed; without a gate its tensors are not (they are NULL in `p`). */
static void test_tensors(void **state) {
  (void)state;
  for (int gate = 0; gate <= 1; gate++) {
    problem *p = make_good(gate);
    for (int64_t i = 0; i < N(fields); i++)
      for (int backward = 0; backward <= 1; backward++)
        if ((backward ? fields[i].backward : fields[i].forward) && (gate || !fields[i].gated))
          refuse_null(p, &fields[i], backward);
    kf_adaln a = p->a;
    a.mean = NULL;
    refuse(&a, FORWARD, "mean is NULL and rstd is not, expected both or none");
    a = p->a, a.rstd = NULL;
    refuse(&a, FORWARD, "rstd is NULL and mean is not, expected both or none");
    drop_good(p);
  }
}

/* What a pass does not need may be missing. */
static void test_tensors_not_needed(void **state) {
  (void)state;
  for (int backward = 0; backward <= 1; backward++) {
    problem *p = make_good(true);
    kf_adaln a = p->a;
    for (int64_t i = 0; i < N(fields); i++)
      if (!(backward ? fields[i].backward : fields[i].forward))
        memset((char *)&a + fields[i].field, 0, sizeof(void *));
    if (!backward) a.dx_add = NULL;
    if (kf_adaln_check(&a, backward)) fail_msg("%s", kf_last_error());
    if (backward) assert_int_equal(kf_adaln_forward(&p->a), KF_OK);
    if (backward ? kf_adaln_backward(&a) : kf_adaln_forward(&a)) fail_msg("%s", kf_last_error());
    free(p->a.workspace);
    drop(p);
  }
}

/* --------------------------------------------------------------------- workspace */

static void test_workspace(void **state) {
  (void)state;
  problem *p = make_good(true);
  char sentence[120];
  for (int backward = 0; backward <= 1; backward++) {
    kf_adaln a = p->a;
    long long need = kf_adaln_workspace(&a);
    a.workspace = NULL;
    snprintf(sentence, sizeof sentence, "workspace is NULL, expected %lld bytes", need);
    refuse(&a, backward, sentence);
    assert_int_equal(kf_adaln_check(&a, backward), KF_OK);
    a = p->a, a.workspace_bytes = need - 1;
    snprintf(sentence, sizeof sentence, "workspace_bytes is %lld, expected at least %lld", need - 1,
             need);
    refuse(&a, backward, sentence);
    a = p->a, a.workspace = (char *)a.workspace + 32;
    snprintf(sentence, sizeof sentence, "workspace is at %p, expected a multiple of 64",
             a.workspace);
    refuse(&a, backward, sentence);
  }
  drop_good(p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_counts),    cmocka_unit_test(test_overflows),
    cmocka_unit_test(test_choices),   cmocka_unit_test(test_cu_seqlens),
    cmocka_unit_test(test_seq_index), cmocka_unit_test(test_chunk_table),
    cmocka_unit_test(test_tensors),   cmocka_unit_test(test_tensors_not_needed),
    cmocka_unit_test(test_workspace),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
