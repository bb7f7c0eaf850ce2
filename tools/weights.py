#!/usr/bin/env python3
"""weights.py round IN.safetensors OUT.safetensors: the weights as the program and the wheel have them: values rounded to 12 significant
bits. The rest is incompressible noise, three eighths of the file, and changes no score (docs/speed/weights.md).
weights.py grow IN.safetensors OUT.safetensors 0 0 1 1: weights of a deeper PrimeKnet equal to IN, to train further.
Block k of OUT gets the tensors of the IN block listed at k; a repeat of the block before it starts with residual scales
of zero, so it is the identity.
weights.py position IN.safetensors OUT.safetensors POSITIONS: weights with position_bias, which are zero, equal to IN."""
import json, pathlib, struct, sys


def read(path):
    """The header, its bytes with the length before it, and what follows them."""
    data = pathlib.Path(path).read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:start]), data[:start], data[start:]


def rounded(path, out):
    header, head, body = read(path)
    assert len(head) % 4 == 0 and all(t["dtype"] == "F32" for name, t in header.items() if name != "__metadata__")
    words = struct.unpack(f"<{len(body) // 4}I", body)
    assert all(word & 0x7f800000 != 0x7f800000 for word in words), "a value is not finite"
    pathlib.Path(out).write_bytes(head + struct.pack(f"<{len(words)}I", *[word + 0x800 & 0xfffff000 for word in words]))


def grown(path, out, *which):
    header, _, body = read(path)
    metadata = header.pop("__metadata__")
    config = json.loads(metadata["config"])
    blocks = [int(v) for v in which]
    if blocks != sorted(blocks) or sorted(set(blocks)) != list(range(config["num_tsblock"])):
        sys.exit(f"weights.py: {path} has the blocks 0 to {config['num_tsblock'] - 1}: list every one, in order, as often as it is to stand")
    config["num_tsblock"] = len(blocks)
    made, parts, used = {"__metadata__": {"model": metadata["model"], "config": json.dumps(config), "license": metadata.get("license", "")}}, [], 0

    def put(name, t, zero=False):
        nonlocal used
        begin, end = t["data_offsets"]
        made[name] = {**t, "data_offsets": [used, used + end - begin]}
        parts.append(bytes(end - begin) if zero else body[begin:end])
        used += end - begin

    for name, t in header.items():
        if not name.startswith("sequence_block."):
            put(name, t)
    for k, source in enumerate(blocks):
        for name, t in header.items():
            if name.startswith(f"sequence_block.{source}."):
                rest = name.split(".", 2)[2]
                put(f"sequence_block.{k}.{rest}", t, k > 0 and blocks[k - 1] == source and rest.rsplit(".", 1)[-1] in ("beta", "beta_t", "beta_f"))
    write(out, made, b"".join(parts))


def write(out, header, body):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(out).write_bytes(struct.pack("<Q", len(text)) + text + body)


def positioned(path, out, n):
    header, _, body = read(path)
    config = json.loads(header["__metadata__"]["config"])
    header["__metadata__"]["config"] = json.dumps(config | {"position_bias": True})
    for k in range(config["num_tsblock"]):
        added = bytes(4 * int(n) * config["dense_channel"])
        header[f"sequence_block.{k}.position_bias"] = {"dtype": "F32", "shape": [int(n), config["dense_channel"]], "data_offsets": [len(body), len(body) + len(added)]}
        body += added
    write(out, header, body)


verbs = {"round": rounded, "grow": grown, "position": positioned}
if len(sys.argv) < 4 or sys.argv[1] not in verbs:
    sys.exit("usage: " + __doc__)
verbs[sys.argv[1]](*sys.argv[2:])
