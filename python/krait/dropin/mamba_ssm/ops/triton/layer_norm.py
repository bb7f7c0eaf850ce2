"""Fused add + norm under upstream's path; nothing here needs Triton."""

import torch
import torch.nn.functional as F

from krait.ops.norms import add_norm as _add_norm
from krait.ops.norms import add_norm_linear as _add_norm_linear


def layer_norm_fn(x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-6, dropout_p=0.0, rowscale=None,
                  prenorm=False, residual_in_fp32=False, is_rms_norm=False, return_dropout_mask=False):
    """norm(x (+ x1) (+ residual)): y[, y1][, the sum with prenorm][, masks]."""
    return _add_norm(x, weight, bias, residual, x1, weight1, bias1, eps, dropout_p, rowscale, prenorm, residual_in_fp32,
                     is_rms_norm, return_dropout_mask)


def rms_norm_fn(x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-6, dropout_p=0.0, rowscale=None,
                prenorm=False, residual_in_fp32=False, return_dropout_mask=False):
    """layer_norm_fn without the mean."""
    return _add_norm(x, weight, bias, residual, x1, weight1, bias1, eps, dropout_p, rowscale, prenorm, residual_in_fp32, True,
                     return_dropout_mask)


def layer_norm_linear_fn(x, norm_weight, norm_bias, linear_weight, linear_bias, residual=None, eps=1e-6, prenorm=False,
                         residual_in_fp32=False, is_rms_norm=False):
    """The norm, then a linear layer."""
    return _add_norm_linear(x, norm_weight, norm_bias, linear_weight, linear_bias, residual, eps, prenorm, residual_in_fp32,
                            is_rms_norm)


def _reference(normalise, x, weight, bias, residual, x1, weight1, bias1, eps, dropout_p, rowscale, prenorm, dropout_mask,
               dropout_mask1, upcast):
    dtype = x.dtype
    if upcast:
        x, weight, bias, residual, x1, weight1, bias1, rowscale = [
            t if t is None else t.float() for t in (x, weight, bias, residual, x1, weight1, bias1, rowscale)]
    if rowscale is not None:
        x = x * rowscale[..., None]
    if dropout_p > 0.0:
        x = F.dropout(x, dropout_p) if dropout_mask is None else x.masked_fill(~dropout_mask, 0.0) / (1.0 - dropout_p)
        if x1 is not None:
            x1 = F.dropout(x1, dropout_p) if dropout_mask1 is None else x1.masked_fill(~dropout_mask1, 0.0) / (1.0 - dropout_p)
    for other in (x1, residual):
        x = x if other is None else (x + other).to(x.dtype)
    outs = [normalise(x, weight, bias, eps).to(dtype)]
    if weight1 is not None:
        outs.append(normalise(x, weight1, bias1, eps).to(dtype))
    if prenorm:
        outs.append(x)
    return outs[0] if len(outs) == 1 else tuple(outs)


def layer_norm_ref(x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-6, dropout_p=0.0, rowscale=None,
                   prenorm=False, dropout_mask=None, dropout_mask1=None, upcast=False):
    """Plain torch."""
    def normalise(v, weight, bias, eps):
        return F.layer_norm(v.to(weight.dtype), v.shape[-1:], weight=weight, bias=bias, eps=eps)
    return _reference(normalise, x, weight, bias, residual, x1, weight1, bias1, eps, dropout_p, rowscale, prenorm, dropout_mask,
                      dropout_mask1, upcast)


def rms_norm_ref(x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-6, dropout_p=0.0, rowscale=None,
                 prenorm=False, dropout_mask=None, dropout_mask1=None, upcast=False):
    """Plain torch."""
    def normalise(v, weight, bias, eps):
        out = v * torch.rsqrt(v.square().mean(dim=-1, keepdim=True) + eps) * weight
        return out if bias is None else out + bias
    return _reference(normalise, x, weight, bias, residual, x1, weight1, bias1, eps, dropout_p, rowscale, prenorm, dropout_mask,
                      dropout_mask1, upcast)


class RMSNorm(torch.nn.Module):
    """Parameter `weight` (ones); `bias` is None."""

    def __init__(self, hidden_size, eps=1e-5, dropout_p=0.0, device=None, dtype=None):
        super().__init__()
        self.eps = eps
        self.drop = torch.nn.Dropout(dropout_p) if dropout_p > 0.0 else None
        self.weight = torch.nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self):
        torch.nn.init.ones_(self.weight)

    def forward(self, x, residual=None, prenorm=False, residual_in_fp32=False):
        return rms_norm_fn(x, self.weight, self.bias, residual=residual, eps=self.eps,
                           dropout_p=self.drop.p if self.drop is not None and self.training else 0.0, prenorm=prenorm,
                           residual_in_fp32=residual_in_fp32)


# Upstream's autograd functions by name, for callers of apply.
class LayerNormFn:
    apply = staticmethod(layer_norm_fn)


class LayerNormLinearFn:
    apply = staticmethod(layer_norm_linear_fn)
