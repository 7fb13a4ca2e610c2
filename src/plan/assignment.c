/* SPDX-License-Identifier: Apache-2.0 */
/*
** The assignment that the search changes, its loads, and trial moves.
**
** Loads are kept incrementally; a set of k shares costs O(k) to price because inside a node all
** links are alike: what rank r exchanges depends on its own tokens and heads and on the sums of
** its node, not on who the others are.
*/
#include <math.h>
#include <string.h>

#include "knapsack.h"

#define STEEP 1.02 /* loads this far above the target are all alike to the objective */

/* From `load` to `slot` lies what a copy takes over, then slots; from `delta` to `dirty` what is 0
** between trials. */
void kfi_assignment_layout(kfi_assignment *st, kfi_layout *lay, int64_t n_items, int32_t n_slots) {
  const kfi_world *w = st->world;
  int64_t n_bags = w->n_bags, n_ranks = w->n_ranks;
  bool mem = w->cap || w->affinity == KF_AFFINITY_SPREAD;
  st->n_items = n_items;
  st->n_slots = n_slots;
  st->load = KFI_TAKE(lay, double, n_bags);
  st->extra = KFI_TAKE(lay, double, w->max_bag > 1 ? n_ranks : 0);
  st->ulysses_s = KFI_TAKE(lay, double, n_bags);
  st->mem = mem ? KFI_TAKE(lay, int64_t, n_bags) : NULL;
  st->first = KFI_TAKE(lay, int32_t, n_bags);
  st->last = KFI_TAKE(lay, int32_t, n_bags);
  st->next = KFI_TAKE(lay, int32_t, n_items);
  st->prev = KFI_TAKE(lay, int32_t, n_items);
  st->where = KFI_TAKE(lay, int32_t, n_items);
  st->rank_slot = KFI_TAKE(lay, int32_t, n_ranks);
  st->slot = KFI_TAKE(lay, kfi_slot, n_slots);

  st->delta = KFI_TAKE(lay, double, n_bags);
  st->mem_delta = mem ? KFI_TAKE(lay, int64_t, n_bags) : NULL;
  st->worth = KFI_TAKE(lay, double, n_bags);
  st->is_dirty = KFI_TAKE(lay, bool, n_bags);
  st->dirty = KFI_TAKE(lay, int32_t, n_bags);
  st->touched = KFI_TAKE(lay, int32_t, 4 * n_bags + 8);
  st->set = KFI_TAKE(lay, kfi_share, n_ranks);
  st->set_b = KFI_TAKE(lay, kfi_share, n_ranks);
  st->set_cost = KFI_TAKE(lay, double, n_ranks);
}

/* What a token of a whole sequence costs each rank of a bag in Ulysses, the rank with the dearest
** links counting, and what an empty bag costs. */
static void price_bags(kfi_assignment *st) {
  const kfi_world *w = st->world;
  for (int32_t b = 0; b < w->n_bags; b++) {
    double least, most = 0, g = w->bag_first[b + 1] - w->bag_first[b];
    if (g > 1) kfi_bag_links(w, b, &least, &most);
    st->ulysses_s[b] = 2 * most * w->heads / (g * g);
    st->load[b] = w->ulysses_latency_s * (g - 1); /* its peers, however many sequences it has */
  }
}

void kfi_assignment_reset(kfi_assignment *st) {
  const kfi_world *w = st->world;
  price_bags(st);
  for (int32_t b = 0; b < w->n_bags; b++) {
    st->delta[b] = st->worth[b] = 0;
    st->is_dirty[b] = false;
    st->first[b] = st->last[b] = -1;
    if (st->mem) st->mem[b] = st->mem_delta[b] = 0;
  }
  for (int32_t r = 0; r < w->n_ranks; r++) {
    st->rank_slot[r] = -1;
    if (w->max_bag > 1) st->extra[r] = 0;
  }
  st->n_used = st->n_free = 0;
  st->free_slot = -1;
  st->n_touched = st->n_dirty = 0;
  for (int64_t j = 0; st->has_empty && j < st->n_items; j++) {
    kfi_share home = {st->item[j].home, w->heads, 0};
    if (st->item[j].len == 0) kfi_put_set(st, j, &home, 1); /* count_slots has seen to slots */
  }
}

