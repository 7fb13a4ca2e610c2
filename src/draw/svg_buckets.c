/* SPDX-License-Identifier: Apache-2.0 */
/*
** Rules for batches as a picture: how far each bucket's full batch uses both limits, a chart a
** rule, and the rules' figures below.
**
**     title
**     two_term: 1.36x the tokens/s of equal_token, imbalance rate 41.0% -> 20.5%
**     equal_token  200% |            o|    o work
**                  100% |--|*-|-*--*----   * memory; the line is the limit of both
**                    0% |__o__o________ length
**     two_term     100% |--*--o--o--o---
**                    0% |__o__*__*__*__
**                  imbalance  memory  compute  tokens/s
**     equal_token  =====      ====             ===
**     two_term     ==         ===     ====     =====
**
** One scale for all charts, so that they compare by eye; each is as high as its largest batch, up
** to most_use, where what is higher is marked. Marks of one series and size are one <path>. More
** than MARKS lengths share columns, in which a mark reaches from the least to the largest use, so
** that a million lengths take no more room than a few hundred.
*/
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "../real.h"
#include "../status.h"
#include "../text.h"
#include "picture.h"

enum {
  WIDTH = 960,
  LEFT = 72,
  PLOT_WIDTH = 864,
  CHARTS_TOP = 118,
  HEADING = 32, /* above a chart */
  UNIT = 110,   /* pixels of 100% */
  AXIS = 34,    /* below a chart: lengths, and room */
  COLUMN = 3,   /* pixels that lengths share, if they must */
  MARKS = PLOT_WIDTH / COLUMN,
  ROW = 26, /* of the figures */
  FIGURE_LEFT = LEFT + 172,
  FIGURE_WIDTH = 176,
  BAR_WIDTH = 104,
  NAME_LETTERS = 20, /* that fit left of the figures */
  MAX_PANELS = 64
};
static const double most_use = 3; /* of a limit that is drawn in its place */

enum { MEMORY, WORK, N_SERIES };
static const char *const series_class[N_SERIES] = {"memory", "work"};

/* Marks are larger where more of the samples are. */
enum { N_SIZES = 4 };
static const struct {
  double share;
  const char *name, *words;
} size_class[N_SIZES] = {
  {0, "s0", "under 1%"}, {0.01, "s1", "1%"}, {0.03, "s2", "3%"}, {0.1, "s3", "10% and more"}};

/* A bucket, or the buckets of a column. */
typedef struct mark {
  double x;
  double low[N_SERIES], high[N_SERIES]; /* use */
  double share;                         /* of samples */
} mark;

typedef struct chart {
  const char *name;
  const kf_buckets *buckets;
  int base;          /* y of 0% */
  double top_use;    /* that the scale reaches */
  double largest;    /* use by a bucket */
  int64_t n_clipped; /* buckets */
  int n_marks;
  mark mark[MARKS];
} chart;

typedef struct scene {
  const kf_bucket_panel *panel;
  int32_t n;
  int32_t reference, best; /* panels: the one to compare tokens/s with, the one of the most */
  int32_t n_charts;        /* panels that have buckets */
  bool limited;            /* a panel has M_comp */
  double comp_s;           /* the largest; without any, the heaviest batch */
  double log_low, log_high;
} scene;

/* --------------------------------------------------------------------------- the layout */

static bool has_chart(const kf_bucket_panel *panel) {
  return panel->buckets && panel->buckets->n > 0;
}

static double batch_work(const kf_bucket *b) { return (double)b->batch_size * b->work_s; }

/* What work is drawn against. */
static double work_limit(const scene *s, const kf_buckets *k) {
  return k->comp_s > 0 ? k->comp_s : s->comp_s;
}

static double use_of(const scene *s, const kf_buckets *k, int64_t i, int series) {
  const kf_bucket *b = &k->bucket[i];
  if (series == MEMORY) return (double)b->batch_size * (double)b->len / (double)k->mem_tokens;
  return fmin(batch_work(b) / work_limit(s, k), 1e12);
}

