/* SPDX-License-Identifier: Apache-2.0 */
/*
** LayerNorm-Modulate on the CPU: what is asked is checked, cut into chunks, and computed by
** n_threads threads with the kernel of the wanted instruction set. adaln.h has the order of the
** arithmetic, adaln_portable.c the plain kernels.
**
** Threads take chunks (at most 32 neighbouring tokens of one sequence) from one counter. In
** backward a chunk's sums for dscale and dshift go to a place of its own; a second round of threads
** adds them up, in order of chunks, so it does not matter who computed which.
**
**     workspace: chunk table | chunk_off | sums of chunk 0, 1, .. | worker 0, 1, ..
*/
#include "adaln.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "../status.h"
#include "dtype.h"
#include "isa.h"
#include "threads.h"
#include "workspace.h"

typedef struct kernel {
  kfi_adaln_rows *forward, *backward;
  kfi_adaln_widen *widen;
} kernel;

/* In the order of kf_isa, without KF_ISA_BEST; NULL where the library has none. */
static const kernel kernels[] = {
  {kfi_adaln_forward_portable, kfi_adaln_backward_portable, kfi_adaln_widen_portable},
#ifdef KF_HAVE_AVX
  {kfi_adaln_forward_avx2, kfi_adaln_backward_avx2, kfi_adaln_widen_avx2},
  {kfi_adaln_forward_avx512, kfi_adaln_backward_avx512, kfi_adaln_widen_avx512}
#else
  {NULL, NULL, NULL},
  {NULL, NULL, NULL}
#endif
};

enum {
  PAGE = 4096,
  TILE = 512,           /* columns that are added up at once: their doubles stay in L1 */
  STREAM_FROM = 4 << 20 /* bytes of a tensor from which it is written past the caches */
};

static int64_t n_threads_of(const kf_adaln *a) { return a->n_threads < 1 ? 1 : a->n_threads; }

static int64_t stride_of(const kf_adaln *a) { return a->mod_stride ? a->mod_stride : a->dim; }

static kf_dtype mod_dtype(const kf_adaln *a) { return a->mod_fp32 ? KF_F32 : a->dtype; }

/* ------------------------------------------------------------------------------ checks */

/* Nothing that is addressed, or laid out in a workspace, is further away than this in elements. */
#define MOST_ELEMENTS (INT64_MAX / 64)

static kf_status check_numbers(const kf_adaln *a) {
  if (a->dim < 1 || a->dim > KF_MAX_DIM)
    return kfi_fail(KF_EINVAL, "dim is %lld, expected 1 to %d", (long long)a->dim, KF_MAX_DIM);
  if (a->n_tokens < 0 || a->n_tokens > MOST_ELEMENTS / kfi_adaln_pad(a->dim))
    return kfi_fail(KF_EINVAL, "n_tokens is %lld, expected 0 to %lld with dim %lld",
                    (long long)a->n_tokens, (long long)(MOST_ELEMENTS / kfi_adaln_pad(a->dim)),
                    (long long)a->dim);
  if (a->n_seqs < 0 || a->n_seqs > INT32_MAX)
    return kfi_fail(KF_EINVAL, "n_seqs is %lld, expected 0 to %d", (long long)a->n_seqs, INT32_MAX);
  if (a->mod_stride != 0 && (a->mod_stride < a->dim || a->mod_stride > MOST_ELEMENTS / INT32_MAX))
    return kfi_fail(KF_EINVAL, "mod_stride is %lld, expected 0 or %lld, the dim, to %lld",
                    (long long)a->mod_stride, (long long)a->dim,
                    (long long)(MOST_ELEMENTS / INT32_MAX));
  if (a->dtype != KF_F32 && a->dtype != KF_BF16 && a->dtype != KF_F16)
    return kfi_fail(KF_EINVAL, "dtype is %d (%s), expected %d (f32), %d (bf16) or %d (f16)",
                    (int)a->dtype, kfi_dtype_name(a->dtype), KF_F32, KF_BF16, KF_F16);
  if (a->rounding != KF_ROUND_ONCE && a->rounding != KF_ROUND_EACH)
    return kfi_fail(KF_EINVAL, "rounding is %d, expected 0 or 1", (int)a->rounding);
  if (a->mod_fp32 && a->rounding == KF_ROUND_EACH && a->dtype != KF_F32)
    return kfi_fail(KF_EINVAL,
                    "mod_fp32 is %d with rounding %d, expected 0, because every operation rounds "
                    "to dtype %d",
                    (int)a->mod_fp32, (int)a->rounding, (int)a->dtype);
  if (!(a->eps >= 0) || isinf(a->eps))
    return kfi_fail(KF_EINVAL, "eps is %g, expected 0 or more", (double)a->eps);
  if (a->n_threads < 0)
    return kfi_fail(KF_EINVAL, "n_threads is %d, expected 0 or more", (int)a->n_threads);
  return KF_OK;
}

