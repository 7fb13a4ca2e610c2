/* SPDX-License-Identifier: Apache-2.0 */
/*
** A lower bound on the step that no plan under the same options can beat.
**
** Ranks together have total_speed * T seconds. They must do all the work, and for every
** sequence that one rank cannot finish within T also its Ulysses exchange, of which split.c
** knows the least under T. So T must be at least
**
**     F(T) = (work + min_speed * sum of least exchanges under T) / total_speed
**
** F falls as T grows, hence min(T, F(T)) is a true bound for whatever T is tried; a few tries
** close in on the crossing. Sequences of nearly the same length share one cut: that of the
** shortest of them, whose S is the largest; what each exchanges grows with its own length.
*/
#include <math.h>

#include "knapsack.h"

#define ALIKE (1.0 / 64) /* lengths within this share a cut */

/* The least Ulysses seconds (and extra constants) of item j under T, as a share of its own c. */
static bool cut_item(const kfi_world *w, const kfi_item *it, double target, kfi_pattern *p) {
  double l = (double)it->len;
  double near = w->ranks_per_node > 1 && w->ulysses_intra_s < w->ulysses_inter_s
                  ? w->ulysses_intra_s
                  : w->ulysses_inter_s;
  int64_t most = w->max_chunk;
  kfi_cut cut = {
    .token_s = it->factor * w->linear_s * l / w->max_speed,
    .head_s = kfi_head_s(w, it) * w->heads / w->max_speed,
    .ulysses_s = near * l * w->heads,
    .limit_s = target - it->factor * w->constant_s / w->max_speed - w->ulysses_latency_s,
    .latency_s = 0, /* sequences on the same ranks may share their messages */
    .y_max = w->max_cap < it->len ? (double)w->max_cap / l : 1,
    .n_heads = w->heads,
    .n_ranks = w->n_ranks,
  };
  cut.weight = 2 * cut.ulysses_s;
  if (w->max_cap < most) most = w->max_cap;
  cut.x_max = most < it->len ? (double)most / l : 1;
  return kfi_cut_best(&cut, p) || !p->exact;
}

static bool must_split(const kfi_world *w, const kfi_item *it, double target) {
  return it->work / w->max_speed > target || it->len > w->max_chunk || it->len > w->max_cap;
}

/* F(T); INFINITY where some sequence cannot be cut to T at all. */
static double demand(const kfi_world *w, const kfi_item *item, int64_t n, double work,
                     double target) {
  double exchange = 0, constants = 0;
  bool by_time = w->max_chunk == INT64_MAX && w->max_cap == INT64_MAX;
  for (int64_t j = 0; j < n;) {
    if (!must_split(w, &item[j], target)) {
      if (by_time) break; /* falling work: none to come */
      j++;
      continue;
    }
    int64_t end = j + 1;
    double least = (double)item[j].len * (1 - ALIKE), sum = (double)item[j].len;
    while (end < n && (double)item[end].len >= least && item[end].len <= item[end - 1].len &&
           item[end].factor == item[j].factor && must_split(w, &item[end], target)) {
      sum += (double)item[end++].len;
    }
    kfi_pattern p;
    if (!cut_item(w, &item[end - 1], target, &p)) return INFINITY;
    if (item[end - 1].len) exchange += p.cost_bound * sum / (double)item[end - 1].len;
    constants += (double)(end - j) * item[j].factor * w->constant_s; /* a second rank pays it too */
    j = end;
  }
  return (work + constants + w->min_speed * exchange) / w->total_speed;
}

static double bound_auto(const kfi_world *w, const kfi_item *item, int64_t n, double work) {
  double low = work / w->total_speed, high = demand(w, item, n, work, low);
  if (isinf(high)) { /* few long sequences: find a T that they can be cut to */
    double bad = low;
    high = 2 * low;
    for (int i = 0; isinf(demand(w, item, n, work, high)); i++, high *= 2) {
      if (i == 64) return low; /* memory, not time, is in the way */
      bad = high;
    }
    for (int i = 0; i < 20; i++) {
      double mid = 0.5 * (bad + high);
      if (isinf(demand(w, item, n, work, mid)))
        bad = mid;
      else
        high = mid;
    }
    low = bad;
  }
  for (int i = 0; i < 3 && high > low * (1 + 1e-6); i++) {
    double mid = i == 0 ? high : 0.5 * (low + high);
    double need = demand(w, item, n, work, mid);
    if (need >= mid) {
      low = mid;
    } else {
      if (need > low) low = need;
      high = mid;
    }
  }
  return low;
}

