/* SPDX-License-Identifier: Apache-2.0 */
/*
** knapformer bench route: what moving tokens costs, against what the MPI underneath, or memcpy,
** takes for the same bytes. It starts two ranks by itself. A round is one call of ours and one of
** theirs, each after a barrier; a call's time is that of the slowest rank. Before a route is timed,
** every byte is looked at where it was held, and again when it is back home.
**
**     each rank   | 4096 | 2048 | 2048 | 1024 | ..  rows of 6 KB, 64 MB in all; bags of two ranks
**     goes to     | r  q | r  q | r  q | r  q | ..  split each sequence in halves, so half leaves
*/
#include "bench.h"

#include <stdlib.h>
#include <string.h>

static const char name[] = "bench route";

static const char help[] =
  "usage: knapformer bench route [--only NAME] [--rounds N] [--json]\n"
  "\n"
  "Time what moves the tokens, on two ranks that it starts by itself, or on the ranks (an even\n"
  "number) that mpirun or srun has started it on. Rows are 6 KB: 3072 elements of 2 bytes.\n"
  "\n"
  "  route_vs_alltoallv   route 64 MB a rank by a plan that splits each of its 9 sequences over\n"
  "                       two ranks, so that half leaves; against one MPI_Alltoallv of the\n"
  "                       same bytes from packed buffers, the half that stays included\n"
  "  pack_vs_memcpy       route and reverse 64 MB on a local comm of one rank, from a third of a\n"
  "                       strided buffer (q of q, k, v) to packed rows and back, on all ranks\n"
  "                       at once; against two memcpys of the same bytes\n"
  "  step_overhead        the online step without its data: gather the lengths of joint's 89\n"
  "                       sequences (flux), plan, prove and compare the plans; against two\n"
  "                       MPI_Allgathers of 512 bytes a rank\n"
  "\n"
  "  --only NAME   one of these rows\n"
  "  --rounds N    calls of each; default 31, and 1000 for step_overhead\n"
  "  --json        {\"rows\": [{\"name\", \"median_us\", \"p99_us\", \"ratio\", \"against\"}]}\n"
  "\n"
  "Every byte is verified at its holder and after its return before anything is timed. ratio =\n"
  "our median / the median of the reference named in `against`, measured in the same run.\n";

static const char *const row_names[] = {"route_vs_alltoallv", "pack_vs_memcpy", "step_overhead"};

enum { N_ROWS = 3 };

#if defined(KF_HAVE_MPI)

#include <mpi.h>

enum { ROW_BYTES = 6144, N_LENS = 9, RECORD = 512 };

static const int64_t lens[N_LENS] = {4096, 2048, 2048, 1024, 512, 512, 256, 256, 170};

/* ------------------------------------------------------------------------ timing */

/* Two that do the same work; only the time of `theirs` is of interest. */
typedef struct contest {
  bench_row row;
  kf_status (*ours)(void *self);
  void (*theirs)(void *self);
  void *self;
} contest;

/* A round of each in turn. What counts is the slowest rank. */
static kf_status time_both(kf_comm *world, contest *c, int64_t rounds) {
  static double ours[BENCH_MAX_ROUNDS], theirs[BENCH_MAX_ROUNDS];
  kf_status status;
  for (int64_t i = -1; i < rounds; i++) { /* the first one is not counted */
    if ((status = kf_comm_barrier(world))) return status;
    double start = cli_now_us();
    if ((status = c->ours(c->self))) return status;
    double us = cli_now_us() - start;
    if (i >= 0) ours[i] = us;
    if ((status = kf_comm_barrier(world))) return status;
    start = cli_now_us();
    c->theirs(c->self);
    us = cli_now_us() - start;
    if (i >= 0) theirs[i] = us;
  }
  if ((status = kf_comm_reduce(world, KF_MAX, KF_F64, rounds, ours))) return status;
  if ((status = kf_comm_reduce(world, KF_MAX, KF_F64, rounds, theirs))) return status;
  double theirs_us = kf_quantile(theirs, rounds, 0.5);
  c->row = bench_row_of(NULL, ours, rounds, c->row.against, theirs_us);
  return KF_OK;
}

/* ------------------------------------------------------------------ a planned step */

