"""Writes first inputs for the fuzz targets: python3 tools/fuzz_seeds.py FOLDER makes FOLDER/TARGET/*, from the tests' own files."""
import pathlib
import sys
import zipfile

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
YAML = [b"model:\n  model_lib: primeknet_mamba\n  param:\n    fft_len: 400\n    causal: True\n    freq_block_kernel:\n    - 3\n    - 11\n",
        b'{"model": "x", "config": {"a": [1, 2.5e3, null, "\\u00e9"], "b": {}}}', b"a: 'x'\nb: |\n  text\nc: &x {d: *x}\n"]


def torch_files():
    return sorted((GOLDEN / "torch").glob("*.th")) + sorted((GOLDEN / "torch").glob("*.pt"))


def pickles():
    for path in torch_files():
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as z:
                yield from (z.read(n) for n in z.namelist() if n.endswith("/data.pkl"))


SEEDS = {
    "config": YAML + [b"a=1,l=[3, 11],causal=true,model=primeknet_gru,s=\"x,y\""],
    "pickle": pickles(),
    "safetensors": [p.read_bytes() for p in sorted((GOLDEN / "torch").glob("*.safetensors"))],
    "torch_file": [p.read_bytes() for p in torch_files()],
    "yaml_tree": YAML,
}

for target, inputs in SEEDS.items():
    folder = pathlib.Path(sys.argv[1]) / target
    folder.mkdir(parents=True, exist_ok=True)
    for i, data in enumerate(inputs):
        (folder / f"seed{i}").write_bytes(data)
