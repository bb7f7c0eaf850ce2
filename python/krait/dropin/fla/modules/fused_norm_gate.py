"""The RMS norm times an activation of a gate."""

import torch

from krait.ops import add_norm, gated_norm


class FusedRMSNormGated(torch.nn.Module):
    """norm(x) weight act(g) over the last dimension; act is SiLU ("swish", "silu") or "sigmoid". Parameter `weight`, if elementwise_affine."""

    def __init__(self, hidden_size, elementwise_affine=True, eps=1e-5, activation="swish", device=None, dtype=None):
        super().__init__()
        if activation not in ("swish", "silu", "sigmoid"):
            raise ValueError("Unsupported activation: %s" % activation)
        self.hidden_size, self.elementwise_affine, self.eps, self.activation = hidden_size, elementwise_affine, eps, activation
        self.register_parameter("weight", torch.nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype)) if elementwise_affine else None)
        self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self):
        if self.weight is not None:
            torch.nn.init.ones_(self.weight)

    def extra_repr(self):
        return "%d, eps=%g, activation=%s" % (self.hidden_size, self.eps, self.activation)

    def forward(self, x, g, residual=None, prenorm=False, residual_in_fp32=False):
        """With prenorm (result, x + residual)."""
        weight = x.new_ones(self.hidden_size) if self.weight is None else self.weight
        if residual is None and not prenorm and self.activation != "sigmoid":
            return gated_norm(x, weight, None, g, self.eps, None, True, True)
        out, total = add_norm(x, weight, residual=residual, eps=self.eps, prenorm=True, residual_in_fp32=residual_in_fp32, is_rms_norm=True)
        out = out * (torch.sigmoid(g) if self.activation == "sigmoid" else torch.nn.functional.silu(g))
        return (out, total) if prenorm else out
