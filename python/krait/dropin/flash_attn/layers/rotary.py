"""Rotary embedding as a function, in place on packed projections, and as a module."""

import torch

from krait._torch import is_traced
from krait.ops.attention import overwrite as _overwrite, rotary as _rotary


def rotate_half(x, interleaved=False):
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def apply_rotary_emb_torch(x, cos, sin, interleaved=False):
    """apply_rotary_emb in plain torch; x (B, S, H, D)."""
    turned = 2 * cos.shape[-1]
    assert turned <= x.shape[-1]
    cos, sin = [(t.repeat_interleave(2, dim=-1) if interleaved else torch.cat((t, t), dim=-1)).unsqueeze(-2) for t in (cos, sin)]
    head, rest = x[..., :turned], x[..., turned:]
    return torch.cat((head * cos + rotate_half(head, interleaved) * sin, rest), dim=-1)


def apply_rotary_emb(x, cos, sin, interleaved=False, inplace=False, seqlen_offsets=0, cu_seqlens=None, max_seqlen=None):
    """x (B, S, H, D) or packed (tokens, H, D); cos, sin (positions, R): rotates the first 2 R features."""
    return _rotary(x, cos, sin, seqlen_offsets, cu_seqlens, interleaved, in_place=inplace)


apply_rotary_emb_func = apply_rotary_emb


class ApplyRotaryEmb:
    apply = staticmethod(apply_rotary_emb)


def apply_rotary_emb_qkv_(qkv, cos, sin, cos_k=None, sin_k=None, interleaved=False, seqlen_offsets=0, num_heads_q=None):
    """qkv (B, S, 3, H, D), or (B, S, H + 2 Hk, D) with num_heads_q: rotates queries and keys in place."""
    cos_k, sin_k = cos if cos_k is None else cos_k, sin if sin_k is None else sin_k
    assert qkv.dim() == 5 or (qkv.dim() == 4 and num_heads_q is not None), "qkv must be (B, S, 3, H, D), or (B, S, heads, D) with num_heads_q"
    return _turn_in_place(qkv, num_heads_q, ((cos, sin), (cos_k, sin_k)), interleaved, seqlen_offsets)


def apply_rotary_emb_kv_(kv, cos, sin, interleaved=False, seqlen_offsets=0):
    """kv (B, S, 2, Hk, D): rotates keys in place."""
    assert kv.dim() == 5, "kv must be (B, S, 2, Hk, D)"
    return _turn_in_place(kv, None, ((cos, sin),), interleaved, seqlen_offsets)


def _parts(t, n_queries):
    """Queries, keys and values of a packed projection, or keys and values."""
    if n_queries is None:
        return t.unbind(2)
    n_keys = (t.shape[2] - n_queries) // 2
    return t.split([n_queries, n_keys, n_keys], dim=2)


def _turn_in_place(t, n_queries, angles, interleaved, offsets):
    """Rotates the first parts of t, one for each pair of cos and sin."""
    if not is_traced():
        return _Turn.apply(t, n_queries, interleaved, offsets, *[a for pair in angles for a in pair])
    parts = list(_parts(t, n_queries))
    for i, (cos, sin) in enumerate(angles):
        parts[i] = _rotary(parts[i], cos, sin, offsets, interleaved=interleaved)
    return _overwrite(t, torch.stack(parts, 2) if n_queries is None else torch.cat(parts, 2))


class _Turn(torch.autograd.Function):
    """As upstream's, does not mark its input as dirty: that may be a leaf or one of several views. The gradient is that of the result."""

    @staticmethod
    def forward(ctx, t, n_queries, interleaved, offsets, *angles):
        ctx.save_for_backward(*angles, *([offsets] if isinstance(offsets, torch.Tensor) else []))
        ctx.options = n_queries, interleaved, 0 if isinstance(offsets, torch.Tensor) else offsets, len(angles)
        for part, cos, sin in zip(_parts(t, n_queries), angles[::2], angles[1::2]):
            _rotary(part, cos, sin, offsets, interleaved=interleaved, in_place=True)
        return t

    @staticmethod
    def backward(ctx, d):
        n_queries, interleaved, offset, n_angles = ctx.options
        saved = ctx.saved_tensors
        angles, offsets = saved[:n_angles], saved[n_angles] if len(saved) > n_angles else offset
        d = d.clone()
        for part, cos, sin in zip(_parts(d, n_queries), angles[::2], angles[1::2]):
            _rotary(part, cos, -sin, offsets, interleaved=interleaved, in_place=True)
        return d, None, None, None, *[None] * n_angles


