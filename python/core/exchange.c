/* SPDX-License-Identifier: Apache-2.0 */
/*
** What one rank sends and receives under a plan, for a transport that has one all-to-all with uneven
** parts and can gather and scatter rows by index: torch.distributed on any device.
**
**     in (n_in rows) --send_index--> | to rank 0 | to rank 1 | .. |
**                                     all-to-all, send_count[q] rows to q, recv_count[q] from q
**                    | from rank 0 | from rank 1 | .. | --recv_index--> out (n_out rows)
**     in [from, from + n) --------------- stays --------------------> out [to, to + n)
**
** A row of `in` goes to exactly one row of `out` (but for sequences(), where a split sequence's row
** goes to each holder), so the way back is the same table with the two sides swapped. What stays is
** a list of runs instead of an index: neighbours that stay together are one copy.
**
** The tables are Python's to keep: one tuple (n_in, n_out, send_index, recv_index, send_count,
** recv_count, stay, busy), indices and counts as bytearrays of 64-bit integers, `stay` a list of
** (from, to, n), `busy` whether any rank of the plan sends anything at all: where it is false, no
** rank needs to call the all-to-all.
*/
#include <stdlib.h>
#include <string.h>

#include "core.h"

typedef struct table {
  int32_t n_ranks;
  int64_t n_in, n_out;
  int64_t *send_count, *recv_count; /* (n_ranks) */
  int64_t *send_next, *recv_next;   /* (n_ranks) where the next index of a peer goes */
  int64_t *send_index, *recv_index; /* point into the two bytearrays */
  PyObject *send_bytes, *recv_bytes, *stay;
  int64_t run_from, run_to, run_n; /* the run that still may grow */
  bool counting, busy;
} table;

/* Each walk runs twice: first it counts, then it fills. */
static void send(table *t, int64_t peer, int64_t first, int64_t n) {
  if (t->counting) {
    t->send_count[peer] += n;
    return;
  }
  for (int64_t i = 0; i < n; i++) t->send_index[t->send_next[peer]++] = first + i;
}

static void receive(table *t, int64_t peer, int64_t first, int64_t n) {
  if (t->counting) {
    t->recv_count[peer] += n;
    return;
  }
  for (int64_t i = 0; i < n; i++) t->recv_index[t->recv_next[peer]++] = first + i;
}

static bool end_run(table *t) {
  if (t->run_n == 0) return true;
  PyObject *run =
    Py_BuildValue("(LLL)", (long long)t->run_from, (long long)t->run_to, (long long)t->run_n);
  bool fine = run && PyList_Append(t->stay, run) == 0;
  Py_XDECREF(run);
  t->run_n = 0;
  return fine;
}

static bool stays(table *t, int64_t from, int64_t to, int64_t n) {
  if (t->counting || n == 0) return true;
  if (t->run_n > 0 && t->run_from + t->run_n == from && t->run_to + t->run_n == to) {
    t->run_n += n;
    return true;
  }
  if (!end_run(t)) return false;
  t->run_from = from, t->run_to = to, t->run_n = n;
  return true;
}

static PyObject *new_index(const int64_t *count, int64_t *next, int32_t n_ranks, int64_t **out) {
  int64_t n = 0;
  for (int32_t r = 0; r < n_ranks; r++) next[r] = n, n += count[r];
  PyObject *bytes = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)n * 8);
  if (bytes) *out = (int64_t *)PyByteArray_AsString(bytes);
  return bytes;
}

static PyObject *count_bytes(const int64_t *count, int32_t n_ranks) {
  return PyByteArray_FromStringAndSize((const char *)count, (Py_ssize_t)n_ranks * 8);
}

typedef struct walker {
  const kf_plan *plan;
  int32_t rank, heads;
  bool split_only; /* of ulysses: rows and pairs of whole sequences are not there */
} walker;

typedef bool walk_fn(const walker *w, table *t);

static PyObject *build(const walker *w, walk_fn *walk, table *t) {
  int32_t n = t->n_ranks = w->plan->n_ranks;
  PyObject *out = NULL;
  t->send_count = calloc((size_t)n * 4, sizeof *t->send_count);
  if (!t->send_count) return PyErr_NoMemory();
  t->recv_count = t->send_count + n;
  t->send_next = t->recv_count + n;
  t->recv_next = t->send_next + n;
  t->counting = true;
  if (!walk(w, t)) goto done;
  t->counting = false;
  t->send_bytes = new_index(t->send_count, t->send_next, n, &t->send_index);
  t->recv_bytes = new_index(t->recv_count, t->recv_next, n, &t->recv_index);
  t->stay = PyList_New(0);
  if (!t->send_bytes || !t->recv_bytes || !t->stay || !walk(w, t) || !end_run(t)) goto done;
  out = Py_BuildValue("(LLOONNOO)", (long long)t->n_in, (long long)t->n_out, t->send_bytes,
                      t->recv_bytes, count_bytes(t->send_count, n), count_bytes(t->recv_count, n),
                      t->stay, t->busy ? Py_True : Py_False);
done:
  free(t->send_count);
  Py_XDECREF(t->send_bytes);
  Py_XDECREF(t->recv_bytes);
  Py_XDECREF(t->stay);
  return out;
}

