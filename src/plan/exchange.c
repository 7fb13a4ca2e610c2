/* SPDX-License-Identifier: Apache-2.0 */
/*
** From a plan to what one rank sends, receives and keeps: the only place that decides it.
**
** A walk over the rank's chunks adds runs to lists, one for each side and peer, and one for what
** stays. It is made twice: to count, and to fill. A pair of ranks lists its runs in the same order
** on both sides, that of the holder's `hold`: by part, then by number. So the k-th run to a peer is
** received as the peer's k-th run from here.
**
**     route     home: rows home_row[c] ..                  held: rows hold_row[c] ..
**     ulysses   holder a of t_a rows: t_a pieces of        owner of heads f .. f+h-1, segment (l, h):
**               h heads from f, stride H             -->   t_a pieces of h, one after the other
**
** Runs that follow each other on both sides are one. Both ranks must see that alike, so it is done
** where a rank knows both ends: in route, and in what stays. (Runs of split sequences hardly ever
** follow each other, and a row of a sequence is too small to matter.)
**
** Linear in the rank's chunks and, for split sequences, in their ranks; a binary search for a peer.
** Peers are those of the plan's pairs, so nothing here is as long as there are ranks.
*/
#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>

#include "../memory.h"
#include "../numbers.h"
#include "../status.h"

/* A list of runs while it grows. */
typedef struct list {
  int64_t at, n_units;           /* of the next run; all so far */
  int64_t width, end, other_end; /* of the last run; where the next would follow, here and there */
} list;

typedef struct builder {
  const kf_plan *plan;
  int32_t rank, heads;
  kf_exchange_kind kind;
  int64_t n_pairs;
  const kf_pair *pair; /* (n_pairs) the plan's */
  list *list[2];       /* (n_pairs + 1) the last is what stays */
  kf_run *run[2];      /* NULL while runs are only counted */
  int64_t n_units[2], n_segments;
  kf_segment *segment;
} builder;

/* Where the other rank has it, if that is not known: no run ends there. */
static const kf_run unknown = {-1, 0, 0, 0};

static void add(builder *b, int side, int64_t i, kf_run run, kf_run other) {
  list *l = &b->list[side][i];
  bool follows = run.first == l->end && other.first == l->other_end && run.width == l->width;
  if (!follows) l->at++;
  if (b->run[side]) {
    kf_run *last = &b->run[side][l->at - 1];
    if (follows)
      last->n += run.n;
    else
      *last = run;
  }
  l->n_units += run.n * run.width;
  l->width = run.width;
  l->end = run.first + run.n * run.stride;
  l->other_end = other.n ? other.first + other.n * other.stride : -2;
}

static void add_stay(builder *b, kf_run from, kf_run to) {
  add(b, 0, b->n_pairs, from, to);
  add(b, 1, b->n_pairs, to, from);
}

/* The list of a peer that has something to exchange, which is therefore one of the plan's pairs. */
static int64_t find(const builder *b, int64_t peer) {
  int64_t low = 0, high = b->n_pairs - 1;
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if (b->pair[middle].peer < peer)
      low = middle + 1;
    else
      high = middle;
  }
  assert(low < b->n_pairs && b->pair[low].peer == peer);
  return low;
}

/* -------------------------------------------------------------- route and sequences */

static kf_run neighbours(int64_t first, int64_t n) { return (kf_run){first, n, 1, 1}; }

/* A sequence of no tokens has a chunk at home, too: so the chunks say which are a rank's own. */
static int64_t seq_of(const builder *b, int64_t i) {
  return b->plan->chunk[b->plan->send_off[b->rank] + i].seq;
}

static int64_t count_seqs(const builder *b) {
  int64_t n = b->plan->send_off[b->rank + 1] - b->plan->send_off[b->rank];
  return n == 0 ? 0 : seq_of(b, n - 1) - seq_of(b, 0) + 1;
}

