/* SPDX-License-Identifier: Apache-2.0 */
/*
** Random numbers by key and counter: number c of a key is a hash of both, and nothing else. There
** is no state that a draw changes, so samples, tensors and ranks can be drawn in any order, alone
** or again, and come out the same to the bit. Philox (of curand and PyTorch) has the same shape and
** mixes better; splitmix64 is enough for noise and first values, passes the usual test suites, and
** is at hand.
**
** A key is hashed before it is counted from, so that the keys 0, 1, 2, .. have nothing in common.
** A normal number is made of the bits of its counter and of that beside it (2 i and 2 i + 1 go
** together): give each use a key or counters of its own.
*/
#ifndef TRAIN_RANDOM_H
#define TRAIN_RANDOM_H

#include <math.h>

#include <knapformer.h>

/* 64 bits: output `counter` of splitmix64, whose state begins at a hash of the key. Also the way to
** a key below a key: that of step s is train_bits(seed, s). */
static inline uint64_t train_bits(uint64_t key, uint64_t counter) {
  return kf_splitmix64(kf_splitmix64(key) + counter * KF_SPLITMIX64_STEP);
}

/* Above 0 and below 1, evenly: the middles of 2^52 equal parts. */
static inline double train_uniform(uint64_t key, uint64_t counter) {
  return ((double)(train_bits(key, counter) >> 12) + 0.5) * 0x1p-52;
}

/* Numbers 2 * pair and 2 * pair + 1 of train_normal, for the price of one (Box-Muller). */
static inline void train_normal_pair(uint64_t key, uint64_t pair, double out[2]) {
  double radius = sqrt(-2 * log(train_uniform(key, 2 * pair)));
  double angle = 6.283185307179586 * train_uniform(key, 2 * pair + 1);
  out[0] = radius * cos(angle);
  out[1] = radius * sin(angle);
}

/* Mean 0, deviation 1. In double: when it is rounded to a float, the last bits in which one libm
** differs from another are nearly always gone. */
static inline double train_normal(uint64_t key, uint64_t counter) {
  double pair[2];
  train_normal_pair(key, counter / 2, pair);
  return pair[counter % 2];
}

#endif
