/* SPDX-License-Identifier: Apache-2.0 */
/*
** A training run as it is seen: lines, or on a terminal a view that is drawn over itself; then a
** table of what the balancer brought, or JSON.
**
**              ##########################                    12/20
**     step 5 with: loss 0.82310, 3.553 s, 1408 tokens/s, max/mean 1.012
**              without                     with
**     rank 0   #####         |             #############
**     rank 1   ##########################  #############
*/
#include <inttypes.h>
#include <math.h>

#include "cmd_train.h"

static const char name[] = "train";
static const char *const variant_name[] = {"without", "with"};

enum { LIVE_RANKS = 16, SHARE_RANKS = 32, MOST_LINES = 60 };

static bool both(const train_session *s) { return s->variant[WITHOUT] && s->variant[WITH]; }

static void draw_live(train_session *s, const char *text);

/* ------------------------------------------------------------------------ the start */

void train_show_start(train_session *s) {
  const train_params *params = train_job_params(s->job);
  const kf_cost *c = &s->scheduling->plan.cost;
  int64_t tokens = 0;
  for (int64_t i = 0; i < s->first->n_seqs; i++) tokens += s->first->len[i];
  printf("%s: %.1f million parameters, %" PRId32 " rank%s, about %.1f GB each\n", s->config.model,
         (double)params->n_floats / 1e6, s->n_ranks, s->n_ranks == 1 ? "" : "s", s->bytes / 1e9);
  printf("%s at scale %.4g: %" PRId64 " sequence%s, %" PRId64 " tokens a step\n", s->mix,
         s->options.data.scale, s->first->n_seqs, s->first->n_seqs == 1 ? "" : "s", tokens);
  if (s->measured) {
    double flops = train_net_flops(&s->model, 1000) /
                   (1000 * c->linear_s + 1e6 * c->quadratic_s + c->constant_s);
    printf("measured: %.1f GFLOP/s a rank", flops / 1e9);
    if (s->n_ranks > 1 && isfinite(c->cluster.intra_Bps))
      printf(", %.1f GB/s and %.0f us between ranks", c->cluster.intra_Bps / 1e9,
             c->cluster.latency_s * 1e6);
    putchar('\n');
  }
  putchar('\n');
  if (s->on_terminal) draw_live(s, "the first step");
  fflush(stdout);
}

/* ------------------------------------------------------------------------- a step */

/* "step 12 with: loss 0.82310, 3.553 s, 1408 tokens/s, max/mean 1.012" */
static void describe(const train_session *s, int variant, const train_result *r, char out[160]) {
  char seconds[32];
  snprintf(out, 160, "step %" PRId64 "%s%s: loss %.*f, %s, %.0f tokens/s, max/mean %.3f", r->step,
           both(s) ? " " : "", both(s) ? variant_name[variant] : "", fabs(r->loss) < 1e3 ? 5 : 0,
           r->loss, cli_seconds(r->step_s, seconds), (double)r->n_tokens / r->step_s,
           train_max_over_mean(r->busy_s, s->n_ranks));
}

static void print_line(const train_session *s, int variant, const train_result *r) {
  char seconds[32];
  int64_t lines = s->n_steps * (both(s) ? 2 : 1), every = (lines + MOST_LINES - 1) / MOST_LINES;
  if (r->step % every != 0 && r->step + 1 < s->n_steps) return;
  printf("step %4" PRId64 "  ", r->step);
  if (both(s)) printf("%-8s ", variant_name[variant]);
  printf("loss %.*f  %8s  %7.0f tokens/s  max/mean %.3f\n", fabs(r->loss) < 1e3 ? 5 : 0, r->loss,
         cli_seconds(r->step_s, seconds), (double)r->n_tokens / r->step_s,
         train_max_over_mean(r->busy_s, s->n_ranks));
  fflush(stdout);
}

/* ------------------------------------------------------------------------- the live view */

/* How many ranks have room below the three lines that come first. */
static int32_t ranks_shown(const train_session *s) {
  int32_t most = s->lines - 5 < LIVE_RANKS ? s->lines - 5 : LIVE_RANKS;
  return s->n_ranks < most ? s->n_ranks : most;
}

