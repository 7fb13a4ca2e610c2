/* SPDX-License-Identifier: Apache-2.0 */
/* What the pictures of a report have in common: ticks, small words; see report.h. */
#include <math.h>
#include <string.h>

#include "report.h"

/* 1, 2 or 5 times a power of ten: the least of which at most `most` fit from low to high. */
static double nice_step(const kfi_axis *a, int most) {
  double span = a->high - a->low, power = pow(10, floor(log10(span / most)));
  static const double times[] = {1, 2, 5};
  for (int k = 0; k < 3; k++)
    if (power * times[k] * most >= span * (1 - 1e-9)) return power * times[k];
  return power * 10;
}

void kfi_put_svg(kfi_writer *w, const char *id, int height, const char *title, const char *desc) {
  kfi_put(w,
          "<svg id=\"%s\" viewBox=\"0 0 %d %d\" role=\"img\" aria-labelledby=\"%s-title\" "
          "aria-describedby=\"%s-desc\">\n<title id=\"%s-title\">%s</title>"
          "<desc id=\"%s-desc\">%s</desc>\n",
          id, KFI_PAGE, height, id, id, id, title, id, desc);
}

void kfi_put_text(kfi_writer *w, const char *kind, double x, double y) {
  kfi_put(w, "<text class=\"%s\" x=\"", kind);
  kfi_put_px(w, x);
  kfi_put(w, "\" y=\"");
  kfi_put_px(w, y);
  kfi_put(w, "\">");
}

/* 1.25e9; a step between ticks is at least 0.3% of what they reach, so that three decimals do. */
static void put_power(kfi_writer *w, double value) {
  int power = (int)floor(log10(fabs(value)) + 1e-9);
  kfi_put_number(w, value / pow(10, power), 3, true);
  kfi_put(w, "e%d", power);
}

/* As many decimals as the step between ticks has. */
static void put_value(kfi_writer *w, const kfi_ticks *t, double value, double step) {
  if (t->unit == KFI_SECONDS && value >= 1e5) {
    put_power(w, value);
    kfi_put(w, " s");
    return;
  }
  if (t->unit == KFI_SECONDS) {
    kfi_put_seconds(w, value, true);
    return;
  }
  if (t->unit == KFI_PERCENT) {
    kfi_put(w, value > step / 2 ? "+" : value < -step / 2 ? "\xe2\x88\x92" : "");
    kfi_put_number(w, fabs(value) * 100, step < 0.0099 ? 1 : 0, true);
    kfi_put(w, "%%");
    return;
  }
  int decimals = 0;
  for (double s = step; s < 0.99 && decimals < 4; s *= 10) decimals++;
  if (!t->whole && (step < 0.99e-4 || fabs(value) >= 1e6) && fabs(value) > step / 2)
    put_power(w, value);
  else
    kfi_put_number(w, value, decimals, false);
}

/* A label in the middle below its line, but within the picture. */
static void put_label_below(kfi_writer *w, const char *label, double px, double y) {
  const double half = 4.7 * (double)strlen(label); /* a digit is at most 9.4 wide */
  kfi_put_text(w, "tick mid", fmin(fmax(px, half), KFI_PAGE - half), y);
  kfi_put(w, "%s</text>\n", label);
}

void kfi_put_ticks(kfi_writer *w, const kfi_ticks *t) {
  double step = nice_step(t->axis, t->most);
  if (t->whole) step = fmax(step, 1);
  double first = ceil(t->axis->low / step - 1e-9), last = floor(t->axis->high / step + 1e-9);
  for (double k = first; k <= last; k++) {
    char label[64]; /* more than any has */
    kfi_writer into = {.data = label, .cap = sizeof label};
    put_value(&into, t, k * step, step);
    double px = kfi_axis_px(t->axis, k * step);
    kfi_put(w, "<path class=\"grid\" d=\"");
    if (t->upright)
      kfi_put_at(w, "M", t->top, px);
    else
      kfi_put_at(w, "M", px, t->top);
    kfi_put(w, t->upright ? "H" : "V");
    kfi_put_px(w, t->base);
    kfi_put(w, "\"/>");
    if (!t->upright) {
      put_label_below(w, label, px, t->base + 19);
      continue;
    }
    kfi_put_text(w, "tick end", t->top - 8, px + 4.5);
    kfi_put(w, "%s</text>\n", label);
  }
}

void kfi_put_fraction(kfi_writer *w, double part) {
  if (part == 0 || part >= 1e-4) {
    kfi_put_number(w, part * 100, part < 0.1 ? 2 : 1, true);
    kfi_put(w, "%%");
    return;
  }
  int power = (int)floor(log10(part));
  if (part / pow(10, power) >= 9.95) power++; /* 1.0 rather than 10.0 */
  kfi_put_number(w, part / pow(10, power), 1, false);
  kfi_put(w, " \xc3\x97 10<sup>\xe2\x88\x92%d</sup>", -power);
}

void kfi_put_loss(kfi_writer *w, double loss) {
  if (loss == 0 || (fabs(loss) >= 0.01 && fabs(loss) < 1e6))
    kfi_put_fixed(w, loss, 4);
  else
    kfi_put_real(w, loss);
}

void kfi_put_legend(kfi_writer *w, const char *kind, const char *word) {
  kfi_put(w, "<li><i class=\"%s\"></i>", kind);
  kfi_put_xml(w, word);
  kfi_put(w, "</li>");
}
