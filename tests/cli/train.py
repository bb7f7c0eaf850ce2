"""krait train on the bundled recording: losses fall, a killed run resumes with the same bits, best.safetensors works in
enhance, bad input gives one line."""
import json
import os
import pathlib
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import time

from run import FEW, KRAIT, check, check_error, finish, krait

DEMO = pathlib.Path(__file__).parent.parent.parent / "demo"
SEGMENT = 8000 if FEW else 12000
CONFIG = f"""
segment: {SEGMENT}
stride: 12000
shift: 4000
batch_size: 2
num_prints: 1000
lr: 2e-3
epochs: 2
model:
  model_lib: primeknet_mamba
  param: {{fft_len: 400, dense_channel: 8, dense_depth: 1, num_tsblock: 1, time_block_num: 1, freq_block_num: 1, mamba_hidden_size: 8, mamba_d_state: 4, freq_block_kernel: [3, 7], sigmoid_beta: 2.0}}
"""


def train(folder, config, *more):
    return ["train", config, f"dset.speech_train={base / 'clean'}", f"dset.noisy_train={base / 'noisy'}", "--output", folder, *more]


def checksum(data):
    """TFRecord's masked CRC-32C."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def fields(data):
    """(number, value) of a message in protocol buffers' wire format."""
    def varint():
        nonlocal data
        value = shift = 0
        while True:
            value, shift, more, data = value | (data[0] & 127) << shift, shift + 7, data[0] & 128, data[1:]
            if not more:
                return value
    while data:
        key = varint()
        n = {0: None, 1: 8, 5: 4}[key & 7] if key & 7 != 2 else varint()
        value = varint() if n is None else data[:n]
        data = data if n is None else data[n:]
        yield key >> 3, value


def events(data):
    """(time, step, {tag: value}) of each record of a TensorBoard file."""
    while data:
        length, own = struct.unpack("<QI", data[:12])
        body, (of_body,) = data[12:12 + length], struct.unpack("<I", data[12 + length:16 + length])
        check(own == checksum(data[:8]) and of_body == checksum(body), "checksums of a record")
        found = dict(fields(body))
        values = [dict(fields(one)) for number, one in fields(found.get(5, b"")) if number == 1]
        yield struct.unpack("<d", found[1])[0], found.get(2, 0), {v[1].decode(): struct.unpack("<f", v[2])[0] for v in values}
        data = data[16 + length:]


