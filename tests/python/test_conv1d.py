"""causal_conv1d: forward, backward, packed sequences, states, update, old signatures, error types."""

import pytest
import torch

import refs
from causal_conv1d import causal_conv1d_fn, causal_conv1d_update
from causal_conv1d.causal_conv1d_interface import causal_conv1d_ref, causal_conv1d_update_ref
from causal_conv1d.causal_conv1d_varlen import causal_conv1d_varlen_states, causal_conv1d_varlen_states_ref

LENGTHS = [1, 2, 3, 8, 16, 32, 65, 129, 513, 1024]


def make_x(batch, dim, length, dtype, device, channel_last, width=None):
    """A slice of a wider buffer, with non-compact strides."""
    if channel_last:
        wide = torch.randn(batch, length, 4096 + dim + 64 if width is None else width, device=device, dtype=dtype)
        return wide[:, :, 32:32 + dim].transpose(1, 2)
    wide = torch.randn(batch, dim + 64 if width is None else width, length, device=device, dtype=dtype)
    return wide[:, 32:32 + dim]



@pytest.mark.parametrize("dtype", refs.DTYPES)
@pytest.mark.parametrize("channel_last", [False, True])
@pytest.mark.parametrize("silu,has_bias,width", [(False, False, 2), (True, True, 3), (True, True, 4), (False, True, 4)])
@pytest.mark.parametrize("length", LENGTHS)
def test_forward_backward(device, length, silu, has_bias, width, channel_last, dtype):
    dim = 64 if length > 200 else 72
    x = make_x(2, dim, length, dtype, device, channel_last, dim + 40).requires_grad_()
    weight = torch.randn(dim, width, device=device, requires_grad=True)
    bias = torch.randn(dim, device=device, requires_grad=True) if has_bias else None
    x2, weight2, bias2 = refs.doubles(x, weight, bias)
    out = causal_conv1d_fn(x, weight, bias, activation="silu" if silu else None)
    want, _ = refs.conv(x2, weight2, bias2, use_silu=silu)
    assert out.dtype == dtype and out.shape == x.shape
    if length > 1:
        assert (out.stride(1) == 1) == channel_last
    tolerance = refs.TOLERANCES[dtype]
    refs.close(out, want, tolerance)
    refs.close(causal_conv1d_ref(x, weight, bias, activation="silu" if silu else None), want, tolerance, 3)
    g = torch.randn_like(out)
    out.backward(g)
    want.backward(g.detach().cpu().double())
    grads = [(x, x2, tolerance), (weight, weight2, (max(tolerance[0], 1e-3), max(tolerance[1], 1e-3) * length ** 0.5))]
    if has_bias:
        grads.append((bias, bias2, grads[1][2]))
    for got, twin, bound in grads:
        assert got.grad.dtype == got.dtype
        refs.close(got.grad, twin.grad, bound)


@pytest.mark.parametrize("dim", [4096 + 32])
def test_wide(device, dim):
    x = make_x(2, dim, 17, torch.float32, device, True, dim + 40)
    weight, bias = torch.randn(dim, 4, device=device), torch.randn(dim, device=device)
    want, _ = refs.conv(*refs.doubles(x, weight, bias), use_silu=True)
    refs.close(causal_conv1d_fn(x, weight, bias, activation="swish"), want, refs.TOLERANCES[torch.float32])


@pytest.mark.parametrize("channel_last", [False, True])
@pytest.mark.parametrize("has_initial", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 64])
def test_states(device, length, reverse, has_initial, channel_last):
    """initial_states and the gradient of the final states, both layouts."""
    dim, width = 24, 4
    x = make_x(2, dim, length, torch.float32, device, channel_last, dim + 40).requires_grad_()
    weight, bias = torch.randn(dim, width, device=device, requires_grad=True), torch.randn(dim, device=device, requires_grad=True)
    initial = None
    if has_initial:
        initial = torch.randn(2, width - 1, dim, device=device).transpose(1, 2).requires_grad_()
    twins = refs.doubles(x, weight, bias, initial)
    want, want_final = refs.conv(*twins, use_silu=True, reverse=reverse)
    out, final = causal_conv1d_fn(x, weight, bias, initial_states=initial, return_final_states=True, activation="silu", reverse=reverse)
    refs.close(out, want, (1e-5, 1e-5))
    refs.close(final, want_final, (0, 0) if not has_initial else (1e-6, 1e-6))
    g, gf = torch.randn_like(out), torch.randn_like(final)
    torch.autograd.backward((out, final), (g, gf))
    torch.autograd.backward((want, want_final), (g.cpu().double(), gf.cpu().double()))
    for got, twin in zip((x, weight, bias, initial), twins):
        if got is not None:
            refs.close(got.grad, twin.grad, (1e-4, 1e-4))


