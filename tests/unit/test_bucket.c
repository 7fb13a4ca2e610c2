/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "batch/bucket.h"
#include "dice.h"
#include "fail_alloc.h"

#define N(array) ((int64_t)(sizeof(array) / sizeof((array)[0])))

static kf_bucket_options wan_options(kf_rule rule) {
  kf_bucket_options o = {.rule = rule, .mem_tokens = 160000, .match_len = 75600, .n_ranks = 16};
  assert_int_equal(kf_cost_preset("wan1.3b", "free", 16, 0.4, &o.cost), KF_OK);
  return o;
}

static kf_buckets *make(const kf_bucket_options *o, const int64_t *len, int64_t n) {
  kf_buckets *b = NULL;
  if (kf_bucket_create(o, len, NULL, n, &b)) fail_msg("%s", kf_last_error());
  return b;
}

static void names_are_names(void **state) {
  (void)state;
  for (int r = KF_RULE_TWO_TERM; r <= KF_RULE_PACKED; r++) {
    kf_rule back;
    assert_int_equal(kf_rule_parse(kf_rule_name((kf_rule)r), &back), KF_OK);
    assert_int_equal(back, r);
  }
  kf_rule out = KF_RULE_POWER;
  assert_int_equal(kf_rule_parse("powder", &out), KF_EINVAL);
  assert_string_equal(kf_last_error(),
                      "rule \"powder\": expected equal_token, power, two_term or packed");
  assert_int_equal(out, KF_RULE_POWER);
  assert_string_equal(kf_rule_name((kf_rule)9), "unknown");
}

/* The example of doc/batches.md, by hand: wan1.3b has work ~ S (1 + S/23040). */
static void sizes_by_hand(void **state) {
  (void)state;
  const int64_t len[] = {75600, 256, 3600, 8160, 32760, 256, 54000, 100000};
  const int64_t want_len[] = {256, 3600, 8160, 32760, 54000, 75600, 100000};
  const int64_t equal_token[] = {625, 44, 19, 4, 2, 2, 1};
  const int64_t two_term[] = {625, 44, 19, 4, 1, 1, 1}; /* 323662 / (S + S^2/23040): 1250, 77, .. */
  const int64_t p2[] = {625, 44, 19, 4, 1, 1, 1}; /* (75600/S)^2 = 87210, 441, 85.8, 5.3, .. */
  const int64_t p1[] = {295, 21, 9, 2, 1, 1, 1};  /* 75600/S */
  kf_bucket_options o = wan_options(KF_RULE_EQUAL_TOKEN);
  kf_buckets *e = make(&o, len, N(len));
  o.rule = KF_RULE_TWO_TERM;
  kf_buckets *t = make(&o, len, N(len));
  o.rule = KF_RULE_POWER, o.power = KF_POWER_GIVEN, o.p = 2;
  kf_buckets *q = make(&o, len, N(len));
  o.p = 1;
  kf_buckets *l = make(&o, len, N(len));
  assert_int_equal(t->n, N(want_len));
  for (int64_t i = 0; i < t->n; i++) {
    assert_int_equal(t->bucket[i].len, want_len[i]);
    assert_int_equal(t->bucket[i].count, want_len[i] == 256 ? 2 : 1);
    assert_int_equal(e->bucket[i].batch_size, equal_token[i]);
    assert_int_equal(t->bucket[i].batch_size, two_term[i]);
    assert_int_equal(q->bucket[i].batch_size, p2[i]);
    assert_int_equal(l->bucket[i].batch_size, p1[i]);
    assert_true(t->bucket[i].work_s == kf_cost_work(&o.cost, want_len[i]));
  }
  assert_true(t->comp_s == kf_cost_work(&o.cost, 75600) && t->match_len == 75600 && t->p == 0);
  assert_true(q->p == 2 && l->p == 1 && t->mem_tokens == 160000);
  kf_bucket_free(e), kf_bucket_free(t), kf_bucket_free(q), kf_bucket_free(l);
}

