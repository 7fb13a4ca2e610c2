/* SPDX-License-Identifier: Apache-2.0 */
/*
** The local backend: ranks are threads of one process and meet at a hub.
**
** A collective has two meetings. Before the first, each rank lays on its desk what it calls and
** where its data lies. Between the two, desks are read-only and ranks copy what they need straight
** from the others' memory. After the second nobody reads another's memory any more.
**
**     lay on desk | meet | compare desks, copy | meet | return
**
** Waiting has a deadline. Who runs into it looks which desks are empty, breaks the hub with their
** names and wakes the others; a broken hub lets nobody wait. A rank that leaves a broken hub first
** waits until no other copies from its memory, which takes a memcpy's time.
*/
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm.h"

/* What a rank wants of the others in this call. */
typedef struct desk {
  int64_t n_meetings; /* that the rank has come to */
  bool copying;
  const char *call;
  const void *record; /* gather */
  int64_t what[2];    /* bytes of a record; of a reduction as in kfi_same_reduction */
  bool reduces;
  void *data; /* that it reduces */
  const kfi_transfer *exchange;
} desk;

typedef struct hub {
  pthread_mutex_t lock;
  pthread_cond_t turn; /* somebody came, stopped copying, or broke the hub */
  int32_t n_ranks, n_open, n_here, n_copying;
  int64_t n_meetings; /* that are over */
  kf_status broken;
  int32_t culprit; /* the rank that failed; -1: none did, some were silent */
  char reason[KFI_REASON];
  desk *desk;   /* (n_ranks) */
  bool *silent; /* (n_ranks) */
} hub;

typedef struct local {
  kf_comm comm;
  hub *hub;
} local;

/* ------------------------------------------------------------------- meeting */

static void break_hub(hub *h, kf_status status, int32_t culprit, const char *reason) {
  if (h->broken) return;
  h->broken = status;
  h->culprit = culprit;
  snprintf(h->reason, sizeof h->reason, "%s", reason);
  pthread_cond_broadcast(&h->turn);
}

static void stop_copying(hub *h, desk *mine) {
  if (!mine->copying) return;
  mine->copying = false;
  if (--h->n_copying == 0) pthread_cond_broadcast(&h->turn);
}

/* The hub is broken; leave it as soon as nobody reads this rank's memory. */
static kf_status leave(local *l) {
  hub *h = l->hub;
  stop_copying(h, &h->desk[l->comm.rank]);
  while (h->n_copying > 0) pthread_cond_wait(&h->turn, &h->lock);
  if (h->culprit < 0 || h->culprit == l->comm.rank)
    return kfi_comm_break(&l->comm, h->broken, "%s", h->reason);
  return kfi_comm_break(&l->comm, KF_ECOMM, "rank %d failed: %s", h->culprit, h->reason);
}

static void give_up(local *l, int64_t meeting) {
  char names[KFI_NAMES], reason[KFI_REASON];
  for (int32_t r = 0; r < l->hub->n_ranks; r++)
    l->hub->silent[r] = l->hub->desk[r].n_meetings < meeting;
  kfi_name_ranks(l->hub->silent, l->hub->n_ranks, names);
  snprintf(reason, sizeof reason, "%s: %s silent for %g s", l->comm.call, names, l->comm.timeout_s);
  break_hub(l->hub, KF_ETIMEOUT, -1, reason);
}

