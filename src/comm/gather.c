/* SPDX-License-Identifier: Apache-2.0 */
/*
** What ranks gather in a step, as bytes. Nothing here talks to other ranks: who has a transport
** gathers the bytes with it, step.c over a comm, the Python package over torch.distributed.
**
** First what each rank has, in a slot of the same size:
**
**     | head | record | len[room] | factor[room] | profile[room] |
**
** factors and profiles only once any rank had some. The head holds what a rank measured of the last
** step too, so that times cost no collective of their own. A rank that knows that its input is
** wrong writes a sentence in place of its lengths.
**
** `room` is what the largest rank needed so far. A rank with more sequences (or the first one with
** factors) says so in its head, everybody sees it, and the gather is repeated with room for it. A
** new object has room for nothing and gathers heads alone: their size is always the same, so that
** ranks of another version or with other records find that out there.
**
** Then what each rank has come to, its verdict: a configuration and a plan, or a reason.
**
** Whatever is wrong with a rank's input is gathered like any other, so that every rank finds the
** same fault and returns the same sentence. The bytes of other ranks are input: any are read or
** refused.
*/
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../learn/scheduler.h"
#include "../plan/plan_check.h"
#include "../plan/planning.h"
#include "comm.h"

enum { FACTORS = 1, NO_LENGTHS = 2, PROFILES = 4, WRONG = 8 };
enum {
  VERSION = 24,
  FIRST_ROOM = 32,
  SENTENCE = FIRST_ROOM * 8,
  MOST_RANKS = 320000 /* so many can gather FIRST_ROOM sequences each beside the largest record */
};

typedef struct head {
  char version[VERSION];
  int64_t record_bytes, n_seqs, flags;
  kfi_times times;
} head;

typedef struct verdict {
  uint64_t config, hash;
  int64_t status;
  char reason[KF_VERDICT_BYTES - 24];
} verdict;

struct kf_gather {
  int32_t n_ranks, rank;
  int64_t record_bytes, room;
  head head; /* of this rank, but for what a step brings */
  bool factors, profiles;
  kfi_buffer arrays, proof; /* of what was read; of kfi_plan_check */
  bool gathered;
  kf_batch batch;
  const kfi_times *times; /* (n_ranks); NULL: handed over */
  const char *why;        /* of the last verdict: what another configuration means */
};

/* Where a slot's parts begin. */
static int64_t len_at(const kf_gather *g) {
  return (int64_t)sizeof(head) + (g->record_bytes + 7) / 8 * 8;
}
static int64_t factor_at(const kf_gather *g) { return len_at(g) + g->room * 8; }
static int64_t profile_at(const kf_gather *g) {
  return factor_at(g) + (g->factors ? g->room * (int64_t)sizeof(double) : 0);
}

int64_t kf_gather_bytes(const kf_gather *g) {
  if (!g || g->room == 0) return sizeof(head);
  return profile_at(g) + (g->profiles ? g->room * (int64_t)sizeof(kf_profile) : 0);
}

/* Of a program's record at most; the other half is for lengths. */
static int64_t most_record_bytes(int32_t n_ranks) { return kfi_most_record(n_ranks) / 2; }

/* Most sequences of a rank whose slot still can be gathered. */
static int64_t most_seqs(const kf_gather *g) {
  int64_t each = 8 + sizeof(double) + sizeof(kf_profile);
  int64_t most = (kfi_most_record(g->n_ranks) - len_at(g)) / each * 3 / 4 - 32; /* headroom */
  return most < KF_MAX_SEQS ? most : KF_MAX_SEQS;
}

/* Bytes may come from anywhere, so they need not be aligned. */
static head head_of(const char *slot) {
  head h;
  memcpy(&h, slot, sizeof h);
  h.version[VERSION - 1] = 0;
  return h;
}

