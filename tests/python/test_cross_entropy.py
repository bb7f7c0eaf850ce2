"""Cross entropy beside torch's in float64: types, alignments, options, gradients of losses and of the log-sum-exp; what is left to torch."""

import pytest
import torch
import torch.nn.functional as F

import krait.ops
from flash_attn.losses.cross_entropy import CrossEntropyLoss
from flash_attn.ops.triton.cross_entropy import cross_entropy_loss
from krait.ops import cross_entropy
from krait.ops.cross_entropy import row_losses, takes

TYPES = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}  # and the bound of a gradient


def error(a, b):
    return float((a.detach().double() - b.detach().double()).norm() / (b.detach().double().norm() + 1e-30))


def drawn(rows, classes, dtype, device, scale=3.0):
    generator = torch.Generator().manual_seed(classes)
    logits = (scale * torch.randn(rows, classes, generator=generator)).to(device, dtype)
    labels = torch.randint(0, classes, (rows,), generator=generator)
    labels[::5] = -100
    return logits, labels.to(device)


@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("classes", [1, 7, 64, 1001, 5003])
def test_losses_and_gradients_are_torchs(classes, dtype, device):
    logits, labels = drawn(13, classes, dtype, device)
    for options in ({}, {"label_smoothing": 0.2}, {"reduction": "sum"}, {"reduction": "none", "label_smoothing": 1.0}, {"ignore_index": 0}):
        given = labels.masked_fill(labels < 0, options.get("ignore_index", -100))
        own, want = logits.clone().requires_grad_(), logits.double().requires_grad_()
        a, b = cross_entropy(own, given, **options), F.cross_entropy(want, given, **options)
        weights = torch.linspace(0.5, 2, a.numel(), device=device).view(a.shape)
        (a * weights).sum().backward(), (b * weights).sum().backward()
        assert a.dtype is torch.float32 and a.shape == b.shape
        assert torch.allclose(a.double(), b, rtol=2e-6, atol=2e-6, equal_nan=True), options
        if bool(b.isfinite().all()):
            assert own.grad.dtype is dtype and (error(own.grad, want.grad) < TYPES[dtype] or float(want.grad.norm()) < 1e-12), options


def test_gradients_of_the_log_sum_exp_and_scaled_logits(device):
    logits, labels = drawn(9, 333, torch.float32, device)
    own, want = logits.clone().requires_grad_(), logits.double().requires_grad_()
    losses, lse = row_losses(own, labels.clamp(min=-1).int(), 0.1, 0.7)
    expected = torch.logsumexp(0.7 * want, 1)
    assert error(lse, expected) < 1e-6
    (losses.sum() + lse.square().sum()).backward()
    (F.cross_entropy(0.7 * want, labels, label_smoothing=0.1, reduction="sum") + expected.square().sum()).backward()
    assert error(own.grad, want.grad) < 1e-5
    own.grad = None
    row_losses(own, labels.clamp(min=-1).int(), 0.1, 0.7)[1].sum().backward()  # of that alone
    assert error(own.grad, 0.7 * torch.softmax(0.7 * logits.double(), 1)) < 1e-5


def test_logits_far_apart_masked_and_not_numbers(device):
    logits, labels = drawn(6, 300, torch.float32, device, scale=1e4)
    assert error(cross_entropy(logits, labels, reduction="none"), F.cross_entropy(logits.double(), labels, reduction="none")) < 1e-6
    logits = torch.randn(4, 300, device=device)
    logits[0, 17:], logits[1, 5], logits[2] = float("-inf"), float("nan"), float("-inf")
    losses = cross_entropy(logits, torch.tensor([3, 3, 3, 3], device=device), reduction="none")
    assert losses.isfinite().tolist() == [True, False, False, True]
    assert error(losses[::3], F.cross_entropy(logits[::3].double(), torch.tensor([3, 3], device=device), reduction="none")) < 1e-6


def test_in_place_strided_and_wider_rows(device):
    logits, labels = drawn(8, 500, torch.bfloat16, device)
    wide = torch.cat([logits, logits], 1)[:, :500].requires_grad_()
    turned = logits.t().contiguous().t().requires_grad_()
    plain = logits.clone().requires_grad_()
    want = torch.autograd.grad(cross_entropy(plain, labels), plain)[0]
    for x in (wide, turned):
        assert torch.equal(torch.autograd.grad(cross_entropy(x, labels), x)[0], want)
    x = logits.clone()
    made = x * 1.0
    losses, _ = row_losses(made.requires_grad_(), labels.clamp(min=-1).int(), in_place=True)
    grad, = torch.autograd.grad(losses.sum() / (labels >= 0).sum(), made)
    assert torch.equal(grad, want) and grad.data_ptr() == made.data_ptr()


