"""Makes tests/golden/primeknet_train: losses, gradients and five training steps of PrimeKnet by its published recipe, in
float64, with tools/primeknet_twin.py's model and the weights of tests/golden/primeknet. The discriminator's weights, the
model's input and the noise in the speech are numbers of a formula (hashed), which tests/train/trainer.c repeats. The metric's targets are
random numbers; a missing one (NaN) drops that term. Needs torch, ffmpeg. Usage: python3 make.py [NAME...]"""
import json
import math
import pathlib
import subprocess
import sys

import numpy as np
import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import primeknet_twin as twin

torch.set_num_threads(1)
SAMPLES, FRAMES, BINS, STRIDE = 8000, 81, 201, 25
STARTS = (59948, 9000, 30000)  # in demo/clean.flac
NORMS = (0, 3, 6, 9, 14, 17)   # the discriminator's layers with spectral norm
WIDTHS = (2, 16, 32, 64, 128)
BY = {"magnitude": .9, "phase_ip": .3, "phase_gd": .3, "phase_iaf": .3, "complex": .1, "consistency": .05, "metric": .05}
# name, salts of the input, samples of the loss and of the steps. The losses of phases turn their gradient over where a
# difference is 0 or pi: with the loss's salt a pair of outputs has to err by 9e-6 for that (record checks). 2.8e-6 was too
# near for an H200.
CASES = (("mamba", (91, 91), (0, 1), ((0, 1), (2, 0), (1, 2), (0, 2), (1, 0))), ("gru", (47, 9), (2,), ((0,), (1,), (2,), (1,), (0,))),
         ("lstm", (29, 29), (1, 2), ((1, 2), (0, 1), (2, 1), (0, 2), (2, 0))))


def hashed(begin, n):
    """n numbers in [-1/2, 1/2), exact in float32."""
    x = np.arange(begin, begin + n, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(0x9e3779b9)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x45d9f3b)
    x ^= x >> np.uint32(16)
    return (x >> np.uint32(8)).astype(np.float32) * np.float32(2.0 ** -24) - np.float32(0.5)


def clean_speech():
    pcm = subprocess.run(["ffmpeg", "-v", "error", "-i", str(ROOT / "demo/clean.flac"), "-f", "s16le", "-"], check=True, capture_output=True).stdout
    pcm = np.frombuffer(pcm, np.int16)
    noise = hashed(1 << 20, 3 * SAMPLES).reshape(3, SAMPLES) * 200  # without it the phase of weak bins is rounding
    return np.stack([np.rint(pcm[s:s + SAMPLES] + noise[i]) for i, s in enumerate(STARTS)]).clip(-32768, 32767).astype(np.int16)


def discriminator_weights():
    shapes = {}
    for k in range(4):
        shapes.update({"layers.%d.weight_orig" % (3 * k): (WIDTHS[k + 1], WIDTHS[k], 4, 4), "layers.%d.weight" % (3 * k + 1): (WIDTHS[k + 1],),
                       "layers.%d.bias" % (3 * k + 1): (WIDTHS[k + 1],), "layers.%d.weight" % (3 * k + 2): (WIDTHS[k + 1],)})
    shapes.update({"layers.14.weight_orig": (64, 128), "layers.14.bias": (64,), "layers.16.weight": (64,), "layers.17.weight_orig": (1, 64), "layers.17.bias": (1,), "layers.18.slope": (1,)})
    w = {}
    for name in sorted(shapes):  # by name: the numbers do not depend on anybody's order
        values = hashed(sum(v.numel() for v in w.values()), math.prod(shapes[name]))
        w[name] = torch.from_numpy(values if name.endswith("orig") else np.float32(0.5) + np.float32(0.5) * values).view(shapes[name]).double()
    return w, {k: torch.from_numpy(hashed(1 << 19, len(w["layers.%d.weight_orig" % k]))).double() for k in NORMS}


