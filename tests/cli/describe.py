"""krait describe with a tiny random Mobile-VideoGPT and generated videos: frames, the same answer in other ways, the
contact sheet, short videos, errors. Usage: python3 tests/cli/describe.py KRAIT"""
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import zlib

from run import KRAIT, check, check_error, finish, krait

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent.parent / "demo"))
import tiny_film  # noqa: E402
import tiny_language_model as tiny  # noqa: E402

folder = tempfile.TemporaryDirectory(prefix="krait-describe-")
here = pathlib.Path(folder.name)
QUESTION = "What happens?"
TELL = ["-n", 20, "--temperature", 1, "--seed", 3]
model, film = here / "model", here / "film.avi"


def describe(*args, **kw):
    done = krait("describe", *args, "--json", **kw)
    check(done.returncode == 0 and done.stderr == b"", f"{args}: {done.stderr!r}")
    return json.loads(done.stdout) if done.returncode == 0 else {"film": {}}


def size_of_png(path):
    data = path.read_bytes()
    check(data[:8] == b"\x89PNG\r\n\x1a\n", f"{path} is not a PNG")
    return struct.unpack(">II", data[16:24])


def answers():
    whole = describe(film, QUESTION, "-w", model, *TELL)
    seen = whole["film"]
    check(seen["frames"] == 100 and seen["fps"] == 25 and seen["at"] == [6 * i for i in range(16)] and len(seen["scores"]) == 16, f"frames: {seen}")
    check(abs(sum(seen["scores"][:8]) - 8 * 196) < 1 and abs(sum(seen["scores"][8:]) - 8 * 196) < 1, "a half's scores are column sums of a softmax")
    for half in (0, 8):
        best = sorted(sorted(range(half, half + 8), key=lambda i: -seen["scores"][i])[:4])
        check(seen["chosen"][half // 2:half // 2 + 4] == [seen["at"][i] for i in best], f"chosen: {seen}")
    text = QUESTION.encode()
    check(whole["question"] == QUESTION and whole["tokens"] == 20 and 2402 + len(text) // 2 < whole["prompt_tokens"] < 2402 + 100 and whole["stop_reason"] == "length", f"{whole}")
    done = krait("describe", film, QUESTION, "-w", model, *TELL)
    check(done.stdout.decode() == whole["answer"].removesuffix("\n") + "\n" and done.stderr.count(b"\n") == 1 and b"used 16 of 100 frames (" in done.stderr, f"streamed: {done}")
    same = lambda *args, **kw: describe(film, QUESTION, *TELL, *args, **kw)["answer"] == whole["answer"]
    check(same("-w", model, "--threads", 1), "one thread")
    check(same("-w", model / "model.safetensors"), "a weights file")
    tiny.make(here / "shards", "videogpt", shards=3)
    check(same("-w", here / "shards"), "shards")
    check(same("-w", here / "shards" / "model-00002-of-00003.safetensors"), "a shard stands for its folder")
    check(any(describe(film, q, "-w", model, *TELL)["answer"] != whole["answer"] for q in ("Who?", "Is it raining in the film, or is the sun out?", "7")), "other questions")
    for dtype in ("f16", "bf16"):
        tiny.make(here / dtype, "videogpt", dtype=dtype)
        half = describe(film, QUESTION, "-w", here / dtype, "-n", 3)["film"]
        check(all(abs(a - b) < 0.05 * a for a, b in zip(seen["scores"], half["scores"])), f"{dtype}: {half}")
    check(describe(film, "<|im_end|>", "-w", model, "-n", 1)["prompt_tokens"] == whole["prompt_tokens"] - len(text) + 10, "the name of a special token in a question is text")
    lowest = here / "lowest"
    shutil.copytree(model, lowest)
    config = json.loads((lowest / "config.json").read_text())
    (lowest / "config.json").write_text(json.dumps({**config, "topK": False}))
    rest = describe(film, QUESTION, "-w", lowest, "-n", 1)["film"]["chosen"]
    check(sorted(rest + seen["chosen"]) == seen["at"], f"topK false takes the others: {rest}, {seen['chosen']}")
    check(krait("generate", model, "-p", "the", "-n", 3).returncode == 0, "its language model alone")
    return whole


def towers_beside(whole):
    """Towers in separate files, with the published names."""
    apart = here / "apart"
    apart.mkdir()
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(model / name, apart / name)
    data = (model / "model.safetensors").read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__")
    parts = {"model.image_vision_tower.vision_tower.": [], "model.vision_tower.": [], "": []}
    for name, item in header.items():
        prefix = next(p for p in parts if name.startswith(p))
        parts[prefix].append((name.removeprefix(prefix), item["shape"], data[8 + n:][slice(*item["data_offsets"])]))
    clip = apart / "clip-vit-base-patch16"
    clip.mkdir()
    (clip / "config.json").write_text(json.dumps({"vision_config": {"num_attention_heads": 2}}))
    for prefix, path in zip(parts, (clip / "model.safetensors", apart / "videomamba_m16_25M_f8_res224.pth", apart / "model.safetensors")):
        tensors = [(name, shape, struct.unpack(f"<{len(blob) // 4}f", blob)) for name, shape, blob in parts[prefix]]
        tiny.write_safetensors(path, tensors, "f32")
    check(describe(film, QUESTION, "-w", apart, *TELL)["answer"] == whole["answer"], "towers beside the model")
    (apart / "videomamba_m16_25M_f8_res224.pth").unlink()
    check_error(2, "'patch_embed.proj.weight' is missing: these are not weights of VideoMamba", "describe", film, "-w", apart)
    shutil.rmtree(clip)
    check_error(2, "vision_model.embeddings.patch_embedding.weight' is missing", "describe", film, "-w", apart)


def short_films():
    for n in (1, 2, 7, 8, 15):
        path = here / f"{n}.avi"
        tiny_film.make(path, n, 25, 40, 30)
        seen = describe(path, "-w", model, "-n", 2)["film"]
        check(seen["at"] == list(range(n)) and len(seen["chosen"]) == 8, f"{n} frames: {seen}")
        done = krait("describe", path, "-w", model, "-n", 2)
        check(f"used {n} of {n} frames and {16 - n} black ones as padding (".encode() in done.stderr and done.stderr.count(b"\n") == 1, f"{n} frames: {done.stderr!r}")
    path = here / "slow.avi"
    tiny_film.make(path, 20, 0.25, 40, 30)
    check(describe(path, "-w", model, "-n", 1)["film"]["at"] == [0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13, 15, 16, 17, 19], "four seconds a frame")
    path = here / "long.avi"
    tiny_film.make(path, 400, 10, 8, 8)
    check(describe(path, "-w", model, "-n", 1)["film"]["at"] == [10 * int(i * 39 / 15) for i in range(16)], "40 seconds")


def a_picture():
    part = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + bytes(v for x in range(60) for v in (4 * x, 5 * y, 90)) for y in range(40))
    path = here / "picture.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + part(b"IHDR", struct.pack(">IIBBBBB", 60, 40, 8, 2, 0, 0, 0)) + part(b"IDAT", zlib.compress(rows)) + part(b"IEND", b""))
    seen = describe(path, "-w", model, "-n", 1)["film"]
    check(seen["frames"] == 1 and seen["at"] == [0], f"a picture: {seen}")


def sheets():
    sheet = here / "sheet.png"
    describe(film, "-w", model, "-n", 1, "--frames", sheet)
    width, height = size_of_png(sheet)
    check(width > 4 * 100 and height > 4 * 100, f"sheet of {width} x {height}")
    check_error(2, "exists", "describe", film, "-w", model, "--frames", sheet)
    for name in ("sheet.jpg", "sheet", "sheet."):
        check_error(2, "ends in .png", "describe", film, "-w", model, "--frames", here / name)
    os.mkfifo(here / "pipe")  # what is not a regular file has any name
    reader = subprocess.Popen(["cat", here / "pipe"], stdout=subprocess.PIPE)
    describe(film, "-w", model, "-n", 1, "--frames", here / "pipe")
    check(reader.communicate(timeout=60)[0][:4] == b"\x89PNG", "a sheet into a pipe")
    describe(here / "2.avi", "-w", model, "-n", 1, "--frames", sheet, "--force")
    check(size_of_png(sheet)[1] < height / 2, "one row for two frames")
    check_error(1, "/dev/full", "describe", film, "-w", model, "-n", 1, "--frames", "/dev/full")
    done = subprocess.run([KRAIT, "describe", film, "-w", model, "-n", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    check(done.stdout.startswith(b"\nused 16 of "), f"the rates have a line of their own: {done.stdout!r}")


def refused():
    text = here / "text.mp4"
    text.write_text("no film at all, only words\n" * 10)
    check_error(1, "neither a video", "describe", text, "-w", model)
    check_error(1, "cannot open", "describe", here / "none.mp4", "-w", model)
    check_error(1, "is a folder; name a file in it", "describe", here, "-w", model)
    check_error(1, "is not a regular file; copy it to one first", "describe", "/dev/null", "-w", model)
    check_error(1, "cannot come from standard input", "describe", "-", "-w", model)
    (here / "nothing.mp4").touch()
    check_error(1, "nothing.mp4 is empty", "describe", here / "nothing.mp4", "-w", model)
    check_error(2, "unexpected 'is' after the question 'What': put the whole question in quotes", "describe", film, "What", "is", "this?", "-w", model)
    (here / "empty.avi").write_bytes(tiny_film.avi([], 25, 40, 30))
    check_error(1, "no readable picture", "describe", here / "empty.avi", "-w", model)
    (here / "cut.avi").write_bytes(film.read_bytes()[:200])
    check_error(1, "cut.avi has no readable picture", "describe", here / "cut.avi", "-w", model)
    (here / "cut.avi").write_bytes(film.read_bytes()[:100000])
    check_error(1, "cut.avi has no readable picture after the first 10: it is cut short; copy or download the whole file again", "describe", here / "cut.avi", "-w", model)
    box = lambda kind, data: struct.pack(">I4s", 8 + len(data), kind) + data
    (here / "cut.mp4").write_bytes(box(b"ftyp", b"isom\0\0\2\0isomiso2mp41") + box(b"mdat", b"\0" * 5000)[:3000])
    check_error(1, "cut.mp4 has no readable picture: its index (moov) is missing, so it is cut short or was never finished; copy or download the whole file again", "describe", here / "cut.mp4", "-w", model)
    sound = pathlib.Path(__file__).parent.parent / "golden" / "movies" / "second.m4a"
    check_error(1, "second.m4a contains no picture; if it should, copy or download the whole file again", "describe", sound, "-w", model)
    check_error(2, "--weights is missing", "describe", film)
    check_error(2, "not UTF-8", "describe", film, b"a\xff".decode(errors="surrogateescape"), "-w", model)
    tiny.make(here / "words", "qwen2"), tiny.make(here / "mamba")
    for other in ("words", "mamba"):
        check_error(2, "it is a language model, not Mobile-VideoGPT", "describe", film, "-w", here / other)
    bad = here / "bad"
    tiny.make(bad, "videogpt", shards=2)
    (bad / "model-00002-of-00002.safetensors").unlink()
    check_error(2, "names model-00002-of-00002.safetensors, which is missing", "describe", film, "-w", bad)
    shutil.rmtree(bad)
    shutil.copytree(model, bad)
    good, config = (bad / "model.safetensors").read_bytes(), json.loads((bad / "config.json").read_text())
    for old, new, words in ((b"mm_projector.peg.peg.0.bias", b"mm_projector.peg.peg.0.bies", "image_mm_projector.peg.peg.0.bias' is missing"),
                            (b"layers.1.mixer.A_b_log", b"layers.1.mixer.A_b_lag", "layers.1.mixer.A_b_log' is missing"),
                            (b"encoder.layers.1.mlp.fc2.bias", b"encoder.layers.1.mlp.fc2.bies", "encoder.layers.1.mlp.fc2.bias' is missing")):
        (bad / "model.safetensors").write_bytes(good.replace(old, new))
        check_error(2, words, "describe", film, "-w", bad)
    at = good.index(b"image_mm_projector.mlp.mlp.2.weight")
    (bad / "model.safetensors").write_bytes(good[:at] + good[at:].replace(b'"shape": [32, 32]', b'"shape": [16, 64]', 1))
    check_error(2, "has shape (16, 64), the model requires (32, 32)", "describe", film, "-w", bad)
    (bad / "model.safetensors").write_bytes(good)
    for key, value, words in (("num_select_k_frames_in_chunk", 3, "the model's shapes allow only 4"), ("vision_config", {"num_attention_heads": 3}, "not a multiple of 3 heads"),
                              ("vision_config", {"hidden_act": "relu", "num_attention_heads": 2}, "hidden_act 'relu' is not supported")):
        (bad / "config.json").write_text(json.dumps({**config, key: value}))
        check_error(2, words, "describe", film, "-w", bad)
    (bad / "config.json").write_text(json.dumps(config))
    tokens = json.loads((bad / "tokenizer.json").read_text())
    (bad / "tokenizer.json").write_text(json.dumps({**tokens, "added_tokens": []}))
    check_error(2, "no <|im_start|> and <|im_end|>", "describe", film, "-w", bad)
    del tokens["model"]["merges"]
    (bad / "tokenizer.json").write_text(json.dumps(tokens))
    check_error(2, "has no merges", "describe", film, "-w", bad)
    shutil.copy(model / "tokenizer.json", bad / "tokenizer.json")
    n = struct.unpack("<Q", good[:8])[0]
    for name, words in (("embeddings.patch_embedding.weight", "the score of frame 0 is not finite"), ("encoder.layers.0.mlp.fc1.bias", "is not finite at element 0")):
        at = json.loads(good[8:8 + n])["model.image_vision_tower.vision_tower.vision_model." + name]["data_offsets"][0] + 8 + n
        (bad / "model.safetensors").write_bytes(good[:at] + struct.pack("<f", float("nan")) + good[at + 4:])
        done = krait("describe", film, "-w", bad, "-n", 2)
        check(done.returncode in (1, 2) and done.stdout == b"" and done.stderr.count(b"\n") == 1 and words.encode() in done.stderr, f"{name} is no number: {done}")


def little_memory():
    if b"__asan_init" in pathlib.Path(KRAIT).read_bytes():
        return  # AddressSanitizer reserves terabytes of address space
    short, roomy = 0, here / "roomy"  # only krait's own memory is short, not that of the decoder
    roomy.mkdir()
    for program in ("ffmpeg", "ffprobe"):
        (roomy / program).write_text(f'#!/bin/sh\nulimit -S -v unlimited\nexec {shutil.which(program)} "$@"\n')
        (roomy / program).chmod(0o755)
    for kib in range(56000, 1000000, 4000):
        done = subprocess.run(["bash", "-c", f"ulimit -S -v {kib}; PATH={roomy}:$PATH; exec {KRAIT} describe {film} '{'and why ' * 1500}' -w {model} --threads 1 -n 1"], capture_output=True, timeout=120)
        check(done.returncode in (0, 1, 2) and done.stderr.count(b"\n") == 1, f"in {kib} KiB: {done}")
        short += b"no memory for" in done.stderr
        if done.returncode == 0:
            break
    check(short, "a question too long for the memory")


def graphs():
    done = krait("info", model, "--graph", "--profile", "--device", "cpu")
    lines = done.stdout.decode().splitlines()
    check(done.returncode == 0 and sum(" nodes; arena " in line and line.endswith(" us in nodes") for line in lines) == 5, f"info --graph: {done.stderr!r}")
    check(all(any(f" {op} " in line for line in lines) for op in ("attention", "selective_scan", "rotary", "gather_rows")), "info --graph: towers and language model")


def demonstration():
    out = here / "demo"
    recipe = subprocess.run(["make", "-n", "demo-video", "BUILD=b"], cwd=pathlib.Path(__file__).parent.parent.parent, capture_output=True, env={**os.environ, "MAKEFLAGS": ""}).stdout
    check(b"tools/build b krait-demo\n" in recipe and b"tools/demo --video b/krait-demo\n" in recipe, f"make demo-video builds and runs what make demo does: {recipe}")
    done = subprocess.run([pathlib.Path(__file__).parent.parent.parent / "tools" / "demo", "--video", pathlib.Path(KRAIT).resolve(), out], capture_output=True, timeout=60)
    check(done.returncode == 0 and b"its words are meaningless" in done.stdout and b"used 16 of 150 frames (" in done.stderr, f"make demo-video: {done}")
    check(size_of_png(out / "frames.png")[0] > 400, "make demo-video: frames.png")


def interrupted():
    sheet = here / "never.png"
    child = subprocess.Popen([KRAIT, "describe", str(film), "-w", str(model), "-n", "100000000", "--temperature", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    first = child.stdout.read(40)  # some tokens; without Ctrl-C it would end after a quarter of a second
    child.send_signal(signal.SIGINT)
    rest, errors = child.communicate(timeout=60)
    check(len(first) == 40 and child.returncode == 130 and errors.count(b"\n") == 1 and b"stopped" in errors, f"Ctrl-C: {child.returncode} {errors!r}")
    check(not sheet.exists(), "no sheet")


tiny.make(model, "videogpt")
tiny_film.make(film, 100, 25, 64, 48)
graphs()
found = krait("describe", film, "-w", model, "-n", 1)
if b"needs FFmpeg's program" in found.stderr:
    check(found.returncode == 1 and found.stderr.count(b"\n") == 1, f"without ffmpeg: {found}")
    print("ffmpeg is not installed: videos were not read")
else:
    towers_beside(answers())
    short_films()
    a_picture()
    sheets()
    refused()
    little_memory()
    demonstration()
    interrupted()
finish()
