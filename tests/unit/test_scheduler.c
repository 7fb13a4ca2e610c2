/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler: what it refuses, when it changes its mind, what it shows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "fail_alloc.h"
#include "learn/scheduler.h"
#include "simulated.h"

#define REFUSED(status, sentence) refused_at(__LINE__, (status), KF_EINVAL, (sentence))
#define OK(status) ok_at(__LINE__, (status))

static void ok_at(int line, kf_status status) {
  if (status) fail_msg("line %d: %s", line, kf_last_error());
}

static void refused_at(int line, kf_status status, kf_status want, const char *sentence) {
  if (status != want) fail_msg("line %d: status %d, expected %d", line, status, want);
  if (!strstr(kf_last_error(), sentence))
    fail_msg("line %d: \"%s\", expected \"%s\"", line, kf_last_error(), sentence);
}

/* ----------------------------------------------------------------------- create */

static const char mix[] = "g2b4i256f1s0,g1b2i1024f1s0,g1b1i512f85s1";

/* Images and videos of about as many tokens: what they differ in is no matter of length. */
static const char videos[] = "g2b4i1024f1s0,g2b4i512f14s1";

static kf_scheduler *create(int32_t n_ranks, const kf_config *config, const kf_cost *cost) {
  kf_scheduler *s = NULL;
  OK(scheduler_create(&(scheduler_wish){.n_ranks = n_ranks, .config = config, .cost = cost}, &s));
  return s;
}

static void test_create_refuses(void **state) {
  (void)state;
  kf_scheduler *s = NULL;
  const double speeds[][2] = {{1, 0}, {1, -1}, {1, 1e7}, {1, NAN}, {1e-7, 1}, {INFINITY, 1}};
  const int64_t caps[2] = {5, -1};
  kf_scheduler_options o = {0};
  kf_cost *cost = &o.plan.cost;
  REFUSED(kf_scheduler_create(NULL, &s), "options or out is NULL");
  REFUSED(kf_scheduler_create(&o, NULL), "options or out is NULL");
  REFUSED(kf_scheduler_create(&o, &s), "a scheduler of 0 ranks");
  cost->cluster.n_ranks = -3;
  REFUSED(kf_scheduler_create(&o, &s), "of -3 ranks");
  cost->cluster.n_ranks = KF_MAX_RANKS + 1;
  REFUSED(kf_scheduler_create(&o, &s), "of 1048577 ranks, expected 1 to 1048576");
  OK(kf_cost_preset("flux", NULL, 2, KF_DEFAULT_GAMMA, cost));
  o.rebalance_interval = -1;
  REFUSED(kf_scheduler_create(&o, &s), "rebalance_interval is -1");
  o.rebalance_interval = 0;
  o.cost_model = 3;
  REFUSED(kf_scheduler_create(&o, &s), "cost_model is 3");
  o.cost_model = 0;
  o.plan.max_chunk_size = -2;
  REFUSED(kf_scheduler_create(&o, &s), "max_chunk_size is -2");
  o.plan.max_chunk_size = 0;
  o.plan.bags = &(kf_bags){.n_ranks = 2, .n_bags = 7};
  REFUSED(kf_scheduler_create(&o, &s), "bags: 0 groups");
  o.plan.bags = NULL;
  o.plan.mem_tokens = caps;
  REFUSED(kf_scheduler_create(&o, &s), "memory cap of rank 1 is -1");
  o.plan.mem_tokens = NULL;
  for (size_t i = 0; i < sizeof speeds / sizeof *speeds; i++) {
    o.plan.speed = speeds[i];
    REFUSED(kf_scheduler_create(&o, &s), "expected 1e-6 to 1e6");
  }
  o.plan.speed = NULL;
  cost->linear_s = cost->quadratic_s = 0;
  REFUSED(kf_scheduler_create(&o, &s), "expected one above 0");
  cost->linear_s = NAN;
  cost->quadratic_s = 1;
  REFUSED(kf_scheduler_create(&o, &s), "linear_s is nan");
  cost->linear_s = 1;
  cost->heads = 0;
  REFUSED(kf_scheduler_create(&o, &s), "0 heads");
  assert_null(s);
  kf_scheduler_free(NULL);
}

