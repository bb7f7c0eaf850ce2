"""Headers, errors, places, wheels, metadata, shadowing, `python -m krait`."""

import argparse
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile

import pytest
import torch

from krait import _call, _dropin, _header, _load
from krait.ops import causal_conv1d


def test_headers():
    with open(os.path.join(_load.header_folder(), "krait.h")) as krait, open(os.path.join(_load.header_folder(), "tensor.h")) as tensor, open(os.path.join(_load.header_folder(), "ops.h")) as ops:
        declarations, constants = _header.read_headers([krait.read(), tensor.read(), ops.read()])
    assert constants["KRAIT_ERR_UNSUPPORTED"] == -60 and constants["KRAIT_CAP_NEON"] == 32 and constants["KRAIT_DEVICE_CUDA"] == 16
    assert "#" not in declarations and "KRAIT_API" not in declarations and "extern" not in declarations
    assert _load.version() == ".".join(str(constants["KRAIT_VERSION_" + part]) for part in ("MAJOR", "MINOR", "PATCH"))
    names = {torch.float32: "KRAIT_F32", torch.float16: "KRAIT_F16", torch.bfloat16: "KRAIT_BF16", torch.float64: "KRAIT_F64",
             torch.int32: "KRAIT_I32", torch.int64: "KRAIT_I64", torch.complex64: "KRAIT_C64"}
    assert dict(_call.DTYPES) == {dtype: constants[name] for dtype, name in names.items()}
    for module, flags in ((sys.modules["krait.ops.causal_conv1d"], {"_REVERSE": "KRAIT_CONV1D_REVERSE"}),
                          (sys.modules["krait.ops.selective_scan"], {"_SOFTPLUS": "KRAIT_SCAN_SOFTPLUS", "_B_CONSTANT": "KRAIT_SCAN_B_CONSTANT",
                                                                     "_C_CONSTANT": "KRAIT_SCAN_C_CONSTANT", "_REVERSE": "KRAIT_SCAN_REVERSE",
                                                                     "_BOTH": "KRAIT_SCAN_BOTH"}),
                          (sys.modules["krait.ops.state_update"], {"_SOFTPLUS": "KRAIT_UPDATE_SOFTPLUS"}),
                          (sys.modules["krait.ops.norms"], {"_RMS": "KRAIT_NORM_RMS", "_GATE_FIRST": "KRAIT_GATED_NORM_GATE_FIRST"})):
        for name, constant in flags.items():
            assert getattr(module, name) == constants[constant]


def _args_of(words):
    return _load.ffi().from_buffer("krait_causal_conv1d_args *", words)


def test_packed_structs_are_what_cffi_sees():
    x, weight = torch.randn(2, 8, 9)[..., ::2], torch.randn(8, 4, dtype=torch.float64).half()
    call = _call.Call(_call.Operator("causal_conv1d", "x weight bias seq_idx initial_states out final_states"))
    tensors = (x, weight, None, None, None, x, None)
    call.pack(tensors, 5, activation=1)
    words = call._filled([t if t is None else t.data_ptr() for t in tensors])
    args = _args_of(words)
    assert (args.call.size, args.call.flags, args.activation) == (8 * len(words), 5, 1)
    assert int(_load.ffi().cast("intptr_t", args.x.data)) == x.data_ptr() and list(args.x.stride) == [72, 9, 2, 0] and args.x.dtype == 0
    assert (args.x.n_dims, args.x.flags, list(args.x.size)) == (3, 1, [2, 8, 5, 0])
    assert list(args.weight.stride) == [4, 1, 0, 0] and args.weight.dtype == 1 and list(args.weight.size) == [8, 4, 0, 0]
    assert args.bias.data == _load.ffi().NULL and args.out.data == args.x.data


