/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "batch/pack.h"
#include "dice.h"
#include "fail_alloc.h"

/* A packing with all its arrays. Samples come in the order of their numbers. */
typedef struct problem {
  kfi_limits limits;
  kfi_packing packing;
  kf_bucket *bucket;
  int32_t *bucket_of, *number;
  uint64_t *key;
} problem;

static void open_problem(problem *p, const kfi_limits *limits, const int64_t *len, int64_t n,
                         int32_t n_ranks, int64_t window) {
  size_t room = (size_t)n + 1;
  uint64_t *key = calloc(2 * room, sizeof *key);
  kf_buckets ignored;
  int64_t n_buckets;
  p->limits = *limits;
  p->bucket = calloc(room, sizeof *p->bucket);
  p->bucket_of = calloc(room, sizeof *p->bucket_of);
  p->number = calloc(room, sizeof *p->number);
  const uint64_t *sorted = kfi_bucket_sort(len, n, key, key + room, &n_buckets);
  kfi_bucket_gather(len, NULL, n, sorted, p->bucket, p->bucket_of);
  kfi_bucket_fill(limits, p->bucket, n_buckets, &ignored);
  for (int64_t i = 0; i < n; i++) p->number[i] = (int32_t)i;
  p->packing = (kfi_packing){.limits = &p->limits,
                             .bucket = p->bucket,
                             .n_buckets = n_buckets,
                             .bucket_of = p->bucket_of,
                             .sample = p->number,
                             .n = n,
                             .window = window,
                             .n_ranks = n_ranks,
                             .order = calloc(room, sizeof(int32_t)),
                             .begin = calloc(room, sizeof(int32_t)),
                             .rest = calloc(room, sizeof(int32_t)),
                             .batch_of = calloc(room, sizeof(int32_t)),
                             .key = n % 2 ? key : NULL};
  p->key = key;
}

static void close_problem(problem *p) {
  free(p->bucket), free(p->bucket_of), free(p->number);
  free(p->packing.order), free(p->packing.begin);
  free(p->packing.rest), free(p->packing.batch_of), free(p->key);
}

static double tokens_of(const problem *p, int64_t k) {
  double sum = 0;
  for (int32_t i = p->packing.begin[k]; i < p->packing.begin[k + 1]; i++)
    sum += (double)p->bucket[p->bucket_of[p->packing.order[i]]].len;
  return sum;
}

static double work_of(const problem *p, int64_t k) {
  double sum = 0;
  for (int32_t i = p->packing.begin[k]; i < p->packing.begin[k + 1]; i++)
    sum += p->bucket[p->bucket_of[p->packing.order[i]]].work_s;
  return sum;
}

/* Every sample once, no batch empty, none above a limit but single samples above M_comp. */
static void check(const problem *p) {
  const kfi_packing *k = &p->packing;
  char *seen = calloc((size_t)k->n + 1, 1);
  assert_int_equal(k->begin[0], 0);
  assert_int_equal(k->begin[k->n_batches], k->n);
  for (int64_t i = 0; i < k->n; i++) assert_false(seen[k->order[i]]++);
  for (int64_t b = 0; b < k->n_batches; b++) {
    assert_true(k->begin[b] < k->begin[b + 1]);
    assert_true(tokens_of(p, b) <= p->limits.mem_tokens);
    if (k->begin[b + 1] - k->begin[b] > 1)
      assert_true(work_of(p, b) <= p->limits.comp_s * (1 + 1e-9));
  }
  free(seen);
}

static kfi_limits limits_of(double linear, double quadratic, double constant, double mem_tokens,
                            double match_len) {
  kfi_limits l = {.rule = KF_RULE_PACKED,
                  .linear_s = linear,
                  .quadratic_s = quadratic,
                  .constant_s = constant,
                  .mem_tokens = mem_tokens,
                  .match_len = match_len};
  l.comp_s = kfi_limits_work(&l, match_len);
  return l;
}

/* Lengths whose logarithm is even between the two. */
static void draw_lengths(dice *d, int64_t *len, int64_t n, double shortest, double longest) {
  for (int64_t i = 0; i < n; i++) len[i] = (int64_t)exp(dice_real(d, log(shortest), log(longest)));
}

