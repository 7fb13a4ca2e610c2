/* SPDX-License-Identifier: Apache-2.0 */
#include "buffer.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

kf_status train_fail(kf_status status, const char *format, ...) {
  char sentence[400];
  va_list args;
  va_start(args, format);
  vsnprintf(sentence, sizeof sentence, format, args);
  va_end(args);
  return kf_fail(status, sentence);
}

kf_status train_reserve(train_buffer *b, int64_t n_bytes, const char *what) {
  if (n_bytes <= b->cap_bytes && b->data) return KF_OK;
  int64_t room = (n_bytes + n_bytes / 8) / 64 * 64 + 64;
  free(b->data); /* first: two of them may not fit */
  b->data = aligned_alloc(64, (size_t)room);
  b->cap_bytes = b->data ? room : 0;
  return b->data ? KF_OK
                 : train_fail(KF_ENOMEM, "out of memory: %" PRId64 " bytes for %s", room, what);
}
