"""krait.accelerate: layers and loss of transformers' Mamba and Mamba-2, forward and gradient, beside transformers' own."""

import copy
import pickle
import warnings

import pytest
import torch

import krait
from krait import _mamba_layers
from krait._language_loss import causal_lm_loss

transformers = pytest.importorskip("transformers")
from test_accelerate_layers import BOUNDS, error, run  # noqa: E402

KINDS = ("Mamba", "Mamba2")
if not hasattr(transformers, "Mamba2ForCausalLM"):
    pytest.skip("transformers has no Mamba-2", allow_module_level=True)


@pytest.fixture(autouse=True)
def small_calls(monkeypatch):
    monkeypatch.setattr(_mamba_layers, "_FEWEST_TOKENS", 16)


def build(kind, dtype=torch.float32, **options):
    torch.manual_seed(0)
    more = {"num_heads": 8, "head_dim": 16, "n_groups": 1, "chunk_size": 16} if kind == "Mamba2" else {}
    config = getattr(transformers, kind + "Config")(hidden_size=64, num_hidden_layers=3, vocab_size=96, state_size=16, **{**more, **options})
    return getattr(transformers, kind + "ForCausalLM")(config).to(dtype).train()


def accelerated(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return krait.accelerate(copy.deepcopy(model))


def count(monkeypatch, model):
    """Layers whose class computes, from here on."""
    counts, kind = [], type(model.backbone.layers[0])
    plain = kind.forward
    monkeypatch.setattr(kind, "forward", lambda *args, **kwargs: (counts.append(1), plain(*args, **kwargs))[1])
    return counts


def compare(own, model, ids, bounds, autocast=None, **options):
    (out, grads), (want, want_grads) = [run(m, ids, autocast, **options) for m in (own, model)]
    assert error(out.logits, want.logits) < bounds[0] and error(out.loss, want.loss) < bounds[0] and grads.keys() == want_grads.keys()
    for name, grad in grads.items():
        assert grad.dtype is want_grads[name].dtype and error(grad, want_grads[name]) < bounds[1], name


def prompts(rows, length):
    return torch.randint(0, 96, (rows, length), generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("dtype, autocast", [(torch.float32, None), (torch.float32, torch.bfloat16), (torch.bfloat16, None)])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_gradients_are_those_of_transformers(kind, dtype, autocast, device, monkeypatch):
    model = build(kind, dtype).to(device)
    own, ids = accelerated(model), prompts(2, 40).to(device)
    assert krait.accelerated(own) == {"": "language model (generate)", "backbone.layers": "Mamba layer"} and own.loss_function is causal_lm_loss
    counts = count(monkeypatch, model)
    compare(own, model, ids, BOUNDS[autocast or dtype], autocast)
    assert len(counts) == 3  # the model's, none of the other's


@pytest.mark.parametrize("kind", KINDS)
def test_biases_and_a_stream_of_the_weights_type(kind):
    dtype = torch.bfloat16 if kind == "Mamba2" else torch.float32  # its class in training has a float32 bias beside other weights
    model = build(kind, dtype, use_bias=True, use_conv_bias=False, residual_in_fp32=False)
    own = accelerated(model)
    assert krait.accelerated(own)["backbone.layers"] == "Mamba layer"
    compare(own, model, prompts(2, 40), BOUNDS[dtype])


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_class_computes(kind, monkeypatch):
    """Masks, caches, few tokens, hooks inside: the class's forward, with its results."""
    model = build(kind)
    own, ids = accelerated(model), prompts(2, 20)
    counts, mask = count(monkeypatch, model), torch.ones(2, 20, dtype=torch.long)
    mask[0, :6] = 0
    for options in (dict(attention_mask=mask), dict(use_cache=True)):
        del counts[:]
        compare(own, model, ids, BOUNDS[torch.float32], **options)
        assert len(counts) == 6
    del counts[:]
    compare(own, model, prompts(1, 7), BOUNDS[torch.float32])
    assert len(counts) == 6
    seen = []
    own.backbone.layers[1].mixer.conv1d.register_forward_hook(lambda *_: seen.append(1))
    del counts[:]
    compare(own, model, ids, BOUNDS[torch.float32])
    assert len(counts) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_on_projections_are_called(kind, monkeypatch):
    class Adapted(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.more = inner, torch.nn.Linear(inner.in_features, inner.out_features, bias=False)

        @property
        def weight(self):
            return self.inner.weight

        @property
        def bias(self):
            return self.inner.bias

        def forward(self, x):
            return self.inner(x) + self.more(x)

    model = build(kind).eval()  # in training the class passes out_proj's weight to its kernel
    own, ids = accelerated(model), prompts(2, 20)
    torch.manual_seed(1)
    adapters = [Adapted(model.backbone.layers[1].mixer.in_proj), Adapted(model.backbone.layers[2].mixer.out_proj)]
    for m in (model, own):
        m.backbone.layers[1].mixer.in_proj, m.backbone.layers[2].mixer.out_proj = copy.deepcopy(adapters)
    counts = count(monkeypatch, model)
    compare(own, model, ids, BOUNDS[torch.float32], use_cache=False)
    assert len(counts) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints_copies_and_taking_it_back(kind, monkeypatch):
    model = build(kind)
    own, ids = accelerated(model), prompts(2, 20)
    want = run(own, ids)[0].logits
    for other in (copy.deepcopy(own), pickle.loads(pickle.dumps(own))):
        assert other.backbone.layers[1].forward.layer is other.backbone.layers[1] and torch.equal(run(other, ids)[0].logits, want)
    for m in (model, own):
        m.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    compare(own, model, ids, BOUNDS[torch.float32])
    assert own.generate(ids[:1, :8], max_new_tokens=3, do_sample=False).shape == (1, 11)  # behind layers that are krait's
    counts = count(monkeypatch, model)
    assert krait.decelerate(own) is own and not krait.accelerated(own) and own.loss_function is not causal_lm_loss
    run(own, ids)
    assert counts


@pytest.mark.parametrize("kind", KINDS)
def test_layers_of_another_class_are_named(kind):
    model = build(kind)
    mixer = model.backbone.layers[1].mixer
    mixer.__class__ = type("Louder", (type(mixer),), {"forward": lambda self, *args, **kwargs: 1.1 * super(type(self), self).forward(*args, **kwargs)})
    with pytest.warns(UserWarning, match="Louder is not of Mamba"):
        own = krait.accelerate(model)
    assert not krait.accelerated(own)


def test_several_groups_stay_the_classs():
    model = build("Mamba2", n_groups=2)
    with pytest.warns(UserWarning, match="several groups"):
        own = krait.accelerate(copy.deepcopy(model))
    assert "backbone.layers" not in krait.accelerated(own)
