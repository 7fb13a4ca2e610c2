/* SPDX-License-Identifier: Apache-2.0 */
/*
** A plan as a picture: two panels of one scale, a bar per rank, before above after.
**
**     title
**     step 8.02 s -> 3.44 s   2.33x faster   ...
**     [] compute  [] communication  -- ideal  .. lower bound
**     before  |  |    _  ||
**             |__||_|_|__||__    height: seconds
**     after   ----------------
**             |||||||||||||||
**             0   8   16  24     ranks, and nodes below them
**
** Layout is computed first and kept in one struct; the writing below it only follows. A bar
** becomes a piece of one <path> per colour: 32 ranks take 8 KB. Beyond one rank a pixel,
** neighbouring ranks share a column and the slowest of them is drawn, since it is the slowest
** that the others wait for; so the picture of a million ranks is no larger than that of 880.
*/
#include <inttypes.h>
#include <math.h>

#include "../status.h"
#include "picture.h"

/* ------------------------------------------------------------------- the layout */

enum {
  WIDTH = 960,
  LEFT = 64, /* where the plot begins: room for "100 ms" */
  PLOT_WIDTH = 880,
  PLOT_HEIGHT = 150,
  BEFORE_BASE = 292, /* y of the axes */
  AFTER_BASE = 488,
  HEIGHT = 534,
  MAX_PITCH = 48
};

typedef struct layout {
  int32_t n_columns, ranks_per_column;
  int32_t tick_ranks; /* a label every so many ranks */
  double pitch, bar;  /* width of a column, and of the bar in it */
  double px_per_s;
  double tick_s; /* a line every so many seconds */
  double top_s;  /* of the scale */
} layout;

/* 1, 2 or 5 times a power of ten, the largest that gives at least three steps. */
static double nice_step(double top) {
  static const double times[] = {2, 1, 0.5, 0.2};
  double power = pow(10, floor(log10(top))); /* power <= top < 10 power, but for rounding */
  int i = 0;
  while (i < 3 && top / (power * times[i]) < 3) i++;
  return power * times[i];
}

static layout lay_out(const kf_plan *plan) {
  layout l = {.n_columns = plan->n_ranks, .ranks_per_column = 1};
  if (plan->n_ranks > PLOT_WIDTH) {
    l.ranks_per_column = (plan->n_ranks + PLOT_WIDTH - 1) / PLOT_WIDTH;
    l.n_columns = (plan->n_ranks + l.ranks_per_column - 1) / l.ranks_per_column;
  }
  l.pitch = fmin(MAX_PITCH, (double)PLOT_WIDTH / l.n_columns);
  l.bar = l.pitch >= 3 ? l.pitch * 0.8 : l.pitch;
  double rank_px = l.pitch / l.ranks_per_column;
  for (l.tick_ranks = 1; l.tick_ranks * rank_px < 40; l.tick_ranks *= 2) {}
  l.top_s = fmax(plan->figures.before_step_s, plan->figures.step_s);
  if (!(l.top_s > 0) || isinf(l.top_s)) l.top_s = 1;
  l.px_per_s = PLOT_HEIGHT / l.top_s;
  l.tick_s = nice_step(l.top_s);
  return l;
}

static double column_x(const layout *l, int32_t column) {
  return LEFT + column * l->pitch + (l->pitch - l->bar) / 2;
}

/* The bars of a column: its slowest rank, before and after. */
typedef struct bars {
  double before, compute, comm;
} bars;

static bars column_bars(const kf_plan *plan, const layout *l, int32_t column) {
  bars most = {0, 0, 0};
  int32_t first = column * l->ranks_per_column, end = first + l->ranks_per_column;
  for (int32_t r = first; r < end && r < plan->n_ranks; r++) {
    most.before = fmax(most.before, plan->before_s[r]);
    if (plan->compute_s[r] + plan->comm_s[r] > most.compute + most.comm) {
      most.compute = plan->compute_s[r];
      most.comm = plan->comm_s[r];
    }
  }
  return most;
}

/* ------------------------------------------------------------------ the writing */

static const kfi_picture picture = {
  .width = WIDTH,
  .height = HEIGHT,
  .left = LEFT,
  .untitled = "A plan",
  .light = ".node{stroke:#8a95a3;stroke-dasharray:1 3;fill:none}\n"
           ".before{fill:#a9b4c2}\n"
           ".compute{fill:#2f6fc4}\n"
           ".comm{fill:#f0a030}\n"
           ".ideal{stroke:#12804a;stroke-width:1.5;stroke-dasharray:7 4;fill:none}\n"
           ".bound{stroke:#c22f52;stroke-width:1.5;stroke-dasharray:2 3;fill:none}\n",
  .dark =
    ".axis,.node{stroke:#6b7684}.before{fill:#667180}.compute{fill:#5a9bf0}.comm{fill:#f5b14d}\n"
    ".ideal{stroke:#4fd08a}.bound{stroke:#ff7a98}\n",
};

