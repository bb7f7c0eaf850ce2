"""selective_scan_fn and the Mamba block's inner functions, with references in plain torch."""

import torch
import torch.nn.functional as F

from causal_conv1d import causal_conv1d_fn
from causal_conv1d.cpp_functions import causal_conv1d_bwd_function, causal_conv1d_fwd_function, causal_conv1d_update_function  # noqa: F401
from krait._function import function_by_name
from krait._upstream_names import *  # noqa: F401,F403
from krait.ops import add_norm, bimamba_inner, linear, mamba_inner, product, selective_scan


def selective_scan_fn(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, return_last_state=False, *,
                      initial_states=None, seq_idx=None, cu_seqlens=None, reverse=False):
    """u, delta, z (B, D, L); A (D, N) real or complex; B, C (D, N), (B, N, L) or (B, G, N, L); D, delta_bias (D).

    Returns out (B, D, L), or (out, last_state) with return_last_state. Keyword-only, krait's own: initial_states
    (B, D, N); seq_idx (B, L) int32, or cu_seqlens (S+1) int32 with B == 1, separates packed sequences (with one state
    per sequence); reverse runs backward in time. The last state has a gradient."""
    return selective_scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus, return_last_state, initial_states, seq_idx,
                          cu_seqlens, reverse)


