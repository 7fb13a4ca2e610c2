/* SPDX-License-Identifier: Apache-2.0 */
/*
** The MPI backend, plain MPI-3. No call between create and free blocks: every operation is started
** and then polled, and polling looks at the clock and the alarms.
**
** Alarms have a communicator of their own, with a receive always posted. A rank that fails sends
** its reason to all. A rank that has waited for the whole timeout sends that to all too, and
** whoever hears of it while waiting gives up as well and says so: a roll call. After a moment of
** grace, ranks from which nothing was heard are the silent ones. Every rank that was waiting has
** heard the same and names the same.
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
  int n, kind = code;
  MPI_Error_class(code, &kind);
  if (kind == MPI_ERR_TRUNCATE)
    return kfi_fail(
      KF_EMISMATCH,
      "%s: a message is longer than expected: ranks make different calls, or the same "
      "call with other sizes",
      m->comm.call);
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
  m->said = (kfi_alarm){.failed = failed,
                        .rank = m->comm.rank,
                        .n_calls = m->n_calls,
                        .what = m->comm.what,
                        .waited_s = kfi_now_s() - m->since};
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

/* All ranks are there after all. `other` makes another call, or none does; `last` came last. */
static kf_status nobody_silent(kfi_mpi *m, const kfi_alarm *other, const kfi_alarm *last) {
  double timeout_s = m->comm.timeout_s;
  if (other->rank >= 0)
    return kfi_comm_break(
      &m->comm, KF_EMISMATCH, "rank %d calls %s, but rank %d calls %s%s", other->rank, other->call,
      m->comm.rank, m->comm.call,
      strcmp(other->call, m->comm.call) == 0 ? ": with another plan or other tensors" : "");
  if (last->waited_s < timeout_s / 2)
    return kfi_comm_break(&m->comm, KF_ETIMEOUT, "%s: rank %d came too late, after more than %g s",
                          m->comm.call, last->rank, timeout_s);
  return kfi_comm_break(&m->comm, KF_ETIMEOUT,
                        "%s: no progress for %g s, though all ranks are there", m->comm.call,
                        timeout_s);
}