/* Wait until all ranks have come. If `to_copy`, all copy from here on, until they meet again. */
static kf_status meet(local *l, bool to_copy) {
  hub *h = l->hub;
  desk *mine = &h->desk[l->comm.rank];
  kf_status status = KF_OK;
  struct timespec end;
  clock_gettime(CLOCK_MONOTONIC, &end);
  double until = (double)end.tv_nsec * 1e-9 + l->comm.timeout_s;
  end.tv_sec += (time_t)until;
  end.tv_nsec = (long)((until - (double)(time_t)until) * 1e9);

  pthread_mutex_lock(&h->lock);
  stop_copying(h, mine);
  int64_t meeting = ++mine->n_meetings;
  if (!h->broken && ++h->n_here == h->n_ranks) {
    h->n_here = 0;
    h->n_meetings++;
    for (int32_t r = 0; to_copy && r < h->n_ranks; r++) h->desk[r].copying = true;
    if (to_copy) h->n_copying = h->n_ranks;
    pthread_cond_broadcast(&h->turn);
  }
  while (!h->broken && h->n_meetings < meeting)
    if (pthread_cond_timedwait(&h->turn, &h->lock, &end) == ETIMEDOUT && !h->broken &&
        h->n_meetings < meeting)
      give_up(l, meeting);
  if (h->n_meetings < meeting) status = leave(l); /* a meeting that took place counts */
  pthread_mutex_unlock(&h->lock);
  return status;
}

/* All lay their desks and meet; then desks are compared. Every rank finds the same. */
static kf_status begin(local *l, desk what) {
  hub *h = l->hub;
  desk *mine = &h->desk[l->comm.rank];
  kf_status status;
  pthread_mutex_lock(&h->lock);
  what.n_meetings = mine->n_meetings;
  what.call = l->comm.call;
  *mine = what;
  pthread_mutex_unlock(&h->lock);
  if ((status = meet(l, true))) return status;
  for (int32_t r = 1; r < h->n_ranks; r++) {
    const desk *a = &h->desk[0], *b = &h->desk[r];
    if (strcmp(a->call, b->call) != 0)
      return kfi_fail(KF_EMISMATCH, "rank %d calls %s, but rank 0 calls %s", r, b->call, a->call);
    if (a->reduces) {
      if ((status = kfi_same_reduction(r, b->what, a->what))) return status;
    } else if (a->what[0] != b->what[0]) {
      return kfi_fail(KF_EMISMATCH, "%s: rank %d has %lld bytes, but rank 0 has %lld", a->call, r,
                      (long long)b->what[0], (long long)a->what[0]);
    }
  }
  return KF_OK;
}

/* --------------------------------------------------------------- collectives */

static kf_status gather(kf_comm *comm, const void *record, int64_t n_bytes, void *all) {
  local *l = (local *)comm;
  kf_status status;
  if ((status = begin(l, (desk){.record = record, .what = {n_bytes}}))) return status;
  for (int32_t r = 0; n_bytes > 0 && r < comm->size; r++)
    memcpy((char *)all + r * n_bytes, l->hub->desk[r].record, (size_t)n_bytes);
  return meet(l, false);
}

/* Copy all that rank `from` has for this one. */
static kf_status fetch(const kf_comm *comm, int32_t from, const kfi_side *send,
                       const kfi_side *recv) {
  int64_t a = send->block_off[comm->rank], b = recv->block_off[from];
  int64_t n = recv->block_off[from + 1] - b;
  if (send->block_off[comm->rank + 1] - a != n)
    return kfi_fail(KF_EMISMATCH, "%s: rank %d sends %lld blocks where rank %d expects %lld",
                    comm->call, from, (long long)(send->block_off[comm->rank + 1] - a), comm->rank,
                    (long long)n);
  for (int64_t i = 0; i < n; i++) {
    const kfi_block *source = &send->block[a + i], *to = &recv->block[b + i];
    if (source->rows != to->rows || source->row_bytes != to->row_bytes)
      return kfi_fail(
        KF_EMISMATCH,
        "%s: rank %d sends %lld rows of %lld bytes where rank %d expects %lld of %lld", comm->call,
        from, (long long)source->rows, (long long)source->row_bytes, comm->rank,
        (long long)to->rows, (long long)to->row_bytes);
    kfi_block_copy(to, source, 0, kfi_block_bytes(to));
  }
  return KF_OK;
}