/* A chunk's place at its home, and its `held`-th holder's place. */
static kf_run at_home(const builder *b, int64_t c) {
  const kf_chunk *k = &b->plan->chunk[c];
  if (b->kind == KF_EXCHANGE_ROUTE) return neighbours(b->plan->home_row[c], k->length);
  return k->source == b->rank ? neighbours(k->seq - seq_of(b, 0), 1) : unknown;
}

static kf_run at_holder(const builder *b, int64_t c, int64_t held) {
  if (b->kind == KF_EXCHANGE_ROUTE)
    return neighbours(b->plan->hold_row[c], b->plan->chunk[c].length);
  return held < 0 ? unknown : neighbours(held, 1);
}

static void walk_rows(builder *b) {
  const kf_plan *p = b->plan;
  int64_t held = 0;
  for (int64_t part = 0; part < KF_N_PARTS; part++)
    for (int64_t c = p->send_off[b->rank]; c < p->send_off[b->rank + 1]; c++) {
      const kf_chunk *k = &p->chunk[c];
      if (k->part == part && k->length > 0 && k->destination != b->rank)
        add(b, 0, find(b, k->destination), at_home(b, c), at_holder(b, c, -1));
    }
  for (int64_t h = p->hold_off[b->rank]; h < p->hold_off[b->rank + 1]; h++) {
    int64_t c = p->hold[h];
    if (p->chunk[c].length == 0) continue;
    kf_run home = at_home(b, c), mine = at_holder(b, c, held++);
    if (p->chunk[c].source == b->rank)
      add_stay(b, home, mine);
    else
      add(b, 1, find(b, p->chunk[c].source), mine, home);
  }
  b->n_units[0] = b->kind == KF_EXCHANGE_ROUTE ? p->home_rows[b->rank] : count_seqs(b);
  b->n_units[1] = b->kind == KF_EXCHANGE_ROUTE ? p->hold_rows[b->rank] : held;
}

/* --------------------------------------------------------------------------- ulysses */

/* A plan may have been made before the model's number of heads was known. Then its heads are
** shares, and a boundary between two owners goes to the nearest of the real ones. */
static int64_t real_head(const builder *b, int64_t head) {
  return (head * b->heads + b->plan->heads / 2) / b->plan->heads;
}

static int64_t heads_of(const builder *b, const kf_chunk *k, int64_t *first) {
  *first = real_head(b, k->first_head);
  return real_head(b, k->first_head + k->heads) - *first;
}

/* `mine` has its rows from `row` on, and its segment of `heads` heads from `offset` on. */
static void add_peers(builder *b, const kf_chunk *mine, int64_t row, int64_t offset,
                      int64_t heads) {
  const kf_plan *p = b->plan;
  for (int64_t c = p->seq_off[mine->seq]; c < p->seq_off[mine->seq + 1]; c++) {
    const kf_chunk *k = &p->chunk[c];
    int64_t first, n = heads_of(b, k, &first);
    kf_run send = {row * b->heads + first, mine->length, n, b->heads};
    kf_run recv = {offset + k->offset * heads, k->length, heads, heads};
    if (k == mine && send.n * n > 0) add_stay(b, send, recv);
    if (k == mine) continue;
    if (send.n * send.width > 0) add(b, 0, find(b, k->destination), send, unknown);
    if (recv.n * recv.width > 0) add(b, 1, find(b, k->destination), recv, unknown);
  }
}

static void walk_ulysses(builder *b) {
  const kf_plan *p = b->plan;
  int64_t row = 0, offset = 0;
  b->n_segments = 0;
  for (int64_t h = p->hold_off[b->rank]; h < p->hold_off[b->rank + 1]; h++) {
    const kf_chunk *mine = &p->chunk[p->hold[h]], *last = &p->chunk[p->seq_off[mine->seq + 1] - 1];
    if (b->kind == KF_EXCHANGE_ULYSSES_SPLIT && mine->part != KF_PART_SPLIT) break;
    int64_t first, n = heads_of(b, mine, &first), rows = last->offset + last->length;
    add_peers(b, mine, row, offset, n);
    if (b->segment && rows * n > 0)
      b->segment[b->n_segments++] =
        (kf_segment){mine->seq, rows, offset, (int32_t)first, (int32_t)n};
    row += mine->length;
    offset += rows * n;
  }
  b->n_units[0] = row * b->heads;
  b->n_units[1] = offset;
}

