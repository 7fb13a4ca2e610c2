/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as a model: a shape that a cost can be made of, or one sentence. */
#include <stdlib.h>
#include <string.h>

#include <knapformer.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char text[512];
  if (size >= sizeof text) return 0;
  memcpy(text, data, size);
  text[size] = 0;
  kf_model m;
  kf_cost cost;
  if (kf_model_parse(text, &m)) {
    if (!strstr(kf_last_error(), "expected")) abort();
    return 0;
  }
  if (m.dim < 1 || m.layers < 1 || m.heads < 1 || m.heads > KF_MAX_HEADS) abort();
  kf_cluster c;
  if (kf_cluster_parse("free", 8, &c) || kf_cost_static(&m, &c, 0.4, &cost)) abort();
  if (!(kf_cost_work(&cost, 1) > 0)) abort();
  return 0;
}
