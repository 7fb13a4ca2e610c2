# SPDX-License-Identifier: Apache-2.0
"""Training data of any size as packed rows: a mix drawn on the spot, or a folder of files.

    files --read--> cells of 8 x 8 pixels --patchify--> tokens of 2 x 2 cells -+-noise, time--> Batch
    mix ---scene--> cells -----------------------------------------------------'

A dataset is asked for a step, and gives what its rank has then: DataLoader(data, batch_size=None,
sampler=range(steps)). What a sample is depends on seed, step and its number, never on its rank.
"""
import dataclasses
import importlib.util
import math
import os
import re
import typing
import zlib

import torch
from torch.nn import functional as F

import knapformer
from models import LABELS, VALUES, WORDS

IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm")
VIDEOS = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg")
MOST_FRAMES = 321  # of a video: 20 seconds at 16 a second; of a longer one the beginning is used
MOST_WORDS = 256   # of a caption
MOST_TEXT = 392    # of a sample of a mix
RANK_TOKENS = 2500


def open_data(spec, rank, ranks, seed=0, scale=None, batch_size=8, max_tokens=16384):
    """"synthetic:MIX" or a folder, as the steps of one rank."""
    kind, colon, mix = spec.partition(":")
    if colon and kind == "synthetic":
        return Synthetic(mix, rank, ranks, seed, scale)
    return Folder(spec, rank, ranks, seed, batch_size, max_tokens)


# --------------------------------------------------------------------------- samples and batches


class Sample(typing.NamedTuple):
    value: torch.Tensor  # (n, VALUES) visual tokens
    at: torch.Tensor     # (n, 3) their frame, y, x
    words: list          # of the text
    label: int


@dataclasses.dataclass
class Batch:
    """What a model is asked at one step on one rank: T tokens of S sequences, text first in each."""
    value: torch.Tensor   # (T, VALUES) noisy; 0 of text
    word: torch.Tensor    # (T) of text; -1: visual
    at: torch.Tensor      # (T, 3) frame, y, x
    time: torch.Tensor    # (S) how noisy, 0 to 1
    label: torch.Tensor   # (S)
    lens: list            # (S)
    target: torch.Tensor  # (T, VALUES) what it shall predict
    bad: list             # a sentence for each file that could not be used

    def to(self, device):
        moved = {name: value.to(device) for name, value in vars(self).items() if torch.is_tensor(value)}
        return dataclasses.replace(self, **moved)

    def inputs(self):
        return self.value, self.word, self.at, self.time, self.label, self.lens


