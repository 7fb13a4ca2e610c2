/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <knapformer.h>

#include "dice.h"
#include "fail_alloc.h"

static int64_t *parse(const char *text, size_t n_bytes, int64_t *n) {
  int64_t *len = NULL;
  char *exact = malloc(n_bytes); /* so that a sanitizer sees a read past the end */
  memcpy(exact, text, n_bytes);
  if (kf_lens_parse("f", exact, n_bytes, &len, n)) fail_msg("%s", kf_last_error());
  free(exact);
  return len;
}

/* The lengths as text again: "1,2,2". */
static void check(const char *text, const char *want) {
  char got[256] = "", number[32];
  int64_t n, *len = parse(text, strlen(text), &n);
  for (int64_t i = 0; i < n; i++) {
    snprintf(number, sizeof number, "%s%" PRId64, i ? "," : "", len[i]);
    strcat(got, number);
  }
  assert_string_equal(got, want);
  free(len);
}

static void test_words(void **state) {
  (void)state;
  check("4096", "4096");
  check("1 2\n3\n", "1,2,3");
  check(" 1,2 , 3,,\t4\r\n5,\r\n\n", "1,2,3,4,5");
  check("007 000000000012", "7,12");
  check("999999999 1000000000 4294967296", "999999999,1000000000,4294967296");
  check("5*3,6", "5,5,5,6");
  check("5*1 4294967296*2", "5,4294967296,4294967296");
}

/* By hand: 832x480 is 52x30 tokens; 81 frames are 21 latent ones. */
static void test_shapes(void **state) {
  (void)state;
  check("832x480", "1560");
  check("832x480x1", "1560");
  check("832x480x81", "32760");
  check("832x480x81+392", "33152");
  check("832x480+392", "1952");
  check("832x480+0", "1560");
  check("832x480x81+392*2 256x256*2\n7", "33152,33152,256,256,7");
  check("1920x1088x240", "497760"); /* 15 s at 16 fps: 61 latent frames of 120x68 */
  check("1x1 16x16 17x16 16x17 17x17 31x33", "1,1,2,2,4,6");
  check("16x16x1 16x16x2 16x16x5 16x16x6 16x16x9 16x16x10", "1,2,2,3,3,4");
  check("1048576x1048576", "4294967296");
  check("16x16+4294967295", "4294967296");
}

static void check_bad(const char *text, size_t n_bytes, const char *want) {
  int64_t n = -7, *len = &n;
  char *exact = malloc(n_bytes + !n_bytes);
  memcpy(exact, text, n_bytes);
  assert_int_equal(kf_lens_parse("lens.txt", exact, n_bytes, &len, &n), KF_EINVAL);
  free(exact);
  assert_ptr_equal(len, &n); /* written only on success */
  assert_int_equal(n, -7);
  if (strcmp(kf_last_error(), want) != 0) fail_msg("\n%s\n%s", kf_last_error(), want);
}

#define BAD(text, want) check_bad(text, sizeof(text) - 1, "lens.txt" want)

static void test_bad_words(void **state) {
  (void)state;
#define RANGE "expected a whole number from 1 to 4294967296"
#define EMPTY ": found no length, expected one such as 4096 or 832x480x81"
#define AFTER "expected \"x\", \"*\", a blank or a comma after a length"
  BAD("", EMPTY);
  BAD(" ,\r\n\t\n", EMPTY);
  BAD("1\n2 -5\n", ", line 2, column 3: found \"-5\", " RANGE);
  BAD("0", ", line 1, column 1: found \"0\", " RANGE);
  BAD("1,\n\n  x", ", line 3, column 3: found \"x\", " RANGE);
  BAD("4294967297", ", line 1, column 1: found \"4294967297\", " RANGE);
  BAD("5 99999999999999999999999", ", line 1, column 3: found \"99999999999999999999999\", " RANGE);
  BAD("1.5", ", line 1, column 2: found \".5\", " AFTER);
  BAD("12345678901.5", ", line 1, column 1: found \"12345678901.5\", " RANGE);
  BAD("7+5", ", line 1, column 2: found \"+\", " AFTER);
  BAD("nan", ", line 1, column 1: found \"nan\", " RANGE);
  BAD("1\0002", ", line 1, column 2: found \"?\", " AFTER);
  BAD("7;8", ", line 1, column 2: found \";8\", " AFTER);
  BAD("7 x8\n-1", ", line 1, column 3: found \"x8\", " RANGE); /* the first of two */
}

