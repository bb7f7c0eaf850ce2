#!/usr/bin/env python3
"""Scores enhanced recordings against clean ones: SI-SDR, wide-band PESQ, STOI, segmental SNR.

    score.py CLEAN_DIR NAME=DIR [NAME=DIR ...] [--ids id,id,...] [--each]
    score.py CLEAN_DIR noisy=NOISY_DIR ours=NOISY_DIR --model ours=weights.safetensors

Files pair by name (wav or flac, 16 kHz mono). A NAME given a --model is the output of that model on the files of DIR,
computed here with the PyTorch twin. Rows are means over the ids that every NAME has; signals are cut to the shortest.
Needs numpy, soundfile, pesq, pystoi; torch for --model.
"""

import argparse
import os
import sys

import numpy as np
import soundfile
from pesq import pesq
from pystoi import stoi

RATE = 16000
METRICS = ("SI-SDR", "PESQ", "STOI", "SegSNR")


def read(folder, name):
    for ext in (".wav", ".flac"):
        path = os.path.join(folder, name + ext)
        if os.path.exists(path):
            x, rate = soundfile.read(path, dtype="float64")
            if rate != RATE or x.ndim != 1:
                raise ValueError("%s: want %d Hz mono" % (path, RATE))
            return x
    raise FileNotFoundError("%s/%s" % (folder, name))


def ids(folder):
    return {os.path.splitext(f)[0] for f in os.listdir(folder) if f.endswith((".wav", ".flac"))}


def si_sdr(ref, est):
    """Zero-mean, in dB."""
    ref, est = ref - ref.mean(), est - est.mean()
    target = est.dot(ref) / ref.dot(ref) * ref
    return 10 * np.log10(target.dot(target) / ((est - target).dot(est - target) + 1e-20))


def seg_snr(ref, est):
    """30 ms frames, hop a quarter, each clipped to [-10, 35] dB."""
    n, hop = 480, 120
    window = 0.5 * (1 - np.cos(2 * np.pi * np.arange(1, n + 1) / (n + 1)))
    out = []
    for i in range(0, len(ref) - n, hop):
        r = ref[i:i + n] * window
        e = r - est[i:i + n] * window
        out.append(10 * np.log10(r.dot(r) / (e.dot(e) + 1e-10) + 1e-10))
    return float(np.mean(np.clip(out, -10, 35)))


def scores(ref, est):
    return (si_sdr(ref, est), pesq(RATE, ref, est, "wb"), stoi(ref, est, RATE), seg_snr(ref, est))


def run_model(path, wavs, out):
    import torch
    import primeknet_twin as pk
    net, _ = pk.load_model(path)
    net.eval()
    result = {}
    for name, x in wavs.items():
        with torch.no_grad():
            y = pk.enhance(net, torch.from_numpy(x.astype(np.float32)))
        result[name] = y.double().numpy()
        if out:
            os.makedirs(out, exist_ok=True)
            soundfile.write(os.path.join(out, name + ".wav"), result[name], RATE, subtype="FLOAT")
    return result


def main():
    ap = argparse.ArgumentParser(description="SI-SDR, PESQ, STOI and segmental SNR of enhanced recordings")
    ap.add_argument("clean")
    ap.add_argument("systems", nargs="+", metavar="NAME=DIR")
    ap.add_argument("--model", action="append", default=[], metavar="NAME=WEIGHTS")
    ap.add_argument("--out", help="also write the models' outputs below this folder")
    ap.add_argument("--ids", help="only these, separated by commas")
    ap.add_argument("--each", action="store_true", help="a row per file too")
    a = ap.parse_args()
    folders = dict(s.split("=", 1) for s in a.systems)
    models = dict(s.split("=", 1) for s in a.model)
    names = ids(a.clean)
    for f in folders.values():
        names &= ids(f)
    if a.ids:
        names &= set(a.ids.split(","))
    names = sorted(names)
    if not names:
        sys.exit("no common files")
    audio = {}
    for s, f in folders.items():
        audio[s] = {n: read(f, n) for n in names}
        if s in models:
            audio[s] = run_model(models[s], audio[s], a.out and os.path.join(a.out, s))
    clean = {n: read(a.clean, n) for n in names}
    rows = {s: [] for s in folders}
    for n in names:
        k = min([len(clean[n])] + [len(audio[s][n]) for s in folders])
        for s in folders:
            rows[s].append(scores(clean[n][:k], audio[s][n][:k]))
            if a.each:
                print("%-22s %-12s " % (n, s) + " ".join("%7.3f" % v for v in rows[s][-1]), flush=True)
    print("%-35s " % ("mean of %d files" % len(names)) + " ".join("%7s" % m for m in METRICS))
    for s in folders:
        print("%-35s " % s + " ".join("%7.3f" % v for v in np.mean(rows[s], 0)))


if __name__ == "__main__":
    sys.exit(main())
