/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fail_alloc.h"
#include "train/train.h"

/* Images, keyframes, videos, a rank without samples, a video without latent frames. 5 ranks. */
static const char small[] = "g1b4i256f1s0,g1b2i128f4s0,g1b0i256f1s0,g1b3i96f27s1,g1b1i64f3s1";

static train_data *make(const char *mix, double scale, uint64_t seed, int32_t rank,
                        int32_t n_ranks) {
  train_data_options options = {mix, scale, seed, rank, n_ranks};
  train_data *data = NULL;
  if (train_data_create(&options, &data)) fail_msg("%s", kf_last_error());
  return data;
}

static kf_batch *mix_of(const char *mix, int32_t n_ranks, uint64_t seed) {
  kf_batch *batch = NULL;
  if (kf_mix_create(mix, n_ranks, seed, &batch)) fail_msg("%s", kf_last_error());
  return batch;
}

static const kf_batch *lengths(train_data *data, int64_t step) {
  const kf_batch *batch = NULL;
  if (train_data_lengths(data, step, &batch)) fail_msg("%s", kf_last_error());
  return batch;
}

static train_batch draw(train_data *data, int64_t step) {
  train_batch batch = {0};
  if (train_data_step(data, step, &batch)) fail_msg("%s", kf_last_error());
  return batch;
}

/* What a mix's sample has, written down once more. */
static int64_t visual_of(const kf_profile *p) {
  int64_t side = p->resolution / 16;
  return side * side * (p->kind == KF_KIND_VIDEO ? p->frames * 10 / 34 : p->frames);
}

static int64_t scaled(int64_t tokens, double scale) {
  return (int64_t)floor((double)tokens * scale + .5);
}

static int64_t scaled_visual(const kf_profile *p, double scale) {
  int64_t tokens = visual_of(p);
  return tokens > 0 && scaled(tokens, scale) < 1 ? 1 : scaled(tokens, scale);
}

/* -------------------------------------------------------------------------- lengths */

/* With scale 1 on the mix's own ranks or more, a step is the mix of seed + step. */
static void test_is_the_mix(void **state) {
  (void)state;
  static const char *const mix[] = {"lowres", "mixres", "joint", "lowres4k", "clips", small};
  static const int32_t n_ranks[] = {32, 40, 64};
  static const uint64_t seed[] = {0, 5, UINT64_MAX - 1}; /* the last one wraps */
  for (int m = 0; m < 6; m++)
    for (int k = 0; k < 3; k++) {
      train_data *data = make(mix[m], 1, seed[k], 0, n_ranks[k]);
      for (int64_t step = 0; step < 4; step++) {
        kf_batch *want = mix_of(mix[m], n_ranks[k], seed[k] + (uint64_t)step);
        const kf_batch *found = lengths(data, step);
        assert_int_equal(found->n_ranks, want->n_ranks);
        assert_int_equal(found->n_seqs, want->n_seqs);
        assert_memory_equal(found->rank_off, want->rank_off, ((size_t)n_ranks[k] + 1) * 8);
        assert_memory_equal(found->len, want->len, (size_t)want->n_seqs * 8);
        assert_memory_equal(found->profile, want->profile,
                            (size_t)want->n_seqs * sizeof(kf_profile));
        assert_null(found->factor);
        kf_batch_free(want);
      }
      train_data_free(data);
    }
}

/* Text and visual tokens are scaled each by itself; sample j of m is on rank floor(j * n / m). */
static void test_scaled(void **state) {
  (void)state;
  static const double scale[] = {1, 0.5, 0.0135, 0.001, 1e-9, 2.25};
  static const int32_t n_ranks[] = {1, 2, 3, 5, 16, 31};
  for (int f = 0; f < 6; f++)
    for (int k = 0; k < 6; k++) {
      int64_t step = 3 * k;
      kf_batch *mix = mix_of("joint", 0, 7 + (uint64_t)step);
      train_data *data = make("joint", scale[f], 7, 0, n_ranks[k]);
      const kf_batch *found = lengths(data, step);
      assert_true(train_data_scale(data) == scale[f]);
      assert_int_equal(found->n_ranks, n_ranks[k]);
      assert_int_equal(found->n_seqs, mix->n_seqs);
      assert_int_equal(found->rank_off[0], 0);
      assert_int_equal(found->rank_off[n_ranks[k]], mix->n_seqs);
      for (int64_t j = 0; j < mix->n_seqs; j++) {
        const kf_profile *p = &mix->profile[j];
        int64_t visual = scaled_visual(p, scale[f]), home = j * n_ranks[k] / mix->n_seqs;
        assert_in_range(j, found->rank_off[home], found->rank_off[home + 1] - 1);
        assert_int_equal(found->len[j], visual + scaled(mix->len[j] - visual_of(p), scale[f]));
        assert_memory_equal(&found->profile[j], p, sizeof *p);
        if (scale[f] < 1e-6) assert_int_equal(found->len[j], 1);
      }
      train_data_free(data);
      kf_batch_free(mix);
    }
}

