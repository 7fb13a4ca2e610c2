/* SPDX-License-Identifier: Apache-2.0 */
/*
** Placing by memory, for where caps or max_chunk_size bind: time comes second.
**
** A share of t tokens and h heads of a sequence of l counts max(t, ceil(l h/H)) tokens, so in a cut
** the tokens follow the rooms of the ranks and the heads follow the tokens. Because heads are
** whole, a cut over k ranks may need up to k*l/H of room that it does not use.
*/
#include <math.h>
#include <string.h>

#include "knapsack.h"

/* What rank r may still load; never more than a sequence can need, so that sums stay small. */
static int64_t room_of(const kfi_assignment *st, int32_t r) {
  if (!st->world->cap) return KF_MAX_LEN;
  int64_t room = st->world->cap[r] - st->mem[r];
  return room <= 0 ? 0 : room < KF_MAX_LEN ? room : KF_MAX_LEN;
}

bool kfi_set_fits(const kfi_assignment *st, int64_t j, const kfi_share *set, int32_t n) {
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

static kf_status fits_nowhere(const kfi_assignment *st, int64_t j) {
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
  for (int32_t r = 0; r < w->n_ranks; r++) {
    room += room_of(st, r);
    cap += w->cap[r] < KF_MAX_LEN ? w->cap[r] : KF_MAX_LEN;
  }
  for (int64_t k = 0; k < st->n_items; k++) batch += st->item[k].len;
  return kfi_fail(KF_EINFEASIBLE,
                  "sequence %d of %lld tokens fits nowhere: caps of up to %lld tokens a rank allow "
                  "%lld in all, the batch has %lld, and %lld are left for it%s",
                  it->seq, (long long)it->len, (long long)w->max_cap, (long long)cap,
                  (long long)batch, (long long)room,
                  room < it->len ? "" : ", in pieces too small for its heads");
}

/* The least loaded rank that has room for all of item j; -1: none. */
static int32_t whole_rank(const kfi_assignment *st, int64_t j) {
  int32_t best = -1;
  if (st->item[j].len > st->world->max_chunk) return -1;
  for (int32_t r = 0; r < st->world->n_ranks; r++) {
    if (room_of(st, r) < st->item[j].len) continue;
    if (best < 0 || st->load[r] < st->load[best]) best = r;
  }
  return best;
}

/* Whether rank a comes before b: more room, then less load, then the lower number. */
static bool before(const kfi_assignment *st, int32_t a, int32_t b) {
  int64_t room_a = room_of(st, a), room_b = room_of(st, b);
  if (room_a != room_b) return room_a > room_b;
  if (st->load[a] != st->load[b]) return st->load[a] < st->load[b];
  return a < b;
}

/* The next rank after `last` (-1: the first) in that order; -1: none has room. */
static int32_t next_room(const kfi_assignment *st, int32_t last) {
  int32_t best = -1;
  for (int32_t r = 0; r < st->world->n_ranks; r++) {
    if (room_of(st, r) == 0 || (last >= 0 && !before(st, last, r))) continue;
    if (best < 0 || before(st, r, best)) best = r;
  }
  return best;
}

/* Rows that h heads count. */
static int64_t head_rows(const kfi_assignment *st, int64_t len, int32_t h) {
  kfi_share s = {0, h, 0};
  return kfi_share_load(&s, len, st->world->heads);
}

/* Tokens to the first n of st->set in proportion to what they may take, heads after them. False:
** the heads do not fit. `all` is what they may take together. */
static bool deal_by_room(kfi_assignment *st, int64_t j, int32_t n, int64_t all) {
  const kfi_world *w = st->world;
  kfi_share *set = st->set;
  int64_t len = st->item[j].len, may = 0, tokens = 0;
  int32_t heads = 0;
  for (int32_t i = 0; i < n; i++) {
    int64_t room = room_of(st, set[i].rank);
    may += room < w->max_chunk ? room : w->max_chunk;
    double part = (double)may / (double)all; /* of everything, up to here */
    int64_t upto = i == n - 1 ? len : (int64_t)((double)len * part);
    int32_t head = i == n - 1 ? w->heads : (int32_t)(w->heads * part);
    set[i].tokens = upto - tokens;
    set[i].heads = head - heads;
    tokens = upto;
    heads = head;
  }
  int32_t left = 0;
  for (int32_t i = 0; i < n; i++) { /* heads that are too many for the room go elsewhere */
    while (set[i].heads > 0 && head_rows(st, len, set[i].heads) > room_of(st, set[i].rank)) {
      set[i].heads--;
      left++;
    }
  }
  for (int32_t i = 0; i < n && left > 0; i++) {
    while (left > 0 && head_rows(st, len, set[i].heads + 1) <= room_of(st, set[i].rank)) {
      set[i].heads++;
      left--;
    }
  }
  return left == 0;
}

kf_status kfi_place_by_memory(kfi_assignment *st, int64_t j) {
  const kfi_world *w = st->world;
  int64_t len = st->item[j].len, all = 0;
  int32_t r = whole_rank(st, j), n = 0;
  if (r >= 0) {
    kfi_put_whole(st, j, r);
    return KF_OK;
  }
  for (r = next_room(st, -1); r >= 0; r = next_room(st, r)) { /* as few ranks as do */
    int64_t room = room_of(st, r);
    all += room < w->max_chunk ? room : w->max_chunk;
    st->set[n++] = (kfi_share){r, 0, 0};
    if (all < len || !deal_by_room(st, j, n, all)) continue;
    memcpy(st->set_b, st->set, (size_t)n * sizeof *st->set);
    int32_t kept = kfi_drop_empty(st->set_b, n);
    kfi_sort_set(st->set_b, kept);
    if (!kfi_set_fits(st, j, st->set_b, kept)) continue; /* by a token that rounding moved */
    if (kfi_put_set(st, j, st->set_b, kept)) return KF_OK;
    return kfi_fail_memory(sizeof(kfi_slot), "a set");
  }
  return fits_nowhere(st, j);
}

kf_status kfi_construct_by_memory(kfi_assignment *st) {
  kfi_assignment_reset(st);
  for (int64_t j = 0; j < st->n_items; j++) {
    kf_status status = st->item[j].len ? kfi_place_by_memory(st, j) : KF_OK;
    if (status) return status;
  }
  kfi_clean(st);
  return KF_OK;
}

/* Item j in equal shares on ranks first .. first+g-1, into st->set: the largest load that makes, or
** INFINITY if it does not fit. */
static double try_even(kfi_assignment *st, int64_t j, int32_t first, int32_t g, int32_t *n) {
  double most = 0;
  if ((st->item[j].len + g - 1) / g > st->world->max_chunk) return INFINITY;
  kfi_deal(st->world, &st->item[j], first, g, NULL, st->set);
  *n = kfi_drop_empty(st->set, g);
  if (!kfi_set_fits(st, j, st->set, *n)) return INFINITY;
  kfi_price_set(st, j, st->set, *n, st->set_cost);
  for (int32_t i = 0; i < *n; i++) {
    double s = st->load[st->set[i].rank] + st->set_cost[i];
    most = s > most ? s : most;
  }
  return most;
}

kf_status kfi_construct_even(kfi_assignment *st, int32_t size) {
  const int32_t *zone = st->world->zone_first;
  kfi_assignment_reset(st);
  for (int64_t j = 0; j < st->n_items; j++) {
    double least = INFINITY;
    int32_t best_first = -1, best_g = 0, n;
    if (st->item[j].len == 0) continue;
    for (int32_t m = 0; m < st->world->n_zones; m++) {
      for (int32_t first = zone[m]; first < zone[m + 1]; first += size) {
        int32_t g = first + size < zone[m + 1] ? size : zone[m + 1] - first;
        double s = try_even(st, j, first, g, &n);
        if (s < least) least = s, best_first = first, best_g = g;
      }
    }
    if (best_first < 0) {
      kf_status status = kfi_place_by_memory(st, j);
      if (status) return status;
    } else {
      try_even(st, j, best_first, best_g, &n);
      if (!kfi_put_set(st, j, st->set, n)) return kfi_fail_memory(sizeof(kfi_slot), "a set");
    }
  }
  kfi_clean(st);
  return KF_OK;
}
