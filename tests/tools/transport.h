/* SPDX-License-Identifier: Apache-2.0 */
/*
** What must hold for transport on any comm, in any world. Every rank runs this same program and
** draws the same world from the same seed; data is made from (tensor, sequence, row, byte), so that
** whoever gets a row can tell whether it is the right one.
*/
#ifndef TRANSPORT_H
#define TRANSPORT_H

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dice.h"

enum { MOST_TENSORS = 5, MOST_ROW = 300, MOST_TRANSPORT_SEQS = 200 };

/* One rank's view of one case. */
typedef struct trial {
  kf_comm *comm;
  int32_t rank;
  uint64_t seed;
  int number;
  const world *w;
  const kf_plan *plan;
  bool failed;
} trial;

#define MUST(trial, condition, ...)                                                                \
  do {                                                                                             \
    if (!(trial)->failed && !(condition)) {                                                        \
      (trial)->failed = true;                                                                      \
      printf("seed %" PRIu64 ", case %d, rank %d of %d: ", (trial)->seed, (trial)->number,         \
             (int)(trial)->rank, (int)kf_comm_size((trial)->comm));                                \
      printf(__VA_ARGS__);                                                                         \
      printf("\n");                                                                                \
      fflush(stdout);                                                                              \
    }                                                                                              \
  } while (0)

/* Byte b of row i of a sequence, in tensor t. */
static inline char content(int t, int64_t seq, int64_t row, int64_t b) {
  uint64_t z = (uint64_t)(seq * 1000003 + row * 8191 + b * 131 + t * 7919);
  return (char)((z * 0x9e3779b97f4a7c15u) >> 56);
}

/* Like worlds of property/plan, but short enough to move and to attend to. */
static inline void transport_world(dice *d, world *w, int32_t n_ranks) {
  char model[80];
  int heads = 1 + (int)dice_int(d, 13);
  w->options = (kf_planner_options){0};
  w->bags = NULL;
  w->spec[0] = 0;
  int64_t n = 0, most = dice_one_in(d, 5) ? 0 : 1 + dice_int(d, dice_one_in(d, 4) ? 40 : 6);
  for (int32_t r = 0; r < n_ranks; r++) {
    int64_t k = dice_one_in(d, 4) ? 0 : dice_int(d, most + 1);
    w->rank_off[r] = n;
    for (; k > 0 && n < MOST_TRANSPORT_SEQS; k--, n++) {
      w->len[n] = dice_one_in(d, 12) ? 0 : dice_int(d, dice_one_in(d, 6) ? 400 : 40);
      w->factor[n] = dice_real(d, 0.5, 2.5);
    }
  }
  w->rank_off[n_ranks] = n;
  w->batch =
    (kf_batch){n_ranks, n, w->rank_off, w->len, dice_one_in(d, 3) ? w->factor : NULL, NULL};
  snprintf(model, sizeof model, "d=%d,layers=3,heads=%d", 8 * heads, heads);
  if (kf_cost_preset(model, dice_one_in(d, 2) ? "free" : "ranks_per_node=3", n_ranks, 0.4,
                     &w->options.cost))
    fprintf(stderr, "%s\n", kf_last_error());
  world_caps(d, w);
  if (dice_one_in(d, 2)) world_bags(d, w, n_ranks);
  if (dice_one_in(d, 3)) {
    for (int32_t r = 0; r < n_ranks; r++) w->speed[r] = dice_real(d, 0.5, 2.2);
    w->options.speed = w->speed;
  }
  if (dice_one_in(d, 3)) w->options.affinity = KF_AFFINITY_SPREAD;
}

/* Rows of row_bytes at a stride, filled with `fill`. Free data. */
static inline kf_tensor new_tensor(int64_t n_rows, int64_t row_bytes, int64_t stride, char fill) {
  size_t n = (size_t)(n_rows * stride + 1);
  kf_tensor t = {malloc(n), n_rows, row_bytes, stride == row_bytes ? 0 : stride};
  if (!t.data) abort();
  memset(t.data, fill, n);
  return t;
}

static inline char *tensor_row(const kf_tensor *t, int64_t row) {
  return (char *)t->data + row * (t->stride_bytes ? t->stride_bytes : t->row_bytes);
}

/* The bytes between rows belong to somebody else. */
static inline void check_gaps(trial *c, const kf_tensor *t, char fill) {
  for (int64_t i = 0; t->stride_bytes && i < t->n_rows; i++)
    for (int64_t b = t->row_bytes; b < t->stride_bytes; b++)
      MUST(c, tensor_row(t, i)[b] == fill, "wrote between rows %" PRId64 " and the next", i);
}

