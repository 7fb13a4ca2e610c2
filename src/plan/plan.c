/* SPDX-License-Identifier: Apache-2.0 */
/*
** From "who computes what" to the flat tables that transport and GPU code read: chunks, where
** their rows stand at home and at the holder, attention segments, counts per pair of ranks,
** predicted seconds and the figures. Linear in chunks, and for split sequences in pairs of ranks.
**
** Typical sizes: 32 ranks, 89 sequences, 110 chunks; at the other end 16384 ranks and a million
** sequences, where the time goes into writing the tables once (about 130 bytes a chunk).
*/
#include <string.h>

#include "planning.h"

/* The arrays of a plan that are written here, see kf_plan. */
typedef struct tables {
  kf_chunk *chunk;
  int64_t *seq_off, *send_off, *home_row, *home_rows;
  int64_t *hold_off, *part_off, *hold, *hold_row, *hold_rows;
  int64_t *segment_off;
  kf_segment *segment;
  double *compute_s, *comm_s, *before_s;
  int64_t *load_tokens;
} tables;

static tables take_tables(kfi_layout *lay, int64_t n_ranks, int64_t n_seqs, int64_t n_chunks) {
  return (tables){.chunk = KFI_TAKE(lay, kf_chunk, n_chunks),
                  .seq_off = KFI_TAKE(lay, int64_t, n_seqs + 1),
                  .send_off = KFI_TAKE(lay, int64_t, n_ranks + 1),
                  .home_row = KFI_TAKE(lay, int64_t, n_chunks),
                  .home_rows = KFI_TAKE(lay, int64_t, n_ranks),
                  .hold_off = KFI_TAKE(lay, int64_t, n_ranks + 1),
                  .part_off = KFI_TAKE(lay, int64_t, KF_N_PARTS * n_ranks + 1),
                  .hold = KFI_TAKE(lay, int64_t, n_chunks),
                  .hold_row = KFI_TAKE(lay, int64_t, n_chunks),
                  .hold_rows = KFI_TAKE(lay, int64_t, n_ranks),
                  .segment_off = KFI_TAKE(lay, int64_t, n_ranks + 1),
                  .segment = KFI_TAKE(lay, kf_segment, n_chunks),
                  .compute_s = KFI_TAKE(lay, double, n_ranks),
                  .comm_s = KFI_TAKE(lay, double, n_ranks),
                  .before_s = KFI_TAKE(lay, double, n_ranks),
                  .load_tokens = KFI_TAKE(lay, int64_t, n_ranks)};
}

/* -------------------------------------------------------------------- chunks */

uint64_t kfi_plan_hash(const kf_chunk *chunk, int64_t n) {
  uint64_t h = KF_HASH_START;
  for (int64_t i = 0; i < n; i++) {
    const kf_chunk *k = &chunk[i];
    const int64_t row[7] = {k->seq,    k->source,     k->destination, k->offset,
                            k->length, k->first_head, k->heads};
    h = kfi_hash(h, row, 7);
  }
  return h;
}

/* Write the chunks of every sequence, in order, and where their rows stand at home. All that is
** whole is late at first. */
static void write_chunks(const tables *to, const kf_batch *batch, const kfi_solution *sol,
                         int32_t heads) {
  kf_chunk *chunk = to->chunk;
  int64_t c = 0, *home_row = to->home_row;
  for (int32_t r = 0; r < batch->n_ranks; r++) {
    int64_t row = 0;
    to->send_off[r] = c;
    for (int64_t i = batch->rank_off[r]; i < batch->rank_off[r + 1]; i++) {
      int64_t len = batch->len[i];
      int32_t where = sol->whole[i];
      to->seq_off[i] = c;
      if (where >= 0) {
        chunk[c] = (kf_chunk){i, r, where, 0, len, 0, heads, KF_PART_LATE};
        home_row[c++] = row;
      } else {
        int64_t offset = 0, head = 0, end = sol->split_off[~where + 1];
        int64_t part = end - sol->split_off[~where] > 1 ? KF_PART_SPLIT : KF_PART_LATE;
        for (int64_t k = sol->split_off[~where]; k < end; k++) {
          const kfi_share *s = &sol->share[k];
          chunk[c] = (kf_chunk){i, r, s->rank, offset, s->tokens, head, s->heads, part};
          home_row[c++] = row + offset;
          offset += s->tokens;
          head += s->heads;
        }
      }
      row += len;
    }
    to->home_rows[r] = row;
  }
  to->seq_off[batch->n_seqs] = c;
  to->send_off[batch->n_ranks] = c;
}

