"""krait enhance: outputs keep format and length, and every bad input gives one line, an exit status and no file."""
import json
import math
import os
import pathlib
import random
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import wave

from run import FEW, KRAIT, check, check_error, finish, krait

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "primeknet"
WEIGHTS = ["--weights", GOLDEN / "tiny-mamba.weights.safetensors"]
random.seed(1)


def noisy(n, rate):
    return [0.2 * math.sin(2 * math.pi * 300 * i / rate) + random.uniform(-0.1, 0.1) for i in range(n)]


def write_wav(path, samples, rate=16000, channels=1, width=2):
    scale = 127 if width == 1 else 32767
    steps = [round(max(-1, min(1, s)) * scale) for s in samples]
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        file.writeframes(bytes(128 + s for s in steps) if width == 1 else struct.pack(f"<{len(steps)}h", *steps))
    return path


def write_float_wav(path, samples, rate=16000):
    data = struct.pack(f"<{len(samples)}f", *samples)
    head = struct.pack("<HHIIHH", 3, 1, rate, rate * 4, 4, 32)
    path.write_bytes(b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " + struct.pack("<I", 16) + head + b"data" + struct.pack("<I", len(data)) + data)
    return path


def read_wav(path):
    with wave.open(str(path), "rb") as file:
        return file.getparams(), file.readframes(file.getnframes())


def enhance(*args, **kw):
    return krait("enhance", *WEIGHTS, *args, **kw)


def check_good(folder):
    cases = [(16000, 1, 2, 8000), (44100, 2, 2, 22051), (8000, 1, 1, 3999), (48000, 1, 2, 1), (16000, 3, 2, 700), (22050, 1, 2, 7)]
    for rate, channels, width, n in cases:
        path = write_wav(folder / "a.wav", noisy(n * channels, rate), rate, channels, width)
        done = enhance(path)
        check(done.returncode == 0 and done.stderr == b"", f"{rate} Hz, {channels} channels: {done}")
        params, data = read_wav(folder / "a.enhanced.wav")
        check(params == read_wav(path)[0], f"{rate} Hz, {channels} channels: {params}")
        check(n < 1000 or any(data) and data != read_wav(path)[1], f"{rate} Hz: the model did something")
    write_wav(folder / "silent.wav", [0] * 16000)
    check(enhance(folder / "silent.wav", "-o", folder / "b.wav").returncode == 0, "silence")
    check(not any(read_wav(folder / "b.wav")[1]), "silence stays silent")
    for level in (3.0, 1e-5):  # clipped, and nothing but the last bit
        write_wav(folder / "level.wav", [level * s for s in noisy(8000, 16000)])
        check(enhance(folder / "level.wav", "-f", "-o", folder / "b.wav").returncode == 0, f"level {level}")
    write_wav(folder / "dc.wav", [0.5] * 8000)
    check(enhance(folder / "dc.wav", "-f", "-o", folder / "b.wav").returncode == 0, "a constant")


def check_pipes_and_names(folder):
    path = write_wav(folder / "in.wav", noisy(8000, 16000))
    check(enhance(path, "-o", folder / "file.wav").returncode == 0, "to a file")
    done = enhance("-", stdin=path.read_bytes())
    check(done.returncode == 0 and done.stdout == (folder / "file.wav").read_bytes(), "standard input and output are the same as files")
    check(enhance(path, "-o", folder / "x.flac").returncode == 0 and (folder / "x.flac").read_bytes()[:4] == b"fLaC", "the extension names the format")
    (folder / "many").mkdir()
    for name in ("one.wav", "two.wav", "two.enhanced.wav"):
        write_wav(folder / "many" / name, noisy(4000, 16000))
    (folder / "many" / "notes.txt").write_text("not audio")
    check(enhance(folder / "many", "-o", folder / "out").returncode == 0, "a folder")
    check(sorted(p.name for p in (folder / "out").iterdir()) == ["one.wav", "two.wav"], "recordings of a folder, without earlier results")
    check(enhance(folder / "many" / "one.wav", folder / "missing.wav", folder / "many" / "two.wav", "-o", folder / "out2").returncode == 1, "one of three missing")
    check(sorted(p.name for p in (folder / "out2").iterdir()) == ["one.wav", "two.wav"], "the others are done")
    check_error(2, "would be overwritten by its own result", "enhance", path, "-o", path)
    check_error(2, "would both become", "enhance", path, folder / "many" / ".." / "in.wav", "-o", folder / "out3")
    (folder / "out3").mkdir()
    check_error(2, "no audio files", "enhance", folder / "out3")
    check_error(2, "takes one input", "enhance", folder / "many", "--plot", folder / "p.png")
    check_error(2, "'-' must be the only input", "enhance", "-", path)
    check_error(2, "which is read", "enhance", path, "-f", "-o", folder / "file.wav", "--reference", folder / "file.wav")
    check_error(2, "--reference must be a file", "enhance", path, "-o", folder / "x.wav", "--reference", "-")
    check_error(2, "standard input has no name", "enhance", "-", "-o", folder / "out")
    check_error(2, "cannot both go to standard output", "enhance", path, "-o", "-", "--json")
    check(path.exists() and len(read_wav(path)[1]) == 16000, "the input is unchanged")


def check_several_at_once(folder):
    names = [f"{i}.wav" for i in range(7)]
    for i, name in enumerate(names):
        write_wav(folder / name, noisy(3000 + 5000 * (i % 3), 16000))
    (folder / "3.wav").write_text("not audio")
    inputs = [folder / name for name in names]
    alone = enhance(*inputs, "-o", folder / "alone", "--jobs", 1)
    together = enhance(*inputs, "-o", folder / "together", "--jobs", 3, "--json")
    check(alone.returncode == together.returncode == 1 and alone.stderr == together.stderr and together.stderr.count(b"\n") == 1, "one line for the bad one")
    results = [json.loads(line) for line in together.stdout.splitlines()]
    check([r["input"] for r in results] == [str(p) for p in inputs] and "not a readable audio file" in results[3]["error"], "results in the inputs' order")
    for name in names[:3] + names[4:]:
        check((folder / "alone" / name).read_bytes() == (folder / "together" / name).read_bytes(), f"{name}: the same alone and together")
    check_error(2, "--jobs", "enhance", *inputs, "--jobs", 0)


def check_json_scores_and_plot(folder):
    clean = [0.3 * math.sin(i * 0.05) * math.sin(i * 0.0005) for i in range(24000)]
    write_wav(folder / "clean.wav", clean)
    path = write_wav(folder / "in.wav", [c + random.uniform(-0.1, 0.1) for c in clean])
    done = enhance(path, "-o", folder / "out.wav", "--json", "--reference", folder / "clean.wav", "--plot", folder / "p.png", "--device", "cpu", "--threads", 1)
    check(done.returncode == 0 and done.stderr == b"", f"--json: {done}")
    report = json.loads(done.stdout)
    check((report["samples"], report["channels"], report["sample_rate_hz"], report["threads"], report["device"]) == (24000, 1, 16000, 1, "cpu"), f"{report}")
    signal_power = sum(c * c for c in clean)
    expected = 10 * math.log10(signal_power / (24000 * 0.01 / 3))
    check(abs(report["noisy"]["si_sdr_db"] - expected) < 0.3, f"SI-SDR {report['noisy']} is about {expected}")
    check(report["rtf"] > 0 and report["total_s"] >= report["compute_s"] > 0, "times")
    check((folder / "p.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n", "the picture is a PNG")
    text = enhance(path, "-f", "-o", folder / "out.wav", "--reference", path).stdout.decode()
    check("SI-SDR" in text and "segmental SNR" in text and "STOI" in text, text)
    check_error(1, "it must be the same recording", "enhance", *WEIGHTS, path, "-o", folder / "no.wav", "--reference", write_wav(folder / "short.wav", clean[:12000]))
    check_error(2, "does not exist", "enhance", *WEIGHTS, path, "-o", folder / "no.wav", "--plot", folder / "no" / "p.png")
    check_error(2, "ends in .png", "enhance", *WEIGHTS, path, "-o", folder / "no.wav", "--plot", folder / "clean.wav", "-f")
    check_error(2, "is a folder", "enhance", *WEIGHTS, path, "-o", folder / "no.wav", "--plot", folder)
    check(not (folder / "no.wav").exists(), "no output when the picture cannot be written")


def refuse(folder, words, path, *args):
    """One line, exit status 1, and nothing new in the folder."""
    before = sorted(folder.iterdir())
    check_error(1, words, "enhance", *WEIGHTS, path, *args)
    check(sorted(folder.iterdir()) == before, f"{path}: left something behind")


def check_bad_inputs(folder):
    if os.path.isdir("/sys"):  # where not even root creates folders
        (folder / "in").mkdir()
        write_wav(folder / "in" / "a.wav", [0.1] * 800)
        done = krait("enhance", *WEIGHTS, folder / "in", "-o", "/sys/krait")
        check(done.returncode == 2 and b"cannot create the folder /sys/krait: " in done.stderr and b"No such" not in done.stderr, f"the reason: {done}")
        shutil.rmtree(folder / "in")
    good = write_wav(folder / "good.wav", noisy(16000, 16000))
    refuse(folder, "cannot open", folder / "missing.wav")
    (folder / "empty.wav").write_bytes(b"")
    refuse(folder, "is empty", folder / "empty.wav")
    refuse(folder, "contains no samples", write_wav(folder / "none.wav", []))
    (folder / "text.wav").write_text("this is not audio\n" * 100)
    refuse(folder, "not a readable audio file", folder / "text.wav")
    (folder / "head.wav").write_bytes(good.read_bytes()[:30])
    refuse(folder, "head.wav is", folder / "head.wav")
    (folder / "cut.wav").write_bytes(good.read_bytes()[:9000])
    refuse(folder, "is truncated", folder / "cut.wav")
    check(enhance(good, "-o", folder / "good.flac").returncode == 0, "FLAC")
    (folder / "cut.flac").write_bytes((folder / "good.flac").read_bytes()[:-5000])
    refuse(folder, "cut.flac", folder / "cut.flac")
    streamed = bytearray(good.read_bytes())
    streamed[4:8] = streamed[40:44] = b"\xff\xff\xff\xff"  # as programs write it that cannot seek in a pipe
    (folder / "streamed.wav").write_bytes(streamed)
    check(enhance(folder / "streamed.wav", "-o", folder / "b.wav").returncode == 0, "a streamed header's length is ignored")
    for value, words in ((math.nan, "sample 777 (at 0.049 s) of channel 1 is not a number"), (-math.inf, "is infinite")):
        samples = noisy(2000, 16000)
        samples[777] = value
        refuse(folder, words, write_float_wav(folder / "bad.wav", samples))
    refuse(folder, "/dev/zero is a device", "/dev/zero", "-o", folder / "zero.wav")
    refuse(folder, "cannot write /dev/full: No space left", good, "-o", "/dev/full")
    check_error(2, "out.wav: the folder ", "enhance", *WEIGHTS, good, "-o", folder / "no" / "out.wav")
    check(not (folder / "no").exists(), "only -o DIR creates folders")
    check_error(1, "missing.wav", "enhance", *WEIGHTS, folder / "no" / "missing.wav")
    with open("/dev/full", "wb") as full:
        done = subprocess.run([KRAIT, "enhance", *WEIGHTS, good, "-o", "-"], stdout=full, stderr=subprocess.PIPE, timeout=120)
    check(done.returncode == 1 and done.stderr.count(b"\n") == 1 and b"standard output: No space left" in done.stderr, f"full standard output: {done}")
    many = write_wav(folder / "many.wav", noisy(9000, 16000), channels=9)
    refuse(folder, "does not support 9 channels", many, "-o", folder / "many.flac")
    (folder / "old.mp2").write_bytes((b"\xff\xfd\x14\xc0" + bytes(92)) * 100)  # silence in MPEG layer 2
    done = enhance(folder / "old.mp2")
    check(done.returncode == 0 and b"old.enhanced.wav" in done.stdout and b"cannot be written; this is WAV" in done.stdout, f"MPEG layer 2 becomes WAV, and krait says so: {done}")
    refuse(folder, ".mp2 can be read but not written; name the output NAME.wav or NAME.flac", good, "-o", folder / "new.mp2")
    check(enhance(folder / "old.mp2", "-o", folder / "old.flac").returncode == 0, "MPEG layer 2 to FLAC")
    check(not [p for p in folder.iterdir() if "part" in p.name], "no temporary files")


def check_bad_weights(folder):
    good = write_wav(folder / "good.wav", noisy(4000, 16000))
    raw = WEIGHTS[1].read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8:8 + length]), raw[8 + length:]

    def rewritten(name, change):
        tensors = json.loads(json.dumps(header))
        extra = change(tensors) or b""
        text = json.dumps(tensors).encode()
        (folder / name).write_bytes(struct.pack("<Q", len(text)) + text + data + extra)
        return folder / name

    def drop(t):  # keeps its bytes as an unused tensor: renames it
        t["something.else"] = t.pop("dense_encoder.dense_conv_1.0.bias")

    def reshape(t):
        entry = t["dense_encoder.dense_conv_1.0.weight"]
        entry["shape"] = entry["shape"][::-1]

    def add(t):
        t["surplus.weight"] = {"dtype": "F32", "shape": [2], "data_offsets": [len(data), len(data) + 8]}
        return b"\0" * 8

    for name, change, words in (("missing", drop, "dense_encoder.dense_conv_1.0.bias"), ("shape", reshape, "dense_encoder.dense_conv_1.0.weight"),
                                ("extra", add, "surplus.weight")):
        check_error(2, words, "enhance", "-w", rewritten(f"{name}.safetensors", change), good, "-o", folder / "out.wav")
    (folder / "cut.safetensors").write_bytes(raw[:-100])
    check_error(2, "cut.safetensors", "enhance", "-w", folder / "cut.safetensors", good, "-o", folder / "out.wav")
    check_error(2, "cannot open", "enhance", "-w", folder / "none.safetensors", good, "-o", folder / "out.wav")
    check(not (folder / "out.wav").exists(), "bad weights leave no output")


