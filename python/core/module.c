/* SPDX-License-Identifier: Apache-2.0 */
/* The module itself, and what has no object of its own: texts, mixes, configuration, fit. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

/* --------------------------------------------------------------------------- shared */

PyObject *kfpy_raise(kf_status status) {
  PyObject *type = PyExc_RuntimeError;
  switch (status) {
  case KF_EINVAL:
  case KF_EINFEASIBLE:
  case KF_EMISMATCH: type = PyExc_ValueError; break;
  case KF_ENOMEM: type = PyExc_MemoryError; break;
  case KF_EIO: type = PyExc_OSError; break;
  default: break;
  }
  const char *sentence = kf_last_error(); /* another rank's may hold anything */
  PyObject *text = PyUnicode_DecodeUTF8(sentence, (Py_ssize_t)strlen(sentence), "replace");
  if (text) PyErr_SetObject(type, text);
  Py_XDECREF(text);
  return NULL;
}

PyObject *kfpy_none(kf_status status) {
  if (status) return kfpy_raise(status);
  Py_RETURN_NONE;
}

bool kfpy_list(PyObject *object, const char *name, size_t size, const void **out, int64_t *n) {
  char *data;
  Py_ssize_t n_bytes;
  *out = NULL, *n = 0;
  if (object == Py_None) return true;
  if (PyBytes_AsStringAndSize(object, &data, &n_bytes)) return false;
  if ((size_t)n_bytes % size) {
    PyErr_Format(PyExc_ValueError, "%s: %zd bytes, expected a multiple of %zd", name, n_bytes,
                 (Py_ssize_t)size);
    return false;
  }
  *out = data;
  *n = (int64_t)((size_t)n_bytes / size);
  return true;
}

bool kfpy_array(PyObject *object, const char *name, int64_t n, size_t size, const void **out) {
  int64_t found;
  if (!kfpy_list(object, name, size, out, &found)) return false;
  if (object == Py_None || found == n) return true;
  PyErr_Format(PyExc_ValueError, "%s: %lld values, expected %lld", name, (long long)found,
               (long long)n);
  return false;
}

kf_scheduler_options *kfpy_resolve(PyObject *config, int n_ranks) {
  const void *data = NULL;
  kf_scheduler_options *out = NULL;
  if (!kfpy_array(config, "config", 1, sizeof(kf_config), &data)) return NULL;
  kf_status status = kf_config_resolve(data, n_ranks, &out);
  if (status) kfpy_raise(status);
  return out;
}

PyObject *kfpy_text(char *text) {
  PyObject *out = PyUnicode_FromString(text);
  free(text);
  return out;
}

PyObject *kfpy_bytes(const void *data, int64_t n, size_t size) {
  return PyBytes_FromStringAndSize(n > 0 ? data : NULL, (Py_ssize_t)((size_t)n * size));
}

PyObject *kfpy_saved(kf_status status, void *data, size_t n_bytes) {
  if (status) return kfpy_raise(status);
  PyObject *out = kfpy_bytes(data, (int64_t)n_bytes, 1);
  free(data);
  return out;
}

void kfpy_append(PyObject **list, PyObject *item) {
  if (!item || PyList_Append(*list, item)) Py_CLEAR(*list);
  Py_XDECREF(item);
}

void *kfpy_enter(void *object, const char *what) {
  kfpy_guarded *self = object;
  if (self->taken)
    return PyErr_Format(PyExc_RuntimeError, "this %s is in use, by another thread or by its caller",
                        what);
  self->taken = true;
  return object;
}

PyObject *kfpy_leave(void *object, PyObject *result) {
  ((kfpy_guarded *)object)->taken = false;
  return result;
}

PyTypeObject *kfpy_add_type(PyObject *module, const char *name, size_t size, unsigned flags,
                            PyType_Slot *slots) {
  PyType_Spec spec = {name, (int)size, 0, Py_TPFLAGS_DEFAULT | flags, slots};
  PyObject *type = PyType_FromSpec(&spec);
  bool added = type && PyModule_AddObject(module, strrchr(name, '.') + 1, type) == 0;
  return added ? (PyTypeObject *)type : NULL;
}

void *kfpy_new(PyTypeObject *type) { return PyType_GenericAlloc(type, 0); }

