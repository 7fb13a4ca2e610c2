/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "comm/comm.h"
#include "dice.h"
#include "ranks.h"

#include <assert.h>

enum { MOST = 2000 };
static const double LONG = 60;

/* What a rank brings: turn, rank and place decide. */
static int64_t len_of(int number, int32_t rank, int64_t i) {
  dice d = {(uint64_t)(number * 1000003 + rank * 10007 + i)};
  return dice_one_in(&d, 10) ? 0 : dice_int(&d, 100);
}
static double factor_of(int number, int32_t rank, int64_t i) {
  dice d = {(uint64_t)(number * 7919 + rank * 131 + i + 5)};
  return dice_real(&d, 0.5, 2);
}

static void *must(void *memory) {
  assert(memory);
  return memory;
}

static kf_planner *planner_of(int32_t n_ranks, int32_t layers, const int64_t *cap) {
  kf_planner_options o = {.mem_tokens = cap};
  kf_planner *planner;
  char model[60];
  snprintf(model, sizeof model, "d=64,layers=%d,heads=4", (int)layers);
  EXPECT_OK(kf_cost_preset(model, "free", n_ranks, 0.4, &o.cost));
  EXPECT_OK(kf_planner_create(&o, &planner));
  return planner;
}

/* ---------------------------------------------------------------- proper steps */

/* One turn: rank r brings count[r] sequences; those in `with_factor` (bits) bring factors. */
typedef struct turn {
  int64_t count[4];
  int with_factor;
  int without_record; /* bits */
} turn;

static const turn turns[] = {
  {{1, 0, 3, 2}, 0, 0},        {{31, 1, 0, 0}, 0, 2},   {{0, 32, 31, 5}, 0, 15},
  {{0, 0, 0, 0}, 0, 0},        {{33, 2, 32, 33}, 0, 1}, {{5, 500, 0, 7}, 0, 0},
  {{3, 3, 3, 3}, 4, 0},        {{1, 1, 1, 1}, 0, 0}, /* all have factor 1 now */
  {{700, 0, 800, 2000}, 9, 0}, {{0, 0, 0, 0}, 15, 0},   {{1, 2, 3, 4}, 15, 8},
};

static void check_batch(const turn *r, int number, const kf_batch *batch, int32_t n_ranks) {
  int64_t at = 0;
  assert(batch->n_ranks == n_ranks);
  for (int32_t q = 0; q < n_ranks; q++) {
    assert(batch->rank_off[q] == at);
    for (int64_t i = 0; i < r->count[q]; i++, at++) {
      assert(batch->len[at] == len_of(number, q, i));
      double factor = r->with_factor >> q & 1 ? factor_of(number, q, i) : 1;
      assert(batch->factor ? batch->factor[at] == factor : factor == 1);
    }
  }
  assert(batch->rank_off[n_ranks] == at && batch->n_seqs == at);
}

static void check_records(const turn *r, const char *records, int64_t n_bytes, int32_t n_ranks) {
  for (int32_t q = 0; q < n_ranks; q++)
    for (int64_t i = 0; i < n_bytes; i++) {
      char want = r->without_record >> q & 1 ? 0 : (char)(q * 31 + i + 1);
      assert(records[q * n_bytes + i] == want);
    }
}

static void take_turns(kf_comm *comm, void *arg) {
  int64_t record_bytes = *(int64_t *)arg;
  int32_t n = kf_comm_size(comm), me = kf_comm_rank(comm);
  int64_t *len = must(malloc(MOST * sizeof *len));
  double *factor = must(malloc(MOST * sizeof *factor));
  char *record = must(malloc((size_t)record_bytes + 1));
  for (int64_t i = 0; i < record_bytes; i++) record[i] = (char)(me * 31 + i + 1);
  kf_planner *planner = planner_of(n, 3, NULL);
  kf_step *step = NULL;
  EXPECT_OK(kf_step_create(comm, record_bytes, &step));
  for (int k = 0; k < (int)(sizeof turns / sizeof turns[0]); k++) {
    const turn *r = &turns[k];
    const kf_batch *batch = NULL;
    const kf_plan *plan = NULL;
    const void *records = NULL;
    int64_t count = r->count[me];
    for (int64_t i = 0; i < count; i++) {
      len[i] = len_of(k, me, i);
      factor[i] = factor_of(k, me, i);
    }
    kf_rank_batch mine = {count, count ? len : NULL, r->with_factor >> me & 1 ? factor : NULL,
                          r->without_record >> me & 1 ? NULL : record, NULL};
    EXPECT_OK(kf_step_gather(step, &mine, &batch, k % 3 ? &records : NULL));
    check_batch(r, k, batch, n);
    if (k % 3) check_records(r, records, record_bytes, n);
    EXPECT_OK(kf_step_plan(step, planner, &plan));
    EXPECT_OK(kf_plan_check(plan, batch));
    EXPECT_OK(kf_step_plan(step, planner, &plan)); /* once more, of the same batch */
  }
  kf_step_free(step);
  kf_planner_free(planner);
  free(len);
  free(factor);
  free(record);
}

