/* SPDX-License-Identifier: Apache-2.0 */
/*
** The cost that the first plans are made with, from this machine: one block of the model is timed
** on sequences of several lengths, forward and backward, and links by sending a megabyte around. It
** takes about a second. The scheduler learns from there; a plan made with FLOP/s of another machine
** would weigh moving against computing wrongly until it has.
*/
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"

enum { N_LENGTHS = 4, N_ROUNDS = 3, LONGEST = 1024, SHORTEST = 64 };

/* ------------------------------------------------------------------------ computing */

typedef struct bench {
  train_net *net;
  float *params, *grads, *values;
  train_row *row;
} bench;

/* CPU seconds of one sequence, there and back. */
static kf_status time_sequence(bench *b, int64_t len, double *seconds) {
  const int64_t seq_off[2] = {0, len};
  train_clock clock;
  train_pack pack = {.n_rows = len, .n_seqs = 1, .row = b->row, .seq_off = seq_off};
  train_clock_start(&clock);
  kf_status status = train_net_forward(b->net, b->params, &pack, b->values);
  if (!status) status = train_net_backward(b->net, b->params, &pack, b->values, b->grads);
  train_clock_lap(&clock, TRAIN_PHASE_COMPUTE);
  *seconds = train_clock_busy(&clock);
  return status;
}

static kf_status fit_block(bench *b, int64_t longest, kf_fit *fit) {
  kf_fit_row row[N_LENGTHS * N_ROUNDS];
  int n = 0;
  double cold;
  kf_status status = time_sequence(b, longest, &cold); /* pages are touched, BLAS wakes up */
  for (int round = 0; round < N_ROUNDS; round++)
    for (int64_t i = 0, len = longest; i < N_LENGTHS && !status; i++, len /= 2, n++) {
      row[n] = (kf_fit_row){.len = len};
      status = time_sequence(b, len, &row[n].seconds);
    }
  return status ? status : kf_fit_rows(row, n, NULL, NULL, fit);
}

static kf_status measure_block(const kf_model *model, kf_isa isa, kf_fit *fit) {
  kf_model one = {model->dim, 1, model->heads};
  train_params params;
  train_net_options options = {.model = one, .isa = isa};
  bench b = {0};
  double shrink =
    384.0 * 384.0 / ((double)model->dim * model->dim); /* a second, whatever the width */
  int64_t longest = (int64_t)fmin(LONGEST, fmax(8 * SHORTEST, LONGEST * shrink));
  kf_status status = train_params_of(&one, &params);
  if (!status) status = train_net_create(&options, &b.net);
  if (status) return status;
  b.params = calloc((size_t)params.n_floats, sizeof(float));
  b.grads = malloc((size_t)params.n_floats * sizeof(float));
  b.values = malloc((size_t)(longest * TRAIN_VALUES) * sizeof(float));
  b.row = calloc((size_t)longest, sizeof *b.row);
  if (b.params && b.grads && b.values && b.row) {
    train_params_init(&params, 1, b.params);
    for (int64_t i = 0; i < longest; i++) b.row[i].word = -1, b.row[i].time = 0.5f;
    status = fit_block(&b, longest, fit);
  } else {
    status = kf_fail(KF_ENOMEM, "out of memory: one block to be timed");
  }
  train_net_free(b.net);
  free(b.params), free(b.grads), free(b.values), free(b.row);
  return status;
}

/* -------------------------------------------------------------------------- links */

/* A megabyte goes to the next rank, some times; the shortest counts. */
static kf_status measure_bandwidth(kf_comm *comm, double *bytes_per_s) {
  enum { BYTES = 1 << 20, ROUNDS = 5 };
  int32_t n = kf_comm_size(comm), rank = kf_comm_rank(comm);
  int64_t *count = calloc(2 * (size_t)n, sizeof *count);
  char *data = calloc(2, BYTES);
  double best = INFINITY;
  kf_status status = KF_OK;
  if (!count || !data) status = kf_fail(KF_ENOMEM, "out of memory: a megabyte to be sent");
  for (int i = 0; i < ROUNDS && !status; i++) {
    train_clock clock;
    count[(rank + 1) % n] = count[n + (rank + n - 1) % n] = BYTES;
    if ((status = kf_comm_barrier(comm))) break;
    train_clock_start(&clock);
    status = kf_comm_alltoallv(comm, data, count, data + BYTES, count + n);
    train_clock_lap(&clock, TRAIN_PHASE_MOVE);
    best = fmin(best, train_clock_wall(&clock));
  }
  *bytes_per_s = BYTES / best;
  free(count);
  free(data);
  return status;
}

static kf_status measure_latency(kf_comm *comm, double *seconds) {
  enum { ROUNDS = 20 };
  double best = INFINITY;
  kf_status status = KF_OK;
  for (int i = 0; i < ROUNDS && !status; i++) {
    train_clock clock;
    train_clock_start(&clock);
    status = kf_comm_barrier(comm);
    train_clock_lap(&clock, TRAIN_PHASE_WAIT);
    best = fmin(best, train_clock_wall(&clock));
  }
  *seconds = best;
  return status;
}

/* ---------------------------------------------------------------------------- all */

kf_status train_measure(kf_comm *comm, const kf_model *model, kf_isa isa, bool links,
                        kf_cost *cost) {
  enum { LINEAR, QUADRATIC, BANDWIDTH, LATENCY, N };
  double sum[N] = {0}, n = kf_comm_size(comm);
  kf_fit fit;
  kf_status status = measure_block(model, isa, &fit);
  if (!status && links && n > 1) status = measure_bandwidth(comm, &sum[BANDWIDTH]);
  if (!status && links && n > 1) status = measure_latency(comm, &sum[LATENCY]);
  if (status) return status;
  sum[LINEAR] = fit.linear_s;
  sum[QUADRATIC] = fit.quadratic_s;
  if ((status = kf_comm_reduce(comm, KF_SUM, KF_F64, N, sum))) return status;
  cost->linear_s = model->layers * sum[LINEAR] / n;
  cost->quadratic_s = model->layers * sum[QUADRATIC] / n;
  cost->constant_s =
    cost->linear_s / 2; /* its modulation: 12 d^2 a block, where a token has 24 d^2 */
  if (!links || n < 2) return KF_OK;
  cost->cluster.intra_Bps = cost->cluster.inter_Bps = sum[BANDWIDTH] / n;
  cost->cluster.latency_s = sum[LATENCY] / n;
  return KF_OK;
}
