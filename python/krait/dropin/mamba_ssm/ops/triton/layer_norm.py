"""Fused add + norm under upstream's path; nothing here needs Triton."""

import torch

from krait._function import function_by_name
from krait.ops.norms import add_norm as _add_norm
from krait.ops.norms import add_norm_linear as _add_norm_linear
from krait.ops.norm_ref import norm_ref
from krait.ops.norms import norm_backward, norm_forward


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


def _layer_norm_fwd(x, weight, bias, eps, residual=None, x1=None, weight1=None, bias1=None, dropout_p=0.0, rowscale=None, out_dtype=None, residual_dtype=None,
                    is_rms_norm=False, return_dropout_mask=False):
    """x (M, D) -> y, y1, mean, rstd, the sum, what the backward needs of the dropout ("seeds": its masks), mask, mask1."""
    return norm_forward(x, weight, bias, eps, residual, x1, weight1, bias1, dropout_p, rowscale, out_dtype, residual_dtype, is_rms_norm, return_dropout_mask)


def _layer_norm_bwd(dy, x, weight, bias, eps, mean, rstd, dresidual=None, dy1=None, weight1=None, bias1=None, seeds=None, dropout_p=0.0, rowscale=None,
                    has_residual=False, has_x1=False, is_rms_norm=False, x_dtype=None, recompute_output=False):
    """x: the forward's sum -> gradients of x, weight, bias, residual, x1, weight1, bias1[, y]."""
    found = norm_backward(dy, x, weight, bias, eps, dresidual, dy1, weight1, bias1, seeds, dropout_p, rowscale, has_residual, has_x1, is_rms_norm, x_dtype, recompute_output)
    return found if recompute_output else found[:7]


def layer_norm_ref(x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-6, dropout_p=0.0, rowscale=None,
                   prenorm=False, dropout_mask=None, dropout_mask1=None, upcast=False):
    """Plain torch."""
    return norm_ref(False, x, weight, bias, residual, x1, weight1, bias1, eps, dropout_p, rowscale, prenorm, dropout_mask, dropout_mask1, upcast)


def rms_norm_ref(x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-6, dropout_p=0.0, rowscale=None,
                 prenorm=False, dropout_mask=None, dropout_mask1=None, upcast=False):
    """Plain torch."""
    return norm_ref(True, x, weight, bias, residual, x1, weight1, bias1, eps, dropout_p, rowscale, prenorm, dropout_mask, dropout_mask1, upcast)


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


LayerNormFn = function_by_name("LayerNormFn", layer_norm_fn)
LayerNormLinearFn = function_by_name("LayerNormLinearFn", layer_norm_linear_fn)
