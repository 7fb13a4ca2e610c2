/* SPDX-License-Identifier: Apache-2.0 */
/*
** The first assignment of `auto` for a target T, in the order of falling work:
**
**   long     no rank can do it within T: cut as split.c says, inside one zone: the home zone if it
**            has the room, else the emptiest; full shares on empty ranks, the remainder where it
**            fits best
**   whole    at home while that stays below T, else where it fits best in the home zone, else on
**            the emptiest rank of all and its neighbours
**   misfit   no rank has the room, but a zone has: cut over two rooms, like McNaughton's
**            wrap-around rule
**
** Levelling is the refinement's business. Near n log n: two tournament trees find the emptiest
** rank and zone, and are brought up to date only when asked, since most sequences stay at home.
*/
#include <math.h>
#include <string.h>

#include "knapsack.h"
#include "tree.h"

#define HOME_BONUS 1.05   /* home counts as so much emptier: what stays there need not be routed */
#define EMPTY 0.9         /* of T: a rank with this room can take a full share */
#define CUT_FROM 0.05     /* of T: smaller misfits are left to the refinement */
#define MISFIT_PARTNERS 4 /* neighbours that a misfit's second share is tried on */

void kfi_builder_layout(kfi_builder *b, const kfi_world *w, kfi_layout *lay) {
  b->zone_s = KFI_TAKE(lay, double, w->n_zones);
  b->zone_is_dirty = KFI_TAKE(lay, bool, w->n_zones);
  b->dirty_zone = KFI_TAKE(lay, int32_t, w->n_zones);
  b->zone_win = KFI_TAKE(lay, int32_t, 2 * kfi_tree_size(w->n_zones));
  b->bag_win = KFI_TAKE(lay, int32_t, 2 * kfi_tree_size(w->n_bags));
  b->rank = KFI_TAKE(lay, int32_t, w->n_ranks);
  b->room = KFI_TAKE(lay, double, w->n_ranks);
  b->bag_work = KFI_TAKE(lay, double, w->auto_bags ? 0 : w->n_bags);
  b->bag_key = KFI_TAKE(lay, double, w->auto_bags ? 0 : w->n_bags);
  b->bound_scratch = KFI_TAKE(lay, double, w->auto_bags ? 0 : 3 * w->n_bags);
  b->group_work = KFI_TAKE(lay, double, w->n_bags / w->bags_per_group);
}

typedef struct builder {
  kfi_assignment *st;
  kfi_builder *b;
  kfi_tree zone, rank;
  double target_s;
  int32_t n_dirty_zones;
} builder;

/* Bring the tree of ranks up to date with the loads that changed; before asking it. */
static void settle(builder *u) {
  kfi_assignment *st = u->st;
  for (int32_t i = 0; i < st->n_dirty; i++) {
    int32_t r = st->dirty[i], m = st->world->zone_of[r];
    kfi_tree_update(&u->rank, r);
    if (u->b->zone_is_dirty[m]) continue;
    u->b->zone_is_dirty[m] = true;
    u->b->dirty_zone[u->n_dirty_zones++] = m;
  }
  kfi_clean(st);
}

/*
** The same for the tree of zones. What a zone has room for is work; ranks above the target count
** against it a little, so that zones without room still differ.
*/
static void settle_zones(builder *u) {
  const kfi_world *w = u->st->world;
  const int32_t *first = w->zone_first;
  settle(u);
  for (int32_t i = 0; i < u->n_dirty_zones; i++) {
    int32_t m = u->b->dirty_zone[i];
    double sum = 0;
    for (int32_t q = first[m]; q < first[m + 1]; q++) {
      double over = (u->st->load[q] - u->target_s) * w->speed[q];
      sum += over < 0 ? over : 1e-3 * over;
    }
    u->b->zone_s[m] = sum;
    u->b->zone_is_dirty[m] = false;
    kfi_tree_update(&u->zone, m);
  }
  u->n_dirty_zones = 0;
}