static void test_null(void **state) {
  (void)state;
  const kf_plan *plan;
  void *bytes;
  size_t n;
  kf_scheduler *s = create(2, NULL, NULL);
  REFUSED(kf_scheduler_plan(NULL, NULL, &plan), "NULL");
  REFUSED(kf_scheduler_plan(s, NULL, &plan), "NULL");
  REFUSED(kf_scheduler_plan(s, &(kf_batch){0}, NULL), "NULL");
  REFUSED(kf_scheduler_update_stats(NULL, 0, 1, NULL), "NULL");
  REFUSED(kf_scheduler_settle(NULL), "NULL");
  REFUSED(kf_scheduler_save(NULL, &bytes, &n), "NULL");
  REFUSED(kf_scheduler_save(s, NULL, &n), "NULL");
  REFUSED(kf_scheduler_save(s, &bytes, NULL), "NULL");
  REFUSED(kf_scheduler_restore(NULL, "x", "y", 1), "NULL");
  REFUSED(kf_scheduler_restore(s, "x", NULL, 1), "NULL");
  assert_int_equal(kf_scheduler_hash(NULL), 0);
  kf_scheduler_new_epoch(NULL);
  assert_int_equal(kf_scheduler_metrics(NULL)->step, -1);
  assert_int_equal(kf_scheduler_metrics(s)->step, -1);
  assert_int_equal(kf_scheduler_metrics(s)->version, KF_METRICS_VERSION);
  kf_scheduler_free(s);
}

/* ---------------------------------------------------------------- update_stats */

typedef struct bytes {
  void *data;
  size_t n;
} bytes;

static bytes saved(const kf_scheduler *s) {
  bytes b;
  OK(kf_scheduler_save(s, &b.data, &b.n));
  return b;
}

/* Frees both. */
static bool same(bytes a, bytes b) {
  bool equal = a.n == b.n && memcmp(a.data, b.data, a.n) == 0;
  free(a.data);
  free(b.data);
  return equal;
}

static const int64_t two_off[] = {0, 2, 2}, two_len[] = {3000, 10};
static const kf_batch two = {.n_ranks = 2, .n_seqs = 2, .rank_off = two_off, .len = two_len};
static const kf_batch none = {.n_ranks = 2, .rank_off = (const int64_t[]){0, 0, 0}};

static void refuses(kf_scheduler *s, int32_t rank, double seconds, const kf_counters *c,
                    const char *sentence) {
  bytes before = saved(s);
  REFUSED(kf_scheduler_update_stats(s, rank, seconds, c), sentence);
  assert_true(same(before, saved(s)));
}

static void test_update_refuses(void **state) {
  (void)state;
  const kf_plan *plan;
  kf_scheduler *s = create(2, NULL, NULL);
  refuses(s, 0, 1, NULL, "no step is planned whose times are due");
  OK(kf_scheduler_plan(s, &two, &plan));
  assert_true(plan->hold_rows[0] > 0 && plan->hold_rows[1] > 0);
  for (int given = 0; given < 2; given++) { /* before and after a proper report */
    refuses(s, 0, NAN, NULL, "rank 0 took nan s");
    refuses(s, 1, INFINITY, NULL, "rank 1 took inf s");
    refuses(s, 1, -INFINITY, NULL, "rank 1 took -inf s");
    refuses(s, 0, -1e-9, NULL, "expected 0 to 86400");
    refuses(s, 0, 86401, NULL, "rank 0 took 86401 s, expected 0 to 86400");
    refuses(s, 0, 0, NULL, "rank 0 took 0 s for ");
    refuses(s, 2, 1, NULL, "times of rank 2, expected a rank from 0 to 1");
    refuses(s, -1, 1, NULL, "times of rank -1");
    refuses(s, INT32_MIN, 1, NULL, "times of rank -2147483648");
    refuses(s, 0, 1, &(kf_counters){.memory_bytes = -1}, "memory_bytes is -1");
    refuses(s, 0, 1, &(kf_counters){.memory_limit_bytes = -1}, "memory_limit_bytes is -1");
    refuses(s, 0, 1, &(kf_counters){.tokens = INT64_MIN}, "tokens is -9223372036854775808");
    refuses(s, 0, 1, &(kf_counters){.samples = -1}, "samples is -1");
    refuses(s, 0, 1, &(kf_counters){.plan_s = -1}, "plan_s is -1");
    refuses(s, 0, 1, &(kf_counters){.route_s = NAN}, "route_s is nan");
    refuses(s, 0, 1, &(kf_counters){.compute_s = INFINITY}, "compute_s is inf");
    refuses(s, 0, 1, &(kf_counters){.wait_s = 1e9}, "wait_s is 1e+09");
    OK(kf_scheduler_update_stats(s, 0, 86400, NULL));
  }
  OK(kf_scheduler_settle(s));
  refuses(s, 0, 1, NULL, "no step is planned");
  OK(kf_scheduler_plan(s, &none, &plan));
  OK(kf_scheduler_update_stats(s, 0, 0, NULL)); /* there was no work */
  kf_scheduler_free(s);
}

