# SPDX-License-Identifier: Apache-2.0
"""The Diffusion Transformer of train/ in plain PyTorch: the proof of its numbers (tests/torch/torch_train.py)
and what it is timed beside (bench/train_torch.py). Packed: T tokens of all sequences one after the
other, no padding. Names and shapes of tensors are those of train/train.h.
"""
import dataclasses
import json
import math
import struct

import torch
from torch import nn
from torch.nn import functional as F

VALUES, WORDS, LABELS, TIME = 16, 64, 10, 256
EPS = 1e-6
LAYERED = ("qkv", "proj", "fc1", "fc2")  # in our file one tensor of all layers

# ----------------------------------------------------------------------------- the tensor file

DTYPES = {"F32": torch.float32, "F64": torch.float64, "I32": torch.int32, "I64": torch.int64}


def read_tensors(path):
    """The tensors of a safetensors file, by name: 8 bytes of length, JSON, data."""
    with open(path, "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = bytearray(file.read())
    header.pop("__metadata__", None)
    return {name: torch.frombuffer(data, dtype=DTYPES[t["dtype"]], count=math.prod(t["shape"]),
                                   offset=t["data_offsets"][0]).reshape(t["shape"])
            for name, t in header.items()}


# ----------------------------------------------------------------------------------- the model


@dataclasses.dataclass
class Rows:
    """Tokens of all sequences. time and label are the same in all rows of a sequence."""
    value: torch.Tensor  # (T, VALUES)
    word: torch.Tensor   # (T) of text; -1: visual
    at: torch.Tensor     # (T, 3) frame, y, x
    time: torch.Tensor   # (T)
    label: torch.Tensor  # (T)
    lens: list           # rows of each sequence, one or more


def time_features(time):
    """(n) -> (n, TIME): cosines, then sines."""
    frequency = torch.exp(torch.arange(TIME // 2, dtype=time.dtype) * (-math.log(10000) / (TIME // 2)))
    angle = 1000 * time[:, None] * frequency
    return torch.cat((angle.cos(), angle.sin()), 1)


def rope_table(at, pairs, dtype):
    """Cosines and sines (T, 1, pairs) of positions: the first quarter of a head's angles turn with
    the frame, of the rest one half with y and one with x."""
    frame = pairs // 4
    y = (pairs - frame) // 2
    angle = torch.cat([at[:, axis, None] * 10000 ** (-torch.arange(n, dtype=dtype) / n)
                       for axis, n in enumerate((frame, y, pairs - frame - y))], 1)
    return angle.cos()[:, None], angle.sin()[:, None]


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def attention(q, k, v, lens):
    """(T, heads, head_dim), each sequence by itself. SDPA wants (1, heads, rows, head_dim): views."""
    parts = [F.scaled_dot_product_attention(*(t.transpose(0, 1)[None] for t in part))[0].transpose(0, 1)
             for part in zip(q.split(lens), k.split(lens), v.split(lens))]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def modulate(x, shift, scale):
    """LN(x) (1 + scale) + shift, where the last two are (1, D) or (T, D)."""
    return torch.addcmul(shift, F.layer_norm(x, x.shape[1:], eps=EPS), 1 + scale)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, x, mod, rope, lens):
        shift1, scale1, gate1, shift2, scale2, gate2 = mod
        qkv = self.qkv(modulate(x, shift1, scale1)).view(len(x), 3, self.heads, -1)
        q, k, v = qkv.unbind(1)
        o = attention(rotate(q, *rope), rotate(k, *rope), v, lens)
        x = torch.addcmul(x, gate1, self.proj(o.reshape(x.shape)))
        hidden = F.gelu(self.fc1(modulate(x, shift2, scale2)), approximate="tanh")
        return torch.addcmul(x, gate2, self.fc2(hidden))


class DiT(nn.Module):
    def __init__(self, dim, layers, heads):
        super().__init__()
        self.dim, self.pairs = dim, dim // heads // 2
        self.patch = nn.Linear(VALUES, dim)
        self.word = nn.Embedding(WORDS, dim)
        self.time1 = nn.Linear(TIME, dim)
        self.time2 = nn.Linear(dim, dim)
        self.label = nn.Embedding(LABELS + 1, dim)
        self.mod = nn.Linear(dim, (6 * layers + 2) * dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.out = nn.Linear(dim, VALUES)

    def tokens(self, rows):
        text = self.word(rows.word.clamp(min=0))
        return torch.where(rows.word[:, None] < 0, self.patch(rows.value), text)

    def modulation(self, rows):
        """6 layers + 2 tensors: of one sequence (1, D), which broadcasts, otherwise (T, D)."""
        lens = torch.tensor(rows.lens)
        first = lens.cumsum(0) - lens
        c = self.time2(F.silu(self.time1(time_features(rows.time[first])))) + self.label(rows.label[first])
        mod = self.mod(F.silu(c)).view(len(lens), -1, self.dim).unbind(1)
        return mod if len(lens) == 1 else [m.repeat_interleave(lens, 0) for m in mod]

    def forward(self, rows):
        """Predictions (T, VALUES)."""
        x = self.tokens(rows)
        mod = self.modulation(rows)
        rope = rope_table(rows.at, self.pairs, x.dtype)
        for i, block in enumerate(self.blocks):
            x = block(x, mod[6 * i:6 * i + 6], rope, rows.lens)
        return self.out(modulate(x, *mod[-2:]))

    def named(self, name):
        """The parameters that "qkv_w" means: all layers' of the blocks, or one."""
        stem, _, kind = name.partition("_")
        attribute = "bias" if kind == "b" else "weight"
        return [getattr(getattr(owner, stem), attribute)
                for owner in (self.blocks if stem in LAYERED else [self])]

    def pieces(self, name, tensor):
        """Our tensor of that name, cut and shaped as these parameters."""
        parameters = self.named(name)
        return tensor.reshape(len(parameters), *parameters[0].shape)

    @torch.no_grad()
    def load(self, tensors):
        for name in TENSORS:
            for parameter, value in zip(self.named(name), self.pieces(name, tensors[name])):
                parameter.copy_(value)


TENSORS = ["word", "label"] + [f"{stem}_{kind}" for kind in "wb"
                               for stem in ("patch", "time1", "time2", "mod", *LAYERED, "out")]


def loss_of(prediction, target, visual):
    """The mean of squares over visual rows; nothing is asked of text."""
    return F.mse_loss(prediction[visual], target[visual])


def optimizer_of(model, lr, betas, eps, weight_decay, **how):
    """AdamW. Decay on matrices only: not on biases, nor on embeddings, of which a step uses a few rows."""
    decayed = [p for name in TENSORS if name.endswith("_w") for p in model.named(name)]
    others = [p for name in TENSORS if not name.endswith("_w") for p in model.named(name)]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, **how)


@torch.no_grad()
def follow(ema, model, decay):
    """The exponential moving average of a model's parameters: another model's."""
    torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 1 - decay)
