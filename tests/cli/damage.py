#!/usr/bin/env python3
"""damage.py KRAIT [RUNS [SEED]]: weights and recorded outputs with random damage in headers, configuration, shapes and
data, through `krait info` and `krait verify`: an answer or one line that names the file, never a signal, a hang or a
control character. Prints the seed."""
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

krait = pathlib.Path(sys.argv[1]).resolve()
percent = int(os.environ.get("KR_CHECK_PERCENT", "100"))
runs = int(sys.argv[2]) if len(sys.argv) > 2 else max(24, 120 * percent // 100)
seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(10**9)
dice = random.Random(seed)
GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden" / "primeknet"
NASTY = ["\x1b]0;title\x07", "\x1b[2J", "\n", "\r", "\0", "\x9b31m", "\u202e", "\u2028", "\ufeff", "a" * 300, "%s%n%p", "../../x", "😀", "\x7f", "ä", ""]
VALUES = [0, 1, -1, 2, 3, 7, 8, 63, 255, 256, 4096, 65535, 2**31 - 1, 2**31, 2**53, 2**63, 1e308, -1e308, 0.5, True, None, "7", [], [3, 11], [2], {}, "x" * 200]


def take_apart(data):
    n = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + n]), bytearray(data[8 + n:])


def put_together(header, data):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(data)


def spoil_header(header, data):
    names = [n for n in header if n != "__metadata__"]
    name = dice.choice(names)
    tensor = header[name]
    how = dice.randrange(7)
    if how == 0:
        del header[name]
    elif how == 1:
        header[name[:-1] + dice.choice(NASTY)] = header.pop(name)
    elif how == 2:
        shape = tensor["shape"]
        shape[dice.randrange(len(shape))] = dice.choice(VALUES)
    elif how == 3:
        tensor["shape"] = dice.choice([[], tensor["shape"] + [1], tensor["shape"][::-1], [0], [2**62, 2**62]])
    elif how == 4:
        tensor["dtype"] = dice.choice(["F16", "BF16", "F64", "I64", "U8", "C64", "?", "F32\x1b"])
    elif how == 5:
        tensor["data_offsets"][dice.randrange(2)] += dice.choice([-4, -1, 1, 4, 2**40])
    else:
        header[name], other = dict(header[dice.choice(names)]), tensor
        header[name]["shape"] = other["shape"]


def spoil_metadata(header, data):
    metadata = header.setdefault("__metadata__", {})
    try:
        config = json.loads(metadata.get("config", "{}"))
    except ValueError:
        return
    how = dice.randrange(4)
    if how == 0 and config:
        config[dice.choice(list(config))] = dice.choice(VALUES)
    elif how == 1:
        config[dice.choice(["hop_len", "win_len", "compress_factor", "infer_type", "freq_block_kernel", "nonsense" + dice.choice(NASTY)])] = dice.choice(VALUES)
    elif how == 2:
        metadata["x" + dice.choice(NASTY)] = dice.choice(NASTY) * 3
    else:
        metadata["model"] = dice.choice(["primeknet_gru", "primeknet_lstm", "", "x" + dice.choice(NASTY)])
    metadata["config"] = json.dumps(config)


def spoil_data(header, data):
    at = 4 * dice.randrange(len(data) // 4)
    data[at:at + 4] = dice.choice([b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff\xff\x7f\x7f", b"\1\0\0\0", bytes(4)])
    if dice.random() < 0.2:
        del data[dice.randrange(len(data)):]


def damaged(path):
    data = path.read_bytes()
    if dice.random() < 0.2:  # the bytes themselves
        raw = bytearray(data)
        for _ in range(dice.randint(1, 4)):
            raw[dice.randrange(min(len(raw), 4000))] = dice.randrange(256)
        return bytes(raw[:dice.randrange(len(raw))] if dice.random() < 0.2 else raw)
    header, rest = take_apart(data)
    for _ in range(dice.randint(1, 3)):
        dice.choice([spoil_header, spoil_metadata, spoil_metadata, spoil_data])(header, rest)
    return put_together(header, rest)


def check(arguments, done):
    what = f"seed {seed}: {' '.join(map(str, arguments))}: status {done.returncode}, {done.stderr[-300:]!r}"
    assert done.returncode in (0, 1, 2), what
    assert done.stderr.count(b"\n") <= 1 and (done.returncode != 2 or done.stderr.count(b"\n") == 1), what
    for text in (done.stdout.decode("utf-8"), done.stderr.decode("utf-8")):
        bad = [c for c in text if (ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160]
        assert not bad, what + f"; control characters {bad[:5]}"
    if "--json" in arguments and done.returncode == 0:
        json.loads(done.stdout)


print(f"seed {seed}")
counts = {0: 0, 1: 0, 2: 0}
with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    for k in range(runs):
        kind = dice.choice(["tiny-mamba", "tiny-gru", "tiny-lstm", "tiny-streaming"])
        weights, recorded = GOLDEN / f"{kind}.weights.safetensors", GOLDEN / f"{kind}.golden.safetensors"
        which = dice.randrange(4)
        path = folder / "damaged.safetensors"
        path.write_bytes(damaged(recorded if which == 0 else weights))
        verify = ["verify", weights, path] if which == 0 else ["verify", path, recorded]
        for arguments in (verify + ["--device", "cpu", "--threads", "1"], ["info", path] + (["--json"] if k % 2 else [])):
            try:
                done = subprocess.run([krait, *map(str, arguments)], capture_output=True, timeout=60, stdin=subprocess.DEVNULL)
            except subprocess.TimeoutExpired:
                sys.exit(f"seed {seed}, {arguments[0]} of file {k}: does not end")
            if done.returncode not in counts:
                (pathlib.Path(tempfile.gettempdir()) / "krait-damaged.safetensors").write_bytes(path.read_bytes())
            check(arguments, done)
            counts[done.returncode] += 1
print(f"{runs} files, exit statuses {counts}")
assert runs < 60 or (counts[2] > runs // 4 and counts[0] > runs // 4), counts
