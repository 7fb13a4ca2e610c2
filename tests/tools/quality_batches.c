/* SPDX-License-Identifier: Apache-2.0 */
/*
** The quality of the sampler's batches, as bench/batches.csv records it: one line per data set,
** seed, rule and step mode. A change of the sampler shows as a diff of that file.
**
**     quality_batches            print the table
**     quality_batches FILE       compare it with FILE; exit 1 and print the lines that differ
**
** Sets: `wan`, the mix; `octaves`, 6400 samples of any length from 256 to 65535, as many in each
** octave. 16 ranks, wan1.3b, gamma 0.4, 160000 tokens of memory, matched at the longest.
** tokens_ratio: predicted tokens/s over those of equal_token in random steps. hash: of all samples
** in their order.
*/
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dice.h"
#include "ledger.h"

#define N(array) (sizeof(array) / sizeof((array)[0]))
enum { RANKS = 16, SAMPLES = 6400, N_SEEDS = 3 };

static const struct {
  const char *name;
  int64_t longest;
} sets[] = {{"wan", 75600}, {"octaves", 65535}};

static const struct {
  const char *name;
  kf_rule rule;
  kf_power power;
} rules[] = {{"equal_token", KF_RULE_EQUAL_TOKEN, 0},
             {"power", KF_RULE_POWER, KF_POWER_BEST},
             {"power_fitted", KF_RULE_POWER, KF_POWER_FITTED},
             {"two_term", KF_RULE_TWO_TERM, 0},
             {"packed", KF_RULE_PACKED, 0}};

static const char *const modes[] = {"random", "same", "similar"};

static void quit(void) {
  fprintf(stderr, "quality_batches: %s\n", kf_last_error());
  exit(1);
}

static void draw(size_t set, uint64_t seed, int64_t *len) {
  kf_batch *batch = NULL;
  dice d = {seed};
  if (set == 0) {
    if (kf_mix_create("wan", RANKS, seed, &batch)) quit();
    memcpy(len, batch->len, SAMPLES * sizeof *len);
    kf_batch_free(batch);
    return;
  }
  for (int i = 0; i < SAMPLES; i++) {
    int64_t octave = dice_int(&d, 8);
    len[i] = (256 << octave) + dice_int(&d, 256 << octave);
  }
}

/* The order of all samples, ranks and steps. */
static uint64_t hash_of(kf_sampler *s) {
  const kf_sampled *k = NULL;
  uint64_t hash = 0xcbf29ce484222325u;
  while (!kf_sampler_next(s, &k) && k) {
    for (int32_t r = 0; r < RANKS; r++)
      hash = (hash ^ (uint64_t)k->batch.rank_off[r + 1]) * 0x100000001b3u;
    for (int64_t i = 0; i < k->batch.n_seqs; i++)
      hash = (hash ^ (uint64_t)k->sample[i]) * 0x100000001b3u;
  }
  if (k) quit();
  return hash;
}

/* One line; `habit` is set by the first line of a set and seed. */
static void line_of(size_t set, uint64_t seed, size_t rule, size_t mode, const int64_t *len,
                    double *habit, char *out, size_t room) {
  kf_sampler_options o = {.mode = (kf_step_mode)mode, .seed = seed};
  kf_sampler *s = NULL;
  kf_epoch e;
  o.bucket.rule = rules[rule].rule;
  o.bucket.power = rules[rule].power;
  o.bucket.mem_tokens = 160000;
  o.bucket.match_len = sets[set].longest;
  o.bucket.n_ranks = RANKS;
  if (kf_cost_preset("wan1.3b", "free", RANKS, 0.4, &o.bucket.cost) ||
      kf_sampler_create(&o, len, SAMPLES, &s) || kf_sampler_figures(s, &e))
    quit();
  if (rule == 0 && mode == 0) *habit = e.predicted_tokens_per_s;
  snprintf(out, room,
           "%s,%" PRIu64 ",%s,%s,%.4f,%" PRId64 ",%.6f,%.6f,%.6f,%.6f,%" PRId64 ",%" PRId64
           ",%016" PRIx64 "\n",
           sets[set].name, seed, rules[rule].name, modes[mode], kf_sampler_buckets(s)->p, e.n_steps,
           e.imbalance_rate, e.mean_memory_use, e.mean_compute_use,
           e.predicted_tokens_per_s / *habit, e.dropped_samples, e.underfilled_batches, hash_of(s));
  kf_sampler_free(s);
}

static int run_all(FILE *file) {
  static int64_t len[SAMPLES];
  char fresh[LEDGER_LINE];
  double habit = 0;
  int n_differ = !ledger_settle(file, "set,seed,rule,mode,p,steps,imbalance_rate,mean_memory_use,"
                                      "mean_compute_use,tokens_ratio,dropped,underfilled,hash\n");
  for (size_t set = 0; set < N(sets); set++)
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
      draw(set, seed, len);
      for (size_t rule = 0; rule < N(rules); rule++)
        for (size_t mode = 0; mode < N(modes); mode++) {
          line_of(set, seed, rule, mode, len, &habit, fresh, sizeof fresh);
          n_differ += !ledger_settle(file, fresh);
        }
    }
  return n_differ;
}

int main(int argc, char **argv) { return ledger_main(argc, argv, run_all); }