static void put_header(kfi_writer *b, const kf_plan *plan, const char *title) {
  const kf_figures *f = &plan->figures;
  kfi_put_picture(b, &picture, title);
  kfi_put(b, "<text class=\"big\" x=\"%d\" y=\"60\">step ", LEFT);
  kfi_put_seconds(b, f->before_step_s, false);
  kfi_put(b, " \xe2\x86\x92 ");
  kfi_put_seconds(b, f->step_s, false);
  kfi_put(b, ", ");
  kfi_put_fixed(b, f->speedup, 2);
  kfi_put(b, "\xc3\x97, ");
  kfi_put_percent(b, f->gap);
  kfi_put(b, " above the lower bound</text>\n<text class=\"small\" x=\"%d\" y=\"80\">", LEFT);
  kfi_put(b,
          "%" PRId32 " rank%s \xc2\xb7 %" PRId64 " sequences \xc2\xb7 %" PRId64 " tokens \xc2\xb7 ",
          plan->n_ranks, plan->n_ranks == 1 ? "" : "s", plan->n_seqs, f->tokens);
  kfi_put(b, "%" PRId64 " split \xc2\xb7 ", f->split_seqs);
  kfi_put_percent(b, f->moved_fraction);
  kfi_put(b, " of tokens moved \xc2\xb7 ");
  kfi_put_percent(b, f->a2a_fraction);
  kfi_put(b, " through Ulysses \xc2\xb7 at most %" PRId64 " tokens a rank</text>\n", f->max_tokens);
}

/* Swatches for the bars, strokes for the lines; the widths are those of the words. */
static void put_legend(kfi_writer *b, const kf_plan *plan) {
  static const struct {
    const char *kind, *word;
    int x;
  } entry[] = {{"before", "before", 0},
               {"compute", "compute", 76},
               {"comm", "communication", 164},
               {"ideal", "ideal ", 300},
               {"bound", "lower bound ", 448}};
  for (int i = 0; i < 5; i++) {
    int x = LEFT + entry[i].x;
    if (i < 3)
      kfi_put(b, "<rect class=\"%s\" x=\"%d\" y=\"92\" width=\"14\" height=\"10\"/>", entry[i].kind,
              x);
    else
      kfi_put(b, "<path class=\"%s\" d=\"M%d 97h22\"/>", entry[i].kind, x);
    kfi_put(b, "<text x=\"%d\" y=\"102\">%s", x + (i < 3 ? 19 : 27), entry[i].word);
    if (i == 3) kfi_put_seconds(b, plan->figures.ideal_s, false);
    if (i == 4) kfi_put_seconds(b, plan->figures.lower_bound_s, false);
    kfi_put(b, "</text>\n");
  }
}

/* The seconds scale, behind the bars. */
static void put_grid(kfi_writer *b, const layout *l, int base) {
  for (int i = 0; i * l->tick_s <= l->top_s * (1 + 1e-9); i++) {
    double y = base - i * l->tick_s * l->px_per_s;
    kfi_put_at(b, i == 0 ? "<path class=\"axis\" d=\"M" : "<path class=\"grid\" d=\"M", LEFT, y);
    kfi_put(b, "h%d\"/>", PLOT_WIDTH);
    kfi_put_small(b, "end", LEFT - 6, y + 4);
    kfi_put_seconds(b, i * l->tick_s, true);
    kfi_put(b, "</text>\n");
  }
}

static void put_bar(kfi_writer *b, const layout *l, int32_t column, double y, double height) {
  if (height > 0.004) kfi_put_block(b, column_x(l, column), y, l->bar, -height);
}

static void put_line(kfi_writer *b, const layout *l, int base, const char *kind, double s) {
  kfi_put(b, "<path class=\"%s\" d=\"", kind);
  kfi_put_at(b, "M", LEFT, base - fmin(s, l->top_s) * l->px_per_s);
  kfi_put(b, "h%d\"/>\n", PLOT_WIDTH);
}

/* One of the two panels, up to its bars; and from them to its end. */
static void begin_panel(kfi_writer *b, const layout *l, const char *word, double max_over_mean,
                        int base) {
  kfi_put(b, "<text x=\"%d\" y=\"%d\">%s: slowest rank computes ", LEFT, base - PLOT_HEIGHT - 8,
          word);
  kfi_put_fixed(b, max_over_mean, 3);
  kfi_put(b, "\xc3\x97 the ideal</text>\n");
  put_grid(b, l, base);
}

