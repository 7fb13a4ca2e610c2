# SPDX-License-Identifier: Apache-2.0
# The extension of python/core. Arrays are bytes of 64-bit numbers, a cost and a configuration are the
# bytes of their structs, memory is given by address.
from collections.abc import Callable, Sequence
from typing import TypedDict, final
from typing_extensions import Self

version: str

# (n_in, n_out, send_index, recv_index, send_count, recv_count, stay, busy): see python/core/exchange.c
_Table = tuple[int, int, bytearray, bytearray, bytearray, bytearray, list[tuple[int, int, int]], bool]
# memory_bytes, memory_limit_bytes, tokens, samples, plan_s, route_s, compute_s, wait_s
_Counters = tuple[int, int, int, int, float, float, float, float]

class _Facts(TypedDict):
    ranks: int
    heads: int
    ranks_per_node: int
    auto: int
    seqs: int
    chunks: int
    hash: int
    ideal_s: float
    lower_bound_s: float
    before_step_s: float
    before_max_over_mean: float
    step_s: float
    max_over_mean: float
    compute_s: float
    comm_s: float
    gap: float
    speedup: float
    a2a_fraction: float
    moved_fraction: float
    tokens: int
    max_tokens: int
    split_seqs: int
    moves: int

class _Fit(TypedDict):
    linear_s: float
    quadratic_s: float
    constant_s: float
    gamma: float
    r2: float
    mape: float
    holdout_mape: float
    power_s: float
    power_p: float
    power_mape: float
    rows: int
    outliers: int
    ranks: int

class _Epoch(TypedDict):
    epoch: int
    steps: int
    batches: int
    samples: int
    tokens: int
    dropped_batches: int
    dropped_samples: int
    dropped_tokens: int
    underfilled_batches: int
    split_batches: int
    over_batches: int
    mixed_steps: int
    imbalance_rate: float
    mean_memory_use: float
    max_memory_use: float
    mean_compute_use: float
    max_compute_use: float
    predicted_s: float
    predicted_tokens_per_s: float

@final
class Plan:
    def array(self, name: str, /) -> bytes: ...
    def facts(self) -> _Facts: ...
    def svg(self, title: str | None, /) -> str: ...
    def route(self, rank: int, /) -> _Table: ...
    def held(self, rank: int, /) -> bytes: ...
    def sequences(self, rank: int, /) -> _Table: ...
    def ulysses(self, rank: int, heads: int, split_only: bool = ..., /) -> _Table: ...
    def segments(self, rank: int, heads: int, split_only: bool = ..., /) -> bytes: ...

@final
class Planner:
    def __new__(cls, config: bytes, ranks: int, speeds: bytes | None, mem_tokens: bytes | None, /) -> Self: ...
    def plan(self, rank_off: bytes, len: bytes, factor: bytes | None, profile: bytes | None, /) -> Plan: ...

@final
class Scheduler:
    def __new__(cls, config: bytes, ranks: int, speeds: bytes | None,
                log: Callable[[int, str], object] | None, /) -> Self: ...
    def plan(self, rank_off: bytes, len: bytes, factor: bytes | None, profile: bytes | None, /) -> Plan: ...
    def update_stats(self, rank: int, seconds: float, counters: _Counters, /) -> None: ...
    def reported(self, rank: int, /) -> tuple[float, _Counters] | None: ...
    def settle(self) -> None: ...
    def steps(self) -> int: ...
    def hash(self) -> int: ...
    def new_epoch(self) -> None: ...
    def metrics(self, prometheus: bool, /) -> str: ...
    def learned(self) -> tuple[bytes, int]: ...
    def save(self) -> bytes: ...
    def restore(self, name: str, data: bytes, /) -> None: ...
    def write(self, what: int, /) -> None: ...

@final
class Sampler:
    def __new__(cls, rule: str, cost: bytes, mem_tokens: int, match_len: int, comp_s: float, power: int,
                p: float, ranks: int, mode: int, seed: int, window: int, keep_all: bool, lens: bytes,
                /) -> Self: ...
    def set_epoch(self, epoch: int, /) -> None: ...
    def next(self) -> tuple[bytes, bytes] | None: ...
    def steps(self) -> tuple[int, int]: ...
    def set_cost(self, at: int, cost: bytes, /) -> None: ...
    def save(self) -> bytes: ...
    def restore(self, name: str, data: bytes, /) -> None: ...
    def hash(self) -> int: ...
    def figures(self) -> _Epoch: ...
    def buckets(self) -> list[tuple[int, int, int, float]]: ...

def mix(name: str, ranks: int, seed: int, /) -> tuple[bytes, bytes, bytes]: ...
def cost(config: bytes, ranks: int, /) -> bytes: ...
def config(defaults: Sequence[str], name: str, yaml: str | None, assignments: Sequence[str], ranks: int,
           /) -> tuple[bytes, str, str]: ...
def fit(lens: bytes, seconds: bytes, ranks: bytes | None, model: str | None, /) -> tuple[_Fit, str]: ...
def replace_file(path: str, data: bytes, /) -> None: ...
def attention(backward: int, segments: bytes, head_dim: int, threads: int, scale: float,
              addresses: Sequence[int | None], /) -> None: ...
def adaln(backward: int, shape: tuple[int, int, int, int, int, int, int, float, int],
          addresses: Sequence[int | None], /) -> None: ...
def adaln_cuda(call: tuple[int, tuple[int, int, int, int, int, int, int, float, int], Sequence[int | None]],
               stream: int, workspace: int, n_bytes: int, /) -> int | None: ...  # where it is built with CUDA
