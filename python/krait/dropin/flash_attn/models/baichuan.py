"""Baichuan as GPTLMHeadModel: configuration and weights of its models on the hub."""

from transformers import GPT2Config

from flash_attn.models._names import join, pad_rows, rename

_LAYER = r"model\.layers\.(\d+)\."
_RULES = [(r"model\.embed_tokens\.weight", "transformer.embeddings.word_embeddings.weight"), (r"model\.norm\.weight", "transformer.ln_f.weight"), (r"lm_head\.weight", "lm_head.weight"),
          (_LAYER + r"input_layernorm\.weight", r"transformer.layers.\1.norm1.weight"), (_LAYER + r"post_attention_layernorm\.weight", r"transformer.layers.\1.norm2.weight"),
          (_LAYER + r"self_attn\.W_pack\.weight", r"transformer.layers.\1.mixer.Wqkv.weight"), (_LAYER + r"self_attn\.o_proj\.weight", r"transformer.layers.\1.mixer.out_proj.weight"),
          (_LAYER + r"mlp\.(gate|up)_proj\.weight", r"transformer.layers.\1.mlp.\2"), (_LAYER + r"mlp\.down_proj\.weight", r"transformer.layers.\1.mlp.fc2.weight")]
_WIDEST_WITH_ROTARY = 5000   # the configuration says neither: 7B models rotate, 13B models have ALiBi;
_MOST_WORDS_OF_FIRST = 70000  # and the second generation, with more words, normalises the head's rows


def remap_state_dict_hf_baichuan(state_dict, config):
    """The hub's names -> this package's. Shards have embeddings of other sizes than the configuration's, so sizes are the tensors' own."""
    found, words = rename(state_dict, _RULES), "transformer.embeddings.word_embeddings.weight"
    join(found, "transformer.layers.%s.mlp.%s", ("up", "gate"), "transformer.layers.%d.mlp.fc1.weight")
    if config.tie_word_embeddings:
        found["lm_head.weight"] = found[words]
    multiple = getattr(config, "pad_vocab_size_multiple", 1)
    for name in (words, "lm_head.weight"):
        found[name] = pad_rows(found[name], -(-found[name].shape[0] // multiple) * multiple)
    return found


def baichuan_config_to_gpt2_config(baichuan_config):
    rotary = baichuan_config.hidden_size < _WIDEST_WITH_ROTARY
    return GPT2Config(vocab_size=baichuan_config.vocab_size, n_positions=0, n_embd=baichuan_config.hidden_size, n_layer=baichuan_config.num_hidden_layers,
                      n_head=baichuan_config.num_attention_heads, n_inner=baichuan_config.intermediate_size, activation_function="swiglu", resid_pdrop=0.0, embd_pdrop=0.0,
                      attn_pdrop=0.0, layer_norm_epsilon=baichuan_config.rms_norm_eps, initializer_range=baichuan_config.initializer_range,
                      bos_token_id=baichuan_config.bos_token_id, eos_token_id=baichuan_config.eos_token_id, pad_token_id=baichuan_config.pad_token_id, rms_norm=True,
                      rotary_emb_fraction=1.0 if rotary else 0.0, rotary_emb_interleaved=False, use_alibi=not rotary, use_flash_attn=not rotary, tie_word_embeddings=False,
                      norm_head=baichuan_config.vocab_size > _MOST_WORDS_OF_FIRST, qkv_proj_bias=False, out_proj_bias=False, mlp_fc1_bias=False, mlp_fc2_bias=False)