static void packs_anything(void **state) {
  (void)state;
  enum { MOST = 2000 };
  static int64_t len[MOST];
  for (uint64_t seed = 0; seed < 300; seed++) {
    dice d = {seed};
    int64_t n = dice_one_in(&d, 3) ? dice_int(&d, 40) : dice_int(&d, MOST);
    double longest = dice_real(&d, 2, 50000);
    draw_lengths(&d, len, n, 1, longest);
    int64_t kind = dice_int(&d, 4);
    double mem = longest * dice_real(&d, 1, 20), match = longest * dice_real(&d, 0.3, 3);
    kfi_limits l = limits_of(kind == 1 ? 0 : 1e-6, kind == 2 ? 0 : dice_real(&d, 1e-12, 1e-8),
                             kind == 3 ? dice_real(&d, 0, 0.01) : 0, floor(mem), match);
    problem p;
    int32_t n_ranks = (int32_t)(1 + dice_int(&d, 40));
    open_problem(&p, &l, len, n, n_ranks, 1 + dice_int(&d, 1500));
    assert_int_equal(kfi_pack(&p.packing), KF_OK);
    check(&p);
    if (n >= n_ranks) { /* what does not fill a step is less than one */
      int64_t rest = p.packing.n_batches % n_ranks;
      assert_true(p.packing.n_batches >= n_ranks || rest == 0);
    }
    close_problem(&p);
  }
}

/* How much of M_comp, or of M_mem if that binds, batches use, but for those of the last three
** steps. */
static void uses(const problem *p, double want, double *mean, double *least) {
  int64_t n = p->packing.n_batches - 3 * p->packing.n_ranks;
  *mean = 0, *least = 1;
  for (int64_t b = 0; b < n; b++) {
    double use = work_of(p, b) / want;
    *mean += use / (double)n;
    *least = fmin(*least, use);
  }
}

static void fills_a_step_where_compute_binds(void **state) {
  (void)state;
  enum { N = 20000 };
  static int64_t len[N];
  dice d = {1};
  draw_lengths(&d, len, N, 256, 70000);
  kfi_limits l = limits_of(1, 1.0 / 23040, 0, 200000, 75600);
  problem p;
  double mean, least;
  open_problem(&p, &l, len, N, 16, 1024);
  assert_int_equal(kfi_pack(&p.packing), KF_OK);
  check(&p);
  uses(&p, l.comp_s, &mean, &least);
  assert_true(mean > 0.995 && least > 0.9);
  assert_int_equal(p.packing.n_batches % 16, 0);
  close_problem(&p);
}

/* Work is then to be equal, and below M_comp, however far; memory is full. */
static void fills_memory(double match_len) {
  enum { N = 20000 };
  static int64_t len[N];
  dice d = {2};
  double mean, least, tokens = 0, work = 0, memory = 0;
  draw_lengths(&d, len, N, 256, 8000);
  kfi_limits l = limits_of(1, 1.0 / 23040, 0, 80000, match_len);
  problem p;
  open_problem(&p, &l, len, N, 16, 1024);
  assert_int_equal(kfi_pack(&p.packing), KF_OK);
  check(&p);
  for (int64_t i = 0; i < N; i++) tokens += (double)len[i], work += p.bucket[p.bucket_of[i]].work_s;
  uses(&p, 80000 * work / tokens, &mean, &least);
  for (int64_t b = 0; b < p.packing.n_batches; b++)
    memory += tokens_of(&p, b) / 80000 / (double)p.packing.n_batches;
  assert_true(mean > 0.98 && mean < 1.01 && least > 0.9 && memory > 0.97);
  close_problem(&p);
}

static void fills_memory_where_memory_binds(void **state) {
  (void)state;
  fills_memory(75600);
  fills_memory(1e9); /* as who says that compute is no limit */
}

/*
** Few lengths, the longest of which take all of M_comp, so that nothing fits beside them, while the
** others fill memory first: the longs must not keep the others waiting for partners as dense as
** they.
*/
static void does_not_wait_for_what_never_comes(void **state) {
  (void)state;
  enum { N = 16600 };
  static int64_t len[N];
  static const struct {
    int64_t len;
    int n;
  } kinds[] = {{256, 8000}, {1024, 6000}, {4096, 2000}, {32760, 400}, {75600, 200}};
  dice d = {8};
  int64_t n = 0;
  double tokens = 0, work = 0, alone = 0;
  kfi_limits l = limits_of(1, 1.0 / 23040, 0, 160000, 75600);
  for (int k = 0; k < 5; k++)
    for (int i = 0; i < kinds[k].n; i++) {
      len[n++] = kinds[k].len;
      if (kinds[k].len == 75600)
        alone++;
      else
        tokens += (double)kinds[k].len, work += kfi_limits_work(&l, (double)kinds[k].len);
    }
  assert_int_equal(n, N);
  for (int64_t i = N - 1; i > 0; i--) {
    int64_t k = dice_int(&d, i + 1), t = len[i];
    len[i] = len[k], len[k] = t;
  }
  double least = alone + fmax(tokens / 160000, work / l.comp_s);
  for (int64_t window = 256; window <= 4096; window *= 4) {
    problem p;
    open_problem(&p, &l, len, N, 16, window);
    assert_int_equal(kfi_pack(&p.packing), KF_OK);
    check(&p);
    if ((double)p.packing.n_batches > 1.08 * least)
      fail_msg("window %d: %d batches, at least %.1f", (int)window, (int)p.packing.n_batches,
               least);
    close_problem(&p);
  }
}

