"""MambaLMHeadModel: keys, configuration, files, generation."""

import copy
import dataclasses
import json
import pickle

import pytest
import torch
from torch._subclasses import FakeTensorMode

import refs
from krait._language import Decoder, _move_together
from krait._mamba3_lm import Mamba3Decoder
from mamba_ssm import MambaLMHeadModel
from mamba_ssm.models.config_mamba import MambaConfig
from mamba_ssm.utils import recorded
from mamba_ssm.utils.generation import InferenceParams, sample


def small(device="cpu", dtype=None, **changes):
    return MambaLMHeadModel(MambaConfig(**{**dict(d_model=32, n_layer=3, vocab_size=43), **changes}), device=device, dtype=dtype).eval()


def test_keys_and_sizes():
    m = small()
    assert m.lm_head.weight is m.backbone.embedding.weight and m.lm_head.weight.shape == (48, 32)
    per_layer = ["norm.weight"] + ["mixer." + k for k in ("A_log", "D", "in_proj.weight", "conv1d.weight", "conv1d.bias", "x_proj.weight",
                                                          "dt_proj.weight", "dt_proj.bias", "out_proj.weight")]
    want = ["backbone.embedding.weight"] + ["backbone.layers.%d.%s" % (i, k) for i in range(3) for k in per_layer]
    assert list(m.state_dict()) == want + ["backbone.norm_f.weight", "lm_head.weight"]
    meta = MambaLMHeadModel(MambaConfig(d_model=768, n_layer=24), device="meta")
    assert sum(p.numel() for p in meta.parameters()) == 129135360


def test_config():
    assert dataclasses.asdict(MambaConfig()) == dict(
        d_model=2560, d_intermediate=0, n_layer=64, vocab_size=50277, ssm_cfg={}, attn_layer_idx=[], attn_cfg={}, rms_norm=True,
        residual_in_fp32=True, fused_add_norm=True, pad_vocab_size_multiple=8, tie_embeddings=True)
    with pytest.raises(TypeError):
        MambaConfig(d_modell=3)
    with pytest.raises(ValueError, match="Mamba1, Mamba2, Mamba3"):
        small(ssm_cfg={"layer": "Mamba9"})


