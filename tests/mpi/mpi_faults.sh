#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# mpi_faults.sh [SEED]: lose a rank of a running job, at a random moment, in four ways. The job must end,
# with a code that is not 0, no process of it may be left, and the ranks that live must say whom they
# lost where it is them who find out.
#
#   stop   SIGSTOP: every other rank says KF_ETIMEOUT's sentence, which names the rank
#   kill   SIGKILL: the launcher ends the job, unless a rank finds out first
#   exit   a rank exits with code 3: likewise
#   fail   a rank calls kf_comm_fail: every other rank names it and its reason
#
# KF_SOAK rounds of each, or a handful. KF_SOURCE, KF_BUILD and KF_MPIRUN say what to run, and by what.
set -uo pipefail
. "$KF_SOURCE/tests/tools/wait_until.sh"
seed=${1:-$(date +%s)}
rounds=${KF_SOAK:-2}
timeout=2
deadline=20 # timeout, grace, the second that ranks wait, and what the launcher takes on a busy machine
worker=$KF_BUILD/tests/mpi_worker
out=$(mktemp)
name=
trap 'end_job; rm -f "$out"' EXIT
RANDOM=$((seed % 32768))
echo "seed $seed, $rounds rounds"

# What the job of this round has left. Only its own processes have its name as an argument.
processes() { if [ -n "$name" ]; then pgrep -f -- "$name"; fi; }

end_job() {
  local pid
  for pid in $(processes); do kill -KILL "$pid"; done
}

die() {
  echo "seed $seed, round $round, $fault of rank $victim of $ranks: $1"
  sed 's/^/  /' "$out"
  exit 1
}

all_started() { [ "$(grep -c '^rank [0-9]* is process' "$out")" = "$ranks" ]; }
ended() { ! kill -0 "$job" 2>/dev/null; }
nothing_left() { [ -z "$(processes)" ]; }

# every_other SENTENCE: do all ranks but the lost one say it?
every_other() {
  local r
  for ((r = 0; r < ranks; r++)); do
    [ "$r" = "$victim" ] || grep -q "^rank $r: .*$1" "$out" || die "rank $r does not say \"$1\""
  done
}

lose_one() {
  local step=$((RANDOM % 200)) code pid
  ranks=$((3 + RANDOM % 2))
  victim=$((RANDOM % ranks))
  name=knapformer-fault-$$-$round-$fault
  : >"$out" # here and now: the job opens it some time later, and the last one's ranks are in it
  # The worker knows exit and fail; signals come from here.
  "$KF_MPIRUN" -n "$ranks" "$worker" "$RANDOM" 1000000 $timeout "$fault" "$victim" "$step" "$name" \
    >"$out" 2>&1 </dev/null &
  job=$!
  case $fault in stop | kill)
    wait_until $deadline all_started || die "the ranks did not start"
    sleep "0.$((RANDOM % 10))$((RANDOM % 10))"
    pid=$(sed -n "s/^rank $victim is process //p" "$out")
    kill -"${fault^^}" "$pid" || die "process $pid is gone already"
    ;;
  esac
  wait_until $deadline ended || die "the job goes on"
  wait "$job"
  code=$?
  [ "$code" != 0 ] || die "the job ended with code 0"
  wait_until 5 nothing_left || die "processes are left: $(processes | tr '\n' ' ')"
  case $fault in
  stop) every_other "rank $victim was silent for $timeout s" ;;
  fail) every_other "rank $victim failed: on purpose" ;;
  esac
  name=
}

for ((round = 1; round <= rounds; round++)); do
  for fault in stop kill exit fail; do lose_one; done
done
echo "every loss was noticed"
