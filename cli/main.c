/* SPDX-License-Identifier: Apache-2.0 */
/* The `knapformer` program: find the command and call it. */
#include <locale.h>
#include <string.h>

#include "cli.h"

static const char help[] =
  "knapformer: an online load balancer for Diffusion Transformer training\n"
  "\n"
  "usage: knapformer COMMAND [OPTIONS]\n"
  "\n"
  "  train   train a Diffusion Transformer, with and without the balancer\n"
  "  plan    balance one step and show who computes what\n"
  "  fit     turn measured times into the coefficients of a cost\n"
  "  bucket  size batches by memory and compute, and compare the rules\n"
  "  config  check a configuration, or print one to start from\n"
  "  sim     watch the online scheduler learn, on a simulated clock\n"
  "  bench   measure the library on this machine\n"
  "\n"
  "  --help, --version   also after a command\n"
  "\n"
  "try: knapformer plan --mix joint\n";

static const struct {
  const char *name;
  int (*run)(char **argv);
} commands[] = {{"train", cli_train},   {"plan", cli_plan},     {"fit", cli_fit},
                {"bucket", cli_bucket}, {"config", cli_config}, {"sim", cli_sim},
                {"bench", cli_bench}};

int main(int argc, char **argv) {
  setlocale(LC_CTYPE, ""); /* to know whether the terminal speaks UTF-8; numbers stay in C */
  if (argc < 2) {
    fputs(help, stderr);
    return EXIT_MISUSE;
  }
  for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
    if (strcmp(argv[1], commands[i].name) == 0) return commands[i].run(argv + 2);
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
      strcmp(argv[1], "--version") == 0)
    return cli_parse(NULL, help, argv + 1, NULL, 0);
  return cli_fail(EXIT_MISUSE, NULL,
                  "unknown command \"%s\", expected train, plan, fit, bucket, config, sim or bench",
                  argv[1]);
}
