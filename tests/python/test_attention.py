"""flash_attn on krait: golden files, plain torch in float64, packed batches, caches, rotary embedding, padding, losses, modules, bad input."""

import inspect
import json
import math

import pytest
import torch
import torch.nn.functional as F

import flash_attn
import flash_attn_2_cuda
import flash_attn_interface as fa3
import refs
from flash_attn import flash_attn_func, flash_attn_kvpacked_func, flash_attn_qkvpacked_func, flash_attn_varlen_func, flash_attn_with_kvcache
from flash_attn.bert_padding import index_first_axis, index_first_axis_residual, pad_input, unpad_input, unpad_input_for_concatenated_sequences
from flash_attn.flash_attn_interface import _flash_attn_backward, _flash_attn_forward, _flash_attn_varlen_backward, _flash_attn_varlen_forward
from flash_attn.layers.rotary import RotaryEmbedding, apply_rotary_emb, apply_rotary_emb_kv_, apply_rotary_emb_qkv_, apply_rotary_emb_torch
from flash_attn.losses.cross_entropy import CrossEntropyLoss
from flash_attn.modules.mha import MHA, get_alibi_slopes
from flash_attn.modules.mlp import GatedMlp, Mlp
from flash_attn.ops.rms_norm import RMSNorm, dropout_add_rms_norm
from flash_attn.ops.triton.cross_entropy import cross_entropy_loss
from flash_attn.ops.triton.layer_norm import rms_norm_fn
from krait._torch import HAS_CUSTOM_OPS
from krait.ops import scaled_dot_product_attention
from krait.ops.attention import new_rng
from krait.ops.probabilities import attention_probabilities


def reference(q, k, v, causal=False, window=(-1, -1), softcap=0.0, slopes=None, scale=None, keep=None, dropout=0.0, sinks=None):
    """(B, S, H, D) in the inputs' type -> out, log-sum-exp."""
    n, m, repeat = q.shape[1], k.shape[1], q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(repeat, 2), v.repeat_interleave(repeat, 2)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    place = torch.arange(n, device=q.device)[:, None] + m - n
    j = torch.arange(m, device=q.device)
    left, right = [-1 if w >= m else w for w in window]
    right = 0 if causal else right
    hidden = torch.zeros(n, m, dtype=torch.bool, device=q.device)
    hidden |= (j > place + right) if right >= 0 else False
    hidden |= (j < place - left) if left >= 0 else False
    if slopes is not None:
        scores = scores - slopes.to(scores).reshape(-1, q.shape[2], 1, 1) * (place - j).abs()
    scores = scores.masked_fill(hidden, -math.inf)
    every = scores if sinks is None else torch.cat([scores, sinks.to(scores.dtype).reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)], 3)
    empty = hidden.all(1)
    lse = every.logsumexp(3)
    p = (scores - lse.unsqueeze(3)).exp().masked_fill(empty[:, None], 0.0)
    p = p if keep is None else p * keep.to(p) / (1 - dropout)
    return torch.einsum("bhij,bjhd->bihd", p, v), lse.masked_fill(empty, math.inf)


def make(device="cpu", b=2, n=19, m=19, h=4, hk=2, d=32, dtype=torch.float32, grad=True):
    q, k, v = torch.randn(b, n, h, d), torch.randn(b, m, hk, d), torch.randn(b, m, hk, d)
    return [t.to(device=device, dtype=dtype).requires_grad_(grad) for t in (q, k, v)]


def check_gradients(out, wanted, inputs, twins, bound=1e-5):
    dout = torch.randn_like(out)
    got = torch.autograd.grad(out, inputs, dout)
    for name, g, w in zip("qkvs", got, torch.autograd.grad(wanted, twins, dout.to(wanted))):
        assert refs.relative(g, w) < bound or (w.norm() < 1e-12 and g.norm() < 1e-5 * g.numel() ** 0.5), name  # one key: dP - delta is rounding error only


# ---- golden files -----------------------------------------------------------------------------------------------------
def _golden(path, device):
    metadata, g = refs.read_safetensors(path)
    return json.loads(metadata["config"]), {key[len("golden."):]: value.to(device) for key, value in g.items()}


def _relative_where_finite(got, want):
    got, want = got.cpu(), want.cpu()
    finite = torch.isfinite(want)
    assert torch.equal(torch.isfinite(got), finite) and bool((got[~finite] == want[~finite]).all())
    return refs.relative(got[finite], want[finite])


def _check_low_precision(path, config, g, dtype, results):
    """At most 1.5 times plain torch's error in that type overall, and twice its maximum (in the file): upstream's
    rule."""
    limits = json.loads(refs.read_safetensors(path)[0].get("torch_low_precision_maxabs_error", "{}")).get(str(dtype)[len("torch."):], {})
    if not limits:
        return
    plain = [g[n].cpu().to(dtype).requires_grad_() for n in "qkv"]
    slopes = g["alibi_slopes"].cpu() if "alibi_slopes" in g else None
    out, _ = reference(*plain, causal=config["causal"], window=config["window_size"], softcap=config["softcap"], slopes=slopes, scale=config["softmax_scale"])
    torchs = (out, *torch.autograd.grad(out, plain, g["dout"].cpu().to(dtype)))
    for (name, limit), own, got, want in zip(limits.items(), torchs, results, [g["out"], *[g["grad." + n] for n in "qkv"]]):
        assert refs.relative(got, want) <= 1.5 * refs.relative(own, want), name
        assert (got.detach().double() - want.double()).abs().max().item() <= 2 * limit, name


