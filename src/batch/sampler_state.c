/* SPDX-License-Identifier: Apache-2.0 */
/*
** Where a sampler stands, as bytes, and back. Every field is 8 bytes, little endian:
**
**     | "KFSAMPLE" | version | bytes of all | kind | epoch | next step | changes |
**     | at, linear_s, quadratic_s, constant_s | of the start and of each change | FNV-1a 64 |
**
** The steps themselves are not saved: they follow. Restoring makes the epoch again and every change
** again, in their order.
*/
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../words.h"
#include "sampler.h"

enum { VERSION = 1, HEAD = 7, CHANGE = 4 };
static const char magic[KFI_WORD + 1] = "KFSAMPLE";

static void put_real(unsigned char *at, double real) {
  uint64_t word;
  memcpy(&word, &real, sizeof word);
  kfi_put_word(at, word);
}

static double get_real(const unsigned char *at) {
  uint64_t word = kfi_get_word(at);
  double real;
  memcpy(&real, &word, sizeof real);
  return real;
}

/* -------------------------------------------------------------------------------- save */

static void put_change(unsigned char *at, const kfi_change *c) {
  kfi_put_word(at, (uint64_t)c->at);
  put_real(at + KFI_WORD, c->linear_s);
  put_real(at + 2 * KFI_WORD, c->quadratic_s);
  put_real(at + 3 * KFI_WORD, c->constant_s);
}

static kfi_change get_change(const unsigned char *at) {
  return (kfi_change){(int64_t)kfi_get_word(at), get_real(at + KFI_WORD),
                      get_real(at + 2 * KFI_WORD), get_real(at + 3 * KFI_WORD)};
}

kf_status kf_sampler_save(const kf_sampler *s, void **out, size_t *n_bytes) {
  if (!s || !out || !n_bytes) return kfi_fail(KF_EINVAL, "kf_sampler_save: a pointer is NULL");
  size_t n = (HEAD + CHANGE * (1 + (size_t)s->n_changes) + 1) * KFI_WORD;
  unsigned char *bytes = malloc(n);
  if (!bytes) return kfi_fail_memory(n, "a saved sampler");
  const uint64_t head[] = {
    VERSION, n, s->kind, (uint64_t)s->epoch, (uint64_t)s->next, (uint64_t)s->n_changes};
  memcpy(bytes, magic, KFI_WORD);
  for (int i = 1; i < HEAD; i++) kfi_put_word(bytes + i * KFI_WORD, head[i - 1]);
  for (int64_t i = 0; i <= s->n_changes; i++)
    put_change(bytes + (HEAD + i * CHANGE) * KFI_WORD, i == 0 ? &s->start : &s->change[i - 1]);
  kfi_put_word(bytes + n - KFI_WORD, kfi_checksum(bytes, n - KFI_WORD));
  *out = bytes;
  *n_bytes = n;
  return KF_OK;
}

/* ----------------------------------------------------------------------------- restore */

static kf_status check_file(const kf_sampler *s, const char *name, const unsigned char *bytes,
                            size_t n) {
  if (n < (HEAD + CHANGE + 1) * KFI_WORD || memcmp(bytes, magic, KFI_WORD) != 0)
    return kfi_fail(KF_EINVAL, "%s: %zu bytes that are not a sampler's state", name, n);
  uint64_t version = kfi_get_word(bytes + KFI_WORD), size = kfi_get_word(bytes + 2 * KFI_WORD);
  uint64_t n_changes = kfi_get_word(bytes + 6 * KFI_WORD);
  if (version != VERSION)
    return kfi_fail(KF_EINVAL, "%s: a state of version %" PRIu64 ", expected version %d", name,
                    version, VERSION);
  if (size != n || n_changes != (n / KFI_WORD - HEAD - CHANGE - 1) / CHANGE ||
      n % (CHANGE * KFI_WORD))
    return kfi_fail(KF_EINVAL,
                    "%s: %zu bytes of a state of %" PRIu64 ": it was cut off or added to", name, n,
                    size);
  if (kfi_get_word(bytes + n - KFI_WORD) != kfi_checksum(bytes, n - KFI_WORD))
    return kfi_fail(KF_EINVAL, "%s: the checksum does not match: the file is damaged", name);
  if (kfi_get_word(bytes + 3 * KFI_WORD) != s->kind)
    return kfi_fail(
      KF_EINVAL,
      "%s: the state of a sampler of other lengths or other options: ranks, seed, rule, "
      "limits, mode, window or keep_all",
      name);
  return KF_OK;
}

/* A position that was saved: everything but the steps. */
typedef struct position {
  int64_t epoch, next, n_changes;
  const unsigned char *changes; /* the start, then each change */
} position;

/* The sentence of what failed, behind the name of what was restored. */
static kf_status fail_in(const char *name, kf_status status) {
  char reason[512];
  snprintf(reason, sizeof reason, "%s", kf_last_error());
  return kfi_fail(status, "%s: %s", name, reason);
}

static kf_status go_to(kf_sampler *s, const char *name, const position *to) {
  kf_status status = kfi_sampler_begin(s, to->epoch, get_change(to->changes));
  for (int64_t i = 1; i <= to->n_changes && !status; i++) {
    kfi_change c = get_change(to->changes + i * CHANGE * KFI_WORD);
    if (c.at < 0 || c.at > s->n_steps)
      return kfi_fail(KF_EINVAL, "%s: a cost from step %" PRId64 " on, expected 0 to %" PRId64,
                      name, c.at, s->n_steps);
    status = kfi_sampler_change(s, c);
  }
  if (status) return fail_in(name, status);
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
  const unsigned char *bytes = data;
  kf_status status = check_file(s, name, bytes, n_bytes);
  if (status) return status;
  position to = {.epoch = (int64_t)kfi_get_word(bytes + 4 * KFI_WORD),
                 .next = (int64_t)kfi_get_word(bytes + 5 * KFI_WORD),
                 .n_changes = (int64_t)kfi_get_word(bytes + 6 * KFI_WORD),
                 .changes = bytes + HEAD * KFI_WORD};
  kf_sampler beside;
  if ((status = make_beside(s, &beside)) || (status = go_to(&beside, name, &to))) {
    free_steps(&beside);
    return status;
  }
  free_steps(s);
  *s = beside;
  return KF_OK;
}
