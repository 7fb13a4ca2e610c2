/* SPDX-License-Identifier: Apache-2.0 */
/*
** knapformer plan: texts in, a plan out, as a table, as JSON or as a picture.
**
** The object that --json prints is made by jansson but for the chunks, which are written one
** after the other: a tree of seven million numbers takes a gigabyte.
*/
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static const char name[] = "plan";

static const char help[] =
  "usage: knapformer plan --mix NAME|CODES [OPTIONS]\n"
  "       knapformer plan --lens FILE|- [OPTIONS]\n"
  "\n"
  "Balance one training step: which rank, or which set of ranks, computes which sequence.\n"
  "\n"
  "What the ranks have:\n"
  "  --mix NAME|CODES      lowres, mixres, joint, lowres4k, clips, or codes such as\n"
  "                        g16b4i256f1s0,g8b1i2048f1s0 (ranks, samples a rank, pixels,\n"
  "                        frames, 1 for video)\n"
  "  --lens FILE|-         one line per rank, lengths in tokens separated by blanks;\n"
  "                        - is standard input\n"
  "  --ranks N             repeat the mix's ranks up to N; must agree with --lens\n"
  "  --seed N              draws the text lengths of a mix (0); the planner has no seed\n"
  "\n"
  "What it costs:\n"
  "  --model NAME|SHAPE    flux (default), wan1.3b, wan14b, DiT-S, DiT-B, DiT-L, DiT-XL,\n"
  "                        or d=3072,layers=57,heads=24\n"
  "  --gamma G             seconds of an attention FLOP over those of another (0.4)\n"
  "  --cluster NAME|SPEC   h100x32, free, or nodes=4,ranks_per_node=8,tflops=300,passes=4,\n"
  "                        intra_GBps=100,inter_GBps=10,latency_us=10 (these are the\n"
  "                        defaults, for any number of ranks); inf is a bandwidth\n"
  "  --speeds S,S,..       relative speed of every rank (all 1)\n"
  "\n"
  "What is allowed:\n"
  "  --bags SPEC|auto      auto (default), g1n8+g2n4, [1,1,2], or a bag size\n"
  "  --mem-tokens N        most tokens a rank may load (no cap)\n"
  "  --max-chunk-size N    most tokens of one sequence on one rank (no limit)\n"
  "  --affinity KIND       fill (default): the shortest step; spread: even memory, within\n"
  "                        1% of that step\n"
  "  --budget-us N         search for about N microseconds, counted in moves; the default\n"
  "                        depends on ranks and sequences only\n"
  "\n"
  "What is shown:\n"
  "  --json                one JSON object instead of the table\n"
  "  --chunks              also every chunk: sequence, source, destination, offset, length,\n"
  "                        first head, heads, part (0 split, 1 early, 2 late)\n"
  "  --svg FILE            also a picture\n"
  "\n"
  "solve_us is the wall time of the second of two calls on one planner, as in training,\n"
  "where the planner and its memory are reused at every step.\n";

/* All options; NULL or 0 where not given, if there is no default. */
typedef struct request {
  const char *mix, *lens, *model, *cluster, *speeds, *bags, *affinity, *svg;
  int64_t ranks, seed, mem_tokens, max_chunk_size, budget_us;
  double gamma;
  bool json, chunks;
} request;

/* What they become, and what must be freed. */
typedef struct job {
  kf_batch *batch;
  kf_bags *bags;
  double *speed;
  int64_t *mem_tokens;
  kf_planner_options options;
  kf_planner *planner;
  const kf_plan *plan;
  double solve_us;
} job;

/* The name of what is planned, for people. */
static const char *data_of(const request *q) { return q->mix ? q->mix : cli_file_name(q->lens); }

/* ------------------------------------------------------------------ texts to structs */

static int read_lens(const request *q, job *j) {
  char *text = NULL;
  size_t n_bytes = 0;
  int code = cli_read_file(name, "--lens", q->lens, &text, &n_bytes);
  if (code) return code;
  kf_status status = kf_batch_parse(data_of(q), text, n_bytes, &j->batch);
  free(text);
  if (status) return cli_exit_code(status, name, "--lens");
  if (q->ranks && q->ranks != j->batch->n_ranks)
    return cli_fail(EXIT_MISUSE, name,
                    "--ranks: found \"%" PRId64 "\", expected %" PRId32
                    ", the number of lines of %s",
                    q->ranks, j->batch->n_ranks, data_of(q));
  return 0;
}

static int make_batch(const request *q, job *j) {
  if (!q->mix == !q->lens)
    return cli_fail(EXIT_MISUSE, name, "found %s --lens, expected one of them",
                    q->mix ? "both --mix and" : "neither --mix nor");
  if (q->lens) return read_lens(q, j);
  kf_status status = kf_mix_create(q->mix, (int32_t)q->ranks, (uint64_t)q->seed, &j->batch);
  return cli_exit_code(status, name, "--mix");
}

