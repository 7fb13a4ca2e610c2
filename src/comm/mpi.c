/* SPDX-License-Identifier: Apache-2.0 */
/*
** The MPI backend, plain MPI-3. Nothing blocks: every operation is started and then polled, and
** polling watches the clock and the alarms.
**
** Alarms have a communicator of their own, with a receive always posted. A rank that fails sends
** its reason to all. A rank that has waited for the whole timeout sends that to all too, and whoever
** hears of it while waiting gives up as well and says so: a roll call. After a moment of grace,
** ranks from which nothing was heard are the silent ones, and every rank that still lives has heard
** the same and names the same.
**
** A comm that broke is not finalised: MPI_Finalize would wait for the ranks that are gone, and
** pending receives may still write to staging memory, which therefore is left to the process's end.
*/
#include "comm.h"

#if defined(KF_HAVE_MPI)

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mpi_backend.h"

kf_status kfi_mpi_failed(const kfi_mpi *m, int code, const char *what) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int n;
  MPI_Error_string(code, text, &n);
  return kfi_fail(KF_ECOMM, "%s: %s failed: %s", m->comm.call, what, text);
}

/* --------------------------------------------------------------------- alarms */

static void start_listening(kfi_mpi *m) {
  if (MPI_Irecv(&m->heard, sizeof m->heard, MPI_BYTE, MPI_ANY_SOURCE, 0, m->alarms, &m->listening))
    m->listening = MPI_REQUEST_NULL;
}

