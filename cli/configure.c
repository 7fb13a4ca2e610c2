/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration as commands take it: a YAML file, then --set, then options that are keys. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

int cli_configure(const char *command, const cli_configuration *q, kf_config *config) {
  kf_status status = KF_OK;
  if (q->file) {
    char *text = NULL;
    size_t n_bytes = 0;
    if (q->on_ranks && strcmp(q->file, "-") == 0)
      return cli_fail(EXIT_MISUSE, command,
                      "%s: found \"-\", which reaches rank 0 only, expected a file", q->option);
    int code = cli_read_file(command, q->option, q->file, &text, &n_bytes);
    if (code) return code;
    status = kf_config_parse(cli_file_name(q->file), text, n_bytes, config);
    free(text);
  }
  for (int i = 0; !status && i < q->set->n; i++) status = kf_config_set(q->set->value[i], config);
  for (int i = 0; !status && i < q->n_keys; i++) {
    char assignment[KF_MAX_TEXT + 32];
    if (!q->key[i].value) continue;
    snprintf(assignment, sizeof assignment, "%s=%s", q->key[i].name, q->key[i].value);
    status = kf_config_set(assignment, config);
  }
  return cli_exit_code(status, command, NULL);
}

void cli_log(void *user, kf_log_level level, const char *line) {
  static const char *const word[] = {"info", "error", "warning", "info", "debug"};
  fprintf(stderr, "knapformer %s: %s: %s\n", (const char *)user, word[level], line);
}

int cli_end_files(const char *command, kf_outputs *outputs, const kf_scheduler *scheduler,
                  const char *state_file) {
  int code = cli_exit_code(kf_outputs_close(outputs), command, NULL);
  int saved = cli_exit_code(kf_scheduler_save_file(scheduler, state_file), command, NULL);
  return saved ? saved : code;
}
