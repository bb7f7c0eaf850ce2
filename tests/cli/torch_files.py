"""Handmade PyTorch files, valid and hostile, through krait info and convert; and torch's own if it can be imported."""
import io
import json
import math
import pathlib
import pickle
import random
import resource
import struct
import tempfile
import unittest.mock
import zipfile

from run import check, check_error, finish, krait

# ---- pickle opcodes by hand: torch is not needed, and could not make the hostile ones


def text(s):
    raw = s if isinstance(s, bytes) else s.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def number(n):
    return b"J" + struct.pack("<i", n) if -2**31 <= n < 2**31 else b"\x8a\x08" + struct.pack("<q", n)


def glob(name):
    module, _, leaf = name.rpartition(".")
    return b"c" + module.encode() + b"\n" + leaf.encode() + b"\n"


def tuple_of(*parts):
    return b"(" + b"".join(parts) + b"t"


def call(name, *args):
    return glob(name) + tuple_of(*args) + b"R"


def mapping(**items):
    return b"}(" + b"".join(text(k) + v for k, v in items.items()) + b"u"


def tensor(key="0", offset=0, size=(2,), stride=(1,), storage="torch.FloatStorage", n=4):
    where = tuple_of(text("storage"), glob(storage), text(key), text("cpu"), number(n)) + b"Q"
    return call("torch._utils._rebuild_tensor_v2", where, number(offset), tuple_of(*map(number, size)), tuple_of(*map(number, stride)), b"\x89", call("collections.OrderedDict"))


def archive(root, storages=None, byteorder=b"little", compress=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compress) as z:
        z.writestr("m/data.pkl", b"\x80\x02" + root + b".")
        if byteorder is not None:
            z.writestr("m/byteorder", byteorder)
        for key, data in (storages or {"0": struct.pack("<4f", 1, 2, 3, 4)}).items():
            z.writestr(f"m/data/{key}", data)
    return out.getvalue()


folder = pathlib.Path(tempfile.mkdtemp())
path, out = folder / "m.th", folder / "out.safetensors"


def tensors_of(data):
    """The float32 tensors read by krait, as {name: (shape, values)}."""
    path.write_bytes(data)
    done = krait("convert", "-f", path, out)
    if done.returncode:
        return done.stderr.decode()
    raw = out.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    header.pop("__metadata__", None)
    data = raw[8 + n:]
    return {k: (v["shape"], list(struct.unpack(f"<{(v['data_offsets'][1] - v['data_offsets'][0]) // 4}f", data[slice(*v["data_offsets"])]))) for k, v in header.items()}


def refused(words, root, **kw):
    path.write_bytes(archive(root, **kw))
    check_error(1, words, "info", path)


# ---- good files
good = mapping(model=mapping(a=tensor(), b=tensor(offset=1, size=(2, 1), stride=(2, 9)), c=tensor(size=(2, 2), stride=(1, 2))))
check(tensors_of(archive(good)) == {"a": ([2], [1, 2]), "b": ([2, 1], [2, 4]), "c": ([2, 2], [1, 3, 2, 4])}, f"good: {tensors_of(archive(good))}")
check(tensors_of(archive(good, byteorder=None)) == tensors_of(archive(good)), "without byteorder, as before torch 2.1")
for name in ("state_dict", "model_state_dict", "generator"):
    check(tensors_of(archive(mapping(**{name: mapping(a=tensor()), "epoch": number(3)}))) == {"a": ([2], [1, 2])}, name)
check(tensors_of(archive(mapping(a=tensor(), step=number(3)))) == {"a": ([2], [1, 2])}, "a bare state_dict")
wrapped = mapping(a=call("torch._utils._rebuild_parameter", tensor(), b"\x88", call("collections.OrderedDict")))
check(tensors_of(archive(wrapped)) == {"a": ([2], [1, 2])}, "a parameter")
odd = glob("somebody.Settings") + b")\x81" + mapping(x=number(1)) + b"b"
check(tensors_of(archive(mapping(model=mapping(a=tensor()), args=odd, more=call("any.function", number(1))))) == {"a": ([2], [1, 2])}, "unknown unused objects")

# ---- code
marker = folder / "ran"
for name in ("os.system", "posix.system", "builtins.exec", "subprocess.getoutput"):
    for where in (lambda x: mapping(model=mapping(a=x)), lambda x: mapping(model=mapping(a=tensor()), args=x), lambda x: x, lambda x: mapping(a=b"](" + x + b"e")):
        refused(f"refers to {name}, which could run code", where(call(name, text(f"touch {marker}"))))