@pytest.mark.parametrize("fused,rms,mlp", [(True, True, 0), (False, True, 0), (True, False, 64)])
def test_forward(device, fused, rms, mlp):
    m = small(device, fused_add_norm=fused, rms_norm=rms, d_intermediate=mlp)
    ids = torch.randint(0, 43, (2, 17), device=device)
    logits = m(ids).logits
    hidden = m.backbone.embedding(ids)
    for layer in m.backbone.layers:
        hidden = hidden + layer.mixer(layer.norm(hidden))
        if mlp:
            hidden = hidden + layer.mlp(layer.norm2(hidden))
    refs.close(logits, m.lm_head(m.backbone.norm_f(hidden)), (1e-4, 1e-4))
    assert torch.equal(m(ids, num_last_tokens=1).logits, logits[:, -1:]) or torch.allclose(m(ids, num_last_tokens=1).logits, logits[:, -1:], atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_equal_the_whole(device, dtype):
    m = small(device, dtype)
    ids = torch.randint(0, 43, (2, 12), device=device)
    with torch.no_grad():
        want = m(ids).logits
        params, got = InferenceParams(max_seqlen=12, max_batch_size=2), []
        for begin, end in [(0, 5)] + [(t, t + 1) for t in range(5, 12)]:
            got.append(m(ids[:, begin:end], inference_params=params, num_last_tokens=1).logits)
            params.seqlen_offset = end
    refs.close(torch.cat(got, 1), want[:, 4:], (1e-3, 1e-4) if dtype is torch.float32 else (5e-2, 5e-2))


def test_greedy_generation(device):
    m = small(device)
    ids = torch.randint(0, 43, (2, 5), device=device)
    out = m.generate(ids, max_length=15, return_dict_in_generate=True, output_scores=True, cg=True)
    assert out.sequences.shape == (2, 15) and len(out.scores) == 10 and out.scores[0].shape == (2, 48)
    slow = ids
    for _ in range(10):
        slow = torch.cat([slow, m(slow).logits[:, -1].argmax(-1, keepdim=True)], 1)
    assert torch.equal(out.sequences, slow)
    assert torch.equal(m.generate(ids, max_length=15), slow)
    again = m.generate(ids, max_length=15, teacher_outputs=slow.flip(0).clone())
    assert torch.equal(again[:, 5:], slow.flip(0)[:, 5:])


def plain(layer, device, dtype=None, **changes):
    """A model that generate(cg=True) runs by the library's graphs; what is constant at first would be missed unnoticed."""
    ssm = {"Mamba1": dict(dt_rank=8), "Mamba2": dict(d_state=32, headdim=16), "Mamba3": dict(d_state=16, headdim=16),
           "Mamba3 ranks": dict(d_state=16, headdim=16, ngroups=2, is_mimo=True, mimo_rank=2, rope_fraction=1.0),
           "Mamba3 norm": dict(d_state=16, headdim=16, ngroups=2, is_outproj_norm=True, A_activation="softplus", A_floor=0.3)}[layer]
    ssm["layer"] = layer.split()[0]
    m = small(device, dtype, **{**dict(d_model=64, ssm_cfg=ssm, d_intermediate=96 if layer == "Mamba3 ranks" else 0), **changes})
    for name, p in m.named_parameters():
        if name.endswith(("norm.weight", "norm_f.weight", ".D", "bias")):
            p.data.add_(0.3 * torch.randn_like(p))
    m.lm_head.weight.data.mul_(20)  # random logits are nearly equal
    return m


def is_recorded(m, batch):
    return recorded.of(m, batch) is not None


LAYERS = ["Mamba1", "Mamba2", "Mamba3", "Mamba3 ranks", "Mamba3 norm"]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("layer", LAYERS)
def test_recorded_generation_is_that_of_the_modules(device, layer, batch):
    m = plain(layer, device)
    assert is_recorded(m, batch)
    ids = torch.randint(0, 43, (batch, 9), device=device)
    teacher = torch.randint(0, 43, (batch, 17), device=device)
    for options in (dict(), dict(repetition_penalty=1.3), dict(top_k=5, temperature=0.7, top_p=0.9), dict(top_k=0, min_p=0.05), dict(vocab_size=20), dict(teacher_outputs=teacher),
                    dict(teacher_outputs=teacher, top_k=3), dict(eos_token_id=int(m.generate(ids, 40)[0, 20]))):
        found = []
        for cg in (True, False):
            torch.manual_seed(1)
            found.append(m.generate(ids, max_length=40, return_dict_in_generate=True, output_scores=True, cg=cg, **options))
        assert torch.equal(found[0].sequences, found[1].sequences), options
        refs.close(torch.stack(found[0].scores), torch.stack(found[1].scores), (1e-4, 1e-4))
        assert found[0].scores[0].dtype is m.lm_head.weight.dtype
    assert torch.equal(m.generate(ids, max_length=40, cg=True), m.generate(ids, max_length=40))


def test_long_prompts_are_read_in_parts():
    m, ids = plain("Mamba2", torch.device("cpu"), n_layer=1), torch.randint(0, 43, (1, 2100))
    got, want = [m.generate(ids, max_length=2103, return_dict_in_generate=True, output_scores=True, cg=cg) for cg in (True, False)]
    assert torch.equal(got.sequences, want.sequences)
    refs.close(torch.stack(got.scores), torch.stack(want.scores), (1e-4, 1e-4))


@pytest.mark.parametrize("layer", LAYERS)
def test_recorded_generation_reads_weights_as_they_are(device, layer):
    m, ids = plain(layer, device), torch.randint(0, 43, (2, 9), device=device)

    def check():
        assert is_recorded(m, 2) and torch.equal(m.generate(ids, 30, cg=True), m.generate(ids, 30))
    check()
    before, block = recorded.of(m, 2), m.backbone.layers[1]
    recurrence = [block.mixer.B_bias, block.mixer.C_norm.weight, block.mixer.dt_bias] if layer.startswith("Mamba3") else [block.mixer.A_log]
    for t, by in (*[(t, 0.5) for t in recurrence], (block.mixer.D, 1.0), (block.mixer.in_proj.weight, 0.1), (m.backbone.embedding.weight, 0.2)):
        t.data.add_(by)  # no version of a tensor shows this
        check()
    assert recorded.of(m, 2) is before
    block.mixer.in_proj.weight.data = -block.mixer.in_proj.weight.data  # elsewhere
    check()
    assert recorded.of(m, 2) is not before
    block.mixer.out_proj.weight = torch.nn.Parameter(torch.randn_like(block.mixer.out_proj.weight))
    check()


@pytest.mark.parametrize("batch", [1, 3])
def test_mamba3_models_that_were_changed(device, batch):
    """Layers taken out or moved keep their numbers; how layers compute may change after the first text."""
    ids = torch.randint(0, 43, (batch, 9), device=device)

    def scores(m, **how):
        return torch.stack(m.generate(ids, 30, output_scores=True, return_dict_in_generate=True, **how).scores)
    m = plain("Mamba3 ranks", device, n_layer=4)
    m.backbone.layers = torch.nn.ModuleList([m.backbone.layers[i] for i in (3, 1, 2)])
    assert is_recorded(m, batch)
    for name, value in ((None, None), ("A_floor", 3.0), ("A_activation", "softplus"), ("activation", torch.nn.functional.gelu)):
        for block in m.backbone.layers if name else ():
            setattr(block.mlp if name == "activation" else block.mixer, name, value)
        refs.close(scores(m, cg=True), scores(m), (1e-3, 1e-3))


@pytest.mark.parametrize("layer, decoder", [("Mamba1", Decoder), ("Mamba3", Mamba3Decoder)])
def test_prompts_that_are_read_ahead(monkeypatch, layer, decoder):
    """As on a GPU, where they are read while the model is looked at."""
    m, ids, seen = plain(layer, torch.device("cpu")), torch.randint(0, 43, (1, 9)), []
    monkeypatch.setattr(decoder, "_reads_ahead", lambda self, ids: True)
    begin = decoder.begin
    monkeypatch.setattr(decoder, "begin", lambda self, ids: (seen.append(begin(self, ids) is not None), begin(self, ids))[1])
    block = m.backbone.layers[1]

    def check(begun):
        seen.clear()
        assert torch.equal(m.generate(ids, 20, cg=True), m.generate(ids, 20)) and seen == begun
    check([])
    check([True])
    block.mixer.dt_proj.bias.data.add_(0.5) if layer == "Mamba1" else block.mixer.dt_bias.data.add_(0.5)
    check([True])
    block.mixer.in_proj.weight.data = -block.mixer.in_proj.weight.data  # elsewhere
    check([False])
    check([True])
    block.mixer.out_proj.weight = torch.nn.Parameter(torch.randn_like(block.mixer.out_proj.weight))  # read ahead with the one before
    check([True])
    hook = block.mixer.register_forward_hook(lambda module, given, out: 2 * out)
    check([True])
    hook.remove()
    check([])
    hook = m.register_forward_hook(lambda module, given, out: out._replace(logits=-out.logits))
    check([True])
    hook.remove()
    check([])
    more = copy.deepcopy(block)
    more.layer_idx = more.mixer.layer_idx = len(m.backbone.layers)
    m.backbone.layers.append(more)
    check([True])


def test_what_is_not_recorded():
    m, ids = plain("Mamba1", torch.device("cpu")), torch.randint(0, 43, (2, 5))
    seen = []
    hook = m.backbone.layers[1].register_forward_hook(lambda *_: seen.append(1))
    assert recorded.of(m, 2) is None and m.generate(ids, 9, cg=True).shape == (2, 9) and seen
    hook.remove()
    assert is_recorded(m, 2) and not is_recorded(m, 1025)
    with torch.autocast("cpu", torch.bfloat16):
        assert recorded.of(m, 2) is None
    m.backbone.norm_f.weight.data = m.backbone.norm_f.weight.data.double()
    assert recorded.of(m, 2) is None
    with FakeTensorMode():
        fake = plain("Mamba1", torch.device("cpu"))
        assert recorded.of(fake, 2) is None and fake.generate(torch.zeros(2, 5, dtype=torch.long), 9, cg=True).shape == (2, 9)
    for changes in (dict(rms_norm=False), dict(d_intermediate=64), dict(ssm_cfg=dict(layer="Mamba2", d_state=16, headdim=16, rmsnorm=False)), dict(ssm_cfg=dict(layer="Mamba2", d_state=16, headdim=16, ngroups=2)),
                    dict(ssm_cfg=dict(layer="Mamba2", d_state=16, headdim=16, D_has_hdim=True)), dict(rms_norm=False, ssm_cfg=dict(layer="Mamba3", d_state=16, headdim=16)), dict(attn_layer_idx=[1], attn_cfg=dict(num_heads=4))):
        other = plain("Mamba1", torch.device("cpu"), **changes)
        assert recorded.of(other, 2) is None and torch.equal(other.generate(ids, 9, cg=True), other.generate(ids, 9))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layer", LAYERS)
def test_recorded_generation_in_16_bits(device, dtype, layer):
    """The likeliest tokens but for rounding; scores have the model's type."""
    m, ids = plain(layer, device, dtype), torch.randint(0, 43, (3, 5), device=device)
    for n in (1, 3):
        assert is_recorded(m, n) == (device == "cuda")
        out = m.generate(ids[:n], max_length=25, return_dict_in_generate=True, output_scores=True, cg=True)
        with torch.no_grad():
            logits = copy.deepcopy(m).float()(out.sequences[:, :-1]).logits[:, 4:]
        lost = logits.max(-1).values - logits.gather(2, out.sequences[:, 5:, None])[..., 0]
        assert out.scores[0].dtype is dtype and float(lost.max() / logits.std()) < 0.1
        refs.close(torch.stack(out.scores, 1).float(), logits, (0.0, 0.05 * float(logits.abs().max())))


def test_layers_are_moved_to_equal_distances():
    m = plain("Mamba1", torch.device("cpu"), torch.bfloat16)
    parameters = [block.mixer.in_proj.weight for block in m.backbone.layers]
    values = [p.clone() for p in parameters]
    with torch.inference_mode(), torch.inference_mode(False):
        _move_together(parameters)
    distances = {b.data_ptr() - a.data_ptr() for a, b in zip(parameters, parameters[1:])}
    assert len(distances) == 1 and min(distances) >= 2 * parameters[0].numel()  # wider where they happened to lie so
    assert all(torch.equal(p, v) for p, v in zip(parameters, values))
    addresses = [p.data_ptr() for p in parameters]
    _move_together(parameters)
    assert addresses == [p.data_ptr() for p in parameters]
    m(torch.randint(0, 43, (2, 9))).logits.sum().backward()
    assert all(p.grad is not None for p in parameters)


def test_stops_at_eos(device):
    m = small(device)
    ids = torch.randint(0, 43, (1, 5), device=device)
    free = m.generate(ids, max_length=30)
    eos = int(free[0, 8])
    first = int((free[0, 5:] == eos).nonzero()[0]) + 5
    assert m.generate(ids, max_length=30, eos_token_id=eos).shape[1] == first + 1
    assert int(m.generate(ids, max_length=30, vocab_size=3).max()) <= int(ids.max().clamp(min=2))


def test_sampling_rules():
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0], [3.0, 2.0, 1.0, 0.0]]).repeat(500, 1)
    assert torch.equal(sample(logits[:2]), torch.tensor([3, 0]))
    assert set(sample(logits, top_k=2)[::2].tolist()) == {2, 3}
    assert set(sample(logits, top_k=0, top_p=0.5)[::2].tolist()) == {3}
    assert set(sample(logits, top_k=0, min_p=0.3)[1::2].tolist()) == {0, 1}
    assert set(sample(logits, top_k=0)[::2].tolist()) == {0, 1, 2, 3}
    assert set(sample(logits, top_k=4, temperature=0.01)[::2].tolist()) == {3}


