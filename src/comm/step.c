/* SPDX-License-Identifier: Apache-2.0 */
/*
** The online step, first half: gather what each rank has.
**
** The gather takes one collective. Each rank fills a slot of the same size:
**
**     | head | record | len[room] | factor[room] | profile[room] |
**
** factors and profiles only where any rank uses them. The head holds what a rank measured of the last
** step too, so that times cost no collective of their own.
**
** `room` is what the largest rank needed so far. A rank with more sequences (or the first one with
** factors) says so in its head, everybody sees it, and the gather is repeated with room for it.
** Whatever is wrong with a rank's input is gathered like any other, so that every rank finds the
** same fault and returns the same sentence, and the comm stays in order.
*/
#include "step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FACTORS = 1, NO_LENGTHS = 2, PROFILES = 4, VERSION = 24, FIRST_ROOM = 32 };

typedef struct head {
  int64_t n_seqs, flags;
  kfi_times times;
} head;

/* Words of 8 bytes that a sequence takes. */
enum { LEN_WORDS = 1, FACTOR_WORDS = 1, PROFILE_WORDS = 2, MOST_WORDS = 4 };

/* Where a slot's parts begin. */
static int64_t record_padded(const kf_step *s) { return (s->record_bytes + 7) / 8 * 8; }
static int64_t len_at(const kf_step *s) { return (int64_t)sizeof(head) + record_padded(s); }
static int64_t factor_at(const kf_step *s) { return len_at(s) + s->room * LEN_WORDS * 8; }
static int64_t profile_at(const kf_step *s) {
  return factor_at(s) + (s->factors ? s->room * FACTOR_WORDS * 8 : 0);
}
static int64_t slot_bytes(const kf_step *s) {
  return profile_at(s) + (s->profiles ? s->room * PROFILE_WORDS * 8 : 0);
}

/* Most sequences of a rank whose slot still can be gathered. */
static int64_t most_seqs(const kf_step *s) {
  int64_t most =
    (kfi_most_record(s->comm->size) - len_at(s)) / (MOST_WORDS * 8) * 3 / 4 - 32; /* headroom */
  return most < KF_MAX_SEQS ? most : KF_MAX_SEQS;
}

/* -------------------------------------------------------------------- create */

typedef struct greeting {
  char version[VERSION];
  int64_t record_bytes;
} greeting;

/* Half of what can be gathered is for lengths. */
static int64_t most_record(int32_t n_ranks) { return kfi_most_record(n_ranks) / 2; }

static kf_status compare_greetings(const greeting *all, int32_t n) {
  int32_t like, r;
  if ((r = kfi_odd_one(all->version, sizeof *all, VERSION, n, &like)) >= 0)
    return kfi_fail(KF_EMISMATCH, "rank %d runs knapformer %s, but rank %d runs %s", r,
                    all[r].version, like, all[like].version);
  if ((r = kfi_odd_one((const char *)&all->record_bytes, sizeof *all, 8, n, &like)) >= 0)
    return kfi_fail(KF_EMISMATCH, "rank %d has records of %lld bytes, but rank %d of %lld", r,
                    (long long)all[r].record_bytes, like, (long long)all[like].record_bytes);
  if (all->record_bytes < 0 || all->record_bytes > most_record(n))
    return kfi_fail(KF_EINVAL, "a record of %lld bytes, expected 0 to %lld",
                    (long long)all->record_bytes, (long long)most_record(n));
  return KF_OK;
}

kf_status kfi_step_greet(kf_comm *comm, const char *version, int64_t record_bytes) {
  greeting mine = {.record_bytes = record_bytes};
  kf_status status;
  greeting *all = malloc((size_t)comm->size * sizeof *all);
  if (!all) {
    kfi_fail_memory((size_t)comm->size * sizeof *all, "a step");
    return kfi_comm_fail(comm, KF_ENOMEM);
  }
  snprintf(mine.version, sizeof mine.version, "%s", version);
  status = kfi_comm_gather(comm, "step create", &mine, sizeof mine, all);
  if (!status) status = compare_greetings(all, comm->size);
  free(all);
  return status;
}

