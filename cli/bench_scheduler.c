/* SPDX-License-Identifier: Apache-2.0 */
/*
** knapformer bench scheduler: what learning costs, and how well it predicts.
**
** Overhead: 32 ranks, the joint mix, a refit at every step. One scheduler's step (32 times
** reported, learned from, refitted, planned) and the bare planner's plan of the same batch, in
** turn; the difference is what the scheduler adds. Before anything is timed, both must give the
** same plan.
**
** Prediction: real work of a DiT block on this machine's CPU, matrix products of the held tokens
** and attention of the owned heads, for four ranks that are run one after the other as the plan
** says. Lengths are drawn log-uniformly from 256 to 16384. The scheduler starts from a guess that
** is wrong by design; after the first half of the steps, each rank's time is compared with what was
** predicted before it was measured. The same work is then done once more: how far two times of one
** work differ says what no prediction can beat on this machine at this hour.
*/
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cblas.h>

#include "bench.h"

static const char name[] = "bench scheduler";

static const char help[] =
  "usage: knapformer bench scheduler [--rounds N] [--steps N] [--json]\n"
  "\n"
  "Time what the scheduler adds to a plan, and measure how well it predicts real work.\n"
  "\n"
  "  --rounds N    timed steps of 32 ranks; default 1000\n"
  "  --steps N     steps of real attention and matrix products, 0 to 1000; default 40\n"
  "  --json        {\"rows\": [...], \"prediction_mape\": ..., \"repetition_mape\": ...}\n"
  "\n"
  "scheduler_update: 32 times reported and learned from. scheduler_step: that, a refit, and what\n"
  "else a step takes beside its plan; ratio = that / the plan's own median. prediction_mape: mean "
  "of\n"
  "|predicted/measured - 1| over the ranks of the later half of the steps; its row has the\n"
  "measured times, and ratio = the sum of predicted / the sum of measured times. repetition_mape:\n"
  "the same for a second time of the same work in the place of the prediction.\n";

enum {
  RANKS = 32,
  WORK_RANKS = 4,
  WORK_SEQS = 2, /* a rank and step */
  HEADS = 4,
  HEAD_DIM = 32,
  DIM = HEADS * HEAD_DIM,
  SHORTEST = 256,
  LONGEST = 16384,
  MOST_STEPS = 1000
};

/* ------------------------------------------------------------------------ overhead */

/* Times that agree with the prediction: then the law stays, and so does the plan. */
static kf_status report(kf_scheduler *s, const kf_plan *plan) {
  kf_status status = KF_OK;
  for (int32_t r = 0; r < plan->n_ranks && !status; r++)
    status = kf_scheduler_update_stats(s, r, plan->compute_s[r] + plan->comm_s[r], NULL);
  return status;
}

static kf_status time_steps(kf_scheduler *s, kf_planner *planner, const kf_batch *batch,
                            int64_t rounds, bench_row *rows) {
  static double update[BENCH_MAX_ROUNDS], added[BENCH_MAX_ROUNDS], alone[BENCH_MAX_ROUNDS];
  const kf_plan *scheduled, *planned;
  kf_status status;
  for (int64_t i = -10; i < rounds; i++) {
    double start = cli_now_us();
    if ((status = kf_planner_plan(planner, batch, &planned))) return status;
    double plan_us = cli_now_us() - start;
    start = cli_now_us();
    if ((status = kf_scheduler_plan(s, batch, &scheduled))) return status;
    double step_us = cli_now_us() - start;
    if (i == -10 && scheduled->hash != planned->hash)
      return KF_EPLAN; /* then the last bits learn */
    if (fabs(scheduled->figures.step_s / planned->figures.step_s - 1) > 1e-3) return KF_EPLAN;
    start = cli_now_us();
    if ((status = report(s, scheduled))) return status;
    if ((status = kf_scheduler_settle(s))) return status;
    double update_us = cli_now_us() - start;
    if (i < 0) continue;
    update[i] = update_us;
    alone[i] = plan_us;
    added[i] = step_us + update_us - plan_us;
  }
  double plan_us = kf_quantile(alone, rounds, 0.5);
  const char *against = "the plan of the same step, 32x89";
  rows[0] = bench_row_of("scheduler_update", update, rounds, against, plan_us);
  rows[1] = bench_row_of("scheduler_step", added, rounds, against, plan_us);
  return KF_OK;
}

