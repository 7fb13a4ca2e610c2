/* SPDX-License-Identifier: Apache-2.0 */
/* The options of a planner, checked once and resolved into what the inner loops read. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planning.h"

static kf_status check_cost(const kf_cost *c) {
  const struct {
    const char *name;
    double value, min;
    bool may_be_inf;
  } number[] = {
    {"linear_s", c->linear_s, 0, false},
    {"quadratic_s", c->quadratic_s, 0, false},
    {"constant_s", c->constant_s, 0, false},
    {"ulysses_bytes", c->ulysses_bytes, 0, false},
    {"route_bytes", c->route_bytes, 0, false},
    {"cluster.intra_Bps", c->cluster.intra_Bps, 1, true},
    {"cluster.inter_Bps", c->cluster.inter_Bps, 1, true},
    {"cluster.latency_s", c->cluster.latency_s, 0, false},
  };
  for (size_t i = 0; i < sizeof number / sizeof number[0]; i++) {
    double v = number[i].value;
    if (!(v >= number[i].min) || (v > 1e100 && !number[i].may_be_inf)) {
      return kfi_fail(KF_EINVAL, "cost: %s is %g, expected at least %g%s", number[i].name, v,
                      number[i].min, number[i].may_be_inf ? "" : " and at most 1e100");
    }
  }
  if (c->heads < 1 || c->heads > KF_MAX_HEADS) {
    return kfi_fail(KF_EINVAL, "cost: %d heads, expected 1 to %d", c->heads, KF_MAX_HEADS);
  }
  if (c->layers < 1) return kfi_fail(KF_EINVAL, "cost: %d layers, expected 1 or more", c->layers);
  if (c->cluster.n_ranks < 1 || c->cluster.n_ranks > KF_MAX_RANKS) {
    return kfi_fail(KF_EINVAL, "cost: a cluster of %d ranks, expected 1 to %d", c->cluster.n_ranks,
                    KF_MAX_RANKS);
  }
  if (c->cluster.ranks_per_node < 1) {
    return kfi_fail(KF_EINVAL, "cost: %d ranks a node, expected 1 or more",
                    c->cluster.ranks_per_node);
  }
  return KF_OK;
}

/* Bags are an open struct: what kf_bags_parse makes is in order, what a caller makes may not be. */
static kf_status check_bags(const kf_bags *b) {
  bool whole = b->n_bags >= 1 && b->bags_per_group >= 1 && b->first &&
               (int64_t)b->n_groups * b->bags_per_group == b->n_bags && b->first[0] == 0 &&
               b->first[b->n_bags] == b->n_ranks;
  for (int32_t i = 0; whole && i < b->n_bags; i++) {
    int32_t size = b->first[i + 1] - b->first[i], twin = i % b->bags_per_group;
    if (size < 1 || size != b->first[twin + 1] - b->first[twin]) {
      return kfi_fail(KF_EINVAL, "bag %d has %d ranks, expected 1 or more, as in every group", i,
                      size);
    }
  }
  if (whole) return KF_OK;
  return kfi_fail(KF_EINVAL,
                  "bags: %d groups of %d bags, expected the %d bags from rank 0 to rank %d",
                  b->n_groups, b->bags_per_group, b->n_bags, b->n_ranks - 1);
}

static kf_status check_options(const kf_planner_options *o) {
  kf_status status = check_cost(&o->cost);
  int32_t n = o->cost.cluster.n_ranks;
  if (status) return status;
  for (int32_t r = 0; o->speed && r < n; r++) {
    if (!(o->speed[r] >= 1e-6) || !(o->speed[r] <= 1e6)) {
      return kfi_fail(KF_EINVAL, "speed of rank %d is %g, expected 1e-6 to 1e6", r, o->speed[r]);
    }
  }
  for (int32_t r = 0; o->mem_tokens && r < n; r++) {
    if (o->mem_tokens[r] < 0) {
      return kfi_fail(KF_EINVAL, "memory cap of rank %d is %lld tokens, expected 0 or more", r,
                      (long long)o->mem_tokens[r]);
    }
  }
  if (o->bags && (status = check_bags(o->bags))) return status;
  if (o->bags && o->bags->n_ranks != n) {
    return kfi_fail(KF_EINVAL, "bags cover %d ranks, expected the cluster's %d", o->bags->n_ranks,
                    n);
  }
  if (o->max_chunk_size < 0) {
    return kfi_fail(KF_EINVAL, "max_chunk_size is %lld, expected 0 (none) or more",
                    (long long)o->max_chunk_size);
  }
  if (o->budget < 0) {
    return kfi_fail(KF_EINVAL, "budget is %lld moves, expected 0 (default) or more",
                    (long long)o->budget);
  }
  if (o->affinity != KF_AFFINITY_FILL && o->affinity != KF_AFFINITY_SPREAD) {
    return kfi_fail(KF_EINVAL, "affinity is %d, expected KF_AFFINITY_FILL or KF_AFFINITY_SPREAD",
                    (int)o->affinity);
  }
  return KF_OK;
}

