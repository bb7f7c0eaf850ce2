"""Drop-in for flash_attn_interface on krait: FlashAttention-3's names, on any CPU and any GPU. float8 is computed
in bfloat16; attention_chunk has a gradient here."""

import torch

from krait.ops.attention import window as _window
from krait.ops.chunked_attention import attention_with_cache as _attention_with_cache
from krait.ops.chunked_attention import chunked_attention as _chunked_attention
from krait.ops.chunked_attention import wide_attention as _attention
from krait.ops.chunked_attention import widened as _widened
from krait.ops.low_level import attention_any_bwd as _any_bwd

__version__ = "3.0.0"


def _refuse_qv(qv):
    if qv is not None:
        raise NotImplementedError("flash_attn_interface: qv is not supported by krait's drop-in")


def _run(q, k, v, descales, scale, causal, sizes, chunk, softcap, deterministic, want_lse, cu_seqlens_q=None, cu_seqlens_k=None, **packed):
    longest = packed.get("max_k", k.shape[1])
    if cu_seqlens_q is not None or cu_seqlens_k is not None:
        packed.update(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    q, k, v = [_widened(t, descale, cu) for t, descale, cu in zip((q, k, v), descales, (cu_seqlens_q, cu_seqlens_k, cu_seqlens_k))]
    options = dict(packed, scale=scale, softcap=softcap, window=_window(sizes, causal, longest), deterministic=deterministic, want_lse=want_lse)
    out, lse = _chunked_attention(chunk, q, k, v, **options) if chunk else _attention(q, k, v, **options)
    return (out, lse) if want_lse else out


def flash_attn_func(q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None, window_size=(-1, -1),
                    attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False):
    """q (B, Sq, H, D), k (B, Sk, Hk, D), v (B, Sk, Hk, Dv) -> out[, log-sum-exp (B, H, Sq)]. num_splits, pack_gqa and
        sm_margin are ignored."""
    _refuse_qv(qv)
    return _run(q, k, v, (q_descale, k_descale, v_descale), softmax_scale, causal, window_size, attention_chunk, softcap, deterministic, return_attn_probs)


def flash_attn_qkvpacked_func(qkv, softmax_scale=None, causal=False, q_descale=None, k_descale=None, v_descale=None, window_size=(-1, -1), attention_chunk=0,
                              softcap=0.0, deterministic=False, num_heads_q=None, sm_margin=0, return_attn_probs=False):
    """qkv (B, S, 3, H, D), or (B, S, H + 2 Hk, D) with num_heads_q."""
    if qkv.dim() == 5:
        q, k, v = qkv.unbind(2)
    else:
        keys = (qkv.shape[2] - num_heads_q) // 2
        q, k, v = qkv.split([num_heads_q, keys, keys], dim=2)
    return flash_attn_func(q, k, v, softmax_scale, causal, None, q_descale, k_descale, v_descale, window_size, attention_chunk, softcap,
                           deterministic=deterministic, return_attn_probs=return_attn_probs)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None, seqused_k=None, softmax_scale=None, causal=False,
                           qv=None, q_descale=None, k_descale=None, v_descale=None, window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1,
                           pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False):
    """Packed q (tokens, H, D), k and v (tokens, Hk, D); cu_seqlens (B + 1) int32; seqused (B) int32: the number of
        leading tokens used per sequence."""
    _refuse_qv(qv)
    return _run(q, k, v, (q_descale, k_descale, v_descale), softmax_scale, causal, window_size, attention_chunk, softcap, deterministic, return_attn_probs,
                cu_seqlens_q, cu_seqlens_k, seqused_q=seqused_q, seqused_k=seqused_k, max_q=max_seqlen_q, max_k=max_seqlen_k)


def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, cache_batch_idx=None,
                            cache_leftpad=None, page_table=None, cu_seqlens_q=None, cu_seqlens_k_new=None, max_seqlen_q=None, rotary_seqlens=None, q_descale=None,
                            k_descale=None, v_descale=None, softmax_scale=None, causal=False, window_size=(-1, -1), attention_chunk=0, softcap=0.0,
                            rotary_interleaved=True, scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0, return_softmax_lse=False, *,
                            gqa_parallel=None, max_seqlen_k_hint=None, descale_q=None, descale_k=None, descale_v=None):
    """Like flash_attn's; also packed queries (tokens, H, D) with cu_seqlens_q, new keys with cu_seqlens_k_new, and the beta's
    first names: gqa_parallel (pack_gqa), max_seqlen_k_hint, descale_q, descale_k and descale_v."""
    _refuse_qv(qv)
    given = [new if old is None else old for new, old in ((q_descale, descale_q), (k_descale, descale_k), (v_descale, descale_v))]
    if (k is None) != (v is None) or (rotary_cos is None) != (rotary_sin is None) or (rotary_cos is not None and k is None):
        raise RuntimeError("flash_attn_with_kvcache: pass k and v together; rotary_cos and rotary_sin together, and only with k and v")
    with torch.no_grad():
        q = _widened(_widened(q, given[0], cu_seqlens_q), given[1], cu_seqlens_q)  # scores are linear in q, outputs in v
        out, lse = _attention_with_cache(q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, cache_leftpad, page_table,
                                         cu_seqlens_q, cu_seqlens_k_new, max_seqlen_q, rotary_seqlens, softmax_scale, causal, window_size, attention_chunk,
                                         softcap, rotary_interleaved)
        out = _widened(out, given[2], cu_seqlens_q)
    return (out, lse) if return_softmax_lse else out