/* Call visit(chunk, first row) for the chunks that the rank is home of, or holds. */
static inline void check_rows(trial *c, int index, const kf_tensor *t, bool at_home) {
  const kf_plan *p = c->plan;
  for (int64_t i = 0; i < p->n_chunks; i++) {
    const kf_chunk *k = &p->chunk[i];
    int64_t first = at_home ? p->home_row[i] : p->hold_row[i];
    if ((at_home ? k->source : k->destination) != c->rank) continue;
    for (int64_t row = 0; row < k->length; row++)
      for (int64_t b = 0; b < t->row_bytes; b++)
        MUST(c, tensor_row(t, first + row)[b] == content(index, k->seq, k->offset + row, b),
             "tensor %d %s: byte %" PRId64 " of row %" PRId64 " of sequence %" PRId64 " is wrong",
             index, at_home ? "at home" : "at the holder", b, k->offset + row, k->seq);
  }
}

static inline void fill_home(trial *c, int index, kf_tensor *t) {
  int64_t row = 0;
  for (int64_t s = c->w->rank_off[c->rank]; s < c->w->rank_off[c->rank + 1]; s++)
    for (int64_t i = 0; i < c->w->len[s]; i++, row++)
      for (int64_t b = 0; b < t->row_bytes; b++) tensor_row(t, row)[b] = content(index, s, i, b);
}

/* Tensors of random widths and strides go out and come back. */
static inline void check_route(trial *c, dice *d) {
  static const int64_t widths[] = {1, 2, 4, 8, 13, 64, 160, MOST_ROW};
  const kf_plan *p = c->plan;
  kf_tensor home[MOST_TENSORS], held[MOST_TENSORS], back[MOST_TENSORS];
  int n = (int)dice_int(d, MOST_TENSORS + 1);
  for (int i = 0; i < n; i++) {
    int64_t row_bytes = widths[dice_int(d, 8)], stride[3];
    for (int k = 0; k < 3; k++) {
      stride[k] = row_bytes;
      if (dice_one_in(d, 3)) stride[k] += 1 + dice_int(d, 50);
    }
    home[i] = new_tensor(p->home_rows[c->rank], row_bytes, stride[0], 0);
    held[i] = new_tensor(p->hold_rows[c->rank], row_bytes, stride[1], 91);
    back[i] = new_tensor(p->home_rows[c->rank], row_bytes, stride[2], 92);
    fill_home(c, i, &home[i]);
  }
  kf_status status = kf_route_forward(c->comm, p, n, home, held);
  MUST(c, status == KF_OK, "route: %s", kf_last_error());
  for (int i = 0; i < n; i++) {
    check_rows(c, i, &held[i], false);
    check_gaps(c, &held[i], 91);
  }
  status = kf_route_reverse(c->comm, p, n, held, back);
  MUST(c, status == KF_OK, "reverse: %s", kf_last_error());
  for (int i = 0; i < n; i++) {
    check_rows(c, i, &back[i], true);
    check_gaps(c, &back[i], 92);
    free(home[i].data);
    free(held[i].data);
    free(back[i].data);
  }
}

/* q, k, v in one buffer go to the owners of their heads and come back. */
static inline void check_ulysses(trial *c, dice *d) {
  const kf_plan *p = c->plan;
  int64_t head_bytes = 1 + dice_int(d, 20), width = head_bytes * p->heads, stride = 3 * width + 5;
  int64_t n_rows = p->hold_rows[c->rank], n_pairs = kf_ulysses_pairs(p, c->rank);
  kf_tensor all = new_tensor(n_rows, stride, stride, 55), rows[3], pairs[3], back[3];
  for (int i = 0; i < 3; i++) {
    rows[i] = (kf_tensor){(char *)all.data + i * width, n_rows, width, stride};
    pairs[i] = new_tensor(n_pairs, head_bytes, head_bytes, 77);
    back[i] = new_tensor(n_rows, width, width, 66);
    for (int64_t k = 0; k < p->n_chunks; k++)
      for (int64_t r = 0; p->chunk[k].destination == c->rank && r < p->chunk[k].length; r++)
        for (int64_t b = 0; b < width; b++)
          tensor_row(&rows[i], p->hold_row[k] + r)[b] =
            content(i, p->chunk[k].seq, p->chunk[k].offset + r, b);
  }
  kf_status status = kf_ulysses_out(c->comm, p, 3, rows, pairs);
  MUST(c, status == KF_OK, "ulysses out: %s", kf_last_error());
  for (int i = 0; i < 3; i++)
    for (int64_t s = p->segment_off[c->rank]; s < p->segment_off[c->rank + 1]; s++) {
      const kf_segment *g = &p->segment[s];
      for (int64_t r = 0; r < g->rows; r++)
        for (int64_t b = 0; b < g->heads * head_bytes; b++)
          MUST(c,
               ((char *)pairs[i].data)[(g->offset + r * g->heads) * head_bytes + b] ==
                 content(i, g->seq, r, g->first_head * head_bytes + b),
               "tensor %d, sequence %" PRId64 ", row %" PRId64 ": wrong heads", i, g->seq, r);
    }
  status = kf_ulysses_back(c->comm, p, 3, pairs, back);
  MUST(c, status == KF_OK, "ulysses back: %s", kf_last_error());
  for (int i = 0; i < 3; i++) {
    check_rows(c, i, &back[i], false);
    free(pairs[i].data);
    free(back[i].data);
  }
  free(all.data);
}

