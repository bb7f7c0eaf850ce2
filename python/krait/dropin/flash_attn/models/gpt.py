"""GPT models of this package's blocks, configured by a GPT2Config with more attributes (rotary_emb_fraction, parallel_block, rms_norm, ...)."""

import math
from collections import namedtuple
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GPT2Config  # noqa: F401

from flash_attn.models._names import pad_rows, pad_vocabulary, rename
from flash_attn.models._shards import combine_state_dicts_tp, shard_state_dict_tp  # noqa: F401
from flash_attn.models.bigcode import remap_state_dict_hf_bigcode
from flash_attn.models.falcon import remap_state_dict_hf_falcon
from flash_attn.models.gpt_neox import remap_state_dict_hf_gpt_neox
from flash_attn.models.gptj import remap_state_dict_hf_gptj
from flash_attn.models.llama import remap_state_dict_hf_llama
from flash_attn.models.opt import remap_state_dict_hf_opt
from flash_attn.modules.block import Block, ParallelBlock
from flash_attn.modules.embedding import GPT2Embeddings, ParallelGPT2Embeddings
from flash_attn.modules.mha import MHA, ParallelMHA
from flash_attn.modules.mlp import FusedMLP, GatedMlp, Mlp, ParallelFusedMLP, ParallelGatedMlp, ParallelMLP
from flash_attn.ops.activations import gelu_fwd, sqrelu_fwd
from flash_attn.ops.fused_dense import ColumnParallelLinear
from flash_attn.ops.triton.layer_norm import RMSNorm, layer_norm_fn
from flash_attn.utils.distributed import all_gather_raw, sync_shared_params
from flash_attn.utils.generation import GenerationMixin
from flash_attn.utils.pretrained import state_dict_from_pretrained

CausalLMOutput = namedtuple("CausalLMOutput", ["logits"])
_GATES = {"glu": F.sigmoid, "swiglu": F.silu, "geglu": F.gelu}
_TANH = ("gelu_new", "gelu_fast", "gelu_approx", "gelu_pytorch_tanh")
_ACTIVATIONS = dict({"gelu": F.gelu, "relu": F.relu, "sqrelu": sqrelu_fwd}, **{name: gelu_fwd for name in _TANH})


def _of_group(config, process_group):
    return {} if process_group is None else dict(process_group=process_group, sequence_parallel=getattr(config, "sequence_parallel", True))


def create_mixer_cls(config, layer_idx=None, process_group=None, device=None, dtype=None):
    head_dim = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    scale = head_dim ** (-1.0 if getattr(config, "mup_scale_qk_dot_by_d", False) else -0.5) if config.scale_attn_weights else 1.0
    scale *= getattr(config, "mup_attn_multiplier", 1.0) / (layer_idx + 1 if config.scale_attn_by_inverse_layer_idx else 1)
    alone = {} if process_group is not None else dict(fused_bias_fc=getattr(config, "fused_bias_fc", False), dwconv=getattr(config, "attn_dwconv", False))
    return partial(MHA if process_group is None else ParallelMHA, num_heads=config.num_attention_heads, num_heads_kv=getattr(config, "n_head_kv", None),
                   qkv_proj_bias=getattr(config, "qkv_proj_bias", True), out_proj_bias=getattr(config, "out_proj_bias", True), dropout=config.attn_pdrop, softmax_scale=scale,
                   causal=True, layer_idx=layer_idx, rotary_emb_dim=int(getattr(config, "rotary_emb_fraction", 0.0) * head_dim),
                   rotary_emb_base=getattr(config, "rotary_emb_base", 10000.0), rotary_emb_scale_base=getattr(config, "rotary_emb_scale_base", None),
                   rotary_emb_interleaved=getattr(config, "rotary_emb_interleaved", False), use_alibi=getattr(config, "use_alibi", False),
                   window_size=getattr(config, "window_size", (-1, -1)), use_flash_attn=getattr(config, "use_flash_attn", False), **alone,
                   **_of_group(config, process_group), device=device, dtype=dtype)


def create_mlp_cls(config, layer_idx=None, process_group=None, device=None, dtype=None):
    hidden = config.n_inner if config.n_inner is not None else 4 * config.hidden_size
    kind = config.activation_function
    options = dict(hidden_features=hidden, bias1=getattr(config, "mlp_fc1_bias", True), bias2=getattr(config, "mlp_fc2_bias", True), **_of_group(config, process_group),
                   device=device, dtype=dtype)
    if getattr(config, "fused_mlp", False) or getattr(config, "fused_dense_sqrelu_dense", False):
        return partial(FusedMLP if process_group is None else ParallelFusedMLP, activation="gelu_approx" if kind in _TANH else kind, **options)
    if kind in _GATES:
        return partial(GatedMlp if process_group is None else ParallelGatedMlp, activation=_GATES[kind], multiple_of=getattr(config, "mlp_multiple_of", 128), **options)
    if kind not in _ACTIVATIONS:
        raise NotImplementedError("activation_function must be one of %s, not %r" % (", ".join([*_ACTIVATIONS, *_GATES]), kind))
    return partial(Mlp if process_group is None else ParallelMLP, activation=_ACTIVATIONS[kind], **options)