typedef struct planned {
  kf_comm *comm;
  kf_step *step;
  kf_bags *bags;
  kf_planner *planner;
  kf_rank_batch mine;
  const kf_plan *plan;
} planned;

static kf_status plan_step(void *self) {
  planned *p = self;
  const kf_batch *batch;
  kf_status status = kf_step_gather(p->step, &p->mine, &batch, NULL);
  return status ? status : kf_step_plan(p->step, p->planner, &p->plan);
}

/* Flux; bags as in `bags`. */
static kf_status open_step(planned *p, const char *bags) {
  kf_planner_options options = {0};
  int32_t n_ranks = kf_comm_size(p->comm);
  kf_status status;
  if ((status = kf_cost_preset("flux", NULL, n_ranks, KF_DEFAULT_GAMMA, &options.cost)))
    return status;
  if ((status = kf_bags_parse(bags, n_ranks, &p->bags))) return status;
  options.bags = p->bags;
  if ((status = kf_planner_create(&options, &p->planner))) return status;
  if ((status = kf_step_create(p->comm, 0, &p->step))) return status;
  return plan_step(p);
}

static void close_step(planned *p) {
  kf_step_free(p->step);
  kf_planner_free(p->planner);
  kf_bags_free(p->bags);
}

/* ----------------------------------------------------------------- routes and their check */

typedef struct routed {
  planned planned;
  kf_tensor home, held;
  int *counts; /* (4, ranks) of MPI_Alltoallv: sent, from where, received, to where */
} routed;

/* Word k of a row of a sequence: no two are the same. */
static uint64_t word(int64_t seq, int64_t row, int64_t k) {
  return ((uint64_t)seq << 44 ^ (uint64_t)row << 20 ^ (uint64_t)k) * 0x9e3779b97f4a7c15u;
}

/* Write a chunk's rows, or compare them: false if they are not as written. */
static bool chunk_rows(const kf_chunk *c, const kf_tensor *t, int64_t first, bool compare) {
  enum { WORDS = ROW_BYTES / 8 };
  int64_t stride = t->stride_bytes ? t->stride_bytes : t->row_bytes;
  for (int64_t i = 0; i < c->length; i++) {
    uint64_t *at = (uint64_t *)((char *)t->data + (first + i) * stride), wrong = 0;
    for (int64_t k = 0; k < WORDS; k++) {
      uint64_t w = word(c->seq, c->offset + i, k);
      if (compare)
        wrong |= at[k] ^ w;
      else
        at[k] = w;
    }
    if (wrong) return false;
  }
  return true;
}

static bool home_rows(const routed *r, bool compare) {
  const kf_plan *p = r->planned.plan;
  int32_t rank = kf_comm_rank(r->planned.comm);
  bool good = true;
  for (int64_t c = p->send_off[rank]; c < p->send_off[rank + 1]; c++)
    good &= chunk_rows(&p->chunk[c], &r->home, p->home_row[c], compare);
  return good;
}

static bool held_rows(const routed *r) {
  const kf_plan *p = r->planned.plan;
  int32_t rank = kf_comm_rank(r->planned.comm);
  bool good = true;
  for (int64_t h = p->hold_off[rank]; h < p->hold_off[rank + 1]; h++)
    good &= chunk_rows(&p->chunk[p->hold[h]], &r->held, p->hold_row[p->hold[h]], true);
  return good;
}

static kf_status forward(void *self) {
  routed *r = self;
  return kf_route_forward(r->planned.comm, r->planned.plan, 1, &r->home, &r->held);
}

static kf_status there_and_back(void *self) {
  routed *r = self;
  kf_status status = forward(r);
  return status ? status
                : kf_route_reverse(r->planned.comm, r->planned.plan, 1, &r->held, &r->home);
}

/* Every byte is where the plan wants it, and back home after that. */
static kf_status verify(kf_comm *world, routed *r) {
  size_t n_bytes = (size_t)(r->home.n_rows * r->home.stride_bytes);
  kf_status status;
  home_rows(r, false);
  memset(r->held.data, 0xff, (size_t)(r->held.n_rows * ROW_BYTES));
  if ((status = forward(r))) return status;
  if (!held_rows(r)) return kf_comm_fail(world, "rows differ at their holder");
  memset(r->home.data, 0xff, n_bytes);
  if ((status = kf_route_reverse(r->planned.comm, r->planned.plan, 1, &r->held, &r->home)))
    return status;
  if (!home_rows(r, true)) return kf_comm_fail(world, "rows differ after their return");
  return kf_comm_barrier(world);
}

