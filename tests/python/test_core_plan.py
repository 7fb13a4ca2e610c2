# SPDX-License-Identifier: Apache-2.0
"""Plans and fits from Python, without PyTorch: the same, key by key and chunk by chunk, as the program's."""
import json
import os
import subprocess
import sys
import tempfile
import threading

sys.modules["torch"] = None  # whoever imports it fails
import knapformer  # noqa: E402
from program import ENVIRONMENT, PROGRAM  # noqa: E402
from refusal import refuses  # noqa: E402


def program(*arguments, text=None):
    out = subprocess.run([PROGRAM] + [str(a) for a in arguments], input=text, stdout=subprocess.PIPE, check=True,
                         universal_newlines=True, env=ENVIRONMENT).stdout
    return json.loads(out)


def close(a, b):
    if isinstance(a, dict):
        return set(a) == set(b) and all(close(a[k], b[k]) for k in a)
    return abs(a - b) <= 1e-9 * abs(b) + 1e-12 if isinstance(a, float) else a == b


def same_as_the_program():
    cases = [("joint", {}, []), ("mixres", {"bags": "g1n16+g2n4+g4n2"}, ["--bags", "g1n16+g2n4+g4n2"]),
             ("lowres", {"bags": 4}, ["--bags", "4"]), ("clips", {"model": "wan1.3b", "gamma": 1.1}, ["--model", "wan1.3b", "--gamma", "1.1"]),
             ("joint", {"mem_tokens": 16000, "max_chunk_size": 9000, "affinity": "spread", "budget_us": 500, "cluster": "free"},
              ["--mem-tokens", "16000", "--max-chunk-size", "9000", "--affinity", "spread", "--budget-us", "500", "--cluster", "free"])]
    for seed, (mix, options, words) in enumerate(cases):
        lens = knapformer.mix(mix, seed=seed)
        ours = knapformer.plan(lens, **options)
        theirs = program("plan", "--mix", mix, "--seed", seed, "--json", "--chunks", *words)
        assert ours.chunks.tolist() == theirs.pop("chunks")
        got = json.loads(json.dumps(ours.as_dict()))
        assert got.pop("solve_us") > 0 and theirs.pop("solve_us") > 0
        assert close(got, theirs), (got, theirs)
        text = "\n".join(" ".join(map(str, own)) for own in lens) + "\n"
        assert program("plan", "--lens", "-", "--json", *words, text=text)["hash"] == ours.hash
    assert len(knapformer.mix("joint", ranks=64)) == 64


def every_token_has_one_place():
    lens = knapformer.mix("joint")
    plan = knapformer.plan(lens)
    held = sorted(chunk for rank in range(plan.ranks) for chunk in plan.at(rank).held)
    flat = [n for own in lens for n in own]
    at = 0
    for seq, n in enumerate(flat):
        offset = 0
        while offset < n:
            assert held[at][:2] == (seq, offset)
            offset += held[at][2]
            at += 1
        assert offset == n
    pairs = sum(s.rows * s.heads for rank in range(plan.ranks) for s in plan.at(rank).segments)
    assert at == len(held) and pairs == 24 * sum(flat)
    assert plan.rank is None and plan.at(3).rank == 3
    assert plan.to_svg("<joint>").startswith("<svg") and "&#60;joint&#62;" in plan.to_svg("<joint>")
    try:
        import numpy
        assert isinstance(plan.chunks, numpy.ndarray) and plan.chunks.dtype == numpy.int64
    except ImportError:
        assert isinstance(plan.chunks, memoryview)
    assert plan.chunks.shape == (plan.facts["chunks"], 8)


def total():
    for lens in ([[]], [[], []], [[0], [0, 0]], [[7]], [[5] * 40] + [[]] * 7, [[2**31]]):
        plan = knapformer.plan(lens)
        assert plan.tokens == sum(map(sum, lens)) and plan.gap >= 0 and plan.speedup > 0
        assert plan.chunks.tolist() == [] or len(plan.chunks.tolist()[0]) == 8


