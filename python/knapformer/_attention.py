# SPDX-License-Identifier: Apache-2.0
"""Packed attention without padding: softmax(scale * q k^T) v of each segment by itself.

A segment is (rows, heads, head_dim): a whole sequence, and the heads of it that this rank computes.
Segments lie one after the other, and each may have as many heads as it likes:

    | segment 0: rows 0, heads 0 1 2 | rows 1, heads 0 1 2 | .. | segment 1: rows 0, heads 0 | ..

Four backends compute the same: flash-attn, torch's own, the library's CPU kernel, and a softmax in
plain torch, which takes any device and type. Nothing is copied on the way in: segments are views.
"""
from __future__ import annotations

import functools
import itertools
import math
import operator
from array import array
from typing import TYPE_CHECKING, Callable, Iterable, Literal, Protocol, Sequence, SupportsIndex

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from . import _core

if TYPE_CHECKING:
    from torch import Tensor

    class _Segmented(Protocol):  # a Plan that knows its rank
        @property
        def segments(self) -> Iterable[tuple[int, int, int, int, int]]: ...

    _Lens = Sequence[SupportsIndex] | Tensor
    _Backend = Literal["flash", "sdpa", "kernel", "plain"]

try:
    from flash_attn import flash_attn_varlen_func
except ImportError:
    flash_attn_varlen_func = None

HALF = (torch.float16, torch.bfloat16)
MAX_HEAD_DIM = 256  # of flash-attn and of the kernel
HAS_SDPA: bool = torch.__version__ >= (2, 1)  # since when it takes a scale


def attention(q: Tensor, k: Tensor, v: Tensor, plan: _Lens | _Segmented, scale: float | None = None,
              backend: _Backend | None = None) -> Tensor:
    """Attention of packed sequences, of q's shape and differentiable.

    plan: the lengths of whole sequences (a list of ints or a 1-D tensor; one on a GPU is waited for),
    and q, k, v are (rows, heads, head_dim); or a plan, whose `segments` of this rank are
    (seq, rows, offset, first_head, heads), and q, k, v are flat, (pairs of row and head, head_dim), or
    (rows, heads, head_dim) where all segments have as many heads.

    scale: 1/sqrt(head_dim) by default. backend: "flash", "sdpa", "kernel" or "plain"; by default
    the first of them that takes these tensors.

    A rank without rows gets a result that still depends on q, k and v: other ranks may wait for what
    the backward pass does behind them.
    """
    _check_tensors(q, k, v)
    shapes = _shapes(q, plan)
    scale = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else float(scale)
    if not math.isfinite(scale):
        raise ValueError(f"scale is {scale}, expected a finite number")
    if backend is not None and backend not in BACKENDS:
        raise ValueError(f'backend is "{backend}", expected one of {", ".join(BACKENDS)}')
    for name in BACKENDS if backend is None else (backend,):
        refuses, run = BACKENDS[name]
        wanted = refuses(q, scale)
        if not wanted:
            # Under autocast torch's own returns another type than q's; ranks with and without rows must agree.
            return run(q, k, v, shapes, scale).to(q.dtype) if q.numel() else q + k + v
    raise ValueError(f'backend "{backend}" got {q.dtype} on {q.device}, head_dim {q.shape[-1]}, '
                     f"scale {scale}, expected {wanted}")


# ------------------------------------------------------------------------------------- what is asked


def lengths_of(lens: Iterable[SupportsIndex] | Tensor) -> list[int]:
    """A list of ints, none below 0, from a list or a 1-D tensor."""
    if isinstance(lens, torch.Tensor):
        if lens.dim() != 1:
            raise ValueError(f"lengths have shape {tuple(lens.shape)}, expected one dimension")
        lens = lens.tolist()
    try:
        lens = [operator.index(n) for n in lens]
    except TypeError:
        raise ValueError(f"lengths are {lens!r}, expected whole numbers") from None
    for i, n in enumerate(lens):
        if n < 0:
            raise ValueError(f"length {i} is {n}, expected 0 or more")
    return lens


def _check_tensors(q, k, v):
    if q.dim() not in (2, 3):
        raise ValueError(f"q has shape {tuple(q.shape)}, expected (rows, heads, head_dim) or "
                         "(pairs, head_dim)")
    if not q.dtype.is_floating_point:
        raise ValueError(f"q is {q.dtype}, expected a floating point type")
    for name, t in (("k", k), ("v", v)):
        if t.shape != q.shape:
            raise ValueError(f"{name} has shape {tuple(t.shape)}, expected {tuple(q.shape)}, that of q")
        if t.dtype != q.dtype or t.device != q.device:
            raise ValueError(f"{name} is {t.dtype} on {t.device}, expected {q.dtype} on {q.device}, as q")


def _shapes(q, plan):
    """(rows, heads) of each segment that is not empty."""
    shapes = _shapes_of_plan(q, plan.segments) if hasattr(plan, "segments") else _shapes_of_lengths(q, plan)
    return [shape for shape in shapes if shape[0] and shape[1]]


def _shapes_of_lengths(q, lens):
    lens = lengths_of(lens)
    if q.dim() != 3:
        raise ValueError(f"q has shape {tuple(q.shape)}, expected (rows, heads, head_dim) with lengths")
    if sum(lens) != q.shape[0]:
        raise ValueError(f"{len(lens)} lengths sum to {sum(lens)}, expected {q.shape[0]}, the rows of q")
    return [(n, q.shape[1]) for n in lens]


