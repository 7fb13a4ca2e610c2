/* SPDX-License-Identifier: Apache-2.0 */
/*
** The configuration: one table of keys, from which files and --set are read, configs are checked
** and printed, and messages list what there is.
**
** A field that is all zero is the default, so each key knows how a file would say its zero.
** Checking a config therefore needs no second set of rules: each field is written as a file would
** say it, and must read back; what is read back has all defaults filled in, here and nowhere else.
*/
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../file.h"
#include "yaml.h"

typedef enum kind { BAGS, MODEL, CLUSTER, PATH, WHOLE, REAL, POSITIVE, CHOICE } kind;

enum { MAX_CHOICES = 5, EXPECTED_MAX = 160 };

typedef struct key {
  const char *name;
  kind kind;
  size_t offset;                   /* of the field in kf_config */
  const char *zero;                /* what the field's zero means, as a file says it */
  double max;                      /* of a number; the least is 0, or 1 where 0 means another one */
  const char *choice[MAX_CHOICES]; /* by the enum's value */
  const char *comment;
} key;

#define TEXT_OF(number) #number
#define TEXT(macro) TEXT_OF(macro)
#define FIELD(name) #name, .offset = offsetof(kf_config, name)

static const key keys[] = {
  {FIELD(bag_size), .kind = BAGS, .zero = "auto", .comment = "a size, a list, g1n8+g2n4, or auto"},
  {FIELD(rebalance_interval), .kind = WHOLE, .zero = TEXT(KF_DEFAULT_INTERVAL), .max = 1e9,
   .comment = "steps between refits of cost and speeds; every step is planned"},
  {FIELD(cost_model), .kind = CHOICE, .zero = "history",
   .choice =
     {[KF_COST_HISTORY] = "history", [KF_COST_STATIC] = "static", [KF_COST_MODELLED] = "modelled"},
   .comment = "static | modelled | history"},
  {FIELD(max_chunk_size), .kind = WHOLE, .zero = "0", .max = (double)KF_MAX_LEN,
   .comment = "most tokens of one sequence on one rank; 0: no limit"},
  {FIELD(affinity_policy), .kind = CHOICE, .zero = "fill",
   .choice = {[KF_AFFINITY_FILL] = "fill", [KF_AFFINITY_SPREAD] = "spread"},
   .comment = "fill | spread"},
  {FIELD(model), .kind = MODEL, .zero = KF_DEFAULT_MODEL,
   .comment = "a name, or d=3072,layers=57,heads=24"},
  {FIELD(gamma), .kind = POSITIVE, .zero = TEXT(KF_DEFAULT_GAMMA), .max = 1e6,
   .comment = "how many times dearer an attention FLOP is"},
  {FIELD(cluster), .kind = CLUSTER, .zero = "",
   .comment = "a name, or nodes=4,ranks_per_node=8,..; \"\": as h100x32, for any ranks"},
  {FIELD(mem_tokens), .kind = WHOLE, .zero = "0", .max = (double)KF_MAX_TOKENS,
   .comment = "most tokens a rank may load; 0: no cap"},
  {FIELD(budget_us), .kind = REAL, .zero = "0", .max = 1e9,
   .comment = "of the planner's search; 0: its default"},
  {FIELD(cost_file), .kind = PATH, .zero = "",
   .comment = "what `knapformer fit -o` wrote; \"\": none"},
  {FIELD(log_level), .kind = CHOICE, .zero = "info",
   .choice = {[KF_LOG_ERROR] = "error",
              [KF_LOG_WARNING] = "warning",
              [KF_LOG_INFO] = "info",
              [KF_LOG_DEBUG] = "debug"},
   .comment = "error | warning | info | debug"},
  {FIELD(steps_file), .kind = PATH, .zero = "", .comment = "a JSON line per step; \"\": none"},
  {FIELD(metrics_file), .kind = PATH, .zero = "",
   .comment = "Prometheus text, refreshed each step; \"\": none"},
  {FIELD(trace_file), .kind = PATH, .zero = "", .comment = "Chrome trace; \"\": none"},
  {FIELD(state_file), .kind = PATH, .zero = "", .comment = "the scheduler's memory; \"\": none"},
};