def _over_time(t, dim, length, is_complex):
    """B or C of any accepted shape as (B, D, N, L)."""
    if is_complex and t.dim() > 2:
        t = torch.view_as_complex(t.float().reshape(*t.shape[:-1], length, 2).contiguous())
    if t.dim() == 2:
        return t[None, :, :, None].expand(-1, -1, -1, length)
    if t.dim() == 3:
        t = t.unsqueeze(1)
    return t.repeat_interleave(dim // t.shape[1], dim=1)


def selective_scan_ref(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, return_last_state=False):
    """The recurrence as a loop over time, in float32."""
    dtype_in, (batch, dim, length), is_complex = u.dtype, u.shape, A.is_complex()
    u, delta = u.float(), delta.float()
    if delta_bias is not None:
        delta = delta + delta_bias.float()[:, None]
    delta = F.softplus(delta) if delta_softplus else delta
    B, C = [_over_time(t if t.is_complex() else t.float(), dim, length, is_complex) for t in (B, C)]
    state, outs = A.new_zeros(batch, dim, A.shape[1]), []
    for t in range(length):
        state = torch.exp(delta[:, :, t, None] * A) * state + (delta[:, :, t] * u[:, :, t])[..., None] * B[..., t]
        y = (state * C[..., t]).sum(-1)
        outs.append(2 * y.real if is_complex else y)
    out = torch.stack(outs, dim=2) if outs else torch.zeros_like(u)
    out = out if D is None else out + u * D[:, None]
    out = (out if z is None else out * F.silu(z.float())).to(dtype_in)
    return (out, state) if return_last_state else out


def mamba_inner_fn(xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias, A, B=None,
                   C=None, D=None, delta_bias=None, B_proj_bias=None, C_proj_bias=None, delta_softplus=True, checkpoint_lvl=1,
                   b_rms_weight=None, c_rms_weight=None, dt_rms_weight=None, b_c_dt_rms_eps=1e-6, *, reverse=False):
    """xz (B, 2D, L) -> (B, L, M): convolution, projections, scan, gate and output projection as one autograd node."""
    return mamba_inner(xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias, A, B,
                       C, D, delta_bias, B_proj_bias, C_proj_bias, delta_softplus, checkpoint_lvl, b_rms_weight, c_rms_weight,
                       dt_rms_weight, b_c_dt_rms_eps, reverse)


def mamba_inner_fn_no_out_proj(xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, A, B=None, C=None, D=None,
                               delta_bias=None, B_proj_bias=None, C_proj_bias=None, delta_softplus=True, checkpoint_lvl=1, *,
                               reverse=False):
    """mamba_inner_fn without the output projection: (B, D, L). VideoMamba's form."""
    return mamba_inner(xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, None, None, A, B, C, D, delta_bias,
                       B_proj_bias, C_proj_bias, delta_softplus, checkpoint_lvl, reverse=reverse)


def bimamba_inner_fn(xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias, A, A_b,
                     B=None, C=None, D=None, delta_bias=None, B_proj_bias=None, C_proj_bias=None, delta_softplus=True,
                     checkpoint_lvl=1):
    """One convolution and projection; the sum of a forward scan with A and a backward scan with A_b. VideoMamba's form."""
    return bimamba_inner(xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias, A,
                         A_b, B, C, D, delta_bias, B_proj_bias, C_proj_bias, delta_softplus)


def _projected(rows, shape, bias, norm_weight, eps, is_complex):
    """(B L, N) projection columns as the scan's B or C."""
    b, _, length = shape
    rows = rows if bias is None else rows + bias.to(rows.dtype)
    if norm_weight is not None:
        rows = (rows.float() * torch.rsqrt(rows.float().pow(2).mean(-1, keepdim=True) + eps) * norm_weight).to(rows.dtype)
    if not is_complex:
        return rows.view(b, length, rows.shape[1]).transpose(1, 2)
    n = rows.shape[1] // 2
    return rows.reshape(b, length, n, 2).transpose(1, 2).reshape(b, n, 2 * length)


def mamba_inner_ref(xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias, A, B=None,
                    C=None, D=None, delta_bias=None, B_proj_bias=None, C_proj_bias=None, delta_softplus=True, checkpoint_lvl=1,
                    b_rms_weight=None, c_rms_weight=None, dt_rms_weight=None, b_c_dt_rms_eps=1e-6):
    """mamba_inner_fn as separate calls. Matrix products are summed in mamba_inner_fn's order (on a GPU upstream's), and
    delta channel by channel, so that both agree even where sums cancel."""
    x, z = xz.chunk(2, dim=1)
    x = causal_conv1d_fn(x, conv1d_weight.squeeze(1), conv1d_bias, activation="silu")
    b, d, length = shape = x.shape
    rows = product(x.transpose(1, 2).reshape(-1, d), x_proj_weight)
    rank, n = delta_proj_weight.shape[1], A.shape[-1] * (2 if A.is_complex() else 1)
    if x.is_cpu:
        delta = product(rows[:, :rank], delta_proj_weight).view(b, length, d).transpose(1, 2)
    else:
        delta = (delta_proj_weight @ rows[:, :rank].t()).view(d, b, length).transpose(0, 1)
    if dt_rms_weight is not None:
        delta = _projected(delta.transpose(1, 2).reshape(-1, d), shape, None, dt_rms_weight, b_c_dt_rms_eps, False)
    if B is None:
        B = _projected(rows[:, rank:rank + n], shape, B_proj_bias, b_rms_weight, b_c_dt_rms_eps, A.is_complex())
    if C is None:
        C = _projected(rows[:, -n:], shape, C_proj_bias, c_rms_weight, b_c_dt_rms_eps, A.is_complex())
    y = selective_scan_fn(x, delta, A, B, C, D, z=z, delta_bias=delta_bias, delta_softplus=delta_softplus)
    return linear(y.transpose(1, 2).reshape(-1, d), out_proj_weight, out_proj_bias).view(b, length, out_proj_weight.shape[0])


def rms_norm_forward(x, weight, bias, eps=1e-6, is_rms_norm=True):
    """mamba_inner_fn's norm of B, C and delta, over rows (..., D)."""
    return add_norm(x, weight, bias, eps=eps, is_rms_norm=is_rms_norm)


SelectiveScanFn = function_by_name("SelectiveScanFn", selective_scan_fn)
MambaInnerFn = function_by_name("MambaInnerFn", mamba_inner_fn)
MambaInnerFnNoOutProj = function_by_name("MambaInnerFnNoOutProj", mamba_inner_fn_no_out_proj)
BiMambaInnerFn = function_by_name("BiMambaInnerFn", bimamba_inner_fn)