static double length_x(const scene *s, double log_len) {
  return LEFT + PLOT_WIDTH * (log_len - s->log_low) / (s->log_high - s->log_low);
}

/* The lengths of all charts, but at least a factor of 4, so that there is a round one to tell. */
static void lay_out_lengths(scene *s) {
  for (int32_t p = 0; p < s->n; p++) {
    const kf_buckets *k = s->panel[p].buckets;
    if (!has_chart(&s->panel[p])) continue;
    s->log_low = fmin(s->log_low, kfi_log((double)k->bucket[0].len));
    s->log_high = fmax(s->log_high, kfi_log((double)k->bucket[k->n - 1].len));
  }
  double width = s->log_high - s->log_low, room = fmax(0.015 * width, (1.4 - width) / 2);
  s->log_low -= room;
  s->log_high += room;
}

static scene lay_out(const kf_bucket_panel *panel, int32_t n) {
  scene s = {.panel = panel, .n = n, .log_low = INFINITY, .log_high = -INFINITY};
  double heaviest = 0;
  for (int32_t p = n - 1; p >= 0; p--) { /* downwards: of equals, the first */
    const kf_buckets *k = panel[p].buckets;
    if (strcmp(panel[p].name, "equal_token") == 0) s.reference = p;
    if (panel[p].epoch->predicted_tokens_per_s >= panel[s.best].epoch->predicted_tokens_per_s)
      s.best = p;
    if (!has_chart(&panel[p])) continue;
    s.n_charts++;
    s.comp_s = fmax(s.comp_s, k->comp_s);
    for (int64_t i = 0; i < k->n; i++) heaviest = fmax(heaviest, batch_work(&k->bucket[i]));
  }
  s.limited = s.comp_s > 0;
  if (!s.limited) s.comp_s = heaviest > 0 ? heaviest : 1;
  if (s.n_charts) lay_out_lengths(&s);
  return s;
}

/* Marks of rising x: one a bucket, or one a column that has buckets. */
static void add_marks(const scene *s, chart *c) {
  const kf_buckets *k = c->buckets;
  double samples = 0;
  int64_t column_was = -1;
  for (int64_t i = 0; i < k->n; i++) samples += (double)k->bucket[i].count;
  for (int64_t i = 0; i < k->n; i++) {
    double x = length_x(s, kfi_log((double)k->bucket[i].len));
    int64_t column = k->n <= MARKS ? i : (int64_t)((x - LEFT) / COLUMN);
    if (column != column_was) {
      if (k->n > MARKS) x = LEFT + (double)column * COLUMN + COLUMN * 0.5;
      c->mark[c->n_marks++] = (mark){.x = x, .low = {INFINITY, INFINITY}};
      column_was = column;
    }
    mark *m = &c->mark[c->n_marks - 1];
    m->share += (double)k->bucket[i].count / samples;
    for (int series = 0; series < N_SERIES; series++) {
      double use = use_of(s, k, i, series);
      m->low[series] = fmin(m->low[series], use);
      m->high[series] = fmax(m->high[series], use);
    }
  }
}

/* The chart of a panel whose heading begins at y; returns where the next one begins. */
static int lay_out_chart(const scene *s, const kf_bucket_panel *panel, int y, chart *c) {
  *c = (chart){.name = panel->name, .buckets = panel->buckets};
  for (int64_t i = 0; i < c->buckets->n; i++) {
    double use = fmax(use_of(s, c->buckets, i, MEMORY), use_of(s, c->buckets, i, WORK));
    c->largest = fmax(c->largest, use);
    c->n_clipped += use > most_use;
  }
  c->top_use = fmin(fmax(c->largest, 1), most_use) + 0.08;
  c->base = y + HEADING + (int)ceil(UNIT * c->top_use);
  add_marks(s, c);
  return c->base + AXIS;
}

static double use_y(const chart *c, double use) { return c->base - UNIT * fmin(use, most_use); }

