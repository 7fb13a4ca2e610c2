/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KFI_TREE_H
#define KFI_TREE_H

#include <stdint.h>

/* A tournament over keys: the winner in O(1), a changed key in O(log n). Ties: lower index. */
typedef struct kfi_tree {
  const double *key;
  int32_t *win; /* (2 * size) */
  int32_t n, size;
  double sign; /* 1: least wins, -1: largest */
} kfi_tree;

static inline int32_t kfi_tree_size(int32_t n) {
  int32_t size = 1;
  while (size < n) size *= 2;
  return size;
}

static inline int32_t kfi_tree_better(const kfi_tree *t, int32_t a, int32_t b) {
  if (b < 0) return a;
  if (a < 0) return b;
  return t->sign * t->key[b] < t->sign * t->key[a] ? b : a;
}

static inline void kfi_tree_update(kfi_tree *t, int32_t i) {
  for (int32_t k = (t->size + i) / 2; k >= 1; k /= 2) {
    t->win[k] = kfi_tree_better(t, t->win[2 * k], t->win[2 * k + 1]);
  }
}

static inline void kfi_tree_build(kfi_tree *t) {
  for (int32_t i = 0; i < t->size; i++) t->win[t->size + i] = i < t->n ? i : -1;
  for (int32_t k = t->size - 1; k >= 1; k--) {
    t->win[k] = kfi_tree_better(t, t->win[2 * k], t->win[2 * k + 1]);
  }
}

static inline int32_t kfi_tree_best(const kfi_tree *t) { return t->win[1]; }

/* The winner among keys first .. end-1; -1: none. */
static inline int32_t kfi_tree_range(const kfi_tree *t, int32_t first, int32_t end) {
  int32_t left = -1, right = -1;
  for (int32_t a = first + t->size, b = end + t->size; a < b; a /= 2, b /= 2) {
    if (a & 1) left = kfi_tree_better(t, left, t->win[a++]);
    if (b & 1) right = kfi_tree_better(t, t->win[--b], right);
  }
  return kfi_tree_better(t, left, right);
}

#endif