#define ZONE_LEAST 8 /* fewer neighbours leave the search no choice */
#define ZONE_MOST 64 /* more cost time: zones are searched and sorted one rank at a time */

/* Cut the ranks into zones; counts them only if first is NULL. */
static int32_t cut_zones(const kfi_world *w, int32_t *first, int32_t *zone_of) {
  int32_t node = w->ranks_per_node, n = 0, size = node;
  if (node < ZONE_LEAST) size = ZONE_LEAST / node * node;
  if (node > ZONE_MOST) {
    int32_t parts = (node + ZONE_MOST - 1) / ZONE_MOST;
    size = (node + parts - 1) / parts;
  }
  for (int32_t r = 0, end; r < w->n_ranks; r = end, n++) {
    end = r + size;
    if (node > ZONE_MOST && end > (r / node + 1) * node) end = (r / node + 1) * node;
    if (end > w->n_ranks) end = w->n_ranks;
    if (!first) continue;
    first[n] = r;
    first[n + 1] = end;
    for (int32_t q = r; q < end; q++) zone_of[q] = n;
  }
  return n;
}

void kfi_bag_links(const kfi_world *w, int32_t bag, double *least, double *most) {
  int32_t first = w->bag_first[bag], end = w->bag_first[bag + 1];
  *least = INFINITY;
  *most = 0;
  for (int32_t r = first; r < end;) { /* node by node: its ranks are alike */
    int32_t node_end = (kfi_node(w, r) + 1) * w->ranks_per_node;
    int32_t near = (node_end < end ? node_end : end) - r;
    double s = (near - 1) * w->ulysses_intra_s + (end - first - near) * w->ulysses_inter_s;
    if (s < *least) *least = s;
    if (s > *most) *most = s;
    r += near;
  }
}

/* Sort a group's bags by falling size by size: one counting pass per distinct size. */
static void sort_sizes(kfi_world *w, int32_t *size, int32_t *first, int32_t *bag, int32_t *place) {
  const int32_t *start = w->bag_first;
  int32_t n = 0, limit = INT32_MAX;
  w->n_sizes = 0;
  first[0] = 0;
  while (n < w->bags_per_group) {
    int32_t largest = 0;
    for (int32_t b = 0; b < w->bags_per_group; b++) {
      int32_t g = start[b + 1] - start[b];
      if (g < limit && g > largest) largest = g;
    }
    for (int32_t b = 0; b < w->bags_per_group; b++) {
      if (start[b + 1] - start[b] != largest) continue;
      place[b] = n;
      bag[n++] = b;
    }
    size[w->n_sizes++] = largest;
    first[w->n_sizes] = n;
    limit = largest;
  }
  w->size_ranks = size, w->size_first = first, w->size_bag = bag, w->size_place = place;
}

/* Speeds, caps and bags are copied: the caller's arrays are only borrowed. */
static void copy_ranks(kfi_world *w, const kf_planner_options *o, kfi_layout *lay) {
  int32_t n = w->n_ranks;
  double *speed = KFI_TAKE(lay, double, n), *slow = KFI_TAKE(lay, double, n);
  int64_t *cap = o->mem_tokens ? KFI_TAKE(lay, int64_t, n) : NULL;
  int32_t *first = KFI_TAKE(lay, int32_t, w->n_bags + 1), *bag_of = KFI_TAKE(lay, int32_t, n);
  int32_t *node_of = KFI_TAKE(lay, int32_t, n), *zone_of = KFI_TAKE(lay, int32_t, n);
  int32_t *zone_first = KFI_TAKE(lay, int32_t, w->n_zones + 1);
  double *bag_speed = KFI_TAKE(lay, double, w->n_bags),
         *bag_slow = KFI_TAKE(lay, double, w->n_bags);
  int64_t *bag_cap = o->mem_tokens ? KFI_TAKE(lay, int64_t, w->n_bags) : NULL;
  int32_t *size_ranks = KFI_TAKE(lay, int32_t, w->bags_per_group);
  int32_t *size_first = KFI_TAKE(lay, int32_t, w->bags_per_group + 1);
  int32_t *size_bag = KFI_TAKE(lay, int32_t, w->bags_per_group);
  int32_t *size_place = KFI_TAKE(lay, int32_t, w->bags_per_group);
  if (!lay->base) return;

  w->max_speed = 0, w->min_speed = INFINITY, w->total_speed = 0;
  w->max_cap = o->mem_tokens ? 0 : INT64_MAX;
  for (int32_t r = 0; r < n; r++) {
    speed[r] = o->speed ? o->speed[r] : 1;
    slow[r] = 1 / speed[r];
    node_of[r] = r / w->ranks_per_node;
    w->total_speed += speed[r];
    if (speed[r] > w->max_speed) w->max_speed = speed[r];
    if (speed[r] < w->min_speed) w->min_speed = speed[r];
    if (cap && (cap[r] = o->mem_tokens[r]) > w->max_cap) w->max_cap = cap[r];
  }
  w->equal_speeds = w->max_speed == w->min_speed;
  cut_zones(w, zone_first, zone_of);
  w->zone_first = zone_first, w->zone_of = zone_of;
  for (int32_t b = 0; b <= w->n_bags; b++) first[b] = o->bags ? o->bags->first[b] : b;
  for (int32_t b = 0; b < w->n_bags; b++) {
    bag_speed[b] = 0;
    if (cap) bag_cap[b] = cap[first[b]];
    if (first[b + 1] - first[b] > w->max_bag) w->max_bag = first[b + 1] - first[b];
    for (int32_t r = first[b]; r < first[b + 1]; r++) {
      bag_of[r] = b;
      bag_speed[b] += speed[r];
      if (cap && cap[r] < bag_cap[b]) bag_cap[b] = cap[r];
    }
    bag_slow[b] = 1 / bag_speed[b];
  }
  w->speed = speed, w->slow = slow, w->cap = cap;
  w->bag_first = first, w->bag_of = bag_of, w->bag_speed = bag_speed;
  w->bag_slow = bag_slow, w->node_of = node_of, w->bag_cap = bag_cap;
  sort_sizes(w, size_ranks, size_first, size_bag, size_place);
}

