"""krait.graphed: a module's forward and backward as CUDA graphs; on a CPU it says that it cannot."""

import copy
import pickle
import warnings

import pytest
import torch

import krait
from mamba_ssm import Mamba, Mamba2, Mamba3


def build(kind, device):
    torch.manual_seed(0)
    return kind(32, **({} if kind is Mamba else dict(headdim=16, d_state=16))).to(device)


@pytest.mark.parametrize("kind", [Mamba, Mamba2, Mamba3])
def test_equals_the_module(kind, device):
    module = build(kind, device)
    own = krait.graphed(copy.deepcopy(module))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for seed, length in ((1, 9), (2, 9), (3, 9), (4, 12), (5, 9)):
            x = torch.randn(2, length, 32, generator=torch.Generator().manual_seed(seed)).to(device)
            given = [x.clone().requires_grad_() for _ in range(2)]
            for m, h in zip((module, own), given):
                m.zero_grad(set_to_none=True)
                m(h).pow(2).sum().backward()
            assert torch.allclose(given[0].grad, given[1].grad, atol=1e-5)
            for (name, p), q in zip(module.named_parameters(), own.parameters()):
                assert torch.allclose(p.grad, q.grad, atol=1e-4, rtol=1e-4), name
            with torch.no_grad():
                assert torch.allclose(own(x), module(x), atol=1e-6)
    reasons = [str(w.message) for w in said if "krait.graphed" in str(w.message)]
    assert reasons == ([] if device == "cuda" else ["krait.graphed: %s runs as it is: it is not on a GPU" % kind.__name__])
    assert len(own.forward._captured) == (4 if device == "cuda" else 0)


def test_what_cannot_be_captured_says_why(device):
    class Waits(torch.nn.Module):
        def forward(self, x):
            return x * float(x.sum())
    own, x = krait.graphed(Waits()), torch.ones(3, device=device)
    with pytest.warns(UserWarning, match="not on a GPU" if device == "cpu" else "cannot be captured"):
        assert torch.equal(own(x), x * 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(own(x), x * 3)  # said once
    with pytest.warns(UserWarning, match="by position"):
        own(x=x)
    with pytest.raises(TypeError, match="not a torch.nn.Module"):
        krait.graphed(len)
    with pytest.raises(ValueError, match="replaced already"):
        krait.graphed(own)


def test_copies_and_pickles(device):
    own, x = krait.graphed(build(Mamba, device)), torch.randn(1, 5, 32, device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = own(x).detach().clone()
        for other in (copy.deepcopy(own), pickle.loads(pickle.dumps(own))):
            assert other.forward.module is other and torch.allclose(other(x), want, atol=1e-6)


def test_in_a_fake_mode():
    from torch._subclasses import FakeTensorMode
    with FakeTensorMode():
        assert krait.graphed(Mamba(32))(torch.randn(1, 5, 32)).shape == (1, 5, 32)
