/* SPDX-License-Identifier: Apache-2.0 */
/* Sampler: an epoch's batches. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

typedef struct sampler {
  kfpy_guarded guarded;
  kf_sampler *sampler;
} sampler;

static PyObject *sampler_new(PyTypeObject *type, PyObject *args, PyObject *names) {
  PyObject *config, *len;
  const char *rule;
  const void *len_in;
  int power, mode, keep_all;
  long long mem_tokens, match_len, window;
  unsigned long long seed;
  int64_t n;
  kf_sampler_options o = {0};
  if (!PyArg_ParseTuple(args, "sOLLdidiiKLpO", &rule, &config, &mem_tokens, &match_len,
                        &o.bucket.comp_s, &power, &o.bucket.p, &o.bucket.n_ranks, &mode, &seed,
                        &window, &keep_all, &len) ||
      !kfpy_list(len, "lens", 8, &len_in, &n))
    return NULL;
  kf_status status = kf_rule_parse(rule, &o.bucket.rule);
  if (status) return kfpy_raise(status);
  kf_scheduler_options *resolved = kfpy_resolve(config, o.bucket.n_ranks);
  if (!resolved) return NULL;
  o.bucket.cost = resolved->plan.cost;
  kf_scheduler_options_free(resolved);
  o.bucket.mem_tokens = mem_tokens;
  o.bucket.match_len = match_len;
  o.bucket.power = (kf_power)power;
  o.mode = (kf_step_mode)mode;
  o.seed = seed, o.window = window, o.keep_all = keep_all;
  sampler *self = kfpy_new(type);
  if (!self) return NULL;
  Py_BEGIN_ALLOW_THREADS;
  status = kf_sampler_create(&o, len_in, n, &self->sampler);
  Py_END_ALLOW_THREADS;
  return kfpy_made(self, status);
}

static void sampler_free(PyObject *self) {
  kf_sampler_free(((sampler *)self)->sampler);
  kfpy_release(self);
}

static PyObject *set_epoch(PyObject *object, PyObject *args) {
  sampler *self;
  long long epoch;
  kf_status status;
  if (!PyArg_ParseTuple(args, "L", &epoch) || !(self = kfpy_enter(object, "sampler"))) return NULL;
  Py_BEGIN_ALLOW_THREADS;
  status = kf_sampler_set_epoch(self->sampler, epoch);
  Py_END_ALLOW_THREADS;
  return kfpy_leave(self, kfpy_none(status));
}

/* The samples of one step: rank r's are sample[rank_off[r]] .. */
static PyObject *next(PyObject *object, PyObject *unused) {
  sampler *self = kfpy_enter(object, "sampler");
  const kf_sampled *s;
  kf_status status;
  if (!self) return NULL;
  Py_BEGIN_ALLOW_THREADS;
  status = kf_sampler_next(self->sampler, &s);
  Py_END_ALLOW_THREADS;
  if (status || !s) return kfpy_leave(self, kfpy_none(status));
  return kfpy_leave(self,
                    Py_BuildValue("(NN)", kfpy_bytes(s->batch.rank_off, s->batch.n_ranks + 1, 8),
                                  kfpy_bytes(s->sample, s->batch.n_seqs, 8)));
}

static PyObject *steps(PyObject *object, PyObject *unused) {
  sampler *self = kfpy_enter(object, "sampler");
  if (!self) return NULL;
  return kfpy_leave(self, Py_BuildValue("(LL)", (long long)kf_sampler_step(self->sampler),
                                        (long long)kf_sampler_steps(self->sampler)));
}

/* A cost is the bytes of its struct, as Scheduler.progress has it: Python does not look inside. */
static PyObject *set_cost(PyObject *object, PyObject *args) {
  sampler *self;
  PyObject *cost;
  const void *cost_in;
  long long at;
  kf_status status;
  if (!PyArg_ParseTuple(args, "LO", &at, &cost) ||
      !kfpy_array(cost, "cost", 1, sizeof(kf_cost), &cost_in))
    return NULL;
  if (!cost_in) return PyErr_Format(PyExc_ValueError, "cost: None, expected a cost");
  if (!(self = kfpy_enter(object, "sampler"))) return NULL;
  Py_BEGIN_ALLOW_THREADS;
  status = kf_sampler_set_cost(self->sampler, at, cost_in);
  Py_END_ALLOW_THREADS;
  return kfpy_leave(self, kfpy_none(status));
}

