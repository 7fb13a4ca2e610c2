/* SPDX-License-Identifier: Apache-2.0 */
/* Sampler: an epoch's batches. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

typedef struct sampler {
  PyObject_HEAD kf_sampler *sampler;
  kfpy_guard guard;
} sampler;

static PyObject *sampler_new(PyTypeObject *type, PyObject *args, PyObject *names) {
  PyObject *cost, *len;
  const char *rule;
  const kf_cost *cost_in;
  const void *len_in;
  int power, mode, keep_all;
  long long mem_tokens, match_len, window;
  unsigned long long seed;
  int64_t n;
  kf_sampler_options o = {0};
  if (!PyArg_ParseTuple(args, "sOLLdidiiKLpO", &rule, &cost, &mem_tokens, &match_len,
                        &o.bucket.comp_s, &power, &o.bucket.p, &o.bucket.n_ranks, &mode, &seed,
                        &window, &keep_all, &len) ||
      !kfpy_cost(cost, &cost_in) || !kfpy_list(len, "lens", 8, &len_in, &n))
    return NULL;
  kf_status status = kf_rule_parse(rule, &o.bucket.rule);
  if (status) return kfpy_raise(status);
  o.bucket.cost = *cost_in;
  o.bucket.mem_tokens = mem_tokens;
  o.bucket.match_len = match_len;
  o.bucket.power = (kf_power)power;
  o.mode = (kf_step_mode)mode;
  o.seed = seed, o.window = window, o.keep_all = keep_all;
  sampler *self = (sampler *)kfpy_new(type);
  if (!self) return NULL;
  Py_BEGIN_ALLOW_THREADS;
  status = kf_sampler_create(&o, len_in, n, &self->sampler);
  Py_END_ALLOW_THREADS;
  if (!status) return (PyObject *)self;
  kfpy_raise(status);
  Py_DECREF((PyObject *)self);
  return NULL;
}

static void sampler_free(PyObject *self) {
  kf_sampler_free(((sampler *)self)->sampler);
  kfpy_release(self);
}

static PyObject *set_epoch(PyObject *object, PyObject *args) {
  sampler *self = (sampler *)object;
  long long epoch;
  kf_status status;
  if (!PyArg_ParseTuple(args, "L", &epoch) || !kfpy_enter(&self->guard, "sampler")) return NULL;
  Py_BEGIN_ALLOW_THREADS;
  status = kf_sampler_set_epoch(self->sampler, epoch);
  Py_END_ALLOW_THREADS;
  self->guard.taken = false;
  return kfpy_none(status);
}

/* The samples of one step: rank r's are sample[rank_off[r]] .. */
static PyObject *next(PyObject *object, PyObject *unused) {
  sampler *self = (sampler *)object;
  const kf_sampled *s;
  kf_status status;
  if (!kfpy_enter(&self->guard, "sampler")) return NULL;
  Py_BEGIN_ALLOW_THREADS;
  status = kf_sampler_next(self->sampler, &s);
  Py_END_ALLOW_THREADS;
  self->guard.taken = false;
  if (status) return kfpy_raise(status);
  if (!s) Py_RETURN_NONE;
  return Py_BuildValue("(NN)", kfpy_bytes(s->batch.rank_off, s->batch.n_ranks + 1, 8),
                       kfpy_bytes(s->sample, s->batch.n_seqs, 8));
}

static PyObject *read_steps(const kf_sampler *sampled) {
  return Py_BuildValue("(LL)", (long long)kf_sampler_step(sampled),
                       (long long)kf_sampler_steps(sampled));
}

static PyObject *set_cost(PyObject *object, PyObject *args) {
  sampler *self = (sampler *)object;
  PyObject *cost;
  const kf_cost *cost_in;
  long long at;
  kf_status status;
  if (!PyArg_ParseTuple(args, "LO", &at, &cost) || !kfpy_cost(cost, &cost_in) ||
      !kfpy_enter(&self->guard, "sampler"))
    return NULL;
  Py_BEGIN_ALLOW_THREADS;
  status = kf_sampler_set_cost(self->sampler, at, cost_in);
  Py_END_ALLOW_THREADS;
  self->guard.taken = false;
  return kfpy_none(status);
}

static PyObject *read_save(const kf_sampler *sampled) {
  void *data;
  size_t n_bytes;
  kf_status status = kf_sampler_save(sampled, &data, &n_bytes);
  if (status) return kfpy_raise(status);
  PyObject *out = kfpy_bytes(data, (int64_t)n_bytes, 1);
  free(data);
  return out;
}

