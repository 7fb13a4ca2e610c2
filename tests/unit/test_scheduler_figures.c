/* SPDX-License-Identifier: Apache-2.0 */
/*
** What the scheduler promises, on a simulated clock, each over several seeds: a rank that becomes
** slow is given less within 20 steps, and more again when it is fast; pauses do not move the plans.
** "max/mean" is of the true times of a step, moving of data included.
*/
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "simulated.h"

enum { RANKS = 4, SEEDS = 2 };

typedef struct place {
  const char *mix, *bags, *cluster;
} place;

/* Long sequences must be split in the first three: each is more than a rank's share. */
static const place places[] = {
  {"g2b4i256f1s0,g1b2i1024f1s0,g1b1i512f85s1", "", "free"},
  {"g2b4i256f1s0,g1b2i1024f1s0,g1b1i512f85s1", "", ""},
  {"g3b2i256f1s0,g1b1i2048f1s0", "", ""},
  {"g4b32i256f1s0", "", "free"},
  {"g4b32i256f1s0", "", ""},
  {"g4b10i1024f1s0", "2", "free"},
  {"g4b10i1024f1s0", "2", ""},
  {"g4b9i512f34s1", "2", ""},
  {"g4b1i512f85s1", "4", "free"},
};
enum { PLACES = sizeof places / sizeof *places };

static training start_of(const place *p, int32_t n_ranks, int64_t interval, uint64_t seed) {
  static kf_config config;
  kf_scheduler *scheduler;
  config = (kf_config){.rebalance_interval = interval};
  snprintf(config.bag_size, sizeof config.bag_size, "%s", p->bags);
  snprintf(config.cluster, sizeof config.cluster, "%s", p->cluster);
  if (scheduler_create(&(scheduler_wish){.n_ranks = n_ranks, .config = &config}, &scheduler))
    fail_msg("%s", kf_last_error());
  return training_of(scheduler, p->mix, seed);
}

static training start(const place *p, int64_t interval, uint64_t seed) {
  return start_of(p, RANKS, interval, seed);
}

static void step(training *t) {
  if (training_step(t)) fail_msg("step %d: %s", (int)t->step, kf_last_error());
}

/* Largest max/mean of the next n steps. */
static double worst_of(training *t, int n) {
  double worst = 0;
  for (int i = 0; i < n; i++) {
    step(t);
    worst = fmax(worst, t->max_over_mean);
  }
  return worst;
}

/* ------------------------------------------------------------ (a) unequal ranks */

/* Run up to the change, slow some ranks down, and let them be fast again; 20 steps after each
** change no step may be worse than 1.05. */
typedef struct change {
  place place;
  int32_t n_ranks, n_slow;
  double speed;
  int64_t interval;
  double overhead; /* of a rank and step, as a share of what it computes at first */
  double limit;    /* of max/mean; 0: 1.05 */
} change;

static void expect_balance(const change *c) {
  double before = 0, slow = 0, fast = 0;
  for (uint64_t seed = 1; seed <= SEEDS; seed++) {
    training t = start_of(&c->place, c->n_ranks, c->interval, seed);
    step(&t);
    t.clock.overhead_s = c->overhead * t.times[0].true_s;
    worst_of(&t, 40 + (int)(seed % 5)); /* another time between two refits, and other ranks */
    before = fmax(before, worst_of(&t, 20));
    for (int32_t i = 0; i < c->n_slow; i++) t.speed[((int32_t)seed + i) % c->n_ranks] = c->speed;
    worst_of(&t, 20);
    slow = fmax(slow, worst_of(&t, 20));
    for (int32_t r = 0; r < c->n_ranks; r++) t.speed[r] = 1;
    worst_of(&t, 20);
    fast = fmax(fast, worst_of(&t, 20));
    kf_scheduler_free(t.scheduler);
  }
  print_message("%d of %d ranks at %g, %s, bags %s, %s, overhead %g: before %.4f, slow %.4f, fast "
                "again %.4f\n",
                (int)c->n_slow, (int)c->n_ranks, c->speed, c->place.mix,
                *c->place.bags ? c->place.bags : "auto",
                *c->place.cluster ? c->place.cluster : "h100x32", c->overhead, before, slow, fast);
  double limit = c->n_ranks > 8 ? 1.08 : 1.05; /* of many ranks one is always a little off */
  if (!(fmax(before, fmax(slow, fast)) <= limit)) fail_msg("max/mean is above %g", limit);
}

static void test_a_slow_rank(void **state) {
  (void)state;
  for (int i = 0; i < PLACES; i++) expect_balance(&(change){places[i], RANKS, 1, 0.5, 5, 0, 0});
}

/* What ranks do beside computing is not in the planner's cost, but is in their time. */
static void test_overhead(void **state) {
  (void)state;
  for (int i = 0; i < 3; i++) expect_balance(&(change){places[i], RANKS, 1, 0.5, 5, 0.05, 0});
}

