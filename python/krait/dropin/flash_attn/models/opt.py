"""OPT as GPTLMHeadModel: configuration and weights of transformers."""

from transformers import GPT2Config, OPTConfig  # noqa: F401

from flash_attn.models._names import join, pad_vocabulary, rename

_MODEL = r"(?:model\.)?decoder\."
_LAYER = _MODEL + r"layers\.(\d+)\."
_RULES = [(_MODEL + r"embed_tokens\.weight", "transformer.embeddings.word_embeddings.weight"),
          (_MODEL + r"embed_positions\.weight", "transformer.embeddings.position_embeddings.weight"),
          (_MODEL + r"project_in\.weight", "transformer.embeddings.project_in.weight"), (_MODEL + r"project_out\.weight", "project_out.weight"),
          (_MODEL + r"(?:final_)?layer_norm\.(weight|bias)", r"transformer.ln_f.\1"),
          (_LAYER + r"self_attn_layer_norm\.(weight|bias)", r"transformer.layers.\1.norm1.\2"), (_LAYER + r"final_layer_norm\.(weight|bias)", r"transformer.layers.\1.norm2.\2"),
          (_LAYER + r"self_attn\.([qkv])_proj\.(weight|bias)", r"transformer.layers.\1.mixer.\2.\3"),
          (_LAYER + r"self_attn\.out_proj\.(weight|bias)", r"transformer.layers.\1.mixer.out_proj.\2"), (_LAYER + r"fc([12])\.(weight|bias)", r"transformer.layers.\1.mlp.fc\2.\3")]
_PADDING_POSITIONS = 2  # rows before position 0


def remap_state_dict_hf_opt(state_dict, config):
    """transformers' names -> this package's."""
    found = rename(state_dict, _RULES)
    for kind in ("weight", "bias"):
        join(found, "transformer.layers.%s.mixer.%s." + kind, ("q", "k", "v"), "transformer.layers.%d.mixer.Wqkv." + kind)
    found["transformer.embeddings.position_embeddings.weight"] = found["transformer.embeddings.position_embeddings.weight"][_PADDING_POSITIONS:]
    found["lm_head.weight"] = found["transformer.embeddings.word_embeddings.weight"]
    pad_vocabulary(found, config)
    return found


def opt_config_to_gpt2_config(opt_config):
    assert opt_config.layerdrop == 0.0 and opt_config.layer_norm_elementwise_affine, "OPT: layers are neither dropped nor normed without weights"
    width = opt_config.word_embed_proj_dim
    return GPT2Config(vocab_size=opt_config.vocab_size, n_positions=opt_config.max_position_embeddings, n_embd=opt_config.hidden_size,
                      n_layer=opt_config.num_hidden_layers, n_head=opt_config.num_attention_heads, n_inner=opt_config.ffn_dim,
                      activation_function=opt_config.activation_function, resid_pdrop=opt_config.dropout, embd_pdrop=opt_config.dropout,
                      attn_pdrop=opt_config.attention_dropout, initializer_range=opt_config.init_std, bos_token_id=opt_config.bos_token_id,
                      eos_token_id=opt_config.eos_token_id, prenorm=opt_config.do_layer_norm_before,
                      word_embed_proj_dim=None if width == opt_config.hidden_size else width)
