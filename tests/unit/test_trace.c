/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "draw/metrics_text.h"
#include "json.h"
#include "metrics_sample.h"

static char *begin(int32_t n_ranks) {
  char *text;
  if (kfi_trace_begin(n_ranks, &text)) fail_msg("%s", kf_last_error());
  return text;
}

static char *step(const kf_metrics *m) {
  char *text;
  if (kfi_trace_step(m, &text)) fail_msg("%s", kf_last_error());
  return text;
}

static char *end(void) {
  char *text;
  if (kfi_trace_end(&text)) fail_msg("%s", kf_last_error());
  return text;
}

/* One after the other, as in a file; frees the pieces. */
static char *join(char *a, char *b) {
  char *both = malloc(strlen(a) + strlen(b) + 1);
  assert_non_null(both);
  strcat(strcpy(both, a), b);
  free(a);
  free(b);
  return both;
}

/* Microseconds with exactly three decimals, as whole nanoseconds. */
static int64_t read_ns(const char *event, const char *key) {
  const char *at = strstr(event, key);
  assert_non_null(at);
  at += strlen(key);
  int64_t us = 0;
  int ns = 0, length = 0;
  assert_int_equal(sscanf(at, "%" SCNd64 ".%3d%n", &us, &ns, &length), 2);
  assert_true(at[length - 4] == '.' && strchr(",}", at[length]));
  return 1000 * us + ns;
}

typedef struct event {
  char name[16];
  int tid;
  int64_t ts, dur;
} event;

/* The X events of a piece, at most `max`. */
static int read_events(const char *text, event *out, int max) {
  int n = 0;
  for (const char *at = text; (at = strstr(at, "{\"name\":\"")); at++) {
    if (strncmp(strstr(at, "\"ph\""), "\"ph\":\"X\"", 8) != 0) continue;
    assert_true(n < max);
    event *e = &out[n++];
    assert_int_equal(sscanf(at, "{\"name\":\"%15[a-z]\"", e->name), 1);
    assert_int_equal(sscanf(strstr(at, "\"tid\""), "\"tid\":%d", &e->tid), 1);
    e->ts = read_ns(at, "\"ts\":");
    e->dur = read_ns(at, "\"dur\":");
  }
  return n;
}

/* The X events of a piece are these. */
static void assert_events(const char *text, const event *want, int n) {
  event e[8];
  assert_int_equal(read_events(text, e, 8), n);
  for (int i = 0; i < n; i++) {
    assert_string_equal(e[i].name, want[i].name);
    assert_int_equal(e[i].tid, want[i].tid);
    assert_int_equal(e[i].ts, want[i].ts);
    assert_int_equal(e[i].dur, want[i].dur);
  }
}

#define MS INT64_C(1000000)

/* Rank 0 reported its busy time alone, rank 1 all phases. */
static void test_phases(void **state) {
  (void)state;
  metrics_sample *s = metrics_sample_create(2, 1);
  s->real[0] = 1.75;
  char *text = step(&s->m);
  static const event want[] = {
    {"compute", 1, 10000 * MS, 1750 * MS}, {"wait", 1, 11750 * MS, 250 * MS},
    {"plan", 2, 10000 * MS, 125 * MS},     {"route", 2, 10125 * MS, 250 * MS},
    {"compute", 2, 10375 * MS, 1250 * MS}, {"wait", 2, 11625 * MS, 375 * MS}};
  assert_events(text, want, 6);
  assert_has(text, "\"ts\":10000000.000,\"dur\":1750000.000,\"args\":{\"step\":7}}",
             "{\"name\":\"max_over_mean\",\"ph\":\"C\",\"pid\":1,"
             "\"ts\":10000000.000,\"args\":{\"ratio\":1.25}}");
  free(text);
  metrics_sample_free(s);
}

/* What was not measured is what the rest leaves; nothing reaches beyond the step. */
static void test_gaps_and_clipping(void **state) {
  (void)state;
  metrics_sample *s = metrics_sample_create(4, 1);
  kf_counters *c = s->counters;
  c[0] = (kf_counters){.route_s = 0.5};                                   /* busy for 2 s */
  c[1] = (kf_counters){.plan_s = 1, .route_s = 0.5, .compute_s = 9};      /* too long */
  c[2] = (kf_counters){.plan_s = 3, .compute_s = 1};                      /* all of it planning */
  c[3] = (kf_counters){.plan_s = -1, .route_s = NAN, .compute_s = 1e-10}; /* nonsense */
  char *text = step(&s->m);
  static const event want[] = {
    {"route", 1, 10000 * MS, 500 * MS},   {"compute", 1, 10500 * MS, 1500 * MS},
    {"plan", 2, 10000 * MS, 1000 * MS},   {"route", 2, 11000 * MS, 500 * MS},
    {"compute", 2, 11500 * MS, 500 * MS}, {"plan", 3, 10000 * MS, 2000 * MS},
    {"wait", 4, 10000 * MS, 2000 * MS}};
  assert_events(text, want, 7);
  free(text);
  metrics_sample_free(s);
}

