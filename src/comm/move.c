/* SPDX-License-Identifier: Apache-2.0 */
/*
** Tensors move by an exchange table: check everything, turn the table's runs into blocks of memory,
** exchange them. For each peer the blocks are listed tensor by tensor: the long ones of a wide
** tensor then stay together, and the short ones of narrow tensors share a message.
*/
#include <string.h>

#include "../numbers.h"
#include "comm.h"

/* What a kind of exchange calls the move away from each side, and the lists of tensors there. */
static const struct words {
  const char *call[2], *side[2];
} words[] = {
  [KF_EXCHANGE_ROUTE] = {{"route", "reverse"}, {"home", "held"}},
  [KF_EXCHANGE_SEQUENCES] = {{"sequences", "sequences back"}, {"home", "held"}},
  [KF_EXCHANGE_ULYSSES] = {{"ulysses out", "ulysses back"}, {"rows", "pairs"}},
  [KF_EXCHANGE_ULYSSES_SPLIT] = {{"ulysses out", "ulysses back"}, {"rows", "pairs"}},
};

/* ---------------------------------------------------------------------------- checks */

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

static kf_status check_table(const kf_comm *comm, const kf_exchange *x, int from) {
  if (x->n_ranks != comm->size || x->rank != comm->rank)
    return kfi_fail(KF_EINVAL, "%s: exchange of rank %d of %d, expected the comm's %d of %d",
                    comm->call, x->rank, x->n_ranks, comm->rank, comm->size);
  if (x->kind == KF_EXCHANGE_SEQUENCES && from == 1)
    return kfi_fail(KF_EINVAL, "%s: copies of a row would have to be added up, expected forward",
                    comm->call);
  return KF_OK;
}

