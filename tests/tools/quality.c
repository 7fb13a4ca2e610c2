/* SPDX-License-Identifier: Apache-2.0 */
/*
** The quality of the plans, as bench/quality.csv records it: one line per mix, seed, bags,
** cluster and budget. A change of the solver shows as a diff of that file.
**
**     quality               print the table
**     quality FILE          compare it with FILE; exit 1 and print the lines that differ
**
** step_over_ideal = step_s / ideal_s; budget_us 0 is the default budget.
*/
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <knapformer.h>

#include "ledger.h"

#define N(array) (sizeof(array) / sizeof((array)[0]))
#define N_SEEDS 5

static const char *const mixes[] = {"joint", "mixres", "lowres", "lowres4k", "clips"};
static const char *const clusters[] = {"h100x32", "free"};

/* `only_mix` and `only_cluster` are NULL where all are meant. */
static const struct {
  const char *bags;
  int budget_us;
  const char *only_mix, *only_cluster;
} runs[] = {
  {"auto", 0, NULL, NULL},
  {"auto", 1000, NULL, NULL},
  {"g1n32", 1000, NULL, NULL},
  {"g2n16", 1000, NULL, NULL},
  {"g4n8", 1000, NULL, NULL},
  {"g8n4", 1000, NULL, NULL},
  {"g1n8+g2n4+g4n4", 1000, NULL, NULL},
  {"g1n16+g2n4+g4n2", 1000, "mixres", "free"},
};

typedef struct line {
  const char *mix, *bags, *cluster;
  uint64_t seed;
  int budget_us;
} line;

static kf_status plan_one(const line *l, const kf_batch *batch, char *out, size_t room) {
  kf_planner_options options = {0};
  kf_planner *planner = NULL;
  kf_bags *bags = NULL;
  const kf_plan *plan;
  kf_status status;
  if ((status = kf_cost_preset("flux", l->cluster, batch->n_ranks, 0.4, &options.cost))) goto done;
  if ((status = kf_bags_parse(l->bags, batch->n_ranks, &bags))) goto done;
  options.bags = bags;
  if (l->budget_us) options.budget = kf_planner_budget(l->budget_us);
  if ((status = kf_planner_create(&options, &planner))) goto done;
  if ((status = kf_planner_plan(planner, batch, &plan))) goto done;
  if ((status = kf_plan_check(plan, batch))) goto done;
  const kf_figures *f = &plan->figures;
  snprintf(out, room, "%s,%" PRIu64 ",%s,%s,%d,%.6f,%.6f,%.6f,%.6f,%.6f,%016" PRIx64 "\n", l->mix,
           l->seed, l->bags, l->cluster, l->budget_us, f->step_s / f->ideal_s, f->gap,
           f->max_over_mean, f->a2a_fraction, f->moved_fraction, plan->hash);
done:
  kf_planner_free(planner);
  kf_bags_free(bags);
  return status;
}

static int run_all(FILE *file) {
  char fresh[LEDGER_LINE];
  int n_differ =
    !ledger_settle(file, "mix,seed,bags,cluster,budget_us,step_over_ideal,gap,max_over_mean,"
                         "a2a_fraction,moved_fraction,hash\n");
  for (size_t m = 0; m < N(mixes); m++)
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
      kf_batch *batch;
      if (kf_mix_create(mixes[m], 0, seed, &batch)) goto fail;
      for (size_t c = 0; c < N(clusters); c++)
        for (size_t r = 0; r < N(runs); r++) {
          if (runs[r].only_mix && strcmp(runs[r].only_mix, mixes[m]) != 0) continue;
          if (runs[r].only_cluster && strcmp(runs[r].only_cluster, clusters[c]) != 0) continue;
          line l = {mixes[m], runs[r].bags, clusters[c], seed, runs[r].budget_us};
          if (plan_one(&l, batch, fresh, sizeof fresh)) goto fail;
          n_differ += !ledger_settle(file, fresh);
        }
      kf_batch_free(batch);
    }
  return n_differ;
fail:
  fprintf(stderr, "quality: %s\n", kf_last_error());
  exit(1);
}

int main(int argc, char **argv) { return ledger_main(argc, argv, run_all); }
