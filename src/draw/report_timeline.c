/* SPDX-License-Identifier: Apache-2.0 */
/*
** A few steps of each variant on one scale of time, so that the eye sees the shorter step:
**
**     without             5 steps in 13.0 s
**     0 |pp|rr|cccccccccccc|wwwwww||pp|..
**     1 |pp|rr|cccc|wwwwwwwwwwwwww||pp|..
**     with knapformer     5 steps in 7.1 s
**     0 |pp|rrr|ccccccc|w||pp|rrr|..
**     1 |pp|rrr|cccccccc||pp|rrr|..        |<- 5.9 s less
**       0 s      2 s      4 s
**
** Which steps: consecutive ones that both variants have, whose sums come closest to what the
** medians let expect, so that no pause and no lucky batch stands for the rest. Of more than
** MOST_ROWS ranks, neighbours share a row and the busiest of them is drawn, in each step: it is the
** one that the others wait for. A block becomes a piece of one <path> per phase.
*/
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "report.h"

enum { SHOWN = 6, MOST_ROWS = 64, N_PHASES = 4, TOP = 24, ROWS_HEIGHT = 200 };

static const char *const phase_name[N_PHASES] = {"plan", "route", "compute", "wait"};

/* The steps that are drawn: their places in each variant. */
typedef struct window {
  int n[2];
  int64_t at[2][SHOWN];
} window;

typedef struct scene {
  const kfi_report *r;
  window shown;
  int32_t n_rows, ranks_per_row;
  double pitch, row; /* height of a row with what is between, and without */
  double sum_s[2];   /* of the steps that are drawn */
  kfi_axis time;
} scene;

/* --------------------------------------------------------------------------- the layout */

static double off_median(double sum, double median, int n) {
  return median > 0 ? fabs(sum / (n * median) - 1) : 0;
}

/* The window of n steps common to variants a and b (which may be the same one) that is most
** typical. */
static void choose(const kfi_report *r, int a, int b, window *out) {
  const kf_report_variant *first = &r->in->variant[a], *second = &r->in->variant[b];
  int64_t last[2][SHOWN], n_common = 0;
  double best = INFINITY;
  for (int64_t i = 0, j = 0; kfi_variant_common(first, second, &i, &j); i++, j++) n_common++;
  int n = n_common < SHOWN ? (int)n_common : SHOWN;
  out->n[a] = out->n[b] = n;
  int64_t seen = 0;
  for (int64_t i = 0, j = 0; kfi_variant_common(first, second, &i, &j); i++, j++) {
    last[0][seen % SHOWN] = i;
    last[1][seen % SHOWN] = j;
    if (++seen < n) continue;
    double sum[2] = {0, 0};
    for (int64_t k = seen - n; k < seen; k++) {
      sum[0] += first->step_s[last[0][k % SHOWN]];
      sum[1] += second->step_s[last[1][k % SHOWN]];
    }
    double off =
      off_median(sum[0], r->sums[a].step_s, n) + off_median(sum[1], r->sums[b].step_s, n);
    if (!(off < best)) continue;
    best = off;
    for (int k = 0; k < n; k++) {
      out->at[a][k] = last[0][(seen - n + k) % SHOWN];
      out->at[b][k] = last[1][(seen - n + k) % SHOWN];
    }
  }
}

static scene lay_out(const kfi_report *r) {
  scene s = {.r = r};
  int32_t n_ranks = r->in->n_ranks, n_variants = r->in->n_variants;
  if (n_variants == 1 || r->common.n_steps > 0)
    choose(r, 0, n_variants - 1, &s.shown);
  else
    for (int k = 0; k < n_variants; k++) choose(r, k, k, &s.shown);
  s.ranks_per_row = (n_ranks + MOST_ROWS - 1) / MOST_ROWS;
  s.n_rows = (n_ranks + s.ranks_per_row - 1) / s.ranks_per_row;
  s.pitch = fmin(fmax((double)ROWS_HEIGHT / s.n_rows, 5), 26);
  s.row = s.pitch * (s.pitch > 8 ? 0.8 : 0.88);
  double longest = 1e-9;
  for (int k = 0; k < n_variants; k++) {
    for (int i = 0; i < s.shown.n[k]; i++) s.sum_s[k] += r->in->variant[k].step_s[s.shown.at[k][i]];
    longest = fmax(longest, s.sum_s[k]);
  }
  s.time = (kfi_axis){0, longest, KFI_PLOT_LEFT, KFI_PLOT_RIGHT};
  return s;
}

/* ---------------------------------------------------------------------------- the words */

