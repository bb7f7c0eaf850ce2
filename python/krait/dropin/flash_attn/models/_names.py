"""State dicts of transformers' models under this package's names."""

import re

import torch
import torch.nn.functional as F


def rename(state_dict, rules):
    """The entries whose name matches a rule (pattern, replacement); others are dropped."""
    found = {}
    for name, tensor in state_dict.items():
        for pattern, replacement in rules:
            if re.fullmatch(pattern, name):
                found[re.sub(pattern, replacement, name)] = tensor
                break
    return found


def join(state_dict, pattern, parts, whole, change=lambda part, t: t):
    """For each layer, the entries pattern % (layer, part) become one, whole % layer, each changed first."""
    for layer in sorted({int(n) for name in state_dict for n in re.findall("^" + pattern % (r"(\d+)", parts[0]) + "$", name)}):
        state_dict[whole % layer] = torch.cat([change(part, state_dict.pop(pattern % (layer, part))) for part in parts])


def pad_rows(tensor, rows, value=0.0):
    return F.pad(tensor, (0, 0) * (tensor.dim() - 1) + (0, rows - tensor.shape[0]), value=value)


def pad_vocabulary(state_dict, config, names=("transformer.embeddings.word_embeddings.weight", "lm_head.weight"), bias=None):
    """Rows of zeros up to a multiple of pad_vocab_size_multiple; bias: the name of one with as many entries."""
    multiple = getattr(config, "pad_vocab_size_multiple", 1)
    rows = -(-config.vocab_size // multiple) * multiple
    for name in (*names, bias):
        if name in state_dict:
            state_dict[name] = pad_rows(state_dict[name], rows)