enum { N_KEYS = sizeof keys / sizeof keys[0] };

_Static_assert(sizeof(kf_cost_model) == sizeof(int) && sizeof(kf_affinity) == sizeof(int) &&
                 sizeof(kf_log_level) == sizeof(int),
               "enums are read and written as int");

static bool is_text(const key *k) { return k->kind <= PATH; }

static bool is_number(const key *k) { return k->kind >= WHOLE && k->kind < CHOICE; }

/* ------------------------------------------------------------------------ messages */

/* "a whole number from 1 to 1000000000". */
static void describe(const key *k, char out[EXPECTED_MAX]) {
  size_t n = 0;
  switch (k->kind) {
  case BAGS: strcpy(out, "a size, a list of sizes such as [1,1,2], g1n8+g2n4, or auto"); break;
  case MODEL: strcpy(out, "a name such as flux, or d=..,layers=..,heads=.."); break;
  case CLUSTER: strcpy(out, "a name such as h100x32, or nodes=..,ranks_per_node=..,.."); break;
  case PATH: strcpy(out, "a file's name, or \"\" for none"); break;
  case WHOLE:
    snprintf(out, EXPECTED_MAX, "a whole number from %d to %.0f", *k->zero != '0', k->max);
    break;
  case REAL: snprintf(out, EXPECTED_MAX, "a number from 0 to %.0f", k->max); break;
  case POSITIVE: snprintf(out, EXPECTED_MAX, "a number above 0 and at most %.0f", k->max); break;
  case CHOICE:
    for (int i = 0; i < MAX_CHOICES; i++)
      if (k->choice[i]) {
        bool last = i + 1 == MAX_CHOICES || !k->choice[i + 1];
        n += (size_t)snprintf(out + n, EXPECTED_MAX - n, "%s%s",
                              n == 0 ? ""
                              : last ? " or "
                                     : ", ",
                              k->choice[i]);
      }
  }
}

/* `found` is a description: "a list". */
static kf_status refuse(const key *k, const kfi_place *at, const char *found) {
  char expected[EXPECTED_MAX];
  describe(k, expected);
  return kfi_value_fail(at, "%s is %s, expected %s", k->name, found, expected);
}

static kf_status refuse_text(const key *k, const kfi_place *at, const char *text, bool quoted) {
  char found[KFI_SHOWN + 32], shown[KFI_SHOWN];
  const char *hint = "";
  if (!*text && !quoted) return refuse(k, at, "empty");
  if (is_number(k) && quoted) hint = " in quotes";
  if ((is_number(k) || k->kind == BAGS) && text[0] == '0' && text[1] >= '0' && text[1] <= '9')
    hint = " with a leading zero"; /* octal in YAML 1.1 */
  snprintf(found, sizeof found, "\"%s\"%s", kfi_value_show(text, shown), hint);
  return refuse(k, at, found);
}

/* How many letters must change to make b of a (Levenshtein), 99 if a is long. */
static int distance(const char *a, const char *b) {
  enum { MAX = 32 };
  int row[MAX + 1];
  size_t n = strlen(a), m = strlen(b);
  if (n > MAX) return 99;
  for (size_t i = 0; i <= n; i++) row[i] = (int)i;
  for (size_t j = 1; j <= m; j++) {
    int corner = row[0];
    row[0] = (int)j;
    for (size_t i = 1; i <= n; i++) {
      int change = corner + (a[i - 1] != b[j - 1]);
      corner = row[i];
      row[i] = 1 + (row[i] < row[i - 1] ? row[i] : row[i - 1]);
      if (change < row[i]) row[i] = change;
    }
  }
  return row[n];
}

