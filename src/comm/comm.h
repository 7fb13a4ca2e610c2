/* SPDX-License-Identifier: Apache-2.0 */
/*
** What the files of src/comm share.
**
**     plan --route.c, ulysses.c--> runs by peer --backend--> bytes at the peer
**
** A backend moves bytes between ranks and knows neither plans nor tensors. It is the only one to
** touch the memory that runs point to, also for what stays on its rank: so a run may as well lie
** on a device, and a backend may enqueue on a stream that it was created with and return.
*/
#ifndef KFI_COMM_H
#define KFI_COMM_H

#include <stdbool.h>

#include "../memory.h"
#include "../status.h"

/* ----------------------------------------------------------------- run.c: rows */

/*
** A block of rows in somebody's memory: the smallest thing that moves. Its bytes in order are row
** 0, row 1, ... A run at the sender and its partner at the receiver have the same rows and
** row_bytes; strides are each side's own.
*/
typedef struct kfi_run {
  char *data;
  int64_t rows, row_bytes, stride;
} kfi_run;

static inline int64_t kfi_run_bytes(const kfi_run *run) { return run->rows * run->row_bytes; }

/* Copy n_bytes from byte `from` on, between a run and a flat buffer. */
void kfi_run_pack(const kfi_run *run, int64_t from, int64_t n_bytes, char *flat);
void kfi_run_unpack(const kfi_run *run, int64_t from, int64_t n_bytes, const char *flat);

/* Copy n_bytes from byte `from` on, from a run to its partner. */
void kfi_run_copy(const kfi_run *to, const kfi_run *source, int64_t from, int64_t n_bytes);

/* Where bytes from .. from+n_bytes-1 lie, if they lie in one piece; else NULL. */
char *kfi_run_flat(const kfi_run *run, int64_t from, int64_t n_bytes);

/*
** One side of an exchange: the runs for each rank, this one among them. What rank r sends to q,
** in order, are partners of what q receives from r.
*/
typedef struct kfi_side {
  int64_t *run_off; /* (n_ranks + 1) CSR by peer */
  kfi_run *run;
} kfi_side;

typedef struct kfi_exchange {
  kfi_side send, recv;
} kfi_exchange;

/* ------------------------------------------------------------------ the backends */

typedef struct kfi_comm_ops {
  kf_status (*gather)(kf_comm *, const void *record, int64_t n_bytes, void *all);
  kf_status (*exchange)(kf_comm *, const kfi_exchange *);
  kf_status (*reduce)(kf_comm *, kf_reduction, kf_type, int64_t n, void *data);
  void (*alarm)(kf_comm *, const char *reason); /* "this rank failed": to all, without waiting */
  void (*free)(kf_comm *);
} kfi_comm_ops;

enum { KFI_REASON = 400, KFI_NAMES = 80 };

/* The part that backends have in common; theirs follows it. */
struct kf_comm {
  const kfi_comm_ops *ops;
  int32_t rank, size;
  double timeout_s;
  const char *call;        /* the call that is being made, for messages */
  uint64_t what;           /* of an exchange: a hash of what all ranks must mean alike */
  kf_status broken;        /* what every later call returns */
  char reason[KFI_REASON]; /* and says */
  kfi_buffer runs, peers;  /* of kfi_collect */
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
kf_status kfi_comm_exchange(kf_comm *comm, const kfi_exchange *exchange);

/* "rank 2 was", "ranks 2, 5 and 7 were", "ranks 2, 5, 7, 8 and 11 others were": those marked. */
void kfi_name_ranks(const bool *marked, int32_t n_ranks, char names[KFI_NAMES]);

/* Bytes of an element. */
int64_t kfi_type_bytes(kf_type type);

/* Do rank r and rank 0 reduce the same? {elements, reduction * 8 + type} of both. */
kf_status kfi_same_reduction(int32_t r, const int64_t of_r[2], const int64_t of_0[2]);

/* acc[i] = acc[i] (reduction) value[i], in that order of operands. */
void kfi_reduce(kf_reduction reduction, kf_type type, int64_t n, void *acc, const void *value);

/* Seconds of a clock that only rises. */
double kfi_now_s(void);

/* ---------------------------------------------------------- collect.c: by peer */

/* Gets runs in any order of peers and sorts them by peer. */
typedef struct kfi_collector {
  int64_t *run_off[2], *cursor[2]; /* (n_ranks + 1) */
  kfi_run *run[2];                 /* NULL while runs are only counted */
} kfi_collector;

static inline void kfi_collector_add(kfi_collector *c, int side, int64_t peer, kfi_run run) {
  if (c->run[side])
    c->run[side][c->cursor[side][peer]++] = run;
  else
    c->run_off[side][peer + 1]++;
}

struct kfi_move;

/* `walk` adds the runs of side 0 and side 1; it is called twice and adds the same both times. */
kf_status kfi_collect(kf_comm *comm, void (*walk)(kfi_collector *, const struct kfi_move *),
                      const struct kfi_move *move, kfi_side side[2]);

/* --------------------------------------------------- move.c: tensors by a plan */

/* What a caller of route or ulysses wants moved. side[0] is home or rows, side[1] held or pairs. */
typedef struct kfi_move {
  const kf_plan *plan;
  int32_t n_tensors, rank;
  const kf_tensor *side[2]; /* (n_tensors) */
} kfi_move;

/* What route and ulysses differ in; indices are sides. */
typedef struct kfi_move_kind {
  const char *call[2]; /* what moving away from a side is called */
  const char *name[2]; /* of the list of tensors */
  int64_t (*n_rows[2])(const kf_plan *, int32_t rank);
  kf_status (*check_pair)(const kf_comm *, const kf_plan *, int32_t i, const kf_tensor *,
                          const kf_tensor *);
  void (*walk)(kfi_collector *, const kfi_move *);
} kfi_move_kind;

kf_status kfi_move_run(kf_comm *comm, const kfi_move_kind *kind, const kfi_move *move, int from);

static inline int64_t kfi_tensor_stride(const kf_tensor *t) {
  return t->stride_bytes ? t->stride_bytes : t->row_bytes;
}

#endif
