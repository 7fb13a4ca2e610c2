/* SPDX-License-Identifier: Apache-2.0 */
/*
** mpirun -n N sampler SEED: every rank has a sampler of its own, and they say nothing to each other
** but what a scheduler says, which learns a cost that was assumed wrongly: attention is three times
** as dear. At each refit the samplers are given what was learned. They must stay the same as each
** other, come to the batches of the true cost, and go on alike after a restart from what was saved.
*/
#include "dice.h"
#include "ranks.h"
#include "scheduler_wish.h"

#include <assert.h>
#include <inttypes.h>

enum { SAMPLES = 900, INTERVAL = 5, MEM_TOKENS = 1000000, LONGEST = 75600 };

typedef struct job {
  kf_comm *comm;
  int32_t me, n_ranks;
  const char *name;
  kf_sampler_options options;
  kf_cost truth;
  int64_t len[SAMPLES];

  kf_sampler *sampler;
  kf_scheduler *scheduler;
  kf_step *step;
  int64_t epoch, seen; /* refits */
  int64_t ahead;       /* steps that are already on their way when a cost is set */
} job;

/* ---------------------------------------------------------------------------- agreement */

static void agree(const job *j, uint64_t mine, const char *what) {
  uint64_t all[64];
  assert(j->n_ranks <= 64);
  EXPECT_OK(kf_comm_gather(j->comm, &mine, sizeof mine, all));
  for (int32_t r = 0; r < j->n_ranks; r++)
    if (all[r] != mine) {
      fprintf(stderr, "%s: rank %d has another %s than rank %d\n", j->name, (int)r, what,
              (int)j->me);
      abort();
    }
}

static uint64_t hash_of_step(const kf_sampled *k) {
  uint64_t hash = kf_hash_bytes(KF_HASH_START, &k->step, sizeof k->step);
  hash = kf_hash_bytes(hash, &k->epoch, sizeof k->epoch);
  hash = kf_hash_bytes(hash, k->batch.rank_off, ((size_t)k->batch.n_ranks + 1) * sizeof(int64_t));
  hash = kf_hash_bytes(hash, k->batch.len, (size_t)k->batch.n_seqs * sizeof(int64_t));
  return kf_hash_bytes(hash, k->sample, (size_t)k->batch.n_seqs * sizeof(int64_t));
}

/* ------------------------------------------------------------------------------ the job */

static void job_open(job *j) {
  static kf_config config;
  config = (kf_config){.rebalance_interval = INTERVAL, .bag_size = "g1n1"};
  scheduler_wish o = {.n_ranks = j->n_ranks, .config = &config, .cost = &j->options.bucket.cost};
  EXPECT_OK(kf_sampler_create(&j->options, j->len, SAMPLES, &j->sampler));
  EXPECT_OK(scheduler_create(&o, &j->scheduler));
  EXPECT_OK(kf_step_create(j->comm, 0, &j->step));
  j->epoch = j->seen = 0;
}

static void job_close(job *j) {
  kf_step_free(j->step);
  kf_scheduler_free(j->scheduler);
  kf_sampler_free(j->sampler);
}

static void job_draw(job *j, kf_comm *comm, kf_rule rule, uint64_t seed) {
  static const int64_t few[] = {256, 1024, 1560, 3600, 8160, 20280, 40560, LONGEST};
  dice d = {seed};
  *j = (job){.comm = comm, .me = kf_comm_rank(comm), .n_ranks = kf_comm_size(comm)};
  j->name = kf_rule_name(rule);
  for (int i = 0; i < SAMPLES; i++) {
    int64_t octave = dice_int(&d, 8), within = dice_int(&d, 256 << octave);
    j->len[i] = rule == KF_RULE_PACKED ? (256 << octave) + within : few[octave];
  }
  j->options = (kf_sampler_options){.seed = seed, .window = 256};
  j->options.bucket = (kf_bucket_options){
    .rule = rule, .mem_tokens = MEM_TOKENS, .match_len = LONGEST, .n_ranks = j->n_ranks};
  EXPECT_OK(kf_cost_preset("wan1.3b", "free", j->n_ranks, 0.4, &j->options.bucket.cost));
  j->truth = j->options.bucket.cost;
  j->truth.quadratic_s *= 3;
}

