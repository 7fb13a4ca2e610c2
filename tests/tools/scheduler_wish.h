/* SPDX-License-Identifier: Apache-2.0 */
/* A scheduler as tests wish for it: of a configuration, and of what that has no key for. */
#ifndef SCHEDULER_WISH_H
#define SCHEDULER_WISH_H

#include <knapformer.h>

typedef struct scheduler_wish {
  int32_t n_ranks;
  const kf_config *config; /* NULL: all defaults */
  const kf_cost *cost;     /* NULL: the config's; `modelled` has no cost_file but this */
  const double *speed;
  const int64_t *mem_tokens;
  kf_log_fn *log;
  void *log_user;
} scheduler_wish;

static inline kf_status scheduler_create(const scheduler_wish *w, kf_scheduler **out) {
  kf_config config = w->config ? *w->config : (kf_config){0};
  kf_cost_model model = config.cost_model;
  kf_scheduler_options *o = NULL;
  if (w->cost) config.cost_model = KF_COST_HISTORY;
  kf_status status = kf_config_resolve(&config, w->n_ranks, &o);
  if (status) return status;
  if (w->cost) o->plan.cost = *w->cost, o->cost_model = model;
  if (w->mem_tokens) o->plan.mem_tokens = w->mem_tokens;
  o->plan.speed = w->speed;
  o->log = w->log;
  o->log_user = w->log_user;
  status = kf_scheduler_create(o, out);
  kf_scheduler_options_free(o);
  return status;
}

#endif
