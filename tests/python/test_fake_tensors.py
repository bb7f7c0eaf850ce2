"""Tensors without data: every operator's shape function, modules on fake tensors, subclasses that hide their storage."""

import copy
import pickle

import pytest
import torch

import refs
from krait import _torch
from krait.ops import gated_delta_rule

pytestmark = pytest.mark.skipif(not _torch.HAS_CUSTOM_OPS, reason="this torch has no torch.library.custom_op")

from causal_conv1d import causal_conv1d_fn, causal_conv1d_update
from causal_conv1d.causal_conv1d_varlen import causal_conv1d_varlen_states
from flash_attn import flash_attn_func, flash_attn_with_kvcache
from flash_attn.layers.rotary import apply_rotary_emb
from mamba_ssm import Mamba, Mamba2, Mamba3
from mamba_ssm.ops.selective_scan_interface import mamba_inner_fn, selective_scan_fn
from mamba_ssm.ops.triton.layer_norm import rms_norm_fn
from mamba_ssm.ops.triton.layernorm_gated import rmsnorm_fn
from mamba_ssm.ops.triton.selective_state_update import selective_state_update
from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

MODULES = {"Mamba": lambda: Mamba(16), "bidirectional": lambda: Mamba(16, bimamba=True), "Mamba2": lambda: Mamba2(16, d_state=4, headdim=8)}


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def positions(n):
    return torch.rand(n, 4), torch.rand(n, 4)


def scan():
    return selective_scan_fn(leaf(2, 8, 9), leaf(2, 8, 9), leaf(8, 4), leaf(2, 4, 9), leaf(2, 4, 9), leaf(8), leaf(2, 8, 9), return_last_state=True)[0]


def decode():
    q, cache = torch.randn(2, 1, 4, 16), [torch.randn(2, 12, 2, 16) for _ in range(2)]
    return flash_attn_with_kvcache(q, *cache, q[:, :, :2], q[:, :, :2], *positions(12), cache_seqlens=torch.tensor([3, 5], dtype=torch.int32))


CALLS = {
    "conv": lambda: causal_conv1d_fn(leaf(2, 8, 9), leaf(8, 4), leaf(8), initial_states=leaf(2, 8, 3), return_final_states=True)[0],
    "conv, channel last": lambda: causal_conv1d_fn(leaf(2, 9, 8).transpose(1, 2), leaf(8, 4), activation="silu"),
    "conv update": lambda: causal_conv1d_update(torch.randn(2, 8), torch.randn(2, 8, 4), torch.randn(8, 4)),
    "varlen": lambda: causal_conv1d_varlen_states(torch.randn(9, 8), torch.tensor([0, 4, 9], dtype=torch.int32), 3),
    "scan": scan,
    "ssd": lambda: mamba_chunk_scan_combined(leaf(2, 9, 4, 8), leaf(2, 9, 4), leaf(4), leaf(2, 9, 2, 4), leaf(2, 9, 2, 4), 8, leaf(4), leaf(2, 9, 4, 8),
                                             return_final_states=True)[0],
    "attention": lambda: flash_attn_func(leaf(2, 9, 4, 16), leaf(2, 7, 2, 16), leaf(2, 7, 2, 16), causal=True),
    "rotary": lambda: apply_rotary_emb(leaf(2, 9, 4, 16), *positions(9)),
    "decode": decode,
    "norm": lambda: rms_norm_fn(leaf(2, 9, 8), leaf(8), leaf(8), residual=leaf(2, 9, 8), x1=leaf(2, 9, 8), weight1=leaf(8), prenorm=True)[0],
    "gated norm": lambda: rmsnorm_fn(leaf(2, 9, 8), leaf(8), leaf(8), leaf(2, 9, 8), group_size=4),
    "gated delta rule": lambda: gated_delta_rule(leaf(2, 9, 2, 8), leaf(2, 9, 2, 8), leaf(2, 9, 4, 5), -torch.rand(2, 9, 4), torch.rand(2, 9, 4),
                                                 initial_states=leaf(2, 4, 8, 5), normalize=True, return_final_states=True)[0],
    "state update": lambda: selective_state_update(torch.randn(2, 8, 4), torch.randn(2, 8), torch.rand(2, 8), -torch.rand(8, 4), torch.randn(2, 4), torch.randn(2, 4)),
    "inner": lambda: mamba_inner_fn(leaf(2, 16, 9), leaf(8, 1, 4), leaf(8), leaf(10, 8), leaf(8, 2), leaf(6, 8), None, -torch.rand(8, 4), delta_bias=leaf(8)),
    **{name: lambda make=make: make()(leaf(2, 9, 16)) for name, make in MODULES.items()},
}


def mamba3():
    """Not among the calls: the gradient of torch's own clamp, after the mode, makes a tensor that is not fake."""
    return Mamba3(16, d_state=8, headdim=8)(leaf(2, 9, 16))


