/* SPDX-License-Identifier: Apache-2.0 */
/*
** The mix `wan`: a data set of images and videos as Wan sees them, for making batches of. Every
** sample of every rank is drawn alike:
**
**     3 of 5   an image of one of six token grids, evenly
**     2 of 5   a video, two of three small, of 5 to 21 latent frames, evenly
**
** A token covers 16x16 pixels of a latent frame; a video's first frame is a latent frame and so
** are every 4 further ones. There is no text. 40 distinct lengths, 256 to 75,600 tokens.
*/
#include <math.h>

#include "batch.h"
#include "mix.h"

enum { PIXELS = 16, RANKS = 16, SAMPLES = 400, LEAST_LATENT = 5, LATENT_CHOICES = 17 };

typedef struct grid {
  int32_t width, height; /* tokens of a latent frame */
} grid;

static const grid image[] = {{16, 16}, {32, 32}, {52, 30}, {64, 64}, {80, 45}, {120, 68}};
static const grid small_video = {52, 30}, large_video = {80, 45};

_Static_assert(KF_MAX_SEQS / SAMPLES >= KF_MAX_RANKS, "any number of ranks fits a batch");

static int64_t draw_sample(kfi_draw d, kf_profile *profile) {
  int64_t latent = 1;
  grid g;
  if (kfi_draw_next(&d, 5) < 3) {
    g = image[kfi_draw_next(&d, sizeof image / sizeof *image)];
  } else {
    g = kfi_draw_next(&d, 3) < 2 ? small_video : large_video;
    latent = LEAST_LATENT + kfi_draw_next(&d, LATENT_CHOICES);
  }
  int64_t tokens = g.width * g.height;
  *profile = (kf_profile){.kind = latent == 1 ? KF_KIND_IMAGE : KF_KIND_VIDEO,
                          .resolution = (int32_t)(PIXELS * sqrt((double)tokens) + 0.5),
                          .frames = (int32_t)(4 * (latent - 1) + 1)};
  return tokens * latent;
}

kf_status kfi_wan_create(int32_t n_ranks, uint64_t seed, kf_batch **out) {
  if (n_ranks == 0) n_ranks = RANKS;
  int64_t *rank_off, *len, n = 0;
  kf_profile *profile;
  kf_status status =
    kfi_batch_alloc(n_ranks, (int64_t)n_ranks * SAMPLES, out, &rank_off, &len, &profile);
  if (status) return status;
  for (int32_t r = 0; r < n_ranks; r++) {
    rank_off[r] = n;
    for (int64_t i = 0; i < SAMPLES; i++, n++)
      len[n] = draw_sample(kfi_draw_start(seed, r, i), &profile[n]);
  }
  rank_off[n_ranks] = n;
  return KF_OK;
}
