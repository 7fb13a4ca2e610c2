/* SPDX-License-Identifier: Apache-2.0 */
/*
** Placing by memory, for where caps or max_chunk_size bind: time comes second.
**
** A share of t tokens and h heads of a sequence of l counts max(t, ceil(l h/H)) tokens, so the
** heads of a cut follow the rooms of the ranks and the tokens follow the heads. A cut over k ranks
** wastes at most k*l/H of room, because heads are whole.
*/
#include "knapsack.h"

static int64_t room_of(const kfi_state *st, int32_t r) {
  if (!st->world->cap) return KF_MAX_LEN;
  int64_t room = st->world->cap[r] - st->mem[r];
  return room > 0 ? room : 0;
}

bool kfi_set_fits(const kfi_state *st, int64_t j, const kfi_share *set, int32_t n) {
  const kfi_world *w = st->world;
  int64_t tokens = 0, heads = 0;
  for (int32_t i = 0; i < n; i++) {
    tokens += set[i].tokens;
    heads += set[i].heads;
    if (set[i].tokens < 0 || set[i].tokens > w->max_chunk) return false;
    if (kfi_share_load(&set[i], st->item[j].len, w->heads) > room_of(st, set[i].rank)) return false;
  }
  return tokens == st->item[j].len && heads == w->heads;
}

static kf_status fits_nowhere(const kfi_state *st, int64_t j) {
  const kfi_world *w = st->world;
  const kfi_item *it = &st->item[j];
  if (!w->cap) {
    return kfi_fail(KF_EINFEASIBLE,
                    "sequence %d of %lld tokens fits nowhere: max_chunk_size %lld allows %lld "
                    "tokens on %d ranks",
                    it->seq, (long long)it->len, (long long)w->max_chunk,
                    (long long)w->max_chunk * w->n_ranks, w->n_ranks);
  }
  int64_t room = 0, batch = 0, cap = 0;
  for (int32_t r = 0; r < w->n_ranks; r++) room += room_of(st, r), cap += w->cap[r];
  for (int64_t k = 0; k < st->n_items; k++) batch += st->item[k].len;
  return kfi_fail(KF_EINFEASIBLE,
                  "sequence %d of %lld tokens fits nowhere: caps of up to %lld tokens a rank allow "
                  "%lld in all, the batch has %lld, and %lld are left for it",
                  it->seq, (long long)it->len, (long long)w->max_cap, (long long)cap,
                  (long long)batch, (long long)room);
}

/* The least loaded rank that has room for all of item j; -1: none. */
static int32_t whole_rank(const kfi_state *st, int64_t j) {
  int32_t best = -1;
  if (st->item[j].len > st->world->max_chunk) return -1;
  for (int32_t r = 0; r < st->world->n_ranks; r++) {
    if (room_of(st, r) < st->item[j].len) continue;
    if (best < 0 || st->load[r] < st->load[best]) best = r;
  }
  return best;
}

/* The rank with most room that comes after (room, rank) `last` in that order; -1: none. */
static int32_t next_room(const kfi_state *st, int32_t last) {
  int32_t best = -1;
  int64_t most = 0, before = last < 0 ? INT64_MAX : room_of(st, last);
  for (int32_t r = 0; r < st->world->n_ranks; r++) {
    int64_t room = room_of(st, r);
    bool after = room < before || (room == before && r > last);
    if (after && room > most) most = room, best = r;
  }
  return best;
}

kf_status kfi_place_by_memory(kfi_state *st, int64_t j) {
  const kfi_world *w = st->world;
  const kfi_item *it = &st->item[j];
  kfi_share *set = st->set;
  int32_t r = whole_rank(st, j), n = 0, heads = w->heads;
  int64_t tokens = it->len;
  if (r >= 0) {
    kfi_put_whole(st, j, r);
    return KF_OK;
  }
  /* as many ranks as heads and tokens need, largest room first */
  for (r = next_room(st, -1); r >= 0 && (heads > 0 || tokens > 0); r = next_room(st, r)) {
    int64_t room = room_of(st, r), most = it->len ? room * w->heads / it->len : w->heads;
    int64_t take = room < w->max_chunk ? room : w->max_chunk;
    int32_t h = most < heads ? (int32_t)most : heads;
    set[n++] = (kfi_share){r, h, take < tokens ? take : tokens};
    heads -= h;
    tokens -= set[n - 1].tokens;
  }
  if (heads > 0 || tokens > 0) return fits_nowhere(st, j);
  n = kfi_drop_empty(set, n);
  kfi_sort_set(set, n);
  if (!kfi_put_set(st, j, set, n)) return kfi_fail_memory(sizeof(kfi_slot), "a set");
  return KF_OK;
}

kf_status kfi_construct_by_memory(kfi_state *st) {
  kfi_state_reset(st);
  for (int64_t j = 0; j < st->n_items; j++) {
    kf_status status = kfi_place_by_memory(st, j);
    if (status) return status;
  }
  kfi_clean(st);
  return KF_OK;
}
