"""Decoder layers of transformers' Qwen2, Llama, Mistral and Qwen3, for accelerate: forward and gradient by the nodes of ops/decoder_layer.py, on the
layer's own parameters. What is asked of a layer beside that is its class's: small calls, masks, caches that hold something, modules with hooks."""

import inspect
import warnings

import torch
from torch.nn.modules import module as _nn_module

from ._torch import autocast_dtype, is_traced, member
from .ops import decoder_layer as ops
from .ops.product import is_plain

_FAMILIES = ("qwen2", "llama", "mistral", "qwen3")
_IMPLEMENTATIONS = ("sdpa", "flash_attention_2")  # that take no mask for causal attention
_FEWEST_TOKENS = 256                              # of a call; smaller ones wait for the host either way
_MOST_OF_HEAD = 256
_MOST_ELEMENTS = (1 << 31) - 256  # of pointwise on a GPU
_NO_MATTER = ("position_ids", "use_cache", "output_attentions", "output_hidden_states", "cache_position", "logits_to_keep", "return_dict", "num_items_in_batch", "labels", "shift_labels")
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks")
_warned = set()


def _warn_once(what):
    if what not in _warned:
        _warned.add(what)
        warnings.warn("krait.accelerate: %s" % what, stacklevel=4)


def _weight(module):
    return member(module, "weight")


def _bias(module):
    return member(module, "bias")


def only_captures(module):
    """Whether its hooks are those by which transformers collects outputs, which it installs once and for good: without a collector they do nothing."""
    return all([getattr(hook, "__name__", "") == "output_capturing_hook" for hook in module._forward_hooks.values()])


def _only_captures(module):
    """Whether it does no more than that: krait's attention has no weights to collect, as the usual one."""
    return module._forward_hooks and only_captures(module) and not (
        module._forward_pre_hooks or module._backward_hooks or getattr(module, "_backward_pre_hooks", None) or "forward" in module.__dict__)


def _are_plain(linears, x, dtype):
    """Whether these layers' parameters may be used in their place, for x: of one type, which autocast may convert; all with a bias or none."""
    if not all([is_plain(m) for m in linears]):
        return False
    given = [t for m in linears for t in (_weight(m), _bias(m)) if t is not None]
    return (len({m.bias is None for m in linears}) == 1 and len({t.dtype for t in given}) == 1 and (dtype is not None or given[0].dtype is x.dtype)
            and all([type(t) in (torch.nn.Parameter, torch.Tensor) and t.device == x.device and t.dtype.is_floating_point for t in given]))


def _is_plain_norm(norm, kind, x, dtype):
    weight = member(norm, "weight")
    return is_plain(norm, kind) and type(weight) in (torch.nn.Parameter, torch.Tensor) and weight.device == x.device and (weight.dtype is x.dtype or dtype is not None)


def _linear(layer, x, dtype):
    return ops.linear(x, _weight(layer), _bias(layer)) if _are_plain((layer,), x, dtype) else layer(x)


def _is_empty(cache, index):
    """Whether keys put into a cache are all that it then has."""
    return type(cache).__name__ == "DynamicCache" and not cache.get_seq_length(index)


