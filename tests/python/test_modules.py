"""Mamba, Block and the bidirectional form: upstream's parameters, the seeds' shapes, copies, devices, autocast, threads."""

import copy
import io
import math
import pickle
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import refs
from krait import _dropin
from mamba_ssm import Mamba, Mamba2
from mamba_ssm.modules.block import Block
from mamba_ssm.modules.mamba_simple import Block as OldBlock
from mamba_ssm.modules.mlp import GatedMLP
from mamba_ssm.ops.triton.layer_norm import RMSNorm

KEYS = ["A_log", "D", "in_proj.weight", "conv1d.weight", "conv1d.bias", "x_proj.weight", "dt_proj.weight", "dt_proj.bias",
        "out_proj.weight"]
BOTH_KEYS = ["A_log", "D", "A_b_log", "D_b", "in_proj.weight", "conv1d.weight", "conv1d.bias", "x_proj.weight", "dt_proj.weight",
             "dt_proj.bias", "conv1d_b.weight", "conv1d_b.bias", "x_proj_b.weight", "dt_proj_b.weight", "dt_proj_b.bias",
             "out_proj.weight"]


def reference(m, hidden, prefix=""):
    """The module's equation in float64 from its parameters."""
    p = {k: v.detach().cpu().double() for k, v in m.state_dict().items()}
    xz = F.linear(hidden.cpu().double(), p["in_proj.weight"], p.get("in_proj.bias")).transpose(1, 2)

    def direction(b, reverse):
        conv, x_proj, dt = "conv1d" + b, "x_proj" + b, "dt_proj" + b
        return refs.mamba_inner(xz, p[conv + ".weight"], p.get(conv + ".bias"), p[x_proj + ".weight"], p[dt + ".weight"], None, None,
                                -torch.exp(p["A%s_log" % b]), None, None, p["D" + b], p[dt + ".bias"], reverse=reverse)

    y = direction("", False)
    if m.bimamba:
        y = y + direction("_b", True)
    return F.linear(y.transpose(1, 2), p["out_proj.weight"], p.get("out_proj.bias"))


@pytest.mark.parametrize("options", [{}, {"bias": True}, {"conv_bias": False}, {"dt_rank": 5}, {"use_fast_path": False},
                                     {"d_state": 8, "d_conv": 2, "expand": 1}, {"bimamba": True}, {"bimamba": True, "bias": True}])
def test_forward(device, options):
    m = Mamba(d_model=16, **options).to(device)
    x = torch.randn(2, 64, 16, device=device)
    refs.close(m(x), reference(m, x), (6e-4, 2e-3))


