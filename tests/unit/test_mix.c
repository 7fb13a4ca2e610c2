/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <knapformer.h>

#include "fail_alloc.h"

static kf_batch *make(const char *mix, int32_t n_ranks, uint64_t seed) {
  kf_batch *batch = NULL;
  kf_status status = kf_mix_create(mix, n_ranks, seed, &batch);
  if (status) fail_msg("%s", kf_last_error());
  return batch;
}

/* Sequences, tokens, and FNV-1a over the lengths, computed once by an independent program. */
static void test_named(void **state) {
  (void)state;
  static const struct {
    const char *name;
    int64_t n_seqs, tokens;
    uint64_t fnv;
  } want[] = {{"lowres", 1024, 468587, 0x461b7d17f63c53cu},
              {"mixres", 112, 272282, 0x4d5a1ad124720c9bu},
              {"joint", 89, 370122, 0x2b2e1aadba470c71u},
              {"lowres4k", 392, 435235, 0x180891bfc88f1018u},
              {"clips", 80, 323839, 0xb76ce123a9f823feu}};
  for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
    kf_batch *batch = make(want[i].name, 0, 0);
    int64_t tokens = 0;
    uint64_t fnv = 0xcbf29ce484222325u;
    for (int64_t s = 0; s < batch->n_seqs; s++) {
      tokens += batch->len[s];
      fnv = (fnv ^ (uint64_t)batch->len[s]) * 0x100000001b3u;
    }
    assert_int_equal(batch->n_ranks, 32);
    assert_int_equal(batch->n_seqs, want[i].n_seqs);
    assert_int_equal(tokens, want[i].tokens);
    assert_true(fnv == want[i].fnv);
    assert_null(batch->factor);
    kf_batch_free(batch);
  }
}

/* By hand: i2880 is 180*180 tokens; int(85/3.4) = 25, int(17/3.4) = 5, int(34/3.4) = 10. */
static void test_lengths(void **state) {
  (void)state;
  static const struct {
    const char *code;
    int64_t visual;
  } want[] = {{"g1b1i2880f1s0", 32400}, {"g1b1i256f85s1", 6400}, {"g1b1i256f17s1", 1280},
              {"g1b1i512f34s1", 10240}, {"g1b1i16f7s0", 7},      {"g1b1i256f3s1", 0}};
  for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
    kf_batch *batch = make(want[i].code, 0, 0);
    int64_t text = 79; /* splitmix64 from state 0 is 0xe220a8397b1dcdaf */
    assert_int_equal(0xe220a8397b1dcdafu % 393, text);
    assert_int_equal(batch->len[0], want[i].visual + text);
    kf_batch_free(batch);
  }
}

static void test_cycle(void **state) {
  (void)state;
  kf_batch *one = make("joint", 0, 3), *many = make("joint", 80, 3), *few = make("joint", 5, 3);
  assert_int_equal(many->n_ranks, 80);
  assert_int_equal(few->n_ranks, 5);
  int64_t differ = 0;
  for (int32_t r = 0; r < 80; r++) {
    int64_t n = many->rank_off[r + 1] - many->rank_off[r];
    int32_t home = r % 32;
    assert_int_equal(n, one->rank_off[home + 1] - one->rank_off[home]);
    for (int64_t i = 0; i < n; i++) {
      int64_t a = many->len[many->rank_off[r] + i], b = one->len[one->rank_off[home] + i];
      assert_in_range(a - b + 392, 0, 784);
      if (r < 32) assert_int_equal(a, b);
      if (r < 5) assert_int_equal(a, few->len[few->rank_off[r] + i]);
      differ += a != b;
    }
  }
  assert_true(differ > 50); /* the text is drawn for the actual rank */
  kf_batch_free(one);
  kf_batch_free(many);
  kf_batch_free(few);
}

