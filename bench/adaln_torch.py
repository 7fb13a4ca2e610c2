# SPDX-License-Identifier: Apache-2.0
"""Our LayerNorm-Modulate beside torch's, on the CPU: 8192 tokens of 3072 in 8 sequences, forward
and backward, in one process, on the same tensors, with as many threads, in turn.

    python bench/adaln_torch.py [LIBRARY] [--threads N] [--rounds N] [--dtype fp32|bf16|fp16]

LIBRARY is build/libknapformer.so by default. torch's side, in the order of the table:

  eager            each operation by itself: layer_norm, scale and shift picked for every token
  affine, cat      F.layer_norm(x, weight=1+scale, bias=shift) of each sequence, and one cat
  affine, list     without the cat: x, y and dx are lists, one tensor a sequence
  compiled tokens  torch.compile of `eager`
  compiled affine  torch.compile of `affine, cat`
  compiled dense   torch.compile of a (sequences, length, dim) batch: not packed, possible only
                   because all lengths are the same here; it has no bar

Both sides are warm. torch takes memory for every result, and large blocks come from the system and
go back to it each time: at this size that takes longer than the arithmetic. So malloc is told to
keep what is freed. The page faults of what is timed are counted and shown, and are next to none. Our
results have buffers of their own, from the same malloc.

There is a pause before each call: torch's threads go on spinning for some milliseconds after theirs,
and would take a core from whoever comes next.
"""
import argparse
import ctypes
import gc
import os
import resource
import statistics
import tempfile
import time
import warnings

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8  # of glibc's malloc.h
mallopt = ctypes.CDLL(None).mallopt
warm = all((mallopt(M_MMAP_MAX, 0), mallopt(M_TRIM_THRESHOLD, -1), mallopt(M_ARENA_MAX, 1)))
assert warm, "mallopt failed"
cache = tempfile.TemporaryDirectory()
os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache.name
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

import torch  # noqa: E402, after malloc and the cache are set
from torch.nn.functional import layer_norm  # noqa: E402

TOKENS, DIM, SEQS, EPS = 8192, 3072, 8, 1e-6
LENS = [TOKENS // SEQS] * SEQS
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}  # as in kf_dtype
PAUSE_S = 0.02
# What torch's time over ours should be at least, forward and backward.
BARS = {"affine, cat": (2.5, 2.5), "affine, list": (1.6, 2.5), "compiled tokens": (2, 2.5),
        "compiled affine": (2, 2.5)}

parser = argparse.ArgumentParser()
parser.add_argument("library", nargs="?", default="build/libknapformer.so")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--rounds", type=int, default=15)
parser.add_argument("--dtype", choices=DTYPES, default="fp32")
args = parser.parse_args()
torch.set_num_threads(args.threads)
torch.manual_seed(0)
dtype = DTYPES[args.dtype]


def leaf(*shape):
    return torch.randn(shape).to(dtype).requires_grad_()


x, scale, shift = leaf(TOKENS, DIM), leaf(SEQS, DIM), leaf(SEQS, DIM)
dy = torch.randn(TOKENS, DIM).to(dtype)
xs = [part.detach().requires_grad_() for part in x.split(LENS)]
index = torch.repeat_interleave(torch.arange(SEQS), torch.tensor(LENS))

# ------------------------------------------------------------------------------------ ours


