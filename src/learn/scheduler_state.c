/* SPDX-License-Identifier: Apache-2.0 */
/*
** A scheduler's memory as bytes, and back (archive.h): its ranks, a hash of what it was created
** for, and all it knows. What is read goes into a second scheduler's arrays first, and takes the
** place of the old state only once all of it has been found in order: a file that passes the
** checksum may still hold anything.
*/
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../archive.h"
#include "../file.h"
#include "scheduler.h"

static const kfi_format format = {"KFSTATE\n", "a scheduler's state", 2};

/* A field that is added there must be walked over here, and the version raised. */
_Static_assert(sizeof(kf_counters) == 8 * 8 && sizeof(kf_figures) == 16 * 8 &&
                 sizeof(kfi_load) == 3 * 8,
               "the fields of a state have changed");

/* -------------------------------------------------------------------- the walk */

static void walk_law(kfi_archive *a, kfi_law *law) {
  kfi_reals(a, &law->linear_s, 1);
  kfi_reals(a, &law->quadratic_s, 1);
  kfi_reals(a, &law->constant_tokens, 1);
  kfi_reals(a, &law->overhead_tokens, 1);
  kfi_reals(a, &law->comm_scale, 1);
  kfi_reals(a, law->correction, KFI_CLASSES);
}

static void walk_history(kfi_archive *a, kfi_history *h) {
  int64_t n = h->n_ranks;
  kfi_small(a, &h->n_slots);
  for (int c = 0; c < KFI_CLASSES; c++) kfi_small(a, &h->slot_of[c]);
  for (int c = 0; c < KFI_CLASSES; c++) kfi_small(a, &h->class_of[c]);
  walk_law(a, &h->law);
  walk_law(a, &h->anchor);
  walk_law(a, &h->error);
  kfi_reals(a, &h->noise, 1);
  kfi_reals(a, &h->scatter, 1);
  kfi_reals(a, &h->rank_tokens, 1);
  kfi_words(a, &h->n_steps, 1);
  kfi_words(a, &h->n_outliers, 1);
  kfi_reals(a, h->slow, n);
  kfi_reals(a, h->slow_anchor, n);
  kfi_reals(a, h->regression.info, KFI_PARAMS * KFI_PARAMS);
  kfi_reals(a, h->regression.target, KFI_PARAMS);
  kfi_reals(a, h->regression.rank_info, n);
  kfi_reals(a, h->regression.rank_target, n);
  kfi_reals(a, h->regression.cross, n * KFI_PARAMS);
  kfi_words(a, h->n_rows, n);
  kfi_reals(a, h->row_x, n * KFI_RECENT * KFI_PARAMS);
  kfi_reals(a, h->row_a, n * KFI_RECENT);
  kfi_reals(a, h->row_z, n * KFI_RECENT);
  for (int64_t i = 0; i < n * KFI_CLASSES; i++) {
    kfi_reals(a, &h->load[i].tokens, 1);
    kfi_reals(a, &h->load[i].squares, 1);
    kfi_reals(a, &h->load[i].count, 1);
  }
  kfi_reals(a, h->comm_s, n);
  kfi_reals(a, h->predicted_s, n);
}

static void walk_counters(kfi_archive *a, kf_counters *c) {
  int64_t *whole[] = {&c->memory_bytes, &c->memory_limit_bytes, &c->tokens, &c->samples};
  double *real[] = {&c->plan_s, &c->route_s, &c->compute_s, &c->wait_s};
  for (int i = 0; i < 4; i++) kfi_words(a, whole[i], 1);
  for (int i = 0; i < 4; i++) kfi_reals(a, real[i], 1);
}

