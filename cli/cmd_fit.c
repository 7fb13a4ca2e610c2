/* SPDX-License-Identifier: Apache-2.0 */
/* knapformer fit: measured times in, the coefficients of a cost out. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static const char name[] = "fit";

static const char help[] =
  "usage: knapformer fit FILE.csv|- [OPTIONS]\n"
  "\n"
  "Fit what a sequence costs, linear * len + quadratic * len^2 + constant seconds, to measured\n"
  "rows. Rows far off the others are found and left out; ranks may differ in speed.\n"
  "\n"
  "  FILE.csv|-            a header with seq_len, seconds and maybe rank, in any order, other\n"
  "                        columns are skipped; then a line for each whole sequence that\n"
  "                        a rank computed alone, forward and backward; - is standard\n"
  "                        input\n"
  "  -o FILE               save the coefficients, for cost_model: modelled\n"
  "  --model NAME|SHAPE    for gamma: flux (default), wan1.3b, wan14b, DiT-S, DiT-B, DiT-L,\n"
  "                        DiT-XL, or d=3072,layers=57,heads=24\n"
  "  --svg FILE            also a picture: measured over predicted, and the errors by length\n"
  "  --json                one JSON object instead of the table\n";

typedef struct request {
  const char *file, *output, *model, *svg;
  bool json;
} request;

typedef struct job {
  kf_model model;
  kf_fit_row *row;
  int64_t n_rows;
  double *slowness; /* (fit.n_ranks) */
  uint8_t *outlier; /* (n_rows) */
  kf_fit fit;
  double gamma;
} job;

/* ------------------------------------------------------------------------------ the fit */

static int read_rows(const request *q, job *j) {
  char *text = NULL;
  size_t n_bytes = 0;
  if (!q->file)
    return cli_fail(EXIT_MISUSE, name, "found no file, expected FILE.csv or - (standard input)");
  kf_status status = kf_model_parse(q->model ? q->model : KF_DEFAULT_MODEL, &j->model);
  if (status) return cli_exit_code(status, name, "--model");
  int code = cli_read_file(name, NULL, q->file, &text, &n_bytes);
  if (code) return code;
  status = kf_fit_parse(cli_file_name(q->file), text, n_bytes, &j->row, &j->n_rows);
  free(text);
  return cli_exit_code(status, name, NULL);
}

static int fit_rows(const request *q, job *j) {
  int32_t n_ranks = 1;
  for (int64_t i = 0; i < j->n_rows; i++)
    if (j->row[i].rank >= n_ranks) n_ranks = j->row[i].rank + 1;
  j->slowness = malloc((size_t)n_ranks * sizeof *j->slowness);
  j->outlier = malloc((size_t)j->n_rows);
  if (!j->slowness || !j->outlier) return cli_fail(EXIT_FAILED, name, "out of memory");
  kf_status status = kf_fit_rows(j->row, j->n_rows, j->slowness, j->outlier, &j->fit);
  if (status) return cli_exit_code(status, name, cli_file_name(q->file));
  j->gamma = kf_fit_gamma(&j->fit, &j->model);
  return 0;
}

/* ---------------------------------------------------------------------------- the output */

static int save(const char *option, const char *path, char *text) {
  kf_status status = kf_file_replace(path, text, strlen(text));
  free(text);
  return cli_exit_code(status, name, option);
}

static int write_cost(const request *q, const job *j) {
  char *text;
  kf_status status = kf_fit_text(&j->fit, &text);
  return status ? cli_exit_code(status, name, "-o") : save("-o", q->output, text);
}

/* Drawn as if all ranks were as fast as the median rank. */
static int write_svg(const request *q, const job *j) {
  char *text;
  kf_fit_row *even = malloc((size_t)j->n_rows * sizeof *even);
  if (!even) return cli_fail(EXIT_FAILED, name, "--svg: out of memory");
  for (int64_t i = 0; i < j->n_rows; i++) {
    even[i] = j->row[i];
    even[i].seconds /= j->slowness[even[i].rank];
  }
  kf_status status =
    kf_svg_fit(even, j->n_rows, j->outlier, &j->fit, cli_file_name(q->file), &text);
  free(even);
  return status ? cli_exit_code(status, name, "--svg") : save("--svg", q->svg, text);
}

