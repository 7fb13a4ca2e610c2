/* SPDX-License-Identifier: Apache-2.0 */
/* kf_exchange_create for who makes tables in every step; see exchange.c. */
#ifndef KFI_EXCHANGE_H
#define KFI_EXCHANGE_H

#include "../memory.h"
#include "../status.h"

/* Kept from call to call: once it is large enough, nothing is allocated. */
typedef struct kfi_exchange_memory {
  kfi_buffer block, scratch;
} kfi_exchange_memory;

/* The table's arrays lie in `memory`. Where it fails, what was made there before is still valid. */
kf_status kfi_exchange_build(const kf_plan *plan, int32_t rank, kf_exchange_kind kind,
                             int32_t heads, kfi_exchange_memory *memory, kf_exchange *out);

#endif
