# SPDX-License-Identifier: Apache-2.0
import logging
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, SupportsIndex, TypedDict
from typing_extensions import TypeAlias, Unpack
from weakref import WeakKeyDictionary

from torch.distributed import ProcessGroup

from ._core import Gather
from ._ranks import Ranks
from .batches import _Array
from .plan import Plan, _Affinity, _Bags

KINDS: tuple[str, ...]
LEVELS: dict[int, int]
LEVEL_NAMES: tuple[str, ...]
COUNTERS: tuple[str, ...]
RECORD: struct.Struct
GATHERS: WeakKeyDictionary[Ranks | ProcessGroup, Gather]
LAST_STEP: int
END: int
STATE: int
log: logging.Logger

_CostModel: TypeAlias = Literal["history", "static", "modelled"]
_Level: TypeAlias = Literal["error", "warning", "info", "debug"]
_Log: TypeAlias = Callable[[int, str], object]
_Path: TypeAlias = str | os.PathLike[str]
_Profile: TypeAlias = tuple[int, int, int]  # kind, resolution, frames

class _Record(Protocol):  # may have home, kind, resolution and frames, too
    @property
    def length(self) -> SupportsIndex: ...

_Chunk: TypeAlias = SupportsIndex | dict[str, Any] | _Record

class _Counters(TypedDict, total=False):
    memory_bytes: int
    memory_limit_bytes: int
    tokens: int
    samples: int
    plan_s: float
    route_s: float
    compute_s: float
    wait_s: float

WRONG: tuple[type[Exception], ...]

def bag_sizes(bags: str) -> list[int]: ...

class Scheduler:
    group: Ranks
    gather: Gather
    ranks: int
    bags: str
    model: str
    votes: int
    def __init__(self, bag_config: _Bags | None = None, cost_model: _CostModel | None = None,
                 rebalance_interval: int | None = None, *, model: str | None = None,
                 gamma: float | None = None, cluster: str | None = None, mem_tokens: int | None = None,
                 max_chunk_size: int | None = None, affinity: _Affinity | None = None,
                 budget_us: float | None = None, cost_file: _Path | None = None, config: _Path | None = None,
                 settings: Iterable[str] = (), defaults: Iterable[str] = (),
                 speeds: Iterable[float] | None = None, ranks: int | None = None,
                 group: ProcessGroup | None = None, log: _Log | None = None,
                 log_level: _Level | None = None) -> None: ...
    def assign(self, chunks: Iterable[_Chunk | Sequence[_Chunk]] | _Array) -> Plan: ...
    def plan(self, lens: Sequence[SupportsIndex], profiles: Sequence[_Profile] | None = None, votes: int = 0,
             signature: int = 0, error: str | None = None) -> Plan: ...
    def update_stats(self, gpu_id: int, exec_time: float, **counters: Unpack[_Counters]) -> None: ...
    def settle(self) -> None: ...
    def close(self) -> None: ...
    def metrics(self) -> dict[str, Any]: ...
    def prometheus(self) -> str: ...
    @property
    def cost(self) -> bytes: ...
    @property
    def refits(self) -> int: ...
    @property
    def steps(self) -> int: ...
    def new_epoch(self) -> None: ...
    def state_dict(self) -> dict[str, bytes]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
