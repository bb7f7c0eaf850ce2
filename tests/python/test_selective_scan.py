"""selective_scan_fn: real and complex, constant and variable matrices, groups, packed sequences, states, both directions."""

import pytest
import torch

import refs
from mamba_ssm.ops.selective_scan_interface import selective_scan_fn, selective_scan_ref

REAL, COMPLEX = torch.float32, torch.complex64


def make(device, wtype, itype, length, constant_B=False, constant_C=False, groups=1, has_D=True, has_z=True, has_bias=True,
         batch=2, dim=4, n=8):
    """Inputs drawn as in upstream's test."""
    steps = length * (2 if wtype is COMPLEX else 1)

    def matrix(constant):
        if constant:
            return torch.randn(dim, n, device=device, dtype=wtype, requires_grad=True)
        shape = (batch, n, steps) if groups == 1 else (batch, groups, n, steps)
        return torch.randn(*shape, device=device, dtype=itype, requires_grad=True)

    t = {"A": (-0.5 * torch.rand(dim, n, device=device, dtype=wtype)).requires_grad_(), "B": matrix(constant_B), "C": matrix(constant_C)}
    t["D"] = torch.randn(dim, device=device, requires_grad=True) if has_D else None
    t["z"] = torch.randn(batch, dim, length, device=device, dtype=itype, requires_grad=True) if has_z else None
    t["delta_bias"] = (0.5 * torch.rand(dim, device=device)).requires_grad_() if has_bias else None
    t["u"] = torch.randn(batch, dim, length, device=device, dtype=itype, requires_grad=True)
    t["delta"] = (0.5 * torch.rand(batch, dim, length, device=device, dtype=itype)).requires_grad_()
    return t


def compare_gradients(t, twins, itype, has_z):
    rtol, atol = refs.SCAN_TOLERANCES[itype]
    rtolw, atolw = (max(1e-3, rtol), max(1e-3, atol)) if has_z else (1e-3, 1e-3)
    bounds = {"u": (rtol * 2, atol * 2), "delta": (rtol * 5, atol * 10), "A": (rtolw, atolw * 5), "D": (rtolw, atolw), "z": (rtolw, atolw),
              "delta_bias": (rtolw, atolw)}
    for name in ("B", "C"):
        bounds[name] = (rtolw, atolw) if t[name].dim() == 2 else (rtol, atol)
    for name, tensor in t.items():
        if tensor is not None:
            assert tensor.grad.dtype == tensor.dtype, name
            refs.close(tensor.grad, twins[name].grad, bounds[name])


def run(t, softplus=True, **more):
    twins = dict(zip(t, refs.doubles(*t.values())))
    reference = {k: v for k, v in more.items() if k in ("initial", "seq_idx", "reverse")}
    want, want_last = refs.scan(twins["u"], twins["delta"], twins["A"], twins["B"], twins["C"], twins["D"], twins["z"],
                                twins["delta_bias"], softplus, **reference)
    return twins, want, want_last


@pytest.mark.parametrize("wtype", [REAL, COMPLEX], ids=["real", "complex"])
@pytest.mark.parametrize("itype", refs.DTYPES)
@pytest.mark.parametrize("length", [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096])
@pytest.mark.parametrize("softplus,has_D,has_z,has_bias", [(True, True, True, True), (False, False, False, False)])
def test_variable(device, length, itype, wtype, softplus, has_D, has_z, has_bias):
    if length > 512 and (itype is not torch.float32 or not has_z):
        pytest.skip("long rows once")
    t = make(device, wtype, itype, length, has_D=has_D, has_z=has_z, has_bias=has_bias)
    twins, want, want_last = run(t, softplus)
    out, last = selective_scan_fn(t["u"], t["delta"], t["A"], t["B"], t["C"], t["D"], z=t["z"], delta_bias=t["delta_bias"],
                                  delta_softplus=softplus, return_last_state=True)
    assert out.dtype == itype and last.dtype == wtype
    refs.close(out, want, refs.SCAN_TOLERANCES[itype])
    refs.close(last, want_last, refs.SCAN_TOLERANCES[itype])
    g = torch.randn_like(out)
    out.backward(g)
    want.backward(g.cpu().double())
    compare_gradients(t, twins, itype, has_z)


