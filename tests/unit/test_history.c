/* SPDX-License-Identifier: Apache-2.0 */
/* What is learned from times: predictions, their derivatives, and the law that comes of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "dice.h"
#include "learn/history.h"
#include "simulated.h"

enum { MOST_RANKS = 6, MOST_SEQS = 40 };

/* A history, a planner that never changes its mind, and the truth. */
typedef struct rig {
  kfi_history h;
  kfi_buffer memory;
  kf_planner *planner;
  kf_batch batch;
  const kf_plan *plan;
  int64_t rank_off[MOST_RANKS + 1], len[MOST_SEQS];
  double factor[MOST_SEQS];
  kf_profile profile[MOST_SEQS];
  training truth; /* its scheduler is not used */
} rig;

static void lay(kfi_history *h, kfi_buffer *memory, int32_t n_ranks) {
  kfi_layout layout = {0};
  h->n_ranks = n_ranks;
  kfi_history_lay(h, &layout);
  layout.base = kfi_buffer_reserve(memory, layout.n_bytes);
  assert_non_null(layout.base);
  memset(layout.base, 0, memory->n_bytes);
  layout.n_bytes = 0;
  kfi_history_lay(h, &layout);
}

/* A planner of flux; the history starts from A and B times `off`. */
static rig *rig_create(int32_t n_ranks, const char *cluster, double off, const double *speed) {
  rig *g = calloc(1, sizeof *g);
  kf_planner_options o = {0};
  kf_cost start;
  assert_non_null(g);
  if (kf_cost_preset("flux", cluster, n_ranks, 0.4, &o.cost)) fail_msg("%s", kf_last_error());
  o.speed = speed;
  if (kf_planner_create(&o, &g->planner)) fail_msg("%s", kf_last_error());
  start = o.cost;
  start.linear_s *= off;
  start.quadratic_s *= off;
  lay(&g->h, &g->memory, n_ranks);
  kfi_history_start(&g->h, &start, speed);
  g->truth.clock.cost = o.cost;
  for (int r = 0; r < TRAINING_RANKS; r++) g->truth.speed[r] = g->truth.stretch[r] = 1;
  return g;
}

static void rig_free(rig *g) {
  kf_planner_free(g->planner);
  kfi_buffer_free(&g->memory);
  free(g);
}

/* Lengths of all kinds; `kinds`: with profiles, images and videos of two sizes. */
static void draw(rig *g, dice *d, bool kinds) {
  int64_t n = 0;
  for (int32_t r = 0; r < g->h.n_ranks; r++) {
    g->rank_off[r] = n;
    for (int64_t k = 2 + dice_int(d, 4); k > 0; k--, n++) {
      bool video = dice_one_in(d, 3);
      g->len[n] = video ? 2000 + dice_int(d, 18000) : 100 + dice_int(d, 3000);
      g->factor[n] = 1;
      g->profile[n] = (kf_profile){video ? KF_KIND_VIDEO : KF_KIND_IMAGE, video ? 512 : 256, 0};
    }
  }
  g->rank_off[g->h.n_ranks] = n;
  g->batch = (kf_batch){.n_ranks = g->h.n_ranks,
                        .n_seqs = n,
                        .rank_off = g->rank_off,
                        .len = g->len,
                        .factor = g->factor,
                        .profile = kinds ? g->profile : NULL};
}

/* Plan, and what it truly takes. */
static void plan(rig *g) {
  if (kf_planner_plan(g->planner, &g->batch, &g->plan)) fail_msg("%s", kf_last_error());
  kfi_history_load(&g->h, &g->batch, g->plan);
  training_clock(&g->truth, &g->batch, g->plan);
}

static bool observe(rig *g) {
  for (int32_t r = 0; r < g->h.n_ranks; r++) g->h.seconds[r] = training_said(&g->truth, r);
  g->truth.step++;
  return kfi_history_observe(&g->h);
}

/* Whole steps, with a refit every fifth. */
static void learn(rig *g, dice *d, int n, bool kinds) {
  for (int i = 0; i < n; i++) {
    draw(g, d, kinds);
    plan(g);
    observe(g);
    if (g->truth.step % 5 == 0) kfi_history_refit(&g->h);
  }
}

static void within(const char *what, double got, double want, double share) {
  if (!(fabs(got - want) <= share * fabs(want)))
    fail_msg("%s is %.6g, expected %.6g within %g%%", what, got, want, 100 * share);
}