/* What was learned goes to the sampler. */
static void learn(job *j) {
  const kf_metrics *m = kf_scheduler_metrics(j->scheduler);
  if (m->refits == j->seen) return;
  int64_t at = kf_sampler_step(j->sampler) + j->ahead, steps = kf_sampler_steps(j->sampler);
  j->seen = m->refits;
  EXPECT_OK(kf_sampler_set_cost(j->sampler, at < steps ? at : steps, &m->cost));
  agree(j, kf_sampler_hash(j->sampler), "sampler after a refit");
  uint64_t hash = 0;
  const kf_buckets *b = kf_sampler_buckets(j->sampler);
  for (int64_t i = 0; i < b->n; i++)
    hash = kf_hash_bytes(hash, &b->bucket[i].batch_size, sizeof(int64_t));
  agree(j, hash, "batch size");
}

/* One step; after the last of an epoch comes the next. Returns a hash of all that was decided. */
static uint64_t train(job *j) {
  const kf_sampled *k = NULL;
  const kf_plan *plan = NULL;
  EXPECT_OK(kf_sampler_next(j->sampler, &k));
  if (!k) {
    EXPECT_OK(kf_sampler_set_epoch(j->sampler, ++j->epoch));
    EXPECT_OK(kf_sampler_next(j->sampler, &k));
    assert(k);
  }
  uint64_t hash = hash_of_step(k);
  agree(j, hash, "step");
  int64_t first = k->batch.rank_off[j->me], end = k->batch.rank_off[j->me + 1];
  kf_rank_batch mine = {.n_seqs = end - first, .len = k->batch.len + first};
  EXPECT_OK(kf_step_schedule(j->step, j->scheduler, &mine, NULL, &plan));
  assert(plan->figures.moved_fraction == 0);
  hash = kf_hash_bytes(hash, &plan->hash, sizeof plan->hash);
  double seconds = 0;
  for (int64_t i = 0; i < mine.n_seqs; i++) seconds += kf_cost_work(&j->truth, mine.len[i]);
  dice noise = {(uint64_t)(k->step * 64 + j->me)};
  seconds *= dice_real(&noise, 0.999, 1.001);
  EXPECT_OK(kf_scheduler_update_stats(j->scheduler, j->me, seconds, NULL));
  learn(j);
  uint64_t now = kf_sampler_hash(j->sampler);
  agree(j, now, "hash");
  return kf_hash_bytes(hash, &now, sizeof now);
}

/* ----------------------------------------------------------------------------- learning */

static kf_sampler *sampler_with(const job *j, const kf_cost *cost) {
  kf_sampler_options o = j->options;
  kf_sampler *s = NULL;
  o.bucket.cost = *cost;
  EXPECT_OK(kf_sampler_create(&o, j->len, SAMPLES, &s));
  return s;
}

/* Mean over an epoch's steps of 1 - mean/max, by the true cost. */
static double true_imbalance(const job *j, kf_sampler *s, int64_t epoch) {
  const kf_sampled *k = NULL;
  double rate = 0;
  EXPECT_OK(kf_sampler_set_epoch(s, epoch));
  for (;;) {
    EXPECT_OK(kf_sampler_next(s, &k));
    if (!k) return rate / (double)kf_sampler_steps(s);
    double sum = 0, most = 0;
    for (int32_t r = 0; r < j->n_ranks; r++) {
      double work = 0;
      for (int64_t i = k->batch.rank_off[r]; i < k->batch.rank_off[r + 1]; i++)
        work += kf_cost_work(&j->truth, k->batch.len[i]);
      sum += work;
      most = fmax(most, work);
    }
    rate += 1 - sum / j->n_ranks / most;
  }
}

/* Largest |B / B of the true cost - 1|, one sample more or less not counting. */
static double size_error(const kf_sampler *s, const kf_sampler *truth) {
  const kf_buckets *a = kf_sampler_buckets(s), *b = kf_sampler_buckets(truth);
  double worst = 0;
  assert(a->n == b->n);
  for (int64_t i = 0; i < a->n; i++) {
    double x = (double)a->bucket[i].batch_size, y = (double)b->bucket[i].batch_size;
    if (fabs(x - y) > 1) worst = fmax(worst, fabs(x / y - 1));
  }
  return worst;
}

