/* SPDX-License-Identifier: Apache-2.0 */
/* Text that grows; writer.h says what and why. */
#include "writer.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

static bool reserve(kfi_writer *b, size_t more) {
  if (b->failed_bytes) return false;
  if (b->n + more <= b->cap) return true;
  size_t cap = b->cap ? b->cap : 16384;
  while (cap < b->n + more) cap *= 2;
  char *data = realloc(b->data, cap);
  if (!data) {
    b->failed_bytes = cap;
    return false;
  }
  b->data = data;
  b->cap = cap;
  return true;
}

void kfi_put(kfi_writer *b, const char *format, ...) {
  va_list args;
  va_start(args, format);
  int n = vsnprintf(NULL, 0, format, args);
  va_end(args);
  if (n < 0 || !reserve(b, (size_t)n + 1)) return;
  va_start(args, format);
  vsnprintf(b->data + b->n, (size_t)n + 1, format, args);
  va_end(args);
  b->n += (size_t)n;
}

static void append(kfi_writer *b, const char *text, size_t n) {
  if (!reserve(b, n + 1)) return;
  memcpy(b->data + b->n, text, n);
  b->data[b->n += n] = 0;
}

/* The length of the UTF-8 character at s, 0 if there is none that XML allows. */
static size_t character(const char *s) {
  uint32_t code;
  size_t n = kfi_text_character(s, &code);
  return code < 0x20 || code == 0x7f || code == 0xfffe || code == 0xffff ? 0 : n;
}

/* These three are the only places where text from outside enters. */
void kfi_put_xml(kfi_writer *b, const char *s) {
  while (*s) {
    size_t n = character(s);
    if (n == 0)
      kfi_put(b, "?");
    else if (*s == '&' || *s == '<' || *s == '>' || *s == '"' || *s == '\'')
      kfi_put(b, "&#%d;", *s);
    else
      append(b, s, n);
    s += n ? n : 1;
  }
}

/* JSON escapes all control characters as \u001f, Prometheus knows the newline only. */
static void put_quoted(kfi_writer *b, const char *s, bool json) {
  append(b, "\"", 1);
  while (*s) {
    size_t n = character(s);
    if (*s == '"' || *s == '\\')
      kfi_put(b, "\\%c", *s);
    else if (*s == '\n')
      append(b, "\\n", 2);
    else if (n)
      append(b, s, n);
    else if (json && (unsigned char)*s < 0x80)
      kfi_put(b, "\\u%04x", (unsigned)*s);
    else
      append(b, "?", 1);
    s += n ? n : 1;
  }
  append(b, "\"", 1);
}

void kfi_put_json(kfi_writer *b, const char *s) { put_quoted(b, s, true); }

void kfi_put_label(kfi_writer *b, const char *s) { put_quoted(b, s, false); }

void kfi_put_number(kfi_writer *b, double value, int decimals, bool trim) {
  int64_t unit = 1;
  for (int i = 0; i < decimals; i++) unit *= 10;
  int64_t scaled = llround(fmin(fabs(value) * (double)unit, 1e18));
  for (; trim && decimals > 0 && scaled % 10 == 0; decimals--) scaled /= 10, unit /= 10;
  kfi_put(b, "%s%" PRId64, value < 0 && scaled > 0 ? "-" : "", scaled / unit);
  if (decimals) kfi_put(b, ".%0*" PRId64, decimals, scaled % unit);
}

void kfi_put_fixed(kfi_writer *b, double value, int decimals) {
  kfi_put_number(b, value, decimals, false);
}

void kfi_put_seconds(kfi_writer *b, double s, bool trim) {
  bool us = s > 0 && s < 0.9995e-3, ms = !us && s > 0 && s < 0.9995;
  double value = us ? s * 1e6 : ms ? s * 1e3 : s;
  kfi_put_number(b, value, value < 10 ? 3 : value < 100 ? 2 : value < 1000, trim || value == 0);
  kfi_put(b, us ? " us" : ms ? " ms" : " s");
}

void kfi_put_percent(kfi_writer *b, double fraction) {
  kfi_put_fixed(b, fraction * 100, 1);
  kfi_put(b, "%%");
}

/* A decimal point may be several bytes: U+066B in Pashto. */
void kfi_plain_point(char *digits) {
  char *to = digits;
  for (const char *c = digits; *c; c++) {
    if (strchr("+-0123456789e", *c))
      *to++ = *c;
    else if (to == digits || to[-1] != '.')
      *to++ = '.';
  }
  *to = 0;
}

void kfi_put_real(kfi_writer *b, double value) {
  char digits[40];
  snprintf(digits, sizeof digits, "%.9g", value);
  kfi_plain_point(digits);
  append(b, digits, strlen(digits));
}

kf_status kfi_writer_take(kfi_writer *b, const char *what, char **out) {
  if (b->n == 0) kfi_put(b, "%s", "");
  if (b->failed_bytes) {
    free(b->data);
    return kfi_fail_memory(b->failed_bytes, what);
  }
  *out = b->data;
  return KF_OK;
}