def test_cached_calls():
    """A repeated signature runs on the new tensors; what it does not cover is checked every time."""
    causal_conv1d(torch.randn(2, 8, 9), torch.randn(8, 4))
    x, weight = torch.randn(2, 8, 9), torch.randn(8, 4)
    want = torch.nn.functional.conv1d(torch.nn.functional.pad(x, (3, 0)), weight[:, None], groups=8)
    torch.testing.assert_close(causal_conv1d(x, weight), want)
    torch.testing.assert_close(causal_conv1d(x.transpose(1, 2).contiguous().transpose(1, 2), weight), want)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="causal_conv1d: x must be"):
            causal_conv1d(x, weight[:7])
        with pytest.raises(RuntimeError, match="no operator takes"):
            causal_conv1d(x.to(torch.int16), weight)
    scan = sys.modules["krait.ops.selective_scan"].selective_scan
    u, A, B = torch.randn(1, 4, 6), torch.complex(-torch.rand(4, 3), torch.rand(4, 3)), torch.randn(1, 3, 12)
    plain = scan(u, u, A, B, B)
    torch.testing.assert_close(scan(u, u, A.conj(), B, B), scan(u, u, A.conj().resolve_conj(), B, B))
    assert not torch.equal(scan(u, u, A.conj(), B, B), plain)


class _LendingPlace:
    """Like a GPU's: keeps no scratch."""
    def __init__(self):
        self.context, self.lent = _call.place(torch.zeros(1)).context, []

    def tail(self, n):
        if not n:
            return None, 0, _call._NO_SCRATCH, 0
        self.lent.append(torch.empty(n, dtype=torch.uint8))
        return self.lent[-1], 0, self.lent[-1].data_ptr(), n


def test_a_plan_knows_its_scratch(monkeypatch):
    operator, place = sys.modules["krait.ops.selective_scan"].BACKWARD, _LendingPlace()
    u, A, B = torch.randn(2, 8, 40), -torch.rand(8, 4), torch.randn(2, 4, 40)
    inputs = (u, u.abs(), A, B, B, *[None] * 7, torch.ones_like(u), None)
    want, got = [[torch.empty_like(t) for t in inputs[:5]] for _ in range(2)]
    operator.run((*inputs, *want, *[None] * 5))
    call, tensors = _call.Call(operator), (*inputs, *got, *[None] * 5)
    call.pack(tensors)
    monkeypatch.setattr(_call, "place", lambda *tensors: place)
    for n_lent in (1, 2):
        call.run(tensors)
        assert len(place.lent) == n_lent and len(call._plans) == 1
        for a, b in zip(got, want):
            torch.testing.assert_close(a, b)
            a.zero_()


def test_a_plan_runs_on_any_addresses(monkeypatch):
    """Other alignments and equal tensors than planned; where its plan refuses, for want of scratch or of an address, the args struct is sent."""
    gemm = sys.modules["krait.ops.product"].GEMM
    memory = torch.randn(4, 40 * 40 + 1)
    aligned, shifted = [[row[i:][:1600].view(40, 40) for row in memory] for i in (0, 1)]
    call, structs = _call.Call(gemm), []
    call.pack((*aligned[:2], None, None, aligned[2]))
    monkeypatch.setattr(gemm, "invoke", lambda *args, real=gemm.invoke: structs.append(1) or real(*args))
    for a, b, out in (aligned[:3], shifted[:3], [aligned[0], aligned[0], shifted[1]], [shifted[1], aligned[1], aligned[2]]):
        want = a.double() @ b.double()
        call.run((a, b, None, None, out))
        torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-4)
    assert len(call._plans) == 1 and not structs
    monkeypatch.setattr(gemm, "run_plan", lambda *args: _load.constant("KRAIT_ERR_SCRATCH"))
    call.run((*aligned[:2], None, None, aligned[3]))
    assert structs and torch.allclose(aligned[3], aligned[0] @ aligned[1], rtol=1e-5, atol=1e-4)
    monkeypatch.undo()
    freed = torch.empty(40, 40)
    freed.untyped_storage().resize_(0)
    with pytest.raises(TypeError, match="has no memory"):
        call.run((freed, aligned[1], None, None, aligned[2]))
    with pytest.raises(TypeError, match="Bmat has no memory"):
        call.run_at(_call.place(memory), (64, 0, 0, 0, 64))


