/* SPDX-License-Identifier: Apache-2.0 */
/*
** The rules of `knapformer bucket` on a terminal: a table with a line for each, what they dropped
** or could not fill in words, and a row per bucket of two_term, whose two bars show how much of the
** memory and of the compute limit a full batch takes. One of them is near its limit in every row,
** and where the other takes over the eye sees memory-bound lengths become compute-bound.
**
**      length  samples   batch  memory                  compute
**         256      640     625  ################ 100.0%  ###              18.4%
**       75600       51       1  ########          47.2%  ################ 100.0%
**
** More than MAX_ROWS lengths share rows, neighbours together; a row then shows the mean of the
** batches of its lengths.
*/
#include <inttypes.h>
#include <string.h>

#include "cmd_bucket.h"

enum { MAX_ROWS = 24, LENGTH = 13, SAMPLES = 9, BATCH = 9, SHARE = 7, GAP = 2 };

/* "97.3%" of a limit, or "12x" where that would be four digits. */
static const char *share_text(double share, char out[32]) {
  bool small = share < 9.9995;
  snprintf(out, 32, small ? "%.1f%%" : "%.0fx", small ? 100 * share : share);
  return out;
}

/* ----------------------------------------------------------------------------- the rules */

static void print_data(const bucket_result *r, const cli_screen *s) {
  const kf_buckets *b = r->buckets[TWO_TERM];
  const char *bold = s->colour ? "\033[1m" : "", *plain = s->colour ? "\033[0m" : "";
  char text[32];
  printf("%s%s%s: %" PRId64 " sample%s, %" PRId64 " length%s", bold, r->data, plain, r->n_samples,
         r->n_samples == 1 ? "" : "s", b->n, b->n == 1 ? "" : "s");
  if (b->n > 1) printf(" from %" PRId64 " to %" PRId64, b->bucket[0].len, b->bucket[b->n - 1].len);
  printf(", %" PRId64 " tokens; %" PRId32 " rank%s\n", r->n_tokens, r->n_ranks,
         r->n_ranks == 1 ? "" : "s");
  if (r->fit)
    printf("cost of %s", r->fit);
  else
    printf("model %s, gamma %g", r->model, r->gamma);
  if (r->n_rows > 0) printf(": %" PRId64 " rows, mean error %.1f%%", r->n_rows, 100 * r->fit_mape);
  printf(", mode %s, seed %" PRIu64 "\n", r->mode, r->seed);
  printf("M_mem %" PRId64 " tokens, M_comp %s (the work of %.0f tokens)\n", b->mem_tokens,
         cli_seconds(b->comp_s, text), b->match_len);
  if (r->token_bytes > 0)
    printf("a token: %.10g bytes%s%s%s\n", r->token_bytes, r->token_bytes_of ? ", as " : "",
           r->token_bytes_of ? r->token_bytes_of : "",
           r->token_bytes_of ? " keeps for the backward pass" : "");
  puts("");
}

static void print_rules(const bucket_result *r, const cli_screen *s) {
  const char *bold = s->colour ? "\033[1m" : "", *plain = s->colour ? "\033[0m" : "";
  double base = r->epoch[EQUAL_TOKEN].predicted_tokens_per_s;
  printf("%19s%10s%14s%14s%9s%14s\n", "", "imbalance", "memory use", "compute use", "tokens/s",
         "dropped");
  printf("%29s%7s%7s%7s%7s%23s\n", "", "mean", "max", "mean", "max", "samples");
  for (int rule = 0; rule < N_RULES; rule++) {
    const kf_epoch *e = &r->epoch[rule];
    char label[32], ratio[32] = "-", share[4][32];
    snprintf(label, sizeof label, rule == POWER ? "%s, p %.2f" : "%s", bucket_rule_name[rule],
             r->buckets[POWER]->p);
    if (e->n_steps == 0) {
      printf("  %-17s%10s%7s%7s%7s%7s %8s %5s %7" PRId64 "\n", label, "-", "-", "-", "-", "-", "-",
             "-", e->dropped_samples);
      continue;
    }
    if (base > 0) snprintf(ratio, sizeof ratio, "%.2fx", e->predicted_tokens_per_s / base);
    printf("  %-17s%9.1f%% %6s %6s %6s %6s %8.0f%s %5s%s %7" PRId64 "\n", label,
           100 * e->imbalance_rate, share_text(e->mean_memory_use, share[0]),
           share_text(e->max_memory_use, share[1]), share_text(e->mean_compute_use, share[2]),
           share_text(e->max_compute_use, share[3]), e->predicted_tokens_per_s, bold, ratio, plain,
           e->dropped_samples);
  }
}

/* ------------------------------------------------------------------------- what was left */

/* A clause of a rule's line if there is anything to say; `of` is the line's beginning. */
static bool say(const char *of, bool begun, int64_t n, const char *what) {
  if (n == 0) return begun;
  printf("%s %" PRId64 " %s", begun ? "," : of, n, what);
  return true;
}

