/* SPDX-License-Identifier: Apache-2.0 */
/*
** knapformer sim: the online scheduler at work, without a cluster. The scheduler, its plans and its
** files are those of training; only the clock is simulated.
**
**     mix --batch--> scheduler --plan--> clock --measured times--> scheduler ...
**
** One process plays all ranks. Under mpirun or srun each process is one rank, which brings its own
** sequences and its own time, as in training; rank 0 shows and writes. Both give the same plans.
*/
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static const char name[] = "sim";

static const char help[] =
  "usage: knapformer sim --mix NAME|CODES [OPTIONS]\n"
  "\n"
  "Watch the online scheduler plan, measure and learn: real plans, simulated times. Under mpirun\n"
  "or srun every process is one rank, and the plans are the same.\n"
  "\n"
  "  --mix NAME|CODES     what the ranks draw at each step, as in \"knapformer plan\"\n"
  "  --ranks N            repeat the mix's ranks up to N\n"
  "  --steps N            default 200\n"
  "  --seed N             decides texts and noise (0); step s draws the mix of seed N + s\n"
  "\n"
  "What the scheduler is told:\n"
  "  --config FILE|-      a YAML file, see \"knapformer config\"\n"
  "  --set KEY=VALUE      change a key after reading; may be given several times\n"
  "  --log-level LEVEL    error, warning, info or debug; this and what follows are keys, too\n"
  "  --steps-file FILE|-  a JSON line per step; - is standard output, in place of the table\n"
  "  --metrics-file FILE  Prometheus text, refreshed each step\n"
  "  --trace-file FILE    a Chrome trace\n"
  "  --state-file FILE    go on from it where there is one; saved at the end\n"
  "\n"
  "What it is not told, and has to find out:\n"
  "  --true-gamma G       how dear attention really is (0.6; it is told 0.4)\n"
  "  --true-scale X       everything takes X times what the model's FLOPs say (1)\n"
  "  --noise D            relative deviation of each measured time (0.03)\n"
  "  --slow R:F@FROM-TO   rank R computes F times as long from step FROM to step TO; left out:\n"
  "                       from the start, to the end; may be given several times, as\n"
  "  --outlier R:F@STEP   rank R's time of one step is measured F times as long\n"
  "\n"
  "  --json               one JSON object instead of the table\n"
  "\n"
  "unbalanced, true and max/mean are of the true times, without noise and outliers; predicted is\n"
  "the plan's step and the learned overhead. The first and the last steps are as many as\n"
  "rebalance_interval says: before anything was learned, and after.\n";

/* ---------------------------------------------------------------------- the figures */

/* Of one step, or sums over some. */
typedef struct tally {
  int64_t n;
  double unbalanced_s, predicted_s, true_s;
  double unbalanced_ratio, ratio; /* max/mean of the true times */
  double worst;                   /* largest ratio */
} tally;

static void tally_add(tally *sum, const tally *one) {
  sum->n += one->n;
  sum->unbalanced_s += one->unbalanced_s;
  sum->predicted_s += one->predicted_s;
  sum->true_s += one->true_s;
  sum->unbalanced_ratio += one->unbalanced_ratio;
  sum->ratio += one->ratio;
  if (one->worst > sum->worst) sum->worst = one->worst;
}

static tally tally_of(const kf_plan *plan, double predicted_s, const kf_sim_times *times) {
  double home = 0, sum_home = 0, longest = 0, sum = 0;
  for (int32_t r = 0; r < plan->n_ranks; r++) {
    if (times[r].home_s > home) home = times[r].home_s;
    if (times[r].true_s > longest) longest = times[r].true_s;
    sum_home += times[r].home_s;
    sum += times[r].true_s;
  }
  double ratio = sum > 0 ? longest * plan->n_ranks / sum : 1;
  return (tally){.n = 1,
                 .unbalanced_s = home,
                 .predicted_s = predicted_s,
                 .true_s = longest,
                 .unbalanced_ratio = sum_home > 0 ? home * plan->n_ranks / sum_home : 1,
                 .ratio = ratio,
                 .worst = ratio};
}

static double speedup_of(const tally *t) { return t->true_s > 0 ? t->unbalanced_s / t->true_s : 1; }

/* ------------------------------------------------------------------------- the job */

/* All options as texts, NULL where not given. */
typedef struct request {
  const char *mix, *ranks, *steps, *seed, *config, *true_gamma, *true_scale, *noise;
  const char *log_level, *steps_file, *metrics_file, *trace_file, *state_file;
  cli_list set, slow, outlier;
  bool json;
} request;

