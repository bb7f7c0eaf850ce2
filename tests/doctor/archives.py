"""archives.py PROGRAM: source releases, whose build is read and not run, and conda's packages: what they say of the GPUs, torch and Python they are for."""
import bz2, gzip, io, lzma, random, tarfile

from fake import *


def tar(files, links=()):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as t:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))
        for name, target in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            t.addfile(info)
    return out.getvalue()


def zstd(data):
    """A frame of stored blocks."""
    pieces = [data[i : i + 65536] for i in range(0, len(data), 65536)] or [b""]
    blocks = b"".join(struct.pack("<I", (i + 1 == len(pieces)) | len(p) << 3)[:3] + p for i, p in enumerate(pieces))
    return struct.pack("<I", 0xFD2FB528) + b"\xe0" + struct.pack("<Q", len(data)) + blocks


def release(folder, setup, name="some-ext", version="1.2.0", toml="", info="", extra=()):
    path = folder / f"{name.replace('-', '_')}-{version}.tar.gz"
    top = path.name[:-7]
    meta = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{info}\n"
    path.write_bytes(gzip.compress(tar({f"{top}/PKG-INFO": meta.encode(), f"{top}/setup.py": setup.encode(), f"{top}/pyproject.toml": toml.encode(), f"{top}/{'long/' * 30}x.py": b"1", **dict(extra)})))
    return path


FLAGS = """from torch.utils.cpp_extension import CUDAExtension
if version >= "11.8":  # no GPU: a CUDA version
    cc += ["-gencode", "arch=compute_80,code=sm_80"]
    # cc += ["-gencode", "arch=compute_120,code=sm_120"]
    cc += ["-gencode", "arch=compute_90,code=sm_90"]
"""


def flags_name_the_gpus(doctor, folder):
    path = release(folder, FLAGS)
    at = ("--root", folder, "--torch", "2.8.0+cu128")
    a = doctor(path, "--gpu", "12.0", *at)
    f = a.find("W10")
    assert "8.0 9.0" in f["explain"] and "12.0" in f["explain"] and "setup.py, line 5" in f["evidence"][0] and f["package"] == "some-ext" and "compute_120" in f["fix"][0], f
    assert doctor(path, "--gpu", "RTX 3090", *at).ids() == [] and doctor(path, "--gpu", "9.0", *at).ids() == []
    assert doctor(path, "--gpu", "7.5", *at).ids() == ["W10"]
    assert "names the GPUs 8.0 9.0" in " ".join(doctor.text(path, "--gpu", "9.0", *at).split())


def a_variable_sets_them(doctor, folder):
    path = release(folder, 'archs = os.getenv("MY_CUDA_ARCHS", "80;90").split(";")\n')
    f = doctor(path, "--gpu", "12.0", "--root", folder).find("W10")
    assert f["fix"][0].startswith("MY_CUDA_ARCHS=120 pip install --no-build-isolation"), f["fix"]
    path = release(folder, 'os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "7.0;8.0+PTX")\n')
    assert doctor(path, "--gpu", "12.0", "--root", folder).ids() == []  # PTX of 8.0 serves all that are newer
    assert doctor(path, "--gpu", "6.1", "--root", folder).find("W10")["fix"][0].startswith("TORCH_CUDA_ARCH_LIST=6.1 ")
    path = release(folder, "CUDAExtension(sources)\nsetup(version='12.0')\n")
    assert doctor(path, "--gpu", "12.0", "--root", folder).ids() == [] and "TORCH_CUDA_ARCH_LIST" in doctor.text(path, "--gpu", "12.0", "--root", folder)
    path = release(folder, FLAGS, name="causal-conv1d", version="1.5.0")  # known to the tables: their release, pinned
    assert "causal-conv1d==1.7.0" in doctor(path, "--gpu", "12.0", "--torch", "2.8.0+cu128", "--root", folder).find("W10")["fix"][0]