static kf_status check_cu_seqlens(const kf_adaln *a) {
  const int64_t *cu = a->cu_seqlens;
  if (cu[0] != 0) return kfi_fail(KF_EINVAL, "cu_seqlens[0] is %lld, expected 0", (long long)cu[0]);
  for (int64_t s = 0; s < a->n_seqs; s++)
    if (cu[s + 1] < cu[s])
      return kfi_fail(KF_EINVAL, "cu_seqlens[%lld] is %lld, expected at least the %lld before it",
                      (long long)s + 1, (long long)cu[s + 1], (long long)cu[s]);
  if (cu[a->n_seqs] != a->n_tokens)
    return kfi_fail(KF_EINVAL, "cu_seqlens[%lld] is %lld, expected n_tokens, %lld",
                    (long long)a->n_seqs, (long long)cu[a->n_seqs], (long long)a->n_tokens);
  return KF_OK;
}

static kf_status check_seq_index(const kf_adaln *a) {
  if (a->n_seqs == 0 && a->n_tokens > 0)
    return kfi_fail(KF_EINVAL, "n_seqs is 0, expected at least 1 for %lld tokens",
                    (long long)a->n_tokens);
  for (int64_t t = 0; t < a->n_tokens; t++)
    if (a->seq_index[t] < 0 || a->seq_index[t] >= a->n_seqs)
      return kfi_fail(KF_EINVAL, "seq_index[%lld] is %d, expected 0 to %lld, n_seqs is %lld",
                      (long long)t, (int)a->seq_index[t], (long long)a->n_seqs - 1,
                      (long long)a->n_seqs);
  return KF_OK;
}

/* All but tensors and workspace. */
static kf_status check_shape(const kf_adaln *a) {
  kf_status status;
  if (!a) return kfi_fail(KF_EINVAL, "adaln is NULL");
  if ((status = check_numbers(a))) return status;
  if (a->cu_seqlens && a->seq_index)
    return kfi_fail(KF_EINVAL, "cu_seqlens and seq_index are both set, expected one of them");
  if (a->cu_seqlens) return check_cu_seqlens(a);
  if (a->seq_index) return check_seq_index(a);
  if (a->n_tokens > 0)
    return kfi_fail(KF_EINVAL,
                    "cu_seqlens and seq_index are both NULL, expected one of them for %lld tokens",
                    (long long)a->n_tokens);
  return KF_OK;
}

enum { BOTH, FORWARD, BACKWARD };

static kf_status check_tensors(const kf_adaln *a, int pass) {
  const struct {
    const char *name;
    const void *at;
    int pass;
    bool gated, per_seq;
  } tensors[] = {
    {"x", a->x, BOTH, false, false},
    {"scale", a->scale, BOTH, false, true},
    {"u", a->u, BOTH, true, false},
    {"y", a->y, FORWARD, false, false},
    {"shift", a->shift, FORWARD, false, true},
    {"residual", a->residual, FORWARD, true, false},
    {"dy", a->dy, BACKWARD, false, false},
    {"mean", a->mean, BACKWARD, false, false},
    {"rstd", a->rstd, BACKWARD, false, false},
    {"dx", a->dx, BACKWARD, false, false},
    {"dscale", a->dscale, BACKWARD, false, true},
    {"dshift", a->dshift, BACKWARD, false, true},
    {"du", a->du, BACKWARD, true, false},
    {"dgate", a->dgate, BACKWARD, true, true},
  };
  for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
    bool asked = tensors[i].pass == BOTH || tensors[i].pass == pass;
    int64_t rows = tensors[i].per_seq ? a->n_seqs : a->n_tokens;
    if (asked && rows > 0 && !tensors[i].at && (a->gate || !tensors[i].gated))
      return kfi_fail(KF_EINVAL, "%s is NULL, expected a tensor for %s%s", tensors[i].name,
                      pass == BACKWARD ? "backward" : "forward",
                      tensors[i].gated ? " with a gate" : "");
  }
  if (pass == FORWARD && a->n_tokens > 0 && !a->mean != !a->rstd)
    return kfi_fail(KF_EINVAL, "%s is NULL and %s is not, expected both or none",
                    a->mean ? "rstd" : "mean", a->mean ? "mean" : "rstd");
  return KF_OK;
}

