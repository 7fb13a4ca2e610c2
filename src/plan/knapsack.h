/* SPDX-License-Identifier: Apache-2.0 */
/*
** Inside the search: cutting long sequences, the lower bound, the assignment that moves change, the
** constructions and the refinement. Only files of the search include this.
*/
#ifndef KFI_KNAPSACK_H
#define KFI_KNAPSACK_H

#include "planning.h"

/* ------------------------------------------------------- order.c: largest work first */

/* Scratch of the sort, (n_seqs) each. */
typedef struct kfi_sorter {
  uint64_t *key, *spare;
  int32_t *home;
} kfi_sorter;

void kfi_order(const kfi_world *world, const kf_batch *batch, kfi_sorter *sorter, kfi_item *item);

/* ------------------------------------------------------ split.c: cut one sequence */

#define KFI_PATTERN_MAX 64

/* One sequence to be cut, shares of it counted from 0 to 1. */
typedef struct kfi_cut {
  double token_s, head_s, ulysses_s; /* a, b, c of split.c: seconds of all tokens, heads, bytes */
  double limit_s;                    /* T: no rank may take longer */
  double weight;                     /* seconds that 1 - S costs: 2c, or 1 where links are free */
  double latency_s;                  /* a peer */
  double x_max, y_max;               /* most tokens, heads of one rank (memory, max_chunk_size) */
  int32_t n_heads, n_ranks;
} kfi_cut;

/* Ranks in falling order of heads; ranks without heads come last. */
typedef struct kfi_pattern {
  int32_t n;
  int32_t heads[KFI_PATTERN_MAX];
  double x[KFI_PATTERN_MAX];
  double inside;     /* S */
  double cost_bound; /* no cut under the limit costs less (INFINITY: there is none) */
  bool exact;        /* cost_bound is reached */
} kfi_pattern;

/* The cut with the least Ulysses time. False: none was found under the limit. */
bool kfi_cut_best(const kfi_cut *cut, kfi_pattern *out);

/* -------------------------------------------------- bound.c: what no plan can beat */

/* scratch: 3 n_bags. */
double kfi_bound(const kfi_world *world, const kfi_item *item, int64_t n_items, double *scratch);

/* ------------------------------------------------- assignment.c: an assignment that changes */

/* One rank's share of a split sequence, in the list of its sequence and that of its rank. */
typedef struct kfi_slot {
  kfi_share share;
  double cost_s; /* compute, Ulysses and what arrives by route */
  int32_t item;
  int32_t in_set;               /* next slot of the sequence, rising ranks; -1: last */
  int32_t rank_next, rank_prev; /* other split sequences on this rank */
} kfi_slot;

/*
** Who computes what, and the predicted seconds of every bag. In auto every rank is a bag of
** one and sequences may be split over any ranks; with fixed bags a sequence is whole on a bag
** (equal shares), and only what no bag can hold is split, over adjacent bags.
**
** A bag's load is that of its slowest rank: what its sequences cost each of its ranks, plus
** the largest `extra` (what a rank pays for rows that leave it, and for shares of split
** sequences). Latency of sets is counted per chunk here and per distinct peer in the plan, so
** loads are slightly on the high side.
*/
typedef struct kfi_assignment {
  const kfi_world *world;
  const kfi_item *item; /* falling work: a bag's list is sorted by rising number */
  int64_t n_items;
  bool has_empty;     /* there are sequences of no tokens: they stay at home, as sets of one */
  double target_s;    /* loads are measured against it in the objective */
  int sharpness;      /* the objective's power is 2^sharpness */
  double bytes_per_s; /* where links are free: what a second at the target may cost; else 0 */
  double bytes_delta; /* of the trial */

  double *load, *extra;  /* (n_bags), (n_ranks) seconds */
  double *ulysses_s;     /* (n_bags) of a token of a whole sequence */
  int64_t *mem;          /* (n_bags) tokens that the cap counts on its fullest rank, or NULL */
  int32_t *first, *last; /* (n_bags) whole items on the bag; -1: none */
  int32_t *next, *prev;  /* (n_items) in that list */
  int32_t *where;        /* (n_items) bag; ~slot of a split sequence's first share */
  kfi_slot *slot;
  int32_t *rank_slot;        /* (n_ranks) first slot on the rank; -1: none */
  int32_t n_slots, n_used;   /* there are; have ever been taken since the reset */
  int32_t free_slot, n_free; /* of those, the ones given back, linked by in_set */

  /* A trial: what the move under evaluation would change. */
  double *delta; /* (n_bags) 0 but for the touched */
  int64_t *mem_delta;
  int32_t *touched; /* (4 n_bags + 8) */
  int32_t n_touched;
  int32_t *dirty; /* (n_bags) bags whose load changed since someone emptied the list */
  int32_t n_dirty;
  bool *is_dirty;         /* (n_bags) is in that list */
  double *worth;          /* (n_bags) what the load counts in the objective */
  kfi_share *set, *set_b; /* (n_ranks) scratch: the sets a move would make */
  double *set_cost;       /* (n_ranks) scratch of pricing */
  int64_t moves, budget;  /* evaluated, allowed */
  double enough_s;        /* no need to bring the largest load below this */
} kfi_assignment;

