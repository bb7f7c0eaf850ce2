#!/usr/bin/env python3
"""Trains the PrimeKnet-Mamba denoiser whose weights are embedded in krait.

    pretrain_data.py DATA_DIR data.tar                    pack the recordings
    pretrain.py data.tar RUN_DIR --minutes 26             train, or resume, for that much wall-clock time in total
    pretrain.py data.tar RUN_DIR --bench                  check the fused operators against the twin, time steps
    pretrain.py - RUN_DIR --export OUT.safetensors        write the averaged weights with the metadata of the C loader

Learning rate and end depend on elapsed training time, so a run fits a fixed slot on any device. RUN_DIR contains
state.pt (everything needed to resume), ema.safetensors (averaged weights) and log.txt.
Needs a CUDA device, torch 2.6 or later, soundfile; the perceptual term's tables come from the package torch_pesq.
"""

import argparse
import json
import math
import os
import sys
import time

import torch
import torch.nn.functional as F

import primeknet_twin as pk
import pretrain_data

CONFIG = dict(fft_len=400, dense_channel=64, sigmoid_beta=2.0, dense_depth=4, num_tsblock=2, time_block_num=1,
              freq_block_num=1, causal=False)

# ------------------------------------------------------------------------------------------------ losses


class Perceptual(torch.nn.Module):
    """Differentiable distance following ITU-T P.862 (no time alignment), like torch_pesq but with filters in the
    frequency
    domain. About 4.5 minus the raw score."""

    def __init__(self):
        super().__init__()
        import numpy as np
        from torch_pesq import bark, loudness
        table = lambda v: torch.tensor(np.asarray(v), dtype=torch.float32)
        fb = torch.zeros(49, 256)
        at = 0
        for i, n in enumerate(bark.nr_of_hz_bands_per_bark_band_16k):
            fb[i, at:at + n] = bark.pow_dens_correction_factor_16k[i] * bark.Sp_16k
            at += n
        fb[:, 0] = 0
        f = torch.arange(256) / 512.0
        e1, e2 = torch.exp(-2j * math.pi * f), torch.exp(-4j * math.pi * f)
        pre = (2.740826 - 5.4816519 * e1 + 2.740826 * e2) / (1 - 1.9444777 * e1 + 0.94597794 * e2)
        self.register_buffer("fb", fb * pre.abs().square())
        self.register_buffer("width", table(bark.width_of_band_bark_16k))
        self.register_buffer("thr", table(loudness.abs_thresh_power_16k))
        exp = (6 / (table(bark.centre_of_band_bark_16k) + 2.0)).clamp(1.0, 2.0) ** 0.15 * loudness.zwicker_power
        self.register_buffer("exp", exp)
        self.register_buffer("window", torch.hann_window(512))
        self.total, self.sl = float(self.width[1:].sum()), loudness.Sl_16k

    def bands(self, x):
        n = x.shape[1]
        spec = torch.fft.rfft(x)
        f = torch.fft.rfftfreq(n, 1.0 / 16000, device=x.device)
        inband = ((f > 325) & (f < 3250)).float()
        power = (spec.real.square() + spec.imag.square()).mul(inband).sum(1, keepdim=True) * 2 / n / (n + 5120) / 1.04684
        x = x * (1e7 / (power + 1e-12)).sqrt()
        s = torch.stft(x, 512, 256, 512, self.window, center=False, return_complex=True)[:, :256]
        return (s.real.square() + s.imag.square()).transpose(1, 2) @ self.fb.t()

    def audible(self, p, factor):
        return (p * (p > self.thr * factor)).sum(2)

    def loud(self, p):
        v = (2 * self.thr) ** self.exp * ((0.5 + 0.5 * p / self.thr) ** self.exp - 1)
        return torch.where(p > self.thr, v, torch.zeros_like(v)) * self.sl

    def norm(self, v, p):
        v = (self.width * v / self.total ** (1 / p))[:, :, 1:].abs()
        return self.total * (v.sum(2) if p == 1 else (v.square().sum(2) + 1e-12).sqrt())

    def pool(self, d):
        d = d.unfold(1, 20, 10)
        return ((d / 45) ** 6).mean(2).add(1e-18).pow(1 / 3).mean(1).sqrt() * 45

    def forward(self, ref, deg):
        ref, deg = self.bands(ref), self.bands(deg)
        spoken = (self.audible(ref, 100.0) >= 1e7).float()[:, :, None]
        mean = lambda p: (p * (p > self.thr * 100) * spoken).mean(1)
        ratio = ((mean(deg) + 1000) / (mean(ref) + 1000)).clamp(0.01, 100.0)
        ref = ref * ratio[:, None]
        level = self.audible(ref, 1.0)
        gain = (level + 5e3) / (self.audible(deg, 1.0) + 5e3)
        gain = torch.cat((gain[:, :1], 0.8 * gain[:, 1:] + 0.2 * gain[:, :-1]), 1).clamp(3e-4, 5.0)
        deg = deg * gain[:, :, None]
        ld, lr = self.loud(deg), self.loud(ref)
        diff = ld - lr
        diff = diff.sign() * (diff.abs() - 0.25 * torch.minimum(ld, lr)).clamp(min=0)
        skew = ((deg + 50.0) / (ref + 50.0)) ** 1.2
        skew = torch.where(skew < 3.0, torch.zeros_like(skew), skew.clamp(max=12.0))
        h = ((level + 1e5) / 1e7) ** 0.04
        sym = (self.norm(diff, 2) / h).clamp(max=45.0)
        asym = (self.norm(diff * skew, 1) / h).clamp(max=45.0)
        return 0.1 * self.pool(sym) + 0.0309 * self.pool(asym)


