"""The operators in plain torch: float64 on a CPU, torch.func, derivatives of derivatives; they agree with the operators."""

import warnings

import pytest
import torch

import refs
from causal_conv1d import causal_conv1d_fn, causal_conv1d_update
from flash_attn import flash_attn_func, flash_attn_varlen_func
from flash_attn.layers.rotary import apply_rotary_emb
from krait.ops import in_plain_torch, mamba_inner, selective_scan, ssd
from mamba_ssm import Mamba, Mamba2
from mamba_ssm.ops.selective_scan_interface import selective_scan_fn
from mamba_ssm.ops.triton.layer_norm import layer_norm_fn
from mamba_ssm.ops.triton.layernorm_gated import rmsnorm_fn
from mamba_ssm.ops.triton.selective_state_update import selective_state_update
from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined, mamba_split_conv1d_scan_combined

INDEX = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 2, -1]], dtype=torch.int32)
ENDS = torch.tensor([0, 2, 2, 5], dtype=torch.int32)


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def randn(*shape, dtype=None):
    return torch.randn(*shape, dtype=dtype)


def updated(state, *others, **options):
    """The step out of place, so that it can be differentiated."""
    state = state.clone()
    return selective_state_update(state, *others, **options), state


def conv_updated(x, state, weight):
    state = state.clone()
    return causal_conv1d_update(x, state, weight, None, "silu"), state


# name: function of the tensors, their shapes (A is made negative, dt positive by the function)
CALLS = {
    "conv": (lambda x, w, b: causal_conv1d_fn(x, w, b, activation="silu"), (2, 3, 5), (3, 4), (3,)),
    "conv, states": (lambda x, w, i: causal_conv1d_fn(x, w, initial_states=i, return_final_states=True), (2, 3, 5), (3, 4), (2, 3, 3)),
    "conv, packed": (lambda x, w: causal_conv1d_fn(x, w, seq_idx=INDEX, activation="silu"), (2, 3, 5), (3, 4)),
    "conv, reverse": (lambda x, w, i: causal_conv1d_fn(x, w, initial_states=i, return_final_states=True, reverse=True), (2, 3, 5), (3, 4), (2, 3, 3)),
    "conv update": (conv_updated, (2, 3), (2, 3, 4), (3, 4)),
    "scan": (lambda u, d, A, B, C, D, z, b: selective_scan_fn(u, d, -A.exp(), B, C, D, z, b, True, True), (2, 4, 5), (2, 4, 5), (4, 2), (2, 2, 2, 5), (2, 2, 2, 5), (4,),
             (2, 4, 5), (4,)),
    "scan, constant": (lambda u, d, A, B, C: selective_scan_fn(u, d, -A.exp(), B, C, reverse=True), (2, 4, 5), (2, 4, 5), (4, 2), (4, 2), (4, 2)),
    "scan, packed": (lambda u, d, A, B, C, i: selective_scan_fn(u, d, -A.exp(), B, C, seq_idx=INDEX, initial_states=i), (2, 4, 5), (2, 4, 5), (4, 2), (2, 2, 5), (2, 2, 5), (2, 4, 2)),
    "scan, sequences": (lambda u, d, A, B, C: selective_scan_fn(u, d, -A.exp(), B, C, cu_seqlens=ENDS, return_last_state=True), (1, 4, 5), (1, 4, 5), (4, 2), (1, 2, 5), (1, 2, 5)),
    "scan, both ways": (lambda u, d, A, B, C, D: selective_scan(u, d, -A.exp(), B, C, D, A_reverse=-A), (2, 4, 5), (2, 4, 5), (4, 2), (2, 2, 5), (2, 2, 5), (4,)),
    "ssd": (lambda x, d, A, B, C, D, z, b, i: mamba_chunk_scan_combined(x, d, -A.exp(), B, C, 4, D, z, b, i, dt_softplus=True, return_final_states=True), (2, 5, 2, 3), (2, 5, 2), (2,),
            (2, 5, 1, 2), (2, 5, 1, 2), (2,), (2, 5, 2, 3), (2,), (2, 2, 3, 2)),
    "ssd, packed": (lambda x, d, A, B, C, D: ssd(x, d, -A.exp(), B, C, D, seq_idx=INDEX, dt_limit=(0.1, 0.9), return_final_states=True)[:2], (2, 5, 2, 3), (2, 5, 2), (2,), (2, 5, 1, 2),
                    (2, 5, 1, 2), (2, 3)),
    "ssd, reverse": (lambda x, d, A, B, C: ssd(x, d, -A.exp(), B, C, dt_softplus=True, reverse=True)[0], (2, 5, 2, 3), (2, 5, 2), (2,), (2, 5, 2, 2), (2, 5, 2, 2)),
    "attention": (lambda q, k, v: flash_attn_func(q, k, v, causal=True), (2, 5, 4, 8), (2, 4, 2, 8), (2, 4, 2, 8)),
    "attention, options": (lambda q, k, v: flash_attn_func(q, k, v, window_size=(2, 1), softcap=2.0, alibi_slopes=torch.tensor([0.5, 0.25, 0.1, 0.2])), (2, 4, 4, 8), (2, 5, 2, 8), (2, 5, 2, 8)),
    "attention, packed": (lambda q, k, v: flash_attn_varlen_func(q, k, v, ENDS, ENDS, 3, 3, causal=True), (5, 2, 8), (5, 2, 8), (5, 2, 8)),
    "rotary": (lambda x, cos, sin: apply_rotary_emb(x, cos, sin), (2, 5, 2, 8), (5, 3), (5, 3)),
    "rotary, interleaved": (lambda x, cos, sin: apply_rotary_emb(x, cos, sin, True, seqlen_offsets=torch.tensor([0, 2])), (2, 5, 2, 8), (7, 3), (7, 3)),
    "norm": (lambda x, w, b, r: layer_norm_fn(x, w, b, residual=r, prenorm=True), (2, 5, 8), (8,), (8,), (2, 5, 8)),
    "rms norm": (lambda x, w, x1, w1, s: layer_norm_fn(x, w, None, x1=x1, weight1=w1, is_rms_norm=True), (2, 5, 8), (8,), (2, 5, 8), (8,), (2, 5)),
    "gated norm": (lambda x, w, z: rmsnorm_fn(x, w, None, z, group_size=4, norm_before_gate=False), (2, 5, 8), (8,), (2, 5, 8)),
    "state update": (lambda s, x, d, A, B, C, D, z, b: updated(s, x, d, -A.exp(), B, C, D, z, b, True), (2, 4, 2), (2, 4), (2, 4), (4, 2), (2, 2), (2, 2), (4,), (2, 4), (4,)),
    "inner": (lambda xz, w, x, d, o, A: mamba_inner(xz, w, None, x, d, o, None, -A.exp()), (2, 8, 5), (4, 1, 4), (5, 4), (4, 1), (6, 4), (4, 2)),
    "Mamba-2's inside": (lambda x, w, b, A, D, n: mamba_split_conv1d_scan_combined(x, w, None, b, -A.exp(), D, 4, rmsnorm_weight=n, headdim=2, ngroups=1), (2, 5, 20), (8, 4), (2,), (2,),
                         (2,), (4,)),
}
NOT_LEAVES = {"rotary": (1, 2), "rotary, interleaved": (1, 2), "rms norm": (4,)}  # arguments without gradient