def discriminate(w, u, reference, judged, keep=None):
    """Scores; u goes one power iteration on. Also that iteration's norms and v."""
    sigmas, vs = [], []

    def normed(k):
        weight = w["layers.%d.weight_orig" % k]
        flat = weight.flatten(1)
        with torch.no_grad():
            v = F.normalize(flat.t() @ u[k], dim=0, eps=1e-12)
            u[k] = F.normalize(flat @ v, dim=0, eps=1e-12)
        sigma = u[k] @ (flat @ v)
        sigmas.append(float(sigma.detach())), vs.append(v)
        return weight / sigma

    x = torch.stack((reference, judged), 1)
    for k in NORMS[:4]:
        x = F.conv2d(x, normed(k), stride=2, padding=1)
        x = F.prelu(F.instance_norm(x, weight=w["layers.%d.weight" % (k + 1)], bias=w["layers.%d.bias" % (k + 1)]), w["layers.%d.weight" % (k + 2)])
    x = F.linear(x.amax((2, 3)), normed(14), w["layers.14.bias"])
    x = F.prelu(x if keep is None else x * keep / 0.7, w["layers.16.weight"])
    x = F.linear(x, normed(17), w["layers.17.bias"])
    return torch.sigmoid(w["layers.18.slope"] * x)[:, 0], sigmas, vs


def polar(wav):
    s = twin.spectrum(wav)
    return (s.real.square() + s.imag.square() + 1e-9).sqrt() ** 0.3, torch.atan2(s.imag + 1e-10, s.real + 1e-5)


def complex_of(mag, pha):
    return torch.stack((mag * pha.cos(), mag * pha.sin()), -1)


def wrapped(v):
    return (v - 2 * math.pi * torch.round(v / (2 * math.pi))).abs().mean()


def generator_terms(made, score):
    mag, pha, mag_hat, pha_hat, com_hat, mag_con, pha_con = made
    d = pha - pha_hat
    return {"magnitude": F.mse_loss(mag, mag_hat), "phase_ip": wrapped(d), "phase_gd": wrapped(d.diff(dim=1)), "phase_iaf": wrapped(d.diff(dim=2)),
            "complex": 2 * F.mse_loss(complex_of(mag, pha), com_hat), "consistency": 2 * F.mse_loss(com_hat, complex_of(mag_con, pha_con)), "metric": (score - 1).square().mean()}


def distance_from_turns(d, r):
    """The error of the pairs (re, im), of lengths r, with whose phases one of the differences d, or of those of neighbours, could reach the nearest 0 or pi."""
    found = []
    for v, reach in ((d, 1 / r), (d.diff(dim=1), 1 / r[:, 1:] + 1 / r[:, :-1]), (d.diff(dim=2), 1 / r[:, :, 1:] + 1 / r[:, :, :-1])):
        folded = (v - 2 * math.pi * torch.round(v / (2 * math.pi))).abs()
        found.append(float((torch.minimum(folded, math.pi - folded) / reach).min()))
    return min(found)


class Trainer:
    def __init__(self, name, speech, salt):
        self.net, _ = twin.load_model(str(ROOT / ("tests/golden/primeknet/tiny-%s.weights.safetensors" % name)))
        self.net.double()
        self.pairs = [None, None]  # whose angle is the phase
        for i, name in enumerate("ri"):
            getattr(self.net.phase_decoder, "phase_conv_" + name).register_forward_hook(lambda module, x, y, i=i: self.pairs.__setitem__(i, y))
        self.w, self.u = discriminator_weights()
        for v in self.w.values():
            v.requires_grad_()
        self.speech = torch.from_numpy(speech).double() / 32768
        noise = torch.from_numpy(hashed((1 << 22) + (salt << 17), 3 * BINS * FRAMES * 2)).view(3, BINS, FRAMES, 2).double()
        self.input = noise

    def step(self, rows, quality, keep, optimisers=()):
        """Terms, scores, norms and the last v of one step: discriminator, then generator."""
        mag, pha = polar(self.speech[list(rows)])
        mag_hat, pha_hat, com_hat = self.net(self.input[list(rows)])
        length = torch.hypot(*[v.detach()[:, 0] for v in self.pairs])
        self.turns = distance_from_turns((pha - pha_hat).detach(), length if length.shape == pha.shape else length.transpose(1, 2))
        made = (mag, pha, mag_hat, pha_hat, com_hat, *polar(twin.istft(mag_hat, pha_hat)))
        D_r, sigma_r, _ = discriminate(self.w, self.u, mag, mag, keep[0])
        D_g, sigma_g, _ = discriminate(self.w, self.u, mag, made[5].detach(), keep[1])
        real, guess = (D_r - 1).square().mean(), (D_g - quality).square().mean()
        (real + guess if quality.isfinite().all() else real).backward()
        self.disc_grad = {k: v.grad.clone() for k, v in self.w.items()}
        for o in optimisers[:1]:
            o.step()
        D, sigma, vs = discriminate(self.w, self.u, mag, made[5], keep[2])
        terms = generator_terms(made, D)
        total = sum(BY[k] * v for k, v in terms.items())
        total.backward()
        for o in optimisers[1:]:
            o.step()
        phase = terms["phase_ip"] + terms["phase_gd"] + terms["phase_iaf"]
        terms = {**terms, "phase": phase, "total": total, "disc_r": real, "disc_g": guess}
        return {k: float(v.detach()) for k, v in terms.items()}, torch.stack((D_r, D_g, D)).detach(), [sigma_r, sigma_g, sigma], vs


