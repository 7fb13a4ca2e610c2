/* SPDX-License-Identifier: Apache-2.0 */
/* A saved scheduler goes on as if it had never stopped; what is not one changes nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "learn/scheduler.h"
#include "simulated.h"

#define OK(status) ok_at(__LINE__, (status))

static void ok_at(int line, kf_status status) {
  if (status) fail_msg("line %d: %s", line, kf_last_error());
}

static const char mix[] = "g2b4i1024f1s0,g1b4i512f14s1,g1b1i512f85s1";
enum { WORD = 8, STEPS = 90 };

static kf_scheduler *create(int32_t n_ranks, const char *model, kf_config config) {
  kf_scheduler *s;
  snprintf(config.model, sizeof config.model, "%s", model);
  OK(scheduler_create(&(scheduler_wish){.n_ranks = n_ranks, .config = &config}, &s));
  return s;
}

typedef struct bytes {
  unsigned char *data;
  size_t n;
} bytes;

static bytes saved(const kf_scheduler *s) {
  void *data;
  bytes b;
  OK(kf_scheduler_save(s, &data, &b.n));
  b.data = data;
  return b;
}

static bool equal(bytes a, bytes b) { return a.n == b.n && memcmp(a.data, b.data, a.n) == 0; }

/* Is the scheduler's state these bytes? */
static void expect_state(const kf_scheduler *s, bytes want) {
  bytes now = saved(s);
  assert_true(equal(now, want));
  free(now.data);
}

static void refused(kf_scheduler *s, bytes b, const char *sentence) {
  kf_status status = kf_scheduler_restore(s, "run.state", b.data, b.n);
  if (status != KF_EINVAL) fail_msg("status %d, expected \"%s\"", status, sentence);
  if (!strstr(kf_last_error(), sentence) || strncmp(kf_last_error(), "run.state: ", 11) != 0)
    fail_msg("\"%s\", expected \"run.state: %s\"", kf_last_error(), sentence);
}

/* --------------------------------------------------------------------- go on */

/* All plans and times of a run in which something happens: a slow rank, a pause, silence,
** epochs. */
typedef struct run {
  uint64_t hash[STEPS];
  double said[STEPS][4];
  bytes state[STEPS]; /* after the reports of a step */
  bytes half[STEPS];  /* after those of ranks 0 and 1 */
} run;

/* Step i, with the times of `r` if it was taken before. */
static void take(training *t, run *r, int i, bool first) {
  kf_batch *batch;
  kf_scheduler *s = t->scheduler;
  if (i % 20 == 19) kf_scheduler_new_epoch(s);
  OK(training_batch(t, &batch));
  OK(kf_scheduler_plan(s, batch, &t->plan));
  if (first) {
    t->speed[1] = i >= 40 ? 0.5 : 1;
    training_clock(t, batch, t->plan);
    r->hash[i] = t->plan->hash;
    for (int32_t q = 0; q < 4; q++) {
      t->stretch[q] = i == 60 && q == 2 ? 50 : 1;
      r->said[i][q] = i % 9 == 8 && q == 3 ? -1 : training_said(t, q);
    }
  }
  if (t->plan->hash != r->hash[i]) fail_msg("another plan at step %d", i);
  for (int32_t q = 0; q < 4; q++) {
    kf_counters c = {.memory_bytes = 10 + q, .memory_limit_bytes = 100, .wait_s = 0.25 * q};
    if (r->said[i][q] >= 0) OK(kf_scheduler_update_stats(s, q, r->said[i][q], q % 2 ? &c : NULL));
    if (first && q == 1) r->half[i] = saved(s);
  }
  if (first) r->state[i] = saved(s);
  t->step++;
  kf_batch_free(batch);
}

static void run_all(run *r, kf_config config) {
  training t = training_of(create(4, "flux", config), mix, 3);
  t.clock.kind_factor[KF_KIND_VIDEO] = 1.3;
  for (int i = 0; i < STEPS; i++) take(&t, r, i, true);
  kf_scheduler_free(t.scheduler);
}

static void run_free(run *r) {
  for (int i = 0; i < STEPS; i++) {
    free(r->state[i].data);
    free(r->half[i].data);
  }
}

