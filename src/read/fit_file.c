/* SPDX-License-Identifier: Apache-2.0 */
/*
** The file that carries a fit from `knapformer fit -o` to `cost_model: modelled`. It is YAML, so
** that a person can read it, and as strict as the configuration. Its numbers come back to the bit:
** ranks that read it must plan alike, and like the program that fitted.
*/
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "yaml.h"

enum { N_COEFFICIENTS = 3 };

static const struct {
  const char *name, *comment;
} coefficients[N_COEFFICIENTS] = {
  {"linear_s", "seconds a token"},
  {"quadratic_s", "seconds a token squared, all heads"},
  {"constant_s", "seconds a sequence"},
};

/* Any measured second is far below; and sums of such coefficients over a batch stay finite. */
static const double most = 1e30;

static const char range[] = "a number from 0 to 1e30";

kf_status kf_fit_text(const kf_fit *fit, char **out) {
  kfi_writer w = {0};
  char digits[KFI_DIGITS];
  if (!fit || !out) return kfi_fail(KF_EINVAL, "kf_fit_text: fit or out is NULL");
  /* + 0.0: a fit may end at -0, which is no number of the file's */
  const double value[N_COEFFICIENTS] = {fit->linear_s + 0.0, fit->quadratic_s + 0.0,
                                        fit->constant_s + 0.0};
  for (int i = 0; i < N_COEFFICIENTS; i++)
    if (!(value[i] >= 0 && value[i] <= most))
      return kfi_fail(KF_EINVAL, "fit: %s is %s, expected %s", coefficients[i].name,
                      kfi_value_digits(value[i], digits), range);
  if (value[0] == 0 && value[1] == 0)
    return kfi_fail(KF_EINVAL, "fit: linear_s and quadratic_s are 0, expected one above 0");
  if (!isfinite(fit->mape) || fit->mape < 0 || fit->n_rows < 0)
    return kfi_fail(KF_EINVAL, "fit: mape is %s and n_rows %" PRId64 ", expected 0 or more",
                    kfi_value_digits(fit->mape, digits), fit->n_rows);
  kfi_put(&w, "# The cost that `knapformer fit` found in %" PRId64 " rows, mean error ",
          fit->n_rows);
  kfi_put_percent(&w, fit->mape);
  kfi_put(&w, "; for cost_file of `cost_model: modelled`.\ncost:\n");
  for (int i = 0; i < N_COEFFICIENTS; i++)
    kfi_put(&w, "  %s: %s  # %s\n", coefficients[i].name, kfi_value_digits(value[i], digits),
            coefficients[i].comment);
  return kfi_writer_take(&w, "the text of a fit", out);
}

static kf_status take_entry(const kfi_yaml *yaml, const kfi_yaml_entry *e,
                            double value[N_COEFFICIENTS], bool seen[N_COEFFICIENTS]) {
  const char *key = yaml->pool + e->key;
  char shown[KFI_SHOWN];
  int i = 0;
  while (i < N_COEFFICIENTS && strcmp(key, coefficients[i].name) != 0) i++;
  if (i == N_COEFFICIENTS)
    return kfi_value_fail(&e->key_at,
                          "unknown key \"%s\", expected linear_s, quadratic_s or constant_s",
                          kfi_value_show(key, shown));
  if (e->kind == KFI_YAML_LIST || e->kind == KFI_YAML_MAPPING)
    return kfi_value_fail(&e->at, "%s is a list or mapping, expected %s", key, range);
  if (e->kind != KFI_YAML_PLAIN || !kfi_value_real(yaml->pool + e->text, 0, most, &value[i]))
    return kfi_value_fail(&e->at, "%s is \"%s\"%s, expected %s", key,
                          kfi_value_show(yaml->pool + e->text, shown),
                          e->kind == KFI_YAML_QUOTED ? " in quotes" : "", range);
  seen[i] = true;
  return KF_OK;
}

static kf_status take_all(const kfi_yaml *yaml, double value[N_COEFFICIENTS]) {
  bool seen[N_COEFFICIENTS] = {0};
  const kfi_yaml_entry *e = yaml->entry;
  kf_status status = kfi_yaml_expect(yaml, "cost");
  for (size_t i = 2; !status && i < yaml->n; i = e[i].end)
    status = take_entry(yaml, &e[i], value, seen);
  for (int i = 0; !status && i < N_COEFFICIENTS; i++)
    if (!seen[i])
      status = kfi_value_fail(&e[1].key_at,
                              "found no %s in cost, expected all of linear_s, quadratic_s and "
                              "constant_s",
                              coefficients[i].name);
  if (!status && value[0] == 0 && value[1] == 0)
    status = kfi_value_fail(&e[1].key_at, "linear_s and quadratic_s are 0, expected one above 0");
  return status;
}

kf_status kf_fit_load(const char *name, const char *text, size_t n_bytes, kf_cost *cost) {
  kfi_yaml yaml;
  double value[N_COEFFICIENTS] = {0};
  if (!name || (!text && n_bytes) || !cost)
    return kfi_fail(KF_EINVAL, "kf_fit_load: name, text or cost is NULL");
  kf_status status = kfi_yaml_read(name, text, n_bytes, &yaml);
  if (status) return status;
  status = take_all(&yaml, value);
  kfi_yaml_free(&yaml);
  if (status) return status;
  cost->linear_s = value[0];
  cost->quadratic_s = value[1];
  cost->constant_s = value[2];
  return KF_OK;
}
