/* SPDX-License-Identifier: Apache-2.0 */
/*
** The online scheduler on local ranks: eight threads plan 80 steps together. Their clock is made
** up, so that the example is quick: attention is dearer than the scheduler was told, and from step
** 30 on rank 5 takes twice as long. The scheduler finds both, and gives rank 5 less to do.
**
**     cc scheduler_local.c $(pkg-config --cflags --libs knapformer) -pthread -o scheduler_local
*/
#include <pthread.h>
#include <stdio.h>

#include <knapformer.h>

enum { RANKS = 8, SAMPLES = 6, STEPS = 80, SLOW_RANK = 5, SLOW_FROM = 30 };

static kf_status result[RANKS];

/* How long a rank computes: all tokens that it holds, and its heads of whole sequences. */
static double made_up_seconds(const kf_plan *plan, const kf_batch *batch, int rank, int step) {
  double seconds = 0;
  for (int64_t h = plan->hold_off[rank]; h < plan->hold_off[rank + 1]; h++) {
    const kf_chunk *c = &plan->chunk[plan->hold[h]];
    double len = (double)batch->len[c->seq];
    seconds += 1e-5 * (double)c->length + 2e-9 * len * len * (double)c->heads / plan->heads;
  }
  if (rank == SLOW_RANK && step >= SLOW_FROM) seconds *= 2;
  return seconds + plan->comm_s[rank];
}

/* One rank's training loop. */
static kf_status train(kf_comm *comm, kf_step *step, kf_scheduler *scheduler) {
  const int rank = kf_comm_rank(comm);
  kf_status status;
  for (int s = 0; s < STEPS; s++) {
    int64_t len[SAMPLES]; /* what this rank's data loader drew */
    for (int i = 0; i < SAMPLES; i++) len[i] = 200 + (rank * 97 + s * 31 + i * 571) % 1500;
    const kf_rank_batch mine = {.n_seqs = SAMPLES, .len = len};
    const kf_batch *batch;
    const kf_plan *plan;
    if ((status = kf_step_schedule(step, scheduler, &mine, &batch, &plan))) return status;
    /* here rows are routed, layers computed, rows routed back; see route_local.c */
    double seconds = made_up_seconds(plan, batch, rank, s);
    if ((status = kf_scheduler_update_stats(scheduler, rank, seconds, NULL))) return status;
    if (rank == 0 && s % 10 == 9)
      printf("step %d: rank %d computes %d rows, all %d\n", s, SLOW_RANK,
             (int)plan->hold_rows[SLOW_RANK], (int)plan->figures.tokens);
  }
  return kf_step_settle(step, scheduler); /* the last times, too */
}

/* What the scheduler has to say, from one rank. */
static void log_line(void *user, kf_log_level level, const char *line) {
  (void)user, (void)level;
  puts(line);
}

static void *rank_main(void *arg) {
  kf_comm *comm = arg;
  const int rank = kf_comm_rank(comm);
  const kf_config config = {.model = "DiT-S", .rebalance_interval = 10};
  kf_scheduler_options *options = NULL;
  kf_scheduler *scheduler = NULL;
  kf_step *step = NULL;
  kf_status status = kf_config_resolve(&config, RANKS, &options);
  if (!status && rank == 0) options->log = log_line;
  if (!status) status = kf_scheduler_create(options, &scheduler);
  kf_scheduler_options_free(options);
  if (status) kf_comm_fail(comm, kf_last_error()); /* so that the others do not wait */
  if (!status) status = kf_step_create(comm, 0, &step);
  if (!status) status = train(comm, step, scheduler);
  if (status) fprintf(stderr, "rank %d: %s\n", rank, kf_last_error());
  const kf_metrics *learned = kf_scheduler_metrics(scheduler); /* the same on all ranks */
  for (int r = 0; r < RANKS && !status && rank == 0; r++)
    printf("rank %d has speed %.2f\n", r, learned->speed[r]);
  result[rank] = status;
  kf_step_free(step);
  kf_scheduler_free(scheduler);
  kf_comm_free(comm);
  return NULL;
}

int main(void) {
  kf_comm *comm[RANKS];
  pthread_t thread[RANKS];
  if (kf_comm_local_create(RANKS, comm)) return fprintf(stderr, "%s\n", kf_last_error()), 1;
  for (int r = 0; r < RANKS; r++)
    if (pthread_create(&thread[r], NULL, rank_main, comm[r])) return perror("pthread_create"), 1;
  for (int r = 0; r < RANKS; r++) pthread_join(thread[r], NULL);
  for (int r = 0; r < RANKS; r++)
    if (result[r]) return 1;
  return 0;
}
