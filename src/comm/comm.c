/* SPDX-License-Identifier: Apache-2.0 */
/*
** The comm: checks arguments, calls the backend, and keeps the rule that no rank fails alone. A
** failure breaks the comm for good: ranks that have lost step with each other cannot be brought
** back into step, and the second error of a broken run would hide the first.
*/
#include "comm.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

double kfi_now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ------------------------------------------------------------------ agreement */

kf_status kfi_comm_break(kf_comm *comm, kf_status status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(comm->reason, sizeof comm->reason, format, args);
  va_end(args);
  comm->broken = status;
  return kfi_fail(status, "%s", comm->reason);
}

kf_status kfi_comm_fail(kf_comm *comm, kf_status status) {
  if (comm->broken) return status; /* the backend has heard of it from another rank */
  comm->broken = status;
  snprintf(comm->reason, sizeof comm->reason, "%s", kf_last_error());
  comm->ops->alarm(comm, comm->reason);
  return kfi_fail(status, "%s", comm->reason); /* the alarm may have failed too */
}

kf_status kfi_comm_enter(kf_comm *comm, const char *call) {
  if (!comm) return kfi_fail(KF_EINVAL, "%s: comm is NULL", call);
  comm->call = call;
  if (comm->broken) return kfi_fail(comm->broken, "%s", comm->reason);
  return KF_OK;
}

kf_status kfi_comm_exchange(kf_comm *comm, const kfi_transfer *exchange) {
  kf_status status = comm->ops->exchange(comm, exchange);
  return status ? kfi_comm_fail(comm, status) : KF_OK;
}

kf_status kf_comm_fail(kf_comm *comm, const char *reason) {
  kf_status status;
  if ((status = kfi_comm_enter(comm, "fail"))) return status;
  return kfi_comm_fail(comm, kfi_fail(KF_ECOMM, "%s", reason ? reason : "no reason given"));
}

void kfi_name_ranks(const bool *marked, int32_t n_ranks, char names[KFI_NAMES]) {
  enum { MOST = 4 };
  int32_t n = 0, shown = 0;
  for (int32_t r = 0; r < n_ranks; r++) n += marked[r];
  int at = snprintf(names, KFI_NAMES, n == 1 ? "rank" : "ranks");
  for (int32_t r = 0; r < n_ranks && shown < MOST; r++) {
    if (!marked[r]) continue;
    const char *before = shown == 0 ? " " : shown == n - 1 ? " and " : ", ";
    at += snprintf(names + at, (size_t)(KFI_NAMES - at), "%s%d", before, r);
    shown++;
  }
  if (n > shown)
    at += snprintf(names + at, (size_t)(KFI_NAMES - at), " and %d other%s", n - shown,
                   n - shown == 1 ? "" : "s");
  snprintf(names + at, (size_t)(KFI_NAMES - at), n == 1 ? " was" : " were");
}

/* ---------------------------------------------------------------- the object */

void kf_comm_free(kf_comm *comm) {
  if (!comm) return;
  kfi_buffer_free(&comm->blocks);
  kf_exchange_free(comm->table);
  kfi_buffer_free(&comm->peers);
  comm->ops->free(comm);
}

int32_t kf_comm_rank(const kf_comm *comm) { return comm ? comm->rank : 0; }
int32_t kf_comm_size(const kf_comm *comm) { return comm ? comm->size : 0; }

kf_status kf_comm_set_timeout(kf_comm *comm, double seconds) {
  if (!comm) return kfi_fail(KF_EINVAL, "kf_comm_set_timeout: comm is NULL");
  if (!(seconds >= 0.01 && seconds <= 1e6))
    return kfi_fail(KF_EINVAL, "timeout of %g s, expected 0.01 to 1e6", seconds);
  comm->timeout_s = seconds;
  return KF_OK;
}

/* --------------------------------------------------------------- collectives */

kf_status kf_comm_barrier(kf_comm *comm) {
  kf_status status;
  if ((status = kfi_comm_enter(comm, "barrier"))) return status;
  status = comm->ops->gather(comm, NULL, 0, NULL);
  return status ? kfi_comm_fail(comm, status) : KF_OK;
}

