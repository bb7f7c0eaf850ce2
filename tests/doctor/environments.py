"""environments.py PROGRAM: five complete broken environments, one root cause first; after the plan, executed by this
file's small pip, no finding is left. And healthy environments, without findings."""
import shlex, shutil

from fake import *

CUDA_NAMES = ["_ZN3c104cuda14ExchangeDeviceEa", "_ZN3c106detail14torchCheckFailEPKcS2_jS2_"]
NVIDIA = {"nvidia-cublas-cu12": ("12.8.4.1", "cublas", "libcublas.so.12"), "nvidia-cudnn-cu12": ("9.10.2.21", "cudnn", "libcudnn.so.9"), "nvidia-nccl-cu12": ("2.27.5", "nccl", "libnccl.so.2")}
MODULES = {"flash-attn": "flash_attn_2_cuda", "causal-conv1d": "causal_conv1d_cuda", "mamba-ssm": "selective_scan_cuda", "torchvision": "torchvision/_C", "xformers": "xformers/_C"}
WITH_TORCH = {"2.9.1": {"torchvision": "0.24.1", "triton": "3.5.1"}, "2.8.0": {"torchvision": "0.23.0", "triton": "3.4.0"}}


class Environment:
    """A Tree that can install: the contents of a correct wheel of this name and version."""

    def __init__(self, folder, gpu, **tree):
        self.t = Tree(folder, torch=None)
        self.gpu = gpu
        for name, (version, part, lib) in NVIDIA.items():
            if tree.get("nvidia", True):
                self.install(name, version)
        if "torch" in tree:
            self.install("torch", tree["torch"])

    def remove(self, name):
        for info in self.t.site.glob(f"{name.replace('-', '_')}-*.dist-info"):
            for line in (info / "RECORD").read_text().splitlines():
                (self.t.site / line.split(",")[0]).unlink(missing_ok=True)
            shutil.rmtree(info)

    def torch(self):
        found = list(self.t.site.glob("torch-*.dist-info"))
        return found[0].name[6:-10] if found else ""

    def install(self, name, version, tag="cp311-cp311-manylinux_2_28_x86_64"):
        self.remove(name)
        t, own = self.t, int(self.gpu.replace(".", ""))
        if name == "torch":
            cuda = "+cu" in version
            libs = {"torch/version.py": f"__version__ = '{version}'\ncuda: Optional[str] = {'12.8' if cuda else None!r}\n".encode(),
                    "torch/lib/libc10.so": elf(defined=C10, soname="libc10.so")}
            if cuda:
                libs["torch/lib/libc10_cuda.so"] = elf(defined=CUDA_NAMES, soname="libc10_cuda.so")
                libs["torch/lib/libtorch_cuda.so"] = elf(soname="libtorch_cuda.so", fatbin=container(75, 80, 86, 90, 100, 120), needed=["libc10.so", "libcublas.so.12"], runpath="$ORIGIN/../../nvidia/cublas/lib")
            requires = [f'{n}=={v}; platform_system == "Linux" and platform_machine == "x86_64"' for n, (v, _, _) in NVIDIA.items()] if cuda else []
            return t.package("torch", version, libs, requires=requires, tag=tag)
        if name in NVIDIA:
            return t.package(name, version, {f"nvidia/{NVIDIA[name][1]}/lib/{NVIDIA[name][2]}": elf(soname=NVIDIA[name][2])}, tag="py3-none-manylinux2014_x86_64")
        base = self.torch().split("+")[0]
        requires = [f"torch (=={next((k for k, v in WITH_TORCH.items() if v.get(name) == version), base)})"] if name in ("torchvision", "xformers") else ["torch"]
        if name in MODULES:
            data = elf(needed=["libc10.so", "libc10_cuda.so", "libtorch_cuda.so"], undefined=CUDA_NAMES[:1], fatbin=container(75, 80, 90, own))
            return t.package(name, version, {f"{MODULES[name]}.{PY}.so": data}, requires=requires, tag=tag)
        return t.package(name, version, {f"{name.replace('-', '_').replace('_gpu', '')}/__init__.py": b"", f"{name.replace('-', '_').replace('_gpu', '')}/lib.so": elf()}, tag=tag)

    def carry_out(self, plan):
        for line in plan.splitlines():
            for command in line.split("#")[0].split(" && "):
                words = [w for w in shlex.split(command) if w]
                while words and "=" in words[0] and not words[0].startswith("pip"):
                    words.pop(0)
                index = words[words.index("--index-url") + 1].split("/")[-1] if "--index-url" in words else ""
                if words[:2] == ["pip", "install"]:
                    for word in words[2:]:
                        if "==" in word:
                            name, version = word.split("==")
                            self.install(name, f"{version}+{index}" if name == "torch" else version)
                elif words[:2] == ["pip", "uninstall"]:
                    for word in words[3:]:
                        self.remove(word)
                elif words[:1] == ["rm"]:
                    shutil.rmtree(words[-1], ignore_errors=True)
                    pathlib.Path(words[-1]).unlink(missing_ok=True)
                else:
                    assert not words or words[:2] == ["krait", "doctor"], command

    def ask(self, doctor, *args):
        return doctor(self.t.site, "--root", self.t.root, "--gpu", self.gpu, "--driver", "580.82.07", *args)

    def healed(self, doctor, root, *args):
        """root: the rule that must come first. One root cause; the plan leaves no finding."""
        broken = self.ask(doctor, *args)
        assert broken["exit"] == 1 and broken.ids()[0] == root, (broken.ids(), broken["findings"][:3])
        plan = doctor.run(self.t.site, "--root", self.t.root, "--gpu", self.gpu, "--driver", "580.82.07", "--fix-plan", *args).stdout.decode()
        self.carry_out(plan)
        left = [f for f in self.ask(doctor, *args)["findings"] if f["severity"] != "info"]
        assert not left, (plan, left)
        return broken


