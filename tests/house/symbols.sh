#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The shared library exports what the header declares, and nothing else. It uses nothing that
# prints, exits, or reads the environment; only src/comm reads the clock, only src/file.c opens
# files.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
nm -D --defined-only "$KF_BUILD/libknapformer.so" | awk '{print $3}' | sort >"$work/exported"
gcc -E -P -I "$KF_SOURCE/include" "$KF_SOURCE/include/knapformer.h" |
  sed 's/^typedef .*//' | grep -o '\bkf_[a-z0-9_]* *(' | tr -d ' (' | sort -u >"$work/declared"
diff "$work/declared" "$work/exported" || { echo "< declared only, > exported only"; exit 1; }

dynamic=$(readelf -d "$KF_BUILD/libknapformer.so")
soname=$(sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p' <<<"$dynamic")
[[ $soname =~ ^libknapformer\.so\.[0-9.]+$ ]] || { echo "the SONAME has no version: $soname"; exit 1; }

needed=$(sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' <<<"$dynamic" | grep -Ev '^(libc|libm|libmpi|libyaml-0|ld-linux.*)\.so' || true)
[ -z "$needed" ] || { echo "needs more than libc, libyaml and MPI: $needed"; exit 1; }

forbidden='(v?f?printf|f?puts|f?putc|putchar|perror|stdout|stderr|fopen|exit|_exit|abort'
forbidden+='|(secure_)?getenv|time|clock|gettimeofday|s?rand|random)'
used=$(nm -D --undefined-only "$KF_BUILD/libknapformer.so" | awk '{print $2}' | sed 's/@.*//' |
  grep -xE "$forbidden" || true)
[ -z "$used" ] || { echo "a library must not use:" $used; exit 1; }
timed=$(grep -lE '\bclock_gettime *\(' -r "$KF_SOURCE/src" | grep -v '/src/comm/' || true)
[ -z "$timed" ] || { echo "reads the clock:" $timed; exit 1; }
opens=$(grep -lE '\b(open|read) *\(' -r "$KF_SOURCE/src" | grep -v '/src/file.c' || true)
[ -z "$opens" ] || { echo "opens files:" $opens; exit 1; }