static bool is_split(const kf_plan *p, int64_t seq) {
  return p->seq_off[seq + 1] - p->seq_off[seq] > 1;
}

/* The rank of the call, or raises. */
static bool read_rank(const kf_plan *plan, int rank) {
  if (rank >= 0 && rank < plan->n_ranks) return true;
  PyErr_Format(PyExc_ValueError, "rank %d, expected 0 to %d, the ranks of the plan", rank,
               (int)plan->n_ranks - 1);
  return false;
}

/* ------------------------------------------------------------------------------ route */

static bool walk_route(const walker *w, table *t) {
  const kf_plan *p = w->plan;
  for (int64_t c = p->send_off[w->rank]; c < p->send_off[w->rank + 1]; c++) {
    const kf_chunk *k = &p->chunk[c];
    if (k->destination != w->rank)
      send(t, k->destination, p->home_row[c], k->length);
    else if (!stays(t, p->home_row[c], p->hold_row[c], k->length))
      return false;
  }
  for (int64_t h = p->hold_off[w->rank]; h < p->hold_off[w->rank + 1]; h++) {
    int64_t c = p->hold[h];
    if (p->chunk[c].source != w->rank)
      receive(t, p->chunk[c].source, p->hold_row[c], p->chunk[c].length);
  }
  return true;
}

PyObject *kfpy_route(PyObject *self, PyObject *args) {
  const kf_plan *p = &((kfpy_plan *)self)->plan;
  int rank;
  if (!PyArg_ParseTuple(args, "i", &rank) || !read_rank(p, rank)) return NULL;
  table t = {
    .n_in = p->home_rows[rank], .n_out = p->hold_rows[rank], .busy = p->route_off[p->n_ranks] > 0};
  return build(&(walker){.plan = p, .rank = rank}, walk_route, &t);
}

/* -------------------------------------------------------------------------- sequences */

/* A sequence of no tokens has a chunk at home, too: so the chunks say which are a rank's own. */
static int64_t first_seq(const kf_plan *p, int32_t rank) {
  int64_t c = p->send_off[rank];
  return c < p->send_off[rank + 1] ? p->chunk[c].seq : 0;
}

static int64_t count_seqs(const kf_plan *p, int32_t rank) {
  int64_t end = p->send_off[rank + 1];
  return end == p->send_off[rank] ? 0 : p->chunk[end - 1].seq - first_seq(p, rank) + 1;
}

static bool walk_sequences(const walker *w, table *t) {
  const kf_plan *p = w->plan;
  int64_t first = first_seq(p, w->rank), held = 0;
  for (int64_t h = p->hold_off[w->rank]; h < p->hold_off[w->rank + 1]; h++) {
    const kf_chunk *k = &p->chunk[p->hold[h]];
    if (k->length == 0) continue;
    if (k->source != w->rank)
      receive(t, k->source, held, 1);
    else if (!stays(t, k->seq - first, held, 1))
      return false;
    held++;
  }
  for (int64_t c = p->send_off[w->rank]; c < p->send_off[w->rank + 1]; c++) {
    const kf_chunk *k = &p->chunk[c];
    if (k->length > 0 && k->destination != w->rank) send(t, k->destination, k->seq - first, 1);
  }
  t->n_out = held;
  return true;
}

PyObject *kfpy_sequences(PyObject *self, PyObject *args) {
  const kf_plan *p = &((kfpy_plan *)self)->plan;
  int rank;
  if (!PyArg_ParseTuple(args, "i", &rank) || !read_rank(p, rank)) return NULL;
  table t = {.n_in = count_seqs(p, rank), .busy = p->route_off[p->n_ranks] > 0};
  return build(&(walker){.plan = p, .rank = rank}, walk_sequences, &t);
}

PyObject *kfpy_held(PyObject *self, PyObject *args) {
  const kf_plan *p = &((kfpy_plan *)self)->plan;
  int rank;
  if (!PyArg_ParseTuple(args, "i", &rank) || !read_rank(p, rank)) return NULL;
  int64_t most = p->hold_off[rank + 1] - p->hold_off[rank], n = 0;
  int64_t(*row)[4] = malloc((size_t)(most + 1) * sizeof *row);
  if (!row) return PyErr_NoMemory();
  for (int64_t h = p->hold_off[rank]; h < p->hold_off[rank + 1]; h++) {
    const kf_chunk *k = &p->chunk[p->hold[h]];
    if (k->length == 0) continue;
    row[n][0] = k->seq, row[n][1] = k->offset, row[n][2] = k->length;
    row[n++][3] = is_split(p, k->seq);
  }
  PyObject *out = kfpy_bytes(row, n, sizeof *row);
  free(row);
  return out;
}