/* One frame is an image, whatever s says; more are keyframes or a video. */
static void test_profiles(void **state) {
  (void)state;
  static const kf_profile want[] = {{KF_KIND_IMAGE, 256, 1},     {KF_KIND_IMAGE, 256, 1},
                                    {KF_KIND_KEYFRAMES, 512, 4}, {KF_KIND_VIDEO, 1024, 85},
                                    {KF_KIND_IMAGE, 2880, 1},    {KF_KIND_IMAGE, 256, 1},
                                    {KF_KIND_IMAGE, 256, 1}};
  kf_batch *batch =
    make("g1b2i256f1s0,g1b1i512f4s0,g1b1i1024f85s1,g1b1i2880f1s1", 5, 0); /* and the first again */
  assert_int_equal(batch->n_seqs, 7);
  for (int64_t i = 0; i < 7; i++) {
    assert_int_equal(batch->profile[i].kind, want[i].kind);
    assert_int_equal(batch->profile[i].resolution, want[i].resolution);
    assert_int_equal(batch->profile[i].frames, want[i].frames);
  }
  kf_batch_free(batch);
  batch = make("g2b0i16f1s0", 0, 0);
  assert_int_equal(batch->n_seqs, 0);
  assert_non_null(batch->profile);
  kf_batch_free(batch);
  batch = make("g1b1i1048576f1s1", 0, 0); /* the most pixels: no latent frame, so it fits */
  assert_int_equal(batch->profile[0].resolution, 1 << 20);
  kf_batch_free(batch);
}

static void test_empty_ranks(void **state) {
  (void)state;
  kf_batch *batch = make("g2b0i16f1s0,g1b1i16f1s0", 0, 0);
  assert_int_equal(batch->n_ranks, 3);
  assert_int_equal(batch->n_seqs, 1);
  assert_int_equal(batch->rank_off[2], 0);
  assert_int_equal(batch->rank_off[3], 1);
  kf_batch_free(batch);
}

static void test_bad(void **state) {
  (void)state;
  static const char *const bad[] = {
    "",
    "nope",
    "g",
    "g0b1i256f1s0",
    "g1b1i256f1",
    "g1b1i256f1s2",
    "g1b1i255f1s0",
    "g1b1i0f1s0",
    "g1b1i256f0s0",
    "g-1b1i256f1s0",
    "g1b1i256f1s0,",
    ",g1b1i256f1s0",
    "g1b1i256f1s0 ",
    "g1b1i256f1s0,g1b1i256f1sx",
    "g1048577b1i256f1s0",
    "g1000000b1i256f1s0,g1000000b1i256f1s0",
    "g1048576b1048576i16f1s0",
    "g1b1000000000i65536f1s0",
    "g1b1i1048576f1048576s0",
    "g99999999999999999999b1i256f1s0",
    "G1b1i256f1s0",
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    kf_batch *batch = (kf_batch *)&state;
    if (kf_mix_create(bad[i], 0, 0, &batch) != KF_EINVAL) fail_msg("\"%s\" was accepted", bad[i]);
    assert_ptr_equal(batch, &state); /* written only on success */
    assert_non_null(strstr(kf_last_error(), "expected"));
  }
  kf_batch *batch;
  assert_int_equal(kf_mix_create("joint", -1, 0, &batch), KF_EINVAL);
  assert_int_equal(kf_mix_create("joint", KF_MAX_RANKS + 1, 0, &batch), KF_EINVAL);
  assert_int_equal(kf_mix_create(NULL, 0, 0, &batch), KF_EINVAL);
  kf_mix_create("g1b1i256f1s0,g1b1i250f1s0", 0, 0, &batch);
  assert_string_equal(kf_last_error(), "mix \"g1b1i256f1s0,g1b1i250f1s0\", position 19: found "
                                       "\"250\", expected a multiple of 16 pixels");
}

static void test_memory(void **state) {
  (void)state;
  for (long k = 1;; k++) {
    kf_batch *batch = NULL;
    fail_alloc(k);
    kf_status status = kf_mix_create("joint", 0, 0, &batch);
    if (fail_alloc(0) < k) {
      kf_batch_free(batch);
      break;
    }
    assert_int_equal(status, KF_ENOMEM);
    assert_null(batch);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_named),       cmocka_unit_test(test_lengths),
    cmocka_unit_test(test_cycle),       cmocka_unit_test(test_profiles),
    cmocka_unit_test(test_empty_ranks), cmocka_unit_test(test_bad),
    cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
