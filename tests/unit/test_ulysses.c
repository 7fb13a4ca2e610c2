/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes, what ulysses refuses, and sets of ranks that overlap. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "refusal.h"

static kf_status out(kf_comm *comm, const kf_plan *p, int32_t n, const kf_tensor *rows,
                     const kf_tensor *pairs) {
  return kf_ulysses_out(comm, p, n, rows, pairs);
}

static kf_status back(kf_comm *comm, const kf_plan *p, int32_t n, const kf_tensor *rows,
                      const kf_tensor *pairs) {
  return kf_ulysses_back(comm, p, n, pairs, rows);
}

static const refusal refusals[] = {
  {"plan is NULL", NO_PLAN, 0, 0},
  {"plan for 3 ranks, expected the comm's 2", OTHER_WORLD, 0, 0},
  {"plan of version 9, expected 2", OTHER_VERSION, 0, 0},
  {"-2 tensors, expected 0 or more", N_TENSORS, 0, -2},
  {"rows is NULL", NO_LIST, 0, 0},
  {"pairs is NULL", NO_LIST, 1, 0},
  {"rows[1] has 1 rows, expected", N_ROWS, 0, 1},
  {"pairs[1] has 1 rows, expected", N_ROWS, 1, 1},
  {"rows[1] has rows of 0 bytes", ROW_BYTES, 0, 0},
  {"pairs[1] has rows of 0 bytes", ROW_BYTES, 1, 0},
  {"rows[1] has rows of 21 bytes and pairs[1] of 5, expected 4 heads of the same bytes", ROW_BYTES,
   0, 21},
  {"rows[1] has rows of 24 bytes and pairs[1] of 5", ROW_BYTES, 0, 24},
  {"rows[1] has rows of 20 bytes and pairs[1] of 20", ROW_BYTES, 1, 20},
  {"rows[1] has a stride of 19 bytes, expected 0 or at least its 20 a row", STRIDE, 0, 19},
  {"pairs[1] has a stride of 6 bytes, expected 0", STRIDE, 1, 6},
  {"rows[1] has", NO_DATA, 0, 0},
  {"pairs[1] has", NO_DATA, 1, 0},
  {"rows[1] and pairs[1] are the same memory, expected two buffers", SAME_DATA, 1, 0},
};

static const refusal_kind ulysses = {
  {{out, "ulysses out"}, {back, "ulysses back"}}, {20, 5}, {refusal_hold_rows, kf_ulysses_pairs}};

static void test_refusals(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++)
    for (int way = 0; way < 2; way++) refuse(&ulysses, &refusals[i], way);
}

static void test_pairs(void **state) {
  (void)state;
  const int64_t rank_off[] = {0, 2, 3, 3}, len[] = {300, 30, 0};
  refusal_plan p = refusal_plan_of(3, rank_off, len);
  int64_t sum = 0;
  for (int32_t r = 0; r < 3; r++) {
    int64_t own = 0;
    for (int64_t s = p.plan->segment_off[r]; s < p.plan->segment_off[r + 1]; s++)
      own += p.plan->segment[s].rows * p.plan->segment[s].heads;
    assert_int_equal(kf_ulysses_pairs(p.plan, r), own);
    sum += own;
  }
  assert_int_equal(sum, 330 * REFUSAL_HEADS);
  assert_int_equal(kf_ulysses_pairs(NULL, 0), 0);
  assert_int_equal(kf_ulysses_pairs(p.plan, -1), 0);
  assert_int_equal(kf_ulysses_pairs(p.plan, 3), 0);
  kf_planner_free(p.planner);
}

/* -------------------------------------------------------------- overlapping sets */

/* Row and head of a sequence, as one byte. */
static char mark(int64_t seq, int64_t row, int64_t head) {
  return (char)((uint64_t)(seq * 10007 + row * 131 + head * 7 + 1) * 0x9e3779b97f4a7c15u >> 56);
}

