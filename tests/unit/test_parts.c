/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of random plans against a slow, obvious twin, and of plans where the answer is
** plain. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "dice.h"

static bool split(const kf_plan *plan, int64_t seq) {
  return plan->seq_off[seq + 1] - plan->seq_off[seq] > 1;
}

static double slow_of(const world *w, int64_t rank) {
  return w->options.speed ? 1 / w->options.speed[rank] : 1;
}

static double factor_of(const world *w, int64_t seq) {
  return w->batch.factor ? w->batch.factor[seq] : 1;
}

/* Seconds until a rank has done its rows of split sequences. */
static double linear_of(const kf_plan *plan, const world *w, int64_t rank) {
  double sum = 0;
  for (int64_t c = 0; c < plan->n_chunks; c++) {
    const kf_chunk *k = &plan->chunk[c];
    if (k->destination == rank && split(plan, k->seq))
      sum += factor_of(w, k->seq) * w->options.cost.linear_s * (double)k->length;
  }
  return sum * slow_of(w, rank);
}

/* Which ranks are connected with `rank` by split sequences: spread until nothing is added. */
static void connect(const kf_plan *plan, int32_t rank, bool *connected) {
  memset(connected, 0, WORLD_RANKS);
  connected[rank] = true;
  for (bool more = true; more;) {
    more = false;
    for (int64_t a = 0; a < plan->n_chunks; a++)
      for (int64_t b = 0; b < plan->n_chunks; b++) {
        const kf_chunk *k = &plan->chunk[a], *q = &plan->chunk[b];
        if (k->seq != q->seq || !connected[k->destination] || connected[q->destination]) continue;
        connected[q->destination] = more = true;
      }
  }
}

/* Early work is what lacks to the longest rank's, or as near as whole sequences come: the first
** that fit, in order. Returns the number of early chunks. */
static int64_t check_rank(const kf_plan *plan, const world *w, int32_t rank) {
  bool connected[WORLD_RANKS];
  double room = 0, mine = linear_of(plan, w, rank);
  int64_t n_early = 0;
  connect(plan, rank, connected);
  for (int32_t r = 0; r < plan->n_ranks; r++)
    if (connected[r]) room = fmax(room, linear_of(plan, w, r));
  double tiny = 1e-9 * room;
  room -= mine;
  for (int64_t c = 0; c < plan->n_chunks; c++) {
    const kf_chunk *k = &plan->chunk[c];
    if (k->destination != rank) continue;
    assert_true((k->part == KF_PART_SPLIT) == split(plan, k->seq));
    if (k->part == KF_PART_SPLIT) continue;
    double work =
      factor_of(w, k->seq) * kf_cost_work(&w->options.cost, k->length) * slow_of(w, rank);
    if (k->part == KF_PART_EARLY)
      assert_true(room >= work / 2 - tiny && room > -tiny);
    else
      assert_true(room <= work / 2 + tiny || room <= tiny);
    if (k->part == KF_PART_EARLY) room -= work, n_early++;
  }
  return n_early;
}

static void test_random(void **state) {
  (void)state;
  static world w;
  int64_t n_split = 0, n_early = 0, n_whole = 0;
  for (uint64_t seed = 0; seed < 300; seed++) {
    dice d = {seed};
    kf_planner *planner = NULL;
    const kf_plan *plan;
    world_random(&d, &w, 12);
    assert_int_equal(kf_planner_create(&w.options, &planner), KF_OK);
    if (kf_planner_plan(planner, &w.batch, &plan) == KF_OK) {
      for (int32_t r = 0; r < plan->n_ranks; r++) n_early += check_rank(plan, &w, r);
      n_split += plan->figures.split_seqs;
      n_whole += plan->n_seqs - plan->figures.split_seqs;
    }
    kf_planner_free(planner);
    kf_bags_free(w.bags);
  }
  assert_true(n_split > 100 && n_early > 100 && n_whole - n_early > 100); /* or nothing is tested */
}

/* Plans `len` on ranks of bags `spec`, with the constant's seconds and speeds. */
static void plan_of(const char *spec, int32_t n_ranks, const int64_t *rank_off, const int64_t *len,
                    const double *speed, int64_t *part) {
  kf_batch batch = {n_ranks, rank_off[n_ranks], rank_off, len, NULL, NULL};
  kf_planner_options o = {.speed = speed};
  kf_bags *bags;
  kf_planner *planner;
  const kf_plan *plan;
  assert_int_equal(kf_cost_preset("flux", "free", n_ranks, 0.4, &o.cost), KF_OK);
  assert_int_equal(kf_bags_parse(spec, n_ranks, &bags), KF_OK);
  o.bags = bags;
  assert_int_equal(kf_planner_create(&o, &planner), KF_OK);
  assert_int_equal(kf_planner_plan(planner, &batch, &plan), KF_OK);
  assert_int_equal(kf_plan_check(plan, &batch), KF_OK);
  for (int64_t i = 0; i < plan->n_seqs; i++) part[i] = plan->chunk[plan->seq_off[i]].part;
  kf_planner_free(planner);
  kf_bags_free(bags);
}

/* Where nothing is split there is no meeting, and all is late. */
static void test_nothing_split(void **state) {
  (void)state;
  int64_t part[3];
  plan_of("g1n2", 2, (int64_t[]){0, 2, 3}, (int64_t[]){500, 0, 300}, NULL, part);
  for (int i = 0; i < 3; i++) assert_int_equal(part[i], KF_PART_LATE);
  plan_of("g1n1", 1, (int64_t[]){0, 2}, (int64_t[]){500, 0}, NULL, part);
  for (int i = 0; i < 2; i++) assert_int_equal(part[i], KF_PART_LATE);
}

/* A set does not wait for the ranks of another: with equal shares nobody of either has room. */
static void test_sets_apart(void **state) {
  (void)state;
  int64_t part[5];
  plan_of("g2n2", 4, (int64_t[]){0, 1, 2, 3, 5}, (int64_t[]){40000, 0, 2000, 1000, 0}, NULL, part);
  assert_int_equal(part[0], KF_PART_SPLIT);
  assert_int_equal(part[2], KF_PART_SPLIT);
  assert_int_equal(part[3], KF_PART_SPLIT);
  assert_int_equal(part[1], KF_PART_LATE);
  assert_int_equal(part[4], KF_PART_LATE);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_random),
                                     cmocka_unit_test(test_nothing_split),
                                     cmocka_unit_test(test_sets_apart)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
