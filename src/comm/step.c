/* SPDX-License-Identifier: Apache-2.0 */
/*
** The online step over a comm: gather.c says what the bytes mean, here they are gathered. What it
** finds is the same on every rank and leaves the comm in order; only a rank's own trouble (memory,
** a pointer that is NULL) breaks it.
*/
#include <stdlib.h>

#include "comm.h"

struct kf_step {
  kf_comm *comm;
  kf_gather *gather;
  kfi_buffer bytes; /* of all ranks, and of this one */
};

/* Gather once what each rank has; *batch is NULL where not all fitted. */
static kf_status gather_once(kf_step *s, const char *call, const kf_rank_batch *mine,
                             const kf_scheduler *scheduler, const kf_batch **batch,
                             const void **records) {
  int64_t n_bytes = kf_gather_bytes(s->gather);
  char *all = kfi_buffer_reserve(&s->bytes, (size_t)(n_bytes * (s->comm->size + 1)));
  if (!all) return kfi_comm_fail(s->comm, KF_ENOMEM);
  char *own = all + n_bytes * s->comm->size;
  kf_status status = kf_gather_pack(s->gather, mine, scheduler, NULL, own);
  if (status) return kfi_comm_fail(s->comm, status);
  if ((status = kfi_comm_gather(s->comm, call, own, n_bytes, all))) return status;
  status = kf_gather_read(s->gather, all, batch, records);
  return status == KF_ENOMEM ? kfi_comm_fail(s->comm, status) : status;
}

static kf_status gather(kf_step *s, const char *call, const kf_rank_batch *mine,
                        const kf_scheduler *scheduler, const kf_batch **batch,
                        const void **records) {
  const kf_batch *found = NULL;
  kf_status status = KF_OK;
  while (!status && !found) status = gather_once(s, call, mine, scheduler, &found, records);
  if (!status && batch) *batch = found;
  return status;
}

/* Gather the verdicts and compare them. */
static kf_status agree(kf_step *s, const char own[KF_VERDICT_BYTES]) {
  char *all = kfi_buffer_reserve(&s->bytes, (size_t)s->comm->size * KF_VERDICT_BYTES);
  if (!all) return kfi_comm_fail(s->comm, KF_ENOMEM);
  kf_status status = kfi_comm_gather(s->comm, s->comm->call, own, KF_VERDICT_BYTES, all);
  return status ? status : kf_gather_agree(s->gather, all);
}

/* Enter a collective with arguments of which none may be NULL; `missing` names the one that is. */
static kf_status enter(kf_step *s, const char *call, const char *missing) {
  kf_status status;
  if (!s) return kfi_fail(KF_EINVAL, "%s: step is NULL", call);
  if ((status = kfi_comm_enter(s->comm, call))) return status;
  if (missing) return kfi_comm_fail(s->comm, kfi_fail(KF_EINVAL, "%s: %s is NULL", call, missing));
  return KF_OK;
}

kf_status kf_step_create(kf_comm *comm, int64_t record_bytes, kf_step **out) {
  const kf_batch *none;
  kf_status status;
  if ((status = kfi_comm_enter(comm, "step create"))) return status;
  if (!out) return kfi_comm_fail(comm, kfi_fail(KF_EINVAL, "kf_step_create: out is NULL"));
  kf_step *s = calloc(1, sizeof *s);
  if (!s) return kfi_comm_fail(comm, kfi_fail_memory(sizeof *s, "a step"));
  s->comm = comm;
  if ((status = kf_gather_create(comm->size, comm->rank, record_bytes, &s->gather)))
    kfi_comm_fail(comm, status);
  else
    status = gather_once(s, "step create", &(kf_rank_batch){0}, NULL, &none, NULL);
  if (status)
    kf_step_free(s);
  else
    *out = s;
  return status;
}

void kf_step_free(kf_step *s) {
  if (!s) return;
  kf_gather_free(s->gather);
  kfi_buffer_free(&s->bytes);
  free(s);
}

kf_status kf_step_gather(kf_step *s, const kf_rank_batch *mine, const kf_batch **batch,
                         const void **records) {
  kf_status status = enter(s, "step gather", !mine ? "mine" : !batch ? "batch" : NULL);
  return status ? status : gather(s, "step gather", mine, NULL, batch, records);
}

kf_status kf_step_plan(kf_step *s, kf_planner *planner, const kf_plan **plan) {
  char verdict[KF_VERDICT_BYTES];
  const kf_plan *mine = NULL;
  kf_status status = enter(s, "step plan", !planner ? "planner" : !plan ? "plan" : NULL);
  if (status) return status;
  if ((status = kf_gather_plan(s->gather, planner, &mine, verdict)))
    return kfi_comm_fail(s->comm, status);
  if (!(status = agree(s, verdict))) *plan = mine;
  return status;
}

kf_status kf_step_schedule(kf_step *s, kf_scheduler *scheduler, const kf_rank_batch *mine,
                           const kf_batch **batch, const kf_plan **plan) {
  char verdict[KF_VERDICT_BYTES];
  const kf_batch *gathered;
  const kf_plan *planned = NULL;
  kf_status status = enter(s, "step schedule",
                           !scheduler ? "scheduler"
                           : !mine    ? "mine"
                           : !plan    ? "plan"
                                      : NULL);
  if (status) return status;
  if ((status = gather(s, "step schedule", mine, scheduler, &gathered, NULL))) return status;
  if ((status = kf_gather_schedule(s->gather, scheduler, &planned, verdict)))
    return kfi_comm_fail(s->comm, status);
  if ((status = agree(s, verdict))) return status;
  if (batch) *batch = gathered;
  *plan = planned;
  return KF_OK;
}

kf_status kf_step_settle(kf_step *s, kf_scheduler *scheduler) {
  char verdict[KF_VERDICT_BYTES];
  kf_status status = enter(s, "step settle", scheduler ? NULL : "scheduler");
  if (status) return status;
  if ((status = gather(s, "step settle", &(kf_rank_batch){0}, scheduler, NULL, NULL)))
    return status;
  if ((status = kf_gather_schedule(s->gather, scheduler, NULL, verdict)))
    return kfi_comm_fail(s->comm, status);
  return agree(s, verdict);
}
