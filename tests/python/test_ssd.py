"""Mamba-2's scan and related functions: golden files, the recurrence in float64, packed and empty sequences, errors."""

import inspect
import json
import math
import sys
import types

import pytest
import torch
import torch.nn.functional as F

import refs
from krait.ops import ssd
from mamba_ssm.modules.ssd_minimal import segsum, segsum_unstable, ssd_minimal_discrete
from mamba_ssm.ops.triton import ssd_chunk_state, ssd_combined, ssd_state_passing
from mamba_ssm.ops.triton.k_activations import SwiGLU, _swiglu_bwd, _swiglu_fwd, swiglu
from mamba_ssm.ops.triton.ssd_bmm import _bmm_chunk_fwd, bmm_chunk
from mamba_ssm.ops.triton.ssd_chunk_scan import _chunk_scan_fwd, chunk_scan
from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined, mamba_split_conv1d_scan_combined

GRADIENTS = ("x", "dt", "A", "B", "C", "D", "z", "dt_bias", "initial_states")


def make(device="cpu", b=2, length=21, h=4, p=6, g=2, n=5, dtype=torch.float32, wide_D=False, seed=0):
    torch.manual_seed(seed)
    t = {"x": torch.randn(b, length, h, p), "dt": torch.randn(b, length, h), "A": -0.1 - torch.rand(h), "B": torch.randn(b, length, g, n),
         "C": torch.randn(b, length, g, n), "D": torch.randn(h, p) if wide_D else torch.randn(h), "z": torch.randn(b, length, h, p),
         "dt_bias": torch.randn(h), "initial_states": torch.randn(b, h, p, n)}
    return {k: v.to(device=device, dtype=dtype if k in ("x", "dt", "B", "C", "z") else torch.float32).requires_grad_() for k, v in t.items()}


def reference(t, **options):
    twins = dict(zip(t, refs.doubles(*t.values())))
    return twins, refs.ssd(*[twins.get(k) for k in GRADIENTS], **options)


@pytest.mark.parametrize("path", refs.golden_files("ssd"))
def test_golden(device, path):
    """Upstream's kernels, interpreted, and its references agree with these files to 5e-6."""
    metadata, g = refs.read_safetensors(path)
    g = {k[len("golden."):]: v.to(device) for k, v in g.items()}
    options = json.loads(metadata["config"])
    inputs = {k: g[k].clone().requires_grad_() for k in GRADIENTS if k in g}
    result = mamba_chunk_scan_combined(**inputs, **{k: g[k] for k in ("seq_idx", "cu_seqlens") if k in g}, **options)
    names = ["out"] + [k for k in ("final_states", "varlen_states") if options.get("return_" + k)]
    result = dict(zip(names, result if len(names) > 1 else [result]))
    loss = sum((result[k] * g["loss_w_" + k]).sum() for k in names if "loss_w_" + k in g)
    loss.backward()
    assert all(refs.relative(result[k], g[k]) < 1e-5 for k in names)
    for k, v in inputs.items():
        assert refs.relative(v.grad, g["grad." + k]) < 1e-4, k


@pytest.mark.parametrize("path", refs.golden_files("ssd"))
@pytest.mark.parametrize("dtype,bound", [(torch.bfloat16, 1e-2), (torch.float16, 1.5e-3)], ids=str)
def test_golden_low_precision(device, path, dtype, bound):
    """The same cases with 16-bit inputs, against the float64 recurrence of the rounded inputs."""
    metadata, g = refs.read_safetensors(path)
    g = {k[len("golden."):]: v.to(device) for k, v in g.items()}
    options = json.loads(metadata["config"])
    options.pop("return_varlen_states", None)
    inputs = {k: g[k].to(dtype if k in ("x", "dt", "B", "C", "z") else torch.float32).requires_grad_() for k in GRADIENTS if k in g}
    result = mamba_chunk_scan_combined(**inputs, seq_idx=g.get("seq_idx"), **options)
    twins = dict(zip(inputs, refs.doubles(*inputs.values())))
    want, states = refs.ssd(*[twins.get(k) for k in GRADIENTS], seq_idx=g["seq_idx"].cpu() if "seq_idx" in g else None, softplus=options["dt_softplus"],
                            dt_limit=options.get("dt_limit", (0.0, math.inf)))
    names = ["out", "final_states"] if options.get("return_final_states") else ["out"]
    results, wanted = dict(zip(names, result if len(names) > 1 else [result])), dict(zip(names, (want, states[:, -1])))
    sum((results[k] * g["loss_w_" + k]).sum() for k in names).backward()
    sum((wanted[k] * g["loss_w_" + k].cpu()).sum() for k in names).backward()
    for k in names:
        assert refs.relative(results[k], wanted[k]) < bound, k
    for k, v in inputs.items():
        assert refs.relative(v.grad, twins[k].grad) < bound, k


