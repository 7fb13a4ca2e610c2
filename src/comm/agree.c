/* SPDX-License-Identifier: Apache-2.0 */
/*
** The online step, second half: every rank plans, and all compare what they have come to. With a
** scheduler, what was measured of the last step is learned from in between, the same on every rank.
*/
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "../plan/plan_check.h"
#include "step.h"

/* A rank with the value of more than half of them, so that the odd one out gets named; else 0. */
static int32_t usual(const char *value, int64_t stride, size_t n_bytes, int32_t n_ranks) {
  int32_t held = 0, votes = 0, n = 0;
  for (int32_t r = 0; r < n_ranks; r++) { /* Boyer and Moore's majority vote */
    if (votes == 0) held = r;
    votes += memcmp(value + held * stride, value + r * stride, n_bytes) == 0 ? 1 : -1;
  }
  for (int32_t r = 0; r < n_ranks; r++) /* the vote finds a majority, or anybody if there is none */
    n += memcmp(value + held * stride, value + r * stride, n_bytes) == 0;
  return n > n_ranks / 2 ? held : 0;
}

int32_t kfi_odd_one(const char *value, int64_t stride, size_t n_bytes, int32_t n_ranks,
                    int32_t *like) {
  *like = usual(value, stride, n_bytes, n_ranks);
  for (int32_t r = 0; r < n_ranks; r++)
    if (memcmp(value + *like * stride, value + r * stride, n_bytes) != 0) return r;
  return -1;
}

/* What a rank has come to. */
typedef struct verdict {
  uint64_t config, hash;
  int64_t status;
  char reason[232];
} verdict;

/* What rank r could not do, in the words of this rank if it is the same. */
static kf_status forward_reason(const verdict *all, int32_t r, int32_t rank) {
  if (all[rank].status == all[r].status && strcmp(all[rank].reason, all[r].reason) == 0)
    return kfi_fail((kf_status)all[r].status, "%s", all[r].reason);
  return kfi_fail((kf_status)all[r].status, "rank %d: %s", r, all[r].reason);
}

/* Every rank compares the same verdicts, so all find the same. A rank without memory may have
** stopped half-way in learning, so its hash says nothing; any other failure may well come from a
** configuration of its own. */
static kf_status compare_verdicts(const verdict *all, int32_t n, int32_t rank, const char *why) {
  int32_t like, r;
  for (r = 0; r < n; r++)
    if (all[r].status == KF_ENOMEM) return forward_reason(all, r, rank);
  if ((r = kfi_odd_one((const char *)&all->config, sizeof *all, 8, n, &like)) >= 0)
    return kfi_fail(KF_EMISMATCH,
                    "rank %d has another configuration (hash %016" PRIx64
                    ") than rank %d (%016" PRIx64 "): its %s",
                    r, all[r].config, like, all[like].config, why);
  for (r = 0; r < n; r++)
    if (all[r].status) return forward_reason(all, r, rank);
  if ((r = kfi_odd_one((const char *)&all->hash, sizeof *all, 8, n, &like)) >= 0)
    return kfi_fail(KF_EMISMATCH,
                    "rank %d has another plan (hash %016" PRIx64 ") than rank %d (%016" PRIx64
                    ") of the same lengths and options",
                    r, all[r].hash, like, all[like].hash);
  return KF_OK;
}

/*
** Every rank says what it has come to: `status`, and, where that is KF_OK, a plan. The plan is proved
** first. `config` is a hash of what the ranks must have in common, `why` what it means if they differ.
*/
static kf_status agree(kf_step *s, kf_status status, uint64_t config, const char *why,
                       const kf_plan *mine) {
  verdict v = {.config = config};
  verdict *all = kfi_buffer_reserve(&s->agreed, (size_t)s->comm->size * sizeof *all);
  if (!all) return kfi_comm_fail(s->comm, KF_ENOMEM);
  if (!status) status = kfi_plan_check(mine, &s->batch, &s->proof);
  v.status = status;
  if (status) snprintf(v.reason, sizeof v.reason, "%s", kf_last_error());
  v.hash = status ? 0 : mine->hash;
  if ((status = kfi_comm_gather(s->comm, s->comm->call, &v, sizeof v, all))) return status;
  return compare_verdicts(all, s->comm->size, s->comm->rank, why);
}

