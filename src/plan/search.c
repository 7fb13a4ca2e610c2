/* SPDX-License-Identifier: Apache-2.0 */
/*
** The search as an outline: order the sequences, bound the step, then build an assignment for
** a target, refine it, and start again from another target while the budget lasts. The best
** assignment becomes the solution.
*/
#include <assert.h>
#include <math.h>
#include <string.h>

#include "knapsack.h"

/* Everything one step's search works on, laid out in one block. */
typedef struct attempt {
  const kfi_world *world;
  const kf_batch *batch;
  kfi_sorter sorter;
  kfi_item *item;
  kfi_builder builder;
  kfi_refiner refiner;
  kfi_assignment now, best;
  int32_t n_slots;
  double bound_s;
  double best_s, best_bytes;
  bool even;           /* search_even may be used */
  int n_starts, share; /* so far; which share of a rank long sequences get next */
  int64_t start_moves; /* of the first start */
  kfi_solution out;
} attempt;

static void layout(attempt *u, kfi_layout *lay) {
  int64_t n = u->batch->n_seqs;
  u->sorter.key = KFI_TAKE(lay, uint64_t, n);
  u->sorter.spare = KFI_TAKE(lay, uint64_t, n);
  u->sorter.home = KFI_TAKE(lay, int32_t, n);
  u->item = KFI_TAKE(lay, kfi_item, n);
  u->out.whole = KFI_TAKE(lay, int32_t, n);
  kfi_builder_layout(&u->builder, u->world, lay);
  kfi_refiner_layout(&u->refiner, u->world, lay);
  kfi_assignment_layout(&u->now, lay, n, u->n_slots);
  kfi_assignment_layout(&u->best, lay, n, u->n_slots);
}

static bool has_empty(const kf_batch *batch) {
  for (int64_t i = 0; i < batch->n_seqs; i++) {
    if (batch->len[i] == 0) return true;
  }
  return false;
}

/* Whether search_even has the time and the slots it needs. */
static bool even_is_cheap(const kfi_world *w, const kf_batch *batch) {
  return w->auto_bags && batch->n_seqs * w->n_ranks <= 1 << 16;
}

/* Slots for split sequences: what must be split by size, and room for what is split by choice. */
static int32_t count_slots(const kfi_world *w, const kf_batch *batch) {
  int64_t most = w->max_chunk < w->max_cap ? w->max_chunk : w->max_cap, n = 8LL * w->n_ranks + 64;
  if (even_is_cheap(w, batch)) n += batch->n_seqs * w->zone_first[1];
  for (int64_t i = 0; i < batch->n_seqs; i++) {
    n += batch->len[i] == 0;
    if (batch->len[i] <= most) continue;
    int64_t k = (most ? batch->len[i] / most : w->n_ranks) + 2LL * w->max_bag + 8;
    n += 2 * (k < w->n_ranks ? k : w->n_ranks);
  }
  return n < INT32_MAX ? (int32_t)n : INT32_MAX;
}

static double max_load(const kfi_assignment *st) {
  double m = 0;
  for (int32_t b = 0; b < st->world->n_bags; b++) {
    if (st->load[b] > m) m = st->load[b];
  }
  return m;
}

/* The step of the assignment at hand. With fixed bags on free links exactly: with shares dealt. */
static double step_of(attempt *u) {
  if (u->world->auto_bags || !u->world->free_links) return max_load(&u->now);
  return kfi_dealt_s(&u->now, u->now.where, u->builder.room, u->now.set);
}

/* Remember the assignment if it is the best so far. */
static void keep(attempt *u) {
  double s = step_of(u);
  if (s >= u->best_s) return;
  u->best_s = s;
  kfi_assignment_copy(&u->best, &u->now);
}

/* Where ranks are bags: exchange between zones and level inside them, as long as that helps. */
static void exchange_zones(attempt *u, int sharpness) {
  kfi_assignment *st = &u->now;
  double before = max_load(st);
  for (int k = 0; k < 6 && st->moves < st->budget; k++) {
    kfi_zone_means(st, u->builder.zone_s);
    if (!kfi_level_zones(st, u->builder.zone_s)) return;
    kfi_refine(st, &u->refiner, sharpness, true);
    keep(u);
    if (max_load(st) >= before) return;
    before = max_load(st);
  }
}

