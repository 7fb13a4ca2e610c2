/* SPDX-License-Identifier: Apache-2.0 */
/*
** knapformer bench bucket: from lengths to the last step of an epoch, and qsort of as many random
** doubles in between, so that both see the same machine at the same time. Timed whole:
** kf_sampler_create, which copies and sorts lengths and arranges the epoch, and every
** kf_sampler_next. One epoch is walked and checked before anything is timed.
**
** Memory is what the resident set grew by at its peak, which Linux counts and lets us reset; where
** it does not, the figure is left out.
*/
#include <inttypes.h>
#if defined(__linux__)
#include <malloc.h>
#endif
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

static const char name[] = "bench bucket";

static const char help[] =
  "usage: knapformer bench bucket [--samples N] [--rounds N] [--json]\n"
  "\n"
  "Time how long a sampler takes from the lengths of a data set to the last step of its epoch:\n"
  "16 ranks, wan1.3b, batches of up to 160000 tokens and the work of the longest sample.\n"
  "\n"
  "  bucket_two_term_10m   rule two_term; samples as in the mix wan\n"
  "  bucket_packed_10m     rule packed; the same with 0 to 392 text tokens each\n"
  "\n"
  "  --samples N   1 to 100000000; default 10000000; the rows' names follow\n"
  "  --rounds N    epochs a row; default 3\n"
  "  --json        {\"rows\": [{\"name\", \"median_us\", \"p99_us\", \"ratio\", \"against\"}],\n"
  "                \"two_term_bytes_a_sample\": ..., \"packed_bytes_a_sample\": ...}\n"
  "\n"
  "An epoch is checked first: every sample at most once, a batch for every rank at every step,\n"
  "and both limits. ratio = our median / the median of the reference named in `against`, measured\n"
  "in the same run, one call of each in turn. Bytes a sample: what the process grew by at its\n"
  "peak, beside the caller's own lengths.\n";

enum { RANKS = 16, MEM_TOKENS = 160000, WAN_SAMPLES = 400, MOST_TEXT = 392 };

/* ------------------------------------------------------------------------- the samples */

/* The first n samples of as many ranks of wan as it takes; with `text`, of some 15,000 lengths. */
static kf_status make_lens(int64_t n, bool text, int64_t **out) {
  kf_batch *batch;
  uint64_t state = 0;
  int64_t n_ranks = (n + WAN_SAMPLES - 1) / WAN_SAMPLES;
  kf_status status = kf_mix_create("wan", (int32_t)n_ranks, 0, &batch);
  if (status) return status;
  int64_t *len = malloc((size_t)n * sizeof *len);
  for (int64_t i = 0; len && i < n; i++)
    len[i] = batch->len[i] + (text ? (int64_t)(bench_random(&state) % (MOST_TEXT + 1)) : 0);
  kf_batch_free(batch);
  if (!len) return kf_fail(KF_ENOMEM, "out of memory for the lengths");
  *out = len;
  return KF_OK;
}

/* ---------------------------------------------------------------------------- the proof */

/* NULL, or what is wrong with a rank's batch. */
static const char *check_batch(const kf_sampled *s, int32_t rank, const kf_bucket_options *options,
                               const int64_t *len, uint8_t *seen) {
  int64_t first = s->batch.rank_off[rank], end = s->batch.rank_off[rank + 1], tokens = 0;
  double work = 0, most = kf_cost_work(&options->cost, options->match_len) * (1 + 1e-9);
  if (end <= first) return "a rank has no batch";
  for (int64_t i = first; i < end; i++) {
    int64_t sample = s->sample[i];
    if (seen[sample]) return "a sample is handed out twice";
    seen[sample] = 1;
    if (s->batch.len[i] != len[sample]) return "a sample has another length";
    if (options->rule == KF_RULE_TWO_TERM && s->batch.len[i] != s->batch.len[first])
      return "a batch mixes buckets";
    tokens += s->batch.len[i];
    work += kf_cost_work(&options->cost, s->batch.len[i]);
  }
  if (tokens > options->mem_tokens) return "a batch exceeds the memory limit";
  return work > most && end - first > 1 ? "a batch exceeds the compute limit" : NULL;
}

/* NULL, or what is wrong with the epoch. */
static const char *check_epoch(kf_sampler *sampler, const kf_bucket_options *options,
                               const int64_t *len, int64_t n, uint8_t *seen) {
  const kf_sampled *s;
  kf_epoch epoch;
  int64_t n_steps = 0, n_seen = 0;
  const char *wrong;
  if (kf_sampler_figures(sampler, &epoch)) return kf_last_error();
  for (;; n_steps++) {
    if (kf_sampler_next(sampler, &s)) return kf_last_error();
    if (!s) break;
    if (s->step != n_steps || s->batch.n_ranks != RANKS) return "a step is missing";
    for (int32_t r = 0; r < RANKS; r++)
      if ((wrong = check_batch(s, r, options, len, seen))) return wrong;
  }
  for (int64_t i = 0; i < n; i++) n_seen += seen[i];
  if (n_steps != kf_sampler_steps(sampler) || n_steps != epoch.n_steps)
    return "the epoch has another number of steps";
  return n_seen != epoch.n_samples || n_seen + epoch.dropped_samples != n
           ? "the figures count other samples"
           : NULL;
}

/* --------------------------------------------------------------------------- the memory */