/* A plan that fails takes no times, and the next one is as if it had not been. */
static void test_failed_plan(void **state) {
  (void)state;
  const int64_t too_long[] = {9000, 9000}, negative[] = {5, -5};
  const kf_profile strange[] = {{0, 0, 0}, {4, 0, 0}};
  kf_config config = {.mem_tokens = 4000, .rebalance_interval = 1};
  kf_scheduler *s = create(2, &config, NULL), *clean = create(2, &config, NULL);
  const kf_plan *plan = NULL, *twin;
  kf_batch wrong[] = {two, two, two, two, two};
  wrong[0].len = too_long;
  wrong[1].len = negative;
  wrong[2].profile = strange;
  wrong[3].n_ranks = 3;
  wrong[4].len = NULL;
  static const char *const why[] = {"fits nowhere", "-5 tokens", "kind 4", "3 ranks",
                                    "with their arrays"};
  for (int i = 0; i < 40; i++) {
    const kf_batch *b = &wrong[i % 5];
    kf_status status = kf_scheduler_plan(s, b, &plan);
    refused_at(__LINE__, status, i % 5 ? KF_EINVAL : KF_EINFEASIBLE, why[i % 5]);
    assert_int_equal(kf_scheduler_steps(s), i);
    refuses(s, 0, 1, NULL, "no step is planned");
    OK(kf_scheduler_plan(s, &two, &plan));
    OK(kf_scheduler_plan(clean, &two, &twin));
    assert_true(plan->hash == twin->hash);
    for (int32_t r = 0; r < 2; r++) {
      double seconds = (double)plan->hold_rows[r] * (r && i >= 20 ? 2e-4 : 1e-4) + 1e-9;
      OK(kf_scheduler_update_stats(s, r, seconds, NULL));
      OK(kf_scheduler_update_stats(clean, r, seconds, NULL));
    }
  }
  assert_true(same(saved(s), saved(clean)));
  kf_scheduler_free(s);
  kf_scheduler_free(clean);
}

static void test_reports(void **state) {
  (void)state;
  const kf_plan *plan;
  kf_scheduler *a = create(2, NULL, NULL), *b = create(2, NULL, NULL);
  kf_counters c = {.tokens = 7, .wait_s = 0.5};
  OK(kf_scheduler_plan(a, &two, &plan));
  OK(kf_scheduler_plan(b, &two, &plan));
  assert_false(a->report[0].given);
  OK(kf_scheduler_update_stats(a, 0, 1, &c));
  assert_true(a->report[0].given && a->report[0].seconds == 1);
  assert_memory_equal(&a->report[0].counters, &c, sizeof c);
  /* the second report replaces the first, counters and all */
  OK(kf_scheduler_update_stats(a, 0, 2, NULL));
  OK(kf_scheduler_update_stats(b, 0, 2, NULL));
  assert_true(a->report[0].seconds == 2 && a->report[0].counters.tokens == 0);
  assert_true(same(saved(a), saved(b)));
  /* a rank that said nothing is not learned from: rank 1 has no row */
  OK(kf_scheduler_settle(a));
  assert_int_equal(a->history.n_rows[0], 1);
  assert_int_equal(a->history.n_rows[1], 0);
  assert_int_equal(kf_scheduler_metrics(a)->n_measured, 1);
  /* settling twice, or without a report, changes nothing */
  bytes before = saved(a);
  OK(kf_scheduler_settle(a));
  assert_true(same(before, saved(a)));
  OK(kf_scheduler_plan(a, &two, &plan));
  OK(kf_scheduler_settle(a));
  assert_int_equal(kf_scheduler_metrics(a)->step, 0);
  assert_int_equal(a->history.n_steps, 1);
  kf_scheduler_free(a);
  kf_scheduler_free(b);
}

