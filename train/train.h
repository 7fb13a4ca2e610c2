/* SPDX-License-Identifier: Apache-2.0 */
/*
** The native trainer: a Diffusion Transformer on ranks, in plain C. It knows the public header and
** BLAS; the program's `train` command is its one user beside the tests. In the order of the data:
**
**     mix --data--> rows at home --route--> rows where they are computed --net--> predictions
**     --reverse--> home: loss --route--> net backward --gradients of all ranks--> adamw --> parameters
**
**   scene.c      moving shapes and textures, drawn on the spot: one sample
**   data.c       the samples of a step, by rank: rows of tokens, what to predict
**   buffer.c     memory that grows and is kept
**   params.c     the model's tensors in one block of floats: names, shapes, first values
**   pointwise*.c between matrix products: bias, GELU, RoPE, AdamW, once per instruction set
**   embed.c      patches, words, time and label become vectors; vectors become predictions
**   block.c      one adaLN-Zero block, forward and backward
**   attend.c     attention of a block's rows, whole or split over ranks
**   net.c        the network: memory, forward, backward
**   clock.c      where a rank's time goes
**   measure.c    what this machine takes: the cost that the first plans are made with
**   variant.c    one variant of training: parameters, optimiser, scheduler
**   trainer.c    one step: plan, route, forward, loss, backward, reduce, update
**   record.c     what was measured, step by step; what the balancer brought
**
** All tensors are fp32, row-major, packed: (T, D) is T tokens of all sequences one after the other.
** Every call that returns a kf_status leaves its sentence in kf_last_error(). Where a call with a
** comm fails on one rank alone (it can only be memory), that rank owes the others a kf_comm_fail.
*/
#ifndef TRAIN_H
#define TRAIN_H

#include <stdbool.h>
#include <stdint.h>

#include <knapformer.h>

/* ------------------------------------------------------------------ scene.c, data.c */

enum {
  TRAIN_CHANNELS = 4, /* of a cell: red, green, blue, depth */
  TRAIN_PATCH = 2,    /* cells a side of a token; a cell is 8 x 8 pixels */
  TRAIN_VALUES = TRAIN_PATCH * TRAIN_PATCH * TRAIN_CHANNELS, /* of a token */
  TRAIN_WORDS = 64,  /* of the vocabulary that describes a scene */
  TRAIN_LABELS = 10, /* label TRAIN_LABELS: none is given */
};

/* One token on its way to where it is computed. */
typedef struct train_row {
  float value[TRAIN_VALUES]; /* of a patch, noised; zeros for text */
  int32_t word;              /* of text; -1: visual */
  int32_t at[3];             /* frame, y, x in tokens; text: -1 - index, 0, 0 */
  float time;                /* of its sequence: 0 is data, 1 is noise */
  int32_t label;             /* of its sequence */
} train_row;

/* What a rank has at home of one step. Belongs to the train_data, until its next call. */
typedef struct train_batch {
  int64_t n_seqs, n_rows;
  int64_t n_visual;          /* rows that have something to predict */
  const int64_t *sample;     /* (n_seqs) the sample's number in the mix */
  const int64_t *len;        /* (n_seqs) rows of it: text, then visual */
  const kf_profile *profile; /* (n_seqs) */
  const train_row *row;      /* (n_rows) */
  const float *target;       /* (n_rows, TRAIN_VALUES) noise - data; zeros for text */
} train_batch;

typedef struct train_data train_data;

typedef struct train_data_options {
  const char *mix; /* as kf_mix_create reads it */
  double scale; /* multiplies text and visual tokens; 0: min(1, 2500 * ranks / tokens of the mix) */
  uint64_t seed; /* step s draws the mix of seed + s */
  int32_t rank, n_ranks;
} train_data_options;

/*
** A mix as training data. On as many ranks as the mix has or more, samples live where the mix has
** them. On fewer, sample j of m goes to rank floor(j * n_ranks / m): what a sample is depends on
** its number in the mix, the seed and the step, never on its rank, so that runs on different
** numbers of ranks see the same samples.
*/
kf_status train_data_create(const train_data_options *options, train_data **out);
void train_data_free(train_data *data);

/* The scale in use. */
double train_data_scale(const train_data *data);

/* All ranks' lengths of a step, without drawing anything; lives until the next call. */
kf_status train_data_lengths(train_data *data, int64_t step, const kf_batch **out);

/* This rank's samples of a step, drawn and noised. */
kf_status train_data_step(train_data *data, int64_t step, train_batch *out);

/* A sample: what is drawn, in cells. */
typedef struct train_scene {
  int32_t frames, height, width; /* in tokens */
  int32_t label;                 /* 0 .. TRAIN_LABELS-1: what kind of scene it is */
  uint64_t seed;                 /* decides everything else */
} train_scene;

