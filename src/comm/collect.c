/* SPDX-License-Identifier: Apache-2.0 */
/*
** Sort runs by peer: count, add up, place. Linear in runs and ranks; the memory is the comm's and
** stays from call to call.
*/
#include <string.h>

#include "comm.h"

kf_status kfi_collect(kf_comm *comm, void (*walk)(kfi_collector *, const kfi_move *),
                      const kfi_move *move, kfi_side side[2]) {
  kfi_collector c = {0};
  size_t n = (size_t)comm->size + 1;
  int64_t *peers = kfi_buffer_reserve(&comm->peers, 4 * n * sizeof *peers);
  if (!peers) return KF_ENOMEM;
  memset(peers, 0, 4 * n * sizeof *peers);
  for (int s = 0; s < 2; s++) {
    c.run_off[s] = peers + (size_t)(2 * s) * n;
    c.cursor[s] = c.run_off[s] + n;
  }
  walk(&c, move);

  for (int s = 0; s < 2; s++)
    for (int32_t q = 0; q < comm->size; q++) {
      c.cursor[s][q] = c.run_off[s][q];
      c.run_off[s][q + 1] += c.run_off[s][q];
    }
  size_t n_runs[2] = {(size_t)c.run_off[0][comm->size], (size_t)c.run_off[1][comm->size]};
  kfi_run *run = kfi_buffer_reserve(&comm->runs, (n_runs[0] + n_runs[1]) * sizeof *run);
  if (!run) return KF_ENOMEM;
  c.run[0] = run;
  c.run[1] = run + n_runs[0];
  walk(&c, move);
  for (int s = 0; s < 2; s++) side[s] = (kfi_side){c.run_off[s], c.run[s]};
  return KF_OK;
}
