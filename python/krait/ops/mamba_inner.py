"""The inner chain of a Mamba block as one autograd node: conv, projections, norms, scan, gate and output projection.

    x, z = halves of xz; x = silu(conv(x)); [dt | B | C] = x_proj x per token; delta = delta_proj dt;
    y = scan(x, delta, A, B, C, D) silu(z); out = out_proj y.

What is kept for the backward pass is xz, the projected rows and y; checkpoint_lvl 0 also keeps conv output and delta.
Tensors (B, D, L) may be stored token after token (channel-last) or channel after channel: xz decides."""

from typing import NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .._torch import autocast_dtype, is_compiling
from .causal_conv1d import causal_conv1d, run_backward as run_conv_backward
from .norms import _add_norm_bwd, add_norm
from .selective_scan import run_backward as run_scan_backward, selective_scan


class _Weights(NamedTuple):
    conv: Tensor
    conv_bias: Optional[Tensor]
    x_proj: Tensor
    delta_proj: Tensor
    out_proj: Optional[Tensor]
    out_bias: Optional[Tensor]
    A: Tensor
    B: Optional[Tensor]
    C: Optional[Tensor]
    D: Optional[Tensor]
    delta_bias: Optional[Tensor]
    B_bias: Optional[Tensor]
    C_bias: Optional[Tensor]
    B_norm: Optional[Tensor]
    C_norm: Optional[Tensor]
    delta_norm: Optional[Tensor]


class _Options(NamedTuple):
    softplus: bool
    keep: bool  # conv output and delta are kept for the backward pass
    eps: float
    reverse: bool


def _is_channel_last(t):
    return t.stride(1) == 1 and t.shape[1] > 1


def _rms(rows, weight, eps):
    """RMS norm over the last axis of (B, L, F)."""
    return add_norm(rows, weight, eps=eps, is_rms_norm=True)


def _rms_backward(rows, weight, dout, eps):
    """-> (gradient of rows, gradient of weight)."""
    flat = rows.reshape(-1, rows.shape[-1])
    grads = _add_norm_bwd(flat, weight, None, None, None, None, dout.reshape(flat.shape), None, None, rows.dtype, None, None, eps,
                          True)
    return grads[0].view(rows.shape), grads[3]


def _conv_of(x, w, o):
    return causal_conv1d(x, w.conv, w.conv_bias, activation="silu", reverse=o.reverse)


def _delta_of(x_dbl, w, channel_last):
    """delta before its norm, (B, D, L) in the wanted layout."""
    rank = w.delta_proj.shape[1]
    dt = x_dbl[..., :rank]
    if channel_last:
        return F.linear(dt, w.delta_proj).transpose(1, 2)
    b, length, _ = x_dbl.shape
    return torch.mm(w.delta_proj, dt.reshape(b * length, rank).t()).view(-1, b, length).transpose(0, 1)


