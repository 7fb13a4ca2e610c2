/* SPDX-License-Identifier: Apache-2.0 */
/*
** Training on local ranks: it learns, the same on any number of ranks, and what goes wrong on one
** all others hear of. With and without the balancer is property/property_train.c. All that ranks
** find is checked in their threads, with EXPECT and assert().
*/
#include <assert.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "dice.h"
#include "fail_alloc.h"
#include "ranks.h"
#include "train/job.h"
#include "train/net.h"

enum { TIMEOUT_S = 60, MOST_STEPS = 64 };

static const kf_model tiny = {32, 2, 2};

/* Six samples of 32 visual tokens and 0 to 49 of text on three ranks. */
static const char three[] = "g3b2i256f1s0";

/* ----------------------------------------------------------------------- a rank's end */

typedef struct rank_end {
  train_job *job;
  train_variant *variant;
} rank_end;

static train_options options_of(kf_comm *comm, const char *mix) {
  return (train_options){
    .comm = comm, .model = tiny, .data = {.mix = mix, .scale = 0.125, .seed = 3}, .seed = 1};
}

/* Without the balancer, or with one whose plans do not depend on times. */
static kf_status open_end(const train_options *o, bool balanced, rank_end *out) {
  kf_scheduler_options options = {.cost_model = KF_COST_STATIC};
  rank_end e = {0};
  kf_status status =
    kf_cost_preset("d=32,layers=2,heads=2", "free", kf_comm_size(o->comm), 1, &options.plan.cost);
  if (!status) status = train_job_create(o, &e.job);
  if (!status) status = train_variant_create(e.job, &options, balanced, &e.variant);
  if (status) train_job_free(e.job);
  if (!status) *out = e;
  return status;
}

static void close_end(rank_end *e) {
  train_variant_free(e->variant);
  train_job_free(e->job);
}

/* Values for all tensors: as a model begins, it predicts 0 whatever it sees. */
static void randomise(rank_end *e) {
  const train_params *params = train_job_params(e->job);
  float *p = train_variant_params(e->variant);
  dice d = {17};
  for (int64_t i = 0; i < params->n_floats; i++) p[i] = (float)dice_real(&d, -0.2, 0.2);
}

/* -------------------------------------------------------------------------- learning */

typedef struct course {
  train_options options;
  bool balanced;
  int64_t n_steps;
  double loss[MOST_STEPS], norm[MOST_STEPS];
} course;

static void run_course(kf_comm *comm, void *arg) {
  course *c = arg;
  train_options o = c->options;
  train_result result;
  rank_end e;
  o.comm = comm;
  EXPECT_OK(open_end(&o, c->balanced, &e));
  for (int64_t s = 0; s < c->n_steps; s++) {
    EXPECT_OK(train_run_step(e.job, e.variant, s, &result));
    if (kf_comm_rank(comm) > 0) continue;
    c->loss[s] = result.loss;
    c->norm[s] = result.grad_norm;
  }
  EXPECT_OK(train_check_ranks(e.job, e.variant));
  close_end(&e);
}

static course course_of(int32_t n_ranks, int64_t n_steps, bool balanced) {
  course c = {.options = options_of(NULL, three), .n_steps = n_steps, .balanced = balanced};
  c.options.lr = 3e-3;
  ranks_run(n_ranks, TIMEOUT_S, run_course, &c);
  return c;
}

static double mean(const double *x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += x[i] / (double)n;
  return sum;
}

/* New samples at every step: from 1.36, the mean square of noise - data, to 0.70. */
static void test_learns(void **state) {
  (void)state;
  course c = course_of(1, 60, false);
  double first = mean(c.loss, 5), last = mean(c.loss + 50, 10);
  if (!(first > 1.2 && first < 1.5)) fail_msg("the loss begins at %g", first);
  if (!(last < 0.6 * first)) fail_msg("the loss fell from %g to %g only", first, last);
}

/* The same bits every time; on other ranks the same but for the order of sums. */
static void test_same_on_any_ranks(void **state) {
  (void)state;
  course one = course_of(1, 10, false);
  for (int32_t n = 1; n <= 3; n++)
    for (int balanced = 0; balanced < 2; balanced++) {
      course a = course_of(n, 10, balanced), b = course_of(n, 10, balanced);
      assert_memory_equal(a.loss, b.loss, sizeof a.loss);
      assert_memory_equal(a.norm, b.norm, sizeof a.norm);
      for (int s = 0; s < 10; s++)
        if (!(fabs(a.loss[s] / one.loss[s] - 1) < 1e-5))
          fail_msg("step %d on %d ranks: loss %.9g, on one %.9g", s, (int)n, a.loss[s],
                   one.loss[s]);
    }
}

