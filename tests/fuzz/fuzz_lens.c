/* SPDX-License-Identifier: Apache-2.0 */
/*
** Any bytes as the lengths of a data set: sound lengths, or one sentence. Counts that would fill
** the memory are left to the unit tests: those of more than four digits are skipped.
*/
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <knapformer.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool large(const uint8_t *data, size_t size) {
  for (size_t i = 0; i < size; i++) {
    size_t digits = 0;
    if (data[i] != '*') continue;
    while (i + 1 < size && data[i + 1] >= '0' && data[i + 1] <= '9') i++, digits++;
    if (digits > 4) return true;
  }
  return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  int64_t *len = NULL, n = 0, tokens = 0;
  if (large(data, size)) return 0;
  if (kf_lens_parse("fuzz", (const char *)data, size, &len, &n)) {
    if (len || n || !strstr(kf_last_error(), "expected")) abort();
    return 0;
  }
  if (n < 1) abort();
  for (int64_t i = 0; i < n; i++) {
    if (len[i] < 1 || len[i] > KF_MAX_LEN) abort();
    tokens += len[i];
  }
  if (tokens > KF_MAX_TOKENS) abort();
  free(len);
  return 0;
}
