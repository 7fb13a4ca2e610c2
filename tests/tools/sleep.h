/* SPDX-License-Identifier: Apache-2.0 */
/* Sleep, for tests of what happens to who comes late. No result may depend on how long exactly. */
#ifndef SLEEP_H
#define SLEEP_H

#include <time.h>

static inline void sleep_s(double seconds) {
  struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
  nanosleep(&t, NULL);
}

#endif
