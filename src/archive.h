/* SPDX-License-Identifier: Apache-2.0 */
/*
** Saved state as bytes, and back.
**
**     | magic | version | bytes of all | fields ... | FNV-1a 64 of all before |
**
** Each is 8 bytes, little endian: an integer, or the bits of a double. One function walks over all
** fields of an object, in three modes: count, write, read; so reading cannot differ from writing.
*/
#ifndef KFI_ARCHIVE_H
#define KFI_ARCHIVE_H

#include <stdbool.h>

#include "status.h"

typedef struct kfi_format {
  const char *magic; /* 8 bytes */
  const char *what;  /* "a sampler's state" */
  int version;
} kfi_format;

typedef struct kfi_archive {
  enum { KFI_COUNT, KFI_WRITE, KFI_READ } mode;
  unsigned char *at;        /* where the next field stands */
  const unsigned char *end; /* of the fields, to read */
  int64_t n_fields;         /* walked over */
  bool bad; /* a field is beyond the end, or a real is not finite: what was read is 0 */
} kfi_archive;

/* Walk over fields: n integers of 64 bits; n doubles; one of 32 bits; one that is 0 or not. */
void kfi_words(kfi_archive *a, void *field, int64_t n);
void kfi_reals(kfi_archive *a, double *field, int64_t n);
void kfi_small(kfi_archive *a, int32_t *field);
void kfi_flag(kfi_archive *a, bool *field);

typedef void kfi_walk(kfi_archive *a, void *object);

/* How many fields the walk has. */
int64_t kfi_archive_fields(kfi_walk *walk, void *object);

/* All of it; free() *out. The object is changed by reading alone. */
kf_status kfi_archive_save(const kfi_format *format, kfi_walk *walk, void *object, void **out,
                           size_t *n_bytes);

/* Begin to read: a whole archive of this format. What the fields say is the caller's to check. */
kf_status kfi_archive_open(const kfi_format *format, const char *name, const void *data,
                           size_t n_bytes, kfi_archive *out);

#endif
