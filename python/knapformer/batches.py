# SPDX-License-Identifier: Apache-2.0
"""Batches of even work under a memory and a compute limit, for DataLoader(batch_sampler=...). Needs no PyTorch.

All follows from the arguments, the lengths and the epoch, so every rank computes the same for itself, without
communication, and gets the same number of batches. doc/batches.md says which rule is for what.
"""
from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any, Iterator, Literal, Mapping, NamedTuple, Protocol, Sequence, SupportsIndex

from . import _core
from ._ranks import Ranks
from .plan import configuration, ints, list_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    class _Array(Protocol):  # a tensor, or a NumPy array
        def tolist(self) -> Any: ...

    _Rule = Literal["packed", "two_term", "power", "equal_token"]
    _Mode = Literal["random", "same", "similar"]

MODES = ("random", "same", "similar")
KEEP = 1024  # states of so many steps are kept: as far as a loader may be ahead of training

Bucket = NamedTuple("Bucket", [("seq_len", int), ("count", int), ("batch_size", int), ("work_s", float)])


class BatchSampler:
    """Lists of sample numbers, one a step, of this rank.

    lens         tokens of each sample of the data set
    mem_tokens   most tokens of a batch
    match_len    no batch takes longer than one sequence of so many tokens, or
    comp_seconds than so many seconds, by the cost
    rule         "packed" (any lengths share a batch), "two_term", "power", "equal_token" (one length a batch)
    mode         "random", "same" or "similar": which batches share a step
    ranks, rank  by default those of the process group
    p            of "power": "best", "fitted" or a number
    keep_all     cut batches in two rather than drop the last incomplete step
    """

    def __init__(self, lens: Sequence[SupportsIndex] | _Array, mem_tokens: int, match_len: int | None = None,
                 comp_seconds: float | None = None, *, rule: _Rule = "packed", mode: _Mode = "random", ranks: int | None = None,
                 rank: int | None = None, group: ProcessGroup | None = None, seed: int = 0, model: str | None = None,
                 gamma: float | None = None, cluster: str | None = None, p: Literal["best", "fitted"] | float = "best",
                 window: int = 0, keep_all: bool = False) -> None:
        world = Ranks(group)
        self.ranks = world.size if ranks is None else ranks
        self.rank = world.rank if rank is None else rank
        if self.ranks < 1 or not 0 <= self.rank < self.ranks:
            raise ValueError("rank %r of %r, expected 0 to ranks - 1" % (self.rank, self.ranks))
        if mode not in MODES:
            raise ValueError("mode: %r, expected random, same or similar" % (mode,))
        power = {"best": 0, "fitted": 1}.get(p, 2)
        if power == 2 and isinstance(p, str):
            raise ValueError("p: %r, expected best, fitted or a number" % (p,))
        config = configuration(self.ranks, {"model": model, "gamma": gamma, "cluster": cluster}).raw
        lens = lens.tolist() if hasattr(lens, "tolist") else lens
        self._core = _core.Sampler(rule, config, mem_tokens, match_len or 0, comp_seconds or 0.0, power, p if power == 2 else 0.0,
                                   self.ranks, MODES.index(mode), seed, window, keep_all, ints(lens))
        self.epoch, self._ended = 0, False
        self._states = collections.deque(maxlen=KEEP)  # (step, state before it)

    def __len__(self) -> int:
        """Batches of this epoch, the same on every rank."""
        return self._core.steps()[1]

    def __iter__(self) -> Iterator[list[int]]:
        """The rest of the epoch: all of it after set_epoch, or what a restored state has left. An epoch that was
        iterated to its end begins again."""
        if self._ended:
            self.set_epoch(self.epoch)
        while True:
            batch = self.next_step()
            if batch is None:
                self._ended = True
                return
            yield batch[self.rank]

    def next_step(self) -> list[list[int]] | None:
        """All ranks' samples of the next step, a list for each rank; None after the last."""
        state = (self._core.steps()[0], self._core.save())
        found = self._core.next()
        if found is None:
            return None
        self._states.append(state)
        rank_off, samples = map(list_of, found)
        return [samples[a:b] for a, b in zip(rank_off, rank_off[1:])]

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch at its first step."""
        self._core.set_epoch(epoch)
        self.epoch = epoch
        self._states.clear()
        self._ended = False

    @property
    def step(self) -> int:
        """The number of the next step of this epoch."""
        return self._core.steps()[0]

    def set_cost(self, cost: bytes, at: int | None = None) -> None:
        """From step `at` on (the next one) make batches by another cost: Scheduler.cost, when it has refitted.
        The same call on every rank, with a step that no rank's loader has reached."""
        self._core.set_cost(self.step if at is None else at, cost)

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """What to go on from. A DataLoader with workers has drawn batches that training has not seen: say how many
        steps of this epoch are trained, and those after it come again."""
        if step is None or step == self.step:
            return {"sampler": self._core.save(), "epoch": self.epoch}
        for number, state in self._states:
            if number == step:
                return {"sampler": state, "epoch": self.epoch}
        raise ValueError("step %r of the epoch, expected one of the last %d up to %d" % (step, KEEP, self.step))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._core.restore("state_dict", bytes(state["sampler"]))
        self.epoch = state["epoch"]
        self._states.clear()
        self._ended = False

    def figures(self) -> _core._Epoch:
        """What the epoch hands out, drops and leaves idle: doc/batches.md defines each figure."""
        return self._core.figures()

    def buckets(self) -> list[Bucket]:
        """Bucket(seq_len, count, batch_size, work_s) of each distinct length."""
        return [Bucket(*row) for row in self._core.buckets()]

    def hash(self) -> str:
        """Ranks with the same one go on alike."""
        return "%016x" % self._core.hash()