kf_status kfi_world_create(const kf_planner_options *o, kfi_world *w, kfi_buffer *buffer) {
  kf_status status = check_options(o);
  if (status) return status;
  const kf_cost *c = &o->cost;
  const kf_cluster *k = &c->cluster;
  *w = (kfi_world){
    .n_ranks = k->n_ranks,
    .heads = c->heads,
    .ranks_per_node = k->ranks_per_node < k->n_ranks ? k->ranks_per_node : k->n_ranks,
    .linear_s = c->linear_s,
    .quadratic_s = c->quadratic_s,
    .constant_s = c->constant_s,
    .ulysses_intra_s = c->ulysses_bytes / k->intra_Bps / c->heads,
    .ulysses_inter_s = c->ulysses_bytes / k->inter_Bps / c->heads,
    .route_intra_s = c->route_bytes / k->intra_Bps,
    .route_inter_s = c->route_bytes / k->inter_Bps,
    .ulysses_latency_s = k->latency_s * 4 * c->layers,
    .route_latency_s = k->latency_s * 4,
    .ulysses_bytes = c->ulysses_bytes,
    .route_bytes = c->route_bytes,
    .max_chunk = o->max_chunk_size ? o->max_chunk_size : INT64_MAX,
    .budget = o->budget,
    .affinity = o->affinity,
    .auto_bags = !o->bags,
    .n_bags = o->bags ? o->bags->n_bags : k->n_ranks,
    .bags_per_group = o->bags ? o->bags->bags_per_group : k->n_ranks,
  };
  w->n_zones = cut_zones(w, NULL, NULL);
  w->free_links = w->ulysses_intra_s == 0 && w->ulysses_inter_s == 0 && w->route_intra_s == 0 &&
                  w->route_inter_s == 0 && k->latency_s == 0;
  kfi_layout lay = {0};
  copy_ranks(w, o, &lay);
  if (!kfi_layout_reserve(&lay, buffer)) return KF_ENOMEM;
  copy_ranks(w, o, &lay);
  return KF_OK;
}

uint64_t kfi_world_hash(const kfi_world *w) {
  const int64_t whole[] = {w->n_ranks,        w->heads,      w->ranks_per_node, w->max_chunk,
                           w->budget,         w->affinity,   w->auto_bags,      w->n_bags,
                           w->bags_per_group, w->cap != NULL};
  const double real[] = {w->linear_s,        w->quadratic_s,       w->constant_s,
                         w->ulysses_intra_s, w->ulysses_inter_s,   w->route_intra_s,
                         w->route_inter_s,   w->ulysses_latency_s, w->route_latency_s,
                         w->ulysses_bytes,   w->route_bytes};
  uint64_t h = kfi_hash(KF_HASH_START, whole, sizeof whole / sizeof *whole);
  h = kfi_hash_reals(h, real, sizeof real / sizeof *real);
  h = kfi_hash_reals(h, w->speed, w->n_ranks);
  if (w->cap) h = kfi_hash(h, w->cap, w->n_ranks);
  for (int32_t b = 0; b <= w->n_bags; b++) h = kfi_hash(h, &(int64_t){w->bag_first[b]}, 1);
  return h;
}
