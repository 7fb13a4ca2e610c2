/* SPDX-License-Identifier: Apache-2.0 */
/*
** LayerNorm-Modulate of a chunk's rows in vectors; included once per instruction set, which gives
** PIECE, what simd.h has not, fold() and the names of the three functions at the end. adaln.h says
** in which order everything is added.
**
** The work is bound by memory, and the order of the walk is what counts. Rows are taken in slabs
** that fit in L2. First the sums of each row, from memory, in one pass: a span of 256 columns is
** held in registers for both of its sums. Then the slab is written tile by tile of columns, from
** L2, past the caches, so that the modulation's tile, and in backward the column sums' tile, stay
** in L1. Every other thread does so half a slab later: one reads while the other writes.
**
**              tile 0        tile 1
**     row 0  | 1 ------>  | 5 ------>  |
**     row 1  | 2 ------>  | 6 ------>  |
**     row 2  | 3 ------>  | ..         |
**     row 3  | 4 ------>  |            |
**
** Rejected, in times of a copy on one thread of a Zen 4, where this way has 1.4 to 1.7 and reading
** alone 0.67, storing alone 0.72: writing row t while row t+1 is read 1.8 to 2.2, four rows at once
** 1.6 to 1.9, with prefetches no better (what is fetched while stores go past the caches is late or
** dropped), prefetches in the first pass 1.5 to 2.3, stores through the caches 2.5. Sum and squares
** in two passes over the row: a fifth slower (measured with a modulation of zeros only). Beware of
** that: rows of zeros are stored faster here, by a tenth of the whole.
*/
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "dtype.h"

enum {
  V = PIECE / LANES, /* vectors of a piece */
  N_PIECES = KFI_STRANDS / PIECE,
  STRAND_VECS = KFI_STRANDS / LANES,
  SPAN_VECS = KFI_SPAN / LANES,
  STEPS = KFI_SPAN / KFI_STRANDS,
  HELD = SPAN_VECS <= 16, /* a span fits in the registers */
  TILE = 512,
  BATCH = 8,
  AT_ONCE = 2,       /* rows of backward */
  SPREAD = LANES / 2 /* vectors of backward that are stored one after the other */
};

/* What the compiler knows when it makes one of the variants, but for stream. */
typedef struct variant {
  kf_dtype dtype;
  bool each, gated, stream;
} variant;

INLINE const void *at(variant o, const void *p, int64_t i) {
  return (const char *)p + i * kfi_dtype_bytes(o.dtype);
}
INLINE void *at_out(variant o, void *p, int64_t i) {
  return (char *)p + i * kfi_dtype_bytes(o.dtype);
}

/* ----------------------------------------------------------------- vectors of a dtype */

INLINE vec take(variant o, const void *p, int64_t i) {
  const void *from = at(o, p, i);
  return o.dtype == KF_F32 ? load(from) : o.dtype == KF_BF16 ? load_bf16(from) : load_fp16(from);
}

INLINE void put(variant o, void *p, int64_t i, vec v) {
  void *to = at_out(o, p, i);
  if (o.dtype == KF_F32)
    o.stream ? stream_fp32(to, v) : store(to, v);
  else if (o.dtype == KF_BF16)
    o.stream ? stream_half(to, to_bf16(v)) : store_half(to, to_bf16(v));
  else
    o.stream ? stream_half(to, to_fp16(v)) : store_half(to, to_fp16(v));
}

/* Two vectors that follow each other. */
INLINE void put_pair(variant o, void *p, int64_t i, vec a, vec b) {
  if (o.dtype != KF_BF16) {
    put(o, p, i, a);
    put(o, p, i + LANES, b);
  } else {
    void *to = at_out(o, p, i);
    o.stream ? stream_pair(to, pair_bf16(a, b)) : store_pair(to, pair_bf16(a, b));
  }
}

