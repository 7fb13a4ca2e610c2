/* SPDX-License-Identifier: Apache-2.0 */
/*
** The k-th allocation fails, for every k, in every call of the sampler: KF_ENOMEM, the sampler is
** as it was before the call, nothing leaks (the clang build looks). And bytes with a right checksum
** that no sampler has saved.
*/
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "dice.h"
#include "fail_alloc.h"

enum { SAMPLES = 500, RANKS = 3, RULES = 4, MODES = 3 };

static const int64_t *lengths(void) {
  static int64_t len[SAMPLES];
  dice d = {11};
  for (int i = 0; i < SAMPLES; i++) len[i] = 100 * (1 + dice_int(&d, 40));
  return len;
}

static kf_sampler_options options_of(int rule, int mode) {
  kf_sampler_options o = {.mode = (kf_step_mode)mode, .seed = 3, .keep_all = mode == 1};
  o.bucket.rule = (kf_rule)rule;
  o.bucket.cost = (kf_cost){.linear_s = 1e-6, .quadratic_s = 1e-9};
  o.bucket.mem_tokens = 10000;
  o.bucket.match_len = 4000;
  o.bucket.n_ranks = RANKS;
  return o;
}

static const kf_cost steep = {.linear_s = 1e-6, .quadratic_s = 3e-9};

static kf_sampler *sampler_of(const kf_sampler_options *o) {
  kf_sampler *s = NULL;
  if (kf_sampler_create(o, lengths(), SAMPLES, &s)) fail_msg("%s", kf_last_error());
  return s;
}

/* One sampler, in one state, and what is called. */
typedef struct scene {
  kf_sampler *sampler;
  void *state; /* to restore */
  size_t n_bytes;
} scene;

typedef kf_status call(scene *s);

static kf_status call_set_epoch(scene *s) { return kf_sampler_set_epoch(s->sampler, 5); }
static kf_status call_set_cost(scene *s) {
  return kf_sampler_set_cost(s->sampler, kf_sampler_step(s->sampler), &steep);
}
static kf_status call_set_later(scene *s) {
  return kf_sampler_set_cost(s->sampler, kf_sampler_step(s->sampler) + 2, &steep);
}
static kf_status call_next(scene *s) {
  const kf_sampled *k = NULL;
  kf_status status = kf_sampler_next(s->sampler, &k);
  assert_true((status == KF_OK) == (k != NULL));
  return status;
}
static kf_status call_restore(scene *s) {
  return kf_sampler_restore(s->sampler, "state", s->state, s->n_bytes);
}
static kf_status call_save(scene *s) {
  void *data = NULL;
  size_t n = 0;
  kf_status status = kf_sampler_save(s->sampler, &data, &n);
  assert_true((status == KF_OK) == (data != NULL));
  free(data);
  return status;
}
static kf_status call_figures(scene *s) {
  kf_epoch e;
  return kf_sampler_figures(s->sampler, &e);
}

static const struct {
  const char *name;
  call *call;
} calls[] = {{"set_epoch", call_set_epoch},      {"set_cost", call_set_cost},
             {"set_cost later", call_set_later}, {"next", call_next},
             {"restore", call_restore},          {"save", call_save},
             {"figures", call_figures}};
enum { CALLS = sizeof calls / sizeof *calls };

/* Epoch 2, three steps on, a cost pending; and, to restore, another epoch with a cost in force. */
static scene begin(const kf_sampler_options *o) {
  scene s = {.sampler = sampler_of(o)};
  const kf_sampled *k;
  kf_status status = kf_sampler_set_epoch(s.sampler, 9);
  if (!status) status = kf_sampler_set_cost(s.sampler, 0, &steep);
  for (int i = 0; i < 5 && !status; i++) status = kf_sampler_next(s.sampler, &k);
  if (!status) status = kf_sampler_save(s.sampler, &s.state, &s.n_bytes);
  kf_sampler_free(s.sampler);
  s.sampler = sampler_of(o);
  if (!status) status = kf_sampler_set_epoch(s.sampler, 2);
  for (int i = 0; i < 3 && !status; i++) status = kf_sampler_next(s.sampler, &k);
  if (!status) status = kf_sampler_set_cost(s.sampler, 4, &steep);
  if (status) fail_msg("%s", kf_last_error());
  return s;
}

static void end(scene *s) {
  kf_sampler_free(s->sampler);
  free(s->state);
}

/* A hash of all samples that are still to come. */
static uint64_t rest_of(kf_sampler *s) {
  const kf_sampled *k;
  uint64_t hash = KF_HASH_START;
  for (;;) {
    if (kf_sampler_next(s, &k)) fail_msg("%s", kf_last_error());
    if (!k) return hash;
    hash = kf_hash_bytes(hash, k->sample, (size_t)k->batch.n_seqs * sizeof *k->sample);
    hash = kf_hash_bytes(hash, k->batch.rank_off, (RANKS + 1) * sizeof *k->batch.rank_off);
  }
}