static void walk_figures(kfi_archive *a, kf_figures *f) {
  double *real[] = {&f->ideal_s, &f->lower_bound_s, &f->before_step_s, &f->before_max_over_mean,
                    &f->step_s,  &f->max_over_mean, &f->compute_s,     &f->comm_s,
                    &f->gap,     &f->speedup,       &f->a2a_fraction,  &f->moved_fraction};
  int64_t *whole[] = {&f->tokens, &f->max_tokens, &f->split_seqs, &f->moves};
  for (int i = 0; i < 12; i++) kfi_reals(a, real[i], 1);
  for (int i = 0; i < 4; i++) kfi_words(a, whole[i], 1);
}

/* Totals of the metrics, and what those of the next step need of the last plan. */
static void walk_metrics(kfi_archive *a, kf_scheduler *s) {
  int64_t n = s->history.n_ranks;
  kf_metrics *m = &s->metrics;
  kfi_words(a, &s->epoch, 1);
  kfi_words(a, &s->planned_epoch, 1);
  kfi_words(a, &s->next_epoch, 1);
  kfi_reals(a, &s->epoch_s, 1);
  kfi_reals(a, &s->last_epoch_s, 1);
  kfi_reals(a, &s->total_s, 1);
  kfi_reals(a, s->planned_tokens, n);
  kfi_reals(a, s->planned_samples, n);
  kfi_reals(a, s->planned_pressure, n);
  walk_figures(a, &s->planned);
  kfi_words(a, &s->planned_hash, 1);
  kfi_reals(a, s->drift_law, KFI_LAW_DRIFTS);
  kfi_reals(a, s->drift_error, KFI_LAW_DRIFTS);
  kfi_reals(a, s->drift_class, KFI_CLASSES);
  kfi_reals(a, s->drift_speed, n);
  kfi_reals(a, &m->mape, 1);
  kfi_words(a, &m->refits, 1);
  kfi_words(a, &m->drifts, 1);
}

/* What was begun with and may have been measured. Links may be free, so infinite. */
static void walk_start(kfi_archive *a, kf_cost *start) {
  kfi_words(a, &start->linear_s, 1);
  kfi_words(a, &start->quadratic_s, 1);
  kfi_words(a, &start->constant_s, 1);
  kfi_words(a, &start->cluster.intra_Bps, 1);
  kfi_words(a, &start->cluster.inter_Bps, 1);
  kfi_words(a, &start->cluster.latency_s, 1);
}

static void walk_state(kfi_archive *a, kf_scheduler *s) {
  walk_start(a, &s->start);
  kfi_words(a, &s->step, 1);
  kfi_flag(a, &s->awaiting);
  kfi_flag(a, &s->refit_due);
  for (int32_t r = 0; r < s->history.n_ranks; r++) {
    kfi_reals(a, &s->report[r].seconds, 1);
    walk_counters(a, &s->report[r].counters);
    kfi_words(a, &s->report[r].given, 1);
  }
  kfi_reals(a, &s->options.cost.linear_s, 1);
  kfi_reals(a, &s->options.cost.quadratic_s, 1);
  kfi_reals(a, &s->options.cost.constant_s, 1);
  kfi_reals(a, s->speed, s->history.n_ranks);
  kfi_reals(a, s->correction, KFI_CLASSES);
  kfi_flag(a, &s->corrected);
  walk_history(a, &s->history);
  walk_metrics(a, s);
}

/* ------------------------------------------------------------------------ save */

static void walk(kfi_archive *a, void *object) {
  kf_scheduler *s = object; /* which the walk changes only when it reads */
  int64_t n_ranks = s->history.n_ranks;
  uint64_t kind = kfi_scheduler_kind(s);
  kfi_words(a, &n_ranks, 1);
  kfi_words(a, &kind, 1);
  walk_state(a, s);
}

kf_status kf_scheduler_save(const kf_scheduler *s, void **out, size_t *n_bytes) {
  if (!s || !out || !n_bytes) return kfi_fail(KF_EINVAL, "kf_scheduler_save: a pointer is NULL");
  return kfi_archive_save(&format, walk, (kf_scheduler *)s, out, n_bytes);
}

