/* SPDX-License-Identifier: Apache-2.0 */
/*
** Exchange tables of random plans against a slow, obvious twin: every unit of both sides has a
** label that follows from the chunks alone; all ranks' tables together are carried out, unit by
** unit, and every unit must arrive where the label says.
*/
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "dice.h"
#include "fail_alloc.h"

enum { RANKS = 13, MOST = 1 << 17 };

static const kf_exchange_kind kinds[] = {KF_EXCHANGE_ROUTE, KF_EXCHANGE_SEQUENCES,
                                         KF_EXCHANGE_ULYSSES, KF_EXCHANGE_ULYSSES_SPLIT};

/* --------------------------------------------------------------------------- labels */

/* Labels of one rank's units, in order. */
typedef struct labels {
  int64_t n, *label;
} labels;

static void put(labels *l, int64_t seq, int64_t row, int64_t head) {
  assert_true(l->n < MOST);
  l->label[l->n++] = (seq * 100000 + row) * 1100 + head;
}

static bool is_split(const kf_plan *p, int64_t seq) {
  return p->seq_off[seq + 1] - p->seq_off[seq] > 1;
}

static int64_t nearest(const kf_plan *p, int64_t head, int32_t heads) {
  return (int64_t)floor((double)head * heads / p->heads + 0.5);
}

static void label_home(const kf_plan *p, const kf_batch *b, int32_t r, bool rows, labels *l) {
  for (int64_t i = b->rank_off[r]; i < b->rank_off[r + 1]; i++)
    for (int64_t row = 0; row < (rows ? b->len[i] : 1); row++) put(l, i, row, 0);
  (void)p;
}

static void label_held(const kf_plan *p, int32_t r, kf_exchange_kind kind, int32_t heads,
                       labels *l) {
  for (int64_t h = p->hold_off[r]; h < p->hold_off[r + 1]; h++) {
    const kf_chunk *k = &p->chunk[p->hold[h]];
    if (kind == KF_EXCHANGE_ULYSSES_SPLIT && !is_split(p, k->seq)) continue;
    if (kind == KF_EXCHANGE_SEQUENCES && k->length > 0) put(l, k->seq, 0, 0);
    for (int64_t row = 0; row < k->length && kind != KF_EXCHANGE_SEQUENCES; row++)
      for (int64_t head = 0; head < heads; head++) put(l, k->seq, k->offset + row, head);
  }
}

static void label_segments(const kf_plan *p, const kf_batch *b, int32_t r, kf_exchange_kind kind,
                           int32_t heads, labels *l) {
  for (int64_t h = p->hold_off[r]; h < p->hold_off[r + 1]; h++) {
    const kf_chunk *k = &p->chunk[p->hold[h]];
    if (kind == KF_EXCHANGE_ULYSSES_SPLIT && !is_split(p, k->seq)) continue;
    int64_t first = nearest(p, k->first_head, heads);
    int64_t end = nearest(p, k->first_head + k->heads, heads);
    for (int64_t row = 0; row < b->len[k->seq]; row++)
      for (int64_t head = first; head < end; head++) put(l, k->seq, row, head);
  }
}

/* ---------------------------------------------------------------------------- tables */

typedef struct job {
  const kf_plan *p;
  const kf_batch *b;
  kf_exchange_kind kind;
  int32_t heads; /* as asked for */
  kf_exchange *x[RANKS];
  labels side[2][RANKS];
  int8_t *used[2][RANKS]; /* how often a unit was sent; was it received */
} job;

static void make_labels(job *j) {
  bool ulysses = j->kind >= KF_EXCHANGE_ULYSSES;
  int32_t heads = ulysses ? j->heads ? j->heads : j->p->heads : 1;
  for (int32_t r = 0; r < j->p->n_ranks; r++) {
    if (!ulysses) label_home(j->p, j->b, r, j->kind == KF_EXCHANGE_ROUTE, &j->side[0][r]);
    label_held(j->p, r, j->kind, heads, &j->side[!ulysses][r]);
    if (ulysses) label_segments(j->p, j->b, r, j->kind, heads, &j->side[1][r]);
  }
}

/* Unit i of a list of runs, counted over all of them; -1: no more. */
static int64_t unit_of(const kf_run *run, int64_t n_runs, int64_t i) {
  for (int64_t k = 0; k < n_runs; i -= run[k].n * run[k].width, k++)
    if (i < run[k].n * run[k].width)
      return run[k].first + i / run[k].width * run[k].stride + i % run[k].width;
  return -1;
}