/* From every step on: restored between plan and reports, or after them, into a new scheduler or one
** that has lived through something else; plans and states are those of the run that went on. */
static void test_goes_on(void **state) {
  (void)state;
  static run r;
  static const kf_config configs[] = {{.rebalance_interval = 7},
                                      {.rebalance_interval = 1, .bag_size = "2"},
                                      {.rebalance_interval = 5, .cost_model = KF_COST_STATIC}};
  for (int c = 0; c < 3; c++) {
    run_all(&r, configs[c]);
    for (int from = 0; from < STEPS; from += c == 0 ? 1 : 11) {
      training t = training_of(create(4, "flux", configs[c]), mix, 3);
      if (from % 3 == 0)
        for (int i = 0; i < 3; i++) OK(training_step(&t));
      bytes b = from % 2 ? r.half[from] : r.state[from];
      OK(kf_scheduler_restore(t.scheduler, NULL, b.data, b.n));
      expect_state(t.scheduler, b);
      assert_int_equal(kf_scheduler_steps(t.scheduler), from + 1);
      t.step = from + 1;
      for (int32_t q = 2; from % 2 && q < 4; q++) { /* the rest of the reports */
        kf_counters k = {.memory_bytes = 10 + q, .memory_limit_bytes = 100, .wait_s = 0.25 * q};
        if (r.said[from][q] >= 0)
          OK(kf_scheduler_update_stats(t.scheduler, q, r.said[from][q], q % 2 ? &k : NULL));
      }
      expect_state(t.scheduler, r.state[from]);
      for (int i = from + 1; i < STEPS && i < from + 20; i++) {
        take(&t, &r, i, false);
        expect_state(t.scheduler, r.state[i]);
      }
      kf_scheduler_free(t.scheduler);
    }
    run_free(&r);
  }
}

/* The metrics of the next step are those of the run that went on. */
static void test_metrics_go_on(void **state) {
  (void)state;
  static run r;
  kf_config config = {.rebalance_interval = 7};
  run_all(&r, config);
  training a = training_of(create(4, "flux", config), mix, 3), b = a;
  b.scheduler = create(4, "flux", config);
  a.step = b.step = 50;
  for (int i = 0; i < 50; i++) {
    a.step = i;
    take(&a, &r, i, false);
  }
  OK(kf_scheduler_restore(b.scheduler, "x", r.state[49].data, r.state[49].n));
  const kf_metrics *m = kf_scheduler_metrics(a.scheduler), *n = kf_scheduler_metrics(b.scheduler);
  assert_int_equal(n->step, -1);
  for (int r_ = 0; r_ < 4; r_++) assert_true(m->speed[r_] == n->speed[r_]);
  assert_memory_equal(&m->cost, &n->cost, sizeof m->cost);
  assert_true(m->noise == n->noise && m->outliers == n->outliers && m->refits == n->refits);
  take(&a, &r, 50, false);
  take(&b, &r, 50, false);
  OK(kf_scheduler_settle(a.scheduler));
  OK(kf_scheduler_settle(b.scheduler));
  m = kf_scheduler_metrics(a.scheduler), n = kf_scheduler_metrics(b.scheduler);
  assert_int_equal(n->step, 50);
  assert_true(m->begin_s == n->begin_s && m->step_s == n->step_s && m->epoch == n->epoch);
  assert_true(m->epoch_s == n->epoch_s && m->last_epoch_s == n->last_epoch_s);
  assert_true(m->mape == n->mape && m->drifts == n->drifts && m->n_corrections == n->n_corrections);
  assert_memory_equal(&m->figures, &n->figures, sizeof m->figures);
  for (int c = 0; c < m->n_corrections; c++)
    assert_memory_equal(&m->correction[c], &n->correction[c], sizeof *m->correction);
  kf_scheduler_free(a.scheduler);
  kf_scheduler_free(b.scheduler);
  run_free(&r);
}

/* ------------------------------------------------------------------- refusals */

/* A small state: two ranks, in the middle of something. */
static kf_scheduler *small(bytes *b) {
  kf_config config = {.rebalance_interval = 2};
  kf_scheduler *s = create(2, "DiT-S", config);
  training t = training_of(s, "g1b2i256f1s0,g1b1i512f14s1", 1);
  for (int i = 0; i < 9; i++) OK(training_step(&t));
  *b = saved(s);
  return s;
}

