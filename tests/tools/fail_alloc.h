/* SPDX-License-Identifier: Apache-2.0 */
/* Make an allocation of the library fail on purpose. */
#ifndef FAIL_ALLOC_H
#define FAIL_ALLOC_H

/*
** The k-th allocation from now (k = 1: the next one) returns NULL; k = 0 switches this off.
** Returns how many allocations there were since the last call. Each thread counts for itself, so
** that one rank of several can fail. The loop to write:
**
**     for (k = 1;; k++) {
**       fail_alloc(k);
**       status = ...;
**       if (fail_alloc(0) < k) break;   all allocations have had their turn
**       assert(status == KF_ENOMEM);
**     }
*/
long fail_alloc(long k);

#endif
