# SPDX-License-Identifier: Apache-2.0
# What people call. CMakeLists.txt builds, scripts/test tests; this only calls them.
PREFIX ?= /usr/local
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)
export JOBS
SHELL       = /bin/bash
.SHELLFLAGS = -euo pipefail -c

all: built
	@ls build/knapformer build/libknapformer.a build/libknapformer.so

built:
	@scripts/install-deps build
	@test -f build/build.ninja || cmake --log-level=WARNING -G Ninja -S . -B build >/dev/null
	@cmake --build build -j $(JOBS) -- --quiet | sed '/no work to do/d'

# The main job: train without and with the balancer in turn, for less than three minutes, and compare.
run: built
	@build/knapformer train --compare --steps 100 --seconds 120 --report build/report.html

test:
	@scripts/install-deps test
	@scripts/test

soak:
	@scripts/install-deps test
	@scripts/soak

bench: built
	@for what in plan bucket route attention adaln scheduler train; do build/knapformer bench $$what; done

install: built
	DESTDIR='$(DESTDIR)' cmake --install build --prefix '$(PREFIX)'
	@if [ -z '$(DESTDIR)' ] && [ "$$(id -u)" = 0 ]; then ldconfig; fi

format:
	@scripts/install-deps test
	@scripts/sources c | xargs clang-format -i

clean:
	rm -rf build

.PHONY: all built run test soak bench install format clean
