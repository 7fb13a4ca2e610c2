/* SPDX-License-Identifier: Apache-2.0 */
/*
** Packed attention on the CPU: what is asked is checked, cut into blocks, and computed by
** n_threads threads with the kernel of the wanted instruction set. The plain C kernel at the end
** is the specification of the others.
**
** A block is some rows of one head of one segment (see attention.h). Threads take blocks from one
** counter, in order of segments, then of blocks, then of heads. Forward blocks are independent. In
** backward a block owns its keys' dk and dv and adds to the dq of all rows; it stays one slab of
** rows behind the block before it, which was taken earlier: so there is always a block that waits
** for nobody, and one long head keeps many threads busy. All heads of a row of blocks come before
** the next row of blocks, so that the waiting is rare.
*/
#include "attention.h"

#include <math.h>
#include <sched.h>
#include <stdbool.h>

#include "../status.h"
#include "isa.h"
#include "threads.h"
#include "workspace.h"

typedef struct kernel {
  kfi_forward *forward;
  kfi_backward *backward;
} kernel;

static kfi_forward forward_portable;
static kfi_backward backward_portable;

/* In the order of kf_isa, without KF_ISA_BEST; NULL where the library has none. */
static const kernel kernels[] = {{forward_portable, backward_portable},
#ifdef KF_HAVE_AVX
                                 {kfi_forward_avx2, kfi_backward_avx2},
                                 {kfi_forward_avx512, kfi_backward_avx512}
#else
                                 {NULL, NULL},
                                 {NULL, NULL}
#endif
};

/* -------------------------------------------------------------------------- blocks */

typedef struct call {
  const kf_attention *a;
  kernel kernel;
  bool backward;
  int64_t block_rows;
  int64_t n_blocks;
  float scale;
  _Atomic int64_t next;
  _Atomic int64_t *done; /* (n_blocks) backward: slabs of rows that a block has added to dq */
} call;

/* A thread's part of the workspace: this, then its floats. */
typedef struct worker {
  kfi_thread thread;
  call *job;
  float *work;
} worker;

static int64_t n_threads_of(const kf_attention *a) { return a->n_threads < 1 ? 1 : a->n_threads; }

static int64_t blocks_of(const kf_segment *s, int64_t block_rows) {
  return (s->rows + block_rows - 1) / block_rows * s->heads;
}

static int64_t count_blocks(const kf_attention *a, int64_t block_rows) {
  int64_t n = 0;
  for (int64_t i = 0; i < a->n_segments; i++) n += blocks_of(&a->segment[i], block_rows);
  return n;
}

/* The larger of what FORWARD and BACKWARD of attention_tile.h lay out, for the widest strip. */
static int64_t worker_bytes(int32_t head_dim) {
  int64_t pad = kfi_pad(head_dim);
  int64_t forward =
    2 * KFI_KEYS * pad + KFI_KEYS * KFI_STRIP + kfi_forward_rows(head_dim) * (2 + 2 * pad);
  int64_t backward = 4 * kfi_backward_rows(head_dim) * pad + 2 * KFI_SLAB * pad +
                     KFI_SLAB * (2 + 3 * pad + 2 * KFI_KEYS);
  int64_t floats = forward > backward ? forward : backward;
  return kfi_lines(sizeof(worker)) + kfi_lines(floats * (int64_t)sizeof(float));
}

/* Head h of segment s. */
static kfi_head head_of(const call *job, const kf_segment *s, int32_t h) {
  const kf_attention *a = job->a;
  int64_t dim = a->head_dim, pair = s->offset + h, width = s->heads * dim;
  int64_t step = a->qkv_stride ? a->qkv_stride : width;
  int64_t at = a->qkv_stride ? s->offset / s->heads * step + h * dim : pair * dim;
  kfi_head head = {.rows = s->rows,
                   .qkv_step = step,
                   .o_step = width,
                   .lse_step = s->heads,
                   .head_dim = a->head_dim,
                   .scale = job->scale,
                   .q = a->q + at,
                   .k = a->k + at,
                   .v = a->v + at,
                   .o = a->o + pair * dim,
                   .lse = a->lse ? a->lse + pair : NULL};
  if (!job->backward) return head;
  head.d_o = a->d_o + pair * dim;
  head.dq = a->dq + at;
  head.dk = a->dk + at;
  head.dv = a->dv + at;
  return head;
}

