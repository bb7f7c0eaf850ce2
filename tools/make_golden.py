#!/usr/bin/env python3
"""Writes the committed golden pairs, tests/golden/primeknet/*.safetensors (see the README there).

    make_golden.py [OUT]
"""

import os
import sys

from primeknet_twin import check, random_golden

HERE = os.path.dirname(os.path.abspath(__file__))

#      name              seed  stage    causal
PAIRS = (
    ("tiny-mamba",         8, "mamba", False),
    ("tiny-mamba-causal",  3, "mamba", True),
    ("tiny-gru",           9, "gru",   False),
    ("tiny-lstm",         10, "lstm",  False),
    ("odd-mamba",         21, "mamba", False),
)


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "..", "tests", "golden", "primeknet")
    for name, seed, stage, causal in PAIRS:
        random_golden(out, seed, stage, causal, name)
    return 1 if check(out, 2e-5) else 0


if __name__ == "__main__":
    sys.exit(main())
