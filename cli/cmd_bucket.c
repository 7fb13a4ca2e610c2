/* SPDX-License-Identifier: Apache-2.0 */
/*
** knapformer bucket: lengths and limits in, the batches of five rules out, side by side, as a
** table, as JSON or as a picture.
**
**     lengths --kf_bucket_create--> batch sizes
**     lengths --kf_sampler_create--> an epoch's steps --kf_sampler_figures--> figures
**                                    steps of two_term --planner--> figures of two_term_balanced
**
** One sampler lives at a time: each copies the lengths, and a data set may have a hundred million.
*/
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cmd_bucket.h"

static const char name[] = "bucket";

enum { TITLE = 50 }; /* bytes of a file's name that fit into the picture's title */

static const char help[] =
  "usage: knapformer bucket --mix NAME|CODES LIMITS [OPTIONS]\n"
  "       knapformer bucket --lens FILE|- | --shapes LIST --ranks N LIMITS [OPTIONS]\n"
  "\n"
  "Size batches so that none exceeds what memory holds nor what a step may take, for loaders\n"
  "that draw whole batches, and compare the rules on one epoch: how unevenly the ranks work,\n"
  "how full memory is, how many tokens a second come out.\n"
  "\n"
  "What the data set has:\n"
  "  --lens FILE|-         lengths in tokens, or shapes in pixels as 832x480x81+392: width x\n"
  "                        height x frames + text tokens; each maybe *COUNT; separated by\n"
  "                        blanks, commas or ends of lines; - is standard input\n"
  "  --shapes LIST         the same on the command line: 1024x1024*6000,832x480x81*500\n"
  "  --mix NAME|CODES      the samples of all ranks of a mix: wan, or as for plan\n"
  "  --ranks N             how many ranks wait for each other; default for a mix: its own\n"
  "  --seed N              draws the mix and shuffles the samples (0)\n"
  "\n"
  "What a batch may hold and take, one of each pair:\n"
  "  --mem-tokens N        tokens\n"
  "  --mem-bytes N         bytes, as 80e9, 80GB or 80GiB; with\n"
  "    --fixed-bytes N     of these, for weights, gradients and optimiser (0)\n"
  "    --token-bytes N     of a token; default: what the model's blocks keep of it in bf16\n"
  "    --recompute         or what they keep where the backward pass computes them again\n"
  "  --match LEN           the work of one sequence of LEN tokens\n"
  "  --comp-seconds X      seconds\n"
  "\n"
  "What it costs:\n"
  "  --model NAME|SHAPE    flux (default), wan1.3b, wan14b, DiT-S, DiT-B, DiT-L, DiT-XL,\n"
  "                        or d=3072,layers=57,heads=24\n"
  "  --gamma G             seconds of an attention FLOP over those of another (0.4)\n"
  "  --fit FILE|-          in place of gamma: what \"knapformer fit -o\" saved, or the measured\n"
  "                        rows themselves\n"
  "  --cluster NAME|SPEC   as for plan; default free: two_term_balanced then counts no\n"
  "                        communication, as no other rule does\n"
  "\n"
  "How batches are made:\n"
  "  --mode MODE           random (default): each rank's next batch; same: one length a step;\n"
  "                        similar: batches of similar work share a step\n"
  "  --p P|best|fitted     exponent of the rule power: best (default) is the one of least\n"
  "                        imbalance within the limits; fitted follows the cost, or the\n"
  "                        measured rows\n"
  "  --window N            of packed: samples that it chooses among (1024)\n"
  "  --keep-all            cut batches in two rather than drop the last, incomplete step\n"
  "\n"
  "What is shown:\n"
  "  --json                one JSON object instead of the table\n"
  "  --svg FILE            also a picture\n"
  "\n"
  "equal_token: as many samples as memory holds. power: their len^p is limited too. two_term:\n"
  "their predicted seconds are. packed: samples of any lengths share a batch, filled to both\n"
  "limits. two_term_balanced: two_term, then each step is levelled by routing, with the memory\n"
  "limit as every rank's cap; of more than 1000 steps, 1000 are planned, evenly spaced.\n"
  "imbalance is the mean over steps of 1 - mean/max of the ranks' work.\n";

const char *const bucket_rule_name[N_RULES] = {"equal_token", "power", "two_term", "packed",
                                               "two_term_balanced"};
