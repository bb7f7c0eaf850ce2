"""krait restore with tiny random models and generated films: batches, sound, pictures, folders, going on after an end, errors. Usage: python3
tests/cli/restore.py KRAIT"""
import pathlib
import shutil
import signal
import struct
import subprocess
import time

from restoring import SIZE, about, frames_of, here, make, models, restore, tiny_seedvr
from run import KRAIT, check, check_error, finish, krait


def films():
    film, out = here / "film.mp4", here / "out.mp4"
    make("-f", "lavfi", "-i", "testsrc=size=48x32:rate=24000/1001", "-f", "lavfi", "-i", "sine=440", "-t", "0.5", "-c:v", "libx264", "-c:a", "aac", film)
    report = restore(film, "-o", out, *SIZE, "--frames-per-batch", 5, "--overlap", 1)
    video, sound = sorted(about(out, "codec_type,codec_name,width,height,r_frame_rate,nb_read_frames"), key=lambda s: s["codec_type"], reverse=True)
    check(report["frames"] == 12 and report["batches"] == 3 and (report["width"], report["height"]) == (48, 32), f"{report}")
    check((video["width"], video["height"], video["r_frame_rate"], video["nb_read_frames"]) == (48, 32, "24000/1001", "12"), f"{video}")
    check(sound["codec_name"] == "aac", f"sound: {sound}")
    first = frames_of(out)
    restore(film, "-o", out, *SIZE, "--frames-per-batch", 5, "--overlap", 1, "--force")
    check(frames_of(out) == first, "the same film twice")
    restore(film, "-o", out, *SIZE, "--frames-per-batch", 5, "--overlap", 1, "--force", "--seed", 7)
    check(frames_of(out) != first, "another seed")
    check_error(2, "out.mp4", "restore", film, "-o", out, "-w", models, *SIZE)
    (here / "frames").mkdir()
    restore(film, "-o", here / "frames/%03d.png", *SIZE, "--frames-per-batch", 13)
    check(sorted(p.name for p in (here / "frames").iterdir()) == [f"{i:03d}.png" for i in range(1, 13)], "numbered pictures")
    return film


def pictures(film):
    picture = here / "picture.png"
    make("-i", film, "-frames:v", "1", picture)
    report = restore(picture, *SIZE)
    check(report["frames"] == 1 and report["output"].endswith("picture_restored.png"), f"{report}")
    check(struct.unpack(">II", (here / "picture_restored.png").read_bytes()[16:24]) == (48, 32), "a picture's size")
    many = here / "many"
    many.mkdir()
    shutil.copy(picture, many / "b.png")
    shutil.copy(film, many / "a.mp4")
    (many / "notes.txt").write_text("not a film")
    check_error(2, "several files need a folder", "restore", many, "-o", here / "results.mp4", "-w", models, *SIZE)
    done = krait("restore", many, "-o", here / "results", "-w", models, *SIZE, "-q")  # makes the folder
    check(done.returncode == 0 and sorted(p.name for p in (here / "results").iterdir()) == ["a.mp4", "b.png"], f"a folder: {done}")
    done = krait("restore", picture, "-o", f"{here}/one/", "-w", models, *SIZE)
    check(done.returncode == 0 and (here / "one" / "picture.png").exists() and f"{here}/one/picture.png" in done.stderr.decode(), f"a folder named by its slash: {done}")
    turned = here / "turned.mp4"
    make("-i", film, "-c", "copy", "-metadata:s:v:0", "rotate=90", turned)  # FFmpeg before 6
    if "rotation" not in str(about(turned, "side_data_list:stream_side_data=rotation")):
        make("-display_rotation", "90", "-i", film, "-c", "copy", turned)
    report = restore(turned, "-o", here / "upright.mp4", *SIZE)
    check((report["from_width"], report["from_height"]) == (32, 48) and (report["width"], report["height"]) == (32, 48), f"turned: {report}")
    report = restore(film, "-o", here / "padded.mp4", "--short", 38, "--pad", "--frames-per-batch", 13)
    check((report["width"], report["height"]) == (57, 38), f"padded: {report}")


