# SPDX-License-Identifier: Apache-2.0
"""SequenceBalancer: balance a packed-token training loop.

    balancer.plan_routing(lens, dim)                 once a step: who computes what
    lens, x, features = balancer.route(x, features)  rows go where they are computed
        q, k, v: seq_lens, q, k, v = balancer.pre_attn(q, k, v)      in each layer; or all three
                 o = knapformer.attention(q, k, v, balancer.plan)    in one call,
                 lens, o = balancer.post_attn(o)                     o = balancer.attention(q, k, v)
    x = balancer.reverse_route(x)                    results go home

Names and shapes are those that users of the published balancer know. Every call is collective: all ranks make
the same ones, also a rank with nothing to compute, and its loss must depend on what reverse_route returns, so
that its backward runs too.
"""
from __future__ import annotations

import bisect
import functools
import os
import resource
from typing import TYPE_CHECKING, Any, Iterable, NamedTuple, Sequence, SupportsIndex, TypedDict, overload

import torch

from . import _core
from ._ranks import Ranks
from ._stopwatch import Stopwatch
from ._attention import attention
from .plan import ROUTE, SEQUENCES, ULYSSES, ULYSSES_SPLIT, Segment, configuration, segments_of, texts_of
from .scheduler import WRONG, Scheduler, log
from .transport import Exchange, arrive, depart, move

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup
    from typing_extensions import Unpack
    from ._attention import _Lens
    from .plan import Plan, _Affinity, _Bags
    from .scheduler import _CostModel, _Level, _Log, _Path, _Profile
    _Options = TypedDict("_Options", {  # of the Scheduler
        "model": str | None, "cost_model": _CostModel | None, "rebalance_interval": int | None, "cluster": str | None, "mem_tokens": int | None,
        "max_chunk_size": int | None, "affinity": _Affinity | None, "budget_us": float | None, "cost_file": _Path | None,
        "config": _Path | None, "settings": Iterable[str], "defaults": Iterable[str], "speeds": Iterable[float] | None,
        "log": _Log | None, "log_level": _Level | None}, total=False)
    _More = TypedDict("_More", {"votes": int, "signature": int, "error": str | None}, total=False)  # of Scheduler.plan

LAYERS, HEADS = 24, 24  # of a model that nobody described: bags can halve or third so many heads
FILES = ["state_file=", "steps_file=", "metrics_file=", "trace_file="]  # settings: none


def _count(name, value):
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise ValueError("%s is %r, expected a whole number of 1 or more" % (name, value))


SplitSegments = NamedTuple("SplitSegments", [("segments", "list[Segment]")])


class Step:
    """What belongs to one planned step: its plan, the tables of its moves, its stopwatch. It lives as long as
    the graph that was made under it: backward, and what it computes again, may come after later plans."""

    def __init__(self, world: Ranks, plan: Plan) -> None:
        self.world, self.plan = world, plan
        self.kept: dict[Any, Any] = {}  # what was made of the plan, by what it is
        self.stopwatch: Stopwatch | None = None
        self.flat_shape: torch.Size | None = None

    @functools.cached_property
    def part_lens(self) -> tuple[list[int], ...]:
        return self.plan.part_lens

    def exchange(self, kind: int, device: torch.device, heads: int = 0) -> Exchange:
        """The tables of one kind of move, made when first needed."""
        key = (kind, device, heads)
        if key not in self.kept:
            if self.stopwatch is None:
                self.stopwatch = Stopwatch(device)
            table = self.plan.core.exchange(kind, self.world.rank, heads)
            self.kept[key] = Exchange(self.world, table, device, kind == SEQUENCES, self.stopwatch)
        return self.kept[key]

    def split_segments(self, heads: int) -> SplitSegments:
        """What attention computes of split sequences, as a plan of its own."""
        key = ("segments", heads)
        if key not in self.kept:
            self.kept[key] = SplitSegments(segments_of(self.plan.core.segments(ULYSSES_SPLIT, self.world.rank, heads)))
        return self.kept[key]

    def seq_lens(self, device: torch.device) -> Tensor:
        """Rows of each segment, on the device: one copy a step, not one a layer."""
        key = ("seq_lens", device, self.plan.heads)
        if key not in self.kept:
            rows = [segment.rows for segment in self.plan.segments]
            self.kept[key] = torch.tensor(rows, dtype=torch.int32, device=device)
        return self.kept[key]


