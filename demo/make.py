"""make.py DATA: makes demo/train, two minutes of speech and one of noise to try training (pip install soundfile),
from the recordings listed in demo/README.md: DATA/speech/SOURCE/NAME.flac and DATA/noise/SOURCE/NAME.flac, 16 kHz. Each
is trimmed to its first seconds and encoded as Opus (about 30 kbit/s)."""
import pathlib
import sys

import numpy as np
import soundfile

SPEECH = {"librispeech": ["1040-133433-0000", "1069-133699-0000", "1081-125237-0000", "1088-129236-0000", "118-121721-0000", "1183-124566-0000", "1246-124548-0000", "125-121124-0000"],
          "ljspeech": ["LJ001-0001", "LJ001-0004"], "vctk": ["p225_003", "p225_011", "p227_011", "p227_003", "p228_003"]}
NOISE = {"speechcommands": ["doing_the_dishes_a", "doing_the_dishes_b", "exercise_bike_a", "exercise_bike_b", "running_tap_a", "running_tap_b"]}
HZ, SECONDS, NOISE_SECONDS, FADE = 16000, 12, 10, 160

data, out = pathlib.Path(sys.argv[1]), pathlib.Path(__file__).parent.parent / "demo" / "train"
for kind, sources, seconds, level in (("speech", SPEECH, SECONDS, 0.92), ("noise", NOISE, NOISE_SECONDS, 0.9)):
    (out / kind).mkdir(parents=True, exist_ok=True)
    total = 0
    for source, names in sources.items():
        for name in names:
            x, hz = soundfile.read(data / kind / source / f"{name}.flac", stop=seconds * HZ)
            assert hz == HZ and x.ndim == 1
            x[-FADE:] *= np.linspace(1, 0, FADE)
            soundfile.write(out / kind / f"{source}_{name}.opus", x, HZ, format="OGG", subtype="OPUS", compression_level=level)
            total += len(x)
    print(f"{kind}: {total / HZ:.1f} s, {sum(f.stat().st_size for f in (out / kind).iterdir())} bytes")