/* --------------------------------------------------------------------- restore */

/* Open a whole state for such a scheduler. */
static kf_status open_file(kf_scheduler *s, const char *name, const void *data, size_t n,
                           kfi_archive *a) {
  int64_t n_ranks;
  uint64_t kind;
  kf_status status = kfi_archive_open(&format, name, data, n, a);
  if (status) return status;
  int64_t n_fields = (a->end - a->at) / 8, want = kfi_archive_fields(walk, s);
  kfi_words(a, &n_ranks, 1);
  kfi_words(a, &kind, 1);
  if (n_ranks != s->history.n_ranks)
    return kfi_fail(KF_EINVAL, "%s: the state of %lld ranks, expected %d", name, (long long)n_ranks,
                    s->history.n_ranks);
  if (kind != kfi_scheduler_kind(s))
    return kfi_fail(
      KF_EINVAL, "%s: the state of another model, cluster or starting cost than this scheduler's",
      name);
  if (n_fields != want)
    return kfi_fail(KF_EINVAL, "%s: %zu bytes, expected %zu", name, n,
                    n + (size_t)(want - n_fields) * 8);
  return KF_OK;
}

/*
** Limits far beyond what a run comes to, and such that arithmetic within them stays finite: they
** hold for whatever follows from a state that keeps them, so that its own states can be restored
** too.
*/
static bool within(const double *value, int64_t n, double low, double high) {
  bool all = true;
  for (int64_t i = 0; i < n; i++) all &= value[i] >= low && value[i] <= high;
  return all;
}

static bool counts(const int64_t *value, int64_t n) {
  bool all = true;
  for (int64_t i = 0; i < n; i++) all &= value[i] >= 0 && value[i] <= (int64_t)1 << 60;
  return all;
}

static bool law_is_possible(const kfi_law *law) {
  double ratio = law->quadratic_s / law->linear_s;
  return within(&law->linear_s, 1, 1e-60, 1e60) && within(&law->quadratic_s, 1, 1e-60, 1e60) &&
         within(&ratio, 1, 1e-20, 1e20) && within(&law->constant_tokens, 1, 0, 1e60) &&
         within(&law->overhead_tokens, 1, 0, 1e85) && within(&law->comm_scale, 1, 0, 1e3) &&
         within(law->correction, KFI_CLASSES, -2, 2);
}

static bool rows_are_possible(const kfi_history *h) {
  const kfi_regression *j = &h->regression;
  int64_t n = h->n_ranks, n_rows = n * KFI_RECENT;
  bool possible = within(h->row_x, n_rows * KFI_PARAMS, -1e30, 1e30) &&
                  within(h->row_a, n_rows, -1e30, 1e30) && within(h->row_z, n_rows, -1e3, 1e3) &&
                  within(j->info, KFI_PARAMS * KFI_PARAMS, -1e65, 1e65) &&
                  within(j->cross, n * KFI_PARAMS, -1e65, 1e65) &&
                  within(j->rank_info, n, 0, 1e65) && within(j->rank_target, n, -1e200, 1e200) &&
                  within(j->target, KFI_PARAMS, -1e200, 1e200) && counts(h->n_rows, n);
  for (int i = 0; i < KFI_PARAMS; i++) possible &= j->info[i * KFI_PARAMS + i] >= 0;
  for (int64_t r = 0; r < n; r++) possible &= h->n_rows[r] <= h->n_steps;
  return possible;
}

static bool slots_are_possible(const kfi_history *h) {
  if (h->n_slots < 1 || h->n_slots > KFI_CLASSES || h->slot_of[0] != 0) return false;
  int32_t n = 0;
  for (int c = 0; c < KFI_CLASSES; c++) {
    if (h->slot_of[c] == -1) continue;
    if (h->slot_of[c] < 0 || h->slot_of[c] >= h->n_slots) return false;
    if (h->class_of[h->slot_of[c]] != c) return false;
    n++;
  }
  return n == h->n_slots;
}

