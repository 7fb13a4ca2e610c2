/* SPDX-License-Identifier: Apache-2.0 */
/*
** A strict reader of JSON (RFC 8259) that keeps nothing: is it one value, and where does a key
** stand? No NaN, no leading zeros, no trailing commas, no raw control characters, valid UTF-8.
*/
#ifndef JSON_H
#define JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* Each json_X returns what follows the X at p, or NULL if there is none. */
static inline const char *json_value(const char *p, int depth);

static inline const char *json_space(const char *p) { return p + strspn(p, " \t\r\n"); }

static inline const char *json_digits(const char *p) {
  size_t n = p ? strspn(p, "0123456789") : 0;
  return n ? p + n : NULL;
}

static inline const char *json_number(const char *p) {
  p += *p == '-';
  p = *p == '0' ? p + 1 : json_digits(p);
  if (p && *p == '.') p = json_digits(p + 1);
  if (p && (*p == 'e' || *p == 'E')) {
    p++;
    p = json_digits(p + (*p == '+' || *p == '-'));
  }
  return p;
}

static inline const char *json_utf8(const char *p) {
  const unsigned char *u = (const unsigned char *)p;
  int n = u[0] < 0x80 ? 1 : u[0] >> 5 == 6 ? 2 : u[0] >> 4 == 14 ? 3 : u[0] >> 3 == 30 ? 4 : 0;
  if (n == 0 || (n == 2 && u[0] < 0xc2) || (n == 3 && u[0] == 0xe0 && u[1] < 0xa0) ||
      (n == 3 && u[0] == 0xed && u[1] > 0x9f) || (n == 4 && u[0] == 0xf0 && u[1] < 0x90) ||
      (n == 4 && (u[0] > 0xf4 || (u[0] == 0xf4 && u[1] > 0x8f))))
    return NULL;
  for (int i = 1; i < n; i++)
    if (u[i] >> 6 != 2) return NULL;
  return p + n;
}

static inline const char *json_string(const char *p) {
  if (*p++ != '"') return NULL;
  while (p && *p != '"') {
    if ((unsigned char)*p < 0x20) return NULL;
    if (*p != '\\')
      p = json_utf8(p);
    else if (p[1] == 'u')
      p = strspn(p + 2, "0123456789abcdefABCDEF") >= 4 ? p + 6 : NULL;
    else
      p = p[1] && strchr("\"\\/bfnrt", p[1]) ? p + 2 : NULL;
  }
  return p ? p + 1 : NULL;
}

/* An object or an array: items between brackets, a comma between two. */
static inline const char *json_items(const char *p, int depth) {
  char close = *p == '{' ? '}' : ']';
  p = json_space(p + 1);
  if (*p == close) return p + 1;
  for (;;) {
    if (close == '}') {
      if (!(p = json_string(p))) return NULL;
      p = json_space(p);
      if (*p++ != ':') return NULL;
      p = json_space(p);
    }
    if (!(p = json_value(p, depth + 1))) return NULL;
    p = json_space(p);
    if (*p == close) return p + 1;
    if (*p++ != ',') return NULL;
    p = json_space(p);
  }
}

static inline const char *json_value(const char *p, int depth) {
  static const char *const word[] = {"true", "false", "null"};
  if (depth > 100) return NULL;
  if (*p == '{' || *p == '[') return json_items(p, depth);
  if (*p == '"') return json_string(p);
  for (int i = 0; i < 3; i++)
    if (strncmp(p, word[i], strlen(word[i])) == 0) return p + strlen(word[i]);
  return json_number(p);
}

static inline bool json_valid(const char *text) {
  const char *end = json_value(json_space(text), 0);
  return end && *json_space(end) == 0;
}

#endif
