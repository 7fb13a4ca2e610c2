# SPDX-License-Identifier: Apache-2.0
"""Modules over packed tokens: the T rows of S sequences one after the other, `lens` rows of each.

LayerNorm-Modulate is what a Diffusion Transformer does before attention and before its MLP:

    x = x + gate[s] * u                        the prologue, if there is a gate: (S, D), (T, D)
    y = LN(x) * (1 + scale[s]) + shift[s]      s: the row's sequence; scale, shift: (S, D)

Eager code gathers scale and shift for every row, and keeps them and LN(x) for the backward pass. The
library's kernel reads x once, and keeps 8 bytes a row: mean and rstd. It is used for fp32, bf16 and fp16
on the CPU, and on GPUs if the package was built with CUDA; elsewhere plain torch computes the same.

    eager       layer_norm_modulate -> _Modulate (autograd) --> _forward, _backward --> _core.adaln, adaln_cuda
    compiled    layer_norm_modulate -> torch.ops.knapformer --'
"""
from __future__ import annotations

import contextlib
import functools
import itertools
import math
from array import array
from typing import TYPE_CHECKING, Literal, overload

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from . import _core
from ._attention import attention, lengths_of

if TYPE_CHECKING:
    from ._attention import _Lens, _Segmented
    _Rounding = Literal["once", "each"]

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # kf_dtype
ROUNDINGS = {"once": 0, "each": 1}  # kf_rounding
MAX_DIM = 1048576  # KF_MAX_DIM
ADDRESSES = ("cu_seqlens seq_index scale shift x y mean rstd gate residual u "
             "dy dx_add dx du dscale dshift dgate").split()  # as _core.adaln takes them

Tensor = torch.Tensor


