/* SPDX-License-Identifier: Apache-2.0 */
/*
** What the files of src/comm share.
**
**     plan --exchange table--> runs of rows --move.c--> blocks of memory --backend--> bytes at the peer
**
** A backend moves bytes between ranks and knows neither plans nor tensors. It is the only one to
** touch the memory that blocks point to, also for what stays on its rank: so a block may as well
** lie on a device, and a backend may enqueue on a stream that it was created with and return.
*/
#ifndef KFI_COMM_H
#define KFI_COMM_H

#include <stdbool.h>

#include "../memory.h"
#include "../numbers.h"
#include "../status.h"

/* ---------------------------------------------------------------- copy.c: rows */

/*
** A block of rows in somebody's memory: the smallest thing that moves. Its bytes in order are row
** 0, row 1, ... A block at the sender and its partner at the receiver have the same rows and
** row_bytes; strides are each side's own.
*/
typedef struct kfi_block {
  char *data;
  int64_t rows, row_bytes, stride;
} kfi_block;

static inline int64_t kfi_block_bytes(const kfi_block *block) {
  return block->rows * block->row_bytes;
}

/* Copy n_bytes from byte `from` on, between a block and a flat buffer. */
void kfi_block_pack(const kfi_block *block, int64_t from, int64_t n_bytes, char *flat);
void kfi_block_unpack(const kfi_block *block, int64_t from, int64_t n_bytes, const char *flat);

/* Copy n_bytes from byte `from` on, from a block to its partner. */
void kfi_block_copy(const kfi_block *to, const kfi_block *source, int64_t from, int64_t n_bytes);

/* Where bytes from .. from+n_bytes-1 lie, if they lie in one piece; else NULL. */
char *kfi_block_flat(const kfi_block *block, int64_t from, int64_t n_bytes);

/*
** One side of an exchange: the blocks for each rank, this one among them. What rank r sends to q,
** in order, are partners of what q receives from r.
*/
typedef struct kfi_side {
  int64_t *block_off; /* (n_ranks + 1) CSR by peer */
  kfi_block *block;
} kfi_side;

typedef struct kfi_transfer {
  kfi_side send, recv;
} kfi_transfer;

/* ------------------------------------------------------------------ the backends */

typedef struct kfi_comm_ops {
  kf_status (*gather)(kf_comm *, const void *record, int64_t n_bytes, void *all);
  kf_status (*exchange)(kf_comm *, const kfi_transfer *);
  kf_status (*reduce)(kf_comm *, kf_reduction, kf_dtype, int64_t n, void *data);
  void (*alarm)(kf_comm *, const char *reason); /* "this rank failed": to all, without waiting */
  void (*free)(kf_comm *);
} kfi_comm_ops;

enum { KFI_REASON = 400, KFI_NAMES = 80 };

/* The part that backends have in common; theirs follows it. */
struct kf_comm {
  const kfi_comm_ops *ops;
  int32_t rank, size;
  double timeout_s;
  const char *call;         /* the call that is being made, for messages */
  uint64_t what;            /* of an exchange: a hash of what all ranks must mean alike */
  kf_status broken;         /* what every later call returns */
  char reason[KFI_REASON];  /* and says */
  kfi_buffer blocks, peers; /* of a transfer */
  kf_exchange *table;       /* of the last plan; NULL: none yet */
};

/* The comm is of no more use; record the sentence for this call and all later ones. */
KFI_PRINTF(3, 4) kf_status kfi_comm_break(kf_comm *comm, kf_status status, const char *format, ...);

/* This rank's own failure, which kf_last_error() describes: break the comm and tell the others. */
kf_status kfi_comm_fail(kf_comm *comm, kf_status status);

/* Enter a collective: KF_OK, or what broke the comm before. */
kf_status kfi_comm_enter(kf_comm *comm, const char *call);

/* kf_comm_gather as part of another call. */
kf_status kfi_comm_gather(kf_comm *comm, const char *call, const void *record, int64_t n_bytes,
                          void *all);

/* Most bytes of a record that every backend gathers from so many ranks: counts are ints there. */
int64_t kfi_most_record(int32_t n_ranks);

/* Make an exchange, and see that the others learn of a failure. */
kf_status kfi_comm_exchange(kf_comm *comm, const kfi_transfer *exchange);

/* "rank 2 was", "ranks 2, 5 and 7 were", "ranks 2, 5, 7, 8 and 11 others were": those marked. */
void kfi_name_ranks(const bool *marked, int32_t n_ranks, char names[KFI_NAMES]);

/* Do rank r and rank 0 reduce the same? {elements, reduction * 8 + type} of both. */
kf_status kfi_same_reduction(int32_t r, const int64_t of_r[2], const int64_t of_0[2]);

/* acc[i] = acc[i] (reduction) value[i], in that order of operands. */
void kfi_reduce(kf_reduction reduction, kf_dtype type, int64_t n, void *acc, const void *value);

/* Seconds of a clock that only rises. */
double kfi_now_s(void);

/* --------------------------------------------------- move.c: tensors by a table */

/* What a caller wants moved: tensors of side 0 and of side 1, and which side from. */
typedef struct kfi_move {
  int32_t n_tensors;
  const kf_tensor *side[2]; /* (n_tensors) */
  int from;
} kfi_move;

/* Make the table of a plan in the comm's own memory, and move by it. */
kf_status kfi_move_by_plan(kf_comm *comm, const kf_plan *plan, kf_exchange_kind kind,
                           const kfi_move *move);

#endif
