/* SPDX-License-Identifier: Apache-2.0 */
/*
** An exchange over MPI. Both ends of a pair know the same list of blocks, and cut it into messages
** by the same rule, so that nothing about sizes has to be said:
**
**   - a block of BIG bytes and more is a message of its own, or several, none longer than `most`;
**   - shorter blocks that follow each other share a message, until it has BIG bytes.
**
** A message whose bytes lie in one piece is sent from, or received into, the caller's memory.
** Others pass through the staging buffer: packed just before they are sent, unpacked as soon as
** they have arrived. While messages are under way the rank copies what stays at home, a slice at a
** time, and polls in between, because most MPIs move data only while they are called.
**
**     recv all | send what is in one piece | pack, send .. | copy home rows | poll, unpack ..
**
** One message a peer by a derived datatype was considered: MPI then packs by itself in small
** fragments, and gives up the single copy that it makes of contiguous memory inside a node.
*/
#include "comm.h"

#if defined(KF_HAVE_MPI)

#include <string.h>

#include "mpi_backend.h"

enum { BIG = 1 << 17, LEAST = 1 << 22, MOST = 1 << 26, SLICE = 1 << 20, MANY = 32 };

typedef struct transfer {
  kfi_mpi *m;
  const kfi_transfer *x;
  int n_recv, n_send; /* messages: receives first */
  kfi_message *message;
  MPI_Request *request;
  MPI_Status *status;
  int *done;  /* indices that MPI_Testsome found */
  int n_left; /* requests that are still under way, of those that were posted */
  int tag;
  kfi_wait wait;
} transfer;

/* ----------------------------------------------------- cutting blocks into messages */

/* The longest message between two ranks that exchange so many bytes: at most some dozens of them,
** so that packing and sending overlap, or of a size that shows progress within the timeout. */
static int64_t longest(int64_t n_bytes) {
  int64_t most = n_bytes / MANY;
  return most < LEAST ? LEAST : most > MOST ? MOST : most;
}

/* Cut what one peer gets or gives. Counts only if `out` is NULL. Returns the number of messages. */
static int64_t cut_peer(const kfi_side *side, int32_t peer, kfi_message *out) {
  int64_t end = side->block_off[peer + 1], total = 0, n = 0;
  for (int64_t i = side->block_off[peer]; i < end; i++) total += kfi_block_bytes(&side->block[i]);
  int64_t most = longest(total);
  for (int64_t i = side->block_off[peer]; i < end;) {
    int64_t n_bytes = kfi_block_bytes(&side->block[i]), first = i++;
    if (n_bytes >= BIG) {
      for (int64_t from = 0; from < n_bytes; from += most, n++) {
        int64_t k = n_bytes - from < most ? n_bytes - from : most;
        if (out) out[n] = (kfi_message){first, from, k, NULL, peer, false};
      }
      continue;
    }
    for (; i < end && kfi_block_bytes(&side->block[i]) < BIG && n_bytes < BIG; i++)
      n_bytes += kfi_block_bytes(&side->block[i]);
    if (out) out[n] = (kfi_message){first, 0, n_bytes, NULL, peer, false};
    n++;
  }
  return n;
}

static int64_t cut_side(const kf_comm *comm, const kfi_side *side, kfi_message *out) {
  int64_t n = 0;
  for (int32_t i = 1; i < comm->size; i++) { /* start with the next rank: not all with rank 0 */
    int32_t peer = (comm->rank + i) % comm->size;
    if (side->block_off[peer] == side->block_off[peer + 1]) continue;
    n += cut_peer(side, peer, out ? out + n : NULL);
  }
  return n;
}

/* Lies the message in one piece? Returns the staging bytes it needs. */
static int64_t place(const kfi_side *side, kfi_message *msg) {
  const kfi_block *block = &side->block[msg->block];
  msg->data = msg->from + msg->n_bytes <= kfi_block_bytes(block)
                ? kfi_block_flat(block, msg->from, msg->n_bytes)
                : NULL;
  msg->staged = !msg->data;
  return msg->staged ? (msg->n_bytes + 63) / 64 * 64 : 0;
}

static const kfi_side *side_of(const transfer *t, int i) {
  return i < t->n_recv ? &t->x->recv : &t->x->send;
}

static kf_status lay_out(transfer *t) {
  kfi_mpi *m = t->m;
  int64_t n_recv = cut_side(&m->comm, &t->x->recv, NULL);
  int64_t n_send = cut_side(&m->comm, &t->x->send, NULL), staging = 0;
  if (n_recv + n_send > INT32_MAX / 2)
    return kfi_fail(KF_EINVAL, "%s: %lld messages, expected at most %d", m->comm.call,
                    (long long)(n_recv + n_send), INT32_MAX / 2);
  size_t n = (size_t)(n_recv + n_send);
  t->n_recv = (int)n_recv;
  t->n_send = (int)n_send;
  if (!(t->message = kfi_buffer_reserve(&m->messages, n * sizeof *t->message))) return KF_ENOMEM;
  kfi_layout lay = {0};
  for (int pass = 0; pass < 2; pass++) {
    t->request = KFI_TAKE(&lay, MPI_Request, n);
    t->status = KFI_TAKE(&lay, MPI_Status, n);
    t->done = KFI_TAKE(&lay, int, n);
    if (!pass && !kfi_layout_reserve(&lay, &m->requests)) return KF_ENOMEM;
  }
  cut_side(&m->comm, &t->x->recv, t->message);
  cut_side(&m->comm, &t->x->send, t->message + n_recv);
  for (int i = 0; i < (int)n; i++) {
    staging += place(side_of(t, i), &t->message[i]);
    t->request[i] = MPI_REQUEST_NULL;
  }
  char *at = kfi_buffer_reserve(&m->staging, (size_t)staging);
  if (!at) return KF_ENOMEM;
  for (int i = 0; i < (int)n; i++) {
    if (!t->message[i].staged) continue;
    t->message[i].data = at;
    at += (t->message[i].n_bytes + 63) / 64 * 64;
  }
  return KF_OK;
}

