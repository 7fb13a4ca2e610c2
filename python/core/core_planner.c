/* SPDX-License-Identifier: Apache-2.0 */
/* Planner and Scheduler: batches in, plans out; and Gather, what ranks tell each other for it. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

/* A batch from bytes: rank_off (n_ranks + 1), len, and profile or None. */
static bool read_batch(PyObject *args, kf_batch *out) {
  PyObject *rank_off, *len, *profile;
  const void *off, *lens, *profiles;
  int64_t n_off, n;
  if (!PyArg_ParseTuple(args, "OOO", &rank_off, &len, &profile) ||
      !kfpy_list(rank_off, "rank_off", 8, &off, &n_off) || !kfpy_list(len, "len", 8, &lens, &n) ||
      !kfpy_array(profile, "profile", n, sizeof(kf_profile), &profiles))
    return false;
  *out = (kf_batch){.n_ranks = (int32_t)(n_off - 1),
                    .n_seqs = n,
                    .rank_off = off,
                    .len = lens,
                    .profile = profiles};
  return true;
}

/* -------------------------------------------------------------------------- planner */

typedef struct planner {
  kfpy_guarded guarded;
  kf_planner *planner;
} planner;

static PyObject *planner_new(PyTypeObject *type, PyObject *args, PyObject *names) {
  PyObject *config, *speed, *mem_tokens;
  const void *speeds, *caps;
  int n_ranks;
  if (!PyArg_ParseTuple(args, "OiOO", &config, &n_ranks, &speed, &mem_tokens) ||
      !kfpy_array(speed, "speeds", n_ranks, 8, &speeds) ||
      !kfpy_array(mem_tokens, "mem_tokens", n_ranks, 8, &caps))
    return NULL;
  kf_scheduler_options *o = kfpy_resolve(config, n_ranks);
  planner *self = o ? kfpy_new(type) : NULL;
  PyObject *out = NULL;
  if (self) {
    o->plan.speed = speeds;
    o->plan.mem_tokens = caps;
    out = kfpy_made(self, kf_planner_create(&o->plan, &self->planner));
  }
  kf_scheduler_options_free(o);
  return out;
}

static void planner_free(PyObject *self) {
  kf_planner_free(((planner *)self)->planner);
  kfpy_release(self);
}

static PyObject *planner_plan(PyObject *object, PyObject *args) {
  planner *self;
  kf_batch batch;
  const kf_plan *plan;
  kf_status status;
  if (!read_batch(args, &batch) || !(self = kfpy_enter(object, "planner"))) return NULL;
  Py_BEGIN_ALLOW_THREADS;
  status = kf_planner_plan(self->planner, &batch, &plan);
  Py_END_ALLOW_THREADS;
  return kfpy_leave(self, status ? kfpy_raise(status) : kfpy_plan_copy(plan));
}

static PyMethodDef planner_methods[] = {
  {"plan", planner_plan, METH_VARARGS, "plan(rank_off, len, profile) -> Plan"},
  {NULL, NULL, 0, NULL}};

static PyType_Slot planner_slots[] = {{Py_tp_new, planner_new},
                                      {Py_tp_dealloc, planner_free},
                                      {Py_tp_methods, planner_methods},
                                      {Py_tp_doc, "Planner(config, ranks, speeds, mem_tokens)"},
                                      {0, NULL}};

/* ------------------------------------------------------------------------- scheduler */

typedef struct scheduler {
  kfpy_guarded guarded;
  kf_scheduler *scheduler;
  kf_config config;
  kf_outputs *outputs; /* made when first written to */
  PyObject *log;       /* called with (level, line), or NULL */
} scheduler;

static void call_log(void *user, kf_log_level level, const char *line) {
  scheduler *self = user;
  PyGILState_STATE state = PyGILState_Ensure();
  PyObject *answer = self->log ? PyObject_CallFunction(self->log, "is", (int)level, line) : NULL;
  if (!answer && PyErr_Occurred()) PyErr_WriteUnraisable(self->log);
  Py_XDECREF(answer);
  PyGILState_Release(state);
}

