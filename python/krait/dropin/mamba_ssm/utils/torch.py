"""torch.amp's autograd function decorators, under any release's names."""

import functools

import torch

if hasattr(torch.amp, "custom_fwd"):
    custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="cuda")
    custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="cuda")
else:
    from torch.cuda.amp import custom_bwd, custom_fwd  # noqa: F401


def custom_amp_decorator(decorator, cuda_amp_deprecated):
    """-> the decorator, with device_type="cuda" where it takes one."""
    return functools.partial(decorator, device_type="cuda") if cuda_amp_deprecated else decorator