/* ---------------------------------------------------------------------- auto */

/*
** Targets above the bound, in units of the slack that routing is expected to take. One
** construction is not robust, another target gives another assignment.
*/
static const double target[] = {1, 0.5, 1.5, 0.17, 2, 0.67, 1.25, 0.33, 2.5, 1.75, 0.83, 3.3, 5};
#define N_TARGETS ((int)(sizeof target / sizeof target[0]))
#define ZONES_FROM 1.005 /* a rank this far above the target means that its zone is */
#define SHARPNESS 8
#define PACKING_SLACK 0.0005
#define MOST_SLACK 0.02
#define TIGHT 1.06    /* of the bound: further away, equal shares are worth a try */
#define NEAR_HOME 0.9 /* a gain smaller than this makes a start from home worth while */

/* Whether to start again: not if the budget would end a new start half-way. */
static bool start(attempt *u) {
  if (u->n_starts == 1) u->start_moves = u->now.moves;
  return u->n_starts++ == 0 || u->now.moves + u->start_moves / 2 < u->now.budget;
}

/*
** By time. Long sequences have few tokens for their work: ranks full of them leave the memory of
** others to hold the rest, so under caps they are given less of each rank. Where even that does
** not fit, by memory.
*/
static kf_status construct(attempt *u, double target_s) {
  static const double share[] = {1, 0.75, 0.5, 0.35, 0.25};
  int n = u->world->cap ? (int)(sizeof share / sizeof share[0]) : 1;
  kf_status status = KF_EINFEASIBLE;
  for (int tries = 0; status == KF_EINFEASIBLE && tries < n; tries++) {
    status = kfi_construct_auto(&u->now, &u->builder, target_s, share[u->share++ % n]);
  }
  if (status == KF_EINFEASIBLE) status = kfi_construct_by_memory(&u->now);
  return status;
}

/*
** Level the assignment: first between zones if a rank is above `zones_from_s` (and split sequences
** can spread what that does to single ranks), then inside zones, then everywhere.
*/
static void level(attempt *u, double zones_from_s, int sharpness) {
  kfi_assignment *st = &u->now;
  double *zone_s = u->builder.zone_s;
  if (st->n_items && kfi_is_split(st, 0) && max_load(st) > zones_from_s) {
    kfi_zone_means(st, zone_s);
    for (int32_t k = 0; k < 2 * u->world->n_zones && kfi_level_zones(st, zone_s); k++) continue;
  }
  kfi_refine(st, &u->refiner, sharpness, true);
  kfi_refine(st, &u->refiner, sharpness, false);
}

/*
** Every sequence in equal shares on a zone, half a zone, or two ranks. Where the plan is far from
** the bound this may be better: under tight caps tokens and work must be even on every rank, and
** where latency is dear it pays that sets are alike. For batches of moderate size, because
** looking everywhere takes time.
*/
static void search_even(attempt *u) {
  kfi_assignment *st = &u->now;
  int32_t zone = u->world->zone_first[1];
  for (int32_t size = zone; size > 1; size /= 2) {
    if (kfi_construct_even(st, size)) continue;
    keep(u);
    kfi_refine(st, &u->refiner, SHARPNESS, false);
    keep(u);
  }
}

/* Everything whole at home, and what the refinement makes of that: never worse than nothing. */
static void search_home(attempt *u) {
  kfi_assignment *st = &u->now;
  kfi_assignment_reset(st);
  for (int64_t j = 0; j < st->n_items; j++) {
    const kfi_item *it = &st->item[j];
    if (it->len == 0) continue;
    if (it->len > u->world->max_chunk) return;
    if (u->world->cap && st->mem[it->home] + it->len > u->world->cap[it->home]) return;
    kfi_put_whole(st, j, it->home);
  }
  kfi_refine(st, &u->refiner, SHARPNESS, false);
  keep(u);
}