@pytest.mark.parametrize("path", [p for p in refs.golden_files("attention") if "cache" not in str(p) and "paged" not in str(p) and "dropout" not in str(p)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_golden(device, path, dtype):
    config, g = _golden(path, device)
    q, k, v = [g[n].to(dtype).requires_grad_() for n in "qkv"]
    options = {n: config[n] for n in ("causal", "window_size", "softcap", "softmax_scale") if n in config}
    if "alibi_slopes" in g:
        options["alibi_slopes"] = g["alibi_slopes"]
    if "cu_seqlens_q" in g:
        lengths = [g["cu_seqlens_" + n] for n in "qk"]
        out, lse, _ = flash_attn_varlen_func(q, k, v, *lengths, *[int((c[1:] - c[:-1]).max()) for c in lengths], return_attn_probs=True, **options)
    else:
        out, lse, _ = flash_attn_func(q, k, v, return_attn_probs=True, **options)
    low = dtype != torch.float32
    assert refs.relative(out, g["out"]) < (1e-2 if dtype == torch.bfloat16 else 2e-3 if low else 2e-6)
    assert _relative_where_finite(lse, g["lse"]) < 2e-6
    grads = torch.autograd.grad(out, (q, k, v), g["dout"].to(dtype), retain_graph=True)
    if low:
        _check_low_precision(path, config, g, dtype, (out, *grads))
    for name, grad in zip("qkv", grads):
        assert refs.relative(grad, g["grad." + name]) < (2e-2 if dtype == torch.bfloat16 else 4e-3 if low else 1e-5), name
    if "dlse" in g and not low:
        with_lse = torch.autograd.grad([out, lse], (q, k), [g["dout"], g["dlse"].masked_fill(~torch.isfinite(g["lse"]), 0.0)])
        for name, grad in zip("qk", with_lse):
            assert refs.relative(grad, g["grad_lse." + name]) < 1e-5, name


@pytest.mark.parametrize("path", [p for p in refs.golden_files("attention") if "cache" in str(p) or "paged" in str(p)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_golden_cache(device, path, dtype):
    config, g = _golden(path, device)
    paged = "block_table" in g
    caches = [g[n + "_cache"].to(dtype).clone() for n in "kv"]
    options = {n: config[n] for n in ("causal", "window_size", "softcap", "softmax_scale", "rotary_interleaved") if n in config}
    for name in ("cache_seqlens", "cache_batch_idx", "cache_leftpad", "block_table", "rotary_cos", "rotary_sin", "alibi_slopes"):
        if name in g:
            options[name] = g[name].to(dtype) if name.startswith("rotary") else g[name]
    new = dict(k=g["k"].to(dtype), v=g["v"].to(dtype)) if "k" in g else {}
    out, lse = flash_attn_with_kvcache(g["q"].to(dtype), *caches, **new, return_softmax_lse=True, **options)
    assert refs.relative(out, g["out"]) < (2e-2 if dtype == torch.bfloat16 else 2e-6)
    if dtype == torch.float32:
        assert _relative_where_finite(lse, g["lse"]) < 2e-6
    if "k_written" in g:
        begins, count = g["cache_seqlens"].tolist(), g["k_written"].shape[1]
        for b, begin in enumerate(begins):
            for i in range(count):
                at = (int(g["block_table"][b, (begin + i) // 256]), (begin + i) % 256) if paged else (int(g["cache_batch_idx"][b]) if "cache_batch_idx" in g else b, begin + i)
                assert refs.relative(caches[0][at], g["k_written"][b, i]) < (1e-2 if dtype == torch.bfloat16 else 2e-6)
                assert torch.equal(caches[1][at], new["v"][b, i])


def test_golden_dropout(device):
    """The golden mask is upstream's: checks the formula with krait's mask."""
    for path in [p for p in refs.golden_files("attention") if "dropout" in str(p)]:
        config, g = _golden(path, device)
        twins = [g[n].double().requires_grad_() for n in "qkv"]
        out, _ = reference(*twins, keep=g["dropout_keep"].double(), dropout=config["dropout_p"])
        assert refs.relative(out, g["out"]) < 1e-6


# ---- against float64 --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("n,m", [(1, 1), (1, 40), (33, 33), (7, 70), (70, 7), (130, 65)])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window_size": (9, 3)}, {"window_size": (5, -1)}, {"softcap": 3.0, "causal": True}, {"softmax_scale": 0.3}],
                         ids=str)
@pytest.mark.parametrize("d", [24, 59, 128])
def test_values_and_gradients(device, n, m, options, d):
    q, k, v = make(device, n=n, m=m, d=d)
    twins = refs.doubles(q, k, v)
    names = {"window_size": "window", "softmax_scale": "scale"}
    wanted, lse = reference(*twins, **{names.get(key, key): value for key, value in options.items()})
    out, got, _ = flash_attn_func(q, k, v, return_attn_probs=True, **options)
    assert refs.relative(out, wanted) < 2e-6 and _relative_where_finite(got, lse) < 2e-6
    check_gradients(out, wanted, (q, k, v), twins)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("views", ["qkv", "kv", "features", "every other", "turned"])
def test_gradients_of_views(device, views, dtype):
    """Gradients are dense where queries, keys and values are parts of larger tensors: the first call and those after it."""
    b, n, h, d = 2, 19, 4, 16
    q, k, v = [t.detach() for t in make(device, b, n, n, h, h, d, dtype)]
    for _ in range(2):
        if views == "qkv":
            leaves = [torch.stack((q, k, v), 2).requires_grad_()]
            parts = leaves[0].unbind(2)
        elif views == "kv":
            leaves = [q.clone().requires_grad_(), torch.stack((k, v), 2).requires_grad_()]
            parts = leaves[0], *leaves[1].unbind(2)
        elif views == "features":
            leaves = [torch.cat((q, k, v), 3).requires_grad_()]
            parts = leaves[0].split(d, 3)
        elif views == "every other":
            leaves = [t.repeat_interleave(2, 1).requires_grad_() for t in (q, k, v)]
            parts = [t[:, ::2] for t in leaves]
        else:
            leaves = [t.transpose(1, 2).contiguous().requires_grad_() for t in (q, k, v)]
            parts = [t.transpose(1, 2) for t in leaves]
        out = flash_attn_func(*parts, causal=True)
        twins = refs.doubles(q.clone().requires_grad_(), k.clone().requires_grad_(), v.clone().requires_grad_())
        dout = torch.randn_like(out)
        grads = torch.autograd.grad(out, parts, dout)
        for g, w in zip(grads, torch.autograd.grad(reference(*twins, causal=True)[0], twins, dout.cpu().double())):
            assert refs.relative(g, w) < (1e-5 if dtype == torch.float32 else 4e-3)


@pytest.mark.parametrize("dtype", refs.DTYPES, ids=str)
@pytest.mark.parametrize("n,m", [(1, 9), (40, 40), (3, 700)])
def test_what_is_not_a_number_stays(device, n, m, dtype):
    """In a query or a key: in the outputs and gradients of its head, so that a loss scaler sees it, and nowhere else."""
    for which in range(2):
        inputs = make(device, n=n, m=m, h=2, hk=2, d=64, dtype=dtype, grad=False)
        inputs[which][0, 0, 1, 3] = math.nan
        q, k, v = [t.requires_grad_() for t in inputs]
        out = flash_attn_func(q, k, v)
        seen = torch.ones(n, dtype=torch.bool) if which else torch.arange(n) == 0
        assert torch.equal(out[0, :, 1].isnan().all(1).cpu(), seen)
        grads = torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
        assert all(g[0, :, 1].isnan().any() for g in grads)
        assert all(t[:, :, 0].isfinite().all() and t[1].isfinite().all() for t in (out, *grads))


def test_alibi_per_sequence(device):
    q, k, v = make(device, n=21, m=30)
    slopes = torch.rand(2, 4, device=device)
    twins = refs.doubles(q, k, v)
    wanted, _ = reference(*twins, causal=True, slopes=slopes)
    check_gradients(flash_attn_func(q, k, v, causal=True, alibi_slopes=slopes), wanted, (q, k, v), twins)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_low_precision(device, dtype):
    """Upstream's rule: at most twice the error of plain torch in that type (three times for gradients)."""
    inputs = make(device, n=113, m=203, d=64, dtype=dtype)
    twins, plain = refs.doubles(*inputs), [t.detach().clone().requires_grad_() for t in inputs]
    wanted, low, out = reference(*twins, causal=True)[0], reference(*plain, causal=True)[0], flash_attn_func(*inputs, causal=True)
    worst = lambda a, b: (a.cpu().double() - b).abs().max().item()
    assert worst(out, wanted) <= 2 * worst(low, wanted) + 1e-5
    dout = torch.randn_like(out)
    exact = torch.autograd.grad(wanted, twins, dout.to(wanted))
    for g, p, w in zip(torch.autograd.grad(out, inputs, dout), torch.autograd.grad(low, plain, dout), exact):
        assert worst(g, w) <= 3 * worst(p, w) + 1e-5


def test_packed(device):
    lengths, keys = [5, 0, 17, 1], [7, 3, 17, 0]
    q, k, v = [torch.randn(sum(n), h, 32, device=device, requires_grad=True) for n, h in ((lengths, 4), (keys, 2), (keys, 2))]
    offsets = [torch.tensor([0] + list(n), device=device).cumsum(0).to(torch.int32) for n in (lengths, keys)]
    out, lse, _ = flash_attn_varlen_func(q, k, v, *offsets, 17, 17, causal=True, return_attn_probs=True)
    assert lse.shape == (4, sum(lengths))
    twins, parts, at = refs.doubles(q, k, v), [], [0, 0]
    for n, m in zip(lengths, keys):
        one = [twins[0][at[0]:at[0] + n]] + [t[at[1]:at[1] + m] for t in twins[1:]]
        parts.append(reference(*[t.unsqueeze(0) for t in one], causal=True)[0][0] if n and m else one[0] * 0)
        at = [at[0] + n, at[1] + m]
    wanted = torch.cat(parts)
    assert refs.relative(out, wanted) < 2e-6
    check_gradients(out, wanted, (q, k, v), twins)


@pytest.mark.parametrize("n,m", [(3, 0), (0, 2), (3, 2)])
def test_tokens_behind_the_last_sequence(n, m):
    """As upstream's: they belong to none, whatever they hold. On a CPU they have no output and no gradient."""
    q, k, v = [torch.randn(9 + more, 2, 16) for more in (n, m, m)]
    offsets = [torch.tensor(ends, dtype=torch.int32) for ends in ([0, 5, 9], [0, 4, 9])]
    want = [t[:9].clone().requires_grad_() for t in (q, k, v)]
    with torch.no_grad():
        q[9:], k[9:], v[9:] = math.nan, math.nan, math.nan
    got = [t.requires_grad_() for t in (q, k, v)]
    results = [flash_attn_varlen_func(*t, *offsets, 5, 5, causal=True, return_attn_probs=True) for t in (got, want)]
    (out, lse, _), (wanted, lse9, _) = results
    assert torch.equal(out[:9], wanted) and not out[9:].any() and torch.equal(lse[:, :9], lse9) and bool((lse[:, 9:] == math.inf).all())
    dout = torch.randn_like(out)
    grads, dwanted = torch.autograd.grad(out, got, dout), torch.autograd.grad(wanted, want, dout[:9])
    written = [torch.full_like(t, math.nan) for t in got]
    detached = [t.detach() for t in got]
    _flash_attn_varlen_backward(dout, *detached, out.detach(), lse, *written, *offsets, 5, 5, 0.0, 0.25, True)
    for each in (grads, written):
        assert all(torch.equal(g[:9], w) and not g[9:].any() for g, w in zip(each, dwanted))
    _, _, kept = flash_attn_varlen_func(*detached, *offsets, 5, 5, 0.3, return_attn_probs=True)
    assert kept.shape == (2, 2, 128, 128) and bool(torch.isfinite(kept).all())


def test_forms_agree(device):
    """Packed projections, older releases' argument orders, keywords."""
    q, k, v = make(device, h=4, hk=4)
    qkv = torch.stack((q, k, v), 2)
    want = flash_attn_func(q, k, v, causal=True, window_size=(6, 0))
    assert torch.equal(flash_attn_qkvpacked_func(qkv, causal=True, window_size=(6, 0)), want)
    assert torch.equal(flash_attn_kvpacked_func(q, qkv[:, :, 1:], causal=True, window_size=(6, 0)), want)
    slopes = torch.rand(4, device=device)
    newer = flash_attn_func(q, k, v, 0.0, None, True, (-1, -1), 0.0, slopes, True)
    assert torch.equal(flash_attn_func(q, k, v, 0.0, None, True, (-1, -1), slopes, True), newer)  # before 2.6
    assert len(flash_attn_func(q, k, v, 0.0, None, True, (-1, -1), None, False, True)) == 3
    assert torch.equal(fa3.flash_attn_func(q, k, v, causal=True, window_size=(6, -1)), want)
    flat = qkv.reshape(2, 19, 12, 32)
    assert torch.equal(fa3.flash_attn_qkvpacked_func(flat, causal=True, window_size=(6, -1), num_heads_q=4), want)
    strided = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    assert refs.relative(flash_attn_func(*strided, causal=True, window_size=(6, 0)), want) < 1e-6


def test_signatures():
    tail = ["dropout_p", "softmax_scale", "causal", "window_size", "softcap", "alibi_slopes", "deterministic", "return_attn_probs"]
    names = lambda f: list(inspect.signature(f).parameters)
    assert names(flash_attn_func) == ["q", "k", "v"] + tail
    assert names(flash_attn_varlen_func) == ["q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"] + tail + ["block_table"]
    assert names(flash_attn.flash_attn_varlen_qkvpacked_func) == ["qkv", "cu_seqlens", "max_seqlen"] + tail
    assert names(flash_attn_with_kvcache) == ["q", "k_cache", "v_cache", "k", "v", "rotary_cos", "rotary_sin", "cache_seqlens", "cache_batch_idx", "cache_leftpad",
                                              "block_table", "softmax_scale", "causal", "window_size", "softcap", "rotary_interleaved", "alibi_slopes", "num_splits",
                                              "return_softmax_lse"]
    assert len(flash_attn.__all__) == 7 and flash_attn.__version__ >= "2.6.0"


# ---- dropout ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("p", [0.17, 0.5])
def test_dropout(device, p):
    q, k, v = make(device, n=90, m=120)
    rng = new_rng(q)
    signed = attention_probabilities(q, k, v, rng=rng, dropout=p)
    assert signed.shape[2:] == (128, 128)
    keep = (signed[:, :, :90, :120] > 0).double()
    assert abs(1 - keep.mean().item() - p) < 0.01
    twins = refs.doubles(q, k, v)
    wanted, _ = reference(*twins, keep=keep, dropout=p)
    from krait.ops import attention
    out, _ = attention(q, k, v, dropout=p, rng=rng)
    assert refs.relative(out, wanted) < 5e-3 if p == 0.17 else 1e-5  # 0.17 is 43 or 44 of 256
    again, _ = attention(q, k, v, dropout=p, rng=rng)
    assert torch.equal(out, again)
    torch.manual_seed(3)
    first = flash_attn_func(q, k, v, p)
    torch.manual_seed(3)
    assert torch.equal(flash_attn_func(q, k, v, p), first)
    assert not torch.equal(flash_attn_func(q, k, v, p), first)


def test_dropout_gradients(device):
    q, k, v = make(device, n=30, m=40)
    rng = new_rng(q)
    from krait.ops import attention
    out, _ = attention(q, k, v, dropout=0.5, rng=rng)
    keep = (attention_probabilities(q, k, v, rng=rng, dropout=0.5)[:, :, :30, :40] > 0).double()
    twins = refs.doubles(q, k, v)
    wanted, _ = reference(*twins, keep=keep, dropout=0.5)
    check_gradients(out, wanted, (q, k, v), twins)


def test_sinks(device):
    from krait.ops import attention
    q, k, v = make(device, n=12, m=20)
    sinks = torch.randn(4, device=device, requires_grad=True)
    twins = refs.doubles(q, k, v, sinks)
    wanted, lse = reference(*twins[:3], causal=True, sinks=twins[3])
    out, got = attention(q, k, v, sinks=sinks, window=(-1, 0), want_lse=True)
    assert refs.relative(got, lse) < 2e-6
    check_gradients(out, wanted, (q, k, v, sinks), twins)


# ---- below autograd ---------------------------------------------------------------------------------------------------
def test_low_level(device):
    q, k, v = make(device)
    out = flash_attn_func(q, k, v, causal=True)
    dout = torch.randn_like(out)
    wanted = torch.autograd.grad(out, (q, k, v), dout)
    got, lse, _, rng = _flash_attn_forward(q, k, v, 0.0, 32 ** -0.5, True)
    grads = [torch.empty_like(t) for t in (q, k, v)]
    delta = _flash_attn_backward(dout, q.detach(), k.detach(), v.detach(), got, lse, *grads, 0.0, 32 ** -0.5, True, rng_state=rng)
    assert torch.equal(got, out) and all(torch.equal(g, w) for g, w in zip(grads, wanted)) and delta.shape == lse.shape
    flat = [t.detach().flatten(0, 1) for t in (q, k, v)]
    offsets = torch.tensor([0, 19, 38], dtype=torch.int32, device=device)
    packed, lse, _, rng = _flash_attn_varlen_forward(*flat, offsets, offsets, 19, 19, 0.0, 32 ** -0.5, True)
    assert refs.relative(packed, out.flatten(0, 1)) < 1e-6
    grads = [torch.empty_like(t) for t in flat]
    _flash_attn_varlen_backward(dout.flatten(0, 1), *flat, packed, lse, *grads, offsets, offsets, 19, 19, 0.0, 32 ** -0.5, True)
    assert all(refs.relative(g, w.flatten(0, 1)) < 1e-6 for g, w in zip(grads, wanted))
    assert len(flash_attn_2_cuda.fwd_kvcache(q, k.detach(), v.detach(), None, None, None, None, None, None, None, None, None, None, 1.0, False, -1, -1, 0.0, False, 0)) == 2


def test_named_operators(device):
    """torch.ops.flash_attn.*, called as in code for 2.7 and 2.8."""
    if not hasattr(torch.library, "custom_op"):
        pytest.skip("this torch registers no operators")
    ops = torch.ops.flash_attn
    q, k, v = make(device, grad=False)
    scale = 32 ** -0.5
    out, lse, shown, rng = ops._flash_attn_forward(q, k, v, 0.0, scale, True, -1, -1, 0.0, None, False)
    assert torch.equal(out, flash_attn_func(q, k, v, causal=True)) and lse.shape == (2, 4, 19) and shown.numel() == 0 and rng.shape == (2,)
    dout, grads = torch.randn_like(out), [torch.empty_like(t) for t in (q, k, v)]
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    wanted = torch.autograd.grad(flash_attn_func(*leaves, causal=True), leaves, dout)
    ops._flash_attn_backward(dout, q, k, v, out, lse, *grads, 0.0, scale, True, -1, -1, 0.0, None, False, rng_state=rng)
    assert all(refs.relative(g, w) < 1e-6 for g, w in zip(grads, wanted))
    flat, offsets = [t.flatten(0, 1) for t in (q, k, v)], torch.tensor([0, 19, 38], dtype=torch.int32, device=device)
    packed, lse, _, _ = ops._flash_attn_varlen_forward(*flat, offsets, offsets, 19, 19, 0.0, scale, True)
    assert refs.relative(packed, out.flatten(0, 1)) < 1e-6 and lse.shape == (4, 38)
    more = [torch.empty_like(t) for t in flat]
    ops._flash_attn_varlen_backward(dout.flatten(0, 1), *flat, packed, lse, *more, offsets, offsets, 19, 19, 0.0, scale, True, -1, -1, 0.0, None, True)
    assert all(refs.relative(g, w.flatten(0, 1)) < 1e-6 for g, w in zip(more, wanted))
    torch.library.opcheck(ops._flash_attn_forward, (q, k, v, 0.3, scale, True, -1, -1, 0.0, None, True), test_utils=("test_schema", "test_faketensor"))
    torch.library.opcheck(ops._flash_attn_varlen_forward, (*flat, offsets, offsets, 19, 19, 0.0, scale, True), test_utils=("test_schema", "test_faketensor"))
    torch.library.opcheck(ops._flash_attn_backward, (dout, q, k, v, out, ops._flash_attn_forward(q, k, v, 0.0, scale, True, -1, -1, 0.0, None, False)[1], *grads,
                                                     0.0, scale, True, -1, -1, 0.0, None, False), test_utils=("test_schema", "test_faketensor"))


def test_named_operators_compile(device):
    if not hasattr(torch.library, "custom_op"):
        pytest.skip("this torch registers no operators")
    q, k, v = make(device, grad=False)

    def attend(q, k, v):
        return torch.ops.flash_attn._flash_attn_forward(q * 2, k, v, 0.0, 0.1, False, -1, -1, 0.0, None, False)[0] + 1
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(q, k, v), attend(q, k, v))


# ---- SeedVR -----------------------------------------------------------------------------------------------------------
class SeedVRAttention(torch.nn.Module):
    """As SeedVR's attention wrapper calls it: all keywords, cast to bfloat16 just before and back after."""

    def forward(self, *args, **kwargs):
        kwargs["deterministic"] = torch.are_deterministic_algorithms_enabled()
        return flash_attn_varlen_func(*args, **kwargs)


def test_as_seedvr_calls_it(device):
    lengths, heads, text = [4 * 5 * 3, 2 * 5 * 3, 4 * 2 * 3, 7], 3, 9
    seqlens = torch.tensor([n + text for n in lengths], device=device)
    offsets = F.pad(seqlens.cumsum(0), (1, 0)).int()
    q, k, v = [torch.randn(int(seqlens.sum()), heads, 128, device=device) for _ in range(3)]
    out = SeedVRAttention()(q=q.bfloat16(), k=k.bfloat16(), v=v.bfloat16(), cu_seqlens_q=offsets, cu_seqlens_k=offsets, max_seqlen_q=int(seqlens.max()),
                            max_seqlen_k=int(seqlens.max())).type_as(q)
    begin = 0
    for n in seqlens.tolist():
        want, _ = reference(*[t[None, begin:begin + n].bfloat16().double() for t in (q, k, v)])
        assert refs.relative(out[begin:begin + n], want[0]) < 5e-3
        begin += n
    q, k, v = [t.bfloat16().requires_grad_() for t in (q, k, v)]
    SeedVRAttention()(q=q, k=k, v=v, cu_seqlens_q=offsets, cu_seqlens_k=offsets, max_seqlen_q=int(seqlens.max()), max_seqlen_k=int(seqlens.max())).sum().backward()
    assert all(bool(t.grad.isfinite().all()) for t in (q, k, v))


# ---- caches -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("paged", [False, True])
def test_decoding_equals_one_pass(device, paged):
    q, k, v = make(device, n=40, m=40, grad=False)
    want = flash_attn_func(q, k, v, causal=True)
    table = torch.tensor([[3, 0, 5], [1, 4, 2]], dtype=torch.int32, device=device) if paged else None
    shape = (6, 16, 2, 32) if paged else (2, 48, 2, 32)
    caches = [torch.full(shape, math.nan, device=device) for _ in range(2)]
    parts, begin = [], 0
    for count in (25, 1, 1, 13):
        piece = [t[:, begin:begin + count] for t in (q, k, v)]
        parts.append(flash_attn_with_kvcache(piece[0], *caches, piece[1], piece[2], cache_seqlens=begin, block_table=table, causal=True))
        begin += count
    assert refs.relative(torch.cat(parts, 1), want) < 2e-6


def test_cache_refuses():
    q, k, v = make(grad=False)
    with pytest.raises(RuntimeError, match="cache_seqlens"):
        flash_attn_with_kvcache(q, k, v, k, v)
    with pytest.raises(RuntimeError, match="pass k and v together"):
        flash_attn_with_kvcache(q, k, v, k)
    with pytest.raises(RuntimeError, match="no gradient through a cache"):
        from krait.ops import attention
        q.requires_grad_()
        attention(q, k, v, leftpad_k=torch.zeros(2, dtype=torch.int32))[0].sum().backward()


# ---- rotary embedding -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("offsets", [0, 3, "tensor"])
def test_rotary(device, interleaved, offsets):
    x = torch.randn(2, 11, 3, 40, device=device, requires_grad=True)
    angles = torch.rand(30, 16, device=device) * 6
    cos, sin = angles.cos(), angles.sin()
    at = torch.tensor([2, 9], dtype=torch.int32, device=device) if offsets == "tensor" else offsets
    begins = at.tolist() if offsets == "tensor" else [at, at]
    twin = x.detach().double().requires_grad_()
    want = torch.stack([apply_rotary_emb_torch(twin[b:b + 1], cos[s:s + 11].double(), sin[s:s + 11].double(), interleaved)[0] for b, s in enumerate(begins)])
    out = apply_rotary_emb(x, cos, sin, interleaved, seqlen_offsets=at)
    assert refs.relative(out, want) < 1e-6
    dout = torch.randn_like(out)
    assert refs.relative(torch.autograd.grad(out, x, dout)[0], torch.autograd.grad(want, twin, dout.double())[0]) < 1e-6
    y = x.detach().clone()
    assert apply_rotary_emb(y, cos, sin, interleaved, True, at) is y and torch.equal(y, out)
    flat, lengths = x.detach().flatten(0, 1), torch.tensor([0, 11, 22], dtype=torch.int32, device=device)
    assert torch.equal(apply_rotary_emb(flat, cos, sin, interleaved, seqlen_offsets=at, cu_seqlens=lengths, max_seqlen=11), out.flatten(0, 1))


def test_rotary_packed_projections(device):
    cos, sin = torch.rand(2, 12, 16, device=device)
    qkv = torch.randn(2, 12, 3, 4, 32, device=device)
    leaf = qkv.clone().requires_grad_()
    want = torch.stack((apply_rotary_emb(leaf[:, :, 0], cos, sin), apply_rotary_emb(leaf[:, :, 1], cos, sin), leaf[:, :, 2]), 2)
    twin = qkv.clone().requires_grad_()
    out = apply_rotary_emb_qkv_(twin * 1, cos, sin)
    dout = torch.randn_like(qkv)
    assert torch.equal(out, want) and refs.relative(torch.autograd.grad(out, twin, dout)[0], torch.autograd.grad(want, leaf, dout)[0]) < 1e-6
    grouped = torch.cat((qkv[:, :, 0], qkv[:, :, 1, :2], qkv[:, :, 2, :2]), 2)
    got = apply_rotary_emb_qkv_(grouped.clone(), cos, sin, num_heads_q=4)
    assert torch.equal(got[:, :, :4], want[:, :, 0]) and torch.equal(got[:, :, 4:6], want[:, :, 1, :2]) and torch.equal(got[:, :, 6:], grouped[:, :, 6:])
    kv = apply_rotary_emb_kv_(qkv[:, :, 1:].clone(), cos, sin)
    assert torch.equal(kv[:, :, 0], want[:, :, 1])
    module = RotaryEmbedding(32, device=device)
    turned = module(qkv.clone())
    q, kv = module(qkv[:, :, 0].clone(), qkv[:, :, 1:].clone())
    assert torch.equal(turned[:, :, 0], q) and torch.equal(turned[:, :, 1:], kv) and not module.state_dict()


# The operation on w (2, 9, 3, 4, 8), the heads of w.flatten(2, 3) that it rotates, and what of w it returns.
IN_PLACE = {
    "unbind": (lambda w, cos, sin: torch.stack([apply_rotary_emb(t, cos, sin, inplace=True) for t in w.unbind(2)[:2]], 2), 0, 8, lambda w: w[:, :, :2]),
    "chunk": (lambda w, cos, sin: apply_rotary_emb(w.flatten(2).chunk(3, -1)[1].unflatten(2, (4, 8)), cos, sin, inplace=True), 4, 8, lambda w: w[:, :, 1]),
    "select": (lambda w, cos, sin: apply_rotary_emb(w[:, :, 0], cos, sin, inplace=True), 0, 4, lambda w: w[:, :, 0]),
    "qkv": (apply_rotary_emb_qkv_, 0, 8, lambda w: w),
    "grouped": (lambda w, cos, sin: apply_rotary_emb_qkv_(w.flatten(2, 3), cos, sin, num_heads_q=6), 0, 9, lambda w: w.flatten(2, 3)),
    "kv": (lambda w, cos, sin: apply_rotary_emb_kv_(w[:, :, 1:], cos, sin), 4, 8, lambda w: w[:, :, 1:]),
}


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.skipif(not HAS_CUSTOM_OPS, reason="this torch has no torch.library.custom_op"))])
@pytest.mark.parametrize("leaf", [False, True])
@pytest.mark.parametrize("name", list(IN_PLACE))
def test_rotary_in_place_on_views_and_leaves(device, name, leaf, compiled):
    """The values in place, the result and its gradient are those of the function out of place."""
    run, first, last, part = IN_PLACE[name]
    cos, sin, start = torch.rand(9, 4, device=device), torch.rand(9, 4, device=device), torch.randn(2, 9, 3, 4, 8, device=device)
    w, twin = start.clone().requires_grad_(), start.clone().requires_grad_()
    heads = twin.flatten(2, 3)
    rotated = torch.cat((heads[:, :, :first], apply_rotary_emb(heads[:, :, first:last], cos, sin), heads[:, :, last:]), 2).unflatten(2, (3, 4))
    given, want = w if leaf else w * 1, part(rotated)
    got = (torch.compile(run, backend="aot_eager", fullgraph=True) if compiled else run)(given, cos, sin)
    assert torch.equal(given, rotated) and torch.equal(got, want)
    g = torch.randn_like(got)
    refs.close(*[torch.autograd.grad(out, t, g)[0] for out, t in ((got, w), (want, twin))], (1e-6, 1e-6))


def test_rotary_refuses():
    with pytest.raises(RuntimeError, match="positions of cos and sin for"):
        apply_rotary_emb(torch.randn(1, 9, 2, 8), torch.ones(4, 4), torch.ones(4, 4))
    with pytest.raises(RuntimeError, match="D is 8, must be at least 16"):
        apply_rotary_emb(torch.randn(1, 4, 2, 8), torch.ones(4, 8), torch.ones(4, 8))


# ---- padding, losses, norms, modules ----------------------------------------------------------------------------------
def test_padding(device):
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], device=device)
    x = torch.randn(3, 4, 5, device=device, requires_grad=True)
    tokens, indices, offsets, longest, used = unpad_input(x, mask)
    assert torch.equal(tokens, x[mask.bool()]) and offsets.tolist() == [0, 3, 4, 4] and longest == 3 and used.tolist() == [3, 1, 0] and offsets.dtype == torch.int32
    back = pad_input(tokens, indices, 3, 4)
    assert torch.equal(back, x * mask.unsqueeze(-1))
    assert torch.equal(torch.autograd.grad(back.sum(), x)[0], mask.unsqueeze(-1).expand_as(x).float())
    more = unpad_input(x, mask, torch.tensor([[0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]], device=device))
    assert more[2].tolist() == [0, 3, 5, 5] and more[4].tolist() == [3, 1, 0]
    rows, same = index_first_axis_residual(x.flatten(0, 1), indices)
    assert torch.equal(rows, index_first_axis(x.flatten(0, 1), indices)) and torch.equal(same, x.flatten(0, 1))
    lengths = torch.tensor([[2, 1, 0, 0], [4, 0, 0, 0], [1, 0, 0, 0]], device=device)
    tokens, _, offsets, longest = unpad_input_for_concatenated_sequences(x, lengths)
    assert tokens.shape[0] == 8 and offsets.tolist() == [0, 2, 3, 7, 8] and longest == 4