static void put(bytes b, size_t word, uint64_t value) {
  for (int i = 0; i < WORD; i++) b.data[word * WORD + (size_t)i] = (unsigned char)(value >> 8 * i);
}

static uint64_t get(bytes b, size_t word) {
  uint64_t value = 0;
  for (int i = 0; i < WORD; i++) value |= (uint64_t)b.data[word * WORD + (size_t)i] << 8 * i;
  return value;
}

static void repair(bytes b) {
  put(b, b.n / WORD - 1, kf_hash_bytes(KF_HASH_START, b.data, b.n - WORD));
}

/* The checksum is of its kind: taken over anew, it is the same. */
static void test_format(void **state) {
  (void)state;
  bytes b;
  kf_scheduler *s = small(&b);
  uint64_t sum = get(b, b.n / WORD - 1);
  repair(b);
  assert_true(get(b, b.n / WORD - 1) == sum);
  assert_memory_equal(b.data, "KFSTATE\n", WORD);
  assert_int_equal(get(b, 1), 2);
  assert_int_equal(get(b, 2), b.n);
  assert_int_equal(get(b, 3), 2);
  kf_scheduler_free(s);
  free(b.data);
}

static void test_every_byte(void **state) {
  (void)state;
  bytes b;
  kf_scheduler *s = small(&b);
  for (size_t i = 0; i < b.n; i++) {
    b.data[i] ^= (unsigned char)(1 << i % 8);
    refused(s, b, "");
    b.data[i] ^= (unsigned char)(1 << i % 8);
    if (i % 64 == 0) expect_state(s, b);
  }
  expect_state(s, b);
  kf_scheduler_free(s);
  free(b.data);
}

static void test_every_length(void **state) {
  (void)state;
  bytes b;
  kf_scheduler *s = small(&b);
  for (size_t n = 0; n < b.n; n++) {
    unsigned char *exact = malloc(n ? n : 1); /* so that whoever reads on is seen */
    assert_non_null(exact);
    memcpy(exact, b.data, n);
    refused(s, (bytes){exact, n}, n < 24 ? "not a scheduler's state" : "cut off or added to");
    free(exact);
  }
  unsigned char *longer = calloc(1, b.n + 8);
  memcpy(longer, b.data, b.n);
  refused(s, (bytes){longer, b.n + 1}, "added to");
  refused(s, (bytes){longer, b.n + 8}, "added to");
  free(longer);
  expect_state(s, b);
  kf_scheduler_free(s);
  free(b.data);
}

static void test_other_schedulers(void **state) {
  (void)state;
  bytes b, own;
  kf_scheduler *s = small(&b);
  const kf_config plain = {0}; /* in place, gcc 12 misses braces */
  struct {
    kf_scheduler *s;
    const char *sentence;
  } other[] = {
    {create(3, "DiT-S", plain), "the state of 2 ranks, expected 3"},
    {create(1, "DiT-S", plain), "the state of 2 ranks, expected 1"},
    {create(2, "DiT-B", plain), "another model"},
    {create(2, "DiT-S", (kf_config){.gamma = 0.5}), "another model"},
    {create(2, "DiT-S", (kf_config){.cluster = "free"}), "another model"},
  };
  for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
    own = saved(other[i].s);
    refused(other[i].s, b, other[i].sentence);
    expect_state(other[i].s, own);
    free(own.data);
    kf_scheduler_free(other[i].s);
  }
  put(b, 1, 3);
  repair(b);
  refused(s, b, "version 3, expected version 2: a later knapformer wrote it");
  put(b, 1, 1);
  repair(b);
  refused(s, b, "version 1, expected version 2");
  put(b, 1, 2);
  put(b, 3, 1u << 31);
  repair(b);
  refused(s, b, "the state of 2147483648 ranks");
  put(b, 3, 2);
  repair(b);
  OK(kf_scheduler_restore(s, "x", b.data, b.n));
  kf_scheduler_free(s);
  free(b.data);
}

/* -------------------------------------------------------------------------- files */

