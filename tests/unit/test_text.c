/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text.h"

static void test_take_and_is(void **state) {
  (void)state;
  kfi_text t = kfi_text_open("text", "g12x");
  assert_false(kfi_text_take(&t, "x"));
  assert_true(kfi_text_take(&t, "g1"));
  assert_int_equal(t.at - t.begin, 2);
  assert_false(kfi_text_take(&t, "2xy")); /* longer than what is left */
  t = kfi_text_open("text", "DiT-xl");
  assert_true(kfi_text_is(&t, "DiT-XL"));
  assert_false(kfi_text_is(&t, "DiT-X"));
  assert_false(kfi_text_is(&t, "DiT-XLL"));
}

static kf_status read_int(const char *text, int64_t min, int64_t max, int64_t *out) {
  kfi_text t = kfi_text_open("text", text);
  kf_status status = kfi_text_int(&t, min, max, out);
  return status ? status : kfi_text_end(&t, "the end");
}

static void test_int(void **state) {
  (void)state;
  int64_t n = -1;
  assert_int_equal(read_int("0", 0, 9, &n), KF_OK);
  assert_int_equal(n, 0);
  assert_int_equal(read_int("007", 0, 9, &n), KF_OK);
  assert_int_equal(n, 7);
  assert_int_equal(read_int("9223372036854775807", 0, INT64_MAX, &n), KF_OK);
  assert_true(n == INT64_MAX);
  static const char *const bad[] = {"",
                                    "-1",
                                    "+1",
                                    " 1",
                                    "1 ",
                                    "x",
                                    "9223372036854775808",
                                    "0x5",
                                    "1.5",
                                    "1e3",
                                    "nan",
                                    "99999999999999999999999999"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    n = 42;
    kf_status status = read_int(bad[i], 0, INT64_MAX, &n);
    if (status != KF_EINVAL) fail_msg("\"%s\" was accepted as %ld", bad[i], (long)n);
  }
  assert_int_equal(read_int("4", 5, 9, &n), KF_EINVAL);
  assert_int_equal(read_int("10", 5, 9, &n), KF_EINVAL);
  assert_int_equal(read_int("7", 0, 6, &n), KF_EINVAL); /* a maximum below a digit */
}

static kf_status read_real(const char *text, double *out) {
  kfi_text t = kfi_text_open("text", text);
  kf_status status = kfi_text_real(&t, 0, 1e300, out);
  return status ? status : kfi_text_end(&t, "the end");
}

/* Up to 15 digits the result is that of strtod, which in the C locale rounds correctly. */
static void test_real(void **state) {
  (void)state;
  static const char *const good[] = {"0",
                                     "0.4",
                                     "1.0",
                                     "300",
                                     "1e3",
                                     "1E-3",
                                     "2.5e+2",
                                     "1e22",
                                     "0.385",
                                     "1e-22",
                                     "0e99",
                                     "000.50",
                                     "123456789012345",
                                     "0.000000000000001"};
  double x;
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    if (read_real(good[i], &x)) fail_msg("\"%s\" was refused", good[i]);
    if (x != strtod(good[i], NULL)) fail_msg("\"%s\" was read as %.17g", good[i], x);
  }
  static const char *const bad[] = {"",    ".",   ".5",    "5.",  "1e",
                                    "1e+", "-1",  "+1",    "nan", "inf",
                                    "0x1", "1,5", "1e301", "--1", "1e999999999999"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    if (read_real(bad[i], &x) != KF_EINVAL) fail_msg("\"%s\" was accepted as %g", bad[i], x);
}

/* Random numbers with 17 digits: within a few units in the last place. */
static void test_real_random(void **state) {
  (void)state;
  uint64_t seed = 1;
  for (int i = 0; i < 10000; i++) {
    char text[64];
    double want, x;
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    want = (double)(seed >> 11) * pow(10, (int)(seed % 60) - 40);
    snprintf(text, sizeof text, "%.17g", want);
    assert_int_equal(read_real(text, &x), KF_OK);
    if (fabs(x - want) > 4e-16 * 4 * want) fail_msg("\"%s\" was read as %.17g", text, x);
  }
}

