/* SPDX-License-Identifier: Apache-2.0 */
/*
** The same bits: with every instruction set that this machine has, any number of threads, and
** wherever the tensors lie. The portable kernel on one thread is what the others are held against;
** test_adaln_exact.c is about what that one computes, test_adaln_misuse.c about what is refused.
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
#include "no_room.h"

#define N(array) ((int64_t)(sizeof(array) / sizeof((array)[0])))

static const int32_t thread_counts[] = {1, 2, 3, 7};

/* Around chunks of 32; all together 263 tokens. */
static const int64_t many_lens[] = {0, 1, 2, 31, 32, 0, 33, 64, 100, 0};
static const int64_t few_lens[] = {1, 0, 34, 2, 0};
static const int64_t short_lens[] = {2, 0, 5};

/* Every instruction set and number of threads, if `all`; else each set, with another number. */
static void expect_one_result(problem *p, bool all, uint64_t turn) {
  run(p, KF_ISA_PORTABLE, 0);
  keep(p);
  for (int isa = KF_ISA_BEST; isa <= KF_ISA_AVX512; isa++) {
    if (!has_isa((kf_isa)isa)) continue;
    for (int64_t i = 0; i < N(thread_counts); i++)
      if (all || (uint64_t)i == (turn + (uint64_t)isa) % 4) {
        run(p, (kf_isa)isa, thread_counts[i]);
        expect_kept(p);
      }
  }
}

/* Any bits of `chosen` switch something on. Returns false for what does not exist. */
static bool choose(unsigned chosen, form *f) {
  f->gate = chosen & 1;
  f->dx_add = chosen >> 1 & 1;
  f->mod_fp32 = chosen >> 2 & 1;
  f->index = chosen >> 3 & 1;
  f->rounding = chosen >> 4 & 1 ? KF_ROUND_EACH : KF_ROUND_ONCE;
  f->slices = chosen >> 5 & 1;
  f->odd = chosen >> 6 & 1;
  f->in_place = chosen >> 7 & 1;
  f->scatter = f->index && chosen >> 8 & 1;
  return f->dtype == KF_F32 || !f->mod_fp32 || f->rounding == KF_ROUND_ONCE;
}

enum { N_CHOICES = 1 << 9, N_KINDS = 1 << 5 }; /* kinds: without what is about memory only */

/* Two widths, with and without a tail; all kinds, each in four places of memory. */
static void test_every_choice(void **state) {
  (void)state;
  for (int dtype = KF_F32; dtype <= KF_F16; dtype++)
    for (unsigned n = 0; n < 4 * N_KINDS; n++) {
      dice d = {n};
      unsigned chosen = n % N_KINDS | (unsigned)dice_int(&d, N_CHOICES / N_KINDS) * N_KINDS;
      form f = {.dim = n / N_KINDS % 2 ? 32 : 19, .dtype = (kf_dtype)dtype};
      f.n_seqs = N(few_lens), f.len = few_lens;
      if (!choose(chosen, &f)) continue;
      problem *p = make(&f, chosen);
      expect_one_result(p, false, n / 8);
      drop(p);
    }
}

/* Every width, with all lengths where it is small, and choices that differ from width to width. */
static void test_every_width(void **state) {
  (void)state;
  static const int64_t dims[] = {1,   3,   7,   15,  16,   17,   63,   64,  65,
                                 100, 255, 256, 257, 1000, 1152, 3072, 8200};
  for (int64_t i = 0; i < N(dims); i++)
    for (int n = 0; n < 12; n++) {
      dice d = {(uint64_t)(i * 12 + n)};
      form f = {.dim = dims[i], .dtype = (kf_dtype)(n % 3)};
      bool small = dims[i] < 300;
      f.n_seqs = small ? N(many_lens) : N(short_lens), f.len = small ? many_lens : short_lens;
      unsigned chosen = (unsigned)(dice_int(&d, N_CHOICES) & ~17) | (n / 3 % 2) | (n / 6) << 4;
      if (!choose(chosen, &f)) f.mod_fp32 = false;
      problem *p = make(&f, (uint64_t)n);
      expect_one_result(p, dims[i] < 10 || n % 6 == (int)(i % 6), (uint64_t)n);
      drop(p);
    }
}