kf_status kf_step_create(kf_comm *comm, int64_t record_bytes, kf_step **out) {
  kf_status status;
  if ((status = kfi_comm_enter(comm, "step create"))) return status;
  if (!out) return kfi_comm_fail(comm, kfi_fail(KF_EINVAL, "kf_step_create: out is NULL"));
  kf_step *s = calloc(1, sizeof *s);
  if (!s) return kfi_comm_fail(comm, kfi_fail_memory(sizeof *s, "a step"));
  *s = (kf_step){.comm = comm, .record_bytes = record_bytes, .room = FIRST_ROOM};
  if ((status = kfi_step_greet(comm, kf_version(), record_bytes))) {
    kf_step_free(s);
    return status;
  }
  *out = s;
  return KF_OK;
}

void kf_step_free(kf_step *s) {
  if (!s) return;
  kfi_buffer_free(&s->slots);
  kfi_buffer_free(&s->arrays);
  kfi_buffer_free(&s->agreed);
  kfi_buffer_free(&s->proof);
  free(s);
}

/* -------------------------------------------------------------------- gather */

/* This rank's slot. Lengths that do not fit stay away: the head says how many there are. */
static void fill_slot(const kf_step *s, const kf_rank_batch *mine, const kfi_times *times,
                      char *slot) {
  head h = {.n_seqs = mine->n_seqs, .times = *times};
  if (mine->factor && mine->n_seqs > 0) h.flags |= FACTORS;
  if (mine->profile && mine->n_seqs > 0) h.flags |= PROFILES;
  if (!mine->len && mine->n_seqs > 0) h.flags |= NO_LENGTHS;
  memset(slot, 0, (size_t)slot_bytes(s));
  memcpy(slot, &h, sizeof h);
  if (mine->record && s->record_bytes > 0)
    memcpy(slot + sizeof h, mine->record, (size_t)s->record_bytes);
  if (h.n_seqs <= 0 || h.n_seqs > s->room || (h.flags & NO_LENGTHS)) return;
  memcpy(slot + len_at(s), mine->len, (size_t)h.n_seqs * 8);
  double *factor = (double *)(slot + factor_at(s));
  for (int64_t i = 0; s->factors && i < h.n_seqs; i++)
    factor[i] = mine->factor ? mine->factor[i] : 1;
  for (int64_t i = 0; s->profiles && mine->profile && i < h.n_seqs; i++)
    memcpy(slot + profile_at(s) + i * PROFILE_WORDS * 8, &mine->profile[i], sizeof(kf_profile));
}

/* Does everything fit the slots? If not, make room and return false. */
static bool fits(kf_step *s, const char *slots, int64_t n_bytes) {
  int64_t most = 0, flags = 0;
  for (int32_t r = 0; r < s->comm->size; r++) {
    const head *h = (const head *)(slots + r * n_bytes);
    if (h->flags & NO_LENGTHS) continue; /* a fault that needs no room to be found */
    if (h->n_seqs > most && h->n_seqs <= most_seqs(s)) most = h->n_seqs;
    flags |= h->flags;
  }
  bool fit =
    most <= s->room && (s->factors || !(flags & FACTORS)) && (s->profiles || !(flags & PROFILES));
  if (most > s->room) s->room = (most + most / 4 + 31) / 32 * 32;
  if (flags & FACTORS) s->factors = true;
  if (flags & PROFILES) s->profiles = true;
  return fit;
}

/* *slots (n_ranks, slot_bytes) of all ranks. */
static kf_status gather_slots(kf_step *s, const char *call, const kf_rank_batch *mine,
                              const kfi_times *times, const char **slots) {
  kf_status status;
  for (;;) {
    int64_t n_bytes = slot_bytes(s);
    char *all = kfi_buffer_reserve(&s->slots, (size_t)(n_bytes * (s->comm->size + 1)));
    if (!all) return kfi_comm_fail(s->comm, KF_ENOMEM);
    char *slot = all + n_bytes * s->comm->size;
    fill_slot(s, mine, times, slot);
    if ((status = kfi_comm_gather(s->comm, call, slot, n_bytes, all))) return status;
    *slots = all;
    if (fits(s, all, n_bytes)) return KF_OK;
  }
}

