"""The FlashAttention-3 functions beyond the operator: chunks, wide values, float8, packed new keys; by a plain reference."""

import pytest
import torch

from flash_attn_interface import _flash_attn_backward, _flash_attn_forward, flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

N = (4, 2, 16)  # heads, key heads, channels


def reference(q, k, v, chunk, causal, sizes):
    """One sequence: q (Sq, H, D) -> (Sq, H, Dv)."""
    k, v = [t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v)]
    at, key = torch.arange(len(q))[:, None] + len(k) - len(q), torch.arange(len(k))
    seen = torch.ones(len(q), len(k), dtype=torch.bool)
    if chunk:
        seen &= at // chunk == key // chunk
    if causal:
        seen &= key <= at
    seen &= (sizes[0] < 0) | (key >= at - sizes[0])
    seen &= (sizes[1] < 0) | causal | (key <= at + sizes[1])
    scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0), v)


def make(n_q, n_k, width=16, batch=2):
    torch.manual_seed(n_q + n_k)
    heads, key_heads, channels = N
    return torch.randn(batch, n_q, heads, channels), torch.randn(batch, n_k, key_heads, channels), torch.randn(batch, n_k, key_heads, width)


@pytest.mark.parametrize("n_q, n_k, width, chunk, causal, sizes", [
    (7, 7, 16, 3, True, (-1, -1)), (5, 20, 16, 6, False, (-1, -1)), (20, 5, 16, 2, True, (-1, -1)), (9, 33, 512, 8, False, (3, 5)), (9, 33, 300, 0, True, (4, 0)),
    (1, 1, 16, 1, False, (-1, -1)), (30, 30, 16, 100, True, (-1, -1))])
