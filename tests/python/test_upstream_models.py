"""flash_attn.models beside transformers' models of the same weights, or beside equations where transformers has none."""

import json
import math

import pytest
import torch
import torch.nn.functional as F

transformers = pytest.importorskip("transformers")


def _near(found, expected, bound=2e-5):
    assert (found - expected).abs().max() <= bound * expected.abs().max(), (found - expected).abs().max() / expected.abs().max()


def _load(theirs, change, remap):
    from flash_attn.models.gpt import GPTLMHeadModel
    config = change(theirs.config)
    config.use_flash_attn, config.pad_vocab_size_multiple = True, 8
    ours = GPTLMHeadModel(config).eval()
    ours.load_state_dict(remap(theirs.state_dict(), config))
    return ours


_OPT = dict(vocab_size=90, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, ffn_dim=96, max_position_embeddings=40, init_std=0.2)
_FALCON = dict(vocab_size=90, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, initializer_range=0.2, alibi=False, parallel_attn=True)
_BIGCODE = dict(vocab_size=90, n_positions=40, n_embd=64, n_layer=2, n_head=4, initializer_range=0.2)
MODELS = {
    "opt": ("OPTForCausalLM", lambda: transformers.OPTConfig(word_embed_proj_dim=64, **_OPT)),
    "opt after, projected": ("OPTForCausalLM", lambda: transformers.OPTConfig(word_embed_proj_dim=32, do_layer_norm_before=False, **_OPT)),
    "falcon of one key": ("FalconForCausalLM", lambda: transformers.FalconConfig(multi_query=True, **_FALCON)),
    "falcon with biases": ("FalconForCausalLM", lambda: transformers.FalconConfig(multi_query=True, bias=True, **_FALCON)),
    "falcon of groups": ("FalconForCausalLM", lambda: transformers.FalconConfig(new_decoder_architecture=True, num_kv_heads=2, **_FALCON)),
    "bigcode": ("GPTBigCodeForCausalLM", lambda: transformers.GPTBigCodeConfig(multi_query=True, **_BIGCODE))}


@pytest.mark.parametrize("kind", MODELS)
def test_language_models(kind):
    from flash_attn.models import bigcode, falcon, gpt, opt
    name, config = MODELS[kind]
    change, remap = {"OPT": (opt.opt_config_to_gpt2_config, opt.remap_state_dict_hf_opt), "Fal": (falcon.falcon_config_to_gpt2_config, falcon.remap_state_dict_hf_falcon),
                     "GPT": (bigcode.bigcode_config_to_gpt2_config, gpt.remap_state_dict_hf_bigcode)}[name[:3]]
    theirs = getattr(transformers, name)(config()).eval()
    ours, ids = _load(theirs, change, remap), torch.randint(4, 90, (2, 9))
    with torch.no_grad():
        _near(ours(ids).logits[..., :90], theirs(ids).logits)
        longer = ids
        for _ in range(3):
            longer = torch.cat([longer, theirs(longer).logits[:, -1:].argmax(-1)], dim=1)
        assert torch.equal(ours.generate(ids, 12, vocab_size=90), longer)


def test_bigcode_there_and_back():
    from flash_attn.models import bigcode
    theirs = transformers.GPTBigCodeForCausalLM(transformers.GPTBigCodeConfig(multi_query=True, **_BIGCODE))
    state, config = theirs.state_dict(), bigcode.bigcode_config_to_gpt2_config(theirs.config)
    config.pad_vocab_size_multiple = 8
    back = bigcode.inv_remap_state_dict_hf_bigcode(bigcode.remap_state_dict_hf_bigcode(state, config), config)
    assert set(back) == set(state) and all(torch.equal(back[name], state[name]) for name in state)


def _llama(**options):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=90, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, initializer_range=0.2, **options)).eval()


