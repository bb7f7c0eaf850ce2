"""Weights files in the safetensors format, as written by `krait train` and `krait convert`; needs only numpy."""

import json
import os
import struct

import numpy as np

_WIDTHS = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8}


def _float32(data, kind):
    if kind == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, {"F32": "<f4", "F16": "<f2", "F64": "<f8"}[kind]).astype(np.float32)


def read(path):
    """-> (metadata, {name: float32 array}); raises ValueError that names the file if it is malformed."""
    path = os.fspath(path)
    with open(path, "rb") as file:
        raw = file.read()
    try:
        length = struct.unpack_from("<Q", raw)[0]
        if length > len(raw) - 8:
            raise ValueError
        header = json.loads(raw[8:8 + length].decode())
        metadata = header.pop("__metadata__", {})
        data, tensors = memoryview(raw)[8 + length:], {}
        for name, part in header.items():
            (begin, end), shape, kind = part["data_offsets"], part["shape"], part["dtype"]
            if not all(isinstance(n, int) and n >= 0 for n in (begin, end, *shape)) or not begin <= end <= len(data) or end - begin != _WIDTHS[kind] * int(np.prod(shape, dtype=object)):
                raise ValueError
            tensors[name] = _float32(data[begin:end], kind).reshape(shape)
    except (ValueError, KeyError, TypeError, AttributeError, struct.error):
        raise ValueError("%s: not a complete safetensors file of floating-point tensors; convert PyTorch files with krait convert" % path) from None
    return metadata, tensors


def settings(metadata, path):
    """The model's options from the metadata: "model=primeknet_mamba,dense_channel=64"."""
    if str(metadata.get("format")).startswith("krait training"):
        raise ValueError("%s: a training checkpoint; use the run's weights, best.safetensors in the same folder" % path)
    if "model" not in metadata:
        raise ValueError("%s: the metadata do not name the model; add it with krait convert --config" % path)
    pairs = {"model": metadata["model"], **json.loads(metadata.get("config", "{}"))}
    return ",".join("%s=%s" % (key, value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))) for key, value in pairs.items() if value is not None)
