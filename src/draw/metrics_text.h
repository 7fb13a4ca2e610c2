/* SPDX-License-Identifier: Apache-2.0 */
/* What the writers of metrics share: metrics_json.c, prometheus.c, trace.c. */
#ifndef KFI_METRICS_TEXT_H
#define KFI_METRICS_TEXT_H

#include <stdbool.h>

#include "../status.h"

/* Is there something to write, of the version we know, and a place for it? `who` is the caller. */
kf_status kfi_metrics_check(const char *who, const kf_metrics *metrics, char **out);

/* Bags that say more than the ranks do: in auto, every rank is a bag of its own. */
bool kfi_metrics_bagged(const kf_metrics *metrics);

/* "video", for a kf_kind; "unknown" for what is none. */
const char *kfi_kind_word(int32_t kind);

/* Entry i of an array that may be missing, as before the first step. */
static inline double kfi_at(const double *x, int32_t i) { return x ? x[i] : 0; }

#endif
