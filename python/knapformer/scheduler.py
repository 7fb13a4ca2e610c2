# SPDX-License-Identifier: Apache-2.0
"""The online object: plans every step, learns from measured times, remembers. Needs no PyTorch.

    chunks --assign--> Plan          who computes what, the same on every rank
    seconds --update_stats--> better plans

In a process group each rank assigns its own sequences, and two gathers a step make all know all: first lengths and
the last step's times; then, once each rank has learned and planned, hashes of what it has configured, learned and
planned. What the bytes mean is the C library's business (section 23 of knapformer.h). Whatever is wrong with one rank's
input, and any difference between ranks, is every rank's ValueError, with the rank in it.

Without a process group the caller speaks for all ranks.
"""
from __future__ import annotations

import hashlib
import json
import logging
import socket
import struct
import weakref
from typing import TYPE_CHECKING, Any, Callable, Iterable, Literal, Mapping, Protocol, Sequence, SupportsIndex, TypedDict

from . import _core
from ._ranks import Ranks
from .plan import Plan, bags_text, configuration, ints, reals, texts_of

if TYPE_CHECKING:
    import os
    from torch.distributed import ProcessGroup
    from typing_extensions import Unpack
    from .batches import _Array
    from .plan import _Affinity, _Bags
    _CostModel = Literal["history", "static", "modelled"]
    _Level = Literal["error", "warning", "info", "debug"]
    _Log = Callable[[int, str], object]
    _Path = str | os.PathLike[str]
    _Profile = tuple[int, int, int]  # kind, resolution, frames

    class _Record(Protocol):  # may have home, kind, resolution and frames, too
        @property
        def length(self) -> SupportsIndex: ...

    _Chunk = SupportsIndex | dict[str, Any] | _Record
    _Counters = TypedDict("_Counters", {
        "memory_bytes": int, "memory_limit_bytes": int, "tokens": int, "samples": int, "plan_s": float, "route_s": float,
        "compute_s": float, "wait_s": float}, total=False)

KINDS = ("unknown", "image", "keyframes", "video")
LEVELS = {1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO, 4: logging.DEBUG}
LEVEL_NAMES = ("error", "warning", "info", "debug")
COUNTERS = ("memory_bytes", "memory_limit_bytes", "tokens", "samples", "plan_s", "route_s", "compute_s", "wait_s")

RECORD = struct.Struct("=qQQ")  # what this package gathers beside the lengths: votes, signature, machine
MACHINE = int.from_bytes(hashlib.blake2b(socket.gethostname().encode(), digest_size=8).digest(), "little")
GATHERS: weakref.WeakKeyDictionary[Ranks | ProcessGroup, _core.Gather] = weakref.WeakKeyDictionary()  # by process group
LAST_STEP, END, STATE = range(3)  # what can be written
WRONG = (TypeError, ValueError, OverflowError)  # what rubbish among lengths and records raises

log = logging.getLogger("knapformer")


