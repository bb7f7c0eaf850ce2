"""Decorators of autograd functions for automatic mixed precision, for any PyTorch release."""

import functools

import torch


def custom_amp_decorator(dec, cuda_amp_deprecated):
    """The decorator, told the device where releases need it."""
    return functools.partial(dec, device_type="cuda") if cuda_amp_deprecated else dec


if hasattr(torch.amp, "custom_fwd"):
    custom_fwd, custom_bwd = [custom_amp_decorator(dec, True) for dec in (torch.amp.custom_fwd, torch.amp.custom_bwd)]
else:
    from torch.cuda.amp import custom_bwd, custom_fwd  # noqa: F401
