"""krait info and krait convert on good and bad files."""
import json
import os
import pathlib
import resource
import signal
import struct
import subprocess
import tempfile
import time

from run import KRAIT, check, check_error, finish, krait

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
    bad.write_bytes(good.read_bytes()[:-1])
    check_error(1, "truncated", "convert", "-f", bad, out)
    check_error(1, "folder", "info", folder)
    check_error(1, "is not key=value", "convert", "-f", good, out, "--set", "causal")
    check_error(1, "cannot open", "convert", "-f", good, out, "--config", pathlib.Path(folder) / "missing.yaml")
    check_error(1, "cannot create", "convert", good, pathlib.Path(folder) / "no" / "such" / "folder.safetensors")
    if os.path.exists("/dev/full"):
        check_error(1, "No space left", "convert", good, "/dev/full")
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # as a disk that fills up half-way
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

program = json.loads(krait("info", "--json").stdout)
check(program["version"] == krait("version").stdout.decode().split()[1], "version")
check(all(rows[-1]["name"] == "ref" and rows[-1]["usable"] for rows in program["ops"].values()), "every operator ends in a usable reference")
check(all(name in krait("info").stdout.decode() for name in program["ops"]), "operators listed")
finish()
