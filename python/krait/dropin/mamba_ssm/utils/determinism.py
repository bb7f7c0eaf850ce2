"""Upstream's switch for deterministic summation order. krait's order is always fixed."""


import torch


def use_deterministic_mode():
    return True


def set_deterministic_mode(value):
    """Accepted but ignored."""


def autotune_configs(configs):
    """For kernels of callers: one configuration, so that no measurement decides the order of sums."""
    return list(configs)[:1]


def alloc_tile_workspace(base_shape, tile_dim, dtype, device, deterministic, *, zero_init=True):
    """Memory for partial sums of a caller's kernel: one per tile if deterministic -> tensor, its stride between tiles."""
    if base_shape is None:
        return None, 0
    if not deterministic:
        return torch.empty(*base_shape, device=device, dtype=dtype), 0
    tensor = (torch.zeros if zero_init else torch.empty)(*base_shape, tile_dim, device=device, dtype=dtype)
    return tensor, tensor.stride(-1)


def finalize_tile_workspace(tensor, deterministic):
    return tensor.sum(dim=-1) if deterministic and tensor is not None else tensor