/* The tokens of the named mixes are those that test_mix.c knows. */
static void test_default_scale(void **state) {
  (void)state;
  static const struct {
    const char *mix;
    int32_t n_ranks;
    double scale;
  } want[] = {{"joint", 2, 5000. / 370122},   {"joint", 1, 2500. / 370122},
              {"joint", 32, 80000. / 370122}, {"lowres", 4, 10000. / 468587},
              {"g1b1i256f1s0", 1, 1},         {"g1b0i256f1s0", 1, 1}};
  for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
    train_data *data = make(want[i].mix, 0, 0, 0, want[i].n_ranks);
    assert_true(train_data_scale(data) == want[i].scale);
    train_data_free(data);
  }
  kf_batch *mix = mix_of("joint", 64, 9); /* more ranks than its own: the mix goes round */
  train_data *data = make("joint", 0, 9, 0, 64);
  double tokens = 0;
  for (int64_t j = 0; j < mix->n_seqs; j++) tokens += (double)mix->len[j];
  assert_true(train_data_scale(data) == 2500. * 64 / tokens);
  tokens = 0;
  const kf_batch *found = lengths(data, 0);
  for (int64_t j = 0; j < found->n_seqs; j++) tokens += (double)found->len[j];
  assert_true(fabs(tokens - 2500 * 64) < 200);
  train_data_free(data);
  kf_batch_free(mix);
}

/* ------------------------------------------------------------------------ who draws */

/* All samples of a step, drawn by one rank. */
typedef struct whole {
  train_data *data;
  train_batch batch;
  int64_t off[2000]; /* rows before each sample */
} whole;

static void draw_whole(whole *w, const char *mix, double scale, int64_t step) {
  w->data = make(mix, scale, 3, 0, 1);
  w->batch = draw(w->data, step);
  assert_in_range(w->batch.n_seqs, 1, 1999);
  w->off[0] = 0;
  for (int64_t j = 0; j < w->batch.n_seqs; j++) w->off[j + 1] = w->off[j] + w->batch.len[j];
}

/* Rank `rank` of n, against the whole; samples follow on each other. Returns the next one. */
static int64_t compare(const whole *w, train_data *data, int32_t rank, int64_t step, int64_t next) {
  kf_batch all = *lengths(data, step);
  train_batch b = draw(data, step);
  int64_t rows = 0, visual = 0;
  assert_int_equal(b.n_seqs, all.rank_off[rank + 1] - all.rank_off[rank]);
  for (int64_t i = 0; i < b.n_seqs; i++, next++) {
    assert_int_equal(b.sample[i], next);
    assert_int_equal(b.len[i], all.len[next]);
    assert_memory_equal(&b.profile[i], &all.profile[next], sizeof *b.profile);
    for (int64_t k = 0; k < b.len[i]; k++) visual += b.row[rows + k].word < 0;
    if (next < w->batch.n_seqs) {
      size_t n = (size_t)b.len[i];
      assert_int_equal(b.len[i], w->batch.len[next]);
      assert_memory_equal(b.row + rows, w->batch.row + w->off[next], n * sizeof *b.row);
      assert_memory_equal(b.target + rows * TRAIN_VALUES,
                          w->batch.target + w->off[next] * TRAIN_VALUES, n * TRAIN_VALUES * 4);
    }
    rows += b.len[i];
  }
  assert_int_equal(rows, b.n_rows);
  assert_int_equal(visual, b.n_visual);
  return next;
}