/* Of one rule; false: all batches are full, within the limits and handed out. */
static bool print_left_of(const bucket_result *r, int rule) {
  const kf_epoch *e = &r->epoch[rule];
  char of[80], dropped[100];
  bool begun = false;
  if (rule == BALANCED) {
    snprintf(of, sizeof of, "  %-17s  of %" PRId64 " steps:", bucket_rule_name[rule], e->n_steps);
    if (r->planned_steps < e->n_steps)
      begun = say(of, begun, r->planned_steps, "planned, evenly spaced");
    return say(of, begun, r->unlevelled_steps, "not levelled within the memory limit");
  }
  int64_t n = e->n_batches + e->dropped_batches;
  snprintf(of, sizeof of, "  %-17s  of %" PRId64 " batch%s:", bucket_rule_name[rule], n,
           n == 1 ? "" : "es");
  snprintf(dropped, sizeof dropped, "dropped (%" PRId64 " sample%s)%s", e->dropped_samples,
           e->dropped_samples == 1 ? "" : "s", e->n_steps == 0 ? ": too few for a step" : "");
  begun = say(of, begun, e->underfilled_batches, "underfilled");
  if (rule != EQUAL_TOKEN) /* whose batches of several may be as far above it */
    begun =
      say(of, begun, e->over_batches,
          e->over_batches == 1 ? "single sample above M_comp" : "single samples above M_comp");
  begun = say(of, begun, e->split_batches, "cut in two");
  if (rule != PACKED)
    begun = say(of, begun, e->mixed_steps,
                e->mixed_steps == 1 ? "step of several lengths" : "steps of several lengths");
  return say(of, begun, e->dropped_batches, dropped);
}

/* The longest sample sets the shortest step: a limit below it keeps all other batches small in
** vain. */
static bool print_longest(const bucket_result *r) {
  const kf_buckets *b = r->buckets[TWO_TERM];
  const kf_bucket *longest = &b->bucket[b->n - 1];
  char work[32], limit[32];
  if (longest->work_s <= b->comp_s * (1 + 1e-9)) return false;
  printf("  the longest sample takes %s, more than M_comp, %s: --match %" PRId64 "\n"
         "  lets the other batches take as long as that one takes anyway\n",
         cli_seconds(longest->work_s, work), cli_seconds(b->comp_s, limit), longest->len);
  return true;
}

static void print_left(const bucket_result *r) {
  bool any = false;
  for (int rule = 0; rule < N_RULES; rule++)
    if (print_left_of(r, rule)) {
      puts("");
      any = true;
    }
  if (print_longest(r) || any) puts("");
}

/* --------------------------------------------------------------------------- the buckets */

/* Of the batches of buckets first .. end-1, as shares of the limits. */
typedef struct share {
  int64_t samples;
  double memory, compute;
} share;

static share share_of(const kf_buckets *b, int64_t first, int64_t end) {
  share sum = {0, 0, 0};
  double n = 0; /* batches, parts of one counted as such */
  for (int64_t i = first; i < end; i++) {
    const kf_bucket *k = &b->bucket[i];
    double size = (double)k->batch_size, weight = (double)k->count / size;
    sum.samples += k->count;
    sum.memory += weight * (size * (double)k->len / (double)b->mem_tokens);
    sum.compute += weight * (size * k->work_s / b->comp_s);
    n += weight;
  }
  sum.memory /= n;
  sum.compute /= n;
  return sum;
}

/* "256", or "256-1024" where they differ. */
static void print_range(int64_t low, int64_t high, int width) {
  char text[48];
  int64_t least = low < high ? low : high, most = low < high ? high : low;
  snprintf(text, sizeof text, least == most ? "%" PRId64 : "%" PRId64 "-%" PRId64, least, most);
  printf(" %*s", width - 1, text);
}

static void print_share(double value, double top, const cli_screen *s) {
  char text[32];
  printf("%*s", GAP, "");
  cli_print_bar(value, 0, 1, top, s);
  printf("%*s", SHARE, share_text(value, text));
}

static void print_buckets(const kf_buckets *b, const cli_screen *s) {
  int64_t per_row = (b->n + MAX_ROWS - 1) / MAX_ROWS;
  double top = 1;
  for (int64_t i = 0; i < b->n; i += per_row) {
    share row = share_of(b, i, i + per_row < b->n ? i + per_row : b->n);
    if (row.compute > top) top = row.compute;
  }
  printf("%*s%*s%*s%*s%-*s%*s%s\n", LENGTH, per_row > 1 ? "lengths" : "length", SAMPLES, "samples",
         BATCH, "batch", GAP, "", s->bar + SHARE, "memory", GAP, "", "compute");
  for (int64_t i = 0; i < b->n; i += per_row) {
    int64_t end = i + per_row < b->n ? i + per_row : b->n;
    share row = share_of(b, i, end);
    print_range(b->bucket[i].len, b->bucket[end - 1].len, LENGTH);
    printf("%*" PRId64, SAMPLES, row.samples);
    print_range(b->bucket[i].batch_size, b->bucket[end - 1].batch_size, BATCH);
    print_share(row.memory, 1, s);
    print_share(row.compute, top, s);
    putchar('\n');
  }
  puts("\nbars: how much of each limit a full batch of two_term takes");
  if (per_row > 1)
    printf("a row is %" PRId64 " neighbouring lengths, and the mean of their batches\n", per_row);
}

void bucket_view(const bucket_result *result) {
  cli_screen s = cli_screen_of_stdout(LENGTH + SAMPLES + BATCH + 2 * (GAP + SHARE));
  print_data(result, &s);
  print_rules(result, &s);
  puts("");
  print_left(result);
  print_buckets(result->buckets[TWO_TERM], &s);
}
