#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The public header compiles alone, as C11 and as C++17, with gcc and clang.
set -euo pipefail
for compiler in "gcc -x c -std=c11" "clang -x c -std=c11" "g++ -x c++ -std=c++17" "clang++ -x c++ -std=c++17"; do
  echo "$compiler"
  echo '#include <knapformer.h>' |
    $compiler -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I "$KF_SOURCE/include" -
done
