"""Typical use and hostile environments: folders, resuming, limits; non-finite weights, non-UTF-8 names, endless pipes,
files truncated while read, small stacks, locales."""
import json
import math
import os
import pathlib
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "faults"))
import sounds  # noqa: E402
from run import KRAIT, check, check_error, finish, krait  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GOLDEN = ROOT / "tests" / "golden" / "primeknet"
MODEL, RECORDED = GOLDEN / "tiny-mamba.weights.safetensors", GOLDEN / "tiny-mamba.golden.safetensors"
RUN = ["-w", MODEL, "--device", "cpu"]


def sound(path, n=3000, **kw):
    check(sounds.write(path, kw.pop("kind", "wav"), sounds.noise(n, kw.get("channels", 1), kw.pop("seed", 1)), **kw), f"libsndfile writes {path}")
    return path


def check_folders(folder):
    """The folder structure is kept; a run resumes where an earlier one ended; one failure does not stop the rest;
    summary."""
    for name in ("a.wav", "one/b.wav", "one/two/c.wav", "one/.hidden/d.wav"):
        (folder / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        sound(folder / "in" / name)
    (folder / "in" / "one" / "bad.wav").write_text("no sound")
    (folder / "in" / "notes.txt").write_text("no sound either")
    os.symlink("..", folder / "in" / "one" / "loop")
    done = krait("enhance", *RUN, folder / "in", "-o", folder / "out")
    check(done.returncode == 1 and done.stderr.count(b"\n") == 1 and b"bad.wav" in done.stderr, f"one of four fails: {done}")
    check(sorted(str(p.relative_to(folder / "out")) for p in (folder / "out").rglob("*.wav")) == ["a.wav", "one/b.wav", "one/two/c.wav"], "the tree keeps its structure")
    check(done.stdout.splitlines()[-1].startswith(b"3 of 4 recordings done: 0.56 s of audio in ") and done.stdout.endswith(b", 1 failed\n"), f"a line counts: {done.stdout[-200:]}")
    (folder / "out" / "one" / "b.wav").unlink()
    stamp = (folder / "out" / "a.wav").stat().st_mtime_ns
    check_error(2, "2 outputs exist, such as ", "enhance", *RUN, folder / "in", "-o", folder / "out")
    done = krait("enhance", *RUN, folder / "in", "-o", folder / "out", "--skip-existing")
    check(done.returncode == 1 and b"1 of 4 recordings done" in done.stdout and b", 2 skipped because their output exists, 1 failed" in done.stdout, f"resumed: {done}")
    check((folder / "out" / "one" / "b.wav").exists() and (folder / "out" / "a.wav").stat().st_mtime_ns == stamp, "the missing one exists, the others are unchanged")
    check(krait("enhance", *RUN, folder / "in", "-o", folder / "in" / "clean").returncode == 1, "the output folder is inside the input folder")
    done = krait("enhance", *RUN, folder / "in", "-f", "-o", folder / "in" / "clean", "--json")
    check(len(done.stdout.splitlines()) == 4, f"earlier results are not inputs: {done.stdout}")
    done = krait("enhance", *RUN, folder / "in" / "a.wav")
    again = krait("enhance", *RUN, folder / "in" / "a.wav")
    check(done.returncode == 0 and b"replacing the previous" not in done.stdout and again.returncode == 0 and b"replacing the previous" in again.stdout, f"the default name is replaced, and krait says so: {again}")


def check_limit(folder):
    """0 changes no sample; what the model removes entirely is attenuated by exactly the limit; between, a mixture."""
    for kind, rate, channels in (("wav", 16000, 1), ("wav24", 44100, 2), ("flac", 8000, 1), ("wavf", 48000, 1)):
        name = f"in.{sounds.EXTENSIONS.get(kind, kind)}"
        sound(folder / name, 9000, kind=kind, rate=rate, channels=channels)
        same = folder / f"same{name[2:]}"
        check(krait("enhance", *RUN, folder / name, "-f", "-o", same, "--limit", 0).returncode == 0, "--limit 0")
        check(sounds.read(folder / name)[3] == sounds.read(same)[3], f"--limit 0 changes no sample ({kind}, {rate} Hz)")
    sound(folder / "in.wav", 16000, kind="wavf")
    results = {}
    for limit in (None, 12, 300):
        out = folder / f"out-{limit}.wav"
        check(krait("enhance", *RUN, folder / "in.wav", "-o", out, *([] if limit is None else ["--limit", limit])).returncode == 0, f"--limit {limit}")
        results[limit] = sounds.read(out)[3]
    dry, share = sounds.read(folder / "in.wav")[3], 10 ** (-12 / 20)
    worst = max(abs(mixed - (share * d + (1 - share) * wet)) for mixed, d, wet in zip(results[12], dry, results[None]))
    check(worst < 1e-6, f"--limit 12 mixes {share:.3f} of the recording in, to {worst:.1e}")
    check(max(abs(a - b) for a, b in zip(results[300], results[None])) < 1e-6, "--limit 300 is no limit")
    check_error(2, "--limit is '-1', not a number", "enhance", *RUN, folder / "in.wav", "--limit", "-1")


def rewritten(path, change):
    """The tiny weights with change(header, data) applied, at path."""
    raw = MODEL.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8:8 + n]), bytearray(raw[8 + n:])
    change(header, data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def check_not_finite(folder):
    sound(folder / "in.wav", 8000)
    for value, word in ((math.nan, "NaN"), (math.inf, "an infinity")):
        def poison(header, data):
            begin = header["dense_encoder.dense_conv_1.0.bias"]["data_offsets"][0]
            data[begin + 4:begin + 8] = struct.pack("<f", value)
        bad = rewritten(folder / "bad.safetensors", poison)
        check_error(2, f"tensor 'dense_encoder.dense_conv_1.0.bias' has {word} at element 1", "enhance", "-w", bad, folder / "in.wav", "-o", folder / "out.wav")
        check_error(2, f"has {word} at", "verify", bad, RECORDED, "--device", "cpu")

    def explode(header, data):  # every weight finite, the result not
        for name, entry in header.items():
            if name.endswith("weight") and entry["dtype"] == "F32":
                a, b = entry["data_offsets"]
                data[a:b] = struct.pack("<f", 1e38) * ((b - a) // 4)
    huge = rewritten(folder / "huge.safetensors", explode)
    check_error(1, "the model's result is not finite", "enhance", "-w", huge, "--device", "cpu", folder / "in.wav", "-o", folder / "out.wav")
    check(not (folder / "out.wav").exists(), "no output for non-finite results")
    check_error(2, "no golden.input_com", "verify", MODEL, MODEL, "--device", "cpu")


def check_text(folder):
    """Names with terminal escapes or invalid UTF-8; always one line; valid JSON."""
    for name in (b"a\x1b[31m\nb.wav", b"bad-\xff\x9b31m.wav"):
        path = os.path.join(os.fsencode(folder), name)
        shutil.copy(sound(folder / "in.wav"), path)
        out = path[:-4] + b".enhanced.wav"
        done = subprocess.run([KRAIT, "enhance", *map(str, RUN), path], capture_output=True, timeout=60)
        check(done.returncode == 0 and done.stdout.count(b"\n") == 1 and b"\x1b" not in done.stdout and b"\x9b" not in done.stdout, f"{name}: {done}")
        done = subprocess.run([KRAIT, "enhance", "--json", *map(str, RUN), path], capture_output=True, timeout=60)
        report = json.loads(done.stdout)
        got = bytes.fromhex(report["output_bytes"]) if "output_bytes" in report else report["output"].encode()
        check(got == out and os.path.exists(got), f"the output's name in JSON: {report}")
        done = subprocess.run([KRAIT, "enhance", "--json", *map(str, RUN), path + b".none"], capture_output=True, timeout=60)
        check(done.returncode == 1 and json.loads(done.stdout)["status"] == "KRAIT_ERR_FILE_OPEN" and done.stderr.count(b"\n") == 1 and b"\x1b" not in done.stderr, f"{done}")
        for args in ([b"enhance", b"--no\x1bsuch\noption"], [b"no\x1bsuch\nverb"], [b"info", path + b"\n"], [b"enhance", path, b"--device", b"\x1b\n"]):
            done = subprocess.run([KRAIT, *args], capture_output=True, timeout=60)
            check(done.returncode != 0 and done.stderr.count(b"\n") == 1 and b"\x1b" not in done.stderr, f"{args}: {done}")
    krait("enhance", ROOT / "demo" / "noisy.flac", *RUN, "-o", folder / "good.mp3")
    if (folder / "good.mp3").exists():  # libmpg123 reports errors on standard error
        raw = bytearray((folder / "good.mp3").read_bytes())
        (folder / "cut.mp3").write_bytes(raw[:len(raw) // 2])
        draw = random.Random(1)
        for _ in range(200):
            raw[draw.randrange(2000, len(raw))] = draw.randrange(256)
        (folder / "bad.mp3").write_bytes(raw)
        for name in ("cut.mp3", "bad.mp3"):
            done = krait("enhance", *RUN, folder / name, "-f", "-o", folder / "out.wav")
            check(done.returncode == 1 and done.stderr.count(b"\n") == 1, f"{name}: {done}")


def check_streams(folder):
    """Standard output closed or full, pipes that never end or never start."""
    path = sound(folder / "in.wav")
    for args in (["version"], ["info"], ["verify", MODEL, RECORDED, "--device", "cpu"], ["enhance", *RUN, path, "-f", "-o", folder / "x.wav"]):
        done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", KRAIT, *map(str, args)], capture_output=True, timeout=60)
        check(done.returncode in (1, 2) and b"cannot write standard output" in done.stderr and done.stderr.count(b"\n") == 1, f"{args} with a closed standard output: {done}")
    check(sounds.read(folder / "x.wav") is not None, "the result did not overwrite the file")
    for source in ("/dev/zero", "/dev/urandom"):
        with open(source, "rb") as endless:
            done = subprocess.run([KRAIT, "enhance", *map(str, RUN), "-", "-o", folder / "y.wav"], stdin=endless, capture_output=True, timeout=60)
        check(done.returncode == 1 and b"16 MiB are not a recording" in done.stderr, f"{source}: {done}")
        check(krait("doctor", "--log", source).returncode == 3, f"--log {source}")
    os.mkfifo(folder / "fifo")
    check(krait("doctor", "--log", folder / "fifo", "--gpu", "9.0").returncode in (0, 1, 3), "--log of a pipe without a writer does not hang")
    for args in (["enhance", *RUN, folder / "fifo", "-o", folder / "z.wav"], ["info", folder / "fifo"], ["enhance", "-w", folder / "fifo", path], ["verify", MODEL, folder / "fifo"]):
        check(krait(*args).returncode in (1, 2), f"{args}: a pipe without a writer does not hang")
    check_error(2, "is not a regular file", "enhance", *RUN, path, "-o", folder / "z.wav", "--reference", folder / "fifo")
    planted = folder / "tmp"
    planted.mkdir()
    (folder / "victim").write_bytes(b"precious")
    os.symlink(folder / "victim", planted / "krait-out")
    done = krait("enhance", *RUN, path, "-o", "-", env=dict(os.environ, TMPDIR=str(planted)))
    check(done.returncode == 0 and (folder / "victim").read_bytes() == b"precious" and [p.name for p in planted.iterdir()] == ["krait-out"], "copies for standard output have no predictable name")


def check_cut_weights(folder):
    """Weights truncated while read: an error or an answer, never a crash."""
    raw = MODEL.read_bytes()
    path = folder / "w.safetensors"
    draw = random.Random(2)
    for _ in range(12):
        path.write_bytes(raw)
        process = subprocess.Popen([KRAIT, "verify", path, RECORDED, "--device", "cpu"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        time.sleep(draw.uniform(0, 0.03))
        os.truncate(path, draw.choice((0, 100, len(raw) // 2)))
        err = process.communicate(timeout=60)[1]
        check(process.returncode in (0, 2), f"cut weights: exit status {process.returncode}, {err}")


def check_small_machines(folder):
    path = sound(folder / "in.wav", 20000, rate=44100)
    for kib in () if "ASAN_OPTIONS" in os.environ else (512, 256):  # a sanitizer's frames are larger
        limit = lambda: resource.setrlimit(resource.RLIMIT_STACK, (kib << 10, kib << 10))  # noqa: E731
        for args in (["enhance", *RUN, path, "-f", "-o", folder / "out.wav", "--plot", folder / "p.png", "--reference", path], ["verify", MODEL, RECORDED, "--device", "cpu"], ["info", MODEL]):
            done = krait(*args, preexec_fn=limit)
            check(done.returncode == 0, f"a stack of {kib} KiB: {args}: {done}")
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # noqa: E731
    check_error(1, "File too large", "enhance", *RUN, path, "-o", folder / "no.wav", preexec_fn=limit, restore_signals=False)
    for name in ("x" * 251 + ".wav", "x" * 243 + ".wav"):
        shutil.copy(path, folder / name)
        done = krait("enhance", *RUN, folder / name)
        fits = len(name) + len(".enhanced") <= 255
        check(done.returncode == (0 if fits else 1) and (fits or b"more than 255" in done.stderr), f"a name of {len(name)} bytes: {done.stderr}")


def check_locale(folder):
    """LC_ALL with a decimal comma changes nothing."""
    with tempfile.TemporaryDirectory() as place:
        made = subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", f"{place}/de_DE.UTF-8"], capture_output=True) if shutil.which("localedef") else None
        if not made or not os.path.exists(f"{place}/de_DE.UTF-8"):
            print("note: cannot make locale de_DE here; not tested")
            return
        environment = dict(os.environ, LC_ALL="de_DE.UTF-8", LOCPATH=place)
        for args in (["info", MODEL, "--json"], ["verify", MODEL, RECORDED, "--device", "cpu"]):
            check(krait(*args, env=environment).stdout == krait(*args).stdout, f"{args} in de_DE")


for part in (check_folders, check_limit, check_not_finite, check_text, check_streams, check_cut_weights, check_small_machines, check_locale):
    with tempfile.TemporaryDirectory() as name:
        part(pathlib.Path(name))
finish()