static kf_status refuse_key(const kfi_place *at, const char *name) {
  char shown[KFI_SHOWN], hint[64] = "", list[320];
  int best = 99;
  size_t n = 0;
  for (int i = 0; i < N_KEYS; i++) {
    int d = distance(name, keys[i].name);
    if (d < best && d <= 1 + (int)strlen(keys[i].name) / 3) {
      best = d;
      snprintf(hint, sizeof hint, " (did you mean %s?)", keys[i].name);
    }
    n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", keys[i].name);
  }
  return kfi_value_fail(at, "unknown key \"%s\"%s, expected one of %s", kfi_value_show(name, shown),
                        hint, list);
}

static const key *find(const char *name, size_t n) {
  for (int i = 0; i < N_KEYS; i++)
    if (strlen(keys[i].name) == n && memcmp(keys[i].name, name, n) == 0) return &keys[i];
  return NULL;
}

/* ---------------------------------------------------------------- from text to field */

/* Is it one of its kind? The sentence is that of whoever reads it later. */
static kf_status check_text(const key *k, const char *text) {
  kf_model model;
  kf_cluster cluster;
  kf_bags *bags = NULL;
  kf_status status = KF_OK;
  if (k->kind == MODEL) return kf_model_parse(text, &model);
  if (k->kind == CLUSTER) return kf_cluster_parse(text, 0, &cluster);
  if (k->kind == BAGS) status = kf_bags_parse(text, 0, &bags);
  kf_bags_free(bags);
  return status;
}

static kf_status set_text(const key *k, const kfi_place *at, const char *text, bool quoted,
                          char *field) {
  static const char *const nothing[] = {"", "~", "null", "Null", "NULL"};
  size_t n = strlen(text);
  if (n >= KF_MAX_TEXT)
    return kfi_value_fail(at, "%s has %zu bytes, expected at most %d", k->name, n, KF_MAX_TEXT - 1);
  for (size_t i = 0; !quoted && i < sizeof nothing / sizeof *nothing; i++)
    if (strcmp(text, nothing[i]) == 0) return refuse_text(k, at, text, quoted);
  if ((k->kind == BAGS && text[0] == '0') || (!*text && (k->kind == BAGS || k->kind == MODEL)))
    return refuse_text(k, at, text, quoted);
  if (!kfi_value_is_text(text)) {
    char shown[KFI_SHOWN];
    return kfi_value_fail(at, "%s is \"%s\", expected UTF-8 without control characters", k->name,
                          kfi_value_show(text, shown));
  }
  kf_status status = check_text(k, text);
  if (status == KF_EINVAL) return kfi_value_fail(at, "%s", kf_last_error());
  if (status) return status;
  memset(field, 0, KF_MAX_TEXT);
  memcpy(field, text, n);
  return KF_OK;
}

/* All ways into a config end here. */
static kf_status set(const key *k, const kfi_place *at, const char *text, bool quoted,
                     kf_config *config) {
  char *field = (char *)config + k->offset;
  if (is_text(k)) return set_text(k, at, text, quoted, field);
  if (k->kind == CHOICE) {
    for (int i = 0; i < MAX_CHOICES; i++)
      if (k->choice[i] && strcmp(text, k->choice[i]) == 0) {
        memcpy(field, &i, sizeof i);
        return KF_OK;
      }
    return refuse_text(k, at, text, quoted);
  }
  int64_t whole;
  double real;
  if (k->kind == WHOLE) {
    if (quoted || !kfi_value_whole(text, *k->zero != '0', (int64_t)k->max, &whole))
      return refuse_text(k, at, text, quoted);
    memcpy(field, &whole, sizeof whole);
    return KF_OK;
  }
  if (quoted || !kfi_value_real(text, 0, k->max, &real) || (k->kind == POSITIVE && real == 0))
    return refuse_text(k, at, text, quoted);
  memcpy(field, &real, sizeof real);
  return KF_OK;
}

/* ---------------------------------------------------------------- from field to text */

