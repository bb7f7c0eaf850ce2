"""Writes seed inputs for the fuzz targets: python3 tests/fuzz/fuzz_seeds.py FOLDER makes FOLDER/TARGET/* from test files."""
import bz2
import gzip
import io
import json
import lzma
import pathlib
import struct
import sys
import tarfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
YAML = [b"model:\n  model_lib: primeknet_mamba\n  param:\n    fft_len: 400\n    causal: True\n    freq_block_kernel:\n    - 3\n    - 11\n",
        b'{"model": "x", "config": {"a": [1, 2.5e3, null, "\\u00e9"], "b": {}}}', b"a: 'x'\nb: |\n  text\nc: &x {d: *x}\n"]


def device_code_tool():
    sys.path.insert(0, str(ROOT / "tools"))
    import device_code as tool
    return tool


def torch_files():
    return sorted((GOLDEN / "torch").glob("*.th")) + sorted((GOLDEN / "torch").glob("*.pt"))


def pickles():
    for path in torch_files():
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as z:
                yield from (z.read(n) for n in z.namelist() if n.endswith("/data.pkl"))


def recordings():
    """A few samples in several containers, and the start of the demo's FLAC files."""
    sound = bytes(range(0, 200, 2)) * 2
    fmt = struct.pack("<HHIIHH", 1, 1, 16000, 32000, 2, 16)
    yield b"RIFF" + struct.pack("<I", 36 + len(sound)) + b"WAVEfmt " + struct.pack("<I", 16) + fmt + b"data" + struct.pack("<I", len(sound)) + sound
    yield b".snd" + struct.pack(">IIIII", 24, len(sound), 3, 16000, 1) + sound
    comm = struct.pack(">hIh", 1, len(sound) // 2, 16) + b"\x40\x0c\xfa" + b"\0" * 7
    yield b"FORM" + struct.pack(">I", 46 + len(sound)) + b"AIFFCOMM" + struct.pack(">I", 18) + comm + b"SSND" + struct.pack(">III", len(sound) + 8, 0, 0) + sound
    for path in sorted((GOLDEN.parent.parent / "demo").glob("*.flac")):
        yield path.read_bytes()[:4000]


def system_file(*names):
    """The start of a file of this machine, if it exists: a real shared object is a better ELF seed than a made one."""
    for name in names:
        if pathlib.Path(name).is_file():
            return [pathlib.Path(name).read_bytes()[:60000]]
    return []


def device_code(suffix):
    return [p.read_bytes() for p in sorted((GOLDEN / "doctor").glob(f"*{suffix}"))]


def ar_archive():
    member = b"a.o/".ljust(16) + b"0".ljust(12) + b"0".ljust(6) * 2 + b"644".ljust(8)
    return b"!<arch>\n" + b"".join(member + str(n).encode().ljust(10) + b"`\n" + bytes(n) for n in (4, 6, 0))


def old_list():
    return b"ld.so-1.7.0\0" + struct.pack("<I", 1) + struct.pack("<III", 3, 0, 10) + b"\0" * 4


def library_list(before):
    strings, entries, at = b"", b"", 48 + 2 * 24
    for name, flags in ((b"libz.so.1", 0x0A03), (b"libc.so.6", 0x0303)):
        entries += struct.pack("<IIIIQ", flags, at + len(strings), at + len(strings) + 10, 0, 0)
        strings += name + b"\0/lib/" + name + b"\0"
    return before + b"glibc-ld.so.cache1.1" + struct.pack("<IIIIIII", 2, len(strings), 2, 0, 0, 0, 0) + entries + strings


PTX = b"//\n.version 6.0\n.target sm_50\n.address_size 64\n.visible .entry scan(\n.param .u64 a)\n{\nret;\n}\n"

PINS = [b"torch==2.8.0\nflash_attn==2.7.4 ; python_version > '3'\nmamba-ssm @ https://x/mamba_ssm-2.2.4+cu12torch2.4cxx11abiFALSE-cp311-cp311-linux_x86_64.whl\n",
        b'[project]\ndependencies = ["torch==2.8.0", "causal-conv1d>=1.4"]\n']
LOGS = [b"Traceback (most recent call last):\n  File \"a.py\", line 1\nImportError: /x/flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs\n",
        b"RuntimeError: CUDA error: no kernel image is available for execution on the device\ntorch 2.8.0+cu128, driver 570.86, sm_120\n"]


def zips():
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", method) as z:
            z.writestr("x/a.so", device_code(".cubin")[0])
            z.writestr("x-1.0.dist-info/METADATA", "Name: x\nVersion: 1.0\nRequires-Dist: torch (>=2)\n")
            z.writestr("x-1.0.dist-info/RECORD", "x/a.so,sha256=AAAA,100\n")
        yield out.getvalue()


def lzma_streams():
    for data in (b"abcabcabcabcabd" * 9, bytes(3000), (ROOT / "ROOMS").read_bytes()):
        yield struct.pack("<H", len(data)) + lzma.compress(data, format=lzma.FORMAT_RAW, filters=device_code_tool().FILTERS)


def packed_texts():
    tool = device_code_tool()
    numbered = b".visible .entry f()\n{\n.reg .b32 %r<4>;\nmov.u32 %r1,%r300;\n$L__BB0_1:\nbra $L__BB0_1;\n@%p1 bra $L__BB0_100;\n}\n"
    for text in (PTX, numbered, numbered + numbered):
        text = tool.renumbered(tool.without_blanks(text))
        yield struct.pack("<H", len(text)) + tool.packed_text(text)


def cubin_files():
    """Two kernels' rows, and a stream that both have."""
    tool = device_code_tool()
    packed = tool.lzma.compress(b"\x7fELF file", format=tool.lzma.FORMAT_RAW, filters=tool.FILTERS)
    rows = b"".join(struct.pack("<QQII", value, 64, len(packed), 9) for value in (1, 7))
    return [b"KRCUBIN1" + struct.pack("<II", 90, 2) + rows + packed]


def tokenizers():
    """Every byte as a token, a few merges and added tokens; both pre-tokenizers; then a text."""
    letters, more = {}, 256
    for b in range(256):
        prints = 33 <= b <= 126 or 161 <= b <= 172 or b >= 174
        letters[chr(b if prints else more)] = b
        more += not prints
    split = {"type": "Split", "pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
             "behavior": "Isolated", "invert": False}
    mark, expression = "\u2581", {"type": "Split", "pattern": {"Regex": "\\\\s?\\\\p{L}{1,3}+|[^\\\\S\\r]"}, "behavior": "MergedWithNext", "invert": True}
    steps = [{"type": "Punctuation", "behavior": "Contiguous"}, expression, {"type": "ByteLevel", "add_prefix_space": True}, {"type": "Digits", "individual_digits": False}]
    strips = [{"id": 300, "content": "<|end|>", "special": True, "lstrip": True, "rstrip": True}, {"id": 301, "content": "ab", "single_word": True, "normalized": True}]
    yield json.dumps({"normalizer": {"type": "NFKC"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}, "added_tokens": strips, "decoder": {"type": "ByteLevel"},
                      "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "e"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"e": {"ids": [300]}}},
                      "model": {"type": "BPE", "ignore_merges": True, "vocab": {**letters, "ab": 256}, "merges": ["a b"]}}).encode() + b"\0It's  ab\xc2\xb2 <|end|>\n 12 \xc3\xa9"
    for pre in (None, {"type": "Metaspace", "replacement": mark, "prepend_scheme": "first", "split": True}):
        yield json.dumps({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": mark}, {"type": "Replace", "pattern": {"String": " "}, "content": mark}]}, "pre_tokenizer": pre, "added_tokens": [],
                          "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": mark}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
                          "model": {"type": "BPE", "byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>", "vocab": {"<unk>": 0, "<0xC3>": 1, mark: 2, "a": 3, "b": 4, "ab": 5, mark + "ab": 6}, "merges": ["a b", [mark, "ab"]]}}).encode() + b"\0ab ab\xc3\xa9z"
    for pre in ({"type": "ByteLevel", "add_prefix_space": False}, {"type": "Sequence", "pretokenizers": [split, {"type": "ByteLevel", "use_regex": False}]}):
        yield json.dumps({"normalizer": None, "pre_tokenizer": pre, "added_tokens": [{"id": 300, "content": "<|end|>", "special": True}, {"id": 301, "content": "  "}],
                          "model": {"type": "BPE", "vocab": {**letters, "ab": 256, "abc": 257}, "merges": ["a b", ["ab", "c"]]}}).encode() + b"\0It's  abcab <|end|>\n 12 \xc3\xa9"


