/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <knapformer.h>

#include "dice.h"
#include "written.h"

/* What every user was promised; it must load as it stands. */
static const char promised[] =
  "knapformer:\n"
  "  bag_size: [1,1,2]            # int, list, \"g1n8+g2n4\", or auto\n"
  "  rebalance_interval: 50       # steps between refits of cost and speeds; every step is "
  "planned\n"
  "  cost_model: history          # static | modelled | history\n"
  "  max_chunk_size: 1024\n"
  "  affinity_policy: fill        # fill | spread\n";

static kf_config parse(const char *text) {
  kf_config config = {0};
  if (kf_config_parse("a.yaml", text, strlen(text), &config)) fail_msg("%s", kf_last_error());
  return config;
}

/* "key: value" inside the mapping. */
static kf_status parse_line(const char *line, kf_config *config) {
  char text[4096];
  snprintf(text, sizeof text, "knapformer:\n  %s\n", line);
  return kf_config_parse("a.yaml", text, strlen(text), config);
}

static void assert_same(const kf_config *a, const kf_config *b) {
  assert_string_equal(*a->bag_size ? a->bag_size : "auto", *b->bag_size ? b->bag_size : "auto");
  assert_int_equal(a->rebalance_interval ? a->rebalance_interval : 50,
                   b->rebalance_interval ? b->rebalance_interval : 50);
  assert_int_equal(a->cost_model, b->cost_model);
  assert_int_equal(a->max_chunk_size, b->max_chunk_size);
  assert_int_equal(a->affinity_policy, b->affinity_policy);
  assert_string_equal(*a->model ? a->model : "flux", *b->model ? b->model : "flux");
  assert_true((a->gamma > 0 ? a->gamma : 0.4) == (b->gamma > 0 ? b->gamma : 0.4));
  assert_string_equal(a->cluster, b->cluster);
  assert_int_equal(a->mem_tokens, b->mem_tokens);
  assert_true(a->budget_us == b->budget_us);
  assert_string_equal(a->cost_file, b->cost_file);
  assert_int_equal(a->log_level ? a->log_level : KF_LOG_INFO,
                   b->log_level ? b->log_level : KF_LOG_INFO);
  assert_string_equal(a->steps_file, b->steps_file);
  assert_string_equal(a->metrics_file, b->metrics_file);
  assert_string_equal(a->trace_file, b->trace_file);
  assert_string_equal(a->state_file, b->state_file);
}

static void test_promised(void **state) {
  (void)state;
  kf_config config = parse(promised);
  assert_string_equal(config.bag_size, "[1,1,2]");
  assert_int_equal(config.rebalance_interval, 50);
  assert_int_equal(config.cost_model, KF_COST_HISTORY);
  assert_int_equal(config.max_chunk_size, 1024);
  assert_int_equal(config.affinity_policy, KF_AFFINITY_FILL);
  assert_int_equal(kf_config_check(&config, 32), KF_OK);
  assert_int_equal(kf_config_check(&config, 0), KF_OK);
  assert_int_equal(kf_config_check(&config, 6), KF_EINVAL);
}

static void test_all_keys(void **state) {
  (void)state;
  kf_config config = parse("knapformer:\n"
                           "  bag_size: g1n8+g2n4\n"
                           "  rebalance_interval: 1000000000\n"
                           "  cost_model: modelled\n"
                           "  max_chunk_size: 4294967296\n"
                           "  affinity_policy: \"spread\"\n"
                           "  model: d=128,layers=2,heads=4\n"
                           "  gamma: 1.25e-1\n"
                           "  cluster: nodes=2,ranks_per_node=8,inter_GBps=inf\n"
                           "  mem_tokens: 160000\n"
                           "  budget_us: 250.5\n"
                           "  cost_file: /tmp/my cost.yaml\n"
                           "  log_level: debug\n"
                           "  steps_file: 'it''s'\n"
                           "  metrics_file: \"m\\u00e9trique: # 1\"\n"
                           "  trace_file: 1.5\n"
                           "  state_file: ''\n");
  kf_config want = {.bag_size = "g1n8+g2n4",
                    .rebalance_interval = 1000000000,
                    .cost_model = KF_COST_MODELLED,
                    .max_chunk_size = (int64_t)1 << 32,
                    .affinity_policy = KF_AFFINITY_SPREAD,
                    .model = "d=128,layers=2,heads=4",
                    .gamma = 0.125,
                    .cluster = "nodes=2,ranks_per_node=8,inter_GBps=inf",
                    .mem_tokens = 160000,
                    .budget_us = 250.5,
                    .cost_file = "/tmp/my cost.yaml",
                    .log_level = KF_LOG_DEBUG,
                    .steps_file = "it's",
                    .metrics_file = "m\xc3\xa9trique: # 1",
                    .trace_file = "1.5"};
  assert_same(&config, &want);
  assert_int_equal(kf_config_check(&config, 16), KF_OK);
}

