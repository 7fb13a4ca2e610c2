/* SPDX-License-Identifier: Apache-2.0 */
/*
** What is learned from measured times: history.c tells how.
**
**     plan --load--> loads, and the seconds expected          once a step
**     measured --observe--> rows                              once a step
**     rows --refit--> cost, speeds, corrections               every rebalance_interval steps
*/
#ifndef KFI_HISTORY_H
#define KFI_HISTORY_H

#include <stdbool.h>

#include "../memory.h"
#include "../status.h"
#include "regression.h"

enum {
  KFI_CLASSES = 24, /* 4 kinds x 6 resolutions */
  KFI_RECENT = 5    /* steps that must agree before a jump is believed */
};

/* The shared parameters, in the order of a kfi_regression's; the classes that were seen follow. */
enum { KFI_LINEAR, KFI_QUADRATIC, KFI_CONSTANT, KFI_OVERHEAD, KFI_COMM, KFI_FIRST_CLASS };

/*
** The model: rank r is expected to be busy for
**
**     slow_r * (sum over classes c of e^correction_c * (A tokens + B tokens^2 + C sequences) + E)
**       + comm_scale * comm_r
**
** with what the plan gives it of each class. C and E are kept in tokens (C = A * constant_tokens),
** so that a change of the clock leaves them alone; slow_r and the corrections as logarithms.
*/
typedef struct kfi_law {
  double linear_s, quadratic_s;
  double constant_tokens, overhead_tokens, comm_scale;
  double correction[KFI_CLASSES]; /* by slot */
} kfi_law;

/* What a rank got of one class: sums over its chunks, each times the sequence's own factor. */
typedef struct kfi_load {
  double tokens, squares, count;
} kfi_load;

typedef struct kfi_history {
  int32_t n_ranks, n_slots;
  int32_t slot_of[KFI_CLASSES], class_of[KFI_CLASSES]; /* slots in order of appearance; -1: none */
  kfi_law law, anchor;        /* what is believed; what it started from, and jumped with */
  double factor[KFI_CLASSES]; /* e^correction of the law, by slot */
  kfi_law error;              /* standard errors of the last refit: relative, or in tokens */
  double noise;               /* relative error of one predicted time */
  double scatter;     /* of a rank's times about their own middle: noise, were the law right */
  double rank_tokens; /* what a rank's step is worth in tokens, a running mean */
  int64_t n_steps;    /* with times */
  int64_t n_outliers;
  bool ranks_differ; /* by the last refit before the law had settled: not alike from the start */
  double *slow, *slow_anchor, *slow_start; /* (n_ranks) logarithms */
  kfi_regression regression;               /* all rows, fading */
  kfi_regression recent;                   /* scratch: the last rows alone */

  int64_t *n_rows;               /* (n_ranks) so far; row k stands at k % KFI_RECENT */
  double *row_x, *row_a, *row_z; /* (n_ranks, KFI_RECENT, KFI_PARAMS), and without the last */
  kfi_load *load;                /* (n_ranks, KFI_CLASSES) of the last plan, by slot */
  double *comm_s, *predicted_s;  /* (n_ranks) of the last plan */
  double *seconds;               /* (n_ranks) of the step; 0: not measured */
  double *u, *scratch, *rank_mean, *rank_precision; /* (n_ranks) */
} kfi_history;

/* The class of a sequence; 0 is "nothing known", which has no correction. */
int32_t kfi_class(const kf_profile *profile);
/* Its kind, and its resolution: 256, 512, .. 4096, or 0. */
void kfi_class_name(int32_t class_number, int32_t *kind, int32_t *resolution);

/* Lay the arrays out; `start` fills them. */
void kfi_history_lay(kfi_history *h, kfi_layout *lay);
void kfi_history_start(kfi_history *h, const kf_cost *cost, const double *speed);

/* After somebody else has set the law: what follows from it. */
void kfi_history_refresh(kfi_history *h);

/* Note what a plan gives each rank, and predict its time. */
void kfi_history_load(kfi_history *h, const kf_batch *batch, const kf_plan *plan);

/* One step's times are in h->seconds. Returns whether something jumped. */
bool kfi_history_observe(kfi_history *h);

/* Solve for what the rows say. The law is then what plans should be made with. */
void kfi_history_refit(kfi_history *h);

/* The standard error of a rank's log slowness. */
double kfi_history_rank_error(const kfi_history *h, int32_t rank);

/* What to plan with where a difference was learned with this error: what may be noise counts
** little, and nothing within three errors. */
double kfi_trust(double difference, double error);

#endif
