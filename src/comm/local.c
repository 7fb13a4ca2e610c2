/* SPDX-License-Identifier: Apache-2.0 */
/*
** The local backend: ranks are threads of one process.
**
** A collective has two barriers. Before the first, each rank posts what it calls and where its data
** lies. Between the two, what is posted is read-only, and ranks copy what they need straight from
** the others' memory. After the second nobody reads another's memory any more.
**
**     post | barrier | compare, copy | barrier | return
**
** Waiting has a deadline. Who runs into it looks which ranks are missing, breaks the barrier with
** their names and wakes the others; nobody waits at a broken one. A rank that leaves it first waits
** until no other copies from its memory, which takes a memcpy's time.
*/
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm.h"

/* What a rank has posted: what it wants of the others in this call. */
typedef struct post {
  int64_t n_barriers; /* that the rank has come to */
  bool copying;
  const char *call;
  const void *record; /* gather */
  int64_t what[2];    /* bytes of a record; of a reduction as in kfi_same_reduction */
  bool reduces;
  void *data; /* that it reduces */
  const kfi_transfer *exchange;
} post;

/* What all ranks share. */
typedef struct shared {
  pthread_mutex_t lock;
  pthread_cond_t turn; /* somebody came, stopped copying, or broke the barrier */
  int32_t n_ranks, n_open, n_here, n_copying;
  int64_t n_barriers; /* that are over */
  kf_status broken;
  int32_t culprit; /* the rank that failed; -1: none did, some were silent */
  char reason[KFI_REASON];
  post *post;   /* (n_ranks) */
  bool *silent; /* (n_ranks) */
} shared;

typedef struct local {
  kf_comm comm;
  shared *shared;
} local;

/* ------------------------------------------------------------------- barrier */

static void break_barrier(shared *h, kf_status status, int32_t culprit, const char *reason) {
  if (h->broken) return;
  h->broken = status;
  h->culprit = culprit;
  snprintf(h->reason, sizeof h->reason, "%s", reason);
  pthread_cond_broadcast(&h->turn);
}

static void stop_copying(shared *h, post *mine) {
  if (!mine->copying) return;
  mine->copying = false;
  if (--h->n_copying == 0) pthread_cond_broadcast(&h->turn);
}

/* The barrier is broken; leave it as soon as nobody reads this rank's memory. */
static kf_status leave(local *l) {
  shared *h = l->shared;
  stop_copying(h, &h->post[l->comm.rank]);
  while (h->n_copying > 0) pthread_cond_wait(&h->turn, &h->lock);
  if (h->culprit < 0 || h->culprit == l->comm.rank)
    return kfi_comm_break(&l->comm, h->broken, "%s", h->reason);
  return kfi_comm_break(&l->comm, KF_ECOMM, "rank %d failed: %s", h->culprit, h->reason);
}

static void give_up(local *l, int64_t barrier) {
  char names[KFI_NAMES], reason[KFI_REASON];
  for (int32_t r = 0; r < l->shared->n_ranks; r++)
    l->shared->silent[r] = l->shared->post[r].n_barriers < barrier;
  kfi_name_ranks(l->shared->silent, l->shared->n_ranks, names);
  snprintf(reason, sizeof reason, "%s: %s silent for %g s", l->comm.call, names, l->comm.timeout_s);
  break_barrier(l->shared, KF_ETIMEOUT, -1, reason);
}

/* Wait until all ranks have come. If `to_copy`, all copy from here on, until the next barrier. */
static kf_status wait_for_all(local *l, bool to_copy) {
  shared *h = l->shared;
  post *mine = &h->post[l->comm.rank];
  kf_status status = KF_OK;
  struct timespec end;
  clock_gettime(CLOCK_MONOTONIC, &end);
  double until = (double)end.tv_nsec * 1e-9 + l->comm.timeout_s;
  end.tv_sec += (time_t)until;
  end.tv_nsec = (long)((until - (double)(time_t)until) * 1e9);

  pthread_mutex_lock(&h->lock);
  stop_copying(h, mine);
  int64_t barrier = ++mine->n_barriers;
  if (!h->broken && ++h->n_here == h->n_ranks) {
    h->n_here = 0;
    h->n_barriers++;
    for (int32_t r = 0; to_copy && r < h->n_ranks; r++) h->post[r].copying = true;
    if (to_copy) h->n_copying = h->n_ranks;
    pthread_cond_broadcast(&h->turn);
  }
  while (!h->broken && h->n_barriers < barrier)
    if (pthread_cond_timedwait(&h->turn, &h->lock, &end) == ETIMEDOUT && !h->broken &&
        h->n_barriers < barrier)
      give_up(l, barrier);
  if (h->n_barriers < barrier) status = leave(l); /* a barrier that all came to counts */
  pthread_mutex_unlock(&h->lock);
  return status;
}

