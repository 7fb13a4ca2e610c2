# SPDX-License-Identifier: Apache-2.0
"""knapformer.nn.LayerNormModulate: the kernel and plain torch against autograd in double precision, in all
types and layouts; what is kept; ranks without rows; the torch.library operator, alone and compiled;
misuse. Tolerances are those of tests/torch/torch_adaln.py."""

import importlib

import torch
from refusal import refuses

from knapformer.nn import LayerNormModulate, layer_norm_modulate

module = importlib.import_module("knapformer.nn")
EPS = 1e-6
NAMES = "x scale shift gate u".split()


def eager(x, scale, shift, lens, gate=None, u=None, eps=EPS):
    """(x,) y as eager models write it."""
    seq = torch.repeat_interleave(torch.arange(len(lens)), torch.tensor(lens, dtype=torch.int64))
    x = x if gate is None else x + gate[seq] * u
    y = torch.nn.functional.layer_norm(x, x.shape[1:], eps=eps) * (1 + scale[seq]) + shift[seq]
    return (y,) if gate is None else (x, y)


def make(lens, dim, dtype=torch.float32, gated=True, mod_dtype=None):
    """Leaves by name, and the gradients of the results. The modulation is slices of one (S, 6 dim)."""
    mod = (0.5 * torch.randn(len(lens), 6 * dim)).to(mod_dtype or dtype)
    data = dict(zip(("gate", "scale", "shift"), mod.chunk(6, 1)[1:4]))
    data.update({name: torch.randn(sum(lens), dim).to(dtype) for name in "xu"})
    d_out = [torch.randn(sum(lens), dim).to(dtype) for _ in range(1 + gated)]
    return {name: data[name].requires_grad_() for name in NAMES[:None if gated else 3]}, d_out


def results(function, data, lens, d_out, **how):
    """(x,) y and the gradients of data, by name."""
    x, scale, shift, *more = data.values()
    out = function(x, scale, shift, lens, *more, **how)
    out = out if isinstance(out, tuple) else (out,)
    gradients = torch.autograd.grad(out, list(data.values()), d_out)
    named = dict(zip(("new", "y")[-len(out):], (t.detach() for t in out)))
    named.update({"d" + name: g for name, g in zip(data, gradients)})
    return named


def exact(data, lens, d_out, **how):
    wide = {name: t.detach().double().requires_grad_() for name, t in data.items()}
    return results(eager, wide, lens, [d.double() for d in d_out], **how)


def error_of(got, want):
    return ((got - want).abs().max() / want.abs().max().clamp(min=0.1)).item()  # of one column LN is 0


def compare(what, got, want, bound):
    assert list(got) == list(want)
    for name in want:
        error = error_of(got[name].double(), want[name])
        print(f"{what} {name:6} {error:.1e}")
        assert error <= bound, f"{what} {name}: {error} > {bound}"


LENS = [40, 0, 1, 65, 7]


def fp32_against_double():
    for dim in (1, 5, 64, 100, 1152, 3072):
        for gated in (False, True):
            data, d_out = make(LENS, dim, gated=gated)
            want = exact(data, LENS, d_out)
            for rounding in ("once", "each"):
                for lens in (LENS, torch.tensor(LENS, dtype=torch.int32)):
                    got = results(LayerNormModulate(EPS, rounding), data, lens, d_out)
                    compare(f"fp32 dim {dim} {rounding}", got, want, 1e-6)


def plainly(x, scale, shift, lens, gate, u, rounding):
    return module._plain(x, scale, shift, gate, u, lens, EPS, rounding)


def share_of_same(got, want):
    return min((got[name] == want[name]).double().mean().item() for name in ("new", "y"))


def halves():
    """One rounding of each result, or eager's own; plain torch, as other devices have it, does the same."""
    lens = [400, 0, 1, 65]
    for dtype in (torch.bfloat16, torch.float16):
        unit = torch.finfo(dtype).eps
        data, d_out = make(lens, 768, dtype)
        want = exact(data, lens, d_out)
        once = results(layer_norm_modulate, data, lens, d_out)
        compare(f"{dtype} once", once, want, unit)
        plain = results(plainly, data, lens, d_out, rounding="once")
        compare(f"{dtype} plain once", plain, want, 4 * unit)
        assert share_of_same(once, plain) >= 0.99
        if torch.__version__ < (2, 0):
            continue  # whose layer_norm rounds elsewhere in bf16 and has no fp16
        each = results(layer_norm_modulate, data, lens, d_out, rounding="each")
        for function, how in ((eager, {}), (plainly, {"rounding": "each"})):
            other = results(function, data, lens, d_out, **how)
            print(f"{dtype}: {100 * share_of_same(each, other):.3f}% the same bits as eager")
            assert torch.equal(each["new"], other["new"]) and share_of_same(each, other) >= 0.99
        compare(f"{dtype} each", each, want, 32 * unit)


