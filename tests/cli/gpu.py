"""--device, --tier and --no-fallback on machines whose driver is broken, old or absent: a fake driver library. Usage: gpu.py KRAIT FAKE."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import wave

from run import check, check_error, finish, krait

FAKE = sys.argv[2]
WEIGHTS = pathlib.Path(__file__).parent.parent / "golden" / "primeknet" / "tiny-mamba.weights.safetensors"


def machine(library=FAKE, **settings):
    tell = ",".join(f"{k}={v}" for k, v in settings.items())
    return dict(os.environ, KRAIT_LIBCUDA=library, KR_FAKE_CUDA=tell)


def check_device_for_length():
    """By default enhance uses a GPU for more than a second of sound per thread, over all channels and recordings."""
    def takes(device, *args, stdin=None):
        done = krait("enhance", "--weights", WEIGHTS, "--json", *args, env=machine(capability=80), stdin=stdin)
        found = [json.loads(line)["device"] for line in done.stdout.decode().splitlines()]
        check(done.returncode == 0 and set(found) == {device}, f"{args} took {found}, not {device}: {done.stderr.decode()}")

    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder) / name for name in ("mono.wav", "stereo.wav")]
        for channels, path in enumerate(paths, 1):
            with wave.open(str(path), "wb") as file:
                file.setparams((channels, 2, 16000, 0, "NONE", ""))
                file.writeframes(bytes(2 * channels * 12000))  # 0.75 s, and 1.5 s for both channels
        mono, stereo = paths
        takes("cpu", mono, "--threads", 1)
        takes("cuda:0", mono, "--threads", 1, "--device", "cuda")
        takes("cuda:0", mono, "--threads", 1, "--tier", "base")
        takes("cuda:0", mono, "--threads", 1, "--tier", "ampere")  # and ops without a row of that tier run on the base tier's
        takes("cuda:0", stereo, "--threads", 1)
        takes("cpu", stereo, "--threads", 2)
        takes("cuda:0", mono, stereo, "--threads", 2)
        takes("cuda:0", "-", "-o", pathlib.Path(folder) / "out.wav", "--threads", 4, stdin=mono.read_bytes())


def check_warm():
    """The driver's cache is named, and said once when nothing can be kept in it."""
    keeps = "the driver cannot keep translated GPU code"
    with tempfile.TemporaryDirectory() as folder:
        cache = pathlib.Path(folder) / "made" / "when needed"
        env = dict(machine(capability=80), CUDA_CACHE_PATH=str(cache), KRAIT_VERBOSE="1")
        done = krait("warm", "--for", WEIGHTS, "--tier", "base", env=env)
        said = done.stderr.decode()
        check(done.returncode == 0 and done.stdout.decode() == f"{cache}: 0.0 MB\n" and keeps not in said, f"{done.stdout} {said}")
        translated = [line for line in said.splitlines() if line.startswith("krait: device code: ")]
        check(translated and all(".base, kr_" in line and "bytes of PTX in " in line for line in translated), said)
        check(len(set(line.split(": ")[2] for line in translated)) == len(translated), f"a kernel is translated twice: {translated}")
        cache.mkdir(parents=True)
        (cache / "code").write_bytes(bytes(1_000_000))
        said = krait("warm", "--for", WEIGHTS, env=dict(env, KRAIT_VERBOSE="", CUDA_CACHE_MAXSIZE="1000000"))
        check(said.stdout.decode() == f"{cache}: 1.0 MB\n" and "CUDA_CACHE_MAXSIZE is 1.0 MB" in said.stderr.decode(), f"{said.stdout} {said.stderr}")
        homeless = {name: value for name, value in machine(capability=80).items() if name not in ("HOME", "CUDA_CACHE_PATH")}
        for broken, words in ((homeless, "neither HOME nor CUDA_CACHE_PATH is set"), (dict(env, KRAIT_VERBOSE="", CUDA_CACHE_DISABLE="1"), "CUDA_CACHE_DISABLE is 1"),
                              (dict(homeless, HOME=str(cache / "code")), "code/.nv/ComputeCache is not writable")):
            done = krait("warm", "--for", WEIGHTS, "--tier", "base", env=broken)
            said = done.stderr.decode().splitlines()
            check(done.returncode == 1 and len(said) == 2 and keeps in said[0] and all(words in line for line in said), said)
    check_error(1, "there is no GPU to translate code for", "warm", "--device", "cpu")
    check_error(1, "no-such-folder", "warm", "--for", "no-such-folder", env=machine(capability=80))


