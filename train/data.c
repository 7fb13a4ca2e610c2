/* SPDX-License-Identifier: Apache-2.0 */
/*
** A mix as training data.
**
**     mix, seed, step --> lengths of all ranks
**                     --> this rank's samples: scene --> data, words --noise, time--> rows, targets
**
** A mix differs from step to step by its texts only, and how long those are the public header says.
** So the mix is read once, and a step is drawn without it. Which samples a rank has, and how many
** rows they take at most, is the same at every step, too: there is one block for lengths, made at
** the beginning, and one for rows, made when a step is drawn first. Nothing is allocated later.
**
**     | train_data | rank_off | visual | len | sample |      | rows | targets | words |
**
** What is drawn for a sample is a function of seed, step and the sample's number (random.h): it
** does not depend on who draws it, or when.
*/
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "buffer.h"
#include "random.h"

enum { PIXELS = 16, MOST_TEXT = 392, RANK_TOKENS = 2500 };
static const double MOST_SCALE = 1000;

struct train_data {
  double scale;
  uint64_t seed;
  int32_t rank;
  kf_batch *mix;     /* at step 0, unscaled: whose ranks and profiles are those of all steps */
  kf_batch batch;    /* of the last step that was asked for: it points at our arrays */
  int64_t *rank_off; /* (n_ranks + 1) */
  int64_t *visual;   /* (n_seqs) tokens, scaled */
  int64_t *len;      /* (n_seqs) with text */
  int64_t *sample;   /* (this rank's) numbers */
  int64_t most_rows, most_words; /* of this rank, of a sample: with the longest texts there are */
  train_row *row;                /* (most_rows) the second block; NULL: nothing was drawn yet */
  float *target;                 /* (most_rows, TRAIN_VALUES) */
  int32_t *word;                 /* (most_words) of the sample that is being drawn */
};

/* -------------------------------------------------------------------------- lengths */

/* Half is rounded up. */
static int64_t scaled(int64_t tokens, double scale) {
  return (int64_t)floor((double)tokens * scale + 0.5);
}

/* As the public header has it: text tokens of sample i of a rank of the mix. */
static int64_t text_of(uint64_t seed, int32_t rank, int64_t i) {
  uint64_t state = seed << 40 ^ (uint64_t)rank << 20 ^ (uint64_t)i;
  return (int64_t)(kf_splitmix64(state) % (MOST_TEXT + 1));
}

/* Whole numbers: 85 / 3.4 is 25. */
static int64_t latent_of(const kf_profile *p) {
  return p->kind == KF_KIND_VIDEO ? (int64_t)p->frames * 10 / 34 : p->frames;
}

/* The mix with its own ranks, or, where there are more ranks, with as many. */
static kf_status read_mix(const train_data_options *o, kf_batch **out) {
  kf_batch *mix = NULL;
  kf_status status = kf_mix_create(o->mix, 0, o->seed, &mix);
  if (!status && mix->n_ranks < o->n_ranks) {
    kf_batch_free(mix);
    status = kf_mix_create(o->mix, o->n_ranks, o->seed, &mix);
  }
  if (!status) *out = mix;
  return status;
}

/* Tokens of all samples, and proof that text and visual ones can be told apart: what is not text
** must be what the profile says, or nothing (a video of too few frames has no latent one). */
static kf_status check_mix(const train_data_options *o, const kf_batch *mix, int64_t *tokens) {
  *tokens = 0;
  for (int32_t r = 0; r < mix->n_ranks; r++)
    for (int64_t j = mix->rank_off[r]; j < mix->rank_off[r + 1]; j++) {
      const kf_profile *p = &mix->profile[j];
      int64_t side = p->resolution / PIXELS;
      int64_t visual = mix->len[j] - text_of(o->seed, r, j - mix->rank_off[r]);
      if (visual != 0 && visual != side * side * latent_of(p))
        return train_fail(
          KF_EINVAL,
          "train data: mix \"%.200s\" does not tell text from visual tokens, expected "
          "lowres, mixres, joint, lowres4k, clips or codes such as g16b4i256f1s0",
          o->mix);
      *tokens += mix->len[j];
    }
  return KF_OK;
}