/* Whole quotients must not be lost to rounding: B of match_len / k is k, if work is linear. */
static void whole_quotients_are_whole(void **state) {
  (void)state;
  kf_bucket_options o = wan_options(KF_RULE_TWO_TERM);
  o.mem_tokens = 1 << 30;
  o.cost.quadratic_s = 0;
  for (int64_t k = 1; k <= 2000; k++) {
    int64_t len = 37;
    o.match_len = len * k;
    o.rule = KF_RULE_TWO_TERM;
    kf_buckets *t = make(&o, &len, 1);
    o.rule = KF_RULE_POWER, o.power = KF_POWER_GIVEN, o.p = 1;
    kf_buckets *p = make(&o, &len, 1);
    o.p = 2;
    kf_buckets *q = make(&o, &len, 1);
    assert_int_equal(t->bucket[0].batch_size, k);
    assert_int_equal(p->bucket[0].batch_size, k);
    assert_int_equal(q->bucket[0].batch_size, k * k);
    kf_bucket_free(t), kf_bucket_free(p), kf_bucket_free(q);
  }
}

static void seconds_are_as_good_as_a_length(void **state) {
  (void)state;
  const int64_t len[] = {256, 1000, 3600, 8160, 20000, 32760, 54000};
  for (int rule = KF_RULE_TWO_TERM; rule <= KF_RULE_PACKED; rule++) {
    kf_bucket_options o = wan_options((kf_rule)rule);
    o.cost.constant_s = 0.001;
    kf_buckets *by_len = make(&o, len, N(len));
    o.comp_s = kf_cost_work(&o.cost, o.match_len);
    o.match_len = 0;
    kf_buckets *by_s = make(&o, len, N(len));
    assert_true(fabs(by_s->match_len / 75600 - 1) < 1e-12);
    assert_true(by_s->comp_s == by_len->comp_s);
    for (int64_t i = 0; i < N(len); i++)
      assert_int_equal(by_s->bucket[i].batch_size, by_len->bucket[i].batch_size);
    kf_bucket_free(by_len), kf_bucket_free(by_s);
  }
}

static void equal_token_needs_no_compute_limit(void **state) {
  (void)state;
  const int64_t len[] = {100, 1000};
  kf_bucket_options o = wan_options(KF_RULE_EQUAL_TOKEN);
  o.match_len = 0;
  kf_buckets *b = make(&o, len, 2);
  assert_true(b->comp_s == 0 && b->match_len == 0);
  assert_int_equal(b->bucket[1].batch_size, 160);
  kf_bucket_free(b);
}

static void a_histogram_is_as_good_as_a_list(void **state) {
  (void)state;
  const int64_t len[] = {500, 100, 500, 900}, count[] = {3, 2, 4, 1};
  const int64_t all[] = {500, 500, 500, 100, 100, 500, 500, 500, 500, 900};
  kf_bucket_options o = wan_options(KF_RULE_POWER);
  o.mem_tokens = 2000, o.match_len = 900;
  kf_buckets *a, *b = make(&o, all, N(all));
  assert_int_equal(kf_bucket_create(&o, len, count, N(len), &a), KF_OK);
  assert_int_equal(a->n, 3);
  assert_true(a->n == b->n && a->p == b->p);
  for (int64_t i = 0; i < a->n; i++)
    assert_memory_equal(&a->bucket[i], &b->bucket[i], sizeof *a->bucket);
  kf_bucket_free(a), kf_bucket_free(b);
}

static void no_lengths_make_no_buckets(void **state) {
  (void)state;
  for (int rule = KF_RULE_TWO_TERM; rule <= KF_RULE_PACKED; rule++) {
    kf_bucket_options o = wan_options((kf_rule)rule);
    kf_buckets *b = make(&o, NULL, 0);
    assert_int_equal(b->n, 0);
    kf_bucket_free(b);
  }
  kf_bucket_free(NULL);
}

/* ------------------------------------------------------------------------------- p */

