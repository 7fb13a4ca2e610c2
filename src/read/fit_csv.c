/* SPDX-License-Identifier: Apache-2.0 */
/*
** Measured rows from CSV: a header that names the columns, one row a line.
**
**     step,rank,seq_len,seconds
**     0,0,4096,0.8213
**
** The rows are for a fit, so everything doubtful is refused and named: a row that is cut off, a
** field too many, a time of 0. What spreadsheets and data frames write is read: CRLF, a byte order
** mark, quoted fields, blanks about a field, 4096.0 for a whole number. Quoted line ends are not:
** no number needs them.
*/
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../status.h"
#include "../text.h"

enum { SEQ_LEN, SECONDS, RANK, N_KNOWN };
static const char *const known[N_KNOWN] = {"seq_len", "seconds", "rank"};

/* Where the known columns stand, from 0; -1: nowhere. */
typedef struct columns {
  int64_t at[N_KNOWN];
  int64_t n;
} columns;

static void skip_blanks(kfi_text *t) {
  while (t->at < t->end && (*t->at == ' ' || *t->at == '\t')) t->at++;
}

/* Past a field that nobody reads: quoted, a comma is not its end, and "" is a quote. */
static kf_status skip_field(kfi_text *t) {
  kfi_text start = *t;
  skip_blanks(t);
  if (!kfi_text_take(t, "\"")) {
    while (t->at < t->end && *t->at != ',') t->at++;
    return KF_OK;
  }
  while (t->at < t->end) {
    if (kfi_text_take(t, "\"\"")) continue;
    if (*t->at == '"') break;
    t->at++;
  }
  if (!kfi_text_take(t, "\"")) return kfi_text_bad(&start, "a quote that ends on the same line");
  skip_blanks(t);
  return KF_OK;
}

/* "4096", and "4096.0", which data frames make of it. */
static kf_status read_whole(kfi_text *t, int64_t min, int64_t max, int64_t *out) {
  kf_status status = kfi_text_int(t, min, max, out);
  if (status == KF_OK && kfi_text_take(t, ".0"))
    while (kfi_text_take(t, "0")) {}
  return status;
}

static kf_status read_number(kfi_text *t, int column, kf_fit_row *row) {
  kfi_text start = *t;
  kf_status status;
  int64_t rank;
  switch (column) {
  case SEQ_LEN:
    status = read_whole(t, 1, KF_MAX_LEN, &row->len);
    if (status) kfi_text_bad(&start, "seq_len, a whole number from 1 to 4294967296");
    return status;
  case SECONDS:
    status = kfi_text_real(t, 0, 86400, &row->seconds);
    if (!status && row->seconds > 0) return KF_OK;
    return kfi_text_bad(&start, "seconds, a number above 0 and at most 86400");
  default:
    status = read_whole(t, 0, KF_MAX_RANKS - 1, &rank);
    if (status) return kfi_text_bad(&start, "rank, a whole number from 0 to 1048575");
    row->rank = (int32_t)rank;
    return KF_OK;
  }
}

static kf_status read_field(kfi_text *t, int column, kf_fit_row *row) {
  skip_blanks(t);
  bool quoted = kfi_text_take(t, "\"");
  kf_status status = read_number(t, column, row);
  if (status) return status;
  if (quoted && !kfi_text_take(t, "\"")) return kfi_text_bad(t, "a quote behind the number");
  skip_blanks(t);
  return KF_OK;
}

static kf_status read_row(kfi_text *t, const columns *c, kf_fit_row *row) {
  kf_status status;
  *row = (kf_fit_row){0};
  for (int64_t k = 0; k < c->n; k++) {
    char expected[80];
    int column = k == c->at[SEQ_LEN]   ? SEQ_LEN
                 : k == c->at[SECONDS] ? SECONDS
                 : k == c->at[RANK]    ? RANK
                                       : N_KNOWN;
    status = column == N_KNOWN ? skip_field(t) : read_field(t, column, row);
    if (status) return status;
    bool last = k == c->n - 1;
    if (last ? t->at == t->end : kfi_text_take(t, ",")) continue;
    snprintf(expected, sizeof expected, "%s after field %" PRId64 " of %" PRId64,
             last ? "the end of the line" : "a comma", k + 1, c->n);
    return kfi_text_bad(t, expected);
  }
  return KF_OK;
}

