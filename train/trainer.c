/* SPDX-License-Identifier: Apache-2.0 */
/*
** One step of training on ranks.
**
**     schedule   lengths are gathered, every rank makes the same plan
**     route      rows of 88 bytes go where they are computed: values, word, position, time, label
**     forward    embedding, blocks, predictions of 16 values a row
**     reverse    predictions go home
**     loss       at home, where the targets are
**     route      gradients of the predictions go where the rows are
**     backward   gradients of all parameters
**     reduce     summed over ranks, scaled by the number of values of all ranks
**     update     the same on every rank
**     tell       times are gathered, and learned from
**
** Tokens are embedded where they are computed, not at home: so a row travels as 88 bytes instead of
** 4 d, and nothing of the embedding's gradient travels at all. All three routes of a step take a
** third of a millisecond where the step takes four seconds (2 ranks, DiT-S, 5000 tokens). That is
** why they do not run beside the computation: there is nothing to hide.
**
** Ranks that wait for others do so at a barrier of its own before each exchange, so that waiting
** and moving are told apart: a rank's busy time is what the scheduler learns from.
*/
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "job.h"

/* ---------------------------------------------------------------------- the object */

void train_options_complete(train_options *o) {
  if (o->ranks_here < 1) o->ranks_here = 1;
  if (!(o->lr > 0)) o->lr = 1e-3;
  if (o->warmup == 0) o->warmup = 10;
  if (!(o->weight_decay > 0)) o->weight_decay = 0.01;
  if (!(o->clip_norm > 0)) o->clip_norm = 1;
  if (!(o->ema_decay > 0)) o->ema_decay = 0.999;
}

kf_status train_job_create(const train_options *options, train_job **out) {
  kf_status status;
  train_job *job = calloc(1, sizeof *job);
  if (!job) return kf_fail(KF_ENOMEM, "out of memory: a training job");
  job->o = *options;
  train_options_complete(&job->o);
  job->rank = job->o.data.rank = kf_comm_rank(options->comm);
  job->n_ranks = job->o.data.n_ranks = kf_comm_size(options->comm);
  train_net_options net = {options->model, options->isa, options->keep_bytes};
  if ((status = train_params_of(&options->model, &job->params))) goto fail;
  if ((status = train_net_create(&net, &job->net))) goto fail;
  if ((status = train_data_create(&job->o.data, &job->data))) goto fail;
  job->pw = train_pointwise_of(options->isa);
  job->grads = aligned_alloc(64, (size_t)job->params.n_floats * sizeof(float));
  if (!job->grads) {
    status = kf_fail(KF_ENOMEM, "out of memory: the gradients of a training job");
    goto fail;
  }
  *out = job;
  return KF_OK;

fail:
  train_job_free(job);
  return status;
}

void train_job_free(train_job *job) {
  if (!job) return;
  train_data_free(job->data);
  train_net_free(job->net);
  free(job->grads);
  free(job->row.data), free(job->values.data), free(job->home.data);
  free(job->seq_off.data);
  kf_exchange_free(job->route);
  kf_exchange_free(job->ulysses);
  free(job);
}

train_data *train_job_data(train_job *job) { return job->data; }
const train_params *train_job_params(const train_job *job) { return &job->params; }
const float *train_job_grads(const train_job *job) { return job->grads; }

/* ------------------------------------------------------------------------ the step */

/* What is under way on this rank. */
typedef struct train_step {
  train_job *job;
  train_variant *variant;
  train_batch batch;
  const kf_plan *plan;
  train_pack pack;
  train_clock clock;
  double sum[2]; /* squared errors; values that count. Of this rank, then of all */
} train_step;

enum { VALUE_BYTES = TRAIN_VALUES * sizeof(float) };

static kf_status meet(train_step *p) {
  train_clock_lap(&p->clock, TRAIN_PHASE_COMPUTE);
  kf_status status = kf_comm_barrier(p->job->o.comm);
  train_clock_lap(&p->clock, TRAIN_PHASE_WAIT);
  return status;
}

static kf_status schedule(train_step *p) {
  kf_rank_batch mine = {
    .n_seqs = p->batch.n_seqs, .len = p->batch.len, .profile = p->batch.profile};
  kf_status status =
    kf_step_schedule(p->variant->step, p->variant->scheduler, &mine, NULL, &p->plan);
  train_clock_lap(&p->clock, TRAIN_PHASE_PLAN);
  return status;
}

