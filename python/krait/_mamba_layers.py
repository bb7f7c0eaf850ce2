"""Layers of transformers' Mamba and Mamba-2, for accelerate: the norm by the nodes of ops/decoder_layer.py, the mixer as one node, forward and
gradient, on the layer's own parameters. Small calls, masks, caches and modules with hooks are its class's."""

import inspect

import torch
from torch.nn.modules import module as _nn_module

from ._decoder_layers import _GLOBAL_HOOKS
from ._torch import autocast_dtype, is_traced, member
from .ops import decoder_layer as ops
from .ops import mamba2_block, mamba_block, mamba_inner
from .ops.mamba2_block import Options, Weights
from .ops.product import apply, is_plain

_FAMILIES = {"transformers.models.mamba.modeling_mamba": "MambaBlock", "transformers.models.mamba2.modeling_mamba2": "Mamba2Block"}
_FEWEST_TOKENS = 256  # of a call
_NO_MATTER = ("cache_position", "use_cache", "output_attentions", "output_hidden_states", "return_dict", "num_items_in_batch")
_TYPES = (torch.float32, torch.float16, torch.bfloat16)
_EXAMPLE = 8          # tokens


class MambaLayer:
    """A layer's forward. Copied and pickled with its layer."""
    title = "Mamba layer"

    def __init__(self, layer):
        self.layer, self.kind = layer, type(layer)
        self.is_second = not hasattr(layer.mixer, "x_proj")
        self.kinds = [type(m) for m in self._inside()]

    def _inside(self):
        mixer = self.layer.mixer
        between = (mixer.norm,) if self.is_second else (mixer.x_proj, mixer.dt_proj)
        return (self.layer.norm, mixer, mixer.conv1d, *between)

    @property
    def __code__(self):  # torch.export and others ask the method for its arguments
        return self.kind.forward.__code__

    @property
    def __signature__(self):
        return inspect.signature(self.kind.forward.__get__(self.layer))

    def _takes(self, x, args, kwargs):
        """Whether this call is krait's."""
        if args or is_traced(x) or type(x) not in (torch.Tensor, torch.nn.Parameter) or x.dim() != 3 or x.shape[0] * x.shape[1] < _FEWEST_TOKENS:
            return False
        if x.device.type not in ("cpu", "cuda") or x.dtype not in _TYPES or any([value is not None and name not in _NO_MATTER for name, value in kwargs.items()]):
            return False
        inside, layer = self._inside(), self.layer
        if not all([is_plain(m, kind) for m, kind in zip(inside, self.kinds)]) or any([getattr(_nn_module, name, None) for name in _GLOBAL_HOOKS]) or type(layer).forward is not self.kind.forward:
            return False
        given = [p for m in (*inside, layer.mixer.in_proj, layer.mixer.out_proj) for p in m._parameters.values() if p is not None]
        return all([type(p) in (torch.nn.Parameter, torch.Tensor) and p.device == x.device and p.dtype in _TYPES for p in given])

    def _mix_first(self, y):
        mixer = self.layer.mixer
        first, conv, delta, last = mixer.in_proj, mixer.conv1d, mixer.dt_proj, mixer.out_proj
        inside = (member(conv, "weight"), member(conv, "bias"), member(mixer.x_proj, "weight"), member(delta, "weight"))
        if is_plain(first) and is_plain(last) and first.bias is None:
            out = mamba_block(y, member(first, "weight"), *inside, member(delta, "bias"), member(mixer, "A_log"), member(mixer, "D"), member(last, "weight"), member(last, "bias"))
            if out is not None:
                return out
        of_last = (member(last, "weight"), member(last, "bias")) if is_plain(last) else (None, None)
        out = mamba_inner(apply(first, y).transpose(1, 2), *inside, *of_last, -torch.exp(member(mixer, "A_log").float()), None, None, member(mixer, "D").float(),
                          delta_bias=member(delta, "bias").float(), delta_softplus=True)
        return out if is_plain(last) else last(out.transpose(1, 2))

    def _mix_second(self, y):
        mixer = self.layer.mixer
        first, conv, last = mixer.in_proj, mixer.conv1d, mixer.out_proj
        of_first, of_last = [(member(m, "weight"), member(m, "bias")) if is_plain(m) else (None, None) for m in (first, last)]
        weights = Weights(*of_first, member(conv, "weight"), member(conv, "bias"), member(mixer, "dt_bias"), member(mixer, "A_log"), member(mixer, "D"), member(mixer.norm, "weight"), *of_last)
        out, _ = mamba2_block(y if is_plain(first) else first(y), weights, Options(mixer.head_dim, 1, 0, True, False, mixer.norm.variance_epsilon, *mixer.time_step_limit, True, False))
        return out if is_plain(last) else last(out)

    def run(self, x):
        layer, weight, dtype, x = self.layer, member(self.layer.norm, "weight"), autocast_dtype(x), x.contiguous()
        inner = weight.dtype if dtype is None else dtype
        y, x = ops.norm(ops.calls_of("mamba", x.shape, x.dtype, inner, x.device, weight.dtype), x, weight, layer.norm.variance_epsilon, inner)
        return (x.to(torch.float32) if layer.residual_in_fp32 else x) + (self._mix_second(y) if self.is_second else self._mix_first(y))

    def __call__(self, hidden_states, *args, **kwargs):
        if not self._takes(hidden_states, args, kwargs):
            return type(self.layer).forward(self.layer, hidden_states, *args, **kwargs)
        return self.run(hidden_states)


