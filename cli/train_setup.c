/* SPDX-License-Identifier: Apache-2.0 */
/*
** What `knapformer train` was asked to do, checked before any rank computes: texts become numbers,
** the first step is planned, and what it will take of memory is compared with what there is.
*/
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include <hwloc.h>

#include "cmd_train.h"

static const char name[] = "train";

int32_t train_count_cores(void) {
  hwloc_topology_t topology;
  int n = 0;
  if (hwloc_topology_init(&topology)) return 1;
  hwloc_bitmap_t mine = hwloc_bitmap_alloc();
  if (mine && hwloc_topology_load(topology) == 0) {
    if (hwloc_get_cpubind(topology, mine, HWLOC_CPUBIND_PROCESS) != 0)
      hwloc_bitmap_copy(mine, hwloc_topology_get_allowed_cpuset(topology));
    hwloc_obj_t core = NULL;
    while ((core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)))
      n += hwloc_bitmap_intersects(core->cpuset, mine);
  }
  hwloc_bitmap_free(mine);
  hwloc_topology_destroy(topology);
  return n > 0 ? n : 1;
}

/* ---------------------------------------------------------------------- numbers, texts */

static int read_numbers(train_session *s) {
  const train_request *q = s->q;
  int64_t seed = 0;
  s->n_steps = 20;
  s->block = 1;
  s->options.data.scale = 0; /* what another number of ranks made of it */
  if (!cli_int(name, "--steps", q->steps, 1, 1000000000, &s->n_steps)) return EXIT_MISUSE;
  if (!cli_int(name, "--block", q->block, 1, 1000000, &s->block)) return EXIT_MISUSE;
  if (!cli_real(name, "--seconds", q->seconds, 1, 1e9, &s->seconds)) return EXIT_MISUSE;
  if (!cli_real(name, "--timeout", q->timeout, 0.1, 1e6, &s->timeout_s)) return EXIT_MISUSE;
  if (!cli_int(name, "--seed", q->seed, 0, INT64_MAX, &seed)) return EXIT_MISUSE;
  if (!cli_real(name, "--lr", q->lr, 1e-9, 10, &s->options.lr)) return EXIT_MISUSE;
  if (!cli_real(name, "--scale", q->scale, 1e-9, 1000, &s->options.data.scale)) return EXIT_MISUSE;
  if (q->compare && q->balance)
    return cli_fail(
      EXIT_MISUSE, name,
      "found --use-knapformer and --compare, which trains with it and without, expected one");
  s->options.seed = s->options.data.seed = (uint64_t)seed;
  return 0;
}

/* Under a launcher the ranks are as many as it has started. */
static int check_ranks(const train_session *s) {
  int64_t n_ranks = s->n_ranks;
  if (!cli_int(name, "--ranks", s->q->ranks, 1, TRAIN_MOST_RANKS, &n_ranks)) return EXIT_MISUSE;
  if (n_ranks == s->n_ranks) return 0;
  return cli_fail(EXIT_MISUSE, name, "--ranks: found \"%s\", expected the %" PRId32 " of the job",
                  s->q->ranks, s->n_ranks);
}

/* Can a file be written? Better to know before training than after it. */
static int check_writable(const cli_file *file) {
  char folder[KF_MAX_TEXT];
  const char *path = file->path, *slash = path ? strrchr(path, '/') : NULL;
  if (!path || !file->is_written) return 0;
  snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
  if (access(access(path, F_OK) == 0 ? path : folder, W_OK) == 0) return 0;
  return cli_fail(EXIT_FAILED, name, "%s: cannot write \"%s\": %s", file->option, path,
                  strerror(errno));
}

static int read_data(train_session *s) {
  const char *data = s->q->data ? s->q->data : "synthetic", *word = "synthetic";
  size_t n = strlen(word);
  if (strncmp(data, word, n) != 0 || (data[n] && data[n] != ':'))
    return cli_fail(EXIT_MISUSE, name, "--data: found \"%s\", expected synthetic or synthetic:MIX",
                    data);
  s->mix = s->options.data.mix = data[n] ? data + n + 1 : "joint";
  return 0;
}

