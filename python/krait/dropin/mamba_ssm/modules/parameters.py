"""Parameters of the blocks that optimisers must not decay."""

from torch import nn


def add_undecayed(module, **values):
    """Registers values as parameters and marks them afterwards: what hooks the registration (accelerate) builds its own parameter there."""
    for name, value in values.items():
        module.register_parameter(name, nn.Parameter(value))
        getattr(module, name)._no_weight_decay = True
