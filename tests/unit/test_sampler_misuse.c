/* SPDX-License-Identifier: Apache-2.0 */
/*
** What bucket and sampler refuse, and by which sentence; and examples that can be counted by hand.
*/
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "dice.h"

#define N(array) (sizeof(array) / sizeof((array)[0]))

enum { SAMPLES = 60, RANKS = 4 };

/* Lengths 100, 200, .. 1000, six of each. */
static const int64_t *lengths(void) {
  static int64_t len[SAMPLES];
  for (int i = 0; i < SAMPLES; i++) len[i] = 100 * (1 + i % 10);
  return len;
}

static kf_sampler_options usual(void) {
  kf_sampler_options o = {0};
  o.bucket.cost = (kf_cost){.linear_s = 1e-6, .quadratic_s = 1e-9};
  o.bucket.mem_tokens = 2000;
  o.bucket.match_len = 1000;
  o.bucket.n_ranks = RANKS;
  return o;
}

static kf_sampler *sampler_of(const kf_sampler_options *o) {
  kf_sampler *s = NULL;
  if (kf_sampler_create(o, lengths(), SAMPLES, &s)) fail_msg("%s", kf_last_error());
  return s;
}

static const kf_sampled *next(kf_sampler *s) {
  const kf_sampled *k = NULL;
  if (kf_sampler_next(s, &k)) fail_msg("%s", kf_last_error());
  return k;
}

/* The sentence names what is wrong, its number, and what was expected. */
static void expect_sentence(const char *name, const char *number) {
  if (!strstr(kf_last_error(), name) || !strstr(kf_last_error(), number) ||
      !strstr(kf_last_error(), "expected"))
    fail_msg("\"%s\" does not name %s, %s and what was expected", kf_last_error(), name, number);
}

/* Bucket and sampler refuse the same options. */
static void refuse(kf_sampler_options o, const char *name, const char *number) {
  kf_sampler *s = (kf_sampler *)&o;
  kf_buckets *b = (kf_buckets *)&o;
  if (kf_sampler_create(&o, lengths(), SAMPLES, &s) != KF_EINVAL)
    fail_msg("%s %s was accepted", name, number);
  assert_ptr_equal(s, &o);
  expect_sentence(name, number);
  if (strcmp(name, "window") == 0 || strcmp(name, "mode") == 0) return;
  if (kf_bucket_create(&o.bucket, lengths(), NULL, SAMPLES, &b) != KF_EINVAL)
    fail_msg("bucket: %s %s was accepted", name, number);
  assert_ptr_equal(b, &o);
  expect_sentence(name, number);
}

/* -------------------------------------------------------------------------- options */

static void test_null(void **state) {
  (void)state;
  kf_sampler_options o = usual();
  kf_sampler *s = NULL;
  kf_buckets *b = NULL;
  kf_epoch e;
  kf_rule rule;
  void *data = NULL;
  size_t n = 0;
  assert_int_equal(kf_sampler_create(NULL, lengths(), SAMPLES, &s), KF_EINVAL);
  assert_int_equal(kf_sampler_create(&o, NULL, SAMPLES, &s), KF_EINVAL);
  assert_int_equal(kf_sampler_create(&o, lengths(), SAMPLES, NULL), KF_EINVAL);
  assert_int_equal(kf_bucket_create(NULL, lengths(), NULL, SAMPLES, &b), KF_EINVAL);
  assert_int_equal(kf_bucket_create(&o.bucket, NULL, NULL, SAMPLES, &b), KF_EINVAL);
  assert_int_equal(kf_bucket_create(&o.bucket, lengths(), NULL, SAMPLES, NULL), KF_EINVAL);
  assert_null(s);
  assert_null(b);
  s = sampler_of(&o);
  const kf_sampled *k = NULL;
  assert_int_equal(kf_sampler_set_epoch(NULL, 0), KF_EINVAL);
  assert_int_equal(kf_sampler_next(NULL, &k), KF_EINVAL);
  assert_int_equal(kf_sampler_next(s, NULL), KF_EINVAL);
  assert_int_equal(kf_sampler_set_cost(NULL, 0, &o.bucket.cost), KF_EINVAL);
  assert_int_equal(kf_sampler_set_cost(s, 0, NULL), KF_EINVAL);
  assert_int_equal(kf_sampler_save(NULL, &data, &n), KF_EINVAL);
  assert_int_equal(kf_sampler_save(s, NULL, &n), KF_EINVAL);
  assert_int_equal(kf_sampler_save(s, &data, NULL), KF_EINVAL);
  assert_int_equal(kf_sampler_restore(NULL, "x", "", 0), KF_EINVAL);
  assert_int_equal(kf_sampler_restore(s, "x", NULL, 8), KF_EINVAL);
  assert_int_equal(kf_sampler_figures(NULL, &e), KF_EINVAL);
  assert_int_equal(kf_sampler_figures(s, NULL), KF_EINVAL);
  assert_int_equal(kf_rule_parse(NULL, &rule), KF_EINVAL);
  assert_int_equal(kf_rule_parse("packed", NULL), KF_EINVAL);
  assert_null(data);
  assert_int_equal(kf_sampler_step(s), 0); /* none of these moved it */
  kf_sampler_free(s);
  kf_sampler_free(NULL);
  kf_bucket_free(NULL);
}

