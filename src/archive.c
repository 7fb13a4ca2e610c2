/* SPDX-License-Identifier: Apache-2.0 */
#include "archive.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"

enum { WORD = 8, HEAD = 3 * WORD };

static void put_word(unsigned char *at, uint64_t word) {
  for (int i = 0; i < WORD; i++) at[i] = (unsigned char)(word >> (8 * i));
}

static uint64_t get_word(const unsigned char *at) {
  uint64_t word = 0;
  for (int i = 0; i < WORD; i++) word |= (uint64_t)at[i] << (8 * i);
  return word;
}

void kfi_words(kfi_archive *a, void *field, int64_t n) {
  char *value = field;
  a->n_fields += n;
  for (int64_t i = 0; a->mode != KFI_COUNT && i < n; i++, value += WORD) {
    uint64_t word = 0;
    if (a->mode == KFI_WRITE) {
      memcpy(&word, value, WORD);
      put_word(a->at, word);
    } else {
      if (a->at == a->end) a->bad = true;
      if (!a->bad) word = get_word(a->at);
      memcpy(value, &word, WORD);
    }
    if (!a->bad) a->at += WORD;
  }
}

void kfi_reals(kfi_archive *a, double *field, int64_t n) {
  kfi_words(a, field, n);
  for (int64_t i = 0; a->mode == KFI_READ && i < n; i++) {
    if (isfinite(field[i])) continue;
    a->bad = true;
    field[i] = 0;
  }
}

void kfi_small(kfi_archive *a, int32_t *field) {
  int64_t wide = *field;
  kfi_words(a, &wide, 1);
  if (a->mode == KFI_READ)
    *field = wide < INT32_MIN || wide > INT32_MAX ? INT32_MIN : (int32_t)wide;
}

void kfi_flag(kfi_archive *a, bool *field) {
  int64_t wide = *field;
  kfi_words(a, &wide, 1);
  if (a->mode == KFI_READ) *field = wide != 0;
}

int64_t kfi_archive_fields(kfi_walk *walk, void *object) {
  kfi_archive count = {.mode = KFI_COUNT};
  walk(&count, object);
  return count.n_fields;
}

kf_status kfi_archive_save(const kfi_format *format, kfi_walk *walk, void *object, void **out,
                           size_t *n_bytes) {
  size_t n = HEAD + (size_t)kfi_archive_fields(walk, object) * WORD + WORD;
  unsigned char *bytes = malloc(n);
  if (!bytes) return kfi_fail_memory(n, format->what);
  memcpy(bytes, format->magic, WORD);
  put_word(bytes + WORD, (uint64_t)format->version);
  put_word(bytes + 2 * WORD, n);
  walk(&(kfi_archive){.mode = KFI_WRITE, .at = bytes + HEAD}, object);
  put_word(bytes + n - WORD, kf_hash_bytes(KF_HASH_START, bytes, n - WORD));
  *out = bytes;
  *n_bytes = n;
  return KF_OK;
}

kf_status kfi_archive_open(const kfi_format *format, const char *name, const void *data, size_t n,
                           kfi_archive *out) {
  const unsigned char *bytes = data;
  if (n < HEAD || memcmp(bytes, format->magic, WORD) != 0)
    return kfi_fail(KF_EINVAL, "%s: %zu bytes that are not %s", name, n, format->what);
  uint64_t version = get_word(bytes + WORD), size = get_word(bytes + 2 * WORD);
  if (version != (uint64_t)format->version)
    return kfi_fail(KF_EINVAL, "%s: a state of version %llu, expected version %d%s", name,
                    (unsigned long long)version, format->version,
                    version > (uint64_t)format->version ? ": a later knapformer wrote it" : "");
  if (size != n)
    return kfi_fail(KF_EINVAL, "%s: %zu bytes of a state of %llu: it was cut off or added to", name,
                    n, (unsigned long long)size);
  if (n % WORD || n == HEAD ||
      get_word(bytes + n - WORD) != kf_hash_bytes(KF_HASH_START, bytes, n - WORD))
    return kfi_fail(KF_EINVAL, "%s: the checksum does not match: the file is damaged", name);
  *out =
    (kfi_archive){.mode = KFI_READ, .at = (unsigned char *)bytes + HEAD, .end = bytes + n - WORD};
  return KF_OK;
}
