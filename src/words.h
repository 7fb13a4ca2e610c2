/* SPDX-License-Identifier: Apache-2.0 */
/* Saved states are 8-byte words, little endian, with an FNV-1a 64 of all before it as the last one. */
#ifndef KFI_WORDS_H
#define KFI_WORDS_H

#include "numbers.h"

enum { KFI_WORD = 8 };

static inline void kfi_put_word(unsigned char *at, uint64_t word) {
  for (int i = 0; i < KFI_WORD; i++) at[i] = (unsigned char)(word >> (8 * i));
}

static inline uint64_t kfi_get_word(const unsigned char *at) {
  uint64_t word = 0;
  for (int i = 0; i < KFI_WORD; i++) word |= (uint64_t)at[i] << (8 * i);
  return word;
}

static inline uint64_t kfi_checksum(const unsigned char *bytes, size_t n) {
  return kf_hash_bytes(KF_HASH_START, bytes, n);
}

#endif