/* Together the ranks have each sample once, the same to the bit on any number of ranks; on more
** ranks than the mix has there are more samples, and the first are the same. */
static void test_ranks(void **state) {
  (void)state;
  static const struct {
    const char *mix;
    double scale;
    int32_t n_ranks;
  } trial[] = {{"joint", .0135, 1},  {"joint", .0135, 2},  {"joint", .0135, 3},
               {"joint", .0135, 5},  {"joint", .0135, 16}, {"joint", .0135, 32},
               {"joint", .0135, 64}, {"lowres", .01, 3},   {"clips", .02, 7},
               {small, 1, 1},        {small, 1, 3},        {small, 1, 5},
               {small, 1, 16}};
  static whole w;
  for (size_t i = 0; i < sizeof trial / sizeof *trial; i++)
    for (int64_t step = 0; step < 12; step += 4) {
      int64_t next = 0;
      draw_whole(&w, trial[i].mix, trial[i].scale, step);
      for (int32_t r = 0; r < trial[i].n_ranks; r++) {
        train_data *data = make(trial[i].mix, trial[i].scale, 3, r, trial[i].n_ranks);
        next = compare(&w, data, r, step, next);
        if (r == trial[i].n_ranks - 1) assert_int_equal(next, lengths(data, step)->n_seqs);
        train_data_free(data);
      }
      train_data_free(w.data);
    }
}

/* What was drawn before does not matter; steps and seeds do. */
static void test_order(void **state) {
  (void)state;
  static whole w;
  draw_whole(&w, small, .5, 6);
  train_data *data = make(small, .5, 3, 0, 1), *other = make(small, .5, 4, 0, 1);
  static const int64_t step[] = {9, 6, 0, 6, 6, 1000000, 5, 6};
  for (int i = 0; i < 8; i++) {
    if (i % 2) lengths(data, 17);
    train_batch b = draw(data, step[i]);
    size_t n = (size_t)b.n_rows * sizeof *b.row;
    bool same = b.n_rows == w.batch.n_rows && memcmp(b.row, w.batch.row, n) == 0;
    assert_int_equal(same, step[i] == 6);
  }
  train_batch a = draw(data, 1), b = draw(other, 0); /* the same lengths, other content */
  assert_int_equal(a.n_rows, b.n_rows);
  for (int64_t i = 0; i < a.n_rows; i++)
    if (a.row[i].word < 0)
      assert_memory_not_equal(a.row[i].value, b.row[i].value, sizeof a.row[i].value);
  train_data_free(data);
  train_data_free(other);
  train_data_free(w.data);
}

/* --------------------------------------------------------------------- what is drawn */

/* One sample's rows: text, then visual, all of the same time and label. */
static void check_text(const train_batch *b, int64_t row, const train_scene *scene, int64_t n) {
  int32_t *word = malloc(((size_t)n + 1) * sizeof *word);
  static const float zero[TRAIN_VALUES];
  assert_non_null(word);
  train_scene_words(scene, n, word);
  for (int64_t i = 0; i < n; i++) {
    const train_row *r = &b->row[row + i];
    assert_int_equal(r->word, word[i]);
    assert_true(r->at[0] == -1 - i && r->at[1] == 0 && r->at[2] == 0);
    assert_memory_equal(r->value, zero, sizeof zero);
    assert_memory_equal(b->target + (row + i) * TRAIN_VALUES, zero, sizeof zero);
  }
  free(word);
}

/* x_t = (1 - t) * data + t * noise, target = noise - data, with the data drawn anew. */
static void check_visual(const train_batch *b, int64_t row, const train_scene *scene, int64_t n) {
  float *data = malloc(((size_t)n + 1) * TRAIN_VALUES * sizeof *data);
  assert_non_null(data);
  train_scene_draw(scene, n, data);
  for (int64_t i = 0; i < n; i++) {
    const train_row *r = &b->row[row + i];
    const float *target = b->target + (row + i) * TRAIN_VALUES;
    assert_int_equal(r->word, -1);
    assert_in_range(r->at[1], 0, scene->height - 1);
    assert_in_range(r->at[2], 0, scene->width - 1);
    assert_int_equal(((int64_t)r->at[0] * scene->height + r->at[1]) * scene->width + r->at[2], i);
    for (int v = 0; v < TRAIN_VALUES; v++) {
      float clean = data[i * TRAIN_VALUES + v], noise = target[v] + clean;
      float want = (1 - r->time) * clean + r->time * noise;
      assert_true(fabsf(r->value[v] - want) <= 1e-6f * (1 + fabsf(noise)));
    }
  }
  free(data);
}