/* 0 or an exit code. */
static int overhead(int64_t rounds, bench_row *rows) {
  kf_scheduler_options options = {.rebalance_interval = 1};
  kf_scheduler *scheduler = NULL;
  kf_planner *planner = NULL;
  kf_batch *batch = NULL;
  kf_status status;
  if ((status = kf_mix_create("joint", 0, 0, &batch))) goto done;
  if ((status = kf_cost_preset(NULL, NULL, RANKS, KF_DEFAULT_GAMMA, &options.plan.cost))) goto done;
  if ((status = kf_planner_create(&options.plan, &planner))) goto done;
  if ((status = kf_scheduler_create(&options, &scheduler))) goto done;
  status = time_steps(scheduler, planner, batch, rounds, rows);

done:
  kf_scheduler_free(scheduler);
  kf_planner_free(planner);
  kf_batch_free(batch);
  if (status == KF_EPLAN)
    return cli_fail(EXIT_FAILED, name, "the scheduler's plan is not the planner's");
  return cli_exit_code(status, name, NULL);
}

/* ---------------------------------------------------------------------- prediction */

/* What a rank's work needs; one rank runs at a time, so all share it. */
typedef struct work {
  float *tokens, *wide, *weight; /* (rows, DIM), (rows, 4 DIM), (4 DIM, DIM) */
  float *q, *o;                  /* (rows of q, k and v), (rows) of DIM */
  void *workspace;
  int64_t workspace_bytes, block; /* rows that a product takes at a time */
} work;

static bool work_create(work *w) {
  const kf_segment most = {.rows = LONGEST, .heads = HEADS};
  kf_attention a = {.n_segments = 1, .segment = &most, .head_dim = HEAD_DIM};
  *w = (work){.block = 4096, .workspace_bytes = kf_attention_workspace(&a)};
  w->workspace_bytes = (w->workspace_bytes + 63) / 64 * 64;
  w->tokens = calloc((size_t)w->block * DIM, sizeof(float));
  w->wide = calloc((size_t)w->block * DIM * 4, sizeof(float));
  w->weight = calloc((size_t)DIM * DIM * 4, sizeof(float));
  w->q = calloc((size_t)LONGEST * DIM * 3, sizeof(float));
  w->o = calloc((size_t)LONGEST * DIM, sizeof(float));
  w->workspace = aligned_alloc(64, (size_t)w->workspace_bytes);
  if (!w->tokens || !w->wide || !w->weight || !w->q || !w->o || !w->workspace) return false;
  for (int64_t i = 0; i < (int64_t)LONGEST * DIM * 3; i++) w->q[i] = (float)(i % 17) * 0.05f;
  for (int64_t i = 0; i < w->block * DIM; i++) w->tokens[i] = (float)(i % 13) * 0.05f;
  for (int64_t i = 0; i < (int64_t)DIM * DIM * 4; i++) w->weight[i] = (float)(i % 11) * 0.01f;
  memset(w->workspace, 0, (size_t)w->workspace_bytes);
  return true;
}

static void work_free(work *w) {
  free(w->tokens);
  free(w->wide);
  free(w->weight);
  free(w->q);
  free(w->o);
  free(w->workspace);
}

/* The products of a block: 24 DIM^2 FLOPs a token, as a DiT's projections and its MLP. */
static void multiply(const work *w, int64_t rows) {
  for (; rows > 0; rows -= w->block) {
    int m = (int)(rows < w->block ? rows : w->block);
    for (int i = 0; i < 3; i++)
      cblas_sgemm(CblasRowMajor, CblasNoTrans, i == 2 ? CblasNoTrans : CblasTrans, m,
                  i == 2 ? DIM : 4 * DIM, i == 2 ? 4 * DIM : DIM, 1, i == 2 ? w->wide : w->tokens,
                  i == 2 ? 4 * DIM : DIM, w->weight, DIM, 0, i == 2 ? w->tokens : w->wide,
                  i == 2 ? DIM : 4 * DIM);
  }
}

static double thread_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Do what the plan gives to a rank; *seconds is how long it took. */
static kf_status run_rank(const work *w, const kf_plan *plan, int32_t rank, double *seconds) {
  double start = thread_seconds();
  kf_status status = KF_OK;
  for (int64_t k = plan->hold_off[rank]; k < plan->hold_off[rank + 1]; k++)
    multiply(w, plan->chunk[plan->hold[k]].length);
  for (int64_t k = plan->segment_off[rank]; k < plan->segment_off[rank + 1] && !status; k++) {
    kf_segment segment = plan->segment[k];
    segment.offset = 0;
    const float *v = w->q + 2 * (int64_t)LONGEST * DIM;
    kf_attention a = {.n_segments = 1,
                      .segment = &segment,
                      .head_dim = HEAD_DIM,
                      .q = w->q,
                      .k = w->q + (int64_t)LONGEST * DIM,
                      .v = v,
                      .o = w->o,
                      .workspace = w->workspace,
                      .workspace_bytes = w->workspace_bytes};
    status = kf_attention_forward(&a);
  }
  *seconds = thread_seconds() - start;
  return status;
}

