/* SPDX-License-Identifier: Apache-2.0 */
/*
** First assignments. `auto`, for a target T, in the order of falling work:
**
**   long       (no rank can do it within T): cut as split.c says, inside one node: the home
**              node if it has the room, else the emptiest; full shares on the emptiest ranks,
**              the remainder where it fits best
**   whole      at home while that stays below T, else where it fits best in the home node,
**              else on the emptiest rank of all
**   misfit     (no rank has the room, but a node has): cut over the rooms that are left, like
**              McNaughton's wrap-around rule
**
** Everything else is the refinement's business.
*/
#include <math.h>
#include <string.h>

#include "knapsack.h"

#define WINDOW 16 /* ranks of the home node that are looked at */

void kfi_builder_layout(kfi_builder *b, const kfi_world *w, kfi_layout *lay) {
  b->node_load = KFI_TAKE(lay, double, w->n_nodes);
  b->node_is_dirty = KFI_TAKE(lay, bool, w->n_nodes);
  b->dirty_node = KFI_TAKE(lay, int32_t, w->n_nodes);
  b->node_win = KFI_TAKE(lay, int32_t, 2 * kfi_tree_size(w->n_nodes));
  b->bag_win = KFI_TAKE(lay, int32_t, 2 * kfi_tree_size(w->n_bags));
  b->rank = KFI_TAKE(lay, int32_t, w->n_ranks);
  b->room = KFI_TAKE(lay, double, w->n_ranks);
  b->bag_work = KFI_TAKE(lay, double, 2 * w->n_bags);
  b->group_work = KFI_TAKE(lay, double, w->n_bags / w->bags_per_group);
}

typedef struct builder {
  kfi_state *st;
  kfi_builder *b;
  kfi_tree node, bag;
  double target_s;
  int32_t n_dirty_nodes;
} builder;

/* Bring the tree of ranks up to date with the loads that changed; before asking it. */
static void settle(builder *u) {
  kfi_state *st = u->st;
  for (int32_t i = 0; i < st->n_dirty; i++) {
    int32_t r = st->dirty[i], m = kfi_node(st->world, r);
    kfi_tree_update(&u->bag, r);
    if (u->b->node_is_dirty[m]) continue;
    u->b->node_is_dirty[m] = true;
    u->b->dirty_node[u->n_dirty_nodes++] = m;
  }
  kfi_clean(st);
}

/* The same for the tree of nodes. A node's key is minus the room that its ranks have. */
static void settle_nodes(builder *u) {
  const kfi_world *w = u->st->world;
  settle(u);
  for (int32_t i = 0; i < u->n_dirty_nodes; i++) {
    int32_t m = u->b->dirty_node[i], first = m * w->ranks_per_node;
    double sum = 0;
    for (int32_t q = first; q < first + w->ranks_per_node && q < w->n_ranks; q++) {
      double load = u->st->load[q];
      sum += (load < u->target_s ? load : u->target_s) - u->target_s;
    }
    u->b->node_load[m] = sum;
    u->b->node_is_dirty[m] = false;
    kfi_tree_update(&u->node, m);
  }
  u->n_dirty_nodes = 0;
}

/* ---------------------------------------------------------------------- sets */

void kfi_sort_set(kfi_share *set, int32_t n) {
  for (int32_t i = 1; i < n; i++) {
    kfi_share v = set[i];
    int32_t k = i;
    for (; k > 0 && set[k - 1].rank > v.rank; k--) set[k] = set[k - 1];
    set[k] = v;
  }
}

/* Ranks of node m by falling room into b->rank from `at`; home first if it is nearly the best. */
static int32_t list_node(builder *u, int32_t m, int32_t home, int32_t at) {
  const kfi_world *w = u->st->world;
  int32_t first = m * w->ranks_per_node, n = at;
  for (int32_t r = first; r < first + w->ranks_per_node && r < w->n_ranks; r++) {
    double room = u->target_s * 1 - u->st->load[r];
    double rate = room * w->speed[r] * (r == home ? 1.05 : 1);
    int32_t k = n++;
    for (; k > at && u->b->room[u->b->rank[k - 1]] < rate; k--) u->b->rank[k] = u->b->rank[k - 1];
    u->b->rank[k] = r;
    u->b->room[r] = rate;
  }
  return n;
}

