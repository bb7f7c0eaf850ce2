"""Weights of a model in the form of transformers, from a folder or its hub."""

import os

import torch
from transformers.utils import cached_file

_NAMES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def _find(model_name):
    for name in _NAMES:
        path = cached_file(model_name, name, _raise_exceptions_for_missing_entries=False)
        if path is not None:
            return path
    raise EnvironmentError("Model name %s was not found: none of %s" % (model_name, ", ".join(_NAMES)))


def _parts(model_name, path):
    if not path.endswith(".index.json"):
        return [path]
    import json
    with open(path, encoding="utf-8") as file:
        names = sorted(set(json.load(file)["weight_map"].values()))
    return [cached_file(model_name, name) for name in names]


def _load(path, device):
    if path.endswith(".safetensors"):
        from safetensors.torch import load_file
        return load_file(path, device=str(device))
    return torch.load(path, map_location=device, weights_only=True)


def state_dict_from_pretrained(model_name, device=None, dtype=None):
    """-> {name: tensor}; half-precision types are converted before the move to the device."""
    target, state = "cpu" if device is None or dtype is not None else device, {}
    for path in _parts(model_name, _find(os.fspath(model_name))):
        state.update(_load(path, target))
    if dtype is not None:
        state = {name: t.to(dtype) if t.is_floating_point() else t for name, t in state.items()}
    return state if device is None else {name: t.to(device) for name, t in state.items()}
