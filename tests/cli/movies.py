"""Files that libsndfile cannot read go through FFmpeg's libavfilter if installed; otherwise one line names the ffmpeg
command. Playlists are never passed on."""
import os
import pathlib
import sys
import tempfile
import ctypes

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "faults"))
import sounds  # noqa: E402
from run import check, check_error, finish, krait  # noqa: E402

MOVIES = pathlib.Path(__file__).parent.parent / "golden" / "movies"
RUN = ["-w", pathlib.Path(__file__).parent.parent / "golden" / "primeknet" / "tiny-mamba.weights.safetensors", "--device", "cpu"]


def has_libavfilter():
    for version in range(7, 12):
        try:
            return bool(ctypes.CDLL(f"libavfilter.so.{version}"))
        except OSError:
            pass
    return False


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    for name in ("second.m4a", "second.webm"):
        (folder / name).write_bytes((MOVIES / name).read_bytes())
        if not has_libavfilter():
            check_error(1, f"which needs FFmpeg's libavfilter; install it (Debian: libavfilter-extra or ffmpeg), or convert the file: ffmpeg -i '{folder / name}' -vn sound.wav",
                        "enhance", *RUN, folder / name)
            continue
        done = krait("enhance", *RUN, folder / name, "-f")
        out = folder / "second.enhanced.wav"
        check(done.returncode == 0 and done.stderr == b"" and b"read through FFmpeg's libraries; written as WAV" in done.stdout, f"{name}: {done}")
        rate, channels, samples = sounds.read(out)[1:]
        check(channels == 1 and abs(len(samples) / rate - 1) < 0.1, f"{name}: {len(samples)} samples at {rate} Hz")
        (folder / "cut").mkdir(exist_ok=True)
        (folder / "cut" / name).write_bytes((MOVIES / name).read_bytes()[:-1500])
        words = {"second.m4a": "its index (moov) is missing, so it is cut short or was never finished", "second.webm": "it is cut short"}[name]
        check_error(1, f"{name} has no readable sound: {words}; copy or download the whole file again", "enhance", *RUN, folder / "cut" / name)
    if not has_libavfilter():
        print("note: no libavfilter here; only the sentence that says so was tried")
    (folder / "broken").mkdir()
    for version in range(7, 12):  # installed, but not usable: the line says why
        (folder / "broken" / f"libavfilter.so.{version}").write_bytes(b"nothing")
    broken = dict(os.environ, LD_LIBRARY_PATH=f"{folder / 'broken'}:{os.environ.get('LD_LIBRARY_PATH', '')}")
    check_error(1, "the installed one cannot be used (", "enhance", *RUN, folder / "second.m4a", "-f", env=broken)
    (folder / "list.m3u8").write_text("#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n")
    check_error(1, "not a readable audio file", "enhance", *RUN, folder / "list.m3u8")
    check_error(1, "can be read but not written", "enhance", *RUN, MOVIES.parent.parent.parent / "demo" / "noisy.flac", "-o", folder / "x.m4a")
finish()
