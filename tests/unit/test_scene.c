/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "train/train.h"

/* The vocabulary, written down once more: a word's kind begins here. */
enum { FAR1 = 10, FAR2 = 18, COLOUR = 26, DIRECTION = 34, SHAPE = 42, PATTERN = 47 };
enum { COUNT = 52, SIZE = 55, SPEED = 58, STILL = 61, MOVING = 62, END = 63, LONGEST = 16 };
static const float pace[] = {.03f, .06f, .1f};

/* ------------------------------------------------------------------------- helpers */

static int64_t tokens_of(const train_scene *s) { return (int64_t)s->frames * s->height * s->width; }

static float *draw(train_scene s) {
  float *out = malloc((size_t)tokens_of(&s) * TRAIN_VALUES * sizeof *out);
  assert_non_null(out);
  train_scene_draw(&s, tokens_of(&s), out);
  return out;
}

/* One cell of a drawn scene: y and x count cells. */
static const float *cell(const float *out, const train_scene *s, int f, int y, int x) {
  int64_t token = ((int64_t)f * s->height + y / TRAIN_PATCH) * s->width + x / TRAIN_PATCH;
  return out + token * TRAIN_VALUES +
         (y % TRAIN_PATCH * TRAIN_PATCH + x % TRAIN_PATCH) * TRAIN_CHANNELS;
}

/* Mean distance of values. */
static double distance(const float *a, const float *b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += fabs((double)a[i] - (double)b[i]);
  return sum / (double)n;
}

/* The n-th word of a kind, -1: there is none. */
static int find_word(const int32_t *word, int first, int end, int nth) {
  for (int i = 0; i < LONGEST && (i == 0 || word[i - 1] != END); i++)
    if (word[i] >= first && word[i] < end && nth-- == 0) return word[i] - first;
  return -1;
}

/* --------------------------------------------------------------------------- values */

static void test_range(void **state) {
  (void)state;
  static const int32_t grid[][3] = {{1, 1, 1}, {1, 1, 9}, {4, 7, 2}, {25, 3, 3}, {1, 33, 32}};
  for (int g = 0; g < 5; g++)
    for (uint64_t seed = 0; seed < 100; seed++) {
      train_scene s = {grid[g][0], grid[g][1], grid[g][2], (int32_t)(seed % TRAIN_LABELS), seed};
      float *out = draw(s);
      for (int64_t i = 0; i < tokens_of(&s) * TRAIN_VALUES; i++)
        assert_true(out[i] >= -1 && out[i] <= 1);
      free(out);
    }
}

/* The first n tokens are the same whatever n is, and no value after them is touched. */
static void test_prefix(void **state) {
  (void)state;
  train_scene s = {3, 4, 5, 8, 11};
  float *whole = draw(s), part[60 * TRAIN_VALUES + 1];
  for (int64_t n = 0; n <= 60; n++) {
    part[n * TRAIN_VALUES] = 77;
    train_scene_draw(&s, n, part);
    assert_memory_equal(part, whole, (size_t)n * TRAIN_VALUES * sizeof *part);
    assert_true(part[n * TRAIN_VALUES] == 77);
  }
  free(whole);
}

/* The same scene on twice as many tokens a side shows the same: each cell is about the mean of the
** four that lie in it. */
static void test_finer(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 40; seed++) {
    train_scene s = {2, 16, 16, (int32_t)(seed % TRAIN_LABELS), seed}, fine = s;
    fine.height = fine.width = 32;
    float *out = draw(s), *out_fine = draw(fine);
    double sum = 0;
    for (int y = 0; y < 32; y++)
      for (int x = 0; x < 32; x++)
        for (int c = 0; c < TRAIN_CHANNELS; c++) {
          double mean = 0;
          for (int k = 0; k < 4; k++)
            mean += (double)cell(out_fine, &fine, 1, 2 * y + k / 2, 2 * x + k % 2)[c] / 4;
          sum += fabs(mean - (double)cell(out, &s, 1, y, x)[c]) / (32 * 32 * TRAIN_CHANNELS);
        }
    assert_true(sum < 0.03);
    free(out);
    free(out_fine);
  }
}