/* The fitted p is the slope of what is a power law, and between 1 and 2 of what is not. */
static void fits_p(void **state) {
  (void)state;
  const int64_t len[] = {400, 1000, 7000, 30000, 100000};
  kf_bucket_options o = wan_options(KF_RULE_POWER);
  o.power = KF_POWER_FITTED;
  kf_buckets *b = make(&o, len, N(len));
  double xx = 0, xy = 0, mx = 0, my = 0;
  for (int i = 0; i < 5; i++) {
    mx += log((double)len[i]) / 5;
    my += log(kf_cost_work(&o.cost, len[i])) / 5;
  }
  for (int i = 0; i < 5; i++) {
    double x = log((double)len[i]) - mx;
    xx += x * x;
    xy += x * (log(kf_cost_work(&o.cost, len[i])) - my);
  }
  assert_true(fabs(b->p - xy / xx) < 1e-12);
  kf_bucket_free(b);
  o.cost.linear_s = 0;
  b = make(&o, len, N(len));
  assert_true(fabs(b->p - 2) < 1e-12);
  kf_bucket_free(b);
  b = make(&o, len, 1); /* one length has no slope */
  assert_true(b->p == 1);
  kf_bucket_free(b);
}

/* The imbalance of steps drawn at random from the batches that p makes, by drawing them. */
static double drawn_imbalance(const kf_bucket_options *options, const int64_t *len, int64_t n,
                              double p) {
  kf_bucket_options o = *options;
  o.power = KF_POWER_GIVEN, o.p = p;
  kf_buckets *b = make(&o, len, n);
  double *work = calloc((size_t)n, sizeof *work), sum = 0;
  int64_t m = 0;
  for (int64_t i = 0; i < b->n; i++)
    for (int64_t left = b->bucket[i].count, k; left > 0; left -= k) {
      k = left < b->bucket[i].batch_size ? left : b->bucket[i].batch_size;
      work[m++] = (double)k * b->bucket[i].work_s;
    }
  dice d = {7};
  enum { DRAWS = 40000 };
  for (int i = 0; i < DRAWS; i++) {
    double total = 0, most = 0;
    for (int r = 0; r < o.n_ranks; r++) {
      double w = work[dice_int(&d, m)];
      total += w;
      most = fmax(most, w);
    }
    sum += 1 - total / o.n_ranks / most;
  }
  free(work);
  kf_bucket_free(b);
  return sum / DRAWS;
}

/* Is every batch of several samples within M_comp by the cost? */
static bool keeps_to_comp(const kf_buckets *b) {
  bool keeps = true;
  for (int64_t i = 0; i < b->n; i++) {
    const kf_bucket *k = &b->bucket[i];
    keeps &= k->batch_size == 1 || (double)k->batch_size * k->work_s <= b->comp_s * (1 + 1e-12);
  }
  return keeps;
}

static bool p_keeps_to_comp(const kf_bucket_options *options, const int64_t *len, int64_t n,
                            double p) {
  kf_bucket_options o = *options;
  o.power = KF_POWER_GIVEN, o.p = p;
  kf_buckets *b = make(&o, len, n);
  bool keeps = keeps_to_comp(b);
  kf_bucket_free(b);
  return keeps;
}

static void chooses_the_p_of_least_imbalance(void **state) {
  (void)state;
  kf_batch *wan;
  assert_int_equal(kf_mix_create("wan", 16, 3, &wan), KF_OK);
  for (int32_t n_ranks = 4; n_ranks <= 64; n_ranks *= 4) {
    kf_bucket_options o = wan_options(KF_RULE_POWER);
    o.n_ranks = n_ranks;
    kf_buckets *b = make(&o, wan->len, wan->n_seqs);
    double best = drawn_imbalance(&o, wan->len, wan->n_seqs, b->p);
    assert_true(keeps_to_comp(b));
    for (double p = 0.5; p <= 3; p += 0.05)
      if (p_keeps_to_comp(&o, wan->len, wan->n_seqs, p) &&
          drawn_imbalance(&o, wan->len, wan->n_seqs, p) < best - 0.003)
        fail_msg("%d ranks: p %g is better than %g", n_ranks, p, b->p);
    kf_bucket_free(b);
  }
  kf_batch_free(wan);
}

