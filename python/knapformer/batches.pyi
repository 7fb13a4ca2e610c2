# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, SupportsIndex

from torch.distributed import ProcessGroup

from . import _core

MODES: tuple[str, ...]
KEEP: int

class _Array(Protocol):  # a tensor, or a NumPy array
    def tolist(self) -> Any: ...

class Bucket(NamedTuple):
    seq_len: int
    count: int  # type: ignore[assignment]
    batch_size: int
    work_s: float

class BatchSampler:
    ranks: int
    rank: int
    epoch: int
    def __init__(self, lens: Sequence[SupportsIndex] | _Array, mem_tokens: int, match_len: int | None = None,
                 comp_seconds: float | None = None, *,
                 rule: Literal["packed", "two_term", "power", "equal_token"] = "packed",
                 mode: Literal["random", "same", "similar"] = "random", ranks: int | None = None,
                 rank: int | None = None, group: ProcessGroup | None = None, seed: int = 0,
                 model: str | None = None, gamma: float | None = None, cluster: str | None = None,
                 p: Literal["best", "fitted"] | float = "best", window: int = 0,
                 keep_all: bool = False) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[list[int]]: ...
    def next_step(self) -> list[list[int]] | None: ...
    def set_epoch(self, epoch: int) -> None: ...
    @property
    def step(self) -> int: ...
    def set_cost(self, cost: bytes, at: int | None = None) -> None: ...
    def state_dict(self, step: int | None = None) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
    def figures(self) -> _core._Epoch: ...
    def buckets(self) -> list[Bucket]: ...
    def hash(self) -> str: ...