/* The chunks by holder and part. `scratch` (2, n_ranks, KF_N_PARTS). */
static void write_holders(const tables *to, const kf_plan *p, int64_t *scratch) {
  int64_t n_lists = (int64_t)p->n_ranks * KF_N_PARTS, *next = scratch, *row = scratch + n_lists;
  memset(to->part_off, 0, (size_t)(n_lists + 1) * sizeof *to->part_off);
  memset(row, 0, (size_t)n_lists * sizeof *row);
  for (int64_t c = 0; c < p->n_chunks; c++) {
    const kf_chunk *k = &p->chunk[c];
    int64_t list = k->destination * KF_N_PARTS + k->part;
    to->part_off[list + 1]++;
    row[list] += k->length;
  }
  for (int64_t list = 0, rows = 0; list < n_lists; list++) {
    int64_t mine = row[list], r = list / KF_N_PARTS;
    if (list % KF_N_PARTS == 0) to->hold_off[r] = to->part_off[list], rows = 0;
    next[list] = to->part_off[list];
    to->part_off[list + 1] += to->part_off[list];
    row[list] = rows;
    to->hold_rows[r] = rows += mine;
  }
  to->hold_off[p->n_ranks] = p->n_chunks;
  for (int64_t c = 0; c < p->n_chunks; c++) {
    const kf_chunk *k = &p->chunk[c];
    int64_t list = k->destination * KF_N_PARTS + k->part;
    to->hold[next[list]++] = c;
    to->hold_row[c] = row[list];
    row[list] += k->length;
  }
}

static void write_segments(const tables *to, const kf_plan *p, const kf_batch *batch) {
  int64_t n = 0;
  for (int32_t r = 0; r < p->n_ranks; r++) {
    int64_t offset = 0;
    to->segment_off[r] = n;
    for (int64_t k = p->hold_off[r]; k < p->hold_off[r + 1]; k++) {
      const kf_chunk *c = &p->chunk[p->hold[k]];
      if (c->heads == 0) continue;
      int64_t rows = batch->len[c->seq];
      to->segment[n++] =
        (kf_segment){c->seq, rows, offset, (int32_t)c->first_head, (int32_t)c->heads};
      offset += rows * c->heads;
    }
  }
  to->segment_off[p->n_ranks] = n;
}

/* --------------------------------------------------------------------- pairs */

/*
** One rank's counts per peer, kept dense and read out sparse. Which peers were touched is a
** bitmap with a bitmap of its words above it, so that reading out in rising order costs
** n_ranks/4096 looks plus the peers, and no sort.
*/
typedef struct tally {
  int64_t *send, *recv;    /* (n_ranks) all 0 between ranks */
  uint64_t *touched, *top; /* bit q; bit q/64 */
  int32_t n_top;
} tally;

static inline void tally_add(tally *t, int64_t peer, int64_t send, int64_t recv) {
  t->send[peer] += send;
  t->recv[peer] += recv;
  t->touched[peer >> 6] |= 1ull << (peer & 63);
  t->top[peer >> 12] |= 1ull << ((peer >> 6) & 63);
}

