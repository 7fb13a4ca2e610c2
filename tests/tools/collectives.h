/* SPDX-License-Identifier: Apache-2.0 */
/*
** What must hold for the collectives of any backend. Every rank runs this same program; data is
** made from (who, for whom, where), so that whoever gets it can tell whether it is right.
*/
#ifndef COLLECTIVES_H
#define COLLECTIVES_H

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "dice.h"
#include "ranks.h"

/* Byte i of what rank `from` has for rank `to`. */
static inline char pattern(int32_t from, int32_t to, int64_t i) {
  uint64_t z = (uint64_t)(from * 7919 + to * 131 + i * 1000003 + 17);
  return (char)((z * 0x9e3779b97f4a7c15u) >> 56);
}

static inline void check_gather(kf_comm *comm) {
  static const int64_t sizes[] = {1, 3, 8, 64, 1000, 70000};
  int32_t n = kf_comm_size(comm), me = kf_comm_rank(comm);
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    int64_t n_bytes = sizes[s];
    char *record = malloc((size_t)n_bytes), *all = malloc((size_t)(n_bytes * n));
    for (int64_t i = 0; i < n_bytes; i++) record[i] = pattern(me, 0, i);
    EXPECT_OK(kf_comm_gather(comm, record, n_bytes, all));
    for (int32_t r = 0; r < n; r++)
      for (int64_t i = 0; i < n_bytes; i++) assert(all[r * n_bytes + i] == pattern(r, 0, i));
    free(record);
    free(all);
  }
  EXPECT_OK(kf_comm_gather(comm, NULL, 0, NULL));
}

/*
** Nobody leaves a barrier before all have come: every rank adds one before it and must see all
** afterwards. `count` is memory that ranks share; NULL where they do not.
*/
static inline void check_barrier(kf_comm *comm, _Atomic int *count) {
  for (int i = 1; i <= 50; i++) {
    if (count) (*count)++;
    EXPECT_OK(kf_comm_barrier(comm));
    assert(!count || *count >= i * kf_comm_size(comm));
  }
}

/* How many bytes go from one rank to another in trial `t`: none at all, none for some, uneven. */
static inline int64_t traffic(int t, int32_t from, int32_t to) {
  static const int64_t sizes[] = {0, 1, 7, 4096, 100000, 131071, 131072, 131073, 300000};
  dice d = {(uint64_t)(t * 10007 + from * 101 + to)};
  dice_next(&d);
  return t == 0 || dice_one_in(&d, 3) ? 0 : sizes[dice_int(&d, t < 5 ? 4 : 9)];
}

static inline void check_alltoallv(kf_comm *comm) {
  int32_t n = kf_comm_size(comm), me = kf_comm_rank(comm);
  for (int t = 0; t < 8; t++) {
    int64_t to[RANKS_MOST], from[RANKS_MOST], n_send = 0, n_recv = 0;
    for (int32_t q = 0; q < n; q++) {
      n_send += to[q] = traffic(t, me, q);
      n_recv += from[q] = traffic(t, q, me);
    }
    char *send = malloc((size_t)n_send + 1), *recv = malloc((size_t)n_recv + 1), *at = send;
    for (int32_t q = 0; q < n; q++)
      for (int64_t i = 0; i < to[q]; i++) *at++ = pattern(me, q, i);
    recv[n_recv] = 99;
    EXPECT_OK(kf_comm_alltoallv(comm, n_send ? send : NULL, to, n_recv ? recv : NULL, from));
    at = recv;
    for (int32_t q = 0; q < n; q++)
      for (int64_t i = 0; i < from[q]; i++) assert(*at++ == pattern(q, me, i));
    assert(*at == 99);
    free(send);
    free(recv);
  }
}

/* ------------------------------------------------------------------ exchanges */

/* Characters of what goes from one rank to another, for every path through a backend. */
enum { NOTHING, SMALL, BIG_FLAT, BIG_ROWS, EDGES, MIXED, N_CHARACTERS };

/* The i-th block of a pair; false: there are no more. Sizes around 128 KiB, from where on the MPI
** backend gives a block messages of its own, and around 4 MiB, where it cuts them. */
static inline bool draw_block(dice *d, int character, int i, kfi_block *block) {
  static const int64_t edges[] = {131071, 131072, 131073, 65536, 4194303, 4194304, 4194305};
  int kind = character == MIXED ? (int)dice_int(d, EDGES) : character;
  int64_t n = character == SMALL ? 300 : character == MIXED ? 12 : character == EDGES ? 7 : 1;
  if (character == NOTHING || i >= n) return false;
  *block = (kfi_block){.rows = 1 + dice_int(d, 9)};
  block->row_bytes = 1 + dice_int(d, 700);
  if (kind == BIG_FLAT)
    *block = (kfi_block){.rows = 1, .row_bytes = 5000000 + dice_int(d, 5000000)};
  if (kind == BIG_ROWS) *block = (kfi_block){.rows = 30 + dice_int(d, 900), .row_bytes = 6144};
  if (kind == EDGES) *block = (kfi_block){.rows = 1, .row_bytes = edges[i]};
  return true;
}

