/* SPDX-License-Identifier: Apache-2.0 */
/*
** From a model's shape and a cluster to seconds and bytes: the `static` cost. Later cost
** models only set linear_s, quadratic_s and constant_s.
*/
#include <math.h>

#include "../status.h"
#include "../text.h"

static const struct {
  const char *name;
  kf_model model;
} registry[] = {
  {"flux", {3072, 57, 24}},   {"wan1.3b", {1536, 30, 12}}, {"wan14b", {5120, 40, 40}},
  {"DiT-S", {384, 12, 6}},    {"DiT-B", {768, 12, 12}},    {"DiT-L", {1024, 24, 16}},
  {"DiT-XL", {1152, 28, 16}},
};

#define MAX_DIM (1 << 20)
#define MAX_LAYERS (1 << 16)

kf_status kf_model_parse(const char *text, kf_model *out) {
  static const kfi_field field[] = {
    {"d", 1, MAX_DIM, KFI_WHOLE},
    {"layers", 1, MAX_LAYERS, KFI_WHOLE},
    {"heads", 1, KF_MAX_HEADS, KFI_WHOLE},
  };
  kf_status status;
  double value[3];
  uint32_t seen = 0;

  if (!text || !out) return kfi_fail(KF_EINVAL, "kf_model_parse: text or out is NULL");
  kfi_text t = kfi_text_open("model", text);
  for (size_t i = 0; i < sizeof registry / sizeof registry[0]; i++) {
    if (kfi_text_is(&t, registry[i].name)) {
      *out = registry[i].model;
      return KF_OK;
    }
  }
  if (!kfi_text_take(&t, "d=") && !kfi_text_take(&t, "layers=") && !kfi_text_take(&t, "heads=")) {
    return kfi_text_bad(
      &t, "flux, wan1.3b, wan14b, DiT-S, DiT-B, DiT-L, DiT-XL or d=..,layers=..,heads=..");
  }
  t = kfi_text_open("model", text);
  if ((status = kfi_text_fields(&t, field, 3, value, &seen))) return status;
  if (seen != 7) return kfi_text_bad(&t, "all of d=..,layers=..,heads=..");
  *out = (kf_model){(int32_t)value[0], (int32_t)value[1], (int32_t)value[2]};
  return KF_OK;
}

kf_status kf_cost_static(const kf_model *model, const kf_cluster *cluster, double gamma,
                         kf_cost *out) {
  if (!model || !cluster || !out) return kfi_fail(KF_EINVAL, "kf_cost_static: a pointer is NULL");
  if (model->dim < 1 || model->dim > MAX_DIM || model->layers < 1 || model->layers > MAX_LAYERS ||
      model->heads < 1 || model->heads > KF_MAX_HEADS) {
    return kfi_fail(KF_EINVAL,
                    "model d=%d,layers=%d,heads=%d: expected d from 1 to %d, layers from 1 to %d, "
                    "heads from 1 to %d",
                    model->dim, model->layers, model->heads, MAX_DIM, MAX_LAYERS, KF_MAX_HEADS);
  }
  if (!(gamma > 0) || !(gamma <= 1e6)) {
    return kfi_fail(KF_EINVAL, "gamma %g: expected a number above 0 and at most 1e6", gamma);
  }
  if (!(cluster->flops > 0) || isinf(cluster->flops) || !(cluster->passes > 0) ||
      isinf(cluster->passes)) {
    return kfi_fail(KF_EINVAL, "cluster: %g FLOP/s and %g passes: expected finite numbers above 0",
                    cluster->flops, cluster->passes);
  }
  double d = model->dim;
  double k = model->layers * cluster->passes / cluster->flops;
  *out = (kf_cost){
    .linear_s = 24 * d * d * k,
    .quadratic_s = 4 * d * gamma * k,
    .constant_s = 0,
    .ulysses_bytes = 4 * d * cluster->elem_bytes * model->layers,
    .route_bytes = 2 * d * cluster->elem_bytes,
    .layers = model->layers,
    .heads = model->heads,
    .cluster = *cluster,
  };
  return KF_OK;
}

kf_status kf_cost_preset(const char *model, const char *cluster, int32_t n_ranks, double gamma,
                         kf_cost *out) {
  kf_status status;
  kf_model m;
  kf_cluster c;
  if ((status = kf_model_parse(model, &m))) return status;
  if ((status = kf_cluster_parse(cluster, n_ranks, &c))) return status;
  return kf_cost_static(&m, &c, gamma, out);
}

double kf_cost_work(const kf_cost *cost, int64_t len) {
  double l = (double)len;
  return cost->linear_s * l + cost->quadratic_s * l * l + cost->constant_s;
}
