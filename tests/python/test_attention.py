# SPDX-License-Identifier: Apache-2.0
"""knapformer.attention: every backend against softmax in double precision, result and gradients, with
lengths and with segments of a plan; what a rank without rows gives back; who is chosen; misuse.
flash-attn is not here: a stand-in with its signature takes its place, so that what is handed to it is
looked at."""

import importlib
import types

import torch
from refusal import refuses

import knapformer

module = importlib.import_module("knapformer._attention")
attention = module.attention
SDPA = torch.__version__ >= (2, 1)
ANY = (["sdpa"] if SDPA else []) + ["plain"]  # of any type
CPU = ANY + ["kernel"]


def plan_of(shapes):
    """A plan as attention sees it: segments (seq, rows, offset, first_head, heads) of (rows, heads)."""
    offsets = [sum(r * h for r, h in shapes[:i]) for i in range(len(shapes))]
    segments = [(7 * i, rows, offsets[i], i % 2, heads) for i, (rows, heads) in enumerate(shapes)]
    return types.SimpleNamespace(segments=segments)


def wanted(shapes, q, k, v, scale):
    """o (pairs, head_dim), head by head."""
    o, at = torch.zeros_like(q), 0
    for rows, heads in shapes:
        end = at + rows * heads
        for h in range(heads if rows else 0):
            q1, k1, v1 = (t[at + h:end:heads] for t in (q, k, v))
            o[at + h:end:heads] = torch.softmax(scale * (q1 @ k1.t()), -1) @ v1
        at = end
    return o


def gradients(run, tensors, d_o):
    """o, dq, dk, dv."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    o = run(*leaves)
    assert o.shape == leaves[0].shape and o.dtype == leaves[0].dtype
    return [o.detach(), *torch.autograd.grad(o, leaves, d_o.reshape(o.shape))]


def compare(what, got, want, bounds):
    for name, a, b, bound in zip("o dq dk dv".split(), got, want, bounds):
        size = b.abs().max().clamp(min=0.1)  # of one row dq and dk are 0
        error = ((a.reshape(b.shape).double() - b).abs().max() / size).item()
        print(f"{what} {name:2} {error:.1e}")
        assert error <= bound, f"{what} {name}: {error} > {bound}"


BOUNDS = {torch.float32: (1e-6, 1e-5, 1e-5, 1e-5), torch.float64: (1e-13,) * 4,
          torch.bfloat16: (2e-2,) * 4, torch.float16: (3e-3,) * 4}


def all_backends():
    """Ragged heads, empty segments, single rows, odd sizes; scale given or not."""
    ragged = [(70, 2), (0, 3), (1, 3), (17, 1), (33, 1), (0, 0), (5, 0), (40, 5), (130, 5)]
    for shapes in (ragged, [(1, 1)], [(65, 3)]):
        for head_dim, scale in ((1, None), (5, 0.7), (64, None), (72, -0.1), (256, None)):
            n = sum(r * h for r, h in shapes)
            data = [torch.randn(n, head_dim) for _ in range(4)]
            for dtype, names in ((torch.float32, CPU), (torch.float64, ANY)):
                *qkv, d_o = (t.to(dtype) for t in data)
                exact = [t.double() for t in qkv]
                real = head_dim ** -0.5 if scale is None else scale
                want = gradients(lambda *qkv: wanted(shapes, *qkv, real), exact, d_o.double())
                for name in names:
                    got = gradients(lambda *qkv: attention(*qkv, plan_of(shapes), scale, name), qkv, d_o)
                    compare(f"{name} {dtype} head_dim {head_dim}", got, want, BOUNDS[dtype])


def halves():
    """Not the kernel's: it falls to others by itself."""
    shapes = [(30, 3), (1, 3), (17, 2)]
    for dtype in (torch.bfloat16, torch.float16):
        *qkv, d_o = (torch.randn(sum(r * h for r, h in shapes), 24).to(dtype) for _ in range(4))
        exact = [t.double() for t in qkv]
        want = gradients(lambda *qkv: wanted(shapes, *qkv, 24 ** -0.5), exact, d_o.double())
        for name in ANY + [None]:
            got = gradients(lambda *qkv: attention(*qkv, plan_of(shapes), backend=name), qkv, d_o)
            compare(f"{name} {dtype}", got, want, BOUNDS[dtype])


