/* SPDX-License-Identifier: Apache-2.0 */
/*
** Threads start with the call and end with it: some 20 us each, where a kernel takes milliseconds,
** and nothing is left behind for a fork, a signal or another library's threads to meet.
*/
#include "threads.h"

void kfi_threads_run(int64_t n, void *(*run)(void *), void *first, int64_t step) {
  char *base = first;
  int64_t n_started = 1;
  if (n < 1) return;
  for (; n_started < n; n_started++) {
    kfi_thread *thread = (kfi_thread *)(void *)(base + n_started * step);
    if (pthread_create(&thread->id, NULL, run, thread)) break;
  }
  run(base);
  for (int64_t i = 1; i < n_started; i++)
    pthread_join(((kfi_thread *)(void *)(base + i * step))->id, NULL);
}