def test_llama_of_its_authors(tmp_path):
    """A checkpoint of two shards with params.json."""
    from flash_attn.models import gpt, llama
    theirs = _llama(intermediate_size=256, num_key_value_heads=2)
    place = tmp_path / "small"
    place.mkdir()
    (place / "params.json").write_text(json.dumps(dict(dim=64, n_heads=4, n_kv_heads=2, n_layers=2, norm_eps=theirs.config.rms_norm_eps, multiple_of=256)))
    config = llama.llama_config_to_gpt2_config(llama.config_from_checkpoint(tmp_path, "small"))
    assert (config.n_inner, config.vocab_size, config.n_head_kv) == (256, 32000, 2)
    config.vocab_size = 90
    ours = gpt.GPTLMHeadModel(config).eval()
    whole = llama.remap_state_dict_hf_llama(theirs.state_dict(), config)
    for rank in range(2):
        torch.save(_names_of_authors(gpt.shard_state_dict_tp(dict(whole), config, 2, rank)), place / ("consolidated.0%d.pth" % rank))
    shards = [llama.remap_state_dict_meta_llama(state, config) for state in llama.state_dicts_from_checkpoint(tmp_path, "small")]
    ours.load_state_dict(gpt.combine_state_dicts_tp(shards, config))
    ids = torch.randint(90, (2, 9))
    _near(ours(ids).logits, theirs(ids).logits)


def _names_of_authors(state):
    found = {"tok_embeddings.weight": state["transformer.embeddings.word_embeddings.weight"], "norm.weight": state["transformer.ln_f.weight"], "output.weight": state["lm_head.weight"],
             "rope.freqs": torch.zeros(8)}
    for layer in ("0", "1"):
        ours, theirs = "transformer.layers.%s." % layer, "layers.%s." % layer
        q, k, v = state[ours + "mixer.Wqkv.weight"].split([32, 16, 16])
        up, gate = state[ours + "mlp.fc1.weight"].chunk(2)
        found.update({theirs + "attention.wq.weight": q, theirs + "attention.wk.weight": k, theirs + "attention.wv.weight": v,
                      theirs + "attention.wo.weight": state[ours + "mixer.out_proj.weight"], theirs + "feed_forward.w1.weight": gate, theirs + "feed_forward.w3.weight": up,
                      theirs + "feed_forward.w2.weight": state[ours + "mlp.fc2.weight"], theirs + "attention_norm.weight": state[ours + "norm1.weight"],
                      theirs + "ffn_norm.weight": state[ours + "norm2.weight"]})
    return found


def _baichuan_names(llama):
    """A Llama's weights as Baichuan's files have them: one projection for queries, keys and values."""
    state = dict(llama.state_dict())
    for layer in range(2):
        place = "model.layers.%d.self_attn." % layer
        state[place + "W_pack.weight"] = torch.cat([state.pop(place + part + "_proj.weight") for part in "qkv"])
    return state


def test_baichuan_of_7b_rotates():
    from flash_attn.models import baichuan
    theirs = _llama(intermediate_size=128)
    ours = _load(theirs, baichuan.baichuan_config_to_gpt2_config, lambda _, config: baichuan.remap_state_dict_hf_baichuan(_baichuan_names(theirs), config))
    ids = torch.randint(90, (2, 9))
    _near(ours(ids).logits[..., :90], theirs(ids).logits)


def _attention(q, k, v, scale, slopes):
    """Causal, with ALiBi; q, k, v (B, S, H, D)."""
    n = q.shape[1]
    distance = (torch.arange(n)[:, None] - torch.arange(n)).abs()
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * scale - slopes[:, None, None] * distance
    return torch.einsum("bhij,bjhd->bihd", scores.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf).softmax(-1), v)


