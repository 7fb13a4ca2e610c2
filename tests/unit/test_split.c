/* SPDX-License-Identifier: Apache-2.0 */
/* kfi_cut_best against every partition of the heads, with rank times taken from the formula. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "dice.h"
#include "plan/knapsack.h"

/* Seconds of a rank with shares x of the tokens and y of the heads. */
static double seconds(const kfi_cut *c, double x, double y) {
  return c->token_s * x + c->head_s * y + c->ulysses_s * (x + y - 2 * x * y);
}

/* Most tokens beside h heads, by bisection; -1: h heads do not fit. */
static double most_tokens(const kfi_cut *c, int32_t h) {
  double y = (double)h / c->n_heads, low = 0, high = c->x_max;
  if (y > c->y_max) return -1;
  if (seconds(c, high, y) <= c->limit_s) return high;
  if (seconds(c, 0, y) > c->limit_s) return -1;
  for (int i = 0; i < 200; i++) {
    double mid = 0.5 * (low + high);
    if (seconds(c, mid, y) <= c->limit_s)
      low = mid;
    else
      high = mid;
  }
  return low;
}

typedef struct brute {
  const kfi_cut *c;
  double most[KF_MAX_HEADS + 1];
  int32_t heads[KF_MAX_HEADS];
  double cost, inside; /* of the best */
} brute;

/* A partition is complete: tokens to the ranks with most heads, the rest to ranks without. */
static void brute_price(brute *u, int32_t n) {
  double left = 1, inside = 0;
  int32_t fill = 0;
  for (int32_t i = 0; i < n; i++) {
    double x = u->most[u->heads[i]] < left ? u->most[u->heads[i]] : left;
    if (x < 0) return;
    left -= x;
    inside += x * u->heads[i] / u->c->n_heads;
  }
  for (; left > 1e-11; fill++) {
    if (!(u->most[0] > 0) || n + fill >= u->c->n_ranks) return;
    left -= u->most[0];
  }
  if (n + fill > u->c->n_ranks) return;
  double cost = u->c->weight * (1 - inside) + u->c->latency_s * (n * (n - 1.0) + 2.0 * n * fill);
  if (cost < u->cost) u->cost = cost, u->inside = inside;
}

static void brute_force(brute *u, int32_t depth, int32_t largest, int32_t left) {
  if (left == 0) {
    brute_price(u, depth);
    return;
  }
  for (int32_t h = largest < left ? largest : left; h >= 1; h--) {
    u->heads[depth] = h;
    brute_force(u, depth + 1, h, left - h);
  }
}

static brute solve(const kfi_cut *c) {
  static brute u;
  u.c = c;
  u.cost = INFINITY;
  u.inside = -1;
  for (int32_t h = 0; h <= c->n_heads; h++) u.most[h] = most_tokens(c, h);
  brute_force(&u, 0, c->n_heads, c->n_heads);
  return u;
}

/* The cut itself: all tokens, all heads, falling, nobody above the limits. */
static void check_pattern(const kfi_cut *c, const kfi_pattern *p) {
  double tokens = 0, inside = 0;
  int32_t heads = 0;
  assert_in_range(p->n, 1, c->n_ranks);
  for (int32_t i = 0; i < p->n; i++) {
    double y = (double)p->heads[i] / c->n_heads;
    assert_true(i == 0 || p->heads[i] <= p->heads[i - 1]);
    assert_true(p->x[i] >= 0 && p->x[i] <= c->x_max * (1 + 1e-9) && y <= c->y_max);
    assert_true(seconds(c, p->x[i], y) <= c->limit_s * (1 + 1e-9));
    tokens += p->x[i];
    heads += p->heads[i];
    inside += p->x[i] * y;
  }
  assert_int_equal(heads, c->n_heads);
  assert_true(fabs(tokens - 1) < 1e-9);
  assert_true(fabs(inside - p->inside) < 1e-12);
}