/* Take blocks until none is left. A thread's blocks rise, so it walks the segments once. */
static void *run(void *arg) {
  worker *w = arg;
  call *job = w->job;
  const kf_segment *s = job->a->segment;
  int64_t first = 0; /* block of segment s */
  for (;;) {
    int64_t n = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
    if (n >= job->n_blocks) return NULL;
    for (int64_t of; n >= first + (of = blocks_of(s, job->block_rows)); s++) first += of;
    int64_t row = (n - first) / s->heads * job->block_rows;
    kfi_head head = head_of(job, s, (int32_t)((n - first) % s->heads));
    if (!job->backward) {
      job->kernel.forward(&head, row, w->work);
      continue;
    }
    kfi_turn turn = {row > 0 ? job->done + n - s->heads : NULL, job->done + n};
    job->kernel.backward(&head, row, turn, w->work);
  }
}

void kfi_turn_wait(const kfi_turn *turn, int64_t n) {
  if (!turn->before) return;
  while (atomic_load_explicit(turn->before, memory_order_acquire) <= n) sched_yield();
}

void kfi_turn_done(const kfi_turn *turn, int64_t n) {
  atomic_store_explicit(turn->own, n + 1, memory_order_release);
}

/* workspace: the workers, a line apart, then `done`. */
static void run_all(call *job) {
  const kf_attention *a = job->a;
  int64_t n = n_threads_of(a), step = worker_bytes(a->head_dim);
  char *base = a->workspace;
  job->done = (_Atomic int64_t *)(void *)(base + n * step);
  if (job->backward)
    for (int64_t i = 0; i < job->n_blocks; i++) atomic_init(&job->done[i], 0);
  if (n > job->n_blocks) n = job->n_blocks;
  for (int64_t i = 0; i < n; i++) {
    worker *w = (worker *)(void *)(base + i * step);
    w->job = job;
    w->work = (float *)(void *)((char *)w + kfi_lines(sizeof *w));
  }
  kfi_threads_run(n, run, base, step);
}

/* -------------------------------------------------------------------------- checks */

/* Nothing that is addressed is further away than this, in floats. */
#define MOST_FLOATS (INT64_MAX / 8)

static kf_status check_segment(const kf_attention *a, int64_t i) {
  const kf_segment *s = &a->segment[i];
  int64_t most = MOST_FLOATS / a->head_dim, width = (int64_t)s->heads * a->head_dim;
  if (s->rows < 0 || s->heads < 1 || s->offset < 0)
    return kfi_fail(KF_EINVAL,
                    "segment %lld has rows %lld, heads %d, offset %lld, expected rows >= 0, heads "
                    ">= 1, offset >= 0",
                    (long long)i, (long long)s->rows, (int)s->heads, (long long)s->offset);
  if (s->rows > most / s->heads || s->offset > most - s->rows * s->heads)
    return kfi_fail(KF_EINVAL,
                    "segment %lld ends after %lld + %lld * %d (row, head) pairs, expected at most "
                    "%lld",
                    (long long)i, (long long)s->offset, (long long)s->rows, (int)s->heads,
                    (long long)most);
  if (a->qkv_stride == 0) return KF_OK;
  if (a->qkv_stride < width)
    return kfi_fail(KF_EINVAL,
                    "qkv_stride is %lld, expected at least the %d heads * %d of segment %lld",
                    (long long)a->qkv_stride, (int)s->heads, (int)a->head_dim, (long long)i);
  if (s->heads != a->segment[0].heads)
    return kfi_fail(KF_EINVAL,
                    "segment %lld has %d heads and segment 0 has %d, expected the same, because "
                    "qkv_stride is set",
                    (long long)i, (int)s->heads, (int)a->segment[0].heads);
  if (s->offset % s->heads)
    return kfi_fail(KF_EINVAL,
                    "segment %lld has offset %lld, expected a multiple of its %d heads, because "
                    "qkv_stride is set",
                    (long long)i, (long long)s->offset, (int)s->heads);
  if (s->offset / s->heads + s->rows > MOST_FLOATS / a->qkv_stride)
    return kfi_fail(KF_EINVAL,
                    "segment %lld ends at row %lld, expected at most %lld with qkv_stride %lld",
                    (long long)i, (long long)(s->offset / s->heads + s->rows),
                    (long long)(MOST_FLOATS / a->qkv_stride), (long long)a->qkv_stride);
  return KF_OK;
}

