"""Dropout + add + layer norm, under upstream's fused extension's names."""

import torch

from krait.ops.norms import add_norm as _add_norm


def _dropout_add_norm(x0, residual, weight, bias, dropout_p, epsilon, rowscale, layerscale, prenorm, residual_in_fp32, return_dropout_mask, is_rms_norm):
    if layerscale is not None:
        x0 = x0 * layerscale
    return _add_norm(x0, weight, bias, residual, eps=epsilon, dropout_p=dropout_p, rowscale=rowscale, prenorm=prenorm, residual_in_fp32=residual_in_fp32,
                     is_rms_norm=is_rms_norm, return_dropout_mask=return_dropout_mask)


def layer_norm(x, weight, bias, epsilon):
    return _add_norm(x, weight, bias, eps=epsilon)


def dropout_add_layer_norm(x0, residual, weight, bias, dropout_p, epsilon, rowscale=None, layerscale=None, prenorm=False, residual_in_fp32=False,
                           return_dropout_mask=False):
    """norm(dropout(x0) (+ residual))[, the sum with prenorm][, the mask]."""
    return _dropout_add_norm(x0, residual, weight, bias, dropout_p, epsilon, rowscale, layerscale, prenorm, residual_in_fp32, return_dropout_mask, False)


class DropoutAddLayerNorm(torch.nn.Module):
    def __init__(self, hidden_size, prenorm=False, p=0.0, eps=1e-5, residual_in_fp32=False, device=None, dtype=None):
        super().__init__()
        self.prenorm, self.p, self.eps, self.residual_in_fp32 = prenorm, p, eps, residual_in_fp32
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.bias = torch.nn.Parameter(torch.zeros(hidden_size, device=device, dtype=dtype))

    def forward(self, x0, residual=None):
        return dropout_add_layer_norm(x0, residual, self.weight, self.bias, self.p if self.training else 0.0, self.eps, prenorm=self.prenorm,
                                      residual_in_fp32=self.residual_in_fp32)
