/* SPDX-License-Identifier: Apache-2.0 */
/* Ulysses out and back in one call: the table of the plan, and the move. */
#include "comm.h"

int64_t kf_ulysses_pairs(const kf_plan *plan, int32_t rank) {
  if (!plan || rank < 0 || rank >= plan->n_ranks ||
      plan->segment_off[rank] == plan->segment_off[rank + 1])
    return 0;
  const kf_segment *last = &plan->segment[plan->segment_off[rank + 1] - 1];
  return last->offset + last->rows * last->heads;
}

kf_status kf_ulysses_out(kf_comm *comm, const kf_plan *plan, int32_t n_tensors,
                         const kf_tensor *rows, const kf_tensor *pairs) {
  return kfi_move_by_plan(comm, plan, KF_EXCHANGE_ULYSSES,
                          &(kfi_move){n_tensors, {rows, pairs}, 0});
}

kf_status kf_ulysses_back(kf_comm *comm, const kf_plan *plan, int32_t n_tensors,
                          const kf_tensor *pairs, const kf_tensor *rows) {
  return kfi_move_by_plan(comm, plan, KF_EXCHANGE_ULYSSES,
                          &(kfi_move){n_tensors, {rows, pairs}, 1});
}