/* No step may have more than a batch can hold. */
static kf_status check_lengths(const train_data *d, const char *mix) {
  int64_t text = d->most_words, tokens = 0;
  for (int64_t j = 0; j < d->batch.n_seqs; j++) {
    if (d->visual[j] > KF_MAX_LEN - text)
      return train_fail(KF_EINVAL,
                        "train data: scale %g makes up to %" PRId64 " tokens of sample %" PRId64
                        " of mix \"%.200s\", expected at most 2^32",
                        d->scale, d->visual[j] + text, j, mix);
    tokens += d->visual[j] + text; /* at most 2^30 of 2^32: no overflow */
  }
  if (tokens > KF_MAX_TOKENS)
    return train_fail(KF_EINVAL,
                      "train data: scale %g makes up to %" PRId64
                      " tokens of mix \"%.200s\", expected at most 2^52",
                      d->scale, tokens, mix);
  return KF_OK;
}

/* What is the same at every step. */
static void set_lengths(train_data *d) {
  const kf_batch *mix = d->mix;
  int64_t *rank_off = d->rank_off, mine = 0;
  int64_t m = mix->n_seqs, n = d->batch.n_ranks;
  for (int64_t r = 0; r <= n; r++) /* the least j with j * n / m >= r */
    rank_off[r] = n < mix->n_ranks ? (r * m + n - 1) / n : mix->rank_off[r];
  for (int32_t r = 0; r < mix->n_ranks; r++)
    for (int64_t j = mix->rank_off[r]; j < mix->rank_off[r + 1]; j++) {
      int64_t visual = mix->len[j] - text_of(d->seed, r, j - mix->rank_off[r]);
      int64_t tokens = scaled(visual, d->scale);
      d->visual[j] = visual > 0 && tokens == 0 ? 1 : tokens;
    }
  d->most_words = scaled(MOST_TEXT, d->scale);
  for (int64_t j = rank_off[d->rank]; j < rank_off[d->rank + 1]; j++) {
    d->sample[mine++] = j;
    d->most_rows += d->visual[j] + d->most_words;
  }
}

/* What a step decides. */
static kf_status draw_lengths(train_data *d, int64_t step) {
  if (step < 0)
    return train_fail(KF_EINVAL, "train data: step %" PRId64 " wanted, expected 0 or more", step);
  const kf_batch *mix = d->mix;
  uint64_t seed = d->seed + (uint64_t)step;
  for (int32_t r = 0; r < mix->n_ranks; r++)
    for (int64_t j = mix->rank_off[r]; j < mix->rank_off[r + 1]; j++)
      d->len[j] = d->visual[j] + scaled(text_of(seed, r, j - mix->rank_off[r]), d->scale);
  return KF_OK;
}

kf_status train_data_lengths(train_data *data, int64_t step, const kf_batch **out) {
  kf_status status = draw_lengths(data, step);
  if (!status) *out = &data->batch;
  return status;
}

/* --------------------------------------------------------------------- create, free */

static kf_status check_options(const train_data_options *o) {
  if (!o->mix) return train_fail(KF_EINVAL, "train data: no mix, expected one");
  if (o->n_ranks < 1 || o->n_ranks > KF_MAX_RANKS || o->rank < 0 || o->rank >= o->n_ranks)
    return train_fail(
      KF_EINVAL, "train data: rank %" PRId32 " of %" PRId32 " wanted, expected 0 to %d of 1 to %d",
      o->rank, o->n_ranks, KF_MAX_RANKS - 1, KF_MAX_RANKS);
  if (!(o->scale >= 0 && o->scale <= MOST_SCALE))
    return train_fail(KF_EINVAL,
                      "train data: scale %g, expected above 0 and at most %g, or 0 for the default",
                      o->scale, MOST_SCALE);
  return KF_OK;
}

