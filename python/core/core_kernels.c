/* SPDX-License-Identifier: Apache-2.0 */
/*
** Attention and adaln on memory that is given by address: torch's tensors, which the caller keeps
** alive, contiguous, of the right size and on the CPU. The GIL is released while they run.
*/
#include <stdlib.h>
#include <string.h>

#include "core.h"
#ifdef KF_HAVE_CUDA
#include <knapformer_cuda.h>
#endif

/* A workspace is kept between calls, so that its pages stay warm; who finds it taken, by a thread
** that is inside a kernel, brings its own. Both under the GIL. */
typedef struct workspace {
  void *at;
  int64_t n_bytes;
} workspace;

static workspace kept;

static bool take(int64_t n_bytes, workspace *out) {
  *out = kept;
  kept = (workspace){0};
  if (out->at && out->n_bytes >= n_bytes) return true;
  free(out->at);
  out->n_bytes = (n_bytes + 63) / 64 * 64;
  out->at = aligned_alloc(64, (size_t)out->n_bytes);
  if (!out->at) PyErr_NoMemory();
  return out->at;
}

static void give(workspace used) {
  workspace other = kept;
  bool larger = used.n_bytes > other.n_bytes;
  kept = larger ? used : other;
  free(larger ? other.at : used.at);
}

static void *address(PyObject *tuple, Py_ssize_t i) {
  PyObject *item = PySequence_GetItem(tuple, i); /* an int, or None */
  void *out = !item || item == Py_None ? NULL : PyLong_AsVoidPtr(item);
  Py_XDECREF(item);
  return out;
}

PyObject *kfpy_attention(PyObject *module, PyObject *args) {
  enum { N = 9 };
  PyObject *segments, *addresses;
  const void *pair;
  void *at[N];
  int backward;
  int64_t n;
  kf_attention a = {0};
  if (!PyArg_ParseTuple(args, "iOiifO", &backward, &segments, &a.head_dim, &a.n_threads, &a.scale,
                        &addresses) ||
      !kfpy_list(segments, "segments", 16, &pair, &n))
    return NULL;
  for (int i = 0; i < N; i++) at[i] = address(addresses, i);
  if (PyErr_Occurred()) return NULL;
  a.q = at[0], a.k = at[1], a.v = at[2], a.o = at[3], a.lse = at[4];
  a.d_o = at[5], a.dq = at[6], a.dk = at[7], a.dv = at[8];
  kf_segment *segment = calloc((size_t)n + 1, sizeof *segment);
  if (!segment) return PyErr_NoMemory();
  int64_t offset = 0;
  for (int64_t i = 0; i < n; i++) { /* (rows, heads) of each */
    const int64_t *shape = (const int64_t *)pair + 2 * i;
    segment[i] = (kf_segment){.rows = shape[0], .offset = offset, .heads = (int32_t)shape[1]};
    offset += shape[0] * shape[1];
  }
  a.n_segments = n;
  a.segment = segment;
  workspace w;
  PyObject *out = NULL;
  if (take(kf_attention_workspace(&a), &w)) {
    kf_status status;
    a.workspace = w.at, a.workspace_bytes = w.n_bytes;
    Py_BEGIN_ALLOW_THREADS;
    status = backward ? kf_attention_backward(&a) : kf_attention_forward(&a);
    Py_END_ALLOW_THREADS;
    give(w);
    out = kfpy_none(status);
  }
  free(segment);
  return out;
}

/* A kf_adaln but for its workspace, of (what to do, nine numbers, 18 addresses). */
static bool read_adaln(PyObject *args, int *what, kf_adaln *out) {
  enum { N = 18 };
  PyObject *addresses;
  void *at[N];
  int dtype, rounding;
  long long n_tokens, n_seqs, dim, mod_stride;
  kf_adaln a = {0};
  if (!PyArg_ParseTuple(args, "i(LLLiiLifi)O", what, &n_tokens, &n_seqs, &dim, &dtype, &a.mod_fp32,
                        &mod_stride, &rounding, &a.eps, &a.n_threads, &addresses))
    return false;
  for (int i = 0; i < N; i++) at[i] = address(addresses, i);
  if (PyErr_Occurred()) return false;
  a.n_tokens = n_tokens, a.n_seqs = n_seqs, a.dim = dim, a.mod_stride = mod_stride;
  a.dtype = (kf_dtype)dtype;
  a.rounding = (kf_rounding)rounding;
  a.cu_seqlens = at[0], a.seq_index = at[1];
  a.scale = at[2], a.shift = at[3], a.x = at[4], a.y = at[5], a.mean = at[6], a.rstd = at[7];
  a.gate = at[8], a.residual = at[9], a.u = at[10];
  a.dy = at[11], a.dx_add = at[12], a.dx = at[13], a.du = at[14];
  a.dscale = at[15], a.dshift = at[16], a.dgate = at[17];
  *out = a;
  return true;
}

PyObject *kfpy_adaln(PyObject *module, PyObject *args) {
  int backward;
  kf_adaln a;
  workspace w;
  kf_status status;
  if (!read_adaln(args, &backward, &a) || !take(kf_adaln_workspace(&a), &w)) return NULL;
  a.workspace = w.at, a.workspace_bytes = w.n_bytes;
  Py_BEGIN_ALLOW_THREADS;
  status = backward ? kf_adaln_backward(&a) : kf_adaln_forward(&a);
  Py_END_ALLOW_THREADS;
  give(w);
  return kfpy_none(status);
}

#ifdef KF_HAVE_CUDA
/* The workspace is the caller's, because it lives on the device and holds the chunk table. */
PyObject *kfpy_adaln_cuda(PyObject *module, PyObject *args) {
  enum { FORWARD, BACKWARD, PREPARE, WORKSPACE };
  PyObject *call, *stream, *block;
  long long n_bytes;
  int what;
  kf_adaln a;
  kf_status status = KF_OK;
  if (!PyArg_ParseTuple(args, "OOOL", &call, &stream, &block, &n_bytes) ||
      !read_adaln(call, &what, &a))
    return NULL;
  void *queue = PyLong_AsVoidPtr(stream);
  a.workspace = PyLong_AsVoidPtr(block), a.workspace_bytes = n_bytes;
  if (PyErr_Occurred()) return NULL;
  if (what == WORKSPACE) return PyLong_FromLongLong(kf_adaln_workspace_cuda(&a));
  Py_BEGIN_ALLOW_THREADS;
  switch (what) {
  case FORWARD: status = kf_adaln_forward_cuda(&a, queue); break;
  case BACKWARD: status = kf_adaln_backward_cuda(&a, queue); break;
  default: status = kf_adaln_prepare_cuda(&a, queue); break;
  }
  Py_END_ALLOW_THREADS;
  return kfpy_none(status);
}
#endif