/* After a failure the same call works, and all goes on as without the failure. */
static void test_failing_allocations(void **state) {
  (void)state;
  for (int i = 0; i < RULES * MODES * CALLS; i++) {
    int c = i / (RULES * MODES);
    kf_sampler_options o = options_of(i % RULES, i / RULES % MODES);
    scene good = begin(&o);
    if (calls[c].call(&good)) fail_msg("%s: %s", calls[c].name, kf_last_error());
    uint64_t want_hash = kf_sampler_hash(good.sampler), want = rest_of(good.sampler);
    end(&good);
    for (long k = 1;; k++) {
      scene s = begin(&o);
      uint64_t before = kf_sampler_hash(s.sampler);
      int64_t step = kf_sampler_step(s.sampler), steps = kf_sampler_steps(s.sampler);
      fail_alloc(k);
      kf_status status = calls[c].call(&s);
      bool all = fail_alloc(0) < k;
      if (status != (all ? KF_OK : KF_ENOMEM))
        fail_msg("%s, %ld: %s", calls[c].name, k, kf_status_string(status));
      if (!all) {
        assert_non_null(strstr(kf_last_error(), "memory"));
        if (kf_sampler_hash(s.sampler) != before || kf_sampler_step(s.sampler) != step ||
            kf_sampler_steps(s.sampler) != steps)
          fail_msg("%s, %ld: the sampler has changed", calls[c].name, k);
        if (calls[c].call(&s)) fail_msg("%s, %ld: %s", calls[c].name, k, kf_last_error());
      }
      if (kf_sampler_hash(s.sampler) != want_hash || rest_of(s.sampler) != want)
        fail_msg("%s, %ld: it goes on in another way", calls[c].name, k);
      end(&s);
      if (all) break;
    }
  }
}

static void test_failing_create(void **state) {
  (void)state;
  for (int rule = 0; rule < RULES; rule++)
    for (long k = 1;; k++) {
      kf_sampler_options o = options_of(rule, 0);
      kf_sampler *s = NULL;
      fail_alloc(k);
      kf_status status = kf_sampler_create(&o, lengths(), SAMPLES, &s);
      bool all = fail_alloc(0) < k;
      assert_int_equal(status, all ? KF_OK : KF_ENOMEM);
      assert_true((s != NULL) == all);
      kf_sampler_free(s);
      if (all) break;
    }
  for (long k = 1;; k++) {
    kf_bucket_options o = options_of(1, 0).bucket;
    kf_buckets *b = NULL;
    fail_alloc(k);
    kf_status status = kf_bucket_create(&o, lengths(), NULL, SAMPLES, &b);
    bool all = fail_alloc(0) < k;
    assert_int_equal(status, all ? KF_OK : KF_ENOMEM);
    assert_true((b != NULL) == all);
    kf_bucket_free(b);
    if (all) break;
  }
}

/* Handing out a step takes memory only for the largest one so far. */
static void test_no_allocations(void **state) {
  (void)state;
  for (int i = 0; i < RULES * MODES; i++) {
    kf_sampler_options o = options_of(i % RULES, i / RULES);
    kf_sampler *s = sampler_of(&o);
    fail_alloc(0);
    rest_of(s);
    long first = fail_alloc(0);
    if (kf_sampler_set_epoch(s, 0)) fail_msg("%s", kf_last_error());
    fail_alloc(0);
    rest_of(s);
    long again = fail_alloc(0);
    if (first > 8 || again > 0)
      fail_msg("rule %d, mode %d: %ld allocations, then %ld", i % RULES, i / RULES, first, again);
    kf_sampler_free(s);
  }
}

/* ------------------------------------------------------------------------- forgeries */

/* Were the last 8 bytes a checksum of this kind, it would be right. */
static void forge_checksum(unsigned char *data, size_t n) {
  uint64_t hash = kf_hash_bytes(KF_HASH_START, data, n - 8);
  for (int i = 0; i < 8; i++) data[n - 8 + (size_t)i] = (unsigned char)(hash >> (8 * i));
}

/* Each byte in turn is another one. What is taken nevertheless must be a state: of steps that each
** have every rank, and no sample twice. */
static void test_forged(void **state) {
  (void)state;
  static const unsigned char flips[] = {1, 0x80, 0xff, 0x10};
  for (int i = 0; i < RULES; i++) {
    kf_sampler_options o = options_of(i, i % MODES);
    scene s = begin(&o);
    size_t n = s.n_bytes;
    unsigned char *copy = malloc(n);
    assert_non_null(copy);
    for (size_t at = 0; at < n; at++)
      for (size_t f = 0; f < sizeof flips; f++) {
        uint64_t before = kf_sampler_hash(s.sampler);
        memcpy(copy, s.state, n);
        copy[at] ^= flips[f];
        if (at + 8 < n) forge_checksum(copy, n);
        if (kf_sampler_restore(s.sampler, "forged", copy, n)) {
          assert_true(kf_sampler_hash(s.sampler) == before);
          continue;
        }
        bool seen[SAMPLES] = {false};
        const kf_sampled *k;
        int64_t steps = kf_sampler_steps(s.sampler), step = kf_sampler_step(s.sampler);
        assert_true(step >= 0 && step <= steps && steps <= SAMPLES / RANKS);
        for (; !kf_sampler_next(s.sampler, &k) && k; step++)
          for (int32_t r = 0; r < RANKS; r++) {
            assert_true(k->batch.rank_off[r] < k->batch.rank_off[r + 1]);
            for (int64_t q = k->batch.rank_off[r]; q < k->batch.rank_off[r + 1]; q++) {
              assert_true(!seen[k->sample[q]]);
              seen[k->sample[q]] = true;
            }
          }
        assert_int_equal(step, steps);
        kf_epoch e;
        assert_int_equal(kf_sampler_figures(s.sampler, &e), KF_OK);
        assert_true(isfinite(e.predicted_s) && isfinite(e.imbalance_rate));
      }
    free(copy);
    end(&s);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_failing_allocations),
    cmocka_unit_test(test_failing_create),
    cmocka_unit_test(test_no_allocations),
    cmocka_unit_test(test_forged),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
