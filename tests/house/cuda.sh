#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What nvcc made of the CUDA kernels, from what the build has kept in cuda/: nothing spills, every wide
# kernel loads and stores 16 bytes at once, nothing is atomic, the library exports what its header
# declares, and a C program that uses it compiles, links and starts. Prints registers by architecture.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$KF_BUILD"
failed=0
check() { # check NAME OFFENCES
  [ -z "$2" ] || { failed=1; printf '%s:\n%s\n\n' "$1" "$2"; }
}
shorten() { c++filt | sed -E 's/\(anonymous namespace\):://g; s/^void //; s/\(call\)//'; }

# One line for a kernel and an architecture: kernel; arch; registers; bytes of stack and of spills.
awk -F"'" '/Compiling entry function/ { kernel = $2; arch = $4 }
  /bytes stack frame/ { split($0, n, /[^0-9]+/); stack = n[2] + n[3] + n[4] }
  / Used [0-9]+ registers/ { match($0, /Used [0-9]+/)
    print kernel ";" arch ";" substr($0, RSTART + 5, RLENGTH - 5) ";" stack }' cuda/adaln.txt |
  shorten >"$work/kernels"
archs=(sm_80 sm_90 sm_100 sm_120)
echo "registers: ${archs[*]}"
awk -F';' '{ regs[$1] = regs[$1] " " $3 } END { for (k in regs) print k ":" regs[k] }' "$work/kernels" | sort
for arch in "${archs[@]}"; do
  n=$(grep -c ";$arch;" "$work/kernels") || true
  [ "$n" = 37 ] || check "37 kernels for $arch expected" "$n"
done
check "spills, or uses a stack" "$(awk -F';' '$4 != 0' "$work/kernels")"

# PTX: one entry after the other.
for ptx in cuda/adaln.compute_{80,90,100,120}.ptx; do
  awk '/\.entry / { match($0, /\.entry [^( ]+/); kernel = substr($0, RSTART + 7, RLENGTH - 7); n++ }
    /ld\.global[.a-zA-Z0-9:]*\.v(4\.[fbu]32|2\.[bu]64)/ { loads[kernel]++ }
    /st\.global[.a-zA-Z0-9:]*\.v(4\.[fbu]32|2\.[bu]64)/ { stores[kernel]++ }
    kernel { all[kernel] = 1 }
    END { for (k in all) print k, loads[k] + 0, stores[k] + 0 }' "$ptx" | shorten >"$work/wide"
  check "no 16-byte load and store in $ptx" \
    "$(grep -E '^adaln_(forward|backward)<layout<[a-z0-9]+, [48]>' "$work/wide" | awk '$(NF - 1) == 0 || $NF == 0')"
  [ "$(grep -cE '^adaln_(forward|backward)<layout<[a-z0-9]+, [48]>' "$work/wide")" = 24 ] ||
    check "24 wide kernels expected in $ptx" "$(cat "$work/wide")"
  check "atomic in $ptx" "$(grep -nE '\b(atom|red)\.' "$ptx" | head -n 3)"
done

# doc/adaln_cuda.md has what the registers allow on an H100 with 3072 columns: 64 K registers (handed
# out by 8), 2048 threads and 32 blocks a multiprocessor. Its numbers are of the nvcc that it names.
version=$(grep -om1 'V[0-9.]*[0-9]' cuda/adaln.compute_90.ptx)
page=$KF_SOURCE/doc/adaln_cuda.md
awk -F'[;<>, ]+' '$5 == "false" && / sm_90|;sm_90/ && ($4 == 4 || $4 == 8) {
    threads = 12 * 64 / $4; each = int(($8 + 7) / 8) * 8
    blocks = int(65536 / (each * threads)); if (blocks > 32) blocks = 32
    bytes = ($1 ~ /forward/ ? 64 : 128) * ($6 == 1 ? 2 : 1)
    printf "| %s%s | %s | %d | %d | %d | %d | %.0f |\n", substr($1, 7), $6 == 1 ? ", gate" : "", $3, threads,
      $8, blocks, blocks * threads, blocks * threads * bytes / 1000 }' "$work/kernels" | sort >"$work/occupancy"
if grep -qF "$version" "$page"; then
  check "not in $page" "$(grep -vxFf "$page" "$work/occupancy" || true)"
  [ "$(wc -l <"$work/occupancy")" = 12 ] || check "12 rows expected" "$(cat "$work/occupancy")"
else
  echo "$page is about another nvcc than $version"
fi

nm -D --defined-only libknapformer_cuda.so | awk '{print $3}' | sort >"$work/exported"
gcc -E -P -I "$KF_SOURCE/include" "$KF_SOURCE/include/knapformer_cuda.h" |
  sed 's/^typedef .*//' | grep -o '\bkf_[a-z0-9_]*_cuda *(' | tr -d ' (' | sort -u >"$work/declared"
check "declared in knapformer_cuda.h only (<), exported only (>)" \
  "$(diff "$work/declared" "$work/exported" || true)"
check "needs more than knapformer and the C and C++ libraries" "$(readelf -d libknapformer_cuda.so |
  sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | grep -Ev '^(libknapformer|libc|libm|libstdc\+\+|libgcc_s|ld-linux.*)\.so' || true)"
for compiler in "gcc -x c -std=c11" "g++ -x c++ -std=c++17"; do # no header of CUDA's
  printf '%s\n' '#include <knapformer_cuda.h>' 'int main(void) { return kf_adaln_forward_cuda(NULL, NULL) != KF_EINVAL; }' |
    $compiler -Wall -Wextra -Wpedantic -Werror -I "$KF_SOURCE/include" - -o "$work/program" \
      -L . -lknapformer_cuda -lknapformer -Wl,-rpath,"$PWD"
  "$work/program" || check "$compiler" "a program that calls the library fails"
done
exit $failed
