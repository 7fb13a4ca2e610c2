/* SPDX-License-Identifier: Apache-2.0 */
/* What bucket.c shares with the sampler: limits, and lengths as buckets. */
#ifndef KFI_BUCKET_H
#define KFI_BUCKET_H

#include <math.h>
#include <stdbool.h>

#include "../status.h"

#define KFI_ROUNDING 1e-12 /* relative: what counts as equal to a limit */

/* Options resolved to numbers. */
typedef struct kfi_limits {
  kf_rule rule;
  double linear_s, quadratic_s, constant_s;
  double mem_tokens;
  double comp_s, match_len; /* 0: no limit */
  double p;
} kfi_limits;

static inline double kfi_limits_work(const kfi_limits *l, double len) {
  return l->linear_s * len + l->quadratic_s * len * len + l->constant_s;
}

/* The length that has this work; 0 where not even the shortest has so little. */
static inline double kfi_limits_len(const kfi_limits *l, double work) {
  double a = l->linear_s, b = l->quadratic_s, c = work - l->constant_s;
  return c > 0 ? 2 * c / (a + sqrt(a * a + 4 * b * c)) : 0;
}

/* Everything but lengths; `bucket` is not read yet. */
kf_status kfi_bucket_check(const kf_bucket_options *options);

/* Lengths and their counts (NULL: 1 each), before anything is allocated for them. */
kf_status kfi_bucket_check_lens(const kf_bucket_options *options, const int64_t *len,
                                const int64_t *count, int64_t n);

/*
** Sort the lengths and count the distinct ones. `key` and `spare` (n); returns the one of them that
** kfi_bucket_gather reads: sample numbers by rising length.
*/
uint64_t *kfi_bucket_sort(const int64_t *len, int64_t n, uint64_t *key, uint64_t *spare,
                          int64_t *n_buckets);

/* Lengths and counts into bucket (n_buckets), and each sample's bucket into bucket_of (n; NULL: not
** wanted). */
void kfi_bucket_gather(const int64_t *len, const int64_t *count, int64_t n, const uint64_t *sorted,
                       kf_bucket *bucket, int32_t *bucket_of);

/* Resolve options that were checked: M_comp, the length that has it, p. Fails where the cost leaves
** no room for a sequence. */
kf_status kfi_bucket_limits(const kf_bucket_options *options, const kf_bucket *bucket, int64_t n,
                            kfi_limits *out);

/* B(len). */
int64_t kfi_bucket_size(const kfi_limits *limits, int64_t len);

/* batch_size and work_s of n buckets, and what `out` says of the limits. */
void kfi_bucket_fill(const kfi_limits *limits, kf_bucket *bucket, int64_t n, kf_buckets *out);

#endif
