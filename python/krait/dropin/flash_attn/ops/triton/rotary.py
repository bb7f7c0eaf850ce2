"""Rotary embedding at the level of upstream's kernel; nothing here needs Triton."""

from krait.ops.attention import rotary as _rotary


def apply_rotary(x, cos, sin, seqlen_offsets=0, cu_seqlens=None, max_seqlen=None, interleaved=False, inplace=False, conjugate=False):
    """x (B, S, H, D) or packed (tokens, H, D); cos, sin (positions, R); conjugate: inverse."""
    return _rotary(x, cos, sin, seqlen_offsets, cu_seqlens, interleaved, inverse=conjugate, in_place=inplace)
