/* SPDX-License-Identifier: Apache-2.0 */
/*
** Ulysses: rows with all heads become whole sequences of some heads, and back. As in route.c, one
** walk lists both sides, and the way back swaps them.
**
**     holder a of rows                          owner b of heads f .. f+h-1
**     rows  (t_a, H, head bytes)                segment  (l, h, head bytes)
**     run: t_a rows, stride H: columns f..  --> run: rows offset_a .. of the segment, contiguous
**
** A pair of ranks exchanges one run per tensor and sequence, by tensor and then by sequence: a rank
** has at most one chunk of a sequence. Sequences that one rank computes whole are copied in place
** of being sent.
*/
#include "comm.h"

enum { ROWS, PAIRS };

int64_t kf_ulysses_pairs(const kf_plan *plan, int32_t rank) {
  if (!plan || rank < 0 || rank >= plan->n_ranks ||
      plan->segment_off[rank] == plan->segment_off[rank + 1])
    return 0;
  const kf_segment *last = &plan->segment[plan->segment_off[rank + 1] - 1];
  return last->offset + last->rows * last->heads;
}

static void walk_rows(kfi_collector *c, const kfi_move *m, int32_t t) {
  const kf_plan *p = m->plan;
  int64_t stride = kfi_tensor_stride(&m->side[ROWS][t]), head_bytes = m->side[PAIRS][t].row_bytes;
  for (int64_t h = p->hold_off[m->rank]; h < p->hold_off[m->rank + 1]; h++) {
    const kf_chunk *mine = &p->chunk[p->hold[h]];
    if (mine->length == 0) continue; /* data may be NULL */
    char *row = (char *)m->side[ROWS][t].data + p->hold_row[p->hold[h]] * stride;
    for (int64_t i = p->seq_off[mine->seq]; i < p->seq_off[mine->seq + 1]; i++) {
      const kf_chunk *owner = &p->chunk[i];
      if (owner->heads == 0) continue;
      kfi_run run = {row + owner->first_head * head_bytes, mine->length, owner->heads * head_bytes,
                     stride};
      kfi_collector_add(c, ROWS, owner->destination, run);
    }
  }
}

static void walk_pairs(kfi_collector *c, const kfi_move *m, int32_t t) {
  const kf_plan *p = m->plan;
  int64_t head_bytes = m->side[PAIRS][t].row_bytes;
  for (int64_t s = p->segment_off[m->rank]; s < p->segment_off[m->rank + 1]; s++) {
    const kf_segment *mine = &p->segment[s];
    int64_t row_bytes = mine->heads * head_bytes;
    for (int64_t i = p->seq_off[mine->seq]; i < p->seq_off[mine->seq + 1]; i++) {
      const kf_chunk *k = &p->chunk[i];
      if (k->length == 0) continue;
      char *at = (char *)m->side[PAIRS][t].data + mine->offset * head_bytes + k->offset * row_bytes;
      kfi_collector_add(c, PAIRS, k->destination, (kfi_run){at, k->length, row_bytes, row_bytes});
    }
  }
}

static void walk(kfi_collector *c, const kfi_move *m) {
  for (int32_t t = 0; t < m->n_tensors; t++) {
    walk_rows(c, m, t);
    walk_pairs(c, m, t);
  }
}

static kf_status check_pair(const kf_comm *comm, const kf_plan *plan, int32_t i,
                            const kf_tensor *rows, const kf_tensor *pairs) {
  if (rows->row_bytes % plan->heads != 0 || rows->row_bytes / plan->heads != pairs->row_bytes)
    return kfi_fail(
      KF_EINVAL,
      "%s: rows[%d] has rows of %lld bytes and pairs[%d] of %lld, expected %d heads of "
      "the same bytes",
      comm->call, i, (long long)rows->row_bytes, i, (long long)pairs->row_bytes, plan->heads);
  if (kfi_tensor_stride(pairs) != pairs->row_bytes)
    return kfi_fail(KF_EINVAL, "%s: pairs[%d] has a stride of %lld bytes, expected 0", comm->call,
                    i, (long long)pairs->stride_bytes);
  return KF_OK;
}

static int64_t hold_rows(const kf_plan *plan, int32_t rank) { return plan->hold_rows[rank]; }

static const kfi_move_kind ulysses = {{"ulysses out", "ulysses back"},
                                      {"rows", "pairs"},
                                      {hold_rows, kf_ulysses_pairs},
                                      check_pair,
                                      walk};

kf_status kf_ulysses_out(kf_comm *comm, const kf_plan *plan, int32_t n_tensors,
                         const kf_tensor *rows, const kf_tensor *pairs) {
  return kfi_move_run(comm, &ulysses, &(kfi_move){plan, n_tensors, 0, {rows, pairs}}, ROWS);
}

kf_status kf_ulysses_back(kf_comm *comm, const kf_plan *plan, int32_t n_tensors,
                          const kf_tensor *pairs, const kf_tensor *rows) {
  return kfi_move_run(comm, &ulysses, &(kfi_move){plan, n_tensors, 0, {rows, pairs}}, PAIRS);
}