static void test_numbers(void **state) {
  (void)state;
#define BAD(name, field, value, number)                                                            \
  {                                                                                                \
    kf_sampler_options o = usual();                                                                \
    o.field = value;                                                                               \
    refuse(o, name, number);                                                                       \
  }
  BAD("mem_tokens", bucket.mem_tokens, 0, "0");
  BAD("mem_tokens", bucket.mem_tokens, -7, "-7");
  BAD("mem_tokens", bucket.mem_tokens, KF_MAX_TOKENS + 1, "4503599627370497");
  BAD("match_len", bucket.match_len, -3, "-3");
  BAD("match_len", bucket.match_len, KF_MAX_LEN + 1, "4294967297");
  BAD("window", window, -1, "-1");
  BAD("window", window, (1 << 20) + 1, "1048577");
  BAD("ranks", bucket.n_ranks, 0, "0");
  BAD("ranks", bucket.n_ranks, -2, "-2");
  BAD("ranks", bucket.n_ranks, KF_MAX_RANKS + 1, "1048577");
  BAD("rule", bucket.rule, 4, "4");
  BAD("rule", bucket.rule, -1, "-1");
  BAD("power", bucket.power, 3, "3");
  BAD("mode", mode, 3, "3");
  BAD("mode", mode, -1, "-1");
}

static void test_limits(void **state) {
  (void)state;
  kf_sampler_options o = usual();
  o.bucket.comp_s = 0.25;
  refuse(o, "match_len", "0.25");
  o.bucket.match_len = o.bucket.comp_s = 0;
  refuse(o, "match_len", "comp_s");
  static const double bad[] = {-1, NAN, INFINITY};
  static const char *const said[] = {"-1", "nan", "inf"};
  for (size_t i = 0; i < N(bad); i++) {
    o.bucket.comp_s = bad[i];
    refuse(o, "comp_s", said[i]);
    o.bucket.rule = KF_RULE_EQUAL_TOKEN;
    refuse(o, "comp_s", said[i]);
    o.bucket.rule = KF_RULE_TWO_TERM;
  }
  for (int i = 0; i < 5; i++) {
    static const double p[] = {0, 0.49, 3.01, NAN, -1};
    static const char *const number[] = {"0", "0.49", "3.01", "nan", "-1"};
    o = usual();
    o.bucket.rule = KF_RULE_POWER;
    o.bucket.power = KF_POWER_GIVEN;
    o.bucket.p = p[i];
    refuse(o, "p is", number[i]);
  }
}

static void test_cost(void **state) {
  (void)state;
  static const struct {
    const char *name;
    size_t at;
  } part[] = {{"linear_s", offsetof(kf_cost, linear_s)},
              {"quadratic_s", offsetof(kf_cost, quadratic_s)},
              {"constant_s", offsetof(kf_cost, constant_s)}};
  static const double bad[] = {-1, NAN, INFINITY};
  static const char *const number[] = {"-1", "nan", "inf"};
  kf_sampler_options o = usual();
  kf_sampler *s = sampler_of(&o);
  uint64_t hash = kf_sampler_hash(s);
  for (size_t i = 0; i < N(part); i++)
    for (size_t k = 0; k < N(bad); k++) {
      o = usual();
      memcpy((char *)&o.bucket.cost + part[i].at, &bad[k], sizeof bad[k]);
      refuse(o, part[i].name, number[k]);
      assert_int_equal(kf_sampler_set_cost(s, 0, &o.bucket.cost), KF_EINVAL);
      expect_sentence(part[i].name, number[k]);
    }
  o.bucket.cost = (kf_cost){0};
  refuse(o, "linear_s", "0");
  assert_int_equal(kf_sampler_set_cost(s, 0, &o.bucket.cost), KF_EINVAL);
  assert_true(kf_sampler_hash(s) == hash);
  kf_sampler_free(s);
}

