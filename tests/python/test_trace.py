"""torch.jit.trace, torch.export, torch.func and forward-mode derivatives: correct, or an error with an alternative."""

import io
import os
import subprocess
import sys
import warnings

import pytest
import torch

import refs
from krait import _torch
from krait.ops import causal_conv1d_varlen_states, state_update
from mamba_ssm import Mamba, Mamba2, Mamba3
from mamba_ssm.ops.selective_scan_interface import selective_scan_fn
from mamba_ssm.ops.triton.layer_norm import layer_norm_fn

needs_operators = pytest.mark.skipif(not _torch.HAS_CUSTOM_OPS, reason="this torch has no torch.library.custom_op")
MODULES = {"Mamba": lambda: Mamba(16), "bidirectional": lambda: Mamba(16, bimamba=True), "Mamba2": lambda: Mamba2(16, d_state=4, headdim=8),
           "Mamba3": lambda: Mamba3(16, d_state=8, headdim=8), "MIMO": lambda: Mamba3(16, d_state=8, headdim=8, is_mimo=True, mimo_rank=2, is_outproj_norm=True)}


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, vmap loops
        yield


@needs_operators
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", list(MODULES))
def test_jit_trace(device, name, grad):
    """Traces record krait's operators: exact on other inputs, of another shape, and after saving."""
    m = MODULES[name]().to(device).eval()
    with torch.set_grad_enabled(grad):
        trace = torch.jit.trace(m, (torch.randn(2, 9, 16, device=device),))
        assert "krait::" in str(trace.inlined_graph)
        file = io.BytesIO()
        torch.jit.save(trace, file)
        file.seek(0)
        loaded = torch.jit.load(file, map_location=device)
        for shape in ((2, 9, 16), (3, 14, 16)):
            x = torch.randn(shape, device=device)
            want = m(x)
            for other in (trace, loaded):
                refs.close(other(x), want, (1e-6, 1e-6))
        if grad:
            wanted = torch.autograd.grad(m(x).square().sum(), list(m.parameters()))
            for a, b in zip(torch.autograd.grad(loaded(x).square().sum(), list(loaded.parameters())), wanted):
                assert a.shape == b.shape
            grads = dict(zip([n for n, _ in loaded.named_parameters()], torch.autograd.grad(loaded(x).square().sum(), list(loaded.parameters()))))
            for (n, _), b in zip(m.named_parameters(), wanted):
                refs.close(grads[n], b, (1e-5, 1e-5))


@needs_operators
def test_a_saved_trace_in_another_process(tmp_path):
    """Needs only krait.ops, which registers the operators, not mamba_ssm."""
    m, x = Mamba(16).eval(), torch.randn(2, 9, 16)
    with torch.no_grad():
        torch.jit.save(torch.jit.trace(m, (x,)), tmp_path / "m.pt")
        torch.save((x, m(x)), tmp_path / "x.pt")
    code = ("import sys, torch, krait.ops; m = torch.jit.load(sys.argv[1]); x, want = torch.load(sys.argv[2]); assert 'mamba_ssm' not in sys.modules; "
            "torch.testing.assert_close(m(x), want, rtol=0, atol=0)")
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "m.pt"), str(tmp_path / "x.pt")], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@needs_operators
def test_traced_steps(device):
    """Operators that modify their state."""
    A, B = -torch.rand(8, 4, device=device), torch.randn(2, 4, device=device)

    def step(state, x):
        y = state_update(state, x, x.abs(), A, B, B)
        return y, state

    trace = torch.jit.trace(step, (torch.zeros(2, 8, 4, device=device), torch.randn(2, 8, device=device)), check_trace=False)
    state, x = torch.randn(2, 8, 4, device=device), torch.randn(2, 8, device=device)
    twin = state.clone()
    got, want = trace(state, x)[0], step(twin, x)[0]
    assert torch.equal(got, want) and torch.equal(state, twin)


@needs_operators
def test_varlen_states_and_dropout(device):
    """Compiled and traced alike."""
    x, ends = torch.randn(9, 4, device=device), torch.tensor([0, 4, 9], dtype=torch.int32, device=device)
    want = causal_conv1d_varlen_states(x, ends, 3)
    assert torch.equal(torch.compile(causal_conv1d_varlen_states, backend="aot_eager", fullgraph=True)(x, ends, 3), want)
    trace = torch.jit.trace(lambda x, ends: causal_conv1d_varlen_states(x, ends, 3), (x + 1, ends))
    assert torch.equal(trace(x, ends), want)
    weight = torch.ones(4, device=device)
    out = torch.compile(lambda x: layer_norm_fn(x, weight, None, dropout_p=0.5, is_rms_norm=True), backend="aot_eager", fullgraph=True)(x)
    assert out.shape == x.shape and bool((out == 0).any())


