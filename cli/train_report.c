/* SPDX-License-Identifier: Apache-2.0 */
/* The page of a training run: what was recorded, handed to kf_report_html. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cmd_train.h"

static const char name[] = "train";

enum { N_FACTS = 6, FACT = 160 };

static int write_facts(const train_session *s, char value[N_FACTS][FACT], kf_report_fact *fact) {
  static const char *const label[N_FACTS] = {"model", "data",     "ranks",
                                             "steps", "planning", "version"};
  int64_t tokens = 0;
  for (int64_t i = 0; i < s->first->n_seqs; i++) tokens += s->first->len[i];
  snprintf(value[0], FACT, "%.100s, %.1f million parameters", s->config.model,
           (double)train_job_params(s->job)->n_floats / 1e6);
  snprintf(value[1], FACT, "%.80s at scale %.4g: %" PRId64 " sequences, %" PRId64 " tokens a step",
           s->mix, s->options.data.scale, s->first->n_seqs, tokens);
  snprintf(value[2], FACT, "%" PRId32 ", one thread each", s->n_ranks);
  snprintf(value[3], FACT, "%" PRId64 "%s", s->record[train_main_variant(s)].n_steps,
           s->variant[WITHOUT] && s->variant[WITH] ? " without and with, on the same samples" : "");
  snprintf(value[4], FACT, "%s%.100s", s->variant[WITH] ? "bags " : "none",
           !s->variant[WITH]     ? ""
           : *s->config.bag_size ? s->config.bag_size
                                 : "auto");
  snprintf(value[5], FACT, "knapformer %s", kf_version());
  for (int i = 0; i < N_FACTS; i++) fact[i] = (kf_report_fact){label[i], value[i]};
  return N_FACTS;
}

int train_write_report(const train_session *s) {
  static const char *const variant_name[] = {"without", "with knapformer"};
  char value[N_FACTS][FACT];
  kf_report_fact fact[N_FACTS];
  kf_report_variant variant[N_VARIANTS];
  kf_report report = {.title = s->variant[WITH] ? "A training run, balanced by knapformer"
                                                : "A training run, without the balancer",
                      .n_ranks = s->n_ranks,
                      .variant = variant,
                      .fact = fact,
                      .n_points = s->n_points,
                      .predicted_s = s->predicted_s,
                      .measured_s = s->measured_s};
  char *page = NULL;
  report.n_facts = write_facts(s, value, fact);
  for (int w = 0; w < N_VARIANTS; w++) {
    const train_record *r = &s->record[w];
    if (s->variant[w])
      variant[report.n_variants++] =
        (kf_report_variant){variant_name[w], r->n_steps, r->step, r->step_s, r->loss, r->counters};
  }
  if (s->last_plan) {
    report.plan = s->last_plan;
    if (train_data_lengths(s->first_data, s->last_step, &report.batch))
      return cli_exit_code(KF_ENOMEM, name, NULL);
  }
  kf_status status = kf_report_html(&report, &page);
  if (status) return cli_exit_code(status, name, "--report");
  status = kf_file_replace(s->q->report, page, strlen(page));
  free(page);
  return cli_exit_code(status, name, "--report");
}