/* One side of what `me` exchanges, in memory of its own, which *memory begins with. */
static inline kfi_side new_side(int trial, int32_t me, int32_t n, bool send, char **memory) {
  enum { MOST_BLOCKS = 300 };
  dice strides = {(uint64_t)(trial * 31 + me * 2 + send)};
  kfi_side side = {malloc(((size_t)n + 1) * sizeof *side.block_off),
                   malloc((size_t)n * MOST_BLOCKS * sizeof *side.block)};
  int64_t n_blocks = 0, n_bytes = 0, *at = malloc((size_t)n * MOST_BLOCKS * sizeof *at);
  for (int32_t q = 0; q < n; q++) {
    dice d = {(uint64_t)(trial * 1000003 + (send ? me * 101 + q : q * 101 + me))};
    int character = (int)dice_int(&d, N_CHARACTERS);
    side.block_off[q] = n_blocks;
    for (int i = 0; draw_block(&d, character, i, &side.block[n_blocks]); i++, n_blocks++) {
      kfi_block *block = &side.block[n_blocks];
      block->stride = block->row_bytes + (dice_one_in(&strides, 2) ? 0 : dice_int(&strides, 99));
      at[n_blocks] = n_bytes;
      n_bytes += block->rows * block->stride;
    }
  }
  side.block_off[n] = n_blocks;
  *memory = malloc((size_t)n_bytes + 1);
  memset(*memory, 42, (size_t)n_bytes + 1);
  for (int64_t i = 0; i < n_blocks; i++) side.block[i].data = *memory + at[i];
  free(at);
  return side;
}

/* What goes to or comes from rank q: fill it, or see that it is right and gaps are untouched. */
static inline void visit_blocks(const kfi_side *side, int32_t from, int32_t to, bool fill) {
  int32_t peer = fill ? to : from;
  int64_t byte = 0;
  for (int64_t i = side->block_off[peer]; i < side->block_off[peer + 1]; i++) {
    const kfi_block *block = &side->block[i];
    for (int64_t r = 0; r < block->rows; r++) {
      char *row = block->data + r * block->stride;
      for (int64_t b = 0; b < block->row_bytes; b++, byte++)
        if (fill)
          row[b] = pattern(from, to, byte);
        else
          assert(row[b] == pattern(from, to, byte));
      for (int64_t b = block->row_bytes; !fill && b < block->stride; b++) assert(row[b] == 42);
    }
  }
}

static inline void check_exchanges(kf_comm *comm, int first, int n_trials) {
  int32_t n = kf_comm_size(comm), me = kf_comm_rank(comm);
  for (int t = first; t < first + n_trials; t++) {
    char *memory[2];
    kfi_transfer x = {new_side(t, me, n, true, &memory[0]), new_side(t, me, n, false, &memory[1])};
    for (int32_t q = 0; q < n; q++) visit_blocks(&x.send, me, q, true);
    EXPECT_OK(kfi_comm_enter(comm, "exchange"));
    EXPECT_OK(kfi_comm_exchange(comm, &x));
    for (int32_t q = 0; q < n; q++) visit_blocks(&x.recv, q, me, false);
    for (int s = 0; s < 2; s++) free(memory[s]);
    free(x.send.block_off);
    free(x.send.block);
    free(x.recv.block_off);
    free(x.recv.block);
  }
}

/* -------------------------------------------------------------------- reduction */

/* Element i of rank r: numbers whose float sums depend on the order in which they are added. */
static inline double element(int32_t r, int64_t i) {
  dice d = {(uint64_t)(r * 1000003 + i)};
  return dice_real(&d, -1, 1) * (dice_one_in(&d, 4) ? 1e6 : 1);
}

static inline void set_element(kf_dtype type, void *data, int64_t i, double x) {
  if (type == KF_F32)
    ((float *)data)[i] = (float)x;
  else if (type == KF_F64)
    ((double *)data)[i] = x;
  else
    ((int64_t *)data)[i] = (int64_t)(x * 1e9);
}

