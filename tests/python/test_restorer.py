"""krait.Restorer: numpy and torch frames, streams of them, options, errors; with the whole libkrait, in a process of its own, which
tools/test-python builds."""

import os
import pathlib
import subprocess
import sys

import pytest

np = pytest.importorskip("numpy")
from krait import _load  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WHOLE = os.environ.get("KRAIT_WHOLE_LIBRARY") or str(pathlib.Path(_load.library_path()).resolve().parent.parent / "pkg" / "libkrait.so")

SCRIPT = r'''
import sys
import numpy as np, torch
import krait
folder = sys.argv[1]
try:
    krait.Restorer(folder + "/nowhere", device="cpu")
except krait._load.KraitError as error:
    assert "nowhere" in str(error), error
r = krait.Restorer(folder, device="cpu", threads=1, precision="fp32")
rng = np.random.default_rng(0)
film = np.repeat(np.repeat(rng.integers(0, 256, (12, 8, 12, 3), dtype=np.uint8), 4, 1), 4, 2)
options = dict(size=(48, 32), frames_per_batch=5, overlap=1)
told = []
whole = r(film, progress=lambda *at: told.append(at), **options)
assert whole.shape == film.shape and whole.dtype == np.uint8 and told[0][0] == "encode" and told[-1][3] == 12 and not np.array_equal(whole, film)
assert np.array_equal(np.stack(list(r.each(iter(film), **options))), whole), "one by one"
floats = r(film.astype(np.float32) / 255, **options)
assert floats.dtype == np.float32 and np.abs(floats * 255 - whole).max() <= 0.5 + 1e-3, np.abs(floats * 255 - whole).max()
halves = r(torch.from_numpy(film).half() / 255, **options)
assert halves.dtype == torch.float16 and np.abs(halves.float().numpy() - floats).max() < 2e-2
assert np.array_equal(r(torch.from_numpy(film), **options).numpy(), whole)
picture = r(film[0], size=(48, 32))
assert picture.shape == film[0].shape and np.array_equal(picture, r(film[:1], size=(48, 32))[0])
assert r(film[0, :, :20], shorter=19, pad=True).shape[0] in (19, 30), r(film[0, :, :20], shorter=19, pad=True).shape
assert not np.array_equal(r(film[0], size=(48, 32), seed=7), picture)
for given, words in (((film, dict(colour="sepia")), "sepia"), ((film, dict(size=(8, 8))), "16 pixels"), ((film[..., :2], {}), "must be frames"), ((film.astype(np.int64), {}), "int64"),
                     ((film, dict(sizes=3)), "sizes"), ((film, dict(overlap=30)), "overlap"), ((film[:0], {}), "no frames"), ((np.full((1, 32, 48, 3), np.nan, np.float32), options), "NaN")):
    try:
        r(given[0], **given[1])
        raise SystemExit("not refused: %s" % words)
    except (ValueError, TypeError, krait._load.KraitError) as error:
        assert words in str(error), (words, error)
def stop(*_):
    raise KeyboardInterrupt
try:
    r(film, progress=stop, **options)
    raise SystemExit("not stopped")
except KeyboardInterrupt:
    pass
assert np.array_equal(r(film, **options), whole), "after a stop"
some = r.each(iter(film), **options)
next(some)
some.close()
try:
    list(r.each([film[0], film[1, :16]], **options))
    raise SystemExit("another size")
except ValueError as error:
    assert "48 x 16" in str(error), error
print("done")
'''


def test_restores_frames(tmp_path):
    if not os.path.exists(WHOLE):
        pytest.skip("%s is not built" % WHOLE)
    subprocess.run([sys.executable, ROOT / "demo" / "tiny_seedvr.py", tmp_path / "models"], check=True)
    paths = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run([sys.executable, "-c", SCRIPT, tmp_path / "models"], env=dict(os.environ, KRAIT_LIBRARY=WHOLE, PYTHONPATH=paths), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr + done.stdout


def test_says_which_library():
    """The wheel's library has the operators alone."""
    import krait
    if hasattr(_load.lib(), "krait_restorer_open"):
        pytest.skip("this library is whole")
    with pytest.raises(_load.KraitUnsupported, match="KRAIT_LIBRARY"):
        krait.Restorer("models")
