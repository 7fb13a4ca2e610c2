/* SPDX-License-Identifier: Apache-2.0 */
/*
** Every kernel that this machine can run against the portable one, the portable one against a
** naive softmax in double, that one's gradients against finite differences. Outputs and workspace
** have guards around them, and are of the exact size, so that AddressSanitizer sees reads too.
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

#include "attention_problem.h"
#include "no_room.h"

#define N(array) (sizeof(array) / sizeof((array)[0]))

/* Can this machine run it? A refusal must say so. */
static bool has(kf_isa isa) {
  problem *p = make_one(1, 1, 1, 1);
  _Alignas(64) static unsigned char work[1 << 20];
  p->a.isa = isa;
  p->a.workspace = work;
  p->a.workspace_bytes = sizeof work;
  kf_status status = kf_attention_forward(&p->a);
  if (status && !strstr(kf_last_error(), "which this machine does not have"))
    fail_msg("%s", kf_last_error());
  drop(p);
  return !status;
}

static const kf_isa fast[] = {KF_ISA_AVX2, KF_ISA_AVX512};

/* --------------------------------------------------------------------- comparing */

/* Largest error over largest magnitude (at least 0.1: a lone row's true gradient is 0). */
static void assert_close(const char *what, int64_t n, const float *got, const double *want,
                         double tolerance) {
  double worst = 0, most = 0.1;
  for (int64_t i = 0; i < n; i++) {
    if (!(fabs(got[i] - want[i]) <= worst)) worst = fabs(got[i] - want[i]);
    if (fabs(want[i]) > most) most = fabs(want[i]);
  }
  if (!(worst <= tolerance * most))
    fail_msg("%s: error %.2e of %.2e, expected %.1e", what, worst, most, tolerance);
}

static void assert_outputs_close(const problem *got, double *const want[N_OUT], double forward,
                                 double backward) {
  char what[80];
  for (int i = 0; i < N_OUT; i++) {
    snprintf(what, sizeof what, "%s, isa %d, head_dim %d", out_names[i], (int)got->a.isa,
             (int)got->a.head_dim);
    assert_close(what, (int64_t)(got->out_bytes[i] / sizeof(float)), out_of(got, i), want[i],
                 i == O || i == LSE ? forward : backward);
  }
}

static void assert_same_bits(const problem *a, const problem *b) {
  for (int i = 0; i < N_OUT; i++) {
    assert_true(a->out_bytes[i] == b->out_bytes[i]);
    if (memcmp(a->out[i] + GUARD, b->out[i] + GUARD, a->out_bytes[i]) != 0)
      fail_msg("%s differs, isa %d, threads %d", out_names[i], (int)a->a.isa, (int)a->a.n_threads);
  }
}

/* --------------------------------------------------------------------- the reference */

/* d_o . o of one head after in[which][at] += change */
static double loss(const reference *r, int64_t rows, int64_t dim, int which, int64_t at,
                   double change) {
  double sum = 0, kept = r->in[which][at];
  double *out[N_OUT];
  for (int i = 0; i < N_OUT; i++) out[i] = checked(calloc((size_t)(rows * dim), sizeof(double)));
  r->in[which][at] = kept + change;
  naive_head(rows, dim, dim, r->in, out, 1);
  r->in[which][at] = kept;
  for (int64_t i = 0; i < rows * dim; i++) sum += r->in[3][i] * out[O][i];
  for (int i = 0; i < N_OUT; i++) free(out[i]);
  return sum;
}

static void test_finite_differences(void **state) {
  (void)state;
  static const int64_t shapes[][2] = {{1, 1}, {2, 3}, {5, 4}, {7, 1}};
  for (size_t s = 0; s < N(shapes); s++) {
    int64_t rows = shapes[s][0], dim = shapes[s][1];
    problem *p = make_one((int32_t)dim, rows, 1, 1);
    reference r = naive(p);
    for (int which = 0; which < 3; which++)
      for (int64_t i = 0; i < rows * dim; i++) {
        double step = 1e-5, slope = (loss(&r, rows, dim, which, i, step) -
                                     loss(&r, rows, dim, which, i, -step)) /
                                    (2 * step);
        if (fabs(slope - r.out[DQ + which][i]) > 1e-8)
          fail_msg("%s[%d]: %g, expected %g", out_names[DQ + which], (int)i, r.out[DQ + which][i],
                   slope);
      }
    drop_reference(&r);
    drop(p);
  }
}