def test_baichuan_of_13b_has_alibi_and_a_normal_head(monkeypatch):
    from flash_attn.models import baichuan, gpt
    from flash_attn.modules.mha import get_alibi_slopes
    theirs = _llama(intermediate_size=128)
    monkeypatch.setattr(baichuan, "_WIDEST_WITH_ROTARY", 60)
    monkeypatch.setattr(baichuan, "_MOST_WORDS_OF_FIRST", 80)
    config = baichuan.baichuan_config_to_gpt2_config(theirs.config)
    assert config.use_alibi and config.norm_head and config.rotary_emb_fraction == 0.0
    ours = gpt.GPTLMHeadModel(config).eval()
    ours.load_state_dict(baichuan.remap_state_dict_hf_baichuan(_baichuan_names(theirs), config))
    ids, state = torch.randint(90, (2, 9)), theirs.state_dict()
    x = state["model.embed_tokens.weight"][ids]
    for i, layer in enumerate(theirs.model.layers):
        q, k, v = [getattr(layer.self_attn, part + "_proj")(layer.input_layernorm(x)).unflatten(-1, (4, 16)) for part in "qkv"]
        x = x + layer.self_attn.o_proj(_attention(q, k, v, 0.25, torch.tensor(get_alibi_slopes(4))).flatten(2))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    _near(ours(ids).logits, theirs.model.norm(x) @ F.normalize(state["lm_head.weight"]).t())


def test_btlm():
    """Its muP scales, SwiGLU and ALiBi, written out."""
    from flash_attn.models import btlm, gpt
    from flash_attn.modules.mha import get_alibi_slopes
    theirs = transformers.GPT2Config(vocab_size=90, n_positions=40, n_embd=64, n_layer=2, n_head=4, n_inner=88, activation_function="swiglu", position_embedding_type="alibi",
                                     mup_width_scale=0.5, mup_embeddings_scale=3.0, mup_output_alpha=1.5, mup_scale_qk_dot_by_d=True)
    draw = lambda *shape: 0.2 * torch.randn(shape)  # noqa: E731
    state = {"transformer.wte.weight": draw(90, 64), "transformer.relative_pe.slopes": draw(4), "transformer.ln_f.weight": draw(64), "transformer.ln_f.bias": draw(64)}
    sizes = {"attn.c_attn": (64, 192), "attn.c_proj": (64, 64), "mlp.c_fc": (64, 88), "mlp.c_fc2": (64, 88), "mlp.c_proj": (88, 64)}
    for i in range(2):
        for name, (n, m) in sizes.items():
            state.update({"transformer.h.%d.%s.weight" % (i, name): draw(n, m), "transformer.h.%d.%s.bias" % (i, name): draw(m)})
        for name in ("ln_1", "ln_2"):
            state.update({"transformer.h.%d.%s.weight" % (i, name): draw(64), "transformer.h.%d.%s.bias" % (i, name): draw(64)})
    config = btlm.btlm_config_to_gpt2_config(theirs)
    ours = gpt.GPTLMHeadModel(config).eval()
    ours.load_state_dict(btlm.remap_state_dict_hf_btlm(dict(state), config))

    def layer(x, i, name):
        return x @ state["transformer.h.%d.%s.weight" % (i, name)] + state["transformer.h.%d.%s.bias" % (i, name)]

    def norm(x, name):
        return F.layer_norm(x, (64,), state["transformer.%s.weight" % name], state["transformer.%s.bias" % name], config.layer_norm_epsilon)
    ids = torch.randint(90, (2, 9))
    x = 3.0 * state["transformer.wte.weight"][ids]
    for i in range(2):
        q, k, v = layer(norm(x, "h.%d.ln_1" % i), i, "attn.c_attn").unflatten(-1, (3, 4, 16)).unbind(2)
        x = x + layer(_attention(q, k, v, 1 / 16, torch.tensor(get_alibi_slopes(4))).flatten(2), i, "attn.c_proj")
        y = norm(x, "h.%d.ln_2" % i)
        x = x + layer(layer(y, i, "mlp.c_fc") * F.silu(layer(y, i, "mlp.c_fc2")), i, "mlp.c_proj")
    _near(ours(ids).logits, 1.5 * 0.5 * norm(x, "ln_f") @ state["transformer.wte.weight"].t())


