/* SPDX-License-Identifier: Apache-2.0 */
/* Sorting of 64-bit keys; see sort.c. */
#ifndef KFI_SORT_H
#define KFI_SORT_H

#include <stdint.h>
#include <string.h>

/*
** Sort n keys by their high 32 bits; equal ones keep their order. Where the low 32 bits are the
** number of what is sorted, ties are so settled by number. `key` and `spare` (n) are both written;
** returns the one that holds the result.
*/
uint64_t *kfi_sort_high(uint64_t *key, uint64_t *spare, int64_t n);

/* High 32 bits that rise with a number from 0 to FLT_MAX, rounded to single precision. */
static inline uint64_t kfi_sort_real(double x) {
  float rounded = (float)x;
  uint32_t bits;
  memcpy(&bits, &rounded, sizeof bits);
  return (uint64_t)bits << 32;
}

#endif