def unwrap(v):
    return (v - 2 * math.pi * torch.round(v / (2 * math.pi))).abs()


def si_sdr(est, ref):
    ref = ref - ref.mean(-1, keepdim=True)
    est = est - est.mean(-1, keepdim=True)
    t = (est * ref).sum(-1, keepdim=True) / (ref.square().sum(-1, keepdim=True) + 1e-9) * ref
    return 10 * torch.log10((t.square().sum(-1) + 1e-9) / ((est - t).square().sum(-1) + 1e-9))


def analyse(wav):
    """-> compressed magnitude and phase (B, T, F), the model's input."""
    com = pk.stft(wav).transpose(1, 2)
    return com.norm(dim=-1), torch.atan2(com[..., 1], com[..., 0]), com


def synthesise(mag, re, im):
    """Magnitude and an unnormalised direction (B, T, F) -> waveform, compressed spectrum."""
    r = torch.rsqrt(re * re + im * im + 1e-12)
    com = torch.stack((mag * re * r, mag * im * r), -1)
    big = mag.clamp(min=1e-6) ** (1 / pk.COMPRESS)
    s = torch.complex(big * re * r, big * im * r).transpose(1, 2)
    wav = torch.istft(s, pk.N_FFT, pk.HOP, pk.N_FFT, torch.hann_window(pk.N_FFT, device=mag.device), center=True)
    return wav, com


