# SPDX-License-Identifier: Apache-2.0
"""The ranks of a torch.distributed process group, or the one rank of a program that has none.

All that the package asks of a backend is here: gathers of small records, two a step, and one all-to-all with
uneven parts. gloo, NCCL and MPI have both. No process group is ever made.
"""
from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType
    import torch
    from torch.distributed import ProcessGroup


def distributed() -> ModuleType | None:
    """torch.distributed if there is a process group, else None. Does not import torch by itself: who has
    a process group has done that."""
    torch = sys.modules.get("torch")
    dist = getattr(torch, "distributed", None)
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


class Ranks:
    def __init__(self, group: ProcessGroup | None = None) -> None:
        dist = distributed()
        if dist is None and group is not None:
            raise ValueError("group: %r, but torch.distributed has not been initialised" % (group,))
        self.group, self.dist = group, dist
        self.rank: int = dist.get_rank(group) if dist else 0
        self.size: int = dist.get_world_size(group) if dist else 1
        if self.rank < 0:
            raise ValueError("this process is not in the group it was given")

    def moves(self, kind: str) -> bool:
        """Does the group's backend exchange tensors of this kind of device, "cpu" or "cuda"? It may have one for each, as in
        "cpu:gloo,cuda:nccl"; and gloo and MPI are of the CPU."""
        backend = str(self.dist.get_backend(self.group)).lower()
        if ":" in backend:
            backend = dict(pair.split(":") for pair in backend.split(",")).get(kind, "none")
        if backend in ("gloo", "mpi"):
            return kind == "cpu"
        return backend == "undefined" or (backend != "none" and kind != "cpu")  # undefined: torch chooses, one for each

    def device(self) -> torch.device:
        """Where small records live: on the CPU if that is exchanged, else on the current GPU."""
        import torch
        return torch.device("cpu") if self.moves("cpu") else torch.device("cuda", torch.cuda.current_device())

    def gather(self, record: bytearray) -> bytes:
        """Every rank's record (a bytearray of 8 n bytes, as long on all), one after the other, as bytes."""
        if self.size == 1:
            return bytes(record)
        import torch
        device = self.device()
        mine = torch.frombuffer(record, dtype=torch.int64).to(device)
        everything = torch.empty((self.size, len(mine)), dtype=torch.int64, device=device)
        self.dist.all_gather(list(everything.unbind(0)), mine, group=self.group)
        everything = everything.cpu()
        return ctypes.string_at(everything.data_ptr(), 8 * everything.numel())

    def all_to_all(self, out: torch.Tensor, rows: torch.Tensor, out_counts: list[int], counts: list[int],
                   later: bool = False) -> Any:
        """rows (n, w): counts[q] of them go to rank q, and out gets out_counts[q] from rank q. A backend of the CPU moves
        rows of a GPU by way of it; one of GPUs refuses those of the CPU. `later`: returns something to wait() for, or
        None if it is done."""
        if self.moves(rows.device.type):
            return self.dist.all_to_all_single(out, rows, out_counts, counts, group=self.group, async_op=later)
        if not self.moves("cpu"):
            raise ValueError("rows are on %s, which the process group's backend %s does not move" %
                             (rows.device, self.dist.get_backend(self.group)))
        received = out.new_empty(out.shape, device="cpu")
        self.dist.all_to_all_single(received, rows.cpu(), out_counts, counts, group=self.group)
        out.copy_(received)
        return None
