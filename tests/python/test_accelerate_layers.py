"""krait.accelerate: layers and loss of transformers' Qwen2, Llama, Mistral and Qwen3, forward and gradient, beside transformers' own."""

import copy
import pickle
import warnings

import pytest
import torch

import krait
from krait import _decoder_layers
from krait._language_loss import causal_lm_loss

transformers = pytest.importorskip("transformers")
from test_accelerate_language import KINDS, build_attention, prompts  # noqa: E402

BOUNDS = {torch.float32: (1e-5, 1e-5), torch.bfloat16: (2e-2, 8e-2)}  # of logits, and of each gradient


@pytest.fixture(autouse=True)
def small_calls(monkeypatch):
    monkeypatch.setattr(_decoder_layers, "_FEWEST_TOKENS", 16)
    monkeypatch.setattr(_decoder_layers, "_warned", set())


def accelerated(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # generate in 16 bits on a CPU
        return krait.accelerate(copy.deepcopy(model))


def count(monkeypatch, model):
    """Layers whose class computes, from here on."""
    counts, kind = [], type(model.model.layers[0])
    plain = kind.forward
    monkeypatch.setattr(kind, "forward", lambda *args, **kwargs: (counts.append(1), plain(*args, **kwargs))[1])
    return counts


def run(model, ids, autocast=None, **options):
    model.zero_grad(set_to_none=True)
    with torch.autocast(ids.device.type, dtype=torch.bfloat16, enabled=autocast is not None):
        out = model(ids, labels=ids, **options)
    out.loss.backward()
    return out, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def error(a, b):
    return float((a.detach().float() - b.detach().float()).norm() / b.detach().float().norm())


def compare(own, model, ids, bounds, autocast=None, **options):
    (out, grads), (want, want_grads) = [run(m, ids, autocast, **options) for m in (own, model)]
    assert error(out.logits, want.logits) < bounds[0] and error(out.loss, want.loss) < bounds[0]
    assert grads.keys() == want_grads.keys()
    for name, grad in grads.items():
        assert grad.dtype is want_grads[name].dtype and error(grad, want_grads[name]) < bounds[1], name
    return out, want


@pytest.mark.parametrize("dtype, autocast", [(torch.float32, None), (torch.float32, torch.bfloat16), (torch.bfloat16, None)])
@pytest.mark.parametrize("kind", list(KINDS))
def test_logits_and_gradients_are_those_of_transformers(kind, dtype, autocast, device, monkeypatch):
    model = build_attention(kind, dtype).to(device).train()
    own, ids = accelerated(model), prompts(2, 40).to(device)
    assert krait.accelerated(own)["model.layers"] == "decoder layer" and own.loss_function is causal_lm_loss
    model_counts = count(monkeypatch, model)
    for use_cache in (False, True):
        del model_counts[:]
        out, want = compare(own, model, ids, BOUNDS[autocast or dtype], autocast, use_cache=use_cache)
        assert len(model_counts) == 3  # the model's, none of the other's
        if use_cache:
            for a, b in zip(out.past_key_values.layers, want.past_key_values.layers):
                assert error(a.keys, b.keys) < 2e-2 and error(a.values, b.values) < 2e-2


def test_losses_of_fifty_steps():
    model = build_attention("Qwen3").train()
    losses, ids = [], [torch.randint(0, 96, (2, 32), generator=torch.Generator().manual_seed(i)) for i in range(10)]
    for m in (model, accelerated(model)):
        optimizer = torch.optim.AdamW(m.parameters(), lr=3e-3)
        losses.append([])
        for step in range(50):
            loss = run(m, ids[step % 10])[0].loss
            optimizer.step()
            losses[-1].append(float(loss.detach()))
    assert losses[0][-1] < 0.8 * losses[0][0] and max(abs(a - b) for a, b in zip(*losses)) < 1e-4


def test_gradients_through_a_cache(device):
    """A second call reads keys and values of the first, and trains what made them."""
    model = build_attention("Qwen2").to(device).train()
    own, ids = accelerated(model), prompts(2, 40).to(device)
    found = []
    for m in (own, model):
        m.zero_grad()
        out = m(ids[:, :32], use_cache=True)
        m(ids[:, 32:], labels=ids[:, 32:], past_key_values=out.past_key_values).loss.backward()
        found.append({name: p.grad for name, p in m.named_parameters()})
    for name, grad in found[0].items():
        assert error(grad, found[1][name]) < 1e-5, name


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_of_activations(reentrant, monkeypatch):
    model = build_attention("Llama").train()
    own, ids = accelerated(model), prompts(2, 20)
    for m in (model, own):
        m.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        m.enable_input_require_grads()
    compare(own, model, ids, BOUNDS[torch.float32])
    counts = count(monkeypatch, model)
    run(own, ids)
    assert not counts


def test_masks_are_transformers_and_the_rest_is_not(monkeypatch):
    model = build_attention("Qwen2").train()
    own, ids = accelerated(model), prompts(2, 20)
    mask = torch.ones_like(ids)
    mask[0, :6] = 0
    with pytest.warns(UserWarning, match="with a mask"):
        out, grads = run(own, ids, attention_mask=mask)
    want, want_grads = run(model, ids, attention_mask=mask)
    assert error(out.logits, want.logits) < 1e-5 and all(error(grad, want_grads[name]) < 1e-5 for name, grad in grads.items())
    counts = count(monkeypatch, model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        run(own, ids, attention_mask=mask)
    assert not counts
    window = build_attention("Mistral", sliding_window=8).train()
    windowed = accelerated(window)
    assert krait.accelerated(windowed) == {"model.layers": "decoder layer"}
    compare(windowed, window, ids, BOUNDS[torch.float32])
    pytest.importorskip("krait.transformers")
    for m in (window, windowed):  # whose calls have no mask
        m.to(torch.bfloat16).set_attn_implementation("flash_attention_2")
    compare(windowed, window, ids, BOUNDS[torch.bfloat16])
    compare(own, model, ids, BOUNDS[torch.float32], position_ids=torch.stack([torch.arange(20), 3 + torch.arange(20)]))
    packed = torch.cat([torch.arange(12), torch.arange(8)])[None]
    compare(own, model, ids[:1], BOUNDS[torch.float32], position_ids=packed)


def test_what_is_in_the_way_is_respected(monkeypatch):
    """Hooks, another forward, other layers in a part's place, dropout, small calls."""
    model = build_attention("Qwen2").train()
    own, ids = accelerated(model), prompts(2, 20)
    counts = count(monkeypatch, model)
    part = own.model.layers[1]
    seen = []
    for module, n in ((part.mlp, 1), (part.self_attn, 1), (part.input_layernorm, 1), (part.self_attn.q_proj, 0), (part.mlp.up_proj, 0), (part.mlp.down_proj, 0), (part, 0)):
        del counts[:], seen[:]
        hook = module.register_forward_hook(lambda *_: seen.append(1))
        run(own, ids)
        hook.remove()
        assert seen == [1] and len(counts) == n, type(module).__name__

    class Twice(torch.nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)
    for layers in (model.model.layers, own.model.layers):
        for linear in (layers[0].self_attn.k_proj, layers[2].mlp.gate_proj, layers[1].self_attn.o_proj):
            linear.__class__ = Twice
    compare(own, model, ids, BOUNDS[torch.float32])
    class Wide(torch.nn.Linear):  # an adapter that keeps float32 under autocast
        def forward(self, x):
            with torch.autocast(x.device.type, enabled=False):
                return super().forward(x.float())
    for m in (model, own):
        m.model.layers[1].self_attn.o_proj.__class__ = Wide
    compare(own, model, ids, BOUNDS[torch.bfloat16], torch.bfloat16)
    for m in (model, own):
        m.model.layers[1].mlp.forward = lambda x: -x
    compare(own, model, ids, BOUNDS[torch.float32])
    del counts[:]
    own(ids[:1, :8])
    assert len(counts) == 3
    for layer in own.model.layers:
        layer.self_attn.attention_dropout = 1.0
    assert float(own.model.layers[0].self_attn(torch.randn(1, 20, 64), own.model.rotary_emb(torch.randn(1, 20, 64), torch.arange(20)[None]), None)[0].detach().abs().max()) < 10
    first = own(ids).logits
    own.eval()
    assert error(first, own(ids).logits) > 1e-3


def test_frozen_parts_and_gradients_of_embeddings():
    model = build_attention("Qwen3").train()
    for name, p in model.named_parameters():
        p.requires_grad_("layers.1" in name and ("k_proj" in name or "up_proj" in name or "q_norm" in name))
    own, ids = accelerated(model), prompts(2, 20)
    compare(own, model, ids, BOUNDS[torch.float32])
    found = []
    for m in (own, model):
        x = m.model.embed_tokens(ids).detach().requires_grad_()
        m(inputs_embeds=x).logits.square().sum().backward()
        found.append(x.grad)
    assert error(*found) < 1e-5


def test_layers_that_differ_in_numbers_types_and_sizes(monkeypatch):
    """Calls packed for one layer are not run for another's epsilon, types, strides or width; nor is attention that is no longer causal."""
    model, ids = build_attention("Qwen3").train(), prompts(2, 20)
    own = accelerated(model)
    compare(own, model, ids, BOUNDS[torch.float32])
    for m in (model, own):
        a, b, c = m.model.layers
        a.input_layernorm.variance_epsilon, b.self_attn.k_norm.variance_epsilon = 1e-2, 1e-1
        b.input_layernorm.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 2 * b.input_layernorm.weight.numel())[::2])
        n = c.mlp.up_proj.weight.shape[0] // 2
        c.mlp.gate_proj.weight, c.mlp.up_proj.weight = [torch.nn.Parameter(p.weight[:n].detach().clone()) for p in (c.mlp.gate_proj, c.mlp.up_proj)]
        c.mlp.down_proj.weight = torch.nn.Parameter(c.mlp.down_proj.weight[:, :n].detach().clone())
        c.self_attn.is_causal = False
    counts = count(monkeypatch, model)
    compare(own, model, ids, BOUNDS[torch.float32])
    assert len(counts) == 3
    for m in (model, own):
        m.model.layers[2].self_attn.q_norm.to(torch.bfloat16), m.model.layers[2].self_attn.k_norm.to(torch.bfloat16)
    compare(own, model, ids, BOUNDS[torch.bfloat16], torch.bfloat16)


