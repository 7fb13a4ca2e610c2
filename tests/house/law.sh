#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Who knows whom, by the symbols of the objects. A room of src/ may use what itself, the base files (those of src/
# itself) and the rooms named here define, and nothing else. The trainer, the program and the extension of the Python
# package may use of src/ what is public, kf_...: house/symbols.sh proves that the header declares it.
set -euo pipefail
export LC_ALL=C # sort and join must agree
declare -A knows=([src]="" [plan]="" [learn]="plan" [batch]="plan" [read]="plan" [comm]="plan learn" [kernel]=""
  [draw]="plan learn" [sim]="plan learn" [train]="public" [cli]="public train" [python]="public")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$KF_BUILD/CMakeFiles"

# Lines "symbol room file" of what objects define (T, D, B, R) or want (U).
symbols() { # symbols --defined-only|--undefined-only
  find objects.dir/src trainer.dir/train program.dir/cli python_core.dir/python -name '*.o' | while read -r object; do
    local file=${object#*/} room
    room=${file#src/}
    [[ $room == */* ]] || room=$file # a base file
    nm -g "$1" "$object" | awk -v at="${room%%/*} ${file%.o}" 'NF >= 2 { print $NF, at }'
  done | sort
}
symbols --defined-only >"$work/defined"
symbols --undefined-only >"$work/wanted"

broken=0
for room in "${!knows[@]}"; do
  grep -q " $room " "$work/defined" || { echo "$room: found no symbols"; broken=1; }
done
while read -r room; do
  [ -n "${knows[$room]+set}" ] || { echo "src/$room is a room that this law does not name"; broken=1; }
done < <(cut -d' ' -f2 "$work/defined" | sort -u)
while read -r symbol owner from room file; do
  [[ $owner == "$room" || " ${knows[$room]-} " == *" $owner "* ]] && continue
  if [[ " ${knows[$room]-} " == *" public "* ]]; then
    [[ $from == src/* && $symbol == kf_* ]] && continue
  elif [ "$owner" = src ]; then
    continue
  fi
  echo "$file uses $symbol of $from, which it must not know"
  broken=1
done < <(join "$work/defined" "$work/wanted")
exit $broken