def inputs(name, dtype):
    torch.manual_seed(1)
    return [randn(*shape, dtype=dtype).requires_grad_(dtype is torch.float64 and i not in NOT_LEAVES.get(name, ())) for i, shape in enumerate(CALLS[name][1:])]


@pytest.mark.parametrize("name", list(CALLS))
def test_float64(name):
    """Values and gradients near the operators' in float32; gradcheck of the former."""
    function, wide = CALLS[name][0], inputs(name, torch.float64)
    narrow = [t.detach().float().requires_grad_(t.requires_grad) for t in wide]
    got, want = [out if isinstance(out, tuple) else (out,) for out in (function(*wide), function(*narrow))]
    for a, b in zip(got, want):
        assert a.dtype is torch.float64 or a.dtype is b.dtype
        refs.close(a, b.detach().double(), (1e-4, 1e-5))
    assert torch.autograd.gradcheck(function, wide, fast_mode=True)
    if not want[0].requires_grad:  # a step has no gradient in float32
        return
    leaves = [i for i, t in enumerate(wide) if t.requires_grad]
    gs = [torch.randn_like(b) for b in want]
    grads = [torch.autograd.grad([o for o in outs if o.requires_grad], [t[i] for i in leaves], [g.to(o.dtype) for g, o in zip(gs, outs) if o.requires_grad], allow_unused=True)
             for outs, t in ((got, wide), (want, narrow))]
    for a, b in zip(*grads):
        if b is not None:
            refs.close(a, b.double(), (1e-3, 1e-4))


needs_func = pytest.mark.skipif(not hasattr(torch, "func"), reason="this torch has no torch.func")
MODULES = {"Mamba": lambda: Mamba(16), "Mamba2": lambda: Mamba2(16, d_state=4, headdim=8)}


@needs_func
@pytest.mark.parametrize("name", list(MODULES))
def test_per_sample_gradients(name):
    """vmap of grad, jvp and jacrev through whole blocks in float32."""
    m, x = MODULES[name](), randn(3, 5, 16)
    parameters = dict(m.named_parameters())

    def loss(parameters, sample):
        return torch.func.functional_call(m, parameters, (sample[None],)).square().sum()

    got = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    for i, sample in enumerate(x):
        want = torch.autograd.grad(loss(parameters, sample), list(parameters.values()))
        for g, w in zip(got.values(), want):
            refs.close(g[i], w, (1e-4, 1e-4))
    direction = randn(3, 5, 16)
    _, pushed = torch.func.jvp(m, (x,), (direction,))
    y = m(x.requires_grad_())
    g = torch.randn_like(y)
    refs.close((pushed * g).sum(), (torch.autograd.grad(y, x, g)[0] * direction).sum(), (1e-3, 1e-3))


@pytest.mark.parametrize("name", list(MODULES))
def test_second_derivatives(name):
    """A gradient penalty: refused with the way out, right on it, as in float64."""
    m, x = MODULES[name](), randn(2, 5, 16)

    def penalty(m, x):
        g, = torch.autograd.grad(m(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(g.square().sum(), m.out_proj.weight)[0]

    with pytest.raises(RuntimeError, match=r"second derivatives.*krait.ops.in_plain_torch\(\)"):
        penalty(m, x.requires_grad_())
    with in_plain_torch():
        got = penalty(m, x)
    refs.close(got, penalty(m.double(), x.detach().double().requires_grad_()), (1e-3, 1e-3))


def test_what_plain_torch_has_not():
    q = randn(1, 4, 2, 8, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="attention in plain torch .* has no dropout"):
        flash_attn_func(q, q, q, dropout_p=0.5)
    with pytest.raises(RuntimeError, match="conv|weight|x"):
        causal_conv1d_fn(randn(2, 3, 5, dtype=torch.float64), randn(4, 4, dtype=torch.float64))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        from krait import _torch
        _torch._warned.clear()
        for _ in range(2):
            causal_conv1d_fn(randn(2, 3, 5, dtype=torch.float64), randn(3, 4, dtype=torch.float64))
    assert [str(w.message) for w in found] == ["krait: float64 on a CPU runs in plain torch, many times slower than the operators for float32"]
