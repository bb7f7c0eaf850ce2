"""krait classify: a synthetic video and pictures through a synthetic VideoMamba and Vim: frames, pixels, probabilities; errors.
krait bench of the towers. Without ffmpeg one line says so."""
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import zlib

KRAIT = sys.argv[1]
SIDE, PATCH, D, DI, N, R, CLASSES, T = 32, 16, 8, 16, 4, 2, 6, 4
failures = 0


def check(condition, text):
    global failures
    if not condition:
        failures += 1
        print("FAILED:", text)


def krait(*arguments):
    done = subprocess.run([KRAIT, "classify", *map(str, arguments)], capture_output=True, text=True, timeout=120)
    check(done.returncode in (0, 1, 2), f"{arguments}: status {done.returncode}")
    check(done.returncode == 0 or (len(done.stderr.strip().splitlines()) == 1), f"{arguments}: {done.stderr!r}")
    return done


def weights(path, **changes):
    """A one-layer model whose classes depend on colours; safetensors."""
    draw = random.Random(1)
    shapes = {"cls_token": (1, 1, D), "pos_embed": (1, 5, D), "temporal_pos_embedding": (1, T, D), "patch_embed.proj.weight": (D, 3, 1, PATCH, PATCH),
              "patch_embed.proj.bias": (D,), "layers.0.norm.weight": (D,), "layers.0.mixer.in_proj.weight": (2 * DI, D), "layers.0.mixer.out_proj.weight": (D, DI),
              "norm_f.weight": (D,), "head.weight": (CLASSES, D), "head.bias": (CLASSES,)}
    for end in ("", "_b"):
        shapes.update({"layers.0.mixer.A%s_log" % end: (DI, N), "layers.0.mixer.D" + end: (DI,), "layers.0.mixer.conv1d%s.weight" % end: (DI, 1, 4),
                       "layers.0.mixer.conv1d%s.bias" % end: (DI,), "layers.0.mixer.x_proj%s.weight" % end: (R + 2 * N, DI),
                       "layers.0.mixer.dt_proj%s.weight" % end: (DI, R), "layers.0.mixer.dt_proj%s.bias" % end: (DI,)})
    shapes.update(changes)
    header, data = {}, b""
    for name, shape in shapes.items():
        if shape is None:
            continue
        count = 1
        for size in shape:
            count *= size
        values = [draw.gauss(0, 0.3) for _ in range(count)]
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + 4 * count]}
        data += struct.pack("<%df" % count, *values)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def chunk(kind, data):
    return kind + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)


def avi(path, colours, side=48):
    """Uncompressed frames, each of one colour (r, g, b)."""
    frames = [bytes([b, g, r]) * side * side for r, g, b in colours]
    head = struct.pack("<14I", 40000, 0, 0, 0x10, len(frames), 0, 1, side * side * 3, side, side, 0, 0, 0, 0)
    stream = b"vidsDIB " + struct.pack("<IHHIIIIIIII4H", 0, 0, 0, 0, 1, 25, 0, len(frames), side * side * 3, 0xffffffff, 0, 0, 0, side, side)
    form = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 24, 0, side * side * 3, 0, 0, 0, 0)
    lists = chunk(b"LIST", b"hdrl" + chunk(b"avih", head) + chunk(b"LIST", b"strl" + chunk(b"strh", stream) + chunk(b"strf", form)))
    movie = chunk(b"LIST", b"movi" + b"".join(chunk(b"00db", f) for f in frames))
    path.write_bytes(chunk(b"RIFF", b"AVI " + lists + movie))
    return path


def png(path, colour, width=40, height=32, frame=None):
    """Of one colour; or with a frame of another, one pixel wide."""
    part = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    colours = lambda y: [frame if frame and (x in (0, width - 1) or y in (0, height - 1)) else colour for x in range(width)]
    rows = b"".join(b"\0" + b"".join(map(bytes, colours(y))) for y in range(height))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + part(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) + part(b"IDAT", zlib.compress(rows)) + part(b"IEND", b""))
    return path


def classes(done):
    return [json.loads(line)["classes"] for line in done.stdout.splitlines()]