static void test_turns(void **state) {
  (void)state;
  static const int64_t sizes[] = {0, 1, 7, 8, 24, 1001};
  for (int32_t n = 1; n <= 4; n++)
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
      ranks_run(n, LONG, take_turns, (void *)(uintptr_t)&sizes[s]);
}

/* ------------------------------------------------------------- one rank errs */

static const int64_t fine_len[3] = {5, 9, 70};

static void good_step(kf_step *step, kf_planner *planner) {
  const kf_batch *batch = NULL;
  const kf_plan *plan = NULL;
  EXPECT_OK(kf_step_gather(step, &(kf_rank_batch){3, fine_len, NULL, NULL, NULL}, &batch, NULL));
  EXPECT_OK(kf_step_plan(step, planner, &plan));
}

typedef struct mistake {
  kf_rank_batch batch;
  const char *sentence;
} mistake;

static const int64_t negative[3] = {4, -2, 0}, too_long[2] = {1, KF_MAX_LEN + 1};
static const double zero[3] = {1, 1, 0}, huge[3] = {1e6, 1e7, 1}, below[3] = {-1, 1, 1};
static const double nan_[3] = {1, NAN, 1}, inf[3] = {INFINITY, 1, 1};
static const mistake mistakes[] = {
  {{-1, fine_len, NULL, NULL, NULL}, "has -1 sequences, expected 0 to"},
  {{INT64_MIN, NULL, NULL, NULL, NULL}, "has -9223372036854775808 sequences"},
  {{KF_MAX_SEQS + 1, fine_len, NULL, NULL, NULL}, "has 1073741825 sequences"},
  {{INT64_MAX, NULL, NULL, NULL, NULL}, "has 9223372036854775807 sequences"},
  {{2, NULL, NULL, NULL, NULL}, "has 2 sequences and its len is NULL"},
  {{500, NULL, zero, NULL, NULL}, "has 500 sequences and its len is NULL"},
  {{KF_MAX_SEQS, NULL, NULL, NULL, NULL}, "has 1073741824 sequences, expected 0 to"},
  {{3, negative, NULL, NULL, NULL}, "its sequence 1 has -2 tokens, expected 0 to 4294967296"},
  {{2, too_long, NULL, NULL, NULL}, "its sequence 1 has 4294967297 tokens"},
  {{3, fine_len, zero, NULL, NULL},
   "its sequence 2 has factor 0, expected above 0 and at most 1e6"},
  {{3, fine_len, huge, NULL, NULL}, "its sequence 1 has factor 1e+07"},
  {{3, fine_len, below, NULL, NULL}, "its sequence 0 has factor -1"},
  {{3, fine_len, nan_, NULL, NULL}, "its sequence 1 has factor nan"},
  {{3, fine_len, inf, NULL, NULL}, "its sequence 0 has factor inf"},
};

/* Every rank says the same, the outputs stay as they were, and the next step works. */
static void make_mistakes(kf_comm *comm, void *arg) {
  int32_t wrong_rank = *(int32_t *)arg;
  kf_planner *planner = planner_of(kf_comm_size(comm), 3, NULL);
  kf_step *step = NULL;
  EXPECT_OK(kf_step_create(comm, 0, &step));
  for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
    const mistake *m = &mistakes[i];
    kf_rank_batch mine = {3, fine_len, NULL, NULL, NULL};
    const kf_batch *batch = NULL;
    const kf_plan *plan = NULL;
    const void *records = NULL;
    char who[20];
    if (kf_comm_rank(comm) == wrong_rank) mine = m->batch;
    snprintf(who, sizeof who, "rank %d", (int)wrong_rank);
    kf_status status = kf_step_gather(step, &mine, &batch, &records);
    EXPECT(status, KF_EINVAL, m->sentence);
    EXPECT(status, KF_EINVAL, who);
    assert(!batch && !records);
    EXPECT(kf_step_plan(step, planner, &plan), KF_EINVAL, "nothing was gathered");
    assert(!plan);
    good_step(step, planner);
  }
  kf_step_free(step);
  kf_planner_free(planner);
}

static void test_mistakes(void **state) {
  (void)state;
  for (int32_t n = 1; n <= 3; n++)
    for (int32_t r = 0; r < n; r++) ranks_run(n, LONG, make_mistakes, &r);
}

