#!/usr/bin/env python3
"""model_shapes.py CONFIG.json FOLDER: a folder with the shapes of a language model's tensors, and no values: a sparse
file, for krait bench generate --sizes FOLDER. Names are those that save_pretrained writes, which are not always those
of the modules. Needs torch and transformers 5."""
import json
import pathlib
import shutil
import struct
import sys

import torch
import transformers
from transformers.core_model_loading import revert_weight_conversion


def shapes_of(path):
    config = transformers.AutoConfig.from_pretrained(path)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    tied = config.get_text_config().tie_word_embeddings
    saved = revert_weight_conversion(model, model.state_dict())
    return {k: list(v.shape) for k, v in saved.items() if not (tied and k == "lm_head.weight")}


def main():
    config, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(config, folder / "config.json")
    header, at = {}, 0
    for name, shape in shapes_of(folder).items():
        size = 2
        for n in shape:
            size *= n
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
    print(f"{folder}: {at / 2e9:.2f} billion parameters")


main()