/*
** Tokens for given heads: most heads first, each rank filled to its room; what is left is
** spread evenly (the refinement levels it). set[] comes in falling order of heads.
*/
static void fill_tokens(builder *u, int64_t j, kfi_share *set, int32_t n, bool one_node) {
  const kfi_world *w = u->st->world;
  const kfi_item *it = &u->st->item[j];
  double link = one_node ? w->ulysses_intra_s : w->ulysses_inter_s;
  double l = (double)it->len, head_s = kfi_head_s(w, it);
  int64_t left = it->len;
  for (int32_t i = 0; i < n; i++) {
    int32_t r = set[i].rank, h = set[i].heads;
    double room = u->target_s - u->st->load[r] - it->factor * w->constant_s * w->slow[r] -
                  head_s * h * w->slow[r] - l * h * link - w->ulysses_latency_s * (n - 1);
    double slope = it->factor * w->linear_s * w->slow[r] + (w->heads - 2 * h) * link +
                   kfi_route_s(w, it->home, r);
    double t = slope > 0 ? floor(room / slope) : l;
    int64_t most = w->max_chunk < left ? w->max_chunk : left;
    if (w->cap) {
      int64_t spare = w->cap[r] - u->st->mem[r];
      if (spare < most) most = spare > 0 ? spare : 0;
    }
    set[i].tokens = t < 0 ? 0 : t < (double)most ? (int64_t)t : most;
    left -= set[i].tokens;
  }
  for (int32_t i = 0; left > 0 && i < n; i++) {
    int64_t more = (left + n - i - 1) / (n - i);
    if (more > w->max_chunk - set[i].tokens) more = w->max_chunk - set[i].tokens;
    set[i].tokens += more;
    left -= more;
  }
  for (int32_t i = 0; left > 0 && i < n; i++) { /* where max_chunk_size stood in the way */
    int64_t more = w->max_chunk - set[i].tokens < left ? w->max_chunk - set[i].tokens : left;
    set[i].tokens += more;
    left -= more;
  }
}

/* Heads in proportion to room, largest remainder first. */
static void share_heads(const builder *u, kfi_share *set, int32_t n) {
  int32_t heads = u->st->world->heads, left = heads;
  double sum = 0;
  for (int32_t i = 0; i < n; i++) sum += u->b->room[set[i].rank];
  for (int32_t i = 0; i < n; i++) {
    double share = sum > 0 ? u->b->room[set[i].rank] / sum : 1.0 / n;
    set[i].heads = (int32_t)(share * heads);
    if (set[i].heads < 0) set[i].heads = 0;
    left -= set[i].heads;
  }
  for (int32_t i = 0; left > 0; i = (i + 1) % n, left--) set[i].heads++;
}

/* How split.c would cut item j in a node of empty ranks; n = 0: not at all. Items of nearly the
** same length, which come one after the other, share a cut: only its heads are taken over. */
static const kfi_pattern *ideal_cut(builder *u, const kfi_item *it) {
  const kfi_world *w = u->st->world;
  kfi_builder *b = u->b;
  double l = (double)it->len;
  if (b->cut_len > 0 && l <= b->cut_len && l > 0.99 * b->cut_len && it->factor == b->cut_factor) {
    return &b->cut;
  }
  int64_t most = w->max_chunk < w->max_cap ? w->max_chunk : w->max_cap;
  kfi_cut cut = {
    .token_s = it->factor * w->linear_s * l,
    .head_s = kfi_head_s(w, it) * w->heads,
    .ulysses_s = w->ulysses_intra_s * l * w->heads,
    .limit_s = u->target_s - it->factor * w->constant_s - 2 * w->ulysses_latency_s,
    .latency_s = w->ulysses_latency_s,
    .x_max = most < it->len ? (double)most / l : 1,
    .y_max = w->max_cap < it->len ? (double)w->max_cap / l : 1,
    .n_heads = w->heads,
    .n_ranks = w->ranks_per_node,
  };
  cut.weight = w->free_links ? 1 : 2 * cut.ulysses_s;
  kfi_cut_best(&cut, &b->cut);
  b->cut_len = l;
  b->cut_factor = it->factor;
  return &b->cut;
}

