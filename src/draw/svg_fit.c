/* SPDX-License-Identifier: Apache-2.0 */
/*
** A fit as a picture: what was measured over what is predicted, and below it how far off that is
** at each length.
**
**     title
**     3.9% mean error, 4.1% on rows not seen; power law 11.3%
**     measured |        .·'/
**              |    .·'/       the diagonal is a perfect prediction
**              |.·'/__________ predicted
**     error    |-·-.-·--.-·-·  0 is a perfect prediction; the curve is the power law
**              |______________ length
**
** A point is a piece of one <path> per kind. Of many rows those that fall on a spot where one is
** drawn already are left out, so that a million take no more room than the picture has spots.
*/
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "../real.h"
#include "../status.h"
#include "picture.h"

enum {
  WIDTH = 960,
  LEFT = 72,
  PLOT_WIDTH = 864,
  TOP = 150, /* of the upper plot */
  PLOT_HEIGHT = 340,
  BASE = TOP + PLOT_HEIGHT,
  ERROR_TOP = 560,
  ERROR_HEIGHT = 160,
  ERROR_BASE = ERROR_TOP + ERROR_HEIGHT,
  HEIGHT = 772,
  SPOT = 2, /* pixels */
  SPOTS_WIDE = PLOT_WIDTH / SPOT + 2,
  SPOTS_HIGH = PLOT_HEIGHT / SPOT + 2,
  CURVE_POINTS = 96
};

typedef struct scene {
  const kf_fit_row *row;
  int64_t n;
  const uint8_t *outlier;
  const kf_fit *fit;
  kfi_axis x, y;          /* log seconds */
  kfi_axis length, error; /* log tokens; relative */
  double log_shortest, log_longest;
  uint8_t *spot; /* (SPOTS_WIDE, SPOTS_HIGH) what is drawn: 1 for a row, 2 for an outlier */
} scene;

static bool within(const kfi_axis *s, double value) { return value >= s->low && value <= s->high; }

static double predict(const kf_fit *f, double len) {
  return f->linear_s * len + f->quadratic_s * len * len + f->constant_s;
}

static double power_law(const kf_fit *f, double len) {
  return f->power_s * kfi_exp(f->power_p * kfi_log(len));
}

static bool is_out(const scene *s, int64_t i) { return s->outlier && s->outlier[i]; }

static void include(kfi_axis *s, double value) {
  s->low = fmin(s->low, value);
  s->high = fmax(s->high, value);
}

/* Room about what is drawn, also where that is a single value. */
static void widen(kfi_axis *s) {
  double room = fmax(0.04 * (s->high - s->low), 0.05);
  s->low -= room;
  s->high += room;
}

static void lay_out(scene *s) {
  const kfi_axis empty = {INFINITY, -INFINITY, 0, 0};
  double most = 0.05;
  s->x = s->y = s->length = empty;
  for (int64_t i = 0; i < s->n; i++) {
    double predicted = predict(s->fit, (double)s->row[i].len), seconds = s->row[i].seconds;
    include(&s->x, kfi_log(predicted));
    include(&s->y, kfi_log(predicted));
    include(&s->y, kfi_log(seconds));
    include(&s->length, kfi_log((double)s->row[i].len));
    if (!is_out(s, i)) most = fmax(most, fabs(seconds / predicted - 1));
  }
  for (int k = 0; k < 2; k++) { /* the power law is furthest off at the ends */
    double len = kfi_exp(k ? s->length.high : s->length.low);
    most = fmax(most, fmin(fabs(power_law(s->fit, len) / predict(s->fit, len) - 1), 0.6));
  }
  most = fmin(most * 1.08, 1);
  s->error = (kfi_axis){-most, most, ERROR_BASE, ERROR_TOP};
  s->log_shortest = s->length.low;
  s->log_longest = s->length.high;
  widen(&s->x);
  widen(&s->y);
  widen(&s->length);
  s->x.at_low = s->length.at_low = LEFT;
  s->x.at_high = s->length.at_high = LEFT + PLOT_WIDTH;
  s->y.at_low = BASE;
  s->y.at_high = TOP;
}

