/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "archive.h"
#include "fail_alloc.h"

typedef struct thing {
  int64_t whole[2];
  double real[3];
  int32_t small;
  bool flag;
} thing;

static const kfi_format format = {"KFTHINGS", "a thing", 3};
static const thing example = {{-5, INT64_MAX}, {0.1, -0.0, 1e300}, -7, true};

static void walk(kfi_archive *a, void *object) {
  thing *t = object;
  kfi_words(a, t->whole, 2);
  kfi_reals(a, t->real, 3);
  kfi_small(a, &t->small);
  kfi_flag(a, &t->flag);
}

static unsigned char *save(thing t, size_t *n) {
  void *bytes;
  assert_int_equal(kfi_archive_save(&format, walk, &t, &bytes, n), KF_OK);
  return bytes;
}

static void refused(const void *data, size_t n, const char *sentence) {
  kfi_archive a;
  assert_int_equal(kfi_archive_open(&format, "x", data, n, &a), KF_EINVAL);
  if (!strstr(kf_last_error(), sentence)) fail_msg("%s", kf_last_error());
}

static void test_there_and_back(void **state) {
  (void)state;
  size_t n;
  thing got = {.small = 1};
  kfi_archive a;
  unsigned char *bytes = save(example, &n);
  assert_int_equal(kfi_archive_fields(walk, &got), 7);
  assert_int_equal(n, (3 + 7 + 1) * 8);
  assert_memory_equal(bytes, "KFTHINGS\3\0\0\0\0\0\0\0\130\0\0\0\0\0\0\0\373\377\377\377", 28);
  assert_int_equal(kfi_archive_open(&format, "x", bytes, n, &a), KF_OK);
  walk(&a, &got);
  assert_true(!a.bad && a.at == a.end);
  assert_memory_equal(&got.whole, &example.whole, sizeof got.whole);
  assert_memory_equal(&got.real, &example.real, sizeof got.real);
  assert_true(got.small == -7 && got.flag);
  walk(&a, &got); /* there is no more: nothing is read beyond the end */
  assert_true(a.bad && got.whole[0] == 0 && got.real[2] == 0 && got.small == 0 && !got.flag);
  free(bytes);
}

static void test_what_is_no_number(void **state) {
  (void)state;
  size_t n;
  thing t = example;
  kfi_archive a;
  t.real[1] = NAN;
  unsigned char *bytes = save(t, &n);
  assert_int_equal(kfi_archive_open(&format, "x", bytes, n, &a), KF_OK);
  walk(&a, &t);
  assert_true(a.bad && t.real[1] == 0);
  free(bytes);
}

static void test_refuses(void **state) {
  (void)state;
  size_t n;
  unsigned char *bytes = save(example, &n);
  for (size_t k = 0; k < n; k++) {
    unsigned char *exact = malloc(k + 1);
    memcpy(exact, bytes, k);
    refused(exact, k, k < 24 ? "x: " : "it was cut off or added to");
    free(exact);
    bytes[k] ^= 1;
    refused(bytes, n, "x: ");
    bytes[k] ^= 1;
  }
  bytes[8] = 4;
  refused(bytes, n, "x: a state of version 4, expected version 3: a later knapformer wrote it");
  bytes[0] = 'k';
  refused(bytes, n, "x: 88 bytes that are not a thing");
  free(bytes);
}

/* Who saves may share the object with threads that read it: saving must not write to it. */
static void test_saving_only_reads(void **state) {
  (void)state;
  long page = sysconf(_SC_PAGESIZE);
  void *bytes,
    *shared = mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  size_t n;
  assert_true(shared != MAP_FAILED);
  memcpy(shared, &example, sizeof example);
  assert_int_equal(mprotect(shared, (size_t)page, PROT_READ), 0);
  assert_int_equal(kfi_archive_save(&format, walk, shared, &bytes, &n), KF_OK);
  free(bytes);
  munmap(shared, (size_t)page);
}

static void test_no_memory(void **state) {
  (void)state;
  void *bytes;
  size_t n;
  thing t = example;
  fail_alloc(1);
  assert_int_equal(kfi_archive_save(&format, walk, &t, &bytes, &n), KF_ENOMEM);
  fail_alloc(0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_there_and_back), cmocka_unit_test(test_what_is_no_number),
    cmocka_unit_test(test_refuses),        cmocka_unit_test(test_saving_only_reads),
    cmocka_unit_test(test_no_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
