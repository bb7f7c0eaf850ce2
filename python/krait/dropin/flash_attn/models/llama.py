"""Llama models as GPTLMHeadModel: configuration and weights of transformers."""

import json
from pathlib import Path

import torch
from transformers import GPT2Config, LlamaConfig  # noqa: F401

from flash_attn.models._names import join, pad_rows, pad_vocabulary, rename

_LAYER = r"model\.layers\.(\d+)\."
_RULES = [(r"model\.embed_tokens\.weight", "transformer.embeddings.word_embeddings.weight"), (r"model\.norm\.weight", "transformer.ln_f.weight"),
          (r"lm_head\.weight", "lm_head.weight"), (_LAYER + r"input_layernorm\.weight", r"transformer.layers.\1.norm1.weight"),
          (_LAYER + r"post_attention_layernorm\.weight", r"transformer.layers.\1.norm2.weight"),
          (_LAYER + r"self_attn\.o_proj\.weight", r"transformer.layers.\1.mixer.out_proj.weight"),
          (_LAYER + r"self_attn\.([qkv])_proj\.weight", r"transformer.layers.\1.mixer.\2"), (_LAYER + r"mlp\.down_proj\.weight", r"transformer.layers.\1.mlp.fc2.weight"),
          (_LAYER + r"mlp\.(gate|up)_proj\.weight", r"transformer.layers.\1.mlp.\2")]


def _in_pairs(weight, head_dim):
    """Rows of each head from halves, as transformers rotates them, to neighbours."""
    return weight.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)


def _in_halves(weight, head_dim):
    return weight.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)


def remap_state_dict_hf_llama(state_dict, config):
    """transformers' names and layout -> this package's."""
    found, head_dim = rename(state_dict, _RULES), config.n_embd // config.n_head
    join(found, "transformer.layers.%s.mixer.%s", ("q", "k", "v"), "transformer.layers.%d.mixer.Wqkv.weight", lambda part, t: t if part == "v" else _in_pairs(t, head_dim))
    join(found, "transformer.layers.%s.mlp.%s", ("up", "gate"), "transformer.layers.%d.mlp.fc1.weight")
    found.setdefault("lm_head.weight", found["transformer.embeddings.word_embeddings.weight"])
    pad_vocabulary(found, config)
    return found


def inv_remap_state_dict_hf_llama(state_dict, config):
    """The way back."""
    head_dim, found = config.n_embd // config.n_head, {}
    keys = (getattr(config, "n_head_kv", None) or config.n_head) * head_dim
    for name, tensor in state_dict.items():
        parts = name.split(".")
        if name.endswith("word_embeddings.weight") or name == "lm_head.weight":
            found["lm_head.weight" if name == "lm_head.weight" else "model.embed_tokens.weight"] = tensor[:config.vocab_size]
        elif name == "transformer.ln_f.weight":
            found["model.norm.weight"] = tensor
        elif parts[:2] == ["transformer", "layers"]:
            layer, place = "model.layers.%s." % parts[2], ".".join(parts[3:])
            if place == "mixer.Wqkv.weight":
                q, k, v = tensor.split([config.n_embd, keys, keys])
                found.update({layer + "self_attn.q_proj.weight": _in_halves(q, head_dim), layer + "self_attn.k_proj.weight": _in_halves(k, head_dim),
                              layer + "self_attn.v_proj.weight": v})
            elif place == "mlp.fc1.weight":
                found[layer + "mlp.up_proj.weight"], found[layer + "mlp.gate_proj.weight"] = tensor.chunk(2)
            else:
                plain = {"mixer.out_proj.weight": "self_attn.o_proj.weight", "mlp.fc2.weight": "mlp.down_proj.weight", "norm1.weight": "input_layernorm.weight",
                         "norm2.weight": "post_attention_layernorm.weight"}
                found[layer + plain[place]] = tensor
    return found