/*
** Sizes as of a long sequence: seconds of tokens and heads of the same order, a limit that needs
** 2 to 8 ranks, Ulysses from nothing to nearly as dear as the tokens. (Dearer than the tokens, a
** rank with most heads becomes faster by taking more tokens: cheaper_with_tokens below.)
*/
static kfi_cut random_cut(dice *d, int32_t n_heads) {
  kfi_cut c = {.n_heads = n_heads, .x_max = 1, .y_max = 1};
  c.token_s = dice_real(d, 0.1, 1);
  c.head_s = dice_real(d, 0, 2);
  c.n_ranks = 1 + (int32_t)dice_int(d, 16);
  if (dice_one_in(d, 4)) c.x_max = dice_real(d, 0.1, 1);
  if (dice_one_in(d, 4)) c.y_max = dice_real(d, 0.2, 1);
  c.ulysses_s = c.token_s * (dice_one_in(d, 4) ? 0 : dice_real(d, 0, 0.99));
  c.limit_s = (c.token_s + c.head_s) / dice_real(d, 0.9, 8);
  c.weight = c.ulysses_s > 0 ? 2 * c.ulysses_s : 1;
  if (dice_one_in(d, 3)) c.latency_s = c.weight * dice_real(d, 0, 0.05);
  return c;
}

static void test_small(void **state) {
  (void)state;
  int n_found = 0, n_none = 0, n_without_heads = 0;
  for (uint64_t seed = 0; seed < 20000; seed++) {
    dice d = {seed};
    kfi_cut c = random_cut(&d, 1 + (int32_t)dice_int(&d, 10));
    brute want = solve(&c);
    kfi_pattern p;
    bool found = kfi_cut_best(&c, &p);
    assert_true(p.exact);
    if (!found) {
      if (want.cost < INFINITY)
        fail_msg("seed %d: none found, S %g exists", (int)seed, want.inside);
      assert_true(p.cost_bound == INFINITY);
      n_none++;
      continue;
    }
    check_pattern(&c, &p);
    n_found++;
    n_without_heads += p.heads[p.n - 1] == 0;
    if (c.latency_s == 0 && !(fabs(p.inside - want.inside) < 1e-12))
      fail_msg("seed %d: S %.17g, by force %.17g", (int)seed, p.inside, want.inside);
    if (!(fabs(p.cost_bound - want.cost) < 1e-12))
      fail_msg("seed %d: bound %.17g, by force %.17g", (int)seed, p.cost_bound, want.cost);
  }
  assert_true(n_found > 5000 && n_none > 500 && n_without_heads > 100); /* all cases were met */
}

/* Many heads: the search may be cut short, but its bound never lies. */
static void test_large(void **state) {
  (void)state;
  int n_short = 0;
  for (uint64_t seed = 0; seed < 400; seed++) {
    dice d = {seed ^ 0xabcdef};
    kfi_cut c = random_cut(&d, 20 + (int32_t)dice_int(&d, seed % 20 ? 8 : 18));
    brute want = solve(&c);
    kfi_pattern p;
    bool found = kfi_cut_best(&c, &p);
    if (found) check_pattern(&c, &p);
    n_short += !p.exact;
    if (p.exact && found != (want.cost < INFINITY)) fail_msg("seed %d: existence", (int)seed);
    if (!(p.cost_bound <= want.cost + 1e-12))
      fail_msg("seed %d: bound %.17g, by force %.17g", (int)seed, p.cost_bound, want.cost);
  }
  assert_true(n_short > 0);
}

/* Ulysses dearer than the tokens themselves, where time falls with more tokens. */
static void test_cheaper_with_tokens(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 5000; seed++) {
    dice d = {seed ^ 0x777};
    kfi_cut c = random_cut(&d, 1 + (int32_t)dice_int(&d, 10));
    c.ulysses_s = c.token_s * dice_real(&d, 1, 10);
    c.weight = 2 * c.ulysses_s;
    c.limit_s *= dice_real(&d, 1, 5);
    brute want = solve(&c);
    kfi_pattern p;
    kfi_cut_best(&c, &p);
    if (!(p.cost_bound <= want.cost + 1e-12))
      fail_msg("seed %d: bound %.17g, by force %.17g", (int)seed, p.cost_bound, want.cost);
  }
}

/* About a 2048-pixel image of mixres: two ranks share the heads, a third takes tokens only. */
static void test_tokens_only(void **state) {
  (void)state;
  kfi_cut c = {.token_s = 2.854,
               .head_s = 1.027,
               .ulysses_s = 0.232,
               .limit_s = 1.78,
               .weight = 0.464,
               .x_max = 1,
               .y_max = 1,
               .n_heads = 24,
               .n_ranks = 8};
  kfi_pattern p;
  assert_true(kfi_cut_best(&c, &p));
  assert_int_equal(p.n, 3);
  assert_int_equal(p.heads[0], 12);
  assert_int_equal(p.heads[1], 12);
  assert_int_equal(p.heads[2], 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_small),
    cmocka_unit_test(test_large),
    cmocka_unit_test(test_cheaper_with_tokens),
    cmocka_unit_test(test_tokens_only),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
