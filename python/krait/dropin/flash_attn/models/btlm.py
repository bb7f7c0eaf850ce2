"""BTLM as GPTLMHeadModel: configuration and weights of its model on the hub."""

from transformers import GPT2Config

from flash_attn.models._names import join, pad_vocabulary, rename

_LAYER = r"transformer\.h\.(\d+)\."
_RULES = [(r"transformer\.wte\.weight", "transformer.embeddings.word_embeddings.weight"), (r"transformer\.wpe\.weight", "transformer.embeddings.position_embeddings.weight"),
          (r"transformer\.ln_f\.(weight|bias)", r"transformer.ln_f.\1"), (_LAYER + r"ln_([12])\.(weight|bias)", r"transformer.layers.\1.norm\2.\3"),
          (_LAYER + r"attn\.c_attn\.(weight|bias)", r"transformer.layers.\1.mixer.Wqkv.\2"), (_LAYER + r"attn\.c_proj\.(weight|bias)", r"transformer.layers.\1.mixer.out_proj.\2"),
          (_LAYER + r"mlp\.c_fc\.(weight|bias)", r"transformer.layers.\1.mlp.values.\2"), (_LAYER + r"mlp\.c_fc2\.(weight|bias)", r"transformer.layers.\1.mlp.gates.\2"),
          (_LAYER + r"mlp\.c_proj\.(weight|bias)", r"transformer.layers.\1.mlp.fc2.\2")]


def remap_state_dict_hf_btlm(state_dict, config):
    """The hub's names and transposed weights -> this package's; the slopes of ALiBi are not kept."""
    found = rename(state_dict, _RULES)
    for name in [name for name in found if name.endswith(".weight") and (".mixer." in name or ".mlp." in name)]:
        found[name] = found[name].t()
    for kind in ("weight", "bias"):
        join(found, "transformer.layers.%s.mlp.%s." + kind, ("values", "gates"), "transformer.layers.%d.mlp.fc1." + kind)
    found["lm_head.weight"] = found["transformer.embeddings.word_embeddings.weight"]
    pad_vocabulary(found, config)
    return found


def btlm_config_to_gpt2_config(btlm_config):
    alibi = btlm_config.position_embedding_type == "alibi"
    return GPT2Config(vocab_size=btlm_config.vocab_size, n_positions=0 if alibi else btlm_config.n_positions, n_embd=btlm_config.hidden_size,
                      n_layer=btlm_config.num_hidden_layers, n_head=btlm_config.num_attention_heads, n_inner=btlm_config.n_inner,
                      activation_function=btlm_config.activation_function, resid_pdrop=btlm_config.resid_pdrop, embd_pdrop=btlm_config.embd_pdrop,
                      attn_pdrop=btlm_config.attn_pdrop, layer_norm_epsilon=btlm_config.layer_norm_epsilon, initializer_range=btlm_config.initializer_range,
                      bos_token_id=btlm_config.bos_token_id, eos_token_id=btlm_config.eos_token_id, use_alibi=alibi, use_flash_attn=alibi,
                      mup_width_scale=btlm_config.mup_width_scale, mup_embeddings_multiplier=btlm_config.mup_embeddings_scale,
                      mup_output_multiplier=btlm_config.mup_output_alpha, mup_scale_qk_dot_by_d=btlm_config.mup_scale_qk_dot_by_d, mlp_multiple_of=1)