/* What they become, and what must be freed. */
typedef struct job {
  const request *q;
  kf_comm *comm; /* NULL: all ranks are in this process */
  int32_t rank, n_ranks;
  int64_t n_steps, first_step, interval;
  kf_config config;
  kf_sim_clock clock;
  double true_gamma;
  kf_sim_spell slow[CLI_MAX_LIST], pause[CLI_MAX_LIST];
  kf_scheduler *scheduler;
  kf_step *step;
  kf_sim_times *times; /* (n_ranks) */
  kf_outputs *outputs;
  bool table, lines;           /* on standard output: a table, or a JSON line a step */
  tally first, last, all, row; /* row: since the last line of the table */
  uint64_t hash;               /* of the last plan */
  int64_t drifts;              /* seen so far */
  json_t *drift_list;
} job;

/* ------------------------------------------------------------------ texts to structs */

static int read_config(const job *j, kf_config *config) {
  const request *q = j->q;
  const cli_key key[] = {{"log_level", q->log_level},
                         {"steps_file", q->steps_file},
                         {"metrics_file", q->metrics_file},
                         {"trace_file", q->trace_file},
                         {"state_file", q->state_file}};
  const cli_configuration asked = {"--config", q->config, &q->set, key, sizeof key / sizeof *key,
                                   j->comm};
  return cli_configure(name, &asked, config);
}

/* The ranks that there are, and do they suit the mix and the configuration? */
static int read_ranks(job *j) {
  const request *q = j->q;
  kf_batch *batch = NULL;
  int64_t n_ranks = 0;
  if (!q->mix) return cli_fail(EXIT_MISUSE, name, "found no --mix, expected one");
  if (!cli_int(name, "--ranks", q->ranks, 1, KF_MAX_RANKS, &n_ranks)) return EXIT_MISUSE;
  if (j->comm && n_ranks && n_ranks != kf_comm_size(j->comm))
    return cli_fail(EXIT_MISUSE, name, "--ranks: found \"%s\", expected the %" PRId32 " of the job",
                    q->ranks, kf_comm_size(j->comm));
  if (j->comm) n_ranks = kf_comm_size(j->comm);
  kf_status status = kf_mix_create(q->mix, (int32_t)n_ranks, 0, &batch);
  if (status) return cli_exit_code(status, name, "--mix");
  j->n_ranks = batch->n_ranks;
  kf_batch_free(batch);
  status = kf_config_check(&j->config, j->n_ranks);
  bool file = q->config && strcmp(q->config, "-") != 0;
  return cli_exit_code(status, name, file ? q->config : NULL);
}

/* "RANK:FACTOR@FROM-TO"; `one_step`: "RANK:FACTOR@STEP". 0, or an exit code after saying what is
** wrong. */
static int read_spell(const char *option, const char *text, int32_t n_ranks, bool one_step,
                      kf_sim_spell *out) {
  char copy[64], what[48];
  int64_t rank, first = 0, last = INT64_MAX;
  snprintf(copy, sizeof copy, "%s", text);
  char *factor = strchr(copy, ':'), *from = factor ? strchr(factor, '@') : NULL;
  char *to = from ? strchr(from, '-') : NULL;
  if (!factor || strlen(text) >= sizeof copy || (one_step && (!from || to)))
    return cli_fail(EXIT_MISUSE, name, "%s: found \"%s\", expected %s", option, text,
                    one_step ? "RANK:FACTOR@STEP, as in 3:100@70"
                             : "RANK:FACTOR@FROM-TO, as in 3:2@50-120");
  *factor++ = 0;
  if (from) *from++ = 0;
  if (to) *to++ = 0;
  snprintf(what, sizeof what, "%s, rank", option);
  if (!cli_int(name, what, copy, 0, n_ranks - 1, &rank)) return EXIT_MISUSE;
  snprintf(what, sizeof what, "%s, factor", option);
  if (!cli_real(name, what, factor, 0.001, 1000, &out->factor)) return EXIT_MISUSE;
  snprintf(what, sizeof what, "%s, step", option);
  if (from && !cli_int(name, what, from, 0, INT64_MAX, &first)) return EXIT_MISUSE;
  if (to && *to && !cli_int(name, what, to, first, INT64_MAX, &last)) return EXIT_MISUSE;
  out->rank = (int32_t)rank;
  out->first = first;
  out->last = one_step ? first : last;
  return 0;
}

