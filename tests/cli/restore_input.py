"""krait restore with films and pictures of every kind that it must take or refuse: sizes, lengths, colours, times, sound and subtitles, damaged
models, outputs that cannot be written. Usage: python3 tests/cli/restore_input.py KRAIT"""
import json
import random
import resource
import shutil
import signal
import struct
import subprocess
import time

from restoring import SIZE, about, frames_of, here, make, models, restore, tiny_seedvr
from run import KRAIT, SEED, check, check_error, finish, krait

dice = random.Random(SEED)
OUT = here / "out.mp4"


def source(seconds=0.5, size="48x32", rate=24):
    return ["-f", "lavfi", "-i", f"testsrc=size={size}:rate={rate}:duration={seconds}"]


def refused(words, path, *args, status=1):
    check_error(status, words, "restore", path, "-o", here / "never.mp4", "-w", models, "-q", *args)  # -q: without the line about memory
    check(not list(here.glob("*never*")), f"{words}: nothing is left behind")


def lengths():
    film = here / "length.mp4"
    for n in (1, 3):
        make(*source(), "-frames:v", n, film)
        report = restore(film, "-o", OUT, *SIZE, "-f")
        check(report["frames"] == n and int(about(OUT, "nb_read_frames")[0]["nb_read_frames"]) == n, f"a film of {n} frames: {report}")
    make(*source(), "-f", "lavfi", "-i", "sine=440:duration=0.3", "-vf", "select=0", "-c:a", "aac", film)
    refused("length.mp4", film, *SIZE)
    film.write_bytes(b"")
    refused("empty", film, *SIZE)
    make(*source(), "-frames:v", 1, film)


def sizes():
    film = here / "odd.mp4"
    make(*source(size="51x37"), "-c:v", "libx264", "-pix_fmt", "yuv444p", "-frames:v", 2, film)
    done = krait("restore", film, "-o", OUT, "-w", models, "--res", "51x37", "-f")
    check(done.returncode == 0 and b"3 columns and 5 rows" in done.stderr and b"--pad" in done.stderr, f"a crop is said: {done}")
    report = restore(film, "-o", OUT, "--res", "51x37", "-f", "--pad")
    check((report["width"], report["height"], report["cropped_width"]) == (51, 37, 0) and about(OUT, "width")[0]["width"] == 51, f"padded: {report}")
    refused("13 x 10", film, "--res", "13x10")
    for name, size in (("a.avi", "48x32"), ("b.avi", "64x48")):
        make(*source(0.2, size), "-c:v", "mjpeg", here / name)
    (here / "list").write_text("file a.avi\nfile b.avi\n")
    make("-f", "concat", "-safe", "0", "-i", here / "list", "-c", "copy", here / "two.mkv")
    refused("size changes after 5 frames of 48 x 32", here / "two.mkv", *SIZE)


def pictures():
    for kind, pixels in (("png", "rgba"), ("png", "gray"), ("png", "rgb48be"), ("tiff", "rgb24"), ("jpg", "yuvj420p"), ("bmp", "bgr24"), ("webp", "yuv420p")):
        path, out = here / f"one.{kind}", here / "one_restored.png"
        make(*source(), "-pix_fmt", pixels, "-frames:v", 1, path)
        report = restore(path, *SIZE, "-f")
        check(report.get("output") == str(out) and struct.unpack(">II", out.read_bytes()[16:24]) == (48, 32), f"{kind} {pixels}: {report}")
    film, plot = here / "100%.mp4", here / "plot.png"
    make(*source(0.3), film)
    report = restore(film, *SIZE, "--plot", plot)
    check(report.get("output") == str(here / "100%_restored.mp4"), f"a film with % in its name: {report}")
    check(struct.unpack(">II", plot.read_bytes()[16:24]) == (96, 32), "before and after")
    check_error(2, "plot.png exists", "restore", film, "-o", here / "other.mp4", "-w", models, *SIZE, "--plot", plot)
    check_error(2, "does not exist", "restore", film, "-o", here / "nowhere/%03d.png", "-w", models, *SIZE)
    (here / "numbered").mkdir()
    restore(film, "-o", here / "numbered/%03d.png", *SIZE)
    check_error(2, "001.png exists", "restore", film, "-o", here / "numbered/%03d.png", "-w", models, *SIZE)


