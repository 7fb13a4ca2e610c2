/* SPDX-License-Identifier: Apache-2.0 */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "dice.h"
#include "read/value.h"

static void test_whole(void **state) {
  (void)state;
  static const char *const bad[] = {
    "",    "-1",  "+1", " 1",  "1 ", "010",   "00",
    "0x1", "0o7", "1.", "1e3", "x",  "1_000", "9223372036854775808"};
  int64_t n = 7;
  assert_true(kfi_value_whole("0", 0, 9, &n) && n == 0);
  assert_true(kfi_value_whole("9223372036854775807", 0, INT64_MAX, &n) && n == INT64_MAX);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    n = 7;
    if (kfi_value_whole(bad[i], 0, INT64_MAX, &n)) fail_msg("\"%s\" was accepted", bad[i]);
    assert_int_equal(n, 7);
  }
  assert_false(kfi_value_whole("4", 5, 9, &n));
  assert_false(kfi_value_whole("10", 5, 9, &n));
}

static void test_real(void **state) {
  (void)state;
  static const char *const bad[] = {"",    "-1",  "+1",  " 1",    "1 ",    "01",   "00.5",
                                    ".5",  "1.",  "1e",  "1e+",   "nan",   "inf",  ".inf",
                                    "0x1", "1,5", "1_0", "1.2.3", "1e999", "1e1e1"};
  double x = 7;
  assert_true(kfi_value_real("0.4", 0, 1, &x) && x == 0.4);
  assert_true(kfi_value_real("4e-1", 0, 1, &x) && x == 0.4);
  assert_true(kfi_value_real("1e-400", 0, 1, &x) && x == 0);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    x = 7;
    if (kfi_value_real(bad[i], 0, DBL_MAX, &x)) fail_msg("\"%s\" was accepted", bad[i]);
    assert_true(x == 7);
  }
  assert_false(kfi_value_real("2", 0, 1, &x));
  assert_false(kfi_value_real("0.5", 1, 2, &x));
  char digits[301]; /* longer than what is rounded exactly: near all the same */
  memset(digits, '1', 300);
  digits[1] = '.';
  digits[300] = 0;
  assert_true(kfi_value_real(digits, 0, 2, &x) && fabs(x - 10.0 / 9) < 1e-15);
}

/* What is written comes back to the bit, and not with more digits than a person would write. */
static void test_digits(void **state) {
  (void)state;
  static const double plain[] = {0.4, 0.1, 1, 50, 1e9, 1.5e-7, 1e-300, 5e-324, DBL_MAX, DBL_MIN};
  static const char *const want[] = {"0.4",     "0.1",    "1",  "50", "1000000000",
                                     "1.5e-07", "1e-300", NULL, NULL, NULL};
  char text[KFI_DIGITS];
  double back;
  for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
    kfi_value_digits(plain[i], text);
    if (want[i]) assert_string_equal(text, want[i]);
    assert_true(kfi_value_real(text, 0, DBL_MAX, &back) && back == plain[i]);
  }
  dice d = {1};
  for (int i = 0; i < 20000; i++) {
    uint64_t bits = dice_next(&d) >> 1; /* any double that is not negative */
    double value;
    memcpy(&value, &bits, sizeof value);
    if (!isfinite(value)) continue;
    kfi_value_digits(value, text);
    if (!kfi_value_real(text, 0, DBL_MAX, &back) || memcmp(&back, &value, sizeof value) != 0)
      fail_msg("%a became \"%s\" and %a", value, text, back);
  }
  assert_string_equal(kfi_value_digits(NAN, text) + (text[0] == '-'), "nan");
  assert_string_equal(kfi_value_digits(INFINITY, text), "inf");
}

static void test_is_text(void **state) {
  (void)state;
  static const char *const good[] = {
    "", "flux", "a b", "\xc3\xa9", "\xe2\x80\xa8", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"};
  static const char *const bad[] = {"\n",
                                    "a\x7f",
                                    "\xc2\x80",
                                    "\xff",
                                    "\xc3",
                                    "\xc0\x80",
                                    "\xe0\x80\x80",
                                    "\xed\xa0\x80",
                                    "\xe2\x80",
                                    "\xf0\x80\x80\x80",
                                    "\xf4\x90\x80\x80",
                                    "a\x80"};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert_true(kfi_value_is_text(good[i]));
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(kfi_value_is_text(bad[i]));
}

static void assert_put(const char *text, const char *want) {
  kfi_writer w = {0};
  char *out = NULL;
  kfi_value_put_text(&w, text);
  assert_int_equal(kfi_writer_take(&w, "a test", &out), KF_OK);
  assert_string_equal(out, want);
  free(out);
}

static void test_put_text(void **state) {
  (void)state;
  assert_put("flux", "flux");
  assert_put("d=1,layers=2,heads=3", "d=1,layers=2,heads=3");
  assert_put("/var/log/steps-1.json", "/var/log/steps-1.json");
  assert_put("", "\"\"");
  assert_put("NULL", "\"NULL\"");
  assert_put("- a", "\"- a\"");
  assert_put("-a", "\"-a\"");
  assert_put("a: b", "\"a: b\"");
  assert_put("a #b", "\"a #b\"");
  assert_put("\"\\", "\"\\\"\\\\\"");
  assert_put("\xc3\xa9", "\"\xc3\xa9\"");
  assert_put("\xe2\x80\xa8\xc2\xa0", "\"\\u2028\\u00a0\"");
}

static void test_messages(void **state) {
  (void)state;
  char shown[KFI_SHOWN], longer[200];
  memset(longer, 'x', sizeof longer - 1);
  longer[sizeof longer - 1] = 0;
  assert_string_equal(kfi_value_show("a\n\x1b[1m\xc3\xa9", shown), "a??[1m??");
  assert_string_equal(kfi_value_show(longer, shown) + 57, "xxx...");
  kfi_place at = {"a.yaml", 3, 7};
  assert_int_equal(kfi_value_fail(&at, "%s is %d", "x", 5), KF_EINVAL);
  assert_string_equal(kf_last_error(), "a.yaml, line 3, column 7: x is 5");
  at.line = 0;
  kfi_value_fail(&at, "again, %s", kf_last_error());
  assert_string_equal(kf_last_error(), "a.yaml: again, a.yaml, line 3, column 7: x is 5");
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_whole),    cmocka_unit_test(test_real),
    cmocka_unit_test(test_digits),   cmocka_unit_test(test_is_text),
    cmocka_unit_test(test_put_text), cmocka_unit_test(test_messages),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
