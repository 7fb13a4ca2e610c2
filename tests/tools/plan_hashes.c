/* SPDX-License-Identifier: Apache-2.0 */
/*
** What must be the same to the bit with every compiler, a line each: every mix planned in several
** ways (`mix seed bags cluster hash`); what schedulers have come to every few steps (`mix learned
** bags cluster`: each time the plan's hash, the scheduler's and its state's); fits (`fit case`: the
** bits of each result); epochs of the sampler (`rule mode`: all samples, its hash, figures).
** house/determinism.sh compares the lines of several compilers and optimisation levels.
*/
#include <knapformer.h>

#include <inttypes.h>
#include <stdio.h>

#include "simulated.h"

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

/* Everything that was learned, in one number. */
static kf_status print_state(const kf_scheduler *s) {
  void *bytes;
  size_t n;
  kf_status status = kf_scheduler_save(s, &bytes, &n);
  if (status) return status;
  printf(" %016" PRIx64, kf_hash_bytes(KF_HASH_START, bytes, n));
  free(bytes);
  return KF_OK;
}

/* Learn from simulated times: the law, a rank that is slow and one that becomes so, videos that are
** dear, an overhead, a pause. */
static kf_status learn(const char *mix, const char *spec, const char *cluster, int32_t n_ranks) {
  static kf_config config;
  kf_scheduler *scheduler;
  kf_status status;
  config = (kf_config){.rebalance_interval = 5};
  snprintf(config.bag_size, sizeof config.bag_size, "%s", spec);
  snprintf(config.cluster, sizeof config.cluster, "%s", cluster);
  scheduler_wish options = {.n_ranks = n_ranks, .config = &config};
  if ((status = scheduler_create(&options, &scheduler))) return status;
  training t = training_of(scheduler, mix, 1);
  t.clock.kind_factor[KF_KIND_VIDEO] = 1.3;
  t.clock.overhead_s = 100 * t.clock.cost.linear_s;
  t.speed[2] = 0.7;
  printf("%s learned %s %s", mix, spec, *cluster ? cluster : "default");
  for (int i = 0; i < 80 && !status; i++) {
    if (i == 40) t.speed[1] = 0.5;
    if (i == 70) t.stretch[0] = 100;
    if ((status = training_step(&t)) || i % 10 != 9) continue;
    printf(" %016" PRIx64 " %016" PRIx64, t.hash, kf_scheduler_hash(scheduler));
    status = print_state(scheduler);
  }
  printf("\n");
  kf_scheduler_free(scheduler);
  return status;
}

static kf_status plan_mixes(void) {
  kf_status status;
  for (size_t m = 0; m < N(mixes); m++) {
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
      kf_batch *batch;
      if ((status = kf_mix_create(mixes[m], 0, seed, &batch))) return status;
      for (size_t b = 0; b < N(specs); b++) {
        for (size_t c = 0; c < N(clusters); c++) {
          printf("%s %" PRIu64 " %s %s", mixes[m], seed, specs[b], c ? clusters[c] : "default");
          fflush(stdout); /* so that a plan that never ends is named */
          if ((status = plan_one(batch, specs[b], clusters[c], 0))) return status;
          if ((status = plan_one(batch, specs[b], clusters[c], 1))) return status;
          printf("\n");
        }
      }
      kf_batch_free(batch);
    }
    for (size_t c = 0; c < N(clusters); c++) {
      if ((status = learn(mixes[m], "auto", clusters[c], 8))) return status;
      if ((status = learn(mixes[m], "[1,1,2]", clusters[c], 4))) return status;
    }
  }
  return KF_OK;
}

static void print_bits(const double *value, int n) {
  for (int i = 0; i < n; i++) {
    uint64_t bits;
    memcpy(&bits, &value[i], sizeof bits);
    printf(" %016" PRIx64, bits);
  }
}

