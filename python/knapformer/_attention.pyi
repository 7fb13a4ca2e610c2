# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol, SupportsIndex
from typing_extensions import TypeAlias

import torch
from torch import Tensor

class _Segmented(Protocol):  # a Plan that knows its rank
    @property
    def segments(self) -> Iterable[tuple[int, int, int, int, int]]: ...

_Lens: TypeAlias = Sequence[SupportsIndex] | Tensor
_Backend: TypeAlias = Literal["flash", "sdpa", "kernel", "plain"]

HALF: tuple[torch.dtype, torch.dtype]
MAX_HEAD_DIM: int
HAS_SDPA: bool
# Whether a backend refuses, and what computes.
BACKENDS: dict[str, tuple[Callable[[Tensor, float], str], Callable[..., Tensor]]]
flash_attn_varlen_func: Callable[..., Tensor] | None

def attention(q: Tensor, k: Tensor, v: Tensor, plan: _Lens | _Segmented, scale: float | None = None,
              backend: _Backend | None = None) -> Tensor: ...
def lengths_of(lens: Iterable[SupportsIndex] | Tensor) -> list[int]: ...
