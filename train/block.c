/* SPDX-License-Identifier: Apache-2.0 */
/*
** One adaLN-Zero block, forward and backward. Two branches, each between two sites:
**
**     site 2l      x0 = x1(l-1) + gate u1(l-1)     y = LN(x0) (1 + scale) + shift
**     attention    qkv = y Wqkv, RoPE, o = attention(qkv), u0 = o Wproj
**     site 2l+1    x1 = x0 + gate u0               y = LN(x1) (1 + scale) + shift
**     MLP          h = y Wfc1, u1 = gelu(h) Wfc2
**
** Split sequences meet other ranks between before() and after(); whole ones of the same block are
** computed while the others come, see train_pack.
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

/* The rows of a span. */
static float *rows(float *base, const train_span *w, int64_t width) {
  return base ? base + w->first * width : NULL;
}

static kf_adaln adaln_of(const train_net *net, int64_t site, const site_view *v,
                         const train_span *w) {
  const float *mod = net->mod + w->first_seq * net->n_mod * net->d;
  int64_t at = site * net->pack->n_rows + w->first;
  return (kf_adaln){.n_tokens = w->n_rows,
                    .n_seqs = w->n_seqs,
                    .dim = net->d,
                    .cu_seqlens = w->seq_off,
                    .mod_stride = net->n_mod * net->d,
                    .isa = net->isa,
                    .shift = mod + v->shift * net->d,
                    .scale = mod + (v->shift + 1) * net->d,
                    .gate = v->u ? mod + v->gate * net->d : NULL,
                    .x = rows(v->x, w, net->d),
                    .mean = net->mean + at,
                    .rstd = net->rstd + at,
                    .workspace = net->workspace.data,
                    .workspace_bytes = net->workspace.cap_bytes};
}

kf_status train_site_forward(train_net *net, int64_t site, const train_span *w) {
  site_view v = view(net, site);
  kf_adaln a = adaln_of(net, site, &v, w);
  if (w->n_rows == 0) return KF_OK;
  a.residual = rows(v.residual, w, net->d);
  a.u = rows(v.u, w, net->d);
  a.y = rows(net->y, w, net->d);
  return kf_adaln_forward(&a);
}

kf_status train_site_remake(train_net *net, int64_t site, const train_span *w) {
  site_view v = view(net, site);
  kf_adaln a = adaln_of(net, site, &v, w);
  if (w->n_rows == 0) return KF_OK;
  a.gate = NULL;
  a.mean = a.rstd = NULL;
  a.y = rows(net->y, w, net->d);
  return kf_adaln_forward(&a);
}

kf_status train_site_backward(train_net *net, int64_t site, const train_span *w) {
  site_view v = view(net, site);
  kf_adaln a = adaln_of(net, site, &v, w);
  float *d_mod = net->d_mod + w->first_seq * net->n_mod * net->d;
  if (w->n_rows == 0) return KF_OK;
  a.u = rows(v.u, w, net->d);
  a.dy = rows(net->dy, w, net->d);
  a.dx = rows(net->dx, w, net->d);
  a.dx_add = site < 2 * net->layers ? a.dx : NULL; /* nothing follows the last one */
  a.du = v.u ? rows(net->du, w, net->d) : NULL;
  a.dshift = d_mod + v.shift * net->d;
  a.dscale = d_mod + (v.shift + 1) * net->d;
  a.dgate = v.u ? d_mod + v.gate * net->d : NULL;
  return kf_adaln_backward(&a);
}

/* ---------------------------------------------------------------------------- MLP */

static int64_t tile_rows(const train_span *w, int64_t done) {
  int64_t left = w->n_rows - done;
  return left < TRAIN_MLP_TILE ? left : TRAIN_MLP_TILE;
}