static PyObject *scheduler_new(PyTypeObject *type, PyObject *args, PyObject *names) {
  PyObject *config, *speed, *log;
  const void *speeds;
  int n_ranks;
  if (!PyArg_ParseTuple(args, "OiOO", &config, &n_ranks, &speed, &log) ||
      !kfpy_array(speed, "speeds", n_ranks, 8, &speeds))
    return NULL;
  kf_scheduler_options *o = kfpy_resolve(config, n_ranks);
  scheduler *self = o ? kfpy_new(type) : NULL;
  PyObject *out = NULL;
  if (self) {
    if (config != Py_None) memcpy(&self->config, PyBytes_AsString(config), sizeof self->config);
    o->plan.speed = speeds;
    if (log != Py_None) {
      Py_INCREF(log);
      self->log = log;
      o->log = call_log;
      o->log_user = self;
    }
    kf_status status = kf_scheduler_create(o, &self->scheduler);
    if (!status) status = kf_scheduler_restore_file(self->scheduler, self->config.state_file);
    out = kfpy_made(self, status);
  }
  kf_scheduler_options_free(o);
  return out;
}

/* A log may be a method of an object that has this scheduler. */
static int scheduler_traverse(PyObject *object, visitproc visit, void *arg) {
  Py_VISIT(((scheduler *)object)->log);
  return 0;
}

static int scheduler_clear(PyObject *object) {
  Py_CLEAR(((scheduler *)object)->log);
  return 0;
}

static void scheduler_free(PyObject *object) {
  scheduler *self = (scheduler *)object;
  PyObject_GC_UnTrack(object);
  kf_outputs_free(self->outputs);
  kf_scheduler_free(self->scheduler);
  Py_XDECREF(self->log);
  kfpy_release(object);
}

static PyObject *scheduler_plan(PyObject *object, PyObject *args) {
  scheduler *self;
  kf_batch batch;
  const kf_plan *plan;
  kf_status status;
  if (!read_batch(args, &batch) || !(self = kfpy_enter(object, "scheduler"))) return NULL;
  Py_BEGIN_ALLOW_THREADS;
  status = kf_scheduler_plan(self->scheduler, &batch, &plan);
  Py_END_ALLOW_THREADS;
  return kfpy_leave(self, status ? kfpy_raise(status) : kfpy_plan_copy(plan));
}

/* Counters as a tuple of eight numbers, in the order of kf_counters. */
static PyObject *update_stats(PyObject *object, PyObject *args) {
  scheduler *self;
  int rank;
  double seconds;
  long long memory, limit, tokens, samples;
  kf_counters c = {0};
  if (!PyArg_ParseTuple(args, "id(LLLLdddd)", &rank, &seconds, &memory, &limit, &tokens, &samples,
                        &c.plan_s, &c.route_s, &c.compute_s, &c.wait_s) ||
      !(self = kfpy_enter(object, "scheduler")))
    return NULL;
  c.memory_bytes = memory, c.memory_limit_bytes = limit, c.tokens = tokens, c.samples = samples;
  return kfpy_leave(self, kfpy_none(kf_scheduler_update_stats(self->scheduler, rank, seconds, &c)));
}

static PyObject *settle(PyObject *object, PyObject *unused) {
  scheduler *self = kfpy_enter(object, "scheduler");
  return self ? kfpy_leave(self, kfpy_none(kf_scheduler_settle(self->scheduler))) : NULL;
}

static PyObject *new_epoch(PyObject *object, PyObject *unused) {
  scheduler *self = kfpy_enter(object, "scheduler");
  if (!self) return NULL;
  kf_scheduler_new_epoch(self->scheduler);
  return kfpy_leave(self, kfpy_none(KF_OK));
}

static PyObject *metrics(PyObject *object, PyObject *args) {
  scheduler *self;
  int prometheus;
  char *text = NULL;
  if (!PyArg_ParseTuple(args, "p", &prometheus) || !(self = kfpy_enter(object, "scheduler")))
    return NULL;
  const kf_metrics *m = kf_scheduler_metrics(self->scheduler);
  kf_status status = prometheus ? kf_metrics_prometheus(m, &text) : kf_metrics_json(m, &text);
  return kfpy_leave(self, status ? kfpy_raise(status) : kfpy_text(text));
}

/* How many steps were planned, how often the cost was refitted, and the cost that plans have. */
static PyObject *progress(PyObject *object, PyObject *unused) {
  scheduler *self = kfpy_enter(object, "scheduler");
  if (!self) return NULL;
  const kf_metrics *m = kf_scheduler_metrics(self->scheduler);
  return kfpy_leave(self,
                    Py_BuildValue("(LLN)", (long long)kf_scheduler_steps(self->scheduler),
                                  (long long)m->refits, kfpy_bytes(&m->cost, 1, sizeof m->cost)));
}

