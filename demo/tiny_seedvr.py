#!/usr/bin/env python3
"""Writes a folder of tiny SeedVR2 models with random weights: every part of the published ones in a few hundred kB. What
they restore is meaningless.

    tiny_seedvr.py FOLDER"""
import json
import pathlib
import random
import struct
import sys

WIDTHS, GROUPS, LATENT, LAYERS = (8, 12, 16, 16), 4, 16, 2
DIM, TEXT, HEADS, HEAD, BLOCKS, SEPARATE, HIDDEN = 32, 40, 2, 16, 2, 1, 256


def vae():
    """{key: shape}"""
    keys = {}

    def conv(key, co, ci, kt, k):
        keys[key + ".weight"], keys[key + ".bias"] = (co, ci, kt, k, k), (co,)

    def norm(key, c):
        keys[key + ".weight"] = keys[key + ".bias"] = (c,)

    def residual(key, ci, co):
        norm(key + ".norm1", ci), conv(key + ".conv1", co, ci, 3, 3)
        norm(key + ".norm2", co), conv(key + ".conv2", co, co, 3, 3)
        if ci != co:
            conv(key + ".conv_shortcut", co, ci, 1, 1)

    last = WIDTHS[-1]
    for side in ("encoder", "decoder"):
        for i in (0, 1):
            residual(f"{side}.mid_block.resnets.{i}", last, last)
        norm(f"{side}.mid_block.attentions.0.group_norm", last)
        for name in ("to_q", "to_k", "to_v", "to_out.0"):
            keys[f"{side}.mid_block.attentions.0.{name}.weight"] = (last, last)
            keys[f"{side}.mid_block.attentions.0.{name}.bias"] = (last,)
    conv("encoder.conv_in", WIDTHS[0], 3, 3, 3), conv("encoder.conv_out", 2 * LATENT, last, 3, 3)
    conv("decoder.conv_in", last, LATENT, 3, 3), conv("decoder.conv_out", 3, WIDTHS[0], 3, 3)
    norm("encoder.conv_norm_out", last), norm("decoder.conv_norm_out", WIDTHS[0])
    before = WIDTHS[0]
    for i, width in enumerate(WIDTHS):
        for j in range(LAYERS):
            residual(f"encoder.down_blocks.{i}.resnets.{j}", before if j == 0 else width, width)
        if i < 3:
            conv(f"encoder.down_blocks.{i}.downsamplers.0.conv", width, width, 3 if i else 1, 3)
        before = width
    for i, width in enumerate(reversed(WIDTHS)):
        for j in range(LAYERS + 1):
            residual(f"decoder.up_blocks.{i}.resnets.{j}", before if j == 0 else width, width)
        if i < 3:
            conv(f"decoder.up_blocks.{i}.upsamplers.0.upscale_conv", width * (8 if i < 2 else 4), width, 1, 1)
            conv(f"decoder.up_blocks.{i}.upsamplers.0.conv", width, width, 3, 3)
        before = width
    return keys


def dit():
    inner = HEADS * HEAD
    keys = {"vid_in.proj.weight": (DIM, 4 * (2 * LATENT + 1)), "vid_in.proj.bias": (DIM,), "txt_in.weight": (DIM, TEXT), "txt_in.bias": (DIM,),
            "emb_in.proj_in.weight": (DIM, 256), "emb_in.proj_in.bias": (DIM,), "emb_in.proj_hid.weight": (DIM, DIM), "emb_in.proj_hid.bias": (DIM,),
            "emb_in.proj_out.weight": (6 * DIM, DIM), "emb_in.proj_out.bias": (6 * DIM,), "vid_out.proj.weight": (4 * LATENT, DIM),
            "vid_out.proj.bias": (4 * LATENT,), "vid_out_norm.weight": (DIM,), "vid_out_ada.out_shift": (DIM,), "vid_out_ada.out_scale": (DIM,)}
    for i in range(BLOCKS):
        for part in ("vid", "txt") if i < SEPARATE else ("all",):
            at = f"blocks.{i}."
            keys |= {at + f"attn.proj_qkv.{part}.weight": (3 * inner, DIM), at + f"attn.norm_q.{part}.weight": (HEAD,),
                     at + f"attn.norm_k.{part}.weight": (HEAD,), at + f"attn.proj_out.{part}.weight": (DIM, inner),
                     at + f"attn.proj_out.{part}.bias": (DIM,), at + f"mlp.{part}.proj_in.weight": (HIDDEN, DIM),
                     at + f"mlp.{part}.proj_in_gate.weight": (HIDDEN, DIM), at + f"mlp.{part}.proj_out.weight": (DIM, HIDDEN)}
            for layer in ("attn", "mlp"):
                for kind in ("shift", "scale", "gate"):
                    keys[at + f"ada.{part}.{layer}_{kind}"] = (DIM,)
    return keys


def values(rng, key, shape):
    n, terms = 1, 1
    for size in shape:
        n *= size
    for size in shape[1:]:
        terms *= size
    if len(shape) == 1:
        middle = 1.0 if key.endswith(("norm1.weight", "norm2.weight", "norm.weight", "norm_q.vid.weight", "scale")) or ".norm_" in key else 0.0
        return [middle + rng.gauss(0, 0.05) for _ in range(n)]
    return [rng.gauss(0, terms ** -0.5) for _ in range(n)]


def write(path, keys, metadata, seed):
    rng, header, blobs, at = random.Random(seed), {"__metadata__": metadata}, [], 0
    for key in sorted(keys):
        blob = struct.pack(f"<{len(v)}f", *v) if (v := values(rng, key, keys[key])) else b""
        header[key] = {"dtype": "F32", "shape": keys[key], "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


VAE_METADATA = {"model": "seedvr_vae", "config": json.dumps({"block_out_channels": WIDTHS, "norm_num_groups": GROUPS, "latent_channels": LATENT, "layers_per_block": LAYERS})}
DIT_METADATA = {"model": "seedvr_dit3b", "config": json.dumps({"vid_dim": DIM, "txt_dim": DIM, "emb_dim": 6 * DIM, "txt_in_dim": TEXT, "heads": HEADS, "head_dim": HEAD,
                                                               "num_layers": BLOCKS, "mm_layers": SEPARATE, "rope_dim": HEAD, "expand_ratio": 4})}


def main(folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "vae.weights.safetensors", vae(), VAE_METADATA, 1)
    write(folder / "seedvr2_tiny.safetensors", dit(), DIT_METADATA, 2)
    write(folder / "text.safetensors", {"pos": (5, TEXT), "neg": (7, TEXT)}, {}, 3)


if __name__ == "__main__":
    main(sys.argv[1])
