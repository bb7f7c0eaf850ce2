"""Linear layers by the library's AMX implementation, or the row that replaces it here: like F.linear in values, gradients, second
derivatives and fallbacks."""

import importlib

import pytest
import torch
import torch.nn.functional as F

import conftest
import refs
from krait._call import Call, place
from krait.ops import apply_linear, linear

module = importlib.import_module("krait.ops.product")
pytestmark = pytest.mark.skipif(conftest.EMULATED is not None, reason="emulated GPU: CPU tensors are not on the CPU")


def row_of(m, k, n):
    call, a, b = Call(module.GEMM), torch.zeros(m, k), torch.zeros(k, n)
    call.pack((a, b.t().contiguous().t(), None, None, a.new_empty(m, n)))
    return call.implementation(place(a))


def test_rows_by_name():
    """The call's row, by the library: one for few rows of A, another for many."""
    few, many = row_of(4, 256, 256), row_of(400, 256, 256)
    assert few.endswith("_few") and many.startswith("simd_") and not many.endswith("_few")


@pytest.fixture
def taken(monkeypatch):
    """Takes small products too, by any row -> the calls that were packed."""
    calls = {}
    monkeypatch.setattr(Call, "implementation", lambda self, at: module._FASTER[0])
    monkeypatch.setattr(module, "_LEAST", 1)
    monkeypatch.setattr(module, "_LEAST_SIDE", 32)
    monkeypatch.setattr(module, "_calls", calls)
    return calls


def given(shape, columns, bias):
    torch.manual_seed(0)
    x, w = torch.randn(*shape), torch.randn(columns, shape[-1])
    b = None if bias is None else torch.randn(columns, bias)[:, 0]
    return [t if t is None else t.requires_grad_() for t in (x, w, b)]


@pytest.mark.parametrize("bias", [None, 1, 3])
@pytest.mark.parametrize("shape", [(100, 64), (4, 40, 48), (2, 3, 32, 33)])
def test_values_and_gradients(taken, shape, bias):
    """bias: its stride."""
    tensors = given(shape, 70, bias)
    there = [t for t in tensors if t is not None]
    out, want = linear(*tensors), F.linear(*[t if t is None else t.double() for t in tensors])
    assert out.shape == want.shape and out.dtype == torch.float32 and refs.relative(out, want) < 1e-5
    weights = torch.randn_like(out)
    for got, right in zip(torch.autograd.grad((out * weights).sum(), there), torch.autograd.grad((want * weights).sum(), there)):
        assert refs.relative(got, right) < 1e-5
    for got, right in zip(torch.autograd.grad(linear(*tensors).sum(), there), torch.autograd.grad(F.linear(*tensors).sum(), there)):  # an expanded gradient
        assert refs.relative(got, right) < 1e-5
    assert any(call is not None for call in taken.values())


def test_other_bias_after_a_bias(taken):
    x, w, _ = given((40, 48), 70, None)
    for b in (torch.randn(70), torch.randn(70, 2)[:, 0], torch.randn(1).expand(70), torch.randn(1)):
        assert refs.relative(linear(x, w, b), F.linear(x, w, b)) < 1e-5


def test_columns_and_turned_rows(taken):
    _, w, b = given((40, 48), 70, 1)
    wide, turned = torch.randn(40, 200), torch.randn(48, 40)
    for x in (wide[:, 10:58], turned.t(), torch.randn(3, 48, 40).transpose(1, 2)):
        assert refs.relative(linear(x, w, b), F.linear(x, w, b)) < 1e-5


def test_second_derivatives(taken):
    x, w, b = given((40, 48), 70, 1)

    def second(f):
        first, = torch.autograd.grad(f(x, w, b).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), (x, w, b))
    for got, right in zip(second(linear), second(F.linear)):
        assert refs.relative(got, right) < 1e-5


