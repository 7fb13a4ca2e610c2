# SPDX-License-Identifier: Apache-2.0
"""Every python block of doc/python.md runs as it stands there; and docstrings that show a result are right."""
import doctest
import os
import re
import sys
import tempfile

import knapformer.plan  # noqa: F401

with open(os.path.join(os.environ["KF_SOURCE"], "doc", "python.md")) as file:
    blocks = re.findall(r"^```python\n(.*?)^```$", file.read(), re.M | re.S)
assert len(blocks) >= 3, "doc/python.md has %d python blocks" % len(blocks)
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    for block in blocks:
        exec(compile(block, "doc/python.md", "exec"), {})
    os.chdir("/")
tried = [doctest.testmod(module) for name, module in sorted(sys.modules.items()) if name.startswith("knapformer.")]
assert sum(t.attempted for t in tried) > 0 and not any(t.failed for t in tried)
print("ok")
