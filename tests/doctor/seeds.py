"""seeds.py PROGRAM: five problems as users report them, pasted whole and in part, must be diagnosed by the evidence,
not by the usual advice. The texts imitate real messages."""
from fake import *

PROC = "/opt/env/lib/python3.11/site-packages"

# 0: three causes in one report on a new GPU.
OLD_TORCH = f"""{PROC}/torch/cuda/__init__.py:235: UserWarning:
NVIDIA RTX PRO 6000 Blackwell Workstation Edition with CUDA capability sm_120 is not compatible with the current PyTorch installation.
The current PyTorch install supports CUDA capabilities sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90.
"""
SYM_NE = f"""Traceback (most recent call last):
  File "run.py", line 3, in <module>
    import flash_attn_2_cuda as flash_attn_gpu
ImportError: {PROC}/flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZNK3c106SymInt6sym_neERKS0_
"""
REBUILD = f"""$ TORCH_CUDA_ARCH_LIST="12.0" pip install causal-conv1d==1.5.2 --no-cache-dir
  Guessing wheel URL:  https://github.com/Dao-AILab/causal-conv1d/releases/download/v1.5.2/causal_conv1d-1.5.2+cu12torch2.7cxx11abiTRUE-cp311-cp311-linux_x86_64.whl
Successfully installed causal-conv1d-1.5.2
Traceback (most recent call last):
  File "{PROC}/causal_conv1d/causal_conv1d_interface.py", line 49, in forward
    out = causal_conv1d_cuda.causal_conv1d_fwd(x, weight, bias, None, None, None, True)
RuntimeError: CUDA error: no kernel image is available for execution on the device
"""

# 1: a build that failed in several ways before it worked.
BUILD = f"""nvcc: NVIDIA (R) Cuda compiler driver
Cuda compilation tools, release 12.4, V12.4.131
  ModuleNotFoundError: No module named 'torch'
nvcc fatal   : Unsupported gpu architecture 'compute_120'
ninja: build stopped: subcommand failed.
RuntimeError: Expected x.is_cuda() to be true, but got false.  (Could this error message be improved?)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 31.36 GiB
"""

# 2: a symbol only in newer releases of torch, and a wheel name that was never published.
EXCHANGE = f"""torch 2.2.0+cu121, mamba-ssm 2.2.5
ImportError: {PROC}/selective_scan_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol: _ZN3c104cuda14ExchangeDeviceEa
try mamba_ssm-2.2.2+cu121torch2.2cxx11abiFALSE-cp310-cp310-linux_x86_64.whl
"""

# 3: a CPU tensor and a missing image, confused; with useless advice.
MIXED = f"""RuntimeError: Expected u.is_cuda() to be true, but got false.
later: mamba_ssm selective_scan_cuda: CUDA error: no kernel image is available for execution on the device
advice found: TORCH_CUDA_ARCH_LIST="7.5;8.0;8.6" pip install mamba-ssm --no-binary :all:
Guessing wheel URL: https://github.com/state-spaces/mamba/releases/download/v2.2.4/x.whl
"""

# 4: torch.cat is blamed on an Ada GPU; the chain's first exception is a normal cache miss.
CAT = f"""[rank0]: Traceback (most recent call last):
[rank0]:   File "/srv/seedvr/common/cache.py", line 32, in __call__
[rank0]:     result = self.cache[key]
[rank0]: KeyError: 'emb_repeat_0_vid'

[rank0]: During handling of the above exception, another exception occurred:

[rank0]: Traceback (most recent call last):
[rank0]:   File "/srv/seedvr/models/dit/rope.py", line 88, in forward
[rank0]:     emb = torch.cat([a, b])
[rank0]: RuntimeError: CUDA error: no kernel image is available for execution on the device
GPU: NVIDIA GeForce RTX 4090, torch==2.3.0+cu121, flash_attn==2.5.9.post1
"""


def seed_0_whole(doctor, folder):
    a = doctor("--root", folder, log=OLD_TORCH + SYM_NE + REBUILD)
    assert {"K14", "S01", "B04", "B05", "K01"} <= set(a.ids()), a.ids()
    assert a["target"]["gpus"][0] == {"name": "RTX PRO 6000 Blackwell", "cc": "12.0", "source": "the log", "tier": "ampere"}
    assert "cu128" in " ".join(a.find("K14")["fix"]) or "cu130" in " ".join(a.find("K14")["fix"])
    assert "c10::SymInt::sym_ne(c10::SymInt const&) const" in a.find("S01")["explain"]
    assert "<= 2.8" in a.find("S01")["explain"]
    assert any("CAUSAL_CONV1D_FORCE_BUILD=TRUE" in f for f in a.find("B05")["fix"])
    assert any("causal-conv1d==1.7.0" in f for f in a.find("B04")["fix"]), a.find("B04")["fix"]


def seed_0_parts(doctor, folder):
    assert doctor("--root", folder, log=OLD_TORCH).ids() == ["K14"]
    assert doctor("--root", folder, log=SYM_NE).ids() == ["S01"]
    assert set(doctor("--root", folder, log=REBUILD).ids()) == {"B04", "B05", "K01"}


