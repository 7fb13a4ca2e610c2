/* SPDX-License-Identifier: Apache-2.0 */
/* kf_plan_check for who checks every step; see plan_check.c. */
#ifndef KFI_PLAN_CHECK_H
#define KFI_PLAN_CHECK_H

#include "../memory.h"
#include "../status.h"

/* Neither plan nor batch is NULL. `work` is kept from call to call: once it is large enough,
** nothing is allocated. */
kf_status kfi_plan_check(const kf_plan *plan, const kf_batch *batch, kfi_buffer *work);

#endif