/* Waiting was in vain, here or elsewhere: find out who is silent. `first`: m->heard has an
** alarm. */
static kf_status roll_call(kfi_mpi *m, bool first) {
  double grace_s = m->comm.timeout_s / 4 < 5 ? m->comm.timeout_s / 4 : 5;
  double end = kfi_now_s() + grace_s;
  kfi_alarm other = {.rank = -1}, last;
  int32_t n_heard = 1;
  char names[KFI_NAMES];
  say(m, false, "");
  last = m->said;
  for (int32_t r = 0; r < m->comm.size; r++) m->silent[r] = r != m->comm.rank;
  for (bool there = first; n_heard < m->comm.size; there = has_alarm(m)) {
    if (there) {
      if (m->heard.failed) return heard_failure(m);
      n_heard += m->silent[m->heard.rank];
      m->silent[m->heard.rank] = false;
      if (m->heard.n_calls == m->n_calls &&
          (m->heard.what != m->said.what || strcmp(m->heard.call, m->said.call) != 0))
        other = m->heard;
      if (m->heard.waited_s < last.waited_s) last = m->heard;
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
  return nobody_silent(m, &other, &last);
}

/* Who was away for so long that the others may have given up listens harder: an MPI does not always
** get at a message by one poll, and those of the call itself may lie before it. */
kf_status kfi_mpi_listen(kfi_mpi *m) {
  const double hard_s = 1e-3;
  double end = m->away_s > m->comm.timeout_s / 2 ? kfi_now_s() + hard_s : 0;
  bool there = has_alarm(m);
  while (!there && end > 0 && kfi_now_s() < end) there = has_alarm(m);
  m->away_s = 0;
  if (!there) return KF_OK;
  return m->heard.failed ? heard_failure(m) : roll_call(m, true);
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
  const double spin_s = 5e-5, yield_s = 2e-3;
  kf_status status;
  double now = kfi_now_s(); /* at every poll: on a busy machine one may take milliseconds */
  if (progress || w->since <= 0) w->since = now;
  if (now - w->since < spin_s) return KF_OK;
  if ((status = kfi_mpi_listen(m))) return status;
  if (now - w->since > m->comm.timeout_s) return roll_call(m, false);
  if (now - w->since > yield_s)
    nap(5e-5);
  else
    sched_yield();
  return KF_OK;
}

int kfi_mpi_begin(kfi_mpi *m) {
  double now = kfi_now_s();
  m->n_calls++;
  m->away_s = now - m->since;
  m->since = now;
  return (int)(((uint64_t)m->n_calls + m->comm.what) % 32000) + 1;
}

static kf_status wait_for(kfi_mpi *m, MPI_Request *request, MPI_Status *status, const char *what) {
  kfi_wait w = {0};
  for (;;) {
    int done = 0, code = MPI_Test(request, &done, status);
    kf_status failed;
    if (code) return kfi_mpi_failed(m, code, what);
    if (done) return KF_OK;
    if ((failed = kfi_mpi_waited(m, &w, false))) return failed;
  }
}

/* --------------------------------------------------------------------- gather */

/*
** Bruck's all-gather, in log2(ranks) rounds: a rank that has the records of the k ranks from itself
** on gets as many from the k-th after it. MPI_Iallgather is as fast, but where ranks call different
** things Open MPI finds a truncated message inside of it and ends the job without a reason. Here
** every message has a label, and a wrong one becomes a sentence on every rank.
**
**     label | record of rank | of rank+1 | ...        the last part is where messages arrive
**
** Some more may arrive than is expected, so that the label of a wrong message can be read.
*/
enum { SLACK = 4096 };

typedef struct gathering {
  int64_t n_bytes; /* of a record */
  char *mine;      /* label, then records */
  char *arriving;
  int tag;
} gathering;

static kf_status read_message(kfi_mpi *m, const gathering *g, int from, int n_got, int64_t n_want) {
  const kfi_label *want = (const kfi_label *)g->mine;
  kfi_label label = {-1, "something else"};
  if (n_got >= (int)sizeof label) memcpy(&label, g->arriving, sizeof label);
  if (n_got == n_want && memcmp(&label, want, sizeof label) == 0) return KF_OK;
  label.call[sizeof label.call - 1] = 0;
  if (strcmp(label.call, want->call) == 0)
    return kfi_fail(KF_EMISMATCH, "%s: rank %d has %lld bytes, but rank %d has %lld", want->call,
                    from, (long long)label.n_bytes, m->comm.rank, (long long)want->n_bytes);
  return kfi_fail(KF_EMISMATCH, "rank %d calls %s, but rank %d calls %s", from, label.call,
                  m->comm.rank, want->call);
}

/* One round: the first n records go to rank `to`, as many arrive from rank `from`. */
static kf_status swap_messages(kfi_mpi *m, const gathering *g, int to, int from, int32_t n) {
  int64_t n_bytes = (int64_t)sizeof(kfi_label) + n * g->n_bytes;
  MPI_Request in, out;
  MPI_Status arrived, sent;
  kf_status status;
  int n_got = 0, code;
  code = MPI_Irecv(g->arriving, (int)n_bytes + SLACK, MPI_BYTE, from, g->tag, m->data, &in);
  if (code) return kfi_mpi_failed(m, code, "MPI_Irecv");
  code = MPI_Isend(g->mine, (int)n_bytes, MPI_BYTE, to, g->tag, m->data, &out);
  if (code) return kfi_mpi_failed(m, code, "MPI_Isend");
  if ((status = wait_for(m, &in, &arrived, "a message"))) return status;
  if ((status = wait_for(m, &out, &sent, "a message"))) return status;
  MPI_Get_count(&arrived, MPI_BYTE, &n_got);
  return read_message(m, g, from, n_got, n_bytes);
}

static kf_status gather(kf_comm *comm, const void *record, int64_t n_bytes, void *all) {
  kfi_mpi *m = (kfi_mpi *)comm;
  int32_t size = comm->size, rank = comm->rank, half = (size + 1) / 2;
  gathering g = {.n_bytes = n_bytes};
  kfi_label label = {.n_bytes = n_bytes};
  kf_status status;
  comm->what = 0; /* the label tells */
  g.tag = kfi_mpi_begin(m);
  if ((status = kfi_mpi_listen(m))) return status;
  size_t room = sizeof label + (size_t)(size * n_bytes),
         arriving = sizeof label + (size_t)(half * n_bytes) + SLACK;
  if (!(g.mine = kfi_buffer_reserve(&m->records, room + arriving))) return KF_ENOMEM;
  g.arriving = g.mine + room;
  char *records = g.mine + sizeof label;
  snprintf(label.call, sizeof label.call, "%s", comm->call);
  memcpy(g.mine, &label, sizeof label);
  if (n_bytes > 0) memcpy(records, record, (size_t)n_bytes);
  for (int32_t have = 1, n; have < size; have += n) {
    n = have < size - have ? have : size - have;
    if ((status = swap_messages(m, &g, (rank - have + size) % size, (rank + have) % size, n)))
      return status;
    memcpy(records + have * n_bytes, g.arriving + sizeof label, (size_t)(n * n_bytes));
  }
  for (int32_t i = 0; n_bytes > 0 && i < size; i++)
    memcpy((char *)all + (rank + i) % size * n_bytes, records + i * n_bytes, (size_t)n_bytes);
  return KF_OK;
}

/* --------------------------------------------------------------------- reduce */

/* MPI's own maximum of a NaN depends on the order; see kfi_reduce. */
static void by_kfi(kf_reduction reduction, const void *in, void *acc, int n, MPI_Datatype of) {
  kfi_reduce(reduction, of == MPI_FLOAT ? KF_F32 : of == MPI_DOUBLE ? KF_F64 : KF_I64, n, acc, in);
}

static void mpi_max(void *in, void *acc, int *n, MPI_Datatype *of) {
  by_kfi(KF_MAX, in, acc, *n, *of);
}

static void mpi_min(void *in, void *acc, int *n, MPI_Datatype *of) {
  by_kfi(KF_MIN, in, acc, *n, *of);
}

/* Gradients are large: a gather before them costs nothing, and sees that all mean the same. */
static kf_status reduce(kf_comm *comm, kf_reduction reduction, kf_dtype type, int64_t n,
                        void *data) {
  MPI_Datatype of = type == KF_F32 ? MPI_FLOAT : type == KF_F64 ? MPI_DOUBLE : MPI_INT64_T;
  const int64_t most = 1 << 22; /* elements at a time: counts are ints, and progress shows */
  kfi_mpi *m = (kfi_mpi *)comm;
  const MPI_Op op[] = {MPI_SUM, m->max, m->min};
  int64_t mine[2] = {n, reduction * 8 + type}, *all;
  kf_status status;
  if (!(all = kfi_buffer_reserve(&m->meanings, (size_t)comm->size * sizeof mine))) return KF_ENOMEM;
  if ((status = gather(comm, mine, sizeof mine, all))) return status;
  for (int32_t r = 1; r < comm->size; r++)
    if ((status = kfi_same_reduction(r, &all[2 * r], all))) return status;
  for (int64_t i = 0; i < n; i += most) {
    int k = (int)(n - i < most ? n - i : most), code;
    MPI_Request request;
    MPI_Status done;
    char *at = (char *)data + i * kfi_dtype_bytes(type);
    code = MPI_Iallreduce(MPI_IN_PLACE, at, k, of, op[reduction], m->data, &request);
    if (code) return kfi_mpi_failed(m, code, "MPI_Iallreduce");
    if ((status = wait_for(m, &request, &done, "MPI_Iallreduce"))) return status;
  }
  return KF_OK;
}

/* ----------------------------------------------------------------- the object */

/* Comms of this process, and whether the library initialised MPI for them. */
static int n_open;
static bool ours;

/* MPI_Finalize waits for all ranks. So does this, but it listens: false if one has failed, or has
** given up waiting for somebody. */
static bool all_leave(kfi_mpi *m) {
  MPI_Request request;
  int done = 0;
  if (MPI_Ibarrier(m->data, &request)) return false;
  for (int64_t i = 0; !done; i++) {
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE)) return false;
    if (done) break;
    if (i % 64 == 63 && has_alarm(m)) return false;
    if (i > 1000) nap(5e-5);
  }
  return true;
}