/* All but tensors and workspace. *pairs is how many (row, head) pairs there are. */
static kf_status check_shape(const kf_attention *a, int64_t *pairs) {
  kf_status status;
  *pairs = 0;
  if (a->head_dim < 1 || a->head_dim > KF_MAX_HEAD_DIM)
    return kfi_fail(KF_EINVAL, "head_dim is %d, expected 1 to %d", (int)a->head_dim,
                    KF_MAX_HEAD_DIM);
  if (a->n_threads < 0)
    return kfi_fail(KF_EINVAL, "n_threads is %d, expected 0 or more", (int)a->n_threads);
  if (a->qkv_stride < 0)
    return kfi_fail(KF_EINVAL, "qkv_stride is %lld, expected 0 or more", (long long)a->qkv_stride);
  if (a->n_segments < 0)
    return kfi_fail(KF_EINVAL, "n_segments is %lld, expected 0 or more", (long long)a->n_segments);
  if (a->n_segments > 0 && !a->segment)
    return kfi_fail(KF_EINVAL, "segment is NULL, expected %lld segments", (long long)a->n_segments);
  for (int64_t i = 0; i < a->n_segments; i++) {
    if ((status = check_segment(a, i))) return status;
    int64_t more = a->segment[i].rows * a->segment[i].heads;
    if (more > MOST_FLOATS / a->head_dim - *pairs)
      return kfi_fail(KF_EINVAL, "segments 0 to %lld have more than %lld (row, head) pairs",
                      (long long)i, (long long)(MOST_FLOATS / a->head_dim));
    *pairs += more;
  }
  return KF_OK;
}

static kf_status check_tensors(const kf_attention *a, bool backward) {
  const struct {
    const char *name;
    const void *at;
  } tensors[] = {{"q", a->q},     {"k", a->k},   {"v", a->v},   {"o", a->o},  {"lse", a->lse},
                 {"d_o", a->d_o}, {"dq", a->dq}, {"dk", a->dk}, {"dv", a->dv}};
  for (int i = 0; i < (backward ? 9 : 4); i++)
    if (!tensors[i].at)
      return kfi_fail(KF_EINVAL, "%s is NULL, expected a tensor for %s", tensors[i].name,
                      backward ? "backward" : "forward");
  return KF_OK;
}

static kf_status attend(const kf_attention *a, bool backward) {
  call job = {.a = a, .backward = backward};
  kf_isa isa;
  int64_t pairs;
  kf_status status;
  if (!a) return kfi_fail(KF_EINVAL, "attention is NULL");
  if ((status = check_shape(a, &pairs))) return status;
  if (!isfinite(a->scale))
    return kfi_fail(KF_EINVAL, "scale is %g, expected a finite number", (double)a->scale);
  if ((status = kfi_choose_isa(a->isa, &isa))) return status;
  if (pairs == 0) return KF_OK;
  if ((status = check_tensors(a, backward))) return status;
  status = kfi_check_workspace(a->workspace, a->workspace_bytes, kf_attention_workspace(a));
  if (status) return status;
  job.kernel = kernels[isa - KF_ISA_PORTABLE];
  job.scale = a->scale != 0 ? a->scale : (float)(1 / sqrt(a->head_dim));
  job.block_rows = backward ? kfi_backward_rows(a->head_dim) : kfi_forward_rows(a->head_dim);
  job.n_blocks = count_blocks(a, job.block_rows);
  run_all(&job);
  return KF_OK;
}

kf_status kf_attention_forward(const kf_attention *attention) { return attend(attention, false); }
kf_status kf_attention_backward(const kf_attention *attention) { return attend(attention, true); }

