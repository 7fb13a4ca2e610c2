/* SPDX-License-Identifier: Apache-2.0 */
/*
** LayerNorm-Modulate of a chunk's rows in vectors; included once per instruction set, which gives
** LANES, PIECE, vec and the operations on it, fold() and the names of the three functions at the
** end. adaln.h says in which order everything is added.
**
** A piece is PIECE neighbouring columns, V vectors, each lane one strand. A row is walked run by
** run, in a run piece by piece of the strands, in a piece the four steps that add to its strands:
**
**     PIECE = 32:   | 0 | 4 | 1 | 5 | 2 | 6 | 3 | 7 |  next run     (which 32 columns come when)
**
** Forward is bound by memory: while row t is read and summed, row t-1 is written; while row t's
** variance is computed, from the cache, row t+1 is on its way. Backward takes rows in groups: first
** the two sums of each row, then, column by column, dx of all of them, so that the column sums are
** loaded and stored once for a group.
**
** Columns beyond the last whole piece go through small buffers filled up with zeros. Functions are
** specialised by their constant arguments.
*/
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "dtype.h"

#define INLINE static inline __attribute__((always_inline))

enum { V = PIECE / LANES, N_PIECES = KFI_STRANDS / PIECE, GROUP = 4 };

/* What the compiler knows when it makes one of the variants. */
typedef struct variant {
  kf_dtype dtype;
  bool each, gated, stream;
} variant;

INLINE int64_t size_of(variant o) { return o.dtype == KF_FP32 ? 4 : 2; }

INLINE const void *at(variant o, const void *p, int64_t i) {
  return (const char *)p + i * size_of(o);
}
INLINE void *at_out(variant o, void *p, int64_t i) { return (char *)p + i * size_of(o); }

/* ----------------------------------------------------------------- vectors of a dtype */

INLINE vec take(variant o, const void *p, int64_t i) {
  const void *from = at(o, p, i);
  return o.dtype == KF_FP32   ? load_fp32(from)
         : o.dtype == KF_BF16 ? load_bf16(from)
                              : load_fp16(from);
}

INLINE void put(variant o, void *p, int64_t i, vec v) {
  void *to = at_out(o, p, i);
  if (o.dtype == KF_FP32)
    o.stream ? stream_fp32(to, v) : store_fp32(to, v);
  else if (o.dtype == KF_BF16)
    o.stream ? stream_half(to, to_bf16(v)) : store_half(to, to_bf16(v));
  else
    o.stream ? stream_half(to, to_fp16(v)) : store_half(to, to_fp16(v));
}

INLINE vec rounded(variant o, vec v) {
  return o.dtype == KF_FP32 ? v : o.dtype == KF_BF16 ? round_bf16(v) : round_fp16(v);
}

/* [R] of adaln.h */
INLINE vec maybe(variant o, vec v) { return o.each ? rounded(o, v) : v; }

/* a * b + c */
INLINE vec combine(variant o, vec a, vec b, vec c) {
  return o.each ? add(rounded(o, mul(a, b)), c) : muladd(a, b, c);
}

/* ----------------------------------------------------------------------- forward */

/* A row of x as the sums and the writing read it: as given, or in fp32 where it was made. */
typedef struct source {
  variant o;
  const void *x;
} source;

/* A row that is ready to be written. */
typedef struct ready {
  source from;
  void *y;
  vec mean, rstd;
} ready;

INLINE void write_piece(variant o, const kfi_rows *r, const ready *row, int64_t c) {
  for (int v = 0; v < V; v++) {
    int64_t i = c + v * LANES;
    vec x = take(row->from.o, row->from.x, i);
    vec xhat = maybe(o, mul(sub(x, row->mean), row->rstd));
    put(o, row->y, i, combine(o, xhat, load_fp32(r->factor + i), load_fp32(r->shift + i)));
  }
}

