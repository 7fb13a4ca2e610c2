# SPDX-License-Identifier: Apache-2.0
"""plan_routing from Python: 32 ranks, the 89 sequences of joint, beside the same plan of the C library alone. One process stands
in for the 32: it is handed what the gather would bring, so that the gather is not timed, and everything else is: the
record, reading all ranks' records, the plan, its copy, and the tables of this rank's route."""
import statistics
import time

import torch

import knapformer
from knapformer import _core
from knapformer.plan import ROUTE, batch_of, ints
from knapformer.scheduler import RECORD

RANKS, RANK, ROUNDS = 32, 17, 2000


class Recorded:
    """Ranks whose gather answers what they would say. They gather, and say after the plan, what this rank does."""

    def __init__(self, lens, scheduler):
        self.rank, self.size, self.group, self.dist = RANK, RANKS, None, None
        self.lens, self.scheduler = [ints(own) for own in lens], scheduler
        self.gathers = [_core.Gather(RANKS, rank, RECORD.size) for rank in range(RANKS)]
        self.seconds, self.records = 0.0, {}

    def gather(self, record):
        start = time.perf_counter()
        if len(record) not in self.records:
            self.records[len(record)] = b"".join(self.say(record))
        self.seconds += time.perf_counter() - start
        return self.records[len(record)]

    def say(self, record):
        said = [gather.pack(lens, None, bytes(RECORD.size), self.scheduler, None) for gather, lens in zip(self.gathers, self.lens)]
        if len(said[0]) != len(record):  # a verdict
            return [record] * RANKS
        for gather in self.gathers:
            gather.read(b"".join(said))
        return said


def main():
    lens = knapformer.mix("joint")
    planner, batch = _core.Planner(None, RANKS, None, None), batch_of(lens) + (None,)
    balancer = knapformer.SequenceBalancer("auto", 0.4, heads=24, layers=57)
    balancer._own = False
    balancer.scheduler = knapformer.scheduler.Scheduler("auto", "static", ranks=RANKS)
    world = balancer.world = balancer.scheduler.world = Recorded(lens, balancer.scheduler._core)
    balancer.scheduler.gather = _core.Gather(RANKS, RANK, RECORD.size)
    device = torch.device("cpu")
    ours, alone, tables = [], [], []
    for _ in range(ROUNDS):
        world.seconds, start = 0.0, time.perf_counter()
        plan = balancer.plan_routing(lens[RANK], 3072)
        ours.append(time.perf_counter() - start - world.seconds)
        start = time.perf_counter()
        balancer.step.exchange(ROUTE, device)
        tables.append(time.perf_counter() - start)
        start = time.perf_counter()
        core = planner.plan(*batch)
        alone.append(time.perf_counter() - start)
    assert plan.hash == knapformer.plan(lens).hash == "%016x" % core.facts()["hash"], "another plan"
    for name, seconds in (("plan_routing", ours), ("tables of route", tables), ("the planner alone", alone)):
        seconds = sorted(seconds[ROUNDS // 10:])
        print("%-18s median %6.1f us   p99 %6.1f us" % (name, 1e6 * statistics.median(seconds), 1e6 * seconds[int(0.99 * len(seconds))]))
    print("ratio %.2f" % (statistics.median(ours) / statistics.median(alone)))


if __name__ == "__main__":
    main()
