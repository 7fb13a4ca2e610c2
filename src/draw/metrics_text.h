/* SPDX-License-Identifier: Apache-2.0 */
/* What the writers of metrics share: metrics_json.c, prometheus.c, trace.c and outputs.c. */
#ifndef KFI_METRICS_TEXT_H
#define KFI_METRICS_TEXT_H

#include <stdbool.h>

#include "../status.h"

/*
** A Chrome trace (chrome://tracing, Perfetto), piece by piece: one track per rank, on it plan,
** route, compute and wait of each step. The beginning, each step and the end come one after the
** other; it can be read at any time, also without its end. free() each.
*/
kf_status kfi_trace_begin(int32_t n_ranks, char **out);
kf_status kfi_trace_step(const kf_metrics *metrics, char **out);
kf_status kfi_trace_end(char **out);

/* Is there something to write, of the version we know, and a place for it? `who` is the caller. */
kf_status kfi_metrics_check(const char *who, const kf_metrics *metrics, char **out);

/* Bags that say more than the ranks do: in auto, every rank is a bag of its own. */
bool kfi_metrics_bagged(const kf_metrics *metrics);

/* Entry i of an array that may be missing, as before the first step. */
static inline double kfi_at(const double *x, int32_t i) { return x ? x[i] : 0; }

#endif
