# SPDX-License-Identifier: Apache-2.0
"""The scheduler and the batch sampler without PyTorch and without a process group: one process speaks for all."""
import json
import logging
import os
import struct
import subprocess
import sys
import tempfile

sys.modules["torch"] = None  # whoever imports it fails
import knapformer  # noqa: E402
from knapformer import BatchSampler  # noqa: E402
from knapformer.scheduler import Scheduler  # noqa: E402
from program import ENVIRONMENT, PROGRAM  # noqa: E402
from refusal import refuses  # noqa: E402

YAML = """knapformer:
  bag_size: [1,1,2]
  rebalance_interval: 50
  cost_model: history
  max_chunk_size: 1024
  affinity_policy: fill
"""

# ------------------------------------------------------------------------------- scheduler


def report(scheduler, plan, slow=()):
    """Times as the plan predicts them, but for ranks that are slower."""
    compute = struct.unpack("=%dd" % plan.ranks, plan.core.array("compute_s"))
    comm = struct.unpack("=%dd" % plan.ranks, plan.core.array("comm_s"))
    for rank in range(plan.ranks):
        factor = dict(slow).get(rank, 1)
        scheduler.update_stats(rank, factor * compute[rank] + comm[rank] + 1e-9, tokens=sum(plan.at(rank).lens), samples=1)


def tokens_of(plan, rank):
    return sum(plan.at(rank).lens)


def learns():
    lens = knapformer.mix("mixres", ranks=8)
    scheduler, lines = Scheduler("auto", "history", 5, ranks=8, log=lambda level, line: lines.append((level, line)), log_level="debug"), []
    first = scheduler.assign(lens)
    assert first.hash == knapformer.plan(lens).hash
    for step in range(30):
        report(scheduler, first if step == 0 else plan, [(3, 2.0)])  # noqa: F821
        plan = scheduler.assign(lens)
    assert tokens_of(plan, 3) < 0.75 * tokens_of(first, 3), "a slow rank keeps its work"
    scheduler.update_stats(0, 1.0)
    scheduler.settle()
    metrics = scheduler.metrics()
    assert metrics["refits"] == scheduler.refits >= 5 and metrics["ranks"][3]["speed"] < 0.6
    assert scheduler.steps == 31 and any("rank 3" in line for _, line in lines) and lines[0][0] in (1, 2, 3, 4)
    assert "knapformer" in scheduler.prometheus() and len(scheduler.cost) > 50
    scheduler.new_epoch()

    other = Scheduler("auto", "history", 5, ranks=8)
    assert other.assign(lens).hash != plan.hash
    other.load_state_dict(scheduler.state_dict())
    assert other.assign(lens).hash == scheduler.assign(lens).hash
    refuses(lambda: Scheduler("auto", ranks=4).load_state_dict(scheduler.state_dict()), "4", "8")
    refuses(lambda: other.load_state_dict({"scheduler": b"rubbish"}), "state_dict")


def chunks_of_all_kinds():
    scheduler = Scheduler("g1n4", ranks=4)

    class Record:
        length, home, kind, resolution, frames = 300, 2, "video", 512, 17

    plan = scheduler.assign([{"length": 100, "home": 0, "kind": "image", "resolution": 256}, {"length": 50, "home": 1}, Record])
    assert [row[:2] for row in plan.chunks.tolist()] == [[0, 0], [1, 1], [2, 2]]
    assert Scheduler([1, 1, 2]).ranks == 4 and Scheduler("g1n8+g2n4").ranks == 16 and Scheduler().ranks == 1
    dealt = scheduler.assign([10, 20, 30, 40, 50, 60, 70, 80])
    assert [row[1] for row in dealt.chunks.tolist()] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert scheduler.assign([]).seqs == 0 and Scheduler("auto", ranks=1).assign([5]).rank == 0
    refuses(lambda: scheduler.assign([{"home": 1}]), "chunk 0", "length")
    refuses(lambda: scheduler.assign([{"length": 5, "kind": "sound"}]), "sound", "video")
    refuses(lambda: scheduler.assign([{"length": 5, "home": 4}]), "home rank 4", "3")
    refuses(lambda: scheduler.assign([{"length": 5, "home": 1}, {"length": 5, "home": 0}]), "order")
    refuses(lambda: scheduler.assign(["long"]), "long")
    refuses(lambda: scheduler.assign([[1], [2]] * 4), "home rank 4", "3")