/* Of several, the lowest rank is named, on all. */
static void all_are_wrong(kf_comm *comm, void *arg) {
  kf_step *step;
  const kf_batch *batch = NULL;
  int64_t len = -1 - kf_comm_rank(comm);
  (void)arg;
  EXPECT_OK(kf_step_create(comm, 0, &step));
  EXPECT(kf_step_gather(step, &(kf_rank_batch){1, &len, NULL, NULL, NULL}, &batch, NULL), KF_EINVAL,
         "rank 0: its sequence 0 has -1 tokens");
  kf_step_free(step);
}

/* NULL where something must be is no input that could be gathered: the comm is broken. */
static void pass_null(kf_comm *comm, void *arg) {
  int which = *(int *)arg;
  const kf_batch *batch = NULL;
  const kf_plan *plan = NULL;
  kf_rank_batch mine = {3, fine_len, NULL, NULL, NULL};
  kf_planner *planner = planner_of(2, 3, NULL);
  kf_step *step = NULL;
  bool wrong = kf_comm_rank(comm) == 1;
  kf_status status = wrong ? KF_EINVAL : KF_ECOMM;
  EXPECT_OK(kf_step_create(comm, 0, &step));
  if (which == 0)
    EXPECT(kf_step_gather(step, wrong ? NULL : &mine, &batch, NULL), status, "mine is NULL");
  if (which == 1)
    EXPECT(kf_step_gather(step, &mine, wrong ? NULL : &batch, NULL), status, "batch is NULL");
  if (which >= 2) EXPECT_OK(kf_step_gather(step, &mine, &batch, NULL));
  if (which == 2)
    EXPECT(kf_step_plan(step, wrong ? NULL : planner, &plan), status, "planner is NULL");
  if (which == 3) EXPECT(kf_step_plan(step, planner, wrong ? NULL : &plan), status, "plan is NULL");
  EXPECT(kf_comm_barrier(comm), status, "is NULL");
  assert(!plan);
  kf_step_free(step);
  kf_planner_free(planner);
}

static void test_more_mistakes(void **state) {
  (void)state;
  const kf_batch *batch;
  const kf_plan *plan;
  ranks_run(3, LONG, all_are_wrong, NULL);
  for (int which = 0; which < 4; which++) ranks_run(2, LONG, pass_null, &which);
  EXPECT(kf_step_gather(NULL, &(kf_rank_batch){0}, &batch, NULL), KF_EINVAL, "step is NULL");
  EXPECT(kf_step_plan(NULL, NULL, &plan), KF_EINVAL, "step is NULL");
  kf_step_free(NULL);
}

/* ------------------------------------------------------------- ranks that differ */

/* Layers of each rank's planner; the odd rank and the one it is compared with. */
typedef struct difference {
  int32_t layers[4];
  int odd, like;
} difference;

static void plan_differently(kf_comm *comm, void *arg) {
  const difference *d = arg;
  int32_t n = kf_comm_size(comm);
  kf_planner *same = planner_of(n, 3, NULL);
  kf_planner *other = planner_of(n, d->layers[kf_comm_rank(comm)], NULL);
  const kf_batch *batch;
  const kf_plan *plan = NULL;
  kf_step *step;
  char odd[80], like[80];
  snprintf(odd, sizeof odd, "rank %d has another configuration (hash ", d->odd);
  snprintf(like, sizeof like, ") than rank %d (", d->like);
  EXPECT_OK(kf_step_create(comm, 0, &step));
  for (int i = 0; i < 3; i++) {
    EXPECT_OK(kf_step_gather(step, &(kf_rank_batch){3, fine_len, NULL, NULL, NULL}, &batch, NULL));
    kf_status status = kf_step_plan(step, other, &plan);
    EXPECT(status, KF_EMISMATCH, odd);
    EXPECT(status, KF_EMISMATCH, like);
    assert(!plan);
    good_step(step, same);
  }
  kf_step_free(step);
  kf_planner_free(same);
  kf_planner_free(other);
}

static void test_other_options(void **state) {
  (void)state;
  ranks_run(2, LONG, plan_differently, &(difference){{1, 2}, 1, 0});
  ranks_run(3, LONG, plan_differently, &(difference){{1, 2, 2}, 0, 2});
  ranks_run(3, LONG, plan_differently, &(difference){{1, 2, 1}, 1, 2});
  ranks_run(3, LONG, plan_differently, &(difference){{1, 1, 2}, 2, 0});
  ranks_run(4, LONG, plan_differently, &(difference){{2, 1, 1, 1}, 0, 2});
  ranks_run(4, LONG, plan_differently, &(difference){{1, 1, 2, 1}, 2, 0});
  ranks_run(4, LONG, plan_differently, &(difference){{1, 1, 2, 2}, 2, 0});
  ranks_run(3, LONG, plan_differently, &(difference){{1, 2, 3}, 1, 0}); /* no majority: rank 0 */
}