static void test_bags(void **state) {
  (void)state;
  static const char *const good[][2] = {
    {"bag_size: 2", "2"},
    {"bag_size: \"2\"", "2"},
    {"bag_size: auto", "auto"},
    {"bag_size: g1n8+g2n4", "g1n8+g2n4"},
    {"bag_size: '[1,1,2]'", "[1,1,2]"},
    {"bag_size: [ 1, 1,\n    2 ]", "[1,1,2]"},
    {"bag_size:\n    - 1\n    - 12", "[1,12]"},
    {"bag_size: 1048576", "1048576"},
    {"bag_size: g1n1048576", "g1n1048576"},
  };
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    kf_config config = {0};
    if (parse_line(good[i][0], &config)) fail_msg("%s", kf_last_error());
    assert_string_equal(config.bag_size, good[i][1]);
  }
}

static void test_bad_values(void **state) {
  (void)state;
  static const char whole[] = "a whole number from 1 to 1000000000";
  static const struct {
    const char *line;
    int column;
    const char *found, *expected;
  } bad[] = {
    {"rebalance_interval: fast", 23, "rebalance_interval is \"fast\"", whole},
    {"rebalance_interval: [1]", 23, "rebalance_interval is a list", whole},
    {"rebalance_interval: {}", 23, "rebalance_interval is a mapping", whole},
    {"rebalance_interval:", 22, "rebalance_interval is empty", whole},
    {"rebalance_interval: ~", 23, "rebalance_interval is \"~\"", whole},
    {"rebalance_interval: null", 23, "rebalance_interval is \"null\"", whole},
    {"rebalance_interval: \"50\"", 23, "rebalance_interval is \"50\" in quotes", whole},
    {"rebalance_interval: 0", 23, "rebalance_interval is \"0\"", whole},
    {"rebalance_interval: -1", 23, "rebalance_interval is \"-1\"", whole},
    {"rebalance_interval: +1", 23, "rebalance_interval is \"+1\"", whole},
    {"rebalance_interval: 010", 23, "rebalance_interval is \"010\" with a leading zero", whole},
    {"rebalance_interval: 0x10", 23, "rebalance_interval is \"0x10\"", whole},
    {"rebalance_interval: 1_000", 23, "rebalance_interval is \"1_000\"", whole},
    {"rebalance_interval: 1e3", 23, "rebalance_interval is \"1e3\"", whole},
    {"rebalance_interval: yes", 23, "rebalance_interval is \"yes\"", whole},
    {"rebalance_interval: 1000000001", 23, "rebalance_interval is \"1000000001\"", whole},
    {"max_chunk_size: 1.5", 19, "max_chunk_size is \"1.5\"", "a whole number from 0 to 4294967296"},
    {"mem_tokens: 99999999999999999999", 15, "mem_tokens is \"99999999999999999999\"",
     "a whole number from 0 to 4503599627370496"},
    {"gamma: {a: 1}", 10, "gamma is a mapping", "a number above 0 and at most 1000000"},
    {"gamma: 0", 10, "gamma is \"0\"", "a number above 0 and at most 1000000"},
    {"gamma: .nan", 10, "gamma is \".nan\"", "a number above 0 and at most 1000000"},
    {"gamma: 1000001", 10, "gamma is \"1000001\"", "a number above 0 and at most 1000000"},
    {"budget_us: -0", 14, "budget_us is \"-0\"", "a number from 0 to 1000000000"},
    {"cost_model: modeled", 15, "cost_model is \"modeled\"", "history, static or modelled"},
    {"affinity_policy: Fill", 20, "affinity_policy is \"Fill\"", "fill or spread"},
    {"log_level: 3", 14, "log_level is \"3\"", "error, warning, info or debug"},
    {"log_level: \"\"", 14, "log_level is \"\"", "error, warning, info or debug"},
    {"cost_file: ~", 14, "cost_file is \"~\"", "a file's name, or \"\" for none"},
    {"cost_file:", 13, "cost_file is empty", "a file's name, or \"\" for none"},
    {"cost_file: [a]", 14, "cost_file is a list", "a file's name, or \"\" for none"},
    {"cost_file: \"a\\nb\"", 14, "cost_file is \"a?b\"", "UTF-8 without control characters"},
    {"cluster: {nodes: 4}", 12, "cluster is a mapping",
     "a name such as h100x32, or nodes=..,ranks_per_node=..,.."},
    {"bag_size: 010", 13, "bag_size is \"010\" with a leading zero",
     "a size, a list of sizes such as [1,1,2], g1n8+g2n4, or auto"},
    {"bag_size: \"\"", 13, "bag_size is \"\"",
     "a size, a list of sizes such as [1,1,2], g1n8+g2n4, or auto"},
    {"bag_size: [1, x]", 17, "bag_size has \"x\" in its list", "whole numbers from 1 to 1048576"},
    {"bag_size: [1, [2]]", 17, "bag_size has a list or mapping in its list",
     "whole numbers from 1 to 1048576"},
    {"bag_size: []", 13, "bag spec \"[]\", position 2: found \"]\"",
     "a whole number from 1 to 1048576"},
    {"bag_size: g1n8+g2nx", 13, "bag spec \"g1n8+g2nx\", position 9: found \"x\"",
     "a whole number from 1 to 1048576"},
    {"bag_size: g2n4+g4", 13, "bag spec \"g2n4+g4\", position 8: found the end", "n as in g2n4"},
    {"bag_size: 2x", 13, "bag spec \"2x\", position 2: found \"x\"", "the end"},
    {"bag_size: 1048577", 13, "bag spec \"1048577\", position 1: found \"1048577\"",
     "a whole number from 1 to 1048576"},
    {"model: nope", 10, "model \"nope\", position 1: found \"nope\"",
     "flux, wan1.3b, wan14b, DiT-S, DiT-B, DiT-L, DiT-XL or d=..,layers=..,heads=.."},
    {"cluster: nodes=0", 12, "cluster \"nodes=0\", position 7: found \"0\"",
     "a whole number from 1 to 1048576"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    kf_config config = {.gamma = 3, .model = "wan14b"}, before = config;
    char want[600];
    if (parse_line(bad[i].line, &config) != KF_EINVAL) fail_msg("\"%s\" was accepted", bad[i].line);
    snprintf(want, sizeof want, "a.yaml, line 2, column %d: %s, expected %s", bad[i].column,
             bad[i].found, bad[i].expected);
    assert_string_equal(kf_last_error(), want);
    assert_memory_equal(&config, &before, sizeof config);
  }
}

static void test_bad_keys(void **state) {
  (void)state;
  static const char *const meant[][2] = {{"rebalance_intervall", "rebalance_interval"},
                                         {"max-chunk-size", "max_chunk_size"},
                                         {"gama", "gamma"},
                                         {"costmodel", "cost_model"},
                                         {"bags_size", "bag_size"},
                                         {"Model", "model"}};
  kf_config config = {0};
  char line[256], want[256];
  for (size_t i = 0; i < sizeof meant / sizeof *meant; i++) {
    snprintf(line, sizeof line, "%s: 1", meant[i][0]);
    assert_int_equal(parse_line(line, &config), KF_EINVAL);
    snprintf(want, sizeof want,
             "a.yaml, line 2, column 3: unknown key \"%s\" (did you mean %s?), expected one of "
             "bag_size, ",
             meant[i][0], meant[i][1]);
    assert_memory_equal(kf_last_error(), want, strlen(want));
  }
  assert_int_equal(parse_line("colour: red", &config), KF_EINVAL);
  assert_string_equal(kf_last_error(),
                      "a.yaml, line 2, column 3: unknown key \"colour\", expected one of bag_size, "
                      "rebalance_interval, cost_model, max_chunk_size, affinity_policy, model, "
                      "gamma, cluster, mem_tokens, budget_us, cost_file, log_level, steps_file, "
                      "metrics_file, trace_file, state_file");
  assert_int_equal(parse_line("? \"\"\n  : 1", &config), KF_EINVAL);
  memset(line, 'x', 200); /* long keys are not compared, and shown in part */
  strcpy(line + 200, ": 1");
  assert_int_equal(parse_line(line, &config), KF_EINVAL);
  assert_non_null(strstr(kf_last_error(), "xxx...\", expected one of bag_size"));
  assert_int_equal(parse_line("gamma: 1\n  gamma: 1", &config), KF_EINVAL);
  assert_int_equal(kf_config_parse("a.yaml", "gamma: 1", 8, &config), KF_EINVAL);
  assert_string_equal(kf_last_error(),
                      "a.yaml, line 1, column 1: unknown top-level key \"gamma\", expected only "
                      "\"knapformer:\" with all keys indented below it");
  assert_true(config.gamma == 0);
}

/* A good key before a bad one leaves no trace; a second file goes over the first. */
static void test_over(void **state) {
  (void)state;
  kf_config config = parse(promised), before = config;
  assert_int_equal(parse_line("gamma: 2\n  model: nope", &config), KF_EINVAL);
  assert_memory_equal(&config, &before, sizeof config);
  assert_int_equal(parse_line("gamma: 2", &config), KF_OK);
  assert_true(config.gamma == 2);
  assert_int_equal(config.max_chunk_size, 1024);
  assert_int_equal(kf_config_parse("a.yaml", "knapformer: {}", 14, &config), KF_OK);
  assert_true(config.gamma == 2);
}

static void test_lengths(void **state) {
  (void)state;
  kf_config config = {0};
  char line[3000] = "state_file: ";
  for (int n = 1022; n <= 1024; n++) {
    memset(line + 12, 'x', (size_t)n);
    line[12 + n] = 0;
    assert_int_equal(parse_line(line, &config), n < 1024 ? KF_OK : KF_EINVAL);
    assert_int_equal(strlen(config.state_file), n < 1024 ? n : 1023);
  }
  assert_string_equal(kf_last_error(), "a.yaml, line 2, column 15: state_file has 1024 bytes, "
                                       "expected at most 1023");
  for (int n = 511; n <= 1200; n += 1200 - 511) { /* "[1,...,1]": 1023 bytes */
    strcpy(line, "bag_size: [1");
    for (int i = 1; i < n; i++) strcat(line, ",1");
    strcat(line, "]");
    assert_int_equal(parse_line(line, &config), n == 511 ? KF_OK : KF_EINVAL);
    assert_int_equal(strlen(config.bag_size), 1023);
  }
}

static void test_set(void **state) {
  (void)state;
  static const char *const good[] = {
    "bag_size=[1,1,2]", "rebalance_interval=7", "cost_model=static", "gamma=0.5",
    "state_file=a=b",   "cost_file=null",       "log_level=error",   "cluster=free"};
  kf_config config = {0};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++)
    if (kf_config_set(good[i], &config)) fail_msg("%s", kf_last_error());
  kf_config want = {.bag_size = "[1,1,2]",
                    .rebalance_interval = 7,
                    .cost_model = KF_COST_STATIC,
                    .gamma = 0.5,
                    .state_file = "a=b",
                    .cost_file = "null",
                    .log_level = KF_LOG_ERROR,
                    .cluster = "free"};
  assert_same(&config, &want);
  assert_int_equal(kf_config_set("state_file=", &config), KF_OK); /* back to none */
  assert_string_equal(config.state_file, "");

  static const char *const bad[][2] = {
    {"rebalance_interval=fast", "--set rebalance_interval=fast: rebalance_interval is \"fast\", "
                                "expected a whole number from 1 to 1000000000"},
    {"rebalance_interval=", "--set rebalance_interval=: rebalance_interval is empty, expected a "
                            "whole number from 1 to 1000000000"},
    {"rebalance_interval", "--set rebalance_interval: found no \"=\", expected key=value"},
    {"", "--set : found no \"=\", expected key=value"},
    {"bag_size=[1, 2]", "--set bag_size=[1, 2]: bag spec \"[1, 2]\", position 4: found \" \", "
                        "expected a whole number from 1 to 1048576"},
    {"model=", "--set model=: model is \"\", expected a name such as flux, or "
               "d=..,layers=..,heads=.."},
    {"state_file=\xff", "--set state_file=?: state_file is \"?\", expected UTF-8 without control "
                        "characters"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    kf_config before = config;
    assert_int_equal(kf_config_set(bad[i][0], &config), KF_EINVAL);
    assert_string_equal(kf_last_error(), bad[i][1]);
    assert_memory_equal(&config, &before, sizeof config);
  }
  assert_int_equal(kf_config_set("=1", &config), KF_EINVAL);
  assert_int_equal(kf_config_set("gama=1", &config), KF_EINVAL);
  assert_non_null(
    strstr(kf_last_error(), "--set gama=1: unknown key \"gama\" (did you mean gamma?)"));
  assert_int_equal(kf_config_set(NULL, &config), KF_EINVAL);
  assert_int_equal(kf_config_set("gamma=1", NULL), KF_EINVAL);
}

static void assert_check(const char *assignment, int32_t n_ranks, const char *sentence) {
  kf_config config = {0};
  char copy[256], *rest = copy;
  snprintf(copy, sizeof copy, "%s", assignment);
  for (char *word; (word = strtok_r(rest, " ", &rest));)
    if (kf_config_set(word, &config)) fail_msg("%s", kf_last_error());
  kf_status status = kf_config_check(&config, n_ranks);
  assert_int_equal(status, sentence ? KF_EINVAL : KF_OK);
  if (sentence) assert_string_equal(kf_last_error(), sentence);
}

static void test_check(void **state) {
  (void)state;
  assert_check("", 1, NULL);
  assert_check("", KF_MAX_RANKS, NULL);
  assert_check("bag_size=4", 32, NULL);
  assert_check("bag_size=5", 32, "bag_size: bag spec \"5\": 32 ranks do not divide into bags of 5");
  assert_check("bag_size=5", 0, NULL); /* nobody says how many ranks there are */
  assert_check("bag_size=g1n8+g2n4", 8,
               "bag_size: bag spec \"g1n8+g2n4\": its bags need 16 ranks or more, expected at most "
               "the 8 there are");
  assert_check(
    "cluster=h100x32", 16,
    "cluster \"h100x32\": it has 4 nodes of 8 ranks, 32 in all, expected 16 ranks in all");
  assert_check("cost_model=modelled", 0,
               "cost_model is modelled but there is no cost_file, expected the file that "
               "`knapformer fit -o` wrote");
  assert_check("cost_model=modelled cost_file=x", 8, NULL);
  assert_check(
    "cost_model=static cost_file=x", 0,
    "cost_model is static, which counts FLOPs, but cost_file is \"x\", expected none, or "
    "modelled or history");
  assert_check("steps_file=x trace_file=x", 0,
               "steps_file and trace_file are both \"x\", expected different files");
  kf_config config = {0};
  assert_int_equal(kf_config_check(&config, -1), KF_EINVAL);
  assert_int_equal(kf_config_check(&config, KF_MAX_RANKS + 1), KF_EINVAL);
  assert_int_equal(kf_config_check(NULL, 1), KF_EINVAL);
}

/* ------------------------------------------------------------------- what it means */

static kf_scheduler_options *resolve(const kf_config *config, int32_t n_ranks) {
  kf_scheduler_options *o = NULL;
  if (kf_config_resolve(config, n_ranks, &o)) fail_msg("%s", kf_last_error());
  return o;
}

/* No field says nothing, nor does no config: the defaults that users are told. */
static void test_resolve_defaults(void **state) {
  (void)state;
  const kf_config nothing = {0};
  kf_cost cost;
  assert_int_equal(kf_cost_preset("flux", "", 6, 0.4, &cost), KF_OK);
  for (int i = 0; i < 2; i++) {
    kf_scheduler_options *o = resolve(i ? &nothing : NULL, 6);
    assert_memory_equal(&o->plan.cost, &cost, sizeof cost);
    assert_null(o->plan.bags);
    assert_null(o->plan.speed);
    assert_null(o->plan.mem_tokens);
    assert_true(o->plan.max_chunk_size == 0 && o->plan.budget == 0);
    assert_int_equal(o->plan.affinity, KF_AFFINITY_FILL);
    assert_int_equal(o->cost_model, KF_COST_HISTORY);
    assert_int_equal(o->rebalance_interval, 50);
    assert_int_equal(o->log_level, KF_LOG_INFO);
    assert_null(o->log);
    kf_scheduler_options_free(o);
  }
  kf_scheduler_options_free(NULL);
}

static void test_resolve(void **state) {
  (void)state;
  char path[] = "cost-XXXXXX";
  static const char fit[] = "cost:\n  linear_s: 2e-5\n  quadratic_s: 3e-10\n  constant_s: 0\n";
  kf_config c = {.bag_size = "g1n2+g2n1",
                 .rebalance_interval = 7,
                 .cost_model = KF_COST_MODELLED,
                 .max_chunk_size = 900,
                 .affinity_policy = KF_AFFINITY_SPREAD,
                 .model = "DiT-B",
                 .gamma = 1.5,
                 .cluster = "free",
                 .mem_tokens = 5000,
                 .budget_us = 100,
                 .log_level = KF_LOG_DEBUG};
  close(mkstemp(path));
  assert_int_equal(kf_file_replace(path, fit, sizeof fit - 1), KF_OK);
  strcpy(c.cost_file, path);
  kf_scheduler_options *o = resolve(&c, 8);
  assert_true(o->plan.cost.linear_s == 2e-5 && o->plan.cost.quadratic_s == 3e-10);
  assert_true(o->plan.cost.heads == 12 && isinf(o->plan.cost.cluster.inter_Bps));
  assert_true(o->plan.bags->n_bags == 6 && o->plan.bags->n_groups == 2);
  for (int r = 0; r < 8; r++) assert_int_equal(o->plan.mem_tokens[r], 5000);
  assert_int_equal(o->plan.max_chunk_size, 900);
  assert_int_equal(o->plan.budget, kf_planner_budget(100));
  assert_int_equal(o->plan.affinity, KF_AFFINITY_SPREAD);
  assert_int_equal(o->cost_model, KF_COST_MODELLED);
  assert_int_equal(o->rebalance_interval, 7);
  assert_int_equal(o->log_level, KF_LOG_DEBUG);
  kf_scheduler *s = NULL; /* all of it may go to a scheduler, which keeps nothing of it */
  assert_int_equal(kf_scheduler_create(o, &s), KF_OK);
  kf_scheduler_options_free(o);
  kf_scheduler_free(s);
  for (long k = 1;; k++) {
    fail_alloc(k);
    o = NULL;
    kf_status status = kf_config_resolve(&c, 8, &o);
    if (fail_alloc(0) < k) break;
    assert_int_equal(status, KF_ENOMEM);
    assert_null(o);
  }
  kf_scheduler_options_free(o);
  unlink(path);
  o = NULL;
  assert_int_equal(kf_config_resolve(&c, 8, &o), KF_EIO);
  assert_non_null(strstr(kf_last_error(), "cost_file: cannot open \"cost-"));
  strcpy(c.cost_file, "/dev/zero"); /* has no end */
  assert_int_equal(kf_config_resolve(&c, 8, &o), KF_EINVAL);
  *c.cost_file = 0;
  assert_int_equal(kf_config_resolve(&c, 8, &o), KF_EINVAL);
  assert_int_equal(kf_config_resolve(NULL, 0, &o), KF_EINVAL);
  assert_int_equal(kf_config_resolve(NULL, 1, NULL), KF_EINVAL);
  assert_null(o);
}

/* What a program filled in wrongly is found as well, by check and by text. */
static void test_filled_in(void **state) {
  (void)state;
  static const struct {
    kf_config config;
    const char *sentence;
  } bad[] = {
    {{.gamma = NAN}, "config: gamma is \"nan\", expected a number above 0 and at most 1000000"},
    {{.gamma = -1}, "config: gamma is \"-1\", expected a number above 0 and at most 1000000"},
    {{.budget_us = INFINITY},
     "config: budget_us is \"inf\", expected a number from 0 to 1000000000"},
    {{.rebalance_interval = -5},
     "config: rebalance_interval is \"-5\", expected a whole number from 1 to 1000000000"},
    {{.cost_model = (kf_cost_model)3},
     "config: cost_model is \"3\", expected history, static or modelled"},
    {{.log_level = (kf_log_level)77},
     "config: log_level is \"77\", expected error, warning, info or debug"},
    {{.bag_size = "x"},
     "config: bag spec \"x\", position 1: found \"x\", expected g1n8+g2n4, "
     "[1,1,2], a bag size, or auto"},
    {{.state_file = "a\n"},
     "config: state_file is \"a?\", expected UTF-8 without control characters"},
  };
  char *text = NULL;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    kf_config config = bad[i].config;
    assert_int_equal(kf_config_check(&config, 8), KF_EINVAL);
    if (config.gamma != config.gamma) /* a NaN may have a sign */
      assert_non_null(strstr(kf_last_error(), "nan\", expected a number above 0"));
    else
      assert_string_equal(kf_last_error(), bad[i].sentence);
    assert_int_equal(kf_config_text(&config, &text), KF_EINVAL);
    assert_null(text);
  }
  kf_config config = {0};
  memset(config.model, 'x', sizeof config.model);
  assert_int_equal(kf_config_check(&config, 8), KF_EINVAL);
  assert_string_equal(kf_last_error(), "config: model has no 0 in its 1024 bytes, expected one");
  assert_int_equal(kf_config_text(NULL, &text), KF_EINVAL);
  assert_int_equal(kf_config_text(&config, NULL), KF_EINVAL);
  assert_int_equal(kf_config_parse(NULL, "", 0, &config), KF_EINVAL);
  assert_int_equal(kf_config_parse("a", NULL, 1, &config), KF_EINVAL);
  assert_int_equal(kf_config_parse("a", "", 0, NULL), KF_EINVAL);
}

