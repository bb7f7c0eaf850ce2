"""fake.py: makes ELF files, cubins, fatbins, wheels and site-packages trees, and runs `krait doctor` on them."""
import base64, hashlib, json, os, pathlib, re, struct, subprocess, sys, zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TABLES = ROOT / "src/doctor/doctor.tables"
X86, ARM, CUDA = 62, 183, 190
PY = "cpython-311-x86_64-linux-gnu"
FEW = int(os.environ.get("KR_CHECK_PERCENT", "100")) < 100  # under a sanitizer: skips repeats of the same C code
SEED, SHARE = int(os.environ.get("KR_CHECK_SEED", 1)), 4 if FEW else 1  # a share of the texts: others with another seed


def strtab(names):
    blob, at = b"\0", {"": 0}
    for name in names:
        if name not in at:
            at[name] = len(blob)
            blob += name.encode() + b"\0"
    return blob, at


def elf_hash(name):
    h = 0
    for c in name.encode():
        h = (h << 4) + c
        h = (h ^ ((h & 0xF0000000) >> 24)) & 0x0FFFFFFF
    return h


def elf(undefined=(), defined=(), needed=(), soname="", runpath="", rpath="", versions=(), provides=(), fatbin=b"", relfatbin=b"", rodata=b"", machine=X86, weak=(), sections=True):
    """A shared library whose file offsets equal its addresses. versions: required (library, version) pairs, (library,
    version, 2) weak; provides: versions it defines."""
    symbols = [(n, 0x12, 0) for n in undefined] + [(n, 0x22, 0) for n in weak] + [(n, 0x12, 1) for n in defined]
    strings, at = strtab([s[0] for s in symbols] + list(needed) + [soname, runpath, rpath] + [x for v in versions for x in v[:2]] + list(provides))
    parts, where = [], {}
    size = 64 + 3 * 56

    def put(name, data):
        nonlocal size
        pad = -size % 16
        where[name] = (size + pad, len(data))
        parts.append(b"\0" * pad + data)
        size += pad + len(data)

    dynsym = b"\0" * 24 + b"".join(struct.pack("<IBBHQQ", at[n], info, 0, shndx, 0x100 if shndx else 0, 0) for n, info, shndx in symbols)
    put(".dynsym", dynsym)
    put(".dynstr", strings)
    put(".hash", struct.pack("<IIII", 1, len(symbols) + 1, 0, 0) + b"\0" * 4 * len(symbols))
    need = b""
    for i, (library, version, *weak_flag) in enumerate(versions):
        need += struct.pack("<HHIII", 1, 1, at[library], 16, 32 if i + 1 < len(versions) else 0) + struct.pack("<IHHII", elf_hash(version), *(weak_flag or [0]), 2, at[version], 0)
    put(".gnu.version_r", need)
    give = b""
    for i, version in enumerate(provides):
        give += struct.pack("<HHHHIII", 1, 0, i + 1, 1, elf_hash(version), 20, 28 if i + 1 < len(provides) else 0) + struct.pack("<II", at[version], 0)
    put(".gnu.version_d", give)
    put(".rodata", rodata)
    put(".nv_fatbin", fatbin)
    put("__nv_relfatbin", relfatbin)
    tags = [(1, at[n]) for n in needed] + [(4, where[".hash"][0]), (5, where[".dynstr"][0]), (6, where[".dynsym"][0]), (10, len(strings))]
    tags += [(14, at[soname])] * bool(soname) + [(29, at[runpath])] * bool(runpath) + [(15, at[rpath])] * bool(rpath)
    if versions:
        tags += [(0x6FFFFFFE, where[".gnu.version_r"][0]), (0x6FFFFFFF, len(versions))]
    if provides:
        tags += [(0x6FFFFFFC, where[".gnu.version_d"][0]), (0x6FFFFFFD, len(provides))]
    put(".dynamic", b"".join(struct.pack("<QQ", *t) for t in tags + [(0, 0)]))
    names = [n for n in where if where[n][1] or n == ".dynsym"]
    shstr, shat = strtab(names + [".shstrtab"])
    put(".shstrtab", shstr)
    types = {".dynsym": 11, ".dynstr": 3, ".dynamic": 6, ".hash": 5, ".shstrtab": 3, ".gnu.version_r": 0x6FFFFFFE, ".gnu.version_d": 0x6FFFFFFD}
    headers = b"\0" * 64
    for n in names + [".shstrtab"]:
        headers += struct.pack("<IIQQQQIIQQ", shat[n], types.get(n, 1), 2, where[n][0], where[n][0], where[n][1], 0, 0, 8, 24 if n == ".dynsym" else 0)
    shoff = size + -size % 16 if sections else 0
    phdr = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, size, size, 4096) + struct.pack("<IIQQQQQQ", 2, 4, *[where[".dynamic"][0]] * 3, *[where[".dynamic"][1]] * 2, 8)
    phdr += struct.pack("<IIQQQQQQ", 0x6474E551, 6, 0, 0, 0, 0, 0, 16)
    head = b"\x7fELF\x02\x01\x01" + b"\0" * 9 + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, shoff, 0, 64, 56, 3, 64 if sections else 0,
                                                            len(names) + 2 if sections else 0, len(names) + 1 if sections else 0)
    return head + phdr + b"".join(parts) + (b"\0" * (-size % 16) + headers if sections else b"")


