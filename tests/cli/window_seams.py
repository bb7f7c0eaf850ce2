"""A long recording gives the same result as its pieces, away from their ends, and joins of windows are inaudible: at a
join the result is as close to, and as loud as, that of a run with joins elsewhere, as it is between joins."""
import math
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "faults"))
import sounds  # noqa: E402
from run import check, finish, krait  # noqa: E402

WINDOW, OVERLAP, BLOCK = 96000, 8000, 800  # src/tasks/enhance/job.c; 50 ms
ONE = sounds.read(pathlib.Path(__file__).resolve().parent.parent.parent / "demo" / "noisy.flac")[3]
LONG = ONE * 4
BEGIN, END = len(ONE) + 3333, 3 * len(ONE) + 1111


def joins(n):
    """Centres of the window overlaps chosen by krait."""
    k = 1 + math.ceil((n - WINDOW) / (WINDOW - OVERLAP))
    window = (n + (k - 1) * OVERLAP + k - 1) // k
    return [i * (window - OVERLAP) + OVERLAP // 2 for i in range(1, k)]


def db(over, under):
    return 10 * math.log10(sum(over) / max(sum(under), 1e-20))


with tempfile.TemporaryDirectory() as folder:
    results = []
    for name, samples in (("whole", LONG), ("piece", LONG[BEGIN:END])):
        sounds.write(pathlib.Path(folder) / f"{name}.wav", "wavf", samples)
        out = pathlib.Path(folder) / f"{name}.out.wav"
        check(krait("enhance", pathlib.Path(folder) / f"{name}.wav", "-o", out, "--device", "cpu").returncode == 0, name)
        results.append(sounds.read(out)[3])
whole, piece = results[0][BEGIN:END], results[1]
check(len(results[0]) == len(LONG) and len(whole) == len(piece), "lengths")
power = lambda x: [sum(s * s for s in x[i:i + BLOCK]) for i in range(0, len(x) - BLOCK, BLOCK)]  # noqa: E731
loud, apart, loud_whole = power(piece), power([a - b for a, b in zip(whole, piece)]), power(whole)
middle = range(24000 // BLOCK, len(loud) - 24000 // BLOCK)
usual = db([loud[i] for i in middle], [apart[i] for i in middle])
print(f"whole and piece differ by {-usual:.1f} dB of the sound, away from the piece's ends")
check(usual > 20, f"whole and piece are {usual:.1f} dB alike")
for place in [j - BEGIN for j in joins(len(LONG)) if BEGIN + 8000 < j < END - 8000] + joins(len(piece)):
    near = [i for i in range(len(loud)) if abs(i * BLOCK - place) < 6000]
    alike, level = db([loud[i] for i in near], [apart[i] for i in near]), db([loud_whole[i] for i in near], [loud[i] for i in near])
    print(f"join at {place / 16000:6.2f} s: {-alike:.1f} dB, level {level:+.2f} dB")
    check(alike > usual - 6 and abs(level) < 0.5, f"the join at {place / 16000:.2f} s can be heard: {alike:.1f} dB alike, level {level:+.2f} dB")
finish()
