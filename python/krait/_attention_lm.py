"""Language models of causal attention and a gated MLP in every layer (transformers' Qwen2, Llama, Mistral, Qwen3): generate() by the library's graphs."""

import torch
import torch.nn.functional as F

from ._call import place
from ._language import TYPES, LanguageModel, Survey, Texts, eps_of, move_behind, why_not_head, why_not_names
from ._shared_lm import SharedAttentionLM
from ._torch import is_traced

_MOST_SHARED = 1024
_MOST_OF_HEAD = 256
_MOST_TOKENS = 1 << 20
_FEWEST_TOKENS = 256  # that a text has memory for
_INSIDE = {"input_layernorm.weight", "post_attention_layernorm.weight", *("mlp.%s_proj.weight" % name for name in ("gate", "up", "down")),
           *("self_attn.%s_proj.weight" % name for name in "qkvo")}
_ALL_OR_NONE = [{"self_attn.%s_proj.bias" % name for name in "qkv"}, {"self_attn.q_norm.weight", "self_attn.k_norm.weight"}]


class _Layer:
    """A layer's weights by their names in krait_shared_lm_attention_layer, and what describes it."""

    def __init__(self, layer):
        attention, mlp = layer.self_attn, layer.mlp
        q, k, v = self.qkv = attention.q_proj, attention.k_proj, attention.v_proj
        self.norms = [getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)]
        self.size, self.eps = attention.head_dim, eps_of(layer.input_layernorm)
        self.heads, self.kv_heads = q.weight.shape[0] // self.size, k.weight.shape[0] // self.size
        self.gate_up = [mlp.gate_proj.weight, mlp.up_proj.weight]
        self.weights = {"norm": layer.input_layernorm.weight, "q": q.weight, "k": k.weight, "v": v.weight, "q_bias": q.bias, "k_bias": k.bias, "v_bias": v.bias, "qk_norm": None,
                        "o": attention.o_proj.weight, "norm2": layer.post_attention_layernorm.weight, "gate": self.gate_up[0], "up": self.gate_up[1], "down": mlp.down_proj.weight}

    def refresh(self):
        """The norms of heads, as the graph takes them: of every head, in float32."""
        if self.norms[0] is None:
            return
        new = torch.cat([norm.weight.detach().float().repeat(n) for norm, n in zip(self.norms, (self.heads, self.kv_heads))])
        kept = self.weights["qk_norm"]
        if kept is None or kept.device != new.device:
            self.weights["qk_norm"] = new
        else:
            kept.copy_(new)

    def _norm(self, x, weight):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * weight

    def in_torch(self, x, cos, sin):
        """The layer of the stream x (L, D), in float32."""
        w = {name: None if t is None else t.detach().float() for name, t in self.weights.items()}
        heads = [F.linear(self._norm(x, w["norm"]), w[name], w[name + "_bias"]).unflatten(1, (-1, self.size)).transpose(0, 1) for name in "qkv"]
        if self.norms[0] is not None:
            heads[:2] = [self._norm(t, norm.weight.detach().float()) for t, norm in zip(heads, self.norms)]
        for i in (0, 1):
            a, b = heads[i].chunk(2, -1)
            heads[i] = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        q, k, v = heads[0], *[t.repeat_interleave(self.heads // self.kv_heads, 0) for t in heads[1:]]
        y = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
        x = x + F.linear(y.transpose(0, 1).flatten(1), w["o"])
        h = self._norm(x, w["norm2"])
        return x + F.linear(F.silu(F.linear(h, w["gate"])) * F.linear(h, w["up"]), w["down"])


class AttentionDecoder(Texts):
    """Reads prompts and generates, for one batch size at a time. Left behind when its model is copied or pickled."""

    def __init__(self, model):
        inner = model.model
        self.embedding, self.head, self.norm_f, self._rotary = inner.embed_tokens, model.lm_head, inner.norm, inner.rotary_emb
        self._survey, self._modules = Survey(model), list(inner.layers)
        self._config, self._first_depth = model.config, getattr(model.config, "num_hidden_layers", None)
        self._key, self._is_usable, self._run, self.layers = None, False, None, []

    def __reduce__(self):
        return type(None), ()

    def is_current(self):
        """Whether the model is as it was, but for its weights' values, places and types."""
        return self._survey.holds() and getattr(self._config, "num_hidden_layers", None) == self._first_depth  # as many layers run

    @property
    def weight(self):
        return self.embedding.weight

    def _can_share(self):
        weight, given = self.weight, self._survey.parameters
        if weight.device.type not in ("cpu", "cuda") or weight.dtype not in TYPES or (weight.device.type == "cpu" and weight.dtype is not torch.float32):
            return False  # a CPU's activations are float32
        return all([p.device == weight.device and p.dtype is weight.dtype and p.is_contiguous() for p in given])

    def refresh(self):
        """Reads the weights as they are now -> whether the library's graphs compute the model as it lies. Where they have moved, nothing recorded is left."""
        if not self._survey.are_plain or is_traced(self.weight):
            return False
        key = self._survey.key(), self._key_of_rope()
        with torch.inference_mode(False), torch.no_grad():
            if self._key != key:
                self._run, self._key, self._is_usable = None, key, self._can_share()
                if self._is_usable:
                    self.layers = [_Layer(module) for module in self._modules]
            if self._is_usable:
                for layer in self.layers:
                    layer.refresh()
        return self._is_usable

    def _key_of_rope(self):
        t = self._rotary.inv_freq
        return t.data_ptr(), t.device, t.dtype, None if t.is_inference() else t._version, getattr(self._rotary, "attention_scaling", 1.0)

    def rope(self):
        """(frequencies, factor of cosines and sines)."""
        return self._rotary.inv_freq.double().tolist(), float(getattr(self._rotary, "attention_scaling", 1.0))

    def _move_together(self):
        """What is one product: queries, keys and values; on a GPU, gate and up."""
        if self.weight.is_cuda:
            for layer in self.layers:
                move_behind([p.weight for p in layer.qkv])
                if layer.qkv[0].bias is not None:
                    move_behind([p.bias for p in layer.qkv])
                move_behind(layer.gate_up)
            self.refresh()

    def runs(self, batch, n_tokens):
        """What reads prompts and takes steps of texts of n_tokens (SharedAttentionLM), for the weights of the last refresh(); None: there are too many."""
        if batch > _MOST_SHARED or n_tokens > _MOST_TOKENS:
            return None
        key, first = (batch, place(self.weight)), self.layers[0]
        if self._run is None or self._run[0] != key or self._run[1].n_tokens < n_tokens:
            self._run = None
            with torch.inference_mode(False), torch.no_grad():
                self._move_together()
                made = SharedAttentionLM([layer.weights for layer in self.layers], self.weight, self.head.weight, self.norm_f.weight, first.eps, self.rope(),
                                         (first.heads, first.kv_heads, first.size), batch, max(_FEWEST_TOKENS, 1 << (n_tokens - 1).bit_length()))
            self._run = key, made
        return self._run[1]


class AttentionModel(LanguageModel):
    """For accelerate."""
    decoder = AttentionDecoder

    @staticmethod
    def looks_like(shapes):
        return {"model.embed_tokens.weight", "model.norm.weight", "model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.gate_proj.weight"} <= set(shapes)

    @staticmethod
    def why_not(model, shapes):
        config, layers = model.config, model.model.layers
        inside = _INSIDE.union(*[some for some in _ALL_OR_NONE if any("model.layers.0.%s" % name in shapes for name in some)])
        must = {"model.embed_tokens.weight", "model.norm.weight"} | {"model.layers.%d.%s" % (i, name) for i in range(len(layers)) for name in inside}
        why = why_not_names(shapes, must | {"lm_head.weight"}, must)
        if why:
            return why
        kinds = getattr(config, "layer_types", None)
        if any(kind != "full_attention" for kind in kinds) if kinds else getattr(config, "sliding_window", None) is not None:
            return "its attention has a window"
        size, rotary = getattr(layers[0].self_attn, "head_dim", 0), getattr(model.model, "rotary_emb", None)
        if getattr(rotary, "rope_type", "default") in ("dynamic", "longrope") or 2 * getattr(getattr(rotary, "inv_freq", None), "numel", int)() != size:
            return "it has another rotary embedding"
        if size > _MOST_OF_HEAD:
            return "its heads are larger than %d" % _MOST_OF_HEAD
        if (getattr(config, "rope_parameters", None) or {}).get("llama_4_scaling_beta"):
            return "its queries are scaled by their position"
        if len({(layer.self_attn.q_proj.weight.shape, layer.self_attn.k_proj.weight.shape, layer.mlp.up_proj.weight.shape) for layer in layers}) != 1:
            return "its layers differ"
        epsilons = {eps_of(norm) for norm in model.modules() if "Norm" in type(norm).__name__}
        return "its norms differ" if len(epsilons) != 1 else why_not_head(model, shapes["model.embed_tokens.weight"])

    @classmethod
    def _parts(cls, model, decoder):
        """[(name, what the model computes, what the description does, more)] of a prompt of seven tokens, each layer on the model's own input."""
        ids = torch.arange(7, device=decoder.weight.device)[None] % decoder.weight.shape[0]
        logits, blocks = cls._calls_of_blocks(model, model.model.layers, ids)
        frequencies, factor = decoder.rope()
        angles = torch.outer(torch.arange(7, dtype=torch.float64), torch.tensor(frequencies, dtype=torch.float64)).to(ids.device)
        cos, sin = [(t * factor).float() for t in (angles.cos(), angles.sin())]
        parts = [("embedding", blocks[0][0][0], F.embedding(ids[0], decoder.weight).float(), 0.0)] if blocks else []
        for i, (layer, (before, after)) in enumerate(zip(decoder.layers, blocks)):
            parts.append(("layer %d" % i, (after - before)[0], layer.in_torch(before[0], cos, sin) - before[0], float(after.norm())))
        if blocks:
            x = decoder.layers[0]._norm(blocks[-1][1][0], decoder.norm_f.weight.float())
            parts.append(("logits", logits[0], F.linear(x, decoder.head.weight.float()), 0.0))
        return parts if len(blocks) == len(decoder.layers) else None
