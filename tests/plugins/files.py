"""files.py NAMES PLUGIN.so: a plug-in is one file of at most 4 MiB, needs the C library (and GStreamer's or OBS's), and shows a host
no names but those that it looks for."""
import os
import subprocess
import sys

names, path = sys.argv[1:]
symbols = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True).stdout
needed = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
shown = {line.split()[-1].split("@")[0] for line in symbols.splitlines()}
libraries = {line.split("[")[1].split("]")[0] for line in needed.splitlines() if "NEEDED" in line}
allowed = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
assert shown == set(names.split(',')), f"{path} shows {sorted(shown)}"
if not names.startswith(("gst", "obs")):
    assert libraries <= allowed, f"{path} needs {sorted(libraries - allowed)}"
assert os.path.getsize(path) <= 4 << 20, f"{path} has {os.path.getsize(path)} bytes"
