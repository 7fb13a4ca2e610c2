# SPDX-License-Identifier: Apache-2.0
"""Diffusion Transformers on packed tokens: DiT, and MMDiT with FLUX's double and single blocks.

    values, words, places --embed--> x (T, D) --stage--> predictions (T, VALUES)
    time, label, words ----embed--> cond (S, D) --'

The T tokens of a rank's S sequences stand one after the other, text first in each, without
padding; `lens` says how many each sequence has. All the work is in `model.stage`. It takes rows of
any sequences, or of pieces of them, and nothing outside it knows who computes them: that is what
knapformer.hooks asks for. No rows and no sequences are fine everywhere.
"""
import math

import torch
from torch import nn
from torch.nn import functional as F

from knapformer.nn import LayerNormModulate, PackedAttention

VALUES, WORDS, LABELS, TIME = 16, 64, 10, 256  # a token's values, vocabulary, labels, time features

SIZES = {"S": (384, 12, 6), "B": (768, 12, 12), "L": (1024, 24, 16), "XL": (1152, 28, 16)}
LONG = {"SMALL": "S", "BASE": "B", "LARGE": "L", "XLARGE": "XL"}


def shape_of(name):
    """"DiT-base", "MMDiT-XL", "MMDiT-d=64,layers=3,heads=4", "d=64,layers=2,heads=4" ->
    family, d, layers, heads."""
    head, dash, size = name.rpartition("-")
    family = {"dit": DiT, "mmdit": MMDiT, "": None if dash else DiT}.get(head.lower())
    if "=" in size:
        shape = dict(part.strip().partition("=")[::2] for part in size.split(","))
        if set(shape) == {"d", "layers", "heads"} and all(n.isdigit() for n in shape.values()):
            shape = tuple(int(shape[key]) for key in ("d", "layers", "heads"))
        else:
            shape = None
    else:
        shape = SIZES.get(LONG.get(size.upper(), size.upper())) if head else None
    if not family or not shape:
        raise ValueError(f'model "{name}" is unknown, expected DiT- or MMDiT- with S, B, L, XL, small, '
                         "base, large, xlarge or d=..,layers=..,heads=..")
    dim, layers, heads = shape
    if not layers or not heads or not dim or dim % (2 * heads):
        raise ValueError(f'model "{name}" has {dim} columns, {layers} layers and {heads} heads, expected one '
                         "or more of each, and heads of an even number of columns")
    return (family, *shape)


def build(name):
    family, *shape = shape_of(name)
    return family(*shape)


# ------------------------------------------------------------------------------ what a token is


def time_features(time):
    """(S) -> (S, TIME): cosines, then sines."""
    n = TIME // 2
    frequency = torch.exp(torch.arange(n, device=time.device) * (-math.log(10000) / n))
    angle = 1000 * time[:, None] * frequency
    return torch.cat((angle.cos(), angle.sin()), 1)


def rope_table(at, pairs):
    """Places (T, 3) of frame, y, x -> cosines and sines (T, 2, pairs). A quarter of a head's angles
    turn with the frame, of the rest one half with y and one with x."""
    frame = pairs // 4
    y = (pairs - frame) // 2
    angle = torch.cat([at[:, axis, None] * 10000 ** (-torch.arange(n, device=at.device) / max(n, 1))
                       for axis, n in enumerate((frame, y, pairs - frame - y))], 1)
    return torch.stack((angle.cos(), angle.sin()), 1)


def rotate(x, rope):
    """x (T, heads, head_dim) turned by rope (T, 2, head_dim / 2)."""
    cos, sin = rope[:, :, None].unbind(1)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


# --------------------------------------------------------------------------------------- blocks
#
# Rows go from block to block as (x, gate, u), which means x + gate * u: the next LayerNorm adds
# them up on its way through memory, instead of one more pass. gate: (S, D), one row a sequence.


def add_norm(norm, rows, shift, scale, lens):
    """x, and LN(x) (1 + scale) + shift, of rows that are added up."""
    x, gate, u = rows
    if u is None:  # before the first block
        return x, norm(x, scale, shift, lens)
    return norm(x, scale, shift, lens, gate=gate, u=u)


