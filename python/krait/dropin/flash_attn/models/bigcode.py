"""GPTBigCode (SantaCoder, StarCoder) as GPTLMHeadModel: configuration and weights of transformers."""

import torch
from transformers import GPT2Config, GPTBigCodeConfig  # noqa: F401

from flash_attn.models._names import pad_vocabulary, rename

_LAYER = r"transformer\.h\.(\d+)\."
_RULES = [(r"transformer\.wte\.weight", "transformer.embeddings.word_embeddings.weight"), (r"transformer\.wpe\.weight", "transformer.embeddings.position_embeddings.weight"),
          (r"transformer\.ln_f\.(weight|bias)", r"transformer.ln_f.\1"), (_LAYER + r"ln_([12])\.(weight|bias)", r"transformer.layers.\1.norm\2.\3"),
          (_LAYER + r"attn\.c_attn\.(weight|bias)", r"transformer.layers.\1.mixer.Wqkv.\2"), (_LAYER + r"attn\.c_proj\.(weight|bias)", r"transformer.layers.\1.mixer.out_proj.\2"),
          (_LAYER + r"mlp\.c_fc\.(weight|bias)", r"transformer.layers.\1.mlp.fc1.\2"), (_LAYER + r"mlp\.c_proj\.(weight|bias)", r"transformer.layers.\1.mlp.fc2.\2")]
_WAY_BACK = [(r"transformer\.embeddings\.word_embeddings\.weight", "transformer.wte.weight"), (r"transformer\.embeddings\.position_embeddings\.weight", "transformer.wpe.weight"),
             (r"(transformer\.ln_f\.(?:weight|bias))", r"\1"), (r"transformer\.layers\.(\d+)\.norm([12])\.(weight|bias)", r"transformer.h.\1.ln_\2.\3"),
             (r"transformer\.layers\.(\d+)\.mixer\.Wqkv\.(weight|bias)", r"transformer.h.\1.attn.c_attn.\2"),
             (r"transformer\.layers\.(\d+)\.mixer\.out_proj\.(weight|bias)", r"transformer.h.\1.attn.c_proj.\2"),
             (r"transformer\.layers\.(\d+)\.mlp\.fc1\.(weight|bias)", r"transformer.h.\1.mlp.c_fc.\2"), (r"transformer\.layers\.(\d+)\.mlp\.fc2\.(weight|bias)", r"transformer.h.\1.mlp.c_proj.\2")]


def remap_state_dict_hf_bigcode(state_dict, config):
    """transformers' names -> this package's: the one head of keys and values is repeated for every query."""
    assert config.multi_query, "only models with multi_query"
    found, head_dim = rename(state_dict, _RULES), config.n_embd // config.n_head
    for name in [name for name in found if ".mixer.Wqkv." in name]:
        q, k, v = found[name].split([config.n_embd, head_dim, head_dim])
        found[name] = torch.cat([q] + [k] * config.n_head + [v] * config.n_head)
    found["lm_head.weight"] = found["transformer.embeddings.word_embeddings.weight"]
    pad_vocabulary(found, config)
    return found


def inv_remap_state_dict_hf_bigcode(state_dict, config):
    """The way back."""
    found, head_dim = rename(state_dict, _WAY_BACK), config.n_embd // config.n_head
    for name in [name for name in found if ".attn.c_attn." in name]:
        q, k, v = found[name].chunk(3)
        found[name] = torch.cat([q, k[:head_dim], v[:head_dim]])
    found["transformer.wte.weight"] = found["transformer.wte.weight"][:config.vocab_size]
    found["lm_head.weight"] = found["transformer.wte.weight"]
    return found


_TAKEN = ("activation_function", "attn_pdrop", "bos_token_id", "embd_pdrop", "eos_token_id", "initializer_range", "layer_norm_epsilon", "multi_query", "n_embd", "n_head", "n_inner",
          "n_layer", "n_positions", "resid_pdrop", "scale_attn_weights", "use_cache", "vocab_size")


def bigcode_config_to_gpt2_config(bigcode_config):
    return GPT2Config(**{name: getattr(bigcode_config, name) for name in _TAKEN})
