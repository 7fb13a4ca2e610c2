/* SPDX-License-Identifier: Apache-2.0 */
/*
** knapformer train: the main job. Alone it starts one rank per core by itself; under mpirun or srun
** it is one of the ranks. train/ does the work; here is what a user asks for and sees.
**
**     options --> checked, before any rank computes --> ranks --> the cost is measured
**     --> steps, of one variant or both in turn --> table, JSON, page, trace
*/
#include "cmd_train.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cblas.h>

static const char name[] = "train";

static const char help[] =
  "usage: knapformer train [OPTIONS]\n"
  "\n"
  "Train a Diffusion Transformer on this machine's cores, or on the ranks of mpirun or srun, with\n"
  "and without the balancer.\n"
  "\n"
  "  --model NAME           DiT-S, DiT-B, DiT-L, DiT-XL or d=..,layers=..,heads=.. (DiT-S)\n"
  "  --data synthetic:MIX   moving shapes and textures with the sizes of a mix (joint), as in\n"
  "                         \"knapformer plan\"\n"
  "  --scale F              tokens of each sequence, times F; default: a step has 2500 a rank in\n"
  "                         the mean, or as many as the mix has\n"
  "  --steps N              default 20\n"
  "  --seed N               decides samples and first parameters (0)\n"
  "  --lr X                 learning rate of AdamW (0.001)\n"
  "\n"
  "  --use-knapformer       balance each step\n"
  "  --compare              train without and with it in turn, on the same samples, and compare\n"
  "  --block N              with --compare: steps of one variant before the other's turn (1)\n"
  "  --config FILE          a YAML file, see \"knapformer config\"\n"
  "  --set KEY=VALUE        change a key after reading; may be given several times\n"
  "  --log-level LEVEL      error, warning, info or debug\n"
  "\n"
  "  --report FILE          an HTML page with pictures of the run\n"
  "  --trace FILE           a Chrome trace\n"
  "  --json                 one JSON object instead of lines and table\n"
  "\n"
  "  --ranks N              ranks to start; default: one per core\n"
  "  --seconds N            begin no further block of steps after so many seconds\n"
  "  --timeout N            seconds to wait for a silent rank; default: by what a step takes\n"
  "\n"
  "doc/train.md says what the model is and what the figures mean.\n";

/* ----------------------------------------------------------------------- the ranks */

/* What a rank finds wrong, in its own words or in the library's: it ends all. */
static int fail_rank(const train_session *s) {
  kf_comm_fail(s->comm, kf_last_error());
  return cli_fail_rank(name, s->comm);
}

/* What all ranks find wrong, rank 0 says for all: the others begin when it is through. */
static int in_turn(train_session *s, int (*work)(train_session *)) {
  int64_t worst = 0;
  for (int turn = 0; turn < 2 && !worst; turn++) {
    if ((s->rank > 0) == turn) worst = work(s);
    if (kf_comm_reduce(s->comm, KF_MAX, KF_I64, 1, &worst)) return cli_fail_rank(name, s->comm);
  }
  return (int)worst;
}

/* Ranks that share this machine's memory. */
static kf_status count_neighbours(train_session *s) {
  enum { NAME = 64 };
  char mine[NAME] = "", *all = calloc((size_t)s->n_ranks, NAME);
  if (!all) return kf_fail(KF_ENOMEM, "out of memory: the names of machines");
  gethostname(mine, NAME - 1);
  kf_status status = kf_comm_gather(s->comm, mine, NAME, all);
  s->n_here = 0;
  for (int32_t r = 0; r < s->n_ranks; r++) s->n_here += memcmp(all + r * NAME, mine, NAME) == 0;
  free(all);
  return status;
}

/* Who sees a terminal tells its ranks, whose own output goes to mpirun. */
static void find_terminal(train_session *s) {
  static const char mark[] = "KNAPFORMER_SCREEN";
  struct winsize size;
  const char *screen = getenv(mark), *term = getenv("TERM");
  char text[32];
  if (isatty(STDOUT_FILENO) == 1 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col) {
    s->columns = size.ws_col;
    s->lines = size.ws_row;
    snprintf(text, sizeof text, "%dx%d", s->columns, s->lines);
    setenv(mark, text, 1);
  } else if (!screen || !cli_launched() || sscanf(screen, "%dx%d", &s->columns, &s->lines) != 2) {
    unsetenv(mark);
  }
  s->on_terminal =
    s->columns >= 40 && s->lines >= 8 && !s->q->json && !(term && strcmp(term, "dumb") == 0);
}