/* ------------------------------------------------------------------- a step by hand */

/* Loss and gradients of a rank's samples, as they lie at home. */
typedef struct share {
  double sum, n_values;
  float *grads;
} share;

typedef struct by_hand {
  const char *mix;
  bool balanced;
  int64_t n_floats, n_tokens;
  share share[RANKS_MOST];
  double loss, norm; /* what the trainer says */
  float *grads;
  int64_t n_moved; /* rows that were computed elsewhere */
} by_hand;

static float *floats(int64_t n) {
  float *x = calloc((size_t)n + 1, sizeof *x);
  assert(x);
  return x;
}

static share share_of(const train_options *o, const float *params, int64_t n_floats, int64_t step) {
  train_data_options data_options = o->data;
  train_net_options net_options = {.model = o->model};
  train_data *data;
  train_net *net;
  train_batch b;
  share s = {.grads = floats(n_floats)};
  int64_t seq_off[100] = {0}, n = 0;
  data_options.rank = kf_comm_rank(o->comm), data_options.n_ranks = kf_comm_size(o->comm);
  EXPECT_OK(train_data_create(&data_options, &data));
  EXPECT_OK(train_net_create(&net_options, &net));
  EXPECT_OK(train_data_step(data, step, &b));
  for (int64_t i = 0; i < b.n_seqs; i++)
    if (b.len[i] > 0) n++, seq_off[n] = seq_off[n - 1] + b.len[i];
  train_pack pack = {.n_rows = b.n_rows, .n_seqs = n, .row = b.row, .seq_off = seq_off};
  float *x = floats(b.n_rows * TRAIN_VALUES);
  EXPECT_OK(train_net_forward(net, params, &pack, x));
  for (int64_t i = 0; i < b.n_rows * TRAIN_VALUES; i++) {
    bool counts = b.row[i / TRAIN_VALUES].word < 0;
    double error = counts ? (double)x[i] - b.target[i] : 0;
    s.sum += error * error;
    s.n_values += counts;
    x[i] = (float)(2 * error);
  }
  EXPECT_OK(train_net_backward(net, params, &pack, x, s.grads));
  free(x);
  train_net_free(net);
  train_data_free(data);
  return s;
}

static void check_result(kf_comm *comm, rank_end *e, const train_result *r, int64_t step) {
  const kf_batch *all;
  int64_t tokens = 0, computed = 0, samples = 0;
  EXPECT_OK(train_data_lengths(train_job_data(e->job), step, &all));
  for (int64_t i = 0; i < all->n_seqs; i++) tokens += all->len[i];
  for (int32_t k = 0; k < kf_comm_size(comm); k++) {
    assert(r->busy_s[k] > 0 && r->busy_s[k] < 60);
    assert(r->counters[k].compute_s > 0 && r->counters[k].memory_bytes > 0);
    assert(r->counters[k].tokens == r->plan->hold_rows[k]);
    computed += r->counters[k].tokens, samples += r->counters[k].samples;
  }
  assert(r->step == step && r->n_tokens == tokens && computed == tokens);
  assert(r->counters == kf_scheduler_metrics(train_variant_scheduler(e->variant))->counters);
  assert(samples == all->n_seqs && r->step_s > 0 && r->step_s < 60);
}

static void run_by_hand(kf_comm *comm, void *arg) {
  by_hand *h = arg;
  int32_t me = kf_comm_rank(comm);
  train_options o = options_of(comm, h->mix);
  const int64_t step = 4;
  train_result result;
  rank_end e;
  EXPECT_OK(open_end(&o, h->balanced, &e));
  randomise(&e);
  int64_t n_floats = train_job_params(e.job)->n_floats;
  h->share[me] = share_of(&o, train_variant_params(e.variant), n_floats, step);
  EXPECT_OK(train_run_step(e.job, e.variant, step, &result));
  check_result(comm, &e, &result, step);
  if (me == 0) {
    h->n_floats = n_floats;
    h->loss = result.loss, h->norm = result.grad_norm, h->n_tokens = result.n_tokens;
    h->n_moved = result.plan->route_off[result.plan->n_ranks];
    h->grads = floats(n_floats);
    memcpy(h->grads, train_job_grads(e.job), (size_t)n_floats * sizeof(float));
  }
  EXPECT_OK(kf_comm_barrier(comm)); /* what a result points to is the job's */
  close_end(&e);
}