/* Who sends what, by the plan. */
static kf_status make_tables(const train_step *p) {
  train_job *job = p->job;
  kf_status status = kf_exchange_renew(p->plan, job->rank, KF_EXCHANGE_ROUTE, 0, &job->route);
  if (status) return status;
  return kf_exchange_renew(p->plan, job->rank, KF_EXCHANGE_ULYSSES_SPLIT, 0, &job->ulysses);
}

static kf_status reserve(train_step *p) {
  train_job *job = p->job;
  int64_t held = job->route->n_units[1], n_seqs = job->route->part_off[KF_N_PARTS];
  kf_status status = train_reserve(&job->row, held * (int64_t)sizeof(train_row), "rows");
  if (!status) status = train_reserve(&job->values, held * VALUE_BYTES, "values");
  if (!status) status = train_reserve(&job->home, p->batch.n_rows * VALUE_BYTES, "predictions");
  if (!status) status = train_reserve(&job->seq_off, (n_seqs + 1) * 8, "a step's sequences");
  return status;
}

/* What this rank computes: the rows that it holds, in their order. */
static void make_pack(train_step *p) {
  train_job *job = p->job;
  const kf_exchange *x = job->route;
  int64_t *seq_off = job->seq_off.data, n_seqs = x->part_off[KF_N_PARTS];
  seq_off[0] = 0;
  for (int64_t i = 0; i < n_seqs; i++) seq_off[i + 1] = seq_off[i] + x->held[i].length;
  p->pack = (train_pack){.n_rows = x->n_units[1],
                         .n_seqs = n_seqs,
                         .row = job->row.data,
                         .seq_off = seq_off,
                         .clock = &p->clock};
  if (!job->ulysses->busy) return;
  p->pack.n_split = x->part_off[KF_PART_EARLY];
  p->pack.n_early = x->part_off[KF_PART_LATE] - x->part_off[KF_PART_EARLY];
  p->pack.comm = job->o.comm;
  p->pack.exchange = job->ulysses;
}

/* Squared errors of what came home; predictions become their gradients. */
static void make_loss(train_step *p) {
  float *home = p->job->home.data;
  const train_batch *b = &p->batch;
  double sum = 0;
  for (int64_t i = 0; i < b->n_rows; i++) {
    float *row = home + i * TRAIN_VALUES;
    const float *target = b->target + i * TRAIN_VALUES;
    for (int64_t j = 0; j < TRAIN_VALUES; j++) {
      float error = b->row[i].word < 0 ? row[j] - target[j] : 0; /* text predicts nothing */
      sum += (double)error * error;
      row[j] = 2 * error;
    }
  }
  p->sum[0] = sum;
  p->sum[1] = (double)(b->n_visual * TRAIN_VALUES);
}

static kf_status forward(train_step *p) {
  train_job *job = p->job;
  int64_t n_home = p->batch.n_rows, n_held = p->pack.n_rows;
  kf_tensor home = {(void *)p->batch.row, n_home, sizeof(train_row), 0};
  kf_tensor held = {job->row.data, n_held, sizeof(train_row), 0};
  kf_tensor prediction = {job->values.data, n_held, VALUE_BYTES, 0};
  kf_tensor result = {job->home.data, n_home, VALUE_BYTES, 0};
  kf_status status = kf_exchange_forward(job->o.comm, job->route, 1, &home, &held);
  if (status) return status;
  train_clock_lap(&p->clock, TRAIN_PHASE_MOVE);
  status = train_net_forward(job->net, p->variant->state.p, &p->pack, job->values.data);
  if (status) return status;
  if (job->route->busy && (status = meet(p))) return status;
  status = kf_exchange_reverse(job->o.comm, job->route, 1, &prediction, &result);
  train_clock_lap(&p->clock, TRAIN_PHASE_MOVE);
  return status;
}

static kf_status backward(train_step *p) {
  train_job *job = p->job;
  kf_tensor home = {job->home.data, p->batch.n_rows, VALUE_BYTES, 0};
  kf_tensor held = {job->values.data, p->pack.n_rows, VALUE_BYTES, 0};
  kf_status status = KF_OK;
  if (job->route->busy && (status = meet(p))) return status;
  if ((status = kf_exchange_forward(job->o.comm, job->route, 1, &home, &held))) return status;
  train_clock_lap(&p->clock, TRAIN_PHASE_MOVE);
  return train_net_backward(job->net, p->variant->state.p, &p->pack, job->values.data, job->grads);
}

