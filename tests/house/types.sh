#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The types of the Python package: whatever is public in its modules has them, the stub of the extension agrees
# with it, a typed program that uses the package runs and satisfies mypy --strict, and what is wrong in another one
# is found, no more and no less.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=$KF_SOURCE/build/venv/bin/python
package=$KF_BUILD/python/knapformer
export MYPYPATH=$KF_BUILD/python PYTHONDONTWRITEBYTECODE=1
cd "$work"
failed=0
complain() { failed=1; printf '%s\n' "$*"; }

[ -f "$package/py.typed" ] || complain "no py.typed, without which nobody looks for types"

# The stub of the extension agrees with it. PyTorch's own types can stay unread here, which saves most of the time.
printf '[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n' >stubtest.ini
PYTHONPATH=$MYPYPATH "$python" -m mypy.stubtest --mypy-config-file stubtest.ini knapformer._core ||
  complain "the stub disagrees with the extension"

cat >typed.py <<'EOF'
import importlib, inspect, pkgutil, sys, typing
import knapformer


def public(space):
    found = [value for name, value in vars(space).items() if not name.startswith("_") or name == "__init__"]
    return [getattr(value, "fget", getattr(value, "func", value)) for value in found]  # of properties, cached or not


untyped = []
for found in pkgutil.iter_modules(knapformer.__path__, "knapformer."):
    module = importlib.import_module(found.name)
    own = [value for value in public(module) if getattr(value, "__module__", "") == found.name]
    members = [m for c in own if inspect.isclass(c) for m in public(c) if getattr(m, "__module__", found.name) == found.name]
    for f in own + members:
        if inspect.isfunction(f) and "return" not in f.__annotations__ and not typing.get_overloads(f):
            untyped.append("%s:%d: %s has no types" % (found.name, f.__code__.co_firstlineno, f.__qualname__))
sys.exit("\n".join(untyped) or None)
EOF
PYTHONPATH=$MYPYPATH "$python" -W ignore typed.py || complain "something public has no types"

cat >right.py <<'EOF'
import pathlib
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch.utils.data import DataLoader, TensorDataset
from typing_extensions import assert_type

import knapformer
from knapformer.plan import Segment
from knapformer.scheduler import Scheduler

Tensor = torch.Tensor


class Stage(torch.nn.Module):
    packed_tokens = True

    def __init__(self) -> None:
        super().__init__()
        self.norm = knapformer.nn.LayerNormModulate()
        self.attention = knapformer.nn.PackedAttention()

    def forward(self, x: Tensor, lens: List[int], cond: Tensor) -> Tensor:
        y = self.norm(x, cond, cond, lens).view(-1, 2, 8)
        x, y = self.norm(x, cond, cond, lens, gate=cond, u=self.attention(y, y, y, lens).flatten(1))
        return x + y


class Trainer:
    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model


def plans() -> None:
    plan = knapformer.plan([[4096, 700], (300,)], bags=[1, 1], mem_tokens=[8192, 8192], affinity="spread")
    assert_type(plan.speedup, float)
    assert_type(plan.after.max_tokens, int)
    assert_type(plan.hash, str)
    assert_type(plan.at(1).segments, List[Segment])
    assert_type(plan.facts["tokens"], int)
    assert_type(knapformer.mix("joint", ranks=4), List[List[int]])
    fit = knapformer.fit([100, 200, 400], [0.1, 0.21, 0.45])
    assert_type(fit.mape, float)
    fit.save(pathlib.Path("cost.yaml"))


def schedule() -> None:
    lines: List[Tuple[int, str]] = []
    scheduler = Scheduler("auto", "history", 1, model="DiT-S", ranks=2, cost_file=pathlib.Path("cost.yaml"),
                          log=lambda level, line: lines.append((level, line)))
    scheduler.assign([[4096, 700], [300]])
    plan = scheduler.assign([{"length": 4096, "kind": "video", "frames": 16}, 700, torch.tensor(300)])
    assert_type(plan, knapformer.Plan)
    for rank in range(2):
        scheduler.update_stats(rank, 0.5, tokens=4096, memory_bytes=1 << 30, wait_s=0.1)
    scheduler.settle()
    metrics: Dict[str, Any] = scheduler.metrics()
    assert metrics["step"] == 1
    scheduler.load_state_dict(scheduler.state_dict())


