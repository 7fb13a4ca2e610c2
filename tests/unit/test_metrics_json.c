/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <knapformer.h>

#include "json.h"
#include "metrics_sample.h"

static char *json(const kf_metrics *m) {
  char *text;
  if (kf_metrics_json(m, &text)) fail_msg("%s", kf_last_error());
  assert_true(json_valid(text));
  assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1); /* one line */
  return text;
}

/* The whole line: scripts depend on every key and on their order in a table. */
static void test_line(void **state) {
  (void)state;
  metrics_sample *s = metrics_sample_create(2, 2);
  char *text = json(&s->m);
  assert_string_equal(
    text,
    "{\"step\":7,\"epoch\":1,\"n_ranks\":2,\"n_measured\":2,\"begin_s\":10,\"step_s\":2,"
    "\"predicted_step_s\":1.5,\"max_over_mean\":1.25,\"idle_variance\":0.125,"
    "\"tokens_per_s\":123456,\"samples_per_s\":44.5,\"epoch_s\":6,\"last_epoch_s\":8.5,"
    "\"mape\":0.0625,\"noise\":0.03125,"
    "\"ranks\":[{\"rank\":0,\"busy_s\":2,\"predicted_s\":1.5,\"busy_share\":1,"
    "\"memory_pressure\":0.25,\"speed\":1,\"memory_bytes\":20000000000,"
    "\"memory_limit_bytes\":80000000000,\"tokens\":1000,\"samples\":3},"
    "{\"rank\":1,\"busy_s\":1.5,\"predicted_s\":1.5,\"busy_share\":0.75,"
    "\"memory_pressure\":0.25,\"speed\":1,\"plan_s\":0.125,\"route_s\":0.25,"
    "\"compute_s\":1.25,\"wait_s\":0.375}],"
    "\"bags\":[{\"bag\":0,\"first\":0,\"ranks\":2,\"busy_share\":0.75,\"tokens_per_s\":2000,"
    "\"samples_per_s\":3}],"
    "\"cost\":{\"linear_s\":1e-06,\"quadratic_s\":2.5e-11,\"constant_s\":0.001,\"gamma\":0.46,"
    "\"overhead_s\":0.005,\"comm_scale\":1.2},"
    "\"corrections\":[{\"kind\":\"image\",\"resolution\":1024,\"correction\":1},"
    "{\"kind\":\"video\",\"resolution\":512,\"correction\":1.25}],"
    "\"drift\":[{\"what\":\"quadratic_s\",\"before\":2e-11,\"now\":2.5e-11,\"step\":5},"
    "{\"what\":\"speed of rank 3\",\"before\":1,\"now\":0.5,\"step\":5}],"
    "\"refits\":3,\"drifts\":2,\"outliers\":5,"
    "\"plan\":{\"hash\":\"00000000deadbeef\",\"step_s\":1.25,\"ideal_s\":1,"
    "\"lower_bound_s\":1.125,\"gap\":0.11,\"speedup\":2.5,\"split_seqs\":4,"
    "\"a2a_fraction\":0.5,\"moved_fraction\":0.375,\"max_tokens\":65536}}\n");
  free(text);
  metrics_sample_free(s);
}

/* Every key of a line is explained. */
static void test_documented(void **state) {
  (void)state;
  metrics_sample *s = metrics_sample_create(4, 2);
  char *text = json(&s->m), *doc = metrics_doc();
  for (char *end = text; (end = strstr(end, "\":")); end++) {
    char key[64] = "";
    const char *begin = end;
    while (begin[-1] != '"') begin--;
    snprintf(key, sizeof key, "%.*s`", (int)(end - begin), begin);
    bool found = false; /* as `key`, `list[].key` or `object.key` */
    for (const char *at = doc; !found && (at = strstr(at, key)); at++)
      found = at[-1] == '`' || at[-1] == '.';
    if (!found) fail_msg("doc/metrics.md does not define %.*s", (int)(end - begin), begin);
  }
  free(doc);
  free(text);
  metrics_sample_free(s);
}

/* In auto a bag is a rank, and is not said twice. */
static void test_auto(void **state) {
  (void)state;
  metrics_sample *s = metrics_sample_create(3, 1);
  char *text = json(&s->m);
  assert_has(text, "\"bags\":[],", "{\"rank\":2,");
  free(text);
  metrics_sample_free(s);
}