/* The same for the last n < PIECE columns. */
INLINE void write_tail(variant o, const kfi_rows *r, const ready *row, int64_t c, int64_t n) {
  _Alignas(64) char x[PIECE * sizeof(float)] = {0}, y[PIECE * sizeof(float)];
  kfi_rows rest = {.factor = r->factor + c, .shift = r->shift + c}; /* these are padded */
  ready part = *row;
  memcpy(x, at(part.from.o, part.from.x, c), (size_t)(n * size_of(part.from.o)));
  part.from.x = x;
  part.y = y;
  write_piece(o, &rest, &part, 0);
  memcpy(at_out(o, row->y, c), y, (size_t)(n * size_of(o)));
}

/* A row of x that is read, or made of residual and u: then it is also left at `made` in fp32. */
typedef struct fresh {
  const void *residual, *u;
  void *x;
  float *made;
} fresh;

INLINE void sum_piece(variant o, const kfi_rows *r, const fresh *row, int64_t c, vec *sum) {
  for (int v = 0; v < V; v++) {
    int64_t i = c + v * LANES;
    vec x;
    if (o.gated) {
      x = combine(o, load_fp32(r->gate + i), take(o, row->u, i), take(o, row->residual, i));
      put(o, row->x, i, x);
      x = rounded(o, x);
      store_fp32(row->made + i, x);
    } else {
      x = take(o, row->x, i);
    }
    sum[v] = add(sum[v], x);
  }
}

INLINE void sum_tail(variant o, const kfi_rows *r, const fresh *row, int64_t c, int64_t n,
                     vec *sum) {
  _Alignas(64) char in[3][PIECE * sizeof(float)] = {{0}};
  size_t bytes = (size_t)(n * size_of(o));
  kfi_rows rest = {.gate = r->gate + c};
  fresh part = {in[0], in[1], in[2], row->made + c};
  if (!o.gated) {
    memcpy(in[2], at(o, row->x, c), bytes);
    sum_piece(o, &rest, &part, 0, sum);
    return;
  }
  /* What is beyond the row counts as 0, whatever the padding of gate holds. */
  _Alignas(64) float gate[PIECE] = {0};
  memcpy(gate, rest.gate, (size_t)n * sizeof *gate);
  rest.gate = gate;
  memcpy(in[0], at(o, row->residual, c), bytes);
  memcpy(in[1], at(o, row->u, c), bytes);
  sum_piece(o, &rest, &part, 0, sum);
  memcpy(at_out(o, row->x, c), in[2], bytes);
}

/* Write the row `old` and sum the row `new`, either of which may be NULL (known when compiled). */
INLINE float sweep(variant o, const kfi_rows *r, const ready *old, const fresh *new) {
  float total = 0;
  for (int64_t run = 0; run < r->dim; run += KFI_RUN) {
    float folded[2] = {0, 0};
    for (int p = 0; p < N_PIECES; p++) {
      vec sum[V];
      for (int v = 0; v < V; v++) sum[v] = all(0);
      for (int64_t c = run + p * PIECE; c < run + KFI_RUN; c += KFI_STRANDS) {
        int64_t n = r->dim - c;
        if (n >= PIECE) {
          if (old) write_piece(o, r, old, c);
          if (new) sum_piece(o, r, new, c, sum);
        } else if (n > 0) {
          if (old) write_tail(o, r, old, c, n);
          if (new) sum_tail(o, r, new, c, n, sum);
        }
      }
      if (new) folded[p] = fold(sum);
    }
    total += N_PIECES == 1 ? folded[0] : folded[0] + folded[1];
  }
  return total;
}

INLINE void square_piece(source from, int64_t c, vec mean, vec *sum) {
  for (int v = 0; v < V; v++) {
    vec d = sub(take(from.o, from.x, c + v * LANES), mean);
    sum[v] = muladd(d, d, sum[v]);
  }
}

/* The last n < PIECE columns; beyond them x is the mean, so that nothing is added. */
INLINE void square_tail(source from, int64_t c, int64_t n, vec mean, vec *sum) {
  _Alignas(64) float x[PIECE];
  source part = {{.dtype = KF_FP32}, x};
  for (int v = 0; v < V; v++) store_fp32(x + v * LANES, mean);
  for (int64_t i = 0; i < n; i++) x[i] = kfi_load(from.o.dtype, from.x, c + i);
  square_piece(part, 0, mean, sum);
}