class PackedAttention(torch.nn.Module):
    """knapformer.attention as a module, so that knapformer.hooks finds it and can balance it."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, lens: _Lens | _Segmented) -> Tensor:
        """q, k, v (T, heads, head_dim) -> (T, heads, head_dim)."""
        return attention(q, k, v, lens)

    if TYPE_CHECKING:  # torch leaves open what a module is called with
        __call__ = forward


class LayerNormModulate(torch.nn.Module):
    """layer_norm_modulate as a module; it has no parameters."""

    def __init__(self, eps: float = 1e-6, rounding: _Rounding = "once") -> None:
        super().__init__()
        _check_numbers(eps, rounding)
        self.eps, self.rounding = eps, rounding

    @overload
    def forward(self, x: Tensor, scale: Tensor, shift: Tensor, lens: _Lens, gate: None = None, u: None = None) -> Tensor: ...
    @overload
    def forward(self, x: Tensor, scale: Tensor, shift: Tensor, lens: _Lens, gate: Tensor, u: Tensor) -> tuple[Tensor, Tensor]: ...
    def forward(self, x, scale, shift, lens, gate=None, u=None):
        return layer_norm_modulate(x, scale, shift, lens, gate, u, self.eps, self.rounding)

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"eps={self.eps}, rounding={self.rounding!r}"


@overload
def layer_norm_modulate(x: Tensor, scale: Tensor, shift: Tensor, lens: _Lens, gate: None = None, u: None = None,
                        eps: float = 1e-6, rounding: _Rounding = "once") -> Tensor: ...
@overload
def layer_norm_modulate(x: Tensor, scale: Tensor, shift: Tensor, lens: _Lens, gate: Tensor, u: Tensor,
                        eps: float = 1e-6, rounding: _Rounding = "once") -> tuple[Tensor, Tensor]: ...
def layer_norm_modulate(x, scale, shift, lens, gate=None, u=None, eps=1e-6, rounding="once"):
    """y; with gate and u (x + gate[s] * u, y of that). Results have x's type.

    x, u: (T, D). scale, shift, gate: (S, D), slices of a wider tensor too; of x's type or another.
    lens: S ints that sum to T, a list or a 1-D tensor; 0 is fine. To torch.compile a tensor is data, and
    one on the CPU is best; a list is code, and other numbers may be compiled again.
    rounding: "once", fp32 until a result is stored; "each", after every operation, as eager code in x's
    type does. u is read in x's type.
    """
    _check_numbers(eps, rounding)
    _check_tensors(x, scale, shift, gate, u)
    mods = [scale, shift] if gate is None else [scale, shift, gate]
    if any(m.dtype != x.dtype for m in mods):
        if rounding == "each" and x.dtype != torch.float32:
            raise ValueError(f'scale, shift, gate are {_types(mods)} with rounding "each", expected '
                             f"{x.dtype}, that of x")
        mods = [m.to(torch.promote_types(m.dtype, torch.float32)) for m in mods]
    scale, shift, gate = (*mods, None)[:3]
    u = u if u is None else u.to(x.dtype)
    ours = ((x.device.type == "cpu" or _on_gpu(x)) and x.dtype in DTYPES and all(m.dtype in DTYPES for m in mods)
            and x.shape[1] <= MAX_DIM and eps > 0)  # to the kernel 0 means the default
    if ours and _compiling():
        return _operator(x, scale, shift, gate, u, lens, eps, rounding)
    lens = lengths_of(lens)
    _check_lens(lens, x, scale)
    if ours:
        cu = array("q", itertools.accumulate(lens, initial=0))
        return _Modulate.apply(x, scale, shift, gate, u, cu, eps, rounding)
    return _plain(x, scale, shift, gate, u, lens, eps, rounding)


# ------------------------------------------------------------------------------------- what is asked


def _check_numbers(eps, rounding):
    if not eps >= 0 or math.isinf(eps):
        raise ValueError(f"eps is {eps}, expected 0 or more")
    if rounding not in ROUNDINGS:
        raise ValueError(f'rounding is "{rounding}", expected "once" or "each"')


def _types(tensors):
    return ", ".join(str(t.dtype) for t in tensors)


def _check_tensors(x, scale, shift, gate, u):
    if x.dim() != 2 or x.shape[1] == 0:
        raise ValueError(f"x has shape {tuple(x.shape)}, expected (rows, columns), one column or more")
    if (gate is None) != (u is None):
        raise ValueError(f"{'u' if gate is None else 'gate'} is given alone, expected gate and u, or none")
    if scale.dim() != 2:
        raise ValueError(f"scale has shape {tuple(scale.shape)}, expected (sequences, {x.shape[1]})")
    mod = (scale.shape[0], x.shape[1])
    for name, t, shape in (("x", x, x.shape), ("scale", scale, mod), ("shift", shift, mod),
                           ("gate", gate, mod), ("u", u, x.shape)):
        if t is None:
            continue
        if tuple(t.shape) != tuple(shape):
            raise ValueError(f"{name} has shape {tuple(t.shape)}, expected {tuple(shape)}, because x has "
                             f"{tuple(x.shape)} and scale {tuple(scale.shape)}")
        if not t.dtype.is_floating_point:
            raise ValueError(f"{name} is {t.dtype}, expected a floating point type")
        if t.device != x.device:
            raise ValueError(f"{name} is on {t.device}, expected {x.device}, as x")


def _check_lens(lens, x, scale):
    if len(lens) != scale.shape[0]:
        raise ValueError(f"there are {len(lens)} lengths, expected {scale.shape[0]}, the rows of scale")
    if sum(lens) != x.shape[0]:
        raise ValueError(f"{len(lens)} lengths sum to {sum(lens)}, expected {x.shape[0]}, the rows of x")


# --------------------------------------------------------------------------------------- plain torch


@functools.lru_cache(maxsize=16)
@torch.inference_mode(False)  # what a validation step made first, training must be able to keep
def _index(lens, device):
    """Each row's sequence (T). Kept, because to bring lengths to a GPU is to wait for it, in each layer."""
    n = torch.tensor(lens, dtype=torch.int64, device=device)
    return torch.repeat_interleave(torch.arange(len(lens), device=device), n, output_size=sum(lens))


def _plain(x, scale, shift, gate, u, lens, eps, rounding):
    """Any device and type. "once" is in fp32 at least, and in double where anything is double."""
    dtype = wide = x.dtype
    if rounding == "once":
        wide = torch.promote_types(torch.promote_types(x.dtype, scale.dtype), torch.float32)
    index = _index(tuple(lens), x.device)
    if gate is not None:
        x = (x.to(wide) + gate.to(wide)[index] * u.to(wide)).to(dtype)  # it is stored, so it is rounded
    normed = F.layer_norm(x.to(wide), x.shape[1:], eps=eps)
    y = (normed * (1 + scale.to(wide)[index]) + shift.to(wide)[index]).to(dtype)
    return y if gate is None else (x, y)


# ---------------------------------------------------------------------------------------- the kernel


