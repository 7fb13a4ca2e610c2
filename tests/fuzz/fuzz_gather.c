/* SPDX-License-Identifier: Apache-2.0 */
/*
** Any bytes as what another rank has gathered: refused with a sentence, or read, and then they are
** a batch that can be planned, or refused by the planner. The first byte says how many ranks there
** are and who reads, the second how large records are. Then, again and again: a byte, what rank it
** comes from and whether it is a slot or a verdict, two bytes of where in it, a byte of how many
** more bytes, and these, which replace what the rank packed itself. A byte of 255 gathers.
*/
#include <stdlib.h>
#include <string.h>

#include "scheduler_wish.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_RANKS = 4, MOST_BYTES = 1 << 18 };

typedef struct ranks {
  int32_t n, rank;
  kf_gather *gather;
  kf_scheduler *scheduler;
  char slot[MOST_RANKS * MOST_BYTES], verdict[MOST_RANKS * KF_VERDICT_BYTES];
} ranks;

static void pack(ranks *k) {
  static const int64_t len[] = {300, 1000, 50};
  int64_t n_bytes = kf_gather_bytes(k->gather);
  for (int32_t r = 0; r < k->n; r++)
    if (kf_gather_pack(k->gather, &(kf_rank_batch){.n_seqs = 3, .len = len}, k->scheduler, NULL,
                       k->slot + r * n_bytes))
      abort();
}

/* Small enough to be planned in no time? */
static int is_small(const kf_batch *b) {
  int64_t sum = 0;
  for (int64_t i = 0; i < b->n_seqs; i++) sum += b->len[i];
  return b->n_seqs < 100 && sum < 1000000;
}

/* False: no more room for what the bytes ask for. */
static int gather(ranks *k) {
  kf_gather *g = k->gather;
  const kf_batch *batch = NULL;
  const kf_plan *plan = NULL;
  const void *records = NULL;
  kf_status status = kf_gather_read(g, k->slot, &batch, &records);
  if (status ? !*kf_last_error() || batch : batch && batch->n_ranks != k->n) abort();
  if (batch) {
    char own[KF_VERDICT_BYTES];
    for (int64_t i = 0; i < batch->n_seqs; i++)
      if (batch->len[i] < 0 || batch->len[i] > KF_MAX_LEN) abort();
    if (is_small(batch) && kf_gather_schedule(g, k->scheduler, &plan, own)) abort();
    if (plan && kf_plan_check(plan, batch)) abort();
    status = kf_gather_agree(g, k->verdict);
    if (status && !*kf_last_error()) abort();
  }
  if (kf_gather_bytes(g) > MOST_BYTES) return 0;
  pack(k);
  return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static ranks *k;
  static const kf_config config = {.model = "DiT-S", .budget_us = 1};
  if (!k && !(k = calloc(1, sizeof *k))) abort();
  if (size < 2) return 0;
  k->n = 1 + data[0] % MOST_RANKS;
  k->rank = data[0] / MOST_RANKS % k->n;
  scheduler_wish wish = {.n_ranks = k->n, .config = &config};
  if (kf_gather_create(k->n, k->rank, data[1] % 33, &k->gather)) abort();
  if (scheduler_create(&wish, &k->scheduler)) abort();
  memset(k->verdict, 0, sizeof k->verdict);
  pack(k);
  int fits = 1;
  for (size_t i = 2; fits && i + 4 <= size;) {
    if (data[i] == 255) {
      fits = gather(k);
      i++;
      continue;
    }
    size_t n = data[i + 3] % 64 + 1, at = data[i + 1] | (size_t)data[i + 2] << 8;
    size_t rank = (size_t)(data[i] / 2 % k->n), slot = (size_t)kf_gather_bytes(k->gather);
    char *to = data[i] % 2 ? k->verdict + rank * KF_VERDICT_BYTES : k->slot + rank * slot;
    size_t room = data[i] % 2 ? KF_VERDICT_BYTES : slot;
    i += 4;
    if (n > size - i) n = size - i;
    at %= room;
    memcpy(to + at, data + i, n < room - at ? n : room - at);
    i += n;
  }
  if (fits) gather(k);
  kf_gather_free(k->gather);
  kf_scheduler_free(k->scheduler);
  return 0;
}
