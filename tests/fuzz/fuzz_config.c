/* SPDX-License-Identifier: Apache-2.0 */
/*
** Any bytes as a configuration or, after a "f", as the file of a fit: one sentence, or a value that
** is written as a text which reads back to the same. After a "=", an assignment of --set.
*/
#include <stdlib.h>
#include <string.h>

#include <knapformer.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void refused(void) {
  if (!*kf_last_error()) abort();
}

static void try_fit(const char *text, size_t n) {
  kf_cost cost = {0}, back = {0};
  char *written = NULL;
  if (kf_fit_load("fuzz", text, n, &cost)) {
    if (cost.linear_s > 0 || cost.quadratic_s > 0 || cost.constant_s > 0) abort();
    refused();
    return;
  }
  kf_fit fit = {
    .linear_s = cost.linear_s, .quadratic_s = cost.quadratic_s, .constant_s = cost.constant_s};
  if (kf_fit_text(&fit, &written)) abort();
  if (kf_fit_load("fuzz", written, strlen(written), &back)) abort();
  if (memcmp(&cost, &back, sizeof cost) != 0) abort();
  free(written);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const int32_t ranks[] = {0, 1, 8, 32};
  static kf_config config, back; /* static: the padding stays 0 */
  static const kf_config zero;
  char *text = NULL, *again = NULL;
  const char *bytes = (const char *)data;
  kf_status status;
  config = back = zero;
  if (size > 0 && data[0] == 'f') {
    try_fit(bytes + 1, size - 1);
    return 0;
  }
  if (size > 0 && data[0] == '=') {
    char *assignment = calloc(size, 1);
    memcpy(assignment, bytes + 1, size - 1);
    status = kf_config_set(assignment, &config);
    free(assignment);
  } else {
    status = kf_config_parse("fuzz", bytes, size, &config);
  }
  if (status) {
    if (memcmp(&config, &zero, sizeof zero) != 0) abort();
    refused();
    return 0;
  }
  for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
    if (kf_config_check(&config, ranks[i])) refused();
  if (kf_config_text(&config, &text)) abort();
  if (kf_config_parse("fuzz", text, strlen(text), &back)) abort();
  if (kf_config_text(&back, &again) || strcmp(text, again) != 0) abort();
  free(text);
  free(again);
  return 0;
}