def _call(backward, x, scale, cu, eps, rounding, mod_stride, tensors):
    numbers = (len(x), len(scale), x.shape[1], DTYPES[x.dtype], int(scale.dtype != x.dtype), mod_stride,
               ROUNDINGS[rounding], eps, torch.get_num_threads())
    at = {name: t.data_ptr() for name, t in tensors.items() if t is not None}
    at["cu_seqlens"] = cu.buffer_info()[0]
    if not _on_gpu(x):
        _core.adaln(backward, numbers, [at.get(name) for name in ADDRESSES])
        return
    with torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext():
        stream = _stream(x.device)
        shape = numbers[:5] + (0,) + numbers[6:]  # forward's and backward's strides may differ
        space = _workspace(cu.tobytes(), shape, "gate" in at, x.device, stream)
        _core.adaln_cuda((backward, numbers, [at.get(name) for name in ADDRESSES]), stream, space.data_ptr(),
                         space.numel())


def _on_gpu(x):
    return x.is_cuda and hasattr(_core, "adaln_cuda")


def _stream(device):
    return torch.cuda.current_stream(device).cuda_stream


@functools.lru_cache(maxsize=8)
def _workspace(cu, numbers, gated, device, stream):
    """With the chunk table in it, which is made once for a batch, because that waits for the GPU. Of one stream:
    backward writes to it."""
    table = array("q")
    table.frombytes(cu)
    at = [table.buffer_info()[0] if name == "cu_seqlens" else 1 if gated and name == "gate" else None
          for name in ADDRESSES]
    size = _core.adaln_cuda((3, numbers, at), stream, 0, 0)
    space = torch.empty(size, dtype=torch.uint8, device=device)
    _core.adaln_cuda((2, numbers, at), stream, space.data_ptr(), size)
    return space


def _one_stride(mods):
    """Tensors (S, D) with rows as far apart in each, and how far. Slices of one (S, 6 D) are so."""
    n, dim = mods[0].shape
    stride = mods[0].stride(0) if n > 1 else dim
    for m in mods:
        if stride < dim or (dim > 1 and m.stride(1) != 1) or (n > 1 and m.stride(0) != stride):
            return [m.contiguous() for m in mods], dim
    return mods, stride


def _forward(x, scale, shift, gate, u, cu, eps, rounding):
    """x with the prologue (None without), y (T, D), mean, rstd (T)."""
    x = x.contiguous()
    mods, stride = _one_stride([scale, shift] if gate is None else [scale, shift, gate])
    y, new = torch.empty_like(x), None if gate is None else torch.empty_like(x)
    mean, rstd = (x.new_empty(len(x), dtype=torch.float32) for _ in range(2))
    tensors = {"y": y, "mean": mean, "rstd": rstd, **dict(zip(("scale", "shift", "gate"), mods))}
    if gate is None:
        tensors["x"] = x
    else:
        tensors.update(residual=x, u=u.contiguous(), x=new)
    _call(0, x, scale, cu, eps, rounding, stride, tensors)
    return new, y, mean, rstd


def _backward(dy, dx_add, x, scale, gate, u, mean, rstd, cu, eps, rounding):
    """dx (T, D), dscale, dshift (S, D), and with a gate dgate (S, D), du (T, D), otherwise None. The
    kernel wants gradients as far apart as the modulation, which is small: rather a copy of that."""
    x, scale, dy = x.contiguous(), scale.contiguous(), dy.contiguous()
    dx_add = dx_add if dx_add is None else dx_add.contiguous()
    out = {"dx": torch.empty_like(x), "dscale": torch.empty_like(scale), "dshift": torch.empty_like(scale)}
    if gate is not None:
        gate, u = gate.contiguous(), u.contiguous()
        out.update(dgate=torch.empty_like(gate), du=torch.empty_like(u))
    _call(1, x, scale, cu, eps, rounding, 0, {
        "dy": dy, "dx_add": dx_add, "x": x, "scale": scale, "gate": gate, "u": u, "mean": mean, "rstd": rstd,
        **out})
    return [out.get(name) for name in ("dx", "dscale", "dshift", "dgate", "du")]


class _Modulate(torch.autograd.Function):
    """Keeps x, scale, mean and rstd, and with a gate u and gate."""

    @staticmethod
    def forward(ctx, x, scale, shift, gate, u, cu, eps, rounding):
        new, y, mean, rstd = _forward(x, scale, shift, gate, u, cu, eps, rounding)
        ctx.save_for_backward(x if gate is None else new, scale, gate, u, mean, rstd)
        ctx.how = (cu, eps, rounding)
        ctx.set_materialize_grads(False)
        return y if gate is None else (new, y)

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients):
        x, *kept = ctx.saved_tensors
        dx_add, dy = (None, *gradients)[-2:]
        dy = torch.zeros_like(x) if dy is None else dy  # only x was used further on
        return (*_backward(dy, dx_add, x, *kept, *ctx.how), None, None, None)