static PyObject *save(PyObject *object, PyObject *unused) {
  sampler *self = kfpy_enter(object, "sampler");
  void *data = NULL;
  size_t n_bytes = 0;
  if (!self) return NULL;
  kf_status status = kf_sampler_save(self->sampler, &data, &n_bytes);
  return kfpy_leave(self, kfpy_saved(status, data, n_bytes));
}

static PyObject *restore(PyObject *object, PyObject *args) {
  sampler *self;
  const char *name, *data;
  Py_ssize_t n_bytes;
  if (!PyArg_ParseTuple(args, "sy#", &name, &data, &n_bytes) ||
      !(self = kfpy_enter(object, "sampler")))
    return NULL;
  kf_status status = kf_sampler_restore(self->sampler, name, data, (size_t)n_bytes);
  return kfpy_leave(self, kfpy_none(status));
}

static PyObject *hash(PyObject *object, PyObject *unused) {
  sampler *self = kfpy_enter(object, "sampler");
  if (!self) return NULL;
  return kfpy_leave(self, PyLong_FromUnsignedLongLong(kf_sampler_hash(self->sampler)));
}

static PyObject *figures_dict(const kf_epoch *e) {
  return Py_BuildValue(
    "{sLsLsLsLsLsLsLsLsLsLsLsLsdsdsdsdsdsdsd}", "epoch", (long long)e->epoch, "steps",
    (long long)e->n_steps, "batches", (long long)e->n_batches, "samples", (long long)e->n_samples,
    "tokens", (long long)e->n_tokens, "dropped_batches", (long long)e->dropped_batches,
    "dropped_samples", (long long)e->dropped_samples, "dropped_tokens",
    (long long)e->dropped_tokens, "underfilled_batches", (long long)e->underfilled_batches,
    "split_batches", (long long)e->split_batches, "over_batches", (long long)e->over_batches,
    "mixed_steps", (long long)e->mixed_steps, "imbalance_rate", e->imbalance_rate,
    "mean_memory_use", e->mean_memory_use, "max_memory_use", e->max_memory_use, "mean_compute_use",
    e->mean_compute_use, "max_compute_use", e->max_compute_use, "predicted_s", e->predicted_s,
    "predicted_tokens_per_s", e->predicted_tokens_per_s);
}

static PyObject *figures(PyObject *object, PyObject *unused) {
  sampler *self = kfpy_enter(object, "sampler");
  kf_epoch e;
  if (!self) return NULL;
  kf_status status = kf_sampler_figures(self->sampler, &e);
  return kfpy_leave(self, status ? kfpy_raise(status) : figures_dict(&e));
}

static PyObject *buckets(PyObject *object, PyObject *unused) {
  sampler *self = kfpy_enter(object, "sampler");
  if (!self) return NULL;
  const kf_buckets *b = kf_sampler_buckets(self->sampler);
  PyObject *out = PyList_New(0);
  for (int64_t i = 0; out && i < b->n; i++)
    kfpy_append(&out,
                Py_BuildValue("(LLLd)", (long long)b->bucket[i].len, (long long)b->bucket[i].count,
                              (long long)b->bucket[i].batch_size, b->bucket[i].work_s));
  return kfpy_leave(self, out);
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

static PyType_Slot slots[] = {
  {Py_tp_new, sampler_new},
  {Py_tp_dealloc, sampler_free},
  {Py_tp_methods, methods},
  {Py_tp_doc, "Sampler(rule, config, mem_tokens, match_len, comp_s, power, p, ranks, mode, seed, "
              "window, keep_all, lens)"},
  {0, NULL}};

bool kfpy_sampler_init(PyObject *module) {
  return kfpy_add_type(module, "knapformer._core.Sampler", sizeof(sampler), 0, slots);
}