/* A state_file: none yet, one, a broken one; and the cost that its scheduler began with. */
static void test_file(void **state) {
  (void)state;
  char path[] = "state-XXXXXX";
  int found = 7;
  kf_cost start = {.heads = 5};
  bytes b;
  kf_scheduler *s = small(&b), *fresh = create(2, "DiT-S", (kf_config){.rebalance_interval = 2});
  close(mkstemp(path));
  unlink(path);
  OK(kf_scheduler_restore_file(fresh, path));
  OK(kf_scheduler_restore_file(fresh, ""));
  OK(kf_scheduler_save_file(fresh, ""));
  OK(kf_scheduler_read_start("", &start, &found));
  assert_int_equal(found, 0);
  OK(kf_scheduler_read_start(path, &start, &found));
  assert_true(found == 0 && start.linear_s == 0);
  OK(kf_scheduler_save_file(s, path));
  OK(kf_scheduler_restore_file(fresh, path));
  expect_state(fresh, b);
  OK(kf_scheduler_read_start(path, &start, &found));
  assert_true(found == 1 && start.heads == 5); /* what cannot be measured is left alone */
  assert_true(start.linear_s == s->start.linear_s && start.quadratic_s == s->start.quadratic_s);
  assert_true(start.linear_s != kf_scheduler_metrics(s)->cost.linear_s); /* which is learned */
  assert_true(start.cluster.inter_Bps == s->start.cluster.inter_Bps);
  OK(kf_file_replace(path, b.data, b.n - 1));
  assert_int_equal(kf_scheduler_restore_file(fresh, path), KF_EINVAL);
  assert_non_null(strstr(kf_last_error(), "it was cut off"));
  assert_int_equal(kf_scheduler_read_start(path, &start, &found), KF_EINVAL);
  assert_ptr_equal(strstr(kf_last_error(), "state_file: "), kf_last_error());
  uint64_t nothing[4] = {0, 2, sizeof nothing}; /* a whole state of no fields */
  kf_cost before = start;
  memcpy(nothing, b.data, sizeof *nothing);
  nothing[3] = kf_hash_bytes(KF_HASH_START, nothing, 3 * sizeof *nothing);
  OK(kf_file_replace(path, nothing, sizeof nothing));
  assert_int_equal(kf_scheduler_read_start(path, &start, &found), KF_EINVAL);
  assert_non_null(strstr(kf_last_error(), "a state that no scheduler can be in"));
  assert_memory_equal(&start, &before, sizeof start);
  OK(kf_file_replace(path, "", 0));
  assert_int_equal(kf_scheduler_restore_file(fresh, path), KF_EINVAL);
  expect_state(fresh, b);
  assert_int_equal(kf_scheduler_restore_file(fresh, "/dev/zero"), KF_EIO);
  assert_int_equal(kf_scheduler_save_file(s, "nowhere/state"), KF_EIO);
  assert_ptr_equal(strstr(kf_last_error(), "state_file: cannot write"), kf_last_error());
  assert_int_equal(kf_scheduler_read_start(path, NULL, &found), KF_EINVAL);
  unlink(path);
  kf_scheduler_free(s);
  kf_scheduler_free(fresh);
  free(b.data);
}

/* ------------------------------------------------------------ behind the checksum */

/* Whatever a scheduler holds that was restored, it goes on: plans, sane numbers, a state to
** save. */
static void expect_usable(kf_scheduler *s) {
  training t = training_of(s, "g1b2i256f1s0,g1b1i512f14s1", 2);
  t.clock.cost.linear_s = 2e-7;
  t.clock.cost.quadratic_s = 1e-11;
  for (int i = 0; i < 5; i++) {
    OK(training_step(&t));
    const kf_metrics *m = kf_scheduler_metrics(s);
    for (int r = 0; r < 2; r++) assert_true(m->speed[r] >= 1e-6 && m->speed[r] <= 1e6);
    assert_true(isfinite(m->cost.linear_s) && m->cost.linear_s >= 0);
    assert_true(isfinite(m->cost.quadratic_s) && m->cost.quadratic_s >= 0);
    assert_true(isfinite(m->cost.constant_s) && m->cost.constant_s >= 0);
    assert_true(isfinite(m->noise) && isfinite(m->mape) && isfinite(m->overhead_s));
    for (int c = 0; c < m->n_corrections; c++) assert_true(m->correction[c].correction > 0);
  }
  bytes b = saved(s);
  OK(kf_scheduler_restore(s, "again", b.data, b.n));
  expect_state(s, b);
  free(b.data);
}