def ggufs():
    """A few tensors of each type, values of each kind."""
    sys.path.insert(0, str(ROOT / "demo"))
    import tiny_language_model as tiny
    common = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "mpt", "tokenizer.ggml.tokens": ["a", "b", "ab", "<|end|>"], "tokenizer.ggml.token_type": [1, 1, 1, 3], "tokenizer.ggml.merges": ["a b"],
              "tokenizer.ggml.eos_token_id": 3, "general.alignment": 32}
    for kind, shape, type_, n in (("mamba", [4, 32], "Q8_0", 136), ("mamba2", [1, 256], "Q4_K", 144), ("qwen2", [1, 256], "Q6_K", 210)):
        name = "blk.0.attn_q.weight" if kind == "qwen2" else "blk.0.ssm_in.weight"
        tensors = [("token_embd.weight", shape, type_, bytes(range(n))), (name, shape, type_, bytes(n)), ("blk.0.ssm_a", [2, 1], "F32", b"\0\0\x80\xbf" * 2), ("blk.0.ssm_conv1d.weight", [2, 4], "F16", bytes(16))]
        yield tiny.gguf_bytes({"general.architecture": kind, f"{kind}.block_count": 1, f"{kind}.attention.layer_norm_rms_epsilon": 1e-5, "mamba.ssm.dt_b_c_rms": True, **common}, tensors)


