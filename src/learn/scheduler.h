/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a kf_scheduler: scheduler.c plans and learns, metrics.c measures, scheduler_state.c
** saves. */
#ifndef KFI_SCHEDULER_H
#define KFI_SCHEDULER_H

#include "../memory.h"
#include "../status.h"
#include "history.h"

enum {
  KFI_MAX_DRIFTS = 32,  /* of one refit that are told */
  KFI_CALIBRATION = 64, /* steps with times before a change of the cost is called drift */
  KFI_LAW_DRIFTS = 3    /* A, B, C */
};

/* What one rank measured of the last step, as it is reported and as it travels. */
typedef struct kfi_times {
  double seconds;
  kf_counters counters;
  int64_t given; /* 0: nothing yet */
} kfi_times;

struct kf_scheduler {
  kf_cost_model cost_model;
  int64_t interval; /* steps between refits */
  kf_bags bags;     /* if they are fixed; its ranks are bag_first */
  kf_planner *planner;
  kf_planner_options options; /* what the planner plans with; its arrays are ours */
  kf_cost start;              /* what was begun with */
  kf_log_level log_level;
  kf_log_fn *log;
  void *log_user;

  int64_t step;       /* steps planned so far */
  bool awaiting;      /* the times of step - 1 may be reported */
  bool refit_due;     /* learned from since the last refit */
  int64_t joined_len; /* the longest sequence so far that took several bags: told; not saved */
  kfi_history history;
  kfi_times *report;              /* (n_ranks) */
  double *speed;                  /* (n_ranks) that is planned with */
  int64_t *cap;                   /* (n_ranks) or NULL */
  double correction[KFI_CLASSES]; /* by class, that is planned with */
  bool corrected;                 /* some are not 1 */
  kfi_buffer memory;              /* all arrays above and below */
  kfi_buffer factors;             /* (n_seqs) of a batch with corrections */

  kf_metrics metrics;
  double *busy_s, *predicted_s, *busy_share, *pressure;        /* (n_ranks) of metrics */
  kf_counters *counters;                                       /* (n_ranks) */
  double *bag_busy, *bag_tokens, *bag_samples;                 /* (n_bags) */
  double *planned_tokens, *planned_samples, *planned_pressure; /* (n_ranks) of the last plan */
  int32_t *bag_first;                                          /* (n_bags + 1) */
  kf_figures planned;                                          /* of the last plan */
  uint64_t planned_hash;
  kf_correction correction_list[KFI_CLASSES];
  kf_drift drift[KFI_MAX_DRIFTS];
  double drift_law[KFI_LAW_DRIFTS];   /* A, B, C that drift is counted from; 0: not calibrated */
  double drift_error[KFI_LAW_DRIFTS]; /* of these, relative */
  double drift_class[KFI_CLASSES];    /* corrections, by class */
  double *drift_speed;                /* (n_ranks) */
  int64_t epoch, planned_epoch, next_epoch; /* of the metrics, the last plan, the next plan */
  double epoch_s, last_epoch_s, total_s;
};

/* --------------------------------------------------------------------- metrics.c */

KFI_PRINTF(3, 4)
void kfi_note(const kf_scheduler *s, kf_log_level level, const char *format, ...);

/* Metrics of nothing yet. */
void kfi_metrics_start(kf_scheduler *s);

/* The cost that is planned with, in the metrics. */
void kfi_metrics_cost(kf_scheduler *s);

/* The figures of the step whose reports are in, before they are learned from. */
void kfi_metrics_step(kf_scheduler *s);

/* What was learned by the step's times alone. */
void kfi_metrics_learned(kf_scheduler *s);

/* After a refit: what has moved, into metrics and log. */
void kfi_metrics_refit(kf_scheduler *s);

/* After a plan: what is needed of it when its times come in, and the log of decisions. */
void kfi_metrics_plan(kf_scheduler *s, const kf_batch *batch, const kf_plan *plan);

/* ----------------------------------------------------------------- scheduler.c */

/* One block for all arrays, zeroed; n_ranks and n_bags are set. */
kf_status kfi_scheduler_lay(kf_scheduler *s);

/* The planner's options point at our arrays, wherever these are now. */
void kfi_scheduler_own(kf_scheduler *s);

/* Plan with what was begun with. */
void kfi_scheduler_begin(kf_scheduler *s);

/* A hash of what the scheduler was created for: ranks, model, links. */
uint64_t kfi_scheduler_kind(const kf_scheduler *s);

#endif
