/* SPDX-License-Identifier: Apache-2.0 */
/* knapformer config: is a configuration right, and what does it come to? */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static const char name[] = "config";

static const char help[] =
  "usage: knapformer config --check FILE|- [--set KEY=VALUE].. [--ranks N] [--print]\n"
  "       knapformer config --print-default [--set KEY=VALUE]..\n"
  "\n"
  "Read a configuration as training would, and say what is wrong with it: file, line, what\n"
  "stands there, what was expected.\n"
  "\n"
  "  --check FILE|-     the YAML file; - is standard input\n"
  "  --set KEY=VALUE    change a key after reading; may be given several times\n"
  "  --ranks N          also see that bags and cluster fit N ranks; default: as many as\n"
  "                     torchrun, mpirun or srun has started, else this is not checked\n"
  "  --print            print the configuration that results, as YAML\n"
  "  --print-default    print all keys with their defaults, as YAML to start from\n";

typedef struct request {
  const char *check;
  int64_t ranks; /* 0: not given */
  cli_list set;
  bool print, print_default;
} request;

/* A cost that training could not load is better found here. */
static int check_cost_file(const kf_config *config) {
  kf_config alone = {0}; /* which fits any ranks */
  kf_scheduler_options *meaning = NULL;
  strcpy(alone.cost_file, config->cost_file);
  kf_status status = kf_config_resolve(&alone, 1, &meaning);
  kf_scheduler_options_free(meaning);
  return cli_exit_code(status, name, NULL);
}

static int print_text(const kf_config *config) {
  char *text = NULL;
  kf_status status = kf_config_text(config, &text);
  if (status) return cli_exit_code(status, name, NULL);
  fputs(text, stdout);
  free(text);
  return 0;
}

/* --ranks, else the launcher's; n_ranks 0: nobody says. */
static int find_ranks(const request *q, cli_ranks *ranks) {
  int code = cli_find_ranks(name, ranks);
  if (code) return code;
  if (q->ranks || !ranks->launcher) {
    ranks->n_ranks = (int32_t)q->ranks;
    ranks->launcher = NULL;
  }
  return 0;
}

static void print_verdict(const char *file, const cli_ranks *ranks) {
  if (ranks->n_ranks == 0)
    printf("%s is good; --ranks N also sees that it fits N ranks\n", file);
  else
    printf("%s is good for %" PRId32 " rank%s%s%s\n", file, ranks->n_ranks,
           ranks->n_ranks > 1 ? "s" : "", ranks->launcher ? ", as started by " : "",
           ranks->launcher ? ranks->launcher : "");
}

int cli_config(char **argv) {
  request q = {0};
  kf_config config = {0};
  cli_ranks ranks = {0};
  const cli_option options[] = {{"--check", .text = &q.check},
                                {"--set", .list = &q.set},
                                {"--ranks", .whole = &q.ranks, .min = 1, .max = KF_MAX_RANKS},
                                {"--print", .flag = &q.print},
                                {"--print-default", .flag = &q.print_default}};
  int code = cli_parse(name, help, argv, options, (int)(sizeof options / sizeof *options));
  if (code >= 0) return code;
  if (!q.check == !q.print_default)
    return cli_fail(EXIT_MISUSE, name, "found %s --print-default, expected one of them",
                    q.check ? "both --check and" : "neither --check nor");
  if (q.print_default && (q.ranks || q.print))
    return cli_fail(EXIT_MISUSE, name, "found %s with --print-default, expected it with --check",
                    q.ranks ? "--ranks" : "--print");
  if (q.check && (code = find_ranks(&q, &ranks))) return code;
  const cli_configuration asked = {"--check", q.check, &q.set, NULL, 0, false};
  if ((code = cli_configure(name, &asked, &config))) return code;
  kf_status status = q.check ? kf_config_check(&config, ranks.n_ranks) : KF_OK;
  if (status) return cli_exit_code(status, name, cli_file_name(q.check));
  if (q.check && (code = check_cost_file(&config))) return code;
  if (ranks.rank > 0) return 0; /* one speaks for all */
  if (!q.print && !q.print_default)
    print_verdict(cli_file_name(q.check), &ranks);
  else if ((code = print_text(&config)))
    return code;
  return cli_close_stdout(name);
}
