"""krait.accelerate: PrimeKnet as one autograd node, against the same model in PyTorch (tools/primeknet_twin.py)."""

import copy
import io
import os
import pickle
import sys
import warnings

import pytest
import torch

import krait
from krait._torch import HAS_CUSTOM_OPS

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
twin = pytest.importorskip("primeknet_twin", reason="tools/primeknet_twin.py is not beside the tests")

SMALL = dict(fft_len=40, dense_channel=4, sigmoid_beta=1.5, dense_depth=2, num_tsblock=1, time_block_num=1, freq_block_num=2, freq_block_kernel=[3, 5])
T = 6


def build(stage="mamba", causal=False, **changes):
    torch.manual_seed(3)
    config = dict(SMALL, causal=causal, **changes)
    config.setdefault(stage + "_hidden_size", 5)
    net = twin.build("primeknet_" + stage, config)
    twin.randomise(net, torch.Generator().manual_seed(4))
    return net


def spectra(batch=2, frames=T, seed=5, bins=21):
    generator = torch.Generator().manual_seed(seed)
    mag = torch.rand((batch, bins, frames), generator=generator) + 0.05
    pha = (torch.rand(mag.shape, generator=generator) * 2 - 1) * 3.1
    return torch.stack((mag * pha.cos(), mag * pha.sin()), -1)


def loss_of(outputs):
    mag, pha, com = outputs
    return (com - spectra(com.shape[0], com.shape[2], seed=6).to(com.device)).pow(2).mean() + mag.pow(2).mean() + 0.1 * pha.cos().mean()


def gradients(net, x):
    net.zero_grad(set_to_none=True)
    loss_of(net(x)).backward()
    return torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in net.parameters()])


def relative(a, b):
    return float(((a - b).norm() / b.norm()).detach())


def calls_of(net):
    """Counts the calls that PyTorch computes: the class's forward."""
    counts = []
    plain = type(net).forward

    class Counted(type(net)):
        def forward(self, *args, **kwargs):
            counts.append(1)
            return plain(self, *args, **kwargs)
    net.__class__ = Counted
    return counts


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("stage", ["mamba", "gru", "lstm"])
def test_equals_pytorch(stage, causal, device):
    net = build(stage, causal).to(device)
    own = krait.accelerate(copy.deepcopy(net))
    assert krait.accelerated(own) == {"": "PrimeKnet"} and not krait.accelerated(net)
    counts, x = calls_of(own), spectra().to(device)
    with torch.no_grad():
        for name, got, want in zip(("mag", "pha", "com"), own(x), net(x)):
            assert relative(got, want) < 1e-5, name
    got, want = gradients(own, x), gradients(net, x)
    assert relative(got, want) < 5e-4
    assert not counts


def test_losses_of_fifty_steps_and_states():
    """The losses are PyTorch's, and after any step either model can go on from the other's state_dict."""
    plain, own = build(), krait.accelerate(build())
    counts = calls_of(own)
    batches = [spectra(seed=10 + i) for i in range(4)]
    optimisers = [torch.optim.AdamW(net.parameters(), 5e-4, betas=(0.8, 0.99)) for net in (plain, own)]
    for step in range(50):
        losses = []
        for net, optimiser in zip((plain, own), optimisers):
            loss = loss_of(net(batches[step % 4]))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        assert abs(losses[0] - losses[1]) < 1e-4 * abs(losses[0]), step
    assert losses[0] < 1 and list(own.state_dict()) == list(plain.state_dict()) and not counts
    own.load_state_dict(plain.state_dict())
    assert torch.allclose(own(batches[0])[2], plain(batches[0])[2], atol=1e-5)


def test_frozen_parts_have_no_gradient():
    net, own = build(), krait.accelerate(build())
    for model in (net, own):
        for name, p in model.named_parameters():
            p.requires_grad_(not name.startswith("sequence_block"))
    counts = calls_of(own)
    assert relative(gradients(own, spectra()), gradients(net, spectra())) < 5e-4
    assert all((p.grad is None) == name.startswith("sequence_block") for name, p in own.named_parameters()) and not counts


def test_gradient_of_the_input():
    given = [spectra().requires_grad_() for _ in range(2)]
    for net, x in zip((build(), krait.accelerate(build())), given):
        loss_of(net(x)).backward()
    assert relative(given[1].grad, given[0].grad) < 1e-3


def test_calls_overlap_and_repeat():
    """Two forward passes before their backward, a backward twice, outputs of which only one is used."""
    net, own = build(), krait.accelerate(build())
    x, y = spectra(seed=7), spectra(seed=8)
    found = []
    for model in (net, own):
        a, b = model(x), model(y)
        (a[2].sum() + a[0].sum()).backward(retain_graph=True)
        b[0].pow(2).sum().backward()
        (a[2].sum() + a[0].sum()).backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert relative(found[1], found[0]) < 5e-4


def test_memory_of_other_shapes_is_given_back():
    """Runs of the shapes before the last two do not keep theirs."""
    own = krait.accelerate(build())
    for frames in (40, 41, 42, 43):
        loss_of(own(spectra(2, frames))).backward()
    graphs = list(own.forward.kind._model._graphs.values())
    kept = sum(len(g.idle) * g.bytes for g in graphs)
    assert 0 < kept <= 1.6 * max(g.bytes for g in graphs) and graphs[-1].idle