/* Cut item j over ranks of one node, or of several if no node has the room. */
static kf_status place_cut(builder *u, int64_t j) {
  kfi_state *st = u->st;
  const kfi_world *w = st->world;
  const kfi_item *it = &st->item[j];
  double l = (double)it->len, T = u->target_s;
  int64_t most = w->max_chunk < w->max_cap ? w->max_chunk : w->max_cap;
  const kfi_pattern *p = ideal_cut(u, it);
  double exchange_s = 2 * w->ulysses_intra_s * l * w->heads;
  double need = it->work + (p->n ? exchange_s * (1 - p->inside) : 0);

  int32_t home = it->home, node = kfi_node(w, home), n_ranks = 0, n = 0;
  settle_nodes(u);
  bool one_node = true;
  if (-u->b->node_load[node] < need) node = kfi_tree_best(&u->node);
  n_ranks = list_node(u, node, home, 0);
  if (!p->n || -u->b->node_load[node] < 0.9 * need) {
    /* several nodes: the emptiest first, until there is room */
    double room = -u->b->node_load[node];
    one_node = false;
    for (int32_t k = 1; k < w->n_nodes && room < 1.1 * need; k++) {
      int32_t m = (node + k) % w->n_nodes;
      n_ranks = list_node(u, m, home, n_ranks);
      room += -u->b->node_load[m];
    }
  }
  /* full shares need empty ranks */
  int32_t empty = 0;
  while (empty < n_ranks && u->b->room[u->b->rank[empty]] > 0.9 * T) empty++;
  if (one_node && p->n && p->n <= n_ranks && empty >= p->n - 1) {
    n = p->n;
    for (int32_t i = 0; i < n; i++) st->set[i] = (kfi_share){u->b->rank[i], p->heads[i], 0};
    double last = p->x[n - 1] * it->factor * w->linear_s * l +
                  p->heads[n - 1] * kfi_head_s(w, it); /* fits best where room is least */
    for (int32_t i = n_ranks - 1; i >= n - 1; i--) {
      if (u->b->room[u->b->rank[i]] >= last * 1.1 || i == n - 1) {
        st->set[n - 1].rank = u->b->rank[i];
        break;
      }
    }
  } else {
    double room = 0;
    int64_t rows = 0;
    while (n < n_ranks && (n < 2 || room < need * (1 + 0.02 * n) || rows < it->len)) {
      int32_t r = u->b->rank[n];
      if (n >= 2 && u->b->room[r] <= 0 && rows >= it->len) break;
      room += u->b->room[r];
      rows += most < it->len ? most : it->len;
      st->set[n++] = (kfi_share){r, 0, 0};
    }
    share_heads(u, st->set, n);
  }
  fill_tokens(u, j, st->set, n, one_node);
  int32_t kept = 0;
  for (int32_t i = 0; i < n; i++) {
    if (st->set[i].tokens || st->set[i].heads) st->set[kept++] = st->set[i];
  }
  kfi_sort_set(st->set, kept);
  if (!kfi_set_fits(st, j, st->set, kept)) return kfi_place_by_memory(st, j);
  if (!kfi_put_set(st, j, st->set, kept)) return kfi_fail_memory(sizeof(kfi_slot), "a set");
  return KF_OK;
}

/*
** Cut an item that no rank has room for, though it is shorter than T, over the emptiest rank
** and one of its neighbours: of all ways to deal the heads, the one that keeps most together.
** False: two ranks are not enough.
*/
static bool place_misfit(builder *u, int64_t j, int32_t r) {
  kfi_state *st = u->st;
  const kfi_world *w = st->world;
  const kfi_item *it = &st->item[j];
  int32_t n = list_node(u, kfi_node(w, r), it->home, 0);
  int32_t tries = 0;
  double best = -1, cost[2];
  kfi_share kept[2];
  for (int32_t i = 0; i < n && i < 4; i++) {
    int32_t q = u->b->rank[i];
    if (q == r) continue;
    for (int32_t h = w->heads; h >= 0; h--) {
      kfi_share set[2] = {{r, h, 0}, {q, w->heads - h, 0}};
      if (best >= 0 && h < w->heads && best >= (double)h / w->heads) break;
      fill_tokens(u, j, set, 2, true);
      if (set[0].tokens + set[0].heads == 0 || set[1].tokens + set[1].heads == 0) continue;
      double inside = ((double)set[0].tokens * h + (double)set[1].tokens * (w->heads - h)) /
                      ((double)it->len * w->heads);
      if (inside <= best) continue;
      kfi_share sorted[2] = {set[r < q ? 0 : 1], set[r < q ? 1 : 0]};
      kfi_price_set(st, j, sorted, 2, cost);
      tries++;
      bool ok = true;
      for (int k = 0; k < 2; k++) ok &= st->load[sorted[k].rank] + cost[k] <= u->target_s * 1.0001;
      if (!ok) continue;
      best = inside;
      kept[0] = sorted[0], kept[1] = sorted[1];
    }
  }
  st->moves += tries / 8; /* a price is much cheaper than a move */
  return best >= 0 && kfi_set_fits(st, j, kept, 2) && kfi_put_set(st, j, kept, 2);
}