static void end_panel(kfi_writer *b, const layout *l, const kf_figures *f, int base) {
  kfi_put(b, "\"/>\n");
  put_line(b, l, base, "ideal", f->ideal_s);
  put_line(b, l, base, "bound", f->lower_bound_s);
}

static void put_before(kfi_writer *b, const kf_plan *plan, const layout *l) {
  begin_panel(b, l, "Before", plan->figures.before_max_over_mean, BEFORE_BASE);
  kfi_put(b, "<path class=\"before\" d=\"M0 0");
  for (int32_t c = 0; c < l->n_columns; c++)
    put_bar(b, l, c, BEFORE_BASE, column_bars(plan, l, c).before * l->px_per_s);
  end_panel(b, l, &plan->figures, BEFORE_BASE);
}

static void put_after(kfi_writer *b, const kf_plan *plan, const layout *l) {
  begin_panel(b, l, "After", plan->figures.max_over_mean, AFTER_BASE);
  kfi_put(b, "<path class=\"compute\" d=\"M0 0");
  for (int32_t c = 0; c < l->n_columns; c++)
    put_bar(b, l, c, AFTER_BASE, column_bars(plan, l, c).compute * l->px_per_s);
  kfi_put(b, "\"/>\n<path class=\"comm\" d=\"M0 0");
  for (int32_t c = 0; c < l->n_columns; c++) {
    bars at = column_bars(plan, l, c);
    put_bar(b, l, c, AFTER_BASE - at.compute * l->px_per_s, at.comm * l->px_per_s);
  }
  end_panel(b, l, &plan->figures, AFTER_BASE);
}

static void put_ranks(kfi_writer *b, const kf_plan *plan, const layout *l) {
  for (int64_t r = 0; r < plan->n_ranks; r += l->tick_ranks) {
    double x = column_x(l, (int32_t)(r / l->ranks_per_column)) + l->bar / 2;
    kfi_put_small(b, "middle", x, AFTER_BASE + 15);
    kfi_put(b, "%" PRId64 "</text>\n", r);
  }
  kfi_put(b, "<text class=\"small\" x=\"%d\" y=\"%d\">", LEFT, AFTER_BASE + 33);
  if (l->ranks_per_column > 1)
    kfi_put(b, "rank; a column is the slowest of %" PRId32 " neighbours", l->ranks_per_column);
  kfi_put(b, "</text>\n");
}

/* A line between nodes, and their numbers, where there is room for them. */
static void put_nodes(kfi_writer *b, const kf_plan *plan, const layout *l) {
  double node_px = l->pitch / l->ranks_per_column * plan->ranks_per_node;
  if (plan->ranks_per_node >= plan->n_ranks || node_px < 12) return;
  for (int32_t r = 0, node = 0; r < plan->n_ranks; r += plan->ranks_per_node, node++) {
    double x = LEFT + l->pitch / l->ranks_per_column * r;
    int32_t left = plan->n_ranks - r;
    for (int k = 0; r > 0 && k < 2; k++) {
      kfi_put_at(b, "<path class=\"node\" d=\"M", x, k ? AFTER_BASE : BEFORE_BASE);
      kfi_put(b, "v%d\"/>\n", -PLOT_HEIGHT);
    }
    if (node_px < 48) continue;
    kfi_put_small(b, "middle", x + fmin(node_px, l->pitch * left) / 2, AFTER_BASE + 33);
    kfi_put(b, "node %" PRId32 "</text>\n", node);
  }
}

kf_status kf_svg_plan(const kf_plan *plan, const char *title, char **out) {
  if (!plan || !out) return kfi_fail(KF_EINVAL, "kf_svg_plan: plan or out is NULL");
  if (plan->version != KF_PLAN_VERSION || plan->n_ranks < 1)
    return kfi_fail(KF_EINVAL,
                    "kf_svg_plan: a plan of version %" PRId32 " with %" PRId32
                    " ranks, expected version %d and at least 1 rank",
                    plan->version, plan->n_ranks, KF_PLAN_VERSION);
  kfi_writer b = {0};
  layout l = lay_out(plan);
  put_header(&b, plan, title);
  put_legend(&b, plan);
  put_before(&b, plan, &l);
  put_after(&b, plan, &l);
  put_nodes(&b, plan, &l);
  put_ranks(&b, plan, &l);
  kfi_put(&b, "</svg>\n");
  return kfi_writer_take(&b, "the picture of a plan", out);
}
