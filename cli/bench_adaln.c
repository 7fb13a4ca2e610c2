/* SPDX-License-Identifier: Apache-2.0 */
/*
** knapformer bench adaln: forward and backward of LayerNorm-Modulate, against moving the bytes that
** they cannot avoid. Forward reads x and writes y: a copy. Backward reads x and dy and writes dx:
** the sum of two arrays (a triad). With the prologue it is a copy more of each: residual and u
** become x and y; u becomes du.
**
** Arrays of 8192 x 3072 are far larger than the caches, so what is compared is how much of the
** memory's rate is left to use. That rate changes from one moment to the next on a machine with
** neighbours. Hence a round is one call of each, the order turned round every time, and the ratio
** is the median of the rounds' own ratios.
**
** Each side writes to buffers of its own and reads the same ones. All have been written before, so
** there are no page faults in what is timed; their number is shown. All lie in huge pages where the
** system has them: else both sides also wait for address translation, ours more.
*/
#define _DEFAULT_SOURCE /* madvise */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "bench_adaln.h"
#include "bench_stream.h"

static const char name[] = "bench adaln";

static const char help[] =
  "usage: knapformer bench adaln [--rounds N] [--threads N] [--isa avx2|avx512|best]\n"
  "                              [--dtype fp32|bf16|fp16] [--tokens N] [--dim N] [--seqs N]\n"
  "                              [--gate] [--json]\n"
  "\n"
  "Time forward and backward of the CPU LayerNorm-Modulate against moving the bytes that they\n"
  "cannot avoid: AVX2 loads, and stores past the caches, with as many threads.\n"
  "\n"
  "  adaln_fwd_vs_copy          fp32; against a copy of the tokens\n"
  "  adaln_bwd_vs_stream        fp32; against the sum of two arrays like the tokens\n"
  "  adaln_fwd_1_vs_copy ..     the same with one thread on both sides\n"
  "  adaln_fwd_bf16_vs_copy ..  bf16, fp16; against moving half the bytes\n"
  "  adaln_fwd_bf16_vs_fp32 ..  bf16, fp16; against our own time in fp32\n"
  "\n"
  "  --rounds N    calls of each; default 31\n"
  "  --threads N   1 to 256; default 2\n"
  "  --isa NAME    the instructions to use; default best, what this machine can do\n"
  "  --dtype NAME  besides fp32 this type alone; default all\n"
  "  --tokens N, --dim N, --seqs N\n"
  "                the shape; default 8192 tokens of 3072 in 8 sequences of the same length\n"
  "  --gate        with the prologue, x = residual + gate * u; against a copy more of each\n"
  "  --json        {\"rows\": [{\"name\", \"median_us\", \"p99_us\", \"ratio\", \"against\"}],\n"
  "                \"page_faults_a_call\": ...}\n"
  "\n"
  "The bits are compared with those of the portable kernel first, and these with doubles. A round\n"
  "is one call of each; ratio = the median over the rounds of our time / the time of `against` in\n"
  "the same round.\n";

enum {
  MOST_TOKENS = 1 << 24,
  MOST_SEQS = 1 << 20,
  LINE = 64,
  HUGE = 1 << 21,  /* a huge page */
  MOST_SETUPS = 4, /* fp32, fp32 on one thread, bf16, fp16 */
  MOST_ROWS = 4 * MOST_SETUPS,
  NAME_SIZE = 48,
  AGAINST_SIZE = 64
};

/* What is timed, in this order within a setup: neighbours are compared. */
enum { FORWARD, COPY, BACKWARD, TRIAD, N_KINDS };

typedef struct setup {
  const char *word; /* in the rows' names */
  kf_adaln ours;
} setup;

typedef struct bench {
  int64_t tokens, dim, seqs, threads, rounds;
  kf_isa isa;
  bool gate, wanted[3]; /* of kf_dtype */

  int n_setups;
  setup setups[MOST_SETUPS]; /* the first one is fp32 with all threads */
  int64_t *cu_seqlens;
  void *blocks[3]; /* of kf_dtype: all tensors */
  float *to[2];    /* of the references */
  double *times;   /* (n_setups, N_KINDS, rounds) and room for as many as rounds */
  double faults_a_call;
} bench;

