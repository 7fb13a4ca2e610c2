/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of one process that gather by memcpy. What goes over a comm is in test_step.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "comm/comm.h"
#include "ranks.h"
#include "scheduler_wish.h"

#include <assert.h>

enum { N = 3, MOST_BYTES = 1 << 16 };

/* All ranks, and the bytes that were gathered last, at an odd address. */
typedef struct world {
  kf_gather *gather[N];
  kf_rank_batch mine[N];
  const char *wrong[N];
  kf_scheduler *scheduler[N];
  char memory[N * MOST_BYTES + 1], *all;
  int64_t n_bytes; /* of one rank */
  const kf_batch *batch;
  const void *records;
  const kf_plan *plan[N];
} world;

static const int64_t lens[N][3] = {{5, 9, 70}, {4, 0, 0}, {1000, 2, 3}};

static world *start(int64_t record_bytes) {
  world *g = calloc(1, sizeof *g);
  static const kf_config config = {.model = "DiT-S", .rebalance_interval = 2};
  assert(g);
  g->all = g->memory + 1;
  for (int r = 0; r < N; r++) {
    EXPECT_OK(kf_gather_create(N, r, record_bytes, &g->gather[r]));
    EXPECT_OK(
      scheduler_create(&(scheduler_wish){.n_ranks = N, .config = &config}, &g->scheduler[r]));
    g->mine[r] = (kf_rank_batch){.n_seqs = r == 1 ? 1 : 3, .len = lens[r]};
  }
  return g;
}

static void end(world *g) {
  for (int r = 0; r < N; r++) {
    kf_gather_free(g->gather[r]);
    kf_scheduler_free(g->scheduler[r]);
  }
  free(g);
}

static void pack(world *g) {
  g->n_bytes = kf_gather_bytes(g->gather[0]);
  assert(g->n_bytes % 8 == 0 && g->n_bytes <= MOST_BYTES);
  for (int r = 0; r < N; r++) {
    assert(kf_gather_bytes(g->gather[r]) == g->n_bytes);
    EXPECT_OK(kf_gather_pack(g->gather[r], &g->mine[r], g->scheduler[r], g->wrong[r],
                             g->all + r * g->n_bytes));
  }
}

/* The same status and sentence on every rank. */
static kf_status read_all(world *g) {
  kf_status first = KF_OK;
  char sentence[512] = "";
  for (int r = 0; r < N; r++) {
    g->batch = NULL;
    kf_status status = kf_gather_read(g->gather[r], g->all, &g->batch, &g->records);
    if (r == 0) first = status, snprintf(sentence, sizeof sentence, "%s", kf_last_error());
    assert(status == first && (!status || strcmp(sentence, kf_last_error()) == 0));
  }
  return first;
}

static kf_status meet(world *g) {
  kf_status status;
  do pack(g);
  while (!(status = read_all(g)) && !g->batch);
  return status;
}

static void decide(world *g, bool settles) {
  for (int r = 0; r < N; r++) {
    char *verdict = g->all + r * KF_VERDICT_BYTES;
    const kf_plan **plan = settles ? NULL : &g->plan[r];
    EXPECT_OK(kf_gather_schedule(g->gather[r], g->scheduler[r], plan, verdict));
  }
}

static kf_status agree(const world *g) {
  kf_status first = KF_OK;
  char sentence[512] = "";
  for (int r = 0; r < N; r++) {
    kf_status status = kf_gather_agree(g->gather[r], g->all);
    if (r == 0) first = status, snprintf(sentence, sizeof sentence, "%s", kf_last_error());
    assert(status == first && (!status || strcmp(sentence, kf_last_error()) == 0));
  }
  return first;
}

static void good_step(world *g) {
  EXPECT_OK(meet(g));
  assert_int_equal(g->batch->n_seqs, 7);
  assert_int_equal(g->batch->len[4], 1000);
  decide(g, false);
  EXPECT_OK(agree(g));
  assert_int_equal(g->plan[0]->hash, g->plan[2]->hash);
}