static int read_clock(job *j) {
  const request *q = j->q;
  const kf_config *c = &j->config;
  kf_sim_clock *clock = &j->clock;
  double scale = 1;
  int code;
  clock->noise = 0.03;
  j->true_gamma = 0.6;
  if (!cli_real(name, "--true-gamma", q->true_gamma, 1e-6, 1e6, &j->true_gamma)) return EXIT_MISUSE;
  if (!cli_real(name, "--true-scale", q->true_scale, 1e-6, 1e6, &scale)) return EXIT_MISUSE;
  if (!cli_real(name, "--noise", q->noise, 0, 1, &clock->noise)) return EXIT_MISUSE;
  kf_status status = kf_cost_preset(c->model, c->cluster, j->n_ranks, j->true_gamma, &clock->cost);
  if (status) return cli_exit_code(status, name, NULL);
  clock->cost.linear_s *= scale;
  clock->cost.quadratic_s *= scale;
  clock->slow = j->slow;
  clock->pause = j->pause;
  for (int i = 0; i < q->slow.n; i++)
    if ((code =
           read_spell("--slow", q->slow.value[i], j->n_ranks, false, &j->slow[clock->n_slow++])))
      return code;
  for (int i = 0; i < q->outlier.n; i++)
    if ((code = read_spell("--outlier", q->outlier.value[i], j->n_ranks, true,
                           &j->pause[clock->n_pauses++])))
      return code;
  return 0;
}

static int make_scheduler(job *j) {
  kf_scheduler_options *options = NULL;
  kf_status status = kf_config_resolve(&j->config, j->n_ranks, &options);
  if (!status) {
    options->log = j->rank == 0 ? cli_log : NULL;
    options->log_user = (void *)name;
    j->interval = options->rebalance_interval;
    status = kf_scheduler_create(options, &j->scheduler);
  }
  kf_scheduler_options_free(options);
  if (!status) status = kf_scheduler_restore_file(j->scheduler, j->config.state_file);
  if (status) return cli_exit_code(status, name, NULL);
  j->first_step = kf_scheduler_steps(j->scheduler);
  j->times = malloc((size_t)j->n_ranks * sizeof *j->times);
  j->drift_list = json_array();
  return j->times && j->drift_list ? 0 : cli_fail(EXIT_FAILED, name, "out of memory");
}

static int prepare(job *j) {
  const request *q = j->q;
  int64_t seed = 0;
  int code;
  j->n_steps = 200;
  if (!cli_int(name, "--steps", q->steps, 1, 1000000000, &j->n_steps)) return EXIT_MISUSE;
  if (!cli_int(name, "--seed", q->seed, 0, INT64_MAX, &seed)) return EXIT_MISUSE;
  j->clock.seed = (uint64_t)seed;
  if ((code = read_config(j, &j->config))) return code;
  if ((code = read_ranks(j))) return code;
  if ((code = read_clock(j))) return code;
  bool standard = strcmp(j->config.steps_file, "-") == 0;
  if (standard && q->json)
    return cli_fail(EXIT_MISUSE, name,
                    "steps_file is \"-\", which is standard output, expected a file with --json");
  j->table = j->rank == 0 && !q->json && !standard;
  j->lines = j->rank == 0 && standard;
  if (standard) *j->config.steps_file = 0;
  if ((code = make_scheduler(j)) || j->rank > 0) return code;
  return cli_exit_code(kf_outputs_create(&j->config, j->n_ranks, &j->outputs), name, NULL);
}

/* What all ranks find wrong, rank 0 says for all: the others begin when it is through. */
static int prepare_in_turn(job *j) {
  int64_t worst = 0;
  if (!j->comm) return prepare(j);
  j->rank = kf_comm_rank(j->comm);
  for (int turn = 0; turn < 2 && !worst; turn++) {
    if ((j->rank > 0) == turn) worst = prepare(j);
    if (kf_comm_reduce(j->comm, KF_MAX, KF_I64, 1, &worst)) return cli_fail_rank(name, j->comm);
  }
  if (!worst && kf_step_create(j->comm, 0, &j->step)) return cli_fail_rank(name, j->comm);
  return (int)worst;
}

/* ----------------------------------------------------------------------- the table */

static void print_heading(void) {
  printf("\n%15s %11s %11s %11s %9s %9s %9s\n", "seconds a step:", "unbalanced", "predicted",
         "true", "speedup", "max/mean", "worst");
}

