/* SPDX-License-Identifier: Apache-2.0 */
/*
** The network: memory of a step, forward and backward.
**
**     rows --embed--> block 0 .. L-1 --site 2L--> y --product--> predictions
**
** Memory is reserved for the largest step so far and an eighth more, because steps of a mix differ
** by their texts; pages that a step does not reach are never touched.
*/
#include "net.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const int64_t default_keep_bytes = (int64_t)2 << 30;

const float *train_net_p(const train_net *net, int id, int64_t layer) {
  const train_tensor *t = &net->params.tensor[id];
  return net->p + t->offset + (layer ? train_tensor_size(t) / net->layers * layer : 0);
}

float *train_net_g(const train_net *net, float *grads, int id, int64_t layer) {
  return grads + (train_net_p(net, id, layer) - net->p);
}

/* ------------------------------------------------------------------------- memory */

/* Hands out pieces of a block, or only counts them where there is none yet. */
typedef struct allotment {
  float *block;
  int64_t at;
} allotment;

static float *take(allotment *a, int64_t n) {
  float *piece = a->block ? a->block + a->at : NULL;
  a->at += (n + 15) / 16 * 16;
  return piece;
}

static void allot_layer(train_net *net, allotment *a, int64_t l, float *shared_h, float *shared_u) {
  train_layer *layer = &net->layer[l];
  int64_t n = net->pack->n_rows, d = net->d, pairs = net->split ? net->n_pairs : 0;
  bool kept = l >= net->layers - net->n_kept;
  for (int i = 0; i < 2; i++) layer->x[i] = take(a, n * d);
  layer->u[0] = take(a, n * d);
  layer->qkv = take(a, n * 3 * d);
  layer->o = take(a, n * d);
  for (int i = 0; i < 4; i++) layer->pair[i] = take(a, pairs * net->head_dim);
  layer->lse = take(a, n * net->heads);
  layer->pair_lse = take(a, pairs);
  layer->h = kept ? take(a, n * 4 * d) : shared_h;
  layer->u[1] = kept ? take(a, n * d) : shared_u;
}

static void allot(train_net *net, allotment *a) {
  int64_t n = net->pack->n_rows, s = net->pack->n_seqs, d = net->d;
  int64_t pairs = net->split ? net->n_pairs : 0, tile = n < TRAIN_MLP_TILE ? n : TRAIN_MLP_TILE;
  bool all_kept = net->n_kept == net->layers;
  float *h = take(a, all_kept ? 0 : n * 4 * d), *u = take(a, all_kept ? 0 : n * d);
  for (int64_t l = 0; l < net->layers; l++) allot_layer(net, a, l, h, u);
  net->mean = take(a, (2 * net->layers + 1) * n);
  net->rstd = take(a, (2 * net->layers + 1) * n);
  net->last_x = take(a, n * d);
  net->y = take(a, n * d);
  net->dy = take(a, n * d);
  net->dx = take(a, n * d);
  net->du = take(a, n * d);
  net->wide = take(a, n * 3 * d);
  for (int i = 0; i < 2; i++) net->tile[i] = take(a, tile * 4 * d);
  for (int i = 0; i < 4; i++) net->d_pair[i] = take(a, pairs * net->head_dim);
  net->cos_sin = take(a, n * net->head_dim);
  net->mod = take(a, s * net->n_mod * d);
  net->d_mod = take(a, s * net->n_mod * d);
  for (int i = 0; i < 6; i++) net->cond[i] = take(a, s * d);
  net->waves = take(a, s * TRAIN_TIME);
}

/* How many layers can keep their MLP's inside. */
static int64_t layers_to_keep(const train_net *net, int64_t n_rows) {
  int64_t row = net->d * (int64_t)sizeof(float);
  int64_t pairs = 4 * net->n_pairs * net->head_dim * (int64_t)sizeof(float);
  int64_t fixed = (n_rows * row * 7 + pairs) * net->layers;
  if (n_rows == 0) return net->layers;
  int64_t n = (net->keep_bytes - fixed) / (n_rows * row * 5);
  return n < 0 ? 0 : n > net->layers ? net->layers : n;
}

