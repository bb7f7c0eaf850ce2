"""krait.accelerate: generate of language models: Mamba and Mamba-2 of transformers and mamba_ssm, attention of transformers."""

import concurrent.futures
import copy
import pickle

import pytest
import torch

import krait

transformers = pytest.importorskip("transformers")
SIZES = dict(vocab_size=96, hidden_size=32, num_hidden_layers=3, state_size=8, eos_token_id=5, pad_token_id=0, bos_token_id=1)


def build(kind, dtype=torch.float32, **changes):
    torch.manual_seed(0)
    if kind == "Mamba":
        config, cls = transformers.MambaConfig(**{**SIZES, **changes}), transformers.MambaForCausalLM
    else:
        more = dict(head_dim=16, num_heads=4, n_groups=1, chunk_size=8)
        config, cls = transformers.Mamba2Config(**{**SIZES, **more, **changes}), transformers.Mamba2ForCausalLM
    model = cls(config)
    for name, p in model.named_parameters():  # what is constant at first would be missed unnoticed
        if name.endswith(("norm.weight", "norm_f.weight", ".D", "bias")):
            p.data.add_(0.3 * torch.randn_like(p))
    return model.to(dtype).eval()


def prompts(batch=2, length=9):
    return torch.randint(6, 96, (batch, length), generator=torch.Generator().manual_seed(1))


def count_plain(model):
    counts, plain = [], type(model).generate

    class Counted(type(model)):
        def generate(self, *args, **kwargs):
            counts.append(1)
            return plain(self, *args, **kwargs)
    Counted.__name__ = type(model).__name__  # by which transformers knows models without keys and values
    model.__class__ = Counted
    return counts


@pytest.mark.parametrize("kind", ["Mamba", "Mamba2"])
def test_tokens_are_those_of_transformers(kind, device):
    model = build(kind).to(device)
    own = krait.accelerate(copy.deepcopy(model))
    assert krait.accelerated(own) == {"": "language model (generate)", "backbone.layers": "Mamba layer"}
    counts, ids = count_plain(own), prompts().to(device)
    for options in (dict(do_sample=False), dict(do_sample=True, top_k=10, temperature=0.8, top_p=0.9), dict(do_sample=True, top_k=0)):
        found = []
        for m in (model, own):
            torch.manual_seed(2)
            found.append(m.generate(ids, max_new_tokens=24, **options))
        assert torch.equal(*found), options
    assert torch.equal(own.generate(ids[:1], attention_mask=torch.ones_like(ids[:1]), max_length=20, do_sample=False), model.generate(ids[:1], max_length=20, do_sample=False))
    assert not counts


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["Mamba", "Mamba2"])
def test_tokens_in_sixteen_bits_are_the_likeliest_but_for_rounding(kind, dtype, device):
    model = build(kind, dtype, eos_token_id=None).to(device)
    own = krait.accelerate(copy.deepcopy(model))
    counts, ids = count_plain(own), prompts().to(device)
    text = own.generate(ids, max_new_tokens=24, do_sample=False)
    logits = model.float()(text[:, :-1]).logits[:, ids.shape[1] - 1:]
    lost = logits.max(-1).values - logits.gather(2, text[:, ids.shape[1]:, None])[..., 0]
    assert not counts and text.shape[1] == ids.shape[1] + 24 and float((lost.max() / logits.std()).detach()) < 0.1


def test_the_end_of_a_text_and_what_follows_it():
    """Rows end where transformers ends them, then have pad; the result ends with the longest."""
    model = build("Mamba")
    ids = prompts(3)
    first = model.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=95)[:, ids.shape[1]:]
    end = int(first[0, 2])
    own = krait.accelerate(copy.deepcopy(model))
    for ends in (end, [end, int(first[1, 5])]):
        want = model.generate(ids, max_new_tokens=30, do_sample=False, eos_token_id=ends, pad_token_id=7)
        assert torch.equal(own.generate(ids, max_new_tokens=30, do_sample=False, eos_token_id=ends, pad_token_id=7), want)