def mixed_types():
    """Modulation of another type than x, u too: gradients come in the type of what they belong to."""
    fp32, bf16, fp16, fp64 = torch.float32, torch.bfloat16, torch.float16, torch.float64
    for dtype, mod, bound in ((bf16, fp32, 1e-2), (fp16, fp32, 2e-3), (fp32, bf16, 8e-3), (fp16, bf16, 8e-3),
                              (fp32, fp64, 1e-6), (fp64, fp32, 1e-6), (bf16, fp64, 1e-2)):
        data, d_out = make(LENS, 96, dtype, mod_dtype=mod)
        got = results(layer_norm_modulate, data, LENS, d_out)
        assert got["y"].dtype == got["new"].dtype == got["dx"].dtype == dtype and got["dscale"].dtype == mod
        compare(f"x {dtype} mod {mod}", got, exact(data, LENS, d_out), bound)
    data, d_out = make(LENS, 96)
    data["u"] = data["u"].detach().bfloat16().requires_grad_()
    compare("u bf16", results(layer_norm_modulate, data, LENS, d_out), exact(data, LENS, d_out), 8e-3)


def double_precision():
    lens = [3, 0, 1, 2]
    for rounding in ("once", "each"):
        norm = LayerNormModulate(EPS, rounding)
        for gated in (False, True):
            data, _ = make(lens, 4, torch.float64, gated)
            leaves = tuple(data.values())
            assert torch.autograd.gradcheck(lambda a, b, c, *more: norm(a, b, c, lens, *more), leaves)


def layouts():
    """Slices are read where they lie; what cannot be is copied; the bits are the same."""
    data, d_out = make(LENS, 64)
    mods = [data[name] for name in ("scale", "shift", "gate")]
    same, stride = module._one_stride(mods)
    assert stride == 6 * 64 and all(a is b for a, b in zip(same, mods))
    dense = {name: t.detach().contiguous().requires_grad_() for name, t in data.items()}
    want = results(layer_norm_modulate, dense, LENS, d_out)

    def equal(got):
        return all(torch.equal(got[name], want[name]) for name in want)

    assert equal(results(layer_norm_modulate, data, LENS, d_out))
    for odd in (lambda t: t.t().contiguous().t(), lambda t: torch.stack((t, t), 2)[:, :, 1],
                lambda t: t.repeat(1, 2)[:, :64]):
        for names in (NAMES, NAMES[1:2], NAMES[:1]):
            strided = {name: (odd(t.detach()) if name in names else t.detach()).requires_grad_()
                       for name, t in data.items()}
            assert equal(results(layer_norm_modulate, strided, LENS, [odd(d) for d in d_out]))
    one = torch.randn(1, 64)
    wide = [one.expand(len(LENS), 64), one.repeat(len(LENS), 1)]
    got, copied = (layer_norm_modulate(data["x"], w, w, LENS) for w in wide)
    assert torch.equal(got, copied)
    single, d_single = make([9], 64)
    got = results(layer_norm_modulate, single, [9], d_single)
    compare("one sequence", got, exact(single, [9], d_single), 1e-6)


def threads():
    data, d_out = make([700, 300], 256)
    n = torch.get_num_threads()
    runs = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        runs.append(results(layer_norm_modulate, data, [700, 300], d_out))
    torch.set_num_threads(n)
    assert all(torch.equal(runs[0][name], run[name]) for run in runs for name in run)


def parts_of_the_graph():
    """Only one of the results is used, only one of the inputs needs a gradient, or none does."""
    data, d_out = make(LENS, 64)
    wide = {name: t.detach().double().requires_grad_() for name, t in data.items()}

    def from_one(function, given, used):
        out = function(*(given[n] for n in NAMES[:3]), LENS, given["gate"], given["u"])[used]
        return torch.autograd.grad(out, list(given.values()), d_out[used].to(out.dtype), allow_unused=True)

    for used in (0, 1):
        ours, theirs = from_one(layer_norm_modulate, data, used), from_one(eager, wide, used)
        for name, got, want in zip(data, ours, theirs):
            want = torch.zeros_like(got).double() if want is None else want  # ours has zeros there
            assert error_of(got.double(), want) <= 1e-6, (used, name)
    whole = results(layer_norm_modulate, data, LENS, d_out)
    for name in NAMES:
        lone = {n: t.detach().requires_grad_(n == name) for n, t in data.items()}
        out = layer_norm_modulate(*(lone[n] for n in NAMES[:3]), LENS, lone["gate"], lone["u"])
        grad, = torch.autograd.grad(out, lone[name], d_out)
        assert torch.equal(grad, whole["d" + name]), name
    with torch.no_grad():
        new, y = layer_norm_modulate(*(data[n] for n in NAMES[:3]), LENS, data["gate"], data["u"])
    assert not y.requires_grad and torch.equal(y, whole["y"]) and torch.equal(new, whole["new"])