def films(folder, model):
    red = (250, 10, 10)
    film = avi(folder / "red.avi", [red] * 24)
    picture = png(folder / "red.png", red)
    done = krait(film, "-w", model)
    if "needs FFmpeg's program" in done.stderr:
        check(done.returncode == 1, "without ffmpeg the status is 1")
        print("ffmpeg is not installed: videos were not read")
        return
    done = krait(film, picture, "-w", model, "--json", "--top", CLASSES)
    check(done.returncode == 0, done.stderr)
    of_film, of_picture = classes(done)
    check(abs(sum(c["probability"] for c in of_film) - 1) < 1e-4, "probabilities add up to one")
    check(all(a["class"] == b["class"] and abs(a["probability"] - b["probability"]) < 1e-3 for a, b in zip(of_film, of_picture)), "a film of one colour is its picture")
    check(json.loads(done.stdout.splitlines()[0])["frames"] == [3, 9, 15, 21], "frames at 1/8, 3/8, 5/8 and 7/8")
    long = avi(folder / "long.avi", [(i % 256, 0, 0) for i in range(1000)], side=8)
    at = json.loads(krait(long, "-w", model, "--json").stdout)["frames"]
    check(all(abs(a - b) < 8 for a, b in zip(at, (125, 375, 625, 875))), f"a long film's frames: {at}")
    short = json.loads(krait(avi(folder / "short.avi", [red, red]), "-w", model, "--json").stdout)["frames"]
    check(short == [0, 0, 1, 1], f"a film of two frames: {short}")
    blue = classes(krait(png(folder / "blue.png", (10, 10, 250)), "-w", model, "--json", "--top", CLASSES))[0]
    check(blue != of_picture, "another colour, other probabilities")
    labels = folder / "labels.txt"
    labels.write_text("".join("name %d\n" % i for i in range(CLASSES)))
    done = krait(picture, "-w", model, "--labels", labels, "--top", 2)
    check(done.returncode == 0 and len(done.stdout.splitlines()) == 3 and "name %d" % of_picture[0]["class"] in done.stdout, done.stdout)
    empty = avi(folder / "empty.avi", [])
    done = krait(empty, picture, "-w", model)
    check(done.returncode == 1 and "no readable picture; FFmpeg: " in done.stderr and "red.png" in done.stdout, f"a film without frames: {done.stderr!r}")
    labels.write_bytes(b"\xff\n" * CLASSES)
    found = json.loads(krait(picture, "-w", model, "--labels", labels, "--json", "--top", CLASSES).stdout)["classes"]
    check(len(found) == CLASSES and all(one["label"] == "\ufffd" for one in found), f"labels that are not UTF-8: {found}")
    labels.write_text("one\n")
    done = krait(picture, "-w", model, "--labels", labels)
    check(done.returncode == 2 and "has 1 labels, the weights have 6" in done.stderr, done.stderr)


def pictures(folder):
    """Weights for images: Vim's or VideoMamba's, by name; of a picture Vim sees the middle 7/8."""
    model = weights(folder / "image.safetensors", **{"patch_embed.proj.weight": (D, 3, PATCH, PATCH), "temporal_pos_embedding": None})
    plain, framed = png(folder / "plain.png", (250, 10, 10), 64, 64), png(folder / "framed.png", (250, 10, 10), 64, 64, (0, 0, 250))
    done = krait(plain, "-w", model)
    check(done.returncode == 2 and "image.safetensors: these tensors may be Vim's or" in done.stderr and "--model vim or --model videomamba" in done.stderr, done.stderr)
    done = krait(plain, "-w", model, "--model", "vim_tiny_patch16_224_final_pool_mean")
    check(done.returncode == 2 and "is another kind of Vim" in done.stderr, done.stderr)
    seen = {}
    for name in ("vim", "videomamba"):
        done = krait(plain, framed, "-w", model, "--model", name, "--json", "--top", CLASSES)
        if "needs FFmpeg's program" in done.stderr:
            return
        check(done.returncode == 0, done.stderr)
        seen[name] = [sorted((c["class"], c["probability"]) for c in of) for of in classes(done)]
    distance = lambda a, b: max(abs(p - q) for (_, p), (_, q) in zip(a, b))
    check(distance(*seen["vim"]) < 1e-6 < distance(*seen["videomamba"]), f"a frame at the edge: {seen}")
    check(distance(seen["vim"][0], seen["videomamba"][0]) > 1e-4, f"Vim is not VideoMamba: {seen}")


