/* SPDX-License-Identifier: Apache-2.0 */
/*
** Where tokens come from and what they are conditioned on. Patches and words become rows of the
** stream; time and label of a sequence become shift, scale and gate of every site.
**
** All is computed where a row is held, also for a sequence that is split: its conditioning is a
** vector, and every gradient here is linear in what the rows give, so that parts of a sequence on
** several ranks simply add up in the sum of all ranks' gradients.
*/
#include <math.h>
#include <string.h>

#include "net.h"

enum {
  ROW_FLOATS = sizeof(train_row) / sizeof(float)
}; /* patches lie in the rows as they travel */

static float sigmoid(float x) { return 1 / (1 + expf(-x)); }

static void silu(const float *x, int64_t n, float *out) {
  for (int64_t i = 0; i < n; i++) out[i] = x[i] * sigmoid(x[i]);
}

/* d: gradient of silu(x), becomes that of x. */
static void silu_backward(const float *x, int64_t n, float *d) {
  for (int64_t i = 0; i < n; i++) {
    float s = sigmoid(x[i]);
    d[i] *= s * (1 + x[i] * (1 - s));
  }
}

/* ------------------------------------------------------------------------- tokens */

void train_embed_forward(train_net *net, float *x) {
  const train_pack *pack = net->pack;
  int64_t d = net->d;
  const float *bias = train_net_p(net, TRAIN_PATCH_B, 0), *words = train_net_p(net, TRAIN_WORD, 0);
  if (pack->n_rows > 0)
    train_map(pack->n_rows, d, TRAIN_VALUES, pack->row->value, ROW_FLOATS,
              train_net_p(net, TRAIN_PATCH_W, 0), x);
  for (int64_t i = 0; i < pack->n_rows; i++) { /* text has zeros for a patch */
    int32_t word = pack->row[i].word;
    net->pw->add_bias(x + i * d, word < 0 ? bias : words + word * d, 1, d);
  }
}

void train_embed_backward(train_net *net, const float *dx, float *grads) {
  const train_pack *pack = net->pack;
  int64_t d = net->d;
  float *bias = train_net_g(net, grads, TRAIN_PATCH_B, 0);
  float *words = train_net_g(net, grads, TRAIN_WORD, 0);
  if (pack->n_rows > 0)
    train_map_weight(pack->n_rows, d, TRAIN_VALUES, dx, pack->row->value, ROW_FLOATS,
                     train_net_g(net, grads, TRAIN_PATCH_W, 0));
  for (int64_t i = 0; i < pack->n_rows; i++) {
    int32_t word = pack->row[i].word;
    net->pw->add_rows(dx + i * d, 1, d, word < 0 ? bias : words + word * d);
  }
}

/* ---------------------------------------------------------------------- positions */

/* The angles of a head belong to frame, y and x: a quarter of them to the frame. */
void train_angles(train_net *net) {
  int64_t half = net->head_dim / 2, n_frame = half / 4, n_y = (half - n_frame) / 2;
  const int64_t n_of[3] = {n_frame, n_y, half - n_frame - n_y};
  double frequency[KF_MAX_HEAD_DIM / 2];
  int axis_of[KF_MAX_HEAD_DIM / 2];
  for (int64_t axis = 0, at = 0; axis < 3; axis++)
    for (int64_t j = 0; j < n_of[axis]; j++, at++) {
      frequency[at] = pow(10000, -(double)j / (double)n_of[axis]);
      axis_of[at] = (int)axis;
    }
  for (int64_t i = 0; i < net->pack->n_rows; i++) {
    float *row = net->cos_sin + i * net->head_dim;
    for (int64_t j = 0; j < half; j++) {
      double angle = net->pack->row[i].at[axis_of[j]] * frequency[j];
      row[j] = (float)cos(angle);
      row[half + j] = (float)sin(angle);
    }
  }
}

/* ------------------------------------------------------------------- conditioning */

enum { TIME1, TIME1_SILU, C, C_SILU, D_C, D_TIME1 };

static void make_waves(train_net *net) {
  const int64_t half = TRAIN_TIME / 2;
  for (int64_t s = 0; s < net->pack->n_seqs; s++) {
    float *wave = net->waves + s * TRAIN_TIME;
    double time = net->pack->row[net->pack->seq_off[s]].time;
    for (int64_t i = 0; i < half; i++) {
      double angle = 1000 * time * exp(-log(10000) * (double)i / (double)half);
      wave[i] = (float)cos(angle);
      wave[half + i] = (float)sin(angle);
    }
  }
}

static int32_t label_of(const train_net *net, int64_t seq) {
  return net->pack->row[net->pack->seq_off[seq]].label;
}

void train_condition_forward(train_net *net) {
  int64_t n = net->pack->n_seqs, d = net->d, width = net->n_mod * d;
  const float *labels = train_net_p(net, TRAIN_LABEL, 0);
  float **c = net->cond;
  make_waves(net);
  train_map(n, d, TRAIN_TIME, net->waves, TRAIN_TIME, train_net_p(net, TRAIN_TIME1_W, 0), c[TIME1]);
  net->pw->add_bias(c[TIME1], train_net_p(net, TRAIN_TIME1_B, 0), n, d);
  silu(c[TIME1], n * d, c[TIME1_SILU]);
  train_map(n, d, d, c[TIME1_SILU], d, train_net_p(net, TRAIN_TIME2_W, 0), c[C]);
  net->pw->add_bias(c[C], train_net_p(net, TRAIN_TIME2_B, 0), n, d);
  for (int64_t s = 0; s < n; s++)
    net->pw->add_bias(c[C] + s * d, labels + label_of(net, s) * d, 1, d);
  silu(c[C], n * d, c[C_SILU]);
  train_map(n, width, d, c[C_SILU], d, train_net_p(net, TRAIN_MOD_W, 0), net->mod);
  net->pw->add_bias(net->mod, train_net_p(net, TRAIN_MOD_B, 0), n, width);
}

void train_condition_backward(train_net *net, float *grads) {
  int64_t n = net->pack->n_seqs, d = net->d, width = net->n_mod * d;
  float *labels = train_net_g(net, grads, TRAIN_LABEL, 0);
  float **c = net->cond;
  train_map_weight(n, width, d, net->d_mod, c[C_SILU], d, train_net_g(net, grads, TRAIN_MOD_W, 0));
  net->pw->add_rows(net->d_mod, n, width, train_net_g(net, grads, TRAIN_MOD_B, 0));
  train_map_back(n, d, width, net->d_mod, train_net_p(net, TRAIN_MOD_W, 0), c[D_C]);
  silu_backward(c[C], n * d, c[D_C]);
  for (int64_t s = 0; s < n; s++)
    net->pw->add_rows(c[D_C] + s * d, 1, d, labels + label_of(net, s) * d);
  net->pw->add_rows(c[D_C], n, d, train_net_g(net, grads, TRAIN_TIME2_B, 0));
  train_map_weight(n, d, d, c[D_C], c[TIME1_SILU], d, train_net_g(net, grads, TRAIN_TIME2_W, 0));
  train_map_back(n, d, d, c[D_C], train_net_p(net, TRAIN_TIME2_W, 0), c[D_TIME1]);
  silu_backward(c[TIME1], n * d, c[D_TIME1]);
  net->pw->add_rows(c[D_TIME1], n, d, train_net_g(net, grads, TRAIN_TIME1_B, 0));
  train_map_weight(n, d, TRAIN_TIME, c[D_TIME1], net->waves, TRAIN_TIME,
                   train_net_g(net, grads, TRAIN_TIME1_W, 0));
}
