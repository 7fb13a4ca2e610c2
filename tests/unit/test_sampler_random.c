/* SPDX-License-Identifier: Apache-2.0 */
/*
** The sampler's order is random: over many epochs every rank gets the same work, a sample comes at
** any time, on any rank, in any company, and is dropped no more often than others. Bounds are five
** standard deviations or more; seeds are fixed, so that nothing here can come out differently.
*/
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "dice.h"

#define N(array) (sizeof(array) / sizeof((array)[0]))

enum { RANKS = 8, SAMPLES = 1200, EPOCHS = 300, TENTHS = 10 };

static const kf_rule rules[] = {KF_RULE_TWO_TERM, KF_RULE_POWER, KF_RULE_EQUAL_TOKEN,
                                KF_RULE_PACKED};

/* Few lengths for buckets, any for packed. */
static void draw_lengths(kf_rule rule, int64_t *len) {
  static const int64_t few[] = {4000, 6000, 9000, 14000, 20000, 50000};
  dice d = {42};
  for (int i = 0; i < SAMPLES; i++) {
    int64_t octave = dice_int(&d, 8), within = dice_int(&d, 256 << octave);
    len[i] = rule == KF_RULE_PACKED ? (256 << octave) + within : few[dice_int(&d, N(few))];
  }
}

static kf_sampler *create(kf_rule rule, kf_step_mode mode, uint64_t seed, const int64_t *len) {
  kf_sampler_options o = {.mode = mode, .seed = seed, .window = 200};
  kf_sampler *s = NULL;
  o.bucket.rule = rule;
  o.bucket.mem_tokens = 160000;
  o.bucket.match_len = 65536;
  o.bucket.n_ranks = RANKS;
  if (kf_cost_preset("wan1.3b", NULL, 0, 0.4, &o.bucket.cost) ||
      kf_sampler_create(&o, len, SAMPLES, &s))
    fail_msg("%s", kf_last_error());
  return s;
}

static kf_sampler *create_usual(kf_rule rule, kf_step_mode mode, int64_t *len) {
  draw_lengths(rule, len);
  return create(rule, mode, 7, len);
}

static const kf_sampled *next(kf_sampler *s) {
  const kf_sampled *k = NULL;
  if (kf_sampler_next(s, &k)) fail_msg("%s", kf_last_error());
  return k;
}

static void set_epoch(kf_sampler *s, int64_t epoch) {
  if (kf_sampler_set_epoch(s, epoch)) fail_msg("%s", kf_last_error());
}

static const char *name_of(kf_rule rule, int mode) {
  static const char *const modes[] = {"random", "same", "similar"};
  static char name[40];
  snprintf(name, sizeof name, "%s %s", kf_rule_name(rule), modes[mode]);
  return name;
}

static double work_of(const kf_sampled *k, int32_t rank) {
  double sum = 0; /* of no matter what cost: it is rising */
  for (int64_t i = k->batch.rank_off[rank]; i < k->batch.rank_off[rank + 1]; i++) {
    double l = (double)k->batch.len[i];
    sum += l + l * l / 23040;
  }
  return sum;
}

/* -------------------------------------------------------------------------- ranks */

/* What a rank gets above the mean of its step is 0 in the long run. */
static void test_work_of_ranks(void **state) {
  (void)state;
  for (size_t r = 0; r < N(rules); r++)
    for (int mode = 0; mode < 3; mode++) {
      static int64_t len[SAMPLES];
      kf_sampler *s = create_usual(rules[r], (kf_step_mode)mode, len);
      double above[RANKS] = {0}, squares = 0, all = 0;
      int64_t n = 0;
      for (int64_t e = 0; e < EPOCHS; e++) {
        set_epoch(s, e);
        for (const kf_sampled *k; (k = next(s)); n++) {
          double work[RANKS], mean = 0;
          for (int32_t q = 0; q < RANKS; q++) mean += (work[q] = work_of(k, q)) / RANKS;
          all += mean;
          for (int32_t q = 0; q < RANKS; q++) {
            above[q] += work[q] - mean;
            squares += (work[q] - mean) * (work[q] - mean) / RANKS;
          }
        }
      }
      for (int32_t q = 0; q < RANKS; q++)
        if (fabs(above[q]) > 5 * sqrt(squares) + 1e-9 * all)
          fail_msg("%s: rank %d gets %.5f of its share, %.1f standard deviations off",
                   name_of(rules[r], mode), (int)q, 1 + above[q] / all, above[q] / sqrt(squares));
      kf_sampler_free(s);
    }
}

/* Chi-squared over `n` cells of equal expectation; about n - 1 where all is well. */
static double chi_squared(const int64_t *count, int n) {
  double total = 0, sum = 0;
  for (int i = 0; i < n; i++) total += (double)count[i];
  for (int i = 0; i < n; i++) {
    double off = (double)count[i] - total / n;
    sum += off * off / (total / n);
  }
  return sum;
}

