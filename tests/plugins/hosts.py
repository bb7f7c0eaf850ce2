"""hosts.py KRAIT NAME=PLUGIN.so...: the plug-ins in the hosts that are installed (ffmpeg, applyplugin, lv2apply,
gst-launch-1.0) say what `krait enhance` says, as late as they report, and lv2bench runs them; 77 if there is none."""
import array
import math
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile

krait, plugins = sys.argv[1], {name: pathlib.Path(path).resolve() for name, path in (word.split("=", 1) for word in sys.argv[2:])}
HZ, N, LATENCY, END = 48000, 48000, 1392, 3000
random.seed(3)


def wav(samples):
    data = array.array("f", samples).tobytes()
    return b"RIFF" + struct.pack("<I", len(data) + 36) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 3, 1, HZ, 4 * HZ, 4, 32) + b"data" + struct.pack("<I", len(data)) + data


def samples_of(path):
    data = path.read_bytes()
    at = data.index(b"data") + 8
    data = data[:at + struct.unpack("<I", data[at - 4:at])[0]]
    if data[20:22] == b"\1\0":  # 16 bits
        return [v / 32768 for v in array.array("h", data[at:at + (len(data) - at) // 2 * 2])]
    return array.array("f", data[at:at + (len(data) - at) // 4 * 4])


def run(*words, **environment):
    done = subprocess.run([str(w) for w in words], env={**os.environ, **environment}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    bundle = folder / "lv2/krait.lv2"
    bundle.mkdir(parents=True)
    if "lv2" in plugins:
        shutil.copy(plugins["lv2"], bundle)
        for name in ("manifest.ttl", "denoiser.ttl"):
            shutil.copy(pathlib.Path(__file__).parents[2] / "plugins" / name, bundle)
    (folder / "in.wav").write_bytes(wav([round(6000 * math.sin(0.02 * i + 3 * math.sin(i / 900)) * max(0, math.sin(i / 4000)) + random.uniform(-1500, 1500)) / 32768 for i in range(N)]))
    run(krait, "enhance", "-q", "-w", "streaming", "--device", "cpu", folder / "in.wav", "-o", folder / "want.wav")
    want, out = samples_of(folder / "want.wav"), folder / "out.wav"
    filters = subprocess.run(["ffmpeg", "-hide_banner", "-filters"], capture_output=True, text=True).stdout if shutil.which("ffmpeg") else ""
    ffmpeg = ("ffmpeg", "-v", "error", "-y", "-i", folder / "in.wav", "-c:a", "pcm_f32le", "-af")
    path = {"LV2_PATH": str(folder / "lv2"), "LADSPA_PATH": str(plugins.get("ladspa", folder).parent if "ladspa" in plugins else folder)}
    calls = {}  # name: command, latency, how exact
    if "ladspa" in plugins and " ladspa " in filters:
        for block in (64, 480, 1024):
            calls[f"ffmpeg, ladspa, {block}"] = (*ffmpeg, f"asetnsamples=n={block}:p=0,ladspa=file={plugins['ladspa']}:plugin=krait_mono", out), LATENCY, 1e-5
    if "ladspa" in plugins and shutil.which("applyplugin"):
        calls["applyplugin"] = ("applyplugin", folder / "in16.wav", out, "krait_ladspa.so", "krait_mono", "1", "60", "0"), LATENCY, 1e-4
        samples = array.array("h", (round(32768 * v) for v in samples_of(folder / "in.wav"))).tobytes()
        (folder / "in16.wav").write_bytes(b"RIFF" + struct.pack("<I", len(samples) + 36) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, HZ, 2 * HZ, 2, 16) + b"data" + struct.pack("<I", len(samples)) + samples)
    if "lv2" in plugins and " lv2 " in filters:
        calls["ffmpeg, lv2"] = (*ffmpeg, "lv2=p=urn\\\\:krait\\\\:denoiser\\\\:mono", out), LATENCY, 1e-5
    if "lv2" in plugins and shutil.which("lv2apply"):
        calls["lv2apply"] = ("lv2apply", "-i", folder / "in.wav", "-o", out, "urn:krait:denoiser:mono"), LATENCY, 1e-5
    if "gst" in plugins and shutil.which("gst-launch-1.0"):
        path |= {"GST_PLUGIN_PATH": str(plugins["gst"].parent), "GST_REGISTRY": str(folder / "registry")}
        calls["gst-launch-1.0"] = ("gst-launch-1.0", "-q", "filesrc", f"location={folder}/in.wav", "!", "wavparse", "!", "kraitdenoise", "!", "wavenc", "!", "filesink", f"location={out}"), 0, 1e-5
    for name, (command, latency, bound) in calls.items():
        out.unlink(missing_ok=True)
        run(*command, **path)
        got = samples_of(out)
        n = min(len(got) - latency, len(want) - END)  # the end: enhance knows that it is one
        worst = max(abs(got[latency + i] - want[i]) for i in range(n))
        print(f"{name}: {len(got)} samples, {latency} late, off by {worst:.1e}")
        assert n >= N - LATENCY - END - 1024 and worst <= bound, name
        assert latency or len(got) == N
    for channels in ("mono", "stereo") if "lv2" in plugins and shutil.which("lv2bench") else ():
        told = run("lv2bench", "-b", "64", "-n", N, f"urn:krait:denoiser:{channels}", **path)
        print(f"lv2bench: {told.strip()} s for {N / HZ:.0f}")
        assert float(told.split()[0]) > 0
sys.exit(0 if calls else 77)
