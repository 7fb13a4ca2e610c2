/* SPDX-License-Identifier: Apache-2.0 */
#include <float.h>
#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "json.h"
#include "writer.h"
#include "written.h"

static char *take(kfi_writer *w) {
  char *text;
  if (kfi_writer_take(w, "a test", &text)) fail_msg("%s", kf_last_error());
  return text;
}

#define ASSERT_WRITES(expected, call)                                                              \
  do {                                                                                             \
    kfi_writer w = {0};                                                                            \
    call;                                                                                          \
    char *text = take(&w);                                                                         \
    assert_string_equal(text, expected);                                                           \
    free(text);                                                                                    \
  } while (0)

static void test_numbers(void **state) {
  (void)state;
  ASSERT_WRITES("1.50", kfi_put_fixed(&w, 1.5, 2));
  ASSERT_WRITES("1.5", kfi_put_number(&w, 1.5, 4, true));
  ASSERT_WRITES("100", kfi_put_number(&w, 100, 4, true));
  ASSERT_WRITES("0.001", kfi_put_number(&w, 0.001, 3, true));
  ASSERT_WRITES("-2.25", kfi_put_number(&w, -2.25, 3, true));
  ASSERT_WRITES("0", kfi_put_number(&w, -1e-9, 3, true)); /* no "-0" */
  ASSERT_WRITES("2", kfi_put_fixed(&w, 1.5, 0));
  ASSERT_WRITES("31536000.12345", kfi_put_number(&w, 31536000.12345, 6, true));
  ASSERT_WRITES("12.5%", kfi_put_percent(&w, 0.125));
}

static void test_seconds(void **state) {
  (void)state;
  ASSERT_WRITES("12.50 ms", kfi_put_seconds(&w, 0.0125, false));
  ASSERT_WRITES("12.5 ms", kfi_put_seconds(&w, 0.0125, true));
  ASSERT_WRITES("1.000 s", kfi_put_seconds(&w, 0.9996, false));
  ASSERT_WRITES("250.0 us", kfi_put_seconds(&w, 250e-6, false));
  ASSERT_WRITES("0 s", kfi_put_seconds(&w, 0, false));
  ASSERT_WRITES("1234 s", kfi_put_seconds(&w, 1234.4, false));
}

/* Each is read back as a double within half a unit of the ninth digit. */
static void test_real(void **state) {
  (void)state;
  static const double values[] = {0,   -0.0, 1,       -1,      0.1,     1.0 / 3, 1e-7,    123456789,
                                  1e9, 1e15, 2.5e-11, DBL_MAX, DBL_MIN, 5e-324,  -123.456};
  ASSERT_WRITES("0.0125", kfi_put_real(&w, 0.0125));
  ASSERT_WRITES("1.25e-07", kfi_put_real(&w, 1.25e-7));
  ASSERT_WRITES("0.333333333", kfi_put_real(&w, 1.0 / 3));
  for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
    kfi_writer w = {0};
    kfi_put_real(&w, values[i]);
    char *text = take(&w);
    assert_true(json_valid(text));
    if (values[i] != DBL_MAX) /* nine digits of it are more than it */
      assert_true(fabs(strtod(text, NULL) - values[i]) <= 5e-9 * fabs(values[i]));
    free(text);
  }
}

/* Decimal points of other places: a comma, and several bytes (Pashto). */
static void test_point(void **state) {
  (void)state;
  static const char *const from[] = {"0,0125", "1\331\25325e-07", "-1.5", "12", "-1e+20"};
  static const char *const to[] = {"0.0125", "1.25e-07", "-1.5", "12", "-1e+20"};
  for (int i = 0; i < 5; i++) {
    char digits[40];
    strcpy(digits, from[i]);
    kfi_plain_point(digits);
    assert_string_equal(digits, to[i]);
  }
  static const char *const locales[] = {"de_DE.UTF-8", "ps_AF.UTF-8", "fa_IR.UTF-8"};
  for (int i = 0; i < 3; i++) /* those that are installed */
    if (setlocale(LC_ALL, locales[i])) {
      ASSERT_WRITES("0.0125", kfi_put_real(&w, 0.0125));
      ASSERT_WRITES("1234.50", kfi_put_fixed(&w, 1234.5, 2));
      setlocale(LC_ALL, "C");
    }
}

/* Everything that is not plain: quotes, controls, broken and forbidden UTF-8. */
static void test_escape(void **state) {
  (void)state;
  static const char text_in[] = "<a&b>'\"\\\n\x01\x7f\xff\xc3\xa9\xed\xa0\x80\xc3";
  ASSERT_WRITES("&#60;a&#38;b&#62;&#39;&#34;\\????\xc3\xa9????", kfi_put_xml(&w, text_in));
  ASSERT_WRITES("\"<a&b>'\\\"\\\\\\n\\u0001\\u007f?\xc3\xa9????\"", kfi_put_json(&w, text_in));
  ASSERT_WRITES("\"<a&b>'\\\"\\\\\\n???\xc3\xa9????\"", kfi_put_label(&w, text_in));
  ASSERT_WRITES("\"\"", kfi_put_json(&w, ""));
  ASSERT_WRITES("\"\"", kfi_put_label(&w, ""));
  for (int a = 1; a < 256; a++)
    for (int b = 0; b < 256; b++) {
      kfi_writer w = {0};
      kfi_put_json(&w, (char[]){(char)a, (char)b, 0});
      char *text = take(&w);
      if (!json_valid(text)) fail_msg("bytes %02x %02x: %s", a, b, text);
      free(text);
    }
}

/* Longer than the first buffer, in pieces that straddle its end. */
static void test_growth(void **state) {
  (void)state;
  kfi_writer w = {0};
  for (int i = 0; i < 20000; i++) {
    kfi_put(&w, "%05d", i);
    kfi_put_real(&w, 0.5);
  }
  char *text = take(&w);
  assert_int_equal(strlen(text), 20000 * 8);
  assert_string_equal(text + 19999 * 8, "199990.5");
  free(text);
}

static void test_nothing(void **state) {
  (void)state;
  ASSERT_WRITES("", (void)0);
}

static kf_status write_much(char **text) {
  kfi_writer w = {0};
  for (int i = 0; i < 3000; i++) {
    kfi_put(&w, "%d", i);
    kfi_put_json(&w, "\x01x");
    kfi_put_label(&w, "x");
    kfi_put_xml(&w, "<");
    kfi_put_real(&w, i);
  }
  return kfi_writer_take(&w, "a test", text);
}

static void test_memory(void **state) {
  (void)state;
  assert_starves(2, text, write_much(&text));
  assert_has(kf_last_error(), "bytes for a test");
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_numbers), cmocka_unit_test(test_seconds), cmocka_unit_test(test_real),
    cmocka_unit_test(test_point),   cmocka_unit_test(test_escape),  cmocka_unit_test(test_growth),
    cmocka_unit_test(test_memory),  cmocka_unit_test(test_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
