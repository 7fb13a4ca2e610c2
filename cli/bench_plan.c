/* SPDX-License-Identifier: Apache-2.0 */
/*
** knapformer bench plan: one planner plans one batch again and again, as in training, and qsort
** sorts as many random doubles in between, so that both see the same machine at the same time and
** their ratio can be compared between machines. The first plan is proved by kf_plan_check before
** anything is timed. A call is timed whole: search, chunks, tables, figures and hash.
*/
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

static const char name[] = "bench plan";

static const char help[] =
  "usage: knapformer bench plan [--only NAME] [--rounds N] [--growth] [--json]\n"
  "\n"
  "Time the planner (flux, gamma 0.4, h100 nodes of 8 ranks, bags auto, default budget).\n"
  "\n"
  "  --only NAME   one row: plan_32x89, plan_256x4096, plan_4096x11392 or\n"
  "                plan_16384x1000000 (ranks x sequences)\n"
  "  --rounds N    calls a row; by default as many as take about a second, at least 5\n"
  "  --growth      time 256x4096 and four doublings of both, up to 4096x65536, instead;\n"
  "                the row plan_growth has the mean of the four ratios\n"
  "  --json        {\"rows\": [{\"name\", \"median_us\", \"p99_us\", \"ratio\", \"against\"}]}\n"
  "\n"
  "Every plan is proved first. ratio = our median / the median of the reference named in\n"
  "`against`, measured in the same run, one call of each in turn.\n";

typedef struct instance {
  const char *name;
  int32_t n_ranks;
  int64_t n_seqs;
} instance;

static const instance instances[] = {{"plan_32x89", 32, 89},
                                     {"plan_256x4096", 256, 4096},
                                     {"plan_4096x11392", 4096, 11392},
                                     {"plan_16384x1000000", 16384, 1000000}};

static const instance doublings[] = {{"plan_256x4096", 256, 4096},
                                     {"plan_512x8192", 512, 8192},
                                     {"plan_1024x16384", 1024, 16384},
                                     {"plan_2048x32768", 2048, 32768},
                                     {"plan_4096x65536", 4096, 65536}};

enum { N_INSTANCES = 4, N_DOUBLINGS = 5, MAX_ROWS = 8 };

/* ------------------------------------------------------------------------- the batch */

/* Visual tokens of the 89 sequences of the joint mix, in order: how many, of how many tokens. */
static const struct {
  int n;
  int64_t len;
} joint[] = {{32, 256},  {10, 1024}, {10, 4096}, {4, 16384},
             {10, 1024}, {3, 4096},  {16, 6400}, {4, 25600}};

enum { N_JOINT = 89 };

/* Sequence i of n lives on rank i*R/n and is joint's sequence i mod 89. NULL: no memory. */
static kf_batch *make_batch(const instance *in) {
  int64_t cycle[N_JOINT], n_ranks = in->n_ranks, n_seqs = in->n_seqs;
  int at = 0;
  for (size_t i = 0; i < sizeof joint / sizeof *joint; i++)
    for (int k = 0; k < joint[i].n; k++) cycle[at++] = joint[i].len;
  kf_batch *batch = malloc(sizeof *batch + (size_t)(n_ranks + 1 + n_seqs) * sizeof(int64_t));
  if (!batch) return NULL;
  int64_t *rank_off = (int64_t *)(batch + 1), *len = rank_off + n_ranks + 1;
  *batch = (kf_batch){.n_ranks = in->n_ranks, .n_seqs = n_seqs, .rank_off = rank_off, .len = len};
  for (int64_t r = 0; r <= n_ranks; r++)
    rank_off[r] = (r * n_seqs + n_ranks - 1) / n_ranks; /* the first i with i*R/n >= r */
  for (int64_t i = 0; i < n_seqs; i++) len[i] = cycle[i % N_JOINT];
  return batch;
}

/* ------------------------------------------------------------------------- the timing */

/* rounds > 0: that many; 0: about a second's worth by the first call, from 5 to 1000. */
static int64_t rounds_for(int64_t rounds, double first_us) {
  if (rounds > 0) return rounds;
  double fit = 1e6 / (first_us + 1);
  return fit < 5 ? 5 : fit > 1000 ? 1000 : (int64_t)fit;
}