def llama_config_to_gpt2_config(llama_config):
    rope = getattr(llama_config, "rope_parameters", None) or {}
    return GPT2Config(vocab_size=llama_config.vocab_size, n_positions=0, n_embd=llama_config.hidden_size, n_layer=llama_config.num_hidden_layers,
                      n_head=llama_config.num_attention_heads, n_inner=llama_config.intermediate_size, activation_function="swiglu", resid_pdrop=0.0, embd_pdrop=0.0,
                      attn_pdrop=0.0, layer_norm_epsilon=llama_config.rms_norm_eps, initializer_range=llama_config.initializer_range,
                      bos_token_id=llama_config.bos_token_id, eos_token_id=llama_config.eos_token_id, pad_token_id=llama_config.pad_token_id, rms_norm=True,
                      rotary_emb_fraction=1.0, rotary_emb_interleaved=True, tie_word_embeddings=False, qkv_proj_bias=False, out_proj_bias=False, mlp_fc1_bias=False,
                      mlp_fc2_bias=False, rotary_emb_base=getattr(llama_config, "rotary_emb_base", None) or rope.get("rope_theta") or getattr(llama_config, "rope_theta", None) or 10000.0,
                      n_head_kv=llama_config.num_key_value_heads)


_META_LAYER = r"layers\.(\d+)\."
_META_RULES = [(r"tok_embeddings\.weight", "transformer.embeddings.word_embeddings.weight"), (r"norm\.weight", "transformer.ln_f.weight"), (r"output\.weight", "lm_head.weight"),
               (_META_LAYER + r"attention_norm\.weight", r"transformer.layers.\1.norm1.weight"), (_META_LAYER + r"ffn_norm\.weight", r"transformer.layers.\1.norm2.weight"),
               (_META_LAYER + r"attention\.w([qkv])\.weight", r"transformer.layers.\1.mixer.\2"), (_META_LAYER + r"attention\.wo\.weight", r"transformer.layers.\1.mixer.out_proj.weight"),
               (_META_LAYER + r"feed_forward\.w([13])\.weight", r"transformer.layers.\1.mlp.w\2"), (_META_LAYER + r"feed_forward\.w2\.weight", r"transformer.layers.\1.mlp.fc2.weight")]


def remap_state_dict_meta_llama(state_dict, config):
    """The names of the authors' checkpoints, or of one shard of these -> this package's."""
    found, words = rename(state_dict, _META_RULES), "transformer.embeddings.word_embeddings.weight"
    join(found, "transformer.layers.%s.mixer.%s", ("q", "k", "v"), "transformer.layers.%d.mixer.Wqkv.weight")
    join(found, "transformer.layers.%s.mlp.w%s", ("3", "1"), "transformer.layers.%d.mlp.fc1.weight")
    if config.tie_word_embeddings:
        found["lm_head.weight"] = found[words]
    multiple = getattr(config, "pad_vocab_size_multiple", 1)
    for name in (words, "lm_head.weight"):
        found[name] = pad_rows(found[name], -(-found[name].shape[0] // multiple) * multiple)
    return found


def _n_words(folder):
    """Of the tokenizer, without which params.json does not say it."""
    path = folder / "tokenizer.model"
    if not path.is_file():
        return 32000
    from sentencepiece import SentencePieceProcessor
    return SentencePieceProcessor(str(path)).vocab_size()


def config_from_meta_checkpoint(checkpoint_path, model_name):
    folder = Path(checkpoint_path) / model_name
    params = json.loads((folder / "params.json").read_text(encoding="utf-8"))
    inner = int((params.get("ffn_dim_multiplier") or 1) * int(8 * params["dim"] / 3))
    multiple = params.get("multiple_of", 1)
    config = LlamaConfig(hidden_size=params["dim"], intermediate_size=-(-inner // multiple) * multiple, num_attention_heads=params["n_heads"],
                         num_hidden_layers=params["n_layers"], rms_norm_eps=params["norm_eps"], num_key_value_heads=params.get("n_kv_heads"), vocab_size=_n_words(folder))
    if "rope_theta" in params:
        config.rotary_emb_base = params["rope_theta"]
    return config


def config_from_hf_checkpoint(checkpoint_path, model_name):
    return LlamaConfig.from_pretrained(Path(checkpoint_path) / (model_name + "-hf") / "config.json")


def config_from_checkpoint(checkpoint_path, model_name, checkpoint_format="meta"):
    return (config_from_meta_checkpoint if checkpoint_format == "meta" else config_from_hf_checkpoint)(checkpoint_path, model_name)


def state_dicts_from_checkpoint(checkpoint_path, model_name):
    """The shards, in their order."""
    return [torch.load(path, map_location="cpu", weights_only=True) for path in sorted((Path(checkpoint_path) / model_name).glob("consolidated.*.pth"))]