/* Which list of x has rank q; n_peers + 1: none. */
static int64_t list_of(const kf_exchange *x, int64_t q) {
  if (q == x->rank) return x->n_peers;
  for (int64_t i = 0; i < x->n_peers; i++)
    if (x->peer[i].peer == q) return i;
  return x->n_peers + 1;
}

/* Send what r has for q, as both tables say. */
static void carry(job *j, int32_t r, int32_t q) {
  const kf_exchange *a = j->x[r], *b = j->x[q];
  int64_t to = list_of(a, q), from = list_of(b, r), units = 0;
  assert_true((to > a->n_peers) == (from > b->n_peers));
  if (to > a->n_peers) return;
  const kf_run *send = a->run[0] + a->run_off[0][to], *recv = b->run[1] + b->run_off[1][from];
  int64_t n = a->run_off[0][to + 1] - a->run_off[0][to];
  assert_int_equal(n, b->run_off[1][from + 1] - b->run_off[1][from]);
  for (int64_t k = 0; k < n; k++) {
    assert_true(send[k].n == recv[k].n && send[k].width == recv[k].width && send[k].n > 0);
    for (int64_t i = 0; i < send[k].n * send[k].width; i++, units++) {
      int64_t s = unit_of(&send[k], 1, i), d = unit_of(&recv[k], 1, i);
      assert_true(s >= 0 && s < a->n_units[0] && d >= 0 && d < b->n_units[1]);
      assert_int_equal(j->side[0][r].label[s], j->side[1][q].label[d]);
      j->used[0][r][s]++;
      assert_int_equal(j->used[1][q][d]++, 0);
    }
    if (k == 0 || (r != q && j->kind != KF_EXCHANGE_ROUTE)) continue;
    assert_false(send[k - 1].width == send[k].width && /* or the two could be one */
                 send[k - 1].first + send[k - 1].n * send[k - 1].stride == send[k].first &&
                 recv[k - 1].first + recv[k - 1].n * recv[k - 1].stride == recv[k].first);
  }
  if (r != q) assert_true(units == a->peer[to].send && units == b->peer[from].recv);
}

static void check_rank(const job *j, int32_t r) {
  const kf_exchange *x = j->x[r];
  assert_true(x->kind == j->kind && x->rank == r && x->n_ranks == j->p->n_ranks);
  assert_true(x->hash == j->x[0]->hash && x->busy == j->x[0]->busy);
  assert_true(x->busy || x->n_peers == 0);
  for (int side = 0; side < 2; side++) assert_int_equal(x->n_units[side], j->side[side][r].n);
  for (int64_t i = 0; i < x->n_peers; i++) {
    assert_true(x->peer[i].peer != r && x->peer[i].send + x->peer[i].recv > 0);
    assert_true(i == 0 || x->peer[i - 1].peer < x->peer[i].peer);
  }
  int64_t at = 0;
  for (int64_t h = j->p->hold_off[r]; h < j->p->hold_off[r + 1]; h++) {
    const kf_chunk *k = &j->p->chunk[j->p->hold[h]];
    if (k->length == 0 || (j->kind == KF_EXCHANGE_ULYSSES_SPLIT && k->part != KF_PART_SPLIT))
      continue;
    assert_true(at >= x->part_off[k->part] && at < x->part_off[k->part + 1]);
    assert_memory_equal(&x->held[at++], k, sizeof *k);
  }
  assert_true(x->part_off[0] == 0 && x->part_off[KF_N_PARTS] == at);
  int64_t pairs = 0;
  for (int64_t i = 0; i < x->n_segments; i++) {
    const kf_segment *s = &x->segment[i];
    assert_true(s->rows > 0 && s->heads > 0 && s->offset == pairs);
    assert_int_equal(j->side[1][r].label[pairs] % 1100, s->first_head);
    assert_int_equal(j->side[1][r].label[pairs] / 1100 / 100000, s->seq);
    pairs += s->rows * s->heads;
  }
  assert_int_equal(pairs, j->kind >= KF_EXCHANGE_ULYSSES ? x->n_units[1] : 0);
}

