"""Two writers of one output, with every verb: without -f exactly one of them succeeds and its output is what remains;
outputs that cannot be written are refused before the work; a training's folder is locked, and stays right whenever the
trainings on it are killed. Usage: python3 tests/cli/writers.py KRAIT [KILLS SEED]"""
import json
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

from run import FEW, KRAIT, SEED, check, check_error, finish, krait

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "demo"))
import tiny_film  # noqa: E402
import tiny_language_model as tiny  # noqa: E402

GOLDEN, DEMO = ROOT / "tests" / "golden" / "primeknet", ROOT / "demo"
WEIGHTS = GOLDEN / "tiny-mamba.weights.safetensors"
folder = tempfile.TemporaryDirectory(prefix="krait-writers-")
here = pathlib.Path(folder.name)


def start(*args, **kw):
    return subprocess.Popen([KRAIT, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kw)


# ---- one output, two writers ----
def pair(out, *calls, stdin=None):
    """Starts both; each waits for its input, if it has one, until the other is there, too."""
    out.unlink(missing_ok=True)
    writers = [start(*call, stdin=subprocess.PIPE if stdin else subprocess.DEVNULL) for call in calls]
    if stdin:
        time.sleep(0.3)
    said = [w.communicate(stdin, timeout=120)[1].decode() for w in writers]
    status = [w.returncode for w in writers]
    check(sorted(status)[0] == 0 and sorted(status)[1] in (1, 2), f"{calls[0][0]}: of two writers one succeeds: {status}, {said}")
    loser = said[status.index(0) ^ 1].splitlines()[-1]  # which may have begun when the other had ended
    check(loser.startswith("krait ") and (f"{out} exists and is not replaced" in loser or f"{out} exists; -f replaces it" in loser), f"{calls[0][0]}: the other says why: {loser!r}")
    check(sorted(path.name for path in out.parent.iterdir()) == [out.name], f"{calls[0][0]}: nothing else is left: {list(out.parent.iterdir())}")
    return status.index(0)


def alone(out, call, stdin=None):
    done = krait(*call, "-f", stdin=stdin)
    check(done.returncode == 0, f"{call}: {done.stderr}")
    return out.read_bytes()


def pairs():
    tiny.make(here / "lm", "mamba1", seed=1)
    tiny.make(here / "video", "videogpt")
    tiny_film.make(here / "film.avi", n_frames=20)
    out = here / "out"
    out.mkdir()
    state = out / "a.state"
    calls = [("generate", here / "lm", "-", "--threads", "1", "-n", n, "--save-state", state) for n in (3, 7)]
    for _ in range(2):
        won = pair(state, *calls, stdin=b"the rain")
        left = state.read_bytes()
        check(left == alone(state, calls[won], stdin=b"the rain"), "the state is the winner's")
    (state).unlink()
    new = out / "a.safetensors"
    calls = [("convert", WEIGHTS, new, "--set", f"sigmoid_beta={beta}") for beta in ("2.0", "2.5")]
    for _ in range(3):
        won = pair(new, *calls)
        left = new.read_bytes()
        check(left == alone(new, calls[won]), "the weights are the winner's")
    new.unlink()
    table = out / "a.csv"
    pair(table, *[("evaluate", DEMO / "clean.flac", DEMO / "noisy.flac", "--csv", table)] * 2)
    table.unlink()
    sheet = out / "a.png"
    pair(sheet, *[("describe", here / "film.avi", "-w", here / "video", "-n", "3", "--threads", "1", "--frames", sheet)] * 2)


def refused_before_the_work():
    """Their models do not exist, which would be the next thing to be said."""
    for out, says in ((here / "none" / "x.state", "does not exist"), ("/proc/x.state", "cannot create /proc/x.state"), (here / ("x" * 300), "the name has 300 bytes"), (here, "is a folder")):
        check_error(2, says, "generate", here / "no model", "-p", "a", "--save-state", out)
        check_error(2, says, "generate", here / "no model", "-p", "a", "--save-state", out, "-f")


# ---- a training's folder ----
CONFIG = """
segment: 8000
stride: 12000
shift: 4000
batch_size: 2
num_prints: 1000
lr: 2e-3
epochs: 200
model:
  model_lib: primeknet_gru
  param: {fft_len: 400, dense_channel: 4, dense_depth: 1, num_tsblock: 1, time_block_num: 1, freq_block_num: 1, freq_block_kernel: [3, 7], sigmoid_beta: 2.0}
"""


def train(output, *more):
    return ["train", here / "run.yaml", f"dset.speech_train={here / 'clean'}", f"dset.noisy_train={here / 'noisy'}", "--output", output, "--threads", "1", *more]


def change(checkpoint, **values):
    raw = checkpoint.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    header["__metadata__"].update(values)
    text = json.dumps(header).encode()
    checkpoint.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + n:])