static kf_status check_slots(const kf_step *s, const char *slots, int64_t *n_seqs) {
  *n_seqs = 0;
  for (int32_t r = 0; r < s->comm->size; r++) {
    const char *slot = slots + r * slot_bytes(s);
    const head *h = (const head *)slot;
    if (h->n_seqs < 0 || h->n_seqs > most_seqs(s))
      return kfi_fail(KF_EINVAL, "rank %d has %lld sequences, expected 0 to %lld", r,
                      (long long)h->n_seqs, (long long)most_seqs(s));
    if (h->flags & NO_LENGTHS)
      return kfi_fail(KF_EINVAL, "rank %d has %lld sequences and its len is NULL", r,
                      (long long)h->n_seqs);
    const int64_t *len = (const int64_t *)(slot + len_at(s));
    const double *factor = (const double *)(slot + factor_at(s));
    for (int64_t i = 0; i < h->n_seqs; i++) {
      if (len[i] < 0 || len[i] > KF_MAX_LEN)
        return kfi_fail(KF_EINVAL, "rank %d: its sequence %lld has %lld tokens, expected 0 to %lld",
                        r, (long long)i, (long long)len[i], (long long)KF_MAX_LEN);
      if (s->factors && !(factor[i] > 0 && factor[i] <= 1e6))
        return kfi_fail(
          KF_EINVAL, "rank %d: its sequence %lld has factor %g, expected above 0 and at most 1e6",
          r, (long long)i, factor[i]);
    }
    *n_seqs += h->n_seqs;
  }
  return KF_OK;
}

/* The slots, one after the other, as a batch; records are moved to the front of the slots. */
static kf_status build_batch(kf_step *s, const char *slots, int64_t n_seqs) {
  int32_t n = s->comm->size;
  kfi_layout lay = {0};
  for (int pass = 0;; pass++) {
    int64_t *rank_off = KFI_TAKE(&lay, int64_t, n + 1), *len = KFI_TAKE(&lay, int64_t, n_seqs);
    double *factor = KFI_TAKE(&lay, double, s->factors ? n_seqs : 0);
    kf_profile *profile = KFI_TAKE(&lay, kf_profile, s->profiles ? n_seqs : 0);
    kfi_times *times = KFI_TAKE(&lay, kfi_times, n);
    char *record = KFI_TAKE(&lay, char, n * s->record_bytes);
    if (pass == 0) {
      size_t n_bytes = lay.n_bytes;
      if (!(lay.base = kfi_buffer_reserve(&s->arrays, n_bytes))) return KF_ENOMEM;
      lay.n_bytes = 0;
      continue;
    }
    rank_off[0] = 0;
    for (int32_t r = 0; r < n; r++) {
      const char *slot = slots + r * slot_bytes(s);
      int64_t k = ((const head *)slot)->n_seqs;
      rank_off[r + 1] = rank_off[r] + k;
      memcpy(len + rank_off[r], slot + len_at(s), (size_t)k * 8);
      if (s->factors) memcpy(factor + rank_off[r], slot + factor_at(s), (size_t)k * 8);
      for (int64_t i = 0; s->profiles && i < k; i++)
        memcpy(&profile[rank_off[r] + i], slot + profile_at(s) + i * PROFILE_WORDS * 8,
               sizeof *profile);
      times[r] = ((const head *)slot)->times;
      memcpy(record + r * s->record_bytes, slot + sizeof(head), (size_t)s->record_bytes);
    }
    s->batch = (kf_batch){.n_ranks = n,
                          .n_seqs = n_seqs,
                          .rank_off = rank_off,
                          .len = len,
                          .factor = s->factors ? factor : NULL,
                          .profile = s->profiles ? profile : NULL};
    s->times = times;
    s->records = record;
    return KF_OK;
  }
}

kf_status kfi_step_collect(kf_step *s, const char *call, const kf_rank_batch *mine,
                           const kfi_times *times) {
  const char *slots = NULL;
  int64_t n_seqs;
  kf_status status;
  s->gathered = false;
  if ((status = gather_slots(s, call, mine, times, &slots))) return status;
  if ((status = check_slots(s, slots, &n_seqs))) return status; /* the same on every rank */
  if ((status = build_batch(s, slots, n_seqs))) return kfi_comm_fail(s->comm, status);
  s->gathered = true;
  return KF_OK;
}

kf_status kf_step_gather(kf_step *s, const kf_rank_batch *mine, const kf_batch **batch,
                         const void **records) {
  kf_status status;
  if (!s) return kfi_fail(KF_EINVAL, "kf_step_gather: step is NULL");
  if ((status = kfi_comm_enter(s->comm, "step gather"))) return status;
  if (!mine || !batch)
    return kfi_comm_fail(
      s->comm, kfi_fail(KF_EINVAL, "kf_step_gather: %s is NULL", mine ? "batch" : "mine"));
  if ((status = kfi_step_collect(s, "step gather", mine, &(kfi_times){0}))) return status;
  *batch = &s->batch;
  if (records) *records = s->records;
  return KF_OK;
}