def losses(model, perceptual, noisy, clean, weights):
    mag, pha, _ = analyse(noisy)
    cmag, cpha, ccom = analyse(clean)
    mask, re, im = model(mag, pha)
    mag = mag * mask
    wav, com = synthesise(mag, re, im)
    power = cmag.square().mean((1, 2)) + 1e-3
    s = pk.spectrum(wav).transpose(1, 2)
    con = torch.stack((s.real, s.imag), -1) * ((s.real.square() + s.imag.square() + 1e-9) ** (0.5 * pk.COMPRESS - 0.5))[..., None]
    err = unwrap(torch.atan2(im, re) - cpha)
    diff = torch.atan2(im, re) - cpha
    w = cmag.sqrt()
    w = w / w.mean((1, 2), keepdim=True)
    n = wav.shape[-1]
    ref = clean[:, :n]
    terms = {
        "mag": ((mag - cmag).square().mean((1, 2)) / power).mean(),
        "pha": (err * w).mean() + (unwrap(diff.diff(dim=2)) * w[:, :, 1:]).mean() + (unwrap(diff.diff(dim=1)) * w[:, 1:]).mean(),
        "com": (2 * (com - ccom).square().mean((1, 2, 3)) / power).mean(),
        "con": (2 * (com - con).square().mean((1, 2, 3)) / power).mean(),
        "l1": ((wav - ref).abs().mean(1) / (ref.abs().mean(1) + 1e-4)).clamp(max=3).mean(),
        "sdr": -si_sdr(wav, ref).clamp(-30, 30).mean(),
    }
    if perceptual is not None:
        terms["per"] = perceptual(ref, wav).mean()
    return sum(weights[k] * v for k, v in terms.items()), terms


# The perceptual term has by far the steepest gradient (in single bins), so its weight is small and starts late.
WEIGHTS = {"mag": 0.9, "pha": 0.3, "com": 0.3, "con": 0.05, "l1": 0.15, "sdr": 0.005, "per": 0.0}
PERCEPTUAL = (0.4, 0.6, 0.06)                                   # from, fully on at (fractions of the time), weight

# ------------------------------------------------------------------------------------------------ training


def schedule(done, warm=0.02):
    """Fraction of the peak rate at fraction `done` of the time."""
    if done < warm:
        return 0.02 + 0.98 * done / warm
    return 0.005 + 0.995 * 0.5 * (1 + math.cos(math.pi * min((done - warm) / (0.985 - warm), 1.0)))


@torch.no_grad()
def evaluate(fast, perceptual, dev):
    """Mean SI-SDR gain and perceptual distance over the development pairs."""
    gains, dist = [], []
    for noisy, clean in dev:
        mag, pha, _ = analyse(noisy)
        mask, re, im = fast(mag, pha)
        wav, _ = synthesise(mag * mask, re, im)
        n = wav.shape[1]
        gains.append(si_sdr(wav, clean[:, :n]) - si_sdr(noisy[:, :n], clean[:, :n]))
        if perceptual is not None:
            dist.append(perceptual(clean[:, :n], wav))
    return float(torch.cat(gains).mean()), float(torch.cat(dist).mean()) if dist else float("nan")


def gradient_noise(fast, params, noisy, clean):
    """Relative error of the gradient in tf32 against float32, and the latter's norm."""
    flat = []
    for tf32 in (True, False):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        loss, _ = losses(fast, None, noisy, clean, WEIGHTS)
        flat.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, params)]))
    torch.backends.cuda.matmul.allow_tf32 = True
    return pk.rel(flat[0], flat[1]), float(flat[1].norm())


def check_operators(net, fast, device):
    """Relative error of outputs and gradients against the twin, everything in float32, on random weights."""
    shape = (2, 201, 40)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    mag, pha = torch.rand(shape, device=device) + 0.05, (torch.rand(shape, device=device) * 2 - 1) * 3.1
    com = torch.stack((mag * pha.cos(), mag * pha.sin()), -1)
    wc, wm = torch.randn_like(com), torch.randn_like(mag)
    out, _, g = pk.gradients(net, com, wc, wm)
    want = torch.cat([v.flatten() for v in g.values()]).clone()
    net.zero_grad(set_to_none=True)
    mask, re, im = (v.transpose(1, 2) for v in fast(com.norm(dim=-1).transpose(1, 2),
                                                    torch.atan2(com[..., 1], com[..., 0]).transpose(1, 2)))
    m, r = mag * mask, torch.rsqrt(re * re + im * im)
    c = torch.stack((m * re * r, m * im * r), -1)
    pk.golden_loss((m, None, c), wc, wm).backward()
    got = torch.cat([p.grad.flatten() for p in net.parameters()])
    net.zero_grad(set_to_none=True)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    return pk.rel(c, out[2]), pk.rel(got, want)