kf_status kf_adaln_check(const kf_adaln *adaln, int backward) {
  kf_status status = check_shape(adaln);
  return status ? status : check_tensors(adaln, backward ? BACKWARD : FORWARD);
}

/* ------------------------------------------------------------------------- the chunk table */

static int64_t pieces(int64_t n_tokens) { return (n_tokens + KF_ADALN_CHUNK - 1) / KF_ADALN_CHUNK; }

/* The end of the tokens of one sequence that begin with token t. */
static int64_t seq_end(const kf_adaln *a, int64_t t) {
  int64_t end = t + 1;
  while (end < a->n_tokens && a->seq_index[end] == a->seq_index[t]) end++;
  return end;
}

static int64_t count_chunks(const kf_adaln *a) {
  int64_t n = 0;
  if (a->cu_seqlens)
    for (int64_t s = 0; s < a->n_seqs; s++) n += pieces(a->cu_seqlens[s + 1] - a->cu_seqlens[s]);
  else if (a->seq_index)
    for (int64_t t = 0, end; t < a->n_tokens; t = end) n += pieces((end = seq_end(a, t)) - t);
  return n;
}

/* Cut tokens first to end - 1 of seq into chunks; returns the place after the last one. */
static kf_adaln_chunk *cut(int64_t first, int64_t end, int64_t seq, kf_adaln_chunk *to) {
  for (; first < end; first += KF_ADALN_CHUNK, to++)
    *to = (kf_adaln_chunk){
      first, (int32_t)(end - first < KF_ADALN_CHUNK ? end - first : KF_ADALN_CHUNK), (int32_t)seq};
  return to;
}

static void list_by_length(const kf_adaln *a, kf_adaln_chunk *chunk, int64_t *off) {
  const int64_t *cu = a->cu_seqlens;
  off[0] = 0;
  for (int64_t s = 0; s < a->n_seqs; s++)
    off[s + 1] = cut(cu[s], cu[s + 1], s, chunk + off[s]) - chunk;
}

/* A counting sort: off[s + 1] counts the chunks of s, then is where its next one goes. */
static void list_by_index(const kf_adaln *a, kf_adaln_chunk *chunk, int64_t *off) {
  for (int64_t s = 0; s <= a->n_seqs; s++) off[s] = 0;
  for (int64_t t = 0, end; t < a->n_tokens; t = end)
    off[a->seq_index[t] + 1] += pieces((end = seq_end(a, t)) - t);
  for (int64_t s = 0, before = 0; s < a->n_seqs; s++) {
    int64_t n = off[s + 1];
    off[s + 1] = before;
    before += n;
  }
  for (int64_t t = 0, end; t < a->n_tokens; t = end) {
    int32_t s = a->seq_index[t];
    end = seq_end(a, t);
    off[s + 1] = cut(t, end, s, chunk + off[s + 1]) - chunk;
  }
}

static void list_chunks(const kf_adaln *a, kf_adaln_chunk *chunk, int64_t *off) {
  if (a->cu_seqlens)
    list_by_length(a, chunk, off);
  else
    list_by_index(a, chunk, off); /* neither: no tokens, all offsets are 0 */
}

kf_status kf_adaln_chunks(const kf_adaln *adaln, kf_adaln_chunk *chunk, int64_t *chunk_off,
                          int64_t *n_chunks) {
  kf_status status = check_shape(adaln);
  if (status) return status;
  if (!n_chunks) return kfi_fail(KF_EINVAL, "n_chunks is NULL");
  if (!chunk != !chunk_off)
    return kfi_fail(KF_EINVAL, "%s is NULL and %s is not, expected both or none",
                    chunk ? "chunk_off" : "chunk", chunk ? "chunk" : "chunk_off");
  if (chunk) list_chunks(adaln, chunk, chunk_off);
  *n_chunks = count_chunks(adaln);
  return KF_OK;
}

/* ------------------------------------------------------------------------------- the work */

typedef struct call {
  const kf_adaln *a;
  kernel kernel;
  bool backward, stream;
  int64_t n_chunks;
  const kf_adaln_chunk *chunk;
  const int64_t *chunk_off;
  float *sums; /* (n_chunks, n_sums, stride) */
  int64_t n_sums, stride, pad;
  _Atomic int64_t next; /* chunk, then tile of a sequence */
} call;

/* A thread's part of the workspace: this, then its floats. */
typedef struct worker {
  kfi_thread thread;
  call *job;
  int64_t seq;                  /* whose modulation it has; -1: none */
  bool late;                    /* every other one, see kfi_adaln_task */
  float *factor, *shift, *gate; /* (pad) */
  float *work;
} worker;