# ------------------------------------------------------------------------- the operator, for compilers


HAS_OPERATOR: bool = hasattr(torch.library, "custom_op")  # torch 2.4


def _compiling():
    return HAS_OPERATOR and torch.compiler.is_compiling()


def _operator(x, scale, shift, gate, u, lens, eps, rounding):
    lens = lens if isinstance(lens, Tensor) else torch.tensor(lens, dtype=torch.int64)
    new, y, _, _ = torch.ops.knapformer.layer_norm_modulate(x, scale, shift, gate, u, lens, eps, rounding)
    return y if gate is None else (new, y)


def _check_op(x, scale, shift, gate, u, lens, eps, rounding):
    """The operator is open to all, so it trusts nobody. Returns cu_seqlens."""
    _check_numbers(eps, rounding)
    _check_tensors(x, scale, shift, gate, u)
    tokens, mods = ([t for t in given if t is not None] for given in ((x, u), (scale, shift, gate)))
    alike = all(t.dtype == x.dtype for t in tokens) and all(m.dtype == scale.dtype for m in mods)
    if not alike or x.dtype not in DTYPES or scale.dtype not in (x.dtype, torch.float32):
        raise ValueError(f"x, u are {_types(tokens)}, scale, shift, gate {_types(mods)}, expected fp32, bf16 "
                         "or fp16, and for the last three the same or fp32")
    lens = lengths_of(lens)
    _check_lens(lens, x, scale)
    return array("q", itertools.accumulate(lens, initial=0))


def _or_empty(x, *tensors):
    """Operators return tensors, also where there is nothing to return."""
    return tuple(x.new_empty(0) if t is None else t for t in tensors)


if HAS_OPERATOR:
    @torch.library.custom_op(
        "knapformer::layer_norm_modulate", mutates_args=(), device_types=("cpu", "cuda"),
        schema="(Tensor x, Tensor scale, Tensor shift, Tensor? gate, Tensor? u, Tensor lens, float eps, str rounding)"
               " -> (Tensor, Tensor, Tensor, Tensor)")
    def _modulate_op(x, scale, shift, gate, u, lens, eps, rounding):
        """x with the prologue (empty without a gate), y, mean and rstd; no gradient through the latter."""
        cu = _check_op(x, scale, shift, gate, u, lens, eps, rounding)
        return _or_empty(x, *_forward(x, scale, shift, gate, u, cu, eps, rounding))

    @_modulate_op.register_fake
    def _(x, scale, shift, gate, u, lens, eps, rounding):
        mean, rstd = (x.new_empty(x.shape[0], dtype=torch.float32) for _ in range(2))
        new = None if gate is None else x.new_empty(x.shape)
        return _or_empty(x, new, x.new_empty(x.shape), mean, rstd)

    @torch.library.custom_op(
        "knapformer::layer_norm_modulate_backward", mutates_args=(), device_types=("cpu", "cuda"),
        schema="(Tensor dy, Tensor? dx_add, Tensor x, Tensor scale, Tensor? gate, Tensor? u, Tensor mean, Tensor rstd,"
               " Tensor lens, float eps, str rounding) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")
    def _backward_op(dy, dx_add, x, scale, gate, u, mean, rstd, lens, eps, rounding):
        cu = _check_op(x, scale, scale, gate, u, lens, eps, rounding)
        return _or_empty(x, *_backward(dy, dx_add, x, scale, gate, u, mean, rstd, cu, eps, rounding))

    @_backward_op.register_fake
    def _(dy, dx_add, x, scale, gate, u, mean, rstd, lens, eps, rounding):
        like = (x, scale, scale, gate, u)
        return _or_empty(x, *(None if t is None else t.new_empty(t.shape) for t in like))

    def _keep(ctx, inputs, output):
        x, scale, _, gate, u, lens, *ctx.how = inputs
        new, _, mean, rstd = output
        ctx.save_for_backward(x if gate is None else new, scale, gate, u, mean, rstd, lens)
        ctx.mark_non_differentiable(mean, rstd)

    def _differentiate(ctx, dx_add, dy, *_):
        x, scale, gate, *rest = ctx.saved_tensors
        dx_add = None if gate is None else dx_add
        dx, dscale, dshift, *more = _backward_op(dy, dx_add, x, scale, gate, *rest, *ctx.how)
        return (dx, dscale, dshift, *((None, None) if gate is None else more), None, None, None)

    _modulate_op.register_autograd(_differentiate, setup_context=_keep)