def test_a_changed_parameter_is_noticed():
    own = krait.accelerate(build())
    loss = loss_of(own(spectra()))
    with torch.no_grad():
        next(own.parameters()).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    x = spectra().requires_grad_()
    gradient, = torch.autograd.grad(loss_of(own(x)), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable|differentiate twice"):
        gradient.sum().backward()


def test_hooks_inside_are_called_and_those_on_the_whole_keep_the_graph():
    own, seen = krait.accelerate(build()), []
    counts = calls_of(own)
    whole = own.register_forward_hook(lambda *_: seen.append("whole"))
    own(spectra())
    assert seen == ["whole"] and not counts
    inside = own.dense_encoder.register_forward_hook(lambda *_: seen.append("inside"))
    own(spectra())
    assert seen == ["whole", "inside", "whole"] and len(counts) == 1
    inside.remove()
    whole.remove()
    own(spectra())
    assert len(counts) == 1
    parameter_hook = own.dense_encoder.dense_conv_1[0].weight.register_hook(lambda g: g * 0)
    assert float(gradients(own, spectra()).abs().sum()) > 0 and not own.dense_encoder.dense_conv_1[0].weight.grad.any()
    parameter_hook.remove()


def test_other_types_parts_and_wrappers_run_in_pytorch():
    own = krait.accelerate(build())
    counts, x = calls_of(own), spectra()
    want = own(x)[2]
    assert torch.allclose(own.double()(x.double())[2].float(), want, atol=1e-4) and len(counts) == 1
    own.float()
    own.dense_encoder.forward = type(own.dense_encoder).forward.__get__(own.dense_encoder)
    own(x)
    assert len(counts) == 2
    del own.dense_encoder.forward
    own.dense_encoder = copy.deepcopy(own.dense_encoder)
    own(x)
    assert len(counts) == 3
    with pytest.raises(Exception, match="."):  # the class's own error
        own(x[:, :5])


def test_autocast_is_followed():
    net, own = build(dense_channel=8), krait.accelerate(build(dense_channel=8))
    counts, x = calls_of(own), spectra()
    with torch.autocast("cpu", torch.bfloat16):
        got = own(x)
    want = net(x)
    assert not counts and got[2].dtype is torch.float32 and 1e-6 < relative(got[2], want[2]) < 0.05


def test_copies_and_pickles():
    own = krait.accelerate(build())
    want = own(spectra())[2]
    buffer = io.BytesIO()
    torch.save(own, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    for other in (copy.deepcopy(own), pickle.loads(pickle.dumps(own)), loaded):
        assert krait.accelerated(other) == {"": "PrimeKnet"} and other.forward.model is other
        assert torch.equal(other(spectra())[2], want)
        with torch.no_grad():
            other.dense_encoder.dense_conv_1[0].weight.mul_(2)
        assert not torch.equal(other(spectra())[2], want) and torch.equal(own(spectra())[2], want)


@pytest.mark.skipif(not HAS_CUSTOM_OPS, reason="torch.compile of krait needs torch 2.4")
def test_compiled_exported_fake_and_meta():
    from torch._subclasses import FakeTensorMode
    net, own = build(), krait.accelerate(build())
    want = net(spectra())[2]
    compiled = torch.compile(own, fullgraph=True, backend="eager")
    assert torch.allclose(compiled(spectra())[2], want, atol=1e-5)
    exported = torch.export.export(own, (spectra(),))
    assert torch.allclose(exported.module()(spectra())[2], want, atol=1e-5)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert own(mode.from_tensor(spectra()))[2].shape == want.shape
    meta = krait.accelerate(build().to("meta"))
    assert meta(spectra().to("meta"))[2].shape == want.shape
    assert torch.allclose(own(spectra())[2], want, atol=1e-4)


def test_what_is_not_recognised_is_named():
    with pytest.warns(UserWarning, match="Linear: nothing in it has the parameters"):
        krait.accelerate(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match="not a torch.nn.Module"):
        krait.accelerate(3)
    other = build()
    other.mask_decoder.mask_conv[2].eps = 1.0
    with pytest.warns(UserWarning, match="computes another mag"):
        krait.accelerate(other)
    assert not krait.accelerated(other)
    wide = build()
    wide.dense_encoder.dense_conv_1[0] = torch.nn.Conv2d(2, 6, 1)
    with pytest.warns(UserWarning, match="not a PrimeKnet's"):
        krait.accelerate(wide)
    replaced = build()
    replaced.forward = lambda x: x
    with pytest.warns(UserWarning, match="has been replaced"):
        krait.accelerate(replaced)
    with pytest.warns(UserWarning, match="streaming"):
        krait.accelerate(build(causal=True, norm="batch", channel_attention="moving"))


def test_a_part_of_a_model_and_a_second_time():
    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.generator, self.other = build(), torch.nn.Linear(2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        both = krait.accelerate(krait.accelerate(Both()))
    assert krait.accelerated(both) == {"generator": "PrimeKnet"}


def _train_in_parallel(rank, folder):
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://%s/meeting" % folder, rank=rank, world_size=2)
    net = torch.nn.parallel.DistributedDataParallel(krait.accelerate(build()))
    assert krait.accelerated(net.module)
    loss_of(net(spectra(1, seed=20 + rank))).backward()
    if rank == 0:
        torch.save([p.grad for p in net.parameters()], os.path.join(folder, "gradients"))
    dist.barrier()  # a process whose neighbour has gone may be ended by gloo's threads
    dist.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_two_processes(tmp_path):
    """DistributedDataParallel's gradients are the mean of both."""
    torch.multiprocessing.spawn(_train_in_parallel, (str(tmp_path),), nprocs=2)
    got = torch.cat([g.flatten() for g in torch.load(tmp_path / "gradients")])
    net = build()
    want = (gradients(net, spectra(1, seed=20)) + gradients(net, spectra(1, seed=21))) / 2
    assert relative(got, want) < 5e-4
