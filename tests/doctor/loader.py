"""loader.py PROGRAM: libraries are searched like the dynamic loader does, and their versions compared. A library is
missing exactly when L01 says so."""
import random

from fake import *

X86_FLAGS, ARM_FLAGS = 0x0303, 0x0A03
LIB = "libodd.so.1"


def library_list(*entries, old=False):
    """ld.so.cache with (name, path, flags, hwcap) entries; old: after the list of glibc before 2.2."""
    strings, body, at = b"", b"", 48 + 24 * len(entries)
    for name, path, *more in entries:
        flags, hwcap = (more + [X86_FLAGS, 0][len(more) :])[:2]
        body += struct.pack("<IIIIQ", flags, at + len(strings), at + len(strings) + len(name) + 1, 0, hwcap)
        strings += name.encode() + b"\0" + path.encode() + b"\0"
    new = b"glibc-ld.so.cache1.1" + struct.pack("<IIIIIII", len(entries), len(strings), 2, 0, 0, 0, 0) + body + strings
    before = b"ld.so-1.7.0\0" + struct.pack("<I", 3) + b"\0" * 36
    return (before + b"\0" * (-len(before) % 8) if old else b"") + new


def place(path, data=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(elf(soname=path.name) if data is None else data)


def is_found(doctor, t, env=None, root=True):
    a = doctor(t.site, *(["--gpu", "8.0", "--root", t.root] if root else ["--driver", "580.82"]), env=env)
    missing = [f for f in a["findings"] if f["id"] == "L01" and LIB in f["explain"]]
    return not missing


def tree(folder, **kwargs):
    t = Tree(folder)
    t.extension(needed=(LIB, "libcudart.so.12", "libc10.so"), **kwargs)
    return t


def nowhere(doctor, folder):
    assert not is_found(doctor, tree(folder))


def by_rpath_runpath_and_system_folder(doctor, folder):
    for i, (where, kwargs) in enumerate((("env/lib/python3.11/site-packages/own", {"rpath": "$ORIGIN/own"}), ("env/lib/python3.11/site-packages/own", {"runpath": "${ORIGIN}/own"}),
                                         ("env/lib/python3.11/site-packages/lib64/x", {"runpath": "$ORIGIN/$LIB/x"}), ("root/usr/lib64", {}))):
        t = tree(folder / str(i), **kwargs)
        assert not is_found(doctor, t), where
        place(t.dir / where / LIB)
        assert is_found(doctor, t), where


def by_the_loaders_list(doctor, folder):
    t = tree(folder)
    place(t.root / "opt/odd" / LIB)
    path = t.root / "etc/ld.so.cache"
    for data, answer in ((library_list((LIB, f"/opt/odd/{LIB}")), True), (library_list((LIB, f"/opt/odd/{LIB}"), old=True), True),
                         (library_list(("libother.so.1", "/opt/odd/x"), (LIB, f"/opt/odd/{LIB}")), True), (library_list((LIB, f"/opt/odd/{LIB}", ARM_FLAGS)), False),
                         (library_list((LIB, "/opt/gone/" + LIB)), False), (library_list((LIB, f"/opt/fast/{LIB}", X86_FLAGS, 1 << 62), (LIB, f"/opt/odd/{LIB}")), True),
                         (library_list((LIB, f"/opt/odd/{LIB}", X86_FLAGS, 1 << 62)), True), (library_list(), False), (b"", False)):
        place(path, data)
        assert is_found(doctor, t) == answer, data


def damaged_lists_terminate(doctor, folder):
    t = tree(folder)
    good, chance, runs = library_list((LIB, f"/opt/odd/{LIB}"), ("libz.so.1", "/lib/libz.so.1"), old=True), random.Random(4), []
    for n in range(0, len(good), 9):
        runs.append(good[:n])
    for _ in range(40):
        bad = bytearray(good)
        for _ in range(3):
            bad[chance.randrange(len(bad))] = chance.randrange(256)
        runs.append(bytes(bad))
    for data in runs + [good[:60] + b"\xff" * 200]:
        place(t.root / "etc/ld.so.cache", data)
        is_found(doctor, t)


def by_what_loaded_it(doctor, folder):
    """The extension needs libmid beside it, which needs libodd: the extension's RPATH also applies to libmid, unless
    there is a RUNPATH."""
    for i, (rpath, runpath, middle, answer) in enumerate((("$ORIGIN/own", "", {}, True), ("$ORIGIN/own", "", {"runpath": "/nowhere"}, False),
                                                          ("", "$ORIGIN/own", {}, False), ("$ORIGIN/own", "$ORIGIN/own", {}, False), ("", "", {"rpath": "$ORIGIN"}, True))):
        t = Tree(folder / str(i))
        t.extension(needed=("libmid.so", "libc10.so"), rpath=rpath, runpath=runpath)
        place(t.site / "own/libmid.so", elf(soname="libmid.so", needed=[LIB, "libcudart.so.12"], **middle))
        assert not is_found(doctor, t)
        place(t.site / "own" / LIB)
        assert is_found(doctor, t) == answer, (rpath, runpath, middle)


def by_the_interpreter(doctor, folder):
    for i, (kwargs, answer) in enumerate((({"rpath": "$ORIGIN/../lib"}, True), ({"rpath": "$ORIGIN/../lib", "runpath": "/nowhere"}, False), ({}, False))):
        t = tree(folder / str(i))
        place(t.dir / "env/bin/python3", elf(**kwargs))
        place(t.dir / "env/lib" / LIB)
        assert is_found(doctor, t) == answer, kwargs
    t = tree(folder / "runpath", runpath="/nowhere")  # it does not apply to an extension with a RUNPATH
    place(t.dir / "env/bin/python3", elf(rpath="$ORIGIN/../lib"))
    place(t.dir / "env/lib" / LIB)
    assert not is_found(doctor, t)


def by_environment(doctor, folder):
    t = tree(folder)
    place(folder / "more" / LIB)
    assert not is_found(doctor, t, root=False)
    assert is_found(doctor, t, env={"LD_LIBRARY_PATH": f"/nowhere:{folder}/more"}, root=False)


def only_torchs_own_companions_are_loaded_with_it(doctor, folder):
    t = tree(folder)
    place(t.site / "cupy/.data/libs" / LIB)
    place(t.site / "other/libs" / LIB)
    assert not is_found(doctor, t)
    place(t.site / "nvidia/odd/lib" / LIB)
    assert is_found(doctor, t)


def a_library_elsewhere_is_reported(doctor, folder):
    t = tree(folder)
    place(t.root / "usr/local/cuda/lib64" / LIB)
    found = [f for f in doctor(t.site, "--root", t.root, "--gpu", "8.0")["findings"] if LIB in f["explain"]]
    assert any("/usr/local/cuda/lib64, where the loader does not look" in e for e in found[0]["evidence"]), found


def versions(doctor, folder, wants, provides, where="root/usr/lib64", library=LIB, **kwargs):
    t = Tree(folder)
    t.extension(needed=(library, "libc10.so"), versions=[(library, *w) for w in wants], **kwargs)
    place(t.dir / where / library, elf(soname=library, provides=provides))
    return [f for f in doctor(t.site, "--root", t.root, "--gpu", "8.0")["findings"] if f["id"] in ("L03", "L04", "L07")]


def versions_of_the_library_found(doctor, folder):
    run = iter(range(100))
    ask = lambda *args, **kwargs: versions(doctor, folder / str(next(run)), *args, **kwargs)
    assert ask([("ODD_1",)], ["ODD_1"]) == []
    assert ask([("ODD_2",)], []) == []  # a library without versions is accepted
    assert ask([("ODD_2", 2)], ["ODD_1"]) == []  # weak, not required
    lacks = ask([("ODD_1",), ("ODD_2",), ("ODD_3",)], ["ODD_1"])
    assert [f["id"] for f in lacks] == ["L07"] and "ODD_3" in lacks[0]["explain"] and "ODD_1" in lacks[0]["explain"], lacks
    found = ask([("CXXABI_1.3.15",)], ["CXXABI_1.3", "CXXABI_1.3.13"], library="libstdc++.so.6", where="root/usr/lib/x86_64-linux-gnu")
    assert [f["id"] for f in found] == ["L04"] and "CXXABI_1.3.13" in found[0]["explain"], found
    near = ask([("GLIBCXX_3.4.32",)], ["GLIBCXX_3.4.29"], library="libstdc++.so.6", where="env/lib/python3.11/site-packages/own", rpath="$ORIGIN/own")
    assert "3.4.29" in near[0]["explain"] and "own/libstdc++" in near[0]["evidence"][0], near  # the one found by its RPATH, not the system's
    assert ask([("GLIBC_ABI_DT_RELR",)], ["GLIBC_2.2.5", "GLIBC_2.35"], library="libc.so.6", where="root/usr/lib/x86_64-linux-gnu")[0]["id"] == "L03"


def libraries_of_other_architectures_are_skipped(doctor, folder):
    """Like the loader: an x86_64 library in the system's folder or on an RPATH is ignored for an aarch64 wheel."""
    w = wheel(folder / "x-1.0-cp311-cp311-manylinux_2_28_aarch64.whl", {"x/_C.so": elf(machine=ARM, needed=["libgcc_s.so.1"], versions=[("libgcc_s.so.1", "GCC_4.5.0")], fatbin=container(90))}, name="x", version="1.0",
              tag="cp311-cp311-manylinux_2_28_aarch64")
    gcc = folder / "root/usr/lib/x86_64-linux-gnu/libgcc_s.so.1"
    place(gcc, elf(soname="libgcc_s.so.1", provides=["GCC_3.0", "GCC_12.0.0"]))
    ask = lambda: doctor(w, "--machine", "aarch64", "--gpu", "9.0", "--root", folder / "root")
    assert "L04" not in ask().ids(), ask()["findings"]
    gcc.write_bytes(elf(machine=ARM, soname="libgcc_s.so.1", provides=["GCC_3.0"]))
    found = ask().find("L04")  # GCC_4.5.0 has no row: only the command is left, no alternative
    assert found["fix"][0].startswith("export LD_PRELOAD="), found
    near = tree(folder / "near", rpath="$ORIGIN/own")
    place(near.site / "own" / LIB, elf(machine=ARM, soname=LIB))
    assert not is_found(doctor, near)


def a_path_to_an_older_library(doctor, folder):
    t = Tree(folder)
    t.extension(needed=(LIB, "libc10.so"), versions=[(LIB, "ODD_2")], runpath="$ORIGIN/own")
    place(t.site / "own" / LIB, elf(soname=LIB, provides=["ODD_1", "ODD_2"]))
    ask = lambda **env: [f for f in doctor(t.site, env=env)["findings"] if f["id"] == "L07"]
    assert ask() == []
    place(folder / "old" / LIB, elf(soname=LIB, provides=["ODD_1"]))
    assert ask(LD_LIBRARY_PATH=str(folder / "old"))[0]["fix"] == ["unset LD_LIBRARY_PATH"]


def empty_elements(doctor, folder):
    for i, (paths, wrong) in enumerate((("$ORIGIN:", "$ORIGIN"), (":$ORIGIN/a", "$ORIGIN/a"), ("$ORIGIN::/b", "$ORIGIN:/b"), ("$ORIGIN:/b", None))):
        t = Tree(folder / str(i))
        t.extension(runpath=paths)
        found = [f for f in doctor(t.site, "--root", t.root, "--gpu", "8.0")["findings"] if f["id"] == "S07"]
        assert (found[0]["fix"][0].startswith(f"patchelf --set-rpath '{wrong}' ") if wrong else not found), (paths, found)
    assert doctor(t.site, env={"LD_LIBRARY_PATH": "/a:"}).find("S07")["fix"] == ["export LD_LIBRARY_PATH=/a"]


run_tests([f for f in list(globals().values()) if callable(f) and getattr(f, "__module__", "") == "__main__" and f.__name__ not in ("library_list", "place", "is_found", "tree", "versions")])
