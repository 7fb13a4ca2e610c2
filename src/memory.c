/* SPDX-License-Identifier: Apache-2.0 */
/* Growing buffers: planner and comm allocate in their first steps and never again. */
#include <stdint.h>
#include <stdlib.h>

#include "memory.h"
#include "status.h"

#define ALIGN 64

void *kfi_buffer_reserve(kfi_buffer *buffer, size_t n_bytes) {
  if (buffer->data && n_bytes <= buffer->n_bytes) return buffer->data;
  size_t n =
    n_bytes + n_bytes / 4 + ALIGN; /* headroom: batches differ a little from step to step */
  n = (n + ALIGN - 1) / ALIGN * ALIGN;
  void *data = aligned_alloc(ALIGN, n);
  if (!data) {
    kfi_fail_memory(n, "working memory");
    return NULL;
  }
  free(buffer->data);
  buffer->data = data;
  buffer->n_bytes = n;
  return data;
}

void kfi_buffer_free(kfi_buffer *buffer) {
  free(buffer->data);
  *buffer = (kfi_buffer){0};
}

bool kfi_layout_reserve(kfi_layout *layout, kfi_buffer *buffer) {
  layout->base = kfi_buffer_reserve(buffer, layout->n_bytes);
  layout->n_bytes = 0;
  return layout->base;
}

void *kfi_layout_take(kfi_layout *layout, size_t n, size_t elem_bytes) {
  size_t at = layout->n_bytes;
  layout->n_bytes += (n * elem_bytes + ALIGN - 1) / ALIGN * ALIGN;
  return layout->base ? layout->base + at : NULL;
}