static int size_of(double share) {
  int k = N_SIZES - 1;
  while (share < size_class[k].share) k--;
  return k;
}

/* -------------------------------------------------------------------------- the writing */

static const kfi_picture picture = {
  .width = WIDTH,
  .left = LEFT,
  .untitled = "Rules for batches",
  .light = ".name{font-weight:600}\n"
           ".stem{stroke:#c3cad3;fill:none}\n"
           ".limit{stroke:#c22f52;stroke-width:1.5;stroke-dasharray:7 4;fill:none}\n"
           ".clipped{fill:#c22f52}\n"
           ".memory,.work{stroke-linecap:round;stroke-opacity:.85;fill:none}\n"
           ".memory{stroke:#2f6fc4}\n"
           ".work{stroke:#f0a030}\n"
           ".s0{stroke-width:3.4}.s1{stroke-width:4.6}.s2{stroke-width:6}.s3{stroke-width:8}\n"
           ".memory.s0{stroke-width:4.5}.memory.s1{stroke-width:6}.memory.s2{stroke-width:8}\n"
           ".memory.s3{stroke-width:10.5}\n"
           ".track{fill:#edf0f3}\n"
           ".imbalance-bar{fill:#c22f52}.memory-bar{fill:#2f6fc4}.work-bar{fill:#f0a030}\n"
           ".speed-bar{fill:#12804a}\n",
  .dark = ".axis{stroke:#6b7684}.stem{stroke:#475160}.limit{stroke:#ff7a98}.clipped{fill:#ff7a98}\n"
          ".memory{stroke:#5a9bf0}.work{stroke:#f5b14d}.track{fill:#222932}\n"
          ".imbalance-bar{fill:#ff7a98}.memory-bar{fill:#5a9bf0}.work-bar{fill:#f5b14d}\n"
          ".speed-bar{fill:#4fd08a}\n",
};

/* A name, cut where it is longer than so many letters. Those beyond U+0FFF count as two. */
static void put_name(kfi_writer *b, const char *name, int letters) {
  char shown[4 * 2 * NAME_LETTERS + 1];
  size_t n = 0, letter;
  uint32_t code;
  for (int width = 0; name[n]; n += letter ? letter : 1) {
    letter = kfi_text_character(name + n, &code);
    width += letter && code > 0xfff ? 2 : 1;
    if (width > letters) break;
  }
  memcpy(shown, name, n);
  shown[n] = 0;
  kfi_put_xml(b, shown);
  if (name[n]) kfi_put(b, "\xe2\x80\xa6");
}

static void put_header(kfi_writer *b, const scene *s, int height, const char *title) {
  const kf_bucket_panel *best = &s->panel[s->best], *reference = &s->panel[s->reference];
  double from = reference->epoch->predicted_tokens_per_s;
  kfi_picture sized = picture;
  sized.height = height;
  kfi_put_picture(b, &sized, title);
  kfi_put(b, "<text class=\"big\" x=\"%d\" y=\"60\">", LEFT);
  put_name(b, best->name, NAME_LETTERS);
  if (best != reference && from > 0) {
    kfi_put(b, ": ");
    kfi_put_fixed(b, best->epoch->predicted_tokens_per_s / from, 2);
    kfi_put(b, "\xc3\x97 the tokens/s of ");
    put_name(b, reference->name, NAME_LETTERS);
    kfi_put(b, ", imbalance rate ");
    kfi_put_percent(b, reference->epoch->imbalance_rate);
    kfi_put(b, " \xe2\x86\x92 ");
  } else {
    kfi_put(b, s->n > 1 ? ": most tokens/s, imbalance rate " : ": imbalance rate ");
  }
  kfi_put_percent(b, best->epoch->imbalance_rate);
  kfi_put(b, "</text>\n");
}

