/* SPDX-License-Identifier: Apache-2.0 */
/* What `bench adaln` proves before it times anything. */
#ifndef BENCH_ADALN_H
#define BENCH_ADALN_H

#include "bench.h"

/* Bytes of workspace that the check of `full` needs. */
int64_t bench_adaln_check_workspace(const kf_adaln *full);

/* 0, or an exit code after saying what differs: on some of the tokens, forward and backward give
** the bits of the portable kernel, and are as close to doubles as their type allows. Overwrites
** what they write. */
int bench_adaln_check(const char *command, const kf_adaln *full);

#endif