INLINE vec rounded(variant o, vec v) {
  return o.dtype == KF_F32 ? v : o.dtype == KF_BF16 ? round_bf16(v) : round_fp16(v);
}

/* [R] of adaln.h */
INLINE vec maybe(variant o, vec v) { return o.each ? rounded(o, v) : v; }

/* a * b + c */
INLINE vec combine(variant o, vec a, vec b, vec c) {
  return o.each ? rounded(o, a * b) + c : muladd(a, b, c);
}

/* n < LANES elements from i on, the other lanes 0; and back. */
INLINE vec take_part(variant o, const void *p, int64_t i, int64_t n) {
  _Alignas(64) char part[LANES * sizeof(float)] = {0};
  memcpy(part, at(o, p, i), (size_t)(n * kfi_dtype_bytes(o.dtype)));
  return take(o, part, 0);
}

INLINE void put_part(variant o, void *p, int64_t i, int64_t n, vec v) {
  _Alignas(64) char part[LANES * sizeof(float)];
  put(o, part, 0, v);
  memcpy(at_out(o, p, i), part, (size_t)(n * kfi_dtype_bytes(o.dtype)));
}

/* The same for n lanes, all of them where n is LANES: then it is a constant. */
INLINE vec take_n(variant o, const void *p, int64_t i, int64_t n) {
  return n == LANES ? take(o, p, i) : take_part(o, p, i, n);
}

INLINE void put_n(variant o, void *p, int64_t i, int64_t n, vec v) {
  n == LANES ? put(o, p, i, v) : put_part(o, p, i, n, v);
}

/* How many rows the slab has that begins with row t. */
INLINE int64_t slab_at(const kfi_adaln_task *r, int64_t t, int64_t most) {
  int64_t n = t == 0 && r->late ? most / 2 : most;
  return r->n - t < n ? r->n - t : n;
}

/* ----------------------------------------------------------------------- forward */

/* A row of forward. x is read as it is given, or in fp32 where it was made of residual and u. */
typedef struct line {
  const void *residual, *u;
  void *x, *y;
  float *made;
  float mean, rstd;
} line;

/* x from column i on, made of residual and u if there is a gate. */
INLINE vec first_x(variant o, const kfi_adaln_task *r, const line *row, int64_t i, int64_t n) {
  if (!o.gated) return take_n(o, row->x, i, n);
  vec u = take_n(o, row->u, i, n), residual = take_n(o, row->residual, i, n);
  vec x = combine(o, load(r->gate + i), u, residual);
  put_n(o, row->x, i, n, x);
  x = rounded(o, x);
  store(row->made + i, x);
  return x;
}

/* The same, when it is there. */
INLINE vec again_x(variant o, const line *row, int64_t i, int64_t n) {
  return o.gated ? load(row->made + i) : take_n(o, row->x, i, n);
}

/* The two trees, from strands in vectors. */
INLINE double fold_sum(const vec *s) {
  return N_PIECES == 1 ? fold_exactly(s) : fold_exactly(s) + fold_exactly(s + V);
}

INLINE float fold_squares(const vec *s) { return N_PIECES == 1 ? fold(s) : fold(s) + fold(s + V); }

/* A whole span. Registers hold it between its two sums if there are enough; else it is read again,
** from L1. */
INLINE kfi_adaln_span whole_span(variant o, const kfi_adaln_task *r, const line *row, int64_t c) {
  vec x[SPAN_VECS], sum[STRAND_VECS], squares[STRAND_VECS];
  UNROLL for (int v = 0; v < STRAND_VECS; v++) sum[v] = squares[v] = all(0);
  UNROLL for (int i = 0; i < SPAN_VECS; i++) {
    vec at_i = hold(first_x(o, r, row, c + i * LANES, LANES));
    if (HELD) x[i] = at_i;
    sum[i % STRAND_VECS] += at_i;
  }
  kfi_adaln_span span = kfi_adaln_span_of(fold_sum(sum), KFI_SPAN);
  UNROLL for (int i = 0; i < SPAN_VECS; i++) {
    vec d = (HELD ? x[i] : again_x(o, row, c + i * LANES, LANES)) - span.mean;
    squares[i % STRAND_VECS] = muladd(d, d, squares[i % STRAND_VECS]);
  }
  span.squares = fold_squares(squares);
  return span;
}