/* A whole trace is JSON; so is one without its end, when the bracket is added. */
static void test_whole(void **state) {
  (void)state;
  for (int n_steps = 0; n_steps < 3; n_steps++) {
    metrics_sample *s = metrics_sample_create(3, 2);
    char *text = begin(3);
    assert_has(text, "\"pid\":1,\"args\":{\"name\":\"knapformer\"}}",
               "\"tid\":3,\"args\":{\"name\":\"rank 2\"}}",
               "\"tid\":3,\"args\":{\"sort_index\":2}}");
    for (int i = 0; i < n_steps; i++) text = join(text, step(&s->m));
    assert_false(json_valid(text));
    char *closed = malloc(strlen(text) + 2);
    assert_non_null(closed);
    strcat(strcpy(closed, text), "]");
    assert_true(json_valid(closed));
    free(closed);
    text = join(text, end());
    assert_true(json_valid(text));
    free(text);
    metrics_sample_free(s);
  }
}

/*
** After months of steps of odd lengths: each phase begins where the last one ended, and each step
** where the last one did, to the nanosecond.
*/
static void test_long_training(void **state) {
  (void)state;
  metrics_sample *s = metrics_sample_create(1, 1);
  s->m.begin_s = 1e7 + 1.0 / 3;
  int64_t at = 0;
  for (int i = 0; i < 1000; i++) {
    s->m.step_s = 0.1 + i * 1e-9 / 7;
    s->counters[0] = (kf_counters){.plan_s = 1e-3 / 3, .route_s = 1e-2 / 7};
    s->real[0] = 0.05 + 1e-9 * i / 3;
    char *text = step(&s->m);
    event e[4];
    int n = read_events(text, e, 4);
    assert_int_equal(n, 4);
    if (i > 0) assert_int_equal(e[0].ts, at);
    at = e[0].ts;
    for (int k = 0; k < n; k++) {
      assert_int_equal(e[k].ts, at);
      at += e[k].dur;
    }
    free(text);
    s->m.begin_s += s->m.step_s;
  }
  metrics_sample_free(s);
}

static void test_odd_numbers(void **state) {
  (void)state;
  static const double odd[] = {NAN, INFINITY, -INFINITY, 1e300, -1, 0};
  metrics_sample *s = metrics_sample_create(2, 1);
  for (int i = 0; i < 6; i++)
    for (int k = 0; k < 6; k++) {
      s->m.begin_s = odd[i];
      s->m.step_s = odd[k];
      s->real[0] = s->m.max_over_mean = odd[(i + k) % 6];
      char *text = join(join(begin(2), step(&s->m)), end());
      assert_true(json_valid(text));
      free(text);
    }
  metrics_sample_free(s);
}

static void test_nothing_yet(void **state) {
  (void)state;
  kf_metrics m = {.version = KF_METRICS_VERSION, .step = -1, .n_ranks = 2};
  char *text = step(&m);
  assert_string_equal(text, "");
  free(text);
  m.step = 0; /* no arrays: all waited */
  m.step_s = 1;
  text = join(join(begin(2), step(&m)), end());
  assert_true(json_valid(text));
  static const event want[] = {{"wait", 1, 0, 1000 * MS}, {"wait", 2, 0, 1000 * MS}};
  assert_events(text, want, 2);
  free(text);
}

static void test_refused(void **state) {
  (void)state;
  char *text = NULL;
  kf_metrics m = {.version = 9};
  assert_int_equal(kfi_trace_step(&m, &text), KF_EINVAL);
  assert_string_equal(kf_last_error(), "kf_outputs_step: metrics of version 9, expected version 1");
  assert_int_equal(kfi_trace_step(NULL, &text), KF_EINVAL);
  assert_int_equal(kfi_trace_step(&m, NULL), KF_EINVAL);
  assert_int_equal(kfi_trace_begin(0, &text), KF_EINVAL);
  assert_string_equal(kf_last_error(), "0 ranks, expected 1 to 1048576");
  assert_int_equal(kfi_trace_begin(KF_MAX_RANKS + 1, &text), KF_EINVAL);
  assert_null(text);
}

static void test_large(void **state) {
  (void)state;
  metrics_sample *s = metrics_sample_create(16384, 1);
  char *text = join(join(begin(16384), step(&s->m)), end());
  assert_true(json_valid(text));
  free(text);
  metrics_sample_free(s);
}

static kf_status begin_many(const kf_metrics *m, char **out) {
  return kfi_trace_begin(m->n_ranks, out);
}

static void test_memory(void **state) {
  (void)state;
  char *text = NULL;
  metrics_sample_starve(begin_many);
  metrics_sample_starve(kfi_trace_step);
  fail_alloc(1);
  assert_int_equal(kfi_trace_end(&text), KF_ENOMEM);
  fail_alloc(0);
  assert_null(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_phases),      cmocka_unit_test(test_gaps_and_clipping),
    cmocka_unit_test(test_whole),       cmocka_unit_test(test_long_training),
    cmocka_unit_test(test_odd_numbers), cmocka_unit_test(test_nothing_yet),
    cmocka_unit_test(test_refused),     cmocka_unit_test(test_large),
    cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
