#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Who knows whom, by the symbols of the library's objects: a room of src/ may use what itself, the base files (those of
# src/ itself) and the rooms named here define, and nothing else.
set -euo pipefail
export LC_ALL=C # sort and join must agree
declare -A knows=([.]="" [plan]="" [learn]="plan" [batch]="plan" [read]="plan" [comm]="plan learn" [kernel]=""
  [draw]="plan learn" [sim]="plan learn")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$KF_BUILD/CMakeFiles/objects.dir/src"

# Lines "symbol room file" of what objects define (T, D, B, R) or want (U).
symbols() { # symbols --defined-only|--undefined-only
  find . -name '*.o' | while read -r object; do
    local file=${object#./} room=.
    [[ $file == */* ]] && room=${file%%/*}
    nm -g "$1" "$object" | awk -v at="$room ${file%.o}" 'NF >= 2 { print $NF, at }'
  done | sort
}
symbols --defined-only >"$work/defined"
symbols --undefined-only >"$work/wanted"
[ "$(wc -l <"$work/defined")" -gt 100 ] || { echo "found no symbols"; exit 1; }

broken=0
while read -r room _; do
  [ -n "${knows[$room]+set}" ] || { echo "src/$room is a room that this law does not name"; broken=1; }
done < <(cut -d' ' -f2 "$work/defined" | sort -u)
while read -r symbol owner _ room file; do
  [[ $owner == "$room" || $owner == . || " ${knows[$room]} " == *" $owner "* ]] && continue
  echo "src/$file uses $symbol of src/$owner, which src/$room must not know"
  broken=1
done < <(join "$work/defined" "$work/wanted")
exit $broken