/* The last step of a variant. */
static const double *last_busy(const train_record *r) {
  return r->n_steps ? r->busy_s + (r->n_steps - 1) * r->n_ranks : NULL;
}

static void draw_ranks(const train_session *s, const cli_screen *screen) {
  double top = 0, mean = 0;
  for (int w = 0; w < N_VARIANTS; w++)
    for (int32_t r = 0; last_busy(&s->record[w]) && r < s->n_ranks; r++)
      top = fmax(top, last_busy(&s->record[w])[r]);
  const double *main_busy = last_busy(&s->record[train_main_variant(s)]);
  for (int32_t r = 0; main_busy && r < s->n_ranks; r++) mean += main_busy[r] / s->n_ranks;
  for (int32_t r = 0; r < ranks_shown(s); r++) {
    printf("  rank %-4" PRId32, r);
    for (int w = 0; w < N_VARIANTS; w++) {
      const double *busy = last_busy(&s->record[w]);
      if (!s->variant[w]) continue;
      cli_print_bar(busy ? busy[r] : 0, 0, mean, top, screen);
      if (both(s) && w == WITHOUT) printf("  ");
    }
    printf("\033[K\n");
  }
}

/* Takes away what was drawn: the cursor goes up, and the screen is cleared from there. */
static void undraw(train_session *s) {
  if (s->n_drawn) printf("\033[%dA\033[J", s->n_drawn);
  s->n_drawn = 0;
}

/* Over what was drawn before: each line is cleared to its end, none is longer than the screen. */
static void draw_live(train_session *s, const char *text) {
  int n_bars = both(s) ? 2 : 1;
  cli_screen screen = cli_screen_of((s->columns - 22) / n_bars, 50);
  cli_screen wide = cli_screen_of(screen.bar * n_bars, 60);
  int64_t done = s->record[WITHOUT].n_steps + s->record[WITH].n_steps, all = s->n_steps * n_bars;
  if (s->n_drawn) printf("\033[%dA", s->n_drawn);
  printf("           ");
  cli_print_bar((double)done, 0, (double)all, (double)all, &wide);
  printf(" %" PRId64 "/%" PRId64 "\033[K\n  %.*s\033[K\n", done, all, s->columns - 3, text);
  if (both(s)) printf("           %-*s%s\033[K\n", screen.bar + 2, "without", "with");
  draw_ranks(s, &screen);
  s->n_drawn = 2 + both(s) + ranks_shown(s);
  fflush(stdout);
}

void train_log(void *session, kf_log_level level, const char *line) {
  train_session *s = session;
  if (!s->on_terminal) {
    cli_log((void *)name, level, line);
    return;
  }
  undraw(s);
  printf("%s\n", line);
}

void train_show_step(train_session *s, int variant, const train_result *result) {
  char text[160];
  if (!s->on_terminal) {
    print_line(s, variant, result);
    return;
  }
  describe(s, variant, result, text);
  draw_live(s, text);
}

/* ----------------------------------------------------------------------- the results */

/* A row of the table: one figure of each variant that was run. */
typedef enum figure { SECONDS, COUNT, RATIO, SHARE } figure;

static void print_row(const train_session *s, const char *label, figure kind, const double *value) {
  printf("%-24s", label);
  for (int w = 0; w < N_VARIANTS; w++) {
    char text[32];
    if (!s->variant[w]) continue;
    switch (kind) {
    case SECONDS: cli_seconds(value[w], text); break;
    case COUNT: snprintf(text, sizeof text, "%.0f", value[w]); break;
    case RATIO: snprintf(text, sizeof text, "%.3f", value[w]); break;
    case SHARE: snprintf(text, sizeof text, "%.1f%%", 100 * value[w]); break;
    }
    printf("%12s", text);
  }
  putchar('\n');
}

