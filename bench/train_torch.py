# SPDX-License-Identifier: Apache-2.0
"""Our training step beside torch's of the same model (dit_torch.py): DiT-S, one sequence of 2048 visual
tokens, fp32, one thread, one process, nothing padded. A step is forward, loss, backward, clipping to a
norm of 1, AdamW and the moving average of the parameters. In turn.

    python bench/train_torch.py [PROGRAM] [--isa avx2|avx512|best] [--rounds N]

PROGRAM is build/knapformer by default. For AVX2 on a machine with AVX-512, set
ATEN_CPU_CAPABILITY=avx2 and MKL_ENABLE_INSTRUCTIONS=AVX2 for torch, and OPENBLAS_CORETYPE=Haswell for
our matrix products, as well. That both compute the same is what tests/torch/torch_train.py shows.

torch has its fastest way here: the fused AdamW (19 ms a step; foreach 66 ms, one by one 61 ms), and a
malloc that keeps what is freed, because otherwise large tensors come from the system each time. SDPA
on contiguous copies of q, k and v, rotations as complex products or LayerNorm with the modulation as its
affine part are all within 1% of what is timed.
"""
import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
import warnings

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8  # of glibc's malloc.h
mallopt = ctypes.CDLL(None).mallopt
warm = all((mallopt(M_MMAP_MAX, 0), mallopt(M_TRIM_THRESHOLD, -1), mallopt(M_ARENA_MAX, 1)))
assert warm, "mallopt failed"
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

import torch  # noqa: E402, after malloc is set

sys.dont_write_bytecode = True
import dit_torch  # noqa: E402

DIM, LAYERS, HEADS = 384, 12, 6  # DiT-S
TOKENS, SIDE = 2048, 45

parser = argparse.ArgumentParser()
parser.add_argument("program", nargs="?", default="build/knapformer")
parser.add_argument("--isa", default="best")
parser.add_argument("--rounds", type=int, default=5)
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
index = torch.arange(TOKENS)
rows = dit_torch.Rows(value=torch.randn(TOKENS, dit_torch.VALUES), word=torch.full((TOKENS,), -1),
                      at=torch.stack((0 * index, index // SIDE, index % SIDE), 1),
                      time=torch.full((TOKENS,), 0.4), label=torch.full((TOKENS,), 0), lens=[TOKENS])
target = torch.randn(TOKENS, dit_torch.VALUES)
model, ema = (dit_torch.DiT(DIM, LAYERS, HEADS) for _ in range(2))
ema.load_state_dict(model.state_dict())
optimizer = dit_torch.optimizer_of(model, 1e-4, (0.9, 0.99), 1e-8, 0.01, fused=True)


def torch_us():
    start = time.perf_counter()
    optimizer.zero_grad()
    dit_torch.loss_of(model(rows), target, rows.word < 0).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1)
    optimizer.step()
    dit_torch.follow(ema, model, 0.999)
    return (time.perf_counter() - start) * 1e6


def our_us():
    command = [args.program, "bench", "train", "--rounds", "1", "--isa", args.isa, "--json"]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE,
                         env=os.environ | {"OPENBLAS_NUM_THREADS": "1"}).stdout
    return next(row["median_us"] for row in json.loads(out)["rows"] if row["name"] == "train_vs_gemm")


torch_us()  # the first step pays for the memory
rounds = [(our_us(), torch_us()) for _ in range(args.rounds)]
ours, theirs = (statistics.median(column) for column in zip(*rounds))
print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}; ours: {args.isa}; "
      f"{args.rounds} rounds")
for name, us in (("ours", ours), ("torch", theirs)):
    print(f"{name:6} {us / 1e3:8.1f} ms a step, {TOKENS / us * 1e6:7.1f} tokens/s")
print(f"torch / ours {theirs / ours:.2f}")