def heads_of(qkv, heads, rope):
    """(T, 3 D) -> q, k, v (T, heads, head_dim), the first two turned."""
    q, k, v = qkv.unflatten(1, (3, heads, qkv.shape[1] // 3 // heads)).unbind(1)
    return rotate(q, rope), rotate(k, rope), v


def zeroed(linear):
    """adaLN-Zero: blocks begin as the identity, and the model with predictions of 0."""
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


class Stream(nn.Module):
    """What a block has for one kind of tokens: all its weights, before attention and after it."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm = LayerNormModulate()
        self.mod = zeroed(nn.Linear(dim, 6 * dim))
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def before(self, rows, c, rope, lens):
        shift1, scale1, *rest = self.mod(c).chunk(6, 1)
        x, y = add_norm(self.norm, rows, shift1, scale1, lens)
        return heads_of(self.qkv(y), self.heads, rope), (x, rest)

    def after(self, o, kept, lens):
        x, (gate1, shift2, scale2, gate2) = kept
        x, y = add_norm(self.norm, (x, gate1, self.proj(o.flatten(1))), shift2, scale2, lens)
        return x, gate2, self.fc2(F.gelu(self.fc1(y), approximate="tanh"))


class Block(Stream):
    """DiT's: one kind of weights for all tokens."""

    def __init__(self, dim, heads):
        super().__init__(dim, heads)
        self.attention = PackedAttention()

    def forward(self, rows, c, rope, lens):
        qkv, kept = self.before(rows, c, rope, lens)
        return self.after(self.attention(*qkv, lens), kept, lens)


class DoubleBlock(nn.Module):
    """Text and visual tokens have weights of their own, and meet in attention."""

    def __init__(self, dim, heads):
        super().__init__()
        self.text, self.visual = Stream(dim, heads), Stream(dim, heads)
        self.attention = PackedAttention()

    def forward(self, text, visual, c, rope, kinds):
        """rope: of text, and of visual tokens."""
        text_qkv, text_kept = self.text.before(text, c, rope[0], kinds.text_lens)
        visual_qkv, visual_kept = self.visual.before(visual, c, rope[1], kinds.visual_lens)
        o = self.attention(*(kinds.join(*both) for both in zip(text_qkv, visual_qkv)), kinds.lens)
        text_o, visual_o = kinds.split(o)
        return (self.text.after(text_o, text_kept, kinds.text_lens),
                self.visual.after(visual_o, visual_kept, kinds.visual_lens))


class SingleBlock(nn.Module):
    """One kind of weights again, attention and MLP side by side."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm = LayerNormModulate()
        self.mod = zeroed(nn.Linear(dim, 3 * dim))
        self.up = nn.Linear(dim, 7 * dim)  # q, k, v; and what the MLP has inside
        self.down = nn.Linear(5 * dim, dim)
        self.attention = PackedAttention()

    def forward(self, rows, c, rope, lens):
        shift, scale, gate = self.mod(c).chunk(3, 1)
        x, y = add_norm(self.norm, rows, shift, scale, lens)
        qkv, hidden = self.up(y).split((3 * x.shape[1], 4 * x.shape[1]), 1)
        o = self.attention(*heads_of(qkv, self.heads, rope), lens)
        return x, gate, self.down(torch.cat((o.flatten(1), F.gelu(hidden, approximate="tanh")), 1))


BLOCKS = Block, DoubleBlock, SingleBlock  # what FSDP gathers the parameters of, one by one


class Last(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = LayerNormModulate()
        self.mod = zeroed(nn.Linear(dim, 2 * dim))
        self.out = zeroed(nn.Linear(dim, VALUES))

    def forward(self, rows, c, lens):
        return self.out(add_norm(self.norm, rows, *self.mod(c).chunk(2, 1), lens)[1])


class Kinds:
    """Which rows are text (tag 1) and which visual (0), and how many each sequence has of both. Waits for a GPU,
    once a step; the blocks do not."""

    def __init__(self, tag, lens):
        text = tag != 0
        self.rows = text.nonzero()[:, 0], (~text).nonzero()[:, 0]
        self.place = torch.cat(self.rows).argsort()  # of each row, where all text stands first
        ends = torch.tensor([0, *lens], device=tag.device).cumsum(0)
        self.lens = lens
        self.text_lens = F.pad(text.cumsum(0), (1, 0))[ends].diff().tolist()
        self.visual_lens = [n - n_text for n, n_text in zip(lens, self.text_lens)]

    def split(self, x):
        return x[self.rows[0]], x[self.rows[1]]

    def join(self, text, visual):
        return torch.cat((text, visual))[self.place]

    def add(self, text, visual):
        """Both kinds' (x, gate, u) as one tensor, added up."""
        n_text, n_visual = (torch.tensor(lens, dtype=torch.long, device=text[0].device)
                             for lens in (self.text_lens, self.visual_lens))
        return self.join(*(x + gate.repeat_interleave(n, 0) * u
                           for (x, gate, u), n in ((text, n_text), (visual, n_visual))))


# --------------------------------------------------------------------------------------- models


class DiTStage(nn.Module):
    packed_tokens = True

    def __init__(self, dim, layers, heads):
        super().__init__()
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.last = Last(dim)

    def forward(self, x, lens, rope, cond):
        c = F.silu(cond)
        rows = x, None, None
        for block in self.blocks:
            rows = block(rows, c, rope, lens)
        return self.last(rows, c, lens)


class MMDiTStage(nn.Module):
    """A third of the blocks are double, as in FLUX."""
    packed_tokens = True

    def __init__(self, dim, layers, heads):
        super().__init__()
        double = max(1, layers // 3)
        self.double_blocks = nn.ModuleList(DoubleBlock(dim, heads) for _ in range(double))
        self.single_blocks = nn.ModuleList(SingleBlock(dim, heads) for _ in range(layers - double))
        self.last = Last(dim)

    def forward(self, x, lens, rope, cond, tag):
        c = F.silu(cond)
        kinds = Kinds(tag, lens)
        text, visual = ((rows, None, None) for rows in kinds.split(x))
        ropes = kinds.split(rope)
        for block in self.double_blocks:
            text, visual = block(text, visual, c, ropes, kinds)
        rows = kinds.add(text, visual), None, None
        for block in self.single_blocks:
            rows = block(rows, c, rope, lens)
        return self.last(rows, c, lens)


class DiT(nn.Module):
    stage_of = DiTStage

    def __init__(self, dim, layers, heads):
        super().__init__()
        self.pairs = dim // heads // 2
        self.patch = nn.Linear(VALUES, dim)
        self.word = nn.Embedding(WORDS, dim)
        self.time = nn.Sequential(nn.Linear(TIME, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.label = nn.Embedding(LABELS + 1, dim)  # the last: not told
        self.caption = nn.EmbeddingBag(WORDS + 1, dim, mode="mean", padding_idx=WORDS)
        self.stage = self.stage_of(dim, layers, heads)

    def embed(self, value, word, at, time, label, lens):
        """value (T, VALUES), word (T) or -1 of a visual token, at (T, 3) frame, y, x; time, label (S)."""
        x = torch.where(word[:, None] < 0, self.patch(value), self.word(word.clamp(min=0)))
        n = torch.tensor(lens, dtype=torch.long, device=word.device)
        caption = self.caption(word.where(word >= 0, torch.full_like(word, WORDS)), n.cumsum(0) - n)
        cond = self.time(time_features(time)) + self.label(label) + caption
        return x, lens, rope_table(at, self.pairs), cond

    def forward(self, value, word, at, time, label, lens):
        """Predictions (T, VALUES)."""
        return self.stage(*self.embed(value, word, at, time, label, lens))


class MMDiT(DiT):
    stage_of = MMDiTStage

    def forward(self, value, word, at, time, label, lens):
        return self.stage(*self.embed(value, word, at, time, label, lens), word >= 0)
