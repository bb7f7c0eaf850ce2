"""Add + norm under upstream's names; nothing here needs Triton."""

import torch

from krait._function import function_by_name
from krait.ops.norm_ref import norm_ref
from krait.ops.norms import add_norm as _add_norm
from krait.ops.norms import add_norm_linear as _add_norm_linear
from krait.ops.norms import norm_backward, norm_forward


def layer_norm_fn(x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-6, dropout_p=0.0, rowscale=None, prenorm=False,
                  residual_in_fp32=False, zero_centered_weight=False, is_rms_norm=False, return_dropout_mask=False, out_dtype=None, out=None,
                  residual_out=None):
    """norm(x (+ x1) (+ residual)): y[, y1][, the sum with prenorm][, masks]. zero_centered_weight: the weights are 1 + weight."""
    if zero_centered_weight:
        weight, weight1 = [t if t is None else t + 1 for t in (weight, weight1)]
    result = _add_norm(x, weight, bias, residual, x1, weight1, bias1, eps, dropout_p, rowscale, prenorm, residual_in_fp32, is_rms_norm, return_dropout_mask)
    parts = list(result) if isinstance(result, tuple) else [result]
    if out_dtype is not None:
        parts[0] = parts[0].to(out_dtype)
    parts[0] = parts[0] if out is None else out.copy_(parts[0])
    if residual_out is not None and prenorm:
        place = 1 if weight1 is None else 2
        parts[place] = residual_out.copy_(parts[place])
    return parts[0] if len(parts) == 1 else tuple(parts)


def rms_norm_fn(x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-6, dropout_p=0.0, rowscale=None, prenorm=False,
                residual_in_fp32=False, zero_centered_weight=False, return_dropout_mask=False, out_dtype=None, out=None, residual_out=None):
    """layer_norm_fn without the mean."""
    return layer_norm_fn(x, weight, bias, residual, x1, weight1, bias1, eps, dropout_p, rowscale, prenorm, residual_in_fp32, zero_centered_weight, True,
                         return_dropout_mask, out_dtype, out, residual_out)


def layer_norm_linear_fn(x, norm_weight, norm_bias, linear_weight, linear_bias, residual=None, eps=1e-6, prenorm=False, residual_in_fp32=False,
                         is_rms_norm=False):
    """The norm, then a linear layer."""
    return _add_norm_linear(x, norm_weight, norm_bias, linear_weight, linear_bias, residual, eps, prenorm, residual_in_fp32, is_rms_norm)


def layer_norm_ref(x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-6, dropout_p=0.0, rowscale=None, prenorm=False,
                   zero_centered_weight=False, dropout_mask=None, dropout_mask1=None, upcast=False):
    """Plain torch."""
    return norm_ref(False, x, weight, bias, residual, x1, weight1, bias1, eps, dropout_p, rowscale, prenorm, dropout_mask, dropout_mask1, upcast, zero_centered_weight)


def rms_norm_ref(x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-6, dropout_p=0.0, rowscale=None, prenorm=False,
                 zero_centered_weight=False, dropout_mask=None, dropout_mask1=None, upcast=False):
    """Plain torch."""
    return norm_ref(True, x, weight, bias, residual, x1, weight1, bias1, eps, dropout_p, rowscale, prenorm, dropout_mask, dropout_mask1, upcast, zero_centered_weight)


def _layer_norm_fwd(x, weight, bias, eps, residual=None, x1=None, weight1=None, bias1=None, dropout_p=0.0, rowscale=None, out_dtype=None, residual_dtype=None,
                    zero_centered_weight=False, is_rms_norm=False, return_dropout_mask=False, out=None, residual_out=None):
    """x (M, D) -> y, y1, mean, rstd, the sum, what the backward needs of the dropout ("seeds": its masks), mask, mask1."""
    if zero_centered_weight:
        weight, weight1 = [t if t is None else t + 1 for t in (weight, weight1)]
    y, y1, mean, rstd, total, *masks = norm_forward(x, weight, bias, eps, residual, x1, weight1, bias1, dropout_p, rowscale, out_dtype, residual_dtype, is_rms_norm,
                                                    return_dropout_mask)
    return y if out is None else out.copy_(y), y1, mean, rstd, total if residual_out is None else residual_out.copy_(total), *masks


def _layer_norm_bwd(dy, x, weight, bias, eps, mean, rstd, dresidual=None, dy1=None, weight1=None, bias1=None, seeds=None, dropout_p=0.0, rowscale=None,
                    has_residual=False, has_x1=False, zero_centered_weight=False, is_rms_norm=False, x_dtype=None, recompute_output=False):
    """x: the forward's sum -> gradients of x, weight, bias, residual, x1, weight1, bias1, and y (None if not recomputed)."""
    if zero_centered_weight:
        weight, weight1 = [t if t is None else t + 1 for t in (weight, weight1)]
    return norm_backward(dy, x, weight, bias, eps, dresidual, dy1, weight1, bias1, seeds, dropout_p, rowscale, has_residual, has_x1, is_rms_norm, x_dtype, recompute_output)


class RMSNorm(torch.nn.Module):
    """Parameter `weight`: ones, or zeros with zero_centered_weight, which adds 1."""

    def __init__(self, hidden_size, eps=1e-5, dropout_p=0.0, zero_centered_weight=False, device=None, dtype=None):
        super().__init__()
        self.eps, self.zero_centered_weight = eps, zero_centered_weight
        self.drop = torch.nn.Dropout(dropout_p) if dropout_p > 0.0 else None
        self.weight = torch.nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self):
        (torch.nn.init.zeros_ if self.zero_centered_weight else torch.nn.init.ones_)(self.weight)

    def forward(self, x, residual=None, prenorm=False, residual_in_fp32=False):
        return rms_norm_fn(x, self.weight, self.bias, residual=residual, eps=self.eps, dropout_p=self.drop.p if self.drop is not None and self.training else 0.0,
                           prenorm=prenorm, residual_in_fp32=residual_in_fp32, zero_centered_weight=self.zero_centered_weight)


LayerNormFn = function_by_name("LayerNormFn", layer_norm_fn)
LayerNormLinearFn = function_by_name("LayerNormLinearFn", layer_norm_linear_fn)
