/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "dice.h"
#include "fail_alloc.h"

#define N(array) (sizeof(array) / sizeof((array)[0]))

static kf_planner_options flux(int32_t n_ranks) {
  kf_planner_options o = {0};
  if (kf_cost_preset("flux", NULL, n_ranks, 0.4, &o.cost)) fail_msg("%s", kf_last_error());
  return o;
}

static kf_batch *mix(const char *name, uint64_t seed) {
  kf_batch *b;
  if (kf_mix_create(name, 0, seed, &b)) fail_msg("%s", kf_last_error());
  return b;
}

static kf_planner *planner_of(const kf_planner_options *o) {
  kf_planner *p;
  if (kf_planner_create(o, &p)) fail_msg("%s", kf_last_error());
  return p;
}

static const kf_plan *plan_of(kf_planner *planner, const kf_batch *b) {
  const kf_plan *plan;
  if (kf_planner_plan(planner, b, &plan)) fail_msg("%s", kf_last_error());
  if (kf_plan_check(plan, b)) fail_msg("%s", kf_last_error());
  return plan;
}

static uint64_t fresh_hash(const kf_planner_options *o, const kf_batch *b) {
  kf_planner *p = planner_of(o);
  uint64_t hash = plan_of(p, b)->hash;
  kf_planner_free(p);
  return hash;
}

/* -------------------------------------------------------------------- misuse */

static void refuse_options(const kf_planner_options *o, const char *name, const char *number) {
  kf_planner *p = NULL;
  if (kf_planner_create(o, &p) != KF_EINVAL) fail_msg("%s %s was accepted", name, number);
  assert_null(p);
  if (!strstr(kf_last_error(), name) || !strstr(kf_last_error(), number) ||
      !strstr(kf_last_error(), "expected"))
    fail_msg("\"%s\" does not name %s %s", kf_last_error(), name, number);
}

static void test_bad_cost(void **state) {
  (void)state;
  static const struct {
    const char *name;
    size_t at;
  } real[] = {{"linear_s", offsetof(kf_cost, linear_s)},
              {"quadratic_s", offsetof(kf_cost, quadratic_s)},
              {"constant_s", offsetof(kf_cost, constant_s)},
              {"ulysses_bytes", offsetof(kf_cost, ulysses_bytes)},
              {"route_bytes", offsetof(kf_cost, route_bytes)},
              {"intra_Bps", offsetof(kf_cost, cluster.intra_Bps)},
              {"inter_Bps", offsetof(kf_cost, cluster.inter_Bps)},
              {"latency_s", offsetof(kf_cost, cluster.latency_s)}};
  static const struct {
    const char *name;
    size_t at;
    int32_t value;
    const char *number;
  } whole[] = {{"heads", offsetof(kf_cost, heads), 0, "0"},
               {"heads", offsetof(kf_cost, heads), KF_MAX_HEADS + 1, "1025"},
               {"layers", offsetof(kf_cost, layers), 0, "0"},
               {"ranks", offsetof(kf_cost, cluster.n_ranks), 0, "0"},
               {"ranks", offsetof(kf_cost, cluster.n_ranks), KF_MAX_RANKS + 1, "1048577"},
               {"ranks a node", offsetof(kf_cost, cluster.ranks_per_node), -3, "-3"}};
  for (size_t i = 0; i < N(real); i++)
    for (int k = 0; k < 3; k++) {
      kf_planner_options o = flux(4);
      bool link = strstr(real[i].name, "Bps") != NULL; /* which alone may be infinite */
      double bad[3] = {-1, NAN, link ? 0 : INFINITY};
      char number[32];
      snprintf(number, sizeof number, "is %g", bad[k]);
      memcpy((char *)&o.cost + real[i].at, &bad[k], sizeof bad[k]);
      if (isnan(bad[k])) strcpy(number, "nan");
      refuse_options(&o, real[i].name, number);
    }
  for (size_t i = 0; i < N(whole); i++) {
    kf_planner_options o = flux(4);
    memcpy((char *)&o.cost + whole[i].at, &whole[i].value, sizeof whole[i].value);
    refuse_options(&o, whole[i].name, whole[i].number);
  }
}

