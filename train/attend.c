/* SPDX-License-Identifier: Apache-2.0 */
/*
** Attention of a block. Where no sequence of the step is split, q, k and v are read where the
** matrix product left them. Where one is, all ranks exchange: rows with all heads become whole
** sequences of this rank's heads, and back (Ulysses). Every rank makes the same calls, also one
** that has no rows.
*/
#include "net.h"

static kf_attention attention_of(const train_net *net, int64_t l) {
  const train_pack *pack = net->pack;
  const train_layer *layer = &net->layer[l];
  kf_attention a = {.n_segments = pack->n_seqs,
                    .segment = net->segment,
                    .head_dim = (int32_t)net->head_dim,
                    .isa = net->isa,
                    .qkv_stride = 3 * net->d,
                    .q = layer->qkv,
                    .k = layer->qkv + net->d,
                    .v = layer->qkv + 2 * net->d,
                    .o = layer->o,
                    .lse = layer->lse,
                    .d_o = net->dy,
                    .dq = net->wide,
                    .dk = net->wide + net->d,
                    .dv = net->wide + 2 * net->d,
                    .workspace = net->workspace,
                    .workspace_bytes = net->workspace_bytes};
  if (!net->split) return a;
  const kf_plan *plan = pack->plan;
  int32_t rank = kf_comm_rank(pack->comm);
  a.n_segments = plan->segment_off[rank + 1] - plan->segment_off[rank];
  a.segment = plan->segment + plan->segment_off[rank];
  a.qkv_stride = 0;
  a.q = layer->pair[0], a.k = layer->pair[1], a.v = layer->pair[2], a.o = layer->pair[3];
  a.dq = net->d_pair[0], a.dk = net->d_pair[1], a.dv = net->d_pair[2], a.d_o = net->d_pair[3];
  return a;
}

int64_t train_attend_workspace(const train_net *net) {
  kf_attention a = attention_of(net, 0);
  return kf_attention_workspace(&a);
}

/* ----------------------------------------------------------------------- exchanges */

static void lap(const train_net *net, train_phase phase) {
  if (net->pack->clock) train_clock_lap(net->pack->clock, phase);
}

/* Three tensors side by side in rows of 3 d, or one in rows of d. */
static void view_rows(const train_net *net, float *data, int32_t n, kf_tensor *out) {
  int64_t row_bytes = net->d * (int64_t)sizeof(float);
  for (int32_t i = 0; i < n; i++)
    out[i] = (kf_tensor){data + i * net->d, net->pack->n_rows, row_bytes, n * row_bytes};
}

static void view_pairs(const train_net *net, float *const *pair, int32_t n, kf_tensor *out) {
  for (int32_t i = 0; i < n; i++)
    out[i] = (kf_tensor){pair[i], net->n_pairs, net->head_dim * (int64_t)sizeof(float), 0};
}

/* Rows to pairs, or back. Who comes first waits for the others, and that is not its work. */
static kf_status exchange(train_net *net, float *rows, float *const *pair, int32_t n, bool back) {
  const train_pack *pack = net->pack;
  kf_tensor row_view[3], pair_view[3];
  kf_status status;
  view_rows(net, rows, n, row_view);
  view_pairs(net, pair, n, pair_view);
  lap(net, TRAIN_PHASE_COMPUTE);
  status = kf_comm_barrier(pack->comm);
  lap(net, TRAIN_PHASE_WAIT);
  if (status) return status;
  status = back ? kf_ulysses_back(pack->comm, pack->plan, n, pair_view, row_view)
                : kf_ulysses_out(pack->comm, pack->plan, n, row_view, pair_view);
  lap(net, TRAIN_PHASE_MOVE);
  return status;
}

/* ------------------------------------------------------------------------ attention */

kf_status train_attend_forward(train_net *net, int64_t l) {
  train_layer *layer = &net->layer[l];
  kf_attention a = attention_of(net, l);
  kf_status status;
  if (!net->split) return kf_attention_forward(&a);
  if ((status = exchange(net, layer->qkv, layer->pair, 3, false))) return status;
  if ((status = kf_attention_forward(&a))) return status;
  return exchange(net, layer->o, layer->pair + 3, 1, true);
}

kf_status train_attend_backward(train_net *net, int64_t l) {
  kf_attention a = attention_of(net, l);
  kf_status status;
  if (!net->split) return kf_attention_backward(&a);
  if ((status = exchange(net, net->dy, net->d_pair + 3, 1, false))) return status;
  if ((status = kf_attention_backward(&a))) return status;
  return exchange(net, net->wide, net->d_pair, 3, true);
}