/* The loss is the mean over the values of all ranks, not of the ranks' means, which here differ:
** the ranks have 64, 64 and 128 visual tokens. Gradients are sums over all values. */
static void check_by_hand(int32_t n_ranks, bool balanced) {
  by_hand h = {.mix = "g2b2i256f1s0,g1b1i512f4s1", .balanced = balanced};
  share all = {0};
  double difference = 0, square = 0;
  ranks_run(n_ranks, TIMEOUT_S, run_by_hand, &h);
  all.grads = floats(h.n_floats);
  for (int32_t r = 0; r < n_ranks; r++) {
    all.sum += h.share[r].sum, all.n_values += h.share[r].n_values;
    for (int64_t i = 0; i < h.n_floats; i++) all.grads[i] += h.share[r].grads[i];
    free(h.share[r].grads);
  }
  for (int64_t i = 0; i < h.n_floats; i++) {
    difference += pow((double)h.grads[i] - all.grads[i], 2);
    square += pow(all.grads[i], 2);
  }
  assert_true(all.n_values == 256 * TRAIN_VALUES);
  assert_true(fabs(h.loss / (all.sum / all.n_values) - 1) < 1e-6);
  assert_true(difference < 1e-10 * square);
  assert_true(fabs(h.norm / (sqrt(square) / all.n_values) - 1) < 1e-5);
  assert_true(!balanced || n_ranks < 3 || h.n_moved > 0);
  free(all.grads), free(h.grads);
}

static void test_by_hand(void **state) {
  (void)state;
  for (int32_t n = 1; n <= 3; n++)
    for (int balanced = 0; balanced < 2; balanced++) check_by_hand(n, balanced);
}

/* Ranks may be more than samples, samples may have nothing to predict or no token at all, and there
** may be none. Of the third mix, a text has one token or none. */
static void test_little_to_do(void **state) {
  (void)state;
  static const struct {
    const char *mix;
    double scale;
    bool predicts, same; /* as many samples on 4 ranks as on one */
  } cases[] = {{"g1b1i256f1s0,g3b0i256f1s0", 0.125, true, true},
               {"g2b2i256f3s1", 0.125, false, false},
               {"g4b3i256f3s1", 0.002, false, true},
               {"g4b0i256f1s0", 0.125, false, true}};
  for (int m = 0; m < 4; m++) {
    course c[3];
    for (int i = 0; i < 3; i++) {
      c[i] = (course){.options = options_of(NULL, cases[m].mix), .n_steps = 5, .balanced = i == 2};
      c[i].options.data.scale = cases[m].scale;
      ranks_run(i == 0 ? 1 : 4, TIMEOUT_S, run_course, &c[i]);
    }
    for (int s = 0; s < 5; s++) {
      assert_true(cases[m].predicts ? c[0].loss[s] > 0.5 : c[0].loss[s] == 0 && c[0].norm[s] == 0);
      for (int i = 1; i < 3 && cases[m].same; i++)
        assert_true(fabs(c[i].loss[s] - c[0].loss[s]) <= 1e-5 * c[0].loss[s]);
    }
  }
}

/* ------------------------------------------------------------------------ the update */

/* One rank, in this thread, with the defaults: lr 1e-3 after 10 steps, decay 0.01, norm 1, EMA
** 0.999. */
static rank_end lone_end(kf_comm **comm) {
  rank_end e;
  assert_int_equal(kf_comm_local_create(1, comm), KF_OK);
  train_options o = options_of(*comm, three);
  if (open_end(&o, false, &e)) fail_msg("%s", kf_last_error());
  return e;
}

static void fill_grads(rank_end *e, float value) {
  const train_params *params = train_job_params(e->job);
  memset(e->job->grads, 0, (size_t)params->n_floats * sizeof(float));
  for (int id = 0; id < TRAIN_N_TENSORS; id++)
    for (int64_t i = 0; i < train_tensor_size(&params->tensor[id]); i++)
      e->job->grads[params->tensor[id].offset + i] = i % 3 ? value : -value;
}

static double norm_of(const float *x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
  return sqrt(sum);
}

/* What a step does with its gradients. */
static double update(rank_end *e, double scale) {
  train_job *job = e->job;
  return train_update(&job->params, job->pw, &job->o, scale, job->grads, &e->variant->state);
}