def a_torch_without_its_libraries(doctor, folder):
    e = Environment(folder, "8.0", torch="2.9.1+cu128", nvidia=False)
    a = e.healed(doctor, "P01")
    assert a.ids() == ["P01"] and "3 NVIDIA packages" in a.find("P01")["explain"] and a.find("P01")["package"] == "torch", a["findings"]


def a_cpu_torch_under_cuda_extensions(doctor, folder):
    e = Environment(folder, "12.0", torch="2.9.1+cpu")
    for name, version in (("flash-attn", "2.8.3.post1"), ("causal-conv1d", "1.6.0"), ("mamba-ssm", "2.3.1"), ("torchvision", "0.24.1")):
        e.install(name, version)
    a = e.healed(doctor, "D07")
    assert [f["id"] for f in a["findings"] if f["severity"] == "error"] == ["D07"], a.ids()


def distributions_over_each_other(doctor, folder):
    e = Environment(folder, "8.9", torch="2.9.1+cu128")
    e.install("onnxruntime", "1.22.0")
    e.install("onnxruntime-gpu", "1.22.0")
    e.install("causal-conv1d", "1.6.0")
    old = e.t.site / "causal_conv1d-1.4.0.dist-info"
    old.mkdir()
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: causal-conv1d\nVersion: 1.4.0\n")
    (old / "RECORD").write_text("")
    (e.t.site / "~orch").mkdir()
    a = e.healed(doctor, "W05")
    assert {"W05", "W07", "W08"} == set(a.ids()), a.ids()


def mismatched_pairs(doctor, folder):
    e = Environment(folder, "9.0", torch="2.9.1+cu128")
    e.install("torchvision", "0.23.0")
    e.install("mamba-ssm", "2.3.1")
    e.install("causal-conv1d", "1.1.1")
    a = e.healed(doctor, "P01")
    assert sorted(a.ids()) == ["P01", "P02"] and "torch==2.8.0" in a.find("P01")["explain"] and "1.5.1 or newer" in a.find("P02")["explain"], a["findings"]


