# SPDX-License-Identifier: Apache-2.0
"""Balance a trainer from outside, without a change to its code.

    handle = attach_to_trainer(trainer, scheduler)
    ... train ...
    handle.detach()

What is balanced is the token stage: the submodule that takes packed tokens, stage(x, lens, ..), and holds the
transformer's blocks. Before it runs, the step is planned and rows are routed to where they are computed; inside,
attention of split sequences exchanges heads; after it, results go home. What lies outside of it, embedding, loss,
optimiser, sees the rank's own sequences as always.

    x (T, D)                 packed tokens of this rank's sequences     rows are routed
    lens                     S numbers that add up to T                 becomes the rows of each held chunk
    tensors of T rows        RoPE, modality tags, ..                    rows are routed, in the same exchange
    tensors of S rows        conditioning                               one row for each held chunk
    anything else                                                       as it is
    returns (T, D')          or a list or tuple of such                 go home

Tensors may stand in lists, tuples and dicts. Which have T rows and which have S is agreed over all ranks and
steps, by the name of the argument: a coincidence on one rank means nothing.
"""
from __future__ import annotations

import hashlib
import operator
from typing import TYPE_CHECKING, Any, Callable, Iterable, Protocol

import torch

from .balancer import SequenceBalancer

if TYPE_CHECKING:
    from torch.nn import Module
    from typing_extensions import Self
    from .balancer import Step
    from .plan import Plan
    from .scheduler import Scheduler

    class _HasModel(Protocol):
        @property
        def model(self) -> Module | None: ...

    class _HasModule(Protocol):
        @property
        def module(self) -> Module | None: ...

    _Log = Callable[[dict[str, Any]], object]
    _Ints = list[int]
else:
    _Ints = list

MOST_TENSORS = 30  # that are looked at: two votes each


class HeldLens(_Ints):
    """The rows of each held chunk, and the step they belong to: who computes a block again in the backward pass
    (activation checkpointing) hands these on. Where lengths are a tensor, that has the attribute."""
    knapformer_step: Step | None = None


class Handle:
    """What attach_to_trainer returns. balancer, scheduler: what is used. plan: of the last step."""

    def __init__(self, stage: Module, attentions: Iterable[Module], scheduler: Scheduler, log: _Log | None) -> None:
        self.balancer, self.scheduler, self._log = SequenceBalancer(scheduler=scheduler), scheduler, log
        self._row_kinds = {}  # of each further tensor, by name: 1 may be per token, 2 may be per sequence, 3 both
        self._logged = -1
        self._before = []
        self._replace(stage, self._stage(stage.forward))
        for module in attentions:
            self._replace(module, self._attention(module.forward))

    @property
    def plan(self) -> Plan | Any:  # None before the first step
        return self.balancer.plan

    def _replace(self, module, forward):
        forward.knapformer = self
        self._before.append((module, module.__dict__.get("forward")))
        module.forward = forward

    def detach(self) -> None:
        """Leave everything as it was. A second call does nothing."""
        for module, forward in self._before:
            if forward is None:
                module.__dict__.pop("forward", None)
            else:
                module.forward = forward
        self._before = []

    def settle(self) -> None:
        """After the last step, and before the scheduler's state is saved. Collective."""
        self.balancer.settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    # ------------------------------------------------------------------------ attention

    def _attention(self, original):
        def forward(q, k, v, lens=None, *more, **named):
            step = getattr(lens, "knapformer_step", None)
            if step is None and self.plan is None:  # never was in a balanced stage
                return original(q, k, v, lens, *more, **named)
            scale = named.pop("scale", None)
            if any(value is not None for value in more) or any(value is not None for value in named.values()):
                raise ValueError("attention was called with %s, expected q, k, v, lens and maybe scale: masks and dropout cannot be "
                                 "balanced" % ", ".join([_describe(value) for value in more] + sorted(named)))
            return self.balancer.attention(q, k, v, scale, step)
        return forward

    # ---------------------------------------------------------------------------- stage

    def _stage(self, original):
        def forward(x, lens, *more, **named):
            own, error = _lens_list(lens)
            found = dict(_find((more, named)))
            names, tensors = list(found), list(found.values())
            if not isinstance(x, torch.Tensor) or x.dim() < 2:
                error = "the token stage was called with %s, expected packed tokens (rows, width)" % _describe(x)
            elif error is None and sum(own) != len(x):
                error = "lens add up to %d, but x has %d rows" % (sum(own), len(x))
            self._plan(own, x, names, tensors, error)
            held_lens, x, tensors = self._route(x, names, tensors)
            if isinstance(lens, torch.Tensor):
                held_lens = torch.tensor(held_lens, dtype=lens.dtype, device=lens.device)
                held_lens.knapformer_step = self.balancer.step
            more, named = _put_back((more, named), dict(zip(names, tensors)))
            return self._reverse(original(x, held_lens, *more, **named))
        return forward

    def _plan(self, lens, x, names, tensors, error):
        votes, text = 0, []
        if error is None:
            text = [_kind(t) for t in [x] + tensors] + names
            for i, t in enumerate(tensors[:MOST_TENSORS]):
                rows = t.shape[0] if t.dim() else -1
                votes |= ((rows == len(x)) | (rows == len(lens)) << 1) << 2 * i
        signature = int.from_bytes(hashlib.blake2b(repr(text).encode(), digest_size=8).digest(), "little")
        self.balancer.plan_routing(lens, x.shape[-1] if error is None else 1, votes=votes, signature=signature, error=error)
        for i, name in enumerate(names):
            agreed = self.scheduler.votes >> 2 * i & 3 if i < MOST_TENSORS else 0
            self._row_kinds[name] = self._row_kinds.get(name, 3) & agreed
        self._tell()

    def _tell(self):
        """The figures of a step are known when the next one is planned."""
        if self._log is not None:
            metrics = self.scheduler.metrics()
            if metrics["step"] > self._logged:
                self._logged = metrics["step"]
                self._log(metrics)

    def _route(self, x, names, tensors):
        kinds = [self._row_kinds[name] for name in names]
        per_token = [i for i, kind in enumerate(kinds) if kind & 1]
        per_sequence = [i for i, kind in enumerate(kinds) if kind == 2]
        lens, x, moved = self.balancer.route(x, [tensors[i] for i in per_token])
        held = dict(zip(per_token, moved))
        if per_sequence:
            held.update(zip(per_sequence, self.balancer.route_sequences([tensors[i] for i in per_sequence])))
        held_lens = HeldLens(lens)
        held_lens.knapformer_step = self.balancer.step
        return held_lens, x, [held.get(i, t) for i, t in enumerate(tensors)]

    def _reverse(self, out):
        rows = [out] if isinstance(out, torch.Tensor) else out
        if not isinstance(rows, (list, tuple)) or not all(isinstance(t, torch.Tensor) for t in rows):
            raise ValueError("the token stage returned %s, expected rows, or a list or tuple of such" % _describe(out))
        home = self.balancer.reverse_route(rows)
        return home[0] if isinstance(out, torch.Tensor) else type(out)(home)