static void check_pairs(const kf_plan *p, int32_t me, const char *pairs) {
  for (int64_t s = p->segment_off[me]; s < p->segment_off[me + 1]; s++) {
    const kf_segment *g = &p->segment[s];
    for (int64_t r = 0; r < g->rows; r++)
      for (int64_t h = 0; h < g->heads; h++)
        assert(pairs[g->offset + r * g->heads + h] == mark(g->seq, r, g->first_head + h));
  }
}

/* Heads of one byte go out and come back. */
static void go_and_return(kf_comm *comm, void *arg) {
  const kf_plan *p = arg;
  int32_t me = kf_comm_rank(comm);
  int64_t n_rows = p->hold_rows[me], n_pairs = kf_ulysses_pairs(p, me);
  char *rows = malloc((size_t)(n_rows * p->heads) + 1),
       *again = malloc((size_t)(n_rows * p->heads) + 1);
  char *pairs = malloc((size_t)n_pairs + 1);
  for (int64_t i = p->hold_off[me]; i < p->hold_off[me + 1]; i++) {
    const kf_chunk *k = &p->chunk[p->hold[i]];
    for (int64_t r = 0; r < k->length; r++)
      for (int64_t h = 0; h < p->heads; h++)
        rows[(p->hold_row[p->hold[i]] + r) * p->heads + h] = mark(k->seq, k->offset + r, h);
  }
  kf_tensor at_rows = {n_rows ? rows : NULL, n_rows, p->heads, 0};
  kf_tensor at_pairs = {n_pairs ? pairs : NULL, n_pairs, 1, 0};
  kf_tensor at_again = {n_rows ? again : NULL, n_rows, p->heads, 0};
  EXPECT_OK(kf_ulysses_out(comm, p, 1, &at_rows, &at_pairs));
  check_pairs(p, me, pairs);
  EXPECT_OK(kf_ulysses_back(comm, p, 1, &at_pairs, &at_again));
  assert(memcmp(rows, again, (size_t)(n_rows * p->heads)) == 0);
  EXPECT_OK(kf_ulysses_out(comm, p, 0, NULL, NULL));
  free(rows);
  free(again);
  free(pairs);
}

/* How many sequences a rank shares with others. */
static int shared_by(const kf_plan *p, int32_t rank) {
  int n = 0;
  for (int64_t i = p->hold_off[rank]; i < p->hold_off[rank + 1]; i++) {
    int64_t seq = p->chunk[p->hold[i]].seq;
    n += p->seq_off[seq + 1] - p->seq_off[seq] > 1;
  }
  return n;
}

/* Long sequences at every home: some rank is in two sets at once, which are not the same ranks. */
static void test_overlapping_sets(void **state) {
  (void)state;
  const int64_t rank_off[] = {0, 1, 2, 3, 4, 4}, len[] = {900, 700, 500, 350};
  refusal_plan p = refusal_plan_of(5, rank_off, len);
  int overlaps = 0;
  for (int32_t r = 0; r < 5; r++) overlaps += shared_by(p.plan, r) > 1;
  assert_true(overlaps > 0 && p.plan->figures.split_seqs > 1);
  for (int i = 0; i < 10; i++) ranks_run(5, 60, go_and_return, (void *)(uintptr_t)p.plan);
  kf_planner_free(p.planner);
}

/* One token for three ranks, then none: two ranks, then all, take part with nothing. */
static void test_ranks_with_nothing(void **state) {
  (void)state;
  refusal_plan p = refusal_plan_of(3, (int64_t[]){0, 0, 1, 1}, (int64_t[]){1});
  ranks_run(3, 60, go_and_return, (void *)(uintptr_t)p.plan);
  kf_planner_free(p.planner);
  p = refusal_plan_of(3, (int64_t[]){0, 1, 2, 2}, (int64_t[]){0, 0});
  ranks_run(3, 60, go_and_return, (void *)(uintptr_t)p.plan);
  kf_planner_free(p.planner);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_refusals),
    cmocka_unit_test(test_pairs),
    cmocka_unit_test(test_overlapping_sets),
    cmocka_unit_test(test_ranks_with_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
