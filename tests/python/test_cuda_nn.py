# SPDX-License-Identifier: Apache-2.0
"""nn.LayerNormModulate on CUDA, without a GPU: the package is built on the emulator of tests/cuda, whose device memory is the
CPU's, and is told that tensors are a GPU's. The kernels give the same bits on both, so that whatever reaches them wrong shows."""
import torch

import knapformer._core
from knapformer import nn

assert hasattr(knapformer._core, "adaln_cuda"), "not built with CUDA"
calls = []


def inputs(lens, dim, dtype, mod_dtype, gated, sliced):
    torch.manual_seed(len(lens) + dim)
    rows, n = sum(lens), len(lens)
    mods = torch.randn(n, 4 * dim).to(mod_dtype)
    mods = mods.chunk(4, 1)[:3] if sliced else [m.contiguous() for m in mods.chunk(4, 1)[:3]]
    tokens = [torch.randn(rows, dim).to(dtype) for _ in range(2)]
    return [t.detach().requires_grad_() for t in (tokens[0], *mods[:2], *((mods[2], tokens[1]) if gated else ()))]


def results(leaves, lens, rounding):
    x, scale, shift, *more = leaves
    out = nn.layer_norm_modulate(x, scale, shift, lens, *more, eps=1e-5, rounding=rounding)
    out = out if isinstance(out, tuple) else (out,)
    torch.manual_seed(7)
    torch.autograd.backward(out, [torch.randn(o.shape).to(o.dtype) for o in out])
    return [o.detach() for o in out] + [t.grad for t in leaves]


def same(*case, rounding="once"):
    lens = case[0]
    leaves = inputs(*case)
    want = results(leaves, lens, rounding)
    for leaf in leaves:
        leaf.grad = None
    before = len(calls)
    nn._on_gpu, kept = lambda x: True, nn._on_gpu
    try:
        got = results(leaves, lens, rounding)
    finally:
        nn._on_gpu = kept
    assert len(calls) > before, "CUDA was not called"
    for a, b in zip(got, want):
        assert a.dtype == b.dtype and torch.equal(a, b), case


class Counted:
    """knapformer._core, and what it is asked of CUDA."""

    def __getattr__(self, name):
        return getattr(knapformer._core, name)

    def adaln_cuda(self, call, *more):
        calls.append(call[0])
        return knapformer._core.adaln_cuda(call, *more)


nn._core, nn._stream = Counted(), lambda device: 0
for dim in (5, 64, 100):
    for gated in (False, True):
        for sliced in (False, True):
            same([33, 0, 1, 20], dim, torch.float32, torch.float32, gated, sliced)
    same([40, 7], dim, torch.bfloat16, torch.bfloat16, True, True, rounding="each")
    same([40, 7], dim, torch.float16, torch.float32, True, False)
same([], 8, torch.float32, torch.float32, False, False)
same([0, 0], 8, torch.float32, torch.float32, True, False)

# The table is made once for a batch, not for each layer.
nn._workspace.cache_clear()
del calls[:]
for _ in range(3):
    same([33, 20], 16, torch.float32, torch.float32, False, False)
assert calls.count(2) == 1 and calls.count(0) == 3 and calls.count(1) == 3, calls
print("ok")
