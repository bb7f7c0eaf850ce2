#!/usr/bin/env python3
"""Writes the committed golden pairs, tests/golden/primeknet/*.safetensors and wide/ (see the README there).

    make.py [OUT]
"""

import json
import os
import sys

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "..", "tools"))
from primeknet_twin import build, check, random_com, random_golden, randomise, save_safetensors

#      name              seed  stage    causal streaming, freq_stride (with position_bias)
PAIRS = (
    ("tiny-mamba",         8, "mamba", False),
    ("tiny-mamba-causal",  3, "mamba", True),
    ("tiny-gru",           9, "gru",   False),
    ("tiny-lstm",         10, "lstm",  False),
    ("odd-mamba",         21, "mamba", False),
    ("tiny-streaming",     4, "mamba", True, True),
    ("tiny-strided",       6, "mamba", True, True, 4),
)

# The published models' widths, for which code of its own exists, with few bins; the rest as small as possible.
WIDE = (
    ("wide-mamba", "mamba", dict(dense_channel=64, mamba_hidden_size=64, mamba_d_state=16, mamba_d_conv=4, mamba_expand=2, freq_block_kernel=[3, 11])),
    ("wide-gru",   "gru",   dict(dense_channel=20, gru_layers=3, gru_hidden_size=64, freq_block_kernel=[1, 5])),
    ("wide-lstm",  "lstm",  dict(dense_channel=12, lstm_layers=2, lstm_hidden_size=64, freq_block_kernel=[3])),
)


def write_wide(out):
    for seed, (name, stage, more) in enumerate(WIDE):
        cfg = dict(fft_len=60, sigmoid_beta=2.0, dense_depth=1, num_tsblock=1, time_block_num=1, freq_block_num=1, causal=False, **more)
        torch.manual_seed(seed)
        net = build("primeknet_" + stage, cfg)
        randomise(net, torch.Generator().manual_seed(seed))
        meta = {"model": "primeknet_" + stage, "config": json.dumps(cfg), "source": "make_golden.py, seed %d" % seed}
        weights = {k: v.half() for k, v in net.state_dict().items()}
        save_safetensors(os.path.join(out, name + ".weights.safetensors"), weights, meta)
        net.load_state_dict({k: v.float() for k, v in weights.items()})
        com = random_com(torch.Generator().manual_seed(seed), 2, 13)[:, :31].contiguous()
        with torch.no_grad():
            mag, _, made = net.double().eval()(com.double())
        save_safetensors(os.path.join(out, name + ".golden.safetensors"), {"golden.input_com": com, "golden.mag": mag.float(), "golden.com": made.float()}, meta)


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else HERE
    for name, seed, stage, causal, *streaming in PAIRS:
        random_golden(out, seed, stage, causal, name, *streaming)
    os.makedirs(os.path.join(out, "wide"), exist_ok=True)
    write_wide(os.path.join(out, "wide"))
    return 1 if check(out, 2e-5) else 0


if __name__ == "__main__":
    sys.exit(main())