static int make_cost(const request *q, job *j) {
  kf_model model;
  kf_status status = kf_model_parse(q->model, &model);
  if (status) return cli_exit_code(status, name, "--model");
  if (q->cluster && !*q->cluster)
    return cli_fail(EXIT_MISUSE, name, "--cluster: found \"\", expected a name or a text");
  status = kf_cost_preset(q->model, q->cluster, j->batch->n_ranks, q->gamma, &j->options.cost);
  return cli_exit_code(status, name, "--cluster"); /* which is all that can still be wrong */
}

/* "1,1,0.5": exactly one for every rank. */
static int read_speeds(const char *text, job *j) {
  int32_t n_ranks = j->batch->n_ranks;
  int64_t n = 1;
  for (const char *p = text; *p; p++) n += *p == ',';
  if (n != n_ranks)
    return cli_fail(EXIT_MISUSE, name,
                    "--speeds: found %" PRId64 " values, expected %" PRId32 ", one for every rank",
                    n, n_ranks);
  j->speed = malloc((size_t)n_ranks * sizeof *j->speed);
  char *copy = malloc(strlen(text) + 1), *p = copy;
  if (!j->speed || !copy) {
    free(copy);
    return cli_fail(EXIT_FAILED, name, "--speeds: out of memory");
  }
  strcpy(copy, text);
  for (int32_t r = 0; r < n_ranks; r++) {
    char option[48];
    size_t length = strcspn(p, ",");
    p[length] = 0;
    snprintf(option, sizeof option, "--speeds, value %" PRId32, r + 1);
    if (!cli_real(name, option, p, 1e-6, 1e6, &j->speed[r])) {
      free(copy);
      return EXIT_MISUSE;
    }
    p += length + 1;
  }
  free(copy);
  j->options.speed = j->speed;
  return 0;
}

static int set_mem_tokens(int64_t cap, job *j) {
  int32_t n_ranks = j->batch->n_ranks;
  j->mem_tokens = malloc((size_t)n_ranks * sizeof *j->mem_tokens);
  if (!j->mem_tokens) return cli_fail(EXIT_FAILED, name, "--mem-tokens: out of memory");
  for (int32_t r = 0; r < n_ranks; r++) j->mem_tokens[r] = cap;
  j->options.mem_tokens = j->mem_tokens;
  return 0;
}

static int make_limits(request *q, job *j) {
  int code;
  kf_status status = kf_bags_parse(q->bags, j->batch->n_ranks, &j->bags);
  if (status) return cli_exit_code(status, name, "--bags");
  if (!j->bags) q->bags = "auto"; /* "AUTO" is understood, too */
  j->options.bags = j->bags;
  if (q->speeds && (code = read_speeds(q->speeds, j))) return code;
  if (q->mem_tokens && (code = set_mem_tokens(q->mem_tokens, j))) return code;
  j->options.max_chunk_size = q->max_chunk_size;
  if (strcmp(q->affinity, "spread") == 0)
    j->options.affinity = KF_AFFINITY_SPREAD;
  else if (strcmp(q->affinity, "fill") != 0)
    return cli_fail(EXIT_MISUSE, name, "--affinity: found \"%s\", expected fill or spread",
                    q->affinity);
  if (q->budget_us) j->options.budget = kf_planner_budget((double)q->budget_us);
  return 0;
}

/* -------------------------------------------------------------------------- the plan */

static int make_plan(job *j) {
  kf_status status = kf_planner_create(&j->options, &j->planner);
  for (int call = 0; call < 2 && !status; call++) {
    double start = cli_now_us();
    status = kf_planner_plan(j->planner, j->batch, &j->plan);
    j->solve_us = cli_now_us() - start;
  }
  if (!status) status = kf_plan_check(j->plan, j->batch);
  return cli_exit_code(status, name, NULL);
}

/* -------------------------------------------------------------------------- the output */

static json_t *to_json(const request *q, const job *j) {
  const kf_figures *f = &j->plan->figures;
  char hash[17];
  snprintf(hash, sizeof hash, "%016" PRIx64, j->plan->hash);
  json_t *before =
    json_pack("{s:f,s:f}", "max_over_mean", f->before_max_over_mean, "step_s", f->before_step_s);
  json_t *after = json_pack("{s:f,s:f,s:f,s:f,s:I}", "max_over_mean", f->max_over_mean, "step_s",
                            f->step_s, "compute_s", f->compute_s, "comm_s", f->comm_s, "max_tokens",
                            (json_int_t)f->max_tokens);
  return json_pack(
    "{s:i,s:I,s:I,s:s,s:f,s:o,s:o,s:f,s:f,s:f,s:I,s:f,s:f,s:f,s:s}", "ranks", (int)j->plan->n_ranks,
    "seqs", (json_int_t)j->plan->n_seqs, "tokens", (json_int_t)f->tokens, "bags", q->bags,
    "ideal_s", f->ideal_s, "before", before, "after", after, "lower_bound_s", f->lower_bound_s,
    "gap", f->gap, "speedup", f->speedup, "split_seqs", (json_int_t)f->split_seqs, "a2a_fraction",
    f->a2a_fraction, "moved_fraction", f->moved_fraction, "solve_us", j->solve_us, "hash", hash);
}