class Scheduler:
    """Scheduler(bag_config, cost_model, rebalance_interval): plans every step and learns.

    bag_config          "auto", a bag size, a list of sizes or "g1n8+g2n4"
    cost_model          "history": learn from times; "static": FLOPs alone; "modelled": of cost_file
    rebalance_interval  steps between refits of cost and speeds
    model, gamma, cluster, mem_tokens (one number), max_chunk_size, affinity, budget_us: as in knapformer.plan
    cost_file           what `knapformer fit -o` or Fit.save wrote
    config              a YAML file with these keys and others (doc/configuration.md); arguments win over it
    settings, defaults  "key=value" texts, of any key: settings win over the file, the file wins over defaults
                        (but a cluster of "" says nothing)
    speeds              relative speed of each rank to start from
    ranks, group        the number of ranks; by default those of the process group (of `group`, or the
                        default one), else those of bag_config
    log, log_level      log(level, line) is called for each line; by default rank 0 hands them to the
                        logger "knapformer", as far as that lets them through
    """

    def __init__(self, bag_config: _Bags | None = None, cost_model: _CostModel | None = None,
                 rebalance_interval: int | None = None, *, model: str | None = None, gamma: float | None = None,
                 cluster: str | None = None, mem_tokens: int | None = None, max_chunk_size: int | None = None,
                 affinity: _Affinity | None = None, budget_us: float | None = None, cost_file: _Path | None = None,
                 config: _Path | None = None, settings: Iterable[str] = (), defaults: Iterable[str] = (),
                 speeds: Iterable[float] | None = None, ranks: int | None = None, group: ProcessGroup | None = None,
                 log: _Log | None = None, log_level: _Level | None = None) -> None:
        self.world = Ranks(group)
        keys = {"cost_model": cost_model, "rebalance_interval": rebalance_interval, "model": model,
                "gamma": gamma, "cluster": cluster, "mem_tokens": mem_tokens,
                "max_chunk_size": max_chunk_size, "affinity_policy": affinity, "budget_us": budget_us,
                "cost_file": cost_file, "log_level": log_level,
                "bag_size": None if bag_config is None else bags_text(bag_config)}
        defaults, settings = texts_of("defaults", defaults), texts_of("settings", settings)
        if log is None:  # no lines that the logger would drop, unless the file asks for them
            defaults.insert(0, "log_level=" + _logger_level())
        self.ranks: int = _rank_count(ranks, self.world, configuration(0, keys, config, defaults, settings).bags)
        read = configuration(self.ranks, keys, config, defaults, settings)
        self.bags, self.shape = read.bags, read.shape  # (dim, layers, heads) of the model
        self.wants_times = read.wants_times  # to learn from, or for a file
        self._core = _core.Scheduler(read.raw, self.ranks, reals(speeds), log or (_log if self.world.rank == 0 else None))
        self.gather: _core.Gather = _gather_of(self.world)
        self._trouble = None  # of rank 0 with its files, until every rank has heard of it
        self.votes = 0  # of the last assign, all ranks' together: see hooks.py
        self.neighbours = 1  # ranks on this machine, as of the last plan

    # ------------------------------------------------------------------------------- plan

    def assign(self, chunks: Iterable[_Chunk | Sequence[_Chunk]] | _Array) -> Plan:
        """The plan of one step. In a process group `chunks` are this rank's sequences; otherwise all
        ranks': records that say their home, a list with a list for each rank, or lengths alone, of which
        number i of n lives on rank i * ranks // n. A sequence is its length in tokens, or a record (a dict,
        or an object with such attributes) with `length` and maybe `home`, `kind` (image, keyframes, video),
        `resolution` (pixels a side) and `frames`."""
        error = None
        try:
            lens, profiles, homes = _read_chunks(chunks)
            if self.world.size > 1:
                _check_homes(homes, self.world.rank)
        except WRONG as problem:  # every rank hears of it
            if self.world.size == 1:
                raise ValueError(str(problem)) from None
            error, lens, profiles = str(problem), [], None
        if self.world.size > 1:
            return self.plan(lens, profiles, error=error)
        self._write()
        plan = self._core.plan(*_deal(lens, profiles, homes, self.ranks))
        self._write()
        return Plan(plan, 0 if self.ranks == 1 else None, self.bags)

    def plan(self, lens: Sequence[SupportsIndex], profiles: Sequence[_Profile] | None = None, votes: int = 0,
             signature: int = 0, error: str | None = None) -> Plan:
        """assign() for the ranks of a process group, without records: this rank's lengths, and (kind,
        resolution, frames) of each or None. `error`, if any, is what is wrong with them. Every rank's
        `votes` are combined by "and" into self.votes; a `signature` must be the same on all."""
        if self.world.size != self.ranks:
            raise ValueError("a scheduler of %d ranks in a process group of %d" % (self.ranks, self.world.size))
        self._write()  # begins the files; after the first time there is nothing new
        if error is None:
            error, self._trouble = self._trouble, None
        try:
            lens, profiles = (None, None) if error else (ints(lens), _pack_profiles(profiles, len(lens)))
        except WRONG as problem:
            error, lens, profiles = str(problem), None, None
        records = list(RECORD.iter_unpack(self._gather_records(lens, profiles, RECORD.pack(votes, signature, MACHINE), error)))
        self.votes, self.neighbours = -1, sum(record[2] == MACHINE for record in records)
        for rank, (votes, signature, _) in enumerate(records):
            self.votes &= votes
            if signature != records[0][1]:
                raise ValueError("rank %d has other tensors than rank 0: their types and all but their rows must be the same" % rank)
        plan = Plan(self._agree(False), self.world.rank, self.bags)
        plan.group = self.world.group
        self._write()
        return plan

    def _gather_records(self, lens=None, profiles=None, record=None, error=None):
        """Gather what every rank has; returns their records."""
        records, wrong = None, error if error is None else error.encode("utf-8", "replace")
        while records is None:  # where not all had room
            mine = self.gather.pack(lens, profiles, record, self._core, wrong)
            records = self.gather.read(self.world.gather(mine))
        return records

    def _agree(self, settles):
        """Learn, plan unless it `settles` only, and see that all ranks have come to the same."""
        verdict, plan = self.gather.schedule(self._core, settles)
        self.gather.agree(self.world.gather(verdict))
        return plan

    # ------------------------------------------------------------------------------ learn

    def update_stats(self, gpu_id: int, exec_time: float, **counters: Unpack[_Counters]) -> None:
        """Rank gpu_id was busy for exec_time seconds in the step that was planned last: computing and
        moving data, without waiting for others. In a process group report your own rank. counters:
        memory_bytes, memory_limit_bytes, tokens, samples, plan_s, route_s, compute_s, wait_s."""
        unknown = set(counters) - set(COUNTERS)
        if unknown:
            raise ValueError("counter %s, expected %s" % (sorted(unknown)[0], ", ".join(COUNTERS)))
        self._core.update_stats(gpu_id, exec_time, tuple(counters.get(name, 0) for name in COUNTERS))

    def settle(self) -> None:
        """Learn from the last step's times now, not at the next plan: before saving, and after the last
        step. Writes the state_file, if there is one. Collective in a process group."""
        if self.world.size > 1:
            self._gather_records()
            self._agree(True)
        else:
            self._core.settle()
        self._write()
        self._write(STATE)
        if self.world.size > 1:
            trouble, self._trouble = self._trouble or "", None
            said = self.world.gather(bytearray(trouble.encode("utf-8", "replace")[:256].ljust(256, b"\0")))
            if said[0]:
                raise OSError("rank 0: " + said[:256].rstrip(b"\0").decode("utf-8", "replace"))

    def _write(self, what=LAST_STEP):
        """Rank 0 writes steps_file, metrics_file and trace_file, or the state_file, where the configuration names them."""
        if self.world.rank == 0 and (what == STATE or not self._trouble):
            try:
                self._core.write(what)
            except (OSError, ValueError, MemoryError) as problem:
                if self.world.size == 1:
                    raise
                self._trouble = self._trouble or str(problem)

    def close(self) -> None:
        """After the last settle(): ends steps_file and trace_file, to which nothing is added from then on."""
        if self.world.rank == 0:
            self._core.write(END)

    def metrics(self) -> dict[str, Any]:
        """The figures of the last step whose times are known, as doc/metrics.md defines them: a dict."""
        return json.loads(self._core.metrics(False))

    def prometheus(self) -> str:
        """The same in Prometheus's text format."""
        return self._core.metrics(True)

    @property
    def cost(self) -> bytes:
        """The cost that plans are made with, for BatchSampler.set_cost."""
        return self._core.progress()[2]

    @property
    def refits(self) -> int:
        return self._core.progress()[1]

    @property
    def steps(self) -> int:
        """How many steps were planned."""
        return self._core.progress()[0]

    def new_epoch(self) -> None:
        self._core.new_epoch()

    def state_dict(self) -> dict[str, bytes]:
        """Everything it knows. After settle() the same on every rank, so one saves and all restore."""
        return {"scheduler": self._core.save()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._core.restore("state_dict", bytes(state["scheduler"]))


# ----------------------------------------------------------------------------------- parts


def _gather_of(world):
    """It learns how much room a gather takes, with every gather of its process group: a scheduler may be new on one rank alone."""
    key = world if world.dist is None else world.dist.group.WORLD if world.group is None else world.group
    if key not in GATHERS:
        GATHERS[key] = _core.Gather(world.size, world.rank, RECORD.size)
    return GATHERS[key]


def _log(level, line):
    log.log(LEVELS[level], line)


def _logger_level():
    effective = log.getEffectiveLevel()
    return next((LEVEL_NAMES[k - 1] for k in (4, 3, 2) if effective <= LEVELS[k]), "error")


def _rank_count(ranks, world, bags):
    if ranks is None and world.size > 1:
        return world.size
    if ranks is None:
        return (_core.bags(bags, 0) or [1])[-1]
    if world.size > 1 and ranks != world.size:
        raise ValueError("ranks: %d, but the process group has %d" % (ranks, world.size))
    return ranks


def _field(record, name, default):
    value = record.get(name, default) if isinstance(record, dict) else getattr(record, name, default)
    return default if value is None else value


def _read_chunks(chunks):
    """Lengths, profiles (None: nobody gave one) and homes (None: not said) of chunks."""
    chunks = chunks.tolist() if hasattr(chunks, "tolist") else list(chunks)
    if chunks and all(isinstance(chunk, (list, tuple)) for chunk in chunks):  # a list for each rank
        lens, profiles, homes = [], [], []
        for rank, own in enumerate(chunks):
            part = _read_chunks(own)
            lens += part[0]
            profiles += part[1] or [(0, 0, 0)] * len(own)
            homes += [rank] * len(own)
        return lens, profiles if any(map(any, profiles)) else None, homes
    lens, profiles, homes = [], [], []
    for i, chunk in enumerate(chunks):
        if hasattr(chunk, "__index__"):
            lens.append(chunk)
            profiles.append((0, 0, 0))
            homes.append(None)
            continue
        length, kind = _field(chunk, "length", None), _field(chunk, "kind", "unknown")
        if length is None:
            raise ValueError("chunk %d is %r, expected a length or a record with one" % (i, chunk))
        if kind not in KINDS:
            raise ValueError("chunk %d: kind %r, expected %s" % (i, kind, ", ".join(KINDS[1:])))
        lens.append(length)
        profiles.append((KINDS.index(kind), int(_field(chunk, "resolution", 0)), int(_field(chunk, "frames", 0))))
        homes.append(_field(chunk, "home", None))
    return lens, profiles if any(map(any, profiles)) else None, homes


def _check_homes(homes, rank):
    for i, home in enumerate(homes):
        if home is not None and home != rank:
            raise ValueError("chunk %d has home rank %r, expected %d: each rank assigns its own" % (i, home, rank))


def _deal(lens, profiles, homes, ranks):
    """The batch of sequences whose homes are said, or else dealt out in order."""
    n = len(lens)
    homes = [i * ranks // n if home is None else home for i, home in enumerate(homes)]
    for i, home in enumerate(homes):
        if not (hasattr(home, "__index__") and 0 <= home < ranks):
            raise ValueError("chunk %d has home rank %r, expected 0 to %d" % (i, home, ranks - 1))
    if any(a > b for a, b in zip(homes, homes[1:])):
        raise ValueError("homes are not in order of ranks, expected the sequences of rank 0 first, then those of rank 1, ..")
    rank_off = [0] * (ranks + 1)
    for home in homes:
        rank_off[home + 1] += 1
    for r in range(ranks):
        rank_off[r + 1] += rank_off[r]
    return ints(rank_off), ints(lens), _pack_profiles(profiles, n)


def _pack_profiles(profiles, n):
    """The bytes of (kind, resolution, frames) of each sequence; None where nobody gave any."""
    profiles = list(profiles or [])
    if profiles and len(profiles) != n:
        raise ValueError("%d profiles, expected %d, one for each sequence" % (len(profiles), n))
    try:
        return b"".join(struct.pack("=iii", *profile) for profile in profiles) if profiles else None
    except (TypeError, struct.error):
        raise ValueError("profiles %r, expected (kind, resolution, frames), whole numbers below 2^31" % (profiles,)) from None
