/* SPDX-License-Identifier: Apache-2.0 */
/*
** knapformer: an online load balancer for Diffusion Transformer training.
**
** This header is the whole public interface and its manual. It follows the way
** of the data:
**
**     lengths --cost--> work --planner--> plan --check, hash, draw-->
**
**   1. status    what went wrong, in one sentence
**   2. batch     whose sequences, how long (from a mix, from text, or your own arrays)
**   3. bags      which ranks compute together, where the user wants that fixed
**   4. cost      a model and a cluster become seconds and bytes
**   5. planner   one global knapsack a step
**   6. plan      who sends what to whom, who computes which heads, and the figures
**   7. picture   a plan as SVG
**
** The shortest program that plans a step (every call returns a kf_status, and what is created is
** freed by kf_planner_free and kf_batch_free):
**
**     kf_batch *batch;  kf_planner *planner;  const kf_plan *plan;
**     kf_planner_options options = {0};
**     kf_mix_create("joint", 0, 0, &batch);
**     kf_cost_preset("flux", NULL, batch->n_ranks, 0.4, &options.cost);
**     kf_planner_create(&options, &planner);
**     kf_planner_plan(planner, batch, &plan);
**
** Rules that hold for every function here:
**   - A kf_status of 0 is success. Outputs come last and are written only on success.
**   - Inputs are borrowed for the call, never kept.
**   - An option that is all zero bits means its default.
**   - Nothing prints, exits, reads the clock or the environment.
**   - Objects are not locked: use one from one thread at a time. Different
**     objects may be used from different threads.
*/
#ifndef KNAPFORMER_H
#define KNAPFORMER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KF_API __attribute__((visibility("default")))
#else
#define KF_API
#endif

#define KF_VERSION_MAJOR 0
#define KF_VERSION_MINOR 1
#define KF_VERSION_PATCH 0

/* "0.1.0": the version of the library that runs, which may be newer than the header. */
KF_API const char *kf_version(void);

/* ------------------------------------------------------------------ 1. status */

typedef enum kf_status {
  KF_OK = 0,
  KF_EINVAL = 1,      /* an argument or a text is wrong; kf_last_error() names it */
  KF_ENOMEM = 2,      /* memory ran out; the object stays usable, but its last plan is gone */
  KF_EINFEASIBLE = 3, /* no plan fits the memory caps, the chunk limit or the bags */
  KF_EPLAN = 4        /* kf_plan_check found a plan that is not one */
} kf_status;

/* A few words for a status: "invalid argument". Never NULL. */
KF_API const char *kf_status_string(kf_status status);

/*
** The sentence that belongs to the last failure on this thread, with the names and the
** numbers in it: what was given, where it stands, what was expected. "" before any
** failure. Valid until the next call into the library on this thread.
*/
KF_API const char *kf_last_error(void);

/* ------------------------------------------------------------------- 2. batch */

#define KF_MAX_RANKS (1 << 20)
#define KF_MAX_HEADS 1024
#define KF_MAX_LEN ((int64_t)1 << 32) /* tokens of one sequence */
#define KF_MAX_SEQS ((int64_t)1 << 30)
#define KF_MAX_TOKENS ((int64_t)1 << 52) /* of a batch: times heads, they still fit 64 bits */

/*
** One step's sequences. They are numbered by home rank, then by sample, so that those
** of rank r are rank_off[r] .. rank_off[r+1]-1. A rank may have none, a length may be 0.
*/
typedef struct kf_batch {
  int32_t n_ranks;
  int64_t n_seqs;
  const int64_t *rank_off; /* (n_ranks + 1) */
  const int64_t *len;      /* (n_seqs) tokens */
  const double *factor;    /* (n_seqs) multiplies a sequence's compute, up to 1e6; NULL: all 1 */
} kf_batch;

/*
** A batch from a mix: a name (lowres, mixres, joint, lowres4k, clips) or data codes such
** as "g16b4i256f1s0,g8b1i2048f1s0": ranks, samples a rank, pixels a side (a multiple of 16, a
** token is 16 x 16), frames, and whether frames are a video: s0 keeps every frame, s1 makes
** int(frames/3.4) latent frames of them. `n_ranks` 0 takes the mix's own ranks; any other number
** cycles through them. `seed` draws the text lengths: sample i of rank r has 0 to 392 text tokens,
** splitmix64(seed<<40 ^ r<<20 ^ i) % 393.
*/
KF_API kf_status kf_mix_create(const char *mix, int32_t n_ranks, uint64_t seed, kf_batch **out);

