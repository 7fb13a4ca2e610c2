/* SPDX-License-Identifier: Apache-2.0 */
/*
** knapformer bench train: whole training steps of DiT-S on one sequence of 2048 tokens, on one
** thread: forward, loss, backward, clipping, AdamW, averaging; against OpenBLAS sgemm of 1536^3 on
** one thread, scaled to the FLOPs of the step's matrix products and attention (train_net_flops). A
** round is one step and some products, so that both see the same machine. Before anything is timed,
** gradients of a smaller model are compared with those of the portable kernels.
*/
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cblas.h>

#include "bench.h"
#include "train/train.h"

static const char name[] = "bench train";

static const char help[] =
  "usage: knapformer bench train [--rounds N] [--isa avx2|avx512|best] [--json]\n"
  "\n"
  "Time whole training steps: DiT-S, one sequence of 2048 tokens, fp32, one thread, no ranks.\n"
  "\n"
  "  --rounds N    steps; default 5\n"
  "  --isa NAME    the instructions of our kernels; default best, what this machine can do. BLAS\n"
  "                chooses its own: OPENBLAS_CORETYPE=Haswell keeps it to AVX2\n"
  "  --json        {\"rows\": [{\"name\", \"median_us\", \"p99_us\", \"ratio\", \"against\"}]}\n"
  "\n"
  "The gradients are compared with those of the portable kernels first. ratio = our median / the\n"
  "median of sgemm 1536^3 on one thread, scaled to the same FLOPs, measured in the same run.\n";

enum { ROWS = 2048, SIDE = 45, CHECK_ROWS = 130, GEMMS_A_ROUND = 8, MOST_ROUNDS = 10000 };

/* A model with its optimiser, and one sequence for it. */
typedef struct problem {
  train_params params;
  train_net *net;
  const train_pointwise *pw;
  float *grads; /* (params.n_floats) */
  train_state state;
  train_row *row;             /* (n_rows) */
  float *target, *prediction; /* (n_rows, TRAIN_VALUES) */
  int64_t n_rows, seq_off[2];
} problem;

static void problem_free(problem *p) {
  train_net_free(p->net);
  free(p->grads);
  free(p->state.p), free(p->state.m), free(p->state.v), free(p->state.ema);
  free(p->row), free(p->target), free(p->prediction);
}

static kf_status problem_make(const kf_model *model, kf_isa isa, int64_t n_rows, problem *out) {
  problem p = {.n_rows = n_rows, .seq_off = {0, n_rows}, .pw = train_pointwise_of(isa)};
  train_net_options options = {.model = *model, .isa = isa};
  kf_status status = train_params_of(model, &p.params);
  if (!status) status = train_net_create(&options, &p.net);
  if (status) return status;
  size_t n = (size_t)p.params.n_floats, n_values = (size_t)(n_rows * TRAIN_VALUES);
  train_state *t = &p.state;
  p.grads = malloc(n * sizeof(float));
  t->p = malloc(n * sizeof(float)), t->m = calloc(n, sizeof(float));
  t->v = calloc(n, sizeof(float)), t->ema = calloc(n, sizeof(float));
  p.row = calloc((size_t)n_rows, sizeof *p.row);
  p.target = malloc(n_values * sizeof(float)), p.prediction = malloc(n_values * sizeof(float));
  *out = p;
  if (!t->p || !p.grads || !t->m || !t->v || !t->ema || !p.row || !p.target || !p.prediction)
    return kf_fail(KF_ENOMEM, "out of memory: a model to be timed");
  bench_randomise(t->p, p.params.n_floats, 1); /* no zeros: every gradient counts */
  for (size_t i = 0; i < n; i++) t->p[i] *= 0.03f;
  bench_randomise(p.target, (int64_t)n_values, 2);
  for (int64_t i = 0; i < n_rows; i++) {
    p.row[i] = (train_row){.word = -1, .at = {0, (int32_t)(i / SIDE), (int32_t)(i % SIDE)}};
    p.row[i].time = 0.4f;
    bench_randomise(p.row[i].value, TRAIN_VALUES, (uint64_t)i + 3);
  }
  return KF_OK;
}

/* Forward, loss and backward: gradients of the sum of squared errors. */
static kf_status differentiate(problem *p) {
  const train_pack pack = {.n_rows = p->n_rows, .n_seqs = 1, .row = p->row, .seq_off = p->seq_off};
  kf_status status = train_net_forward(p->net, p->state.p, &pack, p->prediction);
  if (status) return status;
  for (int64_t i = 0; i < p->n_rows * TRAIN_VALUES; i++)
    p->prediction[i] = 2 * (p->prediction[i] - p->target[i]);
  return train_net_backward(p->net, p->state.p, &pack, p->prediction, p->grads);
}