/* A set_cost that leaves no room for a sequence is refused, and nothing changes. */
static void test_no_room(void **state) {
  (void)state;
  kf_sampler_options o = usual();
  o.bucket.match_len = 0;
  o.bucket.comp_s = 0.01;
  kf_sampler *s = sampler_of(&o), *t = NULL;
  kf_cost slow = {.linear_s = 1e-6, .constant_s = 0.02};
  uint64_t hash = kf_sampler_hash(s);
  assert_int_equal(kf_sampler_set_cost(s, 0, &slow), KF_EINFEASIBLE);
  assert_non_null(strstr(kf_last_error(), "0.02"));
  assert_true(kf_sampler_hash(s) == hash);
  assert_non_null(next(s));
  o.bucket.cost = slow;
  assert_int_equal(kf_sampler_create(&o, lengths(), SAMPLES, &t), KF_EINFEASIBLE);
  kf_sampler_free(s);
}

/* -------------------------------------------------------------------------- lengths */

static void test_lengths(void **state) {
  (void)state;
  static const struct {
    int64_t len;
    const char *number;
    kf_status status;
  } bad[] = {{0, "0", KF_EINVAL},
             {-5, "-5", KF_EINVAL},
             {KF_MAX_LEN + 1, "4294967297", KF_EINVAL},
             {2001, "2001", KF_EINFEASIBLE},
             {KF_MAX_LEN, "4294967296", KF_EINFEASIBLE}};
  kf_sampler_options o = usual();
  for (size_t i = 0; i < N(bad); i++)
    for (int rule = 0; rule < 4; rule++) {
      int64_t len[SAMPLES];
      kf_sampler *s = NULL;
      kf_buckets *b = NULL;
      memcpy(len, lengths(), sizeof len);
      len[37] = bad[i].len;
      o.bucket.rule = (kf_rule)rule;
      for (int k = 0; k < 2; k++) {
        kf_status status = k ? kf_bucket_create(&o.bucket, len, NULL, SAMPLES, &b)
                             : kf_sampler_create(&o, len, SAMPLES, &s);
        assert_int_equal(status, bad[i].status);
        assert_true(!s && !b);
        assert_non_null(strstr(kf_last_error(), "sample 37"));
        assert_non_null(strstr(kf_last_error(), bad[i].number));
        const char *want = status == KF_EINVAL ? "expected 1 to 4294967296" : "2000";
        if (!strstr(kf_last_error(), want)) fail_msg("%s", kf_last_error());
      }
    }
  kf_sampler *s = NULL;
  assert_int_equal(kf_sampler_create(&o, lengths(), -1, &s), KF_EINVAL);
  expect_sentence("length", "-1");
  assert_int_equal(kf_sampler_create(&o, lengths(), KF_MAX_SEQS + 1, &s), KF_EINVAL);
  expect_sentence("length", "1073741825");
}

static void test_counts(void **state) {
  (void)state;
  static const int64_t bad[] = {0, -4, KF_MAX_SEQS + 1};
  static const char *const number[] = {"0", "-4", "1073741825"};
  kf_sampler_options o = usual();
  for (size_t i = 0; i < N(bad); i++) {
    const int64_t len[] = {100, 200, 300}, count[] = {5, bad[i], 5};
    kf_buckets *b = NULL;
    assert_int_equal(kf_bucket_create(&o.bucket, len, count, 3, &b), KF_EINVAL);
    assert_null(b);
    expect_sentence("200", number[i]);
  }
}

static void test_rule_names(void **state) {
  (void)state;
  static const char *const name[] = {"two_term", "power", "equal_token", "packed"};
  static const char *const wrong[] = {"", "two-term", "TWO_TERM", "packe", "packed ", "0"};
  for (int i = 0; i < 4; i++) {
    kf_rule rule = (kf_rule)9;
    assert_string_equal(kf_rule_name((kf_rule)i), name[i]);
    assert_int_equal(kf_rule_parse(name[i], &rule), KF_OK);
    assert_int_equal(rule, i);
  }
  for (size_t i = 0; i < N(wrong); i++) {
    kf_rule rule = (kf_rule)9;
    assert_int_equal(kf_rule_parse(wrong[i], &rule), KF_EINVAL);
    assert_int_equal((int)rule, 9);
    for (int k = 0; k < 4; k++) expect_sentence(wrong[i], name[k]);
  }
  assert_non_null(kf_rule_name((kf_rule)99));
  assert_non_null(kf_rule_name((kf_rule)-1));
}