/* What marks mean, where there are any. */
static void put_legend(kfi_writer *b, const scene *s, bool clipped) {
  if (!s->n_charts) return;
  int x = LEFT + 5;
  kfi_put(b, "<path class=\"memory s2\" d=\"M%d 82h0\"/><text x=\"%d\" y=\"86\">", x, x + 10);
  kfi_put(b, "memory of a full batch</text>\n");
  x += 180;
  kfi_put(b, "<path class=\"work s2\" d=\"M%d 82h0\"/><text x=\"%d\" y=\"86\">", x, x + 10);
  kfi_put(b, "its work</text>\n");
  x += 88;
  kfi_put(b, "<path class=\"limit\" d=\"M%d 82h24\"/><text x=\"%d\" y=\"86\">", x, x + 30);
  kfi_put(b, "limit of both</text>\n");
  x += 138;
  if (clipped) {
    kfi_put(b, "<path class=\"clipped\" d=\"M%d 86h9l-4.5 -8z\"/><text x=\"%d\" y=\"86\">", x,
            x + 15);
    kfi_put(b, "above ");
    kfi_put_number(b, most_use * 100, 0, true);
    kfi_put(b, "%%</text>\n");
  }
  kfi_put(b, "<text class=\"small\" x=\"%d\" y=\"107\">share of the samples:</text>\n", LEFT);
  x = LEFT + 136;
  for (int k = 0; k < N_SIZES; k++, x += k == 1 ? 76 : 50) {
    kfi_put(b, "<path class=\"memory %s\" d=\"M%d 103h0\"/>", size_class[k].name, x);
    kfi_put(b, "<text class=\"small\" x=\"%d\" y=\"107\">%s</text>\n", x + 9, size_class[k].words);
  }
}

/* The numbers of a rule, behind its name. */
static void put_heading(kfi_writer *b, const scene *s, const chart *c) {
  const kf_buckets *k = c->buckets;
  kfi_put(b, "<text x=\"%d\" y=\"%d\"><tspan class=\"name\">", LEFT,
          c->base - (int)ceil(UNIT * c->top_use) - 8);
  put_name(b, c->name, 2 * NAME_LETTERS);
  kfi_put(b, "</tspan><tspan class=\"small\" dx=\"12\">memory %" PRId64 " tokens \xc2\xb7 ",
          k->mem_tokens);
  double limit = work_limit(s, k);
  if (k->comp_s > 0 && k->rule != KF_RULE_EQUAL_TOKEN) {
    kfi_put(b, "work ");
    kfi_put_seconds(b, limit, false);
    if (k->match_len > 0) {
      kfi_put(b, ", as of ");
      kfi_put_number(b, k->match_len, 0, true);
      kfi_put(b, " tokens");
    }
  } else {
    kfi_put(b, s->limited ? "work not limited, drawn against "
                          : "work not limited, drawn against the heaviest batch, ");
    kfi_put_seconds(b, limit, false);
  }
  if (k->p > 0) {
    kfi_put(b, " \xc2\xb7 p ");
    kfi_put_fixed(b, k->p, 2);
  }
  kfi_put(b, " \xc2\xb7 %" PRId64 " length%s", k->n, k->n == 1 ? "" : "s");
  if (k->n > MARKS) kfi_put(b, " in %d columns", c->n_marks);
  if (c->n_clipped) {
    kfi_put(b, ", %" PRId64 " above ", c->n_clipped);
    kfi_put_number(b, most_use * 100, 0, true);
    kfi_put(b, "%%, up to ");
    kfi_put_number(b, c->largest * 100, 0, true);
    kfi_put(b, "%%");
  }
  kfi_put(b, "</tspan></text>\n");
}

static void put_uses(kfi_writer *b, const chart *c) {
  for (int half = 0; half / 2.0 <= c->top_use; half++) {
    double y = use_y(c, half / 2.0);
    kfi_put_at(b, half ? "<path class=\"grid\" d=\"M" : "<path class=\"axis\" d=\"M", LEFT, y);
    kfi_put(b, "h%d\"/>", PLOT_WIDTH);
    kfi_put_small(b, "end", LEFT - 6, y + 4);
    kfi_put(b, "%d%%</text>\n", half * 50);
  }
}

