/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers that look random and are the same everywhere: no state but what the caller keeps. */
#ifndef KFI_CHANCE_H
#define KFI_CHANCE_H

#include <stdint.h>

#define KFI_MIX_STEP 0x9e3779b97f4a7c15u /* added to the state for each further output */

/* The first output of splitmix64 from this state. */
static inline uint64_t kfi_mix64(uint64_t state) {
  uint64_t z = state + KFI_MIX_STEP;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

#endif