/* ---------------------------------------------------------------------------- calls */

static void test_epochs(void **state) {
  (void)state;
  static const int64_t bad[] = {-1, ((int64_t)1 << 32) + 1, INT64_MIN, INT64_MAX};
  static const char *const number[] = {"-1", "4294967297", "-9223372036854775808",
                                       "9223372036854775807"};
  kf_sampler_options o = usual();
  kf_sampler *s = sampler_of(&o);
  next(s);
  uint64_t hash = kf_sampler_hash(s);
  for (size_t i = 0; i < N(bad); i++) {
    assert_int_equal(kf_sampler_set_epoch(s, bad[i]), KF_EINVAL);
    expect_sentence("epoch", number[i]);
    assert_true(kf_sampler_hash(s) == hash);
    assert_int_equal(kf_sampler_step(s), 1);
  }
  assert_int_equal(kf_sampler_set_epoch(s, (int64_t)1 << 32), KF_OK);
  assert_int_equal(next(s)->epoch, (int64_t)1 << 32);
  kf_sampler_free(s);
}

static void test_set_cost_where(void **state) {
  (void)state;
  kf_sampler_options o = usual();
  kf_sampler *s = sampler_of(&o);
  kf_cost cost = {.linear_s = 1e-6, .quadratic_s = 3e-9};
  int64_t n = kf_sampler_steps(s);
  assert_true(n > 5);
  for (int i = 0; i < 3; i++) next(s);
  uint64_t hash = kf_sampler_hash(s);
  const int64_t bad[] = {2, 0, -1, INT64_MIN, n + 1, INT64_MAX};
  for (size_t i = 0; i < N(bad); i++) {
    char number[32];
    snprintf(number, sizeof number, "%lld", (long long)bad[i]);
    assert_int_equal(kf_sampler_set_cost(s, bad[i], &cost), KF_EINVAL);
    expect_sentence("step", number);
    assert_true(kf_sampler_hash(s) == hash);
    assert_int_equal(kf_sampler_steps(s), n);
  }
  while (next(s)) continue;
  assert_int_equal(kf_sampler_step(s), n); /* nothing is left: it counts from the next epoch on */
  assert_int_equal(kf_sampler_set_cost(s, n, &cost), KF_OK);
  assert_int_equal(kf_sampler_steps(s), n);
  assert_null(next(s));
  assert_int_equal(kf_sampler_set_epoch(s, 1), KF_OK);
  double work = kf_cost_work(&cost, 1000);
  assert_true(fabs(kf_sampler_buckets(s)->comp_s - work) < 1e-12 * work);
  kf_sampler_free(s);
}

/* ------------------------------------------------------------------------- examples */

/* linear 1, quadratic 0.001: 100 tokens are 110, 1000 are 2000. Under 2000 s and 2000 tokens. */
static void test_sizes(void **state) {
  (void)state;
  static const int64_t size[4][10] = {{18, 8, 5, 3, 2, 2, 1, 1, 1, 1},
                                      {20, 10, 6, 3, 2, 2, 1, 1, 1, 1}, /* 1.5: 31, 11, 6.08, 3.9 */
                                      {20, 10, 6, 5, 4, 3, 2, 2, 2, 2},
                                      {18, 8, 5, 3, 2, 2, 1, 1, 1, 1}};
  static const kf_rule rules[] = {KF_RULE_TWO_TERM, KF_RULE_POWER, KF_RULE_EQUAL_TOKEN,
                                  KF_RULE_PACKED};
  kf_bucket_options o = usual().bucket;
  o.cost = (kf_cost){.linear_s = 1, .quadratic_s = 0.001};
  o.power = KF_POWER_GIVEN;
  o.p = 1.5;
  for (int i = 0; i < 4; i++) {
    kf_buckets *b = NULL;
    o.rule = rules[i];
    if (kf_bucket_create(&o, lengths(), NULL, SAMPLES, &b)) fail_msg("%s", kf_last_error());
    assert_int_equal(b->n, 10);
    for (int k = 0; k < 10; k++) {
      assert_int_equal(b->bucket[k].len, 100 * (k + 1));
      assert_int_equal(b->bucket[k].count, 6);
      if (b->bucket[k].batch_size != size[i][k])
        fail_msg("%s, %d tokens: %d", kf_rule_name(o.rule), 100 * (k + 1),
                 (int)b->bucket[k].batch_size);
    }
    kf_bucket_free(b);
  }
}

