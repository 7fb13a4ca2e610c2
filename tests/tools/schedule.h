/* SPDX-License-Identifier: Apache-2.0 */
/*
** Random training jobs for a scheduler: what each rank brings to each step, and what it says of its
** time. The seed alone decides, so that every rank, and every scheduler of one process, can be fed
** the same. A scheduler that learns over a comm must then be, to the bit, one that was told all.
*/
#ifndef SCHEDULE_H
#define SCHEDULE_H

#include <inttypes.h>
#include <stdlib.h>

#include "dice.h"
#include "scheduler_wish.h"

/* One job, as one rank or one process sees it. It points into itself: do not copy it. */
typedef struct course {
  uint64_t seed;
  int number;
  int32_t rank; /* whose view it is; -1: all ranks in one process */
  bool failed;

  kf_config config;
  scheduler_wish options;
  int64_t n_steps, step;
  kf_cost truth; /* what the ranks take, and the scheduler is to learn */
  double kind_s[4], true_speed[WORLD_RANKS], noise;
  int64_t changes_at; /* from this step on the last rank is half as fast */
  bool wild;          /* some times are of any size that is not refused */

  world w; /* of the step: its sequences */
  kf_profile profile[WORLD_SEQS];
  bool has_factor[WORLD_RANKS], has_profile[WORLD_RANKS]; /* whether a rank brings them */
} course;

#define MUST(course, condition, ...)                                                               \
  do {                                                                                             \
    if (!(course)->failed && !(condition)) {                                                       \
      course_complain(course);                                                                     \
      printf(__VA_ARGS__);                                                                         \
      printf("\n");                                                                                \
      fflush(stdout);                                                                              \
    }                                                                                              \
  } while (0)

static inline void course_complain(course *c) {
  static const char *const models[] = {"history", "static", "modelled"};
  c->failed = true;
  printf("seed %" PRIu64 ", case %d, step %d of %d, %d ranks", c->seed, c->number, (int)c->step,
         (int)c->n_steps, (int)c->options.n_ranks);
  if (c->rank >= 0) printf(", rank %d", (int)c->rank);
  printf(" (%s, interval %d, bags %s%s%s%s%s): ", models[c->config.cost_model],
         (int)c->config.rebalance_interval, *c->config.bag_size ? c->config.bag_size : "auto",
         c->options.cost ? ", a cost" : "", c->options.speed ? ", speeds" : "",
         c->options.mem_tokens || c->config.mem_tokens ? ", caps" : "", c->wild ? ", wild" : "");
}

static inline dice course_dice(const course *c, int64_t salt) {
  dice d = {c->seed * 1000003 + (uint64_t)c->number * 65537 + (uint64_t)c->step * 257};
  d.state = dice_next(&d) + (uint64_t)salt;
  return d;
}

/* ---------------------------------------------------------------------- the job */

static inline void course_options(course *c, dice *d, int32_t n_ranks) {
  world *w = &c->w;
  w->options = (kf_planner_options){0};
  world_batch(d, w, n_ranks);
  world_cost(d, w, n_ranks);
  world_caps(d, w);
  c->config.rebalance_interval = 1 + dice_int(d, 7);
  c->config.cost_model = dice_one_in(d, 2) ? KF_COST_HISTORY : (kf_cost_model)dice_int(d, 3);
  c->config.max_chunk_size = w->options.max_chunk_size;
  c->config.budget_us = dice_one_in(d, 8) ? 0 : 1 + (double)dice_int(d, 20);
  if (dice_one_in(d, 4)) c->config.affinity_policy = KF_AFFINITY_SPREAD;
  if (dice_one_in(d, 3)) {
    world_bags(d, w, n_ranks);
    snprintf(c->config.bag_size, sizeof c->config.bag_size, "%s", w->spec);
    kf_bags_free(w->bags);
  }
  c->options = (scheduler_wish){.n_ranks = n_ranks, .config = &c->config};
  if (w->options.mem_tokens && dice_one_in(d, 2))
    c->options.mem_tokens = w->cap;
  else if (w->options.mem_tokens)
    c->config.mem_tokens = w->cap[0];
  if (c->config.cost_model == KF_COST_MODELLED || dice_one_in(d, 2))
    c->options.cost = &w->options.cost;
  else if (kf_cost_preset("flux", NULL, n_ranks, 0.4, &w->options.cost))
    abort();
  if (c->options.cost && dice_one_in(d, 4)) { /* a fit may find no linear or no quadratic term */
    if (dice_one_in(d, 2))
      w->options.cost.linear_s = 0;
    else
      w->options.cost.quadratic_s = 0;
  }
  if (dice_one_in(d, 3)) {
    for (int32_t r = 0; r < n_ranks; r++) w->speed[r] = dice_real(d, 0.5, 2.2);
    if (dice_one_in(d, 4)) w->speed[dice_int(d, n_ranks)] = dice_one_in(d, 2) ? 1e-6 : 1e6;
    c->options.speed = w->speed;
  }
}

