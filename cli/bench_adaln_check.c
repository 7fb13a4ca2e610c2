/* SPDX-License-Identifier: Apache-2.0 */
/*
** The check of `bench adaln`: some hundred tokens in up to three sequences, one of them empty.
**
** The bits must be those of the portable kernel: both write over bytes that were set differently
** before, so what one of them forgets differs too. The portable kernel's own numbers are held
** against doubles, y, dx, dscale and dshift.
*/
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench_adaln.h"

enum { TOKENS = 300, SEQS = 3, MOST_OUTPUTS = 9 };

/* Some tokens of `full`; cu_seqlens has room for SEQS + 1. */
static kf_adaln part_of(const kf_adaln *full, int64_t *cu_seqlens) {
  kf_adaln a = *full;
  if (a.n_tokens > TOKENS) a.n_tokens = TOKENS;
  if (a.n_seqs > SEQS) a.n_seqs = SEQS;
  for (int64_t s = 1; s < a.n_seqs; s++) cu_seqlens[s] = a.n_tokens / 3;
  cu_seqlens[0] = 0;
  cu_seqlens[a.n_seqs] = a.n_tokens;
  a.cu_seqlens = cu_seqlens;
  return a;
}

int64_t bench_adaln_check_workspace(const kf_adaln *full) {
  int64_t cu_seqlens[SEQS + 1];
  kf_adaln a = part_of(full, cu_seqlens);
  return kf_adaln_workspace(&a);
}

/* ------------------------------------------------------------------------------ the bits */

typedef struct output {
  const char *name;
  void *data;
  size_t n_bytes;
} output;

static int list_outputs(const kf_adaln *a, output *out) {
  size_t size = a->dtype == KF_F32 ? 4 : 2;
  size_t tokens = (size_t)(a->n_tokens * a->dim) * size;
  size_t seqs = (size_t)(a->n_seqs * a->dim) * size, stats = (size_t)a->n_tokens * sizeof(float);
  const output all[MOST_OUTPUTS] = {
    {"y", a->y, tokens},   {"mean", a->mean, stats},    {"rstd", a->rstd, stats},
    {"dx", a->dx, tokens}, {"dscale", a->dscale, seqs}, {"dshift", a->dshift, seqs},
    {"x", a->x, tokens},   {"du", a->du, tokens},       {"dgate", a->dgate, seqs}};
  memcpy(out, all, sizeof all);
  return a->gate ? MOST_OUTPUTS : MOST_OUTPUTS - 3;
}

/* Forward and backward, where all outputs were `byte` before. */
static kf_status both_passes(const kf_adaln *a, const output *outputs, int n_outputs, int byte) {
  for (int i = 0; i < n_outputs; i++) memset(outputs[i].data, byte, outputs[i].n_bytes);
  kf_status status = kf_adaln_forward(a);
  return status ? status : kf_adaln_backward(a);
}

static int check_bits(const char *command, const kf_adaln *wanted) {
  kf_adaln a = *wanted;
  output outputs[MOST_OUTPUTS];
  int n = list_outputs(&a, outputs), code = 0;
  size_t n_bytes = 0, at = 0;
  for (int i = 0; i < n; i++) n_bytes += outputs[i].n_bytes;
  char *bits = malloc(n_bytes);
  if (!bits) return cli_fail(EXIT_FAILED, command, "out of memory");
  kf_status status = both_passes(&a, outputs, n, 0xff);
  for (int i = 0; i < n; at += outputs[i++].n_bytes)
    memcpy(bits + at, outputs[i].data, outputs[i].n_bytes);
  a.isa = KF_ISA_PORTABLE;
  if (!status) status = both_passes(&a, outputs, n, 0);
  if (status) code = cli_exit_code(status, command, NULL);
  at = 0;
  for (int i = 0; i < n && !code; at += outputs[i++].n_bytes)
    if (memcmp(bits + at, outputs[i].data, outputs[i].n_bytes) != 0)
      code =
        cli_fail(EXIT_FAILED, command, "%s differs from the portable kernel's", outputs[i].name);
  free(bits);
  return code;
}

/* --------------------------------------------------------------------------- the doubles */

