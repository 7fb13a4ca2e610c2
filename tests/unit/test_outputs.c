/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a configuration: what is in them after some steps, and what is said where they
** fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "fail_alloc.h"
#include "simulated.h"

#define OK(call) assert_int_equal(call, KF_OK)

static char text[1 << 20];

static const char *read_back(const char *path) {
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  text[fread(text, 1, sizeof text - 1, file)] = 0;
  fclose(file);
  return text;
}

static int lines(const char *path) {
  int n = 0;
  for (const char *p = read_back(path); *p; p++) n += *p == '\n';
  return n;
}

static char folder[] = "/tmp/outputs-XXXXXX";

static int enter_folder(void **state) {
  (void)state;
  return !mkdtemp(folder) || chdir(folder);
}

static int leave_folder(void **state) {
  (void)state;
  static const char *const files[] = {"steps", "metrics", "trace", "s", "m", "t"};
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) unlink(files[i]);
  return chdir("/") || rmdir(folder);
}

static void test_files(void **state) {
  (void)state;
  const kf_config config = {
    .steps_file = "steps", .metrics_file = "metrics", .trace_file = "trace", .state_file = "state"};
  kf_scheduler *s;
  kf_outputs *o = NULL;
  OK(kf_file_replace("steps", "of another day\n", 15));
  OK(scheduler_create(&(scheduler_wish){.n_ranks = 4}, &s));
  training t = training_of(s, "g2b4i256f1s0,g2b1i512f1s0", 1);
  OK(kf_outputs_create(&config, 4, &o));
  OK(kf_outputs_step(o, kf_scheduler_metrics(s))); /* of no step yet */
  assert_int_equal(lines("steps"), 0);
  for (int i = 0; i < 5; i++) {
    OK(training_step(&t));
    OK(kf_scheduler_settle(s));
    for (int again = 0; again < 2; again++) OK(kf_outputs_step(o, kf_scheduler_metrics(s)));
    assert_int_equal(lines("steps"), i + 1); /* written through, and once */
    assert_non_null(strstr(read_back("metrics"), "knapformer_steps_total"));
  }
  char *json = NULL;
  OK(kf_metrics_json(kf_scheduler_metrics(s), &json));
  assert_non_null(strstr(read_back("steps"), json));
  free(json);
  OK(kf_outputs_close(o));
  assert_non_null(strstr(read_back("trace"), "compute"));
  assert_int_equal(access("state", F_OK), -1); /* kf_scheduler_save_file writes that */
  unlink("metrics");
  OK(training_step(&t));
  OK(kf_scheduler_settle(s));
  OK(kf_outputs_step(o, kf_scheduler_metrics(s)));
  OK(kf_outputs_close(o));
  assert_int_equal(access("metrics", F_OK), -1);
  kf_outputs_free(o);
  assert_int_equal(lines("steps"), 5);
  kf_scheduler_free(s);
}

static void test_refusals(void **state) {
  (void)state;
  static const struct {
    kf_config config;
    kf_status status;
    const char *sentence;
  } wrong[] = {
    {{.steps_file = "-"}, KF_EINVAL, "steps_file: found \"-\", expected the name of a file"},
    {{.metrics_file = "-"}, KF_EINVAL, "metrics_file: found \"-\", expected the name of a file"},
    {{.trace_file = "-"}, KF_EINVAL, "trace_file: found \"-\", expected the name of a file"},
    {{.state_file = "-"}, KF_EINVAL, "state_file: found \"-\", expected the name of a file"},
    {{.steps_file = "none/a"},
     KF_EIO,
     "steps_file: cannot write \"none/a\": No such file or directory"},
    {{.trace_file = "none/a"},
     KF_EIO,
     "trace_file: cannot write \"none/a\": No such file or directory"},
    {{.trace_file = "/dev/full"},
     KF_EIO,
     "trace_file: cannot write \"/dev/full\": No space left on device"},
  };
  kf_outputs *o = NULL;
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    assert_int_equal(kf_outputs_create(&wrong[i].config, 2, &o), wrong[i].status);
    assert_string_equal(kf_last_error(), wrong[i].sentence);
    assert_null(o);
  }
  static const char *const path[] = {"/dev/full", "none/a"};
  for (int i = 0; i < 2; i++) { /* a disk that is full, a folder that is gone */
    kf_config config = {0};
    kf_scheduler *s;
    strcpy(i ? config.metrics_file : config.steps_file, path[i]);
    OK(kf_outputs_create(&config, 2, &o));
    OK(scheduler_create(&(scheduler_wish){.n_ranks = 2}, &s));
    training t = training_of(s, "g2b4i256f1s0", 1);
    OK(training_step(&t));
    OK(kf_scheduler_settle(s));
    assert_int_equal(kf_outputs_step(o, kf_scheduler_metrics(s)), KF_EIO);
    assert_non_null(strstr(kf_last_error(), i ? "metrics_file: " : "steps_file: "));
    kf_outputs_free(o);
    o = NULL;
    kf_scheduler_free(s);
  }
  assert_int_equal(kf_outputs_create(NULL, 2, &o), KF_EINVAL);
  assert_int_equal(kf_outputs_step(NULL, NULL), KF_EINVAL);
  OK(kf_outputs_close(NULL));
  kf_outputs_free(NULL);
}

static void test_fails_to_allocate(void **state) {
  (void)state;
  const kf_config config = {.steps_file = "s", .metrics_file = "m", .trace_file = "t"};
  kf_outputs *o = NULL;
  kf_status status;
  for (long k = 1;; k++) {
    fail_alloc(k);
    status = kf_outputs_create(&config, 2, &o);
    if (fail_alloc(0) < k) break;
    assert_int_equal(status, KF_ENOMEM);
    assert_null(o);
  }
  OK(status);
  kf_outputs_free(o);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_files), cmocka_unit_test(test_refusals),
                                     cmocka_unit_test(test_fails_to_allocate)};
  return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