def test_chunks_and_wide_values(n_q, n_k, width, chunk, causal, sizes):
    q, k, v = make(n_q, n_k, width)
    q.requires_grad_()
    out, lse = flash_attn_func(q, k, v, causal=causal, window_size=sizes, attention_chunk=chunk, return_attn_probs=True)
    wanted = torch.stack([reference(*tensors, chunk, causal, sizes) for tensors in zip(q, k, v)])
    assert lse.shape == (2, 4, n_q)
    torch.testing.assert_close(out, wanted, atol=2e-5, rtol=1e-4)
    got, = torch.autograd.grad(out.square().sum(), q)
    torch.testing.assert_close(got, torch.autograd.grad(wanted.square().sum(), q)[0], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("chunk", [0, 4])
def test_packed_with_unused_tokens(chunk):
    cu_q, cu_k = [torch.tensor(ends, dtype=torch.int32) for ends in ([0, 5, 14, 18], [0, 12, 21, 28])]
    used_q, used_k = [torch.tensor(counts, dtype=torch.int32) for counts in ([4, 9, 2], [10, 3, 7])]
    q, k, v = [t[0] for t in make(18, 28, batch=1)]
    out = flash_attn_varlen_func(q, k, v, cu_q, cu_k, 9, 12, used_q, used_k, causal=True, attention_chunk=chunk)
    for b in range(3):
        rows, keys = slice(cu_q[b], cu_q[b] + used_q[b]), slice(cu_k[b], cu_k[b] + used_k[b])
        torch.testing.assert_close(out[rows], reference(q[rows], k[keys], v[keys], chunk, True, (-1, -1)), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("chunk", [0, 5])
@pytest.mark.parametrize("pages", [False, True])
@pytest.mark.parametrize("pad", [None, [2, 0]])
def test_cache_with_packed_new_keys(chunk, pages, pad):
    q, k_cache, v_cache = make(5, 24)
    _, k, v = [t[0] for t in make(5, 7, batch=1)]
    cu_q, cu_new, used = [torch.tensor(x, dtype=torch.int32) for x in ([0, 3, 5], [0, 4, 7], [6, 11])]
    first = [0, 0] if pad is None else pad
    packed, wanted = q[0, :5], []
    for b in range(2):
        new = slice(cu_new[b], cu_new[b + 1])
        keys, values = [torch.cat([cache[b, first[b]:used[b]], fresh[new]]) for cache, fresh in ((k_cache, k), (v_cache, v))]
        wanted.append(reference(packed[cu_q[b]:cu_q[b + 1]], keys, values, chunk, True, (-1, -1)))
    table = None
    if pages:
        k_cache, v_cache, table = k_cache.reshape(12, 4, 2, 16), v_cache.reshape(12, 4, 2, 16), torch.arange(12, dtype=torch.int32).view(2, 6)
    out = flash_attn_with_kvcache(packed, k_cache, v_cache, k, v, cache_seqlens=used, page_table=table, cu_seqlens_q=cu_q, cu_seqlens_k_new=cu_new, max_seqlen_q=3,
                                  cache_leftpad=None if pad is None else torch.tensor(pad, dtype=torch.int32), causal=True, attention_chunk=chunk)
    torch.testing.assert_close(out, torch.cat(wanted), atol=2e-5, rtol=1e-4)


def test_float8():
    if not hasattr(torch, "float8_e4m3fn"):
        pytest.skip("this torch has no float8")
    q, k, v = [t.to(torch.float8_e4m3fn) for t in make(6, 9)]
    scales = [torch.rand(2, 2) + 0.5 for _ in range(3)]
    out = flash_attn_func(q, k, v, q_descale=scales[0], k_descale=scales[1], v_descale=scales[2], causal=True)
    wide = [t.float() * scale.repeat_interleave(t.shape[2] // 2, 1)[:, None, :, None] for t, scale in zip((q, k, v), scales)]
    wanted = torch.stack([reference(*tensors, 0, True, (-1, -1)) for tensors in zip(*wide)])
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), wanted, atol=5e-2, rtol=5e-2)
    cached = flash_attn_with_kvcache(q, k, v, cache_seqlens=9, causal=True, gqa_parallel=True, descale_q=scales[0], descale_k=scales[1], descale_v=scales[2])
    torch.testing.assert_close(cached.float(), wanted, atol=5e-2, rtol=5e-2)


@pytest.mark.parametrize("sizes", [(-1, -1), (3, 0)])
def test_below_autograd(sizes):
    """As ring attention calls it, by the names of newer and of first releases: dense, packed, and with a cache."""
    q, k, v = [t.requires_grad_() for t in make(9, 14)]
    wanted, lse = flash_attn_func(q, k, v, causal=True, window_size=sizes, return_attn_probs=True)
    grads = torch.autograd.grad(wanted, (q, k, v), q)
    for names, ours in ((dict(window_size_left=sizes[0], window_size_right=sizes[1]), "is_causal"), (dict(window_size=sizes), "causal")):
        got = _flash_attn_forward(q, k, v, None, None, causal=True, **names)
        assert len(got) == 4 and not got[0].requires_grad and torch.equal(got[0], wanted) and torch.equal(got[1], lse)
        to = [torch.empty_like(t) for t in (q, k, v)]
        _flash_attn_backward(q, q, k, v, *got[:2], dq=to[0], dk=to[1], dv=to[2], **{ours: True}, **names)
        assert all(torch.equal(t, g) for t, g in zip(to, grads))
    cu_q, cu_k = [torch.tensor([0, n, 2 * n], dtype=torch.int32) for n in (9, 14)]
    out = torch.empty(18, 4, 16)
    packed = _flash_attn_forward(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), out_=out, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, max_seqlen_q=9, max_seqlen_k=14,
                                 causal=True, window_size=sizes)
    assert packed[0] is out
    torch.testing.assert_close(out.unflatten(0, (2, 9)), wanted)
    cache = [torch.cat([t.detach()[:, :10], torch.zeros(2, 6, *t.shape[2:])], 1) for t in (k, v)]
    used = torch.full((2,), 10, dtype=torch.int32)
    stepped = _flash_attn_forward(q, *cache, k[:, 10:], v[:, 10:], seqused_k=used, causal=True, window_size=sizes)
    torch.testing.assert_close(stepped[0], wanted)
    assert torch.equal(cache[0][:, :14], k)
    with pytest.raises(NotImplementedError, match="seqused_q"):
        _flash_attn_forward(q, k, v, seqused_q=used, causal=True)


def test_qv_is_refused_by_name():
    with pytest.raises(NotImplementedError, match="qv"):
        flash_attn_func(*make(3, 3), qv=torch.zeros(2, 3, 4, 16))