/* y to u. */
static void mlp_forward(train_net *net, int64_t l, const train_span *w) {
  const train_layer *layer = &net->layer[l];
  int64_t d = net->d, wide = 4 * d;
  for (int64_t i = 0, n; (n = tile_rows(w, i)) > 0; i += n) {
    int64_t at = w->first + i;
    float *h = layer->h + at * wide, *u = layer->u[1] + at * d;
    train_map(n, wide, d, net->y + at * d, d, train_net_p(net, TRAIN_FC1_W, l), h);
    net->pw->bias_gelu(h, train_net_p(net, TRAIN_FC1_B, l), net->tile[0], n, wide);
    train_map(n, d, wide, net->tile[0], wide, train_net_p(net, TRAIN_FC2_W, l), u);
    net->pw->add_bias(u, train_net_p(net, TRAIN_FC2_B, l), n, d);
  }
}

/* du and y to dy. */
static void mlp_backward(train_net *net, int64_t l, const train_span *w, float *grads) {
  const train_layer *layer = &net->layer[l];
  int64_t d = net->d, wide = 4 * d;
  float *g = net->tile[0], *dh = net->tile[1];
  for (int64_t i = 0, n; (n = tile_rows(w, i)) > 0; i += n) {
    int64_t at = w->first + i;
    const float *du = net->du + at * d, *y = net->y + at * d;
    train_map_back(n, wide, d, du, train_net_p(net, TRAIN_FC2_W, l), dh);
    net->pw->gelu_backward(layer->h + at * wide, g, dh, n * wide);
    train_map_weight(n, d, wide, du, g, wide, train_net_g(net, grads, TRAIN_FC2_W, l));
    net->pw->add_rows(du, n, d, train_net_g(net, grads, TRAIN_FC2_B, l));
    train_map_weight(n, wide, d, dh, y, d, train_net_g(net, grads, TRAIN_FC1_W, l));
    net->pw->add_rows(dh, n, wide, train_net_g(net, grads, TRAIN_FC1_B, l));
    train_map_back(n, d, wide, dh, train_net_p(net, TRAIN_FC1_W, l), net->dy + at * d);
  }
}

/* -------------------------------------------------- before and after attention, forward */

/* The stream to q, k and v. */
static kf_status before(train_net *net, int64_t l, const train_span *w) {
  int64_t n = w->n_rows, d = net->d;
  float *qkv = rows(net->layer[l].qkv, w, 3 * d);
  const float *cos_sin = rows(net->cos_sin, w, net->head_dim);
  kf_status status = train_site_forward(net, 2 * l, w);
  if (status) return status;
  train_map(n, 3 * d, d, rows(net->y, w, d), d, train_net_p(net, TRAIN_QKV_W, l), qkv);
  net->pw->add_bias(qkv, train_net_p(net, TRAIN_QKV_B, l), n, 3 * d);
  net->pw->rope(qkv, cos_sin, n, net->heads, net->head_dim, 3 * d, false);
  net->pw->rope(qkv + d, cos_sin, n, net->heads, net->head_dim, 3 * d, false);
  return KF_OK;
}

/* o to the outputs of both branches. */
static kf_status after(train_net *net, int64_t l, const train_span *w) {
  int64_t n = w->n_rows, d = net->d;
  float *u = rows(net->layer[l].u[0], w, d);
  train_map(n, d, d, rows(net->layer[l].o, w, d), d, train_net_p(net, TRAIN_PROJ_W, l), u);
  net->pw->add_bias(u, train_net_p(net, TRAIN_PROJ_B, l), n, d);
  kf_status status = train_site_forward(net, 2 * l + 1, w);
  if (!status) mlp_forward(net, l, w);
  return status;
}

/* ------------------------------------------------------------------------ and backward */

