"""Vectors of length one, over the last dimension."""

import torch

from krait.ops import add_norm


def l2norm(x, eps=1e-6, output_dtype=None):
    """x / sqrt(sum of squares + eps), in x's type or output_dtype: an RMS norm with another scale."""
    output_dtype, size = output_dtype or x.dtype, x.shape[-1]
    x = x.to(torch.promote_types(x.dtype, output_dtype))  # rounded once, behind the norm
    return add_norm(x, torch.full((size,), size ** -0.5, device=x.device), eps=eps / size, is_rms_norm=True).to(output_dtype)


l2_norm = l2norm


class L2Norm(torch.nn.Module):
    def __init__(self, eps=1e-6, output_dtype=None):
        super().__init__()
        self.eps, self.output_dtype = eps, output_dtype

    def forward(self, x):
        return l2norm(x, self.eps, self.output_dtype)