def test_repetition_penalty(device):
    m = small(device)
    ids = torch.randint(0, 43, (1, 4), device=device)
    out = m.generate(ids, max_length=20, repetition_penalty=1e9)[0].tolist()
    assert len(set(out[4:])) == len(out[4:])


def test_files(tmp_path):
    m = small()
    m.save_pretrained(str(tmp_path))
    again = MambaLMHeadModel.from_pretrained(str(tmp_path), dtype=torch.float32)
    ids = torch.randint(0, 43, (1, 6))
    assert torch.equal(again(ids).logits, m(ids).logits)
    half = MambaLMHeadModel.from_pretrained(str(tmp_path), dtype=torch.bfloat16)
    assert half.lm_head.weight.dtype == torch.bfloat16 and half.backbone.layers[0].mixer.A_log.dtype == torch.float32


def test_converted_files(tmp_path):
    """The -hf names of keys and configuration."""
    m = small(pad_vocab_size_multiple=1, vocab_size=48)
    state = {k.replace("embedding", "embeddings"): v for k, v in m.state_dict().items() if k != "lm_head.weight"}
    torch.save(state, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps(dict(model_type="mamba", hidden_size=32, num_hidden_layers=3, vocab_size=48, use_bias=False,
                                                         use_conv_bias=True, state_size=16, conv_kernel=4, expand=2, time_step_rank=2)))
    again = MambaLMHeadModel.from_pretrained(str(tmp_path))
    ids = torch.randint(0, 43, (1, 6))
    assert torch.equal(again(ids).logits, m(ids).logits)


