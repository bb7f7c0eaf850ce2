"""add + norm and gated norm: the error is within twice that of plain low-precision torch, upstream's rule."""

import pytest
import torch

import refs
from mamba_ssm.ops.triton import layer_norm as new
from mamba_ssm.ops.triton import layernorm as old
from mamba_ssm.ops.triton import layernorm_gated as gated

PAIRS = [(torch.float32, torch.float32), (torch.float16, torch.float16), (torch.bfloat16, torch.bfloat16),
         (torch.bfloat16, torch.float32), (torch.float16, torch.float32)]


def within(got, low, want, atol):
    """The error of got may be twice that of `low`, the plain computation in the same precision, plus atol."""
    want = want.detach().cpu().double()
    error, allowed = [float((t.detach().cpu().double() - want).abs().max()) if t.numel() else 0.0 for t in (got, low)]
    assert error <= 2 * allowed + atol, "error %g, plain torch %g" % (error, allowed)


@pytest.mark.parametrize("is_rms", [True, False])
@pytest.mark.parametrize("itype,wtype", PAIRS)
@pytest.mark.parametrize("residual_fp32,has_residual,prenorm", [(True, True, True), (False, True, True), (True, False, True),
                                                               (False, False, False), (False, True, False)])
@pytest.mark.parametrize("width", [192, 1024 + 5, 2048])
def test_add_norm(device, width, residual_fp32, has_residual, prenorm, itype, wtype, is_rms):
    x0 = torch.randn(3, 40, width, device=device, dtype=itype)
    residual0 = torch.randn(3, 40, width, device=device, dtype=torch.float32 if residual_fp32 else itype) if has_residual else None
    weight0, bias0 = torch.randn(width, device=device, dtype=wtype), None if is_rms else torch.randn(width, device=device, dtype=wtype)
    results, g = [], None
    for form in ("krait", "low", "double"):
        x, residual, weight, bias = [t if t is None else (t.cpu().double() if form == "double" else t.clone()).requires_grad_()
                                     for t in (x0, residual0, weight0, bias0)]
        if form == "double":
            out, _, total = refs.add_norm(x, weight, bias, residual, None, None, None, 1e-6, None, is_rms)
        elif form == "krait":
            result = new.layer_norm_fn(x, weight, bias, residual, eps=1e-6, prenorm=prenorm, residual_in_fp32=residual_fp32,
                                       is_rms_norm=is_rms)
            out, total = result if prenorm else (result, None)
            assert out.dtype == itype
            assert total is None or total.dtype == (torch.float32 if residual_fp32 else itype)
        else:
            reference = new.rms_norm_ref if is_rms else new.layer_norm_ref
            result = reference(x, weight, bias, residual, eps=1e-6, prenorm=prenorm)
            out, total = result if prenorm else (result, None)
        if g is None:
            g, gt = torch.randn_like(out), torch.randn(out.shape, device=device)
        loss = (out * g.to(out)).sum() + ((total * gt.to(total)).sum() if prenorm else 0)
        loss.backward()
        results.append([out, total if prenorm else None] + [None if t is None else t.grad for t in (x, residual, weight, bias)])
    # forward bounds, then gradients; weight gradients are sums over 120 rows
    for got, low, want, atol in zip(*results, [1e-5 if itype is torch.float32 else 1e-3] * 4 + [2e-4 if itype is torch.float32 else 2e-2] * 2):
        if got is not None:
            within(got, low, want, atol)


@pytest.mark.parametrize("is_rms", [True, False])
@pytest.mark.parametrize("has_x1,has_weight1", [(True, True), (True, False), (False, True)])
def test_parallel(device, has_x1, has_weight1, is_rms):
    t = {"x": torch.randn(4, 9, 64, device=device), "weight": torch.randn(64, device=device), "bias": torch.randn(64, device=device),
         "residual": torch.randn(4, 9, 64, device=device), "x1": torch.randn(4, 9, 64, device=device) if has_x1 else None,
         "weight1": torch.randn(64, device=device) if has_weight1 else None, "bias1": torch.randn(64, device=device) if has_weight1 else None}
    t = {k: v if v is None else v.requires_grad_() for k, v in t.items()}
    twins = dict(zip(t, refs.doubles(*t.values())))
    want = [w for w in refs.add_norm(*twins.values(), 1e-5, None, is_rms) if w is not None]
    got = new.layer_norm_fn(*t.values(), eps=1e-5, prenorm=True, is_rms_norm=is_rms)
    assert len(got) == (3 if has_weight1 else 2)
    for a, b in zip(got, want):
        refs.close(a, b, (1e-5, 1e-5))
    gs = [torch.randn_like(a) for a in got]
    torch.autograd.backward(got, gs)
    torch.autograd.backward(want, [g.cpu().double() for g in gs])
    for name, tensor in t.items():
        if tensor is not None:
            refs.close(tensor.grad, twins[name].grad, (1e-4, 1e-4))


def test_rowscale(device):
    x, weight = torch.randn(5, 7, 64, device=device, requires_grad=True), torch.randn(64, device=device, requires_grad=True)
    rowscale = torch.randint(0, 3, (5, 7), device=device).float()
    x2, weight2 = refs.doubles(x, weight)
    want, _, total2 = refs.add_norm(x2, weight2, None, None, None, None, None, 1e-6, rowscale.cpu().double(), True)
    out, total = new.rms_norm_fn(x, weight, None, rowscale=rowscale, prenorm=True)
    refs.close(out, want, (1e-5, 1e-5))
    refs.close(total, total2, (1e-6, 1e-6))
    g = torch.randn_like(out)
    out.backward(g)
    want.backward(g.cpu().double())
    keep = rowscale.bool()  # zero rows have a gradient of 1e6, times 0
    refs.close(x.grad[keep], x2.grad[keep.cpu()], (1e-4, 1e-4))
    assert float(x.grad[~keep].abs().max()) == 0
    refs.close(weight.grad, weight2.grad, (1e-4, 1e-4))


