/* SPDX-License-Identifier: Apache-2.0 */
/* Looking into a picture. Include cmocka.h first. */
#ifndef SVG_H
#define SVG_H

#include <stdio.h>
#include <string.h>

#include "written.h"

static int count(const char *text, const char *what) {
  int n = 0;
  for (; (text = strstr(text, what)); text += strlen(what)) n++;
  return n;
}

/* Enough of XML: every tag is closed by its own name, quotes come in pairs, no number is lost, and
** what is drawn stays on the page. */
static void assert_sound(const char *text) {
  char open[16][16];
  int depth = 0;
  double width = 0, height = 0;
  const char *box = strstr(text, "viewBox");
  assert_non_null(box);
  assert_int_equal(sscanf(box, "viewBox=\"0 0 %lf %lf\"", &width, &height), 2);
  for (const char *p = text; (p = strchr(p, '<')); p++) {
    const char *end = strchr(p, '>');
    char name[16];
    int quotes = 0;
    assert_non_null(end);
    assert_null(memchr(p + 1, '<', (size_t)(end - p - 1)));
    assert_int_equal(sscanf(p + 1 + (p[1] == '/'), "%15[a-z]", name), 1);
    for (const char *c = p; c < end; c++) quotes += *c == '"';
    assert_int_equal(quotes % 2, 0);
    if (p[1] == '/')
      assert_true(depth > 0 && strcmp(open[--depth], name) == 0);
    else if (end[-1] != '/')
      assert_true(depth < 16 && strcpy(open[depth++], name));
  }
  assert_int_equal(depth, 0);
  for (const char *p = text; (p = strchr(p, '&')); p++) assert_true(p[1] == '#');
  for (const char *p = text; (p = strpbrk(p, "M")); p++) {
    double x, y;
    if (sscanf(p, "M%lf %lf", &x, &y) != 2) continue;
    assert_true(x >= 0 && x <= width && y >= 0 && y <= height);
  }
  assert_null(strstr(text, "nan"));
  assert_null(strstr(text, "inf"));
}

#endif
