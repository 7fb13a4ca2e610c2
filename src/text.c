/* SPDX-License-Identifier: Apache-2.0 */
/* Strict reading of short texts; text.h says what and why. */
#include "text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "status.h"

enum { QUOTE_MAX = 48, EXPECTED_MAX = 256 };

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* ASCII only: tolower asks the locale, and a Turkish I is not ours. */
static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c; }

kfi_text kfi_text_open(const char *what, const char *text) {
  return (kfi_text){.what = what, .begin = text, .at = text, .end = text + strlen(text)};
}

bool kfi_text_take(kfi_text *t, const char *literal) {
  size_t n = strlen(literal);
  if ((size_t)(t->end - t->at) < n || memcmp(t->at, literal, n) != 0) return false;
  t->at += n;
  return true;
}

bool kfi_text_is(const kfi_text *t, const char *word) {
  size_t n = strlen(word);
  if ((size_t)(t->end - t->begin) != n) return false;
  for (size_t i = 0; i < n; i++)
    if (lower(t->begin[i]) != lower(word[i])) return false;
  return true;
}

size_t kfi_text_character(const char *s, uint32_t *code) {
  static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const unsigned char *u = (const unsigned char *)s;
  size_t n = u[0] < 0x80   ? 1
             : u[0] < 0xc0 ? 0
             : u[0] < 0xe0 ? 2
             : u[0] < 0xf0 ? 3
             : u[0] < 0xf8 ? 4
                           : 0;
  *code = n == 1 ? u[0] : n == 2 ? u[0] & 31u : n == 3 ? u[0] & 15u : u[0] & 7u;
  for (size_t i = 1; i < n; i++) {
    if ((u[i] & 0xc0) != 0x80) return 0;
    *code = *code << 6 | (u[i] & 0x3fu);
  }
  bool surrogate = *code >= 0xd800 && *code < 0xe000;
  return n == 0 || *code < least[n] || surrogate || *code > 0x10ffff ? 0 : n;
}

/* ------------------------------------------------------------------- messages */

/*
** Quote n bytes for a message: never more than QUOTE_MAX of them, and nothing that could
** move a terminal's cursor or end in half a UTF-8 character.
*/
static void quote(const char *at, size_t n, char out[QUOTE_MAX + 8]) {
  size_t shown = n < QUOTE_MAX ? n : QUOTE_MAX;
  char *p = out;
  *p++ = '"';
  for (size_t i = 0; i < shown; i++) *p++ = at[i] >= 0x20 && at[i] < 0x7f ? at[i] : '?';
  if (shown < n) p += sprintf(p, "...");
  *p++ = '"';
  *p = 0;
}

/*
** How far a word reaches: what a person would point at. A separator is a word of its own, and
** so is a number, because "256" of "g1b1i256f1s0" is not the rest of that code.
*/
static size_t word_length(const kfi_text *t) {
  size_t left = (size_t)(t->end - t->at), n = 0;
  while (n < left && (is_digit(t->at[n]) || (n > 0 && t->at[n] == '.'))) n++;
  if (n > 0) {
    size_t e = n + 1;
    if (n < left && lower(t->at[n]) == 'e') {
      if (e < left && (t->at[e] == '-' || t->at[e] == '+')) e++;
      while (e < left && is_digit(t->at[e])) n = ++e;
    }
    return n;
  }
  while (n < left && t->at[n] != '\0' && !strchr(" \t\r\n,+=[]", t->at[n])) n++;
  return n > 0 || left == 0 ? n : 1;
}

kf_status kfi_text_bad(const kfi_text *t, const char *expected) {
  char found[QUOTE_MAX + 8], whole[QUOTE_MAX + 8];
  size_t n = word_length(t);
  if (n > 0)
    quote(t->at, n, found);
  else
    strcpy(found, t->line ? "the end of the line" : "the end");
  int64_t column = t->at - t->begin + 1;
  if (t->line)
    return kfi_fail(KF_EINVAL, "%s, line %" PRId64 ", column %" PRId64 ": found %s, expected %s",
                    t->what, t->line, column, found, expected);
  quote(t->begin, (size_t)(t->end - t->begin), whole);
  return kfi_fail(KF_EINVAL, "%s %s, position %" PRId64 ": found %s, expected %s", t->what, whole,
                  column, found, expected);
}

kf_status kfi_text_end(const kfi_text *t, const char *expected) {
  return t->at == t->end ? KF_OK : kfi_text_bad(t, expected);
}

/* -------------------------------------------------------------------- numbers */

kf_status kfi_text_int(kfi_text *t, int64_t min, int64_t max, int64_t *out) {
  const char *p = t->at;
  int64_t value = 0;
  bool good = p < t->end && is_digit(*p);
  for (; p < t->end && is_digit(*p); p++) {
    int digit = *p - '0';
    /* Once too large it stays so: the value is not needed any more, only the end of it. */
    if (value > (max - digit) / 10)
      good = false;
    else
      value = value * 10 + digit;
  }
  if (!good || value < min || value > max) {
    char expected[EXPECTED_MAX];
    if (max == INT64_MAX)
      snprintf(expected, sizeof expected, "a whole number from %" PRId64 " up", min);
    else
      snprintf(expected, sizeof expected, "a whole number from %" PRId64 " to %" PRId64, min, max);
    return kfi_text_bad(t, expected);
  }
  t->at = p;
  *out = value;
  return KF_OK;
}