static void random_path(dice *d, char *out) {
  static const char *const piece[] = {
    "a", "/",        ".",        "-",    " ", "#", ": ", "\"",           "\\",
    "'", "\xc3\xa9", "\xc2\xa0", "null", "~", "[", "{",  "\xe2\x80\xa8", "\xef\xbb\xbf",
    "%", "&x",       "*"};
  int64_t n = dice_int(d, 12);
  *out = 0;
  for (int64_t i = 0; i < n; i++) strcat(out, piece[dice_int(d, sizeof piece / sizeof *piece)]);
}

static kf_config random_config(dice *d) {
  static const char *const bags[] = {"", "auto", "4", "[1,1,2]", "g1n8+g2n4", "AUTO"};
  static const char *const models[] = {"", "flux", "dit-xl", "d=64,layers=2,heads=4"};
  static const char *const clusters[] = {"", "free", "h100x32", "nodes=2,latency_us=0.125"};
  kf_config c = {0};
  strcpy(c.bag_size, bags[dice_int(d, 6)]);
  c.rebalance_interval = dice_int(d, 3) ? dice_int(d, 1000000000) + 1 : 0;
  c.cost_model = (kf_cost_model)dice_int(d, 3);
  c.max_chunk_size = dice_int(d, KF_MAX_LEN + 1);
  c.affinity_policy = (kf_affinity)dice_int(d, 2);
  strcpy(c.model, models[dice_int(d, 4)]);
  c.gamma = dice_int(d, 3) ? dice_real(d, 0, 2) : 0;
  strcpy(c.cluster, clusters[dice_int(d, 4)]);
  c.mem_tokens = dice_int(d, KF_MAX_TOKENS + 1);
  c.budget_us = dice_int(d, 3) ? dice_real(d, 0, 1e9) : 0;
  c.log_level = (kf_log_level)dice_int(d, 5);
  random_path(d, c.cost_file);
  random_path(d, c.steps_file);
  random_path(d, c.metrics_file);
  random_path(d, c.trace_file);
  random_path(d, c.state_file);
  return c;
}