@pytest.mark.parametrize("length", [1, 2, 21, 100])
@pytest.mark.parametrize("options", [{}, {"softplus": True}, {"softplus": True, "dt_limit": (0.3, 0.9)}, {"dt_limit": (-0.05, 0.5)}, {"softplus": True, "reverse": True}], ids=str)
@pytest.mark.parametrize("wide_D", [False, True])
def test_recurrence(device, options, length, wide_D):
    """Values and every gradient, also through the final states."""
    t = make(device, length=length, wide_D=wide_D)
    twins, (want, states) = reference(t, **options)
    want_final = states[:, 0 if options.get("reverse") else -1]
    out, final, varlen = ssd(**t, **{"dt_" + k if k == "softplus" else k: v for k, v in options.items()}, return_final_states=True)
    assert varlen is None and out.dtype == t["x"].dtype and final.dtype == torch.float32
    assert refs.relative(out, want) < 1e-5 and refs.relative(final, want_final) < 1e-5
    g, gf = torch.randn_like(out), torch.randn_like(final)
    torch.autograd.backward((out, final), (g, gf))
    torch.autograd.backward((want, want_final), (g.cpu().double(), gf.cpu().double()))
    for k, v in t.items():
        refs.close(v.grad, twins[k].grad, (1e-4, 1e-4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision(device, dtype):
    """Activations are rounded once, on output; steps, states and sums are float32."""
    t = make(device, dtype=dtype, length=64)
    twins, (want, states) = reference(t, softplus=True)
    out, final, _ = ssd(**t, dt_softplus=True, return_final_states=True)
    assert out.dtype == dtype and final.dtype == torch.float32
    refs.close(out, want, refs.TOLERANCES[dtype])
    assert refs.relative(final, states[:, -1]) < 1e-5
    g = torch.randn_like(out)
    out.backward(g)
    want.backward(g.cpu().double())
    for k, v in t.items():
        assert v.grad.dtype == v.dtype and refs.relative(v.grad, twins[k].grad) < (3e-3 if dtype is torch.float16 else 2e-2), k


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("n", [64, 136])
def test_aligned_rows(device, dtype, n):
    """Sizes for tensor cores, whose factors are rounded to the storage type."""
    t = make(device, dtype=dtype, length=150, p=64, n=n)
    seq_idx = (torch.arange(150, device=device) >= 100).to(torch.int32)[None].expand(2, -1).contiguous()
    twins, (want, states) = reference(t, softplus=True, seq_idx=seq_idx.cpu())
    out, final, _ = ssd(**t, seq_idx=seq_idx, dt_softplus=True, return_final_states=True)
    g = torch.randn_like(out)
    out.backward(g)
    want.backward(g.cpu().double())
    limit = 4e-3 if dtype is torch.float16 else 3e-2
    assert refs.relative(out, want) < limit and refs.relative(final, states[:, -1]) < limit
    for k, v in t.items():
        assert refs.relative(v.grad, twins[k].grad) < limit, k


def test_packed(device):
    """seq_idx separates sequences; each has the same states as alone."""
    t, ends = make(device, b=1, length=30), [0, 7, 8, 8, 20, 30]
    seq_idx = torch.cat([torch.full((e - b,), i, dtype=torch.int32) for i, (b, e) in enumerate(zip(ends, ends[1:]))])[None].to(device)
    cu_seqlens = torch.tensor(ends, dtype=torch.int32, device=device)
    out, final, varlen = mamba_chunk_scan_combined(**t, chunk_size=16, seq_idx=seq_idx, cu_seqlens=cu_seqlens, dt_softplus=True, return_final_states=True,
                                                   return_varlen_states=True)
    assert not varlen.requires_grad
    grads, pieces = torch.autograd.grad(out.square().sum(), list(t.values())), []
    for i, (begin, end) in enumerate(zip(ends, ends[1:])):
        part = {k: v[:, begin:end] if v.dim() > 2 and v.shape[1] == 30 else v for k, v in t.items()}
        first = t["initial_states"] if i == 0 else None
        piece, last, _ = ssd(**{**part, "initial_states": first}, dt_softplus=True, return_final_states=True)
        refs.close(varlen[i:i + 1], last if end > begin else torch.zeros_like(last), (1e-5, 1e-5))
        pieces.append(piece)
    whole = torch.cat(pieces, dim=1)
    refs.close(out, whole, (1e-5, 1e-5))
    refs.close(final, varlen[-1:], (1e-5, 1e-5))
    for got, want in zip(grads, torch.autograd.grad(whole.square().sum(), list(t.values()))):
        refs.close(got, want, (1e-4, 1e-4))


def test_indices_not_starting_at_zero(device):
    """initial_states belong to index 0; a last index below 0 leaves no state."""
    t = make(device, length=9)
    one = torch.ones(2, 9, dtype=torch.int32, device=device)
    plain = ssd(**{**t, "initial_states": None}, dt_softplus=True, return_final_states=True)
    for got, want in zip(ssd(**t, seq_idx=one, dt_softplus=True, return_final_states=True), plain):
        assert want is None or torch.equal(got, want)
    tail = one.clone()
    tail[1, 7:] = -1
    _, final, _ = ssd(**t, seq_idx=tail, dt_softplus=True, return_final_states=True)
    assert torch.equal(final[0], plain[1][0]) and not final[1].any()


def test_prefill_then_steps(device):
    """A sequence in pieces, each starting from the previous state, equals one long call."""
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update
    t = {k: v.detach() for k, v in make(device, length=40).items()}
    whole, last, _ = ssd(**t, dt_softplus=True, return_final_states=True)
    state, pieces = t["initial_states"], []
    for begin, end in ((0, 17), (17, 18), (18, 33)):
        part = {k: v[:, begin:end] if k in ("x", "dt", "B", "C", "z") else v for k, v in t.items()}
        piece, state, _ = ssd(**{**part, "initial_states": state}, dt_softplus=True, return_final_states=True)
        pieces.append(piece)
    state = state.clone()
    for i in range(33, 40):
        wide = [t[k][:, None].expand(-1, 6) for k in ("D", "dt_bias")]
        pieces.append(selective_state_update(state, t["x"][:, i], t["dt"][:, i, :, None].expand(-1, -1, 6), t["A"][:, None, None].expand(-1, 6, 5), t["B"][:, i],
                                             t["C"][:, i], wide[0], t["z"][:, i], wide[1], True)[:, None])
    assert refs.relative(torch.cat(pieces, 1), whole) < 1e-6 and refs.relative(state, last) < 1e-6


@pytest.mark.parametrize("b,length", [(0, 5), (2, 0), (0, 0)])
def test_nothing_to_do(device, b, length):
    """Empty outputs, unchanged states, zero gradients."""
    t = make(device, b=b, length=length)
    out, final, _ = ssd(**t, seq_idx=torch.zeros(b, length, dtype=torch.int32, device=device), dt_softplus=True, return_final_states=True)
    assert out.shape == (b, length, 4, 6) and torch.equal(final, t["initial_states"])
    (out.sum() + final.sum()).backward()
    assert not t["A"].grad.any() and not t["D"].grad.any() and t["x"].grad.shape == (b, length, 4, 6)


def test_repeats_are_bitwise_equal(device):
    t, results = make(device, length=300, h=8, p=16), []
    for _ in range(2):
        out, _, _ = ssd(**t, dt_softplus=True)
        results.append((out, *torch.autograd.grad(out.square().sum(), [t[k] for k in t])))
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_nan_stays_in_its_sequence(device):
    t = {k: v.detach() for k, v in make(device, b=1, length=20).items()}
    t["x"][0, 4] = float("nan")
    seq_idx = (torch.arange(20, device=device) >= 10).to(torch.int32)[None]
    out, _, _ = ssd(**t, seq_idx=seq_idx, dt_softplus=True)
    assert out[:, :4].isfinite().all() and out[:, 4:10].isnan().all() and out[:, 10:].isfinite().all()


def test_nan_of_a_later_token(device):
    """Chunks multiply it by zero for earlier tokens."""
    t = {k: v.detach() for k, v in make(device, b=1, length=100, p=16, n=16, dtype=torch.bfloat16).items()}
    plain, _, _ = ssd(**t, dt_softplus=True)
    t["x"][0, 40, 1, 3] = float("nan")
    out, _, _ = ssd(**t, dt_softplus=True)
    assert out[:, 40:, 1, 3].isnan().all()
    out[:, 40:, 1, 3], plain[:, 40:, 1, 3] = 0, 0
    refs.close(out, plain, refs.TOLERANCES[torch.bfloat16])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_million_tokens(device, dtype):
    """All ones: the state is a geometric series, and its gradient is one in reverse."""
    length, n, p, d = 1 << 20, 8, 8, 0.0625
    t = dict(x=torch.ones(1, length, 1, p, dtype=dtype, device=device, requires_grad=True), dt=torch.full((1, length, 1), d, dtype=dtype, device=device),
             A=torch.tensor([-0.1], device=device), **{k: torch.ones(1, length, 1, n, dtype=dtype, device=device) for k in "BC"})
    out, final, _ = ssd(**t, return_final_states=True)
    i = torch.arange(length, dtype=torch.float64)
    wanted = d * torch.expm1(-0.1 * d * (i + 1)) / math.expm1(-0.1 * d)
    bound = (1e-4, 1e-4) if dtype is torch.float32 else (1e-2, 1e-2)
    refs.close(out[0, :, 0, 3], n * wanted, bound)
    refs.close(final[0, 0], torch.full((p, n), float(wanted[-1])), bound)
    (grad,) = torch.autograd.grad(out[..., 3].float().sum(), t["x"])
    refs.close(grad[0, :, 0, 3], n * wanted.flip(0), bound)
    assert not grad[..., 4].any()


def test_repeated_index(device):
    """seq_idx need not increase: every change starts a sequence. Negative: no output, no state."""
    t = {k: v.detach() for k, v in make(device, b=1, length=12).items()}
    marks = [torch.tensor([v], dtype=torch.int32, device=device) for v in ([5] * 4 + [2] * 3 + [5] * 5, [1] * 4 + [2] * 3 + [3] * 5, [1] * 4 + [-1] * 3 + [3] * 5)]
    outs = [ssd(**t, seq_idx=m, dt_softplus=True, return_final_states=True)[:2] for m in marks]
    assert all(torch.equal(a, b) for a, b in zip(*outs[:2])) and torch.equal(outs[2][1], outs[1][1])
    assert not outs[2][0][:, 4:7].any() and torch.equal(outs[2][0][:, 7:], outs[1][0][:, 7:])


@pytest.mark.parametrize("where", ["x", "dt", "B", "C", "z", "dout"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_with_nan(device, where, dtype):
    """Non-finite values in one sequence do not change other sequences' gradients, except for another row's rounding: a
    GPU recomputes affected groups in float32."""
    t = make(device, b=1, length=100, p=16, n=16, dtype=dtype)
    seq_idx = torch.tensor([0] * 30 + [1] * 40 + [2] * 30, dtype=torch.int32, device=device)[None]
    others, each = seq_idx[0] != 1, [k for k in "x dt B C z".split()]
    dout, results = torch.randn_like(t["x"]), []
    for planted in (False, True):
        if planted:
            with torch.no_grad():
                {**t, "dout": dout}[where].data[0, 50, 1].fill_(float("nan"))
        out, _, _ = ssd(**t, seq_idx=seq_idx, dt_softplus=True)
        results.append(torch.autograd.grad(out, [t[k] for k in each], dout))
    for k, plain, got in zip(each, *results):
        assert refs.relative(got[:, others], plain[:, others]) < (1e-5 if dtype == torch.float32 else 2e-2)
    assert results[1][each.index("dt" if where in ("x", "dt") else "x")][:, 50].isnan().any()


def test_bad_input(device):
    t = {k: v.detach() for k, v in make(device).items()}
    for bad in ({"dt": t["dt"][..., :3]}, {"A": t["A"][:3]}, {"B": t["B"][:, :, :, :4]}, {"D": t["D"][:3]}, {"z": t["z"][:1]}, {"dt_bias": t["dt_bias"][:2]},
                {"initial_states": t["initial_states"][..., :4]}, {"seq_idx": torch.zeros(2, 20, dtype=torch.int32, device=device)},
                {"B": t["B"].repeat(1, 1, 2, 1)[:, :, :3], "C": t["C"].repeat(1, 1, 2, 1)[:, :, :3]}):
        with pytest.raises(RuntimeError, match="ssd: x and z must be"):
            ssd(**{**t, **bad})
    with pytest.raises(RuntimeError, match="low <= high"):
        ssd(**t, dt_limit=(0.5, 0.1))
    with pytest.raises(RuntimeError, match="batch of 1"):
        ssd(**t, cu_seqlens=torch.tensor([0, 21], dtype=torch.int32, device=device))
    with pytest.raises(RuntimeError, match="needs cu_seqlens"):
        ssd(**t, return_varlen_states=True)


def test_return_values(device):
    """The returned values depend on the options, as upstream's callers unpack them."""
    t = make(device, b=1)
    ends = torch.tensor([0, 21], dtype=torch.int32, device=device)
    assert isinstance(mamba_chunk_scan_combined(**t, chunk_size=8), torch.Tensor)
    assert len(mamba_chunk_scan_combined(**t, chunk_size=8, return_final_states=True)) == 2
    assert len(mamba_chunk_scan_combined(**t, chunk_size=8, cu_seqlens=ends, return_varlen_states=True)) == 2
    assert len(mamba_chunk_scan_combined(**t, chunk_size=8, cu_seqlens=ends, return_varlen_states=True, return_final_states=True, state_dtype=torch.float32)) == 3
    for chunk_size in (1, 7, 256):
        assert torch.equal(mamba_chunk_scan_combined(**t, chunk_size=chunk_size), mamba_chunk_scan_combined(**t, chunk_size=16))
    assert torch.equal(ssd_combined.MambaChunkScanCombinedFn.apply(*[t[k] for k in "x dt A B C".split()], 8, t["D"]),
                       mamba_chunk_scan_combined(*[t[k] for k in "x dt A B C".split()], 8, t["D"]))


def test_keywords():
    """transformers passes only arguments in the signature; order and defaults are upstream's."""
    def names(function):
        return list(inspect.signature(function).parameters)
    assert names(mamba_chunk_scan_combined) == (
        "x dt A B C chunk_size D z dt_bias initial_states seq_idx cu_seqlens dt_softplus dt_limit return_final_states return_varlen_states state_dtype".split())
    assert names(mamba_split_conv1d_scan_combined) == (
        "zxbcdt conv1d_weight conv1d_bias dt_bias A D chunk_size initial_states seq_idx dt_limit return_final_states activation rmsnorm_weight rmsnorm_eps "
        "outproj_weight outproj_bias headdim ngroups norm_before_gate state_dtype".split())
    assert names(ssd_chunk_state.chunk_state_varlen) == "B x dt dA_cumsum cu_seqlens chunk_states".split()
    assert names(ssd_combined.mamba_chunk_scan) == "x dt A B C chunk_size D z dt_bias dt_softplus".split()
    assert inspect.signature(mamba_split_conv1d_scan_combined).parameters["norm_before_gate"].default is True


# ---- in chunks --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("chunk_size", [1, 8, 21, 64])
def test_references(device, chunk_size):
    """The references and the chunked pieces agree with the recurrence."""
    t = make(device)
    del t["initial_states"]
    _, (want, _) = reference(t, softplus=True)
    both = dict(D=t["D"], z=t["z"], dt_bias=t["dt_bias"], dt_softplus=True)
    first = [t[k] for k in "x dt A B C".split()]
    assert refs.relative(ssd_combined.mamba_chunk_scan(*first, chunk_size, **both), want) < 1e-5
    assert refs.relative(ssd_combined.ssd_chunk_scan_combined_ref(*first, chunk_size, **both), want) < 1e-5
    assert refs.relative(ssd_combined.ssd_selective_scan(*first, **both), want) < 1e-5
    _, (limited, _) = reference(t, softplus=True, dt_limit=(0.2, 0.8))
    assert refs.relative(ssd_combined.ssd_selective_scan(*first, **both, dt_limit=(0.2, 0.8)), limited) < 1e-5


def test_pieces_with_packed_sequences(device):
    """_chunk_cumsum_fwd, _chunk_state_fwd, _state_passing_fwd, _bmm_chunk_fwd, _chunk_scan_fwd and chunk_state_varlen,
    combined as in clients."""
    t, ends, q = {k: v.detach() for k, v in make(device, b=1, length=37).items()}, [0, 5, 9, 24, 24, 30, 37], 8
    seq_idx = torch.cat([torch.full((e - b,), i, dtype=torch.int32) for i, (b, e) in enumerate(zip(ends, ends[1:]))])[None].to(device)
    cu_seqlens = torch.tensor(ends, dtype=torch.int32, device=device)
    sums, d = ssd_chunk_state._chunk_cumsum_fwd(t["dt"], t["A"], q, t["dt_bias"], True)
    states = ssd_chunk_state._chunk_state_fwd(t["B"], t["x"], d, sums, seq_idx=seq_idx)
    before, final = ssd_state_passing._state_passing_fwd(states.flatten(3), sums[..., -1], seq_idx=seq_idx, chunk_size=q)
    before, final = before.unflatten(3, (6, 5)), final.unflatten(2, (6, 5))
    cb = _bmm_chunk_fwd(t["C"], t["B"], q, seq_idx=seq_idx)
    out, _ = _chunk_scan_fwd(cb, t["x"], d, sums, t["C"], before, D=t["D"], seq_idx=seq_idx)
    want, want_final, varlen = mamba_chunk_scan_combined(*[t[k] for k in "x dt A B C".split()], q, D=t["D"], dt_bias=t["dt_bias"], seq_idx=seq_idx,
                                                         cu_seqlens=cu_seqlens, dt_softplus=True, return_final_states=True, return_varlen_states=True)
    assert refs.relative(out, want) < 1e-5 and refs.relative(final, want_final) < 1e-5
    got = ssd_chunk_state.chunk_state_varlen(t["B"][0], t["x"][0], d[0], sums[0], cu_seqlens, before[0])
    refs.close(got, varlen, (1e-5, 1e-5))
    assert bmm_chunk(t["C"][:, :, 0], t["B"][:, :, 0], q).shape == (1, 5, q, q)
    assert ssd_chunk_state.chunk_state(t["B"], t["x"], d, sums).shape == (1, 5, 4, 6, 5)
    assert chunk_scan(t["B"], t["C"], t["x"], d, sums, before).shape == t["x"].shape


@pytest.mark.parametrize("g", [1, 2])
def test_minimal_listing(device, g):
    t = {k: v.detach() for k, v in make(device, length=32, g=g).items()}
    d = F.softplus(t["dt"])
    want, final, _ = ssd(t["x"], d, t["A"], t["B"], t["C"], initial_states=t["initial_states"], return_final_states=True)
    got, state = ssd_minimal_discrete(t["x"] * d[..., None], t["A"] * d, t["B"], t["C"], 8, t["initial_states"])
    assert refs.relative(got, want) < 1e-5 and refs.relative(state, final) < 1e-5
    x = torch.randn(2, 3, 6, device=device)
    sums = segsum(x)
    assert math.isclose(float(sums[1, 2, 4, 1]), float(x[1, 2, 2:5].sum()), abs_tol=1e-6) and float(sums[0, 0, 1, 2]) == -math.inf
    refs.close(sums.exp(), segsum_unstable(x).exp(), (1e-5, 1e-5))


# ---- the fused block function -----------------------------------------------------------------------------------------
def block(device, d_mlp=0, h=4, p=6, g=2, n=5, width=4, model=7, b=2, length=19):
    torch.manual_seed(0)
    dim = h * p
    t = dict(zxbcdt=torch.randn(b, length, 2 * d_mlp + 2 * dim + 2 * g * n + h), conv1d_weight=torch.randn(dim + 2 * g * n, width),
             conv1d_bias=torch.randn(dim + 2 * g * n), dt_bias=torch.randn(h), A=-0.1 - torch.rand(h), D=torch.randn(h),
             rmsnorm_weight=torch.rand(dim) + 0.5, outproj_weight=torch.randn(model, d_mlp + dim), outproj_bias=torch.randn(model))
    return {k: v.to(device).requires_grad_() for k, v in t.items()}, dict(headdim=p, ngroups=g, chunk_size=16)


def block_reference(t, o, norm_before_gate, has_norm, d_mlp, limit=(0.0, float("inf"))):
    w = dict(zip(t, refs.doubles(*t.values())))
    g, p, h = o["ngroups"], o["headdim"], t["A"].shape[0]
    dim = h * p
    n = (t["conv1d_weight"].shape[0] - dim) // 2 // g
    z0, x0, z, xBC, dt = w["zxbcdt"].split([d_mlp, d_mlp, dim, dim + 2 * g * n, h], dim=-1)
    xBC = refs.conv(xBC.transpose(1, 2), w["conv1d_weight"], w["conv1d_bias"], use_silu=True)[0].transpose(1, 2)
    x, B, C = xBC.split([dim, g * n, g * n], dim=-1)
    y, _ = refs.ssd(x.unflatten(-1, (h, p)), dt, w["A"], B.unflatten(-1, (g, n)), C.unflatten(-1, (g, n)), w["D"], dt_bias=w["dt_bias"], softplus=True, dt_limit=limit)
    y = y.flatten(2)
    y = refs.gated_norm(y, w["rmsnorm_weight"], None, z, 1e-6, dim // g, norm_before_gate, True) if has_norm else y * refs.silu(z)
    y = torch.cat([refs.silu(z0) * x0, y], -1)
    return w, F.linear(y, w["outproj_weight"], w["outproj_bias"])


@pytest.mark.parametrize("d_mlp", [0, 3])
@pytest.mark.parametrize("norm", [None, True, False])
def test_block(device, norm, d_mlp):
    t, o = block(device, d_mlp)
    limit = (0.1, 0.7) if d_mlp else (0.0, float("inf"))
    w, want = block_reference(t, o, norm, norm is not None, d_mlp, limit)
    rest = dict(norm_before_gate=norm) if norm is not None else dict(rmsnorm_weight=None)
    arguments = {**t, **o, **rest, "dt_limit": limit}
    out = mamba_split_conv1d_scan_combined(**arguments)
    assert refs.relative(out, want) < 1e-5
    assert refs.relative(ssd_combined.mamba_split_conv1d_scan_ref(**arguments), want) < 1e-5
    g = torch.randn_like(out)
    out.backward(g)
    want.backward(g.cpu().double())
    for k, v in t.items():
        if k != "rmsnorm_weight" or norm is not None:
            assert refs.relative(v.grad, w[k].grad) < 1e-4, k
    inner, final = mamba_split_conv1d_scan_combined(**{**arguments, "outproj_weight": None, "outproj_bias": None}, return_final_states=True)
    assert inner.shape == (2, 19, d_mlp + 24) and final.shape == (2, 4, 6, 5)


def test_block_refuses(device):
    t, o = block(device)
    for bad in ({"activation": "gelu"}, {"headdim": None}, {"headdim": 5}, {"ngroups": 3}, {"outproj_weight": None}):
        with pytest.raises(AssertionError):
            mamba_split_conv1d_scan_combined(**{**t, **o, **bad})


@pytest.mark.parametrize("kind", [torch.bfloat16])
def test_autocast(device, kind):
    """Under autocast the output projection runs in its type; steps and states stay float32."""
    t, o = block(device)
    with torch.autocast(torch.device(device).type, dtype=kind):
        out = mamba_split_conv1d_scan_combined(**t, **o)
    assert out.dtype == kind
    assert refs.relative(out, mamba_split_conv1d_scan_combined(**t, **o)) < 2e-2
    out.float().sum().backward()
    assert all(v.grad is not None and v.grad.dtype == v.dtype for v in t.values())


def test_swiglu(device):
    xy = torch.randn(3, 5, 8, device=device, requires_grad=True)
    x, y = refs.doubles(xy)[0].chunk(2, -1)
    want, g = refs.silu(x) * y, torch.randn(3, 5, 4, device=device)
    for out in (swiglu(xy), SwiGLU.apply(xy)):
        refs.close(out, want, (1e-5, 1e-5))
    (grad,) = torch.autograd.grad(swiglu(xy), xy, g)
    buffer, into = torch.empty(3, 5, 4, device=device), torch.empty(3, 5, 8, device=device)
    assert _swiglu_fwd(xy.detach(), out=buffer) is buffer
    dxy, again = _swiglu_bwd(xy.detach(), g, dxy=into, recompute_output=True)
    assert dxy is into and torch.equal(again, buffer)
    refs.close(dxy, grad, (1e-5, 1e-5))
    refs.close(_swiglu_bwd(xy.detach(), g), grad, (1e-5, 1e-5))


# ---- float32 factors ------------------------------------------------------------------------------------------------------
_SETTINGS = {"set_float32_matmul_precision": lambda on: torch.set_float32_matmul_precision("high" if on else "highest"),
             "allow_tf32": lambda on: setattr(torch.backends.cuda.matmul, "allow_tf32", on)}
if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
    _SETTINGS["fp32_precision"] = lambda on: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32" if on else "ieee")


@pytest.mark.parametrize("name", _SETTINGS)
def test_tf32_follows_torch(device, name, monkeypatch):
    """float32 products are accurate by default; torch's setting, by each of its names, lets a GPU round their factors, both ways, from the next call on."""
    from krait import _call, _torch
    module, pack, flags = sys.modules["krait.ops.ssd"], _call.Call.pack, []
    monkeypatch.setattr(_call.Call, "pack", lambda self, tensors, chosen=0, **numbers: (flags.append(chosen), pack(self, tensors, chosen, **numbers))[1])
    if device == "cpu":  # which has no tf32: as if the tensors were on a GPU
        monkeypatch.setattr(module, "allows_tf32", lambda t: _torch.allows_tf32(types.SimpleNamespace(is_cuda=True, dtype=t.dtype)))
    module.FORWARD.known.clear()
    x, dt, B, C = [torch.randn(1, 192, *shape, device=device) for shape in ((2, 64), (2,), (1, 64), (1, 64))]
    A, leaves, found = -torch.rand(2, device=device), [x, B, C], []
    for t in leaves:
        t.requires_grad_()

    def run(dtype=torch.float32):
        del flags[:]
        out = ssd(*[t.to(dtype) for t in (x, dt)], A, *[t.to(dtype) for t in (B, C)], dt_softplus=True)[0]
        return [out.detach(), *torch.autograd.grad(out.float().square().sum(), leaves)], [bool(chosen & 8) for chosen in flags]

    try:
        for on, packed in ((False, [False, False]), (True, [True, True]), (False, []), (True, [])):  # the last two know their calls
            _SETTINGS[name](on)
            result, rounded = run()
            assert rounded == packed, (on, rounded)
            found.append(result)
        assert run(torch.bfloat16)[1] == [False, False]
    finally:
        _SETTINGS[name](False)
    assert all(torch.equal(a, b) for a, b in zip(found[0], found[2]))
    error = max(((a - b).abs().max() / a.abs().max()).item() for a, b in zip(found[0], found[1]))
    assert error == 0 if device == "cpu" else error < 8e-3
