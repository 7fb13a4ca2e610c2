/* SPDX-License-Identifier: Apache-2.0 */
/* Memory caps and max_chunk_size: kept always, refused with the sequence, its length, the cap. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "dice.h"

#define N(array) (sizeof(array) / sizeof((array)[0]))

typedef struct problem {
  kf_planner_options o;
  kf_batch *batch;
  kf_bags *bags;
  kf_planner *planner;
  const kf_plan *plan; /* NULL: infeasible */
} problem;

static problem solve(const char *lens, const char *spec, const int64_t *cap, int64_t max_chunk) {
  problem p = {0};
  if (kf_batch_parse("lens", lens, strlen(lens), &p.batch)) fail_msg("%s", kf_last_error());
  if (kf_bags_parse(spec, p.batch->n_ranks, &p.bags)) fail_msg("%s", kf_last_error());
  assert_int_equal(kf_cost_preset("flux", NULL, p.batch->n_ranks, 0.4, &p.o.cost), KF_OK);
  p.o.bags = p.bags;
  p.o.mem_tokens = cap;
  p.o.max_chunk_size = max_chunk;
  assert_int_equal(kf_planner_create(&p.o, &p.planner), KF_OK);
  kf_status status = kf_planner_plan(p.planner, p.batch, &p.plan);
  if (status == KF_EINFEASIBLE) return p;
  if (status || kf_plan_check(p.plan, p.batch)) fail_msg("%s", kf_last_error());
  for (int32_t r = 0; cap && r < p.batch->n_ranks; r++)
    assert_true(p.plan->load_tokens[r] <= cap[r]);
  for (int64_t c = 0; max_chunk && c < p.plan->n_chunks; c++)
    assert_true(p.plan->chunk[c].length <= max_chunk);
  return p;
}

static void dispose(problem *p) {
  kf_planner_free(p->planner);
  kf_bags_free(p->bags);
  kf_batch_free(p->batch);
}

static int64_t n_ranks_of(const problem *p, int64_t seq) {
  return p->plan->seq_off[seq + 1] - p->plan->seq_off[seq];
}

/* Caps that need what the quickest plan would not do. */
static void test_caps(void **state) {
  (void)state;
  static const int64_t even[4] = {1000, 1000, 1000, 1000}, uneven[4] = {100, 3000, 0, 900};
  problem p = solve("4000\n\n\n\n", "auto", even, 0); /* every rank filled to the last token */
  assert_non_null(p.plan);
  assert_int_equal(n_ranks_of(&p, 0), 4);
  dispose(&p);
  p = solve("100 900\n3000\n\n\n", "auto", uneven, 0); /* whole, but only in one way */
  assert_non_null(p.plan);
  assert_int_equal(p.plan->load_tokens[2], 0);
  dispose(&p);
  p = solve("1000 1000\n1000\n1000\n\n", "4", even, 0); /* a bag of four, filled */
  assert_non_null(p.plan);
  dispose(&p);
  static const int64_t nothing[4] = {0, 0, 0, 0};
  p = solve("0 0\n0\n\n\n", "auto", nothing, 0); /* no tokens need no memory */
  assert_non_null(p.plan);
  dispose(&p);
}

static void refuse(const char *lens, const char *spec, const int64_t *cap, int64_t max_chunk,
                   const char *sequence, const char *limit) {
  problem p = solve(lens, spec, cap, max_chunk);
  if (p.plan) fail_msg("\"%s\" on %s was planned", lens, spec);
  if (!strstr(kf_last_error(), sequence) || !strstr(kf_last_error(), limit))
    fail_msg("\"%s\" does not name %s and %s", kf_last_error(), sequence, limit);
  dispose(&p);
}

