"""krait info and krait convert on good and bad files."""
import json
import os
import pathlib
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time

from run import KRAIT, check, check_error, finish, krait

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent.parent / "demo"))
import tiny_language_model as tiny  # noqa: E402

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "primeknet"


def read_safetensors(path):
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + length])
    meta = header.pop("__metadata__", {})
    data = raw[8 + length:]
    return {k: (v["dtype"], v["shape"], data[slice(*v["data_offsets"])]) for k, v in header.items()}, meta


with tempfile.TemporaryDirectory() as folder:
    out = pathlib.Path(folder) / "out.safetensors"
    for path in sorted(GOLDEN.glob("*.weights.safetensors")):
        tensors, meta = read_safetensors(path)
        info = json.loads(krait("info", path, "--json").stdout)
        n_params = sum(len(data) // 4 for _, _, data in tensors.values())
        check(info["n_params"] == n_params and info["n_tensors"] == len(tensors), f"{path.name}: counts")
        check(info["model"] == meta["model"] and info["config"] == json.loads(meta["config"]), f"{path.name}: configuration")
        check({t["name"]: t["shape"] for t in info["tensors"]} == {k: v[1] for k, v in tensors.items()}, f"{path.name}: shapes")
        text = krait("info", path).stdout.decode()
        check(meta["model"] in text and str(n_params) in text and all(k in text for k in tensors), f"{path.name}: text")

        done = krait("convert", "-f", path, out, "--set", "causal=true,freq_block_kernel=[3,5],model=other")
        check(done.returncode == 0 and done.stdout == b"" and done.stderr == b"", f"convert: {done}")
        tensors2, meta2 = read_safetensors(out)
        config = json.loads(meta["config"]) | {"causal": True, "freq_block_kernel": [3, 5]}
        check(tensors2 == tensors, f"{path.name}: tensors survive")
        check(meta2["model"] == "other" and json.loads(meta2["config"]) == config, f"{path.name}: merged configuration")
        check({k: v for k, v in meta2.items() if k not in ("model", "config")} ==
              {k: v for k, v in meta.items() if k not in ("model", "config")}, f"{path.name}: other metadata survive")

    good = path
    evil = json.dumps({"__metadata__": {"k\x1b": "\x1b[2J"}, "a\x1b]0;x\x07\n": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}).encode()
    out.write_bytes(struct.pack("<Q", len(evil)) + evil)
    check(b"\x1b" not in krait("info", out).stdout and b"\x07" not in krait("info", out).stdout, "no escape sequences reach the terminal")
    out.write_bytes(good.read_bytes())
    before = out.read_bytes()
    check_error(1, "cannot open", "info", pathlib.Path(folder) / "missing.safetensors")
    bad = pathlib.Path(folder) / "bad.safetensors"
    bad.write_bytes(b"")
    check_error(1, "is empty", "info", bad)
    bad.write_bytes(struct.pack("<Q", 1 << 63) + b"{}")
    check_error(1, "neither safetensors", "convert", "-f", bad, out)
    for text, words in ((b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "a Git LFS pointer, not the file itself; get that with git lfs pull"),
                        (b"<!DOCTYPE html><title>404</title>", "a web page, not weights; download the file itself"), (b'{"weight_map": {}}', "JSON text, not weights; give the weights file itself")):
        bad.write_bytes(text)
        check_error(1, f"bad.safetensors is {words}", "info", bad)
    bad.write_bytes(good.read_bytes()[:-1])
    check_error(1, "truncated", "convert", "-f", bad, out)
    check_error(1, "there is no config.json in it", "info", folder)
    check_error(2, "is not key=value", "convert", "-f", good, out, "--set", "causal")
    check_error(1, "cannot open", "convert", "-f", good, out, "--config", pathlib.Path(folder) / "missing.yaml")
    check_error(2, "does not exist", "convert", good, pathlib.Path(folder) / "no" / "such" / "folder.safetensors")
    for name in ("model.gguf", "model", "-"):  # safetensors under a misleading name
        check_error(2, f"{name}: the extension selects the format; use .safetensors", "convert", good, name, cwd=folder)
    check(krait("convert", good, pathlib.Path(folder) / "m.pth").returncode == 0 and (pathlib.Path(folder) / "m.pth").read_bytes()[:2] == b"PK", ".pth is PyTorch's, as .th")
    (pathlib.Path(folder) / "m.pth").unlink()
    if os.path.exists("/dev/full"):
        check_error(1, "No space left", "convert", good, "/dev/full")
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # like a disk that fills up halfway
    check_error(1, "cannot write", "convert", "-f", good, out, preexec_fn=limit, restore_signals=False)
    check(out.read_bytes() == before, "a failed conversion leaves the old file")
    check(sorted(p.name for p in pathlib.Path(folder).iterdir()) == ["bad.safetensors", "out.safetensors"], "no partial files")


def writes_nameless(pid):
    """Whether the process has an output open: a file without a name, or with a temporary one."""
    try:
        links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return False
    return any("(deleted)" in link or link.endswith(".part") for link in links)


with tempfile.TemporaryDirectory() as folder:  # Ctrl-C in the middle of writing 256 MiB
    big, out = pathlib.Path(folder) / "big.safetensors", pathlib.Path(folder) / "out.safetensors"
    header = json.dumps({"a": {"dtype": "F32", "shape": [1 << 26], "data_offsets": [0, 1 << 28]}}).encode()
    with open(big, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header)
        f.truncate(f.tell() + (1 << 28))
    with subprocess.Popen([KRAIT, "convert", big, out], stderr=subprocess.PIPE) as running:
        while running.poll() is None and not writes_nameless(running.pid):
            time.sleep(0.001)
        running.send_signal(signal.SIGINT)
        line = running.stderr.read().decode()
    check(running.returncode == 130 and line == "krait convert: stopped; no unfinished output is left\n", f"Ctrl-C: {running.returncode}, {line!r}")
    check([p.name for p in pathlib.Path(folder).iterdir()] == ["big.safetensors"], "Ctrl-C leaves no file")


# ---- krait info --graph: every family in the tree, and one made here ----

def write_safetensors(path, shapes, meta=None):
    """Zeros of these shapes, float32."""
    header, at = ({"__metadata__": meta} if meta else {}), 0
    for name, shape in shapes.items():
        n = 4
        for size in shape:
            n *= size
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))


