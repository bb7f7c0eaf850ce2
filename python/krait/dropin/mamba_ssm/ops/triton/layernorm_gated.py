"""Gated RMS and layer norm under upstream's path."""

import torch
import torch.nn.functional as F

from krait._function import function_by_name, gradients
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


def _layer_norm_fwd(x, weight, bias, eps, z=None, out=None, group_size=None, norm_before_gate=True, is_rms_norm=False):
    """x (M, D) -> y, the means (None for RMS norms) and 1 / deviations of the groups, both (groups M) float32, group by group."""
    with torch.no_grad():
        y = _gated_norm(x, weight, bias, z, eps, group_size, norm_before_gate, is_rms_norm)
        normed = x.float() if z is None or norm_before_gate else x.float() * F.silu(z.float())
        groups = normed.unflatten(-1, (-1, x.shape[-1] if group_size is None else group_size))
        mean = None if is_rms_norm else groups.mean(-1)
        rstd = (groups if mean is None else groups - mean[..., None]).square().mean(-1).add(eps).rsqrt()
    return y if out is None else out.copy_(y), None if mean is None else mean.t().flatten(), rstd.t().flatten()


def _layer_norm_bwd(dy, x, weight, bias, eps, mean, rstd, z=None, group_size=None, norm_before_gate=True, is_rms_norm=False, recompute_output=False, dz=None,
                    out=None):
    """-> gradients of x, weight, bias, z (None for those not given)[, the output]; mean and rstd are not needed."""
    given = [x, weight, bias, z]
    present = [i for i, t in enumerate(given) if t is not None]
    shown = []

    def norm(*tensors):
        whole = dict(zip(present, tensors))
        shown.append(_gated_norm(whole[0], whole[1], whole.get(2), whole.get(3), eps, group_size, norm_before_gate, is_rms_norm))
        return shown[0]

    found = dict(zip(present, gradients(norm, [given[i] for i in present], dy)))
    if dz is not None:
        found[3] = dz.copy_(found[3])
    grads = tuple(found.get(i) for i in range(4))
    return (*grads, shown[0].detach() if out is None else out.copy_(shown[0].detach())) if recompute_output else grads


LayerNormFn = function_by_name("LayerNormFn", layernorm_fn)
