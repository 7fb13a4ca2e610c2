/* SPDX-License-Identifier: Apache-2.0 */
/* What a sampler keeps and saves; its promises in general are
** tests/property/property_sampler.c's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "dice.h"

enum { SAMPLES = 600, RANKS = 4 };

static int64_t len[SAMPLES];

static kf_sampler_options options_of(kf_rule rule) {
  dice d = {9};
  for (int i = 0; i < SAMPLES; i++) len[i] = 100 + dice_int(&d, 900);
  return (kf_sampler_options){.bucket = {.rule = rule,
                                         .cost = {.linear_s = 1e-3, .quadratic_s = 1e-6},
                                         .mem_tokens = 8000,
                                         .match_len = 4000,
                                         .n_ranks = RANKS},
                              .seed = 3};
}

static kf_sampler *create(const kf_sampler_options *o) {
  kf_sampler *s = NULL;
  if (kf_sampler_create(o, len, SAMPLES, &s)) fail_msg("%s", kf_last_error());
  return s;
}

static size_t saved_bytes(const kf_sampler *s) {
  void *state;
  size_t n;
  assert_int_equal(kf_sampler_save(s, &state, &n), KF_OK);
  free(state);
  return n;
}

/* Changes that arrange nothing leave one trace in all, so that a refit every few steps does not
** make the state grow; and the cost that was set last counts all the same. */
static void idle_changes_leave_one_trace(void **state) {
  (void)state;
  kf_sampler_options o = options_of(KF_RULE_PACKED);
  kf_sampler *s = create(&o);
  kf_cost cost = o.bucket.cost;
  const kf_sampled *step;
  for (int i = 0; i < 5; i++) {
    cost.quadratic_s *= 1.0001;
    assert_int_equal(kf_sampler_set_cost(s, kf_sampler_step(s), &cost), KF_OK);
    assert_int_equal(saved_bytes(s), 96 + 32);
    assert_true(kf_sampler_buckets(s)->comp_s == kf_cost_work(&cost, 4000));
    assert_int_equal(kf_sampler_next(s, &step), KF_OK);
  }
  cost.quadratic_s *= 3; /* takes the place of the idle one */
  assert_int_equal(kf_sampler_set_cost(s, kf_sampler_step(s), &cost), KF_OK);
  assert_int_equal(saved_bytes(s), 96 + 32);
  cost.quadratic_s *= 3;
  assert_int_equal(kf_sampler_set_cost(s, kf_sampler_step(s), &cost), KF_OK);
  assert_int_equal(saved_bytes(s), 96 + 64);
  assert_int_equal(kf_sampler_set_epoch(s, 1), KF_OK);
  assert_int_equal(saved_bytes(s), 96);
  kf_sampler_free(s);
}

/* Idle and other changes in turn: what is saved leads to the same steps. */
static void goes_on_after_idle_changes(void **state) {
  (void)state;
  for (int rule = KF_RULE_TWO_TERM; rule <= KF_RULE_PACKED; rule++) {
    kf_sampler_options o = options_of((kf_rule)rule);
    kf_sampler *a = create(&o), *b = create(&o);
    kf_cost cost = o.bucket.cost;
    const kf_sampled *x, *y;
    void *bytes;
    size_t n;
    for (int i = 0; i < 6; i++) {
      cost.quadratic_s *= i % 3 == 2 ? 2 : 1.0001;
      assert_int_equal(kf_sampler_set_cost(a, kf_sampler_step(a), &cost), KF_OK);
      assert_int_equal(kf_sampler_next(a, &x), KF_OK);
    }
    assert_int_equal(kf_sampler_save(a, &bytes, &n), KF_OK);
    if (kf_sampler_restore(b, "state", bytes, n)) fail_msg("%s", kf_last_error());
    assert_true(kf_sampler_hash(a) == kf_sampler_hash(b));
    do {
      assert_int_equal(kf_sampler_next(a, &x), KF_OK);
      assert_int_equal(kf_sampler_next(b, &y), KF_OK);
      assert_int_equal(!x, !y);
      if (!x) break;
      assert_int_equal(x->batch.n_seqs, y->batch.n_seqs);
      assert_memory_equal(x->sample, y->sample, (size_t)x->batch.n_seqs * sizeof *x->sample);
      assert_memory_equal(x->batch.rank_off, y->batch.rank_off, (RANKS + 1) * sizeof(int64_t));
    } while (true);
    free(bytes);
    kf_sampler_free(a), kf_sampler_free(b);
  }
}