def test_dropout(device):
    x, x1, weight = torch.randn(64, 96, device=device), torch.randn(64, 96, device=device), torch.randn(96, device=device)
    out, total, mask, mask1 = new.rms_norm_fn(x, weight, None, x1=x1, dropout_p=0.25, prenorm=True, return_dropout_mask=True)
    assert mask.dtype == torch.bool and abs(float(mask.float().mean()) - 0.75) < 0.03 and not torch.equal(mask, mask1)
    want, want_total = new.rms_norm_ref(x, weight, None, x1=x1, dropout_p=0.25, prenorm=True, dropout_mask=mask, dropout_mask1=mask1)
    refs.close(total, want_total, (1e-5, 1e-5))
    refs.close(out, want, (1e-5, 1e-5))


def test_old_argument_order(device):
    """mamba_ssm 1.x and VideoMamba: eps before prenorm in one function, last in the other."""
    x, residual = torch.randn(4, 64, device=device), torch.randn(4, 64, device=device)
    weight, bias = torch.randn(64, device=device), torch.randn(64, device=device)
    a = old.layer_norm_fn(x, weight, bias, residual, 1e-3, True, True, False)
    b = new.layer_norm_fn(x, weight, bias, residual=residual, eps=1e-3, prenorm=True, residual_in_fp32=True)
    c = old.rms_norm_fn(x, weight, None, residual, True, True, 1e-3)
    d = new.rms_norm_fn(x, weight, None, residual=residual, prenorm=True, residual_in_fp32=True, eps=1e-3)
    assert all(torch.equal(p, q) for p, q in zip(a + c, b + d))
    assert old.RMSNorm is new.RMSNorm


def test_linear(device):
    x, weight = torch.randn(4, 64, device=device, requires_grad=True), torch.ones(64, device=device)
    linear = torch.nn.Linear(64, 32).to(device)
    want = linear(new.rms_norm_fn(x, weight, None))
    got = new.layer_norm_linear_fn(x, weight, None, linear.weight, linear.bias, is_rms_norm=True)
    refs.close(got, want, (1e-6, 1e-6))
    with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
        assert new.layer_norm_linear_fn(x, weight, None, linear.weight, linear.bias, is_rms_norm=True).dtype == torch.bfloat16


@pytest.mark.parametrize("is_rms", [True, False])
@pytest.mark.parametrize("itype,wtype", PAIRS)
@pytest.mark.parametrize("has_z,norm_before_gate", [(False, True), (True, True), (True, False)])
@pytest.mark.parametrize("group_size", [None, 64])
def test_gated(device, group_size, has_z, norm_before_gate, itype, wtype, is_rms):
    width = 1024 if group_size else 1536 + 6
    x0 = torch.randn(3, 23, width, device=device, dtype=itype)
    z0 = torch.randn(3, 23, width, device=device, dtype=itype) if has_z else None
    weight0, bias0 = torch.randn(width, device=device, dtype=wtype), None if is_rms else torch.randn(width, device=device, dtype=wtype)
    results, g = [], None
    for form in ("krait", "low", "double"):
        x, z, weight, bias = [t if t is None else (t.cpu().double() if form == "double" else t.clone()).requires_grad_()
                              for t in (x0, z0, weight0, bias0)]
        if form == "krait":
            out = gated.layernorm_fn(x, weight, bias, z, 1e-5, group_size, norm_before_gate, is_rms)
            assert out.dtype == itype
        else:
            out = refs.gated_norm(x, weight, bias, z, 1e-5, group_size, norm_before_gate, is_rms)
        g = torch.randn_like(out) if g is None else g
        out.backward(g.to(out))
        results.append([out] + [None if t is None else t.grad for t in (x, z, weight, bias)])
    for got, low, want, atol in zip(*results, [1e-5 if itype is torch.float32 else 8e-3] * 3 + [2e-4 if itype is torch.float32 else 2e-2] * 2):
        if got is not None:
            within(got, low, want, atol)


def test_gated_reference_and_modules(device):
    x, z = torch.randn(4, 96, device=device), torch.randn(4, 96, device=device)
    norm = gated.RMSNorm(96, group_size=32, norm_before_gate=False, device=device)
    refs.close(norm(x, z), gated.rms_norm_ref(x, norm.weight, None, z, 1e-5, 32, False), (1e-5, 1e-5))
    assert list(norm.state_dict()) == ["weight"] and list(gated.LayerNorm(96).state_dict()) == ["weight", "bias"]
    refs.close(gated.LayerNorm(96, device=device)(x), torch.nn.functional.layer_norm(x, (96,)), (1e-5, 1e-5))


def test_errors(device):
    x, weight = torch.zeros(4, 64, device=device), torch.zeros(64, device=device)
    with pytest.raises(AssertionError):
        new.rms_norm_fn(x, weight[:63], None)
    with pytest.raises(AssertionError):
        new.rms_norm_fn(x, weight, None, residual=x[:3])
    with pytest.raises(AssertionError):
        gated.rmsnorm_fn(x, weight, None, group_size=48)