PyObject *kfpy_made(void *object, kf_status status) {
  if (!status) return object;
  kfpy_raise(status);
  Py_DECREF((PyObject *)object);
  return NULL;
}

void kfpy_release(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
  Py_DECREF((PyObject *)type); /* as an object of a heap type must */
}

/* ----------------------------------------------------------------------------- mixes */

static PyObject *mix(PyObject *module, PyObject *args) {
  const char *name;
  int n_ranks;
  unsigned long long seed;
  kf_batch *batch;
  if (!PyArg_ParseTuple(args, "siK", &name, &n_ranks, &seed)) return NULL;
  kf_status status = kf_mix_create(name, n_ranks, seed, &batch);
  if (status) return kfpy_raise(status);
  PyObject *out = Py_BuildValue("(NN)", kfpy_bytes(batch->rank_off, batch->n_ranks + 1, 8),
                                kfpy_bytes(batch->len, batch->n_seqs, 8));
  kf_batch_free(batch);
  return out;
}

/* --------------------------------------------------------------------- configuration */

/* "key=value" texts into a config. False: raises. */
static bool assign(PyObject *texts, kf_config *c) {
  Py_ssize_t n = PySequence_Size(texts);
  for (Py_ssize_t i = 0; i < n; i++) {
    PyObject *item = PySequence_GetItem(texts, i);
    PyObject *utf8 = item ? PyUnicode_AsUTF8String(item) : NULL;
    const char *assignment = utf8 ? PyBytes_AsString(utf8) : NULL;
    if (assignment && strlen(assignment) < (size_t)PyBytes_Size(utf8)) {
      PyErr_Format(PyExc_ValueError, "%s: found a null character, expected none", assignment);
      assignment = NULL;
    }
    kf_status status = assignment ? kf_config_set(assignment, c) : KF_OK;
    Py_XDECREF(utf8);
    Py_XDECREF(item);
    if (status) kfpy_raise(status);
    if (status || !assignment) return false;
  }
  return n >= 0;
}

/* Texts, YAML over them, texts over that: one kf_config (bytes), and what Python wants to know of
** it. */
static PyObject *config(PyObject *module, PyObject *args) {
  const char *name, *text;
  Py_ssize_t n_bytes;
  PyObject *defaults, *assignments;
  int n_ranks;
  kf_config c = {0};
  kf_model shape;
  kf_status status = KF_OK;
  char cluster[KF_MAX_TEXT];
  if (!PyArg_ParseTuple(args, "Osz#Oi", &defaults, &name, &text, &n_bytes, &assignments,
                        &n_ranks) ||
      !assign(defaults, &c))
    return NULL;
  strcpy(cluster, c.cluster);
  if (text) status = kf_config_parse(name, text, (size_t)n_bytes, &c);
  if (status) return kfpy_raise(status);
  if (!assign(assignments, &c)) return NULL;
  if (!*c.cluster) strcpy(c.cluster, cluster); /* "" says nothing: a program may know better */
  status = kf_config_check(&c, n_ranks);
  if (!status) status = kf_model_parse(*c.model ? c.model : KF_DEFAULT_MODEL, &shape);
  if (status) return kfpy_raise(status);
  bool wants_times = c.cost_model == KF_COST_HISTORY || *c.steps_file || *c.metrics_file ||
                     *c.trace_file || *c.state_file;
  return Py_BuildValue("(Nss(iii)sO)", kfpy_bytes(&c, 1, sizeof c),
                       *c.bag_size ? c.bag_size : "auto", c.model, shape.dim, shape.layers,
                       shape.heads, c.cost_file, wants_times ? Py_True : Py_False);
}

/* The first rank of each bag, and the number of ranks behind the last; none for auto. */
static PyObject *bags(PyObject *module, PyObject *args) {
  const char *spec;
  int n_ranks;
  kf_bags *b;
  if (!PyArg_ParseTuple(args, "si", &spec, &n_ranks)) return NULL;
  kf_status status = kf_bags_parse(spec, n_ranks, &b);
  if (status) return kfpy_raise(status);
  PyObject *out = PyList_New(0);
  for (int32_t i = 0; out && b && i <= b->n_bags; i++)
    kfpy_append(&out, PyLong_FromLong(b->first[i]));
  kf_bags_free(b);
  return out;
}

/* ------------------------------------------------------------------------------- fit */