/* Is this field, with its blanks and quotes, the name of a column? */
static bool is_name(kfi_text field, const char *name) {
  skip_blanks(&field);
  bool quoted = kfi_text_take(&field, "\"");
  if (!kfi_text_take(&field, name) || (quoted && !kfi_text_take(&field, "\""))) return false;
  skip_blanks(&field);
  return field.at == field.end;
}

static kf_status read_header(kfi_text *t, columns *c) {
  kfi_text line = *t;
  *c = (columns){.at = {-1, -1, -1}};
  do {
    kfi_text field = *t;
    kf_status status = skip_field(t);
    if (status) return status;
    field.end = t->at;
    for (int k = 0; k < N_KNOWN; k++) {
      if (!is_name(field, known[k])) continue;
      if (c->at[k] >= 0) return kfi_text_bad(&field, "every column only once");
      c->at[k] = c->n;
    }
    c->n++;
  } while (kfi_text_take(t, ","));
  if (t->at < t->end) return kfi_text_bad(t, "a comma or the end of the line");
  if (c->at[SEQ_LEN] < 0 || c->at[SECONDS] < 0)
    return kfi_text_bad(&line, "a header with the columns seq_len, seconds and maybe rank");
  return KF_OK;
}

/* The next line that is not blank, without its end; false behind the last. */
static bool next_line(kfi_text *t, const char *text_end) {
  while (t->end < text_end || t->line == 0) {
    const char *begin = t->line == 0 ? t->begin : t->end + 1;
    const char *newline = memchr(begin, '\n', (size_t)(text_end - begin));
    t->begin = t->at = begin;
    t->end = newline ? newline : text_end;
    t->line++;
    kfi_text rest = *t;
    if (rest.end > rest.begin && rest.end[-1] == '\r') rest.end--;
    skip_blanks(&rest);
    if (rest.at == rest.end) continue;
    return true;
  }
  return false;
}

/* A line's cursor, without the carriage return that may end it. */
static kfi_text content(const kfi_text *line) {
  kfi_text t = *line;
  if (t.end[-1] == '\r') t.end--;
  return t;
}

kf_status kf_fit_parse(const char *name, const char *text, size_t n_bytes, kf_fit_row **rows,
                       int64_t *n_rows) {
  if (!name) name = "rows";
  if (!rows || !n_rows || (!text && n_bytes > 0))
    return kfi_fail(KF_EINVAL, "%s: a NULL argument", name);
  const char *end = n_bytes ? text + n_bytes : text;
  if (n_bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) text += 3;
  kfi_text line = {.what = name, .begin = text, .at = text, .end = text};
  kf_status status;
  columns c;
  kf_fit_row *out = NULL;
  int64_t n = 0, n_lines = 0;

  if (n_bytes == 0 || !next_line(&line, end))
    return kfi_fail(KF_EINVAL, "%s: the text is empty, expected a header and rows", name);
  kfi_text t = content(&line);
  if ((status = read_header(&t, &c))) return status;
  for (kfi_text ahead = line; next_line(&ahead, end);) n_lines++;
  if (n_lines == 0 || n_lines > KF_MAX_SEQS)
    return kfi_fail(KF_EINVAL,
                    "%s: found %" PRId64 " rows below the header, expected 1 to %" PRId64, name,
                    n_lines, KF_MAX_SEQS);
  out = malloc((size_t)n_lines * sizeof *out);
  if (!out) return kfi_fail_memory((size_t)n_lines * sizeof *out, "measured rows");
  while (next_line(&line, end)) {
    t = content(&line);
    if ((status = read_row(&t, &c, &out[n++]))) goto fail;
  }
  *rows = out;
  *n_rows = n;
  return KF_OK;

fail:
  free(out);
  return status;
}
