/* SPDX-License-Identifier: Apache-2.0 */
/* Reports of made-up runs, and looking into their pages. Include cmocka.h first. */
#ifndef REPORT_SCENE_H
#define REPORT_SCENE_H

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <knapformer.h>

#include "svg.h"

/* Of the pictures, as the sources have them. */
enum { LEFT = 62, RIGHT = 790, SHOWN = 6, COLUMNS = RIGHT - LEFT, BANDS = 400 };

/* A report and its arrays: at most two runs of so many steps and ranks. */
typedef struct scene {
  kf_report report;
  kf_report_variant variant[2];
  int64_t *step;                    /* (n_steps) */
  double *step_s[2], *loss[2];      /* (n_steps) */
  kf_counters *counters[2];         /* (n_steps, n_ranks) */
  double *predicted_s, *measured_s; /* (n_steps * n_ranks) */
  kf_report_fact fact[2];
  kf_batch *batch;
  kf_planner *planner;
} scene;

static scene all; /* the one that a test works on */

static void *room(int64_t n, size_t size) {
  void *block = calloc((size_t)n + 1, size);
  assert_non_null(block);
  return block;
}

static void clear(void) {
  for (int k = 0; k < 2; k++) {
    free(all.step_s[k]);
    free(all.loss[k]);
    free(all.counters[k]);
  }
  free(all.step);
  free(all.predicted_s);
  free(all.measured_s);
  kf_planner_free(all.planner);
  kf_batch_free(all.batch);
  all = (scene){0};
}

/*
** Without: rank r computes r+1 seconds of n and waits for the rest. With: all ranks plan 0.125,
** route 0.25 and compute 2.125. The losses of the second run are above the first's by one part in
** 1e5.
*/
static void make(int32_t n_ranks, int64_t n_steps) {
  clear();
  all.step = room(n_steps, sizeof *all.step);
  all.predicted_s = room(n_steps * n_ranks, sizeof(double));
  all.measured_s = room(n_steps * n_ranks, sizeof(double));
  for (int k = 0; k < 2; k++) {
    all.step_s[k] = room(n_steps, sizeof(double));
    all.loss[k] = room(n_steps, sizeof(double));
    all.counters[k] = room(n_steps * n_ranks, sizeof(kf_counters));
    for (int64_t i = 0; i < n_steps; i++) {
      all.step[i] = i;
      all.step_s[k][i] = k ? 2.5 : n_ranks;
      all.loss[k][i] = (k ? 1.00001 : 1) / (1 + (double)i / 10);
      for (int32_t r = 0; r < n_ranks; r++) {
        all.counters[k][i * n_ranks + r] =
          k ? (kf_counters){0, 0, 0, 0, 0.125, 0.25, 2.125, 0}
            : (kf_counters){0, 0, 0, 0, 0, 0, r + 1, n_ranks - r - 1};
        all.predicted_s[i * n_ranks + r] = 2 + 0.01 * (double)(i % 7);
        all.measured_s[i * n_ranks + r] = all.predicted_s[i * n_ranks + r] * 1.02;
      }
    }
    all.variant[k] = (kf_report_variant){
      k ? "balanced" : "plain", n_steps, all.step, all.step_s[k], all.loss[k], all.counters[k]};
  }
  all.fact[0] = (kf_report_fact){"model", "DiT-S"};
  all.fact[1] = (kf_report_fact){"seed", "7"};
  all.report = (kf_report){.title = "A test",
                           .n_ranks = n_ranks,
                           .n_variants = 2,
                           .variant = all.variant,
                           .n_facts = 2,
                           .fact = all.fact,
                           .n_points = n_steps * n_ranks,
                           .predicted_s = all.predicted_s,
                           .measured_s = all.measured_s};
}

