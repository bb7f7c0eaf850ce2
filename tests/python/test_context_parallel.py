"""Sequences over two and four gloo processes: each process's part beside one process that reads the same parts in turn (equal bits), and beside one pass."""

import os
import subprocess
import sys
import types

import pytest
import torch

import krait.ops
from krait import _context_parallel as cp

_WORKER = """
import sys, torch, torch.distributed as dist
import torch.nn.functional as F
import krait
from krait import _context_parallel as cp
from mamba_ssm.models.config_mamba import MambaConfig
from mamba_ssm.models.mixer_seq_simple import MambaLMHeadModel
from test_context_parallel import LAYERS, _Turn, in_turn, make, parts_of
rank, size = int(sys.argv[1]), int(sys.argv[3])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=size)
torch.set_num_threads(1)
for name in LAYERS:
    layer = make(name)
    torch.manual_seed(1)
    u, weights = torch.randn(2, 41, 32), torch.randn(2, 41, 32)
    outs, grads = in_turn(layer, u, weights, size)
    layer.zero_grad()
    part = parts_of(u, size)[rank].clone().requires_grad_()
    with krait.context_parallel():
        out = layer(part)
    (out * parts_of(weights, size)[rank]).sum().backward()
    mine = dict({key: p.grad for key, p in layer.named_parameters()}, u=part.grad)
    assert torch.equal(out, outs[rank]), name
    assert all(torch.equal(mine[key], grads[rank][key]) for key in mine), (name, [key for key in mine if not torch.equal(mine[key], grads[rank][key])])
    with torch.no_grad():
        turn = _Turn(size)
        for before, other in enumerate(parts_of(u, size)[:rank + 1]):
            with cp.over(turn.at(before)):
                want = layer(other)
        with krait.context_parallel():
            assert torch.equal(layer(part), want), name


def backward_alone():
    # nothing is kept after it that would hold the last message
    layers = torch.nn.Sequential(*[make("Mamba") for _ in range(3)])
    with krait.context_parallel():
        out = layers(torch.randn(1, 8, 32))
    out.sum().backward()


for _ in range(3):
    backward_alone()
    dist.barrier()


def train(layer, parallel):
    torch.manual_seed(2)
    model = MambaLMHeadModel(MambaConfig(d_model=32, n_layer=2, vocab_size=40, d_intermediate=0, ssm_cfg=dict(layer)))
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=3e-3), []
    for step in range(50):
        torch.manual_seed(100 + step)
        ids = torch.randint(0, 40, (2, 1)) + torch.arange(33) * 3
        inputs, labels = ids[:, :-1] % 40, ids[:, 1:] % 40
        if parallel:
            inputs, labels = [parts_of(t, size)[rank] for t in (inputs, labels)]
            with krait.context_parallel():
                logits = model(inputs).logits
        else:
            logits = model(inputs).logits
        loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum") / 64
        optimizer.zero_grad()
        loss.backward()
        if parallel:
            loss = loss.detach()
            dist.all_reduce(loss)
            for p in model.parameters():
                dist.all_reduce(p.grad)
        optimizer.step()
        losses.append(float(loss))
    return losses


for layer in ({"layer": "Mamba1"}, {"layer": "Mamba2", "headdim": 16, "d_state": 16}, {"layer": "Mamba3", "headdim": 16, "d_state": 16}, {"layer": "Mamba3", "headdim": 16, "d_state": 16, "is_mimo": True, "mimo_rank": 2}):
    found, expected = train(layer, True), train(layer, False)
    worst = max(abs(a - b) / b for a, b in zip(found, expected))
    assert expected[-1] < 0.7 * expected[0] and worst < 1e-5, (layer, worst, expected[0], expected[-1])
dist.barrier()
dist.destroy_process_group()
print("same as one process")
"""
LAYERS = {"Mamba": {}, "Mamba2": dict(headdim=16, d_state=16), "Mamba2, no norm, D by channel": dict(headdim=16, d_state=16, rmsnorm=False, D_has_hdim=True),
          "Mamba2 with an MLP part": dict(headdim=16, d_state=16, d_ssm=32, ngroups=2), "Mamba3": dict(headdim=16, d_state=16),
          "Mamba3, MIMO, norm": dict(headdim=16, d_state=16, is_mimo=True, mimo_rank=2, is_outproj_norm=True)}


def make(name, **more):
    import mamba_ssm
    torch.manual_seed(0)
    return getattr(mamba_ssm, name.split(",")[0].split(" ")[0])(32, layer_idx=0, **LAYERS[name], **more)


