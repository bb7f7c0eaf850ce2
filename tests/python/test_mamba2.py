"""Mamba2 and Mamba2Simple: golden files, upstream's parameters, steps, packed sequences, tensor parallelism, compilation, the language model."""

import copy
import importlib
import json
import math
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import refs
from krait import _torch
from mamba_ssm import Mamba2, MambaLMHeadModel
from mamba_ssm.models.config_mamba import MambaConfig
from mamba_ssm.modules.mamba2_simple import Mamba2Simple
from mamba_ssm.utils.generation import InferenceParams

block = importlib.import_module("krait.ops.mamba2_block")  # the package's attribute of that name is the function
_GOLDEN = refs.golden_files("mamba2")


def golden_module(path, device):
    metadata, g = refs.read_safetensors(path)
    _, weights = refs.read_safetensors(path.replace(".golden.", ".weights."))
    config = json.loads(metadata["config"])
    if "dt_limit" in config:
        config["dt_limit"] = tuple(math.inf if v is None else v for v in config["dt_limit"])
    m = Mamba2(**config, layer_idx=0) if metadata["model"] == "mamba2" else Mamba2Simple(**config)
    m.load_state_dict(weights)
    return m.to(device), {k[len("golden."):]: v.to(device) for k, v in g.items()}, int(metadata["prefill"])


@pytest.mark.parametrize("path", _GOLDEN)
@pytest.mark.parametrize("what", ["", "packed_"])
def test_golden(device, path, what):
    """Plain and packed: output and gradients of the module of upstream."""
    m, g, _ = golden_module(path, device)
    u = g[what + "u"].clone().requires_grad_()
    out = m(u, seq_idx=g["packed_seq_idx"]) if what else m(u)
    (out * g[what + "loss_w_out"]).sum().backward()
    assert refs.relative(out, g[what + "out"]) < 1e-5 and refs.relative(u.grad, g[what + "grad_input"]) < 1e-4
    for key, parameter in m.named_parameters():
        if what + "grad." + key in g:
            assert refs.relative(parameter.grad, g[what + "grad." + key]) < 1e-4, key


@pytest.mark.parametrize("path", [p for p in _GOLDEN if "simple" not in p])  # Mamba2Simple has no inference states
def test_golden_steps(device, path):
    """Prefill, then token by token; states of packed sequences. As upstream, steps ignore dt_limit."""
    m, g, n = golden_module(path, device)
    with torch.no_grad():
        params = InferenceParams(max_seqlen=64, max_batch_size=2)
        assert refs.relative(m(g["u"][:, :n], inference_params=params), g["prefill_out"]) < 1e-5
        conv_state, ssm_state = params.key_value_memory_dict[0]
        assert refs.relative(conv_state, g["prefill_conv_state"]) < 1e-5 and refs.relative(ssm_state, g["prefill_ssm_state"]) < 1e-5
        params.seqlen_offset = n
        steps = [m(g["u"][:, i:i + 1], inference_params=params) for i in range(n, g["u"].shape[1])]
        assert refs.relative(torch.cat(steps, 1), g["step_out"]) < 1e-5
        assert refs.relative(conv_state, g["last_conv_state"]) < 1e-5 and refs.relative(ssm_state, g["last_ssm_state"]) < 1e-5
        params = InferenceParams(max_seqlen=64, max_batch_size=4)
        m(g["packed_u"], seq_idx=g["packed_seq_idx"], cu_seqlens=g["packed_cu_seqlens"], inference_params=params)
        conv_states, ssm_states = params.key_value_memory_dict[0]
        assert refs.relative(conv_states, g["packed_conv_states"]) < 1e-5 and refs.relative(ssm_states, g["packed_ssm_states"]) < 1e-5


def test_script_from_the_report(device):
    """The script a new GPU's owner ran to test mamba_ssm."""
    model = Mamba2(d_model=512).to(device)
    x = torch.randn(1, 1024, 512, device=device)
    assert model(x).shape == (1, 1024, 512)