/* A round length: 500, 20k, 1M. */
static void put_length(kfi_writer *b, double len) {
  int k = len >= 0.999e9 ? 3 : len >= 0.999e6 ? 2 : len >= 999 ? 1 : 0;
  static const char *const unit[] = {"", "k", "M", "G"};
  static const double over[] = {1, 1e3, 1e6, 1e9};
  kfi_put_number(b, len / over[k], 0, true);
  kfi_put(b, "%s", unit[k]);
}

static void put_lengths(kfi_writer *b, const scene *s, const chart *c) {
  static const int digits[] = {1, 2, 5};
  const double ten = 2.302585092994046;
  double decade_px = PLOT_WIDTH / (s->log_high - s->log_low) * ten;
  int n_digits = decade_px > 110 ? 3 : 1;
  for (int d = 0; d * ten <= s->log_high; d++) {
    for (int k = 0; k < n_digits; k++) {
      double at = d * ten + kfi_log(digits[k]);
      if (at < s->log_low || at > s->log_high) continue;
      double x = length_x(s, at);
      kfi_put_at(b, "<path class=\"grid\" d=\"M", x, c->base);
      kfi_put(b, "v%d\"/>", -(int)ceil(UNIT * c->top_use));
      kfi_put_small(b, "middle", x, c->base + 17);
      put_length(b, kfi_exp(at));
      kfi_put(b, "</text>\n");
    }
  }
}

/* From the least to the largest use of either limit. */
static void put_stems(kfi_writer *b, const chart *c) {
  kfi_put(b, "<path class=\"stem\" d=\"M0 0");
  for (int i = 0; i < c->n_marks; i++) {
    const mark *m = &c->mark[i];
    kfi_put_at(b, "M", m->x, use_y(c, fmin(m->low[MEMORY], m->low[WORK])));
    kfi_put(b, "V");
    kfi_put_px(b, use_y(c, fmax(m->high[MEMORY], m->high[WORK])));
  }
  kfi_put(b, "\"/>\n");
}

/* A dot, or a line where a column has several uses. */
static void put_marks(kfi_writer *b, const chart *c, int series, int size) {
  bool open = false;
  for (int i = 0; i < c->n_marks; i++) {
    const mark *m = &c->mark[i];
    if (size_of(m->share) != size || m->low[series] > most_use) continue;
    if (!open)
      kfi_put(b, "<path class=\"%s %s\" d=\"", series_class[series], size_class[size].name);
    open = true;
    kfi_put_at(b, "M", m->x, use_y(c, m->low[series]));
    if (m->high[series] == m->low[series]) {
      kfi_put(b, "h0");
    } else {
      kfi_put(b, "V");
      kfi_put_px(b, use_y(c, m->high[series]));
    }
  }
  if (open) kfi_put(b, "\"/>\n");
}

static void put_clipped(kfi_writer *b, const chart *c) {
  if (!c->n_clipped) return;
  kfi_put(b, "<path class=\"clipped\" d=\"");
  for (int i = 0; i < c->n_marks; i++) {
    const mark *m = &c->mark[i];
    if (fmax(m->high[MEMORY], m->high[WORK]) <= most_use) continue;
    kfi_put_at(b, "M", m->x - 4.5, use_y(c, most_use));
    kfi_put(b, "h9l-4.5 -8z");
  }
  kfi_put(b, "\"/>\n");
}

static void put_chart(kfi_writer *b, const scene *s, const chart *c) {
  put_heading(b, s, c);
  put_uses(b, c);
  put_lengths(b, s, c);
  put_stems(b, c);
  kfi_put_at(b, "<path class=\"limit\" d=\"M", LEFT, use_y(c, 1));
  kfi_put(b, "h%d\"/>\n", PLOT_WIDTH);
  for (int series = 0; series < N_SERIES; series++)
    for (int size = N_SIZES - 1; size >= 0; size--) put_marks(b, c, series, size);
  put_clipped(b, c);
  kfi_put_small(b, "end", LEFT - 6, c->base + 17);
  kfi_put(b, "tokens</text>\n");
}