def batches() -> None:
    lens = torch.tensor([512] * 8)
    sampler = knapformer.BatchSampler(lens, 1024, match_len=1024, rule="equal_token", ranks=1, rank=0)
    loader = DataLoader(TensorDataset(lens), batch_sampler=sampler)
    assert len(loader) == len(sampler) == 4
    for batch in sampler:
        assert_type(batch, List[int])
    assert_type(sampler.figures()["dropped_samples"], int)
    step: Optional[List[List[int]]] = sampler.next_step()
    assert step is None


def balance() -> None:
    lens, tags = [3, 4], torch.arange(7)
    balancer = knapformer.SequenceBalancer("g1n1", heads=2, cost_model="static", cluster="free")
    balancer.plan_routing(lens, token_dim=16)
    held, x, features = balancer.route(torch.randn(7, 16), [tags])
    assert_type(held, List[int])
    assert_type(features, List[Tensor])
    assert_type(balancer.route_sequences(torch.randn(2, 16)), Tensor)
    _, q, k, v = balancer.pre_attn(*(x.view(-1, 2, 8),) * 3)
    held, o = balancer.post_attn(knapformer.attention(q, k, v, balancer.plan, backend="plain"))
    assert torch.allclose(o, balancer.attention(q, k, v), atol=1e-5)
    assert_type(balancer.reverse_route([o, x]), List[Tensor])
    assert_type(balancer.reverse_route(o), Tensor)
    assert_type(knapformer.attention(q, k, v, torch.tensor(lens)), Tensor)

    mapping = Scheduler("auto", ranks=1).assign(lens)
    pair = knapformer.transport.pack_for_bag(mapping, (x, tags))
    assert_type(pair, Tuple[Tensor, Tensor])
    named = knapformer.transport.unpack_from_bag({"x": x}, mapping)
    assert_type(named, Dict[str, Tensor])


def attach() -> None:
    stage = Stage()
    seen: List[Dict[str, Any]] = []
    scheduler = Scheduler(model="d=16,layers=1,heads=2", ranks=1)
    with knapformer.hooks.attach_to_trainer(Trainer(stage), scheduler, log=seen.append) as handle:
        assert stage(torch.randn(7, 16), [3, 4], torch.randn(2, 16)).shape == (7, 16)
        assert_type(handle.scheduler, Scheduler)
        assert handle.plan.tokens == 7


for test in (plans, schedule, batches, balance, attach):
    test()
EOF

cat >wrong.py <<'EOF'
import torch

import knapformer

knapformer.plan([4096])  # wrong: list-item
knapformer.scheduler.Scheduler(cost_model="guessed")  # wrong: arg-type
x = torch.zeros(4, 8)
knapformer.plan([[4096]]).speedups  # wrong: attr-defined
knapformer.plans  # wrong: attr-defined
y: torch.Tensor = knapformer.nn.LayerNormModulate()(x, x, x, [1] * 4, gate=x, u=x)  # wrong: assignment
EOF

PYTHONPATH=$MYPYPATH "$python" -W ignore right.py || complain "right.py does not run"
# As in a user's check, where the package is installed, what mypy thinks of the bodies of its functions does not
# count. But a type there that does not exist would be anything to users.
grep -n '# wrong: ' wrong.py | sed -E 's/^([0-9]+):.*# wrong: (.*)/wrong.py:\1: \2/' >expected
env -u PYTHONPATH "$python" -m mypy --strict --cache-dir cache right.py wrong.py |
  grep -E '^[a-z]*\.py:.*: error: |\[(name-defined|valid-type)\]$' >found || true
sed -E 's/^([^:]*:[0-9]+).*\[([a-z-]*)\]$/\1: \2/' found | diff expected - ||
  complain "mypy finds other errors (>) than there are (<):" "$(cat found)"
exit $failed
