/* SPDX-License-Identifier: Apache-2.0 */
/*
** Attention in tiles, written once for all instruction sets: the including file brings TILE, so
** that TILE x 3 vectors and what feeds them fit the registers, and two operations on vectors.
**
** Query rows lie side by side in the lanes, so that the maximum and the sum of a softmax need no
** work across lanes. A strip is up to 3 vectors of query rows; per strip
**
**     q (d, strip)     packed: transposed, times scale * log2(e), so that exp is 2^x
**     s (keys, strip)  scores of KFI_KEYS keys, then p = 2^(s - max), 24 KB of the L1 cache at most
**     o (d, strip)     sum of p v; transposed back and divided by the sum of p at the end
**
** All products are one micro-kernel, `multiply`: TILE rows, each broadcast number by number, times
** up to 3 vectors. Only strides differ:
**
**     s  (keys, strip) = k (keys, d)         q (d, strip)        and the maxima on the way
**     o  (d, strip)   += v (keys, d)^T       p (keys, strip)
**     dp (keys, strip) = v (keys, d)         do (d, strip)
**     dq (d, strip)   += k (keys, d)^T       ds (keys, strip)
**     dv (keys, d)    += p (keys, strip)     do (query rows, d)
**     dk (keys, d)    += ds (keys, strip)    q (query rows, d)
**
** Every sum is made from blocks that start at zero: over 4096 keys a single chain of additions
** would lose two more bits. A lane's operations are the same in whichever strip it stands, and for
** all instruction sets.
**
** Nothing is skipped for what pads a tile: lanes without a query row and columns beyond head_dim
** are computed and not read; keys that do not exist are kept out of the maximum and of the sums.
*/
#include <float.h>
#include <math.h>
#include <string.h>

#define LOG2_E 1.44269504f
#define LN_2 0.693147180559945309

