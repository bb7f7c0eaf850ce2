#!/usr/bin/env python3
"""train_lists.py DATA OUT: writes OUT/speech.txt and OUT/noise.txt, the weighted lists of the built-in denoiser's sixth
training (src/models/primeknet/weights/CARD.md), and OUT/held_speech.txt and OUT/held_noise.txt, recordings and noises
that stay out of training, for mixtures. DATA is a tree of recordings with speech/index.tsv and noise/index.tsv.

Only sources whose licence allows any use are listed. A recording is drawn as often as it stands in a list."""
import collections, csv, pathlib, sys

data, out = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
out.mkdir(parents=True, exist_ok=True)


def rows(kind):
    return sorted(csv.DictReader(open(data / kind / "index.tsv"), delimiter="\t"), key=lambda r: r["file"])


def write(name, kind, files):
    (out / name).write_text("".join(f"{data}/{kind}/{file}\n" for file in files))
    print(f"{out / name}: {len(files)} lines, {len(set(files))} recordings")


def spread(items, n):
    return [items[i * len(items) // n] for i in range(n)]


speech, noise = rows("speech"), rows("noise")
voices = collections.Counter(r["speaker"] for r in speech if r["source"] == "librispeech")
alone = [r["file"] for r in speech
         if r["source"] == "librispeech" and voices[r["speaker"]] == 1 and float(r["seconds"]) >= 6]
held = spread(alone, 30)


def speech_weight(r):
    source, quiet_db = r["source"], float(r["level_range_p95_p5_db"])
    if r["file"] in held or "/p226" in r["file"]:  # p226 speaks in the development pairs
        return 0
    if source == "librispeech":
        return 2 if quiet_db >= 40 else 1 if quiet_db >= 30 else 0
    if source == "picovoice_barista":
        return 1 if quiet_db >= 60 else 0
    return {"vctk": 6, "ljspeech": 3, "cmu_arctic": 4}.get(source, 0)


WEIGHTS = {"picovoice": 30, "speechbrain": 20, "blanket": 14, "speechcommands": 14, "deepfilternet": 14}


def noise_weight(r, n_before):
    source, file = r["source"], r["file"]
    if source == "esc10":
        is_steady = any(name in file for name in ("chainsaw", "fire", "helicopter", "rain", "sea"))
        return 1 if is_steady or (n_before + 1) % 4 == 0 else 0
    if "miaowing" in file:
        return 2
    weight = WEIGHTS.get(source, 0)
    return 2 * weight if any(name in file for name in ("city", "coffee", "train")) else weight


places = [r["file"] for r in noise if r["source"] == "moodist"]
before = [sum(q["source"] == "esc10" for q in noise[:i]) for i in range(len(noise))]
write("speech.txt", "speech", [r["file"] for r in speech for _ in range(speech_weight(r))])
write("noise.txt", "noise", [r["file"] for r, n in zip(noise, before) for _ in range(noise_weight(r, n))])
write("held_speech.txt", "speech", held)
kinds = (("places", 10), ("transport", 5), ("urban", 5), ("rain", 5), ("things", 5))
write("held_noise.txt", "noise",
      [file for kind, n in kinds for file in spread([f for f in places if f"/{kind}_" in f], n)])
