/* SPDX-License-Identifier: Apache-2.0 */
/* Moves by an exchange table: the same bytes as the calls that take a plan, and what they
** refuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "refusal.h"

enum { ROOM = 1 << 16 };

typedef struct job {
  const kf_plan *plan;
  int32_t heads; /* of the model */
  kf_status (*call)(kf_comm *, const kf_exchange *, int32_t, const kf_tensor *, const kf_tensor *);
} job;

static kf_exchange *table(const kf_plan *plan, int32_t rank, kf_exchange_kind kind, int32_t heads) {
  kf_exchange *x;
  EXPECT_OK(kf_exchange_create(plan, rank, kind, heads, &x));
  return x;
}

/* Row i of rank r, byte b. */
static char mark(int32_t r, int64_t i, int64_t b) { return (char)(r * 31 + i * 7 + b * 3 + 1); }

static void fill(kf_tensor *t, int32_t rank) {
  for (int64_t i = 0; i < t->n_rows; i++)
    for (int64_t b = 0; b < t->row_bytes; b++)
      ((char *)t->data)[i * t->row_bytes + b] = mark(rank, i, b);
}

static void same(const kf_tensor *a, const kf_tensor *b) {
  assert(a->n_rows == b->n_rows && a->row_bytes == b->row_bytes);
  assert(a->n_rows == 0 || memcmp(a->data, b->data, (size_t)(a->n_rows * a->row_bytes)) == 0);
}

/* By the table and by the plan, there and back. */
static void both_ways(kf_comm *comm, void *arg) {
  const kf_plan *p = ((job *)arg)->plan;
  int32_t me = kf_comm_rank(comm);
  char *room = calloc(4, ROOM);
  for (int ulysses = 0; ulysses < 2; ulysses++) {
    kf_exchange *x = table(p, me, ulysses ? KF_EXCHANGE_ULYSSES : KF_EXCHANGE_ROUTE, 0);
    int64_t n0 = x->n_units[0] / x->heads, n1 = x->n_units[1], bytes = 3 * x->heads;
    kf_tensor a = {room, n0, bytes, 0}, back = {room + ROOM, n0, bytes, 0};
    kf_tensor b = {room + 2 * ROOM, n1, 3, 0}, want = {room + 3 * ROOM, n1, 3, 0};
    assert(n0 * bytes <= ROOM && n1 * 3 <= ROOM);
    fill(&a, me);
    EXPECT_OK(kf_exchange_forward(comm, x, 1, &a, &b));
    EXPECT_OK(ulysses ? kf_ulysses_out(comm, p, 1, &a, &want)
                      : kf_route_forward(comm, p, 1, &a, &want));
    same(&b, &want);
    EXPECT_OK(kf_exchange_reverse(comm, x, 1, &b, &back));
    same(&a, &back);
    kf_exchange_free(x);
  }
  free(room);
}

/* Another number of heads, without whole sequences: there and back, twice by one table. */
static void other_heads(kf_comm *comm, void *arg) {
  const job *j = arg;
  int32_t me = kf_comm_rank(comm);
  kf_exchange *x = table(j->plan, me, KF_EXCHANGE_ULYSSES_SPLIT, j->heads);
  char *room = calloc(3, ROOM);
  int64_t n0 = x->n_units[0] / j->heads, bytes = 2 * j->heads;
  kf_tensor a = {room, n0, bytes, 0}, back = {room + ROOM, n0, bytes, 0};
  kf_tensor b = {room + 2 * ROOM, x->n_units[1], 2, 0};
  assert(n0 * bytes <= ROOM && x->n_units[1] * 2 <= ROOM);
  for (int i = 0; i < 2; i++) {
    fill(&a, me + i);
    EXPECT_OK(kf_exchange_forward(comm, x, 1, &a, &b));
    EXPECT_OK(kf_exchange_reverse(comm, x, 1, &b, &back));
    same(&a, &back);
  }
  free(room);
  kf_exchange_free(x);
}