/* Something to learn: neighbours are alike, though the picture is not flat. */
static void test_smooth(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 100; seed++) {
    train_scene s = {1, 16, 16, (int32_t)(seed % TRAIN_LABELS), seed};
    float *out = draw(s);
    double step = 0, spread = 0;
    for (int y = 0; y < 31; y++)
      for (int x = 0; x < 31; x++)
        for (int c = 0; c < TRAIN_CHANNELS; c++) {
          double here = (double)cell(out, &s, 0, y, x)[c];
          step += fabs(here - (double)cell(out, &s, 0, y, x + 1)[c]);
          step += fabs(here - (double)cell(out, &s, 0, y + 1, x)[c]);
          spread += 2 * fabs(here - (double)cell(out, &s, 0, 31 - y, 31 - x)[c]);
        }
    assert_true(spread > 31 * 31 * TRAIN_CHANNELS * 2 * 0.05);
    assert_true(step < spread * 0.7);
    free(out);
  }
}

static void test_labels_differ(void **state) {
  (void)state;
  float *out[TRAIN_LABELS];
  for (uint64_t seed = 0; seed < 10; seed++) {
    for (int32_t k = 0; k < TRAIN_LABELS; k++) out[k] = draw((train_scene){1, 16, 16, k, seed});
    for (int a = 0; a < TRAIN_LABELS; a++)
      for (int b = 0; b < a; b++) assert_true(distance(out[a], out[b], 256 * TRAIN_VALUES) > 0.002);
    for (int k = 0; k < TRAIN_LABELS; k++) free(out[k]);
  }
}

static void test_seeds_differ(void **state) {
  (void)state;
  for (int32_t k = 0; k < TRAIN_LABELS; k++) {
    float *last = draw((train_scene){1, 8, 8, k, 0});
    for (uint64_t seed = 1; seed < 50; seed++) {
      float *out = draw((train_scene){1, 8, 8, k, seed});
      assert_true(distance(last, out, 64 * TRAIN_VALUES) > 0.05);
      free(last);
      last = out;
    }
    free(last);
  }
}

/* Every frame differs from the one before, and not only a little. */
static void test_moves(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 100; seed++) {
    train_scene s = {25, 8, 8, (int32_t)(seed % TRAIN_LABELS), seed};
    float *out = draw(s);
    int64_t n = 64 * TRAIN_VALUES;
    double most = 0;
    for (int f = 1; f < 25; f++) {
      assert_true(distance(out + f * n, out + (f - 1) * n, n) > 1e-3);
      most = fmax(most, distance(out + f * n, out, n));
    }
    assert_true(most > 0.05);
    free(out);
  }
}

/* ---------------------------------------------------------------------------- words */

static void test_words(void **state) {
  (void)state;
  int64_t seen[TRAIN_WORDS] = {0};
  int32_t word[200], part[201];
  for (uint64_t seed = 0; seed < 2000; seed++) {
    train_scene s = {1 + (int32_t)(seed % 2), 5, 6, (int32_t)(seed / 2 % TRAIN_LABELS), seed};
    int64_t n = (int64_t)(seed % 200), len = 0;
    train_scene_words(&s, 200, word);
    part[n] = 77;
    train_scene_words(&s, n, part);
    assert_memory_equal(part, word, (size_t)n * sizeof *word);
    assert_int_equal(part[n], 77);
    assert_int_equal(word[0], s.label); /* however short a text is */
    while (word[len++] != END) assert_in_range(len, 1, LONGEST - 1);
    for (int64_t i = 0; i < 200; i++) {
      assert_in_range(word[i], 0, TRAIN_WORDS - 1);
      assert_int_equal(word[i], word[i % len]);
      seen[word[i]]++;
    }
    assert_int_equal(find_word(word, DIRECTION, SHAPE, 0) >= 0, s.frames > 1);
    assert_int_equal(find_word(word, STILL, MOVING, 0) >= 0, s.frames == 1);
    if (s.label < 5) assert_int_equal(find_word(word, SHAPE, PATTERN, 0), s.label);
    if (s.label >= 5) assert_int_equal(find_word(word, PATTERN, COUNT, 0), s.label - 5);
  }
  for (int i = 0; i < TRAIN_WORDS; i++) assert_true(seen[i] > 0);
}

