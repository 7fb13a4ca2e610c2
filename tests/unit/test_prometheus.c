/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <knapformer.h>

#include "metrics_sample.h"

/* What follows the name at p, NULL if there is none. */
static const char *skip_name(const char *p) {
  if (!isalpha((unsigned char)*p) && *p != '_') return NULL;
  while (isalnum((unsigned char)*p) || *p == '_') p++;
  return p;
}

/* What follows {label="value",...} at p. */
static const char *skip_labels(const char *p) {
  if (*p != '{') return p;
  do {
    if (!(p = skip_name(p + 1)) || strncmp(p, "=\"", 2) != 0) return NULL;
    for (p += 2; *p != '"'; p++) {
      if (*p == '\\' && !strchr("\\\"n", *++p)) return NULL;
      if (*p == '\n' || *p == 0) return NULL;
    }
    p++;
  } while (*p == ',');
  return *p == '}' ? p + 1 : NULL;
}

/*
** The rules of the text format that promtool checks, line by line: HELP, TYPE, then at least one
** sample, all of that name, each a number without a timestamp; counters and only they end in
** _total; units are whole words. Returns the number of families.
*/
static int check(const char *text) {
  static const char *const abbreviations[] = {"_s ", "_ms ", "_us ", "_s_", "_b "};
  int families = 0;
  char name[100] = "";
  bool sampled = true;
  for (const char *line = text, *end; *line; line = end + 1) {
    if (!(end = strchr(line, '\n'))) fail_msg("no newline at the end");
    if (*line == '#') {
      assert_true(sampled);
      const char *from = line + 7, *to = skip_name(from);
      assert_true(strncmp(line, "# HELP knapformer_", 18) == 0 && *to == ' ' && to + 2 < end);
      snprintf(name, sizeof name, "%.*s ", (int)(to - from), from);
      for (size_t i = 0; i < sizeof abbreviations / sizeof *abbreviations; i++)
        assert_null(strstr(name, abbreviations[i]));
      bool total = strstr(name, "_total ") != NULL;
      char type[160];
      snprintf(type, sizeof type, "\n# TYPE %s%s\n", name, total ? "counter" : "gauge");
      assert_true(strncmp(end, type, strlen(type)) == 0);
      char again[120];
      snprintf(again, sizeof again, "# HELP %s", name);
      assert_null(strstr(end, again)); /* each name once */
      end += strlen(type) - 1;
      families++;
      sampled = false;
      continue;
    }
    const char *p = skip_name(line);
    assert_true(p && strlen(name) == (size_t)(p - line) + 1 && strncmp(line, name, p - line) == 0);
    p = skip_labels(p);
    assert_true(p && *p == ' ');
    char *number_end;
    strtod(p + 1, &number_end);
    if (number_end != end) fail_msg("not a number: %.*s", (int)(end - line), line);
    sampled = true;
  }
  assert_true(sampled);
  return families;
}

static char *prometheus(const kf_metrics *m) {
  char *text;
  if (kf_metrics_prometheus(m, &text)) fail_msg("%s", kf_last_error());
  check(text);
  return text;
}

static void test_content(void **state) {
  (void)state;
  static const char *const lines[] = {
    "# TYPE knapformer_steps_total counter\nknapformer_steps_total 8\n",
    "knapformer_elapsed_seconds_total 12\n",
    "knapformer_epoch 1\n",
    "knapformer_step_seconds 2\n",
    "knapformer_max_over_mean_ratio 1.25\n",
    "knapformer_idle_variance_ratio 0.125\n",
    "knapformer_tokens_per_second 123456\n",
    "knapformer_last_epoch_seconds 8.5\n",
    "knapformer_rank_busy_seconds{rank=\"0\"} 2\nknapformer_rank_busy_seconds{rank=\"1\"} 1.75\n",
    "knapformer_rank_busy_ratio{rank=\"3\"} 0.625\n",
    "knapformer_rank_memory_pressure_ratio{rank=\"3\"} 0.25\n",
    "knapformer_rank_memory_bytes{rank=\"0\"} 20000000000\n"
    "knapformer_rank_memory_bytes{rank=\"2\"} 20000000000\n#",
    "knapformer_rank_phase_seconds{rank=\"1\",phase=\"plan\"} 0.125\n",
    "knapformer_bag_ranks{bag=\"1\"} 2\n",
    "knapformer_bag_busy_ratio{bag=\"1\"} 0.75\n",
    "knapformer_bag_samples_per_second{bag=\"0\"} 3\n",
    "knapformer_cost_seconds{coefficient=\"quadratic_s\"} 2.5e-11\n",
    "knapformer_correction_ratio{kind=\"video\",resolution=\"512\"} 1.25\n",
    "knapformer_drift_ratio{what=\"quadratic_s\"} 0.25\n"
    "knapformer_drift_ratio{what=\"speed of rank 3\"} -0.5\n",
    "# TYPE knapformer_drifts_total counter\nknapformer_drifts_total 2\n",
    "knapformer_plan_speedup_ratio 2.5\n",
    "knapformer_plan_max_tokens 65536\n"};
  metrics_sample *s = metrics_sample_create(4, 2);
  char *text = prometheus(&s->m);
  for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
    if (!strstr(text, lines[i])) fail_msg("not found: %s", lines[i]);
  assert_null(strstr(text, "deadbeef")); /* a label that is new in each step is a series a step */
  free(text);
  metrics_sample_free(s);
}

