#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The Python package as a user installs it: one wheel for Python 3.8 and later, from a clean copy of the tree, into an environment
# that has neither PyTorch nor NumPy; and its sources keep to Python 3.8.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONDONTWRITEBYTECODE=1
unset PYTHONPATH

/usr/bin/python3 - "$KF_SOURCE"/python/knapformer/*.py <<'END'
import ast, sys
for path in sys.argv[1:]:
    ast.parse(open(path).read(), path, feature_version=(3, 8))
END

cd "$KF_SOURCE"
mkdir "$work/tree"
tar cf - --exclude=./build --exclude=./.git . | tar xf - -C "$work/tree"
/usr/bin/python3 -m venv "$work/venv"
# -O1: what is installed is looked at here, not how fast it is, and kernels take half a minute to optimise.
"$work/venv/bin/pip" install --disable-pip-version-check -q --config-settings=cmake.define.CMAKE_C_FLAGS_RELEASE=-O1 "$work/tree"
rm -rf "$work/tree"
cd "$work"

venv/bin/python - <<'END'
import importlib.metadata, os, re, subprocess, sys
import knapformer
folder = os.path.dirname(knapformer.__file__)
assert folder.startswith(sys.prefix), folder
assert importlib.metadata.version("knapformer") == knapformer.__version__
names = set(os.listdir(folder))
assert {"_core.abi3.so", "py.typed", "_core.pyi", "hooks.py"} <= names, names
assert not [n for n in names if n.endswith((".c", ".h"))], names
tags = next(f for f in importlib.metadata.files("knapformer") if f.name == "WHEEL").read_text()
assert re.search(r"^Tag: cp38-abi3-", tags, re.M), tags
assert "torch" not in sys.modules and "numpy" not in sys.modules
needs = subprocess.run(["ldd", os.path.join(folder, "_core.abi3.so")], stdout=subprocess.PIPE, universal_newlines=True).stdout
assert not re.search(r"python|torch|mpi|not found", needs), needs
END
KF_PROGRAM="$KF_PROGRAM" PYTHONPATH="$KF_SOURCE/tests/tools" venv/bin/python "$KF_SOURCE/tests/python/test_core_plan.py"
