/* SPDX-License-Identifier: Apache-2.0 */
/*
** Plan: a plan that outlives its planner's next call, because what is routed by it comes back in the
** backward pass, when several later steps may have been planned. All arrays are copied into one block.
*/
#include <stdlib.h>
#include <string.h>

#include "core.h"

/* One array of a plan: where its pointer stands, and how many elements of which size it has. */
typedef struct part {
  const char *name;
  size_t at;
  int64_t n;
  size_t size;
} part;

enum { N_PARTS = 19 };

static void list_parts(const kf_plan *p, part out[N_PARTS]) {
  int64_t r = p->n_ranks, c = p->n_chunks;
  const part parts[N_PARTS] = {
    {"chunk", offsetof(kf_plan, chunk), c, sizeof(kf_chunk)},
    {"seq_off", offsetof(kf_plan, seq_off), p->n_seqs + 1, 8},
    {"send_off", offsetof(kf_plan, send_off), r + 1, 8},
    {"home_row", offsetof(kf_plan, home_row), c, 8},
    {"hold_off", offsetof(kf_plan, hold_off), r + 1, 8},
    {"part_off", offsetof(kf_plan, part_off), KF_N_PARTS * r + 1, 8},
    {"hold", offsetof(kf_plan, hold), c, 8},
    {"hold_row", offsetof(kf_plan, hold_row), c, 8},
    {"home_rows", offsetof(kf_plan, home_rows), r, 8},
    {"hold_rows", offsetof(kf_plan, hold_rows), r, 8},
    {"segment_off", offsetof(kf_plan, segment_off), r + 1, 8},
    {"segment", offsetof(kf_plan, segment), p->segment_off[r], sizeof(kf_segment)},
    {"route_off", offsetof(kf_plan, route_off), r + 1, 8},
    {"route", offsetof(kf_plan, route), p->route_off[r], sizeof(kf_pair)},
    {"ulysses_off", offsetof(kf_plan, ulysses_off), r + 1, 8},
    {"ulysses", offsetof(kf_plan, ulysses), p->ulysses_off[r], sizeof(kf_pair)},
    {"compute_s", offsetof(kf_plan, compute_s), r, 8},
    {"comm_s", offsetof(kf_plan, comm_s), r, 8},
    {"load_tokens", offsetof(kf_plan, load_tokens), r, 8},
  };
  memcpy(out, parts, sizeof parts);
}

static const void *pointer_of(const kf_plan *p, const part *which) {
  const void *pointer;
  memcpy(&pointer, (const char *)p + which->at, sizeof pointer);
  return pointer;
}

static PyTypeObject *plan_type;

PyObject *kfpy_plan_copy(const kf_plan *plan) {
  part parts[N_PARTS + 1];
  size_t n_bytes = 0;
  list_parts(plan, parts);
  /* Not one of the arrays that Python asks for by name, but a picture needs it. */
  parts[N_PARTS] = (part){NULL, offsetof(kf_plan, before_s), plan->n_ranks, 8};
  for (int i = 0; i <= N_PARTS; i++) n_bytes += (size_t)parts[i].n * parts[i].size;
  kfpy_plan *self = (kfpy_plan *)kfpy_new(plan_type);
  if (!self) return NULL;
  self->plan = *plan;
  self->block = malloc(n_bytes + 1);
  if (!self->block) {
    Py_DECREF((PyObject *)self);
    return PyErr_NoMemory();
  }
  char *at = self->block;
  for (int i = 0; i <= N_PARTS; i++) { /* all sizes are multiples of 8 */
    size_t size = (size_t)parts[i].n * parts[i].size;
    if (size > 0) memcpy(at, pointer_of(plan, &parts[i]), size);
    memcpy((char *)&self->plan + parts[i].at, &at, sizeof at);
    at += size;
  }
  return (PyObject *)self;
}

static void plan_free(PyObject *self) {
  free(((kfpy_plan *)self)->block);
  kfpy_release(self);
}

static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *names) {
  (void)type, (void)args, (void)names;
  PyErr_SetString(PyExc_TypeError, "a Plan is made by a Planner or a Scheduler");
  return NULL;
}

