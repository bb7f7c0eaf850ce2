"""Makes the tiny models and state files for sessions.c, and runs it. Usage: sessions.py SESSIONS KRAIT [N [SEED]]"""
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "demo"))
import tiny_film  # noqa: E402
import tiny_language_model  # noqa: E402


def read(path):
    """The metadata and {name: (type, shape, bytes)}."""
    blob = path.read_bytes()
    n = struct.unpack("<Q", blob[:8])[0]
    header = json.loads(blob[8:8 + n])
    metadata = header.pop("__metadata__", {})
    return metadata, {k: (v["dtype"], v["shape"], blob[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]) for k, v in header.items()}


def write(path, metadata, tensors):
    header, data = {"__metadata__": metadata}, b""
    for name, (dtype, shape, blob) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(blob)]}
        data += blob
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def make_models(folder, krait):
    for kind in ("mamba1", "mamba2", "hybrid", "falcon", "qwen2", "videogpt"):
        tiny_language_model.make(folder / kind, kind)
    tiny_film.make(folder / "film.avi", 20, 25, 64, 48)
    tiny_language_model.make(folder / "half", "mamba1", "f16")
    tiny_language_model.make(folder / "mamba1-sharded", "mamba1", shards=3)
    shutil.copytree(folder / "mamba1", folder / "merged")  # as after an adapter was merged into one matrix
    metadata, tensors = read(folder / "merged" / "model.safetensors")
    name = "backbone.layers.1.mixer.in_proj.weight"
    dtype, shape, blob = tensors[name]
    values = [v + 0.01 for v in struct.unpack(f"<{len(blob) // 4}f", blob)]
    write(folder / "merged" / "model.safetensors", metadata, {**tensors, name: (dtype, shape, struct.pack(f"<{len(values)}f", *values))})
    (folder / "quantized").mkdir()
    subprocess.run([krait, "convert", "--quantize", "q8_0", folder / "mamba1", folder / "quantized" / "model.safetensors"], check=True)
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(folder / "mamba1" / name, folder / "quantized" / name)


def make_states(folder, krait):
    for kind in ("mamba1", "mamba2", "hybrid", "qwen2", "quantized"):
        state = folder / f"{kind}.state"
        subprocess.run([krait, "generate", folder / kind, "-p", "the north", "-n", "0", "--device", "cpu", "--save-state", state], check=True, capture_output=True)
        metadata, tensors = read(state)
        last = max(k for k in tensors if k[-2:] == ".1")
        write(folder / f"{kind}-short.state", metadata, {k: v for k, v in tensors.items() if k != last})
    shutil.copy(folder / "mamba2-short.state", folder / "short.state")
    metadata, tensors = read(folder / "mamba1.state")
    n = tensors["logits"][1][0]
    _, shape, blob = tensors["ssm.0"]
    write(folder / "damaged.state", metadata, {**tensors, "ssm.0": ("F32", shape, struct.pack("<f", float("nan")) * (len(blob) // 4))})
    for name, value in (("lowest", -3.4e38), ("highest", 3.4e38)):  # all tokens have occurred
        write(folder / f"{name}.state", metadata, {**tensors, "logits": ("F32", [n], struct.pack(f"<{n}f", *[value] * n)), "ids": ("I32", [n], struct.pack(f"<{n}i", *range(n)))})


if __name__ == "__main__":
    program, krait, *rest = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="krait-sessions-") as name:
        make_models(pathlib.Path(name), krait)
        make_states(pathlib.Path(name), krait)
        sys.exit(subprocess.run([program, name, *rest]).returncode)