/* -------------------------------------------------------------------------- the writing */

static const kfi_picture picture = {
  .width = WIDTH,
  .height = HEIGHT,
  .left = LEFT,
  .untitled = "A fit",
  .light =
    ".fit{stroke:#12804a;stroke-width:1.5;fill:none}\n"
    ".power{stroke:#f0a030;stroke-width:2;stroke-dasharray:7 4;fill:none}\n"
    ".row{stroke:#2f6fc4;stroke-width:4.5;stroke-linecap:round;stroke-opacity:.55;fill:none}\n"
    ".outlier{stroke:#c22f52;stroke-width:1.3;fill:none}\n",
  .dark = ".axis{stroke:#6b7684}.fit{stroke:#4fd08a}.power{stroke:#f5b14d}.row{stroke:#5a9bf0}\n"
          ".outlier{stroke:#ff7a98}\n",
};

static void put_header(kfi_writer *b, const scene *s, const char *title) {
  const kf_fit *f = s->fit;
  kfi_put_picture(b, &picture, title);
  kfi_put(b, "<text class=\"big\" x=\"%d\" y=\"60\">", LEFT);
  kfi_put_percent(b, f->mape);
  kfi_put(b, " mean error, ");
  kfi_put_percent(b, f->holdout_mape);
  kfi_put(b, " on rows not seen; power law ");
  kfi_put_percent(b, f->power_mape);
  kfi_put(b, "</text>\n<text class=\"small\" x=\"%d\" y=\"80\">", LEFT);
  kfi_put(b, "%" PRId64 " rows \xc2\xb7 %" PRId64 " outliers \xc2\xb7 ", f->n_rows, f->n_outliers);
  kfi_put_seconds(b, f->linear_s * 1e3, false);
  kfi_put(b, " per 1000 tokens + ");
  kfi_put_seconds(b, f->quadratic_s * 1e6, false);
  kfi_put(b, " per 1000 tokens squared + ");
  kfi_put_seconds(b, f->constant_s, false);
  kfi_put(b, " per sequence</text>\n");
}

static void put_legend(kfi_writer *b, const scene *s) {
  kfi_put(b,
          "<path class=\"row\" d=\"M%d 103h0\"/><text x=\"%d\" y=\"107\">row</text>\n"
          "<path class=\"outlier\" d=\"M%d 103a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0\"/>"
          "<text x=\"%d\" y=\"107\">outlier, left out</text>\n"
          "<path class=\"fit\" d=\"M%d 103h22\"/><text x=\"%d\" y=\"107\">predicted</text>\n"
          "<path class=\"power\" d=\"M%d 103h24\"/><text x=\"%d\" y=\"107\">power law l^",
          LEFT + 4, LEFT + 14, LEFT + 64, LEFT + 78, LEFT + 202, LEFT + 230, LEFT + 312,
          LEFT + 342);
  kfi_put_fixed(b, s->fit->power_p, 2);
  kfi_put(b, "</text>\n");
}

/* Does a label at 1, 2 or 5 times a power of ten have room? Powers of ten have first. */
static bool has_label(int digit, double decade_px) {
  return digit == 1 || decade_px > (digit == 2 ? 110 : 160);
}

/* A line and a label at a value of a logarithmic scale; across or up the plot. */
static void put_tick(kfi_writer *b, const kfi_axis *s, double value, bool tokens, bool upright) {
  double px = kfi_axis_px(s, kfi_log(value));
  if (upright) {
    kfi_put_at(b, "<path class=\"grid\" d=\"M", LEFT, px);
    kfi_put(b, "h%d\"/>", PLOT_WIDTH);
    kfi_put_small(b, "end", LEFT - 6, px + 4);
  } else {
    double base = tokens ? ERROR_BASE : BASE;
    kfi_put_at(b, "<path class=\"grid\" d=\"M", px, base);
    kfi_put(b, "v%d\"/>", tokens ? -ERROR_HEIGHT : -PLOT_HEIGHT);
    kfi_put_small(b, "middle", px, base + 15);
  }
  if (tokens)
    kfi_put_number(b, value, 0, true);
  else
    kfi_put_seconds(b, value, true);
  kfi_put(b, "</text>\n");
}