static PyObject *save(PyObject *object, PyObject *unused) {
  scheduler *self = kfpy_enter(object, "scheduler");
  void *data = NULL;
  size_t n_bytes = 0;
  if (!self) return NULL;
  kf_status status = kf_scheduler_save(self->scheduler, &data, &n_bytes);
  return kfpy_leave(self, kfpy_saved(status, data, n_bytes));
}

static PyObject *restore(PyObject *object, PyObject *args) {
  scheduler *self;
  const char *name, *data;
  Py_ssize_t n_bytes;
  if (!PyArg_ParseTuple(args, "sy#", &name, &data, &n_bytes) ||
      !(self = kfpy_enter(object, "scheduler")))
    return NULL;
  kf_status status = kf_scheduler_restore(self->scheduler, name, data, (size_t)n_bytes);
  return kfpy_leave(self, kfpy_none(status));
}

/* The files of the configuration: those of steps, begun when first written to, their end, the
** state. */
static PyObject *write_files(PyObject *object, PyObject *args) {
  scheduler *self = (scheduler *)object;
  const kf_config *c = &self->config;
  int what;
  kf_status status = KF_OK;
  if (!PyArg_ParseTuple(args, "i", &what)) return NULL;
  if (!*c->steps_file && !*c->metrics_file && !*c->trace_file && !*c->state_file) Py_RETURN_NONE;
  if (!kfpy_enter(self, "scheduler")) return NULL;
  const kf_metrics *m = kf_scheduler_metrics(self->scheduler);
  if (!self->outputs) status = kf_outputs_create(c, m->n_ranks, &self->outputs);
  if (!status && what == 0) status = kf_outputs_step(self->outputs, m);
  if (!status && what == 1) status = kf_outputs_close(self->outputs);
  if (!status && what == 2) status = kf_scheduler_save_file(self->scheduler, c->state_file);
  return kfpy_leave(self, kfpy_none(status));
}

static PyMethodDef scheduler_methods[] = {
  {"plan", scheduler_plan, METH_VARARGS, "plan(rank_off, len, profile) -> Plan"},
  {"update_stats", update_stats, METH_VARARGS, "update_stats(rank, seconds, counters)"},
  {"settle", settle, METH_NOARGS, "settle()"},
  {"new_epoch", new_epoch, METH_NOARGS, "new_epoch()"},
  {"metrics", metrics, METH_VARARGS, "metrics(prometheus) -> str"},
  {"progress", progress, METH_NOARGS, "progress() -> (steps, refits, cost)"},
  {"save", save, METH_NOARGS, "save() -> bytes"},
  {"restore", restore, METH_VARARGS, "restore(name, data)"},
  {"write", write_files, METH_VARARGS, "write(what): 0 the last step, 1 the end, 2 the state"},
  {NULL, NULL, 0, NULL}};

static PyType_Slot scheduler_slots[] = {{Py_tp_new, scheduler_new},
                                        {Py_tp_dealloc, scheduler_free},
                                        {Py_tp_traverse, scheduler_traverse},
                                        {Py_tp_clear, scheduler_clear},
                                        {Py_tp_methods, scheduler_methods},
                                        {Py_tp_doc, "Scheduler(config, ranks, speeds, log)"},
                                        {0, NULL}};

/* ---------------------------------------------------------------------------- gather */

typedef struct gather {
  kfpy_guarded guarded;
  kf_gather *gather;
  int64_t n_ranks, record_bytes;
} gather;

static PyTypeObject *scheduler_type;

static PyObject *gather_new(PyTypeObject *type, PyObject *args, PyObject *names) {
  int n_ranks, rank;
  long long record_bytes;
  if (!PyArg_ParseTuple(args, "iiL", &n_ranks, &rank, &record_bytes)) return NULL;
  gather *self = kfpy_new(type);
  if (!self) return NULL;
  self->n_ranks = n_ranks, self->record_bytes = record_bytes;
  return kfpy_made(self, kf_gather_create(n_ranks, rank, record_bytes, &self->gather));
}

static void gather_free(PyObject *self) {
  kf_gather_free(((gather *)self)->gather);
  kfpy_release(self);
}

static bool enter_both(gather *self, scheduler *with) {
  if (!kfpy_enter(self, "gather")) return false;
  if (kfpy_enter(with, "scheduler")) return true;
  return kfpy_leave(self, NULL);
}

static void leave_both(gather *self, scheduler *with) { kfpy_leave(with, kfpy_leave(self, NULL)); }