kf_status kf_gather_create(int32_t n_ranks, int32_t rank, int64_t record_bytes, kf_gather **out) {
  if (!out) return kfi_fail(KF_EINVAL, "kf_gather_create: out is NULL");
  if (n_ranks < 1 || n_ranks > MOST_RANKS || rank < 0 || rank >= n_ranks)
    return kfi_fail(KF_EINVAL, "rank %d of %d, expected one of 1 to %d ranks", rank, n_ranks,
                    MOST_RANKS);
  kf_gather *g = calloc(1, sizeof *g);
  if (!g) return kfi_fail_memory(sizeof *g, "a gather");
  *g = (kf_gather){.n_ranks = n_ranks, .rank = rank, .record_bytes = record_bytes};
  g->head.record_bytes = record_bytes;
  assert(most_seqs(&(kf_gather){.n_ranks = n_ranks, .record_bytes = most_record_bytes(n_ranks)}) >=
         FIRST_ROOM);
  snprintf(g->head.version, VERSION, "%s", kf_version());
  *out = g;
  return KF_OK;
}

void kf_gather_free(kf_gather *g) {
  if (!g) return;
  kfi_buffer_free(&g->arrays);
  kfi_buffer_free(&g->proof);
  free(g);
}

/* ----------------------------------------------------------------------- pack */

static int64_t flags_of(const kf_rank_batch *mine) {
  if (mine->n_seqs <= 0) return 0;
  return (mine->factor ? FACTORS : 0) | (mine->profile ? PROFILES : 0) |
         (mine->len ? 0 : NO_LENGTHS);
}

/* Lengths that do not fit stay away: the head says how many there are. */
static void pack_seqs(const kf_gather *g, const kf_rank_batch *mine, char *slot) {
  int64_t n = mine->n_seqs;
  if (n <= 0 || n > g->room || !mine->len) return;
  memcpy(slot + len_at(g), mine->len, (size_t)n * 8);
  for (int64_t i = 0; g->factors && i < n; i++) {
    double factor = mine->factor ? mine->factor[i] : 1;
    memcpy(slot + factor_at(g) + i * (int64_t)sizeof factor, &factor, sizeof factor);
  }
  if (g->profiles && mine->profile)
    memcpy(slot + profile_at(g), mine->profile, (size_t)n * sizeof(kf_profile));
}

kf_status kf_gather_pack(const kf_gather *g, const kf_rank_batch *mine,
                         const kf_scheduler *scheduler, const char *wrong, void *out) {
  char *slot = out;
  if (!g || !mine || !out)
    return kfi_fail(KF_EINVAL, "kf_gather_pack: %s is NULL", g ? mine ? "out" : "mine" : "gather");
  if (scheduler && scheduler->history.n_ranks != g->n_ranks)
    return kfi_fail(KF_EINVAL, "a scheduler of %d ranks, expected %d", scheduler->history.n_ranks,
                    g->n_ranks);
  head h = g->head;
  h.n_seqs = wrong ? 0 : mine->n_seqs;
  h.flags = wrong ? WRONG : flags_of(mine);
  if (scheduler && scheduler->awaiting) h.times = scheduler->report[g->rank];
  memset(slot, 0, (size_t)kf_gather_bytes(g));
  memcpy(slot, &h, sizeof h);
  if (g->room == 0) return KF_OK;
  if (mine->record) memcpy(slot + sizeof h, mine->record, (size_t)g->record_bytes);
  if (wrong)
    snprintf(slot + len_at(g), SENTENCE, "%s", wrong);
  else
    pack_seqs(g, mine, slot);
  return KF_OK;
}

/* ----------------------------------------------------------------------- read */

