# SPDX-License-Identifier: Apache-2.0
"""kf_adaln against PyTorch: a piece of a residual stream, x = residual + gate * u and
y = LN(x) * (1 + scale) + shift, whose loss uses both x and y. In fp32 against autograd in float64,
in bf16 and fp16 also against what an eager model in that type gives, and how many bytes each keeps."""

import ctypes
import math
import os

import torch

lib = ctypes.CDLL(os.path.join(os.environ["KF_BUILD"], "libknapformer.so"))
lib.kf_last_error.restype = ctypes.c_char_p
lib.kf_adaln_workspace.restype = ctypes.c_int64
POINTER, INT64, INT32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
ROUND_ONCE, ROUND_EACH = 0, 1
EPS = 1e-6


class Adaln(ctypes.Structure):
    _fields_ = ([("n_tokens", INT64), ("n_seqs", INT64), ("dim", INT64), ("cu_seqlens", POINTER),
                 ("seq_index", POINTER), ("dtype", ctypes.c_int), ("mod_fp32", INT32),
                 ("mod_stride", INT64), ("rounding", ctypes.c_int), ("eps", ctypes.c_float),
                 ("n_threads", INT32), ("isa", ctypes.c_int)] +
                [(name, POINTER) for name in (
                    "scale shift x y mean rstd gate residual u dy dx_add dx du dscale dshift dgate "
                    "workspace").split()] + [("workspace_bytes", INT64)])


def ours(seq, data, rounding):
    """x, y, the five gradients, and what is kept for the backward; data: see make()."""
    out = {name: torch.full_like(data["u"], math.nan) for name in "x y dx du".split()}
    out |= {name: torch.full_like(data["scale"], math.nan) for name in "dscale dshift dgate".split()}
    out |= {name: torch.full((len(seq),), math.nan) for name in ("mean", "rstd")}
    seq = seq.to(torch.int32)
    n_seqs, dim = data["scale"].shape
    pointers = {name: t.data_ptr() for name, t in (data | out).items()}
    a = Adaln(n_tokens=len(seq), n_seqs=n_seqs, dim=dim, seq_index=seq.data_ptr(),
              dtype=DTYPES[data["u"].dtype], rounding=rounding, eps=EPS, n_threads=2, **pointers)
    a.workspace_bytes = lib.kf_adaln_workspace(ctypes.byref(a))
    block = torch.empty(a.workspace_bytes + 64, dtype=torch.uint8)
    a.workspace = (block.data_ptr() + 63) // 64 * 64
    for call in (lib.kf_adaln_forward, lib.kf_adaln_backward):
        assert call(ctypes.byref(a)) == 0, lib.kf_last_error()
    return out


def stream(seq, residual, u, gate, scale, shift):
    x = residual + gate[seq] * u
    return x, torch.nn.functional.layer_norm(x, (x.shape[1],), eps=EPS) * (1 + scale[seq]) + shift[seq]


def torchs(seq, data, dtype):
    leaf = {name: data[name].to(dtype).detach().requires_grad_()
            for name in "residual u gate scale shift".split()}
    x, y = stream(seq, **leaf)
    torch.autograd.backward((x, y), (data["dx_add"].to(dtype), data["dy"].to(dtype)))
    return {"x": x.detach(), "y": y.detach(), "dx": leaf["residual"].grad, "du": leaf["u"].grad,
            "dgate": leaf["gate"].grad, "dscale": leaf["scale"].grad, "dshift": leaf["shift"].grad}


def make(lens, dim, dtype, scattered=False):
    seq = torch.repeat_interleave(torch.arange(len(lens)), torch.tensor(lens))
    if scattered:
        seq = seq[torch.randperm(len(seq))]
    tokens = {name: torch.randn(len(seq), dim).to(dtype) for name in "residual u dy dx_add".split()}
    mods = {name: (0.5 * torch.randn(len(lens), dim)).to(dtype) for name in "gate scale shift".split()}
    return seq, tokens | mods


def fp32_against_float64():
    for dim in (1, 5, 64, 100, 1152, 3072):
        for scattered in (False, True):
            seq, data = make([40, 0, 1, 65, 7], dim, torch.float32, scattered)
            want = torchs(seq, data, torch.float64)
            for rounding in (ROUND_ONCE, ROUND_EACH):
                got = ours(seq, data, rounding)
                for name in want:
                    size = want[name].abs().max().clamp(min=0.1)  # of one column LN is 0
                    error = ((got[name] - want[name]).abs().max() / size).item()
                    print(f"fp32 dim {dim:4} rounding {rounding} {name:6} {error:.1e}")
                    assert error <= 1e-6, f"{name}: {error}"


