/* SPDX-License-Identifier: Apache-2.0 */
/*
** Strict reading of short texts: mixes, bag specs, models, clusters, length files.
**
** A kfi_text is a cursor. Every reader either takes what it wants and moves on, or leaves the
** cursor where it is and records one sentence that names the text, the place, what stands
** there and what was expected:
**
**     bag spec "g1n8+g2nx", position 9: found "x", expected a whole number from 1 to 1048576
**     lens.txt, line 3, column 7: found "-5", expected a whole number from 0 to 4294967296
**
** Nothing here skips blanks, reads a sign, wraps around, or asks the locale: strtol and
** strtod do all four, which is why they are not used.
**
** A typical parser:
**
**     kfi_text t = kfi_text_open("bag spec", spec);
**     do {
**       if (!kfi_text_take(&t, "g")) return kfi_text_bad(&t, "\"g\"");
**       if ((status = kfi_text_int(&t, 1, KF_MAX_RANKS, &size))) return status;
**       ...
**     } while (kfi_text_take(&t, "+"));
**     return kfi_text_end(&t, "\"+\" or the end");
*/
#ifndef KFI_TEXT_H
#define KFI_TEXT_H

#include <stdbool.h>

#include "knapformer.h"

typedef struct kfi_text {
  const char *what;             /* in messages: "mix", "bag spec", or a file's name */
  const char *begin, *at, *end; /* begin of the text, or of the line if `line` is not 0 */
  int64_t line;                 /* from 1; 0: a text of one line, quoted whole in messages */
} kfi_text;

/* A cursor at the start of a 0-terminated text. */
kfi_text kfi_text_open(const char *what, const char *text);

/* True, and past it, if `literal` stands here. */
bool kfi_text_take(kfi_text *t, const char *literal);

/* True if the whole text is `word`, whatever the case (ASCII). Does not move. */
bool kfi_text_is(const kfi_text *t, const char *word);

/* The bytes of the UTF-8 character at s, and its code; 0 if there is none. */
size_t kfi_text_character(const char *s, uint32_t *code);

/* Digits only, min <= *out <= max, 0 <= min. */
kf_status kfi_text_int(kfi_text *t, int64_t min, int64_t max, int64_t *out);

/*
** Digits with an optional fraction and an optional exponent, min <= *out <= max, 0 <= min.
** Correctly rounded for up to 15 digits and powers of ten within 22 (that is one exact
** integer and one exact power, so a single rounding); within a few ulp beyond. Either way
** the bits are the same on every machine.
*/
kf_status kfi_text_real(kfi_text *t, double min, double max, double *out);

/* Record "found ..., expected EXPECTED" for the place where the cursor stands; KF_EINVAL. */
kf_status kfi_text_bad(const kfi_text *t, const char *expected);

/* KF_OK at the end of the text, else kfi_text_bad. */
kf_status kfi_text_end(const kfi_text *t, const char *expected);

/* One key of a text such as "d=3072,layers=57,heads=24". */
typedef struct kfi_field {
  const char *name;
  double min, max;
  enum { KFI_REAL, KFI_WHOLE, KFI_REAL_OR_INF } kind;
} kfi_field;

/*
** Read "key=value,key=value" to the end. value[i] is written for every field that occurs, and
** bit i of *seen is set; an unknown or repeated key is refused. At most 32 fields.
*/
kf_status kfi_text_fields(kfi_text *t, const kfi_field *field, int n_fields, double *value,
                          uint32_t *seen);

#endif
