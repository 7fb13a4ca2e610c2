/* SPDX-License-Identifier: Apache-2.0 */
/* Inside a training job: what variant.c and trainer.c share. */
#ifndef TRAIN_JOB_H
#define TRAIN_JOB_H

#include "buffer.h"

/* Neighbouring rows of one sequence: as they are held, and as they are computed. */
typedef struct train_run {
  int64_t from, to, n_rows;
} train_run;

/* group.c: the order of a rank's rows. */
typedef struct train_group {
  train_buffer memory;
  int64_t n_runs;
  train_run *run;   /* (n_runs) */
  int64_t *seq_off; /* (n_runs + 1) */
  int64_t n_seqs[TRAIN_N_PARTS];
  kf_plan view; /* in which this rank holds parts of split sequences only; its arrays: */
  int64_t *hold, *hold_off, *hold_row, *hold_rows, *segment_off;
  kf_segment *segment;
} train_group;

kf_status train_group_rows(const kf_plan *plan, const kf_cost *cost, int32_t rank,
                           train_group *group);

/* Rows from the order in which they are held to that in which they are computed; or back. */
void train_group_move(const train_group *group, int64_t row_bytes, const void *from, void *to,
                      bool back);

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
  float *grads; /* (params.n_floats) */
  train_group group;
  train_buffer held_row, held_values; /* (T, ..) in the order of the plan */
  train_buffer row, values; /* (T, ..) in the order of the group: predictions, gradients */
  train_buffer home;        /* predictions at home, then their gradients */
  train_note *note;         /* (n_ranks) */
  kf_counters *counters;    /* (n_ranks) */
  double *busy_s;           /* (n_ranks) */
};

struct train_variant {
  train_job *job;
  kf_scheduler *scheduler;
  kf_step *step;
  float *block; /* of `state`, one after the other */
  train_state state;
};

#endif
