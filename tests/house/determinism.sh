#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every compiler and optimisation level plans, learns, fits and samples the same, bit for bit. A row of
# the output is a plan, a run of a scheduler, a fit or an epoch; a compiler that disagrees shows as a
# diff.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$KF_SOURCE"
variants=("gcc -O0" "gcc -O3" "gcc -O3 -march=native" "clang -O0" "clang -O3" "clang -O3 -march=native")
failed=0
for i in "${!variants[@]}"; do
  ${variants[i]} -std=c11 -D_POSIX_C_SOURCE=200809L -ffp-contract=off -Iinclude -iquote src \
    tests/tools/plan_hashes.c src/*.c src/{plan,learn,batch,read,sim}/*.c -lm -lyaml -o "$work/plan_hashes"
  "$work/plan_hashes" >"$work/$i"
  echo "${variants[i]}: $(wc -l <"$work/$i") rows, $(sha256sum <"$work/$i" | cut -c1-16)"
  diff -q "$work/0" "$work/$i" >/dev/null || {
    failed=1
    echo "${variants[0]} (<) and ${variants[i]} (>) disagree:"
    diff "$work/0" "$work/$i" | head -n 10 || true
  }
done
exit $failed
