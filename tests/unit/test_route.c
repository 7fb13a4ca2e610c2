/* SPDX-License-Identifier: Apache-2.0 */
/* What route refuses; that it moves the right rows is property/transport's business. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "refusal.h"

static kf_status forward(kf_comm *comm, const kf_plan *p, int32_t n, const kf_tensor *home,
                         const kf_tensor *held) {
  return kf_route_forward(comm, p, n, home, held);
}

static kf_status reverse(kf_comm *comm, const kf_plan *p, int32_t n, const kf_tensor *home,
                         const kf_tensor *held) {
  return kf_route_reverse(comm, p, n, held, home);
}

/* Rank 1 has 8 rows at home and holds some; which ones the planner decides. */
static const refusal refusals[] = {
  {"plan is NULL", NO_PLAN, 0, 0},
  {"plan for 3 ranks, expected the comm's 2", OTHER_WORLD, 0, 0},
  {"plan of version 9, expected 2", OTHER_VERSION, 0, 0},
  {"-1 tensors, expected 0 or more", N_TENSORS, 0, -1},
  {"home is NULL", NO_LIST, 0, 0},
  {"held is NULL", NO_LIST, 1, 0},
  {"home[1] has 7 rows, expected 8 on rank 1", N_ROWS, 0, 7},
  {"home[1] has 9 rows, expected 8 on rank 1", N_ROWS, 0, 9},
  {"home[1] has -1 rows", N_ROWS, 0, -1},
  {"held[1] has 1000 rows, expected", N_ROWS, 1, 1000},
  {"home[1] has rows of 0 bytes, expected 1 to", ROW_BYTES, 0, 0},
  {"held[1] has rows of -5 bytes, expected 1 to", ROW_BYTES, 1, -5},
  {"home[1] has rows of 9223372036854775807 bytes", ROW_BYTES, 0, INT64_MAX},
  {"home[1] has rows of 11 bytes and held[1] of 12, expected the same", ROW_BYTES, 0, 11},
  {"home[1] has rows of 12 bytes and held[1] of 13, expected the same", ROW_BYTES, 1, 13},
  {"home[1] has a stride of 11 bytes, expected 0 or at least its 12 a row", STRIDE, 0, 11},
  {"held[1] has a stride of -12 bytes", STRIDE, 1, -12},
  {"held[1] has a stride of 9223372036854775807 bytes", STRIDE, 1, INT64_MAX},
  {"home[1] has 8 rows and its data is NULL", NO_DATA, 0, 0},
  {"held[1] has", NO_DATA, 1, 0},
  {"home[1] and held[1] are the same memory, expected two buffers", SAME_DATA, 0, 0},
};

static const refusal_kind route = {
  {{forward, "route"}, {reverse, "reverse"}}, {12, 12}, {refusal_home_rows, refusal_hold_rows}};

static void test_refusals(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++)
    for (int way = 0; way < 2; way++) refuse(&route, &refusals[i], way);
}

/* ------------------------------------------------------------------- allowed */

/* All rows are rank 0's, of which rank 1 gets some: nothing at home needs no memory. */
static void home_of_none(kf_comm *comm, void *arg) {
  int32_t me = kf_comm_rank(comm);
  const kf_plan *p = arg;
  char home[4000], held[4000], back[4000];
  int64_t n_home = p->home_rows[me], n_held = p->hold_rows[me];
  for (int64_t i = 0; i < n_home * 10; i++) home[i] = (char)(i * 7);
  kf_tensor at_home = {me ? NULL : home, n_home, 10, 0}, at_holder = {held, n_held, 10, 0};
  kf_tensor again = {me ? NULL : back, n_home, 10, 0};
  EXPECT_OK(kf_route_forward(comm, p, 1, &at_home, &at_holder));
  EXPECT_OK(kf_route_reverse(comm, p, 1, &at_holder, &again));
  assert(memcmp(home, back, (size_t)n_home * 10) == 0);
  EXPECT_OK(kf_route_forward(comm, p, 0, NULL, NULL)); /* no tensors at all */
}

/* Nobody has anything. */
static void nothing(kf_comm *comm, void *arg) {
  kf_tensor none = {NULL, 0, 10, 0};
  EXPECT_OK(kf_route_forward(comm, arg, 1, &none, &none));
  EXPECT_OK(kf_route_reverse(comm, arg, 1, &none, &none));
}

static void test_allowed(void **state) {
  (void)state;
  const int64_t one[] = {300}, zero[] = {0};
  refusal_plan p = refusal_plan_of(2, (int64_t[]){0, 1, 1}, one);
  assert_true(p.plan->hold_rows[1] > 0);
  ranks_run(2, 60, home_of_none, (void *)(uintptr_t)p.plan);
  kf_planner_free(p.planner);
  p = refusal_plan_of(2, (int64_t[]){0, 0, 0}, NULL);
  ranks_run(2, 60, nothing, (void *)(uintptr_t)p.plan);
  kf_planner_free(p.planner);
  p = refusal_plan_of(2, (int64_t[]){0, 1, 1}, zero); /* a sequence of no tokens */
  ranks_run(2, 60, nothing, (void *)(uintptr_t)p.plan);
  kf_planner_free(p.planner);
}

/* ------------------------------------------------------- ranks that disagree */

typedef struct quarrel {
  const kf_plan *plan[2];
  int32_t n_tensors[2];
  int64_t row_bytes[2];
  kf_status status[2];
} quarrel;

/* Each rank's call is fine by itself. The one that finds out says so to the other. */
static void disagree(kf_comm *comm, void *arg) {
  quarrel *q = arg;
  int32_t me = kf_comm_rank(comm);
  char *home = calloc(3, 8192), *held = calloc(3, 8192);
  kf_tensor at_home[3], at_holder[3];
  for (int i = 0; i < 3; i++) {
    at_home[i] = (kf_tensor){home + 8192 * i, q->plan[me]->home_rows[me], q->row_bytes[me], 0};
    at_holder[i] = (kf_tensor){held + 8192 * i, q->plan[me]->hold_rows[me], q->row_bytes[me], 0};
  }
  q->status[me] = kf_route_forward(comm, q->plan[me], q->n_tensors[me], at_home, at_holder);
  free(home);
  free(held);
}

static void expect_quarrel(quarrel q) {
  ranks_run(2, 60, disagree, &q);
  for (int r = 0; r < 2; r++) assert_true(q.status[r] == KF_EMISMATCH || q.status[r] == KF_ECOMM);
  assert_true(q.status[0] == KF_EMISMATCH || q.status[1] == KF_EMISMATCH);
}

static void test_quarrels(void **state) {
  (void)state;
  refusal_plan a = refusal_plan_of(2, (int64_t[]){0, 1, 1}, (int64_t[]){300});
  refusal_plan b = refusal_plan_of(2, (int64_t[]){0, 1, 1}, (int64_t[]){200});
  expect_quarrel((quarrel){{a.plan, b.plan}, {1, 1}, {8, 8}, {0}});
  expect_quarrel((quarrel){{a.plan, a.plan}, {1, 2}, {8, 8}, {0}});
  expect_quarrel((quarrel){{a.plan, a.plan}, {3, 0}, {8, 8}, {0}});
  expect_quarrel((quarrel){{a.plan, a.plan}, {1, 1}, {8, 16}, {0}});
  kf_planner_free(a.planner);
  kf_planner_free(b.planner);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_refusals),
    cmocka_unit_test(test_allowed),
    cmocka_unit_test(test_quarrels),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
