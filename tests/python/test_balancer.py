# SPDX-License-Identifier: Apache-2.0
"""SequenceBalancer on 2 and 4 gloo ranks. Every row says whose it is, so every move is compared with what the
plan's chunks say; and every move is differentiated, element by element, by finite differences."""
import json
import os
import random
import tempfile

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

import knapformer
import workers
from knapformer import SequenceBalancer

CASES = [  # lengths of each rank
    [[5, 3], [40], [], [1]],
    [[], [], [], []],
    [[0, 7, 0], [], [64, 2, 2], [0]],
    [[100], [1], [1], [1]],
    [[9] * 7, [11] * 2, [30, 1, 2], [17]],
]
FREE = {"cluster": "free"}  # links that cost nothing: much is split


def lens_here(case, size):
    lens = [case[r] for r in range(4)]
    return [sum(lens[r::size], []) for r in range(size)][dist.get_rank()]


def rows_of(sequences):
    """(rows, 3) of whole numbers that name each row: rank, sequence, place; beyond what a double can hold."""
    rank = dist.get_rank()
    return torch.tensor([[rank, s, (1 << 60) + i] for s, n in enumerate(sequences) for i in range(n)],
                        dtype=torch.int64).reshape(-1, 3)


def moves_are_right(bags, case, heads):
    size, rank = dist.get_world_size(), dist.get_rank()
    lens = lens_here(case, size)
    balancer = SequenceBalancer(bags, heads=heads, **FREE)
    plan = balancer.plan_routing(lens, 8)
    everyones = workers.gather(lens)
    assert len(set(workers.gather(plan.hash))) == 1
    options = {"model": "d=8,layers=24,heads=%d" % heads, "bags": bags, "cluster": "free"}
    assert knapformer.plan(everyones, **options).hash == plan.hash, "not the plan of all lengths"

    # Each held row is the one that the chunk table names.
    home = rows_of(lens)
    features = [home.clone(), torch.randn(len(home), 2, 3).bfloat16(), torch.rand(len(home)) < 0.5,
                torch.randn(len(home), dtype=torch.float64), torch.randn(len(home), 1, dtype=torch.complex64)]
    got_lens, held, moved = balancer.route(home, features)
    first = [sum(len(l) for l in everyones[:r]) for r in range(size)]
    where = {first[r] + s: (r, s) for r in range(size) for s in range(len(everyones[r]))}
    want = [where[seq] + ((1 << 60) + offset + i,) for seq, offset, n in plan.held for i in range(n)]
    assert [tuple(row) for row in held.tolist()] == want
    assert got_lens == [n for _, _, n in plan.held] and sum(got_lens) == len(held)
    for feature, there in zip(features, moved):
        assert there.dtype == feature.dtype and there.shape[1:] == feature.shape[1:]
        back = balancer.reverse_route(there)
        assert back.dtype == feature.dtype and torch.equal(back, feature), "reverse(route(x)) is not x"

    # One row a sequence reaches every chunk of it.
    per_chunk = balancer.route_sequences(torch.tensor([[rank, s] for s in range(len(lens))], dtype=torch.int64).reshape(-1, 2))
    assert [tuple(row) for row in per_chunk.tolist()] == [where[seq] for seq, _, _ in plan.held]

    # Every (row, head) pair reaches the owner of the head.
    names = torch.cat((held[:, None].expand(-1, heads, -1), torch.arange(heads).expand(len(held), heads)[..., None]), 2)
    seq_lens, q, k, v = balancer.pre_attn(names, names + 1, names + 2)
    pairs = [where[s.seq] + ((1 << 60) + i, h) for s in plan.segments for i in range(s.rows)
             for h in range(s.first_head, s.first_head + s.heads)]
    assert [tuple(row) for row in q.reshape(-1, 4).tolist()] == pairs
    assert seq_lens.tolist() == [s.rows for s in plan.segments]
    for part, delta in ((q, 0), (k, 1), (v, 2)):
        got_lens, back = balancer.post_attn(part)
        assert torch.equal(back, names + delta) and got_lens == plan.lens
    if bags == "g2n2" and size == 4 and heads % 2 == 0:  # the published shapes
        assert q.shape == (sum(seq_lens), heads // 2, 4), q.shape


def derivative(make, apply):
    """The gradient of sum(w * apply(x)) on all ranks, by autograd and by differences, element by element."""
    x = make().double().requires_grad_()
    out = apply(x)
    w = torch.randn_like(out)
    (w * out).sum().backward()
    for owner in range(dist.get_world_size()):
        count = workers.gather(x.numel())[owner]
        for i in random.Random(owner).sample(range(count), min(count, 12)):
            values = []
            for delta in (0.5, -0.5):
                shifted = x.detach().clone()
                if owner == dist.get_rank():
                    shifted.view(-1)[i] += delta
                value = (w * apply(shifted)).sum().detach()
                dist.all_reduce(value)
                values.append(value)
            if owner == dist.get_rank():
                error = abs(values[0] - values[1] - x.grad.view(-1)[i])
                assert error < 1e-9, (owner, i, values, x.grad.view(-1)[i])


def gradients_are_right(bags, case):
    lens, heads = lens_here(case, dist.get_world_size()), 3
    balancer = SequenceBalancer(bags, heads=heads, **FREE)
    plan = balancer.plan_routing(lens, 8)
    home_rows, held_rows = sum(lens), sum(plan.lens)
    pairs = sum(s.rows * s.heads for s in plan.segments)
    derivative(lambda: torch.randn(home_rows, 2), lambda x: balancer.route(x)[1])
    derivative(lambda: torch.randn(held_rows, 2), balancer.reverse_route)
    derivative(lambda: torch.randn(len(lens), 2), balancer.route_sequences)
    derivative(lambda: torch.randn(held_rows, heads, 2),
               lambda x: torch.cat([t.reshape(-1, 2) * c for c, t in enumerate(balancer.pre_attn(x, 2 * x, x)[1:], 1)]))
    balancer.pre_attn(*[torch.zeros(held_rows, heads, 2)] * 3)
    derivative(lambda: torch.randn(pairs, 2), lambda x: balancer.post_attn(x)[1])
    derivative(lambda: torch.randn(held_rows, heads, 2), lambda x: balancer.attention(x, x, x) ** 0 * x)


def whole(x, lens, heads):
    """A stage of two layers without a balancer."""
    for layer in range(2):
        q = (x * (layer + 1)).view(len(x), heads, 4)
        x = x + knapformer.attention(q, q.sin(), q.cos(), lens).reshape(x.shape)
    return x


def stage(balancer, x, heads):
    for layer in range(2):
        q = (x * (layer + 1)).view(len(x), heads, 4)
        x = x + balancer.attention(q, q.sin(), q.cos()).reshape(x.shape)
    return x


def attention_is_the_same(bags, case, heads):
    lens = lens_here(case, dist.get_world_size())
    x = torch.randn(sum(lens), heads * 4, dtype=torch.float64, requires_grad=True)
    plain = whole(x, lens, heads)
    weight = torch.randn_like(plain)
    (weight * plain).sum().backward()
    want, x.grad = x.grad, None
    balancer = SequenceBalancer(bags, **FREE)  # does not know the heads: it learns them
    for _ in range(2):
        x.grad = None
        balancer.plan_routing(torch.tensor(lens, dtype=torch.int64), heads * 4)
        _, held, _ = balancer.route(x)
        q = held.detach().view(len(held), heads, 4)
        seq_lens, *qkv = balancer.pre_attn(q, q.sin(), q.cos())
        assert torch.equal(balancer.post_attn(knapformer.attention(*qkv, balancer.plan))[1],
                           balancer.attention(q, q.sin(), q.cos())), "one call is not the three"
        out = balancer.reverse_route(stage(balancer, held, heads))
        (weight * out).sum().backward()
        assert torch.allclose(out, plain, atol=1e-12), (out - plain).abs().max()
        assert torch.allclose(x.grad, want, atol=1e-11), (x.grad - want).abs().max()
    assert balancer.plan.facts["heads"] == heads


def computed_again(bags, case):
    """Activation checkpointing of attention alone: ranks have saved different things, or nothing, and must compute again at the
    same place."""
    lens, heads = lens_here(case, dist.get_world_size()), 2
    x = torch.randn(sum(lens), heads * 4, requires_grad=True)
    gradients = []
    for way in (lambda f, *a: f(*a), lambda f, *a: checkpoint(f, *a, use_reentrant=False)):
        balancer = SequenceBalancer(bags, heads=heads, **FREE)
        balancer.plan_routing(lens, 8)
        y = balancer.route(x)[1]
        for _ in range(2):
            q = y.view(len(y), heads, 4)
            y = y + way(balancer.attention, q, q.sin(), q.cos()).reshape(y.shape)
            q = y.view(len(y), heads, 4)

            def three(q):
                return balancer.post_attn(knapformer.attention(*balancer.pre_attn(q, q.sin(), q)[1:], balancer.plan))[1]
            y = y + way(three, q).reshape(y.shape)
        x.grad = None
        balancer.reverse_route(y).square().sum().backward()
        gradients.append(x.grad)
    assert torch.allclose(*gradients, atol=1e-6)


def in_half_precision():
    """Under autocast torch's attention returns another type than q's, and a rank without heads computes none."""
    size = dist.get_world_size()
    balancer = SequenceBalancer("g%dn1" % size, heads=2)
    balancer.plan_routing([30] if dist.get_rank() == 0 else [], 8)
    q = torch.randn(sum(balancer.plan.lens), 2, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o = balancer.attention(q, q, q)
        three = balancer.post_attn(knapformer.attention(*balancer.pre_attn(q, q, q)[1:], balancer.plan))[1]
    assert o.dtype == three.dtype == q.dtype and torch.equal(o, three)
    o.sum().backward()


def data_without_gradients():
    """Tokens that need no gradient, as raw data: features need none either, and a scheduler still learns from times."""
    scheduler = knapformer.scheduler.Scheduler("auto", "history", 2, model="d=8,layers=2,heads=2", cluster="free")
    balancer = SequenceBalancer(scheduler=scheduler)
    weight = torch.ones(8, requires_grad=True)
    for step in range(4):
        lens = [40] if dist.get_rank() == 0 else [3]
        balancer.plan_routing(lens, 8)
        rope, conjugate = torch.randn(sum(lens), 4), torch.randn(sum(lens), 2, dtype=torch.complex64).conj()
        _, x, (held, turned) = balancer.route(torch.randn(sum(lens), 8), [rope, conjugate])
        assert not held.requires_grad and torch.equal(balancer.reverse_route(turned), conjugate)
        x = balancer.reverse_route(x * weight).square().sum().backward()
    balancer.settle()
    metrics = scheduler.metrics()
    assert metrics["step"] == 3 and metrics["n_measured"] == dist.get_world_size() and scheduler.refits >= 1
    _, _, (held,) = balancer.plan_routing(lens, 8) and balancer.route(torch.randn(sum(lens), 8, requires_grad=True), [rope])
    assert not held.requires_grad, "a feature that needs no gradient gets one"


def bad_input():
    rank, size = dist.get_rank(), dist.get_world_size()
    refuses = workers.refuses
    balancer = SequenceBalancer("auto", heads=2)
    refuses(lambda: balancer.route(torch.zeros(3, 4)), "plan_routing first")
    # What is wrong on one rank is said on all, and the group goes on.
    refuses(lambda: balancer.plan_routing([4, -7] if rank == 1 else [4], 8), "rank 1", "-7")
    refuses(lambda: balancer.plan_routing([1.5] if rank == 1 else [4], 8), "rank 1", "1.5")
    refuses(lambda: balancer.plan_routing([4], 0 if rank == 1 else 8), "rank 1", "token_dim is 0")
    refuses(lambda: balancer.plan_routing([4], torch.ones(3) if rank == 1 else 8), "rank 1", "token_dim is tensor")
    refuses(lambda: balancer.plan_routing([4], 2**30 if rank == 1 else 8), "rank 1", 2**30)
    refuses(lambda: balancer.plan_routing(5 if rank == 1 else [5], 8), "rank 1")
    refuses(lambda: balancer.plan_routing([5, 6], 8, profiles=[(1, 256, 1)] if rank == 1 else None), "rank 1", "1 profiles", 2)
    refuses(lambda: balancer.plan_routing([5], 8, profiles=[(1, 2**40, 1)] if rank == 1 else None), "rank 1", 2**40)
    refuses(lambda: balancer.plan_routing([5], 8, profiles=[(9, 1, 1)] if rank == 1 else None), "rank 1", "kind 9")
    refuses(lambda: balancer.plan_routing(["\ud800\0" * 200] if rank == 1 else [4], 8), "rank 1")
    refuses(lambda: SequenceBalancer("auto").plan_routing([4], 16 if rank == 1 else 8), "rank 1 has another configuration")
    other = SequenceBalancer("auto", gamma=0.5 if rank == size - 1 else 0.4)
    refuses(lambda: other.plan_routing([4], 8), "another configuration")
    scheduler = knapformer.scheduler.Scheduler
    refuses(lambda: scheduler(ranks=size + 1), size + 1, size)
    refuses(lambda: scheduler("g%dn1" % (size + 1)), size + 1, size)
    alone = scheduler.__new__(scheduler)
    alone.__dict__.update(ranks=7, world=balancer.world)
    refuses(lambda: SequenceBalancer(scheduler=alone), "7 ranks", size)
    refuses(lambda: SequenceBalancer(scheduler=alone, mem_tokens=5), "mem_tokens")
    tight = SequenceBalancer("auto", mem_tokens=5)
    refuses(lambda: tight.plan_routing([100], 8), "100 tokens", "5")

    balancer.plan_routing([4], 8)
    refuses(lambda: balancer.route(torch.zeros(5, 8)), 4, "(5, 8)")
    refuses(lambda: balancer.route(torch.zeros(4, 8), torch.zeros(4)), "packed_features")
    refuses(lambda: balancer.route(torch.zeros(4, 8), [torch.zeros(3)]), "tensor 1", "(3,)", 4)
    refuses(lambda: balancer.route(torch.zeros(4, 8), [torch.zeros(4, device="meta")]), "meta", "cpu")
    refuses(lambda: balancer.post_attn(torch.zeros(1)), "pre_attn first")
    held = sum(balancer.plan.lens)
    q = torch.zeros(held, 2, 4)
    refuses(lambda: balancer.pre_attn(*[torch.zeros(held, 3, 4)] * 3), "3 heads", "2")
    refuses(lambda: balancer.pre_attn(q, q, torch.zeros(held, 2, 5)), "(%d, 2, 5)" % held)
    refuses(lambda: balancer.pre_attn(q, q, q.double()), "float64")
    refuses(lambda: balancer.pre_attn(*[torch.zeros(held + 1, 2, 4)] * 3), held + 1)
    refuses(lambda: balancer.attention(*[torch.zeros(held + 1, 2, 4)] * 3), held + 1, held)
    balancer.pre_attn(q, q, q)
    refuses(lambda: balancer.post_attn(torch.zeros(held + 1, 2, 4)), held + 1)


def take_steps(balancer, n, lens, dim=8, heads=0):
    """n steps from data without a gradient, with attention if there are heads."""
    weight = torch.ones(dim, requires_grad=True)
    for _ in range(n):
        balancer.plan_routing(lens, dim)
        x = balancer.route(torch.randn(sum(lens), dim))[1] * weight
        if heads:
            q = x.reshape(-1, heads, dim // heads)
            x = balancer.attention(q, q, q).reshape(x.shape)
        balancer.reverse_route(x).sum().backward()
    balancer.settle()


def configured(folder):
    """A balancer's configuration: its files, its model and its cost count, and a second run goes on from the state."""
    rank, size = dist.get_rank(), dist.get_world_size()
    config, steps, cost = (os.path.join(folder, name) for name in ("train.yaml", "steps", "cost.yaml"))
    if rank == 0:
        knapformer.fit([100, 200, 400], [0.1, 0.21, 0.45]).save(cost)
        with open(config, "w") as file:
            file.write("knapformer:\n  cost_file: %s\n  state_file: %s/state\n  steps_file: %s\n" % (cost, folder, steps))
    dist.barrier()
    for first in (0, 3):
        balancer = SequenceBalancer(heads=2, layers=3, config=config, settings=(text for text in ["gamma=0.7"]))
        take_steps(balancer, 3, [40 + rank])
        assert balancer.scheduler.shape == (8, 3, 2) and balancer.scheduler.steps == first + 3
        if rank == 0:
            with open(steps) as file:
                lines = [json.loads(line) for line in file]
            assert [line["step"] for line in lines] == [first, first + 1, first + 2]
            assert lines[0]["cost"]["linear_s"] > 1e-4, "the cost_file was not read"
        dist.barrier()  # the state is written
    for heads in (6, 24):  # which the first attention shows
        files = [os.path.join(folder, "%s-%d" % (what, heads)) for what in ("steps", "state")]
        balancer = SequenceBalancer(config=config, settings=["steps_file=" + files[0], "state_file=" + files[1], "cost_file="])
        take_steps(balancer, 3, [40 + rank], 48, heads)
        dist.barrier()
        with open(files[0]) as file:
            assert len(file.readlines()) == 2 and os.path.getsize(files[1]) > 0
    with_model = dict(config=config, settings=["model=d=16,layers=3,heads=4"])
    refuses = workers.refuses
    refuses(lambda: SequenceBalancer(heads=2, **with_model), "heads is 2", "expected 4", "d=16")
    refuses(lambda: SequenceBalancer(layers=2, **with_model), "layers is 2", "expected 3")
    refuses(lambda: SequenceBalancer(model="DiT-S", heads=4), "heads is 4", "expected 6", "DiT-S")
    for wrong in (0, 2.5, True, "4"):
        refuses(lambda: SequenceBalancer(heads=wrong), "heads is %r" % (wrong,))
    refuses(lambda: SequenceBalancer(settings="gamma=1"), "settings", "list")
    refuses(lambda: SequenceBalancer(**with_model).plan_routing([5], 16), "state_file", "another model")
    with_model["settings"].append("state_file=")
    balancer = SequenceBalancer(**with_model)
    assert balancer.heads == 4 and balancer.scheduler.shape == (16, 3, 4)
    refuses(lambda: balancer.plan_routing([5], 8 if rank == 1 else 16), "rank 1", "token_dim is 8", "expected 16")
    refuses(lambda: SequenceBalancer(config=config, cost_model="static"), "static", "cost.yaml")
    scheduler = knapformer.scheduler.Scheduler("auto", model="d=8,layers=2,heads=2")
    for given in (dict(bag_specs="g1n%d" % size), dict(gamma=0.4), dict(heads=2), dict(layers=2), dict(config=config)):
        refuses(lambda: SequenceBalancer(scheduler=scheduler, **given), list(given)[0], "scheduler's")


def states():
    """What was learned goes from one balancer to the next, whenever the next hears of its model."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for dim, heads in ((8, 2), (128, 2)):
        history = dict(layers=3, cost_model="history", rebalance_interval=1)
        first = SequenceBalancer(heads=heads, speeds=iter([1.0] * size), **history)
        take_steps(first, 4, [40 + rank], dim, heads)
        assert first.scheduler.refits > 0
        for known in (dict(heads=heads), {}):
            second = SequenceBalancer(**known, **history)
            second.load_state_dict(first.state_dict())
            assert second.state_dict() == first.state_dict()
            take_steps(second, 2, [40 + rank], dim, heads)
            assert second.scheduler.steps == 6 - (not known), "what was restored before the first step is lost"
        third = SequenceBalancer(heads=heads, model="d=%d,layers=3,heads=%d" % (dim, heads), cost_model="history")
        third.load_state_dict(first.state_dict())
        assert third.scheduler.steps == 4


def default():
    """What learns nothing leaves data as it is: without a gradient, to be changed in place."""
    rank, size = dist.get_rank(), dist.get_world_size()
    balancer = SequenceBalancer("g1n%d" % size, heads=2, layers=3, cluster="free")
    plan = balancer.plan_routing([40] * size if rank == 0 else [], 8)
    _, x, _ = balancer.route(torch.randn(40 * size * (rank == 0), 8))
    x += 1
    assert not x.requires_grad
    for mine in (plan.lens, plan.held, plan.segments):
        mine.append(7)
    assert plan.lens == [40] and len(plan.held) == len(plan.segments) == 1
    given = SequenceBalancer(scheduler=knapformer.scheduler.Scheduler("g1n%d" % size, model="d=8,layers=2,heads=2", cluster="free"))
    take_steps(given, 1, [40] * size if rank == 0 else [])
    assert [r["samples"] for r in given.scheduler.metrics()["ranks"]] == [1] * size  # where they are computed


def everything(folder):
    size = dist.get_world_size()
    specs = ["auto", "g1n%d" % size, "g%dn1" % size, "g2n%d" % (size // 2)] + ([[1, 1, 2]] if size == 4 else [])
    for bags in specs:
        for case in CASES:
            for heads in (1, 5, 6):
                moves_are_right(bags, case, heads)
            attention_is_the_same(bags, case, 6)
        for case in CASES[:1] + CASES[3:4]:
            gradients_are_right(bags, case)
        for case in CASES + [[[30], [4, 5], [], []]]:
            computed_again(bags, case)
    in_half_precision()
    data_without_gradients()
    bad_input()
    configured(folder)
    states()
    default()


if __name__ == "__main__":
    for n in (1, 2, 4):
        if n == 1:  # no process group at all
            one = SequenceBalancer("auto", heads=2)
            one.plan_routing([4, 3], 8)
            y = torch.randn(7, 8, requires_grad=True)
            assert one.route(y)[1].equal(y) and one.reverse_route(one.route(y)[1]).equal(y)
            assert one.attention(*[y.view(7, 2, 4)] * 3).shape == (7, 2, 4)
        else:
            with tempfile.TemporaryDirectory() as folder:
                workers.run(n, everything, folder)
    print("ok")
