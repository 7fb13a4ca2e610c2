# SPDX-License-Identifier: Apache-2.0
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, SupportsIndex, overload
from typing_extensions import TypeAlias

from . import _core

_Bags: TypeAlias = int | str | list[int] | tuple[int, ...]
_Affinity: TypeAlias = Literal["fill", "spread"]

ROUTE: int
SEQUENCES: int
ULYSSES: int
ULYSSES_SPLIT: int

class Before(NamedTuple):
    max_over_mean: float
    step_s: float

class After(NamedTuple):
    max_over_mean: float
    step_s: float
    compute_s: float
    comm_s: float
    max_tokens: int

class Segment(NamedTuple):
    seq: int
    rows: int
    offset: int
    first_head: int
    heads: int

def ints(values: Sequence[SupportsIndex]) -> bytes: ...
@overload
def reals(values: None) -> None: ...
@overload
def reals(values: Iterable[float]) -> bytes: ...
@overload
def list_of(data: bytes | bytearray, columns: Literal[1] = 1) -> list[int]: ...
@overload
def list_of(data: bytes | bytearray, columns: int) -> list[Any]: ...
def bags_text(bags: _Bags) -> str: ...
def configuration(ranks: int, keys: Mapping[str, object], config: str | os.PathLike[str] | None = None,
                  defaults: Iterable[str] = (), settings: Iterable[str] = ()) -> tuple[bytes, str, str]: ...
def batch_of(seq_lens_per_rank: Iterable[Iterable[SupportsIndex]]) -> tuple[bytes, bytes]: ...

class Plan:
    core: _core.Plan
    rank: int | None
    bags: str
    solve_us: float
    group: Any
    heads: int | None
    # The figures.
    ranks: Final[int]
    seqs: Final[int]
    tokens: Final[int]
    ideal_s: Final[float]
    lower_bound_s: Final[float]
    gap: Final[float]
    speedup: Final[float]
    split_seqs: Final[int]
    a2a_fraction: Final[float]
    moved_fraction: Final[float]
    def __init__(self, core: _core.Plan, rank: int | None = None, bags: str = "auto",
                 solve_us: float = 0.0) -> None: ...
    @property
    def facts(self) -> _core._Facts: ...
    @property
    def before(self) -> Before: ...
    @property
    def after(self) -> After: ...
    @property
    def hash(self) -> str: ...
    @property
    def chunks(self) -> Any: ...  # (n, 8), a NumPy array or a memoryview
    def at(self, rank: int) -> Plan: ...
    @property
    def held(self) -> list[tuple[int, int, int]]: ...
    @property
    def lens(self) -> list[int]: ...
    @property
    def part_lens(self) -> tuple[list[int], ...]: ...
    def rows(self) -> tuple[int, int]: ...
    @property
    def segments(self) -> list[Segment]: ...
    def set_heads(self, heads: int) -> None: ...
    def to_svg(self, title: str | None = None) -> str: ...
    def as_dict(self) -> dict[str, Any]: ...

def plan(seq_lens_per_rank: Iterable[Iterable[SupportsIndex]], bags: _Bags = "auto", model: str | None = None,
         gamma: float | None = None, cluster: str | None = None,
         mem_tokens: int | Sequence[SupportsIndex] | None = None, speeds: Iterable[float] | None = None,
         max_chunk_size: int | None = None, affinity: _Affinity | None = None,
         budget_us: float | None = None) -> Plan: ...
def mix(name: str, ranks: int | None = None, seed: int = 0) -> list[list[int]]: ...