check(not marker.exists(), "nothing ran")
refused("is made by calling evil.load", mapping(model=mapping(a=call("evil.load", text("x")))))
refused("is made by calling evil.Thing", mapping(model=mapping(a=glob("evil.Thing") + b")\x81" + mapping(x=number(1)) + b"b")))
refused("model is made by calling evil.Net", mapping(model=glob("evil.Net") + b")\x81" + mapping(_parameters=mapping(a=tensor())) + b"b"))
refused("its content is made by calling evil.Net", glob("evil.Net") + b")R")
refused("is made by calling a computed function", mapping(model=mapping(a=call("evil.f", number(1)) + b")R")))

# ---- inconsistent tensors
for words, bad in (
        ("reaches outside its storage", tensor(offset=3)), ("reaches outside its storage", tensor(size=(5,))), ("reaches outside its storage", tensor(offset=-1)),
        ("reaches outside its storage", tensor(stride=(4,))), ("reaches outside its storage", tensor(size=(2, 2), stride=(2**62, 2**62))),
        ("reaches outside its storage", tensor(offset=2**62)), ("more than 2^63 bytes", tensor(size=(2**62, 2**62), stride=(0, 0))),
        ("expanded view", tensor(size=(10**9,), stride=(0,))), ("not a count", tensor(size=(-2,))), ("not a count", tensor(stride=(-1,))),
        ("one stride per size", tensor(size=(2, 2))), ("of more than 8 dimensions", tensor(size=(1,) * 9, stride=(1,) * 9)),
        ("is missing", tensor(key="7")), ("is missing", tensor(key="../../../../etc/passwd")), ("invalid name", tensor(key="0" * 200)),
        ("torch.QInt8Storage", tensor(storage="torch.QInt8Storage")), ("without a storage", call("torch._utils._rebuild_tensor_v2", number(1), number(0), b")", b")", b"\x89", b"N")),
        ("without a shape", call("torch._utils._rebuild_tensor_v2", tuple_of(text("storage"), glob("torch.FloatStorage"), text("0"), text("cpu"), number(4)) + b"Q"))):
    refused(words, mapping(model=mapping(a=bad)))
refused("not UTF-8", b"}(" + text("model") + b"}(" + text(b"\xff\xfe") + tensor() + b"uu")
refused("without a name", b"}(" + text("model") + b"}(" + text(b"a\0b") + tensor() + b"uu")
refused("without a name", b"}(" + text("model") + b"}(" + number(1) + tensor() + b"uu")
refused("appears twice", b"}(" + text("model") + b"}(" + text("a") + tensor() + text("a") + tensor() + b"uu")
refused("no tensors", mapping(model=mapping(a=number(1))))
refused("not a dictionary", b"](" + tensor() + b"e")

# ---- inconsistent zips
refused("byteorder is 'big'", good, byteorder=b"big")
refused("compressed", good, compress=zipfile.ZIP_DEFLATED)
bomb = io.BytesIO()
with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as z:
    z.writestr(zipfile.ZipInfo("m/data.pkl"), b"\x80\x02" + mapping(model=mapping(a=tensor(n=2**26))) + b".")
    with z.open("m/data/0", "w") as f:
        for _ in range(256):
            f.write(bytes(1 << 20))
path.write_bytes(bomb.getvalue())
peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
check_error(1, "compressed", "info", path)
check(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < peak_kib + (100 << 10), "a zip bomb of 256 MiB is not unpacked")
many = archive(mapping(model=mapping(**{f"t{i}": tensor(key=str(i), n=2500, size=(2500,)) for i in range(3)})), {str(i): bytes(10000) for i in range(3)})
directory = many.index(b"PK\1\2")
first, second = many.index(b"m/data/1", directory) - 46, many.index(b"m/data/2", directory) - 46


def edited(words, *edits):
    """Numbers of the zip's directory that lie: (place, 32-bit number)."""
    raw = bytearray(many)
    for at, value in edits:
        raw[at:at + 4] = struct.pack("<I", value)
    path.write_bytes(bytes(raw))
    check_error(1, words, "info", path)


