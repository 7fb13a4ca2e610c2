/* SPDX-License-Identifier: Apache-2.0 */
/* Which instructions a kernel may use on this machine. */
#ifndef KFI_ISA_H
#define KFI_ISA_H

#include "knapformer.h"

/* *out is one of KF_ISA_PORTABLE, KF_ISA_AVX2, KF_ISA_AVX512, and this machine has it. */
kf_status kfi_choose_isa(kf_isa wanted, kf_isa *out);

#endif