/* A rank that cannot plan has its own reason to tell, and not another configuration. */
static void test_hash_without_plan(void **state) {
  (void)state;
  kf_scheduler *a = create(4, NULL, NULL), *b = create(4, NULL, NULL);
  training t = training_of(a, mix, 9), u = training_of(b, mix, 9);
  const int64_t rank_off[4] = {0};
  const kf_plan *plan;
  OK(training_step(&t));
  OK(training_step(&u));
  OK(kf_scheduler_settle(a));
  OK(training_step(&t));
  assert_int_equal(kf_scheduler_plan(b, &(kf_batch){.n_ranks = 3, .rank_off = rank_off}, &plan),
                   KF_EINVAL);
  assert_true(kf_scheduler_hash(a) == kf_scheduler_hash(b));
  OK(kf_scheduler_settle(a));
  assert_true(kf_scheduler_hash(a) != kf_scheduler_hash(b));
  kf_scheduler_free(a);
  kf_scheduler_free(b);
}

/* Ranks that learned from other times differ at once, and not when they refit: one time in one
** step, by a millionth, is enough. */
static void test_hash(void **state) {
  (void)state;
  kf_config config = {.rebalance_interval = 50}, other = {.rebalance_interval = 49};
  kf_scheduler *a = create(4, &config, NULL), *b = create(4, &config, NULL);
  kf_scheduler *c = create(4, &other, NULL);
  assert_true(kf_scheduler_hash(a) == kf_scheduler_hash(b));
  assert_true(kf_scheduler_hash(a) != kf_scheduler_hash(c));
  training t = training_of(a, mix, 9), u = training_of(b, mix, 9);
  for (int i = 0; i < 40; i++) {
    assert_true(kf_scheduler_hash(a) == kf_scheduler_hash(b));
    if (i == 30) u.stretch[2] = 1 + 1e-6;
    OK(training_step(&t));
    OK(training_step(&u));
    assert_true(t.hash == u.hash);
    if (i < 30) continue;
    OK(kf_scheduler_settle(a));
    OK(kf_scheduler_settle(b));
    assert_true(kf_scheduler_hash(a) != kf_scheduler_hash(b));
    break;
  }
  kf_scheduler_free(a);
  kf_scheduler_free(b);
  kf_scheduler_free(c);
}

/* ------------------------------------------------------------ when it changes */

/* Options change at multiples of the interval and only there, whatever the times say. */
static void test_interval(void **state) {
  (void)state;
  static const int64_t intervals[] = {1, 3, 7, 0};
  for (int k = 0; k < 4; k++) {
    kf_config config = {.rebalance_interval = intervals[k]};
    int64_t interval = intervals[k] ? intervals[k] : 50, n_changes = 0;
    kf_scheduler *s = create(4, &config, NULL);
    training t = training_of(s, mix, 3);
    uint64_t hash = kf_planner_hash(s->planner);
    for (int i = 0; i < 130; i++) {
      if (i == 60) t.speed[2] = 0.5;
      OK(training_step(&t));
      uint64_t now = kf_planner_hash(s->planner);
      const kf_metrics *m = kf_scheduler_metrics(s);
      if (now != hash && i % interval != 0) fail_msg("options change at step %d", i);
      n_changes += now != hash;
      hash = now;
      assert_int_equal(m->refits, i / interval);
      assert_int_equal(kf_scheduler_steps(s), i + 1);
      assert_int_equal(m->step, i - 1);
    }
    assert_true(n_changes >= 129 / interval - 1);
    kf_scheduler_free(s);
  }
}

