"""krait restore of long films: a still film has no seams between batches, and memory does not grow with the film. Usage: python3
tests/cli/restore_long.py KRAIT [FRAMES]: prints the memory after a tenth of so many frames and after all (docs/RESTORE.md: 10000)."""
import cmath
import math
import os
import shutil
import subprocess
import sys

from restoring import SIZE, frames_of, here, make, models, restore, tiny_seedvr
from run import FEW, KRAIT, check, finish

W, H = 48, 32


def still_film(n):
    """Random blocks, the same in every frame."""
    picture, film = here / "still.png", here / "still.mkv"
    make("-f", "lavfi", "-i", f"mandelbrot=size={W}x{H}:start_scale=0.3", "-frames:v", 1, picture)
    make("-loop", 1, "-i", picture, "-frames:v", n, "-c:v", "ffv1", film)
    return film


def level(frame):
    return sum(frame) / len(frame)


TWIDDLES = [[cmath.exp(-2j * cmath.pi * k * x / W) for x in range(W)] for k in range(1, W // 2)]


def spectrum(frame):
    """Mean magnitudes of every fourth row's green."""
    rows = [frame[3 * W * y + 1:3 * W * (y + 1):3] for y in range(0, H, 4)]
    return [sum(abs(sum(v * t for v, t in zip(row, twiddle))) for row in rows) / len(rows) for twiddle in TWIDDLES]


def steps(frames):
    """From each frame to the next: of the level, and of the spectrum."""
    levels, spectra = [level(f) for f in frames], [spectrum(f) for f in frames]
    return [(abs(levels[i + 1] - levels[i]), sum((a - b) ** 2 for a, b in zip(spectra[i], spectra[i + 1])) ** 0.5) for i in range(len(frames) - 1)]


def restored(film, name, *args):
    (here / name).mkdir()
    restore(film, "-o", here / name / "%03d.png", *SIZE, *args)
    raw = subprocess.run(["ffmpeg", "-nostdin", "-v", "error", "-i", here / name / "%03d.png", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], capture_output=True, check=True).stdout
    return [raw[i:i + 3 * W * H] for i in range(0, len(raw), 3 * W * H)]


def seams():
    n, batch, overlap = 100, 21, 9
    step = batch - overlap
    film = still_film(n)
    frames, alone = restored(film, "joined", "--frames-per-batch", batch, "--overlap", overlap), restored(still_film(batch), "alone", "--frames-per-batch", batch)
    check(len(frames) == n, f"{len(frames)} frames")
    weights = [0.5 + 0.5 * math.cos(math.pi * min(max(3 * k / (overlap - 1) - 1, 0), 1)) for k in range(overlap)] + [0] * step  # of the batch before
    for i in range(batch, n - batch):  # every batch of a still film is the same
        k = i % step
        before, own = alone[k + step] if k < overlap else alone[k], alone[k]
        apart = [abs(g - weights[k] * a - (1 - weights[k]) * b) for g, a, b in zip(frames[i], before, own) if 0 < a < 255 and 0 < b < 255]  # others were clipped after it
        check(len(apart) > W * H and max(apart) <= 1.01, f"frame {i} is not frames {k + step} and {k} of a batch, blended: {max(apart)} apart")
    moved = steps(frames)
    borders = {at + k for at in range(step, n - batch, step) for k in range(overlap - 1) if weights[k] != weights[k + 1]}
    for what, name in ((0, "level"), (1, "spectrum")):
        across, within = [max(m[what] for i, m in enumerate(moved) if (i in borders) == is_border) for is_border in (True, False)]
        print(f"still film, {name}: at most {across:.3g} across a border, {within:.3g} within a batch")
        check(0 < across < within, f"a seam: the {name} moves by {across} across a border, by {within} within a batch")


def high_water(n):
    """Kilobytes of the process that restores a film of n frames."""
    film, out = here / f"{n}.mp4", here / f"{n}_out.mp4"
    make("-f", "lavfi", "-i", f"testsrc=size=16x16:rate=24:duration={n / 24}", "-c:v", "libx264", "-preset", "ultrafast", film)
    run = subprocess.Popen([KRAIT, "restore", str(film), "-o", str(out), "-w", str(models), "--res", "16x16", "--frames-per-batch", "21", "--overlap", "1", "-q", "--threads", "1", "--device", "cpu"])
    _, status, used = os.wait4(run.pid, 0)
    run.returncode = os.waitstatus_to_exitcode(status)
    check(run.returncode == 0 and len(frames_of(out)) == n * 3 * 16 * 16, f"{n} frames: {run.returncode}")
    return used.ru_maxrss


def lengths(n):
    few, all_ = high_water(n // 10), high_water(n)  # under a sanitizer, which keeps what is freed, it grows
    print(f"memory of {n // 10} frames: {few} KiB, of {n}: {all_} KiB")
    check(FEW or all_ < 1.1 * few + 2048, f"memory grows with the film: {few} KiB, {all_} KiB")


if shutil.which("ffmpeg") and shutil.which("ffprobe"):
    tiny_seedvr.main(models)
    seams()
    lengths(int(sys.argv[2]) if len(sys.argv) > 2 else 600)
finish()
