/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that last as long as one call of a kernel. */
#ifndef KFI_THREADS_H
#define KFI_THREADS_H

#include <pthread.h>
#include <stdint.h>

/* What a thread of its own knows begins with this. */
typedef struct kfi_thread {
  pthread_t id;
} kfi_thread;

/*
** Call run() for each of n workers, which lie step bytes apart from `first` on: the first one on
** the caller's thread, the others on their own, until all have returned.
**
** A thread that cannot be started is not missed if workers take their work from one counter: the
** others do its part, the caller's thread if need be everything.
*/
void kfi_threads_run(int64_t n, void *(*run)(void *), void *first, int64_t step);

#endif
