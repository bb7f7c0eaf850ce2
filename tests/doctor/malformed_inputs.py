"""malformed_inputs.py PROGRAM: hard cases: inconsistent headers, mixed containers, traps in wheels; the command's other forms."""
import random, resource, shutil, time, zlib

from fake import *


def verdict(doctor, folder, data, *args, name="x.so"):
    (folder / name).write_bytes(data)
    return doctor(folder / name, *args, "--root", folder)


def lower_minor_runs_higher_does_not(doctor, folder):
    assert verdict(doctor, folder, elf(fatbin=container(80, 86)), "--gpu", "8.9")["findings"] == []
    assert verdict(doctor, folder, elf(fatbin=container(89)), "--gpu", "8.6").ids() == ["K07"]


def stub_is_ignored(doctor, folder):
    stub = container(entry(2, 90, cubin(90, kernels=())))
    a = verdict(doctor, folder, elf(fatbin=stub + container(80) + container(80)), "--gpu", "9.0")
    assert [c["verdict"] for c in a["files"][0]["containers"]] == ["stub", "none", "none"] and a.ids() == ["K01"]
    assert verdict(doctor, folder, elf(fatbin=stub + container(90)), "--gpu", "9.0")["exit"] == 0


def relocatable_ptx_counts(doctor, folder):
    rel = lambda *images: elf(fatbin=container(75), relfatbin=container(entry(2, 75, cubin(75, relocatable=True)), *images))
    assert verdict(doctor, folder, rel("ptx80"), "--gpu", "9.0")["files"][0]["verdict"] == "jit"
    assert verdict(doctor, folder, rel(), "--gpu", "9.0").ids() == ["K09"]


def mixed_containers_name_the_lost_kernels(doctor, folder):
    lost = container(entry(2, 90, cubin(90, "a", kernels=["_Z4lostPi"]), "a"))
    a = verdict(doctor, folder, elf(fatbin=container(80) + lost), "--gpu", "8.0")
    assert a["files"][0]["verdict"] == "partial" and "lost(int*)" in a.find("K02")["explain"], a.find("K02")


def long_kernel_names_are_cut_not_lost(doctor, folder):
    name = "_Z" + "".join(f"{60}{'k' * 60}" for _ in range(60)) + "v"
    a = verdict(doctor, folder, elf(fatbin=container(80) + container(entry(2, 90, cubin(90, kernels=[name])))), "--gpu", "8.0")
    assert "kkkk" in a.find("K02")["explain"] and name not in a.find("K02")["explain"]


def libraries_that_pick_kernels_by_gpu_are_no_fault(doctor, folder):
    data = elf(fatbin=container(80, 90) + container(80))
    assert verdict(doctor, folder, data, "--gpu", "9.0").ids() == ["K02"]
    a = verdict(doctor, folder, data, "--gpu", "9.0", name="libcublas.so.13")
    assert a["findings"] == [] and a["exit"] == 0
    assert "1 of 2 containers run on 9.0" in doctor.text(folder / "libcublas.so.13", "--gpu", "9.0", "--root", folder)
    a = verdict(doctor, folder, data, "--gpu", "9.0", "--all", name="libcublas.so.13")
    assert a.find("K02")["severity"] == "info" and a["exit"] == 0
    assert verdict(doctor, folder, data, "--gpu", "12.0", name="libcublas.so.13").find("K01")["severity"] == "error"


def binary_packages_are_not_built_from_source(doctor, folder):
    t = Tree(folder)
    t.package("nvidia-cublas", "13.1.0", {"nvidia/cu13/lib/libcublas.so.13": elf(fatbin=container(75, 80))}, tag="py3-none-manylinux_2_27_x86_64")
    fixes = doctor(t.site, "--root", t.root, "--gpu", "6.1", "--all").find("K01")["fix"]
    assert "whl/cu126" in fixes[0] and not any("no-binary" in f for f in fixes), fixes


def one_cause_is_one_problem(doctor, folder):
    t = Tree(folder)
    for name in ("cublas", "cusolver"):
        t.package(f"nvidia-{name}", "13.1.0", {f"nvidia/cu13/lib/lib{name}.so.13": elf(fatbin=container(75, 80))}, tag="py3-none-manylinux_2_27_x86_64")
    t.machine("usr/local/cuda/version.json", '{"cuda" : {"name" : "CUDA SDK", "version" : "13.0.0"}}')
    t.machine("usr/local/cuda/bin/nvcc", "")
    assert doctor(t.site, "--root", t.root, "--gpu", "6.1").ids() == ["K14"]
    assert doctor.run(t.site, "--root", t.root, "--gpu", "6.1", "--fix-plan").stdout.decode().count("\n") == 2
    assert sorted(doctor(t.site, "--root", t.root, "--gpu", "6.1", "--all").ids()) == ["K01", "K01", "K14"]
    t.extension(name="causal-conv1d", version="1.5.2")  # packages not shipped by torch are a separate problem
    assert doctor(t.site, "--root", t.root, "--gpu", "6.1").ids() == ["K01", "B06", "K14", "B02"]


def an_old_driver_is_one_cause(doctor, folder):
    """Some of a library's containers are packed for newer drivers, some have no code for the GPU: reported
    separately."""
    mixed = container(zstd_entry(80)) * 2 + container(120)
    a = verdict(doctor, folder, elf(fatbin=mixed), "--gpu", "8.9", "--driver", "535.54")
    assert sorted(a.ids()) == ["K02", "K11"] and "2 of 3 containers" in a.find("K11")["evidence"][-1] and "1 of 3 container" in a.find("K02")["evidence"][-1], a["findings"]
    assert verdict(doctor, folder, elf(fatbin=mixed), "--gpu", "8.9", "--driver", "535.54", name="libcublas.so.13").ids() == ["K11"]
    t = Tree(folder / "t", torch="2.9.1+cu130", cuda="13.0", torch_cuda=False)
    for name in ("cublas", "cusolver"):
        t.package(f"nvidia-{name}", "13.1.0", {f"nvidia/cu13/lib/lib{name}.so.13": elf(fatbin=mixed)}, tag="py3-none-manylinux_2_27_x86_64")
    (t.site / "torch/lib/libtorch_cuda.so").write_bytes(elf(fatbin=container(zstd_entry(80)), needed=["libc10.so"]))
    ask = lambda driver, *more: doctor(t.site, "--root", t.root, "--gpu", "8.9", "--driver", driver, *more).ids()
    assert ask("535.54") == ["D01"] and ask("535.54", "--all").count("K11") == 3, ask("535.54", "--all")
    assert ask("580.82") == []
    (t.site / "torch/version.py").write_text("__version__ = '2.9.1+cu128'\ncuda: str = '12.8'\n")
    assert ask("535.54") == ["K11"], ask("535.54")  # a CUDA 12 driver that is too old only for the packing


def only_torchs_main_library_speaks_for_torch(doctor, folder):
    t = Tree(folder, images=(75, 80))
    (t.site / "torch/lib/libtorch_cuda_linalg.so").write_bytes(elf(fatbin=container(80), needed=["libc10.so"]))
    assert doctor(t.site, "--root", t.root, "--gpu", "7.5").ids() == ["K01"]


def jit_settings_are_reported_where_relevant(doctor, folder):
    (folder / "x.so").write_bytes(elf(fatbin=container("ptx80")))
    (folder / "y.so").write_bytes(elf(fatbin=container(90)))
    a = doctor(folder / "x.so", "--gpu", "9.0", "--root", folder, env={"CUDA_CACHE_DISABLE": "1"})
    assert "unset CUDA_CACHE_DISABLE" in a.find("K13")["fix"]
    for value, ids in (("0", ["K13"]), ("", ["K13"]), ("1", ["K19", "K13"])):
        assert doctor(folder / "x.so", "--gpu", "9.0", "--root", folder, env={"CUDA_DISABLE_PTX_JIT": value}).ids() == ids
        assert doctor(folder / "y.so", "--gpu", "9.0", "--root", folder, env={"CUDA_DISABLE_PTX_JIT": value}).ids() == []


