"""mamba_inner_fn and VideoMamba's forms: values and all gradients, including those that upstream gets wrong."""

import itertools
import sys

import pytest
import torch

import refs
from mamba_ssm.ops.selective_scan_interface import (bimamba_inner_fn, mamba_inner_fn, mamba_inner_fn_no_out_proj,
                                                    mamba_inner_ref)


def make(device, dtype=torch.float32, batch=2, dim=24, n=4, rank=3, width=3, length=19, model=10, complex_A=False, constant=(),
         channel_last=True, norms=False, biases=False, out=True):
    def leaf(*shape, scale=1.0, kind=torch.float32):
        return (torch.randn(*shape, device=device, dtype=kind) * scale).requires_grad_()

    wide = n * (2 if complex_A else 1)
    n_columns = rank + wide * (2 - len(constant))
    kind = torch.complex64 if complex_A else torch.float32
    xz = torch.randn(batch, length, 2 * dim, device=device, dtype=dtype).transpose(1, 2)
    t = {"xz": (xz if channel_last else xz.contiguous()).requires_grad_(),
         "conv1d_weight": leaf(dim, 1, width), "conv1d_bias": leaf(dim), "x_proj_weight": leaf(n_columns, dim, scale=0.3, kind=dtype),
         "delta_proj_weight": leaf(dim, rank, scale=0.5, kind=dtype), "out_proj_weight": leaf(model, dim, scale=0.3, kind=dtype) if out else None,
         "out_proj_bias": leaf(model, kind=dtype) if out and biases else None,
         "A": (-torch.rand(dim, n, device=device, dtype=kind)).requires_grad_(),
         "B": leaf(dim, n, kind=kind) if "B" in constant else None, "C": leaf(dim, n, kind=kind) if "C" in constant else None,
         "D": leaf(dim), "delta_bias": leaf(dim, scale=0.3),
         "B_proj_bias": leaf(wide) if biases and "B" not in constant else None,
         "C_proj_bias": leaf(wide) if biases and "C" not in constant else None}
    extra = {}
    if norms:
        extra = {"b_rms_weight": leaf(wide), "c_rms_weight": leaf(wide), "dt_rms_weight": leaf(dim)}
    return t, extra


def compare(t, extra, bound, gradient_bound, lvl=1, reverse=False):
    twins = dict(zip(t, refs.doubles(*t.values())))
    twin_extra = dict(zip(("b_rms", "c_rms", "dt_rms"), refs.doubles(*extra.values())))
    want = refs.mamba_inner(*twins.values(), **twin_extra, reverse=reverse)
    if t["out_proj_weight"] is None:
        args = {k: v for k, v in t.items() if not k.startswith("out_proj")}
        out = mamba_inner_fn_no_out_proj(**args, checkpoint_lvl=lvl, reverse=reverse)
    else:
        out = mamba_inner_fn(**t, delta_softplus=True, checkpoint_lvl=lvl, **extra, reverse=reverse)
    refs.close(out, want, bound)
    g = torch.randn_like(out)
    out.backward(g)
    want.backward(g.cpu().double())
    for name, tensor in {**t, **extra}.items():
        if tensor is not None:
            twin = twins[name] if name in twins else twin_extra[name[:-7]]
            assert tensor.grad is not None, name
            refs.close(tensor.grad, twin.grad, gradient_bound)


@pytest.mark.parametrize("lvl", [0, 1])
@pytest.mark.parametrize("channel_last", [False, True])
@pytest.mark.parametrize("complex_A", [False, True])
@pytest.mark.parametrize("constant", [(), ("B",), ("B", "C")])
def test_gradients(device, constant, complex_A, channel_last, lvl):
    t, extra = make(device, complex_A=complex_A, constant=constant, channel_last=channel_last)
    compare(t, extra, (6e-4, 2e-3), (2e-3, 5e-3), lvl)


@pytest.mark.parametrize("complex_A", [False, True])
def test_biases_have_gradients(device, complex_A):
    """Upstream sums the gradient of out_proj_bias over the features too."""
    compare(*make(device, biases=True, complex_A=complex_A), (6e-4, 2e-3), (2e-3, 5e-3))


