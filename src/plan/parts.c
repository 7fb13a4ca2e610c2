/* SPDX-License-Identifier: Apache-2.0 */
/*
** Early or late: in every layer a rank first works on its rows of split sequences (all that is
** linear in tokens), then meets the ranks that it shares them with, computes its heads of them
** (attention), and meets them again. The first takes rank r a_r, and its whole connected set waits
** for the largest of them, a: so rank r fills up to a with whole sequences, and the rest of them
** comes beside attention. If a plan gives all ranks the same work in all, and no rank has too
** little that is whole, both sides are then even as well. A rank in no set has nothing to fill.
**
** Linear in chunks but for the union-find over ranks, which is nearly so.
*/
#include "planning.h"

static int32_t find(int32_t *parent, int32_t r) {
  while (parent[r] != r) r = parent[r] = parent[parent[r]];
  return r;
}

static void join(int32_t *parent, int32_t a, int32_t b) {
  a = find(parent, a), b = find(parent, b);
  parent[a > b ? a : b] = a > b ? b : a;
}

kf_status kfi_parts_choose(const kfi_world *w, const kf_batch *batch, const int64_t *seq_off,
                           kf_chunk *chunk, kfi_buffer *scratch) {
  int64_t n = w->n_ranks, n_chunks = seq_off[batch->n_seqs];
  if (n_chunks == batch->n_seqs) return KF_OK; /* nothing is split */
  double *room = kfi_buffer_reserve(scratch, (size_t)n * (2 * sizeof *room + sizeof(int32_t)));
  if (!room) return KF_ENOMEM;
  double *most = room + n; /* by the first rank of a connected set */
  int32_t *parent = (int32_t *)(most + n);
  for (int32_t r = 0; r < n; r++) room[r] = most[r] = 0, parent[r] = r;

  for (int64_t c = 0, first = 0; c < n_chunks; c++) {
    const kf_chunk *k = &chunk[c];
    if (k->part != KF_PART_SPLIT) continue;
    if (chunk[first].seq != k->seq) first = c;
    join(parent, (int32_t)chunk[first].destination, (int32_t)k->destination);
    room[k->destination] -=
      kfi_factor(batch, k->seq) * w->linear_s * (double)k->length * w->slow[k->destination];
  }
  for (int32_t r = 0; r < n; r++) {
    int32_t root = find(parent, r);
    if (-room[r] > most[root]) most[root] = -room[r];
  }
  for (int32_t r = 0; r < n; r++) room[r] += most[find(parent, r)];

  for (int64_t c = 0; c < n_chunks; c++) {
    kf_chunk *k = &chunk[c];
    double *left = &room[k->destination];
    if (k->part == KF_PART_SPLIT || !(*left > 0)) continue;
    double work = kfi_work(w, batch, k->seq) * w->slow[k->destination];
    if (*left < work / 2) continue;
    k->part = KF_PART_EARLY;
    *left -= work;
  }
  return KF_OK;
}