/* At most half of all records travel in one message, with room for a label. */
int64_t kfi_most_record(int32_t n_ranks) { return INT32_MAX / ((n_ranks + 1) / 2) - 8192; }

kf_status kfi_comm_gather(kf_comm *comm, const char *call, const void *record, int64_t n_bytes,
                          void *all) {
  kf_status status;
  if ((status = kfi_comm_enter(comm, call))) return status;
  if (n_bytes < 0 || n_bytes > kfi_most_record(comm->size))
    status = kfi_fail(KF_EINVAL, "%s: a record of %lld bytes, expected 0 to %lld on %d ranks", call,
                      (long long)n_bytes, (long long)kfi_most_record(comm->size), comm->size);
  else if (n_bytes > 0 && (!record || !all))
    status = kfi_fail(KF_EINVAL, "%s: %s is NULL", call, record ? "all" : "record");
  else
    status = comm->ops->gather(comm, record, n_bytes, all);
  return status ? kfi_comm_fail(comm, status) : KF_OK;
}

kf_status kf_comm_gather(kf_comm *comm, const void *record, int64_t n_bytes, void *all) {
  return kfi_comm_gather(comm, "gather", record, n_bytes, all);
}

/* One block for each rank that gets or sends anything. */
static kf_status flat_side(kf_comm *comm, const char *name, char *data, const int64_t *n_bytes,
                           kfi_side *side) {
  int64_t n = 0;
  for (int32_t q = 0; q < comm->size; q++) {
    side->block_off[q] = n;
    if (n_bytes[q] < 0)
      return kfi_fail(KF_EINVAL, "alltoallv: %s_bytes[%d] is %lld, expected 0 or more", name, q,
                      (long long)n_bytes[q]);
    if (n_bytes[q] == 0) continue;
    if (!data) return kfi_fail(KF_EINVAL, "alltoallv: %s is NULL", name);
    side->block[n++] = (kfi_block){data, 1, n_bytes[q], n_bytes[q]};
    data += n_bytes[q];
  }
  side->block_off[comm->size] = n;
  return KF_OK;
}

static kf_status flat_exchange(kf_comm *comm, const void *send, const int64_t *send_bytes,
                               void *recv, const int64_t *recv_bytes, kfi_transfer *x) {
  kf_status status;
  size_t n = (size_t)comm->size + 1;
  if (!send_bytes || !recv_bytes)
    return kfi_fail(KF_EINVAL, "alltoallv: %s is NULL", send_bytes ? "recv_bytes" : "send_bytes");
  int64_t *off = kfi_buffer_reserve(&comm->peers, 2 * n * sizeof *off);
  if (!off) return KF_ENOMEM;
  kfi_block *block = kfi_buffer_reserve(&comm->blocks, 2 * n * sizeof *block);
  if (!block) return KF_ENOMEM;
  *x = (kfi_transfer){{off, block}, {off + n, block + n}};
  /* blocks are read only where they are sent from; the type cannot say so */
  if ((status = flat_side(comm, "send", (char *)(uintptr_t)send, send_bytes, &x->send)))
    return status;
  if ((status = flat_side(comm, "recv", recv, recv_bytes, &x->recv))) return status;
  if (send_bytes[comm->rank] != recv_bytes[comm->rank])
    return kfi_fail(KF_EINVAL, "alltoallv: rank %d sends itself %lld bytes and receives %lld",
                    comm->rank, (long long)send_bytes[comm->rank],
                    (long long)recv_bytes[comm->rank]);
  return KF_OK;
}

kf_status kf_comm_alltoallv(kf_comm *comm, const void *send, const int64_t *send_bytes, void *recv,
                            const int64_t *recv_bytes) {
  kfi_transfer x;
  kf_status status;
  if ((status = kfi_comm_enter(comm, "alltoallv"))) return status;
  comm->what = 0;
  if ((status = flat_exchange(comm, send, send_bytes, recv, recv_bytes, &x)))
    return kfi_comm_fail(comm, status);
  return kfi_comm_exchange(comm, &x);
}