enum {
  STRIP = 3 * LANES,
  CHAIN = 16 /* products that a score adds up before it starts anew */
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t tiles(int64_t n_rows) { return (n_rows + TILE - 1) / TILE * TILE; }

/* Do `call` with nv a constant: 1, 2 or 3 vectors. */
#define WITH_VECTORS(n_vectors, call)                                                              \
  do {                                                                                             \
    if ((n_vectors) == 3) {                                                                        \
      enum { nv = 3 };                                                                             \
      call;                                                                                        \
    } else if ((n_vectors) == 2) {                                                                 \
      enum { nv = 2 };                                                                             \
      call;                                                                                        \
    } else {                                                                                       \
      enum { nv = 1 };                                                                             \
      call;                                                                                        \
    }                                                                                              \
  } while (0)

/* 2^x within 1.5 units in the last place for x in [-126, 127]; below, 2^-126. */
INLINE vec power_of_two(vec x) {
  x = larger(all(-126), x); /* in this order a NaN comes through */
  vec n = nearest(x), r = x - n;
  vec p = muladd(all(0x1.5bba14p-10f), r, all(0x1.3cea88p-7f));
  p = muladd(p, r, all(0x1.c6b752p-5f));
  p = muladd(p, r, all(0x1.ebf9bcp-3f));
  p = muladd(p, r, all(0x1.62e42ap-1f));
  p = muladd(p, r, all(1));
  return times_power(p, n);
}

/* -------------------------------------------------------------------------- products */

/* acc (TILE, nv vectors) += a b; a (TILE, n) by its strides, b (n, nv vectors). */
INLINE void multiply(vec acc[TILE][3], int nv, int64_t n, const float *a, int64_t a_row,
                     int64_t a_step, const float *b, int64_t b_step) {
  for (int64_t t = 0; t < n; t++) {
    vec row[3];
    UNROLL for (int j = 0; j < nv; j++) row[j] = load(b + t * b_step + j * LANES);
    UNROLL for (int i = 0; i < TILE; i++) {
      vec x = all(a[i * a_row + t * a_step]);
      UNROLL for (int j = 0; j < nv; j++) acc[i][j] = muladd(x, row[j], acc[i][j]);
    }
  }
}

INLINE void clear(vec acc[TILE][3], int nv) {
  UNROLL for (int i = 0; i < TILE; i++) { UNROLL for (int j = 0; j < nv; j++) acc[i][j] = all(0); }
}

/* acc (TILE, nv vectors) = a (TILE, pad) b (dim, strip); out has room for partial sums. */
INLINE void inner(vec acc[TILE][3], int nv, int64_t dim, const float *a, int64_t pad,
                  const float *b, float *out) {
  clear(acc, nv);
  for (int64_t d = 0; d < dim; d += CHAIN) {
    if (d > 0) {
      UNROLL for (int i = 0; i < TILE; i++) {
        UNROLL for (int j = 0; j < nv; j++) {
          float *at = out + i * STRIP + j * LANES;
          store(at, d > CHAIN ? load(at) + acc[i][j] : acc[i][j]);
        }
      }
      clear(acc, nv);
    }
    multiply(acc, nv, least(dim - d, CHAIN), a + d, pad, 1, b + d * STRIP, STRIP);
  }
  if (dim <= CHAIN) return;
  UNROLL for (int i = 0; i < TILE; i++) {
    UNROLL for (int j = 0; j < nv; j++) {
      acc[i][j] = load(out + i * STRIP + j * LANES) + acc[i][j];
    }
  }
}

/* Scores of TILE keys, of which n_keys exist, and the largest so far of every query row. */
INLINE void score_tile(int nv, int64_t dim, int64_t pad, int64_t n_keys, const float *k,
                       const float *q, float *s, vec *most) {
  vec acc[TILE][3];
  inner(acc, nv, dim, k, pad, q, s);
  UNROLL for (int i = 0; i < TILE; i++) {
    UNROLL for (int j = 0; j < nv; j++) {
      store(s + i * STRIP + j * LANES, acc[i][j]);
      if (i < n_keys) most[j] = larger(most[j], acc[i][j]);
    }
  }
}

/* o (dim, strip) = o * factor + a^T p, where a is (n_keys, pad) and p (n_keys, strip). */
INLINE void gather_strip(int nv, int64_t dim, int64_t pad, int64_t n_keys, const float *a,
                         const float *p, const vec *factor, float *o) {
  for (int64_t d = 0; d < dim; d += TILE) {
    vec acc[TILE][3];
    clear(acc, nv);
    multiply(acc, nv, n_keys, a + d, 1, pad, p, STRIP);
    UNROLL for (int i = 0; i < TILE; i++) {
      UNROLL for (int j = 0; j < nv; j++) {
        float *at = o + (d + i) * STRIP + j * LANES;
        store(at, muladd(load(at), factor[j], acc[i][j]));
      }
    }
  }
}

/* -------------------------------------------------------------------------- packing */

/* 8 x 8 numbers, transposed in registers: dst (8, 8) = src (8, 8)^T * factor (+ dst). */
static void transpose_8x8(const float *src, int64_t src_step, float factor, float *dst,
                          int64_t dst_step, int adding) {
  __m256 a[8], b[8];
  UNROLL for (int i = 0; i < 8; i++) {
    a[i] = _mm256_mul_ps(_mm256_loadu_ps(src + i * src_step), _mm256_set1_ps(factor));
  }
  UNROLL for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
  }
  UNROLL for (int i = 0; i < 8; i += 4) {
    a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
    a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
    a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
  }
  UNROLL for (int i = 0; i < 4; i++) {
    b[i] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x20);
    b[i + 4] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x31);
  }
  UNROLL for (int i = 0; i < 8; i++) {
    float *at = dst + i * dst_step;
    _mm256_storeu_ps(at, adding ? _mm256_add_ps(_mm256_loadu_ps(at), b[i]) : b[i]);
  }
}