@pytest.mark.parametrize("lvl", [0, 1])
@pytest.mark.parametrize("complex_A", [False, True])
def test_norms_have_gradients(device, complex_A, lvl):
    """Upstream's backward ignores the derivative of the three RMS norms and gives their weights none."""
    compare(*make(device, norms=True, biases=True, complex_A=complex_A), (6e-4, 2e-3), (2e-3, 1e-2), lvl)


@pytest.fixture(params=["kept", "again"])
def composed(request, monkeypatch):
    """The GPU's chain on any device: with conv output and delta saved for the gradient, or recomputed."""
    module = sys.modules["krait.ops.mamba_inner"]
    module._INNER.known.clear()
    monkeypatch.setattr(module, "_takes_one_call", lambda *args: False)
    if request.param == "again":
        monkeypatch.setattr(module, "_KEPT_BYTES", 0)
    yield
    module._INNER.known.clear()


@pytest.mark.parametrize("channel_last", [False, True])
@pytest.mark.parametrize("complex_A", [False, True])
@pytest.mark.parametrize("what", [{}, {"constant": ("C",)}, {"biases": True}, {"biases": True, "norms": True}, {"out": False}], ids=str)
def test_composed(device, composed, what, complex_A, channel_last):
    for _ in range(2):  # the second one uses cached calls
        compare(*make(device, complex_A=complex_A, channel_last=channel_last, **what), (6e-4, 2e-3), (2e-3, 1e-2))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_composed_of_any_order(device, composed, order):
    """xz in any order in memory: (L, B, 2 D), as of models whose first dimension is time, has rows that are no matrix."""
    t, twins = make(device, biases=True)
    t["xz"] = t["xz"].detach().permute(order).contiguous().permute([order.index(i) for i in range(3)]).requires_grad_()
    compare(t, twins, (6e-4, 2e-3), (2e-3, 1e-2))


def test_composed_gradients_of_the_last_projection_alone(device, composed):
    """Of a frozen chain, from an expanded gradient."""
    t, _ = make(device, biases=True)
    t = {k: v if v is None else v.detach().requires_grad_(k.startswith("out_proj")) for k, v in t.items()}
    twins = dict(zip(t, refs.doubles(*t.values())))
    mamba_inner_fn(**t).sum().backward()
    refs.mamba_inner(*twins.values()).sum().backward()
    for name, tensor in t.items():
        assert tensor is None or (tensor.grad is not None) == name.startswith("out_proj")
    refs.close(t["out_proj_weight"].grad, twins["out_proj_weight"].grad, (2e-3, 5e-3))
    refs.close(t["out_proj_bias"].grad, twins["out_proj_bias"].grad, (2e-3, 5e-3))


@pytest.mark.parametrize("reverse", [False, True])
def test_no_out_proj(device, reverse):
    compare(*make(device, out=False), (6e-4, 2e-3), (2e-3, 5e-3), reverse=reverse)


def test_upstream_sizes(device):
    """B 2, D 768, N 8, R 48, W 3, L 128, M 384."""
    t, _ = make(device, dim=768, n=8, rank=48, length=128, model=384)
    t = {k: v if v is None else v.detach() for k, v in t.items()}
    t["x_proj_weight"], t["out_proj_weight"] = t["x_proj_weight"] / 8, t["out_proj_weight"] / 8
    want = mamba_inner_ref(**t)
    refs.close(mamba_inner_fn(**t), want, (6e-4, 2e-3))
    refs.close(want, refs.mamba_inner(*refs.doubles(*t.values())), (6e-4, 2e-3))