/* Move what was tallied to `out` (NULL: only count and clear), peers rising. */
static int64_t tally_take(tally *t, kf_pair *out) {
  int64_t n = 0;
  for (int32_t i = 0; i < t->n_top; i++) {
    for (; t->top[i]; t->top[i] &= t->top[i] - 1) {
      int64_t word = (int64_t)i * 64 + __builtin_ctzll(t->top[i]);
      for (; t->touched[word]; t->touched[word] &= t->touched[word] - 1) {
        int64_t q = word * 64 + __builtin_ctzll(t->touched[word]);
        if (out) out[n] = (kf_pair){q, t->send[q], t->recv[q]};
        t->send[q] = t->recv[q] = 0;
        n++;
      }
    }
  }
  return n;
}

/* Rows that leave rank r for their holder, and rows it holds for others. */
static void tally_route(tally *t, const kf_plan *p, int32_t r) {
  for (int64_t c = p->send_off[r]; c < p->send_off[r + 1]; c++) {
    const kf_chunk *k = &p->chunk[c];
    if (k->destination != r && k->length) tally_add(t, k->destination, k->length, 0);
  }
  for (int64_t h = p->hold_off[r]; h < p->hold_off[r + 1]; h++) {
    const kf_chunk *k = &p->chunk[p->hold[h]];
    if (k->source != r && k->length) tally_add(t, k->source, 0, k->length);
  }
}

/* (row, head) pairs between rank r and the other ranks of its split sequences. */
static void tally_ulysses(tally *t, const kf_plan *p, int32_t r) {
  for (int64_t h = p->hold_off[r]; h < p->hold_off[r + 1]; h++) {
    const kf_chunk *mine = &p->chunk[p->hold[h]];
    int64_t first = p->seq_off[mine->seq], end = p->seq_off[mine->seq + 1];
    if (end - first == 1) continue;
    for (int64_t c = first; c < end; c++) {
      const kf_chunk *k = &p->chunk[c];
      int64_t send = mine->length * k->heads, recv = k->length * mine->heads;
      if (k->destination != r && (send || recv)) tally_add(t, k->destination, send, recv);
    }
  }
}

typedef void tally_rank(tally *, const kf_plan *, int32_t);

static int64_t count_pairs(tally *t, const kf_plan *p, tally_rank *add) {
  int64_t n = 0;
  for (int32_t r = 0; r < p->n_ranks; r++) {
    add(t, p, r);
    n += tally_take(t, NULL);
  }
  return n;
}

static void write_pairs(tally *t, const kf_plan *p, tally_rank *add, int64_t *off, kf_pair *out) {
  off[0] = 0;
  for (int32_t r = 0; r < p->n_ranks; r++) {
    add(t, p, r);
    off[r + 1] = off[r] + tally_take(t, out + off[r]);
  }
}

/*
** The pairs' arrays are first laid out with room for a guess (every chunk that moves, both
** ends); only when there may be more, which takes large sets, are they counted beforehand.
*/
static kf_status build_pairs(kfi_plan_store *store) {
  kf_plan *p = &store->plan;
  int64_t n_route = 0, n_ulysses = 0, n = p->n_ranks;
  kfi_layout lay = {0};
  tally t = {.n_top = (int32_t)((n + 4095) / 4096)};

  for (int pass = 0; pass < 2; pass++) {
    t.send = KFI_TAKE(&lay, int64_t, n);
    t.recv = KFI_TAKE(&lay, int64_t, n);
    t.touched = KFI_TAKE(&lay, uint64_t, (int64_t)t.n_top * 64);
    t.top = KFI_TAKE(&lay, uint64_t, t.n_top);
    if (pass) break;
    size_t n_bytes = lay.n_bytes;
    if (!kfi_layout_reserve(&lay, &store->scratch)) return KF_ENOMEM;
    memset(lay.base, 0, n_bytes);
  }
  for (int64_t c = 0; c < p->n_chunks; c++)
    n_route += p->chunk[c].destination != p->chunk[c].source;
  n_route *= 2;
  for (int64_t i = 0; i < p->n_seqs && n_ulysses <= 16 * n; i++) {
    int64_t k = p->seq_off[i + 1] - p->seq_off[i];
    n_ulysses += k * (k - 1);
  }
  if (n_ulysses > 16 * n) n_ulysses = count_pairs(&t, p, tally_ulysses);

  kfi_layout out = {0};
  int64_t *route_off = NULL, *ulysses_off = NULL;
  kf_pair *route = NULL, *ulysses = NULL;
  for (int pass = 0; pass < 2; pass++) {
    route_off = KFI_TAKE(&out, int64_t, n + 1);
    ulysses_off = KFI_TAKE(&out, int64_t, n + 1);
    route = KFI_TAKE(&out, kf_pair, n_route);
    ulysses = KFI_TAKE(&out, kf_pair, n_ulysses);
    if (!pass && !kfi_layout_reserve(&out, &store->pairs)) return KF_ENOMEM;
  }
  write_pairs(&t, p, tally_route, route_off, route);
  write_pairs(&t, p, tally_ulysses, ulysses_off, ulysses);
  p->route_off = route_off;
  p->route = route;
  p->ulysses_off = ulysses_off;
  p->ulysses = ulysses;
  return KF_OK;
}