def modules_of_another_python(doctor, folder):
    e = Environment(folder, "8.6", torch="2.9.1+cu128")
    data = elf(needed=["libc10.so", "libtorch_cuda.so"], fatbin=container(80, 86))
    e.t.package("causal-conv1d", "1.6.0", {"causal_conv1d_cuda.cpython-310-x86_64-linux-gnu.so": data}, tag="cp310-cp310-linux_x86_64")
    a = e.healed(doctor, "W01")
    assert {f["package"] for f in a["findings"]} == {"causal-conv1d"}, a["findings"]


def an_old_torch_for_a_new_gpu(doctor, folder):
    """Everything built for the replaced torch must be reinstalled for the new one."""
    e = Environment(folder, "12.0", torch="2.9.1+cu128")
    (e.t.site / "torch/lib/libtorch_cuda.so").write_bytes(elf(soname="libtorch_cuda.so", fatbin=container(50, 80, 90), needed=["libc10.so"]))
    info = next(e.t.site.glob("torch-2.9.1*"))
    (info / "RECORD").write_text("")
    e.install("causal-conv1d", "1.6.0")
    assert "K14" == e.healed(doctor, "K14").ids()[0]


def healthy_sets_are_left_alone(doctor, folder):
    for gpu in ("12.0", "7.5", "9.0"):
        e = Environment(folder / gpu, gpu, torch="2.9.1+cu128")
        e.install("torchvision", "0.24.1")
        t = e.t
        t.package("triton", "3.5.1", {"triton/backends/nvidia/bin/ptxas": b"x Build cuda_12.8.r12.8/compiler.35583870_0 x" * 9, "triton/__init__.py": b""}, tag="cp311-cp311-manylinux_2_27_x86_64")
        t.package("bitsandbytes", "0.49.0", {f"bitsandbytes/libbitsandbytes_cuda{n}.so": elf(fatbin=container(*s)) for n, s in {118: (50, 60), 128: (75, 80, 90, 120), 130: (90,)}.items()} |
                  {"bitsandbytes/libbitsandbytes_rocm64.so": elf()}, requires=["torch<3,>=2.3"], tag="py3-none-manylinux_2_24_x86_64")
        hollow = container(entry(2, 80, cubin(80, code=128)), entry(2, 90, cubin(90, "a", code=9000), "a"))
        t.package("xformers", "0.0.33.post2", {"xformers/_C.so": elf(needed=["libc10.so"], fatbin=container(75, 80, 90, 120)), "xformers/flash_attn_3/_C.so": elf(needed=["libc10.so"], fatbin=container(entry(2, 90, cubin(90, "a", code=9000), "a")))},
                  requires=["torch (==2.9.1)"], tag="cp39-abi3-manylinux_2_28_x86_64")
        assert hollow and e.ask(doctor)["findings"] == [], (gpu, e.ask(doctor)["findings"])
        assert e.ask(doctor)["exit"] == 0
    # krait's wheel: one library without CUDA's
    w = wheel(folder / "krait-0.1.0-py3-none-manylinux_2_17_x86_64.whl", {"krait/libkrait-ops.so.0.1.0": elf(needed=["libc.so.6"])}, name="krait", version="0.1.0", tag="py3-none-linux_x86_64")
    assert doctor(w, "--gpu", "12.0", "--root", folder)["findings"] == []


def one_of_several_libraries_is_loaded(doctor, folder):
    t = Tree(folder)
    info = {f"bitsandbytes/libbitsandbytes_cuda{n}.so": elf(fatbin=container(*s)) for n, s in {118: (50, 60), 126: (75, 90)}.items()}
    t.package("bitsandbytes", "0.45.5", info, tag="py3-none-manylinux_2_24_x86_64")
    a = doctor(t.site, "--root", t.root, "--gpu", "9.0")
    assert a.ids() == ["L08"] and "12.8" in a.find("L08")["explain"] and "0.50.2" in a.find("L08")["fix"][0], a["findings"]