/* Where work is linear, or p is 1, M_comp / work is whole; rounding must not lose a sample. */
static void test_whole_quotients(void **state) {
  (void)state;
  static const double unit[] = {1, 0.1, 1e-7, 1.0 / 3, 3.7e-6};
  for (int rule = 0; rule < 2; rule++)
    for (size_t u = 0; u < N(unit); u++)
      for (int64_t len = 1; len <= 49; len++)
        for (int64_t times = 1; times <= 30; times++) {
          kf_bucket_options o = {.rule = (kf_rule)rule,
                                 .cost = {.linear_s = unit[u]},
                                 .mem_tokens = 1000000,
                                 .match_len = len * times,
                                 .power = KF_POWER_GIVEN,
                                 .p = 1,
                                 .n_ranks = 1};
          kf_buckets *b = NULL;
          if (kf_bucket_create(&o, &len, NULL, 1, &b)) fail_msg("%s", kf_last_error());
          if (b->bucket[0].batch_size != times)
            fail_msg("rule %d, %g: %d of %d tokens, expected %d", rule, unit[u],
                     (int)b->bucket[0].batch_size, (int)len, (int)times);
          kf_bucket_free(b);
        }
}

/* 7 samples of one length, 2 a batch, 2 ranks: 3 batches of 2 and one of 1, so 2 steps. On 3 ranks
** one step, and a batch is dropped; or, if all are kept, two are cut. */
static void test_seven(void **state) {
  (void)state;
  static const int64_t len[] = {10, 10, 10, 10, 10, 10, 10};
  kf_sampler_options o = {
    .bucket = {
      .rule = KF_RULE_EQUAL_TOKEN, .cost = {.linear_s = 1}, .mem_tokens = 29, .n_ranks = 2}};
  for (int mode = 0; mode < 3; mode++)
    for (int32_t n_ranks = 2; n_ranks <= 3; n_ranks++)
      for (int32_t keep_all = 0; keep_all < 2; keep_all++) {
        kf_sampler *s = NULL;
        kf_epoch e;
        o.mode = (kf_step_mode)mode;
        o.bucket.n_ranks = n_ranks;
        o.keep_all = keep_all;
        if (kf_sampler_create(&o, len, N(len), &s)) fail_msg("%s", kf_last_error());
        assert_int_equal(kf_sampler_figures(s, &e), KF_OK);
        bool three = n_ranks == 3, cut = three && keep_all;
        assert_int_equal(e.n_steps, three && !keep_all ? 1 : 2);
        assert_int_equal(kf_sampler_steps(s), e.n_steps);
        assert_int_equal(e.split_batches, cut ? 2 : 0);
        assert_int_equal(e.dropped_batches, three && !keep_all);
        assert_int_equal(e.n_samples + e.dropped_samples, 7);
        assert_int_equal(e.n_tokens, 10 * e.n_samples);
        if (cut) assert_int_equal(e.underfilled_batches, 5);
        assert_int_equal(e.over_batches, 0);
        assert_int_equal(e.mixed_steps, 0);
        assert_true(e.mean_compute_use == 0 && e.max_compute_use == 0);
        assert_true(fabs(e.max_memory_use - 20. / 29) < 1e-12);
        kf_sampler_free(s);
      }
}