/* What is planned with: what was begun with, or a law. */
static bool cost_is_possible(const kf_scheduler *s) {
  const kf_cost *now = &s->options.cost, *start = &s->start;
  bool begun = now->linear_s == start->linear_s && now->quadratic_s == start->quadratic_s &&
               now->constant_s == start->constant_s;
  return begun ||
         (within(&now->linear_s, 1, 1e-60, 1e60) && within(&now->quadratic_s, 1, 1e-60, 1e60) &&
          within(&now->constant_s, 1, 0, 1e66));
}

static bool plan_is_possible(const kf_scheduler *s) {
  const kfi_history *h = &s->history;
  int64_t n = h->n_ranks;
  bool possible = within(h->comm_s, n, 0, 1e9) && within(h->predicted_s, n, 0, 1e200) &&
                  within(s->planned_tokens, n, 0, 1e30) && within(s->planned_samples, n, 0, 1e30) &&
                  within(s->planned_pressure, n, 0, 1e30) && (!s->awaiting || s->step > 0);
  for (int64_t i = 0; i < n * KFI_CLASSES; i++)
    possible &= within(&h->load[i].tokens, 1, 0, 1e30) && within(&h->load[i].squares, 1, 0, 1e45) &&
                within(&h->load[i].count, 1, 0, 1e30);
  for (int64_t r = 0; r < n; r++) {
    const kfi_times *report = &s->report[r];
    const kf_counters *c = &report->counters;
    const int64_t whole[] = {c->memory_bytes, c->memory_limit_bytes, c->tokens, c->samples};
    const double time[] = {report->seconds, c->plan_s, c->route_s, c->compute_s, c->wait_s};
    for (int i = 0; i < 4; i++) possible &= whole[i] >= 0;
    possible &= within(time, 5, 0, 86400) && (report->given == 0 || report->given == 1);
  }
  return possible;
}

static bool metrics_are_possible(const kf_scheduler *s) {
  const int64_t count[] = {
    s->step,           s->epoch,          s->planned_epoch,   s->next_epoch,
    s->metrics.refits, s->metrics.drifts, s->history.n_steps, s->history.n_outliers};
  const double sum[] = {s->epoch_s, s->last_epoch_s, s->total_s, s->metrics.mape};
  bool counted = s->drift_law[0] > 0; /* or nothing is counted from yet */
  return counts(count, sizeof count / sizeof *count) && within(sum, 4, 0, 1e30) &&
         within(s->drift_law, 2, counted ? 1e-60 : 0, counted ? 1e60 : 0) &&
         within(&s->drift_law[2], 1, 0, 1e66) && within(s->drift_error, KFI_LAW_DRIFTS, 0, 1e200) &&
         within(s->drift_class, KFI_CLASSES, 0.1, 10) &&
         within(s->drift_speed, s->history.n_ranks, 1e-8, 1e8);
}

/* A checksum proves that the bytes are those written, not that we wrote them. */
static bool is_possible(const kf_scheduler *s) {
  const kfi_history *h = &s->history;
  int64_t n = h->n_ranks;
  return slots_are_possible(h) && law_is_possible(&h->law) && law_is_possible(&h->anchor) &&
         within(&h->noise, 1, 1e-6, 1e4) && within(&h->scatter, 1, 1e-6, 1e4) &&
         within(&h->rank_tokens, 1, 0, 1e80) && within(h->slow, n, -30, 30) &&
         within(h->slow_anchor, n, -1e3, 1e3) && within(s->speed, n, 1e-6, 1e6) &&
         within(s->correction, KFI_CLASSES, 0.1, 10) && cost_is_possible(s) &&
         rows_are_possible(h) && plan_is_possible(s) && metrics_are_possible(s);
}