/* The trainer has one architecture: what has another must not be trained under its name. */
static int check_architecture(const char *where, const char *model) {
  kf_model shape;
  if (strchr(model, '=') || (!strncasecmp(model, "DiT-", 4) && !kf_model_parse(model, &shape)))
    return 0;
  return cli_fail(EXIT_MISUSE, name,
                  "%s: found \"%s\", expected DiT-S, DiT-B, DiT-L, DiT-XL or "
                  "d=..,layers=..,heads=..: this trainer has plain DiTs only",
                  where, model);
}

static int read_config(train_session *s) {
  const train_request *q = s->q;
  const cli_key key[] = {
    {"model", q->model}, {"log_level", q->log_level}, {"trace_file", q->trace}};
  const cli_configuration asked = {"--config",    q->config, &q->set, key, sizeof key / sizeof *key,
                                   s->n_ranks > 1};
  int code = q->model ? check_architecture("--model", q->model) : 0;
  if (code) return code;
  if (q->model && kf_model_parse(q->model, &s->model))
    return cli_exit_code(KF_EINVAL, name, "--model");
  code = cli_configure(name, &asked, &s->config);
  if (code) return code;
  if (!*s->config.model) strcpy(s->config.model, "DiT-S");
  if (strcmp(s->config.steps_file, "-") == 0)
    return cli_fail(EXIT_MISUSE, name, "steps_file: found \"-\", expected the name of a file");
  const cli_file files[] = {
    {"--config", q->config, false},
    {"cost_file", *s->config.cost_file ? s->config.cost_file : NULL, false},
    {"--report", q->report, true},
    {"trace_file", *s->config.trace_file ? s->config.trace_file : NULL, true},
    {"steps_file", *s->config.steps_file ? s->config.steps_file : NULL, true},
    {"metrics_file", *s->config.metrics_file ? s->config.metrics_file : NULL, true},
    {"state_file", *s->config.state_file ? s->config.state_file : NULL, true}};
  enum { N_FILES = sizeof files / sizeof *files };
  code = cli_check_files(name, files, N_FILES);
  for (int i = 0; i < N_FILES && !code; i++) code = check_writable(&files[i]);
  return code;
}

/* ------------------------------------------------------------------ the model, the data */

static int check_model(train_session *s) {
  train_params params;
  int code = check_architecture("model", s->config.model);
  if (code) return code;
  kf_status status = kf_model_parse(s->config.model, &s->model);
  if (!status) status = train_params_of(&s->model, &params);
  kf_scheduler_options_free(s->scheduling); /* of another number of ranks */
  s->scheduling = NULL;
  if (!status) status = kf_config_resolve(&s->config, s->n_ranks, &s->scheduling);
  return cli_exit_code(status, name, NULL);
}

static int draw_first(train_session *s) {
  train_data_options options = s->options.data;
  options.n_ranks = s->n_ranks;
  kf_status status = train_data_create(&options, &s->first_data);
  if (!status) status = train_data_lengths(s->first_data, 0, &s->first);
  if (status) return cli_exit_code(status, name, NULL);
  s->options.data.scale = train_data_scale(s->first_data); /* the same for all that follows */
  return 0;
}

/* The most rows that each rank will hold in a step like the first, whichever variant is trained. */
static int count_rows(train_session *s, int64_t *rows) {
  kf_planner *planner = NULL;
  const kf_plan *plan = NULL;
  for (int32_t r = 0; r < s->n_ranks; r++)
    for (int64_t i = s->first->rank_off[r]; i < s->first->rank_off[r + 1]; i++)
      if (s->q->compare || !s->q->balance) rows[r] += s->first->len[i];
  if (!s->q->compare && !s->q->balance) return 0;
  /* But for a cost that is measured, it is what will be planned. */
  kf_status status = kf_planner_create(&s->scheduling->plan, &planner);
  if (!status) status = kf_planner_plan(planner, s->first, &plan);
  for (int32_t r = 0; !status && r < s->n_ranks; r++)
    if (plan->hold_rows[r] > rows[r]) rows[r] = plan->hold_rows[r];
  kf_planner_free(planner);
  return cli_exit_code(status, name, NULL);
}