static const kf_rule rules[BALANCED] = {KF_RULE_EQUAL_TOKEN, KF_RULE_POWER, KF_RULE_TWO_TERM,
                                        KF_RULE_PACKED};

/* All options; NULL or 0 where not given, if there is no default. */
typedef struct request {
  const char *lens, *shapes, *mix, *model, *fit, *cluster, *mode, *p, *svg;
  const char *mem_bytes, *fixed_bytes, *token_bytes;
  int64_t ranks, seed, mem_tokens, match, window;
  double gamma, comp_seconds;
  bool recompute, keep_all, json;
} request;

/* What they become, and what must be freed. */
typedef struct job {
  int64_t *len; /* (result.n_samples) */
  kf_model model;
  bool has_rows;              /* --fit gave measured rows, and */
  double rows_p;              /* this is their power law */
  kf_sampler_options options; /* but for the rule */
  bucket_result result;
} job;

/* --------------------------------------------------------------------------- the samples */

static const char *data_of(const request *q) {
  return q->mix ? q->mix : q->lens ? cli_file_name(q->lens) : "shapes";
}

static int read_lens(const request *q, job *j) {
  bucket_result *r = &j->result;
  const char *option = q->lens ? "--lens" : "--shapes";
  char *text = NULL;
  size_t n_bytes = 0;
  int code = q->lens ? cli_read_file(name, option, q->lens, &text, &n_bytes) : 0;
  if (code) return code;
  kf_status status =
    q->lens ? kf_lens_parse(data_of(q), text, n_bytes, &j->len, &r->n_samples)
            : kf_lens_parse("list", q->shapes, strlen(q->shapes), &j->len, &r->n_samples);
  free(text);
  return cli_exit_code(status, name, option);
}

static int read_mix(const request *q, job *j) {
  bucket_result *r = &j->result;
  kf_batch *batch;
  kf_status status = kf_mix_create(q->mix, r->n_ranks, r->seed, &batch);
  if (status) return cli_exit_code(status, name, "--mix");
  size_t n_bytes = (size_t)batch->n_seqs * sizeof *j->len;
  r->n_ranks = batch->n_ranks;
  r->n_samples = batch->n_seqs;
  j->len = malloc(n_bytes);
  if (j->len) memcpy(j->len, batch->len, n_bytes);
  kf_batch_free(batch);
  return j->len ? 0 : cli_fail(EXIT_FAILED, name, "--mix: out of memory");
}

static int read_samples(const request *q, job *j) {
  int n_given = !!q->lens + !!q->shapes + !!q->mix, code;
  if (n_given != 1)
    return cli_fail(EXIT_MISUSE, name, "found %s --mix, --lens and --shapes, expected one of them",
                    n_given ? "several of" : "none of");
  if (!q->ranks && !q->mix)
    return cli_fail(EXIT_MISUSE, name, "found no --ranks, expected the number of ranks");
  bucket_result *r = &j->result;
  r->n_ranks = (int32_t)q->ranks;
  r->seed = (uint64_t)q->seed;
  r->data = data_of(q);
  if ((code = q->mix ? read_mix(q, j) : read_lens(q, j))) return code;
  for (int64_t i = 0; i < r->n_samples; i++) r->n_tokens += j->len[i];
  j->options.bucket.n_ranks = r->n_ranks;
  j->options.seed = r->seed;
  return 0;
}

/* ------------------------------------------------------------------------------ the cost */

/* The first line that says something: neither empty, nor a comment, nor a YAML document's start. */
static const char *first_line(const char *text, size_t n_bytes, int *length) {
  const char *end = text + n_bytes, *line = text;
  while (line < end) {
    const char *stop = memchr(line, '\n', (size_t)(end - line));
    if (!stop) stop = end;
    *length = (int)(stop - line);
    if (*line != '#' && *line != '\r' && stop > line && strncmp(line, "---", 3) != 0) return line;
    line = stop < end ? stop + 1 : end;
  }
  *length = 0;
  return line;
}