def pins_of_torch_and_python(doctor, folder):
    path = release(folder, FLAGS, toml='[build-system]\nrequires = ["setuptools", "torch==2.3.0"]\n', info="Requires-Python: >=3.9,<3.12\n")
    at = ("--gpu", "9.0", "--root", folder)
    a = doctor(path, "--torch", "2.8.0+cu128", *at)
    assert "torch==2.3.0" in a.find("P01")["explain"] and "--no-build-isolation" in a.find("P01")["fix"][0], a["findings"]
    assert doctor(path, "--torch", "2.3.0+cu121", *at).ids() == []
    assert "Python 3.13" in doctor(path, "--python", "3.13", *at).find("W01")["explain"] and doctor(path, "--python", "3.10", *at).ids() == []


def index(name, version, depends, subdir="linux-64"):
    return json.dumps({"name": name, "version": version, "subdir": subdir, "depends": depends}).encode()


def conda(path, files, **about):
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("metadata.json", "{}")
        z.writestr(f"pkg-{path.stem}.tar.zst", zstd(tar(files, links=[("lib/libx.so", "libx.so.1")])))
        z.writestr(f"info-{path.stem}.tar.zst", zstd(tar({"info/index.json": index(**about)})))
    return path


def packages_of_conda(doctor, folder):
    code = elf(fatbin=container(80, 90))
    p = conda(folder / "causal-conv1d-1.5.2-py311_0.conda", {"lib/python3.11/site-packages/causal_conv1d_cuda.so": code + bytes(300000)}, name="causal-conv1d", version="1.5.2",
              depends=["python >=3.11,<3.12.0a0", "pytorch >=2.6.0,<2.7.0a0", "pytorch * cuda*"])
    at = ("--gpu", "12.0", "--driver", "580", "--root", folder)
    a = doctor(p, *at, "--torch", "2.6.0")
    assert a.ids() == ["K01"] and a.find("K01")["package"] == "causal-conv1d" and a.find("K01")["package_version"] == "1.5.2" and a.find("K01")["file"].endswith("causal_conv1d_cuda.so"), a.ids()
    assert doctor(p, "--gpu", "8.0", "--root", folder, "--torch", "2.6.0").ids() == []
    assert "torch>=2.6.0,<2.7.0a0" in doctor(p, *at, "--torch", "2.8.0+cu128").find("P01")["explain"].replace(" ", "")
    assert "Python 3.12" in doctor(p, "--gpu", "8.0", "--root", folder, "--python", "3.12").find("W01")["explain"]
    other = conda(folder / "x-1.0-0.conda", {"lib/x.so": code}, name="x", version="1.0", depends=[], subdir="linux-aarch64")
    assert "linux-aarch64" in doctor(other, "--gpu", "8.0", "--root", folder, "--machine", "x86_64").find("W01")["explain"]
    assert "W01" not in doctor(other, "--gpu", "8.0", "--root", folder, "--machine", "aarch64").ids()