/*
** What routing will take of a step, as a share of it: what ranks and zones have above the mean
** must leave them, at the price of the links it then crosses. Twice that, because what leaves is
** not always what should; never below what packing needs. Also the step without any balancing.
*/
static double expected_slack(attempt *u, double *before_s) {
  const kfi_world *w = u->world;
  double *rank_s = u->builder.room, *zone_s = u->builder.zone_s;
  double work = 0, tokens = 0, across = 0, inside = 0, mean = 0;
  memset(rank_s, 0, (size_t)w->n_ranks * sizeof *rank_s);
  memset(zone_s, 0, (size_t)w->n_zones * sizeof *zone_s);
  for (int64_t j = 0; j < u->now.n_items; j++) {
    const kfi_item *it = &u->item[j];
    rank_s[it->home] += it->work;
    work += it->work;
    tokens += (double)it->len;
  }
  *before_s = 0;
  mean = work / w->total_speed;
  for (int32_t r = 0; r < w->n_ranks; r++) {
    double over = rank_s[r] - w->speed[r] * mean;
    if (rank_s[r] * w->slow[r] > *before_s) *before_s = rank_s[r] * w->slow[r];
    if (over > 0) inside += over;
    zone_s[w->zone_of[r]] += over;
  }
  for (int32_t m = 0; m < w->n_zones; m++) across += zone_s[m] > 0 ? zone_s[m] : 0;
  if (work <= 0) return PACKING_SLACK;
  double routed_s = tokens / work * (across * w->route_inter_s + inside * w->route_intra_s);
  double slack = 2 * 2 * routed_s / w->n_ranks / mean;
  return slack < PACKING_SLACK ? PACKING_SLACK : slack < MOST_SLACK ? slack : MOST_SLACK;
}

static kf_status search_auto(attempt *u) {
  kfi_assignment *st = &u->now;
  double before_s, slack = expected_slack(u, &before_s);
  for (int i = 0; i < N_TARGETS && u->best_s > st->enough_s && start(u); i++) {
    /* where the bound turns out to be far away, aim between it and what was reached */
    double reached = isinf(u->best_s) ? 0 : (u->best_s / u->bound_s - 1) / 2;
    double unit = reached > slack ? reached : slack;
    kf_status status = construct(u, u->bound_s * (1 + unit * target[i]));
    if (status == KF_EINFEASIBLE) break; /* no target will help, equal shares or home may */
    if (status) return status;
    keep(u);
    level(u, st->target_s * ZONES_FROM, SHARPNESS);
    keep(u);
    exchange_zones(u, SHARPNESS);
  }
  if (u->even && u->best_s > TIGHT * u->bound_s) search_even(u);
  if (u->best_s > NEAR_HOME * before_s) search_home(u);
  return isinf(u->best_s) ? KF_EINFEASIBLE : KF_OK;
}

/*
** All links free: any plan within 1.002 of the bound is as good as any other, so the one with
** the fewest bytes is taken. The objective is a wall at the target with a price on bytes.
*/
#define FREE_LIMIT 1.002
#define FREE_WALL 1.0018
#define FREE_SHARPNESS 10
#define FREE_PRICE 20 /* tokens through Ulysses cost this much less than the time they save */

