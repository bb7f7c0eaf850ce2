"""MambaLMHeadModel: keys, configuration, files, generation."""

import dataclasses
import json

import pytest
import torch

import conftest
import refs
from mamba_ssm import MambaLMHeadModel
from mamba_ssm.models.config_mamba import MambaConfig
from mamba_ssm.utils import whole_step
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


@pytest.mark.parametrize("layer", ["Mamba1", "Mamba2"])
def test_a_step_as_one_call(layer):
    """generate(cg=True)'s captured step, here by the operator's reference: the same tokens, after steps of the model
        itself and after changes of its weights."""
    sizes = dict(d_model=64, ssm_cfg=dict(layer=layer, d_state=32, headdim=16) if layer == "Mamba2" else dict(layer=layer, dt_rank=8), rms_norm=True, residual_in_fp32=True)
    m = small(torch.device("cpu"), torch.bfloat16, **sizes)
    assert whole_step.fits(m, 3) and not whole_step.fits(m, 9) and not whole_step.fits(small(torch.device("cpu"), torch.float32, **sizes), 3)
    ids = torch.randint(0, 43, (3, 9))
    with torch.no_grad():
        want = m(ids).logits
        step = whole_step.WholeStep(m, 3)
        assert torch.equal(m(ids).logits, want)
        params = InferenceParams(max_seqlen=9, max_batch_size=3, key_value_memory_dict=step.states())
        m(ids[:, :4], inference_params=params)
        got = [step(ids[:, t:t + 1]) for t in range(4, 9)]
        refs.close(torch.cat(got, 1), want[:, 4:], (5e-2, 5e-2))
        step.refresh()
        assert not step.moved
        for block in m.backbone.layers:
            block.mixer.A_log += 1
            block.mixer.in_proj.weight *= 0.5
        step.refresh()
        assert not step.moved
        for state in (step.conv_state, step.ssm_state):
            state.zero_()
        refs.close(step(ids[:, :1]), m(ids[:, :1]).logits, (5e-2, 5e-2))
        m.backbone.layers[0].mixer.in_proj.weight.data = m.backbone.layers[0].mixer.in_proj.weight.data.clone()
        step.refresh()
        assert step.moved


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


@pytest.mark.parametrize("layer", ["Mamba1", "Mamba2"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_generation_in_16_bits(device, dtype, layer):
    """Where the device has a kernel for a whole step and where it has none (of GPUs only Hopper, for float16)."""
    m = small(device, dtype, d_model=64, ssm_cfg=dict(layer=layer, d_state=32, headdim=16) if layer == "Mamba2" else dict(layer=layer, dt_rank=8), rms_norm=True, residual_in_fp32=True)
    ids = torch.randint(0, 43, (3, 5), device=device)
    out = m.generate(ids, max_length=15, cg=True)
    assert out.shape == (3, 15) and torch.equal(out[:, :5], ids)


def test_a_whole_step_that_no_kernel_takes(monkeypatch):
    m = small(torch.device("cpu"), torch.bfloat16, d_model=64, ssm_cfg=dict(layer="Mamba1", dt_rank=8), rms_norm=True, residual_in_fp32=True)
    assert isinstance(whole_step.of(m, 3), whole_step.WholeStep) == (conftest.EMULATED is None)
    monkeypatch.setattr(whole_step, "accepts", lambda *_: False)
    assert whole_step.of(m, 3) is None


def test_training_after_inference_mode():
    """What generate() and inference_mode leave behind: moved weights, cached angles."""
    from flash_attn.layers.rotary import RotaryEmbedding
    from mamba_ssm.modules.mha import MHA
    m, ids = small(torch.device("cpu"), torch.bfloat16, rms_norm=True, residual_in_fp32=True), torch.randint(0, 43, (2, 9))
    attention, rotary, x = MHA(32, 4, rotary_emb_dim=8).eval(), RotaryEmbedding(8).eval(), torch.randn(2, 9, 32)
    with torch.inference_mode():
        whole_step.WholeStep(m, 2)
        attention(x), rotary(x.clone().view(2, 9, 1, 4, 8).expand(2, 9, 3, 4, 8).clone())
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