/* --------------------------------------------------------------- attention */

/* A float in -1 .. 1, of tensor t. */
static inline float number(int t, int64_t seq, int64_t row, int64_t i) {
  uint64_t z = (uint64_t)(seq * 1000003 + row * 8191 + i * 131 + t * 7919 + 1);
  z = (z ^ (z >> 29)) * 0x9e3779b97f4a7c15u;
  return (float)((double)(z >> 11) * 0x1p-52 - 1);
}

/* Tensors in attention: q, k, v, o's gradient; then what comes out: o, dq, dk, dv. */
enum { Q, K, V, DO, O, DQ, DK, DV, N_ATTENTION };

static inline void attend(trial *c, const kf_segment *segment, int64_t n_segments, int64_t n_pairs,
                          int head_dim, float *at[N_ATTENTION]) {
  kf_attention a = {.n_segments = n_segments,
                    .segment = segment,
                    .head_dim = head_dim,
                    .q = at[Q],
                    .k = at[K],
                    .v = at[V],
                    .o = at[O],
                    .d_o = at[DO],
                    .dq = at[DQ],
                    .dk = at[DK],
                    .dv = at[DV]};
  a.workspace_bytes = kf_attention_workspace(&a);
  a.lse = malloc((size_t)n_pairs * sizeof(float) + 1);
  a.workspace = aligned_alloc(64, (size_t)(a.workspace_bytes + 63) / 64 * 64);
  kf_status status = kf_attention_forward(&a);
  MUST(c, status == KF_OK, "attention: %s", kf_last_error());
  status = kf_attention_backward(&a);
  MUST(c, status == KF_OK, "attention backward: %s", kf_last_error());
  free(a.workspace);
  free(a.lse);
}

static inline float *floats(int64_t n) {
  float *f = calloc((size_t)n + 1, sizeof *f);
  if (!f) abort();
  return f;
}

/* At home, unrouted and unsplit. */
static inline void attend_at_home(trial *c, int head_dim, float *at[N_ATTENTION]) {
  const world *w = c->w;
  int heads = c->plan->heads;
  int64_t first = w->rank_off[c->rank], n = w->rank_off[c->rank + 1] - first, rows = 0;
  kf_segment *segment = calloc((size_t)n + 1, sizeof *segment);
  for (int64_t s = 0; s < n; s++) {
    segment[s] = (kf_segment){first + s, w->len[first + s], rows * heads, 0, heads};
    for (int t = Q; t <= DO; t++)
      for (int64_t r = 0; r < segment[s].rows; r++)
        for (int i = 0; i < heads * head_dim; i++)
          at[t][(rows + r) * heads * head_dim + i] = number(t, first + s, r, i);
    rows += segment[s].rows;
  }
  attend(c, segment, n, rows * heads, head_dim, at);
  free(segment);
}