def test_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="config.json"):
        MambaLMHeadModel.from_pretrained(str(tmp_path))


@pytest.mark.parametrize("path", [p for p in refs.golden_files("mamba_lm") if "falcon" not in p])  # transformers' model
def test_golden(device, path):
    """Logits, loss, gradients, greedy tokens; hybrid decoding caches the convolution's inputs, upstream its outputs."""
    g = {k[len("golden."):]: v for k, v in refs.read_safetensors(path)[1].items()}
    folder = str(path)[:-len(".golden.safetensors")]
    m = MambaLMHeadModel.from_pretrained(folder, device=device, dtype=torch.float32).eval()
    ids = g["input_ids"].long().to(device)
    logits = m(ids).logits
    assert refs.relative(logits, g["logits"]) < 1e-5
    loss = torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:])
    loss.backward()
    for name, p in m.named_parameters():
        if "grad." + name in g:
            assert refs.relative(p.grad, g["grad." + name]) < 1e-4, name
    out = m.generate(ids, ids.shape[1] + len(g["greedy"]), top_k=1)
    assert out[0, ids.shape[1]:].cpu().tolist() == g["greedy"].tolist()


def test_training_after_inference_mode():
    """What generate() and inference_mode leave behind: recorded steps, cached angles."""
    from flash_attn.layers.rotary import RotaryEmbedding
    from mamba_ssm.modules.mha import MHA
    m, ids = plain("Mamba1", torch.device("cpu")), torch.randint(0, 43, (2, 9))
    attention, rotary, x = MHA(32, 4, rotary_emb_dim=8).eval(), RotaryEmbedding(8).eval(), torch.randn(2, 9, 32)
    with torch.inference_mode():
        attention(x), rotary(x.clone().view(2, 9, 1, 4, 8).expand(2, 9, 3, 4, 8).clone())
    for of in (m, plain("Mamba3", torch.device("cpu"))):
        for other in (of, copy.deepcopy(of), pickle.loads(pickle.dumps(of))):
            assert is_recorded(other, 1) and torch.equal(other.generate(ids[:1], 20, cg=True), of.generate(ids[:1], 20))
    m(ids).logits.sum().backward()
    attention(x.requires_grad_()).sum().backward()
    rotary(torch.randn(2, 9, 3, 4, 8, requires_grad=True)).sum().backward()
    assert x.grad is not None and all(p.grad is not None for p in m.parameters())


def test_padding_after_packed_sequences(device):
    """cu_seqlens may end before the tokens do: the rest is padding, of index -1."""
    m = small(device, ssm_cfg=dict(layer="Mamba2", d_state=8, headdim=16)).eval()
    ids, ends = torch.randint(0, 43, (1, 12), device=device), torch.tensor([0, 4, 9, 9], dtype=torch.int32, device=device)
    index = torch.tensor([[0] * 4 + [1] * 5 + [-1] * 3], dtype=torch.int32, device=device)
    params, short = [InferenceParams(max_seqlen=20, max_batch_size=3) for _ in range(2)]
    with torch.no_grad():
        got = m(ids, inference_params=params, seq_idx=index, cu_seqlens=ends).logits[:, :9]
        want = m(ids[:, :9], inference_params=short, seq_idx=index[:, :9], cu_seqlens=ends).logits
    refs.close(got, want, (1e-5, 1e-5))
    for layer, states in params.key_value_memory_dict.items():
        for a, b in zip(states, short.key_value_memory_dict[layer]):
            refs.close(a, b, (1e-5, 1e-5))
