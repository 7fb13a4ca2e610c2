/* SPDX-License-Identifier: Apache-2.0 */
/*
** Lengths of a data set from text: numbers of tokens, or shapes that become such, each maybe times
** a count. The grammar of a word:
**
**     word  = (length | width "x" height ["x" frames] ["+" text]) ["*" count]
**
** The text is read twice by the same code: once to check and count it, which gives the size of the
** array exactly (a count may be a thousand million), once to write it. So the first mistake in the
** text is the one that is named, and nothing is allocated for a text that has one.
**
** Nearly all of a large file is plain lengths, which a short loop of its own takes; ten million of
** them, 70 MB, take a quarter of a second. Whatever it does not take, right or wrong, goes to the
** strict reader.
*/
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../status.h"
#include "../text.h"

enum { PIXELS = 16, MAX_SIDE = 1 << 20, MAX_FRAMES = 1 << 20, PLAIN_DIGITS = 9 };

typedef struct reader {
  kfi_text line;   /* where reading stands. Its end is looked for when a message may need it */
  const char *end; /* of the text */
  int64_t n, n_tokens;
} reader;

/* A carriage return is a blank, so that files from Windows read as they look. */
static bool is_separator(char c) {
  return c == ' ' || c == ',' || c == '\n' || c == '\t' || c == '\r';
}

static bool at_separator(const kfi_text *t) { return t->at == t->end || is_separator(*t->at); }

/* To the next word; false if there is none. */
static bool next_word(reader *r) {
  const char *at = r->line.at;
  for (; at < r->end && is_separator(*at); at++) {
    if (*at != '\n') continue;
    r->line.line++;
    r->line.begin = at + 1;
    r->line.end = NULL;
  }
  r->line.at = at;
  return at < r->end;
}

/* Take a word that is a length and nothing else; what it leaves is not necessarily wrong. */
static bool take_plain(reader *r, int64_t *len) {
  const char *at = r->line.at, *end = r->end;
  int64_t value = 0;
  if (end - at > PLAIN_DIGITS) end = at + PLAIN_DIGITS;
  for (; at < end && *at >= '0' && *at <= '9'; at++) value = value * 10 + (*at - '0');
  if (value == 0 || (at < r->end && !is_separator(*at))) return false;
  r->line.at = at;
  *len = value;
  return true;
}

/* The rest of a shape, behind "WIDTHx". No overflow: 2^16 * 2^16 * 2^19 tokens at most. */
static kf_status read_shape(kfi_text *t, const kfi_text *start, int64_t width, int64_t *len) {
  int64_t height, frames = 1, text = 0;
  kf_status status;
  if (width > MAX_SIDE) return kfi_text_bad(start, "a width from 1 to 1048576 pixels");
  if ((status = kfi_text_int(t, 1, MAX_SIDE, &height))) return status;
  if (kfi_text_take(t, "x") && (status = kfi_text_int(t, 1, MAX_FRAMES, &frames))) return status;
  if (kfi_text_take(t, "+") && (status = kfi_text_int(t, 0, KF_MAX_LEN, &text))) return status;
  int64_t latent = 1 + (frames + 2) / 4; /* the first frame, and every 4 or part of 4 */
  *len = (width + PIXELS - 1) / PIXELS * ((height + PIXELS - 1) / PIXELS) * latent + text;
  if (*len > KF_MAX_LEN) return kfi_text_bad(start, "at most 4294967296 tokens a sample");
  return KF_OK;
}

static kf_status read_word(reader *r, int64_t *len, int64_t *count) {
  kfi_text *t = &r->line, start;
  kf_status status;
  if (!t->end) {
    const char *newline = memchr(t->at, '\n', (size_t)(r->end - t->at));
    t->end = newline ? newline : r->end;
    while (t->end[-1] == '\r') t->end--; /* not behind the word that begins at t->at */
  }
  start = *t;
  if ((status = kfi_text_int(t, 1, KF_MAX_LEN, len))) return status;
  bool shape = kfi_text_take(t, "x");
  if (shape && (status = read_shape(t, &start, *len, len))) return status;
  if (kfi_text_take(t, "*")) {
    if ((status = kfi_text_int(t, 1, KF_MAX_SEQS, count))) return status;
    return at_separator(t) ? KF_OK : kfi_text_bad(t, "a blank or a comma after a count");
  }
  if (at_separator(t)) return KF_OK;
  return kfi_text_bad(t, shape ? "\"x\", \"+\", \"*\", a blank or a comma after a shape"
                               : "\"x\", \"*\", a blank or a comma after a length");
}

/* Read all of it, and write what it says to `len` if that is not NULL. */
static kf_status read_all(reader *r, int64_t *len) {
  while (next_word(r)) {
    const char *start = r->line.at;
    int64_t l, count = 1;
    if (!take_plain(r, &l)) {
      kf_status status = read_word(r, &l, &count);
      if (status) return status;
    }
    if (count > KF_MAX_SEQS - r->n || l * count > KF_MAX_TOKENS - r->n_tokens) /* 2^62 at most */
      return kfi_fail(KF_EINVAL,
                      "%s, line %" PRId64 ", column %" PRId64 ": found %" PRId64
                      " samples with %" PRId64 " tokens up to here, expected at most %" PRId64
                      " samples and 2^52 tokens",
                      r->line.what, r->line.line, (int64_t)(start - r->line.begin + 1),
                      r->n + count, r->n_tokens + l * count, KF_MAX_SEQS);
    if (len)
      for (int64_t i = 0; i < count; i++) len[r->n + i] = l;
    r->n += count;
    r->n_tokens += l * count;
  }
  return KF_OK;
}

kf_status kf_lens_parse(const char *name, const char *text, size_t n_bytes, int64_t **len,
                        int64_t *n) {
  if (!name) name = "lengths";
  if (!len || !n || (!text && n_bytes > 0)) return kfi_fail(KF_EINVAL, "%s: a NULL argument", name);
  const char *end = n_bytes ? text + n_bytes : text;
  const reader start = {.line = {.what = name, .begin = text, .at = text, .line = 1}, .end = end};
  reader counting = start, writing = start;
  kf_status status = read_all(&counting, NULL);
  if (status) return status;
  if (counting.n == 0)
    return kfi_fail(KF_EINVAL, "%s: found no length, expected one such as 4096 or 832x480x81",
                    name);
  uint64_t n_out = 8 * (uint64_t)counting.n;
  int64_t *out = n_out <= SIZE_MAX ? malloc((size_t)n_out) : NULL;
  if (!out) return kfi_fail_memory((size_t)n_out, "lengths");
  read_all(&writing, out); /* what was right once is right again */
  *len = out;
  *n = counting.n;
  return KF_OK;
}
