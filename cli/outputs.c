/* SPDX-License-Identifier: Apache-2.0 */
/*
** The files that a configuration asks for, kept while steps go by.
**
**     steps_file     a JSON line a step, written through at once: tail -f follows it
**     trace_file     a Chrome trace, likewise
**     metrics_file   the last step, replaced whole at every step
**     state_file     read at the start where there is one, replaced at the end
**
** All are written by one rank. A full disk is said at the step where it happens.
*/
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool is_standard(const char *path) { return strcmp(path, "-") == 0; }

static int fail(const cli_outputs *w, const char *key, const char *path) {
  return cli_fail(EXIT_FAILED, w->command, "%s: cannot write \"%s\": %s", key, path,
                  strerror(errno));
}

/* Append a text of the library's, and free it. */
static int append(const cli_outputs *w, kf_status status, char *text, FILE *file, const char *key,
                  const char *path) {
  if (status) return cli_fail_status(status, w->command, key);
  bool good = fputs(text, file) >= 0 && fflush(file) == 0;
  int error = errno;
  free(text);
  errno = error;
  return good ? 0 : fail(w, key, path);
}

int cli_outputs_open(cli_outputs *w, const char *command, const kf_config *config,
                     int32_t n_ranks) {
  char *text = NULL;
  *w = (cli_outputs){.command = command, .config = config};
  const char *const named[][2] = {{"metrics_file", config->metrics_file},
                                  {"trace_file", config->trace_file},
                                  {"state_file", config->state_file}};
  for (size_t i = 0; i < sizeof named / sizeof *named; i++)
    if (is_standard(named[i][1]))
      return cli_fail(EXIT_MISUSE, command, "%s: found \"-\", expected the name of a file",
                      named[i][0]);
  if (*config->steps_file) {
    w->steps = is_standard(config->steps_file) ? stdout : fopen(config->steps_file, "wb");
    if (!w->steps) return fail(w, "steps_file", config->steps_file);
  }
  if (*config->trace_file) {
    w->trace = fopen(config->trace_file, "wb");
    if (!w->trace) return fail(w, "trace_file", config->trace_file);
    kf_status status = kf_trace_begin(n_ranks, &text);
    return append(w, status, text, w->trace, "trace_file", config->trace_file);
  }
  return 0;
}

int cli_outputs_step(cli_outputs *w, const kf_metrics *metrics) {
  const kf_config *c = w->config;
  char *text = NULL;
  int code = 0;
  if (metrics->step < 0) return 0;
  if (w->steps) {
    kf_status status = kf_metrics_json(metrics, &text);
    code = append(w, status, text, w->steps, "steps_file", c->steps_file);
  }
  if (!code && w->trace) {
    kf_status status = kf_trace_step(metrics, &text);
    code = append(w, status, text, w->trace, "trace_file", c->trace_file);
  }
  if (!code && *c->metrics_file) {
    kf_status status = kf_metrics_prometheus(metrics, &text);
    if (!status) status = kf_file_refresh(c->metrics_file, text, strlen(text));
    if (status) code = cli_fail_status(status, w->command, "metrics_file");
    free(text);
  }
  return code;
}

int cli_outputs_close(cli_outputs *w, bool complete) {
  char *text = NULL;
  int code = 0;
  if (w->trace && complete) {
    kf_status status = kf_trace_end(&text);
    code = append(w, status, text, w->trace, "trace_file", w->config->trace_file);
  }
  if (w->trace && fclose(w->trace) != 0 && !code)
    code = fail(w, "trace_file", w->config->trace_file);
  if (w->steps && w->steps != stdout && fclose(w->steps) != 0 && !code)
    code = fail(w, "steps_file", w->config->steps_file);
  w->steps = w->trace = NULL;
  return code;
}

/* ------------------------------------------------------------------------- state */

int cli_restore_state(const char *command, const kf_config *config, kf_scheduler *scheduler) {
  const char *path = config->state_file;
  char *data = NULL;
  size_t n_bytes = 0;
  struct stat file = {0};
  if (!*path || is_standard(path) || (stat(path, &file) != 0 && errno == ENOENT)) return 0;
  if (S_ISCHR(file.st_mode) || S_ISFIFO(file.st_mode)) /* which may be endless */
    return cli_fail(EXIT_FAILED, command,
                    "state_file: cannot read \"%s\": it is not a regular file", path);
  int code = cli_read_file(command, "state_file", path, &data, &n_bytes);
  if (code) return code;
  kf_status status = kf_scheduler_restore(scheduler, path, data, n_bytes);
  free(data);
  return status ? cli_fail_status(status, command, "state_file") : 0;
}

int cli_save_state(const char *command, const kf_config *config, const kf_scheduler *scheduler) {
  void *data = NULL;
  size_t n_bytes = 0;
  if (!*config->state_file) return 0;
  kf_status status = kf_scheduler_save(scheduler, &data, &n_bytes);
  if (!status) status = kf_file_replace(config->state_file, data, n_bytes);
  free(data);
  return status ? cli_fail_status(status, command, "state_file") : 0;
}