def test_changed_weights_are_used(device):
    own, model = krait.accelerate(build("Mamba2").to(device)), build("Mamba2").to(device)
    ids = prompts().to(device)
    for _ in range(3):  # a GPU records how weights are read
        own.generate(ids, max_new_tokens=4)
    with torch.no_grad():
        for m in (own, model):
            m.backbone.layers[1].mixer.A_log.add_(0.5)
            m.backbone.embeddings.weight.mul_(-1)
    options = dict(max_new_tokens=20, do_sample=False)
    assert torch.equal(own.generate(ids, **options), model.generate(ids, **options))
    other = build("Mamba2", tie_word_embeddings=True).to(device)
    own.load_state_dict(other.state_dict())
    assert torch.equal(own.generate(ids, **options), other.generate(ids, **options))


def test_what_krait_does_not_generate_goes_to_transformers():
    own = krait.accelerate(build("Mamba"))
    counts, ids = count_plain(own), prompts()
    options = dict(max_new_tokens=3, do_sample=False)
    own.generate(ids, num_beams=2, **options)
    own.generate(ids, no_repeat_ngram_size=2, **options)
    own.generate(ids, return_dict_in_generate=True, **options)
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    own.generate(ids, attention_mask=mask, **options)
    own.generate(inputs_embeds=own.backbone.embeddings(ids), **options)
    seen = []
    hook = own.backbone.layers[0].mixer.register_forward_hook(lambda *_: seen.append(1))
    own.generate(ids, **options)
    assert len(counts) == 6 and seen
    hook.remove()
    own.generate(ids, **options)
    assert len(counts) == 6


def test_what_an_argument_leaves_open():
    """Arguments, even None, come before a configuration that is given, and that before the model's own."""
    model = build_attention("Qwen2")
    own, ids = krait.accelerate(copy.deepcopy(model)), prompts()
    first = [int(t) for t in model.generate(ids, max_new_tokens=8, do_sample=False, eos_token_id=None)[:, 11]]
    for m in (model, own):
        m.generation_config.update(eos_token_id=first, do_sample=True, top_k=3)
    given = transformers.GenerationConfig
    counts = count_plain(own)
    for options in (dict(generation_config=given(max_new_tokens=8)), dict(generation_config=given(max_new_tokens=8, do_sample=False)), dict(max_new_tokens=8, top_k=None),
                    dict(max_new_tokens=8, do_sample=None), dict(max_new_tokens=8, do_sample=False, eos_token_id=None), dict(max_new_tokens=8, temperature=None, top_p=None)):
        found = []
        for m in (model, own):
            torch.manual_seed(2)
            found.append(m.generate(ids, **options))
        assert torch.equal(*found), options
    assert not counts
    for m in (model, own):
        m.generation_config.update(no_repeat_ngram_size=2, do_sample=False)
    assert torch.equal(*[m.generate(ids, generation_config=given(max_new_tokens=8)) for m in (model, own)]) and counts


def test_what_is_looked_at_before_a_call():
    """Padding without a mask, positions, a cache to fill, a threshold of nothing: transformers'."""
    model = build_attention("Qwen2")
    own, ids, options = krait.accelerate(copy.deepcopy(model)), prompts(), dict(max_new_tokens=8, do_sample=False)
    counts, padded = count_plain(own), prompts()
    padded[0, :3] = 0
    assert torch.equal(own.generate(padded, **options), model.generate(padded, **options))
    positions = torch.arange(9).expand(2, -1) * 2
    assert torch.equal(own.generate(ids, position_ids=positions, **options), model.generate(ids, position_ids=positions, **options))
    cache = transformers.DynamicCache()
    own.generate(ids, past_key_values=cache, **options)
    assert cache.get_seq_length() == 16
    own.generate(ids, max_new_tokens=8, do_sample=True, top_p=0.0)
    with pytest.raises(ValueError, match="temperature"):
        own.generate(ids, max_new_tokens=8, do_sample=True, temperature=0.0)
    assert len(counts) == 5


