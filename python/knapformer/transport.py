# SPDX-License-Identifier: Apache-2.0
"""Moving rows as a plan says: tensors of any width and type, on any device, bit for bit.

    pack_for_bag(mapping, tensors)     rows at home -> rows where they are computed
    unpack_from_bag(outputs)           and back

One all-to-all moves all tensors of a call. Bytes are moved and nothing is converted: rows travel as whole
numbers of 8, 4 or 1 bytes, which every backend takes. Both ways are differentiable; the backward of a move is
the same move with the two sides swapped.

    tensors (n_in, ..) --index_select--> | to rank 0 | to rank 1 | ..     one buffer, all tensors side by side
    --all-to-all--> | from rank 0 | .. --index_copy--> tensors (n_out, ..);  rows that stay are copied in runs

Calls are collective: every rank makes the same ones, with tensors of the same type and width, also a rank
without rows.
"""
from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Callable, Sequence, TypeVar

import torch
from torch.autograd.function import once_differentiable

from .plan import ROUTE, list_of

if TYPE_CHECKING:
    from torch import Tensor
    from . import _core
    from ._ranks import Ranks
    from ._stopwatch import Stopwatch
    from .plan import Plan
    # What goes in comes out: a tensor, or a list, a tuple or a dict of as many.
    _Tensors = TypeVar("_Tensors", bound=Tensor | list[Tensor] | tuple[Tensor, ...] | dict[Any, Tensor])
    _Departed = tuple["Exchange", dict[str, "Transfer"], tuple[Tensor, ...]]

WHOLE_TYPES: tuple[tuple[int, torch.dtype], ...] = ((8, torch.int64), (4, torch.int32), (1, torch.uint8))  # what rows travel as


