/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <knapformer.h>

#include "fail_alloc.h"

#define N(array) (sizeof(array) / sizeof((array)[0]))

/* The first ranks as text: "0,1|2,3|" is two groups of two bags, then the number of ranks. */
static void check(const char *spec, int32_t n_ranks, const char *want) {
  char got[512] = "";
  kf_bags *b;
  if (kf_bags_parse(spec, n_ranks, &b)) fail_msg("%s", kf_last_error());
  assert_int_equal(b->n_ranks, n_ranks ? n_ranks : b->first[b->n_bags]);
  assert_int_equal(b->n_bags, b->n_groups * b->bags_per_group);
  for (int32_t i = 0; i <= b->n_bags; i++) {
    const char *before = i == 0 ? "" : i % b->bags_per_group == 0 ? "|" : ",";
    snprintf(got + strlen(got), sizeof got - strlen(got), "%s%d", before, (int)b->first[i]);
  }
  assert_string_equal(got, want);
  kf_bags_free(b);
}

static void test_good(void **state) {
  (void)state;
  check("g1n8+g2n4", 16, "0,1,2,3,4,5,6,7,8,10,12,14|16");
  check("g4n8", 32, "0,4,8,12,16,20,24,28|32");
  check("g3n1", 3, "0|3");
  check("g1n1+g3n1+g1n2", 6, "0,1,4,5|6");
  check("[1,1,2]", 4, "0,1,2|4");
  check("[1,1,2]", 12, "0,1,2|4,5,6|8,9,10|12"); /* three groups */
  check("g1n2+g2n1", 8, "0,1,2|4,5,6|8");
  check("[3]", 9, "0|3|6|9");
  check("4", 4, "0|4");
  check("4", 12, "0,4,8|12"); /* a size is one group */
  check("1", 3, "0,1,2|3");
  check("002", 4, "0,2|4");
  check("[1,1,2]", 0, "0,1,2|4"); /* as many ranks as the spec has */
  check("g1n2+g2n1", 0, "0,1,2|4");
  check("4", 0, "0|4");
}

static void test_auto(void **state) {
  (void)state;
  kf_bags *b = (kf_bags *)&state;
  assert_int_equal(kf_bags_parse("auto", 32, &b), KF_OK);
  assert_null(b);
  kf_bags_free(b);
}

static void test_large(void **state) {
  (void)state;
  kf_bags *b;
  assert_int_equal(kf_bags_parse("1", KF_MAX_RANKS, &b), KF_OK);
  assert_int_equal(b->n_bags, KF_MAX_RANKS);
  kf_bags_free(b);
  assert_int_equal(kf_bags_parse("g1048576n1", KF_MAX_RANKS, &b), KF_OK);
  assert_int_equal(b->n_bags, 1);
  kf_bags_free(b);
}

static void test_bad(void **state) {
  (void)state;
  static const char *const bad[] = {
    "",
    " ",
    "x",
    "autos",
    "g",
    "g1",
    "g1n",
    "gn8",
    "n8",
    "g0n1",
    "g1n0",
    "0",
    "-4",
    "4.0",
    "4x",
    "4 ",
    "g1n8+",
    "+g1n8",
    "g1n8++g2n4",
    "g1n8,g2n4",
    "g1n8 ",
    "g1n8x",
    "g1n8+2n4",
    "g-1n8",
    "G1n8",
    "[",
    "[]",
    "[1",
    "[1,]",
    "[,1]",
    "[1,1,2",
    "[1,1,2]]",
    "[1,1,2]x",
    "[1;2]",
    "[1, 2]",
    "[0,1]",
    "[-1]",
    "[g1n2]",
    "g1048577n1",
    "g1n1048577",
    "g1048576n1048576",
    "g99999999999999999999n1",
    "99999999999999999999",
    "[9223372036854775807,1]",
    "g17n1", /* more ranks than there are */
    "g1n8+g2n5",
    "[8,8,1]",
    "17",
    "3", /* does not divide 16 */
    "g3n1",
    "[1,2]",
    "g1n8+g2n1",
  };
  for (size_t i = 0; i < N(bad); i++) {
    kf_bags *b = (kf_bags *)&state;
    if (kf_bags_parse(bad[i], 16, &b) != KF_EINVAL) fail_msg("\"%s\" was accepted", bad[i]);
    assert_ptr_equal(b, &state); /* written only on success */
    assert_non_null(strstr(kf_last_error(), "bag spec"));
    assert_non_null(strstr(kf_last_error(), bad[i]));
  }
}

static void check_sentence(const char *spec, int32_t n_ranks, const char *want) {
  kf_bags *b;
  assert_int_equal(kf_bags_parse(spec, n_ranks, &b), KF_EINVAL);
  assert_string_equal(kf_last_error(), want);
}

static void test_sentences(void **state) {
  (void)state;
  check_sentence("g0n1", 16,
                 "bag spec \"g0n1\", position 2: found \"0\", expected a whole number from 1 to "
                 "1048576");
  check_sentence("g1n8x", 16,
                 "bag spec \"g1n8x\", position 5: found \"x\", expected \"+\" or the end");
  check_sentence("[1,1,2", 16,
                 "bag spec \"[1,1,2\", position 7: found the end, expected \",\" or \"]\"");
  check_sentence(
    "nope", 16,
    "bag spec \"nope\", position 1: found \"nope\", expected g1n8+g2n4, [1,1,2], a bag "
    "size, or auto");
  check_sentence("g2n4", 7,
                 "bag spec \"g2n4\": its bags need 8 ranks or more, expected at most the 7 there "
                 "are");
  check_sentence("[1,2]", 16,
                 "bag spec \"[1,2]\" covers 3 ranks, which do not divide the 16 there are");
  check_sentence("3", 16, "bag spec \"3\": 16 ranks do not divide into bags of 3");
  check_sentence("4", -1, "kf_bags_parse: -1 ranks, expected 0 (the spec's own) to 1048576");
  check_sentence("g1048576n2", 0,
                 "bag spec \"g1048576n2\": its bags need 2097152 ranks or more, expected at most "
                 "1048576");
  kf_bags *b;
  assert_int_equal(kf_bags_parse("4", -4, &b), KF_EINVAL);
  assert_int_equal(kf_bags_parse("1", KF_MAX_RANKS + 1, &b), KF_EINVAL);
  assert_int_equal(kf_bags_parse(NULL, 4, &b), KF_EINVAL);
  assert_int_equal(kf_bags_parse("4", 4, NULL), KF_EINVAL);
}

static void test_memory(void **state) {
  (void)state;
  static const char *const specs[] = {"4", "g1n2+g2n1", "[1,1,2]"};
  for (size_t i = 0; i < N(specs); i++)
    for (long k = 1;; k++) {
      kf_bags *b = NULL;
      fail_alloc(k);
      kf_status status = kf_bags_parse(specs[i], 8, &b);
      if (fail_alloc(0) < k) {
        assert_int_equal(status, KF_OK);
        assert_true(k > 1);
        kf_bags_free(b);
        break;
      }
      assert_int_equal(status, KF_ENOMEM);
      assert_null(b);
      assert_non_null(strstr(kf_last_error(), "memory"));
    }
  kf_bags_free(NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_good), cmocka_unit_test(test_auto),      cmocka_unit_test(test_large),
    cmocka_unit_test(test_bad),  cmocka_unit_test(test_sentences), cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
