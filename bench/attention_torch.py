# SPDX-License-Identifier: Apache-2.0
"""Our CPU attention beside torch's scaled_dot_product_attention: one sequence of 4096 tokens, 6
heads of 64, fp32, one thread, forward and backward, in turn.

    python bench/attention_torch.py [PROGRAM] [--isa avx2|avx512|best] [--rounds N]

PROGRAM is build/knapformer by default. For AVX2 on a machine with AVX-512, set
ATEN_CPU_CAPABILITY=avx2 and MKL_ENABLE_INSTRUCTIONS=AVX2 as well.
"""
import argparse
import json
import statistics
import subprocess
import time

import torch

ROWS, HEADS, HEAD_DIM = 4096, 6, 64

parser = argparse.ArgumentParser()
parser.add_argument("program", nargs="?", default="build/knapformer")
parser.add_argument("--isa", default="best")
parser.add_argument("--rounds", type=int, default=5)
args = parser.parse_args()

torch.set_num_threads(1)
# (1, heads, rows, head_dim) views of (rows, heads, head_dim), the layout that ours reads.
q, k, v = (torch.randn(1, ROWS, HEADS, HEAD_DIM).transpose(1, 2).requires_grad_() for _ in range(3))
d_o = torch.randn(1, ROWS, HEADS, HEAD_DIM).transpose(1, 2)


def torch_us():
    start = time.perf_counter()
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    middle = time.perf_counter()
    torch.autograd.grad(o, (q, k, v), d_o)
    return (middle - start) * 1e6, (time.perf_counter() - middle) * 1e6


def our_us():
    command = [args.program, "bench", "attention", "--rounds", "1", "--isa", args.isa, "--json"]
    rows = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["rows"]
    return [row["median_us"] for row in rows]


torch_us()  # the first call pays for the memory
rounds = [(our_us(), torch_us()) for _ in range(args.rounds)]
print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}; ours: {args.isa}")
for i, name in enumerate(("forward", "backward")):
    ours, theirs = (statistics.median(r[who][i] for r in rounds) for who in (0, 1))
    gflop = 4e-9 * ROWS * ROWS * HEAD_DIM * HEADS * (2.5 if i else 1)
    print(f"{name:9} ours {ours / 1e3:7.1f} ms ({gflop / ours * 1e6:5.1f} GFLOP/s)  "
          f"torch {theirs / 1e3:7.1f} ms ({gflop / theirs * 1e6:5.1f} GFLOP/s)  "
          f"torch / ours {theirs / ours:.2f}")
