#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What reviewers should not have to look for. Each check prints the lines that fail it.
set -uo pipefail
cd "$KF_SOURCE"
failed=0
check() { # check NAME OFFENCES
  [ -z "$2" ] || { failed=1; printf '%s:\n%s\n\n' "$1" "$2"; }
}
mapfile -t sources < <(scripts/sources)
mapfile -t c_sources < <(scripts/sources c)

# Who may know whom, by includes; law.sh has it by symbols.
stray_includes() { # stray_includes FOLDER ALLOWED
  grep -rHoE '^ *# *include *["<][^">]*[">]' "$1" 2>/dev/null | sed 's/# *include *//' | grep -vE ":($2)\$"
}
own() { find "$1" -name '*.h' -printf '"%f"|' 2>/dev/null; } # the folder's own headers
libc='<(assert|ctype|errno|float|inttypes|limits|math|std[a-z]*|string|threads)\.h>'
api='["<]knapformer\.h[">]'
base="\"\.\./($(find src -maxdepth 1 -name '*.h' -printf '%f|' | sed 's/|$//'))\""
check "src/plan knows its own headers, the base files and libc only" \
  "$(stray_includes src/plan "$(own src/plan)$api|$base|$libc")"
for folder in src/learn src/batch src/read src/draw src/sim; do
  check "$folder knows its own headers, those of src/plan and the base files" \
    "$(stray_includes $folder "$(own $folder)$api|$base|\"\.\./plan/[a-z_]*\.h\"|<.*>")"
done
check "src/comm knows its own headers, those of src/plan and src/learn, and the base files" \
  "$(stray_includes src/comm "$(own src/comm)$api|$base|\"\.\./(plan|learn)/[a-z_]*\.h\"|<.*>")"
check "src/kernel knows its own headers and the base files" \
  "$(stray_includes src/kernel "$(own src/kernel)$api|$base|<.*>")"
for folder in examples train python/core; do
  check "$folder knows the public header, not the inside of other folders" \
    "$(stray_includes $folder "$(own $folder)$api|<.*>")"
done
check "cli knows the public header and the trainer's, not the inside of other folders" \
  "$(stray_includes cli "$(own cli)$api|\"train/train\.h\"|<.*>")"

check "two files of one name" "$(find . -path ./build -prune -o -path ./.git -prune -o -path ./tests/fuzz/corpus -prune -o \
  -type f ! -name CMakeLists.txt -printf '%f\n' | sort | uniq -d)"
internal_names() { # of types, and of what stands in braces behind "struct kfi_x"
  grep -rhoE '^(\}|typedef .*[ *]) *kfi_[a-z0-9_]+;' src | grep -oE 'kfi_[a-z0-9_]+;'
  grep -rhoE '^(typedef )?(struct|enum|union) kfi_[a-z0-9_]+ \{' src | grep -oE 'kfi_[a-z0-9_]+ '
}
check "an internal name defined twice" "$(internal_names | sort | uniq -d)"
check "no SPDX line" "$(grep -L 'SPDX-License-Identifier: Apache-2.0' "${sources[@]}")"
check "over 700 lines" "$(wc -l "${sources[@]}" |
  awk '$1 > 700 && $2 != "total" && $2 !~ /include\/knapformer.h$/')" # the manual is one file
check "a place that was not filled in" "$(grep -nE '@[A-Z0-9]+@' README.md doc/*.md)"
check "left to do" "$(grep -nE 'TO[D]O|FIX[M]E' "${sources[@]}")"
check "dead code" "$(grep -nE '^ *# *if +0\b' "${c_sources[@]}")"
check "space at the end of a line" "$(grep -nE '\s+$' "${sources[@]}")"
check "not formatted; run: make format" \
  "$(clang-format --dry-run -Werror "${c_sources[@]}" 2>&1 |
    sed -n 's/^\([^:]*\):.* error: .*/\1/p' | uniq -c)"

# Every file under tests/ runs: it is of a kind that tests/CMakeLists.txt picks up, or something
# else under tests/ names it.
idle_tests() {
  find tests -type f | while read -r file; do
    case "${file#tests/}" in
    CMakeLists.txt | unit/test_*.c | property/property_*.c | fuzz/fuzz_*.c | fuzz/corpus/* | \
      golden/*.txt | house/*.sh | mpi/mpi_*.c | mpi/mpi_*.sh | torch/torch_*.py | python/test_*.py | \
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
check "nothing runs this file" "$(idle_tests)"

exit $failed
