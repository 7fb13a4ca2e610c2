/* SPDX-License-Identifier: Apache-2.0 */
/*
** Problems for kf_adaln: tensors of exactly the right size, guards around all that is written, and
** a workspace of garbage. Values depend on the seed, the tensor and the place in it alone, so that
** two forms of one problem have the same ones.
**
** Who includes this defines FAIL(format, ...), which does not return.
*/
#ifndef ADALN_PROBLEM_H
#define ADALN_PROBLEM_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <knapformer.h>

#include "dice.h"

/* --------------------------------------------------------------------- numbers */

/* v as the nearest value of dtype, ties to even: by the definition of the format. */
static inline double nearest(kf_dtype dtype, double v) {
  static const int digits[] = {24, 8, 11}, least[] = {-126, -126, -14};
  static const double most[] = {0x1.fffffep127, 0x1.fep127, 65504};
  if (v == 0 || !isfinite(v)) return v;
  int exponent = ilogb(v) < least[dtype] ? least[dtype] : ilogb(v);
  double unit = ldexp(1, exponent - digits[dtype] + 1), rounded = nearbyint(v / unit) * unit;
  return fabs(rounded) > most[dtype] ? copysign(INFINITY, v) : copysign(rounded, v);
}

/* The distance of neighbours of dtype near v. */
static inline double step_at(kf_dtype dtype, double v) {
  static const int digits[] = {24, 8, 11}, least[] = {-126, -126, -14};
  int exponent = v == 0 || ilogb(v) < least[dtype] ? least[dtype] : ilogb(v);
  return ldexp(1, exponent - digits[dtype] + 1);
}

