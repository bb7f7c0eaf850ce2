#!/usr/bin/env python3
"""Compares `krait evaluate` with independent programs: PyPI's pesq and pystoi, and numpy (make.py). Needs
numpy, soundfile, pesq, pystoi.

    check.py KRAIT CLEAN NOISY [CLEAN NOISY]...

16 kHz mono files only. Prints the differences and fails if one exceeds its bound."""
import json
import pathlib
import subprocess
import sys

import soundfile

from make import RATE, measures

BOUNDS = {"pesq": 0.005, "csig": 0.01, "cbak": 0.01, "covl": 0.01, "segmental_snr_db": 1e-3, "si_sdr_db": 1e-3, "stoi": 1e-3, "llr": 1e-3, "wss": 0.05}


def compare(krait, clean_path, other_path):
    (clean, rate), (other, other_rate) = soundfile.read(clean_path), soundfile.read(other_path)
    assert rate == other_rate == RATE and clean.ndim == other.ndim == 1, "16 kHz mono files only"
    n = min(len(clean), len(other))
    want = measures(clean[:n], other[:n])
    want["segmental_snr_db"] = want["segsnr_db"]
    done = subprocess.run([krait, "evaluate", clean_path, other_path, "--json"], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)["results"][0]["other"]
    differences = {k: abs(found[k] - want[k]) for k in BOUNDS}
    print(pathlib.Path(other_path).name, {k: f"{v:.1e}" for k, v in differences.items()}, flush=True)
    return differences


krait, pairs = sys.argv[1], sys.argv[2:]
all_differences = [compare(krait, pairs[i], pairs[i + 1]) for i in range(0, len(pairs), 2)]
worst = {k: max(d[k] for d in all_differences) for k in BOUNDS}
print(f"worst of {len(all_differences)}:", {k: f"{v:.2e}" for k, v in worst.items()})
if any(worst[k] > BOUNDS[k] for k in BOUNDS):
    sys.exit("some differ by more than " + str(BOUNDS))
