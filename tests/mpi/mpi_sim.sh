#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# knapformer sim on MPI ranks, whose lengths and times travel, and in one process, which has them all:
# the same plans, the same lessons, the same files, byte for byte. KF_PROGRAM and KF_MPIRUN say what
# to run, and by what.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
failed=0

# sim WHERE RANKS OPTION...: one run, its files in the folder WHERE.
sim() {
  local where=$1 ranks=$2
  local run=("$KF_PROGRAM" sim)
  shift 2
  mkdir -p "$where"
  if [ "$where" = many ]; then run=("$KF_MPIRUN" -n "$ranks" "${run[@]}"); fi
  if [ "$where" = one ]; then run+=(--ranks "$ranks"); fi
  "${run[@]}" "$@" --steps-file "$where/steps" --trace-file "$where/trace" \
    --metrics-file "$where/metrics" --state-file "$where/state" --json >"$where/json" 2>"$where/log" ||
    { echo "$where, $ranks ranks: failed"; cat "$where/log"; exit 1; }
}

# compare RANKS OPTION...: in one process and on ranks; `state` is kept from one call to the next.
compare() {
  local file
  sim one "$@"
  sim many "$@"
  for file in json steps trace metrics state; do
    cmp "one/$file" "many/$file" || { echo "ranks and options: $*"; failed=1; }
  done
  diff one/log many/log || { echo "ranks and options: $*"; failed=1; }
}

codes=g1b3i256f1s0,g1b1i1024f1s0,g1b2i512f4s0,g1b1i256f85s1
for ranks in 2 4; do
  rm -rf one many
  compare $ranks --mix $codes --steps 70 --set rebalance_interval=15 --slow 1:2@20-50 --outlier 0:30@9
  grep -q '"quadratic_s"' many/json
  compare $ranks --mix $codes --steps 41 --set rebalance_interval=15 --true-scale 2 # resumed
  grep -q '"first_step": 70' many/json
  rm -rf one many
  compare $ranks --mix mixres --steps 12 --seed 7 --set bag_size=2 --set rebalance_interval=5 \
    --set mem_tokens=60000 --log-level debug
done

# What is wrong is said by one rank, and ends all.
refuse() { # refuse SENTENCE CODE OPTION...
  local sentence=$1 code=$2 got=0
  shift 2
  "$KF_MPIRUN" -n 2 "$KF_PROGRAM" sim --json "$@" >out 2>err </dev/null || got=$?
  [ "$got" = "$code" ] || { echo "exit $got instead of $code: $*"; cat err; failed=1; }
  [ "$(grep -cF "$sentence" err)" = 1 ] || { echo "not said once: $sentence"; cat err; failed=1; }
  [ ! -s out ] || { echo "something on standard output: $*"; failed=1; }
}
refuse 'expected the 2 of the job' 2 --mix joint --ranks 3
refuse 'unknown key "gama"' 2 --mix joint --set gama=1
refuse 'reaches rank 0 only' 2 --mix joint --config -
refuse 'fits nowhere' 1 --mix joint --set mem_tokens=100
refuse 'No space left on device' 1 --mix joint --steps 5 --steps-file /dev/full
refuse 'nowhere/state' 1 --mix joint --steps 5 --state-file nowhere/state
exit $failed
