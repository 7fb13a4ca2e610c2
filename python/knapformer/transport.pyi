# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from . import _core
from ._ranks import Ranks
from ._stopwatch import Stopwatch
from .plan import Plan

CARRIERS: tuple[tuple[int, torch.dtype], ...]

# What goes in comes out: a tensor, or a list, a tuple or a dict of as many.
_Tensors = TypeVar("_Tensors", bound=Tensor | list[Tensor] | tuple[Tensor, ...] | dict[Any, Tensor])

class Exchange:
    ranks: Ranks
    stopwatch: Stopwatch | None
    n_in: int
    n_out: int
    send_index: Tensor
    recv_index: Tensor
    send_count: list[int]
    recv_count: list[int]
    stay: list[tuple[int, int, int]]
    busy: bool
    fans_out: bool
    adds_up: bool
    def __init__(self, ranks: Ranks, table: _core._Table, device: torch.device, fans_out: bool = False,
                 stopwatch: Stopwatch | None = None) -> None: ...
    @property
    def reversed(self) -> Exchange: ...
    @property
    def is_identity(self) -> bool: ...
    def move(self, tensors: Sequence[Tensor]) -> list[Tensor]: ...
    def launch(self, tensors: Sequence[Tensor], later: bool = False) -> Flight: ...

class Flight:
    exchange: Exchange
    tensors: Sequence[Tensor]
    rows: list[Tensor]
    sent: Tensor | None
    received: Tensor | None
    work: Any
    def __init__(self, exchange: Exchange, tensors: Sequence[Tensor], rows: list[Tensor]) -> None: ...
    def land(self) -> list[Tensor]: ...

def move(exchange: Exchange, tensors: Sequence[Tensor],
         done: Callable[[str], object] | None = None) -> list[Tensor]: ...
_Departed = tuple[Exchange, dict[str, Flight], tuple[Tensor, ...]]

def depart(exchange: Exchange, tensors: Sequence[Tensor]) -> _Departed: ...
def arrive(departed: _Departed) -> list[Tensor]: ...
def pack_for_bag(mapping: Plan, tensors: _Tensors) -> _Tensors: ...
def unpack_from_bag(outputs: _Tensors, mapping: Plan | None = None) -> _Tensors: ...
