"""MixerModel and MambaLMHeadModel: embedding, blocks, final norm, output matrix."""

import copy
import json
import math
import os
import warnings
from collections import namedtuple
from functools import partial

import torch
import torch.nn as nn

from krait.ops import apply_linear
from mamba_ssm.models.config_mamba import MambaConfig
from mamba_ssm.modules.block import Block
from mamba_ssm.modules.mamba2 import Mamba2
from mamba_ssm.modules.mamba3 import Mamba3
from mamba_ssm.modules.mamba_simple import Mamba
from mamba_ssm.modules.mha import MHA
from mamba_ssm.modules.mlp import GatedMLP
from mamba_ssm.ops.triton.layer_norm import RMSNorm, layer_norm_fn, rms_norm_fn  # noqa: F401
from mamba_ssm.utils.generation import GenerationMixin
from mamba_ssm.utils.hf import load_config_hf, load_state_dict_hf

_MIXERS = {"Mamba1": Mamba, "Mamba2": Mamba2, "Mamba3": Mamba3}
CausalLMOutput = namedtuple("CausalLMOutput", ["logits"])


def create_block(d_model, d_intermediate, ssm_cfg=None, attn_layer_idx=None, attn_cfg=None, norm_epsilon=1e-5, rms_norm=False,
                 residual_in_fp32=False, fused_add_norm=False, layer_idx=None, device=None, dtype=None):
    factory = {"device": device, "dtype": dtype}
    ssm_cfg = copy.deepcopy(ssm_cfg) if ssm_cfg is not None else {}
    layer = ssm_cfg.pop("layer", "Mamba1")
    if layer not in _MIXERS:
        raise ValueError("Invalid ssm_layer: %s, only support %s" % (layer, ", ".join(_MIXERS)))
    if layer_idx in (attn_layer_idx or []):
        mixer_cls = partial(MHA, layer_idx=layer_idx, **(attn_cfg or {}), **factory)
    else:
        mixer_cls = partial(_MIXERS[layer], layer_idx=layer_idx, **ssm_cfg, **factory)
    norm_cls = partial(RMSNorm if rms_norm else nn.LayerNorm, eps=norm_epsilon, **factory)
    mlp_cls = nn.Identity if d_intermediate == 0 else partial(GatedMLP, hidden_features=d_intermediate,
                                                              out_features=d_model, **factory)
    block = Block(d_model, mixer_cls, mlp_cls, norm_cls=norm_cls, fused_add_norm=fused_add_norm,
                  residual_in_fp32=residual_in_fp32)
    block.layer_idx = layer_idx
    return block


def _init_weights(module, n_layer, initializer_range=0.02, rescale_prenorm_residual=True, n_residuals_per_layer=1):
    """Zero biases (except those marked _no_reinit), normal embeddings, residual projections scaled by depth."""
    if isinstance(module, nn.Linear):
        if module.bias is not None and not getattr(module.bias, "_no_reinit", False):
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=initializer_range)
    if rescale_prenorm_residual:
        for name, p in module.named_parameters():
            if name in ("out_proj.weight", "fc2.weight"):
                nn.init.kaiming_uniform_(p, a=math.sqrt(5))
                with torch.no_grad():
                    p /= math.sqrt(n_residuals_per_layer * n_layer)


class MixerModel(nn.Module):
    def __init__(self, d_model, n_layer, d_intermediate, vocab_size, ssm_cfg=None, attn_layer_idx=None, attn_cfg=None,
                 norm_epsilon=1e-5, rms_norm=False, initializer_cfg=None, fused_add_norm=False, residual_in_fp32=False,
                 device=None, dtype=None):
        factory = {"device": device, "dtype": dtype}
        super().__init__()
        self.residual_in_fp32, self.fused_add_norm = residual_in_fp32, fused_add_norm
        self.embedding = nn.Embedding(vocab_size, d_model, **factory)
        self.layers = nn.ModuleList([
            create_block(d_model, d_intermediate, ssm_cfg=ssm_cfg, attn_layer_idx=attn_layer_idx, attn_cfg=attn_cfg,
                         norm_epsilon=norm_epsilon, rms_norm=rms_norm, residual_in_fp32=residual_in_fp32,
                         fused_add_norm=fused_add_norm, layer_idx=i, **factory) for i in range(n_layer)])
        self.norm_f = (RMSNorm if rms_norm else nn.LayerNorm)(d_model, eps=norm_epsilon, **factory)
        self.apply(partial(_init_weights, n_layer=n_layer, **(initializer_cfg or {}),
                           n_residuals_per_layer=1 if d_intermediate == 0 else 2))

    def allocate_inference_cache(self, batch_size, max_seqlen, dtype=None, **kwargs):
        return {i: layer.allocate_inference_cache(batch_size, max_seqlen, dtype=dtype, **kwargs)
                for i, layer in enumerate(self.layers)}

    def forward(self, input_ids, inference_params=None, **mixer_kwargs):
        hidden_states, residual = self.embedding(input_ids), None
        for layer in self.layers:
            hidden_states, residual = layer(hidden_states, residual, inference_params=inference_params, **mixer_kwargs)
        if self.fused_add_norm:
            return layer_norm_fn(hidden_states, self.norm_f.weight, self.norm_f.bias, eps=self.norm_f.eps, residual=residual,
                                 prenorm=False, residual_in_fp32=self.residual_in_fp32,
                                 is_rms_norm=isinstance(self.norm_f, RMSNorm))
        residual = hidden_states + residual if residual is not None else hidden_states
        return self.norm_f(residual.to(dtype=self.norm_f.weight.dtype))