def test_losses_of_logits_in_a_wider_matrix():
    logits, labels = torch.randn(2, 9, 60, dtype=torch.bfloat16), torch.randint(0, 50, (2, 9))
    dense, wide = causal_lm_loss(logits[..., :50].contiguous(), labels, 50), causal_lm_loss(logits[..., :50], labels, 50)
    assert torch.equal(dense, wide)
    with pytest.raises(IndexError):
        causal_lm_loss(logits, labels - 50, 60)  # as torch's does


def test_copies_files_types_and_taking_it_back(tmp_path, monkeypatch):
    model = build_attention("Llama").train()
    own, ids = accelerated(model), prompts(2, 20)
    want = run(own, ids)[0].logits
    for other in (copy.deepcopy(own), pickle.loads(pickle.dumps(own))):
        assert other.model.layers[1].forward.layer is other.model.layers[1] and torch.equal(run(other, ids)[0].logits, want)
    own.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.state_dict().keys() == own.state_dict().keys() and error(again(ids).logits, want) < 1e-5
    compare(own.to(torch.bfloat16), copy.deepcopy(model).to(torch.bfloat16), ids, BOUNDS[torch.bfloat16])
    counts = count(monkeypatch, model)
    assert krait.decelerate(own) is own and not krait.accelerated(own) and "forward" not in own.model.layers[0].__dict__ and own.loss_function is not causal_lm_loss
    run(own, ids)
    assert len(counts) == 3