/* dst (n_cols, n_rows) = src (n_rows, n_cols)^T * factor, or added to it. */
static void transpose(int64_t n_rows, int64_t n_cols, const float *src, int64_t src_step,
                      float factor, float *dst, int64_t dst_step, int adding) {
  int64_t whole_rows = n_rows / 8 * 8, whole_cols = n_cols / 8 * 8;
  for (int64_t r = 0; r < whole_rows; r += 8)
    for (int64_t c = 0; c < whole_cols; c += 8)
      transpose_8x8(src + r * src_step + c, src_step, factor, dst + c * dst_step + r, dst_step,
                    adding);
  for (int64_t r = 0; r < n_rows; r++)
    for (int64_t c = r < whole_rows ? whole_cols : 0; c < n_cols; c++) {
      float *at = dst + c * dst_step + r, x = src[r * src_step + c] * factor;
      *at = adding ? *at + x : x;
    }
}

/* Rows (n, dim) become (n, pad) times factor; then rows of zeros up to a multiple of TILE. */
static void pack_rows(int64_t n, int64_t dim, const float *src, int64_t step, float factor,
                      float *dst) {
  int64_t pad = kfi_pad(dim);
  for (int64_t r = 0; r < n; r++, src += step, dst += pad) {
    for (int64_t d = 0; d < dim; d++) dst[d] = src[d] * factor;
    for (int64_t d = dim; d < pad; d++) dst[d] = 0;
  }
  memset(dst, 0, (size_t)((tiles(n) - n) * pad) * sizeof *dst);
}

/* n rows, at most a strip, become (dim, strip). Lanes without a row are 0: garbage may be slow. */
static void pack_strip(int64_t n, int64_t dim, const float *src, int64_t step, float factor,
                       float *dst) {
  if (n < STRIP) memset(dst, 0, (size_t)(dim * STRIP) * sizeof *dst);
  transpose(n, dim, src, step, factor, dst, STRIP, 0);
}

static int vectors(int64_t n_rows) { return (int)((least(n_rows, STRIP) + LANES - 1) / LANES); }

/* -------------------------------------------------------------------------- forward */

/* n_keys keys for one strip, which is most (strip), sum (strip), q and o (pad, strip). */
INLINE void forward_strip(int nv, int64_t dim, int64_t n_keys, const float *k, const float *v,
                          float *s, float *strip) {
  int64_t pad = kfi_pad(dim);
  const float *q = strip + 2 * STRIP;
  vec most[3], factor[3], total[3];
  UNROLL for (int j = 0; j < nv; j++) most[j] = load(strip + j * LANES);
  for (int64_t t = 0; t < n_keys; t += TILE)
    score_tile(nv, dim, pad, n_keys - t, k + t * pad, q, s + t * STRIP, most);
  UNROLL for (int j = 0; j < nv; j++) {
    factor[j] = power_of_two(load(strip + j * LANES) - most[j]);
    store(strip + j * LANES, most[j]);
    total[j] = all(0);
  }
  for (int64_t t = 0; t < n_keys; t++) {
    UNROLL for (int j = 0; j < nv; j++) {
      float *at = s + t * STRIP + j * LANES;
      vec p = power_of_two(load(at) - most[j]);
      total[j] += p;
      store(at, p);
    }
  }
  UNROLL for (int j = 0; j < nv; j++) {
    float *sum = strip + STRIP + j * LANES;
    store(sum, muladd(load(sum), factor[j], total[j]));
  }
  gather_strip(nv, dim, pad, n_keys, v, s, factor, strip + (2 + pad) * STRIP);
}