def suffixes_in_both_layouts(doctor, folder):
    for sm, suffix, toolkit in ((90, "a", 128), (90, "a", 130), (120, "a", 130), (100, "f", 130)):
        a = verdict(doctor, folder, elf(fatbin=container(entry(2, sm, cubin(sm, suffix, toolkit=toolkit), suffix))), "--gpu", "9.0")
        image = a["files"][0]["containers"][0]["images"][0]
        assert (image["sm"], image["suffix"], image["toolkit"]) == (sm, suffix, f"{toolkit // 10}.{toolkit % 10}"), image
    a = verdict(doctor, folder, elf(fatbin=container(entry(2, 90, cubin(90, "a", toolkit=128)))), "--gpu", "9.0")
    assert a["files"][0]["containers"][0]["images"][0]["suffix"] == "a"


def empty_kernels_count_only_beside_full_ones(doctor, folder):
    pair = lambda old, new: elf(fatbin=container(entry(2, 80, cubin(80, code=old)), entry(2, 90, cubin(90, "a", code=new), "a")))
    assert verdict(doctor, folder, pair(128, 9000), "--gpu", "9.0")["findings"] == []  # there the full one is used
    assert verdict(doctor, folder, pair(128, 384), "--gpu", "8.0")["findings"] == []  # a small kernel is small everywhere
    assert verdict(doctor, folder, pair(6000, 9000), "--gpu", "8.0")["findings"] == []
    a = verdict(doctor, folder, elf(fatbin=container("ptx80", entry(2, 80, cubin(80, code=128)), entry(2, 90, cubin(90, "a", code=9000), "a"))), "--gpu", "12.0")
    assert a.ids() == ["K20", "K13"] and "empty for 1 kernel" in a.find("K20")["explain"] and "9.0a" in a.find("K20")["explain"], a["findings"]


def text_version_decides(doctor, folder):
    text = entry(1, 80, ptx(80, "9.4"))
    assert verdict(doctor, folder, elf(fatbin=container(text)), "--gpu", "9.0", "--driver", "580.82").ids() == ["K08"]


def drivers_from_before_and_after_the_tables(doctor, folder):
    data = elf(fatbin=container("ptx80"))
    assert verdict(doctor, folder, data, "--gpu", "9.0", "--driver", "570.86").ids() == ["K08"]
    assert verdict(doctor, folder, data, "--gpu", "9.0", "--driver", "999.1").ids() == ["K13"]


def inconsistent_sections_are_searched(doctor, folder):
    good = elf(fatbin=container(80), sections=False)
    a = verdict(doctor, folder, good, "--gpu", "8.0")
    assert a["files"][0]["verdict"] == "native" and a["files"][0]["containers"][0]["section"] == "search"
    base = elf(fatbin=container(80), undefined=["_ZN3c104cuda14ExchangeDeviceEa"])
    for at, size, value in ((60, 2, 0), (62, 2, 0xFFFF), (60, 2, 0xFFFE), (40, 8, 2**64 - 1), (40, 8, len(base) - 8), (58, 2, 63), (56, 2, 0xFFFF), (32, 8, 2**63)):
        data = bytearray(base)
        data[at : at + size] = value.to_bytes(size, "little")
        verdict(doctor, folder, bytes(data), "--gpu", "8.0")
    for magic in (b"\x7fELF\x01\x01\x01", b"\x7fELF\x02\x02\x01"):
        a = verdict(doctor, folder, magic + base[7:], "--gpu", "8.0")
        assert a["files"][0]["containers"] == []


def cubin_in_rodata_needs_deep(doctor, folder):
    data = elf(rodata=b"\0" * 64 + cubin(80))
    assert verdict(doctor, folder, data, "--gpu", "8.0")["files"][0]["containers"] == []
    assert verdict(doctor, folder, data, "--gpu", "8.0", "--deep")["files"][0]["verdict"] == "native"


def every_prefix_of_a_library_terminates(doctor, folder):
    data = elf(fatbin=container(80, "ptx80"), undefined=["_ZN2at1xEv"], versions=[("libc.so.6", "GLIBC_2.34")])
    paths = []
    for n in range(0, len(data), 61):
        (folder / f"p{n}.so").write_bytes(data[:n])
        paths.append(folder / f"p{n}.so")
    done = doctor.run(*paths, "--gpu", "8.0", "--root", folder, "--json")
    assert done.returncode == 3 and len(json.loads(done.stdout)["files"]) == len(paths)


def random_flips_terminate(doctor, folder):
    chance, data, paths = random.Random(1), elf(fatbin=container(80, "ptx80", "90a"), undefined=["_ZN2at1xEv"], needed=["libc.so.6"]), []
    for i in range(300):
        bad = bytearray(data)
        for _ in range(3):
            bad[chance.randrange(len(bad)) if chance.random() < 0.5 else chance.randrange(256)] = chance.randrange(256)
        (folder / f"f{i}.so").write_bytes(bad)
        paths.append(folder / f"f{i}.so")
    done = doctor.run(*paths, "--gpu", "8.0", "--root", folder, "--json")
    assert done.returncode in (0, 1, 3), done.stderr


def symbols_near_weak_and_hash_only(doctor, folder):
    t = Tree(folder, exports=["_ZN3c104cuda14ExchangeDeviceEi"], torch="2.2.0+cu121", cuda="12.1", images=(80,))
    t.extension(undefined=["_ZN3c104cuda14ExchangeDeviceEa"], weak=["_ZN3c104cuda4weakEv"], sections=False)
    a = doctor(t.site, "--root", t.root, "--gpu", "8.0")
    found = a.find("S01")
    assert "c10::cuda::ExchangeDevice(signed char)" in found["explain"] and ">= 2.3" in found["explain"] and "1 name missing" in found["explain"], found
    assert any("ExchangeDevice(int)" in e for e in found["evidence"])


def the_stable_interface_has_a_floor(doctor, folder):
    c, cxx = ["aoti_torch_get_data_ptr", "aoti_torch_call_dispatcher"], "_ZN2at1xEv"
    def ask(names, *args, exports=C10, **kwargs):
        t = Tree(folder / str(len(list(folder.iterdir()))), exports=exports, **kwargs)
        t.extension(pyname="abi3", undefined=names, images=(80,))
        a = doctor(t.site, "--root", t.root, "--gpu", "8.0", *args)
        return a, next(f["versions"].get("TORCH") for f in a["files"] if "abi3" in f["path"]), doctor.text(t.site, "--root", t.root, "--gpu", "8.0", *args)
    a, floor, text = ask(c, exports=C10 + c)
    assert floor == "2.7" and a["findings"] == [] and "torch >= 2.7" in " ".join(text.split()), (floor, a["findings"], text)
    a, floor, text = ask(c + ["torch_from_blob"], exports=C10 + c)
    assert floor == "2.11" and ">= 2.11" in a.find("S01")["explain"] and "1 name missing" in a.find("S01")["explain"], a.find("S01")
    a, floor, text = ask([c[1], "torch_list_size"], exports=C10)  # the newest of all its names counts
    assert floor == "2.10" and ">= 2.10" in a.find("S01")["explain"]
    a, floor, text = ask(c + ["aoti_torch_never_heard_of"], exports=C10 + c + ["aoti_torch_never_heard_of"])
    assert floor == "2.7" and "1 name newer" in " ".join(text.split()), text
    assert ask(c + [cxx], exports=C10 + c + [cxx])[1] is None  # C++ names bind it to one release
    (folder / "x.abi3.so").write_bytes(elf(undefined=c + ["torch_from_blob"]))
    a = doctor(folder / "x.abi3.so", "--torch", "2.10.0", "--gpu", "8.0", "--root", folder)
    assert ">= 2.11" in a.find("S01")["explain"] and doctor(folder / "x.abi3.so", "--torch", "2.11.0", "--gpu", "8.0", "--root", folder)["exit"] == 0