/* The sum over ranks, and the update. */
static kf_status reduce_and_update(train_step *p, train_result *out) {
  train_job *job = p->job;
  kf_comm *comm = job->o.comm;
  kf_status status;
  if ((status = meet(p))) return status;
  status = kf_comm_reduce(comm, KF_SUM, KF_F64, 2, p->sum);
  if (status) return status;
  status = kf_comm_reduce(comm, KF_SUM, KF_F32, job->params.n_floats, job->grads);
  if (status) return status;
  train_clock_lap(&p->clock, TRAIN_PHASE_MOVE);
  double scale = p->sum[1] > 0 ? 1 / p->sum[1] : 0;
  out->loss = p->sum[0] * scale;
  out->grad_norm =
    train_update(&job->params, job->pw, &job->o, scale, job->grads, &p->variant->state);
  train_clock_lap(&p->clock, TRAIN_PHASE_COMPUTE);
  return KF_OK;
}

/* ------------------------------------------------------------------------ the figures */

static kf_counters count(const train_step *p) {
  const train_clock *c = &p->clock;
  struct rusage usage;
  long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  getrusage(RUSAGE_SELF, &usage);
  int64_t samples = 0; /* who has the first row of a sequence counts it */
  for (int64_t i = 0; i < p->pack.n_seqs; i++) samples += p->job->route->held[i].offset == 0;
  return (kf_counters){.memory_bytes = (int64_t)usage.ru_maxrss * 1024,
                       .memory_limit_bytes =
                         pages > 0 ? (int64_t)pages * page / p->job->o.ranks_here : 0,
                       .tokens = p->pack.n_rows,
                       .samples = samples,
                       .plan_s = c->cpu_s[TRAIN_PHASE_PLAN],
                       .route_s = c->cpu_s[TRAIN_PHASE_MOVE],
                       .compute_s = c->cpu_s[TRAIN_PHASE_COMPUTE],
                       .wait_s = c->wall_s[TRAIN_PHASE_WAIT]};
}

/* All ranks' times: the scheduler gathers, learns from and shows them. */
static kf_status tell(train_step *p, train_result *out) {
  train_job *job = p->job;
  kf_scheduler *scheduler = p->variant->scheduler;
  kf_counters mine = count(p);
  double busy_s = train_clock_busy(&p->clock);
  out->step_s = train_clock_wall(&p->clock);
  kf_status status = kf_scheduler_update_stats(scheduler, job->rank, busy_s, &mine);
  if (status) return kf_comm_fail(job->o.comm, kf_last_error()), status;
  status = kf_step_settle(p->variant->step, scheduler);
  if (!status) status = kf_comm_reduce(job->o.comm, KF_MAX, KF_F64, 1, &out->step_s);
  if (status) return status;
  const kf_metrics *m = kf_scheduler_metrics(scheduler);
  out->counters = m->counters;
  out->busy_s = m->busy_s;
  out->n_tokens = p->plan->figures.tokens;
  out->plan = p->plan;
  return KF_OK;
}

static kf_status run(train_step *p, int64_t step, train_result *out) {
  train_job *job = p->job;
  kf_status status;
  if ((status = train_data_step(job->data, step, &p->batch))) return status;
  if ((status = kf_comm_barrier(job->o.comm))) return status; /* all begin at once */
  train_clock_start(&p->clock);
  if ((status = schedule(p))) return status;
  if ((status = make_tables(p))) return status;
  if ((status = reserve(p))) return status;
  make_pack(p);
  if ((status = forward(p))) return status;
  make_loss(p);
  if ((status = backward(p))) return status;
  if ((status = reduce_and_update(p, out))) return status;
  return tell(p, out);
}

kf_status train_run_step(train_job *job, train_variant *variant, int64_t step, train_result *out) {
  train_step p = {.job = job, .variant = variant};
  train_result result = {.step = step};
  kf_status status = run(&p, step, &result);
  if (!status) *out = result;
  if (status == KF_ENOMEM) kf_comm_fail(job->o.comm, kf_last_error()); /* this rank's own trouble */
  return status;
}
