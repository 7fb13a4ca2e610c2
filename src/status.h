/* SPDX-License-Identifier: Apache-2.0 */
/* How the rest of the library records a failure; see status.c. */
#ifndef KFI_STATUS_H
#define KFI_STATUS_H

#include "knapformer.h"

#if defined(__GNUC__)
#define KFI_PRINTF(format_at, args_at) __attribute__((format(printf, format_at, args_at)))
#else
#define KFI_PRINTF(format_at, args_at)
#endif

/* Record one sentence for kf_last_error() and return `status`: return kfi_fail(KF_EINVAL, ...); */
KFI_PRINTF(2, 3) kf_status kfi_fail(kf_status status, const char *format, ...);

/* Put "WHERE: " before the sentence of a failure; KF_OK stays what it is. */
kf_status kfi_fail_in(kf_status status, const char *where);

/* kfi_fail for an allocation: "out of memory: N bytes for WHAT". */
kf_status kfi_fail_memory(size_t n_bytes, const char *what);

#endif
