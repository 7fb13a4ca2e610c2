/* SPDX-License-Identifier: Apache-2.0 */
/* What a scheduler shows: the figures of a step by hand, drift, and the log. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "simulated.h"

#define OK(status) ok_at(__LINE__, (status))

static void ok_at(int line, kf_status status) {
  if (status) fail_msg("line %d: %s", line, kf_last_error());
}

static void near(double got, double want) {
  if (!(fabs(got - want) <= 1e-12 * fmax(1, fabs(want))))
    fail_msg("%.17g, expected %.17g", got, want);
}

static const char mix[] = "g2b4i256f1s0,g1b2i1024f1s0,g1b1i512f85s1";

/* --------------------------------------------------------------------- figures */

/* Four ranks in two bags, each with one sequence of 1000 tokens, which its bag shares. */
static const int64_t four_off[] = {0, 1, 2, 3, 4}, four_len[] = {1000, 1000, 1000, 1000};
static const kf_batch four = {.n_ranks = 4, .n_seqs = 4, .rank_off = four_off, .len = four_len};

static kf_scheduler *four_ranks(const char *bags) {
  static kf_config config;
  kf_scheduler *s;
  config = (kf_config){.mem_tokens = 4000, .cost_model = KF_COST_STATIC};
  snprintf(config.bag_size, sizeof config.bag_size, "%s", bags);
  OK(scheduler_create(&(scheduler_wish){.n_ranks = 4, .config = &config}, &s));
  return s;
}

static void test_figures(void **state) {
  (void)state;
  kf_scheduler *s = four_ranks("2");
  const kf_metrics *m = kf_scheduler_metrics(s);
  const kf_plan *plan;
  assert_int_equal(m->n_bags, 2);
  assert_int_equal(m->n_ranks, 4);
  OK(kf_scheduler_plan(s, &four, &plan));
  kf_figures figures = plan->figures;
  uint64_t hash = plan->hash;
  double predicted[4], rows[4];
  for (int r = 0; r < 4; r++) {
    predicted[r] = plan->compute_s[r] + plan->comm_s[r];
    rows[r] = (double)plan->hold_rows[r];
    assert_true(rows[r] == 1000); /* two halves of two sequences */
  }
  OK(kf_scheduler_update_stats(s, 0, 2, NULL));
  OK(kf_scheduler_update_stats(
    s, 1, 1, &(kf_counters){.memory_bytes = 30, .memory_limit_bytes = 40, .wait_s = 1.5}));
  OK(kf_scheduler_update_stats(s, 2, 1.5, NULL));
  OK(kf_scheduler_update_stats(s, 3, 0.5, NULL));
  OK(kf_scheduler_settle(s));
  m = kf_scheduler_metrics(s);
  assert_int_equal(m->step, 0);
  assert_int_equal(m->epoch, 0);
  assert_int_equal(m->n_measured, 4);
  assert_true(m->plan_hash == hash);
  assert_memory_equal(&m->figures, &figures, sizeof figures);
  near(m->begin_s, 0);
  near(m->step_s, 2.5); /* rank 1: busy 1, waited 1.5 */
  near(m->max_over_mean, 2 / 1.25);
  /* idle shares 0.2, 0.6, 0.4, 0.8: mean 0.5, off by 0.3, 0.1, 0.1, 0.3 */
  near(m->idle_variance, sqrt((0.09 + 0.01 + 0.01 + 0.09) / 4));
  static const double busy[] = {2, 1, 1.5, 0.5};
  double most = 0, off = 0;
  for (int r = 0; r < 4; r++) {
    off += fabs(predicted[r] / busy[r] - 1);
    near(m->busy_s[r], busy[r]);
    near(m->busy_share[r], busy[r] / 2.5);
    near(m->predicted_s[r], predicted[r]);
    near(m->memory_pressure[r], r == 1 ? 0.75 : 0.25); /* 1000 tokens of a cap of 4000 */
    near(m->speed[r], 1);
    most = fmax(most, predicted[r]);
  }
  near(m->predicted_step_s, most);
  near(m->tokens_per_s, 4000 / 2.5);
  near(m->samples_per_s, 4 / 2.5);
  for (int b = 0; b < 2; b++) {
    assert_int_equal(m->bag_first[b], 2 * b);
    near(m->bag_busy_share[b], b ? 0.4 : 0.6);
    near(m->bag_tokens_per_s[b], 2000 / 2.5);
    near(m->bag_samples_per_s[b], 2 / 2.5);
  }
  assert_int_equal(m->bag_first[2], 4);
  near(m->gamma, 0.4);
  near(m->mape, off / 4); /* of what plans are made from, from the first step on */
  kf_scheduler_free(s);
}