/*
** A batch from text: one line per rank, lengths separated by spaces or tabs; an empty line
** is a rank with no sequences. `text` need not end in 0. `name` is used in messages only.
*/
KF_API kf_status kf_batch_parse(const char *name, const char *text, size_t n_bytes, kf_batch **out);

KF_API void kf_batch_free(kf_batch *batch);

/* -------------------------------------------------------------------- 3. bags */

/*
** Fixed bags: bag b is the contiguous ranks first[b] .. first[b+1]-1. Bags of one group
** balance among themselves; a sequence never leaves the group of its home rank. A bag deals a
** sequence in equal shares, or by speed where speeds differ. What no bag has room for under
** max_chunk_size or the caps goes to adjacent bags together. Bags that are too large, or too
** small for the longest sequence, can be slower than no balancing: the figures tell.
*/
typedef struct kf_bags {
  int32_t n_ranks;
  int32_t n_bags;
  int32_t n_groups;       /* how often the spec repeats over the ranks */
  int32_t bags_per_group; /* n_bags / n_groups */
  const int32_t *first;   /* (n_bags + 1) */
} kf_bags;

/*
** Parse "g1n8+g2n4" (8 bags of 1 rank, then 4 bags of 2), "[1,1,2]" (a list of sizes) or
** "4" (all ranks in bags of 4, one group). A spec of fewer ranks than `n_ranks` repeats, as
** independent groups, if it divides them. "auto" gives *out = NULL: no fixed bags.
*/
KF_API kf_status kf_bags_parse(const char *spec, int32_t n_ranks, kf_bags **out);
KF_API void kf_bags_free(kf_bags *bags);

/* -------------------------------------------------------------------- 4. cost */

typedef struct kf_model {
  int32_t dim;    /* d, the width */
  int32_t layers; /* transformer blocks */
  int32_t heads;  /* H, attention heads */
} kf_model;

/*
** A model from its name (flux, wan1.3b, wan14b, DiT-S, DiT-B, DiT-L, DiT-XL; case does not
** matter) or from "d=3072,layers=57,heads=24".
*/
KF_API kf_status kf_model_parse(const char *text, kf_model *out);

typedef struct kf_cluster {
  int32_t n_ranks;
  int32_t ranks_per_node; /* ranks r and q share a node if r/ranks_per_node == q/ranks_per_node */
  double flops;           /* effective FLOP/s of a rank of speed 1 */
  double passes;          /* forward counts 1; training with recomputation: 4 */
  double elem_bytes;      /* s: bf16 is 2 */
  double intra_Bps;       /* bytes/s of a rank to one in its node, each way; INFINITY: free */
  double inter_Bps;       /* bytes/s of a rank to one in another node */
  double latency_s;       /* seconds a message */
} kf_cluster;

/*
** A cluster from a name (h100x32, free) or from a text such as
** "nodes=4,ranks_per_node=8,tflops=300,passes=4,intra_GBps=100,inter_GBps=10,latency_us=10";
** (also elem_bytes=2); what the text leaves out is as in h100x32, and `inf` is a bandwidth. NULL
** or "" is h100x32 with as many ranks as wanted. `n_ranks` is the number of ranks wanted; a text
** that says another number is refused. 0 takes what the text says, or 32 where it says nothing.
** The last node may be partial.
*/
KF_API kf_status kf_cluster_parse(const char *text, int32_t n_ranks, kf_cluster *out);

/*
** All that the planner knows of seconds and bytes. For a sequence of l tokens (compute
** factor f) of which rank r holds t_r tokens and computes h_r of H heads:
**
**     compute_r = f * (linear_s * t_r + quadratic_s * l*l * h_r/H + constant_s) / speed_r
**     ulysses bytes from r to q   = ulysses_bytes * (t_r*h_q + t_q*h_r) / H
**     route bytes, home <-> holder = route_bytes per token that does not stay at home
**     comm_r = sum over other ranks q of bytes(r,q)/bandwidth(r,q)
**              + latency * 4 * (layers * ulysses peers + route peers)
**     step   = max over ranks of (compute_r + comm_r)
**
** constant_s is charged to every rank that holds tokens or heads of the sequence. Fill it by
** kf_cost_static, or set the three coefficients yourself from what you measured.
*/
typedef struct kf_cost {
  double linear_s;      /* A: seconds a token */
  double quadratic_s;   /* B: seconds a token squared, all heads */
  double constant_s;    /* C: seconds a sequence */
  double ulysses_bytes; /* 4 d s layers */
  double route_bytes;   /* 2 d s */
  int32_t layers;
  int32_t heads;
  kf_cluster cluster;
} kf_cost;