static void print_row(const char *label, const tally *t, const char *note) {
  double n = (double)t->n;
  printf("%15s %11.4g %11.4g %11.4g %8.2fx %9.3f %9.3f%s%s\n", label, t->unbalanced_s / n,
         t->predicted_s / n, t->true_s / n, speedup_of(t), t->ratio / n, t->worst,
         *note ? "  " : "", note);
}

/* A line of the table, if it is time for one: a long run has about twenty. */
static void show_row(job *j, int64_t i) {
  int64_t every = j->n_steps > 40 ? (j->n_steps + 19) / 20 : j->n_steps > 20 ? 2 : 1;
  const kf_metrics *m = kf_scheduler_metrics(j->scheduler);
  char label[48], note[48] = "";
  int32_t slowest = 0;
  if (!j->table || ((i + 1) % every != 0 && i + 1 < j->n_steps)) return;
  for (int32_t r = 1; r < m->n_ranks; r++)
    if (m->speed[r] < m->speed[slowest]) slowest = r;
  if (m->speed[slowest] < 0.95)
    snprintf(note, sizeof note, "rank %" PRId32 " at %.2f", slowest, m->speed[slowest]);
  int64_t end = j->first_step + i;
  snprintf(label, sizeof label, j->row.n > 1 ? "%" PRId64 "-%" PRId64 : "%" PRId64,
           end - j->row.n + 1, end);
  print_row(label, &j->row, note);
  j->row = (tally){0};
}

/* Ranks that are slow or fast, or were taken to be. */
static void print_speeds(const job *j, const kf_metrics *m) {
  int64_t last = j->first_step + j->n_steps - 1;
  int shown = 0, more = 0;
  for (int32_t r = 0; r < m->n_ranks; r++) {
    double really = 1 / kf_sim_slowness(&j->clock, r, last);
    char label[32];
    if (m->speed[r] > 0.95 && m->speed[r] < 1.05 && really > 0.95 && really < 1.05) continue;
    if (++shown > 8) {
      more++;
      continue;
    }
    snprintf(label, sizeof label, "speed of rank %" PRId32, r);
    printf("%20s %12.3f %12.3f\n", label, m->speed[r], really);
  }
  if (more) printf("%20s and %d more ranks\n", "", more);
}

static void print_summary(const job *j) {
  const kf_metrics *m = kf_scheduler_metrics(j->scheduler);
  const kf_cost *learned = &m->cost, *truth = &j->clock.cost;
  char label[48];
  print_heading();
  snprintf(label, sizeof label, "first %" PRId64, j->first.n);
  print_row(label, &j->first, "");
  snprintf(label, sizeof label, "last %" PRId64, j->last.n);
  print_row(label, &j->last, "");
  snprintf(label, sizeof label, "all %" PRId64, j->all.n);
  print_row(label, &j->all, "");
  printf("\n%20s %12s %12s\n", "", "scheduler", "true");
  printf("%20s %12.4g %12.4g\n", "s a token", learned->linear_s, truth->linear_s);
  printf("%20s %12.4g %12.4g\n", "s a token squared", learned->quadratic_s, truth->quadratic_s);
  printf("%20s %12.4g %12.4g\n", "s a sequence", learned->constant_s, truth->constant_s);
  if (j->config.cost_model == KF_COST_HISTORY)
    printf("%20s %12.4g %12d\n", "s a rank and step", m->overhead_s, 0);
  printf("%20s %12.3f %12.3f\n", "gamma", m->gamma, j->true_gamma);
  print_speeds(j, m);
  printf("\nrefits %" PRId64 ", drifts %" PRId64 ", times not learned from %" PRId64, m->refits,
         m->drifts, m->outliers);
  if (m->mape > 0) printf(", mean error of a predicted time %.1f%%", 100 * m->mape);
  printf("\nlast plan %016" PRIx64 "\n", j->hash);
}

/* ------------------------------------------------------------------------ the JSON */

static json_t *cost_json(const kf_cost *c, double gamma) {
  return json_pack("{s:f,s:f,s:f,s:f}", "linear_s", c->linear_s, "quadratic_s", c->quadratic_s,
                   "constant_s", c->constant_s, "gamma", gamma);
}