def kept_bytes():
    """x and scale, which are there anyway, and 8 bytes a row."""
    data, _ = make(LENS, 64, gated=False)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        layer_norm_modulate(*data.values(), LENS)
    own = {data["x"].data_ptr(), data["scale"].data_ptr()}
    assert own <= {t.data_ptr() for t in kept}
    assert sum(t.numel() * t.element_size() for t in kept if t.data_ptr() not in own) == 8 * sum(LENS)


def nothing_to_do():
    """No rows, no sequences: the graph is still there, for all inputs, and gradients are 0."""
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for lens in ([], [0], [0, 0, 0]):
            for gated in (False, True):
                data, d_out = make(lens, 12, dtype, gated)
                reached = []
                made = [1 * t for t in data.values()]
                for name, t in zip(data, made):
                    t.register_hook(lambda _, name=name: reached.append(name))
                x, scale, shift, *more = made
                out = LayerNormModulate()(x, scale, shift, lens, *more)
                out = out if gated else (out,)
                assert all(t.shape == (0, 12) and t.dtype == dtype for t in out)
                gradients = torch.autograd.grad([t.sum() for t in out], list(data.values()))
                assert sorted(reached) == sorted(data), (dtype, lens, reached)
                assert all(g.shape == t.shape and not g.any() for g, t in zip(gradients, data.values()))


def zero_eps():
    """The kernel would read it as its default."""
    x = torch.tensor([[1e-4, -1e-4, 3e-4, -3e-4]])
    y = layer_norm_modulate(x, torch.zeros(1, 4), torch.zeros(1, 4), [1], eps=0.0)
    assert torch.allclose(y.square().mean(), torch.tensor(1.0), atol=1e-4)
    small = layer_norm_modulate(x, torch.zeros(1, 4), torch.zeros(1, 4), [1], eps=1e-2)
    assert torch.allclose(small, x / 0.1, rtol=1e-4)


def after_inference():
    """What plain torch keeps between calls may come from a validation step."""
    data, d_out = make([2, 3, 4], 8, torch.float64)
    with torch.inference_mode():
        layer_norm_modulate(*(data[n] for n in NAMES[:3]), [2, 3, 4])
    results(layer_norm_modulate, data, [2, 3, 4], d_out)


def once_only():
    """No second derivative, and no wrong one."""
    data, _ = make([3], 8, gated=False)
    y = layer_norm_modulate(*data.values(), [3])
    grad, = torch.autograd.grad(y.square().sum(), data["x"], create_graph=True)
    refuses(grad.sum().backward, "differentiate twice", kind=RuntimeError)


