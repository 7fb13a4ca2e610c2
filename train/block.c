/* SPDX-License-Identifier: Apache-2.0 */
/*
** One adaLN-Zero block, forward and backward. Two branches, each between two sites:
**
**     site 2l      x0 = x1(l-1) + gate u1(l-1)     y = LN(x0) (1 + scale) + shift
**     attention    qkv = y Wqkv, RoPE, o = attention(qkv), u0 = o Wproj
**     site 2l+1    x1 = x0 + gate u0               y = LN(x1) (1 + scale) + shift
**     MLP          h = y Wfc1, u1 = gelu(h) Wfc2
**
** The MLP goes by tiles of rows, so that gelu(h) and its gradient need no memory of their own and
** are still in cache when the next product reads them.
*/
#include "net.h"

/* -------------------------------------------------------------------------- sites */

/* Where the stream of a site is, what is added to it, and by which of the modulation's vectors. */
typedef struct site_view {
  float *x, *residual, *u; /* residual and u NULL at site 0 */
  int64_t gate, shift;     /* scale follows shift */
} site_view;

static site_view view(const train_net *net, int64_t site) {
  int64_t layer = site / 2, after = site % 2;
  site_view v = {.x = site < 2 * net->layers ? net->layer[layer].x[after] : net->last_x,
                 .shift = 6 * layer + 3 * after};
  if (site == 0) return v;
  const train_layer *before = &net->layer[(site - 1) / 2];
  v.residual = before->x[!after];
  v.u = before->u[!after];
  v.gate = 6 * ((site - 1) / 2) + (after ? 2 : 5);
  return v;
}

static kf_adaln adaln_of(const train_net *net, int64_t site, const site_view *v) {
  const train_pack *pack = net->pack;
  const float *mod = net->mod;
  return (kf_adaln){.n_tokens = pack->n_rows,
                    .n_seqs = pack->n_seqs,
                    .dim = net->d,
                    .cu_seqlens = pack->seq_off,
                    .mod_stride = net->n_mod * net->d,
                    .isa = net->isa,
                    .shift = mod + v->shift * net->d,
                    .scale = mod + (v->shift + 1) * net->d,
                    .gate = v->u ? mod + v->gate * net->d : NULL,
                    .x = v->x,
                    .mean = net->mean + site * pack->n_rows,
                    .rstd = net->rstd + site * pack->n_rows,
                    .workspace = net->workspace,
                    .workspace_bytes = net->workspace_bytes};
}

kf_status train_site_forward(train_net *net, int64_t site) {
  site_view v = view(net, site);
  kf_adaln a = adaln_of(net, site, &v);
  if (net->pack->n_rows == 0) return KF_OK;
  a.residual = v.residual;
  a.u = v.u;
  a.y = net->y;
  return kf_adaln_forward(&a);
}

kf_status train_site_remake(train_net *net, int64_t site) {
  site_view v = view(net, site);
  kf_adaln a = adaln_of(net, site, &v);
  if (net->pack->n_rows == 0) return KF_OK;
  a.gate = NULL;
  a.mean = a.rstd = NULL;
  a.y = net->y;
  return kf_adaln_forward(&a);
}

kf_status train_site_backward(train_net *net, int64_t site) {
  site_view v = view(net, site);
  kf_adaln a = adaln_of(net, site, &v);
  if (net->pack->n_rows == 0) return KF_OK;
  a.u = v.u;
  a.dy = net->dy;
  a.dx_add = site < 2 * net->layers ? net->dx : NULL; /* nothing follows the last one */
  a.dx = net->dx;
  a.du = v.u ? net->du : NULL;
  a.dshift = net->d_mod + v.shift * net->d;
  a.dscale = net->d_mod + (v.shift + 1) * net->d;
  a.dgate = v.u ? net->d_mod + v.gate * net->d : NULL;
  return kf_adaln_backward(&a);
}

/* ---------------------------------------------------------------------------- MLP */

static int64_t tile_rows(const train_net *net, int64_t from) {
  int64_t left = net->pack->n_rows - from;
  return left < TRAIN_MLP_TILE ? left : TRAIN_MLP_TILE;
}

/* y to u. */
static void mlp_forward(train_net *net, int64_t l) {
  const train_layer *layer = &net->layer[l];
  int64_t d = net->d, wide = 4 * d;
  for (int64_t i = 0, n; (n = tile_rows(net, i)) > 0; i += n) {
    float *h = layer->h + i * wide, *u = layer->u[1] + i * d;
    train_map(n, wide, d, net->y + i * d, d, train_net_p(net, TRAIN_FC1_W, l), h);
    net->pw->bias_gelu(h, train_net_p(net, TRAIN_FC1_B, l), net->tile[0], n, wide);
    train_map(n, d, wide, net->tile[0], wide, train_net_p(net, TRAIN_FC2_W, l), u);
    net->pw->add_bias(u, train_net_p(net, TRAIN_FC2_B, l), n, d);
  }
}

