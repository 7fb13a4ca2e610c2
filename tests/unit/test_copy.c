/* SPDX-License-Identifier: Apache-2.0 */
/* Runs against a twin that moves one byte at a time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "comm/comm.h"
#include "dice.h"

/* Rows at a stride, in a block that ends with the last row: a byte too far is out of bounds. */
static kfi_block new_block(int64_t rows, int64_t row_bytes, int64_t stride, dice *d) {
  size_t n = (size_t)((rows - 1) * stride + row_bytes);
  kfi_block block = {malloc(n), rows, row_bytes, stride};
  for (size_t i = 0; i < n; i++) block.data[i] = (char)dice_next(d);
  return block;
}

static size_t block_bytes(const kfi_block *block) {
  return (size_t)((block->rows - 1) * block->stride + block->row_bytes);
}

static char *byte_of(const kfi_block *block, int64_t i) {
  return block->data + i / block->row_bytes * block->stride + i % block->row_bytes;
}

static kfi_block twin_of(const kfi_block *block) {
  kfi_block twin = *block;
  twin.data = malloc(block_bytes(block));
  memcpy(twin.data, block->data, block_bytes(block));
  return twin;
}

/* All three copies of bytes from .. from+n-1, and what must not change. */
static void check_copies(const kfi_block *a, const kfi_block *b, int64_t from, int64_t n, dice *d) {
  char *flat = malloc((size_t)n), *expected = malloc((size_t)n);
  kfi_block twin = twin_of(b);

  kfi_block_pack(a, from, n, flat);
  for (int64_t i = 0; i < n; i++) expected[i] = *byte_of(a, from + i);
  assert_memory_equal(flat, expected, (size_t)n);

  kfi_block_copy(b, a, from, n);
  for (int64_t i = 0; i < n; i++) *byte_of(&twin, from + i) = *byte_of(a, from + i);
  assert_memory_equal(b->data, twin.data, block_bytes(b));

  for (int64_t i = 0; i < n; i++) flat[i] = (char)dice_next(d);
  kfi_block_unpack(b, from, n, flat);
  for (int64_t i = 0; i < n; i++) *byte_of(&twin, from + i) = flat[i];
  assert_memory_equal(b->data, twin.data, block_bytes(b));
  free(flat);
  free(expected);
  free(twin.data);
}

static void check_flat(const kfi_block *block, int64_t from, int64_t n) {
  bool flat = true;
  for (int64_t i = 1; i < n; i++)
    flat = flat && byte_of(block, from + i) == byte_of(block, from) + i;
  assert_ptr_equal(kfi_block_flat(block, from, n), flat ? byte_of(block, from) : NULL);
}

/* Every piece of blocks of all small shapes; strides equal to the row and larger, each side's
** own. */
static void test_all_pieces(void **state) {
  (void)state;
  dice d = {1};
  for (int64_t rows = 1; rows <= 4; rows++)
    for (int64_t row_bytes = 1; row_bytes <= 5; row_bytes++)
      for (int gaps = 0; gaps < 9; gaps++) {
        kfi_block a = new_block(rows, row_bytes, row_bytes + gaps % 3, &d);
        kfi_block b = new_block(rows, row_bytes, row_bytes + gaps / 3, &d);
        for (int64_t from = 0; from < kfi_block_bytes(&a); from++)
          for (int64_t n = 1; from + n <= kfi_block_bytes(&a); n++) {
            check_copies(&a, &b, from, n, &d);
            check_flat(&a, from, n);
          }
        free(a.data);
        free(b.data);
      }
}

static void test_large_pieces(void **state) {
  (void)state;
  dice d = {2};
  for (int i = 0; i < 200; i++) {
    int64_t rows = 1 + dice_int(&d, 60), row_bytes = 1 + dice_int(&d, 300), gap[2];
    for (int s = 0; s < 2; s++) gap[s] = dice_one_in(&d, 3) ? 0 : dice_int(&d, 100);
    kfi_block a = new_block(rows, row_bytes, row_bytes + gap[0], &d);
    kfi_block b = new_block(rows, row_bytes, row_bytes + gap[1], &d);
    int64_t from = dice_int(&d, rows * row_bytes);
    int64_t n = 1 + dice_int(&d, rows * row_bytes - from);
    check_copies(&a, &b, from, n, &d);
    check_flat(&b, from, n);
    free(a.data);
    free(b.data);
  }
}

/* Nothing is a piece too, also at the very end. */
static void test_no_bytes(void **state) {
  (void)state;
  dice d = {3};
  kfi_block a = new_block(3, 4, 7, &d), b = new_block(3, 4, 4, &d), twin = twin_of(&b);
  for (int64_t from = 0; from < 12; from++) kfi_block_copy(&b, &a, from, 0);
  assert_memory_equal(b.data, twin.data, block_bytes(&b));
  free(a.data);
  free(b.data);
  free(twin.data);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_all_pieces),
    cmocka_unit_test(test_large_pieces),
    cmocka_unit_test(test_no_bytes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