/* Whatever the cost and the limits, a chosen p keeps to M_comp if 0.5 does. */
static void a_chosen_p_keeps_to_comp(void **state) {
  (void)state;
  dice d = {11};
  int n_bound = 0; /* times that a larger p would not have kept to it */
  for (int round = 0; round < 300; round++) {
    int64_t len[40], n = 1 + dice_int(&d, N(len));
    kf_bucket_options o = wan_options(KF_RULE_POWER);
    for (int64_t i = 0; i < n; i++) len[i] = 1 + dice_int(&d, 1 << (4 + i % 13));
    o.cost.quadratic_s *= dice_int(&d, 4);
    o.cost.constant_s = o.cost.linear_s * (double)dice_int(&d, 3) * 500;
    o.match_len = 1 + dice_int(&d, 100000);
    kf_buckets *b = make(&o, len, n);
    n_bound += !p_keeps_to_comp(&o, len, n, 3);
    if (p_keeps_to_comp(&o, len, n, 0.5) && !keeps_to_comp(b))
      fail_msg("round %d: p %g is above M_comp", round, b->p);
    kf_bucket_free(b);
  }
  assert_true(n_bound > 100);
}

/* One rank waits for nobody: nothing is gained by any p, and the fitted one stays. */
static void one_rank_takes_the_fitted_p(void **state) {
  (void)state;
  const int64_t len[] = {400, 1000, 7000, 30000, 70000};
  kf_bucket_options o = wan_options(KF_RULE_POWER);
  o.n_ranks = 1;
  kf_buckets *best = make(&o, len, N(len));
  o.power = KF_POWER_FITTED;
  kf_buckets *fitted = make(&o, len, N(len));
  assert_true(best->p == fitted->p);
  kf_bucket_free(best), kf_bucket_free(fitted);
}

/* Many distinct lengths are merged to choose p by; that must not move it far. */
static void many_lengths_choose_alike(void **state) {
  (void)state;
  enum { LENGTHS = 6000 };
  static int64_t many[LENGTHS], few[LENGTHS];
  for (int i = 0; i < LENGTHS; i++) {
    many[i] = 300 + 12 * i;
    few[i] = 300 + 12 * (i / 10 * 10 + 5);
  }
  kf_bucket_options o = wan_options(KF_RULE_POWER);
  kf_buckets *a = make(&o, many, LENGTHS), *b = make(&o, few, LENGTHS);
  assert_true(a->n == LENGTHS && b->n == LENGTHS / 10);
  double at_a = drawn_imbalance(&o, few, LENGTHS, a->p),
         at_b = drawn_imbalance(&o, few, LENGTHS, b->p);
  assert_true(at_a <= at_b + 0.01);
  kf_bucket_free(a), kf_bucket_free(b);
}

/* ----------------------------------------------------------------------- refusals */

static void refuses(kf_bucket_options o, kf_status status, const char *sentence) {
  const int64_t len[] = {100, 200000, 300};
  kf_buckets *b = NULL;
  assert_int_equal(kf_bucket_create(&o, len, NULL, 3, &b), status);
  assert_string_equal(kf_last_error(), sentence);
  assert_null(b);
}