/* Colours are what their words say: the same word, the same red, green and blue, where the nearest
** object covers a cell; and no object has a colour of the pattern behind it. */
static void test_colour_words(void **state) {
  (void)state;
  float rgb[8][3];
  int seen[8] = {0};
  for (uint64_t seed = 0; seed < 300; seed++) {
    train_scene s = {1, 16, 16, (int32_t)(seed % TRAIN_LABELS), seed};
    int32_t word[LONGEST];
    float *out = draw(s);
    const float *nearest = out;
    train_scene_words(&s, LONGEST, word);
    for (int y = 0; y < 32; y++)
      for (int x = 0; x < 32; x++) {
        const float *here = cell(out, &s, 0, y, x);
        if (here[3] < nearest[3]) nearest = here;
      }
    int n = 1 + find_word(word, COUNT, SIZE, 0), colour = find_word(word, COLOUR, DIRECTION, n - 1);
    assert_in_range(colour, 0, 7);
    for (int i = 0; i < n; i++) {
      assert_int_not_equal(find_word(word, COLOUR, DIRECTION, i), find_word(word, FAR1, FAR2, 0));
      assert_int_not_equal(find_word(word, COLOUR, DIRECTION, i), find_word(word, FAR2, COLOUR, 0));
    }
    for (int c = 0; c < 3; c++) {
      if (!seen[colour]) rgb[colour][c] = nearest[c];
      assert_true(fabsf(rgb[colour][c] - nearest[c]) < 1e-5f);
    }
    seen[colour] = 1;
    free(out);
  }
  for (int i = 0; i < 8; i++)
    for (int j = 0; j < i; j++)
      assert_true(seen[i] && seen[j] && distance(rgb[i], rgb[j], 3) > 0.3);
}

/* The middle of all that is nearer than the pattern. */
static void middle(const float *out, const train_scene *s, int frame, double at[2]) {
  double sum = 0, side = 2 * s->width;
  at[0] = at[1] = 0;
  for (int y = 0; y < 2 * s->height; y++)
    for (int x = 0; x < 2 * s->width; x++) {
      double near = fmax(0, .6 - (double)cell(out, s, frame, y, x)[3]);
      at[0] += near * (x + .5) / side;
      at[1] += near * (y + .5) / side;
      sum += near;
    }
  at[0] /= sum;
  at[1] /= sum;
}

/* A single object goes where the words say, as far as they say, but where it bounced. */
static void test_motion_words(void **state) {
  (void)state;
  int n = 0, straight = 0;
  for (uint64_t seed = 0; seed < 200; seed++) {
    train_scene s = {2, 16, 16, (int32_t)(seed % 5), seed};
    int32_t word[LONGEST];
    train_scene_words(&s, LONGEST, word);
    if (find_word(word, COUNT, SIZE, 0) != 0) continue;
    float *out = draw(s);
    double angle = find_word(word, DIRECTION, SHAPE, 0) * 3.14159265 / 4, from[2], to[2];
    double speed = (double)pace[find_word(word, SPEED, STILL, 0)];
    double want[2] = {speed * cos(angle), speed * sin(angle)}, off = 0;
    middle(out, &s, 0, from);
    middle(out, &s, 1, to);
    for (int k = 0; k < 2; k++) {
      assert_true(fabs(to[k] - from[k]) < fabs(want[k]) + .01);
      off = fmax(off, fabs(to[k] - from[k] - want[k]));
    }
    straight += off < .01;
    n++;
    free(out);
  }
  assert_true(n > 40 && straight > n * 3 / 4 && straight < n);
}

/* Objects bounce off the borders: they are always seen whole, or, where a side is too short for
** that, in the middle of it. */
static void test_bounces(void **state) {
  (void)state;
  static const double radius[] = {.12, .17, .24};
  for (uint64_t seed = 0; seed < 200; seed++) {
    train_scene s = {60, 8, 8, (int32_t)(seed % 5), seed}, flat = {5, 1, 9, s.label, seed};
    int32_t word[LONGEST];
    double at[2];
    train_scene_words(&s, LONGEST, word);
    double r = radius[find_word(word, SIZE, SPEED, 0)] - .03;
    if (find_word(word, COUNT, SIZE, 0) != 0) continue;
    float *out = draw(s), *out_flat = draw(flat);
    for (int f = 0; f < s.frames; f++) {
      middle(out, &s, f, at);
      assert_true(at[0] > r && at[0] < 1 - r && at[1] > r && at[1] < 1 - r);
    }
    for (int f = 0; f < flat.frames && s.label != 2; f++) { /* half a triangle has another middle */
      middle(out_flat, &flat, f, at);
      assert_true(fabs(at[1] - .5 / 9) < .003); /* a cell is .056; the pattern shines through */
    }
    free(out);
    free(out_flat);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_range),         cmocka_unit_test(test_prefix),
    cmocka_unit_test(test_finer),         cmocka_unit_test(test_smooth),
    cmocka_unit_test(test_labels_differ), cmocka_unit_test(test_seeds_differ),
    cmocka_unit_test(test_moves),         cmocka_unit_test(test_words),
    cmocka_unit_test(test_colour_words),  cmocka_unit_test(test_motion_words),
    cmocka_unit_test(test_bounces),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