static void test_portable_against_naive(void **state) {
  (void)state;
  static const int64_t rows[] = {0, 1, 2, 17, 0, 65, 100};
  static const int32_t heads[] = {1, 3, 2, 1, 4, 2, 1}, dims[] = {1, 3, 16, 72, 256};
  for (size_t i = 0; i < N(dims); i++) {
    problem *p = make(dims[i], (int)N(rows), rows, heads, 1);
    reference r = naive(p);
    run(p, KF_ISA_PORTABLE, 1);
    assert_outputs_close(p, r.out, 2e-7, 1e-6); /* o, lse are rounded, then read by backward */
    drop_reference(&r);
    drop(p);
  }
}

/* --------------------------------------------------------------------- fast kernels */

static void test_fast_against_portable(void **state) {
  (void)state;
  static const int64_t rows[] = {0, 1, 2, 15, 16, 17, 63, 64, 65, 129, 300};
  static const int32_t heads[] = {2, 1, 2, 3, 1, 2, 1, 2, 1, 1, 1};
  static const int32_t dims[] = {1, 3, 8, 16, 40, 64, 72, 80, 128, 256};
  for (size_t i = 0; i < N(dims); i++) {
    bool less = dims[i] == 72 || dims[i] == 128; /* without 300 rows: the twin is slow */
    problem *p = make(dims[i], (int)N(rows) - less, rows, heads, 1);
    double *want[N_OUT];
    run(p, KF_ISA_PORTABLE, 2);
    for (int k = 0; k < N_OUT; k++) {
      int64_t n = (int64_t)(p->out_bytes[k] / sizeof(float));
      want[k] = checked(malloc((size_t)n * sizeof(double)));
      for (int64_t j = 0; j < n; j++) want[k][j] = out_of(p, k)[j];
    }
    for (size_t f = 0; f < N(fast); f++) {
      if (!has(fast[f])) continue;
      run(p, fast[f], 1);
      assert_outputs_close(p, want, 1e-6, 3e-6);
    }
    for (int k = 0; k < N_OUT; k++) free(want[k]);
    drop(p);
  }
}

/* Several blocks of query rows and of keys, the last not full. */
static void test_long(void **state) {
  (void)state;
  problem *p = make_one(16, 1100, 1, 1);
  reference r = naive(p);
  for (size_t f = 0; f < N(fast); f++) {
    if (!has(fast[f])) continue;
    run(p, fast[f], 2);
    assert_outputs_close(p, r.out, 1e-6, 1e-5);
  }
  drop_reference(&r);
  drop(p);
}

/*
** Scores up to some hundreds: a rounding of the score alone changes its exp by score * 2^-24, so
** no sum of floats can be better than that.
*/
static void test_large_scores(void **state) {
  (void)state;
  problem *p = make_one(64, 300, 1, 8);
  reference r = naive(p);
  double most = 0;
  for (int64_t i = 0; i < p->pairs; i++) most = fmax(most, fabs(r.out[LSE][i]));
  assert_true(most > 100);
  for (size_t f = 0; f < N(fast); f++) {
    if (!has(fast[f])) continue;
    run(p, fast[f], 1);
    assert_outputs_close(p, r.out, 1e-6 + most * 0x1p-23, 1e-5 + most * 0x1p-23);
  }
  drop_reference(&r);
  drop(p);
}

/* Each key's score is larger than the one before, by more than exp can hold: the last one wins. */
static void test_rising_scores(void **state) {
  (void)state;
  enum { ROWS = 203, DIM = 4 };
  static const kf_isa all[] = {KF_ISA_PORTABLE, KF_ISA_AVX2, KF_ISA_AVX512};
  for (size_t f = 0; f < N(all); f++) {
    for (int sign = -1; sign <= 1; sign += 2) {
      if (!has(all[f])) continue;
      problem *p = make_one(DIM, ROWS, 1, 1);
      for (int i = 0; i < ROWS * DIM; i++) {
        p->in[0][i] = 1000;
        p->in[1][i] = (float)(sign * (i / DIM + 1)); /* none is 0, which padding would be */
      }
      run(p, all[f], 1);
      int winner = sign > 0 ? ROWS - 1 : 0;
      for (int i = 0; i < ROWS; i++) {
        assert_memory_equal(out_of(p, O) + i * DIM, p->in[2] + winner * DIM, DIM * sizeof(float));
        assert_true(fabs(out_of(p, LSE)[i] - 2000.0 * sign * (winner + 1)) < 0.1);
      }
      drop(p);
    }
  }
}