/* Sum of (x - mean)^2; meanwhile fetch `bytes` bytes from `next` on. */
INLINE float squares(const kfi_rows *r, source from, float mean, const char *next) {
  float total = 0;
  for (int64_t run = 0; run < r->dim; run += KFI_RUN) {
    float folded[2] = {0, 0};
    for (int p = 0; p < N_PIECES; p++) {
      vec sum[V];
      for (int v = 0; v < V; v++) sum[v] = all(0);
      for (int64_t c = run + p * PIECE; c < run + KFI_RUN; c += KFI_STRANDS) {
        int64_t n = r->dim - c;
        if (n >= PIECE)
          square_piece(from, c, all(mean), sum);
        else if (n > 0)
          square_tail(from, c, n, all(mean), sum);
        if (next && n > 0)
          for (int64_t b = 0; b < PIECE * size_of(from.o); b += 64)
            _mm_prefetch(next + c * size_of(from.o) + b, _MM_HINT_T0);
      }
      folded[p] = fold(sum);
    }
    total += N_PIECES == 1 ? folded[0] : folded[0] + folded[1];
  }
  return total;
}

INLINE void forward(const kfi_rows *r, variant o) {
  float dim = (float)r->dim;
  ready old = {0};
  for (int64_t t = 0; t < r->n; t++) {
    int64_t first = t * r->dim;
    float *made = r->work + t % 2 * kfi_adaln_pad(r->dim);
    fresh new = {at(o, r->residual, first), at(o, r->u, first), at_out(o, r->x, first), made};
    float sum = t == 0 ? sweep(o, r, NULL, &new) : sweep(o, r, &old, &new);
    float mean = sum / dim;
    source from = {o, new.x};
    if (o.gated) from = (source){{.dtype = KF_FP32}, made};
    const char *next = t + 1 < r->n ? at(o, new.x, r->dim) : NULL;
    float rstd = 1 / sqrtf(squares(r, from, mean, o.gated ? NULL : next) / dim + r->eps);
    if (r->mean) r->mean[t] = mean, r->rstd[t] = rstd;
    old = (ready){from, at_out(o, r->y, first), all(mean), all(rstd)};
  }
  if (r->n > 0) sweep(o, r, &old, NULL);
}

/* ---------------------------------------------------------------------- backward */

/* What is known of a row when its dx is computed; pointers to its first column. */
typedef struct slope {
  const void *x, *dy, *dx_add, *u;
  void *dx, *du;
  float mean, rstd, c1, c2;
} slope;

/* x_ and g of adaln.h, and dy */
#define PLACE(o, r, row, i)                                                                        \
  vec dy = take(o, (row)->dy, i);                                                                  \
  vec x_ = mul(sub(take(o, (row)->x, i), all((row)->mean)), all((row)->rstd));                     \
  vec g = maybe(o, mul(dy, load_fp32((r)->factor + (i))))

INLINE void slope_piece(variant o, const kfi_rows *r, const slope *row, int64_t c, vec *sum1,
                        vec *sum2) {
  for (int v = 0; v < V; v++) {
    PLACE(o, r, row, c + v * LANES);
    (void)dy;
    sum1[v] = add(sum1[v], g);
    sum2[v] = muladd(g, x_, sum2[v]);
  }
}

INLINE void slope_tail(variant o, const kfi_rows *r, const slope *row, int64_t c, int64_t n,
                       vec *sum1, vec *sum2) {
  _Alignas(64) char in[2][PIECE * sizeof(float)] = {{0}};
  _Alignas(64) float factor[PIECE] = {0};
  kfi_rows rest = {.factor = factor};
  slope part = {.x = in[0], .dy = in[1], .mean = row->mean, .rstd = row->rstd};
  memcpy(factor, r->factor + c, (size_t)n * sizeof *factor);
  memcpy(in[0], at(o, row->x, c), (size_t)(n * size_of(o)));
  memcpy(in[1], at(o, row->dy, c), (size_t)(n * size_of(o)));
  slope_piece(o, &rest, &part, 0, sum1, sum2);
}