def two_letters_inside_a_name_are_no_string(doctor, folder):
    t = Tree(folder)
    t.extension(undefined=["_ZN3c107RSsXyzwEv"])
    assert "S02" not in doctor(t.site, "--root", t.root, "--gpu", "8.0").ids()


def a_gpu_implies_its_machine(doctor, folder):
    x, arm = elf(fatbin=container(120)), elf(fatbin=container(120), machine=ARM)
    for gpu in ("DGX Spark", "GH200", "GB200", "Jetson Orin", "Thor"):
        assert verdict(doctor, folder, x, "--gpu", gpu).ids() == ["L05"], gpu
    assert verdict(doctor, folder, arm, "--gpu", "DGX Spark")["findings"] == []
    assert verdict(doctor, folder, x, "--gpu", "DGX Spark", "--machine", "x86_64")["findings"] == []
    assert verdict(doctor, folder, arm, "--gpu", "RTX 5090", "--machine", "aarch64")["findings"] == []


def a_branch_is_not_a_version(doctor, folder):
    data = elf(fatbin=container(80), needed=["libcudart.so.12"])
    assert verdict(doctor, folder, data, "--gpu", "8.0", "--driver", "525")["findings"] == []  # 525.60.13 belongs to it
    assert verdict(doctor, folder, data, "--gpu", "8.0", "--driver", "525.53").ids() == ["D01"]
    assert verdict(doctor, folder, data, "--gpu", "8.0", "--driver", "515").ids() == ["D01"]


def another_target_machine(doctor, folder):
    w = wheel(folder / "x-1.0-cp312-cp312-manylinux_2_35_x86_64.whl", {"x.so": elf(fatbin=container(80))}, name="x", version="1.0", tag="cp312-cp312-linux_x86_64")
    ask = lambda *args: doctor(w, "--gpu", "8.0", "--root", folder, *args).ids()
    assert ask("--python", "3.12", "--glibc", "2.39") == [] and ask("--python", "3.11") == ["W01"] and ask("--python", "3.12", "--glibc", "2.31") == ["W01"]
    assert doctor.run(w, "--machine", "riscv").returncode == 64


def companions_of_torch_are_compared(doctor, folder):
    w = folder / "torchvision-0.24.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(w, "w") as z:
        z.writestr("torchvision/_C.so", elf(needed=["libc10.so", "libtorch_cuda.so"], fatbin=container(80)))
        z.writestr("torchvision-0.24.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: torchvision\nVersion: 0.24.0\nRequires-Dist: torch (==2.9.0)\n")
        z.writestr("torchvision-0.24.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: cp311-cp311-linux_x86_64\n")
    ask = lambda torch: doctor(w, "--torch", torch, "--gpu", "8.0", "--root", folder)
    assert ask("2.9.0+cu128")["findings"] == [] and ask("2.8.0+cu128").ids() == ["P01"] and ask("2.9.0+cpu").ids() == ["D07"]
    assert "torchvision==0.23.0" in ask("2.8.0+cu128").find("P01")["fix"][0]


def compilers_that_packages_bring(doctor, folder):
    t = Tree(folder)
    t.package("triton", "3.1.0", {"triton/backends/nvidia/bin/ptxas": b"\0" * 70000 + b"Build cuda_12.4.r12.4/compiler.33961263_0\0", "triton/__init__.py": b""}, tag="cp311-cp311-manylinux_2_28_x86_64")
    a = doctor(t.site, "--root", t.root, "--gpu", "12.0")
    assert a.ids() == ["B11"] and "12.8" in a.find("B11")["explain"] and doctor(t.site, "--root", t.root, "--gpu", "9.0")["findings"] == []


def json_list(doctor, folder):
    w = wheel(folder / "x-1.0-cp311-cp311-linux_x86_64.whl", {"a.so": elf(fatbin=container(80, "ptx90a")), "b.so": elf()}, name="x", version="1.0")
    listed = json.loads(doctor.run("--list", w, "--json").stdout)
    assert [f["file"] for f in listed] == ["a.so", "b.so"] and [i["sm"] for i in listed[0]["containers"][0]["images"]] == [80, 90] and "axpy" in listed[0]["containers"][0]["images"][0]["kernels"][0], listed


def wheels_with_traps(doctor, folder):
    name = "flash_attn-2.7.4-cp311-cp311-linux_x86_64.whl"
    above, folder = folder, folder / "inside"
    folder.mkdir()
    link = zipfile.ZipInfo("flash_attn/link.so")
    link.external_attr = 0o120777 << 16
    link.create_system = 3
    for extra in (("../x.so", b"1"), ("/etc/x.so", b"1"), (link, b"/etc/passwd"), ("c:x.so", b"1"), ("a\\..\\b.so", b"1")):
        w = wheel(folder / name, {f"x.{PY}.so": elf(fatbin=container(80))}, extra=[extra])
        a = doctor(w, "--gpu", "8.0", "--root", folder)
        assert a["exit"] == 3 and a.find("F01"), extra
        assert len(a["files"]) == 1 and a["files"][0]["verdict"] == "native"
    assert not (above / "x.so").exists()
    wheel(folder / name, {"bomb.so": b"\0" * 50_000_000})
    assert doctor(folder / name, "--gpu", "8.0", "--root", folder)["exit"] == 3
    data = bytearray((folder / name).read_bytes())
    (folder / name).write_bytes(data[:-30])
    assert doctor(folder / name, "--gpu", "8.0", "--root", folder)["exit"] == 3
    w = wheel(folder / name, {f"x.{PY}.so": elf(fatbin=container(80))})
    a = doctor(w, "--gpu", "8.0", "--root", folder)
    assert a["exit"] == 0, a["findings"]