/* ------------------------------------------------------------------- moving bytes */

/* Between the staging buffer and the blocks that a message consists of. */
static void pack(const kfi_side *side, const kfi_message *msg, bool unpack) {
  int64_t block = msg->block, from = msg->from;
  for (int64_t at = 0, n; at < msg->n_bytes; at += n, block++, from = 0) {
    n = kfi_block_bytes(&side->block[block]) - from;
    if (n > msg->n_bytes - at) n = msg->n_bytes - at;
    if (unpack)
      kfi_block_unpack(&side->block[block], from, n, msg->data + at);
    else
      kfi_block_pack(&side->block[block], from, n, msg->data + at);
  }
}

/* A receive is complete: has it the right size? Then put it where it belongs. */
static kf_status arrived(transfer *t, const kfi_message *msg, MPI_Status *status) {
  int n = 0;
  MPI_Get_count(status, MPI_BYTE, &n);
  if (n != msg->n_bytes)
    return kfi_fail(KF_EMISMATCH, "%s: rank %d sent %d bytes where rank %d expects %lld",
                    t->m->comm.call, msg->peer, n, t->m->comm.rank, (long long)msg->n_bytes);
  if (msg->staged) pack(&t->x->recv, msg, true);
  return KF_OK;
}

/* Poll once. */
static kf_status poll_once(transfer *t, bool *progress) {
  int n_done = 0, n = t->n_recv + t->n_send;
  *progress = false;
  if (t->n_left == 0) return KF_OK;
  int code = MPI_Testsome(n, t->request, &n_done, t->done, t->status);
  if (code == MPI_ERR_IN_STATUS) {
    for (int i = 0; i < n_done; i++)
      if (t->status[i].MPI_ERROR != MPI_SUCCESS)
        return kfi_mpi_failed(t->m, t->status[i].MPI_ERROR, "a transfer");
  } else if (code) {
    return kfi_mpi_failed(t->m, code, "MPI_Testsome");
  }
  for (int i = 0; i < n_done; i++) {
    kf_status status;
    t->n_left--;
    *progress = true;
    if (t->done[i] < t->n_recv && (status = arrived(t, &t->message[t->done[i]], &t->status[i])))
      return status;
  }
  return KF_OK;
}

static kf_status post(transfer *t, int i) {
  const kfi_message *msg = &t->message[i];
  MPI_Comm comm = t->m->data;
  int n = (int)msg->n_bytes, code;
  if (i < t->n_recv)
    code = MPI_Irecv(msg->data, n, MPI_BYTE, msg->peer, t->tag, comm, &t->request[i]);
  else
    code = MPI_Isend(msg->data, n, MPI_BYTE, msg->peer, t->tag, comm, &t->request[i]);
  if (code) return kfi_mpi_failed(t->m, code, i < t->n_recv ? "MPI_Irecv" : "MPI_Isend");
  t->n_left++;
  return KF_OK;
}

/* Messages between two ranks arrive in the order in which they were sent: it is never changed. */
static kf_status post_all(transfer *t) {
  int64_t since = 0; /* bytes packed since the last poll */
  bool progress;
  kf_status status;
  for (int i = 0; i < t->n_recv + t->n_send; i++) {
    kfi_message *msg = &t->message[i];
    if (i >= t->n_recv && msg->staged) {
      pack(&t->x->send, msg, false);
      since += msg->n_bytes;
    }
    if ((status = post(t, i))) return status;
    if (since < SLICE) continue;
    since = 0;
    if ((status = poll_once(t, &progress))) return status;
  }
  return KF_OK;
}

static kf_status copy_home(transfer *t) {
  const kfi_side *send = &t->x->send, *recv = &t->x->recv;
  int32_t me = t->m->comm.rank;
  int64_t a = send->block_off[me], b = recv->block_off[me], n = send->block_off[me + 1] - a,
          since = 0;
  bool progress;
  kf_status status;
  for (int64_t i = 0; i < n; i++) {
    int64_t n_bytes = kfi_block_bytes(&send->block[a + i]);
    for (int64_t from = 0; from < n_bytes; from += SLICE) {
      int64_t k = n_bytes - from < SLICE ? n_bytes - from : SLICE;
      kfi_block_copy(&recv->block[b + i], &send->block[a + i], from, k);
      if ((since += k) < SLICE) continue;
      since = 0;
      if ((status = poll_once(t, &progress))) return status;
    }
  }
  return KF_OK;
}

kf_status kfi_mpi_exchange(kf_comm *comm, const kfi_transfer *x) {
  transfer t = {.m = (kfi_mpi *)comm, .x = x};
  bool progress;
  kf_status status;
  t.tag = kfi_mpi_begin(t.m);
  if ((status = kfi_mpi_listen(t.m))) return status;
  if ((status = lay_out(&t))) return status;
  if ((status = post_all(&t))) return status;
  if ((status = copy_home(&t))) return status;
  while (t.n_left > 0) {
    if ((status = poll_once(&t, &progress))) return status;
    if ((status = kfi_mpi_waited(t.m, &t.wait, progress))) return status;
  }
  return KF_OK;
}

#endif
