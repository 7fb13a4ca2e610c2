/* SPDX-License-Identifier: Apache-2.0 */
/*
** Plan: a plan that outlives its planner's next call, because what is routed by it comes back in
** the backward pass, when several later steps may have been planned. Its arrays are copied to one
** block.
**
** And a rank's kf_exchange for a transport that has one all-to-all with uneven parts and can gather
** and scatter rows by index: torch.distributed on any device.
**
**     in (n_in rows) --send_index--> | to rank 0 | to rank 1 | .. |
**                                     all-to-all, send_count[q] rows to q, recv_count[q] from q
**                    | from rank 0 | from rank 1 | .. | --recv_index--> out (n_out rows)
**     in [from, from + n) --------------- stays --------------------> out [to, to + n)
*/
#include <stdlib.h>
#include <string.h>

#include "core.h"

typedef struct planned {
  PyObject_HEAD kf_plan plan; /* its arrays lie in block */
  void *block;
} planned;

/* One array of a plan: where its pointer stands, and how many elements of which size it has. */
typedef struct field {
  const char *name;
  size_t at;
  int64_t n;
  size_t size; /* a multiple of 8 */
} field;

enum { N_FIELDS = 17 };

/* All but segments, which exchanges have for any number of heads, and loads, which nobody reads. */
static void list_fields(const kf_plan *p, field out[N_FIELDS]) {
  int64_t r = p->n_ranks, c = p->n_chunks;
  const field fields[N_FIELDS] = {
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
    {"route_off", offsetof(kf_plan, route_off), r + 1, 8},
    {"route", offsetof(kf_plan, route), p->route_off[r], sizeof(kf_pair)},
    {"ulysses_off", offsetof(kf_plan, ulysses_off), r + 1, 8},
    {"ulysses", offsetof(kf_plan, ulysses), p->ulysses_off[r], sizeof(kf_pair)},
    {"compute_s", offsetof(kf_plan, compute_s), r, 8},
    {"comm_s", offsetof(kf_plan, comm_s), r, 8},
    {"before_s", offsetof(kf_plan, before_s), r, 8},
  };
  memcpy(out, fields, sizeof fields);
}

static const void *pointer_of(const kf_plan *p, const field *which) {
  const void *pointer;
  memcpy(&pointer, (const char *)p + which->at, sizeof pointer);
  return pointer;
}

static PyTypeObject *plan_type;

PyObject *kfpy_plan_copy(const kf_plan *plan) {
  field fields[N_FIELDS];
  size_t n_bytes = 0;
  list_fields(plan, fields);
  for (int i = 0; i < N_FIELDS; i++) n_bytes += (size_t)fields[i].n * fields[i].size;
  planned *self = kfpy_new(plan_type);
  if (!self) return NULL;
  self->block = malloc(n_bytes + 1);
  if (!self->block) {
    Py_DECREF((PyObject *)self);
    return PyErr_NoMemory();
  }
  self->plan = *plan;
  self->plan.segment_off = self->plan.load_tokens = NULL;
  self->plan.segment = NULL;
  char *at = self->block;
  for (int i = 0; i < N_FIELDS; i++) {
    size_t size = (size_t)fields[i].n * fields[i].size;
    if (size > 0) memcpy(at, pointer_of(plan, &fields[i]), size);
    memcpy((char *)&self->plan + fields[i].at, &at, sizeof at);
    at += size;
  }
  return (PyObject *)self;
}

static void plan_free(PyObject *self) {
  free(((planned *)self)->block);
  kfpy_release(self);
}

static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *names) {
  PyErr_SetString(PyExc_TypeError, "a Plan is made by a Planner or a Scheduler");
  return NULL;
}

static PyObject *plan_array(PyObject *self, PyObject *args) {
  const kf_plan *p = &((planned *)self)->plan;
  const char *name;
  field fields[N_FIELDS];
  if (!PyArg_ParseTuple(args, "s", &name)) return NULL;
  list_fields(p, fields);
  for (int i = 0; i < N_FIELDS; i++)
    if (strcmp(fields[i].name, name) == 0)
      return kfpy_bytes(pointer_of(p, &fields[i]), fields[i].n, fields[i].size);
  return PyErr_Format(PyExc_ValueError, "a plan has no array \"%s\"", name);
}

/* What is one number, and the figures. */
static PyObject *plan_facts(PyObject *self, PyObject *unused) {
  const kf_plan *p = &((planned *)self)->plan;
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
  kf_status status = kf_svg_plan(&((planned *)self)->plan, title, &text);
  return status ? kfpy_raise(status) : kfpy_text(text);
}

/* --------------------------------------------------------------------------- exchanges */

/* Does run i of what stays lie in one piece on both sides? The others are sent, to the rank
** itself. */
static bool is_flat(const kf_exchange *x, int64_t i) {
  const kf_run *a = &x->run[0][x->run_off[0][x->n_peers] + i];
  const kf_run *b = &x->run[1][x->run_off[1][x->n_peers] + i];
  return a->width == a->stride && b->width == b->stride;
}

static int64_t count_stay(const kf_exchange *x) {
  return x->run_off[0][x->n_peers + 1] - x->run_off[0][x->n_peers];
}

static PyObject *list_stay(const kf_exchange *x) {
  PyObject *list = PyList_New(0);
  for (int64_t i = 0; list && i < count_stay(x); i++) {
    const kf_run *from = &x->run[0][x->run_off[0][x->n_peers] + i];
    const kf_run *to = &x->run[1][x->run_off[1][x->n_peers] + i];
    if (!is_flat(x, i)) continue;
    kfpy_append(&list, Py_BuildValue("(LLL)", (long long)from->first, (long long)to->first,
                                     (long long)(from->n * from->width)));
  }
  return list;
}