/* All charts; NULL: they are only laid out. Returns the y below them. */
static int put_charts(kfi_writer *b, const scene *s, bool *clipped) {
  chart c;
  int y = CHARTS_TOP;
  for (int32_t p = 0; p < s->n; p++) {
    if (!has_chart(&s->panel[p])) continue;
    y = lay_out_chart(s, &s->panel[p], y, &c);
    *clipped |= c.n_clipped > 0;
    if (b) put_chart(b, s, &c);
  }
  return y;
}

/* -------------------------------------------------------------------------- the figures */

enum { IMBALANCE, MEMORY_USE, COMPUTE_USE, SPEED, N_FIGURES };

/* What is not known is below 0. */
static double figure_of(const scene *s, int32_t p, int figure) {
  const kf_epoch *e = s->panel[p].epoch;
  double from = s->panel[s->reference].epoch->predicted_tokens_per_s;
  if (e->n_steps == 0) return -1;
  switch (figure) {
  case IMBALANCE: return e->imbalance_rate;
  case MEMORY_USE: return e->mean_memory_use;
  case COMPUTE_USE: return e->mean_compute_use > 0 ? e->mean_compute_use : -1;
  default: return from > 0 ? fmin(e->predicted_tokens_per_s / from, 1e12) : -1;
  }
}

/* A figure of all panels; the longest bar is the largest one, or 100% where that means all. */
static void put_figure(kfi_writer *b, const scene *s, int figure, int y) {
  static const char *const bar[] = {"imbalance-bar", "memory-bar", "work-bar", "speed-bar"};
  bool whole = figure == MEMORY_USE || figure == COMPUTE_USE;
  double largest = whole ? 1 : 1e-12;
  int x = FIGURE_LEFT + figure * FIGURE_WIDTH;
  for (int32_t p = 0; p < s->n; p++) largest = fmax(largest, figure_of(s, p, figure));
  for (int32_t p = 0; p < s->n; p++, y += ROW) {
    double value = figure_of(s, p, figure), width = BAR_WIDTH * value / largest;
    if (whole && value >= 0) {
      kfi_put(b, "<rect class=\"track\" x=\"%d\" y=\"%d\" height=\"12\" width=\"", x, y - 10);
      kfi_put_px(b, BAR_WIDTH / largest);
      kfi_put(b, "\"/>");
    }
    if (value > 0) {
      kfi_put(b, "<rect class=\"%s\" x=\"%d\" y=\"%d\" height=\"12\" width=\"", bar[figure], x,
              y - 10);
      kfi_put_px(b, fmax(width, 0.5));
      kfi_put(b, "\"/>");
    }
    kfi_put(b, "<text y=\"%d\" x=\"", y);
    kfi_put_px(b, x + (value < 0 ? 0 : whole ? fmax(width, BAR_WIDTH / largest) + 6 : width + 6));
    kfi_put(b, "\">");
    if (value < 0)
      kfi_put(b, "\xe2\x80\x93");
    else if (figure == SPEED || value >= 99.9995) /* percents would take seven digits */
      kfi_put_fixed(b, value, figure == SPEED ? 2 : 0), kfi_put(b, "\xc3\x97");
    else
      kfi_put_percent(b, value);
    kfi_put(b, "</text>\n");
  }
}

static void put_figures(kfi_writer *b, const scene *s, int y) {
  static const char *const words[] = {"imbalance rate", "mean memory use", "mean compute use",
                                      "tokens/s against "};
  for (int figure = 0; figure < N_FIGURES; figure++) {
    kfi_put(b, "<text class=\"small\" x=\"%d\" y=\"%d\">%s", FIGURE_LEFT + figure * FIGURE_WIDTH, y,
            words[figure]);
    if (figure == SPEED) put_name(b, s->panel[s->reference].name, 12);
    kfi_put(b, "</text>\n");
  }
  for (int32_t p = 0; p < s->n; p++) {
    kfi_put(b, "<text class=\"name\" x=\"%d\" y=\"%d\">", LEFT, y + ROW * (p + 1));
    put_name(b, s->panel[p].name, NAME_LETTERS);
    kfi_put(b, "</text>\n");
  }
  for (int figure = 0; figure < N_FIGURES; figure++) put_figure(b, s, figure, y + ROW);
}

