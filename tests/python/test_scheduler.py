# SPDX-License-Identifier: Apache-2.0
"""The scheduler and the transport in a process group: the plans of C and of MPI ranks, hash for hash; times that travel; rows
that are packed and come back; and what becomes of the others when a rank fails."""
import datetime
import json
import os
import subprocess
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import knapformer
import workers
from knapformer import transport
from knapformer.scheduler import Scheduler
from workers import refuses

CODES = "g1b3i256f1s0,g1b1i1024f1s0,g1b2i512f4s0,g1b1i256f85s1"


def hashes_under_mpi(bags, steps):
    """Of the first steps of a simulated run on four MPI ranks."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "steps")
        subprocess.run([os.environ["KF_MPIRUN"], "-n", "4", os.environ["KF_PROGRAM"], "sim", "--mix", CODES, "--steps", str(steps),
                        "--set", "bag_size=" + bags, "--steps-file", path, "--json"], stdout=subprocess.DEVNULL, check=True)
        with open(path) as file:
            return [json.loads(line)["plan"]["hash"] for line in file]


def same_as_mpi(want):
    rank = dist.get_rank()
    for bags, hashes in want.items():
        scheduler = Scheduler(bags)
        for step, expected in enumerate(hashes):
            lens = knapformer.mix(CODES, seed=step)
            assert scheduler.assign(lens[rank]).hash == expected, (bags, step)
            assert knapformer.plan(lens, bags=bags).hash == expected


def learning():
    """Each rank reports its own time, and all learn the same; rank 1 is slow."""
    rank, size = dist.get_rank(), dist.get_world_size()
    scheduler = Scheduler("auto", "history", 5, cluster="free")
    chunks = [{"length": 3000 + 10 * i, "kind": "video", "resolution": 512, "frames": 17} for i in range(6)]
    for step in range(40):
        plan = scheduler.assign(chunks)
        if step == 0:
            first = plan
        busy = sum(1e-6 * n for n in plan.lens) + sum(1e-9 * s.rows ** 2 * s.heads / 24 for s in plan.segments)
        if not (step == 3 and rank == 0):  # a report may be missing
            scheduler.update_stats(rank, busy * (2 if rank == 1 else 1) + 1e-6, tokens=sum(plan.lens))
    scheduler.settle()
    metrics = scheduler.metrics()
    assert metrics["n_measured"] == size and metrics["ranks"][1]["speed"] < 0.7 * metrics["ranks"][0]["speed"]
    assert metrics["corrections"], "profiles did not travel"
    if rank == 1:
        assert sum(plan.lens) < 0.8 * sum(first.lens)
    assert len(set(workers.gather(scheduler.state_dict()["scheduler"].hex()))) == 1, "ranks have learned different things"
    again = Scheduler("auto", "history", 5, cluster="free")
    again.load_state_dict(scheduler.state_dict())
    assert again.assign(chunks).hash == scheduler.assign(chunks).hash
    if rank == 0:  # has learned something else
        again = Scheduler("auto", "history", 5, cluster="free")
    refuses(lambda: again.assign(chunks), "another configuration")
    many = scheduler.assign([50] * (200 if rank == 0 else 3))  # more than the record has room for
    assert many.seqs == 200 + 3 * (size - 1)


def files(folder):
    """Rank 0 writes the files of the configuration, and every rank goes on from the state."""
    rank, steps, state = dist.get_rank(), os.path.join(folder, "steps"), os.path.join(folder, "state")
    for first in (0, 3):
        scheduler = Scheduler("auto", settings=["steps_file=" + steps, "state_file=" + state])
        assert scheduler.steps == first
        for _ in range(3):
            plan = scheduler.assign([300, 40 + rank])
            scheduler.update_stats(rank, 1e-6 * sum(plan.lens) + 1e-6)
        scheduler.settle()
        scheduler.close()
        if rank == 0:
            with open(steps) as file:
                lines = [json.loads(line) for line in file]
            assert [line["step"] for line in lines] == [first, first + 1, first + 2]
            assert lines[-1]["n_measured"] == dist.get_world_size()
        dist.barrier()  # the state is written
    full = Scheduler("auto", settings=["steps_file=/dev/full"])
    full.update_stats(rank, 1e-3 * len(full.assign([50]).lens) + 1e-9)
    full.assign([50])  # the first line cannot be written, which all hear when they meet again
    refuses(lambda: full.plan([50], error="mine" if rank == 0 else None), "rank 0", "mine")  # comes first, and hides nothing
    refuses(lambda: full.assign([50]), "rank 0", "steps_file", "/dev/full")
    refuses(lambda: Scheduler("auto", settings=["trace_file=%s/no/trace" % folder]).assign([50]), "rank 0", "trace_file")
    lost = Scheduler("auto", settings=["state_file=%s/later/state" % folder])
    assert lost.assign([50]) and lost.neighbours == dist.get_world_size()  # all are on this machine
    refuses(lost.settle, "rank 0", "later/state")  # every rank hears of it
    dist.barrier()
    if rank == 0:
        os.mkdir(os.path.join(folder, "later"))
    dist.barrier()
    lost.settle()
    dist.barrier()
    assert os.path.exists(os.path.join(folder, "later", "state"))


def packing():
    rank, size = dist.get_rank(), dist.get_world_size()
    scheduler = Scheduler("auto", cluster="free", model="d=8,layers=2,heads=2")
    lens = [40, 7] if rank == 0 else [3] * rank
    mapping = scheduler.assign(lens)
    rows = torch.randn(sum(lens), 3, requires_grad=True)
    tags = torch.arange(sum(lens)) + 1000 * rank
    held = transport.pack_for_bag(mapping, {"x": rows, "tag": tags})
    assert len(held["x"]) == sum(mapping.lens) and held["tag"].dtype == torch.int64
    back = transport.unpack_from_bag({"y": 2 * held["x"], "tag": held["tag"]})
    assert torch.equal(back["y"], 2 * rows) and torch.equal(back["tag"], tags)
    (back["y"] * rows.detach()).sum().backward()
    assert torch.equal(rows.grad, 2 * rows.detach())
    one = transport.pack_for_bag(mapping, rows)
    assert torch.equal(transport.unpack_from_bag(one), rows)
    both = transport.unpack_from_bag(tuple(transport.pack_for_bag(mapping, (rows, tags))), mapping)
    assert isinstance(both, tuple) and torch.equal(both[1], tags)
    refuses(lambda: transport.pack_for_bag(mapping, rows[:-1]), sum(lens), (sum(lens) - 1, 3))
    refuses(lambda: transport.pack_for_bag(mapping, []), "no tensors")
    refuses(lambda: transport.pack_for_bag(knapformer.plan([[5]] * (size + 1)), rows), size + 1, size)
    refuses(lambda: scheduler.assign([{"length": 5, "home": 1 - rank}] if rank < 2 else [5]), "home rank")


def everything(want, folder):
    if dist.get_world_size() == 4:
        same_as_mpi(want)
    learning()
    files(folder)
    packing()


# ------------------------------------------------------------------------------------- faults


def faulty(rank, port, folder, how, seconds):
    """Rank 1 fails, or falls silent, before rows are routed. Rank 0 notes what it gets."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", init_method="env://", timeout=datetime.timedelta(seconds=seconds))
    balancer = knapformer.SequenceBalancer("g2n1", heads=2)
    balancer.plan_routing([6], 8)
    note = os.path.join(folder, "note")
    if rank == 1 and how == "raises":
        try:
            balancer.route(torch.zeros(5, 8))
        except ValueError:
            os._exit(7)  # as an uncaught exception ends a script
    elif rank == 1:
        while not os.path.exists(note):  # alive, and not coming
            os.sched_yield()
        os._exit(7)
    try:
        balancer.route(torch.zeros(6, 8))
        text = "nothing"
    except RuntimeError as error:
        text = str(error) or "an error"
    with open(note + ".new", "w") as file:
        file.write(text)
    os.rename(note + ".new", note)
    os._exit(3)