/* The `static` cost: FLOPs alone. A = 24 d^2 k, B = 4 d gamma k with k = layers * passes / flops,
** C = 0. gamma says how much dearer (or cheaper) a FLOP of attention is: 0.4 to 1.2 on GPUs. */
KF_API kf_status kf_cost_static(const kf_model *model, const kf_cluster *cluster, double gamma,
                                kf_cost *out);

/* kf_model_parse, kf_cluster_parse and kf_cost_static in one call. */
KF_API kf_status kf_cost_preset(const char *model, const char *cluster, int32_t n_ranks,
                                double gamma, kf_cost *out);

/* Predicted seconds of a whole sequence of `len` tokens on a rank of speed 1. */
KF_API double kf_cost_work(const kf_cost *cost, int64_t len);

/* ----------------------------------------------------------------- 5. planner */

typedef enum kf_affinity {
  KF_AFFINITY_FILL = 0,  /* the shortest step found; tokens stay at home where they can */
  KF_AFFINITY_SPREAD = 1 /* of the plans within 1% of that step, the least max_tokens */
} kf_affinity;

typedef struct kf_planner_options {
  kf_cost cost;              /* cost.cluster.n_ranks is the number of ranks */
  const kf_bags *bags;       /* NULL: auto, every sequence may have its own set of ranks */
  const double *speed;       /* (n_ranks) relative speeds, 1e-6 to 1e6; NULL: all 1 */
  const int64_t *mem_tokens; /* (n_ranks) most tokens a rank may load; NULL: no cap */
  int64_t max_chunk_size;    /* most tokens of one sequence on one rank; 0: no limit */
  kf_affinity affinity;
  int64_t budget; /* about how many moves the search may evaluate; 0: a fixed function of
                     ranks and sequences. The clock is never read: ranks would disagree. */
} kf_planner_options;

/* Planning state and memory that is reused from step to step. */
typedef struct kf_planner kf_planner;

KF_API kf_status kf_planner_create(const kf_planner_options *options, kf_planner **out);
KF_API void kf_planner_free(kf_planner *planner);

struct kf_plan;

/*
** Plan one step. The plan belongs to the planner and lives until its next call. The same
** options and batch give the same plan on every rank, compiler and optimisation level, bit
** for bit. Nothing is allocated once a batch of this size has been planned. In auto without
** caps and chunk limits, a plan is never slower than no balancing.
** KF_EINFEASIBLE names the sequence that fits nowhere, its length and the cap.
*/
KF_API kf_status kf_planner_plan(kf_planner *planner, const kf_batch *batch,
                                 const struct kf_plan **out);

/* The budget that stands for about `us` microseconds of search: a fixed constant times us, at
** least 1 where us is above 0, and 0, which means the default, where it is not. */
KF_API int64_t kf_planner_budget(double us);

/* -------------------------------------------------------------------- 6. plan */

#define KF_PLAN_VERSION 1

/*
** A contiguous piece of one sequence on one rank: rows offset .. offset+length-1 travel
** from source (the home rank) to destination, which also computes heads first_head ..
** first_head+heads-1 of the whole sequence. There is one chunk per sequence and rank that
** has part in it; length or heads may be 0, not both (but for a sequence of no tokens,
** which is one chunk of length 0 at home). Chunks are sorted by (seq, offset, destination).
*/
typedef struct kf_chunk {
  int64_t seq, source, destination, offset, length, first_head, heads;
} kf_chunk;

/*
** What one rank's attention computes: `heads` heads, from first_head, of all `rows` rows of a
** sequence. q, k and v of a rank lie one segment after the other, flat, as (rows, heads, head
** dim); `offset` counts the (row, head) pairs before this segment.
*/
typedef struct kf_segment {
  int64_t seq, rows, offset;
  int32_t first_head, heads;
} kf_segment;