def test_plans_are_loaded_together(monkeypatch):
    """Those that can be opened, with scratch for the largest; on a CPU nothing is asked."""
    gemm, given = sys.modules["krait.ops.product"].GEMM, []
    a, calls = torch.randn(40, 40), [_call.Call(gemm) for _ in range(3)]
    for call in calls:
        call.pack((a, a, None, None, a))
    calls[1].words[0] = 7  # a struct of no size
    monkeypatch.setattr(_load, "function", lambda name, real=_load.function: given.append(name) or real(name))
    _call.load(_call.place(a), calls)
    assert "krait_plans_load" not in given
    at = _LendingPlace()
    at.device = torch.device("cuda", 0)
    monkeypatch.setattr(_load, "function", lambda name, real=_load.function: (lambda plans, n, *scratch: given.append((n, real(name)(plans, n, *scratch)))) if name == "krait_plans_load" else real(name))
    _call.load(at, calls)
    _call.load(at, [])
    assert [entry for entry in given if isinstance(entry, tuple)] == [(2, 0), (0, 0)]


def test_unusable_gpu_error(monkeypatch):
    def refuse(index):
        raise _load.KraitError("krait: no CUDA driver here", -40)
    monkeypatch.setattr(_load, "cuda_context", refuse)
    with pytest.raises(RuntimeError, match="no CUDA driver here; `python -m krait` reports the devices found, KRAIT_FALLBACK=cpu runs"):
        _call._open_cuda_place(77)


def test_cached_calls_are_bounded(monkeypatch):
    monkeypatch.setattr(_call, "_MOST_KNOWN", 3)
    operator, x = _call.Operator("causal_conv1d", "x"), torch.zeros(1)
    for key in range(10):
        call, taken = operator.keep(lambda tensors, options: (tensors[0].dtype, *options), (key,), (x,))
        assert operator.known[(x.dtype, key)] is call and taken == (x,) and len(operator.known) <= 3
        assert operator.keep(lambda tensors, options: (tensors[0].dtype, *options), (key,), (x.clone(),))[0] is call
    n_known, (call, _) = len(operator.known), operator.keep(None, (), (x.to(torch.complex64),))
    assert len(operator.known) == n_known and call.operator is operator
    monkeypatch.setattr(_call, "_MOST_FOLLOWERS", 3)
    first = call.follower(operator, 0)
    assert call.follower(operator, 0) is first and all([call.follower(operator, key).operator is operator for key in range(9)])
    assert call.follower(operator, 0) is not first


def test_mixed_devices_are_refused():
    with pytest.raises(RuntimeError, match="expected all tensors on cpu"):
        causal_conv1d(torch.zeros(1, 8, 4), torch.zeros(8, 4, device="meta"))
    with pytest.raises(RuntimeError, match="no operator takes"):
        causal_conv1d(torch.zeros(1, 8, 4, dtype=torch.int16), torch.zeros(8, 4))


def test_library_errors_keep_their_message():
    with pytest.raises(_load.KraitError, match="krait: .*(device|driver)") as error:
        _load.open_context(12345, 1)
    assert error.value.status < 0 and isinstance(error.value, RuntimeError)
    assert issubclass(_load.KraitUnsupported, NotImplementedError)


def test_missing_library_error(tmp_path):
    environment = dict(os.environ, KRAIT_LIBRARY=str(tmp_path / "no.so"), PYTHONPATH=os.pathsep.join(sys.path))
    code = "import torch, causal_conv1d; causal_conv1d.causal_conv1d_fn(torch.zeros(1, 8, 4), torch.zeros(8, 4))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and "libkrait-ops cannot be loaded from" in done.stderr and "KRAIT_LIBRARY" in done.stderr
    report = subprocess.run([sys.executable, "-m", "krait"], env=environment, capture_output=True, text=True)
    assert report.returncode == 1 and "cannot be loaded" in report.stdout