kf_status kf_step_plan(kf_step *s, kf_planner *planner, const kf_plan **plan) {
  const kf_plan *mine = NULL;
  kf_status status;
  if (!s) return kfi_fail(KF_EINVAL, "kf_step_plan: step is NULL");
  if ((status = kfi_comm_enter(s->comm, "step plan"))) return status;
  if (!planner || !plan)
    return kfi_comm_fail(
      s->comm, kfi_fail(KF_EINVAL, "kf_step_plan: %s is NULL", planner ? "plan" : "planner"));
  if (!s->gathered)
    status =
      kfi_fail(KF_EINVAL, "kf_step_plan: nothing was gathered, expected kf_step_gather first");
  else
    status = kf_planner_plan(planner, &s->batch, &mine);
  status =
    agree(s, status, kf_planner_hash(planner), "planner was created with other options", mine);
  if (!status) *plan = mine;
  return status;
}

/* ------------------------------------------------------------------- scheduler */

/* What this rank measured of the last step. */
static kfi_times own_times(const kf_step *s, const kf_scheduler *scheduler) {
  kfi_times t = {0};
  t.given = kf_scheduler_reported(scheduler, s->comm->rank, &t.seconds, &t.counters);
  return t;
}

/* Tell the scheduler what the other ranks measured. */
static kf_status hand_over(const kf_step *s, kf_scheduler *scheduler, const kfi_times *times) {
  kf_status status = KF_OK;
  for (int32_t r = 0; r < s->comm->size && !status; r++)
    if (times[r].given && r != s->comm->rank)
      status = kf_scheduler_update_stats(scheduler, r, times[r].seconds, &times[r].counters);
  return status;
}

/* Enter a collective on a scheduler of this comm's ranks. */
static kf_status enter(kf_step *s, const char *call, const kf_scheduler *scheduler) {
  kf_status status = kfi_comm_enter(s->comm, call);
  if (status) return status;
  if (!scheduler) return kfi_comm_fail(s->comm, kfi_fail(KF_EINVAL, "%s: scheduler is NULL", call));
  int32_t n = kf_scheduler_metrics(scheduler)->n_ranks;
  if (n != s->comm->size)
    return kfi_comm_fail(s->comm, kfi_fail(KF_EINVAL, "%s: a scheduler of %d ranks, expected %d",
                                           call, n, s->comm->size));
  return KF_OK;
}

kf_status kf_step_schedule(kf_step *s, kf_scheduler *scheduler, const kf_rank_batch *mine,
                           const kf_batch **batch, const kf_plan **plan) {
  const kf_plan *planned = NULL;
  kf_status status;
  if (!s) return kfi_fail(KF_EINVAL, "kf_step_schedule: step is NULL");
  if ((status = enter(s, "step schedule", scheduler))) return status;
  if (!mine || !plan)
    return kfi_comm_fail(
      s->comm, kfi_fail(KF_EINVAL, "kf_step_schedule: %s is NULL", mine ? "plan" : "mine"));
  kfi_times times = own_times(s, scheduler);
  if ((status = kfi_step_collect(s, "step schedule", mine, &times))) return status;
  status = hand_over(s, scheduler, s->times);
  if (!status) status = kf_scheduler_plan(scheduler, &s->batch, &planned);
  status =
    agree(s, status, kf_scheduler_hash(scheduler),
          "scheduler was created with other options, or has learned from other times", planned);
  if (status) return status;
  if (batch) *batch = &s->batch;
  *plan = planned;
  return KF_OK;
}

kf_status kf_step_settle(kf_step *s, kf_scheduler *scheduler) {
  kf_status status;
  if (!s) return kfi_fail(KF_EINVAL, "kf_step_settle: step is NULL");
  if ((status = enter(s, "step settle", scheduler))) return status;
  kfi_times times = own_times(s, scheduler);
  kfi_times *all = kfi_buffer_reserve(&s->agreed, (size_t)s->comm->size * sizeof *all);
  if (!all) return kfi_comm_fail(s->comm, KF_ENOMEM);
  if ((status = kfi_comm_gather(s->comm, "step settle", &times, sizeof times, all))) return status;
  if ((status = hand_over(s, scheduler, all))) return kfi_comm_fail(s->comm, status);
  return kf_scheduler_settle(scheduler);
}