/* What a sample's visual rows show, before noise. Latent frames become fewer with the cube root of
** the scale, and frames are about square: of their last tokens some may be missing. */
train_scene train_data_scene(const train_data *data, int64_t step, int64_t sample);

/* The patches of the first n tokens, in the order of frame, y, x: out (n, TRAIN_VALUES), each
** (TRAIN_PATCH, TRAIN_PATCH, TRAIN_CHANNELS), values from -1 to 1. */
void train_scene_draw(const train_scene *scene, int64_t n, float *out);

/* n words that describe it: 0 .. TRAIN_WORDS-1. */
void train_scene_words(const train_scene *scene, int64_t n, int32_t *out);

/* ------------------------------------------------------------------------ params.c */

/* The tensors, in this order in one block. A weight is (to, from): y = x w^T + b. L: layers. */
typedef enum train_tensor_id {
  TRAIN_PATCH_W, /* (d, TRAIN_VALUES) */
  TRAIN_PATCH_B, /* (d) */
  TRAIN_WORD,    /* (TRAIN_WORDS, d) */
  TRAIN_TIME1_W, /* (d, TRAIN_TIME) of the sines and cosines of the time */
  TRAIN_TIME1_B, /* (d) */
  TRAIN_TIME2_W, /* (d, d) */
  TRAIN_TIME2_B, /* (d) */
  TRAIN_LABEL,   /* (TRAIN_LABELS + 1, d) */
  TRAIN_MOD_W,   /* (6 L + 2, d, d) shift, scale, gate of attention and the same of the MLP, */
  TRAIN_MOD_B,   /* (6 L + 2, d)     for each block; then shift and scale before the last product */
  TRAIN_QKV_W,   /* (L, 3 d, d) */
  TRAIN_QKV_B,   /* (L, 3 d) */
  TRAIN_PROJ_W,  /* (L, d, d) */
  TRAIN_PROJ_B,  /* (L, d) */
  TRAIN_FC1_W,   /* (L, 4 d, d) */
  TRAIN_FC1_B,   /* (L, 4 d) */
  TRAIN_FC2_W,   /* (L, d, 4 d) */
  TRAIN_FC2_B,   /* (L, d) */
  TRAIN_OUT_W,   /* (TRAIN_VALUES, d) */
  TRAIN_OUT_B,   /* (TRAIN_VALUES) */
  TRAIN_N_TENSORS
} train_tensor_id;

enum { TRAIN_TIME = 256 };

typedef struct train_tensor {
  const char *name; /* "qkv_w" */
  int64_t offset;   /* in the block, in floats; a multiple of 16 */
  int32_t n_dims;
  int64_t dim[3];
} train_tensor;

typedef struct train_params {
  kf_model model;
  int64_t n_floats; /* of the block, with what lies between tensors */
  train_tensor tensor[TRAIN_N_TENSORS];
} train_params;

/* Refuses a model that cannot be computed: a width that heads do not divide, heads of an odd or too
** large width. */
kf_status train_params_of(const kf_model *model, train_params *out);

int64_t train_tensor_size(const train_tensor *tensor);

/* First values: linear maps as Xavier has it, embeddings and the time's maps of deviation 0.02,
** what makes a block begin as the identity (adaLN-Zero) and biases 0. What lies between tensors is
** 0. */
void train_params_init(const train_params *params, uint64_t seed, float *block);

/* Does weight decay reach a tensor (train_tensor_id)? Linear maps only: no bias, no embedding. */
bool train_tensor_decays(int id);

/* --------------------------------------------------------------------- pointwise.c */

typedef struct train_adamw {
  float lr, beta1, beta2, eps, weight_decay, ema_decay;
  float grad_scale;               /* gradients are multiplied by it first: 1/values, clipping */
  float correction1, correction2; /* 1 - beta1^t, 1 - beta2^t */
} train_adamw;

/* Loops between matrix products. x (rows, cols) is contiguous. One table per instruction set. */
typedef struct train_pointwise {
  /* x += bias in each row. */
  void (*add_bias)(float *x, const float *bias, int64_t rows, int64_t cols);
  /* h += bias; g = gelu(h), the tanh one. */
  void (*bias_gelu)(float *h, const float *bias, float *g, int64_t rows, int64_t cols);
  /* g = gelu(h); d, which comes in as the gradient of g, becomes that of h. */
  void (*gelu_backward)(const float *h, float *g, float *d, int64_t n);
  /* out (cols) += the sum of all rows. */
  void (*add_rows)(const float *x, int64_t rows, int64_t cols, float *out);
  /* Each row: heads * head_dim floats, `stride` floats from one row to the next. Of each head the
  ** first half a and the second half b become a cos - b sin, b cos + a sin; cos_sin (rows,
  ** head_dim): the cosines, then the sines, of a row. `back`: the other way, which is also its
  ** gradient. */
  void (*rope)(float *x, const float *cos_sin, int64_t rows, int64_t heads, int64_t head_dim,
               int64_t stride, bool back);
  double (*sum_squares)(const float *x, int64_t n);
  /* p, m, v, ema (n) follow g; ema NULL: none. */
  void (*adamw)(const train_adamw *a, int64_t n, const float *g, float *p, float *m, float *v,
                float *ema);
} train_pointwise;

