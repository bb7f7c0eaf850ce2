#!/usr/bin/env python3
"""The denoiser's forward pass in krait and in PyTorch on the CPU, interleaved, so that both see the same load.

    tools/bench_torch.py KRAIT WEIGHTS [--frames 321] [--threads N] [--rounds 3]

Prints the minimum time of each per second of audio and their ratio. WEIGHTS is a safetensors file with its
configuration in the metadata. PyTorch runs the readable twin (tools/primeknet_twin.py)."""
import argparse, json, os, subprocess, sys, time

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import primeknet_twin

FRAMES_PER_S = 160


def time_torch(net, com):
    start, cpu = time.perf_counter(), time.process_time()
    with torch.no_grad():
        net(com)
    return time.perf_counter() - start, time.process_time() - cpu


def time_krait(program, weights, frames, threads):
    command = [program, "bench", "primeknet", "--weights", weights, "--frames", str(frames), "--threads", str(threads), "--runs", "2", "--device", "cpu", "--json"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return report["best_s"], report["cpu_s"]


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("krait")
    ap.add_argument("weights")
    ap.add_argument("--frames", type=int, default=321)
    ap.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    ap.add_argument("--rounds", type=int, default=3)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    net, meta = primeknet_twin.load_model(a.weights)
    bins = json.loads(meta["config"])["fft_len"] // 2 + 1
    com = torch.rand(1, bins, a.frames, 2) - 0.5
    ours, theirs = [], []
    for _ in range(a.rounds):
        theirs.append(time_torch(net, com))
        ours.append(time_krait(a.krait, a.weights, a.frames, a.threads))
    audio_s = (a.frames - 1) / FRAMES_PER_S
    for what, i in (("wall clock", 0), ("processor", 1)):
        mine, its = min(t[i] for t in ours) / audio_s, min(t[i] for t in theirs) / audio_s
        print(f"{what:10s} per second of audio, {a.threads} threads: krait {mine:.3f} s, PyTorch {torch.__version__} {its:.3f} s, ratio {its / mine:.1f}")


if __name__ == "__main__":
    main()