def write_clip(folder):
    C, F, patch, edge = 8, 16, 2, 3
    layer = "vision_model.encoder.layers.0."
    shapes = {"vision_model.embeddings.class_embedding": [C], "vision_model.embeddings.position_embedding.weight": [1 + edge * edge, C],
              "vision_model.embeddings.patch_embedding.weight": [C, 3, patch, patch], layer + "mlp.fc1.weight": [F, C], layer + "mlp.fc1.bias": [F],
              layer + "mlp.fc2.weight": [C, F], layer + "mlp.fc2.bias": [C]}
    for name in ("vision_model.pre_layrnorm", layer + "layer_norm1", layer + "layer_norm2"):
        shapes |= {name + ".weight": [C], name + ".bias": [C]}
    for name in ("q", "k", "v", "out"):
        shapes |= {f"{layer}self_attn.{name}_proj.weight": [C, C], f"{layer}self_attn.{name}_proj.bias": [C]}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"vision_config": {"num_attention_heads": 2}}))
    write_safetensors(folder / "model.safetensors", shapes)


def check_graphs(path, operators, n_graphs, *options):
    """Headings, nodes in order, a sum that counts them; with --profile each node's time, which add up to that of all. The slices
    that a node is made of are graphs of their own."""
    for profile in ([], ["--profile"]):
        done = krait("info", path, "--graph", "--device", "cpu", *profile, *options)
        check(done.returncode == 0 and done.stderr == b"", f"info --graph {path}: {done.stderr}")
        nodes, times, sums, seen, is_slice = 0, 0, 0, set(), False
        for line in done.stdout.decode().splitlines():
            words = line.split()
            is_slice = is_slice or line.startswith("each slice of ")
            if line[:5].strip().isdigit() and line[0] == " ":
                check(int(words[0]) >= nodes and "MB" in words, f"{path}: node {line}")
                check(("us" in words) == bool(profile), f"{path}: time of {line}")
                nodes += 1
                seen.add(words[2])
                times += float(words[words.index("us") - 1]) if profile else 0
            elif " nodes; arena " in line:
                check(int(words[0]) == nodes > 0, f"{path}: {line} after {nodes} nodes")
                if profile:
                    check(times > 0 and abs(float(words[words.index("us") - 1]) - times) <= 0.05 * nodes + 0.1, f"{path}: {line}, nodes took {times}")
                nodes, times, sums, is_slice = 0, 0, sums + (not is_slice), False
        check(sums == n_graphs and operators <= seen, f"{path}: {sums} graphs of {seen}")


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    write_clip(folder / "clip")
    check_graphs(folder / "clip", {"gemm", "attention", "add_norm"}, 1)
    check_graphs(GOLDEN / "tiny-gru.weights.safetensors", {"gemm", "rnn"}, 1)
    check_graphs(GOLDEN / "tiny-strided.weights.safetensors", {"gemm", "depthwise_conv", "state_update"}, 1)  # a frame at a time
    check_graphs(GOLDEN / "odd-mamba.weights.safetensors", {"gemm", "selective_scan", "causal_conv1d"}, 1)
    check_graphs(GOLDEN.parent / "qwen2", {"gemm", "attention", "rotary", "argmax_rows"}, 2)
    check_graphs(GOLDEN.parent / "seedvr" / "dit3b.weights.safetensors", {"gemm", "attention"}, 1)
    for kind, operators in (("mamba1", {"selective_scan", "state_update"}), ("mamba2", {"ssd", "state_update"}), ("mamba3", {"mamba3", "mamba3_step"}), ("falcon", {"selective_scan"})):
        tiny.make(folder / kind, kind)
        check_graphs(folder / kind, operators, 2)
    for path in (folder / "mamba1", folder / "clip", GOLDEN.parent / "qwen2", GOLDEN.parent / "mamba_lm/hybrid"):  # as published, and upstream's, which names no model
        told, whole = json.loads(krait("info", path, "--json").stdout), json.loads(krait("info", path / "model.safetensors", "--json").stdout)
        own = json.loads((path / "config.json").read_text())
        check(told["config"] == own and told["model"] == own.get("model_type") and [told[k] for k in ("format", "n_params", "n_tensors", "tensors")] == [whole[k] for k in ("format", "n_params", "n_tensors", "tensors")], f"info {path}: {told}")
        check("operators: --graph lists them\n" in krait("info", path).stdout.decode(), f"info {path} says how to see its operators")
    tiny.make(folder / "shards", "mamba1", shards=3)
    sharded, one = (json.loads(krait("info", folder / name, "--json").stdout) for name in ("shards", "mamba1"))
    check(sorted(map(str, sharded["tensors"])) == sorted(map(str, one["tensors"])), "info of a folder with shards")
    check_graphs(GOLDEN.parent / "videomamba/video_mm.weights.safetensors", {"selective_scan"}, 1)
    check_graphs(GOLDEN.parent / "mamba_lm/hybrid", {"attention"}, 2)
    bad = folder / "bad.safetensors"
    write_safetensors(bad, {"a": [2, 3]}, {"model": "primeknet_mamba", "config": "{}"})
    check_error(2, "is missing", "info", bad, "--graph", "--device", "cpu")
    write_safetensors(bad, {"a": [2, 3]}, {"model": "other"})
    check_error(2, "unknown model 'other'", "info", bad, "--graph", "--device", "cpu")
    write_safetensors(bad, {"a": [2, 3]})
    check_error(2, "config.json", "info", bad, "--graph", "--device", "cpu")
    check_error(2, "cannot open", "info", folder / "nothing", "--graph", "--device", "cpu")
    check_error(2, "--graph needs a FILE", "info", "--graph")
    check_error(2, "need --graph", "info", bad, "--profile")
    check_error(2, "need --graph", "info", "--device", "cpu")
    check_error(2, "cannot be combined with --json", "info", bad, "--graph", "--json")

program = json.loads(krait("info", "--json").stdout)
check(program["version"] == krait("version").stdout.decode().split()[1], "version")
check(all(rows[-1]["name"] == "ref" and rows[-1]["usable"] for rows in program["ops"].values()), "every operator ends in a usable reference")
text = krait("info").stdout.decode()
check(all(name in text for name in program["ops"]), "operators listed")
# The program's denoiser is the wheel's to the bit: both have the weights with 12 significant bits.
if (pathlib.Path(__file__).parents[2] / "src/models/primeknet/weights/primeknet_mamba_720k.safetensors").is_file():
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "builtin.safetensors"
        check(krait("convert", "builtin", copy).returncode == 0, "the built-in weights are converted")
        raw = copy.read_bytes()
        begin = 8 + struct.unpack("<Q", raw[:8])[0]
        words = struct.unpack(f"<{(len(raw) - begin) // 4}I", raw[begin:])
        check(words and not any(word & 0xfff for word in words), "built-in values of more than 12 significant bits")
finish()
