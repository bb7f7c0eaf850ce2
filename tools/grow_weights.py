#!/usr/bin/env python3
"""grow_weights.py IN.safetensors OUT.safetensors 0 0 1 1: weights of a deeper PrimeKnet equal to IN, to train further.

Block k of OUT gets the tensors of the IN block listed at k; a repeat of the block before it starts with residual scales
of zero, so it is the identity."""
import json, struct, sys

if len(sys.argv) < 4:
    sys.exit("usage: " + __doc__.split(":")[0])
data = open(sys.argv[1], "rb").read()
start = 8 + struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:start])
metadata = header.pop("__metadata__")
config = json.loads(metadata["config"])
blocks = [int(v) for v in sys.argv[3:]]
if blocks != sorted(blocks) or sorted(set(blocks)) != list(range(config["num_tsblock"])):
    sys.exit(f"grow_weights.py: {sys.argv[1]} has the blocks 0 to {config['num_tsblock'] - 1}: list every one, in order, as often as it is to stand")
config["num_tsblock"] = len(blocks)
out, body = {"__metadata__": {"model": metadata["model"], "config": json.dumps(config), "license": metadata.get("license", "")}}, b""


def put(name, t, zero=False):
    global body
    begin, end = t["data_offsets"]
    out[name] = {**t, "data_offsets": [len(body), len(body) + end - begin]}
    body += bytes(end - begin) if zero else data[start + begin:start + end]


for name, t in header.items():
    if not name.startswith("sequence_block."):
        put(name, t)
for k, source in enumerate(blocks):
    for name, t in header.items():
        if name.startswith(f"sequence_block.{source}."):
            rest = name.split(".", 2)[2]
            put(f"sequence_block.{k}.{rest}", t, k > 0 and blocks[k - 1] == source and rest.rsplit(".", 1)[-1] in ("beta", "beta_t", "beta_f"))
text = json.dumps(out).encode()
text += b" " * (-len(text) % 8)
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + body)