def refusals(folder, model):
    text = folder / "text.mp4"
    text.write_text("no film at all, only words\n")
    for arguments, words in (((text, "-w", model), "neither a video"), ((folder / "none.mp4", "-w", model), "cannot open"), ((folder, "-w", model), "is a folder; name a file in it"),
                             ((text,), "--weights is missing"), ((text, "-w", text), "text.mp4")):
        done = krait(*arguments)
        check(done.returncode in (1, 2) and words in done.stderr, f"{arguments}: {done.stderr!r}")
    for change, words in (({"head.weight": None, "head.bias": None}, "has no classification head"), ({"head.weight": None}, "tensor 'head.bias' is of no part that this model has"), ({"cls_token": None}, "bad.safetensors: the weights: tensor 'cls_token' is missing"), ({"layers.0.mixer.D": (3,)}, "mixer.D"), ({"patch_embed.proj.weight": (D, 3, 2, PATCH, PATCH)}, "tubelets")):
        done = krait(text, "-w", weights(folder / "bad.safetensors", **change))
        check(done.returncode == 2 and words in done.stderr, f"{change}: {done.stderr!r}")


def bench(*arguments):
    return subprocess.run([KRAIT, "bench", *map(str, arguments), "--runs", "1", "--device", "cpu"], capture_output=True, text=True, timeout=120)


def towers():
    """krait bench videomamba and clip: operation counts, shares, and errors."""
    def told(*arguments):
        done = bench(*arguments, "--json")
        check(done.returncode == 0, f"{arguments}: {done.stderr!r}")
        return json.loads(done.stdout)
    t, L, D = told("videomamba", "--sizes", "t16", "--frames", 1), 197, 192
    products = 24 * 2 * L * (D * 4 * D + 2 * (2 * D * (12 + 32) + 12 * 2 * D) + 2 * D * D) + 2 * 196 * 768 * D
    check(t["tokens"] == L and products < t["flops"] < 1.35 * products, f"videomamba: {t}, products {products}")
    check(28e6 < t["weight_bytes"] + 24 * 4 * 2 * 2 * D < 29e6, f"videomamba: {t}")  # 7.15 million and 400 classes less 600
    both = told("videomamba", "--sizes", "t16", "--frames", 2, "--dtype", "float16")
    check(1.97 < both["flops"] / t["flops"] < 2.01 and both["weight_bytes"] < 0.6 * t["weight_bytes"], f"videomamba, two frames: {both}")
    c, L, C = told("clip", "--sizes", "base-patch32", "--frames", 1), 50, 768
    products = 12 * 2 * L * 12 * C * C + 2 * 49 * 3072 * C
    check(c["tokens"] == L and products < c["flops"] < 1.06 * products, f"clip: {c}, products {products}")
    for timed in (t, c):
        check(0 < timed["best_s"] <= timed["median_s"] and 0 < timed["cpu_s"] and timed["flops"] / timed["cpu_s"] < 1.5 * timed["product_flops_per_cpu_s"], f"times: {timed}")
    listed = bench("videomamba", "--sizes", "t16", "--frames", 1, "--kernels").stdout
    check(listed.count(" scan ") == 48 and "% of a large product's" in listed, listed)
    for arguments, words in ((("clip", "--sizes", "t16"), "there is no tower 'clip-vit-t16'"), (("videomamba", "--frames", 5000), "5000 images"), (("clip", "--dtype", "int8"), "--dtype is 'int8'")):
        done = bench(*arguments)
        check(done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1, f"{arguments}: {done}")


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    model = weights(folder / "model.safetensors")
    towers()
    films(folder, model)
    pictures(folder)
    refusals(folder, model)
print(failures, "failures")
sys.exit(failures != 0)
