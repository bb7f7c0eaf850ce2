"""pipewire.py KRAIT LADSPA-PLUGIN: the microphone of `krait live --setup-pipewire` in a PipeWire daemon of its own: speech played
to a sink that only it hears comes out cleaned, as late as the plug-in reports. 77 without PipeWire, WirePlumber and D-Bus."""
import array
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

krait, plugin = (pathlib.Path(word).resolve() for word in sys.argv[1:])
LATENCY, AROUND, PIECE, SECONDS = 1392, 60, 6000, 3
TOOLS = "dbus-run-session", "pipewire", "wireplumber", "pw-cat", "pw-record", "pw-link", "pw-cli"
speech = pathlib.Path(__file__).parents[2] / "demo/clean.flac"
if not all(map(shutil.which, TOOLS)):
    sys.exit(77)
if "DBUS_SESSION_BUS_ADDRESS" not in os.environ or "KRAIT_TEST_BUS" not in os.environ:
    os.execvpe("dbus-run-session", ["dbus-run-session", "--", sys.executable, __file__, *sys.argv[1:]], {**os.environ, "KRAIT_TEST_BUS": "1"})

folder = pathlib.Path(tempfile.mkdtemp())
for name in ("run", "config", "state", "home"):
    (folder / name).mkdir(mode=0o700)
environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder / "run"), "XDG_CONFIG_HOME": str(folder / "config"), "XDG_STATE_HOME": str(folder / "state"),
               "HOME": str(folder / "home"), "LADSPA_PATH": str(plugin.parent)}
running = []


def start(*words):
    running.append(subprocess.Popen([str(w) for w in words], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    return running[-1]


def say(*words):
    return subprocess.run([str(w) for w in words], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20).stdout


def wait_for(*ports):
    for _ in range(100):
        there = say("pw-link", "-io").splitlines()
        if all(port in there for port in ports):
            return
        time.sleep(0.1)
    sys.exit(f"{ports} did not all come: {there}")


def lag_of(dry, wet):
    """In samples, of a loud piece of dry in wet."""
    begin = max(range(0, len(dry) - PIECE - LATENCY - AROUND, PIECE), key=lambda i: sum(v * v for v in dry[i:i + PIECE]))
    piece = dry[begin:begin + PIECE]
    return max(range(LATENCY - AROUND, LATENCY + AROUND), key=lambda lag: sum(a * b for a, b in zip(piece, wet[begin + lag:begin + lag + PIECE])))


try:
    subprocess.run([krait, "enhance", "-q", "--mix", "0", "--device", "cpu", speech, "-o", folder / "in.wav"], check=True)
    subprocess.run([krait, "live", "--setup-pipewire"], env=environment, check=True, capture_output=True)
    made = next((folder / "config").rglob("krait-denoise.conf"))  # hears the default microphone: there, the sink's monitor
    made.write_text(made.read_text().replace("node.passive = true", "stream.capture.sink = true target.object = krait-test"))
    start("pipewire")
    time.sleep(1)
    start("wireplumber")
    wait_for("krait.microphone:capture_MONO")
    say("pw-cli", "create-node", "adapter", "{ factory.name=support.null-audio-sink node.name=krait-test media.class=Audio/Sink object.linger=true audio.position=[MONO] }")
    wait_for("krait-test:monitor_MONO", "krait.capture:input_MONO")
    recorder = start("pw-record", "--channels", 2, "--rate", 48000, "--format", "f32", "-P", "{ node.autoconnect=false node.name=krait-recorder }", folder / "out.wav")
    wait_for("krait-recorder:input_FL", "krait-recorder:input_FR")
    say("pw-link", "krait-test:monitor_MONO", "krait-recorder:input_FL")
    say("pw-link", "krait.microphone:capture_MONO", "krait-recorder:input_FR")
    start("pw-cat", "-p", "--target", "krait-test", folder / "in.wav")
    time.sleep(SECONDS)
    recorder.send_signal(signal.SIGINT)
    recorder.wait(10)
    data = (folder / "out.wav").read_bytes()
    at = data.index(b"data") + 8
    samples = array.array("f", data[at:at + (len(data) - at) // 8 * 8])
    dry, wet = samples[0::2], samples[1::2]
    loudest = max(map(abs, wet))
    lag = lag_of(dry, wet)
    print(f"{len(dry)} samples, loudest {max(map(abs, dry)):.3f} and {loudest:.3f}, {lag} late")
    assert loudest > 0.05 and lag == LATENCY
    subprocess.run([krait, "live", "--remove"], env=environment, check=True, capture_output=True)
    assert not list((folder / "config").rglob("*.conf"))
finally:
    for process in reversed(running):
        process.terminate()
    for process in running:
        process.wait(10)
    shutil.rmtree(folder, ignore_errors=True)
