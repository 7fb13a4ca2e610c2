/* SPDX-License-Identifier: Apache-2.0 */
/*
** Local search: take the most loaded bag, look at what could leave it, do the best of that,
** repeat. A bag that nothing helps rests until its load changes, or until all others rest too
** and something has moved since.
**
** What could leave: a whole sequence (the one that levels two bags best), one for another, with
** fixed bags also two for one; in auto tokens or a head of a split sequence to another rank of its
** set or to a neighbour, and tokens of a whole sequence to a neighbour, which splits it. A typical
** rank has three whole and one split sequence: some thirty moves of 100 ns each.
*/
#include <math.h>
#include <string.h>

#include "knapsack.h"
#include "tree.h"

#define N_NEAR 3         /* of a rank's neighbours, the least loaded are tried */
#define N_FIXED 5        /* with fixed bags, so many of the group */
#define SMALL_GROUP 64   /* bags; a larger group is not searched through */
#define GOOD_ENOUGH 0.02 /* an exchange need not come nearer than this share of what is wanted */
#define STEPS_A_MOVE 12  /* list steps that count as one move */
#define TWO_LIMIT 16     /* items of a bag from which pairs are formed */
#define LEAST_GAIN -1e-9 /* what is not better than this is no move */

void kfi_refiner_layout(kfi_refiner *f, const kfi_world *w, kfi_layout *lay) {
  f->key = KFI_TAKE(lay, double, w->n_bags);
  f->max_win = KFI_TAKE(lay, int32_t, 2 * kfi_tree_size(w->n_bags));
  f->min_win = KFI_TAKE(lay, int32_t, 2 * kfi_tree_size(w->n_bags));
  f->set = KFI_TAKE(lay, kfi_share, w->n_ranks);
}

/*
** The best move found so far. b < 0: item a alone moves, to bag q or (q < 0) to f->set. Else a
** (and c, if c >= 0, from a's bag) changes places with b.
*/
typedef struct move {
  double gain;
  int64_t a, b, c;
  int32_t q, n;
} move;

typedef struct refiner {
  kfi_assignment *st;
  kfi_refiner *f;
  kfi_tree max, min;
  move best;
  bool in_zone; /* nothing crosses from zone to zone */
} refiner;

/* ------------------------------------------------------------------ candidates */

static void try_whole(refiner *u, int64_t a, int32_t q) {
  kfi_assignment *st = u->st;
  if (!kfi_bag_takes(st->world, &st->item[a], q)) return;
  kfi_trial_off(st, a);
  kfi_trial_whole(st, a, q);
  double gain = kfi_trial_end(st);
  if (gain < u->best.gain) u->best = (move){gain, a, -1, -1, q, 0};
}

/* a, and c of the same bag unless it is -1, for b. */
static void try_swap(refiner *u, int64_t a, int64_t c, int64_t b) {
  kfi_assignment *st = u->st;
  int32_t ra = st->where[a], rb = st->where[b];
  if (!kfi_bag_takes(st->world, &st->item[a], rb) || !kfi_bag_takes(st->world, &st->item[b], ra))
    return;
  if (c >= 0 && !kfi_bag_takes(st->world, &st->item[c], rb)) return;
  kfi_trial_off(st, a);
  kfi_trial_off(st, b);
  if (c >= 0) kfi_trial_off(st, c);
  kfi_trial_whole(st, a, rb);
  kfi_trial_whole(st, b, ra);
  if (c >= 0) kfi_trial_whole(st, c, rb);
  double gain = kfi_trial_end(st);
  if (gain < u->best.gain) u->best = (move){gain, a, b, c, 0, 0};
}

/* Item a on the n shares in st->set. */
static void try_set(refiner *u, int64_t a, int32_t n) {
  kfi_assignment *st = u->st;
  for (int32_t i = 0; i < n; i++) {
    if (st->set[i].tokens > st->world->max_chunk) return;
  }
  kfi_trial_off(st, a);
  kfi_trial_set(st, a, st->set, n);
  double gain = kfi_trial_end(st);
  if (gain < u->best.gain) {
    u->best = (move){gain, a, -1, -1, -1, n};
    memcpy(u->f->set, st->set, (size_t)n * sizeof *st->set);
  }
}