void kfi_assignment_copy(kfi_assignment *to, const kfi_assignment *from) {
  memcpy(to->load, from->load, (size_t)((char *)from->slot - (char *)from->load));
  memcpy(to->slot, from->slot, (size_t)from->n_used * sizeof(kfi_slot));
  memset(to->delta, 0, (size_t)((char *)to->dirty - (char *)to->delta));
  to->n_touched = to->n_dirty = 0;
  to->bytes_delta = 0;
  to->free_slot = from->free_slot;
  to->n_free = from->n_free;
  to->n_used = from->n_used;
  to->target_s = from->target_s;
  to->sharpness = from->sharpness;
}

/* -------------------------------------------------------------------- prices */

/* What home pays for rows on other ranks: the same as their holders pay for receiving them. */
static inline double route_s(const kfi_world *w, int32_t home, int32_t q, double tokens) {
  if (q == home || tokens <= 0) return 0;
  return kfi_route_s(w, home, q) * tokens + w->route_latency_s;
}

double kfi_price_set(const kfi_assignment *st, int64_t j, const kfi_share *set, int32_t n,
                     double *cost) {
  const kfi_world *w = st->world;
  const kfi_item *it = &st->item[j];
  double l = (double)it->len, H = w->heads;
  double token_s = it->factor * w->linear_s, head_s = kfi_head_s(w, it);
  double constant_s = it->factor * w->constant_s, home_s = 0;
  int32_t with_tokens = 0, with_heads = 0;
  for (int32_t i = 0; i < n; i++) {
    with_tokens += set[i].tokens > 0;
    with_heads += set[i].heads > 0;
  }
  for (int32_t i = 0; i < n;) { /* node by node */
    int32_t node = kfi_node(w, set[i].rank), end = i;
    double tokens = 0, heads = 0;
    for (; end < n && kfi_node(w, set[end].rank) == node; end++) {
      tokens += (double)set[end].tokens;
      heads += set[end].heads;
    }
    for (; i < end; i++) {
      double t = (double)set[i].tokens, h = set[i].heads;
      double near = t * (heads - h) + (tokens - t) * h;
      double far = t * (H - heads) + (l - tokens) * h;
      int32_t peers = t > 0 && h > 0 ? n - 1 : t > 0 ? with_heads : with_tokens;
      double in_s = route_s(w, it->home, set[i].rank, t);
      cost[i] = (token_s * t + head_s * h + constant_s) * w->slow[set[i].rank] +
                near * w->ulysses_intra_s + far * w->ulysses_inter_s +
                peers * w->ulysses_latency_s + in_s;
      home_s += in_s;
    }
  }
  return home_s;
}

double kfi_price_whole(const kfi_assignment *st, int64_t j, int32_t bag, double *home_s) {
  const kfi_world *w = st->world;
  const kfi_item *it = &st->item[j];
  int32_t first = w->bag_first[bag], g = w->bag_first[bag + 1] - first;
  double l = (double)it->len;
  if (g == 1) {
    *home_s = route_s(w, it->home, first, l);
    return it->work * w->slow[first] + *home_s;
  }
  bool at_home = w->bag_of[it->home] == bag;
  int32_t near = first + (first == it->home); /* a rank of the bag that is not home */
  double in_s = route_s(w, it->home, near, l / g);
  *home_s = (at_home ? g - 1 : g) * in_s;
  double constant_s = it->factor * w->constant_s;
  return (it->work - constant_s) / w->bag_speed[bag] + constant_s * g / w->bag_speed[bag] +
         l * st->ulysses_s[bag] + in_s;
}