def reports_for_sharing_are_anonymous(doctor, folder):
    t = Tree(folder)
    t.extension()
    out = doctor.run(t.site, "--root", t.root, "--gpu", "12.0", "--issue").stdout.decode()
    assert "causal-conv1d 1.5.2" in out and "K01" in out and str(folder) not in out and "/tmp" not in out, out


def plans_for_logs_are_checked(doctor, folder):
    """The commands must never contradict each other or the target; if a requested torch does not support the GPU, that
    is said first."""
    import itertools
    symbol = "ImportError: /e/site-packages/{m}.cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZN3c104cuda9SetDeviceEi\n"
    build = "Building wheel for {p}\nnvcc fatal   : Unsupported gpu architecture 'compute_120'\nFailed to build {p}\n"
    image = "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"
    modules = {"flash-attn": "flash_attn_2_cuda", "mamba-ssm": "selective_scan_cuda", "torchvision": "torchvision/_C"}
    for (p, m), text, gpu, torch in itertools.product(modules.items(), (symbol, build, image), ("8.6", "12.0"), ("2.4.1+cu121", "2.9.1+cu130")):
        args = ("--root", folder, "--gpu", gpu, "--torch", torch, "--driver", "580.82")
        plan = doctor.run(*args, "--fix-plan", log=text.format(p=p, m=m)).stdout.decode()
        assert "not fixed by this" not in plan, (p, gpu, torch, text, plan)
        a = doctor(*args, log=text.format(p=p, m=m))
        assert ("K14" in a.ids()) == (gpu == "12.0" and torch == "2.4.1+cu121"), (a.ids(), gpu, torch)
    a = doctor("--root", folder, "--gpu", "6.1", "--torch", "2.9.1+cu128", "--driver", "580.82", log=build.format(p="apex"))
    assert "built without 6.1" in a.find("K14")["evidence"][0]


def the_pip_of_the_environment(doctor, folder):
    """An inactive environment has its own pip."""
    t = Tree(folder)
    t.extension(images=(80,))
    python = folder / "env/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("")
    python.chmod(0o755)
    ask = lambda **env: doctor.run(t.site, "--root", t.root, "--gpu", "9.0", "--fix-plan", env=env).stdout.decode()
    assert f"{python} -m pip install" in ask() and " pip install" not in ask().replace("-m pip", ""), ask()
    assert f"{python} -m pip" not in ask(VIRTUAL_ENV=str(folder / "env")) and "pip install" in ask(VIRTUAL_ENV=str(folder / "env"))
    assert any(str(python) in f for f in doctor(t.site, "--root", t.root, "--gpu", "9.0").find("K01")["fix"])
    first = doctor.text(t.site, "--root", t.root, "--gpu", "9.0").splitlines()[1]
    assert first.startswith(f"{python} -m pip install") or f" {python} -m pip install" in first, first


def a_cpu_torch_beside_a_companion_for_cuda(doctor, folder):
    """Without a GPU the torch for the CPU is meant: the companion is at fault. With one, the torch."""
    e = Environment(folder, "8.0", torch="2.9.1+cpu")
    e.t.package("torchaudio", "2.9.1", {"torchaudio/lib/libtorchaudio.so": elf(needed=["libc10.so", "libc10_cuda.so"], fatbin=container(80))}, requires=["torch==2.9.1"], tag="cp311-cp311-manylinux_2_28_x86_64")
    a = doctor(e.t.site, "--root", e.t.root)
    assert a["exit"] == 1 and a.ids()[0] == "P10" and "libc10_cuda.so is missing" in a.find("P10")["explain"], a["findings"]
    assert a.find("P10")["fix"][0] == "pip install --no-deps --force-reinstall torchaudio==2.9.1 --index-url https://download.pytorch.org/whl/cpu", a.find("P10")
    a = e.ask(doctor)
    assert a.ids() == ["D07"] and "torch==2.9.1 torchaudio==2.9.1" in a.find("D07")["fix"][0], a["findings"]


