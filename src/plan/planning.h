/* SPDX-License-Identifier: Apache-2.0 */
/*
** What the stages of the planner share, in the order in which a step passes through them:
**
**     batch --order--> items --bound--> target --knapsack--> solution --plan--> kf_plan
**
** Everything here is deterministic to the bit: ties go to the lower index, sums run in a
** fixed order, the compiler may not contract a*b+c.
*/
#ifndef KFI_PLANNING_H
#define KFI_PLANNING_H

#include <stdbool.h>

#include "../memory.h"
#include "../numbers.h"
#include "../status.h"

/* -------------------------------------------------------- world.c: what is fixed */

/* The options of a planner, resolved once into what the inner loops read. */
typedef struct kfi_world {
  int32_t n_ranks, heads, ranks_per_node;
  double linear_s, quadratic_s, constant_s;
  double ulysses_intra_s, ulysses_inter_s;   /* seconds a (token, head) pair, one way, one rank */
  double route_intra_s, route_inter_s;       /* seconds a token, at home and at the holder */
  double ulysses_latency_s, route_latency_s; /* seconds a peer */
  double ulysses_bytes, route_bytes;         /* a token */
  bool free_links;                           /* no bandwidth, no latency counts */
  bool equal_speeds;
  double total_speed, max_speed, min_speed;
  int64_t max_chunk; /* INT64_MAX: none */
  int64_t max_cap;   /* largest cap; INT64_MAX: none */
  int64_t budget;    /* 0: default */
  kf_affinity affinity;
  bool auto_bags;
  int32_t n_bags, bags_per_group, max_bag; /* auto: every rank is a bag of one, one group */
  const int32_t *bag_first;                /* (n_bags + 1) */
  const int32_t *bag_of;                   /* (n_ranks) */
  const int32_t *node_of;                  /* (n_ranks) */
  int32_t n_sizes;                         /* of a group's bags: those of one size, largest first */
  const int32_t *size_ranks;               /* (n_sizes) ranks */
  const int32_t *size_first;               /* (n_sizes + 1) places in size_bag */
  const int32_t *size_bag;   /* (bags_per_group) bags of a group by size, then number */
  const int32_t *size_place; /* (bags_per_group) where a bag stands in size_bag */
  int32_t n_zones; /* a zone is what the search treats as neighbours: a node, or part of */
  const int32_t *zone_first;          /* a large one, or some small ones; (n_zones + 1) ranks */
  const int32_t *zone_of;             /* (n_ranks) */
  const double *bag_speed, *bag_slow; /* (n_bags) sum of its ranks' speeds, and 1/that */
  const int64_t *bag_cap;             /* (n_bags) least of its ranks', or NULL */
  const double *speed, *slow;         /* (n_ranks) and 1/speed */
  const int64_t *cap;                 /* (n_ranks) or NULL */
} kfi_world;

/* Check the options and resolve them; the arrays go into `buffer`. */
kf_status kfi_world_create(const kf_planner_options *options, kfi_world *world, kfi_buffer *buffer);

/* A hash of all that decides plans. */
uint64_t kfi_world_hash(const kfi_world *world);

/* Seconds of one (token, head) pair from a rank of the bag to each other of its ranks, summed:
** for the rank with the cheapest links, and with the dearest. */
void kfi_bag_links(const kfi_world *world, int32_t bag, double *least, double *most);

static inline int32_t kfi_node(const kfi_world *w, int32_t rank) { return w->node_of[rank]; }

/* Seconds that one routed token costs its home, and its holder. */
static inline double kfi_route_s(const kfi_world *w, int32_t r, int32_t q) {
  if (r == q) return 0;
  return kfi_node(w, r) == kfi_node(w, q) ? w->route_intra_s : w->route_inter_s;
}

/* What a sequence of a batch computes over what the cost says. */
static inline double kfi_factor(const kf_batch *batch, int64_t seq) {
  return batch->factor ? batch->factor[seq] : 1;
}

