/* SPDX-License-Identifier: Apache-2.0 */
/*
** Options, numbers and messages.
**
** getopt_long would do, but it accepts abbreviations (--b, which a later --bars would break)
** and words its own messages; a table and forty lines do what is wanted.
*/
#include "cli.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* In one piece: ranks of a job may speak at the same time. */
int cli_fail(int code, const char *command, const char *format, ...) {
  char sentence[4096];
  va_list args;
  va_start(args, format);
  vsnprintf(sentence, sizeof sentence, format, args);
  va_end(args);
  fprintf(stderr, "knapformer%s%s: %s\n", command ? " " : "", command ? command : "", sentence);
  return code;
}

int cli_exit_code(kf_status status, const char *command, const char *option) {
  const char *sentence = kf_last_error();
  if (!status) return 0;
  int code = status == KF_EINVAL ? EXIT_MISUSE : EXIT_FAILED;
  if (!*sentence) sentence = kf_status_string(status);
  return option ? cli_fail(code, command, "%s: %s", option, sentence)
                : cli_fail(code, command, "%s", sentence);
}

int cli_close_stdout(const char *command) {
  bool failed = ferror(stdout) != 0;
  errno = 0;
  if (fclose(stdout) != 0 || failed)
    return cli_fail(EXIT_FAILED, command, "cannot write the output%s%s", errno ? ": " : "",
                    errno ? strerror(errno) : "");
  return 0;
}

int cli_print_json(const char *command, json_t *object, int digits) {
  char *text = json_dumps(object, JSON_INDENT(1) | JSON_REAL_PRECISION((size_t)digits));
  json_decref(object);
  if (!text) return cli_fail(EXIT_FAILED, command, "out of memory, or a figure is not finite");
  puts(text);
  free(text);
  return 0;
}

double cli_now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* -------------------------------------------------------------------------- files */

int cli_read_file(const char *command, const char *option, const char *path, char **out,
                  size_t *n_bytes) {
  return cli_exit_code(kf_file_read(path, out, n_bytes), command, option);
}

const char *cli_file_name(const char *path) {
  return strcmp(path, "-") == 0 ? "standard input" : path;
}

/* The folder that a path is in, as stat() knows it. */
static bool stat_folder(const char *path, const char **base, struct stat *out) {
  char folder[4096];
  const char *slash = strrchr(path, '/');
  size_t n = slash ? (size_t)(slash - path) + 1 : 0;
  *base = path + n;
  if (n >= sizeof folder) return false;
  memcpy(folder, path, n);
  folder[n] = 0;
  return stat(n ? folder : ".", out) == 0;
}