/* --------------------------------------------------------------------- the same bits */

static void test_threads(void **state) {
  (void)state;
  static const int64_t rows[] = {40, 300, 0, 129};
  static const int32_t heads[] = {3, 1, 2, 2};
  static const int32_t dims[] = {200, 8};
  for (size_t f = 0; f <= N(fast); f++) {
    kf_isa isa = f == N(fast) ? KF_ISA_PORTABLE : fast[f];
    if (!has(isa)) continue;
    for (size_t i = isa == KF_ISA_PORTABLE; i < N(dims); i++) { /* which is slow: 8 only */
      problem *one = make(dims[i], 4, rows, heads, 1);
      problem *many = make(dims[i], 4, rows, heads, 1);
      run(one, isa, 0);
      for (int32_t t = 1; t <= (isa == KF_ISA_PORTABLE ? 2 : 5); t++) {
        run(many, isa, t);
        assert_same_bits(many, one);
      }
      drop(many);
      drop(one);
    }
  }
}

/* A lane's operations are the same, whatever the width of a vector. */
static void test_instruction_sets(void **state) {
  (void)state;
  static const int64_t rows[] = {5, 130};
  static const int32_t heads[] = {2, 1}, dims[] = {8, 72};
  if (!has(KF_ISA_AVX512)) return; /* only one fast kernel runs here */
  for (size_t i = 0; i < N(dims); i++) {
    problem *a = make(dims[i], 2, rows, heads, 2), *b = make(dims[i], 2, rows, heads, 2);
    run(a, KF_ISA_AVX2, 1);
    run(b, KF_ISA_AVX512, 1);
    assert_same_bits(a, b);
    run(b, KF_ISA_BEST, 1);
    assert_same_bits(a, b);
    drop(a);
    drop(b);
  }
}

/* One long head on several threads: blocks of keys that wait for each other's turn. */
static void test_threads_of_one_head(void **state) {
  (void)state;
  problem *one = make_one(8, 2100, 1, 1), *many = make_one(8, 2100, 1, 1);
  run(one, KF_ISA_BEST, 1);
  for (int32_t t = 2; t <= 5; t++) {
    run(many, KF_ISA_BEST, t);
    assert_same_bits(many, one);
  }
  drop(many);
  drop(one);
}

/*
** No room for the threads' stacks: none starts, and the caller's thread does it all. It comes
** first, because later the C library has stacks in store.
*/
static void test_threads_that_do_not_start(void **state) {
  (void)state;
  if (!can_take_room()) return;
  problem *p = make_one(8, 600, 2, 1), *many = make_one(8, 600, 2, 1);
  run(p, KF_ISA_BEST, 1);
  struct rlimit before = take_room();
  run(many, KF_ISA_BEST, 3);
  give_room(before);
  assert_same_bits(many, p);
  drop(many);
  drop(p);
}

/* Copy heads first .. first + n of the `all` heads of every row. */
static void copy_heads(const float *src, int all, int first, int n, int64_t rows, int64_t dim,
                       float *dst) {
  for (int64_t r = 0; r < rows; r++)
    memcpy(dst + r * n * dim, src + (r * all + first) * dim, (size_t)(n * dim) * sizeof(float));
}

/* Heads 2 and 3 of a sequence alone, between other segments, give what they give together. */
static void test_split_heads(void **state) {
  (void)state;
  enum { ROWS = 150, DIM = 24, HEADS = 5, FIRST = 2, TAKE = 2 };
  static const int64_t rows[] = {7, ROWS, 30};
  static const int32_t heads[] = {1, TAKE, 3};
  for (size_t f = 0; f < N(fast); f++) {
    if (!has(fast[f])) continue;
    problem *whole = make_one(DIM, ROWS, HEADS, 1), *part = make(DIM, 3, rows, heads, 1);
    int64_t offset = part->segment[1].offset;
    static float want[ROWS * TAKE * DIM];
    for (int i = 0; i < 4; i++)
      copy_heads(whole->in[i], HEADS, FIRST, TAKE, ROWS, DIM, part->in[i] + offset * DIM);
    run(whole, fast[f], 1);
    run(part, fast[f], 2);
    for (int i = 0; i < N_OUT; i++) {
      int64_t dim = i == LSE ? 1 : DIM;
      copy_heads(out_of(whole, i), HEADS, FIRST, TAKE, ROWS, dim, want);
      assert_memory_equal(out_of(part, i) + offset * dim, want,
                          (size_t)(ROWS * TAKE * dim) * sizeof(float));
    }
    drop(part);
    drop(whole);
  }
}