kf_status kf_scheduler_restore(kf_scheduler *s, const char *name, const void *data,
                               size_t n_bytes) {
  kfi_archive a;
  kf_status status;
  if (!s || !data) return kfi_fail(KF_EINVAL, "kf_scheduler_restore: a pointer is NULL");
  if (!name) name = "state";
  if ((status = open_file(s, name, data, n_bytes, &a))) return status;

  kf_scheduler twin = *s;
  twin.memory = (kfi_buffer){0};
  twin.planner = NULL;
  if ((status = kfi_scheduler_lay(&twin))) return status;
  memcpy(twin.memory.data, s->memory.data, s->memory.n_bytes); /* what is not saved: caps, bags */
  kfi_metrics_start(&twin);
  walk_state(&a, &twin);
  if (a.bad || !is_possible(&twin) || kfi_scheduler_kind(&twin) != kfi_scheduler_kind(s)) {
    status = kfi_fail(KF_EINVAL, "%s: a state that no scheduler can be in", name);
    goto fail;
  }
  if (twin.cost_model != KF_COST_HISTORY) kfi_scheduler_begin(&twin);
  kfi_history_refresh(&twin.history);
  kfi_scheduler_own(&twin);
  if ((status = kf_planner_create(&twin.options, &twin.planner))) goto fail;
  kfi_metrics_learned(&twin);
  kfi_metrics_cost(&twin);
  kf_planner_free(s->planner);
  kfi_buffer_free(&s->memory);
  *s = twin;
  kfi_scheduler_own(s);        /* its bags are inside the scheduler itself, */
  s->metrics.drift = s->drift; /* and so are these */
  s->metrics.correction = s->correction_list;
  return KF_OK;

fail:
  kfi_buffer_free(&twin.memory);
  return status;
}

/* ----------------------------------------------------------------------- by file */

static kf_status read_state(const char *path, bool *missing, char **data, size_t *n_bytes) {
  kf_status status = KF_OK;
  *missing = !path || !*path || strcmp(path, "-") == 0;
  if (!*missing) status = kfi_file_read(path, 0, missing, data, n_bytes);
  return kfi_fail_in(status, "state_file");
}

kf_status kf_scheduler_save_file(const kf_scheduler *s, const char *path) {
  void *data = NULL;
  size_t n_bytes = 0;
  if (!path || !*path) return KF_OK;
  kf_status status = kf_scheduler_save(s, &data, &n_bytes);
  if (!status) status = kf_file_replace(path, data, n_bytes);
  free(data);
  return kfi_fail_in(status, "state_file");
}

kf_status kf_scheduler_restore_file(kf_scheduler *s, const char *path) {
  char *data = NULL;
  size_t n_bytes = 0;
  bool missing;
  kf_status status = read_state(path, &missing, &data, &n_bytes);
  if (status || missing) return status;
  status = kf_scheduler_restore(s, path, data ? data : "", n_bytes);
  free(data);
  return kfi_fail_in(status, "state_file");
}

kf_status kf_scheduler_read_start(const char *path, kf_cost *cost, int *found) {
  char *data = NULL;
  size_t n_bytes = 0;
  bool missing;
  if (!cost || !found) return kfi_fail(KF_EINVAL, "kf_scheduler_read_start: a pointer is NULL");
  kf_status status = read_state(path, &missing, &data, &n_bytes);
  if (!status && !missing) {
    kfi_archive a;
    uint64_t head[2]; /* ranks, kind */
    kf_cost start = *cost;
    status = kfi_archive_open(&format, path, data ? data : "", n_bytes, &a);
    if (!status) kfi_words(&a, head, 2), walk_start(&a, &start);
    if (!status && a.bad)
      status = kfi_fail(KF_EINVAL, "%s: a state that no scheduler can be in", path);
    status = kfi_fail_in(status, "state_file");
    if (!status) *cost = start;
  }
  free(data);
  if (!status) *found = !missing;
  return status;
}
