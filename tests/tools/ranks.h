/* SPDX-License-Identifier: Apache-2.0 */
/*
** Run a function on n local ranks, a thread each. cmocka's asserts belong to the thread that runs
** the test: in a rank's thread use assert(), or the checks below, which print what they saw.
*/
#ifndef RANKS_H
#define RANKS_H

#include <knapformer.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MOST = 16 };

/* What all ranks run; `arg` is the same for all, and they write only their own parts of it. */
typedef void ranks_body(kf_comm *comm, void *arg);

typedef struct ranks_member {
  pthread_t thread;
  kf_comm *comm;
  ranks_body *body;
  void *arg;
} ranks_member;

static inline void *ranks_start(void *member) {
  ranks_member *m = member;
  m->body(m->comm, m->arg);
  return NULL;
}

/* Returns when all have returned and their comms are freed. */
static inline void ranks_run(int32_t n, double timeout_s, ranks_body *body, void *arg) {
  ranks_member member[RANKS_MOST];
  kf_comm *comm[RANKS_MOST];
  if (kf_comm_local_create(n, comm)) abort();
  for (int32_t r = 0; r < n; r++) {
    member[r] = (ranks_member){.comm = comm[r], .body = body, .arg = arg};
    if (kf_comm_set_timeout(comm[r], timeout_s)) abort();
    if (pthread_create(&member[r].thread, NULL, ranks_start, &member[r])) abort();
  }
  for (int32_t r = 0; r < n; r++) pthread_join(member[r].thread, NULL);
  for (int32_t r = 0; r < n; r++) kf_comm_free(comm[r]);
}

/* Is it this status, with this in its sentence? */
static inline void expect_at(const char *file, int line, kf_status got, kf_status want,
                             const char *part) {
  if (got == want && (!part || strstr(kf_last_error(), part))) return;
  fprintf(stderr, "%s:%d: %s, \"%s\", expected %s, \"%s\"\n", file, line, kf_status_string(got),
          got ? kf_last_error() : "", kf_status_string(want), part ? part : "");
  abort();
}
#define EXPECT(got, want, part) expect_at(__FILE__, __LINE__, (got), (want), (part))
#define EXPECT_OK(got) expect_at(__FILE__, __LINE__, (got), KF_OK, NULL)

#endif