/* The last columns of a row, less than a span, through a buffer; what is missing counts as 0. */
INLINE kfi_adaln_span short_span(variant o, const kfi_adaln_task *r, const line *row, int64_t c) {
  _Alignas(64) float columns[KFI_SPAN + LANES] = {0};
  vec sum[STRAND_VECS], squares[STRAND_VECS];
  int64_t n = r->dim - c, i = 0;
  for (; i + LANES <= n; i += LANES) store(columns + i, first_x(o, r, row, c + i, LANES));
  if (i < n) store(columns + i, first_x(o, r, row, c + i, n - i));
  for (i = n; i < KFI_SPAN; i++) columns[i] = 0;
  for (int v = 0; v < STRAND_VECS; v++) sum[v] = squares[v] = all(0);
  for (int v = 0; v < SPAN_VECS; v++) sum[v % STRAND_VECS] += load(columns + v * LANES);
  kfi_adaln_span span = kfi_adaln_span_of(fold_sum(sum), (float)n);
  for (i = 0; i < n; i++) columns[i] -= span.mean;
  for (int v = 0; v < SPAN_VECS; v++) {
    vec d = load(columns + v * LANES);
    squares[v % STRAND_VECS] = muladd(d, d, squares[v % STRAND_VECS]);
  }
  span.squares = fold_squares(squares);
  return span;
}

/* The row's mean and rstd. */
INLINE void statistics(variant o, const kfi_adaln_task *r, line *row, kfi_adaln_span *spans) {
  int64_t c = 0;
  for (; c + KFI_SPAN <= r->dim; c += KFI_SPAN) spans[c / KFI_SPAN] = whole_span(o, r, row, c);
  if (c < r->dim) spans[c / KFI_SPAN] = short_span(o, r, row, c);
  kfi_adaln_moments(r->dim, r->eps, spans, &row->mean, &row->rstd);
}

/* xhat, and y, of n columns from i on. */
INLINE vec xhat_of(variant o, const line *row, int64_t i, int64_t n) {
  return maybe(o, (again_x(o, row, i, n) - row->mean) * row->rstd);
}

INLINE vec y_of(variant o, const kfi_adaln_task *r, vec xhat, int64_t i) {
  return combine(o, xhat, load(r->factor + i), load(r->shift + i));
}

/* y of columns c to end - 1. Stores come eight in a row, which mixes better with the loads. */
INLINE void write_row(variant o, const kfi_adaln_task *r, const line *row, int64_t c, int64_t end) {
  for (; c + BATCH * LANES <= end; c += BATCH * LANES) {
    vec y[BATCH];
    UNROLL for (int v = 0; v < BATCH; v++) y[v] = xhat_of(o, row, c + v * LANES, LANES);
    UNROLL for (int v = 0; v < BATCH; v++) y[v] = y_of(o, r, y[v], c + v * LANES);
    UNROLL for (int v = 0; v < BATCH; v += 2) put_pair(o, row->y, c + v * LANES, y[v], y[v + 1]);
  }
  for (; c + LANES <= end; c += LANES) put(o, row->y, c, y_of(o, r, xhat_of(o, row, c, LANES), c));
  if (c < end) put_n(o, row->y, c, end - c, y_of(o, r, xhat_of(o, row, c, end - c), c));
}