static kf_status fit_rows(const char *file, const char *text, size_t n_bytes, job *j) {
  kf_fit_row *row;
  kf_fit fit;
  int64_t n_rows;
  kf_cost *cost = &j->options.bucket.cost;
  kf_status status = kf_fit_parse(file, text, n_bytes, &row, &n_rows);
  if (status) return status;
  status = kf_fit_rows(row, n_rows, NULL, NULL, &fit);
  free(row);
  if (status) return status;
  if (fit.linear_s == 0 && fit.quadratic_s == 0)
    return kf_fail(KF_EINVAL,
                   "the rows fit a constant alone, expected seconds that grow with seq_len");
  cost->linear_s = fit.linear_s;
  cost->quadratic_s = fit.quadratic_s;
  cost->constant_s = fit.constant_s;
  j->has_rows = true;
  j->rows_p = fit.power_p;
  j->result.n_rows = n_rows;
  j->result.fit_mape = fit.mape;
  return KF_OK;
}

/* What `knapformer fit` wrote begins with "cost:", and a header of rows has a comma. */
static int read_fit(const request *q, job *j) {
  char *text = NULL;
  size_t n_bytes = 0;
  int length, code = cli_read_file(name, "--fit", q->fit, &text, &n_bytes);
  if (code) return code;
  const char *line = first_line(text, n_bytes, &length), *file = cli_file_name(q->fit);
  if (length >= 5 && strncmp(line, "cost:", 5) == 0) {
    code = cli_exit_code(kf_fit_load(file, text, n_bytes, &j->options.bucket.cost), name, "--fit");
  } else if (length > 0 && memchr(line, ',', (size_t)length)) {
    code = cli_exit_code(fit_rows(file, text, n_bytes, j), name, "--fit");
  } else
    code = cli_fail(EXIT_MISUSE, name,
                    "--fit: \"%s\" has neither the cost that \"knapformer fit -o\" saves nor rows "
                    "with the columns seq_len,seconds",
                    file);
  free(text);
  return code;
}

static int make_cost(const request *q, job *j) {
  bucket_result *r = &j->result;
  r->gamma = q->gamma > 0 ? q->gamma : KF_DEFAULT_GAMMA;
  r->model = q->model;
  r->fit = q->fit ? cli_file_name(q->fit) : NULL;
  if (q->gamma > 0 && q->fit)
    return cli_fail(EXIT_MISUSE, name, "found both --gamma and --fit, expected one of them");
  kf_status status = kf_model_parse(q->model, &j->model);
  if (status) return cli_exit_code(status, name, "--model");
  if (!*q->cluster)
    return cli_fail(EXIT_MISUSE, name, "--cluster: found \"\", expected a name or a text");
  status = kf_cost_preset(q->model, q->cluster, r->n_ranks, r->gamma, &j->options.bucket.cost);
  if (status) return cli_exit_code(status, name, "--cluster"); /* all that can still be wrong */
  return q->fit ? read_fit(q, j) : 0;
}

/* ---------------------------------------------------------------------------- the limits */