/*
** Tensors so large that they are written past the caches, which needs aligned addresses: rows that
** begin on a cache line, rows that do not, and tensors that do not.
*/
static void test_large(void **state) {
  (void)state;
  static const struct {
    int64_t dim;
    kf_dtype dtype;
    bool odd;
  } cases[] = {{1024, KF_F32, false},
               {1000, KF_F32, false},
               {1024, KF_BF16, false},
               {1024, KF_F16, false},
               {1024, KF_F32, true}};
  for (int64_t i = 0; i < N(cases); i++) {
    int64_t tokens = (int64_t)((17 << 18) / size_of(cases[i].dtype)) / cases[i].dim;
    const int64_t len[] = {tokens - 40, 40};
    form f = {.dim = cases[i].dim, .n_seqs = 2, .len = len, .dtype = cases[i].dtype};
    f.odd = cases[i].odd, f.gate = i < 2, f.dx_add = f.in_place = i % 2;
    problem *p = make(&f, 1);
    run(p, KF_ISA_PORTABLE, 2);
    keep(p);
    for (int isa = KF_ISA_AVX2; isa <= KF_ISA_AVX512; isa++)
      for (int32_t n = 1; n <= 2 && has_isa((kf_isa)isa); n++) {
        run(p, (kf_isa)isa, n);
        expect_kept(p);
      }
    drop(p);
  }
}

/* Numbers from subnormal to those whose sums overflow: even then all agree. */
static void test_wild_numbers(void **state) {
  (void)state;
  static const int64_t dims[] = {5, 64, 100, 300};
  for (int n = 0; n < 24; n++) {
    form f = {.dim = dims[n % 4], .n_seqs = N(few_lens), .len = few_lens};
    f.dtype = (kf_dtype)(n % 3), f.gate = n / 3 % 2, f.dx_add = n / 6 % 2;
    f.rounding = n % 5 ? KF_ROUND_ONCE : KF_ROUND_EACH;
    problem *p = make(&f, 1);
    dice d = {(uint64_t)n};
    for (int i = 0; i < Y; i++)
      for (int64_t r = 0; is_filled(p, i) && r < p->t[i].n_rows; r++) {
        int least = f.dtype == KF_F16 ? -24 : -140, most = f.dtype == KF_F16 ? 15 : 127;
        int64_t power = least + dice_int(&d, most + 1 - least), kind = dice_int(&d, 3);
        double low = kind == 0 ? -1 : kind == 1 ? 0.9 : 1; /* the last: all the same */
        for (int64_t c = 0; c < f.dim; c++)
          put(&p->t[i], r, c, ldexp(dice_real(&d, low, 1), (int)power));
      }
    settle(p);
    expect_one_result(p, true, 0);
    drop(p);
  }
}

/* ------------------------------------------------------------------ how it is laid out */

/* Outputs of two problems of the same values, row by row, whatever their strides. */
static void expect_equal(const problem *a, const problem *b, int from, int to) {
  for (int i = from; i <= to; i++)
    for (int64_t r = 0; a->t[i].data && r < a->t[i].n_rows; r++)
      for (int64_t c = 0; c < a->t[i].dim; c++)
        if (at(&a->t[i], r, c) != at(&b->t[i], r, c))
          fail_msg("%s[%lld][%lld] is %a, expected %a", tensor_names[i], (long long)r, (long long)c,
                   at(&a->t[i], r, c), at(&b->t[i], r, c));
}

/* seq_index, slices, alignment and working in place change nothing. */
static void test_layouts(void **state) {
  (void)state;
  for (unsigned bit = 3; bit <= 7; bit++)
    for (int dtype = KF_F32; bit != 4 && dtype <= KF_F16; dtype++) {
      form plain = {.dim = 70, .dtype = (kf_dtype)dtype}, other = plain;
      plain.n_seqs = other.n_seqs = N(many_lens), plain.len = other.len = many_lens;
      choose(3, &plain);
      choose(3 | 1U << bit, &other);
      problem *p = make(&plain, 5), *q = make(&other, 5);
      run(p, KF_ISA_BEST, 2);
      run(q, KF_ISA_BEST, 2);
      expect_equal(q, p, Y, DGATE);
      drop(q);
      drop(p);
    }
}