/* Change the target. What zones have is counted below it, so they are all to be counted again. */
static void aim(builder *u, double target_s) {
  const kfi_world *w = u->st->world;
  if (u->target_s == target_s) return;
  u->target_s = target_s;
  u->b->cut_len = 0;
  u->n_dirty_zones = w->n_zones;
  for (int32_t m = 0; m < w->n_zones; m++) {
    u->b->dirty_zone[m] = m;
    u->b->zone_is_dirty[m] = true;
  }
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

int32_t kfi_drop_empty(kfi_share *set, int32_t n) {
  int32_t kept = 0;
  for (int32_t i = 0; i < n; i++) {
    if (set[i].tokens || set[i].heads) set[kept++] = set[i];
  }
  return kept;
}

/* Add the ranks of zone m, by falling room, to the first `at` of b->rank; home comes early. */
static int32_t list_zone(builder *u, int32_t m, int32_t home, int32_t at) {
  const kfi_world *w = u->st->world;
  int32_t *rank = u->b->rank, n = at;
  for (int32_t r = w->zone_first[m]; r < w->zone_first[m + 1]; r++) {
    double room = (u->target_s - u->st->load[r]) * w->speed[r] * (r == home ? HOME_BONUS : 1);
    int32_t k = n++;
    for (; k > at && u->b->room[rank[k - 1]] < room; k--) rank[k] = rank[k - 1];
    rank[k] = r;
    u->b->room[r] = room;
  }
  return n;
}

/* Most tokens of item j beside h heads that keep rank r below the target, all on like links. */
static double tokens_beside(const builder *u, int64_t j, int32_t r, int32_t h, int32_t peers,
                            double link_s) {
  const kfi_world *w = u->st->world;
  const kfi_item *it = &u->st->item[j];
  double l = (double)it->len, slow = w->slow[r];
  double room = u->target_s - u->st->load[r] - it->factor * w->constant_s * slow -
                kfi_head_s(w, it) * h * slow - l * h * link_s - w->ulysses_latency_s * peers;
  double slope =
    it->factor * w->linear_s * slow + (w->heads - 2 * h) * link_s + kfi_route_s(w, it->home, r);
  return slope > 0 ? floor(room / slope) : l;
}

/*
** Tokens for given heads: in the order of set[], most heads first, each rank is filled to its
** room; what is left is spread evenly, and then to whom max_chunk_size lets take it.
*/
static void fill_tokens(const builder *u, int64_t j, kfi_share *set, int32_t n, bool near) {
  const kfi_world *w = u->st->world;
  double link_s = near ? w->ulysses_intra_s : w->ulysses_inter_s;
  int64_t left = u->st->item[j].len;
  for (int32_t i = 0; i < n; i++) {
    double t = tokens_beside(u, j, set[i].rank, set[i].heads, n - 1, link_s);
    int64_t most = w->max_chunk < left ? w->max_chunk : left;
    if (w->cap) {
      int64_t room = w->cap[set[i].rank] - u->st->mem[set[i].rank];
      if (room < most) most = room > 0 ? room : 0;
    }
    set[i].tokens = t < 0 ? 0 : t < (double)most ? (int64_t)t : most;
    left -= set[i].tokens;
  }
  for (int pass = 0; pass < 2; pass++) {
    for (int32_t i = 0; left > 0 && i < n; i++) {
      int64_t more = pass ? left : (left + n - i - 1) / (n - i);
      int64_t most = w->max_chunk - set[i].tokens;
      if (more > most) more = most;
      set[i].tokens += more;
      left -= more;
    }
  }
}

/* Heads in proportion to room; what rounding leaves goes to the first. */
static void share_heads(const builder *u, kfi_share *set, int32_t n) {
  int32_t heads = u->st->world->heads, left = heads;
  double sum = 0;
  for (int32_t i = 0; i < n; i++) {
    if (u->b->room[set[i].rank] > 0) sum += u->b->room[set[i].rank];
  }
  for (int32_t i = 0; i < n; i++) {
    double room = u->b->room[set[i].rank];
    set[i].heads = sum <= 0 ? heads / n : room > 0 ? (int32_t)(heads * (room / sum)) : 0;
    left -= set[i].heads;
  }
  for (int32_t i = 0; left > 0; i = (i + 1) % n, left--) set[i].heads++;
}

/* --------------------------------------------------------------------- longs */

/*
** How split.c would cut item j in a zone of empty ranks; n = 0: not at all. Items of nearly the
** same length come one after the other and share a cut: only its heads are taken over.
*/
static const kfi_pattern *ideal_cut(builder *u, const kfi_item *it) {
  const kfi_world *w = u->st->world;
  kfi_builder *b = u->b;
  double l = (double)it->len;
  if (l <= b->cut_len && l > 0.99 * b->cut_len && it->factor == b->cut_factor) return &b->cut;
  int64_t most = w->max_chunk < w->max_cap ? w->max_chunk : w->max_cap;
  double slow = w->n_ranks / w->total_speed; /* of a rank of mean speed */
  kfi_cut cut = {
    .token_s = it->factor * w->linear_s * l * slow,
    .head_s = kfi_head_s(w, it) * w->heads * slow,
    .ulysses_s = w->ulysses_intra_s * l * w->heads,
    .limit_s = u->target_s - it->factor * w->constant_s * slow - 2 * w->ulysses_latency_s,
    .latency_s = w->ulysses_latency_s,
    .x_max = most < it->len ? (double)most / l : 1,
    .y_max = w->max_cap < it->len ? (double)w->max_cap / l : 1,
    .n_heads = w->heads,
    .n_ranks = w->zone_first[1],
  };
  cut.weight = w->free_links ? 1 : 2 * cut.ulysses_s;
  kfi_cut_best(&cut, &b->cut);
  b->cut_len = l;
  b->cut_factor = it->factor;
  return &b->cut;
}

/*
** Candidates for a cut that needs `need` seconds, most room first: the home zone if it has the
** room, else the emptiest, else zones together until they have the room and ranks enough. Returns
** how many; *one_zone says which it was.
*/
static int32_t list_candidates(builder *u, const kfi_item *it, double need, bool *one_zone) {
  const kfi_world *w = u->st->world;
  const double *zone_s = u->b->zone_s;
  int64_t most = w->max_chunk < w->max_cap ? w->max_chunk : w->max_cap;
  int64_t least_ranks = most < it->len ? (it->len - 1) / (most > 0 ? most : 1) + 1 : 1;
  int32_t home = it->home, zone = w->zone_of[home];
  settle_zones(u);
  if (-zone_s[zone] < need) zone = kfi_tree_best(&u->zone);
  int32_t n = list_zone(u, zone, home, 0);
  double room = -zone_s[zone];
  *one_zone = room >= 0.9 * need && n >= least_ranks;
  for (int32_t k = 1; !*one_zone && k < w->n_zones && (room < 1.1 * need || n < least_ranks); k++) {
    int32_t m = (zone + k) % w->n_zones;
    n = list_zone(u, m, home, n);
    room -= zone_s[m];
  }
  return n;
}

/* Full shares on the first, the last share on the fullest rank that has room for it. */
static void place_pattern(const builder *u, int64_t j, const kfi_pattern *p, int32_t n_ranks) {
  const kfi_world *w = u->st->world;
  const kfi_item *it = &u->st->item[j];
  const int32_t *rank = u->b->rank;
  int32_t n = p->n, last = n_ranks - 1;
  double last_s =
    p->x[n - 1] * it->factor * w->linear_s * (double)it->len + p->heads[n - 1] * kfi_head_s(w, it);
  while (last > n - 1 && u->b->room[rank[last]] < 1.1 * last_s) last--;
  for (int32_t i = 0; i < n; i++) {
    u->st->set[i] = (kfi_share){rank[i < n - 1 ? i : last], p->heads[i], 0};
  }
}

/* As many of the candidates as have the room together, heads by room. */
static int32_t place_by_room(const builder *u, int64_t j, double need, int32_t n_ranks) {
  const kfi_world *w = u->st->world;
  int64_t len = u->st->item[j].len, rows = 0;
  int64_t most = w->max_chunk < w->max_cap ? w->max_chunk : w->max_cap;
  double room = 0;
  int32_t n = 0;
  for (; n < n_ranks; n++) {
    int32_t r = u->b->rank[n];
    bool enough = rows >= len && (room >= need * (1 + 0.02 * n) || u->b->room[r] <= 0);
    if (n >= 2 && enough) break;
    room += u->b->room[r];
    rows += most < len ? most : len;
    u->st->set[n] = (kfi_share){r, 0, 0};
  }
  share_heads(u, u->st->set, n);
  return n;
}

static kf_status place_cut(builder *u, int64_t j) {
  kfi_assignment *st = u->st;
  const kfi_world *w = st->world;
  const kfi_item *it = &st->item[j];
  const kfi_pattern *p = ideal_cut(u, it);
  double exchange_s = 2 * w->ulysses_intra_s * (double)it->len * w->heads;
  double need = it->work + (p->n ? exchange_s * (1 - p->inside) : 0);
  bool one_zone;
  int32_t n_ranks = list_candidates(u, it, need, &one_zone), n_empty = 0, n;
  for (; n_empty < n_ranks; n_empty++) {
    int32_t r = u->b->rank[n_empty];
    if (u->b->room[r] <= EMPTY * u->target_s * w->speed[r]) break;
  }

  if (one_zone && p->n > 1 && p->n <= n_ranks && n_empty >= p->n - 1) {
    n = p->n;
    place_pattern(u, j, p, n_ranks);
  } else {
    n = place_by_room(u, j, need, n_ranks);
  }
  fill_tokens(u, j, st->set, n, one_zone && w->ranks_per_node >= w->zone_first[1]);
  n = kfi_drop_empty(st->set, n);
  kfi_sort_set(st->set, n);
  if (!kfi_set_fits(st, j, st->set, n)) return kfi_place_by_memory(st, j);
  if (!kfi_put_set(st, j, st->set, n)) return kfi_fail_memory(sizeof(kfi_slot), "a set");
  return KF_OK;
}

/* ------------------------------------------------------------------- misfits */

/* Item j with h heads on rank r and the others on q: how much stays together; -1: no room. */
static double try_pair(builder *u, int64_t j, int32_t r, int32_t q, int32_t h, kfi_share *out) {
  kfi_assignment *st = u->st;
  int32_t heads = st->world->heads;
  double cost[2];
  kfi_share set[2] = {{r, h, 0}, {q, heads - h, 0}};
  fill_tokens(u, j, set, 2, kfi_node(st->world, r) == kfi_node(st->world, q));
  if (!set[0].tokens && !set[0].heads) return -1;
  if (!set[1].tokens && !set[1].heads) return -1;
  out[0] = set[r < q ? 0 : 1];
  out[1] = set[r < q ? 1 : 0];
  kfi_price_set(st, j, out, 2, cost);
  for (int k = 0; k < 2; k++) {
    if (st->load[out[k].rank] + cost[k] > u->target_s * 1.0001) return -1;
  }
  double inside = (double)set[0].tokens * h + (double)set[1].tokens * (heads - h);
  return inside / ((double)st->item[j].len * heads);
}

/*
** Cut an item that no rank has room for, though it is shorter than T, over the emptiest rank r
** and one of its neighbours: of all ways to deal the heads, the one that keeps most together.
** False: two ranks are not enough.
*/
static bool place_misfit(builder *u, int64_t j, int32_t r) {
  kfi_assignment *st = u->st;
  int32_t heads = st->world->heads, tries = 0;
  int32_t n = list_zone(u, st->world->zone_of[r], st->item[j].home, 0);
  double best = -1;
  kfi_share set[2], kept[2] = {{0}};
  for (int32_t i = 0; i < n && i < MISFIT_PARTNERS; i++) {
    if (u->b->rank[i] == r) continue;
    for (int32_t h = heads; h >= 0 && best < (double)h / heads; h--, tries++) {
      double inside = try_pair(u, j, r, u->b->rank[i], h, set);
      if (inside <= best) continue;
      best = inside;
      kept[0] = set[0], kept[1] = set[1];
    }
  }
  st->moves += tries / 8; /* a price is much cheaper than a move */
  return best >= 0 && kfi_set_fits(st, j, kept, 2) && kfi_put_set(st, j, kept, 2);
}

/* -------------------------------------------------------------------- wholes */

static bool fits(const builder *u, int64_t j, int32_t r) {
  const kfi_assignment *st = u->st;
  double home_s, s = kfi_price_whole(st, j, r, &home_s);
  if (st->world->cap && st->mem[r] + st->item[j].len > st->world->cap[r]) return false;
  return st->load[r] + s <= u->target_s;
}

/* The fullest of rank `near` and its neighbours that has room; -1: none. */
static int32_t best_fit(const builder *u, int64_t j, int32_t near) {
  const kfi_world *w = u->st->world;
  int32_t m = w->zone_of[near], best = -1;
  for (int32_t r = w->zone_first[m]; r < w->zone_first[m + 1]; r++) {
    if (best >= 0 && u->st->load[r] <= u->st->load[best]) continue;
    if (fits(u, j, r)) best = r;
  }
  return best;
}

static kf_status place_whole(builder *u, int64_t j) {
  kfi_assignment *st = u->st;
  int32_t home = st->item[j].home, r = home;
  if (!fits(u, j, r)) r = best_fit(u, j, home);
  if (r < 0) {
    settle(u);
    int32_t least = kfi_tree_best(&u->rank);
    if (fits(u, j, least)) r = best_fit(u, j, least);
    if (r < 0 && st->item[j].work > CUT_FROM * u->target_s && st->world->n_ranks > 1) {
      return place_misfit(u, j, least) ? KF_OK : place_cut(u, j);
    }
    if (r < 0 && st->world->cap) return kfi_place_by_memory(st, j);
    if (r < 0) r = least;
  }
  kfi_put_whole(st, j, r);
  return KF_OK;
}

/* ---------------------------------------------------------------------- all */

kf_status kfi_construct_auto(kfi_assignment *st, kfi_builder *b, double target_s,
                             double long_share) {
  const kfi_world *w = st->world;
  builder u = {
    .st = st,
    .b = b,
    .zone = {b->zone_s, b->zone_win, w->n_zones, kfi_tree_size(w->n_zones), 1},
    .rank = {st->load, b->bag_win, w->n_ranks, kfi_tree_size(w->n_ranks), 1},
  };
  kfi_assignment_reset(st);
  st->target_s = target_s;
  memset(b->zone_s, 0, (size_t)w->n_zones * sizeof *b->zone_s);
  memset(b->zone_is_dirty, 0, (size_t)w->n_zones * sizeof *b->zone_is_dirty);
  kfi_tree_build(&u.zone);
  kfi_tree_build(&u.rank);
  for (int64_t j = 0; j < st->n_items; j++) {
    const kfi_item *it = &st->item[j];
    kf_status status;
    if (it->len == 0) continue; /* at home already */
    bool whole =
      it->work <= target_s * w->max_speed && it->len <= w->max_chunk && it->len <= w->max_cap;
    aim(&u, whole ? target_s : target_s * long_share);
    if (whole) {
      status = place_whole(&u, j);
    } else if (w->n_ranks > 1) {
      status = place_cut(&u, j);
    } else {
      status = kfi_place_by_memory(st, j);
    }
    if (status) return status;
  }
  kfi_clean(st);
  return KF_OK;
}
