# SPDX-License-Identifier: Apache-2.0
"""The diff of README.md as it stands: the program before it and the program after it run on two ranks and print the same losses,
and it adds at most six lines."""
import os
import re
import subprocess
import sys
import tempfile

import torch
import workers

with open(os.path.join(os.environ["KF_SOURCE"], "README.md")) as file:
    diffs = re.findall(r"^```diff\n(.*?)^```$", file.read(), re.M | re.S)
assert len(diffs) == 1, "%d diffs in README.md" % len(diffs)
lines = diffs[0].splitlines()
assert all(line == "" or line[0] in " +-" for line in lines)
added = [line for line in lines if line.startswith("+")]
assert 1 <= len(added) <= 6, added


def run(folder, name, sign, tries=3):
    """The program with the lines of one sign, on two ranks: what it prints, in order of step and rank. It may be tried again: torch
    itself now and then aborts at the very end, while it takes the process group down."""
    path = os.path.join(folder, name + ".py")
    with open(path, "w") as out:
        out.writelines(line[1:] + "\n" for line in lines if line[:1] in ("", " ", sign))
    if torch.__version__.startswith("1."):  # workers that are started by hand
        port = str(workers.free_port())
        ranks = [subprocess.Popen([sys.executable, "-W", "ignore", path, "cpu"], stdout=subprocess.PIPE, universal_newlines=True,
                                  env=dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(r), WORLD_SIZE="2"))
                 for r in range(2)]
    else:
        ranks = [subprocess.Popen([sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node", "2",
                                   "--master-port", str(workers.free_port()), path, "cpu"], stdout=subprocess.PIPE, universal_newlines=True)]
    text = "".join(rank.communicate(timeout=300)[0] for rank in ranks)
    if any(rank.returncode for rank in ranks) and tries > 1:
        return run(folder, name, sign, tries - 1)
    assert all(rank.returncode == 0 for rank in ranks), text
    found = sorted(re.findall(r"step (\d+) rank (\d+) loss ([\d.]+)", text))
    assert len(found) == 10, text
    return found


os.environ["OMP_NUM_THREADS"] = "1"
with tempfile.TemporaryDirectory() as work:
    before, after = run(work, "before", "-"), run(work, "after", "+")
for (step, rank, a), (_, _, b) in zip(before, after):
    assert abs(float(a) - float(b)) <= 1e-5 * float(a), (step, rank, a, b)
print("ok")
