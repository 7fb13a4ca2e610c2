/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's workspace, laid out in cache lines. */
#ifndef KFI_WORKSPACE_H
#define KFI_WORKSPACE_H

#include "knapformer.h"

enum { KFI_LINE = 64 };

/* Bytes, rounded up to whole lines. */
static inline int64_t kfi_lines(int64_t bytes) {
  return (bytes + KFI_LINE - 1) / KFI_LINE * KFI_LINE;
}

/* Refuse a workspace that is missing, not on a line, or smaller than `need`. */
kf_status kfi_check_workspace(const void *workspace, int64_t bytes, int64_t need);

#endif