def gguf_tokenizers():
    """Tokenizers without tensors: every name of a pre-tokenizer's kind, and SentencePiece's scores."""
    sys.path.insert(0, str(ROOT / "demo"))
    import tiny_language_model as tiny
    letters = list(tiny.alphabet().values())
    for pre in ("llama-bpe", "tekken", "falcon", "refact", "qwen35", "none"):
        yield tiny.gguf_bytes({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": letters + ["ab", "<s>"], "tokenizer.ggml.token_type": [1] * 257 + [3], "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.bos_token_id": 257}, [])
    words = ["<unk>", "<s>", "<0xC3>", "\u2581", "a", "b", "ab"]
    yield tiny.gguf_bytes({"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": words, "tokenizer.ggml.token_type": [2, 3, 6, 1, 1, 1, 1], "tokenizer.ggml.scores": [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.5], "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.add_bos_token": True}, [])


def tars():
    text = b'Name: x\nVersion: 1.0\nRequires-Python: >=3.9\n'
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=form) as t:
            for name, data in (("x-1.0/PKG-INFO", text), ("x-1.0/setup.py", b'archs = "8.0;9.0"\ncc = ["arch=compute_80,code=sm_80"]\n"torch==2.3"\n'), ("x-1.0/" + "p/" * (60 if form != tarfile.USTAR_FORMAT else 20) + "a", b"1")):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                t.addfile(info, io.BytesIO(data))
        yield out.getvalue()
        if form == tarfile.PAX_FORMAT:
            yield gzip.compress(out.getvalue())
            yield bz2.compress(out.getvalue())


TABLES = b"date 2026-01-01\n[toolkit]\n12.8|8.7|570|80 90\n[gpu]\n9.0|H100\n[rule K01 x]\nclass C error M image\nsays {file} {cc}\nfix {build}\nexplain e\nsource s\nlog no kernel %w{x}\n"
SITE = b"\0".join([b"Metadata-Version: 2.1\nName: x\nVersion: 1\nRequires-Dist: torch (>=2.0,<3) ; python_version > '3' and extra == 'a'\n", b"Wheel-Version: 1.0\nTag: cp311-cp311-linux_x86_64\n",
                   b'a.so,sha256=AAAA,3\n"b,c.so",sha256=,1\n../../x.so,,\n', b'{"url": "file:///x"}', b"__version__ = '2.8.0+cu128'\ncuda = '12.8'\n", b"/tmp\nimport x\n", b"\x7fELF\2\1\1"])

def small_golden():
    """The first frames and samples of a recorded verification."""
    data = (GOLDEN / "primeknet/tiny-mamba.golden.safetensors").read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header, body, out = json.loads(data[8:8 + n]), data[8 + n:], b""
    kept = {"__metadata__": header["__metadata__"]}
    for name, n_last in (("golden.input_com", 2), ("golden.mag", 1), ("golden.com", 2), ("golden.wav_in", 0), ("golden.wav_out", 0)):
        begin, shape = header[name]["data_offsets"][0], header[name]["shape"]
        if n_last:  # (2, 201, 10, ...): one of the batch, two frames
            rows = [body[begin + 4 * 10 * n_last * f:][:4 * 2 * n_last] for f in range(201)]
            part, shape = b"".join(rows), [1, 201, 2] + shape[3:]
        else:
            shape = [500]
            part = body[begin:begin + 4 * 500]
        kept[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(out), len(out) + len(part)]}
        out += part
    text = json.dumps(kept).encode()
    return struct.pack("<Q", len(text)) + text + out


