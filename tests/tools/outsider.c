/* SPDX-License-Identifier: Apache-2.0 */
/* A program of somebody else, for house/install.sh: plan one step, check it. */
#include <knapformer.h>
#include <stdio.h>

int main(void) {
  kf_batch *batch;
  kf_planner *planner;
  const kf_plan *plan;
  kf_planner_options options = {0};
  if (kf_mix_create("joint", 0, 0, &batch)) goto fail;
  if (kf_cost_preset("flux", NULL, batch->n_ranks, 0.4, &options.cost)) goto fail;
  if (kf_planner_create(&options, &planner)) goto fail;
  if (kf_planner_plan(planner, batch, &plan)) goto fail;
  if (kf_plan_check(plan, batch)) goto fail;
  printf("knapformer %s: %.2fx\n", kf_version(), plan->figures.speedup);
  kf_planner_free(planner);
  kf_batch_free(batch);
  return 0;
fail:
  fprintf(stderr, "%s\n", kf_last_error());
  return 1;
}