def dev_pairs(kinds, device):
    sides = {"clean": {}, "noisy": {}}
    for src, _, name, pcm in kinds["dev"]:
        sides[src][name] = torch.from_numpy(pcm.astype("float32") / 32768.0)[None].to(device)
    return [(sides["noisy"][k], sides["clean"][k]) for k in sorted(sides["clean"])]


class Swap:
    """Parameters replaced by their averages for the length of a with-block."""

    def __init__(self, params, ema):
        self.params, self.ema = params, ema

    def __enter__(self):
        self.kept = [p.detach().clone() for p in self.params]
        with torch.no_grad():
            torch._foreach_copy_(self.params, self.ema)

    def __exit__(self, *_):
        with torch.no_grad():
            torch._foreach_copy_(self.params, self.kept)


def save(path, obj):
    torch.save(obj, path + ".tmp")
    os.replace(path + ".tmp", path)


def train(a):
    import pretrain_ops
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    torch.cuda.set_device(device)
    if world > 1:
        import torch.distributed as dist
        dist.init_process_group("nccl")
    torch.backends.cuda.matmul.allow_tf32 = True
    os.makedirs(a.run, exist_ok=True)
    logfile = open(os.path.join(a.run, "log.txt"), "a")

    def log(text):
        if rank == 0:
            print(text, flush=True)
            print(text, file=logfile, flush=True)

    kinds = pretrain_data.load(a.data)
    torch.manual_seed(1)
    net = pk.build("primeknet_mamba", CONFIG).to(device)
    fast = pretrain_ops.FastPrimeKnet(net)
    fast.prepare(device)
    twin = pk.build("primeknet_mamba", CONFIG)
    pk.randomise(twin, torch.Generator().manual_seed(1))
    other = pretrain_ops.FastPrimeKnet(twin.to(device))
    other.prepare(device)
    log("against the twin: com %.1e, gradients %.1e" % check_operators(twin, other, device))
    perceptual = Perceptual().to(device)
    params = list(net.parameters())
    names = [n for n, _ in net.named_parameters()]
    decay = [p for n, p in zip(names, params) if p.dim() >= 2 and "beta" not in n and "A_log" not in n and "slope" not in n]
    ids = {id(p) for p in decay}
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01},
                             {"params": [p for p in params if id(p) not in ids], "weight_decay": 0.0}],
                            lr=a.lr, betas=(0.9, 0.99), fused=True)
    ema = [p.detach().clone() for p in params]
    step, elapsed = 0, 0.0
    state_path = os.path.join(a.run, "state.pt")
    if os.path.exists(state_path):
        st = torch.load(state_path, map_location=device)
        net.load_state_dict(st["net"])
        opt.load_state_dict(st["opt"])
        ema = [e.to(device) for e in st["ema"]]
        step, elapsed = st["step"], st["elapsed"]
    torch.manual_seed(1000 * step + rank + 7)
    mixer = pretrain_data.Mixer(kinds, device)
    dev = dev_pairs(kinds, device)
    model = torch.compile(fast, dynamic=False, fullgraph=True)
    total = a.minutes * 60.0
    log("start: step %d, %.0f of %.0f s, batch %d x %d, lr %g" % (step, elapsed, total, a.batch, world, a.lr))

    def snapshot():
        if rank == 0:
            save(state_path, {"net": net.state_dict(), "opt": opt.state_dict(), "ema": ema, "step": step, "elapsed": elapsed})
            tensors = dict(zip(names, ema))
            path = os.path.join(a.run, "ema.safetensors")
            pk.save_safetensors(path + ".tmp", {k: tensors[k] for k in net.state_dict()},
                                {"model": "primeknet_mamba", "config": json.dumps(CONFIG), "step": step, "seconds": int(elapsed)})
            os.replace(path + ".tmp", path)

    sums, count, skipped = {}, 0, torch.zeros((), device=device)
    last = last_log = time.time()
    next_eval, queue, weights = elapsed + a.eval_every, [], dict(WEIGHTS)
    while elapsed < total:
        rate = a.lr * schedule(elapsed / total)
        for g in opt.param_groups:
            g["lr"] = rate
        if not queue:                                           # several batches at once: fewer launches per step
            noisy, clean = mixer.batch(a.batch * 4)
            queue = list(zip(noisy.split(a.batch), clean.split(a.batch)))
        noisy, clean = queue.pop()
        begin, full, weight = PERCEPTUAL
        weights["per"] = weight * min(max((elapsed / total - begin) / (full - begin), 0.0), 1.0)
        loss, terms = losses(model, perceptual if weights["per"] else None, noisy, clean, weights)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        grads = [p.grad for p in params]
        if world > 1:
            flat = torch.cat([g.flatten() for g in grads])
            dist.all_reduce(flat, dist.ReduceOp.AVG)
            at = 0
            for g in grads:
                g.copy_(flat[at:at + g.numel()].view_as(g))
                at += g.numel()
        norm = torch.stack(torch._foreach_norm(grads)).norm()
        torch._foreach_mul_(grads, (a.clip / (norm + 1e-6)).clamp(max=1.0))
        opt.found_inf = (~torch.isfinite(norm)).float()         # skips such a step
        skipped += opt.found_inf
        opt.step()
        keep = min(0.999, (1 + step) / (20 + step))
        with torch.no_grad():
            torch._foreach_lerp_(ema, params, 1 - keep)
        for k, v in list(terms.items()) + [("norm", norm), ("all", loss)]:
            sums[k] = sums.get(k, 0) + v.detach()
        count += 1
        step += 1
        if step % 10 == 0:
            torch.cuda.synchronize()                            # for a correct clock
            now = time.time()
            d = torch.tensor(now - last, device=device)
            if world > 1:
                dist.broadcast(d, 0)                            # all ranks must agree on the time
            elapsed += float(d)
            last = now
            if step % 200 == 0 or step in (10, 50):
                log("step %6d %6.0f s %6.1f steps/s lr %.1e skipped %d " % (
                    step, elapsed, count / (now - last_log), rate, int(skipped)) +
                    " ".join("%s %.4g" % (k, float(v) / count) for k, v in sums.items()))
                sums, count, last_log = {}, 0, now
            if elapsed >= next_eval or elapsed >= total:
                next_eval += a.eval_every
                with Swap(params, ema):
                    sdr, per = evaluate(fast, perceptual, dev)
                log("dev  %6d %6.0f s SI-SDR gain %.2f dB, perceptual %.3f, tf32 gradient error %.3f of %.3f" % (
                    (step, elapsed, sdr, per) + gradient_noise(fast, params, noisy[:4], clean[:4])))
                snapshot()
                if elapsed > a.give_up[0] and sdr < a.give_up[1]:
                    log("not learning: stopped")
                    break
                if a.stop and elapsed >= a.stop:
                    break
    log("end: step %d, %.0f s, %.1f GiB" % (step, elapsed, torch.cuda.max_memory_allocated() / 2 ** 30))


