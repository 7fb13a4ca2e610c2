/* SPDX-License-Identifier: Apache-2.0 */
/*
** Moving shapes and textures: data that needs no disk and that a small model can learn.
**
** A scene is a pattern of two colours that drifts, far away, and one to three objects of one shape
** in front of it, which fly straight and bounce off the borders. Its label names the shape, over a
** faint gradient, or the pattern, under any shape:
**
**     0 circle   1 square         2 triangle   3 ring      4 cross
**     5 stripes  6 checkerboard   7 gradient   8 ripples   9 blobs
**
** Whatever else there is to decide is a choice among a few that have words, or a phase, a direction
** or a place: a scene has some thirty numbers, however many cells show it.
**
** Every cell is computed from its place and its frame alone, so nothing but the patches is written,
** and any frame can be drawn without those before it. The longer side of a frame measures 1: more
** tokens show the same more finely. Some 30 ns a cell.
*/
#include <assert.h>
#include <math.h>

#include "random.h"
#include "train.h"

static const float TURN = 6.2831853f; /* a full one */

enum { COLOURS = 8, DIRECTIONS = 8, MOST_OBJECTS = 3, SIZES = 3, SPEEDS = 3, WAVES = 3 };

typedef enum shape { CIRCLE, SQUARE, TRIANGLE, RING, CROSS, N_SHAPES } shape;
typedef enum pattern { STRIPES, CHECKERBOARD, GRADIENT, RIPPLES, BLOBS, N_PATTERNS } pattern;
_Static_assert((int)N_SHAPES + (int)N_PATTERNS == TRAIN_LABELS, "a label is a shape or a pattern");

/* Red, yellow, green, cyan, blue, magenta, white, black: none in full, so that noise shows on both
** sides of them. */
static const float palette[COLOURS][3] = {{.8f, -.6f, -.6f}, {.8f, .7f, -.6f},  {-.6f, .6f, -.5f},
                                          {-.6f, .7f, .8f},  {-.6f, -.4f, .8f}, {.8f, -.6f, .8f},
                                          {.8f, .8f, .8f},   {-.8f, -.8f, -.8f}};
static const float radius[SIZES] = {.12f, .17f, .24f};
static const float pace[SPEEDS] = {.03f, .06f, .1f}; /* a frame */

/* --------------------------------------------------------------- what there is to see */

/* What the seed decides. Objects take counters of their own, from OBJECT on. */
enum {
  SHAPE,
  PATTERN,
  FAR1,
  FAR2,
  COUNT,
  SIZE,
  SPEED,
  ANGLE,
  TIGHTNESS,
  CENTRE_X,
  CENTRE_Y,
  PHASE
};
enum { OBJECT = 16, OBJECT_COUNTERS = 4 };
enum { COLOUR, DIRECTION, START_X, START_Y };
_Static_assert((int)PHASE + (int)WAVES <= (int)OBJECT, "counters overlap");

typedef struct object {
  int colour, direction;
  float start[2], x, y; /* where in its room it starts, 0 to 1; its centre in this frame */
  float depth;
} object;

/* A plane wave: its angle at (u, v) in frame f is u * x + v * y + phase + f * drift. */
typedef struct wave {
  float x, y, phase, drift;
} wave;

typedef struct picture {
  shape shape;
  pattern pattern;
  int far1, far2; /* colours of the pattern */
  int n_objects, size, speed;
  float width, height; /* the longer one is 1 */
  float cell;          /* side of one */
  float colour[2][3];  /* of the pattern, as they are blended */
  float tightness;     /* of ripples: radians a unit */
  float centre[2];     /* of ripples */
  float frame;         /* the one that is drawn */
  wave wave[WAVES];
  object object[MOST_OBJECTS]; /* the last is nearest */
} picture;

static double chance(const train_scene *s, int what) {
  return train_uniform(s->seed, (uint64_t)what);
}

static int choose(const train_scene *s, int what, int n) { return (int)(chance(s, what) * n); }

/* A pattern has two to four waves across a frame, as long as there are four cells for each. */
static void compose_pattern(const train_scene *s, picture *p) {
  float first = (float)chance(s, ANGLE) * TURN, contrast = s->label < N_SHAPES ? .35f : 1;
  float tight = fminf(2 + 2 * (float)chance(s, TIGHTNESS), 1 / (4 * p->cell));
  if (p->pattern == GRADIENT) tight = .5f;
  for (int i = 0; i < WAVES; i++) {
    float angle = first + (float)i * (p->pattern == BLOBS ? 2.2f : TURN / 4);
    float k = TURN * tight * (p->pattern == BLOBS ? .6f + .2f * (float)i : 1);
    p->wave[i] = (wave){.x = k * cosf(angle),
                        .y = k * sinf(angle),
                        .phase = (float)chance(s, PHASE + i) * TURN,
                        .drift = k * pace[p->speed] * (i == 1 ? -.5f : .5f)};
  }
  p->tightness = TURN * tight;
  p->centre[0] = (float)chance(s, CENTRE_X) * p->width;
  p->centre[1] = (float)chance(s, CENTRE_Y) * p->height;
  for (int c = 0; c < 3; c++) {
    p->colour[0][c] = palette[p->far1][c];
    p->colour[1][c] = palette[p->far1][c] + contrast * (palette[p->far2][c] - palette[p->far1][c]);
  }
}