/* ------------------------------------------------------------------------------ memory */

/* A number of bytes that a file begins with; INFINITY where there is none. */
static double read_bytes(const char *path) {
  FILE *file = fopen(path, "r");
  double bytes;
  if (!file || fscanf(file, "%lf", &bytes) != 1) bytes = INFINITY;
  if (file) fclose(file);
  return bytes;
}

/* What programs can still get, of the machine and of a container. */
static double memory_available(void) {
  FILE *file = fopen("/proc/meminfo", "r");
  char line[200];
  double kilobytes = INFINITY, used = read_bytes("/sys/fs/cgroup/memory.current");
  while (file && fgets(line, sizeof line, file))
    if (sscanf(line, "MemAvailable: %lf", &kilobytes) == 1) break;
  if (file) fclose(file);
  double limit = read_bytes("/sys/fs/cgroup/memory.max");
  return fmin(kilobytes * 1024, isfinite(used) && isfinite(limit) ? limit - used : INFINITY);
}

/* Bytes of a rank that holds so many rows: parameters, moments and averages of each variant,
** gradients, to compare with: the first parameters; activations; and what a process of MPI
** takes. */
static kf_status bytes_of(const train_session *s, int64_t rows, int64_t seqs, double *out) {
  const int64_t most_rows = (int64_t)1 << 40; /* the bytes of more do not fit 64 bits */
  train_net_options net = {.model = s->model};
  train_params params;
  int64_t activations = 0;
  kf_status status = train_params_of(&s->model, &params);
  if (!status)
    status = train_net_bytes(&net, rows < most_rows ? rows : most_rows, seqs, &activations);
  int n_blocks = s->q->compare ? 4 * 2 + 1 + 1 : 4 + 1;
  *out = (double)activations + 4.0 * (double)params.n_floats * n_blocks + 1e8;
  return status;
}

/* Of all ranks on this machine together; of those elsewhere, others know. */
static int check_memory(train_session *s, const int64_t *rows) {
  double sum = 0, there = memory_available();
  int64_t most_rows = 0;
  s->bytes = 0;
  for (int32_t r = 0; r < s->n_ranks; r++) {
    double bytes;
    int64_t seqs = s->first->rank_off[r + 1] - s->first->rank_off[r];
    if (bytes_of(s, rows[r], seqs, &bytes)) return cli_exit_code(KF_ENOMEM, name, NULL);
    sum += bytes * s->n_here / s->n_ranks;
    s->bytes = fmax(s->bytes, bytes);
    if (rows[r] > most_rows) most_rows = rows[r];
  }
  s->lacks_memory = sum > there;
  if (!s->lacks_memory) return 0;
  if (s->may_shrink && s->n_ranks > 1) return EXIT_FAILED; /* with fewer ranks it may fit */
  return cli_fail(EXIT_FAILED, name,
                  "%s with up to %" PRId64 " tokens a rank takes about %.1f GB on %" PRId32
                  " rank%s, and there are %.1f GB: expected a smaller --model or --scale, or fewer "
                  "ranks",
                  s->config.model, most_rows, sum / 1e9, s->n_here, s->n_here > 1 ? "s" : "",
                  there / 1e9);
}

int train_setup(train_session *s, int32_t n_ranks) {
  int code;
  s->n_ranks = n_ranks;
  s->lacks_memory = false;
  if ((code = read_numbers(s))) return code;
  if ((code = check_ranks(s))) return code;
  if ((code = read_data(s))) return code;
  if ((code = read_config(s))) return code;
  if ((code = check_model(s))) return code;
  if ((code = draw_first(s))) return code;
  int64_t *rows = calloc((size_t)n_ranks, sizeof *rows);
  if (!rows) return cli_fail(EXIT_FAILED, name, "out of memory");
  code = count_rows(s, rows);
  if (!code) code = check_memory(s, rows);
  free(rows);
  return code;
}