/* The field as a file says it, without quotes; an unknown choice as its number. */
static kf_status show(const key *k, const kf_config *config, char out[KF_MAX_TEXT]) {
  const char *field = (const char *)config + k->offset;
  char digits[KFI_DIGITS];
  int64_t whole = 0;
  double real = 0;
  int choice = 0;
  if (is_text(k) && !memchr(field, 0, KF_MAX_TEXT))
    return kfi_fail(KF_EINVAL, "config: %s has no 0 in its %d bytes, expected one", k->name,
                    KF_MAX_TEXT);
  if (k->kind == CHOICE) memcpy(&choice, field, sizeof choice);
  if (k->kind == WHOLE) memcpy(&whole, field, sizeof whole);
  if (k->kind == REAL || k->kind == POSITIVE) memcpy(&real, field, sizeof real);
  if (is_text(k))
    strcpy(out, *field ? field : k->zero);
  else if (choice == 0 && whole == 0 && real == 0)
    strcpy(out, k->zero);
  else if (k->kind == WHOLE)
    sprintf(out, "%" PRId64, whole);
  else if (k->kind != CHOICE)
    strcpy(out, kfi_value_digits(real, digits));
  else if (choice > 0 && choice < MAX_CHOICES && k->choice[choice])
    strcpy(out, k->choice[choice]);
  else
    sprintf(out, "%d", choice);
  return KF_OK;
}

/* Every field of a config that a program has filled in, each as a file would say it; and the config
** that such a file makes, in which no field is left to a default. */
static kf_status show_all(const kf_config *config, char out[N_KEYS][KF_MAX_TEXT],
                          kf_config *filled) {
  static const kfi_place at = {"config", 0, 0};
  memset(filled, 0, sizeof *filled);
  for (int i = 0; i < N_KEYS; i++) {
    kf_status status = show(&keys[i], config, out[i]);
    if (!status) status = set(&keys[i], &at, out[i], is_text(&keys[i]), filled);
    if (status) return status;
  }
  return KF_OK;
}

/* ------------------------------------------------------------------------ YAML */

/* bag_size: [1,1,2] becomes the text "[1,1,2]". */
static kf_status set_list(const key *k, const kfi_yaml *yaml, const kfi_yaml_entry *e,
                          kf_config *config) {
  char text[KF_MAX_TEXT + 16] = "[", shown[KFI_SHOWN];
  size_t n = 1;
  for (size_t i = (size_t)(e - yaml->entry) + 1; i < e->end; i = yaml->entry[i].end) {
    const kfi_yaml_entry *item = &yaml->entry[i];
    int64_t size;
    if (item->kind != KFI_YAML_PLAIN ||
        !kfi_value_whole(yaml->pool + item->text, 1, KF_MAX_RANKS, &size)) {
      bool inner = item->kind == KFI_YAML_LIST || item->kind == KFI_YAML_MAPPING;
      return kfi_value_fail(&item->at,
                            "%s has %s%s%s in its list, expected whole numbers from 1 to %d",
                            k->name, inner ? "a list or mapping" : "\"",
                            inner ? "" : kfi_value_show(yaml->pool + item->text, shown),
                            inner ? "" : "\"", KF_MAX_RANKS);
    }
    if (n < KF_MAX_TEXT) n += (size_t)sprintf(text + n, "%s%" PRId64, n > 1 ? "," : "", size);
  }
  if (n < KF_MAX_TEXT) n += (size_t)sprintf(text + n, "]");
  if (n >= KF_MAX_TEXT)
    return kfi_value_fail(&e->at,
                          "%s is a list of more than %d bytes without blanks, expected at "
                          "most so many; g1n8+g2n4 is shorter",
                          k->name, KF_MAX_TEXT - 1);
  return set(k, &e->at, text, true, config);
}

static kf_status take_entry(const kfi_yaml *yaml, const kfi_yaml_entry *e, kf_config *config) {
  const char *name = yaml->pool + e->key;
  const key *k = find(name, strlen(name));
  if (!k) return refuse_key(&e->key_at, name);
  if (e->kind == KFI_YAML_MAPPING) return refuse(k, &e->at, "a mapping");
  if (e->kind == KFI_YAML_LIST)
    return k->kind == BAGS ? set_list(k, yaml, e, config) : refuse(k, &e->at, "a list");
  return set(k, &e->at, yaml->pool + e->text, e->kind == KFI_YAML_QUOTED, config);
}

