/* SPDX-License-Identifier: Apache-2.0 */
/*
** One value of a configuration: where it stands, read strictly, written so that it reads back.
**
** Numbers are decimal digits, as JSON writes them: no sign, no leading zero (010 is 8 in YAML 1.1
** and 10 in YAML 1.2), no 0x, no 1_000, no .inf. The locale is never asked.
*/
#ifndef KFI_VALUE_H
#define KFI_VALUE_H

#include <stdbool.h>

#include "../status.h"
#include "../writer.h"

/* A place in a file, for messages. `line` and `column` from 1; line 0: `name` says it all. */
typedef struct kfi_place {
  const char *name;
  int64_t line, column;
} kfi_place;

/* Record "train.yaml, line 3, column 7: SENTENCE"; KF_EINVAL. */
KFI_PRINTF(2, 3) kf_status kfi_value_fail(const kfi_place *at, const char *format, ...);

/* A text for a message: cut off where it is long, and nothing in it that moves a cursor. */
enum { KFI_SHOWN = 64 };
const char *kfi_value_show(const char *text, char out[KFI_SHOWN]);

/* True if `text` is such a number, min <= *out <= max. A real is rounded right, whatever its
** digits: what kfi_value_digits wrote comes back to the bit. */
bool kfi_value_whole(const char *text, int64_t min, int64_t max, int64_t *out);
bool kfi_value_real(const char *text, double min, double max, double *out);

/* UTF-8 without control characters? */
bool kfi_value_is_text(const char *text);

/* The fewest digits, 17 at most, that read back to the same bits. */
enum { KFI_DIGITS = 40 };
const char *kfi_value_digits(double value, char out[KFI_DIGITS]);

/* A text (kfi_value_is_text) as a YAML scalar, in quotes where it must be. */
void kfi_value_put_text(kfi_writer *w, const char *text);

#endif
