"""Drop-in for flash_attn_interface on krait: the FlashAttention-3 beta's names, on any CPU and any GPU."""

import torch

from krait.ops.attention import attention as _attention
from krait.ops.attention import attention_with_cache as _attention_with_cache
from krait.ops.attention import window as _window

__version__ = "3.0.0b1"


def _refuse(**given):
    for name, value in given.items():
        if value is not None and not (isinstance(value, int) and value == 0):
            raise NotImplementedError("flash_attn_interface: %s is not supported by krait's drop-in" % name)


def _result(out, lse, return_attn_probs):
    return (out, lse) if return_attn_probs else out


def flash_attn_func(q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None, window_size=(-1, -1),
                    attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False):
    """q (B, Sq, H, D), k (B, Sk, Hk, D), v (B, Sk, Hk, Dv) -> out[, log-sum-exp (B, H, Sq)]. num_splits, pack_gqa and
        sm_margin are ignored."""
    _refuse(qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, attention_chunk=attention_chunk)
    out, lse = _attention(q, k, v, scale=softmax_scale, softcap=softcap, window=_window(window_size, causal, k.shape[1]), deterministic=deterministic,
                          want_lse=return_attn_probs)
    return _result(out, lse, return_attn_probs)


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
    _refuse(qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, attention_chunk=attention_chunk)
    out, lse = _attention(q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, scale=softmax_scale, softcap=softcap,
                          window=_window(window_size, causal, max_seqlen_k), deterministic=deterministic, max_q=max_seqlen_q, max_k=max_seqlen_k,
                          want_lse=return_attn_probs)
    return _result(out, lse, return_attn_probs)


def _packed_queries(q, k_cache, v_cache, cu_seqlens_q, max_seqlen_q, used, rows, leftpad, table, scale, sizes, softcap):
    return _attention(q, k_cache, v_cache, cu_seqlens_q, seqused_k=used, leftpad_k=leftpad, cache_batch_idx=rows, block_table=table, scale=scale,
                      softcap=softcap, window=sizes, max_q=max_seqlen_q or 0, want_lse=True)


def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, cache_batch_idx=None,
                            cache_leftpad=None, page_table=None, cu_seqlens_q=None, cu_seqlens_k_new=None, max_seqlen_q=None, rotary_seqlens=None, q_descale=None,
                            k_descale=None, v_descale=None, softmax_scale=None, causal=False, window_size=(-1, -1), attention_chunk=0, softcap=0.0,
                            rotary_interleaved=True, scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0, return_softmax_lse=False):
    """Like flash_attn's; also packed queries (tokens, H, D) with cu_seqlens_q, whose keys are already in the cache."""
    _refuse(qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, attention_chunk=attention_chunk, cu_seqlens_k_new=cu_seqlens_k_new,
            rotary_seqlens=rotary_seqlens)
    with torch.no_grad():
        if cu_seqlens_q is None:
            out, lse = _attention_with_cache(q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, cache_leftpad, page_table,
                                             softmax_scale, causal, window_size, softcap, rotary_interleaved, want_lse=return_softmax_lse)
        else:
            _refuse(k=k, v=v, rotary_cos=rotary_cos)
            if isinstance(cache_seqlens, int):
                cache_seqlens = torch.full((cu_seqlens_q.shape[0] - 1,), cache_seqlens, dtype=torch.int32, device=q.device)
            capacity = k_cache.shape[1] * (1 if page_table is None else page_table.shape[1])
            out, lse = _packed_queries(q, k_cache, v_cache, cu_seqlens_q, max_seqlen_q, cache_seqlens, cache_batch_idx, cache_leftpad, page_table, softmax_scale,
                                       _window(window_size, causal, capacity), softcap)
    return (out, lse) if return_softmax_lse else out


def flash_attn_combine(out_partial, lse_partial, out=None, out_dtype=None):
    """Partial outputs (splits, B, S, H, D), log-sum-exps (splits, B, S, H) -> out (B, S, H, D), log-sum-exp (B, S, H)."""
    lse = lse_partial.float().logsumexp(0)
    weights = (lse_partial.float() - lse).exp().nan_to_num(0.0).unsqueeze(-1)
    total = (weights * out_partial.float()).sum(0).to(out_partial.dtype if out_dtype is None else out_dtype)
    return total if out is None else out.copy_(total), lse


def get_scheduler_metadata(*_, **__):
    """None: krait's rows split their own work."""
    return None