class Record(torch.utils._python_dispatch.TorchDispatchMode):
    """The calls of krait's operators: (operator, arguments, results)."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.namespace == "krait":
            self.calls.append((func, args, out))
        return out


def layouts(results):
    results = results if isinstance(results, (tuple, list)) else [results]
    return [(t.shape, t.stride() if t.numel() else None, t.dtype, t.device.type) for t in results if isinstance(t, torch.Tensor)]


def test_every_operator():
    """The shape function of each operator of torch.ops.krait gives what the operator gives: shapes, strides, types."""
    with Record() as record:
        for call in (*CALLS.values(), mamba3):
            out = call()
            if out.requires_grad:
                out.sum().backward()
    met = {func._schema.name for func, _, _ in record.calls}
    assert met == {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("krait::")}
    for func, args, want in record.calls:
        with torch._subclasses.FakeTensorMode() as mode:
            fake = torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, args)
            assert layouts(func(*fake)) == layouts(want), func


@pytest.mark.parametrize("outside", [False, True], ids=["in the mode", "after the mode"])
@pytest.mark.parametrize("name", list(CALLS))
def test_calls(name, outside):
    """Forward and gradient of everything public, under FakeTensorMode and on its tensors after it."""
    want = CALLS[name]()
    with torch._subclasses.FakeTensorMode():
        if not outside:
            got = CALLS[name]()
        elif name in MODULES:
            module, x = MODULES[name](), leaf(2, 9, 16)
    if outside:
        if name not in MODULES:
            return
        got = module(x)
    assert layouts(got) == layouts(want) and _torch.is_fake(got) and got.requires_grad == want.requires_grad
    if got.requires_grad and not outside:
        got.sum().backward()


def test_real_parameters():
    """A real module under FakeTensorMode computes nothing and changes nothing, but the reverse is refused."""
    m = Mamba(16)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        assert _torch.is_fake(m(torch.randn(2, 9, 16)))
    x, w = torch.randn(2, 8, 9), torch.randn(8, 4)
    with torch._subclasses.FakeTensorMode():
        fake = torch.randn(8, 4)
    with pytest.raises(TypeError, match="causal_conv1d: FakeTensors beside tensors with data"):
        causal_conv1d_fn(x, fake)
    assert causal_conv1d_fn(x, w).isfinite().all()


def test_a_gpu_that_is_not_there():
    """Planners ask for the shapes of GPU tensors anywhere."""
    with torch._subclasses.FakeTensorMode():
        q, x, w = [torch.empty(shape, device="cuda") for shape in ((1, 8, 2, 16), (2, 8, 9), (8, 4))]
        assert flash_attn_func(q, q, q).device.type == "cuda"
    assert causal_conv1d_fn(x, w).shape == x.shape and flash_attn_func(q, q, q).shape == q.shape


def test_meta():
    for make in MODULES.values():
        m = make().to("meta")
        out = m(torch.randn(2, 9, 16, device="meta", requires_grad=True))
        out.sum().backward()
        assert out.is_meta and out.shape == (2, 9, 16) and all(p.grad.is_meta for p in m.parameters())


class Wrapper(torch.Tensor):
    """A subclass whose data is elsewhere, as DTensor's."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*[a.inner if isinstance(a, cls) else a for a in args], **(kwargs or {}))


def test_a_class_that_hides_its_storage_is_refused():
    x, w = torch.randn(2, 8, 9), torch.randn(8, 4)
    freed = torch.randn(2, 8, 9)
    freed.untyped_storage().resize_(0)
    for call in (lambda: causal_conv1d_fn(Wrapper(x), w), lambda: causal_conv1d_fn(x, Wrapper(w)), lambda: causal_conv1d_fn(x, w, Wrapper(torch.randn(8)))):
        with pytest.raises(TypeError, match="causal_conv1d: a tensor of class Wrapper .* has no memory"):
            call()
    with pytest.raises(TypeError, match=r"causal_conv1d: a tensor of class Tensor and shape \(2, 8, 9\) has no memory"):
        causal_conv1d_fn(freed, w)
    assert causal_conv1d_fn(torch.randn(0, 8, 9), w).shape == (0, 8, 9)  # an empty tensor has no memory either


def test_modes_see_the_operators():
    """make_fx records them: without, a graph would hold the results of its example."""
    from torch.fx.experimental.proxy_tensor import make_fx
    w, x, other = torch.randn(8, 4), torch.randn(2, 8, 9), torch.randn(2, 8, 9)
    graph = make_fx(lambda x: causal_conv1d_fn(x, w, activation="silu") * 2)(x)
    assert "krait" in graph.code and torch.equal(graph(other), causal_conv1d_fn(other, w, activation="silu") * 2)


@pytest.mark.parametrize("name", list(MODULES))
def test_copies(name):
    """deepcopy and pickle of a module that has run; its export and compiled form."""
    m, x = MODULES[name](), torch.randn(2, 9, 16)
    want = m(x)
    for twin in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
        assert torch.equal(twin(x), want)
    program = torch.export.export(m, (x,))
    refs.close(program.module()(x), want, (1e-6, 1e-6))
    refs.close(torch.compile(m, backend="aot_eager", fullgraph=True)(x), want, (1e-6, 1e-6))
