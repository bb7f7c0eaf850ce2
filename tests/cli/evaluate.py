"""krait evaluate: the demo's golden values for every kind of input, pairs by name, mixing by lists, tables, JSON and
CSV, and one line for every bad input."""
import csv
import json
import math
import os
import pathlib
import random
import shutil
import struct
import subprocess
import tempfile
import wave

from run import KRAIT, check, check_error, finish, krait

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = [ROOT / "demo" / "clean.flac", ROOT / "demo" / "noisy.flac"]
WEIGHTS = ROOT / "tests/golden/primeknet/tiny-mamba.weights.safetensors"
NAMES = ["pesq", "csig", "cbak", "covl", "segmental_snr_db", "si_sdr_db", "stoi", "llr", "wss"]
random.seed(3)


def write_wav(path, samples, rate=16000, channels=1):
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, 2, rate, 0, "NONE", ""))
        file.writeframes(struct.pack(f"<{len(samples)}h", *(round(32767 * max(-1, min(1, s))) for s in samples)))
    return path


def write_float_wav(path, samples, rate, channels):
    data = struct.pack(f"<{len(samples)}f", *samples)
    head = struct.pack("<HHIIHH", 3, channels, rate, rate * 4 * channels, 4 * channels, 32)
    path.write_bytes(b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " + struct.pack("<I", 16) + head + b"data" + struct.pack("<I", len(data)) + data)
    return path


def voice(n, pitch):
    """Syllables of a buzz with moving formants."""
    return [0.5 * max(0, math.sin(2 * math.pi * i / 6400)) * sum(math.sin(2 * math.pi * pitch * k * i / 16000) / k * (1 + math.sin(i / 9000 + k)) for k in range(1, 12)) / 4 for i in range(n)]


def results(*args):
    done = krait("evaluate", *args, "--json")
    check(done.returncode == 0 and done.stderr == b"", f"{args}: {done.returncode} {done.stderr}")
    return json.loads(done.stdout)["results"]


with open(ROOT / "tests/golden/metrics/demo.tsv") as file:
    golden = next(csv.DictReader(file, delimiter="\t"))
golden["segmental_snr_db"] = golden["segsnr_db"]
with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    # The demo: JSON, table, CSV.
    found = results(*DEMO)[0]["other"]
    for key in NAMES:
        check(abs(found[key] - float(golden[key])) < (0.02 if key == "wss" else 0.002), f"demo's {key} is {found[key]}, not {golden[key]}")
    table = krait("evaluate", *DEMO, "--csv", folder / "demo.csv", "--plot", folder / "demo.png")
    check((folder / "demo.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n", "--plot draws a picture")
    check_error(2, "exists; -f replaces it", "evaluate", *DEMO, "--plot", folder / "demo.png")
    check_error(2, "give a name that ends in .png", "evaluate", *DEMO, "--plot", folder / "demo.svg")
    check(table.returncode == 0 and b"PESQ" in table.stdout and f"{found['pesq']:.3f}".encode() in table.stdout, f"table: {table}")
    rows = list(csv.DictReader(open(folder / "demo.csv")))
    check(len(rows) == 1 and all(abs(float(rows[0]["other_" + k]) - found[k]) < 1e-5 for k in NAMES) and rows[0]["name"] == "noisy", f"CSV: {rows}")

    # Folders pair by name, whatever the extension; threads change nothing.
    for part in ("clean/a", "other/a", "noise"):
        (folder / part).mkdir(parents=True)
    for i in range(3):
        speech = voice(30000 + 4000 * i, 110 + 30 * i)
        write_wav(folder / "clean/a" / f"s{i}.wav", speech)
        write_wav(folder / "other/a" / f"s{i}.wav", [v + random.gauss(0, 0.02 * (i + 1)) for v in speech + [0] * 500])
        write_wav(folder / "noise" / f"n{i}.wav", [random.gauss(0, 0.1) for _ in range(12000)])
    one, four = results(folder / "clean", folder / "other", "-j", 1), results(folder / "clean", folder / "other", "-j", 4)
    check(one == four and one[0]["recordings"] == 3, f"folders: {one} {four}")
    each = [results(folder / "clean/a" / f"s{i}.wav", folder / "other/a" / f"s{i}.wav")[0]["other"] for i in range(3)]
    for key in NAMES:
        check(abs(sum(e[key] for e in each) / 3 - one[0]["other"][key]) < 1e-6, f"the mean of {key}")
    check(each[0]["si_sdr_db"] > each[1]["si_sdr_db"] > each[2]["si_sdr_db"], "more noise, less SI-SDR")

    # Channels: averaged; stereo against mono clean.
    left, right = voice(30000, 120), [0.0] * 30000
    noisy = [v + random.gauss(0, 0.05) for v in left]
    write_wav(folder / "mono.wav", left)
    write_wav(folder / "noisy.wav", noisy)
    write_wav(folder / "twice.wav", [v for pair in zip(noisy, noisy) for v in pair], channels=2)
    mono, twice = results(folder / "mono.wav", folder / "noisy.wav")[0]["other"], results(folder / "mono.wav", folder / "twice.wav")[0]["other"]
    check(all(abs(mono[k] - twice[k]) < 1e-6 for k in NAMES), f"two channels: {mono} {twice}")

    # A model: noisy scores as without it, enhanced scores as of the file written by enhance.
    both = results(folder / "mono.wav", folder / "noisy.wav", "-w", WEIGHTS)[0]
    check(all(abs(both["noisy"][k] - mono[k]) < 1e-6 for k in NAMES), "noisy with a model")
    check(krait("enhance", folder / "noisy.wav", "-w", WEIGHTS, "-o", folder / "out.wav").returncode == 0, "enhance")
    out = results(folder / "mono.wav", folder / "out.wav")[0]["other"]
    check(all(abs(both["enhanced"][k] - out[k]) < (0.3 if k == "wss" else 0.02) for k in NAMES), f"enhanced: {both['enhanced']} {out}")  # out.wav has 16 bits

    # Mixing: the requested ratio is the SI-SDR of speech and independent noise; a list; repeats.
    (folder / "noise_test.txt").write_text("n0.wav\nn1.wav\n# n2.wav\n")
    mixed = results(folder / "clean", "--noise", folder / "noise_test.txt", "--noise-dir", folder / "noise", "--snr=-5,10")
    check([r["snr_db"] for r in mixed] == [-5, 10] and all(r["recordings"] == 3 for r in mixed), f"mixed: {mixed}")
    check(all(abs(r["noisy"]["si_sdr_db"] - r["snr_db"]) < 0.5 for r in mixed), f"ratios: {mixed}")
    again = results(folder / "clean", "--noise", folder / "noise", "--snr", "10", "--repeats", 2, "-w", WEIGHTS, "--csv", folder / "mixed.csv")[0]
    check(again["recordings"] == 6 and "enhanced" in again, f"repeats: {again}")
    rows = list(csv.DictReader(open(folder / "mixed.csv")))
    check(len(rows) == 6 and rows[0]["name"] == "a/s0" and rows[0]["snr_db"] == "10" and "enhanced_pesq" in rows[0], f"CSV: {rows[:1]}")
    write_wav(folder / "room.wav", [1.0] + [0.0] * 2000 + [0.7] + [0.0] * 2000 + [0.5])
    rooms = results(folder / "clean", "--noise", folder / "noise", "--snr", "60", "--rir", folder / "room.wav", "--reverb", 1)[0]["noisy"]
    check(rooms["si_sdr_db"] < 10, f"rooms: {rooms}")

    # krait enhance --noise, --rir: the mixture has the requested ratio and room; the mixture is enhanced.
    for n_channels, rate in ((1, 16000), (2, 44100)):
        speech = write_float_wav(folder / "speech.wav", [v for v in voice(30000, 140) for _ in range(n_channels)], rate, n_channels)
        done = krait("enhance", speech, "--noise", folder / "noise/n1.wav", "--snr", 7, "--mixed", folder / "mixed.wav", "-o", folder / "from_clean.wav", "-w", WEIGHTS)
        check(done.returncode == 0 and done.stderr == b"", f"enhance --noise: {done}")
        got = results(speech, folder / "mixed.wav")[0]["other"]["si_sdr_db"]
        check(abs(got - 7) < (0.3 if rate == 16000 else 2), f"--snr 7 became {got}")  # above 8 kHz noise is not measured
        check(krait("enhance", folder / "mixed.wav", "-o", folder / "from_mixed.wav", "-w", WEIGHTS).returncode == 0, "enhance the mixture")
        check((folder / "from_clean.wav").read_bytes() == (folder / "from_mixed.wav").read_bytes(), "the mixture is enhanced")
        for n in ("mixed", "from_clean", "from_mixed"):
            os.remove(folder / f"{n}.wav")
    delay = 5000  # longer than a block
    write_wav(folder / "delay.wav", [0.0] * delay + [0.5] + [0.0] * 10)
    check(krait("enhance", folder / "mono.wav", "--rir", folder / "delay.wav", "--mixed", folder / "late.wav", "-o", folder / "late_enhanced.wav", "-w", WEIGHTS).returncode == 0, "--rir")
    with wave.open(str(folder / "mono.wav")) as x, wave.open(str(folder / "late.wav")) as y:
        dry, wet = (struct.unpack(f"<{f.getnframes()}h", f.readframes(f.getnframes())) for f in (x, y))
    check(len(dry) == len(wet) and all(abs(wet[i] - (dry[i - delay] if i >= delay else 0)) <= 2 for i in range(len(dry))), "a room that only delays")

    # krait bench data: krait train's configurations and settings; bad files by name.
    (folder / "clean/a" / "bad.wav").write_bytes(b"nothing")
    settings = [f"dset.speech_dir={folder / 'clean'}", f"dset.noise_dir={folder / 'noise'}", "segment=8000", "stride=4000", "shift=4000", "batch_size=2"]
    (folder / "plain.yaml").write_text(f"dset:\n  speech_dir: {folder / 'clean'}\n  noise_dir: {folder / 'noise'}\n")
    with subprocess.Popen([KRAIT, "bench", "data", folder / "plain.yaml", "--step", "0.001"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as hasty:  # both take their time
        bench = krait("bench", "data", *settings, "--json", "--step", 100000)
        said = hasty.communicate()[0]
    check(hasty.returncode == 1 and b"TOO FEW" in said, f"bench: {said}")
    told = json.loads(bench.stdout)
    check(bench.returncode == 0 and told["items"] == sum(-(-(30000 + 4000 * i - 8000) // 4000) + 1 for i in range(3)) and told["keeps_up"] and told["item_s"] == 0.25 and told["bad_files"] == 1, f"bench: {bench}")
    check(bench.stderr.count(b"\n") == 1 and b"bad.wav" in bench.stderr, f"bench: {bench.stderr}")
    os.remove(folder / "clean/a/bad.wav")
    check_error(2, "there is no 'batchsize'", "bench", "data", *settings, "batchsize=3")
    check_error(2, "dset.speech_train", "bench", "data")
    check_error(2, "takes no arguments", "bench", "primeknet", "data")

    # Unmeasurable input; failures do not stop the rest.
    write_wav(folder / "silence.wav", [0.0] * 30000)
    silent = results(folder / "mono.wav", folder / "silence.wav")[0]["other"]
    check(silent["pesq"] is None and silent["segmental_snr_db"] is not None, f"silence: {silent}")
    check(b" 1 lacks some measures" in krait("evaluate", folder / "mono.wav", folder / "silence.wav").stdout, "silence is reported")
    silent = results(folder / "silence.wav", folder / "mono.wav")[0]["other"]
    check(set(silent.values()) == {None}, f"a silent clean recording has no measure: {silent}")
    (folder / "other/a/s1.wav").write_bytes(b"nothing")
    some = krait("evaluate", folder / "clean", folder / "other", "--json")
    check(some.returncode == 1 and json.loads(some.stdout)["failed"] == 1 and json.loads(some.stdout)["results"][0]["recordings"] == 2 and some.stderr.count(b"\n") == 1, f"one bad: {some}")
    os.remove(folder / "other/a/s1.wav")
    check(b"1 of 3 recordings" in krait("evaluate", folder / "clean", folder / "other").stderr, "one without a partner is reported")
    check(b"1 of 3 recordings in " + bytes(folder / "clean") in krait("evaluate", folder / "other", folder / "clean").stderr, "also in the second folder")

    # One line for every mistake.
    clean, other = folder / "mono.wav", folder / "noisy.wav"
    shutil.rmtree(folder / "other/a")
    check_error(2, "there is no file or folder /nonexistent", "evaluate", clean, "/nonexistent")
    check_error(2, "two files or two folders", "evaluate", folder, clean)
    check_error(2, "no audio files", "evaluate", folder / "clean", folder / "other")
    check_error(2, "give CLEAN and OTHER", "evaluate", clean)
    check_error(2, "give only CLEAN", "evaluate", clean, other, "--noise", other)
    check_error(2, "need --noise", "evaluate", clean, other, "--snr", "5")
    check_error(2, "--snr is '5;6'", "evaluate", clean, "--noise", other, "--snr", "5;6")
    check_error(2, "--snr is '101'", "evaluate", clean, "--noise", other, "--snr", "101")
    check_error(2, "cannot open the noise /nonexistent", "evaluate", clean, "--noise", "/nonexistent")
    check_error(2, "--reverb needs --rir", "evaluate", clean, "--noise", other, "--reverb", "1")
    check_error(2, "--rir needs --reverb", "evaluate", clean, "--noise", other, "--rir", clean)
    check_error(2, "need -w or --enhance", "evaluate", clean, other, "--set", "causal=true")
    check_error(2, "is a folder", "evaluate", clean, other, "--csv", folder)
    check_error(2, "/nonexistent.safetensors", "evaluate", clean, other, "-w", "/nonexistent.safetensors")
    check_error(2, "cannot be combined with --noise", "enhance", clean, "--noise", other, "--reference", clean)
    check_error(2, "--mixed needs", "enhance", clean, "--mixed", folder / "m.wav")
    check_error(2, "--snr needs --noise", "enhance", clean, "--snr", "5")
    check_error(2, "which is read", "enhance", clean, "--noise", other, "--mixed", other, "-o", folder / "o.wav", "-f")
    check_error(2, "would be written twice", "enhance", clean, "--noise", other, "--mixed", folder / "o.wav", "-o", folder / "o.wav")
    check_error(1, "/nonexistent.wav", "enhance", clean, "--noise", "/nonexistent.wav", "-o", folder / "o.wav", "-w", WEIGHTS)
    check_error(1, "is silent", "enhance", clean, "--noise", folder / "silence.wav", "-o", folder / "o.wav", "-w", WEIGHTS)
    check(not (folder / "o.wav").exists() and not (folder / "m.wav").exists(), "no files are left")
    check_error(1, "channels", "evaluate", folder / "twice.wav", clean)
    missing = krait("evaluate", clean, other, "--csv", folder / "no/such/place.csv")
    check(missing.returncode == 2 and missing.stderr.count(b"\n") == 1 and b"place.csv" in missing.stderr, f"CSV cannot be written: {missing}")
finish()
