"""The functions below autograd, in every argument order used by releases and forks."""

import pytest
import torch

import causal_conv1d_cuda
import refs
import selective_scan_cuda
from causal_conv1d.cpp_functions import causal_conv1d_bwd_function, causal_conv1d_fwd_function, causal_conv1d_update_function


@pytest.fixture
def t(device):
    x, weight, bias = torch.randn(2, 8, 9, device=device), torch.randn(8, 4, device=device), torch.randn(8, device=device)
    dout = torch.randn_like(x)
    twins = refs.doubles(x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_())
    want, _ = refs.conv(*twins, use_silu=True)
    want.backward(dout.cpu().double())
    return dict(x=x.detach(), weight=weight.detach(), bias=bias.detach(), dout=dout, want=want, grads=[v.grad for v in twins])


def test_conv_forward(t):
    x, weight, bias = t["x"], t["weight"], t["bias"]
    out = torch.empty_like(x)
    assert causal_conv1d_cuda.causal_conv1d_fwd(x, weight, bias, None, None, out, None, True) is None
    for got in (causal_conv1d_cuda.causal_conv1d_fwd(x, weight, bias, True), causal_conv1d_cuda.causal_conv1d_fwd(x, weight, bias, None, True),
                causal_conv1d_cuda.causal_conv1d_fwd(x, weight, bias, None, None, None, True),
                causal_conv1d_fwd_function(x, weight, bias, None, None, None, True), out):
        refs.close(got, t["want"], (1e-4, 1e-4))
    with pytest.raises(TypeError):
        causal_conv1d_cuda.causal_conv1d_fwd(x, weight, bias)


def test_conv_backward(t):
    x, weight, bias, dout = t["x"], t["weight"], t["bias"], t["dout"]
    buffers = [torch.empty_like(v) for v in (x, weight, bias)]
    causal_conv1d_cuda.causal_conv1d_bwd(x, weight, bias, dout, None, None, None, *buffers, None, True)
    forms = [buffers, causal_conv1d_cuda.causal_conv1d_bwd(x, weight, bias, dout, None, True),
             causal_conv1d_cuda.causal_conv1d_bwd(x, weight, bias, dout, None, None, True),
             causal_conv1d_cuda.causal_conv1d_bwd(x, weight, bias, dout, None, None, None, None, False, True),
             causal_conv1d_bwd_function(x, weight, bias, dout, None, None, None, None, False, True)]
    assert [len(f) for f in forms] == [3, 3, 3, 4, 4]
    for form in forms:
        for got, want in zip(form, t["grads"]):
            refs.close(got, want, (1e-4, 1e-4))
    dx = torch.empty_like(x)
    assert causal_conv1d_cuda.causal_conv1d_bwd(x, weight, bias, dout, dx, True)[0] is dx


def test_conv_update(t):
    x, weight, bias = t["x"], t["weight"], t["bias"]
    states = [torch.zeros(2, 8, 4, device=x.device) for _ in range(3)]
    for i in range(9):
        a = causal_conv1d_cuda.causal_conv1d_update(x[..., i], states[0], weight, bias, True)
        b = causal_conv1d_update_function(x[..., i], states[1], weight, bias, True, None, None)
        refs.close(a, t["want"][..., i], (1e-4, 1e-4))
        assert torch.equal(a, b)


@pytest.mark.parametrize("has_z", [False, True])
@pytest.mark.parametrize("complex_A", [False, True])
def test_scan(device, complex_A, has_z):
    kind = torch.complex64 if complex_A else torch.float32
    u, delta, dout = torch.randn(2, 6, 11, device=device), torch.rand(2, 6, 11, device=device), torch.randn(2, 6, 11, device=device)
    A = -torch.rand(6, 4, device=device, dtype=kind)
    B, C = [torch.randn(2, 1, 4, 22 if complex_A else 11, device=device) for _ in range(2)]
    D, bias = torch.randn(6, device=device), torch.rand(6, device=device)
    z = torch.randn(2, 6, 11, device=device) if has_z else None
    inputs = [v if v is None else v.requires_grad_() for v in (u, delta, A, B, C, D, z, bias)]
    twins = refs.doubles(*inputs)
    want, last = refs.scan(*twins, True)
    want.backward(dout.cpu().double())
    args = [v if v is None else v.detach() for v in inputs]
    result = selective_scan_cuda.fwd(*args, True)
    assert len(result) == (3 if has_z else 2)
    refs.close(result[2] if has_z else result[0], want, (1e-4, 1e-4))
    refs.close(result[1][:, :, -1, 1::2], last, (1e-4, 1e-4))
    grads = selective_scan_cuda.bwd(*args, dout, result[1], result[0], None, True, has_z)
    assert len(grads) == (9 if has_z else 7)
    for got, twin in zip(grads, (twins[0], twins[1], twins[2], twins[3], twins[4], twins[5], twins[7], twins[6])):
        refs.close(got, twin.grad, (1e-3, 1e-3))
    if has_z:
        refs.close(grads[8], want, (1e-4, 1e-4))


def test_functions_by_class_name(device):
    """apply of upstream's autograd functions gives the same numbers and gradients."""
    from causal_conv1d import causal_conv1d_interface as conv
    from mamba_ssm.ops import selective_scan_interface as scan
    from mamba_ssm.ops.triton import layer_norm, layernorm
    x, delta, z = (torch.randn(2, 8, 9, device=device, requires_grad=True) for _ in range(3))
    A, B, C = -torch.rand(8, 4, device=device), torch.randn(2, 4, 9, device=device), torch.randn(2, 4, 9, device=device)
    weight, bias, rows = torch.randn(8, 4, device=device), torch.randn(8, device=device), torch.randn(6, 8, device=device)
    xz = torch.randn(2, 16, 9, device=device)
    inner = (weight[:, None], bias, torch.randn(9, 8, device=device), torch.randn(8, 1, device=device))
    last = (torch.randn(5, 8, device=device), None)
    pairs = [(conv.CausalConv1dFn, conv.causal_conv1d_fn, (x, weight, bias, None, None, False, None, "silu")),
             (scan.SelectiveScanFn, scan.selective_scan_fn, (x, delta, A, B, C, bias, z, bias, True, False)),
             (scan.MambaInnerFn, scan.mamba_inner_fn, (xz, *inner, *last, A, None, None, bias, bias)),
             (scan.MambaInnerFnNoOutProj, scan.mamba_inner_fn_no_out_proj, (xz, *inner, A, None, None, bias, bias)),
             (scan.BiMambaInnerFn, scan.bimamba_inner_fn, (xz, *inner, *last, A, 2 * A, None, None, bias, bias)),
             (layer_norm.LayerNormFn, layer_norm.layer_norm_fn, (rows, bias, bias)),
             (layer_norm.LayerNormLinearFn, layer_norm.layer_norm_linear_fn, (rows, bias, bias, weight.T, None)),
             (layernorm.LayerNormFn, layernorm.layer_norm_fn, (rows, bias, bias))]
    for by_class, function, args in pairs:
        assert torch.equal(by_class.apply(*args), function(*args)), by_class
    scan.SelectiveScanFn.apply(x, delta, A, B, C, None, z, None, True).sum().backward()
    assert all(v.grad is not None and v.grad.abs().sum() > 0 for v in (x, delta, z))