@pytest.mark.parametrize("smoothing,z,scale", [(0.0, 0.0, 1.0), (0.1, 1e-3, 0.7)])
@pytest.mark.parametrize("in_place", [False, True])
def test_cross_entropy(device, smoothing, z, scale, in_place):
    logits = torch.randn(9, 50, device=device)
    labels = torch.randint(0, 50, (9,), device=device)
    labels[4] = -100
    twin, leaf = logits.double().requires_grad_(), logits.clone().requires_grad_()
    want = F.cross_entropy(twin * scale, labels, reduction="none", label_smoothing=smoothing)
    penalty = (z * (twin * scale).logsumexp(1).square()).masked_fill(labels == -100, 0.0)
    losses, z_losses = cross_entropy_loss(leaf * 1, labels, label_smoothing=smoothing, logit_scale=scale, lse_square_scale=z, inplace_backward=in_place)
    assert refs.relative(losses, want + penalty) < 1e-6 and (z == 0.0 or refs.relative(z_losses, penalty) < 1e-6)
    dlosses = torch.rand(9, device=device)
    assert refs.relative(torch.autograd.grad(losses, leaf, dlosses)[0], torch.autograd.grad(want + penalty, twin, dlosses.double())[0]) < 1e-5
    module = CrossEntropyLoss(label_smoothing=smoothing, logit_scale=scale)
    assert abs(module(logits, labels).item() - F.cross_entropy(logits * scale, labels, label_smoothing=smoothing).item()) < 1e-5