/* --------------------------------------------------------------------- price */

/* Predicted seconds and token loads per rank: the cost of the header, term by term. By chunk, so
** that the order of a rank's sum does not depend on parts. */
static void price_ranks(const tables *to, const kf_plan *p, const kfi_world *w,
                        const kf_batch *batch) {
  double *compute_s = to->compute_s;
  int64_t *load = to->load_tokens;
  for (int32_t r = 0; r < p->n_ranks; r++) compute_s[r] = 0, load[r] = 0;
  for (int64_t i = 0; i < p->n_chunks; i++) {
    const kf_chunk *c = &p->chunk[i];
    int64_t len = batch->len[c->seq];
    double l = (double)len, f = kfi_factor(batch, c->seq);
    kfi_share s = {(int32_t)c->destination, (int32_t)c->heads, c->length};
    compute_s[s.rank] +=
      f * (w->linear_s * (double)c->length +
           w->quadratic_s * l * l * ((double)c->heads / w->heads) + w->constant_s);
    load[s.rank] += kfi_share_load(&s, len, w->heads);
  }
  for (int32_t r = 0; r < p->n_ranks; r++) {
    double sum = 0;
    compute_s[r] *= w->slow[r];
    for (int64_t i = batch->rank_off[r]; i < batch->rank_off[r + 1]; i++)
      sum += kfi_work(w, batch, i);
    to->before_s[r] = sum * w->slow[r];

    double comm = w->route_latency_s * (double)(p->route_off[r + 1] - p->route_off[r]) +
                  w->ulysses_latency_s * (double)(p->ulysses_off[r + 1] - p->ulysses_off[r]);
    for (int64_t k = p->route_off[r]; k < p->route_off[r + 1]; k++) {
      const kf_pair *q = &p->route[k];
      comm += kfi_route_s(w, r, (int32_t)q->peer) * (double)(q->send + q->recv);
    }
    for (int64_t k = p->ulysses_off[r]; k < p->ulysses_off[r + 1]; k++) {
      const kf_pair *q = &p->ulysses[k];
      bool near = kfi_node(w, r) == kfi_node(w, (int32_t)q->peer);
      comm += (near ? w->ulysses_intra_s : w->ulysses_inter_s) * (double)(q->send + q->recv);
    }
    to->comm_s[r] = comm;
  }
}