def test_threads_have_their_own_scratch():
    tails = []
    threads = [threading.Thread(target=lambda: tails.append(_call.place(torch.zeros(1)).tail(0))) for _ in range(2)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert tails[0] != _call.place(torch.zeros(1)).tail(0)


def test_scratch_is_reused():
    """Scratch of a call is kept for the next one, up to a limit."""
    at = _call.place(torch.zeros(1))
    size = max(5 << 20, at.tail(0)[3])  # more where a test before took more
    tail = at.tail(size)
    assert tail[0] is None and tail == at.tail(0) and tail[3] == size
    lent, *big = at.tail(65 << 20)
    assert big == [0, lent.data_ptr(), 65 << 20] and at.tail(0) == tail
    lent[-1] = 7


def test_stats():
    import krait
    causal_conv1d(torch.zeros(1, 8, 4), torch.zeros(8, 4))
    stats = krait.stats()
    assert sum(c["n_calls"] for c in stats.values()) > 0 and all(c["n_fallbacks"] == 0 for c in stats.values())


@pytest.mark.parametrize("name", list(_dropin.PACKAGES))
def test_dropin_wheels(tmp_path, name):
    path = _dropin.write_wheel(name, str(tmp_path))
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        (metadata,) = [wheel.read(n).decode() for n in names if n.endswith("METADATA")]
        (record,) = [wheel.read(n).decode() for n in names if n.endswith("RECORD")]
    assert "Name: %s\n" % name in metadata and "+krait" in metadata and "Requires-Dist: krait==" in metadata
    assert len(record.splitlines()) == len(names)
    for module in _dropin.PACKAGES[name][1]:
        assert module + ".py" in names or module + "/__init__.py" in names


def test_shadowing_copies(tmp_path, monkeypatch, capfd):
    """A fork of the same name before the drop-in on the path is reported; a working one is not replaced unasked."""
    fork = tmp_path / "mamba_ssm"
    fork.mkdir()
    (fork / "__init__.py").write_text("'a fork'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "path", sys.path[:1] + [p for p in sys.path[1:]])
    text = _dropin.explain("mamba_ssm")
    assert text.startswith("%s (not krait's), which hides" % fork) and "krait's drop-in" in text
    monkeypatch.setattr(_dropin, "_import_error", lambda module: None)
    monkeypatch.setattr(_dropin, "_pip", lambda *arguments: pytest.fail("pip was called"))
    assert _dropin._install(["mamba_ssm"], force=False) == 1 and "works and is not krait's; --force" in capfd.readouterr().err
    calls = []
    monkeypatch.setattr(_dropin, "_pip", lambda *arguments: calls.append(arguments) or 0)
    assert _dropin._install(["mamba_ssm"], force=True) == 1 and calls  # the fork still comes first
    assert "hides the drop-in: remove it" in capfd.readouterr().err
    monkeypatch.setattr(_dropin, "_import_error", lambda module: "ImportError: undefined symbol")
    _dropin._install(["mamba_ssm"], force=False)
    assert len(calls) == 2 and "does not import and will be replaced (ImportError: undefined symbol)" in capfd.readouterr().out


def test_what_works_stays(tmp_path, monkeypatch, capfd):
    """Without names and --force a working copy stays, and the other drop-ins are installed."""
    for name in ("causal_conv1d", "causal_conv1d_cuda"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("'upstream's'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(_dropin, "_import_error", lambda module: None)
    wheels, inside = [], []
    monkeypatch.setattr(_dropin, "_pip", lambda *arguments: [(wheels.append(a), inside.extend(zipfile.ZipFile(a).namelist())) for a in arguments if a.endswith(".whl")] and 0)
    options = argparse.Namespace(action="on", packages=[], force=False)
    assert _dropin.run(options) == 0 and "causal_conv1d works and is not krait's; --force" in capfd.readouterr().err
    assert sorted(os.path.basename(path).split("-")[0] for path in wheels) == ["fla_core", "flash_attn", "krait_kernels", "mamba_ssm"]
    assert "flash_attn_2_cuda.py" in inside and "causal_conv1d_cuda.py" not in inside  # flash_attn imports the one; the other is upstream's


def test_a_compiled_module_hides_a_source(tmp_path, monkeypatch):
    """Like Python's import order."""
    for suffix in (".py", ".abi3.so"):
        (tmp_path / ("selective_scan_cuda" + suffix)).write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [os.path.basename(path) for path in _dropin._copies("selective_scan_cuda")[:2]] == ["selective_scan_cuda.abi3.so", "selective_scan_cuda.py"]


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory):
    """A Python with only pip, and a function that runs it with krait on its path."""
    folder = tmp_path_factory.mktemp("bare")
    if subprocess.run([sys.executable, "-m", "venv", str(folder)], capture_output=True).returncode:
        pytest.skip("no virtual environment can be made here (ensurepip)")
    home = tmp_path_factory.mktemp("krait")
    shutil.copytree(os.path.dirname(_dropin.__file__), home / "krait", ignore=shutil.ignore_patterns("*.so", "__pycache__"))

    def run(*arguments, **options):
        environment = {**{k: v for k, v in os.environ.items() if not k.startswith("PIP_")}, "PYTHONPATH": str(home)}
        return subprocess.run([str(folder / "bin" / "python"), *arguments], env=environment, capture_output=True, text=True, **options)
    return run


def test_on_and_off(bare_python):
    """Reports what it did; after `off` nothing is importable, even with .pyc files left over."""
    done = bare_python("-m", "krait", "dropin", "on")
    assert done.returncode == 0, done.stderr
    for word in ("mamba_ssm (mamba_ssm 2.3.2.post1+krait", "selective_scan_cuda_oflex (krait_kernels", "torch is not installed;"):
        assert word in done.stdout, done.stdout
    found = "import importlib.util as u; print([m for m in %r if u.find_spec(m)])" % (_dropin.MODULES,)
    asked = _dropin.PACKAGES["flash_attn_3"][1]
    assert bare_python("-c", found).stdout.strip() == str([m for m in _dropin.MODULES if m not in asked])  # clients that find FlashAttention-3 prefer it
    done = bare_python("-m", "krait", "dropin", "on", "flash-attn-3")
    assert done.returncode == 0 and bare_python("-c", found).stdout.strip() == str(_dropin.MODULES), done
    names = "import importlib.metadata as m; print(m.packages_distributions()['flash_attn_interface'], m.packages_distributions()['flash_attn'])"
    if sys.version_info >= (3, 10):  # by these names transformers tells releases 2, 3 and 4 apart
        assert bare_python("-c", names).stdout.strip() == "['flash_attn_3'] ['flash_attn']"
    site = bare_python("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
    stray = os.path.join(site, "mamba_ssm", "ops", "__pycache__", "left_over.cpython-00.pyc")
    with open(stray, "w") as file:
        file.write("compiled by another Python")
    done = bare_python("-m", "krait", "dropin", "off")
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert bare_python("-c", found).stdout.strip() == "[]" and not os.path.exists(os.path.join(site, "mamba_ssm"))
    assert "no drop-in is installed" in bare_python("-m", "krait", "dropin", "off").stdout


def test_dropin_brings_its_requirements(bare_python):
    """mamba_ssm imports causal_conv1d."""
    done = bare_python("-m", "krait", "dropin", "on", "mamba_ssm")
    assert done.returncode == 0 and "causal_conv1d (causal_conv1d " in done.stdout and "flash_attn (" not in done.stdout, done
    found = "import importlib.util as u; print([m for m in %r if u.find_spec(m)])" % (_dropin.MODULES,)
    assert bare_python("-c", found).stdout.strip() == str([m for m in _dropin.MODULES if m.split("_")[0] not in ("flash", "fla") or m == "flash_attn_2_cuda"])
    assert bare_python("-m", "krait", "dropin", "off").returncode == 0


def test_kernels_only(bare_python):
    """For forks that ship mamba_ssm and causal_conv1d."""
    done = bare_python("-m", "krait", "dropin", "on", "--kernels-only")
    assert done.returncode == 0, done.stderr
    found = "import importlib.util as u; print([m for m in %r if u.find_spec(m)])" % (_dropin.MODULES,)
    assert bare_python("-c", found).stdout.strip() == str(list(_dropin.PACKAGES[_dropin.KERNELS][1]))
    assert bare_python("-m", "krait", "dropin", "on", "--kernels-only", "mamba_ssm").returncode == 2
    assert bare_python("-m", "krait", "dropin", "off", "--kernels-only").returncode == 0
    assert bare_python("-c", found).stdout.strip() == "[]"


def test_closed_output_pipe():
    """`python -m krait | head` prints no traceback."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
    program = subprocess.Popen([sys.executable, "-m", "krait"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    program.stdout.close()
    assert program.stderr.read() == b"" and program.wait(60) != 1


def test_unknown_package():
    done = subprocess.run([sys.executable, "-m", "krait", "dropin", "which", "mamba"], capture_output=True, text=True,
                          env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)))
    assert done.returncode == 2 and "choose from krait_kernels, causal_conv1d" in done.stderr


def test_report():
    done = subprocess.run([sys.executable, "-m", "krait"], capture_output=True, text=True,
                          env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)))
    assert done.returncode == 0, done.stderr
    for word in ("krait ", "library", "cpu", "torch", "causal_conv1d", "mamba_ssm", "flash_attn", "fla "):
        assert any(line.startswith(word) for line in done.stdout.splitlines()), word


def _run_krait(*arguments, path="/nonexistent"):
    return subprocess.run([sys.executable, "-m", "krait", *arguments], capture_output=True, text=True, env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), PATH=path))


def test_verbs_of_the_program(tmp_path):
    """They are passed on to the program, never to a script of the same name, or it is said who has them."""
    done = _run_krait("generate", "model", "-p", "x")
    assert done.returncode == 2 and "krait generate: this is a verb of the program krait" in done.stderr and done.stderr.count("\n") == 1
    (tmp_path / "script").mkdir()
    (tmp_path / "script" / "krait").write_text("#!/bin/sh\nexit 9\n")
    (tmp_path / "script" / "krait").chmod(0o755)
    assert _run_krait("train", path=str(tmp_path / "script")).returncode == 2
    (tmp_path / "krait").write_bytes(open(shutil.which("echo"), "rb").read())
    (tmp_path / "krait").chmod(0o755)
    done = _run_krait("generate", "a", "b c", path="%s:%s" % (tmp_path / "script", tmp_path))
    assert done.returncode == 0 and done.stdout == "generate a b c\n"


def test_program_wheel(tmp_path):
    """What pip unpacks of it is found by python -m krait, before a program in PATH, and may be run."""
    backend = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python", "backend")
    if not os.path.isdir(backend):
        pytest.skip("needs the source tree")
    root = tmp_path / "krait-0.1.0-linux-x86_64"
    (root / "bin").mkdir(parents=True)
    (root / "lib").mkdir()
    (root / "bin" / "krait").write_text('#!/bin/sh\necho "$@" && cat "${0%/*}/../lib/part"\n')
    (root / "bin" / "krait").chmod(0o755)
    (root / "lib" / "part").write_text("of the package\n")
    with tarfile.open(tmp_path / (root.name + ".tar.xz"), "w:xz") as archive:
        archive.add(root, root.name)
    subprocess.run([sys.executable, os.path.join(backend, "program_wheel.py"), str(tmp_path / (root.name + ".tar.xz")), str(tmp_path)], check=True, capture_output=True)
    site = tmp_path / "site"
    subprocess.run([sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "-q", "--target", str(site), str(next(tmp_path.glob("*.whl")))], check=True)
    done = subprocess.run([sys.executable, "-m", "krait", "generate", "a b"], capture_output=True, text=True, env=dict(os.environ, PYTHONPATH=os.pathsep.join([*sys.path, str(site)]), PATH="/bin:/usr/bin"))
    assert done.stdout == "generate a b\nof the package\n", done.stderr


def test_names_of_the_package():
    import krait
    assert {"Denoiser", "accelerate", "accelerated", "graphed", "stats"} <= set(dir(krait))
    assert all(callable(getattr(krait, name)) for name in ("Denoiser", "accelerate", "accelerated", "graphed"))
    with pytest.raises(AttributeError, match="has no attribute 'x'"):
        krait.x


def test_metadata_of_the_wheel():
    """What pip shows and installs, from pyproject.toml."""
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python")
    sys.path.insert(0, os.path.join(folder, "backend"))
    try:
        backend = pytest.importorskip("krait_build")
    finally:
        sys.path.pop(0)
    head, _, readme = backend._metadata().partition("\n\n")
    assert readme.startswith("# krait") and "Requires-Dist: cffi>=1.15" in head and head.count("\nClassifier: ") > 5 and "\n\n" not in head
    assert backend._entry_points() == "[console_scripts]\nkrait = krait.__main__:script\n"
    assert set(backend.get_requires_for_build_wheel()) <= {"meson", "ninja"}
    listed = {path.rpartition("/")[2] for path, _ in backend._package_files() if path.endswith(".h")}
    assert listed == set(_load._HEADERS)


@pytest.mark.skipif(not os.environ.get("KRAIT_INSTALLED"), reason="the wheels are not installed; make test-python does that")
def test_installed_metadata():
    assert importlib.metadata.version("krait") == "0.1.0"
    for name in ("causal_conv1d", "mamba_ssm"):
        assert importlib.metadata.version(name).startswith(_dropin.PACKAGES[name][0] + "+krait")
    for module in ("krait", "mamba_ssm", "causal_conv1d", "selective_scan_cuda"):
        assert "site-packages" in __import__(module).__file__
