/* SPDX-License-Identifier: Apache-2.0 */
/* Route and reverse in one call: the table of the plan, and the move. */
#include "comm.h"

kf_status kf_route_forward(kf_comm *comm, const kf_plan *plan, int32_t n_tensors,
                           const kf_tensor *home, const kf_tensor *held) {
  return kfi_move_by_plan(comm, plan, KF_EXCHANGE_ROUTE, &(kfi_move){n_tensors, {home, held}, 0});
}

kf_status kf_route_reverse(kf_comm *comm, const kf_plan *plan, int32_t n_tensors,
                           const kf_tensor *held, const kf_tensor *home) {
  return kfi_move_by_plan(comm, plan, KF_EXCHANGE_ROUTE, &(kfi_move){n_tensors, {home, held}, 1});
}
