/* SPDX-License-Identifier: Apache-2.0 */
/*
** Tiny instances with fixed bags and free links, solved: depth first over the bags of every
** sequence, largest first. A branch ends when a bag reaches the best step known. Bags of one size
** and one load are tried once. At a leaf the shares are dealt in whole tokens and heads, so that
** the value is that of the plan.
*/
#include <math.h>
#include <string.h>

#include "knapsack.h"

#define MOST_ITEMS 12
#define MOST_BAGS 64
#define SMALL_ITEMS 10 /* solved whatever it takes, on up to so many */
#define SMALL_BAGS 4
#define SMALL_LIMIT 3000000 /* nodes: more than 4^10 */
#define NODE_LIMIT 20000

typedef struct exact {
  kfi_assignment *st;
  double *rank_load; /* (n_ranks) */
  double load[MOST_BAGS];
  int32_t bag[MOST_ITEMS], best[MOST_ITEMS];
  double best_s;
  bool better;
  int64_t nodes, limit;
} exact;

/* The largest rank's compute once every bag has dealt its sequences. */
double kfi_dealt_s(const kfi_assignment *st, const int32_t *bag, double *rank_load,
                   kfi_share *set) {
  const kfi_world *w = st->world;
  double most = 0;
  memset(rank_load, 0, (size_t)w->n_ranks * sizeof *rank_load);
  for (int64_t j = 0; j < st->n_items; j++) {
    const kfi_item *it = &st->item[j];
    if (bag[j] >= 0) {
      int32_t first = w->bag_first[bag[j]];
      kfi_deal(w, it, first, w->bag_first[bag[j] + 1] - first, rank_load, set);
      continue;
    }
    int32_t n = kfi_get_set(st, j, set); /* joined bags, or no tokens */
    for (int32_t i = 0; i < n; i++) rank_load[set[i].rank] += kfi_share_s(w, it, &set[i]);
  }
  for (int32_t r = 0; r < w->n_ranks; r++) {
    if (rank_load[r] > most) most = rank_load[r];
  }
  return most;
}

static void branch(exact *u, int64_t j) {
  const kfi_assignment *st = u->st;
  const kfi_world *w = st->world;
  if (++u->nodes > u->limit) return;
  if (j == st->n_items) {
    double s = kfi_dealt_s(st, u->bag, u->rank_load, st->set);
    if (s < u->best_s) {
      u->best_s = s;
      u->better = true;
      memcpy(u->best, u->bag, sizeof u->best);
    }
    return;
  }
  const kfi_item *it = &st->item[j];
  if (it->len == 0) { /* stays at home */
    u->bag[j] = st->where[j];
    branch(u, j + 1);
    return;
  }
  int32_t group = w->bag_of[it->home] / w->bags_per_group;
  int32_t first = group * w->bags_per_group, end = first + w->bags_per_group;
  for (int32_t b = first; b < end; b++) {
    double s = u->load[b] + it->work / w->bag_speed[b];
    bool twin = false;
    for (int32_t k = first; k < b && !twin; k++) {
      twin = u->load[k] == u->load[b] && w->bag_speed[k] == w->bag_speed[b] &&
             w->bag_first[k + 1] - w->bag_first[k] == w->bag_first[b + 1] - w->bag_first[b] &&
             w->equal_speeds;
    }
    if (twin || s * (1 - 1e-12) >= u->best_s || !kfi_bag_takes(w, it, b)) continue;
    double was = u->load[b];
    u->load[b] = s;
    u->bag[j] = b;
    branch(u, j + 1);
    u->load[b] = was;
  }
}

bool kfi_exact(kfi_assignment *st, kfi_builder *b, double *step_s) {
  const kfi_world *w = st->world;
  exact u = {.st = st, .rank_load = b->room, .best_s = *step_s};
  bool small = st->n_items <= SMALL_ITEMS && w->n_bags <= SMALL_BAGS;
  u.limit = small ? SMALL_LIMIT : NODE_LIMIT;
  if (!w->free_links || w->cap || st->n_items > MOST_ITEMS || w->n_bags > MOST_BAGS) return false;
  for (int64_t j = 0; j < st->n_items; j++) {
    if (kfi_is_split(st, j) && st->item[j].len) return false; /* joined bags are not searched */
  }
  branch(&u, 0);
  st->moves += u.nodes / 8;
  if (!u.better) return false;
  kfi_assignment_reset(st);
  for (int64_t j = 0; j < st->n_items; j++) {
    if (st->item[j].len) kfi_put_whole(st, j, u.best[j]);
  }
  *step_s = u.best_s;
  return true;
}
