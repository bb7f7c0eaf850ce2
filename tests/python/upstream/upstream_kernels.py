"""Upstream's MIMO kernels of Mamba 3 by name, for its tests of them (upstream_edits.py): their angles are sums already, so rotation and biases are plain torch here,
and everything else is krait's scan."""

import torch
from krait.ops import mamba3


def compute_dacs_segsum_triton_varlen(da, chunk_size, cu_seqlens=None):
    """da (B, H, S) -> its sums within chunks, up to each token and after it, for upstream's references; and da, which the functions below read instead of sums of
    segments."""
    ends = [0, da.shape[2]] if cu_seqlens is None else cu_seqlens.tolist()
    up_to, after = torch.empty_like(da), torch.empty_like(da)
    for start, end in zip(ends, ends[1:]):
        for first in range(start, end, chunk_size):
            chunk = slice(first, min(first + chunk_size, end))
            up_to[..., chunk] = da[..., chunk].cumsum(-1)
            after[..., chunk] = da[..., chunk].sum(-1, keepdim=True) - up_to[..., chunk]
    return up_to, after, da


compute_dacs_segsum_triton = compute_dacs_segsum_triton_varlen


def _turned(x, bias, angles):
    """x (B, S, R, G, N) for the heads of angles (B, S, H, M), with bias (H, R, N), rotated: entry m with m + N / 2 -> (B, S, R H, N)."""
    x = x.repeat_interleave(angles.shape[2] // x.shape[3], 3).float() + bias.transpose(0, 1)
    pairs, half = angles.shape[3], x.shape[4] // 2
    cos, sin = angles.cos()[:, :, None], angles.sin()[:, :, None]
    a, rest_a, b, rest_b = x.split([pairs, half - pairs, pairs, half - pairs], dim=-1)
    return torch.cat((a * cos - b * sin, rest_a, a * sin + b * cos, rest_b), -1).flatten(2, 3)


def _scan(q, k, v, q_bias, k_bias, mimo_v, mimo_o, z, D, mimo_z, angles, dt, trap, da, norm_weight, eps, cu_seqlens):
    heads, ranks, n = q_bias.shape
    none = q_bias.new_zeros(heads, ranks, n)
    out, *states = mamba3(v, *[t.transpose(1, 2) for t in (da, dt, trap)], *[_turned(t, bias, angles).to(v.dtype) for t, bias in ((k, k_bias), (q, q_bias))], none, none,
                          angles.new_zeros(*angles.shape[:2], 1, 1), D, z, mimo_v, mimo_z, mimo_o, norm_weight, cu_seqlens=cu_seqlens, halves=True, eps=eps,
                          return_final_states=True)
    return (out if mimo_o is not None else out.unflatten(2, (ranks, heads))), states[1].mT, states[2]


def mamba_mimo_forward(q, k, v, q_bias, k_bias, mimo_v, mimo_o, z, D, mimo_z, angles, dA_cs, dA_cs_rev, dt, trap, segsum, chunk_size, rotary_dim_divisor, dtype, return_state=False,
                       fuse_pregate_headwise_rms_norm=False, outproj_norm_weight=None, outproj_norm_eps=1e-5, cu_seqlens=None):
    """-> out, the last states (n, H, N, P), the last keys (n, R, H, N)."""
    norm_weight = outproj_norm_weight if fuse_pregate_headwise_rms_norm else None
    with torch.no_grad():
        return _scan(q, k, v, q_bias, k_bias, mimo_v, mimo_o, z, D, mimo_z, angles, dt, trap, segsum, norm_weight, outproj_norm_eps, cu_seqlens)


def mamba_mimo_bwd_combined(dout, q, k, v, q_bias, k_bias, mimo_v, mimo_o, z, mimo_z, angles, dA_cs, dA_cs_rev, dt, trap, D, segsum, chunk_size, rotary_dim_divisor, dtype,
                            fuse_pregate_headwise_rms_norm=False, outproj_norm_weight=None, outproj_norm_eps=1e-5, cu_seqlens=None, **how):
    """-> gradients of q, k, v, da, dt, trap, both biases, mimo_v, mimo_z, mimo_o, angles, D, z, the norm's weight; None for what is not given."""
    norm_weight = outproj_norm_weight if fuse_pregate_headwise_rms_norm else None
    leaves = [None if t is None else t.detach().clone().requires_grad_()
              for t in (q, k, v, segsum, dt, trap, q_bias, k_bias, mimo_v, mimo_z, mimo_o, angles, D, z, norm_weight)]
    q, k, v, da, dt, trap, q_bias, k_bias, mimo_v, mimo_z, mimo_o, angles, D, z, norm_weight = leaves
    out = _scan(q, k, v, q_bias, k_bias, mimo_v, mimo_o, z, D, mimo_z, angles, dt, trap, da, norm_weight, outproj_norm_eps, cu_seqlens)[0]
    grads = iter(torch.autograd.grad(out, [t for t in leaves if t is not None], dout))
    return tuple([None if t is None else next(grads) for t in leaves])


mamba_mimo_forward_varlen, mamba_mimo_bwd_combined_varlen = mamba_mimo_forward, mamba_mimo_bwd_combined
