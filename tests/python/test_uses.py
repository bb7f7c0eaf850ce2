"""Uses of the modules beside plain training: results changed in place, torch.func, float64, inference mode, autocast, checkpoints, hooks on saved tensors."""

import copy

import pytest
import torch
from mamba_ssm import Mamba, Mamba2, Mamba3
from torch.utils.checkpoint import checkpoint

MAKE = {
    "Mamba": lambda **k: Mamba(16, d_state=4, **k),
    "Mamba2": lambda **k: Mamba2(32, d_state=8, headdim=8, chunk_size=8, **k),
    "Mamba3": lambda **k: Mamba3(32, d_state=8, headdim=8, **k),
    "MIMO": lambda **k: Mamba3(32, d_state=8, headdim=8, is_mimo=True, mimo_rank=2, is_outproj_norm=True, **k),
}
each = pytest.mark.parametrize("name", list(MAKE))


def made(name, device, **options):
    torch.manual_seed(0)
    module = MAKE[name](device=device, **options)
    return module, torch.randn(2, 9, module.d_model, device=device, **options)


def apart(got, want):
    return float((got.double() - want.double()).abs().max() / (want.double().abs().max() + 1e-30))


def gradients(module, x, call=None):
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad((call or module)(leaf).float().square().sum(), [leaf, *module.parameters()])


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_changed_in_place(device, name, dtype):
    """hidden += residual."""
    module, x = made(name, device, dtype=dtype)
    want = gradients(module, x, lambda z: module(z) + z)
    assert all(apart(a, b) < 1e-6 for a, b in zip(gradients(module, x, lambda z: module(z).add_(z)), want))
    with torch.autocast(x.device.type, torch.bfloat16):
        assert module(x.clone().requires_grad_()).mul_(2).requires_grad


@each
def test_input_changed_before_its_gradient(device, name):
    module, x = made(name, device)
    z = x.clone().requires_grad_() * 1
    out = module(z)
    z.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@each
def test_gradcheck(name):
    """float64 on a CPU goes through plain torch, with all of its digits."""
    module, x = made(name, "cpu", dtype=torch.float64)
    assert torch.autograd.gradcheck(module, (x[:1, :4].clone().requires_grad_(),), eps=1e-6, atol=1e-6)


@each
def test_functional_call(device, name):
    module, x = made(name, device)
    other = copy.deepcopy(module)
    for parameter in other.parameters():
        parameter.data.mul_(1.1)
    leaves = {k: v.detach().clone().requires_grad_() for k, v in other.named_parameters()}
    out = torch.func.functional_call(module, leaves, (x,))
    assert torch.equal(out, other(x))
    grads = torch.autograd.grad(out.square().sum(), list(leaves.values()))
    assert all(torch.equal(a, b) for a, b in zip(grads, gradients(other, x)[1:]))


@each
def test_ensembles_and_samples(device, name):
    """vmap over inputs, and over inputs and parameters; gradients of each sample."""
    module, x = made(name, device)
    want, weights = module(x).detach(), {k: v.detach() for k, v in module.named_parameters()}
    of_one = lambda p, z: torch.func.functional_call(module, p, (z[None],))[0]
    assert apart(torch.func.vmap(lambda z: module(z[None])[0])(x), want) < 1e-6
    assert apart(torch.func.vmap(of_one)({k: torch.stack([v, v]) for k, v in weights.items()}, x), want) < 1e-6
    each_grad = torch.func.vmap(torch.func.grad(lambda p, z: of_one(p, z).square().sum()), in_dims=(None, 0))(weights, x)
    assert all(apart(a.sum(0), b) < 2e-5 for a, b in zip(each_grad.values(), gradients(module, x)[1:]))


@each
def test_modes(device, name):
    module, x = made(name, device)
    want = module(x)
    with torch.inference_mode():
        out = module(x)
        assert out.is_inference() and torch.equal(out, want)
        with torch.inference_mode(False):
            assert gradients(module, x.clone())[0].abs().sum() > 0
    with torch.no_grad():
        with torch.enable_grad():
            assert module(x).requires_grad
        assert not module(x).requires_grad
    with torch.autocast(x.device.type, torch.bfloat16), torch.autocast(x.device.type, enabled=False):
        assert torch.equal(module(x), want)


@each
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(device, name, dtype):
    """The gradient inside the region or behind it; inputs of either type."""
    module, x = made(name, device)
    want, bound = module(x), 1e-2 if dtype is torch.float16 else 4e-2
    with torch.autocast(x.device.type, dtype):
        out, inside = module(x), gradients(module, x)
        assert out.dtype is module(x.to(dtype)).dtype is dtype and apart(out, want) < bound

    def behind(z):
        with torch.autocast(x.device.type, dtype):
            return module(z)
    assert all(a.dtype is b.dtype is torch.float32 and torch.equal(a, b) for a, b in zip(inside, gradients(module, x, behind)))
    assert all(apart(a, b) < 5 * bound for a, b in zip(inside, gradients(module, x)))


@each
def test_checkpoints_and_saved_tensors(device, name):
    module, x = made(name, device)
    want = gradients(module, x)

    def offloaded(z):
        with torch.autograd.graph.save_on_cpu():
            return module(z)
    for call in (lambda z: checkpoint(module, z, use_reentrant=False), offloaded):
        assert all(torch.equal(a, b) for a, b in zip(gradients(module, x, call), want))
    leaf = x.clone().requires_grad_()
    checkpoint(module, leaf, use_reentrant=True).float().square().sum().backward()
    assert torch.equal(leaf.grad, want[0])
    leaf = x.clone().requires_grad_()
    loss = module(leaf).square().sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert apart(leaf.grad, 2 * want[0]) < 1e-6
