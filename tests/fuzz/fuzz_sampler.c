/* SPDX-License-Identifier: Apache-2.0 */
/*
** Any bytes as a sampler's state: refused with a sentence, and nothing changes; or taken, and then
** the rest of the epoch is handed out, each sample at most once, and saves what can be restored.
** The first byte chooses a sampler. If the second is even, the others are the state itself. If it
** is odd, they are a list of changes to a good one, a byte of which word and 8 of what, behind a
** checksum that is made to fit.
*/
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <knapformer.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SAMPLES = 60, RANKS = 3, KINDS = 12, WORD = 8, FIRST_WORD = 4 };

static kf_sampler *sampler[KINDS];
static unsigned char *good[KINDS];
static size_t n_good[KINDS];

static void save(const kf_sampler *s, unsigned char **state, size_t *n) {
  void *out;
  if (kf_sampler_save(s, &out, n)) abort();
  *state = out;
}

/* A rule and a mode each, at step 2 of epoch 5, with a change behind it and one before it. */
static void create(int kind) {
  int64_t len[SAMPLES];
  for (int i = 0; i < SAMPLES; i++) len[i] = 100 + i * 37 % 11 * 100;
  kf_sampler_options o = {.bucket = {.rule = (kf_rule)(kind % 4),
                                     .cost = {.linear_s = 1e-3, .quadratic_s = 1e-6},
                                     .mem_tokens = 3000,
                                     .match_len = 1500,
                                     .n_ranks = RANKS},
                          .mode = (kf_step_mode)(kind / 4),
                          .window = 10,
                          .keep_all = kind % 2};
  kf_cost cost = o.bucket.cost;
  const kf_sampled *step;
  if (kf_sampler_create(&o, len, SAMPLES, &sampler[kind])) abort();
  if (kf_sampler_set_epoch(sampler[kind], 5)) abort();
  for (int i = 0; i < 2; i++) {
    if (kf_sampler_next(sampler[kind], &step) || !step) abort();
    cost.quadratic_s *= 2;
    if (kf_sampler_set_cost(sampler[kind], i == 0 ? 1 : 3, &cost)) abort();
  }
  save(sampler[kind], &good[kind], &n_good[kind]);
}

static void go_on(kf_sampler *s) {
  char seen[SAMPLES] = {0};
  const kf_sampled *step;
  kf_epoch figures;
  if (kf_sampler_figures(s, &figures)) abort();
  if (figures.n_samples + figures.dropped_samples != SAMPLES) abort();
  while (!kf_sampler_next(s, &step) && step)
    for (int64_t i = 0; i < step->batch.n_seqs; i++)
      if (seen[step->sample[i]]++) abort();
  if (kf_sampler_step(s) != kf_sampler_steps(s)) abort();
}

static void repair(unsigned char *state, size_t n) {
  uint64_t h = kf_hash_bytes(KF_HASH_START, state, n - WORD);
  for (int i = 0; i < WORD; i++) state[n - WORD + (size_t)i] = (unsigned char)(h >> 8 * i);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 2) return 0;
  int kind = data[0] % KINDS;
  bool edit = data[1] % 2;
  if (!sampler[kind]) create(kind);
  kf_sampler *s = sampler[kind];
  size_t n = edit ? n_good[kind] : size - 2;
  unsigned char *state = malloc(n + 1), *now;
  memcpy(state, edit ? good[kind] : data + 2, n);
  for (size_t i = 2; edit && i + 1 + WORD <= size; i += 1 + WORD)
    memcpy(state + (FIRST_WORD + data[i] % (n / WORD - FIRST_WORD - 1)) * WORD, data + i + 1, WORD);
  if (edit) repair(state, n);
  if (kf_sampler_restore(s, "state", state, n)) {
    if (strncmp(kf_last_error(), "state: ", 7) != 0) abort();
    save(s, &now, &n);
    if (n != n_good[kind] || memcmp(now, good[kind], n) != 0) abort();
  } else {
    go_on(s);
    save(s, &now, &n);
    if (kf_sampler_restore(s, "state", now, n)) abort();
    if (kf_sampler_restore(s, "state", good[kind], n_good[kind])) abort();
  }
  free(now);
  free(state);
  return 0;
}
