"""torch.compile through custom operators with fake kernels: no graph breaks, the same values and gradients."""

import pytest
import torch

import refs
from krait import _torch

pytestmark = pytest.mark.skipif(not _torch.HAS_CUSTOM_OPS, reason="this torch has no torch.library.custom_op")


def compiled(function):
    return torch.compile(function, backend="aot_eager", fullgraph=True)


def check(function, tensors, bound=(1e-5, 1e-5)):
    """Value and gradients of the compiled function against the eager ones."""
    want, got = function(*tensors), compiled(function)(*tensors)
    refs.close(got, want, bound)
    leaves = [t for t in tensors if t is not None and t.requires_grad]
    g = torch.randn_like(want)
    for a, b in zip(torch.autograd.grad(got, leaves, g), torch.autograd.grad(want, leaves, g)):
        refs.close(a, b, bound)


def leaf(*shape, device):
    return torch.randn(*shape, device=device, requires_grad=True)


def test_conv(device):
    from causal_conv1d import causal_conv1d_fn
    check(lambda x, w, b: causal_conv1d_fn(x * 2, w, b, activation="silu") + 1,
          [leaf(2, 8, 9, device=device), leaf(8, 4, device=device), leaf(8, device=device)])


def test_scan(device):
    from mamba_ssm import selective_scan_fn
    x, A = leaf(2, 8, 9, device=device), (-torch.rand(8, 4, device=device)).requires_grad_()
    check(lambda u, A, B, C, D: selective_scan_fn(u, u.abs(), A, B, C, D, z=u, delta_softplus=True),
          [x, A, leaf(2, 4, 9, device=device), leaf(2, 4, 9, device=device), leaf(8, device=device)])


def test_gated_delta_rule(device):
    from krait.ops import gated_delta_rule
    q, k, v = leaf(2, 9, 2, 8, device=device), leaf(2, 9, 2, 8, device=device), leaf(2, 9, 4, 5, device=device)
    check(lambda q, k, v, g, b: sum(t.square().sum() for t in gated_delta_rule(q, k, v, -g.abs(), torch.sigmoid(b), normalize=True, return_final_states=True)),
          [q, k, v, leaf(2, 9, 4, device=device), leaf(2, 9, 4, device=device)])


def test_norms(device):
    from mamba_ssm.ops.triton.layer_norm import rms_norm_fn
    from mamba_ssm.ops.triton.layernorm_gated import rmsnorm_fn
    check(lambda x, w, r: sum(rms_norm_fn(x, w, None, residual=r, prenorm=True)),
          [leaf(2, 5, 16, device=device), leaf(16, device=device), leaf(2, 5, 16, device=device)])
    check(lambda x, w, z: rmsnorm_fn(x, w, None, z), [leaf(2, 5, 16, device=device), leaf(16, device=device), leaf(2, 5, 16, device=device)])


def test_updates(device):
    """Operators that modify their state, inside a compiled function."""
    from causal_conv1d import causal_conv1d_update
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update
    A, w = -torch.rand(8, 4, device=device), torch.randn(8, 4, device=device)

    def step(conv_state, state, x):
        y = causal_conv1d_update(x, conv_state, w, None, "silu")
        return selective_state_update(state, y, x.abs(), A, x[:, :4], x[:, 4:])

    args = [torch.randn(2, 8, 4, device=device), torch.randn(2, 8, 4, device=device), torch.randn(2, 8, device=device)]
    twins = [t.clone() for t in args]
    with torch.no_grad():
        refs.close(compiled(step)(*args), step(*twins), (1e-6, 1e-6))
    assert all(torch.allclose(a, b) for a, b in zip(args, twins))


def test_ssd(device):
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined
    A = (-torch.rand(4, device=device)).requires_grad_()
    check(lambda x, dt, A, B, C, D: mamba_chunk_scan_combined(x * 2, dt.abs(), A, B, C, 16, D=D, z=x, dt_softplus=True) + 1,
          [leaf(2, 19, 4, 6, device=device), leaf(2, 19, 4, device=device), A, leaf(2, 19, 2, 5, device=device), leaf(2, 19, 2, 5, device=device),
           leaf(4, device=device)], (1e-4, 1e-4))


@pytest.mark.parametrize("causal", [False, True])
def test_attention(device, causal):
    from flash_attn import flash_attn_func, flash_attn_varlen_func
    offsets = torch.tensor([0, 5, 5, 18], dtype=torch.int32, device=device)
    qkv = [leaf(2, 9, 4, 16, device=device), leaf(2, 9, 2, 16, device=device), leaf(2, 9, 2, 16, device=device)]
    check(lambda q, k, v: flash_attn_func(q * 2, k, v, causal=causal, window_size=(3, -1)) + 1, qkv)
    check(lambda q, k, v: flash_attn_varlen_func(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), offsets, offsets, 13, 13, causal=causal), qkv)


@pytest.mark.parametrize("name", ["Mamba", "bidirectional", "Mamba3", "MIMO"])
def test_modules(device, name):
    from test_trace import MODULES
    m, x = MODULES[name]().to(device), torch.randn(2, 9, 16, device=device)
    want = m(x)
    grads = torch.autograd.grad(want.square().sum(), list(m.parameters()))
    got = compiled(m)(x)
    refs.close(got, want, (1e-5, 1e-5))
    for a, b in zip(torch.autograd.grad(got.square().sum(), list(m.parameters())), grads):
        refs.close(a, b, (1e-4, 1e-4))


def test_registrations(device):
    """torch's own check of schema, fake kernel and aliasing."""
    import krait.ops  # noqa: F401
    x, w = torch.randn(2, 8, 9, device=device), torch.randn(8, 4, device=device)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.krait.causal_conv1d, (x, w, None, None, None, True, False, True), test_utils=checks)
    torch.library.opcheck(torch.ops.krait.causal_conv1d_update, (x, torch.randn(2, 8, 4, device=device), w, None, True, None, None), test_utils=checks)
    A, B = -torch.rand(8, 4, device=device), torch.randn(2, 4, 9, device=device)
    torch.library.opcheck(torch.ops.krait.selective_scan, (x, x, A, B, B, None, x, None, None, None, None, None, True, False, True), test_utils=checks)
    torch.library.opcheck(torch.ops.krait.state_update, (torch.randn(2, 8, 4, device=device), x[..., 0], x[..., 1].abs(), A, B[..., 0], B[..., 1],
                                                         None, None, None, None, True), test_utils=checks)
