/* SPDX-License-Identifier: Apache-2.0 */
/*
** One step of the trainer's network on made-up rows, with all that went in and came out, for
** torch/torch_train.py to compute again:
**
**     train_probe OUT.safetensors MODEL SEED LEN[+TEXT] ..
**
** MODEL as kf_model_parse reads it; a sequence has LEN visual tokens and TEXT of text. No tensor is
** zero, so that every gradient has something to say; an adaLN-Zero model would be silent at its
** start. Without any sequence, three updates of the optimiser from made-up gradients instead.
*/
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/random.h"
#include "train/train.h"

/* What is drawn has a key each, below the seed. */
enum { KEY_PARAMS, KEY_VALUE, KEY_TARGET, KEY_WORD, KEY_TIME, KEY_LABEL, KEY_GRADS };

static void *reserve(int64_t n_bytes) {
  void *memory = aligned_alloc(64, (size_t)(n_bytes + 127) / 64 * 64); /* never 0 bytes */
  assert(memory);
  return memory;
}

static float *reserve_floats(int64_t n) { return reserve(n * (int64_t)sizeof(float)); }

/* ----------------------------------------------------------------------- the file */

typedef enum dtype { F32, F64, I32, I64 } dtype;

static const struct {
  const char *name;
  size_t size;
} dtypes[] = {[F32] = {"F32", 4}, [F64] = {"F64", 8}, [I32] = {"I32", 4}, [I64] = {"I64", 8}};

typedef struct entry {
  const char *prefix; /* of the name */
  dtype type;
  train_tensor shape;
  const void *data;
} entry;

typedef struct archive {
  int n;
  entry entry[8 * TRAIN_N_TENSORS];
} archive;

/* (rows, cols), or (rows) where cols is 0. */
static void add(archive *a, const char *name, dtype type, int64_t rows, int64_t cols,
                const void *data) {
  train_tensor shape = {.name = name, .n_dims = cols ? 2 : 1, .dim = {rows, cols}};
  a->entry[a->n++] = (entry){"", type, shape, data};
}

/* All tensors of a block that is laid out as parameters are. */
static void add_block(archive *a, const char *prefix, const train_params *params,
                      const float *block) {
  for (int id = 0; id < TRAIN_N_TENSORS; id++)
    a->entry[a->n++] = (entry){prefix, F32, params->tensor[id], block + params->tensor[id].offset};
}

static size_t entry_bytes(const entry *e) {
  return (size_t)train_tensor_size(&e->shape) * dtypes[e->type].size;
}