def create_block(config, layer_idx=None, process_group=None, device=None, dtype=None):
    place = dict(device=device, dtype=dtype)
    sequence_parallel = process_group is not None and getattr(config, "sequence_parallel", True)
    options = dict(mixer_cls=create_mixer_cls(config, layer_idx, process_group, **place), mlp_cls=create_mlp_cls(config, layer_idx, process_group, **place),
                   norm_cls=partial(RMSNorm if getattr(config, "rms_norm", False) else nn.LayerNorm, eps=config.layer_norm_epsilon, **place),
                   resid_dropout1=config.resid_pdrop if layer_idx else config.embd_pdrop, resid_dropout2=config.resid_pdrop,
                   fused_dropout_add_ln=getattr(config, "fused_dropout_add_ln", False), residual_in_fp32=getattr(config, "residual_in_fp32", False),
                   sequence_parallel=sequence_parallel, mark_shared_params=process_group is not None)
    if getattr(config, "parallel_block", False):
        block = ParallelBlock(config.hidden_size, tied_norm=getattr(config, "parallel_block_tied_norm", False), **options)
    else:
        block = Block(config.hidden_size, prenorm=getattr(config, "prenorm", True), **options)
    block.layer_idx = layer_idx
    return block


def _init_weights(module, n_layer, initializer_range=0.02, mup_width_scale=1.0, rescale_prenorm_residual=True):
    """Normal weights; those that add to the residual are smaller by the square root of their number."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=initializer_range * math.sqrt(mup_width_scale))
        for bias in () if module.bias is None else (module.bias,):
            nn.init.constant_(bias, 0.0)
    if isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, 0.0, initializer_range)
    for name, parameter in module.named_parameters() if rescale_prenorm_residual else ():
        if name in ("out_proj.weight", "fc2.weight"):
            nn.init.normal_(parameter, std=initializer_range * math.sqrt(mup_width_scale) / math.sqrt(2 * n_layer))


class GPTPreTrainedModel(nn.Module):
    def __init__(self, config, *inputs, **kwargs):
        super().__init__()
        self.config = config

    @classmethod
    def from_pretrained(cls, model_name, config, *args, strict=True, device=None, dtype=None, **kwargs):
        """A model with the weights of transformers' model of that name; the name says the family (_REMAPS)."""
        model = cls(config, *args, device=device, dtype=dtype, **kwargs)
        state = state_dict_from_pretrained(model_name, device="cpu", dtype=dtype)
        remap = next((remap for part, remap in _REMAPS if part in model_name.lower()), None)
        if remap is None:
            raise NotImplementedError("Model %s not supported: its name contains none of %s" % (model_name, ", ".join(part for part, _ in _REMAPS)))
        model.load_state_dict(remap(state, config), strict=strict)
        return model