static void print_shares(const train_session *s) {
  for (int32_t r = 0; r < s->n_ranks && r < SHARE_RANKS; r++) {
    char label[40];
    double share[N_VARIANTS];
    for (int w = 0; w < N_VARIANTS; w++) share[w] = train_busy_share(&s->record[w], r);
    snprintf(label, sizeof label, "%s rank %" PRId32, r ? "           " : "busy share,", r);
    print_row(s, label, SHARE, share);
  }
  if (s->n_ranks > SHARE_RANKS) printf("and %" PRId32 " more ranks\n", s->n_ranks - SHARE_RANKS);
}

static int print_comparison(const train_session *s) {
  train_comparison c;
  if (train_compare(&s->record[WITHOUT], &s->record[WITH], &c))
    return cli_exit_code(KF_ENOMEM, name, NULL);
  printf("\nspeed-up %.3fx, of %.3fx that perfect balance would bring: %.1f%% realised\n",
         c.speedup, c.ideal, 100 * c.realised);
  printf("losses of the same steps differ by at most %.1e, relative\n", c.loss_max_rel_diff);
  printf("parameters differ by %.1e of what they have changed since the start\n",
         s->param_rel_diff);
  return 0;
}

int train_show_results(const train_session *s) {
  train_summary t[N_VARIANTS] = {{0}, {0}};
  kf_status status = KF_OK;
  for (int w = 0; w < N_VARIANTS && !status; w++) status = train_summarise(&s->record[w], &t[w]);
  if (status) return cli_exit_code(status, name, NULL);
  const struct {
    const char *label;
    figure kind;
    double value[N_VARIANTS];
  } row[] = {{"step, median", SECONDS, {t[0].median_s, t[1].median_s}},
             {"step, 95th percentile", SECONDS, {t[0].p95_s, t[1].p95_s}},
             {"tokens/s", COUNT, {t[0].tokens_per_s, t[1].tokens_per_s}},
             {"busy time, max/mean", RATIO, {t[0].max_over_mean, t[1].max_over_mean}},
             {"idle variance", SHARE, {t[0].idle_variance, t[1].idle_variance}}};
  printf("\n%-24s", "");
  for (int w = 0; w < N_VARIANTS; w++)
    if (s->variant[w]) printf("%12s", variant_name[w]);
  putchar('\n');
  for (size_t i = 0; i < sizeof row / sizeof *row; i++)
    print_row(s, row[i].label, row[i].kind, row[i].value);
  print_shares(s);
  return both(s) ? print_comparison(s) : 0;
}

/* ---------------------------------------------------------------------------- JSON */

static json_t *comparison_to_json(const train_session *s) {
  train_comparison c;
  if (train_compare(&s->record[WITHOUT], &s->record[WITH], &c)) return NULL;
  return json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "speedup", c.speedup, "ideal", c.ideal,
                   "realised", c.realised, "max_over_mean_before", c.max_over_mean_before,
                   "max_over_mean_after", c.max_over_mean_after, "loss_max_rel_diff",
                   c.loss_max_rel_diff, "param_rel_diff", s->param_rel_diff);
}

int train_print_json(const train_session *s) {
  const train_record *r = &s->record[train_main_variant(s)];
  train_summary t;
  json_t *loss = json_array();
  if (train_summarise(r, &t)) return cli_exit_code(KF_ENOMEM, name, NULL);
  for (int64_t i = 0; i < r->n_steps; i++) json_array_append_new(loss, json_real(r->loss[i]));
  json_t *object = json_pack(
    "{s:i,s:I,s:f,s:{s:f,s:f},s:f,s:f,s:s,s:f,s:o}", "ranks", (int)s->n_ranks, "steps",
    (json_int_t)r->n_steps, "tokens_per_s", t.tokens_per_s, "step_ms", "median", 1e3 * t.median_s,
    "p95", 1e3 * t.p95_s, "max_over_mean", t.max_over_mean, "idle_variance", t.idle_variance,
    "model", s->config.model, "scale", s->options.data.scale, "loss", loss);
  if (object && both(s)) json_object_set_new(object, "compare", comparison_to_json(s));
  return cli_print_json(name, object, 9);
}