class Exchange:
    """One rank's part in moving rows under a plan: a kf_exchange as tensors.
    `fans_out`: a row may go to several ranks (see SequenceBalancer.route_sequences); on the way back its copies
    are added up, `adds_up`."""

    def __init__(self, world: Ranks, table: _core._Table, device: torch.device, fans_out: bool = False,
                 stopwatch: Stopwatch | None = None) -> None:
        self.world, self.stopwatch, self.fans_out, self.adds_up = world, stopwatch, fans_out, False
        self.n_in, self.n_out, (send, send_count), (recv, recv_count), self.stay, self.busy = table
        self.send_index, self.recv_index = _index(send, device), _index(recv, device)
        self.send_count: list[int] = list_of(send_count)
        self.recv_count: list[int] = list_of(recv_count)

    @property
    def reversed(self) -> Exchange:
        """The way back. Made when asked for: two that knew each other would keep their tables until the garbage
        collector comes by."""
        back = Exchange.__new__(Exchange)
        back.world, back.stopwatch, back.busy = self.world, self.stopwatch, self.busy
        back.fans_out, back.adds_up = self.adds_up, self.fans_out
        back.n_in, back.n_out = self.n_out, self.n_in
        back.send_index, back.recv_index = self.recv_index, self.send_index
        back.send_count, back.recv_count = self.recv_count, self.send_count
        back.stay = [(to, at, n) for at, to, n in self.stay]
        return back

    @property
    def is_identity(self) -> bool:
        """Nothing moves on any rank, and here every row stays in its place."""
        return not self.busy and self.n_in == self.n_out and (
            self.n_in == 0 or self.stay == [(0, 0, self.n_in)])

    def move(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """New tensors of n_out rows."""
        return self.start(tensors).finish()

    def start(self, tensors: Sequence[Tensor], later: bool = False) -> Transfer:
        """Send them off. `later`: without waiting, so that others can compute until finish()."""
        size, whole_type = _whole_type(tensors)
        transfer = Transfer(self, tensors, [_as_whole(t, whole_type, size) for t in tensors])
        if self.busy:
            transfer.sent = _side_by_side(transfer.rows, self.send_index)
            transfer.received = transfer.sent.new_empty((len(self.recv_index), transfer.sent.shape[1]))
            paused = not later and self.stopwatch is not None and self.stopwatch.pause()
            transfer.work = self.world.all_to_all(transfer.received, transfer.sent, self.recv_count, self.send_count, later)
            if paused:
                self.stopwatch.on()
        return transfer

    def _place(self, tensor, row, part):
        """What was received and what stays, as a tensor like `tensor`."""
        shape = (self.n_out,) + tuple(tensor.shape[1:])
        if self.adds_up:
            out = tensor.new_zeros(shape)
            out.index_add_(0, self.recv_index, _from_whole(part.contiguous(), tensor, len(part)))
            for at, to, n in self.stay:
                out[to:to + n] += tensor[at:at + n]
            return out
        out = row.new_empty((self.n_out, row.shape[1]))
        if len(part):
            out.index_copy_(0, self.recv_index, part)
        for at, to, n in self.stay:
            out[to:to + n] = row[at:at + n]
        return _from_whole(out, tensor, self.n_out)


class Transfer:
    """Rows on their way: the buffers, and what to wait for."""

    def __init__(self, exchange: Exchange, tensors: Sequence[Tensor], rows: list[Tensor]) -> None:
        self.exchange, self.tensors, self.rows = exchange, tensors, rows
        self.sent: Tensor | None = None
        self.received: Tensor | None = None
        self.work: Any = None

    def finish(self) -> list[Tensor]:
        """The tensors, of n_out rows."""
        exchange, column, out = self.exchange, 0, []
        if self.work is not None:
            paused = exchange.stopwatch is not None and exchange.stopwatch.pause()
            self.work.wait()
            if paused:
                exchange.stopwatch.on()
        for tensor, row in zip(self.tensors, self.rows):
            width = row.shape[1]
            part = row[:0] if self.received is None else self.received[:, column:column + width]
            out.append(exchange._place(tensor, row, part))
            column += width
        return out


def _index(data: bytearray, device: torch.device) -> Tensor:
    if len(data) == 0:
        return torch.empty(0, dtype=torch.int64, device=device)
    index = torch.frombuffer(data, dtype=torch.int64)
    return index if device.type == "cpu" else index.pin_memory().to(device, non_blocking=True)


def _row_bytes(tensor):
    width = tensor.element_size()
    for n in tensor.shape[1:]:
        width *= n
    return width


def _whole_type(tensors):
    """The widest whole number that divides the rows of all tensors."""
    widths = [_row_bytes(t) for t in tensors]
    return next(t for t in WHOLE_TYPES if all(width % t[0] == 0 for width in widths))


def _as_whole(tensor, whole_type, size):
    """(n, ..) -> (n, row bytes / size) of the whole type; a view where memory allows it."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    tensor = tensor.resolve_neg()
    n, width = tensor.shape[0], _row_bytes(tensor)
    tensor = tensor.reshape(n, width // tensor.element_size()).contiguous()
    if tensor.numel() == 0:
        return torch.empty((n, width // size), dtype=whole_type, device=tensor.device)
    if tensor.storage_offset() * tensor.element_size() % size:
        tensor = tensor.clone()
    return tensor.view(whole_type)


def _from_whole(row, like, n):
    if row.numel() == 0:
        return like.new_empty((n,) + tuple(like.shape[1:]))
    if like.is_complex():
        real = row.view(torch.float64 if like.dtype == torch.complex128 else torch.float32)
        return torch.view_as_complex(real.reshape((n,) + tuple(like.shape[1:]) + (2,)))
    return row.view(like.dtype).reshape((n,) + tuple(like.shape[1:]))


def _side_by_side(rows, index):
    """The rows of `index`, all tensors' next to each other: (len(index), sum of widths)."""
    if len(rows) == 1:
        return rows[0].index_select(0, index)
    send = rows[0].new_empty((len(index), sum(row.shape[1] for row in rows)))
    column = 0
    for row in rows:
        width = row.shape[1]
        send[:, column:column + width] = row.index_select(0, index)
        column += width
    return send


class _Move(torch.autograd.Function):
    """`done`, if any, is called after each direction: see SequenceBalancer, whose stopwatch it switches.

    Activation checkpointing computes again when the backward pass first asks for a saved tensor, and only until it has
    them all. So moves save one of no size and ask for it first: then ranks compute again, and exchange again, at the
    same place of the backward pass, whatever else they have saved."""

    @staticmethod
    def forward(ctx, exchange, done, *tensors):
        ctx.exchange, ctx.done = exchange, done
        out = exchange.move(tensors)
        ctx.mark_non_differentiable(*[t for i, t in enumerate(out) if not ctx.needs_input_grad[2 + i]])
        ctx.save_for_backward(tensors[0].new_empty(0))
        if done:
            done("forward")
        return tuple(out)

    @staticmethod
    def backward(ctx, *gradients):
        ctx.saved_tensors
        if ctx.done:
            ctx.done("begin backward")
        wanted = [i for i, need in enumerate(ctx.needs_input_grad[2:]) if need]
        moved = _Move.apply(ctx.exchange.reversed, None, *[gradients[i] for i in wanted])
        out = [None] * len(gradients)
        for i, gradient in zip(wanted, moved):
            out[i] = gradient
        if ctx.done:
            ctx.done("backward")
        return (None, None) + tuple(out)


def move(exchange: Exchange, tensors: Sequence[Tensor], done: Callable[[str], object] | None = None) -> list[Tensor]:
    """Tensors of exchange.n_in rows become tensors of exchange.n_out rows, differentiable."""
    device = tensors[0].device
    for i, tensor in enumerate(tensors):
        if tensor.dim() == 0 or tensor.shape[0] != exchange.n_in:
            raise ValueError("tensor %d has shape %s, expected %d rows: the plan's lengths add up to that" %
                             (i, tuple(tensor.shape), exchange.n_in))
        if tensor.device != device:
            raise ValueError("tensor %d is on %s, but tensor 0 on %s" % (i, tensor.device, device))
    return list(_Move.apply(exchange, done, *tensors))


# --------------------------------------------------------------- a move with work in between
#
# depart() sends rows off and arrive() waits for them, as two nodes of the graph. What is computed between the two calls
# runs while rows travel; and because the backward pass takes nodes in the opposite order, its gradients do, too: arrive's
# backward sends, depart's waits. Between them go stand-ins of the right shape, one number each.


class _Depart(torch.autograd.Function):
    @staticmethod
    def forward(ctx, exchange, transfers, *tensors):
        ctx.transfers = transfers
        transfers["forward"] = exchange.start(tensors, later=True)
        return tuple(_stand_in(t, exchange.n_out) for t in tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx, *_):
        return (None, None) + tuple(ctx.transfers.pop("backward").finish())


class _Arrive(torch.autograd.Function):
    @staticmethod
    def forward(ctx, exchange, transfers, *stand_ins):
        ctx.exchange, ctx.transfers = exchange, transfers
        ctx.save_for_backward(stand_ins[0].new_empty(0))  # see _Move
        return tuple(transfers.pop("forward").finish())

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients):
        ctx.saved_tensors
        ctx.transfers["backward"] = ctx.exchange.reversed.start(gradients, later=True)
        return (None, None) + tuple(_stand_in(g, ctx.exchange.n_out) for g in gradients)


