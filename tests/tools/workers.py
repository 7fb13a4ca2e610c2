# SPDX-License-Identifier: Apache-2.0
"""Ranks for the tests of the Python package: processes of one machine that meet by env://, over gloo."""
import datetime
import json
import os
import socket
import sys
import traceback

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from refusal import refuses  # noqa: F401

TIMEOUT_S = 60


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _rank(rank, size, port, work, arguments, end):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    torch.set_num_threads(1)
    torch.manual_seed(1000 + rank)
    dist.init_process_group("gloo", init_method="env://", timeout=datetime.timedelta(seconds=TIMEOUT_S))
    try:
        work(*arguments)
        dist.barrier()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # the others see the connection break
    sys.stdout.flush()
    end.wait()
    os._exit(0)  # torch itself may abort while it takes a process group down


def run(size, work, *arguments):
    """work(*arguments) on `size` ranks; any failure is this process's."""
    end = mp.get_context("spawn").Barrier(size)
    mp.spawn(_rank, (size, free_port(), work, arguments, end), nprocs=size)


def gather(value):
    """Every rank's value, which JSON must hold. (all_gather_object would need NumPy.)"""
    text = json.dumps(value).encode()
    size = torch.tensor([len(text)])
    sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, size)
    record = torch.zeros(max(map(int, sizes)), dtype=torch.uint8)
    record[:len(text)] = torch.tensor(list(text), dtype=torch.uint8)
    records = [torch.zeros_like(record) for _ in sizes]
    dist.all_gather(records, record)
    return [json.loads(bytes(r[:int(n)].tolist())) for r, n in zip(records, sizes)]