INLINE void forward_slab(variant o, const kfi_adaln_task *r, int64_t t, int64_t n) {
  int64_t pad = kfi_adaln_pad(r->dim);
  line rows[KFI_FORWARD_SLAB];
  for (int64_t k = 0; k < n; k++) {
    int64_t first = (t + k) * r->dim;
    rows[k] = (line){.residual = o.gated ? at(o, r->residual, first) : NULL,
                     .u = o.gated ? at(o, r->u, first) : NULL,
                     .x = at_out(o, r->x, first),
                     .y = at_out(o, r->y, first),
                     .made = r->work + k * pad};
    statistics(o, r, &rows[k], (kfi_adaln_span *)(void *)(r->work + KFI_FORWARD_SLAB * pad));
    if (r->mean) r->mean[t + k] = rows[k].mean, r->rstd[t + k] = rows[k].rstd;
  }
  for (int64_t c = 0; c < r->dim; c += TILE)
    for (int64_t k = 0; k < n; k++) {
      const line row = rows[k];
      write_row(o, r, &row, c, c + TILE < r->dim ? c + TILE : r->dim);
    }
}

INLINE void forward(const kfi_adaln_task *r, variant o) {
  for (int64_t t = 0, n; t < r->n; t += n) {
    n = slab_at(r, t, KFI_FORWARD_SLAB);
    forward_slab(o, r, t, n);
  }
}

/* ---------------------------------------------------------------------- backward */

/* A row of backward, and what is known of it when its dx is computed. */
typedef struct slope {
  const void *x, *dy, *dx_add, *u;
  void *dx, *du;
  float mean, rstd, c1, c2;
} slope;

/* dy, x_ and g of adaln.h, n columns from i on. */
typedef struct place {
  vec dy, x_, g;
} place;

INLINE place place_of(variant o, vec factor, const slope *row, int64_t i, int64_t n) {
  place p;
  p.dy = take_n(o, row->dy, i, n);
  p.x_ = (take_n(o, row->x, i, n) - row->mean) * row->rstd;
  p.g = maybe(o, p.dy * factor);
  return p;
}

/* The first n < LANES lanes, the others 0. */
INLINE vec cut(vec v, int64_t n) {
  _Alignas(64) float lanes[LANES];
  store(lanes, v);
  for (int64_t j = n; j < LANES; j++) lanes[j] = 0;
  return load(lanes);
}

/* c1 and c2 of one piece: four steps from column c on, or what the row has of them. */
INLINE void slope_piece(variant o, const kfi_adaln_task *r, const slope *row, int64_t c,
                        float *sums, bool whole) {
  vec sum1[V], sum2[V];
  UNROLL for (int v = 0; v < V; v++) sum1[v] = sum2[v] = all(0);
  UNROLL for (int j = 0; j < STEPS * V; j++) {
    int v = j % V;
    int64_t i = c + j / V * KFI_STRANDS + v * LANES, n = r->dim - i;
    if (!whole && n <= 0) continue;
    vec factor = load(r->factor + i);
    place p;
    if (whole || n >= LANES) {
      p = place_of(o, factor, row, i, LANES);
    } else {
      p = place_of(o, factor, row, i, n);
      p.g = cut(p.g, n);
      p.x_ = cut(p.x_, n);
    }
    sum1[v] += p.g;
    sum2[v] = muladd(p.g, p.x_, sum2[v]);
  }
  sums[0] = fold(sum1);
  sums[1] = fold(sum2);
}

/* The same for a span. */
INLINE void slope_span(variant o, const kfi_adaln_task *r, const slope *row, int64_t c,
                       float *totals, bool whole) {
  float sums[2] = {0, 0}, more[2] = {0, 0};
  slope_piece(o, r, row, c, sums, whole);
  if (N_PIECES > 1) slope_piece(o, r, row, c + PIECE, more, whole);
  for (int k = 0; k < 2; k++) totals[k] += N_PIECES > 1 ? sums[k] + more[k] : sums[k];
}

