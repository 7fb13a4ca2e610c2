/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <knapformer.h>

#include "fail_alloc.h"

/* The rows as text again: "len seconds rank;". The text is given without its final 0. */
static const char *read_back(const char *text) {
  static char out[400];
  kf_fit_row *rows = NULL;
  int64_t n_rows = 0;
  size_t n = strlen(text), used = 0;
  char *exact = malloc(n + 1);
  memcpy(exact, text, n);
  kf_status status = kf_fit_parse("t.csv", exact, n, &rows, &n_rows);
  free(exact);
  if (status) return kf_last_error();
  out[0] = 0;
  for (int64_t i = 0; i < n_rows; i++)
    used += (size_t)snprintf(out + used, sizeof out - used, "%lld %.15g %d;",
                             (long long)rows[i].len, rows[i].seconds, (int)rows[i].rank);
  free(rows);
  return out;
}

static void test_good(void **state) {
  (void)state;
  static const char *const good[][2] = {
    {"seq_len,seconds\n4096,0.5\n8192,1.25e0\n", "4096 0.5 0;8192 1.25 0;"},
    {"seq_len,seconds\r\n4096,0.5\r\n8192,1.25", "4096 0.5 0;8192 1.25 0;"},
    {"rank,seconds,seq_len\n3,1e-3,1\n", "1 0.001 3;"},
    {"\xef\xbb\xbfseconds , seq_len\n\n \t\n 1 ,\t2\n\n", "2 1 0;"},
    {"\"seq_len\",\"seconds\"\n\"7\",\"0.25\"\n", "7 0.25 0;"},
    {"name,seq_len,note,seconds,\n\"a \"\"b\"\", c\",5,,2,x\nd,6, \"\" ,3,\n", "5 2 0;6 3 0;"},
    {"seq_len,seconds,rank\n4096.0,1,7.000\n4294967296,86400,1048575\n",
     "4096 1 7;4294967296 86400 1048575;"},
    {"\n\nseq_len,seconds\n1,1\n", "1 1 0;"},
    {"seq_len_x,seq_len,seconds\n9,8,7\n", "8 7 0;"},
  };
  for (size_t i = 0; i < sizeof good / sizeof *good; i++)
    assert_string_equal(read_back(good[i][0]), good[i][1]);
}

static void test_bad(void **state) {
  (void)state;
  static const char *const bad[][2] = {
    {"", "t.csv: the text is empty, expected a header and rows"},
    {"\n \r\n", "t.csv: the text is empty, expected a header and rows"},
    {"seq_len,seconds\n", "t.csv: found 0 rows below the header, expected 1 to 1073741824"},
    {"4096,0.5\n", "t.csv, line 1, column 1: found \"4096\", expected a header with the columns "
                   "seq_len, seconds and maybe rank"},
    {"seq_len,second\n1,1\n", "line 1, column 1: found \"seq_len\", expected a header"},
    {"seq_len;seconds\n1;1\n", "line 1, column 1: found \"seq_len;seconds\", expected a header"},
    {"seq_len,seconds,seq_len\n1,1,1\n",
     "line 1, column 17: found \"seq_len\", expected every column "
     "only once"},
    {"seq_len,seconds\n4096,\n", "t.csv, line 2, column 6: found the end of the line, expected "
                                 "seconds, a number above 0 and at most 86400"},
    {"seq_len,seconds\n4096\n", "line 2, column 5: found the end of the line, expected a comma "
                                "after field 1 of 2"},
    {"seq_len,seconds\n4096,1,2\n", "line 2, column 7: found \",\", expected the end of the line "
                                    "after field 2 of 2"},
    {"seq_len,seconds\n\n4096,0\n", "line 3, column 6: found \"0\", expected seconds"},
    {"seq_len,seconds\n4096,-1\n", "column 6: found \"-1\", expected seconds"},
    {"seq_len,seconds\n4096,nan\n", "column 6: found \"nan\", expected seconds"},
    {"seq_len,seconds\n4096,1e9\n", "column 6: found \"1e9\", expected seconds"},
    {"seq_len,seconds\n4096,0.5s\n", "column 9: found \"s\", expected the end of the line"},
    {"seq_len,seconds\n4096,\"0.5\n", "column 10: found the end of the line, expected a quote"},
    {"seq_len,seconds\n0,1\n", "column 1: found \"0\", expected seq_len, a whole number from 1 to "
                               "4294967296"},
    {"seq_len,seconds\n4096.5,1\n", "column 5: found \".5\", expected a comma after field 1 of 2"},
    {"seq_len,seconds\n4294967297,1\n", "column 1: found \"4294967297\", expected seq_len"},
    {"seq_len,seconds,rank\n1,1,1048576\n",
     "column 5: found \"1048576\", expected rank, a whole number "
     "from 0 to 1048575"},
    {"a,seq_len,seconds\n\"x,1,1\n",
     "line 2, column 1: found \"\"x\", expected a quote that ends on "
     "the same line"},
    {"seq_len,\"seconds\n1,1\n", "line 1, column 9: found \"\"seconds\", expected a quote"},
    {"\"seq_len\"x,seconds\n1,1\n", "line 1, column 10: found \"x\", expected a comma"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    const char *message = read_back(bad[i][0]);
    if (!strstr(message, bad[i][1])) fail_msg("case %zu: %s", i, message);
  }
  kf_fit_row *rows = (kf_fit_row *)&state;
  int64_t n_rows = 42;
  assert_int_equal(kf_fit_parse(NULL, "x", 1, &rows, &n_rows), KF_EINVAL);
  assert_non_null(strstr(kf_last_error(), "rows, line 1"));
  assert_int_equal(kf_fit_parse("t", NULL, 1, &rows, &n_rows), KF_EINVAL);
  assert_int_equal(kf_fit_parse("t", NULL, 0, &rows, &n_rows), KF_EINVAL);
  assert_int_equal(kf_fit_parse("t", "x", 1, NULL, &n_rows), KF_EINVAL);
  assert_true(rows == (kf_fit_row *)&state && n_rows == 42); /* written only on success */
}

static void test_memory(void **state) {
  (void)state;
  static const char text[] = "seq_len,seconds\n1,1\n2,2\n";
  for (long k = 1;; k++) {
    kf_fit_row *rows = NULL;
    int64_t n_rows = 0;
    fail_alloc(k);
    kf_status status = kf_fit_parse("t", text, sizeof text - 1, &rows, &n_rows);
    if (fail_alloc(0) < k) {
      assert_int_equal(n_rows, 2);
      free(rows);
      break;
    }
    assert_int_equal(status, KF_ENOMEM);
    assert_null(rows);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_good), cmocka_unit_test(test_bad),
                                     cmocka_unit_test(test_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
