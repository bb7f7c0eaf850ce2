#!/usr/bin/env python3
"""Training data for pretrain.py: packs it into one file and mixes noisy speech from it on the GPU.

    pretrain_data.py DATA_DIR OUT.tar       select the usable recordings (licences: see CARD.md) and pack them

DATA_DIR has train/speech/SOURCE, train/noise/SOURCE, train/rir, train/pairs with FLAC files and their indexes.
All random numbers are drawn on the GPU; one Mixer.batch call makes a batch of (noisy, clean) crops.
"""

import csv
import io
import math
import os
import sys
import tarfile

import numpy as np
import torch
import torch.nn.functional as F

RATE = 16000

# source: (weight in a draw, keep every n-th file)
SPEECH = {"librispeech": (0.52, 1), "picovoice_barista": (0.14, 3), "picovoice_wakeword": (0.02, 5), "ljspeech": (0.08, 1),
          "vctk": (0.20, 1), "cmu_arctic": (0.04, 1)}
NOISE = {"esc10": 0.40, "blanket": 0.25, "speechcommands": 0.13, "speechbrain": 0.12, "picovoice": 0.06, "deepfilternet": 0.04}
RIR = ("iosr_", "audiomentations_impulse", "audiomentations_stereo")


def pack(root, out):
    def rows(path):
        with open(os.path.join(root, path), newline="") as f:
            return list(csv.DictReader(f, delimiter="\t"))

    chosen, count = [], {}
    for r in rows("train/speech/index.tsv"):
        src = r["source"]
        if src not in SPEECH or os.path.basename(r["file"]).startswith("p226"):
            continue
        count[src] = count.get(src, 0) + 1
        if count[src] % SPEECH[src][1] == 0 or SPEECH[src][1] == 1:
            chosen.append(("speech", src, float(r["level_range_p95_p5_db"]), "train/speech/" + r["file"]))
    for r in rows("train/noise/index.tsv"):
        if r["source"] in NOISE:
            chosen.append(("noise", r["source"], 0.0, "train/noise/" + r["file"]))
    for r in rows("train/rir/index.tsv"):
        if r["file"].startswith(RIR):
            chosen.append(("rir", "rir", 0.0, "train/rir/" + r["file"]))
    for r in rows("train/pairs/pairs.tsv"):
        for side in ("clean", "noisy"):
            chosen.append(("dev", side, 0.0, "train/pairs/%s/%s.flac" % (side, r["id"])))
    index = "".join("%s\t%s\t%g\t%s\n" % c for c in chosen).encode()
    with tarfile.open(out, "w") as tar:
        info = tarfile.TarInfo("index.tsv")
        info.size = len(index)
        tar.addfile(info, io.BytesIO(index))
        for c in chosen:
            tar.add(os.path.join(root, c[3]), c[3])
    print("%d files, %.1f MB" % (len(chosen), os.path.getsize(out) / 1e6))


def load(path):
    """-> {kind: [(source, value, name, int16 array)]}"""
    import soundfile
    kinds = {}
    with tarfile.open(path) as tar:
        for line in tar.extractfile("index.tsv").read().decode().splitlines():
            kind, src, value, name = line.split("\t")
            pcm, rate = soundfile.read(io.BytesIO(tar.extractfile(name).read()), dtype="int16")
            assert rate == RATE and pcm.ndim == 1, name
            kinds.setdefault(kind, []).append((src, float(value), os.path.basename(name), pcm))
    return kinds