def test_only_the_final_states_have_a_gradient(device):
    x = torch.randn(1, 8, 5, device=device, requires_grad=True)
    weight = torch.randn(8, 4, device=device, requires_grad=True)
    causal_conv1d_fn(x, weight, return_final_states=True)[1].sum().backward()
    assert torch.equal(x.grad[..., 2:], torch.ones_like(x[..., 2:])) and float(x.grad[..., :2].abs().max()) == 0
    assert weight.grad is None or float(weight.grad.abs().max()) == 0


def test_final_states_out(device):
    x, weight = torch.randn(2, 8, 9, device=device), torch.randn(8, 3, device=device)
    buffer = torch.empty(2, 2, 8, device=device).transpose(1, 2)
    _, final = causal_conv1d_fn(x, weight, return_final_states=True, final_states_out=buffer)
    assert final is buffer and torch.equal(buffer, x[..., -2:])


@pytest.mark.parametrize("dtype", refs.DTYPES)
@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize("length", [8, 63, 256])
def test_seq_idx(device, length, silu, dtype):
    x = make_x(2, 32, length, dtype, device, True, 72).requires_grad_()
    weight = torch.randn(32, 4, device=device, requires_grad=True)
    bias = torch.randn(32, device=device, requires_grad=True)
    seq_idx = (torch.rand(2, length, device=device) < 0.2).cumsum(1).to(torch.int32)
    seq_idx[1, -3:] = -1
    twins = refs.doubles(x, weight, bias)
    want, _ = refs.conv(*twins, seq_idx=seq_idx.cpu(), use_silu=silu)
    out = causal_conv1d_fn(x, weight, bias, seq_idx=seq_idx, activation="silu" if silu else None)
    tolerance = refs.TOLERANCES[dtype]
    refs.close(out, want, tolerance)
    g = torch.randn_like(out)
    out.backward(g)
    want.backward(g.cpu().double())
    refs.close(x.grad, twins[0].grad, tolerance)
    refs.close(weight.grad, twins[1].grad, tolerance, 10)
    refs.close(bias.grad, twins[2].grad, tolerance, 10)


def test_activation_in_fourth_place(device):
    """causal_conv1d 1.0 and VideoMamba's fork: (x, weight, bias, activation)."""
    x, weight, bias = torch.randn(2, 8, 9, device=device), torch.randn(8, 4, device=device), torch.randn(8, device=device)
    assert torch.equal(causal_conv1d_fn(x, weight, bias, "silu"), causal_conv1d_fn(x, weight, bias, activation="silu"))


def test_errors(device):
    x, weight = torch.randn(2, 8, 9, device=device), torch.randn(8, 4, device=device)
    seq_idx = torch.zeros(2, 9, dtype=torch.int32, device=device)
    with pytest.raises(NotImplementedError):
        causal_conv1d_fn(x, weight, activation="relu")
    with pytest.raises(NotImplementedError):
        causal_conv1d_update(x[..., 0], torch.zeros(2, 8, 4, device=device), weight, activation="relu")
    with pytest.raises(AssertionError):
        causal_conv1d_fn(x, weight, seq_idx=seq_idx, return_final_states=True)
    for bad in (dict(weight=weight[:7]), dict(bias=torch.zeros(7, device=device)), dict(seq_idx=seq_idx[:, :8])):
        with pytest.raises(RuntimeError):
            causal_conv1d_fn(**{**dict(x=x, weight=weight), **bad})
    with pytest.raises(RuntimeError, match="float64"):
        causal_conv1d_fn(x, weight, seq_idx=seq_idx.double())
    with pytest.raises(RuntimeError):
        causal_conv1d_update(x[..., 0], torch.zeros(2, 8, 2, device=device), weight)