/* ----------------------------------------------------------------------- the start */

/* The cost that a state began with goes on with it, on whatever day and machine. */
static int read_state(train_session *s) {
  kf_cost *cost = &s->scheduling->plan.cost;
  const kf_cluster cluster = cost->cluster;
  int found = 0;
  kf_status status = kf_scheduler_read_start(s->config.state_file, cost, &found);
  if (status) return cli_exit_code(status, name, NULL);
  if (*s->config.cluster) cost->cluster = cluster; /* said, and so not measured */
  s->measured = !found;
  return 0;
}

/* What plans begin with: a file's cost, the model's FLOPs if the user wants no more, what a state
** was begun with, or else what one block takes here. */
static int find_cost(train_session *s) {
  const kf_config *c = &s->config;
  kf_cost *cost = &s->scheduling->plan.cost;
  int code;
  cost->ulysses_bytes = 4.0 * s->model.dim * s->model.layers * sizeof(float);
  cost->route_bytes = TRAIN_ROUTE_BYTES;
  cost->cluster.elem_bytes = sizeof(float);
  if (*c->cost_file || c->cost_model == KF_COST_STATIC) return 0;
  bool links = !*c->cluster;
  if (links) cost->cluster.ranks_per_node = s->n_ranks; /* what is measured holds for all */
  if ((code = in_turn(s, read_state))) return code;
  int64_t either[2] = {s->measured, !s->measured};
  kf_status status = kf_comm_reduce(s->comm, KF_MAX, KF_I64, 2, either);
  if (!status && either[0] && either[1])
    status =
      kf_fail(KF_EMISMATCH, "some ranks find a state_file and some do not, expected all or none");
  if (!status && s->measured)
    status = train_measure(s->comm, &s->model, s->options.isa, links, cost);
  return status ? fail_rank(s) : 0;
}

/* As long as a slow core may take for the longest rank's work, while the others wait. */
static kf_status set_timeout(train_session *s) {
  const double slow_flops = 10e9;
  double most = 0, timeout_s = s->timeout_s;
  for (int32_t r = 0; r < s->n_ranks; r++) {
    double sum = 0;
    for (int64_t i = s->first->rank_off[r]; i < s->first->rank_off[r + 1]; i++)
      sum += train_net_flops(&s->model, s->first->len[i]);
    most = fmax(most, sum);
  }
  double share = fmax(1, (double)s->n_here / (double)sysconf(_SC_NPROCESSORS_ONLN));
  if (!(timeout_s > 0)) timeout_s = fmin(1e6, KF_DEFAULT_TIMEOUT_S + share * most / slow_flops);
  kf_status status = kf_comm_reduce(s->comm, KF_MAX, KF_F64, 1, &timeout_s);
  return status ? status : kf_comm_set_timeout(s->comm, timeout_s);
}

static int make_variants(train_session *s) {
  const train_request *q = s->q;
  s->scheduling->log_user = s;
  kf_status status = train_job_create(&s->options, &s->job);
  for (int w = 0; w < N_VARIANTS && !status; w++) {
    bool wanted = q->compare || q->balance == (w == WITH);
    bool silent =
      s->rank > 0 || (q->compare && w == WITHOUT); /* one log, of the variant that counts */
    s->scheduling->log = silent ? NULL : train_log;
    s->record[w].n_ranks = s->n_ranks;
    if (wanted) status = train_variant_create(s->job, s->scheduling, w == WITH, &s->variant[w]);
    if (wanted && !status) status = train_check_ranks(s->job, s->variant[w]);
  }
  return status ? fail_rank(s) : 0;
}

static int open_files(train_session *s) {
  kf_scheduler *scheduler = train_variant_scheduler(s->variant[train_main_variant(s)]);
  kf_status status = kf_scheduler_restore_file(scheduler, s->config.state_file);
  if (!status && s->rank == 0) status = kf_outputs_create(&s->config, s->n_ranks, &s->outputs);
  return cli_exit_code(status, name, NULL);
}

static int begin(train_session *s) {
  int code;
  if (set_timeout(s)) return fail_rank(s);
  if ((code = find_cost(s))) return code;
  s->options.comm = s->comm;
  s->options.ranks_here = s->n_here;
  s->options.model = s->model;
  if ((code = make_variants(s))) return code;
  if ((code = in_turn(s, open_files))) return code;
  if (s->rank == 0 && !s->q->json) train_show_start(s);
  return 0;
}