static kf_status search_free(attempt *u) {
  static const double free_target[] = {1.001,  1.0018, 1.0003, 1.0014, 1.0007, 1.0016, 1.0,
                                       1.0005, 1.003,  1.0012, 1.0002, 1.0009, 1.0019, 1.0011};
  int n_targets = (int)(sizeof free_target / sizeof free_target[0]);
  const kfi_world *w = u->world;
  kfi_assignment *st = &u->now;
  double limit = u->bound_s * FREE_LIMIT, before_s;
  expected_slack(u, &before_s);
  st->enough_s = limit * (1 - 1e-5);
  st->bytes_per_s = FREE_PRICE * w->ulysses_bytes / (w->linear_s > 0 ? w->linear_s : 1);
  for (int i = 0; i < n_targets && start(u); i++) {
    kf_status status = construct(u, u->bound_s * free_target[i]);
    if (status == KF_EINFEASIBLE) break;
    if (status) return status;
    st->target_s = u->bound_s * FREE_WALL;
    level(u, 0, FREE_SHARPNESS);
    if (max_load(st) <= limit) kfi_concentrate(st, &u->refiner, st->enough_s);
    double s = max_load(st), bytes = kfi_assignment_bytes(st);
    bool within = s <= limit, had = u->best_s <= limit;
    if (within ? !had || bytes < u->best_bytes : !had && s < u->best_s) {
      u->best_s = s;
      u->best_bytes = bytes;
      kfi_assignment_copy(&u->best, st);
    }
  }
  st->bytes_per_s = 0;
  if (u->even && isinf(u->best_s)) search_even(u);
  if (u->best_s > limit && u->best_s > NEAR_HOME * before_s) search_home(u);
  return isinf(u->best_s) ? KF_EINFEASIBLE : KF_OK;
}

/* --------------------------------------------------------------- fixed bags */

#define FIXED_TARGET 1.001

static kf_status search_fixed(attempt *u) {
  const kfi_world *w = u->world;
  kfi_assignment *st = &u->now;
  int64_t budget = st->budget;
  for (kfi_greedy greedy = KFI_GREEDY_HOME; greedy <= KFI_GREEDY_PUBLISHED; greedy++) {
    kf_status status = kfi_construct_fixed(st, &u->builder, greedy, u->bound_s * FIXED_TARGET);
    if (status == KF_EINFEASIBLE) continue; /* another may leave room where this did not */
    if (status) return status;
    keep(u);
    st->budget = budget * (greedy + 1) / 3;                  /* a third for each start */
    if (w->max_bag == 1 && w->n_bags == w->bags_per_group) { /* as auto, but nothing is split */
      level(u, INFINITY, SHARPNESS);
      keep(u);
      exchange_zones(u, SHARPNESS);
      continue;
    }
    for (int sharpness = 5; sharpness <= 9; sharpness += 2) {
      kfi_refine(st, &u->refiner, sharpness, false);
      keep(u);
    }
  }
  if (isinf(u->best_s)) return KF_EINFEASIBLE;
  if (kfi_exact(st, &u->builder, &u->best_s)) kfi_assignment_copy(&u->best, st);
  return KF_OK;
}

/* ------------------------------------------------------------------ solution */

/* The shares of item j, dealt to its bag if it is whole. room has the seconds dealt so far. */
static int32_t shares_of(attempt *u, int64_t j, kfi_share *set) {
  const kfi_world *w = u->world;
  const kfi_assignment *st = &u->best;
  if (kfi_is_split(st, j)) {
    int32_t n = kfi_get_set(st, j, set);
    for (int32_t i = 0; i < n; i++) {
      u->builder.room[set[i].rank] += kfi_share_s(w, &st->item[j], &set[i]);
    }
    return n;
  }
  int32_t first = w->bag_first[st->where[j]], g = w->bag_first[st->where[j] + 1] - first;
  kfi_deal(w, &st->item[j], first, g, u->builder.room, set);
  return kfi_drop_empty(set, g);
}

static kf_status write_solution(attempt *u, kfi_search *search) {
  const kfi_world *w = u->world;
  const kfi_assignment *st = &u->best;
  int64_t n_splits = 0, n_shares = 0;
  for (int64_t j = 0; j < st->n_items; j++) {
    if (kfi_is_split(st, j)) {
      for (int32_t s = ~st->where[j]; s >= 0; s = st->slot[s].in_set) n_shares++;
      n_splits++;
    } else {
      int32_t g = w->bag_first[st->where[j] + 1] - w->bag_first[st->where[j]];
      if (g == 1) continue;
      n_shares += g;
      n_splits++;
    }
  }
  kfi_layout lay = {0};
  for (int pass = 0; pass < 2; pass++) {
    u->out.split_off = KFI_TAKE(&lay, int64_t, n_splits + 1);
    u->out.share = KFI_TAKE(&lay, kfi_share, n_shares + w->max_bag);
    if (!pass && !kfi_layout_reserve(&lay, &search->shares)) return KF_ENOMEM;
  }
  memset(u->builder.room, 0, (size_t)w->n_ranks * sizeof(double));
  n_splits = n_shares = 0;
  for (int64_t j = 0; j < st->n_items; j++) {
    int32_t seq = st->item[j].seq, b = st->where[j];
    if (b >= 0 && w->bag_first[b + 1] - w->bag_first[b] == 1) {
      u->out.whole[seq] = w->bag_first[b];
      continue;
    }
    u->out.whole[seq] = (int32_t)~n_splits;
    u->out.split_off[n_splits++] = n_shares;
    n_shares += shares_of(u, j, &u->out.share[n_shares]);
  }
  u->out.split_off[n_splits] = n_shares;
  u->out.n_splits = n_splits;
  return KF_OK;
}

