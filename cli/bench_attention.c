/* SPDX-License-Identifier: Apache-2.0 */
/*
** knapformer bench attention: forward and backward of one sequence of 4096 tokens, 6 heads of 64,
** on one thread, against OpenBLAS sgemm of 1536^3 on one thread, scaled to the same FLOPs (4 N N D
** H forward, 2.5 times that backward). A round is one call of each, so that all see the same
** machine. Before anything is timed, a shorter sequence is compared with the portable kernel.
*/
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cblas.h>

#include "bench.h"

static const char name[] = "bench attention";

static const char help[] =
  "usage: knapformer bench attention [--rounds N] [--isa avx2|avx512|best] [--json]\n"
  "\n"
  "Time forward and backward of the CPU attention: one sequence of 4096 tokens, 6 heads of 64,\n"
  "fp32, one thread.\n"
  "\n"
  "  --rounds N    calls of each; default 7\n"
  "  --isa NAME    the instructions to use; default best, what this machine can do\n"
  "  --json        {\"rows\": [{\"name\", \"median_us\", \"p99_us\", \"ratio\", \"against\"}]}\n"
  "\n"
  "The kernel is compared with the portable one first. ratio = our median / the median of\n"
  "sgemm 1536^3 on one thread, scaled to the same FLOPs, measured in the same run.\n";

enum {
  ROWS = 4096,
  HEADS = 6,
  HEAD_DIM = 64,
  CHECK_ROWS = 1100, /* several blocks of the kernel, and a last one that is not full */
  N_INPUTS = 4,      /* q, k, v, d_o */
  N_TENSORS = 8      /* and o, dq, dk, dv */
};

static const int64_t n_floats = (int64_t)ROWS * HEADS * HEAD_DIM; /* of a tensor */

static void place(kf_attention *a, float *tensors) {
  a->q = tensors;
  a->k = a->q + n_floats;
  a->v = a->k + n_floats;
  a->d_o = a->v + n_floats;
  a->o = tensors + N_INPUTS * n_floats;
  a->dq = a->o + n_floats;
  a->dk = a->dq + n_floats;
  a->dv = a->dk + n_floats;
  a->lse = a->dv + n_floats;
}

static kf_status both_passes(const kf_attention *a) {
  kf_status status = kf_attention_forward(a);
  return status ? status : kf_attention_backward(a);
}

/* 0 or an exit code: the wanted kernel and the portable one agree on o, dq, dk and dv. */
static int check(const kf_attention *full, float *scratch) {
  const kf_segment segment = {.rows = CHECK_ROWS, .heads = 1};
  kf_attention a = *full;
  kf_status status;
  int64_t n = (int64_t)CHECK_ROWS * HEAD_DIM;
  a.segment = &segment;
  if ((status = both_passes(&a))) return cli_exit_code(status, name, NULL);
  for (int64_t i = 0; i < 4; i++)
    memcpy(scratch + i * n, a.o + i * n_floats, (size_t)n * sizeof *scratch);
  a.isa = KF_ISA_PORTABLE;
  if ((status = both_passes(&a))) return cli_exit_code(status, name, NULL);
  for (int64_t i = 0; i < 4; i++) {
    const float *want = a.o + i * n_floats, *got = scratch + i * n;
    double worst = 0, most = 0;
    for (int64_t j = 0; j < n; j++) {
      worst = fmax(worst, fabs((double)want[j] - got[j]));
      most = fmax(most, fabs(want[j]));
      if (!isfinite(got[j])) worst = INFINITY;
    }
    if (worst > (i == 0 ? 2e-6 : 1e-5) * most)
      return cli_fail(EXIT_FAILED, name, "tensor %d differs by %g of %g from the portable kernel",
                      (int)i, worst, most);
  }
  return 0;
}

/* rows[0] forward, rows[1] backward. */
static kf_status time_all(const kf_attention *a, float *matrices, int64_t rounds, bench_row *rows) {
  static double times[3][BENCH_MAX_ROUNDS];
  const double flops = 4.0 * ROWS * ROWS * HEAD_DIM * HEADS, gemm_flops = 2 * pow(BENCH_GEMM, 3);
  kf_status status;
  bench_gemm_us(matrices);
  for (int64_t i = 0; i < rounds; i++) {
    double start = cli_now_us();
    if ((status = kf_attention_forward(a))) return status;
    double forward = cli_now_us();
    if ((status = kf_attention_backward(a))) return status;
    times[1][i] = cli_now_us() - forward;
    times[2][i] = bench_gemm_us(matrices);
    times[0][i] = forward - start;
  }
  double gemm_us = kf_quantile(times[2], rounds, 0.5) * flops / gemm_flops;
  const char *against = "sgemm 1536^3 scaled to the same FLOPs";
  rows[0] = bench_row_of("attn_fwd_vs_gemm", times[0], rounds, against, gemm_us);
  rows[1] = bench_row_of("attn_bwd_vs_gemm", times[1], rounds, against, 2.5 * gemm_us);
  return KF_OK;
}

static int run(kf_isa isa, int64_t rounds, bench_row *rows) {
  const kf_segment segment = {.rows = ROWS, .heads = HEADS};
  kf_attention a = {.n_segments = 1, .segment = &segment, .head_dim = HEAD_DIM, .isa = isa};
  int code;
  a.workspace_bytes = (kf_attention_workspace(&a) + 63) / 64 * 64;
  int64_t n_lse = (int64_t)ROWS * HEADS, n_matrices = 3 * BENCH_GEMM * BENCH_GEMM;
  float *tensors = malloc((size_t)(N_TENSORS * n_floats + n_lse) * sizeof *tensors);
  float *matrices = malloc((size_t)n_matrices * sizeof *matrices);
  a.workspace = aligned_alloc(64, (size_t)a.workspace_bytes);
  if (!tensors || !matrices || !a.workspace) {
    code = cli_fail(EXIT_FAILED, name, "out of memory");
    goto done;
  }
  openblas_set_num_threads(1);
  bench_randomise(tensors, N_INPUTS * n_floats, 1);
  bench_randomise(matrices, n_matrices, 2);
  place(&a, tensors);
  if ((code = check(&a, matrices))) goto done; /* the product's room serves as scratch */
  bench_randomise(matrices, n_matrices, 2);
  code = cli_exit_code(time_all(&a, matrices, rounds, rows), name, NULL);

done:
  free(a.workspace);
  free(matrices);
  free(tensors);
  return code;
}

int bench_attention(char **argv) {
  const char *isa_text = "best";
  int64_t rounds = 7;
  bool json = false;
  const cli_option options[] = {{"--rounds", .whole = &rounds, .min = 1, .max = BENCH_MAX_ROUNDS},
                                {"--isa", .text = &isa_text},
                                {"--json", .flag = &json}};
  kf_isa isa;
  bench_row rows[2];
  int code = cli_parse(name, help, argv, options, 3);
  if (code >= 0) return code;
  if (!bench_isa(name, isa_text, &isa)) return EXIT_MISUSE;
  if ((code = run(isa, rounds, rows))) return code;
  return bench_show(name, rows, 2, json);
}