/* Whatever the gradient's size, the first moment gets a tenth of one of size 1, and no value moves
** further than the first step's rate; the norm that is reported is the whole. */
static void test_clipping(void **state) {
  (void)state;
  static const float sizes[] = {1e-3f, 1, 1e6f, 1e15f};
  for (int k = 0; k < 4; k++) {
    kf_comm *comm;
    rank_end e = lone_end(&comm);
    int64_t n = train_job_params(e.job)->n_floats;
    float *before = floats(n);
    memcpy(before, e.variant->state.p, (size_t)n * sizeof *before);
    fill_grads(&e, sizes[k]);
    double want = norm_of(e.job->grads, n) / 128, got = update(&e, 1. / 128);
    assert_true(fabs(got / want - 1) < 1e-6);
    assert_true((want < 1) == (k == 0)); /* one of them is not clipped */
    assert_true(fabs(norm_of(e.variant->state.m, n) / (0.1 * fmin(want, 1)) - 1) < 1e-4);
    for (int64_t i = 0; i < n; i++)
      assert_true(fabsf(e.variant->state.p[i] - before[i]) <= 1.01e-4f * (1 + fabsf(before[i])));
    free(before);
    close_end(&e);
    kf_comm_free(comm);
  }
}

/* The rate rises over ten steps, then stays. Of a gradient that is always the same, Adam makes
** steps of just that length: biases begin with 0 and do not decay. */
static void test_warmup(void **state) {
  (void)state;
  kf_comm *comm;
  rank_end e = lone_end(&comm);
  const train_tensor *t = &train_job_params(e.job)->tensor[TRAIN_PROJ_B];
  const float *p = e.variant->state.p + t->offset;
  double want = 0;
  for (int step = 1; step <= 15; step++) {
    fill_grads(&e, 1e-3f);
    update(&e, 1);
    want += 1e-3 * fmin(step / 10., 1);
    for (int64_t i = 0; i < train_tensor_size(t); i++)
      assert_true(fabs((double)p[i] / (i % 3 ? -want : want) - 1) < 1e-3);
  }
  close_end(&e);
  kf_comm_free(comm);
}

/* Without a gradient only linear maps change: they become smaller. What lies between tensors stays
** 0, whatever is there of gradients. */
static void test_decay(void **state) {
  (void)state;
  kf_comm *comm;
  rank_end e = lone_end(&comm);
  const train_params *params = train_job_params(e.job);
  int64_t n = params->n_floats;
  for (int id = 0; id < TRAIN_N_TENSORS; id++) /* biases, too */
    for (int64_t i = 0; i < train_tensor_size(&params->tensor[id]); i++)
      e.variant->state.p[params->tensor[id].offset + i] = 0.5f;
  memset(e.job->grads, 0, (size_t)n * sizeof(float));
  double want = 0.5;
  for (int step = 1; step <= 20; step++) {
    assert_true(update(&e, 1) == 0);
    want *= 1 - 1e-3 * fmin(step / 10., 1) * 0.01;
  }
  assert_true(want < 0.49993);
  for (int id = 0; id < TRAIN_N_TENSORS; id++) {
    const train_tensor *t = &params->tensor[id];
    int64_t end = id + 1 < TRAIN_N_TENSORS ? t[1].offset : n, i = t->offset;
    for (; i < t->offset + train_tensor_size(t); i++)
      assert_true(train_tensor_decays(id) ? fabs(e.variant->state.p[i] - want) < 1e-6
                                          : e.variant->state.p[i] == 0.5f);
    for (; i < end; i++) assert_true(e.variant->state.p[i] == 0);
  }
  close_end(&e);
  kf_comm_free(comm);
}

/* The average follows fast at first, by t / (t + 10), then by 0.999; a NaN is not hidden. */
static void test_average(void **state) {
  (void)state;
  kf_comm *comm;
  rank_end e = lone_end(&comm);
  int64_t n = train_job_params(e.job)->n_floats;
  double *want = calloc((size_t)n, sizeof *want);
  assert_non_null(want);
  for (int64_t i = 0; i < n; i++) want[i] = e.variant->state.p[i]; /* begins where they do */
  for (int t = 1; t <= 30; t++) {
    double keep = fmin(0.999, t / (t + 10.));
    fill_grads(&e, t % 4 ? 1e-3f : -2e-3f);
    update(&e, 1);
    for (int64_t i = 0; i < n; i++) {
      want[i] = keep * want[i] + (1 - keep) * e.variant->state.p[i];
      if (!(fabs(want[i] - e.variant->state.ema[i]) < 1e-6))
        fail_msg("update %d, value %d", t, (int)i);
    }
  }
  free(want);
  e.job->grads[0] = NAN;
  assert_true(isnan(update(&e, 1)));
  assert_true(isnan(e.variant->state.p[0]) && isnan(e.variant->state.ema[0]));
  close_end(&e);
  kf_comm_free(comm);
}

