# SPDX-License-Identifier: Apache-2.0
"""The same bytes to ranks of C (tools/gather_probe.c) and to ranks of Python: what each packs is the same to the byte, whether
one reads what the other packed, or what was spoiled on the way, all come to the same batch, the same plan, the same sentence."""
import os
import struct
import subprocess
import sys

sys.modules["torch"] = None  # whoever imports it fails
from knapformer import _core  # noqa: E402
from knapformer.plan import ints  # noqa: E402
from knapformer.scheduler import RECORD, _pack_profiles  # noqa: E402
from program import ENVIRONMENT  # noqa: E402

RANKS, MODEL, CAP, VERDICT = 4, "DiT-S", 20000, 256
LENS = [[300, 40], [], [9000], [5, 6, 7]]


class Probe:
    """Ranks of C."""

    def __init__(self):
        program = os.path.join(os.environ["KF_BUILD"], "tests", "gather_probe")
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT,
                                        encoding="utf-8", errors="replace")

    def __call__(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer.endswith("\n"), "the probe has died of %s" % (words[:2],)
        return answer[:-1]

    def pack(self, rank, *parts):
        return bytes.fromhex(self("pack", rank, *("-" if part is None else "x" + part.hex() for part in parts)))

    def read(self, everything):
        return self("read", "x" + everything.hex())

    def schedule(self, settles=False):
        return bytes.fromhex(self("schedule", int(settles)))

    def agree(self, verdicts):
        return self("agree", "x" + verdicts.hex())

    def model(self, rank, model):
        self("model", rank, model)

    def report(self, rank, seconds):
        self("report", rank, repr(seconds))


class Twin:
    """Ranks of Python, with the same answers."""

    def __init__(self):
        self.gathers = [_core.Gather(RANKS, rank, RECORD.size) for rank in range(RANKS)]
        self.schedulers, self.plans = [None] * RANKS, [None] * RANKS
        for rank in range(RANKS):
            self.model(rank, MODEL)

    def model(self, rank, model):
        raw = _core.config([], "test", None, ["model=" + model, "cost_model=static", "mem_tokens=%d" % CAP], RANKS)[0]
        self.schedulers[rank] = _core.Scheduler(raw, RANKS, None, None)

    def report(self, rank, seconds):
        self.schedulers[rank].update_stats(rank, seconds, (0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0))

    def pack(self, rank, lens, profiles, record, wrong):
        return bytes(self.gathers[rank].pack(lens, profiles, record, self.schedulers[rank], wrong))

    def read(self, everything):
        answers = {self._said(lambda: gather.read(everything)) for gather in self.gathers}
        assert len(answers) == 1, answers
        answer = answers.pop()
        return "again" if answer is None else answer if isinstance(answer, str) else "records " + answer.hex()

    def schedule(self, settles=False):
        said = [gather.schedule(own, settles) for gather, own in zip(self.gathers, self.schedulers)]
        self.plans = [plan for _, plan in said]
        return b"".join(bytes(verdict) for verdict, _ in said)

    def agree(self, verdicts):
        answers = {self._said(lambda: gather.agree(verdicts)) for gather in self.gathers}
        assert len(answers) == 1, answers
        return answers.pop() or "plan %016x" % (self.plans[0].facts()["hash"] if self.plans[0] else 0)

    @staticmethod
    def _said(call):
        try:
            return call()
        except (ValueError, MemoryError, RuntimeError) as error:
            return str(error)


class Case:
    """Ranks of both kinds, side by side."""

    def __init__(self, probe):
        self.c, self.python = probe, Twin()
        self.c("ranks", RANKS, RECORD.size, MODEL)

    def pack(self, lens=LENS, profiles=None, wrong=None):
        out = []
        for rank in range(RANKS):
            own = (profiles or {}).get(rank)
            parts = (ints(lens[rank]), _pack_profiles(own, len(lens[rank])), RECORD.pack(rank, 7, 1), (wrong or {}).get(rank))
            packed = self.c.pack(rank, *parts)
            assert packed == self.python.pack(rank, *parts), "rank %d packs other bytes" % rank
            out.append(packed)
        return b"".join(out)

    def read(self, everything, lens=LENS):
        c, python = self.c.read(everything), self.python.read(everything)
        if python.startswith("records "):
            assert c == python + "".join(" rank" + "".join(" %d" % n for n in own) for own in lens), c
        else:
            assert c == python, (c, python)
        return c

    def gather(self, lens=LENS, **what):
        answer = "again"
        while answer == "again":
            answer = self.read(self.pack(lens, **what), lens)
        return answer

    def agree(self, settles=False, spoil=lambda verdicts: verdicts):
        verdicts = self.c.schedule(settles)
        assert verdicts == self.python.schedule(settles), "other verdicts"
        verdicts = spoil(verdicts)
        answer = self.c.agree(verdicts)
        assert answer == self.python.agree(verdicts), (answer, self.python.agree(verdicts))
        return answer

    def step(self, lens=LENS, **what):
        self.gather(lens, **what)
        return self.agree()

    def both(self, what, *arguments):
        for kind in (self.c, self.python):
            getattr(kind, what)(*arguments)


def put(everything, at, data):
    return everything[:at] + data + everything[at + len(data):]


def good(case):
    assert case.read(case.pack()) == "again", "versions are compared first"
    assert case.step() == case.step(), "another plan of the same lengths"
    assert case.step([[50] * (10 * rank) for rank in range(RANKS)]).startswith("plan")
    assert case.step([[50] * 100, [], [], [2]]).startswith("plan")
    assert case.step(profiles={2: [(3, 512, 17)]}).startswith("plan")
    assert case.step([[], [], [], []]).startswith("plan")
    for rank in range(RANKS):
        case.both("report", rank, 0.0)
    assert case.step().startswith("plan")
    case.both("report", 2, 0.25)
    case.gather([[]] * RANKS)
    assert case.agree(settles=True) == "plan 0000000000000000"
    assert case.agree().startswith("nothing was gathered")


def bad(case):
    everything = case.pack()
    spoilt = put(everything, 0, b"0.0.9\0\0\0")
    assert case.read(spoilt).startswith("rank 0 runs knapformer 0.0.9, but rank 2 runs " + _core.version)
    assert "records of 32 bytes" in case.read(put(everything, 24, struct.pack("=q", 32)))
    assert case.step().startswith("plan")
    everything = case.pack()
    size = len(everything) // RANKS
    assert case.read(put(everything, 2 * size, b"\xff" * 23)).startswith("rank 2 runs knapformer " + 23 * "\ufffd" + ", but rank 0")
    assert case.gather(wrong={3: b"token_dim 0, expected more"}) == "rank 3: token_dim 0, expected more"
    assert case.gather(wrong={1: b"", 2: b"x"}) == "rank 1: "
    lens = [[300, -40], [], [9000], [5]]
    assert case.gather(lens) == "rank 0: its sequence 1 has -40 tokens, expected 0 to 4294967296"
    assert case.gather(profiles={2: [(9, 1, 1)]}).startswith("rank 2: its sequence 0 is of kind 9, 1 pixels")
    assert case.step().startswith("plan")


def different(case):
    assert case.step().startswith("plan")
    case.both("model", 1, "DiT-B")
    answer = case.step()
    assert answer.startswith("rank 1 has another configuration") and "than rank 2" in answer
    assert "or has learned from other times" in answer
    for rank in range(RANKS):
        case.both("model", rank, MODEL)
    case.gather()
    other = case.agree(spoil=lambda verdicts: put(verdicts, 2 * VERDICT + 8, b"\1\0\0\0\0\0\0\0"))
    assert other.startswith("rank 2 has another plan (hash 0000000000000001) than rank 0"), other
    case.gather()
    failed = struct.pack("=q", 3) + b"no room\0"
    assert case.agree(spoil=lambda verdicts: put(verdicts, 16, failed)) == "rank 0: no room"
    assert case.step().startswith("plan")
    assert case.step([[], [300000], [], []]).startswith("sequence 0 ")  # fits nowhere, and all say so
    assert case.step().startswith("plan")


def main():
    probe = Probe()
    for what in (good, bad, different):
        what(Case(probe))
    probe.process.stdin.close()
    assert probe.process.wait() == 0
    print("ok")


main()