/* A program that routes other rows than the model's changes bytes, not how dear attention is. */
static void test_gamma(void **state) {
  (void)state;
  kf_cost cost;
  kf_scheduler *s;
  OK(kf_cost_preset("DiT-S", NULL, 4, 0.7, &cost));
  cost.route_bytes = 152;
  OK(scheduler_create(&(scheduler_wish){.n_ranks = 4, .cost = &cost}, &s));
  near(kf_scheduler_metrics(s)->gamma, 0.7);
  kf_scheduler_free(s);
}

/* With counters it is what ranks say they computed; ranks that say nothing are left out of
** means. */
static void test_counters(void **state) {
  (void)state;
  kf_scheduler *s = four_ranks("");
  const kf_plan *plan;
  for (int turn = 0; turn < 2; turn++) { /* the first turn's counters are gone in the second */
    OK(kf_scheduler_plan(s, &four, &plan));
    kf_counters c = {.tokens = 500, .samples = 2, .plan_s = 0.1, .route_s = 0.2, .compute_s = 0.3};
    OK(kf_scheduler_update_stats(s, 0, 1, turn ? NULL : &c));
    OK(kf_scheduler_update_stats(s, 2, 4, turn ? NULL : &c));
    OK(kf_scheduler_settle(s));
    const kf_metrics *m = kf_scheduler_metrics(s);
    assert_int_equal(m->n_bags, 4);
    assert_int_equal(m->n_measured, 2);
    near(m->step_s, 4);
    near(m->begin_s, 4 * turn);
    near(m->max_over_mean, 4 / 2.5);
    near(m->idle_variance, 0.375); /* 0.75 and 0 */
    near(m->busy_share[0], 0.25);
    near(m->busy_s[1], 0);
    near(m->busy_share[1], 0);
    near(m->tokens_per_s, (turn ? 4000 : 1000) / 4.);
    near(m->samples_per_s, (turn ? 4 : 4) / 4.);
    near(m->bag_busy_share[2], 1);
    near(m->bag_busy_share[3], 0);
    near(m->bag_tokens_per_s[0], (turn ? 1000 : 500) / 4.);
    assert_int_equal(m->counters[0].tokens, turn ? 0 : 500);
    near(m->counters[2].compute_s, turn ? 0 : 0.3);
  }
  kf_scheduler_free(s);
}

static void test_epochs(void **state) {
  (void)state;
  static const struct {
    int before, after; /* epochs that begin before and after the plan */
    double seconds;    /* 0: nobody reports */
    int64_t epoch;
    double begin_s, epoch_s, last_epoch_s;
  } steps[] = {
    {0, 0, 1, 0, 0, 1, 0},     {0, 0, 2, 0, 1, 3, 0},     {0, 1, 4, 0, 3, 7, 0},
    {0, 0, 8, 1, 7, 8, 7},     {1, 0, 0, 1, 7, 8, 7},     {0, 0, 16, 2, 15, 16, 8},
    {2, 0, 32, 4, 31, 32, 16}, {0, 0, 64, 4, 63, 96, 16},
  };
  kf_scheduler *s = four_ranks("");
  const kf_plan *plan;
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
    for (int k = 0; k < steps[i].before; k++) kf_scheduler_new_epoch(s);
    OK(kf_scheduler_plan(s, &four, &plan));
    for (int k = 0; k < steps[i].after; k++) kf_scheduler_new_epoch(s);
    for (int r = 0; steps[i].seconds > 0 && r < 4; r++)
      OK(kf_scheduler_update_stats(s, r, steps[i].seconds, NULL));
    OK(kf_scheduler_settle(s));
    const kf_metrics *m = kf_scheduler_metrics(s);
    assert_int_equal(m->epoch, steps[i].epoch);
    near(m->begin_s, steps[i].begin_s);
    near(m->epoch_s, steps[i].epoch_s);
    near(m->last_epoch_s, steps[i].last_epoch_s);
  }
  kf_scheduler_free(s);
}

/* Errors of predictions, as a mean over ranks with work: who had none was not predicted. */
static void test_mape(void **state) {
  (void)state;
  const int64_t off[] = {0, 1, 1}, len[] = {16};
  const kf_batch small = {.n_ranks = 2, .n_seqs = 1, .rank_off = off, .len = len};
  kf_config config = {.cluster = "free", .bag_size = "1"};
  kf_scheduler *s;
  const kf_plan *plan;
  OK(scheduler_create(&(scheduler_wish){.n_ranks = 2, .config = &config}, &s));
  for (int i = 0; i < 2; i++) {
    OK(kf_scheduler_plan(s, &small, &plan));
    assert_true(plan->hold_rows[0] == 16 && plan->hold_rows[1] == 0);
    OK(kf_scheduler_update_stats(s, 0, i ? 2 : 1, NULL));
    OK(kf_scheduler_update_stats(s, 1, 0.01, NULL)); /* it had nothing to do but to be there */
    OK(kf_scheduler_settle(s));
  }
  const kf_metrics *m = kf_scheduler_metrics(s);
  near(m->mape, 0.5); /* predicted 1, took 2 */
  kf_scheduler_free(s);
}