def test_norms(device):
    x, residual, weight = torch.randn(3, 7, 24, device=device), torch.randn(3, 7, 24, device=device), torch.rand(24, device=device)
    want = F.rms_norm(x + residual, (24,), weight, 1e-5) if hasattr(F, "rms_norm") else (x + residual) * torch.rsqrt((x + residual).square().mean(-1, keepdim=True) + 1e-5) * weight
    out, total = dropout_add_rms_norm(x, residual, weight, None, 0.0, 1e-5, prenorm=True)
    assert refs.relative(out, want) < 1e-6 and torch.equal(total, x + residual)
    assert refs.relative(rms_norm_fn(x, weight - 1, None, residual, eps=1e-5, zero_centered_weight=True), want) < 1e-6
    assert RMSNorm(24, device=device)(x).shape == x.shape


@pytest.mark.parametrize("options", [dict(), dict(num_heads_kv=2, rotary_emb_dim=16), dict(dwconv=True), dict(use_alibi=True), dict(window_size=(5, 0))], ids=str)
def test_mha_decoding_equals_prefill(device, options):
    flash = MHA(64, 4, causal=True, use_flash_attn=True, layer_idx=0, device=device, **options)
    x = torch.randn(2, 13, 64, device=device)
    want = flash(x)
    if "use_alibi" not in options and "window_size" not in options:
        plain = MHA(64, 4, causal=True, device=device, **options)
        plain.load_state_dict(flash.state_dict())
        assert refs.relative(plain(x), want) < 1e-5
    if options.get("dwconv") or "window_size" in options:
        return  # upstream caches no convolution state, and decodes without windows

    class Cache:
        max_batch_size, max_seqlen, seqlen_offset, batch_size_offset, key_value_memory_dict, lengths_per_sample = 2, 20, 0, 0, {}, None

    cache, parts = Cache(), []
    cache.key_value_memory_dict = {}
    for begin, end in ((0, 8), (8, 9), (9, 13)):
        cache.seqlen_offset = begin
        parts.append(flash(x[:, begin:end], inference_params=cache))
    assert refs.relative(torch.cat(parts, 1), want) < 1e-5