/* A colour that the pattern does not have. */
static int choose_colour(const train_scene *s, int what, const picture *p) {
  int low = p->far1 < p->far2 ? p->far1 : p->far2, high = p->far1 + p->far2 - low;
  int colour = choose(s, what, COLOURS - 2);
  colour += colour >= low;
  return colour + (colour >= high);
}

static picture compose(const train_scene *s) {
  float longer = (float)(s->width > s->height ? s->width : s->height);
  assert(s->label >= 0 && s->label < TRAIN_LABELS);
  picture p = {.width = (float)s->width / longer,
               .height = (float)s->height / longer,
               .cell = 1 / (TRAIN_PATCH * longer),
               .shape = (shape)(s->label < N_SHAPES ? s->label : choose(s, SHAPE, N_SHAPES)),
               .pattern = (pattern)(s->label < N_SHAPES ? GRADIENT : s->label - N_SHAPES),
               .far1 = choose(s, FAR1, COLOURS),
               .n_objects = 1 + choose(s, COUNT, MOST_OBJECTS),
               .size = choose(s, SIZE, SIZES),
               .speed = choose(s, SPEED, SPEEDS)};
  p.far2 = (p.far1 + 1 + choose(s, FAR2, COLOURS - 1)) % COLOURS; /* another one */
  compose_pattern(s, &p);
  for (int i = 0; i < p.n_objects; i++) {
    int at = OBJECT + i * OBJECT_COUNTERS;
    p.object[i] =
      (object){.colour = choose_colour(s, at + COLOUR, &p),
               .direction = choose(s, at + DIRECTION, DIRECTIONS),
               .start = {(float)chance(s, at + START_X), (float)chance(s, at + START_Y)},
               .depth = .1f - .4f * (float)i};
  }
  return p;
}

/* ---------------------------------------------------------------------------- drawing */

/* Where something is that left `start` (0 to 1) of the room between r and side - r, moved by
** `distance`, and bounced off both ends. Without room it stays in the middle. */
static float bounce(float start, float distance, float side, float r) {
  float room = side - 2 * r;
  if (room <= 0) return side / 2;
  float at = fabsf(fmodf(start * room + distance, 2 * room));
  return r + (at > room ? 2 * room - at : at);
}

static void go_to_frame(picture *p, int64_t frame) {
  p->frame = (float)frame;
  for (int i = 0; i < p->n_objects; i++) {
    object *o = &p->object[i];
    float angle = (float)o->direction * (TURN / DIRECTIONS), distance = p->frame * pace[p->speed];
    o->x = bounce(o->start[0], distance * cosf(angle), p->width, radius[p->size]);
    o->y = bounce(o->start[1], distance * sinf(angle), p->height, radius[p->size]);
  }
}

static float wave_at(const picture *p, int i, float u, float v) {
  const wave *w = &p->wave[i];
  return sinf(u * w->x + v * w->y + w->phase + p->frame * w->drift);
}

/* Steeper in the middle, flat at -1 and 1. */
static float sharpen(float s) { return s * (1.5f - .5f * s * s); }

/* -1 to 1: which of its two colours the pattern has at (u, v). */
static float pattern_at(const picture *p, float u, float v) {
  switch (p->pattern) {
  case STRIPES: return sharpen(sharpen(wave_at(p, 0, u, v)));
  case CHECKERBOARD: return sharpen(sharpen(wave_at(p, 0, u, v)) * sharpen(wave_at(p, 1, u, v)));
  case RIPPLES: {
    float du = u - p->centre[0], dv = v - p->centre[1];
    return sinf(p->tightness * sqrtf(du * du + dv * dv) + p->wave[0].phase -
                p->frame * p->wave[0].drift);
  }
  case BLOBS: {
    float sum = wave_at(p, 0, u, v) + wave_at(p, 1, u, v) + wave_at(p, 2, u, v);
    return sharpen(fmaxf(-1, fminf(1, sum)));
  }
  default: return wave_at(p, 0, u, v); /* gradient */
  }
}