def bad_input():
    plan = knapformer.plan
    refuses(lambda: plan([]), "no ranks")
    refuses(lambda: plan([3]), "rank 0", "3")
    refuses(lambda: plan([[1, -3]]), "sequence 1", "-3")
    refuses(lambda: plan([[1.5]]), "1.5", "whole number")
    refuses(lambda: plan([[2**70]]), 2**70)
    refuses(lambda: plan([[2**40]]), 2**40)
    refuses(lambda: plan([[5]], bags="g2n1"), "g2n1")
    refuses(lambda: plan([[5]], bags=2.5), "2.5", "auto")
    refuses(lambda: plan([[5]], model="x"), '"x"', "flux")
    refuses(lambda: plan([[5]], gamma=-1), "-1")
    refuses(lambda: plan([[5]], cluster="h100x32"), "32", "1")
    refuses(lambda: plan([[5]], affinity="both"), "both", "spread")
    refuses(lambda: plan([[9]], mem_tokens=3), "9 tokens", "3")
    refuses(lambda: plan([[9]], mem_tokens=[3, 4]), "2 values", "1")
    refuses(lambda: plan([[9]], speeds=[1, 2]), "2 values", "1")
    refuses(lambda: plan([[9]], speeds=[0.0]), "0")
    refuses(lambda: plan([[9]], max_chunk_size=-1), "max_chunk_size", "-1")
    refuses(lambda: plan([[9]], max_chunk_size="x"), "max_chunk_size", "x")
    refuses(lambda: plan([[9]], budget_us="soon"), "budget_us", "soon")
    assert plan([[9]], mem_tokens=0, max_chunk_size=0, budget_us=0).hash == plan([[9]]).hash  # as in a configuration
    refuses(lambda: plan([[9]], model="DiT-S\0x"), "null")
    refuses(lambda: plan([[9], [1]]).at(2), "rank 2", "1")
    refuses(lambda: plan([[9]]).lens, "rank")
    refuses(lambda: knapformer.plan([iter([1.5, 2])]), "1.5")
    try:
        type(knapformer.plan([[5]]).core)()
        raise AssertionError("a Plan out of nothing")
    except TypeError as error:
        assert "Planner" in str(error)
    refuses(lambda: knapformer.mix("nothing"), "nothing", "joint")
    for name in ("SequenceBalancer", "attention", "nn", "hooks", "transport"):
        try:
            getattr(knapformer, name)
        except ImportError as error:
            assert "torch" in str(error)
        else:
            raise AssertionError(name)


def fits():
    seconds = [1e-3 + 2e-6 * n + 3e-10 * n * n for n in range(500, 20000, 500)]
    lens = list(range(500, 20000, 500))
    fit = knapformer.fit(lens, seconds, model="wan1.3b")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.csv")
        with open(path, "w") as file:
            file.write("seq_len,seconds\n" + "".join("%d,%r\n" % row for row in zip(lens, seconds)))
        theirs = program("fit", path, "--model", "wan1.3b", "--json")
        for key in "linear_s quadratic_s constant_s gamma r2 mape holdout_mape power_p power_mape".split():
            assert close(float(getattr(fit, key)), float(theirs[key])), key
        fit.save(os.path.join(folder, "cost.yaml"))
        scheduler = knapformer.scheduler.Scheduler("auto", "modelled", ranks=2, cost_file=os.path.join(folder, "cost.yaml"))
        plan = scheduler.assign([[1000], [1000]])
        assert abs(plan.before.step_s / (1e-3 + 2e-3 + 3e-4) - 1) < 1e-6
        try:
            fit.save(os.path.join(folder, "nowhere", "cost.yaml"))
        except OSError as error:
            assert "nowhere" in str(error)
        else:
            raise AssertionError("written to a folder that is not there")
    refuses(lambda: knapformer.fit([1, 2], [1.0]), 2, 1)
    refuses(lambda: knapformer.fit([1], [1.0]), "1 row")
    refuses(lambda: knapformer.fit([1, 2, 3], [1.0, 2.0, float("nan")]), "nan")
    refuses(lambda: knapformer.fit([1, 2, 3], [1.0, 2.0, 3.0], ranks=[0]), 1, 3)


def threads():
    """Planning releases the GIL. Each thread its own planner; one planner has one user at a time."""
    lens, found, errors = knapformer.mix("joint", ranks=256), [], []
    want = knapformer.plan(lens).hash
    scheduler = knapformer.scheduler.Scheduler("auto", "static", ranks=256)

    def work():
        found.append(knapformer.plan(lens).hash)
        for _ in range(20):
            try:
                found.append(scheduler.assign(lens).hash)
            except RuntimeError as error:
                errors.append(str(error))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert set(found) == {want} and all("another thread" in e for e in errors) and len(found) + len(errors) == 84


assert knapformer.__version__ == knapformer._core.version and knapformer.__version__.count(".") == 2
same_as_the_program()
every_token_has_one_place()
total()
bad_input()
fits()
threads()
print("ok")
