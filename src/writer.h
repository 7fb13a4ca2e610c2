/* SPDX-License-Identifier: Apache-2.0 */
/*
** Text that grows: what pictures and metrics are written into. After a failed allocation every
** call does nothing, and kfi_writer_take says so once, at the end.
**
** Numbers never pass through "%f" or "%g": printf asks the locale for its decimal point, and a
** comma there would ruin an SVG, a JSON line or a Prometheus file.
*/
#ifndef KFI_WRITER_H
#define KFI_WRITER_H

#include <stdbool.h>
#include <stddef.h>

#include "status.h"

typedef struct kfi_writer {
  char *data;
  size_t n, cap;
  size_t failed_bytes; /* what could not be had; 0: all is well */
} kfi_writer;

/* No "%f", "%g" or "%e" here. */
KFI_PRINTF(2, 3) void kfi_put(kfi_writer *w, const char *format, ...);

/*
** A text from outside: as the content of an XML element or attribute, as a JSON string and as the
** value of a Prometheus label, both with their quotes. What is not UTF-8 becomes a "?".
*/
void kfi_put_xml(kfi_writer *w, const char *text);
void kfi_put_json(kfi_writer *w, const char *text);
void kfi_put_label(kfi_writer *w, const char *text);

/* A number with so many decimals, or fewer if `trim` and the last are zeros. */
void kfi_put_number(kfi_writer *w, double value, int decimals, bool trim);
void kfi_put_fixed(kfi_writer *w, double value, int decimals);

/* Nine significant digits, as JSON and Prometheus read them: 0.0125, 1.25e-07. Must be finite. */
void kfi_put_real(kfi_writer *w, double value);

/* Digits as printf made them: whatever the locale's decimal point is becomes a ".", in place. */
void kfi_plain_point(char *digits);

/* Three or four digits and the unit that suits: "12.5 ms". */
void kfi_put_seconds(kfi_writer *w, double seconds, bool trim);
void kfi_put_percent(kfi_writer *w, double fraction);

/* Hand the text over, 0-terminated, for free(); or free it and say that memory ran out. */
kf_status kfi_writer_take(kfi_writer *w, const char *what, char **out);

#endif
