"""Attention with upstream's signatures. Differences: float32 is supported; the log-sum-exp has a gradient and no
offset with ALiBi. With deterministic=False (the default, as upstream's) gradients may be summed in any order where a
GPU implementation is faster for it; otherwise they are bitwise reproducible."""

import torch

import flash_attn_2_cuda as flash_attn_gpu
from krait._function import function_by_name
from krait.ops.attention import attention as _attention
from krait.ops.attention import attention_with_cache as _attention_with_cache
from krait.ops.attention import new_rng as _new_rng
from krait.ops.attention import plain_attention as _plain_attention
from krait.ops.attention import window as _window
from krait.ops.probabilities import attention_probabilities as _probabilities

from . import _operators

USE_TRITON_ROCM = False


def _get_block_size_n(device, head_dim, is_dropout, is_causal):
    """The keys whose returned probabilities are relative to the same number, for callers that normalise them: here all."""
    return 1 << 30


def _tail(softcap, alibi_slopes, deterministic, return_attn_probs):
    """Before 2.6 there was no softcap: alibi_slopes and the arguments after it are one position earlier."""
    if softcap is None or isinstance(softcap, torch.Tensor) or isinstance(alibi_slopes, bool):
        return 0.0, softcap if isinstance(softcap, torch.Tensor) else None, bool(alibi_slopes), bool(deterministic)
    return softcap, alibi_slopes, deterministic, return_attn_probs


def _run(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs, n_keys, **packed):
    softcap, alibi_slopes, deterministic, return_attn_probs = _tail(softcap, alibi_slopes, deterministic, return_attn_probs)
    options = dict(packed, alibi_slopes=alibi_slopes, scale=softmax_scale, softcap=softcap, dropout=dropout_p, window=_window(window_size, causal, n_keys),
                   rng=_new_rng(q) if dropout_p > 0.0 else None)
    out, lse = _attention(q, k, v, deterministic=deterministic, want_lse=return_attn_probs, **options)
    if not return_attn_probs:
        return out
    return out, lse, _probabilities(q, k, v, **options) if dropout_p > 0.0 else None


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
                    return_attn_probs=False):
    """q (B, Sq, H, D), k and v (B, Sk, Hk, D), H a multiple of Hk -> out like q[, log-sum-exp (B, H, Sq), probabilities with dropout, signed].

    causal and window_size (left, right) align to the bottom right; alibi_slopes (H) or (B, H) float32; softcap c:
    scores become c tanh(score / c)."""
    if dropout_p == 0.0 and alibi_slopes is None and softcap is not None and not return_attn_probs and not isinstance(softcap, torch.Tensor):
        return _plain_attention(q, k, v, softmax_scale, softcap, window_size, causal, deterministic)
    return _run(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs, k.shape[1])


def flash_attn_qkvpacked_func(qkv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
                              return_attn_probs=False):
    """qkv (B, S, 3, H, D)."""
    return flash_attn_func(*qkv.unbind(2), dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)


def flash_attn_kvpacked_func(q, kv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
                             return_attn_probs=False):
    """kv (B, Sk, 2, Hk, D)."""
    return flash_attn_func(q, *kv.unbind(2), dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
                           window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False, block_table=None):
    """q (tokens, H, D), k and v (tokens, Hk, D), or pages (blocks, page, Hk, D) with block_table (B, max blocks);
    cu_seqlens (B + 1) int32. The log-sum-exp is (H, tokens)."""
    packed = dict(cu_seqlens_q=cu_seqlens_q, max_q=max_seqlen_q, max_k=max_seqlen_k)
    if block_table is None:
        packed.update(cu_seqlens_k=cu_seqlens_k)
    else:
        packed.update(block_table=block_table, seqused_k=(cu_seqlens_k[1:] - cu_seqlens_k[:-1]).to(torch.int32))
    return _run(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs, max_seqlen_k, **packed)


def flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                                     alibi_slopes=None, deterministic=False, return_attn_probs=False):
    """qkv (tokens, 3, H, D)."""
    return flash_attn_varlen_func(*qkv.unbind(1), cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale, causal, window_size, softcap,
                                  alibi_slopes, deterministic, return_attn_probs)


def flash_attn_varlen_kvpacked_func(q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
                                    window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False):
    """kv (tokens, 2, Hk, D)."""
    return flash_attn_varlen_func(q, *kv.unbind(1), cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal, window_size,
                                  softcap, alibi_slopes, deterministic, return_attn_probs)