def _flash_attn_forward(q, k, v, k_new=None, v_new=None, qv=None, out_=None, cu_seqlens_q=None, cu_seqlens_k=None, cu_seqlens_k_new=None, seqused_q=None,
                        seqused_k=None, max_seqlen_q=None, max_seqlen_k=None, page_table=None, kv_batch_idx=None, leftpad_k=None, rotary_cos=None, rotary_sin=None,
                        seqlens_rotary=None, q_descale=None, k_descale=None, v_descale=None, softmax_scale=None, causal=False, window_size_left=-1,
                        window_size_right=-1, attention_chunk=0, softcap=0.0, rotary_interleaved=True, scheduler_metadata=None, num_splits=1, pack_gqa=None,
                        sm_margin=0, *, window_size=None, out=None):
    """Below autograd -> out, log-sum-exp, and the two empty tensors that upstream's has for splits. With new keys, pages, rows of a cache or used
    lengths alone, k and v are a cache. window_size and out: the names of the interface's first releases."""
    sizes, descales = (window_size_left, window_size_right) if window_size is None else window_size, (q_descale, k_descale, v_descale)
    is_cache = any(t is not None for t in (k_new, page_table, kv_batch_idx, leftpad_k)) or (seqused_k is not None and cu_seqlens_k is None)
    if seqused_q is not None and (is_cache or cu_seqlens_q is None):
        raise NotImplementedError("flash_attn_interface: seqused_q needs packed queries and keys (cu_seqlens_q, cu_seqlens_k)")
    with torch.no_grad():
        if is_cache:
            given, lse = flash_attn_with_kvcache(q, k, v, k_new, v_new, qv, rotary_cos, rotary_sin, seqused_k, kv_batch_idx, leftpad_k, page_table, cu_seqlens_q,
                                                 cu_seqlens_k_new, max_seqlen_q, seqlens_rotary, *descales, softmax_scale, causal, sizes, attention_chunk, softcap,
                                                 rotary_interleaved, return_softmax_lse=True)
        elif cu_seqlens_q is None:
            given, lse = flash_attn_func(q, k, v, softmax_scale, causal, qv, *descales, sizes, attention_chunk, softcap, return_attn_probs=True)
        else:
            given, lse = flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q, seqused_k, softmax_scale, causal, qv,
                                                *descales, sizes, attention_chunk, softcap, return_attn_probs=True)
        to = out if out_ is None else out_
        return given if to is None else to.copy_(given), lse, lse.new_empty(0), lse.new_empty(0)


def _flash_attn_backward(dout, q, k, v, out, softmax_lse, cu_seqlens_q=None, cu_seqlens_k=None, sequed_q=None, sequed_k=None, max_seqlen_q=None,
                         max_seqlen_k=None, dq=None, dk=None, dv=None, softmax_scale=None, is_causal=False, window_size_left=-1, window_size_right=-1, softcap=0.0,
                         deterministic=False, sm_margin=0, *, causal=None, window_size=None):
    """Below autograd: writes dq, dk, dv -> sum of dout * out, (B, H, Sq) float32. causal and window_size: the names of the interface's first releases."""
    left, right = (window_size_left, window_size_right) if window_size is None else window_size
    return _any_bwd(dout, q, k, v, out, softmax_lse, (dq, dk, dv), cu_seqlens_q, cu_seqlens_k, sequed_q, sequed_k, max_seqlen_q, max_seqlen_k, softmax_scale,
                    is_causal if causal is None else causal, left, right, softcap, deterministic)[3]


def flash_attn_combine(out_partial, lse_partial, out=None, out_dtype=None):
    """Partial outputs (splits, B, S, H, D), log-sum-exps (splits, B, S, H) -> out (B, S, H, D), log-sum-exp (B, S, H)."""
    lse = lse_partial.float().logsumexp(0)
    weights = (lse_partial.float() - lse).exp().nan_to_num(0.0).unsqueeze(-1)
    total = (weights * out_partial.float()).sum(0).to(out_partial.dtype if out_dtype is None else out_dtype)
    return total if out is None else out.copy_(total), lse


def get_scheduler_metadata(*_, **__):
    """None: krait's rows split their own work."""
    return None
