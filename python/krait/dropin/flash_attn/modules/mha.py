"""Multi-head attention as modules, with upstream's parameter names: Wqkv, or Wq and Wkv, out_proj, rotary_emb."""

import math
from functools import partial

import torch
import torch.nn as nn

from flash_attn.flash_attn_interface import (flash_attn_kvpacked_func, flash_attn_qkvpacked_func, flash_attn_varlen_kvpacked_func,
                                             flash_attn_varlen_qkvpacked_func, flash_attn_with_kvcache)
from flash_attn.layers.rotary import RotaryEmbedding
from flash_attn.ops.fused_dense import ColumnParallelLinear, RowParallelLinear
from flash_attn.utils.distributed import get_dim_for_local_rank
from krait.ops import apply_linear, linear


def get_alibi_slopes(nheads):
    """Press et al. 2022: powers of 2^(-8 / nheads); otherwise the slopes of the next lower power of two, then every
        second one of the next higher."""
    lower = 2 ** int(math.floor(math.log2(nheads)))
    slopes = [2.0 ** (-8.0 * (i + 1) / lower) for i in range(lower)]
    return slopes + [2.0 ** (-4.0 * (2 * i + 1) / lower) for i in range(nheads - lower)]


class FlashSelfAttention(nn.Module):
    def __init__(self, causal=False, softmax_scale=None, attention_dropout=0.0, window_size=(-1, -1), alibi_slopes=None, deterministic=False):
        super().__init__()
        self.causal, self.softmax_scale, self.window_size, self.deterministic = causal, softmax_scale, window_size, deterministic
        self.drop = nn.Dropout(attention_dropout)
        self.register_buffer("alibi_slopes", alibi_slopes, persistent=False)

    def _options(self, causal):
        return dict(dropout_p=self.drop.p if self.training else 0.0, softmax_scale=self.softmax_scale, causal=self.causal if causal is None else causal,
                    window_size=self.window_size, alibi_slopes=self.alibi_slopes, deterministic=self.deterministic)

    def forward(self, qkv, causal=None, cu_seqlens=None, max_seqlen=None):
        """qkv (B, S, 3, H, D), or packed (tokens, 3, H, D) with cu_seqlens and max_seqlen."""
        if cu_seqlens is None:
            return flash_attn_qkvpacked_func(qkv, **self._options(causal))
        return flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, **self._options(causal))


class FlashCrossAttention(FlashSelfAttention):
    def forward(self, q, kv, causal=None, cu_seqlens=None, max_seqlen=None, cu_seqlens_k=None, max_seqlen_k=None):
        """q (B, Sq, H, D), kv (B, Sk, 2, Hk, D), or both packed."""
        if cu_seqlens is None:
            return flash_attn_kvpacked_func(q, kv, **self._options(causal))
        return flash_attn_varlen_kvpacked_func(q, kv, cu_seqlens, cu_seqlens_k, max_seqlen, max_seqlen_k, **self._options(causal))


def _padded_attention(q, k, v, scale, causal, key_padding_mask, dropout):
    """Plain torch, for a mask of valid keys (B, Sk)."""
    repeat = q.shape[2] // k.shape[2]
    k, v = [t if repeat == 1 else t.repeat_interleave(repeat, dim=2) for t in (k, v)]
    scores = torch.einsum("bthd,bshd->bhts", q, k * (scale or 1 / math.sqrt(q.shape[-1])))
    if key_padding_mask is not None:
        scores = scores.masked_fill(~key_padding_mask.bool()[:, None, None], -10000.0)
    if causal:
        late = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).triu(1 + k.shape[1] - q.shape[1])
        scores = scores.masked_fill(late, -10000.0)
    return torch.einsum("bhts,bshd->bthd", dropout(scores.softmax(-1, dtype=v.dtype)), v)


class SelfAttention(nn.Module):
    def __init__(self, causal=False, softmax_scale=None, attention_dropout=0.0):
        super().__init__()
        self.causal, self.softmax_scale, self.drop = causal, softmax_scale, nn.Dropout(attention_dropout)

    def forward(self, qkv, causal=None, key_padding_mask=None):
        return _padded_attention(*qkv.unbind(2), self.softmax_scale, self.causal if causal is None else causal, key_padding_mask, self.drop)


class CrossAttention(SelfAttention):
    def forward(self, q, kv, causal=None, key_padding_mask=None):
        return _padded_attention(q, *kv.unbind(2), self.softmax_scale, self.causal if causal is None else causal, key_padding_mask, self.drop)


class LinearResidual(nn.Linear):
    def forward(self, input):
        return linear(input, self.weight, self.bias), input


