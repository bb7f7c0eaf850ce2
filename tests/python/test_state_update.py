"""selective_state_update: shapes, types, None arguments unsupported upstream, indices, expanded strides."""

import itertools

import pytest
import torch

import refs
from mamba_ssm.ops.triton.selective_state_update import selective_state_update, selective_state_update_ref


@pytest.mark.parametrize("dtype", refs.DTYPES)
@pytest.mark.parametrize("has_z", [False, True])
@pytest.mark.parametrize("dstate", [16, 32, 64])
@pytest.mark.parametrize("dim", [2048, 2048 + 16, 4096])
def test_plain(device, dim, dstate, has_z, dtype):
    state = torch.randn(2, dim, dstate, dtype=dtype, device=device)
    x, dt = torch.randn(2, dim, device=device, dtype=dtype), torch.randn(2, dim, device=device, dtype=dtype)
    dt_bias, D = torch.rand(dim, device=device) - 4.0, torch.randn(dim, device=device)
    A = -torch.rand(dim, dstate, device=device) - 1.0
    B, C = torch.randn(2, dstate, device=device, dtype=dtype), torch.randn(2, dstate, device=device, dtype=dtype)
    z = torch.randn_like(x) if has_z else None
    s, x2, dt2, A2, B2, C2, D2, z2, bias2 = refs.doubles(state, x, dt, A, B, C, D, z, dt_bias)
    want, want_state = refs.state_update(s[:, None], x2[:, None], dt2[:, None], A2[None], B2[:, None], C2[:, None], D2[None],
                                         None if z2 is None else z2[:, None], bias2[None], True)
    out = selective_state_update(state, x, dt, A, B, C, D=D, z=z, dt_bias=dt_bias, dt_softplus=True)
    assert out.dtype == dtype and out.shape == x.shape
    refs.close(state, want_state[:, 0], refs.UPDATE_TOLERANCES[dtype])
    refs.close(out, want[:, 0], refs.UPDATE_TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", refs.DTYPES)
@pytest.mark.parametrize("ngroups,tied", list(itertools.product([1, 2, 4], [False, True])))
@pytest.mark.parametrize("has_z", [False, True])
def test_heads(device, has_z, ngroups, tied, dtype):
    batch, headdim, nheads, n = 3, 64, 8, 32
    state = torch.randn(batch, nheads, headdim, n, dtype=dtype, device=device)
    x = torch.randn(batch, nheads, headdim, device=device, dtype=dtype)
    if tied:  # one value per head, expanded with stride 0 as in Mamba2.step
        dt = torch.randn(batch, nheads, 1, device=device, dtype=dtype).expand(-1, -1, headdim)
        dt_bias = (torch.rand(nheads, 1, device=device) - 4.0).expand(-1, headdim)
        A = (-torch.rand(nheads, 1, 1, device=device) - 1.0).expand(-1, headdim, n)
        D = torch.randn(nheads, 1, device=device).expand(-1, headdim)
    else:
        dt = torch.randn(batch, nheads, headdim, device=device, dtype=dtype)
        dt_bias, D = torch.rand(nheads, headdim, device=device) - 4.0, torch.randn(nheads, headdim, device=device)
        A = -torch.rand(nheads, headdim, n, device=device) - 1.0
    B, C = [torch.randn(batch, ngroups, n, device=device, dtype=dtype) for _ in range(2)]
    z = torch.randn_like(x) if has_z else None
    s, x2, dt2, A2, B2, C2, D2, z2, bias2 = refs.doubles(state, x, dt, A, B, C, D, z, dt_bias)
    want, want_state = refs.state_update(s, x2, dt2, A2, B2, C2, D2, z2, bias2, True)
    copy = state.clone()
    out = selective_state_update(state, x, dt, A, B, C, D=D, z=z, dt_bias=dt_bias, dt_softplus=True)
    tolerance = {torch.float32: (3e-4, 1e-3), torch.float16: (5e-3, 3e-2), torch.bfloat16: (1e-2, 1e-1)}[dtype]
    refs.close(state, want_state, tolerance)
    refs.close(out, want, tolerance)
    ref = selective_state_update_ref(copy, x, dt, A, B, C, D=D, z=z, dt_bias=dt_bias, dt_softplus=True)
    refs.close(ref, want, tolerance, 3)


def test_without_D_and_bias(device):
    """Upstream fails here although both default to None."""
    state = torch.randn(2, 8, 4, device=device)
    x, dt = torch.randn(2, 8, device=device), torch.rand(2, 8, device=device)
    A, B, C = -torch.rand(8, 4, device=device), torch.randn(2, 4, device=device), torch.randn(2, 4, device=device)
    s, x2, dt2, A2, B2, C2 = refs.doubles(state, x, dt, A, B, C)
    want, want_state = refs.state_update(s[:, None], x2[:, None], dt2[:, None], A2[None], B2[:, None], C2[:, None])
    out = selective_state_update(state, x, dt, A, B, C)
    refs.close(out, want[:, 0], (1e-5, 1e-5))
    refs.close(state, want_state[:, 0], (1e-5, 1e-5))


@pytest.mark.parametrize("has_heads", [False, True])
def test_indices(device, has_heads):
    """Rows of a larger state; a negative index leaves the state unchanged and gives 0."""
    inner = (4, 8) if has_heads else (8,)
    groups = (2,) if has_heads else ()
    cache = torch.randn(6, *inner, 16, device=device)
    before = cache.clone()
    x, dt = torch.randn(3, *inner, device=device), torch.rand(3, *inner, device=device)
    A = -torch.rand(*inner, 16, device=device)
    B, C = [torch.randn(3, *groups, 16, device=device) for _ in range(2)]
    indices = torch.tensor([4, -1, 0], dtype=torch.int32, device=device)
    out = selective_state_update(cache, x, dt, A, B, C, dt_softplus=True, state_batch_indices=indices)
    for row, index in ((0, 4), (2, 0)):
        state = before[index:index + 1].clone()
        one = [t[row:row + 1] for t in (x, dt, B, C)]
        want = selective_state_update(state, one[0], one[1], A, one[2], one[3], dt_softplus=True)
        assert torch.equal(out[row:row + 1], want) and torch.equal(cache[index:index + 1], state)
    assert torch.equal(out[1], torch.zeros_like(out[1]))
    for untouched in (1, 2, 3, 5):
        assert torch.equal(cache[untouched], before[untouched])


def test_wrong_shapes_are_refused(device):
    state, x = torch.zeros(2, 8, 4, device=device), torch.zeros(2, 8, device=device)
    A, B = torch.zeros(8, 4, device=device), torch.zeros(2, 4, device=device)
    with pytest.raises(AssertionError):
        selective_state_update(state, x, torch.zeros(2, 7, device=device), A, B, B)
    with pytest.raises(AssertionError):
        selective_state_update(state, x, x, torch.zeros(8, 5, device=device), B, B)
    with pytest.raises(RuntimeError):
        selective_state_update(state.double(), x, x, A, B, B)
    if device == "cuda":  # a CPU computes float64 in plain torch
        with pytest.raises(RuntimeError):
            selective_state_update(state.double(), x.double(), x.double(), A, B.double(), B.double())


@pytest.mark.parametrize("has_heads", [False, True])
def test_missing_rows_are_refused(has_heads):
    """On the CPU only; a GPU's indices are not read before the launch."""
    inner, groups = ((2, 4), (1,)) if has_heads else ((8,), ())
    state, x, A, B = torch.randn(5, *inner, 4), torch.randn(2, *inner), -torch.rand(*inner, 4), torch.randn(2, *groups, 4)
    before = state.clone()
    with pytest.raises(RuntimeError, match=r"state_batch_indices\[1\] is 5, must be below 5"):
        selective_state_update(state, x, x.abs(), A, B, B, state_batch_indices=torch.tensor([0, 5], dtype=torch.int32))
    assert torch.equal(state, before)
