/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that grows and is kept, and how to fail with numbers in the sentence. */
#ifndef TRAIN_BUFFER_H
#define TRAIN_BUFFER_H

#include "train.h"

typedef struct train_buffer {
  void *data;
  int64_t cap_bytes;
} train_buffer;

/* At least n_bytes and an eighth more, at an address that is a multiple of 64; never NULL, also for
** 0 bytes. What it held is lost if it grows. `what` is for the message. */
kf_status train_reserve(train_buffer *buffer, int64_t n_bytes, const char *what);

/* kf_fail with a formatted sentence. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
kf_status
train_fail(kf_status status, const char *format, ...);

#endif