@pytest.mark.parametrize("kind", ["Qwen2", "Mamba"])
def test_penalties_and_streamers_are_those_of_transformers(kind):
    model = build_attention(kind) if kind == "Qwen2" else build(kind)
    own, ids = krait.accelerate(copy.deepcopy(model)), prompts()
    counts = count_plain(own)

    class Streamer(list):
        def put(self, tokens):
            self.append(tokens)

        def end(self):
            self.append(torch.tensor(-1))
    end = int(model.generate(ids[:1], max_new_tokens=6, do_sample=False, eos_token_id=None)[0, -1])
    sampling = dict(do_sample=True, temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.3)
    for prompt, options in ((ids, sampling), (ids, dict(do_sample=False, repetition_penalty=1.8)), (ids[:1], dict(streamer=1, do_sample=False, eos_token_id=end)),
                            (ids[:1], dict(streamer=1, eos_token_id=end, **sampling)), (ids.int(), dict(do_sample=False))):
        found, streams = [], []
        for m in (model, own):
            torch.manual_seed(2)
            streams.append(Streamer())
            found.append(m.generate(prompt, max_new_tokens=12, **{**options, **(dict(streamer=streams[-1]) if "streamer" in options else {})}))
        assert torch.equal(*found) and found[0].dtype == found[1].dtype and len(streams[0]) == len(streams[1]) and all(map(torch.equal, *streams)), options
        assert ("streamer" in options) == (len(streams[1]) > 2)
    model(ids, output_hidden_states=True), own(ids, output_hidden_states=True)  # whose hooks stay
    assert torch.equal(own.generate(ids, max_new_tokens=4, do_sample=False), model.generate(ids, max_new_tokens=4, do_sample=False)) and not counts

    class Nested(Streamer):
        def end(self):
            self.append(own.generate(ids[:1], max_new_tokens=4, do_sample=False))
    streamer = Nested()
    assert torch.equal(own.generate(ids[:1], max_new_tokens=4, do_sample=False, streamer=streamer), streamer[-1]) and len(counts) == 1
    for wrong in (dict(do_sample=True, temperature=2), dict(repetition_penalty=-1.0)):
        with pytest.raises(ValueError):
            own.generate(ids, max_new_tokens=4, **wrong)
    for strange in (-1, 96):
        with pytest.raises(IndexError):
            own.generate(torch.tensor([[7, strange, 8]]), max_new_tokens=4, do_sample=False)


@pytest.mark.parametrize("kind", ["Qwen2", "Mamba"])
def test_a_model_that_was_changed_is_not_taken_for_the_one_before(kind):
    model = build_attention(kind) if kind == "Qwen2" else build(kind)
    own, ids, options = krait.accelerate(copy.deepcopy(model)), prompts(), dict(max_new_tokens=8, do_sample=False)
    counts = count_plain(own)

    def check(n):
        assert torch.equal(own.generate(ids, **options), model.generate(ids, **options)) and len(counts) == n
    check(0)
    hooks = [m.register_forward_hook(lambda m, given, out: (out.logits.neg_(), out)[1]) for m in (model, own)]
    check(1)
    for hook in hooks:
        hook.remove()
    for m in (model, own):
        m.forward = lambda *args, plain=m.forward, **kwargs: (lambda out: (out.logits.neg_(), out)[1])(plain(*args, **kwargs))
    check(2)
    for m in (model, own):
        del m.__dict__["forward"]
    check(2)
    if kind == "Qwen2":
        for m in (model, own):
            m.model.rotary_emb.inv_freq.mul_(0.3)
        check(2)
        for m in (model, own):
            m.config.num_hidden_layers = 2
        check(3)
        for m in (model, own):
            m.config.num_hidden_layers = 3
        check(3)
        for m in (model, own):
            m.model.layers[1].self_attn.scaling *= 3
        check(4)
        for m in (model, own):
            m.model.layers[1].self_attn.scaling /= 3
        check(4)
    else:
        for eps in (0.5, 1e-5):
            for m in (model, own):
                m.backbone.layers[1].norm.variance_epsilon = eps
            check(2)
    for m in (model, own):
        part = m.model.layers[1].mlp if kind == "Qwen2" else m.backbone.layers[1].mixer
        part.__class__ = type("Louder", (type(part),), {"forward": lambda self, *args, plain=type(part).forward, **kwargs: -2 * plain(self, *args, **kwargs)})
    n = len(counts) + 1
    check(n)
    check(n + 1)
    for m in (model, own):
        part = m.model.layers[1].mlp if kind == "Qwen2" else m.backbone.layers[1].mixer
        part.__class__ = type(part).__mro__[1]
        if kind == "Qwen2":  # one of three
            m.model.layers[0].self_attn.q_proj.bias = None
        else:
            m.backbone.layers[0].mixer.out_proj.register_parameter("bias", torch.nn.Parameter(torch.ones(32)))
    check(n + 2)
    if kind == "Qwen2":
        model.lm_head = own.lm_head = torch.ao.nn.quantized.dynamic.Linear(64, 96)  # whose weight is a method
        check(n + 3)