/* A row for each sequence reaches whoever has rows of it. */
static void sequences(kf_comm *comm, void *arg) {
  const kf_plan *p = ((job *)arg)->plan;
  int32_t me = kf_comm_rank(comm);
  kf_exchange *x = table(p, me, KF_EXCHANGE_SEQUENCES, 0);
  int64_t home[8] = {0}, held[8] = {0};
  for (int64_t c = p->send_off[me], i = -1, last = -1; c < p->send_off[me + 1]; c++) {
    if (p->chunk[c].seq != last) home[++i] = 100 + p->chunk[c].seq;
    last = p->chunk[c].seq;
  }
  kf_tensor a = {home, x->n_units[0], 8, 0}, b = {held, x->n_units[1], 8, 0};
  EXPECT_OK(kf_exchange_forward(comm, x, 1, &a, &b));
  for (int64_t i = 0; i < x->part_off[KF_N_PARTS]; i++) assert(held[i] == 100 + x->held[i].seq);
  kf_exchange_free(x);
}

static const int64_t rank_off[] = {0, 1, 2, 3, 5, 5}, len[] = {900, 700, 500, 350, 0};

static void run_all(ranks_body *body, int32_t heads) {
  refusal_plan p = refusal_plan_of(5, rank_off, len);
  assert_true(p.plan->figures.split_seqs > 1);
  ranks_run(5, 60, body, &(job){.plan = p.plan, .heads = heads});
  kf_planner_free(p.planner);
}

static void test_both_ways(void **state) {
  (void)state;
  run_all(both_ways, 0);
}

static void test_other_heads(void **state) {
  (void)state;
  for (int32_t heads = 1; heads < 12; heads++) run_all(other_heads, heads);
}

static void test_sequences(void **state) {
  (void)state;
  run_all(sequences, 0);
}

/* -------------------------------------------------------------------------- refusals */

static void no_table(kf_comm *comm, void *arg) {
  const job *j = arg;
  bool wrong = kf_comm_rank(comm) == 1;
  kf_exchange *x = table(j->plan, kf_comm_rank(comm), KF_EXCHANGE_ROUTE, 0);
  EXPECT(j->call(comm, wrong ? NULL : x, 0, NULL, NULL), wrong ? KF_EINVAL : KF_ECOMM,
         "exchange is NULL");
  kf_exchange_free(x);
}

static void other_rank(kf_comm *comm, void *arg) {
  const job *j = arg;
  bool wrong = kf_comm_rank(comm) == 1;
  kf_exchange *x = table(j->plan, wrong ? 0 : kf_comm_rank(comm), KF_EXCHANGE_ROUTE, 0);
  EXPECT(j->call(comm, x, 0, NULL, NULL), wrong ? KF_EINVAL : KF_ECOMM,
         "exchange of rank 0 of 5, expected the comm's 1 of 5");
  kf_exchange_free(x);
}

static void no_way_back(kf_comm *comm, void *arg) {
  kf_exchange *x = table(((job *)arg)->plan, kf_comm_rank(comm), KF_EXCHANGE_SEQUENCES, 0);
  kf_status status = kf_exchange_reverse(comm, x, 0, NULL, NULL);
  assert(status == KF_EINVAL || status == KF_ECOMM); /* whoever was first tells the others */
  EXPECT(status, status, "copies of a row would have to be added up");
  kf_exchange_free(x);
}

static void test_refusals(void **state) {
  (void)state;
  refusal_plan p = refusal_plan_of(5, rank_off, len);
  for (int back = 0; back < 2; back++) {
    job j = {.plan = p.plan, .call = back ? kf_exchange_reverse : kf_exchange_forward};
    ranks_run(5, 60, no_table, &j);
    ranks_run(5, 60, other_rank, &j);
  }
  ranks_run(5, 60, no_way_back, &(job){.plan = p.plan});
  kf_planner_free(p.planner);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_both_ways),
    cmocka_unit_test(test_other_heads),
    cmocka_unit_test(test_sequences),
    cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
