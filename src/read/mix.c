/* SPDX-License-Identifier: Apache-2.0 */
/*
** A batch from a mix: what the data of a training job looks like, in a few letters.
**
** A code g16b4i256f1s0 stands for 16 ranks, each with 4 samples of 256x256 pixels and 1 frame.
** A token covers 16x16 pixels of a latent frame. Frames of images and keyframes (s0) are
** latent frames; a video (s1) has int(frames / 3.4) of them. Each sample gets 0..392 text
** tokens, drawn as mix.h says. What a code says of its samples is their profile.
**
** Names stand for codes, but for `wan`, whose samples are all drawn: wan.c.
*/
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../status.h"
#include "../text.h"
#include "batch.h"
#include "mix.h"

enum { PIXELS = 16, TEXT_CHOICES = 393 };

typedef struct code {
  int64_t n_ranks, n_samples;
  int64_t visual; /* tokens of a sample without its text */
  kf_profile profile;
} code;

static const struct {
  const char *name, *codes;
} named[] = {
  {"lowres", "g32b32i256f1s0"},
  {"mixres", "g16b4i256f1s0,g4b5i512f1s0,g4b5i1024f1s0,g8b1i2048f1s0"},
  {"joint", "g8b4i256f1s0,g2b5i512f1s0,g2b5i1024f1s0,g4b1i2048f1s0,g1b10i256f4s0,g3b1i512f4s0,"
            "g8b2i256f85s1,g4b1i512f85s1"},
  {"lowres4k", "g24b16i256f1s0,g8b1i2880f1s0"},
  {"clips", "g16b4i256f17s1,g12b1i512f34s1,g4b1i512f85s1"},
};

/* -------------------------------------------------------------------- reading */

/* A letter and its number. */
static kf_status read_part(kfi_text *t, const char *letter, int64_t min, int64_t max,
                           int64_t *out) {
  if (!kfi_text_take(t, letter)) {
    char expected[80];
    strcpy(expected, "\"_\" and a number, as in g16b4i256f1s0");
    expected[1] = letter[0];
    return kfi_text_bad(t, expected);
  }
  return kfi_text_int(t, min, max, out);
}

static kf_status read_code(kfi_text *t, code *out) {
  int64_t pixels, frames, video;
  kf_status status;
  kfi_text start = *t, side_at;
  if ((status = read_part(t, "g", 1, KF_MAX_RANKS, &out->n_ranks))) return status;
  if ((status = read_part(t, "b", 0, KF_MAX_SEQS, &out->n_samples))) return status;
  side_at = *t;
  side_at.at++;
  if ((status = read_part(t, "i", PIXELS, 1 << 20, &pixels))) return status;
  if (pixels % PIXELS != 0) return kfi_text_bad(&side_at, "a multiple of 16 pixels");
  if ((status = read_part(t, "f", 1, 1 << 20, &frames))) return status;
  if ((status = read_part(t, "s", 0, 1, &video))) return status;
  int64_t side = pixels / PIXELS;                     /* at most 2^16 */
  int64_t latent = video ? frames * 10 / 34 : frames; /* whole numbers: 85 / 3.4 is 25 */
  out->visual = side * side * latent;                 /* at most 2^52 */
  if (out->visual > KF_MAX_LEN - TEXT_CHOICES)
    return kfi_text_bad(&start, "fewer than 2^32 tokens a sample");
  out->profile = (kf_profile){.kind = frames == 1 ? KF_KIND_IMAGE
                                      : video     ? KF_KIND_VIDEO
                                                  : KF_KIND_KEYFRAMES,
                              .resolution = (int32_t)pixels,
                              .frames = (int32_t)frames};
  return KF_OK;
}

/* All codes of a text, in a block that the caller frees. */
static kf_status read_codes(kfi_text *t, code **out, int64_t *n_codes) {
  size_t most = 1;
  for (const char *p = t->at; p < t->end; p++) most += *p == ',';
  code *codes = malloc(most * sizeof *codes);
  if (!codes) return kfi_fail_memory(most * sizeof *codes, "the codes of a mix");
  kf_status status = KF_OK;
  int64_t n = 0, n_ranks = 0;
  do {
    kfi_text start = *t;
    if ((status = read_code(t, &codes[n]))) goto fail;
    n_ranks += codes[n++].n_ranks;
    if (n_ranks > KF_MAX_RANKS) {
      status = kfi_text_bad(&start, "at most 1048576 ranks in all");
      goto fail;
    }
  } while (kfi_text_take(t, ","));
  if ((status = kfi_text_end(t, "\",\" and another code, or the end"))) goto fail;
  *out = codes;
  *n_codes = n;
  return KF_OK;

fail:
  free(codes);
  return status;
}

