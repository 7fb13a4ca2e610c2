/* SPDX-License-Identifier: Apache-2.0 */
/*
** Attention problems with guards around all that is written, and their solution by the textbook,
** in double. For cmocka tests: they fail the test that calls them.
*/
#ifndef ATTENTION_PROBLEM_H
#define ATTENTION_PROBLEM_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <knapformer.h>

#include "dice.h"

/* --------------------------------------------------------------------- a problem */

enum { MOST_SEGMENTS = 12, GUARD = 64, O = 0, DQ, DK, DV, LSE, N_OUT };

static const char *const out_names[N_OUT] = {"o", "dq", "dk", "dv", "lse"};

typedef struct problem {
  kf_attention a;
  kf_segment segment[MOST_SEGMENTS];
  float *in[4];              /* q, k, v, d_o */
  unsigned char *out[N_OUT]; /* GUARD bytes, the tensor, GUARD bytes */
  size_t out_bytes[N_OUT];
  int64_t pairs;
} problem;

static void *checked(void *memory) {
  if (!memory) fail_msg("out of memory");
  return memory;
}

static float *out_of(const problem *p, int i) { return (float *)(void *)(p->out[i] + GUARD); }

static void randomise(float *values, int64_t n, double amplitude, dice *d) {
  for (int64_t i = 0; i < n; i++) { /* nearly normal: a sum of four */
    double sum = 0;
    for (int j = 0; j < 4; j++) sum += dice_real(d, -1, 1);
    values[i] = (float)(amplitude * sum * sqrt(0.75));
  }
}

/* Segments of rows[i] and heads[i]; q and k have that amplitude. The same every time. */
static problem *make(int32_t dim, int n, const int64_t *rows, const int32_t *heads,
                     double amplitude) {
  problem *p = checked(calloc(1, sizeof *p));
  dice d = {(uint64_t)dim};
  for (int i = 0; i < n; i++) {
    p->segment[i] = (kf_segment){.rows = rows[i], .heads = heads[i], .offset = p->pairs};
    p->pairs += rows[i] * heads[i];
  }
  p->a = (kf_attention){.n_segments = n, .segment = p->segment, .head_dim = dim};
  for (int i = 0; i < 4; i++) {
    p->in[i] = checked(malloc((size_t)(p->pairs * dim) * sizeof(float)));
    randomise(p->in[i], p->pairs * dim, i < 2 ? amplitude : 1, &d);
  }
  for (int i = 0; i < N_OUT; i++) {
    p->out_bytes[i] = (size_t)(p->pairs * (i == LSE ? 1 : dim)) * sizeof(float);
    p->out[i] = checked(malloc(p->out_bytes[i] + 2 * GUARD));
  }
  p->a.q = p->in[0], p->a.k = p->in[1], p->a.v = p->in[2], p->a.d_o = p->in[3];
  p->a.o = out_of(p, O), p->a.lse = out_of(p, LSE);
  p->a.dq = out_of(p, DQ), p->a.dk = out_of(p, DK), p->a.dv = out_of(p, DV);
  return p;
}

static problem *make_one(int32_t dim, int64_t rows, int32_t heads, double amplitude) {
  return make(dim, 1, &rows, &heads, amplitude);
}

static void drop(problem *p) {
  for (int i = 0; i < 4; i++) free(p->in[i]);
  for (int i = 0; i < N_OUT; i++) free(p->out[i]);
  free(p);
}

static void assert_guard(const unsigned char *at, const char *what) {
  for (int i = 0; i < GUARD; i++)
    if (at[i] != 0xa5) fail_msg("%s: written outside", what);
}