def bits(*numbers):
    """64 random bits, always the same for the same numbers: splitmix64, chained."""
    z = 0
    for number in numbers:
        z = (z ^ number) + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        z = (z ^ z >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        z ^= z >> 31
    return z


def chance(*numbers):
    return torch.Generator().manual_seed(bits(*numbers) >> 1)


def noisy(sample, generator):
    """A sample as rows. Rectified flow: a straight way from data at time 0 to noise at time 1, along
    which the model shall predict the velocity, noise - data."""
    time = torch.randn(1, generator=generator).sigmoid()  # which dwells where data and noise are both seen
    told = torch.rand(1, generator=generator).item() >= 0.1  # else the model learns to do without
    noise = torch.randn(sample.value.shape, generator=generator)
    n_text, n = len(sample.words), len(sample.value)
    text_at = torch.zeros(n_text, 3, dtype=torch.long)
    text_at[:, 0] = -1 - torch.arange(n_text)  # text counts backwards on the frame axis
    return {"value": F.pad((1 - time) * sample.value + time * noise, (0, 0, n_text, 0)),
            "word": torch.tensor(sample.words + [-1] * n, dtype=torch.long),
            "at": torch.cat((text_at, sample.at)),
            "time": time, "label": torch.tensor([sample.label if told else LABELS]),
            "target": F.pad(noise - sample.value, (0, 0, n_text, 0))}


NOTHING = {"value": torch.zeros(0, VALUES), "word": torch.zeros(0, dtype=torch.long),
           "at": torch.zeros(0, 3, dtype=torch.long), "time": torch.zeros(0),
           "label": torch.zeros(0, dtype=torch.long), "target": torch.zeros(0, VALUES)}


def batch_of(parts, bad=()):
    """parts: what noisy() made, of any number of samples."""
    packed = {name: torch.cat([empty] + [part[name] for part in parts]) for name, empty in NOTHING.items()}
    return Batch(lens=[len(part["word"]) for part in parts], bad=list(bad), **packed)


def patchify(frames):
    """Frames (2 h, 2 w, 3) of colours, of any sizes -> tokens (n, VALUES) and their places (n, 3)."""
    value, at = [torch.zeros(0, VALUES)], [torch.zeros(0, 3, dtype=torch.long)]
    for i, colour in enumerate(frames):
        cells = torch.cat((colour, colour.mean(2, keepdim=True)), 2)  # the fourth channel: brightness
        h, w = cells.shape[0] // 2, cells.shape[1] // 2
        value.append(cells.view(h, 2, w, 2, 4).transpose(1, 2).reshape(h * w, VALUES))
        at.append(torch.cartesian_prod(torch.tensor([i]), torch.arange(h), torch.arange(w)))
    return torch.cat(value), torch.cat(at)


# ------------------------------------------------------------------------------------------ a mix


def scene(frames, height, width, label, generator):
    """Colours (frames, height, width, 3): a shape that moves over a gradient, and a little grain.
    The label is the kind of shape: from star to square, full or ring."""
    draw = torch.rand(14, generator=generator)
    colour, place = (2 * draw[:9] - 1).view(3, 3), 2 * draw[9:11] - 1
    speed, size = draw[11:13] - 0.5, 0.3 + 0.5 * draw[13]
    t = torch.linspace(0, 1, frames)[:, None, None]
    y, x = torch.linspace(-1, 1, height)[:, None], torch.linspace(-1, 1, width)
    dy, dx = (axis - at - move * t for axis, at, move in zip((y, x), place, speed))
    power = (0.6, 1, 2, 4, 16)[label // 2]
    far = (dy.abs() ** power + dx.abs() ** power) ** (1 / power) / size  # (frames, height, width)
    inside = (far < 1) & (far > 0.5 * (label % 2))
    ground = torch.lerp(colour[0], colour[1], ((x + y + 2) / 4)[:, :, None])
    grain = torch.randn(frames, height, width, 3, generator=generator)
    return torch.where(inside[..., None], colour[2], ground) + 0.05 * grain


class Synthetic:
    """A mix of knapformer.mix: step s draws that of seed + s. On n ranks, fewer than the mix has,
    sample j of its m goes to rank floor(j n / m). Every sample's text and visual tokens are
    multiplied by `scale`, which leaves 2500 tokens a rank if not given."""

    def __init__(self, mix, rank, ranks, seed, scale):
        if mix == "wan":
            raise ValueError('mix "wan" does not tell text from visual tokens, expected another')
        self.mix, self.rank, self.seed = mix, rank, seed
        self.mix_ranks = max(ranks, len(knapformer.mix(mix)))
        lens = knapformer.mix(mix, self.mix_ranks, seed)
        tokens, m = sum(map(sum, lens)), sum(map(len, lens))
        self.scale = scale or min(1, RANK_TOKENS * ranks / max(tokens, 1))
        home = [r for r, row in enumerate(lens) for _ in row]
        if ranks < self.mix_ranks:
            home = [j * ranks // m for j in range(m)]
        self.mine = [j for j in range(m) if home[j] == rank]
        self.title = (f"{mix} at scale {self.scale:.4g}: {m} sequences, "
                      f"about {tokens * self.scale:.0f} tokens a step")

    def __getitem__(self, step):
        lens = knapformer.mix(self.mix, self.mix_ranks, self.seed + step)
        samples = [(length, self.text_of(step, r, i)) for r, row in enumerate(lens)
                   for i, length in enumerate(row)]
        return batch_of([self.draw(step, j, *samples[j]) for j in self.mine])

    def text_of(self, step, r, i):
        """How many of the tokens of sample i on rank r of the mix are text, as the mix draws them."""
        return bits((self.seed + step << 40 ^ r << 20 ^ i) & 0xFFFFFFFFFFFFFFFF) % (MOST_TEXT + 1)

    def draw(self, step, j, length, text):
        generator = chance(self.seed, step, j)
        visual = length - text
        n = max(math.floor(visual * self.scale + 0.5), min(visual, 1))
        # A mix has squares, in as few frames as make the number; scaled, all three sides shrink alike.
        latent = next((f for f in range(1, visual + 1) if math.isqrt(visual // f) ** 2 * f == visual), 1)
        frames = min(max(math.floor(latent * self.scale ** (1 / 3) + 0.5), 1), latent)
        height = max(math.isqrt(max(n // frames, 1)), 1)
        width = max(-(-n // (frames * height)), 1)
        label = int(torch.randint(LABELS, (1,), generator=generator))
        value, at = patchify(scene(frames, 2 * height, 2 * width, label, generator))
        about = torch.randint(WORDS - LABELS, (8,), generator=generator).add(LABELS).tolist()
        words = [(label, *about)[i % 9] for i in range(math.floor(text * self.scale + 0.5))]
        return noisy(Sample(value[:n], at[:n], words, label), generator)


# --------------------------------------------------------------------------------------- a folder


class Item(typing.NamedTuple):
    kind: str    # image, keyframes, video
    stem: str    # of which the name, or the .txt of that name, is the caption
    files: list


def scan(root):
    """The samples of a folder: images and videos; of folders in it, their images as keyframes of one."""
    items = []
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = [os.path.join(folder, name) for name in sorted(files) if not name.startswith(".")]
        images = [path for path in paths if path.lower().endswith(IMAGES)]
        if folder != root and images:
            items.append(Item("keyframes", folder, images))
        elif images:
            items += [Item("image", os.path.splitext(path)[0], [path]) for path in images]
        items += [Item("video", os.path.splitext(path)[0], [path]) for path in paths
                  if path.lower().endswith(VIDEOS)]
    return items


def cells(image):
    """A picture cut to multiples of 16 pixels, -1 to 1, one mean for 8 x 8: (h / 8, w / 8, 3)."""
    w, h = (n // 16 * 16 for n in image.size)
    if not w or not h:
        raise ValueError("{} x {} pixels, expected 16 x 16 or more".format(*image.size))
    left, top = (image.size[0] - w) // 2, (image.size[1] - h) // 2
    image = image.crop((left, top, left + w, top + h)).convert("RGB").reduce(8)
    data = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return data.view(h // 8, w // 8, 3) / 127.5 - 1


def read_image(path):
    from PIL import Image, ImageOps
    with Image.open(path) as image:
        return [cells(ImageOps.exif_transpose(image))]


def read_video(path):
    """The first frame alone, then four to one, as video autoencoders do."""
    import av
    av.logging.set_level(av.logging.PANIC)  # errors are raised
    latent, frames = [], []
    with av.open(path) as container:
        for i, frame in enumerate(container.decode(video=0)):
            if i == MOST_FRAMES:
                break
            frames.append(cells(frame.to_image()))
            if i % 4 == 0:
                latent.append(torch.stack(frames).mean(0))
                frames = []
    if not latent:
        raise ValueError("no frames")
    return latent


def shrink(frames, most):
    """Frames such that they make at most so many tokens: smaller ones, and where that is not enough fewer."""
    tokens = sum(len(f) * f.shape[1] // 4 for f in frames)
    if tokens <= most:
        return frames
    factor, kept = math.sqrt(most / tokens), []
    for f in frames:
        h = min(max(int(len(f) // 2 * factor), 1), most)
        w = min(max(int(f.shape[1] // 2 * factor), 1), most // h)
        most -= h * w
        kept.append(F.adaptive_avg_pool2d(f.permute(2, 0, 1), (2 * h, 2 * w)).permute(1, 2, 0))
        if most <= 0:
            break
    return kept


def caption(stem):
    """Words of the .txt beside a sample, or of its name, hashed into the vocabulary."""
    text = os.path.basename(stem)
    if os.path.isfile(stem + ".txt"):
        with open(stem + ".txt", encoding="utf-8", errors="replace") as file:
            text = file.read()
    return [zlib.crc32(word.encode()) % WORDS for word in re.findall(r"[^\W_]+", text.lower())][:MOST_WORDS]


class Folder:
    """batch_size files a rank and step, all in a new order each epoch, no file twice in it. The last
    step of an epoch has what is left."""
    scale = 1

    def __init__(self, root, rank, ranks, seed, batch_size, max_tokens):
        if not os.path.isdir(root):
            raise ValueError(f'"{root}" is no folder, expected one, or synthetic:MIX')
        self.items = scan(root)
        if not self.items:
            raise ValueError(f'"{root}" has no images, keyframe folders or videos')
        for module, package, kinds in (("PIL", "Pillow", None), ("av", "PyAV (package av)", "video")):
            needs = [item for item in self.items if kinds in (None, item.kind)]
            if needs and not importlib.util.find_spec(module):
                raise ImportError(f"{needs[0].files[0]} needs {package}, which is not installed")
        self.rank, self.ranks, self.seed = rank, ranks, seed
        self.batch_size, self.max_tokens = batch_size, max_tokens
        count = [sum(item.kind == kind for item in self.items) for kind in ("image", "keyframes", "video")]
        self.title = "{}: {} images, {} keyframe folders, {} videos".format(root, *count)

    def __getitem__(self, step):
        a_step = self.ranks * self.batch_size
        epoch, i = divmod(step, math.ceil(len(self.items) / a_step))
        order = torch.randperm(len(self.items), generator=chance(self.seed, epoch)).tolist()
        parts, bad = [], []
        for j in order[i * a_step:(i + 1) * a_step][self.rank::self.ranks]:
            try:
                parts.append(noisy(self.read(self.items[j]), chance(self.seed, step, j)))
            except ValueError as error:
                bad.append(str(error))
        return batch_of(parts, bad)

    def read(self, item):
        frames = []
        for path in item.files:
            try:
                frames += read_video(path) if item.kind == "video" else read_image(path)
            except Exception as error:  # decoders raise what they like
                what = getattr(error, "strerror", None) or str(error) or type(error).__name__
                raise ValueError(f"{path}: {' '.join(what.split())}") from error
        value, at = patchify(shrink(frames, self.max_tokens))
        return Sample(value, at, caption(item.stem), LABELS)
