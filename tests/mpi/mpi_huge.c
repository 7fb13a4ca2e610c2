/* SPDX-License-Identifier: Apache-2.0 */
/*
** mpirun -n 2 huge: more than 2^31 bytes from rank 0 to rank 1, in one piece and as rows with gaps,
** and more elements in a reduction than MPI gets at a time: counts are ints there.
**
** Needs about 6 GB. Where the machine has less than 12 it says so and does nothing, which in CI is
** a failure. What is sent takes none of it: a small file is mapped again and again, and its length
** is no multiple or divisor of what messages are cut by, so that bytes in a wrong place are wrong
** bytes.
*/
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, MAP_NORESERVE */
#include <sys/mman.h>
#include <unistd.h>

#include "comm/comm.h"
#include "dice.h"
#include "ranks.h"

enum { PERIOD = 257 * 4096, ROW = 6144, GAP = 100, AROUND = 100000 };
static const int64_t FLAT = ((int64_t)1 << 31) + 12345, N_ROWS = 349526 + 7; /* * ROW > 2^31 */

/* Byte i of what is sent. */
static unsigned char at(int64_t i) {
  dice d = {(uint64_t)(i % PERIOD)};
  return (unsigned char)dice_next(&d);
}

static void *map(void *where, size_t n, int fd) {
  int flags = MAP_NORESERVE | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED | MAP_FIXED);
  void *p = mmap(where, n, PROT_READ | (fd < 0 ? PROT_WRITE : 0), flags, fd, 0);
  if (p == MAP_FAILED) {
    perror("mmap");
    abort();
  }
  if (fd < 0) madvise(p, n, MADV_HUGEPAGE); /* faulting in single pages takes most of the time */
  return p;
}

/* n bytes at least, of which byte i is at(i). Unmap n + PERIOD. */
static char *pattern_of(int64_t n) {
  FILE *file = tmpfile();
  if (!file) abort();
  for (int64_t i = 0; i < PERIOD; i++) fputc(at(i), file);
  if (fflush(file)) abort();
  char *all = map(NULL, (size_t)(n + PERIOD), -1);
  for (int64_t i = 0; i < n; i += PERIOD) map(all + i, PERIOD, fileno(file));
  fclose(file);
  return all;
}

/* Are bytes from .. from+AROUND-1 right? Byte i came from byte i / row * stride + i % row. */
static void look(const char *got, int64_t from, int64_t row, int64_t stride) {
  for (int64_t i = from; i < from + AROUND; i++)
    if ((unsigned char)got[i] != at(i / row * stride + i % row)) {
      fprintf(stderr, "byte %lld is wrong\n", (long long)i);
      abort();
    }
}

static void look_around(const char *got, int64_t n, int64_t row, int64_t stride) {
  const int64_t middle = (int64_t)1 << 31;
  look(got, 0, row, stride);
  look(got, n / 3, row, stride);
  look(got, middle - AROUND, row, stride);
  look(got, n - AROUND, row, stride);
}

static void send_flat(kf_comm *comm) {
  bool sender = kf_comm_rank(comm) == 0;
  int64_t to[2] = {0, sender ? FLAT : 0}, from[2] = {sender ? 0 : FLAT, 0};
  char *data = sender ? pattern_of(FLAT) : map(NULL, (size_t)FLAT, -1);
  EXPECT_OK(kf_comm_alltoallv(comm, sender ? data : NULL, to, sender ? NULL : data, from));
  if (!sender) look_around(data, FLAT, FLAT, FLAT);
  munmap(data, (size_t)(sender ? FLAT + PERIOD : FLAT));
}

static void send_rows(kf_comm *comm) {
  bool sender = kf_comm_rank(comm) == 0;
  int64_t stride = sender ? ROW + GAP : ROW, n = N_ROWS * stride;
  char *data = sender ? pattern_of(n) : map(NULL, (size_t)n, -1);
  kfi_block block = {data, N_ROWS, ROW, stride};
  int64_t to[3] = {0, 0, sender}, from[3] = {0, !sender, !sender};
  EXPECT_OK(kfi_comm_enter(comm, "exchange"));
  EXPECT_OK(kfi_comm_exchange(comm, &(kfi_transfer){{to, &block}, {from, &block}}));
  if (!sender) look_around(data, N_ROWS * ROW, ROW, ROW + GAP);
  munmap(data, (size_t)(sender ? n + PERIOD : n));
}

static void reduce(kf_comm *comm) {
  const int64_t n = ((int64_t)1 << 28) + 9, places[] = {0, 1 << 28, n - 1, (1 << 28) - 1};
  float *data = map(NULL, (size_t)n * sizeof *data, -1);
  for (int i = 0; i < 4; i++) data[places[i]] = (float)(i + 1 + kf_comm_rank(comm));
  EXPECT_OK(kf_comm_reduce(comm, KF_MAX, KF_F32, n, data));
  for (int i = 0; i < 4; i++)
    if (data[places[i]] != (float)(i + 2)) abort();
  munmap(data, (size_t)n * sizeof *data);
}

int main(void) {
  kf_comm *comm;
  EXPECT_OK(kf_comm_mpi_create(NULL, &comm));
  double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
  bool enough = memory >= 12e9;
  if (enough) {
    send_flat(comm);
    send_rows(comm);
    reduce(comm);
  } else {
    fprintf(stderr, "%.0f GB of memory, expected 12: nothing was tested\n", memory / 1e9);
  }
  kf_comm_free(comm);
  return enough || !getenv("CI") ? 0 : 1;
}