static void test_documented(void **state) {
  (void)state;
  metrics_sample *s = metrics_sample_create(4, 2);
  char *text = prometheus(&s->m), *doc = metrics_doc();
  for (const char *at = text; (at = strstr(at, "# TYPE knapformer_")); at++) {
    char name[100];
    const char *from = at + strlen("# TYPE knapformer_");
    snprintf(name, sizeof name, "`%.*s`", (int)(skip_name(from) - from), from);
    if (!strstr(doc, name)) fail_msg("doc/metrics.md does not define %s", name);
  }
  free(doc);
  free(text);
  metrics_sample_free(s);
}

static void test_nothing_yet(void **state) {
  (void)state;
  kf_metrics m = {.version = KF_METRICS_VERSION, .step = -1};
  char *text = prometheus(&m);
  assert_non_null(strstr(text, "knapformer_steps_total 0\n"));
  assert_null(strstr(text, "_rank_"));
  assert_null(strstr(text, "_bag_"));
  free(text);
  m.n_ranks = 2;
  m.n_bags = m.n_corrections = m.n_drifts = 1;
  free(prometheus(&m));
}

static void test_auto(void **state) {
  (void)state;
  metrics_sample *s = metrics_sample_create(3, 1);
  memset(s->counters, 0, 3 * sizeof *s->counters);
  char *text = prometheus(&s->m);
  assert_null(strstr(text, "_bag_"));
  assert_null(strstr(text, "_rank_memory_bytes")); /* nobody reported any */
  assert_null(strstr(text, "_rank_phase"));
  free(text);
  metrics_sample_free(s);
}

static void test_odd_numbers(void **state) {
  (void)state;
  metrics_sample *s = metrics_sample_create(2, 1);
  s->m.step_s = NAN;
  s->real[0] = -INFINITY;
  s->drift[0].before = 0;
  s->drift[1].before = s->drift[1].now = 0;
  strcpy(s->drift[0].what, "a\"b\\c\nd\te\xff\xc3\xa9");
  char *text = prometheus(&s->m);
  assert_has(text, "knapformer_step_seconds NaN\n", "knapformer_elapsed_seconds_total 0\n",
             "knapformer_rank_busy_seconds{rank=\"0\"} -Inf\n",
             "{what=\"a\\\"b\\\\c\\nd?e?\xc3\xa9\"} +Inf\n");
  free(text);
  s->m.step_s = 0.25;
  s->m.begin_s = 31536000.5; /* a year */
  text = prometheus(&s->m);
  assert_non_null(strstr(text, "knapformer_elapsed_seconds_total 31536000.75\n"));
  free(text);
  metrics_sample_free(s);
}

static void test_large(void **state) {
  (void)state;
  metrics_sample *s = metrics_sample_create(16384, 8);
  char *text;
  assert_int_equal(kf_metrics_prometheus(&s->m, &text), KF_OK);
  assert_has(text, "knapformer_rank_speed_ratio{rank=\"16383\"} 1\n",
             "knapformer_bag_ranks{bag=\"2047\"} 8\n");
  free(text);
  metrics_sample_free(s);
}

static void test_refused(void **state) {
  (void)state;
  char *text = NULL;
  kf_metrics m = {.version = 0};
  assert_int_equal(kf_metrics_prometheus(&m, &text), KF_EINVAL);
  assert_string_equal(kf_last_error(),
                      "kf_metrics_prometheus: metrics of version 0, expected version 1");
  assert_int_equal(kf_metrics_prometheus(NULL, &text), KF_EINVAL);
  assert_int_equal(kf_metrics_prometheus(&m, NULL), KF_EINVAL);
  assert_null(text);
}

static void test_memory(void **state) {
  (void)state;
  metrics_sample_starve(kf_metrics_prometheus);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_content), cmocka_unit_test(test_documented),
    cmocka_unit_test(test_auto),    cmocka_unit_test(test_nothing_yet),
    cmocka_unit_test(test_large),   cmocka_unit_test(test_odd_numbers),
    cmocka_unit_test(test_refused), cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
