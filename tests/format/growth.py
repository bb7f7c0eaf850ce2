"""Time and memory of hostile files grow at most linearly: pickles, YAML, safetensors headers and tensor names, each at
its maximum size and at half of it. Measures the child's CPU time, best of two, so that load does not matter, less that
of an empty run."""
import io
import json
import os
import pathlib
import pickle
import struct
import subprocess
import sys
import tempfile
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "cli"))
from run import KRAIT, check, finish  # noqa: E402

MAX_RATIO, MAX_S, MAX_MIB = 2.3, 5.0, 300
MODEL = pathlib.Path(__file__).resolve().parent.parent / "golden" / "primeknet" / "tiny-mamba.weights.safetensors"


def cost(args):
    """(CPU seconds, peak MiB, exit status) of one run."""
    process = subprocess.Popen([KRAIT, *map(str, args)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, process.returncode


def best(args):
    runs = [cost(args) for _ in range(2)]
    return min(r[0] for r in runs), max(r[1] for r in runs), runs[0][2]


def torch_file(path, pickled):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/byteorder", "little")


def values(n):  # a list of small integers: as many values as bytes
    return b"\x80\x02}X\x05\x00\x00\x00model(" + b"K\x01" * n + b"ls."


def marks(n):  # a list in a list in a list, closed at once
    return b"\x80\x02]" + b"(K\x01l" * n + b"."


def memo(n):  # every value memoized under its own name
    out = io.BytesIO()
    out.write(b"\x80\x02(")
    for i in range(n):
        out.write(b"K\x01r" + struct.pack("<I", i))
    return out.getvalue() + b"l."


def keys(n):
    return pickle.dumps({f"key {i}": i for i in range(n)}, 2)


def write_pickle(make):
    return lambda path, n: torch_file(path, make(n)) or ["info", path]


def write_yaml(line):
    def write(path, n):
        path.write_text("".join(line(i) for i in range(n)))
        return ["convert", "-f", MODEL, path.with_suffix(".safetensors"), "--config", path]
    return write


def write_tensors(path, n):
    header = {f"layer.{i}.weight": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i in range(n)}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(n))
    return ["info", path]


def write_overrides(path, n):
    return ["convert", "-f", MODEL, path.with_suffix(".safetensors"), "--set", ",".join(f"k{i}=1" for i in range(n))]


CASES = {"pickle of values": (write_pickle(values), 2_000_000), "pickle of lists": (write_pickle(marks), 900_000), "pickle of names": (write_pickle(memo), 1_000_000),
         "pickle of keys": (write_pickle(keys), 700_000), "YAML keys": (write_yaml(lambda i: f"k{i}: 1\n"), 48_000), "YAML list": (write_yaml(lambda i: f"- {i}\n"), 98_000),
         "YAML long lines": (write_yaml(lambda i: f"k{i}: '{'x' * 4000}'\n"), 1_000), "tensors": (write_tensors, 160_000), "--set": (write_overrides, 8_000)}

with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    floor = best(["version"])[0]
    for name, (write, most) in CASES.items():
        for _ in range(3):  # a busy machine may slow down either run
            half, whole = (best(write(folder / f"input-{n}", n)) for n in (most // 2, most))
            times = [max(s - floor, 0.01) for s in (half[0], whole[0])]
            ratio = times[1] / times[0]
            if ratio <= MAX_RATIO:
                break
        print(f"{name:18} {most:8}: {times[0]:6.3f} s, {times[1]:6.3f} s, x {ratio:4.2f}; {whole[1]:4.0f} MiB, exit status {whole[2]}", flush=True)
        check(whole[2] in (0, 1), f"{name}: exit status {whole[2]}")
        check(ratio <= MAX_RATIO or times[1] < 0.25, f"{name}: twice the size takes {ratio:.2f} times as long")
        check(whole[0] <= MAX_S and whole[1] <= MAX_MIB, f"{name}: {whole[0]:.1f} s and {whole[1]:.0f} MiB")
finish()
