/* SPDX-License-Identifier: Apache-2.0 */
/*
** A training run as a page. In the order of the data:
**
**   report_check.c     refuses what cannot be drawn
**   report.c           what the steps come to; the page: head, headline, facts, sections
**   report_style.c     its style sheet, light and dark, still and moving
**   report_plot.c      ticks and small words
**   report_timeline.c  a few steps, a row per rank, a variant above the other
**   report_curve.c     imbalance and loss over the steps
**   report_fit.c       measured over predicted seconds
**   report_routing.c   one step's tokens on their way
**
** Pictures are SVG within the page, KFI_PAGE units wide, and take the width that the page has.
** Texts of the caller stand outside of them, in HTML, which breaks lines; the pictures hold only
** words whose lengths we know. A picture that needs memory and gets none says so to the writer,
** which kf_report_html asks once, at the end.
*/
#ifndef KFI_REPORT_H
#define KFI_REPORT_H

#include <math.h>

#include "picture.h"

enum { KFI_PAGE = 800, KFI_PLOT_LEFT = 62, KFI_PLOT_RIGHT = 790 };

#define KFI_MOST_SECONDS 1e9
#define KFI_MOST_LOSS 1e12 /* what is beyond is left out, as what is not a number */

/* What all steps of a variant come to. */
typedef struct kfi_variant_sums {
  double *imbalance;    /* (n_steps) max/mean of the ranks' busy seconds; 0/0 counts as 1 */
  double step_s;        /* median */
  double max_over_mean; /* median */
} kfi_variant_sums;

/* What both variants did in the steps that both have. */
typedef struct kfi_common {
  int64_t n_steps, n_losses; /* n_losses: of them, with two losses that are numbers */
  double sum_s[2];
  double last_loss[2];
  double apart; /* largest |b - a| / max(|a|, |b|) of the losses */
} kfi_common;

typedef struct kfi_report {
  const kf_report *in;
  kfi_variant_sums sums[2];
  kfi_common common;
  double *spare; /* (largest n_steps, n_points) for who wants to sort */
} kfi_report;

kf_status kfi_report_check(const kf_report *in);

void kfi_put_report_style(kfi_writer *w);

/* Each writes a section's content, below its heading. */
void kfi_report_timeline(const kfi_report *r, kfi_writer *w);
void kfi_report_imbalance(const kfi_report *r, kfi_writer *w);
void kfi_report_loss(const kfi_report *r, kfi_writer *w);
void kfi_report_fit(const kfi_report *r, kfi_writer *w);
void kfi_report_routing(const kfi_report *r, kfi_writer *w);

/* ----------------------------------------------------------------------- variants (report.c) */

static inline bool kfi_is_loss(double loss) { return fabs(loss) <= KFI_MOST_LOSS; }

static inline int64_t kfi_variant_step(const kf_report_variant *variant, int64_t i) {
  return variant->step ? variant->step[i] : i;
}

/* The next step that both variants have, from their i-th and j-th on; false where none is left:
** for (i = j = 0; kfi_variant_common(a, b, &i, &j); i++, j++) */
bool kfi_variant_common(const kf_report_variant *a, const kf_report_variant *b, int64_t *i,
                        int64_t *j);

double kfi_busy_s(const kf_counters *counters);

/* ---------------------------------------------------------------------- report_plot.c */

/* The head of a picture of this height, with its name and what it shows, for who cannot see it. */
void kfi_put_svg(kfi_writer *w, const char *id, int height, const char *title, const char *desc);

typedef enum kfi_unit { KFI_PLAIN, KFI_SECONDS, KFI_PERCENT } kfi_unit;

/* Lines and labels, at most `most`, of an axis across the picture whose plot reaches from y
** `top` to `base`, or of an upright one whose plot reaches from x `top` to `base`. */
typedef struct kfi_ticks {
  const kfi_axis *axis;
  int most;
  kfi_unit unit;
  double top, base;
  bool upright, whole; /* whole: at whole numbers only */
} kfi_ticks;

void kfi_put_ticks(kfi_writer *w, const kfi_ticks *ticks);

/* <text class=".." x=".." y="..">, without its content and end. */
void kfi_put_text(kfi_writer *w, const char *kind, double x, double y);

/* A small number in HTML: 12.3%, 0.04%, 3.1 x 10^-6. */
void kfi_put_fraction(kfi_writer *w, double part);

/* A loss: 0.4123, 1.2e-05. */
void kfi_put_loss(kfi_writer *w, double loss);

/* What a colour means: <li>; between "<ul class=\"legend\">" and "</ul>". `word` is escaped. */
void kfi_put_legend(kfi_writer *w, const char *kind, const char *word);

#endif
