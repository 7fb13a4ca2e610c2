/* SPDX-License-Identifier: Apache-2.0 */
/* What route and ulysses share: check everything, list the runs of both sides, exchange them. */
#include <string.h>

#include "../numbers.h"
#include "comm.h"

static kf_status check_plan(const kf_comm *comm, const kf_plan *plan) {
  if (!plan) return kfi_fail(KF_EINVAL, "%s: plan is NULL", comm->call);
  if (plan->version != KF_PLAN_VERSION)
    return kfi_fail(KF_EINVAL, "%s: plan of version %d, expected %d", comm->call, plan->version,
                    KF_PLAN_VERSION);
  if (plan->n_ranks != comm->size)
    return kfi_fail(KF_EINVAL, "%s: plan for %d ranks, expected the comm's %d", comm->call,
                    plan->n_ranks, comm->size);
  return KF_OK;
}

static kf_status check_tensor(const kf_comm *comm, const char *name, int32_t i, const kf_tensor *t,
                              int64_t n_rows) {
  int64_t most = INT64_MAX / 4 / (n_rows + 1); /* all addresses stay far from overflow */
  if (t->n_rows != n_rows)
    return kfi_fail(KF_EINVAL, "%s: %s[%d] has %lld rows, expected %lld on rank %d", comm->call,
                    name, i, (long long)t->n_rows, (long long)n_rows, comm->rank);
  if (t->row_bytes < 1 || t->row_bytes > most)
    return kfi_fail(KF_EINVAL, "%s: %s[%d] has rows of %lld bytes, expected 1 to %lld", comm->call,
                    name, i, (long long)t->row_bytes, (long long)most);
  if (t->stride_bytes != 0 && (t->stride_bytes < t->row_bytes || t->stride_bytes > most))
    return kfi_fail(KF_EINVAL,
                    "%s: %s[%d] has a stride of %lld bytes, expected 0 or at least its %lld a row",
                    comm->call, name, i, (long long)t->stride_bytes, (long long)t->row_bytes);
  if (!t->data && n_rows > 0)
    return kfi_fail(KF_EINVAL, "%s: %s[%d] has %lld rows and its data is NULL", comm->call, name, i,
                    (long long)n_rows);
  return KF_OK;
}

static kf_status check_tensors(const kf_comm *comm, const kfi_move_kind *kind, const kfi_move *m) {
  kf_status status;
  if (m->n_tensors < 0)
    return kfi_fail(KF_EINVAL, "%s: %d tensors, expected 0 or more", comm->call, m->n_tensors);
  for (int s = 0; s < 2; s++) {
    int64_t n_rows = kind->n_rows[s](m->plan, comm->rank);
    if (!m->side[s] && m->n_tensors > 0)
      return kfi_fail(KF_EINVAL, "%s: %s is NULL", comm->call, kind->name[s]);
    for (int32_t i = 0; i < m->n_tensors; i++)
      if ((status = check_tensor(comm, kind->name[s], i, &m->side[s][i], n_rows))) return status;
  }
  for (int32_t i = 0; i < m->n_tensors; i++) {
    const kf_tensor *a = &m->side[0][i], *b = &m->side[1][i];
    if (a->data == b->data && a->n_rows > 0 && b->n_rows > 0)
      return kfi_fail(KF_EINVAL, "%s: %s[%d] and %s[%d] are the same memory, expected two buffers",
                      comm->call, kind->name[0], i, kind->name[1], i);
    if ((status = kind->check_pair(comm, m->plan, i, a, b))) return status;
  }
  return KF_OK;
}

/* Two ranks that mean the same have the same. */
static uint64_t hash_of(const kfi_move *m, const char *call) {
  uint64_t h = kf_hash_bytes(m->plan->hash, call, strlen(call));
  for (int32_t i = 0; i < m->n_tensors; i++) h = kfi_hash(h, &m->side[0][i].row_bytes, 1);
  return h ^ h >> 32;
}

kf_status kfi_move_run(kf_comm *comm, const kfi_move_kind *kind, const kfi_move *given, int from) {
  kfi_move m = *given;
  kfi_side side[2];
  kf_status status;
  if ((status = kfi_comm_enter(comm, kind->call[from]))) return status;
  m.rank = comm->rank;
  if ((status = check_plan(comm, m.plan))) return kfi_comm_fail(comm, status);
  if ((status = check_tensors(comm, kind, &m))) return kfi_comm_fail(comm, status);
  if ((status = kfi_collect(comm, kind->walk, &m, side))) return kfi_comm_fail(comm, status);
  comm->what = hash_of(&m, comm->call);
  return kfi_comm_exchange(comm, &(kfi_exchange){side[from], side[!from]});
}