/* ---------------------------------------------------------------------------- the whole */

static bool is_figure(double value) { return value >= 0 && isfinite(value); }

static kf_status check_buckets(const kf_buckets *k, int32_t p) {
  if (k->n < 0 || k->n > KF_MAX_SEQS || (k->n > 0 && !k->bucket) || k->mem_tokens < 1 ||
      !is_figure(k->comp_s) || !is_figure(k->match_len) || !is_figure(k->p))
    return kfi_fail(KF_EINVAL,
                    "kf_svg_buckets, panel %" PRId32 ": %" PRId64 " buckets, M_mem %" PRId64
                    " tokens, M_comp %g s of %g tokens, p %g, expected at least 1 token and finite "
                    "numbers from 0 up",
                    p, k->n, k->mem_tokens, k->comp_s, k->match_len, k->p);
  for (int64_t i = 0; i < k->n; i++) {
    const kf_bucket *at = &k->bucket[i];
    int64_t below = i > 0 ? at[-1].len : 0;
    if (at->len <= below || at->len > KF_MAX_LEN || at->count < 1 || at->batch_size < 1 ||
        !is_figure(batch_work(at)))
      return kfi_fail(KF_EINVAL,
                      "kf_svg_buckets, panel %" PRId32 ", bucket %" PRId64 ": %" PRId64
                      " samples of %" PRId64 " tokens and %g s in batches of %" PRId64
                      ", expected rising lengths and finite numbers above 0",
                      p, i, at->count, at->len, at->work_s, at->batch_size);
  }
  return KF_OK;
}

static kf_status check(const kf_bucket_panel *panel, int32_t n_panels) {
  if (n_panels < 1 || n_panels > MAX_PANELS)
    return kfi_fail(KF_EINVAL, "kf_svg_buckets: %" PRId32 " panels, expected 1 to %d", n_panels,
                    MAX_PANELS);
  for (int32_t p = 0; p < n_panels; p++) {
    const kf_epoch *e = panel[p].epoch;
    if (!panel[p].name || !e)
      return kfi_fail(KF_EINVAL, "kf_svg_buckets, panel %" PRId32 ": name or epoch is NULL", p);
    if (!is_figure(e->imbalance_rate) || !is_figure(e->mean_memory_use) ||
        !is_figure(e->mean_compute_use) || !is_figure(e->predicted_tokens_per_s))
      return kfi_fail(
        KF_EINVAL,
        "kf_svg_buckets, panel %" PRId32 ": imbalance rate %g, memory use %g, compute "
        "use %g, %g tokens/s, expected finite numbers from 0 up",
        p, e->imbalance_rate, e->mean_memory_use, e->mean_compute_use, e->predicted_tokens_per_s);
    kf_status status = panel[p].buckets ? check_buckets(panel[p].buckets, p) : KF_OK;
    if (status) return status;
  }
  return KF_OK;
}

kf_status kf_svg_buckets(const kf_bucket_panel *panel, int32_t n_panels, const char *title,
                         char **out) {
  if (!panel || !out) return kfi_fail(KF_EINVAL, "kf_svg_buckets: panel or out is NULL");
  kf_status status = check(panel, n_panels);
  if (status) return status;
  scene s = lay_out(panel, n_panels);
  bool clipped = false;
  int y = put_charts(NULL, &s, &clipped);
  kfi_writer b = {0};
  put_header(&b, &s, y + ROW * (n_panels + 1) + 14, title);
  put_legend(&b, &s, clipped);
  put_charts(&b, &s, &clipped);
  put_figures(&b, &s, y + 14);
  kfi_put(&b, "</svg>\n");
  return kfi_writer_take(&b, "the picture of rules for batches", out);
}