/* q, k and v in one buffer, (rows, 3, heads, dim) with a gap; so are their gradients. */
static void test_strides(void **state) {
  (void)state;
  enum { DIM = 20, HEADS = 2, WIDTH = HEADS * DIM, STRIDE = 3 * WIDTH + 5, ALL = 70 + 1 + 33 };
  static const int64_t rows[] = {70, 1, 33};
  static const int32_t heads[] = {HEADS, HEADS, HEADS};
  static float in[ALL * STRIDE], out[ALL * STRIDE];
  for (int isa = KF_ISA_PORTABLE; isa <= KF_ISA_AVX512; isa++) {
    if (!has((kf_isa)isa)) continue;
    problem *dense = make(DIM, 3, rows, heads, 1), *wide = make(DIM, 3, rows, heads, 1);
    for (int i = 0; i < 3; i++)
      for (int64_t r = 0; r < ALL; r++)
        memcpy(in + r * STRIDE + i * WIDTH, dense->in[i] + r * WIDTH, WIDTH * sizeof(float));
    for (int i = 0; i < ALL * STRIDE; i++) out[i] = 42;
    wide->a.qkv_stride = STRIDE;
    wide->a.q = in, wide->a.k = in + WIDTH, wide->a.v = in + 2 * WIDTH;
    wide->a.dq = out, wide->a.dk = out + WIDTH, wide->a.dv = out + 2 * WIDTH;
    run(dense, (kf_isa)isa, 1);
    run(wide, (kf_isa)isa, 2);
    for (int64_t r = 0; r < ALL; r++) {
      for (int i = 0; i < 3; i++)
        assert_memory_equal(out + r * STRIDE + i * WIDTH, out_of(dense, DQ + i) + r * WIDTH,
                            WIDTH * sizeof(float));
      for (int i = 3 * WIDTH; i < STRIDE; i++) assert_true(out[r * STRIDE + i] == 42);
    }
    assert_memory_equal(out_of(wide, O), out_of(dense, O), dense->out_bytes[O]);
    assert_memory_equal(out_of(wide, LSE), out_of(dense, LSE), dense->out_bytes[LSE]);
    drop(wide);
    drop(dense);
  }
}

static void test_scale_and_lse(void **state) {
  (void)state;
  problem *usual = make_one(16, 50, 2, 1), *other = make_one(16, 50, 2, 1);
  run(usual, KF_ISA_BEST, 1);
  other->a.scale = 0.25f; /* 1/sqrt(16) */
  run(other, KF_ISA_BEST, 1);
  assert_same_bits(other, usual);
  other->a.scale = -0.25f; /* the same as negative q, whose gradient turns too */
  for (int i = 0; i < 16 * 100; i++) other->in[0][i] = -other->in[0][i];
  run(other, KF_ISA_BEST, 1);
  for (int i = 0; i < 16 * 100; i++) out_of(other, DQ)[i] = -out_of(other, DQ)[i];
  assert_same_bits(other, usual);

  _Alignas(64) static unsigned char work[1 << 20];
  usual->a.workspace = work;
  usual->a.workspace_bytes = sizeof work;
  usual->a.lse = NULL;
  memset(usual->a.o, 0, usual->out_bytes[O]);
  assert_int_equal(kf_attention_forward(&usual->a), KF_OK);
  assert_memory_equal(usual->a.o, out_of(other, O), usual->out_bytes[O]);
  drop(other);
  drop(usual);
}

/* --------------------------------------------------------------------- refusals */

static void test_nothing_to_do(void **state) {
  (void)state;
  kf_segment segment = {.rows = 0, .heads = 3};
  kf_attention a = {.head_dim = 64};
  assert_int_equal(kf_attention_workspace(&a), 64);
  assert_int_equal(kf_attention_forward(&a), KF_OK);
  assert_int_equal(kf_attention_backward(&a), KF_OK);
  a.n_segments = 1;
  a.segment = &segment;
  assert_int_equal(kf_attention_workspace(&a), 64);
  assert_int_equal(kf_attention_forward(&a), KF_OK);
  assert_int_equal(kf_attention_backward(&a), KF_OK);
}

