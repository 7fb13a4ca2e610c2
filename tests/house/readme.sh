#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every C example of README.md compiles as it stands there, and runs; on two ranks if it uses MPI. An
# example without a main is the inside of one.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
awk -v work="$work" '/^```c$/ { n++; inside = 1; next } /^```$/ { inside = 0 }
  inside { print > (work "/block" n) }' "$KF_SOURCE/README.md"
[ -s "$work/block1" ] || { echo "README.md has no \`\`\`c block"; exit 1; }
for block in "$work"/block*; do
  if grep -q 'main *(' "$block"; then
    cp "$block" "$work/example.c"
  else
    { grep '^ *#' "$block" || true
      echo '#include <knapformer.h>'
      echo '#include <stdio.h>'
      echo 'int main(void) {'
      grep -v '^ *#' "$block"
      echo 'return 0; }'; } >"$work/example.c"
  fi
  cat "$work/example.c"
  gcc -std=c11 -Wall -Wextra -Werror -I "$KF_SOURCE/include" "$work/example.c" \
    -L "$KF_BUILD" -lknapformer -Wl,-rpath,"$KF_BUILD" -o "$work/example"
  if grep -q kf_comm_mpi_create "$work/example.c"; then
    "$KF_MPIRUN" -n 2 "$work/example"
  else
    "$work/example"
  fi
done