static void test_bad_options(void **state) {
  (void)state;
  static const double slow[] = {0, -1, NAN, INFINITY};
  static const char *const name[] = {"is 0", "is -1", "nan", "inf"};
  kf_planner_options o;
  kf_planner *p;
  for (int i = 0; i < 4; i++) {
    double speed[4] = {1, 1, slow[i], 1};
    o = flux(4);
    o.speed = speed;
    refuse_options(&o, "speed of rank 2", name[i]);
  }
  int64_t cap[4] = {1, 1, 1, -5};
  o = flux(4);
  o.mem_tokens = cap;
  refuse_options(&o, "memory cap of rank 3", "-5");
  o = flux(4);
  o.max_chunk_size = -1;
  refuse_options(&o, "max_chunk_size", "-1");
  o = flux(4);
  o.budget = -9;
  refuse_options(&o, "budget", "-9");
  o = flux(4);
  int affinity = 2;
  memcpy(&o.affinity, &affinity, sizeof affinity);
  refuse_options(&o, "affinity", "2");
  kf_bags *bags;
  assert_int_equal(kf_bags_parse("2", 8, &bags), KF_OK);
  o = flux(4);
  o.bags = bags;
  refuse_options(&o, "bags", "8");
  kf_bags_free(bags);
  o = flux(4);
  assert_int_equal(kf_planner_create(NULL, &p), KF_EINVAL);
  assert_int_equal(kf_planner_create(&o, NULL), KF_EINVAL);
  kf_planner_free(NULL);
}

static void refuse_batch(kf_planner *p, kf_batch b, const char *name, const char *number) {
  const kf_plan *plan = (const kf_plan *)&b;
  if (kf_planner_plan(p, &b, &plan) != KF_EINVAL) fail_msg("%s %s was accepted", name, number);
  assert_ptr_equal(plan, &b);
  if (!strstr(kf_last_error(), name) || !strstr(kf_last_error(), number) ||
      !strstr(kf_last_error(), "expected"))
    fail_msg("\"%s\" does not name %s %s", kf_last_error(), name, number);
}

/* kf_bags is open: what a caller makes of it is looked at before it is used. */
static void test_bad_bags(void **state) {
  (void)state;
  static const int32_t good[] = {0, 2, 4}, far[] = {0, 40, 4}, falling[] = {0, 5, 4},
                       uneven[] = {0, 1, 4}, late[] = {1, 2, 4};
  static const struct {
    kf_bags bags;
    bool fine;
  } rows[] = {
    {{4, 2, 1, 2, good}, true},  {{4, 2, 2, 1, good}, true},     {{4, 2, 1, 2, uneven}, true},
    {{4, 2, 1, 2, far}, false},  {{4, 2, 1, 2, falling}, false}, {{4, 2, 2, 1, uneven}, false},
    {{4, 2, 1, 2, late}, false}, {{4, 2, 1, 0, good}, false},    {{4, 2, 1, 1, good}, false},
    {{4, 0, 1, 0, good}, false}, {{4, 2, 1, 2, NULL}, false},    {{8, 2, 1, 2, good}, false},
  };
  for (size_t i = 0; i < N(rows); i++) {
    kf_planner_options o = flux(4);
    kf_planner *planner = NULL;
    o.bags = &rows[i].bags;
    kf_status status = kf_planner_create(&o, &planner);
    if (status != (rows[i].fine ? KF_OK : KF_EINVAL)) fail_msg("row %d: %d", (int)i, (int)status);
    kf_planner_free(planner);
  }
}

/* A slow node gets less: auto does not fall far behind equal bags. */
static void test_slow_node(void **state) {
  (void)state;
  kf_batch *batch = mix("joint", 0);
  double speed[32];
  for (int r = 0; r < 32; r++) speed[r] = r < 24 ? 1 : 0.5;
  kf_planner_options o = flux(32);
  o.speed = speed;
  kf_planner *p = planner_of(&o);
  const kf_plan *plan = plan_of(p, batch);
  assert_true(plan->figures.step_s <= 1.13 * plan->figures.ideal_s);
  kf_planner_free(p);
  kf_batch_free(batch);
}

