"""Makes a random model of the toy family (MODEL.md), and runs its test. Usage: toy.py TOY_TEST"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "demo"))
import tiny_language_model  # noqa: E402

D, LAYERS = 16, 3


def shapes(vocab):
    yield "toy.embed.weight", (vocab, D)
    yield "toy.norm.weight", (D,)
    for i in range(LAYERS):
        parts = {"q": (D, D), "k": (D // 2, D), "v": (D // 2, D), "o": (D, D)} if i % 2 else {"echo.taps": (D, 1, 3), "echo.out.weight": (D, D)}
        for name, shape in {"norm.weight": (D,), **parts, "norm2.weight": (D,), "gate": (2 * D, D), "up": (2 * D, D), "down": (D, 2 * D)}.items():
            yield f"toy.layers.{i}.{name}", shape


with tempfile.TemporaryDirectory() as folder:
    here, rng = pathlib.Path(folder), random.Random(1)
    (here / "q8").mkdir()
    tokens, vocab = tiny_language_model.tokenizer()
    tensors = []
    for name, shape in shapes(vocab):
        n = 1
        for size in shape:
            n *= size
        tensors.append((name, shape, [rng.gauss(0.0, 0.3) if len(shape) > 1 else 1 + rng.gauss(0.0, 0.1) for _ in range(n)]))
    tiny_language_model.write_safetensors(here / "model.safetensors", tensors, "f32")
    for place in (here, here / "q8"):
        (place / "config.json").write_text(json.dumps({"model_type": "toy", "hidden_size": D, "num_hidden_layers": LAYERS}))
        (place / "tokenizer.json").write_text(json.dumps(tokens))
    sys.exit(subprocess.run([sys.argv[1], folder]).returncode)