static void test_rows(void **state) {
  (void)state;
  static const double scale[] = {1, .1, 1.7};
  for (int f = 0; f < 3; f++) {
    train_data *data = make(small, scale[f], 1, 0, 1);
    for (int64_t step = 0; step < 3; step++) {
      train_batch b = draw(data, step);
      int64_t row = 0;
      for (int64_t i = 0; i < b.n_seqs; i++) {
        train_scene scene = train_data_scene(data, step, b.sample[i]);
        int64_t visual = scaled_visual(&b.profile[i], scale[f]), text = b.len[i] - visual;
        check_text(&b, row, &scene, text);
        check_visual(&b, row + text, &scene, visual);
        for (int64_t k = row; k < row + b.len[i]; k++) {
          assert_true(b.row[k].time == b.row[row].time && b.row[k].label == b.row[row].label);
          assert_true(b.row[k].time > 0 && b.row[k].time < 1);
          assert_true(b.row[k].label == scene.label || b.row[k].label == TRAIN_LABELS);
        }
        row += b.len[i];
      }
      assert_int_equal(row, b.n_rows);
    }
    train_data_free(data);
  }
}

/* With scale 1 a grid is what the profile says; otherwise it is about square, has room for all
** tokens and no row or column too many. */
static void test_grid(void **state) {
  (void)state;
  static const double scale[] = {1, .5, .0135, 1e-6, 3};
  for (int f = 0; f < 5; f++) {
    train_data *data = make("joint", scale[f], 0, 0, 1);
    const kf_batch *all = lengths(data, 0);
    for (int64_t j = 0; j < all->n_seqs; j++) {
      const kf_profile *p = &all->profile[j];
      train_scene s = train_data_scene(data, 0, j);
      int64_t side = p->resolution / 16, n = scaled_visual(p, scale[f]);
      int64_t latent = p->kind == KF_KIND_VIDEO ? p->frames * 10 / 34 : p->frames;
      double frames = fmin(fmax(round((double)latent * cbrt(scale[f])), 1), (double)latent);
      assert_true(s.frames == frames);
      if (scale[f] == 1) assert_true(s.frames == latent && s.height == side && s.width == side);
      assert_true((int64_t)s.frames * s.height * s.width >= n);
      assert_true((int64_t)s.frames * s.height * (s.width - 1) < n);
      assert_in_range(s.height - s.width, 0, 1);
    }
    train_data_free(data);
  }
}

/* By hand: 25 latent frames of 16 x 16, of which a tenth are 640 tokens; cbrt(.1) * 25 is 11.6, so
** 12 frames of 53.3 tokens: 8 high, 7 wide. A code of one frame and s1 has text only. */
static void test_grid_by_hand(void **state) {
  (void)state;
  train_data *data = make("g1b1i256f85s1", .1, 0, 0, 1);
  train_scene s = train_data_scene(data, 0, 0);
  train_batch b = draw(data, 0);
  assert_int_equal(b.n_visual, 640);
  assert_true(s.frames == 12 && s.height == 8 && s.width == 7);
  assert_int_equal(b.row[b.n_rows - 1].at[0], 11); /* 11 * 56 = 616: the last has 24 of 56 */
  assert_int_equal(b.row[b.n_rows - 1].at[1], 3);
  assert_int_equal(b.row[b.n_rows - 1].at[2], 2);
  train_data_free(data);
  data = make("g1b1i256f1s1", 1, 0, 0, 1);
  b = draw(data, 0);
  assert_true(b.n_rows == 79 && b.n_visual == 0 && b.row[78].word >= 0);
  train_data_free(data);
}

/* ----------------------------------------------------------------------- statistics */

typedef struct tally {
  double n, sum, squares;
} tally;

static void add(tally *t, double x) {
  t->n++;
  t->sum += x;
  t->squares += x * x;
}

/* Standard normal, within 5 deviations of mean and variance. */
static void assert_normal(const tally *t) {
  double mean = t->sum / t->n, variance = t->squares / t->n;
  if (fabs(mean) > 5 / sqrt(t->n) || fabs(variance - 1) > 5 * sqrt(2 / t->n))
    fail_msg("mean %g, variance %g of %g numbers", mean, variance, t->n);
}

/* Products of numbers that have nothing in common. */
static void assert_independent(const tally *t) {
  if (fabs(t->sum / t->n) > 5 / sqrt(t->n)) fail_msg("mean product %g", t->sum / t->n);
}