/* The best of this machine, or the wanted one; NULL where the machine does not have it. */
const train_pointwise *train_pointwise_of(kf_isa isa);

/* --------------------------------------------------------------------------- clock.c */

typedef enum train_phase {
  TRAIN_PHASE_PLAN,
  TRAIN_PHASE_MOVE,
  TRAIN_PHASE_COMPUTE,
  TRAIN_PHASE_WAIT, /* for other ranks */
  TRAIN_N_PHASES
} train_phase;

/* Where the time of a step goes. CPU time of this thread is what a rank is busy for, whatever else
** the machine does; of waiting, the wall's. */
typedef struct train_clock {
  double cpu_s[TRAIN_N_PHASES], wall_s[TRAIN_N_PHASES];
  double cpu_mark, wall_mark, wall_begin;
} train_clock;

void train_clock_start(train_clock *clock);
void train_clock_lap(train_clock *clock, train_phase phase); /* what was since the last mark */
double train_clock_busy(const train_clock *clock);           /* CPU time but for waiting */
double train_clock_wall(const train_clock *clock);           /* from the start to the last mark */

/* ----------------------------------------------------------------------------- net.c */

/*
** What a rank computes of one step. Where some rank's plan splits a sequence, ranks meet twice in
** every block: before attention, and after it. What lies between two meetings should take all ranks
** equally long, and whole sequences, which need nobody, are there to fill: some are computed before
** attention's exchange, the others between the two. Rows come in the plan's order, part after part.
*/
typedef struct train_pack {
  int64_t n_rows, n_seqs;
  const train_row *row;   /* (n_rows) */
  const int64_t *seq_off; /* (n_seqs + 1) rows of each sequence that has some here */
  int64_t n_split;        /* sequences of which this rank has a part, */
  int64_t n_early;        /* and whole ones after them that are computed early */
  kf_comm *comm;          /* with an exchange: */
  const kf_exchange
    *exchange;        /* KF_EXCHANGE_ULYSSES_SPLIT of this rank; NULL: no rank has anything to
                                  exchange, and all is early */
  train_clock *clock; /* NULL: nobody wants to know */
} train_pack;

typedef struct train_net train_net;

typedef struct train_net_options {
  kf_model model;
  kf_isa isa;         /* of our kernels; BLAS chooses its own */
  int64_t keep_bytes; /* MLP activations are kept for backward while all kept memory is below this,
                         and computed again where it is not; 0: 2 GiB. The results are the same. */
} train_net_options;

kf_status train_net_create(const train_net_options *options, train_net **out);
void train_net_free(train_net *net);

/* Predictions (n_rows, TRAIN_VALUES) of a pack; what backward needs is kept. Collective where the
** plan splits a sequence. */
kf_status train_net_forward(train_net *net, const float *params, const train_pack *pack,
                            float *prediction);

/* From the gradient of the predictions, that of all parameters: grads is written, not added to. */
kf_status train_net_backward(train_net *net, const float *params, const train_pack *pack,
                             const float *d_prediction, float *grads);

/* Bytes that a step of so many rows and sequences takes, where none is split. */
kf_status train_net_bytes(const train_net_options *options, int64_t n_rows, int64_t n_seqs,
                          int64_t *out);

/* FLOPs of matrix products and attention, forward and backward, of one whole sequence. */
double train_net_flops(const kf_model *model, int64_t len);

/* ------------------------------------------------------------------------- measure.c */

/* What this machine takes for a model: seconds a token and a token squared from timing one block,
** and bytes a second and latency of its ranks. Collective; the same on all ranks. `cost` comes in
** with what is known of model and cluster; the links are measured only where `links`. */
kf_status train_measure(kf_comm *comm, const kf_model *model, kf_isa isa, bool links,
                        kf_cost *cost);

/* --------------------------------------------------------------- trainer.c, variant.c */