int64_t kf_attention_workspace(const kf_attention *attention) {
  int64_t pairs;
  if (!attention || check_shape(attention, &pairs) || pairs == 0) return KFI_LINE;
  return n_threads_of(attention) * worker_bytes(attention->head_dim) +
         kfi_lines(count_blocks(attention, kfi_backward_rows(attention->head_dim)) *
                   (int64_t)sizeof(_Atomic int64_t));
}

/* ----------------------------------------------------------------- the portable twin */

static double dot(int32_t n, const float *a, const float *b) {
  double sum = 0;
  for (int32_t d = 0; d < n; d++) sum += (double)a[d] * b[d];
  return sum;
}

static void add_scaled(int32_t n, double factor, const float *a, double *sum) {
  for (int32_t d = 0; d < n; d++) sum[d] += factor * a[d];
}

static void put(int32_t n, double factor, const double *sum, float *out) {
  for (int32_t d = 0; d < n; d++) out[d] = (float)(factor * sum[d]);
}

static int64_t end_row(const kfi_head *h, int64_t first, int64_t n) {
  return h->rows - first < n ? h->rows : first + n;
}

/* Scores are made twice, to find the largest and to use them: nothing is kept. */
static void forward_portable(const kfi_head *h, int64_t first, float *work) {
  int64_t end = end_row(h, first, kfi_forward_rows(h->head_dim));
  (void)work;
  for (int64_t i = first; i < end; i++) {
    const float *q = h->q + i * h->qkv_step;
    double most = -INFINITY, total = 0, o[KF_MAX_HEAD_DIM] = {0};
    for (int64_t j = 0; j < h->rows; j++)
      most = fmax(most, h->scale * dot(h->head_dim, q, h->k + j * h->qkv_step));
    for (int64_t j = 0; j < h->rows; j++) {
      double p = exp(h->scale * dot(h->head_dim, q, h->k + j * h->qkv_step) - most);
      total += p;
      add_scaled(h->head_dim, p, h->v + j * h->qkv_step, o);
    }
    put(h->head_dim, 1 / total, o, h->o + i * h->o_step);
    if (h->lse) h->lse[i * h->lse_step] = (float)(most + log(total));
  }
}

/* Query row i and key row j: p, and ds = p * (d_o v - d_o o), the gradient of the score. */
static void slope(const kfi_head *h, int64_t i, int64_t j, double *p, double *ds) {
  const float *d_o = h->d_o + i * h->o_step;
  double score = h->scale * dot(h->head_dim, h->q + i * h->qkv_step, h->k + j * h->qkv_step);
  *p = exp(score - h->lse[i * h->lse_step]);
  *ds = *p * (dot(h->head_dim, d_o, h->v + j * h->qkv_step) -
              dot(h->head_dim, d_o, h->o + i * h->o_step));
}

/* Rows r of dq, dk and dv: no row depends on another block, so there are no turns. */
static void backward_portable(const kfi_head *h, int64_t first, kfi_turn turn, float *work) {
  int64_t end = end_row(h, first, kfi_backward_rows(h->head_dim));
  (void)turn, (void)work;
  for (int64_t r = first; r < end; r++) {
    double p, ds;
    double dq[KF_MAX_HEAD_DIM] = {0}, dk[KF_MAX_HEAD_DIM] = {0}, dv[KF_MAX_HEAD_DIM] = {0};
    for (int64_t i = 0; i < h->rows; i++) {
      slope(h, r, i, &p, &ds);
      add_scaled(h->head_dim, ds, h->k + i * h->qkv_step, dq);
      slope(h, i, r, &p, &ds);
      add_scaled(h->head_dim, ds, h->q + i * h->qkv_step, dk);
      add_scaled(h->head_dim, p, h->d_o + i * h->o_step, dv);
    }
    put(h->head_dim, h->scale, dq, h->dq + r * h->qkv_step);
    put(h->head_dim, h->scale, dk, h->dk + r * h->qkv_step);
    put(h->head_dim, 1, dv, h->dv + r * h->qkv_step);
  }
}
