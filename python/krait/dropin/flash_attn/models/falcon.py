"""Falcon as GPTLMHeadModel: configuration and weights of transformers."""

import torch
from transformers import FalconConfig, GPT2Config  # noqa: F401

from flash_attn.models._names import pad_vocabulary, rename

_LAYER = r"transformer\.h\.(\d+)\."
_RULES = [(r"transformer\.word_embeddings\.weight", "transformer.embeddings.word_embeddings.weight"), (r"transformer\.ln_f\.(weight|bias)", r"transformer.ln_f.\1"),
          (r"lm_head\.(weight|bias)", r"lm_head.\1"), (_LAYER + r"(?:input_layernorm|ln_attn)\.(weight|bias)", r"transformer.layers.\1.norm1.\2"),
          (_LAYER + r"(?:post_attention_layernorm|ln_mlp)\.(weight|bias)", r"transformer.layers.\1.norm2.\2"),
          (_LAYER + r"self_attention\.query_key_value\.(weight|bias)", r"transformer.layers.\1.mixer.Wqkv.\2"),
          (_LAYER + r"self_attention\.dense\.(weight|bias)", r"transformer.layers.\1.mixer.out_proj.\2"),
          (_LAYER + r"mlp\.dense_h_to_4h\.(weight|bias)", r"transformer.layers.\1.mlp.fc1.\2"),
          (_LAYER + r"mlp\.dense_4h_to_h\.(weight|bias)", r"transformer.layers.\1.mlp.fc2.\2")]


def remap_state_dict_hf_falcon(state_dict, config):
    """transformers' names -> this package's; there each group of queries is followed by its key and value."""
    found, groups = rename(state_dict, _RULES), getattr(config, "n_head_kv", 1)
    for name in [name for name in found if ".mixer.Wqkv." in name]:
        heads = found[name].unflatten(0, (groups, config.n_head // groups + 2, -1))
        found[name] = torch.cat([heads[:, :-2].flatten(0, 2), heads[:, -2].flatten(0, 1), heads[:, -1].flatten(0, 1)])
    if config.tie_word_embeddings:
        found["lm_head.weight"] = found["transformer.embeddings.word_embeddings.weight"]
    pad_vocabulary(found, config, bias="lm_head.bias")
    return found


def _keys_of(config):
    """The number of heads of keys and values, in the configurations of Falcon's authors and of transformers."""
    if getattr(config, "n_head_kv", None) is not None:
        return config.n_head_kv
    if getattr(config, "new_decoder_architecture", False):
        return config.num_kv_heads
    return 1 if getattr(config, "multi_query", False) else config.num_attention_heads


def falcon_config_to_gpt2_config(falcon_config):
    keys = _keys_of(falcon_config)
    n_norms = getattr(falcon_config, "num_ln_in_parallel_attn", None) or (1 if keys == 1 else 2)
    return GPT2Config(vocab_size=falcon_config.vocab_size, n_positions=0, n_embd=falcon_config.hidden_size, n_layer=falcon_config.num_hidden_layers,
                      n_head=falcon_config.num_attention_heads, n_inner=falcon_config.hidden_size * 4, activation_function="gelu",
                      resid_pdrop=falcon_config.hidden_dropout, embd_pdrop=0.0, attn_pdrop=falcon_config.attention_dropout,
                      layer_norm_epsilon=falcon_config.layer_norm_epsilon, initializer_range=falcon_config.initializer_range,
                      bos_token_id=falcon_config.bos_token_id, eos_token_id=falcon_config.eos_token_id, parallel_block=falcon_config.parallel_attn, n_head_kv=keys,
                      parallel_block_tied_norm=n_norms == 1, rotary_emb_fraction=1.0, rotary_emb_interleaved=False, tie_word_embeddings=True,
                      qkv_proj_bias=falcon_config.bias, out_proj_bias=falcon_config.bias, mlp_fc1_bias=falcon_config.bias, mlp_fc2_bias=falcon_config.bias,
                      lm_head_bias=False)
