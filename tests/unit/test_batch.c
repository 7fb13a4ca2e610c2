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

/* The batch as text again: "1,2|3|" is a rank of two, one of one, and an empty one. */
static void check(const char *text, const char *want) {
  char got[256] = "", number[32];
  kf_batch *batch;
  size_t n = strlen(text);
  char *exact = malloc(n); /* so that a sanitizer sees a read past the end */
  memcpy(exact, text, n);
  if (kf_batch_parse("f", exact, n, &batch)) fail_msg("%s", kf_last_error());
  free(exact);
  for (int32_t r = 0; r < batch->n_ranks; r++) {
    if (r) strcat(got, "|");
    for (int64_t i = batch->rank_off[r]; i < batch->rank_off[r + 1]; i++) {
      snprintf(number, sizeof number, "%s%ld", i > batch->rank_off[r] ? "," : "",
               (long)batch->len[i]);
      strcat(got, number);
    }
  }
  assert_int_equal(batch->rank_off[batch->n_ranks], batch->n_seqs);
  assert_null(batch->profile); /* lengths say nothing of what they are */
  assert_string_equal(got, want);
  kf_batch_free(batch);
}

static void test_good(void **state) {
  (void)state;
  check("1 2\n3\n", "1,2|3");
  check("1 2\n3", "1,2|3"); /* no newline at the end */
  check("\n", "");
  check("\n\n5\n\n", "||5|");
  check("  7\t8  \r\n9\r\n", "7,8|9");
  check("0 0 4294967296", "0,0,4294967296");
  check(" ", "");
}

static void check_bad(const char *text, size_t n, const char *want) {
  kf_batch *batch = NULL;
  assert_int_equal(kf_batch_parse("lens.txt", text, n, &batch), KF_EINVAL);
  assert_null(batch);
  if (strcmp(kf_last_error(), want) != 0) fail_msg("\n%s\n%s", kf_last_error(), want);
}

static void test_bad(void **state) {
  (void)state;
#define RANGE "expected a whole number from 0 to 4294967296"
#define BAD(text, want) check_bad(text, sizeof(text) - 1, "lens.txt" want)
  BAD("", ": the text is empty, expected one line per rank");
  BAD("1\n2 -5\n", ", line 2, column 3: found \"-5\", " RANGE);
  BAD("1\n\n  x", ", line 3, column 3: found \"x\", " RANGE);
  BAD("1000000000000000000", ", line 1, column 1: found \"1000000000000000000\", " RANGE);
  BAD("4294967297", ", line 1, column 1: found \"4294967297\", " RANGE);
  BAD("1.5", ", line 1, column 2: found \".5\", expected a blank or the end of the line after a "
             "length");
  BAD("nan", ", line 1, column 1: found \"nan\", " RANGE);
  BAD("1\0002", ", line 1, column 2: found \"?\", expected a blank or the end of the line after a "
                "length");
}

/* 2^20 sequences of 2^32 tokens are 2^52: one more is too many. */
static void test_limits(void **state) {
  (void)state;
  size_t n = ((size_t)1 << 20) + 1, length = strlen("4294967296 ");
  char *text = malloc(n * length);
  for (size_t i = 0; i < n; i++) memcpy(text + i * length, "4294967296 ", length);
  kf_batch *batch;
  assert_int_equal(kf_batch_parse("f", text, n * length, &batch), KF_EINVAL);
  assert_non_null(strstr(kf_last_error(), "at most 2^52 tokens in all"));
  assert_int_equal(kf_batch_parse("f", text, (n - 1) * length, &batch), KF_OK);
  kf_batch_free(batch);
  memset(text, '\n', n);
  assert_int_equal(kf_batch_parse("f", text, KF_MAX_RANKS + 1, &batch), KF_EINVAL);
  assert_non_null(strstr(kf_last_error(), "1048577 lines"));
  assert_int_equal(kf_batch_parse("f", text, KF_MAX_RANKS, &batch), KF_OK);
  assert_int_equal(batch->n_ranks, KF_MAX_RANKS);
  kf_batch_free(batch);
  free(text);
}

static void test_memory(void **state) {
  (void)state;
  for (long k = 1;; k++) {
    kf_batch *batch = NULL;
    fail_alloc(k);
    kf_status status = kf_batch_parse("f", "1 2\n3\n", 6, &batch);
    if (fail_alloc(0) < k) {
      kf_batch_free(batch);
      break;
    }
    assert_int_equal(status, KF_ENOMEM);
    assert_null(batch);
  }
  kf_batch_free(NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_good),
    cmocka_unit_test(test_bad),
    cmocka_unit_test(test_limits),
    cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