/* All post and wait for each other; then posts are compared. Every rank finds the same. */
static kf_status begin(local *l, post what) {
  shared *h = l->shared;
  post *mine = &h->post[l->comm.rank];
  kf_status status;
  pthread_mutex_lock(&h->lock);
  what.n_barriers = mine->n_barriers;
  what.call = l->comm.call;
  *mine = what;
  pthread_mutex_unlock(&h->lock);
  if ((status = wait_for_all(l, true))) return status;
  for (int32_t r = 1; r < h->n_ranks; r++) {
    const post *a = &h->post[0], *b = &h->post[r];
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
  if ((status = begin(l, (post){.record = record, .what = {n_bytes}}))) return status;
  for (int32_t r = 0; n_bytes > 0 && r < comm->size; r++)
    memcpy((char *)all + r * n_bytes, l->shared->post[r].record, (size_t)n_bytes);
  return wait_for_all(l, false);
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
  if ((status = begin(l, (post){.exchange = x}))) return status;
  for (int32_t i = 0; i < comm->size; i++) {
    int32_t from = (comm->rank + i) % comm->size; /* not all from the same rank at once */
    if ((status = fetch(comm, from, &l->shared->post[from].exchange->send, &x->recv)))
      return status;
  }
  return wait_for_all(l, false);
}

/* Rank r reduces the r-th part of everybody's data, in the order of ranks, and hands it to all. */
static kf_status reduce(kf_comm *comm, kf_reduction reduction, kf_dtype type, int64_t n,
                        void *data) {
  enum { BLOCK = 512 }; /* elements at a time: they stay in the cache until all have them */
  double block[BLOCK];
  local *l = (local *)comm;
  int64_t size = kfi_dtype_bytes(type);
  kf_status status;
  if ((status = begin(l, (post){.reduces = true, .data = data, .what = {n, reduction * 8 + type}})))
    return status;
  int64_t part = (n + comm->size - 1) / comm->size, first = part * comm->rank;
  int64_t end = first + part < n ? first + part : n;
  for (int64_t i = first; i < end; i += BLOCK) {
    int64_t k = end - i < BLOCK ? end - i : BLOCK;
    memcpy(block, (char *)l->shared->post[0].data + i * size, (size_t)(k * size));
    for (int32_t r = 1; r < comm->size; r++)
      kfi_reduce(reduction, type, k, block, (char *)l->shared->post[r].data + i * size);
    for (int32_t r = 0; r < comm->size; r++)
      memcpy((char *)l->shared->post[r].data + i * size, block, (size_t)(k * size));
  }
  return wait_for_all(l, false);
}

static void alarm_others(kf_comm *comm, const char *reason) {
  local *l = (local *)comm;
  pthread_mutex_lock(&l->shared->lock);
  break_barrier(l->shared, comm->broken, comm->rank, reason);
  stop_copying(l->shared, &l->shared->post[comm->rank]);
  while (l->shared->n_copying > 0) pthread_cond_wait(&l->shared->turn, &l->shared->lock);
  pthread_mutex_unlock(&l->shared->lock);
}

/* ----------------------------------------------------------------- the object */

static void local_free(kf_comm *comm) {
  shared *h = ((local *)comm)->shared;
  pthread_mutex_lock(&h->lock);
  int32_t n_open = --h->n_open;
  pthread_mutex_unlock(&h->lock);
  if (n_open > 0) return;
  pthread_mutex_destroy(&h->lock);
  pthread_cond_destroy(&h->turn);
  free(h);
}

static const kfi_comm_ops ops = {gather, exchange, reduce, alarm_others, local_free};

/* What is shared and all ranks are one block, which the last rank frees. */
kf_status kf_comm_local_create(int32_t n_ranks, kf_comm **out) {
  if (!out) return kfi_fail(KF_EINVAL, "kf_comm_local_create: out is NULL");
  if (n_ranks < 1 || n_ranks > KF_MAX_RANKS)
    return kfi_fail(KF_EINVAL, "%d local ranks, expected 1 to %d", n_ranks, KF_MAX_RANKS);
  size_t n = (size_t)n_ranks;
  size_t n_bytes = sizeof(shared) + n * (sizeof(local) + sizeof(post) + sizeof(bool));
  shared *h = calloc(1, n_bytes);
  if (!h) return kfi_fail_memory(n_bytes, "local ranks");
  local *l = (local *)(h + 1);
  h->n_ranks = h->n_open = n_ranks;
  h->post = (post *)(l + n);
  h->silent = (bool *)(h->post + n);

  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_mutex_init(&h->lock, NULL);
  pthread_cond_init(&h->turn, &monotonic);
  pthread_condattr_destroy(&monotonic);
  for (int32_t r = 0; r < n_ranks; r++) {
    l[r].comm = (kf_comm){
      .ops = &ops, .rank = r, .size = n_ranks, .timeout_s = KF_DEFAULT_TIMEOUT_S, .call = ""};
    l[r].shared = h;
    out[r] = &l[r].comm;
  }
  return KF_OK;
}