def cubin(sm, suffix="", kernels=("_Z4axpyfPKfPfi",), relocatable=False, toolkit=130, flags_sm=None, code=64):
    """A device image with only a symbol table; code: instruction bytes of each kernel. toolkit below 128: old
    layout."""
    strings, at = strtab(kernels)
    symtab = b"\0" * 24 + b"".join(struct.pack("<IBBHQQ", at[k], 0x12, 0x10, 1, 0, code) for k in kernels)
    new = toolkit >= 130
    note = struct.pack("<III", 12, 24, 0x3E8) + b"NVIDIA Corp\0" + struct.pack("<HHH", 2, sm, toolkit) + b"\0" * 18
    compat = bytes([2, 9, 1, 0]) if suffix == "a" and new else bytes([2, 9, 0, 0])
    body, heads, at_byte = b"", b"\0" * 64, 64
    for kind, link, data in ((3, 0, strings), (2, 1, symtab), (7, 0, note), (0x70000086, 0, compat)):
        body += data + b"\0" * (-len(data) % 8)
        heads += struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, at_byte, len(data), link, 0, 8, 0)
        at_byte = 64 + len(body)
    label = flags_sm or sm
    flags = (label << 8) | 0x06000004 if new else label | 0x500 | label << 16 | (0x800 if suffix == "a" else 0)
    ident = bytes([0x41, 8]) if new else bytes([0x33, 7])
    head = b"\x7fELF\x02\x01\x01" + ident + b"\0" * 7 + struct.pack("<HHIQQQIHHHHHH", 1 if relocatable else 2, CUDA, 1 if new else toolkit, 0, 0, at_byte, flags, 64, 0, 0, 64, 5, 0)
    return head + body + heads


def ptx(sm, version="9.0", suffix=""):
    return f"//\n.version {version}\n.target sm_{sm}{suffix}\n.address_size 64\n.visible .entry _Z4axpyfPKfPfi(\n)\n{{ ret; }}\n".encode() + b"\0"


def entry(kind, sm, payload, suffix="", flags=0, packed=b"", header=64):
    body = packed or payload
    body += b"\0" * (-len(body) % 8)
    flags |= 0x11 | {"": 0, "a": 0x100000, "f": 0x200000}[suffix]
    head = struct.pack("<HHIQIIHHIIIQQQ", kind, 0x0101, header, len(body), len(packed), 0, 8, 1, sm, 0, 0, flags, 0, len(payload) if packed else 0)
    return head + b"\0" * (header - 64) + body