static void test_workspace_is_linear(void **state) {
  (void)state;
  kf_segment segment = {.rows = 1000, .heads = 24};
  kf_attention a = {.n_segments = 1, .segment = &segment, .head_dim = 128, .n_threads = 2};
  int64_t few = kf_attention_workspace(&a);
  segment.rows = 500000;
  assert_true(kf_attention_workspace(&a) < few + 8 * segment.rows * 24);
}

static void refuse(const kf_attention *a, bool backward, const char *sentence) {
  kf_status status = backward ? kf_attention_backward(a) : kf_attention_forward(a);
  if (status != KF_EINVAL || strcmp(kf_last_error(), sentence) != 0)
    fail_msg("status %d, \"%s\", expected \"%s\"", (int)status, kf_last_error(), sentence);
}

static void test_refused_shapes(void **state) {
  (void)state;
  kf_segment s = {.rows = 2, .heads = 3, .offset = 6};
  kf_attention good = {.n_segments = 1, .segment = &s, .head_dim = 8}, a = good;
  refuse(NULL, false, "attention is NULL");
  a.head_dim = 0, refuse(&a, false, "head_dim is 0, expected 1 to 256"), a = good;
  a.head_dim = 257, refuse(&a, true, "head_dim is 257, expected 1 to 256");
  assert_int_equal(kf_attention_workspace(&a), 64), a = good;
  a.n_threads = -1, refuse(&a, false, "n_threads is -1, expected 0 or more"), a = good;
  a.n_segments = -1, refuse(&a, false, "n_segments is -1, expected 0 or more"), a = good;
  a.segment = NULL, refuse(&a, false, "segment is NULL, expected 1 segments"), a = good;
  a.scale = NAN, refuse(&a, false, "scale is nan, expected a finite number"), a = good;
  a.isa = (kf_isa)9, refuse(&a, false, "isa is 9, expected 0 to 3"), a = good;
  a.qkv_stride = -1, refuse(&a, false, "qkv_stride is -1, expected 0 or more");
  a.qkv_stride = 23;
  refuse(&a, true, "qkv_stride is 23, expected at least the 3 heads * 8 of segment 0");
  a.qkv_stride = 24, s.offset = 7;
  refuse(&a, false,
         "segment 0 has offset 7, expected a multiple of its 3 heads, because qkv_stride is set");
  s.offset = 0;
  const kf_segment uneven[] = {s, {.rows = 2, .heads = 1, .offset = 6}};
  a.segment = uneven, a.n_segments = 2;
  refuse(&a, true,
         "segment 1 has 1 heads and segment 0 has 3, expected the same, because qkv_stride is set");
  a.segment = &s, a.n_segments = 1;
  a.qkv_stride = INT64_MAX / 8, s.offset = 0;
  refuse(&a, false,
         "segment 0 ends at row 2, expected at most 1 with qkv_stride 1152921504606846975");
}

static void test_refused_segments(void **state) {
  (void)state;
  kf_segment s[2] = {{.rows = 2, .heads = 3}, {.rows = 2, .heads = 3, .offset = 6}};
  kf_attention a = {.n_segments = 2, .segment = s, .head_dim = 8};
  s[1].rows = -1;
  refuse(&a, false,
         "segment 1 has rows -1, heads 3, offset 6, expected rows >= 0, heads >= 1, offset >= 0");
  s[1].rows = 2, s[1].heads = 0;
  refuse(&a, true,
         "segment 1 has rows 2, heads 0, offset 6, expected rows >= 0, heads >= 1, offset >= 0");
  s[1].heads = 3, s[1].offset = -1;
  refuse(&a, true,
         "segment 1 has rows 2, heads 3, offset -1, expected rows >= 0, heads >= 1, offset >= 0");
  s[1].offset = 6, s[1].rows = INT64_MAX;
  refuse(&a, true,
         "segment 1 ends after 6 + 9223372036854775807 * 3 (row, head) pairs, expected at most "
         "144115188075855871");
  s[1].rows = 2, s[1].offset = INT64_MAX;
  refuse(&a, true,
         "segment 1 ends after 9223372036854775807 + 2 * 3 (row, head) pairs, expected at most "
         "144115188075855871");
  s[0].rows = s[1].rows = INT64_C(144115188075855871) / 3, s[1].offset = 0;
  refuse(&a, true, "segments 0 to 1 have more than 144115188075855871 (row, head) pairs");
  assert_int_equal(kf_attention_workspace(&a), 64);
}