def own_dropins_stay(doctor, folder):
    """krait's packages under upstream's names: torch is asked for once, and nothing of upstream's is put over them."""
    e = Environment(folder, "8.0")
    for name in ("mamba-ssm", "causal-conv1d"):
        e.t.package(name, "2.2.5+krait0.1", {f"{name.replace('-', '_')}/__init__.py": b""}, requires=["torch", "causal-conv1d"] if name == "mamba-ssm" else ["torch"], tag="py3-none-any")
    a = e.ask(doctor)
    assert a.ids() == ["P01"] and a.find("P01")["fix"][0].startswith("pip install --force-reinstall torch=="), a["findings"]
    log = "ImportError: /e/site-packages/selective_scan_cuda.cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZN3c104cuda9SetDeviceEi\n"
    for text in (log, "TypeError: causal_conv1d_fwd(): incompatible function arguments. The following argument types are supported:\n"):
        out = doctor.run(e.t.site, "--root", e.t.root, "--gpu", "8.0", log=text).stdout.decode() + doctor.run(e.t.site, "--root", e.t.root, "--gpu", "8.0", "--fix-plan", log=text).stdout.decode()
        assert not re.search(r"pip install[^\n]*(mamba-ssm|causal-conv1d)", out), out


def variables_belong_to_their_package(doctor, folder):
    """MAMBA_FORCE_BUILD and the like are for one package; no command sets another's."""
    own = {"flash-attn": "FLASH_ATTENTION_FORCE_BUILD", "mamba-ssm": "MAMBA_FORCE_BUILD", "causal-conv1d": "CAUSAL_CONV1D_FORCE_BUILD"}
    for name in own:
        e = Environment(folder / name, "8.0", torch="2.9.1+cu128")
        e.install(name, "1.0")
        (e.t.site / f"{MODULES[name]}.{PY}.so").write_bytes(elf(needed=["libc10.so"], fatbin=container(90)))
        fixes = " ".join(f for x in e.ask(doctor)["findings"] for f in x["fix"])
        assert own[name] in fixes and not any(v in fixes for k, v in own.items() if k != name), fixes


def torch_through_a_pth_file(doctor, folder):
    e = Environment(folder / "base", "8.0", torch="2.9.1+cu128")
    t = Tree(folder / "own", torch=None)
    (t.site / "base.pth").write_text(f"{e.t.site}\n")
    t.package("causal-conv1d", "1.6.0", {f"causal_conv1d_cuda.{PY}.so": elf(needed=["libc10.so"], undefined=CUDA_NAMES[:1], fatbin=container(80))}, requires=["torch"])
    a = doctor(t.site, "--root", t.root, "--gpu", "8.0", "--driver", "580.82.07")
    assert a["target"]["torch"]["version"] == "2.9.1+cu128" and a["findings"] == [], (a["target"], a["findings"])


def a_wheel_for_another_cuda_than_the_torch(doctor, folder):
    w = wheel(folder / "xformers-0.0.35-cp39-abi3-manylinux_2_28_x86_64.whl", {"xformers/_C.so": elf(needed=["libcublas.so.12", "libc10.so"], fatbin=container(80, 90))}, name="xformers", version="0.0.35", tag="cp39-abi3-manylinux_2_28_x86_64")
    a = doctor(w, "--root", folder, "--gpu", "9.0", "--torch", "2.12.1+cu130")
    assert a.ids() == ["L01"] and "CUDA 12" in a.find("L01")["explain"] and "xformers==0.0.35 --index-url https://download.pytorch.org/whl/cu130" in a.find("L01")["fix"][0], a["findings"]
    assert doctor(w, "--root", folder, "--gpu", "9.0", "--torch", "2.12.1+cu128").ids() == []


