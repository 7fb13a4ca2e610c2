# SPDX-License-Identifier: Apache-2.0
"""The attention kernel against PyTorch's scaled_dot_product_attention in double precision."""

import ctypes
import math
import os

import torch

lib = ctypes.CDLL(os.path.join(os.environ["KF_BUILD"], "libknapformer.so"))
lib.kf_last_error.restype = ctypes.c_char_p
lib.kf_attention_workspace.restype = ctypes.c_int64
FLOATS = ctypes.c_void_p
KF_ISA_BEST, KF_ISA_PORTABLE = 0, 1


class Segment(ctypes.Structure):
    _fields_ = [("seq", ctypes.c_int64), ("rows", ctypes.c_int64), ("offset", ctypes.c_int64),
                ("first_head", ctypes.c_int32), ("heads", ctypes.c_int32)]


class Attention(ctypes.Structure):
    _fields_ = [("n_segments", ctypes.c_int64), ("segment", ctypes.POINTER(Segment)),
                ("head_dim", ctypes.c_int32), ("n_threads", ctypes.c_int32),
                ("scale", ctypes.c_float), ("isa", ctypes.c_int), ("qkv_stride", ctypes.c_int64),
                ("q", FLOATS), ("k", FLOATS), ("v", FLOATS), ("o", FLOATS), ("lse", FLOATS),
                ("d_o", FLOATS), ("dq", FLOATS), ("dk", FLOATS), ("dv", FLOATS),
                ("workspace", ctypes.c_void_p), ("workspace_bytes", ctypes.c_int64)]


def ours(shapes, head_dim, isa, q, k, v, do):
    """o, dq, dk, dv of packed segments; shapes is [(rows, heads), ...]."""
    offsets = [sum(r * h for r, h in shapes[:i]) for i in range(len(shapes))]
    segment = (Segment * len(shapes))(*[Segment(i, r, offsets[i], 0, h)
                                        for i, (r, h) in enumerate(shapes)])
    o, dq, dk, dv = (torch.full_like(q, math.nan) for _ in range(4))
    lse = torch.empty(q.shape[0])
    a = Attention(len(shapes), segment, head_dim, 2, 0, isa, 0, q.data_ptr(), k.data_ptr(),
                  v.data_ptr(), o.data_ptr(), lse.data_ptr(), do.data_ptr(), dq.data_ptr(),
                  dk.data_ptr(), dv.data_ptr(), None, 0)
    a.workspace_bytes = lib.kf_attention_workspace(ctypes.byref(a))
    block = torch.empty(a.workspace_bytes + 64, dtype=torch.uint8)
    a.workspace = (block.data_ptr() + 63) // 64 * 64
    for call in (lib.kf_attention_forward, lib.kf_attention_backward):
        assert call(ctypes.byref(a)) == 0, lib.kf_last_error()
    return o, dq, dk, dv


def torchs(shapes, head_dim, q, k, v, do):
    out, at = [], 0
    for rows, heads in shapes:
        n = rows * heads
        part = [t[at:at + n].double().reshape(rows, heads, head_dim).transpose(0, 1)
                for t in (q, k, v, do)]
        leaf = [t.detach().requires_grad_() for t in part[:3]]
        o = torch.nn.functional.scaled_dot_product_attention(*leaf)
        grads = torch.autograd.grad(o, leaf, part[3])
        out.append([t.detach().transpose(0, 1).reshape(n, head_dim) for t in (o, *grads)])
        at += n
    return [torch.cat(column) for column in zip(*out)]


torch.manual_seed(1)
for isa, size in ((KF_ISA_BEST, 1500), (KF_ISA_PORTABLE, 70)):
    for head_dim in (1, 40, 64, 72, 128):
        for spread in (1, 6):  # 6: scores of some hundreds
            shapes = [(size, 2), (1, 3), (17, 1), (257, 5)]
            n = sum(r * h for r, h in shapes)
            q, k, v, do = (torch.randn(n, head_dim) for _ in range(4))
            q, k = q * spread, k * spread
            got = ours(shapes, head_dim, isa, q, k, v, do)
            want = torchs(shapes, head_dim, q, k, v, do)
            # Scores are rounded to fp32 before the exponential: at 200 that alone is 1e-5.
            grow = 10 if spread > 1 else 1
            for name, a, b, bound in zip("o dq dk dv".split(), got, want, (1e-6, 1e-5, 1e-5, 1e-5)):
                error = ((a - b).abs().max() / b.abs().max()).item()
                print(f"isa {isa} head_dim {head_dim:3} x{spread} {name:2} {error:.1e}")
                assert error <= bound * grow, f"{name}: {error} > {bound * grow}"
