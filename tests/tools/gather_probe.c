/* SPDX-License-Identifier: Apache-2.0 */
/*
** For python/test_core_gather.py: ranks that pack and read what is gathered, without Python. A line
** of stdin is a call of kf_gather on one rank or on all, a line of stdout its answer. Bytes are hex
** behind an x.
**
**   ranks N RECORD_BYTES MODEL            N ranks, with a scheduler each for MODEL
**   model RANK MODEL                      another scheduler on one rank
**   report RANK SECONDS
**   pack RANK LENS PROFILES RECORD WRONG  the rank's bytes; "-": none
**   read BYTES                            "again", or the batch and the records, or the sentence
**   schedule 0|1                          all ranks' verdicts; 1 settles only
**   agree BYTES                           the plan's hash, or the sentence
*/
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler_wish.h"

#include <assert.h>

enum { MOST_RANKS = 8, MOST_LINE = 1 << 20 };

static int32_t n_ranks;
static int64_t record_bytes;
static kf_gather *gather[MOST_RANKS];
static kf_scheduler *scheduler[MOST_RANKS];
static const kf_plan *plan[MOST_RANKS];

static void set_model(int32_t r, const char *model) {
  kf_config config = {.cost_model = KF_COST_STATIC, .mem_tokens = 20000};
  snprintf(config.model, sizeof config.model, "%s", model);
  kf_scheduler_free(scheduler[r]);
  assert(
    !scheduler_create(&(scheduler_wish){.n_ranks = n_ranks, .config = &config}, &scheduler[r]));
}

static void set_ranks(int32_t n, int64_t n_bytes, const char *model) {
  assert(n > 0 && n <= MOST_RANKS);
  n_ranks = n;
  record_bytes = n_bytes;
  for (int32_t r = 0; r < n; r++) {
    kf_gather_free(gather[r]);
    assert(!kf_gather_create(n, r, n_bytes, &gather[r]));
    set_model(r, model);
  }
}

/* Bytes of a hex word, or NULL for "-". */
static void *bytes_of(const char *hex, size_t *n) {
  *n = (strlen(hex) - 1) / 2;
  if (strcmp(hex, "-") == 0) return *n = 0, NULL;
  unsigned char *out = malloc(*n + 1);
  assert(out);
  for (size_t i = 0; i < *n; i++) {
    unsigned byte;
    assert(sscanf(hex + 1 + 2 * i, "%2x", &byte) == 1);
    out[i] = (unsigned char)byte;
  }
  out[*n] = 0;
  return out;
}

static void print_bytes(const void *data, int64_t n) {
  for (int64_t i = 0; i < n; i++) printf("%02x", ((const unsigned char *)data)[i]);
}

static void pack(int32_t r, char *word[4]) {
  size_t n[4];
  void *part[4];
  for (int i = 0; i < 4; i++) part[i] = bytes_of(word[i], &n[i]);
  kf_rank_batch mine = {
    .n_seqs = (int64_t)n[0] / 8, .len = part[0], .profile = part[1], .record = part[2]};
  char *out = malloc((size_t)kf_gather_bytes(gather[r]));
  assert(out && (!part[2] || (int64_t)n[2] == record_bytes));
  assert(!kf_gather_pack(gather[r], &mine, scheduler[r], part[3], out));
  print_bytes(out, kf_gather_bytes(gather[r]));
  free(out);
  for (int i = 0; i < 4; i++) free(part[i]);
}

static void print_batch(const kf_batch *b, const void *records) {
  printf("records ");
  print_bytes(records, n_ranks * record_bytes);
  for (int32_t r = 0; r < n_ranks; r++) {
    printf(" rank");
    for (int64_t i = b->rank_off[r]; i < b->rank_off[r + 1]; i++) printf(" %" PRId64, b->len[i]);
  }
}

/* All ranks read the same, so all answer the same. */
static void read_all(const char *hex) {
  size_t n;
  void *all = bytes_of(hex, &n);
  char first[512] = "";
  for (int32_t r = 0; r < n_ranks; r++) {
    const kf_batch *batch;
    const void *records;
    assert(n == (size_t)(n_ranks * kf_gather_bytes(gather[r])));
    kf_status status = kf_gather_read(gather[r], all, &batch, &records);
    const char *said = status ? kf_last_error() : batch ? "a batch" : "again";
    if (r == 0) snprintf(first, sizeof first, "%s", said);
    assert(strcmp(first, said) == 0);
    if (r + 1 < n_ranks) continue;
    if (status || !batch)
      printf("%s", said);
    else
      print_batch(batch, records);
  }
  free(all);
}

static void schedule(int settles) {
  for (int32_t r = 0; r < n_ranks; r++) {
    char verdict[KF_VERDICT_BYTES];
    plan[r] = NULL;
    assert(!kf_gather_schedule(gather[r], scheduler[r], settles ? NULL : &plan[r], verdict));
    print_bytes(verdict, sizeof verdict);
  }
}

static void agree(const char *hex) {
  size_t n;
  void *all = bytes_of(hex, &n);
  assert(n == (size_t)n_ranks * KF_VERDICT_BYTES);
  kf_status status = kf_gather_agree(gather[0], all);
  if (status)
    printf("%s", kf_last_error());
  else
    printf("plan %016" PRIx64, plan[0] ? plan[0]->hash : 0);
  free(all);
}

int main(void) {
  char *line = malloc(MOST_LINE);
  assert(line);
  while (fgets(line, MOST_LINE, stdin)) {
    char *word[7] = {NULL}, *save = NULL;
    int n = 0;
    for (char *w = strtok_r(line, " \n", &save); w && n < 6; w = strtok_r(NULL, " \n", &save))
      word[n++] = w;
    assert(n > 1);
    int32_t r = atoi(word[1]);
    if (strcmp(word[0], "ranks") == 0)
      set_ranks(r, atoll(word[2]), word[3]);
    else if (strcmp(word[0], "model") == 0)
      set_model(r, word[2]);
    else if (strcmp(word[0], "report") == 0)
      assert(!kf_scheduler_update_stats(scheduler[r], r, strtod(word[2], NULL), NULL));
    else if (strcmp(word[0], "pack") == 0)
      pack(r, word + 2);
    else if (strcmp(word[0], "read") == 0)
      read_all(word[1]);
    else if (strcmp(word[0], "schedule") == 0)
      schedule(r);
    else
      agree(word[1]);
    printf("\n");
    fflush(stdout);
  }
  for (int32_t r = 0; r < n_ranks; r++) {
    kf_gather_free(gather[r]);
    kf_scheduler_free(scheduler[r]);
  }
  free(line);
  return 0;
}