/* Any sample comes to any rank. Of 60 samples in 12 ways, 8 cells each, one beyond 40 is one in
** 1500. */
static void test_ranks_of_samples(void **state) {
  (void)state;
  for (size_t r = 0; r < N(rules); r++)
    for (int mode = 0; mode < 3; mode++) {
      static int64_t len[SAMPLES], count[SAMPLES][RANKS];
      kf_sampler *s = create_usual(rules[r], (kf_step_mode)mode, len);
      memset(count, 0, sizeof count);
      for (int64_t e = 0; e < EPOCHS; e++) {
        set_epoch(s, e);
        for (const kf_sampled *k; (k = next(s));)
          for (int32_t q = 0; q < RANKS; q++)
            for (int64_t i = k->batch.rank_off[q]; i < k->batch.rank_off[q + 1]; i++)
              count[k->sample[i]][q]++;
      }
      for (int i = 0; i < SAMPLES; i += 20) {
        double chi = chi_squared(count[i], RANKS);
        if (!(chi < 40))
          fail_msg("%s: sample %d on ranks, chi-squared %.1f", name_of(rules[r], mode), i, chi);
      }
      kf_sampler_free(s);
    }
}

/* ------------------------------------------------------------------------ positions */

/* How many samples, short and long ones, came in each tenth of the epochs, and when on average.
** What packed leaves for the last steps is not counted. */
typedef struct times {
  double count[2], sum[2], tenth[2][TENTHS], steps[TENTHS];
} times;

static times times_of(kf_sampler *s, int64_t last) {
  times t = {0};
  for (int64_t e = 0; e < EPOCHS; e++) {
    set_epoch(s, e);
    int64_t n = kf_sampler_steps(s) - last;
    for (const kf_sampled *k; (k = next(s)) && k->step < n;) {
      t.steps[k->step * TENTHS / n]++;
      for (int64_t i = 0; i < k->batch.n_seqs; i++) {
        int is_long = k->batch.len[i] > 9000;
        t.tenth[is_long][k->step * TENTHS / n]++;
        t.sum[is_long] += ((double)k->step + 0.5) / (double)n;
        t.count[is_long]++;
      }
    }
  }
  return t;
}

/* Short and long samples come at any time alike. */
static void test_positions(void **state) {
  (void)state;
  for (size_t r = 0; r < N(rules); r++)
    for (int mode = 0; mode < 3; mode++) {
      static int64_t len[SAMPLES];
      kf_sampler *s = create_usual(rules[r], (kf_step_mode)mode, len);
      times t = times_of(s, rules[r] == KF_RULE_PACKED ? 3 : 0);
      double at[2] = {t.sum[0] / t.count[0], t.sum[1] / t.count[1]}, steps = 0, worst = 0;
      for (int k = 0; k < TENTHS; k++) steps += t.steps[k];
      for (int k = 0; k < 2 * TENTHS; k++) {
        double share = t.tenth[k % 2][k / 2] / t.count[k % 2] / (t.steps[k / 2] / steps);
        worst = fmax(worst, fabs(share - 1));
      }
      print_message(
        "%s: short samples at %.3f of the epoch, long ones at %.3f; a tenth of it is off "
        "by %.3f\n",
        name_of(rules[r], mode), at[0], at[1], worst);
      if (fabs(at[0] - at[1]) > 0.03) fail_msg("that is far apart");
      if (worst > 0.35) fail_msg("that is much");
      kf_sampler_free(s);
    }
}

/* One sample at a time, where steps divide into tenths: mode random, buckets. */
static void test_position_of_a_sample(void **state) {
  (void)state;
  for (int mode = 0; mode < 3; mode += 2) {
    static int64_t len[SAMPLES], tenth[SAMPLES][TENTHS];
    for (int i = 0; i < SAMPLES; i++) len[i] = i % 2 ? 16000 : 40000; /* 10 or 4 of a batch */
    kf_sampler *s = create(KF_RULE_EQUAL_TOKEN, (kf_step_mode)mode, 9, len);
    memset(tenth, 0, sizeof tenth);
    int64_t n = kf_sampler_steps(s); /* 60 + 150 batches, 26 steps, the last 6 not counted */
    assert_int_equal(n, 26);
    for (int64_t e = 0; e < 2 * EPOCHS; e++) {
      set_epoch(s, e);
      for (const kf_sampled *k; (k = next(s)) && k->step < 20;)
        for (int64_t i = 0; i < k->batch.n_seqs; i++) tenth[k->sample[i]][k->step / 2]++;
    }
    for (int i = 0; i < SAMPLES; i += 13) {
      double chi = chi_squared(tenth[i], TENTHS);
      if (!(chi < 42)) fail_msg("mode %d: sample %d in time, chi-squared %.1f", mode, i, chi);
    }
    kf_sampler_free(s);
  }
}

