# SPDX-License-Identifier: Apache-2.0
from typing import Literal, overload
from typing_extensions import TypeAlias

import torch
from torch import Tensor

from ._attention import _Lens, _Segmented

_Rounding: TypeAlias = Literal["once", "each"]

DTYPES: dict[torch.dtype, int]
ROUNDINGS: dict[str, int]
MAX_DIM: int
ADDRESSES: list[str]
HAS_OPERATOR: bool

# torch leaves open what a module is called with; these say it.
class PackedAttention(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, lens: _Lens | _Segmented) -> Tensor: ...
    def __call__(self, q: Tensor, k: Tensor, v: Tensor, lens: _Lens | _Segmented) -> Tensor: ...

class LayerNormModulate(torch.nn.Module):
    eps: float
    rounding: _Rounding
    def __init__(self, eps: float = 1e-6, rounding: _Rounding = "once") -> None: ...
    @overload
    def forward(self, x: Tensor, scale: Tensor, shift: Tensor, lens: _Lens, gate: None = None,
                u: None = None) -> Tensor: ...
    @overload
    def forward(self, x: Tensor, scale: Tensor, shift: Tensor, lens: _Lens, gate: Tensor,
                u: Tensor) -> tuple[Tensor, Tensor]: ...
    @overload
    def __call__(self, x: Tensor, scale: Tensor, shift: Tensor, lens: _Lens, gate: None = None,
                 u: None = None) -> Tensor: ...
    @overload
    def __call__(self, x: Tensor, scale: Tensor, shift: Tensor, lens: _Lens, gate: Tensor,
                 u: Tensor) -> tuple[Tensor, Tensor]: ...
    def extra_repr(self) -> str: ...

@overload
def layer_norm_modulate(x: Tensor, scale: Tensor, shift: Tensor, lens: _Lens, gate: None = None,
                        u: None = None, eps: float = 1e-6, rounding: _Rounding = "once") -> Tensor: ...
@overload
def layer_norm_modulate(x: Tensor, scale: Tensor, shift: Tensor, lens: _Lens, gate: Tensor, u: Tensor,
                        eps: float = 1e-6, rounding: _Rounding = "once") -> tuple[Tensor, Tensor]: ...