static void mpi_free(kf_comm *comm) {
  kfi_mpi *m = (kfi_mpi *)comm;
  int finalised = 1;
  MPI_Finalized(&finalised);
  n_open--;
  if (comm->broken || (!finalised && !all_leave(m))) return; /* MPI may still write to it */
  if (!finalised) {
    if (m->listening != MPI_REQUEST_NULL) {
      MPI_Cancel(&m->listening);
      MPI_Wait(&m->listening, MPI_STATUS_IGNORE);
    }
    MPI_Comm_free(&m->data);
    MPI_Comm_free(&m->alarms);
    MPI_Op_free(&m->max);
    MPI_Op_free(&m->min);
    if (ours && n_open == 0) MPI_Finalize();
  }
  kfi_buffer_free(&m->records);
  kfi_buffer_free(&m->meanings);
  kfi_buffer_free(&m->messages);
  kfi_buffer_free(&m->requests);
  kfi_buffer_free(&m->staging);
  free(m);
}

static const kfi_comm_ops ops = {gather, kfi_mpi_exchange, reduce, alarm_others, mpi_free};

/* Everybody takes part in what MPI wants all ranks for, also who has failed by then. */
static kf_status open_comms(MPI_Comm parent, int *first_failed, MPI_Comm *data, MPI_Comm *alarms) {
  kfi_mpi none = {.comm.call = "create"}; /* for the message */
  int code = MPI_Comm_dup(parent, data);
  if (code) return kfi_mpi_failed(&none, code, "MPI_Comm_dup");
  code = MPI_Comm_dup(parent, alarms);
  if (!code) code = MPI_Allreduce(MPI_IN_PLACE, first_failed, 1, MPI_INT, MPI_MIN, *data);
  if (!code) code = MPI_Comm_set_errhandler(*data, MPI_ERRORS_RETURN);
  if (!code) code = MPI_Comm_set_errhandler(*alarms, MPI_ERRORS_RETURN);
  return code ? kfi_mpi_failed(&none, code, "duplicating the communicator") : KF_OK;
}