def container(*images, damage=False):
    """images: 80, "90a", "100f" for cubins, "ptx80", ("ptx80", "9.4"), or entries as bytes."""
    body = b""
    for image in images:
        if isinstance(image, bytes):
            body += image
            continue
        name, version = image if isinstance(image, tuple) else (str(image), "9.0")
        is_ptx, name = name.startswith("ptx"), name.replace("ptx", "")
        suffix, sm = name[-1] if name[-1] in "af" else "", int(name.rstrip("af"))
        body += entry(1, sm, ptx(sm, version, suffix), suffix) if is_ptx else entry(2, sm, cubin(sm, suffix), suffix)
    data = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
    return data[: len(data) // 2] if damage else data


def zstd_entry(sm):
    """A cubin entry marked zstd, with a handmade stored frame."""
    data = cubin(sm)
    frame = struct.pack("<I", 0xFD2FB528) + bytes([0x60]) + struct.pack("<H", len(data) - 256) + struct.pack("<I", 1 | len(data) << 3)[:3] + data
    return entry(2, sm, data, packed=frame, flags=0x8000)


C10 = ["_ZN3c104cuda14ExchangeDeviceEa", "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE", "_ZNK3c106SymInt16sym_ne_slow_pathERKS0_",
       "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE", "_ZN3c106detail14torchCheckFailEPKcS2_jS2_"]


class Tree:
    """A fake environment DIR/lib/python3.11/site-packages and a fake machine DIR/root."""

    def __init__(self, folder, torch="2.9.1+cu128", cuda="12.8", images=(75, 80, 86, 90, 100, 120), exports=C10, torch_cuda=True, requires=(), glibc="2.35", driver="580.82.07"):
        self.dir = pathlib.Path(folder)
        self.site = self.dir / "env/lib/python3.11/site-packages"
        self.root = self.dir / "root"
        self.site.mkdir(parents=True)
        lib = self.root / "usr/lib/x86_64-linux-gnu"
        lib.mkdir(parents=True)
        (lib / "libc.so.6").write_bytes(elf(soname="libc.so.6", provides=["GLIBC_2.2.5", f"GLIBC_{glibc}"]))
        (lib / "libstdc++.so.6").write_bytes(elf(soname="libstdc++.so.6", provides=["GLIBCXX_3.4", "GLIBCXX_3.4.30"]))
        if driver:
            self.machine("proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build\n")
            (lib / f"libcuda.so.{driver}").write_bytes(elf(soname="libcuda.so.1"))
            os.symlink(f"libcuda.so.{driver}", lib / "libcuda.so.1")
            (lib / "libnvidia-ptxjitcompiler.so.1").write_bytes(elf())
        if torch:
            libs = {"torch/version.py": f"__version__ = '{torch}'\ncuda: Optional[str] = {cuda!r}\n".encode(),
                    "torch/lib/libc10.so": elf(defined=exports, soname="libc10.so"), "torch/lib/libc10_cuda.so": elf(soname="libc10_cuda.so")}
            if torch_cuda:
                libs["torch/lib/libtorch_cuda.so"] = elf(soname="libtorch_cuda.so", fatbin=container(*images), needed=["libc10.so"])
            self.package("torch", torch, libs, requires=requires)

    def machine(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def package(self, name, version, files, tag="cp311-cp311-linux_x86_64", requires=(), url=None, lie=(), site=None):
        site = site or self.site
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        record = []
        for path, data in files.items():
            file = site / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={digest},{len(data) + (1 if path in lie else 0)}")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + "".join(f"Requires-Dist: {r}\n" for r in requires) + "\nbody\n")
        (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: bdist_wheel\nRoot-Is-Purelib: false\nTag: {tag}\n")
        (info / "RECORD").write_text("\n".join(record) + "\n")
        (info / "INSTALLER").write_text("pip\n")
        if url:
            (info / "direct_url.json").write_text(url)
        return info

    def extension(self, name="causal-conv1d", version="1.5.2", module="causal_conv1d_cuda", images=(80, 90), needed=("libc10.so", "libtorch_cuda.so"), **kwargs):
        package = {k: kwargs.pop(k) for k in ("tag", "url", "lie") if k in kwargs}
        pyname = kwargs.pop("pyname", PY)
        data = kwargs.pop("data", None)
        if "fatbin" not in kwargs and images:
            kwargs["fatbin"] = container(*images)
        data = data if data is not None else elf(needed=needed, **kwargs)
        self.package(name, version, {f"{module}.{pyname}.so": data}, **package)
        return self.site / f"{module}.{pyname}.so"


def wheel(path, files, name="flash-attn", version="2.7.4", tag="cp311-cp311-linux_x86_64", extra=()):
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for n, data in files.items():
            z.writestr(n, data)
        z.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        z.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        z.writestr(f"{info}/RECORD", "".join(f"{n},sha256=,{len(d)}\n" for n, d in files.items()))
        for item, data in extra:
            z.writestr(item, data)
    return path


class Doctor:
    """Runs the program; checks all JSON against the schema and all text against 80 columns."""

    def __init__(self, program, folder):
        self.program, self.folder, self.runs = program, pathlib.Path(folder), 0
        self.schema = json.loads((ROOT / "docs/doctor.schema.json").read_text())
        self.tables = None
        try:
            import jsonschema
            self.validate = jsonschema.Draft202012Validator(self.in_place(self.schema)).validate
        except ImportError:
            self.validate = lambda answer: self.check_by_hand(answer, self.schema)

    def in_place(self, part):
        """The schema with all $refs inlined: jsonschema resolves them for every value, four fifths of these tests'
        time."""
        if isinstance(part, dict):
            return self.in_place(self.schema["$defs"][part["$ref"].split("/")[-1]]) if "$ref" in part else {k: self.in_place(v) for k, v in part.items()}
        return [self.in_place(inner) for inner in part] if isinstance(part, list) else part

    def check_by_hand(self, value, schema):
        if "$ref" in schema:
            schema = self.schema["$defs"][schema["$ref"].split("/")[-1]]
        if isinstance(value, dict):
            assert set(schema.get("required", [])) <= set(value) and ("properties" not in schema or set(value) <= set(schema["properties"])), (value, schema)
            for key, inner in schema.get("properties", {}).items():
                if key in value:
                    self.check_by_hand(value[key], inner)
        elif isinstance(value, list):
            for inner in value:
                self.check_by_hand(inner, schema.get("items", {}))

    def environment(self, **extra):
        return {"PATH": "/nonexistent", "HOME": str(self.folder), "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", ""), "UBSAN_OPTIONS": os.environ.get("UBSAN_OPTIONS", ""), **extra}

    def run(self, *args, env=None, log=None):
        self.runs += 1
        command = [self.program, "doctor", *map(str, args)]
        if log is not None:
            command += ["--log", "-"]
        if self.tables:
            command += ["--tables", str(self.tables)]
        # A log's end may be binary; bytes preserve it.
        return subprocess.run(command, input=log.encode() if isinstance(log, str) else log or b"", capture_output=True, env=self.environment(**(env or {})), timeout=60)

    def __call__(self, *args, env=None, log=None):
        done = self.run(*args, "--json", env=env, log=log)
        assert done.returncode in (0, 1, 2, 3, 4), (done.returncode, args, done.stderr.decode())
        answer = json.loads(done.stdout)
        self.validate(answer)
        assert answer["exit"] == done.returncode
        return Answer(answer)

    def text(self, *args, env=None, log=None):
        out = self.run(*args, env=env, log=log).stdout.decode()
        first, _, rest = out.partition("\n\n")  # problem and command: one line each, for copying
        for line in (rest if "krait doctor: " in rest else out).splitlines():
            assert len(line) <= 80 or len(line.split()) <= 2, f"more than 80 columns: {line}"
        return out

    def without(self, rule):
        """Tables that lack one rule."""
        text = TABLES.read_text()
        cut = re.sub(rf"\[rule {rule} .*?(?=\n\[rule |\Z)", "", text, flags=re.S)
        assert cut != text, f"no rule {rule}"
        path = self.folder / f"without-{rule}.tables"
        path.write_text(cut)
        return path


class Answer(dict):
    def ids(self):
        return [f["id"] for f in self["findings"]]

    def find(self, rule):
        found = [f for f in self["findings"] if f["id"] == rule]
        assert found, f"no {rule} in {self.ids()}: {json.dumps(self['findings'], indent=1)}"
        return found[0]


def run_tests(tests):
    """Calls every test with a Doctor and its own folder; prints failures."""
    import tempfile, traceback
    failed = 0
    for test in tests:
        with tempfile.TemporaryDirectory() as folder:
            try:
                test(Doctor(sys.argv[1], folder), pathlib.Path(folder))
            except Exception:
                failed += 1
                print(f"--- {test.__name__}")
                traceback.print_exc(file=sys.stdout)
    print(f"{len(tests) - failed} of {len(tests)} passed")
    sys.exit(1 if failed else 0)
