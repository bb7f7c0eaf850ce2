"""krait train as two processes on emulated GPUs (gradients summed by fake_nccl.c), started by torchrun's variables, by
mpirun, and in two network namespaces, as on two machines: the same losses to the last digit, and every process reads the
same checkpoint. Usage: launchers.py KRAIT LIBCUDA LIBNCCL."""
import json, os, shutil, subprocess, sys, tempfile

krait, libcuda, libnccl = (os.path.abspath(a) for a in sys.argv[1:4])
root = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
asan = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
env = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_", "SLURM_"))}
env |= {"KRAIT_LIBCUDA": libcuda, "KRAIT_LIBNCCL": libnccl, "ASAN_OPTIONS": "detect_leaks=0", "KRAIT_THREADS": "1",
        "KR_FAKE_CUDA": "capability=80,shared=98304,multiprocessors=16,count=2"}
preload = {"LD_PRELOAD": asan} # of the program alone: the emulated kernels are checked by AddressSanitizer
speech, noise = (os.path.join(root, "demo", "train", d) for d in ("speech", "noise"))
model = {"fft_len": 16, "dense_channel": 4, "dense_depth": 1, "num_tsblock": 1, "time_block_num": 1, "freq_block_num": 1,
         "freq_block_kernel": "[3]", "gru_hidden_size": 4}
settings = ["+model=primeknet_gru_masking", f"dset.speech_train={speech}", f"dset.noise_train={noise}",
            *(f"model.param.{k}={v}" for k, v in model.items()), "segment=128", "stride=12800", "shift=0", "batch_size=2",
            "loss.metric=0", "precision=float32", "lr=1e-4", "epochs=1", "num_prints=100000"]


def train(folder, *more):
    return [krait, "train", *settings, *more, "-o", folder]


def losses(folder):
    lines = [json.loads(line) for line in open(os.path.join(folder, "log.jsonl"))]
    return [(line["step"], line["total"], line["gradient_norm"]) for line in lines]


def variables(rank, port, address="127.0.0.1"):
    return preload | {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
                      "MASTER_ADDR": address, "MASTER_PORT": str(port)}


def both(commands):
    """Each is (command, variables); both end, and their output is one line each where something is wrong."""
    running = [subprocess.Popen(c, env=env | v, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for c, v in commands]
    said = [p.communicate(timeout=120)[0] for p in running]
    assert all(p.returncode == 0 for p in running), said
    return said


def check_mpirun(tmp, port, want):
    mpirun = shutil.which("mpirun")
    if not mpirun: return print("skipped: no mpirun (Debian's openmpi-bin)")
    if "Open MPI" not in subprocess.run([mpirun, "--version"], capture_output=True, text=True).stdout: return print("skipped: mpirun is not Open MPI's")
    folder = os.path.join(tmp, "mpirun")
    start = [mpirun, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2", "-x", "LD_PRELOAD=" + asan, "-x", f"MASTER_PORT={port}"]
    for steps, more in ((2, []), (3, ["--resume"])):
        done = subprocess.run(start + ([krait, "train", *more, "--steps", str(steps), "-o", folder] if more else train(folder, "--steps", "2")),
                              env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("step 3/3") == 1, done.stdout # one process reports
    assert losses(folder) == want, (losses(folder), want)
    print("mpirun: the losses of two processes by variables, resumed after two steps")


def namespaces():
    """Two, joined by a pair of interfaces; or why not."""
    names, links = [f"krait{os.getpid()}{x}" for x in "ab"], [f"kr{os.getpid()}{x}" for x in "ab"]
    if not shutil.which("ip"): return None, "no program ip (Debian's iproute2)"
    steps = [["netns", "add", n] for n in names] + [["link", "add", links[0], "netns", names[0], "type", "veth", "peer", "name", links[1], "netns", names[1]]]
    for i, (name, link) in enumerate(zip(names, links)):
        steps += [["-n", name, "addr", "add", f"10.77.0.{i + 1}/24", "dev", link], ["-n", name, "link", "set", link, "up"], ["-n", name, "link", "set", "lo", "up"]]
    for step in steps:
        done = subprocess.run(["ip", *step], capture_output=True, text=True)
        if done.returncode == 0: continue
        for name in names: subprocess.run(["ip", "netns", "del", name], capture_output=True)
        return None, f"ip {' '.join(step)}: {done.stderr.strip()}"
    return names, None


def check_namespaces(tmp, port, want):
    names, why = namespaces()
    if not names: return print("skipped: two network namespaces:", why)
    folder = os.path.join(tmp, "namespaces")
    try:
        both([(["ip", "netns", "exec", name, *train(folder, "--steps", "3")], variables(rank, port, "10.77.0.1")) for rank, name in enumerate(names)])
        assert losses(folder) == want, (losses(folder), want)
    finally:
        for name in names: subprocess.run(["ip", "netns", "del", name], capture_output=True)
    print("two network namespaces: the same losses")


with tempfile.TemporaryDirectory() as tmp:
    port, folder = 20000 + os.getpid() % 20000, os.path.join(tmp, "variables")
    said = both([(train(folder, "--steps", "3"), variables(rank, port)) for rank in range(2)])
    if "no device code" in "".join(said): sys.exit(77)
    want = losses(folder)
    assert [step for step, _, _ in want] == [1, 2, 3], want
    assert said[1] == "", said[1]
    check_mpirun(tmp, port + 1, want)
    check_namespaces(tmp, port + 2, want)
