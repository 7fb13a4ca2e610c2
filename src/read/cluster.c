/* SPDX-License-Identifier: Apache-2.0 */
/*
** A cluster from a name or a text.
**
** The number of ranks can come from two sides: the caller has a batch of so many, and the
** text may say nodes=N. Where both speak they must agree; where the text is silent, nodes of
** ranks_per_node are filled one after the other and the last may be partial.
*/
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "../status.h"
#include "../text.h"

enum { NODES, PER_NODE, TFLOPS, PASSES, ELEM, INTRA, INTER, LATENCY, N_FIELDS };

/* Wide enough for any machine, narrow enough that no product of them overflows. */
static const kfi_field fields[N_FIELDS] = {
  [NODES] = {"nodes", 1, KF_MAX_RANKS, KFI_WHOLE},
  [PER_NODE] = {"ranks_per_node", 1, KF_MAX_RANKS, KFI_WHOLE},
  [TFLOPS] = {"tflops", 1e-6, 1e9, KFI_REAL},
  [PASSES] = {"passes", 1e-3, 1e3, KFI_REAL},
  [ELEM] = {"elem_bytes", 0.125, 64, KFI_REAL},
  [INTRA] = {"intra_GBps", 1e-6, 1e9, KFI_REAL_OR_INF},
  [INTER] = {"inter_GBps", 1e-6, 1e9, KFI_REAL_OR_INF},
  [LATENCY] = {"latency_us", 0, 1e9, KFI_REAL},
};

/* h100x32, in the units of the text. */
static const double reference[N_FIELDS] = {
  [NODES] = 4, [PER_NODE] = 8, [TFLOPS] = 300, [PASSES] = 4,
  [ELEM] = 2,  [INTRA] = 100,  [INTER] = 10,   [LATENCY] = 10,
};

kf_status kf_cluster_parse(const char *text, int32_t n_ranks, kf_cluster *out) {
  double value[N_FIELDS];
  uint32_t seen = 0;
  memcpy(value, reference, sizeof value);
  if (!out) return kfi_fail(KF_EINVAL, "cluster: a NULL argument");
  if (n_ranks < 0 || n_ranks > KF_MAX_RANKS)
    return kfi_fail(KF_EINVAL, "cluster: %" PRId32 " ranks wanted, expected 0 to %d", n_ranks,
                    KF_MAX_RANKS);
  kfi_text t = kfi_text_open("cluster", text ? text : "");

  if (kfi_text_is(&t, "free")) {
    value[INTRA] = value[INTER] = INFINITY;
    value[LATENCY] = 0;
  } else if (kfi_text_is(&t, "h100x32")) {
    seen = 1u << NODES;
  } else if (t.at < t.end) {
    if (!strchr(text, '=')) /* a name, but none we know */
      return kfi_text_bad(&t,
                          "h100x32, free or a text such as nodes=4,ranks_per_node=8,tflops=300");
    kf_status status = kfi_text_fields(&t, fields, N_FIELDS, value, &seen);
    if (status != KF_OK) return status;
  }

  int64_t said = (int64_t)value[NODES] * (int64_t)value[PER_NODE];
  bool says = n_ranks == 0 || seen & 1u << NODES;
  if (says && said > KF_MAX_RANKS)
    return kfi_fail(KF_EINVAL, "cluster \"%.200s\": %" PRId64 " ranks, expected at most %d",
                    t.begin, said, KF_MAX_RANKS);
  if (says && n_ranks > 0 && said != n_ranks)
    return kfi_fail(KF_EINVAL,
                    "cluster \"%.200s\": it has %.0f nodes of %.0f ranks, %" PRId64
                    " in all, expected %" PRId32 " ranks in all",
                    t.begin, value[NODES], value[PER_NODE], said, n_ranks);

  *out = (kf_cluster){.n_ranks = says ? (int32_t)said : n_ranks,
                      .ranks_per_node = (int32_t)value[PER_NODE],
                      .flops = value[TFLOPS] * 1e12,
                      .passes = value[PASSES],
                      .elem_bytes = value[ELEM],
                      .intra_Bps = value[INTRA] * 1e9,
                      .inter_Bps = value[INTER] * 1e9,
                      .latency_s = value[LATENCY] / 1e6};
  return KF_OK;
}
