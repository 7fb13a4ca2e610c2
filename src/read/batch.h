/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KFI_BATCH_H
#define KFI_BATCH_H

#include "knapformer.h"

/*
** A batch of one block, and where its arrays may be written. n_ranks and n_seqs must be
** within the limits of the header. `profile` NULL: the batch has none. Records KF_ENOMEM.
** kf_batch_free frees it.
*/
kf_status kfi_batch_alloc(int32_t n_ranks, int64_t n_seqs, kf_batch **out, int64_t **rank_off,
                          int64_t **len, kf_profile **profile);

#endif