def _shapes_of_plan(q, segments):
    shapes, pairs = [], 0
    for i, (_, rows, offset, _, heads) in enumerate(segments):
        if rows < 0 or heads < 0 or offset != pairs:
            raise ValueError(f"segment {i} has rows {rows}, heads {heads}, offset {offset}, expected "
                             f"rows >= 0, heads >= 0, offset {pairs}")
        if q.dim() == 3 and heads != q.shape[1]:
            raise ValueError(f"segment {i} has {heads} heads, expected {q.shape[1]}, those of q")
        shapes.append((rows, heads))
        pairs += rows * heads
    mine = q.shape[0] * (q.shape[1] if q.dim() == 3 else 1)
    if pairs != mine:
        raise ValueError(f"{len(shapes)} segments have {pairs} pairs of row and head, expected {mine}, "
                         "those of q")
    return shapes


def _parts(t, shapes):
    """Views (rows, heads, head_dim), one of each segment. A split, because its backward is one
    concatenation; each slice would fill a gradient of the whole."""
    if t.dim() == 3:
        return t.split([rows for rows, _ in shapes])
    parts = t.split([rows * heads for rows, heads in shapes])
    return [part.view(*shape, -1) for part, shape in zip(parts, shapes)]


def _join(parts, q):
    """The other way."""
    if q.dim() == 2:
        parts = [part.flatten(0, 1) for part in parts]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


# ------------------------------------------------------------------------------------------ backends


@functools.lru_cache(maxsize=256)
@torch.inference_mode(False)  # what a validation step made first, training must be able to keep
def _cu_seqlens(lens, device):
    """Kept, because to bring it to a GPU is to wait for the GPU, in each layer."""
    return torch.tensor((0, *itertools.accumulate(lens)), dtype=torch.int32, device=device)


def _flash(q, k, v, shapes, scale):
    """One call for each run of neighbours with as many heads."""
    runs = [(heads, [rows for rows, _ in run])
            for heads, run in itertools.groupby(shapes, operator.itemgetter(1))]
    wide = [(sum(lens), heads) for heads, lens in runs]
    out = []
    for (_, lens), *qkv in zip(runs, *(_parts(t, wide) for t in (q, k, v))):
        cu, most = _cu_seqlens(tuple(lens), q.device), max(lens)
        out.append(flash_attn_varlen_func(*qkv, cu, cu, most, most, softmax_scale=scale))
    return _join(out, q)


def _sdpa(q, k, v, shapes, scale):
    """torch wants (1, heads, rows, head_dim), and its result has the memory layout of ours."""
    parts = zip(*(_parts(t, shapes) for t in (q, k, v)))
    out = [F.scaled_dot_product_attention(*(t.transpose(0, 1)[None] for t in part), scale=scale)
           for part in parts]
    return _join([o[0].transpose(0, 1) for o in out], q)


def _plain(q, k, v, shapes, scale):
    """Halves are widened: not all of torch's CPU versions multiply them, and the result is nearer."""
    out = []
    for part in zip(*(_parts(t, shapes) for t in (q, k, v))):
        # (heads, rows, head_dim)
        q1, k1, v1 = ((t.float() if t.dtype in HALF else t).transpose(0, 1) for t in part)
        o = torch.softmax(scale * (q1 @ k1.transpose(1, 2)), -1) @ v1
        out.append(o.transpose(0, 1).to(q.dtype))
    return _join(out, q)


class _Kernel(torch.autograd.Function):
    """The library's. All segments in one call, with as many threads as torch has."""

    @staticmethod
    def forward(ctx, q, k, v, shapes, scale):
        q, k, v = (t.contiguous() for t in (q, k, v))
        o = torch.empty_like(q)
        lse = q.new_empty(q.numel() // q.shape[-1])
        ctx.shapes = array("q", itertools.chain.from_iterable(shapes)).tobytes()
        ctx.scale = scale
        ctx.save_for_backward(q, k, v, o, lse)
        _Kernel.call(ctx, 0, q, k, v, o, lse)
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx, d_o):
        saved = ctx.saved_tensors
        gradients = [torch.empty_like(t) for t in saved[:3]]
        _Kernel.call(ctx, 1, *saved, d_o.contiguous(), *gradients)
        return (*gradients, None, None)

    @staticmethod
    def call(ctx, backward, *tensors):
        addresses = [t.data_ptr() for t in tensors] + [None] * (9 - len(tensors))
        head_dim, threads = tensors[0].shape[-1], torch.get_num_threads()
        _core.attention(backward, ctx.shapes, head_dim, threads, ctx.scale, addresses)


# What a backend needs where it refuses, "" where it takes q.


def _flash_refuses(q, _):
    fits = flash_attn_varlen_func and q.is_cuda and q.dtype in HALF and q.shape[-1] <= MAX_HEAD_DIM
    return "" if fits else f"flash-attn installed, fp16 or bf16 on CUDA, head_dim at most {MAX_HEAD_DIM}"


def _sdpa_refuses(*_):
    return "" if HAS_SDPA else f"torch 2.1 or later, this is {torch.__version__}"


def _kernel_refuses(q, scale):
    fits = q.device.type == "cpu" and q.dtype == torch.float32 and q.shape[-1] <= MAX_HEAD_DIM
    nonzero = abs(scale) >= torch.finfo(torch.float32).tiny  # 0 means the default to it
    wanted = f"fp32 on the CPU, head_dim at most {MAX_HEAD_DIM}, a scale that is not 0"
    return "" if fits and nonzero else wanted


def _plain_refuses(*_):
    return ""


BACKENDS: dict[str, tuple[Callable[[Tensor, float], str], Callable[..., Tensor]]] = {
    "flash": (_flash_refuses, _flash),
    "sdpa": (_sdpa_refuses, _sdpa),
    "kernel": (_kernel_refuses, _Kernel.apply),
    "plain": (_plain_refuses, _plain),
}
