/* SPDX-License-Identifier: Apache-2.0 */
/* Inside a training job: what group.c, measure.c, trainer.c and variant.c share. */
#ifndef TRAIN_JOB_H
#define TRAIN_JOB_H

#include "buffer.h"

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
  float *grads;                 /* (params.n_floats) */
  kf_exchange *route, *ulysses; /* of this step */
  train_buffer seq_off;         /* of this step's pack */
  train_buffer row, values;     /* (T, ..) as held: rows; predictions, then their gradients */
  train_buffer home;            /* predictions at home, then their gradients */
  train_note *note;             /* (n_ranks) */
  kf_counters *counters;        /* (n_ranks) */
  double *busy_s;               /* (n_ranks) */
};

struct train_variant {
  train_job *job;
  kf_config config;
  kf_scheduler *scheduler;
  kf_step *step;
  float *block; /* of `state`, one after the other */
  train_state state;
};

#endif