/* Lay the arrays out; all but the pointers is undefined until kfi_assignment_reset. */
void kfi_assignment_layout(kfi_assignment *st, kfi_layout *lay, int64_t n_items, int32_t n_slots);
void kfi_assignment_reset(kfi_assignment *st); /* only sequences of no tokens are placed, at home */
void kfi_assignment_copy(kfi_assignment *to, const kfi_assignment *from);

/*
** Seconds of every share (compute, Ulysses, what arrives by route), and of the home rank for
** the rows that leave. `set` has rising ranks. O(n).
*/
double kfi_price_set(const kfi_assignment *st, int64_t j, const kfi_share *set, int32_t n,
                     double *cost);
/* The same for a whole sequence: seconds of each of the bag's ranks, and of its home. */
double kfi_price_whole(const kfi_assignment *st, int64_t j, int32_t bag, double *home_s);

/* Change the assignment. An item is placed once; take it off before it goes elsewhere. A set needs
** a slot for each share; false: there are too few. */
void kfi_put_whole(kfi_assignment *st, int64_t j, int32_t bag);
bool kfi_put_set(kfi_assignment *st, int64_t j, const kfi_share *set, int32_t n);
void kfi_take_off(kfi_assignment *st, int64_t j);

/* Forget which loads changed. */
void kfi_clean(kfi_assignment *st);

/* The shares of a placed item; returns how many. Auto, or a set. */
int32_t kfi_get_set(const kfi_assignment *st, int64_t j, kfi_share *set);

/*
** Try a move: any number of off/on calls, then kfi_trial_end returns how much the objective
** would change (below 0 is better; INFINITY: a memory cap would be broken) and forgets it.
** The objective is the sum over bags of (load/target)^(2^sharpness): near the maximum, but it
** also pays for every second saved elsewhere. Where links are free, bytes are added to it, a
** second above the target being worth bytes_per_s of them.
*/
void kfi_trial_off(kfi_assignment *st, int64_t j);
void kfi_trial_whole(kfi_assignment *st, int64_t j, int32_t bag);
void kfi_trial_set(kfi_assignment *st, int64_t j, const kfi_share *set, int32_t n);
double kfi_trial_end(kfi_assignment *st);
void kfi_appraise(kfi_assignment *st, int32_t bag);    /* bring worth up to date */
double kfi_assignment_bytes(const kfi_assignment *st); /* both ends of every link; auto only */

/* What the cap counts for a whole sequence on one rank of a bag. */
int64_t kfi_whole_mem(const kfi_world *w, const kfi_item *it, int32_t bag);

/* The slow twin of the loads that are kept incrementally: all of them from nothing. For
** assertions. Uses kfi_builder's room. */
bool kfi_assignment_sound(const kfi_assignment *st, double *rank_s);

static inline bool kfi_is_split(const kfi_assignment *st, int64_t j) { return st->where[j] < 0; }

/* -------------------------------------------------- construct.c: a first assignment */

