# SPDX-License-Identifier: Apache-2.0
"""Plans: who computes what in one step. Needs neither PyTorch nor NumPy.

    lengths of all ranks --plan()--> Plan: figures, chunks, a picture

`Plan` is what the scheduler and the balancer hand out, too; there it knows the rank it is on.
"""
from __future__ import annotations

import functools
import os
import struct
import time
from array import array
from typing import TYPE_CHECKING, Any, Iterable, Literal, Mapping, NamedTuple, Sequence, SupportsIndex

from . import _core

if TYPE_CHECKING:
    from ._core import _Figures
    _Bags = int | str | list[int] | tuple[int, ...]
    _Affinity = Literal["fill", "spread"]
else:
    _Figures = object  # Plan.__getattr__ has them

Before = NamedTuple("Before", [("max_over_mean", float), ("step_s", float)])
After = NamedTuple("After", [("max_over_mean", float), ("step_s", float), ("compute_s", float), ("comm_s", float),
                             ("max_tokens", int)])
Configuration = NamedTuple("Configuration", [("raw", bytes), ("bags", str), ("model", str), ("shape", "tuple[int, int, int]"),
                                             ("cost_file", str), ("wants_times", bool)])
# raw: a kf_config; model: "" where it says none; shape: its dim, layers, heads; wants_times: to learn from, or for a file
Segment = NamedTuple("Segment", [("seq", int), ("rows", int), ("offset", int), ("first_head", int), ("heads", int)])

ROUTE, SEQUENCES, ULYSSES, ULYSSES_SPLIT = range(4)  # kinds of exchange: kf_exchange_kind


def ints(values: Sequence[SupportsIndex]) -> bytes:
    """Whole numbers as the bytes of 64-bit integers, which is how arrays reach the C library."""
    values = list(values)
    try:
        return array("q", values).tobytes()
    except (TypeError, OverflowError):
        for i, value in enumerate(values):
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise ValueError("value %d is %r, expected a whole number" % (i, value)) from None
            if not -2**63 <= value.__index__() < 2**63:
                raise ValueError("value %d is %r, expected less than 2^63" % (i, value)) from None
        return array("q", [value.__index__() for value in values]).tobytes()


def reals(values: Iterable[float] | None) -> bytes | None:
    """The same for real numbers; None stays None."""
    return None if values is None else array("d", values).tobytes()


def list_of(data: bytes | bytearray) -> list[int]:
    """Bytes of 64-bit integers as a list."""
    numbers = array("q")
    numbers.frombytes(data)
    return numbers.tolist()


def segments_of(data: bytes) -> list[Segment]:
    """Bytes of kf_segment as a list."""
    return [Segment(*row) for row in struct.iter_unpack("=qqqii", data)]


def bags_text(bags: _Bags) -> str:
    """An int, a list of sizes, "g1n8+g2n4" or "auto", as the C library reads it."""
    if isinstance(bags, str):
        return bags
    if isinstance(bags, int) and not isinstance(bags, bool):
        return str(bags)
    if isinstance(bags, (list, tuple)):
        return "[" + ",".join(str(size) for size in bags) + "]"
    raise ValueError('bags: %r, expected a number, a list of sizes, "g1n8+g2n4" or "auto"' % (bags,))


def texts_of(what: str, texts: Iterable[str]) -> list[str]:
    """Settings or defaults as a list, which may be gone through more than once."""
    if isinstance(texts, str):
        raise ValueError("%s is %r, expected a list of such texts" % (what, texts))
    texts = list(texts)
    for text in texts:
        if not isinstance(text, str):
            raise ValueError('%s has %r, expected texts "key=value"' % (what, text))
    return texts


def configuration(ranks: int, keys: Mapping[str, object], config: str | os.PathLike[str] | None = None,
                  defaults: Iterable[str] = (), settings: Iterable[str] = ()) -> Configuration:
    """The C library's configuration. What comes later wins: `defaults`, the YAML file `config`,
    `settings`, all "key=value" texts, and `keys`, a dict in which None says nothing. All else is the C library's default."""
    name, text = "config", None
    if config is not None:
        name = os.fsdecode(config)
        with open(name, "rb") as file:
            text = file.read()
    said = ["%s=%s" % item for item in keys.items() if item[1] is not None]
    try:
        return Configuration(*_core.config(texts_of("defaults", defaults), name, text, texts_of("settings", settings) + said, ranks))
    except ValueError as error:  # the C library calls an assignment what the program does
        raise ValueError(str(error).replace("--set ", "")) from None


