"""prep.py WORK [sound] [weights]: random weights of the published sizes, an hour of sound and 40 s of it in float32. CPU only."""
import array
import itertools
import json
import math
import os
import random
import struct
import sys
import wave

work = sys.argv[1]
sys.path.insert(0, os.path.join(work, "tree", "tools"))


def sound():
    """40 s of harmonics that come and go in noise."""
    rate, n, draw = 16000, 640000, random.Random(3).gauss
    pitch = [2 * math.pi * (110 + 40 * math.sin(i / 9000)) / rate for i in range(n)]
    phases = itertools.accumulate(pitch)
    loud = (max(0.0, math.sin(i / 2500)) ** 2 * (i // 30000 % 3 > 0) for i in range(n))
    values = [0.2 * a * (math.sin(p) + 0.5 * math.sin(2 * p) + 0.3 * math.sin(7 * p)) + 0.02 * draw(0, 1) for a, p in zip(loud, phases)]
    raw = array.array("h", (round(32767 * max(-1, min(1, v))) for v in values)).tobytes()
    values = array.array("f", (v / 32768 for v in array.array("h", raw)))
    body = values.tobytes()
    with open(os.path.join(work, "float40.wav"), "wb") as f:
        f.write(struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(body), b"WAVE", b"fmt ", 16, 3, 1, rate, 4 * rate, 4, 32, b"data", len(body)) + body)
    with wave.open(os.path.join(work, "hour.wav"), "wb") as w:
        w.setparams((1, 2, rate, 0, "NONE", ""))
        for _ in range(90):
            w.writeframes(raw)
    print("hour.wav: %d bytes" % os.path.getsize(os.path.join(work, "hour.wav")))


def weights():
    import torch
    import primeknet_twin as twin
    published = dict(fft_len=400, dense_channel=64, sigmoid_beta=2.0, causal=False)
    small = dict(published, dense_depth=4, num_tsblock=2, time_block_num=1, freq_block_num=1)
    for name, stage, config in (("m126", "mamba", published), ("m045", "mamba", small), ("gru140", "gru", published), ("lstm153", "lstm", published)):
        torch.manual_seed(1)
        net = twin.build("primeknet_" + stage, config)
        twin.randomise(net, torch.Generator().manual_seed(2))
        twin.save_safetensors(os.path.join(work, name + ".safetensors"), twin.tensors_of(net), {"model": "primeknet_" + stage, "config": json.dumps(config)})
        print(name, sum(p.numel() for p in net.parameters()))


if "sound" in sys.argv[2:]:
    sound()
if "weights" in sys.argv[2:]:
    weights()
