"""Fault injection: memory, disks, signals, paths and formats. Usage: faults.py KRAIT LIBINJECT [--share N]
[--part PART]: every N-th fault (10 in `make test`; 1, all, in tools/torture). Prints what was tried and what failed."""
import argparse
import itertools
import json
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

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import harness  # noqa: E402
import sounds  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "demo"))
import tiny_film  # noqa: E402
import tiny_language_model  # noqa: E402

GOLDEN = ROOT / "tests" / "golden" / "primeknet"
MODEL, RECORDED = GOLDEN / "tiny-mamba.weights.safetensors", GOLDEN / "tiny-mamba.golden.safetensors"
RUN = ["-w", MODEL, "--device", "cpu", "--threads", "1"]
ENOSPC, EIO = 28, 5
problems, tally = [], {}


def report(sentence):
    problems.append(sentence)
    if len(problems) <= 40:
        print("FAIL:", sentence, flush=True)


def count(what, n=1):
    tally[what] = tally.get(what, 0) + n


def sampled(total, share, first=1):
    """1 ... total, every share-th, with an offset chosen by the date, and always the last ones."""
    start = first + random.randrange(share)
    return sorted(set(range(start, total + 1, share)) | {total, total + 1})


def krait(*args, **kw):
    return subprocess.run([KRAIT, *map(str, args)], capture_output=True, timeout=120, **kw)


def folder_with(name, n=4000, rate=16000):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="krait-faults-"))
    sounds.write(folder / name, "wav", sounds.noise(n), rate)
    return folder


def language_cases(folder):
    """Language models: the same text as without a fault, or an error."""
    small = ["--device", "cpu", "--threads", "1"]
    tell = ["-n", "6", "--temperature", "1", "--seed", "3", *small]
    for kind in ("hybrid", "qwen2"):
        tiny_language_model.make(folder / kind, kind)
        done = krait("generate", kind, "-p", "the rain", *tell, "--save-state", f"{kind}.state", cwd=folder)
        assert done.returncode == 0, done
        yield harness.Case(f"generate, {kind}", [KRAIT, "generate", kind, "-p", "the rain " * 60, *tell], folder)
        yield harness.Case(f"generate --load-state, {kind}", [KRAIT, "generate", kind, "--load-state", f"{kind}.state", "-p", " on", *tell], folder)
        yield harness.Case(f"score, {kind}", [KRAIT, "score", kind, "text", *small], folder)
    yield harness.Case("convert --quantize", [KRAIT, "convert", "-f", "--quantize", "q8_0", "lm", "small8.safetensors"], folder, outputs=("small8.safetensors",))