/* ---------------------------------------------------------------------------- ulysses */

/*
** A plan may have been made before the model's number of heads was known. Then its heads are shares,
** and a boundary between two owners goes to the nearest of the real ones. With the plan's own number
** nothing changes.
*/
static int64_t real_head(const walker *w, int64_t head) {
  return (head * w->heads + w->plan->heads / 2) / w->plan->heads;
}

static void heads_of(const walker *w, const kf_chunk *k, int64_t *first, int64_t *n) {
  *first = real_head(w, k->first_head);
  *n = real_head(w, k->first_head + k->heads) - *first;
}

static int64_t rows_of(const kf_plan *p, int64_t seq) {
  int64_t rows = 0;
  for (int64_t i = p->seq_off[seq]; i < p->seq_off[seq + 1]; i++) rows += p->chunk[i].length;
  return rows;
}

static void send_rows(const walker *w, table *t, int64_t c, int64_t first_row) {
  const kf_plan *p = w->plan;
  const kf_chunk *mine = &p->chunk[c];
  for (int64_t i = p->seq_off[mine->seq]; i < p->seq_off[mine->seq + 1]; i++) {
    int64_t first, n;
    heads_of(w, &p->chunk[i], &first, &n);
    if (t->counting)
      send(t, p->chunk[i].destination, 0, mine->length * n);
    else
      for (int64_t row = 0; row < mine->length; row++)
        send(t, p->chunk[i].destination, (first_row + row) * w->heads + first, n);
  }
}

static void receive_heads(const walker *w, table *t, int64_t seq, int64_t offset, int64_t heads) {
  const kf_plan *p = w->plan;
  for (int64_t i = p->seq_off[seq]; i < p->seq_off[seq + 1]; i++) {
    const kf_chunk *k = &p->chunk[i];
    receive(t, k->destination, offset + k->offset * heads, k->length * heads);
  }
}

/* Rows of whole sequences stay as they are; a rank's own part of a split one is sent to itself. */
static bool walk_ulysses(const walker *w, table *t) {
  const kf_plan *p = w->plan;
  int64_t offset = 0, row = 0;
  for (int64_t h = p->hold_off[w->rank]; h < p->hold_off[w->rank + 1]; h++) {
    int64_t c = p->hold[h], seq = p->chunk[c].seq, rows = rows_of(p, seq), first, n;
    bool split = is_split(p, seq);
    if (w->split_only && !split) continue;
    heads_of(w, &p->chunk[c], &first, &n);
    if (split) {
      send_rows(w, t, c, row);
      receive_heads(w, t, seq, offset, n);
    } else if (!stays(t, row * w->heads, offset, rows * n)) {
      return false;
    }
    row += p->chunk[c].length;
    offset += rows * n;
  }
  t->n_in = row * w->heads;
  t->n_out = offset;
  return true;
}

static bool read_heads(const kf_plan *p, PyObject *args, walker *out) {
  int rank, heads, split_only = 0;
  if (!PyArg_ParseTuple(args, "ii|p", &rank, &heads, &split_only) || !read_rank(p, rank))
    return false;
  if (heads < 1 || heads > KF_MAX_HEADS) {
    PyErr_Format(PyExc_ValueError, "%d heads, expected 1 to %d", heads, KF_MAX_HEADS);
    return false;
  }
  *out = (walker){p, rank, heads, split_only};
  return true;
}

PyObject *kfpy_ulysses(PyObject *self, PyObject *args) {
  const kf_plan *p = &((kfpy_plan *)self)->plan;
  walker w;
  if (!read_heads(p, args, &w)) return NULL;
  table t = {.busy = p->ulysses_off[p->n_ranks] > 0};
  return build(&w, walk_ulysses, &t);
}

PyObject *kfpy_segments(PyObject *self, PyObject *args) {
  const kf_plan *p = &((kfpy_plan *)self)->plan;
  walker w;
  if (!read_heads(p, args, &w)) return NULL;
  int64_t most = p->hold_off[w.rank + 1] - p->hold_off[w.rank], n = 0, offset = 0;
  int64_t(*row)[5] = malloc((size_t)(most + 1) * sizeof *row);
  if (!row) return PyErr_NoMemory();
  for (int64_t h = p->hold_off[w.rank]; h < p->hold_off[w.rank + 1]; h++) {
    const kf_chunk *k = &p->chunk[p->hold[h]];
    int64_t rows = rows_of(p, k->seq), first, heads;
    heads_of(&w, k, &first, &heads);
    if (rows == 0 || heads == 0 || (w.split_only && !is_split(p, k->seq))) continue;
    int64_t segment[5] = {k->seq, rows, offset, first, heads};
    memcpy(row[n++], segment, sizeof segment);
    offset += rows * heads;
  }
  PyObject *out = kfpy_bytes(row, n, sizeof *row);
  free(row);
  return out;
}