def bench(a):
    import pretrain_ops
    device = torch.device("cuda")
    torch.manual_seed(0)
    net = pk.build("primeknet_mamba", CONFIG)
    pk.randomise(net, torch.Generator().manual_seed(1))
    net.to(device)
    fast = pretrain_ops.FastPrimeKnet(net)
    fast.prepare(device)
    print("against the twin: com %.1e, gradients %.1e" % check_operators(net, fast, device), flush=True)
    torch.backends.cuda.matmul.allow_tf32 = True
    t0 = time.time()
    kinds = pretrain_data.load(a.data)
    mixer = pretrain_data.Mixer(kinds, device)
    perceptual = Perceptual().to(device)
    print("data %.1f s" % (time.time() - t0), flush=True)
    net = pk.build("primeknet_mamba", CONFIG).to(device)
    fast = pretrain_ops.FastPrimeKnet(net)
    fast.prepare(device)

    def timed(f, n=10):
        for _ in range(3):
            f()
        torch.cuda.synchronize()
        t = time.time()
        for _ in range(n):
            f()
        torch.cuda.synchronize()
        return (time.time() - t) / n * 1e3

    for b in a.bench_batches:
        torch._dynamo.reset()
        model = torch.compile(fast, dynamic=False, fullgraph=True)
        noisy, clean = mixer.batch(b)

        def step():
            loss, _ = losses(model, perceptual, noisy, clean, WEIGHTS)
            net.zero_grad(set_to_none=True)
            loss.backward()

        t0 = time.time()
        step()
        torch.cuda.synchronize()
        t1 = time.time()
        print("batch %d: compile %.0f s, mix %.1f ms, fwd+bwd %.1f ms, %.1f GiB" % (
            b, t1 - t0, timed(lambda: mixer.batch(b)), timed(step), torch.cuda.max_memory_allocated() / 2 ** 30), flush=True)
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as prof:
        mixer.batch(b)
        step()
        torch.cuda.synchronize()
    rows = sorted((e for e in prof.key_averages() if e.self_device_time_total > 0), key=lambda e: -e.self_device_time_total)
    print("device total %.1f ms, %d launches" % (sum(e.self_device_time_total for e in rows if e.device_type.name == "CUDA") / 1e3,
                                                sum(e.count for e in rows if e.device_type.name == "CUDA")))
    for e in [e for e in rows if e.device_type.name == "CUDA"][:28]:
        print("%9.2f ms %5d  %s" % (e.self_device_time_total / 1e3, e.count, e.key[:110]))