def test_mlps(device):
    x = torch.randn(2, 5, 16, device=device)
    assert Mlp(16, device=device)(x).shape == x.shape and GatedMlp(16, device=device)(x).shape == x.shape
    assert get_alibi_slopes(4) == [0.25, 0.0625, 0.015625, 0.00390625] and len(get_alibi_slopes(6)) == 6


@pytest.mark.parametrize("n,m,causal", [(9, 9, True), (9, 14, True), (14, 9, True), (9, 14, False)])
def test_as_torch(device, n, m, causal):
    q, k, v = [t.transpose(1, 2) for t in make(device, n=n, m=m, h=4, hk=4)]
    assert refs.relative(scaled_dot_product_attention(q, k, v, is_causal=causal), F.scaled_dot_product_attention(q, k, v, is_causal=causal)) < 2e-6


# ---- compiled, traced, autocast, refused ------------------------------------------------------------------------------
def test_opcheck(device):
    if not hasattr(torch.library, "opcheck"):
        pytest.skip("this torch has no opcheck")
    q, k, v = make(device, b=1, n=5, m=6)
    none = [None] * 9
    torch.library.opcheck(torch.ops.krait.attention, (q, k, v, *none, None, 0.0, 0.0, 0.0, -1, 0, False, 0, 0, True))
    torch.library.opcheck(torch.ops.krait.rotary, (q, torch.rand(8, 16, device=device), torch.rand(8, 16, device=device), None, None, 0))


