/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as a bag spec: bags that cover the ranks once, or one sentence. */
#include <stdlib.h>
#include <string.h>

#include <knapformer.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const int32_t worlds[] = {0, 1, 2, 8, 24, 32, 100, 4096};
  char text[512];
  if (size >= sizeof text) return 0;
  memcpy(text, data, size);
  text[size] = 0;
  for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++) {
    kf_bags *bags = NULL;
    if (kf_bags_parse(text, worlds[w], &bags)) {
      if (bags || !*kf_last_error()) abort();
      continue;
    }
    if (!bags) continue; /* auto */
    if ((worlds[w] && bags->n_ranks != worlds[w]) || bags->first[0] != 0) abort();
    if (bags->first[bags->n_bags] != bags->n_ranks) abort();
    if (bags->n_groups * bags->bags_per_group != bags->n_bags) abort();
    for (int32_t b = 0; b < bags->n_bags; b++)
      if (bags->first[b] >= bags->first[b + 1]) abort();
    kf_bags_free(bags);
  }
  return 0;
}