def faults():
    for how, seconds in (("raises", 300), ("silent", 3)):
        with tempfile.TemporaryDirectory() as folder:
            context = mp.get_context("spawn")
            port = workers.free_port()
            ranks = [context.Process(target=faulty, args=(r, port, folder, how, seconds)) for r in range(2)]
            for process in ranks:
                process.start()
            for process in ranks:
                process.join(120)
            assert [p.exitcode for p in ranks] == [3, 7], (how, [p.exitcode for p in ranks])
            with open(os.path.join(folder, "note")) as file:
                assert file.read() != "nothing", "rank 0 went on alone"


def loader():
    """Batches for a DataLoader, with workers that are ahead of training."""
    data = [n for own in knapformer.mix("wan") for n in own][:600]
    sampler = knapformer.BatchSampler(data, 160000, 75600, ranks=2, rank=1, model="wan1.3b")
    want = list(sampler)
    for count in (0, 2):
        got = list(torch.utils.data.DataLoader(data, batch_sampler=sampler, collate_fn=list, num_workers=count))
        assert got == [[data[i] for i in batch] for batch in want]
    sampler.set_epoch(1)
    batches = iter(torch.utils.data.DataLoader(data, batch_sampler=sampler, collate_fn=list, num_workers=2))
    seen = [next(batches) for _ in range(3)]
    state = sampler.state_dict(step=len(seen))
    other = knapformer.BatchSampler(data, 160000, 75600, ranks=2, rank=1, model="wan1.3b")
    other.load_state_dict(state)
    rest = list(torch.utils.data.DataLoader(data, batch_sampler=other, collate_fn=list))
    assert rest == list(batches), "the batches after the third"


if __name__ == "__main__":
    mpi = {bags: hashes_under_mpi(bags, 8) for bags in ("auto", "g2n2", "[1,1,2]")}
    for n in (2, 4):
        with tempfile.TemporaryDirectory() as folder:
            workers.run(n, everything, mpi, folder)
    faults()
    loader()
    print("ok")