/* The first block: all but the rows. */
static train_data *allocate(const kf_batch *mix, int32_t n_ranks) {
  uint64_t n_bytes = sizeof(train_data) + 8 * ((uint64_t)n_ranks + 1 + 3 * (uint64_t)mix->n_seqs);
  train_data *d = n_bytes <= SIZE_MAX ? malloc((size_t)n_bytes) : NULL;
  if (!d) {
    train_fail(KF_ENOMEM, "out of memory: %" PRIu64 " bytes for the lengths of a mix", n_bytes);
    return NULL;
  }
  *d = (train_data){.rank_off = (int64_t *)(d + 1)};
  d->visual = d->rank_off + n_ranks + 1;
  d->len = d->visual + mix->n_seqs;
  d->sample = d->len + mix->n_seqs;
  d->batch = (kf_batch){.n_ranks = n_ranks,
                        .n_seqs = mix->n_seqs,
                        .rank_off = d->rank_off,
                        .len = d->len,
                        .profile = mix->profile};
  return d;
}

kf_status train_data_create(const train_data_options *options, train_data **out) {
  kf_batch *mix = NULL;
  train_data *d = NULL;
  int64_t tokens = 0;
  kf_status status = check_options(options);
  if (!status) status = read_mix(options, &mix);
  if (!status) status = check_mix(options, mix, &tokens);
  if (status) goto fail;
  if (!(d = allocate(mix, options->n_ranks))) {
    status = KF_ENOMEM;
    goto fail;
  }
  d->mix = mix;
  d->rank = options->rank;
  d->seed = options->seed;
  d->scale = options->scale;
  if (d->scale == 0) d->scale = fmin(1, (double)RANK_TOKENS * options->n_ranks / (double)tokens);
  set_lengths(d);
  if ((status = check_lengths(d, options->mix))) goto fail;
  *out = d;
  return KF_OK;

fail:
  kf_batch_free(mix);
  free(d);
  return status;
}

void train_data_free(train_data *data) {
  if (!data) return;
  kf_batch_free(data->mix);
  free(data->row);
  free(data);
}

double train_data_scale(const train_data *data) { return data->scale; }

/* --------------------------------------------------------------------------- drawing */

/* What is drawn for a sample, each with a counter of its key; a normal number takes two. */
enum { TIME, LABEL = TIME + 2, LABEL_GIVEN, SCENE, NOISE };

static uint64_t sample_key(const train_data *d, int64_t step, int64_t sample) {
  return train_bits(train_bits(d->seed, (uint64_t)step), (uint64_t)sample);
}

train_scene train_data_scene(const train_data *data, int64_t step, int64_t sample) {
  uint64_t key = sample_key(data, step, sample);
  int64_t n = data->visual[sample], latent = latent_of(&data->batch.profile[sample]);
  int64_t frames = (int64_t)floor((double)latent * cbrt(data->scale) + 0.5);
  if (frames > latent) frames = latent;
  if (frames < 1) frames = 1;
  int64_t height = (int64_t)ceil(sqrt((double)n / (double)frames));
  if (height < 1) height = 1; /* nothing to see */
  int64_t width = (n + frames * height - 1) / (frames * height);
  return (train_scene){.frames = (int32_t)frames,
                       .height = (int32_t)height,
                       .width = (int32_t)(width < 1 ? 1 : width),
                       .label = (int32_t)(train_uniform(key, LABEL) * TRAIN_LABELS),
                       .seed = train_bits(key, SCENE)};
}

static void draw_text(const train_data *d, const train_scene *scene, int64_t n, train_row *row) {
  train_scene_words(scene, n, d->word);
  for (int64_t i = 0; i < n; i++)
    row[i] = (train_row){.word = d->word[i], .at = {(int32_t)(-1 - i), 0, 0}};
}