/* --------------------------------------------------------------------- classes */

static void test_classes(void **state) {
  (void)state;
  const struct {
    kf_profile profile;
    int32_t kind, resolution;
  } cases[] = {
    {{0, 0, 0}, KF_KIND_UNKNOWN, 0},        {{0, 0, 1}, KF_KIND_IMAGE, 0},
    {{0, 0, 2}, KF_KIND_VIDEO, 0},          {{0, 256, 85}, KF_KIND_VIDEO, 256},
    {{1, 1, 9}, KF_KIND_IMAGE, 256},        {{1, 383, 0}, KF_KIND_IMAGE, 256},
    {{1, 384, 0}, KF_KIND_IMAGE, 512},      {{2, 767, 0}, KF_KIND_KEYFRAMES, 512},
    {{2, 768, 0}, KF_KIND_KEYFRAMES, 1024}, {{3, 1535, 1}, KF_KIND_VIDEO, 1024},
    {{3, 1536, 0}, KF_KIND_VIDEO, 2048},    {{3, 3071, 0}, KF_KIND_VIDEO, 2048},
    {{3, 3072, 0}, KF_KIND_VIDEO, 4096},    {{3, INT32_MAX, 0}, KF_KIND_VIDEO, 4096},
    {{0, 512, 0}, KF_KIND_UNKNOWN, 512},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int32_t kind, resolution, c = kfi_class(&cases[i].profile);
    assert_true(c >= 0 && c < KFI_CLASSES);
    kfi_class_name(c, &kind, &resolution);
    assert_int_equal(kind, cases[i].kind);
    assert_int_equal(resolution, cases[i].resolution);
  }
  /* names and numbers are one to one */
  for (int32_t c = 0; c < KFI_CLASSES; c++) {
    kf_profile p = {0};
    kfi_class_name(c, &p.kind, &p.resolution);
    assert_int_equal(kfi_class(&p), c);
  }
  assert_int_equal(kfi_class(&(kf_profile){0, 0, 0}), 0);
}

/* ------------------------------------------------------------------ prediction */

/* Any law, set by hand. */
static void random_law(rig *g, dice *d) {
  kfi_law *law = &g->h.law;
  law->linear_s *= dice_real(d, 0.5, 2);
  law->quadratic_s *= dice_real(d, 0.5, 2);
  law->constant_tokens = dice_real(d, 0, 200);
  law->overhead_tokens = dice_real(d, 0, 2000);
  law->comm_scale = dice_real(d, 0.2, 3);
  for (int32_t s = 0; s < g->h.n_slots; s++)
    if (g->h.class_of[s] != 0) law->correction[s] = dice_real(d, -0.5, 0.5);
  for (int32_t r = 0; r < g->h.n_ranks; r++) g->h.slow[r] = dice_real(d, -0.7, 0.7);
  kfi_history_refresh(&g->h);
}

/* The sum of the header, chunk by chunk. */
static double obvious(const rig *g, int32_t rank) {
  const kfi_law *law = &g->h.law;
  double sum = 0;
  for (int64_t i = 0; i < g->plan->n_chunks; i++) {
    const kf_chunk *c = &g->plan->chunk[i];
    if (c->destination != rank || (c->length == 0 && c->heads == 0)) continue;
    double l = (double)g->len[c->seq];
    int32_t s = g->batch.profile ? g->h.slot_of[kfi_class(&g->profile[c->seq])] : 0;
    sum += g->factor[c->seq] * exp(law->correction[s]) *
           (law->linear_s * (double)c->length +
            law->quadratic_s * l * l * (double)c->heads / g->plan->heads +
            law->linear_s * law->constant_tokens);
  }
  if (!(sum > 0)) return 0;
  return exp(g->h.slow[rank]) * (sum + law->overhead_tokens * law->linear_s) +
         law->comm_scale * g->plan->comm_s[rank];
}