static void check_tables(const kf_plan *p, const kf_batch *b, kf_exchange_kind kind,
                         int32_t heads) {
  static int64_t memory[2][RANKS][MOST];
  static int8_t used[2][RANKS][MOST];
  job j = {.p = p, .b = b, .kind = kind, .heads = heads};
  for (int side = 0; side < 2; side++)
    for (int32_t r = 0; r < p->n_ranks; r++)
      j.side[side][r].label = memory[side][r], j.used[side][r] = used[side][r];
  make_labels(&j);
  for (int side = 0; side < 2; side++)
    for (int32_t r = 0; r < p->n_ranks; r++) memset(used[side][r], 0, (size_t)j.side[side][r].n);
  for (int32_t r = 0; r < p->n_ranks; r++)
    assert_int_equal(kf_exchange_create(p, r, kind, heads, &j.x[r]), KF_OK);
  for (int32_t r = 0; r < p->n_ranks; r++) check_rank(&j, r);
  for (int32_t r = 0; r < p->n_ranks; r++)
    for (int32_t q = 0; q < p->n_ranks; q++) carry(&j, r, q);
  for (int32_t r = 0; r < p->n_ranks; r++) {
    for (int64_t i = 0; i < j.side[0][r].n && kind != KF_EXCHANGE_SEQUENCES; i++)
      assert_int_equal(used[0][r][i], 1);
    for (int64_t i = 0; i < j.side[1][r].n; i++) assert_int_equal(used[1][r][i], 1);
    kf_exchange_free(j.x[r]);
  }
}

/* ----------------------------------------------------------------------------- tests */

/* A random problem that is small enough to look at unit by unit. */
static void draw(dice *d, world *w) {
  world_random(d, w, RANKS - 1);
  w->options.cost.heads = 1 + (int32_t)dice_int(d, 9);
  for (int64_t i = 0; i < w->batch.n_seqs; i++) w->len[i] %= 300;
}

static void test_random(void **state) {
  (void)state;
  static world w;
  int64_t n_split = 0, n_moved = 0, n_plans = 0;
  for (uint64_t seed = 0; seed < 200; seed++) {
    dice d = {seed};
    kf_planner *planner;
    const kf_plan *plan;
    draw(&d, &w);
    assert_int_equal(kf_planner_create(&w.options, &planner), KF_OK);
    if (kf_planner_plan(planner, &w.batch, &plan) == KF_OK) {
      int32_t other = 1 + (int32_t)dice_int(&d, 12);
      for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        check_tables(plan, &w.batch, kinds[i], 0);
        if (kinds[i] >= KF_EXCHANGE_ULYSSES) check_tables(plan, &w.batch, kinds[i], other);
      }
      n_plans++;
      n_split += plan->figures.split_seqs;
      n_moved += plan->route_off[plan->n_ranks];
    }
    kf_planner_free(planner);
    kf_bags_free(w.bags);
  }
  assert_true(n_plans > 100 && n_split > 100 && n_moved > 100); /* or nothing was tested */
}

static kf_planner *plan_of(int32_t n_ranks, const char *spec, kf_batch *batch,
                           const kf_plan **plan) {
  kf_planner_options o = {0};
  kf_bags *bags;
  kf_planner *planner;
  assert_int_equal(kf_cost_preset("d=64,layers=2,heads=6", "free", n_ranks, 1, &o.cost), KF_OK);
  assert_int_equal(kf_bags_parse(spec, n_ranks, &bags), KF_OK);
  o.bags = bags;
  assert_int_equal(kf_planner_create(&o, &planner), KF_OK);
  assert_int_equal(kf_planner_plan(planner, batch, plan), KF_OK);
  kf_bags_free(bags);
  return planner;
}

/* One rank; ranks without anything; sequences of no tokens; more ranks than heads. */
static void test_corners(void **state) {
  (void)state;
  static const struct {
    int32_t n_ranks;
    const char *spec;
    int64_t rank_off[9], len[4];
  } cases[] = {
    {1, "auto", {0, 3}, {5, 0, 7}},
    {1, "auto", {0, 0}, {0}},
    {3, "auto", {0, 0, 0, 0}, {0}},
    {3, "3", {0, 0, 2, 2}, {0, 0}},
    {3, "3", {0, 1, 1, 1}, {1}},
    {4, "4", {0, 2, 2, 3, 4}, {97, 0, 1, 40}},
    {8, "8", {0, 0, 2, 2, 2, 3, 4, 4, 4}, {97, 0, 1, 40}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    kf_batch batch = {.n_ranks = cases[i].n_ranks,
                      .n_seqs = cases[i].rank_off[cases[i].n_ranks],
                      .rank_off = cases[i].rank_off,
                      .len = cases[i].len};
    const kf_plan *plan;
    kf_planner *planner = plan_of(batch.n_ranks, cases[i].spec, &batch, &plan);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
      for (int32_t heads = 0; heads < 14; heads++) check_tables(plan, &batch, kinds[k], heads);
    kf_planner_free(planner);
  }
}

/* Whole sequences at home: whatever their number, one run stays. */
static void test_merged(void **state) {
  (void)state;
  int64_t rank_off[] = {0, 3, 5}, len[] = {10, 0, 20, 7, 8};
  kf_batch batch = {.n_ranks = 2, .n_seqs = 5, .rank_off = rank_off, .len = len};
  const kf_plan *plan;
  kf_planner *planner = plan_of(2, "g1n1", &batch, &plan);
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    kf_exchange *x;
    assert_int_equal(kf_exchange_create(plan, 1, kinds[k], 0, &x), KF_OK);
    assert_true(x->n_peers == 0 && !x->busy);
    assert_int_equal(x->run_off[0][1], kinds[k] != KF_EXCHANGE_ULYSSES_SPLIT);
    kf_exchange_free(x);
  }
  kf_planner_free(planner);
}