/* Where in st->set rank q stands; it is added, with nothing, if it is not there. */
static int32_t member(kfi_assignment *st, int32_t q, int32_t *n) {
  int32_t i = 0;
  while (i < *n && st->set[i].rank < q) i++;
  if (i < *n && st->set[i].rank == q) return i;
  for (int32_t k = (*n)++; k > i; k--) st->set[k] = st->set[k - 1];
  st->set[i] = (kfi_share){q, 0, 0};
  return i;
}

/* Seconds that a token more costs share i. */
static double token_slope(const kfi_assignment *st, int64_t j, const kfi_share *s) {
  const kfi_world *w = st->world;
  const kfi_item *it = &st->item[j];
  return it->factor * w->linear_s * w->slow[s->rank] +
         (w->heads - 2 * s->heads) * w->ulysses_intra_s;
}

/* How a shift ends: both ranks level, or the receiver full (which saves bytes). */
typedef enum shift_to { TO_LEVEL, TO_FULL } shift_to;

/*
** Shift `heads` heads of item a from rank r to rank q, and tokens until they are as `end` says.
** Either may become empty, or be new in the set.
*/
static void try_shift(refiner *u, int64_t a, int32_t r, int32_t q, int32_t heads, shift_to end) {
  kfi_assignment *st = u->st;
  int32_t n = kfi_get_set(st, a, st->set);
  int32_t iq = member(st, q, &n), ir = member(st, r, &n);
  if (ir <= iq) iq = member(st, q, &n);
  kfi_share *from = &st->set[ir], *to = &st->set[iq];
  double load_r = st->load[r], load_q = st->load[q];
  if (from->heads < heads || to->heads + heads < 0) return;
  if (heads) {
    double head_s = kfi_head_s(st->world, &st->item[a]);
    double l = (double)st->item[a].len, u_s = st->world->ulysses_intra_s;
    load_r -= heads * (head_s * st->world->slow[r] + (l - 2 * (double)from->tokens) * u_s);
    load_q += heads * (head_s * st->world->slow[q] + (l - 2 * (double)to->tokens) * u_s);
    from->heads -= heads;
    to->heads += heads;
  }
  double slope = token_slope(st, a, to) + (end == TO_LEVEL ? token_slope(st, a, from) : 0);
  double room = end == TO_LEVEL ? load_r - load_q : st->target_s * 0.9995 - load_q;
  double t = slope > 0 ? room / slope : 0, least = -(double)to->tokens;
  int64_t shift = t >= (double)from->tokens ? from->tokens : t <= least ? -to->tokens : (int64_t)t;
  if (shift == 0 && heads == 0) return;
  from->tokens -= shift;
  to->tokens += shift;
  n = kfi_drop_empty(st->set, n);
  try_set(u, a, n);
}

/* Work that should go from r to q to make them level. */
static double level(const kfi_assignment *st, int32_t r, int32_t q) {
  const double *slow = st->world->bag_slow;
  return (st->load[r] - st->load[q]) / (slow[r] + slow[q]);
}

/* Of the whole items of r, those whose leaving for q would come nearest to levelling. */
static void try_leave(refiner *u, int32_t r, int32_t q) {
  kfi_assignment *st = u->st;
  double want = level(st, r, q);
  int32_t above = -1;
  for (int32_t a = st->first[r]; a >= 0; a = st->next[a]) {
    if (st->item[a].work >= want) {
      above = a;
      continue;
    }
    try_whole(u, a, q);
    break;
  }
  if (above >= 0 && st->item[above].work < 2 * want) try_whole(u, above, q);
}

/* Of the exchanges that were looked at, the one that comes nearest to what is wanted. */
typedef struct exchange {
  double want, miss; /* work that should leave, and how far from it */
  int32_t a, b;      /* who leaves (-1: none yet), and comes instead; -1: nobody does */
} exchange;

/* Look at the exchanges of items a, beside which work `more` leaves, and b, and of those behind
** them in their lists: two fingers, since both fall. Stops after `most` steps; returns how many. */
static int32_t walk_pairs(const kfi_assignment *st, int32_t a, int32_t b, double more, int32_t most,
                          exchange *e) {
  int32_t steps = 0;
  while (a >= 0 && b >= 0 && steps++ < most) {
    double d = more + st->item[a].work - st->item[b].work, miss = fabs(d - e->want);
    if (miss < e->miss) *e = (exchange){e->want, miss, a, b};
    if (d > e->want)
      a = st->next[a];
    else
      b = st->next[b];
  }
  return steps;
}