/* Times planner and qsort in turn; `values` has room for a double per sequence. */
static kf_status time_both(kf_planner *planner, const kf_batch *batch, double *values,
                           int64_t rounds, bench_row *out) {
  static double ours[BENCH_MAX_ROUNDS], sorts[BENCH_MAX_ROUNDS];
  const kf_plan *plan;
  kf_status status;
  uint64_t state = 1;
  for (int64_t i = 0; i < rounds; i++) {
    double start = cli_now_us();
    if ((status = kf_planner_plan(planner, batch, &plan))) return status;
    ours[i] = cli_now_us() - start;
    sorts[i] = bench_qsort_us(values, batch->n_seqs, &state);
  }
  double sort_us = kf_quantile(sorts, rounds, 0.5);
  *out = bench_row_of(out->name, ours, rounds, "qsort of as many doubles", sort_us);
  return KF_OK;
}

/* 0 or an exit code, after saying why. */
static int run_instance(const instance *in, int64_t rounds, bench_row *out) {
  kf_planner_options options = {0};
  kf_planner *planner = NULL;
  const kf_plan *plan = NULL;
  kf_status status = KF_OK;
  int code = 0;
  kf_batch *batch = make_batch(in);
  double *values = malloc((size_t)in->n_seqs * sizeof *values);
  if (!batch || !values) {
    code = cli_fail(EXIT_FAILED, name, "%s: out of memory", in->name);
    goto done;
  }
  if (isatty(STDERR_FILENO) == 1) fprintf(stderr, "%s ..\n", in->name);
  if ((status = kf_cost_preset("flux", NULL, in->n_ranks, KF_DEFAULT_GAMMA, &options.cost)))
    goto done;
  if ((status = kf_planner_create(&options, &planner))) goto done;
  if ((status = kf_planner_plan(planner, batch, &plan))) goto done;
  if ((status = kf_plan_check(plan, batch))) goto done;
  double start = cli_now_us(); /* the second call: the first one pays for the memory */
  if ((status = kf_planner_plan(planner, batch, &plan))) goto done;
  rounds = rounds_for(rounds, cli_now_us() - start);
  out->name = in->name;
  status = time_both(planner, batch, values, rounds, out);

done:
  if (status) code = cli_exit_code(status, name, in->name);
  kf_planner_free(planner);
  free(values);
  free(batch);
  return code;
}

/* ------------------------------------------------------------------------ the command */

/* The row that sums up the doublings: how much longer a step takes that is twice as large. */
static bench_row growth_of(const bench_row *rows) {
  const bench_row *last = &rows[N_DOUBLINGS - 1];
  double sum = 0;
  for (int i = 1; i < N_DOUBLINGS; i++) sum += rows[i].median_us / rows[i - 1].median_us;
  return (bench_row){.name = "plan_growth",
                     .against = "half the ranks and sequences, mean of four doublings",
                     .median_us = last->median_us,
                     .p99_us = last->p99_us,
                     .ratio = sum / (N_DOUBLINGS - 1)};
}

int bench_plan(char **argv) {
  const char *only = NULL;
  int64_t rounds = 0;
  bool json = false, growth = false;
  const cli_option options[] = {{"--only", .text = &only},
                                {"--rounds", .whole = &rounds, .min = 1, .max = BENCH_MAX_ROUNDS},
                                {"--growth", .flag = &growth},
                                {"--json", .flag = &json}};
  bench_row rows[MAX_ROWS];
  int n_rows = 0;
  int code = cli_parse(name, help, argv, options, 4);
  if (code >= 0) return code;
  if (only && growth)
    return cli_fail(EXIT_MISUSE, name, "found both --only and --growth, expected one of them");
  const instance *list = growth ? doublings : instances;
  for (int i = 0; i < (growth ? N_DOUBLINGS : N_INSTANCES); i++) {
    if (only && strcmp(only, list[i].name) != 0) continue;
    if ((code = run_instance(&list[i], rounds, &rows[n_rows++]))) return code;
  }
  if (n_rows == 0)
    return cli_fail(EXIT_MISUSE, name,
                    "--only: found \"%s\", expected plan_32x89, plan_256x4096, plan_4096x11392 or "
                    "plan_16384x1000000",
                    only);
  if (growth) {
    rows[n_rows] = growth_of(rows);
    n_rows++;
  }
  return bench_show(name, rows, n_rows, json);
}
