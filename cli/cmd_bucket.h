/* SPDX-License-Identifier: Apache-2.0 */
/* What `knapformer bucket` finds out and shows: five rules on the same samples, ranks and
** limits. */
#ifndef CMD_BUCKET_H
#define CMD_BUCKET_H

#include "cli.h"

/* In the order they are shown: the habit first, what beats it after it. */
enum { EQUAL_TOKEN, POWER, TWO_TERM, PACKED, BALANCED, N_RULES };
enum { N_BUCKETED = PACKED }; /* those before it have buckets */

extern const char *const bucket_rule_name[N_RULES];

typedef struct bucket_result {
  const char *data, *model, *fit; /* as the user said it; fit: NULL for a static cost */
  const char *mode;
  double gamma;               /* of a static cost */
  int64_t n_rows;             /* of a cost that was fitted here, and */
  double fit_mape;            /* how well; 0: none */
  double token_bytes;         /* that memory in bytes was divided by; 0: it was given in tokens */
  const char *token_bytes_of; /* the model that takes so many; NULL: they were given */
  uint64_t seed;
  int32_t n_ranks;
  int64_t n_samples, n_tokens;
  double fitted_p;
  kf_buckets *buckets[N_BUCKETED];
  kf_epoch epoch[N_RULES];
  int64_t planned_steps;    /* of BALANCED: at most BUCKET_MOST_STEPS, evenly spaced */
  int64_t unlevelled_steps; /* of those: no plan within the memory limit was found */
} bucket_result;

/* ------------------------------------------- bucket_level.c: two_term, then the planner */

enum { BUCKET_MOST_STEPS = 1000 };

/* Level the steps of a sampler that stands at its first one, with routing. Sets epoch[BALANCED] and
** the two counts from the steps planned; mem_tokens is every rank's cap. */
kf_status bucket_level(kf_sampler *sampler, const kf_bucket_options *options, bucket_result *out);

/* ------------------------------------------------ view_bucket.c: the table and the bars */

void bucket_view(const bucket_result *result);

#endif
