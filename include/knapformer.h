/* SPDX-License-Identifier: Apache-2.0 */
/*
** knapformer: an online load balancer for Diffusion Transformer training.
**
** This header is the whole public interface and its manual. It follows the way
** of the data:
**
**     lengths --cost--> work --planner--> plan --check, hash, draw-->
**     tokens --route--> tokens' --(a layer: ulysses out, attention, ulysses back)--> reverse --> tokens
**     measured seconds --fit, scheduler--> better cost
**
** and before all that, where batches are made rather than given:
**
**     lengths of a data set --bucket, sampler--> each rank's batch of each step
**
** What everyone needs:
**   1. status    what went wrong, in one sentence
**   2. batch     whose sequences, how long (from a mix, from text, or your own arrays)
**   3. bags      which ranks compute together, where the user wants that fixed
**   4. cost      a model and a cluster become seconds and bytes
**   5. planner   one global knapsack a step
**   6. plan      who sends what to whom, who computes which heads, and the figures
**   7. picture   a plan as SVG
**   8. comm      ranks that talk: threads of one process, or MPI
**   9. step      ranks gather lengths, plan, and agree on the plan
**  10. route     tokens to where they are computed, results home
**  11. ulysses   q, k, v of split sequences to the owners of their heads, outputs back
** What some need:
**  12. attention packed, variable length, on the CPU
**  13. adaln     LayerNorm-Modulate over packed tokens, on the CPU
**  14. fit       measured (length, seconds) rows become a cost
**  15. config    one YAML file
**  16. scheduler plans every step, learns from measured times, remembers
**  17. metrics   figures of a step, log, trace, files
**  18. bucket    how many samples of a length make a batch, under a memory and a compute limit
**  19. sampler   an epoch's batches, the same on every rank without a word between them
**  20. report    a training run, or the same one without and with the balancer, as one HTML page
** What few need:
**  21. numbers   random ones, hashes and quantiles, as the library itself uses them
**  22. sim       what planned steps take on ranks that are not there
**  23. gather    section 9 for ranks that talk by other means
**
** The shortest program that plans a step (every call returns a kf_status, and what is created is
** freed by kf_planner_free and kf_batch_free):
**
**     kf_batch *batch;  kf_planner *planner;  const kf_plan *plan;
**     kf_planner_options options = {0};
**     kf_mix_create("joint", 0, 0, &batch);
**     kf_cost_preset("flux", NULL, batch->n_ranks, KF_DEFAULT_GAMMA, &options.cost);
**     kf_planner_create(&options, &planner);
**     kf_planner_plan(planner, batch, &plan);
**
** Rules that hold for every function here:
**   - A kf_status of 0 is success. Outputs come last and are written only on success.
**   - Inputs are borrowed for the call, never kept (but a kf_step keeps its kf_comm).
**   - An option that is all zero bits means its default.
**   - Nothing prints, exits or reads the environment. The clock is read only while waiting for
**     other ranks (section 8), never to decide a plan. Files are touched only by calls that
**     say so: kf_config_resolve, kf_scheduler_.._file, kf_scheduler_read_start, kf_outputs, kf_file_...
**   - Objects are not locked: use one from one thread at a time. Different
**     objects may be used from different threads, but all MPI comms from the one that
**     initialised MPI.
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
  KF_ENOMEM = 2,      /* memory ran out; a planner stays usable, but its last plan is gone */
  KF_EINFEASIBLE = 3, /* no plan fits the memory caps, the chunk limit or the bags */
  KF_EPLAN = 4,       /* kf_plan_check found a plan that is not one */
  KF_ENOTBUILT = 5,   /* the library was built without this part (MPI) */
  KF_ETIMEOUT = 6,    /* a rank was silent for longer than the comm's timeout */
  KF_ECOMM = 7,       /* another rank, or what connects the ranks, failed */
  KF_EMISMATCH = 8, /* ranks differ in what must be the same: version, configuration, plan, call */
  KF_EIO = 9,       /* a file could not be written */
  KF_EDEVICE = 10   /* a device, or its driver, refused or failed (knapformer_cuda.h) */
} kf_status;

/* A few words for a status: "invalid argument". Never NULL. */
KF_API const char *kf_status_string(kf_status status);

/*
** The sentence that belongs to the last failure on this thread, with the names and the
** numbers in it: what was given, where it stands, what was expected. "" before any
** failure. Valid until the next call into the library on this thread.
*/
KF_API const char *kf_last_error(void);

/* Record a sentence for kf_last_error() and return status: for code that adds to this library, as
** knapformer_cuda.h does. */
KF_API kf_status kf_fail(kf_status status, const char *sentence);

/* ------------------------------------------------------------------- 2. batch */

#define KF_MAX_RANKS (1 << 20)
#define KF_MAX_HEADS 1024
#define KF_MAX_DIM (1 << 20) /* width of a model, or columns of a kernel */
#define KF_MAX_LAYERS (1 << 16)
#define KF_MAX_LEN ((int64_t)1 << 32) /* tokens of one sequence */
#define KF_MAX_SEQS ((int64_t)1 << 30)
#define KF_MAX_TOKENS ((int64_t)1 << 52) /* of a batch: times heads, they still fit 64 bits */

/* What a sequence is, where that is known: the scheduler learns one correction for each class. */
typedef enum kf_kind {
  KF_KIND_UNKNOWN = 0, /* but for its frames: one is an image, more are a video */
  KF_KIND_IMAGE = 1,
  KF_KIND_KEYFRAMES = 2,
  KF_KIND_VIDEO = 3
} kf_kind;

typedef struct kf_profile {
  int32_t kind;       /* kf_kind */
  int32_t resolution; /* pixels a side, the root of width * height; 0: unknown */
  int32_t frames;     /* 0: unknown */
} kf_profile;

/*
** One step's sequences. They are numbered by home rank, then by sample, so that those
** of rank r are rank_off[r] .. rank_off[r+1]-1. A rank may have none, a length may be 0.
*/
typedef struct kf_batch {
  int32_t n_ranks;
  int64_t n_seqs;
  const int64_t *rank_off;   /* (n_ranks + 1) */
  const int64_t *len;        /* (n_seqs) tokens */
  const double *factor;      /* (n_seqs) multiplies a sequence's compute, up to 1e6; NULL: all 1 */
  const kf_profile *profile; /* (n_seqs) read by the scheduler only; NULL: all unknown */
} kf_batch;

/*
** A batch from a mix: a name (lowres, mixres, joint, lowres4k, clips, wan) or data codes such as
** "g16b4i256f1s0,g8b1i2048f1s0": ranks, samples a rank, pixels a side (a multiple of 16, a token is
** 16 x 16), frames, and whether frames are a video: s0 keeps every frame, s1 makes int(frames/3.4)
** latent frames of them. `n_ranks` 0 takes the mix's own ranks; any other number cycles through
** them. `seed` draws the text lengths: sample i of rank r has 0 to 392 text tokens,
** splitmix64(seed<<40 ^ r<<20 ^ i) % 393. The batch has profiles. `wan` is a data set rather than a
** step, for section 19: 16 ranks of 400 images and videos without text, which doc/batches.md
** describes.
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
** max_chunk_size or the caps goes to adjacent bags together (kf_plan counts these). Bags that are
** too large, or too small for the longest sequence, can be slower than no balancing: the figures
** tell.
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
** independent groups, if it divides them; `n_ranks` 0 takes as many as the spec has. "auto" gives
** *out = NULL: no fixed bags.
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

/* Where nobody says. */
#define KF_DEFAULT_MODEL "flux"
#define KF_DEFAULT_GAMMA 0.4

/* The `static` cost: FLOPs alone. A = 24 d^2 k, B = 4 d gamma k with k = layers * passes / flops,
** C = 0. gamma says how much dearer (or cheaper) a FLOP of attention is: 0.4 to 1.2 on GPUs. */
KF_API kf_status kf_cost_static(const kf_model *model, const kf_cluster *cluster, double gamma,
                                kf_cost *out);

/* kf_model_parse, kf_cluster_parse and kf_cost_static in one call; model NULL or "" is
** KF_DEFAULT_MODEL. */
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

/* A hash of all options that decide a plan: ranks with the same one plan alike. */
KF_API uint64_t kf_planner_hash(const kf_planner *planner);

/* The budget that stands for about `us` microseconds of search: a fixed constant times us, at
** least 1 where us is above 0, and 0, which means the default, where it is not. */
KF_API int64_t kf_planner_budget(double us);

/* -------------------------------------------------------------------- 6. plan */

#define KF_PLAN_VERSION 2

