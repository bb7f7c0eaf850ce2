"""Names that exist upstream and whose operators krait does not have yet: they say so when they are used."""

import torch


def _sentence(name, operator):
    return "%s: krait has no %s operator yet; the rest of this package works" % (name, operator)


def pending_module(name, operator):
    """An nn.Module class that cannot be constructed."""
    def __init__(self, *args, **kwargs):
        raise NotImplementedError(_sentence(name, operator))
    return type(name, (torch.nn.Module,), {"__init__": __init__, "__doc__": _sentence(name, operator)})


def pending_function(name, operator):
    """A function that cannot be called."""
    def function(*args, **kwargs):
        raise NotImplementedError(_sentence(name, operator))
    function.__name__ = function.__qualname__ = name
    function.__doc__ = _sentence(name, operator)
    return function
