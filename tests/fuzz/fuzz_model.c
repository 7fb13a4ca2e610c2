/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as a model: a shape that a cost can be made of, or one sentence. */
#include "fuzz_text.h"

static void check(const char *text, size_t size) {
  kf_model m;
  kf_cost cost;
  kf_cluster c;
  (void)size;
  if (kf_model_parse(text, &m)) {
    expect_refusal();
    return;
  }
  if (m.dim < 1 || m.layers < 1 || m.heads < 1 || m.heads > KF_MAX_HEADS) abort();
  if (kf_cluster_parse("free", 8, &c) || kf_cost_static(&m, &c, 0.4, &cost)) abort();
  if (!(kf_cost_work(&cost, 1) > 0)) abort();
}
