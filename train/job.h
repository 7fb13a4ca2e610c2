/* SPDX-License-Identifier: Apache-2.0 */
/* Inside a training job: what measure.c, trainer.c and variant.c share. */
#ifndef TRAIN_JOB_H
#define TRAIN_JOB_H

#include "buffer.h"

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
};

struct train_variant {
  train_job *job;
  kf_scheduler *scheduler;
  kf_step *step;
  float *block; /* of `state`, one after the other */
  train_state state;
};

#endif