/* The row's c1 and c2. */
INLINE void slopes(variant o, const kfi_adaln_task *r, slope *row) {
  const slope from = *row;
  float totals[2] = {0, 0};
  int64_t c = 0;
  for (; c + KFI_SPAN <= r->dim; c += KFI_SPAN) slope_span(o, r, &from, c, totals, true);
  if (c < r->dim) slope_span(o, r, &from, c, totals, false);
  row->c1 = totals[0] / (float)r->dim;
  row->c2 = totals[1] / (float)r->dim;
}

/* What a tile's columns share: the modulation, and the column sums that rows add to. */
typedef struct columns {
  const float *factor, *gate;
  float *dscale, *dshift, *dgate;
} columns;

/* d of n columns from i on of each of n_rows rows, and what they add to the column sums. */
INLINE void spread(variant o, const columns *s, const slope *rows, int n_rows, int64_t i, int64_t n,
                   vec *d) {
  vec factor = load(s->factor + i), dgate = o.gated ? load(s->dgate + i) : all(0);
  vec dscale = load(s->dscale + i), dshift = load(s->dshift + i);
  UNROLL for (int k = 0; k < n_rows; k++) {
    const slope *row = &rows[k];
    place p = place_of(o, factor, row, i, n);
    dscale = combine(o, p.dy, maybe(o, p.x_), dscale);
    dshift += p.dy;
    d[k] = mulsub(p.x_, all(row->c2), p.g - row->c1);
    d[k] = maybe(o, row->rstd * d[k]);
    if (row->dx_add) d[k] = maybe(o, d[k] + take_n(o, row->dx_add, i, n));
    if (o.gated) dgate = combine(o, d[k], take_n(o, row->u, i, n), dgate);
  }
  store(s->dscale + i, dscale);
  store(s->dshift + i, dshift);
  if (o.gated) store(s->dgate + i, dgate);
}

/* dx and du of SPREAD vectors from column c on. */
INLINE void put_spread(variant o, const columns *s, const slope *rows, int n_rows, int64_t c) {
  vec d[SPREAD][AT_ONCE];
  UNROLL for (int v = 0; v < SPREAD; v++) spread(o, s, rows, n_rows, c + v * LANES, LANES, d[v]);
  UNROLL for (int k = 0; k < n_rows; k++) {
    UNROLL for (int v = 0; v < SPREAD; v += 2)
      put_pair(o, rows[k].dx, c + v * LANES, d[v][k], d[v + 1][k]);
    if (!o.gated) continue;
    UNROLL for (int v = 0; v < SPREAD; v += 2) {
      const float *gate = s->gate + c + v * LANES;
      put_pair(o, rows[k].du, c + v * LANES, load(gate) * d[v][k],
               load(gate + LANES) * d[v + 1][k]);
    }
  }
}

/* Columns c to end - 1 of n_rows rows. */
INLINE void spread_tile(variant o, const columns *s, const slope *from, int n_rows, int64_t c,
                        int64_t end) {
  slope rows[AT_ONCE]; /* a copy that nothing else points to */
  for (int k = 0; k < n_rows; k++) rows[k] = from[k];
  for (; c + SPREAD * LANES <= end; c += SPREAD * LANES) put_spread(o, s, rows, n_rows, c);
  for (; c < end; c += LANES) {
    vec d[AT_ONCE];
    int64_t n = end - c < LANES ? end - c : LANES;
    spread(o, s, rows, n_rows, c, n, d);
    for (int k = 0; k < n_rows; k++) {
      put_n(o, rows[k].dx, c, n, d[k]);
      if (o.gated) put_n(o, rows[k].du, c, n, load(s->gate + c) * d[k]);
    }
  }
}