/*
** The window holds the first WINDOW samples that have not been taken, and each batch takes the
** oldest: a sample goes into no batch before it is in the window, and into one of the next WINDOW
** after that.
*/
static void nobody_waits_long(void **state) {
  (void)state;
  enum { N = 5000, WINDOW = 40 };
  static int64_t len[N], batch_of[N];
  dice d = {3};
  int64_t entered = 0, longest = 0;
  draw_lengths(&d, len, N, 100, 70000);
  for (int64_t i = 50; i < N; i += 100) len[i] = 75600; /* no room beside any other */
  kfi_limits l = limits_of(1, 1.0 / 23040, 0, 200000, 75600);
  problem p;
  open_problem(&p, &l, len, N, 4, WINDOW);
  assert_int_equal(kfi_pack(&p.packing), KF_OK);
  for (int64_t b = 0; b < p.packing.n_batches; b++)
    for (int32_t i = p.packing.begin[b]; i < p.packing.begin[b + 1]; i++)
      batch_of[p.packing.order[i]] = b;
  for (int64_t i = 0; i < N - 200; i++) { /* the last are dealt */
    while (p.packing.begin[entered + 1] + WINDOW <= i) entered++;
    assert_in_range(batch_of[i], entered, entered + WINDOW);
    if (batch_of[i] - entered > longest) longest = batch_of[i] - entered;
  }
  assert_true(longest > 0); /* some do wait */
  close_problem(&p);
}

/* A window of one has no choice: batches are cut off the stream as it comes. */
static void a_window_of_one_keeps_the_order(void **state) {
  (void)state;
  enum { N = 200 };
  int64_t len[N];
  dice d = {4};
  draw_lengths(&d, len, N, 1000, 20000);
  kfi_limits l = limits_of(1, 0, 0, 100000, 50000);
  problem p;
  open_problem(&p, &l, len, N, 1, 1);
  assert_int_equal(kfi_pack(&p.packing), KF_OK);
  check(&p);
  for (int64_t i = 0; i + 20 < N; i++) assert_int_equal(p.packing.order[i], i);
  close_problem(&p);
}

static void long_ones_stand_alone(void **state) {
  (void)state;
  const int64_t len[] = {900, 100, 950, 120, 130, 990, 140, 150, 100, 110};
  kfi_limits l = limits_of(1, 0, 0, 1000, 500);
  problem p;
  int alone = 0;
  open_problem(&p, &l, len, 10, 2, 100);
  assert_int_equal(kfi_pack(&p.packing), KF_OK);
  check(&p);
  for (int64_t b = 0; b < p.packing.n_batches; b++)
    alone += p.packing.begin[b + 1] - p.packing.begin[b] == 1 && work_of(&p, b) > 500;
  assert_int_equal(alone, 3);
  close_problem(&p);
}

/* ----------------------------------------------------------------------------- dealing */

static void deals_evenly(void **state) {
  (void)state;
  const int64_t len[] = {40, 10, 30, 20, 20, 30, 10, 40}; /* 200 in all: 4 batches of 50 */
  kfi_limits l = limits_of(1, 0, 0, 1000, 60);
  const int32_t rest[] = {0, 1, 2, 3, 4, 5, 6, 7};
  problem p;
  open_problem(&p, &l, len, 8, 4, 10);
  assert_int_equal(kfi_pack_deal(&p.packing, rest, 8), KF_OK);
  check(&p);
  assert_int_equal(p.packing.n_batches, 4);
  for (int64_t b = 0; b < 4; b++) assert_true(work_of(&p, b) == 50);
  close_problem(&p);
}

/* 4 long and 8 short ones on 4 ranks: a full step with the long, and a quick one. */
static void deals_the_long_ones_first(void **state) {
  (void)state;
  const int64_t len[] = {90, 90, 90, 90, 15, 15, 15, 15, 15, 15, 15, 15};
  int32_t rest[12];
  for (int32_t i = 0; i < 12; i++) rest[i] = i;
  kfi_limits l = limits_of(1, 0, 0, 1000, 100);
  problem p;
  open_problem(&p, &l, len, 12, 4, 10);
  assert_int_equal(kfi_pack_deal(&p.packing, rest, 12), KF_OK);
  check(&p);
  assert_int_equal(p.packing.n_batches, 8);
  for (int64_t b = 0; b < 8; b++) assert_true(work_of(&p, b) == (b < 4 ? 90 : 30));
  close_problem(&p);
}

