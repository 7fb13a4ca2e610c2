# SPDX-License-Identifier: Apache-2.0
"""Train a Diffusion Transformer on pictures and videos of mixed size, with knapformer and without.

    python examples/train.py --model DiT-S --data synthetic:joint --gpus cpu:2 --compare
    python examples/train.py --model MMDiT-base --data DIR --batch-size 8 --gpus 0,1,2,3 --use-knapformer
    torchrun --nproc-per-node 8 examples/train.py --data DIR --use-knapformer --fsdp

It starts a worker for each device by itself, or is a worker of torchrun. The model is models.py, data
is data.py, and all that has to do with balancing is `balance` below: a scheduler, and one call.
"""
import argparse
import collections
import datetime
import json
import math
import multiprocessing.connection
import os
import re
import signal
import socket
import statistics
import sys
import time
import traceback
import warnings

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # which is not needed here

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import data
import knapformer
import models

WARM_UP = 10  # steps in which the learning rate rises


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--model", default="DiT-S", help="DiT- or MMDiT- with S, B, L, XL or d=..,layers=..,heads=.. (DiT-S)")
    add("--data", default="synthetic:joint", metavar="DIR|synthetic:MIX",
        help="a folder of images, keyframe folders and videos, or a mix (synthetic:joint)")
    add("--batch-size", type=positive, default=8, metavar="N",
        help="samples a rank and step; a mix brings its own (8)")
    add("--max-tokens", type=positive, default=16384, metavar="N",
        help="files that make more are scaled down (16384)")
    add("--scale", type=above_0, metavar="F", help="tokens of a mix, times F; default: 2500 a rank and step")
    add("--workers", type=int, default=0, metavar="N", help="processes that read ahead, for each rank (0)")
    add("--gpus", metavar="0,1,..|cpu:N", help="all GPUs, or one rank on each core where there are none")
    add("--steps", type=positive, default=20, metavar="N", help="of each variant (20)")
    add("--seconds", type=above_0, metavar="N", help="begin no further step after so many seconds")
    add("--lr", type=above_0, default=1e-3, metavar="X", help="learning rate of AdamW (0.001)")
    add("--seed", type=int, default=0, metavar="N", help="decides samples and first parameters (0)")
    add("--fsdp", action="store_true", help="shard parameters (FSDP2) instead of copying them (DDP)")
    add("--use-knapformer", action="store_true", help="balance each step")
    add("--compare", action="store_true", help="train without and with the balancer in turn, on the same samples, and compare")
    add("--bags", metavar="SPEC", help='sets of ranks that compute together, such as "g1n2+g2n1" (auto)')
    add("--config", metavar="FILE", help="knapformer's YAML file")
    add("--set", metavar="KEY=VALUE", action="append", default=[], help="a key of that file; may be given several times")
    add("--log-level", choices=("error", "warning", "info", "debug"), help="(warning)")
    add("--timeout", type=above_0, default=1800, metavar="N", help="seconds to wait for a silent rank (1800)")
    add("--json", action="store_true", help="one JSON object instead of lines and table")
    return parser.parse_args()


def positive(text):
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text}, expected a whole number of 1 or more")
    return int(text)


def above_0(text):
    if not 0 < float(text) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}, expected a number above 0")
    return float(text)