/* The first rank whose value is not that of more than half of them, or where there is no such
** value, not rank 0's; -1: there is none. *like is a rank with that value: so the odd one out gets
** named. */
static int32_t odd_one(const char *value, int64_t stride, size_t n_bytes, int32_t n_ranks,
                       int32_t *like) {
  int32_t held = 0, votes = 0, n = 0;
  for (int32_t r = 0; r < n_ranks; r++) { /* Boyer and Moore's majority vote */
    if (votes == 0) held = r;
    votes += memcmp(value + held * stride, value + r * stride, n_bytes) == 0 ? 1 : -1;
  }
  for (int32_t r = 0; r < n_ranks; r++) /* it finds a majority, or anybody if there is none */
    n += memcmp(value + held * stride, value + r * stride, n_bytes) == 0;
  *like = n > n_ranks / 2 ? held : 0;
  for (int32_t r = 0; r < n_ranks; r++)
    if (memcmp(value + *like * stride, value + r * stride, n_bytes) != 0) return r;
  return -1;
}

/* The same version and record size on all ranks? They stand at the front of a head. */
static kf_status compare_heads(const kf_gather *g, const char *slots, int64_t n_bytes) {
  int32_t like, r = odd_one(slots, n_bytes, VERSION + sizeof(int64_t), g->n_ranks, &like);
  if (r >= 0) {
    head a = head_of(slots + r * n_bytes), b = head_of(slots + like * n_bytes);
    if (memcmp(a.version, b.version, VERSION) != 0)
      return kfi_fail(KF_EMISMATCH, "rank %d runs knapformer %s, but rank %d runs %s", r, a.version,
                      like, b.version);
    return kfi_fail(KF_EMISMATCH, "rank %d has records of %lld bytes, but rank %d of %lld", r,
                    (long long)a.record_bytes, like, (long long)b.record_bytes);
  }
  int64_t most = most_record_bytes(g->n_ranks);
  if (g->record_bytes < 0 || g->record_bytes > most)
    return kfi_fail(KF_EINVAL, "a record of %lld bytes, expected 0 to %lld",
                    (long long)g->record_bytes, (long long)most);
  return KF_OK;
}

/* Does everything fit the slots? If not, make room and return false. */
static bool fits(kf_gather *g, const char *slots, int64_t n_bytes) {
  int64_t most = 0, flags = 0;
  for (int32_t r = 0; r < g->n_ranks; r++) {
    head h = head_of(slots + r * n_bytes);
    if (h.flags & NO_LENGTHS) continue; /* a fault that needs no room to be found */
    if (h.n_seqs > most && h.n_seqs <= most_seqs(g)) most = h.n_seqs;
    flags |= h.flags;
  }
  bool fit = g->room > 0 && most <= g->room && (g->factors || !(flags & FACTORS)) &&
             (g->profiles || !(flags & PROFILES));
  if (g->room == 0) g->room = FIRST_ROOM;
  if (most > g->room) g->room = (most + most / 4 + 31) / 32 * 32;
  if (flags & FACTORS) g->factors = true;
  if (flags & PROFILES) g->profiles = true;
  return fit;
}

/* What is wrong with a rank, but for its sequences, of which there are *n_seqs. */
static kf_status check_slots(const kf_gather *g, const char *slots, int64_t *n_seqs) {
  *n_seqs = 0;
  for (int32_t r = 0; r < g->n_ranks; r++) {
    const char *slot = slots + r * kf_gather_bytes(g);
    head h = head_of(slot);
    if (h.flags & WRONG)
      return kfi_fail(KF_EINVAL, "rank %d: %.*s", r, SENTENCE - 1, slot + len_at(g));
    if (h.n_seqs < 0 || h.n_seqs > most_seqs(g))
      return kfi_fail(KF_EINVAL, "rank %d has %lld sequences, expected 0 to %lld", r,
                      (long long)h.n_seqs, (long long)most_seqs(g));
    if (h.flags & NO_LENGTHS)
      return kfi_fail(KF_EINVAL, "rank %d has %lld sequences and its len is NULL", r,
                      (long long)h.n_seqs);
    *n_seqs += h.n_seqs;
  }
  return KF_OK;
}

