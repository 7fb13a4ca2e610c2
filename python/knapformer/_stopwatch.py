# SPDX-License-Identifier: Apache-2.0
"""How long a rank was busy in one step: computing and moving data, without waiting for others.

    forward   route | on .. stage .. | off reverse_route          loss, at home
    backward  route | off .. stage .. on | reverse_route          optimiser

It runs while the token stage does, forward and backward, and the exchanges switch it on and off. On the CPU a
rank of one thread counts that thread's CPU time, in which waiting does not show; one of several threads counts
wall time, and exchanges pause it. On a GPU events are recorded in the stream, and read when the next step is
planned: nothing waits for them earlier.
"""
from __future__ import annotations

import time
from typing import Any

import torch


class Stopwatch:
    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.cpu_time = not self.on_gpu and torch.get_num_threads() == 1
        self.running = self.complete = False
        self.spans: list[tuple[Any, Any]] = []  # (begin, end) of each time that it ran: seconds, or events on a GPU
        self.begin: Any
        self.first: Any = None
        self.last: Any = None

    def _now(self):
        if self.on_gpu:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event
        return time.thread_time() if self.cpu_time else time.perf_counter()

    def on(self) -> None:
        if not self.running:
            self.begin, self.running = self._now(), True
            if self.first is None:
                self.first = self.begin if self.on_gpu else time.perf_counter()

    def off(self) -> None:
        if self.running:
            self.spans.append((self.begin, self._now()))
            self.running = False
            self.last = self.spans[-1][1] if self.on_gpu else time.perf_counter()

    def pause(self) -> bool:
        """Before an exchange in the middle of the stage; True if it was running."""
        if self.cpu_time or not self.running:
            return False
        self.off()
        return True

    def seconds(self) -> tuple[float, float]:
        """(busy, from begin to end). Ends it. Waits for the GPU, which has nothing left to do by then."""
        self.off()
        if not self.spans:
            return 0.0, 0.0
        if self.on_gpu:
            self.last.synchronize()
            return (sum(1e-3 * begin.elapsed_time(end) for begin, end in self.spans),
                    1e-3 * self.first.elapsed_time(self.last))
        return sum(end - begin for begin, end in self.spans), self.last - self.first
