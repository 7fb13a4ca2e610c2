#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The tsan build has every test program that can start a thread, and no other: the list in
# tests/CMakeLists.txt is what the programs' symbols say.
set -euo pipefail
cd "$KF_BUILD/tests"
linked=$(for program in unit_* property_*; do
  if [ -x "$program" ] && nm -D "$program" | grep -qE ' U (pthread|thrd)_create\b'; then echo "$program"; fi
done | sort)
listed=$(sed -n '/^set(threaded/,/)$/p' "$KF_SOURCE/tests/CMakeLists.txt" | grep -oE '(unit|property)_\w+' | sort)
[ -n "$listed" ]
diff <(echo "$listed") <(echo "$linked") ||
  { echo "a line with < is listed and starts no thread; > does, and is not listed"; exit 1; }
