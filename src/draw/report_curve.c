/* SPDX-License-Identifier: Apache-2.0 */
/*
** What happened over the steps: imbalance and loss, the variants over each other. The first one is
** a broad pale line and the second a thin dark one, so that both are seen where they coincide.
**
** A plot has a column a pixel. Where there are more steps than columns, a column shows the least
** and the largest of its steps, so that no spike is lost and a million steps take no more room than
** 728.
*/
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "report.h"

enum {
  TOP = 10,
  BASE = 220,
  HEIGHT = 262,
  COLUMNS = KFI_PLOT_RIGHT - KFI_PLOT_LEFT,
};

typedef struct chart {
  const kf_report *in;
  const double *value[2]; /* (n_steps) of each variant; NULL: none. What is no loss is a gap. */
  kfi_axis x, y;
} chart;

static void lay_out_steps(chart *c) {
  kfi_axis *x = &c->x;
  *x = (kfi_axis){INFINITY, -INFINITY, KFI_PLOT_LEFT, KFI_PLOT_RIGHT};
  for (int32_t k = 0; k < c->in->n_variants; k++) {
    const kf_report_variant *variant = &c->in->variant[k];
    if (variant->n_steps == 0) continue;
    x->low = fmin(x->low, (double)kfi_variant_step(variant, 0));
    x->high = fmax(x->high, (double)kfi_variant_step(variant, variant->n_steps - 1));
  }
  if (!(x->high - x->low >= 1)) x->low -= 0.5, x->high += 0.5;
}

/* -------------------------------------------------------------------------- the writing */

/* A line from point to point, up where there is a gap. A point by itself is a dot. */
typedef struct pen {
  kfi_writer *w;
  bool down;
} pen;

static void draw_to(pen *p, double x, double y) {
  kfi_put_at(p->w, p->down ? "L" : "M", x, y);
  if (!p->down) kfi_put(p->w, "h0");
  p->down = true;
}

static void put_every_step(const chart *c, pen *p, int32_t k) {
  const kf_report_variant *variant = &c->in->variant[k];
  for (int64_t i = 0; i < variant->n_steps; i++) {
    if (kfi_is_loss(c->value[k][i]))
      draw_to(p, kfi_axis_px(&c->x, (double)kfi_variant_step(variant, i)),
              kfi_axis_px(&c->y, c->value[k][i]));
    else
      p->down = false;
  }
}

static void put_columns(const chart *c, pen *p, int32_t k) {
  const kf_report_variant *variant = &c->in->variant[k];
  for (int64_t i = 0; i < variant->n_steps;) {
    double low = INFINITY, high = -INFINITY;
    double column = floor(kfi_axis_px(&c->x, (double)kfi_variant_step(variant, i)));
    for (; i < variant->n_steps; i++) {
      if (floor(kfi_axis_px(&c->x, (double)kfi_variant_step(variant, i))) > column) break;
      if (!kfi_is_loss(c->value[k][i])) continue;
      low = fmin(low, c->value[k][i]);
      high = fmax(high, c->value[k][i]);
    }
    if (low > high) { /* all of them gaps */
      p->down = false;
      continue;
    }
    double x = fmin(column + 0.5, KFI_PLOT_RIGHT);
    draw_to(p, x, kfi_axis_px(&c->y, low));
    kfi_put(p->w, "V");
    kfi_put_px(p->w, kfi_axis_px(&c->y, high));
  }
}

/* A variant that is alone is not covered, and has the thin line. */
static const char *line_of(const chart *c, int32_t k) {
  return c->in->n_variants == 2 && k == 0 ? "variant-0" : "variant-1";
}

static void put_chart(const chart *c, kfi_writer *w) {
  kfi_put_ticks(w, &(kfi_ticks){&c->y, 6, KFI_PLAIN, KFI_PLOT_LEFT, KFI_PLOT_RIGHT, true, false});
  int most = c->x.high < 1e8 ? 8 : 4; /* long numbers */
  kfi_put_ticks(w, &(kfi_ticks){&c->x, most, KFI_PLAIN, TOP, BASE, false, true});
  kfi_put(w, "<path class=\"axis\" d=\"M%d %dH%d\"/>", KFI_PLOT_LEFT, BASE, KFI_PLOT_RIGHT);
  kfi_put_text(w, "tick mid", (KFI_PLOT_LEFT + KFI_PLOT_RIGHT) / 2.0, BASE + 38);
  kfi_put(w, "step</text>\n");
  for (int32_t k = 0; k < c->in->n_variants; k++) {
    if (!c->value[k]) continue;
    pen p = {w, false};
    kfi_put(w, "<path class=\"curve %s\" d=\"", line_of(c, k));
    if (c->in->variant[k].n_steps > COLUMNS)
      put_columns(c, &p, k);
    else
      put_every_step(c, &p, k);
    kfi_put(w, "\"/>\n");
  }
  kfi_put(w, "</svg>\n</figure>\n");
}

static void put_legend(const chart *c, kfi_writer *w) {
  kfi_put(w, "<ul class=\"legend\">");
  for (int32_t k = 0; k < c->in->n_variants; k++)
    if (c->value[k]) kfi_put_legend(w, line_of(c, k), c->in->variant[k].name);
  kfi_put(w, "</ul>\n<figure>\n");
}

static void put_columns_words(const chart *c, kfi_writer *w) {
  for (int32_t k = 0; k < c->in->n_variants; k++) {
    if (!c->value[k] || c->in->variant[k].n_steps <= COLUMNS) continue;
    kfi_put(
      w, " There are more steps than the picture has columns: a column reaches from the least to "
         "the largest of its steps.");
    return;
  }
}

/* ---------------------------------------------------------------------------- imbalance */