enum { TOKENS = 16, NUMBERS = TOKENS * TRAIN_VALUES };

/* The noise of a sample whose last TOKENS rows are all that is visual. */
static void noise_of(const train_batch *b, int64_t end, const train_scene *scene, double *out) {
  float clean[NUMBERS];
  const float *target = b->target + (end - TOKENS) * TRAIN_VALUES;
  train_scene_draw(scene, TOKENS, clean);
  for (int i = 0; i < NUMBERS; i++) out[i] = (double)(target[i] + clean[i]);
}

/* Noise is normal, and that of a value has nothing in common with that of the next value, token and
** sample. */
static void test_noise(void **state) {
  (void)state;
  train_data *data = make("g1b40i64f1s0", 1, 2, 0, 1);
  tally noise = {0}, value = {0}, token = {0}, sample = {0};
  double x[NUMBERS], last[NUMBERS] = {0};
  for (int64_t step = 0; step < 100; step++) {
    train_batch b = draw(data, step);
    for (int64_t i = 0, end = 0; i < b.n_seqs; i++) {
      train_scene scene = train_data_scene(data, step, b.sample[i]);
      noise_of(&b, end += b.len[i], &scene, x);
      for (int v = 0; v < NUMBERS; v++) {
        add(&noise, x[v]);
        if (v >= 1) add(&value, x[v] * x[v - 1]);
        if (v >= TRAIN_VALUES) add(&token, x[v] * x[v - TRAIN_VALUES]);
        add(&sample, x[v] * last[v]);
      }
      memcpy(last, x, sizeof x);
    }
  }
  assert_true(noise.n == 4000 * NUMBERS);
  assert_normal(&noise);
  assert_independent(&value);
  assert_independent(&token);
  assert_independent(&sample);
  train_data_free(data);
}

/* The logit of a time is normal; labels are even, whatever the time; one of ten is not given. */
static void test_times_labels(void **state) {
  (void)state;
  train_data *data = make("g1b40i16f1s0", 1, 2, 0, 1);
  tally logit = {0};
  int64_t given[TRAIN_LABELS + 1] = {0}, n[TRAIN_LABELS] = {0}, late[TRAIN_LABELS] = {0};
  for (int64_t step = 0; step < 100; step++) {
    train_batch b = draw(data, step);
    for (int64_t i = 0, row = 0; i < b.n_seqs; row += b.len[i++]) {
      int32_t label = train_data_scene(data, step, b.sample[i]).label;
      double time = (double)b.row[row].time;
      add(&logit, log(time / (1 - time)));
      given[b.row[row].label]++;
      n[label]++;
      late[label] += time > 0.5;
    }
  }
  assert_true(logit.n == 4000);
  assert_normal(&logit);
  assert_in_range(given[TRAIN_LABELS], 400 - 95, 400 + 95);
  for (int k = 0; k < TRAIN_LABELS; k++) {
    assert_in_range(n[k], 400 - 95, 400 + 95);
    assert_in_range(given[k], 360 - 91, 360 + 91);
    assert_in_range(late[k], 200 - 69, 200 + 69);
  }
  train_data_free(data);
}

/* ------------------------------------------------------------------------- refusals */

static void refused(train_data_options options, const char *sentence) {
  train_data *data = (train_data *)&options;
  assert_int_equal(train_data_create(&options, &data), KF_EINVAL);
  assert_ptr_equal(data, &options); /* written only on success */
  assert_string_equal(kf_last_error(), sentence);
}

