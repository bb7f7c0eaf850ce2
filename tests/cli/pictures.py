"""What the pictures show, read back as pixels: enhance --plot, evaluate --plot, train --plot, describe --frames."""
import csv
import json
import math
import pathlib
import random
import shutil
import struct
import sys
import tempfile
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "faults"), str(ROOT / "demo")]
import sounds  # noqa: E402
import tiny_film  # noqa: E402
import tiny_language_model as tiny  # noqa: E402
from run import check, finish, krait  # noqa: E402

DEMO = ROOT / "demo"
RUN = ["-w", ROOT / "tests/golden/primeknet/tiny-mamba.weights.safetensors", "--device", "cpu", "--threads", "1"]
BLACK, WHITE, GREY, BLUE, ORANGE = (0, 0, 0), (255, 255, 255), (140, 140, 140), (31, 120, 181), (242, 140, 26)
folder = tempfile.TemporaryDirectory(prefix="krait-pictures-")
here = pathlib.Path(folder.name)


class Picture:
    """The pixels of a PNG whose rows are filtered by the one above."""

    def __init__(self, path):
        data, at, parts = path.read_bytes(), 8, {}
        while at < len(data):
            n, name = struct.unpack(">I4s", data[at:at + 8])
            parts[name], at = data[at + 8:at + 8 + n], at + 12 + n
        self.width, self.height = struct.unpack(">II", parts[b"IHDR"][:8])
        raw, size, row = zlib.decompress(parts[b"IDAT"]), 1 + 3 * self.width, bytes(3 * self.width)
        self.rows = []
        for y in range(self.height):
            row = bytes((a + b) & 255 for a, b in zip(raw[y * size + 1:(y + 1) * size], row))
            self.rows.append(row)

    def at(self, x, y):
        return tuple(self.rows[y][3 * x:3 * x + 3])

    def places(self, color, left, top, right, bottom, off=2):
        """Where this colour is, in this part."""
        return [(x, y) for y in range(top, bottom) for x in range(left, right) if all(abs(a - b) <= off for a, b in zip(self.at(x, y), color))]

    def ink(self, left, top, right, bottom):
        return (right - left) * (bottom - top) - len(self.places(WHITE, left, top, right, bottom))


def of(path, *args, **kw):
    done = krait(*args, **kw)
    check(done.returncode == 0, f"{args}: {done}")
    return Picture(path)


def spectrograms():
    """A panel before, after, and with --reference the clean one, with scores in the title; 48 kHz is drawn whole."""
    left, top, panel, gap, columns = 74, 92, 280, 62, 1000
    noise = sounds.noise(24000)
    sounds.write(here / "tone.wav", "wav", [v / 300 + 0.3 * math.sin(2 * math.pi * 20000 * i / 48000) for i, v in enumerate(noise)], 48000)
    two = of(here / "two.png", "enhance", *RUN, here / "tone.wav", "-o", here / "a.wav", "--plot", here / "two.png")
    three = of(here / "three.png", "enhance", *RUN, here / "tone.wav", "-o", here / "b.wav", "--plot", here / "three.png", "--reference", here / "tone.wav")
    check(three.height - two.height == panel + gap and three.width == two.width, f"a panel more: {two.height}, {three.height}")
    brightness = [sum(sum(two.at(x, y)) for x in range(left, left + columns, 50)) for y in range(top, top + panel)]
    check(abs(brightness.index(max(brightness)) - panel * (1 - 20 / 24)) < 5, f"20 kHz of 24: row {brightness.index(max(brightness))} of {panel}")
    same = [three.at(x, y) == three.at(x, y + 2 * (panel + gap)) for x in range(left, left + columns, 20) for y in range(top, top + panel, 5)]
    check(all(same), "the third panel is the reference, here the input itself")
    title, scores = (left, 12, left + columns, 34), (left, 40, left + columns, 58)
    check(two.ink(*title) > 100 and three.ink(*title) > 100 and two.ink(*scores) == 0 and three.ink(*scores) > 300, f"name and scores: {[p.ink(*scores) for p in (two, three)]}")


