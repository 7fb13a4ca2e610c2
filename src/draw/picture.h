/* SPDX-License-Identifier: Apache-2.0 */
/* What pictures have in common: their head, points, blocks, scales and small texts. */
#ifndef KFI_PICTURE_H
#define KFI_PICTURE_H

#include "../writer.h"

/* The head of a picture: size, what it is called where it has no title, what it adds to the style
** sheet of all, on a light page and for a dark one; and its title above what is drawn from `left`
** on. The text of a page goes on with what is drawn and "</svg>". */
typedef struct kfi_picture {
  int width, height, left;
  const char *untitled, *light, *dark;
} kfi_picture;
void kfi_put_picture(kfi_writer *w, const kfi_picture *picture, const char *title);

/* A tenth of a pixel; and a point behind the letter of a path: "M12.5 7". */
void kfi_put_px(kfi_writer *w, double px);
void kfi_put_at(kfi_writer *w, const char *command, double x, double y);

/* A rectangle as a piece of a path. */
void kfi_put_block(kfi_writer *w, double x, double y, double width, double height);

/* A small text from, about or up to x; `anchor` is "start", "middle" or "end". Without its content
** and end. */
void kfi_put_small(kfi_writer *w, const char *anchor, double x, double y);

/* low .. high onto pixels; what lies beyond is drawn at the end. */
typedef struct kfi_axis {
  double low, high;
  double at_low, at_high;
} kfi_axis;

double kfi_axis_px(const kfi_axis *axis, double value);

#endif