static void test_prediction(void **state) {
  (void)state;
  dice d = {1};
  for (int i = 0; i < 40; i++) {
    rig *g = rig_create(1 + (int32_t)dice_int(&d, MOST_RANKS), i % 2 ? "free" : NULL, 1, NULL);
    draw(g, &d, i % 3 > 0);
    for (int64_t k = 0; k < g->batch.n_seqs; k++) {
      if (i % 4 == 0) g->factor[k] = dice_real(&d, 0.3, 3);
      if (dice_one_in(&d, 10)) g->len[k] = 0;
    }
    plan(g);
    for (int32_t r = 0; r < g->h.n_ranks; r++) /* what the plan itself predicts */
      within("the first prediction", g->h.predicted_s[r],
             g->plan->compute_s[r] + g->plan->comm_s[r], 1e-12);
    random_law(g, &d);
    plan(g);
    for (int32_t r = 0; r < g->h.n_ranks; r++)
      within("a prediction", g->h.predicted_s[r], obvious(g, r), 1e-12);
    rig_free(g);
  }
}

static double *parameter(kfi_history *h, int i) {
  double *of[] = {&h->law.linear_s, &h->law.quadratic_s, &h->law.constant_tokens,
                  &h->law.overhead_tokens, &h->law.comm_scale};
  return i < KFI_FIRST_CLASS ? of[i] : &h->law.correction[i - KFI_FIRST_CLASS];
}

/* Log of the predicted time with parameter i moved by `by`: A and B by a factor, others added
** to. */
static double moved(rig *g, int i, int32_t rank, double by) {
  double *p = i < 0 ? &g->h.slow[rank] : parameter(&g->h, i), kept = *p;
  *p = i == KFI_LINEAR || i == KFI_QUADRATIC ? kept * exp(by) : kept + by;
  kfi_history_refresh(&g->h);
  kfi_history_load(&g->h, &g->batch, g->plan);
  double y = log(g->h.predicted_s[rank]);
  *p = kept;
  kfi_history_refresh(&g->h);
  return y;
}

/* Rows are derivatives of the logarithm: compare with differences. */
static void test_derivatives(void **state) {
  (void)state;
  dice d = {2};
  for (int i = 0; i < 12; i++) {
    rig *g = rig_create(3, i % 2 ? "free" : NULL, 1, NULL);
    draw(g, &d, i % 3 > 0);
    plan(g);
    observe(g);         /* the first time sets the level */
    g->h.n_steps = 100; /* and the law is not followed closely any more */
    random_law(g, &d);
    draw(g, &d, i % 3 > 0);
    plan(g);
    kfi_law law = g->h.law;
    observe(g);
    assert_memory_equal(&law, &g->h.law, sizeof law);
    for (int32_t r = 0; r < 3; r++) {
      const double *x = g->h.row_x + (r * KFI_RECENT + 1) * KFI_PARAMS;
      for (int k = -1; k < g->h.regression.n; k++) {
        double step = k == KFI_CONSTANT ? 0.1 : k == KFI_OVERHEAD ? 1 : 1e-4;
        double slope = (moved(g, k, r, step) - moved(g, k, r, -step)) / (2 * step);
        double got = k < 0 ? g->h.row_a[r * KFI_RECENT + 1] : x[k];
        if (!(fabs(got - slope) <= 1e-6 * fabs(slope) + 1e-10))
          fail_msg("rank %d, parameter %d: derivative %.9g, expected %.9g", (int)r, k, got, slope);
      }
    }
    rig_free(g);
  }
}

/* ------------------------------------------------------------------------ learn */

/* The first times set the level, whatever it was. */
static void test_calibration(void **state) {
  (void)state;
  static const double off[] = {1e-3, 1, 1e3, 1e9, 1e-9};
  for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
    dice d = {3};
    rig *g = rig_create(4, "free", off[i], NULL);
    learn(g, &d, 1, false);
    within("A after one step", g->h.law.linear_s, g->truth.clock.cost.linear_s, 1e-9);
    within("B after one step", g->h.law.quadratic_s, g->truth.clock.cost.quadratic_s, 1e-9);
    learn(g, &d, 30, false);
    within("A", g->h.law.linear_s, g->truth.clock.cost.linear_s, 1e-3);
    rig_free(g);
  }
}

/* A truth other than the start in everything. */
static void other_truth(rig *g) {
  kf_cost *t = &g->truth.clock.cost;
  t->linear_s *= 1.4;
  t->quadratic_s *= 2.8;
  t->constant_s = 150 * t->linear_s;
  g->truth.clock.comm_scale = 1.5;
}