/* The pair of wholes on r and q whose exchange comes nearest to levelling. True: it levels them,
** there is no need to look further. */
static bool try_exchange(refiner *u, int32_t r, int32_t q) {
  kfi_assignment *st = u->st;
  double want = level(st, r, q);
  exchange e = {want, want, -1, -1};
  st->moves += walk_pairs(st, st->first[r], st->first[q], 0, INT32_MAX, &e) / STEPS_A_MOVE;
  if (e.a >= 0) try_swap(u, e.a, -1, e.b);
  return e.a >= 0 && u->best.b == e.b && e.miss <= want * GOOD_ENOUGH;
}

/*
** Two of `r` for one of `q`, or (sign -1) one of r for two of q, nearest to levelling. O(n^2):
** only for the first few of long lists.
*/
static void try_two_for_one(refiner *u, int32_t r, int32_t q, int sign) {
  kfi_assignment *st = u->st;
  double want = sign * level(st, r, q);
  int32_t two = sign > 0 ? r : q, one = sign > 0 ? q : r, n = 0, steps = 0, best_c = -1;
  exchange e = {want, fabs(want), -1, -1};
  for (int32_t c = st->first[two]; c >= 0 && n < TWO_LIMIT; c = st->next[c], n++) {
    double least = e.miss, more = st->item[c].work;
    steps += walk_pairs(st, st->next[c], st->first[one], more, 4 * TWO_LIMIT, &e);
    if (e.miss < least) best_c = c;
  }
  st->moves += steps / 64; /* short lists, walked again and again: quick */
  if (e.a >= 0) try_swap(u, e.a, best_c, e.b);
}

/* Add to `out`, which has n, the `most` least loaded of bags first .. end-1 that are lighter than
** r and not there yet. */
static int32_t add_least(const kfi_assignment *st, int32_t r, int32_t first, int32_t end,
                         int32_t most, int32_t *out, int32_t n) {
  int32_t at = n;
  for (int32_t q = first; q < end; q++) {
    bool known = q == r || st->load[q] >= st->load[r];
    for (int32_t i = 0; i < at && !known; i++) known = out[i] == q;
    if (known || (n - at == most && st->load[q] >= st->load[out[n - 1]])) continue;
    int32_t k = n - at < most ? n++ : n - 1;
    for (; k > at && st->load[out[k - 1]] > st->load[q]; k--) out[k] = out[k - 1];
    out[k] = q;
  }
  return n;
}

/*
** Whom r may give to: the least loaded of its zone, and of the others the least of all; with
** fixed bags, which have less to give, a few of the least of its group.
*/
static int32_t partners(const refiner *u, int32_t r, int32_t *out) {
  const kfi_assignment *st = u->st;
  const kfi_world *w = st->world;
  int32_t group = r / w->bags_per_group * w->bags_per_group, group_end = group + w->bags_per_group;
  int32_t zone = w->zone_of[w->bag_first[r]];
  int32_t first = w->bag_of[w->zone_first[zone]], end = w->bag_of[w->zone_first[zone + 1] - 1] + 1;
  if (first < group) first = group;
  if (end > group_end) end = group_end;
  int32_t n = add_least(st, r, first, end, N_NEAR, out, 0);
  if (u->in_zone) return n;
  if (!w->auto_bags && w->bags_per_group <= SMALL_GROUP) {
    return add_least(st, r, group, group_end, N_FIXED, out, n);
  }
  int32_t least = kfi_tree_best(&u->min);
  if (least < group || least >= group_end) return n;
  return add_least(st, r, least, least + 1, 1, out, n);
}

/* What rank r could give of the split sequences on it. */
static void try_shares(refiner *u, int32_t r, int32_t neighbour) {
  kfi_assignment *st = u->st;
  for (int32_t s = st->rank_slot[r]; s >= 0; s = st->slot[s].rank_next) {
    int64_t a = st->slot[s].item;
    if (st->item[a].len == 0) continue;
    for (int32_t k = ~st->where[a]; k >= 0; k = st->slot[k].in_set) {
      int32_t q = st->slot[k].share.rank;
      if (q == r) continue;
      try_shift(u, a, r, q, 0, TO_LEVEL);
      if (st->bytes_per_s > 0) try_shift(u, a, r, q, 0, TO_FULL);
      try_shift(u, a, r, q, 1, TO_LEVEL);
      try_shift(u, a, r, q, -1, TO_LEVEL);
    }
    if (neighbour >= 0) try_shift(u, a, r, neighbour, 0, TO_LEVEL);
  }
}

