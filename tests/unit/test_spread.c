/* SPDX-License-Identifier: Apache-2.0 */
/* affinity `spread`: of the plans within 1% of fill's step, the least max_tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "dice.h"

#define N(array) (sizeof(array) / sizeof((array)[0]))

/* Plan under o with another affinity; false: infeasible. */
static bool figures_of(kf_planner_options o, kf_affinity affinity, const kf_batch *b,
                       kf_figures *out) {
  kf_planner *planner;
  const kf_plan *plan;
  o.affinity = affinity;
  if (kf_planner_create(&o, &planner)) fail_msg("%s", kf_last_error());
  kf_status status = kf_planner_plan(planner, b, &plan);
  if (status != KF_EINFEASIBLE) {
    if (status || kf_plan_check(plan, b)) fail_msg("%s", kf_last_error());
    *out = plan->figures;
    for (int32_t r = 0; o.mem_tokens && r < plan->n_ranks; r++)
      assert_true(plan->load_tokens[r] <= o.mem_tokens[r]);
    for (int64_t c = 0; o.max_chunk_size && c < plan->n_chunks; c++)
      assert_true(plan->chunk[c].length <= o.max_chunk_size);
  }
  kf_planner_free(planner);
  return status == KF_OK;
}

/* Returns 1 if spread made max_tokens smaller. */
static int compare(const char *what, int seed, const kf_planner_options *o, const kf_batch *b) {
  kf_figures fill, spread;
  bool had = figures_of(*o, KF_AFFINITY_FILL, b, &fill);
  bool has = figures_of(*o, KF_AFFINITY_SPREAD, b, &spread);
  if (had != has) fail_msg("%s, seed %d: only one of fill and spread has a plan", what, seed);
  if (!has) return 0;
  if (spread.max_tokens > fill.max_tokens)
    fail_msg("%s, seed %d: %d tokens, fill has %d", what, seed, (int)spread.max_tokens,
             (int)fill.max_tokens);
  if (!(spread.step_s <= fill.step_s * 1.01))
    fail_msg("%s, seed %d: step %.9g, fill's is %.9g (%.4f)", what, seed, spread.step_s,
             fill.step_s, spread.step_s / fill.step_s);
  return spread.max_tokens < fill.max_tokens;
}

static void test_mixes(void **state) {
  (void)state;
  static const char *const mixes[] = {"joint", "mixres", "lowres", "lowres4k", "clips"};
  static const char *const specs[] = {"auto", "g2n16", "g1n8+g2n4+g4n4"};
  static const char *const clusters[] = {"h100x32", "free"};
  int n_smaller = 0, n = 0;
  for (size_t m = 0; m < N(mixes); m++)
    for (size_t s = 0; s < N(specs); s++)
      for (size_t c = 0; c < N(clusters); c++)
        for (uint64_t seed = 0; seed < 5; seed++, n++) {
          kf_planner_options o = {0};
          kf_batch *batch;
          kf_bags *bags;
          char what[80];
          snprintf(what, sizeof what, "%s, %s, %s", mixes[m], specs[s], clusters[c]);
          assert_int_equal(kf_mix_create(mixes[m], 32, seed, &batch), KF_OK);
          assert_int_equal(kf_bags_parse(specs[s], 32, &bags), KF_OK);
          assert_int_equal(kf_cost_preset("flux", clusters[c], 32, 0.4, &o.cost), KF_OK);
          o.bags = bags;
          n_smaller += compare(what, (int)seed, &o, batch);
          kf_bags_free(bags);
          kf_batch_free(batch);
        }
  assert_true(n_smaller > n / 2); /* it does something */
}

static void test_random(void **state) {
  (void)state;
  static world w;
  for (uint64_t seed = 0; seed < 500; seed++) {
    dice d = {seed};
    world_random(&d, &w, 33);
    compare("random", (int)seed, &w.options, &w.batch);
    kf_bags_free(w.bags);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_mixes),
    cmocka_unit_test(test_random),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
