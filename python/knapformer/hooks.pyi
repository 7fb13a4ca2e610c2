# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Iterable
from typing import Any, Protocol
from typing_extensions import Self, TypeAlias

from torch.nn import Module

from .balancer import SequenceBalancer, Step
from .plan import Plan
from .scheduler import Scheduler

MOST_TENSORS: int

_Log: TypeAlias = Callable[[dict[str, Any]], object]

class _HasModel(Protocol):
    @property
    def model(self) -> Module | None: ...

class _HasModule(Protocol):
    @property
    def module(self) -> Module | None: ...

class HeldLens(list[int]):
    knapformer_step: Step | None

class Handle:
    balancer: SequenceBalancer
    scheduler: Scheduler
    def __init__(self, stage: Module, attentions: Iterable[Module], scheduler: Scheduler,
                 log: _Log | None) -> None: ...
    @property
    def plan(self) -> Plan | Any: ...  # None before the first step
    def detach(self) -> None: ...
    def settle(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

def attach_to_trainer(trainer: Module | _HasModel | _HasModule, scheduler: Scheduler,
                      stage: Module | str | None = None, attention: type[Module] | str | None = None,
                      log: _Log | None = None) -> Handle: ...