def thinned(v):
    """Every 25th element of large tensors."""
    return (v.flatten()[::STRIDE] if v.numel() > 64 else v).float().contiguous()


def silent_in_exact_arithmetic(gradients):
    most = max(float(g.norm()) for g in gradients.values())
    return [k for k, g in gradients.items() if float(g.norm()) < 1e-10 * most]


def record(name, salts, rows, steps, speech):
    torch.manual_seed(len(name))
    t = Trainer(name, speech, salts[0])
    quality = torch.rand(len(rows))
    terms, D, sigma, vs = t.step(rows, quality.double(), [None] * 3)
    assert t.turns > 9e-6, "%s: another salt: errors of %.1e turn a phase difference over" % (name, t.turns)
    gradients = {k: p.grad for k, p in t.net.named_parameters() if p.grad is not None}
    golden = {"golden.pesq_target": quality, "golden.D": D.float(), "golden.sigma": torch.tensor(sigma)}
    golden.update({"golden.loss." + k: torch.tensor([v]) for k, v in terms.items()})
    golden.update({"golden.grad." + k: thinned(g) for k, g in gradients.items()})
    golden.update({"golden.grad_disc." + k: thinned(g) for k, g in t.disc_grad.items()})
    golden.update({"golden.disc_after.layers.%d.weight_v" % k: v.float() for k, v in zip(NORMS, vs)})
    zero = silent_in_exact_arithmetic(gradients) + silent_in_exact_arithmetic(t.disc_grad)
    twin.save_safetensors(str(HERE / (name + ".loss.golden.safetensors")), golden, {"salt": salts[0], "batch": json.dumps(rows), "zero_gradient_keys": json.dumps(zero)})

    t, how = Trainer(name, speech, salts[1]), dict(lr=5e-4, betas=(0.8, 0.99), eps=1e-8, weight_decay=0.01)
    optimisers = torch.optim.AdamW(t.w.values(), **how), torch.optim.AdamW(t.net.parameters(), **how)
    quality, recorded = torch.rand(5, len(rows)), []
    quality[2] = math.nan
    keep = (torch.rand(5, 3, len(rows), 64) < 0.7).float()
    for k, batch in enumerate(steps):
        for o in optimisers:
            o.zero_grad()
        recorded.append(t.step(batch, quality[k].double(), keep[k].double(), optimisers)[0])
        optimisers[0].zero_grad()
    golden = {"golden.pesq_target": quality, "golden.dropout_keep": keep, **{"golden.steps." + k: torch.tensor([r[k] for r in recorded]) for k in recorded[0]}}
    twin.save_safetensors(str(HERE / (name + ".steps.golden.safetensors")), golden, {"salt": salts[1], "batch": json.dumps(steps)})
    print(name, {k: "%.4f" % v for k, v in terms.items()}, len(zero), "gradients are zero")


if __name__ == "__main__":
    speech = clean_speech()
    twin.save_safetensors(str(HERE / "speech.safetensors"), {"golden.clean_i16": torch.from_numpy(speech)}, {"source": "demo/clean.flac, from samples %s, and noise" % (STARTS,)})
    for case in CASES:
        if case[0] in sys.argv[1:] or not sys.argv[1:]:
            record(*case, speech)
