/* SPDX-License-Identifier: Apache-2.0 */
/*
** Plan every mix, in several ways, and print `mix seed bags cluster hash`, one line a plan.
** house/determinism.sh compares the lines of several compilers and optimisation levels.
*/
#include <knapformer.h>

#include <inttypes.h>
#include <stdio.h>

static const char *const mixes[] = {"joint", "mixres", "lowres", "clips", "lowres4k"};
static const char *const specs[] = {"auto", "g1n32", "g8n4", "g1n8+g2n4+g4n4", "[1,1,2]"};
static const char *const clusters[] = {"", "free"};
#define N_SEEDS 4
#define N(array) (sizeof(array) / sizeof((array)[0]))

/* Prints the hash. `uneven`: speeds that differ, and memory evened out, take other paths. */
static kf_status plan_one(const kf_batch *batch, const char *spec, const char *cluster,
                          int uneven) {
  double speed[32];
  kf_planner_options options = {0};
  kf_planner *planner = NULL;
  kf_bags *bags = NULL;
  const kf_plan *plan;
  kf_status status;
  if ((status = kf_cost_preset("flux", cluster, batch->n_ranks, 0.4, &options.cost))) goto done;
  if ((status = kf_bags_parse(spec, batch->n_ranks, &bags))) goto done;
  options.bags = bags;
  if (uneven) {
    for (int r = 0; r < batch->n_ranks; r++) speed[r] = 1 + 0.1 * (r % 3);
    options.speed = speed;
    options.affinity = KF_AFFINITY_SPREAD;
  }
  if ((status = kf_planner_create(&options, &planner))) goto done;
  if ((status = kf_planner_plan(planner, batch, &plan))) goto done;
  if ((status = kf_plan_check(plan, batch))) goto done;
  printf(" %016" PRIx64, plan->hash);
done:
  kf_planner_free(planner);
  kf_bags_free(bags);
  return status;
}

int main(void) {
  for (size_t m = 0; m < N(mixes); m++) {
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
      kf_batch *batch;
      if (kf_mix_create(mixes[m], 0, seed, &batch)) goto fail;
      for (size_t b = 0; b < N(specs); b++) {
        for (size_t c = 0; c < N(clusters); c++) {
          printf("%s %" PRIu64 " %s %s", mixes[m], seed, specs[b], c ? clusters[c] : "default");
          fflush(stdout); /* so that a plan that never ends is named */
          if (plan_one(batch, specs[b], clusters[c], 0)) goto fail;
          if (plan_one(batch, specs[b], clusters[c], 1)) goto fail;
          printf("\n");
        }
      }
      kf_batch_free(batch);
    }
  }
  return 0;
fail:
  fprintf(stderr, "plan_hashes: %s\n", kf_last_error());
  return 1;
}