static kf_status reserve_workspace(train_net *net) {
  const train_pack *pack = net->pack;
  kf_adaln a = {.n_tokens = pack->n_rows,
                .n_seqs = pack->n_seqs,
                .dim = net->d,
                .cu_seqlens = pack->seq_off,
                .gate = net->mod}; /* with a prologue, the larger one */
  int64_t need = kf_adaln_workspace(&a), attention = train_attend_workspace(net);
  return train_reserve(&net->workspace, need > attention ? need : attention, "a workspace");
}

/* The parts of a pack, and where each one's rows are. */
static kf_status list_parts(train_net *net) {
  const train_pack *pack = net->pack;
  int64_t *off, n_bytes = (pack->n_seqs + KF_N_PARTS) * (int64_t)sizeof *off;
  const int64_t end[KF_N_PARTS] = {
    pack->n_split, net->split ? pack->n_split + pack->n_early : pack->n_seqs, pack->n_seqs};
  kf_status status = train_reserve(&net->part_off, n_bytes, "a step's parts");
  if (status) return status;
  off = net->part_off.data;
  net->all = (train_span){0, pack->n_rows, 0, pack->n_seqs, pack->seq_off};
  for (int64_t i = 0, first = 0; i < KF_N_PARTS; first = end[i++]) {
    int64_t row = pack->seq_off[first];
    net->part[i] = (train_span){row, pack->seq_off[end[i]] - row, first, end[i] - first, off};
    for (int64_t s = first; s <= end[i]; s++) *off++ = pack->seq_off[s] - row;
  }
  return KF_OK;
}

/* Lay everything out for a pack. */
static kf_status prepare(train_net *net, const float *params, const train_pack *pack) {
  allotment a = {0};
  kf_status status;
  net->p = params;
  net->pack = pack;
  net->split = pack->exchange != NULL;
  if ((status = list_parts(net))) return status;
  net->n_pairs = net->split ? pack->exchange->n_units[1] : 0;
  net->n_kept = layers_to_keep(net, pack->n_rows);
  allot(net, &a);
  status = train_reserve(&net->block, a.at * (int64_t)sizeof(float), "a step's activations");
  if (status) return status;
  allot(net, &(allotment){.block = net->block.data});
  status = train_reserve(&net->segments, pack->n_seqs * (int64_t)sizeof *net->segment,
                         "a step's sequences");
  if (status) return status;
  net->segment = net->segments.data;
  for (int64_t s = 0; s < pack->n_seqs; s++)
    net->segment[s] = (kf_segment){.rows = pack->seq_off[s + 1] - pack->seq_off[s],
                                   .offset = pack->seq_off[s] * net->heads,
                                   .heads = (int32_t)net->heads};
  return reserve_workspace(net);
}

/* ---------------------------------------------------------------------- the object */

kf_status train_net_create(const train_net_options *options, train_net **out) {
  train_params params;
  const train_pointwise *pointwise = train_pointwise_of(options->isa);
  kf_status status = train_params_of(&options->model, &params);
  if (status) return status;
  if (!pointwise) return kf_fail(KF_EINVAL, "isa: this machine does not have it");
  train_net *net = calloc(1, sizeof *net);
  if (!net) return train_fail(KF_ENOMEM, "out of memory: a network");
  const kf_model *m = &options->model;
  net->params = params;
  net->d = m->dim;
  net->heads = m->heads;
  net->head_dim = m->dim / m->heads;
  net->layers = m->layers;
  net->n_mod = 6 * net->layers + 2;
  net->pw = pointwise;
  net->isa = options->isa;
  net->keep_bytes = options->keep_bytes ? options->keep_bytes : default_keep_bytes;
  net->layer = calloc((size_t)net->layers, sizeof *net->layer);
  if (!net->layer) {
    free(net);
    return train_fail(KF_ENOMEM, "out of memory: %" PRId32 " layers of a network", m->layers);
  }
  *out = net;
  return KF_OK;
}