/* The same through the plan: route q, k, v and do, split, attend, join, route home. The kernel
** treats every head by itself, so the results are the same bits. */
static inline void check_attention(trial *c, dice *d) {
  const kf_plan *p = c->plan;
  int head_dim = 1 + (int)dice_int(d, 20);
  int64_t width = p->heads * head_dim, row_bytes = width * 4;
  int64_t n_home = p->home_rows[c->rank], n_held = p->hold_rows[c->rank];
  int64_t n_pairs = kf_ulysses_pairs(p, c->rank);
  float *direct[N_ATTENTION], *at[N_ATTENTION];
  kf_tensor home[N_ATTENTION], held[N_ATTENTION], pairs[N_ATTENTION];
  for (int t = 0; t < N_ATTENTION; t++) {
    direct[t] = floats(n_home * width);
    at[t] = floats(n_pairs * head_dim);
    home[t] = (kf_tensor){t <= DO ? direct[t] : floats(n_home * width), n_home, row_bytes, 0};
    held[t] = (kf_tensor){floats(n_held * width), n_held, row_bytes, 0};
    pairs[t] = (kf_tensor){at[t], n_pairs, head_dim * 4, 0};
  }
  attend_at_home(c, head_dim, direct);
  kf_status status = kf_route_forward(c->comm, p, 4, home, held);
  MUST(c, status == KF_OK, "route: %s", kf_last_error());
  status = kf_ulysses_out(c->comm, p, 4, held, pairs);
  MUST(c, status == KF_OK, "ulysses out: %s", kf_last_error());
  attend(c, p->segment + p->segment_off[c->rank],
         p->segment_off[c->rank + 1] - p->segment_off[c->rank], n_pairs, head_dim, at);
  status = kf_ulysses_back(c->comm, p, 4, pairs + O, held + O);
  MUST(c, status == KF_OK, "ulysses back: %s", kf_last_error());
  status = kf_route_reverse(c->comm, p, 4, held + O, home + O);
  MUST(c, status == KF_OK, "reverse: %s", kf_last_error());
  for (int t = O; t < N_ATTENTION; t++)
    MUST(c, memcmp(home[t].data, direct[t], (size_t)(n_home * row_bytes)) == 0,
         "attention of split sequences, result %d, differs from unsplit", t - O);
  for (int t = 0; t < N_ATTENTION; t++) {
    if (t > DO) free(home[t].data);
    free(direct[t]);
    free(at[t]);
    free(held[t].data);
  }
}

/* --------------------------------------------------------------- all of it */

/* The online step gives the plan that one planner gives of the whole batch. */
static inline const kf_plan *check_step(trial *c, kf_step *step, kf_planner *planner) {
  const world *w = c->w;
  int64_t first = w->rank_off[c->rank], n = w->rank_off[c->rank + 1] - first;
  int32_t record[3] = {c->rank, 17, -c->rank};
  kf_rank_batch mine = {n, w->len + first, w->batch.factor ? w->factor + first : NULL, record,
                        NULL};
  const kf_batch *batch = NULL;
  const kf_plan *plan = NULL;
  const void *records = NULL;
  kf_status status = kf_step_gather(step, &mine, &batch, &records);
  MUST(c, status == KF_OK, "gather: %s", kf_last_error());
  if (status) return NULL;
  MUST(c, batch->n_ranks == w->batch.n_ranks && batch->n_seqs == w->batch.n_seqs,
       "gathered %" PRId64 " sequences, expected %" PRId64, batch->n_seqs, w->batch.n_seqs);
  MUST(c, memcmp(batch->len, w->len, (size_t)batch->n_seqs * 8) == 0, "other lengths");
  for (int32_t r = 0; r < batch->n_ranks; r++)
    MUST(c, ((const int32_t *)records)[3 * r + 2] == -r && batch->rank_off[r] == w->rank_off[r],
         "rank %d's record or offset is wrong", (int)r);
  status = kf_step_plan(step, planner, &plan);
  MUST(c, status == KF_OK || status == KF_EINFEASIBLE, "plan: %s", kf_last_error());
  return status ? NULL : plan;
}

/* `n_cases` random worlds; false: something did not hold, and was printed. */
static inline bool transport_check(kf_comm *comm, uint64_t seed, int n_cases) {
  trial c = {.comm = comm, .rank = kf_comm_rank(comm), .seed = seed};
  world *w = malloc(sizeof *w);
  kf_step *step = NULL;
  kf_status status = kf_step_create(comm, 3 * sizeof(int32_t), &step);
  MUST(&c, status == KF_OK, "step: %s", kf_last_error());
  for (c.number = 0; c.number < n_cases && !c.failed; c.number++) {
    dice d = {seed * 1000003 + (uint64_t)c.number};
    kf_planner *planner = NULL;
    transport_world(&d, w, kf_comm_size(comm));
    c.w = w;
    status = kf_planner_create(&w->options, &planner);
    MUST(&c, status == KF_OK, "planner: %s", kf_last_error());
    c.plan = check_step(&c, step, planner);
    if (c.plan) {
      check_route(&c, &d);
      check_ulysses(&c, &d);
      if (c.number % 4 == 0) check_attention(&c, &d); /* most of the time, where all do */
    }
    kf_planner_free(planner);
    kf_bags_free(w->bags);
    if (c.failed) kf_comm_fail(comm, "a check did not hold");
  }
  kf_step_free(step);
  free(w);
  return !c.failed;
}

#endif