def parts_of(t, size):
    """Parts of unequal lengths, of dimension 1; with one token at least."""
    return t.tensor_split([(i + 1) * t.shape[1] // size - (i + 1 < size and t.shape[1] % 2) for i in range(size - 1)], dim=1)


class _Turn:
    """The parts of one process, in turn: messages wait in a dictionary."""

    def __init__(self, size):
        self.rank, self.size, self.messages = 0, size, {}

    def at(self, rank):
        turn = _Turn(self.size)
        turn.rank, turn.messages = rank, self.messages
        return turn

    def send(self, message, step):
        self.messages.setdefault((self.rank, self.rank + step), []).append(message.clone())

    def finish(self):
        pass

    def receive(self, count, device, step):
        message = self.messages[self.rank + step, self.rank].pop(0)
        assert message.numel() == count
        return message


def in_turn(layer, u, weights, size):
    """-> by part: the result; gradients of parameters and of the input."""
    turn, outs, inputs, grads = _Turn(size), [], [], [None] * size
    for rank, part in enumerate(parts_of(u, size)):
        inputs.append(part.clone().requires_grad_())
        with cp.over(turn.at(rank)):
            outs.append(layer(inputs[rank]))
    for rank in reversed(range(size)):
        layer.zero_grad()
        (outs[rank] * parts_of(weights, size)[rank]).sum().backward()
        grads[rank] = dict({key: p.grad.clone() for key, p in layer.named_parameters()}, u=inputs[rank].grad)
    assert not any(turn.messages.values())
    return [out.detach() for out in outs], grads


def _near(found, expected, what):
    assert (found - expected).abs().max() <= 2e-5 * expected.abs().max() + 1e-7, (what, (found - expected).abs().max(), expected.abs().max())


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", LAYERS)
def test_parts_are_the_whole(name, size):
    """Results and gradients of the parts, the latter added up, beside one pass; the float32 and the bfloat16 module."""
    layer = make(name)
    torch.manual_seed(1)
    u, weights = torch.randn(2, 41, 32), torch.randn(2, 41, 32)
    outs, grads = in_turn(layer, u, weights, size)
    layer.zero_grad()
    whole = u.clone().requires_grad_()
    out = layer(whole)
    (out * weights).sum().backward()
    _near(torch.cat(outs, 1), out.detach(), name)
    _near(torch.cat([g["u"] for g in grads], 1), whole.grad, name)
    for key, p in layer.named_parameters():
        _near(sum(g[key] for g in grads), p.grad, (name, key))
    with torch.no_grad():  # otherwise computed: the convolution takes states
        turn = _Turn(size)
        for rank, part in enumerate(parts_of(u, size)):
            with cp.over(turn.at(rank)):
                _near(layer(part), outs[rank], name)
        assert not any(turn.messages.values())
    half = make(name, dtype=torch.bfloat16)
    outs, _ = in_turn(half, u.bfloat16(), weights.bfloat16(), size)
    out = half(u.bfloat16()).detach()
    assert (torch.cat(outs, 1) - out).float().abs().max() <= 3e-2 * out.float().abs().max()


def test_frozen_layers_exchange_no_gradients():
    """Only what one process's layers need is sent back: nothing by a frozen layer without an input's gradient."""
    layer = make("Mamba2").requires_grad_(False)
    turn = _Turn(2)
    for rank, part in enumerate(parts_of(torch.randn(1, 8, 32), 2)):
        with cp.over(turn.at(rank)):
            out = layer(part)
        assert not out.requires_grad and sum(map(len, turn.messages.values())) == 2 * (1 - rank)


def test_refusals():
    from mamba_ssm import Mamba, Mamba2, Mamba3
    from mamba_ssm.modules.mamba2_simple import Mamba2Simple
    from mamba_ssm.modules.mha import MHA
    u = torch.randn(1, 8, 32)
    with cp.over(_Turn(2)):
        for call in (lambda: Mamba2(32, headdim=16)(u, seq_idx=torch.zeros(1, 8, dtype=torch.int32)), lambda: MHA(32, 2, causal=True)(u), lambda: Mamba2Simple(32, headdim=16)(u),
                     lambda: Mamba(32, bimamba_type="v2")(u), lambda: Mamba3(32, headdim=16, d_state=16)(u, cu_seqlens=torch.tensor([0, 8]))):
            with pytest.raises(NotImplementedError, match="krait.context_parallel: (Mamba|MHA)"):
                call()


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.skipif(not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="this torch has no gloo")
def test_processes(tmp_path, size):
    """Bits of each process's part, and the losses of 50 steps of small models."""
    here = os.path.dirname(os.path.abspath(__file__))
    environment = dict(os.environ, KRAIT_THREADS="1", PYTHONPATH=os.pathsep.join([path for path in sys.path if path] + [here]))
    workers = [subprocess.Popen([sys.executable, "-c", _WORKER, str(rank), str(tmp_path / "rendezvous"), str(size)], env=environment, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True) for rank in range(size)]
    said = [worker.communicate(timeout=500)[0] for worker in workers]
    assert all(worker.returncode == 0 for worker in workers) and all("same as one process" in text for text in said), said


@pytest.mark.parametrize("length, width", [(10, 4), (2, 4), (1, 4), (5, 1)])
def test_convolution_of_parts(length, width):
    """Of any length: a part that is shorter than the filter passes on what it was given."""
    torch.manual_seed(3)
    x, weight, bias, dout = torch.randn(2, 3 * length, 8), torch.randn(8, width), torch.randn(8), torch.randn(2, 3 * length, 8)

    def grads(run):
        tensors = [t.clone().requires_grad_() for t in (x, weight, bias)]
        out = run(*tensors)
        return out.detach(), torch.autograd.grad((out * dout).sum(), tensors)

    def in_parts(x, weight, bias):
        turn, outs = _Turn(3), []
        for rank, part in enumerate(x.split(length, 1)):
            with cp.over(turn.at(rank)):
                outs.append(cp.conv_over_parts(part, weight, bias, True))
        return torch.cat(outs, 1)
    out, expected = grads(lambda x, weight, bias: krait.ops.causal_conv1d(x.transpose(1, 2), weight, bias, activation="silu").transpose(1, 2))
    found_out, found = grads(in_parts)
    _near(found_out, out, "out")
    for name, a, b in zip(("x", "weight", "bias"), found, expected):
        _near(a, b, name)


@pytest.mark.parametrize("what", ["hooks", "autocast", "one sequence of rows"])
def test_parts_of_a_mamba2_in_other_ways(what):
    """Projections that must be called as modules; autocast; rows with seqlen."""
    layer = make("Mamba2")
    torch.manual_seed(1)
    u, weights = torch.randn(1, 24, 32), torch.randn(1, 24, 32)
    if what == "hooks":
        for projection in (layer.in_proj, layer.out_proj):
            projection.register_forward_hook(lambda module, inputs, out: out * 1.5)

    def run(x):
        with torch.autocast("cpu", torch.bfloat16, enabled=what == "autocast"):
            return layer(x[0], seqlen=x.shape[1])[None] if what == "one sequence of rows" else layer(x)

    def grads(x, run):
        x = x.clone().requires_grad_()
        layer.zero_grad()
        out = run(x)
        (out.float() * weights).sum().backward()
        return out.detach(), x.grad, [p.grad.clone() for p in layer.parameters()]

    def in_parts(x):
        turn, outs = _Turn(2), []
        for rank, part in enumerate(parts_of(x, 2)):
            with cp.over(turn.at(rank)):
                outs.append(run(part))
        return torch.cat(outs, 1)
    tolerance = 3e-2 if what == "autocast" else 2e-5
    out, du, dweights = grads(u, run)
    found, found_du, found_dweights = grads(u, in_parts)
    for a, b in ((found, out), (found_du, du), *zip(found_dweights, dweights)):
        assert a.dtype == b.dtype and (a - b).float().abs().max() <= tolerance * b.float().abs().max() + 1e-7


def test_nothing_of_a_part_is_copied(monkeypatch):
    """The operators' results lie where they are read: the gradient of the input projection's columns is one tensor, whose columns they are."""
    from krait import _mamba2_part as inside
    layer = make("Mamba2")
    seen = {}
    for name in ("SSD_BWD", "GATED_NORM_BWD"):
        operator = getattr(inside, name)
        monkeypatch.setattr(inside, name, types.SimpleNamespace(run=lambda tensors, *a, key=name, op=operator, **b: seen.update({key: tensors}) or op.run(tensors, *a, **b)))
    monkeypatch.setattr(inside, "run_conv_gradient", lambda *call, run=cp.run_conv_gradient: seen.update(conv=call) or run(*call))
    with cp.over(_Turn(1)):
        out = layer(torch.randn(2, 10, 32, requires_grad=True))
    out.sum().backward()
    storages = {t.untyped_storage().data_ptr() for t in (seen["SSD_BWD"][13], seen["GATED_NORM_BWD"][6], seen["conv"][-1])}
    assert len(storages) == 1 and all(t.untyped_storage().data_ptr() == seen["conv"][-2].untyped_storage().data_ptr() for t in (seen["SSD_BWD"][12], seen["SSD_BWD"][15]))
