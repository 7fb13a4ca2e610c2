/* SPDX-License-Identifier: Apache-2.0 */
/*
** Fixed bags: the first assignments, and how a bag deals a sequence to its ranks.
**
** A sequence goes to one bag of its home's group and is dealt in equal shares, or by speed where
** speeds differ. What no bag can take under max_chunk_size or the memory cap goes to adjacent
** bags together. Three greedies start the search: home while it is below the target, the load
** that results, and the published greedy (least assigned work per capacity), which is there so
** that we are never worse than it.
*/
#include <math.h>
#include <string.h>

#include "knapsack.h"
#include "tree.h"

/* ------------------------------------------------------------------- shares */

/* Heads by largest remainder of speed, tokens so that time comes out even. */
static void deal_by_speed(const kfi_world *w, const kfi_item *it, int32_t first, int32_t g,
                          kfi_share *set) {
  double speed = 0, l = (double)it->len, head_s = kfi_head_s(w, it);
  double token_s = it->factor * w->linear_s, time = 0;
  int32_t heads = w->heads;
  int64_t tokens = it->len;
  for (int32_t i = 0; i < g; i++) speed += w->speed[first + i];
  for (int32_t i = 0; i < g; i++) {
    set[i] = (kfi_share){first + i, (int32_t)(w->heads * w->speed[first + i] / speed), 0};
    heads -= set[i].heads;
  }
  for (; heads > 0; heads--) { /* to the rank that lacks most */
    int32_t best = 0;
    double most = -1;
    for (int32_t i = 0; i < g; i++) {
      double lack = w->heads * w->speed[first + i] / speed - set[i].heads;
      if (lack > most) most = lack, best = i;
    }
    set[best].heads++;
  }
  time = (token_s * l + head_s * w->heads) / speed;
  for (int32_t i = 0; i < g; i++) {
    double t = token_s > 0 ? (time * w->speed[first + i] - head_s * set[i].heads) / token_s : l / g;
    int64_t most = w->max_chunk < tokens ? w->max_chunk : tokens;
    set[i].tokens = t <= 0 ? 0 : t < (double)most ? (int64_t)t : most;
    tokens -= set[i].tokens;
  }
  for (int32_t i = 0; tokens > 0; i = (i + 1) % g) { /* a handful that rounding left */
    int64_t more = (tokens + g - 1) / g;
    if (more > w->max_chunk - set[i].tokens) more = w->max_chunk - set[i].tokens;
    set[i].tokens += more;
    tokens -= more;
  }
}

#define LEVEL_MOST 64 /* ranks; a larger bag deals remainders in turn */

/* The rank of set[0 .. g-1] without a remainder yet that `load` says has least; ties by rank. */
static int32_t least_without(const kfi_world *w, const kfi_item *it, const kfi_share *set,
                             int32_t g, const double *load, bool of_heads) {
  int32_t heads = w->heads / g, best = -1;
  int64_t tokens = it->len / g;
  double least = INFINITY, head_s = kfi_head_s(w, it);
  for (int32_t i = 0; i < g; i++) {
    if (of_heads ? set[i].heads > heads : set[i].tokens > tokens) continue;
    double s = load ? load[set[i].rank] + head_s * (set[i].heads - heads) : 0;
    if (s < least) least = s, best = i;
  }
  return best;
}

/*
** Deal item `it` to ranks first .. first+g-1. Remainders of tokens and heads go to the ranks
** that `load` says have least (NULL: the first ones). load is brought up to date.
*/
void kfi_deal(const kfi_world *w, const kfi_item *it, int32_t first, int32_t g, double *load,
              kfi_share *set) {
  bool equal = true;
  for (int32_t i = 1; i < g; i++) equal &= w->speed[first + i] == w->speed[first];
  if (!equal) {
    deal_by_speed(w, it, first, g, set);
  } else {
    for (int32_t i = 0; i < g; i++) set[i] = (kfi_share){first + i, w->heads / g, it->len / g};
    for (int32_t k = 0; k < w->heads % g; k++) { /* heads first: they are dearer */
      int32_t i = g > LEVEL_MOST ? (it->seq + k) % g : least_without(w, it, set, g, load, true);
      set[i].heads++;
    }
    for (int32_t k = 0; k < it->len % g; k++) {
      int32_t i = g > LEVEL_MOST ? (it->seq + k) % g : least_without(w, it, set, g, load, false);
      set[i].tokens++;
    }
  }
  for (int32_t i = 0; load && i < g; i++) {
    if (set[i].tokens || set[i].heads) load[first + i] += kfi_share_s(w, it, &set[i]);
  }
}

