# SPDX-License-Identifier: Apache-2.0
"""attach_to_trainer on 2 and 4 gloo ranks: the DiT and the MMDiT of examples/ and a model of somebody else's
train as they do without it, loss and every gradient, under DDP and FSDP2, with activation checkpointing, with ranks
that have nothing; and detach leaves everything as it was."""
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, os.path.join(os.environ["KF_SOURCE"], "examples"))
import knapformer  # noqa: E402
import models  # noqa: E402
import workers  # noqa: E402
from knapformer.hooks import attach_to_trainer  # noqa: E402
from knapformer.scheduler import Scheduler  # noqa: E402

SHAPE = "d=32,layers=3,heads=4"
LENS = [[9, 4, 30, 2], [5], [], [70]]
CLUSTER = "free"  # links that cost nothing: much is split


class Theirs(nn.Module):
    """A packed-token model that has never heard of us: other names, lengths as a tensor, a table that all tokens
    share, recomputation."""

    class Core(nn.Module):
        def forward(self, q, k, v, lens):
            return knapformer.attention(q, k, v, lens)

    class Layer(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.qkv, self.out, self.core = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), Theirs.Core()

        def forward(self, x, lens, shift):
            q, k, v = self.qkv(x + shift).view(len(x), 3, 4, x.shape[1] // 4).unbind(1)
            return x + self.out(self.core(q, k, v, lens).reshape(x.shape))

    class Trunk(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.layers = nn.ModuleList(Theirs.Layer(dim) for _ in range(2))

        def forward(self, x, lens, table, shift=None, names=None):
            assert table.shape[0] == 64 and names == "abc"
            shift = shift.repeat_interleave(lens, 0) + table[:1]
            for layer in self.layers:
                x = checkpoint(layer, x, lens, shift, use_reentrant=False)
            return x, x.sum(1, keepdim=True)

    def __init__(self, dim=32):
        super().__init__()
        self.embed, self.trunk = nn.Linear(models.VALUES, dim), Theirs.Trunk(dim)
        self.cond, self.head = nn.Linear(1, dim), nn.Linear(dim, models.VALUES)

    def forward(self, value, word, at, time, label, lens):
        x, total = self.trunk(self.embed(value), torch.tensor(lens, dtype=torch.int64), torch.ones(64, 32),
                              shift=self.cond(time[:, None]), names="abc")
        return self.head(x) + total


def batch_of(seed, lens):
    g = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    rows, n = sum(lens), len(lens)
    word = torch.randint(-6, models.WORDS, (rows,), generator=g).clamp(min=-1)
    return dict(value=torch.randn(rows, models.VALUES, generator=g), word=word,
                at=torch.randint(0, 9, (rows, 3), generator=g).float(), time=torch.rand(n, generator=g),
                label=torch.randint(0, models.LABELS, (n,), generator=g), lens=lens)


def build(name):
    torch.manual_seed(5)
    model = Theirs() if name == "theirs" else models.build(name)
    with torch.no_grad():
        for p in model.parameters():  # gates that begin with 0 would hide most of the model
            p.add_(0.05 * torch.randn_like(p))
    return model


def lens_here(shift=0):
    size = dist.get_world_size()
    return [sum(LENS[r::size], []) for r in range(size)][(dist.get_rank() + shift) % size]


def run(model, steps=4):
    """Losses of all ranks together, and all gradients, of some steps."""
    out = []
    for step in range(steps):
        batch = batch_of(step, lens_here(step))
        count = torch.tensor(float(batch["value"].numel()))
        dist.all_reduce(count)
        model.zero_grad()
        loss = ((model(**batch) - batch["value"].sin()) ** 2).sum() / count * dist.get_world_size()
        loss.backward()
        total = loss.detach() / dist.get_world_size()
        dist.all_reduce(total)
        gradients = [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad.clone()
                     for p in model.parameters()]
        out.append((float(total), gradients))
    return out


def agree(got, want, names):
    for (loss, gradients), (want_loss, want_gradients) in zip(got, want):
        assert abs(loss - want_loss) <= 1e-5 * abs(want_loss), (loss, want_loss)
        for name, g, w in zip(names, gradients, want_gradients):
            error, size = (g - w).abs().max(), w.abs().max()
            assert error <= 1e-4 * size + 1e-9, (name, float(error), float(size))


def options(name):
    return dict(stage="trunk", attention="core") if name == "theirs" else {}


def parity(name, wrap, bags, cost_model="history"):
    model = wrap(build(name))
    names = [n for n, _ in model.named_parameters()]
    want = run(model)
    before = {id(m): dict(m.__dict__) for m in model.modules()}
    scheduler = Scheduler(bags, cost_model, 2, model=SHAPE, cluster=CLUSTER)

    class Trainer:
        pass

    trainer, seen = Trainer(), []
    trainer.model = model
    with attach_to_trainer(trainer, scheduler, log=seen.append, **options(name)) as handle:
        agree(run(model), want, names)
        assert handle.plan.split_seqs > 0 or bags == "g1n1"
        with torch.no_grad():  # a forward alone is balanced, too, and not learned from
            model(**batch_of(7, lens_here()))
        if hasattr(model, "reshard"):  # FSDP2 keeps the root's parameters whole until a backward, and their
            model.reshard()            # gradients then escape zero_grad
        assert len(set(workers.gather(handle.plan.hash))) == 1
    scheduler.settle()
    metrics = scheduler.metrics()
    assert [m["step"] for m in seen] == [0, 1, 2, 3], [m["step"] for m in seen]
    assert all(m["n_measured"] == dist.get_world_size() and m["max_over_mean"] >= 1 for m in seen)
    assert metrics["step"] == 3 and (metrics["refits"] > 0) == (cost_model == "history"), metrics
    assert all(0 < r["memory_pressure"] < 1 for m in seen for r in m["ranks"]), "memory is not counted"
    for m in model.modules():
        assert m.__dict__.get("forward") is before[id(m)].get("forward"), "forward is not as it was"
        assert set(m.__dict__) == set(before[id(m)])
    agree(run(model, 1), want, names)


def plain(model):
    """DDP's sum of gradients, without DDP."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model
            for p in model.parameters():
                p.register_hook(lambda g: dist.all_reduce(g) or g / dist.get_world_size())

        def forward(self, **batch):
            return self.inner(**batch)
    return Model()


def fsdp(model):
    from torch.distributed.fsdp import fully_shard
    for block in model.modules():
        if isinstance(block, models.BLOCKS):
            fully_shard(block)
    fully_shard(model)
    return model


def bad_input():
    refuses, size = workers.refuses, dist.get_world_size()
    model = build(SHAPE)
    scheduler = Scheduler("auto", model=SHAPE)
    refuses(lambda: attach_to_trainer(5, scheduler), "int", ".model")
    refuses(lambda: attach_to_trainer(nn.Linear(2, 2), scheduler), "found 0", "packed_tokens")
    refuses(lambda: attach_to_trainer(model, scheduler, stage="nowhere"), "'nowhere'", "found 0")
    refuses(lambda: attach_to_trainer(model, scheduler, attention="nothing"), "nothing")
    refuses(lambda: attach_to_trainer(nn.ModuleList([build(SHAPE), build(SHAPE)]), scheduler), "found 2", "0.stage")
    with attach_to_trainer(model, Scheduler("auto", model="d=32,layers=3,heads=8")):
        refuses(lambda: model(**batch_of(0, [5])), "4 heads", "8")
    with attach_to_trainer(model, scheduler):  # what is wrong on one rank is said on all
        x, rope, cond = torch.zeros(6, 32), torch.zeros(6, 2, 4), torch.zeros(1, 32)
        lens = [7] if dist.get_rank() == size - 1 else [6]
        refuses(lambda: model.stage(x, lens, rope, cond), "rank %d" % (size - 1), "7", "6 rows")
        refuses(lambda: model.stage(x, [6] if dist.get_rank() else ["six"], rope, cond), "rank 0", "six")
        wrong = x.double() if dist.get_rank() == size - 1 else x
        refuses(lambda: model.stage(wrong, [6], rope, cond), "rank %d" % (size - 1), "other tensors")
        model.stage(x, [6], rope, cond)


class Odd(nn.Module):
    """A stage with optional and nested arguments."""
    packed_tokens = True

    def __init__(self):
        super().__init__()
        self.core, self.linear, self.mask = knapformer.nn.PackedAttention(), nn.Linear(8, 8), None

    def forward(self, x, lens, rope, extra=None, cond=None):
        rows = torch.repeat_interleave(cond["c"], torch.as_tensor(lens, dtype=torch.int64), 0)
        x = self.linear(x + rows) * rope[0] + rope[1] + (0 if extra is None else extra)
        q = x.view(len(x), 2, 4)
        core = self.core if self.mask is None else lambda *qkv: self.core(*qkv, self.mask)
        return x + checkpoint(core, q, q.sin(), q, lens, use_reentrant=False).reshape(x.shape)


def odd_arguments():
    torch.manual_seed(2)
    stage, size = Odd(), dist.get_world_size()
    scheduler = Scheduler("g%dn1" % size, model="d=8,layers=1,heads=2")
    lens = [[30], [4, 5], [], [1]][dist.get_rank() % 4]
    for as_tensor in (False, True):
        own = torch.tensor(lens, dtype=torch.int64) if as_tensor else lens

        def outputs(step):
            g = torch.Generator().manual_seed(10 * dist.get_rank() + step)
            x, cos, sin, extra = (torch.randn(sum(lens), 8, generator=g).requires_grad_() for _ in range(4))
            cond = torch.randn(len(lens), 8, generator=g).requires_grad_()
            return [x, cond], stage(x, own, (cos, sin), cond={"c": cond}, **({"extra": extra} if step % 2 else {}))

        def gradients(steps):  # several forwards, then their backwards
            made = [outputs(step) for step in steps]
            for leaves, out in made:
                out.square().sum().backward()
            return [leaf.grad for leaves, _ in made for leaf in leaves] + [out.detach() for _, out in made]

        want = gradients((0, 1, 2, 3))
        with attach_to_trainer(stage, scheduler):
            again = gradients((0, 1, 2, 3)) + gradients((0,))[:2]  # the first step's, after others had more arguments
            for a, b in zip(again, want + want[:2]):
                assert torch.allclose(a, b, atol=1e-5), (as_tensor, (a - b).abs().max())
            workers.refuses(lambda: attach_to_trainer(stage, scheduler), "attached already")
            stage.mask = torch.ones(1)
            workers.refuses(lambda: outputs(0), "attention was called", "masks")
            stage.mask = None


def everything(wraps):
    torch.set_num_threads(1)
    size = dist.get_world_size()
    for wrap in wraps:
        for name in (SHAPE, "MMDiT-" + SHAPE):
            for bags in ("auto", "g2n%d" % (size // 2)):
                parity(name, globals()[wrap], bags)
    parity("theirs", plain, "auto", "static")
    parity(SHAPE, plain, "g1n1")
    odd_arguments()
    bad_input()


def ddp(model):
    return DistributedDataParallel(model)


if __name__ == "__main__":
    wraps = ["ddp"] if torch.__version__.startswith("1.") else ["ddp", "fsdp"]
    for n in (2, 4):
        workers.run(n, everything, wraps)
    print("ok")
