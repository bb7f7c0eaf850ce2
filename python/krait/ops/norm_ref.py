"""Dropout + add + norm in plain torch, for reference."""

import torch
import torch.nn.functional as F


def _drop(x, p, mask):
    return F.dropout(x, p) if mask is None else x.masked_fill(~mask, 0.0) / (1.0 - p)


def _normalise(x, weight, bias, eps, is_rms):
    if not is_rms:
        return F.layer_norm(x.to(weight.dtype), x.shape[-1:], weight=weight, bias=bias, eps=eps)
    out = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight
    return out if bias is None else out + bias


def norm_ref(is_rms, x, weight, bias, residual, x1, weight1, bias1, eps, dropout_p, rowscale, prenorm, mask, mask1, upcast, zero_centered_weight=False):
    """y[, y1][, the sum with prenorm]; each step rounds to the type of its operands, all are float32 with upcast."""
    dtype = x.dtype
    if upcast:
        x, weight, bias, residual, x1, weight1, bias1, rowscale = [t if t is None else t.float() for t in (x, weight, bias, residual, x1, weight1, bias1, rowscale)]
    if zero_centered_weight:
        weight, weight1 = [t if t is None else t + 1.0 for t in (weight, weight1)]
    x = x if rowscale is None else x * rowscale[..., None]
    if dropout_p > 0.0:
        x, x1 = _drop(x, dropout_p, mask), x1 if x1 is None else _drop(x1, dropout_p, mask1)
    for other in (x1, residual):
        x = x if other is None else (x + other).to(x.dtype)
    outs = [_normalise(x, w, b, eps, is_rms).to(dtype) for w, b in ((weight, bias), (weight1, bias1)) if w is not None]
    outs += [x] if prenorm else []
    return outs[0] if len(outs) == 1 else tuple(outs)