/* A time that is not learned from is counted in the metrics of its own step. */
static void test_outliers(void **state) {
  (void)state;
  kf_scheduler *s = four_ranks("");
  const kf_plan *plan;
  for (int i = 0; i < 40; i++) {
    OK(kf_scheduler_plan(s, &four, &plan));
    for (int r = 0; r < 4; r++)
      OK(kf_scheduler_update_stats(s, r, i == 39 && r == 2 ? 100 : 1, NULL));
    OK(kf_scheduler_settle(s));
    assert_int_equal(kf_scheduler_metrics(s)->outliers, i == 39);
  }
  assert_true(kf_scheduler_metrics(s)->noise < 0.1);
  kf_scheduler_free(s);
}

/* ------------------------------------------------------------------------ drift */

typedef struct story {
  int64_t n_lines[5];
  char last[5][200]; /* of each level */
  int64_t n_drifts;
  kf_drift drift[100];
} story;

static void take_line(void *user, kf_log_level level, const char *line) {
  story *t = user;
  assert_true(level >= KF_LOG_ERROR && level <= KF_LOG_DEBUG);
  assert_true(strlen(line) > 10 && !strchr(line, '\n'));
  t->n_lines[level]++;
  snprintf(t->last[level], sizeof t->last[level], "%s", line);
}

static training start_of(int32_t n_ranks, kf_config *config, uint64_t seed, story *t) {
  kf_scheduler *s;
  *t = (story){0};
  OK(scheduler_create(
    &(scheduler_wish){.n_ranks = n_ranks, .config = config, .log = take_line, .log_user = t}, &s));
  return training_of(s, mix, seed);
}

static training start(kf_config *config, uint64_t seed, story *t) {
  return start_of(4, config, seed, t);
}

static void run(training *t, story *told, int n) {
  int64_t refits = kf_scheduler_metrics(t->scheduler)->refits;
  for (int i = 0; i < n; i++) {
    OK(training_step(t));
    const kf_metrics *m = kf_scheduler_metrics(t->scheduler);
    if (m->refits == refits) continue;
    refits = m->refits;
    for (int k = 0; k < m->n_drifts && told->n_drifts < 100; k++)
      told->drift[told->n_drifts++] = m->drift[k];
  }
  assert_int_equal(kf_scheduler_metrics(t->scheduler)->drifts, told->n_drifts);
}

/* From the first to the last that is told of it: now / before; 1: nothing. */
static double told_of(const story *t, const char *what) {
  double first = 0, last = 0;
  for (int64_t i = 0; i < t->n_drifts; i++) {
    if (strcmp(t->drift[i].what, what) != 0) continue;
    if (first == 0) first = t->drift[i].before;
    last = t->drift[i].now;
  }
  return first > 0 ? last / first : 1;
}

static void print_story(const story *t) {
  for (int64_t i = 0; i < t->n_drifts; i++)
    print_message("step %d: %s from %g to %g\n", (int)t->drift[i].step, t->drift[i].what,
                  t->drift[i].before, t->drift[i].now);
}

/* Nothing changes for a thousand steps, and nothing is told. */
static void test_no_drift(void **state) {
  (void)state;
  static const int64_t intervals[] = {5, 50};
  for (int k = 0; k < 2; k++) {
    for (uint64_t seed = 1; seed <= 2; seed++) {
      static story told;
      kf_config config = {.rebalance_interval = intervals[k]};
      training t = start(&config, seed, &told);
      run(&t, &told, 1000);
      print_story(&told);
      assert_int_equal(told.n_drifts, 0);
      kf_scheduler_free(t.scheduler);
    }
  }
}