/* The row's c1 and c2. */
INLINE void slopes(variant o, const kfi_rows *r, slope *row) {
  float total1 = 0, total2 = 0;
  for (int64_t run = 0; run < r->dim; run += KFI_RUN) {
    float folded1[2] = {0, 0}, folded2[2] = {0, 0};
    for (int p = 0; p < N_PIECES; p++) {
      vec sum1[V], sum2[V];
      for (int v = 0; v < V; v++) sum1[v] = sum2[v] = all(0);
      for (int64_t c = run + p * PIECE; c < run + KFI_RUN; c += KFI_STRANDS) {
        int64_t n = r->dim - c;
        if (n >= PIECE)
          slope_piece(o, r, row, c, sum1, sum2);
        else if (n > 0)
          slope_tail(o, r, row, c, n, sum1, sum2);
      }
      folded1[p] = fold(sum1);
      folded2[p] = fold(sum2);
    }
    total1 += N_PIECES == 1 ? folded1[0] : folded1[0] + folded1[1];
    total2 += N_PIECES == 1 ? folded2[0] : folded2[0] + folded2[1];
  }
  row->c1 = total1 / (float)r->dim;
  row->c2 = total2 / (float)r->dim;
}

/* dx and du of one vector of n rows, and the column sums they add to. */
INLINE void spread(variant o, const kfi_rows *r, const slope *rows, int n, int64_t i) {
  int64_t pad = kfi_adaln_pad(r->dim);
  vec dscale = load_fp32(r->sums + i), dshift = load_fp32(r->sums + pad + i), dgate = all(0);
  if (o.gated) dgate = load_fp32(r->sums + 2 * pad + i);
  for (int k = 0; k < n; k++) {
    const slope *row = &rows[k];
    PLACE(o, r, row, i);
    dscale = combine(o, dy, maybe(o, x_), dscale);
    dshift = add(dshift, dy);
    vec d = maybe(o, mul(all(row->rstd), mulsub(x_, all(row->c2), sub(g, all(row->c1)))));
    if (row->dx_add) d = maybe(o, add(d, take(o, row->dx_add, i)));
    put(o, row->dx, i, d);
    if (!o.gated) continue;
    put(o, row->du, i, mul(load_fp32(r->gate + i), d));
    dgate = combine(o, d, take(o, row->u, i), dgate);
  }
  store_fp32(r->sums + i, dscale);
  store_fp32(r->sums + pad + i, dshift);
  if (o.gated) store_fp32(r->sums + 2 * pad + i, dgate);
}

/* The same for the last n_cols < LANES columns. */
INLINE void spread_tail(variant o, const kfi_rows *r, const slope *rows, int n, int64_t c,
                        int64_t n_cols) {
  _Alignas(64) char in[GROUP][4][LANES * sizeof(float)] = {{{0}}},
                                         out[GROUP][2][LANES * sizeof(float)];
  size_t bytes = (size_t)(n_cols * size_of(o));
  slope part[GROUP];
  kfi_rows rest = *r; /* its rows of floats are padded */
  rest.factor += c;
  rest.sums += c;
  if (o.gated) rest.gate += c;
  for (int k = 0; k < n; k++) {
    const slope *row = &rows[k];
    const void *from[4] = {row->x, row->dy, row->dx_add, row->u};
    for (int j = 0; j < 4; j++)
      if (from[j]) memcpy(in[k][j], at(o, from[j], c), bytes);
    part[k] = *row;
    part[k].x = in[k][0];
    part[k].dy = in[k][1];
    if (row->dx_add) part[k].dx_add = in[k][2];
    part[k].u = in[k][3];
    part[k].dx = out[k][0];
    part[k].du = out[k][1];
  }
  spread(o, &rest, part, n, 0);
  for (int k = 0; k < n; k++) {
    memcpy(at_out(o, rows[k].dx, c), out[k][0], bytes);
    if (o.gated) memcpy(at_out(o, rows[k].du, c), out[k][1], bytes);
  }
}