def scores():
    """A line per recording with its name, from before to after, sorted by the first measure's result; the worse ones red."""
    left, top, panel, gap, line, n = 230, 84, 420, 46, 20, 4
    for side in ("clean", "noisy"):
        (here / side).mkdir()
    rng, voice = random.Random(5), [0.4 * max(0, math.sin(i / 1000)) * sum(math.sin(2 * math.pi * 150 * k * i / 16000) / k for k in range(1, 9)) / 3 for i in range(16000)]
    for i in range(n):
        sounds.write(here / "clean" / f"{i}.wav", "wav", voice, 16000)
        sounds.write(here / "noisy" / f"{i}.wav", "wav", [v + rng.gauss(0, 0.003 * 4**i) for v in voice], 16000)
    drawn = of(here / "scores.png", "evaluate", here / "clean", here / "noisy", *RUN, "-j", "1", "--plot", here / "scores.png", "--csv", here / "scores.csv")
    rows = list(csv.DictReader(open(here / "scores.csv")))
    for m, name in enumerate(("pesq", "si_sdr_db")):
        x0 = left + m * (panel + gap)
        order = sorted(rows, key=lambda row: -float(row["enhanced_pesq"]))
        middles = {}
        for color, side in ((GREY, "noisy"), (BLUE, "enhanced")):
            for i, row in enumerate(order):
                found = [x for x, _ in drawn.places(color, x0 - 3, top + line * i + 7, x0 + panel + 4, top + line * i + 14)]
                middles[i, side] = sum(found) / len(found) if found else None
        known = [(middles[i, side], float(row[f"{side}_{name}"])) for i, row in enumerate(order) for side in ("noisy", "enhanced") if middles[i, side] is not None]
        check(len(known) >= 2 * n - 2, f"{name}: dots: {middles}")
        (xa, a), (xb, b) = min(known, key=lambda k: k[1]), max(known, key=lambda k: k[1])
        check(all(abs(xa + (value - a) / (b - a) * (xb - xa) - x) < 4 for x, value in known), f"{name}: a dot is where its score is, in the order of PESQ: {known}")
        for i, row in enumerate(order):
            is_worse = float(row[f"enhanced_{name}"]) < float(row[f"noisy_{name}"])
            red = drawn.places((230, 89, 76), x0, top + line * i + 8, x0 + panel, top + line * i + 12)
            check(bool(red) == is_worse or abs(float(row[f"enhanced_{name}"]) - float(row[f"noisy_{name}"])) < 0.3, f"{name}, {row['name']}: red: {len(red)}, worse: {is_worse}")
    check(all(drawn.ink(150, top + line * i, left - 8, top + line * (i + 1)) > 5 for i in range(n)), "each line has a name")


CONFIG = """
segment: 8000
stride: 40000
shift: 4000
batch_size: 1
lr: 2e-3
epochs: 9
loss: {metric: 0}
model:
  model_lib: primeknet_gru
  param: {fft_len: 400, dense_channel: 4, dense_depth: 1, num_tsblock: 1, time_block_num: 1, freq_block_num: 1, freq_block_kernel: [3, 7], sigmoid_beta: 2.0}
"""


