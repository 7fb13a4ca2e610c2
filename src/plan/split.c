/* SPDX-License-Identifier: Apache-2.0 */
/*
** How to cut one long sequence so that no rank works longer than T and the least travels.
**
** With x_j of the tokens and y_j = h_j/H of the heads on rank j, all in one node, a rank needs
**
**     a x + b y + c (x + y - 2 x y)  seconds      a: all tokens, b: all heads, c: Ulysses
**
** and all ranks together spend 2c(1 - sum x_j y_j) on Ulysses. So the sum S of x_j y_j is to be
** as large as can be. For given heads, tokens go to the ranks with most heads first, each filled
** to T; what is left over goes to ranks that take tokens and no heads. What remains is to choose
** a partition of H into head counts: depth first, falling counts, cut where the tokens left
** times the largest count left cannot reach the best. With H = 24 that is some 20 to 200 nodes.
**
** The result serves twice: as a pattern for the construction, and, since it is the true maximum,
** in the lower bound. Heads in proportion to tokens would miss 12/12/0, the best set of mixres.
*/
#include <math.h>

#include "knapsack.h"

#define NODE_LIMIT 400

typedef struct cutter {
  const kfi_cut *c;
  double x_most[KF_MAX_HEADS + 1]; /* most tokens beside h heads; < 0: h heads do not fit */
  int32_t heads[KFI_PATTERN_MAX];
  double x[KFI_PATTERN_MAX];
  double best_cost;
  kfi_pattern *best;
  int nodes;
  bool cut_short; /* not every partition was looked at */
} cutter;

/* Most tokens (as a share) that fit beside h heads under the time and the memory limit. */
static double most_tokens(const kfi_cut *c, int32_t h) {
  double y = (double)h / c->n_heads;
  double room = c->limit_s - (c->head_s + c->ulysses_s) * y;
  double slope = c->token_s + c->ulysses_s * (1 - 2 * y);
  double x;
  if (y > c->y_max) return -1;
  if (slope > 0) {
    x = room / slope;
  } else { /* Ulysses so dear that more tokens make the rank faster */
    x = room - slope >= 0 ? 1 : -1;
  }
  return x > c->x_max ? c->x_max : x;
}

/* Cost of a finished partition: `n` ranks with heads, `left` tokens for ranks without. */
static void consider(cutter *k, int32_t n, double left, double inside) {
  int32_t fill = 0;
  if (left > 1e-12) {
    if (!(k->x_most[0] > 0)) return;
    double ranks = ceil(left / k->x_most[0] - 1e-9);
    if (ranks > k->c->n_ranks) return;
    fill = (int32_t)ranks;
  }
  if (n + fill > k->c->n_ranks) return;
  double cost =
    k->c->weight * (1 - inside) + k->c->latency_s * ((double)n * (n - 1) + 2.0 * n * fill);
  if (cost >= k->best_cost) return;
  k->best_cost = cost;
  kfi_pattern *p = k->best;
  p->n = n + fill <= KFI_PATTERN_MAX ? n + fill : KFI_PATTERN_MAX;
  for (int32_t i = 0; i < p->n; i++) {
    p->heads[i] = i < n ? k->heads[i] : 0;
    p->x[i] = i < n ? k->x[i] : left / fill;
  }
  p->inside = inside;
}

static void cut(cutter *k, int32_t depth, int32_t most, int32_t heads_left, double left,
                double inside) {
  if (heads_left == 0) {
    consider(k, depth, left, inside);
    return;
  }
  int32_t most_ranks = k->c->n_ranks < KFI_PATTERN_MAX ? k->c->n_ranks : KFI_PATTERN_MAX;
  for (int32_t h = most < heads_left ? most : heads_left; h >= 1; h--) {
    double x = k->x_most[h] < left ? k->x_most[h] : left;
    if (x < 0) continue;
    if ((int64_t)h * (most_ranks - depth) < heads_left) { /* too many ranks to come */
      k->cut_short |= most_ranks == KFI_PATTERN_MAX;
      return;
    }
    int32_t rest = heads_left - h, next = h < rest ? h : rest;
    double in = inside + x * h / k->c->n_heads;
    double reach = in + (left - x) * next / k->c->n_heads;
    if (k->c->weight * (1 - reach) + k->c->latency_s * depth * (depth + 1.0) >= k->best_cost) {
      continue;
    }
    if (++k->nodes > NODE_LIMIT) {
      k->cut_short = true;
      return;
    }
    k->heads[depth] = h;
    k->x[depth] = x;
    cut(k, depth + 1, h, rest, left - x, in);
  }
}

/*
** No partition can have S above this: x y <= m (x + y) on every rank with m the maximum of
** xy/(x+y), so S <= 2m. Used where the search was cut short.
*/
static double inside_bound(const cutter *k) {
  double m = 0;
  for (int32_t h = 1; h <= k->c->n_heads; h++) {
    double x = k->x_most[h], y = (double)h / k->c->n_heads;
    if (x > 0 && x * y / (x + y) > m) m = x * y / (x + y);
  }
  return 2 * m < 1 ? 2 * m : 1;
}

bool kfi_cut_best(const kfi_cut *c, kfi_pattern *out) {
  cutter k; /* not zeroed: x_most is large */
  k.c = c;
  k.best_cost = INFINITY;
  k.best = out;
  k.nodes = 0;
  k.cut_short = false;
  int32_t most = 0;
  for (int32_t h = 0; h <= c->n_heads; h++) {
    k.x_most[h] = most_tokens(c, h);
    if (k.x_most[h] >= 0) most = h;
  }
  out->n = 0;
  cut(&k, 0, most, c->n_heads, 1, 0);
  out->exact = !k.cut_short;
  out->cost_bound = k.cut_short ? c->weight * (1 - inside_bound(&k)) : k.best_cost;
  return out->n > 0;
}
