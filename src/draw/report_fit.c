/* SPDX-License-Identifier: Apache-2.0 */
/*
** What the scheduler expected of a rank and step, and what it took: to the left measured over
** predicted, where the diagonal is a perfect prediction; to the right how often it is how far off.
**
**     measured |      .·/        |     _##_
**              |   .·'/          |   _######_
**              |.·'/_________    |_.##########._____
**                   predicted      -10%  0  +10%
**
** Of many points those that fall on a spot where one is drawn already are left out, so that a
** million take no more room than the plot has spots. What is far beyond all others is drawn at the
** edge, as in a column of its own.
*/
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "report.h"

enum {
  TOP = 30,
  BASE = 350,
  HEIGHT = 394,
  LEFT = KFI_PLOT_LEFT,
  RIGHT = LEFT + (BASE - TOP), /* a square */
  BINS_LEFT = 470,
  BINS_RIGHT = KFI_PLOT_RIGHT - 18, /* room for half of the last label */
  N_BINS = 41,                      /* odd: one stands over 0 */
  SPOT = 3,                         /* pixels */
  SPOTS = (BASE - TOP) / SPOT + 1,
  ALL_POINTS = 1500 /* up to so many are drawn one and all */
};

typedef struct scene {
  const kf_report *in;
  kfi_axis x, y;        /* seconds, the same range */
  double edge;          /* errors are counted from -edge to edge */
  double mean_s, off_s; /* of what was measured; mean of |measured - predicted| */
  double typical;       /* median of |error| */
  int64_t n_beyond;     /* points beyond the axes */
  int64_t bin[N_BINS];
} scene;

/* measured / predicted - 1; what was not expected at all counts as far too long. */
static double error_of(const kf_report *in, int64_t i) {
  double predicted = in->predicted_s[i], measured = in->measured_s[i];
  if (predicted == measured) return 0;
  return predicted > 0 ? fmin(measured / predicted - 1, 1e6) : 1e6;
}

/* The 0.98 quantile, with the least and the largest. */
static double most_of(const kfi_report *r, const double *value, double *low, double *high) {
  int64_t n = r->in->n_points;
  memcpy(r->spare, value, (size_t)n * sizeof *value);
  *low = fmin(*low, kf_quantile(r->spare, n, 0));
  *high = fmax(*high, kf_quantile(r->spare, n, 1));
  return kf_quantile(r->spare, n, 0.98);
}

static void lay_out_axes(const kfi_report *r, scene *s) {
  double low = INFINITY, high = 0;
  double most = most_of(r, r->in->predicted_s, &low, &high);
  most = fmax(most, most_of(r, r->in->measured_s, &low, &high));
  if (high > 1.6 * most) high = 1.15 * most; /* else all are seen */
  if (low < 0.5 * high) low = 0;
  double room = fmax(0.04 * (high - low), 0.02 * high + 1e-9);
  s->x = (kfi_axis){fmax(low - room, 0), high + room, LEFT, RIGHT};
  s->y = (kfi_axis){s->x.low, s->x.high, BASE, TOP};
}

static scene lay_out(const kfi_report *r) {
  scene s = {.in = r->in};
  static const double edges[] = {0.05, 0.1, 0.2, 0.5, 1};
  int64_t n = r->in->n_points;
  double sum = 0, off = 0;
  lay_out_axes(r, &s);
  for (int64_t i = 0; i < n; i++) {
    double predicted = r->in->predicted_s[i], measured = r->in->measured_s[i];
    sum += measured;
    off += fabs(measured - predicted);
    s.n_beyond += fmax(measured, predicted) > s.x.high;
    r->spare[i] = fabs(error_of(r->in, i));
  }
  s.mean_s = sum / (double)n;
  s.off_s = off / (double)n;
  s.typical = kf_quantile(r->spare, n, 0.5);
  int k = 0;
  while (k < 4 && kf_quantile(r->spare, n, 0.95) > edges[k]) k++;
  s.edge = edges[k];
  for (int64_t i = 0; i < n; i++) {
    double part = (error_of(r->in, i) / s.edge + 1) / 2;
    s.bin[(int)floor(fmin(fmax(part, 0), 1) * (N_BINS - 1) + 0.5)]++;
  }
  return s;
}