def lengths():
    """A list, a tensor and a plan mean the same, and so do strided views of one qkv."""
    lens, heads, head_dim = [40, 0, 1, 25], 3, 16
    packed = torch.randn(sum(lens), 3, heads, head_dim)
    d_o = torch.randn(heads, sum(lens), head_dim).transpose(0, 1)
    flat = [t.reshape(-1, head_dim) for t in packed.unbind(1)]
    shapes = [(n, heads) for n in lens]
    exact = [t.double() for t in flat]
    want = gradients(lambda *qkv: wanted(shapes, *qkv, head_dim ** -0.5), exact, d_o.double())
    plan = plan_of(shapes)
    for name in CPU:
        for given in (lens, torch.tensor(lens), torch.tensor(lens, dtype=torch.int32), plan):
            leaf = packed.clone().requires_grad_()
            o = attention(*leaf.unbind(1), given, backend=name)
            assert o.shape == d_o.shape
            grad, = torch.autograd.grad(o, leaf, d_o)
            compare(f"{name} strided", [o.detach(), *grad.unbind(1)], want, BOUNDS[torch.float32])
        flat_o = attention(*flat, plan, backend=name)
        assert torch.equal(flat_o.reshape(d_o.shape), attention(*packed.unbind(1), lens, backend=name)), name


def real_plan():
    """Each rank's segments of a plan that splits a sequence, and all ranks' together."""
    lens, heads, head_dim = [[300, 40], [20]], 3, 8
    plan = knapformer.plan(lens, bags=2, model="d=24,layers=2,heads=3")
    whole = [torch.randn(3, n, heads, head_dim).unbind() for rank in lens for n in rank]
    seen = 0
    for rank in range(2):
        segments = plan.at(rank).segments
        mine = [[t[:, s.first_head:s.first_head + s.heads] for t in whole[s.seq]] for s in segments]
        packed = (torch.cat([t.reshape(-1, head_dim) for t in parts]) for parts in zip(*mine))
        o = attention(*packed, plan.at(rank))
        for s, (q, k, v) in zip(segments, mine):
            part = o[s.offset:s.offset + s.rows * s.heads].reshape(s.rows, s.heads, head_dim)
            assert torch.allclose(part, attention(q, k, v, [s.rows]), atol=1e-6), (rank, s)
            seen += s.rows * s.heads
    assert seen == 360 * heads