@pytest.mark.parametrize("kind", ["Qwen2", "Mamba"])
def test_threads_take_turns(kind):
    model = build_attention(kind) if kind == "Qwen2" else build(kind)
    own, options = krait.accelerate(copy.deepcopy(model)), dict(max_new_tokens=40, do_sample=False, eos_token_id=None)
    texts = [prompts(2, 5 + i) for i in range(4)] * 4
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda ids: own.generate(ids, **options), texts))
    for ids, text in zip(texts[:4], found):
        assert torch.equal(model.generate(ids, **options), text)
    assert all(torch.equal(a, b) for a, b in zip(found, found[4:]))


@pytest.mark.parametrize("kind", ["Qwen2", "Mamba"])
def test_heads_and_generates_of_another_kind_are_named(kind):
    def make():
        return build_attention(kind) if kind == "Qwen2" else build(kind)
    for rows in (80, 120):
        model = make()
        model.lm_head = torch.nn.Linear(model.lm_head.weight.shape[1], rows, bias=False)
        with pytest.warns(UserWarning, match="other shapes"):
            krait.accelerate(model)
    model = make()
    count_plain(model)
    with pytest.warns(UserWarning, match="a generate of its own"):
        krait.accelerate(model)


def test_other_models_are_named():
    with pytest.warns(UserWarning, match="several groups"):
        krait.accelerate(build("Mamba2", n_groups=2))
    with pytest.warns(UserWarning, match="in_proj.bias"):
        krait.accelerate(build("Mamba", use_bias=True))
    class Capped(transformers.MambaForCausalLM):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            output.logits = torch.tanh(output.logits)
            return output
    strange = build("Mamba")
    strange.__class__ = Capped
    with pytest.warns(UserWarning, match="other logits"):
        krait.accelerate(strange)
    assert "" not in krait.accelerated(strange)
    other = build("Mamba2", dtype=torch.bfloat16)
    mixer = type(other.backbone.layers[1].mixer)
    other.backbone.layers[1].mixer.__class__ = type("Louder", (mixer,), {"forward": lambda self, *args, **kwargs: 1.1 * mixer.forward(self, *args, **kwargs)})
    with pytest.warns(UserWarning, match="other layer 1"):
        krait.accelerate(other)


@pytest.mark.parametrize("kind", ["Mamba", "Mamba2"])
def test_deep_models_of_sixteen_bits_are_recognised(kind):
    """Behind many layers the model itself is as far from its float32 result as anything: layers tell, logits do not."""
    model = build(kind, torch.bfloat16, hidden_size=256, num_hidden_layers=24, **({} if kind == "Mamba" else dict(num_heads=32)))
    for name, p in model.named_parameters():
        p.data.mul_(3.0 if name.endswith("in_proj.weight") else 1.0)
    ids = prompts()
    with torch.no_grad():
        want = copy.deepcopy(model).float()(ids).logits
        assert float((model(ids).logits.float() - want).norm() / want.norm()) > 0.2
    assert krait.accelerated(krait.accelerate(model))[""] == "language model (generate)"


def test_copies_pickles_and_training():
    own, ids = krait.accelerate(build("Mamba")), prompts()
    want = own.generate(ids, max_new_tokens=6, do_sample=False)
    for other in (copy.deepcopy(own), pickle.loads(pickle.dumps(own))):
        assert other.generate.model is other and torch.equal(other.generate(ids, max_new_tokens=6, do_sample=False), want)
    own.train()(ids, labels=ids).loss.backward()
    assert all(p.grad is not None for p in own.parameters())


