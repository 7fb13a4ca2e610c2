/* SPDX-License-Identifier: Apache-2.0 */
/*
** Where a sampler stands, as bytes, and back (archive.h):
**
**     | kind | epoch | next step | changes | at, linear_s, quadratic_s, constant_s | of the start and of
**     each change |
**
** The steps themselves are not saved: they follow. Restoring makes the epoch again and every change
** again, in their order.
*/
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../archive.h"
#include "sampler.h"

enum { CHANGE = 4 }; /* fields */
static const kfi_format format = {"KFSAMPLE", "a sampler's state", 1};

/* -------------------------------------------------------------------------------- save */

static void walk_head(kfi_archive *a, kf_sampler *s) {
  kfi_words(a, &s->kind, 1);
  kfi_words(a, &s->epoch, 1);
  kfi_words(a, &s->next, 1);
  kfi_words(a, &s->n_changes, 1);
}

static void walk_change(kfi_archive *a, kfi_change *c) {
  kfi_words(a, &c->at, 1);
  kfi_words(a, &c->linear_s, 1); /* kfi_sampler_change refuses what is not finite */
  kfi_words(a, &c->quadratic_s, 1);
  kfi_words(a, &c->constant_s, 1);
}

static void walk(kfi_archive *a, void *object) {
  kf_sampler *s = object;
  walk_head(a, s);
  walk_change(a, &s->start);
  for (int64_t i = 0; i < s->n_changes; i++) walk_change(a, &s->change[i]);
}

kf_status kf_sampler_save(const kf_sampler *s, void **out, size_t *n_bytes) {
  if (!s || !out || !n_bytes) return kfi_fail(KF_EINVAL, "kf_sampler_save: a pointer is NULL");
  return kfi_archive_save(&format, walk, (kf_sampler *)s, out, n_bytes);
}

/* ----------------------------------------------------------------------------- restore */

/* Open a state for such a sampler: *to has its head, what follows is the start and each change. */
static kf_status open_file(const kf_sampler *s, const char *name, const void *data, size_t n,
                           kfi_archive *a, kf_sampler *to) {
  kf_status status = kfi_archive_open(&format, name, data, n, a);
  if (status) return status;
  walk_head(a, to);
  if (to->kind != s->kind)
    return kfi_fail(
      KF_EINVAL,
      "%s: the state of a sampler of other lengths or other options: ranks, seed, rule, "
      "limits, mode, window or keep_all",
      name);
  int64_t n_fields = (a->end - a->at) / 8;
  if (n_fields % CHANGE || to->n_changes != n_fields / CHANGE - 1)
    return kfi_fail(KF_EINVAL, "%s: %" PRId64 " changes of the cost in %" PRId64 " fields", name,
                    to->n_changes, n_fields);
  return KF_OK;
}

static kf_status go_to(kf_sampler *s, const char *name, const kf_sampler *to, kfi_archive *a) {
  kfi_change c;
  walk_change(a, &c);
  kf_status status = kfi_sampler_begin(s, to->epoch, c);
  for (int64_t i = 0; i < to->n_changes && !status; i++) {
    walk_change(a, &c);
    if (c.at < 0 || c.at > s->n_steps)
      return kfi_fail(KF_EINVAL, "%s: a cost from step %" PRId64 " on, expected 0 to %" PRId64,
                      name, c.at, s->n_steps);
    status = kfi_sampler_change(s, c);
  }
  if (status) return kfi_fail_in(status, name);
  if (to->next < 0 || to->next > s->n_steps)
    return kfi_fail(KF_EINVAL, "%s: the next step is %" PRId64 ", expected 0 to %" PRId64, name,
                    to->next, s->n_steps);
  s->next = to->next;
  return KF_OK;
}

/* What is restored is made beside the old steps, and takes their place once it has been found in
** order. */
static kf_status make_beside(kf_sampler *s, kf_sampler *beside) {
  size_t n = (size_t)s->n_samples + 1, n_buckets = (size_t)s->n_buckets + 1;
  *beside = *s;
  beside->change = NULL;
  beside->n_changes = beside->change_room = 0;
  beside->idle_change = false;
  beside->sample = malloc(n * sizeof *s->sample);
  beside->off = malloc(n * sizeof *s->off);
  beside->bucket = malloc(n_buckets * sizeof *s->bucket);
  if (!beside->sample || !beside->off || !beside->bucket)
    return kfi_fail_memory(n * 8 + n_buckets * sizeof *s->bucket, "restoring a sampler");
  memcpy(beside->bucket, s->bucket, (size_t)s->n_buckets * sizeof *s->bucket);
  return KF_OK;
}

static void free_steps(kf_sampler *s) {
  free(s->sample);
  free(s->off);
  free(s->bucket);
  free(s->change);
}

kf_status kf_sampler_restore(kf_sampler *s, const char *name, const void *data, size_t n_bytes) {
  if (!s || (!data && n_bytes > 0))
    return kfi_fail(KF_EINVAL, "kf_sampler_restore: a pointer is NULL");
  if (!name) name = "state";
  kf_sampler to, beside;
  kfi_archive a;
  kf_status status = open_file(s, name, data, n_bytes, &a, &to);
  if (status) return status;
  if ((status = make_beside(s, &beside)) || (status = go_to(&beside, name, &to, &a))) {
    free_steps(&beside);
    return status;
  }
  free_steps(s);
  *s = beside;
  return KF_OK;
}
