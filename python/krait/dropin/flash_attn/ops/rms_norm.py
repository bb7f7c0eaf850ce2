"""RMS norm, alone and with dropout + add before it."""

import torch

from flash_attn.ops.layer_norm import (DropoutAddLayerNormFn, DropoutAddLayerNormParallelResidualFn, DropoutAddLayerNormSubsetFn, dropout_add_norm,  # noqa: F401
                                       dropout_add_norm_parallel, dropout_add_norm_subset)
from krait.ops.norms import add_norm as _add_norm


def rms_norm(x, weight, epsilon):
    return _add_norm(x, weight, eps=epsilon, is_rms_norm=True)


def dropout_add_rms_norm(x0, residual, weight, bias, dropout_p, epsilon, rowscale=None, layerscale=None, prenorm=False, residual_in_fp32=False,
                         return_dropout_mask=False):
    """norm(dropout(x0) (+ residual))[, the sum with prenorm][, the mask, uint8]."""
    return dropout_add_norm(x0, residual, weight, bias, dropout_p, epsilon, rowscale, layerscale, prenorm, residual_in_fp32, return_dropout_mask, True)


def dropout_add_rms_norm_subset(x0, residual, weight, bias, dropout_p, epsilon, layerscale=None, x0_subset=None, out_subset=None, rowscale_const=1.0,
                                out_numrows=0, prenorm=False, residual_in_fp32=False, return_dropout_mask=False):
    """As dropout_add_layer_norm_subset."""
    return dropout_add_norm_subset(x0, residual, weight, bias, dropout_p, epsilon, layerscale, x0_subset, out_subset, rowscale_const, out_numrows, prenorm,
                                   residual_in_fp32, return_dropout_mask, True)


def dropout_add_rms_norm_parallel_residual(x0, x1, residual, weight0, bias0, weight1, bias1, dropout_p, epsilon, prenorm=False, residual_in_fp32=False,
                                           return_dropout_mask=False):
    """As dropout_add_layer_norm_parallel_residual."""
    return dropout_add_norm_parallel(x0, x1, residual, weight0, bias0, weight1, bias1, dropout_p, epsilon, prenorm, residual_in_fp32, return_dropout_mask, True)


class RMSNorm(torch.nn.Module):
    def __init__(self, hidden_size, eps=1e-5, device=None, dtype=None):
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self):
        torch.nn.init.ones_(self.weight)

    def forward(self, x):
        return rms_norm(x, self.weight, self.eps)


class DropoutAddRMSNorm(RMSNorm):
    def __init__(self, hidden_size, prenorm=False, p=0.0, eps=1e-5, residual_in_fp32=False, device=None, dtype=None):
        super().__init__(hidden_size, eps, device, dtype)
        self.prenorm, self.p, self.residual_in_fp32 = prenorm, p, residual_in_fp32

    def forward(self, x0, residual=None):
        return dropout_add_rms_norm(x0, residual, self.weight, None, self.p if self.training else 0.0, self.eps, prenorm=self.prenorm,
                                    residual_in_fp32=self.residual_in_fp32)