/* `wrong` is UTF-8, as bytes: a str may hold what cannot be encoded. */
static PyObject *gather_pack(PyObject *object, PyObject *args) {
  gather *self = (gather *)object;
  scheduler *with;
  PyObject *len, *profile, *record, *wrong;
  const void *lens, *profiles, *sentence;
  int64_t n_sentence;
  kf_rank_batch mine = {0};
  if (!PyArg_ParseTuple(args, "OOOO!O", &len, &profile, &record, scheduler_type, &with, &wrong) ||
      !kfpy_list(len, "len", 8, &lens, &mine.n_seqs) ||
      !kfpy_array(profile, "profile", mine.n_seqs, sizeof(kf_profile), &profiles) ||
      !kfpy_array(record, "record", self->record_bytes, 1, &mine.record) ||
      !kfpy_list(wrong, "wrong", 1, &sentence, &n_sentence))
    return NULL;
  mine.len = lens, mine.profile = profiles;
  PyObject *out = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)kf_gather_bytes(self->gather));
  if (!out || !enter_both(self, with)) return Py_XDECREF(out), NULL;
  kf_status status =
    kf_gather_pack(self->gather, &mine, with->scheduler, sentence, PyByteArray_AsString(out));
  leave_both(self, with);
  return kfpy_made(out, status);
}

static PyObject *gather_read(PyObject *object, PyObject *args) {
  gather *self = (gather *)object;
  PyObject *bytes;
  const void *all, *records;
  const kf_batch *batch;
  if (!PyArg_ParseTuple(args, "O!", &PyBytes_Type, &bytes) ||
      !kfpy_array(bytes, "all", self->n_ranks * kf_gather_bytes(self->gather), 1, &all) ||
      !kfpy_enter(self, "gather"))
    return NULL;
  kf_status status = kf_gather_read(self->gather, all, &batch, &records);
  if (status || !batch) return kfpy_leave(self, kfpy_none(status));
  return kfpy_leave(self, kfpy_bytes(records, self->n_ranks * self->record_bytes, 1));
}

static PyObject *gather_schedule(PyObject *object, PyObject *args) {
  gather *self = (gather *)object;
  scheduler *with;
  int settles;
  const kf_plan *plan = NULL;
  char verdict[KF_VERDICT_BYTES];
  kf_status status;
  if (!PyArg_ParseTuple(args, "O!p", scheduler_type, &with, &settles) || !enter_both(self, with))
    return NULL;
  Py_BEGIN_ALLOW_THREADS;
  status = kf_gather_schedule(self->gather, with->scheduler, settles ? NULL : &plan, verdict);
  Py_END_ALLOW_THREADS;
  leave_both(self, with);
  if (status) return kfpy_raise(status);
  PyObject *bytes = PyByteArray_FromStringAndSize(verdict, sizeof verdict);
  return plan ? Py_BuildValue("(NN)", bytes, kfpy_plan_copy(plan))
              : Py_BuildValue("(NO)", bytes, Py_None);
}

static PyObject *gather_agree(PyObject *object, PyObject *args) {
  gather *self = (gather *)object;
  PyObject *bytes;
  const void *all;
  if (!PyArg_ParseTuple(args, "O!", &PyBytes_Type, &bytes) ||
      !kfpy_array(bytes, "verdicts", self->n_ranks * KF_VERDICT_BYTES, 1, &all))
    return NULL;
  return kfpy_none(kf_gather_agree(self->gather, all));
}

static PyMethodDef gather_methods[] = {
  {"pack", gather_pack, METH_VARARGS, "pack(len, profile, record, scheduler, wrong) -> bytearray"},
  {"read", gather_read, METH_VARARGS, "read(all) -> all ranks' records, or None: once more"},
  {"schedule", gather_schedule, METH_VARARGS,
   "schedule(scheduler, settles) -> (verdict, Plan or None)"},
  {"agree", gather_agree, METH_VARARGS, "agree(verdicts)"},
  {NULL, NULL, 0, NULL}};

static PyType_Slot gather_slots[] = {{Py_tp_new, gather_new},
                                     {Py_tp_dealloc, gather_free},
                                     {Py_tp_methods, gather_methods},
                                     {Py_tp_doc, "Gather(ranks, rank, record_bytes)"},
                                     {0, NULL}};

bool kfpy_planner_init(PyObject *module) {
  scheduler_type = kfpy_add_type(module, "knapformer._core.Scheduler", sizeof(scheduler),
                                 Py_TPFLAGS_HAVE_GC, scheduler_slots);
  return scheduler_type &&
         kfpy_add_type(module, "knapformer._core.Planner", sizeof(planner), 0, planner_slots) &&
         kfpy_add_type(module, "knapformer._core.Gather", sizeof(gather), 0, gather_slots);
}
