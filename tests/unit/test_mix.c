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

/* Samples, and all lengths as FNV-1a, by an independent program. The first output of splitmix64
** from state 0 is 0xe220a8397b1dcdaf, which is 0 modulo 5: an image; the second,
** 0x6e789e6aa1b965f4, is 0 modulo 6: the first grid. */
static void test_wan_samples(void **state) {
  (void)state;
  static const struct {
    uint64_t seed;
    int32_t rank, sample;
    int64_t len;
    kf_profile profile;
  } want[] = {{0, 0, 0, 16 * 16, {KF_KIND_IMAGE, 256, 1}},
              {0, 0, 1, 32 * 32, {KF_KIND_IMAGE, 512, 1}},
              {0, 0, 2, 52 * 30, {KF_KIND_IMAGE, 632, 1}},
              {0, 0, 3, 52 * 30 * 12, {KF_KIND_VIDEO, 632, 45}},
              {0, 0, 4, 52 * 30 * 8, {KF_KIND_VIDEO, 632, 29}},
              {0, 5, 17, 120 * 68, {KF_KIND_IMAGE, 1445, 1}},
              {0, 15, 396, 80 * 45, {KF_KIND_IMAGE, 960, 1}},
              {0, 15, 392, 80 * 45 * 21, {KF_KIND_VIDEO, 960, 81}},
              {0, 15, 383, 64 * 64, {KF_KIND_IMAGE, 1024, 1}},
              {7, 19, 0, 52 * 30 * 6, {KF_KIND_VIDEO, 632, 21}},
              {UINT64_MAX, 2, 3, 52 * 30 * 15, {KF_KIND_VIDEO, 632, 57}}};
  for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
    kf_batch *batch = make("wan", 20, want[i].seed);
    int64_t at = batch->rank_off[want[i].rank] + want[i].sample;
    assert_int_equal(batch->len[at], want[i].len);
    assert_memory_equal(&batch->profile[at], &want[i].profile, sizeof(kf_profile));
    kf_batch_free(batch);
  }
  static const struct {
    uint64_t seed, fnv;
    int64_t tokens;
  } whole[] = {{0, 0x169616e9c240b81du, 83194088}, {7, 0x58dc0af52a4cb805u, 87020096}};
  for (size_t k = 0; k < 2; k++) {
    kf_batch *batch = make("WAN", 0, whole[k].seed);
    int64_t tokens = 0;
    uint64_t fnv = 0xcbf29ce484222325u;
    assert_int_equal(batch->n_ranks, 16);
    assert_int_equal(batch->n_seqs, 6400);
    for (int64_t s = 0; s < batch->n_seqs; s++) {
      tokens += batch->len[s];
      fnv = (fnv ^ (uint64_t)batch->len[s]) * 0x100000001b3u;
    }
    assert_int_equal(tokens, whole[k].tokens);
    assert_true(fnv == whole[k].fnv);
    assert_null(batch->factor);
    kf_batch_free(batch);
  }
}

/* 3 of 5 are images, evenly of 6 grids; of the videos 2 of 3 are small, 5 to 21 latent frames
** evenly. Within 4 standard deviations on 40,000 samples, and nothing else occurs. */
static void test_wan_shares(void **state) {
  (void)state;
  static const int64_t image[] = {256, 1024, 1560, 4096, 3600, 8160};
  kf_batch *batch = make("wan", 100, 5);
  int64_t n_image[6] = {0}, n_images = 0, n_small = 0, n_latent[22] = {0};
  assert_int_equal(batch->n_seqs, 40000);
  for (int64_t s = 0; s < batch->n_seqs; s++) {
    const kf_profile *p = &batch->profile[s];
    if (p->kind == KF_KIND_IMAGE) {
      int g = 0;
      while (g < 6 && image[g] != batch->len[s]) g++;
      assert_in_range(g, 0, 5);
      assert_int_equal(p->frames, 1);
      n_image[g]++, n_images++;
    } else {
      int64_t latent = (p->frames - 1) / 4 + 1;
      assert_int_equal(p->kind, KF_KIND_VIDEO);
      assert_int_equal(p->frames % 4, 1);
      assert_in_range(latent, 5, 21);
      assert_true(p->resolution == 632 || p->resolution == 960);
      assert_int_equal(batch->len[s], latent * (p->resolution == 632 ? 1560 : 3600));
      n_small += p->resolution == 632;
      n_latent[latent]++;
    }
  }
  assert_in_range(n_images, 24000 - 392, 24000 + 392);
  for (int g = 0; g < 6; g++) assert_in_range(n_image[g], 4000 - 240, 4000 + 240);
  assert_in_range(n_small, 10667 - 352, 10667 + 352);
  for (int k = 5; k <= 21; k++) assert_in_range(n_latent[k], 941 - 122, 941 + 122);
  kf_batch_free(batch);
}

/* A rank's samples do not depend on how many ranks there are; a seed decides all of them. */
static void test_wan_ranks(void **state) {
  (void)state;
  static const int32_t counts[] = {1, 3, 16, 37};
  kf_batch *all = make("wan", 37, 2), *other = make("wan", 37, 3);
  int64_t differ = 0;
  for (int k = 0; k < 4; k++) {
    kf_batch *batch = make("wan", counts[k], 2);
    assert_int_equal(batch->n_ranks, counts[k]);
    for (int32_t r = 0; r <= counts[k]; r++) assert_int_equal(batch->rank_off[r], 400 * r);
    assert_memory_equal(batch->len, all->len, 400 * counts[k] * sizeof(int64_t));
    assert_memory_equal(batch->profile, all->profile, 400 * counts[k] * sizeof(kf_profile));
    kf_batch_free(batch);
  }
  for (int64_t s = 0; s < all->n_seqs; s++) differ += all->len[s] != other->len[s];
  assert_true(differ > all->n_seqs * 8 / 10);
  kf_batch_free(all);
  kf_batch_free(other);
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
    "wan2",
    "wan,g1b1i256f1s0",
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
  assert_int_equal(kf_mix_create("wan", KF_MAX_RANKS + 1, 0, &batch), KF_EINVAL);
  assert_int_equal(kf_mix_create(NULL, 0, 0, &batch), KF_EINVAL);
  kf_mix_create("nope", 0, 0, &batch);
  assert_string_equal(kf_last_error(), "mix \"nope\", position 1: found \"nope\", expected lowres, "
                                       "mixres, joint, lowres4k, clips, wan or codes such as "
                                       "g16b4i256f1s0");
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
  kf_batch *batch = NULL;
  fail_alloc(1);
  assert_int_equal(kf_mix_create("wan", 0, 0, &batch), KF_ENOMEM);
  assert_int_equal(fail_alloc(0), 1); /* a block is all it takes */
  assert_null(batch);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_named),       cmocka_unit_test(test_lengths),
    cmocka_unit_test(test_cycle),       cmocka_unit_test(test_profiles),
    cmocka_unit_test(test_wan_samples), cmocka_unit_test(test_wan_shares),
    cmocka_unit_test(test_wan_ranks),   cmocka_unit_test(test_empty_ranks),
    cmocka_unit_test(test_bad),         cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