/*
** The larger of two, the same bits in either order: backends differ in the order in which they
** reduce, and one may use another on each rank. A NaN from any rank comes through, so that nobody
** misses it; +0 is above -0. Widening a float is exact, so one function serves both types.
*/
static double larger(double a, double b) {
  if (isnan(a) || isnan(b)) return (double)NAN;
  if (a == b) return signbit(a) ? b : a;
  return a > b ? a : b;
}

kf_status kfi_same_reduction(int32_t r, const int64_t of_r[2], const int64_t of_0[2]) {
  static const char *const reduction[] = {"sum", "maximum", "minimum"};
  if (of_r[0] == of_0[0] && of_r[1] == of_0[1]) return KF_OK;
  return kfi_fail(
    KF_EMISMATCH, "reduce: rank %d wants the %s of %lld %s, but rank 0 the %s of %lld %s", r,
    reduction[of_r[1] / 8], (long long)of_r[0], kfi_dtype_name((kf_dtype)(of_r[1] % 8)),
    reduction[of_0[1] / 8], (long long)of_0[0], kfi_dtype_name((kf_dtype)(of_0[1] % 8)));
}

#define REDUCE(type)                                                                               \
  do {                                                                                             \
    type *a = acc;                                                                                 \
    const type *v = value;                                                                         \
    if (reduction == KF_SUM)                                                                       \
      for (int64_t i = 0; i < n; i++) a[i] += v[i];                                                \
    else if (reduction == KF_MAX)                                                                  \
      for (int64_t i = 0; i < n; i++) a[i] = (type)larger((double)a[i], (double)v[i]);             \
    else                                                                                           \
      for (int64_t i = 0; i < n; i++) a[i] = (type)-larger(-(double)a[i], -(double)v[i]);          \
  } while (0)

static void reduce_i64(kf_reduction reduction, int64_t n, int64_t *a, const int64_t *v) {
  if (reduction == KF_SUM) /* wraps, as MPI's does */
    for (int64_t i = 0; i < n; i++) a[i] = (int64_t)((uint64_t)a[i] + (uint64_t)v[i]);
  else if (reduction == KF_MAX)
    for (int64_t i = 0; i < n; i++) a[i] = v[i] > a[i] ? v[i] : a[i];
  else
    for (int64_t i = 0; i < n; i++) a[i] = v[i] < a[i] ? v[i] : a[i];
}

void kfi_reduce(kf_reduction reduction, kf_dtype type, int64_t n, void *acc, const void *value) {
  if (type == KF_F32)
    REDUCE(float);
  else if (type == KF_F64)
    REDUCE(double);
  else
    reduce_i64(reduction, n, acc, value);
}

kf_status kf_comm_reduce(kf_comm *comm, kf_reduction reduction, kf_dtype dtype, int64_t n,
                         void *data) {
  kf_status status;
  if ((status = kfi_comm_enter(comm, "reduce"))) return status;
  if ((unsigned)reduction > KF_MIN)
    status = kfi_fail(KF_EINVAL, "reduce: reduction %d, expected 0 to %d", (int)reduction, KF_MIN);
  else if (dtype != KF_F32 && dtype != KF_F64 && dtype != KF_I64)
    status = kfi_fail(KF_EINVAL, "reduce: dtype %d (%s), expected %d (f32), %d (f64) or %d (i64)",
                      (int)dtype, kfi_dtype_name(dtype), KF_F32, KF_F64, KF_I64);
  else if (n < 0 || n > INT64_MAX / 16 || (n > 0 && !data))
    status = kfi_fail(KF_EINVAL, "reduce: %lld elements%s, expected 0 or more and their data",
                      (long long)n, data ? "" : " and data is NULL");
  else
    status = comm->ops->reduce(comm, reduction, dtype, n, data);
  return status ? kfi_comm_fail(comm, status) : KF_OK;
}
