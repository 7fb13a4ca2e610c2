#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What reviewers should not have to look for. Each rule prints the lines that break it.
set -uo pipefail
cd "$KF_SOURCE"
failed=0
rule() { # rule NAME OFFENCES
  [ -z "$2" ] || { failed=1; printf '%s:\n%s\n\n' "$1" "$2"; }
}
mapfile -t sources < <(scripts/sources)
mapfile -t c_sources < <(scripts/sources c)

# The dependency law: print the includes of a folder's files that match no allowed pattern.
stray_includes() { # stray_includes FOLDER ALLOWED
  grep -rHoE '^ *# *include *["<][^">]*[">]' "$1" 2>/dev/null | sed 's/# *include *//' | grep -vE ":($2)\$"
}
own() { find "$1" -name '*.h' -printf '"%f"|' 2>/dev/null; } # the folder's own headers
libc='<(assert|ctype|errno|float|inttypes|limits|math|std[a-z]*|string|threads)\.h>'
api='["<]knapformer\.h[">]'
rule "src/balance knows its own headers and libc only" \
  "$(stray_includes src/balance "$(own src/balance)$api|$libc")"
for folder in src/comm src/kernel; do
  rule "$folder knows the public header, and how to fail, to reserve memory and to prove a plan" \
    "$(stray_includes $folder "$(own $folder)$api|\"(\.\./)?balance/(status|memory|plan_check)\.h\"|<.*>")"
done
rule "src/config knows the public header, how to fail and to write, and libyaml" \
  "$(stray_includes src/config "$(own src/config)$api|\"(\.\./)?balance/(status|memory|text)\.h\"|\"(\.\./)?sim/writer\.h\"|<.*>")"
for folder in examples train python/core; do
  rule "$folder knows the public header, not the inside of other folders" \
    "$(stray_includes $folder "$(own $folder)$api|<.*>")"
done
rule "cli knows the public header and the trainer's, not the inside of other folders" \
  "$(stray_includes cli "$(own cli)$api|\"train/train\.h\"|<.*>")"

rule "no SPDX line" "$(grep -L 'SPDX-License-Identifier: Apache-2.0' "${sources[@]}")"
rule "over 700 lines" "$(wc -l "${sources[@]}" |
  awk '$1 > 700 && $2 != "total" && $2 !~ /include\/knapformer.h$/')" # the manual is one file
rule "a place that was not filled in" "$(grep -nE '@[A-Z0-9]+@' README.md doc/*.md)"
rule "left to do" "$(grep -nE 'TO[D]O|FIX[M]E' "${sources[@]}")"
rule "dead code" "$(grep -nE '^ *# *if +0\b' "${c_sources[@]}")"
rule "space at the end of a line" "$(grep -nE '\s+$' "${sources[@]}")"
rule "not formatted; run: make format" \
  "$(clang-format --dry-run -Werror "${c_sources[@]}" 2>&1 |
    sed -n 's/^\([^:]*\):.* error: .*/\1/p' | uniq -c)"

# Every file under tests/ runs: it is of a kind that tests/CMakeLists.txt picks up, or something
# else under tests/ names it.
idle_tests() {
  find tests -type f | while read -r file; do
    case "${file#tests/}" in
    CMakeLists.txt | unit/test_*.c | property/*.c | fuzz/fuzz_*.c | fuzz/corpus/* | \
      golden/*.txt | house/*.sh | mpi/*.c | mpi/*.sh | torch/*.py | python/*.py | \
      cuda/test_*.cu | cuda/emulator/*.cu) ;;
    tools/*.py)
      local name=${file##*/}
      grep -rqE "^(import|from) ${name%.py}\\b" tests || echo "$file"
      ;;
    *)
      grep -rqF --exclude="${file##*/}" "${file#tests/*/}" tests || echo "$file"
      ;;
    esac
  done
}
rule "nothing runs this file" "$(idle_tests)"

exit $failed