def requirements_meet_python_cuda_and_driver(doctor, folder):
    def ask(text, *args):
        path = folder / "requirements.txt"
        path.write_text(text)
        return doctor(path, "--root", folder, *args)
    assert ask("torch==2.9.1\n", "--gpu", "8.0", "--python", "3.12", "--driver", "580.82")["exit"] == 0
    a = ask("torch==2.9.1\n", "--gpu", "6.1")
    assert a.ids() == ["K14"] and a.find("K14")["fix"][0] == "pip install --force-reinstall torch==2.9.1 --index-url https://download.pytorch.org/whl/cu126", a["findings"]
    assert ask("--index-url https://download.pytorch.org/whl/cu126\ntorch==2.9.1\n", "--gpu", "6.1")["exit"] == 0
    for text, args, words in (("torch==2.4.1\n", ("--python", "3.13"), r"3\.13"), ("torch==2.13.0\n", ("--driver", "570.86"), r"580|CUDA 13"),
                              ("torch==2.13.0\nxformers==0.0.34\n", (), r"xformers"), ("torch==2.9.1\n", ("--gpu", "6.1"), r"6\.1")):
        a = ask(text, *(() if "--gpu" in args else ("--gpu", "8.0")), *args)
        said = " ".join(f["explain"] + " " + " ".join(f["evidence"]) for f in a["findings"])
        assert a["exit"] == 1 and re.search(words, said), (text, args, a["findings"])


def the_machine_of_a_gpu_is_named(doctor, folder):
    x = folder / "x.so"
    x.write_bytes(elf(fatbin=container(120)))
    a = doctor(x, "--gpu", "12.1", "--root", folder)
    assert "machines with that GPU are aarch64" in a.find("L05")["explain"] and "this machine" not in a.find("L05")["explain"], a["findings"]


def a_healthy_subject_is_told_so(doctor, folder):
    e = Environment(folder, "8.0", torch="2.9.1+cu128")
    e.install("torchvision", "0.24.1")
    ask = lambda *a: " ".join(doctor.run(e.t.site, "--root", e.t.root, "--driver", "580.82.07", *a).stdout.decode().split())
    assert "Nothing is wrong: what was inspected runs on 8.0." in ask("--gpu", "8.0") and "Nothing is wrong" not in ask()
    (e.t.site / f"torchvision/_C.{PY}.so").write_bytes(elf(needed=["libc10.so"], fatbin=container(90)))
    assert "Nothing is wrong" not in ask("--gpu", "8.0")


def links_and_fixes_are_listed_once(doctor, folder):
    e = Environment(folder, "9.0", torch="2.9.1+cu128")
    e.t.package("foo", "1.0", {"foo/libfoo.so.1.0": elf(fatbin=container(90))}, tag="py3-none-manylinux_2_28_x86_64")
    for name in ("libfoo.so", "libfoo.so.1"):
        (e.t.site / "foo" / name).symlink_to("libfoo.so.1.0")
    out = doctor.text(e.t.site, "--root", e.t.root, "--gpu", "9.0", "--driver", "580.82.07")
    assert out.count("libfoo") == 1, out
    e = Environment(folder / "cpu", "8.0", torch="2.9.1+cpu")
    e.t.package("torchaudio", "2.9.1", {"torchaudio/lib/libtorchaudio.so": elf(needed=["libc10_cuda.so"], fatbin=container(80))}, requires=["torch==2.9.1"], tag="cp311-cp311-manylinux_2_28_x86_64")
    rest = " ".join(doctor.text(e.t.site, "--root", e.t.root).split("\n\n", 1)[1].split())
    assert rest.count("/whl/cu1") == 1 and "as above" in rest, rest


run_tests([v for v in list(globals().values()) if callable(v) and getattr(v, "__module__", "") == "__main__" and v.__name__ != "Environment"])