def test_megatron_names():
    """GPT-2's weights, renamed as Megatron-LM saves them."""
    from flash_attn.models import gpt
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=90, n_positions=40, n_embd=64, n_layer=2, n_head=4, initializer_range=0.2)).eval()
    config = theirs.config
    state = gpt.remap_state_dict_hf_gpt2(theirs.state_dict(), config)
    saved = {}
    parts = (("embeddings.word_embeddings", "embedding.word_embeddings"), ("mixer.Wqkv", "self_attention.query_key_value"), ("mixer.out_proj", "self_attention.dense"),
             ("mlp.fc1", "mlp.dense_h_to_4h"), ("mlp.fc2", "mlp.dense_4h_to_h"), ("norm1", "input_layernorm"), ("norm2", "post_attention_layernorm"), ("ln_f", "final_layernorm"))
    for name, tensor in state.items():
        if ".Wqkv." in name:
            tensor = tensor.unflatten(0, (3, 4, 16)).transpose(0, 1).flatten(0, 2)
        for ours, megatrons in parts:
            name = name.replace(ours, megatrons)
        name = "wpe.weight" if name.endswith("position_embeddings.weight") else name.replace("transformer.", "language_model." if "embedding" in name else "language_model.encoder.")
        saved[name] = tensor
    saved.pop("lm_head.weight")
    back = gpt.remap_state_dict_megatron(saved, config)
    assert set(back) == set(state) and all(torch.equal(back[name], state[name]) for name in state)


# ---- encoders ---------------------------------------------------------------------------------------------------------
def _bert(**options):
    return transformers.BertConfig(vocab_size=90, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96, max_position_embeddings=40, initializer_range=0.2,
                                   hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **options)


_BERTS = {"plain": {}, "flash": dict(use_flash_attn=True, fused_bias_fc=True, fused_dropout_add_ln=True, hidden_act="gelu_new", fused_mlp=True, pad_vocab_size_multiple=8),
          "dense": dict(use_flash_attn=True, dense_seq_output=True, use_xentropy=True),
          "subset": dict(use_flash_attn=True, dense_seq_output=True, last_layer_subset=True, pad_vocab_size_multiple=8)}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", _BERTS)
def test_bert(kind, padded):
    from flash_attn.models import bert
    options = _BERTS[kind]
    theirs = transformers.BertForPreTraining(_bert(**{name: value for name, value in options.items() if name == "hidden_act"})).eval()
    ours = bert.BertForPreTraining(_bert(orig_vocab_size=90, **options)).eval()
    ours.load_state_dict(bert.remap_state_dict(theirs.state_dict(), ours.config))
    ids, types = torch.randint(1, 90, (3, 11)), torch.randint(2, (3, 11))
    mask = (torch.arange(11) < torch.tensor([11, 4, 7])[:, None]).long() if padded else None
    labels = torch.where((torch.rand(3, 11) < 0.4) & (True if mask is None else mask.bool()), torch.randint(1, 90, (3, 11)), 0)
    following = torch.tensor([0, 1, 1])
    asked = labels > 0
    expected = theirs(ids, attention_mask=mask, token_type_ids=types, labels=labels.masked_fill(~asked, -100), next_sentence_label=following)
    found = ours(ids, attention_mask=mask, token_type_ids=types, labels=labels, next_sentence_label=following)
    _near(found.loss, expected.loss)
    _near(found.seq_relationship_logits, expected.seq_relationship_logits)
    valid = torch.ones(3, 11, dtype=torch.bool) if mask is None else mask.bool()
    words = found.prediction_logits[..., :90]
    _near(words if options.get("dense_seq_output") else words[valid], expected.prediction_logits[asked if options.get("dense_seq_output") else valid])
    found.loss.backward()
    expected.loss.backward()
    _near(ours.bert.embeddings.word_embeddings.weight.grad[:90], theirs.bert.embeddings.word_embeddings.weight.grad, 1e-4)