/* ------------------------------------------------------------------------------- all */

static bool is_ulysses(kf_exchange_kind kind) { return kind >= KF_EXCHANGE_ULYSSES; }

static void walk(builder *b) {
  for (int side = 0; side < 2; side++)
    for (int64_t i = 0, at = 0; i <= b->n_pairs; i++) { /* counted runs become places */
      int64_t n = b->list[side][i].at;
      b->list[side][i] = (list){.at = at, .width = -1};
      at += n;
    }
  if (is_ulysses(b->kind))
    walk_ulysses(b);
  else
    walk_rows(b);
}

/* The chunks that have rows on the holder's side. */
static void list_held(const builder *b, kf_exchange *x, kf_chunk *held) {
  const int64_t *part_off = &b->plan->part_off[(int64_t)b->rank * KF_N_PARTS];
  int64_t n = 0;
  for (int p = 0; p < KF_N_PARTS; p++) {
    bool there = b->kind != KF_EXCHANGE_ULYSSES_SPLIT || p == KF_PART_SPLIT;
    x->part_off[p] = n;
    for (int64_t h = part_off[p]; there && h < part_off[p + 1]; h++)
      if (b->plan->chunk[b->plan->hold[h]].length > 0) held[n++] = b->plan->chunk[b->plan->hold[h]];
  }
  x->part_off[KF_N_PARTS] = n;
  x->held = held;
}

/* Peers that have anything, and where each one's runs begin. Lists end where the next begins. */
static void list_peers(const builder *b, kf_exchange *x, kf_pair *peer, int64_t *run_off[2]) {
  for (int side = 0; side < 2; side++)
    x->run[side] = b->run[side], x->run_off[side] = run_off[side];
  run_off[0][0] = run_off[1][0] = 0;
  for (int64_t i = 0; i <= b->n_pairs; i++) {
    const list *send = &b->list[0][i], *recv = &b->list[1][i];
    if (i < b->n_pairs) {
      if (send->n_units + recv->n_units == 0) continue;
      peer[x->n_peers++] = (kf_pair){b->pair[i].peer, send->n_units, recv->n_units};
    }
    int64_t next = i < b->n_pairs ? x->n_peers : x->n_peers + 1;
    run_off[0][next] = send->at, run_off[1][next] = recv->at;
  }
  x->peer = peer;
}

static kf_status check(const kf_plan *plan, int32_t rank, kf_exchange_kind kind, int32_t heads) {
  if (!plan) return kfi_fail(KF_EINVAL, "exchange: plan is NULL");
  if (plan->version != KF_PLAN_VERSION)
    return kfi_fail(KF_EINVAL, "exchange: plan of version %d, expected %d", plan->version,
                    KF_PLAN_VERSION);
  if (rank < 0 || rank >= plan->n_ranks)
    return kfi_fail(KF_EINVAL, "exchange: rank %d, expected 0 to %d, the ranks of the plan", rank,
                    plan->n_ranks - 1);
  if ((int)kind < KF_EXCHANGE_ROUTE || kind > KF_EXCHANGE_ULYSSES_SPLIT)
    return kfi_fail(KF_EINVAL, "exchange: kind %d, expected %d to %d", (int)kind, KF_EXCHANGE_ROUTE,
                    KF_EXCHANGE_ULYSSES_SPLIT);
  if (heads < 0 || heads > KF_MAX_HEADS)
    return kfi_fail(KF_EINVAL, "exchange: %d heads, expected 1 to %d, or 0 for the plan's", heads,
                    KF_MAX_HEADS);
  return KF_OK;
}

/* A table that brings its memory. */
typedef struct owner {
  kf_exchange exchange; /* first: it is what the caller has */
  kfi_buffer block, scratch;
} owner;

