"""Multi-head attention of hybrid models: one projection to queries, keys, values and a gated MLP's inputs, a
convolution over the first three, rotary embedding, a KV cache. Decoding caches the convolution's inputs too, so it
continues from the prompt."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from krait._context_parallel import refuse
from krait.ops import apply_linear
from krait.ops import attention as _attention
from krait.ops import causal_conv1d as _convolution
from krait.ops import causal_conv1d_update as _convolution_update
from krait.ops import rotary as _rotary
from krait.ops.attention import append as _append

_MULTIPLE = 256  # the MLP's inputs are rounded up to this


class _Angles(nn.Module):
    """cos and sin up to the longest position used; no parameters."""

    def __init__(self, dim, base, interleaved, device):
        super().__init__()
        self.interleaved, self._kept = interleaved, None
        self.register_buffer("inv_freq", 1.0 / (base ** (torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim)), persistent=False)

    def of(self, count, like):
        kept = self._kept
        if kept is None or kept[0].shape[0] < count or kept[0].device != like.device or kept[0].dtype != like.dtype:
            with torch.inference_mode(False), torch.no_grad():  # later calls may need gradients
                angles = torch.outer(torch.arange(count, device=like.device, dtype=torch.float32), self.inv_freq.float().to(like.device))
                self._kept = kept = angles.cos().to(like.dtype), angles.sin().to(like.dtype)
        return kept


def _update_kv_cache(kv, inference_params, layer_idx):
    """For clients' own attention (Rene): writes kv (B, S, 2, Hk, D) behind the tokens in the layer's cache -> all that it holds of these
    sequences."""
    cache, _ = inference_params.key_value_memory_dict[layer_idx]
    batch, begin = inference_params.batch_size_offset, inference_params.seqlen_offset
    rows, end = slice(batch, batch + kv.shape[0]), begin + kv.shape[1]
    assert rows.stop <= cache.shape[0] and end <= cache.shape[1], "%d sequences of %d tokens do not fit in the cache" % (rows.stop, end)
    cache[rows, begin:end] = kv
    return cache[rows, :end]


class MHA(nn.Module):
    def __init__(self, embed_dim, num_heads, num_heads_kv=None, head_dim=None, mlp_dim=0, qkv_proj_bias=True, out_proj_bias=True, softmax_scale=None,
                 causal=False, layer_idx=None, d_conv=0, rotary_emb_dim=0, rotary_emb_base=10000.0, rotary_emb_interleaved=False, device=None, dtype=None):
        place = dict(device=device, dtype=dtype)
        super().__init__()
        self.embed_dim, self.layer_idx, self.d_conv, self.rotary_emb_dim = embed_dim, layer_idx, d_conv, rotary_emb_dim
        self.softmax_scale, self.causal, self.num_heads = softmax_scale, causal, num_heads
        self.num_heads_kv = num_heads if num_heads_kv is None else num_heads_kv
        assert num_heads % self.num_heads_kv == 0, "num_heads must be a multiple of num_heads_kv"
        assert head_dim is not None or embed_dim % num_heads == 0, "embed_dim must be a multiple of num_heads, or head_dim given"
        self.head_dim = embed_dim // num_heads if head_dim is None else head_dim
        self.mlp_dim = -(-mlp_dim // _MULTIPLE) * _MULTIPLE
        self.qkv_dim = self.head_dim * (num_heads + 2 * self.num_heads_kv)
        self.rotary_emb = _Angles(rotary_emb_dim, rotary_emb_base, rotary_emb_interleaved, device) if rotary_emb_dim else None
        self.in_proj = nn.Linear(embed_dim, self.qkv_dim + self.mlp_dim, bias=qkv_proj_bias, **place)
        if d_conv > 0:
            self.conv1d = nn.Conv1d(self.qkv_dim, self.qkv_dim, kernel_size=d_conv, padding=d_conv - 1, groups=self.qkv_dim, **place)
        self.out_proj = nn.Linear(self.head_dim * num_heads + self.mlp_dim // 2, embed_dim, bias=out_proj_bias, **place)

    def allocate_inference_cache(self, batch_size, max_seqlen, dtype=None):
        """-> (keys and values (B, tokens, 2, Hk, D), the convolution's last inputs (B, channels, d_conv) or None)."""
        dtype, device = self.out_proj.weight.dtype if dtype is None else dtype, self.out_proj.weight.device
        inputs = torch.zeros(batch_size, self.qkv_dim, self.d_conv, dtype=dtype, device=device) if self.d_conv > 0 else None
        return torch.empty(batch_size, max_seqlen, 2, self.num_heads_kv, self.head_dim, dtype=dtype, device=device), inputs

    def _cache(self, inference_params, batch):
        kept = inference_params.key_value_memory_dict
        if self.layer_idx not in kept:
            kept[self.layer_idx] = self.allocate_inference_cache(inference_params.max_batch_size, inference_params.max_seqlen)
        begin = inference_params.batch_size_offset
        return [t if t is None else t[begin:begin + batch] for t in kept[self.layer_idx]]

    def _convolve(self, qkv, inputs, begins):
        """qkv (B, S, channels); inputs: the state, updated in place if given."""
        weight, bias, x = self.conv1d.weight.squeeze(1), self.conv1d.bias, qkv.transpose(1, 2)
        if inputs is not None and not begins:
            return _convolution_update(x, inputs, weight, bias).transpose(1, 2)
        if inputs is not None:
            inputs.copy_(F.pad(x, (self.d_conv - x.shape[2], 0)))
        return _convolution(x, weight, bias).transpose(1, 2)

    def _turn(self, q, k, offsets, count):
        cos, sin = self.rotary_emb.of(count, q)
        return [_rotary(t, cos, sin, offsets, interleaved=self.rotary_emb.interleaved) for t in (q, k)]

    def _offsets(self, inference_params, batch, device):
        if inference_params.lengths_per_sample is not None:
            return inference_params.lengths_per_sample.to(torch.int32)
        return torch.full((batch,), inference_params.seqlen_offset, dtype=torch.int32, device=device)

    def _attend(self, q, k, v, cache, offsets):
        window = (-1, 0 if self.causal else -1)
        if cache is None:
            return _attention(q, k, v, scale=self.softmax_scale, window=window)[0]
        used = _append(k, v, None, None, offsets, None, None, cache[:, :, 0], cache[:, :, 1], False)
        return _attention(q, cache[:, :, 0], cache[:, :, 1], seqused_k=used, scale=self.softmax_scale, window=window)[0]

    def forward(self, x, inference_params=None):
        """x (B, S, embed_dim) -> (B, S, embed_dim)."""
        refuse("MHA", "sees its own part of the tokens only: attention over several processes is not written")
        cache = inputs = offsets = None
        if inference_params is not None:
            cache, inputs = self._cache(inference_params, x.shape[0])
            offsets = self._offsets(inference_params, x.shape[0], x.device)
        qkv, mlp = apply_linear(self.in_proj, x).split([self.qkv_dim, self.mlp_dim], dim=-1)
        if self.d_conv > 0:
            qkv = self._convolve(qkv, inputs, inference_params is None or inference_params.seqlen_offset == 0)
        heads = qkv.unflatten(-1, (-1, self.head_dim))
        q, k, v = heads.split([self.num_heads, self.num_heads_kv, self.num_heads_kv], dim=2)
        if self.rotary_emb is not None:
            q, k = self._turn(q, k, 0 if offsets is None else offsets, x.shape[1] if offsets is None else inference_params.max_seqlen)
        context = self._attend(q, k, v, cache, offsets).flatten(2)
        if self.mlp_dim:
            values, gates = mlp.chunk(2, dim=-1)
            context = torch.cat([context, values * F.silu(gates)], dim=-1)
        return apply_linear(self.out_proj, context)