/* How far (du, dv) is outside of a shape of radius r around (0, 0); inside it is below 0. v grows
** downwards. */
static float outside(shape kind, float du, float dv, float r) {
  float across = fabsf(du), along = fabsf(dv);
  switch (kind) {
  case SQUARE: return fmaxf(across, along) - .85f * r;
  case TRIANGLE: return fmaxf(.866f * across - .5f * dv, dv) - .5f * r;
  case RING: return fabsf(sqrtf(du * du + dv * dv) - .7f * r) - .3f * r;
  case CROSS: return fmaxf(fminf(across, along) - .3f * r, fmaxf(across, along) - r);
  default: return sqrtf(du * du + dv * dv) - r; /* circle */
  }
}

/* What blends is between -1 and 1, and so is the blend. */
static void blend(const float colour[3], float depth, float share, float out[TRAIN_CHANNELS]) {
  for (int c = 0; c < 3; c++) out[c] += share * (colour[c] - out[c]);
  out[3] += share * (depth - out[3]);
}

static void draw_cell(const picture *p, int64_t y, int64_t x, float out[TRAIN_CHANNELS]) {
  float u = ((float)x + .5f) * p->cell, v = ((float)y + .5f) * p->cell;
  for (int c = 0; c < 3; c++) out[c] = p->colour[0][c];
  out[3] = .9f;
  blend(p->colour[1], .6f, .5f + .5f * pattern_at(p, u, v), out);
  for (int i = 0; i < p->n_objects; i++) {
    const object *o = &p->object[i];
    float d = outside(p->shape, u - o->x, v - o->y, radius[p->size]);
    float share = .5f - d / p->cell; /* of the cell that is covered, about */
    if (share > 0) blend(palette[o->colour], o->depth, fminf(share, 1), out);
  }
}

void train_scene_draw(const train_scene *scene, int64_t n, float *out) {
  picture p = compose(scene);
  int64_t frame_tokens = (int64_t)scene->height * scene->width;
  for (int64_t i = 0; i < n; i++) {
    int64_t in_frame = i % frame_tokens, y = in_frame / scene->width, x = in_frame % scene->width;
    if (in_frame == 0) go_to_frame(&p, i / frame_tokens);
    for (int dy = 0; dy < TRAIN_PATCH; dy++)
      for (int dx = 0; dx < TRAIN_PATCH; dx++, out += TRAIN_CHANNELS)
        draw_cell(&p, TRAIN_PATCH * y + dy, TRAIN_PATCH * x + dx, out);
  }
}

/* ------------------------------------------------------------------------------ words */

/* The vocabulary: where the words of each kind begin. */
enum {
  WORD_LABEL,
  WORD_FAR1 = WORD_LABEL + TRAIN_LABELS,
  WORD_FAR2 = WORD_FAR1 + COLOURS,
  WORD_COLOUR = WORD_FAR2 + COLOURS,
  WORD_DIRECTION = WORD_COLOUR + COLOURS,
  WORD_SHAPE = WORD_DIRECTION + DIRECTIONS,
  WORD_PATTERN = WORD_SHAPE + N_SHAPES,
  WORD_COUNT = WORD_PATTERN + N_PATTERNS,
  WORD_SIZE = WORD_COUNT + MOST_OBJECTS,
  WORD_SPEED = WORD_SIZE + SIZES,
  WORD_STILL = WORD_SPEED + SPEEDS, /* one frame, */
  WORD_MOVING,                      /* or more */
  WORD_END,
  N_WORDS
};
_Static_assert((int)N_WORDS == TRAIN_WORDS, "all words are used");

/* What tells most comes first: short texts break off. */
void train_scene_words(const train_scene *scene, int64_t n, int32_t *out) {
  picture p = compose(scene);
  int32_t sentence[10 + 2 * MOST_OBJECTS];
  int len = 0;
  sentence[len++] = WORD_LABEL + scene->label;
  sentence[len++] = WORD_FAR1 + p.far1;
  sentence[len++] = WORD_FAR2 + p.far2;
  sentence[len++] = WORD_SHAPE + (int32_t)p.shape;
  sentence[len++] = WORD_PATTERN + (int32_t)p.pattern;
  sentence[len++] = WORD_SIZE + p.size;
  sentence[len++] = WORD_COUNT + p.n_objects - 1;
  for (int i = 0; i < p.n_objects; i++) sentence[len++] = WORD_COLOUR + p.object[i].colour;
  sentence[len++] = scene->frames > 1 ? WORD_MOVING : WORD_STILL;
  if (scene->frames > 1) { /* nobody sees where a still is going */
    sentence[len++] = WORD_SPEED + p.speed;
    for (int i = 0; i < p.n_objects; i++) sentence[len++] = WORD_DIRECTION + p.object[i].direction;
  }
  sentence[len++] = WORD_END;
  for (int64_t i = 0; i < n; i++) out[i] = sentence[i % len];
}
