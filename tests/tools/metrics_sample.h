/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics as a scheduler would give them, with figures that are easy to find again in a text. */
#ifndef METRICS_SAMPLE_H
#define METRICS_SAMPLE_H

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <knapformer.h>

#include "written.h"

/*
** Step 7 began at 10 s and took 2 s. Rank r was busy for 2 - r/n seconds; even ranks also reported
** memory, odd ones phases. Bags of `bag_size` ranks; the last may be smaller.
*/
typedef struct metrics_sample {
  kf_metrics m;
  double *real; /* all arrays of doubles */
  kf_counters *counters;
  int32_t *first;
  kf_correction correction[2];
  kf_drift drift[2];
} metrics_sample;

static inline void metrics_sample_ranks(metrics_sample *s, int32_t n) {
  double *x = s->real;
  for (int32_t r = 0; r < n; r++) {
    double busy = 2 - (double)r / n;
    x[r] = busy;
    x[n + r] = 1.5;
    x[2 * n + r] = busy / 2;
    x[3 * n + r] = 0.25;
    x[4 * n + r] = 1;
    if (r % 2 == 0)
      s->counters[r] = (kf_counters){.memory_bytes = 20000000000,
                                     .memory_limit_bytes = 80000000000,
                                     .tokens = 1000 + r,
                                     .samples = 3};
    else
      s->counters[r] = (kf_counters){
        .plan_s = 0.125, .route_s = 0.25, .compute_s = busy - 0.25, .wait_s = 1.875 - busy};
  }
  s->m.busy_s = x;
  s->m.predicted_s = x + n;
  s->m.busy_share = x + 2 * n;
  s->m.memory_pressure = x + 3 * n;
  s->m.speed = x + 4 * n;
  s->m.counters = s->counters;
}

static inline void metrics_sample_bags(metrics_sample *s, int32_t n, int32_t bag_size) {
  double *x = s->real + 5 * n;
  int32_t n_bags = (n + bag_size - 1) / bag_size;
  for (int32_t b = 0; b <= n_bags; b++) s->first[b] = b * bag_size < n ? b * bag_size : n;
  for (int32_t b = 0; b < n_bags; b++) {
    x[b] = 0.75;
    x[n + b] = 1000 * bag_size;
    x[2 * n + b] = 1.5 * bag_size;
  }
  s->m.n_bags = n_bags;
  s->m.bag_first = s->first;
  s->m.bag_busy_share = x;
  s->m.bag_tokens_per_s = x + n;
  s->m.bag_samples_per_s = x + 2 * n;
}

static inline metrics_sample *metrics_sample_create(int32_t n_ranks, int32_t bag_size) {
  size_t n = (size_t)n_ranks;
  metrics_sample *s = calloc(1, sizeof *s);
  assert(s);
  s->m = (kf_metrics){.version = KF_METRICS_VERSION,
                      .n_ranks = n_ranks,
                      .step = 7,
                      .epoch = 1,
                      .n_measured = n_ranks,
                      .begin_s = 10,
                      .step_s = 2,
                      .predicted_step_s = 1.5,
                      .max_over_mean = 1.25,
                      .idle_variance = 0.125,
                      .tokens_per_s = 123456,
                      .samples_per_s = 44.5,
                      .epoch_s = 6,
                      .last_epoch_s = 8.5,
                      .mape = 0.0625,
                      .noise = 0.03125,
                      .cost = {.linear_s = 1e-6, .quadratic_s = 2.5e-11, .constant_s = 0.001},
                      .gamma = 0.46,
                      .overhead_s = 0.005,
                      .comm_scale = 1.2,
                      .refits = 3,
                      .drifts = 2,
                      .outliers = 5,
                      .plan_hash = 0xdeadbeef,
                      .figures = {.step_s = 1.25,
                                  .ideal_s = 1,
                                  .lower_bound_s = 1.125,
                                  .gap = 0.11,
                                  .speedup = 2.5,
                                  .split_seqs = 4,
                                  .a2a_fraction = 0.5,
                                  .moved_fraction = 0.375,
                                  .max_tokens = 65536}};
  s->real = calloc(8 * n + 1, sizeof *s->real);
  s->counters = calloc(n + 1, sizeof *s->counters);
  s->first = calloc(n + 1, sizeof *s->first);
  assert(s->real && s->counters && s->first);
  metrics_sample_ranks(s, n_ranks);
  metrics_sample_bags(s, n_ranks, bag_size);
  s->correction[0] = (kf_correction){KF_KIND_IMAGE, 1024, 1};
  s->correction[1] = (kf_correction){KF_KIND_VIDEO, 512, 1.25};
  s->m.n_corrections = 2;
  s->m.correction = s->correction;
  s->drift[0] = (kf_drift){"quadratic_s", 2e-11, 2.5e-11, 5};
  s->drift[1] = (kf_drift){"speed of rank 3", 1, 0.5, 5};
  s->m.n_drifts = 2;
  s->m.drift = s->drift;
  return s;
}

static inline void metrics_sample_free(metrics_sample *s) {
  free(s->real);
  free(s->counters);
  free(s->first);
  free(s);
}

/* doc/metrics.md; free() it. */
static inline char *metrics_doc(void) {
  char path[4096];
  const char *source = getenv("KF_SOURCE");
  snprintf(path, sizeof path, "%s/doc/metrics.md", source ? source : ".");
  FILE *f = fopen(path, "rb");
  char *text = calloc(1, 1 << 18);
  assert(f && text);
  size_t n = fread(text, 1, (1 << 18) - 1, f);
  assert(n > 0);
  fclose(f);
  return text;
}

static inline void metrics_sample_starve(kf_status (*write)(const kf_metrics *, char **)) {
  metrics_sample *s = metrics_sample_create(1000, 2); /* large enough to grow the buffer */
  assert_starves(2, text, write(&s->m, &text));
  metrics_sample_free(s);
}

#endif
