/* SPDX-License-Identifier: Apache-2.0 */
/*
** Reports of trainings that never were, to look at and for house/report.sh to open:
**
**     report_page NAME >page.html
**
** Steps are planned as in a real run; what they took is what the cost predicts, and some noise.
*/
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <knapformer.h>

#include "dice.h"

static const struct sample {
  const char *name, *mix;
  int32_t n_ranks, n_variants;
  int64_t n_steps;
  double seconds, losses; /* factors; 0: 1 */
  int64_t first_step;
  const char *run_name; /* of the second; NULL: "with knapformer" */
} samples[] = {
  {"small", "g2b3i256f1s0,g1b1i512f1s0,g1b1i256f60s1", 4, 2, 60, 0, 0, 0, NULL},
  {"joint", "joint", 32, 2, 200, 0, 0, 0, NULL},
  {"pair", "g1b2i1024f1s0,g1b2i256f1s0", 2, 2, 12, 0, 0, 0, NULL},
  {"many", "joint", 200, 2, 900, 0, 0, 0, NULL},
  {"single", "g1b3i256f1s0", 1, 1, 1, 0, 0, 0, NULL},
  {"empty", "lowres", 3, 2, 0, 0, 0, 0, NULL},
  {"tiny", "mixres", 11, 2, 40, 1.3e-7, -3e-6, 4000000000000000, /* long numbers, long words */
   "with-a-name-that-no-browser-can-break-anywhere-but-where-it-is-told-to-break-it-in-order-to-"
   "keep-the-page-as-narrow-as-the-window-is"},
  {"huge", "mixres", 64, 2, 40, 2.7e6, 4e9, 123456, NULL},
};

typedef struct training {
  kf_report_variant variant[2];
  int64_t *step;                                    /* (n_steps) */
  double *step_s, *loss, *predicted_s, *measured_s; /* (2, n_steps); (2, n_steps, n_ranks) */
  kf_counters *counters;                            /* (2, n_steps, n_ranks) */
} training;

static _Noreturn void stop(const char *why) {
  fprintf(stderr, "report_page: %s\n", why);
  exit(1);
}

static void *room(int64_t n, size_t size) {
  void *block = calloc((size_t)n + 1, size);
  if (!block) stop("out of memory");
  return block;
}

/* One step of one run: predicted seconds, measured ones, and waiting for the slowest. */
static void act(const struct sample *s, training *t, const kf_plan *plan, int64_t step, int run,
                dice *d) {
  int64_t at = run * s->n_steps + step;
  kf_counters *c = &t->counters[at * s->n_ranks];
  double slowest = 0, unit = s->seconds ? s->seconds : 1;
  for (int32_t r = 0; r < s->n_ranks; r++) {
    double expected = unit * (run ? plan->compute_s[r] + plan->comm_s[r] : plan->before_s[r]);
    double noise = dice_real(d, 0.97, 1.03) * (dice_one_in(d, 400) ? 1.4 : 1);
    c[r].plan_s = run ? unit * 0.004 * dice_real(d, 0.9, 1.3) : 0;
    c[r].route_s = run ? unit * plan->comm_s[r] * noise : 0;
    c[r].compute_s = unit * ((run ? plan->compute_s[r] : plan->before_s[r]) * noise + 0.01);
    double busy = c[r].plan_s + c[r].route_s + c[r].compute_s;
    t->predicted_s[at * s->n_ranks + r] = expected;
    t->measured_s[at * s->n_ranks + r] = busy;
    slowest = busy > slowest ? busy : slowest;
  }
  t->step_s[at] = slowest * 1.02;
  for (int32_t r = 0; r < s->n_ranks; r++)
    c[r].wait_s = slowest - (c[r].plan_s + c[r].route_s + c[r].compute_s);
}

