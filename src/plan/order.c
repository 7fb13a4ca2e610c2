/* SPDX-License-Identifier: Apache-2.0 */
/*
** Sequences by falling work. Keys are works rounded to single precision, with the sequence's
** number behind them, so that one 64-bit integer sorts both and ties are settled.
*/
#include <float.h>

#include "../sort.h"
#include "knapsack.h"

void kfi_order(const kfi_world *w, const kf_batch *batch, kfi_sorter *sorter, kfi_item *item) {
  int64_t n = batch->n_seqs;
  uint64_t *key = sorter->key;
  for (int32_t r = 0; r < batch->n_ranks; r++) {
    for (int64_t i = batch->rank_off[r]; i < batch->rank_off[r + 1]; i++) sorter->home[i] = r;
  }
  for (int64_t i = 0; i < n; i++) {
    double work = kfi_work(w, batch, i);
    uint64_t rising = kfi_sort_real(work < FLT_MAX ? work : FLT_MAX);
    key[i] = (~rising >> 32 << 32) | (uint64_t)i;
  }
  key = kfi_sort_high(key, sorter->spare, n);
  for (int64_t k = 0; k < n; k++) {
    int64_t i = (int64_t)(uint32_t)key[k];
    item[k] = (kfi_item){kfi_work(w, batch, i), kfi_factor(batch, i), batch->len[i],
                         sorter->home[i], (int32_t)i};
  }
}
