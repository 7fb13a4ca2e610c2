/* SPDX-License-Identifier: Apache-2.0 */
/* Inside a training job: what way.c and trainer.c share. */
#ifndef TRAIN_JOB_H
#define TRAIN_JOB_H

#include <stddef.h>

#include "train.h"

/* Memory that grows and is kept. */
typedef struct train_buffer {
  void *data;
  int64_t cap_bytes;
} train_buffer;

/* At least n_bytes, what it held is lost; `what` is for the message. */
kf_status train_reserve(train_buffer *buffer, int64_t n_bytes, const char *what);

/* What a rank tells the others of its step. */
typedef struct train_note {
  double busy_s, step_s;
  kf_counters counters;
} train_note;

struct train_job {
  train_options o;
  train_params params;
  int32_t rank, n_ranks;
  train_data *data;
  train_net *net;
  const train_pointwise *pw;
  float *grads;                           /* (params.n_floats) */
  train_buffer row, prediction, gradient; /* as held: (T, ..) */
  train_buffer home;                      /* predictions at home, then their gradients */
  train_buffer seq_off;
  train_note *note;      /* (n_ranks) */
  kf_counters *counters; /* (n_ranks) */
  double *busy_s;        /* (n_ranks) */
};

struct train_way {
  train_job *job;
  bool balanced;
  kf_config config;
  kf_scheduler *scheduler;
  kf_step *step;
  float *block; /* parameters, first moments, second moments, averages: (params.n_floats) each */
  float *p, *m, *v, *ema;
  int64_t n_updates;
};

/* AdamW with gradients that are sums over all ranks' values: `grad_scale` makes them means, and
** they are clipped. Returns the norm before that. */
double train_way_update(train_way *way, double grad_scale);

#endif
