/* SPDX-License-Identifier: Apache-2.0 */
/*
** Attention of a block. Of whole sequences, q, k and v are read where the matrix product left them.
** Of split ones, ranks exchange: rows with all heads become whole sequences of this rank's heads,
** and back (Ulysses). Every rank makes the same calls, also one that has no rows.
*/
#include "net.h"

/* Whole sequences of a span. */
static kf_attention whole(const train_net *net, int64_t l, const train_span *w) {
  const train_layer *layer = &net->layer[l];
  return (kf_attention){.n_segments = w->n_seqs,
                        .segment = net->segment + w->first_seq,
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
                        .workspace = net->workspace.data,
                        .workspace_bytes = net->workspace.cap_bytes};
}

/* This rank's heads of split sequences. */
static kf_attention split(const train_net *net, int64_t l) {
  const train_layer *layer = &net->layer[l];
  return (kf_attention){.n_segments = net->pack->exchange->n_segments,
                        .segment = net->pack->exchange->segment,
                        .head_dim = (int32_t)net->head_dim,
                        .isa = net->isa,
                        .q = layer->pair[0],
                        .k = layer->pair[1],
                        .v = layer->pair[2],
                        .o = layer->pair[3],
                        .lse = layer->pair_lse,
                        .d_o = net->d_pair[3],
                        .dq = net->d_pair[0],
                        .dk = net->d_pair[1],
                        .dv = net->d_pair[2],
                        .workspace = net->workspace.data,
                        .workspace_bytes = net->workspace.cap_bytes};
}

int64_t train_attend_workspace(const train_net *net) {
  kf_attention a = whole(net, 0, &net->all);
  int64_t n_bytes = kf_attention_workspace(&a);
  if (!net->split) return n_bytes;
  a = split(net, 0);
  int64_t more = kf_attention_workspace(&a);
  return more > n_bytes ? more : n_bytes;
}

/* ----------------------------------------------------------------------- exchanges */

static void lap(const train_net *net, train_phase phase) {
  if (net->pack->clock) train_clock_lap(net->pack->clock, phase);
}

/* Three tensors side by side in rows of 3 d, or one in rows of d. */
static void view_rows(const train_net *net, float *data, int32_t n, kf_tensor *out) {
  int64_t row_bytes = net->d * (int64_t)sizeof(float);
  for (int32_t i = 0; i < n; i++)
    out[i] =
      (kf_tensor){data + i * net->d, net->part[KF_PART_SPLIT].n_rows, row_bytes, n * row_bytes};
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
  status = back ? kf_exchange_reverse(pack->comm, pack->exchange, n, pair_view, row_view)
                : kf_exchange_forward(pack->comm, pack->exchange, n, row_view, pair_view);
  lap(net, TRAIN_PHASE_MOVE);
  return status;
}

/* ------------------------------------------------------------------------ attention */

kf_status train_attend_forward(train_net *net, int64_t l, const train_span *w) {
  kf_attention a = whole(net, l, w);
  return kf_attention_forward(&a);
}

kf_status train_attend_backward(train_net *net, int64_t l, const train_span *w) {
  kf_attention a = whole(net, l, w);
  return kf_attention_backward(&a);
}

kf_status train_split_forward(train_net *net, int64_t l, train_stage stage) {
  train_layer *layer = &net->layer[l];
  if (stage == TRAIN_OUT) return exchange(net, layer->qkv, layer->pair, 3, false);
  if (stage == TRAIN_BACK) return exchange(net, layer->o, layer->pair + 3, 1, true);
  kf_attention a = split(net, l);
  return kf_attention_forward(&a);
}

kf_status train_split_backward(train_net *net, int64_t l, train_stage stage) {
  if (stage == TRAIN_OUT) return exchange(net, net->dy, net->d_pair + 3, 1, false);
  if (stage == TRAIN_BACK) return exchange(net, net->wide, net->d_pair, 3, true);
  kf_attention a = split(net, l);
  return kf_attention_backward(&a);
}
