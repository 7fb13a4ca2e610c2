/* SPDX-License-Identifier: Apache-2.0 */
/* The MPI backend: mpi.c has the object, waiting and alarms; mpi_exchange.c moves blocks. */
#ifndef KFI_MPI_BACKEND_H
#define KFI_MPI_BACKEND_H

#include <mpi.h>

#include "comm.h"

/* What ranks tell each other on the alarm communicator. */
typedef struct kfi_alarm {
  int32_t failed; /* 1: a rank failed, for `reason`; 0: it waited in vain, in call `n_calls` */
  int32_t rank;
  int64_t n_calls;
  uint64_t what;   /* as in kf_comm */
  double waited_s; /* how long it had been in this call */
  char call[24];
  char reason[KFI_REASON];
} kfi_alarm;

/* What goes before the records of a gather. */
typedef struct kfi_label {
  int64_t n_bytes; /* of a record */
  char call[24];
} kfi_label;

/* A message of an exchange: some bytes of one block or of several. */
typedef struct kfi_message {
  int64_t block, from, n_bytes; /* begins at byte `from` of this block */
  char *data;                   /* the block's own memory, or a place in the staging buffer */
  int32_t peer;
  bool staged;
} kfi_message;

typedef struct kfi_mpi {
  kf_comm comm;
  MPI_Comm data, alarms; /* duplicates, so that no message of the program's comes in between */
  MPI_Op max, min;       /* of floats; see mpi.c */
  int64_t n_calls;
  double since;  /* when it made the present one */
  double away_s; /* between the one before and this one; 0 once it has listened */

  MPI_Request listening; /* for the next alarm */
  kfi_alarm heard;       /* where it arrives */
  kfi_alarm said;        /* this rank's own */
  bool alarmed;          /* it was said */
  MPI_Request *saying;   /* (size) */
  bool *silent;          /* (size) not heard of, in a roll call */

  kfi_buffer records, meanings, messages, requests, staging;
} kfi_mpi;

/* Waiting for something: spin, then yield, then sleep, and look at the clock and for alarms. */
typedef struct kfi_wait {
  double since; /* last progress; 0: not known yet */
} kfi_wait;

/* Called after a poll; `progress`: it found something done. Not KF_OK: give up. */
kf_status kfi_mpi_waited(kfi_mpi *m, kfi_wait *wait, bool progress);

/* Begin a call and give its messages a tag of their own, by which messages of ranks that mean
** something else do not match. */
int kfi_mpi_begin(kfi_mpi *m);

/* What an alarm has to say; KF_OK: there is none. A call that has begun asks first: it may find all
** it needs in MPI's buffers, though those who sent it have given up since. */
kf_status kfi_mpi_listen(kfi_mpi *m);

/* KF_ECOMM with MPI's own words. */
kf_status kfi_mpi_failed(const kfi_mpi *m, int code, const char *what);

kf_status kfi_mpi_exchange(kf_comm *comm, const kfi_transfer *exchange);

#endif