/* Rectified flow: a straight way from data at time 0 to noise at time 1, along which the model
** shall predict the velocity, noise - data. The data is drawn where the target will be. */
static void draw_visual(const train_scene *scene, uint64_t noise_key, int64_t n, float time,
                        train_row *row, float *target) {
  train_scene_draw(scene, n, target);
  int64_t frame_tokens = (int64_t)scene->height * scene->width;
  for (int64_t i = 0; i < n; i++, row++, target += TRAIN_VALUES) {
    int64_t in_frame = i % frame_tokens;
    row->word = -1;
    row->at[0] = (int32_t)(i / frame_tokens);
    row->at[1] = (int32_t)(in_frame / scene->width);
    row->at[2] = (int32_t)(in_frame % scene->width);
    for (int k = 0; k < TRAIN_VALUES; k += 2) {
      double pair[2];
      train_normal_pair(noise_key, (uint64_t)(i * TRAIN_VALUES + k) / 2, pair);
      for (int h = 0; h < 2; h++) {
        float data = target[k + h], noise = (float)pair[h];
        row->value[k + h] = (1 - time) * data + time * noise;
        target[k + h] = noise - data;
      }
    }
  }
}

/* A sample's rows: text, then visual. */
static void draw_sample(const train_data *d, int64_t step, int64_t sample, train_row *row,
                        float *target) {
  uint64_t key = sample_key(d, step, sample);
  train_scene scene = train_data_scene(d, step, sample);
  int64_t len = d->len[sample], visual = d->visual[sample], text = len - visual;
  /* Logit-normal, which dwells where data and noise are both seen; and one label of ten is kept
  ** back, so that the model also learns to do without (classifier-free guidance). */
  float time = (float)(1 / (1 + exp(-train_normal(key, TIME))));
  int32_t label = train_uniform(key, LABEL_GIVEN) < 0.1 ? TRAIN_LABELS : scene.label;
  draw_text(d, &scene, text, row);
  memset(target, 0, (size_t)text * TRAIN_VALUES * sizeof *target);
  draw_visual(&scene, train_bits(key, NOISE), visual, time, row + text,
              target + text * TRAIN_VALUES);
  for (int64_t i = 0; i < len; i++) {
    row[i].time = time;
    row[i].label = label;
  }
}

/* The second block, once. */
static kf_status reserve_rows(train_data *d) {
  uint64_t rows = (uint64_t)d->most_rows; /* at most 2^52 */
  uint64_t row_bytes = sizeof(train_row) + TRAIN_VALUES * sizeof(float);
  uint64_t n_bytes = rows * row_bytes + (uint64_t)d->most_words * sizeof(int32_t);
  if (d->row) return KF_OK;
  d->row = n_bytes < SIZE_MAX ? malloc((size_t)n_bytes + 1) : NULL; /* + 1: 0 bytes may be NULL */
  if (!d->row)
    return train_fail(
      KF_ENOMEM, "out of memory: %" PRIu64 " bytes for up to %" PRId64 " rows of rank %" PRId32,
      n_bytes, d->most_rows, d->rank);
  d->target = (float *)(d->row + rows);
  d->word = (int32_t *)(d->target + rows * TRAIN_VALUES);
  return KF_OK;
}

kf_status train_data_step(train_data *data, int64_t step, train_batch *out) {
  kf_status status = draw_lengths(data, step);
  if (!status) status = reserve_rows(data);
  if (status) return status;
  int64_t first = data->batch.rank_off[data->rank], end = data->batch.rank_off[data->rank + 1];
  train_batch b = {.n_seqs = end - first,
                   .sample = data->sample,
                   .len = data->len + first,
                   .profile = data->batch.profile + first,
                   .row = data->row,
                   .target = data->target};
  for (int64_t j = first; j < end; j++) {
    draw_sample(data, step, j, data->row + b.n_rows, data->target + b.n_rows * TRAIN_VALUES);
    b.n_rows += data->len[j];
    b.n_visual += data->visual[j];
  }
  *out = b;
  return KF_OK;
}
