/* SPDX-License-Identifier: Apache-2.0 */
/* A committed table of figures: printed, or compared line by line with the file that holds it. */
#ifndef LEDGER_H
#define LEDGER_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { LEDGER_LINE = 512 };

/* Prints a fresh line, or compares it with the next one of `file`. Returns whether they agree. */
static inline bool ledger_settle(FILE *file, const char *fresh) {
  char old[LEDGER_LINE];
  if (!file) {
    fputs(fresh, stdout);
    return true;
  }
  if (!fgets(old, sizeof old, file)) old[0] = 0;
  if (strcmp(old, fresh) == 0) return true;
  printf("-%s+%s", *old ? old : "\n", fresh);
  return false;
}

/* The main of a table: `run` writes or compares all lines and returns how many differ. */
static inline int ledger_main(int argc, char **argv, int (*run)(FILE *file)) {
  char rest[LEDGER_LINE];
  if (argc < 2) return run(NULL) != 0;
  FILE *file = fopen(argv[1], "r");
  if (!file) {
    perror(argv[1]);
    return 1;
  }
  int n_differ = run(file);
  if (fgets(rest, sizeof rest, file)) n_differ++; /* lines that nobody makes any more */
  fclose(file);
  if (n_differ)
    printf("%d lines differ. If that is meant, write the file anew and read its diff.\n", n_differ);
  return n_differ != 0;
}

#endif
