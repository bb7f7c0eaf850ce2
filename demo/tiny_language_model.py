"""Makes a tiny language model, or Mobile-VideoGPT, with random weights: config.json, weights, tokenizer.json. For tests
and demonstrations: its output is meaningless.

    python3 demo/tiny_language_model.py FOLDER [--kind mamba1|mamba2|mamba3|hybrid|falcon|qwen2|videogpt] [--dtype f32|f16|bf16] [--shards N] [--seed N]

The tokenizer has a token for every byte, a few merges, and Qwen2's special tokens. Standard library only."""
import argparse
import json
import pathlib
import random
import struct

D, LAYERS, STATE, TAPS, HEAD = 32, 2, 8, 4, 16
CLIP, VIDEO, PATCH = 16, 24, 2  # the towers' widths; 14 patches of 2 pixels per side
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def alphabet():
    """The letter of each byte: GPT-2's table."""
    letters, more = {}, 256
    for byte in range(256):
        prints = 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174
        letters[byte] = chr(byte if prints else more)
        more += not prints
    return letters


def tokenizer():
    letters = alphabet()
    vocab = {letters[b]: b for b in range(256)}
    merges = []
    for pair in ("t h", "th e", "i n", "e r", "a n", "Ġ the", "an d", "Ġ a", "o n"):
        left, right = pair.split()
        merges.append(pair)
        vocab[left + right] = len(vocab)
    added = [{"id": len(vocab) + i, "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for i, s in enumerate(SPECIAL)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {"version": "1.0", "added_tokens": added, "normalizer": {"type": "NFC"}, "pre_tokenizer": level, "post_processor": level, "decoder": level,
            "model": {"type": "BPE", "vocab": vocab, "merges": merges}}, len(vocab) + len(SPECIAL)


def encode(values, dtype):
    if dtype == "bf16":
        return b"".join(struct.pack("<f", v)[2:] for v in values)
    return struct.pack(f"<{len(values)}{'f' if dtype == 'f32' else 'e'}", *values)


def qwen2_shapes(vocab):
    yield "model.embed_tokens.weight", (vocab, D), 0.4
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        for name, rows in (("q", D), ("k", HEAD), ("v", HEAD)):
            yield f"{at}self_attn.{name}_proj.weight", (rows, D), 0.15
            yield f"{at}self_attn.{name}_proj.bias", (rows,), 0.1
        yield at + "self_attn.o_proj.weight", (D, D), 0.15
        yield at + "mlp.gate_proj.weight", (2 * D, D), 0.15
        yield at + "mlp.up_proj.weight", (2 * D, D), 0.15
        yield at + "mlp.down_proj.weight", (D, 2 * D), 0.15
        yield at + "input_layernorm.weight", (D,), None
        yield at + "post_attention_layernorm.weight", (D,), None
    yield "model.norm.weight", (D,), None


def linear(name, rows, columns, deviation=0.15):
    yield name + ".weight", (rows, columns), deviation
    yield name + ".bias", (rows,), 0.1


def clip_shapes():
    at, C = "model.image_vision_tower.vision_tower.vision_model.", CLIP
    norm = lambda name: ((name + ".weight", (C,), None), (name + ".bias", (C,), 0.1))
    yield at + "embeddings.class_embedding", (C,), 0.3
    yield at + "embeddings.patch_embedding.weight", (C, 3, PATCH, PATCH), 0.3
    yield at + "embeddings.position_embedding.weight", (197, C), 0.3
    yield from norm(at + "pre_layrnorm")
    for i in range(3):
        layer = f"{at}encoder.layers.{i}."
        yield from norm(layer + "layer_norm1")
        for part in ("q", "k", "v", "out"):
            yield from linear(f"{layer}self_attn.{part}_proj", C, C)
        yield from norm(layer + "layer_norm2")
        yield from linear(layer + "mlp.fc1", 2 * C, C)
        yield from linear(layer + "mlp.fc2", C, 2 * C)


def video_shapes():
    at, width, inner, rank = "model.vision_tower.vision_encoder.", VIDEO, 2 * VIDEO, 2
    yield at + "cls_token", (1, 1, width), 0.3
    yield at + "pos_embed", (1, 197, width), 0.3
    yield at + "temporal_pos_embedding", (1, 8, width), 0.3
    yield at + "patch_embed.proj.weight", (width, 3, 1, PATCH, PATCH), 0.3
    yield at + "patch_embed.proj.bias", (width,), 0.1
    for i in range(2):
        mixer = f"{at}layers.{i}.mixer."
        yield f"{at}layers.{i}.norm.weight", (width,), None
        yield mixer + "in_proj.weight", (2 * inner, width), 0.2
        yield mixer + "out_proj.weight", (width, inner), 0.2
        for end in ("", "_b"):
            yield f"{mixer}A{end}_log", (inner, STATE), 0.3
            yield f"{mixer}D{end}", (inner,), 0.3
            yield f"{mixer}conv1d{end}.weight", (inner, 1, TAPS), 0.3
            yield f"{mixer}conv1d{end}.bias", (inner,), 0.1
            yield f"{mixer}x_proj{end}.weight", (rank + 2 * STATE, inner), 0.2
            yield f"{mixer}dt_proj{end}.weight", (inner, rank), 0.3
            yield f"{mixer}dt_proj{end}.bias", (inner,), 0.3
    yield at + "norm.weight", (width,), None


def videogpt_shapes(vocab):
    yield from qwen2_shapes(vocab)
    yield from clip_shapes()
    yield from video_shapes()
    for name, width in (("image_mm_projector", CLIP), ("mm_projector", VIDEO)):
        yield from linear(f"model.{name}.mlp.mlp.0", D, width, 0.3)
        yield from linear(f"model.{name}.mlp.mlp.2", D, D, 0.3)
        yield f"model.{name}.peg.peg.0.weight", (D, 1, 3, 3), 0.2
        yield f"model.{name}.peg.peg.0.bias", (D,), 0.1


def shapes(kind, vocab):
    if kind in ("qwen2", "videogpt"):
        yield from (qwen2_shapes if kind == "qwen2" else videogpt_shapes)(vocab)
        return
    inner = 2 * D
    yield "backbone.embeddings.weight", (vocab, D), 0.4
    for i in range(LAYERS):
        at = f"backbone.layers.{i}."
        yield at + "norm.weight", (D,), None
        mixer, inner_out = at + "mixer.", inner
        if kind == "hybrid" and i == 1:  # attention: two heads, with a convolution
            channels, inner_out = 3 * D, D
            yield mixer + "in_proj.weight", (channels, D), 0.15
        elif kind == "mamba3":
            heads = inner // HEAD
            yield mixer + "in_proj.weight", (2 * inner + 2 * STATE + 3 * heads + STATE // 4, D), 0.15
            yield mixer + "dt_bias", (heads,), 0.3
            yield mixer + "D", (heads,), 0.3
            for name in ("B", "C"):
                yield f"{mixer}{name}_bias", (heads, 1, STATE), None
                yield f"{mixer}{name}_norm.weight", (STATE,), None
            yield mixer + "out_proj.weight", (D, inner), 0.15
            continue
        elif kind in ("mamba2", "hybrid"):
            heads, channels = inner // HEAD, inner + 2 * STATE
            yield mixer + "in_proj.weight", (inner + channels + heads, D), 0.15
            yield mixer + "norm.weight", (inner,), None
            for name in ("A_log", "D", "dt_bias"):
                yield mixer + name, (heads,), 0.3
        else:
            channels, rank = inner, D // 16
            yield mixer + "in_proj.weight", (2 * inner, D), 0.15
            yield mixer + "x_proj.weight", (rank + 2 * STATE, inner), 0.15
            yield mixer + "dt_proj.weight", (inner, rank), 0.3
            yield mixer + "dt_proj.bias", (inner,), 0.3
            yield mixer + "A_log", (inner, STATE), 0.3
            yield mixer + "D", (inner,), 0.3
        yield mixer + "conv1d.weight", (channels, 1, TAPS), 0.3
        yield mixer + "conv1d.bias", (channels,), 0.1
        yield mixer + "out_proj.weight", (D, inner_out), 0.15
    yield "backbone.norm_f.weight", (D,), None


def config(kind, vocab):
    if kind == "videogpt":
        return {**config("qwen2", vocab), "model_type": "MobileVideoGPT_qwen", "vision_config": {"num_attention_heads": 2}}
    if kind == "qwen2":
        return {"model_type": "qwen2", "hidden_size": D, "num_hidden_layers": LAYERS, "num_attention_heads": D // HEAD, "num_key_value_heads": 1, "intermediate_size": 2 * D, "vocab_size": vocab,
                "rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "silu", "tie_word_embeddings": True, "eos_token_id": vocab - len(SPECIAL)}
    if kind == "mamba3":
        return {"d_model": D, "n_layer": LAYERS, "vocab_size": vocab, "ssm_cfg": {"layer": "Mamba3", "d_state": STATE, "headdim": HEAD, "A_activation": "heavy_tail"}, "rms_norm": True,
                "tie_embeddings": True, "eos_token_id": vocab - len(SPECIAL)}
    if kind == "hybrid":
        return {"d_model": D, "n_layer": LAYERS, "vocab_size": vocab, "ssm_cfg": {"layer": "Mamba2", "d_state": STATE, "headdim": HEAD}, "attn_layer_idx": [1],
                "attn_cfg": {"causal": True, "d_conv": TAPS, "head_dim": HEAD, "num_heads": D // HEAD, "out_proj_bias": False, "qkv_proj_bias": False, "rotary_emb_dim": HEAD}, "rms_norm": True,
                "tie_embeddings": True, "eos_token_id": vocab - len(SPECIAL)}
    common = {"hidden_size": D, "num_hidden_layers": LAYERS, "state_size": STATE, "conv_kernel": TAPS, "expand": 2, "vocab_size": vocab, "layer_norm_epsilon": 1e-5, "use_bias": False,
              "use_conv_bias": True, "hidden_act": "silu", "tie_word_embeddings": True, "eos_token_id": vocab - len(SPECIAL)}
    if kind == "mamba2":
        return {"model_type": "mamba2", "num_heads": 2 * D // HEAD, "head_dim": HEAD, "n_groups": 1, "time_step_limit": [0.0, {"__float__": "Infinity"}], **common}
    return {"model_type": "falcon_mamba" if kind == "falcon" else "mamba", "time_step_rank": D // 16, **common}


def write_safetensors(path, tensors, dtype):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, shape, values in tensors:
        blob = encode(values, dtype)
        header[name] = {"dtype": dtype.upper(), "shape": list(shape), "data_offsets": [len(data), len(data) + len(blob)]}
        data += blob
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def make(folder, kind="mamba1", dtype="f32", shards=1, seed=1):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    tokens, vocab = tokenizer()
    tensors = []
    for name, shape, deviation in shapes(kind, vocab):
        n = 1
        for size in shape:
            n *= size
        tensors.append((name, shape, [1.0 if deviation is None else rng.gauss(0, deviation) for _ in range(n)]))
    (folder / "config.json").write_text(json.dumps(config(kind, vocab), indent=1))
    (folder / "tokenizer.json").write_text(json.dumps(tokens))
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors, dtype)
        return
    names = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        write_safetensors(folder / file, tensors[i::shards], dtype)
        names.update((name, file) for name, _, _ in tensors[i::shards])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))


# ---- GGUF ----
GGML = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "BF16": 30}
GGUF_NAMES = {"mixer.in_proj": "ssm_in", "mixer.conv1d": "ssm_conv1d", "mixer.x_proj": "ssm_x", "mixer.dt_proj": "ssm_dt", "mixer.dt_bias": "ssm_dt.bias", "mixer.A_log": "ssm_a", "mixer.D": "ssm_d", "mixer.norm": "ssm_norm",
              "mixer.out_proj": "ssm_out", "norm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate",
              "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


def gguf_name(name):
    """llama.cpp's name of Hugging Face's `name`."""
    if ".layers." not in name:
        return {"embeddings": "token_embd", "embed_tokens": "token_embd", "norm_f": "output_norm", "norm": "output_norm", "lm_head": "output"}[name.split(".")[-2]] + ".weight"
    layer, own = name.split(".layers.")[1].split(".", 1)
    stem, dot, end = own.rpartition(".")
    return f"blk.{layer}." + (f"{GGUF_NAMES[stem]}.{end}" if stem in GGUF_NAMES else GGUF_NAMES[own])


def gguf_text(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf_value(value):
    """-> type and bytes; lists contain strings or integers."""
    if isinstance(value, list):
        kind, parts = (8, map(gguf_text, value)) if not value or isinstance(value[0], str) else (6, (struct.pack("<f", v) for v in value)) if isinstance(value[0], float) else (5, (struct.pack("<i", v) for v in value))
        return struct.pack("<IIQ", 9, kind, len(value)) + b"".join(parts)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, (str, bytes)):
        return struct.pack("<I", 8) + gguf_text(value)
    return struct.pack("<II", 4, value) if isinstance(value, int) else struct.pack("<If", 6, value)


def gguf_bytes(values, tensors, alignment=32):
    """tensors: name, sizes (outermost first), type, bytes."""
    head, infos, data = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(values)), b"", b""
    for key, value in values.items():
        head += gguf_text(key) + gguf_value(value)
    for name, shape, kind, blob in tensors:
        data += bytes(-len(data) % alignment)
        infos += gguf_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), GGML.get(kind, kind), len(data))
        data += blob
    head += infos
    return head + bytes(-len(head) % alignment) + data