static bool refit_logged;

static void look_for_refit(void *user, kf_log_level level, const char *line) {
  (void)user, (void)level;
  refit_logged |= strstr(line, "refit") != NULL;
}

/* static and modelled plan as a planner does, for ever; but they see what goes on. */
static void test_keeps_its_cost(void **state) {
  (void)state;
  for (int modelled = 0; modelled < 2; modelled++) {
    kf_config config = {.cost_model = modelled ? KF_COST_MODELLED : KF_COST_STATIC,
                        .rebalance_interval = 5};
    kf_planner_options o = {0};
    kf_planner *planner;
    OK(kf_cost_preset("flux", NULL, 4, 0.4, &o.cost));
    if (modelled) o.cost.quadratic_s *= 1.7, o.cost.constant_s = 1e-3;
    OK(kf_planner_create(&o, &planner));
    scheduler_wish options = {
      .n_ranks = 4, .config = &config, .cost = modelled ? &o.cost : NULL, .log = look_for_refit};
    kf_scheduler *s;
    OK(scheduler_create(&options, &s));
    training t = training_of(s, mix, 4);
    t.clock.cost.linear_s *= 3;
    for (int i = 0; i < 150; i++) {
      kf_batch *batch;
      const kf_plan *plan;
      if (i == 100) t.speed[1] = 0.5;
      OK(training_batch(&t, &batch));
      OK(kf_planner_plan(planner, batch, &plan));
      uint64_t hash = plan->hash;
      OK(training_take(&t, batch));
      assert_true(t.hash == hash);
      OK(kf_scheduler_settle(s));
      for (int r = 0; r < 4; r++) { /* what is reported as predicted is what the plan said */
        double said = kf_scheduler_metrics(s)->predicted_s[r];
        assert_true(fabs(said / (plan->compute_s[r] + plan->comm_s[r]) - 1) < 1e-9);
      }
      kf_batch_free(batch);
    }
    const kf_metrics *m = kf_scheduler_metrics(s);
    assert_memory_equal(&m->cost, &o.cost, sizeof o.cost);
    for (int r = 0; r < 4; r++) assert_true(m->speed[r] == 1);
    assert_true(m->drifts >= 1 && m->n_measured == 4);
    assert_true(m->refits == 0 && !refit_logged);
    assert_true(m->mape > 0.5 && m->mape < 0.9); /* the truth is 3 to 4 times what plans expect */
    kf_scheduler_free(s);
    kf_planner_free(planner);
  }
}

/* What is planned with is what the metrics say: cost, speeds, and factors times corrections. */
static void test_plans_with_what_it_says(void **state) {
  (void)state;
  kf_config config = {.rebalance_interval = 5};
  kf_scheduler *s = create(4, &config, NULL);
  training t = training_of(s, videos, 5);
  int n_corrected = 0;
  t.clock.kind_factor[KF_KIND_VIDEO] = 1.4;
  for (int i = 0; i < 120; i++) {
    kf_batch *batch, product;
    double given[64], factor[64];
    OK(training_batch(&t, &batch));
    assert_true(batch->n_seqs <= 64 && batch->profile);
    for (int k = 0; k < batch->n_seqs; k++) given[k] = 1 + 0.1 * (k % 3);
    batch->factor = given;
    OK(training_take(&t, batch));
    const kf_metrics *m = kf_scheduler_metrics(s);
    product = *batch;
    product.factor = factor;
    for (int k = 0; k < batch->n_seqs; k++) {
      int32_t kind, resolution;
      kfi_class_name(kfi_class(&batch->profile[k]), &kind, &resolution);
      factor[k] = given[k];
      for (int c = 0; c < m->n_corrections; c++)
        if (m->correction[c].kind == kind && m->correction[c].resolution == resolution)
          factor[k] = given[k] * m->correction[c].correction;
      n_corrected += factor[k] != given[k];
    }
    kf_planner_options o = {.cost = m->cost, .speed = m->speed};
    const kf_plan *plan;
    kf_planner *planner;
    OK(kf_planner_create(&o, &planner));
    OK(kf_planner_plan(planner, &product, &plan));
    assert_true(plan->hash == t.hash);
    kf_planner_free(planner);
    kf_batch_free(batch);
  }
  assert_true(n_corrected > 0);
  kf_scheduler_free(s);
}