def configured():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "train.yaml")
        with open(path, "w") as file:
            file.write(YAML)
        scheduler = Scheduler(config=path)
        assert scheduler.ranks == 4 and scheduler.bags == "[1,1,2]"
        assert max(max(scheduler.assign([[4096], [], [], []]).at(r).lens or [0]) for r in range(4)) <= 1024
        assert Scheduler("g2n2", config=path).bags == "g2n2"
        with open(path, "a") as file:
            file.write("  bag_sise: 4\n")
        refuses(lambda: Scheduler(config=path), "train.yaml", "7", "bag_sise")
    refuses(lambda: Scheduler("g2n0"), "g2n0")
    refuses(lambda: Scheduler("auto", "clever"), "clever", "history")
    refuses(lambda: Scheduler("auto", "modelled", ranks=2), "modelled")
    refuses(lambda: Scheduler(rebalance_interval=0), "rebalance_interval", "0")
    refuses(lambda: Scheduler("g3n1", ranks=4), "3", "4")
    refuses(lambda: Scheduler(ranks=0), "0")
    scheduler = Scheduler(ranks=2)
    scheduler.assign([5, 5])
    refuses(lambda: scheduler.update_stats(2, 1.0), "rank 2", "1")
    refuses(lambda: scheduler.update_stats(0, float("nan")), "nan")
    refuses(lambda: scheduler.update_stats(0, -1.0), "-1")
    refuses(lambda: scheduler.update_stats(0, 1.0, token=5), "token", "tokens")


def files():
    """The files that a configuration names: a line a step, the last metrics, a trace, the state; and what cannot be written."""
    with tempfile.TemporaryDirectory() as folder:
        path = {name: os.path.join(folder, name) for name in ("steps", "metrics", "trace", "state")}
        settings = ["%s_file=%s" % item for item in path.items()] + ["rebalance_interval=4"]
        lens = knapformer.mix("mixres", ranks=4)

        def train(first):
            scheduler = Scheduler(ranks=4, settings=settings)
            assert scheduler.steps == first, "the state_file was not read"
            for _ in range(5):
                report(scheduler, scheduler.assign(lens), [(3, 2.0)])
            scheduler.settle()
            scheduler.close()
            with open(path["steps"]) as file:
                lines = [json.loads(line) for line in file]
            assert [line["step"] for line in lines] == list(range(first, first + 5))
            assert lines[-1] == scheduler.metrics()
            with open(path["metrics"]) as file:
                assert file.read() == scheduler.prometheus()
            with open(path["trace"]) as file:
                events = json.load(file)
            assert len(events) >= 4, events
            with open(path["state"], "rb") as file:
                assert file.read() == scheduler.state_dict()["scheduler"]
            return [line["cost"]["linear_s"] for line in lines]

        first = train(0)
        assert train(5)[0] == first[-1] != first[0], "what was learned is lost"
        with open(path["state"], "r+b") as file:
            file.truncate(50)
        refuses(lambda: Scheduler(ranks=4, settings=settings), "state_file", "cut off")
        for wrong, words in (("steps_file=%s/no/steps" % folder, ("steps_file", "cannot write")), ("trace_file=-", ("trace_file", "-"))):
            scheduler = Scheduler(ranks=4, settings=[wrong])
            refuses(lambda: scheduler.assign(lens), *words)


def means_one_thing():
    """What wins over what; and that a configuration means in Python what it means to the program."""
    with tempfile.TemporaryDirectory() as folder:
        config, cost = os.path.join(folder, "train.yaml"), os.path.join(folder, "cost.yaml")
        with open(config, "w") as file:
            file.write("knapformer:\n  gamma: 0.7\n  bag_size: g2n2\n")

        def gamma(**options):
            return round(Scheduler(ranks=4, **options).metrics()["cost"]["gamma"], 6)
        assert gamma() == 0.4 and gamma(defaults=["gamma=3"]) == 3
        assert gamma(defaults=["gamma=3", "model=DiT-S"], config=config) == 0.7
        assert gamma(config=config, settings=["gamma=0.8"]) == 0.8
        assert gamma(config=config, settings=["gamma=0.8"], gamma=0.9) == 0.9
        assert Scheduler(ranks=4, config=config, defaults=["bag_size=4"]).bags == "g2n2"
        refuses(lambda: Scheduler(ranks=4, settings=["gama=1"]), "gama", "gamma")
        refuses(lambda: Scheduler(ranks=4, defaults=["gamma"]), "gamma", "=")
        refuses(lambda: Scheduler(ranks=4, settings="gamma=1"), "settings", "gamma=1", "list")
        printed = subprocess.run([PROGRAM, "config", "--print-default"], stdout=subprocess.PIPE, env=ENVIRONMENT, check=True).stdout
        with open(config, "wb") as file:
            file.write(printed)  # which says nothing of a cluster: ""
        linear = [Scheduler(ranks=4, config=path, defaults=["cluster=nodes=1,ranks_per_node=4,tflops=1"]).metrics()["cost"]["linear_s"]
                  for path in (config, None)]
        assert linear[0] == linear[1], linear
        with open(config, "wb") as file:
            file.write(b"knapformer:\n  model: \xff\n")
        refuses(lambda: Scheduler(ranks=4, config=config), "line 2", "0xff")
        knapformer.fit([100, 200, 400], [0.1, 0.21, 0.45]).save(cost)
        refuses(lambda: Scheduler("auto", "static", ranks=4, cost_file=cost), "cost_model is static", "cost.yaml")
        said = subprocess.run([PROGRAM, "sim", "--mix", "joint", "--steps", "1", "--set", "cost_model=static",
                               "--set", "cost_file=" + cost], stderr=subprocess.PIPE, env=ENVIRONMENT,
                              universal_newlines=True)
        assert said.returncode == 2 and "cost_model is static" in said.stderr, said