def make_recordings():
    (here / "run.yaml").write_text(CONFIG)
    for side in ("clean", "noisy"):
        (here / side).mkdir()
        shutil.copy(DEMO / f"{side}.flac", here / side / "talk.flac")


def trainings():
    run = here / "run"
    first = start(*train(run))
    first.stdout.readline()
    for more in ((), ("--resume",)):
        check_error(1, f"{run} is in use by another training (process {first.pid}); wait for its end", *train(run, *more))
    first.kill()
    first.wait()
    done = krait(*train(run, "--resume", "--steps", "30"))
    check(done.returncode == 0, f"a killed training leaves no lock: {done}")

    # checkpoints that are not of this run
    checkpoint = run / "checkpoint.safetensors"
    good = checkpoint.read_bytes()
    for values, says in (({"step": "nan"}, "step is 'nan', not a count"), ({"step": "2.5"}, "step is '2.5', not a count"), ({"step": "-1"}, "not a count"), ({"step": "1e30"}, "not a count"), ({"updates": "inf"}, "updates is 'inf', not a count"),
                         ({"step": "100000"}, "is at step 100000, beyond the end of this run"), ({"best_loss": "nan"}, "best_loss nan"), ({"epoch_steps": "nan"}, "after nan steps"),
                         ({"recordings": "5 recordings of 7 samples, 0"}, "was made with other recordings (then 5 recordings of 7 samples, 0; now 1 recordings of ")):
        checkpoint.write_bytes(good)
        change(checkpoint, **values)
        before = checkpoint.read_bytes()
        done = krait(*train(run, "--resume"))
        said = done.stderr.decode()
        check(done.returncode == (2 if "recordings" in values else 1) and said.count("\n") == 1 and str(checkpoint) in said and says in said, f"{values}: {said!r}")
        check(checkpoint.read_bytes() == before, f"{values}: the file is as it was")
    check(krait(*train(run, "--resume", "--steps", "31", "--changed-data")).returncode == 0, "--changed-data continues")
    change(checkpoint, step="31")  # and the new recordings are in the new checkpoint
    check(krait(*train(run, "--resume", "--steps", "32")).returncode == 0, "then without it")

    # folders that cannot be
    (here / "file").write_text("x")
    for output, says in ((here / "none" / "run", "cannot create the folder"), (here / "file", "is a file, not a folder"), ("/proc/run", "/proc/run")):
        check_error(1, says, *train(output))


def kills(n, seed):
    """Two trainings on one folder, each killed at a random time and started again: at most one works, and whoever it is
    in the end, the bits are those of a training that nobody killed."""
    dice, run, whole, steps = random.Random(seed), here / "killed", here / "whole", 40
    check(krait(*train(whole, "--steps", steps)).returncode == 0, "a training alone")
    writers, n_refused, n_killed = [None, None], 0, 0
    while n_killed < n:
        for i in range(2):
            if writers[i] is None or writers[i].poll() is not None:
                if writers[i] is not None:
                    said = writers[i].stderr.read().decode()
                    n_refused += "is in use by another training" in said
                    check(writers[i].returncode in (0, 1) and (writers[i].returncode == 0 or said.count("\n") == 1), f"a writer ended by itself: {writers[i].returncode}, {said}")
                resumes = (run / "checkpoint.safetensors").exists()
                writers[i] = subprocess.Popen([KRAIT, *map(str, train(run, "--steps", steps, *(["--resume"] if resumes else [])))], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        time.sleep(dice.uniform(0.02, 0.5))
        victim = dice.choice(writers)
        if victim.poll() is None:
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            victim.returncode = 0  # expected
            n_killed += 1
    for writer in writers:
        writer.kill()
        writer.communicate()
    if (run / "checkpoint.safetensors").exists():
        done = krait(*train(run, "--resume", "--steps", steps))
    else:
        done = krait(*train(run, "--steps", steps))
    check(done.returncode == 0, f"after {n} kills it resumes: {done}")
    for name in ("checkpoint.safetensors", "best.safetensors"):
        check((run / name).read_bytes() == (whole / name).read_bytes(), f"after {n} kills {name} has the same bits")
    rest = sorted(path.name for path in run.iterdir())
    check(rest == [".hydra", "best.safetensors", "checkpoint.safetensors", "log.jsonl", "tensorbd"] or any(name.endswith(".part") for name in rest) is False, f"nothing else is left: {rest}")
    print(f"{n_killed} kills, {n_refused} refused")


make_recordings()
if len(sys.argv) > 2:
    kills(int(sys.argv[2]), int(sys.argv[3]))
else:
    pairs()
    refused_before_the_work()
    trainings()
    if not FEW:
        kills(3, SEED)
finish()
