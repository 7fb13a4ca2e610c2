/* SPDX-License-Identifier: Apache-2.0 */
/* A model by its name or by its shape; and a cost from the names of a model and a cluster. */
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

kf_status kf_model_parse(const char *text, kf_model *out) {
  static const kfi_field field[] = {
    {"d", 1, KF_MAX_DIM, KFI_WHOLE},
    {"layers", 1, KF_MAX_LAYERS, KFI_WHOLE},
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

kf_status kf_cost_preset(const char *model, const char *cluster, int32_t n_ranks, double gamma,
                         kf_cost *out) {
  kf_status status;
  kf_model m;
  kf_cluster c;
  if ((status = kf_model_parse(model && *model ? model : KF_DEFAULT_MODEL, &m))) return status;
  if ((status = kf_cluster_parse(cluster, n_ranks, &c))) return status;
  return kf_cost_static(&m, &c, gamma, out);
}