static kf_status make(const kf_plan *plan, int32_t rank, kf_exchange_kind kind, int32_t heads,
                      owner *to) {
  kf_status status = check(plan, rank, kind, heads);
  if (status) return status;
  const int64_t *off = is_ulysses(kind) ? plan->ulysses_off : plan->route_off;
  builder b = {.plan = plan, .rank = rank, .kind = kind, .n_pairs = off[rank + 1] - off[rank]};
  b.heads = !is_ulysses(kind) ? 1 : heads ? heads : plan->heads;
  b.pair = (is_ulysses(kind) ? plan->ulysses : plan->route) + off[rank];
  size_t n_lists = (size_t)b.n_pairs + 1;
  b.list[0] = kfi_buffer_reserve(&to->scratch, 2 * n_lists * sizeof(list));
  if (!b.list[0]) return KF_ENOMEM;
  b.list[1] = b.list[0] + n_lists;
  for (size_t i = 0; i < 2 * n_lists; i++) b.list[0][i].at = 0;
  walk(&b);
  int64_t n_mine = plan->hold_off[rank + 1] - plan->hold_off[rank], n_runs[2] = {0};
  for (int side = 0; side < 2; side++)
    for (size_t i = 0; i < n_lists; i++) n_runs[side] += b.list[side][i].at;

  kfi_layout lay = {0};
  kf_pair *peer = NULL;
  kf_chunk *held = NULL;
  int64_t *run_off[2];
  for (int pass = 0; pass < 2; pass++) {
    peer = KFI_TAKE(&lay, kf_pair, b.n_pairs);
    held = KFI_TAKE(&lay, kf_chunk, n_mine);
    b.segment = KFI_TAKE(&lay, kf_segment, is_ulysses(kind) ? n_mine : 0);
    for (int side = 0; side < 2; side++) {
      run_off[side] = KFI_TAKE(&lay, int64_t, b.n_pairs + 2);
      b.run[side] = KFI_TAKE(&lay, kf_run, n_runs[side]);
    }
    if (!pass && !kfi_layout_reserve(&lay, &to->block)) return KF_ENOMEM;
  }
  walk(&b);
  to->exchange = (kf_exchange){.kind = kind,
                               .n_ranks = plan->n_ranks,
                               .rank = rank,
                               .heads = b.heads,
                               .busy = off[plan->n_ranks] > 0,
                               .hash = kfi_hash(plan->hash, (int64_t[]){kind, b.heads}, 2),
                               .n_units = {b.n_units[0], b.n_units[1]},
                               .n_segments = b.n_segments,
                               .segment = b.segment};
  list_peers(&b, &to->exchange, peer, run_off);
  list_held(&b, &to->exchange, held);
  return KF_OK;
}

kf_status kf_exchange_renew(const kf_plan *plan, int32_t rank, kf_exchange_kind kind, int32_t heads,
                            kf_exchange **exchange) {
  if (!exchange) return kfi_fail(KF_EINVAL, "kf_exchange_renew: exchange is NULL");
  owner *table = (owner *)*exchange;
  if (!table && !(table = calloc(1, sizeof *table)))
    return kfi_fail_memory(sizeof *table, "an exchange");
  kf_status status = make(plan, rank, kind, heads, table);
  if (!status)
    *exchange = &table->exchange;
  else if (!*exchange)
    kf_exchange_free(&table->exchange);
  return status;
}

kf_status kf_exchange_create(const kf_plan *plan, int32_t rank, kf_exchange_kind kind,
                             int32_t heads, kf_exchange **out) {
  if (!out) return kfi_fail(KF_EINVAL, "kf_exchange_create: out is NULL");
  kf_exchange *made = NULL;
  kf_status status = kf_exchange_renew(plan, rank, kind, heads, &made);
  if (!status) *out = made;
  return status;
}

void kf_exchange_free(kf_exchange *exchange) {
  if (!exchange) return;
  kfi_buffer_free(&((owner *)exchange)->block);
  kfi_buffer_free(&((owner *)exchange)->scratch);
  free(exchange);
}