def test_parameters(device):
    m = Mamba2(64, d_state=16, headdim=16, ngroups=2, device=device)
    shapes = {k: tuple(v.shape) for k, v in m.state_dict().items()}
    assert shapes == {"dt_bias": (8,), "A_log": (8,), "D": (8,), "in_proj.weight": (2 * 128 + 2 * 2 * 16 + 8, 64), "conv1d.weight": (128 + 64, 1, 4),
                      "conv1d.bias": (128 + 64,), "norm.weight": (128,), "out_proj.weight": (64, 128)}
    assert all(getattr(m, k)._no_weight_decay for k in ("A_log", "D", "dt_bias"))
    assert 1 <= float(m.A_log.detach().exp().min()) and float(m.A_log.detach().exp().max()) <= 16
    assert Mamba2(64, headdim=16, D_has_hdim=True).D.shape == (128,) and not hasattr(Mamba2(64, rmsnorm=False), "norm")
    half = Mamba2(64, headdim=16, dtype=torch.bfloat16, device=device)
    assert half.A_log.dtype == torch.bfloat16 and half.D.dtype == torch.float32
    assert half(torch.randn(1, 5, 64, device=device, dtype=torch.bfloat16)).dtype == torch.bfloat16
    simple = Mamba2Simple(64, learnable_init_states=True)
    assert simple.init_states.shape == (1, 128, 64) and simple.init_states._no_weight_decay
    for bad in ({"headdim": 48}, {"d_ssm": 65}, {"A_init_range": (0, 1)}):
        with pytest.raises(AssertionError):
            Mamba2(64, **bad)


def test_the_same_seed_gives_upstreams_weights():
    """Upstream draws in_proj, conv1d, the step sizes, A, out_proj, in this order."""
    torch.manual_seed(7)
    m = Mamba2(16, d_state=4, headdim=8, conv_init=0.5)
    torch.manual_seed(7)
    in_proj, conv = torch.nn.Linear(16, 76, bias=False), torch.nn.Conv1d(40, 40, 4, groups=40, padding=3)
    torch.nn.init.uniform_(conv.weight, -0.5, 0.5)
    dt = torch.exp(torch.rand(4) * (math.log(0.1) - math.log(0.001)) + math.log(0.001)).clamp(min=1e-4)
    A = torch.empty(4).uniform_(1, 16)
    out_proj = torch.nn.Linear(32, 16, bias=False)
    for got, want in ((m.in_proj.weight, in_proj.weight), (m.conv1d.weight, conv.weight), (m.dt_bias, dt + torch.log(-torch.expm1(-dt))),
                      (m.A_log, torch.log(A)), (m.out_proj.weight, out_proj.weight)):
        assert torch.equal(got, want)