static void expect_truth(const rig *g, double share) {
  const kf_cost *t = &g->truth.clock.cost;
  const kfi_law *law = &g->h.law;
  within("A", law->linear_s, t->linear_s, share);
  within("B", law->quadratic_s, t->quadratic_s, share);
  if (!(fabs(law->constant_tokens * law->linear_s - t->constant_s) <
        2 * share * 500 * t->linear_s)) /* of a sequence of some thousand tokens */
    fail_msg("C is %.4g tokens", law->constant_tokens);
}

static void test_learns(void **state) {
  (void)state;
  static const double noise[] = {0, 0.03};
  for (int i = 0; i < 2; i++) {
    for (uint64_t seed = 1; seed <= 4; seed++) {
      dice d = {seed};
      rig *g = rig_create(4, NULL, 1, NULL);
      other_truth(g);
      g->truth.clock.seed = seed;
      g->truth.clock.noise = noise[i];
      learn(g, &d, 200, false);
      expect_truth(g, i ? 0.06 : 0.03);
      within("the price of moving data", g->h.law.comm_scale, 1.5, i ? 0.5 : 0.1);
      for (int32_t r = 0; r < 4; r++) assert_true(fabs(g->h.slow[r]) < 0.02);
      if (i) within("noise", g->h.noise, 0.03, 0.4);
      if (i) within("scatter", g->h.scatter, 0.03, 0.4);
      rig_free(g);
    }
  }
}

/* Videos cost 30% more than the cost says, and images do not. */
static void test_learns_corrections(void **state) {
  (void)state;
  static const double noise[] = {0, 0.03};
  for (int i = 0; i < 2; i++) {
    dice d = {5};
    rig *g = rig_create(4, NULL, 1, NULL);
    g->truth.clock.kind_factor[KF_KIND_VIDEO] = 1.3;
    g->truth.clock.noise = noise[i];
    learn(g, &d, 200, true);
    int32_t video = g->h.slot_of[kfi_class(&(kf_profile){KF_KIND_VIDEO, 512, 0})];
    int32_t image = g->h.slot_of[kfi_class(&(kf_profile){KF_KIND_IMAGE, 256, 0})];
    assert_true(video > 0 && image > 0 && g->h.n_slots == 3);
    /* what the two differ by; their level, and a part of B, is the law's to say */
    double l = 8000, a = g->h.law.linear_s, b = g->h.law.quadratic_s;
    double says = exp(g->h.law.correction[video]) * (a * l + b * l * l);
    within("a video", says, 1.3 * kf_cost_work(&g->truth.clock.cost, (int64_t)l), i ? 0.05 : 0.03);
    l = 1500;
    says = exp(g->h.law.correction[image]) * (a * l + b * l * l + a * g->h.law.constant_tokens);
    within("an image", says, kf_cost_work(&g->truth.clock.cost, (int64_t)l), i ? 0.06 : 0.03);
    for (int32_t s = 1; s < 3; s++) assert_true(fabs(g->h.law.correction[s]) < 0.3);
    rig_free(g);
  }
}

/* Rank 0 always has the long sequence. B is wrong by a factor of 2: the rank is not. */
static void test_long_is_not_slow(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 4; seed++) {
    dice d = {seed};
    rig *g = rig_create(4, "free", 1, NULL);
    kf_planner_options o = {.max_chunk_size = 0};
    kf_bags *bags; /* of one: everything stays where it is put */
    kf_planner_free(g->planner);
    assert_int_equal(kf_cost_preset("flux", "free", 4, 0.4, &o.cost), KF_OK);
    assert_int_equal(kf_bags_parse("[1]", 4, &bags), KF_OK);
    o.bags = bags;
    o.budget = 1;
    assert_int_equal(kf_planner_create(&o, &g->planner), KF_OK);
    g->truth.clock.cost.quadratic_s *= 2;
    g->truth.clock.noise = 0.03;
    g->truth.clock.seed = seed;
    for (int i = 0; i < 120; i++) {
      int64_t n = 0;
      for (int32_t r = 0; r < 4; r++) {
        g->rank_off[r] = n;
        for (int k = 0; k < (r ? 6 : 1); k++, n++) {
          g->len[n] = r ? 500 + dice_int(&d, 1000) : 14000 + dice_int(&d, 4000);
          g->factor[n] = 1;
        }
      }
      g->rank_off[4] = n;
      g->batch = (kf_batch){
        .n_ranks = 4, .n_seqs = n, .rank_off = g->rank_off, .len = g->len, .factor = g->factor};
      plan(g);
      observe(g);
      if (i % 5 == 4) kfi_history_refit(&g->h);
    }
    for (int32_t r = 0; r < 4; r++)
      if (!(fabs(g->h.slow[r]) < 0.05)) fail_msg("rank %d is called slow: %.3f", r, g->h.slow[r]);
    double l = 16000, b = g->h.law.quadratic_s;
    within("a long sequence", g->h.law.linear_s * l + b * l * l,
           kf_cost_work(&g->truth.clock.cost, (int64_t)l), 0.05);
    kf_bags_free(bags);
    rig_free(g);
  }
}