static void test_nothing_yet(void **state) {
  (void)state;
  kf_metrics m = {.version = KF_METRICS_VERSION, .step = -1};
  char *text = json(&m);
  assert_true(strncmp(text, "{\"step\":-1,\"epoch\":0,", 21) == 0);
  assert_non_null(strstr(text, "\"ranks\":[],\"bags\":[],"));
  free(text);
  m.n_ranks = 2; /* arrays that are not there count as zeros */
  m.n_bags = m.n_corrections = m.n_drifts = 1;
  text = json(&m);
  assert_has(text, "{\"rank\":1,\"busy_s\":0,", "\"bags\":[],", "\"corrections\":[],\"drift\":[],");
  free(text);
}

static void test_odd_numbers(void **state) {
  (void)state;
  metrics_sample *s = metrics_sample_create(2, 2);
  s->m.step_s = NAN;
  s->m.begin_s = INFINITY;
  s->real[0] = -INFINITY;
  s->counters[0].plan_s = NAN;
  s->m.figures.gap = -0.0;
  s->m.epoch_s = 1e7 + 0.123456789; /* four months: no digits are lost */
  s->m.plan_hash = UINT64_MAX;
  s->counters[0].tokens = INT64_MAX;
  s->m.noise = 5e-324;
  s->m.mape = 1.7976931348623157e308;
  s->correction[0].kind = 99;
  char *text = json(&s->m);
  assert_has(text, "\"begin_s\":null,\"step_s\":null,", "\"busy_s\":null,", "\"plan_s\":null",
             "\"epoch_s\":10000000.1234567", "\"hash\":\"ffffffffffffffff\"",
             "\"tokens\":9223372036854775807",
             "\"mape\":1.79769313e+308,\"noise\":4.94065646e-324,", "\"kind\":\"unknown\"");
  free(text);
  metrics_sample_free(s);
}

static void test_escape(void **state) {
  (void)state;
  metrics_sample *s = metrics_sample_create(1, 1);
  strcpy(s->drift[0].what, "a\"b\\c\nd\te\x7f\xff\xc3\xa9\xed\xa0\x80");
  char *text = json(&s->m);
  assert_non_null(
    strstr(text, "{\"what\":\"a\\\"b\\\\c\\nd\\u0009e\\u007f?\xc3\xa9???\",\"before\""));
  free(text);
  metrics_sample_free(s);
}

static void test_refused(void **state) {
  (void)state;
  char *text = NULL;
  kf_metrics m = {.version = KF_METRICS_VERSION + 1};
  assert_int_equal(kf_metrics_json(&m, &text), KF_EINVAL);
  assert_string_equal(kf_last_error(), "kf_metrics_json: metrics of version 2, expected version 1");
  assert_int_equal(kf_metrics_json(NULL, &text), KF_EINVAL);
  assert_int_equal(kf_metrics_json(&m, NULL), KF_EINVAL);
  assert_string_equal(kf_last_error(), "kf_metrics_json: metrics or out is NULL");
  assert_null(text);
}

static void test_large(void **state) {
  (void)state;
  metrics_sample *s = metrics_sample_create(16384, 8);
  char *text = json(&s->m);
  assert_has(text, "{\"rank\":16383,", "{\"bag\":2047,\"first\":16376,\"ranks\":8,");
  free(text);
  assert_same_in_german(json(&s->m));
  metrics_sample_free(s);
}

static void test_memory(void **state) {
  (void)state;
  metrics_sample_starve(kf_metrics_json);
}

/* The reader above is what these tests rest on. */
static void test_reader(void **state) {
  (void)state;
  static const char *const good[] = {
    "{}",     "[]",           "0",          "-0.5e+10", "[1,{\"a\":null}]", "\"\\u00e9\"",
    " true ", "\"\xc3\xa9\"", "[[[]],\"\"]"};
  static const char *const bad[] = {
    "",        "{",        "[1,]",    "01",         "1.",     ".5",    "+1",
    "nan",     "Infinity", "{\"a\"}", "{\"a\":1,}", "\"\t\"", "[1 2]", "{} {}",
    "\"\\x\"", "\"\xff\"", "1e",      "\"",         "[1}",    "-",     "\"\xed\xa0\x80\""};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++)
    if (!json_valid(good[i])) fail_msg("refused: %s", good[i]);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    if (json_valid(bad[i])) fail_msg("accepted: %s", bad[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_line),        cmocka_unit_test(test_documented),
    cmocka_unit_test(test_auto),        cmocka_unit_test(test_nothing_yet),
    cmocka_unit_test(test_odd_numbers), cmocka_unit_test(test_escape),
    cmocka_unit_test(test_refused),     cmocka_unit_test(test_large),
    cmocka_unit_test(test_memory),      cmocka_unit_test(test_reader),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