/* The slots, one after the other, as a batch, records and times. */
static kf_status copy_slots(kf_gather *g, const char *slots, int64_t n_seqs, const void **records) {
  int32_t n = g->n_ranks;
  kfi_layout lay = {0};
  for (int pass = 0;; pass++) {
    int64_t *rank_off = KFI_TAKE(&lay, int64_t, n + 1), *len = KFI_TAKE(&lay, int64_t, n_seqs);
    double *factor = KFI_TAKE(&lay, double, g->factors ? n_seqs : 0);
    kf_profile *profile = KFI_TAKE(&lay, kf_profile, g->profiles ? n_seqs : 0);
    kfi_times *times = KFI_TAKE(&lay, kfi_times, n);
    char *record = KFI_TAKE(&lay, char, n * g->record_bytes);
    if (!pass && !kfi_layout_reserve(&lay, &g->arrays)) return KF_ENOMEM;
    if (!pass) continue;
    rank_off[0] = 0;
    for (int32_t r = 0; r < n; r++) {
      const char *slot = slots + r * kf_gather_bytes(g);
      head h = head_of(slot);
      int64_t k = h.n_seqs, at = rank_off[r];
      rank_off[r + 1] = at + k;
      times[r] = h.times;
      memcpy(record + r * g->record_bytes, slot + sizeof h, (size_t)g->record_bytes);
      memcpy(len + at, slot + len_at(g), (size_t)k * 8);
      if (g->factors) memcpy(factor + at, slot + factor_at(g), (size_t)k * sizeof *factor);
      if (g->profiles) memcpy(profile + at, slot + profile_at(g), (size_t)k * sizeof *profile);
    }
    g->batch = (kf_batch){
      n, n_seqs, rank_off, len, g->factors ? factor : NULL, g->profiles ? profile : NULL};
    g->times = times;
    *records = record;
    return KF_OK;
  }
}

kf_status kf_gather_read(kf_gather *g, const void *all, const kf_batch **batch,
                         const void **records) {
  const char *slots = all;
  const void *found;
  int64_t n_seqs;
  kf_status status;
  if (!g || !all || !batch) return kfi_fail(KF_EINVAL, "kf_gather_read: a pointer is NULL");
  g->gathered = false;
  g->times = NULL;
  int64_t n_bytes = kf_gather_bytes(g);
  if ((status = compare_heads(g, slots, n_bytes))) return status;
  if (!fits(g, slots, n_bytes)) {
    *batch = NULL;
    return KF_OK;
  }
  if ((status = check_slots(g, slots, &n_seqs))) return status;
  if ((status = copy_slots(g, slots, n_seqs, &found))) return status;
  if ((status = kfi_batch_check(&g->batch))) return status;
  g->gathered = true;
  *batch = &g->batch;
  if (records) *records = found;
  return KF_OK;
}

/* -------------------------------------------------------------------- verdicts */

static kf_status not_gathered(void) {
  return kfi_fail(KF_EINVAL, "nothing was gathered, expected kf_step_gather first (or "
                             "kf_gather_read)");
}

/* Say what this rank has come to: `status`, and where that is KF_OK, maybe a plan, which is proved
** first. */
static void conclude(kf_gather *g, kf_status status, uint64_t config, const kf_plan **plan,
                     void *out) {
  verdict v = {.config = config};
  if (!status && plan) status = kfi_plan_check(*plan, &g->batch, &g->proof);
  if (status) snprintf(v.reason, sizeof v.reason, "%s", kf_last_error());
  if (status && plan) *plan = NULL;
  v.status = status;
  if (plan && *plan) v.hash = (*plan)->hash;
  memcpy(out, &v, sizeof v);
}

kf_status kf_gather_plan(kf_gather *g, kf_planner *planner, const kf_plan **plan, void *out) {
  if (!g || !planner || !plan || !out)
    return kfi_fail(KF_EINVAL, "kf_gather_plan: a pointer is NULL");
  kf_status status = g->gathered ? kf_planner_plan(planner, &g->batch, plan) : not_gathered();
  g->why = "planner was created with other options";
  conclude(g, status, kf_planner_hash(planner), plan, out);
  return KF_OK;
}