check(len(tensors_of(many)) == 3, "three storages")
place = struct.unpack("<I", many[first + 42:first + 46])[0]
edited("entries m/data/1 and m/data/2 of the zip overlap", (second + 42, place))  # two names, one place
edited("of the zip overlap", (first + 20, 10100), (first + 24, 10100))  # the header between them has 38 bytes
edited("more bytes than the file (at m/data/1)", *((first + at, 2**31) for at in (20, 24)))
edited("entry m/data/2 is truncated: it ends beyond the file", *((second + at, 10001 + len(many) - directory) for at in (20, 24)))
edited("truncated", (second + 42, len(many) - 20))  # no room for a header
edited("truncated", (second + 42, 2**32 - 2))
edited("the checksum of entry m/data/1 is wrong", (first + 16, 1))
damaged = bytearray(archive(good))
damaged[damaged.index(struct.pack("<f", 3))] ^= 1
path.write_bytes(bytes(damaged))
check_error(1, "the checksum of entry m/data/0 is wrong", "info", path)
damaged = bytearray(archive(good))
damaged[damaged.index(b"_rebuild")] ^= 1
path.write_bytes(bytes(damaged))
check_error(1, "the checksum of entry m/data.pkl is wrong", "info", path)

# large entries are checked in pieces by several threads: any byte counts, and the entry is named
values = {"0": random.Random(1).randbytes(19_000_004), "1": random.Random(2).randbytes(5), "2": random.Random(3).randbytes(3 << 20)}
large = bytearray(archive(mapping(model=mapping(**{f"t{k}": tensor(key=k, storage="torch.ByteStorage", n=len(v), size=(len(v),)) for k, v in values.items()})), values))
path.write_bytes(large)
check(krait("info", path).returncode == 0, "large entries")
for key, at in (("0", 0), ("0", 1 << 20), ("0", 12_345_678), ("0", 19_000_003), ("1", 4), ("2", 3 << 19)):
    begin = large.index(values[key][:5]) + at
    large[begin] ^= 4
    path.write_bytes(large)
    check_error(1, f"the checksum of entry m/data/{key} is wrong", "info", path)
    large[begin] ^= 4

# zip64: sizes in the entries' extra fields, as in files of more than 4 GiB
with unittest.mock.patch("zipfile.ZIP64_LIMIT", 10):
    wide = archive(good)
check(wide.count(b"PK\6\6") == 1 and tensors_of(wide) == tensors_of(archive(good)), f"zip64: {tensors_of(wide)}")
empty = io.BytesIO()
with zipfile.ZipFile(empty, "w") as z:
    z.writestr("other.txt", "x")