static const char *const dtype_names[] = {"fp32", "bf16", "fp16"};

/* ------------------------------------------------------------------------- the tensors */

/* The next part of a block, on a cache line of its own; with no block it only counts. */
static void *take(char *block, int64_t *at, int64_t n_bytes) {
  void *out = block ? block + *at : NULL;
  *at += (n_bytes + LINE - 1) / LINE * LINE;
  return out;
}

/* Where the tensors lie in a block; returns its bytes. */
static int64_t place(kf_adaln *a, char *block, bool gate) {
  int64_t size = a->dtype == KF_F32 ? 4 : 2, at = 0;
  int64_t tokens = a->n_tokens * a->dim * size, seqs = a->n_seqs * a->dim * size;
  a->x = take(block, &at, tokens);
  a->y = take(block, &at, tokens);
  a->dy = take(block, &at, tokens);
  a->dx = take(block, &at, tokens);
  a->scale = take(block, &at, seqs);
  a->shift = take(block, &at, seqs);
  a->dscale = take(block, &at, seqs);
  a->dshift = take(block, &at, seqs);
  a->mean = take(block, &at, a->n_tokens * (int64_t)sizeof *a->mean);
  a->rstd = take(block, &at, a->n_tokens * (int64_t)sizeof *a->rstd);
  if (gate) {
    a->residual = take(block, &at, tokens);
    a->u = take(block, &at, tokens);
    a->du = take(block, &at, tokens);
    a->gate = take(block, &at, seqs);
    a->dgate = take(block, &at, seqs);
  }
  a->workspace = take(block, &at, a->workspace_bytes);
  return at;
}

/* What is cut off is not rounded: any numbers will do. */
static uint16_t narrow(kf_dtype dtype, float value) {
  uint32_t bits, size;
  memcpy(&bits, &value, sizeof bits);
  size = bits & 0x7fffffff;
  if (dtype == KF_BF16) return (uint16_t)(bits >> 16);
  return (uint16_t)((bits >> 16 & 0x8000) | (size < 0x38800000 ? 0 : (size - 0x38000000) >> 13));
}

/* The same numbers for all types, in pieces: no second array is needed. */
static void fill(kf_dtype dtype, void *values, int64_t n, uint64_t seed) {
  enum { PIECE = 1024 };
  float piece[PIECE];
  for (int64_t first = 0; first < n; first += PIECE) {
    int64_t m = n - first < PIECE ? n - first : PIECE;
    bench_randomise(piece, m, seed + (uint64_t)first * KF_SPLITMIX64_STEP);
    if (dtype == KF_F32)
      memcpy((float *)values + first, piece, (size_t)m * sizeof *piece);
    else
      for (int64_t i = 0; i < m; i++) ((uint16_t *)values)[first + i] = narrow(dtype, piece[i]);
  }
}

/* Room for large arrays; NULL where there is none. */
static void *reserve(int64_t n_bytes) {
  size_t rounded = ((size_t)n_bytes + HUGE - 1) / HUGE * HUGE;
  void *room = aligned_alloc(HUGE, rounded);
#ifdef MADV_HUGEPAGE
  if (room) madvise(room, rounded, MADV_HUGEPAGE); /* a wish */
#endif
  return room;
}

/* A setup with tensors of its own. 0 or an exit code. */
static int open_setup(bench *b, kf_dtype dtype) {
  kf_adaln a = {.n_tokens = b->tokens, .n_seqs = b->seqs, .dim = b->dim, .dtype = dtype};
  int64_t n_tokens = b->tokens * b->dim, n_seqs = b->seqs * b->dim;
  a.cu_seqlens = b->cu_seqlens;
  a.n_threads = (int32_t)b->threads;
  a.isa = b->isa;
  a.gate = b->gate ? &a : NULL; /* the workspace depends on there being one */
  a.workspace_bytes = kf_adaln_workspace(&a);
  int64_t check_bytes = bench_adaln_check_workspace(&a);
  if (a.workspace_bytes < check_bytes) a.workspace_bytes = check_bytes;
  char *block = reserve(place(&a, NULL, b->gate));
  if (!block) return cli_fail(EXIT_FAILED, name, "out of memory");
  b->blocks[dtype] = block;
  place(&a, block, b->gate);
  fill(dtype, b->gate ? (void *)a.residual : a.x, n_tokens, 1);
  fill(dtype, (void *)a.dy, n_tokens, 2);
  fill(dtype, (void *)a.scale, n_seqs, 3);
  fill(dtype, (void *)a.shift, n_seqs, 4);
  if (b->gate) fill(dtype, (void *)a.u, n_tokens, 5);
  if (b->gate) fill(dtype, (void *)a.gate, n_seqs, 6);
  b->setups[b->n_setups++] = (setup){dtype == KF_F32 ? "" : dtype_names[dtype], a};
  return bench_adaln_check(name, &a);
}

