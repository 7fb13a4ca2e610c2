/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of `knapformer train` share: cmd_train.c runs, train_setup.c reads what was asked,
** view_train.c shows, train_report.c writes the page. */
#ifndef CMD_TRAIN_H
#define CMD_TRAIN_H

#include "cli.h"
#include "train/train.h"

/* All options as texts, NULL where not given. */
typedef struct train_request {
  const char *model, *data, *scale, *steps, *block, *seconds, *ranks, *config, *lr, *seed;
  const char *log_level, *report, *trace, *timeout;
  cli_list set;
  bool balance, compare, json;
} train_request;

enum { WITHOUT, WITH, N_VARIANTS };
enum { TRAIN_MOST_RANKS = 4096 }; /* that it starts itself */

/* What they become, and what must be freed. */
typedef struct train_session {
  const train_request *q;
  kf_comm *comm; /* NULL: nothing has been started yet */
  int32_t rank, n_ranks;
  int32_t n_here; /* ranks on this machine */

  kf_config config;
  kf_model model;
  train_options options;
  int64_t n_steps, block;
  double seconds;   /* no further block begins after so many; 0: all steps */
  double timeout_s; /* 0: by what a step is expected to take */
  const char *mix;
  train_data *first_data;
  const kf_batch *first;         /* all ranks' lengths of step 0 */
  double bytes;                  /* of memory that a rank is expected to take, at most */
  bool lacks_memory, may_shrink; /* why setup failed; if it may say nothing and try fewer ranks */

  kf_scheduler_options *scheduling; /* what config means; its cost is what plans begin with */
  bool measured;                    /* the cost, here, and not by a file or the model's shape */
  train_job *job;
  train_variant *variant[N_VARIANTS]; /* NULL: not wanted */
  train_record record[N_VARIANTS];
  double *predicted_s, *measured_s; /* (n_points) of the scheduler's expectations */
  int64_t n_points, cap_points;
  const kf_plan *last_plan; /* of the variant with the balancer, and its step */
  int64_t last_step;
  double param_rel_diff; /* how far the two variants' parameters have come apart */
  kf_outputs *outputs;   /* of rank 0 */
  bool on_terminal;
  int columns, lines; /* of the terminal */
  int n_drawn;        /* lines that the live view has drawn and will draw over */
  double begin_us;
} train_session;

/* The variant whose figures and files stand for the run. */
static inline int train_main_variant(const train_session *s) {
  return s->variant[WITH] ? WITH : WITHOUT;
}

/* ------------------------------------------------------------------ train_setup.c */

/* Everything that can be wrong with what was asked, for n ranks, before any of them computes. Says
** what is wrong; returns 0 or an exit code. */
int train_setup(train_session *s, int32_t n_ranks);

/* Cores that this process may use: hardware threads of one core are one. */
int32_t train_count_cores(void);

/* ------------------------------------------------------------------- view_train.c */

void train_show_start(train_session *s);
void train_show_step(train_session *s, int variant, const train_result *result);
int train_show_results(const train_session *s);

/* A kf_log_fn whose `user` is the session: lines stay above the live view. */
void train_log(void *session, kf_log_level level, const char *line);
int train_print_json(const train_session *s);

/* ----------------------------------------------------------------- train_report.c */

int train_write_report(const train_session *s);

#endif