static inline void course_begin(course *c, uint64_t seed, int number, int32_t n_ranks) {
  *c = (course){.seed = seed, .number = number, .rank = -1};
  dice d = course_dice(c, 1);
  course_options(c, &d, n_ranks);
  c->n_steps = 8 + dice_int(&d, 48);
  c->truth = c->w.options.cost;
  double scale = dice_one_in(&d, 3) ? dice_real(&d, 1, 3000) : 1; /* another clock or machine */
  c->truth.linear_s = fmax(c->truth.linear_s, c->truth.quadratic_s) * scale;
  c->truth.linear_s *= dice_real(&d, 0.7, 1.5);
  c->truth.quadratic_s *= scale * dice_real(&d, 0.5, 3);
  c->truth.constant_s += dice_real(&d, 0, 300) * c->truth.linear_s;
  for (int i = 0; i < 4; i++) c->kind_s[i] = i ? dice_real(&d, 0.7, 1.5) : 1;
  for (int32_t r = 0; r < n_ranks; r++) {
    c->true_speed[r] = c->options.speed ? c->w.speed[r] : 1;
    if (dice_one_in(&d, 4)) c->true_speed[r] *= dice_real(&d, 0.4, 1.2);
  }
  c->noise = dice_one_in(&d, 4) ? 0 : dice_real(&d, 0.001, 0.1);
  c->changes_at = dice_one_in(&d, 2) ? dice_int(&d, 50) : INT64_MAX;
  c->wild = dice_one_in(&d, 4);
}

/* The sequences of a step. Where a rank brings no factors or profiles, they are 1 and unknown. */
static inline void course_turn(course *c, int64_t step) {
  static const int32_t sides[] = {0, 200, 256, 384, 512, 1000, 1536, 2048, 4096, 9000};
  world *w = &c->w;
  bool factors = false, profiles = false;
  int32_t n = c->options.n_ranks;
  c->step = step;
  dice d = course_dice(c, 2);
  int64_t often = 1 + dice_int(&d, 4);
  world_batch(&d, w, n);
  for (int32_t r = 0; r < n; r++) {
    factors |= c->has_factor[r] = dice_one_in(&d, 2 * often);
    profiles |= c->has_profile[r] = dice_one_in(&d, often);
    for (int64_t i = w->rank_off[r]; i < w->rank_off[r + 1]; i++) {
      kf_profile p;
      p.kind = (int32_t)dice_int(&d, 4);
      p.resolution = sides[dice_int(&d, 10)];
      p.frames = (int32_t)dice_int(&d, 3);
      c->profile[i] = c->has_profile[r] ? p : (kf_profile){0};
      if (!c->has_factor[r]) w->factor[i] = 1;
    }
  }
  w->batch.factor = factors ? w->factor : NULL;
  w->batch.profile = profiles ? c->profile : NULL;
}

/* What a rank brings to the step. */
static inline kf_rank_batch course_share(const course *c, int32_t rank) {
  const world *w = &c->w;
  int64_t first = w->rank_off[rank];
  return (kf_rank_batch){.n_seqs = w->rank_off[rank + 1] - first,
                         .len = w->len + first,
                         .factor = c->has_factor[rank] ? w->factor + first : NULL,
                         .profile = c->has_profile[rank] ? c->profile + first : NULL};
}

/* ------------------------------------------------------------------------ times */