static int open_bench(bench *b) {
  int64_t n_bytes = (b->tokens * b->dim * (int64_t)sizeof(float) + LINE - 1) / LINE * LINE;
  int code = 0;
  b->cu_seqlens = malloc((size_t)(b->seqs + 1) * sizeof *b->cu_seqlens);
  for (int i = 0; i < 1 + b->gate; i++) b->to[i] = reserve(n_bytes);
  b->times = calloc((size_t)((MOST_SETUPS * N_KINDS + 1) * b->rounds), sizeof *b->times);
  if (!b->cu_seqlens || !b->to[0] || (b->gate && !b->to[1]) || !b->times)
    return cli_fail(EXIT_FAILED, name, "out of memory");
  for (int64_t s = 0; s <= b->seqs; s++) b->cu_seqlens[s] = b->tokens * s / b->seqs;
  if ((code = open_setup(b, KF_F32))) return code;
  if (b->wanted[KF_F32] && b->threads > 1) {
    setup *one = &b->setups[b->n_setups++];
    *one = (setup){"1", b->setups[0].ours};
    one->ours.n_threads = 1;
  }
  for (int dtype = KF_BF16; dtype <= KF_F16 && !code; dtype++)
    if (b->wanted[dtype]) code = open_setup(b, (kf_dtype)dtype);
  return code;
}

static void close_bench(bench *b) {
  for (int i = 0; i < 3; i++) free(b->blocks[i]);
  for (int i = 0; i < 2; i++) free(b->to[i]);
  free(b->cu_seqlens);
  free(b->times);
}

/* -------------------------------------------------------------------------- the times */

/* The references read the fp32 tensors of the first setup whatever the type, because 16-bit numbers
** taken for floats may be ones that a machine is slow to add. */
static kf_status call(const bench *b, int which) {
  const kf_adaln *ours = &b->setups[which / N_KINDS].ours, *fp32 = &b->setups[0].ours;
  int64_t n = ours->n_tokens * ours->dim;
  if (ours->dtype != KF_F32) n = (n + 1) / 2;
  switch (which % N_KINDS) {
  case FORWARD: return kf_adaln_forward(ours);
  case BACKWARD: return kf_adaln_backward(ours);
  case COPY: bench_stream(ours->n_threads, n, fp32->x, NULL, b->to[0]); break;
  case TRIAD: bench_stream(ours->n_threads, n, fp32->x, fp32->dy, b->to[0]); break;
  }
  if (b->gate) bench_stream(ours->n_threads, n, fp32->u, NULL, b->to[1]);
  return KF_OK;
}

static double count_faults(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (double)usage.ru_minflt + (double)usage.ru_majflt;
}

/* The first round is not counted. Every other one is from the last to the first, so that nobody
** always finds the caches as the same neighbour left them. */
static kf_status time_all(bench *b) {
  int n = b->n_setups * N_KINDS;
  double faults = 0;
  for (int64_t round = -1; round < b->rounds; round++) {
    if (round == 0) faults = count_faults();
    for (int i = 0; i < n; i++) {
      int which = round % 2 ? n - 1 - i : i;
      double start = cli_now_us();
      kf_status status = call(b, which);
      double us = cli_now_us() - start;
      if (status) return status;
      if (round >= 0) b->times[which * b->rounds + round] = us;
    }
  }
  b->faults_a_call = (count_faults() - faults) / (double)(b->rounds * n);
  return KF_OK;
}

/* ---------------------------------------------------------------------------- the rows */

