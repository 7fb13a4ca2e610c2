# SPDX-License-Identifier: Apache-2.0
"""knapformer.nn.LayerNormModulate beside eager torch, as a model calls both: 8192 tokens of 3072 in 8
sequences, fp32, forward and backward through autograd, in one process, in turn.

    python bench/adaln_python.py [--threads N] [--rounds N] [--gate]

Eager is LN(x) * (1 + scale[index]) + shift[index], with --gate of x + gate[index] * u. Scale, shift and
gate are slices of one (sequences, 6, dim), as blocks have them. bench/adaln_torch.py compares the
kernel without the package, and with more ways to write this in torch.

Both sides are warm: malloc keeps what is freed, because memory that comes from the system anew takes
longer than the arithmetic; what page faults are left is shown. There is a pause before each call, for
torch's threads go on spinning after theirs and would take a core from whoever comes next.
"""
import argparse
import ctypes
import gc
import resource
import statistics
import time
import warnings

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8  # of glibc's malloc.h
mallopt = ctypes.CDLL(None).mallopt
warm = all((mallopt(M_MMAP_MAX, 0), mallopt(M_TRIM_THRESHOLD, -1), mallopt(M_ARENA_MAX, 1)))
assert warm, "mallopt failed"
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

import torch  # noqa: E402, after malloc is set
from torch.nn.functional import layer_norm  # noqa: E402

from knapformer.nn import LayerNormModulate  # noqa: E402

TOKENS, DIM, SEQS, EPS = 8192, 3072, 8, 1e-6
LENS = [TOKENS // SEQS] * SEQS
WARM_UP, PAUSE_S = 3, 0.02
BAR = 2  # what torch's time over ours should be at least, both ways

parser = argparse.ArgumentParser()
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--rounds", type=int, default=15)
parser.add_argument("--gate", action="store_true", help="with the prologue x + gate * u")
args = parser.parse_args()
torch.set_num_threads(args.threads)
torch.manual_seed(0)

x, u = (torch.randn(TOKENS, DIM).requires_grad_() for _ in range(2))
mod = torch.randn(SEQS, 6 * DIM)
gate, scale, shift = (m.requires_grad_() for m in mod.chunk(6, 1)[:3])
d_new, dy = (torch.randn(TOKENS, DIM) for _ in range(2))
index = torch.repeat_interleave(torch.arange(SEQS), torch.tensor(LENS))


def eager(x, scale, shift, index, gate=None, u=None):
    """index_select, because scale[index] takes longer, above all backward."""
    new = x if gate is None else x + gate.index_select(0, index) * u
    y = layer_norm(new, (DIM,), eps=EPS) * (1 + scale.index_select(0, index)) + shift.index_select(0, index)
    return y if gate is None else (new, y)


class Candidate:
    """The graph that forward leaves serves backward once; so no forward is in backward's time."""

    def __init__(self, function, where):
        self.function, self.where = function, where

    def forward(self):
        if args.gate:
            return self.function(x, scale, shift, self.where, gate=gate, u=u)
        return (self.function(x, scale, shift, self.where),)

    def backward(self, out):
        leaves = (x, scale, shift, gate, u) if args.gate else (x, scale, shift)
        return torch.autograd.grad(out, leaves, (d_new, dy)[-len(out):])


ours, theirs = Candidate(LayerNormModulate(EPS), LENS), Candidate(eager, index)

# -------------------------------------------------------------------------------- first verify


def exact(s):
    """The results of a sequence, and their gradients, in double precision."""
    rows = slice(sum(LENS[:s]), sum(LENS[:s + 1]))
    given = (x[rows], scale[s:s + 1], shift[s:s + 1], gate[s:s + 1], u[rows])[:5 if args.gate else 3]
    leaves = [t.detach().double().requires_grad_() for t in given]
    out = eager(*leaves[:3], torch.zeros(LENS[s], dtype=torch.int64), *leaves[3:])
    out = out if args.gate else (out,)
    gradients = torch.autograd.grad(out, leaves, [d[rows].double() for d in (d_new, dy)[-len(out):]])
    return [t.detach() for t in (*out, *gradients)]


def verify(name, candidate, share):
    """All results are within `share` of the largest of their kind."""
    out = candidate.forward()
    results = (*out, *candidate.backward(out))
    for s in range(SEQS):
        for i, (got, want) in enumerate(zip(results, exact(s))):
            part = got[s:s + 1] if len(got) == SEQS else got[sum(LENS[:s]):sum(LENS[:s + 1])]
            error, most = (t.abs().max().item() for t in (part.double() - want, want))
            assert error <= share * most, f"{name}: result {i} of sequence {s} is off by {error} of {most}"


verify("ours", ours, 2e-6)
verify("eager", theirs, 1e-5)

# ----------------------------------------------------------------------------------- then time


def count_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def time_once(candidate):
    """Milliseconds of forward and backward, and page faults of both."""
    times, out, faults = [], None, 0
    for call in (candidate.forward, lambda: candidate.backward(out)):
        time.sleep(PAUSE_S)
        before = count_faults()
        start = time.perf_counter()
        result = call()
        times.append((time.perf_counter() - start) * 1e3)
        faults += count_faults() - before
        out = result if out is None else out
    return (*times, faults)


gc.disable()
rounds = [(time_once(ours), time_once(theirs)) for _ in range(WARM_UP + args.rounds)][WARM_UP:]
print(f"torch {torch.__version__}, {TOKENS} x {DIM}, {SEQS} sequences, fp32, {args.threads} threads, "
      f"{args.rounds} rounds{', with the prologue' if args.gate else ''}")
faults = [statistics.median(pair[who][2] for pair in rounds) for who in (0, 1)]
print(f"page faults of a forward and backward: ours {faults[0]}, eager {faults[1]}")
print(f"{'':10}{'ours ms':>9}{'eager ms':>10}{'eager/ours':>12}{'at least':>10}")
for i, direction in enumerate(("forward", "backward")):
    mine, other = (statistics.median(pair[who][i] for pair in rounds) for who in (0, 1))
    ratio = statistics.median(pair[1][i] / pair[0][i] for pair in rounds)
    print(f"{direction:10}{mine:9.2f}{other:10.2f}{ratio:12.2f}{BAR:10}")