/* A line of /proc/self/status in bytes; 0: there is none. */
static double status_bytes(const char *key) {
  char line[200];
  double kilobytes = 0;
  FILE *file = fopen("/proc/self/status", "r");
  while (file && fgets(line, sizeof line, file))
    if (strncmp(line, key, strlen(key)) == 0) kilobytes = strtod(line + strlen(key), NULL);
  if (file) fclose(file);
  return kilobytes * 1024;
}

/* The peak is what is resident now. What malloc holds free would be used again unseen: it goes
** first. */
static bool reset_peak(void) {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
  FILE *file = fopen("/proc/self/clear_refs", "w");
  bool good = file && fputs("5", file) >= 0;
  return file && fclose(file) == 0 && good;
}

/* ---------------------------------------------------------------------------- the timing */

static kf_status walk(const kf_sampler_options *options, const int64_t *len, int64_t n) {
  const kf_sampled *s;
  kf_sampler *sampler;
  kf_status status = kf_sampler_create(options, len, n, &sampler);
  if (status) return status;
  do status = kf_sampler_next(sampler, &s);
  while (!status && s);
  kf_sampler_free(sampler);
  return status;
}

/* Times sampler and qsort in turn. */
static kf_status time_both(const kf_sampler_options *options, const int64_t *len, int64_t n,
                           int64_t rounds, bench_row *out) {
  static double ours[BENCH_MAX_ROUNDS], sorts[BENCH_MAX_ROUNDS];
  double *values = malloc((size_t)n * sizeof *values);
  uint64_t state = 1;
  kf_status status = values ? KF_OK : kf_fail(KF_ENOMEM, "out of memory for the reference");
  for (int64_t i = 0; i < rounds && !status; i++) {
    double start = cli_now_us();
    status = walk(options, len, n);
    ours[i] = cli_now_us() - start;
    sorts[i] = bench_qsort_us(values, n, &state);
  }
  free(values);
  if (status) return status;
  double sort_us = kf_quantile(sorts, rounds, 0.5);
  *out = bench_row_of(out->name, ours, rounds, "qsort of as many doubles", sort_us);
  return KF_OK;
}

/* 0 or an exit code, after saying why. *bytes stays as it was where it is not known. */
static int run_rule(kf_rule rule, int64_t n, int64_t rounds, bench_row *out, double *bytes) {
  kf_sampler_options options = {
    .bucket = {.rule = rule, .mem_tokens = MEM_TOKENS, .n_ranks = RANKS}};
  int64_t *len = NULL;
  uint8_t *seen = calloc((size_t)n, 1);
  const char *wrong = NULL;
  kf_sampler *sampler = NULL;
  kf_status status = seen ? KF_OK : kf_fail(KF_ENOMEM, "out of memory for the proof");
  if (isatty(STDERR_FILENO) == 1) fprintf(stderr, "%s ..\n", out->name);
  if (status) goto done;
  if ((status = kf_cost_preset("wan1.3b", "free", RANKS, KF_DEFAULT_GAMMA, &options.bucket.cost)))
    goto done;
  if ((status = make_lens(n, rule == KF_RULE_PACKED, &len))) goto done;
  for (int64_t i = 0; i < n; i++)
    if (len[i] > options.bucket.match_len) options.bucket.match_len = len[i];
  if ((status = kf_sampler_create(&options, len, n, &sampler))) goto done;
  wrong = check_epoch(sampler, &options.bucket, len, n, seen);
  kf_sampler_free(sampler);
  if (wrong) goto done;
  bool known = reset_peak();
  double before = status_bytes("VmRSS:");
  if ((status = walk(&options, len, n))) goto done;
  if (known) *bytes = (status_bytes("VmHWM:") - before) / (double)n;
  status = time_both(&options, len, n, rounds, out);

done:
  free(seen);
  free(len);
  if (wrong) return cli_fail(EXIT_FAILED, name, "%s: %s", out->name, wrong);
  return cli_exit_code(status, name, out->name);
}

/* -------------------------------------------------------------------------- the command */

int bench_bucket(char **argv) {
  static const kf_rule rules[] = {KF_RULE_TWO_TERM, KF_RULE_PACKED};
  int64_t n = 10000000, rounds = 3;
  bool json = false;
  const cli_option options[] = {{"--samples", .whole = &n, .min = 1, .max = 100000000},
                                {"--rounds", .whole = &rounds, .min = 1, .max = BENCH_MAX_ROUNDS},
                                {"--json", .flag = &json}};
  char row_name[2][64], figure_name[2][64];
  bench_row rows[2];
  bench_figure figures[2];
  int n_figures = 0, code = cli_parse(name, help, argv, options, 3);
  if (code >= 0) return code;
  for (int i = 0; i < 2; i++) {
    const char *rule = kf_rule_name(rules[i]);
    bool millions = n % 1000000 == 0;
    double bytes = -1; /* not known */
    snprintf(row_name[i], sizeof row_name[i], "bucket_%s_%" PRId64 "%s", rule,
             millions ? n / 1000000 : n, millions ? "m" : "");
    snprintf(figure_name[i], sizeof figure_name[i], "%s_bytes_a_sample", rule);
    rows[i] = (bench_row){.name = row_name[i]};
    if ((code = run_rule(rules[i], n, rounds, &rows[i], &bytes))) return code;
    if (bytes >= 0) figures[n_figures++] = (bench_figure){figure_name[i], bytes};
  }
  return bench_show_figures(name, rows, 2, figures, n_figures, json);
}
