#!/usr/bin/env python3
"""assemble.py PTX_DIR [--write docs/GPUS.md]: assembles every PTX text for every architecture that its tier is for, with each
ptxas that is found (PATH, PTXAS, PTXAS_12), and fails on an error or on spills of more than 32 bytes in a hot kernel. Exit status 77 (skipped)
without any ptxas. What ptxas said is kept in PTX_DIR/assembled, so that only texts that changed are assembled again."""
import argparse, concurrent.futures, hashlib, os, pathlib, re, shutil, subprocess, sys, tempfile

FLOOR = {"base": 50, "turing": 75, "ampere": 80, "hopper": 90}
ARCHS = [50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121]
NAMES = {50: "Maxwell: GTX 750, GTX 850M", 52: "Maxwell: GTX 970, Titan X, Tesla M40", 53: "Jetson Nano", 60: "Pascal: Tesla P100", 61: "Pascal: GTX 1080, Tesla P40",
         62: "Jetson TX2", 70: "Volta: Tesla V100", 72: "Jetson Xavier", 75: "Turing: RTX 2080, T4", 80: "Ampere: A100", 86: "Ampere: RTX 3090, A10", 87: "Jetson Orin",
         89: "Ada: RTX 4090, L4", 90: "Hopper: H100, H200", 100: "Blackwell: B200", 103: "Blackwell: B300", 110: "Jetson Thor", 120: "Blackwell: RTX 5090", 121: "DGX Spark"}
HOT = re.compile(r"kr_(scan_fwd_s[14]$|scan_state|scan_carry|conv_rows|conv_whole|conv_last|conv_bwd_rows|conv_bwd_whole|conv_bwd_long|state_update|norm_[12]$|norm_bwd_1$|conv_update$|gemm_hopper|gemm_ampere|gemm_m16)")
HOT_SPILL = 32  # bytes: register-bound kernels are right at the limit; more than this is a fault
SPILLED = {"gemm_ampere_halves": 220}  # by module: what was there when they were timed (sums of their own beside the result's, docs/speed/gemm.md)

KERNEL = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\d+)a?'")
REGISTERS = re.compile(r"Used (\d+) registers")
SPILL = re.compile(r"(\d+) bytes spill stores")


def most_spilled(module):
    return next((n for name, n in SPILLED.items() if module.startswith(name)), HOT_SPILL)


def assemblers():
    paths = [os.environ.get("PTXAS"), os.environ.get("PTXAS_12"), shutil.which("ptxas")]
    found = {}
    for path in filter(None, paths):
        text = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
        found.setdefault(re.search(r"release (\S+),", text).group(1), path)
    return found