def test_compiled_fake_and_captured_outputs(monkeypatch):
    model = build_attention("Qwen2").train()
    own, ids = accelerated(model), prompts(2, 20)
    counts = count(monkeypatch, model)
    out = own(ids, output_hidden_states=True)
    assert not counts
    want = model(ids, output_hidden_states=True)
    assert all(error(a, b) < 1e-5 for a, b in zip(out.hidden_states, want.hidden_states))
    compare(own, model, ids, BOUNDS[torch.float32])
    torch._dynamo.reset()
    compiled = torch.compile(own, backend="aot_eager")
    assert error(compiled(ids).logits, model(ids).logits) < 1e-5
    with torch.device("meta"):
        assert copy.deepcopy(own).to("meta")(ids.to("meta")).logits.shape == (2, 20, 96)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_losses_are_those_of_transformers(dtype, device):
    from transformers.loss.loss_utils import ForCausalLMLoss
    labels = torch.randint(0, 50, (2, 9))
    labels[0, 3] = labels[1, 8] = -100
    for scale in (1, 200):  # of logits whose probabilities vanish
        logits = (torch.randn(2, 9, 50) * scale).to(device, dtype)
        for options in ({}, dict(num_items_in_batch=torch.tensor(12)), dict(num_items_in_batch=7), dict(shift_labels=labels.flip(0).to(device)), dict(ignore_index=-1)):
            found = []
            for loss in (ForCausalLMLoss, causal_lm_loss):
                x = logits.clone().requires_grad_()
                value = loss(x, labels.to(device).masked_fill(labels.to(device) < 0, options.get("ignore_index", -100)), 50, **options)
                (3 * value).backward()
                found.append((value, x.grad))
            assert error(found[1][0], found[0][0]) < 1e-5 and error(found[1][1], found[0][1]) < (1e-6 if dtype is torch.float32 else 4e-3), options


def test_eager_attention_is_named():
    model = build_attention("Qwen2")
    model.set_attn_implementation("eager")
    own, ids = accelerated(model), prompts(2, 20)
    compare(own.train(), model.train(), ids, BOUNDS[torch.float32])


def _train_in_parallel(rank, folder, how):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method="file://%s/%s" % (folder, how), rank=rank, world_size=2)
    _decoder_layers._FEWEST_TOKENS = 16
    model = build_attention("Qwen2").train()
    own, ids, kind = accelerated(model), prompts(4, 20), type(model.model.layers[0])
    if how == "ddp":
        own = torch.nn.parallel.DistributedDataParallel(own)
    else:
        from torch.distributed.fsdp import fully_shard
        for part in (*own.model.layers, own):
            fully_shard(part)
    plain, kind.forward = kind.forward, None  # no layer is its class's
    own(ids[2 * rank:2 * rank + 2], labels=ids[2 * rank:2 * rank + 2]).loss.backward()
    kind.forward = plain
    for part in ids.split(2):
        model(part, labels=part).loss.div(2).backward()
    got = {name.replace("module.", ""): p.grad for name, p in own.named_parameters()}
    for name, p in model.named_parameters():
        assert error(got[name].full_tensor() if how == "fsdp" else got[name], p.grad) < 1e-5, name
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_two_processes(how, tmp_path):
    """The gradients of DistributedDataParallel and of FSDP2 are the mean of both."""
    torch.multiprocessing.spawn(_train_in_parallel, (str(tmp_path), how), nprocs=2)