static inline float bf16_value(uint16_t bits) {
  uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

static inline float fp16_value(uint16_t bits) {
  int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double v = exponent == 31 ? (fraction ? NAN : INFINITY)
             : exponent     ? ldexp(1024 + fraction, exponent - 25)
                            : ldexp(fraction, -24);
  return (float)(bits >> 15 ? -v : v);
}

static inline uint16_t bf16_bits(double v) {
  float value = (float)nearest(KF_BF16, v);
  uint32_t wide;
  memcpy(&wide, &value, sizeof wide);
  return (uint16_t)(isnan(v) ? 0x7fc0 : wide >> 16);
}

static inline uint16_t fp16_bits(double v) {
  double size = fabs(nearest(KF_F16, v));
  uint16_t sign = signbit(v) ? 0x8000 : 0;
  if (isnan(v)) return 0x7e00;
  if (isinf(size)) return sign | 0x7c00;
  if (size < 0x1p-14) return (uint16_t)(sign | (int)ldexp(size, 24));
  int exponent = ilogb(size); /* the 1 in front of the fraction is the 1 too much in the exponent */
  return (uint16_t)(sign | ((exponent + 14) * 1024 + (int)ldexp(size, 10 - exponent)));
}

/* --------------------------------------------------------------------- tensors */

enum { SCALE = 0, SHIFT, GATE, X, RESIDUAL, U, DY, DX_ADD };                   /* read */
enum { Y = DX_ADD + 1, MEAN, RSTD, DX, DU, DSCALE, DSHIFT, DGATE, N_TENSORS }; /* written */
enum { GUARD = 64, SLICES = 6 };

static const char *const tensor_names[N_TENSORS] = {
  "scale", "shift", "gate", "x",  "residual", "u",      "dy",     "dx_add",
  "y",     "mean",  "rstd", "dx", "du",       "dscale", "dshift", "dgate"};

/* One that a problem does not have has no rows and no data. */
typedef struct tensor {
  kf_dtype dtype;
  int64_t n_rows, dim, stride;
  unsigned char *data;
  unsigned char *memory; /* NULL: the data is in another one's memory */
  size_t lead, bytes;    /* of memory before the data, and of data */
  bool guarded;          /* GUARD bytes on both sides, within memory */
  unsigned char *kept;   /* the data of a read tensor; or what keep() saw */
} tensor;

static inline size_t size_of(kf_dtype dtype) { return dtype == KF_F32 ? 4 : 2; }

static inline double at(const tensor *t, int64_t row, int64_t column) {
  const unsigned char *place = t->data + (size_t)(row * t->stride + column) * size_of(t->dtype);
  float value;
  uint16_t bits;
  if (t->dtype == KF_F32) return memcpy(&value, place, sizeof value), value;
  memcpy(&bits, place, sizeof bits);
  return t->dtype == KF_BF16 ? bf16_value(bits) : fp16_value(bits);
}

static inline void put(const tensor *t, int64_t row, int64_t column, double v) {
  unsigned char *place = t->data + (size_t)(row * t->stride + column) * size_of(t->dtype);
  float value = (float)v;
  uint16_t bits = t->dtype == KF_BF16 ? bf16_bits(v) : t->dtype == KF_F16 ? fp16_bits(v) : 0;
  memcpy(place, t->dtype == KF_F32 ? (void *)&value : &bits, size_of(t->dtype));
}

/* --------------------------------------------------------------------- a problem */

/* All-zero but for dim and sequences: fp32, no gate, cu_seqlens, all tensors well aligned. */
typedef struct form {
  int64_t dim, n_seqs;
  const int64_t *len; /* (n_seqs) */
  kf_dtype dtype;
  kf_rounding rounding;
  bool gate, dx_add, mod_fp32;
  bool index;    /* seq_index, not cu_seqlens */
  bool scatter;  /* with index: neighbours are of different sequences here and there */
  bool slices;   /* modulation lies in one (n_seqs, SLICES, dim), and so do its gradients */
  bool odd;      /* tensors begin one element past a multiple of 64 bytes */
  bool in_place; /* x is residual, dx is dx_add */
  float eps;
  double mean; /* of a row of x, in units of its deviation */
} form;

typedef struct problem {
  form f;
  kf_adaln a;
  int64_t n_tokens;
  int64_t *cu_seqlens;
  int32_t *seq_index;
  tensor t[N_TENSORS];
  tensor slices[2]; /* blocks that modulation and its gradients share */
} problem;

static inline void *checked(void *memory) {
  if (!memory) FAIL("out of memory");
  return memory;
}

static inline bool is_modulation(int i) { return i <= GATE || i >= DSCALE; }
static inline bool is_written(const problem *p, int i) { return i >= Y || (i == X && p->f.gate); }

static inline bool is_present(const form *f, int i) {
  bool of_gate = i == GATE || i == RESIDUAL || i == U || i == DU || i == DGATE;
  return (!of_gate || f->gate) && (i != DX_ADD || f->dx_add);
}

static inline void tensor_alloc(tensor *t, int64_t n, bool guarded, bool odd) {
  size_t size = size_of(t->dtype);
  t->guarded = guarded;
  t->lead = (guarded ? GUARD : 0) + (odd ? size : 0);
  t->bytes = (size_t)n * size;
  void *memory = NULL;
  if (posix_memalign(&memory, 64, t->lead + t->bytes + (guarded ? GUARD : 0) + !t->bytes))
    checked(NULL);
  t->memory = memory;
  t->data = t->memory + t->lead;
}

/* Nearly normal: a sum of four. */
static inline double bell(dice *d) {
  double sum = 0;
  for (int j = 0; j < 4; j++) sum += dice_real(d, -1, 1);
  return sum * sqrt(0.75);
}

static inline void tensor_fill(tensor *t, uint64_t seed, double mean, double deviation) {
  dice d = {seed};
  for (int64_t r = 0; r < t->n_rows; r++)
    for (int64_t c = 0; c < t->dim; c++) put(t, r, c, mean + deviation * bell(&d));
}

/* Remember what a tensor holds; a read one must hold it after every run. */
static inline void tensor_keep(tensor *t) {
  free(t->kept);
  t->kept = checked(malloc(t->bytes + 1));
  memcpy(t->kept, t->data, t->bytes);
}

static inline void make_tokens(problem *p, dice *d) {
  const form *f = &p->f;
  p->cu_seqlens = checked(calloc((size_t)f->n_seqs + 1, sizeof *p->cu_seqlens));
  for (int64_t s = 0; s < f->n_seqs; s++) p->cu_seqlens[s + 1] = p->cu_seqlens[s] + f->len[s];
  p->n_tokens = p->cu_seqlens[f->n_seqs];
  p->seq_index = checked(calloc((size_t)p->n_tokens + 1, sizeof *p->seq_index));
  for (int64_t s = 0; s < f->n_seqs; s++)
    for (int64_t t = p->cu_seqlens[s]; t < p->cu_seqlens[s + 1]; t++) p->seq_index[t] = (int32_t)s;
  for (int64_t i = 0; f->scatter && i < p->n_tokens / 8; i++) {
    int64_t from = dice_int(d, p->n_tokens), to = dice_int(d, p->n_tokens);
    int32_t seq = p->seq_index[from];
    p->seq_index[from] = p->seq_index[to];
    p->seq_index[to] = seq;
  }
}

static inline void make_tensor(problem *p, int i) {
  const form *f = &p->f;
  static const int slice_of[N_TENSORS] = {
    [SCALE] = 1, [SHIFT] = 0, [GATE] = 5, [DSCALE] = 1, [DSHIFT] = 0, [DGATE] = 5};
  tensor *t = &p->t[i], *shared = &p->slices[i > GATE];
  bool mod = is_modulation(i), statistic = i == MEAN || i == RSTD;
  if (!is_present(f, i)) return;
  t->dtype = statistic || (mod && f->mod_fp32) ? KF_F32 : f->dtype;
  t->n_rows = mod ? f->n_seqs : p->n_tokens;
  t->dim = statistic ? 1 : f->dim;
  t->stride = mod && f->slices ? SLICES * f->dim : t->dim;
  int alias = i == RESIDUAL ? X : i == DX_ADD ? DX : -1;
  if (mod && f->slices) {
    t->data = shared->data + (size_t)(slice_of[i] * f->dim) * size_of(t->dtype);
  } else if (alias >= 0 && f->in_place) {
    t->data = p->t[alias].data;
    t->bytes = p->t[alias].bytes;
  } else {
    tensor_alloc(t, t->n_rows * t->dim, is_written(p, i), f->odd);
  }
}

/* Whether it is filled before a run. X with a gate is not. */
static inline bool is_filled(const problem *p, int i) {
  return i < Y && p->t[i].data && !is_written(p, i);
}

static inline void point_at_tensors(problem *p) {
  kf_adaln *a = &p->a;
  tensor *t = p->t;
  a->scale = t[SCALE].data, a->shift = t[SHIFT].data, a->gate = t[GATE].data;
  a->x = t[X].data, a->residual = t[RESIDUAL].data, a->u = t[U].data;
  a->y = t[Y].data, a->dy = t[DY].data, a->dx_add = t[DX_ADD].data;
  a->mean = (float *)(void *)t[MEAN].data, a->rstd = (float *)(void *)t[RSTD].data;
  a->dx = t[DX].data, a->du = t[DU].data;
  a->dscale = t[DSCALE].data, a->dshift = t[DSHIFT].data, a->dgate = t[DGATE].data;
}

/* Remember the values of what is read, after make() or after a change by put(). */
static inline void settle(problem *p) {
  for (int i = 0; i < Y; i++)
    if (is_filled(p, i)) tensor_keep(&p->t[i]);
  if (p->f.slices) tensor_keep(&p->slices[0]);
}

static inline problem *make(const form *f, uint64_t seed) {
  problem *p = checked(calloc(1, sizeof *p));
  dice d = {seed};
  p->f = *f;
  make_tokens(p, &d);
  for (int i = 0; f->slices && i < 2; i++) {
    p->slices[i].dtype = f->mod_fp32 ? KF_F32 : f->dtype;
    tensor_alloc(&p->slices[i], f->n_seqs * SLICES * f->dim, i == 1, f->odd);
    if (i == 0) memset(p->slices[0].data, 0xff, p->slices[0].bytes); /* NaN between the rows */
  }
  static const int order[N_TENSORS] = {SCALE,  SHIFT, GATE, X,    DX, RESIDUAL, U,      DY,
                                       DX_ADD, Y,     MEAN, RSTD, DU, DSCALE,   DSHIFT, DGATE};
  for (int i = 0; i < N_TENSORS; i++) make_tensor(p, order[i]);
  p->a = (kf_adaln){.n_tokens = p->n_tokens,
                    .n_seqs = f->n_seqs,
                    .dim = f->dim,
                    .cu_seqlens = f->index ? NULL : p->cu_seqlens,
                    .seq_index = f->index ? p->seq_index : NULL,
                    .dtype = f->dtype,
                    .mod_fp32 = f->mod_fp32,
                    .mod_stride = f->slices ? SLICES * f->dim : 0,
                    .rounding = f->rounding,
                    .eps = f->eps};
  for (int i = 0; i < Y; i++)
    if (is_filled(p, i)) /* X, or what makes it: values of one seed */
      tensor_fill(&p->t[i], seed * 64 + (uint64_t)(i == X ? RESIDUAL : i),
                  i == X || i == RESIDUAL ? f->mean : 0, is_modulation(i) ? 0.5 : 1);
  point_at_tensors(p);
  settle(p);
  return p;
}

static inline void drop(problem *p) {
  for (int i = 0; i < N_TENSORS; i++) free(p->t[i].memory), free(p->t[i].kept);
  for (int i = 0; i < 2; i++) free(p->slices[i].memory), free(p->slices[i].kept);
  free(p->cu_seqlens);
  free(p->seq_index);
  free(p);
}

/* --------------------------------------------------------------------- a run */

enum { FILL = 0xa5 };

static inline void expect_filled(const unsigned char *from, size_t n, const char *what) {
  if (n > 0 && (from[0] != FILL || memcmp(from, from + 1, n - 1) != 0)) /* all as the first */
    FAIL("%s: written outside", what);
}

static inline void expect_guards(const tensor *t, const char *what) {
  if (!t->memory || !t->guarded) return;
  expect_filled(t->memory, t->lead, what);
  expect_filled(t->data + t->bytes, GUARD, what);
}

/* The shared block of gradients: only the slices that are asked for are written. */
static inline void expect_gaps(const problem *p) {
  const tensor *block = &p->slices[1];
  size_t width = (size_t)p->f.dim * size_of(block->dtype);
  for (int64_t i = 0; i < p->f.n_seqs * SLICES; i++) {
    bool ours = i % SLICES <= 1 || (p->f.gate && i % SLICES == 5);
    if (!ours) expect_filled(block->data + (size_t)i * width, width, "between the slices");
  }
}

static inline void expect_unspoilt(const problem *p) {
  for (int i = 0; i < N_TENSORS; i++) {
    const tensor *t = &p->t[i];
    expect_guards(t, tensor_names[i]);
    if (is_filled(p, i) && t->memory && memcmp(t->data, t->kept, t->bytes) != 0)
      FAIL("%s is read only, but was written", tensor_names[i]);
  }
  if (!p->f.slices) return;
  expect_guards(&p->slices[1], "dscale, dshift, dgate");
  expect_gaps(p);
  if (memcmp(p->slices[0].data, p->slices[0].kept, p->slices[0].bytes) != 0)
    FAIL("scale, shift or gate is read only, but was written");
}

static inline void fill_outputs(problem *p) {
  for (int i = 0; i < N_TENSORS; i++) {
    tensor *t = &p->t[i];
    if (is_written(p, i) && t->memory) memset(t->memory, FILL, t->lead + t->bytes + GUARD);
  }
  if (p->f.slices)
    memset(p->slices[1].memory, FILL, p->slices[1].lead + p->slices[1].bytes + GUARD);
  for (int i = 0; i < Y; i++) /* in place: what the last run wrote over */
    if (is_filled(p, i) && !p->t[i].memory && p->t[i].bytes)
      memcpy(p->t[i].data, p->t[i].kept, p->t[i].bytes);
}

/* Forward and backward, with a workspace of the exact size. */
static inline void run(problem *p, kf_isa isa, int32_t n_threads) {
  p->a.isa = isa;
  p->a.n_threads = n_threads;
  int64_t bytes = kf_adaln_workspace(&p->a);
  if (bytes < 64 || bytes % 64) FAIL("workspace of %lld bytes", (long long)bytes);
  unsigned char *work = checked(aligned_alloc(64, (size_t)bytes + GUARD));
  p->a.workspace = work;
  p->a.workspace_bytes = bytes;
  fill_outputs(p);
  memset(work, 0xff, (size_t)bytes); /* as floats NaN: padding that is used shows */
  memset(work + bytes, FILL, GUARD);
  if (kf_adaln_forward(&p->a)) FAIL("forward: %s", kf_last_error());
  expect_filled(work + bytes, GUARD, "workspace");
  memset(work, 0xff, (size_t)bytes); /* nothing in it may be needed later */
  if (kf_adaln_backward(&p->a)) FAIL("backward: %s", kf_last_error());
  expect_filled(work + bytes, GUARD, "workspace");
  expect_unspoilt(p);
  free(work);
}

static inline void keep(problem *p) {
  for (int i = 0; i < N_TENSORS; i++)
    if (is_written(p, i) && p->t[i].memory) tensor_keep(&p->t[i]);
  if (p->f.slices) tensor_keep(&p->slices[1]);
}

/* The same bits, or both NaN: which NaN it is, is not promised. */
static inline void expect_same(const problem *p, const tensor *t, const unsigned char *kept,
                               const char *what) {
  if (memcmp(t->data, kept, t->bytes) == 0) return;
  tensor a = *t, b = *t;
  a.stride = b.stride = 0;
  b.data = (unsigned char *)(uintptr_t)kept;
  for (int64_t i = 0; i < (int64_t)(t->bytes / size_of(t->dtype)); i++) {
    double x = at(&a, 0, i), y = at(&b, 0, i);
    if ((isnan(x) && isnan(y)) || (x == y && !signbit(x) == !signbit(y))) continue;
    FAIL("%s differs at %lld: %a, expected %a; isa %d, %d threads, dim %lld", what, (long long)i, x,
         y, (int)p->a.isa, (int)p->a.n_threads, (long long)p->f.dim);
  }
}

static inline void expect_kept(const problem *p) {
  for (int i = 0; i < N_TENSORS; i++)
    if (is_written(p, i) && p->t[i].memory) expect_same(p, &p->t[i], p->t[i].kept, tensor_names[i]);
  if (p->f.slices) expect_same(p, &p->slices[1], p->slices[1].kept, "dscale, dshift or dgate");
}

/* Can this machine run it? A refusal must say so. */
static inline bool has_isa(kf_isa isa) {
  static const int64_t len = 1;
  problem *p = make(&(form){.dim = 1, .n_seqs = 1, .len = &len}, 1);
  _Alignas(64) static unsigned char work[1 << 16];
  p->a.isa = isa;
  p->a.workspace = work;
  p->a.workspace_bytes = sizeof work;
  kf_status status = kf_adaln_forward(&p->a);
  if (status && !strstr(kf_last_error(), "which this machine does not have"))
    FAIL("%s", kf_last_error());
  drop(p);
  return !status;
}

#endif