@pytest.mark.parametrize("layer", ["Mamba1", "Mamba2"])
def test_mamba_ssm(layer, device):
    from mamba_ssm.models.config_mamba import MambaConfig
    from mamba_ssm.models.mixer_seq_simple import MambaLMHeadModel
    torch.manual_seed(0)
    ssm = dict(layer="Mamba2", headdim=16, d_state=16) if layer == "Mamba2" else dict(layer="Mamba1")
    model = MambaLMHeadModel(MambaConfig(d_model=32, n_layer=2, vocab_size=64, ssm_cfg=ssm), device=device)
    own = krait.accelerate(copy.deepcopy(model))
    counts, ids = count_plain(own), (prompts() % 64).to(device)
    assert torch.equal(own.generate(ids, 30), model.generate(ids, 30)) and not counts
    end = int(model.generate(ids[:1], 30)[0, 15])
    assert torch.equal(own.generate(ids[:1], max_length=30, eos_token_id=end, cg=True), model.generate(ids[:1], max_length=30, eos_token_id=end))
    usual = dict(cg=True, return_dict_in_generate=True, output_scores=False, enable_timing=False, temperature=0.7, top_k=1, top_p=0.9, min_p=0.1, repetition_penalty=1.0)
    found = own.generate(ids, max_length=30, **usual)  # as mamba_ssm's benchmark calls it
    want = model.generate(ids, max_length=30, **usual)
    assert type(found) is type(want) and torch.equal(found.sequences, want.sequences) and found.scores == want.scores and not counts
    own.generate(ids, 12, top_k=3)
    own.generate(ids, 12, repetition_penalty=1.2)
    own.generate(ids, 12, return_dict_in_generate=True, output_scores=True)
    assert len(counts) == 3


# ---- attention and a gated MLP ----

ATTENTION = dict(vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
                 eos_token_id=5, pad_token_id=0, bos_token_id=1)
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
KINDS = {"Qwen2": {}, "Llama": dict(rope_parameters=LLAMA3), "Mistral": dict(sliding_window=None, tie_word_embeddings=True), "Qwen3": dict(head_dim=32)}


def build_attention(kind, dtype=torch.float32, **changes):
    torch.manual_seed(0)
    config, cls = getattr(transformers, kind + "Config"), getattr(transformers, kind + "ForCausalLM")
    model = cls(config(**{**ATTENTION, **KINDS.get(kind, {}), **changes}))
    for name, p in model.named_parameters():
        if name.endswith(("norm.weight", "bias")):
            p.data.add_(0.3 * torch.randn_like(p))
        elif "_proj" in name:
            p.data.mul_(4)
    return model.to(dtype).eval()


@pytest.mark.parametrize("kind", list(KINDS))
def test_tokens_of_attention_are_those_of_transformers(kind, device, monkeypatch):
    monkeypatch.setattr("krait._attention_lm._FEWEST_TOKENS", 16)
    model = build_attention(kind).to(device)
    own = krait.accelerate(copy.deepcopy(model))
    assert krait.accelerated(own) == {"": "language model (generate)", "model.layers": "decoder layer"}
    counts, ids = count_plain(own), prompts(3).to(device)
    for options in (dict(do_sample=False), dict(do_sample=True, top_k=10, temperature=0.8, top_p=0.9)):
        for batch, n in ((3, 8), (1, 6), (1, 30), (1, 5)):  # one outgrows the memory of the one before
            found = []
            for m in (model, own):
                torch.manual_seed(2)
                found.append(m.generate(ids[:batch], max_new_tokens=n, **options))
            assert torch.equal(*found), (options, batch)
    assert not counts


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["Qwen2", "Qwen3"])
def test_attention_in_sixteen_bits(kind, dtype, device):
    model = build_attention(kind, dtype, eos_token_id=None).to(device)
    own = krait.accelerate(copy.deepcopy(model)) if device == "cuda" else model
    counts, ids = count_plain(own), prompts().to(device)
    if device == "cpu":  # whose activations are float32
        with pytest.warns(UserWarning, match="a type and on a device"):
            assert "" not in krait.accelerated(krait.accelerate(own))
        return
    text = own.generate(ids, max_new_tokens=24, do_sample=False)
    logits = model.float()(text[:, :-1]).logits[:, ids.shape[1] - 1:]
    lost = logits.max(-1).values - logits.gather(2, text[:, ids.shape[1]:, None])[..., 0]
    assert not counts and text.shape[1] == ids.shape[1] + 24 and float((lost.max() / logits.std()).detach()) < 0.1


def test_long_prompts_of_attention_are_read_in_parts(monkeypatch):
    from krait._shared_lm import SharedAttentionLM
    monkeypatch.setattr(SharedAttentionLM, "longest", 7)
    model = build_attention("Qwen2")
    own, ids = krait.accelerate(copy.deepcopy(model)), prompts(2, 23)
    counts, options = count_plain(own), dict(max_new_tokens=12, do_sample=False)
    assert torch.equal(own.generate(ids, **options), model.generate(ids, **options)) and not counts