static kf_status start_mpi(void) {
  int initialised = 1, finalised = 0, given;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  if (finalised) return kfi_fail(KF_ECOMM, "MPI is finalised, and cannot be initialised again");
  if (initialised) return KF_OK;
  if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &given))
    return kfi_fail(KF_ECOMM, "MPI_Init_thread failed");
  ours = true;
  /* some MPIs report the errors of a request there, and would end the job */
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  return KF_OK;
}

kf_status kf_comm_mpi_create(const void *mpi_comm, kf_comm **out) {
  MPI_Comm parent = MPI_COMM_WORLD, data, alarms;
  int rank, size;
  kf_status status, own = KF_OK;
  if ((status = start_mpi())) return status;
  if (mpi_comm) parent = *(const MPI_Comm *)mpi_comm;
  if (parent == MPI_COMM_NULL)
    return kfi_fail(KF_EINVAL, "kf_comm_mpi_create: the communicator is MPI_COMM_NULL");
  MPI_Comm_rank(parent, &rank);
  MPI_Comm_size(parent, &size);
  size_t n_bytes = sizeof(kfi_mpi) + (size_t)size * (sizeof(MPI_Request) + sizeof(bool));
  kfi_mpi *m = calloc(1, n_bytes);
  if (!m) own = kfi_fail_memory(n_bytes, "an MPI comm");
  if (!out) own = kfi_fail(KF_EINVAL, "kf_comm_mpi_create: out is NULL");
  int first_failed = own ? rank : size;
  status = open_comms(parent, &first_failed, &data, &alarms);
  if (!status && first_failed < size) {
    MPI_Comm_free(&data);
    MPI_Comm_free(&alarms);
    status = own ? own : kfi_fail(KF_ECOMM, "rank %d failed to create its comm", first_failed);
  }
  if (status) {
    free(m);
    return status;
  }
  m->comm = (kf_comm){
    .ops = &ops, .rank = rank, .size = size, .timeout_s = KF_DEFAULT_TIMEOUT_S, .call = "create"};
  m->data = data;
  m->alarms = alarms;
  m->saying = (MPI_Request *)(m + 1);
  m->silent = (bool *)(m->saying + size);
  for (int32_t q = 0; q < size; q++) m->saying[q] = MPI_REQUEST_NULL;
  MPI_Op_create(mpi_max, 1, &m->max);
  MPI_Op_create(mpi_min, 1, &m->min);
  m->since = kfi_now_s();
  start_listening(m);
  n_open++;
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