class RotaryEmbedding(torch.nn.Module):
    """Angles are position / base^(2 r / dim); scale_base (XPos, Sun et al. 2022) also scales queries up and keys down
        with position. pos_idx_in_fp32, of releases before 2.7, is kept for subclasses: positions are float32 in any case."""

    def __init__(self, dim, base=10000.0, interleaved=False, scale_base=None, device=None, pos_idx_in_fp32=True):
        super().__init__()
        self.pos_idx_in_fp32 = pos_idx_in_fp32
        self.dim, self.base, self.interleaved, self.scale_base = dim, float(base), interleaved, scale_base
        self.register_buffer("inv_freq", self._compute_inv_freq(device), persistent=False)
        scale = None if scale_base is None else (torch.arange(0, dim, 2, device=device, dtype=torch.float32) + 0.4 * dim) / (1.4 * dim)
        self.register_buffer("scale", scale, persistent=False)
        self._seq_len_cached = 0
        self._cos_cached = self._sin_cached = self._cos_k_cached = self._sin_k_cached = None

    def _compute_inv_freq(self, device=None):
        return 1.0 / (self.base ** (torch.arange(0, self.dim, 2, device=device, dtype=torch.float32) / self.dim))

    def _update_cos_sin_cache(self, seqlen, device=None, dtype=None):
        cached = self._cos_cached
        if cached is not None and seqlen <= self._seq_len_cached and cached.device == device and cached.dtype == dtype:
            return
        with torch.inference_mode(False), torch.no_grad():  # later calls may need gradients
            self._fill_cos_sin_cache(seqlen, device, dtype)

    def _fill_cos_sin_cache(self, seqlen, device, dtype):
        self._seq_len_cached = seqlen
        positions = torch.arange(seqlen, device=device, dtype=torch.float32)
        # A model cast as a whole has rounded frequencies, too coarse for positions in the thousands: recompute.
        inverse = self.inv_freq if self.inv_freq.dtype == torch.float32 else self._compute_inv_freq(device)
        angles = torch.outer(positions, inverse.to(device))
        if self.scale is None:
            self._cos_cached, self._sin_cached = angles.cos().to(dtype), angles.sin().to(dtype)
            return
        power = (positions - seqlen // 2) / self.scale_base
        scale = self.scale.to(device=device, dtype=torch.float32) ** power.unsqueeze(1)
        self._cos_cached, self._sin_cached = (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)
        self._cos_k_cached, self._sin_k_cached = (angles.cos() / scale).to(dtype), (angles.sin() / scale).to(dtype)

    def forward(self, qkv, kv=None, seqlen_offset=0, max_seqlen=None, num_heads_q=None):
        """qkv (B, S, 3, H, D), rotated in place; or queries (B, S, H, D) with kv (B, S, 2, Hk, D), or (B, S, heads, D)
                with num_heads_q."""
        length = qkv.shape[1]
        if max_seqlen is not None or isinstance(seqlen_offset, int):
            self._update_cos_sin_cache(max_seqlen if max_seqlen is not None else length + seqlen_offset, device=qkv.device, dtype=qkv.dtype)
        keys = (None, None) if self.scale is None else (self._cos_k_cached, self._sin_k_cached)
        if kv is None:
            return apply_rotary_emb_qkv_(qkv, self._cos_cached, self._sin_cached, *keys, self.interleaved, seqlen_offset, num_heads_q)
        q = apply_rotary_emb(qkv, self._cos_cached, self._sin_cached, self.interleaved, True, seqlen_offset)
        cos, sin = (self._cos_cached, self._sin_cached) if self.scale is None else keys
        return q, apply_rotary_emb_kv_(kv, cos, sin, self.interleaved, seqlen_offset)