static void train(const struct sample *s, const kf_planner_options *options, training *t) {
  dice d = {1};
  double level = 1.1;
  for (int64_t step = 0; step < s->n_steps; step++) {
    kf_batch *batch;
    kf_planner *planner;
    const kf_plan *plan;
    if (kf_mix_create(s->mix, s->n_ranks, (uint64_t)step % 8, &batch) ||
        kf_planner_create(options, &planner) || kf_planner_plan(planner, batch, &plan))
      stop(kf_last_error());
    for (int run = 0; run < 2; run++) act(s, t, plan, step, run, &d);
    level = 0.32 + (level - 0.32) * 0.965;
    t->step[step] = s->first_step + step;
    t->loss[step] = level * dice_real(&d, 0.92, 1.08) * (s->losses ? s->losses : 1);
    t->loss[s->n_steps + step] = t->loss[step] * dice_real(&d, 1 - 2e-6, 1 + 2e-6);
    kf_planner_free(planner);
    kf_batch_free(batch);
  }
}

static void write_page(const struct sample *s, const kf_planner_options *options, training *t) {
  const kf_report_fact fact[] = {{"model", "DiT-S, 33 million parameters"},
                                 {"mix", s->mix},
                                 {"compared", "blocks of 10 steps, in turn, on the same samples"},
                                 {"cost", "measured here, then learned"}};
  kf_batch *batch;
  kf_planner *planner;
  const kf_plan *plan;
  char *page;
  for (int k = 0; k < 2; k++)
    t->variant[k] = (kf_report_variant){.name = !k            ? "without"
                                                : s->run_name ? s->run_name
                                                              : "with knapformer",
                                        .n_steps = s->n_steps,
                                        .step = t->step,
                                        .step_s = t->step_s + k * s->n_steps,
                                        .loss = t->loss + k * s->n_steps,
                                        .counters = t->counters + k * s->n_steps * s->n_ranks};
  if (kf_mix_create(s->mix, s->n_ranks, 0, &batch) || kf_planner_create(options, &planner) ||
      kf_planner_plan(planner, batch, &plan))
    stop(kf_last_error());
  int64_t n_points = s->n_steps * s->n_ranks;
  kf_report report = {.title = "A DiT on ranks: without and with the balancer",
                      .n_ranks = s->n_ranks,
                      .n_variants = s->n_variants,
                      .variant = t->variant,
                      .n_facts = s->n_steps ? 4 : 0,
                      .fact = fact,
                      .n_points = n_points,
                      .predicted_s = t->predicted_s + (s->n_variants - 1) * n_points,
                      .measured_s = t->measured_s + (s->n_variants - 1) * n_points,
                      .plan = s->n_steps ? plan : NULL,
                      .batch = batch};
  if (kf_report_html(&report, &page)) stop(kf_last_error());
  fputs(page, stdout);
  free(page);
  kf_planner_free(planner);
  kf_batch_free(batch);
}

int main(int argc, char **argv) {
  const struct sample *s = NULL;
  for (size_t k = 0; argc == 2 && k < sizeof samples / sizeof *samples; k++)
    if (strcmp(argv[1], samples[k].name) == 0) s = &samples[k];
  if (!s) stop("expected one name: small, joint, pair, many, single, empty, tiny, huge");
  kf_planner_options options = {.budget = kf_planner_budget(200)};
  if (kf_cost_preset("flux", NULL, s->n_ranks, 0.4, &options.cost)) stop(kf_last_error());
  training t = {.step = room(s->n_steps, sizeof(int64_t)),
                .step_s = room(2 * s->n_steps, sizeof(double)),
                .loss = room(2 * s->n_steps, sizeof(double)),
                .predicted_s = room(2 * s->n_steps * s->n_ranks, sizeof(double)),
                .measured_s = room(2 * s->n_steps * s->n_ranks, sizeof(double)),
                .counters = room(2 * s->n_steps * s->n_ranks, sizeof(kf_counters))};
  train(s, &options, &t);
  write_page(s, &options, &t);
  free(t.step);
  free(t.step_s);
  free(t.loss);
  free(t.predicted_s);
  free(t.measured_s);
  free(t.counters);
  return ferror(stdout) || fflush(stdout);
}
