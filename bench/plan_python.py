# SPDX-License-Identifier: Apache-2.0
"""plan_routing from Python: 32 ranks, the 89 sequences of joint, beside the same plan of the C library alone. One process stands
in for the 32: it is handed what the gather would bring, so that the gather is not timed, and everything else is: the
record, reading all ranks' records, the plan, its copy, and the tables of this rank's route."""
import statistics
import time

import torch

import knapformer
from knapformer import _core
from knapformer.plan import batch_of

RANKS, RANK, ROUNDS = 32, 17, 2000


class Recorded:
    """Ranks whose gather answers what they would say."""

    def __init__(self, lens):
        self.lens, self.rank, self.size, self.group, self.dist = lens, RANK, RANKS, None, None
        self.seconds, self.records = 0.0, {}

    def neighbours(self):
        return 8

    def gather(self, record):
        start = time.perf_counter()
        if len(record) not in self.records:
            everything = []
            for lens in self.lens:
                other = bytearray(record)
                head = knapformer.scheduler.HEAD
                values = list(head.unpack_from(other))
                values[2] = len(lens)
                head.pack_into(other, 0, *values)
                own = b"".join(n.to_bytes(8, "little") for n in lens)
                other[head.size:head.size + len(own)] = own
                everything.append(bytes(other))
            self.records[len(record)] = b"".join(everything)
        self.seconds += time.perf_counter() - start
        return self.records[len(record)]


def main():
    lens = knapformer.mix("joint")
    planner, batch = _core.Planner(None, RANKS, None, None), batch_of(lens) + (None, None)
    balancer = knapformer.SequenceBalancer("auto", 0.4, heads=24, layers=57)
    ranks = Recorded(lens)
    balancer.group = ranks
    balancer._own = False
    balancer.scheduler = knapformer.scheduler.Scheduler("auto", "static", ranks=RANKS)
    balancer.scheduler.group = ranks
    device = torch.device("cpu")
    ours, alone, tables = [], [], []
    for _ in range(ROUNDS):
        ranks.seconds, start = 0.0, time.perf_counter()
        plan = balancer.plan_routing(lens[RANK], 3072)
        ours.append(time.perf_counter() - start - ranks.seconds)
        start = time.perf_counter()
        balancer.step.exchange("route", device)
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
