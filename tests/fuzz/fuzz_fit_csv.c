/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as measured rows: sound rows, a fit of them and its picture, or one sentence. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <knapformer.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What may be refused of sound rows: too few of them, or all of one length. */
static void fit(const kf_fit_row *rows, int64_t n_rows) {
  kf_fit f;
  char *text = NULL;
  if (kf_fit_rows(rows, n_rows, NULL, NULL, &f)) {
    if (!strstr(kf_last_error(), "expected")) abort();
    return;
  }
  if (!(f.linear_s >= 0) || !(f.quadratic_s >= 0) || !(f.constant_s >= 0)) abort();
  if (!isfinite(f.linear_s + f.quadratic_s + f.constant_s)) abort();
  if (!isfinite(f.r2 + f.mape + f.holdout_mape)) abort();
  if (!isfinite(f.power_s + f.power_p + f.power_mape)) abort();
  if (kf_svg_fit(rows, n_rows, NULL, &f, "fuzz", &text) == KF_OK) free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  kf_fit_row *rows = NULL;
  int64_t n_rows = 0;
  if (kf_fit_parse("fuzz", (const char *)data, size, &rows, &n_rows)) {
    if (rows || !strstr(kf_last_error(), "expected")) abort();
    return 0;
  }
  if (n_rows < 1 || n_rows > (int64_t)size) abort();
  for (int64_t i = 0; i < n_rows; i++) {
    if (rows[i].len < 1 || rows[i].len > KF_MAX_LEN) abort();
    if (!(rows[i].seconds > 0) || !(rows[i].seconds <= 86400)) abort();
    if (rows[i].rank < 0 || rows[i].rank >= KF_MAX_RANKS) abort();
  }
  fit(rows, n_rows);
  free(rows);
  return 0;
}
