/* SPDX-License-Identifier: Apache-2.0 */
/*
** Batches under a memory and a compute limit, for a loader that cannot route: four ranks in one
** process, simulated times, and batch sizes that follow what the times teach. A step shall take 1.7
** s; attention turns out three times as dear as was assumed, so batches of long samples become
** smaller.
**
**     cc batches.c $(pkg-config --cflags --libs knapformer) -o batches && ./batches
*/
#include <knapformer.h>
#include <stdio.h>

enum { RANKS = 4, SAMPLES = 20000 };

static int64_t len[SAMPLES];

/* What the ranks measure. On a cluster each reports its own, and kf_step_schedule spreads the
** word. */
static kf_status report(kf_scheduler *scheduler, const kf_batch *batch, const kf_cost *truth) {
  for (int32_t r = 0; r < RANKS; r++) {
    double seconds = 0;
    for (int64_t i = batch->rank_off[r]; i < batch->rank_off[r + 1]; i++)
      seconds += kf_cost_work(truth, batch->len[i]);
    kf_status status = kf_scheduler_update_stats(scheduler, r, seconds, NULL);
    if (status) return status;
  }
  return KF_OK;
}

static kf_status train(kf_sampler *sampler, kf_scheduler *scheduler, const kf_cost *truth) {
  kf_status status;
  const kf_sampled *step;
  const kf_plan *plan;
  int64_t refits = 0;
  while (!(status = kf_sampler_next(sampler, &step)) && step) {
    /* rank r loads step->sample[step->batch.rank_off[r]] .., and trains on them */
    if ((status = kf_scheduler_plan(scheduler, &step->batch, &plan))) break; /* routes nothing */
    if ((status = report(scheduler, &step->batch, truth))) break;
    const kf_metrics *m = kf_scheduler_metrics(scheduler);
    if (m->refits == refits) continue;
    refits = m->refits; /* at the same steps on every rank */
    if ((status = kf_sampler_set_cost(sampler, kf_sampler_step(sampler), &m->cost))) break;
  }
  return status;
}

static void show(const char *when, const kf_sampler *sampler) {
  const kf_buckets *b = kf_sampler_buckets(sampler);
  printf("%s:", when);
  for (int64_t i = 0; i < b->n; i++)
    printf(" %d of %d tokens%s", (int)b->bucket[i].batch_size, (int)b->bucket[i].len,
           i + 1 < b->n ? "," : " make a batch\n");
}

int main(void) {
  const kf_config config = {.bag_size = "g1n1", .rebalance_interval = 10, .model = "wan1.3b"};
  kf_sampler_options options = {.bucket = {.mem_tokens = 60000, .comp_s = 1.7}, .seed = 1};
  kf_scheduler_options *learn = NULL;
  kf_sampler *sampler = NULL;
  kf_scheduler *scheduler = NULL;
  kf_epoch epoch;
  kf_cost truth;
  int code = 1;

  for (int i = 0; i < SAMPLES; i++) len[i] = (int64_t)1000 << (i * 7 % 5); /* 1000, .. 16000 */
  options.bucket.n_ranks = RANKS;
  if (kf_config_resolve(&config, RANKS, &learn)) goto fail;
  options.bucket.cost = truth = learn->plan.cost;
  truth.quadratic_s *= 3;

  if (kf_sampler_create(&options, len, SAMPLES, &sampler)) goto fail;
  show("assumed", sampler);
  if (kf_scheduler_create(learn, &scheduler)) goto fail;
  if (train(sampler, scheduler, &truth)) goto fail;
  if (kf_sampler_figures(sampler, &epoch)) goto fail;
  show("learned", sampler);
  printf("%d steps, imbalance %.3f, memory use %.2f, %d of %d samples dropped\n",
         (int)epoch.n_steps, epoch.imbalance_rate, epoch.mean_memory_use,
         (int)epoch.dropped_samples, SAMPLES);
  code = 0;

fail:
  if (code) fprintf(stderr, "batches: %s\n", kf_last_error());
  kf_scheduler_options_free(learn);
  kf_scheduler_free(scheduler);
  kf_sampler_free(sampler);
  return code;
}
