/* SPDX-License-Identifier: Apache-2.0 */
/*
** One rank of a small training job: all of transport, in the order of a training step, on any comm.
** Memory is taken when the job is made, so that what a step allocates is the library's.
*/
#ifndef TRAIN_JOB_TOOL_H
#define TRAIN_JOB_TOOL_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dice.h"

enum { JOB_HEADS = 4, JOB_HEAD_BYTES = 6, JOB_SEQS = 6, JOB_LEN = 400, JOB_GRADS = 700 };
enum { JOB_ROW = JOB_HEADS * JOB_HEAD_BYTES };

typedef struct job {
  kf_comm *comm;
  kf_step *step;
  kf_planner *planner;
  const kf_plan *plan;
  int64_t n_seqs, len[JOB_SEQS];
  char *home, *held, *pairs, *joined, *back; /* each has room for all rows of all ranks */
  float grads[JOB_GRADS];
} job;

/* Not collective. false: no memory. */
static inline bool job_create(job *j, kf_comm *comm) {
  kf_planner_options o = {0};
  size_t n = (size_t)kf_comm_size(comm) * JOB_SEQS * JOB_LEN * JOB_ROW;
  *j = (job){.comm = comm};
  if (kf_cost_preset("d=64,layers=3,heads=4", "free", kf_comm_size(comm), 0.4, &o.cost) ||
      kf_planner_create(&o, &j->planner) || !(j->home = malloc(5 * n)))
    return false;
  j->held = j->home + n;
  j->pairs = j->held + n;
  j->joined = j->pairs + n;
  j->back = j->joined + n;
  return true;
}

static inline void job_free(job *j) {
  kf_step_free(j->step);
  kf_planner_free(j->planner);
  free(j->home);
}

/* This rank's sequences and rows of a step. Rank 0 often has a long one: it gets split. */
static inline void job_draw(job *j, uint64_t seed) {
  int32_t me = kf_comm_rank(j->comm);
  dice d = {seed * 1000003 + (uint64_t)me};
  int64_t n = 0;
  dice_next(&d);
  j->n_seqs = dice_int(&d, JOB_SEQS + 1);
  if (me == 0 && j->n_seqs == 0) j->n_seqs = 1;
  for (int64_t i = 0; i < j->n_seqs; i++) {
    j->len[i] = me == 0 && i == 0 ? JOB_LEN - 3 : dice_int(&d, 60);
    n += j->len[i];
  }
  for (int64_t i = 0; i < n * JOB_ROW; i++) j->home[i] = (char)dice_next(&d);
  memset(j->held, 1, 4 * (size_t)(j->held - j->home));
  for (int i = 0; i < JOB_GRADS; i++) j->grads[i] = (float)(me + i);
}

/* NULL, or what a step left wrong. */
static inline const char *job_wrong(const job *j) {
  int32_t n = kf_comm_size(j->comm);
  size_t n_bytes = (size_t)j->plan->home_rows[kf_comm_rank(j->comm)] * JOB_ROW;
  if (memcmp(j->home, j->back, n_bytes) != 0) return "other rows came back than went out";
  for (int i = 0; i < JOB_GRADS; i++) /* whole numbers: every order of adding is exact */
    if (j->grads[i] != (float)(n * (n - 1) / 2 + n * i)) return "a sum is wrong";
  return NULL;
}

/* All calls of a step, up to the first that fails. Creates j->step where there is none yet. */
static inline kf_status job_step(job *j) {
  int32_t me = kf_comm_rank(j->comm);
  const kf_batch *batch;
  const kf_plan *p;
  kf_status status;
  if (!j->step && (status = kf_step_create(j->comm, 0, &j->step))) return status;
  kf_rank_batch mine = {j->n_seqs, j->len, NULL, NULL, NULL};
  if ((status = kf_step_gather(j->step, &mine, &batch, NULL))) return status;
  if ((status = kf_step_plan(j->step, j->planner, &p))) return status;
  j->plan = p;
  kf_tensor home = {j->home, p->home_rows[me], JOB_ROW, 0};
  kf_tensor back = {j->back, p->home_rows[me], JOB_ROW, 0};
  kf_tensor held = {j->held, p->hold_rows[me], JOB_ROW, 0};
  kf_tensor joined = {j->joined, p->hold_rows[me], JOB_ROW, 0};
  kf_tensor pairs = {j->pairs, kf_ulysses_pairs(p, me), JOB_HEAD_BYTES, 0};
  if ((status = kf_route_forward(j->comm, p, 1, &home, &held))) return status;
  if ((status = kf_ulysses_out(j->comm, p, 1, &held, &pairs))) return status;
  if ((status = kf_ulysses_back(j->comm, p, 1, &pairs, &joined))) return status;
  if ((status = kf_route_reverse(j->comm, p, 1, &joined, &back))) return status;
  if ((status = kf_comm_reduce(j->comm, KF_SUM, KF_F32, JOB_GRADS, j->grads))) return status;
  return kf_comm_barrier(j->comm);
}

#endif