/* Through a step: what is reported is the norm before clipping, and what is clipped is the mean. */
static void test_step_clips(void **state) {
  (void)state;
  kf_comm *comm;
  train_result result;
  rank_end e;
  assert_int_equal(kf_comm_local_create(1, &comm), KF_OK);
  train_options o = options_of(comm, three);
  o.clip_norm = 1e-3;
  if (open_end(&o, false, &e)) fail_msg("%s", kf_last_error());
  randomise(&e);
  for (int64_t i = 0; i < e.job->params.n_floats; i++)
    e.variant->state.p[i] *= 5; /* a loss of hundreds */
  if (train_run_step(e.job, e.variant, 0, &result)) fail_msg("%s", kf_last_error());
  int64_t n = e.job->params.n_floats;
  double norm = norm_of(e.job->grads, n) / (6 * 32 * TRAIN_VALUES);
  assert_true(norm > 10);
  assert_true(fabs(result.grad_norm / norm - 1) < 1e-6);
  assert_true(fabs(norm_of(e.variant->state.m, n) / 1e-4 - 1) < 1e-4);
  close_end(&e);
  kf_comm_free(comm);
}

/* --------------------------------------------------------------------- what goes wrong */

/* One bit of one value of one rank, anywhere, and every rank knows. */
static void run_check(kf_comm *comm, void *arg) {
  (void)arg;
  train_options o = options_of(comm, three);
  train_result result;
  rank_end e;
  EXPECT_OK(open_end(&o, true, &e));
  EXPECT_OK(train_run_step(e.job, e.variant, 0, &result));
  EXPECT_OK(train_check_ranks(e.job, e.variant));
  const int64_t n = train_job_params(e.job)->n_floats, places[] = {0, 1, n / 2, n - 1};
  for (int32_t who = 0; who < kf_comm_size(comm); who++)
    for (int i = 0; i < 4; i++)
      for (int bit = 0; bit < 32; bit += 31) {
        float *p = train_variant_params(e.variant) + places[i], saved = *p;
        uint32_t bits;
        memcpy(&bits, p, sizeof bits);
        bits ^= (uint32_t)1 << bit;
        if (kf_comm_rank(comm) == who) memcpy(p, &bits, sizeof bits);
        EXPECT(train_check_ranks(e.job, e.variant), KF_EMISMATCH,
               "ranks hold different parameters");
        *p = saved;
        EXPECT_OK(train_check_ranks(e.job, e.variant)); /* nothing is broken by asking */
      }
  close_end(&e);
}

static void test_check_ranks(void **state) {
  (void)state;
  ranks_run(3, TIMEOUT_S, run_check, NULL);
}

/* Rank 1 of 3 fails its k-th allocation and says so. */
typedef struct failure {
  long k;
  long n_allocations; /* of rank 1, from beginning to end */
  bool failed[3];
} failure;

static kf_status begin_and_step(kf_comm *comm) {
  train_options o = options_of(comm, "g2b2i256f1s0,g1b1i512f4s1");
  train_result result;
  rank_end e;
  kf_status status = open_end(&o, true, &e);
  if (status) return status;
  for (int64_t s = 0; s < 3 && !status; s++) status = train_run_step(e.job, e.variant, s, &result);
  close_end(&e);
  return status;
}

/* Nobody hangs, and who returns knows which rank it was. */
static void run_failure(kf_comm *comm, void *arg) {
  failure *f = arg;
  int32_t me = kf_comm_rank(comm);
  if (me == 1) fail_alloc(f->k);
  kf_status status = begin_and_step(comm);
  if (me == 1) f->n_allocations = fail_alloc(0);
  if (me == 1 && status) {
    assert(status == KF_ENOMEM && strstr(kf_last_error(), "of memory"));
    kf_comm_fail(comm, kf_last_error());
  } else if (status) {
    assert(status != KF_ETIMEOUT && strstr(kf_last_error(), "rank 1"));
  }
  f->failed[me] = status != KF_OK;
}