/* ----------------------------------------------------------------------------- tests */

static void test_version(void **state) {
  (void)state;
  world *g = start(16);
  for (int round = 0; round < 3; round++) { /* heads alone, then what there is */
    pack(g);
    assert_int_equal(round == 0, g->n_bytes < 200);
    char *odd = g->all + (round % 2 ? 0 : g->n_bytes);
    memcpy(odd, "0.0.9\0\0", 8);
    EXPECT(read_all(g), KF_EMISMATCH,
           round % 2 ? "rank 0 runs knapformer 0.0.9, but rank 2 runs "
                     : "rank 1 runs knapformer 0.0.9, but rank 2 runs ");
    memset(odd, 'x', 32);
    EXPECT(read_all(g), KF_EMISMATCH, "runs knapformer xxxxxxxxxxxxxxxxxxxxxxx, but");
    good_step(g);
  }
  end(g);
}

static void test_record_size(void **state) {
  (void)state;
  world *g = start(16);
  kf_gather_free(g->gather[2]);
  EXPECT_OK(kf_gather_create(N, 2, 8, &g->gather[2]));
  pack(g);
  EXPECT(read_all(g), KF_EMISMATCH, "rank 2 has records of 8 bytes, but rank 0 of 16");
  end(g);
  g = start(-1);
  pack(g);
  EXPECT(read_all(g), KF_EINVAL, "a record of -1 bytes, expected 0 to");
  end(g);
}

static void test_wrong_input(void **state) {
  (void)state;
  static const kf_profile profile[] = {{1, 256, 1}, {4, 256, 1}, {0, 0, 0}};
  char text[400];
  world *g = start(0);
  g->wrong[1] = "token_dim 0, expected a positive whole number";
  EXPECT(meet(g), KF_EINVAL, "rank 1: token_dim 0, expected a positive whole number");
  g->wrong[0] = ""; /* the lowest rank is named */
  EXPECT(meet(g), KF_EINVAL, "rank 0: ");
  g->wrong[0] = NULL;
  memset(text, 'a', sizeof text); /* is cut */
  text[399] = 0;
  g->wrong[1] = text;
  EXPECT(meet(g), KF_EINVAL, "rank 1: aaa");
  assert_int_equal(strlen(kf_last_error()), 8 + 255);
  g->wrong[1] = NULL;
  g->mine[2].profile = profile;
  EXPECT(meet(g), KF_EINVAL,
         "rank 2: its sequence 1 is of kind 4, 256 pixels and 1 frames, expected a kf_kind");
  g->mine[2].profile = NULL;
  good_step(g);
  end(g);
}

/* Each tells its own scheduler, and all learn from all; `settle` does so at once. */
static void test_times(void **state) {
  (void)state;
  world *g = start(0);
  for (int step = 0; step < 6; step++) {
    good_step(g);
    for (int r = 0; r < N; r++)
      EXPECT_OK(kf_scheduler_update_stats(g->scheduler[r], r, 0.1 + r, NULL));
    if (step % 2) continue;
    for (int r = 0; r < N; r++) g->mine[r].n_seqs = 0;
    EXPECT_OK(meet(g));
    decide(g, true);
    EXPECT_OK(agree(g));
    for (int r = 0; r < N; r++) {
      const kf_metrics *m = kf_scheduler_metrics(g->scheduler[r]);
      assert_true(m->step == step && m->n_measured == N && m->busy_s[1] == 1.1);
      g->mine[r].n_seqs = r == 1 ? 1 : 3;
    }
    decide(g, false);
    EXPECT(agree(g), KF_EINVAL, "nothing was gathered");
  }
  EXPECT_OK(kf_scheduler_settle(g->scheduler[2])); /* of its own accord: it learned from one rank */
  EXPECT_OK(meet(g));
  decide(g, true);
  EXPECT(agree(g), KF_EMISMATCH, "rank 2 has another configuration");
  end(g);
}