/*
** Where a thread's floats begin. Rows of tokens often begin on a page, or 64 bytes after it; a load
** that lies 4096 bytes from a store that is still on its way waits for it, and such lines push each
** other out of the cache. So factor and shift lie a quarter and three quarters of a page further,
** and the rows of column sums are not whole pages apart. Backward on one thread, four runs: 1.65 to
** 1.78 of a triad with both, 1.80 to 1.88 with neither.
*/
static float *page_of(char *at, int quarters) {
  uintptr_t page = ((uintptr_t)at + PAGE - 1) / PAGE * PAGE;
  return (float *)(page + (uintptr_t)(quarters * PAGE / 4));
}

static int64_t worker_bytes(const kf_adaln *a) {
  int64_t row = kfi_adaln_pad(a->dim) * (int64_t)sizeof(float);
  return kfi_lines(sizeof(worker)) + 3 * (row + 2 * PAGE) +
         kfi_lines(kfi_adaln_work(a->dim) * (int64_t)sizeof(float));
}

static int64_t n_sums(const kf_adaln *a) { return a->gate ? 3 : 2; }

int64_t kf_adaln_workspace(const kf_adaln *adaln) {
  if (!adaln || check_shape(adaln)) return KFI_LINE;
  if (adaln->n_seqs == 0) return KFI_LINE;
  int64_t n = count_chunks(adaln), row = kfi_adaln_stride(adaln->dim) * (int64_t)sizeof(float);
  return kfi_lines(n * (int64_t)sizeof(kf_adaln_chunk)) +
         kfi_lines((adaln->n_seqs + 1) * (int64_t)sizeof(int64_t)) + n * n_sums(adaln) * row +
         n_threads_of(adaln) * worker_bytes(adaln);
}

/* Row t of a tensor of tokens, or of sequences; NULL stays NULL. */
static void *row_of(const kf_adaln *a, const void *tensor, int64_t t) {
  if (!tensor) return NULL;
  return (char *)(uintptr_t)tensor + t * a->dim * kfi_dtype_bytes(a->dtype);
}

static void *mod_row(const kf_adaln *a, const void *tensor, int64_t s) {
  return (char *)(uintptr_t)tensor + s * stride_of(a) * kfi_dtype_bytes(mod_dtype(a));
}

/* The modulation of sequence s, in fp32. */
static void take_modulation(worker *w, int64_t s) {
  const call *job = w->job;
  const kf_adaln *a = job->a;
  bool each = a->rounding == KF_ROUND_EACH;
  if (w->seq == s) return;
  w->seq = s;
  job->kernel.widen(mod_dtype(a), a->dim, mod_row(a, a->scale, s), w->factor);
  for (int64_t c = 0; c < a->dim; c++) {
    float factor = 1 + w->factor[c];
    w->factor[c] = each ? kfi_rounded(a->dtype, factor) : factor;
  }
  if (!job->backward) job->kernel.widen(mod_dtype(a), a->dim, mod_row(a, a->shift, s), w->shift);
  if (a->gate) job->kernel.widen(mod_dtype(a), a->dim, mod_row(a, a->gate, s), w->gate);
}

static void do_chunk(worker *w, int64_t n) {
  const call *job = w->job;
  const kf_adaln *a = job->a;
  const kf_adaln_chunk *chunk = &job->chunk[n];
  int64_t t = chunk->first;
  take_modulation(w, chunk->seq);
  kfi_adaln_task rows = {.n = chunk->n_tokens,
                         .dim = a->dim,
                         .dtype = a->dtype,
                         .each = a->rounding == KF_ROUND_EACH,
                         .stream = job->stream,
                         .late = w->late,
                         .eps = a->eps != 0 ? a->eps : 1e-6f,
                         .factor = w->factor,
                         .shift = w->shift,
                         .gate = a->gate ? w->gate : NULL,
                         .residual = row_of(a, a->residual, t),
                         .u = row_of(a, a->u, t),
                         .x = row_of(a, a->x, t),
                         .y = row_of(a, a->y, t),
                         .mean = a->mean ? a->mean + t : NULL,
                         .rstd = a->rstd ? a->rstd + t : NULL,
                         .work = w->work};
  if (!job->backward) {
    job->kernel.forward(&rows);
    return;
  }
  rows.dy = row_of(a, a->dy, t);
  rows.dx_add = row_of(a, a->dx_add, t);
  rows.dx = row_of(a, a->dx, t);
  rows.du = row_of(a, a->du, t);
  rows.sums = job->sums + n * job->n_sums * job->stride;
  job->kernel.backward(&rows);
}