static void forward_begin(const kfi_head *h, int64_t first, int64_t n, float *strip) {
  int64_t pad = kfi_pad(h->head_dim);
  for (int j = 0; j < STRIP; j++) strip[j] = -FLT_MAX / 2; /* less than any score, yet finite */
  memset(strip + STRIP, 0, STRIP * sizeof *strip);
  pack_strip(n, h->head_dim, h->q + first * h->qkv_step, h->qkv_step, h->scale * LOG2_E,
             strip + 2 * STRIP);
  memset(strip + (2 + pad) * STRIP, 0, (size_t)(pad * STRIP) * sizeof *strip);
}

static void forward_end(const kfi_head *h, int64_t first, int64_t n, float *strip) {
  int64_t pad = kfi_pad(h->head_dim);
  float *most = strip, *sum = strip + STRIP, *o = strip + (2 + pad) * STRIP;
  for (int j = 0; j < vectors(n); j++) {
    vec share = 1.0f / load(sum + j * LANES);
    for (int64_t d = 0; d < h->head_dim; d++) {
      float *at = o + d * STRIP + j * LANES;
      store(at, load(at) * share);
    }
  }
  transpose(h->head_dim, n, o, STRIP, 1, h->o + first * h->o_step, h->o_step, 0);
  if (!h->lse) return;
  for (int64_t r = 0; r < n; r++)
    h->lse[(first + r) * h->lse_step] = (float)((most[r] + log2(sum[r])) * LN_2);
}

/* work: k, v (KFI_KEYS, pad), s (KFI_KEYS, strip), then the strips. */
void FORWARD(const kfi_head *h, int64_t first, float *work) {
  int64_t dim = h->head_dim, pad = kfi_pad(dim), strip_floats = (2 + 2 * pad) * STRIP;
  int64_t n_rows = least(h->rows - first, kfi_forward_rows(h->head_dim));
  float *k = work, *v = k + KFI_KEYS * pad, *s = v + KFI_KEYS * pad, *strips = s + KFI_KEYS * STRIP;
  for (int64_t r = 0; r < n_rows; r += STRIP)
    forward_begin(h, first + r, least(n_rows - r, STRIP), strips + r / STRIP * strip_floats);
  for (int64_t t = 0; t < h->rows; t += KFI_KEYS) {
    int64_t n_keys = least(h->rows - t, KFI_KEYS);
    pack_rows(n_keys, dim, h->k + t * h->qkv_step, h->qkv_step, 1, k);
    pack_rows(n_keys, dim, h->v + t * h->qkv_step, h->qkv_step, 1, v);
    for (int64_t r = 0; r < n_rows; r += STRIP)
      WITH_VECTORS(vectors(n_rows - r),
                   forward_strip(nv, dim, n_keys, k, v, s, strips + r / STRIP * strip_floats));
  }
  for (int64_t r = 0; r < n_rows; r += STRIP)
    forward_end(h, first + r, least(n_rows - r, STRIP), strips + r / STRIP * strip_floats);
}

/* -------------------------------------------------------------------------- backward */

/* A strip of query rows, and the slab that they make up. */
typedef struct slopes {
  float *lse, *delta; /* (strip) lse times log2(e); delta = sum of d_o * o */
  float *q, *d_o;     /* (pad, strip) */
  float *dq;          /* (pad, strip) */
  float *p, *ds;      /* (KFI_KEYS, strip) */
} slopes;

enum { N_STRIPS = KFI_SLAB / STRIP };

typedef struct slab {
  int64_t first, n_rows;
  float *q, *d_o; /* (KFI_SLAB, pad) q times scale */
  slopes strips[N_STRIPS];
} slab;