class DecoderLayer:
    """A layer's forward. Copied and pickled with its layer."""
    title = "decoder layer"

    def __init__(self, layer):
        self.layer, self.kind = layer, type(layer)
        self.kinds = [type(m) for m in self._inside()]

    def _inside(self):
        layer = self.layer
        return layer.input_layernorm, layer.self_attn, layer.post_attention_layernorm, layer.mlp, layer.mlp.act_fn

    @property
    def __code__(self):  # torch.export and others ask the method for its arguments
        return self.kind.forward.__code__

    @property
    def __signature__(self):
        return inspect.signature(self.kind.forward.__get__(self.layer))

    def _heads(self):
        attention = self.layer.self_attn
        config, norm = attention.config, getattr(attention, "q_norm", None)
        return ops.Heads(config.num_attention_heads, config.num_key_value_heads, attention.head_dim, float(attention.scaling),
                         None if norm is None else float(norm.variance_epsilon))

    def _takes(self, x, angles, kwargs):
        """Whether this call's norms may be krait's."""
        if is_traced(x) or not isinstance(x, torch.Tensor) or x.dim() != 3 or x.shape[0] * x.shape[1] < _FEWEST_TOKENS or angles is None:
            return False
        if x.device.type not in ("cpu", "cuda") or x.dtype not in (torch.float32, torch.float16, torch.bfloat16) or type(x) not in (torch.Tensor, torch.nn.Parameter):
            return False
        if any([value is not None and name not in _NO_MATTER for name, value in kwargs.items()]) or kwargs.get("output_attentions"):
            return False
        inside, layer, dtype = self._inside(), self.layer, autocast_dtype(x)
        if not all([is_plain(m, kind) or (type(m) is kind and _only_captures(m)) for m, kind in zip(inside, self.kinds)]) or any([getattr(_nn_module, name, None) for name in _GLOBAL_HOOKS]):
            return False
        return type(layer).forward is self.kind.forward and all([_is_plain_norm(norm, type(norm), x, dtype) for norm in (layer.input_layernorm, layer.post_attention_layernorm)])

    def _takes_attention(self, x, heads, mask, cache, angles, position_ids, dtype):
        attention = self.layer.self_attn
        linears = attention.q_proj, attention.k_proj, attention.v_proj
        if mask is not None:
            _warn_once("attention with a mask, of padding or a window, is transformers' %s; the rest of its layers is krait's" % attention.config._attn_implementation)
            return False
        cos = angles[0]
        norms = [getattr(attention, name) for name in ("q_norm", "k_norm") if hasattr(attention, name)]
        if attention.config._attn_implementation not in _IMPLEMENTATIONS or not attention.is_causal or cos.shape != (1, x.shape[1], attention.head_dim) or (attention.training and attention.attention_dropout):
            return False
        window = getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None))
        if window is not None and x.shape[1] > window:
            return False
        if attention.config._attn_implementation != "sdpa" and x.shape[0] == 1 and position_ids is not None:
            return False  # one row may pack sequences
        return ((cache is None or _is_empty(cache, attention.layer_idx)) and _are_plain(linears, x, dtype)
                and [_weight(m).shape[0] for m in linears] == [n * heads.size for n in (heads.queries, heads.keys, heads.keys)]
                and all([_is_plain_norm(norm, type(norm), x, dtype) for norm in norms]) and len({float(norm.variance_epsilon) for norm in norms}) < 2)

    def _attend(self, calls, heads, y, angles, cache):
        attention = self.layer.self_attn
        linears = (attention.q_proj, attention.k_proj, attention.v_proj)
        norms = (None, None) if heads.eps is None else (_weight(attention.q_norm), _weight(attention.k_norm))
        cos, sin = [t[0, :, :heads.size // 2] for t in angles]
        out, k, v = ops.attention(calls, heads, y, cos, sin, (*map(_weight, linears), *map(_bias, linears), *norms), cache is not None)
        if cache is not None:
            cache.update(k, v, attention.layer_idx)
        return _linear(attention.o_proj, out, autocast_dtype(y))

    def _mlp(self, calls, y, dtype, expected):
        mlp = self.layer.mlp
        both = (mlp.gate_proj, mlp.up_proj)
        if y.dtype is not expected or not _are_plain(both, y, dtype):  # as it is behind an adapter of another type
            return mlp(y)
        if 2 * y.shape[0] * y.shape[1] * _weight(mlp.gate_proj).shape[0] >= _MOST_ELEMENTS:
            return mlp(y)
        return _linear(mlp.down_proj, ops.gated(calls, y, *map(_weight, both), *map(_bias, both)), dtype)

    def __call__(self, hidden_states, attention_mask=None, position_ids=None, past_key_values=None, use_cache=False, position_embeddings=None, **kwargs):
        layer, x = self.layer, hidden_states
        if not self._takes(x, position_embeddings, kwargs):
            return type(layer).forward(layer, x, attention_mask=attention_mask, position_ids=position_ids, past_key_values=past_key_values, use_cache=use_cache,
                                       position_embeddings=position_embeddings, **kwargs)
        dtype, x = autocast_dtype(x), x.contiguous()
        inner = x.dtype if dtype is None else dtype
        norm, norm2 = layer.input_layernorm, layer.post_attention_layernorm
        heads = self._heads()
        calls = ops.calls_of(x.shape, x.dtype, dtype, x.device, _weight(norm).dtype, _weight(norm2).dtype, heads, layer.mlp.intermediate_size,
                             position_embeddings[0].dtype, position_embeddings[0].stride())
        y, x = ops.norm(calls, x, _weight(norm), norm.variance_epsilon, inner)
        if self._takes_attention(x, heads, attention_mask, past_key_values, position_embeddings, position_ids, dtype):
            a = self._attend(calls, heads, y, position_embeddings, past_key_values)
        else:
            a, _ = layer.self_attn(hidden_states=y, attention_mask=attention_mask, position_ids=position_ids, past_key_values=past_key_values, use_cache=use_cache,
                                   position_embeddings=position_embeddings, **kwargs)
        y, x = ops.norm_of_sum(a, x, _weight(norm2), norm2.variance_epsilon)
        return x + self._mlp(calls, y, dtype, inner)


def _why_not(layer):
    """Why a layer is not one of those; None: it may be."""
    attention, mlp = layer.self_attn, layer.mlp
    if "forward" in layer.__dict__ or not all([is_plain(m, type(m)) for m in layer.modules()]):
        return "its modules have hooks or another forward"
    if not isinstance(mlp.act_fn, torch.nn.SiLU) and type(mlp.act_fn).__name__ != "SiLUActivation":
        return "its activation is not silu"
    if attention.head_dim > _MOST_OF_HEAD or attention.head_dim % 2 or not attention.is_causal:
        return "its heads are larger than %d, odd, or not causal" % _MOST_OF_HEAD
    return None


def _differs(model, layer):
    """Why the nodes do not compute what the layer does, on an example; None: they do."""
    weight = layer.input_layernorm.weight
    if weight.device.type not in ("cpu", "cuda") or len({(p.device, p.dtype) for p in layer.parameters()}) != 1:
        return None  # nothing to compute with; calls decide for themselves
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, _FEWEST_TOKENS, weight.shape[0], generator=generator).to(weight)
    positions = torch.arange(x.shape[1], device=x.device)[None]
    dropout, layer.self_attn.attention_dropout = layer.self_attn.attention_dropout, 0.0
    implementation = layer.self_attn.config._attn_implementation
    try:
        layer.self_attn.config._attn_implementation = "sdpa"
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            angles = model.rotary_emb(x, positions)
            want, got = [f(x, attention_mask=None, position_ids=positions, position_embeddings=angles) for f in (type(layer).forward.__get__(layer), DecoderLayer(layer))]
    finally:
        layer.self_attn.attention_dropout, layer.self_attn.config._attn_implementation = dropout, implementation
    want, got = [(t - x).float() for t in (want, got)]
    bound, share = (1e-3, 1e-3) if x.dtype is torch.float32 else (5e-2, 2.0 ** -4)
    error = float((got - want).norm()) / (float(want.norm()) + share * float(x.float().norm()) + 1e-30)
    return None if error <= bound else "its layer computes something else (%.1e relative)" % error


def looks_like(model):
    layers = getattr(model, "layers", None)
    return isinstance(layers, torch.nn.ModuleList) and len(layers) > 0 and hasattr(layers[0], "self_attn") and hasattr(layers[0], "mlp") and hasattr(model, "rotary_emb")


def install(model):
    """Replaces the forward of each layer of a model's `layers` -> why not, or None."""
    names = {"transformers.models.%s.modeling_%s" % (family, family) for family in _FAMILIES}
    layers = list(model.layers)
    for layer in layers:
        strange = [type(m).__name__ for m in (layer, *layer.children()) if type(m).__module__ not in names]
        if strange:
            return "%s is not of %s" % (strange[0], ", ".join(_FAMILIES))
    why = next((why for why in map(_why_not, layers) if why), None) or _differs(model, layers[0])
    if why:
        return why
    for layer in layers:
        layer.forward = DecoderLayer(layer)
    return None