/*
** When a rank computes a chunk, in every layer of the forward pass: rows of split sequences first,
** then whole sequences beside the exchange before attention (early) and beside the one after it
** (late). Backward is mirrored. A sequence with one chunk, as one of no tokens is, is whole.
*/
typedef enum kf_part {
  KF_PART_SPLIT = 0,
  KF_PART_EARLY = 1,
  KF_PART_LATE = 2,
  KF_N_PARTS = 3
} kf_part;

/*
** A contiguous piece of one sequence on one rank: rows offset .. offset+length-1 travel
** from source (the home rank) to destination, which also computes heads first_head ..
** first_head+heads-1 of the whole sequence. There is one chunk per sequence and rank that
** has part in it; length or heads may be 0, not both (but for a sequence of no tokens,
** which is one chunk of length 0 at home). Chunks are sorted by (seq, offset, destination).
*/
typedef struct kf_chunk {
  int64_t seq, source, destination, offset, length, first_head, heads;
  int64_t part; /* kf_part */
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
  int64_t joined_seqs; /* fixed bags: sequences that took adjacent bags together */
  uint64_t hash;       /* FNV-1a 64 over the chunk rows except for the part, as little-endian 64-bit
                          integers */

  const kf_chunk *chunk;    /* (n_chunks) */
  const int64_t *seq_off;   /* (n_seqs + 1) chunks of a sequence */
  const int64_t *send_off;  /* (n_ranks + 1) chunks whose home is the rank */
  const int64_t *home_row;  /* (n_chunks) first row of the chunk in its home rank's packed rows */
  const int64_t *hold_off;  /* (n_ranks + 1) CSR by rank into hold */
  const int64_t *part_off;  /* (3 n_ranks + 1) and by part: part p of rank r is from 3 r + p on */
  const int64_t *hold;      /* (n_chunks) chunk numbers by destination, by part, rising: the order
                               of computing */
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

/*
** What one rank sends and receives under a plan, as data for a transport of any kind. Forward moves
** units from side 0 to side 1; reverse is the same table with the sides swapped. A unit is a row,
** or in the Ulysses kinds a (row, head) pair.
*/
typedef enum kf_exchange_kind {
  KF_EXCHANGE_ROUTE = 0,     /* rows at home; rows as held */
  KF_EXCHANGE_SEQUENCES = 1, /* a row for each sequence at home; a row for each chunk of `held`. A
                                   split sequence's row goes to each holder: in reverse copies add up */
  KF_EXCHANGE_ULYSSES = 2,   /* rows as held, all heads of each; segments, see kf_segment */
  KF_EXCHANGE_ULYSSES_SPLIT = 3 /* the same as if whole sequences were not there */
} kf_exchange_kind;

/* n pieces of `width` neighbouring units, each `stride` after the one before. */
typedef struct kf_run {
  int64_t first, n, width, stride;
} kf_run;

/* Flat and read-only; it does not need its plan any more. Its size is linear in what the rank
** itself has to do, however many ranks there are. */
typedef struct kf_exchange {
  kf_exchange_kind kind;
  int32_t n_ranks, rank;
  int32_t heads; /* units in a row of side 0: the heads of the Ulysses kinds, else 1 */
  int32_t busy;  /* 1: some rank exchanges something, so all take part; the same on all ranks */
  uint64_t hash; /* of the plan (which leaves its parts out), kind and heads, to be compared */
  int64_t n_units[2];

  int64_t n_peers;
  const kf_pair *peer;       /* (n_peers) rising, without this rank; units sent and received */
  const int64_t *run_off[2]; /* (n_peers + 2) CSR by peer; the last list is what stays */
  const kf_run *run[2]; /* of side 0, to be sent, and of side 1, received. The k-th run to a peer is
                                its k-th from here, of the same n and width; so is what stays */

  int64_t part_off[KF_N_PARTS + 1]; /* of `held`, by part */
  /* Chunks whose rows lie on the holder's side (1 of route and sequences, else 0), in order. */
  const kf_chunk *held;
  int64_t n_segments; /* of side 1 of the Ulysses kinds; those of no rows or heads are left out */
  const kf_segment *segment;
} kf_exchange;

/* `heads`: of the model, where that is another number than the plan was made with (each owner's
** share is then rounded to whole heads); 0: the plan's. Read by the Ulysses kinds only. */
KF_API kf_status kf_exchange_create(const kf_plan *plan, int32_t rank, kf_exchange_kind kind,
                                    int32_t heads, kf_exchange **out);
KF_API void kf_exchange_free(kf_exchange *exchange);

/* Make a table anew, for the next step, in the memory it has: nothing is allocated once that is
** large enough. Where it fails, the table is as it was. Where *exchange is NULL it is created. */
KF_API kf_status kf_exchange_renew(const kf_plan *plan, int32_t rank, kf_exchange_kind kind,
                                   int32_t heads, kf_exchange **exchange);

/* ----------------------------------------------------------------- 7. picture */

/*
** The plan as a self-contained SVG, a bar per rank before and after. *out is 0-terminated;
** free() it. `title` is escaped; NULL: none.
*/
KF_API kf_status kf_svg_plan(const kf_plan *plan, const char *title, char **out);

/* -------------------------------------------------------------------- 8. comm */

/*
** One rank's end of ranks that are connected. Unless it says otherwise, a function of sections 8 to
** 11 that takes a comm is collective: all ranks call the same functions in the same order, each
** from one thread at a time, also those with nothing to send.
**
** Collectives agree: no rank fails alone. A rank that fails, or is handed wrong arguments, tells
** the others, and every rank returns an error that names it and its reason: from the same call, or
** from the next where it had nothing to get from that rank. A rank that nobody hears from within
** the timeout gives KF_ETIMEOUT, naming it, on every other rank. After such an error the comm is
** broken: every later call returns the same sentence, and all that is left is to free it and to end
** the job (which is the program's business: print kf_last_error() and exit with a code that is not
** 0; mpirun and srun then end the others). What kf_step_gather finds wrong with lengths, and
** kf_step_plan with plans, is the same error on every rank and leaves the comm in order.
*/
typedef struct kf_comm kf_comm;

/*
** `n_ranks` ranks in one process, a thread each: for tests and laptops. out[r] is rank r's end;
** each is freed by itself. Data is copied once, from the sender's memory to the receiver's.
*/
KF_API kf_status kf_comm_local_create(int32_t n_ranks, kf_comm **out);

/*
** The ranks of an MPI communicator. `mpi_comm` is the address of an MPI_Comm, which is
** duplicated, or NULL for MPI_COMM_WORLD. Initialises MPI where the program has not, and then
** finalises it when the last comm is freed. Collective, and waits for all ranks, as MPI_Init does.
** KF_ENOTBUILT in a library without MPI. After KF_ETIMEOUT or KF_ECOMM, MPI may write into the
** buffers of the failed call until the process ends: leave them be.
*/
KF_API kf_status kf_comm_mpi_create(const void *mpi_comm, kf_comm **out);

/* Over MPI it waits until all ranks free theirs, as MPI_Finalize does, unless one has failed: a
** kf_comm_barrier before it has a deadline. Free what was made from a comm first. */
KF_API void kf_comm_free(kf_comm *comm);

/* Not collective; nor are the next two. */
KF_API int32_t kf_comm_rank(const kf_comm *comm);
KF_API int32_t kf_comm_size(const kf_comm *comm);

#define KF_DEFAULT_TIMEOUT_S 60

/* How long to wait without any progress, from 0.01 to 1e6 seconds: longer than any rank may let the
** others wait, as for a checkpoint. Give all ranks the same. */
KF_API kf_status kf_comm_set_timeout(kf_comm *comm, double seconds);

/* Give up, for a reason of the caller's own: every other rank's present or next call on this comm
** returns KF_ECOMM with "rank R failed: reason", which may be kf_last_error(). Returns KF_ECOMM, or
** what broke the comm before. */
KF_API kf_status kf_comm_fail(kf_comm *comm, const char *reason);

KF_API kf_status kf_comm_barrier(kf_comm *comm);

/* Every rank's record of `n_bytes` (the same on all), in the order of ranks: all (n_ranks,
** n_bytes). For small records: it takes latency, not bandwidth. */
KF_API kf_status kf_comm_gather(kf_comm *comm, const void *record, int64_t n_bytes, void *all);

/* All-to-all of bytes: send_bytes[q] of them go to rank q, and lie one rank after the other in
** `send`; so for `recv`. Both arrays (n_ranks); send_bytes[q] here is recv_bytes[here] on q. */
KF_API kf_status kf_comm_alltoallv(kf_comm *comm, const void *send, const int64_t *send_bytes,
                                   void *recv, const int64_t *recv_bytes);

/* What an element is. Each call says which it takes and refuses the others. */
typedef enum kf_dtype { KF_F32 = 0, KF_BF16 = 1, KF_F16 = 2, KF_F64 = 3, KF_I64 = 4 } kf_dtype;
typedef enum kf_reduction { KF_SUM = 0, KF_MAX = 1, KF_MIN = 2 } kf_reduction;

/* data (n) of every rank becomes the sum, maximum or minimum over all ranks, the same bits on all
** (which of several NaNs may differ). A NaN of any rank comes through. Takes f32, f64 and i64. */
KF_API kf_status kf_comm_reduce(kf_comm *comm, kf_reduction reduction, kf_dtype dtype, int64_t n,
                                void *data);

/* -------------------------------------------------------------------- 9. step */

/*
** The online step: each rank says what it has, all plan, all compare. Two small gathers. The
** object keeps the memory from step to step.
**
**     kf_step *step;
**     kf_planner *planner;  // as above
**     const kf_plan *plan;
**     kf_step_create(comm, 0, &step);
**     for (;;) {  // each step
**       kf_step_gather(step, &mine, &batch, NULL);
**       kf_step_plan(step, planner, &plan);
**     }
*/
typedef struct kf_step kf_step;

/* What one rank brings to a step. */
typedef struct kf_rank_batch {
  int64_t n_seqs;            /* may be 0, and differ from rank to rank */
  const int64_t *len;        /* (n_seqs) tokens */
  const double *factor;      /* (n_seqs) as in kf_batch; NULL: all 1 */
  const void *record;        /* (record_bytes) travels beside the lengths, unread; NULL: zeros */
  const kf_profile *profile; /* (n_seqs) as in kf_batch; NULL: all unknown */
} kf_rank_batch;

/* `record_bytes`: the size of each rank's record, the same on all ranks; 0: none. Collective: ranks
** compare their library's version and record size, and a difference is KF_EMISMATCH on all. */
KF_API kf_status kf_step_create(kf_comm *comm, int64_t record_bytes, kf_step **out);
KF_API void kf_step_free(kf_step *step);

/* Gather all ranks' lengths into a batch, and their records: *records (n_ranks, record_bytes), or
** NULL if not wanted. Both belong to the step and live until its next gather or settle. One rank's
** wrong length, factor or profile is every rank's KF_EINVAL. */
KF_API kf_status kf_step_gather(kf_step *step, const kf_rank_batch *mine, const kf_batch **batch,
                                const void **records);

/* Plan the gathered batch on every rank, prove the plan, and compare its hash and the planner's
** configuration across ranks. Any difference is KF_EMISMATCH on every rank and says which rank
** differs and in what; a rank that cannot plan is every rank's error. The plan belongs to the
** planner. */
KF_API kf_status kf_step_plan(kf_step *step, kf_planner *planner, const kf_plan **plan);

/* ------------------------------------------------------------------- 10. route */

/*
** Rows in the caller's memory. Bytes are moved and nothing is converted, so that a row of d
** elements of s bytes is a row of d*s bytes, whatever the elements are.
*/
typedef struct kf_tensor {
  void *data;
  int64_t n_rows;
  int64_t row_bytes;
  int64_t stride_bytes; /* from one row to the next; 0: row_bytes, contiguous */
} kf_tensor;

/*
** Move by an exchange table of this rank (section 6): `n_tensors` tensors, all in one exchange.
** from[i] and to[i] have as many units as the table's sides: rows, or in the Ulysses kinds rows of
** exchange->heads heads on side 0 and (row, head) pairs on side 1. Strides are each side's own
** (those of pairs are 0), and the two do not overlap. What stays on the rank is copied once. Other
** sizes are refused before anything moves. Nothing is allocated once an exchange of this size has
** been made. A table can be used any number of times: make it once a step.
*/
KF_API kf_status kf_exchange_forward(kf_comm *comm, const kf_exchange *exchange, int32_t n_tensors,
                                     const kf_tensor *from, const kf_tensor *to);

/* The way back, from side 1 to side 0: also the backward of forward. KF_EXCHANGE_SEQUENCES has
** none. */
KF_API kf_status kf_exchange_reverse(kf_comm *comm, const kf_exchange *exchange, int32_t n_tensors,
                                     const kf_tensor *from, const kf_tensor *to);

/*
** Route without a table to keep: it is made for the call. home[i] has plan->home_rows[rank] rows,
** one sequence after the other; held[i] gets plan->hold_rows[rank] rows, in the order of
** plan->hold: chunk c's begin at plan->hold_row[c]. Both have the same row_bytes, as on all ranks.
*/
KF_API kf_status kf_route_forward(kf_comm *comm, const kf_plan *plan, int32_t n_tensors,
                                  const kf_tensor *home, const kf_tensor *held);
KF_API kf_status kf_route_reverse(kf_comm *comm, const kf_plan *plan, int32_t n_tensors,
                                  const kf_tensor *held, const kf_tensor *home);

/* ----------------------------------------------------------------- 11. ulysses */

/* How many (row, head) pairs a rank's attention computes: sum over its segments of rows * heads. */
KF_API int64_t kf_ulysses_pairs(const kf_plan *plan, int32_t rank);

/*
** Before attention: rows as they are held, all heads of each (rows[i]: plan->hold_rows[rank] rows
** of plan->heads * head bytes), become whole sequences of the rank's own heads (pairs[i]:
** kf_ulysses_pairs() rows of head bytes, as kf_segment lays them out). `n_tensors` is 3 for q, k
** and v; the three may lie in one buffer, by their strides. One exchange for all.
*/
KF_API kf_status kf_ulysses_out(kf_comm *comm, const kf_plan *plan, int32_t n_tensors,
                                const kf_tensor *rows, const kf_tensor *pairs);

/* After attention: the other way. Each is also the backward of the other. */
KF_API kf_status kf_ulysses_back(kf_comm *comm, const kf_plan *plan, int32_t n_tensors,
                                 const kf_tensor *pairs, const kf_tensor *rows);

/* --------------------------------------------------------------- 12. attention */

/* Which instructions a kernel uses. */
typedef enum kf_isa {
  KF_ISA_BEST = 0,     /* what this machine can do */
  KF_ISA_PORTABLE = 1, /* plain C: slow and obvious, the specification of the others */
  KF_ISA_AVX2 = 2,
  KF_ISA_AVX512 = 3
} kf_isa;

#define KF_MAX_HEAD_DIM 256

/*
** Packed multi-head attention, o = softmax(scale * q k^T) v, each head of each segment by itself,
** no mask, fp32. q, k, v and o lie as kf_segment says: segment after segment, each (rows, heads,
** head_dim). With kf_plan: segment = plan->segment + plan->segment_off[rank].
**
** Memory is linear in rows: scores are made block by block. The result of a head depends on its
** rows alone, not on its neighbours, on the number of threads or on how the sequence is split, bit
** for bit. Tensors do not overlap.
*/
typedef struct kf_attention {
  int64_t n_segments;
  const kf_segment *segment; /* (n_segments) seq and first_head are not read */
  int32_t head_dim;          /* 1 to KF_MAX_HEAD_DIM */
  int32_t n_threads;         /* threads to use, the caller's among them; 0: 1 */
  float scale;               /* 0: 1/sqrt(head_dim) */
  kf_isa isa;
  /* Floats from one row of q, k, v, dq, dk, dv to the next, so that they may lie in one buffer: row
  ** r of a segment begins at row offset/heads + r, so all segments have as many heads. 0: heads *
  ** head_dim. */
  int64_t qkv_stride;

  const float *q, *k, *v;
  float *o;   /* written by forward, read by backward */
  float *lse; /* (pairs) log of the sum of exp of each row's scores; written by forward, read by
                 backward; NULL in forward: not wanted */
  const float *d_o;    /* backward only: gradients in the layout of o, q, k, v */
  float *dq, *dk, *dv; /* written, not added to */

  void *workspace; /* of kf_attention_workspace() bytes, aligned to 64 */
  int64_t workspace_bytes;
} kf_attention;

/* Bytes of workspace that both calls need for these segments, head_dim and n_threads. Not squares
** of lengths: about a megabyte a thread, and 8 bytes for some hundred rows. 64 where there is
** nothing to do, or where the calls would refuse the shape. */
KF_API int64_t kf_attention_workspace(const kf_attention *attention);

KF_API kf_status kf_attention_forward(const kf_attention *attention);
KF_API kf_status kf_attention_backward(const kf_attention *attention);

/* ------------------------------------------------------------------ 13. adaln */

/* When a kernel rounds to dtype. */
typedef enum kf_rounding {
  KF_ROUND_ONCE = 0, /* fp32 until a tensor is stored: the exact one */
  KF_ROUND_EACH = 1  /* after every operation, as an eager model in dtype does */
} kf_rounding;

/*
** LayerNorm-Modulate over packed tokens: with s the sequence of a token,
**
**     y = LN(x) * (1 + scale[s]) + shift[s]        LN(x) = (x - mean) / sqrt(variance + eps)
**
** and with the prologue, where `gate` is set, x is made first:
**
**     x = residual + gate[s] * u
**
** Backward gives dx, dscale, dshift, and with the prologue du and dgate; dx is then the gradient of
** residual too. It needs x, scale (and u, gate) again, and from forward only mean and rstd: 8 bytes
** a token.
**
** The order of every sum is fixed (doc/adaln.md): all results are the same to the bit with any
** number of threads, with every kf_isa, and on CUDA (kf_adaln_forward_cuda in knapformer_cuda.h).
** Tensors do not overlap, but x may be residual and dx may be dx_add. Arithmetic is always fp32;
** storing rounds to the nearest, ties to even, and a NaN stays a NaN.
*/
typedef struct kf_adaln {
  int64_t n_tokens, n_seqs;
  int64_t dim; /* columns of a token, 1 to KF_MAX_DIM */
  /* Which tokens belong to which sequence, one of these two. Sequences may be empty. */
  const int64_t *cu_seqlens; /* (n_seqs + 1) sequence s is tokens cu_seqlens[s] .. cu_seqlens[s+1];
                                from 0 to n_tokens */
  const int32_t *seq_index;  /* (n_tokens) each token's sequence; one that appears in several places
                                is one sequence. Memory is needed for each run of equal entries. */
  kf_dtype dtype;            /* of tokens: x, y, residual, u, and their gradients: f32, bf16, f16 */
  int32_t mod_fp32;          /* not 0: scale, shift, gate and their gradients are fp32, whatever
                                dtype is; only with KF_ROUND_ONCE */
  int64_t mod_stride; /* elements from one sequence's scale, shift, gate, dscale, .. to the next
                                one's, so that they may be slices of one (n_seqs, 6, dim); 0: dim */
  kf_rounding rounding;
  float eps;         /* 0: 1e-6 */
  int32_t n_threads; /* threads to use, the caller's among them; 0: 1 */
  kf_isa isa;

  const void *scale, *shift; /* (n_seqs, dim), rows mod_stride apart */
  void *x;                   /* (n_tokens, dim) read; written by forward if there is a gate */
  void *y;                   /* (n_tokens, dim) forward only */
  float *mean, *rstd; /* (n_tokens) written by forward, both or none NULL; read by backward */

  const void *gate;     /* (n_seqs, dim), rows mod_stride apart; NULL: no prologue */
  const void *residual; /* (n_tokens, dim) forward with gate only */
  const void *u;        /* (n_tokens, dim) with gate only */

  const void *dy;        /* (n_tokens, dim) backward only, as what follows */
  const void *dx_add;    /* (n_tokens, dim) gradient that reaches x some other way; NULL: none */
  void *dx;              /* (n_tokens, dim); all gradients are written, not added to */
  void *du;              /* (n_tokens, dim) with gate only */
  void *dscale, *dshift; /* (n_seqs, dim), rows mod_stride apart; 0 for an empty sequence */
  void *dgate;           /* (n_seqs, dim), rows mod_stride apart; with gate only */

  void *workspace; /* of kf_adaln_workspace() bytes, aligned to 64 */
  int64_t workspace_bytes;
} kf_adaln;

/* Bytes of workspace that both calls need: two rows of floats (three with a gate) for every 32
** tokens of a sequence, and some ten for each thread. 64 where there is nothing to do, or where the
** calls would refuse the shape. */
KF_API int64_t kf_adaln_workspace(const kf_adaln *adaln);

KF_API kf_status kf_adaln_forward(const kf_adaln *adaln);
KF_API kf_status kf_adaln_backward(const kf_adaln *adaln);

/*
** For kernels elsewhere, such as those of knapformer_cuda.h. kf_adaln_check refuses what forward
** (0) or backward (1) would refuse, but for the workspace and the isa.
**
** The chunk table: each sequence's tokens in order, cut into chunks of at most KF_ADALN_CHUNK
** neighbours. Chunks come by sequence, then by place; those of sequence s are chunk_off[s] to
** chunk_off[s+1]. With NULLs it only counts.
*/
#define KF_ADALN_CHUNK 32
typedef struct kf_adaln_chunk {
  int64_t first; /* token */
  int32_t n_tokens, seq;
} kf_adaln_chunk;

KF_API kf_status kf_adaln_check(const kf_adaln *adaln, int backward);
KF_API kf_status kf_adaln_chunks(const kf_adaln *adaln, kf_adaln_chunk *chunk, int64_t *chunk_off,
                                 int64_t *n_chunks);

/* --------------------------------------------------------------------- 14. fit */

/* One measurement: a whole sequence of `len` tokens took `seconds` on `rank`. */
typedef struct kf_fit_row {
  int64_t len;
  double seconds;
  int32_t rank; /* 0 where the file does not say */
} kf_fit_row;

/*
** The cost that explains the rows: seconds(l) = linear_s * l + quadratic_s * l*l + constant_s, none
** of them below 0, times the rank's slowness where rows come from several ranks. Errors are
** relative: 5% of a short sequence count as much as 5% of a long one. Rows that lie far off the
** others (a pause, a cold start) are found and left out, of the fit and of the figures below.
*/
typedef struct kf_fit {
  double linear_s, quadratic_s, constant_s;
  double r2;   /* share of the seconds' variance that is explained */
  double mape; /* mean of |predicted/measured - 1| */
  double
    holdout_mape; /* the same for rows that a fit has not seen: five fits, each without a fifth */
  double power_s, power_p; /* the power law power_s * l^power_p, fitted in the same way */
  double power_mape;
  int64_t n_rows, n_outliers;
  int32_t n_ranks;
} kf_fit;

/* Rows from CSV text: a header with seq_len, seconds and maybe rank, in any order; other columns
** are skipped. free() *rows. `text` need not end in 0; `name` is used in messages only. */
KF_API kf_status kf_fit_parse(const char *name, const char *text, size_t n_bytes, kf_fit_row **rows,
                              int64_t *n_rows);

/*
** Fit at least 3 rows of at least 2 different lengths. Where not NULL, `slowness` (one more than
** the largest rank) gets each rank's seconds over those of the median rank (1 for a rank without
** rows), and `outlier` (n_rows) a 1 for each row that was left out. Deterministic.
*/
KF_API kf_status kf_fit_rows(const kf_fit_row *rows, int64_t n_rows, double *slowness,
                             uint8_t *outlier, kf_fit *out);

/* How much dearer an attention FLOP of this model is: 6 d quadratic_s / linear_s. Infinite where
** there is no linear term. */
KF_API double kf_fit_gamma(const kf_fit *fit, const kf_model *model);

/* Measured against predicted, both axes logarithmic, and the errors along the lengths, as SVG;
** free() it. Where ranks differ, divide seconds by the slowness first. `outlier` and `title` may be
** NULL. */
KF_API kf_status kf_svg_fit(const kf_fit_row *rows, int64_t n_rows, const uint8_t *outlier,
                            const kf_fit *fit, const char *title, char **out);

/* The file for `cost_model: modelled`, and back: kf_fit_load sets the three coefficients of a
** cost. */
KF_API kf_status kf_fit_text(const kf_fit *fit, char **out);
KF_API kf_status kf_fit_load(const char *name, const char *text, size_t n_bytes, kf_cost *cost);

/* ------------------------------------------------------------------ 15. config */

typedef enum kf_cost_model {
  KF_COST_HISTORY = 0,  /* starts from either of the others and learns from measured times */
  KF_COST_STATIC = 1,   /* FLOPs of the model's shape */
  KF_COST_MODELLED = 2, /* coefficients of kf_fit */
} kf_cost_model;

typedef enum kf_log_level {
  KF_LOG_DEFAULT = 0, /* info */
  KF_LOG_ERROR = 1,
  KF_LOG_WARNING = 2, /* drift, fixed bags that are too small for a sequence */
  KF_LOG_INFO = 3,    /* refits */
  KF_LOG_DEBUG = 4    /* each step's decisions and the utilisation of each bag */
} kf_log_level;

#define KF_DEFAULT_INTERVAL 50
#define KF_MAX_TEXT 1024 /* bytes of a text in a kf_config, its final 0 among them */

/* What a user configures; the YAML has the same names. All zero is the default. */
typedef struct kf_config {
  char bag_size[KF_MAX_TEXT]; /* as kf_bags_parse reads it; "": auto */
  int64_t rebalance_interval; /* steps between refits of cost and speeds; 0: KF_DEFAULT_INTERVAL */
  kf_cost_model cost_model;
  int64_t max_chunk_size; /* most tokens of one sequence on one rank; 0: no limit */
  kf_affinity affinity_policy;

  char model[KF_MAX_TEXT];     /* as kf_model_parse reads it; "": KF_DEFAULT_MODEL */
  double gamma;                /* 0: KF_DEFAULT_GAMMA */
  char cluster[KF_MAX_TEXT];   /* as kf_cluster_parse reads it; "": h100x32's nodes and links */
  int64_t mem_tokens;          /* most tokens a rank may load; 0: no cap */
  double budget_us;            /* of the planner's search; 0: its default */
  char cost_file[KF_MAX_TEXT]; /* what `knapformer fit -o` wrote; "": none */

  kf_log_level log_level;
  char steps_file[KF_MAX_TEXT];   /* a JSON line per step; "": none */
  char metrics_file[KF_MAX_TEXT]; /* Prometheus text, refreshed each step; "": none */
  char trace_file[KF_MAX_TEXT];   /* Chrome trace; "": none */
  char state_file[KF_MAX_TEXT];   /* the scheduler's memory; "": none */
} kf_config;

/*
** Read YAML into *config, over what it holds: one mapping `knapformer:` with the keys above.
** Unknown and repeated keys, wrong types and values out of range are refused, naming the file, the
** line, what stands there and what was expected; *config is then as it was. No file is opened:
** kf_config_resolve reads cost_file, kf_outputs_create and kf_scheduler_restore_file the others.
*/
KF_API kf_status kf_config_parse(const char *name, const char *text, size_t n_bytes,
                                 kf_config *config);

/* "key=value", as after --set. */
KF_API kf_status kf_config_set(const char *assignment, kf_config *config);

/* What kf_config_parse cannot see: do bags, cluster and model fit each other and so many ranks?
** With n_ranks 0, which means not known, all but the ranks. */
KF_API kf_status kf_config_check(const kf_config *config, int32_t n_ranks);

/* The config as commented YAML that kf_config_parse reads back; free() it. */
KF_API kf_status kf_config_text(const kf_config *config, char **out);

/*
** What a configuration (NULL: all defaults) means on so many ranks: every default filled in, texts
** and cost_file read. What a configuration has no key for (speeds, a log, a cap of each rank) the
** caller may set in *out before kf_scheduler_create. kf_scheduler_options_free(*out).
*/
struct kf_scheduler_options;
KF_API kf_status kf_config_resolve(const kf_config *config, int32_t n_ranks,
                                   struct kf_scheduler_options **out);
KF_API void kf_scheduler_options_free(struct kf_scheduler_options *options);

/* --------------------------------------------------------------- 16. scheduler */

/*
** The online object: a planner, the cost it plans with, and what it has learned.
**
**     kf_scheduler *scheduler;
**     kf_scheduler_options *options;
**     kf_config config = {0};
**     kf_step *step;  // of section 9
**     const kf_plan *plan;
**     kf_config_resolve(&config, 8, &options);
**     kf_scheduler_create(options, &scheduler);
**     for (;;) {  // each step, ranks of a comm
**       kf_step_schedule(step, scheduler, &mine, NULL, &plan);
**       // ... route, compute, route back ...
**       kf_scheduler_update_stats(scheduler, rank, seconds[rank], NULL);
**     }
**     for (;;) {  // or all ranks in one process
**       kf_scheduler_plan(scheduler, batch, &plan);
**       for (int32_t r = 0; r < 8; r++) kf_scheduler_update_stats(scheduler, r, seconds[r], NULL);
**     }
**
** Times of a step travel with the lengths of the next, so that every rank knows the same and learns
** the same, to the bit, without a collective of its own. Every step is planned; every
** rebalance_interval steps `history` refits: the three coefficients of the cost, one speed per
** rank, one correction per class of sequence. A single pause, garbage collection or checkpoint does
** not move it; what lasts five steps does. `static` and `modelled` keep their cost: they never
** refit, and tell of drift and of the error of what they predict.
*/
typedef struct kf_scheduler kf_scheduler;

typedef void kf_log_fn(void *user, kf_log_level level, const char *line);

typedef struct kf_scheduler_options {
  kf_planner_options plan;  /* what plans begin with: the cost, the number of ranks in it, speeds */
  kf_cost_model cost_model; /* where that cost comes from, and if it is learned */
  int64_t rebalance_interval; /* steps between refits; 0: KF_DEFAULT_INTERVAL */
  kf_log_level log_level;     /* of the lines that are made */
  kf_log_fn *log;             /* called with one line, from within the calls below; NULL: no log */
  void *log_user;
} kf_scheduler_options;

/* By hand, or of kf_config_resolve. Takes some 3 KB a rank, and nothing more once a batch of a
** step's size has been planned. */
KF_API kf_status kf_scheduler_create(const kf_scheduler_options *options, kf_scheduler **out);
KF_API void kf_scheduler_free(kf_scheduler *scheduler);

/* Learn from what was measured since the last plan, refit if it is time, and plan. The plan belongs
** to the scheduler and lives until it plans again. batch->profile is used where it is given. */
KF_API kf_status kf_scheduler_plan(kf_scheduler *scheduler, const kf_batch *batch,
                                   const struct kf_plan **out);

/* What one rank measured of one step, beside its busy time. 0: not measured. */
typedef struct kf_counters {
  int64_t memory_bytes, memory_limit_bytes; /* most that was in use; how much there is */
  int64_t tokens, samples;                  /* that this rank computed */
  double plan_s, route_s, compute_s, wait_s;
} kf_counters;

/*
** `rank` was busy for `seconds` in the step that was planned last: computing and moving data,
** without waiting for others. Over a comm, report your own rank; in one process, all. A second
** report replaces the first, a rank that reports nothing is not learned from. Not a number,
** negative, less than a nanosecond for a rank that had tokens, above a day, an unknown rank,
** counters below 0: KF_EINVAL, and nothing changes. `counters` may be NULL.
*/
KF_API kf_status kf_scheduler_update_stats(kf_scheduler *scheduler, int32_t rank, double seconds,
                                           const kf_counters *counters);

/* Learn from what was measured now, and not at the next plan: for the metrics of the last step. */
KF_API kf_status kf_scheduler_settle(kf_scheduler *scheduler);

/* How many steps were planned, those before a restored state was saved among them: the next one's
** number. */
KF_API int64_t kf_scheduler_steps(const kf_scheduler *scheduler);

/* The next step belongs to a new epoch. For the metrics only. */
KF_API void kf_scheduler_new_epoch(kf_scheduler *scheduler);

/* Of all that decides the next plans but what was measured since the last one. */
KF_API uint64_t kf_scheduler_hash(const kf_scheduler *scheduler);

/*
** Collective: gather lengths, profiles and times, learn, plan on every rank, prove the plan, and
** compare, as kf_step_gather and kf_step_plan do. Two small gathers, like them. *batch may be asked
** for or be NULL. The scheduler's ranks are the comm's.
*/
KF_API kf_status kf_step_schedule(kf_step *step, kf_scheduler *scheduler, const kf_rank_batch *mine,
                                  const kf_batch **batch, const kf_plan **plan);

/* Collective: exchange the times of the last step now, settle on all ranks, and compare what they
** have learned: before saving, after the last step, or where all ranks' metrics of a step are
** wanted at once. */
KF_API kf_status kf_step_settle(kf_step *step, kf_scheduler *scheduler);

/*
** Everything the scheduler knows, as bytes with a version and a checksum: free() *out. Restored
** into a scheduler of the same options, it goes on as if it had never stopped: the same times give
** the same plans, bit for bit. All ranks of a comm hold the same after kf_step_settle, so one saves
** and all restore. What is corrupt, cut off, of a later version, of other ranks or of another model
** is refused, and the scheduler stays as it was.
*/
KF_API kf_status kf_scheduler_save(const kf_scheduler *scheduler, void **out, size_t *n_bytes);
KF_API kf_status kf_scheduler_restore(kf_scheduler *scheduler, const char *name, const void *data,
                                      size_t n_bytes);

/* The same by a state_file, and nothing where `path` is "". Restoring from a file that does not
** exist leaves the scheduler as it is. Every rank restores, one saves. */
KF_API kf_status kf_scheduler_save_file(const kf_scheduler *scheduler, const char *path);
KF_API kf_status kf_scheduler_restore_file(kf_scheduler *scheduler, const char *path);

/* Before a scheduler is created: the cost that the one of a state_file began with, coefficients and
** links, into *cost; *found is 0 where there is no file. So a program measures its cost once. */
KF_API kf_status kf_scheduler_read_start(const char *path, kf_cost *cost, int *found);

/* ------------------------------------------------------------------ 17. metrics */

/* A coefficient that has moved: by more than 10%, and more than its noise explains. */
typedef struct kf_drift {
  char what[48]; /* "quadratic_s", "speed of rank 3", "correction of video, 512 pixels" */
  double before, now;
  int64_t step; /* when it was found */
} kf_drift;

/* What was learned of a class of sequences: its compute is `correction` times the cost's. */
typedef struct kf_correction {
  int32_t kind;       /* kf_kind */
  int32_t resolution; /* of the class: 256 (below 384 pixels), 512, 1024, 2048, 4096; 0: unknown */
  double correction;
} kf_correction;

#define KF_METRICS_VERSION 1

/*
** The figures of the last step whose times are known; doc/metrics.md defines each. Belongs to the
** scheduler, and lives until its next call. With fixed bags, a bag's figures are those of its
** ranks; in auto every rank is a bag of its own.
*/
typedef struct kf_metrics {
  int32_t version; /* KF_METRICS_VERSION */
  int32_t n_ranks, n_bags;
  int64_t step;       /* whose figures these are, from 0; -1: none yet */
  int64_t epoch;      /* from 0 */
  int64_t n_measured; /* ranks that reported */

  double begin_s;          /* of the step: the sum of all steps before it */
  double step_s;           /* largest busy + wait of a rank */
  double predicted_step_s; /* largest predicted_s */
  double max_over_mean;    /* of busy_s, over the ranks that reported */
  double idle_variance;    /* standard deviation over ranks of the idle share of the step */
  double tokens_per_s, samples_per_s;
  double epoch_s, last_epoch_s; /* steps of this epoch so far; of the last whole one, 0: none */
  double mape;  /* of predicted_s, a running mean over steps, at most 10; 0: none yet */
  double noise; /* what one time scatters about the prediction, relative */

  const double *busy_s;          /* (n_ranks) as reported; 0: was not */
  const double *predicted_s;     /* (n_ranks) of busy_s, when it was planned */
  const double *busy_share;      /* (n_ranks) busy_s / step_s */
  const double *memory_pressure; /* (n_ranks) memory used / limit; else tokens / cap; else 0 */
  const double *speed;           /* (n_ranks) that plans are made with */
  const kf_counters *counters;   /* (n_ranks) */

  const int32_t *bag_first;                           /* (n_bags + 1) ranks */
  const double *bag_busy_share;                       /* (n_bags) mean of its ranks */
  const double *bag_tokens_per_s, *bag_samples_per_s; /* (n_bags) */

  kf_cost cost;      /* that plans are made with */
  double gamma;      /* of that cost; 0: not known */
  double overhead_s; /* of a rank and step, whatever it computes */
  double comm_scale; /* measured over predicted time of moving data */
  int32_t n_corrections, n_drifts;
  const kf_correction *correction;  /* (n_corrections) classes that were seen */
  const kf_drift *drift;            /* (n_drifts) found when it was last looked */
  int64_t refits, drifts, outliers; /* so far: refits, drifts found, times not learned from */

  uint64_t plan_hash; /* of the step */
  kf_figures figures; /* of the step's plan */
} kf_metrics;

/* Never NULL; `step` is -1 before the first times. */
KF_API const kf_metrics *kf_scheduler_metrics(const kf_scheduler *scheduler);

/* One JSON object on one line, with its newline; free() it. */
KF_API kf_status kf_metrics_json(const kf_metrics *metrics, char **out);

/* The same for Prometheus's text format; free() it. */
KF_API kf_status kf_metrics_prometheus(const kf_metrics *metrics, char **out);

/*
** The files that a configuration asks for, kept while steps go by, by one rank: steps_file, a JSON
** line a step, and trace_file, both begun anew and written through at once; metrics_file, replaced
** whole at every step. KF_EIO names the key, the file and the reason; "-" is no file.
*/
typedef struct kf_outputs kf_outputs;
KF_API kf_status kf_outputs_create(const kf_config *config, int32_t n_ranks, kf_outputs **out);

/* After each plan, and after the last settle: does nothing where the step is not a new one. */
KF_API kf_status kf_outputs_step(kf_outputs *outputs, const kf_metrics *metrics);

/* The trace's end; nothing is written after it. Without it a trace can be read all the same. */
KF_API kf_status kf_outputs_close(kf_outputs *outputs);
KF_API void kf_outputs_free(kf_outputs *outputs);

/* All of a file, or of standard input if `path` is "-"; free() *out. KF_EIO says what failed. */
KF_API kf_status kf_file_read(const char *path, char **out, size_t *n_bytes);

/*
** Write a file whole or not at all: beside it, to the disk, then in its place. Who reads it sees
** the old one or the new one, also after a crash. KF_EIO says what failed; the old file is then as
** it was.
*/
KF_API kf_status kf_file_replace(const char *path, const void *data, size_t n_bytes);

/* ------------------------------------------------------------------ 18. bucket */

/*
** For loaders that cannot route, or before routing: how many samples of a length make a batch, so
** that no batch exceeds what memory holds (M_mem tokens) nor what a step may take (M_comp seconds):
**
**     B(len) = max(1, min(floor(M_mem / len), floor(M_comp / work(len))))
**
** A bucket is one distinct length. What the rules differ in is `work`, and each keeps to M_comp as
** it sees it: by the cost, a batch of `power` may exceed it, unless p was chosen, and one of
** equal_token by far.
*/
typedef enum kf_rule {
  KF_RULE_TWO_TERM = 0,    /* kf_cost_work: linear, quadratic and constant term */
  KF_RULE_POWER = 1,       /* len^p, with M_comp = match_len^p */
  KF_RULE_EQUAL_TOKEN = 2, /* none: memory alone, the habit to beat */
  KF_RULE_PACKED = 3       /* no buckets: any lengths share a batch, see section 19 */
} kf_rule;

/* "two_term", "power", "equal_token", "packed"; and back, naming what was expected. */
KF_API const char *kf_rule_name(kf_rule rule);
KF_API kf_status kf_rule_parse(const char *text, kf_rule *out);

typedef enum kf_power {
  KF_POWER_BEST = 0,   /* of the fitted p and 0.50, 0.51, .. 3.00, the one with the least expected
                          imbalance of random steps, such that no batch of several samples is above
                          M_comp by the cost (0.50 where there is none) */
  KF_POWER_FITTED = 1, /* slope of log work over log length, every distinct length counting once */
  KF_POWER_GIVEN = 2
} kf_power;

typedef struct kf_bucket_options {
  kf_rule rule;
  kf_cost cost;       /* its three coefficients: what `two_term` and all figures count with */
  int64_t mem_tokens; /* M_mem, 1 to 2^52; in bytes: kf_activations_tokens */
  int64_t match_len;  /* M_comp is the work of one sequence of so many tokens; or 0, and */
  double comp_s;      /* M_comp in seconds. One of the two; equal_token needs neither */
  kf_power power;
  double p;        /* if given: 0.5 to 3 */
  int32_t n_ranks; /* that wait for each other in a step */
} kf_bucket_options;

typedef struct kf_bucket {
  int64_t len, count; /* tokens; samples of this length */
  int64_t batch_size; /* B(len). packed: what a batch of this length alone would hold */
  double work_s;      /* of one sample, by the cost */
} kf_bucket;

typedef struct kf_buckets {
  kf_rule rule;
  int64_t n;
  const kf_bucket *bucket; /* (n) rising lengths */
  int64_t mem_tokens;      /* M_mem */
  double comp_s;           /* M_comp by the cost, also where equal_token was given one that it does
                              not keep to; 0: none */
  double match_len;        /* the length whose work that is; 0: none */
  double p;                /* of `power`; else 0 */
} kf_buckets;

/*
** Buckets of `n` lengths, in any order and repeated as they come, each of which occurs count[i]
** times (NULL: once). A length above mem_tokens is KF_EINFEASIBLE: no batch can hold it; so is a
** comp_s not above constant_s, but for equal_token. A length whose work is above M_comp is a batch
** by itself.
*/
KF_API kf_status kf_bucket_create(const kf_bucket_options *options, const int64_t *len,
                                  const int64_t *count, int64_t n, kf_buckets **out);
KF_API void kf_bucket_free(kf_buckets *buckets);

/* How much memory a batch takes: fixed_bytes (weights, gradients, optimiser) and token_bytes for
** each of its tokens. */
typedef struct kf_activations {
  double token_bytes, fixed_bytes;
} kf_activations;

/* What a transformer block keeps of a token for the backward pass, 17 d elements (attention not
** materialised), in all layers; with `recompute` the block's input, d, in all layers and 17 d in
** one. fixed_bytes is 0. An estimate: measured bytes a token are better. */
KF_API kf_status kf_activations_static(const kf_model *model, double elem_bytes, int recompute,
                                       kf_activations *out);

/* M_mem: the most tokens within limit_bytes. KF_EINFEASIBLE if not even one is. */
KF_API kf_status kf_activations_tokens(const kf_activations *activations, double limit_bytes,
                                       int64_t *mem_tokens);

/*
** Lengths from text: words separated by blanks, commas or ends of lines. A word is a length in
** tokens, "4096", or a shape, "832x480x81+392": width x height in pixels, frames (1), text tokens
** (0). A shape has ceil(width/16) * ceil(height/16) tokens in each latent frame; the first frame is
** one and every 4 further ones (or part of 4) are one. Either may end in "*1000": so many samples.
** free() *len. `name` is used in messages only.
*/
KF_API kf_status kf_lens_parse(const char *name, const char *text, size_t n_bytes, int64_t **len,
                               int64_t *n);

/* ----------------------------------------------------------------- 19. sampler */

/*
** An epoch's batches: each sample at most once, the same number of batches on every rank. All
** follows from the options, the lengths, the epoch and what was set since it began, so every rank
** computes the same for itself, without communication, and can go on exactly where it stopped.
**
**     kf_sampler *sampler;
**     kf_sampler_options options = {.bucket = {.mem_tokens = 160000, .match_len = 75600, .n_ranks = 8}};
**     kf_cost_preset("wan1.3b", NULL, 8, KF_DEFAULT_GAMMA, &options.bucket.cost);
**     kf_sampler_create(&options, len, n_samples, &sampler);
**     for (int64_t epoch = 0; epoch < n_epochs; epoch++) {
**       const kf_sampled *step;
**       kf_sampler_set_epoch(sampler, epoch);
**       while (!kf_sampler_next(sampler, &step) && step) {
**         const int64_t *mine = step->sample + step->batch.rank_off[rank];
**         // ... up to step->sample + step->batch.rank_off[rank + 1]
**       }
**     }
**
** Samples are shuffled, each bucket is cut into batches of its size (what is left over makes a
** smaller one), and batches are shuffled. `packed` has no buckets: it looks at `window` samples of
** the shuffled order at a time, begins a batch with the one that waits longest, and fills it from
** the window up to both limits, such that all batches come close to the same work. What is left at
** the end is dealt evenly over the last steps.
**
** Online: a scheduler measures (also where nothing is routed: bag_size "g1n1"), refits at the same
** steps on every rank, and what it learned goes to the sampler:
**
**     int64_t seen = 0;
**     kf_sampler *sampler;
**     kf_scheduler *scheduler;
**     const kf_metrics *metrics = kf_scheduler_metrics(scheduler);  // after each step
**     if (metrics->refits != seen) {
**       kf_sampler_set_cost(sampler, kf_sampler_step(sampler), &metrics->cost);
**       seen = metrics->refits;
**     }
*/
typedef struct kf_sampler kf_sampler;

typedef enum kf_step_mode {
  KF_STEPS_RANDOM = 0, /* each rank's next batch */
  KF_STEPS_SAME = 1,   /* one bucket a step; the buckets' last batches share steps by length. packed
                          has no buckets, and does as in similar */
  KF_STEPS_SIMILAR = 2 /* batches of similar work share a step; steps in random order */
} kf_step_mode;

typedef struct kf_sampler_options {
  kf_bucket_options bucket; /* rule, cost, limits; bucket.n_ranks is the number of ranks */
  kf_step_mode mode;
  uint64_t seed;
  int64_t window;   /* of packed, in samples, up to 2^20; 0: 1024 */
  int32_t keep_all; /* 0: what does not fill the last step is dropped; 1: batches are cut in two
                       until it is full, as far as there are samples for that */
} kf_sampler_options;

/* One step: the samples of every rank. `batch` can go to a planner as it is; it has no profiles. */
typedef struct kf_sampled {
  int64_t epoch, step; /* of the epoch, from 0 */
  kf_batch batch;
  const int64_t *sample; /* (batch.n_seqs) numbers of samples; rank r's from batch.rank_off[r] on */
} kf_sampled;

/*
** `len` (n_samples) is copied; sample i is the i-th. Lengths are 1 to KF_MAX_LEN; one above
** mem_tokens is KF_EINFEASIBLE, naming it. Begins with epoch 0. Takes some 20 to 50 bytes a sample
** where lengths repeat and at most 100 where all differ (40 more while restoring), 48 for each one
** of packed's window and 20 for each sample of the largest step that was handed out; for ten
** million samples about a second an epoch, three where all lengths differ.
*/
KF_API kf_status kf_sampler_create(const kf_sampler_options *options, const int64_t *len,
                                   int64_t n_samples, kf_sampler **out);
KF_API void kf_sampler_free(kf_sampler *sampler);

/* Begin an epoch, from 0 to 2^32, at its first step. A cost that was set stays. */
KF_API kf_status kf_sampler_set_epoch(kf_sampler *sampler, int64_t epoch);

/* The next step, which lives until the sampler's next call; NULL after the last one of the
** epoch. */
KF_API kf_status kf_sampler_next(kf_sampler *sampler, const kf_sampled **out);

/* Steps of this epoch; the number of the next one. */
KF_API int64_t kf_sampler_steps(const kf_sampler *sampler);
KF_API int64_t kf_sampler_step(const kf_sampler *sampler);

/* The buckets by the cost that was set last, with the p that was found. Lives until the sampler's
** next call. */
KF_API const kf_buckets *kf_sampler_buckets(const kf_sampler *sampler);

/*
** From step `at` of this epoch on, make batches by another cost: p (unless given), M_comp (unless
** in seconds) and batch sizes follow from it, and the samples not yet handed out by step `at` are
** arranged anew. `at` is kf_sampler_step() or later: the same on every rank, so a loader that
** prefetches names a step that no rank has reached. Where no batch size changes (packed: no
** sample's share of M_comp by more than 1%, so that batches may be up to 1% above it), the order
** stays as it is; else it takes as long as to begin an epoch. KF_EINFEASIBLE where comp_s is not
** above constant_s.
*/
KF_API kf_status kf_sampler_set_cost(kf_sampler *sampler, int64_t at, const kf_cost *cost);

/*
** What to go on from, as bytes with a version and a checksum: free() *out. A sampler of the same
** lengths and options (but for the cost, which is part of what is saved) that restores it hands out
** the same steps from there on. 96 bytes, and 32 for each change of the cost that arranged this
** epoch anew and for the last one; restoring does all of that again. What is corrupt or belongs to
** another sampler is refused, and the sampler stays as it was.
*/
KF_API kf_status kf_sampler_save(const kf_sampler *sampler, void **out, size_t *n_bytes);
KF_API kf_status kf_sampler_restore(kf_sampler *sampler, const char *name, const void *data,
                                    size_t n_bytes);

/* A hash of all that decides the steps to come: ranks with the same one go on alike. */
KF_API uint64_t kf_sampler_hash(const kf_sampler *sampler);

/* What an epoch hands out, and what not. Seconds are predicted by the cost that was set last,
** limits and sizes are those of kf_sampler_buckets; doc/batches.md defines each figure. */
typedef struct kf_epoch {
  int64_t epoch, n_steps, n_batches, n_samples, n_tokens; /* handed out, all ranks */
  int64_t dropped_batches, dropped_samples, dropped_tokens;
  int64_t underfilled_batches; /* fewer samples than their bucket's batch size; packed: below 0.9 of
                                  both limits */
  int64_t split_batches;       /* cut in two by keep_all when it was last arranged */
  int64_t over_batches;        /* one sample each, whose work is above M_comp */
  int64_t mixed_steps;         /* of mode same, but for packed: more than one bucket */
  double imbalance_rate;       /* mean over steps of 1 - mean/max of the ranks' work */
  double mean_memory_use, max_memory_use;   /* of batches: tokens / M_mem */
  double mean_compute_use, max_compute_use; /* of batches: work / M_comp; 0: no limit */
  double predicted_s;                       /* of the epoch: sum over steps of the largest work */
  double predicted_tokens_per_s;
} kf_epoch;

/* Of the whole epoch, in time linear in its samples. */
KF_API kf_status kf_sampler_figures(const kf_sampler *sampler, kf_epoch *out);

/* One rule of a picture. */
typedef struct kf_bucket_panel {
  const char *name;
  const kf_buckets *buckets; /* NULL: it has none to draw (packed, two_term_balanced) */
  const kf_epoch *epoch;
} kf_bucket_panel;

/* Work and memory of each bucket's batch by the rules, and the rules' figures side by side, as SVG;
** free() it. `title` may be NULL. */
KF_API kf_status kf_svg_buckets(const kf_bucket_panel *panel, int32_t n_panels, const char *title,
                                char **out);

/* ------------------------------------------------------------------ 20. report */

/* One variant of a training run: all its steps, as they were measured. Seconds are 0 to 1e9. */
typedef struct kf_report_variant {
  const char *name; /* "without", "with knapformer" */
  int64_t n_steps;
  const int64_t *step;         /* (n_steps) rising numbers, 0 to 2^52; NULL: 0, 1, 2 .. */
  const double *step_s;        /* (n_steps) from its begin to its end */
  const double *loss;          /* (n_steps) left out where no number of up to 1e12; NULL: none */
  const kf_counters *counters; /* (n_steps, n_ranks) its seconds; busy are plan, route, compute */
} kf_report_variant;

/* A line of the table at the top: "model", "DiT-S". */
typedef struct kf_report_fact {
  const char *name, *value;
} kf_report_fact;

typedef struct kf_report {
  const char *title; /* NULL: "Training run" */
  int32_t n_ranks;
  int32_t n_variants; /* 1, or 2: without and with the balancer, compared by steps of one number */
  const kf_report_variant *variant;
  int32_t n_facts;
  const kf_report_fact *fact;
  int64_t n_points;
  const double *predicted_s; /* (n_points) how long a rank was expected to be busy in a step, */
  const double *measured_s;  /* and how long it was: how well the cost model fits */
  const kf_plan *plan;       /* to draw the routing of, proved by kf_plan_check; NULL: none */
  const kf_batch *batch;     /* that the plan was made of */
} kf_report;

/*
** The page: what the balancer brought, in words and as pictures, in sections `timeline`,
** `imbalance`, `loss`, `fit` and `routing`; what was not measured is said to be missing.
** Self-contained: it has no script, asks for nothing from outside and forbids itself to, is light
** or dark as the reader's screen is. All texts are escaped. Below 1 MB whatever is drawn: many
** steps, ranks, points or sequences are picked or drawn together, and the page says how. *out is
** 0-terminated; free() it.
*/
KF_API kf_status kf_report_html(const kf_report *report, char **out);

/* ----------------------------------------------------------------- 21. numbers */

/* The first output of splitmix64 from this state, and what is added to the state for each further
** one. */
#define KF_SPLITMIX64_STEP 0x9e3779b97f4a7c15u
KF_API uint64_t kf_splitmix64(uint64_t state);

/* FNV-1a 64 over bytes. Begin with KF_HASH_START, go on with what the last call gave. */
#define KF_HASH_START 0xcbf29ce484222325u
KF_API uint64_t kf_hash_bytes(uint64_t hash, const void *data, size_t n_bytes);

/* The value that `share` (0 to 1) of n lie below, between two of them by proportion: 0.5 for the
** median. Of none: 0. The values are numbers; they are reordered. Time is linear in n. */
KF_API double kf_quantile(double *value, int64_t n, double share);

/* --------------------------------------------------------------------- 22. sim */

/* To see a scheduler learn without a cluster. A rank takes `factor` times as long, in steps first
** .. last. */
typedef struct kf_sim_spell {
  int32_t rank;
  double factor;
  int64_t first, last;
} kf_sim_spell;

/* What the scheduler is not told, and has to learn. */
typedef struct kf_sim_clock {
  kf_cost cost;          /* the true one; its three coefficients are read */
  double kind_factor[4]; /* by kf_kind: compute of such a sequence over the cost's; 0: 1 */
  double overhead_s;     /* of a rank with work, each step */
  double comm_scale;     /* true over planned seconds of moving data; 0: 1 */
  const double *speed;   /* (n_ranks) true speeds; NULL: all 1 */
  double noise;          /* standard deviation of a measured time, relative */
  uint64_t seed;
  const kf_sim_spell *slow;  /* (n_slow) of what a rank computes: it has become slower */
  const kf_sim_spell *pause; /* (n_pauses) of what is measured: something came in between */
  int32_t n_slow, n_pauses;
} kf_sim_clock;

/* One rank's step. */
typedef struct kf_sim_times {
  double true_s;     /* compute by the true cost and slowness, and moving data */
  double comm_s;     /* moving data, of true_s */
  double measured_s; /* with noise and pauses: what a scheduler gets to see */
  double home_s;     /* true, had every sequence stayed at home */
  int64_t samples;   /* whose first row the rank has */
} kf_sim_times;

/* What each rank of a planned step takes: out (n_ranks). Noise is drawn for each (seed, step, rank)
** by itself: every rank of a job can compute the times of all, and a run that is resumed goes on
** alike. */
KF_API kf_status kf_sim_step(const kf_sim_clock *clock, int64_t step, const kf_batch *batch,
                             const kf_plan *plan, kf_sim_times *out);

/* How many times as long as one of speed 1 a rank computes in a step. */
KF_API double kf_sim_slowness(const kf_sim_clock *clock, int32_t rank, int64_t step);

/* ------------------------------------------------------------------ 23. gather */

/*
** Section 9 for ranks that talk by other means than a kf_comm: what they gather, as bytes. Nothing
** here is collective. The caller's part is to gather: every rank's bytes, as many on all, one after
** the other in the order of ranks. kf_step_schedule is
**
**     kf_gather *gather;
**     kf_gather_create(n_ranks, rank, 0, &gather);
**     for (int64_t step = 0; step < n_steps; step++) {
**       const kf_plan *plan;
**       do {
**         kf_gather_pack(gather, &mine, scheduler, NULL, own);
**         your_gather(own, kf_gather_bytes(gather), all);
**         kf_gather_read(gather, all, &batch, NULL);
**       } while (!batch);
**       kf_gather_schedule(gather, scheduler, &plan, own);
**       your_gather(own, KF_VERDICT_BYTES, all);
**       kf_gather_agree(gather, all);
**     }
**
** What is read from the same bytes is the same on every rank, errors and their sentences included:
** an object is then as fit for the next step as it was. Any bytes are read or refused.
*/
typedef struct kf_gather kf_gather;

#define KF_VERDICT_BYTES 256

/* Of one rank; for all steps, because it learns how much room they take. `record_bytes` as in
** kf_step_create: the first kf_gather_read compares it. At most 320000 ranks, here and there. */
KF_API kf_status kf_gather_create(int32_t n_ranks, int32_t rank, int64_t record_bytes,
                                  kf_gather **out);
KF_API void kf_gather_free(kf_gather *gather);

/* How many bytes kf_gather_pack writes: the same on all ranks, a multiple of 8, and another number
** after some kf_gather_read. */
KF_API int64_t kf_gather_bytes(const kf_gather *gather);

/* What this rank has, and what it told `scheduler` (NULL: nothing) of the last step. `wrong`, if
** not NULL, is a sentence about its input, and every rank's kf_gather_read fails with it and its
** rank. */
KF_API kf_status kf_gather_pack(const kf_gather *gather, const kf_rank_batch *mine,
                                const kf_scheduler *scheduler, const char *wrong, void *out);

/* All ranks' bytes as a batch and records, as kf_step_gather gives them. *batch is NULL where not
** all had room: pack and gather once more. So it always is at first, when versions are compared. */
KF_API kf_status kf_gather_read(kf_gather *gather, const void *all, const kf_batch **batch,
                                const void **records);

/* Plan what was read and prove the plan; with a scheduler, after learning from the times, and where
** `plan` is NULL without planning. `verdict` is what this rank has come to, also where it failed;
** *plan, NULL if it failed, is to be followed once all agree. KF_EINVAL: a pointer is NULL. */
KF_API kf_status kf_gather_plan(kf_gather *gather, kf_planner *planner, const kf_plan **plan,
                                void *verdict);
KF_API kf_status kf_gather_schedule(kf_gather *gather, kf_scheduler *scheduler,
                                    const kf_plan **plan, void *verdict);

/* Compare all ranks' verdicts (n_ranks, KF_VERDICT_BYTES), as kf_step_plan does. */
KF_API kf_status kf_gather_agree(const kf_gather *gather, const void *verdicts);

#ifdef __cplusplus
}
#endif
#endif
