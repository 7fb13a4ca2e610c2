/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is reused from step to step; see memory.c. */
#ifndef KFI_MEMORY_H
#define KFI_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* A block that only grows; its content does not survive growing. */
typedef struct kfi_buffer {
  void *data;
  size_t n_bytes;
} kfi_buffer;

/* At least n_bytes, 64-byte aligned; NULL when memory ran out (the old block stays). */
void *kfi_buffer_reserve(kfi_buffer *buffer, size_t n_bytes);
void kfi_buffer_free(kfi_buffer *buffer);

/*
** Lay several arrays into one buffer: the first pass adds up the size, the second hands out
** pointers. `KFI_TAKE(&lay, double, n)` in both, kfi_layout_reserve between; false: no memory.
*/
typedef struct kfi_layout {
  char *base;
  size_t n_bytes;
} kfi_layout;

bool kfi_layout_reserve(kfi_layout *layout, kfi_buffer *buffer);
void *kfi_layout_take(kfi_layout *layout, size_t n, size_t elem_bytes);
#define KFI_TAKE(layout, type, n) ((type *)kfi_layout_take((layout), (size_t)(n), sizeof(type)))

#endif