/* ----------------------------------------------------------------------- the steps */

/* What the scheduler expected of the step: the points of a picture. */
static kf_status note_expectations(train_session *s, const kf_metrics *m) {
  if (s->n_points + s->n_ranks > s->cap_points) {
    int64_t cap = 2 * s->cap_points + 64 * s->n_ranks;
    double *predicted = realloc(s->predicted_s, (size_t)cap * sizeof *predicted);
    if (predicted) s->predicted_s = predicted;
    double *measured = realloc(s->measured_s, (size_t)cap * sizeof *measured);
    if (measured) s->measured_s = measured;
    if (!predicted || !measured)
      return kf_fail(KF_ENOMEM, "out of memory: the points of a picture");
    s->cap_points = cap;
  }
  for (int32_t r = 0; r < m->n_ranks; r++) {
    if (!(m->busy_s[r] > 0) || !(m->predicted_s[r] > 0)) continue;
    s->predicted_s[s->n_points] = m->predicted_s[r];
    s->measured_s[s->n_points++] = m->busy_s[r];
  }
  return KF_OK;
}

static int write_outputs(train_session *s) {
  const kf_metrics *m =
    kf_scheduler_metrics(train_variant_scheduler(s->variant[train_main_variant(s)]));
  if (s->rank > 0) return 0;
  if (note_expectations(s, m)) return fail_rank(s);
  kf_status status = kf_outputs_step(s->outputs, m);
  if (!status) return 0;
  int code = cli_exit_code(status, name, NULL);
  kf_comm_fail(s->comm, "it cannot write its files");
  return code;
}

/* All ranks find the same: rank 0 says it, and none leaves before it has. */
static int refuse_loss(const train_session *s, const train_result *r) {
  if (s->rank == 0)
    cli_fail(EXIT_FAILED, name,
             "step %" PRId64 ": the loss is %g and its gradient's norm %g, expected finite "
             "numbers: try a smaller --lr than %g",
             r->step, r->loss, r->grad_norm, s->options.lr > 0 ? s->options.lr : 1e-3);
  kf_comm_barrier(s->comm);
  return EXIT_FAILED;
}

static int run_step(train_session *s, int variant, int64_t step) {
  train_result result;
  kf_status status = train_run_step(s->job, s->variant[variant], step, &result);
  if (!status && s->rank == 0) status = train_record_add(&s->record[variant], &result);
  if (status) return fail_rank(s);
  if (variant == WITH) s->last_plan = result.plan, s->last_step = step;
  if (s->rank == 0 && !s->q->json) train_show_step(s, variant, &result);
  if (!isfinite(result.loss) || !isfinite(result.grad_norm)) return refuse_loss(s, &result);
  return variant == train_main_variant(s) ? write_outputs(s) : 0;
}

/* Has the time run out? By rank 0's clock, so that all agree. */
static int time_is_up(train_session *s, bool *up) {
  int64_t flag = s->rank == 0 && cli_now_us() - s->begin_us > s->seconds * 1e6;
  *up = false;
  if (!(s->seconds > 0)) return 0;
  if (kf_comm_reduce(s->comm, KF_MAX, KF_I64, 1, &flag)) return fail_rank(s);
  *up = flag;
  return 0;
}

/* Blocks of one variant and then the other: without, with, with, without, .. so that a machine that
** becomes slower is no one's advantage. */
static int run_steps(train_session *s) {
  int code = 0;
  bool up = false;
  s->begin_us = cli_now_us();
  for (int64_t first = 0, turn = 0; first < s->n_steps && !up && !code; first += s->block, turn++) {
    int64_t end = first + s->block < s->n_steps ? first + s->block : s->n_steps;
    for (int i = 0; i < N_VARIANTS && !code; i++) {
      int variant = (i + turn) % 2 ? WITH : WITHOUT;
      for (int64_t step = first; s->variant[variant] && step < end && !code; step++)
        code = run_step(s, variant, step);
    }
    if (!code) code = time_is_up(s, &up);
  }
  return code;
}

/* The results first: a full disk must not take them along. */
static int show(train_session *s) {
  int code = s->q->json ? train_print_json(s) : train_show_results(s);
  kf_scheduler *scheduler = train_variant_scheduler(s->variant[train_main_variant(s)]);
  if (!code) code = cli_end_files(name, s->outputs, scheduler, s->config.state_file);
  if (!code && s->q->report) code = train_write_report(s);
  if (!code && s->q->report && !s->q->json) printf("report: %s\n", s->q->report);
  return code ? code : cli_close_stdout(name);
}