/* du and y to dy. */
static void mlp_backward(train_net *net, int64_t l, float *grads) {
  const train_layer *layer = &net->layer[l];
  int64_t d = net->d, wide = 4 * d;
  float *g = net->tile[0], *dh = net->tile[1];
  for (int64_t i = 0, n; (n = tile_rows(net, i)) > 0; i += n) {
    const float *du = net->du + i * d;
    train_map_back(n, wide, d, du, train_net_p(net, TRAIN_FC2_W, l), dh);
    net->pw->gelu_backward(layer->h + i * wide, g, dh, n * wide);
    train_map_weight(n, d, wide, du, g, wide, train_net_g(net, grads, TRAIN_FC2_W, l));
    net->pw->add_rows(du, n, d, train_net_g(net, grads, TRAIN_FC2_B, l));
    train_map_weight(n, wide, d, dh, net->y + i * d, d, train_net_g(net, grads, TRAIN_FC1_W, l));
    net->pw->add_rows(dh, n, wide, train_net_g(net, grads, TRAIN_FC1_B, l));
    train_map_back(n, d, wide, dh, train_net_p(net, TRAIN_FC1_W, l), net->dy + i * d);
  }
}

/* ---------------------------------------------------------------------- attention */

/* y to u. */
static kf_status attention_forward(train_net *net, int64_t l) {
  const train_layer *layer = &net->layer[l];
  int64_t n = net->pack->n_rows, d = net->d;
  train_map(n, 3 * d, d, net->y, d, train_net_p(net, TRAIN_QKV_W, l), layer->qkv);
  net->pw->add_bias(layer->qkv, train_net_p(net, TRAIN_QKV_B, l), n, 3 * d);
  net->pw->rope(layer->qkv, net->cos_sin, n, net->heads, net->head_dim, 3 * d, false);
  net->pw->rope(layer->qkv + d, net->cos_sin, n, net->heads, net->head_dim, 3 * d, false);
  kf_status status = train_attend_forward(net, l);
  if (status) return status;
  train_map(n, d, d, layer->o, d, train_net_p(net, TRAIN_PROJ_W, l), layer->u[0]);
  net->pw->add_bias(layer->u[0], train_net_p(net, TRAIN_PROJ_B, l), n, d);
  return KF_OK;
}

/* du to dy. */
static kf_status attention_backward(train_net *net, int64_t l, float *grads) {
  const train_layer *layer = &net->layer[l];
  int64_t n = net->pack->n_rows, d = net->d;
  float *d_qkv = net->wide;
  kf_status status;
  train_map_weight(n, d, d, net->du, layer->o, d, train_net_g(net, grads, TRAIN_PROJ_W, l));
  net->pw->add_rows(net->du, n, d, train_net_g(net, grads, TRAIN_PROJ_B, l));
  train_map_back(n, d, d, net->du, train_net_p(net, TRAIN_PROJ_W, l), net->dy);
  if ((status = train_attend_backward(net, l))) return status;
  net->pw->rope(d_qkv, net->cos_sin, n, net->heads, net->head_dim, 3 * d, true);
  net->pw->rope(d_qkv + d, net->cos_sin, n, net->heads, net->head_dim, 3 * d, true);
  if ((status = train_site_remake(net, 2 * l))) return status;
  train_map_weight(n, 3 * d, d, d_qkv, net->y, d, train_net_g(net, grads, TRAIN_QKV_W, l));
  net->pw->add_rows(d_qkv, n, 3 * d, train_net_g(net, grads, TRAIN_QKV_B, l));
  train_map_back(n, d, 3 * d, d_qkv, train_net_p(net, TRAIN_QKV_W, l), net->dy);
  return KF_OK;
}

/* -------------------------------------------------------------------------- block */

kf_status train_block_forward(train_net *net, int64_t l) {
  kf_status status;
  if ((status = train_site_forward(net, 2 * l))) return status;
  if ((status = attention_forward(net, l))) return status;
  if ((status = train_site_forward(net, 2 * l + 1))) return status;
  mlp_forward(net, l);
  return KF_OK;
}

/* The next site's gradient is in dy: it gives du of this block's MLP, whose output it must see. */
kf_status train_block_backward(train_net *net, int64_t l, float *grads) {
  kf_status status;
  if ((status = train_site_remake(net, 2 * l + 1))) return status;
  if (l < net->layers - net->n_kept) mlp_forward(net, l); /* y is as it was: so is what it gives */
  if ((status = train_site_backward(net, 2 * l + 2))) return status;
  mlp_backward(net, l, grads);
  if ((status = train_site_backward(net, 2 * l + 1))) return status;
  return attention_backward(net, l, grads);
}