def threads(ranks=1):
    """Of each of so many ranks on this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, cores // ranks)


def devices_of(gpus):
    """"0,1" -> cuda:0, cuda:1; "cpu:2" -> cpu, cpu; nothing -> what there is."""
    n_gpus = torch.cuda.device_count()
    gpus = gpus or ",".join(map(str, range(n_gpus))) or "cpu"
    if re.fullmatch("cpu(:0*[1-9][0-9]*)?", gpus):
        return ["cpu"] * int(gpus[4:] or threads())
    if all(gpu.isdigit() and int(gpu) < n_gpus for gpu in gpus.split(",")):
        return [f"cuda:{gpu}" for gpu in gpus.split(",")]
    raise ValueError(f"--gpus {gpus}, expected cpu:N or numbers of GPUs, of which there are {n_gpus}")


# ------------------------------------------------------------------------------------- training


class Trainer:
    """One copy of model and optimiser. knapformer.hooks looks for `model`."""

    def __init__(self, args, device):
        torch.manual_seed(args.seed)
        model = models.build(args.model).to(device)
        self.forward = None if device == "cpu" else [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self.model = shard(model) if args.fsdp else DistributedDataParallel(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), args.lr, betas=(0.9, 0.99))
        self.rise = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda n: min(1, (n + 1) / WARM_UP))

    def step(self, batch):
        """This rank's part of the loss: the mean of squares over the visual values of all ranks, so that
        it does not matter which rank has how many. A rank may have none."""
        visual = (batch.word < 0)[:, None]
        n_values = visual.sum() * models.VALUES
        dist.all_reduce(n_values)
        if self.forward:
            self.forward[0].record()
        prediction = self.model(*batch.inputs())
        if self.forward:
            self.forward[1].record()
        error = (prediction - batch.target) * visual
        loss = error.square().sum(dtype=torch.float64) / n_values.clamp(min=1)
        (loss * dist.get_world_size()).backward()  # gradients of ranks are averaged, and shall be added
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.rise.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()


def shard(model):
    """FSDP2: parameters of a block are gathered when it is computed."""
    from torch.distributed.fsdp import fully_shard
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")  # of changes in place: there are none
    for module in list(model.stage.modules()):
        if isinstance(module, models.BLOCKS):
            fully_shard(module)
    return fully_shard(model)


def scheduler_of(args, ranks, rank=0):
    """Told what the model is; on CPU also how fast such ranks are, about, as far as --config and --set do not say. The rest
    it learns."""
    shape = models.shape_of(args.model)[1:]
    described = "d=%d,layers=%d,heads=%d"
    defaults = ["log_level=warning", "model=" + described % shape]
    if devices_of(args.gpus)[0] == "cpu":
        defaults += ["gamma=1", "rebalance_interval=5", "cluster=nodes=1,ranks_per_node=%d,tflops=0.1,passes=3,intra_GBps=2,"
                     "latency_us=100,elem_bytes=4" % ranks]
    scheduler = knapformer.scheduler.Scheduler(
        args.bags, ranks=ranks, log_level=args.log_level, config=args.config, settings=args.set, defaults=defaults,
        log=lambda level, line: None if rank else print(line, file=sys.stderr))
    if scheduler.shape != shape:
        raise ValueError("the configuration's model has %s, expected that of --model %s: %s" %
                         (described % scheduler.shape, args.model, described % shape))
    return scheduler


def balance(trainer, args):
    """The whole difference between the two variants."""
    scheduler = scheduler_of(args, dist.get_world_size(), dist.get_rank())
    return knapformer.hooks.attach_to_trainer(trainer, scheduler)


# -------------------------------------------------------------------------------------- figures

Step = collections.namedtuple("Step", "seconds busy loss tokens")  # busy: of each rank


def timed(trainer, batch, more):
    """One step: a Step, and `more` numbers of every rank. A rank is busy for as long as it uses the CPU,
    because who waits sleeps; on a GPU three times as long as its forward pass takes, which waits for nobody
    in DDP (where ranks meet in it, with FSDP or knapformer, waiting counts)."""
    dist.barrier()
    start, cpu_s = time.perf_counter(), time.process_time()
    loss = trainer.step(batch)
    seconds, busy = time.perf_counter() - start, time.process_time() - cpu_s
    if trainer.forward:
        busy = 3e-3 * trainer.forward[0].elapsed_time(trainer.forward[1])
    mine = [seconds, busy, loss, sum(batch.lens), *more]
    mine = torch.tensor(mine, dtype=torch.float64, device=batch.value.device)
    all_ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(all_ranks, mine)
    seconds, busy, loss, tokens, *more = zip(*(t.tolist() for t in all_ranks))
    return Step(max(seconds), busy, sum(loss), int(sum(tokens))), more


def max_over_mean(busy):
    return max(busy) / statistics.fmean(busy) if sum(busy) > 0 else 1.0


def figures(steps):
    """Of one variant; the first step warms up, and does not count if there are others."""
    steps = steps[1:] or steps
    seconds = [s.seconds for s in steps]

    def median(f):
        return statistics.median(map(f, steps))
    return {"tokens_per_s": median(lambda s: s.tokens / s.seconds),
            "step_ms": {"median": 1e3 * median(lambda s: s.seconds),
                        "p95": 1e3 * (statistics.quantiles(seconds, n=20, method="inclusive")[-1] if seconds[1:] else seconds[0])},
            "max_over_mean": median(lambda s: max_over_mean(s.busy)),
            "idle_variance": median(lambda s: statistics.pstdev(b / s.seconds for b in s.busy))}


def parameters(trainer):
    """What this rank has of them."""
    return [p.to_local() if hasattr(p, "to_local") else p for p in trainer.model.parameters()]


@torch.no_grad()
def param_rel_diff(first, without, balanced):
    """L2 norm of the difference of the two copies / of what they have changed since the start. Early losses
    hardly depend on the parameters, because blocks begin as the identity; this shows every difference."""
    sums = [sum((x - y).double().square().sum() for x, y in zip(a, parameters(without)))
            for a in (parameters(balanced), first)]
    sums = torch.stack(sums)
    dist.all_reduce(sums)
    return (sums[0] / sums[1].clamp(min=1e-30)).sqrt().item()


def comparison(without, balanced):
    a, b = figures(without), figures(balanced)
    speedup, ideal = a["step_ms"]["median"] / b["step_ms"]["median"], a["max_over_mean"]
    return {"speedup": speedup, "ideal": ideal, "realised": speedup / ideal,
            "max_over_mean_before": ideal, "max_over_mean_after": b["max_over_mean"],
            "loss_max_rel_diff": max(abs(x.loss - y.loss) / max(abs(x.loss), 1e-30)
                                     for x, y in zip(without, balanced))}


def print_table(done, param_diff):
    columns = [figures(steps) for steps in done.values()]
    print("\n" + " " * 24 + "".join(f"{name:>12}" for name in done))
    for title, form, value in (("step, median", "{:10.3f} s", lambda f: f["step_ms"]["median"] / 1e3),
                               ("step, 95th percentile", "{:10.3f} s", lambda f: f["step_ms"]["p95"] / 1e3),
                               ("tokens/s", "{:12.0f}", lambda f: f["tokens_per_s"]),
                               ("busy time, max/mean", "{:12.3f}", lambda f: f["max_over_mean"]),
                               ("idle variance", "{:12.1%}", lambda f: f["idle_variance"])):
        print(f"{title:24}" + "".join(form.format(value(f)) for f in columns))
    if len(done) == 2:
        c = comparison(*done.values())
        print(f"\nspeed-up {c['speedup']:.3f}x, of {c['ideal']:.3f}x that perfect balance would bring: "
              f"{c['realised']:.1%} realised")
        print(f"losses of the same steps differ by at most {c['loss_max_rel_diff']:.1e}, relative")
        print(f"parameters differ by {param_diff:.1e} of what they have changed since the start")


def print_json(args, source, done, param_diff):
    steps = list(done.values())[-1]
    result = {"ranks": dist.get_world_size(), "steps": len(steps), "model": args.model, "scale": source.scale,
              **figures(steps), "loss": [step.loss for step in steps]}
    if len(done) == 2:
        result["compare"] = {**comparison(*done.values()), "param_rel_diff": param_diff}
    print(json.dumps(result, indent=1))


# -------------------------------------------------------------------------------------- the run


def train(args, rank, ranks, device):
    """One rank's run."""
    names = ["without", "with"] if args.compare else ["with" if args.use_knapformer else "without"]
    variants = {name: Trainer(args, device) for name in names}
    balanced = balance(variants["with"], args) if "with" in variants else None
    first = [p.detach().clone() for p in parameters(variants[names[0]])] if args.compare else None
    source = open_data(args, rank, ranks)
    talks = rank == 0 and not args.json
    if talks:
        size = sum(p.numel() for p in variants[names[0]].model.parameters())
        print(f"{args.model}: {size / 1e6:.1f} million parameters, {ranks} rank{'s' * (ranks > 1)}")
        print(source.title + "\n", flush=True)
    done = {name: [] for name in names}
    begin, bad, n_bad = time.monotonic(), set(), 0
    loader = DataLoader(source, batch_size=None, sampler=range(args.steps), num_workers=args.workers)
    for number, batch in enumerate(loader):
        new = [sentence for sentence in batch.bad if sentence not in bad]
        bad.update(new)
        for sentence in new:
            print(f"train.py: skipped {sentence}", file=sys.stderr, flush=True)
        batch = batch.to(device)
        for name in names[::-1] if number % 2 else names:  # without, with, with, without, ..
            step, (clock, skipped) = timed(variants[name], batch, (time.monotonic() - begin, len(batch.bad)))
            done[name].append(step)
            if not math.isfinite(step.loss):  # all ranks see the same
                raise ValueError(f"the loss of step {number} is {step.loss}: try a smaller --lr")
            if talks:
                print(f"step {number:4}  {name:7}  loss {step.loss:.5f}  {step.seconds:6.3f} s  "
                      f"{step.tokens / step.seconds:7.0f} tokens/s  max/mean {max_over_mean(step.busy):.3f}",
                      flush=True)
        n_bad += int(sum(skipped))
        if args.seconds and clock[0] > args.seconds:  # rank 0's clock, which all know
            break
    if balanced:  # learn from the last step, too; writes the state_file
        balanced.settle()
        balanced.scheduler.close()
    if not any(step.tokens for step in done[names[0]]):
        raise ValueError(f"no sample of {args.data} could be used")
    if n_bad and rank == 0:
        print(f"train.py: {n_bad} times a sample was skipped", file=sys.stderr)
    param_diff = param_rel_diff(first, *variants.values()) if args.compare else None
    if rank == 0:
        print_json(args, source, done, param_diff) if args.json else print_table(done, param_diff)


