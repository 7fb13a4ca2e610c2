/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fail_alloc.h"
#include "read/yaml.h"

/*
** libyaml is a shared library, whose allocations fail_alloc does not see. But all of them go
** through these functions, which it exports: ours are found first, and count.
*/
KF_API void *yaml_malloc(size_t size);
KF_API void *yaml_realloc(void *old, size_t size);
KF_API unsigned char *yaml_strdup(const unsigned char *text);

void *yaml_malloc(size_t size) { return malloc(size ? size : 1); }

void *yaml_realloc(void *old, size_t size) {
  return old ? realloc(old, size ? size : 1) : malloc(size ? size : 1);
}

unsigned char *yaml_strdup(const unsigned char *text) {
  size_t n = text ? strlen((const char *)text) + 1 : 0;
  unsigned char *copy = n ? malloc(n) : NULL;
  return copy ? memcpy(copy, text, n) : NULL;
}

static kf_status read_text(const char *text, kfi_yaml *yaml) {
  return kfi_yaml_read("a.yaml", text, strlen(text), yaml);
}

static void assert_entry(const kfi_yaml *yaml, size_t i, kfi_yaml_kind kind, const char *key,
                         const char *text, int64_t line, int64_t column, size_t end) {
  assert_true(i < yaml->n);
  const kfi_yaml_entry *e = &yaml->entry[i];
  assert_int_equal(e->kind, kind);
  assert_string_equal(yaml->pool + e->key, key);
  assert_string_equal(yaml->pool + e->text, text);
  assert_int_equal(e->at.line, line);
  assert_int_equal(e->at.column, column);
  assert_int_equal(e->end, end);
}

static void test_entries(void **state) {
  (void)state;
  kfi_yaml yaml;
  if (read_text("# a comment\n"
                "knapformer:\n"
                "  bag_size: [1, 2]\n"
                "  \xc3\xa4: \"50\"   # another\n"
                "  empty:\n"
                "  'inner': {a: b}\n",
                &yaml))
    fail_msg("%s", kf_last_error());
  assert_int_equal(yaml.n, 9);
  assert_entry(&yaml, 0, KFI_YAML_MAPPING, "", "", 2, 1, 9);
  assert_entry(&yaml, 1, KFI_YAML_MAPPING, "knapformer", "", 3, 3, 9);
  assert_entry(&yaml, 2, KFI_YAML_LIST, "bag_size", "", 3, 13, 5);
  assert_entry(&yaml, 3, KFI_YAML_PLAIN, "", "1", 3, 14, 4);
  assert_entry(&yaml, 4, KFI_YAML_PLAIN, "", "2", 3, 17, 5);
  assert_entry(&yaml, 5, KFI_YAML_QUOTED, "\xc3\xa4", "50", 4, 6, 6); /* columns are characters */
  assert_entry(&yaml, 6, KFI_YAML_PLAIN, "empty", "", 5, 9, 7);
  assert_entry(&yaml, 7, KFI_YAML_MAPPING, "inner", "", 6, 12, 9);
  assert_entry(&yaml, 8, KFI_YAML_PLAIN, "a", "b", 6, 16, 9);
  assert_int_equal(yaml.entry[8].key_at.line, 6);
  assert_int_equal(yaml.entry[8].key_at.column, 13);
  kfi_yaml_free(&yaml);
  kfi_yaml_free(&yaml); /* nothing is left to free */
}

static void test_odd_but_good(void **state) {
  (void)state;
  static const struct {
    const char *text;
    size_t n;
  } good[] = {{"", 0},
              {"# only\n", 0},
              {"---\n...\n", 1},
              {"\xef\xbb\xbf"
               "a: 1\n",
               2}, /* a byte order mark */
              {"a: 1\r\nb: 2\r\n", 3},
              {"%YAML 1.1\n---\na: 1\n", 2},
              {"? a\n: 1\n", 2},
              {"a: |\n  x\n  y\n", 2},
              {"{a: {b: 1}, c: {b: 1}}", 5}, /* the same key elsewhere */
              {"[[[[[[[[]]]]]]]]", 8}};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    kfi_yaml yaml;
    if (read_text(good[i].text, &yaml)) fail_msg("%s", kf_last_error());
    assert_int_equal(yaml.n, good[i].n);
    kfi_yaml_free(&yaml);
  }
  kfi_yaml yaml;
  assert_int_equal(kfi_yaml_read("a.yaml", NULL, 0, &yaml), KF_OK);
  kfi_yaml_free(&yaml);
}