/* value * 10^power, by exact powers of ten as far as they reach (10^22 is the last). */
static double scale10(double value, int power) {
  static const double exact[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                 1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
  for (; power > 22 && value < INFINITY; power -= 22) value *= exact[22];
  for (; power < -22 && value > 0; power += 22) value /= exact[22];
  if (power > 22 || power < -22) return value; /* already infinite or zero */
  return power < 0 ? value / exact[-power] : value * exact[power];
}

/* The decimal number at *at, and past it; false if there is none. May give infinity. */
static bool read_real(const char **at, const char *end, double *out) {
  enum { MAX_DIGITS = 18, MAX_POWER = 100000 };
  const char *p = *at;
  uint64_t mantissa = 0;
  int n_digits = 0, n_kept = 0, power = 0;
  for (bool fraction = false; p < end && (is_digit(*p) || (*p == '.' && !fraction)); p++) {
    if (*p == '.') {
      fraction = true;
      continue;
    }
    n_digits++;
    if (n_kept < MAX_DIGITS) { /* later digits cannot change what a double keeps by an ulp */
      mantissa = mantissa * 10 + (uint64_t)(*p - '0');
      n_kept += mantissa > 0;
      if (fraction && power > -MAX_POWER) power--;
    } else if (!fraction && power < MAX_POWER) {
      power++;
    }
  }
  if (n_digits == 0 || p[-1] == '.' || **at == '.') return false;
  if (p < end && lower(*p) == 'e') {
    const char *e = p + 1;
    bool negative = e < end && *e == '-';
    if (e < end && (*e == '-' || *e == '+')) e++;
    if (e == end || !is_digit(*e)) return false;
    int exponent = 0;
    for (; e < end && is_digit(*e); e++)
      if (exponent < MAX_POWER) exponent = exponent * 10 + (*e - '0');
    power += negative ? -exponent : exponent;
    p = e;
  }
  *at = p;
  *out = scale10((double)mantissa, power);
  return true;
}

/* `suffix` ends the list of what was expected: "" or ", or inf". */
static kf_status bounded_real(kfi_text *t, double min, double max, const char *suffix,
                              double *out) {
  const char *p = t->at;
  double value;
  if (!read_real(&p, t->end, &value) || !(value >= min && value <= max)) {
    char expected[EXPECTED_MAX];
    snprintf(expected, sizeof expected, "a number from %.15g to %.15g%s", min, max, suffix);
    return kfi_text_bad(t, expected);
  }
  t->at = p;
  *out = value;
  return KF_OK;
}

kf_status kfi_text_real(kfi_text *t, double min, double max, double *out) {
  return bounded_real(t, min, max, "", out);
}

/* --------------------------------------------------------------- key=value,... */

/* "d, layers or heads", for messages. */
static void list_names(const kfi_field *field, int n_fields, char out[EXPECTED_MAX]) {
  size_t used = 0;
  out[0] = 0;
  for (int i = 0; i < n_fields && used < EXPECTED_MAX; i++) {
    const char *comma = i == 0 ? "" : i == n_fields - 1 ? " or " : ", ";
    used += (size_t)snprintf(out + used, EXPECTED_MAX - used, "%s%s", comma, field[i].name);
  }
}

static kf_status read_value(kfi_text *t, const kfi_field *field, double *out) {
  if (field->kind == KFI_WHOLE) {
    int64_t whole;
    kf_status status = kfi_text_int(t, (int64_t)field->min, (int64_t)field->max, &whole);
    if (status == KF_OK) *out = (double)whole;
    return status;
  }
  if (field->kind == KFI_REAL) return kfi_text_real(t, field->min, field->max, out);
  if (!kfi_text_take(t, "inf")) return bounded_real(t, field->min, field->max, ", or inf", out);
  *out = INFINITY;
  return KF_OK;
}

kf_status kfi_text_fields(kfi_text *t, const kfi_field *field, int n_fields, double *value,
                          uint32_t *seen) {
  *seen = 0;
  do {
    char expected[EXPECTED_MAX + 64], names[EXPECTED_MAX];
    int i = 0;
    for (; i < n_fields; i++) {
      kfi_text key = *t;
      if (kfi_text_take(&key, field[i].name) && kfi_text_take(&key, "=")) {
        if (*seen & (uint32_t)1 << i) return kfi_text_bad(t, "every key only once");
        *t = key;
        break;
      }
    }
    if (i == n_fields) {
      list_names(field, n_fields, names);
      snprintf(expected, sizeof expected, "key=value with the key %s", names);
      return kfi_text_bad(t, expected);
    }
    kf_status status = read_value(t, &field[i], &value[i]);
    if (status != KF_OK) return status;
    *seen |= (uint32_t)1 << i;
  } while (kfi_text_take(t, ","));
  return kfi_text_end(t, "\",\" or the end");
}
