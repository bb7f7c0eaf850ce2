"""RMS norm, alone and with dropout + add before it."""

import torch

from flash_attn.ops.layer_norm import _dropout_add_norm
from krait.ops.norms import add_norm as _add_norm


def rms_norm(x, weight, epsilon):
    return _add_norm(x, weight, eps=epsilon, is_rms_norm=True)


def dropout_add_rms_norm(x0, residual, weight, bias, dropout_p, epsilon, rowscale=None, layerscale=None, prenorm=False, residual_in_fp32=False,
                         return_dropout_mask=False):
    """norm(dropout(x0) (+ residual))[, the sum with prenorm][, the mask]."""
    return _dropout_add_norm(x0, residual, weight, bias, dropout_p, epsilon, rowscale, layerscale, prenorm, residual_in_fp32, return_dropout_mask, True)


class RMSNorm(torch.nn.Module):
    def __init__(self, hidden_size, eps=1e-5, device=None, dtype=None):
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def forward(self, x):
        return rms_norm(x, self.weight, self.eps)


class DropoutAddRMSNorm(RMSNorm):
    def __init__(self, hidden_size, prenorm=False, p=0.0, eps=1e-5, residual_in_fp32=False, device=None, dtype=None):
        super().__init__(hidden_size, eps, device, dtype)
        self.prenorm, self.p, self.residual_in_fp32 = prenorm, p, residual_in_fp32

    def forward(self, x0, residual=None):
        return dropout_add_rms_norm(x0, residual, self.weight, None, self.p if self.training else 0.0, self.eps, prenorm=self.prenorm,
                                    residual_in_fp32=self.residual_in_fp32)