kf_status kf_config_parse(const char *name, const char *text, size_t n_bytes, kf_config *config) {
  kfi_yaml yaml;
  if (!name || (!text && n_bytes) || !config)
    return kfi_fail(KF_EINVAL, "kf_config_parse: name, text or config is NULL");
  kf_status status = kfi_yaml_read(name, text, n_bytes, &yaml);
  if (status) return status;
  kf_config read = *config;
  status = kfi_yaml_expect(&yaml, "knapformer");
  for (size_t i = 2; !status && i < yaml.n; i = yaml.entry[i].end)
    status = take_entry(&yaml, &yaml.entry[i], &read);
  kfi_yaml_free(&yaml);
  if (!status) *config = read;
  return status;
}

kf_status kf_config_set(const char *assignment, kf_config *config) {
  char shown[KFI_SHOWN], name[KFI_SHOWN + 8], wrong[KFI_SHOWN];
  if (!assignment || !config)
    return kfi_fail(KF_EINVAL, "kf_config_set: assignment or config is NULL");
  snprintf(name, sizeof name, "--set %s", kfi_value_show(assignment, shown));
  kfi_place at = {name, 0, 0};
  size_t n = strcspn(assignment, "=");
  if (!assignment[n]) return kfi_value_fail(&at, "found no \"=\", expected key=value");
  const key *k = find(assignment, n);
  if (!k) {
    snprintf(wrong, sizeof wrong, "%.*s", n < KFI_SHOWN ? (int)n : KFI_SHOWN, assignment);
    return refuse_key(&at, wrong);
  }
  return set(k, &at, assignment + n + 1, is_text(k), config);
}

/* -------------------------------------------------------------------- the whole */

/* What no key sees alone. */
static kf_status check_together(const kf_config *config) {
  if (config->cost_model == KF_COST_MODELLED && !*config->cost_file)
    return kfi_fail(KF_EINVAL,
                    "cost_model is modelled but there is no cost_file, expected the file "
                    "that `knapformer fit -o` wrote");
  if (config->cost_model == KF_COST_STATIC && *config->cost_file) {
    char shown[KFI_SHOWN];
    return kfi_fail(KF_EINVAL,
                    "cost_model is static, which counts FLOPs, but cost_file is \"%s\", expected "
                    "none, or modelled or history",
                    kfi_value_show(config->cost_file, shown));
  }
  for (int i = 0; i < N_KEYS; i++)
    for (int j = 0; j < i && keys[i].kind == PATH; j++) {
      const char *a = (const char *)config + keys[j].offset;
      const char *b = (const char *)config + keys[i].offset;
      char shown[KFI_SHOWN];
      if (keys[j].kind == PATH && *a && strcmp(a, b) == 0)
        return kfi_fail(KF_EINVAL, "%s and %s are both \"%s\", expected different files",
                        keys[j].name, keys[i].name, kfi_value_show(a, shown));
    }
  return KF_OK;
}

/* All that can be said without a file; `filled` has all defaults filled in, *bags and *cost are set
** where there are ranks. */
static kf_status check(const kf_config *config, int32_t n_ranks, kf_config *filled, kf_bags **bags,
                       kf_cost *cost) {
  char value[N_KEYS][KF_MAX_TEXT];
  kf_status status = show_all(config, value, filled);
  if (!status) status = check_together(config);
  if (status || n_ranks == 0) return status;
  if ((status = kf_bags_parse(filled->bag_size, n_ranks, bags)))
    return kfi_fail_in(status, "bag_size");
  return kf_cost_preset(filled->model, filled->cluster, n_ranks, filled->gamma, cost);
}

