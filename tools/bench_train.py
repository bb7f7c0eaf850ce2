#!/usr/bin/env python3
"""A training step on this machine's CPU, krait and PyTorch: PrimeKnet's generator, forward, gradients and AdamW.

    bench_train.py KRAIT [--stage mamba|gru|lstm]... [--batch B] [--samples N] [--runs R] [--threads N]

PyTorch runs the published model of primeknet_twin.py (Mamba's scan is the reference loop, GRU and LSTM are torch's)
with the mean of its outputs as loss; krait's step (`krait bench train`, without discriminator) has all published losses
and their transforms between samples and spectra. Interleaved runs; the fastest of each counts.
"""

import argparse
import json
import os
import subprocess
import sys
import time

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import primeknet_twin as twin

SHARED = dict(fft_len=400, dense_channel=64, sigmoid_beta=2.0, dense_depth=3, num_tsblock=4, time_block_num=2, freq_block_kernel=[3, 11, 23, 31], freq_block_num=2, infer_type="masking", causal=True)
STAGES = {
    "mamba": dict(mamba_hidden_size=64, mamba_d_state=16, mamba_d_conv=4, mamba_expand=2),
    "gru": dict(gru_layers=2, gru_hidden_size=64),
    "lstm": dict(lstm_layers=2, lstm_hidden_size=64),
}


def torch_step_s(net, optimiser, com):
    start = time.perf_counter()
    optimiser.zero_grad(set_to_none=True)
    mag, _, out = net(com)
    (mag.mean() + out.square().mean()).backward()
    optimiser.step()
    return time.perf_counter() - start


def krait_step_s(krait, stage, batch, samples, threads):
    command = [krait, "bench", "train", f"+model=primeknet_{stage}_masking", f"batch_size={batch}", f"segment={samples}", "shift=0", "loss.metric=0", "--runs", "1", "--json", "--device", "cpu", "--threads", str(threads)]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["generator_ms"] / 1e3


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("krait")
    ap.add_argument("--stage", choices=STAGES, action="append")
    ap.add_argument("--batch", type=int, default=1)
    ap.add_argument("--samples", type=int, default=16000)
    ap.add_argument("--runs", type=int, default=2)
    ap.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    print(f"batch {a.batch}, {a.samples / 16000:g} s, {a.threads} threads, torch {torch.__version__}")
    for stage in a.stage or ["mamba", "gru"]:
        net = twin.build(f"primeknet_{stage}", SHARED | STAGES[stage]).float()
        optimiser = torch.optim.AdamW(net.parameters(), lr=5e-4, betas=(0.8, 0.99))
        com = torch.randn(a.batch, 201, 1 + a.samples // 100, 2)
        torch_s = krait_s = float("inf")
        for _ in range(a.runs):
            torch_s = min(torch_s, torch_step_s(net, optimiser, com))
            krait_s = min(krait_s, krait_step_s(a.krait, stage, a.batch, a.samples, a.threads))
        print(f"{stage}: PyTorch {torch_s:.2f} s, krait {krait_s:.2f} s, {torch_s / krait_s:.1f} times as fast")


if __name__ == "__main__":
    main()
