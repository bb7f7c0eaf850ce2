"""GPT-J as GPTLMHeadModel: configuration and weights of transformers."""

from transformers import GPT2Config, GPTJConfig  # noqa: F401

from flash_attn.models._names import join, pad_vocabulary, rename

_LAYER = r"transformer\.h\.(\d+)\."
_RULES = [(r"transformer\.wte\.weight", "transformer.embeddings.word_embeddings.weight"), (r"transformer\.ln_f\.(weight|bias)", r"transformer.ln_f.\1"),
          (r"lm_head\.(weight|bias)", r"lm_head.\1"), (_LAYER + r"ln_1\.(weight|bias)", r"transformer.layers.\1.norm1.\2"),
          (_LAYER + r"attn\.out_proj\.weight", r"transformer.layers.\1.mixer.out_proj.weight"), (_LAYER + r"attn\.([qkv])_proj\.weight", r"transformer.layers.\1.mixer.\2"),
          (_LAYER + r"mlp\.fc_in\.(weight|bias)", r"transformer.layers.\1.mlp.fc1.\2"), (_LAYER + r"mlp\.fc_out\.(weight|bias)", r"transformer.layers.\1.mlp.fc2.\2")]


def remap_state_dict_hf_gptj(state_dict, config):
    """transformers' names -> this package's."""
    found = rename(state_dict, _RULES)
    join(found, "transformer.layers.%s.mixer.%s", ("q", "k", "v"), "transformer.layers.%d.mixer.Wqkv.weight")
    pad_vocabulary(found, config)
    return found


def gptj_config_to_gpt2_config(gptj_config):
    return GPT2Config(vocab_size=gptj_config.vocab_size, n_positions=0, n_embd=gptj_config.n_embd, n_layer=gptj_config.n_layer, n_head=gptj_config.n_head,
                      n_inner=gptj_config.n_inner, activation_function=gptj_config.activation_function, resid_pdrop=gptj_config.resid_pdrop,
                      embd_pdrop=gptj_config.embd_pdrop, attn_pdrop=gptj_config.attn_pdrop, layer_norm_epsilon=gptj_config.layer_norm_epsilon,
                      initializer_range=gptj_config.initializer_range, bos_token_id=gptj_config.bos_token_id, eos_token_id=gptj_config.eos_token_id, prenorm=True,
                      parallel_block=True, parallel_block_tied_norm=True, rotary_emb_fraction=gptj_config.rotary_dim / (gptj_config.n_embd // gptj_config.n_head),
                      rotary_emb_interleaved=True, tie_word_embeddings=False, qkv_proj_bias=False, out_proj_bias=False, lm_head_bias=True)