/* p = 2^(k q - lse) and ds = p (v d_o - delta) of TILE keys. */
INLINE void slope_tile(int nv, int64_t dim, int64_t pad, const float *k, const float *v,
                       const slopes *st, int64_t t) {
  vec acc[TILE][3];
  float *p = st->p + t * STRIP, *ds = st->ds + t * STRIP;
  inner(acc, nv, dim, k + t * pad, pad, st->q, p);
  UNROLL for (int i = 0; i < TILE; i++) {
    UNROLL for (int j = 0; j < nv; j++) {
      vec lse = load(st->lse + j * LANES);
      store(p + i * STRIP + j * LANES, power_of_two(acc[i][j] - lse));
    }
  }
  inner(acc, nv, dim, v + t * pad, pad, st->d_o, ds);
  UNROLL for (int i = 0; i < TILE; i++) {
    UNROLL for (int j = 0; j < nv; j++) {
      vec delta = load(st->delta + j * LANES), share = load(p + i * STRIP + j * LANES);
      store(ds + i * STRIP + j * LANES, share * (acc[i][j] - delta));
    }
  }
}

INLINE void slope_strip(int nv, int64_t dim, int64_t n_keys, const float *k, const float *v,
                        const slopes *st) {
  int64_t pad = kfi_pad(dim);
  vec one[3] = {all(1), all(1), all(1)};
  for (int64_t t = 0; t < n_keys; t += TILE) slope_tile(nv, dim, pad, k, v, st, t);
  gather_strip(nv, dim, pad, n_keys, k, st->ds, one, st->dq);
}

/* TILE rows of dv, from d on, += p d_o; or of dk += ds q. */
INLINE void scatter_tile(int nv, int64_t pad, const slab *g, const float *rows, int64_t t,
                         int64_t d, int slope, float *out) {
  vec acc[TILE][3];
  clear(acc, nv);
  for (int64_t r = 0, i = 0; r < g->n_rows; r += STRIP, i++) {
    const float *a = (slope ? g->strips[i].ds : g->strips[i].p) + t * STRIP;
    multiply(acc, nv, least(g->n_rows - r, STRIP), a, STRIP, 1, rows + r * pad + d, pad);
  }
  UNROLL for (int i = 0; i < TILE; i++) {
    UNROLL for (int j = 0; j < nv; j++) {
      float *at = out + i * pad + d + j * LANES;
      store(at, load(at) + acc[i][j]);
    }
  }
}

/* Columns in vectors by threes, but 4 as 2 and 2: a tile of 1 vector is slow. */
static void scatter(int64_t dim, int64_t n_keys, const slab *g, const float *rows, int slope,
                    float *out) {
  int64_t pad = kfi_pad(dim), n_vectors = (dim + LANES - 1) / LANES;
  for (int64_t left = n_vectors, take; left > 0; left -= take) {
    int64_t d = (n_vectors - left) * LANES;
    take = left == 4 ? 2 : least(left, 3);
    WITH_VECTORS(take, {
      for (int64_t t = 0; t < n_keys; t += TILE)
        scatter_tile(nv, pad, g, rows, t, d, slope, out + t * pad);
    });
  }
}

static float *take(float **work, int64_t n) {
  float *at = *work;
  *work += n;
  return at;
}

/* In double, because dp - delta cancels; in 8 sums, because one would wait for itself. */
static double dot(int64_t n, const float *a, const float *b) {
  double part[8] = {0};
  int64_t d = 0;
  for (; d + 8 <= n; d += 8)
    for (int j = 0; j < 8; j++) part[j] += (double)a[d + j] * b[d + j];
  for (; d < n; d++) part[0] += (double)a[d] * b[d];
  return ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
}

static void slab_begin(const kfi_head *h, int64_t first, slab *g) {
  int64_t dim = h->head_dim;
  g->first = first;
  g->n_rows = least(h->rows - first, KFI_SLAB);
  pack_rows(g->n_rows, dim, h->q + first * h->qkv_step, h->qkv_step, h->scale, g->q);
  pack_rows(g->n_rows, dim, h->d_o + first * h->o_step, h->o_step, 1, g->d_o);
  for (int64_t r = 0, i = 0; r < g->n_rows; r += STRIP, i++) {
    slopes *st = &g->strips[i];
    int64_t at = first + r, n = least(g->n_rows - r, STRIP);
    pack_strip(n, dim, h->q + at * h->qkv_step, h->qkv_step, h->scale * LOG2_E, st->q);
    pack_strip(n, dim, h->d_o + at * h->o_step, h->o_step, 1, st->d_o);
    memset(st->dq, 0, (size_t)(kfi_pad(dim) * STRIP) * sizeof *st->dq);
    memset(st->lse, 0, 2 * STRIP * sizeof *st->lse); /* and delta: lanes without a row */
    for (int64_t j = 0; j < n; j++) {
      int64_t row = (at + j) * h->o_step;
      st->delta[j] = (float)dot(dim, h->o + row, h->d_o + row);
      st->lse[j] = (float)((double)h->lse[(at + j) * h->lse_step] / LN_2);
    }
  }
}