static json_t *tally_json(const tally *t) {
  double n = (double)t->n;
  return json_pack("{s:I,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "steps", (json_int_t)t->n, "unbalanced_s",
                   t->unbalanced_s / n, "predicted_s", t->predicted_s / n, "true_s", t->true_s / n,
                   "speedup", speedup_of(t), "unbalanced_max_over_mean", t->unbalanced_ratio / n,
                   "max_over_mean", t->ratio / n, "worst_max_over_mean", t->worst);
}

static json_t *to_json(const job *j) {
  const kf_metrics *m = kf_scheduler_metrics(j->scheduler);
  const kf_cost *truth = &j->clock.cost;
  json_t *speed = json_array(), *true_speed = json_array();
  char hash[17];
  for (int32_t r = 0; r < m->n_ranks; r++) {
    int64_t last = j->first_step + j->n_steps - 1;
    json_array_append_new(speed, json_real(m->speed[r]));
    json_array_append_new(true_speed, json_real(1 / kf_sim_slowness(&j->clock, r, last)));
  }
  snprintf(hash, sizeof hash, "%016" PRIx64, j->hash);
  return json_pack("{s:i,s:I,s:o,s:o,s:o,s:f,s:I,s:I,s:o,s:o,s:o,s:o,s:O,s:s}", "ranks",
                   (int)j->n_ranks, "first_step", (json_int_t)j->first_step, "first",
                   tally_json(&j->first), "last", tally_json(&j->last), "all", tally_json(&j->all),
                   "mape", m->mape, "refits", (json_int_t)m->refits, "outliers",
                   (json_int_t)m->outliers, "learned", cost_json(&m->cost, m->gamma), "true",
                   cost_json(truth, j->true_gamma), "speed", speed, "true_speed", true_speed,
                   "drifts", j->drift_list, "hash", hash);
}

/* ------------------------------------------------------------------------ the steps */

static kf_status plan_step(job *j, const kf_batch *batch, const kf_plan **plan) {
  if (!j->comm) return kf_scheduler_plan(j->scheduler, batch, plan);
  int64_t first = batch->rank_off[j->rank];
  kf_rank_batch mine = {.n_seqs = batch->rank_off[j->rank + 1] - first,
                        .len = batch->len + first,
                        .profile = batch->profile + first};
  return kf_step_schedule(j->step, j->scheduler, &mine, NULL, plan);
}

/* What a rank measured, with the wait for the slowest that a trainer would have measured too. */
static kf_status report(job *j, const kf_plan *plan) {
  int32_t first = j->comm ? j->rank : 0, end = j->comm ? j->rank + 1 : j->n_ranks;
  double step_s = 0;
  kf_status status = KF_OK;
  for (int32_t r = 0; r < j->n_ranks; r++)
    if (j->times[r].measured_s > step_s) step_s = j->times[r].measured_s;
  for (int32_t r = first; r < end && !status; r++) {
    const kf_sim_times *t = &j->times[r];
    double route_s = t->true_s > 0 ? t->measured_s * (t->comm_s / t->true_s) : 0;
    kf_counters counters = {.tokens = plan->hold_rows[r],
                            .samples = t->samples,
                            .route_s = route_s,
                            .compute_s = t->measured_s - route_s,
                            .wait_s = step_s - t->measured_s};
    status = kf_scheduler_update_stats(j->scheduler, r, t->measured_s, &counters);
  }
  return status;
}

static int print_line(const kf_metrics *m) {
  char *text = NULL;
  if (m->step < 0) return 0;
  if (kf_metrics_json(m, &text)) return cli_exit_code(KF_ENOMEM, name, "steps_file");
  bool good = fputs(text, stdout) >= 0 && fflush(stdout) == 0;
  free(text);
  return good ? 0 : cli_fail(EXIT_FAILED, name, "steps_file: cannot write \"-\"");
}

/* The figures of the last step are complete now, also those that travelled with this one's
** lengths. */
static int show_last(job *j) {
  const kf_metrics *m = kf_scheduler_metrics(j->scheduler);
  for (int32_t i = 0; m->drifts > j->drifts && i < m->n_drifts; i++) {
    const kf_drift *d = &m->drift[i];
    json_array_append_new(j->drift_list,
                          json_pack("{s:I,s:s,s:f,s:f}", "step", (json_int_t)d->step, "what",
                                    d->what, "before", d->before, "now", d->now));
  }
  j->drifts = m->drifts;
  if (j->rank > 0) return 0;
  if (kf_outputs_step(j->outputs, m)) return cli_exit_code(KF_EIO, name, NULL);
  return j->lines ? print_line(m) : 0;
}