def logs():
    seen = []

    class Keep(logging.Handler):
        def emit(self, record):
            seen.append(record)

    logger, handler = logging.getLogger("knapformer"), Keep()
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    Scheduler(ranks=2).assign([500, 5])
    assert seen and all(r.levelno == logging.DEBUG for r in seen)
    del seen[:]
    logger.setLevel(logging.WARNING)
    Scheduler(ranks=2).assign([500, 5])
    assert not seen
    logger.removeHandler(handler)

    def broken(level, line):
        raise KeyError("a log that fails")
    hook, sys.unraisablehook = sys.unraisablehook, lambda what: seen.append(what)
    try:
        assert Scheduler(ranks=2, log=broken, log_level="debug").assign([500, 5]).seqs == 2
    finally:
        sys.unraisablehook = hook
    assert seen, "the failure of a log is lost"


# --------------------------------------------------------------------------------- batches

WAN = [n for own in knapformer.mix("wan") for n in own]


def sampler(rank=0, **options):
    return BatchSampler(WAN, 160000, options.pop("match_len", 75600), **dict(dict(ranks=4, rank=rank, model="wan1.3b", seed=3), **options))


def batches():
    for rule in ("packed", "two_term", "power", "equal_token"):
        for mode in ("random", "same", "similar"):
            ranks = [sampler(r, rule=rule, mode=mode) for r in range(4)]
            each = [list(s) for s in ranks]
            assert len({len(b) for b in each} | {len(ranks[0])}) == 1, "ranks have different numbers of batches"
            handed = [i for own in each for batch in own for i in batch]
            figures = ranks[0].figures()
            assert len(handed) == len(set(handed)) == figures["samples"]
            assert figures["samples"] + figures["dropped_samples"] == len(WAN)
            assert all(sum(WAN[i] for i in batch) <= 160000 for own in each for batch in own)
            assert len({s.hash() for s in ranks}) == 1
    assert sampler().figures()["imbalance_rate"] < 0.02 < sampler(rule="equal_token").figures()["imbalance_rate"]
    assert [b.seq_len for b in sampler(rule="two_term").buckets()] == sorted(set(WAN))
    assert sampler(keep_all=True).figures()["dropped_samples"] == 0
    first = list(sampler())
    again = sampler()
    assert list(again) == first and list(again) == first, "the same epoch, the same batches"
    again.set_epoch(1)
    assert list(again) != first and again.epoch == 1


def resumes():
    whole = list(sampler())
    one = sampler()
    it = iter(one)
    head = [next(it) for _ in range(10)]
    late, early = one.state_dict(), one.state_dict(step=7)
    for state, at in ((late, 10), (early, 7)):
        other = sampler(seed=3)
        other.load_state_dict(state)
        assert other.step == at and list(other) == whole[at:]
    assert head == whole[:10]
    end = sampler()
    list(end)
    other = sampler()
    other.load_state_dict(end.state_dict())
    assert list(other) == [], "an epoch that is over stays over"
    one.set_cost(Scheduler(ranks=4, model="wan1.3b", gamma=2.0).cost)
    assert one.step == 10
    refuses(lambda: one.state_dict(step=11), 11)
    refuses(lambda: sampler(seed=4).load_state_dict(late), "state_dict")
    refuses(lambda: sampler().load_state_dict({"sampler": b"x", "epoch": 0}), "state_dict")


def bad_batches():
    refuses(lambda: BatchSampler([5, 9], 7, 3, ranks=1), "9", "7")
    refuses(lambda: sampler(mode="all"), "all", "similar")
    refuses(lambda: sampler(rule="none"), "none", "packed")
    refuses(lambda: sampler(rank=4), "4")
    refuses(lambda: sampler(p="some"), "some", "fitted")
    refuses(lambda: BatchSampler([1.5], 7, 3), "1.5")
    refuses(lambda: BatchSampler([5], 7), "")
    refuses(lambda: sampler().set_epoch(-1), "-1")


learns()
chunks_of_all_kinds()
configured()
files()
means_one_thing()
logs()
batches()
resumes()
bad_batches()
print("ok")