@pytest.mark.parametrize("options", [{}, {"rmsnorm": False}, {"ngroups": 2, "norm_before_gate": True}, {"d_ssm": 32, "bias": True}, {"D_has_hdim": True}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_equal_the_whole(device, options, dtype):
    m = Mamba2(32, d_state=8, headdim=8, layer_idx=0, dtype=dtype, **options).to(device).eval()
    x = torch.randn(3, 12, 32, device=device, dtype=dtype)
    with torch.no_grad():
        want, params = m(x), InferenceParams(max_seqlen=12, max_batch_size=3)
        got = [m(x[:, :2], inference_params=params)]  # shorter than the convolution
        params.seqlen_offset = 2
        got += [m(x[:, t:t + 1], inference_params=params) for t in range(2, 12)]
    refs.close(torch.cat(got, 1), want, (1e-4, 1e-5) if dtype is torch.float32 else (5e-2, 5e-2))
    conv_state, ssm_state = m.allocate_inference_cache(3, 12)
    assert conv_state.shape == (3, m.conv1d.weight.shape[0], 4) and conv_state.stride(1) == 1 and ssm_state.shape == (3, m.nheads, 8, 8)


def test_rows_without_a_batch(device):
    """seqlen: (B L, d_model) in and out."""
    m, x = Mamba2(32, d_state=8, headdim=8).to(device), torch.randn(2, 9, 32, device=device)
    refs.close(m(x.flatten(0, 1), seqlen=9), m(x).flatten(0, 1), (1e-5, 1e-6))


@pytest.mark.parametrize("b,length", [(0, 5), (2, 0)])
def test_nothing_to_do(device, b, length):
    m = Mamba2(32, d_state=8, headdim=8).to(device)
    out = m(torch.randn(b, length, 32, device=device))
    out.sum().backward()
    assert out.shape == (b, length, 32) and not m.A_log.grad.any()


def test_autocast_and_training(device):
    m = Mamba2(32, d_state=8, headdim=8).to(device)
    optimiser, x, y = torch.optim.Adam(m.parameters(), 1e-2), torch.randn(2, 20, 32, device=device), torch.randn(2, 20, 32, device=device)
    want, losses = m(x), []
    for _ in range(4):
        optimiser.zero_grad()
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
            out = m(x)
        if not losses:
            assert out.dtype == torch.bfloat16
            refs.close(out, want, (5e-2, 5e-2))
        losses.append(F.mse_loss(out.float(), y))
        losses[-1].backward()
        optimiser.step()
    assert float(losses[-1].detach()) < float(losses[0].detach()) and all(p.grad.dtype == p.dtype for p in m.parameters())


@pytest.mark.parametrize("options", [{}, {"rmsnorm": False, "D_has_hdim": True}, {"ngroups": 2, "norm_before_gate": True, "d_ssm": 32, "bias": True}], ids=str)
@pytest.mark.parametrize("packed", [False, True])
def test_one_call_equals_separate_products(device, monkeypatch, options, packed):
    """As for small blocks on a GPU: krait also does the products; gradients of frozen parameters are not computed."""
    m = Mamba2(32, d_state=8, headdim=8, **options).to(device)
    m.A_log.requires_grad_(False)
    x, d = torch.randn(2, 9, 32, device=device, requires_grad=True), torch.randn(2, 9, 32, device=device)
    seq_idx = torch.tensor([[0] * 4 + [1] * 5, [0] * 9], dtype=torch.int32, device=device) if packed else None
    results = []
    for is_small in (False, True):
        monkeypatch.setattr(block, "_is_small", lambda x, w: is_small)
        monkeypatch.setattr(block, "_known", {})
        for _ in range(2):  # the second time calls are already packed
            m.zero_grad()
            x.grad = None
            out = m(x, seq_idx=seq_idx)
            out.backward(d)
            assert m.A_log.grad is None
            with torch.no_grad():
                assert refs.relative(m(x, seq_idx=seq_idx), out) < 1e-5
        results.append([out, x.grad, *[p.grad for p in m.parameters() if p.grad is not None]])
    for one, other in zip(*results):
        assert refs.relative(one, other) < 2e-3 if device == "cuda" else refs.relative(one, other) < 1e-5


@pytest.mark.skipif(not _torch.HAS_CUSTOM_OPS, reason="this torch has no torch.library.custom_op")
def test_compiled(device):
    """Without graph breaks, the same value and gradients."""
    m, x = Mamba2(32, d_state=8, headdim=8).to(device), torch.randn(2, 9, 32, device=device)
    want = m(x)
    grads = torch.autograd.grad(want.square().sum(), list(m.parameters()))
    got = torch.compile(m, backend="aot_eager", fullgraph=True)(x)
    refs.close(got, want, (1e-5, 1e-5))
    for a, b in zip(torch.autograd.grad(got.square().sum(), list(m.parameters())), grads):
        refs.close(a, b, (1e-4, 1e-4))


def test_hooks_and_other_projections(device):
    """Projections are called as modules, so that adapters (LoRA) work."""
    m = Mamba2(32, d_state=8, headdim=8).to(device)

    class Adapter(torch.nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base, self.weight = base, base.weight

        def forward(self, x):
            return 2 * self.base(x)
    x = torch.randn(1, 5, 32, device=device)
    want = m(x)
    twin = copy.deepcopy(m)
    twin.out_proj = Adapter(twin.out_proj)
    refs.close(twin(x), 2 * want, (1e-6, 1e-6))


# ---- the language model ------------------------------------------------------------------------------------------------
def test_language_model(device, tmp_path):
    config = MambaConfig(d_model=32, n_layer=2, vocab_size=43, ssm_cfg={"layer": "Mamba2", "d_state": 8, "headdim": 8})
    m = MambaLMHeadModel(config, device=device).eval()
    ids = torch.randint(0, 43, (2, 6), device=device)
    out = m.generate(ids, max_length=12)
    slow = ids
    for _ in range(6):
        slow = torch.cat([slow, m(slow).logits[:, -1].argmax(-1, keepdim=True)], 1)
    assert torch.equal(out, slow)
    m.save_pretrained(str(tmp_path))
    again = MambaLMHeadModel.from_pretrained(str(tmp_path), device=device)
    assert torch.equal(again(ids).logits, m(ids).logits)


def test_converted_files(tmp_path):
    """A configuration with transformers' names."""
    m = MambaLMHeadModel(MambaConfig(d_model=32, n_layer=1, vocab_size=48, pad_vocab_size_multiple=1, tie_embeddings=False,
                                     ssm_cfg={"layer": "Mamba2", "d_state": 8, "headdim": 8, "ngroups": 2, "dt_limit": (0.01, 0.5), "bias": True}))
    torch.save({k.replace("embedding.", "embeddings."): v for k, v in m.state_dict().items()}, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps(dict(
        model_type="mamba2", hidden_size=32, num_hidden_layers=1, vocab_size=48, state_size=8, head_dim=8, n_groups=2, conv_kernel=4, expand=2, chunk_size=256,
        time_step_limit=[0.01, 0.5], use_bias=True, use_conv_bias=True, tie_word_embeddings=False)))
    again, ids = MambaLMHeadModel.from_pretrained(str(tmp_path)), torch.randint(0, 43, (1, 6))
    assert again.backbone.layers[0].mixer.dt_limit == (0.01, 0.5) and torch.equal(again(ids).logits, m(ids).logits)


# ---- several processes -------------------------------------------------------------------------------------------------
_PARALLEL = """
import os, sys, torch, torch.distributed as dist
sys.path[:] = {path!r}
torch.set_num_threads(1)
rank, sequence, backend = int(sys.argv[1]), {sequence!r}, {backend!r}
os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = "lo"
if backend == "nccl":
    torch.cuda.set_device(rank)
    torch.set_default_device("cuda")
dist.init_process_group(backend, init_method="file://{file}", rank=rank, world_size=2)
from mamba_ssm import Mamba2
options = dict(d_state=4, headdim=8, ngroups=2, bias=True)
torch.manual_seed(0)
whole, x = Mamba2(16, **options), torch.randn(4, 5, 16)
part = Mamba2(16, process_group=dist.group.WORLD, sequence_parallel=sequence, **options)
half = lambda t, sizes: torch.cat([p.chunk(2)[rank] for p in t.split(sizes)])
rows = [32, 32, 8, 8, 4]  # z, x, B, C, dt
state = whole.state_dict()
for key in state:
    if key.startswith("in_proj"): state[key] = half(state[key], rows)
    elif key.startswith("conv1d"): state[key] = half(state[key], rows[1:4])
    elif key == "out_proj.weight": state[key] = state[key].chunk(2, dim=1)[rank]
    elif key != "out_proj.bias": state[key] = state[key].chunk(2)[rank]
if rank: del state["out_proj.bias"]
part.load_state_dict(state)
mine = (x.flatten(0, 1).chunk(2)[rank] if sequence else x).clone().requires_grad_()
out = part(mine, seqlen=5) if sequence else part(mine)
inputs = x.clone().requires_grad_()
want = whole(inputs)
scale = torch.linspace(0.5, 1.5, 16)
(want * scale).square().sum().backward()
(out * scale).square().sum().backward()
if sequence: want, dx = want.flatten(0, 1).chunk(2)[rank], inputs.grad.flatten(0, 1).chunk(2)[rank]
else: dx = inputs.grad
torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-5)
torch.testing.assert_close(mine.grad, dx, rtol=1e-4, atol=1e-5)
torch.testing.assert_close(part.A_log.grad, whole.A_log.grad.chunk(2)[rank], rtol=1e-4, atol=1e-5)
torch.testing.assert_close(part.out_proj.weight.grad, whole.out_proj.weight.grad.chunk(2, dim=1)[rank], rtol=1e-4, atol=1e-5)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("sequence", [True, False])
def test_tensor_parallel(tmp_path, sequence, backend):
    """Two processes with half the heads each, on a CPU or a GPU each: the whole block's output and gradients, with
    tokens
        gathered or not."""
    dist = torch.distributed
    if not (dist.is_available() and getattr(dist, "is_%s_available" % backend)() and hasattr(dist, "all_gather_into_tensor")):
        pytest.skip("this torch has no %s with all_gather_into_tensor" % backend)
    if backend == "nccl" and torch.cuda.device_count() < 2:
        pytest.skip("nccl needs a GPU per process: fewer than two here")
    code = _PARALLEL.format(path=sys.path, sequence=sequence, backend=backend, file=tmp_path / "rendezvous")
    processes = [subprocess.Popen([sys.executable, "-c", code, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ)
                 for rank in range(2)]
    said = [p.communicate(timeout=300)[0] for p in processes]
    assert [p.returncode for p in processes] == [0, 0], "\n".join(said)