static void test_text(void **state) {
  (void)state;
  dice d = {1};
  for (int i = 0; i < 3000; i++) {
    kf_config config = i ? random_config(&d) : (kf_config){0};
    char *text = NULL;
    if (kf_config_text(&config, &text)) fail_msg("%s", kf_last_error());
    kf_config back = parse(text);
    assert_same(&config, &back);
    free(text);
  }
}

static kf_status go_round(const kf_config *config, char **text) {
  kf_config read = {0};
  kf_status status = kf_config_parse("a.yaml", promised, strlen(promised), &read);
  if (!status) status = kf_config_check(config, 32);
  return status ? status : kf_config_text(config, text);
}

static void test_memory(void **state) {
  (void)state;
  kf_config config = parse(promised);
  assert_starves(2, text, go_round(&config, &text));
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_promised), cmocka_unit_test(test_all_keys),
    cmocka_unit_test(test_bags),     cmocka_unit_test(test_bad_values),
    cmocka_unit_test(test_bad_keys), cmocka_unit_test(test_over),
    cmocka_unit_test(test_lengths),  cmocka_unit_test(test_set),
    cmocka_unit_test(test_check),    cmocka_unit_test(test_resolve_defaults),
    cmocka_unit_test(test_resolve),  cmocka_unit_test(test_filled_in),
    cmocka_unit_test(test_text),     cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