static void test_bad_batches(void **state) {
  (void)state;
  kf_planner_options o = flux(3);
  kf_planner *p = planner_of(&o);
  const kf_plan *plan;
  int64_t off[4] = {0, 1, 2, 3}, falls[4] = {0, 2, 1, 3}, late[4] = {1, 1, 2, 3},
          len[3] = {5, 6, 7};
  kf_batch good = {3, 3, off, len, NULL, NULL}, b;

  b = good, b.n_ranks = 2;
  refuse_batch(p, b, "2 ranks", "3");
  b = good, b.n_seqs = -1;
  refuse_batch(p, b, "sequences", "-1");
  b = good, b.n_seqs = KF_MAX_SEQS + 1;
  refuse_batch(p, b, "sequences", "1073741825");
  b = good, b.rank_off = NULL;
  refuse_batch(p, b, "sequences", "arrays");
  b = good, b.len = NULL;
  refuse_batch(p, b, "sequences", "arrays");
  b = good, b.rank_off = falls;
  refuse_batch(p, b, "rank_off", "rank 1");
  b = good, b.rank_off = late;
  refuse_batch(p, b, "rank_off", "from 1");
  b = good, b.n_seqs = 2;
  refuse_batch(p, b, "rank_off", "to 3");

  static const int64_t bad_len[] = {-1, KF_MAX_LEN + 1, INT64_MAX, INT64_MIN, 1000000000000000000};
  for (size_t i = 0; i < N(bad_len); i++) {
    char number[32];
    snprintf(number, sizeof number, "%lld tokens", (long long)bad_len[i]);
    len[1] = bad_len[i];
    refuse_batch(p, good, "rank 1: its sequence 0", number);
  }
  len[1] = 6;
  static const double bad_factor[] = {0, -1, NAN, INFINITY, 2e6};
  static const char *const name[] = {"factor 0", "factor -1", "nan", "inf", "factor 2e+06"};
  for (size_t i = 0; i < N(bad_factor); i++) {
    double factor[3] = {1, 1, bad_factor[i]};
    b = good, b.factor = factor;
    refuse_batch(p, b, "rank 2: its sequence 0", name[i]);
  }
  assert_int_equal(kf_planner_plan(NULL, &good, &plan), KF_EINVAL);
  assert_int_equal(kf_planner_plan(p, NULL, &plan), KF_EINVAL);
  assert_int_equal(kf_planner_plan(p, &good, NULL), KF_EINVAL);
  plan_of(p, &good); /* none of it did harm */
  kf_planner_free(p);
}

/* More tokens than are counted exactly. */
static void test_too_many_tokens(void **state) {
  (void)state;
  int64_t n = ((int64_t)1 << 21) + 1, off[2] = {0, n}, *len = malloc((size_t)n * sizeof *len);
  for (int64_t i = 0; i < n; i++) len[i] = KF_MAX_LEN;
  kf_planner_options o = flux(1);
  kf_planner *p = planner_of(&o);
  refuse_batch(p, (kf_batch){1, n, off, len, NULL, NULL}, "9007203549708288 tokens", "batch");
  kf_planner_free(p);
  free(len);
}

static void test_budget(void **state) {
  (void)state;
  assert_int_equal(kf_planner_budget(0), 0);
  assert_int_equal(kf_planner_budget(-1), 0);
  assert_int_equal(kf_planner_budget(NAN), 0);
  assert_true(kf_planner_budget(1e-9) == 1); /* 0 would mean the default */
  assert_true(kf_planner_budget(1000) == 1000 * kf_planner_budget(1));
  assert_true(kf_planner_budget(INFINITY) > kf_planner_budget(1e9));
}

/* ------------------------------------------------------------- every input */