path.write_bytes(empty.getvalue())
check_error(1, "without NAME/data.pkl", "info", path)
path.write_bytes(b"PK\3\4" + bytes(100))
check_error(1, "not a readable zip", "info", path)
path.write_bytes(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.")
check_error(1, "before 1.6", "info", path)



class Stored(pickle.Unpickler):
    """torch.load's result, without torch: {name: (shape, bytes)}; only contiguous tensors."""

    def __init__(self, archive):
        super().__init__(archive.open("archive/data.pkl"))
        self.archive = archive

    def find_class(self, module, name):
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            def rebuild(data, offset, size, stride, requires_grad, hooks):
                check(offset == 0 and not requires_grad and stride == tuple(math.prod(size[d + 1:]) for d in range(len(size))), f"{size}, {stride}")
                return list(size), data
            return rebuild
        return {("collections", "OrderedDict"): dict, ("torch", "FloatStorage"): 4, ("torch", "LongStorage"): 8}[module, name]

    def persistent_load(self, pid):
        word, width, key, place, n = pid
        data = self.archive.read(f"archive/data/{key}")
        check((word, place, n * width) == ("storage", "cpu", len(data)), f"{pid}")
        return data


def back(file):
    with zipfile.ZipFile(file) as archive:
        check(archive.testzip() is None and archive.read("archive/byteorder") == b"little" and archive.read("archive/version") == b"3\n", f"{archive.namelist()}")
        with open(file, "rb") as raw:
            for info in archive.infolist():
                raw.seek(info.header_offset + 26)
                check((raw.tell() + 4 + sum(struct.unpack("<2H", raw.read(4)))) % 64 == 0 and info.compress_type == 0, f"{info} can be mapped")
        return Stored(archive).load()


# ---- a training run's folder, best.th beside .hydra/config.yaml: same results as the weights as safetensors
GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "primeknet"
for golden in ("tiny-mamba-causal", "tiny-gru", "tiny-lstm"):
    raw = (GOLDEN / f"{golden}.weights.safetensors").read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    meta = header.pop("__metadata__")
    data = raw[8 + n:]
    state, storages = {}, {}
    for i, (key, entry) in enumerate(header.items()):
        storages[str(i)] = data[slice(*entry["data_offsets"])]
        strides = [math.prod(entry["shape"][d + 1:]) for d in range(len(entry["shape"]))]
        state[key] = tensor(str(i), size=entry["shape"], stride=strides, n=len(storages[str(i)]) // 4)
    best, config = folder / "best.th", folder / "config.yaml"
    best.write_bytes(archive(mapping(model=mapping(**state)), storages))
    lines = [f"    {k}: {json.dumps(v)}" for k, v in json.loads(meta["config"]).items()]
    config.write_text("\n".join(["n_fft: 400", "lr: 0.0005", "model:", f"  model_lib: {meta['model']}", "  model_class: PrimeKnet", "  input_type: acs", "  param:"] + lines) + "\n")
    done = krait("verify", best, GOLDEN / f"{golden}.golden.safetensors", "--config", config)
    check(done.returncode == 0, f"verify {golden} as best.th: {done.stdout.decode()}{done.stderr.decode()}")
    check(krait("convert", "-f", best, out, "--config", config).returncode == 0, "convert with --config")
    done = krait("verify", out, GOLDEN / f"{golden}.golden.safetensors")
    check(done.returncode == 0, f"verify {golden} converted: {done.stdout.decode()}{done.stderr.decode()}")
    check_error(2, "model", "verify", best, GOLDEN / f"{golden}.golden.safetensors")
    again = folder / "again.th"
    check(krait("convert", "-f", out, again).returncode == 0, "convert back to best.th")
    done = krait("verify", again, GOLDEN / f"{golden}.golden.safetensors", "--config", config)
    check(done.returncode == 0, f"verify {golden} converted back: {done.stdout.decode()}{done.stderr.decode()}")
    check(back(again) == {"model": {key: (entry["shape"], storages[str(i)]) for i, (key, entry) in enumerate(header.items())}}, f"{golden}: as read by Python's zip and pickle")

# ---- other types, no dimensions, empty; a type that PyTorch lacks; a full disk
def tensors_file(header, data):
    raw = json.dumps(header).encode()
    out.write_bytes(struct.pack("<Q", len(raw)) + raw + data)


tensors_file({"n": {"dtype": "I64", "shape": [], "data_offsets": [0, 8]}, "none": {"dtype": "F32", "shape": [0, 3], "data_offsets": [8, 8]}}, struct.pack("<q", 7))
check(krait("convert", "-f", out, path).returncode == 0 and back(path) == {"model": {"n": ([], struct.pack("<q", 7)), "none": ([0, 3], b"")}}, f"{back(path)}")
check(krait("convert", out, path).returncode == 2 and back(path)["model"]["n"][0] == [], "a .th that exists stays")
full = folder / "full.th"
full.symlink_to("/dev/full")
check_error(1, "No space left", "convert", "-f", out, full)
tensors_file({"n": {"dtype": "U16", "shape": [2], "data_offsets": [0, 4]}}, bytes(4))
check_error(1, "for which PyTorch has no storage", "convert", "-f", out, path)

# ---- files saved by torch
try:
    import torch
except ImportError:
    print("note: torch cannot be imported here; uses its files in tests/golden/torch instead")
else:
    net = torch.nn.Sequential(torch.nn.Conv1d(3, 4, 5), torch.nn.BatchNorm1d(4), torch.nn.Linear(7, 2))
    for protocol in (2, 3, 4, 5):
        buffer = io.BytesIO()
        torch.save({"model": {k: v for k, v in net.state_dict().items() if v.dtype == torch.float32}}, buffer, pickle_protocol=protocol)
        got = tensors_of(buffer.getvalue())
        krait("convert", "-f", out, path)
        read = torch.load(path, weights_only=True) if protocol > 2 else torch.load(path)
        check(all(torch.equal(read["model"][k], v) for k, v in net.state_dict().items() if v.dtype == torch.float32), "torch.load of krait's file")
        check({k: (list(v.shape), v.flatten().tolist()) for k, v in net.state_dict().items() if v.dtype == torch.float32} == got, f"torch.save, protocol {protocol}: {got}")

for p in folder.iterdir():
    p.unlink()
folder.rmdir()
finish()
