/* SPDX-License-Identifier: Apache-2.0 */
/*
** Route and reverse: one walk over the plan lists what a rank has to do with every other as the
** home of chunks and as their holder. Forward sends the home side and receives the holder's;
** reverse swaps the two, so that it cannot disagree.
**
**     home h                              holder d
**     chunks of h in order                chunks held by d, in order
**     run: home_row[c], length rows  -->  run: hold_row[c], length rows
**
** Both sides list tensor after tensor, and a tensor's chunks by number: for a pair of ranks that
** is the same list. Tensor by tensor, because the long runs of a wide tensor then stay together
** and the short ones of narrow tensors share a message.
*/
#include "comm.h"

enum { HOME, HOLDER };

static kfi_run rows_of(const kf_tensor *t, int64_t first, int64_t n) {
  int64_t stride = kfi_tensor_stride(t);
  return (kfi_run){(char *)t->data + first * stride, n, t->row_bytes, stride};
}

static void walk(kfi_collector *c, const kfi_move *m) {
  const kf_plan *p = m->plan;
  for (int32_t t = 0; t < m->n_tensors; t++) {
    for (int64_t i = p->send_off[m->rank]; i < p->send_off[m->rank + 1]; i++) {
      const kf_chunk *k = &p->chunk[i];
      if (k->length > 0)
        kfi_collector_add(c, HOME, k->destination,
                          rows_of(&m->side[HOME][t], p->home_row[i], k->length));
    }
    for (int64_t h = p->hold_off[m->rank]; h < p->hold_off[m->rank + 1]; h++) {
      const kf_chunk *k = &p->chunk[p->hold[h]];
      if (k->length > 0)
        kfi_collector_add(c, HOLDER, k->source,
                          rows_of(&m->side[HOLDER][t], p->hold_row[p->hold[h]], k->length));
    }
  }
}

static kf_status check_pair(const kf_comm *comm, const kf_plan *plan, int32_t i,
                            const kf_tensor *home, const kf_tensor *held) {
  (void)plan;
  if (home->row_bytes == held->row_bytes) return KF_OK;
  return kfi_fail(KF_EINVAL,
                  "%s: home[%d] has rows of %lld bytes and held[%d] of %lld, expected the same",
                  comm->call, i, (long long)home->row_bytes, i, (long long)held->row_bytes);
}

static int64_t home_rows(const kf_plan *plan, int32_t rank) { return plan->home_rows[rank]; }
static int64_t hold_rows(const kf_plan *plan, int32_t rank) { return plan->hold_rows[rank]; }

static const kfi_move_kind route = {
  {"route", "reverse"}, {"home", "held"}, {home_rows, hold_rows}, check_pair, walk};

kf_status kf_route_forward(kf_comm *comm, const kf_plan *plan, int32_t n_tensors,
                           const kf_tensor *home, const kf_tensor *held) {
  return kfi_move_run(comm, &route, &(kfi_move){plan, n_tensors, 0, {home, held}}, HOME);
}

kf_status kf_route_reverse(kf_comm *comm, const kf_plan *plan, int32_t n_tensors,
                           const kf_tensor *held, const kf_tensor *home) {
  return kfi_move_run(comm, &route, &(kfi_move){plan, n_tensors, 0, {home, held}}, HOLDER);
}
