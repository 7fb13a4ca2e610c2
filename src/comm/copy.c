/* SPDX-License-Identifier: Apache-2.0 */
/* Copying rows: rows that touch on both sides are one memcpy, others a memcpy each. */
#include <string.h>

#include "comm.h"

/* Byte `from` of the block's bytes. */
static char *byte_at(const kfi_block *block, int64_t from) {
  if (block->stride == block->row_bytes) return block->data + from;
  return block->data + from / block->row_bytes * block->stride + from % block->row_bytes;
}

char *kfi_block_flat(const kfi_block *block, int64_t from, int64_t n_bytes) {
  bool flat =
    block->stride == block->row_bytes || from % block->row_bytes + n_bytes <= block->row_bytes;
  return flat ? byte_at(block, from) : NULL;
}

/* `to` and `source` are at byte `from`; a flat buffer has a stride of row_bytes. */
static void copy(char *to, int64_t to_stride, const char *source, int64_t source_stride,
                 const kfi_block *block, int64_t from, int64_t n_bytes) {
  int64_t row_bytes = block->row_bytes, at = from % row_bytes;
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

void kfi_block_copy(const kfi_block *to, const kfi_block *source, int64_t from, int64_t n_bytes) {
  copy(byte_at(to, from), to->stride, byte_at(source, from), source->stride, to, from, n_bytes);
}

void kfi_block_pack(const kfi_block *block, int64_t from, int64_t n_bytes, char *flat) {
  copy(flat, block->row_bytes, byte_at(block, from), block->stride, block, from, n_bytes);
}

void kfi_block_unpack(const kfi_block *block, int64_t from, int64_t n_bytes, const char *flat) {
  copy(byte_at(block, from), block->stride, flat, block->row_bytes, block, from, n_bytes);
}