/* As a, but the pointer that &of->field addresses is NULL. */
static void refuse_null(kf_attention a, const void *field, const kf_attention *of, bool backward,
                        const char *name) {
  char sentence[80];
  memset((char *)&a + ((const char *)field - (const char *)of), 0, sizeof(void *));
  snprintf(sentence, sizeof sentence, "%s is NULL, expected a tensor for %s", name,
           backward ? "backward" : "forward");
  refuse(&a, backward, sentence);
}

static void test_refused_tensors(void **state) {
  (void)state;
  problem *p = make_one(8, 4, 2, 1);
  _Alignas(64) static unsigned char work[1 << 20];
  kf_attention *a = &p->a;
  a->workspace = work;
  a->workspace_bytes = sizeof work;
  for (int backward = 0; backward <= 1; backward++) {
    refuse_null(*a, &a->q, a, backward, "q");
    refuse_null(*a, &a->k, a, backward, "k");
    refuse_null(*a, &a->v, a, backward, "v");
    refuse_null(*a, &a->o, a, backward, "o");
  }
  refuse_null(*a, &a->lse, a, true, "lse");
  refuse_null(*a, &a->d_o, a, true, "d_o");
  refuse_null(*a, &a->dq, a, true, "dq");
  refuse_null(*a, &a->dk, a, true, "dk");
  refuse_null(*a, &a->dv, a, true, "dv");
  drop(p);
}

static void test_refused_workspace(void **state) {
  (void)state;
  problem *p = make_one(8, 4, 2, 1);
  _Alignas(64) static unsigned char work[1 << 20];
  char sentence[120];
  int64_t need = kf_attention_workspace(&p->a);
  assert_true(need <= (int64_t)sizeof work);
  snprintf(sentence, sizeof sentence, "workspace is NULL, expected %lld bytes", (long long)need);
  refuse(&p->a, false, sentence);
  p->a.workspace = work;
  p->a.workspace_bytes = need - 1;
  snprintf(sentence, sizeof sentence, "workspace_bytes is %lld, expected at least %lld",
           (long long)need - 1, (long long)need);
  refuse(&p->a, true, sentence);
  p->a.workspace = work + 32;
  p->a.workspace_bytes = need;
  snprintf(sentence, sizeof sentence, "workspace is at %p, expected a multiple of 64",
           p->a.workspace);
  refuse(&p->a, false, sentence);
  drop(p);
}

/* A model that diverges must show it: NaN in row 5 reaches all that depends on that row. */
static void test_nan_is_seen(void **state) {
  (void)state;
  enum { ROWS = 150, DIM = 20, SICK = 5 };
  for (int isa = KF_ISA_PORTABLE; isa <= KF_ISA_AVX512; isa++)
    for (int which = 0; which < 4 && has((kf_isa)isa); which++) { /* q, k, v, d_o */
      problem *p = make_one(DIM, ROWS, 1, 1);
      p->in[which][SICK * DIM] = NAN;
      run(p, (kf_isa)isa, 1);
      for (int r = 0; r < ROWS; r++) {
        bool sick = which == 1 || which == 2 || (which == 0 && r == SICK);
        if (isnan(out_of(p, O)[r * DIM]) != sick)
          fail_msg("isa %d, input %d: o of row %d is %g", isa, which, r, out_of(p, O)[r * DIM]);
        assert_true(isnan(out_of(p, which == 2 ? DQ : DV)[r * DIM]));
      }
      drop(p);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_threads_that_do_not_start), /* first */
    cmocka_unit_test(test_finite_differences),
    cmocka_unit_test(test_portable_against_naive),
    cmocka_unit_test(test_fast_against_portable),
    cmocka_unit_test(test_long),
    cmocka_unit_test(test_large_scores),
    cmocka_unit_test(test_rising_scores),
    cmocka_unit_test(test_nan_is_seen),
    cmocka_unit_test(test_threads),
    cmocka_unit_test(test_instruction_sets),
    cmocka_unit_test(test_threads_of_one_head),
    cmocka_unit_test(test_split_heads),
    cmocka_unit_test(test_strides),
    cmocka_unit_test(test_scale_and_lse),
    cmocka_unit_test(test_nothing_to_do),
    cmocka_unit_test(test_workspace_is_linear),
    cmocka_unit_test(test_refused_shapes),
    cmocka_unit_test(test_refused_segments),
    cmocka_unit_test(test_refused_tensors),
    cmocka_unit_test(test_refused_workspace),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