class GPTModel(GPTPreTrainedModel):
    def __init__(self, config, process_group=None, device=None, dtype=None):
        super().__init__(config)
        place = dict(device=device, dtype=dtype)
        self.process_group, self.sequence_parallel = process_group, getattr(config, "sequence_parallel", True)
        self.embeddings_multiplier, self.prenorm = getattr(config, "mup_embeddings_multiplier", 1.0), getattr(config, "prenorm", True)
        self.parallel_block, self.fused_dropout_add_ln = getattr(config, "parallel_block", False), getattr(config, "fused_dropout_add_ln", False)
        multiple = getattr(config, "pad_vocab_size_multiple", 1)
        sizes = config.hidden_size, -(-config.vocab_size // multiple) * multiple, config.max_position_embeddings
        if process_group is None:
            self.embeddings = GPT2Embeddings(*sizes, word_embed_proj_dim=getattr(config, "word_embed_proj_dim", None), **place)
        else:
            self.embeddings = ParallelGPT2Embeddings(*sizes, **_of_group(config, process_group), **place)
        self.layers = nn.ModuleList([create_block(config, i, process_group, **place) for i in range(config.num_hidden_layers)])
        if getattr(config, "rotary_emb_fraction", 0.0) > 0.0:
            for layer in self.layers[1:]:
                layer.mixer.rotary_emb = self.layers[0].mixer.rotary_emb
        if self.prenorm:
            self.drop_f = nn.Dropout(config.resid_pdrop)
            self.ln_f = (RMSNorm if getattr(config, "rms_norm", False) else nn.LayerNorm)(config.hidden_size, eps=config.layer_norm_epsilon, **place)
            for parameter in self.ln_f.parameters() if process_group is not None else ():
                parameter._shared_params, parameter._sequence_parallel = True, self.sequence_parallel
        self.apply(partial(_init_weights, n_layer=config.num_hidden_layers, initializer_range=config.initializer_range, mup_width_scale=getattr(config, "mup_width_scale", 1.0)))
        self.tie_weights()

    def tie_weights(self):
        """Between the processes of the group; GPTLMHeadModel's also ties the head."""
        if self.process_group is None:
            return
        sync_shared_params(self, self.process_group)

    def allocate_inference_cache(self, batch_size, max_seqlen, dtype=None, **kwargs):
        return {i: layer.allocate_inference_cache(batch_size, max_seqlen, dtype=dtype, **kwargs) for i, layer in enumerate(self.layers)}

    def _finish(self, x, x1, residual):
        """The last dropout, sum and norm."""
        if self.fused_dropout_add_ln:
            return layer_norm_fn(x, self.ln_f.weight, self.ln_f.bias, residual=residual, x1=x1, eps=self.ln_f.eps, dropout_p=self.drop_f.p if self.training else 0.0,
                                 is_rms_norm=isinstance(self.ln_f, RMSNorm))
        total = self.drop_f(x)
        for part in (None if x1 is None else self.drop_f(x1), residual):
            total = total if part is None else total + part
        return self.ln_f(total.to(self.ln_f.weight.dtype))

    def forward(self, input_ids, position_ids=None, inference_params=None):
        flat = self.process_group is not None and self.sequence_parallel
        x = self.embeddings(input_ids, position_ids=position_ids, **(dict(combine_batch_seqlen_dim=True) if flat else {}))
        x = x if self.embeddings_multiplier == 1.0 else x * self.embeddings_multiplier
        options = dict(seqlen=input_ids.shape[1]) if flat else {}
        if inference_params is not None:
            options["inference_params"] = inference_params
        x1 = residual = None
        for layer in self.layers:
            if not self.prenorm:
                x = layer(x, mixer_kwargs=options)
            elif self.parallel_block:
                x, x1, residual = layer(x, x1, residual, mixer_kwargs=options)
            else:
                x, residual = layer(x, residual, mixer_kwargs=options)
        return self._finish(x, x1, residual) if self.prenorm else x


class GPTLMHeadModel(GPTPreTrainedModel, GenerationMixin):
    def __init__(self, config, process_group=None, device=None, dtype=None):
        super().__init__(config)
        place = dict(device=device, dtype=dtype)
        self.process_group = process_group
        self.transformer = GPTModel(config, process_group=process_group, **place)
        self.tie_word_embeddings, self.norm_head = getattr(config, "tie_word_embeddings", True), getattr(config, "norm_head", False)
        multiple, width = getattr(config, "pad_vocab_size_multiple", 1), getattr(config, "word_embed_proj_dim", None)
        self.project_out = None if width is None else nn.Linear(config.n_embd, width, bias=False, **place)
        scale = getattr(config, "mup_width_scale", 1.0)
        self.output_scale = getattr(config, "mup_output_multiplier", 1.0) * scale
        sizes, bias = (config.n_embd if width is None else width, -(-config.vocab_size // multiple) * multiple), getattr(config, "lm_head_bias", False)
        self.lm_head = (nn.Linear(*sizes, bias=bias, **place) if process_group is None else ColumnParallelLinear(*sizes, bias=bias, **_of_group(config, process_group), **place))
        self.apply(partial(_init_weights, n_layer=config.num_hidden_layers, initializer_range=config.initializer_range, mup_width_scale=scale))
        self.tie_weights()

    def tie_weights(self):
        words = self.transformer.embeddings.word_embeddings
        self.lm_head.weight = words.weight if self.tie_word_embeddings else self.lm_head.weight
        if self.process_group is None:
            return
        sync_shared_params(self, self.process_group)

    def allocate_inference_cache(self, batch_size, max_seqlen, dtype=None, **kwargs):
        return self.transformer.allocate_inference_cache(batch_size, max_seqlen, dtype=dtype, **kwargs)

    def forward(self, input_ids, position_ids=None, inference_params=None, num_last_tokens=0):
        """input_ids (B, S) -> logits (B, S, V), of the last tokens only if num_last_tokens > 0."""
        x = self.transformer(input_ids, position_ids=position_ids, inference_params=inference_params)
        x = x[:, -num_last_tokens:] if num_last_tokens > 0 else x
        x = x if self.project_out is None else self.project_out(x)
        x = x if self.output_scale == 1.0 else x * self.output_scale
        logits = F.linear(x, F.normalize(self.lm_head.weight), self.lm_head.bias) if self.norm_head else self.lm_head(x)
        if self.process_group is not None and inference_params is not None:
            parts = all_gather_raw(logits.contiguous(), self.process_group)[0].chunk(torch.distributed.get_world_size(self.process_group))
            logits = torch.cat(parts, dim=-1)
        return CausalLMOutput(logits=logits)


_GPT2_RULES = [(r"(?:transformer\.)?wte\.weight", "transformer.embeddings.word_embeddings.weight"),
               (r"(?:transformer\.)?wpe\.weight", "transformer.embeddings.position_embeddings.weight"),
               (r"(?:transformer\.)?ln_f\.(weight|bias)", r"transformer.ln_f.\1"), (r"(?:transformer\.)?h\.(\d+)\.ln_([12])\.(weight|bias)", r"transformer.layers.\1.norm\2.\3"),
               (r"(?:transformer\.)?h\.(\d+)\.attn\.c_attn\.(weight|bias)", r"transformer.layers.\1.mixer.Wqkv.\2"),
               (r"(?:transformer\.)?h\.(\d+)\.attn\.c_proj\.(weight|bias)", r"transformer.layers.\1.mixer.out_proj.\2"),
               (r"(?:transformer\.)?h\.(\d+)\.mlp\.c_fc\.(weight|bias)", r"transformer.layers.\1.mlp.fc1.\2"),
               (r"(?:transformer\.)?h\.(\d+)\.mlp\.c_proj\.(weight|bias)", r"transformer.layers.\1.mlp.fc2.\2")]


def remap_state_dict_hf_gpt2(state_dict, config):
    """transformers' names and transposed weights -> this package's."""
    found = rename(state_dict, _GPT2_RULES)
    for name in [name for name in found if name.endswith(".weight") and (".mixer." in name or ".mlp." in name)]:
        found[name] = found[name].t()
    found["lm_head.weight"] = found["transformer.embeddings.word_embeddings.weight"]
    pad_vocabulary(found, config)
    return found


def remap_state_dict_megatron(state_dict, config):
    """Megatron-LM's names -> this package's; queries, keys and values come head by head there."""
    found = rename(state_dict, _MEGATRON_RULES)
    for name in [name for name in found if ".mixer.Wqkv." in name]:
        found[name] = found[name].unflatten(0, (config.num_attention_heads, 3, -1)).transpose(0, 1).flatten(0, 2)
    words = "transformer.embeddings.word_embeddings.weight"
    multiple = getattr(config, "pad_vocab_size_multiple", 1)
    found[words] = pad_rows(found[words], -(-found[words].shape[0] // multiple) * multiple)
    found["lm_head.weight"] = found[words]
    return found


_MEGATRON_LAYER = r"(?:language_model\.encoder|transformer)\.layers\.(\d+)\."
_MEGATRON_RULES = [(r"(?:language_model|transformer)\.embedding\.word_embeddings\.weight", "transformer.embeddings.word_embeddings.weight"),
                   (r"wpe\.weight", "transformer.embeddings.position_embeddings.weight"),
                   (r"(?:language_model\.encoder|transformer)\.final_layernorm\.(weight|bias)", r"transformer.ln_f.\1"),
                   (_MEGATRON_LAYER + r"input_layernorm\.(weight|bias)", r"transformer.layers.\1.norm1.\2"),
                   (_MEGATRON_LAYER + r"post_attention_layernorm\.(weight|bias)", r"transformer.layers.\1.norm2.\2"),
                   (_MEGATRON_LAYER + r"mlp\.dense_h_to_4h\.(weight|bias)", r"transformer.layers.\1.mlp.fc1.\2"),
                   (_MEGATRON_LAYER + r"mlp\.dense_4h_to_h\.(weight|bias)", r"transformer.layers.\1.mlp.fc2.\2"),
                   (_MEGATRON_LAYER + r"self_attention\.query_key_value\.(weight|bias)", r"transformer.layers.\1.mixer.Wqkv.\2"),
                   (_MEGATRON_LAYER + r"self_attention\.dense\.(weight|bias)", r"transformer.layers.\1.mixer.out_proj.\2"),
                   (_MEGATRON_LAYER + r"self_attention\.rotary_emb\.inv_freq", r"transformer.layers.\1.mixer.rotary_emb.inv_freq")]
_REMAPS = [("gpt2", remap_state_dict_hf_gpt2), ("gpt-j", remap_state_dict_hf_gptj), ("neox", remap_state_dict_hf_gpt_neox), ("pythia", remap_state_dict_hf_gpt_neox),
           ("llama", remap_state_dict_hf_llama), ("opt-", remap_state_dict_hf_opt), ("falcon", remap_state_dict_hf_falcon), ("bigcode", remap_state_dict_hf_bigcode),
           ("starcoder", remap_state_dict_hf_bigcode), ("wizardcoder", remap_state_dict_hf_bigcode), ("santacoder", remap_state_dict_hf_bigcode)]