INLINE void backward_slab(variant o, const kfi_adaln_task *r, int64_t t, int64_t n) {
  int64_t stride = kfi_adaln_stride(r->dim);
  const columns s = {r->factor, r->gate, r->sums, r->sums + stride, r->sums + 2 * stride};
  slope rows[KFI_BACKWARD_SLAB];
  for (int64_t k = 0; k < n; k++) {
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
  for (int64_t c = 0; c < r->dim; c += TILE) {
    int64_t end = c + TILE < r->dim ? c + TILE : r->dim;
    int64_t k = 0;
    for (; k + AT_ONCE <= n; k += AT_ONCE) spread_tile(o, &s, rows + k, AT_ONCE, c, end);
    for (; k < n; k++) spread_tile(o, &s, rows + k, 1, c, end);
  }
}

INLINE void backward(const kfi_adaln_task *r, variant o) {
  memset(r->sums, 0, (size_t)((o.gated ? 3 : 2) * kfi_adaln_stride(r->dim)) * sizeof *r->sums);
  for (int64_t t = 0, n; t < r->n; t += n) {
    n = slab_at(r, t, KFI_BACKWARD_SLAB);
    backward_slab(o, r, t, n);
  }
}

/* ---------------------------------------------------------------------- variants */

/* Whether all rows of a tensor that is written begin on a cache line. */
static bool aligned(const kfi_adaln_task *r, const void *tensor) {
  return (uintptr_t)tensor % 64 == 0 && r->dim * kfi_dtype_bytes(r->dtype) % 64 == 0;
}

/* The variants are functions of their own: in one large function gcc takes ten times as long.
** Rounding once, without and with a gate, are made of their own; rounding each is in no hurry. */
typedef void made_variant(const kfi_adaln_task *r, bool stream);
#define VARIANT(function, name, dtype, each, gated)                                                \
  static __attribute__((noinline)) void function##_##name(const kfi_adaln_task *r, bool stream) {  \
    function(r, (variant){dtype, each, gated, stream});                                            \
  }
#define VARIANTS(function)                                                                         \
  VARIANT(function, fp32, KF_F32, false, false)                                                    \
  VARIANT(function, fp32_gated, KF_F32, false, true)                                               \
  VARIANT(function, fp32_each, KF_F32, true, r->gate != NULL)                                      \
  VARIANT(function, bf16, KF_BF16, false, false)                                                   \
  VARIANT(function, bf16_gated, KF_BF16, false, true)                                              \
  VARIANT(function, bf16_each, KF_BF16, true, r->gate != NULL)                                     \
  VARIANT(function, fp16, KF_F16, false, false)                                                    \
  VARIANT(function, fp16_gated, KF_F16, false, true)                                               \
  VARIANT(function, fp16_each, KF_F16, true, r->gate != NULL)                                      \
  static made_variant *const function##s[][3] = {                                                  \
    {function##_fp32, function##_fp32_gated, function##_fp32_each},                                \
    {function##_bf16, function##_bf16_gated, function##_bf16_each},                                \
    {function##_fp16, function##_fp16_gated, function##_fp16_each}}

VARIANTS(forward);
VARIANTS(backward);

static int kind_of(const kfi_adaln_task *r) { return r->each ? 2 : r->gate ? 1 : 0; }

void FORWARD(const kfi_adaln_task *r) {
  bool stream = r->stream && aligned(r, r->y) && (!r->gate || aligned(r, r->x));
  forwards[r->dtype][kind_of(r)](r, stream);
  if (stream) _mm_sfence(); /* such stores keep no order of themselves: others may read now */
}

void BACKWARD(const kfi_adaln_task *r) {
  bool stream = r->stream && aligned(r, r->dx) && (!r->gate || aligned(r, r->du));
  backwards[r->dtype][kind_of(r)](r, stream);
  if (stream) _mm_sfence();
}

void WIDEN(kf_dtype dtype, int64_t n, const void *from, float *to) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    vec v = dtype == KF_F32    ? take((variant){.dtype = KF_F32}, from, i)
            : dtype == KF_BF16 ? take((variant){.dtype = KF_BF16}, from, i)
                               : take((variant){.dtype = KF_F16}, from, i);
    store(to + i, v);
  }
  for (; i < n; i++) to[i] = kfi_element(dtype, from, i);
}