static void test_bad_shapes(void **state) {
  (void)state;
#define SIDE "expected a whole number from 1 to 1048576"
#define SHAPE_AFTER "expected \"x\", \"+\", \"*\", a blank or a comma after a shape"
  BAD("832x", ", line 1, column 5: found the end of the line, " SIDE);
  BAD("1\n832x\r\n5", ", line 2, column 5: found the end of the line, " SIDE);
  BAD("832x 480", ", line 1, column 5: found \" \", " SIDE);
  BAD("832x,480", ", line 1, column 5: found \",\", " SIDE);
  BAD("0x480", ", line 1, column 1: found \"0\", " RANGE);
  BAD("832x0", ", line 1, column 5: found \"0\", " SIDE);
  BAD("832x480x0", ", line 1, column 9: found \"0\", " SIDE);
  BAD("832x480x", ", line 1, column 9: found the end of the line, " SIDE);
  BAD("832x480x81+", ", line 1, column 12: found the end of the line, expected a whole number from "
                     "0 to 4294967296");
  BAD("832x480x81x2", ", line 1, column 11: found \"x2\", " SHAPE_AFTER);
  BAD("832x480+1x2", ", line 1, column 10: found \"x2\", " SHAPE_AFTER);
  BAD("832X480", ", line 1, column 4: found \"X480\", " AFTER);
  BAD("5 1048577x16",
      ", line 1, column 3: found \"1048577\", expected a width from 1 to 1048576 pixels");
  BAD("16x1048577", ", line 1, column 4: found \"1048577\", " SIDE);
  BAD("1048576x1048576x1048576",
      ", line 1, column 1: found \"1048576\", expected at most 4294967296 tokens a sample");
  BAD("1048576x1048576+1",
      ", line 1, column 1: found \"1048576\", expected at most 4294967296 tokens a sample");
  BAD("16x16+4294967296",
      ", line 1, column 1: found \"16\", expected at most 4294967296 tokens a sample");
}

static void test_bad_counts(void **state) {
  (void)state;
#define COUNT "expected a whole number from 1 to 1073741824"
  BAD("7*", ", line 1, column 3: found the end of the line, " COUNT);
  BAD("7*0", ", line 1, column 3: found \"0\", " COUNT);
  BAD("7* 5", ", line 1, column 3: found \" \", " COUNT);
  BAD("7*1073741825", ", line 1, column 3: found \"1073741825\", " COUNT);
  BAD("7*2*3", ", line 1, column 4: found \"*3\", expected a blank or a comma after a count");
  BAD("*3", ", line 1, column 1: found \"*3\", " RANGE);
#define MOST "expected at most 1073741824 samples and 2^52 tokens"
  BAD("1\n 1*1073741824", ", line 2, column 2: found 1073741825 samples with 1073741825 tokens up "
                          "to here, " MOST);
  BAD("1*1073741824 1", ", line 1, column 14: found 1073741825 samples with 1073741825 tokens up "
                        "to here, " MOST);
  BAD("4294967296*1048576 1", ", line 1, column 20: found 1048577 samples with 4503599627370497 "
                              "tokens up to here, " MOST);
  BAD("4294967296*1073741824", ", line 1, column 1: found 1073741824 samples with "
                               "4611686018427387904 tokens up to here, " MOST);
}

