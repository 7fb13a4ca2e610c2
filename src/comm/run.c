/* SPDX-License-Identifier: Apache-2.0 */
/* Copying rows: rows that touch on both sides are one memcpy, others a memcpy each. */
#include <string.h>

#include "comm.h"

/* Byte `from` of the run's bytes. */
static char *byte_at(const kfi_run *run, int64_t from) {
  if (run->stride == run->row_bytes) return run->data + from;
  return run->data + from / run->row_bytes * run->stride + from % run->row_bytes;
}

char *kfi_run_flat(const kfi_run *run, int64_t from, int64_t n_bytes) {
  bool flat = run->stride == run->row_bytes || from % run->row_bytes + n_bytes <= run->row_bytes;
  return flat ? byte_at(run, from) : NULL;
}

/* `to` and `source` are at byte `from`; a flat buffer has a stride of row_bytes. */
static void copy(char *to, int64_t to_stride, const char *source, int64_t source_stride,
                 const kfi_run *run, int64_t from, int64_t n_bytes) {
  int64_t row_bytes = run->row_bytes, at = from % row_bytes;
  if (to_stride == row_bytes && source_stride == row_bytes) {
    memcpy(to, source, (size_t)n_bytes);
    return;
  }
  while (n_bytes > 0) {
    int64_t n = row_bytes - at < n_bytes ? row_bytes - at : n_bytes;
    memcpy(to, source, (size_t)n);
    if ((n_bytes -= n) == 0) break; /* no pointer beyond the last row */
    to += to_stride - at;
    source += source_stride - at;
    at = 0;
  }
}

void kfi_run_copy(const kfi_run *to, const kfi_run *source, int64_t from, int64_t n_bytes) {
  copy(byte_at(to, from), to->stride, byte_at(source, from), source->stride, to, from, n_bytes);
}

void kfi_run_pack(const kfi_run *run, int64_t from, int64_t n_bytes, char *flat) {
  copy(flat, run->row_bytes, byte_at(run, from), run->stride, run, from, n_bytes);
}

void kfi_run_unpack(const kfi_run *run, int64_t from, int64_t n_bytes, const char *flat) {
  copy(byte_at(run, from), run->stride, flat, run->row_bytes, run, from, n_bytes);
}
