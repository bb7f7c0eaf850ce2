"""Attention with FlashAttention-4's signatures. What is a program of its compiler (score_mod, mask_mod, block sparsity) or has no
operator here (qv, gathered keys) raises NotImplementedError."""

import torch

from krait.ops.attention import attention as _attention
from krait.ops.attention import window as _window


def _refuse(**given):
    for name, value in given.items():
        if value is not None:
            raise NotImplementedError("flash_attn.cute: %s is not supported by krait's drop-in" % name)


def flash_attn_func(q, k, v, qv=None, gather_kv_indices=None, softmax_scale=None, causal=False, window_size=(None, None), learnable_sink=None, softcap=0.0,
                    num_splits=1, pack_gqa=None, deterministic=False, score_mod=None, score_mod_bwd=None, mask_mod=None, aux_tensors=None, aux_scalars=None,
                    block_sparse_tensors=None, block_sparse_tensors_bwd=None, return_lse=False):
    """q (B, Sq, H, D), k and v (B, Sk, Hk, D) -> out, log-sum-exp (B, H, Sq) or None without return_lse and gradients. learnable_sink (H): an extra
    logit in each softmax. num_splits and pack_gqa are ignored."""
    _refuse(qv=qv, gather_kv_indices=gather_kv_indices, score_mod=score_mod, mask_mod=mask_mod, block_sparse_tensors=block_sparse_tensors)
    return _attention(q, k, v, sinks=learnable_sink, scale=softmax_scale, softcap=softcap, window=_window(window_size, causal, k.shape[1]),
                      deterministic=deterministic, want_lse=return_lse)


def _length(cu_seqlens):
    return 0 if cu_seqlens is None else int((cu_seqlens[1:] - cu_seqlens[:-1]).max())


def flash_attn_varlen_func(q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, min_seqlen_k=None, seqused_q=None,
                           seqused_k=None, gather_kv_indices=None, page_table=None, softmax_scale=None, causal=False, window_size=(None, None),
                           learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, score_mod=None, score_mod_bwd=None, mask_mod=None,
                           block_sparse_tensors=None, aux_tensors=None, aux_scalars=None, return_lse=False, scheduler_metadata=None, seqlen_k_per_split=None,
                           disable_scheduler_metadata=False):
    """flash_attn_func of packed sequences: cu_seqlens (B + 1) int32, seqused (B) the tokens used of each; page_table (B, pages) for keys in pages."""
    _refuse(qv=qv, gather_kv_indices=gather_kv_indices, score_mod=score_mod, mask_mod=mask_mod, block_sparse_tensors=block_sparse_tensors)
    if page_table is not None and seqused_k is None:
        seqused_k, cu_seqlens_k = (cu_seqlens_k[1:] - cu_seqlens_k[:-1]).to(torch.int32), None
    longest = max_seqlen_k or (page_table.shape[1] * k.shape[1] if page_table is not None else _length(cu_seqlens_k) if cu_seqlens_k is not None else k.shape[1])
    return _attention(q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, block_table=page_table, sinks=learnable_sink, scale=softmax_scale, softcap=softcap,
                      window=_window(window_size, causal, longest), deterministic=deterministic, max_q=max_seqlen_q or _length(cu_seqlens_q),
                      max_k=max_seqlen_k or _length(cu_seqlens_k), want_lse=return_lse)
