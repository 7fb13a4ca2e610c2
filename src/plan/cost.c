/* SPDX-License-Identifier: Apache-2.0 */
/*
** From a model's shape and a cluster to seconds and bytes: the `static` cost. Later cost
** models only set linear_s, quadratic_s and constant_s.
*/
#include <math.h>

#include "../status.h"

kf_status kf_cost_static(const kf_model *model, const kf_cluster *cluster, double gamma,
                         kf_cost *out) {
  if (!model || !cluster || !out) return kfi_fail(KF_EINVAL, "kf_cost_static: a pointer is NULL");
  if (model->dim < 1 || model->dim > KF_MAX_DIM || model->layers < 1 ||
      model->layers > KF_MAX_LAYERS || model->heads < 1 || model->heads > KF_MAX_HEADS) {
    return kfi_fail(KF_EINVAL,
                    "model d=%d,layers=%d,heads=%d: expected d from 1 to %d, layers from 1 to %d, "
                    "heads from 1 to %d",
                    model->dim, model->layers, model->heads, KF_MAX_DIM, KF_MAX_LAYERS,
                    KF_MAX_HEADS);
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

double kf_cost_work(const kf_cost *cost, int64_t len) {
  double l = (double)len;
  return cost->linear_s * l + cost->quadratic_s * l * l + cost->constant_s;
}