/* Ratios of pairs come before the times are reordered: see show(). */
static double paired_ratio(const bench *b, int ours, int theirs) {
  double *ratios = b->times + MOST_SETUPS * N_KINDS * b->rounds;
  for (int64_t i = 0; i < b->rounds; i++)
    ratios[i] = b->times[ours * b->rounds + i] / b->times[theirs * b->rounds + i];
  return kf_quantile(ratios, b->rounds, 0.5);
}

static int show(const bench *b, bool json) {
  static char names[MOST_ROWS][NAME_SIZE], againsts[N_KINDS][AGAINST_SIZE];
  bench_row rows[MOST_ROWS];
  int ours[MOST_ROWS], n_rows = 0;
  const char *more = b->gate ? ", and a copy" : "";
  snprintf(againsts[COPY], AGAINST_SIZE, "a copy of as many bytes%s", more);
  snprintf(againsts[TRIAD], AGAINST_SIZE, "the sum of two arrays of as many bytes%s", more);
  for (int s = 0; s < b->n_setups; s++)
    for (int vs_fp32 = 0; vs_fp32 <= (b->setups[s].ours.dtype != KF_F32); vs_fp32++)
      for (int kind = FORWARD; kind <= BACKWARD; kind += BACKWARD - FORWARD) {
        const char *word = b->setups[s].word, *pass = kind == FORWARD ? "fwd" : "bwd";
        int theirs = vs_fp32 ? kind : s * N_KINDS + kind + 1;
        ours[n_rows] = s * N_KINDS + kind;
        snprintf(names[n_rows], NAME_SIZE, "adaln_%s%s%s%s_vs_%s", b->gate ? "gate_" : "", pass,
                 *word ? "_" : "", word,
                 vs_fp32           ? "fp32"
                 : kind == FORWARD ? "copy"
                                   : "stream");
        rows[n_rows] = (bench_row){.name = names[n_rows],
                                   .against = vs_fp32 ? "fp32" : againsts[kind + 1],
                                   .ratio = paired_ratio(b, ours[n_rows], theirs)};
        n_rows++;
      }
  for (int i = 0; i < n_rows; i++) {
    double *times = b->times + ours[i] * b->rounds;
    rows[i].median_us = kf_quantile(times, b->rounds, 0.5);
    rows[i].p99_us = kf_quantile(times, b->rounds, 0.99);
  }
  const bench_figure faults = {"page_faults_a_call", b->faults_a_call};
  return bench_show_figures(name, rows, n_rows, &faults, 1, json);
}

/* -------------------------------------------------------------------------- the command */

/* false after saying what is wrong. */
static bool read_dtype(bench *b, const char *text) {
  bool known = !text;
  for (int i = 0; i < 3; i++) {
    b->wanted[i] = !text || strcmp(text, dtype_names[i]) == 0;
    known |= b->wanted[i];
  }
  if (!known)
    cli_fail(EXIT_MISUSE, name, "--dtype: found \"%s\", expected fp32, bf16 or fp16", text);
  return known;
}

int bench_adaln(char **argv) {
  bench b = {.tokens = 8192, .dim = 3072, .seqs = 8, .threads = 2, .rounds = 31};
  const char *isa = "best", *dtype = NULL;
  bool json = false;
  const cli_option options[] = {
    {"--rounds", .whole = &b.rounds, .min = 1, .max = BENCH_MAX_ROUNDS},
    {"--threads", .whole = &b.threads, .min = 1, .max = BENCH_STREAM_MAX_THREADS},
    {"--tokens", .whole = &b.tokens, .min = 1, .max = MOST_TOKENS},
    {"--dim", .whole = &b.dim, .min = 1, .max = KF_MAX_DIM},
    {"--seqs", .whole = &b.seqs, .min = 1, .max = MOST_SEQS},
    {"--isa", .text = &isa},
    {"--dtype", .text = &dtype},
    {"--gate", .flag = &b.gate},
    {"--json", .flag = &json}};
  int code = cli_parse(name, help, argv, options, 9);
  if (code >= 0) return code;
  if (!bench_isa(name, isa, &b.isa) || !read_dtype(&b, dtype)) return EXIT_MISUSE;
  code = open_bench(&b);
  if (!code) code = cli_exit_code(time_all(&b), name, NULL);
  if (!code) code = show(&b, json);
  close_bench(&b);
  return code;
}