def open_data(args, rank, ranks):
    return data.open_data(args.data, rank, ranks, args.seed, args.scale, args.batch_size, args.max_tokens)


def run_rank(args, rank, ranks, device, local_ranks):
    """In a process of its own: a process group, training."""
    if device == "cpu":
        torch.set_num_threads(threads(local_ranks))
    else:
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device == "cpu" else "nccl", rank=rank, world_size=ranks,
                            timeout=datetime.timedelta(seconds=args.timeout))
    train(args, rank, ranks, device)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # all is done; torch may abort while it takes a process group down


def sentence_of(error, args):
    if args.log_level == "debug":
        traceback.print_exc()
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.filename:
        text = f"{error.filename}: {error.strerror}"
    known = isinstance(error, (ValueError, OSError, ImportError))
    return text if known and text else f"{type(error).__name__}: {text}"


def of_rank(rank, sentence):
    return sentence if sentence.startswith("rank ") else f"rank {rank}: {sentence}"


def worker(args, rank, ranks, device, pipe):
    """A process of launch()."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # that is for the one who started us
    try:
        run_rank(args, rank, ranks, device, ranks)
    except BaseException as error:
        pipe.send((time.time(), of_rank(rank, sentence_of(error, args))))
        os._exit(1)  # no destructor may wait for other ranks


def launch(args, devices):
    """A worker for each device; what went wrong first, or None."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]))
    os.environ.setdefault("OMP_NUM_THREADS", str(threads(len(devices))))  # also of BLAS, when it is loaded
    context = torch.multiprocessing.get_context("spawn")
    workers, reasons = {}, []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        for rank, device in enumerate(devices):
            reader, writer = context.Pipe(duplex=False)
            workers[reader] = context.Process(target=worker, args=(args, rank, len(devices), device, writer))
            workers[reader].start()
            writer.close()
        waiting = list(workers)
        while waiting and not reasons:
            for reader in multiprocessing.connection.wait(waiting):
                try:
                    reasons.append(reader.recv())
                except EOFError:  # it has ended
                    waiting.remove(reader)
                    workers[reader].join()
                    rank, code = list(workers).index(reader), workers[reader].exitcode
                    if code:
                        reasons.append((float("inf"), f"rank {rank} ended with code {code}"))
        if reasons:
            time.sleep(0.3)  # others may speak of a rank's death before it can be seen
            reasons += [(0, f"rank {rank} was killed by signal {-process.exitcode}")
                        for rank, process in enumerate(workers.values()) if (process.exitcode or 0) < 0]
    finally:
        for process in workers.values():
            process.kill()
            process.join()
    return min(reasons)[1] if reasons else None