def write_long(path, seconds):
    second = read_wav(write_wav(path, noisy(16000, 16000)))[1]
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(second * seconds)
    return path


def check_progress(folder):
    """Only on a terminal, a progress line, erased at the end."""
    path = write_long(folder / "long.wav", 15 if FEW else 40)
    master, slave = os.openpty()
    done = subprocess.run([KRAIT, "enhance", *WEIGHTS, path], stdout=subprocess.PIPE, stderr=slave, timeout=240)
    shown = b""
    while select.select([master], [], [], 0.2)[0]:
        shown += os.read(master, 65536)
    os.close(slave)
    os.close(master)
    text = shown.decode()
    check(done.returncode == 0 and b"RTF" in done.stdout, f"{done}")
    check("long.wav" in text and " 0 %" in text and "RTF " in text and " left" in text, f"progress: {text[:500]!r}")
    check(text.endswith("\r\x1b[K"), f"the line goes away: {text[-50:]!r}")
    check(enhance(path).stderr == b"", "no progress without a terminal")


def check_interrupt(folder):
    path = write_long(folder / "long.wav", 1800)
    for number, expected in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        process = subprocess.Popen([KRAIT, "enhance", *WEIGHTS, path, "-o", folder / "long.out.wav"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(1)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        check(process.returncode == expected, f"signal {number}: exit {process.returncode}")
        check(out == b"" and err == b"krait enhance: stopped; no unfinished output is left\n", f"signal {number}: {err}")
        check(list(folder.iterdir()) == [path], f"signal {number}: left {list(folder.iterdir())}")


def check_demo(folder):
    """The built-in weights denoise the demo recording."""
    demo = pathlib.Path(__file__).parent.parent.parent / "demo"
    if FEW:
        done = krait("enhance", write_wav(folder / "a.wav", noisy(4000, 16000)), "-o", folder / "out.wav")
        check(done.returncode == 0 and done.stderr == b"", f"built-in weights: {done}")
        return
    done = krait("enhance", demo / "noisy.flac", "-o", folder / "out.wav", "--reference", demo / "clean.flac", "--json")
    check(done.returncode == 0, f"the demo: {done}")
    report = json.loads(done.stdout)
    gain = report["enhanced"]["si_sdr_db"] - report["noisy"]["si_sdr_db"]
    said = krait("enhance", demo / "noisy.flac", "-o", folder / "verbose.wav", env=dict(os.environ, KRAIT_VERBOSE="1")).stderr
    check(b"krait: conv_norm: implementation " in said, f"KRAIT_VERBOSE=1 does not print operator calls: {said[:500]}")
    check(abs(report["noisy"]["si_sdr_db"] - 1.852) < 0.001 and gain > 5, f"the demo gains {gain} dB of SI-SDR: {report}")


for part in (check_demo, check_good, check_pipes_and_names, check_several_at_once, check_json_scores_and_plot, check_bad_inputs, check_bad_weights, check_progress, check_interrupt):
    with tempfile.TemporaryDirectory() as name:
        part(pathlib.Path(name))
finish()