/* One file by two names, as "a" and "./a" or a link to it, is still one file; also one that will
** be. */
static bool is_same_file(const char *a, const char *b) {
  struct stat x, y;
  const char *base_a, *base_b;
  if (strcmp(a, b) == 0) return true;
  if (strcmp(a, "-") == 0 || strcmp(b, "-") == 0) return false;
  bool is_a = stat(a, &x) == 0, is_b = stat(b, &y) == 0;
  if (is_a && !S_ISREG(x.st_mode)) return false;
  if (!is_a && !is_b &&
      !(stat_folder(a, &base_a, &x) && stat_folder(b, &base_b, &y) && strcmp(base_a, base_b) == 0))
    return false;
  return is_a == is_b && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

int cli_check_files(const char *command, const cli_file *file, int n) {
  for (int i = 0; i < n; i++) {
    if (!file[i].path) continue;
    if (file[i].is_written && strcmp(file[i].path, "-") == 0)
      return cli_fail(EXIT_MISUSE, command, "%s: found \"-\", expected the name of a file",
                      file[i].option);
    for (int k = 0; k < i; k++)
      if (file[k].path && is_same_file(file[i].path, file[k].path))
        return cli_fail(EXIT_MISUSE, command,
                        "%s: found \"%s\", which is %s, expected another file", file[i].option,
                        file[i].path, file[k].option);
  }
  return 0;
}

int cli_write_file(const char *command, const char *option, const char *path, char *text) {
  FILE *file = fopen(path, "wb");
  bool good = file && fputs(text, file) >= 0;
  int code = 0;
  if (file) good = fclose(file) == 0 && good; /* a full disk shows here at the latest */
  if (!good)
    code =
      cli_fail(EXIT_FAILED, command, "%s: cannot write \"%s\": %s", option, path, strerror(errno));
  free(text);
  return code;
}

/* ------------------------------------------------------------------------ options */

enum { MOST_OPTIONS = 32 }; /* of a command */

/* The option that `arg` names, and where its value begins if it is "--name=value". */
static const cli_option *find(const char *arg, const cli_option *options, int n_options,
                              const char **value) {
  size_t n = strcspn(arg, "=");
  *value = arg[n] == '=' ? arg + n + 1 : NULL;
  for (int i = 0; i < n_options; i++)
    if (options[i].name && strlen(options[i].name) == n && strncmp(arg, options[i].name, n) == 0)
      return &options[i];
  return NULL;
}

/* An argument that belongs to no option: false if the command takes none, or has one already. */
static bool take_argument(const char *arg, const cli_option *options, int n_options) {
  for (int i = 0; i < n_options; i++)
    if (!options[i].name && !*options[i].text && (arg[0] != '-' || !arg[1])) {
      *options[i].text = arg;
      return true;
    }
  return false;
}

/* text[i] is what option i was given. Returns -1 to go on. */
static int read_numbers(const char *command, const cli_option *options, int n_options,
                        const char *const *text) {
  for (int i = 0; i < n_options; i++) {
    const cli_option *o = &options[i];
    if ((o->whole && !cli_int(command, o->name, text[i], o->min, o->max, o->whole)) ||
        (o->real && !cli_real(command, o->name, text[i], o->least, o->most, o->real)))
      return EXIT_MISUSE;
  }
  return -1;
}

int cli_parse(const char *command, const char *help, char **argv, const cli_option *options,
              int n_options) {
  const char *number[MOST_OPTIONS] = {NULL};
  assert(n_options <= MOST_OPTIONS);
  for (; *argv; argv++) {
    const char *arg = *argv, *value;
    if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) {
      fputs(help, stdout);
      return cli_close_stdout(command);
    }
    if (strcmp(arg, "--version") == 0) {
      printf("knapformer %s\n", kf_version());
      return cli_close_stdout(command);
    }
    const cli_option *option = find(arg, options, n_options, &value);
    if (!option && take_argument(arg, options, n_options)) continue;
    if (!option)
      return cli_fail(EXIT_MISUSE, command,
                      "%s \"%s\", expected an option of \"knapformer %s --help\"",
                      arg[0] == '-' ? "unknown option" : "unexpected argument", arg, command);
    if (option->flag) {
      if (value)
        return cli_fail(EXIT_MISUSE, command, "%s takes no value, found \"%s\"", option->name,
                        value);
      *option->flag = true;
      continue;
    }
    if (!value) value = *++argv;
    if (!value || strncmp(value, "--", 2) == 0)
      return cli_fail(EXIT_MISUSE, command, "%s: found %s%s%s, expected a value", option->name,
                      value ? "\"" : "", value ? value : "the end", value ? "\"" : "");
    if (option->list && option->list->n == CLI_MAX_LIST)
      return cli_fail(EXIT_MISUSE, command, "%s is given more than %d times", option->name,
                      CLI_MAX_LIST);
    if (option->list)
      option->list->value[option->list->n++] = value;
    else if (option->text)
      *option->text = value;
    else
      number[option - options] = value;
  }
  return read_numbers(command, options, n_options, number);
}

/* ------------------------------------------------------------------------ numbers */

/* strtoll and strtod take blanks, signs, "nan" and hexadecimal: only these bytes may reach them. */
static bool looks_numeric(const char *text, const char *allowed) {
  return *text >= '0' && *text <= '9' && strspn(text, allowed) == strlen(text);
}

bool cli_int(const char *command, const char *option, const char *text, int64_t min, int64_t max,
             int64_t *out) {
  if (!text) return true;
  if (looks_numeric(text, "0123456789")) {
    errno = 0;
    long long value = strtoll(text, NULL, 10);
    if (errno == 0 && value >= min && value <= max) {
      *out = value;
      return true;
    }
  }
  cli_fail(EXIT_MISUSE, command,
           "%s: found \"%s\", expected a whole number from %" PRId64 " to %" PRId64, option, text,
           min, max);
  return false;
}

bool cli_real(const char *command, const char *option, const char *text, double min, double max,
              double *out) {
  if (!text) return true;
  if (looks_numeric(text, "0123456789.eE+-")) {
    char *end;
    double value = strtod(text, &end);
    if (!*end && value >= min && value <= max) {
      *out = value;
      return true;
    }
  }
  cli_fail(EXIT_MISUSE, command, "%s: found \"%s\", expected a number from %g to %g", option, text,
           min, max);
  return false;
}