def model_seeds():
    yield from (b"\0" + p.read_bytes() for p in sorted((GOLDEN / "primeknet").glob("tiny-*.weights.safetensors")) if p.stat().st_size < 65000)
    yield b"\1" + small_golden()


def program_seeds():
    yield from (bytes([k]) + p.read_bytes() for k in (0, 1) for p in [*sorted((GOLDEN / "torch").glob("*.th"))[:3], *sorted((GOLDEN / "torch").glob("*.safetensors"))[:3]] if p.stat().st_size < 65000)
    yield b"\0" + (GOLDEN / "primeknet/tiny-mamba.weights.safetensors").read_bytes()
    yield from (b"\2" + log for log in LOGS)
    yield from (b"\3" + d for d in device_code(".fatbin"))
    yield from (b"\4--json\0--help", b"\4/nonexistent\x1b[2J\0--json", b"\5--frobnicate\n", b"\6-x\0--")


def language_seeds():
    """config.json of each family, then one of each other small file, in the order of language.c."""
    families = ("granite", "falcon", "jamba", "lfm2-mixture", "lfm3", "llama", "mistral", "nemotron", "qwen3-mixture", "qwen3-next", "zamba2")
    yield from (bytes([i]) + (GOLDEN / "hybrids" / name / "config.json").read_bytes() for i, name in enumerate(families))
    yield b"\x0b" + json.dumps({"eos_token_id": [2, 7], "do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.9, "max_new_tokens": 5, "bos_token_id": 1}).encode()
    template = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    yield b"\x0c" + json.dumps({"add_bos_token": True, "bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>", "chat_template": [{"name": "default", "template": template}]}).encode()
    yield b"\x0d" + template.encode()
    yield b"\x0e" + (GOLDEN / "torch/model.safetensors").read_bytes()


if sys.argv[1] == "--golden":
    pathlib.Path(sys.argv[2]).write_bytes(small_golden())
    sys.exit(0)

SEEDS = {
    "ar": [ar_archive()],
    "audio": recordings(),
    "cli": program_seeds(),
    "cubin": device_code(".cubin"),
    "cubin_file": cubin_files(),
    "doctor": [bytes([0]) + z for z in zips()] + [bytes([4]) + d for d in device_code(".fatbin")] + [bytes([2 + i]) + t for i, t in enumerate(PINS)] + [b"\x06" + t for t in tars()] + [b"\x07" + t for t in LOGS]
    + [b"\x08" + (ROOT / "src/doctor/doctor.tables").read_bytes()[-40000:], b"\x08" + TABLES, b"\x09" + SITE],
    "elf": device_code(".cubin") + system_file("/lib/x86_64-linux-gnu/libz.so.1", "/lib/aarch64-linux-gnu/libz.so.1"),
    "fatbin": device_code(".fatbin"),
    "gguf": list(ggufs()),
    "gguf_tokenizer": list(gguf_tokenizers()),
    "language": list(language_seeds()),
    "ldcache": [library_list(b""), library_list(old_list())],
    "lzma": lzma_streams(),
    "ptx": [PTX],
    "ptx_text": packed_texts(),
    "config": YAML + [b"a=1,l=[3, 11],causal=true,model=primeknet_gru,s=\"x,y\""],
    "model": model_seeds(),
    "pickle": pickles(),
    "recipe": [s + b"\n" + (ROOT / "src/data/recipes/train.yaml").read_bytes() for s in (b"+model=primeknet_gru_masking", b"+dset=taps", b"train_noise.snr_range=[1,2]", b"+a={b: [1]}")],
    "safetensors": [p.read_bytes() for p in sorted((GOLDEN / "torch").glob("*.safetensors"))],
    "tokenizer": tokenizers(),
    "tar_file": list(tars()),
    "torch_file": [p.read_bytes() for p in torch_files()],
    "yaml_tree": YAML,
    "zip_file": list(zips()),
}

for target, inputs in SEEDS.items():
    folder = pathlib.Path(sys.argv[1]) / target
    folder.mkdir(parents=True, exist_ok=True)
    for i, data in enumerate(inputs):
        (folder / f"seed{i}").write_bytes(data)
