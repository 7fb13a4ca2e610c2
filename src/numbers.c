/* SPDX-License-Identifier: Apache-2.0 */
#include "numbers.h"

#include <string.h>

uint64_t kfi_hash_bytes(uint64_t hash, const void *data, size_t n_bytes) {
  const unsigned char *byte = data;
  for (size_t i = 0; i < n_bytes; i++) hash = (hash ^ byte[i]) * KFI_HASH_PRIME;
  return hash;
}

/* A run of z zero bytes only multiplies by prime^z, and most bytes are zero. */
uint64_t kfi_hash(uint64_t h, const int64_t *value, int64_t n) {
  uint64_t power[9] = {1};
  for (int i = 1; i <= 8; i++) power[i] = power[i - 1] * KFI_HASH_PRIME;
  for (int64_t i = 0; i < n; i++) {
    uint64_t v = (uint64_t)value[i];
    int left = 8;
    for (; v; v >>= 8, left--) h = (h ^ (v & 0xff)) * KFI_HASH_PRIME;
    h *= power[left];
  }
  return h;
}

uint64_t kfi_hash_reals(uint64_t hash, const double *value, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    int64_t bits;
    memcpy(&bits, &value[i], sizeof bits);
    hash = kfi_hash(hash, &bits, 1);
  }
  return hash;
}
