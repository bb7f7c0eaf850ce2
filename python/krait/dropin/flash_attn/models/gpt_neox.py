"""GPT-NeoX as GPTLMHeadModel: configuration and weights of transformers."""

import re

from transformers import GPT2Config, GPTNeoXConfig  # noqa: F401

from flash_attn.models._names import pad_vocabulary, rename

_LAYER = r"gpt_neox\.layers\.(\d+)\."
_RULES = [(r"gpt_neox\.embed_in\.weight", "transformer.embeddings.word_embeddings.weight"), (r"gpt_neox\.final_layer_norm\.(weight|bias)", r"transformer.ln_f.\1"),
          (r"(?:embed_out|lm_head)\.weight", "lm_head.weight"), (_LAYER + r"input_layernorm\.(weight|bias)", r"transformer.layers.\1.norm1.\2"),
          (_LAYER + r"post_attention_layernorm\.(weight|bias)", r"transformer.layers.\1.norm2.\2"),
          (_LAYER + r"attention\.query_key_value\.(weight|bias)", r"transformer.layers.\1.mixer.Wqkv.\2"),
          (_LAYER + r"attention\.dense\.(weight|bias)", r"transformer.layers.\1.mixer.out_proj.\2"),
          (_LAYER + r"mlp\.dense_h_to_4h\.(weight|bias)", r"transformer.layers.\1.mlp.fc1.\2"),
          (_LAYER + r"mlp\.dense_4h_to_h\.(weight|bias)", r"transformer.layers.\1.mlp.fc2.\2")]


def remap_state_dict_hf_gpt_neox(state_dict, config):
    """transformers' names -> this package's; queries, keys and values come head by head there."""
    found = rename(state_dict, _RULES)
    for name in [name for name in found if re.search(r"Wqkv\.", name)]:
        found[name] = found[name].unflatten(0, (config.n_head, 3, -1)).transpose(0, 1).flatten(0, 2)
    pad_vocabulary(found, config)
    return found


def gpt_neox_config_to_gpt2_config(gpt_neox_config):
    rope = getattr(gpt_neox_config, "rope_parameters", None) or {}
    fraction = rope.get("partial_rotary_factor") or getattr(gpt_neox_config, "rotary_pct", 0.25)
    return GPT2Config(vocab_size=gpt_neox_config.vocab_size, n_positions=0, n_embd=gpt_neox_config.hidden_size, n_layer=gpt_neox_config.num_hidden_layers,
                      n_head=gpt_neox_config.num_attention_heads, n_inner=gpt_neox_config.intermediate_size, activation_function=gpt_neox_config.hidden_act,
                      resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, layer_norm_epsilon=gpt_neox_config.layer_norm_eps,
                      initializer_range=gpt_neox_config.initializer_range, bos_token_id=gpt_neox_config.bos_token_id, eos_token_id=gpt_neox_config.eos_token_id,
                      prenorm=True, parallel_block=gpt_neox_config.use_parallel_residual, parallel_block_tied_norm=False, rotary_emb_fraction=fraction,
                      tie_word_embeddings=gpt_neox_config.tie_word_embeddings)