/* 8 bytes with the length of the header, the header in JSON, the data. */
static void save(const archive *a, const char *path) {
  char *header = NULL;
  size_t length = 0, at = 0;
  FILE *text = open_memstream(&header, &length), *file = fopen(path, "wb");
  assert(text && file);
  for (int i = 0; i < a->n; i++) {
    const entry *e = &a->entry[i];
    fprintf(text, "%s\"%s%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "{", e->prefix,
            e->shape.name, dtypes[e->type].name);
    for (int k = 0; k < e->shape.n_dims; k++)
      fprintf(text, "%s%" PRId64, k ? "," : "", e->shape.dim[k]);
    fprintf(text, "],\"data_offsets\":[%zu,%zu]}", at, at + entry_bytes(e));
    at += entry_bytes(e);
  }
  fprintf(text, "}");
  assert(fclose(text) == 0);
  uint64_t n = length; /* as the format has it: this machine is little-endian */
  fwrite(&n, sizeof n, 1, file);
  fwrite(header, 1, length, file);
  for (int i = 0; i < a->n; i++) fwrite(a->entry[i].data, 1, entry_bytes(&a->entry[i]), file);
  assert(!ferror(file) && fclose(file) == 0);
  free(header);
}

/* --------------------------------------------------------------------- what goes in */

/* Weights that keep the size of what passes through them: scores that differ, activations that GELU
** bends. */
static float *make_params(const train_params *params, uint64_t seed) {
  float *block = reserve_floats(params->n_floats);
  memset(block, 0, (size_t)params->n_floats * sizeof *block);
  for (int id = 0; id < TRAIN_N_TENSORS; id++) {
    const train_tensor *t = &params->tensor[id];
    double deviation = train_tensor_decays(id) ? 1 / sqrt((double)t->dim[t->n_dims - 1])
                       : id == TRAIN_WORD || id == TRAIN_LABEL ? 1
                                                               : 0.1;
    for (int64_t i = 0; i < train_tensor_size(t); i++)
      block[t->offset + i] = (float)(deviation * train_normal(seed, (uint64_t)(t->offset + i)));
  }
  return block;
}

typedef struct problem {
  train_pack pack;
  int64_t n_visual;
  train_row *row;
  int64_t *seq_off;
  float *target; /* (n_rows, TRAIN_VALUES) */
} problem;

/* Sequence s, which has its lengths: a video of 6 x 8 tokens a frame. */
static void fill_seq(problem *p, uint64_t seed, int64_t s, int64_t n_text) {
  float time = (float)train_uniform(train_bits(seed, KEY_TIME), (uint64_t)s);
  uint64_t label = train_bits(train_bits(seed, KEY_LABEL), (uint64_t)s) % (TRAIN_LABELS + 1);
  for (int64_t r = p->seq_off[s]; r < p->seq_off[s + 1]; r++) {
    train_row *row = &p->row[r];
    float *target = p->target + r * TRAIN_VALUES;
    int32_t i = (int32_t)(r - p->seq_off[s] - n_text); /* of the visual tokens */
    *row = (train_row){
      .word = -1, .at = {i / 48, i / 8 % 6, i % 8}, .time = time, .label = (int32_t)label};
    if (i < 0) {
      row->word = (int32_t)(train_bits(train_bits(seed, KEY_WORD), (uint64_t)r) % TRAIN_WORDS);
      row->at[0] = -1 - (int32_t)(r - p->seq_off[s]), row->at[1] = row->at[2] = 0;
    }
    for (int k = 0; k < TRAIN_VALUES; k++) {
      uint64_t at = (uint64_t)(r * TRAIN_VALUES + k);
      row->value[k] = i < 0 ? 0 : (float)train_normal(train_bits(seed, KEY_VALUE), at);
      target[k] = i < 0 ? 0 : (float)train_normal(train_bits(seed, KEY_TARGET), at);
    }
    p->n_visual += i >= 0;
  }
}

static void make_problem(problem *p, uint64_t seed, int n_seqs, char **lens) {
  *p = (problem){.seq_off = reserve((n_seqs + 1) * (int64_t)sizeof(int64_t))};
  int64_t *text = reserve(n_seqs * (int64_t)sizeof *text);
  p->seq_off[0] = 0;
  for (int s = 0; s < n_seqs; s++) {
    char *rest;
    int64_t visual = strtoll(lens[s], &rest, 10);
    text[s] = *rest == '+' ? strtoll(rest + 1, &rest, 10) : 0;
    assert(visual >= 0 && text[s] >= 0 && visual + text[s] > 0 && !*rest);
    p->seq_off[s + 1] = p->seq_off[s] + visual + text[s];
  }
  int64_t n_rows = p->seq_off[n_seqs];
  p->row = reserve(n_rows * (int64_t)sizeof *p->row);
  p->target = reserve_floats(n_rows * TRAIN_VALUES);
  for (int s = 0; s < n_seqs; s++) fill_seq(p, seed, s, text[s]);
  free(text);
  assert(p->n_visual > 0);
  p->pack = (train_pack){.n_rows = n_rows, .n_seqs = n_seqs, .row = p->row, .seq_off = p->seq_off};
}

/* A field of n floats or integers of every row, side by side. */
static void *column(const problem *p, size_t offset, size_t n) {
  char *out = reserve(p->pack.n_rows * (int64_t)(n * 4));
  for (int64_t r = 0; r < p->pack.n_rows; r++)
    memcpy(out + (size_t)r * n * 4, (const char *)&p->row[r] + offset, n * 4);
  return out;
}

static void add_rows(archive *a, const problem *p) {
  int64_t n = p->pack.n_rows;
  add(a, "row.value", F32, n, TRAIN_VALUES, column(p, offsetof(train_row, value), TRAIN_VALUES));
  add(a, "row.word", I32, n, 0, column(p, offsetof(train_row, word), 1));
  add(a, "row.at", I32, n, 3, column(p, offsetof(train_row, at), 3));
  add(a, "row.time", F32, n, 0, column(p, offsetof(train_row, time), 1));
  add(a, "row.label", I32, n, 0, column(p, offsetof(train_row, label), 1));
  add(a, "seq_off", I64, p->pack.n_seqs + 1, 0, p->seq_off);
  add(a, "target", F32, n, TRAIN_VALUES, p->target);
}

/* -------------------------------------------------------------------- what comes out */

/* The mean over visual values; d its gradient. */
static double loss_of(const problem *p, const float *prediction, float *d) {
  double sum = 0, count = (double)(p->n_visual * TRAIN_VALUES);
  for (int64_t r = 0; r < p->pack.n_rows; r++)
    for (int64_t i = r * TRAIN_VALUES; i < (r + 1) * TRAIN_VALUES; i++) {
      double error = p->row[r].word < 0 ? (double)prediction[i] - (double)p->target[i] : 0;
      sum += error * error;
      d[i] = (float)(2 * error / count);
    }
  return sum / count;
}

/* Forward and backward. What was in grads must not matter. */
static kf_status run(const train_net_options *options, const problem *p, const float *params,
                     float *prediction, double *loss, float *grads) {
  train_params layout;
  train_net *net = NULL;
  float *d = reserve_floats(p->pack.n_rows * TRAIN_VALUES);
  kf_status status = train_params_of(&options->model, &layout);
  if (!status) status = train_net_create(options, &net);
  if (!status) status = train_net_forward(net, params, &p->pack, prediction);
  if (!status) {
    for (int64_t i = 0; i < layout.n_floats; i++) grads[i] = NAN;
    *loss = loss_of(p, prediction, d);
    status = train_net_backward(net, params, &p->pack, d, grads);
  }
  train_net_free(net);
  free(d);
  return status;
}

/* A step; then once more with nothing of an MLP kept, which must not change a bit. */
static kf_status probe_step(archive *a, const train_params *params, uint64_t seed, int n_seqs,
                            char **lens) {
  static double loss[2], norm;
  char sentence[100];
  problem p;
  make_problem(&p, seed, n_seqs, lens);
  float *block = make_params(params, train_bits(seed, KEY_PARAMS)), *grads[2], *prediction[2];
  for (int i = 0; i < 2; i++) {
    train_net_options options = {.model = params->model, .keep_bytes = i};
    grads[i] = reserve_floats(params->n_floats);
    prediction[i] = reserve_floats(p.pack.n_rows * TRAIN_VALUES);
    kf_status status = run(&options, &p, block, prediction[i], &loss[i], grads[i]);
    if (status) return status;
  }
  assert(loss[0] == loss[1]);
  for (int id = 0; id < TRAIN_N_TENSORS; id++) {
    const train_tensor *t = &params->tensor[id];
    if (memcmp(grads[0] + t->offset, grads[1] + t->offset, 4 * (size_t)train_tensor_size(t))) {
      snprintf(sentence, sizeof sentence, "the gradient of %s depends on what is kept", t->name);
      return kf_fail(KF_EMISMATCH, sentence);
    }
  }
  add_rows(a, &p);
  add_block(a, "", params, block);
  add(a, "prediction", F32, p.pack.n_rows, TRAIN_VALUES, prediction[0]);
  add(a, "loss", F64, 1, 0, loss);
  add_block(a, "grad.", params, grads[0]);
  norm = sqrt(train_pointwise_of(KF_ISA_BEST)->sum_squares(grads[0], params->n_floats));
  add(a, "norm", F64, 1, 0, &norm); /* what lies between tensors adds nothing */
  return KF_OK;
}

/* Three updates, clipped as their norms demand: the second gradient is small, the third large. */
static void probe_optimizer(archive *a, const train_params *params, uint64_t seed) {
  static const char *const before[] = {"grad1.", "grad2.", "grad3."};
  static const float sizes[] = {1, 1e-4f, 10};
  /* lr, beta1, beta2, an eps that counts, weight_decay, ema_decay, the norm to clip to */
  static const float settings[] = {1e-2f, 0.9f, 0.99f, 1e-4f, 0.1f, 0.9f, 1};
  static double norms[3];
  const train_pointwise *loops = train_pointwise_of(KF_ISA_BEST);
  int64_t n = params->n_floats;
  float *p = make_params(params, train_bits(seed, KEY_PARAMS)), *first = reserve_floats(n);
  float *m = reserve_floats(n), *v = reserve_floats(n), *ema = reserve_floats(n);
  memcpy(first, p, (size_t)n * sizeof *p);
  memcpy(ema, p, (size_t)n * sizeof *p);
  memset(m, 0, (size_t)n * sizeof *m);
  memset(v, 0, (size_t)n * sizeof *v);
  train_adamw w = {settings[0], settings[1], settings[2], settings[3], 0, settings[5], 1, 1, 1};
  for (int step = 0; step < 3; step++) {
    float *g = make_params(params, train_bits(seed, KEY_GRADS + (uint64_t)step));
    for (int64_t i = 0; i < n; i++) g[i] *= sizes[step];
    norms[step] = sqrt(loops->sum_squares(g, n));
    w.grad_scale = norms[step] > (double)settings[6] ? settings[6] / (float)norms[step] : 1;
    w.correction1 = (float)(1 - pow((double)w.beta1, step + 1));
    w.correction2 = (float)(1 - pow((double)w.beta2, step + 1));
    for (int id = 0; id < TRAIN_N_TENSORS; id++) {
      const train_tensor *t = &params->tensor[id];
      int64_t at = t->offset;
      w.weight_decay = train_tensor_decays(id) ? settings[4] : 0;
      loops->adamw(&w, train_tensor_size(t), g + at, p + at, m + at, v + at, ema + at);
    }
    add_block(a, before[step], params, g);
  }
  add(a, "settings", F32, 7, 0, settings);
  add(a, "norms", F64, 3, 0, norms);
  add_block(a, "", params, first);
  add_block(a, "after.", params, p);
  add_block(a, "ema.", params, ema);
}

int main(int argc, char **argv) {
  static archive a;
  kf_model model;
  train_params params;
  kf_status status = KF_OK;
  if (argc < 4) {
    fprintf(stderr, "usage: train_probe OUT.safetensors MODEL SEED LEN[+TEXT] ..\n");
    return 2;
  }
  uint64_t seed = strtoull(argv[3], NULL, 10);
  if (kf_model_parse(argv[2], &model) || train_params_of(&model, &params)) goto fail;
  if (argc == 4) probe_optimizer(&a, &params, seed);
  if (argc > 4) status = probe_step(&a, &params, seed, argc - 4, argv + 4);
  if (status) goto fail;
  add(&a, "model", I32, 3, 0, (int32_t[]){model.dim, model.layers, model.heads});
  save(&a, argv[1]); /* memory goes with the process */
  return 0;
fail:
  fprintf(stderr, "train_probe: %s\n", kf_last_error());
  return 1;
}
