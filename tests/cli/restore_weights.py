"""krait restore with models in every form in which they are found: float16 and bfloat16, 8-bit floats, PyTorch's files, GGUF. Usage: python3
tests/cli/restore_weights.py KRAIT"""
import json
import math
import pathlib
import random
import shutil
import struct
import sys
import zipfile

from restoring import SIZE, frames_of, here, make, models, tiny_seedvr
from run import check, check_error, finish, krait

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent.parent / "demo"))
import tiny_language_model as gguf  # noqa: E402

DIT, VAE = tiny_seedvr.dit(), tiny_seedvr.vae()
OUT = here / "out.png"


def values_of(keys, seed, narrow):
    rng = random.Random(seed)
    return {key: [narrow(v) for v in tiny_seedvr.values(rng, key, keys[key])] for key in sorted(keys)}


def f16(v):
    return struct.unpack("<e", struct.pack("<e", v))[0]


def bf16(v):
    bits = struct.unpack("<I", struct.pack("<f", v))[0]
    return struct.unpack("<f", struct.pack("<I", (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000))[0]


F8 = {}  # value: code
for code in range(256):
    e, m = code >> 3 & 15, code & 7
    if (e, m) != (15, 7):
        F8.setdefault((-1 if code & 128 else 1) * ((8 + m) * 2.0 ** (e - 10) if e else m * 2.0 ** -9), code)
GRID = sorted(F8)


def f8(v):
    return min(GRID, key=lambda g: abs(g - v))


PACK = {"F32": lambda v: struct.pack(f"<{len(v)}f", *v), "F16": lambda v: struct.pack(f"<{len(v)}e", *v),
        "BF16": lambda v: b"".join(struct.pack("<f", x)[2:] for x in v), "F8_E4M3": lambda v: bytes(F8[x] for x in v)}


def safetensors(path, keys, tensors, dtype, metadata):
    header, data = {"__metadata__": metadata}, b""
    for key, v in tensors.items():
        blob = PACK[dtype](v)
        header[key] = {"dtype": dtype, "shape": keys[key], "data_offsets": [len(data), len(data) + len(blob)]}
        data += blob
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def torch_tensor(number, shape, storage="Float"):
    """torch.save's call for a contiguous tensor, as pickle's bytes."""
    def text(s):
        return b"X" + struct.pack("<I", len(s)) + s.encode()

    def whole(n):
        return b"J" + struct.pack("<i", n)
    strides = [math.prod(shape[i + 1:]) for i in range(len(shape))]
    where = b"(" + text("storage") + f"ctorch\n{storage}Storage\n".encode() + text(str(number)) + text("cpu") + whole(math.prod(shape)) + b"tQ"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + where + whole(0) + b"(" + b"".join(map(whole, shape)) + b"t(" + b"".join(map(whole, strides)) + b"t\x89ccollections\nOrderedDict\n)Rt" + b"R"


def torch_file(path, pickled, blobs):
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("archive/data.pkl", b"\x80\x02" + pickled + b".")
        for i, blob in enumerate(blobs):
            z.writestr(f"archive/data/{i}", blob)


def state_dict(path, keys, tensors):
    pickled = b"}(" + b"".join(b"X" + struct.pack("<I", len(k)) + k.encode() + torch_tensor(i, keys[k]) for i, k in enumerate(tensors)) + b"u"
    torch_file(path, pickled, [PACK["F32"](v) for v in tensors.values()])


def folder(name, **files):
    to = here / name
    to.mkdir()
    for kind in ("vae.weights.safetensors", "seedvr2_tiny.safetensors", "text.safetensors"):
        if kind.split(".")[0].split("_")[0] not in files:
            shutil.copy(models / kind, to)
    return to


def restored(where, *more):
    done = krait("restore", PICTURE, "-o", OUT, "-w", where, *SIZE, "-f", "-q", *more)
    check(done.returncode == 0, f"{where.name}: {done.stderr!r}")
    return frames_of(OUT) if done.returncode == 0 else None


def same(name, got, want):
    check(got is not None and got == want, f"{name}: not the pictures of the same values in float32")


def narrow_types():
    for dtype, narrow in (("F16", f16), ("BF16", bf16), ("F8_E4M3", f8)):
        dit, vae = values_of(DIT, 2, narrow), values_of(VAE, 1, narrow)
        made = {}
        for stored in (dtype, "F32"):
            where = folder(f"{dtype}_{stored}", vae=1, seedvr2=1)
            safetensors(where / "ema_vae_fp16.safetensors", VAE, vae, stored, tiny_seedvr.VAE_METADATA)
            safetensors(where / "seedvr2_ema_3b_fp8_e4m3fn.safetensors", DIT, dit, stored, tiny_seedvr.DIT_METADATA)
            made[stored] = restored(where)
        near(dtype, made[dtype], made["F32"])


def near(name, got, want, most=1):
    check(got and want and len(got) == len(want) and max(abs(a - b) for a, b in zip(got, want)) <= most, f"{name}: not the picture of the same values in float32")


def torch_files():
    """ema_vae.pth, pos_emb.pt and neg_emb.pt, as they are published. The transformer's configuration is in no .pth, so that it stays."""
    where = folder("torch", text=1)
    rng, text = random.Random(3), {}
    for name, shape in (("neg", (7, tiny_seedvr.TEXT)), ("pos", (5, tiny_seedvr.TEXT))):
        text[name] = tiny_seedvr.values(rng, name, shape)
        torch_file(where / f"{name}_emb.pt", torch_tensor(0, shape), [PACK["F32"](text[name])])
    want = restored(models)
    same("pos_emb.pt and neg_emb.pt", restored(where), want)
    torch_file(where / "pos_emb.pt", torch_tensor(0, (5, 8)), [bytes(160)])
    check_error(2, "pos_emb.pt: the text's tensor is float32 (5, 8), must be tokens of 40 features", "restore", PICTURE, "-o", OUT, "-w", where, *SIZE, "-f")
    (where / "pos_emb.pt").unlink()
    check_error(2, "has no pos_emb.pt", "restore", PICTURE, "-o", OUT, "-w", where, *SIZE, "-f")
    state_dict(where / "ema_vae.pth", VAE, values_of(VAE, 1, float))
    (where / "vae.weights.safetensors").unlink()
    done = krait("info", where / "ema_vae.pth", "--json")
    check(done.returncode == 0 and len(json.loads(done.stdout)["tensors"]) == len(VAE), f"ema_vae.pth: {done.stderr!r}")
    check_error(2, "ema_vae.pth", "restore", PICTURE, "-o", OUT, "-w", where, *SIZE, "-f")  # without configuration, the published widths


def q8_0(values):
    blob, back = b"", []
    for i in range(0, len(values), 32):
        block = values[i:i + 32]
        d = f16(max(map(abs, block)) / 127)
        words = [round(v / d) if d else 0 for v in block]
        blob += struct.pack("<e32b", d, *words)
        back += [f16(d * w) for w in words]
    return blob, back


def q4_k(values):
    """256 weights: two factors; of each 32 a scale and a minimum of six bits, in 12 bytes; fours, of two parts in 32 bytes."""
    blob, back = b"", []
    for i in range(0, len(values), 256):
        block = values[i:i + 256]
        scales, least = [40 + 3 * j for j in range(8)], [61 - 2 * j for j in range(8)]
        d, dmin = f16((max(block) - min(block)) / 15 / 40), f16(max(-min(block), 0) / 47)
        fours = [min(15, max(0, round((v + dmin * least[k // 32]) / (d * scales[k // 32])))) if d else 0 for k, v in enumerate(block)]
        head = [scales[j] | (scales[j + 4] >> 4) << 6 for j in range(4)] + [least[j] | (least[j + 4] >> 4) << 6 for j in range(4)]
        head += [scales[j] & 15 | (least[j] & 15) << 4 for j in range(4, 8)]
        blob += struct.pack("<2e12B", d, dmin, *head) + bytes(fours[64 * (k // 32) + k % 32] | fours[64 * (k // 32) + 32 + k % 32] << 4 for k in range(128))
        back += [f16(d * scales[k // 32] * four - dmin * least[k // 32]) for k, four in enumerate(fours)]
    return blob, back


def gguf_files(kind, number, n, pack):
    """As ComfyUI has them: names behind a prefix, matrices in blocks of n weights, those whose rows are no whole blocks in another shape."""
    tensors, back, notes, n_blocks = [], {}, {}, 0
    for key, v in values_of(DIT, 2, f16).items():
        shape, name = list(DIT[key]), f"model.diffusion_model.{key}"
        if len(shape) == 2 and math.prod(shape) % n == 0:
            blob, back[key] = pack(v)
            n_blocks += 1
            if shape[1] % n:
                notes[f"comfy.gguf.orig_shape.{name}"] = shape
                shape = [math.prod(shape) // n, n]
            tensors.append((name, shape, number, blob))
        else:
            back[key] = v
            tensors.append((name, shape, 1 if len(shape) == 2 else 0, PACK["F16" if len(shape) == 2 else "F32"](v)))
    check(notes and n_blocks >= 20, f"{kind}: {n_blocks} matrices in blocks, one of them in another shape")
    where, plain = folder(kind, seedvr2=1), folder(f"{kind}_plain", seedvr2=1)
    gguf.write_gguf(where / f"seedvr2_ema_3b-{kind}.gguf", {"general.architecture": "seedvr2", **tiny_seedvr.DIT_METADATA, **notes}, tensors)
    safetensors(plain / "seedvr2_ema_3b.safetensors", DIT, back, "F32", tiny_seedvr.DIT_METADATA)
    got = restored(where)
    near(kind, got, restored(plain))
    check(got != restored(models), f"{kind}: the picture of the weights before they were in blocks")
    notes[next(iter(notes))] = [3, 5]
    gguf.write_gguf(where / f"seedvr2_ema_3b-{kind}.gguf", {"general.architecture": "seedvr2", **tiny_seedvr.DIT_METADATA, **notes}, tensors)
    check_error(2, "orig_shape", "restore", PICTURE, "-o", OUT, "-w", where, *SIZE, "-f")


def verified():
    """What stands around the models, as published (tests/golden/seedvr-restore); and a file with a wrong value, and with wrong shapes."""
    recorded, broken = pathlib.Path(__file__).parent.parent / "golden" / "seedvr-restore" / "parts.golden.safetensors", here / "broken.golden.safetensors"
    done = krait("verify", here, recorded, "--json", "--device", "cpu")
    names = {row["name"] for row in json.loads(done.stdout)["outputs"]} if done.stdout else set()
    wanted = {"transform.tall.resized", "transform.bars.cropped", "colour.small.wavelet", "colour.small.adain", "comfy_colour.small.lab", "comfy_colour.blend5.out", "sampler.shift.out",
              "sampler.cfg.scale6.5_rescale0.7"}
    check(done.returncode == 0 and wanted <= names, f"verify: {wanted - names} {done.stderr!r}")
    raw = recorded.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    for key, change, status, words in (("golden.colour.small.adain", None, 1, b""), ("golden.comfy_colour.blend5.prev", [1, 5, 2, 9], 2, b"blend5"), ("golden.transform.tall.res", [1, 2], 2, b"tall.res")):
        header, data = json.loads(raw[8:8 + n]), bytearray(raw[8 + n:])
        if change:
            header[key]["shape"] = change
        else:
            data[header[key]["data_offsets"][0] + 3] ^= 0x40
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        broken.write_bytes(struct.pack("<Q", len(text)) + text + data)
        done = krait("verify", here, broken, "--device", "cpu")
        check(done.returncode == status and words in done.stderr, f"verify, {key} spoilt: {done}")


verified()
if shutil.which("ffmpeg") and shutil.which("ffprobe"):
    tiny_seedvr.main(models)
    PICTURE = here / "picture.png"
    make("-f", "lavfi", "-i", "testsrc=size=48x32", "-frames:v", 1, PICTURE)
    narrow_types()
    torch_files()
    gguf_files("Q8_0", 8, 32, q8_0)
    gguf_files("Q4_K", 12, 256, q4_k)
finish()