def overlapping_members_are_a_bomb(doctor, folder):
    """Every member's data overlaps the next one's header, so that all share one block of data."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    plain, names = b"\0" * 20_000, [f"m{i}.so" for i in range(40)]
    data, rest, local, central = packer.compress(plain) + packer.flush(), plain, b"", b""
    blocks = []
    for name in reversed(names):  # from the last, whose data is plain, to the first
        head = struct.pack("<IHHHHHIIIHH", 0x04034B50, 20, 0, 8, 0, 33, zlib.crc32(rest), len(data), len(rest), len(name), 0) + name.encode()
        blocks.append((name, len(data), len(rest), zlib.crc32(rest), len(head)))
        local, data, rest = head + data, struct.pack("<BHH", 0, len(head), len(head) ^ 0xFFFF) + head + data, head + rest
    at = 0
    for name, packed, size, crc, head in reversed(blocks):
        central += struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 20, 20, 0, 8, 0, 33, crc, packed, size, len(name), 0, 0, 0, 0, 0, at) + name.encode()
        at += head + 5
    path = folder / "x-1.0-cp311-cp311-linux_x86_64.whl"
    path.write_bytes(local + central + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, len(names), len(names), len(central), len(local), 0))
    with zipfile.ZipFile(path) as z:
        assert len(z.infolist()) == 40 and z.infolist()[0].file_size > 20_000
    a = doctor(path, "--gpu", "8.0", "--root", folder)
    assert a["exit"] == 3 and "overlap" in a.find("F01")["explain"], a["findings"]


def large_members_are_read_in_windows(doctor, folder):
    noise = random.Random(2).randbytes(1 << 20)
    data = elf(rodata=noise * 48, fatbin=container(80, 90), undefined=["_ZN2at1xEv"], needed=["libc10.so"])
    w = wheel(folder / "flash_attn-2.7.4-cp311-cp311-linux_x86_64.whl", {f"flash_attn_2_cuda.{PY}.so": data})
    a = doctor(w, "--gpu", "9.0", "--root", folder)
    assert a["files"][0]["verdict"] == "native" and a["files"][0]["needed"] == ["libc10.so"] and a["exit"] == 0, a["findings"]


def members_of_a_wheel_are_judged_like_files(doctor, folder):
    """A wheel member is read forward and its section table afterwards: the answer must be the same as for the file."""
    noise, rel = random.Random(3).randbytes(1 << 20), container(entry(2, 75, cubin(75, relocatable=True)), "ptx80")
    broken = bytearray(container(80, 90))
    broken[16 + 8 : 16 + 16] = b"\xff" * 8
    shapes = {
        "plain": elf(fatbin=container(80, "ptx80") + container(90)), "none": elf(undefined=["_ZN2at1xEv"]), "no_sections": elf(fatbin=container(80) + container(90), sections=False),
        "outside": elf(rodata=container(75), fatbin=container(80)), "between": elf(rodata=container(75)), "padded": elf(fatbin=container(80) + b"\0" * 64),
        "gap": elf(fatbin=b"\0" * 64 + container(80)), "apart": elf(fatbin=container(80) + b"\0" * (-len(container(80)) % 256) + container(90) + b"\0" * 5000 + container(75)), "damaged": elf(fatbin=container(80) + bytes(broken)), "cut": elf(fatbin=container(80) + container(90, damage=True)),
        "relocatable": elf(fatbin=container(75), relfatbin=rel), "old": elf(fatbin=struct.pack("<I", 0x1EE55A01) + b"\0" * 60), "not_elf": b"text", "bad_image": elf(fatbin=container(entry(2, 80, b"x" * 200))),
        "large": elf(rodata=noise * 40, fatbin=container(80) + container(90), undefined=["_ZN2at1xEv"], needed=["libc10.so"], versions=[("libc.so.6", "GLIBC_2.34")]),
    }
    name = folder / "x-1.0-cp311-cp311-linux_x86_64.whl"
    wheel(name, {f"{n}.so": data for n, data in shapes.items()}, name="x", version="1.0")
    inside = doctor(name, "--gpu", "9.0", "--root", folder, "--all")
    for n, data in shapes.items():
        alone = verdict(doctor, folder, data, "--gpu", "9.0", "--all", name=f"{n}.so")
        a, b = alone["files"][0], next(f for f in inside["files"] if f["path"].endswith(f"/{n}.so"))
        for key in ("kind", "containers", "needed", "versions", "verdict", "missing_symbols"):
            assert a[key] == b[key], (n, key, a[key], b[key])
        found = [f["id"] for f in inside["findings"] if (f["file"] or "").endswith(f"/{n}.so")]
        assert alone.ids() == found, (n, alone.ids(), found)


def containers_lie_apart_in_sections_of_aarch64(doctor, folder):
    """Its linker aligns each to 256 bytes: in torch 2.11 for aarch64 the second container starts 120 bytes after the
    first, and 443 more follow."""
    first = container(80)
    data = elf(fatbin=first + b"\0" * (-len(first) % 256) + container(90) + b"\0" * 264 + container(120))
    a = verdict(doctor, folder, data, "--gpu", "9.0", "--all")
    assert len(a["files"][0]["containers"]) == 3 and "K02" in a.ids(), a["files"][0]
    broken = elf(fatbin=first + b"\0" * 64 + b"text" * 16)
    assert "F01" in verdict(doctor, folder, broken, "--gpu", "8.0", name="y.so").ids()


def wheel_names_with_escapes(doctor, folder):
    log = "pip install https://github.com/state-spaces/mamba/releases/download/v2.2.2/mamba_ssm-2.2.2%2Bcu121torch2.2cxx11abiFALSE-cp310-cp310-linux_x86_64.whl"
    assert "+cu122torch2.2" in doctor("--root", folder, log=log).find("W04")["explain"]


def memory_and_time_stay_bounded(doctor, folder):
    text = entry(1, 80, b"x" * (96 << 20))
    (folder / "x.so").write_bytes(elf(fatbin=container(text)))
    began = time.monotonic()
    a = doctor(folder / "x.so", "--gpu", "8.0", "--root", folder)
    assert a.find("F01") and time.monotonic() - began < 20


def several_gpus_and_unknown_ones(doctor, folder):
    assert verdict(doctor, folder, elf(fatbin=container(80)))["exit"] == 4
    t = doctor.text(folder / "x.so", "--root", folder)
    assert "inventory" in t and "sm 80" in t
    assert doctor.run(folder / "x.so", "--gpu", "RTX 9999 Ultra").returncode == 64
    assert b"did you mean 'RTX 5090'" in doctor.run(folder / "x.so", "--gpu", "RTX 509").stderr
    for name, cc in (("NVIDIA GeForce RTX 4090 Laptop GPU", "8.9"), ("Tesla T4", "7.5"), ("NVIDIA A100-SXM4-80GB", "8.0"), ("NVIDIA H100 PCIe", "9.0"),
                     ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "12.0"), ("NVIDIA TITAN X (Pascal)", "6.1"), ("NVIDIA GeForce GTX TITAN X", "5.2"),
                     ("NVIDIA RTX 6000 Ada Generation", "8.9"), ("Quadro RTX 6000", "7.5"), ("NVIDIA GB10", "12.1"), ("sm_90", "9.0"), ("12.1", "12.1"), ("5090", "12.0"), ("RTX5090", "12.0"), ("RTX 2080Ti", "7.5"), ("A6000", "8.6"), ("sm120", "12.0"),
                     ("Jetson Orin", "8.7"), ("NVIDIA Thor", "11.0"), ("RTX PRO 6000", "12.0"), ("RTX 4070 Laptop", "8.9"), ("H100 80GB HBM3", "9.0"), ("A100-SXM4-40GB", "8.0"), ("A10", "8.6"), ("T4", "7.5")):
        assert doctor(folder / "x.so", "--gpu", name, "--root", folder)["target"]["gpus"][0]["cc"] == cc, name


def the_tier_of_krait_is_named(doctor, folder):
    verdict(doctor, folder, elf(fatbin=container(80)))
    for gpu, tier, says in (("GTX 970", "base", "runs on 5.2 by its tier base: multiply-adds"), ("V100", "base", "runs on 7.0 by its tier base"),
                            ("T4", "turing", "runs on 7.5 by its tier turing: tensor cores for float16, the faster type"), ("RTX 5090", "ampere", "runs on 12.0 by its tier ampere"),
                            ("H200", "hopper", "runs on 9.0 by its tier hopper"), ("3.5", None, "krait runs on the CPU there: its device code needs compute capability 5.0")):
        assert doctor(folder / "x.so", "--gpu", gpu, "--root", folder)["target"]["gpus"][0]["tier"] == tier, gpu
        assert says in " ".join(doctor.text(folder / "x.so", "--gpu", gpu, "--root", folder).split()), gpu
    assert doctor(folder / "x.so", "--gpu", "H200", "--driver", "418.00", "--root", folder)["target"]["gpus"][0]["tier"] == "base"
    assert doctor(folder / "x.so", "--root", folder)["target"]["gpus"] == []
    a = doctor("--gpu", "T4", "--root", folder, log="RuntimeError: CUDA error: no kernel image is available for execution on the device\n")
    assert a["target"]["gpus"][0]["tier"] == "turing" and b"tier" not in doctor.run("--gpu", "T4", "--root", folder, log="RuntimeError: no kernel image\n").stdout


def each_of_several_gpus_is_judged(doctor, folder):
    t = Tree(folder, images=(75, 80, 86, 90, 100, 120))
    for i, model in enumerate(("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 5090")):
        t.machine(f"proc/driver/nvidia/gpus/0000:0{i}:00.0/information", f"Model: \t\t {model}\nIRQ: 1\n")
    t.extension(images=(80,))
    t.extension(name="mamba-ssm", version="2.3.0", module="selective_scan_cuda", images=(120,))
    a = doctor(t.site, "--root", t.root)
    assert [g["cc"] for g in a["target"]["gpus"]] == ["8.0", "8.0", "12.0"] and a.ids() == ["K01", "K01"], a.ids()
    assert {f["file"].split("/")[-1].split(".")[0]: f["explain"].split()[-1] for f in a["findings"]} == {"causal_conv1d_cuda": "12.0", "selective_scan_cuda": "8.0"}
    text = " ".join(doctor.text(t.site, "--root", t.root).split())
    assert "2 x NVIDIA A100-SXM4-80GB (8.0," in text and "1 container runs on 8.0 and 12.0: native" in text, text
    assert "K14" in doctor(Tree(folder / "b", images=(80,)).site, "--root", t.root).ids()


def exit_codes(doctor, folder):
    (folder / "x.so").write_bytes(elf(fatbin=container(80)))
    assert doctor.run("--no-such-option").returncode == 64
    assert doctor.run("--tables", "/nonexistent").returncode == 3
    assert doctor(folder / "absent.so", "--root", folder)["exit"] == 3
    assert doctor(folder / "x.so", "--gpu", "8.7", "--machine", "x86_64", "--root", folder)["exit"] == 0
    assert doctor.run(folder / "x.so", "--gpu", "8.7", "--machine", "x86_64", "--root", folder, "--strict").returncode == 2
    assert doctor.run("--explain", "K99").returncode == 64
    assert doctor.run("--explain", "K01").stdout.startswith(b"K01 no-image")
    listed = doctor.run("--explain", "list").stdout.decode().splitlines()
    assert len([line for line in listed if line[0] != " "]) == 159 and max(map(len, listed)) <= 80
    for rule in (line.split()[0] for line in listed if line[0] != " "):
        assert all(len(line) <= 80 or len(line.split()) <= 2 for line in doctor.run("--explain", rule).stdout.decode().splitlines()), rule


def control_bytes_do_not_reach_the_terminal(doctor, folder):
    path = folder / "a\x1b[31m\x07\xff.so"
    (folder / "a\x1b[31m\x07.so").write_bytes(elf(fatbin=container(80, damage=True)))
    out = doctor.run(folder / "a\x1b[31m\x07.so", "--gpu", "8.0", "--root", folder).stdout
    assert b"\x1b" not in out and b"\\x1b[31m\\x07" in out


def control_bytes_do_not_reach_a_list(doctor, folder):
    bad = "a\x1b]0;x\x07\x7f\r"
    data = elf(fatbin=container(entry(2, 80, cubin(80, kernels=[bad, "_Z3" + bad[:3] + "v", "b\x9b1m"]))))
    (folder / "x.so").write_bytes(data)
    w = wheel(folder / "x-1.0-cp311-cp311-linux_x86_64.whl", {f"m/x{chr(0x9b)}.so": data}, name="x", version="1.0")
    for args in (["--list", folder / "x.so"], ["--list", folder / "x.so", "--json"], ["--list", w], ["--list", w, "--json"], [w, "--gpu", "9.0", "--root", folder, "--json"], [w, "--gpu", "9.0", "--root", folder, "--issue"]):
        out = doctor.run(*args).stdout
        assert out and not [b for b in out.decode() if (ord(b) < 32 and b != "\n") or 127 <= ord(b) < 160], (args, out[:400])
        if "--json" in args:
            json.loads(out)


def list_shows_images_and_kernels(doctor, folder):
    (folder / "x.so").write_bytes(elf(fatbin=container(80, "ptx90a")))
    out = doctor.run("--list", folder / "x.so").stdout.decode()
    assert "cubin sm_80" in out and "ptx   compute_90a  version 9.0" in out and "axpy(float, float const*, float*, int)" in out
    fixtures = ROOT / "tests/golden/doctor"
    plain, zstd, lz4 = (doctor.run("--list", fixtures / f"{n}.fatbin").stdout.decode().split() for n in ("plain", "zstd", "lz4"))
    assert plain.count("axpy(float,") == 4 and zstd.count("axpy(float,") == 4 and lz4.count("lz4") == 4 and zstd.count("zstd") == 4


def fake_libraries_are_damaged(doctor, folder):
    noise = b"\x01" + random.Random(5).randbytes(3000)
    for name, data, ids in (("x.so", noise, ["F01"]), ("x.so.1.2", noise, ["F01"]), ("x.cubin", noise, ["F01"]), ("x.fatbin", noise, ["F01"]), ("x.a", noise, ["F01"]), ("x.so.gz", noise, []),
                            ("x.so", b"/* GNU ld script */\nGROUP ( libx.so.1 )\n", []), ("x.so", b"\xcf\xfa\xed\xfe" + noise, [])):
        a = verdict(doctor, folder, data, "--gpu", "8.0", name=name)
        assert a.ids() == ids and a["exit"] == 3, (name, a.ids())
    t = Tree(folder)
    path = t.extension()
    path.write_bytes(noise)  # and RECORD is evidence, not a second finding
    a = doctor(t.site, "--root", t.root, "--gpu", "8.0")
    assert a.ids() == ["F01"] and any("RECORD" in e for e in a.find("F01")["evidence"]) and "causal-conv1d==1.5.2" in a.find("F01")["fix"][0], a["findings"]


def kernel_names_are_read(doctor, folder):
    names = {"_ZN3c104cuda9sum_firstIfLi4ELb1EEEvPT_S3_i": "c10::cuda::sum_first<float, 4, true>(float*, float*, int)", "_Z4copyI6__halfEvPKT_PS1_": "copy<__half>(__half const*, __half*)",
             "__nv_static_48__a7f2_20_x_cu__ZN4c10d7barrierEPPji": "c10d::barrier(unsigned int**, int)", "_ZN1a4nameIN1b4pairIiLm3EEEEC1ERKS3_": "a::name<b::pair<int, 3ul>>::name(b::pair<int, 3ul> const&)",
             "_Z1fIJfiEEvDpT_": "_Z1fIJfiEEvDpT_", "_ZN1aIIIIIIII": "_ZN1aIIIIIIII", "_Z1fIiEvT5_": "_Z1fIiEvT5_"}
    (folder / "x.so").write_bytes(elf(fatbin=container(entry(2, 80, cubin(80, kernels=list(names))))))
    shown = [line.strip() for line in doctor.run("--list", folder / "x.so").stdout.decode().splitlines()[2:]]
    assert shown == list(names.values()), shown


def list_walks_a_wheel(doctor, folder):
    w = wheel(folder / "flash_attn-2.7.4-cp311-cp311-linux_x86_64.whl", {f"x.{PY}.so": elf(fatbin=container(80)), "y.so": elf(), "z.txt": b"1"})
    out = doctor.run("--list", w).stdout.decode()
    assert out.splitlines()[0] == f"x.{PY}.so" and "cubin sm_80" in out and "y.so" in out and "z.txt" not in out
    w.write_bytes(w.read_bytes()[:200])
    assert doctor.run("--list", w).returncode == 3 and doctor.run("--list", "/nonexistent").returncode == 3


def members_are_read_by_several_threads(doctor, folder):
    """One core reads members one by one, two read two at a time: the same answers in archive order, including damage
    and compilers."""
    import subprocess
    noise, files = random.Random(7).randbytes(1 << 16), {}
    for i in range(6):
        files[f"m{i}.so"] = elf(fatbin=container(80, "ptx90", damage=i == 3)) + noise * (20 * i)  # more than 32 MiB, of which the last are the largest
    files["triton/bin/ptxas"] = b"Build cuda_12.4.r12.4/compiler.1_0" + bytes(100)
    w = wheel(folder / "x-1.0-cp311-cp311-linux_x86_64.whl", {**files, "m6.so": elf(fatbin=container(90)) + noise * 300}, name="x", version="1.0", extra=[("../up.so", b"1")])
    for args in ([w, "--gpu", "12.0", "--json", "--all"], [w, "--gpu", "12.0"], ["--list", w], ["--list", w, "--json"]):
        command = [doctor.program, "doctor", *map(str, args), *(["--root", str(folder)] if "--list" not in args else [])]
        one, all_of_them = (subprocess.run(command, capture_output=True, env=doctor.environment(), preexec_fn=f) for f in (lambda: os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]), None))
        assert one.stdout == all_of_them.stdout and one.returncode == all_of_them.returncode == 3, (args, one.stdout[-300:], all_of_them.stdout[-300:])
    a = doctor(w, "--gpu", "12.0", "--root", folder, "--all")
    assert [f["path"].split("/")[-1] for f in a["files"]] == [f"m{i}.so" for i in range(7)] and {"F01", "B11", "K01"} <= set(a.ids()), a.ids()


def the_same_kernels_are_listed_once(doctor, folder):
    many = [f"_Z1{chr(97 + i)}v" for i in range(9)]
    images = [entry(2, 80, cubin(80, kernels=many)), entry(2, 90, cubin(90, kernels=many)), entry(2, 100, cubin(100, kernels=many[:3]))]
    (folder / "x.so").write_bytes(elf(fatbin=container(*images)))
    out = doctor.run("--list", folder / "x.so").stdout.decode()
    assert out.count("a()") == 2 and out.count("i()") == 1 and "the 9 kernels of this container's image 1" in out, out
    listed = json.loads(doctor.run("--list", folder / "x.so", "--json").stdout)[0]["containers"][0]["images"]
    assert [len(image["kernels"]) for image in listed] == [9, 9, 3]  # JSON always lists all


def scanned_files_are_reported(doctor, folder):
    (folder / "notes.bin").write_text("hello\n")
    assert doctor(folder / "notes.bin", "--gpu", "8.0", "--root", folder)["exit"] == 3
    assert "is not a library, wheel" in " ".join(doctor.text(folder / "notes.bin", "--gpu", "8.0", "--root", folder).split())
    (folder / "plain").mkdir()
    (folder / "plain/a.so").write_bytes(elf())
    assert "1 file inspected: no GPU code." in doctor.text(folder / "plain", "--gpu", "8.0", "--root", folder)
    (folder / "empty").mkdir()
    assert "Nothing to inspect was found there" in doctor.text(folder / "empty", "--gpu", "8.0", "--root", folder)
    (folder / "requirements.txt").write_text("numpy\nscipy==1.0\n")
    assert "None of the 2 requirements" in doctor.text(folder / "requirements.txt", "--gpu", "8.0", "--root", folder)
    (folder / "requirements.txt").unlink()
    assert "No such file" in doctor.text(folder / "requirements.txt", "--gpu", "8.0", "--root", folder)
    assert "No Python environment found" in doctor.text("--root", folder, "--gpu", "8.0")
    assert doctor.run("--root", folder, "--gpu", "8.0", "--fix-plan").stdout.startswith(b"# no Python environment found")
    assert doctor.run("--explain", "k01").stdout.startswith(b"K01 ")


def environments_are_found_and_joined(doctor, folder):
    t = Tree(folder / "a")
    t.extension()
    (t.dir / "env/pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11.7\n")
    whole = doctor(t.dir, "--root", t.root, "--gpu", "12.0")  # a project's folder: the environment inside
    assert whole["target"]["torch"]["version"] == "2.9.1+cu128" and whole.ids() == ["K01"]
    assert doctor("--root", t.root, "--gpu", "12.0", env={"VIRTUAL_ENV": str(t.dir / "env")}).ids() == ["K01"]
    assert doctor("--root", t.root, "--gpu", "12.0", env={"CONDA_PREFIX": str(t.dir / "env")}).ids() == ["K01"]
    below = t.root / "usr/lib/python3.11/site-packages"
    t.package("mamba-ssm", "2.2.2", {f"selective_scan_cuda.{PY}.so": elf(needed=["libc10.so"], fatbin=container(80))}, site=below)
    assert doctor(t.dir, "--root", t.root, "--gpu", "12.0").ids() == ["K01"]
    (t.dir / "env/pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = true\nversion = 3.12.1\n")
    joined = doctor(t.dir, "--root", t.root, "--gpu", "12.0")
    assert joined.ids().count("K01") == 2 and joined["target"]["python"] == "3.12" and "S04" in joined.ids()


def a_cpu_torch_is_no_error_without_a_gpu(doctor, folder):
    t = Tree(folder, torch="2.9.1+cpu", cuda=None, torch_cuda=False, driver=None)
    assert doctor(t.site, "--root", t.root).find("D07")["severity"] == "warn" and doctor(t.site, "--root", t.root)["exit"] == 0
    assert doctor(t.site, "--root", t.root, "--gpu", "8.0").find("D07")["severity"] == "error"


def archives_are_walked(doctor, folder):
    member = elf(fatbin=container(80))
    head = lambda name, n: f"{name + '/':16}{0:<12}{0:<6}{0:<6}{100644:<8}{n:<10}`\n".encode()
    (folder / "x.a").write_bytes(b"!<arch>\n" + head("empty.o", 0) + head("one.o", len(member)) + member + b"\n" * (len(member) & 1) + head("two.o", len(member)) + member)
    a = doctor(folder / "x.a", "--gpu", "9.0", "--root", folder)
    assert a.ids() == ["K01"] and len(a["files"][0]["containers"]) == 2 and a["files"][0]["containers"][0]["section"] == "one.o"


def bare_files(doctor, folder):
    for name, data, answer in (("x.cubin", cubin(80), "native"), ("x.ptx", ptx(75), "jit"), ("x.fatbin", container(80), "native")):
        a = verdict(doctor, folder, data, "--gpu", "8.0", name=name)
        assert a["files"][0]["verdict"] == answer and a["files"][0]["kind"] == name.split(".")[1], a["files"]


def pins_before_any_download(doctor, folder):
    (folder / "requirements.txt").write_text("torch==2.8.0\nflash_attn==2.7.4  # old\ncausal-conv1d==1.5.2\nmamba-ssm>=2\nnumpy\n--index-url x\n")
    a = doctor(folder / "requirements.txt", "--gpu", "RTX 5090", "--root", folder)
    said = {f["explain"].split(" holds")[0]: f for f in a["findings"]}
    assert set(said) == {"flash-attn 2.7.4", "causal-conv1d 1.5.2"}, a["findings"]
    assert said["flash-attn 2.7.4"]["fix"] == ['pip install "torch==2.8.0" --index-url https://download.pytorch.org/whl/cu129 && pip install --no-build-isolation "flash-attn==2.8.3.post2" "causal-conv1d==1.7.0" "mamba-ssm==2.3.2.post1"', "or krait's own flash-attn, which needs no build and runs on every GPU and CPU: python -m krait dropin on flash-attn --force"], said["flash-attn 2.7.4"]["fix"]
    assert "krait's own causal-conv1d" in said["causal-conv1d 1.5.2"]["fix"][1]
    assert "line 2" in said["flash-attn 2.7.4"]["evidence"][0] and a["exit"] == 1
    (folder / "pyproject.toml").write_text('[project]\ndependencies = [\n  "torch==2.2.0",\n  "mamba-ssm[x]==2.3.0; python_version > \'3\'",\n]\n')
    a = doctor(folder / "pyproject.toml", "--gpu", "8.0", "--root", folder)
    assert a.ids() == ["W01"] and "torch 2.4 to 2.7" in a.find("W01")["explain"] and "mamba-ssm==2.2.4" in a.find("W01")["fix"][0]
    (folder / "requirements.txt").write_text("torch==2.6.0+cu124\n")
    assert doctor(folder / "requirements.txt", "--gpu", "12.0", "--root", folder).ids() == ["K14"]
    assert doctor(folder / "requirements.txt", "--gpu", "8.0", "--root", folder)["exit"] == 0


def pins_of_every_form(doctor, folder):
    def ask(text, *args, name="requirements.txt"):
        (folder / name).write_text(text)
        a = doctor(folder / name, "--root", folder, *args)
        return a["target"]["torch"]["version"], {f["explain"].split(" holds")[0].split(" does not")[0] for f in a["findings"]}, a
    for spec, newest in (("==2.6.1", "2.6.1"), ("==2.6.*", "2.6"), ("~=2.6.0", "2.6"), (">=2.4,<2.7", "2.6"), (">= 2.4, < 2.7 ; python_version > '3'", "2.6"), ("<=2.6", "2.6"), (">=2.6", None), ("", None), ("~=2.6", "2.40")):
        assert ask(f"torch{spec}\n", "--gpu", "8.0")[0] == newest, spec
    for text, bad in (("torch==2.2.0\nmamba_ssm [x] >=2.0,<2.3\n", {"mamba-ssm >=2.2.6.post3 (the newest in >=2.0,<2.3)"}), ("torch==2.2.0\nmamba-ssm<2.2.5\n", set()), ("torch==2.2.0\nmamba-ssm!=2.3,~=2.2.2,<2.2.5\n", set()),
                      ("torch==2.8\nflash-attn @ https://x/flash_attn-2.7.4.post1+cu12torch2.6cxx11abiFALSE-cp311-cp311-linux_x86_64.whl\n", {"flash-attn 2.7.4.post1+cu12torch2.6cxx11abiFALSE"})):
        assert ask(text, "--gpu", "8.0")[1] == bad, (text, ask(text, "--gpu", "8.0")[1])
    (folder / "more.in").write_text("causal-conv1d==1.4.0\n-r requirements.txt\n")
    a = ask("torch==2.8.0\n-r more.in\n", "--gpu", "12.0")[2]
    assert a.find("K01")["file"].endswith("/more.in") and a["exit"] == 1
    assert ask("-c gone.txt\n", "--gpu", "12.0")[2]["exit"] == 3
    poetry = '[tool.poetry.dependencies]\npython = "^3.10"\ntorch = {version = "2.6.0", source = "x"}\ncausal-conv1d = "1.5.0.post8"\n[dependency-groups]\ndev = ["mamba-ssm==2.2.2"]\n'
    version, bad, a = ask(poetry, "--gpu", "8.0", name="pyproject.toml")
    assert version == "2.6.0" and bad == {"causal-conv1d 1.5.0.post8", "mamba-ssm 2.2.2"}, bad
    assert ask("flash-attn==2.7.4\n")[2]["exit"] == 4 and ask("numpy\n", "--gpu", "8.0")[2]["exit"] == 0


def pins_against_each_other(doctor, folder):
    def ask(text, *args):
        (folder / "requirements.txt").write_text(text)
        return doctor(folder / "requirements.txt", "--root", folder, *(args or ("--gpu", "8.0")))
    for text, is_said in (("torch==2.8.0\ntorch>=2.9\n", 1), ("torch>=2.9\ntorch==2.8.0\n", 1), ("torch<2.8\ntorch>2.8\n", 1), ("torch<2.8\ntorch>=2.8\n", 1), ("torch<=2.8\ntorch>=2.8\n", 0), ("torch==2.8.0\ntorch>=2.4,<2.9\n", 0),
                          ("torch==2.8.0 ; python_version < '3.9'\ntorch==2.9.0 ; python_version >= '3.9'\n", 0), ("torch==2.8.0\ntorch!=2.8.0\n", 1)):
        assert ("P04" in ask(text).ids()) == bool(is_said), text
    a = ask("numpy\ntorch>=2.9\ntorch==2.8.0\n")
    assert a.find("P04")["fix"] == [f"sed -i 2d {folder}/requirements.txt"], a.find("P04")["fix"]  # what is exact stays
    for text, is_said in (("torch==2.8.0\ntorchvision==0.23.0\n", 0), ("torch==2.8.0\ntorchvision>=0.20\n", 0), ("torch==2.8.0\ntorchvision>=0.24\n", 1), ("torch==2.8.0\ntriton==3.4.0\n", 0), ("torch==2.8.0\ntriton==3.5.1\n", 1),
                          ("torch==2.8.0\nxformers==0.0.31.post1\n", 1), ("torch==2.8.0\nxformers==0.0.32.post2\n", 0), ("torch==2.8.0\nxformers==0.0.32.post1\n", 0), ("torch==2.8.0\nvllm==0.11.0\n", 0), ("torch==2.9.0\nvllm==0.11.0\n", 1),
                          ("mamba-ssm==2.2.4\ncausal-conv1d==1.5.0.post8\n", 0), ("mamba-ssm==2.2.4\ncausal-conv1d==1.5.2\n", 1)):
        a = ask(text)
        assert ("P02" in a.ids()) == bool(is_said), (text, a.ids())
        assert all("torch torch" not in f["explain"] and "?" not in f["explain"] for f in a["findings"]), a["findings"]
    assert ask("torch>=2.4\nmamba-ssm==2.3.1\n").find("P05")["fix"][0].startswith('pip install "torch==2.10.*"')
    assert "P05" not in ask("torch>=2.4,<2.8\nmamba-ssm==2.2.5\n").ids() and "P05" not in ask("torch\nnumpy\n").ids()
    assert ask("faiss-gpu-cu12\n", "--gpu", "12.0").find("K01")["package"] == "faiss-gpu-cu12" and ask("faiss-gpu-cu12\n").ids() == []
    out = " ".join(doctor.text(folder / "requirements.txt", "--root", folder, "--gpu", "8.0").split())
    (folder / "requirements.txt").write_text("faiss-gpu-cu12\nnumpy\nrequests\n")
    out = " ".join(doctor.text(folder / "requirements.txt", "--root", folder, "--gpu", "8.0").split())
    assert "Not judged, because the tables know nothing of them: numpy, requests." in out, out


def one_combination_serves_all_pins(doctor, folder):
    (folder / "requirements.txt").write_text("torch==2.2.0\nflash_attn==2.5.9.post1\ncausal-conv1d==1.4.0\nmamba-ssm==2.2.2\n")
    ask = lambda *args: doctor.run(folder / "requirements.txt", "--root", folder, "--fix-plan", *args).stdout.decode().splitlines()
    assert ask("--gpu", "12.0")[0] == 'pip install "torch==2.9.*" --index-url https://download.pytorch.org/whl/cu130 && pip install --no-build-isolation "flash-attn==2.8.3.post2" "causal-conv1d==1.7.0" "mamba-ssm==2.3.2.post1"'
    assert ask("--gpu", "12.0", "--driver", "570.86")[0].split(" && ")[0].endswith("/cu129")  # a driver of CUDA 12 runs no torch of CUDA 13
    assert ask("--gpu", "12.0", "--torch", "2.7.1")[0] == 'pip install --no-build-isolation "flash-attn==2.8.3.post2" "causal-conv1d==1.7.0" "mamba-ssm==2.3.2.post1"'
    assert ask("--gpu", "8.0") == ["# nothing to do"]
    assert ask(folder / "none.txt", "--gpu", "8.0")[0].startswith("# not inspected: cannot ")  # not "nothing to do"
    assert all(": no release of " in line and "FORCE_BUILD" not in line for line in ask("--gpu", "6.1")), ask("--gpu", "6.1")
    assert all(": no torch has wheels of all" in line for line in ask("--gpu", "11.0")[1:-1]), ask("--gpu", "11.0")
    (folder / "requirements.txt").write_text("torch==2.4.0\nflash_attn==2.7.4\nmamba-ssm==1.0.0\n")  # working versions are kept
    assert ask("--gpu", "8.0")[0] == 'pip install "torch==2.4.0" --index-url https://download.pytorch.org/whl/cu124 && pip install --no-build-isolation "flash-attn==2.7.4.post1" "mamba-ssm==2.3.0"'


def what_krait_replaces_is_offered(doctor, folder):
    """Beside the build: by its name, and where krait has a wheel."""
    end = "c107WarningC1ENS_7variantIJNS0_11UserWarningENS0_18DeprecationWarningEEEERKNS_14SourceLocationESsb"
    for package, module in (("mamba-ssm", "selective_scan_cuda"), ("causal-conv1d", "causal_conv1d_cuda"), ("flash-attn", "flash_attn_2_cuda")):
        text = f"ImportError: /opt/v/lib/python3.11/site-packages/{module}.cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZN3{end}\n"
        fixes = doctor("--root", folder, log=text)["findings"][0]["fix"]
        assert any("krait's own " + package in line and f"dropin on {package} --force" in line for line in fixes), fixes
        text = text.replace(".cpython-311-x86_64-linux-gnu.so", ".cp311-win_amd64.pyd").replace("/opt/v/lib/python3.11/", "C:\\v\\Lib\\")
        assert "krait's own" not in str(doctor("--root", folder, log=text)["findings"])


def builds_name_a_target_that_the_source_has(doctor, folder):
    t = Tree(folder)
    t.extension(name="flash-attn", version="2.7.4", module="flash_attn_2_cuda", images=(90,))
    t.extension(name="causal-conv1d", version="1.5.2", images=(90,))
    fix = lambda cc, package: next(" ".join(f["fix"]) for f in doctor(t.site, "--root", t.root, "--gpu", cc)["findings"] if f["id"] in ("K01", "K07") and package in f["file"])
    assert 'FLASH_ATTN_CUDA_ARCHS="80"' in fix("8.9", "flash") and 'FLASH_ATTN_CUDA_ARCHS="120"' in fix("12.0", "flash")
    assert "sdpa" in fix("7.5", "flash") and "FORCE_BUILD" not in fix("7.5", "flash")
    assert "no release of causal-conv1d has code for 6.1" in fix("6.1", "causal") and "krait's own" in fix("6.1", "causal")
    assert "TORCH_CUDA_ARCH_LIST=" not in fix("8.9", "causal")
    assert "torch is built" not in fix("12.0", "causal")
    a = doctor(t.site, "--root", t.root, "--gpu", "11.0")  # Thor has Arm CPUs: the whole environment is for another machine
    assert a.ids() == ["L05"] and "whl/cu130" in a.find("L05")["fix"][0] and "causal-conv1d==1.5.2" in a.find("L05")["fix"][0], a["findings"]


def plan_is_short_and_ordered(doctor, folder):
    t = Tree(folder, images=(50, 80, 90), driver="470.82.01")
    t.extension(name="causal-conv1d", version="1.5.2")
    t.extension(name="mamba-ssm", version="2.2.2", module="selective_scan_cuda", undefined=["_ZN3c104cuda9SetDeviceEi"])
    ask = lambda **env: doctor.run(t.site, "--root", t.root, "--gpu", "12.0", "--fix-plan", env=env).stdout.decode().splitlines()
    plan = ask()
    steps = [next((k for k in ("nvidia-driver", "install --force-reinstall torch", "causal-conv1d", "mamba-ssm", "krait doctor") if k in line), line) for line in plan]
    assert steps[:2] == ["nvidia-driver", "install --force-reinstall torch"] and sorted(steps[2:4]) == ["causal-conv1d", "mamba-ssm"] and steps[4:] == ["krait doctor"], plan
    assert ask(CUDA_FORCE_PTX_JIT="1")[0] == "unset CUDA_FORCE_PTX_JIT"


def plans_list_unfixed_findings(doctor, folder):
    """Rules with insufficient commands: the plan is checked against the tables and says so, for each kind of
    shortfall."""
    t = Tree(folder, images=(50, 80, 90))
    t.extension(name="flash-attn", version="2.5.0", module="flash_attn_2_cuda")
    text = TABLES.read_text()

    def left(command, *args):
        changed = re.sub(r"(\[rule (K01|K14) [^\[]*?)\nfix [^\n]*(?:\nfix [^\n]*)*", lambda m: f"{m.group(1)}\nfix {command}", text)
        assert changed.count(f"fix {command}") == 2
        (folder / "x.tables").write_text(changed)
        out = doctor.run(t.site, "--root", t.root, "--gpu", "12.0", "--tables", folder / "x.tables", "--fix-plan", *args).stdout.decode()
        return [line.partition(": ")[2] for line in out.splitlines() if line.startswith("# not fixed by this: ")]

    cases = {"pip install flash-attn==2.6.3": "flash-attn 2.6.3 has no code for 12.0",
             "pip install torch==2.5.1 --index-url https://download.pytorch.org/whl/cu124": "torch 2.5.1 of cu124 has no code for 12.0",
             "pip install torchvision==0.20.1": "torchvision 0.20.1 is not the one of torch ",
             "export CUDA_HOME=/usr/local/cuda-12.6 && pip install --no-binary flash-attn flash-attn==2.8.3": "CUDA 12.6 cannot build flash-attn for 12.0: that needs 12.8"}
    for command, words in cases.items():
        said = left(command)
        assert any(line.startswith(words) for line in said), (command, said)
    said = left("pip install torch==2.9.1 --index-url https://download.pytorch.org/whl/cu130", "--driver", "575.57")
    assert any("requires driver 580" in line for line in said), said
    assert left("pip install torch==2.9.1 --index-url https://download.pytorch.org/whl/cu128", "--driver", "580.82") == []


def releases_are_bounded_by_the_installed_torch(doctor, folder):
    t = Tree(folder, torch="2.2.0+cu121", cuda="12.1", exports=["_ZN3c104cuda14ExchangeDeviceEi"], images=(80,))
    t.extension(name="mamba-ssm", version="2.2.5", module="selective_scan_cuda", images=(80,), undefined=["_ZN3c104cuda14ExchangeDeviceEa"])
    fix = doctor(t.site, "--root", t.root, "--gpu", "8.0").find("S01")["fix"]  # later releases have no wheel for torch 2.2; an isolated build would take the newest torch
    assert fix[0] == 'pip install --no-build-isolation --no-deps --no-cache-dir --force-reinstall mamba-ssm==2.2.4', fix
    t = Tree(folder / "b", torch="2.7.0+cu128", cuda="12.8")
    t.extension()
    assert 'causal-conv1d==1.7.0' in doctor(t.site, "--root", t.root, "--gpu", "12.0").find("K01")["fix"][0]


def an_unknown_library_is_not_to_be_installed_by_its_name(doctor, folder):
    t = Tree(folder)
    t.extension(needed=("libodd.so.1", "libcurand.so.10", "libc10.so"), images=(80,))
    fixes = {f["explain"].split()[0]: f["fix"][0] for f in doctor(t.site, "--root", t.root, "--gpu", "8.0")["findings"] if f["id"] == "L01"}
    assert "the package that contains libodd.so.1" in fixes["libodd.so.1"] and "nvidia-curand-cu12" in fixes["libcurand.so.10"], fixes


def krait_offers_itself(doctor, folder):
    t = Tree(folder)
    t.extension(name="mamba-ssm", version="2.2.2", module="selective_scan_cuda", images=(80,))
    assert any("krait" in f for f in doctor(t.site, "--root", t.root, "--gpu", "12.0").find("K01")["fix"])


def unreadable_files_are_not_damaged(doctor, folder):
    """A symbolic link to itself instead of missing permission, which root always has."""
    t = Tree(folder)
    shutil.rmtree(t.site / "torch/lib")
    (t.site / "torch/lib").symlink_to("lib")
    a = doctor(t.site, "--root", t.root, "--gpu", "8.0")
    assert a["exit"] == 3 and "W06" not in a.ids() and len(a["unreadable"]) == 1 and "torch/lib/libc10.so: Too many levels" in a["unreadable"][0], a
    plan = doctor.run(t.site, "--root", t.root, "--gpu", "8.0", "--fix-plan").stdout.decode()
    assert "# not inspected: cannot open" in plan and "install" not in plan, plan
    if os.geteuid():
        secret = wheel(folder / "a-1-py3-none-any.whl", {"a.so": elf()})
        secret.chmod(0)
        a = doctor(secret, "--root", t.root)
        assert not a.ids() and a["unreadable"] == [f"cannot open {secret}: Permission denied"], a


def repeated_runs_are_equal(doctor, folder):
    t = Tree(folder)
    t.extension()
    first, second = (doctor.run(t.site, "--root", t.root, "--gpu", "12.0", "--json").stdout for _ in range(2))
    assert first == second


def the_users_files_are_never_written(doctor, folder):
    t = Tree(folder)
    t.extension()
    before = {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in folder.rglob("*")}
    doctor(t.site, "--root", t.root, "--gpu", "12.0", "--deep", "--all")
    assert before == {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in folder.rglob("*")}


run_tests([f for f in list(globals().values()) if callable(f) and getattr(f, "__module__", "") == "__main__" and f.__name__ != "verdict"])