static void test_null(void **state) {
  (void)state;
  int64_t n, *len;
  assert_int_equal(kf_lens_parse("f", NULL, 1, &len, &n), KF_EINVAL);
  assert_int_equal(kf_lens_parse("f", "1", 1, NULL, &n), KF_EINVAL);
  assert_int_equal(kf_lens_parse("f", "1", 1, &len, NULL), KF_EINVAL);
  assert_string_equal(kf_last_error(), "f: a NULL argument");
  assert_int_equal(kf_lens_parse(NULL, NULL, 0, &len, &n), KF_EINVAL);
  assert_string_equal(kf_last_error(),
                      "lengths: found no length, expected one such as 4096 or 832x480x81");
}

/* 2^20 samples of 2^32 tokens are 2^52, the most there may be. */
static void test_limits(void **state) {
  (void)state;
  int64_t n, *len = parse("4294967296*1048576", 18, &n);
  assert_int_equal(n, 1 << 20);
  for (int64_t i = 0; i < n; i++) assert_true(len[i] == KF_MAX_LEN);
  free(len);
}

/* What was written is what is read, whichever of the two readers takes it; separators at random. */
static void test_random(void **state) {
  (void)state;
  enum { N = 20000 };
  static const char separator[] = " ,\n\t\r";
  static int64_t want[N];
  char *text = malloc(N * 40);
  dice d = {11};
  size_t n_bytes = 0;
  for (int64_t i = 0; i < N; i++) {
    int64_t shift = dice_int(&d, 32);
    want[i] = 1 + (dice_int(&d, KF_MAX_LEN) >> shift);
    n_bytes += (size_t)sprintf(text + n_bytes, "%" PRId64, want[i]);
    if (dice_one_in(&d, 3)) n_bytes += (size_t)sprintf(text + n_bytes, "*1");
    do text[n_bytes++] = separator[dice_int(&d, 5)];
    while (dice_one_in(&d, 4));
  }
  int64_t n, *len = parse(text, n_bytes, &n);
  assert_int_equal(n, N);
  assert_memory_equal(len, want, sizeof want);
  free(len);
  text[n_bytes - 1] = 'x'; /* and lines are counted right, to the last */
  int64_t line = 1;
  for (size_t i = 0; i < n_bytes; i++) line += text[i] == '\n';
  char place[32];
  snprintf(place, sizeof place, "f, line %" PRId64 ",", line);
  assert_int_equal(kf_lens_parse("f", text, n_bytes, &len, &n), KF_EINVAL);
  assert_memory_equal(kf_last_error(), place, strlen(place));
  free(text);
}

/* One block of the right size is all that is taken, and none for a text that is wrong. */
static void test_memory(void **state) {
  (void)state;
  int64_t n = -7, *len = NULL;
  fail_alloc(1);
  assert_int_equal(kf_lens_parse("f", "1 2\n3*1000\n", 11, &len, &n), KF_ENOMEM);
  assert_int_equal(fail_alloc(0), 1);
  assert_string_equal(kf_last_error(), "out of memory: 8016 bytes for lengths");
  assert_null(len);
  assert_int_equal(n, -7);
  fail_alloc(2);
  assert_int_equal(kf_lens_parse("f", "1 2\n3*1000\n", 11, &len, &n), KF_OK);
  assert_int_equal(fail_alloc(0), 1);
  assert_int_equal(n, 1002);
  free(len);
  fail_alloc(1);
  assert_int_equal(kf_lens_parse("f", "1*1000000000 x", 14, &len, &n), KF_EINVAL);
  assert_int_equal(fail_alloc(0), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_words),      cmocka_unit_test(test_shapes),
    cmocka_unit_test(test_bad_words),  cmocka_unit_test(test_bad_shapes),
    cmocka_unit_test(test_bad_counts), cmocka_unit_test(test_null),
    cmocka_unit_test(test_limits),     cmocka_unit_test(test_random),
    cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