static bool same_steps(const scene *s) {
  const kf_report_variant *variant = s->r->in->variant;
  return s->r->in->n_variants == 1 || (s->shown.n[0] > 0 && s->shown.n[1] > 0 &&
                                       kfi_variant_step(&variant[0], s->shown.at[0][0]) ==
                                         kfi_variant_step(&variant[1], s->shown.at[1][0]));
}

static void put_words(const scene *s, kfi_writer *w) {
  const kf_report *in = s->r->in;
  kfi_put(w, "<p>");
  if (same_steps(s)) {
    int64_t first = kfi_variant_step(&in->variant[0], s->shown.at[0][0]);
    int64_t last = kfi_variant_step(&in->variant[0], s->shown.at[0][s->shown.n[0] - 1]);
    if (first == last)
      kfi_put(w, "Step %" PRId64, first);
    else
      kfi_put(w, "Steps %" PRId64 " to %" PRId64, first, last);
    kfi_put(w, in->n_variants == 2 ? " of both runs, on one scale of time" : "");
    if (s->r->common.n_steps > SHOWN)
      kfi_put(w, ", chosen because they come closest to %d median steps", SHOWN);
    kfi_put(w, ". ");
  } else {
    kfi_put(w,
            "The runs have no step in common: of each, steps about as long as its median, on one "
            "scale of time. ");
  }
  if (s->ranks_per_row > 1)
    kfi_put(w,
            "A row stands for %" PRId32 " neighbouring ranks and shows the busiest of them in each "
            "step. ",
            s->ranks_per_row);
  else
    kfi_put(w, "A row is a rank. ");
  kfi_put(w, "The phases of a rank's step are summed up and drawn one after the other; what stays "
             "empty was not measured.</p>\n<ul class=\"legend\">");
  for (int k = 0; k < N_PHASES; k++) kfi_put_legend(w, phase_name[k], phase_name[k]);
  kfi_put(w, "</ul>\n");
}

/* How much of the ranks' time in the steps that are drawn is waiting; below 0: not known. */
static double waiting(const scene *s, int k) {
  const kf_report *in = s->r->in;
  double sum = 0;
  for (int i = 0; i < s->shown.n[k]; i++)
    for (int32_t r = 0; r < in->n_ranks; r++)
      sum += in->variant[k].counters[s->shown.at[k][i] * in->n_ranks + r].wait_s;
  return s->sum_s[k] > 0 ? sum / in->n_ranks / s->sum_s[k] : -1;
}

static void put_caption(const scene *s, kfi_writer *w, int k) {
  kfi_put(w, "<figcaption><b>");
  kfi_put_xml(w, s->r->in->variant[k].name);
  kfi_put(w, "</b> %d step%s in ", s->shown.n[k], s->shown.n[k] == 1 ? "" : "s");
  kfi_put_seconds(w, s->sum_s[k], false);
  double part = waiting(s, k);
  if (part > 0) {
    kfi_put(w, ", of which ranks wait ");
    kfi_put_number(w, fmin(part, 1) * 100, part < 0.1 ? 1 : 0, true);
    kfi_put(w, "%%");
  }
  kfi_put(w, "</figcaption>\n");
}

/* -------------------------------------------------------------------------- the picture */

/* What is drawn in a row in a step: the busiest of its ranks. */
static const kf_counters *busiest(const scene *s, const kf_report_variant *variant, int64_t i,
                                  int32_t row) {
  int32_t n_ranks = s->r->in->n_ranks, rank = row * s->ranks_per_row;
  const kf_counters *c = &variant->counters[i * n_ranks], *most = &c[rank];
  for (int32_t q = rank; q < rank + s->ranks_per_row && q < n_ranks; q++)
    if (kfi_busy_s(&c[q]) > kfi_busy_s(most)) most = &c[q];
  return most;
}

/* A phase of a step in all rows; what is too long for the step is cut at its end. */
static void put_step_phase(const scene *s, kfi_writer *w, int k, int i, int phase, double begin_s) {
  const kf_report_variant *variant = &s->r->in->variant[k];
  double step_s = variant->step_s[s->shown.at[k][i]];
  for (int32_t row = 0; row < s->n_rows; row++) {
    const kf_counters *c = busiest(s, variant, s->shown.at[k][i], row);
    const double length[N_PHASES] = {c->plan_s, c->route_s, c->compute_s, c->wait_s};
    double from = 0;
    for (int p = 0; p < phase; p++) from += length[p];
    double to = fmin(from + length[phase], step_s);
    double x = kfi_axis_px(&s->time, begin_s + from), end = kfi_axis_px(&s->time, begin_s + to);
    if (end - x < 0.02) continue; /* or it begins behind the step's end */
    kfi_put_block(w, x, TOP + row * s->pitch, end - x, s->row);
  }
}