def operator():
    """As torch wants an operator to be, and the same bits as without it."""
    assert module.HAS_OPERATOR == (torch.__version__ >= (2, 4))
    if not module.HAS_OPERATOR:
        return
    from torch._dynamo.testing import CompileCounterWithBackend
    op, lens = torch.ops.knapformer.layer_norm_modulate, torch.tensor(LENS)
    for dtype in (torch.float32, torch.bfloat16):
        for gated in (False, True):
            data, d_out = make(LENS, 24, dtype, gated, torch.float32)
            x, scale, shift, gate, u = (*data.values(), None, None)[:5]
            torch.library.opcheck(op, (x, scale, shift, gate, u, lens, EPS, "once"))
            through = [t.requires_grad for t in op(x, scale, shift, gate, u, lens, EPS, "once")]
            assert through[1:] == [True, False, False] and (through[0] or not gated)
            torch._dynamo.reset()
            counter = CompileCounterWithBackend("aot_eager")
            norm = LayerNormModulate()
            compiled = torch.compile(norm, fullgraph=True, backend=counter)
            for given in (lens, torch.tensor([100, 0, 3, 5, 5]), torch.tensor([0, 0, 0, 0, 113])):
                got, want = (results(f, data, given, d_out) for f in (compiled, norm))
                assert all(torch.equal(got[name], want[name]) for name in want)
            assert counter.frame_count == 1, "other lengths were compiled again"
            targets = [str(node.target) for graph in counter.graphs for node in graph.graph.nodes]
            assert any("knapformer.layer_norm_modulate" in target for target in targets), targets
            for given in (LENS, [100, 0, 3, 5, 5]):
                got, want = (results(f, data, given, d_out) for f in (compiled, norm))
                assert all(torch.equal(got[name], want[name]) for name in want)
            wrong = torch.tensor([100, 0, 3, 5, 6])
            refuses(lambda: compiled(x, scale, shift, wrong, gate, u), "114", "113")
    nothing, d_nothing = make([0, 0], 24)
    got = results(compiled, nothing, [0, 0], d_nothing)
    assert all(not t.any() for t in got.values())
    plain, d_plain = make(LENS, 24, torch.float64)
    compiled = torch.compile(LayerNormModulate(), fullgraph=True, backend="aot_eager")
    compare("compiled plain", results(compiled, plain, LENS, d_plain), exact(plain, LENS, d_plain), 1e-12)
    x, scale, shift = data["x"].float(), data["scale"], data["shift"]
    for numbers, args in ((("bfloat16", "float32"), (x, scale, shift.bfloat16(), None, None)),
                          (("float64",), (x.double(), scale, shift, None, None)),
                          (("(112, 24)", "(113, 24)"), (x, scale, shift, scale, x[1:]))):
        refuses(lambda: op(*args, lens, EPS, "once"), *numbers)


def misuse():
    x, mod = torch.randn(10, 8), torch.randn(2, 8)
    lens = [4, 6]
    for numbers, args, more in (
            (("2 lengths", "11", "10"), (x, mod, mod, [5, 6]), {}),
            (("3 lengths", "2"), (x, mod, mod, [4, 3, 3]), {}),
            (("length 0", "-1"), (x, mod, mod, [-1, 11]), {}),
            (("4.5",), (x, mod, mod, [4.5, 5.5]), {}),
            (("scale", "(2, 7)", "(2, 8)"), (x, mod[:, :7], mod, lens), {}),
            (("shift", "(3, 8)", "(2, 8)"), (x, mod, torch.randn(3, 8), lens), {}),
            (("gate", "(2, 9)"), (x, mod, mod, lens), {"gate": torch.randn(2, 9), "u": x}),
            (("u", "(9, 8)"), (x, mod, mod, lens), {"gate": mod, "u": x[1:]}),
            (("gate",), (x, mod, mod, lens), {"gate": mod}),
            (("u is given alone",), (x, mod, mod, lens), {"u": x}),
            (("(10, 8, 1)",), (x[..., None], mod, mod, lens), {}),
            (("(10, 0)",), (x[:, :0], mod[:, :0], mod[:, :0], lens), {}),
            (("(8,)",), (x, mod[0], mod[0], lens), {}),
            (("x is torch.int64",), (x.long(), mod, mod, lens), {}),
            (("scale is torch.int64",), (x, mod.long(), mod, lens), {}),
            (("shift", "meta", "cpu"), (x, mod, mod.to("meta"), lens), {}),
            (("each", "float32", "bfloat16"), (x.bfloat16(), mod, mod, lens), {"rounding": "each"}),
            (("twice",), (x, mod, mod, lens), {"rounding": "twice"}),
            (("-1",), (x, mod, mod, lens), {"eps": -1.0}),
            (("nan",), (x, mod, mod, lens), {"eps": float("nan")})):
        refuses(lambda: layer_norm_modulate(*args, **more), *numbers)
    refuses(lambda: LayerNormModulate(-2.0), "-2")
    refuses(lambda: LayerNormModulate(rounding="up"), "up")


def as_a_module():
    norm = LayerNormModulate(1e-5, "each")
    assert not list(norm.parameters()) and not norm.state_dict()
    assert repr(norm) == "LayerNormModulate(eps=1e-05, rounding='each')"
    data, _ = make(LENS, 16, gated=False)
    want = eager(*(data[n].double() for n in NAMES[:3]), LENS, eps=1e-5)[0]
    assert error_of(norm(*data.values(), LENS).double(), want) <= 1e-6


torch.manual_seed(1)
fp32_against_double()
halves()
mixed_types()
double_precision()
layouts()
threads()
parts_of_the_graph()
kept_bytes()
nothing_to_do()
zero_eps()
after_inference()
once_only()
operator()
misuse()
as_a_module()
