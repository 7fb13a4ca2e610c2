/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a length file: a sound batch, or one sentence that names a place. */
#include <stdlib.h>
#include <string.h>

#include <knapformer.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  kf_batch *batch = NULL;
  int64_t n_newlines = 0;
  for (size_t i = 0; i < size; i++) n_newlines += data[i] == '\n';
  if (kf_batch_parse("fuzz", (const char *)data, size, &batch)) {
    if (batch || !strstr(kf_last_error(), "expected")) abort();
    return 0;
  }
  if (batch->n_ranks != n_newlines + (data[size - 1] != '\n')) abort();
  if (batch->rank_off[0] != 0 || batch->rank_off[batch->n_ranks] != batch->n_seqs) abort();
  for (int32_t r = 0; r < batch->n_ranks; r++)
    if (batch->rank_off[r] > batch->rank_off[r + 1]) abort();
  for (int64_t i = 0; i < batch->n_seqs; i++)
    if (batch->len[i] < 0 || batch->len[i] > KF_MAX_LEN) abort();
  kf_batch_free(batch);
  return 0;
}