/* The next site's gradient, in dy, to that of o, in dy. The next site gives du of this block's MLP,
** whose output it must see. */
static kf_status after_backward(train_net *net, int64_t l, const train_span *w, float *grads) {
  int64_t n = w->n_rows, d = net->d;
  const float *du = rows(net->du, w, d), *o = rows(net->layer[l].o, w, d);
  kf_status status = train_site_remake(net, 2 * l + 1, w);
  if (status) return status;
  if (l < net->layers - net->n_kept)
    mlp_forward(net, l, w); /* y is as it was: so is what it gives */
  if ((status = train_site_backward(net, 2 * l + 2, w))) return status;
  mlp_backward(net, l, w, grads);
  if ((status = train_site_backward(net, 2 * l + 1, w))) return status;
  train_map_weight(n, d, d, du, o, d, train_net_g(net, grads, TRAIN_PROJ_W, l));
  net->pw->add_rows(du, n, d, train_net_g(net, grads, TRAIN_PROJ_B, l));
  train_map_back(n, d, d, du, train_net_p(net, TRAIN_PROJ_W, l), rows(net->dy, w, d));
  return KF_OK;
}

/* The gradient of q, k and v, in wide, to that of the block's first site, in dy. */
static kf_status before_backward(train_net *net, int64_t l, const train_span *w, float *grads) {
  int64_t n = w->n_rows, d = net->d;
  float *d_qkv = rows(net->wide, w, 3 * d), *y = rows(net->y, w, d);
  const float *cos_sin = rows(net->cos_sin, w, net->head_dim);
  net->pw->rope(d_qkv, cos_sin, n, net->heads, net->head_dim, 3 * d, true);
  net->pw->rope(d_qkv + d, cos_sin, n, net->heads, net->head_dim, 3 * d, true);
  kf_status status = train_site_remake(net, 2 * l, w);
  if (status) return status;
  train_map_weight(n, 3 * d, d, d_qkv, y, d, train_net_g(net, grads, TRAIN_QKV_W, l));
  net->pw->add_rows(d_qkv, n, 3 * d, train_net_g(net, grads, TRAIN_QKV_B, l));
  train_map_back(n, d, 3 * d, d_qkv, train_net_p(net, TRAIN_QKV_W, l), rows(net->dy, w, d));
  return KF_OK;
}

/* -------------------------------------------------------------------------- block */

static kf_status whole_forward(train_net *net, int64_t l, kf_part part) {
  const train_span *w = &net->part[part];
  kf_status status;
  if (w->n_rows == 0) return KF_OK;
  if ((status = before(net, l, w))) return status;
  if ((status = train_attend_forward(net, l, w))) return status;
  return after(net, l, w);
}

static kf_status whole_backward(train_net *net, int64_t l, kf_part part, float *grads) {
  const train_span *w = &net->part[part];
  kf_status status;
  if (w->n_rows == 0) return KF_OK;
  if ((status = after_backward(net, l, w, grads))) return status;
  if ((status = train_attend_backward(net, l, w))) return status;
  return before_backward(net, l, w, grads);
}

kf_status train_block_forward(train_net *net, int64_t l) {
  const train_span *w = &net->part[KF_PART_SPLIT];
  kf_status status;
  if (!net->split) return whole_forward(net, l, KF_PART_EARLY);
  if ((status = before(net, l, w))) return status;
  if ((status = whole_forward(net, l, KF_PART_EARLY))) return status;
  if ((status = train_split_forward(net, l, TRAIN_OUT))) return status;
  if ((status = train_split_forward(net, l, TRAIN_ATTEND))) return status;
  if ((status = whole_forward(net, l, KF_PART_LATE))) return status;
  if ((status = train_split_forward(net, l, TRAIN_BACK))) return status;
  return after(net, l, w);
}

kf_status train_block_backward(train_net *net, int64_t l, float *grads) {
  const train_span *w = &net->part[KF_PART_SPLIT];
  kf_status status;
  if (!net->split) return whole_backward(net, l, KF_PART_EARLY, grads);
  if ((status = after_backward(net, l, w, grads))) return status;
  if ((status = whole_backward(net, l, KF_PART_EARLY, grads))) return status;
  if ((status = train_split_backward(net, l, TRAIN_OUT))) return status;
  if ((status = train_split_backward(net, l, TRAIN_ATTEND))) return status;
  if ((status = whole_backward(net, l, KF_PART_LATE, grads))) return status;
  if ((status = train_split_backward(net, l, TRAIN_BACK))) return status;
  return before_backward(net, l, w, grads);
}
