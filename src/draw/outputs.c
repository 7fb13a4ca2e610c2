/* SPDX-License-Identifier: Apache-2.0 */
/*
** The files that a configuration asks for, kept while steps go by:
**
**     steps_file     a JSON line a step, written through at once: tail -f follows it
**     trace_file     a Chrome trace, likewise
**     metrics_file   the last step, replaced whole at every step
**
** A full disk is said at the step where it happens.
*/
#include <stdlib.h>
#include <string.h>

#include "../file.h"
#include "metrics_text.h"

struct kf_outputs {
  kf_config config;
  int steps, trace; /* -1: not open */
  int64_t last;     /* step that was written */
};

/* A text of the library's, which is freed, goes to the end of a file. */
static kf_status append(kf_status status, char *text, const char *key, const char *path, int fd) {
  if (!status) {
    status = kfi_file_append(path, fd, text);
    free(text);
  }
  return kfi_fail_in(status, key);
}

static kf_status open_files(kf_outputs *o, int32_t n_ranks) {
  const kf_config *c = &o->config;
  const char *const named[][2] = {{"steps_file", c->steps_file},
                                  {"metrics_file", c->metrics_file},
                                  {"trace_file", c->trace_file},
                                  {"state_file", c->state_file}};
  kf_status status = KF_OK;
  char *text = NULL;
  for (size_t i = 0; i < sizeof named / sizeof *named; i++)
    if (strcmp(named[i][1], "-") == 0)
      return kfi_fail(KF_EINVAL, "%s: found \"-\", expected the name of a file", named[i][0]);
  if (*c->steps_file) status = kfi_fail_in(kfi_file_begin(c->steps_file, &o->steps), "steps_file");
  if (status || !*c->trace_file) return status;
  if ((status = kfi_fail_in(kfi_file_begin(c->trace_file, &o->trace), "trace_file"))) return status;
  status = kfi_trace_begin(n_ranks, &text);
  return append(status, text, "trace_file", c->trace_file, o->trace);
}

kf_status kf_outputs_create(const kf_config *config, int32_t n_ranks, kf_outputs **out) {
  if (!config || !out) return kfi_fail(KF_EINVAL, "kf_outputs_create: config or out is NULL");
  kf_outputs *o = malloc(sizeof *o);
  if (!o) return kfi_fail_memory(sizeof *o, "the files of a configuration");
  *o = (kf_outputs){.config = *config, .steps = -1, .trace = -1, .last = -1};
  kf_status status = open_files(o, n_ranks);
  if (status)
    kf_outputs_free(o);
  else
    *out = o;
  return status;
}

kf_status kf_outputs_step(kf_outputs *o, const kf_metrics *metrics) {
  kf_status status = KF_OK;
  char *text = NULL;
  if (!o || !metrics) return kfi_fail(KF_EINVAL, "kf_outputs_step: a pointer is NULL");
  const kf_config *c = &o->config;
  if (metrics->step < 0 || metrics->step == o->last) return KF_OK;
  o->last = metrics->step;
  if (o->steps >= 0) {
    status = kf_metrics_json(metrics, &text);
    status = append(status, text, "steps_file", c->steps_file, o->steps);
  }
  if (!status && o->trace >= 0) {
    status = kfi_trace_step(metrics, &text);
    status = append(status, text, "trace_file", c->trace_file, o->trace);
  }
  if (!status && *c->metrics_file) {
    status = kf_metrics_prometheus(metrics, &text);
    if (!status) {
      status = kfi_file_write(c->metrics_file, text, strlen(text), false);
      free(text);
    }
    status = kfi_fail_in(status, "metrics_file");
  }
  return status;
}

kf_status kf_outputs_close(kf_outputs *o) {
  kf_status status = KF_OK, closed = KF_OK;
  char *text = NULL;
  if (!o) return KF_OK;
  if (o->trace >= 0) {
    status = kfi_trace_end(&text);
    status = append(status, text, "trace_file", o->config.trace_file, o->trace);
    closed = kfi_fail_in(kfi_file_close(o->config.trace_file, o->trace), "trace_file");
  }
  if (!status) status = closed;
  if (o->steps >= 0)
    closed = kfi_fail_in(kfi_file_close(o->config.steps_file, o->steps), "steps_file");
  o->steps = o->trace = -1;
  *o->config.metrics_file = 0;
  return status ? status : closed;
}

void kf_outputs_free(kf_outputs *o) {
  if (!o) return;
  if (o->trace >= 0) kfi_file_close(o->config.trace_file, o->trace);
  if (o->steps >= 0) kfi_file_close(o->config.steps_file, o->steps);
  free(o);
}
