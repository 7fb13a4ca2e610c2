/* SPDX-License-Identifier: Apache-2.0 */
/*
** A batch, and reading one from text.
**
** A batch is one block: the struct and its arrays; profiles only where there are any.
**
**     | kf_batch | rank_off[n_ranks + 1] | len[n_seqs] | profile[n_seqs] |
**
** The text is walked twice: once to count lines and words, which gives the size of the
** block, once to read the numbers. Growing an array instead would read once but allocate
** often, and a file of a million lengths is counted in about a millisecond.
*/
#include "batch.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../status.h"
#include "../text.h"

kf_status kfi_batch_alloc(int32_t n_ranks, int64_t n_seqs, kf_batch **out, int64_t **rank_off,
                          int64_t **len, kf_profile **profile) {
  uint64_t seq_bytes = 8 + (profile ? sizeof **profile : 0);
  uint64_t n_bytes = sizeof(kf_batch) + 8 * ((uint64_t)n_ranks + 1) + seq_bytes * (uint64_t)n_seqs;
  kf_batch *batch = n_bytes <= SIZE_MAX ? malloc((size_t)n_bytes) : NULL;
  if (!batch) return kfi_fail_memory((size_t)n_bytes, "a batch");
  *rank_off = (int64_t *)(batch + 1);
  *len = *rank_off + n_ranks + 1;
  *batch = (kf_batch){.n_ranks = n_ranks, .n_seqs = n_seqs, .rank_off = *rank_off, .len = *len};
  if (profile) batch->profile = *profile = (kf_profile *)(*len + n_seqs);
  *out = batch;
  return KF_OK;
}

void kf_batch_free(kf_batch *batch) { free(batch); }

/* A carriage return is a blank, so that files from Windows read as they look. */
static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

static const char *line_end(const char *at, const char *end) {
  const char *newline = memchr(at, '\n', (size_t)(end - at));
  return newline ? newline : end;
}

/* Lines and words. A last line without a newline counts; nothing after a newline does not. */
static void count(const char *at, const char *end, int64_t *n_lines, int64_t *n_words) {
  bool in_word = false, in_line = false;
  *n_lines = *n_words = 0;
  for (; at < end; at++) {
    bool word = *at != '\n' && !is_blank(*at);
    *n_words += word && !in_word;
    *n_lines += !in_line;
    in_word = word;
    in_line = *at != '\n';
  }
}

/* The lengths of one line, appended at len[*n_seqs]. */
static kf_status read_line(kfi_text *t, int64_t *len, int64_t *n_seqs, int64_t *n_tokens) {
  while (true) {
    while (t->at < t->end && is_blank(*t->at)) t->at++;
    if (t->at == t->end) return KF_OK;
    kfi_text start = *t;
    int64_t *l = &len[*n_seqs];
    kf_status status = kfi_text_int(t, 0, KF_MAX_LEN, l);
    if (status != KF_OK) return status;
    if (t->at < t->end && !is_blank(*t->at))
      return kfi_text_bad(t, "a blank or the end of the line after a length");
    if (*l > KF_MAX_TOKENS - *n_tokens) return kfi_text_bad(&start, "at most 2^52 tokens in all");
    *n_tokens += *l;
    *n_seqs += 1;
  }
}

kf_status kf_batch_parse(const char *name, const char *text, size_t n_bytes, kf_batch **out) {
  if (!name) name = "lengths";
  if (!out || (!text && n_bytes > 0)) return kfi_fail(KF_EINVAL, "%s: a NULL argument", name);
  if (n_bytes == 0)
    return kfi_fail(KF_EINVAL, "%s: the text is empty, expected one line per rank", name);
  const char *end = text + n_bytes;
  int64_t n_lines, n_words;
  count(text, end, &n_lines, &n_words);
  if (n_lines > KF_MAX_RANKS || n_words > KF_MAX_SEQS)
    return kfi_fail(KF_EINVAL,
                    "%s: found %" PRId64 " lines with %" PRId64
                    " lengths, expected at most %d lines (ranks) and %" PRId64 " lengths",
                    name, n_lines, n_words, KF_MAX_RANKS, KF_MAX_SEQS);

  kf_batch *batch = NULL;
  int64_t *rank_off = NULL, *len = NULL, n_seqs = 0, n_tokens = 0;
  kf_status status = kfi_batch_alloc((int32_t)n_lines, n_words, &batch, &rank_off, &len, NULL);
  if (status != KF_OK) return status;
  const char *at = text;
  rank_off[0] = 0;
  for (int64_t r = 0; r < n_lines; r++) {
    kfi_text line = {.what = name, .begin = at, .at = at, .end = line_end(at, end), .line = r + 1};
    status = read_line(&line, len, &n_seqs, &n_tokens);
    if (status != KF_OK) goto fail;
    rank_off[r + 1] = n_seqs;
    at = line.end + 1;
  }
  *out = batch;
  return KF_OK;

fail:
  kf_batch_free(batch);
  return status;
}