broken = {"no driver": (machine("/no/such/libcuda.so"), "no NVIDIA driver"), "init fails": (machine(init=999), "as the test asked"),
          "no visible GPU": (machine(init=100), "CUDA_VISIBLE_DEVICES"), "no GPU": (machine(count=0), "no GPU"),
          "old driver": (machine(version=8000), "CUDA 8.0"), "old GPU": (machine(capability=35), "older" if "cuda_base" in krait("info").stdout.decode() else "")}
for name, (env, words) in broken.items():
    run = ("bench", "primeknet", "--frames", "8", "--runs", "1")
    check_error(2, words, *run, "--device", "cuda", env=env)
    check_error(2, words, *run, "--no-fallback", env=env)
    check_error(2, words, *run, "--tier", "base", env=env)
    done = krait(*run, env=env)
    check(done.returncode == 0, f"{name}: the CPU does not run: {done.stderr.decode()}")
    said = done.stderr.decode()
    check(words in said and said.count("\n") == 1 if name != "no driver" else said == "", f"{name}: said {said!r}")
    listed = json.loads(krait("devices", "--json", env=env).stdout)
    check(listed["why_none"] or name == "old GPU", f"{name}: {listed}")
# Several GPUs: one process each; one line says why they ended, whichever failed.
pair = machine(count=2, capability=80)
check_error(2, "this machine has 2", "train", "--gpus", "3", env=pair)
check_error(2, "uses the first 2", "train", "--gpus", "2", "--device", "cpu", env=pair)
check_error(2, "RANK is 5", "train", env=dict(pair, RANK="5", WORLD_SIZE="2"))
check_error(2, "a launcher has already started", "train", "--gpus", "3", env=dict(pair, RANK="0", WORLD_SIZE="2"))
if "cuda_base" in krait("info").stdout.decode():  # a build with device code
    check_error(2, "no 'frobnicate'", "train", "--gpus", "2", "frobnicate=1", env=pair)
    loader = pathlib.Path("/lib64/ld-linux-x86-64.so.2")
    if loader.exists():  # as in the tarball: the processes for the GPUs are started through the loader, too
        no_leaks = dict(pair, ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0")  # the loader's own memory is unknown to it
        done = subprocess.run([loader, "--library-path", os.environ.get("LD_LIBRARY_PATH", ""), sys.argv[1], "train", "--gpus", "2", "frobnicate=1"], env=no_leaks, capture_output=True, text=True)
        check(done.returncode == 2 and "no 'frobnicate'" in done.stderr, f"through the loader: {done}")
    check_error(2, "multiple of the number of GPUs, 2", "train", "--gpus", "2", "+model=primeknet_gru_masking", "batch_size=3", env=pair)
    recordings = [f"dset.{side}={pathlib.Path(__file__).parent.parent.parent / 'demo' / name}" for side, name in (("speech_train", "clean.flac"), ("noise_train", "noisy.flac"))]
    with tempfile.TemporaryDirectory() as folder:
        check_error(1, "need NCCL", "train", "--gpus", "2", "+model=primeknet_gru_masking", *recordings, "-o", folder + "/run", env=dict(pair, KRAIT_LIBNCCL="/no/such/libnccl.so"))
tiers = json.loads(krait("devices", "--json", env=machine(capability=80)).stdout)["devices"][0]["tiers"]
if "ampere" in tiers:  # a build with device code
    for capability, tier in ((61, "base"), (75, "turing"), (86, "ampere"), (90, "hopper")):
        said = krait("devices", env=machine(capability=capability)).stdout.decode()
        check(f"uses tier {tier}: " in said, said)
    check_device_for_length()
    check_warm()
    check_error(2, "hopper: the device is older", "bench", "primeknet", "--tier", "hopper", env=machine(capability=80))
    check_error(2, "the device is older", "bench", "primeknet", "--tier", "ampere", env=machine(capability=75))
    check_error(2, "the device is older", "bench", "primeknet", "--tier", "turing", env=machine(capability=72))
    for env, row in ((machine(capability=80), "cuda_ampere"), (dict(machine(capability=80), KRAIT_TIER="base"), "cuda_base")):
        rows = json.loads(krait("selftest", "--device", "cuda", "--cases", "1", "--json", env=env).stdout)["implementations"]
        check(rows and rows[0]["implementation"].startswith(row), f"{row} is not the first: {rows[:1]}")
    rows = json.loads(krait("selftest", "--device", "cuda", "--cases", "1", "--json", "--tier", "base", env=machine(capability=80)).stdout)["implementations"]
    check(rows and all(r["implementation"].startswith(("cuda_base", "base_")) for r in rows), f"--tier base ran {rows}")
    shape = ("bench", "causal_conv1d", "--shape", "B=2,D=8,L=64,last", "--dtype", "bfloat16")
    for tier in ("base", "ampere"):
        timed = json.loads(krait(*shape, "--device", "cuda", "--tier", tier, "--json", env=machine(capability=80, l2=1 << 16)).stdout)
        check(timed["implementation"] == f"cuda_{tier}_channels_last" and timed["device"] == "GPU 0 (Fake GPU)" and timed["dtype"] == "bfloat16", timed)
        check(timed["copies"] > 1 and timed["from_graph"] and timed["host_s"] > 0 and timed["limits"]["exps_per_s"] > 0, timed)
    said = krait(*shape, "--device", "cuda", env=machine(capability=80)).stdout.decode()
    check("implementation cuda_ampere_channels_last on GPU 0 (Fake GPU)" in said and "host time" in said and max(map(len, said.split("\n"))) <= 132, said)
    check_error(2, "hopper: the device is older", *shape, "--tier", "hopper", env=machine(capability=80))
    check_error(2, "hopper: the device is older", *shape, "--device", "cuda", env=dict(machine(capability=80), KRAIT_TIER="hopper"))
    check_error(2, "hopper: the device is older", "selftest", "--device", "cuda", "--tier", "hopper", env=machine(capability=80))
    check_error(2, "not base, turing, ampere or hopper", *shape, "--tier", "volta", env=machine(capability=80))
    for dtype, tier, row in (("bfloat16", (), "ampere_tiles"), ("float32", (), "cuda_base"), ("bfloat16", ("--tier", "base"), "cuda_base"), ("float32", ("--tier", "base"), "cuda_base"),
                             ("float16", ("--tier", "turing"), "turing_tiles"), ("bfloat16", ("--tier", "turing"), "cuda_base")):
        timed = json.loads(krait("bench", "gemm", "--shape", "M=32,N=8,K=8", "--dtype", dtype, "--device", "cuda", *tier, "--json", env=machine(capability=80, l2=1 << 16)).stdout)
        check(timed["implementation"] == row and timed["host_s"] > 0, timed)
    scan = ("bench", "mamba3", "--shape", "B=1,L=64,H=2,P=16,N=16,M=4", "--device", "cuda", "--json")
    for dtype, tier, row in (("float16", "turing", "turing_chunks"), ("bfloat16", "turing", "base_chunks"), ("float16", "base", "base_chunks")):
        timed = json.loads(krait(*scan, "--dtype", dtype, "--tier", tier, env=machine(capability=80, l2=1 << 16)).stdout)
        check(timed["implementation"] == row, timed)
    check_error(2, "with --device cpu", *shape, "--device", "cuda", "--reference", env=machine(capability=80))
rows = json.loads(krait("bench", "add_norm", "--device", "cpu", "--shape", "R=4,M=64", "--impl", "all", "--json").stdout)
check([r for r in rows if r["implementation"] == "simd_scalar" and r["best_s"] > 0] and [r for r in rows if "capability" in r.get("refuses", "")], rows)
timed = json.loads(krait("bench", "add_norm", "--device", "cpu", "--shape", "R=4,M=64", "--impl", "simd_scalar", "--json").stdout)
check(timed["implementation"] == "simd_scalar", timed)
small = "B=1,L=64,H=2,P=16,N=16,G=1,S=0"  # S=0 is among ssd's own sizes
check(krait("bench", "ssd", "--device", "cpu", "--shape", small, "--json").returncode == 0, "a size of 0 that is usual may be given")
check_error(2, "'L=0' is not a size", "bench", "ssd", "--device", "cpu", "--shape", "L=0")
check_error(2, "add_norm has no implementation 'none'", "bench", "add_norm", "--device", "cpu", "--impl", "none")
check_error(2, "there is no operator 'none'", "bench", "none", "--device", "cpu", "--impl", "all")
check_error(2, "--dtype is 'int8'", "bench", "add_norm", "--dtype", "int8")
timed = json.loads(krait("bench", "add_norm", "--device", "cpu", "--shape", "R=4,M=64", "--json").stdout)
check(timed["copies"] == 0 and timed["host_s"] == 0 and "threads" in timed["device"], timed)
finish()
