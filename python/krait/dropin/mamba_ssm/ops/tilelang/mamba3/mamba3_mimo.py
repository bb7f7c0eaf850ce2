"""Mamba 3's scan of several ranks under upstream's path; nothing here needs TileLang."""

import torch

from krait.ops import mamba3


def mamba3_mimo(Q, K, V, ADT, DT, Trap, Q_bias, K_bias, MIMO_V, MIMO_Z, MIMO_Out, Angles, D, Z, chunk_size, rotary_dim_divisor, dtype, return_state=False,
                cu_seqlens=None, fuse_pregate_headwise_rms_norm=False, outproj_norm_weight=None, outproj_norm_eps=1e-5):
    """Q, K (B, L, R, G, N), V, Z (B, L, H, P), ADT, DT, Trap (B, H, L), biases (H, R, N), MIMO_* (H, R, P), Angles (B, L, H, N // divisor), D (H)
    -> out (B, L, H, P), or without MIMO_Out (B, L, R, H, P); with return_state (out, angles, states, K (n, R, H, N), V), differentiable.

    chunk_size and dtype are hints without effect: sums are float32."""
    if fuse_pregate_headwise_rms_norm and (Z is None or MIMO_Z is None or MIMO_Out is None):
        raise ValueError("mamba3_mimo: fuse_pregate_headwise_rms_norm needs Z, MIMO_Z and MIMO_Out")
    if Angles.shape[-1] != Q.shape[-1] // rotary_dim_divisor:
        raise ValueError("mamba3_mimo: Angles must have N // rotary_dim_divisor = %d // %d entries, got %d" % (Q.shape[-1], rotary_dim_divisor, Angles.shape[-1]))
    heads, p = V.shape[2:]
    if fuse_pregate_headwise_rms_norm and outproj_norm_weight is not None and outproj_norm_weight.numel() != heads * p:
        raise ValueError("mamba3_mimo: outproj_norm_weight must have H P = %d entries, got %d" % (heads * p, outproj_norm_weight.numel()))
    norm = None
    if fuse_pregate_headwise_rms_norm:
        norm = torch.ones(heads, p, device=V.device) if outproj_norm_weight is None else outproj_norm_weight.reshape(heads, p)
    results = mamba3(V, *[t.transpose(1, 2) for t in (ADT, DT, Trap)], K.flatten(2, 3), Q.flatten(2, 3), K_bias, Q_bias, Angles, D, Z, MIMO_V,
                     None if Z is None else MIMO_Z, MIMO_Out, norm, cu_seqlens=cu_seqlens, halves=True, eps=outproj_norm_eps, return_final_states=return_state)
    out, *states = results if return_state else (results,)
    out = out if MIMO_Out is not None else out.unflatten(2, (-1, heads))
    return (out, *states) if return_state else out
