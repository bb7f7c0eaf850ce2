#!/usr/bin/env python3
"""Takes small cases out of the golden files of SeedVR's whole pipeline (made by the published code; ../shared/golden/seedvr-restore has the
whole ones) into one file: resizing, colours, schedule, guidance.

    make.py SHARED/seedvr-restore"""
import json
import pathlib
import struct
import sys

CASES = {"transform": ("tall.", "bars."), "colour": ("small.",), "comfy_colour": ("blend", "small.content", "small.style", "small.lab"),
         "sampler": ("shift.", "lerp.", "cfg.pos", "cfg.neg", "cfg.scale", "timesteps4")}


def main(source):
    header, data = {}, b""
    for name, starts in CASES.items():
        raw = (pathlib.Path(source) / f"{name}.golden.safetensors").read_bytes()
        n = struct.unpack("<Q", raw[:8])[0]
        for key, item in sorted(json.loads(raw[8:8 + n]).items(), key=lambda pair: pair[1].get("data_offsets", [0])[0] if pair[0] != "__metadata__" else 0):
            if key == "__metadata__" or not key.removeprefix("golden.").startswith(starts) or key == "golden.timesteps49":
                continue
            begin, end = item["data_offsets"]
            new = f"golden.{name}.{key.removeprefix('golden.')}"
            header[new] = {"dtype": item["dtype"], "shape": item["shape"], "data_offsets": [len(data), len(data) + end - begin]}
            data += raw[8 + n + begin:8 + n + end]
    # floats first, so that each is aligned
    order = sorted(header, key=lambda key: header[key]["dtype"] == "U8")
    at, out = 0, b""
    for key in order:
        begin, end = header[key]["data_offsets"]
        header[key]["data_offsets"] = [at, at + end - begin]
        out += data[begin:end]
        at += end - begin
    text = json.dumps({key: header[key] for key in order}).encode()
    text += b" " * (-len(text) % 8)
    (pathlib.Path(__file__).parent / "parts.golden.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + out)


if __name__ == "__main__":
    main(sys.argv[1])