def test_results_changed_in_place_and_labels_of_8_bits(device):
    logits, labels = drawn(13, 1001, torch.float32, device)
    labels, keep = labels.clamp(min=0) % 256, (torch.arange(13, device=device) % 3 > 0).float()
    x = logits.clone().requires_grad_()
    want, = torch.autograd.grad((F.cross_entropy(x, labels, reduction="none") * keep).sum(), x)
    for losses in (lambda: cross_entropy(x, labels, reduction="none"), lambda: cross_entropy(x, labels.byte(), reduction="none"),
                   lambda: CrossEntropyLoss(reduction="none")(x, labels), lambda: cross_entropy_loss(x, labels)[0]):
        assert error(torch.autograd.grad(losses().mul_(keep).sum(), x)[0], want) < 1e-5


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1, "logit_scale": 0.5}, {"lse_square_scale": 0.01, "reduction": "sum"}, {"ignore_index": 3, "reduction": "none"},
                                     {"inplace_backward": True}])
def test_flash_attns_module(options, device):
    logits, labels = drawn(11, 97, torch.float32, device)
    labels = labels.masked_fill(labels < 0, options.get("ignore_index", -100))
    own, want = (logits * 1.0).requires_grad_(), logits.double().requires_grad_()
    loss, z = CrossEntropyLoss(return_z_loss=True, **options)(own * 1.0, labels)
    scaled, is_given = want * options.get("logit_scale", 1.0), labels != options.get("ignore_index", -100)
    rows = F.cross_entropy(scaled, labels, ignore_index=options.get("ignore_index", -100), label_smoothing=options.get("label_smoothing", 0.0), reduction="none")
    z_rows = (options.get("lse_square_scale", 0.0) * torch.logsumexp(scaled, 1).square()).masked_fill(~is_given, 0)
    reduced = [r if options.get("reduction") == "none" else r.sum() / (1 if options.get("reduction") == "sum" else is_given.sum()) for r in (rows + z_rows, z_rows)]
    assert torch.allclose(loss.double(), reduced[0], rtol=1e-5, atol=1e-6) and torch.allclose(z.double(), reduced[1], rtol=1e-5, atol=1e-6) and not z.requires_grad
    loss.sum().backward(), reduced[0].sum().backward()
    assert error(own.grad, want.grad) < 1e-5
    given = cross_entropy_loss(logits, labels, torch.logsumexp(logits, 1), ignore_index=options.get("ignore_index", -100))[0]  # with a log-sum-exp that is there
    assert torch.allclose(given, cross_entropy_loss(logits, labels, ignore_index=options.get("ignore_index", -100))[0], rtol=1e-5, atol=1e-5)


def test_the_rest_is_torchs():
    logits, labels = drawn(6, 20, torch.float32, "cpu")
    for args, options in (((logits, torch.softmax(logits, 1)), {}), ((logits, labels), {"weight": torch.rand(20)}), ((logits.view(2, 20, 3), labels.clamp(min=0).view(2, 3)), {}),
                          ((logits[0], labels[1]), {}), ((logits.double(), labels), {}), ((logits[:0], labels[:0]), {})):
        assert torch.allclose(cross_entropy(*args, **options), F.cross_entropy(*args, **options), equal_nan=True)
    assert not takes(logits.double()) and not takes(logits.to("meta")) and not takes(torch.view_as_complex(torch.randn(6, 20, 2)).conj().imag)
    with pytest.raises(IndexError):
        cross_entropy(logits, labels.masked_fill(labels < 0, 20))
    compiled = torch.compile(lambda x: cross_entropy(x, labels), backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(logits), F.cross_entropy(logits, labels))
    with pytest.raises(RuntimeError, match="second derivatives"):
        x = logits.clone().requires_grad_()
        g, = torch.autograd.grad(cross_entropy(x, labels), x, create_graph=True)
        g.sum().backward()
    assert krait.ops.cross_entropy is cross_entropy