/* Is there an alarm? It is in m->heard then, until the next start_listening(). */
static bool has_alarm(kfi_mpi *m) {
  int done = 0;
  if (m->listening == MPI_REQUEST_NULL) return false;
  return MPI_Test(&m->listening, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done;
}

/* Say something to all other ranks, once, without waiting for them to listen. */
static void say(kfi_mpi *m, bool failed, const char *reason) {
  if (m->alarmed) return;
  m->alarmed = true;
  m->said = (kfi_alarm){.failed = failed, .rank = m->comm.rank, .n_calls = m->n_calls};
  snprintf(m->said.call, sizeof m->said.call, "%s", m->comm.call);
  snprintf(m->said.reason, sizeof m->said.reason, "%s", reason);
  for (int32_t q = 0; q < m->comm.size; q++) {
    m->saying[q] = MPI_REQUEST_NULL;
    if (q != m->comm.rank)
      MPI_Isend(&m->said, sizeof m->said, MPI_BYTE, q, 0, m->alarms, &m->saying[q]);
  }
}

static void nap(double seconds) { nanosleep(&(struct timespec){0, (long)(seconds * 1e9)}, NULL); }

static kf_status heard_failure(kfi_mpi *m) {
  return kfi_comm_break(&m->comm, KF_ECOMM, "rank %d failed: %.300s", m->heard.rank,
                        m->heard.reason);
}

/* Messages that were sent but lie in this rank's buffers need polling to get out. */
static void let_out(kfi_mpi *m) {
  int done;
  for (int32_t q = 0; q < m->comm.size; q++) MPI_Test(&m->saying[q], &done, MPI_STATUS_IGNORE);
}

/* Waiting was in vain, here or elsewhere: find out who is silent. `first`: m->heard has an alarm. */
static kf_status roll_call(kfi_mpi *m, bool first) {
  double grace_s = m->comm.timeout_s / 4 < 5 ? m->comm.timeout_s / 4 : 5;
  double end = kfi_now_s() + grace_s;
  kfi_alarm other = {.rank = -1};
  int32_t n_heard = 1;
  char names[KFI_NAMES];
  say(m, false, "");
  for (int32_t r = 0; r < m->comm.size; r++) m->silent[r] = r != m->comm.rank;
  for (bool there = first; n_heard < m->comm.size; there = has_alarm(m)) {
    if (there) {
      if (m->heard.failed) return heard_failure(m);
      n_heard += m->silent[m->heard.rank];
      m->silent[m->heard.rank] = false;
      if (m->heard.n_calls != m->n_calls || strcmp(m->heard.call, m->said.call) != 0)
        other = m->heard;
      start_listening(m);
    } else if (kfi_now_s() > end) {
      break;
    } else {
      let_out(m);
      nap(1e-4);
    }
  }
  let_out(m);
  if (n_heard < m->comm.size) {
    kfi_name_ranks(m->silent, m->comm.size, names);
    return kfi_comm_break(&m->comm, KF_ETIMEOUT, "%s: %s silent for %g s", m->comm.call, names,
                          m->comm.timeout_s);
  }
  if (other.rank >= 0)
    return kfi_comm_break(&m->comm, KF_EMISMATCH,
                          "ranks wait for each other in different calls: rank %d in %s, its call "
                          "%lld, but rank %d in %s, its call %lld",
                          other.rank, other.call, (long long)other.n_calls, m->comm.rank,
                          m->comm.call, (long long)m->n_calls);
  return kfi_comm_break(&m->comm, KF_ETIMEOUT,
                        "%s: no progress for %g s, though all ranks are in the same call",
                        m->comm.call, m->comm.timeout_s);
}

static void alarm_others(kf_comm *comm, const char *reason) {
  kfi_mpi *m = (kfi_mpi *)comm;
  say(m, true, reason);
  for (int i = 0; i < 100; i++) let_out(m);
}

/* -------------------------------------------------------------------- waiting */

/*
** A peer that computes on a core of its own answers within microseconds: spin. One that shares
** this core needs it: yield. One that is late by milliseconds is computing: sleep, so that nobody
** pays for this rank's waiting.
*/
kf_status kfi_mpi_waited(kfi_mpi *m, kfi_wait *w, bool progress) {
  enum { SPIN = 256, LOOK = 64 };
  if (progress) {
    *w = (kfi_wait){0};
    return KF_OK;
  }
  if (++w->idle < SPIN || (w->idle % LOOK && w->since > 0)) {
    if (w->idle >= SPIN) sched_yield();
    return KF_OK;
  }
  double now = kfi_now_s();
  if (w->since <= 0) w->since = now;
  if (has_alarm(m)) {
    if (m->heard.failed) return heard_failure(m);
    return roll_call(m, true);
  }
  if (now - w->since > m->comm.timeout_s) return roll_call(m, false);
  if (now - w->since > 2e-3) {
    nap(5e-5);
    w->idle += LOOK - 1 - w->idle % LOOK; /* the next poll looks at the clock again */
  }
  return KF_OK;
}

int kfi_mpi_begin(kfi_mpi *m) {
  m->n_calls++;
  return (int)(m->n_calls % 32000) + 1;
}

static kf_status wait_for(kfi_mpi *m, MPI_Request *request, const char *what) {
  kfi_wait w = {0};
  for (;;) {
    int done = 0;
    int code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
    kf_status status;
    if (code) return kfi_mpi_failed(m, code, what);
    if (done) return KF_OK;
    if ((status = kfi_mpi_waited(m, &w, false))) return status;
  }
}

/* ---------------------------------------------------------------- collectives */

static kf_status gather(kf_comm *comm, const void *record, int64_t n_bytes, void *all) {
  kfi_mpi *m = (kfi_mpi *)comm;
  MPI_Request request;
  int n = (int)n_bytes, code;
  kfi_mpi_begin(m);
  if (n_bytes == 0)
    code = MPI_Ibarrier(m->data, &request);
  else
    code = MPI_Iallgather(record, n, MPI_BYTE, all, n, MPI_BYTE, m->data, &request);
  if (code) return kfi_mpi_failed(m, code, "MPI_Iallgather");
  return wait_for(m, &request, "MPI_Iallgather");
}

static kf_status reduce(kf_comm *comm, kf_reduction reduction, kf_type type, int64_t n,
                        void *data) {
  const MPI_Op op[] = {MPI_SUM, MPI_MAX, MPI_MIN};
  const MPI_Datatype of[] = {MPI_FLOAT, MPI_DOUBLE, MPI_INT64_T};
  const int64_t most = 1 << 28; /* elements at a time: counts are ints */
  kfi_mpi *m = (kfi_mpi *)comm;
  kfi_mpi_begin(m);
  for (int64_t i = 0; i < n; i += most) {
    int k = (int)(n - i < most ? n - i : most), code;
    MPI_Request request;
    kf_status status;
    char *at = (char *)data + i * kfi_type_bytes(type);
    code = MPI_Iallreduce(MPI_IN_PLACE, at, k, of[type], op[reduction], m->data, &request);
    if (code) return kfi_mpi_failed(m, code, "MPI_Iallreduce");
    if ((status = wait_for(m, &request, "MPI_Iallreduce"))) return status;
  }
  return KF_OK;
}

/* ----------------------------------------------------------------- the object */

static void close_mpi(kfi_mpi *m) {
  if (m->listening != MPI_REQUEST_NULL) {
    MPI_Cancel(&m->listening);
    MPI_Wait(&m->listening, MPI_STATUS_IGNORE);
  }
  MPI_Comm_free(&m->data);
  MPI_Comm_free(&m->alarms);
  if (m->initialised) MPI_Finalize();
}

static void mpi_free(kf_comm *comm) {
  kfi_mpi *m = (kfi_mpi *)comm;
  int finalised = 1;
  if (comm->broken) return; /* MPI may still write to what is ours */
  MPI_Finalized(&finalised);
  if (!finalised) close_mpi(m);
  kfi_buffer_free(&m->messages);
  kfi_buffer_free(&m->requests);
  kfi_buffer_free(&m->staging);
  free(m);
}

static const kfi_comm_ops ops = {gather, kfi_mpi_exchange, reduce, alarm_others, mpi_free};

static kf_status open_comms(kfi_mpi *m, MPI_Comm parent) {
  int code = MPI_Comm_dup(parent, &m->data);
  if (!code) code = MPI_Comm_dup(parent, &m->alarms);
  if (!code) code = MPI_Comm_set_errhandler(m->data, MPI_ERRORS_RETURN);
  if (!code) code = MPI_Comm_set_errhandler(m->alarms, MPI_ERRORS_RETURN);
  return code ? kfi_mpi_failed(m, code, "MPI_Comm_dup") : KF_OK;
}

kf_status kf_comm_mpi_create(const void *mpi_comm, kf_comm **out) {
  MPI_Comm parent = MPI_COMM_WORLD;
  int initialised = 1, given = 0, rank, size;
  kf_status status;
  if (!out) return kfi_fail(KF_EINVAL, "kf_comm_mpi_create: out is NULL");
  MPI_Initialized(&initialised);
  if (!initialised && MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &given))
    return kfi_fail(KF_ECOMM, "MPI_Init_thread failed");
  if (mpi_comm) parent = *(const MPI_Comm *)mpi_comm;
  MPI_Comm_rank(parent, &rank);
  MPI_Comm_size(parent, &size);

  size_t n_bytes = sizeof(kfi_mpi) + (size_t)size * (sizeof(MPI_Request) + sizeof(bool));
  kfi_mpi *m = calloc(1, n_bytes);
  if (!m) return kfi_fail_memory(n_bytes, "an MPI comm");
  m->comm = (kf_comm){
    .ops = &ops, .rank = rank, .size = size, .timeout_s = KF_DEFAULT_TIMEOUT_S, .call = "create"};
  m->initialised = !initialised;
  m->saying = (MPI_Request *)(m + 1);
  m->silent = (bool *)(m->saying + size);
  for (int32_t q = 0; q < size; q++) m->saying[q] = MPI_REQUEST_NULL;
  if ((status = open_comms(m, parent))) {
    free(m);
    return status;
  }
  start_listening(m);
  *out = &m->comm;
  return KF_OK;
}

#else

kf_status kf_comm_mpi_create(const void *mpi_comm, kf_comm **out) {
  (void)mpi_comm;
  (void)out;
  return kfi_fail(KF_ENOTBUILT, "this knapformer was built without MPI");
}

#endif
