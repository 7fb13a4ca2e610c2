/* SPDX-License-Identifier: Apache-2.0 */
/*
** Route and ulysses refuse the same mistakes in the same way: rank 1 of 2 makes one in its second
** of two tensors, both ranks return an error that says what it was, and not a byte has moved.
*/
#ifndef REFUSAL_H
#define REFUSAL_H

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "dice.h"
#include "ranks.h"

enum { REFUSAL_HEADS = 4, REFUSAL_ROOM = 4096 };

typedef struct refusal_plan {
  kf_planner *planner;
  const kf_plan *plan;
} refusal_plan;

/* Free the planner. */
static inline refusal_plan refusal_plan_of(int32_t n_ranks, const int64_t *rank_off,
                                           const int64_t *len) {
  kf_planner_options o = {0};
  kf_batch batch = {n_ranks, rank_off[n_ranks], rank_off, len, NULL, NULL};
  refusal_plan p;
  EXPECT_OK(kf_cost_preset("d=64,layers=3,heads=4", "free", n_ranks, 0.4, &o.cost));
  EXPECT_OK(kf_planner_create(&o, &p.planner));
  EXPECT_OK(kf_planner_plan(p.planner, &batch, &p.plan));
  EXPECT_OK(kf_plan_check(p.plan, &batch));
  return p;
}

typedef enum refusal_field {
  NO_PLAN,
  OTHER_WORLD,
  OTHER_VERSION,
  N_TENSORS,
  NO_LIST,
  N_ROWS,
  ROW_BYTES,
  STRIDE,
  NO_DATA,
  SAME_DATA
} refusal_field;

/* A mistake: on this side (0: home or rows), the field has this value. */
typedef struct refusal {
  const char *sentence;
  refusal_field field;
  int side;
  int64_t value;
} refusal;

typedef kf_status refusal_call(kf_comm *, const kf_plan *, int32_t n, const kf_tensor *side0,
                               const kf_tensor *side1);

typedef struct refusal_kind {
  struct {
    refusal_call *call;
    const char *name;
  } variant[2];         /* from side 0 to side 1, and back */
  int64_t row_bytes[2]; /* of the sides */
  int64_t (*n_rows[2])(const kf_plan *, int32_t rank);
} refusal_kind;

typedef struct refusal_trial {
  const refusal_kind *kind;
  const refusal *what;
  int variant;
  const kf_plan *plan, *other_world;
} refusal_trial;

static inline int64_t refusal_home_rows(const kf_plan *p, int32_t rank) {
  return p->home_rows[rank];
}
static inline int64_t refusal_hold_rows(const kf_plan *p, int32_t rank) {
  return p->hold_rows[rank];
}

/* Returns the number of tensors. */
static inline int32_t refusal_spoil(const refusal_trial *t, const kf_plan **plan, kf_plan *copy,
                                    kf_tensor tensor[2][2], const kf_tensor *list[2]) {
  const refusal *w = t->what;
  kf_tensor *wrong = &tensor[w->side][1];
  *copy = *t->plan;
  copy->version = 9;
  switch (w->field) {
  case NO_PLAN: *plan = NULL; break;
  case OTHER_WORLD: *plan = t->other_world; break;
  case OTHER_VERSION: *plan = copy; break;
  case N_TENSORS: return (int32_t)w->value;
  case NO_LIST: list[w->side] = NULL; break;
  case N_ROWS: wrong->n_rows = w->value; break;
  case ROW_BYTES: wrong->row_bytes = w->value; break;
  case STRIDE: wrong->stride_bytes = w->value; break;
  case NO_DATA: wrong->data = NULL; break;
  case SAME_DATA: wrong->data = tensor[!w->side][1].data; break;
  }
  return 2;
}

static inline void refusal_run(kf_comm *comm, void *arg) {
  const refusal_trial *t = arg;
  int32_t me = kf_comm_rank(comm), n = 2;
  char *memory = malloc(4 * REFUSAL_ROOM), sentence[200];
  kf_tensor tensor[2][2];
  const kf_tensor *list[2] = {tensor[0], tensor[1]};
  const kf_plan *plan = t->plan;
  kf_plan copy;
  assert(memory);
  memset(memory, 5, 4 * REFUSAL_ROOM);
  for (int s = 0; s < 2; s++)
    for (int i = 0; i < 2; i++)
      tensor[s][i] = (kf_tensor){memory + (2 * s + i) * REFUSAL_ROOM, t->kind->n_rows[s](plan, me),
                                 t->kind->row_bytes[s], 0};
  memset(tensor[t->variant][0].data, 6, REFUSAL_ROOM);
  if (me == 1) n = refusal_spoil(t, &plan, &copy, tensor, list);
  kf_status status = t->kind->variant[t->variant].call(comm, plan, n, list[0], list[1]);
  snprintf(sentence, sizeof sentence, "%s%s: %s",
           me == 1 ? "" : "rank 1 failed: ", t->kind->variant[t->variant].name, t->what->sentence);
  EXPECT(status, me == 1 ? KF_EINVAL : KF_ECOMM, sentence);
  EXPECT(kf_comm_barrier(comm), me == 1 ? KF_EINVAL : KF_ECOMM, sentence);
  for (int i = 0; i < 4 * REFUSAL_ROOM; i++)
    assert(memory[i] == (i / REFUSAL_ROOM == 2 * t->variant ? 6 : 5));
  free(memory);
}

/* Two ranks; both have sequences, and the long one is split. */
static inline void refuse(const refusal_kind *kind, const refusal *what, int variant) {
  const int64_t rank_off[] = {0, 2, 3, 3}, len[] = {100, 3, 8};
  refusal_plan p = refusal_plan_of(2, rank_off, len), other = refusal_plan_of(3, rank_off, len);
  assert(p.plan->home_rows[1] == 8 && p.plan->hold_rows[1] > 8);
  ranks_run(2, 60, refusal_run, &(refusal_trial){kind, what, variant, p.plan, other.plan});
  kf_planner_free(p.planner);
  kf_planner_free(other.planner);
}

#endif