static void put_ticks(kfi_writer *b, const kfi_axis *s, bool tokens, bool upright) {
  static const int digits[] = {1, 2, 5};
  const double ten = 2.302585092994046;
  double decade_px = fabs(s->at_high - s->at_low) / (s->high - s->low) * ten;
  int every = (int)fmin(ceil((upright ? 24 : 60) / decade_px), 1000);
  for (int d = (int)floor(s->low / ten); d <= s->high / ten; d++) {
    if (d % every) continue;
    for (int k = 0; k < 3; k++) {
      double at = d * ten + kfi_log(digits[k]), value = kfi_exp(at);
      if (at < s->low || at > s->high || !has_label(digits[k], decade_px)) continue;
      put_tick(b, s, value, tokens, upright);
    }
  }
}

static void put_error_ticks(kfi_writer *b, const scene *s) {
  static const double steps[] = {0.01, 0.02, 0.05, 0.1, 0.2, 0.5};
  int k = 0;
  while (k < 5 && s->error.high / steps[k] > 3.5) k++;
  for (int i = -3; i <= 3; i++) {
    double value = i * steps[k], y = kfi_axis_px(&s->error, value);
    if (fabs(value) > s->error.high) continue;
    kfi_put_at(b, i == 0 ? "<path class=\"fit\" d=\"M" : "<path class=\"grid\" d=\"M", LEFT, y);
    kfi_put(b, "h%d\"/>", PLOT_WIDTH);
    kfi_put_small(b, "end", LEFT - 6, y + 4);
    kfi_put(b, i > 0 ? "+" : "");
    kfi_put_number(b, value * 100, 0, true);
    kfi_put(b, "%%</text>\n");
  }
}

/* The rows of one kind in one plot, as one path; a spot that has one gets no second. */
static void put_rows(kfi_writer *b, scene *s, bool errors, bool outliers) {
  uint8_t kind = (uint8_t)((outliers ? 2 : 1) << (errors ? 2 : 0));
  kfi_put(b, "<path class=\"%s\" d=\"M0 0", outliers ? "outlier" : "row");
  for (int64_t i = 0; i < s->n; i++) {
    if (is_out(s, i) != outliers) continue;
    double len = (double)s->row[i].len, predicted = predict(s->fit, len);
    double seconds = s->row[i].seconds;
    double x =
      errors ? kfi_axis_px(&s->length, kfi_log(len)) : kfi_axis_px(&s->x, kfi_log(predicted));
    double y = errors ? kfi_axis_px(&s->error, fmin(seconds / predicted - 1, 10))
                      : kfi_axis_px(&s->y, kfi_log(seconds));
    int column = (int)((x - LEFT) / SPOT);
    int line = (int)((y - (errors ? ERROR_TOP : TOP)) / SPOT);
    uint8_t *spot = &s->spot[line * SPOTS_WIDE + column];
    if (*spot & kind && s->n > 2000) continue;
    *spot |= kind;
    kfi_put_at(b, "M", outliers ? x - 3.5 : x, y);
    kfi_put(b, outliers ? "a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0" : "h0");
  }
  kfi_put(b, "\"/>\n");
}

/* A curve over the lengths of the rows: the power law, or else the fit itself, over what the fit
** predicts; or how far it is off that over the length. The pen is up where it leaves the plot. */
static void put_curve(kfi_writer *b, const scene *s, bool errors, bool power) {
  bool down = false;
  kfi_put(b, "<path class=\"%s\" d=\"M0 0", power ? "power" : "fit");
  for (int k = 0; k <= CURVE_POINTS; k++) {
    double part = (double)k / CURVE_POINTS;
    double log_len = s->log_shortest + part * (s->log_longest - s->log_shortest);
    double len = kfi_exp(log_len), predicted = predict(s->fit, len);
    double seconds = fmin(fmax(power ? power_law(s->fit, len) : predicted, 1e-300), 1e300);
    const kfi_axis *across = errors ? &s->length : &s->x, *up = errors ? &s->error : &s->y;
    double x = errors ? log_len : kfi_log(predicted);
    double y = errors ? seconds / predicted - 1 : kfi_log(seconds);
    bool seen = within(across, x) && within(up, y);
    if (seen) kfi_put_at(b, down ? "L" : "M", kfi_axis_px(across, x), kfi_axis_px(up, y));
    down = seen;
  }
  kfi_put(b, "\"/>\n");
}