/* The same bytes between the same ranks. */
static void count_bytes(routed *r) {
  const kf_plan *p = r->planned.plan;
  int rank = kf_comm_rank(r->planned.comm), n = p->n_ranks;
  int *sent = r->counts, *from = sent + n, *got = from + n, *to = got + n;
  int64_t away = 0;
  for (int64_t i = p->route_off[rank]; i < p->route_off[rank + 1]; i++) {
    sent[p->route[i].peer] = (int)(p->route[i].send * ROW_BYTES);
    got[p->route[i].peer] = (int)(p->route[i].recv * ROW_BYTES);
    away += p->route[i].send;
  }
  sent[rank] = got[rank] = (int)((p->home_rows[rank] - away) * ROW_BYTES);
  for (int q = 1; q < n; q++) {
    from[q] = from[q - 1] + sent[q - 1];
    to[q] = to[q - 1] + got[q - 1];
  }
}

/* A route of this rank's `lens`, in rows that lie `stride` bytes apart at home. */
static kf_status open_route(kf_comm *world, routed *r, const char *bags, int64_t stride) {
  kf_status status;
  r->planned.mine = (kf_rank_batch){.n_seqs = N_LENS, .len = lens};
  if ((status = open_step(&r->planned, bags))) return status;
  const kf_plan *p = r->planned.plan;
  int32_t rank = kf_comm_rank(r->planned.comm);
  r->home = (kf_tensor){NULL, p->home_rows[rank], ROW_BYTES, stride};
  r->held = (kf_tensor){NULL, p->hold_rows[rank], ROW_BYTES, 0};
  r->home.data = aligned_alloc(4096, (size_t)(r->home.n_rows * stride + 4095) / 4096 * 4096);
  r->held.data = aligned_alloc(4096, (size_t)(r->held.n_rows * ROW_BYTES + 4095) / 4096 * 4096);
  r->counts = calloc(4 * (size_t)p->n_ranks, sizeof *r->counts);
  if (!r->home.data || !r->held.data || !r->counts) return kf_comm_fail(world, "out of memory");
  memset(r->home.data, 0, (size_t)(r->home.n_rows * stride));
  count_bytes(r);
  return verify(world, r);
}

/* After a failure MPI may still write to the buffers: they are left to the process's end. */
static void close_route(routed *r, kf_status status) {
  close_step(&r->planned);
  if (status) return;
  free(r->home.data);
  free(r->held.data);
  free(r->counts);
}

/* ----------------------------------------------------------------------- the rows */

static void alltoallv(void *self) {
  routed *r = self;
  int n = kf_comm_size(r->planned.comm), *sent = r->counts;
  MPI_Alltoallv(r->home.data, sent, sent + n, MPI_BYTE, r->held.data, sent + 2 * n, sent + 3 * n,
                MPI_BYTE, MPI_COMM_WORLD);
}

static kf_status route_row(kf_comm *world, int64_t rounds, bench_row *out) {
  routed r = {.planned.comm = world};
  contest c = {{.against = "MPI_Alltoallv of the same bytes"}, forward, alltoallv, &r};
  kf_status status = open_route(world, &r, "2", ROW_BYTES);
  if (!status) status = time_both(world, &c, rounds);
  close_route(&r, status);
  *out = c.row;
  return status;
}

static void copy_twice(void *self) {
  routed *r = self;
  size_t n_bytes = (size_t)(r->held.n_rows * ROW_BYTES);
  memcpy(r->held.data, r->home.data, n_bytes);
  memcpy(r->home.data, r->held.data, n_bytes);
}

static kf_status pack_row(kf_comm *world, int64_t rounds, bench_row *out) {
  routed r = {0};
  contest c = {{.against = "two memcpys of the same bytes"}, there_and_back, copy_twice, &r};
  kf_status status = kf_comm_local_create(1, &r.planned.comm);
  if (!status) status = open_route(world, &r, "auto", 3 * ROW_BYTES);
  if (!status) status = time_both(world, &c, rounds);
  close_route(&r, status);
  kf_comm_free(r.planned.comm);
  *out = c.row;
  return status;
}