static void test_more_changes(void **state) {
  (void)state;
  const change changes[] = {
    {places[0], RANKS, 2, 0.5, 5, 0, 0},
    {places[0], RANKS, 3, 0.5, 5, 0, 0},
    {places[0], RANKS, 4, 0.5, 5, 0, 0},
    {places[0], RANKS, 1, 2, 5, 0, 0},
    {places[1], RANKS, 1, 0.8, 5, 0, 0},
    {places[1], RANKS, 1, 0.25, 1, 0, 0},
    {places[1], 2, 1, 0.5, 5, 0, 0},
    {places[0], 8, 2, 0.5, 5, 0, 0},
    {{"joint", "", ""}, 32, 1, 0.5, 5, 0, 1.08}, /* one plan in a thousand is 4% off its bound */
  };
  for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) expect_balance(&changes[i]);
}

/* A rank that is slow from the first step on is found as well, though the law is not yet known. */
static void test_slow_from_the_start(void **state) {
  (void)state;
  for (int i = 0; i < PLACES; i++) {
    double worst = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
      training t = start(&places[i], 5, seed);
      t.speed[seed % RANKS] = 0.5;
      worst_of(&t, 100);
      worst = fmax(worst, worst_of(&t, 20));
      kf_scheduler_free(t.scheduler);
    }
    print_message("slow from the start, %s, bags %s: %.4f\n", places[i].mix,
                  *places[i].bags ? places[i].bags : "auto", worst);
    if (!(worst <= 1.1)) fail_msg("max/mean is above 1.1"); /* unbalanced: 1.6 */
  }
}

/* The first steps of a job are slow: kernels are compiled, caches are empty, memory is taken. */
static void test_cold_start(void **state) {
  (void)state;
  static const struct {
    int steps;
    double times;
  } cold[] = {{1, 100}, {1, 5}, {3, 50}, {12, 3}};
  static const place joint = {"joint", "", ""};
  for (size_t k = 0; k < sizeof cold / sizeof *cold; k++) {
    double worst = 0;
    for (uint64_t seed = 1; seed <= 10; seed++) { /* few show it, those badly */
      training t = start_of(&joint, TRAINING_RANKS, 10, seed);
      for (int i = 0; i < cold[k].steps; i++) {
        for (int r = 0; r < TRAINING_RANKS; r++) t.stretch[r] = cold[k].times;
        step(&t);
      }
      worst_of(&t, 20 - cold[k].steps);
      worst = fmax(worst, worst_of(&t, 60));
      kf_scheduler_free(t.scheduler);
    }
    print_message("first %d steps %gx: %.4f\n", cold[k].steps, cold[k].times, worst);
    if (!(worst <= 1.08)) fail_msg("max/mean is above 1.08"); /* of static: 1.15 */
  }
}

/* Videos are dearer than their length says. Every class has its own lengths here, so that no class
** alone is clear of the curve. */
static void test_dear_videos(void **state) {
  (void)state;
  static const place joint = {"joint", "", ""};
  double worst = 0;
  for (uint64_t seed = 1; seed <= SEEDS; seed++) {
    training t = start_of(&joint, TRAINING_RANKS, 10, seed);
    t.clock.kind_factor[KF_KIND_VIDEO] = 1.3;
    worst_of(&t, 60);
    worst = fmax(worst, worst_of(&t, 60));
    kf_scheduler_free(t.scheduler);
  }
  print_message("videos 1.3 times as dear: %.4f\n", worst);
  if (!(worst <= 1.05)) fail_msg("max/mean is above 1.05"); /* of static: 1.25 */
}

/* Half of the machines are of the last generation, and nobody has said so. */
static void test_two_generations(void **state) {
  (void)state;
  static const place kinds[] = {{"joint", "", ""}, {"joint", "g4n8", ""}};
  for (int i = 0; i < 2; i++) {
    double worst = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
      training t = start_of(&kinds[i], TRAINING_RANKS, 10, seed);
      for (int32_t r = TRAINING_RANKS / 2; r < TRAINING_RANKS; r++) t.speed[r] = 0.5;
      worst_of(&t, 150);
      worst = fmax(worst, worst_of(&t, 20));
      kf_scheduler_free(t.scheduler);
    }
    print_message("half the ranks at 0.5, bags %s: %.4f\n", i ? "g4n8" : "auto", worst);
    if (!(worst <= 1.12)) fail_msg("max/mean is above 1.12"); /* of static: 1.33 */
  }
}

/* ------------------------------------------------------------ (c) shares of work */