static PyObject *fit_dict(const kf_fit *f, const kf_model *shape) {
  return Py_BuildValue("{sdsdsdsdsdsdsdsdsdsdsLsLsi}", "linear_s", f->linear_s, "quadratic_s",
                       f->quadratic_s, "constant_s", f->constant_s, "gamma", kf_fit_gamma(f, shape),
                       "r2", f->r2, "mape", f->mape, "holdout_mape", f->holdout_mape, "power_s",
                       f->power_s, "power_p", f->power_p, "power_mape", f->power_mape, "rows",
                       (long long)f->n_rows, "outliers", (long long)f->n_outliers, "ranks",
                       f->n_ranks);
}

static PyObject *fit(PyObject *module, PyObject *args) {
  PyObject *len, *seconds, *rank;
  const void *lens_in, *seconds_in, *rank_in;
  const char *model_text;
  int64_t n;
  kf_model shape;
  kf_fit out;
  char *text = NULL;
  if (!PyArg_ParseTuple(args, "OOOz", &len, &seconds, &rank, &model_text) ||
      !kfpy_list(len, "lens", 8, &lens_in, &n) ||
      !kfpy_array(seconds, "seconds", n, 8, &seconds_in) ||
      !kfpy_array(rank, "ranks", n, 8, &rank_in))
    return NULL;
  kf_status status = kf_model_parse(model_text ? model_text : KF_DEFAULT_MODEL, &shape);
  if (status) return kfpy_raise(status);
  kf_fit_row *row = malloc((size_t)(n + 1) * sizeof *row);
  if (!row) return PyErr_NoMemory();
  for (int64_t i = 0; i < n; i++)
    row[i] = (kf_fit_row){((const int64_t *)lens_in)[i], ((const double *)seconds_in)[i],
                          rank_in ? (int32_t)((const int64_t *)rank_in)[i] : 0};
  status = kf_fit_rows(row, n, NULL, NULL, &out);
  free(row);
  if (!status) status = kf_fit_text(&out, &text);
  if (status) return kfpy_raise(status);
  return Py_BuildValue("(NN)", fit_dict(&out, &shape), kfpy_text(text));
}

static PyObject *replace_file(PyObject *module, PyObject *args) {
  const char *path, *data;
  Py_ssize_t n_bytes;
  if (!PyArg_ParseTuple(args, "sy#", &path, &data, &n_bytes)) return NULL;
  return kfpy_none(kf_file_replace(path, data, (size_t)n_bytes));
}

/* ----------------------------------------------------------------------------- module */

static PyMethodDef functions[] = {
  {"mix", mix, METH_VARARGS, "mix(name, ranks, seed) -> (rank_off, len)"},
  {"config", config, METH_VARARGS,
   "config(defaults, name, yaml, assignments, ranks) -> (config, bags, model, (dim, layers, "
   "heads), cost_file, wants_times)"},
  {"bags", bags, METH_VARARGS, "bags(spec, ranks) -> [first rank of each bag, .., ranks]"},
  {"fit", fit, METH_VARARGS, "fit(lens, seconds, ranks, model) -> (dict, text)"},
  {"replace_file", replace_file, METH_VARARGS, "replace_file(path, data)"},
  {"attention", kfpy_attention, METH_VARARGS,
   "attention(backward, segments, head_dim, threads, scale, addresses)"},
  {"adaln", kfpy_adaln, METH_VARARGS, "adaln(backward, shape, addresses)"},
#ifdef KF_HAVE_CUDA
  {"adaln_cuda", kfpy_adaln_cuda, METH_VARARGS,
   "adaln_cuda((what, shape, addresses), stream, workspace, bytes): what is 0 forward, 1 backward, "
   "2 prepare, 3 -> bytes of workspace"},
#endif
  {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                                        "knapformer._core",
                                        "knapformer.h for Python.",
                                        -1,
                                        functions,
                                        NULL,
                                        NULL,
                                        NULL,
                                        NULL};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void) {
  PyObject *module = PyModule_Create(&definition);
  if (module && !PyModule_AddStringConstant(module, "version", kf_version()) &&
      kfpy_plan_init(module) && kfpy_planner_init(module) && kfpy_sampler_init(module))
    return module;
  Py_XDECREF(module);
  return NULL;
}