static int64_t draw(uint64_t *state) {
  double share = (double)(bench_random(state) >> 11) * 0x1p-53;
  return (int64_t)(SHORTEST * pow((double)LONGEST / SHORTEST, share));
}

/* What the later half of the steps came to. */
typedef struct score {
  double error, repeated, predicted, measured;
  double times_us[MOST_STEPS * WORK_RANKS];
  int64_t n;
} score;

static kf_status run_step(kf_scheduler *s, const work *w, uint64_t *state, score *sum) {
  int64_t len[WORK_RANKS * WORK_SEQS], rank_off[WORK_RANKS + 1];
  double seconds[WORK_RANKS], again[WORK_RANKS];
  const kf_plan *plan;
  kf_status status;
  for (int i = 0; i < WORK_RANKS * WORK_SEQS; i++) len[i] = draw(state);
  for (int r = 0; r <= WORK_RANKS; r++) rank_off[r] = r * WORK_SEQS;
  const kf_batch batch = {
    .n_ranks = WORK_RANKS, .n_seqs = WORK_RANKS * WORK_SEQS, .rank_off = rank_off, .len = len};
  if ((status = kf_scheduler_plan(s, &batch, &plan))) return status;
  for (int32_t r = 0; r < WORK_RANKS; r++)
    if ((status = run_rank(w, plan, r, &seconds[r]))) return status;
  for (int32_t r = 0; sum && r < WORK_RANKS; r++)
    if ((status = run_rank(w, plan, r, &again[r]))) return status;
  for (int32_t r = 0; r < WORK_RANKS; r++)
    if (seconds[r] > 0 && (status = kf_scheduler_update_stats(s, r, seconds[r], NULL)))
      return status;
  if ((status = kf_scheduler_settle(s))) return status;
  const kf_metrics *m = kf_scheduler_metrics(s);
  for (int32_t r = 0; sum && r < WORK_RANKS; r++) {
    if (!(m->predicted_s[r] > 0)) continue;
    sum->error += fabs(m->predicted_s[r] / m->busy_s[r] - 1);
    sum->repeated += fabs(again[r] / m->busy_s[r] - 1);
    sum->predicted += m->predicted_s[r];
    sum->measured += m->busy_s[r];
    sum->times_us[sum->n++] = m->busy_s[r] * 1e6;
  }
  return KF_OK;
}

/* *row and the figures of so many steps, the first half of which are for learning. 0 or an exit
** code. */
static int prediction(int64_t steps, bench_row *row, bench_figure figures[2]) {
  static score total;
  kf_scheduler_options options = {.rebalance_interval = 5};
  kf_scheduler *scheduler = NULL;
  work w;
  uint64_t state = 1;
  kf_status status = KF_ENOMEM;
  char model[64];
  if (!work_create(&w)) goto done;
  snprintf(model, sizeof model, "d=%d,layers=1,heads=%d", DIM, HEADS);
  if ((status = kf_cost_preset(model, "free", WORK_RANKS, 0.2, &options.plan.cost))) goto done;
  if ((status = kf_scheduler_create(&options, &scheduler))) goto done;
  openblas_set_num_threads(1);
  multiply(&w, LONGEST);
  for (int64_t i = 0; i < steps && !status; i++)
    status = run_step(scheduler, &w, &state, i < steps / 2 ? NULL : &total);
  if (status) goto done;
  figures[0] = (bench_figure){"prediction_mape", total.error / (double)total.n};
  figures[1] = (bench_figure){"repetition_mape", total.repeated / (double)total.n};
  *row = (bench_row){.name = "prediction",
                     .against = "measured CPU time of attention and products",
                     .median_us = kf_quantile(total.times_us, total.n, 0.5),
                     .p99_us = kf_quantile(total.times_us, total.n, 0.99),
                     .ratio = total.predicted / total.measured};

done:
  kf_scheduler_free(scheduler);
  work_free(&w);
  return cli_exit_code(status, name, NULL);
}

int bench_scheduler(char **argv) {
  int64_t rounds = 1000, steps = 40;
  bool json = false;
  const cli_option options[] = {{"--rounds", .whole = &rounds, .min = 1, .max = BENCH_MAX_ROUNDS},
                                {"--steps", .whole = &steps, .max = MOST_STEPS},
                                {"--json", .flag = &json}};
  bench_figure figures[2];
  bench_row rows[3];
  int code = cli_parse(name, help, argv, options, 3);
  if (code >= 0) return code;
  if ((code = overhead(rounds, rows))) return code;
  if (steps > 1 && (code = prediction(steps, &rows[2], figures))) return code;
  return bench_show_figures(name, rows, steps > 1 ? 3 : 2, figures, steps > 1 ? 2 : 0, json);
}