/* ------------------------------------------------------------------- company, drops */

/* Two samples of one length meet in a batch as often as chance has it: (B - 1) / (count - 1). */
static void test_company(void **state) {
  (void)state;
  static int64_t len[SAMPLES], met[SAMPLES];
  for (int i = 0; i < SAMPLES; i++) len[i] = 40000;
  kf_sampler *s = create(KF_RULE_EQUAL_TOKEN, KF_STEPS_RANDOM, 3, len);
  for (int64_t e = 0; e < 2 * EPOCHS; e++) {
    set_epoch(s, e);
    for (const kf_sampled *k; (k = next(s));)
      for (int32_t q = 0; q < RANKS; q++) {
        const int64_t *first = k->sample + k->batch.rank_off[q];
        int64_t n = k->batch.rank_off[q + 1] - k->batch.rank_off[q];
        bool mine = false;
        for (int64_t i = 0; i < n; i++) mine = mine || first[i] == 600;
        for (int64_t i = 0; i < n && mine; i++) met[first[i]]++;
      }
  }
  int64_t near = met[599] + met[601], all = 0, most = 0;
  for (int i = 0; i < SAMPLES; i++) {
    if (i == 600) continue;
    all += met[i];
    if (met[i] > most) most = met[i];
  }
  assert_true(all > 1600); /* 3 mates in each of 600 epochs, but for drops */
  assert_true(near < 15);  /* expected: 3 */
  assert_true(most < 15);  /* expected: 1.5 each */
  kf_sampler_free(s);
}

/* No batch is dropped more often than others: neither of some lengths, nor the smaller ones. */
static void test_drops(void **state) {
  (void)state;
  for (int rule = 0; rule < 3; rule++)
    for (int mode = 0; mode < 3; mode++) {
      static int64_t len[SAMPLES], dropped[SAMPLES];
      kf_sampler *s = create_usual(rules[rule], (kf_step_mode)mode, len);
      double chance = 0, most = 0;
      memset(dropped, 0, sizeof dropped);
      for (int64_t e = 0; e < EPOCHS; e++) {
        bool seen[SAMPLES] = {false};
        kf_epoch f;
        set_epoch(s, e);
        if (kf_sampler_figures(s, &f)) fail_msg("%s", kf_last_error());
        chance += (double)f.dropped_batches / (double)(f.dropped_batches + f.n_batches) / EPOCHS;
        for (const kf_sampled *k; (k = next(s));)
          for (int64_t i = 0; i < k->batch.n_seqs; i++) seen[k->sample[i]] = true;
        for (int i = 0; i < SAMPLES; i++) dropped[i] += !seen[i];
      }
      for (int i = 0; i < SAMPLES; i++) most = fmax(most, (double)dropped[i] / EPOCHS);
      double limit = chance + 5 * sqrt(chance * (1 - chance) / EPOCHS);
      print_message("%s: %.3f of all batches are dropped, of one sample's %.3f\n",
                    name_of(rules[rule], mode), chance, most);
      if (most > limit) fail_msg("that is more than chance: %.3f", limit);
      kf_sampler_free(s);
    }
}

/* ---------------------------------------------------------------------- seeds, epochs */

/* No two of 8 seeds and 8 epochs have the same first step, nor the same hash. */
static void test_seeds_and_epochs(void **state) {
  (void)state;
  enum { SIDE = 8, MOST = 4096 };
  for (size_t r = 0; r < N(rules); r++) {
    static int64_t len[SAMPLES], first[SIDE * SIDE][MOST];
    static uint64_t hash[SIDE * SIDE];
    int n = 0;
    draw_lengths(rules[r], len);
    memset(first, 0, sizeof first);
    for (uint64_t seed = 0; seed < SIDE; seed++) {
      kf_sampler *s = create(rules[r], KF_STEPS_RANDOM, seed << (seed % 3 * 20), len);
      for (int64_t e = 0; e < SIDE; e++, n++) {
        set_epoch(s, e);
        hash[n] = kf_sampler_hash(s);
        const kf_sampled *k = next(s);
        assert_true(k->batch.n_seqs < MOST);
        memcpy(first[n], k->sample, (size_t)k->batch.n_seqs * sizeof *k->sample);
      }
      kf_sampler_free(s);
    }
    for (int i = 0; i < n; i++)
      for (int k = 0; k < i; k++) {
        assert_true(hash[i] != hash[k]);
        if (memcmp(first[i], first[k], sizeof first[i]) == 0)
          fail_msg("%s: orders %d and %d are the same", kf_rule_name(rules[r]), i, k);
      }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_work_of_ranks),    cmocka_unit_test(test_ranks_of_samples),
    cmocka_unit_test(test_positions),        cmocka_unit_test(test_position_of_a_sample),
    cmocka_unit_test(test_company),          cmocka_unit_test(test_drops),
    cmocka_unit_test(test_seeds_and_epochs),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