/* What a rank exchanges with one peer. In units of rows (route) or (row, head) pairs (Ulysses). */
typedef struct kf_pair {
  int64_t peer, send, recv;
} kf_pair;

/* The figures of a plan. Seconds are predicted by the cost. 0/0 counts as 1, a gap as 0. */
typedef struct kf_figures {
  double ideal_s;              /* all compute / all speeds */
  double lower_bound_s;        /* no plan under these options can be shorter; >= ideal_s */
  double before_step_s;        /* every sequence whole at home */
  double before_max_over_mean; /* of compute: largest rank / ideal_s */
  double step_s;               /* the plan's */
  double max_over_mean;
  double compute_s, comm_s;   /* of the slowest rank */
  double gap;                 /* step_s / lower_bound_s - 1 */
  double speedup;             /* before_step_s / step_s */
  double a2a_fraction;        /* share of tokens that pass through Ulysses */
  double moved_fraction;      /* share of tokens held away from home */
  int64_t tokens, max_tokens; /* of the batch; largest rank load, max(t_r, ceil(l h_r/H)) summed */
  int64_t split_seqs;         /* sequences on more than one rank */
  int64_t moves;              /* moves the search evaluated */
} kf_figures;

/*
** A plan is flat and read-only; all offsets are 64 bits wide. "CSR by rank" means that rank r
** owns entries x_off[r] .. x_off[r+1]-1 of x, so that x has x_off[n_ranks] entries.
*/
typedef struct kf_plan {
  int32_t version; /* KF_PLAN_VERSION */
  int32_t n_ranks;
  int32_t heads;          /* H */
  int32_t ranks_per_node; /* of the cluster; ranks r and q share a node if r/this == q/this */
  int32_t auto_bags;      /* 1: auto; 0: fixed bags */
  int64_t n_seqs, n_chunks;
  uint64_t hash; /* FNV-1a 64 over the chunk rows as little-endian 64-bit integers */

  const kf_chunk *chunk;    /* (n_chunks) */
  const int64_t *seq_off;   /* (n_seqs + 1) chunks of a sequence */
  const int64_t *send_off;  /* (n_ranks + 1) chunks whose home is the rank */
  const int64_t *home_row;  /* (n_chunks) first row of the chunk in its home rank's packed rows */
  const int64_t *hold_off;  /* (n_ranks + 1) CSR by rank into hold */
  const int64_t *hold;      /* (n_chunks) chunk numbers by destination, rising */
  const int64_t *hold_row;  /* (n_chunks) by chunk: its first row in its holder's packed rows */
  const int64_t *home_rows; /* (n_ranks) rows at home */
  const int64_t *hold_rows; /* (n_ranks) rows held while computing */

  const int64_t *segment_off; /* (n_ranks + 1) CSR by rank */
  const kf_segment *segment;  /* chunks with heads, in the order of hold */

  const int64_t *route_off;   /* (n_ranks + 1) CSR by rank */
  const kf_pair *route;       /* rising peers; rows; a rank's own rows are not listed */
  const int64_t *ulysses_off; /* (n_ranks + 1) CSR by rank */
  const kf_pair *ulysses; /* rising peers; send = sum t_r*h_q before attention, recv = t_q*h_r */

  const double *compute_s;    /* (n_ranks) predicted */
  const double *comm_s;       /* (n_ranks) predicted */
  const double *before_s;     /* (n_ranks) compute with every sequence at home */
  const int64_t *load_tokens; /* (n_ranks) what the memory cap counts */
  kf_figures figures;
} kf_plan;

/*
** Prove that every token moves exactly once, every head is computed exactly once, and all tables
** agree with the chunks. Linear in the plan, but for the ranks of a split sequence, each of which
** is asked about each other. KF_EPLAN says what is wrong.
*/
KF_API kf_status kf_plan_check(const kf_plan *plan, const kf_batch *batch);

/* ----------------------------------------------------------------- 7. picture */

/*
** The plan as a self-contained SVG, a bar per rank before and after. *out is 0-terminated;
** free() it. `title` is escaped; NULL: none.
*/
KF_API kf_status kf_svg_plan(const kf_plan *plan, const char *title, char **out);

#ifdef __cplusplus
}
#endif
#endif