static kf_status exchange(kf_comm *comm, const kfi_transfer *x) {
  local *l = (local *)comm;
  kf_status status;
  if ((status = begin(l, (desk){.exchange = x}))) return status;
  for (int32_t i = 0; i < comm->size; i++) {
    int32_t from = (comm->rank + i) % comm->size; /* not all from the same rank at once */
    if ((status = fetch(comm, from, &l->hub->desk[from].exchange->send, &x->recv))) return status;
  }
  return meet(l, false);
}

/* Rank r reduces the r-th part of everybody's data, in the order of ranks, and hands it to all. */
static kf_status reduce(kf_comm *comm, kf_reduction reduction, kf_type type, int64_t n,
                        void *data) {
  enum { BLOCK = 512 }; /* elements at a time: they stay in the cache until all have them */
  double block[BLOCK];
  local *l = (local *)comm;
  int64_t size = kfi_type_bytes(type);
  kf_status status;
  if ((status = begin(l, (desk){.reduces = true, .data = data, .what = {n, reduction * 8 + type}})))
    return status;
  int64_t part = (n + comm->size - 1) / comm->size, first = part * comm->rank;
  int64_t end = first + part < n ? first + part : n;
  for (int64_t i = first; i < end; i += BLOCK) {
    int64_t k = end - i < BLOCK ? end - i : BLOCK;
    memcpy(block, (char *)l->hub->desk[0].data + i * size, (size_t)(k * size));
    for (int32_t r = 1; r < comm->size; r++)
      kfi_reduce(reduction, type, k, block, (char *)l->hub->desk[r].data + i * size);
    for (int32_t r = 0; r < comm->size; r++)
      memcpy((char *)l->hub->desk[r].data + i * size, block, (size_t)(k * size));
  }
  return meet(l, false);
}

static void alarm_others(kf_comm *comm, const char *reason) {
  local *l = (local *)comm;
  pthread_mutex_lock(&l->hub->lock);
  break_hub(l->hub, comm->broken, comm->rank, reason);
  stop_copying(l->hub, &l->hub->desk[comm->rank]);
  while (l->hub->n_copying > 0) pthread_cond_wait(&l->hub->turn, &l->hub->lock);
  pthread_mutex_unlock(&l->hub->lock);
}

/* ----------------------------------------------------------------- the object */

static void local_free(kf_comm *comm) {
  hub *h = ((local *)comm)->hub;
  pthread_mutex_lock(&h->lock);
  int32_t n_open = --h->n_open;
  pthread_mutex_unlock(&h->lock);
  if (n_open > 0) return;
  pthread_mutex_destroy(&h->lock);
  pthread_cond_destroy(&h->turn);
  free(h);
}

static const kfi_comm_ops ops = {gather, exchange, reduce, alarm_others, local_free};

/* The hub and all its ranks are one block, which the last rank frees. */
kf_status kf_comm_local_create(int32_t n_ranks, kf_comm **out) {
  if (!out) return kfi_fail(KF_EINVAL, "kf_comm_local_create: out is NULL");
  if (n_ranks < 1 || n_ranks > KF_MAX_RANKS)
    return kfi_fail(KF_EINVAL, "%d local ranks, expected 1 to %d", n_ranks, KF_MAX_RANKS);
  size_t n = (size_t)n_ranks;
  size_t n_bytes = sizeof(hub) + n * (sizeof(local) + sizeof(desk) + sizeof(bool));
  hub *h = calloc(1, n_bytes);
  if (!h) return kfi_fail_memory(n_bytes, "local ranks");
  local *l = (local *)(h + 1);
  h->n_ranks = h->n_open = n_ranks;
  h->desk = (desk *)(l + n);
  h->silent = (bool *)(h->desk + n);

  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_mutex_init(&h->lock, NULL);
  pthread_cond_init(&h->turn, &monotonic);
  pthread_condattr_destroy(&monotonic);
  for (int32_t r = 0; r < n_ranks; r++) {
    l[r].comm = (kf_comm){
      .ops = &ops, .rank = r, .size = n_ranks, .timeout_s = KF_DEFAULT_TIMEOUT_S, .call = ""};
    l[r].hub = h;
    out[r] = &l[r].comm;
  }
  return KF_OK;
}