def takes(path, arch):
    """Whether this ptxas knows the architecture."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as f:
        f.write(f".version 6.0\n.target sm_50\n.address_size 64\n")
        f.flush()
        return subprocess.run([path, f"-arch=sm_{arch}", f.name, "-o", "/dev/null"], capture_output=True).returncode == 0


def said_by_ptxas(path, release, ptx, arch):
    """(exit status, what it said), from PTX_DIR/assembled if this text was assembled before."""
    suffix = "a" if ".hopper." in ptx.name else ""  # only for that architecture
    key = hashlib.sha256(f"{release} {arch}{suffix}\n".encode() + ptx.read_bytes()).hexdigest()
    kept = ptx.parent / "assembled" / key
    if kept.exists():
        return 0, kept.read_text()
    run = subprocess.run([path, f"-arch=sm_{arch}{suffix}", "-v", str(ptx), "-o", "/dev/null"], capture_output=True, text=True)
    if run.returncode == 0:
        kept.parent.mkdir(exist_ok=True)
        whole = kept.with_name(f"{key}.{os.getpid()}")
        whole.write_text(run.stderr)
        whole.rename(kept)
    return run.returncode, run.stderr


def assemble(job):
    path, release, ptx, arch = job
    status, said = said_by_ptxas(path, release, ptx, arch)
    spills, registers, kernel = {}, {}, None
    for line in said.splitlines():
        kernel = m.group(1) if (m := KERNEL.search(line)) else kernel
        if kernel and (m := SPILL.search(line)) and int(m.group(1)):
            spills[kernel] = int(m.group(1))
        if kernel and (m := REGISTERS.search(line)):
            registers[kernel] = int(m.group(1))
    return ptx, arch, status, spills, registers, said.strip()[-300:]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("ptx_dir")
    p.add_argument("--write")
    p.add_argument("--some", action="store_true", help="the convolution and the state update in bfloat16, for three architectures: quick")
    p.add_argument("--only", help="modules whose name matches this expression")
    o = p.parse_args()
    found = assemblers()
    if not found:
        print("ptxas not found: skipped")
        return 77
    texts = sorted(pathlib.Path(o.ptx_dir).glob("*.ptx"))
    if not texts:
        print("no PTX in this build: skipped")
        return 77
    problems, table, assemblies = [], {}, 0
    newest = found[max(found, key=lambda r: [int(n) for n in r.split('.')])]
    for release, path in found.items():
        known = [a for a in ARCHS if takes(path, a) and (path == newest or not takes(newest, a))]  # an older one: only for architectures the newest dropped
        if o.some:
            known = [a for a in known if a in (75, 90, 120)]
        texts_now = [t for t in texts if not (o.only and not re.match(o.only, t.name))]
        jobs = [(path, release, t, a) for t in texts_now for a in known if a >= FLOOR[t.name.split(".")[1]] and (a == 90 or ".hopper." not in t.name) and not (o.some and not re.match(r"causal_conv1d(_bwd)?_bf16|state_update", t.name))]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for ptx, arch, status, spills, registers, said in pool.map(assemble, jobs):
                tier = ptx.name.split(".")[1]
                row = table.setdefault((arch, tier), dict(modules=set(), releases=set(), spills={}, registers={}))
                row["modules"].add(ptx.name)
                assemblies += 1
                row["releases"].add(release)
                for kernel, n in registers.items():
                    if HOT.search(kernel):
                        row["registers"][f"{ptx.name.split('.')[0]}:{kernel}"] = n
                for kernel, n in spills.items():
                    row["spills"][f"{ptx.name.split('.')[0]}:{kernel}"] = n
                    if HOT.search(kernel) and arch >= 70 and n > most_spilled(ptx.name):
                        problems.append(f"{ptx.name} for sm_{arch} by ptxas {release}: {kernel} spills {n} bytes")
                if status:
                    problems.append(f"{ptx.name} for sm_{arch} by ptxas {release}: {said}")
    for ptx in texts:
        head = ptx.read_text()[:400]
        if ".base." in ptx.name and (".target sm_50" not in head or ".version 6.0" not in head):
            problems.append(f"{ptx.name} is not for sm_50 with PTX 6.0")
    modules = sorted({t.name.split(".")[0] for t in texts})
    lines = ["# Which device code assembles for which GPU", "", "Made by `tests/cuda/assemble.py PTX_DIR --write docs/GPUS.md`: every PTX text of the folder through ptxas for every",
             "architecture from its tier's floor on. A GPU whose architecture is not listed runs the newest tier that it takes through the driver's own compiler.",
             "The driver translates a kernel when it is first used, by several threads at once, and keeps the result: in CUDA_CACHE_PATH, else in ~/.nv/ComputeCache.",
             "`krait warm` fills that cache ahead, and says where it lies and whether it can be written; KRAIT_VERBOSE=1 shows the milliseconds of each kernel. So that nothing is",
             "translated at all, `tools/cubins build/src/cuda krait-cubins sm_90 sm_120` makes files of machine code, which are found in the folder krait-cubins beside the library",
             "(or the program), or by KRAIT_CUBINS; `meson configure build -Dcubins=sm_90,sm_120` embeds it.", "",
             f"Modules: {', '.join(modules)}.", "",
             "| architecture | GPUs | tier | modules | ptxas | kernels that spill registers |", "|---|---|---|---|---|---|"]
    for (arch, tier), row in sorted(table.items()):
        worst = max(row["spills"], key=row["spills"].get, default="")
        spills = f"{len(row['spills'])}, at most {row['spills'][worst]} bytes ({worst})" if worst else "none"
        lines.append(f"| sm_{arch} | {NAMES.get(arch, '')} | {tier} | {len(row['modules'])} | {', '.join(sorted(row['releases']))} | {spills} |")
    shown = [k for k in sorted(table) if k[0] in (50, 70, 75, 80, 90, 120)]
    for title, what in (("Registers of the kernels that most of the time goes to, by architecture and tier (the last ptxas that knows it).", "registers"), ("Bytes that kernels spill there.", "spills")):
        lines += ["", title, "", "| kernel | " + " | ".join(f"sm_{a} {t}" for a, t in shown) + " |", "|---|" + "---|" * len(shown)]
        for kernel in sorted({k for key in shown for k in table[key][what]}):
            lines.append(f"| {kernel} | " + " | ".join(str(table[key][what].get(kernel, "")) for key in shown) + " |")
    if o.write:
        pathlib.Path(o.write).write_text("\n".join(lines) + "\n")
    print(f"{assemblies} assemblies over {len({a for a, _ in table})} architectures, {len(problems)} problems")
    print("\n".join(problems))
    return 1 if problems else 0


sys.exit(main())
