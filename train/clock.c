/* SPDX-License-Identifier: Apache-2.0 */
/* Where a rank's time goes: the time between two marks belongs to a phase. */
#include <time.h>

#include "train.h"

static double seconds_of(clockid_t id) {
  struct timespec t;
  clock_gettime(id, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void train_clock_start(train_clock *c) {
  *c = (train_clock){.cpu_mark = seconds_of(CLOCK_THREAD_CPUTIME_ID),
                     .wall_mark = seconds_of(CLOCK_MONOTONIC)};
  c->wall_begin = c->wall_mark;
}

void train_clock_lap(train_clock *c, train_phase phase) {
  double cpu = seconds_of(CLOCK_THREAD_CPUTIME_ID), wall = seconds_of(CLOCK_MONOTONIC);
  c->cpu_s[phase] += cpu - c->cpu_mark;
  c->wall_s[phase] += wall - c->wall_mark;
  c->cpu_mark = cpu;
  c->wall_mark = wall;
}

double train_clock_busy(const train_clock *c) {
  double sum = 0;
  for (int i = 0; i < TRAIN_N_PHASES; i++)
    if (i != TRAIN_PHASE_WAIT) sum += c->cpu_s[i];
  return sum;
}

double train_clock_wall(const train_clock *c) { return c->wall_mark - c->wall_begin; }