static void refuses_bad_options(void **state) {
  (void)state;
  kf_bucket_options good = wan_options(KF_RULE_TWO_TERM), o = good;
  refuses(
    good, KF_EINFEASIBLE,
    "1 of 3 samples exceed the 160000 tokens that memory holds: the longest, sample 1, has 200000");
  o = good, o.mem_tokens = 0;
  refuses(o, KF_EINVAL, "mem_tokens is 0, expected 1 to 4503599627370496");
  o = good, o.comp_s = 1;
  refuses(o, KF_EINVAL, "match_len is 75600 and comp_s 1, expected one of them");
  o = good, o.match_len = 0;
  refuses(o, KF_EINVAL, "neither match_len nor comp_s is given, expected one of them");
  o = good, o.match_len = -1;
  refuses(o, KF_EINVAL, "match_len is -1, expected 1 to 4294967296 or 0 for none");
  o = good, o.comp_s = NAN;
  refuses(o, KF_EINVAL, "comp_s is nan, expected 1e-30 to 1e+30, or 0 for none");
  o = good, o.power = KF_POWER_GIVEN, o.p = 4;
  refuses(o, KF_EINVAL, "p is 4, expected 0.5 to 3");
  o = good, o.power = (kf_power)3;
  refuses(o, KF_EINVAL, "power is 3, expected a kf_power from 0 to 2");
  o = good, o.rule = (kf_rule)4;
  refuses(o, KF_EINVAL, "rule is 4, expected a kf_rule from 0 to 3");
  o = good, o.n_ranks = 0;
  refuses(o, KF_EINVAL, "n_ranks is 0, expected 1 to 1048576");
  o = good, o.cost.linear_s = -1;
  refuses(o, KF_EINVAL, "cost: linear_s is -1, expected 0 to 1e+10");
  o = good, o.cost.quadratic_s = INFINITY;
  refuses(o, KF_EINVAL, "cost: quadratic_s is inf, expected 0 to 1e+10");
  o = good, o.cost.linear_s = o.cost.quadratic_s = 0;
  refuses(o, KF_EINVAL, "cost: linear_s 0 and quadratic_s 0, expected one of them above 1e-30");
  o = good, o.mem_tokens = 300000, o.match_len = 0, o.comp_s = 1, o.cost.constant_s = 2;
  refuses(o, KF_EINFEASIBLE,
          "comp_s is 1, expected more than constant_s, the 2 seconds that any sequence takes");
  o.rule = KF_RULE_EQUAL_TOKEN; /* does not keep to it */
  const int64_t len[] = {100};
  kf_buckets *b = make(&o, len, 1);
  assert_true(b->bucket[0].batch_size == 3000 && b->comp_s == 1 && b->match_len == 0);
  kf_bucket_free(b);
}

static void refuses_bad_lengths(void **state) {
  (void)state;
  kf_bucket_options o = wan_options(KF_RULE_TWO_TERM);
  const int64_t zero[] = {5, 0}, huge[] = {5, 7, KF_MAX_LEN + 1}, good[] = {5}, none[] = {0};
  const int64_t most[] = {KF_MAX_SEQS + 1};
  kf_buckets *b = NULL;
  assert_int_equal(kf_bucket_create(&o, zero, NULL, 2, &b), KF_EINVAL);
  assert_string_equal(kf_last_error(), "sample 1: a length of 0, expected 1 to 4294967296");
  assert_int_equal(kf_bucket_create(&o, huge, NULL, 3, &b), KF_EINVAL);
  assert_string_equal(kf_last_error(),
                      "sample 2: a length of 4294967297, expected 1 to 4294967296");
  assert_int_equal(kf_bucket_create(&o, good, none, 1, &b), KF_EINVAL);
  assert_string_equal(kf_last_error(), "length 5 occurs 0 times, expected 1 or more, and at most "
                                       "1073741824 samples in all");
  assert_int_equal(kf_bucket_create(&o, good, most, 1, &b), KF_EINVAL);
  assert_int_equal(kf_bucket_create(&o, NULL, NULL, 1, &b), KF_EINVAL);
  assert_int_equal(kf_bucket_create(&o, good, NULL, -1, &b), KF_EINVAL);
  assert_int_equal(kf_bucket_create(NULL, good, NULL, 1, &b), KF_EINVAL);
  assert_int_equal(kf_bucket_create(&o, good, NULL, 1, NULL), KF_EINVAL);
  const int64_t several[] = {170000, 5, 190000, 180000}, times[] = {1, 7, 2, 3};
  assert_int_equal(kf_bucket_create(&o, several, times, 4, &b), KF_EINFEASIBLE);
  assert_string_equal(kf_last_error(), "6 of 13 samples exceed the 160000 tokens that memory "
                                       "holds: the longest, sample 2, has 190000");
  const int64_t longest[] = {KF_MAX_LEN}, often[] = {KF_MAX_SEQS};
  o.mem_tokens = KF_MAX_TOKENS;
  assert_int_equal(kf_bucket_create(&o, longest, often, 1, &b), KF_EINVAL);
  assert_string_equal(kf_last_error(), "more than 4503599627370496 tokens up to sample 0, expected "
                                       "at most that many in all");
  assert_null(b);
}