/* ------------------------------------------------------------------- the batch */

/* Walks ranks 0, 1, 2, .. and tells each one's code; after the last code comes the first. */
typedef struct walk {
  const code *codes;
  int64_t n_codes, at, left;
} walk;

static const code *next_rank(walk *w) {
  if (w->left == 0) {
    w->at = (w->at + 1) % w->n_codes;
    w->left = w->codes[w->at].n_ranks;
  }
  w->left--;
  return &w->codes[w->at];
}

static walk walk_start(const code *codes, int64_t n_codes) {
  return (walk){.codes = codes, .n_codes = n_codes, .at = n_codes - 1, .left = 0};
}

/* Refuse what no batch can hold, before allocating it. */
static kf_status check_size(const kfi_text *t, const code *codes, int64_t n_codes, int32_t n_ranks,
                            int64_t *n_seqs) {
  walk w = walk_start(codes, n_codes);
  int64_t seqs = 0, tokens = 0;
  for (int32_t r = 0; r < n_ranks; r++) {
    const code *c = next_rank(&w);
    seqs += c->n_samples;
    if (seqs > KF_MAX_SEQS)
      return kfi_fail(KF_EINVAL,
                      "mix \"%.200s\": more than %" PRId64 " sequences on %" PRId32
                      " ranks, expected at most that many",
                      t->begin, KF_MAX_SEQS, n_ranks);
    tokens += c->n_samples * (c->visual + TEXT_CHOICES); /* at most 2^30 of 2^32: no overflow */
  }
  if (tokens > KF_MAX_TOKENS)
    return kfi_fail(KF_EINVAL,
                    "mix \"%.200s\": up to %" PRId64 " tokens on %" PRId32
                    " ranks, expected at most 2^52",
                    t->begin, tokens, n_ranks);
  *n_seqs = seqs;
  return KF_OK;
}

static void fill(walk w, int32_t n_ranks, uint64_t seed, int64_t *rank_off, int64_t *len,
                 kf_profile *profile) {
  int64_t n = 0;
  for (int32_t r = 0; r < n_ranks; r++) {
    const code *c = next_rank(&w);
    rank_off[r] = n;
    for (int64_t i = 0; i < c->n_samples; i++) {
      kfi_draw text = kfi_draw_start(seed, r, i);
      profile[n] = c->profile;
      len[n++] = c->visual + kfi_draw_next(&text, TEXT_CHOICES);
    }
  }
  rank_off[n_ranks] = n;
}

static kf_status create_from_codes(kfi_text *t, int32_t n_ranks, uint64_t seed, kf_batch **out) {
  code *codes = NULL;
  int64_t n_codes = 0, n_seqs = 0, *rank_off = NULL, *len = NULL;
  kf_profile *profile = NULL;
  kf_status status = read_codes(t, &codes, &n_codes);
  if (status != KF_OK) return status;
  if (n_ranks == 0)
    for (int64_t i = 0; i < n_codes; i++) n_ranks += (int32_t)codes[i].n_ranks;
  status = check_size(t, codes, n_codes, n_ranks, &n_seqs);
  if (!status) status = kfi_batch_alloc(n_ranks, n_seqs, out, &rank_off, &len, &profile);
  if (!status) fill(walk_start(codes, n_codes), n_ranks, seed, rank_off, len, profile);
  free(codes);
  return status;
}

kf_status kf_mix_create(const char *mix, int32_t n_ranks, uint64_t seed, kf_batch **out) {
  if (!mix || !out) return kfi_fail(KF_EINVAL, "mix: a NULL argument");
  if (n_ranks < 0 || n_ranks > KF_MAX_RANKS)
    return kfi_fail(KF_EINVAL, "mix: %" PRId32 " ranks wanted, expected 0 to %d", n_ranks,
                    KF_MAX_RANKS);
  kfi_text t = kfi_text_open("mix", mix);
  if (kfi_text_is(&t, "wan")) return kfi_wan_create(n_ranks, seed, out);
  bool known = false;
  for (size_t i = 0; i < sizeof named / sizeof *named && !known; i++)
    if ((known = kfi_text_is(&t, named[i].name))) t = kfi_text_open("mix", named[i].codes);
  if (!known && !(t.end - t.at >= 2 && t.at[0] == 'g' && t.at[1] >= '0' && t.at[1] <= '9'))
    return kfi_text_bad(
      &t, "lowres, mixres, joint, lowres4k, clips, wan or codes such as g16b4i256f1s0");
  return create_from_codes(&t, n_ranks, seed, out);
}
