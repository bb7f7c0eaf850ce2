"""Gated RMS and layer norm under upstream's path."""

import torch
import torch.nn.functional as F

from krait.ops import gated_norm as _gated_norm


def layernorm_fn(x, weight, bias, z=None, eps=1e-6, group_size=None, norm_before_gate=True, is_rms_norm=False):
    """norm(x) weight + bias times silu(z), or with norm_before_gate=False norm(x silu(z)) weight + bias."""
    return _gated_norm(x, weight, bias, z, eps, group_size, norm_before_gate, is_rms_norm)


def rmsnorm_fn(x, weight, bias, z=None, eps=1e-6, group_size=None, norm_before_gate=True):
    """layernorm_fn without the mean."""
    return _gated_norm(x, weight, bias, z, eps, group_size, norm_before_gate, True)


def rms_norm_ref(x, weight, bias, z=None, eps=1e-6, group_size=None, norm_before_gate=True, upcast=True):
    """Plain torch."""
    dtype = x.dtype
    if upcast:
        x, weight, bias, z = [t if t is None else t.float() for t in (x, weight, bias, z)]
    if z is not None and not norm_before_gate:
        x = x * F.silu(z)
    groups = x.unflatten(-1, (-1, x.shape[-1] if group_size is None else group_size))
    out = (groups * torch.rsqrt(groups.square().mean(dim=-1, keepdim=True) + eps)).flatten(-2) * weight
    out = out if bias is None else out + bias
    return (out * F.silu(z) if z is not None and norm_before_gate else out).to(dtype)


class _GatedNorm(torch.nn.Module):
    IS_RMS = True

    def __init__(self, hidden_size, eps=1e-5, group_size=None, norm_before_gate=True, device=None, dtype=None):
        super().__init__()
        self.eps, self.group_size, self.norm_before_gate = eps, group_size, norm_before_gate
        self.weight = torch.nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        bias = None if self.IS_RMS else torch.nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", bias)
        self.reset_parameters()

    def reset_parameters(self):
        torch.nn.init.ones_(self.weight)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(self, x, z=None):
        """Without z only the norm."""
        return _gated_norm(x, self.weight, self.bias, z, self.eps, self.group_size, self.norm_before_gate, self.IS_RMS)


class RMSNorm(_GatedNorm):
    """Parameter `weight`; `bias` is None."""


class LayerNorm(_GatedNorm):
    """Parameters `weight` and `bias`."""
    IS_RMS = False


class LayerNormFn:
    """Upstream's autograd function by name, for callers of apply."""

    apply = staticmethod(layernorm_fn)