static void test_bad(void **state) {
  (void)state;
  static const struct {
    const char *text, *sentence;
  } bad[] = {
    {"a: &x 1", "line 1, column 4: found an anchor (&), expected a value without"},
    {"&x a: 1", "line 1, column 1: found an anchor (&), expected a value without"},
    {"a: &x [1]", "line 1, column 4: found an anchor (&), expected a value without"},
    {"a: *x", "line 1, column 4: found an alias (*), expected the value itself"},
    {"a: !!int 1", "line 1, column 4: found a tag (!), expected a value without"},
    {"a: !x {}", "line 1, column 4: found a tag (!), expected a value without"},
    {"!x a: 1", "line 1, column 1: found a tag (!), expected a value without"},
    {"a: 1\n---\nb: 2", "line 2, column 1: found a second document, expected one"},
    {"a: 1\nb: 2\na: 3",
     "line 3, column 1: found the key \"a\" again after line 1, expected every key only once"},
    {"{a: [1, {x: 1}], a: 2}",
     "line 1, column 18: found the key \"a\" again after line 1, expected every key only once"},
    {"? [a]\n: 1", "line 1, column 3: found a list or mapping as a key, expected a name"},
    {"{{a: 1}: 2}", "line 1, column 2: found a list or mapping as a key, expected a name"},
    {"a: \"x\\0y\"", "line 1, column 4: found a 0 byte, expected text without"},
    {"[[[[[[[[[]]]]]]]]]",
     "line 1, column 9: found a ninth level, expected at most 8, one inside the other"},
    {"a:\n  b\xff: 1",
     "line 2, column 4: found 0xff (invalid leading UTF-8 octet), expected UTF-8 text"},
    {"a: \x07",
     "line 1, column 4: found 0x07 (control characters are not allowed), expected UTF-8 text"},
    {"a:\n\tb: 1", "line 2, column 1: found a tab, expected blanks: YAML allows no tab here"},
    {"a: b: c", "line 1, column 5: not YAML: mapping values are not allowed in this context"},
    {"a:\n  b: [1\n  c: 2", "line 3, column 4: not YAML: did not find expected ',' or ']' while "
                            "parsing a flow sequence from line 2"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    kfi_yaml yaml;
    char want[400];
    if (read_text(bad[i].text, &yaml) != KF_EINVAL) fail_msg("\"%s\" was accepted", bad[i].text);
    snprintf(want, sizeof want, "a.yaml, %s", bad[i].sentence);
    assert_string_equal(kf_last_error(), want);
  }
  kfi_yaml yaml;
  assert_int_equal(kfi_yaml_read("a.yaml", "a:\n  \0", 6, &yaml), KF_EINVAL);
  assert_string_equal(kf_last_error(),
                      "a.yaml, line 2, column 3: found a 0 byte, expected UTF-8 text");
}

/* Too much and too long; and neither takes long, nor does depth. */
static void test_limits(void **state) {
  (void)state;
  enum { SIZE = (1 << 20) + 1 };
  kfi_yaml yaml;
  char *text = malloc(SIZE);
  memset(text, '#', SIZE);
  assert_int_equal(kfi_yaml_read("a.yaml", text, SIZE, &yaml), KF_EINVAL);
  assert_string_equal(kf_last_error(), "a.yaml: found 1048577 bytes, expected at most 1048576");
  assert_int_equal(kfi_yaml_read("a.yaml", text, SIZE - 1, &yaml), KF_OK);
  kfi_yaml_free(&yaml);
  memset(text, '[', SIZE);
  assert_int_equal(kfi_yaml_read("a.yaml", text, SIZE - 1, &yaml), KF_EINVAL);
  assert_non_null(strstr(kf_last_error(), "found a ninth level"));
  memset(text, '\t', SIZE);
  assert_int_equal(kfi_yaml_read("a.yaml", text, SIZE - 1, &yaml), KF_EINVAL);
  for (int n = 4095; n <= 4096; n++) {
    size_t used = 0;
    text[used++] = '[';
    for (int i = 0; i < n; i++) used += (size_t)sprintf(text + used, "1,");
    text[used++] = ']';
    assert_int_equal(kfi_yaml_read("a.yaml", text, used, &yaml), n == 4095 ? KF_OK : KF_EINVAL);
    if (n == 4095) kfi_yaml_free(&yaml);
  }
  assert_non_null(strstr(kf_last_error(), "found entry 4097, expected at most 4096"));
  free(text);
}

static void test_expect(void **state) {
  (void)state;
  static const struct {
    const char *text, *sentence;
  } bad[] = {
    {"", "a.yaml: found nothing, expected the mapping \"cost:\""},
    {"---\n", "a.yaml, line 2, column 1: found nothing, expected the mapping \"cost:\""},
    {"{}", "a.yaml, line 1, column 1: found {}, expected the mapping \"cost:\""},
    {"text", "a.yaml, line 1, column 1: found a text, expected the mapping \"cost:\""},
    {"[]", "a.yaml, line 1, column 1: found a list, expected the mapping \"cost:\""},
    {"- 1", "a.yaml, line 1, column 1: found a list, expected the mapping \"cost:\""},
    {"cost: 1", "a.yaml, line 1, column 7: cost is a text, expected a mapping of keys or {}"},
    {"cost:", "a.yaml, line 1, column 6: cost is empty, expected a mapping of keys or {}"},
    {"cost: [1]", "a.yaml, line 1, column 7: cost is a list, expected a mapping of keys or {}"},
    {"cost: {}\nx: 1", "a.yaml, line 2, column 1: unknown top-level key \"x\", expected only "
                       "\"cost:\" with all keys indented below it"},
  };
  kfi_yaml yaml;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    assert_int_equal(read_text(bad[i].text, &yaml), KF_OK);
    assert_int_equal(kfi_yaml_expect(&yaml, "cost"), KF_EINVAL);
    assert_string_equal(kf_last_error(), bad[i].sentence);
    kfi_yaml_free(&yaml);
  }
  assert_int_equal(read_text("cost: {}", &yaml), KF_OK);
  assert_int_equal(kfi_yaml_expect(&yaml, "cost"), KF_OK);
  assert_int_equal(yaml.n, 2);
  kfi_yaml_free(&yaml);
}

/* Ours and libyaml's; of a good text, and of texts that fail late. */
static void test_memory(void **state) {
  (void)state;
  static const char *const texts[] = {
    ("# c\nknapformer:\n  bag_size: [1, 2, \"3\"]\n  model: 'a' # c\n"
     "  b: |\n    lines\n    of text\n"),
    "a: {b: [1, 2, *x]}", "%TAG ! tag:x,2000:\n---\na: !x &y 1", "a: [1, {b: c"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    for (long k = 1;; k++) {
      kfi_yaml yaml = {0};
      fail_alloc(k);
      kf_status status = read_text(texts[i], &yaml);
      if (fail_alloc(0) < k) {
        assert_int_equal(status, i == 0 ? KF_OK : KF_EINVAL);
        assert_true(k > 10); /* libyaml's are among them */
        kfi_yaml_free(&yaml);
        break;
      }
      assert_int_equal(status, KF_ENOMEM);
      assert_null(yaml.entry);
      assert_non_null(strstr(kf_last_error(), "out of memory"));
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_entries), cmocka_unit_test(test_odd_but_good),
    cmocka_unit_test(test_bad),     cmocka_unit_test(test_limits),
    cmocka_unit_test(test_expect),  cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