static void check_learning(job *j) {
  job_open(j);
  kf_sampler *assumed = sampler_with(j, &j->options.bucket.cost);
  kf_sampler *truth = sampler_with(j, &j->truth);
  double before = size_error(j->sampler, truth), rate[3];
  agree(j, kf_sampler_hash(j->sampler), "sampler");
  while (j->epoch < 3) train(j);
  double after = size_error(j->sampler, truth);
  kf_sampler *const all[] = {assumed, j->sampler, truth};
  for (int i = 0; i < 3; i++) rate[i] = true_imbalance(j, all[i], 5);
  if (j->me == 0)
    printf(
      "%-8s %d ranks: batch sizes off by %.3f, then %.3f; imbalance %.4f, then %.4f, of the true "
      "cost %.4f\n",
      j->name, (int)j->n_ranks, before, after, rate[0], rate[1], rate[2]);
  assert(j->seen > 3);
  assert(before > 0.2 || j->options.bucket.rule == KF_RULE_POWER); /* whose p makes up for some */
  /* Packed batches are all alike, and so say little of short samples. */
  assert(after < (j->options.bucket.rule == KF_RULE_PACKED ? 0.3 : 0.1));
  if (j->n_ranks > 1) assert(fabs(rate[1] - rate[2]) < 0.25 * (rate[0] - rate[2]) + 0.005);
  kf_sampler_free(assumed);
  kf_sampler_free(truth);
  job_close(j);
}

/* ----------------------------------------------------------------------------- resuming */

typedef struct saved {
  void *data[2]; /* of the sampler, of the scheduler */
  size_t n[2];
} saved;

static saved save(job *j) {
  saved s;
  EXPECT_OK(kf_step_settle(j->step, j->scheduler));
  learn(j); /* settling may refit */
  EXPECT_OK(kf_sampler_save(j->sampler, &s.data[0], &s.n[0]));
  EXPECT_OK(kf_scheduler_save(j->scheduler, &s.data[1], &s.n[1]));
  for (int i = 0; i < 2; i++) agree(j, kf_hash_bytes(0, s.data[i], s.n[i]), "saved state");
  return s;
}

/* A new process would do this. */
static void resume(job *j, saved s) {
  int64_t epoch = j->epoch;
  job_close(j);
  job_open(j);
  EXPECT_OK(kf_sampler_restore(j->sampler, "sampler", s.data[0], s.n[0]));
  EXPECT_OK(kf_scheduler_restore(j->scheduler, "scheduler", s.data[1], s.n[1]));
  j->seen = kf_scheduler_metrics(j->scheduler)->refits;
  j->epoch = epoch;
  for (int i = 0; i < 2; i++) free(s.data[i]);
}

/* Stop after `first` steps; what comes is what came where it was not stopped. */
static void check_resuming(job *j, int first, int more) {
  uint64_t hash[100];
  assert(more <= 100);
  job_open(j);
  for (int i = 0; i < first; i++) train(j);
  saved s = save(j);
  int64_t epoch = j->epoch;
  for (int i = 0; i < more; i++) hash[i] = train(j);
  j->epoch = epoch;
  resume(j, s);
  for (int i = 0; i < more; i++)
    if (train(j) != hash[i]) {
      fprintf(stderr, "%s, rank %d: stopped after %d steps, step %d more is another one\n", j->name,
              (int)j->me, first, i);
      abort();
    }
  job_close(j);
}

int main(int argc, char **argv) {
  static const kf_rule rules[] = {KF_RULE_TWO_TERM, KF_RULE_POWER, KF_RULE_PACKED};
  static job j;
  uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  kf_comm *comm = NULL;
  EXPECT_OK(kf_comm_mpi_create(NULL, &comm));
  for (int i = 0; i < 3; i++) {
    job_draw(&j, comm, rules[i], seed);
    check_learning(&j);
    check_resuming(&j, 3, 12); /* before the first refit */
    j.ahead = 3;               /* a loader that prefetches */
    check_learning(&j);
    for (int first = 10; first <= 13; first++) check_resuming(&j, first, 60);
  }
  EXPECT_OK(kf_comm_barrier(comm));
  kf_comm_free(comm);
  return 0;
}