/* --------------------------------------------------------------------- memory */

static void test_fails_to_allocate(void **state) {
  (void)state;
  kf_config config = {.rebalance_interval = 2, .bag_size = "2"};
  kf_scheduler *s = NULL;
  kf_batch *batch;
  const kf_plan *plan = NULL;
  scheduler_wish o = {.n_ranks = 4, .config = &config};
  kf_status status;
  for (long k = 1;; k++) {
    fail_alloc(k);
    status = scheduler_create(&o, &s);
    if (fail_alloc(0) < k) break;
    assert_int_equal(status, KF_ENOMEM);
    assert_null(s);
  }
  OK(status);
  OK(kf_mix_create(mix, 4, 1, &batch));
  for (long k = 1;; k++) {
    fail_alloc(k);
    status = kf_scheduler_plan(s, batch, &plan);
    if (fail_alloc(0) < k) break;
    assert_int_equal(status, KF_ENOMEM);
    assert_int_equal(kf_scheduler_steps(s), 0);
    REFUSED(kf_scheduler_update_stats(s, 0, 1, NULL), "no step is planned");
  }
  OK(status);
  kf_batch_free(batch);
  training t = training_of(s, mix, 6);
  for (int i = 0; i < 9; i++) OK(training_step(&t));
  bytes before = saved(s), b = {NULL, 0};
  fail_alloc(1);
  refused_at(__LINE__, kf_scheduler_save(s, &b.data, &b.n), KF_ENOMEM, "memory");
  fail_alloc(0);
  assert_true(!b.data && b.n == 0);
  kf_scheduler *other = create(4, &config, NULL);
  bytes fresh = saved(other);
  for (long k = 1;; k++) {
    fail_alloc(k);
    status = kf_scheduler_restore(other, "state", before.data, before.n);
    if (fail_alloc(0) < k) break;
    assert_int_equal(status, KF_ENOMEM);
    bytes now = saved(other);
    assert_true(now.n == fresh.n && memcmp(now.data, fresh.data, now.n) == 0);
    free(now.data);
  }
  OK(status);
  free(fresh.data);
  assert_true(same(before, saved(other)));
  kf_scheduler_free(s);
  kf_scheduler_free(other);
}

/* Once steps of this size have been planned nothing is allocated, refits and drift included. */
static void test_allocates_nothing(void **state) {
  (void)state;
  kf_config config = {.rebalance_interval = 3};
  kf_scheduler *s = create(4, &config, NULL);
  training t = training_of(s, videos, 7);
  long n = 0;
  t.clock.kind_factor[KF_KIND_VIDEO] = 1.4;
  for (int i = 0; i < 200; i++) {
    kf_batch *batch;
    OK(training_batch(&t, &batch));
    if (i == 100) t.speed[3] = 0.5;
    fail_alloc(0);
    OK(training_take(&t, batch));
    long k = fail_alloc(0);
    if (i >= 60) n += k; /* until corrections are in use */
    kf_batch_free(batch);
  }
  assert_true(s->corrected && kf_scheduler_metrics(s)->drifts > 0);
  assert_int_equal(n, 0);
  kf_scheduler_free(s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_create_refuses),    cmocka_unit_test(test_null),
    cmocka_unit_test(test_update_refuses),    cmocka_unit_test(test_failed_plan),
    cmocka_unit_test(test_reports),           cmocka_unit_test(test_hash),
    cmocka_unit_test(test_hash_without_plan), cmocka_unit_test(test_interval),
    cmocka_unit_test(test_keeps_its_cost),    cmocka_unit_test(test_plans_with_what_it_says),
    cmocka_unit_test(test_fails_to_allocate), cmocka_unit_test(test_allocates_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