/* Tell the scheduler what the other ranks measured, once. */
static kf_status learn_from_times(kf_gather *g, kf_scheduler *scheduler) {
  kf_status status = g->gathered ? KF_OK : not_gathered();
  const kfi_times *times = g->times;
  g->times = NULL;
  g->why = "scheduler was created with other options, or has learned from other times";
  for (int32_t r = 0; times && r < g->n_ranks && !status; r++)
    if (times[r].given && r != g->rank)
      status = kf_scheduler_update_stats(scheduler, r, times[r].seconds, &times[r].counters);
  return status;
}

kf_status kf_gather_schedule(kf_gather *g, kf_scheduler *scheduler, const kf_plan **plan,
                             void *out) {
  if (!g || !scheduler || !out) return kfi_fail(KF_EINVAL, "kf_gather_schedule: a pointer is NULL");
  kf_status status = learn_from_times(g, scheduler);
  if (!status && plan) status = kf_scheduler_plan(scheduler, &g->batch, plan);
  if (!status && !plan) status = kf_scheduler_settle(scheduler);
  if (!plan) g->gathered = false; /* there were times only */
  conclude(g, status, kf_scheduler_hash(scheduler), plan, out);
  return KF_OK;
}

static verdict verdict_of(const char *all, int32_t r) {
  verdict v;
  memcpy(&v, all + (int64_t)r * KF_VERDICT_BYTES, sizeof v);
  v.reason[sizeof v.reason - 1] = 0;
  if (v.status < 0 || v.status > KF_EDEVICE) v.status = KF_ECOMM; /* no rank says so */
  if (v.status && !*v.reason)
    snprintf(v.reason, sizeof v.reason, "%s", kf_status_string((kf_status)v.status));
  return v;
}

/* What rank r could not do; by its name where not all say the same. */
static kf_status forward_reason(const char *all, int32_t n, int32_t r) {
  verdict v = verdict_of(all, r);
  for (int32_t q = 0; q < n; q++) {
    verdict other = verdict_of(all, q);
    if (other.status != v.status || strcmp(other.reason, v.reason) != 0)
      return kfi_fail((kf_status)v.status, "rank %d: %s", r, v.reason);
  }
  return kfi_fail((kf_status)v.status, "%s", v.reason);
}

/* Every rank compares the same verdicts, so all find the same. A rank without memory may have
** stopped half-way in learning, so its hash says nothing; any other failure may well come from a
** configuration of its own. */
kf_status kf_gather_agree(const kf_gather *g, const void *verdicts) {
  const char *all = verdicts;
  int32_t like, r, failed = -1;
  if (!g || !all || !g->why)
    return kfi_fail(KF_EINVAL, "kf_gather_agree: %s",
                    g && all ? "no verdict was given before it" : "a pointer is NULL");
  for (r = 0; r < g->n_ranks; r++) {
    verdict v = verdict_of(all, r);
    if (v.status == KF_ENOMEM) return forward_reason(all, g->n_ranks, r);
    if (v.status && failed < 0) failed = r;
  }
  if ((r = odd_one(all, KF_VERDICT_BYTES, 8, g->n_ranks, &like)) >= 0)
    return kfi_fail(KF_EMISMATCH,
                    "rank %d has another configuration (hash %016" PRIx64
                    ") than rank %d (%016" PRIx64 "): its %s",
                    r, verdict_of(all, r).config, like, verdict_of(all, like).config, g->why);
  if (failed >= 0) return forward_reason(all, g->n_ranks, failed);
  if ((r = odd_one(all + 8, KF_VERDICT_BYTES, 8, g->n_ranks, &like)) >= 0)
    return kfi_fail(KF_EMISMATCH,
                    "rank %d has another plan (hash %016" PRIx64 ") than rank %d (%016" PRIx64
                    ") of the same lengths and options",
                    r, verdict_of(all, r).hash, like, verdict_of(all, like).hash);
  return KF_OK;
}
