#!/usr/bin/env python3
"""Writes tests/golden/metrics/demo.tsv: independent programs' scores of the demo recording and its variants(), for
tests/audio/quality.c.

    make.py [OUT.tsv]

PESQ is PyPI's pesq (0.0.4), STOI PyPI's pystoi (0.4.1); LLR, WSS, the composite measures, segmental SNR and SI-SDR are
computed here with numpy from their definitions. Needs numpy, soundfile, pesq, pystoi. check.py uses
measures() too.
"""
import pathlib
import sys

import numpy as np
import soundfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
RATE, FRAME, HOP, ORDER = 16000, 480, 120, 16
WINDOW = 0.5 * (1 - np.cos(2 * np.pi * np.arange(1, FRAME + 1) / (FRAME + 1)))
NAMES = ("pesq", "pesq_nb", "csig", "cbak", "covl", "segsnr_db", "si_sdr_db", "stoi", "llr", "wss")


def frames(x):
    return np.stack([x[i * HOP:i * HOP + FRAME] * WINDOW for i in range((len(x) - FRAME) // HOP)])


def lowest(values):
    values = np.sort(values[np.isfinite(values)])
    return values[:round(len(values) * 0.95)].mean()


def llr(clean, other):
    out = []
    for c, x in zip(frames(clean), frames(other)):
        rc, rx = (np.array([v[:FRAME - k] @ v[k:] for k in range(ORDER + 1)]) for v in (c, x))
        if rc[0] <= 0 or rx[0] <= 0:
            continue
        toeplitz = lambda r, n: r[np.abs(np.subtract.outer(np.arange(n), np.arange(n)))]
        a = [np.concatenate([[1], -np.linalg.solve(toeplitz(r, ORDER), r[1:])]) for r in (rc, rx)]
        m = toeplitz(rc, ORDER + 1)
        out.append(np.log((a[1] @ m @ a[1]) / (a[0] @ m @ a[0])))
    return lowest(np.array(out))


def wss(clean, other):
    centre = np.array([50, 120, 190, 260, 330, 400, 470, 540, 617.372, 703.378, 798.717, 904.128, 1020.38, 1148.30, 1288.72, 1442.54, 1610.70, 1794.16, 1993.93,
                       2211.08, 2446.71, 2701.97, 2978.04, 3276.17, 3597.63])
    width = np.array([70] * 7 + [77.3724, 86.0056, 95.3398, 105.411, 116.256, 127.914, 140.423, 153.823, 168.154, 183.457, 199.776, 217.153, 235.631, 255.255, 276.072,
                                 298.126, 321.465, 346.136])
    bins = np.arange(512)
    bells = np.exp(-11 * ((bins[None] - np.floor(centre / 8000 * 512)[:, None]) / (width / 8000 * 512)[:, None]) ** 2) * (70 / width)[:, None]
    bells[bells <= np.exp(-30 / (2 * 2.303))] = 0

    def weights(db):
        slope, w = np.diff(db), np.zeros(24)
        for b in range(24):
            at = b
            if slope[b] > 0:
                while at < 24 and slope[at] > 0:
                    at += 1
                peak = db[at - 1]
            else:
                while at >= 0 and slope[at] <= 0:
                    at -= 1
                peak = db[at + 1]
            w[b] = 20 / (20 + db.max() - db[b]) / (1 + peak - db[b])
        return slope, w

    out = []
    for c, x in zip(frames(clean) / 32768, frames(other) / 32768):
        (sc, wc), (sx, wx) = (weights(10 * np.log10(np.maximum(bells @ (np.abs(np.fft.rfft(v, 1024)[:512]) ** 2), 1e-10))) for v in (c, x))
        w = (wc + wx) / 2
        out.append((w @ (sc - sx) ** 2) / w.sum())
    return lowest(np.array(out))


def measures(clean, other):
    """{name: value} for NAMES, both signals float64 at 16 kHz, of equal length."""
    from pesq import pesq
    from pystoi import stoi
    eps = np.finfo(float).eps
    c, d = frames(clean), frames(clean) - frames(other)
    m = {"pesq": pesq(RATE, clean, other, "wb"), "pesq_nb": pesq(RATE, clean, other, "nb"), "stoi": stoi(clean, other, RATE), "llr": llr(clean, other), "wss": wss(clean, other)}
    m["segsnr_db"] = np.clip(10 * np.log10((c ** 2).sum(1) / ((d ** 2).sum(1) + eps) + eps), -10, 35).mean()
    target = clean * (other @ clean) / (clean @ clean)
    m["si_sdr_db"] = 10 * np.log10((target @ target + eps) / ((other - target) @ (other - target) + eps))
    m["csig"] = np.clip(3.093 - 1.029 * m["llr"] + 0.603 * m["pesq"] - 0.009 * m["wss"], 1, 5)
    m["cbak"] = np.clip(1.634 + 0.478 * m["pesq"] - 0.007 * m["wss"] + 0.063 * m["segsnr_db"], 1, 5)
    m["covl"] = np.clip(1.594 + 0.805 * m["pesq"] - 0.512 * m["llr"] - 0.007 * m["wss"], 1, 5)
    return m


def variants(clean, noisy):
    """As in tests/audio/quality.c."""
    half = 0.5 * clean + 0.5 * noisy
    yield "noisy", noisy
    yield "half", half
    yield "late", np.concatenate([np.zeros(600), half[:-600]])
    middle = len(half) // 2
    yield "lost", np.concatenate([half[:middle], half[middle + 4000:], np.zeros(4000)])
    gone = half.copy()
    for i in range(10000, len(gone) - 1500, 20000):
        gone[i:i + 1500] = 0
    yield "gone", gone


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tests/golden/metrics/demo.tsv"
    clean, noisy = (soundfile.read(ROOT / "demo" / (name + ".flac"))[0] for name in ("clean", "noisy"))
    out.parent.mkdir(parents=True, exist_ok=True)
    with open(out, "w") as f:
        f.write("variant\t" + "\t".join(NAMES) + "\n")
        for name, other in variants(clean, noisy):
            m = measures(clean, other)
            f.write(name + "".join("\t%.6f" % m[k] for k in NAMES) + "\n")


if __name__ == "__main__":
    main()
