"""`krait train`'s loop in PyTorch, with mamba_ssm (krait's drop-in or upstream's): PrimeKnet on pairs of 16 kHz WAV
files, upstream's losses except the metric discriminator's; writes weights for `krait enhance -w`. Without folders it
trains on synthetic sounds.

    python examples/train_primeknet.py [--clean DIR --noisy DIR] [--weights START.safetensors] [--steps 20] [--out OUT.safetensors]"""
import argparse
import importlib.util
import json
import math
import pathlib
import wave

import numpy as np
import torch
from mamba_ssm import Mamba

spec = importlib.util.spec_from_file_location("primeknet_twin", pathlib.Path(__file__).resolve().parent.parent / "tools" / "primeknet_twin.py")
twin = importlib.util.module_from_spec(spec)
spec.loader.exec_module(twin)
twin.Mamba = Mamba  # the same parameters, the fast operators
CONFIG = dict(fft_len=400, dense_channel=64, sigmoid_beta=2.0, dense_depth=4, num_tsblock=2, time_block_num=1, freq_block_num=1, causal=False)


def read(path):
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16000, 1, 2), f"{path}: must be 16 kHz, mono, 16-bit"
        return torch.from_numpy(np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768)


def pairs(args):
    if args.clean:
        found = [(read(p), read(pathlib.Path(args.noisy) / p.name)) for p in sorted(pathlib.Path(args.clean).glob("*.wav"))]
        return found or exit(f"{args.clean} contains no WAV files (for other formats use krait train)")
    t = torch.arange(3 * 16000) / 16000
    clean = [0.1 * sum(torch.sin(2 * math.pi * k * f * t) / k for k in range(1, 9)) * torch.sin(2 * math.pi * 2 * t).clamp(min=0) for f in (110.0, 150.0, 210.0)]
    return [(c, c + 0.05 * torch.randn_like(c)) for c in clean]


def batch_of(data, size, samples):
    """Random crops, one gain for both sides, noisy at -25 dBFS +- 10."""
    clean, noisy = torch.zeros(size, samples), torch.zeros(size, samples)
    for i in range(size):
        c, x = data[torch.randint(len(data), ())]
        start = int(torch.randint(max(len(c) - samples, 0) + 1, ()))
        c, x = c[start:start + samples], x[start:start + samples]
        gain = 10 ** (float(torch.empty(()).uniform_(-35, -15)) / 20) / (x.square().mean().sqrt() + 1e-6)
        gain = min(gain, 0.99 / (x.abs().max() + 1e-6))
        clean[i, :len(c)], noisy[i, :len(x)] = gain * c, gain * x
    return clean, noisy


def wrapped(v):
    return (v - 2 * math.pi * torch.round(v / (2 * math.pi))).abs().mean()


def loss_of(net, clean, noisy):
    com = twin.stft(clean)
    mag, pha = com.square().sum(-1).sqrt(), torch.atan2(com[..., 1], com[..., 0])
    mag_hat, pha_hat, com_hat = net(twin.stft(noisy))
    again = twin.stft(twin.istft(mag_hat, pha_hat))  # its projection onto consistent spectra
    phase = sum(wrapped(d(pha) - d(pha_hat)) for d in (lambda p: p, lambda p: p.diff(dim=1), lambda p: p.diff(dim=2)))
    square = torch.nn.functional.mse_loss
    return 0.9 * square(mag_hat, mag) + 0.3 * phase + 0.1 * 2 * square(com_hat, com) + 0.05 * 2 * square(com_hat, again)


def main():
    parser = argparse.ArgumentParser(description="PrimeKnet in PyTorch with mamba_ssm")
    for name, default in (("clean", None), ("noisy", None), ("weights", None), ("out", None), ("steps", 20), ("batch", 4), ("samples", 32000), ("lr", 5e-4)):
        parser.add_argument("--" + name, default=default, type=type(default) if default is not None else str)
    args = parser.parse_args()
    if bool(args.clean) != bool(args.noisy):
        parser.error("--clean and --noisy need each other")
    torch.manual_seed(2039)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net, meta = twin.load_model(args.weights) if args.weights else (twin.build("primeknet_mamba", CONFIG), {"model": "primeknet_mamba", "config": json.dumps(CONFIG)})
    net.to(device)
    optimiser = torch.optim.AdamW(net.parameters(), args.lr, betas=(0.8, 0.99), weight_decay=0.01)
    data, losses = pairs(args), []
    for step in range(args.steps):
        loss = loss_of(net, *(x.to(device) for x in batch_of(data, args.batch, args.samples)))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
        print("step %3d  loss %.4f" % (step + 1, losses[-1]), flush=True)
    assert all(math.isfinite(v) for v in losses)
    if args.out:
        twin.save_safetensors(args.out, {k: v.detach().cpu() for k, v in net.state_dict().items()}, {"model": meta["model"], "config": meta["config"]})


if __name__ == "__main__":
    main()