typedef struct small {
  const char *name;
  int32_t n_ranks;
  const char *lens; /* as kf_batch_parse reads them */
  int64_t n_chunks; /* what must come out at least */
} small;

static const small smalls[] = {
  {"nothing", 5, "\n\n\n\n\n", 0},
  {"one rank, nothing", 1, "\n", 0},
  {"one rank", 1, "5 7 100000\n", 3},
  {"no tokens at all", 3, "0 0\n0\n\n", 3},
  {"one empty sequence", 4, "\n\n0\n\n", 1},
  {"fewer sequences than ranks", 6, "\n\n4000\n\n30\n\n", 2},
  {"one long sequence", 8, "\n\n\n\n\n\n\n200000\n", 1},
  {"one token each", 3, "1\n1\n1\n", 3},
  {"all on one rank", 4, "1000 1000 1000 1000 1000\n\n\n\n", 5},
  {"zeros among others", 3, "0 4000 0\n0\n17 0\n", 6},
  {"longest that is allowed", 2, "4294967296\n4294967296\n", 2},
};

static void check_small(const small *s, const char *model, const char *cluster, const char *spec) {
  kf_planner_options o = {0};
  kf_batch *batch;
  kf_bags *bags;
  assert_int_equal(kf_batch_parse("lens", s->lens, strlen(s->lens), &batch), KF_OK);
  assert_int_equal(batch->n_ranks, s->n_ranks);
  assert_int_equal(kf_cost_preset(model, cluster, s->n_ranks, 0.4, &o.cost), KF_OK);
  assert_int_equal(kf_bags_parse(spec, s->n_ranks, &bags), KF_OK);
  o.bags = bags;
  kf_planner *p = planner_of(&o);
  const kf_plan *plan = plan_of(p, batch);
  const kf_figures *f = &plan->figures;
  assert_true(plan->n_chunks >= s->n_chunks);
  assert_true(isfinite(f->step_s) && isfinite(f->gap) && isfinite(f->speedup));
  if (f->tokens == 0) {
    assert_true(f->step_s == 0 && f->ideal_s == 0 && f->gap == 0 && f->speedup == 1);
    assert_true(f->max_over_mean == 1 && f->before_max_over_mean == 1);
  }
  for (int64_t i = 0; i < plan->n_seqs; i++) {
    if (batch->len[i] > 0) continue;
    const kf_chunk *c = &plan->chunk[plan->seq_off[i]];
    if (plan->seq_off[i + 1] - plan->seq_off[i] != 1 || c->destination != c->source)
      fail_msg("%s, %s: sequence %d of no tokens is not one chunk at home", s->name, spec, (int)i);
  }
  kf_planner_free(p);
  kf_bags_free(bags);
  kf_batch_free(batch);
}

static void test_every_input(void **state) {
  (void)state;
  static const char *const models[] = {"flux", "d=64,layers=3,heads=7", "d=64,layers=3,heads=1"};
  static const char *const clusters[] = {"", "free", "ranks_per_node=3,inter_GBps=1"};
  for (size_t i = 0; i < N(smalls); i++)
    for (size_t m = 0; m < N(models); m++)
      for (size_t c = 0; c < N(clusters); c++) {
        char all[16];
        snprintf(all, sizeof all, "%d", (int)smalls[i].n_ranks);
        check_small(&smalls[i], models[m], clusters[c], "auto");
        check_small(&smalls[i], models[m], clusters[c], "1");
        check_small(&smalls[i], models[m], clusters[c], all); /* one bag of all ranks */
      }
}

/* Costs that are nothing, or very large, are costs. */
static void test_extreme_costs(void **state) {
  (void)state;
  kf_batch *batch = mix("joint", 0);
  for (int i = 0; i < 5; i++) {
    kf_planner_options o = flux(32);
    if (i == 0) o.cost.linear_s = 0;
    if (i == 1) o.cost.quadratic_s = 0;
    if (i == 2) o.cost.linear_s = o.cost.quadratic_s = 0;
    if (i == 3) o.cost.linear_s = 1e100, o.cost.quadratic_s = 1e100;
    if (i == 4) o.cost.cluster.latency_s = 1e3;
    kf_planner *p = planner_of(&o);
    const kf_plan *plan = plan_of(p, batch);
    assert_true(isfinite(plan->figures.step_s));
    assert_true(plan->figures.step_s <= plan->figures.before_step_s * (1 + 1e-9));
    kf_planner_free(p);
  }
  kf_batch_free(batch);
}

