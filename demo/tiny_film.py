"""Makes a video of a few seconds: a ball crosses a darkening sky. Uncompressed AVI, standard library only.

    python3 demo/tiny_film.py FILM.avi [--seconds N] [--fps N] [--width N] [--height N]"""
import argparse
import pathlib
import struct


def chunk(kind, data):
    return kind + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)


def avi(frames, fps, width, height):
    """frames: bytes of each, rows from the top, RGB; width a multiple of 4."""
    n, size, rate = len(frames), width * height * 3, round(1000 * fps)
    turned = [b"".join(f[y * width * 3:(y + 1) * width * 3] for y in reversed(range(height))) for f in frames]
    blue_first = [bytes(v for i in range(0, size, 3) for v in (f[i + 2], f[i + 1], f[i])) for f in turned]
    head = struct.pack("<14I", round(1e6 / fps), 0, 0, 0x10, n, 0, 1, size, width, height, 0, 0, 0, 0)
    stream = b"vidsDIB " + struct.pack("<IHHIIIIIIII4H", 0, 0, 0, 0, 1000, rate, 0, n, size, 0xffffffff, 0, 0, 0, width, height)
    form = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, size, 0, 0, 0, 0)
    lists = chunk(b"LIST", b"hdrl" + chunk(b"avih", head) + chunk(b"LIST", b"strl" + chunk(b"strh", stream) + chunk(b"strf", form)))
    return chunk(b"RIFF", b"AVI " + lists + chunk(b"LIST", b"movi" + b"".join(chunk(b"00db", f) for f in blue_first)))


def picture(t, width, height):
    """The frame at t in [0, 1]."""
    x, y, radius = t * width, height * (0.7 - 1.6 * t * (1 - t)), height / 8
    ball, ground = bytes((250, 200, 40)), bytes((40, int(110 - 60 * t), 40))
    rows = []
    for row in range(height):
        sky = bytes((int(110 * (1 - t)), int((90 + 90 * row / height) * (1 - t)), int(230 - 150 * t)))
        line = [ground if row > 0.85 * height else sky] * width
        if abs(row - y) < radius:
            half = (radius ** 2 - (row - y) ** 2) ** 0.5
            for column in range(max(0, int(x - half)), min(width, int(x + half) + 1)):
                line[column] = ball
        rows.append(b"".join(line))
    return b"".join(rows)


def make(path, n_frames=150, fps=25, width=160, height=120):
    pathlib.Path(path).write_bytes(avi([picture(i / max(1, n_frames - 1), width, height) for i in range(n_frames)], fps, width, height))
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("film")
    for name, value in (("seconds", 6), ("fps", 25), ("width", 160), ("height", 120)):
        parser.add_argument("--" + name, type=int, default=value)
    a = parser.parse_args()
    make(a.film, a.seconds * a.fps, a.fps, a.width, a.height)