def step(t):
    """The distance of t's elements from their neighbours."""
    info = torch.finfo(t.dtype)
    exponent = torch.frexp(t.double().abs().clamp(min=info.tiny)).exponent - 1
    return torch.ldexp(torch.tensor(info.eps, dtype=torch.float64), exponent)


def eager_forward():
    """Nearly all bits are the eager model's. One operation on the way may be rounded the other way,
    because fp32 sums were added up in another order: a step of the largest number there is."""
    for dtype, share in ((torch.bfloat16, 0.999), (torch.float16, 0.99)):
        for dim in (64, 100, 3072):
            seq, data = make([40, 0, 1, 65, 7], dim, dtype)
            got, want = ours(seq, data, ROUND_EACH), torchs(seq, data, dtype)
            assert torch.equal(got["x"], want["x"])
            same = (got["y"] == want["y"]).double().mean().item()
            product = want["y"] - data["shift"][seq]
            largest = torch.maximum(product.abs(), torch.maximum(want["y"].abs(), data["shift"][seq].abs()))
            steps = ((got["y"].double() - want["y"].double()).abs() / step(largest)).max().item()
            print(f"{dtype} dim {dim:4} y: {100 * same:.3f}% the same bits, at most {steps:.0f} steps")
            assert same >= share and steps <= 2


def rms(t):
    return t.double().square().mean().sqrt().item()


def eager_backward():
    """On the CPU, PyTorch keeps mean and rstd in bf16, and adds up a sequence's gradients in bf16, so
    the same bits are not the aim; no farther from float64 than that is. ROUND_ONCE is nearer still."""
    for dtype in (torch.bfloat16, torch.float16):
        seq, data = make([400, 0, 1, 65], 768, dtype)
        want = torchs(seq, data, torch.float64)
        eager = torchs(seq, data, dtype)
        each, once = ours(seq, data, ROUND_EACH), ours(seq, data, ROUND_ONCE)
        for name in "x y dx du dscale dshift dgate".split():
            theirs, rounded, exact = (rms(t[name].double() - want[name]) / rms(want[name])
                                      for t in (eager, each, once))
            print(f"{dtype} {name:6} error: eager {theirs:.1e}, each {rounded:.1e}, once {exact:.1e}")
            assert rounded <= 1.02 * theirs and exact <= 1.02 * rounded, name


def kept_bytes(dtype, dim):
    """Bytes a token that eager PyTorch keeps for the backward of y, beyond x and the modulation."""
    seq, data = make([700, 0, 300, 24], dim, dtype)
    x, scale, shift = (data[name].requires_grad_() for name in ("residual", "scale", "shift"))
    own = {t.untyped_storage().data_ptr() for t in (x, scale, shift)}
    kept = {}

    def pack(t):
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage  # which also keeps the address from being used again
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        torch.nn.functional.layer_norm(x, (dim,), eps=EPS) * (1 + scale[seq]) + shift[seq]
    return sum(storage.nbytes() for storage in kept.values()) / len(seq)


def activation_memory():
    """LN(x) and 1 + scale of each token, mean and rstd, and the index: as doc/adaln.md has it."""
    with open(os.path.join(os.environ["KF_SOURCE"], "doc", "adaln.md"), encoding="utf-8") as file:
        doc = file.read().replace(",", "")
    for dtype, expected in ((torch.float32, 24592), (torch.bfloat16, 12300)):
        seq, data = make([30, 2], 3072, dtype)
        got = ours(seq, data, ROUND_ONCE)
        mine = sum(got[name].nbytes for name in ("mean", "rstd")) / len(seq)
        theirs = kept_bytes(dtype, 3072)
        print(f"{dtype}: {mine:.0f} bytes a token, eager {theirs:.0f}")
        assert mine == 8 and theirs == expected
        assert str(expected) in doc, f"doc/adaln.md does not say {expected}"


torch.manual_seed(1)
fp32_against_float64()
eager_forward()
eager_backward()
activation_memory()