static void write_figures(kf_plan *p, const kfi_world *w) {
  kf_figures *f = &p->figures;
  double all = 0, max_compute = 0, max_before = 0;
  double a2a = 0;
  int64_t moved = 0;
  *f = (kf_figures){0};
  for (int32_t r = 0; r < p->n_ranks; r++) {
    double step = p->compute_s[r] + p->comm_s[r];
    all += p->before_s[r] * w->speed[r];
    f->tokens += p->home_rows[r];
    if (p->load_tokens[r] > f->max_tokens) f->max_tokens = p->load_tokens[r];
    if (p->compute_s[r] > max_compute) max_compute = p->compute_s[r];
    if (p->before_s[r] > max_before) max_before = p->before_s[r];
    if (r == 0 || step > f->step_s) {
      f->step_s = step;
      f->compute_s = p->compute_s[r];
      f->comm_s = p->comm_s[r];
    }
  }
  for (int64_t i = 0; i < p->n_seqs; i++) {
    int64_t first = p->seq_off[i], end = p->seq_off[i + 1], inside = 0, len = 0;
    for (int64_t c = first; c < end; c++) {
      const kf_chunk *k = &p->chunk[c];
      if (k->destination != k->source) moved += k->length;
      inside += k->length * k->heads;
      len += k->length;
    }
    if (end - first == 1) continue;
    f->split_seqs++;
    if (!w->auto_bags) /* its ranks rise */
      p->joined_seqs +=
        w->bag_of[p->chunk[first].destination] != w->bag_of[p->chunk[end - 1].destination];
    a2a += (double)len - (double)inside / w->heads;
  }
  f->ideal_s = all / w->total_speed;
  f->before_step_s = max_before;
  f->before_max_over_mean = f->ideal_s > 0 ? max_before / f->ideal_s : 1;
  f->max_over_mean = f->ideal_s > 0 ? max_compute / f->ideal_s : 1;
  f->speedup = f->step_s > 0 ? max_before / f->step_s : 1;
  f->a2a_fraction = f->tokens ? a2a / (double)f->tokens : 0;
  f->moved_fraction = f->tokens ? (double)moved / (double)f->tokens : 0;
}

/* ---------------------------------------------------------------------- all */

kf_status kfi_plan_build(kfi_plan_store *store, const kfi_world *world, const kf_batch *batch,
                         const kfi_solution *sol) {
  kf_plan *p = &store->plan;
  int64_t n = batch->n_seqs, n_ranks = batch->n_ranks;
  int64_t n_chunks = n - sol->n_splits + (sol->n_splits ? sol->split_off[sol->n_splits] : 0);
  kf_status status;

  *p = (kf_plan){.version = KF_PLAN_VERSION,
                 .n_ranks = batch->n_ranks,
                 .heads = world->heads,
                 .ranks_per_node = world->ranks_per_node,
                 .auto_bags = world->auto_bags,
                 .n_seqs = n,
                 .n_chunks = n_chunks};
  kfi_layout lay = {0};
  take_tables(&lay, n_ranks, n, n_chunks);
  if (!kfi_layout_reserve(&lay, &store->tables)) return KF_ENOMEM;
  tables to = take_tables(&lay, n_ranks, n, n_chunks);
  p->chunk = to.chunk, p->seq_off = to.seq_off, p->send_off = to.send_off;
  p->home_row = to.home_row, p->home_rows = to.home_rows;
  p->hold_off = to.hold_off, p->part_off = to.part_off, p->hold = to.hold;
  p->hold_row = to.hold_row, p->hold_rows = to.hold_rows;
  p->segment_off = to.segment_off, p->segment = to.segment;
  p->compute_s = to.compute_s, p->comm_s = to.comm_s, p->before_s = to.before_s;
  p->load_tokens = to.load_tokens;

  write_chunks(&to, batch, sol, world->heads);
  if ((status = kfi_parts_choose(world, batch, to.seq_off, to.chunk, &store->scratch)))
    return status;
  size_t n_scratch = 2 * KF_N_PARTS * (size_t)n_ranks * sizeof(int64_t);
  int64_t *scratch = kfi_buffer_reserve(&store->scratch, n_scratch);
  if (!scratch) return KF_ENOMEM;
  write_holders(&to, p, scratch);
  write_segments(&to, p, batch);
  if ((status = build_pairs(store))) return status;
  price_ranks(&to, p, world, batch);
  write_figures(p, world);
  p->hash = kfi_plan_hash(p->chunk, n_chunks);
  return KF_OK;
}

void kfi_plan_free(kfi_plan_store *store) {
  kfi_buffer_free(&store->tables);
  kfi_buffer_free(&store->pairs);
  kfi_buffer_free(&store->scratch);
}