def test_fallbacks_to_torch(taken):
    """Autocast, other types, torch.func, mismatched shapes: like F.linear, in results and errors."""
    x, w, b = given((40, 48), 70, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(x, w, b).dtype == torch.bfloat16
    assert linear(x.double(), w.double()).dtype == torch.float64
    got, right = [torch.func.grad(lambda v: f(v, w, b).square().sum())(x) for f in (linear, F.linear)]
    assert torch.equal(got, right)
    assert torch.equal(torch.func.vmap(lambda v: linear(v, w))(x[:, None]), F.linear(x[:, None], w))
    for wrong in ((x[:, 1:], w), (x, w, b[1:])):
        with pytest.raises(RuntimeError):
            linear(*wrong)
    assert not taken


def test_hooks_see_a_layer(taken):
    layer, seen = torch.nn.Linear(48, 70), []
    x = torch.randn(40, 48)
    assert refs.relative(apply_linear(layer, x), layer(x)) < 1e-5
    layer.register_forward_hook(lambda *_: seen.append(1))
    apply_linear(layer, x)
    assert seen == [1]


def _spread(shape, kind, device):
    """Float32 rows whose numbers differ in magnitude in some way."""
    x = torch.randn(shape, device=device)
    if kind == "outliers":
        x[:, ::97] *= 3e4
    if kind == "magnitudes":
        x *= torch.exp(torch.empty_like(x).uniform_(-12, 12))
    if kind == "rows apart":
        x *= torch.logspace(-30, 15, shape[0], device=device)[:, None]
    return x


def _stored(t, turned):
    """t, in memory as it is or transposed."""
    return t.t().contiguous().t() if turned else t


@pytest.mark.parametrize("a_turned, w_turned", [(False, False), (False, True), (True, True)])  # of a product and of its gradients
@pytest.mark.parametrize("kind", ["alike", "outliers", "magnitudes", "rows apart"])
def test_float32_of_any_magnitude(kind, a_turned, w_turned, device):
    """Within float32's own error of the product in float64: a GPU of compute capability 9.0 sums products of 16-bit parts."""
    a, w = _spread((640, 512), kind, device), _spread((768, 512), "alike" if kind == "rows apart" else kind, device)
    call, out = Call(module.GEMM), torch.full((640, 768), float("nan"), device=device)
    tensors = _stored(a, a_turned), _stored(w, w_turned).t(), None, None, out
    call.pack(tensors)
    call.run(tensors)
    wide, sizes = a.double() @ w.t().double(), a.abs().double() @ w.t().abs().double()
    assert ((out - wide).abs() / sizes).max() < 3e-6
    assert ((out - wide).norm(dim=1) / wide.norm(dim=1)).max() < 1e-6


@pytest.mark.skipif("cuda" not in conftest.DEVICES, reason="no GPU")
@pytest.mark.parametrize("precision", ["highest", "high"])
def test_products_on_a_gpu(precision):
    """A linear layer and its gradients: by the library where torch may not round float32, and the hardware has a faster way; else torch's."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        module._calls.clear()
        x, w, b = [torch.randn(*shape, device="cuda", requires_grad=True) for shape in ((4096, 768), (1024, 768), (1024,))]
        out = linear(x, w, b)
        grads = torch.autograd.grad((out * out).sum(), (x, w, b))
        wide = F.linear(x.double(), w.double(), b.double())
        right = torch.autograd.grad((wide * wide).sum(), (x, w, b))
        bound = 1e-6 if precision == "highest" else 2e-3
        assert refs.relative(out, wide) < bound and all(refs.relative(g, r) < 2 * bound for g, r in zip(grads, right))
        taken = [call for call in module._calls.values() if call is not None]
        assert len(taken) == (3 if torch.cuda.get_device_capability() == (9, 0) else 0)  # rounded or not
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.skipif("cuda" not in conftest.DEVICES, reason="no GPU")
@pytest.mark.parametrize("a_turned, w_turned", [(False, False), (True, True)])
@pytest.mark.parametrize("kind", ["alike", "outliers", "magnitudes", "rows apart", "not finite"])
def test_rounded_products_on_a_gpu(kind, a_turned, w_turned):
    """Where a call may be rounded to 11 bits: of a size that tiles of float16 take on an H100 or H200, which no random call of the checker has."""
    is_finite = kind != "not finite"
    a, w = _spread((1153, 1001), kind, "cuda"), _spread((1002, 1001), "alike" if kind == "rows apart" else kind, "cuda")
    if not is_finite:
        a[3, 5], a[7, 1], w[9, 30], w[11, 2] = float("inf"), float("nan"), -float("inf"), 1e37
    call, out = Call(module.GEMM), torch.zeros(1153, 1002, device="cuda")
    tensors = _stored(a, a_turned), _stored(w, w_turned).t(), None, None, out
    call.pack(tensors, module._TF32)
    if torch.cuda.get_device_capability() == (9, 0):
        assert call.implementation(place(a)) == "hopper_tiles_tf32"
    call.run(tensors)
    wide, sizes = a.double() @ w.t().double(), a.abs().double() @ w.t().abs().double()
    kept = wide.isfinite() & sizes.isfinite()
    assert (out.isnan() >= wide.isnan()).all() and out[kept].isfinite().all()
    assert ((out - wide).abs() / sizes)[kept].max() < 2e-3


@pytest.mark.skipif("cuda" not in conftest.DEVICES, reason="no GPU")
def test_float32_that_is_not_finite():
    device = "cuda"
    a, w = torch.randn(640, 512, device=device), torch.randn(768, 512, device=device)
    a[3, 5], a[7, 1], w[9, 30], w[11, 2] = float("inf"), float("nan"), -float("inf"), 1e37
    call, out = Call(module.GEMM), torch.zeros(640, 768, device=device)
    call.pack((a, w.t(), None, None, out))
    call.run((a, w.t(), None, None, out))
    want = a.double() @ w.t().double()
    assert (out.isnan() == want.isnan()).all() and (out.isinf() == (want.float().isinf())).all()


def test_tf32_follows_torch(monkeypatch):
    """A product may be rounded where torch's settings let it, and is then a call of its own."""
    a, b = torch.randn(67, 61), torch.randn(61, 71)
    for allows in (False, True):
        monkeypatch.setattr(module, "allows_tf32", lambda t: allows)
        assert module.flags_of(a) == (module._TF32 if allows else 0)
        module._call_of(a, b, None)
    assert sorted(key[1] for key in module._calls if key[2] == a.shape and key[4] == b.shape) == [False, True]