static void set(world *g, int rank, int word, int64_t value) {
  memcpy(g->all + rank * KF_VERDICT_BYTES + 8 * word, &value, 8);
}

static void test_verdicts(void **state) {
  (void)state;
  enum { CONFIG, HASH, STATUS, REASON };
  world *g = start(0);
  EXPECT(kf_gather_agree(g->gather[0], g->all), KF_EINVAL, "no verdict");
  decide(g, false);
  EXPECT(agree(g), KF_EINVAL, "nothing was gathered, expected kf_step_gather first");
  assert_true(strncmp(kf_last_error(), "nothing", 7) == 0); /* all say it: no rank is named */
  good_step(g);
  set(g, 1, HASH, 5);
  EXPECT(agree(g), KF_EMISMATCH, "rank 1 has another plan (hash 0000000000000005) than rank 2 (");
  set(g, 2, STATUS, KF_EINFEASIBLE);
  set(g, 2, REASON, 'y');
  EXPECT(agree(g), KF_EINFEASIBLE, "rank 2: y");
  set(g, 0, CONFIG, 7);
  EXPECT(agree(g), KF_EMISMATCH,
         "rank 0 has another configuration (hash 0000000000000007) than rank 2 (");
  set(g, 1, STATUS, KF_ENOMEM);
  set(g, 1, REASON, 'z');
  EXPECT(agree(g), KF_ENOMEM, "rank 1: z");
  good_step(g);
  set(g, 1, STATUS, (int64_t)1 << 32);
  EXPECT(agree(g), KF_ECOMM, "rank 1: communication failed");
  set(g, 1, STATUS, -1);
  memset(g->all + KF_VERDICT_BYTES + 24, 'r', KF_VERDICT_BYTES - 24);
  EXPECT(agree(g), KF_ECOMM, "rank 1: rrr");
  end(g);
}

static void test_misuse(void **state) {
  (void)state;
  world *g = start(0);
  kf_gather *out = NULL;
  kf_scheduler *other;
  EXPECT(kf_gather_create(0, 0, 0, &out), KF_EINVAL, "rank 0 of 0");
  EXPECT(kf_gather_create(2, 2, 0, &out), KF_EINVAL, "rank 2 of 2");
  EXPECT(kf_gather_create(2, -1, 0, &out), KF_EINVAL, "rank -1 of 2");
  EXPECT(kf_gather_create(2, 1, 0, NULL), KF_EINVAL, "NULL");
  EXPECT(kf_gather_create(KF_MAX_RANKS, 0, 0, &out), KF_EINVAL,
         "rank 0 of 1048576, expected one of 1 to 320000 ranks");
  EXPECT_OK(kf_gather_create(320000, 0, 0, &out));
  kf_gather_free(out);
  EXPECT(kf_gather_pack(g->gather[0], NULL, NULL, NULL, g->all), KF_EINVAL, "mine is NULL");
  EXPECT(kf_gather_read(g->gather[0], NULL, &g->batch, NULL), KF_EINVAL, "NULL");
  EXPECT(kf_gather_plan(g->gather[0], NULL, g->plan, g->all), KF_EINVAL, "NULL");
  EXPECT(kf_gather_schedule(g->gather[0], NULL, g->plan, g->all), KF_EINVAL, "NULL");
  EXPECT(kf_gather_agree(g->gather[0], NULL), KF_EINVAL, "NULL");
  EXPECT_OK(scheduler_create(&(scheduler_wish){.n_ranks = N + 1}, &other));
  EXPECT(kf_gather_pack(g->gather[0], &g->mine[0], other, NULL, g->all), KF_EINVAL,
         "a scheduler of 4 ranks, expected 3");
  kf_scheduler_free(other);
  kf_gather_free(NULL);
  end(g);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_version),     cmocka_unit_test(test_record_size),
    cmocka_unit_test(test_wrong_input), cmocka_unit_test(test_times),
    cmocka_unit_test(test_verdicts),    cmocka_unit_test(test_misuse),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