class Bank:
    """Recordings concatenated in one int16 tensor; crops are gathered by index."""

    def __init__(self, items, weights, device):
        self.pcm = torch.from_numpy(np.concatenate([i[3] for i in items])).to(device)
        length = torch.tensor([len(i[3]) for i in items])
        self.length = length.to(device)
        self.start = (length.cumsum(0) - length).to(device)
        self.prob = torch.tensor(weights, dtype=torch.float32, device=device)

    def crop(self, shape, n, gap):
        """(*shape, n) float crops: a recording from a random offset, then a pause of at most `gap` samples, then
        others."""
        dev, k = self.pcm.device, int(np.prod(shape))
        out = None
        offset = None
        for step in range(3):
            i = torch.multinomial(self.prob, k, replacement=True)
            length, start = self.length[i], self.start[i]
            if step == 0:                                       # start anywhere but in the last half second
                enter = (torch.rand(k, device=dev) * (length - RATE // 2).clamp(min=1)).long()
                offset = -enter
                out = torch.zeros(k, n, device=dev)
            p = torch.arange(n, device=dev)[None] - offset[:, None]
            ok = (p >= 0) & (p < length[:, None])
            idx = start[:, None] + p.clamp(min=0).minimum(length[:, None] - 1)
            out += torch.where(ok, self.pcm[idx].float() / 32768.0, 0.0)
            offset = offset + length + (torch.rand(k, device=dev) * gap).long()
        return out.view(*shape, n)


def rms(x):
    return x.square().mean(-1, keepdim=True).sqrt() + 1e-7


def active_rms(x):
    """Level of the louder half of the 20 ms frames within 30 dB of the loudest."""
    e = x[..., :x.shape[-1] // 320 * 320].unflatten(-1, (-1, 320)).square().mean(-1)
    m = (e > e.amax(-1, keepdim=True) * 1e-3).float()
    return ((e * m).sum(-1, keepdim=True) / m.sum(-1, keepdim=True).clamp(min=1)).sqrt() + 1e-7


class Mixer:
    def __init__(self, kinds, device, samples=2 * RATE):
        self.device, self.n = device, samples
        speech = kinds["speech"]
        clean = lambda item: 1.0 / (1.0 + math.exp(-(item[1] - 36.0) / 4.0))     # prefer recordings with a low noise floor
        total = {}
        for s in speech:
            total[s[0]] = total.get(s[0], 0.0) + clean(s) * len(s[3])
        self.speech = Bank(speech, [SPEECH[s[0]][0] * clean(s) * len(s[3]) / total[s[0]] for s in speech], device)
        noise = [i for i in kinds["noise"] if len(i[3]) > RATE // 4]
        size = {}
        for i in noise:
            size[i[0]] = size.get(i[0], 0) + len(i[3])
        self.noise = Bank(noise, [NOISE[i[0]] * len(i[3]) / size[i[0]] for i in noise], device)
        taps = RATE
        rirs = torch.zeros(len(kinds["rir"]), taps)
        early = torch.zeros_like(rirs)
        window = torch.ones(taps)
        window[640:1440] = torch.linspace(1, 0, 800) ** 2      # early part: 40 ms, faded out by 90 ms
        window[1440:] = 0
        for k, (_, _, _, pcm) in enumerate(kinds["rir"]):
            h = torch.from_numpy(pcm[:taps].astype(np.float32) / 32768.0)
            peak = int(h.abs().argmax())
            h = h[max(peak - 32, 0):]
            h = h / h.square().sum().sqrt()
            rirs[k, :len(h)] = h
        early = rirs * window
        self.nfft = 1 << (samples + taps - 1).bit_length()
        self.rir = torch.fft.rfft(rirs.to(device), self.nfft)
        self.early = torch.fft.rfft(early.to(device), self.nfft)
        self.freq = torch.fft.rfftfreq(self.nfft, 1.0 / RATE).to(device)

    def rand(self, *shape, lo=0.0, hi=1.0):
        return torch.rand(*shape, device=self.device) * (hi - lo) + lo

    def chance(self, p, *shape):
        return torch.rand(*shape, device=self.device) < p

    def curve(self, k, points, spread):
        """(k, bins) smooth random gain in dB along log frequency."""
        knots = torch.randn(k, 1, points, device=self.device) * spread
        at = torch.log2(self.freq.clamp(min=30.0) / 30.0) / math.log2(8000.0 / 30.0) * (points - 1)
        lo = at.floor().long().clamp(max=points - 2)
        w = at - lo
        w = w * w * (3 - 2 * w)
        kn = knots[:, 0]
        return kn[:, lo] * (1 - w) + kn[:, lo + 1] * w

    def filter(self, x, gain_db):
        """Zero phase gain, (k, n) with (k, bins)."""
        y = torch.fft.irfft(torch.fft.rfft(x, self.nfft) * torch.pow(10.0, gain_db / 20.0), self.nfft)
        return y[..., :x.shape[-1]]

    def stretch(self, x, n, lo, hi):
        """Plays (k, m) at a random speed in [lo, hi]; returns (k, n), m >= n * hi + 3; cubic interpolation."""
        k = x.shape[0]
        speed = torch.exp(self.rand(k, 1, lo=math.log(lo), hi=math.log(hi)))
        speed = torch.where(self.chance(0.4, k, 1), torch.ones_like(speed), speed)
        at = torch.arange(n, device=self.device)[None] * speed + 1.0
        i = at.long()
        f = at - i
        a, b, c, d = (x.gather(1, (i + o).clamp(max=x.shape[1] - 1)) for o in (-1, 0, 1, 2))
        return b + 0.5 * f * (c - a + f * (2 * a - 5 * b + 4 * c - d + f * (3 * (b - c) + d - a)))

    def coloured(self, k):
        """Stationary or slowly swelling noise with a tilt of +3 to -12 dB per octave and a random curve."""
        x = torch.randn(k, self.n, device=self.device)
        octave = torch.log2(self.freq.clamp(min=40.0) / 1000.0)
        x = self.filter(x, self.rand(k, 1, lo=-12.0, hi=2.0) * octave[None] + self.curve(k, 8, 5.0))
        knots = torch.randn(k, 1, 9, device=self.device) * self.rand(k, 1, 1, hi=5.0)
        env = F.interpolate(knots, self.n, mode="linear", align_corners=True)[:, 0]
        return x * torch.pow(10.0, env / 20.0)

    def hum(self, k):
        """Harmonics of a slowly drifting low tone, like engines and mains hum."""
        f0 = torch.exp(self.rand(k, 1, lo=math.log(45.0), hi=math.log(280.0)))
        wander = F.interpolate(torch.randn(k, 1, 7, device=self.device), self.n, mode="linear", align_corners=True)[:, 0]
        phase = 2 * math.pi * torch.cumsum(f0 * (1 + 0.02 * wander) / RATE, 1)
        out = torch.zeros(k, self.n, device=self.device)
        for h in range(1, 13):
            amp = torch.randn(k, 1, device=self.device) / h ** 0.7 * (f0 * h < 7500)
            out += amp * torch.sin(h * phase + 6.28 * self.rand(k, 1))
        return out

    def clatter(self, k):
        """Sparse knocks with random resonances: dishes, keys, steps."""
        m = 8000
        t = torch.arange(m, device=self.device) / RATE
        kernel = torch.zeros(k, m, device=self.device)
        for _ in range(5):
            f = torch.exp(self.rand(k, 1, lo=math.log(150.0), hi=math.log(7000.0)))
            decay = torch.exp(self.rand(k, 1, lo=math.log(12.0), hi=math.log(400.0)))
            kernel += torch.randn(k, 1, device=self.device) * torch.exp(-decay * t) * torch.sin(2 * math.pi * f * t)
        kernel += torch.randn(k, m, device=self.device) * torch.exp(-t * self.rand(k, 1, lo=60.0, hi=600.0))
        rate = torch.exp(self.rand(k, 1, lo=math.log(1.0), hi=math.log(25.0))) / RATE
        hits = (torch.rand(k, self.n, device=self.device) < rate) * torch.randn(k, self.n, device=self.device)
        return torch.fft.irfft(torch.fft.rfft(hits, self.nfft) * torch.fft.rfft(kernel, self.nfft), self.nfft)[:, :self.n]

    def babble(self, k):
        """3 to 12 other voices, some of them played backwards, dulled, in a room."""
        voices = 12
        x = self.speech.crop((k, voices), int(self.n * 1.2) + 4, RATE // 2).flatten(0, 1)
        x = self.stretch(x, self.n, 0.85, 1.18)
        x = torch.where(self.chance(0.3, x.shape[0], 1), x.flip(1), x)
        x = (x / active_rms(x)).view(k, voices, self.n)
        gain = torch.pow(10.0, torch.randn(k, voices, 1, device=self.device) * 4.0 / 20.0)
        few = torch.arange(voices, device=self.device)[None, :, None] < torch.randint(3, voices + 1, (k, 1, 1), device=self.device)
        x = (x * gain * few).sum(1)
        return self.reverb(x, 0.8)

    def recorded(self, k):
        x = self.noise.crop((k,), int(self.n * 1.5) + 4, 800)
        x = self.stretch(x, self.n, 0.7, 1.45)
        x = torch.where(self.chance(0.25, k, 1), x.flip(1), x)
        x = self.filter(x, self.curve(k, 7, 5.0) + self.rand(k, 1, lo=-3.0, hi=1.0) * torch.log2(self.freq.clamp(min=60.0) / 1000.0)[None])
        return self.reverb(x, 0.3)

    def reverb(self, x, p):
        i = torch.randint(self.rir.shape[0], (x.shape[0],), device=self.device)
        y = torch.fft.irfft(torch.fft.rfft(x, self.nfft) * self.rir[i], self.nfft)[:, :x.shape[1]]
        return torch.where(self.chance(p, x.shape[0], 1), y, x)

    @torch.no_grad()
    def batch(self, k):
        n, dev = self.n, self.device
        s = self.speech.crop((k,), int(n * 1.12) + 4, RATE // 3)
        s = self.stretch(s, n, 0.9, 1.1)
        eq = self.curve(k, 6, 2.5) * self.chance(0.6, k, 1)
        s = self.filter(s, eq)
        # A few crops in a room; the target keeps the early reflections.
        i = torch.randint(self.rir.shape[0], (k,), device=dev)
        spec = torch.fft.rfft(s, self.nfft)
        room = self.chance(0.12, k, 1)
        heard = torch.where(room, torch.fft.irfft(spec * self.rir[i], self.nfft)[:, :n], s)
        clean = torch.where(room, torch.fft.irfft(spec * self.early[i], self.nfft)[:, :n], s)
        level = active_rms(clean)
        # Up to three noises out of five kinds.
        kinds = torch.stack([v / rms(v) for v in (self.recorded(k), self.recorded(k), self.babble(k), self.coloured(k),
                                                  self.hum(k), self.clatter(k))], 1)
        base = torch.tensor([1.0, 0.5, 0.75, 0.75, 0.15, 0.25], device=dev).expand(k, 6)
        picks = torch.multinomial(base, 3)
        count = torch.multinomial(torch.tensor([0.45, 0.35, 0.2], device=dev), k, replacement=True)
        gain = torch.pow(10.0, torch.randn(k, 3, device=dev) * 5.0 / 20.0) * (torch.arange(3, device=dev)[None] <= count[:, None])
        mix = (kinds.gather(1, picks[:, :, None].expand(k, 3, n)) * gain[:, :, None]).sum(1)
        low = self.chance(0.3, k, 1)                            # rumble, as inside vehicles and buildings
        tilt = torch.where(low, self.rand(k, 1, lo=-7.0, hi=-2.0), torch.zeros(k, 1, device=dev))
        mix = self.filter(mix, tilt * torch.log2(self.freq.clamp(min=50.0) / 500.0)[None])
        snr = self.rand(k, 1, lo=-5.0, hi=20.0)
        snr = torch.where(self.chance(0.02, k, 1), torch.full_like(snr, 45.0), snr)
        noise = mix / rms(mix) * level / torch.pow(10.0, snr / 20.0)
        noisy = heard + noise
        scale = torch.pow(10.0, self.rand(k, 1, lo=-36.0, hi=-14.0) / 20.0) / rms(noisy)
        scale = torch.minimum(scale, 0.99 / noisy.abs().amax(1, keepdim=True).clamp(min=1e-6))
        return noisy * scale, clean * scale


if __name__ == "__main__":
    pack(sys.argv[1], sys.argv[2])
