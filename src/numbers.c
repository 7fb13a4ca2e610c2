/* SPDX-License-Identifier: Apache-2.0 */
#include "numbers.h"

#include <math.h>
#include <string.h>

#define PRIME 0x100000001b3ull

uint64_t kf_splitmix64(uint64_t state) { return kfi_mix64(state); }

uint64_t kf_hash_bytes(uint64_t hash, const void *data, size_t n_bytes) {
  const unsigned char *byte = data;
  for (size_t i = 0; i < n_bytes; i++) hash = (hash ^ byte[i]) * PRIME;
  return hash;
}

/* A run of z zero bytes only multiplies by prime^z, and most bytes are zero. */
uint64_t kfi_hash(uint64_t h, const int64_t *value, int64_t n) {
  uint64_t power[9] = {1};
  for (int i = 1; i <= 8; i++) power[i] = power[i - 1] * PRIME;
  for (int64_t i = 0; i < n; i++) {
    uint64_t v = (uint64_t)value[i];
    int left = 8;
    for (; v; v >>= 8, left--) h = (h ^ (v & 0xff)) * PRIME;
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

/* The k-th smallest, by quickselect: those before it are no larger, those behind it no smaller. */
static double select_value(double *v, int64_t n, int64_t k) {
  int64_t low = 0, high = n - 1;
  while (low < high) {
    double pivot = v[low + (high - low) / 2];
    int64_t i = low, j = high;
    while (i <= j) {
      while (v[i] < pivot) i++;
      while (v[j] > pivot) j--;
      if (i > j) break;
      double t = v[i];
      v[i++] = v[j];
      v[j--] = t;
    }
    if (k <= j)
      high = j;
    else if (k >= i)
      low = i;
    else
      break;
  }
  return v[k];
}

double kf_quantile(double *value, int64_t n, double share) {
  if (!value || n <= 0) return 0;
  double at = fmin(fmax(share, 0), 1) * (double)(n - 1);
  int64_t k = (int64_t)at;
  double low = select_value(value, n, k), part = at - (double)k;
  if (part == 0) return low;
  return (1 - part) * low + part * select_value(value + k + 1, n - k - 1, 0);
}

const char *kfi_dtype_name(kf_dtype dtype) {
  static const char *const name[] = {"f32", "bf16", "f16", "f64", "i64"};
  return (unsigned)dtype < sizeof name / sizeof *name ? name[dtype] : "unknown";
}

const char *kfi_kind_word(int32_t kind) {
  static const char *const word[] = {"unknown", "image", "keyframes", "video"};
  return (uint32_t)kind < sizeof word / sizeof *word ? word[kind] : "unknown";
}