/* -------------------------------------------------------------------- wholes */

static bool fits(const builder *u, int64_t j, int32_t r) {
  const kfi_state *st = u->st;
  double home_s, s = kfi_price_whole(st, j, r, &home_s);
  if (st->world->cap && st->mem[r] + st->item[j].len > st->world->cap[r]) return false;
  return st->load[r] + s <= u->target_s;
}

/* The fullest rank of home's neighbourhood that has room; -1: none. */
static int32_t best_fit(const builder *u, int64_t j, int32_t home) {
  const kfi_world *w = u->st->world;
  int32_t node = kfi_node(w, home), first = node * w->ranks_per_node, best = -1;
  int32_t end = first + w->ranks_per_node < w->n_ranks ? first + w->ranks_per_node : w->n_ranks;
  if (end - first > WINDOW) {
    first += (home - first) / WINDOW * WINDOW;
    if (first + WINDOW < end) end = first + WINDOW;
  }
  for (int32_t r = first; r < end; r++) {
    if (fits(u, j, r) && (best < 0 || u->st->load[r] > u->st->load[best])) best = r;
  }
  return best;
}

static kf_status place_whole(builder *u, int64_t j) {
  kfi_state *st = u->st;
  int32_t home = st->item[j].home, r = home;
  if (!fits(u, j, r)) r = best_fit(u, j, home);
  if (r < 0) {
    settle(u);
    int32_t least = kfi_tree_best(&u->bag);
    if (fits(u, j, least)) r = best_fit(u, j, least);
    if (r < 0 && st->item[j].work > 0.05 * u->target_s && st->world->n_ranks > 1) {
      return place_misfit(u, j, least) ? KF_OK : place_cut(u, j);
    }
    if (r < 0 && st->world->cap) return kfi_place_by_memory(st, j);
    if (r < 0) r = least;
  }
  kfi_put_whole(st, j, r);
  return KF_OK;
}

kf_status kfi_construct_auto(kfi_state *st, kfi_builder *b, double target_s) {
  const kfi_world *w = st->world;
  builder u = {
    .st = st,
    .b = b,
    .node = {b->node_load, b->node_win, w->n_nodes, kfi_tree_size(w->n_nodes), 1},
    .bag = {st->load, b->bag_win, w->n_bags, kfi_tree_size(w->n_bags), 1},
    .target_s = target_s,
  };
  kfi_state_reset(st);
  st->target_s = target_s;
  b->cut_len = 0;
  for (int32_t m = 0; m < w->n_nodes; m++) {
    int32_t first = m * w->ranks_per_node, left = w->n_ranks - first;
    b->node_load[m] = -target_s * (left < w->ranks_per_node ? left : w->ranks_per_node);
    b->node_is_dirty[m] = false;
  }
  kfi_tree_build(&u.node);
  kfi_tree_build(&u.bag);
  for (int64_t j = 0; j < st->n_items; j++) {
    const kfi_item *it = &st->item[j];
    bool cut = it->work / w->max_speed > target_s || it->len > w->max_chunk || it->len > w->max_cap;
    kf_status status = !cut ? place_whole(&u, j)
                       : w->n_ranks > 1 ? place_cut(&u, j)
                                        : kfi_place_by_memory(st, j);
    if (status) return status;
  }
  kfi_clean(st);
  return KF_OK;
}