static inline double course_seconds(const course *c, const kf_plan *plan, int32_t rank) {
  const kf_sim_spell later = {plan->n_ranks - 1, 2, c->changes_at, INT64_MAX};
  const kf_sim_clock clock = {
    .cost = c->truth,
    .kind_factor = {c->kind_s[0], c->kind_s[1], c->kind_s[2], c->kind_s[3]},
    .speed = c->true_speed,
    .slow = &later,
    .n_slow = 1};
  kf_sim_times times[WORLD_RANKS];
  if (kf_sim_step(&clock, c->step, &c->w.batch, plan, times)) abort();
  return times[rank].true_s;
}

/* What no scheduler takes. */
static inline void course_nonsense(course *c, kf_scheduler *s, int32_t rank, bool had_work) {
  static const double never[] = {NAN, -1, -1e-300, 5e-324, 9e-10, 86401, INFINITY, -INFINITY};
  static const kf_counters below[] = {
    {.memory_bytes = -1}, {.memory_limit_bytes = -1}, {.tokens = -1},     {.samples = INT64_MIN},
    {.plan_s = -1},       {.route_s = NAN},           {.compute_s = 1e9}, {.wait_s = -INFINITY}};
  int32_t n = c->options.n_ranks;
  for (int i = 0; i < 8; i++)
    MUST(c, kf_scheduler_update_stats(s, rank, never[i], NULL) == KF_EINVAL, "%g s taken",
         never[i]);
  for (int i = 0; i < 8; i++)
    MUST(c, kf_scheduler_update_stats(s, rank, 1, &below[i]) == KF_EINVAL, "counters %d taken", i);
  MUST(c, kf_scheduler_update_stats(s, -1, 1, NULL) == KF_EINVAL, "rank -1 taken");
  MUST(c, kf_scheduler_update_stats(s, n, 1, NULL) == KF_EINVAL, "rank %d taken", (int)n);
  MUST(c, !had_work || kf_scheduler_update_stats(s, rank, 0, NULL) == KF_EINVAL, "0 s taken");
}

/* A rank says what it took of the plan (NULL: there is none), or does not. `nonsense`: it also says
** things that are refused, after which all must be as if it had not. */
static inline void course_say(course *c, kf_scheduler *s, const kf_plan *plan, int32_t rank,
                              bool nonsense) {
  static const double sizes[] = {86400, 3600, 1e-5, 1e-7, 1e-9};
  dice d = course_dice(c, 3 + rank);
  kf_counters counters = {.tokens = dice_int(&d, 1000), .wait_s = dice_real(&d, 0, 1)};
  counters.memory_bytes = dice_int(&d, 1 << 30);
  counters.memory_limit_bytes = dice_one_in(&d, 2) ? 1 << 30 : 0;
  bool counted = dice_one_in(&d, 3), twice = dice_one_in(&d, 10), silent = dice_one_in(&d, 8);
  double stretch = 1 + c->noise * (dice_real(&d, -1, 1) + dice_real(&d, -1, 1));
  double seconds = plan ? course_seconds(c, plan, rank) : 1;
  if (dice_one_in(&d, 25)) stretch *= dice_real(&d, 2, 40); /* a pause */
  if (seconds > 0) seconds = fmin(fmax(seconds * stretch, 1e-9), 86400);
  if (c->wild && dice_one_in(&d, 6)) seconds = sizes[dice_int(&d, 5)];
  bool bad = dice_one_in(&d, 6);
  if (nonsense && (bad || !plan)) course_nonsense(c, s, rank, plan && plan->hold_rows[rank] > 0);
  if (!plan) {
    MUST(c, kf_scheduler_update_stats(s, rank, seconds, NULL) == KF_EINVAL, "times of no step");
    return;
  }
  if (silent) return;
  kf_status status = KF_OK;
  if (twice) status = kf_scheduler_update_stats(s, rank, 17, &counters); /* replaced below */
  MUST(c, status == KF_OK, "17 s: %s", kf_last_error());
  status = kf_scheduler_update_stats(s, rank, seconds, counted ? &counters : NULL);
  MUST(c, status == KF_OK, "%g s: %s", seconds, kf_last_error());
}

/* ------------------------------------------------------------------- comparisons */

typedef struct saved {
  void *data;
  size_t n;
} saved;