/* Whether a bag may take the item at all, on an empty cluster. */
bool kfi_bag_takes(const kfi_world *w, const kfi_item *it, int32_t bag) {
  int32_t g = w->bag_first[bag + 1] - w->bag_first[bag];
  if ((it->len + g - 1) / g > w->max_chunk) return false;
  return !w->bag_cap || kfi_whole_mem(w, it, bag) <= w->bag_cap[bag];
}

/* -------------------------------------------------------------- constructions */

/*
** Bags of one size differ only in what they have: the least of a size is found by a tree over
** all bags, sorted by group and size. Where caps differ from bag to bag, every bag is asked.
*/
typedef struct builder {
  kfi_assignment *st;
  kfi_builder *b;
  kfi_tree tree; /* over places: group by group, each in the order of size_bag */
  kfi_greedy greedy;
} builder;

static bool has_room(const kfi_assignment *st, const kfi_item *it, int32_t bag) {
  if (!kfi_bag_takes(st->world, it, bag)) return false;
  return !st->world->bag_cap ||
         st->mem[bag] + kfi_whole_mem(st->world, it, bag) <= st->world->bag_cap[bag];
}

/* What the tree compares: the load, or for the published greedy the work assigned. */
static void set_key(builder *u, int32_t bag) {
  const kfi_world *w = u->st->world;
  int32_t first = bag / w->bags_per_group * w->bags_per_group;
  int32_t place = first + w->size_place[bag - first];
  u->b->bag_key[place] = u->greedy == KFI_GREEDY_PUBLISHED ? u->b->bag_work[bag] : u->st->load[bag];
  kfi_tree_update(&u->tree, place);
}

static void settle(builder *u) {
  kfi_assignment *st = u->st;
  for (int32_t i = 0; i < st->n_dirty; i++) set_key(u, st->dirty[i]);
  kfi_clean(st);
}

/* The least bag of size c in the group that starts at bag `first`. */
static int32_t least_of_size(const builder *u, int32_t first, int32_t c) {
  const kfi_world *w = u->st->world;
  int32_t place = kfi_tree_range(&u->tree, first + w->size_first[c], first + w->size_first[c + 1]);
  return first + w->size_bag[place - first];
}

/* Whether any bag of the group takes the item; the largest takes most, but for caps. */
static bool any_takes(const kfi_world *w, const kfi_item *it, int32_t first) {
  if (!w->bag_cap) return kfi_bag_takes(w, it, first + w->size_bag[0]);
  for (int32_t b = first; b < first + w->bags_per_group; b++) {
    if (kfi_bag_takes(w, it, b)) return true;
  }
  return false;
}

/* The bag on which the item ends soonest; -1: none has room. */
static int32_t soonest(const builder *u, int64_t j, int32_t first) {
  const kfi_assignment *st = u->st;
  const kfi_world *w = st->world;
  int32_t n = w->bag_cap ? w->bags_per_group : w->n_sizes + 1, best = -1;
  double least = INFINITY;
  for (int32_t i = 0; i < n; i++) {
    int32_t b = w->bag_cap       ? first + i
                : i < w->n_sizes ? least_of_size(u, first, i)
                                 : w->bag_of[st->item[j].home];
    if (!has_room(st, &st->item[j], b)) continue;
    double home_s, s = st->load[b] + kfi_price_whole(st, j, b, &home_s);
    if (s < least) least = s, best = b;
  }
  return best;
}

/* The home bag while that stays below the target, else the soonest. */
static int32_t at_home(const builder *u, int64_t j, int32_t first) {
  const kfi_assignment *st = u->st;
  int32_t b = st->world->bag_of[st->item[j].home];
  double home_s, s = st->load[b] + kfi_price_whole(st, j, b, &home_s);
  if (s <= st->target_s && has_room(st, &st->item[j], b)) return b;
  return soonest(u, j, first);
}

/*
** The published greedy: bags that can hold the item (capacity >= work, size <= length), else the
** largest bags; of those the least assigned work per capacity, ties by number.
*/
static int32_t published(const builder *u, int64_t j, int32_t first) {
  const kfi_assignment *st = u->st;
  const kfi_world *w = st->world;
  const kfi_item *it = &st->item[j];
  int32_t ranks = w->bag_first[first + w->bags_per_group] - w->bag_first[first];
  double mean = u->b->group_work[first / w->bags_per_group] / ranks;
  int32_t n = w->bag_cap ? w->bags_per_group : w->n_sizes;
  for (int pass = 0; pass < 2; pass++) {
    int32_t best = -1;
    double least = INFINITY;
    for (int32_t i = 0; i < n; i++) {
      int32_t b = w->bag_cap ? first + i : least_of_size(u, first, i);
      int32_t g = w->bag_first[b + 1] - w->bag_first[b];
      double share = mean > 0 ? u->b->bag_work[b] / (g * mean) : 0;
      bool candidate = pass ? g == w->size_ranks[0] : g * mean >= it->work && g <= it->len;
      if (!candidate || !has_room(st, it, b)) continue;
      if (share < least || (share == least && b < best)) least = share, best = b;
    }
    if (best >= 0) return best;
  }
  return soonest(u, j, first);
}