static void put_blocks(const scene *s, kfi_writer *w, int k) {
  for (int phase = 0; phase < N_PHASES; phase++) {
    double begin_s = 0;
    kfi_put(w, "<path class=\"block %s\" d=\"", phase_name[phase]);
    for (int i = 0; i < s->shown.n[k]; i++) {
      put_step_phase(s, w, k, i, phase, begin_s);
      begin_s += s->r->in->variant[k].step_s[s->shown.at[k][i]];
    }
    kfi_put(w, "\"/>\n");
  }
}

/* A line where each step begins, and where the last one ends; above it the step's number, where it
** has room for that. */
static void put_steps(const scene *s, kfi_writer *w, int k, double base) {
  const kf_report_variant *variant = &s->r->in->variant[k];
  double begin_s = 0;
  for (int i = 0; i <= s->shown.n[k]; i++) {
    double x = kfi_axis_px(&s->time, begin_s);
    kfi_put_at(w, "<path class=\"step\" d=\"M", x, TOP - 8);
    kfi_put(w, "V");
    kfi_put_px(w, base);
    kfi_put(w, "\"/>");
    if (i == s->shown.n[k]) break;
    begin_s += variant->step_s[s->shown.at[k][i]];
    double width = kfi_axis_px(&s->time, begin_s) - x;
    int64_t number = kfi_variant_step(variant, s->shown.at[k][i]);
    if (width < 8.5 * snprintf(NULL, 0, "step %" PRId64, number) + 8) continue;
    kfi_put_text(w, "tick mid", x + width / 2, TOP - 9);
    kfi_put(w, "step %" PRId64 "</text>\n", number);
  }
}

static void put_ranks(const scene *s, kfi_writer *w) {
  int32_t every = 1;
  while (every * s->pitch < 15) every *= 2;
  kfi_put_text(w, "tick end", KFI_PLOT_LEFT - 8, TOP - 9);
  kfi_put(w, "rank</text>");
  for (int32_t row = 0; row < s->n_rows; row += every) {
    kfi_put_text(w, "tick end", KFI_PLOT_LEFT - 8, TOP + row * s->pitch + s->row / 2 + 4.5);
    kfi_put(w, "%" PRId32 "</text>\n", row * s->ranks_per_row);
  }
}

/* Behind the end of the shorter variant: how much shorter it is. */
static void put_saved(const scene *s, kfi_writer *w, int k, double base) {
  double end = kfi_axis_px(&s->time, s->sum_s[k]), saved_s = s->time.high - s->sum_s[k];
  double y = (TOP + base) / 2;
  if (s->r->in->n_variants < 2 || KFI_PLOT_RIGHT - end < 110) return;
  kfi_put_at(w, "<path class=\"saved\" d=\"M", end + 6, y);
  kfi_put_at(w, "l7 -4v8zM", end + 13, y);
  kfi_put(w, "H%d\"/>", KFI_PLOT_RIGHT);
  kfi_put_text(w, "tick mid", (end + KFI_PLOT_RIGHT) / 2, y - 8);
  kfi_put_seconds(w, saved_s, false);
  kfi_put(w, " less</text>\n");
}

static void put_variant(const scene *s, kfi_writer *w, int k) {
  bool last = k == s->r->in->n_variants - 1 || s->shown.n[1] == 0;
  double base = TOP + s->n_rows * s->pitch;
  int height = (int)ceil(base) + (last ? 28 : 6);
  kfi_put(w, "<figure>\n");
  put_caption(s, w, k);
  kfi_put_svg(
    w, k ? "timeline-1" : "timeline-0", height, "Timeline",
    "A row per rank, over time; in it planning, routing, computing and waiting of each step.");
  put_blocks(s, w, k);
  put_steps(s, w, k, base);
  put_ranks(s, w);
  put_saved(s, w, k, base);
  if (last) kfi_put_ticks(w, &(kfi_ticks){&s->time, 8, KFI_SECONDS, base, base + 5, false, false});
  kfi_put(w, "</svg>\n</figure>\n");
}

void kfi_report_timeline(const kfi_report *r, kfi_writer *w) {
  scene s = lay_out(r);
  if (s.shown.n[0] + s.shown.n[1] == 0) {
    kfi_put(w, "<p class=\"none\">No steps were measured.</p>\n");
    return;
  }
  put_words(&s, w);
  for (int k = 0; k < r->in->n_variants; k++)
    if (s.shown.n[k] > 0) put_variant(&s, w, k);
}