static inline saved course_save(course *c, const kf_scheduler *s) {
  saved b = {NULL, 0};
  kf_status status = kf_scheduler_save(s, &b.data, &b.n);
  MUST(c, status == KF_OK, "save: %s", kf_last_error());
  return b;
}

static inline kf_scheduler *course_scheduler(course *c) {
  kf_scheduler *s = NULL;
  kf_status status = scheduler_create(&c->options, &s);
  MUST(c, status == KF_OK, "create: %s", kf_last_error());
  return s;
}

/* A fresh scheduler that goes on where s is now. */
static inline kf_scheduler *course_restore(course *c, const kf_scheduler *s) {
  saved b = course_save(c, s);
  kf_scheduler *fresh = course_scheduler(c);
  kf_status status = kf_scheduler_restore(fresh, "state", b.data, b.n);
  MUST(c, status == KF_OK, "%s", kf_last_error());
  free(b.data);
  return fresh;
}

/* Two schedulers hold the same, to the bit. `what` is the second. */
static inline void course_same(course *c, const kf_scheduler *a, const kf_scheduler *b,
                               const char *what) {
  saved x = course_save(c, a), y = course_save(c, b);
  MUST(c, kf_scheduler_hash(a) == kf_scheduler_hash(b), "%s has another hash", what);
  MUST(c, x.n == y.n && memcmp(x.data, y.data, x.n) == 0, "%s has another state", what);
  free(x.data);
  free(y.data);
}

/* Two schedulers show the same. */
static inline void course_same_metrics(course *c, const kf_scheduler *a, const kf_scheduler *b) {
  const kf_metrics *x = kf_scheduler_metrics(a), *y = kf_scheduler_metrics(b);
  size_t n = (size_t)x->n_ranks * sizeof(double);
  char *text[2] = {NULL, NULL};
  if (kf_metrics_json(x, &text[0]) || kf_metrics_json(y, &text[1])) abort();
  MUST(c, strcmp(text[0], text[1]) == 0, "other metrics:\n%s%s", text[0], text[1]);
  MUST(c, memcmp(x->speed, y->speed, n) == 0, "other speeds");
  MUST(c, memcmp(x->busy_s, y->busy_s, n) == 0, "other busy_s");
  MUST(c, memcmp(x->predicted_s, y->predicted_s, n) == 0, "other predicted_s");
  MUST(c, memcmp(&x->cost, &y->cost, sizeof x->cost) == 0, "another cost");
  for (int i = 0; i < 2; i++) free(text[i]);
}

/* What is learned is possible. */
static inline void course_check_learned(course *c, const kf_scheduler *s) {
  const kf_metrics *m = kf_scheduler_metrics(s);
  double all = kf_cost_work(&m->cost, 1000) / kf_cost_work(&c->truth, 1000);
  const double part[] = {m->cost.linear_s, m->cost.quadratic_s, m->cost.constant_s};
  char *text = NULL;
  for (int32_t r = 0; r < m->n_ranks; r++) {
    MUST(c, m->speed[r] >= 1e-6 && m->speed[r] <= 1e6, "speed of rank %d is %g", (int)r,
         m->speed[r]);
    MUST(c, m->predicted_s[r] >= 0 && isfinite(m->predicted_s[r]), "predicted %g s",
         m->predicted_s[r]);
  }
  for (int i = 0; i < 3; i++)
    MUST(c, part[i] >= 0 && isfinite(part[i]), "coefficient %d of the cost is %g", i, part[i]);
  MUST(c, all > 0 && (c->wild || (all > 1e-6 && all < 1e6)),
       "1000 tokens cost %g of what they should", all);
  for (int32_t i = 0; i < m->n_corrections; i++)
    MUST(c, m->correction[i].correction > 0.24 && m->correction[i].correction < 4.1,
         "a correction of %g", m->correction[i].correction);
  if (kf_metrics_json(m, &text)) abort();
  MUST(c, !strstr(text, "null"), "metrics that are not finite: %s", text); /* JSON has no NaN */
  free(text);
}

/* -------------------------------------------------------------------- over a comm */