/* An option that means nothing to the rule, or that says its default, makes no other sampler. */
static void knows_its_own_state(void **state) {
  (void)state;
  const struct {
    kf_rule rule;
    int64_t window;
    double p;
    bool same;
  } other[] = {{KF_RULE_PACKED, 1024, 0, true},
               {KF_RULE_PACKED, 1023, 0, false},
               {KF_RULE_TWO_TERM, 77, 0, true},
               {KF_RULE_TWO_TERM, 0, 2, true},
               {KF_RULE_POWER, 0, 2, false}};
  for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
    kf_sampler_options o = options_of(other[i].rule);
    kf_sampler *a = create(&o), *b;
    void *bytes;
    size_t n;
    o.window = other[i].window;
    if (other[i].p > 0) o.bucket.power = KF_POWER_GIVEN, o.bucket.p = other[i].p;
    b = create(&o);
    assert_int_equal(kf_sampler_save(a, &bytes, &n), KF_OK);
    assert_int_equal(kf_sampler_restore(b, "state", bytes, n), other[i].same ? KF_OK : KF_EINVAL);
    if (!other[i].same)
      assert_string_equal(kf_last_error(),
                          "state: the state of a sampler of other lengths or other "
                          "options: ranks, seed, rule, limits, mode, window or "
                          "keep_all");
    free(bytes);
    kf_sampler_free(a), kf_sampler_free(b);
  }
}

/* Packed: where less than a step is left at the end, the step before it is dealt again with it,
** rather than to drop up to as many samples as there are ranks. */
static void takes_a_step_back_rather_than_drop(void **state) {
  (void)state;
  kf_sampler_options o = options_of(KF_RULE_PACKED);
  kf_epoch e;
  o.bucket.n_ranks = 200;
  o.bucket.mem_tokens = 1000;
  o.bucket.match_len = 100000;
  o.window = 20;
  for (int i = 0; i < SAMPLES; i++) len[i] = 280 + i * 37 % 200; /* two or three a batch */
  kf_sampler *s = create(&o);
  assert_int_equal(kf_sampler_figures(s, &e), KF_OK);
  assert_int_equal(e.n_steps, 2);
  assert_int_equal(e.dropped_samples, 0);
  kf_sampler_free(s);
}

/* Ranks by the ten thousand, and a sample that keeps no company: no time may go by their square. */
static void deals_to_many_ranks(void **state) {
  (void)state;
  enum { MANY = 120000 };
  int64_t *many = calloc(MANY, sizeof *many);
  kf_sampler_options o = options_of(KF_RULE_PACKED);
  kf_epoch e;
  o.bucket.mem_tokens = 1000;
  o.bucket.match_len = 100000;
  o.window = 1 << 20;
  for (int kind = 0; kind < 3; kind++) {
    kf_sampler *s = NULL;
    o.bucket.n_ranks = kind == 0 ? MANY + 1 : 50000;
    for (int i = 0; i < MANY; i++) many[i] = kind == 2 ? 280 + i * 37 % 200 : 600;
    many[0] = 1; /* a batch that has no room for it is full; no other is */
    if (kf_sampler_create(&o, many, MANY, &s)) fail_msg("%s", kf_last_error());
    assert_int_equal(kf_sampler_figures(s, &e), KF_OK);
    if (kind < 2) assert_int_equal(e.n_steps, 2 * kind); /* one sample a batch */
    if (kind == 2) assert_true(e.n_steps >= 1 && e.dropped_samples == 0);
    assert_int_equal(e.n_samples + e.dropped_samples, MANY);
    kf_sampler_free(s);
  }
  free(many);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(idle_changes_leave_one_trace),
    cmocka_unit_test(goes_on_after_idle_changes),
    cmocka_unit_test(knows_its_own_state),
    cmocka_unit_test(takes_a_step_back_rather_than_drop),
    cmocka_unit_test(deals_to_many_ranks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