def ends(film):
    """SIGKILL at any moment leaves no film under the name; --resume gives the undisturbed film."""
    args = [*SIZE, "--frames-per-batch", 5, "--overlap", 2]
    whole, out = here / "whole.mp4", here / "cut.mp4"
    restore(film, "-o", whole, *args)
    kept = pathlib.Path(f"{out}.krait-batches")
    run = subprocess.Popen([KRAIT, "restore", str(film), "-o", str(out), "-w", str(models), *map(str, args), "--resume", "-q"])
    while run.poll() is None and not (kept.exists() and kept.stat().st_size > 1000):
        time.sleep(0.01)
    run.send_signal(signal.SIGKILL)
    run.wait()
    if run.returncode == -signal.SIGKILL:
        check(not out.exists() and kept.exists(), "no half film, but finished batches")
        with open(kept, "ab") as f:
            f.write(b"half a record")
    report = restore(film, "-o", out, *args, "--resume", "--force")
    check(run.returncode != -signal.SIGKILL or report["resumed"] >= 1, f"resumed: {report}")
    check(frames_of(out) == frames_of(whole) and not kept.exists(), "the undisturbed film's frames")
    long = here / "long.mp4"
    make("-f", "lavfi", "-i", "testsrc=size=48x32:rate=24", "-t", "8", "-c:v", "libx264", long)
    for keep, stays in ((["--keep"], True), ([], False)):
        out = here / f"stopped{stays}.mp4"
        run = subprocess.Popen([KRAIT, "restore", str(long), "-o", str(out), "-w", str(models), *map(str, args), *keep, "--resume"], stderr=subprocess.PIPE)
        kept = pathlib.Path(f"{out}.krait-batches")
        while run.poll() is None and not (kept.exists() and kept.stat().st_size > 60000):
            time.sleep(0.01)
        run.send_signal(signal.SIGINT)
        said = run.communicate()[1]
        check(run.returncode == 130 and said.startswith(b"memory: ") and said.count(b"\n") == 2 and out.exists() == stays, f"Ctrl-C, {keep}: {run.returncode} {said!r}")
        if stays and out.exists():
            check(0 < int(about(out, "nb_read_frames")[0]["nb_read_frames"]) < 192, "the film so far")


def tiles(film):
    """Frames in tiles take less memory, and are another film; one tile is none."""
    made, planned = {}, {}
    for name, args in (("whole", []), ("one tile", ["--tile", 96]), ("tiles", ["--tile", 32, "--tile-overlap", 16])):
        out = here / "tiled.mp4"
        report = restore(film, "-o", out, "--res", "96x64", "--frames-per-batch", 5, *args, "--force")
        made[name], planned[name] = frames_of(out), report["device_bytes"]
    check(made["whole"] == made["one tile"] and planned["whole"] == planned["one tile"], "one tile is the whole frame")
    check(len(made["tiles"]) == len(made["whole"]) and made["tiles"] != made["whole"] and planned["tiles"] < planned["whole"], f"tiles: {planned}")


def errors(film):
    out = here / "never.mp4"
    check_error(2, "--weights", "restore", film, "-o", out)
    check_error(2, "--memory", "restore", film, "-o", out, "-w", models, "--memory", "11")
    check_error(1, "need at least", "restore", film, "-o", out, "-w", models, *SIZE, "--memory", "0.5M")
    check_error(2, "nowhere", "restore", film, "-o", out, "-w", here / "nowhere")
    check_error(2, "--res", "restore", film, "-o", out, "-w", models, "--res", "0x5")
    check_error(2, "tiles of 32 pixels that overlap by 40", "restore", film, "-o", out, "-w", models, "--tile", "32", "--tile-overlap", "40")
    check_error(2, "steps", "restore", film, "-o", out, "-w", models, "--steps", "0")
    check_error(2, "seed", "restore", film, "-o", out, "-w", models, "--seed", "-1")
    check_error(1, "16 pixels", "restore", film, "-o", out, "-w", models, "--res", "8x8")
    check_error(2, "sepia", "restore", film, "-o", out, "-w", models, "--colour", "sepia")
    check_error(2, "overlap", "restore", film, "-o", out, "-w", models, "--frames-per-batch", "5", "--overlap", "5")
    check_error(2, ".mp4", "restore", film, "-o", here / "never.gif", "-w", models)
    sound = here / "sound.mp4"
    make("-f", "lavfi", "-i", "sine=440", "-t", "0.2", "-c:a", "aac", sound)
    check_error(1, "sound.mp4", "restore", sound, "-o", out, "-w", models)
    hdr = here / "hdr.mp4"
    make("-f", "lavfi", "-i", "testsrc=size=48x32:rate=24", "-t", "0.2", "-c:v", "libx264", "-color_trc", "smpte2084", hdr)
    check_error(1, "HDR", "restore", hdr, "-o", out, "-w", models)
    broken = here / "broken"
    shutil.copytree(models, broken)
    keys = tiny_seedvr.vae()
    del keys["decoder.conv_in.bias"]
    tiny_seedvr.write(broken / "vae.weights.safetensors", keys, tiny_seedvr.VAE_METADATA, 1)
    check_error(2, "decoder.conv_in.bias", "restore", film, "-o", out, "-w", broken)
    shutil.copy(models / "seedvr2_tiny.safetensors", broken / "seedvr2_other.safetensors")
    check_error(2, "--dit", "restore", film, "-o", out, "-w", broken)
    check(not out.exists() and not list(here.glob(".never*")), "nothing is left behind")


def demo():
    out = here / "demo"
    done = subprocess.run([pathlib.Path(__file__).parent.parent.parent / "tools" / "demo", "--restore", pathlib.Path(KRAIT).resolve(), out], capture_output=True, timeout=120)
    check(done.returncode == 0 and b"meaningless" in done.stdout and (out / "restored.mp4").exists(), f"demo: {done}")


if shutil.which("ffmpeg") and shutil.which("ffprobe"):
    tiny_seedvr.main(models)
    made = films()
    pictures(made)
    ends(made)
    tiles(made)
    errors(made)
    demo()
finish()