static void count(job *j, int64_t i, const kf_plan *plan) {
  double predicted_s = plan->figures.step_s;
  if (predicted_s > 0 && j->config.cost_model == KF_COST_HISTORY)
    predicted_s += kf_scheduler_metrics(j->scheduler)->overhead_s; /* which plans do not know of */
  tally t = tally_of(plan, predicted_s, j->times);
  tally_add(&j->all, &t);
  tally_add(&j->row, &t);
  if (i < j->interval) tally_add(&j->first, &t);
  if (i >= j->n_steps - j->interval) tally_add(&j->last, &t);
  j->hash = plan->hash;
}

/* A call of the library failed: on this rank alone, or on all. */
static int fail(const job *j, kf_status status) {
  if (!j->comm) return cli_exit_code(status, name, NULL);
  kf_comm_fail(j->comm, kf_last_error());
  return cli_fail_rank(name, j->comm);
}

static int run_step(job *j, int64_t i) {
  const kf_plan *plan;
  kf_batch *batch = NULL;
  int64_t step = j->first_step + i;
  int code = 0;
  kf_status status = kf_mix_create(j->q->mix, j->n_ranks, j->clock.seed + (uint64_t)step, &batch);
  if (!status) status = plan_step(j, batch, &plan);
  if (!status && !(code = show_last(j)) &&
      !(status = kf_sim_step(&j->clock, step, batch, plan, j->times))) {
    count(j, i, plan);
    show_row(j, i);
    status = report(j, plan);
  }
  kf_batch_free(batch);
  if (code && j->comm) kf_comm_fail(j->comm, "it cannot write its files");
  return status ? fail(j, status) : code;
}

static int run(job *j) {
  int code = 0;
  if (j->table) {
    setvbuf(stdout, NULL, _IOLBF, 0); /* in order with the log, also in a pipe */
    printf("%s: %" PRId32 " rank%s, steps %" PRId64 " to %" PRId64 "\n", j->q->mix, j->n_ranks,
           j->n_ranks == 1 ? "" : "s", j->first_step, j->first_step + j->n_steps - 1);
    print_heading();
  }
  for (int64_t i = 0; i < j->n_steps && !code; i++) code = run_step(j, i);
  if (code) return code;
  kf_status status =
    j->comm ? kf_step_settle(j->step, j->scheduler) : kf_scheduler_settle(j->scheduler);
  if (status) return fail(j, status);
  if ((code = show_last(j)) || j->rank > 0) return code;
  if ((code = cli_end_files(name, j->outputs, j->scheduler, j->config.state_file))) return code;
  if (j->table) print_summary(j);
  if (j->q->json) code = cli_print_json(name, to_json(j), 9);
  return code ? code : cli_close_stdout(name);
}

int cli_sim(char **argv) {
  request q = {0};
  const cli_option options[] = {{"--mix", .text = &q.mix},
                                {"--ranks", .text = &q.ranks},
                                {"--steps", .text = &q.steps},
                                {"--seed", .text = &q.seed},
                                {"--config", .text = &q.config},
                                {"--set", .list = &q.set},
                                {"--log-level", .text = &q.log_level},
                                {"--steps-file", .text = &q.steps_file},
                                {"--metrics-file", .text = &q.metrics_file},
                                {"--trace-file", .text = &q.trace_file},
                                {"--state-file", .text = &q.state_file},
                                {"--true-gamma", .text = &q.true_gamma},
                                {"--true-scale", .text = &q.true_scale},
                                {"--noise", .text = &q.noise},
                                {"--slow", .list = &q.slow},
                                {"--outlier", .list = &q.outlier},
                                {"--json", .flag = &q.json}};
  int code = cli_parse(name, help, argv, options, (int)(sizeof options / sizeof *options));
  if (code >= 0) return code;
  job *j = calloc(1, sizeof *j); /* large for a stack: a config has eight texts */
  if (!j) return cli_fail(EXIT_FAILED, name, "out of memory");
  j->q = &q;
  kf_status status = cli_launched() ? kf_comm_mpi_create(NULL, &j->comm) : KF_OK;
  code = status ? cli_exit_code(status, name, NULL) : prepare_in_turn(j);
  if (!code) code = run(j);
  kf_outputs_free(j->outputs);
  json_decref(j->drift_list);
  free(j->times);
  kf_step_free(j->step);
  kf_scheduler_free(j->scheduler);
  kf_comm_free(j->comm);
  free(j);
  return code;
}
