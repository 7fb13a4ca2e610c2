/* SPDX-License-Identifier: Apache-2.0 */
/* No room for the stacks of threads. Include cmocka.h first. */
#ifndef NO_ROOM_H
#define NO_ROOM_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/resource.h>

/* Sanitizers need the address space for their shadow; the gcc build tests this. */
static inline bool can_take_room(void) {
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  return false;
#endif
#endif
  return true;
}

/* Leave 4 MB of address space; returns what to hand to give_room(). */
static inline struct rlimit take_room(void) {
  struct rlimit before, tight;
  long pages = 0;
  FILE *statm = fopen("/proc/self/statm", "r");
  assert_true(statm && fscanf(statm, "%ld", &pages) == 1 && fclose(statm) == 0);
  getrlimit(RLIMIT_AS, &before);
  tight = before;
  tight.rlim_cur = (rlim_t)pages * 4096 + (4 << 20);
  setrlimit(RLIMIT_AS, &tight);
  return before;
}
static inline void give_room(struct rlimit before) { setrlimit(RLIMIT_AS, &before); }

#endif