static void *run_chunks(void *arg) {
  worker *w = arg;
  for (;;) {
    int64_t n = atomic_fetch_add_explicit(&w->job->next, 1, memory_order_relaxed);
    if (n >= w->job->n_chunks) return NULL;
    do_chunk(w, n);
  }
}

/* ---------------------------------------------------------- dscale, dshift, dgate at last */

static int64_t tiles_of(int64_t dim) { return (dim + TILE - 1) / TILE; }

/* Columns first to first + n - 1 of one of a sequence's gradients. */
static void add_up(const call *job, int64_t s, int64_t which, int64_t first, int64_t n) {
  const kf_adaln *a = job->a;
  void *const outs[] = {a->dscale, a->dshift, a->dgate};
  void *out = mod_row(a, outs[which], s);
  double total[TILE] = {0};
  for (int64_t i = job->chunk_off[s]; i < job->chunk_off[s + 1]; i++) {
    const float *sums = job->sums + (i * job->n_sums + which) * job->stride + first;
    for (int64_t c = 0; c < n; c++) total[c] += sums[c];
  }
  for (int64_t c = 0; c < n; c++) kfi_set_element(mod_dtype(a), out, first + c, (float)total[c]);
}

static void *run_tiles(void *arg) {
  const worker *w = arg;
  call *job = w->job;
  int64_t dim = job->a->dim, tiles = tiles_of(dim) * job->n_sums;
  for (;;) {
    int64_t n = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
    int64_t s = n / tiles, which = n % tiles % job->n_sums, first = n % tiles / job->n_sums * TILE;
    if (s >= job->a->n_seqs) return NULL;
    add_up(job, s, which, first, dim - first < TILE ? dim - first : TILE);
  }
}

/* -------------------------------------------------------------------------- both passes */

/* Lay out the workspace; returns the first worker. */
static worker *lay_out(call *job) {
  const kf_adaln *a = job->a;
  char *base = a->workspace;
  kf_adaln_chunk *chunk = (kf_adaln_chunk *)(void *)base;
  int64_t step = worker_bytes(a);
  job->n_chunks = count_chunks(a);
  job->n_sums = n_sums(a);
  job->pad = kfi_adaln_pad(a->dim);
  job->stride = kfi_adaln_stride(a->dim);
  base += kfi_lines(job->n_chunks * (int64_t)sizeof *chunk);
  int64_t *off = (int64_t *)(void *)base;
  list_chunks(a, chunk, off);
  base += kfi_lines((a->n_seqs + 1) * (int64_t)sizeof *off);
  job->chunk = chunk;
  job->chunk_off = off;
  job->sums = (float *)(void *)base;
  base += job->n_chunks * job->n_sums * job->stride * (int64_t)sizeof(float);
  for (int64_t i = 0; i < n_threads_of(a); i++) {
    worker *w = (worker *)(void *)(base + i * step);
    w->job = job;
    w->seq = -1;
    w->late = i % 2;
    w->factor = page_of((char *)w + kfi_lines(sizeof *w), 1);
    w->shift = page_of((char *)(w->factor + job->pad), 3);
    w->gate = page_of((char *)(w->shift + job->pad), 3);
    w->work = w->gate + job->pad;
  }
  return (worker *)(void *)base;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static kf_status modulate(const kf_adaln *a, bool backward) {
  call job = {.a = a, .backward = backward};
  kf_isa isa;
  kf_status status;
  if ((status = kf_adaln_check(a, backward))) return status;
  if ((status = kfi_choose_isa(a->isa, &isa))) return status;
  if (a->n_seqs == 0) return KF_OK;
  status = kfi_check_workspace(a->workspace, a->workspace_bytes, kf_adaln_workspace(a));
  if (status) return status;
  job.kernel = kernels[isa - KF_ISA_PORTABLE];
  job.stream = a->n_tokens * a->dim * kfi_dtype_bytes(a->dtype) >= STREAM_FROM;
  worker *first = lay_out(&job);
  int64_t n_threads = n_threads_of(a), step = worker_bytes(a);
  atomic_init(&job.next, 0);
  kfi_threads_run(least(n_threads, job.n_chunks), run_chunks, first, step);
  if (!backward) return KF_OK;
  atomic_store(&job.next, 0);
  kfi_threads_run(least(n_threads, a->n_seqs * tiles_of(a->dim) * job.n_sums), run_tiles, first,
                  step);
  return KF_OK;
}

kf_status kf_adaln_forward(const kf_adaln *adaln) { return modulate(adaln, false); }
kf_status kf_adaln_backward(const kf_adaln *adaln) { return modulate(adaln, true); }
