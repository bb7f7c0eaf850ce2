"""Shared by the tests of krait restore: tiny random models, generated films, and what a film holds."""
import json
import pathlib
import subprocess
import sys
import tempfile

from run import check, krait

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent.parent / "demo"))
import tiny_seedvr  # noqa: E402

folder = tempfile.TemporaryDirectory(prefix="krait-restore-")
here = pathlib.Path(folder.name)
models = here / "models"
SIZE = ["--res", "48x32"]


def make(*args):
    subprocess.run(["ffmpeg", "-nostdin", "-v", "error", "-y", *map(str, args)], check=True, timeout=60)


def about(path, what):
    words = ["ffprobe", "-v", "error", "-count_frames", "-show_entries", f"stream={what}", "-of", "json", str(path)]
    return json.loads(subprocess.run(words, capture_output=True, check=True).stdout)["streams"]


def frames_of(path):
    return subprocess.run(["ffmpeg", "-nostdin", "-v", "error", "-i", str(path), "-map", "0:v:0", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], capture_output=True, check=True).stdout


def restore(*args):
    done = krait("restore", *args, "-w", models, "--json", "-q")
    check(done.returncode == 0, f"{args}: {done.stderr!r}")
    return json.loads(done.stdout.splitlines()[0]) if done.returncode == 0 else {}