int64_t kfi_whole_mem(const kfi_world *w, const kfi_item *it, int32_t bag) {
  int32_t first = w->bag_first[bag], g = w->bag_first[bag + 1] - first;
  kfi_share s = {0, (w->heads + g - 1) / g, (it->len + g - 1) / g};
  if (g > 1 && !w->equal_speeds) { /* dealt by speed: the fastest rank takes most */
    double most = 0;
    for (int32_t r = first; r < first + g; r++) most = w->speed[r] > most ? w->speed[r] : most;
    double share = most / w->bag_speed[bag];
    s.heads = (int32_t)ceil(w->heads * share);
    s.tokens = (int64_t)ceil((double)it->len * share) + g;
    if (w->linear_s > 0) s.tokens += (int64_t)ceil(kfi_head_s(w, it) / (it->factor * w->linear_s));
    if (s.tokens > w->max_chunk) s.tokens = w->max_chunk; /* others take the rest, up to that */
    if (s.heads > w->heads) s.heads = w->heads;
    if (s.tokens > it->len) s.tokens = it->len;
  }
  return kfi_share_load(&s, it->len, w->heads);
}

/* -------------------------------------------------------------- change the assignment */

static double max_extra(const kfi_assignment *st, int32_t bag) {
  const kfi_world *w = st->world;
  double m = 0;
  for (int32_t r = w->bag_first[bag]; r < w->bag_first[bag + 1]; r++) {
    if (st->extra[r] > m) m = st->extra[r];
  }
  return m;
}

static inline void add_bag(kfi_assignment *st, int32_t b, double s) {
  st->load[b] += s;
  if (st->is_dirty[b]) return;
  st->is_dirty[b] = true;
  st->dirty[st->n_dirty++] = b;
}

void kfi_clean(kfi_assignment *st) {
  for (int32_t i = 0; i < st->n_dirty; i++) st->is_dirty[st->dirty[i]] = false;
  st->n_dirty = 0;
}

/* Seconds on one rank only. */
static void add_rank(kfi_assignment *st, int32_t r, double s) {
  const kfi_world *w = st->world;
  int32_t b = w->bag_of[r];
  if (w->bag_first[b + 1] - w->bag_first[b] == 1) {
    add_bag(st, b, s);
  } else {
    double before = max_extra(st, b);
    st->extra[r] += s;
    add_bag(st, b, max_extra(st, b) - before);
  }
}

/* Insert into the bag's list, which is sorted by rising item. Mostly at the end. */
static void link_item(kfi_assignment *st, int64_t j, int32_t bag) {
  int32_t after = st->last[bag], i = (int32_t)j;
  while (after >= 0 && after > i) after = st->prev[after];
  int32_t before = after < 0 ? st->first[bag] : st->next[after];
  st->prev[i] = after;
  st->next[i] = before;
  if (after < 0)
    st->first[bag] = i;
  else
    st->next[after] = i;
  if (before < 0)
    st->last[bag] = i;
  else
    st->prev[before] = i;
}

static void unlink_item(kfi_assignment *st, int64_t j, int32_t bag) {
  int32_t p = st->prev[j], n = st->next[j];
  if (p < 0)
    st->first[bag] = n;
  else
    st->next[p] = n;
  if (n < 0)
    st->last[bag] = p;
  else
    st->prev[n] = p;
}

void kfi_put_whole(kfi_assignment *st, int64_t j, int32_t bag) {
  const kfi_item *it = &st->item[j];
  double home_s, s = kfi_price_whole(st, j, bag, &home_s);
  st->where[j] = bag;
  link_item(st, j, bag);
  add_bag(st, bag, s);
  if (home_s > 0) add_rank(st, it->home, home_s);
  if (st->mem) st->mem[bag] += kfi_whole_mem(st->world, it, bag);
}