def streams():
    film, words = here / "full.mkv", here / "words.srt"
    words.write_text("1\n00:00:00,100 --> 00:00:00,900\nthe rain\n\n")
    make(*source(1), "-f", "lavfi", "-i", "sine=440:duration=1", "-i", words, "-map", "0", "-map", "1", "-map", "2", "-c:v", "libx264", "-c:a", "libopus", "-c:s", "srt", "-metadata", "title=A film",
         "-color_primaries", "bt709", "-color_trc", "bt709", "-colorspace", "bt709", "-output_ts_offset", "0.25", film)
    for end, subtitles in (("mkv", "subrip"), ("mp4", "mov_text")):
        out = here / f"full_out.{end}"
        restore(film, "-o", out, *SIZE, "--frames-per-batch", 13)
        found = {s["codec_type"]: s for s in about(out, "codec_type,codec_name,color_space,color_primaries,color_transfer,color_range,start_time")}
        check(found["audio"]["codec_name"] == "opus" and found["subtitle"]["codec_name"] == subtitles, f"{end}: {found}")
        check([found["video"].get(k) for k in ("color_space", "color_primaries", "color_transfer", "color_range")] == ["bt709"] * 3 + ["tv"], f"{end}: {found['video']}")
        apart = [float(about(path, "start_time")[0]["start_time"]) - float(about(path, "start_time")[1]["start_time"]) for path in (film, out)]
        check(abs(apart[0] - apart[1]) < 0.03, f"{end}: the picture begins {apart} s after the sound")
    for more, codec in (([], "h264"), (["--hevc"], "hevc")):  # x265 needs frames of 64 lines
        restore(here / "length.mp4", "-o", OUT, "--res", "96x64", "-f", "--ten-bit", *more)
        check(about(OUT, "codec_name,pix_fmt")[0] == {"codec_name": codec, "pix_fmt": "yuv420p10le"}, f"ten bits, {codec}")


def times_of(path):
    words = ["ffprobe", "-v", "error", "-select_streams", "v:0", "-show_entries", "packet=pts_time", "-of", "csv=p=0", str(path)]
    times = sorted(float(line.strip(",")) for line in subprocess.run(words, capture_output=True, check=True, text=True).stdout.split())
    return [t - times[0] for t in times]


def uneven_times():
    """A film whose frames are not evenly spaced in time, as telephones and screen recorders make it: each is shown when it was, in batches, with ten bits,
    and in a container of milliseconds; the same frames otherwise."""
    for name, more in (("uneven.mp4", ()), ("uneven.mkv", ("--ten-bit",))):
        film, out = here / name, here / f"kept_{name}"
        make(*source(1.2, rate=60), "-f", "lavfi", "-i", "sine=440:duration=1.2", "-vf", "select='not(mod(n,7))+eq(mod(n,11),3)'", "-vsync", "vfr",
             "-enc_time_base", "1:90000", "-bf", 2, "-c:v", "libx264", "-c:a", "aac", film)
        report = restore(film, "-o", out, *SIZE, "-f", "--frames-per-batch", 5, *more)
        was, now = times_of(film), times_of(out)
        steps = {round(b - a, 3) for a, b in zip(was, was[1:])}
        check(len(steps) > 2 and report["note"] == "", f"{name}: {steps}, {report}")
        check(len(now) == len(was) and max(abs(a - b) for a, b in zip(was, now)) <= 0.0011, f"{name}: {list(zip(was, now))}")
    even = here / "even.mp4"
    make("-i", here / "uneven.mp4", "-vf", "setpts=N/25/TB", "-r", 25, "-qp", 0, "-an", "-c:v", "libx264", even)
    restore(even, "-o", OUT, *SIZE, "-f", "--frames-per-batch", 5)
    frame = len(frames_of(OUT)) // len(times_of(OUT))
    apart = [abs(a - b) for a, b in zip(frames_of(OUT)[:frame], frames_of(here / "kept_uneven.mp4")[:frame])]
    check(sum(apart) < 2 * frame, f"another first frame, {sum(apart) / frame} apart")


def colours():
    """One colour, tagged and not, of a height from which on players take BT.709: it stays what it is."""
    wanted = (200, 60, 20)
    for name, tags in (("tagged", ["-colorspace", "bt709"]), ("untagged", [])):
        film, out = here / f"{name}.mp4", here / f"{name}_out.mp4"
        make("-f", "lavfi", "-i", "color=0xc83c14:size=1280x720:rate=24", "-frames:v", 1, "-vf", "scale=out_color_matrix=bt709", "-pix_fmt", "yuv444p", "-c:v", "libx264", *tags, film)
        restore(film, "-o", out, *SIZE)
        rgb = frames_of(out)
        got = [sum(rgb[k::3]) / (len(rgb) / 3) for k in range(3)]
        check(all(abs(g - w) < 12 for g, w in zip(got, wanted)), f"{name}: {got}")