kf_status kf_config_check(const kf_config *config, int32_t n_ranks) {
  kf_config filled;
  kf_bags *bags = NULL;
  kf_cost cost;
  if (!config) return kfi_fail(KF_EINVAL, "kf_config_check: config is NULL");
  if (n_ranks < 0 || n_ranks > KF_MAX_RANKS)
    return kfi_fail(KF_EINVAL, "kf_config_check: %" PRId32 " ranks, expected 0 (not known) to %d",
                    n_ranks, KF_MAX_RANKS);
  kf_status status = check(config, n_ranks, &filled, &bags, &cost);
  kf_bags_free(bags);
  return status;
}

/* ------------------------------------------------------------------- what it means */

/* What kf_config_resolve hands out, and what that points to. */
typedef struct resolved {
  kf_scheduler_options options; /* first: the caller's pointer is that of all */
  kf_bags *bags;
  int64_t cap[]; /* (n_ranks) */
} resolved;

static kf_status load_cost(const char *path, kf_cost *cost) {
  char *text = NULL;
  size_t n_bytes = 0;
  kf_status status = kfi_file_read(path, KFI_YAML_BYTES + 1, NULL, &text, &n_bytes);
  if (!status) status = kf_fit_load(path, text, n_bytes, cost);
  free(text);
  return kfi_fail_in(status, "cost_file");
}

kf_status kf_config_resolve(const kf_config *config, int32_t n_ranks, kf_scheduler_options **out) {
  static const kf_config defaults;
  kf_config c;
  if (!out) return kfi_fail(KF_EINVAL, "kf_config_resolve: out is NULL");
  if (n_ranks < 1 || n_ranks > KF_MAX_RANKS)
    return kfi_fail(KF_EINVAL, "kf_config_resolve: %" PRId32 " ranks, expected 1 to %d", n_ranks,
                    KF_MAX_RANKS);
  size_t n_bytes = sizeof(resolved) + (size_t)n_ranks * sizeof(int64_t);
  resolved *r = calloc(1, n_bytes);
  if (!r) return kfi_fail_memory(n_bytes, "what a configuration means");
  kf_planner_options *plan = &r->options.plan;
  kf_status status = check(config ? config : &defaults, n_ranks, &c, &r->bags, &plan->cost);
  if (!status && *c.cost_file) status = load_cost(c.cost_file, &plan->cost);
  if (status) {
    kf_scheduler_options_free(&r->options);
    return status;
  }
  for (int32_t i = 0; i < n_ranks; i++) r->cap[i] = c.mem_tokens;
  plan->bags = r->bags;
  plan->mem_tokens = c.mem_tokens ? r->cap : NULL;
  plan->max_chunk_size = c.max_chunk_size;
  plan->affinity = c.affinity_policy;
  plan->budget = kf_planner_budget(c.budget_us);
  r->options.cost_model = c.cost_model;
  r->options.rebalance_interval = c.rebalance_interval;
  r->options.log_level = c.log_level;
  *out = &r->options;
  return KF_OK;
}

void kf_scheduler_options_free(kf_scheduler_options *options) {
  resolved *r = (resolved *)options;
  if (r) kf_bags_free(r->bags);
  free(r);
}

kf_status kf_config_text(const kf_config *config, char **out) {
  enum { COMMENTS = 33 };
  char value[N_KEYS][KF_MAX_TEXT];
  kf_config filled;
  kfi_writer w = {0};
  if (!config || !out) return kfi_fail(KF_EINVAL, "kf_config_text: config or out is NULL");
  kf_status status = show_all(config, value, &filled);
  if (status) return status;
  kfi_put(&w, "knapformer:\n");
  for (int i = 0; i < N_KEYS; i++) {
    size_t begin = w.n;
    kfi_put(&w, "  %s: ", keys[i].name);
    bool list = keys[i].kind == BAGS && *value[i] == '['; /* stays one */
    if (is_text(&keys[i]) && !list)
      kfi_value_put_text(&w, value[i]);
    else
      kfi_put(&w, "%s", value[i]);
    int gap = COMMENTS - (int)(w.n - begin);
    kfi_put(&w, "%*s# %s\n", gap > 1 ? gap : 1, "", keys[i].comment);
  }
  return kfi_writer_take(&w, "the text of a configuration", out);
}