static void runs_out_of_memory(void **state) {
  (void)state;
  const int64_t len[] = {100, 2000, 300};
  kf_bucket_options o = wan_options(KF_RULE_TWO_TERM);
  for (long k = 1;; k++) {
    kf_buckets *b = NULL;
    fail_alloc(k);
    kf_status status = kf_bucket_create(&o, len, NULL, 3, &b);
    if (fail_alloc(0) < k) {
      kf_bucket_free(b);
      break;
    }
    assert_int_equal(status, KF_ENOMEM);
    assert_null(b);
  }
}

/* ------------------------------------------------------------------------- memory */

static void bytes_become_tokens(void **state) {
  (void)state;
  kf_model wan = {1536, 30, 12};
  kf_activations a;
  int64_t tokens = -1;
  assert_int_equal(kf_activations_static(&wan, 2, 0, &a), KF_OK);
  assert_true(a.token_bytes == 34.0 * 1536 * 30 && a.fixed_bytes == 0);
  assert_int_equal(kf_activations_static(&wan, 2, 1, &a), KF_OK);
  assert_true(a.token_bytes == 2.0 * 1536 * 30 + 34.0 * 1536);
  a = (kf_activations){.token_bytes = 1000, .fixed_bytes = 5000};
  assert_int_equal(kf_activations_tokens(&a, 16999, &tokens), KF_OK);
  assert_int_equal(tokens, 11);
  assert_int_equal(kf_activations_tokens(&a, 1e300, &tokens), KF_OK);
  assert_int_equal(tokens, KF_MAX_TOKENS);
  tokens = -1;
  assert_int_equal(kf_activations_tokens(&a, 5999, &tokens), KF_EINFEASIBLE);
  assert_string_equal(kf_last_error(),
                      "5999 bytes hold no token beside the fixed 5000 bytes: a token takes 1000");
  const struct {
    kf_activations a;
    double limit;
  } bad[] = {{{0, 0}, 1},   {{NAN, 0}, 1}, {{1, -1}, 1},
             {{1, NAN}, 1}, {{1, 0}, 0},   {{1, 0}, INFINITY}};
  for (int64_t i = 0; i < N(bad); i++)
    assert_int_equal(kf_activations_tokens(&bad[i].a, bad[i].limit, &tokens), KF_EINVAL);
  assert_int_equal(kf_activations_static(&wan, 0, 0, &a), KF_EINVAL);
  assert_int_equal(kf_activations_static(&(kf_model){0, 1, 1}, 2, 0, &a), KF_EINVAL);
  assert_int_equal(tokens, -1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(names_are_names),
    cmocka_unit_test(sizes_by_hand),
    cmocka_unit_test(whole_quotients_are_whole),
    cmocka_unit_test(seconds_are_as_good_as_a_length),
    cmocka_unit_test(equal_token_needs_no_compute_limit),
    cmocka_unit_test(a_histogram_is_as_good_as_a_list),
    cmocka_unit_test(no_lengths_make_no_buckets),
    cmocka_unit_test(fits_p),
    cmocka_unit_test(chooses_the_p_of_least_imbalance),
    cmocka_unit_test(a_chosen_p_keeps_to_comp),
    cmocka_unit_test(one_rank_takes_the_fitted_p),
    cmocka_unit_test(many_lengths_choose_alike),
    cmocka_unit_test(refuses_bad_options),
    cmocka_unit_test(refuses_bad_lengths),
    cmocka_unit_test(runs_out_of_memory),
    cmocka_unit_test(bytes_become_tokens),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
