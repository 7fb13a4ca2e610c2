/* SPDX-License-Identifier: Apache-2.0 */
/*
** Made-up rows and parameters for the trainer's network. No tensor is zero, as many of an
** adaLN-Zero model are at its start: every gradient has something to say. For cmocka tests: they
** fail the test that calls them. All that is written is of its exact size, so that AddressSanitizer
** sees what is written beside it.
*/
#ifndef NET_PROBLEM_H
#define NET_PROBLEM_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dice.h"
#include "train/train.h"

/* Rows of a sequence. */
typedef struct net_seq {
  int64_t text, visual;
} net_seq;

typedef struct net_problem {
  train_params params;
  train_pack pack;
  train_row *row; /* what the pack points to, to be changed */
  int64_t *seq_off;
  float *p; /* (n_floats) */
  float *d; /* (n_rows, TRAIN_VALUES) gradient of the predictions: the loss is their sum with
                        these weights, of text too */
  float *prediction; /* (n_rows, TRAIN_VALUES) */
  float *grads;      /* (n_floats) */
} net_problem;

static inline void *net_reserve(int64_t n, size_t size) {
  void *memory = malloc((size_t)n * size);
  if (!memory && n > 0) fail_msg("out of memory");
  return memory;
}

static inline double net_normal(dice *d) { /* nearly: a sum of twelve */
  double sum = -6;
  for (int i = 0; i < 12; i++) sum += dice_real(d, 0, 1);
  return sum;
}

/* Weights keep the size of what passes through them: scores that differ, activations that GELU
** bends. */
static inline double net_deviation(const train_params *params, int id) {
  const train_tensor *t = &params->tensor[id];
  if (train_tensor_decays(id)) return 0.5 / sqrt((double)t->dim[t->n_dims - 1]);
  return id == TRAIN_WORD || id == TRAIN_LABEL ? 1 : 0.1;
}

static inline void net_randomise(const train_params *params, uint64_t seed, float *p) {
  dice d = {seed};
  memset(p, 0, (size_t)params->n_floats * sizeof *p);
  for (int id = 0; id < TRAIN_N_TENSORS; id++) {
    const train_tensor *t = &params->tensor[id];
    double deviation = net_deviation(params, id);
    for (int64_t i = 0; i < train_tensor_size(t); i++)
      p[t->offset + i] = (float)(deviation * net_normal(&d));
  }
}

/* Text, then a video of 3 x 4 tokens a frame. */
static inline void net_fill_seq(train_row *row, const net_seq *seq, dice *d) {
  float time = (float)dice_real(d, 0, 1);
  int32_t label = (int32_t)dice_int(d, TRAIN_LABELS + 1);
  for (int64_t i = 0; i < seq->text + seq->visual; i++) {
    int32_t at = (int32_t)(i - seq->text);
    row[i] =
      (train_row){.word = -1, .at = {at / 12, at / 4 % 3, at % 4}, .time = time, .label = label};
    if (at < 0) {
      row[i].word = (int32_t)dice_int(d, TRAIN_WORDS);
      row[i].at[0] = (int32_t)(-1 - i), row[i].at[1] = row[i].at[2] = 0;
    } else {
      for (int k = 0; k < TRAIN_VALUES; k++) row[i].value[k] = (float)net_normal(d);
    }
  }
}

/* The same every time. */
static inline net_problem net_make(kf_model model, int64_t n_seqs, const net_seq *seq) {
  dice d = {(uint64_t)(model.dim + 1000 * model.layers)};
  net_problem p = {0};
  if (train_params_of(&model, &p.params)) fail_msg("%s", kf_last_error());
  p.seq_off = net_reserve(n_seqs + 1, sizeof *p.seq_off);
  p.seq_off[0] = 0;
  for (int64_t s = 0; s < n_seqs; s++)
    p.seq_off[s + 1] = p.seq_off[s] + seq[s].text + seq[s].visual;
  int64_t n = p.seq_off[n_seqs];
  p.row = net_reserve(n, sizeof *p.row);
  for (int64_t s = 0; s < n_seqs; s++) net_fill_seq(p.row + p.seq_off[s], &seq[s], &d);
  p.p = net_reserve(p.params.n_floats, sizeof *p.p);
  p.grads = net_reserve(p.params.n_floats, sizeof *p.grads);
  p.prediction = net_reserve(n * TRAIN_VALUES, sizeof *p.prediction);
  p.d = net_reserve(n * TRAIN_VALUES, sizeof *p.d);
  for (int64_t i = 0; i < n * TRAIN_VALUES; i++) p.d[i] = (float)net_normal(&d);
  net_randomise(&p.params, 7, p.p);
  p.pack = (train_pack){.n_rows = n, .n_seqs = n_seqs, .row = p.row, .seq_off = p.seq_off};
  return p;
}

static inline void net_drop(net_problem *p) {
  free(p->row), free(p->seq_off), free(p->p), free(p->d), free(p->prediction), free(p->grads);
}

/* Forward and backward; what was in the outputs must not matter. */
static inline void net_run(train_net *net, net_problem *p) {
  memset(p->prediction, 0xff, (size_t)(p->pack.n_rows * TRAIN_VALUES) * sizeof *p->prediction);
  memset(p->grads, 0xff, (size_t)p->params.n_floats * sizeof *p->grads); /* NaN */
  if (train_net_forward(net, p->p, &p->pack, p->prediction) ||
      train_net_backward(net, p->p, &p->pack, p->d, p->grads))
    fail_msg("%s", kf_last_error());
}

#endif
