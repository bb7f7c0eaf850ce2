"""torch.library's triton_op by upstream's path."""

import torch


def triton_op(name, fn=None, /, *, mutates_args, schema=None, allow_decomposition=True):
    """Registers a caller's function as an operator; compiled code does not look into it."""
    return torch.library.custom_op(name, fn, mutates_args=mutates_args, schema=schema)