def _why_not(layer):
    """Why a layer is not one of those; None: it may be."""
    mixer = layer.mixer
    strange = next((m for m in (layer.norm, mixer, getattr(mixer, "norm", mixer)) if type(m).__module__ not in _FAMILIES), None)
    if strange is not None:
        return "%s is not of Mamba or Mamba-2" % type(strange).__name__
    if "forward" in layer.__dict__ or not all([is_plain(m, type(m)) for m in layer.modules()]):
        return "its modules have hooks or another forward"
    if mixer.activation not in ("silu", "swish"):
        return "its activation is not silu"
    return "it has several groups" if getattr(mixer, "n_groups", 1) != 1 else None


@torch.no_grad()
def _differs(layer):
    """Why the nodes do not compute what the layer does, on an example; None: they do."""
    weight, mixer = layer.norm.weight, layer.mixer
    if weight.device.type not in ("cpu", "cuda") or any([p.device != weight.device or p.dtype not in _TYPES for p in layer.parameters()]):
        return None  # nothing to compute with; calls decide for themselves
    x = torch.randn(1, _EXAMPLE, weight.shape[0], generator=torch.Generator().manual_seed(0)).to(weight)
    chunk, training = mixer.__dict__.get("chunk_size"), mixer.training
    try:
        mixer.training = False  # in training it passes on a bias of another type than its weight
        if chunk is not None:
            mixer.chunk_size = _EXAMPLE  # its own scan pads to whole chunks
        with torch.autocast(x.device.type, enabled=False):
            want, got = [(f(x) - x).float() for f in (type(layer).forward.__get__(layer), MambaLayer(layer).run)]
    finally:
        mixer.training = training
        if chunk is not None:
            mixer.chunk_size = chunk
    bound, share = (1e-3, 1e-3) if weight.dtype is torch.float32 else (5e-2, 2.0 ** -4)
    error = float((got - want).norm()) / (float(want.norm()) + share * float(x.float().norm()) + 1e-30)
    return None if error <= bound else "its layer computes something else (%.1e relative)" % error


def looks_like(model):
    layers = getattr(model, "layers", None)
    return isinstance(layers, torch.nn.ModuleList) and len(layers) > 0 and _FAMILIES.get(type(layers[0]).__module__) == type(layers[0]).__name__


def install(model):
    """Replaces the forward of each layer of a model's `layers` -> why not, or None."""
    layers = list(model.layers)
    strange = [layer for layer in layers if type(layer) is not type(layers[0])]
    why = "%s is not of Mamba or Mamba-2" % type(strange[0]).__name__ if strange else next((why for why in map(_why_not, layers) if why), None) or _differs(layers[0])
    if why:
        return why
    for layer in layers:
        layer.forward = MambaLayer(layer)
    return None