/* A sequence in several places: its tokens fare as if they were together. */
static void test_scattered(void **state) {
  (void)state;
  form together = {.dim = 70, .n_seqs = N(many_lens), .len = many_lens, .gate = true};
  form apart = together;
  apart.index = apart.scatter = true;
  problem *p = make(&together, 5), *q = make(&apart, 5);
  int64_t n_moved = 0;
  for (int64_t t = 0; t < p->n_tokens; t++) n_moved += p->seq_index[t] != q->seq_index[t];
  assert_true(n_moved > 20);
  run(q, KF_ISA_BEST, 2);
  /* Now p's token t becomes q's token `from[t]`, the next one of that sequence. */
  int64_t *from = checked(calloc((size_t)p->n_tokens, sizeof *from)), n = 0;
  for (int64_t s = 0; s < together.n_seqs; s++)
    for (int64_t t = 0; t < p->n_tokens; t++)
      if (q->seq_index[t] == s) from[n++] = t;
  static const int moved[] = {RESIDUAL, U, DY}, made[] = {X, Y, DX, DU, MEAN, RSTD};
  for (int64_t i = 0; i < N(moved); i++)
    for (int64_t t = 0; t < n; t++)
      for (int64_t c = 0; c < 70; c++) put(&p->t[moved[i]], t, c, at(&q->t[moved[i]], from[t], c));
  settle(p);
  run(p, KF_ISA_BEST, 1);
  for (int64_t i = 0; i < N(made); i++)
    for (int64_t t = 0; t < n; t++)
      for (int64_t c = 0; c < p->t[made[i]].dim; c++)
        assert_true(at(&p->t[made[i]], t, c) == at(&q->t[made[i]], from[t], c));
  for (int64_t s = 0; s < together.n_seqs; s++) /* other chunks, so other roundings */
    for (int64_t c = 0; c < 70; c++)
      for (int i = DSCALE; i <= DGATE; i++)
        assert_true(fabs(at(&p->t[i], s, c) - at(&q->t[i], s, c)) < 1e-4);
  free(from);
  drop(q);
  drop(p);
}

/* Without mean and rstd, forward writes the same y. */
static void test_no_statistics(void **state) {
  (void)state;
  form f = {.dim = 70, .n_seqs = N(few_lens), .len = few_lens, .gate = true};
  for (int isa = KF_ISA_PORTABLE; isa <= KF_ISA_AVX512; isa++) {
    if (!has_isa((kf_isa)isa)) continue;
    problem *p = make(&f, 1);
    run(p, (kf_isa)isa, 2);
    keep(p);
    _Alignas(64) static unsigned char work[1 << 17];
    p->a.workspace = work;
    p->a.workspace_bytes = sizeof work;
    p->a.mean = p->a.rstd = NULL;
    memset(p->t[Y].data, FILL, p->t[Y].bytes);
    memset(p->t[X].data, FILL, p->t[X].bytes);
    assert_int_equal(kf_adaln_forward(&p->a), KF_OK);
    expect_kept(p);
    drop(p);
  }
}

/* ------------------------------------------------------------------ threads */

/*
** No room for the threads' stacks: none starts, and the caller's thread does it all. It comes
** first, because later the C library has stacks in store.
*/
static void test_threads_that_do_not_start(void **state) {
  (void)state;
  if (!can_take_room()) return;
  form f = {.dim = 70, .n_seqs = N(many_lens), .len = many_lens, .gate = true};
  problem *p = make(&f, 1);
  run(p, KF_ISA_BEST, 1);
  keep(p);
  struct rlimit before = take_room();
  run(p, KF_ISA_BEST, 3);
  give_room(before);
  expect_kept(p);
  drop(p);
}

/* More threads than chunks, than sequences, than columns. */
static void test_more_threads_than_work(void **state) {
  (void)state;
  form f = {.dim = 2, .n_seqs = N(few_lens), .len = few_lens, .gate = true};
  problem *p = make(&f, 1);
  run(p, KF_ISA_BEST, 1);
  keep(p);
  run(p, KF_ISA_BEST, 60);
  expect_kept(p);
  drop(p);
}