def test_parameters(device):
    m = Mamba(d_model=48, device=device)
    assert list(m.state_dict()) == KEYS and m.dt_rank == 3
    shapes = {k: tuple(v.shape) for k, v in m.state_dict().items()}
    assert shapes == {"A_log": (96, 16), "D": (96,), "in_proj.weight": (192, 48), "conv1d.weight": (96, 1, 4), "conv1d.bias": (96,),
                      "x_proj.weight": (35, 96), "dt_proj.weight": (96, 3), "dt_proj.bias": (96,), "out_proj.weight": (48, 96)}
    assert torch.allclose(m.A_log.exp(), torch.arange(1, 17, device=device).float().expand(96, 16))
    assert m.A_log._no_weight_decay and m.D._no_weight_decay and m.dt_proj.bias._no_reinit
    dt = F.softplus(m.dt_proj.bias.detach())
    assert float(dt.min()) > 0.0009 and float(dt.max()) < 0.11 and float(m.dt_proj.weight.detach().abs().max()) <= 3 ** -0.5
    assert list(Mamba(16, bimamba=True).state_dict()) == BOTH_KEYS
    half = Mamba(16, dtype=torch.bfloat16, device=device)
    assert half.A_log.dtype == torch.float32 and half.D.dtype == torch.float32 and half.in_proj.weight.dtype == torch.bfloat16
    assert half(torch.randn(1, 5, 16, device=device, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_the_same_seed_gives_upstreams_weights():
    """Upstream draws in_proj, conv1d, x_proj, dt_proj, dt_proj again, the step sizes, out_proj, in this order."""
    torch.manual_seed(7)
    m = Mamba(16)
    torch.manual_seed(7)
    in_proj, conv = torch.nn.Linear(16, 64, bias=False), torch.nn.Conv1d(32, 32, 4, groups=32, padding=3)
    x_proj, dt_proj = torch.nn.Linear(32, 33, bias=False), torch.nn.Linear(1, 32)
    torch.nn.init.uniform_(dt_proj.weight, -1.0, 1.0)
    dt = torch.exp(torch.rand(32) * (math.log(0.1) - math.log(0.001)) + math.log(0.001)).clamp(min=1e-4)
    out_proj = torch.nn.Linear(32, 16, bias=False)
    for got, want in ((m.in_proj.weight, in_proj.weight), (m.conv1d.weight, conv.weight), (m.x_proj.weight, x_proj.weight),
                      (m.dt_proj.weight, dt_proj.weight), (m.dt_proj.bias, dt + torch.log(-torch.expm1(-dt))),
                      (m.out_proj.weight, out_proj.weight)):
        assert torch.equal(got, want)


def test_seed_steps(device):
    """The first two shapes of the acceptance test."""
    m = Mamba(d_model=16, d_state=16, d_conv=4, expand=2).to(device)
    assert m(torch.randn(2, 64, 16, device=device)).shape == (2, 64, 16)
    assert Mamba(64, 16, 4, 2).to(device)(torch.randn(2, 100, 64, device=device)).shape == (2, 100, 64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_steps_equal_the_whole(device, dtype):
    from mamba_ssm.utils.generation import InferenceParams
    m = Mamba(32, layer_idx=0, dtype=dtype).to(device).eval()
    x = torch.randn(3, 12, 32, device=device, dtype=dtype)
    with torch.no_grad():
        want = m(x)
        params = InferenceParams(max_seqlen=12, max_batch_size=3)
        got = [m(x[:, :7], inference_params=params)]
        params.seqlen_offset = 7
        for t in range(7, 12):
            got.append(m(x[:, t:t + 1], inference_params=params))
    bound = {torch.float32: (1e-4, 1e-5), torch.float16: (1e-2, 1e-2), torch.bfloat16: (5e-2, 5e-2)}[dtype]
    refs.close(torch.cat(got, 1), want, bound)
    conv_state, ssm_state = m.allocate_inference_cache(3, 12)
    assert conv_state.shape == (3, 64, 4) and ssm_state.shape == (3, 64, 16) and conv_state.dtype == ssm_state.dtype == dtype


def test_short_prompt_state(device):
    from mamba_ssm.utils.generation import InferenceParams
    m = Mamba(16, layer_idx=0).to(device).eval()
    params = InferenceParams(max_seqlen=4, max_batch_size=1)
    with torch.no_grad():
        m(torch.randn(1, 2, 16, device=device), inference_params=params)
    assert float(params.key_value_memory_dict[0][0][..., :2].abs().max()) == 0


def test_copies_and_pickles(device):
    m = Mamba(16, bimamba=True).to(device)
    x = torch.randn(1, 9, 16, device=device)
    want = m(x)
    buffer = io.BytesIO()
    torch.save(m.state_dict(), buffer)
    buffer.seek(0)
    fresh = Mamba(16, bimamba=True).to(device)
    fresh.load_state_dict(torch.load(buffer, map_location=device))
    for other in (copy.deepcopy(m), pickle.loads(pickle.dumps(m)), fresh):
        assert torch.equal(other(x), want)
        assert other.A_log._no_weight_decay if other is fresh else True


def test_meta_device():
    m = Mamba(64, device="meta")
    assert all(p.is_meta for p in m.parameters())
    real = m.to_empty(device="cpu")
    real.load_state_dict(Mamba(64).state_dict())
    assert real(torch.randn(1, 3, 64)).shape == (1, 3, 64)


@pytest.mark.parametrize("kind", [torch.bfloat16])
def test_autocast(device, kind):
    m = Mamba(32).to(device)
    x = torch.randn(2, 20, 32, device=device)
    want = m(x)
    with torch.autocast(torch.device(device).type, dtype=kind):
        out = m(x)
    assert out.dtype == kind
    refs.close(out, want, (5e-2, 5e-2))
    out.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == p.dtype for p in m.parameters())


def test_one_step_lowers_the_loss(device):
    m = Mamba(d_model=16).to(device)
    optimiser = torch.optim.Adam(m.parameters(), 1e-3)
    x, y = torch.randn(2, 64, 16, device=device), torch.randn(2, 64, 16, device=device)
    losses = []
    for _ in range(2):
        optimiser.zero_grad()
        loss = F.mse_loss(m(x), y)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[1] < losses[0]


def test_checkpointed(device):
    from torch.utils.checkpoint import checkpoint
    m = Mamba(16).to(device)
    x = torch.randn(2, 9, 16, device=device, requires_grad=True)
    want = torch.autograd.grad(m(x).square().sum(), list(m.parameters()))
    got = torch.autograd.grad(checkpoint(m, x, use_reentrant=False).square().sum(), list(m.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(got, want))


@pytest.mark.parametrize("block", [Block, OldBlock])
@pytest.mark.parametrize("fused,norm", [(False, torch.nn.LayerNorm), (True, torch.nn.LayerNorm), (True, RMSNorm), (False, RMSNorm)])
def test_blocks(device, fused, norm, block):
    mlp = () if block is OldBlock else (lambda dim: GatedMLP(dim, 32),)
    b = block(16, lambda dim: Mamba(dim, layer_idx=0), *mlp, norm_cls=norm, fused_add_norm=fused, residual_in_fp32=True).to(device)
    x = torch.randn(2, 8, 16, device=device)
    hidden, residual = b(x)
    total, sum_before = hidden + residual, x
    want = x + b.mixer(b.norm(x))
    if block is Block:
        want = want + b.mlp(b.norm2(want))
    refs.close(total, want, (1e-5, 1e-5))
    hidden, residual = b(hidden, residual)
    assert hidden.shape == x.shape and residual.dtype == torch.float32


class Doubled(torch.nn.Module):
    def forward(self, weight):
        return 2 * weight


@pytest.mark.parametrize("kind", [Mamba, Mamba2])
@pytest.mark.parametrize("name,member", [("conv1d", "weight"), ("out_proj", "weight"), ("conv1d", "bias"), (None, "D")])
def test_parametrized(device, kind, name, member):
    """A parameter that torch's parametrizations have moved is the one that they make."""
    torch.manual_seed(0)
    options = {"d_state": 8, "headdim": 8} if kind is Mamba2 else {}
    m, x = kind(16, **options).to(device), torch.randn(2, 7, 16, device=device)
    doubled = copy.deepcopy(m)
    parent = doubled if name is None else getattr(doubled, name)
    getattr(parent, member).data.mul_(2)
    torch.nn.utils.parametrize.register_parametrization(m if name is None else getattr(m, name), member, Doubled())
    assert torch.equal(m(x), doubled(x))
    with torch.nn.utils.parametrize.cached():
        assert torch.equal(m(x), doubled(x))


def test_what_has_no_operator_has_no_name():
    """Clients check for names: one that only raises would select a failing path. These files refuse arguments, or have a
    method for subclasses."""
    raising = [path for path in Path(_dropin._FOLDER).rglob("*.py") if "raise NotImplementedError" in path.read_text()]
    assert sorted(str(path.relative_to(_dropin._FOLDER)) for path in raising) == [
        "causal_conv1d/causal_conv1d_interface.py", "fla/modules/convolution.py", "fla/ops/_delta.py", "flash_attn/cute/interface.py", "flash_attn/losses/cross_entropy.py", "flash_attn/models/bert.py",
        "flash_attn/models/gpt.py", "flash_attn/ops/fused_dense.py", "flash_attn/utils/generation.py", "flash_attn_interface.py",
        "mamba_ssm/modules/mamba_simple.py", "mamba_ssm/utils/generation.py"]


def test_threads(device):
    """Several Python threads may use one module at once, as DataParallel does."""
    m = Mamba(32).to(device)
    inputs = [torch.randn(2, 40, 32, device=device) for _ in range(4)]
    want, got = [m(x) for x in inputs], [None] * 4

    def work(i):
        for _ in range(10):
            got[i] = m(inputs[i])
            got[i].sum().backward()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert all(torch.equal(a, b) for a, b in zip(got, want))


def _in_child(queue, state, x):
    torch.set_num_threads(1)  # like DataLoader's workers: OpenMP does not survive a fork
    m = Mamba(16)
    m.load_state_dict(state)
    queue.put(float(m(x).sum().detach()))


def test_after_fork():
    """A forked worker (a DataLoader's) opens its own contexts."""
    import multiprocessing
    m, x = Mamba(16), torch.randn(2, 9, 16)
    want = float(m(x).sum().detach())
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue, m.state_dict(), x))
    child.start()
    assert abs(queue.get(timeout=60) - want) < 1e-4
    child.join(60)


def test_distributed(tmp_path, monkeypatch):
    """One process of DistributedDataParallel gives the plain gradients."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # resolving this machine's host name may take minutes
    dist = torch.distributed
    if not dist.is_available() or not dist.is_gloo_available() if hasattr(dist, "is_gloo_available") else not dist.is_available():
        pytest.skip("this torch has no distributed package")
    dist.init_process_group("gloo", init_method="file://%s" % (tmp_path / "rendezvous"), rank=0, world_size=1)
    try:
        m, x = Mamba(16), torch.randn(2, 9, 16)
        want = torch.autograd.grad(m(x).square().sum(), list(m.parameters()))
        wrapped = torch.nn.parallel.DistributedDataParallel(m)
        wrapped(x).square().sum().backward()
        assert all(torch.allclose(p.grad, g) for p, g in zip(m.parameters(), want))
        del wrapped  # before its process group: freed later, it may wait for gloo's thread forever
    finally:
        dist.destroy_process_group()


def test_second_derivatives_are_refused(device):
    """Of every differentiable function."""
    from causal_conv1d import causal_conv1d_fn
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn
    from mamba_ssm.ops.triton.layer_norm import layer_norm_fn
    from mamba_ssm.ops.triton.layernorm_gated import rmsnorm_fn
    x, w = torch.randn(2, 8, 8, device=device, requires_grad=True), torch.randn(8, device=device)
    A, B = -torch.rand(8, 4, device=device), torch.randn(2, 4, 8, device=device)
    for out in (causal_conv1d_fn(x, w[:, None].expand(8, 4)), selective_scan_fn(x, x, A, B, B), layer_norm_fn(x, w, w), rmsnorm_fn(x, w, None, z=x),
                Mamba(8).to(device)(x)):
        (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="second derivatives"):
            grad.sum().backward()


# ---- layers that are not plain: adapters, hooks --------------------------------------------------------------------------
class Adapted(torch.nn.Module):
    """A layer with something added, as peft replaces layers: its own weight and bias still look like the layer's."""

    def __init__(self, base, added):
        super().__init__()
        self.base, self.added = base, added

    weight = property(lambda self: self.base.weight)
    bias = property(lambda self: self.base.bias)

    def forward(self, x):
        return self.base(x) + self.added(x)


def adapt(layer, how):
    """-> the layer with an added part, and a plain twin of it."""
    added, twin = copy.deepcopy(layer), copy.deepcopy(layer)
    with torch.no_grad():
        for p in added.parameters():
            p.mul_(0.3)
        for p, q in zip(twin.parameters(), added.parameters()):
            p.add_(q)
    if how == "replaced":
        return Adapted(layer, added), twin
    if how == "hook":
        layer.register_forward_hook(lambda m, args, out: out + added(*args))
        return layer, twin
    forward = layer.forward  # accelerate replaces the function
    layer.forward = lambda x: forward(x) + added(x)
    return layer, twin


LAYERS = [(make, name) for make, names in (
    (lambda: Mamba(16, layer_idx=0), ("in_proj", "conv1d", "x_proj", "dt_proj", "out_proj")), (lambda: Mamba(16, bimamba_type="v1"), ("conv1d", "x_proj", "dt_proj", "out_proj")),
    (lambda: Mamba(16, bimamba=True), ("conv1d_b", "x_proj", "x_proj_b", "dt_proj_b", "out_proj")),
    (lambda: Mamba2(16, d_state=8, headdim=8, layer_idx=0), ("in_proj", "conv1d", "out_proj"))) for name in names]


@pytest.mark.parametrize("how", ["replaced", "hook", "function"])
@pytest.mark.parametrize("make, name", LAYERS, ids=["%d %s" % (i, name) for i, (_, name) in enumerate(LAYERS)])
def test_adapters_are_not_ignored(make, name, how):
    """Outputs, decoding steps and the adapter's gradient are those of the block with merged weights."""
    from mamba_ssm.utils.generation import InferenceParams
    m = make().eval()
    twin, x = copy.deepcopy(m), torch.randn(2, 7, 16)
    adapted, merged = adapt(getattr(m, name), how)
    setattr(m, name, adapted), setattr(twin, name, merged)
    want, got = twin(x), m(x)
    refs.close(got, want, (1e-5, 1e-5))
    assert not torch.allclose(make().eval()(x), want, atol=1e-4)
    if how == "replaced":
        got.square().sum().backward()
        want.square().sum().backward()
        for p, q in zip(adapted.added.parameters(), merged.parameters()):
            refs.close(p.grad, q.grad, (1e-4, 1e-4))
    if getattr(m, "layer_idx", None) is not None:
        params = InferenceParams(max_seqlen=7, max_batch_size=2)
        with torch.no_grad():
            steps = [m(x[:, :4], inference_params=params)]
            for params.seqlen_offset in (4, 5, 6):
                steps.append(m(x[:, params.seqlen_offset:params.seqlen_offset + 1], inference_params=params))
        refs.close(torch.cat(steps, 1), want, (1e-4, 1e-5))