def export(a):
    tensors, meta = pk.load_safetensors(os.path.join(a.run, "ema.safetensors"))
    out = {"model": meta["model"], "config": meta["config"], "license": "Apache-2.0", "sample_rate": 16000,
           "recipe": "tools/pretrain.py, %s steps, %s s on one H200; averaged weights" % (meta["step"], meta["seconds"]),
           "card": "src/models/primeknet/weights/CARD.md"}
    pk.save_safetensors(a.export, {k: v.float() for k, v in tensors.items()}, out)
    net, _ = pk.load_model(a.export)
    print("%s: %d parameters, %d bytes" % (a.export, sum(p.numel() for p in net.parameters()), os.path.getsize(a.export)))


def main():
    ap = argparse.ArgumentParser(description="train the embedded denoiser")
    ap.add_argument("data")
    ap.add_argument("run")
    ap.add_argument("--minutes", type=float, default=26.0, help="total training time over all resumptions")
    ap.add_argument("--stop", type=float, default=0.0, help="stop after this many seconds of training, resume later")
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--lr", type=float, default=8e-4)
    ap.add_argument("--clip", type=float, default=1.0)
    ap.add_argument("--eval-every", type=float, default=100.0, help="seconds")
    ap.add_argument("--give-up", type=float, nargs=2, default=(1e9, 0.0), metavar=("SECONDS", "DB"),
                    help="stop when the gain on the development pairs is less than DB after SECONDS")
    ap.add_argument("--bench", action="store_true")
    ap.add_argument("--bench-batches", type=int, nargs="+", default=[16])
    ap.add_argument("--export", metavar="OUT")
    a = ap.parse_args()
    if a.export:
        export(a)
    elif a.bench:
        bench(a)
    else:
        train(a)


if __name__ == "__main__":
    sys.exit(main())
