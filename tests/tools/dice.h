/* SPDX-License-Identifier: Apache-2.0 */
/*
** Random numbers and random planning problems. The seed alone decides: no clock, no libc rand, and
** one throw a statement, because compilers differ in the order of arguments and initialisers.
*/
#ifndef DICE_H
#define DICE_H

#include <knapformer.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

typedef struct dice {
  uint64_t state;
} dice;

static inline uint64_t dice_next(dice *d) {
  d->state += KF_SPLITMIX64_STEP;
  return kf_splitmix64(d->state - KF_SPLITMIX64_STEP);
}

/* 0 .. n-1 */
static inline int64_t dice_int(dice *d, int64_t n) { return (int64_t)(dice_next(d) >> 1) % n; }

static inline bool dice_one_in(dice *d, int64_t n) { return dice_int(d, n) == 0; }

static inline double dice_real(dice *d, double low, double high) {
  return low + (high - low) * ((double)(dice_next(d) >> 11) * 0x1p-53);
}

#define WORLD_RANKS 70
#define WORLD_SEQS 300

/* A planning problem with its arrays. It points into itself: do not copy it. */
typedef struct world {
  kf_planner_options options;
  kf_batch batch;
  kf_bags *bags;
  char spec[8 * WORLD_RANKS]; /* of the bags; "" is auto */
  int64_t rank_off[WORLD_RANKS + 1], len[WORLD_SEQS], cap[WORLD_RANKS];
  double factor[WORLD_SEQS], speed[WORLD_RANKS];
} world;

/* Lengths of one of several characters: tiny, middling, mostly short with a few very long. */
static inline void world_batch(dice *d, world *w, int32_t n_ranks) {
  int64_t n = 0, kind = dice_int(d, 5), most = dice_int(d, 8);
  for (int32_t r = 0; r < n_ranks; r++) {
    int64_t k = dice_one_in(d, 4) ? 0 : dice_int(d, most + 1);
    w->rank_off[r] = n;
    for (; k > 0 && n < WORLD_SEQS; k--, n++) {
      int64_t range = kind == 0 ? 50 : kind == 1 ? 5000 : dice_one_in(d, 10) ? 60000 : 2000;
      w->len[n] = dice_one_in(d, 20) ? 0 : dice_int(d, range);
      w->factor[n] = dice_one_in(d, 3) ? dice_real(d, 0.5, 2.5) : 1;
    }
  }
  w->rank_off[n_ranks] = n;
  w->batch =
    (kf_batch){n_ranks, n, w->rank_off, w->len, dice_one_in(d, 3) ? w->factor : NULL, NULL};
}

static inline void world_cost(dice *d, world *w, int32_t n_ranks) {
  char model[80], cluster[120] = "free";
  int dim = 64 + (int)dice_int(d, 3000), layers = 1 + (int)dice_int(d, 60);
  int heads = 1 + (int)dice_int(d, dice_one_in(d, 3) ? 200 : 40);
  double gamma = dice_real(d, 0.1, 1.2);
  snprintf(model, sizeof model, "d=%d,layers=%d,heads=%d", dim, layers, heads);
  if (!dice_one_in(d, 3)) {
    int node = 1 + (int)dice_int(d, 9), intra = 1 + (int)dice_int(d, 200);
    int inter = 1 + (int)dice_int(d, 100), latency = (int)dice_int(d, 20);
    snprintf(cluster, sizeof cluster, "ranks_per_node=%d,intra_GBps=%d,inter_GBps=%d,latency_us=%d",
             node, intra, inter, latency);
  }
  if (kf_cost_preset(model, cluster, n_ranks, gamma, &w->options.cost))
    fprintf(stderr, "%s\n", kf_last_error());
  if (dice_one_in(d, 4)) w->options.cost.constant_s = 1e-3;
}

/* Random bags that cover the ranks, now and then as several groups. */
static inline void world_bags(dice *d, world *w, int32_t n_ranks) {
  int32_t left = n_ranks, groups = 1 + (int32_t)dice_int(d, 4);
  if (n_ranks % groups == 0) left /= groups;
  strcpy(w->spec, "[");
  while (left > 0) {
    int32_t g = 1 + (int32_t)dice_int(d, left < 5 ? left : 5);
    left -= g;
    sprintf(w->spec + strlen(w->spec), "%d%s", (int)g, left ? "," : "]");
  }
  if (kf_bags_parse(w->spec, n_ranks, &w->bags)) fprintf(stderr, "%s\n", kf_last_error());
  w->options.bags = w->bags;
}

static inline void world_caps(dice *d, world *w) {
  int64_t tokens = 0, longest = 0, n_ranks = w->batch.n_ranks;
  for (int64_t i = 0; i < w->batch.n_seqs; i++) {
    tokens += w->len[i];
    if (w->len[i] > longest) longest = w->len[i];
  }
  int64_t cap = tokens / n_ranks * (1 + dice_int(d, 3));
  cap += dice_int(d, 2000);
  if (dice_one_in(d, 2)) cap += longest / 2;
  if (dice_one_in(d, 3)) {
    for (int32_t r = 0; r < n_ranks; r++)
      w->cap[r] = cap + (dice_one_in(d, 2) ? dice_int(d, 500) : 0);
    w->options.mem_tokens = w->cap;
  }
  if (dice_one_in(d, 4)) {
    w->options.max_chunk_size = 1 + longest / (1 + dice_int(d, n_ranks));
    w->options.max_chunk_size += dice_int(d, 100);
  }
}

/* Anything that is allowed, of 1 to most_ranks ranks. Free w->bags afterwards. */
static inline void world_random(dice *d, world *w, int32_t most_ranks) {
  int32_t n_ranks =
    1 + (int32_t)dice_int(d, dice_one_in(d, 4) || most_ranks < 12 ? most_ranks : 12);
  w->options = (kf_planner_options){0};
  w->bags = NULL;
  w->spec[0] = 0;
  world_batch(d, w, n_ranks);
  world_cost(d, w, n_ranks);
  world_caps(d, w);
  if (dice_one_in(d, 2)) world_bags(d, w, n_ranks);
  if (dice_one_in(d, 3)) {
    for (int32_t r = 0; r < n_ranks; r++) w->speed[r] = dice_real(d, 0.5, 2.2);
    w->options.speed = w->speed;
  }
  if (dice_one_in(d, 4)) w->options.affinity = KF_AFFINITY_SPREAD;
  if (dice_one_in(d, 3)) w->options.budget = 1 + dice_int(d, 5000);
}

#endif