/* A planner for another number of ranks cannot plan this batch. */
static void plan_another_world(kf_comm *comm, void *arg) {
  kf_planner *planner = planner_of(kf_comm_size(comm) + 1, 3, NULL);
  const kf_batch *batch;
  const kf_plan *plan = NULL;
  kf_step *step;
  (void)arg;
  EXPECT_OK(kf_step_create(comm, 0, &step));
  EXPECT_OK(kf_step_gather(step, &(kf_rank_batch){3, fine_len, NULL, NULL, NULL}, &batch, NULL));
  EXPECT(kf_step_plan(step, planner, &plan), KF_EINVAL, "ranks");
  EXPECT_OK(kf_comm_barrier(comm));
  kf_step_free(step);
  kf_planner_free(planner);
}

static void greet_differently(kf_comm *comm, void *arg) {
  bool odd = kf_comm_rank(comm) == 1;
  kf_step *step = NULL;
  (void)arg;
  EXPECT(kf_step_create(comm, odd ? 16 : 8, &step), KF_EMISMATCH,
         "rank 1 has records of 16 bytes, but rank 0 of 8");
  EXPECT(kf_step_create(comm, -1, &step), KF_EINVAL, "a record of -1 bytes, expected 0 to");
  EXPECT(kf_step_create(comm, INT64_MAX, &step), KF_EINVAL,
         "a record of 9223372036854775807 bytes");
  assert(!step);
  EXPECT_OK(kf_step_create(comm, 8, &step)); /* none of these broke the comm */
  kf_step_free(step);
}

static void test_other_worlds(void **state) {
  (void)state;
  ranks_run(2, LONG, plan_another_world, NULL);
  ranks_run(2, LONG, greet_differently, NULL);
}

/* Some lengths fit the caps and some do not; ranks go on after those that do not. */
static void plan_under_caps(kf_comm *comm, void *arg) {
  const int64_t cap[3] = {60, 60, 60}, long_len = 400;
  kf_planner *planner = planner_of(3, 3, cap);
  const kf_batch *batch;
  const kf_plan *plan = NULL;
  kf_step *step;
  int64_t n = kf_comm_rank(comm) == 1;
  (void)arg;
  EXPECT_OK(kf_step_create(comm, 0, &step));
  for (int i = 0; i < 3; i++) {
    EXPECT_OK(kf_step_gather(step, &(kf_rank_batch){n, &long_len, NULL, NULL, NULL}, &batch, NULL));
    EXPECT(kf_step_plan(step, planner, &plan), KF_EINFEASIBLE, "400");
    assert(!plan);
    EXPECT_OK(kf_step_gather(step, &(kf_rank_batch){1, fine_len, NULL, NULL, NULL}, &batch, NULL));
    EXPECT_OK(kf_step_plan(step, planner, &plan));
    plan = NULL;
  }
  kf_step_free(step);
  kf_planner_free(planner);
}

static void plan_without_gather(kf_comm *comm, void *arg) {
  kf_planner *planner = planner_of(2, 3, NULL);
  const kf_plan *plan = NULL;
  kf_step *step;
  (void)arg;
  EXPECT_OK(kf_step_create(comm, 0, &step));
  EXPECT(kf_step_plan(step, planner, &plan), KF_EINVAL,
         "nothing was gathered, expected kf_step_gather first");
  assert(!plan);
  good_step(step, planner);
  kf_step_free(step);
  kf_planner_free(planner);
}

static void test_no_plan(void **state) {
  (void)state;
  ranks_run(3, LONG, plan_under_caps, NULL);
  ranks_run(2, LONG, plan_without_gather, NULL);
}

/* Two steps on one comm keep what is theirs. */
static void two_steps(kf_comm *comm, void *arg) {
  const kf_batch *a, *b;
  const int64_t other = 77;
  kf_step *step[2];
  (void)arg;
  for (int i = 0; i < 2; i++) EXPECT_OK(kf_step_create(comm, i, &step[i]));
  EXPECT_OK(kf_step_gather(step[0], &(kf_rank_batch){3, fine_len, NULL, NULL, NULL}, &a, NULL));
  EXPECT_OK(kf_step_gather(step[1], &(kf_rank_batch){1, &other, NULL, NULL, NULL}, &b, NULL));
  assert(a->n_seqs == 6 && a->len[5] == 70 && b->n_seqs == 2 && b->len[1] == 77);
  for (int i = 0; i < 2; i++) kf_step_free(step[i]);
}

static void test_two_steps(void **state) {
  (void)state;
  ranks_run(2, LONG, two_steps, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_turns),         cmocka_unit_test(test_mistakes),
    cmocka_unit_test(test_more_mistakes), cmocka_unit_test(test_other_options),
    cmocka_unit_test(test_other_worlds),  cmocka_unit_test(test_no_plan),
    cmocka_unit_test(test_two_steps),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