/* Work goes to ranks in proportion to their speeds. Links are free here, so nothing else counts. */
static void test_shares(void **state) {
  (void)state;
  static const place many = {"g4b32i256f1s0", "", "free"};
  static const double speeds[][RANKS] = {{1, 0.5, 1, 1}, {1, 0.8, 1.2, 0.6}, {0.3, 1, 1, 1}};
  double worst = 0;
  for (size_t k = 0; k < sizeof speeds / sizeof *speeds; k++) {
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
      training t = start(&many, 5, seed);
      double work[RANKS] = {0}, all = 0, all_speeds = 0;
      memcpy(t.speed, speeds[k], sizeof speeds[k]);
      worst_of(&t, 60);
      for (int i = 0; i < 20; i++) {
        step(&t);
        for (int r = 0; r < RANKS; r++) work[r] += t.times[r].true_s * t.speed[r];
      }
      for (int r = 0; r < RANKS; r++) all += work[r], all_speeds += t.speed[r];
      for (int r = 0; r < RANKS; r++) {
        double off = fabs(work[r] / all / (t.speed[r] / all_speeds) - 1);
        worst = fmax(worst, off);
        if (!(off < 0.06)) fail_msg("rank %d gets %.4f of %.4f", r, work[r] / all, t.speed[r]);
      }
      kf_scheduler_free(t.scheduler);
    }
  }
  print_message("shares of work are within %.2f%% of the speeds\n", 100 * worst);
}

/* ------------------------------------------------------------------- (b) pauses */

/* What goes wrong at a step: rank 2 is the one that pauses. */
typedef void mishap(training *t, int after);

static void outlier(training *t, int after) {
  if (after == 0) t->stretch[2] = 100;
}
static void pause_of_all(training *t, int after) {
  for (int32_t r = 0; r < RANKS && after == 0; r++) t->stretch[r] = 20;
}
static void checkpoint(training *t, int after) {
  for (int32_t r = 0; r < RANKS && after < 4; r++) t->stretch[r] = 3;
}
static void slow_disk(training *t, int after) {
  if (after < 4) t->stretch[2] = 4;
}
static void garbage(training *t, int after) {
  if (after % 7 == 0) t->stretch[2] = 3;
}
static void too_short(training *t, int after) {
  if (after == 0) t->stretch[2] = 0.01;
}

static void one_in_fifty(training *t, int after) {
  for (int32_t r = 0; r < RANKS; r++) {
    dice d = {(uint64_t)(after * RANKS + r)};
    if (dice_one_in(&d, 50)) t->stretch[r] = 100;
  }
}

static const struct {
  const char *name;
  mishap *mishap;
} mishaps[] = {{"outlier of 100x", outlier},           {"all pause, 20x", pause_of_all},
               {"checkpoint, 4 steps 3x", checkpoint}, {"one rank, 4 steps 4x", slow_disk},
               {"every 7th step 3x", garbage},         {"outlier of 0.01x", too_short},
               {"one time in 50, 100x", one_in_fifty}};

/* Largest change of max/mean by a mishap, over the 50 steps from it, beside the same run
** without. */
static double changed_by(const place *p, mishap *m, int64_t interval, uint64_t seed) {
  training with = start(p, interval, seed), without = start(p, interval, seed);
  double worst = 0;
  int begin = (interval == 50 ? 155 : 60) + (int)(seed % 5); /* the third refit is the first good */
  for (int i = 0; i < begin + 50; i++) {
    int after = i - begin;
    if (after >= 0) m(&with, after);
    step(&with);
    step(&without);
    worst = fmax(worst, fabs(with.max_over_mean / without.max_over_mean - 1));
  }
  kf_scheduler_free(with.scheduler);
  kf_scheduler_free(without.scheduler);
  return worst;
}

static void test_pauses(void **state) {
  (void)state;
  static const int64_t intervals[] = {1, 5, 50};
  for (size_t m = 0; m < sizeof mishaps / sizeof *mishaps; m++) {
    for (int k = 0; k < 3; k++) {
      double worst = 0;
      for (uint64_t seed = 1; seed <= SEEDS; seed++) { /* each seed somewhere else */
        const place *p = &places[(m * 3 + (size_t)k * SEEDS + seed) % PLACES];
        worst = fmax(worst, changed_by(p, mishaps[m].mishap, intervals[k], seed));
      }
      print_message("%-24s interval %2d: max/mean changes by %.3f%%\n", mishaps[m].name,
                    (int)intervals[k], 100 * worst);
      if (!(worst < (m == 0 ? 0.01 : 0.02))) fail_msg("that is too much");
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_a_slow_rank),     cmocka_unit_test(test_overhead),
    cmocka_unit_test(test_more_changes),    cmocka_unit_test(test_slow_from_the_start),
    cmocka_unit_test(test_cold_start),      cmocka_unit_test(test_dear_videos),
    cmocka_unit_test(test_two_generations), cmocka_unit_test(test_shares),
    cmocka_unit_test(test_pauses),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