def _stand_in(tensor, n_rows):
    return tensor.new_zeros(()).expand((n_rows,) + tuple(tensor.shape[1:]))


def depart(exchange: Exchange, tensors: Sequence[Tensor]) -> _Departed:
    """Floating point tensors, all or none of which need gradients, set off. For arrive()."""
    transfers = {}
    return exchange, transfers, _Depart.apply(exchange, transfers, *tensors)


def arrive(departed: _Departed) -> list[Tensor]:
    exchange, transfers, stand_ins = departed
    return list(_Arrive.apply(exchange, transfers, *stand_ins))


# ------------------------------------------------------------------- the two promised calls

_last = threading.local()


def _route_of(mapping, device):
    """The exchange of a plan's rows, which is kept with the plan: one for each device."""
    from ._ranks import Ranks
    exchanges = mapping.__dict__.setdefault("exchanges", {})
    if device not in exchanges:
        world = Ranks(mapping.group)
        if world.size != mapping.ranks:
            raise ValueError("a mapping of %d ranks in a process group of %d" % (mapping.ranks, world.size))
        exchanges[device] = Exchange(world, mapping.core.exchange(ROUTE, world.rank), device)
    return exchanges[device]


def _leaves(tensors):
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return list(tensors.values()) if isinstance(tensors, dict) else list(tensors)


def _like(tensors, leaves):
    if isinstance(tensors, torch.Tensor):
        return leaves[0]
    return dict(zip(tensors, leaves)) if isinstance(tensors, dict) else type(tensors)(leaves)


def pack_for_bag(mapping: Plan, tensors: _Tensors) -> _Tensors:
    """Rows of this rank's own sequences, one after the other, become the rows that it computes: mapping.lens
    says how many of each chunk. `mapping` is what Scheduler.assign returned; `tensors` a tensor, a list, a tuple
    or a dict of them, and so is the result. Collective, differentiable."""
    leaves = _leaves(tensors)
    if not leaves:
        raise ValueError("no tensors to pack")
    exchange = _route_of(mapping, leaves[0].device)
    _last.mapping = mapping
    return _like(tensors, move(exchange, leaves))


def unpack_from_bag(outputs: _Tensors, mapping: Plan | None = None) -> _Tensors:
    """The way back: what was computed of the held rows, of any width, returns to the sequences' homes. `mapping`
    is by default the one of this thread's last pack_for_bag."""
    mapping = mapping if mapping is not None else getattr(_last, "mapping", None)
    if mapping is None:
        raise ValueError("nothing was packed, expected pack_for_bag first or a mapping")
    leaves = _leaves(outputs)
    if not leaves:
        raise ValueError("no tensors to unpack")
    return _like(outputs, move(_route_of(mapping, leaves[0].device).reversed, leaves))