static int64_t stride_of(const kf_tensor *t) {
  return t->stride_bytes ? t->stride_bytes : t->row_bytes;
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

/* Do the i-th tensors of both sides belong together? */
static kf_status check_pair(const kf_comm *comm, const kf_exchange *x, int32_t i,
                            const kf_tensor *a, const kf_tensor *b) {
  const char *const *name = words[x->kind].side;
  bool ulysses = x->kind >= KF_EXCHANGE_ULYSSES;
  if (a->data == b->data && a->n_rows > 0 && b->n_rows > 0)
    return kfi_fail(KF_EINVAL, "%s: %s[%d] and %s[%d] are the same memory, expected two buffers",
                    comm->call, name[0], i, name[1], i);
  if (!ulysses && a->row_bytes != b->row_bytes)
    return kfi_fail(KF_EINVAL,
                    "%s: home[%d] has rows of %lld bytes and held[%d] of %lld, expected the same",
                    comm->call, i, (long long)a->row_bytes, i, (long long)b->row_bytes);
  if (ulysses && (a->row_bytes % x->heads != 0 || a->row_bytes / x->heads != b->row_bytes))
    return kfi_fail(
      KF_EINVAL,
      "%s: rows[%d] has rows of %lld bytes and pairs[%d] of %lld, expected %d heads of "
      "the same bytes",
      comm->call, i, (long long)a->row_bytes, i, (long long)b->row_bytes, x->heads);
  if (ulysses && stride_of(b) != b->row_bytes)
    return kfi_fail(KF_EINVAL, "%s: pairs[%d] has a stride of %lld bytes, expected 0", comm->call,
                    i, (long long)b->stride_bytes);
  return KF_OK;
}

static kf_status check_tensors(const kf_comm *comm, const kf_exchange *x, const kfi_move *m) {
  kf_status status;
  if (m->n_tensors < 0)
    return kfi_fail(KF_EINVAL, "%s: %d tensors, expected 0 or more", comm->call, m->n_tensors);
  for (int s = 0; s < 2; s++) {
    const char *name = words[x->kind].side[s];
    int64_t n_rows = s == 0 ? x->n_units[0] / x->heads : x->n_units[1];
    if (!m->side[s] && m->n_tensors > 0)
      return kfi_fail(KF_EINVAL, "%s: %s is NULL", comm->call, name);
    for (int32_t i = 0; i < m->n_tensors; i++)
      if ((status = check_tensor(comm, name, i, &m->side[s][i], n_rows))) return status;
  }
  for (int32_t i = 0; i < m->n_tensors; i++)
    if ((status = check_pair(comm, x, i, &m->side[0][i], &m->side[1][i]))) return status;
  return KF_OK;
}

/* ---------------------------------------------------------------------------- blocks */

/* A run of side s in a tensor's memory, whose units have so many bytes. */
static kfi_block block_of(const kf_exchange *x, int s, const kf_run *run, const kf_tensor *t,
                          int64_t unit_bytes) {
  int64_t in_row = s == 0 ? x->heads : 1, stride = stride_of(t);
  char *data = (char *)t->data + run->first / in_row * stride + run->first % in_row * unit_bytes;
  return (kfi_block){data, run->n, run->width * unit_bytes, run->stride / in_row * stride};
}

static void list_blocks(const kf_exchange *x, int s, const kfi_move *m, kfi_side *out) {
  int64_t n = 0, peer = 0;
  for (int32_t q = 0; q < x->n_ranks; q++) {
    bool listed = peer < x->n_peers && x->peer[peer].peer == q;
    int64_t list = listed ? peer++ : x->n_peers;
    out->block_off[q] = n;
    if (!listed && q != x->rank) continue;
    for (int32_t t = 0; t < m->n_tensors; t++)
      for (int64_t i = x->run_off[s][list]; i < x->run_off[s][list + 1]; i++)
        out->block[n++] = block_of(x, s, &x->run[s][i], &m->side[s][t], m->side[1][t].row_bytes);
  }
  out->block_off[x->n_ranks] = n;
}

/* Both sides, in the comm's memory. */
static kf_status lay_out(kf_comm *comm, const kf_exchange *x, const kfi_move *m, kfi_side side[2]) {
  size_t n_off = (size_t)comm->size + 1, n[2];
  for (int s = 0; s < 2; s++) n[s] = (size_t)(x->run_off[s][x->n_peers + 1] * m->n_tensors);
  int64_t *off = kfi_buffer_reserve(&comm->peers, 2 * n_off * sizeof *off);
  if (!off) return KF_ENOMEM;
  kfi_block *block = kfi_buffer_reserve(&comm->blocks, (n[0] + n[1]) * sizeof *block);
  if (!block) return KF_ENOMEM;
  side[0] = (kfi_side){off, block};
  side[1] = (kfi_side){off + n_off, block + n[0]};
  for (int s = 0; s < 2; s++) list_blocks(x, s, m, &side[s]);
  return KF_OK;
}

/* ------------------------------------------------------------------------------ move */

/* Two ranks that mean the same have the same. */
static uint64_t hash_of(const kf_exchange *x, const kfi_move *m, const char *call) {
  uint64_t h = kf_hash_bytes(x->hash, call, strlen(call));
  for (int32_t i = 0; i < m->n_tensors; i++) h = kfi_hash(h, &m->side[0][i].row_bytes, 1);
  return h ^ h >> 32;
}

static kf_status move(kf_comm *comm, const kf_exchange *x, const kfi_move *m) {
  kfi_side side[2];
  kf_status status;
  if ((status = check_table(comm, x, m->from))) return kfi_comm_fail(comm, status);
  if ((status = check_tensors(comm, x, m))) return kfi_comm_fail(comm, status);
  if ((status = lay_out(comm, x, m, side))) return kfi_comm_fail(comm, status);
  comm->what = hash_of(x, m, comm->call);
  return kfi_comm_exchange(comm, &(kfi_transfer){side[m->from], side[!m->from]});
}

kf_status kfi_move_by_plan(kf_comm *comm, const kf_plan *plan, kf_exchange_kind kind,
                           const kfi_move *m) {
  kf_status status = kfi_comm_enter(comm, words[kind].call[m->from]);
  if (status) return status;
  if (!(status = check_plan(comm, plan)))
    status = kf_exchange_renew(plan, comm->rank, kind, 0, &comm->table);
  return status ? kfi_comm_fail(comm, status) : move(comm, comm->table, m);
}

static kf_status move_by_table(kf_comm *comm, const kf_exchange *x, const kfi_move *m) {
  kf_status status = kfi_comm_enter(comm, x ? words[x->kind].call[m->from] : "exchange");
  if (status) return status;
  if (!x) return kfi_comm_fail(comm, kfi_fail(KF_EINVAL, "exchange: exchange is NULL"));
  return move(comm, x, m);
}

kf_status kf_exchange_forward(kf_comm *comm, const kf_exchange *exchange, int32_t n_tensors,
                              const kf_tensor *from, const kf_tensor *to) {
  return move_by_table(comm, exchange, &(kfi_move){n_tensors, {from, to}, 0});
}

kf_status kf_exchange_reverse(kf_comm *comm, const kf_exchange *exchange, int32_t n_tensors,
                              const kf_tensor *from, const kf_tensor *to) {
  return move_by_table(comm, exchange, &(kfi_move){n_tensors, {to, from}, 1});
}