INLINE void backward_group(variant o, const kfi_rows *r, int64_t t, int n) {
  slope rows[GROUP];
  int64_t c = 0;
  for (int k = 0; k < n; k++) {
    int64_t first = (t + k) * r->dim;
    rows[k] = (slope){.x = at(o, r->x, first),
                      .dy = at(o, r->dy, first),
                      .dx_add = r->dx_add ? at(o, r->dx_add, first) : NULL,
                      .u = o.gated ? at(o, r->u, first) : NULL,
                      .dx = at_out(o, r->dx, first),
                      .du = o.gated ? at_out(o, r->du, first) : NULL,
                      .mean = r->mean[t + k],
                      .rstd = r->rstd[t + k]};
    slopes(o, r, &rows[k]);
  }
  for (; c + LANES <= r->dim; c += LANES) spread(o, r, rows, n, c);
  if (c < r->dim) spread_tail(o, r, rows, n, c, r->dim - c);
}

INLINE void backward(const kfi_rows *r, variant o) {
  int64_t t = 0;
  memset(r->sums, 0, (size_t)((o.gated ? 3 : 2) * kfi_adaln_pad(r->dim)) * sizeof *r->sums);
  for (; t + GROUP <= r->n; t += GROUP) backward_group(o, r, t, GROUP);
  for (; t < r->n; t++) backward_group(o, r, t, 1);
}

/* ---------------------------------------------------------------------- variants */

/* Whether all rows of a tensor that is written begin on a cache line. */
static bool aligned(const kfi_rows *r, const void *tensor) {
  return (uintptr_t)tensor % 64 == 0 && r->dim * kfi_size_of(r->dtype) % 64 == 0;
}

#define WITH_STREAM(function, r, dtype, each, gated, stream)                                       \
  if (stream)                                                                                      \
    function(r, (variant){dtype, each, gated, true});                                              \
  else                                                                                             \
    function(r, (variant){dtype, each, gated, false})
#define WITH_GATE(function, r, dtype, each, stream)                                                \
  if ((r)->gate) {                                                                                 \
    WITH_STREAM(function, r, dtype, each, true, stream);                                           \
  } else {                                                                                         \
    WITH_STREAM(function, r, dtype, each, false, stream);                                          \
  }
#define WITH_ROUNDING(function, r, dtype, stream)                                                  \
  if ((r)->each) {                                                                                 \
    WITH_GATE(function, r, dtype, true, stream)                                                    \
  } else {                                                                                         \
    WITH_GATE(function, r, dtype, false, stream)                                                   \
  }
#define DISPATCH(function, r, stream)                                                              \
  switch ((r)->dtype) {                                                                            \
  case KF_FP32: WITH_ROUNDING(function, r, KF_FP32, stream) break;                                 \
  case KF_BF16: WITH_ROUNDING(function, r, KF_BF16, stream) break;                                 \
  case KF_FP16: WITH_ROUNDING(function, r, KF_FP16, stream) break;                                 \
  }

void FORWARD(const kfi_rows *r) {
  bool stream = r->stream && aligned(r, r->y) && (!r->gate || aligned(r, r->x));
  DISPATCH(forward, r, stream)
}

void BACKWARD(const kfi_rows *r) {
  bool stream = r->stream && aligned(r, r->dx) && (!r->gate || aligned(r, r->du));
  DISPATCH(backward, r, stream)
}

void WIDEN(kf_dtype dtype, int64_t n, const void *from, float *to) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    vec v = dtype == KF_FP32   ? take((variant){.dtype = KF_FP32}, from, i)
            : dtype == KF_BF16 ? take((variant){.dtype = KF_BF16}, from, i)
                               : take((variant){.dtype = KF_FP16}, from, i);
    store_fp32(to + i, v);
  }
  for (; i < n; i++) to[i] = kfi_load(dtype, from, i);
}