/* "80e9", "80GB", "80GiB". */
static bool read_bytes(const char *option, const char *text, double min, double *out) {
  static const struct {
    const char *unit;
    double bytes;
  } units[] = {{"", 1},      {"B", 1},        {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
               {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  char number[32];
  size_t n = strspn(text, "0123456789.eE+-");
  const char *unit = text + n;
  if (n > 0 && n < sizeof number && text[0] >= '0' && text[0] <= '9') {
    char *end;
    memcpy(number, text, n);
    number[n] = 0;
    double value = strtod(number, &end);
    for (size_t i = 0; !*end && i < sizeof units / sizeof *units; i++)
      if (strcmp(unit, units[i].unit) == 0 && value * units[i].bytes >= min &&
          value * units[i].bytes <= 1e18) {
        *out = value * units[i].bytes;
        return true;
      }
  }
  cli_fail(EXIT_MISUSE, name,
           "%s: found \"%s\", expected bytes from %g to 1e18, as 80e9, 80GB or 80GiB", option, text,
           min);
  return false;
}

static int read_memory(const request *q, job *j) {
  kf_activations activations;
  double limit_bytes;
  kf_status status;
  const char *const stray[] = {q->fixed_bytes ? "--fixed-bytes" : NULL,
                               q->token_bytes ? "--token-bytes" : NULL,
                               q->recompute ? "--recompute" : NULL};
  if (!q->mem_tokens == !q->mem_bytes)
    return cli_fail(EXIT_MISUSE, name, "found %s --mem-bytes, expected one of them",
                    q->mem_tokens ? "both --mem-tokens and" : "neither --mem-tokens nor");
  for (int i = 0; i < 3 && !q->mem_bytes; i++)
    if (stray[i])
      return cli_fail(EXIT_MISUSE, name, "found %s with --mem-tokens, expected --mem-bytes",
                      stray[i]);
  j->options.bucket.mem_tokens = q->mem_tokens;
  if (q->mem_tokens) return 0;
  if (q->token_bytes && q->recompute)
    return cli_fail(EXIT_MISUSE, name,
                    "found both --token-bytes and --recompute, expected one of them");
  if (!read_bytes("--mem-bytes", q->mem_bytes, 1, &limit_bytes)) return EXIT_MISUSE;
  if ((status = kf_activations_static(&j->model, 2, q->recompute, &activations)))
    return cli_exit_code(status, name, "--model");
  if (q->token_bytes && !read_bytes("--token-bytes", q->token_bytes, 1, &activations.token_bytes))
    return EXIT_MISUSE;
  if (q->fixed_bytes && !read_bytes("--fixed-bytes", q->fixed_bytes, 0, &activations.fixed_bytes))
    return EXIT_MISUSE;
  j->result.token_bytes = activations.token_bytes;
  j->result.token_bytes_of = q->token_bytes ? NULL : j->result.model;
  status = kf_activations_tokens(&activations, limit_bytes, &j->options.bucket.mem_tokens);
  return cli_exit_code(status, name, "--mem-bytes");
}

static int read_compute(const request *q, job *j) {
  if (!q->match == !(q->comp_seconds > 0))
    return cli_fail(EXIT_MISUSE, name, "found %s --comp-seconds, expected one of them",
                    q->match ? "both --match and" : "neither --match nor");
  j->options.bucket.match_len = q->match;
  j->options.bucket.comp_s = q->comp_seconds;
  return 0;
}

static int read_power(const request *q, job *j) {
  kf_bucket_options *b = &j->options.bucket;
  if (strcmp(q->p, "best") == 0) return 0;
  if (strcmp(q->p, "fitted") != 0) {
    b->power = KF_POWER_GIVEN;
    if (*q->p < '0' || *q->p > '9')
      return cli_fail(EXIT_MISUSE, name,
                      "--p: found \"%s\", expected best, fitted or a number from 0.5 to 3", q->p);
    return cli_real(name, "--p", q->p, 0.5, 3, &b->p) ? 0 : EXIT_MISUSE;
  }
  b->power = KF_POWER_FITTED;
  if (!j->has_rows) return 0;
  if (j->rows_p < 0.5 || j->rows_p > 3)
    return cli_fail(EXIT_MISUSE, name, "--p: the rows of %s fit %.2f, expected 0.5 to 3",
                    cli_file_name(q->fit), j->rows_p);
  b->power = KF_POWER_GIVEN;
  b->p = j->rows_p;
  return 0;
}

static int read_manner(const request *q, job *j) {
  static const char *const modes[] = {"random", "same", "similar"}; /* as kf_step_mode */
  int i = 0, code;
  while (i < 3 && strcmp(q->mode, modes[i]) != 0) i++;
  if (i == 3)
    return cli_fail(EXIT_MISUSE, name, "--mode: found \"%s\", expected random, same or similar",
                    q->mode);
  j->options.mode = (kf_step_mode)i;
  j->result.mode = modes[i];
  if ((code = read_power(q, j))) return code;
  j->options.window = q->window;
  j->options.keep_all = q->keep_all;
  return 0;
}

/* ----------------------------------------------------------------------------- the rules */

/* Of all rules by the lengths, each once: the first call sorts them out. */
static kf_status make_buckets(job *j) {
  bucket_result *r = &j->result;
  kf_bucket_options options = j->options.bucket;
  kf_buckets *fitted;
  options.rule = rules[EQUAL_TOKEN];
  kf_status status =
    kf_bucket_create(&options, j->len, NULL, r->n_samples, &r->buckets[EQUAL_TOKEN]);
  if (status) return status;
  int64_t n = r->buckets[EQUAL_TOKEN]->n;
  int64_t *len = malloc((size_t)(n > 0 ? n : 1) * 2 * sizeof *len), *count = len + n;
  if (!len) return kf_fail(KF_ENOMEM, "out of memory for the lengths");
  for (int64_t i = 0; i < n; i++) {
    len[i] = r->buckets[EQUAL_TOKEN]->bucket[i].len;
    count[i] = r->buckets[EQUAL_TOKEN]->bucket[i].count;
  }
  for (int rule = POWER; rule < N_BUCKETED && !status; rule++) {
    options.rule = rules[rule];
    status = kf_bucket_create(&options, len, count, n, &r->buckets[rule]);
  }
  r->fitted_p = j->rows_p;
  if (!status && !j->has_rows) {
    options.rule = KF_RULE_POWER;
    options.power = KF_POWER_FITTED;
    status = kf_bucket_create(&options, len, count, n, &fitted);
    if (!status) r->fitted_p = fitted->p;
    if (!status) kf_bucket_free(fitted);
  }
  free(len);
  return status;
}

static kf_status run_rule(job *j, int rule) {
  bucket_result *r = &j->result;
  kf_sampler_options options = j->options;
  kf_sampler *sampler;
  options.bucket.rule = rules[rule];
  if (rule == POWER) { /* the search was made for the buckets */
    options.bucket.power = KF_POWER_GIVEN;
    options.bucket.p = r->buckets[POWER]->p;
  }
  kf_status status = kf_sampler_create(&options, j->len, r->n_samples, &sampler);
  if (status) return status;
  status = kf_sampler_figures(sampler, &r->epoch[rule]);
  if (!status && rule == TWO_TERM) status = bucket_level(sampler, &options.bucket, r);
  kf_sampler_free(sampler);
  return status;
}

static int run(job *j) {
  kf_status status = make_buckets(j);
  int64_t n_steps = 0;
  for (int rule = 0; rule < BALANCED && !status; rule++) {
    status = run_rule(j, rule);
    n_steps += j->result.epoch[rule].n_steps;
  }
  if (status) return cli_exit_code(status, name, NULL);
  if (n_steps == 0)
    return cli_fail(EXIT_FAILED, name,
                    "%" PRId64 " sample%s: no rule makes a step of %" PRId32 " ranks, expected a "
                    "batch for each rank",
                    j->result.n_samples, j->result.n_samples == 1 ? "" : "s", j->result.n_ranks);
  return 0;
}

/* ---------------------------------------------------------------------------- the output */

static json_t *rule_json(const bucket_result *r, int rule) {
  const kf_epoch *e = &r->epoch[rule];
  json_t *object = json_pack(
    "{s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "imbalance_rate",
    e->imbalance_rate, "mean_memory_use", e->mean_memory_use, "max_memory_use", e->max_memory_use,
    "predicted_tokens_per_s", e->predicted_tokens_per_s, "predicted_s", e->predicted_s,
    "mean_compute_use", e->mean_compute_use, "max_compute_use", e->max_compute_use, "steps",
    (json_int_t)e->n_steps, "batches", (json_int_t)e->n_batches, "samples",
    (json_int_t)e->n_samples, "dropped_batches", (json_int_t)e->dropped_batches, "dropped_samples",
    (json_int_t)e->dropped_samples, "dropped_tokens", (json_int_t)e->dropped_tokens,
    "underfilled_batches", (json_int_t)e->underfilled_batches, "split_batches",
    (json_int_t)e->split_batches, "over_batches", (json_int_t)e->over_batches, "mixed_steps",
    (json_int_t)e->mixed_steps);
  if (rule == POWER) json_object_set_new(object, "p", json_real(r->buckets[POWER]->p));
  if (rule == BALANCED) {
    json_object_set_new(object, "planned_steps", json_integer(r->planned_steps));
    json_object_set_new(object, "unlevelled_steps", json_integer(r->unlevelled_steps));
  }
  return object;
}

static json_t *to_json(const bucket_result *r) {
  json_t *all = json_object(), *list = json_array();
  const kf_buckets *limits = r->buckets[TWO_TERM];
  for (int rule = 0; rule < N_RULES; rule++)
    json_object_set_new(all, bucket_rule_name[rule], rule_json(r, rule));
  for (int64_t i = 0; i < limits->n; i++)
    json_array_append_new(
      list, json_pack("{s:I,s:I,s:I,s:I,s:I}", "seq_len", (json_int_t)limits->bucket[i].len,
                      "count", (json_int_t)limits->bucket[i].count, "batch_equal_token",
                      (json_int_t)r->buckets[EQUAL_TOKEN]->bucket[i].batch_size, "batch_power",
                      (json_int_t)r->buckets[POWER]->bucket[i].batch_size, "batch_two_term",
                      (json_int_t)limits->bucket[i].batch_size));
  return json_pack("{s:i,s:I,s:I,s:I,s:f,s:f,s:s,s:I,s:f,s:o,s:o}", "ranks", (int)r->n_ranks,
                   "samples", (json_int_t)r->n_samples, "tokens", (json_int_t)r->n_tokens,
                   "mem_tokens", (json_int_t)limits->mem_tokens, "comp_s", limits->comp_s,
                   "match_len", limits->match_len, "mode", r->mode, "seed", (json_int_t)r->seed,
                   "fitted_p", r->fitted_p, "rules", all, "buckets", list);
}

static int write_svg(const char *path, const bucket_result *r) {
  char title[200], *text;
  kf_bucket_panel panel[N_RULES];
  for (int rule = 0; rule < N_RULES; rule++)
    panel[rule] = (kf_bucket_panel){.name = bucket_rule_name[rule],
                                    .buckets = rule < N_BUCKETED ? r->buckets[rule] : NULL,
                                    .epoch = &r->epoch[rule]};
  const char *slash = strrchr(r->data, '/'), *data = slash && slash[1] ? slash + 1 : r->data;
  int n = (int)strlen(data), shown = n;
  if (n > TITLE)
    for (shown = TITLE; shown > 0 && (data[shown] & 0xc0) == 0x80;) shown--; /* whole letters */
  snprintf(title, sizeof title, "%.*s%s, %" PRId32 " ranks, mode %s", shown, data,
           shown < n ? "..." : "", r->n_ranks, r->mode);
  kf_status status = kf_svg_buckets(panel, N_RULES, title, &text);
  return status ? cli_exit_code(status, name, "--svg") : cli_write_file(name, "--svg", path, text);
}

int cli_bucket(char **argv) {
  request q = {.model = KF_DEFAULT_MODEL, .cluster = "free", .mode = "random", .p = "best"};
  job j = {0};
  const cli_option options[] = {
    {"--lens", .text = &q.lens},
    {"--shapes", .text = &q.shapes},
    {"--mix", .text = &q.mix},
    {"--ranks", .whole = &q.ranks, .min = 1, .max = KF_MAX_RANKS},
    {"--seed", .whole = &q.seed, .max = INT64_MAX},
    {"--mem-tokens", .whole = &q.mem_tokens, .min = 1, .max = KF_MAX_TOKENS},
    {"--mem-bytes", .text = &q.mem_bytes},
    {"--fixed-bytes", .text = &q.fixed_bytes},
    {"--token-bytes", .text = &q.token_bytes},
    {"--recompute", .flag = &q.recompute},
    {"--match", .whole = &q.match, .min = 1, .max = KF_MAX_LEN},
    {"--comp-seconds", .real = &q.comp_seconds, .least = 1e-9, .most = 1e9},
    {"--model", .text = &q.model},
    {"--gamma", .real = &q.gamma, .least = 1e-6, .most = 1e6},
    {"--fit", .text = &q.fit},
    {"--cluster", .text = &q.cluster},
    {"--mode", .text = &q.mode},
    {"--p", .text = &q.p},
    {"--window", .whole = &q.window, .min = 1, .max = 1 << 20},
    {"--keep-all", .flag = &q.keep_all},
    {"--svg", .text = &q.svg},
    {"--json", .flag = &q.json}};
  int code = cli_parse(name, help, argv, options, (int)(sizeof options / sizeof *options));
  if (code >= 0) return code;
  const cli_file files[] = {
    {"--lens", q.lens, false}, {"--fit", q.fit, false}, {"--svg", q.svg, true}};
  if ((code = cli_check_files(name, files, 3))) goto done;
  if ((code = read_samples(&q, &j))) goto done;
  if ((code = make_cost(&q, &j))) goto done;
  if ((code = read_memory(&q, &j))) goto done;
  if ((code = read_compute(&q, &j))) goto done;
  if ((code = read_manner(&q, &j))) goto done;
  if ((code = run(&j))) goto done;
  if (q.svg && (code = write_svg(q.svg, &j.result))) goto done;
  if (q.json)
    code = cli_print_json(name, to_json(&j.result), 15);
  else
    bucket_view(&j.result);
  if (!code) code = cli_close_stdout(name);

done:
  for (int rule = 0; rule < N_BUCKETED; rule++) kf_bucket_free(j.result.buckets[rule]);
  free(j.len);
  return code;
}
