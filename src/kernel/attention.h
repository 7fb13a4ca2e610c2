/* SPDX-License-Identifier: Apache-2.0 */
/*
** What attention.c (checks, threads, the portable twin) and the instruction sets' kernels share.
**
** A kernel sees one head of one segment as rows of floats, and computes a block of its rows in
** one call. Blocks are the unit of parallel work: their size depends on head_dim alone, so results
** do not depend on the number of threads.
*/
#ifndef KFI_ATTENTION_H
#define KFI_ATTENTION_H

#include <stdatomic.h>

#include "knapformer.h"

/* One head: row r of q, k, v, dq, dk, dv is at r * qkv_step, of o and d_o at r * o_step. */
typedef struct kfi_head {
  int64_t rows, qkv_step, o_step, lse_step; /* in floats */
  int32_t head_dim;
  float scale;
  const float *q, *k, *v, *d_o;
  float *o, *lse; /* lse is NULL where it is not wanted */
  float *dq, *dk, *dv;
} kfi_head;

/*
** Blocks of one head's backward add to dq in the order of their keys, whoever computes them: each
** counts the slabs of query rows that it has added, and the next one stays behind it.
*/
typedef struct kfi_turn {
  const _Atomic int64_t *before; /* NULL: the first block, which writes dq */
  _Atomic int64_t *own;
} kfi_turn;

/* Before adding slab n: until the block before has. Afterwards: let the next one. */
void kfi_turn_wait(const kfi_turn *turn, int64_t n);
void kfi_turn_done(const kfi_turn *turn, int64_t n);

/* `work` is of this thread alone, aligned to 64 bytes; worker_bytes() in attention.c counts it. */
typedef void kfi_forward(const kfi_head *head, int64_t first_row, float *work);
typedef void kfi_backward(const kfi_head *head, int64_t first_row, kfi_turn turn, float *work);

/*
** Rows of a block, for all instruction sets. Forward: query rows, whose packed q and o stay in the
** L2 cache while all keys pass by. Backward: keys, whose k, v, dk and dv stay there while all
** queries pass by.
*/
static inline int64_t kfi_forward_rows(int32_t head_dim) { return head_dim <= 128 ? 384 : 192; }
static inline int64_t kfi_backward_rows(int32_t head_dim) {
  return head_dim <= 64 ? 512 : head_dim <= 128 ? 256 : 128;
}

/* Packed rows are head_dim floats and zeros up to a cache line. */
static inline int64_t kfi_pad(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

enum {
  KFI_KEYS = 128, /* keys whose scores are held at once, as (keys, strip) */
  KFI_STRIP = 48, /* most query rows side by side in the registers; 384 and 192 are multiples */
  KFI_SLAB = 96,  /* query rows of a slab in backward */
};

kfi_forward kfi_forward_avx2, kfi_forward_avx512;
kfi_backward kfi_backward_avx2, kfi_backward_avx512;

#endif