def _update_kv_cache(kv, inference_params, layer_idx):
    """Appends kv (B, S, 2, Hk, D) to the layer's cache -> the cache's contents."""
    if layer_idx not in inference_params.key_value_memory_dict:
        cache = kv.new_empty(inference_params.max_batch_size, inference_params.max_seqlen, 2, *kv.shape[3:])
        inference_params.key_value_memory_dict[layer_idx] = cache
    cache = inference_params.key_value_memory_dict[layer_idx]
    batch, begin = inference_params.batch_size_offset, inference_params.seqlen_offset
    rows, end = slice(batch, batch + kv.shape[0]), begin + kv.shape[1]
    if rows.stop > cache.shape[0] or end > cache.shape[1]:
        raise RuntimeError("MHA: %d sequences of %d tokens do not fit in the cache %s" % (rows.stop, end, tuple(cache.shape)))
    cache[rows, begin:end] = kv
    return cache[rows, :end]


class MHA(nn.Module):
    """Multi-head self- and cross-attention, with grouped queries, rotary embedding, ALiBi, sliding windows, a depthwise
        convolution and a KV cache."""

    def __init__(self, embed_dim, num_heads, num_heads_kv=None, cross_attn=False, qkv_proj_bias=True, out_proj_bias=True, dropout=0.0, softmax_scale=None,
                 causal=False, layer_idx=None, dwconv=False, rotary_emb_dim=0, rotary_emb_base=10000.0, rotary_emb_scale_base=None,
                 rotary_emb_interleaved=False, use_alibi=False, window_size=(-1, -1), fused_bias_fc=False, use_flash_attn=False, return_residual=False,
                 checkpointing=False, device=None, dtype=None):
        place = dict(device=device, dtype=dtype)
        super().__init__()
        self.embed_dim, self.num_heads, self.num_heads_kv = embed_dim, num_heads, num_heads if num_heads_kv is None else num_heads_kv
        assert embed_dim % num_heads == 0 and num_heads % self.num_heads_kv == 0, "embed_dim must be a multiple of num_heads, num_heads of num_heads_kv"
        assert not (cross_attn and rotary_emb_dim), "MHA with rotary embedding does not support cross-attention"
        assert use_flash_attn or not use_alibi and tuple(window_size) == (-1, -1), "ALiBi and windows need use_flash_attn"
        self.cross_attn, self.causal, self.layer_idx, self.dwconv, self.rotary_emb_dim = cross_attn, causal, layer_idx, dwconv, rotary_emb_dim
        self.use_flash_attn, self.return_residual, self.checkpointing, self.head_dim = use_flash_attn, return_residual, checkpointing, embed_dim // num_heads
        slopes = torch.tensor(get_alibi_slopes(num_heads), device=device) if use_alibi else None
        self.rotary_emb = RotaryEmbedding(rotary_emb_dim, base=rotary_emb_base, scale_base=rotary_emb_scale_base, interleaved=rotary_emb_interleaved,
                                          device=device) if rotary_emb_dim else None
        linear = LinearResidual if return_residual else nn.Linear
        width = self.head_dim * (num_heads + 2 * self.num_heads_kv)
        if cross_attn:
            self.Wq = nn.Linear(embed_dim, embed_dim, bias=qkv_proj_bias, **place)
            self.Wkv = linear(embed_dim, 2 * self.head_dim * self.num_heads_kv, bias=qkv_proj_bias, **place)
        else:
            self.Wqkv = linear(embed_dim, width, bias=qkv_proj_bias, **place)
        if dwconv:
            convolution = partial(nn.Conv1d, kernel_size=3, padding=2, **place)
            if self.num_heads == self.num_heads_kv and not cross_attn:
                self.dwconv_qkv = convolution(width, width, groups=width)
            else:
                self.dwconv_q = convolution(embed_dim, embed_dim, groups=embed_dim)
                self.dwconv_kv = convolution(width - embed_dim, width - embed_dim, groups=width - embed_dim)
        inner = dict(causal=causal, softmax_scale=softmax_scale, attention_dropout=dropout)
        if use_flash_attn:
            inner.update(alibi_slopes=slopes, window_size=window_size)
        self.inner_attn = (FlashSelfAttention if use_flash_attn else SelfAttention)(**inner)
        self.inner_cross_attn = (FlashCrossAttention if use_flash_attn else CrossAttention)(**inner)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=out_proj_bias, **place)

    def allocate_inference_cache(self, batch_size, max_seqlen, dtype=None):
        weight = self.out_proj.weight
        return torch.empty(batch_size, max_seqlen, 2, self.num_heads_kv, self.head_dim, dtype=weight.dtype if dtype is None else dtype, device=weight.device)

    def _convolve(self, convolution, t):
        return convolution(t.transpose(1, 2))[..., :-2].transpose(1, 2).contiguous()

    def _attend(self, function, *inputs, **options):
        if self.checkpointing and self.training:
            return torch.utils.checkpoint.checkpoint(function, *inputs, use_reentrant=False, **options)
        return function(*inputs, **options)

    def _project(self, x, x_kv):
        """-> q (B, S, H, D), kv (B, S, 2, Hk, D), the return_residual result."""
        kept = x
        if self.cross_attn:
            q, kv = apply_linear(self.Wq, x), apply_linear(self.Wkv, x if x_kv is None else x_kv)
            kv, kept = kv if self.return_residual else (kv, x)
        else:
            qkv = apply_linear(self.Wqkv, x)
            qkv, kept = qkv if self.return_residual else (qkv, x)
            if self.dwconv and hasattr(self, "dwconv_qkv"):
                qkv = self._convolve(self.dwconv_qkv, qkv)
            q, kv = qkv[..., :self.embed_dim], qkv[..., self.embed_dim:]
        if self.dwconv and hasattr(self, "dwconv_q"):
            q, kv = self._convolve(self.dwconv_q, q), self._convolve(self.dwconv_kv, kv)
        return q.unflatten(-1, (self.num_heads, self.head_dim)), kv.unflatten(-1, (2, self.num_heads_kv, self.head_dim)), kept

    def _decode(self, q, kv, inference_params):
        """Rotary embedding, cache and attention in one call."""
        offsets = inference_params.lengths_per_sample
        offsets = inference_params.seqlen_offset if offsets is None else offsets
        if self.layer_idx not in inference_params.key_value_memory_dict:
            inference_params.key_value_memory_dict[self.layer_idx] = self.allocate_inference_cache(inference_params.max_batch_size, inference_params.max_seqlen, q.dtype)
        batch = inference_params.batch_size_offset
        cache = inference_params.key_value_memory_dict[self.layer_idx][batch:batch + q.shape[0]]
        cos = sin = None
        if self.rotary_emb is not None:
            self.rotary_emb._update_cos_sin_cache(inference_params.max_seqlen, device=q.device, dtype=q.dtype)
            cos, sin = self.rotary_emb._cos_cached, self.rotary_emb._sin_cached
        return flash_attn_with_kvcache(q, cache[:, :, 0], cache[:, :, 1], kv[:, :, 0], kv[:, :, 1], rotary_cos=cos, rotary_sin=sin, cache_seqlens=offsets,
                                       softmax_scale=self.inner_cross_attn.softmax_scale, causal=self.inner_cross_attn.causal,
                                       rotary_interleaved=self.rotary_emb.interleaved if self.rotary_emb is not None else False,
                                       alibi_slopes=self.inner_cross_attn.alibi_slopes)

    def _with_cache(self, q, kv, inference_params):
        if self.use_flash_attn and (self.rotary_emb is None or self.rotary_emb.scale is None):
            return self._decode(q, kv, inference_params)
        if self.rotary_emb is not None:
            q, kv = self.rotary_emb(q, kv, seqlen_offset=inference_params.seqlen_offset, max_seqlen=inference_params.max_seqlen)
        return self.inner_cross_attn(q, _update_kv_cache(kv, inference_params, self.layer_idx), causal=self.causal and inference_params.seqlen_offset == 0)

    def _without_cache(self, q, kv, cu_seqlens, max_seqlen, key_padding_mask, crossed, lengths_of_keys=()):
        lengths = dict(cu_seqlens=cu_seqlens, max_seqlen=max_seqlen) if self.use_flash_attn else dict(key_padding_mask=key_padding_mask)
        if self.rotary_emb is not None:
            q, kv = self.rotary_emb(q, kv, seqlen_offset=0)
        if not self.use_flash_attn or crossed or self.num_heads != self.num_heads_kv:
            if self.use_flash_attn and cu_seqlens is not None:
                lengths.update(dict(cu_seqlens_k=cu_seqlens, max_seqlen_k=max_seqlen), **dict(lengths_of_keys))
            return self._attend(self.inner_cross_attn, q, kv, **lengths)
        return self._attend(self.inner_attn, torch.cat((q.unsqueeze(-3), kv), dim=-3), **lengths)

    def forward(self, x, x_kv=None, key_padding_mask=None, cu_seqlens=None, max_seqlen=None, mixer_subset=None, inference_params=None, **kwargs):
        """x (B, S, embed_dim), or packed (tokens, embed_dim) with cu_seqlens and max_seqlen, and for other x_kv cu_seqlens_k and
        max_seqlen_k; key_padding_mask (B, S), true for valid tokens, without use_flash_attn."""
        assert cu_seqlens is None or (max_seqlen is not None and self.use_flash_attn and not self.rotary_emb_dim), \
            "cu_seqlens needs max_seqlen, use_flash_attn and no rotary embedding"
        assert key_padding_mask is None or not self.use_flash_attn, "key_padding_mask: unpad the batch for use_flash_attn"
        q, kv, kept = self._project(x if mixer_subset is None else x, x_kv)
        if mixer_subset is not None:
            q = q[:, mixer_subset]
        if inference_params is None:
            context = self._without_cache(q, kv, cu_seqlens, max_seqlen, key_padding_mask, self.cross_attn or mixer_subset is not None,
                                          {name: kwargs[name] for name in ("cu_seqlens_k", "max_seqlen_k") if name in kwargs})
        else:
            context = self._with_cache(q, kv, inference_params)
        out = apply_linear(self.out_proj, context.flatten(-2))
        return (out, kept) if self.return_residual else out