def _to_scan(rows, is_complex):
    """(B, L, N) -> (B, N, L); for complex A (B, L, 2N) -> (B, N, 2L), real and imaginary part side by side."""
    if not is_complex:
        return rows.transpose(1, 2)
    b, length, two_n = rows.shape
    return rows.reshape(b, length, two_n // 2, 2).transpose(1, 2).reshape(b, two_n // 2, 2 * length)


def _from_scan(t, is_complex):
    """The inverse of _to_scan, for gradients."""
    b, n, steps = t.shape
    if not is_complex:
        return t.transpose(1, 2)
    return t.reshape(b, n, steps // 2, 2).transpose(1, 2).reshape(b, steps // 2, 2 * n)


def _columns(x_dbl, w):
    """The raw B and C columns (B, L, N) of the projection, biases added; None where the argument was given."""
    n = w.A.shape[1] * (2 if w.A.is_complex() else 1)
    rank = w.delta_proj.shape[1]
    B = None if w.B is not None else x_dbl[..., rank:rank + n]
    C = None if w.C is not None else x_dbl[..., x_dbl.shape[-1] - n:]
    B = B if B is None or w.B_bias is None else B + w.B_bias.to(B.dtype)
    C = C if C is None or w.C_bias is None else C + w.C_bias.to(C.dtype)
    return B, C


def _matrix_of(given, columns, norm, is_complex, eps):
    if given is not None:
        return given
    return _to_scan(columns if norm is None else _rms(columns, norm, eps), is_complex)


def _normed_delta(delta, w, eps):
    if w.delta_norm is None:
        return delta
    return _rms(delta.transpose(1, 2), w.delta_norm, eps).transpose(1, 2)


def _scan_of(u, delta, B, C, z, w, o):
    return selective_scan(u, delta, w.A, B, C, w.D, z, w.delta_bias, o.softplus, reverse=o.reverse)


def _forward(xz, w, o):
    """-> (y, x_dbl, conv output, delta before its norm)."""
    x, z = xz.chunk(2, dim=1)
    u = _conv_of(x, w, o)
    x_dbl = F.linear(u.transpose(1, 2), w.x_proj)
    raw_delta = _delta_of(x_dbl, w, _is_channel_last(u))
    raw_B, raw_C = _columns(x_dbl, w)
    is_complex = w.A.is_complex()
    B = _matrix_of(w.B, raw_B, w.B_norm, is_complex, o.eps)
    C = _matrix_of(w.C, raw_C, w.C_norm, is_complex, o.eps)
    y = _scan_of(u, _normed_delta(raw_delta, w, o.eps), B, C, z, w, o)
    return y, x_dbl, u, raw_delta


def _project_out(y, w):
    if w.out_proj is None:
        return y
    return F.linear(y.transpose(1, 2), w.out_proj, w.out_bias)


def _sum_rows(t):
    return t.reshape(-1, t.shape[-1]).sum(0)


def _product(dout, rows):
    """Gradient of a weight: dout^T rows over all tokens."""
    return torch.mm(dout.reshape(-1, dout.shape[-1]).t(), rows.reshape(-1, rows.shape[-1]).to(dout.dtype))


class _Gradients(dict):
    """Gradients by the names of _Weights; missing ones are None."""
    def __missing__(self, name):
        return None


def _out_backward(dout, y, w, grads):
    """-> gradient of y (B, D, L)."""
    if w.out_proj is None:
        return dout
    dout = dout.to(w.out_proj.dtype)
    grads["out_proj"] = _product(dout, y.transpose(1, 2))
    if w.out_bias is not None:
        grads["out_bias"] = _sum_rows(dout)
    return torch.matmul(dout, w.out_proj).transpose(1, 2)


def _column_backward(dmatrix, raw, name, dx_dbl, start, w, o, grads):
    """Puts the gradient of the B or C columns into dx_dbl at `start`."""
    d = _from_scan(dmatrix, w.A.is_complex())
    norm = getattr(w, name + "_norm")
    if norm is not None:
        d, grads[name + "_norm"] = _rms_backward(raw, norm, d, o.eps)
    if getattr(w, name + "_bias") is not None:
        grads[name + "_bias"] = _sum_rows(d).to(getattr(w, name + "_bias").dtype)
    dx_dbl[..., start:start + d.shape[-1]] = d


def _scan_backward(u, delta, B, C, z, dy, dz, w, o, grads):
    """-> gradients of u, delta, B, C; that of z is written to dz."""
    du, ddelta, grads["A"], dB, dC = [torch.empty_like(t) for t in (u, delta, w.A, B, C)]
    grads["D"], grads["delta_bias"] = [None if t is None else torch.empty_like(t) for t in (w.D, w.delta_bias)]
    run_scan_backward(u, delta, w.A, B, C, w.D, z, w.delta_bias, None, None, None, dy, None, o.softplus, o.reverse, du, ddelta,
                      grads["A"], dB, dC, grads["D"], dz, grads["delta_bias"], None)
    return du, ddelta, dB, dC


def _conv_backward(x, du, dx, w, o, grads):
    grads["conv"], grads["conv_bias"] = [None if t is None else torch.empty_like(t) for t in (w.conv, w.conv_bias)]
    run_conv_backward(x, w.conv, w.conv_bias, None, None, du, None, True, o.reverse, dx, grads["conv"], grads["conv_bias"], None)


def _backward(xz, x_dbl, y, u, raw_delta, dout, w, o):
    """-> (gradient of xz, gradients of the weights)."""
    grads = _Gradients()
    x, z = xz.chunk(2, dim=1)
    dxz = torch.empty_like(xz)
    dx, dz = dxz.chunk(2, dim=1)
    if u is None:
        u = _conv_of(x, w, o)
        raw_delta = _delta_of(x_dbl, w, _is_channel_last(u))
    is_complex, rank = w.A.is_complex(), w.delta_proj.shape[1]
    raw_B, raw_C = _columns(x_dbl, w)
    B = _matrix_of(w.B, raw_B, w.B_norm, is_complex, o.eps)
    C = _matrix_of(w.C, raw_C, w.C_norm, is_complex, o.eps)
    dy = _out_backward(dout, y, w, grads)
    du, ddelta, dB, dC = _scan_backward(u, _normed_delta(raw_delta, w, o.eps), B, C, z, dy, dz, w, o, grads)
    dx_dbl = torch.empty_like(x_dbl)
    ddelta = ddelta.transpose(1, 2)
    if w.delta_norm is not None:
        ddelta, grads["delta_norm"] = _rms_backward(raw_delta.transpose(1, 2), w.delta_norm, ddelta, o.eps)
    grads["delta_proj"] = _product(ddelta, x_dbl[..., :rank])
    dx_dbl[..., :rank] = torch.matmul(ddelta, w.delta_proj)
    for name, given, raw, d in (("B", w.B, raw_B, dB), ("C", w.C, raw_C, dC)):
        if given is not None:
            grads[name] = d
        else:
            start = rank if name == "B" else x_dbl.shape[-1] - raw.shape[-1]
            _column_backward(d, raw, name, dx_dbl, start, w, o, grads)
    grads["x_proj"] = _product(dx_dbl, u.transpose(1, 2))
    du += torch.matmul(dx_dbl, w.x_proj).transpose(1, 2)
    _conv_backward(x, du, dx, w, o, grads)
    return dxz, grads


class _MambaInner(torch.autograd.Function):
    @staticmethod
    def forward(ctx, xz, options, *weights):
        w = _Weights(*weights)
        y, x_dbl, u, raw_delta = _forward(xz, w, options)
        kept = (u, raw_delta) if options.keep else (None, None)
        ctx.save_for_backward(xz, x_dbl, y, *kept, *weights)
        ctx.options = options
        return _project_out(y, w)

    @staticmethod
    @once_differentiable
    def backward(ctx, dout):
        xz, x_dbl, y, u, raw_delta, *weights = ctx.saved_tensors
        device_type = xz.device.type
        if autocast_dtype(device_type) is None:
            dxz, grads = _backward(xz, x_dbl, y, u, raw_delta, dout, _Weights(*weights), ctx.options)
        else:
            with torch.autocast(device_type, enabled=False):
                dxz, grads = _backward(xz, x_dbl, y, u, raw_delta, dout, _Weights(*weights), ctx.options)
        return (dxz, None, *[grads[name] for name in _Weights._fields])


def _cast(t, dtype):
    return t if t is None or dtype is None else t.to(dtype)


def _as_float(t):
    return t if t is None or t.dtype == torch.float32 else t.float()


def mamba_inner(xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias, A, B=None,
                C=None, D=None, delta_bias=None, B_proj_bias=None, C_proj_bias=None, delta_softplus=True, checkpoint_lvl=1,
                b_rms_weight=None, c_rms_weight=None, dt_rms_weight=None, b_c_dt_rms_eps=1e-6, reverse=False):
    """xz (B, 2D, L) -> (B, L, M), or (B, D, L) where out_proj_weight is None."""
    assert checkpoint_lvl in (0, 1), "checkpoint_lvl must be 0 or 1"
    dtype = autocast_dtype(xz.device.type)
    A = A.resolve_conj() if A.is_complex() else A
    weights = _Weights(
        conv1d_weight.squeeze(1) if conv1d_weight.dim() == 3 else conv1d_weight, conv1d_bias, _cast(x_proj_weight, dtype),
        _cast(delta_proj_weight, dtype), _cast(out_proj_weight, dtype), _cast(out_proj_bias, dtype), A, B, C,
        _as_float(D), _as_float(delta_bias), B_proj_bias, C_proj_bias, b_rms_weight, c_rms_weight, dt_rms_weight)
    options = _Options(bool(delta_softplus), checkpoint_lvl == 0, b_c_dt_rms_eps, reverse)
    if torch.is_grad_enabled() and not is_compiling():
        return _MambaInner.apply(xz, options, *weights)
    return _project_out(_forward(xz, weights, options)[0], weights)


def bimamba_inner(xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias, A, A_b,
                  B=None, C=None, D=None, delta_bias=None, B_proj_bias=None, C_proj_bias=None, delta_softplus=True):
    """One convolution and projection, scanned forward with A and backward with A_b; the sum is projected out."""
    dtype = autocast_dtype(xz.device.type)
    w = _Weights(conv1d_weight.squeeze(1) if conv1d_weight.dim() == 3 else conv1d_weight, conv1d_bias, _cast(x_proj_weight, dtype),
                 _cast(delta_proj_weight, dtype), _cast(out_proj_weight, dtype), _cast(out_proj_bias, dtype), A, B, C, D,
                 delta_bias, B_proj_bias, C_proj_bias, None, None, None)
    x, z = xz.chunk(2, dim=1)
    u = _conv_of(x, w, _Options(True, False, 0.0, False))
    x_dbl = F.linear(u.transpose(1, 2), w.x_proj)
    delta = _delta_of(x_dbl, w, _is_channel_last(u))
    raw_B, raw_C = _columns(x_dbl, w)
    B, C = [_matrix_of(given, raw, None, A.is_complex(), 0.0) for given, raw in ((B, raw_B), (C, raw_C))]
    y = sum(selective_scan(u, delta, matrix, B, C, D, z, delta_bias, delta_softplus, reverse=back)
            for matrix, back in ((A, False), (A_b, True)))
    return _project_out(y, w)