/* Seconds that it takes whole, on a rank of speed 1. */
static inline double kfi_work(const kfi_world *w, const kf_batch *batch, int64_t seq) {
  double l = (double)batch->len[seq];
  return kfi_factor(batch, seq) * (w->linear_s * l + w->quadratic_s * l * l + w->constant_s);
}

/* ------------------------------------------------------ order.c: work, largest first */

/* A sequence as the search sees it. Items are sorted by falling work, rounded to single precision,
** ties by number. */
typedef struct kfi_item {
  double work;   /* seconds on a rank of speed 1 */
  double factor; /* of compute */
  int64_t len;
  int32_t home, seq;
} kfi_item;

/* Seconds of one head over the whole sequence, speed 1. */
static inline double kfi_head_s(const kfi_world *w, const kfi_item *it) {
  double l = (double)it->len;
  return it->factor * w->quadratic_s * l * l / w->heads;
}

/* What one rank has of one sequence. */
typedef struct kfi_share {
  int32_t rank, heads;
  int64_t tokens;
} kfi_share;

/* Seconds that a share computes. */
static inline double kfi_share_s(const kfi_world *w, const kfi_item *it, const kfi_share *s) {
  double token_s = it->factor * w->linear_s, constant_s = it->factor * w->constant_s;
  return (token_s * (double)s->tokens + kfi_head_s(w, it) * s->heads + constant_s) *
         w->slow[s->rank];
}

/* What the memory cap counts for a share. */
static inline int64_t kfi_share_load(const kfi_share *s, int64_t len, int32_t heads) {
  int64_t rows = (len * s->heads + heads - 1) / heads;
  return s->tokens > rows ? s->tokens : rows;
}

/* ----------------------------------------------------------- plan.c: the result */

/* Who computes what: whole[seq] is a rank, or ~k for the k-th split sequence, whose shares
** are share[split_off[k]] .. share[split_off[k+1]-1] with rising ranks. */
typedef struct kfi_solution {
  int32_t *whole;
  int64_t *split_off;
  kfi_share *share;
  int64_t n_splits;
} kfi_solution;

typedef struct kfi_plan_store {
  kf_plan plan;
  kfi_buffer tables, pairs, scratch;
} kfi_plan_store;

/* Everything a kf_plan holds but the lower bound and what follows from it. */
kf_status kfi_plan_build(kfi_plan_store *store, const kfi_world *world, const kf_batch *batch,
                         const kfi_solution *solution);
void kfi_plan_free(kfi_plan_store *store);
uint64_t kfi_plan_hash(const kf_chunk *chunk, int64_t n_chunks);

/* ---------------------------------------------------- parts.c: which come early */

/* Of the whole chunks, which are all late, some become early. `seq_off` as in kf_plan. */
kf_status kfi_parts_choose(const kfi_world *world, const kf_batch *batch, const int64_t *seq_off,
                           kf_chunk *chunk, kfi_buffer *scratch);

/* ------------------------------------------------------- search.c: the outline */

/* The search's memory, kept from step to step. */
typedef struct kfi_search {
  kfi_buffer arrays, shares;
} kfi_search;

/* Decide who computes what and build the plan, all but what follows from the lower bound. */
kf_status kfi_search_run(kfi_search *search, const kfi_world *world, const kf_batch *batch,
                         kfi_plan_store *store, double *lower_bound_s);
void kfi_search_free(kfi_search *search);

/* ------------------------------------------------------------------- planner.c */

/* Plan with other options from now on: as many ranks and the same kind of bags, so that nothing is
** allocated. A planner that refuses its options is as it was. */
kf_status kfi_planner_reset(kf_planner *planner, const kf_planner_options *options);

/* Is it a batch for this planner? The second checks sequences alone, and the arrays are right. */
kf_status kfi_planner_check(const kf_planner *planner, const kf_batch *batch);
kf_status kfi_batch_check(const kf_batch *batch);

#endif
