#!/usr/bin/env python3
"""Twenty training steps of the tests' small PrimeKnet-Mamba on the CPU: with its Mamba as a loop over time in pure
PyTorch, as the drop-in, and removed, a lower bound for any Mamba. Everything else is torch's in all three. Two seconds
of audio, the published segment, are 321 frames.

    PYTHONPATH=python:python/krait/dropin KRAIT_LIBRARY=build/src/libkrait.so tools/bench_training.py [frames [width [steps [threads]]]]"""

import pathlib
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "python"))
from mamba_ssm import Mamba
from test_training import CONFIG, load_twin


class Absent(Mamba):
    """Its parameters only."""

    def forward(self, hidden_states):
        return hidden_states


def build(mamba_class, width, state=None):
    torch.manual_seed(3)
    model = load_twin(mamba_class).build("primeknet_mamba", dict(CONFIG, mamba_hidden_size=width))
    model.load_state_dict(state or model.state_dict())
    return model, torch.optim.Adam(model.parameters(), 1e-3)


def run_step(model, optimiser, x):
    """-> loss, processor seconds, seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    optimiser.zero_grad()
    loss = (model(x)[2] - 0.3 * x).square().mean()
    loss.backward()
    optimiser.step()
    return float(loss.detach()), time.process_time() - cpu, time.perf_counter() - wall


def main():
    frames, width, steps, threads = [int(given) for given in sys.argv[1:]] + [321, 16, 20, 1][len(sys.argv) - 1:]
    torch.set_num_threads(threads)
    loop = build(None, width)
    state = {name: t.clone() for name, t in loop[0].state_dict().items()}
    models = {"loop": loop, "drop-in": build(Mamba, width, state), "without": build(Absent, width, state)}
    generator, rows = torch.Generator().manual_seed(1), {name: [] for name in models}
    for _ in range(steps):  # interleaved, so that other load affects all alike
        x = torch.randn(1, 201, frames, 2, generator=generator)
        for name, (model, optimiser) in models.items():
            rows[name].append(run_step(model, optimiser, x))
    losses = {name: [row[0] for row in of] for name, of in rows.items()}
    print("%d steps, %d frames, width %d, %d threads: losses %.5f to %.5f, at most %.1e apart" % (
        steps, frames, width, threads, losses["loop"][0], losses["loop"][-1], max(abs(a - b) for a, b in zip(losses["loop"], losses["drop-in"]))))
    for unit, column in (("processor seconds", 1), ("seconds", 2)):
        spent = {name: sum(row[column] for row in of[1:]) for name, of in rows.items()}
        print("%s: loop %.2f, drop-in %.2f, without Mamba %.2f; %.1f times as fast, %.1f at the most"
              % (unit, *spent.values(), spent["loop"] / spent["drop-in"], spent["loop"] / spent["without"]))


if __name__ == "__main__":
    main()
