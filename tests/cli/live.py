"""krait live: as many samples as received, as soon as they are due, and equal to `krait enhance` on the same
windows."""
import array
import ctypes.util
import math
import os
import pathlib
import pty
import random
import select
import struct
import subprocess
import tempfile
import wave

from run import KRAIT, check, check_error, finish, krait

HOP, AHEAD, FADE, WINDOW = 4000, 1600, 160, 16000
GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "primeknet"
WEIGHTS = ["--weights", GOLDEN / "tiny-mamba.weights.safetensors", "--threads", "1"]
random.seed(1)
sound = array.array("h", (int(6000 * math.sin(0.1 * i) * math.sin(i / 3000) + random.uniform(-3000, 3000)) for i in range(3 * WINDOW // 2 + 123)))


def live(samples):
    done = krait("live", *WEIGHTS, stdin=samples.tobytes())
    check(done.returncode == 0 and done.stderr == b"", f"{len(samples)} samples: {done.returncode} {done.stderr}")
    return array.array("h", done.stdout)


def enhanced(samples, folder):
    """A window by krait enhance."""
    with wave.open(str(folder / "in.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    check(krait("enhance", "-f", *WEIGHTS, "--device", "cpu", folder / "in.wav", "-o", folder / "out.wav").returncode == 0, "enhance")
    with wave.open(str(folder / "out.wav")) as file:
        return array.array("h", file.readframes(file.getnframes()))


def expected(samples, folder):
    said, tail = [], []
    for end in list(range(HOP, len(samples) + 1, HOP)) + [None]:
        heard = len(samples) if end is None else end
        begin, due = max(0, heard - WINDOW), heard if end is None else heard - AHEAD
        if due <= len(said):
            break
        window = enhanced(samples[begin:heard], folder)
        new = list(window[len(said) - begin:due - begin])
        for i in range(min(FADE, len(new), len(tail))):
            share = (i + 0.5) / FADE
            new[i] = share * new[i] + (1 - share) * tail[i]
        tail = window[due - begin:due - begin + FADE]
        said += new
    return said


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    for n in (0, 1, 159, HOP - 1, HOP, HOP + 1, 2 * HOP + 77, len(sound)):
        got, want = live(sound[:n]), expected(sound[:n], folder) if n else []
        check(len(got) == len(want) == n, f"{n} samples: {len(got)}, {len(want)}")
        check(all(abs(g - w) <= 2 for g, w in zip(got, want)), f"{n} samples: what enhance says of the windows, within {max((abs(g - w) for g, w in zip(got, want)), default=0)}")

# due samples are not held back while input continues
process = subprocess.Popen([KRAIT, "live", *map(str, WEIGHTS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
heard, said = 0, 0
for _ in range(3):
    process.stdin.write(sound[heard:heard + HOP].tobytes())
    process.stdin.flush()
    heard += HOP
    while said < heard - AHEAD and select.select([process.stdout], [], [], 60)[0]:
        piece = os.read(process.stdout.fileno(), 65536)
        said += len(piece) // 2
        if not piece:
            break
    check(said == heard - AHEAD, f"{said} samples written after {heard} were read")
out, err = process.communicate(timeout=60)
check(process.returncode == 0 and len(out) == 2 * AHEAD and err == b"", f"the rest at the end: {len(out)}, {err}")

# a streaming model: equal to krait enhance of the whole, 31 ms late for any chunk size
LATENCY = 500
STREAMING = ["--weights", GOLDEN / "tiny-streaming.weights.safetensors", "--threads", "1"]
whole, WEIGHTS[1] = None, STREAMING[1]
with tempfile.TemporaryDirectory() as folder:
    whole = enhanced(sound, pathlib.Path(folder))
process = subprocess.Popen([KRAIT, "live", *map(str, STREAMING)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
heard, said = 0, b""
while heard < len(sound):
    some = sound[heard:heard + random.choice((1, 100, 160, 333, 1700))]
    process.stdin.write(some.tobytes())
    process.stdin.flush()
    heard += len(some)
    while len(said) // 2 < heard - LATENCY and select.select([process.stdout], [], [], 60)[0]:
        piece = os.read(process.stdout.fileno(), 65536)
        said += piece
        if not piece:
            break
    check(heard - LATENCY <= len(said) // 2 < heard, f"{len(said) // 2} samples written after {heard} were read")
out, err = process.communicate(timeout=60)
got = array.array("h", said + out)
check(process.returncode == 0 and err == b"" and len(got) == len(sound), f"all of it: {len(got)}, {err}")
check(all(abs(g - w) <= 1 for g, w in zip(got, whole)), f"what enhance says, within {max(abs(g - w) for g, w in zip(got, whole))}")

# the built-in one
done = krait("live", "--weights", "streaming", stdin=sound[:1600].tobytes())
check(done.returncode == 0 and len(done.stdout) == 3200 and any(done.stdout), f"the streaming model inside: {done}")

# WAV comes out as it came in: rate, channels, form and number of samples, and equal to krait enhance
def wav(frames, rate, channels, bits, is_float=0, n_bytes=None, extra=b""):
    n_bytes = len(frames) if n_bytes is None else n_bytes
    form = struct.pack("<HHIIHH", 3 if is_float else 1, channels, rate, rate * channels * bits // 8, channels * bits // 8, bits)
    return b"RIFF" + struct.pack("<I", min(n_bytes + 36, 0xffffffff)) + b"WAVEfmt \x10\0\0\0" + form + extra + b"data" + struct.pack("<I", n_bytes) + frames


def noise(n):
    return [0.3 * math.sin(0.05 * i) * math.sin(i / 5000) + random.uniform(-0.1, 0.1) for i in range(n)]


def pack(values, bits, is_float):
    if is_float:
        return struct.pack(f"<{len(values)}f", *values)
    return b"".join(int(v * (1 << bits - 1)).to_bytes(bits // 8, "little", signed=True) for v in values)


def unpack(data, bits, is_float):
    if is_float:
        return struct.unpack(f"<{len(data) // 4}f", data)
    return [int.from_bytes(data[i:i + bits // 8], "little", signed=True) / (1 << bits - 1) for i in range(0, len(data), bits // 8)]


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    for rate, channels, bits, is_float in ((48000, 1, 32, 1), (8000, 1, 24, 0), (16000, 2, 32, 0), (44100, 2, 16, 0)):
        data = wav(pack(noise(rate // 2 * channels), bits, is_float), rate, channels, bits, is_float)
        (folder / "in.wav").write_bytes(data)
        done = krait("enhance", "-f", *STREAMING, "--device", "cpu", folder / "in.wav", "-o", folder / "out.wav")
        check(done.returncode == 0, f"enhance: {done}")
        want = unpack((folder / "out.wav").read_bytes().split(b"data", 1)[1][4:][:len(data) - 44], bits, is_float)
        for extra, n_bytes in ((b"", len(data) - 44), (b"LIST\x05\0\0\0abcde\0", 0xffffffff)):
            done = krait("live", *STREAMING, stdin=wav(data[44:], rate, channels, bits, is_float, n_bytes, extra))
            check(done.returncode == 0 and done.stderr == b"" and done.stdout[12:36] == data[12:36], f"{rate} Hz: {done.stderr}, {done.stdout[:44]}")
            got = unpack(done.stdout[44:], bits, is_float)
            worst = max((abs(g - w) for g, w in zip(got, want)), default=9)
            # One frame at a time is computed by other operators than several: a value may be rounded to its neighbour.
            check(len(got) == len(want) and worst < (4e-5 if bits == 16 else 1e-5), f"{rate} Hz: {len(got)} of {len(want)} samples, off by {worst}")
    dry = krait("live", *STREAMING, "--mix", "0", stdin=data)
    check(dry.stdout == data, "--mix 0 gives back the input")
    check(krait("live", *STREAMING, "--gate", "1", stdin=data).stdout[44:].count(0) > len(data) * 0.9, "--gate 1 is silence")
done = krait("live", *STREAMING, stdin=data[:-100])
check(done.returncode == 1 and b"ends before its WAV header says" in done.stderr and len(done.stdout) == len(data) - 100, f"a cut WAV stream: {done.stderr}")
check_error(2, "not of 1 or 2 channels of 16, 24 or 32 bits", "live", stdin=wav(b"", 48000, 6, 16))
check_error(2, "not of 1 or 2 channels of 16, 24 or 32 bits", "live", stdin=data[:40])
check_error(2, "8000 to 192000", "live", stdin=wav(bytes(100), 4000, 1, 16))
has_pulse = ctypes.util.find_library("pulse-simple") is not None
check_error(2, "default and default cannot be opened: " + ("no sound server answers; is PipeWire or PulseAudio" if has_pulse else "there is no libpulse-simple.so.0"),
            "live", "--in", "default", "--out", "default", stdin=b"", env=dict(os.environ, PULSE_SERVER="unix:/nonexistent"))
check_error(2, "--in and --out go together", "live", "--in", "default", stdin=b"")
check_error(2, "--band is 8k, not whole or 16k", "live", "--band", "8k", stdin=b"")

terminal, other_end = pty.openpty()  # a file to a terminal
with tempfile.TemporaryFile() as file:
    file.write(data)
    file.seek(0)
    done = subprocess.run([KRAIT, "live"], stdin=file, stdout=other_end, stderr=subprocess.PIPE, timeout=60)
check(done.returncode == 2 and b"krait live <IN.wav >OUT.wav" in done.stderr, f"a terminal: {done}")

with tempfile.TemporaryDirectory() as folder:  # PipeWire's microphone
    folder = pathlib.Path(folder)
    environment = {**os.environ, "HOME": str(folder), "LADSPA_PATH": str(folder)}
    environment.pop("XDG_CONFIG_HOME", None)
    conf = folder / ".config/pipewire/pipewire.conf.d/krait-denoise.conf"
    (folder / "krait_ladspa.so").touch()
    for again in range(2):
        done = subprocess.run([KRAIT, "live", "--setup-pipewire"], env=environment, capture_output=True, timeout=60)
        check(done.returncode == 0 and f'plugin = "{folder}/krait_ladspa.so"' in conf.read_text() and str(conf) in done.stdout.decode(), f"{done}")
    for again in range(2):
        done = subprocess.run([KRAIT, "live", "--remove"], env=environment, capture_output=True, timeout=60)
        check(done.returncode == 0 and not conf.exists() and (b"is not there" if again else b"is removed") in done.stdout, f"{done}")

done = krait("live", *WEIGHTS, stdin=sound[:100].tobytes() + b"x")
check(done.returncode == 1 and done.stderr.count(b"\n") == 1 and b"within a 16-bit sample" in done.stderr, f"{done}")
check(done.stdout == krait("live", *WEIGHTS, stdin=sound[:100].tobytes()).stdout and len(done.stdout) == 200, f"whole samples before the cut are said: {len(done.stdout)} bytes")
with open("/dev/full", "wb") as full:
    done = subprocess.run([KRAIT, "live", *map(str, WEIGHTS)], input=sound[:100].tobytes(), stdout=full, stderr=subprocess.PIPE, timeout=60)
check(done.returncode == 1 and done.stderr.count(b"\n") == 1 and b"cannot write standard output" in done.stderr, f"{done}")
check_error(2, "but it takes none", "live", "talk.wav", stdin=b"")
check_error(2, "nothing.safetensors", "live", "-w", "nothing.safetensors", stdin=b"")
finish()