@pytest.mark.parametrize("wtype", [REAL, COMPLEX], ids=["real", "complex"])
@pytest.mark.parametrize("constant_B,constant_C", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("itype", [torch.float32, torch.bfloat16])
def test_constant_matrices(device, itype, constant_B, constant_C, wtype):
    t = make(device, wtype, itype, 100, constant_B, constant_C)
    twins, want, _ = run(t)
    out = selective_scan_fn(t["u"], t["delta"], t["A"], t["B"], t["C"], t["D"], t["z"], t["delta_bias"], True)
    refs.close(out, want, refs.SCAN_TOLERANCES[itype])
    g = torch.randn_like(out)
    out.backward(g)
    want.backward(g.cpu().double())
    compare_gradients(t, twins, itype, True)


@pytest.mark.parametrize("wtype", [REAL, COMPLEX], ids=["real", "complex"])
@pytest.mark.parametrize("groups", [2, 4])
def test_groups(device, groups, wtype):
    t = make(device, wtype, torch.float32, 65, groups=groups, dim=12)
    twins, want, _ = run(t)
    out = selective_scan_fn(t["u"], t["delta"], t["A"], t["B"], t["C"], t["D"], t["z"], t["delta_bias"], True)
    refs.close(out, want, refs.SCAN_TOLERANCES[torch.float32])
    g = torch.randn_like(out)
    out.backward(g)
    want.backward(g.cpu().double())
    compare_gradients(t, twins, torch.float32, True)


@pytest.mark.parametrize("n,dim", [(1, 5), (3, 7), (16, 128), (64, 20), (256, 3)])
def test_sizes(device, n, dim):
    t = make(device, REAL, torch.float32, 37, n=n, dim=dim)
    twins, want, _ = run(t)
    out = selective_scan_fn(t["u"], t["delta"], t["A"], t["B"], t["C"], t["D"], t["z"], t["delta_bias"], True)
    refs.close(out, want, refs.SCAN_TOLERANCES[torch.float32], 4)
    g = torch.randn_like(out)
    out.backward(g)
    want.backward(g.cpu().double())
    for name, tensor in t.items():
        refs.close(tensor.grad, twins[name].grad, (1e-3, 2e-2))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("wtype", [REAL, COMPLEX], ids=["real", "complex"])
def test_initial_state_and_last_gradient(device, wtype, reverse):
    """Both only in krait: upstream has no initial state and ignores the last state's gradient."""
    t = make(device, wtype, torch.float32, 33)
    initial = torch.randn(2, 4, 8, dtype=wtype, device=device, requires_grad=True)
    twins = dict(zip(t, refs.doubles(*t.values())))
    (twin,) = refs.doubles(initial)
    want, want_last = refs.scan(*[twins[k] for k in ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")], True, initial=twin,
                                reverse=reverse)
    out, last = selective_scan_fn(t["u"], t["delta"], t["A"], t["B"], t["C"], t["D"], t["z"], t["delta_bias"], True, True,
                                  initial_states=initial, reverse=reverse)
    refs.close(out, want, (1e-4, 1e-4))
    refs.close(last, want_last, (1e-4, 1e-4))
    g, gl = torch.randn_like(out), torch.randn_like(last)
    torch.autograd.backward((out, last), (g, gl))
    torch.autograd.backward((want, want_last), (g.cpu().double(), gl.cpu().to(want_last.dtype)))
    refs.close(initial.grad, twin.grad, (1e-3, 1e-3))
    for name, tensor in t.items():
        refs.close(tensor.grad, twins[name].grad, (1e-3, 2e-3))


@pytest.mark.parametrize("reverse", [False, True])
def test_packed_by_index(device, reverse):
    t = make(device, REAL, torch.float32, 50)
    seq_idx = (torch.rand(2, 50, device=device) < 0.15).cumsum(1).to(torch.int32)
    twins, want, _ = run(t, seq_idx=seq_idx.cpu(), reverse=reverse)
    out = selective_scan_fn(t["u"], t["delta"], t["A"], t["B"], t["C"], t["D"], t["z"], t["delta_bias"], True, seq_idx=seq_idx,
                            reverse=reverse)
    refs.close(out, want, (1e-4, 1e-4))
    g = torch.randn_like(out)
    out.backward(g)
    want.backward(g.cpu().double())
    for name, tensor in t.items():
        refs.close(tensor.grad, twins[name].grad, (1e-3, 2e-3))


def test_packed_by_lengths(device):
    """cu_seqlens equals separate calls per sequence, including states."""
    t = make(device, REAL, torch.float32, 40, batch=1)
    ends = [0, 3, 4, 20, 40]
    initial = torch.randn(4, 4, 8, device=device)
    out, last = selective_scan_fn(t["u"], t["delta"], t["A"], t["B"], t["C"], t["D"], t["z"], t["delta_bias"], True, True,
                                  initial_states=initial, cu_seqlens=torch.tensor(ends, dtype=torch.int32, device=device))
    g = torch.randn_like(out)
    grads = torch.autograd.grad(out, [v for v in t.values()], g)
    pieces = []
    for i, (begin, end) in enumerate(zip(ends, ends[1:])):
        part = {k: v[..., begin:end] if v.dim() == 3 else v for k, v in t.items()}
        one, one_last = selective_scan_fn(part["u"], part["delta"], part["A"], part["B"], part["C"], part["D"], part["z"],
                                          part["delta_bias"], True, True, initial_states=initial[i:i + 1])
        refs.close(last[i:i + 1], one_last, (1e-5, 1e-5))
        pieces.append(one)
    want = torch.cat(pieces, -1)
    refs.close(out, want, (1e-5, 1e-5))
    for got, expected in zip(grads, torch.autograd.grad(want, [v for v in t.values()], g)):
        refs.close(got, expected, (1e-4, 1e-4))


@pytest.mark.parametrize("channel_last", [False, True])
def test_any_strides(device, channel_last):
    """Slices, expanded and transposed tensors give the results of compact ones."""
    t = make(device, REAL, torch.float32, 21)
    want = selective_scan_fn(*[t[k] for k in ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")], True)

    def restride(v):
        if v.dim() != 3:
            return v
        return v.transpose(1, 2).contiguous().transpose(1, 2) if channel_last else torch.stack([v, v], -1)[..., 0]

    out = selective_scan_fn(*[restride(t[k]) for k in ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")], True)
    refs.close(out, want, (1e-5, 1e-5))
    g = torch.ones((), device=device).expand(out.shape)  # the gradient of sum(): all strides 0
    for got, expected in zip(torch.autograd.grad(out, list(t.values()), g), torch.autograd.grad(want, list(t.values()), g.contiguous())):
        refs.close(got, expected, (1e-4, 1e-4))


def test_reference_function(device):
    t = make(device, REAL, torch.float32, 40)
    _, want, want_last = run(t)
    out, last = selective_scan_ref(t["u"], t["delta"], t["A"], t["B"], t["C"], t["D"], t["z"], t["delta_bias"], True, True)
    refs.close(out, want, (1e-4, 1e-4))
    refs.close(last, want_last, (1e-4, 1e-4))


def test_errors(device):
    t = make(device, REAL, torch.float32, 9)
    args = {k: v.detach() for k, v in t.items()}
    for bad in ({"A": args["A"][:3]}, {"delta": args["delta"][..., :8]}, {"B": args["B"][:, :7]}, {"D": args["D"][:3]},
                {"C": args["C"][..., :5]}, {"z": args["z"][:1]}):
        with pytest.raises(RuntimeError):
            selective_scan_fn(**{**args, **bad})
    with pytest.raises(RuntimeError):
        selective_scan_fn(**args, initial_states=torch.zeros(2, 4, 7, device=device))


def test_double_backward_is_refused(device):
    t = make(device, REAL, torch.float32, 9)
    out = selective_scan_fn(t["u"], t["delta"], t["A"], t["B"], t["C"])
    (grad,) = torch.autograd.grad(out.pow(2).sum(), t["u"], create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives"):
        grad.sum().backward()


def test_repeats_are_bitwise_equal(device):
    t = make(device, REAL, torch.float32, 300, dim=64)
    results = []
    for _ in range(3):
        out = selective_scan_fn(t["u"], t["delta"], t["A"], t["B"], t["C"], t["D"], t["z"], t["delta_bias"], True)
        results.append((out, *torch.autograd.grad(out.square().sum(), list(t.values()))))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))
