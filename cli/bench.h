/* SPDX-License-Identifier: Apache-2.0 */
/* What the benchmarks share: a row of figures, and how it is shown. */
#ifndef BENCH_H
#define BENCH_H

#include "cli.h"

enum { BENCH_MAX_ROUNDS = 100000 };

/* One figure: ratio = our time / the time of `against`, in the same run. */
typedef struct bench_row {
  const char *name, *against;
  double median_us, p99_us, ratio;
} bench_row;

/* What qsort of n fresh random doubles takes: the reference of what is near n log n. */
double bench_qsort_us(double *values, int64_t n, uint64_t *state);

/* Multiply matrices (3, BENCH_GEMM, BENCH_GEMM), the last by the others: the reference of what
** computes. Returns how long it took. */
enum { BENCH_GEMM = 1536 };
double bench_gemm_us(float *matrices);

/* A row of `n` times of ours, which are reordered, and what the reference takes for as much. */
bench_row bench_row_of(const char *name, double *times_us, int64_t n, const char *against,
                       double reference_us);

/* The instructions that --isa names. It says what is wrong on stderr and returns false. */
bool bench_isa(const char *command, const char *text, kf_isa *out);

/* The next of a stream of random numbers. */
uint64_t bench_random(uint64_t *state);

/* Numbers of mean 0 and variance 1. */
void bench_randomise(float *values, int64_t n, uint64_t seed);

/* Show the rows, as a table or as JSON, and close stdout; returns an exit code. */
int bench_show(const char *command, const bench_row *rows, int n_rows, bool json);

/* A number that is not a time, shown after the rows. */
typedef struct bench_figure {
  const char *name;
  double value;
} bench_figure;
int bench_show_figures(const char *command, const bench_row *rows, int n_rows,
                       const bench_figure *figures, int n_figures, bool json);

/* The benchmarks: argv begins after their name. */
int bench_adaln(char **argv);
int bench_attention(char **argv);
int bench_bucket(char **argv);
int bench_plan(char **argv);
int bench_route(char **argv);
int bench_scheduler(char **argv);
int bench_train(char **argv);

#endif