def write_gguf(path, values, tensors):
    pathlib.Path(path).write_bytes(gguf_bytes(values, tensors))


def gguf_values(folder):
    """The contents of the files beside the weights, by GGUF key."""
    config, tokens = (json.loads((pathlib.Path(folder) / f"{n}.json").read_text()) for n in ("config", "tokenizer"))
    kind = {"falcon_mamba": "mamba"}.get(config["model_type"], config["model_type"])
    keys = {"hidden_size": "embedding_length", "num_hidden_layers": "block_count", "intermediate_size": "feed_forward_length", "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
            "state_size": "ssm.state_size", "conv_kernel": "ssm.conv_kernel", "time_step_rank": "ssm.time_step_rank", "n_groups": "ssm.group_count", "layer_norm_epsilon": "attention.layer_norm_rms_epsilon",
            "rms_norm_eps": "attention.layer_norm_rms_epsilon", "rope_theta": "rope.freq_base"}
    values = {"general.architecture": kind, **{f"{kind}.{keys[k]}": v for k, v in config.items() if k in keys}}
    if config["model_type"] == "falcon_mamba":
        values["mamba.ssm.dt_b_c_rms"] = True
    words = {i: t for t, i in tokens["model"]["vocab"].items()} | {t["id"]: t["content"] for t in tokens["added_tokens"]}
    special = {t["id"] for t in tokens["added_tokens"]}
    return values | {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "mpt", "tokenizer.ggml.tokens": [words[i] for i in range(len(words))], "tokenizer.ggml.token_type": [3 if i in special else 1 for i in range(len(words))],
                     "tokenizer.ggml.merges": tokens["model"]["merges"], "tokenizer.ggml.eos_token_id": config["eos_token_id"]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--kind", default="mamba1", choices=["mamba1", "mamba2", "mamba3", "hybrid", "falcon", "qwen2", "videogpt"])
    parser.add_argument("--dtype", default="f32", choices=["f32", "f16", "bf16"])
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    make(**vars(parser.parse_args()))