def _check_pages(pages, block_table, cache_seqlens, n_new):
    capacity = block_table.shape[1] * pages.shape[1]
    if cache_seqlens is None or (pages.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    longest = n_new + (int(cache_seqlens.max()) if isinstance(cache_seqlens, torch.Tensor) and cache_seqlens.numel() else 0 if isinstance(cache_seqlens, torch.Tensor) else cache_seqlens)
    if longest > capacity:
        raise RuntimeError("flash_attn_with_kvcache: a sequence of %d keys does not fit in block_table: %d pages of %d keys" % (longest, block_table.shape[1], pages.shape[1]))


def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, cache_batch_idx=None,
                            cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                            rotary_interleaved=True, alibi_slopes=None, num_splits=0, return_softmax_lse=False):
    """q (B, Sq, H, D) over k_cache, v_cache (B, capacity, Hk, D) or pages (blocks, page, Hk, D). New k, v (B, new, Hk, D)
    are first written at cache_seqlens (int or (B) int32), keys rotated by rotary_cos, rotary_sin (positions, R). Queries
    are rotated by position with causal or a window, otherwise all by cache_seqlens. num_splits is ignored. No gradient.
    With block_table the lengths are compared with its capacity, which waits for the GPU (but not while it is captured)."""
    if block_table is not None:
        _check_pages(k_cache, block_table, cache_seqlens, 0 if k is None else k.shape[1])
    with torch.no_grad():
        out, lse = _attention_with_cache(q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, cache_leftpad, block_table,
                                         softmax_scale, causal, window_size, softcap, rotary_interleaved, alibi_slopes, want_lse=return_softmax_lse)
    return (out, lse) if return_softmax_lse else out


# ---- below autograd: called by context-parallel libraries -------------------------------------------------------------
def _flash_attn_forward(q, k, v, dropout_p, softmax_scale, causal, window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None,
                        return_softmax=False):
    """-> out, log-sum-exp, probabilities (with return_softmax and dropout), the generator's state."""
    out, lse, probabilities, rng_state = flash_attn_gpu.fwd(q, k, v, None, alibi_slopes, dropout_p, softmax_scale, causal, window_size_left, window_size_right,
                                                      softcap, return_softmax, None)
    return out, lse, probabilities, rng_state


def _flash_attn_varlen_forward(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal, window_size_left=-1,
                               window_size_right=-1, softcap=0.0, alibi_slopes=None, return_softmax=False, block_table=None, leftpad_k=None, seqused_k=None,
                               zero_tensors=False, num_splits=0):
    out, lse, probabilities, rng_state = flash_attn_gpu.varlen_fwd(q, k, v, None, cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k, block_table, alibi_slopes,
                                                             max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, zero_tensors, causal, window_size_left,
                                                             window_size_right, softcap, return_softmax, None, num_splits)
    return out, lse, probabilities, rng_state


def _flash_attn_backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal, window_size_left=-1, window_size_right=-1, softcap=0.0,
                         alibi_slopes=None, deterministic=False, rng_state=None):
    """Writes dq, dk, dv -> sum of dout * out, (B, H, Sq) float32."""
    return flash_attn_gpu.bwd(dout, q, k, v, out, softmax_lse, dq, dk, dv, alibi_slopes, dropout_p, softmax_scale, causal, window_size_left, window_size_right,
                        softcap, deterministic, None, rng_state)[3]


def _flash_attn_varlen_backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale,
                                causal, window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None, deterministic=False, rng_state=None,
                                zero_tensors=False):
    return flash_attn_gpu.varlen_bwd(dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, alibi_slopes, max_seqlen_q, max_seqlen_k, dropout_p,
                               softmax_scale, zero_tensors, causal, window_size_left, window_size_right, softcap, deterministic, None, rng_state)[3]


# The same, as torch.ops.flash_attn.*.
_wrapped_flash_attn_forward, _wrapped_flash_attn_backward = _operators.forward, _operators.backward
_wrapped_flash_attn_varlen_forward, _wrapped_flash_attn_varlen_backward = _operators.varlen_forward, _operators.varlen_backward


# Upstream's autograd functions by name, for callers of apply: each takes its function's arguments in upstream's order.
def _flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_softmax, *_):
    return flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_softmax)


def _flash_attn_qkv_packed_func(qkv, *options):
    return _flash_attn_func(*qkv.unbind(2), *options)


def _flash_attn_kv_packed_func(q, kv, *options):
    return _flash_attn_func(q, *kv.unbind(2), *options)


def _flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
                           deterministic, return_softmax, block_table=None, *_):
    return flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal, window_size, softcap,
                                  alibi_slopes, deterministic, return_softmax, block_table)


def _flash_attn_varlen_qkv_packed_func(qkv, cu_seqlens, max_seqlen, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                                      return_softmax, *_):
    return flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                                            return_softmax)


def _flash_attn_varlen_kv_packed_func(q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal, window_size,
                                     softcap, alibi_slopes, deterministic, return_softmax, *_):
    return flash_attn_varlen_kvpacked_func(q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal, window_size,
                                           softcap, alibi_slopes, deterministic, return_softmax)


FlashAttnFunc = function_by_name("FlashAttnFunc", _flash_attn_func)
FlashAttnQKVPackedFunc = function_by_name("FlashAttnQKVPackedFunc", _flash_attn_qkv_packed_func)
FlashAttnKVPackedFunc = function_by_name("FlashAttnKVPackedFunc", _flash_attn_kv_packed_func)
FlashAttnVarlenFunc = function_by_name("FlashAttnVarlenFunc", _flash_attn_varlen_func)
FlashAttnVarlenQKVPackedFunc = function_by_name("FlashAttnVarlenQKVPackedFunc", _flash_attn_varlen_qkv_packed_func)
FlashAttnVarlenKVPackedFunc = function_by_name("FlashAttnVarlenKVPackedFunc", _flash_attn_varlen_kv_packed_func)