def test_autocast(device):
    q, k, v = make(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        out = flash_attn_func(q, k, v, causal=True)
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    assert q.grad.dtype == torch.float32


def test_refusals(device):
    q, k, v = make(device, grad=False)
    with pytest.raises(RuntimeError, match="H 3 is not a multiple of Hk"):
        flash_attn_func(q[:, :, :3], k, v)
    with pytest.raises(RuntimeError, match="D is 520, must be at most 512"):
        flash_attn_func(*[torch.randn(1, 2, 1, 520, device=device) for _ in range(3)])
    with pytest.raises(RuntimeError, match="v is float32 but k is float16"):
        flash_attn_func(q, k.to(torch.float16), v)
    with pytest.raises(RuntimeError, match="k is float32 but q is float16"):
        flash_attn_func(q.to(torch.float16), k, v)
    narrow = [t.to(torch.float16) for t in (k, v)]  # of a cache, beside float32 queries
    torch.testing.assert_close(flash_attn_func(q, *narrow), flash_attn_func(q, *[t.float() for t in narrow]), rtol=1e-5, atol=1e-5)
    with pytest.raises(RuntimeError, match="attention_bwd: k is float16 but q is float32"):
        flash_attn_func(q.clone().requires_grad_(), *narrow).sum().backward()
    if device == "cpu":
        flat = [t.flatten(0, 1) for t in (q, k, v)]
        good = torch.tensor([0, 19, 38], dtype=torch.int32)
        for bad in ([0, 20, 19], [0, 19, 39], [1, 19, 38]):
            with pytest.raises(RuntimeError, match="cu_seqlens"):
                flash_attn_varlen_func(*flat, torch.tensor(bad, dtype=torch.int32), good, 19, 19)
        table = torch.tensor([[0, 7]], dtype=torch.int32)
        with pytest.raises(RuntimeError, match="block_table"):
            flash_attn_with_kvcache(q[:1], k[:, :16], v[:, :16], cache_seqlens=20, block_table=table)
    with pytest.raises(RuntimeError, match="softcap"):
        flash_attn_func(q, k, v, 0.5, softcap=2.0)


def test_deterministic(device):
    q, k, v = make(device, n=200, m=300)
    grads = []
    for _ in range(3):
        grads.append(torch.autograd.grad(flash_attn_func(q, k, v, causal=True, deterministic=True).sum(), (q, k, v)))
    assert all(torch.equal(a, b) for other in grads[1:] for a, b in zip(grads[0], other))