class Adaln(ctypes.Structure):
    """kf_adaln"""
    _fields_ = [(name, kind) for names, kind in (
        ("n_tokens n_seqs dim", ctypes.c_int64), ("cu_seqlens seq_index", ctypes.c_void_p),
        ("dtype mod_fp32", ctypes.c_int32), ("mod_stride", ctypes.c_int64),
        ("rounding", ctypes.c_int32), ("eps", ctypes.c_float), ("n_threads isa", ctypes.c_int32),
        ("scale shift x y mean rstd gate residual u", ctypes.c_void_p),
        ("dy dx_add dx du dscale dshift dgate workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_int64)) for name in names.split()]


lib = ctypes.CDLL(os.path.abspath(args.library))
lib.kf_last_error.restype = ctypes.c_char_p
lib.kf_adaln_workspace.restype = ctypes.c_int64


class Ours:
    def __init__(self):
        self.y, self.dx = torch.zeros_like(x), torch.zeros_like(x)
        self.dscale, self.dshift = torch.zeros_like(scale), torch.zeros_like(shift)
        self.stats = torch.zeros(2, TOKENS)
        self.cu_seqlens = (ctypes.c_int64 * (SEQS + 1))(*[sum(LENS[:s]) for s in range(SEQS + 1)])
        a = self.adaln = Adaln(n_tokens=TOKENS, n_seqs=SEQS, dim=DIM, eps=EPS,
                               dtype=list(DTYPES).index(args.dtype), n_threads=args.threads)
        a.cu_seqlens = ctypes.addressof(self.cu_seqlens)
        a.mean, a.rstd = (row.data_ptr() for row in self.stats)
        tensors = {"x": x, "scale": scale, "shift": shift, "y": self.y, "dy": dy, "dx": self.dx,
                   "dscale": self.dscale, "dshift": self.dshift}
        for field, tensor in tensors.items():
            setattr(a, field, tensor.data_ptr())
        a.workspace_bytes = lib.kf_adaln_workspace(ctypes.byref(a))
        self.block = torch.zeros(a.workspace_bytes + 64, dtype=torch.uint8)
        a.workspace = (self.block.data_ptr() + 63) // 64 * 64

    def forward(self):
        assert lib.kf_adaln_forward(ctypes.byref(self.adaln)) == 0, lib.kf_last_error()
        return self.y

    def backward(self, _):
        assert lib.kf_adaln_backward(ctypes.byref(self.adaln)) == 0, lib.kf_last_error()
        return self.dx, self.dscale, self.dshift


# ----------------------------------------------------------------------------------- torch's


def per_token(x, scale, shift):
    normed = layer_norm(x, (DIM,), eps=EPS)
    return normed * (1 + scale.index_select(0, index)) + shift.index_select(0, index)


def affine_list(parts, scale, shift):
    return [layer_norm(part, (DIM,), weight, bias, EPS)
            for part, weight, bias in zip(parts, (1 + scale).unbind(), shift.unbind())]


def affine_cat(x, scale, shift):
    return torch.cat(affine_list(x.split(LENS), scale, shift))


def dense(x, scale, shift):
    normed = layer_norm(x.view(SEQS, -1, DIM), (DIM,), eps=EPS)
    return (normed * (1 + scale[:, None]) + shift[:, None]).view(TOKENS, DIM)


class Torchs:
    """The graph that forward leaves serves backward once; so no forward is in backward's time."""

    def __init__(self, function, listed=False):
        self.function, self.listed = function, listed
        self.dy = dy.split(LENS) if listed else dy

    def forward(self):
        return self.function(xs if self.listed else x, scale, shift)

    def backward(self, y):
        if not self.listed:
            return torch.autograd.grad(y, (x, scale, shift), self.dy)
        *dx, dscale, dshift = torch.autograd.grad(y, (*xs, scale, shift), self.dy)
        return dx, dscale, dshift


ours = Ours()
theirs = {"eager": Torchs(per_token), "affine, cat": Torchs(affine_cat),
          "affine, list": Torchs(affine_list, listed=True),
          "compiled tokens": Torchs(torch.compile(per_token, dynamic=False)),
          "compiled affine": Torchs(torch.compile(affine_cat, dynamic=False)),
          "compiled dense": Torchs(torch.compile(dense, dynamic=False))}

# -------------------------------------------------------------------------------- first verify


def exact(s):
    """y, dx, dscale and dshift of a sequence in double precision."""
    rows = slice(sum(LENS[:s]), sum(LENS[:s + 1]))
    leaves = [t.detach().double().requires_grad_() for t in (x[rows], scale[s], shift[s])]
    y = layer_norm(leaves[0], (DIM,), eps=EPS) * (1 + leaves[1]) + leaves[2]
    return y.detach(), *torch.autograd.grad(y, leaves, dy[rows].double())


def verify(name, who, share):
    """All results are within `share` of the largest of their kind. Two calls, so that it is warm."""
    who.backward(who.forward())
    y = who.forward()
    dx, dscale, dshift = who.backward(y)
    y, dx = (t if isinstance(t, (list, tuple)) else t.split(LENS) for t in (y, dx))
    for s, wanted in enumerate(expected):
        for what, got, want in zip(("y", "dx", "dscale", "dshift"), (y, dx, dscale, dshift), wanted):
            error, most = (t.abs().max().item() for t in (got[s].double() - want, want))
            assert error <= share * most, f"{name}: {what} is off by {error} of {most}"


expected = [exact(s) for s in range(SEQS)]
unit = torch.finfo(dtype).eps
verify("ours", ours, max(unit / 2, 2e-6))
for name, who in theirs.items():
    verify(name, who, 1e-5 if dtype == torch.float32 else 8 * unit)  # rounds after every operation
del expected

# ----------------------------------------------------------------------------------- then time


def count_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def time_once(who):
    """Milliseconds of forward and backward, and page faults of each."""
    times, faults, y = [], [], None
    for call in (who.forward, lambda: who.backward(y)):
        time.sleep(PAUSE_S)
        before = count_faults()
        start = time.perf_counter()
        result = call()
        times.append((time.perf_counter() - start) * 1e3)
        faults.append(count_faults() - before)
        y = result if y is None else y
    return times, faults


gc.disable()
rounds = {name: [] for name in theirs}
for _ in range(args.rounds):
    for name, who in theirs.items():  # ours once more beside each: pairs see the same machine
        rounds[name].append((time_once(ours), time_once(who)))

print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {args.dtype}, "
      f"{args.threads} threads, {args.rounds} rounds")
faults = [max(sum(pair[who][1]) for pairs in rounds.values() for pair in pairs) for who in (0, 1)]
print(f"most page faults of a forward and backward: ours {faults[0]}, torch {faults[1]}")
for i, direction in enumerate(("forward", "backward")):
    print(f"\n{direction:18}{'ours ms':>9}{'torch ms':>10}{'torch/ours':>12}{'at least':>10}")
    for name, pairs in rounds.items():
        mine, other = (statistics.median(pair[who][0][i] for pair in pairs) for who in (0, 1))
        ratio = statistics.median(pair[1][0][i] / pair[0][0][i] for pair in pairs)
        bar = f"{BARS[name][i]:10}" if name in BARS else ""
        print(f"{name:18}{mine:9.2f}{other:10.2f}{ratio:12.2f}{bar}")