def attach_to_trainer(trainer: Module | _HasModel | _HasModule, scheduler: Scheduler, stage: Module | str | None = None,
                      attention: type[Module] | str | None = None, log: _Log | None = None) -> Handle:
    """Balance the token stage of a trainer's model; see the head of this file for what that is.

    trainer    a torch module, or anything whose .model or .module is one (DDP and FSDP included)
    scheduler  a Scheduler of the process group's ranks and of the model's heads
    stage      the token stage: a submodule or its name; by default the one whose class says
               `packed_tokens = True`
    attention  what computes attention inside of it, as forward(q, k, v, lens, scale=None) of (rows, heads, head_dim), a softmax
               without mask or dropout: a class, or the last part of the submodules' names; by default
               knapformer.nn.PackedAttention
    log        called with the metrics of each step, a dict (doc/metrics.md), as soon as they are known

    Every rank attaches, and every rank calls the stage equally often. Returns a Handle; its detach() undoes all.
    """
    model = _model_of(trainer)
    stage = _stage_of(model, stage)
    attentions = _attentions_of(stage, attention)
    if any(hasattr(module.forward, "knapformer") for module in [stage] + attentions):
        raise ValueError("this model is attached already, expected detach() of that first")
    return Handle(stage, attentions, scheduler, log)


def _model_of(trainer):
    for candidate in (trainer, getattr(trainer, "model", None), getattr(trainer, "module", None)):
        if isinstance(candidate, torch.nn.Module):
            return candidate
    raise ValueError("%s is no torch module, and has none as .model or .module" % _describe(trainer))


def _stage_of(model, stage):
    if isinstance(stage, torch.nn.Module):
        return stage
    if stage is None:
        found = [(name, m) for name, m in model.named_modules() if getattr(type(m), "packed_tokens", False)]
        found = [(name, m) for name, m in found if not any(m is not o and m in set(o.modules()) for _, o in found)]
        wanted = "one whose class says `packed_tokens = True`; or name it with stage="
    else:
        found = [(name, m) for name, m in model.named_modules() if name == stage or name.endswith("." + stage)]
        wanted = "one of that name"
    if len(found) != 1:
        raise ValueError("token stage%s: found %d (%s), expected %s" % (
            "" if stage is None else " %r" % stage, len(found), ", ".join(name or "the model" for name, _ in found) or "none", wanted))
    return found[0][1]


def _attentions_of(stage, attention):
    if attention is None:
        from .nn import PackedAttention as attention
    if isinstance(attention, str):
        found = [m for name, m in stage.named_modules() if name.split(".")[-1] == attention]
    else:
        found = [m for m in stage.modules() if isinstance(m, attention)]
    if not found:
        raise ValueError("the token stage has no submodule %s that computes attention: name it with attention=" %
                         (attention if isinstance(attention, str) else attention.__name__))
    return found


def _lens_list(lens):
    """(numbers, None), or ([], what is wrong), which every rank shall hear."""
    try:
        return [operator.index(n) for n in (lens.tolist() if isinstance(lens, torch.Tensor) else lens)], None
    except TypeError:
        return [], "the token stage got lens %r, expected whole numbers" % (lens,)


def _kind(tensor):
    return (str(tensor.dtype), tuple(tensor.shape[1:]) if tensor.dim() else None, tensor.requires_grad)


def _describe(value):
    if isinstance(value, torch.Tensor):
        return "a tensor of shape %s" % (tuple(value.shape),)
    return "a %s" % type(value).__name__


def _find(value, name=""):
    """(name, tensor) of all tensors in arguments, lists, tuples and dicts among them."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from _find(value[key], "%s.%s" % (name, key))
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _find(item, "%s.%d" % (name, i))


def _put_back(value, tensors, name=""):
    """The same arguments with other tensors in their places."""
    if isinstance(value, torch.Tensor):
        return tensors[name]
    if isinstance(value, dict):
        return type(value)((key, _put_back(item, tensors, "%s.%s" % (name, key))) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        items = [_put_back(item, tensors, "%s.%d" % (name, i)) for i, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value