/* Add to mem (or take off) what a set counts for the caps: the largest share in every bag. */
static void add_set_mem(const kfi_assignment *st, int64_t *mem, int64_t j, const kfi_share *set,
                        int32_t n, int sign) {
  const kfi_world *w = st->world;
  for (int32_t i = 0; i < n;) {
    int32_t bag = w->bag_of[set[i].rank];
    int64_t most = 0;
    for (; i < n && w->bag_of[set[i].rank] == bag; i++) {
      int64_t m = kfi_share_load(&set[i], st->item[j].len, w->heads);
      if (m > most) most = m;
    }
    mem[bag] += sign * most;
  }
}

static int32_t take_slot(kfi_assignment *st) {
  int32_t s = st->free_slot;
  if (s < 0) return st->n_used++;
  st->free_slot = st->slot[s].in_set;
  st->n_free--;
  return s;
}

bool kfi_put_set(kfi_assignment *st, int64_t j, const kfi_share *set, int32_t n) {
  if (n == 1 && st->world->auto_bags && st->item[j].len > 0) {
    kfi_put_whole(st, j, set[0].rank);
    return true;
  }
  if (st->n_slots - st->n_used + st->n_free < n) return false;
  double home_s = kfi_price_set(st, j, set, n, st->set_cost);
  int32_t before = -1;
  for (int32_t i = 0; i < n; i++) {
    int32_t s = take_slot(st);
    if (before >= 0)
      st->slot[before].in_set = s;
    else
      st->where[j] = ~s;
    before = s;
    int32_t r = set[i].rank, old = st->rank_slot[r];
    st->slot[s] = (kfi_slot){set[i], st->set_cost[i], (int32_t)j, -1, old, -1};
    if (old >= 0) st->slot[old].rank_prev = s;
    st->rank_slot[r] = s;
    add_rank(st, r, st->set_cost[i]);
  }
  if (home_s > 0) add_rank(st, st->item[j].home, home_s);
  if (st->mem) add_set_mem(st, st->mem, j, set, n, 1);
  return true;
}

int32_t kfi_get_set(const kfi_assignment *st, int64_t j, kfi_share *set) {
  if (st->where[j] >= 0) {
    set[0] = (kfi_share){st->where[j], st->world->heads, st->item[j].len};
    return 1;
  }
  int32_t n = 0;
  for (int32_t s = ~st->where[j]; s >= 0; s = st->slot[s].in_set) set[n++] = st->slot[s].share;
  return n;
}

/* What the home rank pays now for the rows of a split sequence. */
static double set_home_s(const kfi_assignment *st, int64_t j) {
  double sum = 0;
  for (int32_t s = ~st->where[j]; s >= 0; s = st->slot[s].in_set) {
    const kfi_share *h = &st->slot[s].share;
    sum += route_s(st->world, st->item[j].home, h->rank, (double)h->tokens);
  }
  return sum;
}

void kfi_take_off(kfi_assignment *st, int64_t j) {
  const kfi_item *it = &st->item[j];
  if (!kfi_is_split(st, j)) {
    int32_t bag = st->where[j];
    double home_s, s = kfi_price_whole(st, j, bag, &home_s);
    unlink_item(st, j, bag);
    add_bag(st, bag, -s);
    if (home_s > 0) add_rank(st, it->home, -home_s);
    if (st->mem) st->mem[bag] -= kfi_whole_mem(st->world, it, bag);
    return;
  }
  double home_s = set_home_s(st, j);
  if (st->mem) {
    int32_t n = kfi_get_set(st, j, st->set_b);
    add_set_mem(st, st->mem, j, st->set_b, n, -1);
  }
  for (int32_t s = ~st->where[j], next; s >= 0; s = next) {
    kfi_slot *k = &st->slot[s];
    next = k->in_set;
    if (k->rank_prev >= 0)
      st->slot[k->rank_prev].rank_next = k->rank_next;
    else
      st->rank_slot[k->share.rank] = k->rank_next;
    if (k->rank_next >= 0) st->slot[k->rank_next].rank_prev = k->rank_prev;
    add_rank(st, k->share.rank, -k->cost_s);
    k->in_set = st->free_slot;
    st->free_slot = s;
    st->n_free++;
  }
  if (home_s > 0) add_rank(st, it->home, -home_s);
}

