/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated clock of knapformer sim: sim_clock.c. */
#ifndef SIM_H
#define SIM_H

#include "cli.h"

/* A rank takes `factor` times as long, in steps first .. last. */
typedef struct sim_spell {
  int32_t rank;
  double factor;
  int64_t first, last;
} sim_spell;

/* What the scheduler is not told, and has to learn. */
typedef struct sim_clock {
  kf_cost cost;
  double noise; /* standard deviation of a measured time, relative */
  uint64_t seed;
  sim_spell slow[CLI_MAX_LIST];  /* of what the rank computes: it has become slower */
  sim_spell pause[CLI_MAX_LIST]; /* of what is measured: something came in between */
  int n_slow, n_pauses;
} sim_clock;

/* One rank's step. */
typedef struct sim_times {
  double true_s;     /* compute by the true cost and slowness, and moving data as planned */
  double comm_s;     /* moving data, of true_s */
  double measured_s; /* with noise and pauses: what the scheduler gets to see */
  double home_s;     /* true, had every sequence stayed at home */
  int64_t samples;   /* whose first row the rank has */
} sim_times;

/* "RANK:FACTOR@FROM-TO"; `one_step`: "RANK:FACTOR@STEP". 0, or an exit code after saying what is
** wrong. */
int sim_read_spell(const char *command, const char *option, const char *text, int32_t n_ranks,
                   bool one_step, sim_spell *out);

/* How many times slower than the others a rank is in a step. */
double sim_slowness(const sim_clock *clock, int32_t rank, int64_t step);

/* What each rank of a planned step takes: out (n_ranks). */
void sim_run(const sim_clock *clock, int64_t step, const kf_batch *batch, const kf_plan *plan,
             sim_times *out);

#endif
