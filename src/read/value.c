/* SPDX-License-Identifier: Apache-2.0 */
/* One value of a configuration; value.h says what and why. */
#include "value.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../text.h"

kf_status kfi_value_fail(const kfi_place *at, const char *format, ...) {
  char sentence[512];
  va_list args;
  va_start(args, format);
  vsnprintf(sentence, sizeof sentence, format, args);
  va_end(args);
  if (at->line == 0) return kfi_fail(KF_EINVAL, "%.200s: %s", at->name, sentence);
  return kfi_fail(KF_EINVAL, "%.200s, line %" PRId64 ", column %" PRId64 ": %s", at->name, at->line,
                  at->column, sentence);
}

const char *kfi_value_show(const char *text, char out[KFI_SHOWN]) {
  size_t n = 0;
  for (; text[n] && n < KFI_SHOWN - 4; n++)
    out[n] = text[n] >= 0x20 && text[n] < 0x7f ? text[n] : '?';
  strcpy(out + n, text[n] ? "..." : "");
  return out;
}

/* -------------------------------------------------------------------- numbers */

static bool leading_zero(const char *text) {
  return text[0] == '0' && text[1] >= '0' && text[1] <= '9';
}

bool kfi_value_whole(const char *text, int64_t min, int64_t max, int64_t *out) {
  kfi_text t = kfi_text_open("", text);
  int64_t value;
  if (leading_zero(text) || kfi_text_int(&t, min, max, &value) || t.at != t.end) return false;
  *out = value;
  return true;
}

/*
** The double nearest to a number of sound grammar. kfi_text_real is a few ulp off beyond 15 digits,
** which is why strtod has the last word here; what it wants for a decimal point, "%.1f" shows.
*/
static double nearest(const char *text, double approximate) {
  enum { MAX_NUMBER = 100 };
  char sample[16], local[MAX_NUMBER + 16];
  size_t n = strlen(text), before = strcspn(text, ".");
  if (n > MAX_NUMBER) return approximate;
  snprintf(sample, sizeof sample, "%.1f", 0.5);
  size_t n_point = strlen(sample) - 2;
  memcpy(local, text, before);
  if (before == n) n_point = 0;
  memcpy(local + before, sample + 1, n_point);
  strcpy(local + before + n_point, text + before + (before < n));
  return strtod(local, NULL);
}

bool kfi_value_real(const char *text, double min, double max, double *out) {
  kfi_text t = kfi_text_open("", text);
  double value;
  if (leading_zero(text) || kfi_text_real(&t, 0, INFINITY, &value) || t.at != t.end) return false;
  value = nearest(text, value);
  if (!(value >= min && value <= max)) return false;
  *out = value;
  return true;
}

const char *kfi_value_digits(double value, char out[KFI_DIGITS]) {
  for (int n = 15; n <= 17; n++) {
    snprintf(out, KFI_DIGITS, "%.*g", n, value);
    if (strtod(out, NULL) == value) break; /* in the same locale */
  }
  if (isfinite(value)) kfi_plain_point(out); /* messages show others, too */
  return out;
}

/* ---------------------------------------------------------------------- texts */

bool kfi_value_is_text(const char *text) {
  uint32_t code;
  for (size_t n; *text; text += n) {
    n = kfi_text_character(text, &code);
    if (n == 0 || code < 0x20 || (code >= 0x7f && code < 0xa0)) return false;
  }
  return true;
}

/* Could it be mistaken for something else without quotes? This knows fewer plain scalars than
** YAML. */
static bool is_plain(const char *text) {
  static const char safe[] =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+=,-";
  kfi_text t = kfi_text_open("", text);
  if (!*text || strchr("+=,-", *text) || kfi_text_is(&t, "null")) return false;
  return strspn(text, safe) == strlen(text);
}

void kfi_value_put_text(kfi_writer *w, const char *text) {
  if (is_plain(text)) {
    kfi_put(w, "%s", text);
    return;
  }
  kfi_put(w, "\"");
  uint32_t code;
  for (size_t n; *text && (n = kfi_text_character(text, &code)); text += n) {
    bool breaks = code == 0x2028 || code == 0x2029; /* YAML 1.1 folds lines there */
    if (*text == '"' || *text == '\\')
      kfi_put(w, "\\%c", *text);
    else if (code == 0xa0 || breaks || code == 0xfeff || code == 0xfffe || code == 0xffff)
      kfi_put(w, "\\u%04" PRIx32, code);
    else
      kfi_put(w, "%.*s", (int)n, text);
  }
  kfi_put(w, "\"");
}