def check(args, ranks):
    """All that can be known to be wrong before a rank computes."""
    models.shape_of(args.model)
    if args.fsdp and torch.__version__ < (2, 6):
        raise ValueError(f"--fsdp needs FSDP2, which torch has from 2.6 on; this is {torch.__version__}")
    open_data(args, 0, ranks)
    if args.use_knapformer or args.compare:
        scheduler_of(args, ranks)


def place(args):
    """This process: (rank or None, ranks, devices of this machine's ranks)."""
    devices = devices_of(args.gpus)
    if "RANK" not in os.environ:
        return None, len(devices), devices
    rank, ranks = int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", 1))
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))  # where a launcher does not say, all are here
    if not args.gpus:
        devices = ["cpu"] * local_ranks if devices[0] == "cpu" else devices[:local_ranks]
    if len(devices) != local_ranks:
        raise ValueError(f"there are {len(devices)} devices for the {local_ranks} ranks that were started here")
    return rank, ranks, devices


def main():
    args = arguments()
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    reason, code = None, 2
    try:
        rank, ranks, devices = place(args)
        check(args, ranks)
        code = 1
        if rank is None:
            reason = launch(args, devices)
        else:
            run_rank(args, rank, ranks, devices[local_rank], len(devices))
    except Exception as error:
        reason = sentence_of(error, args) if code == 2 else of_rank(rank, sentence_of(error, args))
        code = code if isinstance(error, (ValueError, OSError)) else 1
    except KeyboardInterrupt:
        reason, code = "interrupted", 130
    if reason:
        if code != 2 or local_rank == 0:  # all ranks of a machine find the same misuse
            print(f"train.py: {reason}", file=sys.stderr, flush=True)
        os._exit(code)  # no destructor may wait for other ranks


if __name__ == "__main__":
    main()
