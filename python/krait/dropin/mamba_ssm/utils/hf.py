"""Reads config.json and weights from a folder, or from the Hugging Face hub through huggingface_hub or transformers."""

import json
import os

import torch

_CONFIG, _PICKLE, _SAFETENSORS = "config.json", "pytorch_model.bin", "model.safetensors"


def _hub_file(model_name, filename):
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.utils import EntryNotFoundError
    except ImportError:
        raise ImportError("%r is not a folder, and downloading from the Hub needs huggingface_hub (pip install huggingface_hub)"
                          % (model_name,)) from None
    try:
        return hf_hub_download(model_name, filename)
    except EntryNotFoundError:
        return None


def _find(model_name, filename):
    """The path of a file of the model, None if missing."""
    if os.path.isdir(model_name):
        path = os.path.join(model_name, filename)
        return path if os.path.exists(path) else None
    return _hub_file(model_name, filename)


def _translate(config):
    """Renames converted models' config keys to upstream's; upstream's own config passes through."""
    if "d_model" in config and "hidden_size" not in config:
        return config
    known = {"d_model": config["hidden_size"], "n_layer": config["num_hidden_layers"], "vocab_size": config["vocab_size"],
             "residual_in_fp32": config.get("residual_in_fp32", True), "tie_embeddings": config.get("tie_word_embeddings", True),
             "pad_vocab_size_multiple": 1}
    mixer = {"d_state": config.get("state_size", 16), "d_conv": config.get("conv_kernel", 4), "expand": config.get("expand", 2),
             "bias": config.get("use_bias", True), "conv_bias": config.get("use_conv_bias", True),
             "dt_rank": config.get("time_step_rank", "auto")}
    if config.get("model_type") == "mamba2":
        del mixer["dt_rank"]
        mixer.update(layer="Mamba2", d_state=config.get("state_size", 128), headdim=config.get("head_dim", 64), ngroups=config.get("n_groups", 8),
                     chunk_size=config.get("chunk_size", 256), dt_limit=tuple(config.get("time_step_limit", (0.0, float("inf")))))
    return {**known, "ssm_cfg": mixer}


def load_config_hf(model_name):
    path = _find(model_name, _CONFIG)
    if path is None:
        raise FileNotFoundError("%s has no %s" % (model_name, _CONFIG))
    with open(path, encoding="utf-8") as file:
        return _translate(json.load(file))


def load_state_dict_hf(model_name, device=None, dtype=None):
    """The tensors as stored, on the device; with a narrower dtype on the CPU, for a model of that type to copy from: it keeps some parameters in float32, whose
    values are not rounded on the way, as upstream's are not. Pickles are loaded without executing code."""
    path = _find(model_name, _PICKLE)
    if path is not None:
        state = torch.load(path, map_location="cpu", weights_only=True)
    else:
        path = _find(model_name, _SAFETENSORS)
        if path is None:
            raise FileNotFoundError("%s has neither %s nor %s" % (model_name, _PICKLE, _SAFETENSORS))
        from safetensors.torch import load_file
        state = load_file(path)
    return state if dtype not in (None, torch.float32) else {key: value.to(device=device) for key, value in state.items()}