/* One batch has nearly all samples: it is cut again and again, and so are its parts. */
static void test_one_large_batch(void **state) {
  (void)state;
  enum { LARGE = 100, MOST = 40 };
  int64_t len[LARGE + MOST];
  for (int i = 0; i < LARGE + MOST; i++) len[i] = i < LARGE ? 1 : 100;
  kf_sampler_options o = {
    .bucket = {.rule = KF_RULE_EQUAL_TOKEN, .cost = {.linear_s = 1}, .mem_tokens = 100},
    .keep_all = 1};
  for (int mode = 0; mode < 3; mode++)
    for (int32_t n_ranks = 1; n_ranks <= 60; n_ranks++)
      for (int64_t n = 0; n <= MOST; n++) {
        kf_sampler *s = NULL;
        kf_epoch e;
        o.mode = (kf_step_mode)mode;
        o.bucket.n_ranks = n_ranks;
        if (kf_sampler_create(&o, len, LARGE + n, &s)) fail_msg("%s", kf_last_error());
        assert_int_equal(kf_sampler_figures(s, &e), KF_OK);
        int64_t steps = (n + 1 + n_ranks - 1) / n_ranks; /* there are samples enough to cut */
        if (e.n_steps != steps || e.dropped_samples || e.n_samples != LARGE + n)
          fail_msg("%d ranks, %d long samples, mode %d: %d steps, %d samples dropped", (int)n_ranks,
                   (int)n, mode, (int)e.n_steps, (int)e.dropped_samples);
        assert_int_equal(e.split_batches, steps * n_ranks - (n + 1));
        int64_t n_steps = 0, least = LARGE, most = 0;
        for (const kf_sampled *k; (k = next(s)); n_steps++)
          for (int32_t r = 0; r < n_ranks; r++) {
            int64_t size = k->batch.rank_off[r + 1] - k->batch.rank_off[r];
            if (size < least) least = size;
            if (size > most) most = size;
          }
        assert_true(least > 0 && (n > 0 || most <= 2 * least + 1)); /* it is cut into halves */
        assert_int_equal(n_steps, steps);
        kf_sampler_free(s);
      }
}

/* The last step has one single sample, so that earlier batches are cut, nearly all of them: in the
** square of the ranks it would take half a minute. */
static void test_many_cuts(void **state) {
  (void)state;
  enum { MANY = 1 << 18, ALL = 2 * MANY + 1 };
  int64_t *len = calloc(ALL, sizeof *len);
  for (int i = 0; i < ALL; i++) len[i] = 100;
  kf_sampler_options o = {.bucket = {.rule = KF_RULE_EQUAL_TOKEN,
                                     .cost = {.linear_s = 1},
                                     .mem_tokens = 200,
                                     .n_ranks = MANY},
                          .keep_all = 1};
  kf_sampler *s = NULL;
  kf_epoch e;
  if (kf_sampler_create(&o, len, ALL, &s)) fail_msg("%s", kf_last_error());
  assert_int_equal(kf_sampler_figures(s, &e), KF_OK);
  assert_int_equal(e.n_steps, 2);
  assert_int_equal(e.n_samples, ALL);
  assert_int_equal(e.split_batches, MANY - 1);
  kf_sampler_free(s);
  free(len);
}

/* Nothing to hand out is not an error. */
static void test_nothing(void **state) {
  (void)state;
  kf_sampler_options o = usual();
  for (int rule = 0; rule < 4; rule++)
    for (int mode = 0; mode < 3; mode++)
      for (int64_t n = 0; n < RANKS; n++) {
        kf_sampler *s = NULL;
        kf_epoch e;
        o.bucket.rule = (kf_rule)rule;
        o.mode = (kf_step_mode)mode;
        o.keep_all = n % 2 != 0;
        if (kf_sampler_create(&o, n ? lengths() : NULL, n, &s)) fail_msg("%s", kf_last_error());
        assert_int_equal(kf_sampler_steps(s), 0);
        assert_null(next(s));
        assert_int_equal(kf_sampler_figures(s, &e), KF_OK);
        assert_int_equal(e.dropped_samples, n);
        assert_int_equal(e.n_samples, 0);
        assert_true(e.imbalance_rate == 0 && e.mean_memory_use == 0 && e.max_memory_use == 0);
        assert_true(e.mean_compute_use == 0 && e.predicted_s == 0);
        assert_true(e.predicted_tokens_per_s == 0);
        assert_int_equal(kf_sampler_set_cost(s, 0, &o.bucket.cost), KF_OK);
        kf_sampler_free(s);
      }
}

