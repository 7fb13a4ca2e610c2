/* SPDX-License-Identifier: Apache-2.0 */
/*
** scheduler SEED: random training jobs. What must hold for every one of them: two schedulers that
** are told the same are the same, to the bit, whatever nonsense one of them was also told and had
** refused; one that is saved, and restored into a fresh one at any step, goes on as it would have;
** plans are plans, what is learned is possible; and local ranks that each know their own times
** alone plan, learn and show what one process does that knows all.
*/
#include "schedule.h"

#include "ranks.h"

enum { N_CASES = 30, MOST_RANKS = 6, N_ONLINE = 3 };

/* A plan of a, b, and, where there is one, of the restored c. NULL: all say that there is none. */
static const kf_plan *plan_all(course *c, kf_scheduler *const s[3], const kf_plan *plan[3]) {
  kf_status status = kf_scheduler_plan(s[0], &c->w.batch, &plan[0]);
  MUST(c, status == KF_OK || status == KF_EINFEASIBLE, "%s", kf_last_error());
  for (int i = 1; i < 3 && s[i]; i++) {
    MUST(c, kf_scheduler_plan(s[i], &c->w.batch, &plan[i]) == status, "%s", kf_last_error());
    MUST(c, kf_scheduler_hash(s[i]) == kf_scheduler_hash(s[0]), "scheduler %d has another hash", i);
    MUST(c, status || plan[i]->hash == plan[0]->hash, "scheduler %d has another plan", i);
  }
  if (status || c->failed) return NULL;
  MUST(c, kf_plan_check(plan[0], &c->w.batch) == KF_OK, "%s", kf_last_error());
  return plan[0];
}

/* One job in one process. Returns how many steps were planned. */
static int64_t run(course *c) {
  kf_scheduler *s[3] = {course_scheduler(c), course_scheduler(c), NULL};
  dice d = course_dice(c, 2000);
  int64_t restored_at = dice_int(&d, c->n_steps), n_planned = 0;
  for (int64_t i = 0; i < c->n_steps && !c->failed; i++) {
    const kf_plan *plan[3] = {NULL, NULL, NULL};
    course_turn(c, i);
    d = course_dice(c, 2001);
    bool epoch = dice_one_in(&d, 8), settles = dice_one_in(&d, 4);
    for (int k = 0; k < 3 && epoch; k++) kf_scheduler_new_epoch(s[k]);
    n_planned += plan_all(c, s, plan) != NULL;
    if (c->failed) break;
    course_check_learned(c, s[0]);
    course_same_metrics(c, s[0], s[1]);
    for (int k = 0; k < 3 && s[k]; k++)
      for (int32_t r = 0; r < c->options.n_ranks; r++) course_say(c, s[k], plan[k], r, k == 1);
    for (int k = 0; k < 3 && settles && s[k]; k++)
      MUST(c, kf_scheduler_settle(s[k]) == KF_OK, "%s", kf_last_error());
    if (i == restored_at) s[2] = course_restore(c, s[0]);
    if (i % 4 && i != restored_at && i < c->n_steps - 1) continue; /* hashes do for the others */
    course_same(c, s[0], s[1], "the twin that was told nonsense");
    if (s[2]) course_same(c, s[0], s[2], "the restored one");
  }
  for (int k = 0; k < 3; k++) kf_scheduler_free(s[k]);
  return n_planned;
}

typedef struct trials {
  uint64_t seed;
  bool failed[MOST_RANKS];
} trials;

static void run_online(kf_comm *comm, void *arg) {
  trials *t = arg;
  t->failed[kf_comm_rank(comm)] = !schedule_check(comm, t->seed, N_ONLINE);
}

int main(int argc, char **argv) {
  static course c;
  uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  int64_t n_steps = 0, n_planned = 0;
  bool failed = false;
  for (int i = 0; i < N_CASES && !failed; i++) {
    dice d = {seed << 32 ^ (uint64_t)i};
    course_begin(&c, seed, i, 1 + (int32_t)dice_int(&d, 9));
    n_planned += run(&c);
    n_steps += c.n_steps;
    failed = c.failed;
  }
  for (int32_t n = 1; n <= MOST_RANKS && !failed; n++) {
    trials t = {.seed = seed};
    ranks_run(n, KF_DEFAULT_TIMEOUT_S, run_online, &t);
    for (int32_t r = 0; r < n; r++) failed = failed || t.failed[r];
  }
  if (!failed && n_planned < n_steps / 2)
    printf("seed %" PRIu64 ": only %" PRId64 " plans in %" PRId64 " steps\n", seed, n_planned,
           n_steps);
  return failed || n_planned < n_steps / 2;
}