def cases(folder):
    """Small runs of every verb that reads or writes files."""
    (folder / "log").write_text("RuntimeError: CUDA error: no kernel image is available for execution on the device\n")
    header = {"__metadata__": {"model": "primeknet_mamba", "config": '{"causal": true}'}, **{f"t{i}": {"dtype": "F32", "shape": [2, 3], "data_offsets": [24 * i, 24 * i + 24]} for i in range(6)}}
    text = json.dumps(header).encode()
    (folder / "small.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(144))
    tiny_language_model.make(folder / "lm")
    tiny_language_model.make(folder / "video", "videogpt")
    tiny_film.make(folder / "film.avi", n_frames=4, width=64, height=48)
    (folder / "text").write_text("the rain in the north\n")
    yield harness.Case("info", [KRAIT, "info", "small.safetensors"], folder, bad=(1, 2))
    yield harness.Case("info --json", [KRAIT, "info", "--json", "small.safetensors"], folder, bad=(1, 2))
    yield harness.Case("verify", [KRAIT, "verify", MODEL, RECORDED, "--device", "cpu", "--threads", "1"], folder, bad=(2,))
    yield harness.Case("enhance", [KRAIT, "enhance", *RUN, "s.wav", "-f", "-o", "out.wav", "--json"], folder, outputs=("out.wav",), text=False)
    yield harness.Case("evaluate", [KRAIT, "evaluate", *RUN, "s.wav", "s.wav", "-j", "1", "-f", "--csv", "out.csv"], folder, outputs=("out.csv",), text=False)
    yield harness.Case("evaluate --noise", [KRAIT, "evaluate", "s.wav", "--noise", "s.wav", "--snr", "3", "-j", "1", "--json"], folder, bad=(1, 2))
    yield harness.Case("generate", [KRAIT, "generate", "lm", "--file", "text", "-n", "3", "--device", "cpu", "--threads", "1", "--json"], folder, bad=(1, 2), text=False)
    yield harness.Case("generate --save-state", [KRAIT, "generate", "lm", "-p", "the", "-n", "3", "--device", "cpu", "--threads", "1", "-f", "--save-state", "out.state", "--json"], folder, outputs=("out.state",), text=False)
    yield from language_cases(folder)
    yield harness.Case("score", [KRAIT, "score", "lm", "text", "--device", "cpu", "--threads", "1"], folder)
    yield harness.Case("convert", [KRAIT, "convert", "-f", "small.safetensors", "out.safetensors"], folder, outputs=("out.safetensors",))
    yield harness.Case("convert to best.th", [KRAIT, "convert", "-f", "small.safetensors", "out.th"], folder, outputs=("out.th",))
    if shutil.which("ffmpeg"):  # faults in krait; what a decoder may do: tests/format/decoder.c
        yield harness.Case("describe", [KRAIT, "describe", "film.avi", "-w", "video", "-n", "2", "--device", "cpu", "--threads", "1", "--json"], folder, bad=(1, 2), text=False)
    yield harness.Case("doctor", [KRAIT, "doctor", "--log", "log", "--gpu", "9.0", "--root", folder], folder, good=(0, 1, 2, 4), bad=(3, 64, 70))


def memory(share):
    """Every n-th allocation fails in turn."""
    folder = folder_with("s.wav")
    for case in cases(folder):
        n = harness.counts(INJECT, case.reference().command, folder)["malloc"]
        count("allocations failed", harness.sweep(INJECT, case, [f"malloc:{i}" for i in sampled(n, share)], report))
        count("allocations failed", harness.sweep(INJECT, case, [f"malloc:{i}+" for i in sampled(n, 20 * share)], report))
        count("of these, faults inside other libraries", case.foreign)
    shutil.rmtree(folder)


def describe(share):
    """Every n-th allocation of a description fails."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="krait-faults-"))
    tiny_language_model.make(folder / "model", "videogpt")
    tiny_film.make(folder / "film.avi", 20, 25, 64, 48)
    case = harness.Case("describe", [KRAIT, "describe", "film.avi", "What happens?", "-w", "model", "-n", "4", "--device", "cpu", "--threads", "1"], folder).reference()
    n = harness.counts(INJECT, case.command, folder)["malloc"]
    count("allocations of describe failed", harness.sweep(INJECT, case, [f"malloc:{i}" for i in sampled(n, share)], report))
    count("of these, faults inside other libraries", case.foreign)
    shutil.rmtree(folder)


def pictures(share):
    """Allocations of verbs that draw fail, most of them among the last sixty, with which the picture is made: the whole
    picture, labels too, or an error."""
    folder = folder_with("s.wav")
    tiny_language_model.make(folder / "model", "videogpt")
    tiny_film.make(folder / "film.avi", 6, 25, 64, 48)
    small, put = ["--device", "cpu", "--threads", "1", "-f"], {"folder": folder, "outputs": ("out.png",), "text": False}
    several = [harness.Case("enhance --plot", [KRAIT, "enhance", "-w", MODEL, *small, "s.wav", "-o", folder.with_suffix(".wav"), "--reference", "s.wav", "--plot", "out.png"], **put),
               harness.Case("evaluate --plot", [KRAIT, "evaluate", "s.wav", "s.wav", "-w", MODEL, *small, "-j", "1", "--plot", "out.png"], **put)]
    if shutil.which("ffmpeg"):
        several.append(harness.Case("describe --frames", [KRAIT, "describe", "film.avi", "-w", "model", "-n", "1", *small, "--frames", "out.png"], **put))
    for case in several:
        n = harness.counts(INJECT, case.reference().command, folder)["malloc"]
        count("allocations of pictures failed", harness.sweep(INJECT, case, [f"malloc:{i}{kind}" for i in (*sampled(n, 20 * share), *sampled(n, max(1, share // 10), n - 60)) for kind in ("", "+")], report))
        count("of these, faults inside other libraries", case.foreign)
    folder.with_suffix(".wav").unlink(missing_ok=True)
    shutil.rmtree(folder)


def system_calls(share):
    """Every call that can fail, in turn; every third interrupted; short reads and writes."""
    folder = folder_with("s.wav")
    several = list(cases(folder))
    several.append(harness.Case("enhance to standard output", [KRAIT, "enhance", *RUN, "s.wav", "-o", "-"], folder))
    for case in several:
        calls = harness.counts(INJECT, case.reference().command, folder)
        for kind in ("write", "read", "open", "mmap", "fsync", "rename", "link", "close"):
            faults = [f"{named}{kind}:{i}:{EIO}" for i in sampled(calls[kind] + 2, share) for named in ("", "named:1,")]
            count("system calls failed", harness.sweep(INJECT, case, faults, report))
        count("runs with interrupted and short calls", harness.sweep(INJECT, case, [f"eintr:{n}" for n in (2, 3, 7)] + [f"short:{n}" for n in (1000, 4093)], report))
    for kind in ("eintr:2", "short:999"):  # these must not cause a failure
        case = next(c for c in several if c.name == "enhance").reference()
        server = harness.Server(INJECT, case.command, folder)
        if server.run(kind)[0] != 0:
            report(f"enhance, {kind}: fails without a fault")
        server.close()
    shutil.rmtree(folder)


WRITTEN = ("wav", "wav24", "wavf", "ulaw", "aiff", "au", "caf", "flac", "vorbis", "opus", "mp3", "w64", "rf64", "nist")


def disk_full(share):
    """A disk full from the n-th write on, for every n and every output format: an error and the old file, or none."""
    for kind in WRITTEN:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="krait-faults-"))
        name = "s." + sounds.EXTENSIONS.get(kind, kind)
        if sounds.write(folder / name, kind, sounds.noise(9000)):
            out = "out." + sounds.EXTENSIONS.get(kind, kind)
            case = harness.Case(f"disk full, {kind}", [KRAIT, "enhance", *RUN, name, "-f", "-o", out], folder, outputs=(out,), text=False, is_same=lambda n, got, want: len(got) == len(want)).reference()
            n = harness.counts(INJECT, case.command, folder)["write"]
            count("full disks", harness.sweep(INJECT, case, [f"write:{i}+:{ENOSPC}" for i in sampled(n, max(1, share // 3))], report))
            for limit in range(0, len(case.want[out]), max(1, len(case.want[out]) * share // 60)):  # a quota: writes may stop anywhere
                case.put_old(True)
                done = subprocess.run(case.command, cwd=folder, capture_output=True, timeout=120, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
                sentence = case.judge(f"at most {limit} bytes", (done.returncode, done.stdout, done.stderr), True)
                count("full disks")
                if sentence or done.returncode == 0 and limit < len(case.want[out]):
                    report(sentence or f"{case.name}: exit 0 with room for {limit} of {len(case.want[out])} bytes")
        shutil.rmtree(folder)
    for args in (["version"], ["--help"], ["info"], ["info", MODEL, "--json"], ["verify", MODEL, RECORDED, "--device", "cpu"], ["devices"], ["enhance", "--help"], ["doctor", "--explain", "list"]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([KRAIT, *map(str, args)], stdout=full, stderr=subprocess.PIPE, timeout=120)
        count("full disks")
        if done.returncode == 0 or done.stderr.count(b"\n") != 1 or b"cannot write standard output" not in done.stderr:
            report(f"{args} to a full disk: {done}")


def signals(share):
    """Signals at random times, with one and four recordings at once: no temporary or partial file, and it terminates
    even if nobody reads standard error."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU, signal.SIGUSR1)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="krait-faults-"))
    names = [f"{i}.wav" for i in range(24)]
    for name in names:
        sounds.write(folder / name, "wav", sounds.noise(1500, seed=len(name)))
    whole = {}
    krait("enhance", *RUN, *[folder / n for n in names], "-o", folder / "want", cwd=folder)
    for name in names:
        whole[name] = (folder / "want" / name).read_bytes()
    for round_ in range(300 // share):
        jobs, named, blocked = (1, 4)[round_ % 2], round_ % 3 == 0, round_ % 5 == 0
        out = folder / "out"
        environment = dict(os.environ, **({"LD_PRELOAD": str(INJECT), "KRAIT_FAULT": "named:1"} if named else {}))
        command = [KRAIT, "enhance", *map(str, RUN), "-j", str(jobs), *names, "-o", "out/"]
        if blocked:  # a full pipe without a reader
            reader, writer = os.pipe()
            os.set_blocking(writer, False)
            try:
                while True:
                    os.write(writer, b"x" * 4096)
            except BlockingIOError:
                os.set_blocking(writer, True)
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=writer if blocked else subprocess.PIPE)
        time.sleep(random.uniform(0.0, 0.35))
        number = numbers[round_ % len(numbers)]
        process.send_signal(number)
        try:
            err = process.communicate(timeout=30)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            report(f"signal {number} at -j {jobs}: does not terminate")
            err = process.communicate()[1]
        if blocked:
            os.close(reader)
            os.close(writer)
        count("signals")
        status = process.returncode
        early = status == -number  # before the verb started
        if status not in (0, 128 + number) and not early:
            report(f"signal {number} at -j {jobs}: exit status {status}, {err!r}")
        if status == 128 + number and not blocked and err != b"krait enhance: stopped; no unfinished output is left\n":
            report(f"signal {number} at -j {jobs}: {err!r}")
        left = [p.name for p in (out.iterdir() if out.exists() else ())]
        for name in left:
            if name not in whole:
                report(f"signal {number} at -j {jobs}{', named' if named else ''}: left {name}")
            elif (out / name).read_bytes() != whole[name]:
                report(f"signal {number} at -j {jobs}: {name} is incomplete")
        shutil.rmtree(out, ignore_errors=True)
    shutil.rmtree(folder)


def aliases(share):
    """Every input and output is also given as an output, by every kind of alias: refused, and nothing changes."""
    folder = folder_with("in.wav")
    for name in ("ref.wav", "other.wav"):
        shutil.copy(folder / "in.wav", folder / name)
    shutil.copy(MODEL, folder / "model.safetensors")
    (folder / "sub").mkdir()
    (folder / "config.yaml").write_text("model: primeknet_mamba\n")
    victims = ("in.wav", "ref.wav", "model.safetensors", "config.yaml")
    before = {name: (folder / name).read_bytes() for name in victims}

    def names_of(name):
        yield name
        yield f"./{name}"
        yield f"sub/../{name}"
        yield str(folder / name)
        for kind, make in (("hard", os.link), ("soft", os.symlink)):
            other = f"{kind}-{name}"
            if not os.path.lexists(folder / other):
                make(folder / name, folder / other)
            yield other

    base = ["enhance", "in.wav", "-f", "--reference", "ref.wav", "-w", "model.safetensors", "--device", "cpu"]
    for victim, role in itertools.product(victims, ("-o", "--plot", "stdout")):
        for alias in names_of(victim):
            args = base + (["-o", "fine.wav"] if role != "-o" else []) + ([role, alias] if role != "stdout" else ["--json"]) + ["--config", "config.yaml"]
            stream = os.open(folder / alias, os.O_WRONLY | os.O_APPEND) if role == "stdout" else subprocess.PIPE
            done = subprocess.run([KRAIT, *args], cwd=folder, stdout=stream, stderr=subprocess.PIPE, timeout=60)
            if role == "stdout":
                os.close(stream)
            count("aliased paths")
            if done.returncode != 2 or done.stderr.count(b"\n") != 1 or not all(words in done.stderr for words in (b"krait enhance: ",)):
                report(f"{role} is {alias}: {done}")
            for name, content in before.items():
                if (folder / name).read_bytes() != content:
                    report(f"{role} is {alias}: {name} has changed")
                    (folder / name).write_bytes(content)
    for args in (["enhance", "in.wav", "-f", "-o", "x.wav", "--plot", "./x.wav"], ["enhance", "in.wav", "other.wav", "hard-in.wav", "-f", "-o", "."], ["convert", "-f", "model.safetensors", "./model.safetensors"],
                 ["convert", "-f", "model.safetensors", "hard-model.safetensors"], ["enhance", "sub/../in.wav", "in.wav", "-f", "-o", "new/"]):
        done = subprocess.run([KRAIT, *args], cwd=folder, capture_output=True, timeout=60)
        count("aliased paths")
        if done.returncode != 2 or done.stderr.count(b"\n") != 1:
            report(f"{args}: {done}")
    named = {"evaluate": (["in.wav", "ref.wav", "-w", "model.safetensors", "--config", "config.yaml"], "--csv"), "evaluate a mixture": (["in.wav", "--noise", "ref.wav", "-w", "model.safetensors"], "--csv"),
             "train": (["config.yaml", "-w", "model.safetensors", "--steps", "1"], "--plot"), "generate": (["model.safetensors", "-p", "x", "--tokenizer", "config.yaml"], "--save-state"),
             "describe": (["in.wav", "-w", "model.safetensors", "--tokenizer", "config.yaml"], "--frames")}
    for (verb, (args, role)), victim, force in itertools.product(named.items(), victims, ([], ["-f"])):
        if victim in args or not force:
            done = subprocess.run([KRAIT, verb.split()[0], *args, role, f"hard-{victim}", *force], cwd=folder, capture_output=True, timeout=60)
            count("aliased paths")
            if done.returncode != 2 or done.stderr.count(b"\n") != 1 or (b"-f replaces it", b"would be overwritten")[bool(force)] not in done.stderr and (force or b"would be" not in done.stderr):
                report(f"{verb} {role} is hard-{victim}: {done}")
            for name, content in before.items():
                if (folder / name).read_bytes() != content:
                    report(f"{verb} {role} is hard-{victim}: {name} has changed")
                    (folder / name).write_bytes(content)
    (folder / "old.wav").write_bytes(b"precious")
    done = subprocess.run([KRAIT, "enhance", "in.wav", "-o", "old.wav", *map(str, RUN)], cwd=folder, capture_output=True, timeout=60)
    if done.returncode != 2 or b"old.wav exists; -f replaces it" not in done.stderr or (folder / "old.wav").read_bytes() != b"precious":
        report(f"an output that exists: {done}")
    shutil.rmtree(folder)


def formats(share):
    """Every format as input, every extension as output: the result has the recording's rate, channels and length, in
    the extension's format, or one line says why not."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="krait-faults-"))
    inputs = []
    for kind, (rate, channels) in itertools.product(sounds.FORMATS, ((16000, 1), (44100, 2), (8000, 1), (16000, 3))):
        name = f"{kind}-{rate}-{channels}.{sounds.EXTENSIONS.get(kind, kind)}"
        if sounds.write(folder / name, kind, sounds.noise(3001, channels), rate, channels) and sounds.read(folder / name):
            inputs.append(name)
    (folder / "layer2.mp2").write_bytes((b"\xff\xfd\x14\xc0" + bytes(92)) * 100)
    inputs.append("layer2.mp2")
    pairs = list(itertools.product(inputs, (None, "wav", "flac", "ogg", "opus", "mp3", "aiff", "au", "caf", "w64", "rf64")))
    random.shuffle(pairs)
    for name, extension in pairs[:len(pairs) // share + 1]:
        given = sounds.read(folder / name)
        done = krait("enhance", *RUN, name, *(["-f", "-o", f"out.{extension}"] if extension else ["--json"]), cwd=folder)
        count("pairs of formats")
        has_limits = extension in ("ogg", "opus", "mp3", "flac")  # on channels and rates; the others support every recording
        if done.returncode not in (0, 1) or done.returncode == 1 and (done.stderr.count(b"\n") != 1 or not has_limits):
            report(f"{name} to {extension}: {done}")
        if done.returncode != 0:
            continue
        path = folder / (f"out.{extension}" if extension else json.loads(done.stdout)["output"])
        got = sounds.read(path)
        length, wanted = got and len(got[3]) // got[2], len(given[3]) // given[2]
        if not got or got[1:3] != given[1:3] or not (length == wanted or length == wanted + 1 and path.suffix == ".aiff"):
            report(f"{name} to {path.name}: {got and (hex(got[0]), *got[1:3], length)} of {(hex(given[0]), *given[1:3], wanted)}")
        path.unlink()
    shutil.rmtree(folder)


PARTS = {f.__name__: f for f in (memory, describe, pictures, system_calls, disk_full, signals, aliases, formats)}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("krait", type=pathlib.Path)
    parser.add_argument("inject", type=pathlib.Path)
    parser.add_argument("--share", type=int, default=10)
    parser.add_argument("--part", action="append", choices=PARTS)
    args = parser.parse_args()
    KRAIT, INJECT = str(args.krait.resolve()), args.inject.resolve()
    for part in args.part or PARTS:
        start = time.monotonic()
        PARTS[part](args.share)
        print(f"{part}: {time.monotonic() - start:.1f} s", flush=True)
    print(", ".join(f"{n} {what}" for what, n in sorted(tally.items())) + f": {len(problems)} wrong")
    sys.exit(1 if problems else 0)
