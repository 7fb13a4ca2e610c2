/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers that look random, and hashes: the same everywhere, no state but what the caller keeps. */
#ifndef KFI_NUMBERS_H
#define KFI_NUMBERS_H

#include <stddef.h>
#include <stdint.h>

#define KFI_MIX_STEP 0x9e3779b97f4a7c15u /* added to the state for each further output */

/* The first output of splitmix64 from this state. */
static inline uint64_t kfi_mix64(uint64_t state) {
  uint64_t z = state + KFI_MIX_STEP;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* Go on with an FNV-1a 64: over bytes, or over values as little-endian 64-bit integers. */
#define KFI_HASH_START 0xcbf29ce484222325ull
#define KFI_HASH_PRIME 0x100000001b3ull
uint64_t kfi_hash_bytes(uint64_t hash, const void *data, size_t n_bytes);
uint64_t kfi_hash(uint64_t hash, const int64_t *value, int64_t n);
uint64_t kfi_hash_reals(uint64_t hash, const double *value, int64_t n); /* their bits */

#endif
