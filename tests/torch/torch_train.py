# SPDX-License-Identifier: Apache-2.0
"""The trainer's network and optimiser against PyTorch in double precision: predictions, loss and the
gradient of every tensor, as train_probe computed them in fp32."""

import os
import subprocess
import sys
import tempfile

import torch

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.environ["KF_SOURCE"], "bench"))
import dit_torch  # noqa: E402

# The model, and its sequences as train_probe reads them: visual tokens + text.
STEPS = [
    ("d=64,layers=2,heads=4", "40+9 17 96+1"),
    ("d=64,layers=2,heads=4", "1"),
    ("d=64,layers=2,heads=4", "1 1+1 0+1 1 0+30 100"),  # single tokens, only text
    ("d=40,layers=3,heads=4", "5 50+3"),    # of 5 angles 1 is the frame's, 2 each are y's and x's
    ("d=24,layers=1,heads=12", "33+2"),     # one angle, which is x's
    ("d=256,layers=1,heads=1", "65+64 3"),  # the widest head
    ("d=32,layers=2,heads=2", "1100+30 5"),  # more rows than the MLP takes at once
    ("DiT-S", "190+20 1 70+19"),
]


def probe(*arguments):
    program = os.path.join(os.environ["KF_BUILD"], "tests", "train_probe")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "probe.safetensors")
        subprocess.run([program, path, *arguments], check=True)
        return dit_torch.read_tensors(path)


def model_of(tensors):
    model = dit_torch.DiT(*tensors["model"].tolist()).double()
    model.load(tensors)
    return model


failures = []


def check(what, got, want, bound):
    """The largest error is within `bound` of the largest value."""
    size, error = want.abs().max().item(), (got.double() - want).abs().max().item()
    wrong = not error <= bound * size  # NaN is wrong, too
    print(f"  {what:13} {error / (size or 1):.1e} of {size:.1e}{' WRONG' if wrong else ''}")
    failures.extend([what] if wrong else [])


def check_step(model_text, seqs):
    print(f"{model_text}: {seqs}")
    t = probe(model_text, "1", *seqs.split())
    model = model_of(t)
    rows = dit_torch.Rows(t["row.value"].double(), t["row.word"], t["row.at"], t["row.time"].double(),
                          t["row.label"], t["seq_off"].diff().tolist())
    prediction = model(rows)
    loss = dit_torch.loss_of(prediction, t["target"].double(), rows.word < 0)
    loss.backward()
    check("prediction", t["prediction"], prediction.detach(), 5e-6)
    check("loss", t["loss"], loss.detach(), 1e-6)
    for name in dit_torch.TENSORS:
        for layer, (got, p) in enumerate(zip(model.pieces(name, t["grad." + name]), model.named(name))):
            check(f"{name} {layer}", got, p.grad, 5e-6)
    check("norm", t["norm"], torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]), 1e-6)


def check_optimizer(model_text):
    """Three updates, of which the first and the third are clipped. What changed is compared, because
    parameters that stay where they are would be nearly right; the bounds are what rounding parameters
    to fp32 is of that."""
    print(f"{model_text}: AdamW")
    t = probe(model_text, "1")
    lr, beta1, beta2, eps, decay, ema_decay, clip = t["settings"].tolist()
    model, ema = model_of(t), model_of(t)
    optimizer = dit_torch.optimizer_of(model, lr, (beta1, beta2), eps, decay)
    for step in (1, 2, 3):
        for name in dit_torch.TENSORS:
            for p, grad in zip(model.named(name), model.pieces(name, t[f"grad{step}.{name}"])):
                p.grad = grad.double()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        assert (norm > clip) == (step != 2), norm
        check(f"norm {step}", t["norms"][step - 1], norm, 1e-6)
        optimizer.step()
        dit_torch.follow(ema, model, ema_decay)
    for name in dit_torch.TENSORS:
        first = t[name].double().flatten()
        for kind, of, bound in (("after", model, 5e-5), ("ema", ema, 3e-4)):
            moved = torch.cat([p.detach().flatten() for p in of.named(name)]) - first
            check(f"{kind} {name}", t[f"{kind}.{name}"].double().flatten() - first, moved, bound)


for step in STEPS:
    check_step(*step)
check_optimizer("d=40,layers=3,heads=4")
assert not failures, failures