/* Forward and backward, with a workspace of the exact size. */
static void run(problem *p, kf_isa isa, int32_t n_threads) {
  p->a.isa = isa;
  p->a.n_threads = n_threads;
  int64_t bytes = kf_attention_workspace(&p->a);
  assert_true(bytes >= 64 && bytes % 64 == 0);
  unsigned char *work = checked(aligned_alloc(64, (size_t)bytes + GUARD));
  memset(work, 0xa5, (size_t)bytes + GUARD); /* as floats: garbage that must not matter */
  for (int i = 0; i < N_OUT; i++) memset(p->out[i], 0xa5, p->out_bytes[i] + 2 * GUARD);
  p->a.workspace = work;
  p->a.workspace_bytes = bytes;
  if (kf_attention_forward(&p->a) || kf_attention_backward(&p->a)) fail_msg("%s", kf_last_error());
  assert_guard(work + bytes, "workspace");
  for (int i = 0; i < N_OUT; i++) {
    assert_guard(p->out[i], out_names[i]);
    assert_guard(p->out[i] + GUARD + p->out_bytes[i], out_names[i]);
  }
  free(work);
}

/* --------------------------------------------------------------------- the reference */

/* One head of `rows` rows, `step` apart, in double: the textbook, with all scores in a row. */
static void naive_head(int64_t rows, int64_t dim, int64_t step, double *const in[4],
                       double *const out[N_OUT], int64_t lse_step) {
  double scale = (float)(1 / sqrt((double)dim));
  double *p = checked(malloc((size_t)(rows + 1) * sizeof *p));
  for (int64_t i = 0; i < rows; i++) {
    const double *q = in[0] + i * step, *d_o = in[3] + i * step;
    double *o = out[O] + i * step, most = -INFINITY, total = 0, delta = 0;
    for (int64_t j = 0; j < rows; j++) {
      p[j] = 0;
      for (int64_t d = 0; d < dim; d++) p[j] += scale * q[d] * in[1][j * step + d];
      most = fmax(most, p[j]);
    }
    for (int64_t j = 0; j < rows; j++) total += exp(p[j] - most);
    for (int64_t j = 0; j < rows; j++) p[j] = exp(p[j] - most) / total;
    for (int64_t d = 0; d < dim; d++) {
      o[d] = 0;
      for (int64_t j = 0; j < rows; j++) o[d] += p[j] * in[2][j * step + d];
      delta += o[d] * d_o[d];
    }
    out[LSE][i * lse_step] = most + log(total);
    for (int64_t j = 0; j < rows; j++) {
      double dp = 0;
      for (int64_t d = 0; d < dim; d++) dp += d_o[d] * in[2][j * step + d];
      double ds = scale * p[j] * (dp - delta);
      for (int64_t d = 0; d < dim; d++) {
        out[DQ][i * step + d] += ds * in[1][j * step + d];
        out[DK][j * step + d] += ds * q[d];
        out[DV][j * step + d] += p[j] * d_o[d];
      }
    }
  }
  free(p);
}

typedef struct reference {
  double *in[4], *out[N_OUT];
} reference;

static reference naive(const problem *p) {
  reference r;
  int64_t dim = p->a.head_dim, n = p->pairs * dim;
  for (int i = 0; i < 4; i++) {
    r.in[i] = checked(malloc((size_t)(n + 1) * sizeof(double)));
    for (int64_t j = 0; j < n; j++) r.in[i][j] = p->in[i][j];
  }
  for (int i = 0; i < N_OUT; i++) r.out[i] = checked(calloc((size_t)n + 1, sizeof(double)));
  for (int64_t s = 0; s < p->a.n_segments; s++)
    for (int32_t h = 0; h < p->segment[s].heads; h++) {
      int64_t pair = p->segment[s].offset + h;
      double *in[4], *out[N_OUT];
      for (int i = 0; i < 4; i++) in[i] = r.in[i] + pair * dim;
      for (int i = 0; i < N_OUT; i++) out[i] = r.out[i] + pair * (i == LSE ? 1 : dim);
      naive_head(p->segment[s].rows, dim, p->segment[s].heads * dim, in, out, p->segment[s].heads);
    }
  return r;
}

static void drop_reference(reference *r) {
  for (int i = 0; i < 4; i++) free(r->in[i]);
  for (int i = 0; i < N_OUT; i++) free(r->out[i]);
}

#endif
