/* SPDX-License-Identifier: Apache-2.0 */
/*
** The extension module knapformer._core: the public header of the library for Python, and nothing
** else. It is thin on purpose: arguments are checked by the library, names, defaults and shapes are
** the business of the package's .py files.
**
**   module.c        the module, errors, texts, mixes, configuration, fit
**   core_plan.c     Plan: a copy of a kf_plan that Python owns, and its exchange tables
**   core_planner.c  Planner and Scheduler, which make plans, and Gather, by which ranks agree on them
**   core_sampler.c  Sampler
**   core_kernels.c  attention and adaln on memory that is given by address; adaln on CUDA, if built
**
** Only the limited API of Python 3.8 is used, so that one binary serves all later versions. It has
** no buffers: arrays come in as bytes, go out as bytes or bytearray, and tensors come as addresses.
*/
#ifndef KFPY_CORE_H
#define KFPY_CORE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03080000
#include <Python.h>
#include <stdbool.h>

#include <knapformer.h>

/* ------------------------------------------------------------------------- module.c */

/* Raise what a status means, with the library's sentence: ValueError, MemoryError, OSError, or
** RuntimeError. Returns NULL. */
PyObject *kfpy_raise(kf_status status);

/* None, or raises. */
PyObject *kfpy_none(kf_status status);

/* An array of n elements of `size` bytes from a bytes object: (pointer, true); where `object` is
** None, (NULL, true). Raises ValueError where the size is another. */
bool kfpy_array(PyObject *object, const char *name, int64_t n, size_t size, const void **out);

/* The same for an array whose size says how many there are. */
bool kfpy_list(PyObject *object, const char *name, size_t size, const void **out, int64_t *n);

/* What the bytes of a kf_config mean on so many ranks; NULL: raises. kf_scheduler_options_free
** it. */
kf_scheduler_options *kfpy_resolve(PyObject *config, int n_ranks);

/* A 0-terminated text of the library's, which is freed, as str. */
PyObject *kfpy_text(char *text);

/* What the library saved, which is freed, as bytes; or raises what `status` means. */
PyObject *kfpy_saved(kf_status status, void *data, size_t n_bytes);

PyObject *kfpy_bytes(const void *data, int64_t n, size_t size);

/* Append `item`, which is taken over; where it is NULL or does not fit, the list becomes NULL. */
void kfpy_append(PyObject **list, PyObject *item);

/* The head of an object that only one thread may be inside of at a time, because the GIL is
** released there. So also what only reads must enter. */
typedef struct kfpy_guarded {
  PyObject_HEAD bool taken;
} kfpy_guarded;
void *kfpy_enter(void *object, const char *what);     /* returns object; NULL: raises */
PyObject *kfpy_leave(void *object, PyObject *result); /* returns result */

/* A type of the module's, which keeps it; NULL: raises. `name` is the whole one. */
PyTypeObject *kfpy_add_type(PyObject *module, const char *name, size_t size, unsigned flags,
                            PyType_Slot *slots);

/* Objects of such types. */
void *kfpy_new(PyTypeObject *type);                  /* all 0; NULL: raises */
PyObject *kfpy_made(void *object, kf_status status); /* returns object, or releases it and raises */
void kfpy_release(PyObject *object);                 /* what a type's dealloc ends with */

/* ------------------------------------------------------------------------- the others */

bool kfpy_plan_init(PyObject *module);
PyObject *kfpy_plan_copy(const kf_plan *plan);
bool kfpy_planner_init(PyObject *module);
bool kfpy_sampler_init(PyObject *module);
PyObject *kfpy_attention(PyObject *module, PyObject *args);
PyObject *kfpy_adaln(PyObject *module, PyObject *args);
PyObject *kfpy_adaln_cuda(PyObject *module, PyObject *args); /* where it is built with CUDA */

#endif
