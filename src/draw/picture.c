/* SPDX-License-Identifier: Apache-2.0 */
#include "picture.h"

#include <math.h>

static const char light[] =
  "<style>\n"
  "text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:#1d2530}\n"
  ".title{font-size:18px;font-weight:600}\n"
  ".big{font-size:15px;font-weight:600}\n"
  ".small{font-size:11px;fill:#5b6673}\n"
  ".page{fill:#ffffff}\n"
  ".grid{stroke:#e3e7ec;fill:none}\n"
  ".axis{stroke:#8a95a3;fill:none}\n";
static const char dark[] =
  "@media (prefers-color-scheme:dark){\n"
  "text{fill:#e6eaf0}.small{fill:#9aa5b3}.page{fill:#14181f}.grid{stroke:#2a313b}\n";

void kfi_put_picture(kfi_writer *b, const kfi_picture *p, const char *title) {
  kfi_put(b,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
          "height=\"%d\" role=\"img\">\n<title>",
          p->width, p->height, p->width, p->height);
  kfi_put_xml(b, title ? title : p->untitled);
  kfi_put(b, "</title>\n%s%s%s%s}\n</style>\n", light, p->light, dark, p->dark);
  kfi_put(b, "<rect class=\"page\" width=\"%d\" height=\"%d\"/>\n", p->width, p->height);
  if (!title) return;
  kfi_put(b, "<text class=\"title\" x=\"%d\" y=\"34\">", p->left);
  kfi_put_xml(b, title);
  kfi_put(b, "</text>\n");
}

void kfi_put_px(kfi_writer *w, double px) { kfi_put_number(w, px, 1, true); }

void kfi_put_at(kfi_writer *w, const char *command, double x, double y) {
  kfi_put(w, "%s", command);
  kfi_put_px(w, x);
  kfi_put(w, " ");
  kfi_put_px(w, y);
}

void kfi_put_block(kfi_writer *w, double x, double y, double width, double height) {
  /* two decimals: a hundred blocks one after the other must not drift from their scale */
  const double number[] = {x, y, width, height, -width};
  static const char *const command[] = {"M", " ", "h", "v", "h"};
  for (int k = 0; k < 5; k++) {
    kfi_put(w, "%s", command[k]);
    kfi_put_number(w, number[k], 2, true);
  }
  kfi_put(w, "z");
}

void kfi_put_small(kfi_writer *w, const char *anchor, double x, double y) {
  kfi_put(w, "<text class=\"small\" text-anchor=\"%s\" x=\"", anchor);
  kfi_put_px(w, x);
  kfi_put(w, "\" y=\"");
  kfi_put_px(w, y);
  kfi_put(w, "\">");
}

double kfi_axis_px(const kfi_axis *a, double value) {
  double part = (value - a->low) / (a->high - a->low);
  return a->at_low + fmin(fmax(part, 0), 1) * (a->at_high - a->at_low);
}
