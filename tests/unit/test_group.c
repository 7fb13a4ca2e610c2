/* SPDX-License-Identifier: Apache-2.0 */
/* The order of a rank's rows, on random plans: every row once, split before early before late, and a
** plan of what is split that is right for this rank. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "dice.h"
#include "fail_alloc.h"
#include "train/job.h"

static bool split(const kf_plan *plan, int64_t seq) {
  return plan->seq_off[seq + 1] - plan->seq_off[seq] > 1;
}

/* The chunk of this rank whose rows begin at a row, as they are held. */
static const kf_chunk *chunk_at(const kf_plan *plan, int32_t rank, int64_t row) {
  for (int64_t i = plan->hold_off[rank]; i < plan->hold_off[rank + 1]; i++)
    if (plan->hold_row[plan->hold[i]] == row && plan->chunk[plan->hold[i]].length > 0)
      return &plan->chunk[plan->hold[i]];
  return NULL;
}

static void check_order(const kf_plan *plan, int32_t rank, const train_group *g) {
  int64_t at = 0;
  uint8_t *seen = calloc((size_t)plan->hold_rows[rank] + 1, 1);
  assert_non_null(seen);
  for (int64_t i = 0; i < g->n_runs; i++) {
    const kf_chunk *k = chunk_at(plan, rank, g->run[i].from);
    assert_non_null(k);
    assert_int_equal(g->run[i].n_rows, k->length);
    assert_int_equal(g->run[i].to, at);
    assert_int_equal(g->seq_off[i], at);
    assert_true(split(plan, k->seq) == (i < g->n_seqs[0]));
    for (int64_t r = 0; r < k->length; r++) assert_int_equal(seen[g->run[i].from + r]++, 0);
    at += k->length;
  }
  assert_int_equal(at, plan->hold_rows[rank]);
  assert_int_equal(g->seq_off[g->n_runs], at);
  assert_int_equal(g->n_seqs[0] + g->n_seqs[1] + g->n_seqs[2], g->n_runs);
  free(seen);
}

static void check_view(const kf_plan *plan, int32_t rank, const train_group *g) {
  const kf_plan *v = &g->view;
  int64_t pairs = 0, n = 0, rows = g->n_seqs[0] ? g->seq_off[g->n_seqs[0]] : 0;
  assert_int_equal(v->hold_rows[rank], rows);
  for (int64_t i = v->hold_off[rank]; i < v->hold_off[rank + 1]; i++) {
    const kf_chunk *k = &v->chunk[v->hold[i]];
    assert_true(split(plan, k->seq) && k->destination == rank);
    assert_int_equal(v->hold_row[v->hold[i]], n);
    n += k->length;
  }
  assert_int_equal(n, rows);
  n = 0;
  for (int64_t i = plan->segment_off[rank]; i < plan->segment_off[rank + 1]; i++) {
    const kf_segment *want = &plan->segment[i];
    if (!split(plan, want->seq)) continue;
    const kf_segment *got = &v->segment[v->segment_off[rank] + n++];
    assert_true(got->seq == want->seq && got->rows == want->rows && got->heads == want->heads &&
                got->first_head == want->first_head);
    assert_int_equal(got->offset, pairs);
    pairs += got->rows * got->heads;
  }
  assert_int_equal(n, v->segment_off[rank + 1] - v->segment_off[rank]);
  assert_int_equal(kf_ulysses_pairs(v, rank), pairs);
}

/* Early work is what lacks to the longest rank's, or as near as whole sequences come. */
static void check_fill(const kf_plan *plan, const kf_cost *cost, int32_t rank,
                       const train_group *g) {
  double most = 0, mine = 0, early = 0, largest = 0;
  for (int32_t r = 0; r < plan->n_ranks; r++) {
    double sum = 0;
    for (int64_t i = plan->hold_off[r]; i < plan->hold_off[r + 1]; i++)
      if (split(plan, plan->chunk[plan->hold[i]].seq))
        sum += cost->linear_s * (double)plan->chunk[plan->hold[i]].length;
    most = fmax(most, sum);
    if (r == rank) mine = sum;
  }
  for (int64_t i = g->n_seqs[0]; i < g->n_runs; i++) {
    double work = kf_cost_work(cost, g->run[i].n_rows);
    if (i < g->n_seqs[0] + g->n_seqs[1]) early += work;
    largest = fmax(largest, work);
  }
  double lack = most - mine - early;
  assert_true(lack >= -largest / 2 - 1e-9 * most);                     /* not much too much */
  assert_true(g->n_seqs[2] == 0 || lack <= largest / 2 + 1e-9 * most); /* not too little */
}

static void check_moves(const train_group *g, int64_t n_rows) {
  int32_t *a = malloc((size_t)(3 * n_rows + 1) * sizeof *a), *b = a + n_rows, *c = b + n_rows;
  assert_non_null(a);
  for (int64_t i = 0; i < n_rows; i++) a[i] = (int32_t)i;
  train_group_move(g, sizeof *a, a, b, false);
  for (int64_t i = 0; i < g->n_runs; i++) assert_int_equal(b[g->run[i].to], g->run[i].from);
  train_group_move(g, sizeof *a, b, c, true);
  assert_memory_equal(a, c, (size_t)n_rows * sizeof *a);
  free(a);
}

static void test_random(void **state) {
  (void)state;
  train_group g = {0};
  int64_t n_split = 0, n_early = 0, n_late = 0;
  for (uint64_t seed = 0; seed < 300; seed++) {
    dice d = {seed};
    static world w;
    kf_planner *planner = NULL;
    const kf_plan *plan;
    world_random(&d, &w, 12);
    assert_int_equal(kf_planner_create(&w.options, &planner), KF_OK);
    if (kf_planner_plan(planner, &w.batch, &plan) == KF_OK)
      for (int32_t r = 0; r < plan->n_ranks; r++) {
        assert_int_equal(train_group_rows(plan, &w.options.cost, r, &g), KF_OK);
        check_order(plan, r, &g);
        check_view(plan, r, &g);
        check_fill(plan, &w.options.cost, r, &g);
        check_moves(&g, plan->hold_rows[r]);
        n_split += g.n_seqs[0], n_early += g.n_seqs[1], n_late += g.n_seqs[2];
      }
    kf_planner_free(planner);
    kf_bags_free(w.bags);
  }
  assert_true(n_split > 100 && n_early > 100 && n_late > 100); /* or nothing was tested */
  free(g.memory.data);
}

static void test_memory(void **state) {
  (void)state;
  train_group g = {0};
  kf_planner_options options = {0};
  kf_batch *batch;
  kf_planner *planner;
  const kf_plan *plan;
  assert_int_equal(kf_mix_create("joint", 0, 0, &batch), KF_OK);
  assert_int_equal(kf_cost_preset("DiT-S", NULL, batch->n_ranks, 1, &options.cost), KF_OK);
  assert_int_equal(kf_planner_create(&options, &planner), KF_OK);
  assert_int_equal(kf_planner_plan(planner, batch, &plan), KF_OK);
  fail_alloc(1);
  assert_int_equal(train_group_rows(plan, &options.cost, 0, &g), KF_ENOMEM);
  fail_alloc(0);
  assert_int_equal(train_group_rows(plan, &options.cost, 0, &g), KF_OK);
  check_order(plan, 0, &g);
  fail_alloc(0);
  assert_int_equal(train_group_rows(plan, &options.cost, 0, &g), KF_OK);
  assert_int_equal(fail_alloc(0), 0); /* it keeps what it has */
  free(g.memory.data);
  kf_planner_free(planner);
  kf_batch_free(batch);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