static bool improve(refiner *u, int32_t r) {
  kfi_assignment *st = u->st;
  const int32_t *zone_of = st->world->zone_of;
  int32_t q[N_NEAR + N_FIXED], n = partners(u, r, q);
  u->best = (move){.gain = LEAST_GAIN, .b = -1, .c = -1};
  for (int32_t i = 0; i < n; i++) {
    try_leave(u, r, q[i]);
    if (try_exchange(u, r, q[i])) break;
    if (!st->world->auto_bags) {
      try_two_for_one(u, r, q[i], 1);
      try_two_for_one(u, r, q[i], -1);
      continue;
    }
    bool near = zone_of[r] == zone_of[q[i]];
    if (near && st->first[r] >= 0) try_shift(u, st->first[r], r, q[i], 0, TO_LEVEL);
  }
  bool neighbour = n > 0 && zone_of[r] == zone_of[q[0]];
  if (st->world->auto_bags) try_shares(u, r, neighbour ? q[0] : -1);
  return u->best.gain < LEAST_GAIN;
}

static void apply(refiner *u) {
  kfi_assignment *st = u->st;
  move m = u->best;
  if (m.b >= 0) {
    int32_t ra = st->where[m.a], rb = st->where[m.b];
    kfi_take_off(st, m.a);
    kfi_take_off(st, m.b);
    if (m.c >= 0) kfi_take_off(st, m.c);
    kfi_put_whole(st, m.a, rb);
    kfi_put_whole(st, m.b, ra);
    if (m.c >= 0) kfi_put_whole(st, m.c, rb);
  } else {
    int32_t n = m.q >= 0 ? 0 : kfi_get_set(st, m.a, st->set);
    kfi_take_off(st, m.a);
    if (m.q >= 0)
      kfi_put_whole(st, m.a, m.q);
    else if (!kfi_put_set(st, m.a, u->f->set, m.n))
      kfi_put_set(st, m.a, st->set, n);
  }
  for (int32_t i = 0; i < st->n_dirty; i++) {
    int32_t b = st->dirty[i];
    u->f->key[b] = st->load[b];
    kfi_appraise(st, b);
    kfi_tree_update(&u->max, b);
    kfi_tree_update(&u->min, b);
  }
  kfi_clean(st);
}

void kfi_refine(kfi_assignment *st, kfi_refiner *f, int sharpness, bool in_zone) {
  const kfi_world *w = st->world;
  refiner u = {
    .st = st,
    .f = f,
    .in_zone = in_zone,
    .max = {f->key, f->max_win, w->n_bags, kfi_tree_size(w->n_bags), -1},
    .min = {st->load, f->min_win, w->n_bags, kfi_tree_size(w->n_bags), 1},
  };
  memcpy(f->key, st->load, (size_t)w->n_bags * sizeof(double));
  kfi_tree_build(&u.max);
  kfi_tree_build(&u.min);
  st->sharpness = sharpness;
  if (!(st->bytes_per_s > 0)) st->target_s = st->load[kfi_tree_best(&u.max)];
  for (int32_t b = 0; b < w->n_bags; b++) kfi_appraise(st, b);
  kfi_clean(st);
  bool moved = false;
  while (st->moves < st->budget) {
    int32_t r = kfi_tree_best(&u.max);
    if (f->key[r] >= 0 && st->load[r] <= st->enough_s) break;
    if (f->key[r] < 0) {
      if (!moved) break;
      memcpy(f->key, st->load, (size_t)w->n_bags * sizeof(double));
      kfi_tree_build(&u.max);
      moved = false;
      continue;
    }
    if (improve(&u, r)) {
      apply(&u);
      moved = true;
    } else {
      f->key[r] = -1;
      kfi_tree_update(&u.max, r);
    }
  }
}

/* ---------------------------------------------------------------------- bytes */

