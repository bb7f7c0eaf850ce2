"""One token through all layers of a Mamba or Mamba-2 model, in place on their states."""

import torch

from .._call import Call, Operator, place

_DECODE = Operator("mamba_decode", "x norm_weight in_proj conv_weight conv_bias x_proj dt_proj dt_bias A Dvec gate_norm out_proj conv_state ssm_state out")
_NAMES = "norm_weight in_proj conv_weight conv_bias x_proj dt_proj dt_bias A Dvec gate_norm out_proj".split()


def mamba_decode(x, weights, conv_state, ssm_state, eps):
    """x (B, D) -> (B, D) float32: the residual stream after all layers. weights: by krait_mamba_decode_args name, layers
    first; Mamba-2 has no x_proj and dt_proj, Mamba no gate_norm. conv_state (layers, B, channels, taps - 1), ssm_state
    (layers, B, inner width, N)."""
    layers, batch = ssm_state.shape[:2]
    assert x.shape == (batch, weights["norm_weight"].shape[1]) and conv_state.shape[:2] == (layers, batch), "x %s does not match states of %d sequences" % (tuple(x.shape), batch)
    tensors = _tensors(x, weights, conv_state, ssm_state)
    _DECODE.run(tensors, eps=eps)
    return tensors[-1]


def accepts(x, weights, conv_state, ssm_state, eps):
    """Whether the device has an implementation for this call: of GPUs only Hopper, for float16."""
    call = Call(_DECODE)
    call.pack(_tensors(x, weights, conv_state, ssm_state), eps=eps)
    return call.implementation(place(x)) is not None


def _tensors(x, weights, conv_state, ssm_state):
    return (x, *[weights.get(name) for name in _NAMES], conv_state, ssm_state, torch.empty(x.shape, dtype=torch.float32, device=x.device))