/* Whether the loads are what the assignment says, but for rounding. rank_s: n_ranks. */
bool kfi_assignment_sound(const kfi_assignment *st, double *rank_s) {
  const kfi_world *w = st->world;
  memset(rank_s, 0, (size_t)w->n_ranks * sizeof *rank_s);
  for (int64_t j = 0; j < st->n_items; j++) {
    int32_t home = st->item[j].home, where = st->where[j];
    if (where >= 0) {
      double home_s, s = kfi_price_whole(st, j, where, &home_s);
      for (int32_t r = w->bag_first[where]; r < w->bag_first[where + 1]; r++) rank_s[r] += s;
      rank_s[home] += home_s;
      continue;
    }
    int32_t n = kfi_get_set(st, j, st->set);
    rank_s[home] += kfi_price_set(st, j, st->set, n, st->set_cost);
    for (int32_t i = 0; i < n; i++) rank_s[st->set[i].rank] += st->set_cost[i];
  }
  /* What is taken off again may leave a rounding error of its size; also latencies, of which nothing
  ** may be left. */
  double largest = (w->ulysses_latency_s + w->route_latency_s) * w->n_ranks;
  for (int32_t r = 0; r < w->n_ranks; r++) largest = rank_s[r] > largest ? rank_s[r] : largest;
  for (int32_t b = 0; b < w->n_bags; b++) {
    double most = 0, idle = w->ulysses_latency_s * (w->bag_first[b + 1] - w->bag_first[b] - 1);
    for (int32_t r = w->bag_first[b]; r < w->bag_first[b + 1]; r++) {
      most = rank_s[r] > most ? rank_s[r] : most;
    }
    if (fabs(st->load[b] - most - idle) > 1e-9 * (largest + idle)) return false;
  }
  return true;
}

/* -------------------------------------------------------------------- trials */

/* delta is 0 between trials, so a bag that is touched twice may stand in the list twice;
** kfi_trial_end counts it once because it clears delta as it goes. */
static inline void touch(kfi_assignment *st, int32_t bag, double s) {
  if (st->delta[bag] == 0) st->touched[st->n_touched++] = bag;
  st->delta[bag] += s;
}

static inline void touch_rank(kfi_assignment *st, int32_t r, double s) {
  const kfi_world *w = st->world;
  int32_t b = w->bag_of[r];
  if (w->max_bag == 1 || w->bag_first[b + 1] - w->bag_first[b] == 1) {
    touch(st, b, s);
  } else {
    double before = max_extra(st, b);
    st->extra[r] += s;
    touch(st, b, max_extra(st, b) - before);
    st->extra[r] -= s;
  }
}

/* Bytes that a share (or, with all heads, a whole sequence) adds on both ends of its links. */
static double share_bytes(const kfi_assignment *st, const kfi_item *it, const kfi_share *s) {
  const kfi_world *w = st->world;
  double t = (double)s->tokens;
  double crossing = t - t * s->heads / w->heads;
  return w->ulysses_bytes * crossing + (s->rank == it->home ? 0 : w->route_bytes * t);
}

static double placed_bytes(const kfi_assignment *st, int64_t j) {
  double sum = 0;
  if (!kfi_is_split(st, j)) {
    kfi_share s = {st->where[j], st->world->heads, st->item[j].len};
    return share_bytes(st, &st->item[j], &s);
  }
  for (int32_t s = ~st->where[j]; s >= 0; s = st->slot[s].in_set) {
    sum += share_bytes(st, &st->item[j], &st->slot[s].share);
  }
  return sum;
}

double kfi_assignment_bytes(const kfi_assignment *st) {
  double sum = 0;
  for (int64_t j = 0; j < st->n_items; j++) sum += placed_bytes(st, j);
  return sum;
}