class SequenceBalancer:
    """SequenceBalancer(bag_specs, gamma).

    bag_specs   "auto" (where it is not said), or fixed bags: "g2n4" (4 bags of 2 ranks), "g1n8+g2n4", a list of sizes, a number
    gamma       seconds of an attention FLOP over those of another (0.4)
    heads       attention heads of the model; by default what the first attention shows. Files of a configuration
                are read and written from the first step on whose heads are known
    layers      transformer blocks (24)
    group       the process group; by default the default one
    scheduler   a Scheduler to plan with, which learns from the times measured here; it takes the place of all
                other arguments
    config      a configuration file, which means what it means to a Scheduler (cost_model: history where it says none)
    Further arguments go to the Scheduler that is made where none is given: cluster, mem_tokens, max_chunk_size,
    affinity, budget_us, model, settings, .. A `model` must have the width, heads and layers that are given here.
    Without scheduler and config plans are made from FLOPs alone (cost_model: static), or of the cost_file that is given.

    plan is the Plan of the last plan_routing.
    """

    scheduler: Scheduler

    def __init__(self, bag_specs: _Bags | None = None, gamma: float | None = None, *, heads: int | None = None,
                 layers: int | None = None, group: ProcessGroup | None = None, scheduler: Scheduler | None = None,
                 **options: Unpack[_Options]) -> None:
        given = dict(options, bag_specs=bag_specs, gamma=gamma, heads=heads, layers=layers, group=group)
        if scheduler is not None and any(value is not None for value in given.values()):
            first = min(name for name, value in given.items() if value is not None)
            raise ValueError("%s is given beside a scheduler, expected it to be the scheduler's" % first)
        self.world = Ranks(group if scheduler is None else scheduler.world.group)
        if scheduler is not None and scheduler.ranks != self.world.size:
            raise ValueError("a scheduler of %d ranks in a process group of %d" % (scheduler.ranks, self.world.size))
        self.bags, self.gamma = bag_specs, gamma
        self.heads, self.layers = (None if n is None else _count(name, n) for name, n in (("heads", heads), ("layers", layers)))
        self.scheduler, self._own = scheduler, scheduler is None
        self._shape = None  # (token_dim, heads or None) that self.scheduler was made for
        self._state = None  # what to restore once it is made for the model
        self._step = None
        if self._own:
            self._read_configuration(dict(options))
        self._real_heads = self.heads
        if self._own:  # what is wrong with the arguments is said here
            self._make_scheduler(self._read.shape[0] if self._read.model else None)

    @property
    def balance_process_group(self) -> ProcessGroup | None:
        return self.world.group

    @property
    def plan(self) -> Plan | Any:  # None before plan_routing; not to be asked in each layer
        return None if self._step is None else self._step.plan

    @property
    def step(self) -> Step:
        """The Step that was planned last. attention(.., step=) goes back to an earlier one."""
        if self._step is None:
            raise ValueError("nothing was planned, expected plan_routing first")
        return self._step

    # -------------------------------------------------------------------------------- plan

    def _read_configuration(self, options):
        """The scheduler's, and what decides here: a model, which heads= and layers= must fit."""
        for name in ("defaults", "settings"):
            options[name] = texts_of(name, options.get(name, ()))
        if options.get("speeds") is not None:
            options["speeds"] = list(options["speeds"])
        keys = {name: options.get(name) for name in ("model", "cost_model", "cost_file")}
        self._read = configuration(0, keys, options.get("config"), options["defaults"], options["settings"])
        if options.get("config") is None:
            options["defaults"].insert(0, "cost_model=" + ("modelled" if self._read.cost_file else "static"))
        self._options = options
        if self._read.model:
            _, self.layers, self.heads = self._fit_model(self.layers, self.heads)

    def _fit_model(self, layers=None, heads=None, token_dim=None):
        given = {"token_dim": token_dim, "layers": layers, "heads": heads}
        for (name, value), wanted in zip(given.items(), self._read.shape):
            if value not in (None, wanted):
                raise ValueError("%s is %d, expected %d, as the configuration's model %s has" % (name, value, wanted, self._read.model))
        return self._read.shape

    def _make_scheduler(self, token_dim=None):
        """One for this width; None: it is not known yet. Where the number of heads is not known, plans share heads in
        fractions, and pre_attn goes to the nearest whole one."""
        if self._shape == (token_dim, self._real_heads):
            return
        heads, options = self._real_heads or HEADS, dict(self._options)
        if self._read.model:
            self._fit_model(token_dim=token_dim)
        else:
            model = "model=d=%d,layers=%d,heads=%d" % (token_dim or 64 * heads, self.layers or LAYERS, heads)
            options["defaults"] = [model, *options["defaults"]]
        if not token_dim or not self._real_heads:
            options["settings"] = options["settings"] + FILES
        self.scheduler = Scheduler(self.bags, gamma=self.gamma, group=self.world.group, ranks=self.world.size, **options)
        self._shape = (token_dim, self._real_heads)
        if self._state and all(self._shape):
            state, self._state = self._state, None
            self.scheduler.load_state_dict(state)

    def plan_routing(self, local_seq_lens: _Lens, token_dim: int, profiles: Sequence[_Profile] | None = None,
                     **more: Unpack[_More]) -> Plan:
        """Plan a step: the lengths of this rank's sequences (a list or a tensor), and the width of the model.
        profiles: (kind, resolution, frames) of each, as numbers, where the scheduler is to learn by class.
        Further arguments are those of Scheduler.plan."""
        error = more.pop("error", None)
        self._report()
        try:  # what is wrong here, every rank shall hear
            if isinstance(local_seq_lens, torch.Tensor):
                local_seq_lens = local_seq_lens.tolist()
            local_seq_lens = list(local_seq_lens)
            token_dim = _count("token_dim", token_dim)
            if self._own:
                self._make_scheduler(token_dim)
        except (*WRONG, OSError, MemoryError) as problem:  # also of the files of a configuration
            error = error or str(problem)
        plan = self.scheduler.plan(local_seq_lens, profiles, error=error, **more)
        if self._real_heads:
            plan.set_heads(self._real_heads)
        self._step = Step(self.world, plan)
        return plan

    def settle(self) -> None:
        """After the last step, and before the scheduler's state is saved: learn from the last step's times, too. Collective."""
        self._report()
        self.scheduler.settle()

    def state_dict(self) -> dict[str, bytes]:
        """Everything that was learned. After settle() the same on every rank, so one saves and all restore."""
        return self._state or self.scheduler.state_dict()

    def load_state_dict(self, state: dict[str, bytes]) -> None:
        """Go on from a state: at once, or from the first step on whose width and heads are known."""
        if self._own and not (self._shape and all(self._shape)):
            self._state = dict(state)
        else:
            self.scheduler.load_state_dict(state)

    def _report(self):
        """Tell the scheduler how long this rank was busy in the last step, if all of it was seen: a forward
        without a backward would look like a step three times as fast."""
        step, self._step = self._step, None
        if step is None or step.stopwatch is None or not step.stopwatch.complete:
            return
        busy, span = step.stopwatch.seconds()
        counters = {"tokens": sum(step.plan.lens), "samples": sum(offset == 0 for _, offset, _ in step.plan.held), "compute_s": busy,
                    "wait_s": max(0.0, span - busy)}
        if step.stopwatch.on_gpu:
            device = torch.cuda.current_device()
            counters.update(memory_bytes=torch.cuda.max_memory_allocated(device),
                            memory_limit_bytes=torch.cuda.get_device_properties(device).total_memory)
        else:
            counters.update(memory_bytes=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
                            memory_limit_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // self.scheduler.neighbours)
        try:
            self.scheduler.update_stats(self.world.rank, busy, **counters)
        except ValueError as problem:  # a clock that stood still is no reason to stop training
            log.warning("times of rank %d are not used: %s", self.world.rank, problem)

    # ------------------------------------------------------------------------------- route

    @overload
    def route(self, packed_seqs: Tensor, packed_features: None = None) -> tuple[list[int], Tensor, None]: ...
    @overload
    def route(self, packed_seqs: Tensor, packed_features: Sequence[Tensor]) -> tuple[list[int], Tensor, list[Tensor]]: ...
    def route(self, packed_seqs, packed_features=None):
        """This rank's sequences, one after the other (rows, ..), and features of the same rows, of any type
        and width, travel to where they are computed. Returns (chunk_lens, seqs, features): the rows of each
        chunk that this rank now holds, and the rows."""
        if isinstance(packed_features, torch.Tensor):
            raise ValueError("packed_features is a tensor, expected a list of tensors")
        features = list(packed_features or [])
        step = self.step
        exchange = step.exchange(ROUTE, packed_seqs.device)
        stopwatch = step.stopwatch

        def done(what):  # the stage begins after the forward and ends before the backward of this move
            if what == "forward":
                stopwatch.on()
            elif what == "begin backward":
                stopwatch.off()
            else:
                stopwatch.complete = True

        held = move(exchange, [packed_seqs] + features, done)
        wanted = not self._own or self.scheduler.wants_times
        if wanted and torch.is_grad_enabled() and not held[0].requires_grad and held[0].is_floating_point():
            # Data has no gradient, so nothing would tell when the backward pass is through.
            held[0].requires_grad_().register_hook(lambda _: done("begin backward") or done("backward"))
        return step.plan.lens, held[0], held[1:] if packed_features is not None else None

    @overload
    def route_sequences(self, values: Tensor) -> Tensor: ...
    @overload
    def route_sequences(self, values: Sequence[Tensor]) -> list[Tensor]: ...
    def route_sequences(self, values):
        """One row for each of this rank's sequences becomes one row for each chunk that it holds: what all
        tokens of a sequence share, such as its conditioning. The gradients of a split sequence's chunks add up. A
        list of tensors: all in one exchange."""
        rows = [values] if isinstance(values, torch.Tensor) else list(values)
        exchange = self.step.exchange(SEQUENCES, rows[0].device)
        out = rows if exchange.is_identity else move(exchange, rows)
        return out[0] if isinstance(values, torch.Tensor) else out

    @overload
    def reverse_route(self, packed_seqs: Tensor) -> Tensor: ...
    @overload
    def reverse_route(self, packed_seqs: Sequence[Tensor]) -> list[Tensor]: ...
    def reverse_route(self, packed_seqs):
        """Held rows, of any width, return to their sequences' home. A list of tensors: all in one exchange."""
        rows = [packed_seqs] if isinstance(packed_seqs, torch.Tensor) else list(packed_seqs)
        exchange = self.step.exchange(ROUTE, rows[0].device).reversed
        stopwatch = self.step.stopwatch
        stopwatch.off()

        def done(what):
            if what == "backward":
                stopwatch.on()

        out = move(exchange, rows, done)
        return out[0] if isinstance(packed_seqs, torch.Tensor) else out

    # --------------------------------------------------------------------------- attention

    def _heads_of(self, tensors, step):
        shapes = [tuple(t.shape) for t in tensors]
        if any(shape != shapes[0] or len(shape) != 3 for shape in shapes):
            raise ValueError("q, k and v have shapes %s, expected the same (rows, heads, head_dim)" %
                             ", ".join(map(str, shapes)))
        if len({t.dtype for t in tensors}) > 1 or len({t.device for t in tensors}) > 1:
            raise ValueError("q, k and v are %s, expected one type and device" %
                             ", ".join("%s on %s" % (t.dtype, t.device) for t in tensors))
        heads, given = shapes[0][1], self.heads if self._own else step.plan.facts["heads"]
        if given and heads != given:
            says = "scheduler's model=" if not self._own else "configuration's model" if self._read.model else "balancer's heads="
            raise ValueError("q has %d heads, but plans are made for %d, as the %s says" % (heads, given, says))
        self._real_heads = heads
        step.plan.set_heads(heads)
        return heads

    def _share(self, heads):
        """Heads that a rank of this one's fixed bag has of a sequence, about: the shape of nothing, where it has none."""
        first = _core.bags(self.scheduler.bags, self.world.size)
        bag = bisect.bisect(first, self.world.rank)
        return max(1, heads // (first[bag] - first[bag - 1]))

    def pre_attn(self, q: Tensor, k: Tensor, v: Tensor, step: Step | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Held rows with all heads (rows, heads, head_dim) become whole sequences with this rank's heads of
        each. Returns (seq_lens, q, k, v), seq_lens a tensor with the rows of each. With fixed bags of equal
        shares q, k and v are (rows, heads / bag, head_dim); with "auto" each sequence has its own number of heads,
        and they are flat, (pairs of row and head, head_dim): plan.segments says which is which, and
        knapformer.attention takes both."""
        step = step or self.step
        heads, head_dim = self._heads_of((q, k, v), step), q.shape[2]
        exchange = step.exchange(ULYSSES, q.device, heads)
        flat = [t.reshape(-1, head_dim) for t in (q, k, v)]
        if len(flat[0]) != exchange.n_in:
            raise ValueError("q has %d rows, expected %d, those of plan.lens" % (len(q), exchange.n_in // heads))
        if not exchange.is_identity:
            flat = move(exchange, flat)
        segments = step.plan.segments
        step.flat_shape = flat[0].shape
        own = {s.heads for s in segments}
        if not step.plan.facts["auto"] and len(own) < 2:
            shape = (sum(s.rows for s in segments), own.pop() if own else self._share(heads), head_dim)
            flat = [t.reshape(shape) for t in flat]
        return (step.seq_lens(q.device),) + tuple(flat)

    def post_attn(self, o: Tensor, step: Step | None = None) -> tuple[list[int], Tensor]:
        """The way back: what attention made of q, k and v, as pre_attn shaped them, becomes held rows with all
        heads. Returns (chunk_lens, o), o (rows, heads, head_dim)."""
        step = step or self.step
        if step.flat_shape is None:
            raise ValueError("nothing to take back, expected pre_attn first")
        if o.numel() != step.flat_shape[0] * step.flat_shape[1]:
            raise ValueError("o has shape %s, expected that of q after pre_attn, %s" %
                             (tuple(o.shape), tuple(step.flat_shape)))
        heads, flat = step.plan.heads, o.reshape(step.flat_shape)
        exchange = step.exchange(ULYSSES, o.device, heads).reversed
        if not exchange.is_identity:
            flat = move(exchange, [flat])[0]
        return step.plan.lens, flat.reshape(-1, heads, flat.shape[1])

    def attention(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, step: Step | None = None) -> Tensor:
        """What pre_attn, knapformer.attention and post_attn do: (rows, heads, head_dim), as held, in and out. But whole
        sequences are computed where they lie, while the rows of split ones travel: the early ones while q, k and v do, the
        late ones while the outputs come back."""
        step = step or self.step
        heads, head_dim = self._heads_of((q, k, v), step), q.shape[2]
        exchange = step.exchange(ULYSSES_SPLIT, q.device, heads)
        lens = step.part_lens
        sizes = [sum(part) for part in lens]
        if sum(sizes) != len(q):
            raise ValueError("q has %d rows, expected %d, those of plan.lens" % (len(q), sum(sizes)))
        if not exchange.busy:
            return attention(q, k, v, lens[0] + lens[1] + lens[2], scale)
        split, early, late = zip(*(t.split(sizes) for t in (q, k, v)))
        departed = depart(exchange, [t.reshape(-1, head_dim) for t in split])
        first = attention(*early, lens[1], scale)
        o = attention(*arrive(departed), step.split_segments(heads), scale)
        departed = depart(exchange.reversed, [o])
        last = attention(*late, lens[2], scale)
        return torch.cat([arrive(departed)[0].reshape(-1, heads, head_dim), first, last])