static double get(kf_dtype dtype, const void *values, int64_t i) {
  if (dtype == KF_F32) return ((const float *)values)[i];
  uint16_t bits = ((const uint16_t *)values)[i];
  if (dtype == KF_BF16) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
  }
  int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double value = exponent == 31  ? (double)NAN
                 : exponent == 0 ? ldexp(fraction, -24)
                                 : ldexp(fraction + 1024, exponent - 25);
  return bits >> 15 ? -value : value;
}

/* Is values[i] as it should be? `scale` is how large the terms are that it is made of. */
static bool close_to(double want, kf_dtype dtype, const void *values, int64_t i, double scale) {
  const double unit[] = {0x1p-24, 0x1p-8, 0x1p-11}; /* half a last bit of fp32, bf16, fp16 */
  double tolerance = 4e-6 * scale + unit[dtype] * fabs(want) + (dtype == KF_F16 ? 0x1p-25 : 0);
  return fabs(get(dtype, values, i) - want) <= tolerance; /* not so for a NaN */
}

/* One token; adds to sums (4, dim): of dscale, of its terms' absolute values, and of dshift.
** Returns the name of what is wrong, or NULL. */
static const char *check_token(const kf_adaln *a, int64_t seq, int64_t token, double *sums) {
  int64_t dim = a->dim, row = token * dim, mod = seq * dim;
  double mean = 0, variance = 0, c1 = 0, c2 = 0, most = 0, most_g = 0, n = (double)dim;
  for (int64_t c = 0; c < dim; c++) mean += get(a->dtype, a->x, row + c) / n;
  for (int64_t c = 0; c < dim; c++) variance += pow(get(a->dtype, a->x, row + c) - mean, 2) / n;
  double rstd = 1 / sqrt(variance + 1e-6);
  for (int64_t c = 0; c < dim; c++) {
    double xhat = (get(a->dtype, a->x, row + c) - mean) * rstd;
    double factor = 1 + get(a->dtype, a->scale, mod + c), dy = get(a->dtype, a->dy, row + c);
    c1 += dy * factor / n;
    c2 += dy * factor * xhat / n;
    most = fmax(most, fabs(xhat * factor));
    most_g = fmax(most_g, fabs(dy * factor));
    sums[c] += dy * xhat;
    sums[dim + c] += fabs(dy * xhat);
    sums[2 * dim + c] += dy;
    sums[3 * dim + c] += fabs(dy);
  }
  for (int64_t c = 0; c < dim; c++) {
    double xhat = (get(a->dtype, a->x, row + c) - mean) * rstd;
    double factor = 1 + get(a->dtype, a->scale, mod + c), shift = get(a->dtype, a->shift, mod + c);
    double g = get(a->dtype, a->dy, row + c) * factor;
    if (!close_to(xhat * factor + shift, a->dtype, a->y, row + c, most + fabs(shift))) return "y";
    if (!close_to(rstd * (g - c1 - xhat * c2), a->dtype, a->dx, row + c,
                  rstd * (most_g + fabs(c1) + fabs(xhat * c2))))
      return "dx";
  }
  return NULL;
}

static const char *check_seq(const kf_adaln *a, int64_t seq, double *sums) {
  const char *wrong = NULL;
  for (int64_t i = 0; i < 4 * a->dim; i++) sums[i] = 0;
  for (int64_t t = a->cu_seqlens[seq]; t < a->cu_seqlens[seq + 1] && !wrong; t++)
    wrong = check_token(a, seq, t, sums);
  for (int64_t c = 0; c < a->dim && !wrong; c++) {
    const double *of = sums + c;
    int64_t i = seq * a->dim + c;
    if (!close_to(of[0], a->dtype, a->dscale, i, of[a->dim])) wrong = "dscale";
    if (!close_to(of[2 * a->dim], a->dtype, a->dshift, i, of[3 * a->dim])) wrong = "dshift";
  }
  return wrong;
}

int bench_adaln_check(const char *command, const kf_adaln *full) {
  int64_t cu_seqlens[SEQS + 1];
  kf_adaln a = part_of(full, cu_seqlens);
  const char *wrong = NULL;
  int code = check_bits(command, &a);
  if (code) return code;
  double *sums = malloc((size_t)(4 * a.dim) * sizeof *sums);
  if (!sums) return cli_fail(EXIT_FAILED, command, "out of memory");
  for (int64_t s = 0; s < a.n_seqs && !wrong; s++) wrong = check_seq(&a, s, sums);
  free(sums);
  return wrong ? cli_fail(EXIT_FAILED, command, "%s differs from doubles", wrong) : 0;
}