/*
** Where links are free and bytes count: use the room that is left under the limit to gather the
** tokens of split sequences on the rank of their set that has most heads.
*/
void kfi_concentrate(kfi_assignment *st, kfi_refiner *f, double limit_s) {
  for (int64_t a = 0; a < st->n_items; a++) {
    if (!kfi_is_split(st, a) || st->item[a].len == 0) continue;
    int32_t n = kfi_get_set(st, a, st->set), to = 0;
    memcpy(f->set, st->set, (size_t)n * sizeof *f->set);
    for (int32_t i = 1; i < n; i++) {
      if (st->set[i].heads > st->set[to].heads) to = i;
    }
    double slope = token_slope(st, a, &st->set[to]);
    double room = (limit_s - st->load[st->set[to].rank]) / slope;
    int64_t most = st->world->max_chunk - st->set[to].tokens;
    int64_t left = room < 1 ? 0 : room < (double)most ? (int64_t)room : most;
    for (int32_t i = 0; i < n && left > 0; i++) {
      if (i == to || st->set[i].heads == st->set[to].heads) continue;
      int64_t t = st->set[i].tokens < left ? st->set[i].tokens : left;
      st->set[i].tokens -= t;
      st->set[to].tokens += t;
      left -= t;
    }
    int32_t kept = kfi_drop_empty(st->set, n);
    kfi_take_off(st, a);
    if (!kfi_set_fits(st, a, st->set, kept) || !kfi_put_set(st, a, st->set, kept)) {
      kfi_put_set(st, a, f->set, n);
    }
  }
  kfi_clean(st);
}

/* ----------------------------------------------------------------------- zones */

static double zone_mean(const kfi_assignment *st, int32_t m) {
  int32_t first = st->world->zone_first[m], end = st->world->zone_first[m + 1];
  double sum = 0;
  for (int32_t r = first; r < end; r++) sum += st->load[r];
  return sum / (end - first);
}

static double zone_speed(const kfi_assignment *st, int32_t m) {
  double sum = 0;
  for (int32_t r = st->world->zone_first[m]; r < st->world->zone_first[m + 1]; r++) {
    sum += st->world->speed[r];
  }
  return sum;
}

void kfi_zone_means(const kfi_assignment *st, double *zone_s) {
  for (int32_t m = 0; m < st->world->n_zones; m++) zone_s[m] = zone_mean(st, m);
}

/* The exchange between ranks r and q that comes nearest to e->want. */
static int32_t nearest_exchange(const kfi_assignment *st, int32_t r, int32_t q, exchange *e) {
  int32_t steps = 0;
  for (int32_t k = st->first[r]; k >= 0; k = st->next[k], steps++) {
    double miss = fabs(st->item[k].work - e->want);
    if (miss < e->miss) *e = (exchange){e->want, miss, k, -1};
    if (st->item[k].work < e->want) break; /* falling: none nearer to come */
  }
  return steps + walk_pairs(st, st->first[r], st->first[q], 0, INT32_MAX, e);
}

/*
** What sits in one zone is levelled there, so a zone as a whole may stand above the others.
** Change one whole sequence between the fullest and the emptiest zone so that their sums come
** nearest; that their ranks then need levelling again is the caller's business.
*/
bool kfi_level_zones(kfi_assignment *st, double *zone_s) {
  const int32_t *first = st->world->zone_first;
  int32_t high = 0, low = 0, steps = 0;
  for (int32_t m = 1; m < st->world->n_zones; m++) {
    if (zone_s[m] > zone_s[high]) high = m;
    if (zone_s[m] < zone_s[low]) low = m;
  }
  if (high == low) return false;
  int32_t least = first[low];
  double want = (zone_s[high] - zone_s[low]) / (1 / zone_speed(st, high) + 1 / zone_speed(st, low));
  exchange e = {want, want * 0.8, -1, -1};
  for (int32_t q = first[low]; q < first[low + 1]; q++) {
    if (st->load[q] < st->load[least]) least = q;
  }
  for (int32_t r = first[high]; r < first[high + 1] && e.miss > want * GOOD_ENOUGH; r++) {
    for (int32_t q = first[low]; q < first[low + 1] && e.miss > want * GOOD_ENOUGH; q++) {
      steps += nearest_exchange(st, r, q, &e);
    }
  }
  st->moves += steps / STEPS_A_MOVE + 1;
  if (e.a < 0) return false;
  int32_t from = st->where[e.a], to = e.b >= 0 ? st->where[e.b] : least;
  kfi_trial_off(st, e.a);
  kfi_trial_whole(st, e.a, to);
  if (e.b >= 0) {
    kfi_trial_off(st, e.b);
    kfi_trial_whole(st, e.b, from);
  }
  if (isinf(kfi_trial_end(st))) return false; /* a memory cap is in the way */
  kfi_take_off(st, e.a);
  if (e.b >= 0) kfi_take_off(st, e.b);
  kfi_put_whole(st, e.a, to);
  if (e.b >= 0) kfi_put_whole(st, e.b, from);
  zone_s[high] = zone_mean(st, high);
  zone_s[low] = zone_mean(st, low);
  return true;
}
