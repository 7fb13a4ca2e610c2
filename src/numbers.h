/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers that look random, hashes, quantiles (see knapformer.h, section 21); names of enums. */
#ifndef KFI_NUMBERS_H
#define KFI_NUMBERS_H

#include "knapformer.h"

/* kf_splitmix64, inline. */
static inline uint64_t kfi_mix64(uint64_t state) {
  uint64_t z = state + KF_SPLITMIX64_STEP;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* kf_hash_bytes over values as little-endian 64-bit integers. */
uint64_t kfi_hash(uint64_t hash, const int64_t *value, int64_t n);
uint64_t kfi_hash_reals(uint64_t hash, const double *value, int64_t n); /* their bits */

/* "f32", "bf16", ..; "unknown" of what is no dtype. The same for a kf_kind: "image", .. */
const char *kfi_dtype_name(kf_dtype dtype);
const char *kfi_kind_word(int32_t kind);

static inline int64_t kfi_dtype_bytes(kf_dtype dtype) {
  return dtype == KF_F32 ? 4 : dtype == KF_BF16 || dtype == KF_F16 ? 2 : 8;
}

#endif
