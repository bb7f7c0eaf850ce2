"""One token through all layers of a Mamba or Mamba-2 model, in place on their states."""

import torch

from .._call import Operator

_DECODE = Operator("mamba_decode", "x norm_weight in_proj conv_weight conv_bias x_proj dt_proj dt_bias A Dvec gate_norm out_proj conv_state ssm_state out")
_NAMES = "norm_weight in_proj conv_weight conv_bias x_proj dt_proj dt_bias A Dvec gate_norm out_proj".split()


def mamba_decode(x, weights, conv_state, ssm_state, eps):
    """x (B, D) -> (B, D) float32: the residual stream after all layers. weights: by krait_mamba_decode_args name, layers
    first; Mamba-2 has no x_proj and dt_proj, Mamba no gate_norm. conv_state (layers, B, channels, taps - 1), ssm_state
    (layers, B, inner width, N)."""
    taken = [weights.get(name) for name in _NAMES]
    layers, batch = ssm_state.shape[:2]
    assert x.shape == (batch, weights["norm_weight"].shape[1]) and conv_state.shape[:2] == (layers, batch), "x %s does not match states of %d sequences" % (tuple(x.shape), batch)
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    _DECODE.run((x, *taken, conv_state, ssm_state, out), eps=eps)
    return out