static void allgather_twice(void *self) {
  static char record[RECORD];
  char *all = self;
  MPI_Allgather(record, RECORD, MPI_BYTE, all, RECORD, MPI_BYTE, MPI_COMM_WORLD);
  MPI_Allgather(record, RECORD, MPI_BYTE, all, RECORD, MPI_BYTE, MPI_COMM_WORLD);
}

typedef struct stepped {
  planned planned;
  char *all;
} stepped;

static kf_status step_ours(void *self) { return plan_step(&((stepped *)self)->planned); }
static void step_theirs(void *self) { allgather_twice(((stepped *)self)->all); }

/* Of joint's m sequences, number j belongs to rank j*n/m. */
static kf_status step_row(kf_comm *world, int64_t rounds, bench_row *out) {
  stepped s = {.planned.comm = world};
  contest c = {{.against = "two MPI_Allgathers of 512 bytes"}, step_ours, step_theirs, &s};
  kf_batch *joint = NULL;
  int64_t n = kf_comm_size(world), rank = kf_comm_rank(world);
  kf_status status = kf_mix_create("joint", 0, 0, &joint);
  if (!status) {
    int64_t m = joint->n_seqs, first = (rank * m + n - 1) / n, end = ((rank + 1) * m + n - 1) / n;
    s.planned.mine = (kf_rank_batch){.n_seqs = end - first, .len = joint->len + first};
    s.all = malloc((size_t)n * RECORD);
    status = s.all ? open_step(&s.planned, "auto") : kf_comm_fail(world, "out of memory");
  }
  if (!status) status = time_both(world, &c, rounds);
  close_step(&s.planned);
  free(s.all);
  kf_batch_free(joint);
  *out = c.row;
  return status;
}

/* ------------------------------------------------------------------------ the ranks */

static int measure(const char *only, int64_t rounds, bool json) {
  kf_status (*const run[N_ROWS])(kf_comm *, int64_t, bench_row *) = {route_row, pack_row, step_row};
  const int64_t usual[N_ROWS] = {31, 31, 1000};
  bench_row rows[N_ROWS];
  kf_comm *world = NULL;
  kf_status status = kf_comm_mpi_create(NULL, &world);
  int n_rows = 0, code = 0;
  if (status) return cli_exit_code(status, name, NULL);
  int32_t rank = kf_comm_rank(world), n_ranks = kf_comm_size(world);
  if (n_ranks % 2 != 0) {
    if (rank == 0)
      cli_fail(EXIT_FAILED, name, "started on %d rank%s, expected an even number", n_ranks,
               n_ranks == 1 ? "" : "s");
    kf_comm_free(world);
    return EXIT_FAILED;
  }
  for (int i = 0; i < N_ROWS && !status; i++) {
    if (only && strcmp(only, row_names[i]) != 0) continue;
    status = run[i](world, rounds > 0 ? rounds : usual[i], &rows[n_rows]);
    rows[n_rows++].name = row_names[i];
  }
  if (status) {
    kf_comm_fail(world, kf_last_error()); /* in case it is this rank's alone */
    return cli_fail_rank(name, world);
  }
  if (rank == 0) code = bench_show(name, rows, n_rows, json);
  kf_comm_free(world);
  return code;
}

#else

static int measure(const char *only, int64_t rounds, bool json) {
  (void)only, (void)rounds, (void)json;
  return EXIT_FAILED; /* cli_launch has said why */
}

#endif

int bench_route(char **argv) {
  const char *only = NULL;
  int64_t rounds = 0;
  bool json = false, known = false;
  const cli_option options[] = {{"--only", .text = &only},
                                {"--rounds", .whole = &rounds, .min = 1, .max = BENCH_MAX_ROUNDS},
                                {"--json", .flag = &json}};
  int code = cli_parse(name, help, argv, options, 3);
  if (code >= 0) return code;
  for (int i = 0; only && i < N_ROWS; i++) known |= strcmp(only, row_names[i]) == 0;
  if (only && !known)
    return cli_fail(EXIT_MISUSE, name, "--only: found \"%s\", expected %s, %s or %s", only,
                    row_names[0], row_names[1], row_names[2]);
  if (!cli_launched()) return cli_launch(name, 2, argv);
  return measure(only, rounds, json);
}
