"""The Mamba block as one autograd node: against its parts, with recomputation or saved tensors, and its fallbacks."""

import importlib

import pytest
import torch
from conftest import DEVICES

from mamba_ssm.modules.mamba_simple import Mamba

block = importlib.import_module("krait.ops.mamba_block")  # the package's attribute of that name is the function


def _tensors(m):
    return (m.in_proj.weight, m.conv1d.weight, m.conv1d.bias, m.x_proj.weight, m.dt_proj.weight, m.dt_proj.bias, m.A_log, m.D,
            m.out_proj.weight, m.out_proj.bias)


def _gradients(m, x, run):
    m.zero_grad()
    x.grad = None
    out = run()
    out.backward(torch.linspace(-1, 1, out.numel(), device=x.device, dtype=x.dtype).view_as(out))
    return [out.detach(), x.grad.clone(), *[p.grad.clone() for p in m.parameters()]]


@pytest.mark.parametrize("conv_bias", [True, False])
@pytest.mark.parametrize("keeps, keeps_states, pieces", [(True, True, 1), (False, False, 1), (False, True, 1), (False, True, 2)])
def test_node_equals_its_parts(device, keeps, keeps_states, pieces, conv_bias):
    torch.manual_seed(3)
    m = Mamba(24, d_state=5, conv_bias=conv_bias).to(device)
    m.use_fast_path = False  # layer by layer, under autograd
    x = torch.randn(4, 13, 24, device=device, requires_grad=True)
    expected, tensors = _gradients(m, x, lambda: m(x)), _tensors(m)
    plan = block._Plan(x, block.Weights(*tensors))
    assert block._fits(x, block.Weights(*tensors))
    plan.keeps, plan.keeps_states, plan.pieces, plan.runs_beside = keeps, keeps_states, pieces, x.is_cuda and keeps
    for _ in range(2):  # the second time calls are already packed
        for mine, theirs in zip(_gradients(m, x, lambda: block._Block.apply(plan, x, *tensors)), expected):
            torch.testing.assert_close(mine, theirs, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("out_bias", [False, True])
def test_own_products_equal_torchs(device, out_bias, monkeypatch):
    torch.manual_seed(4)
    m = Mamba(32, d_state=4, bias=out_bias).to(device)
    m.in_proj.bias, m.use_fast_path = None, False
    x = torch.randn(3, 11, 32, device=device, requires_grad=True)
    expected, tensors = _gradients(m, x, lambda: m(x)), _tensors(m)
    plan, rows = block._Plan(x, block.Weights(*tensors)), []
    monkeypatch.setattr(block, "_OWN_GEMM", _Any(rows))
    plan.is_small = True
    for _ in range(2):
        for mine, theirs in zip(_gradients(m, x, lambda: block._Block.apply(plan, x, *tensors)), expected):
            torch.testing.assert_close(mine, theirs, rtol=2e-4, atol=2e-5)
    assert len(rows) == len(plan.products) == 6 - out_bias and all(plan.products.values())


@pytest.mark.parametrize("conv_bias, out_bias", [(True, False), (False, True)])
def test_one_call_equals_its_parts(device, conv_bias, out_bias, monkeypatch):
    torch.manual_seed(5)
    m = Mamba(32, d_state=4, conv_bias=conv_bias, bias=out_bias).to(device)
    m.in_proj.bias, m.use_fast_path = None, False
    x = torch.randn(3, 11, 32, device=device, requires_grad=True)
    expected, tensors, names = _gradients(m, x, lambda: m(x)), _tensors(m), []
    plan = block._Plan(x, block.Weights(*tensors))
    monkeypatch.setattr(block, "_ONE_CALL", _Any(names))
    plan.is_one_call = True
    for _ in range(2):
        for mine, theirs in zip(_gradients(m, x, lambda: block._Block.apply(plan, x, *tensors)), expected):
            torch.testing.assert_close(mine, theirs, rtol=2e-4, atol=2e-5)
    assert len(names) == 1 and plan.calls is plan.backward_calls is None and plan.inner_backward.words is not None


@pytest.mark.parametrize("in_one_call", [False, True])
def test_the_first_forward_call_loads_the_code_of_the_gradient(in_one_call, monkeypatch):
    m, loaded = Mamba(16, d_state=4), []
    monkeypatch.setattr(block, "load", lambda at, calls: loaded.append([call.operator.name for call in calls]))
    monkeypatch.setattr(block, "_ONE_CALL", _Any([]))
    for grad in (False, True):
        plan, x = block._Plan(torch.zeros(2, 9, 16), block.Weights(*_tensors(m))), torch.randn(2, 9, 16, requires_grad=True)
        plan.is_one_call = in_one_call
        if grad:
            block._Block.apply(plan, x, *_tensors(m)).sum().backward()
        else:
            block._forward(plan, x.detach(), block.Weights(*[t if t is None else t.detach() for t in _tensors(m)]))
    first, second = [[name for name in names if name != "pointwise"] for names in loaded]
    assert (first, second) == ((["mamba_inner"], ["mamba_inner", "mamba_inner_bwd"]) if in_one_call else
                               (["causal_conv1d", "selective_scan"], ["causal_conv1d", "selective_scan", "causal_conv1d_bwd", "selective_scan_bwd"]))


class _Any(list):
    """Takes all rows, and notes them."""

    def __init__(self, seen):
        self.seen = seen

    def __contains__(self, name):
        self.seen.append(name)
        return name is not None


def test_batch_is_split_if_scratch_does_not_fit():
    assert [block._pieces(6, scratch, 16 * 100) for scratch in (1, 100, 101, 200, 201, 301, 601, 10 ** 6)] == [1, 1, 2, 2, 3, 6, 6, 6]
    assert block._pieces(6, 10 ** 6, 0) == 1  # not a GPU


def test_frozen_weights_and_inputs_get_no_gradient():
    m = Mamba(16, d_state=4)
    for p in (m.in_proj.weight, m.x_proj.weight, m.dt_proj.weight, m.out_proj.weight):
        p.requires_grad_(False)
    x = torch.randn(1, 9, 16)
    out = block._Block.apply(block._Plan(x, block.Weights(*_tensors(m))), x, *_tensors(m))
    out.sum().backward()
    assert all((p.grad is not None) == p.requires_grad for p in m.parameters())


def test_unsupported_sizes_fall_back_to_the_parts():
    m, x = Mamba(16, d_state=4), torch.randn(1, 9, 16)
    tensors = list(_tensors(m))
    assert block._fits(x, block.Weights(*tensors))
    assert not block._fits(x.double(), block.Weights(*tensors))
    assert not block._fits(x[0], block.Weights(*tensors))
    assert not block._fits(x[..., :8], block.Weights(*tensors))
    assert not block._fits(x, block.Weights(*tensors[:6], tensors[6].half(), *tensors[7:]))
    assert not block._fits(x, block.Weights(*tensors[:3], tensors[3][:-1], *tensors[4:]))


@pytest.mark.parametrize("conv_bias, out_bias", [(True, False), (False, True)])
def test_under_autocast(device, conv_bias, out_bias):
    """As near to float32 as 16 bits are, gradients of the parameters' types, and without gradients the same."""
    torch.manual_seed(8)
    m = Mamba(24, d_state=5, conv_bias=conv_bias, bias=out_bias).to(device)
    m.in_proj.bias, m.use_fast_path = None, False
    x = torch.randn(4, 13, 24, device=device, requires_grad=True)
    expected = _gradients(m, x, lambda: m(x))

    def run():
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
            return block._block_of(x, _tensors(m), torch.bfloat16)

    for _ in range(2):
        out = run()
        assert out.dtype is torch.bfloat16 and type(out.grad_fn).__name__ == "_BlockBackward"
        for mine, theirs in zip(_gradients(m, x, lambda: run().float()), expected):
            assert mine.dtype is torch.float32 and float((mine - theirs).norm() / theirs.norm()) < 3e-2
    with torch.no_grad():
        assert torch.equal(run(), out)


@pytest.mark.skipif("cuda" not in DEVICES, reason="blocks of 16 bits are small ones on a GPU")
@pytest.mark.parametrize("dtype, bound", [(torch.float16, 1e-2), (torch.bfloat16, 4e-2)])
def test_small_blocks_in_one_call_on_a_gpu(dtype, bound):
    """As near to float32 as in several calls."""
    torch.manual_seed(6)
    m = Mamba(64).cuda()
    x = torch.randn(5, 70, 64, device="cuda", requires_grad=True)
    expected = _gradients(m, x, lambda: m(x))
    half, y = Mamba(64, device="cuda", dtype=dtype), x.detach().to(dtype).requires_grad_()
    half.load_state_dict(m.state_dict())
    plan = block._Plan(y, block.Weights(*_tensors(half)))
    assert plan.is_one_call
    for mine, theirs in zip(_gradients(half, y, lambda: block._Block.apply(plan, y, *_tensors(half))), expected):
        assert float((mine.float() - theirs).norm() / theirs.norm()) < bound
    assert plan.is_one_call and plan.calls is None


@pytest.mark.skipif("cuda" not in DEVICES, reason="the module takes the node on a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_module_uses_it_unless_a_layer_has_hooks(dtype):
    torch.manual_seed(4)
    m = Mamba(64, device="cuda", dtype=dtype)
    x = torch.randn(2, 70, 64, device="cuda", dtype=dtype, requires_grad=True)
    out = m(x)
    assert type(out.grad_fn).__name__ == "_BlockBackward"
    heard = []
    hook = m.in_proj.register_forward_hook(lambda *a: heard.append(1))
    torch.testing.assert_close(m(x), out, rtol=2e-2, atol=2e-2)
    assert heard
    hook.remove()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = m(x)
        assert type(out.grad_fn).__name__ == "_BlockBackward" and out.dtype is torch.bfloat16
        out.sum().backward()
        assert x.grad.dtype is dtype and all(p.grad.dtype is p.dtype for p in m.parameters())
        with torch.no_grad():
            torch.testing.assert_close(m(x), out)