static void put_words(const scene *s, kfi_writer *w) {
  int64_t n = s->in->n_points;
  kfi_put(w, "<p>A prediction is off by <b>");
  kfi_put_seconds(w, s->off_s, false);
  kfi_put(w, "</b> in the mean");
  if (s->mean_s > 0) {
    kfi_put(w, ", <b>");
    kfi_put_fraction(w, s->off_s / s->mean_s);
    kfi_put(w, "</b> of the mean busy time; half of them by less than ");
    kfi_put_fraction(w, s->typical);
  }
  kfi_put(w, ". ");
  if (n == 1)
    kfi_put(w, "The dot tells");
  else
    kfi_put(w, "Each of %" PRId64 " dots tells", n);
  kfi_put(w, " how long a rank was expected to be busy in a step, and how long it was");
  if (n > ALL_POINTS) kfi_put(w, "; where they fall on one another, one is drawn");
  if (s->n_beyond > 0) kfi_put(w, "; %" PRId64 " of them lie beyond the edge", s->n_beyond);
  kfi_put(w, ". The outermost columns hold all that is further off.</p>\n");
}

static void put_points(const scene *s, kfi_writer *w) {
  uint8_t seen[SPOTS][SPOTS] = {{0}};
  kfi_put(
    w, "<path class=\"axis\" d=\"M%d %dV%dH%d\"/><path class=\"diagonal\" d=\"M%d %dL%d %d\"/>\n",
    LEFT, TOP, BASE, RIGHT, LEFT, BASE, RIGHT, TOP);
  kfi_put(w, "<path class=\"dots\" d=\"");
  for (int64_t i = 0; i < s->in->n_points; i++) {
    double x = kfi_axis_px(&s->x, s->in->predicted_s[i]);
    double y = kfi_axis_px(&s->y, s->in->measured_s[i]);
    uint8_t *spot = &seen[(int)((y - TOP) / SPOT)][(int)((x - LEFT) / SPOT)];
    if (*spot && s->in->n_points > ALL_POINTS) continue;
    *spot = 1;
    kfi_put_at(w, "M", x, y);
    kfi_put(w, "h0");
  }
  kfi_put(w, "\"/>\n");
}

static void put_bins(const scene *s, kfi_writer *w) {
  double pitch = (double)(BINS_RIGHT - BINS_LEFT) / N_BINS;
  kfi_axis error = {-s->edge, s->edge, BINS_LEFT + pitch / 2, BINS_RIGHT - pitch / 2};
  int64_t most = 1;
  for (int k = 0; k < N_BINS; k++) most = s->bin[k] > most ? s->bin[k] : most;
  kfi_put_ticks(w, &(kfi_ticks){&error, 4, KFI_PERCENT, BASE - 4, BASE, false, false});
  kfi_put(w, "<path class=\"bins\" d=\"");
  for (int k = 0; k < N_BINS; k++) {
    if (s->bin[k] == 0) continue;
    double height = fmax((BASE - TOP) * (double)s->bin[k] / (double)most, 1);
    kfi_put_block(w, BINS_LEFT + k * pitch + pitch * 0.06, BASE - height, pitch * 0.88, height);
  }
  kfi_put(w, "\"/>\n<path class=\"axis\" d=\"M%d %dH%d\"/>\n", BINS_LEFT, BASE, BINS_RIGHT);
  kfi_put_at(w, "<path class=\"diagonal\" d=\"M", kfi_axis_px(&error, 0), TOP - 6);
  kfi_put(w, "V%d\"/>\n", BASE);
}

void kfi_report_fit(const kfi_report *r, kfi_writer *w) {
  if (r->in->n_points == 0) {
    kfi_put(w, "<p class=\"none\">No predictions were recorded.</p>\n");
    return;
  }
  scene s = lay_out(r);
  put_words(&s, w);
  kfi_put(w, "<figure>\n");
  kfi_put_svg(
    w, "fit-chart", HEIGHT, "Predicted and measured busy time",
    "To the left a dot per rank and step, measured over predicted seconds, and the diagonal "
    "of a perfect prediction; to the right how often a prediction is how far off.");
  kfi_put_ticks(w, &(kfi_ticks){&s.x, 4, KFI_SECONDS, TOP, BASE, false, false});
  kfi_put_ticks(w, &(kfi_ticks){&s.y, 5, KFI_SECONDS, LEFT, RIGHT, true, false});
  put_points(&s, w);
  put_bins(&s, w);
  kfi_put_text(w, "tick", LEFT, TOP - 14);
  kfi_put(w, "measured busy time</text>");
  kfi_put_text(w, "tick mid", (LEFT + RIGHT) / 2.0, BASE + 38);
  kfi_put(w, "predicted busy time</text>");
  kfi_put_text(w, "tick mid", (BINS_LEFT + BINS_RIGHT) / 2.0, BASE + 38);
  kfi_put(w, "measured / predicted \xe2\x88\x92 1</text>\n</svg>\n</figure>\n");
}