static PyObject *plan_array(PyObject *self, PyObject *args) {
  const kf_plan *p = &((kfpy_plan *)self)->plan;
  const char *name;
  part parts[N_PARTS];
  if (!PyArg_ParseTuple(args, "s", &name)) return NULL;
  list_parts(p, parts);
  for (int i = 0; i < N_PARTS; i++)
    if (strcmp(parts[i].name, name) == 0)
      return kfpy_bytes(pointer_of(p, &parts[i]), parts[i].n, parts[i].size);
  return PyErr_Format(PyExc_ValueError, "a plan has no array \"%s\"", name);
}

/* What is one number, and the figures. */
static PyObject *plan_facts(PyObject *self, PyObject *unused) {
  (void)unused;
  const kf_plan *p = &((kfpy_plan *)self)->plan;
  const kf_figures *f = &p->figures;
  return Py_BuildValue(
    "{sisisisisLsLsK sdsdsdsdsdsdsdsdsdsdsdsd sLsLsLsL}", "ranks", p->n_ranks, "heads", p->heads,
    "ranks_per_node", p->ranks_per_node, "auto", p->auto_bags, "seqs", (long long)p->n_seqs,
    "chunks", (long long)p->n_chunks, "hash", (unsigned long long)p->hash, "ideal_s", f->ideal_s,
    "lower_bound_s", f->lower_bound_s, "before_step_s", f->before_step_s, "before_max_over_mean",
    f->before_max_over_mean, "step_s", f->step_s, "max_over_mean", f->max_over_mean, "compute_s",
    f->compute_s, "comm_s", f->comm_s, "gap", f->gap, "speedup", f->speedup, "a2a_fraction",
    f->a2a_fraction, "moved_fraction", f->moved_fraction, "tokens", (long long)f->tokens,
    "max_tokens", (long long)f->max_tokens, "split_seqs", (long long)f->split_seqs, "moves",
    (long long)f->moves);
}

static PyObject *plan_svg(PyObject *self, PyObject *args) {
  const char *title;
  char *text = NULL;
  if (!PyArg_ParseTuple(args, "z", &title)) return NULL;
  kf_status status = kf_svg_plan(&((kfpy_plan *)self)->plan, title, &text);
  return status ? kfpy_raise(status) : kfpy_text(text);
}

static PyMethodDef methods[] = {
  {"array", plan_array, METH_VARARGS, "array(name) -> bytes: an array of kf_plan."},
  {"facts", plan_facts, METH_NOARGS, "facts() -> dict: sizes, hash and figures."},
  {"svg", plan_svg, METH_VARARGS, "svg(title) -> str"},
  {"route", kfpy_route, METH_VARARGS, "route(rank) -> exchange of rows, home to holders."},
  {"held", kfpy_held, METH_VARARGS,
   "held(rank) -> bytes: (seq, offset, length, split) of each chunk that has rows there."},
  {"sequences", kfpy_sequences, METH_VARARGS,
   "sequences(rank) -> exchange of one row a sequence, home to one row a held chunk."},
  {"ulysses", kfpy_ulysses, METH_VARARGS,
   "ulysses(rank, heads, split_only) -> exchange of (row, head) pairs, holders to owners of "
   "heads."},
  {"segments", kfpy_segments, METH_VARARGS,
   "segments(rank, heads, split_only) -> bytes: (seq, rows, offset, first_head, heads) of each."},
  {NULL, NULL, 0, NULL}};

bool kfpy_plan_init(PyObject *module) {
  static PyType_Slot slots[] = {{Py_tp_new, plan_new},
                                {Py_tp_dealloc, plan_free},
                                {Py_tp_methods, methods},
                                {Py_tp_doc, "A plan, read-only. Made by Planner and Scheduler."},
                                {0, NULL}};
  static PyType_Spec spec = {"knapformer._core.Plan", sizeof(kfpy_plan), 0, Py_TPFLAGS_DEFAULT,
                             slots};
  PyObject *type = PyType_FromSpec(&spec);
  if (!type || PyModule_AddObject(module, "Plan", type)) return false; /* the module keeps it */
  plan_type = (PyTypeObject *)type;
  return true;
}
