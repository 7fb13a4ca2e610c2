/* SPDX-License-Identifier: Apache-2.0 */
/* A fuzz target whose input is a short text: define check(), which aborts where something is
** wrong. */
#ifndef FUZZ_TEXT_H
#define FUZZ_TEXT_H

#include <stdlib.h>
#include <string.h>

#include <knapformer.h>

static void check(const char *text, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char text[512];
  if (size >= sizeof text) return 0;
  memcpy(text, data, size);
  text[size] = 0;
  check(text, size);
  return 0;
}

/* A text that is refused gets a sentence that says what was expected. */
static inline void expect_refusal(void) {
  if (!strstr(kf_last_error(), "expected")) abort();
}

#endif