def old_packages_of_conda(doctor, folder):
    """.tar.bz2: one archive, the index anywhere in it, several streams one after the other."""
    about = index("causal-conv1d", "1.5.2", ["python >=3.11,<3.12.0a0", "pytorch >=2.6.0,<2.7.0a0"])
    library = {"lib/python3.11/site-packages/causal_conv1d_cuda.so": elf(fatbin=container(80, 90)) + bytes(3_000_000) + random.Random(1).randbytes(300_000)}
    setup = {"site-packages/setup.py": FLAGS.encode()}  # of a package that was built: no source release's
    at = ("--gpu", "12.0", "--driver", "580", "--root", folder)
    p = folder / "causal-conv1d-1.5.2-py311_0.tar.bz2"
    for files in ({"info/index.json": about, **library, **setup}, {**library, "info/index.json": about, **setup}):
        data = tar(files)
        for packed in (bz2.compress(data), bz2.compress(data, 1), bz2.compress(data[:70_000]) + bz2.compress(data[70_000:])):
            p.write_bytes(packed)
            a = doctor(p, *at, "--torch", "2.6.0")
            assert a.ids() == ["K01"] and a.find("K01")["package"] == "causal-conv1d" and a.find("K01")["package_version"] == "1.5.2", a["findings"]
            assert doctor(p, "--gpu", "8.0", "--root", folder, "--torch", "2.6.0").ids() == []
    assert "torch>=2.6.0,<2.7.0a0" in doctor(p, *at, "--torch", "2.8.0+cu128").find("P01")["explain"].replace(" ", "")
    whole = p.read_bytes()
    for cut in (5, len(whole) // 2, len(whole) - 5):
        p.write_bytes(whole[:cut])
        assert doctor(p, *at)["exit"] == 3, cut
    p.write_bytes(whole[:60_000] + b"x" + whole[60_001:])
    assert "bzip2 stream that does not unpack" in doctor(p, *at).find("F01")["explain"]
    source = folder / "some_ext-1.2.tar.bz2"  # and a source release that is packed so
    source.write_bytes(bz2.compress(tar({"some_ext-1.2/setup.py": FLAGS.encode()})))
    assert doctor(source, "--gpu", "12.0", "--root", folder).ids() == ["W10"]


def unreadable_archives_say_what_to_do(doctor, folder):
    (folder / "x-1.0-0.tar.xz").write_bytes(lzma.compress(tar({"x-1.0/setup.py": b"1"})))
    done = doctor.run(folder / "x-1.0-0.tar.xz", "--gpu", "8.0", "--root", folder)
    assert done.returncode == 3 and "tar -xJf" in " ".join(done.stdout.decode().split()), done.stdout
    (folder / "y.conda").write_bytes(zipfile_bytes())
    assert "info/index.json" in " ".join(doctor.text(folder / "y.conda", "--gpu", "8.0", "--root", folder).split())


def zipfile_bytes():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        z.writestr("metadata.json", "{}")
    return out.getvalue()


def hostile_archives(doctor, folder):
    """Names that leave the folder, links, bombs, and damage of every kind: an answer within the limits, and exit 3."""
    at = ("--gpu", "8.0", "--root", folder)
    path = release(folder, FLAGS, extra=[("../../x.so", elf())])
    a = doctor(path, *at)
    assert a["exit"] == 3 and "would leave its folder" in a.find("F01")["explain"]
    bomb = folder / "bomb-1.0.tar.gz"
    bomb.write_bytes(gzip.compress(tar({"bomb-1.0/setup.py": b"#" + b"\0" * 200_000_000})))
    a = doctor(bomb, *at)
    assert a["exit"] == 3 and "absurd" in a.find("F01")["explain"]
    bomb = folder / "bomb-1.0.tar.bz2"
    bomb.write_bytes(bz2.compress(tar({"bomb-1.0/setup.py": b"#" + b"\0" * 200_000_000})))
    a = doctor(bomb, *at)
    assert a["exit"] == 3 and "absurd" in a.find("F01")["explain"]
    whole, sound = release(folder, FLAGS * 50).read_bytes(), folder / "z-1.0.tar.gz"
    for cut in (1, 9, 20, len(whole) // 2, len(whole) - 9):
        sound.write_bytes(whole[:cut])
        assert doctor(sound, *at)["exit"] == 3, cut
    flat = bytearray(tar({"z-1.0/setup.py": FLAGS.encode()}))
    flat[130] ^= 1
    sound.write_bytes(bytes(flat))
    assert "wrong checksum" in doctor(sound, *at).find("F01")["explain"]
    text = doctor.run(release(folder, 'archs = "80"  # arch \x1b[31m\n', version="2.0"), "--gpu", "12.0", "--root", folder).stdout
    assert b"\x1b" not in text


run_tests([flags_name_the_gpus, a_variable_sets_them, pins_of_torch_and_python, packages_of_conda, old_packages_of_conda, unreadable_archives_say_what_to_do, hostile_archives])