/* A plan of a mix, for as many ranks as the report has. */
static void add_plan(const char *mix) {
  kf_planner_options o = {.budget = 1000};
  assert_int_equal(kf_mix_create(mix, all.report.n_ranks, 0, &all.batch), KF_OK);
  assert_int_equal(kf_cost_preset("flux", NULL, all.report.n_ranks, 0.4, &o.cost), KF_OK);
  assert_int_equal(kf_planner_create(&o, &all.planner), KF_OK);
  assert_int_equal(kf_planner_plan(all.planner, all.batch, &all.report.plan), KF_OK);
  all.report.batch = all.batch;
}

/* --------------------------------------------------------------------- looking into a page */

/* The page without what stands from `begin` to `end`, each time. */
static void cut(char *text, const char *begin, const char *end) {
  for (char *from = text; (from = strstr(from, begin));) {
    char *to = strstr(from, end);
    assert_non_null(to);
    to += strlen(end);
    memmove(from, to, strlen(to) + 1);
  }
}

/* A whole page: tags in order, pictures sound, nothing from outside, five sections. */
static void assert_page(const char *page) {
  static const char *const id[] = {"timeline", "imbalance", "loss", "fit", "routing"};
  static const char *const outside[] = {"http:", "https:", "<script", "<link", "@import",
                                        "url(",  "src=",   "href=",   "<img"};
  char section[40], *rest = room((int64_t)strlen(page) + 100, 1);
  for (size_t k = 0; k < sizeof id / sizeof *id; k++) {
    snprintf(section, sizeof section, "<section id=\"%s\">\n<h2>", id[k]);
    assert_int_equal(count(page, section), 1);
  }
  for (size_t k = 0; k < sizeof outside / sizeof *outside; k++)
    assert_null(strstr(page, outside[k]));
  assert_int_equal(strncmp(page, "<!DOCTYPE html>\n<html lang=\"en\">", 32), 0);
  assert_true(strlen(page) < 1000000);
  for (const char *svg = page; (svg = strstr(svg, "<svg ")); svg++) {
    size_t n = (size_t)(strstr(svg, "</svg>") + 6 - svg);
    memcpy(rest, svg, n);
    rest[n] = 0;
    assert_sound(rest);
    assert_int_equal(count(rest, "<title "), 1);
    assert_int_equal(count(rest, "<desc "), 1);
  }
  sprintf(rest, "<page viewBox=\"0 0 1 1\"/>%s", page + strlen("<!DOCTYPE html>"));
  cut(rest, "<svg ", "</svg>");
  cut(rest, "<style>", "</style>");
  assert_sound(rest);
  free(rest);
}

static char *draw(void) {
  char *page;
  if (kf_report_html(&all.report, &page)) fail_msg("%s", kf_last_error());
  assert_page(page);
  return page;
}

static void expect(const char *page, const char *words) {
  if (!strstr(page, words)) fail_msg("no \"%s\"", words);
}

/* The data of the first path of a class within a picture. */
static const char *path_of(const char *page, const char *picture, const char *kind) {
  char id[60], class[60];
  snprintf(id, sizeof id, "<svg id=\"%s\"", picture);
  snprintf(class, sizeof class, "<path class=\"%s\"", kind);
  const char *svg = strstr(page, id), *path = svg ? strstr(svg, class) : NULL;
  if (!path || path > strstr(svg, "</svg>")) fail_msg("no %s in %s", kind, picture);
  return strstr(path, " d=\"") + 4;
}

typedef struct block {
  double x, y, width, height;
} block;

/* The i-th block of a path; false: it has fewer. */
static bool block_of(const char *d, int i, block *out) {
  for (; *d != '"'; d++)
    if (*d == 'M' && i-- == 0)
      return sscanf(d, "M%lf %lfh%lfv%lf", &out->x, &out->y, &out->width, &out->height) == 4;
  return false;
}

static int blocks(const char *d) {
  int n = 0;
  for (; *d != '"'; d++) n += *d == 'M';
  return n;
}

static void assert_near(double got, double want) {
  if (!(fabs(got - want) < 0.06)) fail_msg("%f, expected %f", got, want);
}

#endif