static kf_status step(problem *p) {
  train_options options = {.lr = 1e-4};
  kf_status status = differentiate(p);
  train_options_complete(&options);
  if (!status)
    train_update(&p->params, p->pw, &options, 1.0 / (double)(p->n_rows * TRAIN_VALUES), p->grads,
                 &p->state);
  return status;
}

/* 0 or an exit code: the wanted kernels and the portable ones agree on every gradient. */
static int check(kf_isa isa) {
  const kf_model model = {96, 2, 3};
  problem p[2];
  kf_status status = KF_OK;
  memset(p, 0, sizeof p);
  for (int i = 0; i < 2 && !status; i++) {
    status = problem_make(&model, i ? KF_ISA_PORTABLE : isa, CHECK_ROWS, &p[i]);
    if (!status) status = differentiate(&p[i]);
  }
  int code = cli_exit_code(status, name, NULL);
  for (int id = 0; id < TRAIN_N_TENSORS && !code; id++) {
    const train_tensor *t = &p[0].params.tensor[id];
    double worst = 0, most = 0;
    for (int64_t i = t->offset; i < t->offset + train_tensor_size(t); i++) {
      worst = fmax(worst, fabs((double)p[0].grads[i] - p[1].grads[i]));
      most = fmax(most, fabs(p[1].grads[i]));
      if (!isfinite(p[0].grads[i])) worst = INFINITY;
    }
    if (worst > 1e-4 * most)
      code = cli_fail(EXIT_FAILED, name,
                      "the gradient of %s differs by %g of %g from the portable kernels'", t->name,
                      worst, most);
  }
  problem_free(&p[0]), problem_free(&p[1]);
  return code;
}

static kf_status time_all(problem *p, float *matrices, int64_t rounds, bench_row *out) {
  static double ours[MOST_ROUNDS], gemms[MOST_ROUNDS * GEMMS_A_ROUND];
  kf_status status = step(p); /* the first one pays for the memory */
  for (int64_t i = 0; i < rounds && !status; i++) {
    double start = cli_now_us();
    status = step(p);
    ours[i] = cli_now_us() - start;
    for (int64_t j = 0; j < GEMMS_A_ROUND; j++)
      gemms[i * GEMMS_A_ROUND + j] = bench_gemm_us(matrices);
  }
  if (status) return status;
  double share = train_net_flops(&p->params.model, ROWS) / (2 * pow(BENCH_GEMM, 3));
  double gemm_us = kf_quantile(gemms, rounds * GEMMS_A_ROUND, 0.5);
  *out = bench_row_of("train_vs_gemm", ours, rounds, "sgemm 1536^3 scaled to the same FLOPs",
                      gemm_us * share);
  return KF_OK;
}

static int run(kf_isa isa, int64_t rounds, bench_row *row) {
  problem p = {0};
  float *matrices = malloc(3 * BENCH_GEMM * BENCH_GEMM * sizeof *matrices);
  kf_model model;
  int code = 0;
  openblas_set_num_threads(1);
  kf_status status = kf_model_parse("DiT-S", &model);
  if (!status && !(code = check(isa))) {
    status = problem_make(&model, isa, ROWS, &p);
    if (!status && !matrices) status = kf_fail(KF_ENOMEM, "out of memory: matrices to be timed");
    if (!status) {
      bench_randomise(matrices, 3 * BENCH_GEMM * BENCH_GEMM, 4);
      status = time_all(&p, matrices, rounds, row);
    }
  }
  if (status) code = cli_exit_code(status, name, NULL);
  problem_free(&p);
  free(matrices);
  return code;
}

int bench_train(char **argv) {
  const char *isa_text = "best";
  int64_t rounds = 5;
  bool json = false;
  const cli_option options[] = {{"--rounds", .whole = &rounds, .min = 1, .max = MOST_ROUNDS},
                                {"--isa", .text = &isa_text},
                                {"--json", .flag = &json}};
  kf_isa isa;
  bench_row row;
  int code = cli_parse(name, help, argv, options, 3);
  if (code >= 0) return code;
  if (!bench_isa(name, isa_text, &isa)) return EXIT_MISUSE;
  if ((code = run(isa, rounds, &row))) return code;
  return bench_show(name, &row, 1, json);
}