def a_text_claims_no_file_and_blames_the_nearest_package(doctor, folder):
    """The end of REBUILD without its frames: the library named in an earlier error is unrelated."""
    lines = REBUILD.splitlines()
    log = OLD_TORCH + SYM_NE + "\n".join([lines[0], lines[1], lines[-1]])
    a = doctor("--root", folder, log=log)
    k01 = a.find("K01")
    assert "flash_attn" not in k01["explain"] and "causal-conv1d has no code for 12.0" in k01["explain"] and any("CAUSAL_CONV1D" in f for f in k01["fix"]), k01
    assert [f["id"] for f in a["findings"] if "flash" in " ".join(f["fix"] + [f["explain"]])] == ["S01"], a["findings"]
    plan = doctor.run("--root", folder, "--fix-plan", log=log).stdout.decode().splitlines()
    assert "torch==" in plan[0] and any("causal-conv1d==" in p for p in plan[1:]) and any("flash-attn==" in p for p in plan[1:]), plan


def seed_1(doctor, folder):
    (folder / "newer/usr/local/cuda/bin").mkdir(parents=True)  # the log's machine had 12.4, this one has 13.0
    (folder / "newer/usr/local/cuda/bin/nvcc").write_text("")
    (folder / "newer/usr/local/cuda/version.json").write_text('{"cuda" : {"name" : "CUDA SDK", "version" : "13.0.0"}}')
    a = doctor("--root", folder, log=BUILD)
    assert set(a.ids()) == {"B01", "B07", "R01", "R02"}, a.ids()
    assert "needs >= 12.8" in a.find("B01")["explain"] and "12.4" in a.find("B01")["explain"], a.find("B01")
    assert "12.4" in doctor("--root", folder / "newer", log=BUILD).find("B01")["explain"]
    plan = doctor.run("--root", folder, "--fix-plan", log=BUILD).stdout.decode()
    assert "cuda-toolkit-12-8" in plan and "pip install --force-reinstall torch==2.11.0 " in plan, plan
    for line, rule in zip(BUILD.splitlines()[2:], ("B07", "B01", "B08", "R01", "R02")):
        assert doctor("--root", folder, log=line).ids() == [rule], rule


def seed_2(doctor, folder):
    a = doctor("--root", folder, log=EXCHANGE)
    assert set(a.ids()) == {"S01", "W04"}, a.ids()
    assert ">= 2.3" in a.find("S01")["explain"] and "2.2.0+cu121" in a.find("S01")["explain"]
    assert "ExchangeDevice(signed char)" in a.find("S01")["explain"]
    assert any("mamba-ssm==2.2.4" in f for f in a.find("S01")["fix"]), a.find("S01")["fix"]
    assert "mamba_ssm-2.2.2+cu122torch2.2cxx11abiFALSE-cp310-cp310-linux_x86_64.whl" in a.find("W04")["explain"]


def seed_3(doctor, folder):
    a = doctor("--root", folder, log=MIXED)
    assert set(a.ids()) == {"R01", "K01", "B04", "B05"}, a.ids()
    plan = doctor.run("--root", folder, "--fix-plan", log=MIXED).stdout.decode()
    assert '.to("cuda")' in plan and "MAMBA_FORCE_BUILD=TRUE" in plan, plan
    assert "TRUE counts" in doctor.run("--explain", "B05").stdout.decode()


def seed_4_log_alone_claims_no_file(doctor, folder):
    a = doctor("--root", folder, log=CAT)
    assert a.ids() == ["K01"] and a.find("K01")["file"] is None and a.find("K01")["confidence"] == "M"
    assert any("rope.py" in e for e in a.find("K01")["evidence"]) and any("a call of torch" in e for e in a.find("K01")["evidence"])
    assert "krait doctor --log" in a.find("K01")["fix"][0] and not any("apex" in f or "flash" in f for f in a.find("K01")["fix"]), a.find("K01")
    assert a["target"]["gpus"][0]["cc"] == "8.9"


def seed_4_with_the_environment(doctor, folder):
    t = Tree(folder, torch="2.3.0+cu121", cuda="12.1", images=(50, 60, 70, 75, 80, 86, 90))
    t.extension(name="apex", version="0.1", module="fused_layer_norm_cuda", images=(90,))
    t.extension(name="flash-attn", version="2.5.9.post1", module="flash_attn_2_cuda", images=(80, 90))
    a = doctor(t.site, "--root", t.root, log=CAT)
    assert "fused_layer_norm_cuda" in a.find("K03")["file"], a.find("K03")
    assert "flash_attn_2_cuda" in a.find("K04")["file"] and "sm_80 runs on 8.9" in a.find("K04")["explain"]
    assert not [f for f in a["findings"] if f["id"] == "K01" and "flash" in (f["file"] or "")]


def wrapped_and_coloured_text_is_read(doctor, folder):
    wrapped = SYM_NE.replace("undefined symbol:", "\x1b[31mundefined\n   symbol:\x1b[0m")
    assert doctor("--root", folder, log=wrapped).ids() == ["S01"]


def unknown_text_says_so(doctor, folder):
    assert "Nothing in the log was recognised" in doctor.text("--root", folder, log="hello\n")


def hostile_text_terminates(doctor, folder):
    for text in (b"\0" * 100000, b"Expected " + b"x" * 3000000, b"Expected x" * 300000, bytes(range(256)) * 4000, b"a.so: " * 200000):
        doctor("--root", folder, log=text)


def texts_fit_80_columns(doctor, folder):
    for text in (OLD_TORCH + SYM_NE + REBUILD, BUILD, EXCHANGE, MIXED, CAT):
        out = doctor.text("--root", folder, log=text)
        assert "\x1b" not in out and "seen" in out and "fix" in out


run_tests([v for k, v in list(globals().items()) if k.startswith(("seed_", "a_text", "wrapped", "unknown", "hostile", "texts"))])