@pytest.mark.parametrize("subset", [False, True])
def test_bert_there_and_back(subset):
    from flash_attn.models import bert
    theirs = transformers.BertForPreTraining(_bert())
    config = _bert(orig_vocab_size=90, last_layer_subset=subset, dense_seq_output=True, pad_vocab_size_multiple=8)
    bert.BertModel(config)  # pads config.vocab_size
    state = theirs.state_dict()
    back = bert.inv_remap_state_dict(bert.remap_state_dict(state, config), config)
    names = {name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta") for name in state if name in back or "LayerNorm" in name}
    assert set(back) == set(names.values()) and all(torch.equal(back[new], state[old]) for old, new in names.items()) and len(back) >= 50


def _timm_names(model):
    """transformers' ViT as timm names its weights."""
    import re
    state, found = model.state_dict(), {}
    rules = [(r"vit\.embeddings\.cls_token", "cls_token"), (r"vit\.embeddings\.position_embeddings", "pos_embed"), (r"vit\.embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
             (r"vit\.layernorm\.", "norm."), (r"classifier\.", "head."), (r"vit\.(?:encoder\.layer|layers)\.(\d+)\.layernorm_before\.", r"blocks.\1.norm1."),
             (r"vit\.(?:encoder\.layer|layers)\.(\d+)\.layernorm_after\.", r"blocks.\1.norm2."),
             (r"vit\.(?:encoder\.layer|layers)\.(\d+)\.(?:attention\.output\.dense|attention\.o_proj)\.", r"blocks.\1.attn.proj."),
             (r"vit\.(?:encoder\.layer|layers)\.(\d+)\.(?:intermediate\.dense|mlp\.fc1)\.", r"blocks.\1.mlp.fc1."),
             (r"vit\.(?:encoder\.layer|layers)\.(\d+)\.(?:output\.dense|mlp\.fc2)\.", r"blocks.\1.mlp.fc2."),
             (r"vit\.(?:encoder\.layer|layers)\.(\d+)\.attention\.(?:attention\.)?(query|key|value|q_proj|k_proj|v_proj)\.", r"\1.\2.")]
    for name, tensor in state.items():
        for pattern, to in rules:
            name = re.sub("^" + pattern, to, name)
        found[name] = tensor
    for i in range(3):
        for kind in ("weight", "bias"):
            parts = [found.pop(next(n for n in found if re.fullmatch(r"%d\.%s(?:uery|ey|alue|_proj)\.%s" % (i, letter, kind), n))) for letter in "qkv"]
            found["blocks.%d.attn.qkv.%s" % (i, kind)] = torch.cat(parts)
    return found


@pytest.mark.parametrize("fast", [False, True])
def test_vit(fast):
    from flash_attn.models.vit import VisionTransformer
    config = transformers.ViTConfig(image_size=32, patch_size=8, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128, hidden_act="gelu_new" if fast else "gelu",
                                    initializer_range=0.2, num_labels=7, layer_norm_eps=1e-6)
    theirs = transformers.ViTForImageClassification(config).eval()
    ours = VisionTransformer(img_size=32, patch_size=8, num_classes=7, embed_dim=64, depth=3, num_heads=4, mlp_ratio=2.0, use_flash_attn=fast, fused_bias_fc=fast, fused_mlp=fast,
                             fused_dropout_add_ln=fast).eval()
    ours.load_state_dict(_timm_names(theirs))
    pictures = torch.randn(2, 3, 32, 32)
    _near(ours(pictures), theirs(pictures).logits)
    _near(ours.forward_features(pictures)[:, :1], ours.forward_features(pictures, all_tokens=False), 1e-5)


def test_vit_in_training_and_its_names():
    from flash_attn.models.vit import VisionTransformer
    model = VisionTransformer(img_size=16, patch_size=8, num_classes=3, embed_dim=64, depth=2, num_heads=4, drop_rate=0.1, drop_path_rate=0.2, no_embed_class=True,
                              fused_dropout_add_ln=True)
    assert model.no_weight_decay() == {"pos_embed", "cls_token"} and model.pos_embed.shape == (1, 4, 64)
    model(torch.randn(2, 3, 16, 16)).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    with pytest.raises(AssertionError, match="pooled"):
        VisionTransformer(global_pool="avg")