/* Exact rows; noisy ones of several ranks; with pauses among them; no quadratic term. */
static kf_status fit(int which) {
  enum { ROWS = 120, RANKS = 4 };
  kf_fit_row rows[ROWS];
  uint8_t outlier[ROWS];
  double slowness[RANKS];
  dice d = {(uint64_t)which};
  kf_fit f;
  kf_status status;
  for (int i = 0; i < ROWS; i++) {
    int64_t len = 64 + dice_int(&d, 40000);
    int32_t rank = which ? (int32_t)dice_int(&d, RANKS) : RANKS - 1;
    double l = (double)len, noise = 0;
    for (int k = 0; which && k < 12; k++) noise += 0.05 * (dice_real(&d, 0, 1) - 0.5);
    double seconds = 3e-6 * l + (which == 3 ? 0 : 2e-10 * l * l) + 1e-3;
    seconds *= (1 + noise) * (1 + 0.2 * (rank == 2));
    if (which == 2 && dice_one_in(&d, 10)) seconds *= dice_real(&d, 3, 50);
    rows[i] = (kf_fit_row){len, seconds, rank};
  }
  if ((status = kf_fit_rows(rows, ROWS, slowness, outlier, &f))) return status;
  const double found[] = {f.linear_s, f.quadratic_s,  f.constant_s, f.r2,         f.mape,
                          f.power_s,  f.holdout_mape, f.power_p,    f.power_mape, slowness[2]};
  printf("fit %d", which);
  print_bits(found, N(found));
  printf(" %" PRId64 "\n", f.n_outliers);
  return KF_OK;
}

/* An epoch by each rule and mode, some of it after a change of the cost: every sample of every
** step. */
static kf_status sample(const kf_batch *wan, kf_rule rule, kf_step_mode mode) {
  kf_sampler_options o = {.bucket = {.rule = rule, .mem_tokens = 160000, .match_len = 75600},
                          .mode = mode,
                          .seed = 5,
                          .keep_all = mode == KF_STEPS_SAME};
  kf_sampler *sampler;
  const kf_sampled *step;
  kf_epoch epoch;
  kf_status status;
  uint64_t h = KF_HASH_START;
  o.bucket.n_ranks = 16;
  if ((status = kf_cost_preset("wan1.3b", "free", 16, 0.4, &o.bucket.cost))) return status;
  if ((status = kf_sampler_create(&o, wan->len, wan->n_seqs, &sampler))) return status;
  while (!(status = kf_sampler_next(sampler, &step)) && step) {
    h = kf_hash_bytes(h, step->sample, (size_t)step->batch.n_seqs * sizeof *step->sample);
    if (step->step != 20) continue;
    o.bucket.cost.quadratic_s *= 3;
    if ((status = kf_sampler_set_cost(sampler, 22, &o.bucket.cost))) break;
  }
  if (!status) status = kf_sampler_figures(sampler, &epoch);
  printf("%s %d %016" PRIx64 " %016" PRIx64, kf_rule_name(rule), (int)mode, h,
         kf_sampler_hash(sampler));
  const double found[] = {epoch.imbalance_rate, epoch.predicted_s, kf_sampler_buckets(sampler)->p};
  print_bits(found, N(found));
  printf("\n");
  kf_sampler_free(sampler);
  return status;
}

static kf_status sample_all(void) {
  kf_batch *wan;
  kf_status status = kf_mix_create("wan", 16, 1, &wan);
  if (status) return status;
  for (int rule = KF_RULE_TWO_TERM; rule <= KF_RULE_PACKED && !status; rule++)
    for (int mode = KF_STEPS_RANDOM; mode <= KF_STEPS_SIMILAR && !status; mode++)
      status = sample(wan, (kf_rule)rule, (kf_step_mode)mode);
  kf_batch_free(wan);
  return status;
}

int main(void) {
  if (plan_mixes() || sample_all()) goto fail;
  for (int which = 0; which < 4; which++)
    if (fit(which)) goto fail;
  return 0;
fail:
  fprintf(stderr, "plan_hashes: %s\n", kf_last_error());
  return 1;
}