/* ------------------------------------------------------------------- memory */

static kf_planner_options variant(int i, kf_bags **bags, int64_t *cap) {
  static const char *const specs[] = {"auto", "auto", "g8n4", "[1,1,2]", "auto"};
  kf_planner_options o = flux(32);
  assert_int_equal(kf_bags_parse(specs[i], 32, bags), KF_OK);
  o.bags = *bags;
  if (i == 1) o.affinity = KF_AFFINITY_SPREAD;
  if (i == 3) o.max_chunk_size = 9000; /* adjacent bags together */
  for (int r = 0; r < 32; r++) cap[r] = 30000;
  if (i == 4) o.mem_tokens = cap;
  return o;
}
#define N_VARIANTS 5

/* A planner that has planned other batches plans like a fresh one, and soon allocates no more. */
static void test_reuse(void **state) {
  (void)state;
  static const char *const mixes[] = {"joint", "lowres", "mixres", "joint", "clips", "lowres4k"};
  for (int i = 0; i < N_VARIANTS; i++) {
    kf_bags *bags;
    int64_t cap[32];
    kf_planner_options o = variant(i, &bags, cap);
    kf_planner *p = planner_of(&o);
    for (size_t m = 0; m < N(mixes); m++)
      for (uint64_t seed = 0; seed < 3; seed++) {
        kf_batch *b = mix(mixes[m], seed);
        const kf_plan *plan;
        uint64_t hash = plan_of(p, b)->hash;
        if (hash != fresh_hash(&o, b)) fail_msg("variant %d, %s: another plan", i, mixes[m]);
        fail_alloc(0);
        assert_int_equal(kf_planner_plan(p, b, &plan), KF_OK);
        if (fail_alloc(0)) fail_msg("variant %d, %s: the second call allocates", i, mixes[m]);
        assert_true(plan->hash == hash);
        kf_batch_free(b);
      }
    kf_planner_free(p);
    kf_bags_free(bags);
  }
}

/* Options and batch are borrowed for the call: their arrays may go away. */
static void test_borrowed(void **state) {
  (void)state;
  kf_batch *b = mix("joint", 0);
  int64_t cap[32];
  double speed[32];
  kf_bags *bags;
  kf_planner_options o = flux(32);
  for (int r = 0; r < 32; r++) cap[r] = 40000 + r, speed[r] = 1 + 0.01 * r;
  assert_int_equal(kf_bags_parse("g2n16", 32, &bags), KF_OK);
  o.bags = bags, o.speed = speed, o.mem_tokens = cap;
  uint64_t hash = fresh_hash(&o, b);
  kf_planner *p = planner_of(&o);
  kf_bags_free(bags);
  memset(cap, 0, sizeof cap);
  memset(speed, 0, sizeof speed);
  assert_true(plan_of(p, b)->hash == hash);
  kf_planner_free(p);
  kf_batch_free(b);
}

static void test_create_memory(void **state) {
  (void)state;
  for (long k = 1;; k++) {
    kf_planner_options o = flux(32);
    kf_planner *p = NULL;
    fail_alloc(k);
    kf_status status = kf_planner_create(&o, &p);
    if (fail_alloc(0) < k) {
      assert_true(k > 1);
      kf_planner_free(p);
      break;
    }
    assert_int_equal(status, KF_ENOMEM);
    assert_null(p);
  }
}