/* ----------------------------------------------------------------- fixed bags */

/*
** Least Ulysses seconds, summed over a bag's ranks, that a token of a whole sequence costs there
** with equal shares. A rank has at least (1/g)(1 - g/l) of the tokens, and all heads are on the
** rank with the cheapest links at best. Shares by speed are not bounded: 0.
*/
static double bag_exchange(const kfi_world *w, int32_t bag) {
  int32_t g = w->bag_first[bag + 1] - w->bag_first[bag];
  double least, most;
  if (g == 1 || !w->equal_speeds) return 0;
  kfi_bag_links(w, bag, &least, &most);
  return 2 * least * w->heads / g;
}

/* What the bags of each size of every group offer at best. */
typedef struct offers {
  double *exchange_s, *speed; /* (n_groups * n_sizes) least, largest */
} offers;

static void list_offers(const kfi_world *w, offers *o) {
  int32_t n_groups = w->n_bags / w->bags_per_group;
  for (int32_t k = 0; k < n_groups; k++) {
    for (int32_t c = 0; c < w->n_sizes; c++) {
      int32_t i = k * w->n_sizes + c;
      o->exchange_s[i] = INFINITY;
      o->speed[i] = 0;
      for (int32_t p = w->size_first[c]; p < w->size_first[c + 1]; p++) {
        int32_t b = k * w->bags_per_group + w->size_bag[p];
        double s = bag_exchange(w, b);
        if (s < o->exchange_s[i]) o->exchange_s[i] = s;
        if (w->bag_speed[b] > o->speed[i]) o->speed[i] = w->bag_speed[b];
      }
    }
  }
}

/*
** For every group: each sequence costs at least its work and the cheapest exchange among the
** bags, and takes at least as long as on the bag where it is quickest.
*/
static double bound_fixed(const kfi_world *w, const kfi_item *item, int64_t n, double *scratch) {
  int32_t n_groups = w->n_bags / w->bags_per_group;
  double most = 0, *group_s = scratch + 2 * w->n_bags;
  offers o = {scratch, scratch + w->n_bags};
  list_offers(w, &o);
  for (int32_t k = 0; k < n_groups; k++) group_s[k] = 0;
  for (int64_t j = 0; j < n; j++) {
    const kfi_item *it = &item[j];
    int32_t group = w->bag_of[it->home] / w->bags_per_group;
    double cheapest = INFINITY, quickest = INFINITY, l = (double)it->len;
    for (int32_t c = 0; c < w->n_sizes; c++) {
      int32_t i = group * w->n_sizes + c, g = w->size_ranks[c];
      if ((it->len + g - 1) / g > w->max_chunk) continue;
      double s = l > g ? o.exchange_s[i] * (l - g) : 0;
      if (s < cheapest) cheapest = s;
      if (it->work / o.speed[i] < quickest) quickest = it->work / o.speed[i];
    }
    /* what joins bags, and under caps anything may, is only bound to do its work */
    if (isinf(cheapest) || w->bag_cap) cheapest = quickest = 0;
    group_s[group] += it->work + w->min_speed * cheapest;
    if (quickest > most) most = quickest;
  }
  for (int32_t k = 0; k < n_groups; k++) {
    double speed = 0;
    for (int32_t b = 0; b < w->bags_per_group; b++)
      speed += w->bag_speed[k * w->bags_per_group + b];
    if (group_s[k] / speed > most) most = group_s[k] / speed;
  }
  return most;
}

double kfi_bound(const kfi_world *w, const kfi_item *item, int64_t n, double *scratch) {
  double work = 0;
  for (int64_t j = 0; j < n; j++) work += item[j].work;
  if (work <= 0) return 0;
  if (w->auto_bags) return bound_auto(w, item, n, work);
  double ideal = work / w->total_speed;
  double fixed = bound_fixed(w, item, n, scratch);
  return fixed > ideal ? fixed : ideal;
}