def test_changed_weights_of_attention_are_used():
    own, model = krait.accelerate(build_attention("Qwen3")), build_attention("Qwen3")
    ids, options = prompts(), dict(max_new_tokens=20, do_sample=False)
    own.generate(ids, **options)
    with torch.no_grad():
        for m in (own, model):
            m.model.layers[1].self_attn.k_norm.weight.mul_(-0.5)
            m.model.layers[2].mlp.down_proj.weight.mul_(-1)
            m.model.layers[0].self_attn.q_proj.weight.data = m.model.layers[0].self_attn.q_proj.weight * 0.5  # elsewhere
    counts = count_plain(own)
    assert torch.equal(own.generate(ids, **options), model.generate(ids, **options)) and not counts
    for other in (copy.deepcopy(own), pickle.loads(pickle.dumps(krait.accelerate(build_attention("Llama"))))):
        assert other.generate.model is other and other.generate(ids, max_new_tokens=6, do_sample=False).shape == (2, 15)


def test_attention_that_is_another_is_named():
    for kind, changes, why in (("Mistral", dict(sliding_window=8), "a window"), ("Llama", dict(attention_bias=True), "o_proj.bias"), ("Qwen2", dict(hidden_act="gelu"), "other layer 0"),
                               ("Qwen3", dict(head_dim=32, use_sliding_window=True, sliding_window=8, max_window_layers=1), "a window"),
                               ("Qwen2", dict(rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, factor=2.0)), "another rotary"), ("Granite", dict(embedding_multiplier=2.0), "other")):
        model = build_attention(kind, **changes)
        with pytest.warns(UserWarning, match=why):
            krait.accelerate(model)
        assert "" not in krait.accelerated(model), kind
    large = build_attention("Llama", head_dim=512, rope_parameters=dict(rope_type="default", rope_theta=10000.0))
    with pytest.warns(UserWarning, match="larger than 256"):
        krait.accelerate(large)
    scaled = dict(rope_type="yarn", rope_theta=10000.0, factor=2.0, original_max_position_embeddings=16, llama_4_scaling_beta=0.1)
    if hasattr(transformers, "Ministral3Config"):
        with pytest.warns(UserWarning, match="by their position"):
            krait.accelerate(build_attention("Ministral3", head_dim=16, rope_parameters=scaled))


@pytest.mark.parametrize("kind", ["Llama", "Mamba"])
def test_norms_without_an_epsilon(kind):
    model = build_attention(kind, rms_norm_eps=0.0) if kind == "Llama" else build(kind, layer_norm_epsilon=0.0)
    model.get_input_embeddings().weight.data[0] = 0.1  # padding, whose norm would be of nothing
    own, options = krait.accelerate(copy.deepcopy(model)), dict(max_new_tokens=8, do_sample=False)
    counts = count_plain(own)
    assert torch.equal(own.generate(prompts(), **options), model.generate(prompts(), **options)) and not counts


def test_more_tokens_than_there_is_memory_for(monkeypatch):
    model = build_attention("Qwen2")
    own, options = krait.accelerate(copy.deepcopy(model)), dict(max_new_tokens=8, do_sample=False)
    monkeypatch.setattr("krait._attention_lm.SharedAttentionLM", lambda *_: torch.zeros(1 << 60))
    counts = count_plain(own)
    assert torch.equal(own.generate(prompts(), **options), model.generate(prompts(), **options)) and len(counts) == 1


def test_weights_one_behind_the_other_are_separate_tensors():
    from krait._language import move_behind
    layer = build_attention("Qwen2").model.layers[0].self_attn
    parameters = [layer.q_proj.weight, layer.k_proj.weight, layer.v_proj.weight]
    values = [p.clone() for p in parameters]
    move_behind(parameters)
    addresses = [p.data_ptr() for p in parameters]
    assert [b - a for a, b in zip(addresses, addresses[1:])] == [p.numel() * 4 for p in parameters[:2]]
    assert all(torch.equal(p, v) and p.untyped_storage().nbytes() == 4 * p.numel() for p, v in zip(parameters, values))
    move_behind(parameters)
    assert addresses == [p.data_ptr() for p in parameters]