/* ------------------------------------------------------------------ NaN and infinity */

/* What one token has does not reach another's row; NaN stays NaN in every dtype. */
static void test_sick_token(void **state) {
  (void)state;
  enum { DIM = 83, SICK = 5 };
  static const int64_t len[] = {3, 40};
  static const double sick[] = {NAN, INFINITY, -INFINITY};
  static const int through[] = {RESIDUAL, U, DY, DX_ADD}; /* X by residual */
  for (int isa = KF_ISA_PORTABLE; isa <= KF_ISA_AVX512; isa++)
    for (int n = 0; n < 36 && has_isa((kf_isa)isa); n++) {
      form f = {.dim = DIM, .n_seqs = 2, .len = len, .dtype = (kf_dtype)(n % 3)};
      f.gate = f.dx_add = true;
      problem *p = make(&f, 1);
      int which = through[n / 9], column = n % 2 ? 7 : DIM - 1; /* and in the tail */
      double evil = sick[n / 3 % 3];
      run(p, (kf_isa)isa, 1);
      keep(p);
      put(&p->t[which], SICK, column, evil);
      settle(p);
      run(p, (kf_isa)isa, 1);
      if (which <= U)
        for (int c = 0; c < DIM; c++) assert_true(isnan(at(&p->t[Y], SICK, c)));
      assert_true(!isfinite(at(&p->t[DX], SICK, column)));
      if (isnan(evil)) assert_true(isnan(at(&p->t[DU], SICK, column)));
      assert_true(!isfinite(at(&p->t[which == DY ? DSHIFT : DGATE], 1, column)));
      for (int i = Y; i <= DU; i++) { /* the other tokens are well */
        tensor well = p->t[i];
        size_t row = (size_t)well.dim * size_of(well.dtype);
        assert_memory_equal(well.data, well.kept, SICK * row);
        assert_memory_equal(well.data + (SICK + 1) * row, well.kept + (SICK + 1) * row,
                            (43 - SICK - 1) * row);
      }
      assert_memory_equal(p->t[DGATE].data, p->t[DGATE].kept, DIM * size_of(f.dtype));
      drop(p);
    }
}

/* ------------------------------------------------------------------ the chunk table */

static void expect_chunks(const problem *p) {
  int64_t n = -1, again = -1, seen = 0;
  assert_int_equal(kf_adaln_chunks(&p->a, NULL, NULL, &n), KF_OK);
  kf_adaln_chunk *chunk = checked(calloc((size_t)n + 1, sizeof *chunk));
  int64_t *off = checked(calloc((size_t)p->f.n_seqs + 1, sizeof *off));
  bool *is_done = checked(calloc((size_t)p->n_tokens + 1, sizeof *is_done));
  memset(&chunk[n], FILL, sizeof *chunk);
  assert_int_equal(kf_adaln_chunks(&p->a, chunk, off, &again), KF_OK);
  assert_true(again == n && off[0] == 0 && off[p->f.n_seqs] == n);
  expect_filled((unsigned char *)&chunk[n], sizeof *chunk, "chunks");
  for (int64_t s = 0; s < p->f.n_seqs; s++) {
    int64_t end = 0;
    for (int64_t i = off[s]; i < off[s + 1]; i++) {
      assert_int_equal(chunk[i].seq, s);
      assert_true(chunk[i].first >= end && chunk[i].n_tokens >= 1);
      assert_true(chunk[i].n_tokens <= KF_ADALN_CHUNK);
      /* not cut before it must be */
      bool next = i > off[s] && chunk[i].first == end;
      assert_true(!next || chunk[i - 1].n_tokens == KF_ADALN_CHUNK);
      end = chunk[i].first + chunk[i].n_tokens;
      for (int64_t t = chunk[i].first; t < end; t++, seen++) {
        assert_true(p->seq_index[t] == s && !is_done[t]);
        is_done[t] = true;
      }
    }
  }
  assert_int_equal(seen, p->n_tokens);
  free(is_done);
  free(off);
  free(chunk);
}

