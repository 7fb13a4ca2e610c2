/* SPDX-License-Identifier: Apache-2.0 */
/*
** Any text as a mix: a sound batch, or one sentence. Codes that would fill the memory are left
** to the unit tests: few ranks are wanted, and counts of more than three digits are skipped.
*/
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <knapformer.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool large(const char *text) {
  for (const char *p = text; *p; p++)
    if (*p == 'b' && strspn(p + 1, "0123456789") > 3) return true;
  return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char text[256];
  if (size >= sizeof text) return 0;
  memcpy(text, data, size);
  text[size] = 0;
  if (large(text)) return 0;
  kf_batch *batch = NULL;
  int32_t n_ranks = 1 + (int32_t)(size % 7);
  if (kf_mix_create(text, n_ranks, size, &batch)) {
    if (batch || !strstr(kf_last_error(), "expected")) abort();
    return 0;
  }
  if (batch->n_ranks != n_ranks || batch->rank_off[0] != 0) abort();
  for (int32_t r = 0; r < n_ranks; r++)
    if (batch->rank_off[r] > batch->rank_off[r + 1]) abort();
  if (batch->rank_off[n_ranks] != batch->n_seqs) abort();
  for (int64_t i = 0; i < batch->n_seqs; i++)
    if (batch->len[i] < 0 || batch->len[i] > KF_MAX_LEN) abort();
  kf_batch_free(batch);
  return 0;
}