static void test_sentences(void **state) {
  (void)state;
  int64_t n;
  double x;
  kfi_text t = kfi_text_open("bag spec", "g1n8+g2nx");
  t.at += 8;
  kfi_text_int(&t, 1, 99, &n);
  assert_string_equal(kf_last_error(),
                      "bag spec \"g1n8+g2nx\", position 9: found \"x\", expected a "
                      "whole number from 1 to 99");
  t = (kfi_text){.what = "f.txt", .begin = t.begin, .at = t.begin, .end = t.end, .line = 3};
  kfi_text_real(&t, 0.5, 2, &x);
  assert_string_equal(kf_last_error(), "f.txt, line 3, column 1: found \"g1n8\", expected a number "
                                       "from 0.5 to 2");
  t = kfi_text_open("mix", "");
  kfi_text_bad(&t, "a code");
  assert_string_equal(kf_last_error(), "mix \"\", position 1: found the end, expected a code");
  t = kfi_text_open("mix", "\033[2J\xff");
  kfi_text_bad(&t, "a code"); /* nothing that moves a terminal's cursor */
  assert_null(strchr(kf_last_error(), '\033'));
  char huge[5000];
  memset(huge, 'a', sizeof huge - 1);
  huge[sizeof huge - 1] = 0;
  t = kfi_text_open("mix", huge);
  kfi_text_bad(&t, "a code");
  assert_true(strlen(kf_last_error()) < 250);
  assert_non_null(strstr(kf_last_error(), "expected a code"));
}

static void test_fields(void **state) {
  (void)state;
  static const kfi_field field[] = {
    {"d", 1, 100, KFI_WHOLE}, {"dx", 0, 1, KFI_REAL}, {"w", 1, 9, KFI_REAL_OR_INF}};
  double value[3] = {-1, -1, -1};
  uint32_t seen;
  kfi_text t = kfi_text_open("thing", "w=inf,d=64");
  assert_int_equal(kfi_text_fields(&t, field, 3, value, &seen), KF_OK);
  assert_int_equal(seen, 5);
  assert_true(value[0] == 64 && value[1] == -1 && isinf(value[2]));
  t = kfi_text_open("thing", "dx=0.25");
  assert_int_equal(kfi_text_fields(&t, field, 3, value, &seen), KF_OK);
  assert_true(value[1] == 0.25);
  static const char *const bad[] = {"",      "d",    "d=",     "d=0",      "d=101", "d=1.5",
                                    "e=1",   "d=1,", ",d=1",   "d=1,d=1",  "d=1 ",  "d=inf",
                                    "w=nan", "w=10", "w=infx", "d=1;dx=1", "D=1",   "dx=-0.1"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    t = kfi_text_open("thing", bad[i]);
    if (kfi_text_fields(&t, field, 3, value, &seen) != KF_EINVAL)
      fail_msg("\"%s\" was accepted", bad[i]);
    assert_non_null(strstr(kf_last_error(), "expected"));
  }
}

/* Every code goes there and back, and no other bytes are a character. */
static void test_character(void **state) {
  (void)state;
  uint32_t found;
  for (uint32_t code = 1; code <= 0x10ffff; code++) {
    int n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    char s[5] = {(char)code};
    for (int i = n - 1; i > 0; i--) s[i] = (char)(0x80 | (code >> 6 * (n - 1 - i) & 0x3f));
    if (n > 1) s[0] = (char)((0xf00 >> n & 0xff) | code >> 6 * (n - 1));
    bool surrogate = code >= 0xd800 && code < 0xe000;
    assert_int_equal(kfi_text_character(s, &found), surrogate ? 0 : n);
    if (!surrogate) assert_int_equal(found, code);
  }
  static const char *const bad[] = {"\x80",
                                    "\xbf",
                                    "\xc3",
                                    "\xc3(",
                                    "\xc0\x80",
                                    "\xe0\x9f\xbf",
                                    "\xf0\x8f\xbf\xbf",
                                    "\xe2\x82",
                                    "\xf8",
                                    "\xff",
                                    "\xf4\x90\x80\x80",
                                    "\xf0\x9f\x98"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    assert_int_equal(kfi_text_character(bad[i], &found), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_take_and_is), cmocka_unit_test(test_int),
    cmocka_unit_test(test_real),        cmocka_unit_test(test_real_random),
    cmocka_unit_test(test_sentences),   cmocka_unit_test(test_fields),
    cmocka_unit_test(test_character),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
