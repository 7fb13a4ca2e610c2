# SPDX-License-Identifier: Apache-2.0
from typing import Any

import torch

class Stopwatch:
    on_gpu: bool
    cpu_time: bool
    running: bool
    complete: bool
    spans: list[tuple[Any, Any]]  # seconds, or torch.cuda.Event on a GPU; so are the three below
    first: Any
    last: Any
    begin: Any
    def __init__(self, device: torch.device) -> None: ...
    def on(self) -> None: ...
    def off(self) -> None: ...
    def pause(self) -> bool: ...
    def seconds(self) -> tuple[float, float]: ...