def test_double_backward_is_refused(device):
    x = torch.randn(1, 8, 9, device=device, requires_grad=True)
    out = causal_conv1d_fn(x, torch.randn(8, 4, device=device))
    (grad,) = torch.autograd.grad(out.pow(2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives"):
        grad.sum().backward()


@pytest.mark.parametrize("dtype", refs.DTYPES)
@pytest.mark.parametrize("circular", [False, True])
@pytest.mark.parametrize("width,room", [(2, 2), (3, 5), (4, 3), (4, 4), (4, 9)])
@pytest.mark.parametrize("length", [None, 1, 3, 6])
def test_update(device, length, width, room, circular, dtype):
    dim = 70
    if circular and room < (length or 1) + width - 1:
        pytest.skip("a ring must hold the new tokens and the inputs of their taps")
    x = torch.randn(2, dim, device=device, dtype=dtype) if length is None else torch.randn(2, dim, length, device=device, dtype=dtype)
    state = torch.randn(2, dim, room, device=device, dtype=dtype)
    weight, bias = torch.randn(dim, width, device=device), torch.randn(dim, device=device)
    lengths = torch.randint(0, 1000, (2,), dtype=torch.int32, device=device) if circular else None
    x2, state2, weight2, bias2 = refs.doubles(x, state, weight, bias)
    want = causal_conv1d_update_ref(x2, state2, weight2, bias2, "silu", None if lengths is None else lengths.cpu())
    out = causal_conv1d_update(x, state, weight, bias, "silu", lengths)
    refs.close(out, want, refs.TOLERANCES[dtype])
    refs.close(state, state2, (0, 0))


def test_update_equals_the_full_convolution(device):
    x, weight, bias = torch.randn(2, 8, 12, device=device), torch.randn(8, 4, device=device), torch.randn(8, device=device)
    want = causal_conv1d_fn(x, weight, bias, activation="silu")
    state = torch.zeros(2, 8, 3, device=device)
    got = [causal_conv1d_update(x[..., t], state, weight, bias, "silu") for t in range(12)]
    refs.close(torch.stack(got, -1), want, (1e-5, 1e-5))


def test_update_indices(device):
    cache = torch.randn(5, 8, 4, device=device)
    before = cache.clone()
    x, weight = torch.randn(3, 8, device=device), torch.randn(8, 4, device=device)
    indices = torch.tensor([3, 0, -1], dtype=torch.int32, device=device)
    out = causal_conv1d_update(x, cache, weight, None, "silu", None, indices)
    for row, index in ((0, 3), (1, 0)):
        state = before[index:index + 1].clone()
        assert torch.equal(out[row:row + 1], causal_conv1d_update(x[row:row + 1], state, weight, None, "silu"))
        assert torch.equal(cache[index:index + 1], state)
    assert float(out[2].abs().max()) == 0
    assert torch.equal(cache[[1, 2, 4]], before[[1, 2, 4]])


@pytest.mark.parametrize("dtype", refs.DTYPES)
@pytest.mark.parametrize("state_len", [1, 2, 4, 9])
def test_varlen_states(device, state_len, dtype):
    ends = torch.tensor([0, 1, 3, 3, 17, 40], dtype=torch.int32, device=device)
    x = torch.randn(40, 33, device=device, dtype=dtype)
    got = causal_conv1d_varlen_states(x, ends, state_len)
    assert got.shape == (5, 33, state_len) and torch.equal(got, causal_conv1d_varlen_states_ref(x, ends, state_len))


def test_empty(device):
    weight = torch.randn(8, 4, device=device)
    assert causal_conv1d_fn(torch.randn(0, 8, 5, device=device), weight).shape == (0, 8, 5)
    assert causal_conv1d_fn(torch.randn(2, 8, 0, device=device), weight).shape == (2, 8, 0)


def test_meta():
    out = causal_conv1d_fn(torch.empty(2, 8, 9, device="meta"), torch.empty(8, 4, device="meta"))
    assert out.is_meta and out.shape == (2, 8, 9)


@pytest.mark.parametrize("first, last", [(0, 10), (10, 3)])
def test_update_refuses_missing_rows(first, last):
    """On the CPU only; a GPU's indices are not read before the launch."""
    state, x, weight = torch.randn(10, 8, 4), torch.randn(2, 8), torch.randn(8, 4)
    before = state.clone()
    with pytest.raises(RuntimeError, match=r"conv_state_indices\[[01]\] is 10, must be below 10"):
        causal_conv1d_update(x, state, weight, conv_state_indices=torch.tensor([first, last], dtype=torch.int32))
    assert torch.equal(state, before)


def test_varlen_states_needs_offsets():
    with pytest.raises(RuntimeError, match="cu_seqlens"):
        causal_conv1d_varlen_states(torch.randn(4, 8), torch.zeros(0, dtype=torch.int32), 4)


def test_gradient_penalty_is_refused(device):
    """Also if the incoming gradient does not require grad: torch would treat the penalty as a constant."""
    x, weight = torch.randn(1, 8, 5, device=device, requires_grad=True), torch.randn(8, 4, device=device)
    loss = causal_conv1d_fn(x, weight, activation="silu").sum()
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives"):
        (loss + slope.square().sum()).backward()


def test_views_with_the_negative_bit(device):
    """The imaginary part of a conjugate has the opposite sign in memory."""
    z, weight = torch.randn(2, 8, 9, dtype=torch.complex64, device=device), torch.randn(8, 4, device=device)
    x = z.conj().imag
    assert x.is_neg()
    for _ in range(2):
        torch.testing.assert_close(causal_conv1d_fn(x, weight), causal_conv1d_fn(-z.imag.contiguous(), weight))
    u = torch.randn(2, 8, 9, device=device, requires_grad=True)
    causal_conv1d_fn(u, weight).backward(x)
    got, u.grad = u.grad, None
    causal_conv1d_fn(u, weight).backward(x.clone())
    torch.testing.assert_close(got, u.grad)
    with pytest.raises(RuntimeError, match="negative bit"):
        causal_conv1d_update(x, torch.randn(2, 8, 9, dtype=torch.complex64, device=device).conj().imag, weight)