static void slab_end(const kfi_head *h, const slab *g, kfi_turn turn) {
  int64_t n = g->first / KFI_SLAB;
  kfi_turn_wait(&turn, n);
  for (int64_t r = 0, i = 0; r < g->n_rows; r += STRIP, i++)
    transpose(h->head_dim, least(g->n_rows - r, STRIP), g->strips[i].dq, STRIP, h->scale,
              h->dq + (g->first + r) * h->qkv_step, h->qkv_step, turn.before != NULL);
  kfi_turn_done(&turn, n);
}

static void unpack_rows(int64_t n, int64_t dim, const float *src, float *dst, int64_t step) {
  for (int64_t r = 0; r < n; r++)
    memcpy(dst + r * step, src + r * kfi_pad(dim), (size_t)dim * sizeof *dst);
}

void BACKWARD(const kfi_head *h, int64_t first, kfi_turn turn, float *work) {
  int64_t dim = h->head_dim, pad = kfi_pad(dim), most = kfi_backward_rows(h->head_dim);
  int64_t n_keys = least(h->rows - first, most);
  float *k = take(&work, most * pad), *v = take(&work, most * pad);
  float *dk = take(&work, most * pad), *dv = take(&work, most * pad);
  slab g;
  g.q = take(&work, KFI_SLAB * pad);
  g.d_o = take(&work, KFI_SLAB * pad);
  for (int i = 0; i < N_STRIPS; i++) {
    slopes *st = &g.strips[i];
    st->lse = take(&work, 2 * STRIP);
    st->delta = st->lse + STRIP;
    st->q = take(&work, pad * STRIP);
    st->d_o = take(&work, pad * STRIP);
    st->dq = take(&work, pad * STRIP);
    st->p = take(&work, KFI_KEYS * STRIP);
    st->ds = take(&work, KFI_KEYS * STRIP);
  }
  pack_rows(n_keys, dim, h->k + first * h->qkv_step, h->qkv_step, 1, k);
  pack_rows(n_keys, dim, h->v + first * h->qkv_step, h->qkv_step, 1, v);
  memset(dk, 0, (size_t)(tiles(n_keys) * pad) * sizeof *dk);
  memset(dv, 0, (size_t)(tiles(n_keys) * pad) * sizeof *dv);
  for (int64_t r = 0; r < h->rows; r += KFI_SLAB) {
    slab_begin(h, r, &g);
    for (int64_t t = 0; t < n_keys; t += KFI_KEYS) {
      int64_t n = least(n_keys - t, KFI_KEYS);
      for (int64_t i = 0; i * STRIP < g.n_rows; i++)
        WITH_VECTORS(vectors(g.n_rows - i * STRIP),
                     slope_strip(nv, dim, n, k + t * pad, v + t * pad, &g.strips[i]));
      scatter(dim, n, &g, g.d_o, 0, dv + t * pad);
      scatter(dim, n, &g, g.q, 1, dk + t * pad);
    }
    slab_end(h, &g, turn);
  }
  unpack_rows(n_keys, dim, dk, h->dk + first * h->qkv_step, h->qkv_step);
  unpack_rows(n_keys, dim, dv, h->dv + first * h->qkv_step, h->qkv_step);
}
