"""Files that libsndfile cannot read go through the program ffmpeg if installed; otherwise one line names the ffmpeg
command. Playlists are never passed on."""
import os
import pathlib
import shutil
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "faults"))
import sounds  # noqa: E402
from run import check, check_error, finish, krait  # noqa: E402

MOVIES = pathlib.Path(__file__).parent.parent / "golden" / "movies"
RUN = ["-w", pathlib.Path(__file__).parent.parent / "golden" / "primeknet" / "tiny-mamba.weights.safetensors", "--device", "cpu"]


HAS_FFMPEG = shutil.which("ffmpeg") is not None


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    for name in ("second.m4a", "second.webm"):
        (folder / name).write_bytes((MOVIES / name).read_bytes())
        if not HAS_FFMPEG:
            check_error(1, f"which needs FFmpeg's program ffmpeg; install it (Debian: ffmpeg), or convert the file elsewhere: ffmpeg -i '{folder / name}' -vn sound.wav",
                        "enhance", *RUN, folder / name)
            continue
        done = krait("enhance", *RUN, folder / name, "-f")
        out = folder / "second.enhanced.wav"
        check(done.returncode == 0 and done.stderr == b"" and b"read through ffmpeg; written as WAV" in done.stdout, f"{name}: {done}")
        rate, channels, samples = sounds.read(out)[1:]
        check(channels == 1 and abs(len(samples) / rate - 1) < 0.1, f"{name}: {len(samples)} samples at {rate} Hz")
        (folder / "cut").mkdir(exist_ok=True)
        (folder / "cut" / name).write_bytes((MOVIES / name).read_bytes()[:-1500])
        words = {"second.m4a": "its index (moov) is missing, so it is cut short or was never finished", "second.webm": "it is cut short"}[name]
        check_error(1, f"{name} has no readable sound: {words}; copy or download the whole file again", "enhance", *RUN, folder / "cut" / name)
    if not HAS_FFMPEG:
        print("note: no ffmpeg here; only the sentence that says so was tried")
    (folder / "broken").mkdir()  # installed, but not usable: the line says what it said (tests/format/decoder.c has more ways)
    (folder / "broken" / "ffmpeg").write_text("#!/bin/sh\necho ffmpeg: error while loading shared libraries >&2\nexit 127\n")
    (folder / "broken" / "ffmpeg").chmod(0o755)
    check_error(1, "has no readable sound; FFmpeg: ffmpeg: error while loading shared libraries", "enhance", *RUN, folder / "second.m4a", "-f",
                env=dict(os.environ, PATH=f"{folder / 'broken'}:{os.environ['PATH']}"))
    (folder / "list.m3u8").write_text("#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n")
    check_error(1, "not a readable audio file", "enhance", *RUN, folder / "list.m3u8")
    check_error(1, "can be read but not written", "enhance", *RUN, MOVIES.parent.parent.parent / "demo" / "noisy.flac", "-o", folder / "x.m4a")
finish()