typedef struct train_options {
  kf_comm *comm;
  kf_model model;
  train_data_options data; /* rank and n_ranks are the comm's */
  kf_isa isa;
  int64_t keep_bytes;                        /* as in train_net_options */
  double lr;                                 /* 0: 1e-3 */
  int64_t warmup;                            /* steps until lr is reached; 0: 10 */
  double weight_decay, clip_norm, ema_decay; /* 0: 0.01, 1, 0.999 */
  uint64_t seed;                             /* of the first parameters */
  int32_t ranks_here;                        /* that share this machine's memory; 0: 1 */
} train_options;

/* Zeros become the defaults. */
void train_options_complete(train_options *options);

/* What an optimiser keeps: parameters, first and second moments, averages; (params->n_floats) each.
** */
typedef struct train_state {
  float *p, *m, *v, *ema;
  int64_t n_updates;
} train_state;

/* AdamW with gradients that are sums: `grad_scale` makes them means, then they are clipped. Returns
** the norm before that. */
double train_update(const train_params *params, const train_pointwise *pw,
                    const train_options *options, double grad_scale, const float *grads,
                    train_state *state);

/* What all variants of training share on this rank: ranks, data, network, gradients. */
typedef struct train_job train_job;

kf_status train_job_create(const train_options *options, train_job **out);
void train_job_free(train_job *job);
train_data *train_job_data(train_job *job);

/* One variant of training: its parameters, its optimiser, its scheduler. */
typedef struct train_variant train_variant;

/* What a token's way there and back moves, in the direction that has more: its row and the gradient
** of its prediction. For kf_cost. */
#define TRAIN_ROUTE_BYTES (sizeof(train_row) + TRAIN_VALUES * sizeof(float))

/* `options`: of the scheduler. Without the balancer every sequence stays at home, and only the cost
** and the number of ranks count. */
kf_status train_variant_create(train_job *job, const kf_scheduler_options *options, bool balance,
                               train_variant **out);
void train_variant_free(train_variant *variant);
kf_scheduler *train_variant_scheduler(train_variant *variant);

const train_params *train_job_params(const train_job *job);

/* A variant's parameters and their average, and the last step's gradients before they were scaled
** and clipped: sums over all ranks and values. All (params->n_floats). */
float *train_variant_params(train_variant *variant);
const float *train_variant_average(const train_variant *variant);
const float *train_job_grads(const train_job *job);

/* What a step was, on all ranks the same. */
typedef struct train_result {
  int64_t step;
  double loss;                 /* mean of the squared errors of all visual values of all ranks */
  double grad_norm;            /* before clipping */
  double step_s;               /* wall time of the slowest rank */
  int64_t n_tokens;            /* of all ranks */
  const kf_counters *counters; /* (n_ranks) this and the next two: until the variant's next step */
  const double *busy_s;        /* (n_ranks) */
  const kf_plan *plan;
} train_result;

/* Train on the samples of step `step`. Collective: a rank that runs out of memory tells the others.
** What is in *out lives until the job's next step. */
kf_status train_run_step(train_job *job, train_variant *variant, int64_t step, train_result *out);

/* How far two variants that began alike have come apart: the L2 norm of the difference of their
** parameters over that of what the first has changed since the start. Needs another block of
** parameters for the while. */
kf_status train_variant_difference(const train_variant *a, const train_variant *b, double *out);

/* Have all ranks the same parameters, bit for bit? They must. Collective. */
kf_status train_check_ranks(train_job *job, const train_variant *variant);

/* -------------------------------------------------------------------------- record.c */

/* All steps of a variant. Begin with {.n_ranks = n}. */
typedef struct train_record {
  int32_t n_ranks;
  int64_t n_steps, cap;
  int64_t *step, *tokens;
  double *step_s, *loss; /* (n_steps) */
  double *busy_s;        /* (n_steps, n_ranks) */
  kf_counters *counters; /* (n_steps, n_ranks) */
} train_record;

kf_status train_record_add(train_record *record, const train_result *result);
void train_record_clear(train_record *record);

typedef struct train_summary {
  int64_t n_steps;
  double median_s, p95_s; /* of a step */
  double tokens_per_s;    /* median over steps, as what follows */
  double max_over_mean;   /* of busy time */
  double idle_variance;   /* deviation over ranks of the idle share of a step */
} train_summary;

kf_status train_summarise(const train_record *record, train_summary *out);

double train_max_over_mean(const double *busy_s, int32_t n_ranks);

/* Of all steps: the share of its time that a rank was busy. */
double train_busy_share(const train_record *record, int32_t rank);

typedef struct train_comparison {
  double speedup;  /* ratio of the median step times */
  double ideal;    /* max/mean of busy without the balancer: what perfect balance would bring */
  double realised; /* speedup / ideal */
  double max_over_mean_before, max_over_mean_after;
  double loss_max_rel_diff;
} train_comparison;

kf_status train_compare(const train_record *without, const train_record *with,
                        train_comparison *out);

#endif
