#!/usr/bin/env python3
"""Compares the scores of `krait enhance --reference` with independent ones: STOI with PyPI's pystoi, SI-SDR and segmental SNR
with numpy. Needs numpy, soundfile and pystoi. Usage: check_metrics.py KRAIT CLEAN NOISY [CLEAN NOISY]..."""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import soundfile
from pystoi import stoi

EPS = np.finfo(float).eps
BOUNDS = {"si_sdr_db": 1e-3, "segmental_snr_db": 1e-3, "stoi": 1e-3}


def si_sdr_db(clean, other):
    target = clean * (other @ clean) / (clean @ clean)
    return 10 * np.log10((target @ target) / ((other - target) @ (other - target)))


def segmental_snr_db(clean, other, rate):
    length, hop = round(0.03 * rate), int(0.03 * rate) // 4
    window = 0.5 * (1 - np.cos(2 * np.pi * np.arange(1, length + 1) / (length + 1)))
    values = []
    for i in range(int(len(clean) / hop - length / hop)):
        c = clean[i * hop:i * hop + length] * window
        x = other[i * hop:i * hop + length] * window
        values.append(10 * np.log10((c @ c) / ((c - x) @ (c - x) + EPS) + EPS))
    return np.mean(np.clip(values, -10, 35))


def compare(krait, clean_path, noisy_path):
    clean, rate = soundfile.read(clean_path)
    assert rate == 16000 and clean.ndim == 1, "16 kHz mono files only"
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out.wav"
        done = subprocess.run([krait, "enhance", noisy_path, "-o", out, "--reference", clean_path, "--json"], capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
        signals = {"noisy": soundfile.read(noisy_path)[0], "enhanced": soundfile.read(out)[0]}
    worst = dict.fromkeys(BOUNDS, 0.0)
    for side, signal in signals.items():
        want = {"si_sdr_db": si_sdr_db(clean, signal), "segmental_snr_db": segmental_snr_db(clean, signal, rate), "stoi": stoi(clean, signal, rate)}
        for name, value in want.items():
            worst[name] = max(worst[name], abs(found[side][name] - value))
    print(pathlib.Path(noisy_path).name, {k: f"{v:.2e}" for k, v in worst.items()})
    return all(worst[k] <= BOUNDS[k] for k in BOUNDS)


krait, pairs = sys.argv[1], sys.argv[2:]
results = [compare(krait, pairs[i], pairs[i + 1]) for i in range(0, len(pairs), 2)]
print("all within", BOUNDS) if all(results) else sys.exit("some differ by more than " + str(BOUNDS))