static void print_chunks(const kf_plan *plan, bool json) {
  for (int64_t i = 0; i < plan->n_chunks; i++) {
    const kf_chunk *c = &plan->chunk[i];
    const int64_t row[8] = {c->seq,    c->source,     c->destination, c->offset,
                            c->length, c->first_head, c->heads,       c->part};
    if (json) fputs(i ? ",\n  [" : "\n  [", stdout);
    for (int k = 0; k < 8; k++) printf("%s%" PRId64, k == 0 ? "" : json ? ", " : " ", row[k]);
    fputs(json ? "]" : "\n", stdout);
  }
}

static int print_json(const request *q, const job *j) {
  json_t *object = to_json(q, j);
  char *text = json_dumps(object, JSON_EMBED | JSON_INDENT(1) | JSON_REAL_PRECISION(15));
  json_decref(object);
  if (!text) return cli_fail(EXIT_FAILED, name, "out of memory, or a figure is not finite");
  printf("{%.*s", (int)strlen(text) - 1, text); /* without the last newline */
  free(text);
  if (q->chunks) {
    fputs(",\n \"chunks\": [", stdout);
    print_chunks(j->plan, true);
    fputs("\n ]", stdout);
  }
  puts("\n}");
  return 0;
}

static void print_view(const request *q, const job *j) {
  cli_view view = {.data = data_of(q),
                   .model = q->model,
                   .cluster = q->cluster ? q->cluster : "as h100x32",
                   .bags = q->bags,
                   .gamma = q->gamma,
                   .ranks_per_node = j->options.cost.cluster.ranks_per_node,
                   .solve_us = j->solve_us};
  cli_view_plan(j->plan, &view);
  if (!q->chunks) return;
  puts("\nsequence source destination offset length first_head heads part");
  print_chunks(j->plan, false);
}

static int write_svg(const request *q, const job *j) {
  char title[200], *text;
  snprintf(title, sizeof title, "%.60s, bags %.60s", data_of(q), q->bags);
  kf_status status = kf_svg_plan(j->plan, title, &text);
  return status ? cli_exit_code(status, name, "--svg")
                : cli_write_file(name, "--svg", q->svg, text);
}

int cli_plan(char **argv) {
  request q = {
    .model = KF_DEFAULT_MODEL, .bags = "auto", .affinity = "fill", .gamma = KF_DEFAULT_GAMMA};
  job j = {0};
  const cli_option options[] = {
    {"--mix", .text = &q.mix},
    {"--lens", .text = &q.lens},
    {"--ranks", .whole = &q.ranks, .min = 1, .max = KF_MAX_RANKS},
    {"--seed", .whole = &q.seed, .max = INT64_MAX},
    {"--model", .text = &q.model},
    {"--gamma", .real = &q.gamma, .least = 1e-6, .most = 1e6},
    {"--cluster", .text = &q.cluster},
    {"--speeds", .text = &q.speeds},
    {"--bags", .text = &q.bags},
    {"--mem-tokens", .whole = &q.mem_tokens, .min = 1, .max = KF_MAX_TOKENS},
    {"--max-chunk-size", .whole = &q.max_chunk_size, .min = 1, .max = KF_MAX_LEN},
    {"--affinity", .text = &q.affinity},
    {"--budget-us", .whole = &q.budget_us, .min = 1, .max = 1000000000},
    {"--svg", .text = &q.svg},
    {"--json", .flag = &q.json},
    {"--chunks", .flag = &q.chunks}};
  int code = cli_parse(name, help, argv, options, (int)(sizeof options / sizeof *options));
  if (code >= 0) return code;
  const cli_file files[] = {{"--lens", q.lens, false}, {"--svg", q.svg, true}};
  if ((code = cli_check_files(name, files, 2))) goto done;
  if ((code = make_batch(&q, &j))) goto done;
  if ((code = make_cost(&q, &j))) goto done;
  if ((code = make_limits(&q, &j))) goto done;
  if ((code = make_plan(&j))) goto done;
  if (q.svg && (code = write_svg(&q, &j))) goto done;
  if (q.json)
    code = print_json(&q, &j);
  else
    print_view(&q, &j);
  if (!code) code = cli_close_stdout(name);

done:
  kf_planner_free(j.planner);
  kf_bags_free(j.bags);
  kf_batch_free(j.batch);
  free(j.speed);
  free(j.mem_tokens);
  return code;
}