/* The k-th allocation of a plan fails, fresh or when it grows: the planner still works. */
static void test_plan_memory(void **state) {
  (void)state;
  kf_batch *small_batch = mix("joint", 0), *large_batch = mix("lowres", 0);
  for (int i = 0; i < 2 * N_VARIANTS; i++) {
    kf_bags *bags;
    int64_t cap[32];
    kf_planner_options o = variant(i / 2, &bags, cap);
    uint64_t before = fresh_hash(&o, small_batch), after = fresh_hash(&o, large_batch);
    for (long k = 1;; k++) {
      kf_planner *p = planner_of(&o);
      const kf_plan *plan = NULL;
      if (i % 2) plan_of(p, small_batch);
      fail_alloc(k);
      kf_status status = kf_planner_plan(p, large_batch, &plan);
      bool all_had_their_turn = fail_alloc(0) < k;
      if (!all_had_their_turn) {
        assert_int_equal(status, KF_ENOMEM);
        assert_null(plan);
        assert_non_null(strstr(kf_last_error(), "memory"));
      }
      assert_true(plan_of(p, small_batch)->hash == before);
      assert_true(plan_of(p, large_batch)->hash == after);
      kf_planner_free(p);
      if (!all_had_their_turn) continue;
      assert_true(k > 1);
      break;
    }
    kf_bags_free(bags);
  }
  kf_batch_free(small_batch);
  kf_batch_free(large_batch);
}

static void test_check_memory(void **state) {
  (void)state;
  kf_batch *b = mix("joint", 0);
  kf_planner_options o = flux(32);
  kf_planner *p = planner_of(&o);
  const kf_plan *plan = plan_of(p, b);
  for (long k = 1;; k++) {
    fail_alloc(k);
    kf_status status = kf_plan_check(plan, b);
    if (fail_alloc(0) < k) break;
    assert_int_equal(status, KF_ENOMEM);
  }
  kf_planner_free(p);
  kf_batch_free(b);
}

/* -------------------------------------------------------------------- search */

/*
** Anytime: more budget gives no longer step, but for what the search's loads and the plan's price
** differ by: messages counted per chunk instead of per peer (auto), whole tokens and heads (bags).
*/
static void test_larger_budgets(void **state) {
  (void)state;
  static const char *const mixes[] = {"joint", "mixres", "lowres", "lowres4k", "clips"};
  static const char *const specs[] = {"auto", "g2n16", "g1n8+g2n4+g4n4"};
  static const double us[] = {1, 10, 100, 1000, 10000};
  for (size_t m = 0; m < N(mixes); m++)
    for (size_t s = 0; s < N(specs); s++)
      for (uint64_t seed = 0; seed < 3; seed++) {
        kf_batch *b = mix(mixes[m], seed);
        kf_bags *bags;
        double last = INFINITY;
        assert_int_equal(kf_bags_parse(specs[s], 32, &bags), KF_OK);
        for (size_t k = 0; k < N(us); k++) {
          kf_planner_options o = flux(32);
          o.budget = kf_planner_budget(us[k]);
          o.bags = bags;
          kf_planner *p = planner_of(&o);
          double step = plan_of(p, b)->figures.step_s;
          if (step > last * 1.001)
            fail_msg("%s, seed %d, %s: %g us gives %.9f, less gave %.9f", mixes[m], (int)seed,
                     specs[s], us[k], step, last);
          if (step < last) last = step;
          kf_planner_free(p);
        }
        kf_bags_free(bags);
        kf_batch_free(b);
      }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_bad_cost),       cmocka_unit_test(test_bad_options),
    cmocka_unit_test(test_bad_batches),    cmocka_unit_test(test_too_many_tokens),
    cmocka_unit_test(test_budget),         cmocka_unit_test(test_every_input),
    cmocka_unit_test(test_extreme_costs),  cmocka_unit_test(test_reuse),
    cmocka_unit_test(test_borrowed),       cmocka_unit_test(test_create_memory),
    cmocka_unit_test(test_plan_memory),    cmocka_unit_test(test_check_memory),
    cmocka_unit_test(test_larger_budgets), cmocka_unit_test(test_bad_bags),
    cmocka_unit_test(test_slow_node),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
