/* SPDX-License-Identifier: Apache-2.0 */
/*
** Plan one step, without moving anything: three ranks, one of which drew a long video.
**
**     cc plan.c $(pkg-config --cflags --libs knapformer) -o plan && ./plan
*/
#include <stdio.h>

#include <knapformer.h>

int main(void) {
  /* rank 0 has the video; sequences are numbered by rank: 0 is the video, 5 rank 2's last */
  const int64_t len[] = {24000, 1000, 4096, 4096, 900, 300}, rank_off[] = {0, 1, 4, 6};
  const kf_batch batch = {.n_ranks = 3, .n_seqs = 6, .rank_off = rank_off, .len = len};
  kf_planner_options options = {0};
  kf_planner *planner = NULL;
  const kf_plan *plan;
  int code = 1;

  if (kf_cost_preset("flux", NULL, batch.n_ranks, KF_DEFAULT_GAMMA, &options.cost)) goto fail;
  if (kf_planner_create(&options, &planner)) goto fail; /* kept from step to step */
  if (kf_planner_plan(planner, &batch, &plan)) goto fail;

  for (int64_t i = 0; i < plan->n_chunks; i++) {
    const kf_chunk *c = &plan->chunk[i];
    printf("sequence %d, rows %5d to %5d: rank %d -> rank %d, which computes %2d heads of it\n",
           (int)c->seq, (int)c->offset, (int)(c->offset + c->length - 1), (int)c->source,
           (int)c->destination, (int)c->heads);
  }
  const kf_figures *f = &plan->figures;
  printf("step %.3f s -> %.3f s, no plan can be below %.3f s; hash %016llx\n", f->before_step_s,
         f->step_s, f->lower_bound_s, (unsigned long long)plan->hash);
  code = 0;

fail:
  if (code) fprintf(stderr, "plan: %s\n", kf_last_error());
  kf_planner_free(planner);
  return code;
}