static int finish(train_session *s) {
  for (int w = 0; w < N_VARIANTS; w++)
    if (s->variant[w] && train_check_ranks(s->job, s->variant[w])) return fail_rank(s);
  if (s->rank > 0) return 0;
  if (s->variant[WITHOUT] && s->variant[WITH] &&
      train_variant_difference(s->variant[WITHOUT], s->variant[WITH], &s->param_rel_diff))
    return fail_rank(s);
  return show(s);
}

/* --------------------------------------------------------------------- the command */

static int set_up(train_session *s) { return train_setup(s, s->n_ranks); }

static int run_rank(train_session *s) {
  int code;
  kf_status status =
    cli_launched() ? kf_comm_mpi_create(NULL, &s->comm) : kf_comm_local_create(1, &s->comm);
  if (status) return cli_exit_code(status, name, NULL);
  s->rank = kf_comm_rank(s->comm);
  s->n_ranks = kf_comm_size(s->comm);
  openblas_set_num_threads(1); /* a rank is one core's */
  if (count_neighbours(s)) return fail_rank(s);
  if ((code = in_turn(s, set_up))) return code;
  if ((code = begin(s))) return code;
  if ((code = run_steps(s))) return code;
  return finish(s);
}

/* Start the ranks, once what is asked is known to make sense. One rank needs no launcher. */
static int start_ranks(train_session *s, char **argv) {
  int64_t n_ranks = train_count_cores();
  if (!cli_int(name, "--ranks", s->q->ranks, 1, TRAIN_MOST_RANKS, &n_ranks)) return EXIT_MISUSE;
  if (n_ranks == 1 || (!s->q->ranks && !cli_can_launch())) return run_rank(s);
  int64_t n_cores = n_ranks;
  int code;
  s->may_shrink = !s->q->ranks;
  do {
    s->n_here = (int32_t)n_ranks;
    train_data_free(s->first_data);
    s->first_data = NULL;
    code = train_setup(s, (int32_t)n_ranks);
  } while (s->lacks_memory && s->may_shrink && --n_ranks > 0);
  if (code) return code;
  if (n_ranks < n_cores)
    fprintf(stderr, "knapformer %s: memory is enough for %d of %d ranks\n", name, (int)n_ranks,
            (int)n_cores);
  return cli_launch(name, (int32_t)n_ranks, argv);
}

static void clear(train_session *s) {
  kf_outputs_free(s->outputs);
  kf_scheduler_options_free(s->scheduling);
  for (int w = 0; w < N_VARIANTS; w++) {
    train_variant_free(s->variant[w]);
    train_record_clear(&s->record[w]);
  }
  train_job_free(s->job);
  train_data_free(s->first_data);
  free(s->predicted_s);
  free(s->measured_s);
  kf_comm_free(s->comm);
  free(s);
}

int cli_train(char **argv) {
  train_request q = {0};
  const cli_option options[] = {{"--model", .text = &q.model},
                                {"--data", .text = &q.data},
                                {"--scale", .text = &q.scale},
                                {"--steps", .text = &q.steps},
                                {"--seed", .text = &q.seed},
                                {"--lr", .text = &q.lr},
                                {"--use-knapformer", .flag = &q.balance},
                                {"--compare", .flag = &q.compare},
                                {"--block", .text = &q.block},
                                {"--config", .text = &q.config},
                                {"--set", .list = &q.set},
                                {"--log-level", .text = &q.log_level},
                                {"--report", .text = &q.report},
                                {"--trace", .text = &q.trace},
                                {"--json", .flag = &q.json},
                                {"--ranks", .text = &q.ranks},
                                {"--seconds", .text = &q.seconds},
                                {"--timeout", .text = &q.timeout}};
  int code = cli_parse(name, help, argv, options, (int)(sizeof options / sizeof *options));
  if (code >= 0) return code;
  train_session *s = calloc(1, sizeof *s); /* large for a stack: a config has eight texts */
  if (!s) return cli_fail(EXIT_FAILED, name, "out of memory");
  s->q = &q;
  find_terminal(s);
  code = cli_launched() ? run_rank(s) : start_ranks(s, argv);
  if (code && s->comm && kf_comm_size(s->comm) > 1) { /* MPI may still write to the job's memory */
    kf_outputs_free(s->outputs);
    kf_comm_free(s->comm);
  } else {
    clear(s);
  }
  return code;
}