/* The units of a list of runs: of a peer, or of what stays and is sent nevertheless. */
static int64_t *expand(const kf_exchange *x, int side, int64_t list, int64_t *out) {
  const int64_t *run_off = x->run_off[side];
  for (int64_t r = run_off[list]; r < run_off[list + 1]; r++) {
    const kf_run *run = &x->run[side][r];
    if (list == x->n_peers && is_flat(x, r - run_off[list])) continue;
    bool flat = run->width == run->stride; /* then it is one long piece */
    int64_t n = flat ? 1 : run->n, width = flat ? run->n * run->width : run->width;
    for (int64_t i = 0; i < n; i++)
      for (int64_t k = 0; k < width; k++) *out++ = run->first + i * run->stride + k;
  }
  return out;
}

/* What goes to, or comes from, each rank, by rank: (which units, how many of each rank). */
static PyObject *list_side(const kf_exchange *x, int side) {
  const kf_run *stay = &x->run[side][x->run_off[side][x->n_peers]];
  int64_t own = 0, n = 0, p;
  for (int64_t i = 0; i < count_stay(x); i++) own += is_flat(x, i) ? 0 : stay[i].n * stay[i].width;
  for (p = 0; p < x->n_peers; p++) n += side == 0 ? x->peer[p].send : x->peer[p].recv;
  PyObject *index = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(n + own) * 8);
  PyObject *count = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)x->n_ranks * 8);
  if (index && count) {
    int64_t *at = (int64_t *)PyByteArray_AsString(index);
    int64_t *of_rank = (int64_t *)PyByteArray_AsString(count);
    memset(of_rank, 0, (size_t)x->n_ranks * 8);
    of_rank[x->rank] = own;
    for (p = 0; p < x->n_peers; p++)
      of_rank[x->peer[p].peer] = side == 0 ? x->peer[p].send : x->peer[p].recv;
    for (p = 0; p < x->n_peers && x->peer[p].peer < x->rank; p++) at = expand(x, side, p, at);
    at = expand(x, side, x->n_peers, at);
    for (; p < x->n_peers; p++) at = expand(x, side, p, at);
  }
  return Py_BuildValue("(NN)", index, count);
}

static kf_exchange *make_table(PyObject *self, int kind, int rank, int heads) {
  kf_exchange *x = NULL;
  kf_status status = kf_exchange_create(&((planned *)self)->plan, rank, kind, heads, &x);
  if (status) kfpy_raise(status);
  return x;
}

static PyObject *plan_exchange(PyObject *self, PyObject *args) {
  int kind, rank, heads = 0;
  if (!PyArg_ParseTuple(args, "ii|i", &kind, &rank, &heads)) return NULL;
  kf_exchange *x = make_table(self, kind, rank, heads);
  if (!x) return NULL;
  PyObject *out =
    Py_BuildValue("(LLNNNO)", (long long)x->n_units[0], (long long)x->n_units[1], list_side(x, 0),
                  list_side(x, 1), list_stay(x), x->busy ? Py_True : Py_False);
  kf_exchange_free(x);
  return out;
}

static PyObject *plan_held(PyObject *self, PyObject *args) {
  int rank;
  if (!PyArg_ParseTuple(args, "i", &rank)) return NULL;
  kf_exchange *x = make_table(self, KF_EXCHANGE_SEQUENCES, rank, 0);
  if (!x) return NULL;
  PyObject *out = kfpy_bytes(x->held, x->part_off[KF_N_PARTS], sizeof *x->held);
  kf_exchange_free(x);
  return out;
}

static PyObject *plan_segments(PyObject *self, PyObject *args) {
  int kind, rank, heads;
  if (!PyArg_ParseTuple(args, "iii", &kind, &rank, &heads)) return NULL;
  kf_exchange *x = make_table(self, kind, rank, heads);
  if (!x) return NULL;
  PyObject *out = kfpy_bytes(x->segment, x->n_segments, sizeof *x->segment);
  kf_exchange_free(x);
  return out;
}

static PyMethodDef methods[] = {
  {"array", plan_array, METH_VARARGS, "array(name) -> bytes: an array of kf_plan."},
  {"facts", plan_facts, METH_NOARGS, "facts() -> dict: sizes, hash and figures."},
  {"svg", plan_svg, METH_VARARGS, "svg(title) -> str"},
  {"exchange", plan_exchange, METH_VARARGS,
   "exchange(kind, rank, heads) -> (n_in, n_out, (send_index, send_count), (recv_index, "
   "recv_count), "
   "stay, busy): a kf_exchange, indices and counts as 64-bit integers, stay a list of (from, to, "
   "n)."},
  {"held", plan_held, METH_VARARGS,
   "held(rank) -> bytes: the kf_chunk of each that has rows there, in order."},
  {"segments", plan_segments, METH_VARARGS,
   "segments(kind, rank, heads) -> bytes: the kf_segment of each."},
  {NULL, NULL, 0, NULL}};

static PyType_Slot slots[] = {{Py_tp_new, plan_new},
                              {Py_tp_dealloc, plan_free},
                              {Py_tp_methods, methods},
                              {Py_tp_doc, "A plan, read-only. Made by Planner and Scheduler."},
                              {0, NULL}};

bool kfpy_plan_init(PyObject *module) {
  plan_type = kfpy_add_type(module, "knapformer._core.Plan", sizeof(planned), 0, slots);
  return plan_type;
}