void kfi_trial_off(kfi_assignment *st, int64_t j) {
  const kfi_item *it = &st->item[j];
  if (st->bytes_per_s > 0) st->bytes_delta -= placed_bytes(st, j);
  if (!kfi_is_split(st, j)) {
    int32_t bag = st->where[j];
    double home_s, s = kfi_price_whole(st, j, bag, &home_s);
    touch(st, bag, -s);
    if (home_s > 0) touch_rank(st, it->home, -home_s);
    if (st->mem) st->mem_delta[bag] -= kfi_whole_mem(st->world, it, bag);
    return;
  }
  double home_s = set_home_s(st, j);
  for (int32_t s = ~st->where[j]; s >= 0; s = st->slot[s].in_set) {
    touch_rank(st, st->slot[s].share.rank, -st->slot[s].cost_s);
  }
  if (home_s > 0) touch_rank(st, it->home, -home_s);
  if (st->mem) {
    int32_t n = kfi_get_set(st, j, st->set_b);
    add_set_mem(st, st->mem_delta, j, st->set_b, n, -1);
  }
}

void kfi_trial_whole(kfi_assignment *st, int64_t j, int32_t bag) {
  double home_s, s = kfi_price_whole(st, j, bag, &home_s);
  touch(st, bag, s);
  if (st->bytes_per_s > 0) {
    kfi_share all = {bag, st->world->heads, st->item[j].len};
    st->bytes_delta += share_bytes(st, &st->item[j], &all);
  }
  if (home_s > 0) touch_rank(st, st->item[j].home, home_s);
  if (st->mem) st->mem_delta[bag] += kfi_whole_mem(st->world, &st->item[j], bag);
}

void kfi_trial_set(kfi_assignment *st, int64_t j, const kfi_share *set, int32_t n) {
  double home_s = kfi_price_set(st, j, set, n, st->set_cost);
  for (int32_t i = 0; i < n; i++) {
    touch_rank(st, set[i].rank, st->set_cost[i]);
    if (st->bytes_per_s > 0) st->bytes_delta += share_bytes(st, &st->item[j], &set[i]);
  }
  if (home_s > 0) touch_rank(st, st->item[j].home, home_s);
  if (st->mem) add_set_mem(st, st->mem_delta, j, set, n, 1);
}

/* x^(2^squarings), continued by its tangent where it would grow out of bounds. */
static inline double power(double x, int squarings) {
  double over = x > STEEP ? x - STEEP : 0;
  if (over > 0) x = STEEP;
  for (int i = 0; i < squarings; i++) x *= x;
  return x + over * x * (double)(1 << squarings) / STEEP;
}

void kfi_appraise(kfi_assignment *st, int32_t b) {
  st->worth[b] = power(st->load[b] / st->target_s, st->sharpness);
}

double kfi_trial_end(kfi_assignment *st) {
  double per_target = 1 / st->target_s, gain = 0;
  bool fits = true;
  for (int32_t i = 0; i < st->n_touched; i++) {
    int32_t b = st->touched[i];
    double d = st->delta[b];
    st->delta[b] = 0;
    if (d != 0) gain += power((st->load[b] + d) * per_target, st->sharpness) - st->worth[b];
    if (st->mem) {
      const int64_t *cap = st->world->bag_cap;
      if (cap && st->mem_delta[b] > 0 && st->mem[b] + st->mem_delta[b] > cap[b]) fits = false;
      st->mem_delta[b] = 0;
    }
  }
  if (st->bytes_per_s > 0) {
    gain += st->bytes_delta / st->bytes_per_s * per_target * (1 << st->sharpness);
    st->bytes_delta = 0;
  }
  st->moves += 1 + (st->n_touched > 8 ? (st->n_touched - 8) / 4 : 0); /* large sets take longer */
  st->n_touched = 0;
  return fits ? gain : INFINITY;
}