static void put_words(kfi_writer *b) {
  kfi_put(b,
          "<text x=\"%d\" y=\"%d\">Measured, over predicted</text>\n"
          "<text class=\"small\" text-anchor=\"end\" x=\"%d\" y=\"%d\">predicted</text>\n"
          "<text x=\"%d\" y=\"%d\">Measured / predicted - 1, over the length</text>\n"
          "<text class=\"small\" text-anchor=\"end\" x=\"%d\" y=\"%d\">tokens</text>\n",
          LEFT, TOP - 10, LEFT + PLOT_WIDTH, BASE + 32, LEFT, ERROR_TOP - 10, LEFT + PLOT_WIDTH,
          ERROR_BASE + 32);
}

static kf_status check(const kf_fit_row *rows, int64_t n_rows, const kf_fit *fit) {
  if (n_rows < 1 || n_rows > KF_MAX_SEQS)
    return kfi_fail(KF_EINVAL, "kf_svg_fit: %" PRId64 " rows, expected 1 to %" PRId64, n_rows,
                    KF_MAX_SEQS);
  for (int64_t i = 0; i < n_rows; i++) {
    double predicted = predict(fit, (double)rows[i].len);
    if (rows[i].len < 1 || rows[i].len > KF_MAX_LEN || !(rows[i].seconds > 0) ||
        isinf(rows[i].seconds) || !(predicted > 0) || isinf(predicted))
      return kfi_fail(KF_EINVAL,
                      "kf_svg_fit, row %" PRId64 ": %" PRId64
                      " tokens, measured %g s, predicted %g s, expected finite numbers above 0",
                      i, rows[i].len, rows[i].seconds, predicted);
  }
  return KF_OK;
}

kf_status kf_svg_fit(const kf_fit_row *rows, int64_t n_rows, const uint8_t *outlier,
                     const kf_fit *fit, const char *title, char **out) {
  if (!rows || !fit || !out) return kfi_fail(KF_EINVAL, "kf_svg_fit: rows, fit or out is NULL");
  kf_status status = check(rows, n_rows, fit);
  if (status) return status;
  scene s = {.row = rows, .n = n_rows, .outlier = outlier, .fit = fit};
  s.spot = calloc(SPOTS_WIDE, SPOTS_HIGH);
  if (!s.spot) return kfi_fail_memory((size_t)SPOTS_WIDE * SPOTS_HIGH, "the picture of a fit");
  kfi_writer b = {0};
  lay_out(&s);
  put_header(&b, &s, title);
  put_legend(&b, &s);
  put_words(&b);
  put_ticks(&b, &s.x, false, false);
  put_ticks(&b, &s.y, false, true);
  put_ticks(&b, &s.length, true, false);
  put_error_ticks(&b, &s);
  kfi_put(&b, "<path class=\"axis\" d=\"M%d %dv%dh%d\"/>\n", LEFT, TOP, PLOT_HEIGHT, PLOT_WIDTH);
  kfi_put(&b, "<path class=\"axis\" d=\"M%d %dv%dh%d\"/>\n", LEFT, ERROR_TOP, ERROR_HEIGHT,
          PLOT_WIDTH);
  put_curve(&b, &s, false, false);
  for (int errors = 0; errors < 2; errors++) {
    put_rows(&b, &s, errors, false);
    put_curve(&b, &s, errors, true);
    put_rows(&b, &s, errors, true);
  }
  kfi_put(&b, "</svg>\n");
  free(s.spot);
  return kfi_writer_take(&b, "the picture of a fit", out);
}