/* Attention becomes half as dear again; then a rank becomes half as fast. Each is told as what it
** is. Sequences have no profiles: here each class has one length, and could be what has become
** dear. */
static void test_drift(void **state) {
  (void)state;
  static const kf_profile unknown[64];
  for (uint64_t seed = 1; seed <= 3; seed++) {
    static story told;
    kf_config config = {.rebalance_interval = 5};
    training t = start_of(8, &config, seed, &told);
    t.profile = unknown;
    run(&t, &told, 200);
    assert_int_equal(told.n_drifts, 0);
    t.clock.cost.quadratic_s *= 1.5;
    run(&t, &told, 100);
    print_story(&told);
    double moved = told_of(&told, "quadratic_s");
    if (!(moved > 1.35 && moved < 1.65)) fail_msg("quadratic_s is told to move by %g", moved);
    for (int r = 0; r < 8; r++) {
      char what[48];
      snprintf(what, sizeof what, "speed of rank %d", r);
      if (told_of(&told, what) != 1) fail_msg("%s is told to have moved", what);
    }
    assert_true(told.drift[0].step >= 200 && told.drift[0].step <= 220);
    kf_scheduler_free(t.scheduler);
  }
  for (uint64_t seed = 1; seed <= 3; seed++) {
    static story told;
    kf_config config = {.rebalance_interval = 5};
    training t = start(&config, seed, &told);
    run(&t, &told, 200);
    t.speed[1] = 0.5;
    run(&t, &told, 60);
    print_story(&told);
    double moved = told_of(&told, "speed of rank 1");
    if (!(moved > 0.47 && moved < 0.53)) fail_msg("speed of rank 1 is told to move by %g", moved);
    for (int64_t i = 0; i < told.n_drifts; i++)
      assert_string_equal(told.drift[i].what, "speed of rank 1");
    assert_true(told.drift[0].step >= 205 && told.drift[0].step <= 210);
    kf_scheduler_free(t.scheduler);
  }
}

/* -------------------------------------------------------------------------- log */

static void test_log(void **state) {
  (void)state;
  for (int level = KF_LOG_DEFAULT; level <= KF_LOG_DEBUG; level++) {
    static story told;
    kf_config config = {.rebalance_interval = 5, .log_level = (kf_log_level)level, .bag_size = "2"};
    training t = start(&config, 1, &told);
    run(&t, &told, 100);
    t.speed[1] = 0.5;
    run(&t, &told, 50);
    int shown = level ? level : KF_LOG_INFO;
    for (int l = KF_LOG_ERROR; l <= KF_LOG_DEBUG; l++)
      if (l > shown) assert_int_equal(told.n_lines[l], 0);
    assert_int_equal(told.n_lines[KF_LOG_ERROR], 0);
    if (shown >= KF_LOG_WARNING) assert_int_equal(told.n_lines[KF_LOG_WARNING], told.n_drifts);
    assert_true(told.n_drifts > 0);
    if (shown >= KF_LOG_INFO) assert_int_equal(told.n_lines[KF_LOG_INFO], 29);
    /* a line a plan, and for each step measured by then one, and one a bag */
    if (shown >= KF_LOG_DEBUG) assert_true(told.n_lines[KF_LOG_DEBUG] >= 150 + 149 * 3);
    kf_scheduler_free(t.scheduler);
  }
}

/* Fixed bags that a sequence does not fit are told of: once, and again for a longer one. */
static void test_joined(void **state) {
  (void)state;
  static story told;
  const int64_t off[] = {0, 2, 2, 3, 3, 3, 3};
  int64_t len[] = {900, 2100, 800};
  const kf_batch batch = {.n_ranks = 6, .n_seqs = 3, .rank_off = off, .len = len};
  kf_config config = {.bag_size = "2", .max_chunk_size = 1000};
  training t = start_of(6, &config, 1, &told);
  const kf_plan *plan;
  for (int i = 0; i < 4; i++) {
    if (i == 2) len[1] = 5000;
    OK(kf_scheduler_plan(t.scheduler, &batch, &plan));
    assert_int_equal(plan->joined_seqs, 1);
    assert_int_equal(told.n_lines[KF_LOG_WARNING], i < 2 ? 1 : 2);
    assert_string_equal(told.last[KF_LOG_WARNING],
                        i < 2 ? "step 0: sequence 1 of 2100 tokens does not fit one bag: it "
                                "takes 2 adjacent ones"
                              : "step 2: sequence 1 of 5000 tokens does not fit one bag: it "
                                "takes 3 adjacent ones");
  }
  len[1] = 2000;
  OK(kf_scheduler_plan(t.scheduler, &batch, &plan));
  assert_int_equal(plan->joined_seqs, 0);
  kf_scheduler_free(t.scheduler);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_figures),  cmocka_unit_test(test_counters),
    cmocka_unit_test(test_epochs),   cmocka_unit_test(test_mape),
    cmocka_unit_test(test_outliers), cmocka_unit_test(test_no_drift),
    cmocka_unit_test(test_drift),    cmocka_unit_test(test_log),
    cmocka_unit_test(test_gamma),    cmocka_unit_test(test_joined),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