/*
** 16 long samples of half to all of M_comp and short ones, 1.4 steps' worth: the short ones fill
** the step of the long ones up, and what remains is an even step too. All dealt alike would leave
** the first step as uneven as its long samples are.
*/
static void fills_the_step_of_the_long_ones(void **state) {
  (void)state;
  enum { N = 2000 };
  int64_t len[N];
  int32_t rest[N];
  dice d = {6};
  kfi_limits l = limits_of(1, 0, 0, 1e6, 10000);
  double batches = 0;
  int32_t n = 0;
  for (; batches < 1.4 * 16; n++) {
    rest[n] = n;
    len[n] = n < 16 ? 5000 + 300 * n : 50 + dice_int(&d, 100);
    batches += (double)len[n] / 10000;
  }
  problem p;
  open_problem(&p, &l, len, n, 16, 10);
  assert_int_equal(kfi_pack_deal(&p.packing, rest, n), KF_OK);
  check(&p);
  assert_int_equal(p.packing.n_batches, 2 * 16);
  for (int64_t step = 0; step < 2; step++) {
    double most = 0, sum = 0;
    for (int64_t b = 16 * step; b < 16 * (step + 1); b++) {
      most = fmax(most, work_of(&p, b));
      sum += work_of(&p, b);
    }
    assert_true(1 - sum / 16 / most < 0.03);
  }
  close_problem(&p);
}

/* Work that differs by less than a float can tell still falls: the long ones, one in 40, find room
** first. */
static void deals_what_is_nearly_equal(void **state) {
  (void)state;
  enum { N = 4000, RANKS = 64 };
  static int64_t len[N];
  static int32_t rest[N];
  for (int32_t i = 0; i < N; i++) rest[i] = i, len[i] = i % 40 ? 1 + i % 13 : 1000;
  kfi_limits l = limits_of(1e-12, 0, 1, 1000, 1e15);
  problem p;
  open_problem(&p, &l, len, N, RANKS, 10);
  assert_int_equal(kfi_pack_deal(&p.packing, rest, N), KF_OK);
  check(&p);
  assert_int_equal(p.packing.n_batches, 2 * RANKS); /* 100 long ones, and 27 of others */
  close_problem(&p);
}

static void deals_too_few(void **state) {
  (void)state;
  const int64_t len[] = {90, 90, 90, 90, 90};
  const int32_t rest[] = {0, 1, 2, 3, 4};
  kfi_limits l = limits_of(1, 0, 0, 1000, 100);
  for (int32_t n_ranks = 1; n_ranks <= 7; n_ranks++) {
    problem p;
    open_problem(&p, &l, len, 5, n_ranks, 10);
    assert_int_equal(kfi_pack_deal(&p.packing, rest, 5), KF_OK);
    check(&p);
    assert_int_equal(p.packing.n_batches, 5);
    close_problem(&p);
  }
}

static void runs_out_of_memory(void **state) {
  (void)state;
  enum { N = 500 };
  int64_t len[N];
  dice d = {5};
  draw_lengths(&d, len, N, 100, 20000);
  kfi_limits l = limits_of(1, 0, 0, 100000, 50000);
  for (long k = 1;; k++) {
    problem p;
    open_problem(&p, &l, len, N, 4, 64);
    fail_alloc(k);
    kf_status status = kfi_pack(&p.packing);
    bool all = fail_alloc(0) < k;
    close_problem(&p);
    if (all) break;
    assert_int_equal(status, KF_ENOMEM);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(packs_anything),
    cmocka_unit_test(fills_a_step_where_compute_binds),
    cmocka_unit_test(fills_memory_where_memory_binds),
    cmocka_unit_test(does_not_wait_for_what_never_comes),
    cmocka_unit_test(nobody_waits_long),
    cmocka_unit_test(a_window_of_one_keeps_the_order),
    cmocka_unit_test(long_ones_stand_alone),
    cmocka_unit_test(deals_evenly),
    cmocka_unit_test(deals_the_long_ones_first),
    cmocka_unit_test(fills_the_step_of_the_long_ones),
    cmocka_unit_test(deals_what_is_nearly_equal),
    cmocka_unit_test(deals_too_few),
    cmocka_unit_test(runs_out_of_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