static void refused(const kf_plan *plan, int32_t rank, int kind, int32_t heads, const char *why) {
  kf_exchange *x = NULL;
  assert_int_equal(kf_exchange_create(plan, rank, (kf_exchange_kind)kind, heads, &x), KF_EINVAL);
  assert_non_null(strstr(kf_last_error(), why));
  assert_null(x);
}

static void test_refusals(void **state) {
  (void)state;
  int64_t rank_off[] = {0, 1, 2}, len[] = {500, 20};
  kf_batch batch = {.n_ranks = 2, .n_seqs = 2, .rank_off = rank_off, .len = len};
  const kf_plan *plan;
  kf_planner *planner = plan_of(2, "2", &batch, &plan);
  kf_plan old = *plan;
  old.version = 1;
  refused(NULL, 0, 0, 0, "plan is NULL");
  refused(&old, 0, 0, 0, "plan of version 1, expected 2");
  refused(plan, 2, 0, 0, "rank 2, expected 0 to 1, the ranks of the plan");
  refused(plan, -1, 0, 0, "rank -1, expected 0 to 1");
  refused(plan, 0, 4, 0, "kind 4, expected 0 to 3");
  refused(plan, 0, 2, -1, "-1 heads, expected 1 to 1024");
  refused(plan, 0, 2, 1025, "1025 heads, expected 1 to 1024");
  assert_int_equal(kf_exchange_create(plan, 0, KF_EXCHANGE_ROUTE, 0, NULL), KF_EINVAL);
  assert_int_equal(kf_exchange_renew(plan, 0, KF_EXCHANGE_ROUTE, 0, NULL), KF_EINVAL);
  kf_exchange_free(NULL);
  kf_planner_free(planner);
}

static void test_memory(void **state) {
  (void)state;
  int64_t rank_off[] = {0, 1, 2}, len[] = {500, 20};
  kf_batch batch = {.n_ranks = 2, .n_seqs = 2, .rank_off = rank_off, .len = len};
  const kf_plan *plan;
  kf_planner *planner = plan_of(2, "2", &batch, &plan);
  for (int k = 1; k <= 4; k++) {
    kf_exchange *x = NULL;
    fail_alloc(k);
    kf_status status = kf_exchange_create(plan, 0, KF_EXCHANGE_ULYSSES, 0, &x);
    fail_alloc(0);
    assert_int_equal(status, k < 4 ? KF_ENOMEM : KF_OK);
    kf_exchange_free(x);
  }
  kf_exchange *x = NULL;
  assert_int_equal(kf_exchange_renew(plan, 7, KF_EXCHANGE_ROUTE, 0, &x), KF_EINVAL);
  assert_null(x); /* nothing was created */
  assert_int_equal(kf_exchange_renew(plan, 0, KF_EXCHANGE_ULYSSES, 0, &x), KF_OK);
  fail_alloc(0);
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
    assert_int_equal(kf_exchange_renew(plan, 1, kinds[k], 0, &x), KF_OK);
  assert_int_equal(fail_alloc(0), 0); /* it keeps what it has */
  assert_int_equal(kf_exchange_renew(plan, 7, KF_EXCHANGE_ROUTE, 0, &x), KF_EINVAL);
  assert_true(x->rank == 1 && x->kind == KF_EXCHANGE_ULYSSES_SPLIT); /* as it was */
  kf_exchange_free(x);
  kf_planner_free(planner);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_random),   cmocka_unit_test(test_corners), cmocka_unit_test(test_merged),
    cmocka_unit_test(test_refusals), cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
