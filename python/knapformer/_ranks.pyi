# SPDX-License-Identifier: Apache-2.0
from types import ModuleType
from typing import Any

import torch
from torch.distributed import ProcessGroup

def distributed() -> ModuleType | None: ...

class Ranks:
    group: ProcessGroup | None
    dist: ModuleType | None
    rank: int
    size: int
    def __init__(self, group: ProcessGroup | None = None) -> None: ...
    def moves(self, kind: str) -> bool: ...
    def device(self) -> torch.device: ...
    def gather(self, record: bytearray) -> bytes: ...
    def all_to_all(self, out: torch.Tensor, rows: torch.Tensor, out_counts: list[int],
                   counts: list[int], later: bool = False) -> Any: ...
