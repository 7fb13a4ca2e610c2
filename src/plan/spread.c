/* SPDX-License-Identifier: Apache-2.0 */
/*
** affinity `spread`: from the shortest plan, even out memory as long as the step stays within
** 1% of it. The rank that holds most tokens gives: a whole sequence, a sequence for a shorter one,
** or tokens of a split one.
*/
#include <string.h>

#include "knapsack.h"

/* Loads are never below those of the plan but for whole tokens, for which some room is left. */
#define WITHIN 1.009

typedef struct spreader {
  kfi_assignment *st;
  double limit_s;
  int64_t most; /* what every touched bag must stay below */
} spreader;

/* End a trial: whether it keeps every touched bag under the time limit and below `most`. */
static bool accept(spreader *u) {
  kfi_assignment *st = u->st;
  bool good = true;
  for (int32_t i = 0; i < st->n_touched; i++) {
    int32_t b = st->touched[i];
    int64_t mem = st->mem[b] + st->mem_delta[b];
    if (st->load[b] + st->delta[b] > u->limit_s && st->delta[b] > 0) good = false;
    if (st->mem_delta[b] > 0 && mem >= u->most) good = false;
    if (st->mem_delta[b] > 0 && st->world->bag_cap && mem > st->world->bag_cap[b]) good = false;
  }
  kfi_trial_end(st);
  return good;
}

/* Give a whole sequence of r to q, or change it for a shorter one. */
static bool give_whole(spreader *u, int32_t r, int32_t q) {
  kfi_assignment *st = u->st;
  for (int32_t a = st->first[r]; a >= 0; a = st->next[a]) {
    if (!kfi_bag_takes(st->world, &st->item[a], q)) continue;
    kfi_trial_off(st, a);
    kfi_trial_whole(st, a, q);
    if (accept(u)) {
      kfi_take_off(st, a);
      kfi_put_whole(st, a, q);
      return true;
    }
    for (int32_t b = st->first[q]; b >= 0; b = st->next[b]) {
      if (st->item[b].len >= st->item[a].len || st->moves >= st->budget) continue;
      if (!kfi_bag_takes(st->world, &st->item[b], r)) continue;
      kfi_trial_off(st, a);
      kfi_trial_off(st, b);
      kfi_trial_whole(st, a, q);
      kfi_trial_whole(st, b, r);
      if (!accept(u)) continue;
      kfi_take_off(st, a);
      kfi_take_off(st, b);
      kfi_put_whole(st, a, q);
      kfi_put_whole(st, b, r);
      return true;
    }
  }
  return false;
}

/* Shift tokens of a split sequence from r to another of its ranks, as much as evens them out. */
static bool give_tokens(spreader *u, int32_t r) {
  kfi_assignment *st = u->st;
  for (int32_t s = st->rank_slot[r]; s >= 0; s = st->slot[s].rank_next) {
    int64_t a = st->slot[s].item;
    int32_t n = kfi_get_set(st, a, st->set);
    for (int32_t i = 0; i < n; i++) {
      int32_t q = st->set[i].rank, k = 0;
      if (q == r) continue;
      while (st->set[k].rank != r) k++;
      for (int64_t t = (st->mem[r] - st->mem[q]) / 2; t > 0; t /= 2) {
        if (t > st->set[k].tokens || st->set[i].tokens + t > st->world->max_chunk) continue;
        st->set[k].tokens -= t;
        st->set[i].tokens += t;
        if (st->set[k].tokens || st->set[k].heads) {
          kfi_trial_off(st, a);
          kfi_trial_set(st, a, st->set, n);
          /* heads may count more than tokens: then nothing is gained at r */
          if (st->mem_delta[r] < 0 && accept(u)) {
            kfi_take_off(st, a);
            kfi_put_set(st, a, st->set, n);
            return true;
          }
          if (st->n_touched) kfi_trial_end(st);
        }
        st->set[k].tokens += t;
        st->set[i].tokens -= t;
      }
    }
  }
  return false;
}

void kfi_spread(kfi_assignment *st, double fill_s) {
  const kfi_world *w = st->world;
  spreader u = {st, fill_s * WITHIN, 0};
  st->bytes_per_s = 0;
  while (st->moves < st->budget) {
    int32_t r = 0, q = -1;
    for (int32_t b = 1; b < w->n_bags; b++) {
      if (st->mem[b] > st->mem[r]) r = b;
    }
    int32_t group = r / w->bags_per_group * w->bags_per_group;
    u.most = st->mem[r];
    bool gave = w->auto_bags && give_tokens(&u, r);
    for (int tries = 0; !gave && tries < 4; tries++) { /* the emptiest bags of the group */
      int32_t next = -1;
      for (int32_t b = group; b < group + w->bags_per_group; b++) {
        if (b == r ||
            (q >= 0 && (st->mem[b] < st->mem[q] || (st->mem[b] == st->mem[q] && b <= q)))) {
          continue;
        }
        if (next < 0 || st->mem[b] < st->mem[next]) next = b;
      }
      if (next < 0) break;
      q = next;
      gave = give_whole(&u, r, q);
    }
    if (!gave) break;
  }
  kfi_clean(st);
}