static PyObject *restore(PyObject *object, PyObject *args) {
  sampler *self = (sampler *)object;
  const char *name, *data;
  Py_ssize_t n_bytes;
  if (!PyArg_ParseTuple(args, "sy#", &name, &data, &n_bytes) ||
      !kfpy_enter(&self->guard, "sampler"))
    return NULL;
  return kfpy_leave(&self->guard,
                    kfpy_none(kf_sampler_restore(self->sampler, name, data, (size_t)n_bytes)));
}

static PyObject *read_hash(const kf_sampler *sampled) {
  return PyLong_FromUnsignedLongLong(kf_sampler_hash(sampled));
}

static PyObject *read_figures(const kf_sampler *sampled) {
  kf_epoch e;
  kf_status status = kf_sampler_figures(sampled, &e);
  if (status) return kfpy_raise(status);
  return Py_BuildValue(
    "{sLsLsLsLsLsLsLsLsLsLsLsLsdsdsdsdsdsdsd}", "epoch", (long long)e.epoch, "steps",
    (long long)e.n_steps, "batches", (long long)e.n_batches, "samples", (long long)e.n_samples,
    "tokens", (long long)e.n_tokens, "dropped_batches", (long long)e.dropped_batches,
    "dropped_samples", (long long)e.dropped_samples, "dropped_tokens", (long long)e.dropped_tokens,
    "underfilled_batches", (long long)e.underfilled_batches, "split_batches",
    (long long)e.split_batches, "over_batches", (long long)e.over_batches, "mixed_steps",
    (long long)e.mixed_steps, "imbalance_rate", e.imbalance_rate, "mean_memory_use",
    e.mean_memory_use, "max_memory_use", e.max_memory_use, "mean_compute_use", e.mean_compute_use,
    "max_compute_use", e.max_compute_use, "predicted_s", e.predicted_s, "predicted_tokens_per_s",
    e.predicted_tokens_per_s);
}

static PyObject *read_buckets(const kf_sampler *sampled) {
  const kf_buckets *b = kf_sampler_buckets(sampled);
  PyObject *out = PyList_New(0);
  for (int64_t i = 0; out && i < b->n; i++) {
    PyObject *row =
      Py_BuildValue("(LLLd)", (long long)b->bucket[i].len, (long long)b->bucket[i].count,
                    (long long)b->bucket[i].batch_size, b->bucket[i].work_s);
    if (!row || PyList_Append(out, row)) {
      Py_DECREF(out);
      out = NULL;
    }
    Py_XDECREF(row);
  }
  return out;
}

/* Also what only reads must be alone: another thread may be inside, without the GIL. */
static PyObject *read_alone(PyObject *object, PyObject *(*read)(const kf_sampler *)) {
  sampler *self = (sampler *)object;
  if (!kfpy_enter(&self->guard, "sampler")) return NULL;
  return kfpy_leave(&self->guard, read(self->sampler));
}

static PyObject *steps(PyObject *object, PyObject *unused) {
  return read_alone(object, read_steps);
}

static PyObject *save(PyObject *object, PyObject *unused) {
  return read_alone(object, read_save);
}

static PyObject *hash(PyObject *object, PyObject *unused) {
  return read_alone(object, read_hash);
}

static PyObject *figures(PyObject *object, PyObject *unused) {
  return read_alone(object, read_figures);
}

static PyObject *buckets(PyObject *object, PyObject *unused) {
  return read_alone(object, read_buckets);
}

static PyMethodDef methods[] = {
  {"set_epoch", set_epoch, METH_VARARGS, "set_epoch(epoch)"},
  {"next", next, METH_NOARGS, "next() -> (rank_off, sample), or None after the last step"},
  {"steps", steps, METH_NOARGS, "steps() -> (next step, steps of this epoch)"},
  {"set_cost", set_cost, METH_VARARGS, "set_cost(at, cost)"},
  {"save", save, METH_NOARGS, "save() -> bytes"},
  {"restore", restore, METH_VARARGS, "restore(name, data)"},
  {"hash", hash, METH_NOARGS, "hash() -> int"},
  {"figures", figures, METH_NOARGS, "figures() -> dict"},
  {"buckets", buckets, METH_NOARGS, "buckets() -> [(len, count, batch_size, work_s)]"},
  {NULL, NULL, 0, NULL}};

bool kfpy_sampler_init(PyObject *module) {
  static PyType_Slot slots[] = {
    {Py_tp_new, sampler_new},
    {Py_tp_dealloc, sampler_free},
    {Py_tp_methods, methods},
    {Py_tp_doc, "Sampler(rule, cost, mem_tokens, match_len, comp_s, power, p, ranks, mode, seed, "
                "window, keep_all, lens)"},
    {0, NULL}};
  static PyType_Spec spec = {"knapformer._core.Sampler", sizeof(sampler), 0, Py_TPFLAGS_DEFAULT,
                             slots};
  PyObject *type = PyType_FromSpec(&spec);
  return type && PyModule_AddObject(module, "Sampler", type) == 0;
}
