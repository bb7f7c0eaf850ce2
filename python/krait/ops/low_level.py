"""The functions of upstream's extension modules below autograd: tensors in, tensors out. The modules are names for these, and need
no other package than krait, so that a fork's own causal_conv1d or mamba_ssm may stand above them."""

import torch

from .causal_conv1d import run_backward as _conv_backward, run_forward as _conv_forward, run_update as _conv_update
from .selective_scan import run_backward as _scan_backward, run_forward as _scan_forward


def conv_fwd(x, weight, bias, seq_idx, initial_states, final_states_out, silu_activation):
    out = torch.empty_like(x)
    _conv_forward(x, weight, bias, seq_idx, initial_states, silu_activation, False, out, final_states_out)
    return out


def conv_bwd(x, weight, bias, dout, seq_idx, initial_states, dfinal_states, dx, return_dinitial_states, silu_activation):
    dx = torch.empty_like(x) if dx is None else dx
    dweight, dbias = torch.empty_like(weight), None if bias is None else torch.empty_like(bias)
    dinitial = torch.empty_like(initial_states) if return_dinitial_states and initial_states is not None else None
    _conv_backward(x, weight, bias, seq_idx, initial_states, dout, dfinal_states, silu_activation, False, dx, dweight, dbias, dinitial)
    return dx, dweight, dbias, dinitial


def conv_update(x, conv_state, weight, bias, silu_activation, cache_seqlens, conv_state_indices):
    out = torch.empty_like(x)
    rows, out3 = (x.unsqueeze(-1), out.unsqueeze(-1)) if x.dim() == 2 else (x, out)
    _conv_update(rows, conv_state, weight, bias, silu_activation, cache_seqlens, conv_state_indices, out3)
    return out


def scan_fwd(u, delta, A, B, C, D, z, delta_bias, delta_softplus):
    """-> [out, x] or, with z, [out, x, out_z]; x (B, D, 1, 2 N) only carries the last state, at x[:, :, -1, 1::2] as callers read it."""
    last = torch.empty(u.shape[0], *A.shape, dtype=A.dtype, device=u.device)
    out = torch.empty_like(u)
    _scan_forward(u, delta, A, B, C, D, None, delta_bias, None, None, None, None, delta_softplus, False, out, last)
    x = torch.stack([torch.zeros_like(last), last], dim=-1).flatten(-2).unsqueeze(2)
    if z is None:
        return [out, x]
    out_z = torch.empty_like(u)
    _scan_forward(u, delta, A, B, C, D, z, delta_bias, None, None, None, None, delta_softplus, False, out_z, None)
    return [out, x, out_z]


def scan_bwd(u, delta, A, B, C, D, z, delta_bias, dout, dz, delta_softplus):
    """-> [du, ddelta, dA, dB, dC, dD, ddelta_bias[, dz]]."""
    du, ddelta, dA, dB, dC = [torch.empty_like(t) for t in (u, delta, A, B, C)]
    dD, dbias = [None if t is None else torch.empty_like(t) for t in (D, delta_bias)]
    if z is not None and dz is None:
        dz = torch.empty_like(z)
    _scan_backward(u, delta, A, B, C, D, z, delta_bias, None, None, None, None, dout, None, delta_softplus, False, du, ddelta, dA, dB,
                   dC, dD, None if z is None else dz, dbias, None, None)
    return [du, ddelta, dA, dB, dC, dD, dbias] + ([] if z is None else [dz])


def _spread(delta, delta_bias, dim):
    """VMamba's steps may serve several channels each."""
    each = dim // delta.shape[1]
    return [t if t is None or each == 1 else t.repeat_interleave(each, dim=-2 if t is delta else 0) for t in (delta, delta_bias)]


def oflex_fwd(u, delta, A, B, C, D, delta_bias, delta_softplus, nrows=1, out_float=True):
    """scan_fwd as VMamba's modules take it; out in float32 where out_float."""
    delta, delta_bias = _spread(delta, delta_bias, u.shape[1])
    return scan_fwd(u.float() if out_float else u, delta, A, B, C, D, None, delta_bias, delta_softplus)


def oflex_bwd(u, delta, A, B, C, D, delta_bias, dout, x, delta_softplus, nrows=1):
    """Gradients in their inputs' types, from a dout in u's or in float32."""
    wide, wide_bias = _spread(delta, delta_bias, u.shape[1])
    du, ddelta, *others, dbias = scan_bwd(u.to(dout.dtype), wide, A, B, C, D, None, wide_bias, dout, None, delta_softplus)
    if wide is not delta:
        ddelta = ddelta.unflatten(1, (delta.shape[1], -1)).sum(2)
        dbias = dbias if dbias is None else dbias.unflatten(0, (delta.shape[1], -1)).sum(1)
    return [du.to(u.dtype), ddelta, *others, dbias]


def ndstate_fwd(u, delta, A, B, C, D, delta_bias, delta_softplus, nrows=1):
    """VMamba's form for one state: A (D), B and C (B, G, L)."""
    return scan_fwd(u, delta, A.unsqueeze(-1), B.unsqueeze(2), C.unsqueeze(2), D, None, delta_bias, delta_softplus)


def ndstate_bwd(u, delta, A, B, C, D, delta_bias, dout, x, delta_softplus, nrows=1):
    du, ddelta, dA, dB, dC, dD, dbias = scan_bwd(u, delta, A.unsqueeze(-1), B.unsqueeze(2), C.unsqueeze(2), D, None, delta_bias, dout, None, delta_softplus)
    return [du, ddelta, dA.squeeze(-1), dB.squeeze(2), dC.squeeze(2), dD, dbias]
