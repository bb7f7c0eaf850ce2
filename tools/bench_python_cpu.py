#!/usr/bin/env python3
"""Mamba blocks on the CPU: the drop-ins and other implementations that run without CUDA, with the same weights and
checked results: mambapy's parallel scan, transformers' loop over time (its slow path), transformers' chunked Mamba-2.
CPU seconds, forward and forward + backward, minimum of interleaved runs; alternatives not installed are skipped.

    PYTHONPATH=python:python/krait/dropin KRAIT_LIBRARY=build/src/libkrait.so tools/bench_python_cpu.py [--threads N] [--runs N] [--width D] [--length L]"""

import argparse
import contextlib
import sys
import time

import torch

from mamba_ssm import Mamba, Mamba2


@contextlib.contextmanager
def without_dropins():
    """transformers uses packages of these names, if found, when its models are first imported."""
    names = [name for name in sys.modules if name.split(".")[0] in ("mamba_ssm", "causal_conv1d")]
    kept = {name: sys.modules.pop(name) for name in names}
    sys.modules.update(mamba_ssm=None, causal_conv1d=None)
    try:
        yield
    finally:
        sys.modules.update(kept)


def mambapy_block(width):
    from mambapy.mamba import MambaBlock, MambaConfig
    return MambaBlock(MambaConfig(d_model=width, n_layers=1))


def transformers_mixer(width):
    import transformers
    transformers.logging.set_verbosity_error()
    with without_dropins():
        from transformers.models.mamba.modeling_mamba import MambaMixer
    return MambaMixer(transformers.MambaConfig(hidden_size=width, num_hidden_layers=1), 0)


def transformers_mixer2(width):
    import transformers
    with without_dropins():
        from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
    return Mamba2Mixer(transformers.Mamba2Config(hidden_size=width, num_hidden_layers=1, num_heads=width // 32, head_dim=64, n_groups=1, use_bias=False), 0)


BLOCKS = {"Mamba(%d)": (lambda width: Mamba(width), {"mambapy, parallel scan": mambapy_block, "transformers, slow path": transformers_mixer}),
          "Mamba2(%d)": (lambda width: Mamba2(width), {"transformers, chunked": transformers_mixer2})}


def step(block, x, with_gradients):
    """-> processor seconds."""
    block.zero_grad()
    start = time.process_time()
    with torch.set_grad_enabled(with_gradients):
        out = block(x)
        if with_gradients:
            out.square().sum().backward()
    return time.process_time() - start


def measure(blocks, x, runs):
    """{name: [forward, forward + backward]}; slow ones get fewer runs."""
    spent = {name: [[], []] for name in blocks}
    for run in range(runs):
        for name, block in blocks.items():
            if run == 0 or sum(map(sum, spent[name])) < 10:
                for kind in (0, 1):
                    spent[name][kind].append(step(block, x, bool(kind)))
    return {name: [min(times) for times in kinds] for name, kinds in spent.items()}


def compare(title, make, others, options):
    torch.manual_seed(0)
    ours, x = make(options.width), torch.randn(1, options.length, options.width)
    blocks = {"krait": ours}
    for name, build in others.items():
        try:
            other = build(options.width)
        except ImportError as error:
            print("%s: %s left out: %s" % (title, name, error))
            continue
        other.load_state_dict(ours.state_dict())
        with torch.no_grad():
            error = float((other(x) - ours(x)).norm() / ours(x).norm())
        if error > 1e-3:
            raise SystemExit("%s: %s gives different results: relative error %.1e" % (title, name, error))
        blocks[name] = other
    times = measure(blocks, x, options.runs)
    for name, (forward, both) in times.items():
        print("| %s | %s | %.3f | %.3f | %.1f | %.1f |" % (title, name, forward, both, forward / times["krait"][0], both / times["krait"][1]), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("threads", 1), ("runs", 5), ("width", 256), ("length", 256)):
        parser.add_argument("--" + name, type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("B 1, L %d, float32, %d thread(s), torch %s\n" % (options.length, options.threads, torch.__version__))
    print("| block | by | forward, s | forward + backward, s | × krait's | × krait's |\n|---|---|---|---|---|---|")
    for title, (make, others) in BLOCKS.items():
        compare(title % options.width, make, others, options)


if __name__ == "__main__":
    main()