@pytest.mark.parametrize("complex_A", [False, True])
@pytest.mark.parametrize("constant", ["", "B", "C", "BC"])
def test_upstream_inputs(device, constant, complex_A):
    """Upstream's inputs, with unscaled products: sums of 1e8 cancel, so only the same order of operations, which the
    function and its reference share, gives the same result."""
    wide, kind = (16, torch.complex64) if complex_A else (8, torch.float32)

    def draw(*shape, kind=torch.float32):
        return torch.randn(*shape, device=device, dtype=kind)

    def matrix(name):
        return draw(768, 8, kind=kind) if name in constant else None
    want, got = [function(draw(2, 1536, 128), draw(768, 1, 3), draw(768), draw(48 + (2 - len(constant)) * wide, 768), draw(768, 48), draw(384, 768), None,
                          -0.5 * torch.rand(768, 8, device=device, dtype=kind), matrix("B"), matrix("C"), draw(768), delta_bias=0.5 * torch.rand(768, device=device))
                 for function in (mamba_inner_ref, mamba_inner_fn) if torch.manual_seed(0)]
    torch.testing.assert_close(got, want, rtol=6e-4, atol=2e-3)


def test_reference_gradients(device):
    """Through its products, in the operators' order."""
    t, _ = make(device)
    twins = dict(zip(t, refs.doubles(*t.values())))
    out, want = mamba_inner_ref(**t), refs.mamba_inner(*twins.values())
    dout = torch.randn_like(out)
    out.backward(dout)
    want.backward(dout.cpu().double())
    for name, tensor in t.items():
        if tensor is not None:
            refs.close(tensor.grad, twins[name].grad, (2e-3, 5e-3))


def test_bimamba(device):
    t, _ = make(device)
    A_b = (-torch.rand_like(t["A"])).requires_grad_()
    twins = dict(zip(t, refs.doubles(*t.values())))
    (A_b2,) = refs.doubles(A_b)
    identity = torch.eye(t["A"].shape[0], dtype=torch.float64)
    x, z = twins["xz"].chunk(2, 1)
    u, _ = refs.conv(x, twins["conv1d_weight"].squeeze(1), twins["conv1d_bias"], use_silu=True)
    rows = u.transpose(1, 2) @ twins["x_proj_weight"].t()
    delta = (rows[..., :3] @ twins["delta_proj_weight"].t()).transpose(1, 2)
    B, C = rows[..., 3:7].transpose(1, 2), rows[..., 7:].transpose(1, 2)
    y = sum(refs.scan(u, delta, A, B, C, twins["D"], z, twins["delta_bias"], True, reverse=back)[0]
            for A, back in ((twins["A"], False), (A_b2, True)))
    want = y.transpose(1, 2) @ identity @ twins["out_proj_weight"].t()
    args = {k: v for k, v in t.items() if k != "A"}
    out = bimamba_inner_fn(A=t["A"], A_b=A_b, **args)
    refs.close(out, want, (1e-3, 1e-3))
    g = torch.randn_like(out)
    out.backward(g)
    want.backward(g.cpu().double())
    refs.close(A_b.grad, A_b2.grad, (2e-3, 5e-3))
    for name, tensor in t.items():
        if tensor is not None:
            refs.close(tensor.grad, twins[name].grad, (2e-3, 5e-3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(device, dtype):
    """Under autocast the projections run in its type, parameters keep theirs, and so do their gradients."""
    kind = torch.device(device).type
    if kind == "cpu" and dtype is torch.float16 and torch.__version__ < "2.1":
        pytest.skip("this torch has no float16 autocast on the CPU")
    t, _ = make(device, dim=32, model=16)
    twins = dict(zip(t, refs.doubles(*t.values())))
    want = refs.mamba_inner(*twins.values())
    with torch.autocast(kind, dtype=dtype):
        out = mamba_inner_fn(**{**t, "xz": t["xz"].to(dtype)})
    assert out.dtype == dtype
    error = (out.detach().cpu().double() - want.detach()).norm() / want.detach().norm()
    assert float(error) < (3e-2 if dtype is torch.bfloat16 else 5e-3)
    out.float().square().sum().backward()
    for name, tensor in t.items():
        assert tensor is None or (tensor.grad is not None and tensor.grad.dtype == tensor.dtype), name


def test_double_backward_is_refused(device):
    t, _ = make(device)
    (grad,) = torch.autograd.grad(mamba_inner_fn(**t).square().sum(), t["xz"], create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives"):
        grad.sum().backward()