static json_t *to_json(const job *j) {
  const kf_fit *f = &j->fit;
  json_t *object =
    json_pack("{s:f,s:f,s:f,s:o,s:f,s:f,s:f,s:f,s:f,s:I,s:I}", "linear_s", f->linear_s,
              "quadratic_s", f->quadratic_s, "constant_s", f->constant_s, "gamma",
              isinf(j->gamma) ? json_null() : json_real(j->gamma), "r2", f->r2, "mape", f->mape,
              "holdout_mape", f->holdout_mape, "power_p", f->power_p, "power_mape", f->power_mape,
              "rows", (json_int_t)f->n_rows, "outliers", (json_int_t)f->n_outliers);
  if (f->n_ranks == 1) return object;
  json_t *slowness = json_array();
  for (int32_t r = 0; r < f->n_ranks; r++)
    json_array_append_new(slowness, json_real(j->slowness[r]));
  json_object_set_new(object, "slowness", slowness);
  return object;
}

/* Four digits, in the unit that suits: a token squared takes nanoseconds, or less. */
static const char *seconds(double s, char out[32]) {
  static const char *const units[] = {"s", "ms", "us", "ns", "ps"};
  int k = 0;
  for (; k < 4 && s > 0 && s < 0.9995; k++) s *= 1e3;
  int decimals = s == 0 || s >= 999.5 ? 0 : s < 9.9995 ? 3 : s < 99.995 ? 2 : 1;
  bool plain = s == 0 || (s >= 1e-3 && s < 1e6);
  snprintf(out, 32, plain ? "%.*f %s" : "%.*g %s", plain ? decimals : 4, s, units[k]);
  return out;
}

/* Who differs most from the median rank. */
static void print_ranks(const job *j) {
  int32_t slowest = 0, fastest = 0;
  if (j->fit.n_ranks == 1) return;
  for (int32_t r = 1; r < j->fit.n_ranks; r++) {
    if (j->slowness[r] > j->slowness[slowest]) slowest = r;
    if (j->slowness[r] < j->slowness[fastest]) fastest = r;
  }
  printf("  slowest rank   %11.3f   times the median rank's seconds: rank %" PRId32 "\n",
         j->slowness[slowest], slowest);
  printf("  fastest rank   %11.3f   rank %" PRId32 "\n", j->slowness[fastest], fastest);
}

static void print_table(const request *q, const job *j) {
  const kf_fit *f = &j->fit;
  char text[32];
  int64_t shortest = j->row[0].len, longest = j->row[0].len;
  for (int64_t i = 1; i < j->n_rows; i++) {
    if (j->row[i].len < shortest) shortest = j->row[i].len;
    if (j->row[i].len > longest) longest = j->row[i].len;
  }
  printf("%s: %" PRId64 " rows, %" PRId64 " outlier%s, lengths %" PRId64 " to %" PRId64,
         cli_file_name(q->file), f->n_rows, f->n_outliers, f->n_outliers == 1 ? "" : "s", shortest,
         longest);
  if (f->n_ranks > 1) printf(", %" PRId32 " ranks", f->n_ranks);
  printf("\n\n  linear         %11s   a token\n", seconds(f->linear_s, text));
  printf("  quadratic      %11s   a token squared\n", seconds(f->quadratic_s, text));
  printf("  constant       %11s   a sequence\n", seconds(f->constant_s, text));
  snprintf(text, sizeof text, "%.4f", j->gamma);
  printf("  gamma          %11s   an attention FLOP of %s against another\n",
         isinf(j->gamma) ? "-" : text, q->model ? q->model : KF_DEFAULT_MODEL);
  printf("  mean error     %10.2f%%   %.2f%% on rows not seen\n", 100 * f->mape,
         100 * f->holdout_mape);
  printf("  r2             %11.5f\n", f->r2);
  print_ranks(j);
  printf("\npower law l^%.2f: %.1f%% mean error", f->power_p, 100 * f->power_mape);
  if (f->mape > 1e-9) printf(", %.1f times the two-term fit's", f->power_mape / f->mape);
  puts("");
}

int cli_fit(char **argv) {
  request q = {0};
  job j = {0};
  const cli_option options[] = {{NULL, .text = &q.file},
                                {"-o", .text = &q.output},
                                {"--model", .text = &q.model},
                                {"--svg", .text = &q.svg},
                                {"--json", .flag = &q.json}};
  int code = cli_parse(name, help, argv, options, (int)(sizeof options / sizeof *options));
  if (code >= 0) return code;
  const cli_file files[] = {
    {"FILE.csv", q.file, false}, {"-o", q.output, true}, {"--svg", q.svg, true}};
  if ((code = cli_check_files(name, files, 3))) return code;
  if ((code = read_rows(&q, &j))) goto done;
  if ((code = fit_rows(&q, &j))) goto done;
  if (q.output && (code = write_cost(&q, &j))) goto done;
  if (q.svg && (code = write_svg(&q, &j))) goto done;
  if (q.json)
    code = cli_print_json(name, to_json(&j), 15);
  else
    print_table(&q, &j);
  if (!code) code = cli_close_stdout(name);

done:
  free(j.row);
  free(j.slowness);
  free(j.outlier);
  return code;
}