static void test_memory(void **state) {
  (void)state;
  failure f = {0};
  bool failed = true;
  while (failed) {
    f.k++;
    ranks_run(3, TIMEOUT_S, run_failure, &f);
    failed = f.n_allocations >= f.k;
    for (int r = 0; r < 3; r++) assert_int_equal(f.failed[r], failed);
  }
  assert_true(f.k > 20);
}

/* A rank gives up, or is not there, while others are in a step: they return. */
static void run_leaving(kf_comm *comm, void *arg) {
  const bool *says_so = arg;
  train_options o = options_of(comm, three);
  train_result result;
  rank_end e;
  EXPECT_OK(open_end(&o, true, &e));
  EXPECT_OK(train_run_step(e.job, e.variant, 0, &result));
  if (!*says_so) EXPECT_OK(kf_comm_set_timeout(comm, 1));
  if (kf_comm_rank(comm) != 2)
    EXPECT(train_run_step(e.job, e.variant, 1, &result), *says_so ? KF_ECOMM : KF_ETIMEOUT,
           *says_so ? "rank 2 failed: it had enough" : NULL);
  else if (*says_so)
    kf_comm_fail(comm, "it had enough");
  close_end(&e);
}

static void test_leaving(void **state) {
  (void)state;
  ranks_run(3, TIMEOUT_S, run_leaving, &(bool){true});
  ranks_run(3, TIMEOUT_S, run_leaving, &(bool){false});
}

/* What was refused leaves all as it was. */
static void test_refusals(void **state) {
  (void)state;
  kf_comm *comm;
  rank_end e = lone_end(&comm);
  train_result result = {.step = 5};
  train_job *job = NULL;
  assert_int_equal(train_run_step(e.job, e.variant, -1, &result), KF_EINVAL);
  assert_string_equal(kf_last_error(), "train data: step -1 wanted, expected 0 or more");
  assert_int_equal(result.step, 5); /* written only on success */
  assert_int_equal(train_run_step(e.job, e.variant, 0, &result), KF_OK);
  train_options o = options_of(comm, "nope");
  assert_int_equal(train_job_create(&o, &job), KF_EINVAL);
  assert_non_null(strstr(kf_last_error(), "mix \"nope\""));
  o = options_of(comm, three);
  o.model.heads = 3;
  assert_int_equal(train_job_create(&o, &job), KF_EINVAL);
  assert_non_null(strstr(kf_last_error(), "width 32 with 3 heads"));
  o = options_of(comm, three);
  o.isa = (kf_isa)9;
  assert_int_equal(train_job_create(&o, &job), KF_EINVAL);
  assert_null(job);
  train_job_free(NULL);
  train_variant_free(NULL);
  close_end(&e);
  kf_comm_free(comm);
}

/* Once the longest step was, nothing is allocated. */
static void run_warm(kf_comm *comm, void *arg) {
  (void)arg;
  train_options o = options_of(comm, "g2b2i256f1s0,g1b1i512f4s1");
  train_result result;
  rank_end e;
  EXPECT_OK(open_end(&o, true, &e));
  for (int64_t s = 0; s < 12; s++) EXPECT_OK(train_run_step(e.job, e.variant, s % 4, &result));
  fail_alloc(0);
  for (int64_t s = 0; s < 8; s++) EXPECT_OK(train_run_step(e.job, e.variant, s % 4, &result));
  long n = fail_alloc(0);
  if (n) fprintf(stderr, "rank %d: %ld allocations\n", (int)kf_comm_rank(comm), n);
  assert(n == 0);
  EXPECT_OK(kf_comm_barrier(comm));
  close_end(&e);
}

static void test_no_allocation(void **state) {
  (void)state;
  ranks_run(3, TIMEOUT_S, run_warm, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_learns),     cmocka_unit_test(test_same_on_any_ranks),
    cmocka_unit_test(test_by_hand),    cmocka_unit_test(test_little_to_do),
    cmocka_unit_test(test_clipping),   cmocka_unit_test(test_warmup),
    cmocka_unit_test(test_decay),      cmocka_unit_test(test_average),
    cmocka_unit_test(test_step_clips), cmocka_unit_test(test_check_ranks),
    cmocka_unit_test(test_memory),     cmocka_unit_test(test_leaving),
    cmocka_unit_test(test_refusals),   cmocka_unit_test(test_no_allocation),
  };
  openblas_set_num_threads(1);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
