#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The first C example of README.md compiles as it stands there, and runs. An example without a
# main is the inside of one.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sed -n '/^```c$/,/^```$/{/^```c$/d;/^```$/q;p}' "$KF_SOURCE/README.md" >"$work/block"
[ -s "$work/block" ] || { echo "README.md has no \`\`\`c block"; exit 1; }
if grep -q 'main *(' "$work/block"; then
  cp "$work/block" "$work/example.c"
else
  { grep '^ *#' "$work/block" || true
    echo '#include <knapformer.h>'
    echo '#include <stdio.h>'
    echo 'int main(void) {'
    grep -v '^ *#' "$work/block"
    echo 'return 0; }'; } >"$work/example.c"
fi
cat "$work/example.c"
gcc -std=c11 -Wall -Wextra -Werror -I "$KF_SOURCE/include" "$work/example.c" \
  -L "$KF_BUILD" -lknapformer -Wl,-rpath,"$KF_BUILD" -o "$work/example"
"$work/example"
