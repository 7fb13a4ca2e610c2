# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, SupportsIndex, TypedDict, overload
from typing_extensions import Unpack

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from ._attention import _Lens
from ._ranks import Ranks
from ._stopwatch import Stopwatch
from .plan import Plan, Segment, _Affinity, _Bags
from .scheduler import Scheduler, _CostModel, _Level, _Log, _Path, _Profile
from .transport import Exchange

LAYERS: int

class _Options(TypedDict, total=False):  # of the Scheduler
    cost_model: _CostModel | None
    rebalance_interval: int | None
    cluster: str | None
    mem_tokens: int | None
    max_chunk_size: int | None
    affinity: _Affinity | None
    budget_us: float | None
    cost_file: _Path | None
    config: _Path | None
    settings: Iterable[str]
    defaults: Iterable[str]
    speeds: Iterable[float] | None
    log: _Log | None
    log_level: _Level | None

class _More(TypedDict, total=False):  # of Scheduler.plan
    votes: int
    signature: int
    error: str | None

class SplitSegments(NamedTuple):
    segments: list[Segment]

def physical_memory() -> int: ...

class Step:
    ranks: Ranks
    plan: Plan
    local_lens: Sequence[SupportsIndex]
    kept: dict[Any, Any]
    stopwatch: Stopwatch | None
    flat_shape: torch.Size | None
    def __init__(self, ranks: Ranks, plan: Plan, local_lens: Sequence[SupportsIndex]) -> None: ...
    def exchange(self, kind: int, device: torch.device, heads: int = 0) -> Exchange: ...
    def split_segments(self, heads: int) -> SplitSegments: ...
    def seq_lens(self, device: torch.device) -> Tensor: ...

class SequenceBalancer:
    group: Ranks
    bags: _Bags | None
    gamma: float | None
    heads: int | None
    layers: int | None
    scheduler: Scheduler
    def __init__(self, bag_specs: _Bags | None = None, gamma: float | None = None, *, heads: int | None = None,
                 layers: int | None = None, group: ProcessGroup | None = None,
                 scheduler: Scheduler | None = None, **options: Unpack[_Options]) -> None: ...
    @property
    def balance_process_group(self) -> ProcessGroup | None: ...
    @property
    def plan(self) -> Plan | Any: ...  # None before plan_routing; not to be asked in each layer
    @property
    def step(self) -> Step: ...
    def plan_routing(self, local_seq_lens: _Lens, token_dim: int, profiles: Sequence[_Profile] | None = None,
                     **more: Unpack[_More]) -> Plan: ...
    def settle(self) -> None: ...
    @overload
    def route(self, packed_seqs: Tensor, packed_features: None = None) -> tuple[list[int], Tensor, None]: ...
    @overload
    def route(self, packed_seqs: Tensor,
              packed_features: Sequence[Tensor]) -> tuple[list[int], Tensor, list[Tensor]]: ...
    @overload
    def route_sequences(self, values: Tensor) -> Tensor: ...
    @overload
    def route_sequences(self, values: Sequence[Tensor]) -> list[Tensor]: ...
    @overload
    def reverse_route(self, packed_seqs: Tensor) -> Tensor: ...
    @overload
    def reverse_route(self, packed_seqs: Sequence[Tensor]) -> list[Tensor]: ...
    def pre_attn(self, q: Tensor, k: Tensor, v: Tensor,
                 step: Step | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
    def post_attn(self, o: Tensor, step: Step | None = None) -> tuple[list[int], Tensor]: ...
    def attention(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None,
                  step: Step | None = None) -> Tensor: ...
