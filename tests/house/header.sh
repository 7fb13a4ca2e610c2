#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The public header compiles alone, as C11 and as C++17, with gcc and clang. So do the examples in its comments, and in
# those of knapformer_cuda.h: each indented block that calls the library is the body of a function, in which what an example does not declare is given.
set -euo pipefail
for compiler in "gcc -x c -std=c11" "clang -x c -std=c11" "g++ -x c++ -std=c++17" "clang++ -x c++ -std=c++17"; do
  echo "$compiler"
  echo '#include <knapformer.h>' |
    $compiler -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I "$KF_SOURCE/include" -
done

examples=$(awk '
  function close_block() {
    if (block ~ /kf_[a-z0-9_]+\(/) printf "void example_%d(void) {\n%s}\n", ++n, block
    block = ""
  }
  /^\*\*     / { block = block "#line " FNR " \"" FILENAME "\"\n" substr($0, 6) "\n"; next }
  { close_block() }
  END { printf "enum { EXAMPLES = %d };\n", n }' "$KF_SOURCE"/include/knapformer{,_cuda}.h)
gcc -std=c11 -Wall -Wextra -Wno-unused -Wno-maybe-uninitialized -Werror -fsyntax-only -I "$KF_SOURCE/include" -x c - <<END
#include <knapformer_cuda.h>
extern kf_comm *comm;
extern int32_t rank, n_ranks;
extern kf_scheduler *scheduler;
extern char own[], all[];
void your_gather(const void *own, int64_t n_bytes, void *all);
extern const kf_batch *batch;
extern const kf_rank_batch mine;
extern const int64_t *len, n_samples, n_epochs, n_steps;
extern const double *seconds;
extern const int64_t *cu;
extern void *stream;
int cudaMalloc(void **memory, size_t n_bytes);
$examples
_Static_assert(EXAMPLES >= 7, "the headers have seven examples");
END
