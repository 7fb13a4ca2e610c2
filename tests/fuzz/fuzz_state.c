/* SPDX-License-Identifier: Apache-2.0 */
/*
** Any bytes as a scheduler's state: refused with a sentence, and nothing changes; or taken, and
** then it plans, learns, and saves what can be restored. An input that begins with an even byte is
** the state itself. One with an odd byte is a list of changes to a good one, 2 bytes of which word
** and 8 of what, behind a checksum that is made to fit: else nothing would ever come past it.
*/
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler_wish.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { RANKS = 2, WORD = 8, FIRST_WORD = 5 };

static const int64_t rank_off[] = {0, 2, 3}, len[] = {300, 1000, 5000};
static const kf_profile profile[] = {{KF_KIND_IMAGE, 256, 1}, {0, 0, 0}, {KF_KIND_VIDEO, 512, 20}};
static const kf_batch batch = {RANKS, 3, rank_off, len, NULL, profile};

static void step(kf_scheduler *s, double seconds) {
  const kf_plan *plan;
  if (kf_scheduler_plan(s, &batch, &plan) || kf_plan_check(plan, &batch)) abort();
  for (int32_t r = 0; r < RANKS; r++)
    if (kf_scheduler_update_stats(s, r, seconds * (1 + r), NULL)) abort();
  const kf_metrics *m = kf_scheduler_metrics(s);
  for (int32_t r = 0; r < RANKS; r++)
    if (!(m->speed[r] >= 1e-6 && m->speed[r] <= 1e6)) abort();
  if (!isfinite(m->cost.linear_s + m->cost.quadratic_s + m->cost.constant_s)) abort();
}

static kf_scheduler *create(void) {
  static kf_config config = {.rebalance_interval = 2, .model = "DiT-S"};
  kf_scheduler *s;
  if (scheduler_create(&(scheduler_wish){.n_ranks = RANKS, .config = &config}, &s)) abort();
  return s;
}

static void save(kf_scheduler *s, unsigned char **state, size_t *n) {
  void *out;
  if (kf_scheduler_save(s, &out, n)) abort();
  *state = out;
}

static void repair(unsigned char *state, size_t n) {
  uint64_t h = kf_hash_bytes(KF_HASH_START, state, n - WORD);
  for (int i = 0; i < WORD; i++) state[n - WORD + (size_t)i] = (unsigned char)(h >> 8 * i);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static kf_scheduler *s;
  static unsigned char *good;
  static size_t n_good;
  if (!s) {
    s = create();
    for (int i = 0; i < 9; i++) step(s, 0.1 + 0.01 * i);
    save(s, &good, &n_good);
  }
  if (size == 0) return 0;
  size_t n = data[0] % 2 ? n_good : size - 1;
  unsigned char *state = malloc(n + 1), *now; /* of the exact size, but for none */
  memcpy(state, data[0] % 2 ? good : data + 1, n);
  for (size_t i = 1; data[0] % 2 && i + 2 + WORD <= size; i += 2 + WORD) {
    size_t word = data[i] | (size_t)data[i + 1] << 8, words = n / WORD - FIRST_WORD - 1;
    if (data[i + 1 + WORD] == 0x10 || data[i + 1 + WORD] == 0x0f)
      continue; /* about 2^60, which is the limit of counts: no more is counted from there */
    memcpy(state + (FIRST_WORD + word % words) * WORD, data + i + 2, WORD);
  }
  if (data[0] % 2) repair(state, n);
  if (kf_scheduler_restore(s, "state", state, n)) {
    if (strncmp(kf_last_error(), "state: ", 7) != 0) abort();
    save(s, &now, &n);
    if (n != n_good || memcmp(now, good, n) != 0) abort();
  } else {
    for (int i = 0; i < 5; i++) step(s, i == 3 ? 5 : 0.2);
    save(s, &now, &n);
    if (kf_scheduler_restore(s, "state", now, n)) abort();
    if (kf_scheduler_restore(s, "state", good, n_good)) abort();
  }
  free(now);
  free(state);
  return 0;
}