@needs_operators
@pytest.mark.skipif(not hasattr(torch, "export"), reason="this torch has no torch.export")
@pytest.mark.parametrize("name", ["Mamba", "Mamba2", "Mamba3", "MIMO"])
def test_export(device, name):
    m, x = MODULES[name]().to(device).eval(), torch.randn(2, 9, 16, device=device)
    length = torch.export.Dim("length", min=4, max=64)
    program = torch.export.export(m, (torch.randn(2, 11, 16, device=device),), dynamic_shapes=({1: length},))
    refs.close(program.module()(x), m(x), (1e-6, 1e-6))


def _scan():
    A, B = -torch.rand(8, 4), torch.randn(2, 4, 9)
    return lambda u: selective_scan_fn(u, u.abs(), A, B, B)


@needs_operators
@pytest.mark.skipif(not hasattr(torch, "func"), reason="this torch has no torch.func")
def test_vmap():
    """Sample by sample, with outer gradients."""
    f, samples = _scan(), torch.randn(3, 2, 8, 9, requires_grad=True)
    got, want = torch.func.vmap(f)(samples), torch.stack([f(s) for s in samples])
    assert torch.equal(got, want)
    assert torch.equal(*[torch.autograd.grad(t.square().sum(), samples)[0] for t in (got, want)])
    for m in (Mamba(16), *[MODULES[name]() for name in ("Mamba2", "Mamba3", "MIMO")]):
        x = torch.randn(3, 2, 9, 16)
        refs.close(torch.func.vmap(m)(x), torch.stack([m(s) for s in x]), (1e-6, 1e-6))


@pytest.mark.skipif(not hasattr(torch, "func"), reason="this torch has no torch.func")
def test_derivatives_of_torch_func():
    """In any nesting, by the operators in plain torch."""
    f, u = _scan(), torch.randn(2, 8, 9, requires_grad=True)
    want, = torch.autograd.grad(f(u).sum(), u)
    u = u.detach()
    for got in (torch.func.grad(lambda u: f(u).sum())(u), torch.func.jacrev(f)(u).sum((0, 1, 2)), torch.func.vmap(torch.func.grad(lambda u: f(u).sum()))(u[None])[0],
                torch.func.grad(lambda u: torch.func.vmap(f)(u).sum())(u[None])[0]):
        refs.close(got, want, (1e-4, 1e-5))
    refs.close(torch.func.jvp(f, (u,), (want,))[1].sum(), want.square().sum(), (1e-4, 1e-4))
    with pytest.raises(RuntimeError, match="cannot be used with krait::causal_conv1d_varlen_states"):
        torch.func.grad(lambda x: causal_conv1d_varlen_states(x, torch.tensor([0, 4, 9], dtype=torch.int32), 3).sum())(torch.randn(9, 4))


def test_forward_mode():
    """Not a zero derivative."""
    f, u, d = _scan(), torch.randn(2, 8, 9), torch.randn(2, 8, 9)
    with torch.autograd.forward_ad.dual_level():
        got = torch.autograd.forward_ad.unpack_dual(f(torch.autograd.forward_ad.make_dual(u, d))).tangent
    g, = torch.autograd.grad(f(u.requires_grad_()).sum(), u)
    u.requires_grad_(False)
    refs.close(got.sum(), (g * d).sum(), (1e-4, 1e-4))
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.functional.jvp(f, (u,), (u,))


ATTENTION = {"flash_attn": dict(use_flash_attn=True, causal=True, rotary_emb_dim=8), "grouped": dict(use_flash_attn=True, num_heads_kv=2), "torch": dict(causal=True, rotary_emb_dim=8)}


@needs_operators
@pytest.mark.parametrize("name", [*ATTENTION, "mamba_ssm"])
def test_attention_modules(name):
    """MHA under vmap, jit.trace, compilation as one graph, export and per-sample gradients."""
    from flash_attn.modules.mha import MHA
    from mamba_ssm.modules.mha import MHA as Hybrid
    m = (Hybrid(32, 4, d_conv=4, rotary_emb_dim=8, causal=True) if name == "mamba_ssm" else MHA(32, 4, **ATTENTION[name])).eval()
    x = torch.randn(2, 2, 9, 32)
    want = torch.stack([m(s) for s in x])
    forms = torch.jit.trace(m, (x[1],)), torch.compile(m, backend="aot_eager", fullgraph=True), torch.export.export(m, (x[1],)).module()
    for got in (torch.func.vmap(m)(x), *[torch.stack([form(s) for s in x]) for form in forms]):
        refs.close(got, want, (1e-6, 1e-6))

    def loss(parameters, sample):
        return torch.func.functional_call(m, parameters, (sample,)).square().sum()

    parameters = dict(m.named_parameters())
    got = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    refs.close(got["out_proj.weight"][1], torch.autograd.grad(m(x[1]).square().sum(), m.out_proj.weight)[0], (1e-4, 1e-4))