/* ---------------------------------------------------------------------- all */

#define SPREAD_LIMIT 1.01
#define ENOUGH 0.001 /* with the default budget, so near to the bound is near enough */

/* Fixed bags have three starts and cannot shift tokens: they need more moves. */
static int64_t default_budget(const kfi_world *w, const kf_batch *batch) {
  int64_t moves = 100 + 10LL * w->n_ranks + batch->n_seqs / 4;
  return w->auto_bags ? moves : 1000 + 4 * moves;
}

/* The best assignment as a plan. */
static kf_status build(attempt *u, kfi_search *search, kfi_plan_store *store) {
  assert(kfi_assignment_sound(&u->best, u->builder.room));
  kf_status status = write_solution(u, search);
  return status ? status : kfi_plan_build(store, u->world, u->batch, &u->out);
}

/* Even out memory; back to the plan that there was if that went too far after all. */
static kf_status spread(attempt *u, kfi_search *search, kfi_plan_store *store) {
  kf_figures fill = store->plan.figures;
  kf_status status;
  kfi_assignment_copy(&u->now, &u->best);
  u->best.moves = 0;
  u->best.budget = u->now.budget;
  kfi_spread(&u->best, fill.step_s);
  u->now.moves += u->best.moves;
  if ((status = build(u, search, store))) return status;
  const kf_figures *f = &store->plan.figures;
  if (f->step_s <= SPREAD_LIMIT * fill.step_s && f->max_tokens <= fill.max_tokens) return KF_OK;
  kfi_assignment_copy(&u->best, &u->now);
  return build(u, search, store);
}

kf_status kfi_search_run(kfi_search *search, const kfi_world *world, const kf_batch *batch,
                         kfi_plan_store *store, double *lower_bound_s) {
  kf_status status;
  attempt u = {.world = world, .batch = batch, .best_s = INFINITY};
  kfi_layout lay = {0};
  u.now.world = u.best.world = world;
  u.n_slots = count_slots(world, batch);
  u.even = even_is_cheap(world, batch);
  layout(&u, &lay);
  if (!kfi_layout_reserve(&lay, &search->arrays)) return KF_ENOMEM;
  layout(&u, &lay);

  kfi_order(world, batch, &u.sorter, u.item);
  u.now.item = u.best.item = u.item;
  u.now.has_empty = has_empty(batch);
  u.bound_s = kfi_bound(world, u.item, batch->n_seqs, u.builder.bound_scratch);
  u.now.budget = world->budget ? world->budget : default_budget(world, batch);
  u.now.enough_s = u.bound_s * (1 + (world->budget || !world->auto_bags ? 1e-5 : ENOUGH));

  if (!world->auto_bags)
    status = search_fixed(&u);
  else if (world->free_links)
    status = search_free(&u);
  else
    status = search_auto(&u);
  if (status || (status = build(&u, search, store))) return status;
  if (world->affinity == KF_AFFINITY_SPREAD && (status = spread(&u, search, store))) return status;
  store->plan.figures.moves = u.now.moves;
  *lower_bound_s = u.bound_s;
  return KF_OK;
}

void kfi_search_free(kfi_search *search) {
  kfi_buffer_free(&search->arrays);
  kfi_buffer_free(&search->shares);
}