/* Adjacent bags together: the fewest ranks that do, of those the least loaded. */
static kf_status place_joined(kfi_assignment *st, int64_t j, int32_t first, int32_t end) {
  const kfi_world *w = st->world;
  const kfi_item *it = &st->item[j];
  int32_t best_first = -1, best_n = 0;
  double least = INFINITY;
  for (int32_t a = first; a < end; a++) {
    double load = 0;
    for (int32_t b = a; b < end; b++) {
      int32_t g = w->bag_first[b + 1] - w->bag_first[a];
      if (st->load[b] > load) load = st->load[b];
      if ((it->len + g - 1) / g > w->max_chunk) continue;
      bool fits = true;
      if (w->bag_cap) {
        kfi_deal(w, it, w->bag_first[a], g, NULL, st->set);
        for (int32_t i = 0; i < g; i++) {
          int32_t k = w->bag_of[st->set[i].rank];
          fits &= st->mem[k] + kfi_share_load(&st->set[i], it->len, w->heads) <= w->bag_cap[k];
        }
      }
      if (!fits) continue;
      if (best_n == 0 || g < best_n || (g == best_n && load < least)) {
        best_first = w->bag_first[a], best_n = g, least = load;
      }
      break;
    }
  }
  if (best_n == 0) {
    int64_t limit = w->max_chunk < w->max_cap ? w->max_chunk : w->max_cap;
    return kfi_fail(KF_EINFEASIBLE,
                    "sequence %d of %lld tokens fits nowhere: the %d ranks of its group may take "
                    "at most %lld tokens of it each%s",
                    it->seq, (long long)it->len, w->bag_first[end] - w->bag_first[first],
                    (long long)limit, w->cap ? ", beside what they hold" : "");
  }
  kfi_deal(w, it, best_first, best_n, NULL, st->set);
  best_n = kfi_drop_empty(st->set, best_n);
  if (!kfi_put_set(st, j, st->set, best_n)) return kfi_fail_memory(sizeof(kfi_slot), "a set");
  return KF_OK;
}

static kf_status place(builder *u, int64_t j, int32_t first, bool joined) {
  const kfi_world *w = u->st->world;
  int32_t b = -1;
  if (!joined && u->greedy == KFI_GREEDY_HOME) b = at_home(u, j, first);
  if (!joined && u->greedy == KFI_GREEDY_SOONEST) b = soonest(u, j, first);
  if (!joined && u->greedy == KFI_GREEDY_PUBLISHED) b = published(u, j, first);
  if (b < 0) return place_joined(u->st, j, first, first + w->bags_per_group);
  kfi_put_whole(u->st, j, b);
  u->b->bag_work[b] += u->st->item[j].work;
  return KF_OK;
}

kf_status kfi_construct_fixed(kfi_assignment *st, kfi_builder *b, kfi_greedy greedy,
                              double target_s) {
  const kfi_world *w = st->world;
  builder u = {
    .st = st,
    .b = b,
    .tree = {b->bag_key, b->bag_win, w->n_bags, kfi_tree_size(w->n_bags), 1},
    .greedy = greedy,
  };
  kfi_assignment_reset(st);
  st->target_s = target_s;
  memset(b->bag_work, 0, (size_t)w->n_bags * sizeof(double));
  memset(b->bag_key, 0, (size_t)w->n_bags * sizeof(double));
  memset(b->group_work, 0, (size_t)(w->n_bags / w->bags_per_group) * sizeof(double));
  kfi_tree_build(&u.tree);
  for (int32_t k = 0; k < w->n_bags; k++) set_key(&u, k);
  for (int64_t j = 0; j < st->n_items; j++) {
    b->group_work[w->bag_of[st->item[j].home] / w->bags_per_group] += st->item[j].work;
  }
  for (int pass = 0; pass < 2; pass++) { /* what needs several bags comes first */
    for (int64_t j = 0; j < st->n_items; j++) {
      int32_t home = w->bag_of[st->item[j].home];
      int32_t first = home / w->bags_per_group * w->bags_per_group;
      if (st->item[j].len == 0) continue;
      bool joined = !any_takes(w, &st->item[j], first);
      if (joined != (pass == 0)) continue;
      kf_status status = place(&u, j, first, joined);
      if (status) return status;
      settle(&u);
    }
  }
  return KF_OK;
}