with tempfile.TemporaryDirectory() as base:
    base = pathlib.Path(base)
    for side in ("clean", "noisy"):
        (base / side).mkdir()
        shutil.copy(DEMO / f"{side}.flac", base / side / "talk.flac")
    config = base / "small.yaml"
    config.write_text(CONFIG.replace("epochs: 2", "epochs: 1") if FEW else CONFIG)
    done = krait(*train(base / "whole", config, "--threads", "2", "--plot", base / "losses.png"))
    check(done.returncode == 0, f"train: {done}")
    lines = [json.loads(line) for line in (base / "whole" / "log.jsonl").read_text().splitlines()]
    check(len(lines) == len(done.stdout.splitlines()) >= (3 if FEW else 6), f"one line per step: {len(lines)}")
    first, last = (sum(line["total"] for line in part) / 3 for part in (lines[:3], lines[-3:]))
    check(FEW or last < 0.99 * first, f"the loss falls: {first} to {last}")
    check(any(line.get("best") for line in lines), "some epoch was the best")
    check((base / "losses.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n", "a picture of the losses")
    seen = [event for file in (base / "whole" / "tensorbd").iterdir() for event in events(file.read_bytes())]
    check(seen[0][1:] == (0, {}) and [step for _, step, _ in seen[1:]] == [line["step"] for line in lines], f"one TensorBoard event per line: {seen}")
    check(all(abs(value - line[tag]) <= 1e-6 * abs(line[tag]) for line, event in zip(lines, seen[1:]) for tag, value in event[2].items() if tag != "audio_s_per_s") and len(seen[1][2]) >= 12, f"values as in the log: {seen[1]}")
    out = base / "out.wav"
    done = krait("enhance", DEMO / "noisy.flac", "-o", out, "--weights", base / "whole" / "best.safetensors", "--device", "cpu")
    check(done.returncode == 0 and out.stat().st_size > 1000, f"enhance with the trained weights: {done}")

    # a small machine's preset, and the built-in weights by name; sections come first wherever they are written
    small = ["batch_size=2", "loss.metric=0", f"dset.speech_train={base / 'clean'}", f"dset.noisy_train={base / 'noisy'}", "--device", "cpu"]
    done = krait("train", "epochs=1", "+model=primeknet_small", *small, "--steps", "2", "--output", base / "small")
    check(done.returncode == 0 and b"step 1/2 " in done.stdout, f"+model=primeknet_small: {done}")
    made = json.loads((base / "small" / ".hydra" / "config.yaml").read_text())
    check((made["segment"], made["stride"], made["shift"], made["batch_size"], made["epochs"]) == (24000, 12000, 8000, 2, 1) and "settings" not in made["model"], f"the preset's settings, and those given: {made}")
    if not FEW:
        done = krait("train", "-w", "builtin", "segment=8000", "stride=8000", "shift=4000", *small, "--steps", "1", "-q", "--output", base / "tuned")
        check(done.returncode == 0 and done.stdout == b"", f"train -w builtin -q: {done}")
        tuned, own = (json.loads(krait("info", name, "--json").stdout) for name in (base / "tuned" / "best.safetensors", "builtin"))
        check(tuned["config"] == own["config"] and tuned["n_params"] == own["n_params"], "fine-tuned weights have the built-in model's configuration")

    # a part of docs/TRAIN.md's first run: demo/train, mixed during training
    done = krait("train", config, f"dset.speech_train={DEMO / 'train' / 'speech' / 'librispeech_1040-133433-0000.opus'}", f"dset.noise_train={DEMO / 'train' / 'noise'}",
                 f"dset.speech_valid={DEMO / 'clean.flac'}", f"dset.noise_valid={DEMO / 'train' / 'noise'}", "train_noise.snr_range=[0,10]", "loss.metric=0", "--valid-batches", "1", "--output", base / "demo", *(["--steps", "2"] if FEW else []))
    check(done.returncode == 0, f"train on demo/train: {done}")
    totals = [json.loads(line)["total"] for line in (base / "demo" / "log.jsonl").read_text().splitlines()]
    if not FEW:
        check(len(totals) >= 12 and sum(totals[-4:]) < 0.97 * sum(totals[:4]), f"the loss falls: {totals}")
        done = krait("enhance", "-f", DEMO / "noisy.flac", "-o", out, "--weights", base / "demo" / "best.safetensors", "--device", "cpu")
        check(done.returncode == 0 and out.stat().st_size > 1000, f"enhance with its weights: {done}")

    # a streaming model: running statistics change, are in all files, and continue after a resume
    streaming = base / "streaming.yaml"
    streaming.write_text(CONFIG.replace("sigmoid_beta: 2.0", "causal: true, norm: batch, channel_attention: moving") + "accumulate: 2\nmicro_batch: 1\naverage_decay: 0.5\nloss: {metric: 0}\n")
    n = 4 if FEW else 6
    done = krait(*train(base / "streams", streaming, "--threads", "2", "--steps", n))
    check(done.returncode == 0, f"train a model that streams: {done}")
    check(krait(*train(base / "again", streaming, "--threads", "1", "--steps", n * 2 // 3 - 1)).returncode == 0, "some of its steps, up to the end of an update")
    check(krait(*train(base / "again", streaming, "--threads", "2", "--steps", n, "--resume")).returncode == 0, "the others")
    raw = (base / "streams" / "checkpoint.safetensors").read_bytes()
    check(raw == (base / "again" / "checkpoint.safetensors").read_bytes(), "running statistics resume bit for bit")
    header = json.loads(raw[8:8 + struct.unpack("<Q", raw[:8])[0]])

    def numbers(name):
        begin, end = header[name]["data_offsets"]
        return struct.unpack(f"<{(end - begin) // 4}f", raw[len(raw) - max(v["data_offsets"][1] for k, v in header.items() if k != "__metadata__"):][begin:end])
    for name in ("dense_encoder.dense_conv_1.1.running_", "mask_decoder.mask_conv.2.running_", "phase_decoder.phase_conv.1.running_"):
        mean, var, average = numbers(f"model.{name}mean"), numbers(f"model.{name}var"), numbers(f"model_average.{name}var")
        check(any(mean) and all(v > 0 and v != 1 for v in var) and all(v > 0 for v in average) and var != average, f"{name}: {mean} {var} {average}")
    done = krait("enhance", "-f", DEMO / "noisy.flac", "-o", out, "--weights", base / "streams" / "best.safetensors", "--device", "cpu")
    check(done.returncode == 0 and out.stat().st_size > 1000, f"enhance with a model that streams: {done}")

    # a terminal shows progress, erased at the end
    master, slave = os.openpty()
    process = subprocess.Popen([KRAIT, *map(str, train(base / "seen", config, "--threads", "2", "--steps", "2"))], stdout=subprocess.DEVNULL, stderr=slave)
    os.close(slave)
    seen = b""
    while True:
        try:
            seen += os.read(master, 4096)
        except OSError:  # the other end is closed
            break
    check(process.wait() == 0 and b"50 %" in seen and b" left" in seen and seen.rstrip().endswith(b"\x1b[K"), f"a progress bar: {seen}")

    # Ctrl-C says how to resume
    process = subprocess.Popen([KRAIT, *map(str, train(base / "stopped", config, "--threads", "1"))], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    check(process.returncode == 130 and said.endswith(b"is left; --resume continues from the last checkpoint\n"), f"stopped: {process.returncode}, {said}")
    check(krait(*train(base / "stopped", config, "--resume", "--steps", "2")).returncode == 0, "and it resumes")

    # ... unless there is nothing to resume: a first step of a second
    early = base / "early"
    process = subprocess.Popen([KRAIT, *map(str, train(early, config, "model.param.dense_channel=64", "model.param.num_tsblock=8", "--threads", "1"))], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while process.poll() is None and not (early / "log.jsonl").exists():
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    check(process.returncode == 130 and said.endswith(b"is left; there was no checkpoint yet: start again\n"), f"stopped early: {process.returncode}, {said}")
    check(krait(*train(early, config, "--steps", "1")).returncode == 0, "and it starts again in the same folder")

    # killed after some lines and resumed with another number of threads: the same bits
    process = subprocess.Popen([KRAIT, *map(str, train(base / "killed", config, "--threads", "1"))], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    for _ in range(3):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    check(krait(*train(base / "killed", config)).returncode == 2, "a folder with a checkpoint is not overwritten")
    done = krait(*train(base / "killed", config, "--resume"))
    check(done.returncode == 0, f"resumed: {done}")
    for name in ("checkpoint.safetensors", "best.safetensors"):
        check((base / "killed" / name).read_bytes() == (base / "whole" / name).read_bytes(), f"a killed and resumed run ends with the same {name}")

    # the folder's configuration is complete: it resumes, starts another run, and is upstream's beside best.th
    check(krait(*train(base / "told", config, "--threads", "2", "--steps", "2")).returncode == 0, "two steps")
    done = krait("train", "--resume", "--output", base / "told", "--threads", "2")
    check(done.returncode == 0 and (base / "told" / "checkpoint.safetensors").read_bytes() == (base / "whole" / "checkpoint.safetensors").read_bytes(), f"resumed by its own configuration: {done}")
    done = krait("train", base / "whole", "--output", base / "second", "--steps", "1")
    check(done.returncode == 0 and (base / "second" / ".hydra" / "config.yaml").read_bytes() == (base / "whole" / ".hydra" / "config.yaml").read_bytes(), f"the same configuration again: {done}")
    done = krait("train", base / "whole", "-w", base / "whole" / "best.safetensors", "model=primeknet_gru_masking", "--output", base / "third", "--steps", "1")
    told = json.loads((base / "third" / ".hydra" / "config.yaml").read_text())["model"]
    check(done.returncode == 0 and told["model_lib"] == "primeknet_mamba" and told["param"]["dense_channel"] == 8, f"the model of the weights: {told}")
    done = krait("train", "--resume", "-o", base / "told", "--threads", "2", "lr=1e-3")
    check(done.returncode == 0 and done.stdout == b"" and b"nothing left to do: " in done.stderr, f"settings override the folder's configuration, and nothing is left to do: {done}")
    check_error(1, "none has no checkpoint", "train", "--resume", "-o", base / "none")
    sound = DEMO / "noisy.flac"
    check_error(2, "a training run's checkpoint; ", "enhance", sound, "-w", base / "whole" / "checkpoint.safetensors", "-o", base / "no.wav")
    check_error(1, "checkpoint.safetensors: a training run's checkpoint; ", *train(base / "none", config, "--weights", base / "whole" / "checkpoint.safetensors"))
    best = base / "best.th"
    check(krait("convert", base / "whole" / "best.safetensors", best).returncode == 0, "best.th")
    done = krait("convert", best, base / "back.safetensors", "--config", base / "whole" / ".hydra" / "config.yaml")
    check(done.returncode == 0 and (base / "back.safetensors").read_bytes() == (base / "whole" / "best.safetensors").read_bytes(), f"best.th and .hydra/config.yaml are best.safetensors: {done}")

    # a NaN weight: step, tensor and the existing checkpoint are named
    def spoil(path, name, to):
        raw = bytearray(path.read_bytes())
        length = struct.unpack("<Q", raw[:8])[0]
        begin = json.loads(raw[8:8 + length])[name]["data_offsets"][0] + 8 + length
        raw[begin:begin + 4] = struct.pack("<f", float("nan"))
        to.write_bytes(raw)

    spoil(base / "whole" / "best.safetensors", "phase_decoder.phase_conv_r.bias", base / "nan.safetensors")
    done = krait(*train(base / "nan", config, "--weights", base / "nan.safetensors"))
    text = done.stderr.decode()
    check(done.returncode == 1 and "step 1" in text and "is not finite" in text and "phase_decoder.phase_conv_r.bias" in text, f"a NaN stops the run: {text}")
    check("checkpoint" not in text, f"there is no checkpoint yet: {text}")
    steps = lines[-1]["step"]
    (base / "late").mkdir()
    spoil(base / "whole" / "checkpoint.safetensors", "model.phase_decoder.phase_conv_r.bias", base / "late" / "checkpoint.safetensors")
    done = krait(*train(base / "late", config, "--resume", "--steps", steps + 1))
    text = done.stderr.decode()
    check(done.returncode == 1 and f"step {steps + 1}: " in text and f"late/checkpoint.safetensors, has step {steps}" in text, f"the last checkpoint is named: {text}")

    # a disk full while writing a checkpoint: one line, the previous checkpoint is intact and can be resumed
    full = base / "full"
    check(krait(*train(full, config, "--steps", "2")).returncode == 0, "two steps")
    before = (full / "checkpoint.safetensors").read_bytes()
    for limit in (8192, len(before) // 2, len(before) - 1):
        done = krait(*train(full, config, "--resume", "--steps", "3"), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        check(done.returncode == 1 and done.stderr.decode().splitlines()[-1].endswith("checkpoint.safetensors, has step 2"), f"a full disk: {done}")
        check((full / "checkpoint.safetensors").read_bytes() == before and not [p for p in full.iterdir() if p.is_file() and p.suffix not in (".safetensors", ".jsonl")], f"{limit} bytes of a checkpoint leave the one before: {list(full.iterdir())}")
    check(krait(*train(full, config, "--resume", "--steps", "3")).returncode == 0, "and it resumes")

    done = krait("train", config, "--steps", "1", "dset.speech_train=" + str(base / "nothing"), "-o", base / "x")
    check(done.returncode == 2 and done.stderr.count(b"\n") == 1, f"no recordings: {done}")
    check_error(2, "is not a setting", "train", config, "frobnicate")
    check_error(2, "--device is 'gpu'", "train", "--device", "gpu")
    check_error(2, "names no model", "train", f"dset.speech_train={DEMO / 'clean.flac'}", "-o", base / "y")

    # recomputation: less memory, the same bits
    for recompute in "01":
        done = krait(*train(base / f"recompute{recompute}", config, "--threads", "2", "--steps", "2", f"recompute={recompute}", "--device", "cpu"))
        check(done.returncode == 0, f"recompute={recompute}: {done}")
    check((base / "recompute0" / "best.safetensors").read_bytes() == (base / "recompute1" / "best.safetensors").read_bytes(), "recomputation changes no bit")
    sizes = [json.loads(krait("bench", "train", config, f"recompute={k}", "--runs", "1", "--json", "--threads", "2", "--device", "cpu").stdout)["step_bytes"] for k in "01"]
    check(sizes[1] < 0.8 * sizes[0], f"recomputation takes less memory: {sizes}")

    # one item at a time: less memory, the same losses
    done = krait(*train(base / "parts", config, "--threads", "2", "--steps", "2", "micro_batch=1", "--device", "cpu"))
    check(done.returncode == 0, f"micro_batch=1: {done}")
    ends = [json.loads((base / run / "log.jsonl").read_text().splitlines()[-1]) for run in ("recompute0", "parts")]
    # the discriminator's first update depends on each gradient's sign: gradients of only rounding error change its
    # terms
    check(all(abs(ends[1][k] - v) <= (1e-3 if k in ("metric", "disc_r") else 1e-4) * abs(v) + 1e-7 for k, v in ends[0].items() if k not in ("audio_s_per_s", "best")), f"micro_batch=1 gives the same losses: {ends}")
    size = json.loads(krait("bench", "train", config, "micro_batch=1", "--runs", "1", "--json", "--threads", "2", "--device", "cpu").stdout)["step_bytes"]
    check(size < 0.7 * sizes[0], f"micro_batch=1 takes less memory: {size} of {sizes[0]}")
    check_error(2, "does not divide", *train(base / "odd", config, "batch_size=3", "micro_batch=2", "--device", "cpu"))

    # the discriminator trains alone at first: the model is unchanged until then, and an interrupted run resumes bitwise
    def first(name, n, steps, *more):
        done = krait(*train(base / name, config, "--threads", "2", "--steps", str(steps), f"discriminator_first={n}", "--device", "cpu", *more))
        check(done.returncode == 0, f"discriminator_first={n}: {done}")
        return (base / name / "best.safetensors").read_bytes()

    before, later = first("first2", 2, 2), first("first3", 2, 3)
    check(before == first("first1", 1, 1) and before != later and first("first2", 2, 3, "--resume") == later, "the model changes after the discriminator's steps")
    check((base / "first2" / "checkpoint.safetensors").read_bytes() == (base / "first3" / "checkpoint.safetensors").read_bytes(), "resumed among the discriminator's steps: the same bits")
    rows = [json.loads(line) for line in (base / "first3" / "log.jsonl").read_text().splitlines()]
    check([row["total"] == 0 for row in rows] == [True, True, False] and rows[1]["disc_r"] < rows[0]["disc_r"], f"terms of the discriminator's steps: {rows}")
    check_error(2, "not float32, tf32, float16 or bfloat16", "bench", "train", config, "precision=half")

    # the discriminator first, as upstream: other updates than by default; either order with the same bits if killed, on
    # any number of threads, and one item at a time equal up to rounding
    def in_order(name, first, steps, *more):
        done = krait(*train(base / name, config, "--steps", str(steps), f"update_first={first}", "--device", "cpu", *more))
        check(done.returncode == 0, f"update_first={first}: {done}")
        return (base / name / "checkpoint.safetensors").read_bytes()

    ended = {}
    for order in ("generator", "discriminator"):
        ended[order] = in_order(f"{order}1", order, 3, "--threads", "2")
        in_order(f"{order}2", order, 2, "--threads", "1")
        check(in_order(f"{order}2", order, 3, "--threads", "2", "--resume") == ended[order], f"{order} first, resumed: the same bits")
        in_order(f"{order}3", order, 3, "--threads", "2", "micro_batch=1")
        ends = [json.loads((base / f"{order}{k}" / "log.jsonl").read_text().splitlines()[-1]) for k in (1, 3)]
        check(all(abs(ends[1][k] - v) <= 1e-3 * abs(v) + 1e-7 for k, v in ends[0].items() if k not in ("audio_s_per_s", "best")), f"micro_batch=1, {order} first, gives the same losses: {ends}")
    check(ended["generator"] != ended["discriminator"], "the orders differ")
    check_error(2, "update_first is 'both', not generator or discriminator", *train(base / "both", config, "update_first=both", "--device", "cpu"))

    # the cost of a step: needs no recordings, lists all calls
    done = krait("bench", "train", config, "--runs", "2", "--kernels", "--json", "--threads", "2", "--device", "cpu")
    check(done.returncode == 0, f"bench train: {done}")
    times = json.loads(done.stdout)
    check(times["batch"] == 2 and times["frames"] == (SEGMENT - 4000) // 100 + 1 and 0 < times["generator_ms"] and 0 < times["generator_bytes"] <= times["step_bytes"], f"bench train: {times}")
    check(0 < sum(call["ms"] for call in times["calls"]) and {"selective_scan_bwd", "spectral_norm"} <= {call["op"] for call in times["calls"]}, "the calls of a step")
    check_error(2, "is not a setting", "bench", "train", config, "frobnicate")
finish()
