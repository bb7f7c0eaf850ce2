"""trial.py PROGRAM: facts of real wheels (tests/golden/doctor/wheels.tsv, by tests/doctor/doctor-trial) for twelve GPUs and
five drivers; the verdicts were written beforehand (verdicts.tsv)."""
import concurrent.futures

from fake import *

GPUS = ["Tesla P100", "Tesla V100", "Tesla T4", "A100", "RTX 3090", "Jetson AGX Orin", "RTX 4090", "H100", "B200", "Jetson AGX Thor", "RTX PRO 6000 Blackwell", "GB10"]
DRIVERS = ["525.147.05", "535.183.01", "550.90.07", "570.86.10", "580.82.07"]
GOLDEN = ROOT / "tests/golden/doctor"


def image(target, ptx):
    """120, 90a, ptx90, 120z: packed with zstd."""
    packed, name = target.endswith("z"), target.rstrip("z")
    is_ptx, name = name.startswith("ptx"), name.replace("ptx", "")
    suffix, sm = name[-1] if name[-1] in "af" else "", int(name.rstrip("af"))
    if packed and not is_ptx:
        data = cubin(sm, suffix)
        frame = struct.pack("<I", 0xFD2FB528) + bytes([0x60]) + struct.pack("<H", len(data) - 256) + struct.pack("<I", 1 | len(data) << 3)[:3] + data
        return entry(2, sm, data, suffix, packed=frame, flags=0x8000)
    return entry(1, sm, globals()["ptx"](sm, ptx, suffix), suffix) if is_ptx else entry(2, sm, cubin(sm, suffix), suffix)


def build(folder, rows):
    """A wheel with the same libraries; equal containers count once. A container that lacks its neighbours' targets is
    nvcc's link stub, without kernels."""
    _, name, package, version, requires = (rows[0] + ["", ""])[:5]
    files = {}
    for _, path, shape, ptx, glibc in (r + [""] * (5 - len(r)) for r in rows[1:]):
        sets = [s.split(" x ", 1)[1].split() for s in shape.split("; ")]
        body = b""
        for targets in sets:
            is_stub = len(sets) > 1 and not any(t.startswith("ptx") for t in targets) and any(t.startswith("ptx") for s in sets for t in s)
            if not is_stub:
                body += container(*[image(t, ptx or "8.0") for t in targets])
        files[path] = elf(fatbin=body)
    path, tag = folder / name, "-".join(name[:-4].split("-")[-3:])
    info = f"{package.replace('-', '_')}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as z:
        for n, data in files.items():
            z.writestr(n, data)
        z.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n" + "".join(f"Requires-Dist: {r}\n" for r in requires.split("|") if r))
        z.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
    return path


def wheels():
    found = []
    for line in (GOLDEN / "wheels.tsv").read_text().splitlines():
        row = line.split("\t")
        if row[0] == "wheel":
            found.append([row])
        else:
            found[-1].append(row)
    return {(w[0][2].replace("_", "-"), w[0][3]): w for w in found}


def judge(doctor, folder, path, package, version, gpu, driver, verdict, reason):
    """What is wrong with the answer, or None."""
    # The wheels are for x86_64; whether their images run is asked for Arm's GPUs too.
    a = doctor(path, "--gpu", gpu, "--driver", driver, "--root", folder, "--python", "3.11", "--glibc", "2.39", "--machine", "x86_64")
    errors = [f["id"] for f in a["findings"] if f["severity"] == "error"]
    certain = [f["id"] for f in a["findings"] if f["confidence"] == "C" and f["severity"] != "info"]
    none = [fix for f in a["findings"] for fix in f["fix"] if "no release" in fix]
    must_fail = verdict == "x" or (verdict[0] == "j" and int(driver[:3]) < int(verdict[1:]))
    if bool(errors) != must_fail or a["exit"] != (1 if must_fail else 0) or (not must_fail and (certain or none)):
        return package, version, gpu, driver, verdict, errors, certain, none, a["exit"], reason
    return None


def every_wheel_on_every_gpu_with_every_driver(doctor, folder):
    expected = [line.split("\t") for line in (GOLDEN / "verdicts.tsv").read_text().splitlines() if not line.startswith("#")]
    known = wheels()
    assert set(known) == {(e[0], e[1]) for e in expected}
    cases = []
    for i, (package, version, verdicts, reason) in enumerate(expected):
        path = build(folder, known[package, version])
        assert len(verdicts.split()) == len(GPUS), verdicts
        for gpu, verdict in list(zip(GPUS, verdicts.split()))[i % 4 if FEW else 0::4 if FEW else 1]:
            for driver in DRIVERS[i % 5:][:1] if FEW else DRIVERS:
                cases.append((path, package, version, gpu, driver, verdict, reason))
    n = len(cases)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        wrong = [w for w in pool.map(lambda case: judge(doctor, folder, *case), cases) if w]
    print(f"{len(expected)} wheels, {n} verdicts")
    assert not wrong, "\n".join(map(str, wrong[:20]))


run_tests([every_wheel_on_every_gpu_with_every_driver])