def spoil(path, to, change):
    """The file with one tensor's bytes, or its header, changed."""
    raw = path.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8:8 + n]), bytearray(raw[8 + n:])
    change(header, data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    to.write_bytes(struct.pack("<Q", len(text)) + text + data)


def with_nan(key):
    def change(header, data):
        at = header[key]["data_offsets"][0]
        data[at:at + 4] = struct.pack("<f", float("nan"))
    return change


def without(key):
    def change(header, data):
        header["__metadata__"][key] = "1"
        header[key + "x"] = header.pop(key)
    return change


def models_damaged(film):
    vae, dit = "vae.weights.safetensors", "seedvr2_tiny.safetensors"
    cases = ((vae, with_nan("encoder.conv_in.weight"), "encoder"), (dit, with_nan("vid_in.proj.weight"), "transformer"), (vae, with_nan("decoder.conv_in.weight"), "decoder"),
             (dit, without("vid_in.proj.bias"), "vid_in.proj.bias"), (vae, without("encoder.conv_out.weight"), "encoder.conv_out.weight"))
    for name, change, words in cases:
        broken = here / "broken"
        shutil.copytree(models, broken, dirs_exist_ok=True)
        spoil(models / name, broken / name, change)
        found_late = words in ("encoder", "transformer", "decoder")  # by what they compute
        check_error(1 if found_late else 2, words, "restore", film, "-o", here / "never.mp4", "-w", broken, "-q", *SIZE)
    for name, key, more in ((vae, "251 tensors", {"decoder.odd": (4,)}), (dit, "tensor 'odd'", {"odd": (4,)}), (vae, "(8, 3, 3, 3, 3)", {"encoder.conv_in.weight": (8, 4, 3, 3, 3)}),
                            (dit, "(32, 132)", {"vid_in.proj.weight": (32, 128)})):
        shutil.copytree(models, broken, dirs_exist_ok=True)
        keys, metadata = (tiny_seedvr.vae(), tiny_seedvr.VAE_METADATA) if name == vae else (tiny_seedvr.dit(), tiny_seedvr.DIT_METADATA)
        tiny_seedvr.write(broken / name, {**keys, **more}, metadata, 1)
        check_error(2, key, "restore", film, "-o", here / "never.mp4", "-w", broken, "-q", *SIZE)
    check(not list(here.glob("*never*")), "damaged models leave nothing behind")


def full_disks(film):
    """A file size limit stands for a full disk: of the film, of numbered pictures, of finished batches."""
    (here / "small").mkdir()
    for words, more in (([here / "small/never.mp4"], []), ([here / "small/%03d.png"], []), ([here / "small/never.mp4"], ["--resume"])):
        for limit in (0, 100, dice.randrange(200, 2000), 2600 if more else 300):
            done = krait("restore", film, "-o", *words, "-w", models, *SIZE, "--frames-per-batch", 5, "--overlap", 1, "-q", *more,
                         preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)), restore_signals=False)
            left = [p.name for p in (here / "small").iterdir() if not p.name.endswith(".krait-batches")]
            check(done.returncode in (1, 2) and done.stderr.count(b"\n") == 1 and not left, f"at most {limit} bytes, {words}: {left} {done}")
    report = restore(film, "-o", here / "small/never.mp4", *SIZE, "--frames-per-batch", 5, "--overlap", 1, "--resume")
    check(report.get("frames") == 12 and [p.name for p in (here / "small").iterdir()] == ["never.mp4"], f"after a full disk: {report}")


def ends_at_random(film):
    """Whatever the moment of a signal: no film, or the whole one; going on gives the undisturbed film's frames."""
    args = [*SIZE, "--frames-per-batch", 5, "--overlap", 2]
    whole, out = here / "undisturbed.mp4", here / "disturbed.mp4"
    began = time.monotonic()
    restore(film, "-o", whole, *args)
    lasts = time.monotonic() - began
    for number in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        run = subprocess.Popen([KRAIT, "restore", str(film), "-o", str(out), "-w", str(models), *map(str, args), "--resume", "-q", "-f"], stderr=subprocess.PIPE)
        time.sleep(dice.random() * lasts)
        run.send_signal(number)
        said = run.communicate(timeout=60)[1]
        check(not out.exists() or frames_of(out) == frames_of(whole), f"signal {number}: no half film ({run.returncode}, {said!r})")
        check(number == signal.SIGKILL or run.returncode in (0, -number, 128 + number), f"signal {number}: {run.returncode} {said!r}")
        check(not [p for p in here.iterdir() if p.name.startswith(".")] or number == signal.SIGKILL, f"signal {number} leaves {list(here.iterdir())}")
        report = restore(film, "-o", out, *args, "--resume", "-f")
        check(report and frames_of(out) == frames_of(whole), f"signal {number}: the undisturbed film's frames")
        out.unlink()


if shutil.which("ffmpeg") and shutil.which("ffprobe"):
    tiny_seedvr.main(models)
    plain = here / "plain.mp4"
    make(*source(), "-c:v", "libx264", plain)
    lengths()
    sizes()
    pictures()
    streams()
    uneven_times()
    colours()
    models_damaged(plain)
    full_disks(plain)
    ends_at_random(plain)
finish()
