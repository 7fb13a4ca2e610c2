/* SPDX-License-Identifier: Apache-2.0 */
/* knapformer bench: how fast the library is on this machine. Finds the benchmark, shows its
** rows. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cblas.h>

#include "bench.h"

static const struct {
  const char *name, *what;
  int (*run)(char **argv);
} benches[] = {
  {"adaln", "the CPU LayerNorm-Modulate, against moving as many bytes", bench_adaln},
  {"attention", "the CPU attention, against sgemm with as many FLOPs", bench_attention},
  {"bucket", "a sampler's epoch, against qsort of as many doubles", bench_bucket},
  {"plan", "the planner, against qsort of as many doubles", bench_plan},
  {"route", "moving tokens, against bare MPI and memcpy", bench_route},
  {"scheduler", "learning, against planning; and how well it predicts", bench_scheduler},
  {"train", "whole training steps, against sgemm with as many FLOPs", bench_train},
};

enum { N_BENCHES = sizeof benches / sizeof *benches };

/* ------------------------------------------------------------- what benchmarks are given */

bool bench_isa(const char *command, const char *text, kf_isa *out) {
  *out = strcmp(text, "avx2") == 0     ? KF_ISA_AVX2
         : strcmp(text, "avx512") == 0 ? KF_ISA_AVX512
                                       : KF_ISA_BEST;
  if (*out != KF_ISA_BEST || strcmp(text, "best") == 0) return true;
  cli_fail(EXIT_MISUSE, command, "--isa: found \"%s\", expected avx2, avx512 or best", text);
  return false;
}

uint64_t bench_random(uint64_t *state) {
  *state += KF_SPLITMIX64_STEP;
  return kf_splitmix64(*state - KF_SPLITMIX64_STEP);
}

void bench_randomise(float *values, int64_t n, uint64_t seed) {
  for (int64_t i = 0; i < n; i++)
    values[i] = (float)(((double)(bench_random(&seed) >> 11) * 0x1p-52 - 1) * sqrt(3));
}

/* ------------------------------------------------------------------------- the rows */

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double bench_qsort_us(double *values, int64_t n, uint64_t *state) {
  for (int64_t i = 0; i < n; i++) values[i] = (double)(bench_random(state) >> 11);
  double start = cli_now_us();
  qsort(values, (size_t)n, sizeof *values, by_value);
  return cli_now_us() - start;
}

double bench_gemm_us(float *m) {
  enum { N = BENCH_GEMM };
  double start = cli_now_us();
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, N, N, N, 1, m, N, m + N * N, N, 0,
              m + 2 * N * N, N);
  return cli_now_us() - start;
}

bench_row bench_row_of(const char *name, double *times_us, int64_t n, const char *against,
                       double reference_us) {
  double median_us = kf_quantile(times_us, n, 0.5);
  return (bench_row){.name = name,
                     .against = against,
                     .median_us = median_us,
                     .p99_us = kf_quantile(times_us, n, 0.99),
                     .ratio = reference_us > 0 ? median_us / reference_us : 1};
}

static json_t *to_json(const bench_row *rows, int n_rows, const bench_figure *figures,
                       int n_figures) {
  json_t *list = json_array();
  for (int i = 0; i < n_rows; i++)
    json_array_append_new(list, json_pack("{s:s,s:f,s:f,s:f,s:s}", "name", rows[i].name,
                                          "median_us", rows[i].median_us, "p99_us", rows[i].p99_us,
                                          "ratio", rows[i].ratio, "against", rows[i].against));
  json_t *object = json_pack("{s:o}", "rows", list);
  for (int i = 0; i < n_figures; i++)
    json_object_set_new(object, figures[i].name, json_real(figures[i].value));
  return object;
}

static void print_table(const bench_row *rows, int n_rows) {
  int width = 20;
  for (int i = 0; i < n_rows; i++)
    if ((int)strlen(rows[i].name) > width) width = (int)strlen(rows[i].name);
  printf("%-*s%14s%14s%9s  against\n", width, "name", "median us", "p99 us", "ratio");
  for (int i = 0; i < n_rows; i++)
    printf("%-*s%14.1f%14.1f%9.2f  %s\n", width, rows[i].name, rows[i].median_us, rows[i].p99_us,
           rows[i].ratio, rows[i].against);
}

int bench_show_figures(const char *command, const bench_row *rows, int n_rows,
                       const bench_figure *figures, int n_figures, bool json) {
  int code = 0;
  if (json) {
    code = cli_print_json(command, to_json(rows, n_rows, figures, n_figures), 6);
  } else {
    print_table(rows, n_rows);
    for (int i = 0; i < n_figures; i++) printf("%s %.4f\n", figures[i].name, figures[i].value);
  }
  return code ? code : cli_close_stdout(command);
}

int bench_show(const char *command, const bench_row *rows, int n_rows, bool json) {
  return bench_show_figures(command, rows, n_rows, NULL, 0, json);
}

/* ------------------------------------------------------------------------ the command */

/* "plan", "attention or plan", "adaln, attention or plan" */
static void list_names(char *out, size_t size) {
  size_t at = 0;
  for (int i = 0; i < N_BENCHES && at < size; i++)
    at += (size_t)snprintf(out + at, size - at, "%s%s",
                           i == 0               ? ""
                           : i == N_BENCHES - 1 ? " or "
                                                : ", ",
                           benches[i].name);
}

int cli_bench(char **argv) {
  char names[200], usage[1000];
  int at = snprintf(usage, sizeof usage, "usage: knapformer bench NAME [OPTIONS]\n\n");
  for (int i = 0; i < N_BENCHES; i++) {
    if (*argv && strcmp(*argv, benches[i].name) == 0) return benches[i].run(argv + 1);
    at += snprintf(usage + at, sizeof usage - (size_t)at, "  %-11s%s\n", benches[i].name,
                   benches[i].what);
  }
  if (*argv && strncmp(*argv, "-", 1) == 0) return cli_parse("bench", usage, argv, NULL, 0);
  list_names(names, sizeof names);
  return cli_fail(EXIT_MISUSE, "bench", "found %s%s%s, expected %s", *argv ? "\"" : "",
                  *argv ? *argv : "the end", *argv ? "\"" : "", names);
}