/* Up to the largest, unless that is one of a few far above all others, which are cut off. */
static double imbalance_top(const kfi_report *r, double *most) {
  double top = 1.1;
  *most = 1;
  for (int32_t k = 0; k < r->in->n_variants; k++) {
    int64_t n = r->in->variant[k].n_steps;
    if (n == 0) continue;
    memcpy(r->spare, r->sums[k].imbalance, (size_t)n * sizeof *r->spare);
    top = fmax(top, 1 + 1.3 * (kf_quantile(r->spare, n, 0.98) - 1));
    *most = fmax(*most, kf_quantile(r->spare, n, 1));
  }
  return *most < 1 + 1.5 * (top - 1) ? fmax(*most, 1.1) : top;
}

static void put_cut(const kfi_report *r, kfi_writer *w, double top, double most) {
  int64_t n = 0;
  for (int32_t k = 0; k < r->in->n_variants; k++)
    for (int64_t i = 0; i < r->in->variant[k].n_steps; i++) n += r->sums[k].imbalance[i] > top;
  if (n == 0) return;
  kfi_put(w, " %" PRId64 " step%s above the picture, up to ", n, n == 1 ? " is" : "s are");
  kfi_put_fixed(w, most, 2);
  kfi_put(w, ".");
}

void kfi_report_imbalance(const kfi_report *r, kfi_writer *w) {
  chart c = {.in = r->in};
  double most, top = imbalance_top(r, &most);
  int64_t n_steps = 0;
  for (int32_t k = 0; k < r->in->n_variants; k++) {
    c.value[k] = r->in->variant[k].n_steps > 0 ? r->sums[k].imbalance : NULL;
    n_steps += r->in->variant[k].n_steps;
  }
  if (n_steps == 0) {
    kfi_put(w, "<p class=\"none\">No steps were measured.</p>\n");
    return;
  }
  kfi_put(w,
          "<p>How long the busiest rank plans, routes and computes in a step, over the mean of all "
          "ranks: at 1 nobody waits for anybody. The median is ");
  for (int32_t k = 0; k < r->in->n_variants; k++) {
    if (!c.value[k]) continue;
    kfi_put(w, k > 0 && c.value[0] ? ", and <b>" : "<b>");
    kfi_put_fixed(w, r->sums[k].max_over_mean, 2);
    kfi_put(w, "</b> ");
    kfi_put_xml(w, r->in->variant[k].name);
  }
  kfi_put(w, ".");
  put_cut(r, w, top, most);
  put_columns_words(&c, w);
  kfi_put(w, "</p>\n");
  lay_out_steps(&c);
  c.y = (kfi_axis){1, top, BASE, TOP};
  put_legend(&c, w);
  kfi_put_svg(w, "imbalance-chart", HEIGHT, "Imbalance",
              "The busiest rank's time over the mean of all ranks, in each step of each run.");
  put_chart(&c, w);
}

/* --------------------------------------------------------------------------------- loss */

/* The scale; returns how many losses are left out. */
static int64_t lay_out_losses(chart *c) {
  int64_t n_gaps = 0;
  c->y = (kfi_axis){INFINITY, -INFINITY, BASE, TOP};
  for (int32_t k = 0; k < c->in->n_variants; k++) {
    for (int64_t i = 0; c->value[k] && i < c->in->variant[k].n_steps; i++) {
      double loss = c->value[k][i];
      n_gaps += !kfi_is_loss(loss);
      if (!kfi_is_loss(loss)) continue;
      c->y.low = fmin(c->y.low, loss);
      c->y.high = fmax(c->y.high, loss);
    }
  }
  double room = fmax(0.04 * (c->y.high - c->y.low), 0.01 * fmax(fabs(c->y.high), 1e-9));
  c->y.low -= room;
  c->y.high += room;
  return n_gaps;
}

static void put_losses_words(const kfi_report *r, kfi_writer *w) {
  const kfi_common *c = &r->common;
  if (c->n_losses == 0) return;
  if (r->in->n_variants == 1) {
    kfi_put(w, "The last one is <b>");
    kfi_put_loss(w, c->last_loss[0]);
    kfi_put(w, "</b>.");
    return;
  }
  if (c->apart == 0) {
    kfi_put(
      w, "Both runs have <b>the same loss, to the bit</b>, in all %" PRId64 " steps that both did.",
      c->n_losses);
    return;
  }
  kfi_put(w, "In the %" PRId64 " steps that both did, the losses differ by <b>", c->n_losses);
  kfi_put_fraction(w, c->apart);
  kfi_put(w, "</b> of their value at most; the last ones are ");
  kfi_put_loss(w, c->last_loss[0]);
  kfi_put(w, " and ");
  kfi_put_loss(w, c->last_loss[1]);
  kfi_put(w, ".");
}

void kfi_report_loss(const kfi_report *r, kfi_writer *w) {
  chart c = {.in = r->in};
  for (int32_t k = 0; k < r->in->n_variants; k++)
    c.value[k] = r->in->variant[k].n_steps > 0 ? r->in->variant[k].loss : NULL;
  int64_t n_gaps = lay_out_losses(&c);
  kfi_put(w, "<p>");
  if (!(c.y.high > c.y.low)) {
    kfi_put(w, "<span class=\"none\">No loss was recorded.</span></p>\n");
    return;
  }
  put_losses_words(r, w);
  if (n_gaps > 0)
    kfi_put(w, " %" PRId64 " loss%s no number that can be drawn, and left out.", n_gaps,
            n_gaps == 1 ? " is" : "es are");
  put_columns_words(&c, w);
  kfi_put(w, "</p>\n");
  lay_out_steps(&c);
  put_legend(&c, w);
  kfi_put_svg(w, "loss-chart", HEIGHT, "Loss", "The loss of each step of each run.");
  put_chart(&c, w);
}