/* Is element i of `data` what all ranks' elements reduce to? Sums of floats may be rounded. */
static inline bool reduced(kf_reduction how, kf_dtype type, const void *data, int64_t i,
                           int32_t n) {
  double want = 0, bound = 0, got;
  for (int32_t r = 0; r < n; r++) {
    double x = element(r, i);
    if (type == KF_F32) x = (double)(float)x;
    if (type == KF_I64) x = (double)(int64_t)(x * 1e9);
    bound += fabs(x);
    if (r == 0)
      want = x;
    else
      want = how == KF_SUM ? want + x : how == KF_MAX ? fmax(want, x) : fmin(want, x);
  }
  if (type == KF_F32)
    got = (double)((const float *)data)[i];
  else if (type == KF_F64)
    got = ((const double *)data)[i];
  else
    got = (double)((const int64_t *)data)[i];
  if (how != KF_SUM || type == KF_I64) return got == want; /* integers below 2^53 */
  return fabs(got - want) <= bound * (type == KF_F32 ? 1e-6 : 1e-14);
}

/* The right result, and the same bits on all ranks. */
static inline void check_reduce_of(kf_comm *comm, kf_reduction how, kf_dtype type, int64_t n) {
  int32_t size = kf_comm_size(comm), me = kf_comm_rank(comm);
  size_t n_bytes = (size_t)n * (type == KF_F32 ? 4 : 8);
  char *data = malloc(n_bytes + 1), *all = malloc(n_bytes * (size_t)size + 1);
  data[n_bytes] = 99;
  for (int64_t i = 0; i < n; i++) set_element(type, data, i, element(me, i));
  EXPECT_OK(kf_comm_reduce(comm, how, type, n, n ? data : NULL));
  assert(data[n_bytes] == 99);
  for (int64_t i = 0; i < n; i += 1 + n / 300) assert(reduced(how, type, data, i, size));
  if (n > 0) assert(reduced(how, type, data, n - 1, size));
  EXPECT_OK(kf_comm_gather(comm, data, (int64_t)n_bytes, all));
  for (int32_t r = 0; r < size; r++) assert(memcmp(all + (size_t)r * n_bytes, data, n_bytes) == 0);
  free(data);
  free(all);
}

/* 512 elements are a block of the local backend, which gives each rank a part of the data. */
static inline void check_reduce(kf_comm *comm) {
  int64_t n = kf_comm_size(comm);
  const kf_dtype dtypes[] = {KF_F32, KF_F64, KF_I64};
  const int64_t sizes[] = {0, 1, n - 1, n, n + 1, 511 * n, 512 * n - 1, 512 * n, 512 * n + 1, 3000};
  for (int how = KF_SUM; how <= KF_MIN; how++)
    for (int k = 0; k < 3; k++)
      for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        check_reduce_of(comm, (kf_reduction)how, dtypes[k], sizes[s]);
}

/* What numbers of both ranks and of all others reduce to: a NaN from anybody comes through. */
static inline double special(kf_reduction how, double a, double b) {
  if (how == KF_SUM) return a + b;
  if (isnan(a) || isnan(b)) return NAN;
  if (a == b) return (how == KF_MAX) == (signbit(a) == 0) ? a : b;
  return (how == KF_MAX) == (a > b) ? a : b;
}

/* Zeros of both signs, NaNs and infinities, in all combinations of two or three ranks. The same on
** all ranks, but for the sign of a sum that is no number. */
static inline void check_reduce_specials(kf_comm *comm) {
  const double value[] = {0.0, -0.0, NAN, -NAN, INFINITY, -INFINITY, 1};
  enum { N = 343 };
  int32_t size = kf_comm_size(comm), me = kf_comm_rank(comm);
  for (int how = KF_SUM; how <= KF_MIN; how++)
    for (int type = KF_F32; type <= KF_F64; type += KF_F64 - KF_F32) {
      double data[N];
      for (int i = 0; i < N; i++) {
        int place[] = {i % 7, i / 7 % 7, i / 49};
        set_element((kf_dtype)type, data, i, value[place[me % 3]]);
      }
      EXPECT_OK(kf_comm_reduce(comm, (kf_reduction)how, (kf_dtype)type, N, data));
      for (int i = 0; i < N; i++) {
        int place[] = {i % 7, i / 7 % 7, i / 49};
        double want = value[place[0]], got = type == KF_F32 ? (double)((float *)data)[i] : data[i];
        for (int32_t r = 1; r < size; r++)
          want = special((kf_reduction)how, want, value[place[r % 3]]);
        if (isnan(want) ? !isnan(got) : got != want || signbit(got) != signbit(want)) {
          fprintf(stderr, "rank %d of %d: reduction %d of type %d is %g, expected %g\n", (int)me,
                  (int)size, how, type, got, want);
          abort();
        }
      }
    }
}

#endif
