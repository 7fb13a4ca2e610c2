/* SPDX-License-Identifier: Apache-2.0 */
/*
** Inside the network: what net.c, embed.c, block.c and attend.c share.
**
** Memory is one block of floats, laid out anew when a larger step comes. T rows, S sequences, L
** layers, width d. Kept from forward to backward, for each layer:
**
**     x[0] (T, d)   the residual stream before attention     qkv (T, 3 d)  after RoPE
**     o    (T, d)   attention's output     u[0] (T, d)   its projection
**     x[1] (T, d)   the stream before the MLP     h (T, 4 d), u[1] (T, d)  its inside and output
**
** h and u[1] are more than a third of that. Where it becomes too much they are not kept, but
** computed again from x[1] (net.n_kept). What LayerNorm-Modulate puts out is never kept: making it
** again from x costs one pass over memory. A place where the stream is normed is a site: 2 l before
** the attention of block l, 2 l + 1 before its MLP, 2 L before the last product. A site adds what
** the branch before it has put out, gated, to the stream of the site before: one fused kernel.
*/
#ifndef TRAIN_NET_H
#define TRAIN_NET_H

#include <cblas.h>

#include "buffer.h"

/* Rows of the MLP that are computed at a time: products are as fast as on more of them, and gelu(h)
** of a tile stays in the last cache. */
enum { TRAIN_MLP_TILE = 1024 };

/* Some neighbouring sequences of a pack, and their rows. */
typedef struct train_span {
  int64_t first, n_rows;
  int64_t first_seq, n_seqs;
  const int64_t *seq_off; /* (n_seqs + 1) from 0 */
} train_span;

typedef struct train_layer {
  float *x[2], *u[2];
  float *qkv, *o;
  float *h;
  float *pair[4];  /* (P, head_dim) where sequences are split: q, k, v and o of this rank's heads */
  float *lse;      /* (T H) of whole sequences */
  float *pair_lse; /* (P) */
} train_layer;

struct train_net {
  train_params params;
  int64_t d, heads, head_dim, layers, n_mod;
  const train_pointwise *pw;
  kf_isa isa;
  int64_t keep_bytes;

  /* Of the present step. */
  const float *p; /* parameters */
  const train_pack *pack;
  train_span all, part[KF_N_PARTS];
  bool split;      /* some sequence is split: ranks exchange */
  int64_t n_pairs; /* of this rank's attention of split sequences */
  int64_t n_kept;  /* the last so many layers keep h and u[1] */

  train_buffer block;              /* and what lies in it: */
  train_layer *layer;              /* (L) */
  float *mean, *rstd;              /* (2 L + 1, T) by site */
  float *last_x;                   /* (T, d) of site 2 L */
  float *y, *dy;                   /* (T, d) what a site puts out */
  float *dx, *du;                  /* (T, d) gradient of the stream, of a branch's output */
  float *wide;                     /* (T, 3 d) gradient of q, k, v */
  float *tile[2];                  /* (TRAIN_MLP_TILE, 4 d) gelu(h), and its gradient */
  float *d_pair[4];                /* (P, head_dim) gradients of q, k, v and o */
  float *cos_sin;                  /* (T, head_dim) */
  float *mod, *d_mod;              /* (S, 6 L + 2, d) */
  float *cond[6];                  /* (S, d): time1, its silu, c, silu(c), two gradients */
  float *waves;                    /* (S, TRAIN_TIME) */
  train_buffer workspace;          /* of adaln and attention */
  kf_segment *segment;             /* (S) sequences as if all were whole */
  train_buffer segments, part_off; /* that, and the parts' seq_off: (S + KF_N_PARTS) */
};

/* The tensor's values for a layer; tensors that are not by layer have layer 0 only. */
const float *train_net_p(const train_net *net, int id, int64_t layer);
float *train_net_g(const train_net *net, float *grads, int id, int64_t layer);

/* c (m, n) = a b^T, a (m, k), b (n, k): a linear map. Rows of a are `lda` apart. */
static inline void train_map(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                             const float *b, float *c) {
  if (m > 0)
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)m, (blasint)n, (blasint)k, 1, a,
                (blasint)lda, b, (blasint)k, 0, c, (blasint)n);
}

/* c (m, n) = a b, a (m, k), b (k, n): its gradient with respect to the input. */
static inline void train_map_back(int64_t m, int64_t n, int64_t k, const float *a, const float *b,
                                  float *c) {
  if (m > 0)
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)m, (blasint)n, (blasint)k, 1, a,
                (blasint)k, b, (blasint)n, 0, c, (blasint)n);
}

/* c (n, k) += a^T b, a (m, n), b (m, k): its gradient with respect to the weight. */
static inline void train_map_weight(int64_t m, int64_t n, int64_t k, const float *a, const float *b,
                                    int64_t ldb, float *c) {
  if (m > 0)
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (blasint)n, (blasint)k, (blasint)m, 1, a,
                (blasint)n, b, (blasint)ldb, 1, c, (blasint)k);
}

/* embed.c: rows to x (T, d), the modulation of all sites; and the way back. */
void train_embed_forward(train_net *net, float *x);
void train_embed_backward(train_net *net, const float *dx, float *grads);
void train_condition_forward(train_net *net);
void train_condition_backward(train_net *net, float *grads);
void train_angles(train_net *net); /* cos_sin */

/* block.c: one layer, and sites of any rows. Backward begins with the gradient of the next site in
** dy and that of its stream in dx, and ends with those of its own first site. */
kf_status train_site_forward(train_net *net, int64_t site, const train_span *w);
kf_status train_site_remake(train_net *net, int64_t site, const train_span *w); /* y alone */
kf_status train_site_backward(train_net *net, int64_t site, const train_span *w);
kf_status train_block_forward(train_net *net, int64_t layer);
kf_status train_block_backward(train_net *net, int64_t layer, float *grads);

/* attend.c: qkv to o; and o's gradient, in dy, to that of qkv, in wide. Of whole sequences; and of
** split ones, in three steps: the exchange there, attention, the exchange back. */
kf_status train_attend_forward(train_net *net, int64_t layer, const train_span *w);
kf_status train_attend_backward(train_net *net, int64_t layer, const train_span *w);
typedef enum train_stage { TRAIN_OUT, TRAIN_ATTEND, TRAIN_BACK } train_stage;
kf_status train_split_forward(train_net *net, int64_t layer, train_stage stage);
kf_status train_split_backward(train_net *net, int64_t layer, train_stage stage);
int64_t train_attend_workspace(const train_net *net);

#endif
