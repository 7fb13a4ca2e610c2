/* SPDX-License-Identifier: Apache-2.0 */
/*
** The model's tensors, one after the other in one block of floats: gradients, moments and averages
** have the same layout, so that the optimiser and the ranks' sum see one long vector.
*/
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "buffer.h"
#include "random.h"

enum { ALIGN = 16 }; /* floats: a cache line */

static kf_status refuse(const kf_model *m, const char *expected) {
  return train_fail(KF_EINVAL, "model: width %" PRId32 " with %" PRId32 " heads, expected %s",
                    m->dim, m->heads, expected);
}

kf_status train_params_of(const kf_model *model, train_params *out) {
  int64_t d = model->dim, layers = model->layers, n_mod = 6 * layers + 2, at = 0;
  if (d < 1 || layers < 1 || model->heads < 1)
    return kf_fail(KF_EINVAL,
                   "model: a width, layers or heads below 1, expected 1 or more of each");
  if (model->dim % model->heads != 0) return refuse(model, "a width that the heads divide");
  if (d / model->heads % 2 != 0) return refuse(model, "heads of an even width");
  if (d / model->heads > KF_MAX_HEAD_DIM) return refuse(model, "heads of a width of at most 256");
  const train_tensor shapes[TRAIN_N_TENSORS] = {
    [TRAIN_PATCH_W] = {"patch_w", 0, 2, {d, TRAIN_VALUES}},
    [TRAIN_PATCH_B] = {"patch_b", 0, 1, {d}},
    [TRAIN_WORD] = {"word", 0, 2, {TRAIN_WORDS, d}},
    [TRAIN_TIME1_W] = {"time1_w", 0, 2, {d, TRAIN_TIME}},
    [TRAIN_TIME1_B] = {"time1_b", 0, 1, {d}},
    [TRAIN_TIME2_W] = {"time2_w", 0, 2, {d, d}},
    [TRAIN_TIME2_B] = {"time2_b", 0, 1, {d}},
    [TRAIN_LABEL] = {"label", 0, 2, {TRAIN_LABELS + 1, d}},
    [TRAIN_MOD_W] = {"mod_w", 0, 3, {n_mod, d, d}},
    [TRAIN_MOD_B] = {"mod_b", 0, 2, {n_mod, d}},
    [TRAIN_QKV_W] = {"qkv_w", 0, 3, {layers, 3 * d, d}},
    [TRAIN_QKV_B] = {"qkv_b", 0, 2, {layers, 3 * d}},
    [TRAIN_PROJ_W] = {"proj_w", 0, 3, {layers, d, d}},
    [TRAIN_PROJ_B] = {"proj_b", 0, 2, {layers, d}},
    [TRAIN_FC1_W] = {"fc1_w", 0, 3, {layers, 4 * d, d}},
    [TRAIN_FC1_B] = {"fc1_b", 0, 2, {layers, 4 * d}},
    [TRAIN_FC2_W] = {"fc2_w", 0, 3, {layers, d, 4 * d}},
    [TRAIN_FC2_B] = {"fc2_b", 0, 2, {layers, d}},
    [TRAIN_OUT_W] = {"out_w", 0, 2, {TRAIN_VALUES, d}},
    [TRAIN_OUT_B] = {"out_b", 0, 1, {TRAIN_VALUES}},
  };
  *out = (train_params){.model = *model};
  for (int i = 0; i < TRAIN_N_TENSORS; i++) {
    out->tensor[i] = shapes[i];
    out->tensor[i].offset = at;
    at += (train_tensor_size(&shapes[i]) + ALIGN - 1) / ALIGN * ALIGN;
  }
  out->n_floats = at;
  return KF_OK;
}

int64_t train_tensor_size(const train_tensor *t) {
  int64_t n = 1;
  for (int i = 0; i < t->n_dims; i++) n *= t->dim[i];
  return n;
}

/* Widths that a weight maps from and to: its last two dimensions, but for q, k and v, which are
** three maps side by side. */
static double xavier_bound(int id, const train_tensor *t) {
  double from = (double)t->dim[t->n_dims - 1], to = (double)t->dim[t->n_dims - 2];
  return sqrt(6 / (from + (id == TRAIN_QKV_W ? to / 3 : to)));
}

void train_params_init(const train_params *params, uint64_t seed, float *block) {
  memset(block, 0, (size_t)params->n_floats * sizeof *block);
  for (int id = 0; id < TRAIN_N_TENSORS; id++) {
    const train_tensor *t = &params->tensor[id];
    float *value = block + t->offset;
    int64_t n = train_tensor_size(t);
    double bound = t->n_dims > 1 ? xavier_bound(id, t) : 0;
    switch (id) {
    case TRAIN_WORD:
    case TRAIN_LABEL:
    case TRAIN_TIME1_W:
    case TRAIN_TIME2_W:
      for (int64_t i = 0; i < n; i++)
        value[i] = (float)(0.02 * train_normal(seed, (uint64_t)(t->offset + i)));
      break;
    case TRAIN_PATCH_W:
    case TRAIN_QKV_W:
    case TRAIN_PROJ_W:
    case TRAIN_FC1_W:
    case TRAIN_FC2_W:
      for (int64_t i = 0; i < n; i++)
        value[i] = (float)(bound * (2 * train_uniform(seed, (uint64_t)(t->offset + i)) - 1));
      break;
    default: break; /* zeros */
    }
  }
}

bool train_tensor_decays(int id) {
  switch (id) {
  case TRAIN_PATCH_W:
  case TRAIN_TIME1_W:
  case TRAIN_TIME2_W:
  case TRAIN_MOD_W:
  case TRAIN_QKV_W:
  case TRAIN_PROJ_W:
  case TRAIN_FC1_W:
  case TRAIN_FC2_W:
  case TRAIN_OUT_W: return true;
  default: return false;
  }
}