/* A cost that was to come later comes earlier: from there on, batches are made by it. */
static void test_sooner(void **state) {
  (void)state;
  for (int rule = 0; rule < 4; rule++) {
    kf_sampler_options o = usual();
    o.bucket.rule = (kf_rule)rule;
    o.bucket.match_len = 0;
    o.bucket.comp_s = kf_cost_work(&o.bucket.cost, 1000);
    kf_sampler *s = sampler_of(&o);
    kf_cost slow = {.linear_s = 2e-6, .quadratic_s = 2e-9}; /* batches of half the size */
    assert_true(kf_sampler_steps(s) >= 5);
    assert_int_equal(kf_sampler_set_cost(s, 5, &slow), KF_OK);
    assert_int_equal(kf_sampler_set_cost(s, 2, &slow), KF_OK);
    for (const kf_sampled *k; (k = next(s));)
      for (int32_t r = 0; r < RANKS && k->step >= 2; r++) {
        int64_t first = k->batch.rank_off[r], n = k->batch.rank_off[r + 1] - first;
        double work = 0;
        for (int64_t i = first; i < first + n; i++) work += kf_cost_work(&slow, k->batch.len[i]);
        if (rule != KF_RULE_EQUAL_TOKEN && rule != KF_RULE_POWER && n > 1 &&
            work > o.bucket.comp_s * (1 + 1e-9))
          fail_msg("rule %d, step %d: a batch of %g s", rule, (int)k->step, work);
      }
    kf_sampler_free(s);
  }
}

/* Small samples: a batch takes more of them than the window holds, and is filled nevertheless. */
static void test_small_window(void **state) {
  (void)state;
  enum { MANY = 6000 };
  static int64_t len[MANY];
  dice d = {6};
  for (int i = 0; i < MANY; i++) len[i] = 5 + dice_int(&d, 10);
  kf_sampler_options o = usual();
  o.bucket.rule = KF_RULE_PACKED;
  for (int64_t window = 16; window <= 256; window *= 4) {
    kf_sampler *s = NULL;
    kf_epoch e;
    o.window = window;
    if (kf_sampler_create(&o, len, MANY, &s)) fail_msg("%s", kf_last_error());
    assert_int_equal(kf_sampler_figures(s, &e), KF_OK);
    double use = fmax(e.mean_memory_use, e.mean_compute_use);
    if (!(use > 0.9)) fail_msg("window %d: batches are %.3f full", (int)window, use);
    kf_sampler_free(s);
  }
}

/* Where M_comp is in seconds and the machine slows down by 0.9% a time, packed's batches follow in
** the end: what counts is the change since they were made, not since the last call. */
static void test_slow_drift(void **state) {
  (void)state;
  kf_sampler_options o = usual();
  o.bucket.rule = KF_RULE_PACKED;
  o.bucket.mem_tokens = 1000000;
  o.bucket.match_len = 0;
  o.bucket.comp_s = 0.004;
  enum { MANY = 3000 };
  static int64_t len[MANY];
  dice d = {5};
  for (int i = 0; i < MANY; i++) len[i] = 100 + dice_int(&d, 900);
  kf_sampler *s = NULL;
  if (kf_sampler_create(&o, len, MANY, &s)) fail_msg("%s", kf_last_error());
  kf_cost cost = o.bucket.cost;
  double worst = 0;
  for (int i = 0; i < 40; i++) {
    const kf_sampled *k = next(s);
    assert_non_null(k);
    for (int32_t r = 0; r < RANKS; r++) {
      double work = 0;
      for (int64_t q = k->batch.rank_off[r]; q < k->batch.rank_off[r + 1]; q++)
        work += kf_cost_work(&cost, k->batch.len[q]);
      worst = fmax(worst, work / o.bucket.comp_s);
    }
    cost.linear_s *= 1.009;
    cost.quadratic_s *= 1.009;
    if (kf_sampler_set_cost(s, kf_sampler_step(s), &cost)) fail_msg("%s", kf_last_error());
  }
  if (!(worst <= 1.0101)) fail_msg("a batch of %.4f M_comp", worst);
  kf_sampler_free(s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_null),         cmocka_unit_test(test_numbers),
    cmocka_unit_test(test_limits),       cmocka_unit_test(test_cost),
    cmocka_unit_test(test_no_room),      cmocka_unit_test(test_lengths),
    cmocka_unit_test(test_counts),       cmocka_unit_test(test_rule_names),
    cmocka_unit_test(test_epochs),       cmocka_unit_test(test_set_cost_where),
    cmocka_unit_test(test_sizes),        cmocka_unit_test(test_whole_quotients),
    cmocka_unit_test(test_seven),        cmocka_unit_test(test_nothing),
    cmocka_unit_test(test_slow_drift),   cmocka_unit_test(test_one_large_batch),
    cmocka_unit_test(test_small_window), cmocka_unit_test(test_sooner),
    cmocka_unit_test(test_many_cuts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