class ParallelMHA(MHA):
    """Self-attention with its heads split over a group; x (tokens, embed_dim) or (B, S, embed_dim), with sequence_parallel this process's
    part of the tokens, then seqlen is needed."""

    def __init__(self, embed_dim, num_heads, process_group, num_heads_kv=None, qkv_proj_bias=True, out_proj_bias=True, dropout=0.0, softmax_scale=None, causal=False,
                 layer_idx=None, rotary_emb_dim=0, rotary_emb_base=10000.0, rotary_emb_scale_base=None, rotary_emb_interleaved=False, use_alibi=False,
                 window_size=(-1, -1), use_flash_attn=False, checkpointing=False, sequence_parallel=True, device=None, dtype=None):
        size, rank = torch.distributed.get_world_size(process_group), torch.distributed.get_rank(process_group)
        keys = num_heads if num_heads_kv is None else num_heads_kv
        mine, my_keys = [get_dim_for_local_rank(n, size, rank) for n in (num_heads, keys)]
        head_dim, place = embed_dim // num_heads, dict(sequence_parallel=sequence_parallel, device=device, dtype=dtype)
        super().__init__(head_dim * mine, mine, my_keys, dropout=dropout, softmax_scale=softmax_scale, causal=causal, layer_idx=layer_idx, rotary_emb_dim=rotary_emb_dim,
                         rotary_emb_base=rotary_emb_base, rotary_emb_scale_base=rotary_emb_scale_base, rotary_emb_interleaved=rotary_emb_interleaved,
                         window_size=window_size, use_flash_attn=use_flash_attn, checkpointing=checkpointing, device="meta", dtype=dtype)
        self.process_group, self.num_heads_per_rank, self.num_heads_kv_per_rank = process_group, mine, my_keys
        self.Wqkv = ColumnParallelLinear(embed_dim, head_dim * (num_heads + 2 * keys), process_group, bias=qkv_proj_bias, multiple_of=head_dim * (num_heads // keys + 2), **place)
        self.out_proj = RowParallelLinear(embed_dim, embed_dim, process_group, bias=out_proj_bias, multiple_of=head_dim, **place)
        if self.rotary_emb is not None:
            self.rotary_emb = RotaryEmbedding(rotary_emb_dim, base=rotary_emb_base, scale_base=rotary_emb_scale_base, interleaved=rotary_emb_interleaved, device=device)
        if use_alibi:
            first = sum(get_dim_for_local_rank(num_heads, size, i) for i in range(rank))
            slopes = torch.tensor(get_alibi_slopes(num_heads)[first:first + mine], device=device)
            for attention in (self.inner_attn, self.inner_cross_attn):
                attention.register_buffer("alibi_slopes", slopes, persistent=False)

    def forward(self, x, seqlen=None, inference_params=None, **kwargs):
        qkv = self.Wqkv(x)
        flat = seqlen is not None
        qkv = qkv.unflatten(0, (-1, seqlen)) if flat else qkv
        q, kv = qkv[..., :self.embed_dim].unflatten(-1, (self.num_heads, self.head_dim)), qkv[..., self.embed_dim:].unflatten(-1, (2, self.num_heads_kv, self.head_dim))
        if inference_params is None:
            context = self._without_cache(q, kv, None, None, None, False)
        else:
            context = self._with_cache(q, kv, inference_params)
        context = context.flatten(-2)
        return self.out_proj(context.flatten(0, 1) if flat else context)