static void test_infeasible(void **state) {
  (void)state;
  static const int64_t cap[4] = {1000, 1000, 1000, 1000}, none[4] = {0, 0, 0, 0};
  refuse("7 8\n4001\n\n\n", "auto", cap, 0, "sequence 2 of 4001 tokens", "1000");
  refuse("\n\n4001\n\n", "4", cap, 0, "sequence 0 of 4001 tokens", "1000");
  refuse("\n\n2001\n\n", "[1,1]", cap, 0, "sequence 0 of 2001 tokens", "1000"); /* its group */
  refuse("1000\n1000 1\n1000\n1000\n", "auto", cap, 0, "sequence", "1000");     /* one too many */
  refuse("1\n\n\n\n", "auto", none, 0, "sequence 0 of 1 tokens", "0");
  refuse("7 8\n41\n\n\n", "auto", NULL, 10, "sequence 2 of 41 tokens", "10");
  refuse("7 8\n41\n\n\n", "1", NULL, 10, "sequence 2 of 41 tokens", "10");
  refuse("7 8\n41\n\n\n", "4", NULL, 10, "sequence 2 of 41 tokens", "10");
  refuse("7 8\n21\n\n\n", "[2]", NULL, 10, "sequence 2 of 21 tokens", "10");
  problem p = solve("7 8\n40\n\n\n", "auto", NULL, 10); /* one fewer fits */
  assert_non_null(p.plan);
  dispose(&p);
}

static void test_max_chunk_auto(void **state) {
  (void)state;
  static const int64_t limits[] = {1, 2, 333, 1000, 4095, 9999, 10000};
  for (size_t i = 0; i < N(limits); i++) {
    char lens[64];
    int64_t l = limits[i] * 5;
    snprintf(lens, sizeof lens, "%d 1\n\n1\n\n\n\n\n%d\n", (int)l, (int)limits[i]);
    problem p = solve(lens, "auto", NULL, limits[i]);
    assert_non_null(p.plan);
    assert_true(n_ranks_of(&p, 0) >= 5);
    dispose(&p);
  }
}

/* A sequence too long for every bag takes adjacent ones together, in equal shares. */
static void test_adjacent_bags(void **state) {
  (void)state;
  static const struct {
    const char *spec;
    int64_t len, max_chunk, n_ranks; /* the ranks it needs */
  } want[] = {{"1", 100, 25, 4},  {"2", 100, 25, 4},       {"2", 101, 25, 6},
              {"4", 100, 25, 4},  {"4", 101, 25, 8},       {"[1,2,1,4]", 100, 34, 4},
              {"8", 100, 13, 8},  {"[1,1,2]", 100, 25, 4}, {"[1,1,2]", 100, 34, 3},
              {"1", 100, 100, 1}, {"[3,3,2]", 100, 20, 5}, {"[3,3,2]", 100, 19, 6}};
  for (size_t i = 0; i < N(want); i++) {
    char lens[64];
    snprintf(lens, sizeof lens, "7\n%d 3\n\n\n\n\n\n5\n", (int)want[i].len);
    problem p = solve(lens, want[i].spec, NULL, want[i].max_chunk);
    if (!p.plan) fail_msg("%s: %s", want[i].spec, kf_last_error());
    const kf_chunk *c = &p.plan->chunk[p.plan->seq_off[1]];
    int64_t n = n_ranks_of(&p, 1), least = c->length, most = c->length;
    if (n != want[i].n_ranks)
      fail_msg("%s: %d ranks, expected %d", want[i].spec, (int)n, (int)want[i].n_ranks);
    for (int64_t k = 0; k < n; k++) {
      assert_int_equal(c[k].destination, c[0].destination + k); /* adjacent */
      if (c[k].length < least) least = c[k].length;
      if (c[k].length > most) most = c[k].length;
    }
    assert_true(most - least <= 1);
    dispose(&p);
  }
}