def _with_upstream_keys(state):
    """Converted files say `embeddings` and omit the tied output matrix."""
    state = {key.replace("backbone.embeddings.", "backbone.embedding."): value for key, value in state.items()}
    state.setdefault("lm_head.weight", state.get("backbone.embedding.weight"))
    return state


def _choose_form_of_A(config, name):
    """For a Mamba-3 model whose file does not say which form of A it was trained with: that of KRAIT_MAMBA3_A, else upstream's newest, with a warning."""
    said = config.ssm_cfg or {}
    if said.get("layer") != "Mamba3" or "A_activation" in said:
        return
    chosen = os.environ.get("KRAIT_MAMBA3_A")
    if chosen:
        config.ssm_cfg = dict(said, A_activation=chosen)
    else:
        warnings.warn("%s: config.json does not say which form of A the model was trained with: taken as the heavy tail of mamba-ssm since June 2026; for 2.3.2.post1 and "
                      "before set KRAIT_MAMBA3_A=softplus, or A_activation in ssm_cfg" % name, stacklevel=3)


class MambaLMHeadModel(nn.Module, GenerationMixin):
    def __init__(self, config, initializer_cfg=None, device=None, dtype=None):
        factory = {"device": device, "dtype": dtype}
        super().__init__()
        self.config = config
        multiple = config.pad_vocab_size_multiple
        vocab_size = (config.vocab_size + multiple - 1) // multiple * multiple
        self.backbone = MixerModel(
            d_model=config.d_model, n_layer=config.n_layer, d_intermediate=config.d_intermediate, vocab_size=vocab_size,
            ssm_cfg=config.ssm_cfg, attn_layer_idx=config.attn_layer_idx, attn_cfg=config.attn_cfg, rms_norm=config.rms_norm,
            initializer_cfg=initializer_cfg, fused_add_norm=config.fused_add_norm, residual_in_fp32=config.residual_in_fp32,
            **factory)
        self.lm_head = nn.Linear(config.d_model, vocab_size, bias=False, **factory)
        self.apply(partial(_init_weights, n_layer=config.n_layer, **(initializer_cfg or {}),
                           n_residuals_per_layer=1 if config.d_intermediate == 0 else 2))
        self.tie_weights()

    def tie_weights(self):
        if self.config.tie_embeddings:
            self.lm_head.weight = self.backbone.embedding.weight

    def allocate_inference_cache(self, batch_size, max_seqlen, dtype=None, **kwargs):
        return self.backbone.allocate_inference_cache(batch_size, max_seqlen, dtype=dtype, **kwargs)

    def forward(self, input_ids, position_ids=None, inference_params=None, num_last_tokens=0, **mixer_kwargs):
        """input_ids (B, L) -> logits (B, L or num_last_tokens, padded vocabulary); position_ids are ignored."""
        hidden_states = self.backbone(input_ids, inference_params=inference_params, **mixer_kwargs)
        if num_last_tokens > 0:
            hidden_states = hidden_states[:, -num_last_tokens:]
        return CausalLMOutput(logits=apply_linear(self.lm_head, hidden_states))

    @classmethod
    def from_pretrained(cls, pretrained_model_name, device=None, dtype=None, **kwargs):
        """A folder with config.json and weights, or a model name on the Hugging Face Hub."""
        config = MambaConfig(**load_config_hf(pretrained_model_name))
        _choose_form_of_A(config, pretrained_model_name)
        model = cls(config, device=device, dtype=dtype, **kwargs)
        model.load_state_dict(_with_upstream_keys(load_state_dict_hf(pretrained_model_name, device=device, dtype=dtype)))
        return model

    def save_pretrained(self, save_directory):
        os.makedirs(save_directory, exist_ok=True)
        torch.save(self.state_dict(), os.path.join(save_directory, "pytorch_model.bin"))
        with open(os.path.join(save_directory, "config.json"), "w", encoding="utf-8") as f:
            json.dump(self.config.__dict__, f, indent=4)