void train_net_free(train_net *net) {
  if (!net) return;
  free(net->block.data);
  free(net->segments.data);
  free(net->part_off.data);
  free(net->workspace.data);
  free(net->layer);
  free(net);
}

kf_status train_net_bytes(const train_net_options *options, int64_t n_rows, int64_t n_seqs,
                          int64_t *out) {
  train_pack pack = {.n_rows = n_rows, .n_seqs = n_seqs};
  allotment a = {0};
  train_net *net;
  kf_status status = train_net_create(options, &net);
  if (status) return status;
  net->pack = &pack;
  net->n_kept = layers_to_keep(net, n_rows);
  allot(net, &a);
  train_net_free(net);
  *out = a.at * (int64_t)sizeof(float);
  return KF_OK;
}

/* ------------------------------------------------------------- forward, backward */

static void lap(const train_net *net) {
  if (net->pack->clock) train_clock_lap(net->pack->clock, TRAIN_PHASE_COMPUTE);
}

static kf_status forward(train_net *net, const float *params, const train_pack *pack,
                         float *prediction) {
  kf_status status = prepare(net, params, pack);
  if (status) return status;
  int64_t n = pack->n_rows;
  train_angles(net);
  train_condition_forward(net);
  train_embed_forward(net, net->layer[0].x[0]);
  for (int64_t l = 0; l < net->layers; l++)
    if ((status = train_block_forward(net, l))) return status;
  if ((status = train_site_forward(net, 2 * net->layers, &net->all))) return status;
  train_map(n, TRAIN_VALUES, net->d, net->y, net->d, train_net_p(net, TRAIN_OUT_W, 0), prediction);
  net->pw->add_bias(prediction, train_net_p(net, TRAIN_OUT_B, 0), n, TRAIN_VALUES);
  lap(net);
  return KF_OK;
}

kf_status train_net_forward(train_net *net, const float *params, const train_pack *pack,
                            float *prediction) {
  kf_status status = forward(net, params, pack, prediction);
  if (status) net->pack = NULL; /* there is nothing to go back from */
  return status;
}

kf_status train_net_backward(train_net *net, const float *params, const train_pack *pack,
                             const float *d_prediction, float *grads) {
  int64_t n = pack->n_rows, d = net->d;
  kf_status status;
  if (net->pack != pack || net->p != params)
    return kf_fail(KF_EINVAL, "backward: another pack or other parameters than forward's");
  memset(grads, 0, (size_t)net->params.n_floats * sizeof *grads);
  if ((status = train_site_remake(net, 2 * net->layers, &net->all))) return status;
  train_map_weight(n, TRAIN_VALUES, d, d_prediction, net->y, d,
                   train_net_g(net, grads, TRAIN_OUT_W, 0));
  net->pw->add_rows(d_prediction, n, TRAIN_VALUES, train_net_g(net, grads, TRAIN_OUT_B, 0));
  train_map_back(n, d, TRAIN_VALUES, d_prediction, train_net_p(net, TRAIN_OUT_W, 0), net->dy);
  for (int64_t l = net->layers - 1; l >= 0; l--)
    if ((status = train_block_backward(net, l, grads))) return status;
  if ((status = train_site_backward(net, 0, &net->all))) return status;
  train_embed_backward(net, net->dx, grads);
  train_condition_backward(net, grads);
  lap(net);
  return KF_OK;
}

double train_net_flops(const kf_model *m, int64_t len) {
  double d = m->dim, layers = m->layers, n = (double)len;
  double token = layers * 24 * d * d + 2 * TRAIN_VALUES * d;
  double seq = 2 * (6 * layers + 2) * d * d + 2 * d * d;
  double first = 2 * TRAIN_VALUES * d * n + 2 * TRAIN_TIME * d; /* of data: no gradient of that */
  double attention = layers * 4 * n * n * d;
  /* Backward: two products for each, and five for attention's two. */
  return 3 * (n * token + seq) + 2 * first + 3.5 * attention;
}