/* A slow rank is, and the cost is not. */
static void test_learns_speeds(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 4; seed++) {
    dice d = {seed};
    static const double speed[4] = {1, 2, 1, 0.5};
    rig *g = rig_create(4, NULL, 1, seed % 2 ? NULL : speed);
    for (int r = 0; seed % 2 == 0 && r < 4; r++) g->truth.speed[r] = speed[r];
    g->truth.clock.noise = 0.03;
    g->truth.clock.seed = seed;
    learn(g, &d, 60, false);
    g->truth.speed[2] *= 0.6;
    learn(g, &d, 60, false);
    within("a slow rank", exp(-g->h.slow[2] + g->h.slow_start[2]), 0.6, 0.04);
    for (int r = 0; r < 4; r++)
      if (r != 2) within("another", exp(-g->h.slow[r] + g->h.slow_start[r]), 1, 0.03);
    within("A", g->h.law.linear_s, g->truth.clock.cost.linear_s, 0.08);
    rig_free(g);
  }
}

/* ----------------------------------------------------------------------- limits */

/* However absurd the times, what is learned stays possible, and comes back afterwards. */
static void test_limits(void **state) {
  (void)state;
  static const double stretch[] = {1e6, 1e-6, 1e-300, 1e-30};
  for (size_t i = 0; i < sizeof stretch / sizeof *stretch; i++) {
    for (int from_start = 0; from_start < 2; from_start++) {
      dice d = {7};
      rig *g = rig_create(3, NULL, 1, NULL);
      if (!from_start) learn(g, &d, 30, true);
      for (int k = 0; k < 30; k++) {
        for (int r = 0; r < 3; r++)
          g->truth.stretch[r] = dice_one_in(&d, 2) ? stretch[i] : dice_real(&d, 0.1, 10);
        learn(g, &d, 1, true);
        const kfi_law *law = &g->h.law;
        assert_true(law->linear_s > 0 && isfinite(law->linear_s));
        assert_true(law->quadratic_s > 0 && isfinite(law->quadratic_s));
        assert_true(law->constant_tokens >= 0 && law->constant_tokens <= 1e5 * (1 + 1e-9));
        assert_true(law->overhead_tokens >= 0 && isfinite(law->overhead_tokens));
        assert_true(law->comm_scale >= 0 && law->comm_scale <= 20 * (1 + 1e-9));
        for (int s = 0; s < g->h.n_slots; s++)
          assert_true(fabs(law->correction[s]) <= log(4) * (1 + 1e-9));
        for (int r = 0; r < 3; r++) assert_true(fabs(g->h.slow[r]) <= 2 * log(64) * (1 + 1e-9));
        assert_true(g->h.noise > 0 && isfinite(g->h.noise));
        assert_true(g->h.scatter > 0 && isfinite(g->h.scatter));
      }
      for (int r = 0; r < 3; r++) g->truth.stretch[r] = 1;
      learn(g, &d, 300, true);
      draw(g, &d, true);
      plan(g);
      for (int r = 0; r < 3; r++)
        within("later", g->h.predicted_s[r], g->truth.times[r].true_s, 0.15);
      rig_free(g);
    }
  }
}

/* One rank has nobody to be slower than: whatever changes is the cost. */
static void test_one_rank(void **state) {
  (void)state;
  dice d = {8};
  rig *g = rig_create(1, NULL, 1, NULL);
  g->truth.clock.noise = 0.03;
  learn(g, &d, 60, false);
  g->truth.speed[0] = 0.5;
  learn(g, &d, 60, false);
  assert_true(fabs(g->h.slow[0]) < 1e-6);
  within("A", g->h.law.linear_s, 2 * g->truth.clock.cost.linear_s, 0.1);
  draw(g, &d, false);
  plan(g);
  within("the next time", g->h.predicted_s[0], g->truth.times[0].true_s, 0.05);
  rig_free(g);
}