/* Every rank's scheduler holds the same bytes. Collective. */
static inline void course_same_on_all(course *c, kf_comm *comm, const kf_scheduler *s) {
  uint64_t all[WORLD_RANKS];
  saved b = course_save(c, s);
  uint64_t mine = kf_hash_bytes(KF_HASH_START, b.data, b.n);
  free(b.data);
  kf_status status = kf_comm_gather(comm, &mine, sizeof mine, all);
  MUST(c, status == KF_OK, "gather: %s", kf_last_error());
  for (int32_t r = 0; !status && r < kf_comm_size(comm); r++)
    MUST(c, all[r] == mine, "rank %d's state is another one", (int)r);
}

/* One step of `online`, over the comm, and of `alone`, which is told everything. Collective. */
static inline void course_step(course *c, kf_step *step, kf_scheduler *online,
                               kf_scheduler *alone) {
  const kf_plan *plan = NULL, *want = NULL;
  const kf_batch *batch = NULL;
  kf_rank_batch mine = course_share(c, c->rank);
  kf_status status = kf_step_schedule(step, online, &mine, &batch, &plan);
  MUST(c, status == KF_OK || status == KF_EINFEASIBLE, "schedule: %s", kf_last_error());
  MUST(c, kf_scheduler_plan(alone, &c->w.batch, &want) == status, "alone: %s", kf_last_error());
  if (c->failed) return;
  if (plan) {
    MUST(c, kf_plan_check(plan, batch) == KF_OK, "%s", kf_last_error());
    MUST(c, plan->hash == want->hash, "another plan than alone");
  }
  MUST(c, kf_scheduler_hash(online) == kf_scheduler_hash(alone), "another hash than alone");
  course_same_metrics(c, online, alone);
  course_check_learned(c, online);
  course_say(c, online, plan, c->rank, true);
  for (int32_t r = 0; r < c->options.n_ranks; r++) course_say(c, alone, want, r, false);
}

/* Exchange the last times and compare all there is. Collective. */
static inline void course_settle(course *c, kf_comm *comm, kf_step *step, kf_scheduler *online,
                                 kf_scheduler *alone) {
  kf_status status = kf_step_settle(step, online);
  MUST(c, status == KF_OK, "settle: %s", kf_last_error());
  status = kf_scheduler_settle(alone);
  MUST(c, status == KF_OK, "settle: %s", kf_last_error());
  course_same(c, online, alone, "the one alone");
  course_same_metrics(c, online, alone);
  course_same_on_all(c, comm, online);
}

static inline void course_online(course *c, kf_comm *comm) {
  kf_step *step = NULL;
  kf_scheduler *online = course_scheduler(c), *alone = course_scheduler(c);
  kf_status status = kf_step_create(comm, 0, &step);
  MUST(c, status == KF_OK, "step: %s", kf_last_error());
  for (int64_t i = 0; i < c->n_steps && !c->failed; i++) {
    course_turn(c, i);
    dice d = course_dice(c, 1000);
    bool epoch = dice_one_in(&d, 8), settles = dice_one_in(&d, 6), restores = dice_one_in(&d, 2);
    if (epoch) kf_scheduler_new_epoch(online);
    if (epoch) kf_scheduler_new_epoch(alone);
    course_step(c, step, online, alone);
    if (settles && !c->failed) course_settle(c, comm, step, online, alone);
    if (settles && restores && !c->failed) {
      kf_scheduler *fresh = course_restore(c, online);
      kf_scheduler_free(online);
      online = fresh;
      fresh = course_restore(c, alone); /* metrics of before are not saved: of neither */
      kf_scheduler_free(alone);
      alone = fresh;
    }
  }
  if (!c->failed) course_settle(c, comm, step, online, alone);
  kf_step_free(step);
  kf_scheduler_free(online);
  kf_scheduler_free(alone);
}

/* `n_cases` random jobs, numbered by ranks; false: something did not hold, and was printed. */
static inline bool schedule_check(kf_comm *comm, uint64_t seed, int n_cases) {
  int32_t n = kf_comm_size(comm);
  bool failed = false;
  course *c = malloc(sizeof *c);
  if (!c) abort();
  for (int i = 0; i < n_cases && !failed; i++) {
    course_begin(c, seed, n * 100 + i, n);
    c->rank = kf_comm_rank(comm);
    course_online(c, comm);
    failed = c->failed;
    if (failed) kf_comm_fail(comm, "a check did not hold");
  }
  free(c);
  return !failed;
}

#endif