static void test_chunks(void **state) {
  (void)state;
  for (uint64_t n = 0; n < 200; n++) {
    dice d = {n};
    int64_t len[8];
    for (int s = 0; s < 8; s++) len[s] = dice_one_in(&d, 4) ? 0 : dice_int(&d, n % 2 ? 200 : 6);
    form f = {.dim = 1, .n_seqs = dice_int(&d, 9), .len = len};
    f.index = dice_one_in(&d, 2), f.scatter = f.index && dice_one_in(&d, 2);
    problem *p = make(&f, n);
    expect_chunks(p);
    drop(p);
  }
}

/* ------------------------------------------------------------------ nothing to do */

/* Sequences without tokens: their gradients are zeros. */
static void test_no_tokens(void **state) {
  (void)state;
  static const int64_t none[] = {0, 0, 0};
  for (int n = 0; n < 12; n++) {
    form f = {.dim = 70, .n_seqs = 3, .len = none, .dtype = (kf_dtype)(n % 3)};
    f.gate = n / 3 % 2, f.slices = f.index = n / 6;
    problem *p = make(&f, 1);
    run(p, KF_ISA_BEST, 2);
    for (int i = DSCALE; i <= (f.gate ? DGATE : DSHIFT); i++)
      for (int64_t s = 0; s < 3; s++)
        for (int64_t c = 0; c < f.dim; c++)
          assert_true(at(&p->t[i], s, c) == 0 && !signbit(at(&p->t[i], s, c)));
    drop(p);
  }
}

static void test_nothing_at_all(void **state) {
  (void)state;
  const int64_t cu = 0;
  int64_t n = -1;
  kf_adaln a = {.dim = 64};
  for (int i = 0; i < 2; i++, a.cu_seqlens = &cu) {
    assert_int_equal(kf_adaln_workspace(&a), 64);
    assert_int_equal(kf_adaln_forward(&a), KF_OK);
    assert_int_equal(kf_adaln_backward(&a), KF_OK);
    assert_int_equal(kf_adaln_check(&a, 0), KF_OK);
    assert_int_equal(kf_adaln_check(&a, 1), KF_OK);
    assert_int_equal(kf_adaln_chunks(&a, NULL, NULL, &n), KF_OK);
    assert_int_equal(n, 0);
  }
}

/*
** As the header has it: 8 dim bytes (12 with a gate) for every 32 tokens of a sequence and a few
** rows for each thread, give or take what keeps rows apart in the caches.
*/
static void test_workspace(void **state) {
  (void)state;
  enum { DIM = 3072, CHUNKS = 65536 / KF_ADALN_CHUNK, APART = 512 };
  int64_t cu[2] = {0, 0};
  kf_adaln a = {.n_seqs = 1, .dim = DIM, .cu_seqlens = cu};
  int64_t none = kf_adaln_workspace(&a);
  a.n_tokens = cu[1] = 65536;
  assert_in_range(kf_adaln_workspace(&a) - none, CHUNKS * 8 * DIM, CHUNKS * 8 * (DIM + APART));
  a.gate = cu;
  assert_in_range(kf_adaln_workspace(&a) - none, CHUNKS * 12 * DIM, CHUNKS * 12 * (DIM + APART));
  a.n_threads = 2;
  int64_t two = kf_adaln_workspace(&a);
  a.n_threads = 3;
  assert_in_range(kf_adaln_workspace(&a) - two, 1, 24 * DIM * (int64_t)sizeof(float));
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_threads_that_do_not_start), /* first */
    cmocka_unit_test(test_every_choice),
    cmocka_unit_test(test_every_width),
    cmocka_unit_test(test_large),
    cmocka_unit_test(test_wild_numbers),
    cmocka_unit_test(test_layouts),
    cmocka_unit_test(test_scattered),
    cmocka_unit_test(test_no_statistics),
    cmocka_unit_test(test_more_threads_than_work),
    cmocka_unit_test(test_sick_token),
    cmocka_unit_test(test_chunks),
    cmocka_unit_test(test_no_tokens),
    cmocka_unit_test(test_nothing_at_all),
    cmocka_unit_test(test_workspace),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