def losses():
    """Of a log of 200 lines: round ticks, a pale curve and a smooth one, names beside their colours, the learning rate."""
    left, right, top, width, loss_bottom, bottom, rate_height = 78, 150, 64, 1100, 554, 704, 110
    (here / "run.yaml").write_text(CONFIG)
    for side in ("speech", "with_noise"):
        (here / side).mkdir()
        shutil.copy(DEMO / ("clean.flac" if side == "speech" else "noisy.flac"), here / side / "talk.flac")
    call = ["train", here / "run.yaml", f"dset.speech_train={here / 'speech'}", f"dset.noisy_train={here / 'with_noise'}", "-o", here / "run", "--threads", "1"]
    check(krait(*call, "--steps", "1").returncode == 0, "a step")
    log = here / "run" / "log.jsonl"
    lines = [{"step": i / 100, "total": 1.2 if i % 2 else 4.8, "magnitude": 2.0, "lr": 2e-3 if i < 100 else 1e-3, **({"valid": 3.5} if i % 50 == 49 else {})} for i in range(200)]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    drawn = of(here / "losses.png", *call, "--resume", "--steps", "2", "--plot", here / "losses.png")
    last = json.loads(log.read_text().splitlines()[-1])
    check(last["step"] == 2 and last["lr"] == 2e-3, f"the log goes on: {last}")
    least = min(last[name] for name in ("total", "valid", "magnitude", "complex", "consistency"))
    low = next(power * factor for power in (1, 0.1, 0.01, 1e-3, 1e-4) for factor in (5, 2, 1) if power * factor <= least)
    y_of = lambda loss: loss_bottom - math.log(loss / low) / math.log(5 / low) * (loss_bottom - top)
    beside = lambda y: drawn.ink(30, round(y) - 6, left - 8, round(y) + 6)
    check(beside(y_of(2)) > 5 and beside(y_of(1)) > 5 and beside((y_of(2) + y_of(3)) / 2) < 3, "ticks at 1 and 2, none between 2 and 3")
    spread = lambda color, off: [y for _, y in drawn.places(color, left + 100, top + 2, left + 180, loss_bottom - 2, off)]
    pale, smooth = spread((191, 191, 191), 1), spread(BLACK, 20)
    check(max(pale) - min(pale) > 0.8 * (y_of(1.2) - y_of(4.8)), f"the curve as it is logged, pale: {min(pale)} to {max(pale)}")
    check(smooth and max(smooth) - min(smooth) < 0.5 * (y_of(1.2) - y_of(4.8)), f"and smoothed: {min(smooth)} to {max(smooth)}")
    named = [drawn.at(width - right + 26, top + 10 + 21 * i) for i in range(3)]
    over_white = tuple(round(255 - 0.75 * (255 - value)) for value in BLUE) # a line of 1.5 pixels covers two rows by three quarters
    check(named == [BLACK, (214, 38, 41), over_white], f"a line in the colour of each curve: {named}")
    check(all(drawn.ink(width - right + 44, top + 2 + 21 * i, width - 10, top + 20 + 21 * i) > 20 for i in range(3)), "with its name")
    rates = {y for _, y in drawn.places(BLUE, left + 10, bottom - rate_height, width - right - 10, bottom)}
    check(all(any(abs(y - (bottom - rate / (1.08 * 2e-3) * rate_height)) < 2 for y in rates) for rate in (2e-3, 1e-3)), f"two learning rates: {sorted(rates)}")
    check(drawn.ink(left, 12, width, 34) > 50 and drawn.ink(left, 38, width, 58) > 200, "titles")


def sheet():
    """A frame for each that was read, with numbers below it; those that were chosen have a border."""
    tiny.make(here / "model", "videogpt")
    tiny_film.make(here / "film.avi", n_frames=40, width=64, height=48)
    done = krait("describe", here / "film.avi", "-w", here / "model", "-n", "1", "--threads", "1", "--frames", here / "sheet.png", "--json")
    check(done.returncode == 0, f"describe: {done}")
    if done.returncode:
        return
    film, drawn = json.loads(done.stdout)["film"], Picture(here / "sheet.png")
    gap, caption = 12, 22
    size = (drawn.width - gap) // 4 - gap
    corners = [(gap + i % 4 * (size + gap), gap + i // 4 * (size + gap + caption)) for i in range(len(film["at"]))]
    chosen = [film["at"][i] for i, (x, y) in enumerate(corners) if drawn.at(x - 2, y + size // 2) == ORANGE]
    check(chosen == sorted(film["chosen"]), f"borders of {chosen}, not {film['chosen']}")
    check(all(drawn.ink(x, y + size + 7, x + size, y + size + caption) > 100 for x, y in corners), "numbers below each")
    below = corners[-1][1] + size + gap + caption
    check(drawn.ink(gap, below + 6, drawn.width - 4, drawn.height) > 1500, "what they mean")


spectrograms()
scores()
losses()
if shutil.which("ffmpeg"):
    sheet()
else:
    print("note: no ffmpeg here; the contact sheet was not tried")
finish()
