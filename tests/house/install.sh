#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Install below a DESTDIR; then build a program outside the tree against what was installed, by
# pkg-config (shared and static) and by find_package, and run it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$KF_SOURCE/tests/tools/outsider.c" "$work"
version=$("$KF_PROGRAM" --version)

DESTDIR=$work/root cmake --install "$KF_BUILD" --prefix /opt/kf >/dev/null
root=$work/root/opt/kf
for file in bin/knapformer include/knapformer.h share/man/man1/knapformer.1 lib/libknapformer.a; do
  [ -f "$root/$file" ] || { echo "not installed: $file"; exit 1; }
done
[ "$("$root/bin/knapformer" --version)" = "$version" ]

cd "$work"
export PKG_CONFIG_PATH=$root/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$work/root LD_LIBRARY_PATH=$root/lib
[[ $version == *"$(pkg-config --modversion knapformer)"* ]]
gcc -std=c11 outsider.c $(pkg-config --cflags --libs knapformer) -o shared
readelf -d shared | grep -q 'NEEDED.*libknapformer\.so\.'
./shared
gcc -std=c11 outsider.c $(pkg-config --cflags knapformer) "$root/lib/libknapformer.a" \
  $(PKG_CONFIG_SYSROOT_DIR= pkg-config --static --libs-only-l --libs-only-other knapformer | sed 's/-lknapformer//') -o static
LD_LIBRARY_PATH= ./static

cat >CMakeLists.txt <<'EOF'
cmake_minimum_required(VERSION 3.25)
project(outsider C)
find_package(knapformer REQUIRED)
foreach(library knapformer knapformer_static)
  add_executable(with_${library} outsider.c)
  target_link_libraries(with_${library} knapformer::${library})
endforeach()
EOF
cmake -G Ninja -S . -B out -DCMAKE_PREFIX_PATH="$root" >/dev/null
cmake --build out >/dev/null
out/with_knapformer
LD_LIBRARY_PATH= out/with_knapformer_static