/* Scratch of the constructions. */
typedef struct kfi_builder {
  double *zone_s;      /* (n_zones) minus the room of its ranks: the emptiest is the least */
  bool *zone_is_dirty; /* (n_zones) zone_s is not up to date */
  int32_t *dirty_zone; /* (n_zones) those zones */
  int32_t *zone_win, *bag_win; /* trees */
  int32_t *rank;               /* (n_ranks) candidates, most room first */
  double *room;                /* (n_ranks) and their rooms */
  double *bag_work, *bag_key;  /* (n_bags) fixed bags: work assigned; the tree's keys, by place */
  double *group_work;          /* (n_groups) */
  double *bound_scratch;       /* (3 n_bags) */
  kfi_pattern cut;             /* the last one, */
  double cut_len, cut_factor;  /* and for what; 0: none */
} kfi_builder;

void kfi_builder_layout(kfi_builder *b, const kfi_world *w, kfi_layout *lay);

/* Auto: place every item so that ranks stay below `target_s` where they can, and long sequences
** below long_share of it (1, or less where memory wants them to leave room for others). */
kf_status kfi_construct_auto(kfi_assignment *st, kfi_builder *b, double target_s,
                             double long_share);

void kfi_sort_set(kfi_share *set, int32_t n);      /* by rising rank */
int32_t kfi_drop_empty(kfi_share *set, int32_t n); /* shares of nothing; how many are left */

/* ------------------------------------------------- cap.c: where memory decides (auto) */

/* Whether a set is complete and within max_chunk_size and the caps. */
bool kfi_set_fits(const kfi_assignment *st, int64_t j, const kfi_share *set, int32_t n);
/* Place one item, or all, wherever there is room. KF_EINFEASIBLE: there is none. */
kf_status kfi_place_by_memory(kfi_assignment *st, int64_t j);
kf_status kfi_construct_by_memory(kfi_assignment *st);
/* Every sequence in equal shares on `size` neighbours: tokens and work come out even together.
** O(items * ranks). */
kf_status kfi_construct_even(kfi_assignment *st, int32_t size);

/* ------------------------------------------------------------- fixed.c: fixed bags */

typedef enum kfi_greedy { KFI_GREEDY_HOME, KFI_GREEDY_SOONEST, KFI_GREEDY_PUBLISHED } kfi_greedy;

kf_status kfi_construct_fixed(kfi_assignment *st, kfi_builder *b, kfi_greedy greedy,
                              double target_s);
bool kfi_bag_takes(const kfi_world *w, const kfi_item *it, int32_t bag);
void kfi_deal(const kfi_world *w, const kfi_item *it, int32_t first, int32_t g, double *load,
              kfi_share *set);

/* --------------------------------------------------- exact.c: tiny instances, solved */

/* Fixed bags, few sequences: the best assignment, by branch and bound. False: too large. */
bool kfi_exact(kfi_assignment *st, kfi_builder *b, double *step_s);
double kfi_dealt_s(const kfi_assignment *st, const int32_t *bag, double *rank_load, kfi_share *set);

/* ---------------------------------------------------- refine.c: make the worst better */

typedef struct kfi_refiner {
  double *key; /* (n_bags) load; -1 while nothing helps the bag */
  int32_t *max_win, *min_win;
  kfi_share *set; /* (n_ranks) of the best move */
} kfi_refiner;

void kfi_refiner_layout(kfi_refiner *f, const kfi_world *w, kfi_layout *lay);
void kfi_refine(kfi_assignment *st, kfi_refiner *f, int sharpness, bool in_zone);
void kfi_concentrate(kfi_assignment *st, kfi_refiner *f, double limit_s);
/* One exchange between the fullest and the emptiest zone; false: nothing to gain. zone_s (n_zones)
** is filled by kfi_zone_means and kept up to date. */
void kfi_zone_means(const kfi_assignment *st, double *zone_s);
bool kfi_level_zones(kfi_assignment *st, double *zone_s);

/* ------------------------------------------------------- spread.c: even out memory */

/* Lower the largest token load while the step stays within 1% of fill_s, the plan's. */
void kfi_spread(kfi_assignment *st, double fill_s);

#endif