def double_precision():
    shapes = [(3, 2), (0, 1), (1, 2), (4, 1)]
    for name in ANY:
        qkv = [torch.randn(12, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
        assert torch.autograd.gradcheck(lambda *qkv: attention(*qkv, plan_of(shapes), 0.8, name), qkv)


def once_only():
    """The kernel has no second derivative: an error, and not a wrong number."""
    q = torch.randn(5, 2, 8, requires_grad=True)
    o = attention(q, q, q, [5], backend="kernel")
    grad, = torch.autograd.grad(o.square().sum(), q, create_graph=True)
    refuses(grad.sum().backward, "differentiate twice", kind=RuntimeError)


def nothing_to_do():
    """Other ranks wait in the backward pass of what made q, k and v: it must be reached for all three."""
    empty = ((plan_of([]), (0, 8)), (plan_of([]), (0, 4, 8)), (plan_of([(0, 4), (0, 2)]), (0, 8)),
             (plan_of([(5, 0)]), (0, 8)), ([], (0, 4, 8)), ([0, 0], (0, 4, 8)), ([3, 4], (7, 0, 8)),
             (torch.zeros(0, dtype=torch.int64), (0, 4, 8)))
    for name in CPU + [None]:
        for plan, shape in empty:
            leaves = [torch.ones(shape, requires_grad=True) for _ in range(3)]
            reached = []
            made = [2 * t for t in leaves]
            for i, t in enumerate(made):
                t.register_hook(lambda _, i=i: reached.append(i))
            o = attention(*made, plan, backend=name)
            assert o.shape == shape and o.requires_grad
            o.sum().backward()
            assert sorted(reached) == [0, 1, 2], (name, shape, reached)
            assert all(t.grad is not None and t.grad.shape == shape for t in leaves)


def flash_glue():
    """One call for each run of segments with as many heads, on views, in the type that was given."""
    calls = []

    def stand_in(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
                 softmax_scale=None, causal=False):
        assert cu_seqlens_q is cu_seqlens_k and cu_seqlens_q.dtype == torch.int32
        assert dropout_p == 0 and not causal
        lens = (cu_seqlens_q[1:] - cu_seqlens_q[:-1]).tolist()
        assert max_seqlen_q == max_seqlen_k == max(lens) and min(lens) > 0
        calls.append((q.data_ptr(), tuple(q.shape), lens))
        return attention(q, k, v, lens, softmax_scale, "plain")

    shapes = [(9, 2), (4, 2), (0, 5), (6, 2), (3, 1), (8, 2)]
    n = sum(r * h for r, h in shapes)
    *qkv, d_o = (torch.randn(n, 16) for _ in range(4))
    want = gradients(lambda *qkv: wanted(shapes, *qkv, 0.3), [t.double() for t in qkv], d_o.double())
    module.flash_attn_varlen_func = stand_in
    try:
        some = [shape for shape in shapes if shape[0]]
        got = gradients(lambda *qkv: module._flash(*qkv, some, 0.3), qkv, d_o)
        compare("flash", got, want, BOUNDS[torch.float32])
        assert [call[1] for call in calls] == [(19, 2, 16), (3, 1, 16), (8, 2, 16)]
        assert [call[2] for call in calls] == [[9, 4, 6], [3], [8]]
        assert [(call[0] - calls[0][0]) // 64 for call in calls] == [0, 38, 41]  # no copies
        refuses(lambda: attention(*qkv, plan_of(shapes), backend="flash"), "flash", "cpu")
    finally:
        module.flash_attn_varlen_func = None


def choice():
    """The first that takes the tensors: this torch's own where there is one, then the kernel."""
    fp32, kept = torch.float32, module.BACKENDS
    for dtype, head_dim, scale, without in (
            (fp32, 8, None, "kernel"), (torch.float64, 8, None, "plain"), (torch.bfloat16, 8, None, "plain"),
            (fp32, 257, None, "plain"), (fp32, 8, 0.0, "plain"), (fp32, 8, 1e-40, "plain")):
        used = []
        module.BACKENDS = {name: (refuses, lambda q, *_, name=name: used.append(name) or q)
                           for name, (refuses, _) in kept.items()}
        q = torch.randn(3, 2, head_dim).to(dtype)
        attention(q, q, q, [3], scale)
        module.BACKENDS = kept
        assert used == ["sdpa" if SDPA else without], (dtype, head_dim, scale, used)
    even = attention(q, q, torch.arange(6.).reshape(3, 2, 1).expand(3, 2, 8).contiguous(), [3], 0.0)
    assert torch.allclose(even[0, 0], torch.full((8,), 2.))  # a scale of 0: the mean of v


def misuse():
    q = torch.randn(10, 4, 8)
    flat = q.reshape(40, 8)
    for numbers, args, more in (
            (("(10, 4, 7)", "(10, 4, 8)"), (q, q[..., :7], q, [10]), {}),
            (("(9, 4, 8)", "(10, 4, 8)"), (q, q, q[:9], [10]), {}),
            (("float64", "float32"), (q, q.double(), q, [10]), {}),
            (("meta", "cpu"), (q, q, q.to("meta"), [10]), {}),
            (("int64",), (q.long(), q.long(), q.long(), [10]), {}),
            (("(10, 4, 8, 1)",), (q[..., None], q[..., None], q[..., None], [10]), {}),
            (("2 lengths", "11", "10"), (q, q, q, [5, 6]), {}),
            (("length 1", "-2"), (q, q, q, [12, -2]), {}),
            (("2.5",), (q, q, q, [7.5, 2.5]), {}),
            (("5.0",), (q, q, q, torch.tensor([5., 5.])), {}),
            (("(1, 2)",), (q, q, q, torch.tensor([[5, 5]])), {}),
            (("(40, 8)",), (flat, flat, flat, [10]), {}),
            (("2 segments", "38", "40"), (flat, flat, flat, plan_of([(4, 5), (9, 2)])), {}),
            (("segment 1", "3 heads", "4"), (q, q, q, plan_of([(5, 4), (5, 3)])), {}),
            (("1 segments", "36", "40"), (q, q, q, plan_of([(9, 4)])), {}),
            (("segment 0", "-1"), (flat, flat, flat, plan_of([(-1, 4)])), {}),
            (("segment 1", "offset 30", "offset 20"),
             (flat, flat, flat, types.SimpleNamespace(segments=[(0, 10, 0, 0, 2), (1, 10, 30, 0, 2)])), {}),
            (("inf",), (q, q, q, [10]), {"scale": float("inf")}),
            (("fast", "flash, sdpa, kernel, plain"), (q, q, q, [10]), {"backend": "fast"}),
            (("flash", "float32", "cpu"), (q, q, q, [10]), {"backend": "flash"}),
            (("kernel", "float64"), (q.double(), q.double(), q.double(), [10]), {"backend": "kernel"}),
            (("kernel", "meta"), (q.to("meta"),) * 3 + ([10],), {"backend": "kernel"}),
            (("kernel", "scale 0.0"), (q, q, q, [10]), {"backend": "kernel", "scale": 0.0}),
            (("kernel", "257"), (torch.randn(2, 1, 257),) * 3 + ([2],), {"backend": "kernel"})):
        refuses(lambda: attention(*args, **more), *numbers)
    if not SDPA:
        refuses(lambda: attention(q, q, q, [10], backend="sdpa"), "2.1", torch.__version__)


def by_its_name():
    """knapformer.attention is the function whatever was imported before."""
    import knapformer.nn  # noqa: F401
    q = torch.randn(5, 2, 8)
    assert torch.equal(knapformer.attention(q, q, q, [2, 3]), attention(q, q, q, [2, 3]))
    assert torch.equal(knapformer.nn.PackedAttention()(q, q, q, [2, 3]), attention(q, q, q, [2, 3]))


torch.manual_seed(1)
all_backends()
halves()
lengths()
real_plan()
double_precision()
once_only()
nothing_to_do()
flash_glue()
choice()
misuse()
by_its_name()