/* Without work or without times nothing is learned of a rank, and nothing else suffers. */
static void test_missing(void **state) {
  (void)state;
  dice d = {9};
  rig *g = rig_create(4, "free", 1, NULL);
  other_truth(g);
  for (int i = 0; i < 200; i++) {
    draw(g, &d, false);
    plan(g);
    for (int32_t r = 0; r < 4; r++) g->h.seconds[r] = r == 3 ? 0 : training_said(&g->truth, r);
    if (i % 10 == 0) memset(g->h.seconds, 0, 4 * sizeof(double));
    int64_t before = g->h.n_steps;
    kfi_history_observe(&g->h);
    assert_int_equal(g->h.n_steps, before + (i % 10 != 0));
    if (i % 5 == 0) kfi_history_refit(&g->h);
  }
  expect_truth(g, 0.03);
  assert_int_equal(g->h.n_rows[3], 0);
  assert_true(fabs(g->h.slow[3]) < 0.01);
  /* a step of nothing: whatever is said of it is not learned from */
  int64_t rows = g->h.n_rows[0];
  for (int32_t r = 0; r <= 4; r++) g->rank_off[r] = 0;
  g->batch.n_seqs = 0;
  plan(g);
  for (int32_t r = 0; r < 4; r++) {
    assert_true(g->h.predicted_s[r] == 0);
    g->h.seconds[r] = 1;
  }
  kfi_history_observe(&g->h);
  assert_int_equal(g->h.n_rows[0], rows);
  rig_free(g);
}

/* What was learned fades: after a change of B alone, the old B is gone in some memories. */
static void test_forgets(void **state) {
  (void)state;
  dice d = {10};
  rig *g = rig_create(4, NULL, 1, NULL);
  g->truth.clock.noise = 0.03;
  learn(g, &d, 300, false);
  double info = g->h.regression.info[0];
  assert_true(info < 4 * 64 * 1.1);        /* rows of four ranks, each fading over 64 steps */
  g->truth.clock.cost.quadratic_s *= 1.15; /* too little to be called a jump */
  learn(g, &d, 300, false);
  within("B", g->h.law.quadratic_s, g->truth.clock.cost.quadratic_s, 0.06);
  rig_free(g);
}

/* Before any time there is nothing to refit. */
static void test_nothing_yet(void **state) {
  (void)state;
  rig *g = rig_create(2, NULL, 1, NULL);
  kfi_law law = g->h.law;
  kfi_history_refit(&g->h);
  assert_memory_equal(&law, &g->h.law, sizeof law);
  assert_false(kfi_history_observe(&g->h));
  assert_int_equal(g->h.n_steps, 0);
  rig_free(g);
}

static void test_trust(void **state) {
  (void)state;
  assert_true(kfi_trust(0, 0) == 0 && kfi_trust(0, 1) == 0);
  assert_true(kfi_trust(0.3, 0.1) == 0 && kfi_trust(-0.29, 0.1) == 0);
  assert_true(kfi_trust(0.5, 0) == 0.5 && kfi_trust(-0.5, 0) == -0.5);
  for (double x = 0.01; x < 3; x += 0.01) {
    double t = kfi_trust(x, 0.1);
    assert_true(t >= 0 && t <= x && t == -kfi_trust(-x, 0.1));
    assert_true(kfi_trust(x + 0.01, 0.1) >= t);
  }
  assert_true(kfi_trust(1, 0.01) > 0.99);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_classes),          cmocka_unit_test(test_prediction),
    cmocka_unit_test(test_derivatives),      cmocka_unit_test(test_calibration),
    cmocka_unit_test(test_learns),           cmocka_unit_test(test_learns_corrections),
    cmocka_unit_test(test_long_is_not_slow), cmocka_unit_test(test_learns_speeds),
    cmocka_unit_test(test_limits),           cmocka_unit_test(test_one_rank),
    cmocka_unit_test(test_missing),          cmocka_unit_test(test_forgets),
    cmocka_unit_test(test_nothing_yet),      cmocka_unit_test(test_trust),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
