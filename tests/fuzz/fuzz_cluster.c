/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as a cluster: one that a cost can be made of, or one sentence. */
#include <math.h>

#include "fuzz_text.h"

static void check(const char *text, size_t size) {
  kf_cluster c;
  kf_cost cost;
  int32_t wanted = size % 3 == 0 ? 0 : (int32_t)(size % 40);
  if (kf_cluster_parse(text, wanted, &c)) {
    expect_refusal();
    return;
  }
  if (c.n_ranks < 1 || c.n_ranks > KF_MAX_RANKS || c.ranks_per_node < 1) abort();
  if (wanted && c.n_ranks != wanted) abort();
  if (!(c.intra_Bps > 0) || !(c.inter_Bps > 0) || !(c.latency_s >= 0)) abort();
  if (kf_cost_static(&(kf_model){3072, 57, 24}, &c, 0.4, &cost)) abort();
  double work = kf_cost_work(&cost, KF_MAX_LEN);
  if (!(work > 0) || isinf(work)) abort();
}