/* Random words behind a checksum that fits: refused with the state as it was, or good enough. */
static void test_repaired(void **state) {
  (void)state;
  bytes b;
  dice d = {1};
  int n_refused = 0, n_taken = 0;
  kf_scheduler *s = small(&b);
  size_t n_words = b.n / WORD;
  static const double odd[] = {0,      -0.0,  1,    -1,    NAN,   INFINITY, -INFINITY, 1e-300,
                               5e-324, 1e300, 1e30, -1e30, 1e-30, 0.5,      1.7e308,   1e10};
  static const int64_t whole[] = {0, 1, -1, INT64_MAX, INT64_MIN, INT32_MAX, 1 << 20, 24, 25, 2};
  for (int i = 0; i < 2500; i++) {
    bytes bad = {malloc(b.n), b.n};
    assert_non_null(bad.data);
    memcpy(bad.data, b.data, b.n);
    for (int64_t k = dice_one_in(&d, 3) ? 1 + dice_int(&d, 30) : 1; k > 0; k--) {
      size_t word =
        5 + (size_t)(i < (int)n_words - 6 && k == 1 ? i : dice_int(&d, (int64_t)n_words - 6));
      uint64_t value = dice_next(&d);
      int64_t kind = dice_int(&d, 3);
      if (kind == 0) memcpy(&value, &odd[dice_int(&d, sizeof odd / sizeof *odd)], WORD);
      if (kind == 1) value = (uint64_t)whole[dice_int(&d, sizeof whole / sizeof *whole)];
      put(bad, word, value);
    }
    repair(bad);
    kf_status status = kf_scheduler_restore(s, "run.state", bad.data, bad.n);
    if (status) {
      assert_int_equal(status, KF_EINVAL);
      n_refused++;
      if (i % 50 == 0) expect_state(s, b);
    } else {
      n_taken++;
      expect_usable(s);
      OK(kf_scheduler_restore(s, "run.state", b.data, b.n));
    }
    free(bad.data);
  }
  expect_state(s, b);
  print_message("%d refused, %d taken\n", n_refused, n_taken);
  assert_true(n_refused > 500 && n_taken > 100);
  kf_scheduler_free(s);
  free(b.data);
}

/* ------------------------------------------------------------- other cost models */

/* What history has learned, a static scheduler keeps, and plans as ever; and back again. */
static void test_static(void **state) {
  (void)state;
  static run r;
  kf_config history = {.rebalance_interval = 5},
            fixed = {.rebalance_interval = 5, .cost_model = KF_COST_STATIC};
  run_all(&r, history);
  kf_scheduler *s = create(4, "flux", fixed), *plain = create(4, "flux", fixed),
               *back = create(4, "flux", history);
  bytes learned = r.state[STEPS - 1];
  OK(kf_scheduler_restore(s, "x", learned.data, learned.n));
  training t = training_of(plain, mix, 7);
  for (int i = 0; i < 30; i++) {
    kf_batch *batch;
    const kf_plan *p, *q;
    OK(training_batch(&t, &batch));
    OK(kf_scheduler_plan(s, batch, &p));
    OK(kf_scheduler_plan(plain, batch, &q));
    assert_true(p->hash == q->hash);
    for (int rank = 0; rank < 4; rank++)
      OK(kf_scheduler_update_stats(s, rank, p->compute_s[rank] + 0.01, NULL));
    t.step++;
    kf_batch_free(batch);
  }
  for (int rank = 0; rank < 4; rank++) assert_true(kf_scheduler_metrics(s)->speed[rank] == 1);
  bytes b = saved(s);
  OK(kf_scheduler_restore(back, "x", b.data, b.n));
  expect_state(back, b);
  t = training_of(back, mix, 8);
  for (int i = 0; i < 20; i++) OK(training_step(&t));
  assert_true(kf_scheduler_metrics(back)->cost.linear_s != kf_scheduler_metrics(s)->cost.linear_s);
  free(b.data);
  run_free(&r);
  kf_scheduler_free(s);
  kf_scheduler_free(plain);
  kf_scheduler_free(back);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_goes_on),      cmocka_unit_test(test_metrics_go_on),
    cmocka_unit_test(test_format),       cmocka_unit_test(test_every_byte),
    cmocka_unit_test(test_every_length), cmocka_unit_test(test_other_schedulers),
    cmocka_unit_test(test_file),         cmocka_unit_test(test_repaired),
    cmocka_unit_test(test_static),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