static void test_refusals(void **state) {
  (void)state;
#define SCALE ", expected above 0 and at most 1000, or 0 for the default"
#define RANKS " wanted, expected 0 to 1048575 of 1 to 1048576"
  refused((train_data_options){.mix = "wan", .n_ranks = 2},
          "train data: mix \"wan\" does not tell text from visual tokens, expected lowres, mixres, "
          "joint, lowres4k, clips or codes such as g16b4i256f1s0");
  refused((train_data_options){.n_ranks = 2}, "train data: no mix, expected one");
  refused((train_data_options){.mix = "nope", .n_ranks = 2},
          "mix \"nope\", position 1: found \"nope\", expected lowres, mixres, joint, lowres4k, "
          "clips, wan or codes such as g16b4i256f1s0");
  refused((train_data_options){"joint", -1, 0, 0, 2}, "train data: scale -1" SCALE);
  refused((train_data_options){"joint", 1000.5, 0, 0, 2}, "train data: scale 1000.5" SCALE);
  refused((train_data_options){"joint", INFINITY, 0, 0, 2}, "train data: scale inf" SCALE);
  refused((train_data_options){"joint", (double)NAN, 0, 0, 2}, "train data: scale nan" SCALE);
  refused((train_data_options){"joint", 1, 0, 2, 2}, "train data: rank 2 of 2" RANKS);
  refused((train_data_options){"joint", 1, 0, -1, 2}, "train data: rank -1 of 2" RANKS);
  refused((train_data_options){"joint", 1, 0, 0, 0}, "train data: rank 0 of 0" RANKS);
  refused((train_data_options){"joint", 1, 0, 0, KF_MAX_RANKS + 1},
          "train data: rank 0 of 1048577" RANKS);
  refused((train_data_options){"g1b1i16f1s0,g1b1i32768f512s0", 2, 0, 0, 1}, /* 2^32 and text */
          "train data: scale 2 makes up to 4294968080 tokens of sample 1 of mix "
          "\"g1b1i16f1s0,g1b1i32768f512s0\", expected at most 2^32");
  refused((train_data_options){"g1b1100000i32768f1s0", 1000, 0, 0, 1},
          "train data: scale 1000 makes up to 4614165600000000 tokens of mix "
          "\"g1b1100000i32768f1s0\", expected at most 2^52");
  train_data *data = make("joint", 1, 0, 0, 64); /* refusing a step leaves the data as it was */
  const kf_batch *all = NULL;
  train_batch b;
  assert_int_equal(train_data_step(data, -1, &b), KF_EINVAL);
  assert_string_equal(kf_last_error(), "train data: step -1 wanted, expected 0 or more");
  assert_int_equal(train_data_lengths(data, INT64_MIN, &all), KF_EINVAL);
  assert_null(all);
  draw(data, INT64_MAX);
  train_data_free(data);
  train_data_free(NULL);
}

/* --------------------------------------------------------------------------- memory */

static void test_memory(void **state) {
  (void)state;
  train_data_options options = {"joint", .01, 0, 1, 40};
  train_data *data = NULL;
  for (long k = 1;; k++) {
    fail_alloc(k);
    kf_status status = train_data_create(&options, &data);
    if (fail_alloc(0) < k) break;
    assert_int_equal(status, KF_ENOMEM);
    assert_null(data);
    assert_non_null(strstr(kf_last_error(), "out of memory: "));
  }
  train_batch b = {0};
  fail_alloc(1);
  assert_int_equal(train_data_step(data, 0, &b), KF_ENOMEM);
  assert_int_equal(fail_alloc(0), 1);
  assert_null(b.row);
  draw(data, 0); /* there is memory again */
  fail_alloc(0);
  for (int64_t step = 0; step < 20; step++) {
    lengths(data, step);
    draw(data, 100 - step);
  }
  assert_int_equal(fail_alloc(0), 0); /* nothing is allocated once a step was drawn */
  train_data_free(data);
}

/* More rows than memory holds are refused when they are drawn; their lengths can be asked for. */
static void test_too_large(void **state) {
  (void)state;
  train_data *data = make("g1b1000000i65536f200s0", 1, 0, 0, 1);
  train_batch b = {0};
  assert_int_equal(lengths(data, 0)->n_seqs, 1000000);
  fail_alloc(1); /* as any allocator would, but a sanitizer's that ends the program */
  assert_int_equal(train_data_step(data, 0, &b), KF_ENOMEM);
  fail_alloc(0);
  assert_string_equal(kf_last_error(), "out of memory: 510027425984001568 bytes for up to "
                                       "3355443592000000 rows of rank 0");
  train_data_free(data);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_is_the_mix),    cmocka_unit_test(test_scaled),
    cmocka_unit_test(test_default_scale), cmocka_unit_test(test_ranks),
    cmocka_unit_test(test_order),         cmocka_unit_test(test_rows),
    cmocka_unit_test(test_grid),          cmocka_unit_test(test_grid_by_hand),
    cmocka_unit_test(test_noise),         cmocka_unit_test(test_times_labels),
    cmocka_unit_test(test_refusals),      cmocka_unit_test(test_memory),
    cmocka_unit_test(test_too_large),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