/* Mixes under caps that just allow them, and chunk limits down to what 32 ranks can hold. */
static void test_mixes(void **state) {
  (void)state;
  static const char *const mixes[] = {"joint", "mixres", "lowres", "lowres4k", "clips"};
  static const char *const specs[] = {"auto", "g4n8", "g1n8+g2n4+g4n4"};
  static const double slack[] = {2, 1.3, 1.1};
  static const int64_t limits[] = {0, 8000, 1100};
  for (size_t m = 0; m < N(mixes); m++)
    for (size_t s = 0; s < N(specs); s++)
      for (size_t k = 0; k < N(slack); k++)
        for (size_t c = 0; c < N(limits); c++) {
          kf_planner_options o = {.max_chunk_size = limits[c]};
          int64_t cap[32], tokens = 0;
          kf_batch *b;
          kf_bags *bags;
          kf_planner *planner;
          const kf_plan *plan;
          assert_int_equal(kf_mix_create(mixes[m], 0, 0, &b), KF_OK);
          assert_int_equal(kf_bags_parse(specs[s], 32, &bags), KF_OK);
          assert_int_equal(kf_cost_preset("flux", NULL, 32, 0.4, &o.cost), KF_OK);
          for (int64_t i = 0; i < b->n_seqs; i++) tokens += b->len[i];
          for (int r = 0; r < 32; r++) cap[r] = (int64_t)(slack[k] * (double)tokens / 32);
          o.bags = bags;
          o.mem_tokens = cap;
          assert_int_equal(kf_planner_create(&o, &planner), KF_OK);
          kf_status status = kf_planner_plan(planner, b, &plan);
          if (status == KF_EINFEASIBLE) { /* but auto can cut to fit where there is some slack */
            if (!bags && (slack[k] > 1.2 || !limits[c]))
              fail_msg("%s, cap %d, chunk %d: %s", mixes[m], (int)cap[0], (int)limits[c],
                       kf_last_error());
          } else {
            if (status || kf_plan_check(plan, b)) fail_msg("%s", kf_last_error());
            for (int r = 0; r < 32; r++) assert_true(plan->load_tokens[r] <= cap[r]);
            for (int64_t i = 0; limits[c] && i < plan->n_chunks; i++)
              assert_true(plan->chunk[i].length <= limits[c]);
          }
          kf_planner_free(planner);
          kf_bags_free(bags);
          kf_batch_free(b);
        }
}

/* One greedy rule may leave no room where another does: only if all fail is it infeasible. */
static void test_another_rule(void **state) {
  (void)state;
  static const int64_t cap[2] = {1693, 1449};
  problem p = solve("\n681 1125 1063\n", "[1,1]", cap, 0);
  assert_non_null(p.plan);
  dispose(&p);
}

/* A binding max_chunk_size costs no more on many ranks than on few: nothing piles up. */
static void test_many_ranks(void **state) {
  (void)state;
  double first = 0;
  for (int32_t n = 32; n <= 512; n *= 4) {
    kf_planner_options o = {.max_chunk_size = 2000};
    kf_batch *batch;
    kf_planner *planner;
    const kf_plan *plan;
    assert_int_equal(kf_mix_create("joint", n, 0, &batch), KF_OK);
    assert_int_equal(kf_cost_preset("flux", NULL, n, 0.4, &o.cost), KF_OK);
    assert_int_equal(kf_planner_create(&o, &planner), KF_OK);
    assert_int_equal(kf_planner_plan(planner, batch, &plan), KF_OK);
    double over = plan->figures.step_s / plan->figures.ideal_s;
    if (n == 32) first = over;
    if (!(over < 1.5) || !(over < first * 1.1)) fail_msg("%d ranks: %g of ideal", (int)n, over);
    kf_planner_free(planner);
    kf_batch_free(batch);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_caps),           cmocka_unit_test(test_infeasible),
    cmocka_unit_test(test_max_chunk_auto), cmocka_unit_test(test_adjacent_bags),
    cmocka_unit_test(test_mixes),          cmocka_unit_test(test_many_ranks),
    cmocka_unit_test(test_another_rule),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
