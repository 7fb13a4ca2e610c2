/* SPDX-License-Identifier: Apache-2.0 */
/*
** The order of a rank's rows. Rows arrive in the order of plan->hold; the network wants parts of split
** sequences first, then whole ones that are computed early, then late ones (train_pack says why).
**
** Early or late: in every block each rank first works on its rows of split sequences (all that is
** linear in tokens), then all meet, then each computes its heads of them (attention), then all meet
** again. The first takes rank r a_r, and the largest of them, a, is what all wait for: so rank r fills
** up to a with whole sequences, and the rest of them comes beside attention. If a plan gives all ranks
** the same work in all, and no rank has too little that is whole, both sides are then even as well.
**
** Ulysses is given a plan in which this rank holds parts of split sequences only, so that whole ones
** are not copied for nothing. It is the plan itself but for the arrays below.
*/
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"

/* Is a sequence on several ranks, be it by rows or by heads? */
static bool is_split(const kf_plan *plan, int64_t seq) {
  return plan->seq_off[seq + 1] - plan->seq_off[seq] > 1;
}

static double linear_work(const kf_cost *c, const kf_chunk *k) {
  return c->linear_s * (double)k->length;
}

/* What the longest rank takes for its rows of split sequences. */
static double longest_split(const kf_plan *plan, const kf_cost *cost) {
  double most = 0;
  for (int32_t r = 0; r < plan->n_ranks; r++) {
    double sum = 0;
    for (int64_t i = plan->hold_off[r]; i < plan->hold_off[r + 1]; i++) {
      const kf_chunk *k = &plan->chunk[plan->hold[i]];
      if (is_split(plan, k->seq)) sum += linear_work(cost, k);
    }
    most = fmax(most, sum);
  }
  return most;
}

/* ------------------------------------------------------------------------ the order */

/* Which part each chunk of this rank's belongs to. A whole sequence is early while that brings the
** rank closer to `room`. */
static void choose_parts(const kf_plan *plan, const kf_cost *cost, int32_t rank, uint8_t *part) {
  int64_t first = plan->hold_off[rank], end = plan->hold_off[rank + 1];
  double room = longest_split(plan, cost);
  for (int64_t i = first; i < end; i++) {
    const kf_chunk *k = &plan->chunk[plan->hold[i]];
    part[i - first] = is_split(plan, k->seq) ? TRAIN_SPLIT : TRAIN_LATE;
    if (part[i - first] == TRAIN_SPLIT) room -= linear_work(cost, k);
  }
  for (int64_t i = first; i < end; i++) {
    const kf_chunk *k = &plan->chunk[plan->hold[i]];
    double work = kf_cost_work(cost, k->length);
    if (part[i - first] == TRAIN_SPLIT || room < work / 2) continue;
    part[i - first] = TRAIN_EARLY;
    room -= work;
  }
}

/* The rows of each chunk, one part after the other: where they are, and where they go. */
static void lay_out(const kf_plan *plan, int32_t rank, const uint8_t *part, train_group *g) {
  int64_t first = plan->hold_off[rank], end = plan->hold_off[rank + 1], at = 0;
  g->n_runs = 0;
  for (int p = 0; p < TRAIN_N_PARTS; p++) {
    for (int64_t i = first; i < end; i++) {
      const kf_chunk *k = &plan->chunk[plan->hold[i]];
      if (part[i - first] != p || k->length == 0) continue;
      g->seq_off[g->n_runs] = at;
      g->run[g->n_runs++] = (train_run){plan->hold_row[plan->hold[i]], at, k->length};
      at += k->length;
    }
    g->n_seqs[p] = g->n_runs;
  }
  g->seq_off[g->n_runs] = at;
  for (int p = TRAIN_N_PARTS - 1; p > 0; p--) g->n_seqs[p] -= g->n_seqs[p - 1];
}

/* ------------------------------------------------------------- the plan of what is split */

static void view_plan(const kf_plan *plan, int32_t rank, train_group *g) {
  int64_t n = 0, rows = 0, pairs = 0, n_segments = 0;
  g->view = *plan;
  for (int64_t i = plan->hold_off[rank]; i < plan->hold_off[rank + 1]; i++) {
    int64_t c = plan->hold[i];
    if (!is_split(plan, plan->chunk[c].seq)) continue;
    g->hold[n++] = c;
    g->hold_row[c] = rows;
    rows += plan->chunk[c].length;
  }
  for (int64_t i = plan->segment_off[rank]; i < plan->segment_off[rank + 1]; i++) {
    kf_segment segment = plan->segment[i];
    if (!is_split(plan, segment.seq)) continue;
    segment.offset = pairs;
    pairs += segment.rows * segment.heads;
    g->segment[n_segments++] = segment;
  }
  for (int32_t r = 0; r <= plan->n_ranks; r++) { /* the others' are not asked for */
    g->hold_off[r] = r > rank ? n : 0;
    g->segment_off[r] = r > rank ? n_segments : 0;
    if (r < plan->n_ranks) g->hold_rows[r] = r == rank ? rows : 0;
  }
  g->view.hold = g->hold;
  g->view.hold_off = g->hold_off;
  g->view.hold_row = g->hold_row;
  g->view.hold_rows = g->hold_rows;
  g->view.segment = g->segment;
  g->view.segment_off = g->segment_off;
}

/* One block for all arrays. */
static kf_status reserve(const kf_plan *plan, int32_t rank, train_group *g, uint8_t **part) {
  int64_t mine = plan->hold_off[rank + 1] - plan->hold_off[rank], n_ranks = plan->n_ranks;
  int64_t n_bytes = mine * (int64_t)(sizeof *g->run + sizeof *g->segment) +
                    8 * (2 * mine + 1 + plan->n_chunks + 3 * (n_ranks + 1)) + mine;
  kf_status status = train_reserve(&g->memory, n_bytes, "the order of a step's rows");
  if (status) return status;
  g->run = g->memory.data;
  g->segment = (kf_segment *)(g->run + mine);
  g->seq_off = (int64_t *)(g->segment + mine);
  g->hold = g->seq_off + mine + 1;
  g->hold_row = g->hold + mine;
  g->hold_off = g->hold_row + plan->n_chunks;
  g->segment_off = g->hold_off + n_ranks + 1;
  g->hold_rows = g->segment_off + n_ranks + 1;
  *part = (uint8_t *)(g->hold_rows + n_ranks + 1);
  return KF_OK;
}

kf_status train_group_rows(const kf_plan *plan, const kf_cost *cost, int32_t rank, train_group *g) {
  uint8_t *part;
  kf_status status = reserve(plan, rank, g, &part);
  if (status) return status;
  choose_parts(plan, cost, rank, part);
  lay_out(plan, rank, part, g);
  view_plan(plan, rank, g);
  return KF_OK;
}

void train_group_move(const train_group *g, int64_t row_bytes, const void *from, void *to,
                      bool back) {
  for (int64_t i = 0; i < g->n_runs; i++) {
    int64_t a = back ? g->run[i].to : g->run[i].from, b = back ? g->run[i].from : g->run[i].to;
    memcpy((char *)to + b * row_bytes, (const char *)from + a * row_bytes,
           (size_t)(g->run[i].n_rows * row_bytes));
  }
}