def batch_of(seq_lens_per_rank: Iterable[Iterable[SupportsIndex]]) -> tuple[bytes, bytes]:
    """(rank_off, len) of a list with each rank's lengths."""
    offsets, lens = [0], []
    for rank, seq_lens in enumerate(seq_lens_per_rank):
        try:
            lens.extend(seq_lens)
        except TypeError:
            raise ValueError("rank %d: %r, expected a list of its sequences' lengths" %
                             (rank, seq_lens)) from None
        offsets.append(len(lens))
    if len(offsets) == 1:
        raise ValueError("no ranks, expected a list with each rank's lengths")
    return ints(offsets), ints(lens)


class Plan(_Figures):
    """Who computes what in one step, read-only. The figures have the names of `knapformer plan --json`
    and are defined in doc/metrics-of-a-plan.md: ranks seqs tokens ideal_s lower_bound_s gap speedup
    split_seqs a2a_fraction moved_fraction, `before` and `after` with their own. Further:

    chunks       (n, 8): seq, source, destination, offset, length, first_head, heads, part (0 split,
                 1 early, 2 late); a NumPy array where there is NumPy, else a two-dimensional memoryview
    hash         16 hex digits; the same on every rank, in C and under MPI
    rank         the rank this plan is looked at from; None for a plan of plan()
    held         (seq, offset, length) of each chunk whose rows this rank holds, in order: those of split sequences,
                 then whole ones that are computed early, then late ones
    lens         the lengths of these: rows of each held chunk
    part_lens    the same, one list for each of the three parts
    segments     what this rank's attention computes: Segment(seq, rows, offset, first_head, heads)
    """

    def __init__(self, core: _core.Plan, rank: int | None = None, bags: str = "auto", solve_us: float = 0.0) -> None:
        self.core, self.rank, self.bags, self.solve_us = core, rank, bags, solve_us
        self.group: Any = None  # the process group whose ranks it is for; None: the default one
        self.heads: int | None = None  # of the model, where that is another number than the plan was made with

    if not TYPE_CHECKING:
        def __getattr__(self, name):  # the figures are looked up when somebody asks for one
            if name.startswith("_"):
                raise AttributeError(name)
            facts = self.facts
            if name in facts and name not in ("chunks", "heads", "hash"):
                return facts[name]
            raise AttributeError("a plan has no %s" % name)

    @functools.cached_property
    def facts(self) -> _core._Facts:
        return self.core.facts()

    @property
    def before(self) -> Before:
        return Before(self.facts["before_max_over_mean"], self.facts["before_step_s"])

    @property
    def after(self) -> After:
        return After(*(self.facts[name] for name in After._fields))

    @property
    def hash(self) -> str:
        return "%016x" % self.facts["hash"]

    @property
    def chunks(self) -> Any:
        data = self.core.array("chunk")
        try:
            import numpy
        except ImportError:
            shape = (len(data) // 64, 8)
            return memoryview(data).cast("q", shape) if shape[0] else memoryview(data).cast("q")
        return numpy.frombuffer(data, dtype=numpy.int64).reshape(-1, 8)

    def _here(self):
        if self.rank is None:
            raise ValueError("a plan that was made without a process group is nobody's: give it a rank, plan.at(rank)")
        return self.rank

    def at(self, rank: int) -> Plan:
        """The same plan, looked at from a rank."""
        if not 0 <= rank < self.ranks:
            raise ValueError("rank %d, expected 0 to %d, the ranks of the plan" % (rank, self.ranks - 1))
        other = Plan(self.core, rank, self.bags, self.solve_us)
        other.group = self.group
        return other

    @functools.cached_property
    def _held(self):  # rows of `chunks`
        return list(struct.iter_unpack("=8q", self.core.held(self._here())))

    @property
    def held(self) -> list[tuple[int, int, int]]:
        return [(seq, offset, length) for seq, _, _, offset, length, *_ in self._held]

    @property
    def lens(self) -> list[int]:
        return [length for _, _, length in self.held]

    @property
    def part_lens(self) -> tuple[list[int], ...]:
        return tuple([row[4] for row in self._held if row[7] == part] for part in range(3))

    @functools.cached_property
    def _segments(self):
        return segments_of(self.core.segments(ULYSSES, self._here(), self.heads or self.facts["heads"]))

    @property
    def segments(self) -> list[Segment]:
        return list(self._segments)

    def set_heads(self, heads: int) -> None:
        """The model has so many heads. A plan that was made with another number keeps its shares."""
        if heads != self.heads:
            self.heads = heads
            self.__dict__.pop("_segments", None)

    def to_svg(self, title: str | None = None) -> str:
        """The plan as a picture: a bar a rank, before and after."""
        return self.core.svg(title)

    def as_dict(self) -> dict[str, Any]:
        """What `knapformer plan --json` prints."""
        names = ("ranks seqs tokens bags ideal_s before after lower_bound_s gap speedup split_seqs a2a_fraction "
                 "moved_fraction solve_us hash")
        out = {name: getattr(self, name) for name in names.split()}
        out["before"], out["after"] = self.before._asdict(), self.after._asdict()
        return out

    def __repr__(self):
        return "<knapformer.Plan of %d sequences on %d ranks: step %.4g s instead of %.4g s, hash %s>" % (
            self.seqs, self.ranks, self.after.step_s, self.before.step_s, self.hash)


def plan(seq_lens_per_rank: Iterable[Iterable[SupportsIndex]], bags: _Bags = "auto", model: str | None = None,
         gamma: float | None = None, cluster: str | None = None, mem_tokens: int | Sequence[SupportsIndex] | None = None,
         speeds: Iterable[float] | None = None, max_chunk_size: int | None = None, affinity: _Affinity | None = None,
         budget_us: float | None = None) -> Plan:
    """Plan one step: seq_lens_per_rank[r] are the lengths, in tokens, of rank r's sequences.

    bags        "auto", a bag size, a list of sizes or "g1n8+g2n4"
    model       flux (where it is not said), wan1.3b, wan14b, DiT-S, DiT-B, DiT-L, DiT-XL or "d=3072,layers=57,heads=24"
    gamma       seconds of an attention FLOP over those of another (0.4)
    cluster     None (nodes of eight H100), "free", or "nodes=4,ranks_per_node=8,tflops=300,.."
    mem_tokens  most tokens a rank may load: one number, or one for each rank
    speeds      relative speed of each rank
    mem_tokens, max_chunk_size, budget_us: 0 is no limit, no limit, the default

    >>> plan([[4096, 700], [300]]).speedup > 1
    True
    """
    rank_off, lens = batch_of(seq_lens_per_rank)
    n_ranks = len(rank_off) // 8 - 1
    if isinstance(mem_tokens, int):
        mem_tokens = [mem_tokens] * n_ranks if mem_tokens else None
    config = configuration(n_ranks, {
        "bag_size": bags_text(bags), "model": model, "gamma": gamma, "cluster": cluster, "max_chunk_size": max_chunk_size,
        "affinity_policy": affinity, "budget_us": budget_us})
    planner = _core.Planner(config.raw, n_ranks, reals(speeds), None if mem_tokens is None else ints(mem_tokens))
    start = time.perf_counter()
    core = planner.plan(rank_off, lens, None)
    return Plan(core, None, config.bags, 1e6 * (time.perf_counter() - start))


def mix(name: str, ranks: int | None = None, seed: int = 0) -> list[list[int]]:
    """Each rank's lengths of a mix: joint, mixres, lowres, lowres4k, clips, wan, or data codes such as
    "g16b4i256f1s0,g8b1i2048f1s0" (ranks, samples a rank, pixels, frames, 1 for video)."""
    rank_off, lens = map(list_of, _core.mix(name, ranks or 0, seed))
    return [lens[a:b] for a, b in zip(rank_off, rank_off[1:])]
