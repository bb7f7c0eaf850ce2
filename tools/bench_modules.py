#!/usr/bin/env python3
"""Times Mamba and Mamba2 modules on a GPU: krait's drop-in against mamba_ssm where installed, else against recorded times.

    PYTHONPATH=python tools/bench_modules.py [--module Mamba|Mamba2] [--shapes 768,8,2048 ...] [--all] [--dtype bfloat16] [--profile]
        [--peers FILE.json] [--json OUT.json] [--seconds N]

A shape is d_model,B,L (of both modules, unless --module names one); --all takes {B 1, 8, 64} x {L 64, 512, 2048, 16384} x {d_model 64, 256, 768, 2560}.
Medians of triton.testing.do_bench in milliseconds, of a forward call without gradients and of forward + backward, including autograd and Python overhead:
"both" accumulates into existing gradients, which costs torch a pass over each, "anew" starts without them, as a training step does after zero_grad(). Then
the host time per call: a loop of calls until the last is launched. --profile adds the time of each kernel. Shapes that exceed the GPU's memory are reported
as such; after --seconds no new shape is started. FILE.json: {"Mamba module...": {"Mamba(768) B8 L2048 ...": [ms, ms]}, "Mamba2 module": {...}}."""
import argparse, gc, importlib, importlib.util, json, math, os, re, sys, time

import torch
from triton.testing import do_bench

USUAL = {"Mamba": ((768, 8, 2048), (2560, 2, 2048), (64, 402, 100)), "Mamba2": ((768, 8, 2048), (2560, 2, 4096), (512, 1, 1024))}
ALL = [(d, b, length) for d in (64, 256, 768, 2560) for b in (1, 8, 64) for length in (64, 512, 2048, 16384)]
DROPIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python", "krait", "dropin")


def import_modules(folder):
    """{name: module of mamba_ssm} from a folder, or from Python's path; None if not found."""
    packages = "mamba_ssm", "causal_conv1d", "selective_scan_cuda", "causal_conv1d_cuda"
    for name in [n for n in sys.modules if n.split(".")[0] in packages]:
        del sys.modules[name]
    if folder:
        sys.path.insert(0, folder)
    try:
        return {"Mamba": importlib.import_module("mamba_ssm.modules.mamba_simple").Mamba, "Mamba2": importlib.import_module("mamba_ssm.modules.mamba2").Mamba2}
    except ImportError:
        return None
    finally:
        if folder:
            sys.path.remove(folder)


def calls_of(kind, shape, dtype):
    """-> forward, forward + backward, the leaves of the graph."""
    d, b, length = shape
    torch.manual_seed(0)
    module = kind(d, device="cuda", dtype=dtype)
    x = torch.randn(b, length, d, device="cuda", dtype=dtype, requires_grad=True)
    dout = torch.randn_like(x)

    def forward():
        with torch.no_grad():
            return module(x)

    def both():
        module(x).backward(dout)
    return forward, both, [x, *module.parameters()]


def host_ms(call, took_ms):
    n = max(2, min(50, int(100 / took_ms)))
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(n):
        call()
    took = (time.perf_counter() - start) / n * 1e3
    torch.cuda.synchronize()
    return took


def profile(call, n=8):
    from torch.profiler import ProfilerActivity, profile as record
    call()
    torch.cuda.synchronize()
    with record(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(n):
            call()
        torch.cuda.synchronize()
    events = [e for e in trace.key_averages() if e.self_device_time_total > 0]
    rows = sorted(((e.self_device_time_total / n, e.count / n, e.key) for e in events), reverse=True)
    print("    %9.1f us in all" % sum(us for us, _, _ in rows))
    for us, count, name in rows[:24]:
        print("    %9.1f us x %-4.3g %s" % (us, count, name[:120]))


def time_module(kind, shape, dtype, with_profile):
    """[forward, both, anew, host time of the first two]: milliseconds, NaN where GPU memory does not suffice."""
    times = [math.nan] * 5
    try:
        *calls, leaves = calls_of(kind, shape, dtype)
        for i, call in enumerate(calls):
            call()
            times[i] = do_bench(call, warmup=10, rep=50, return_mode="median")
            times[3 + i] = host_ms(call, times[i])
            if with_profile:
                profile(call)
        times[2] = do_bench(call, warmup=10, rep=50, grad_to_none=leaves, return_mode="median")
    except torch.cuda.OutOfMemoryError:
        pass
    free_memory()
    return times


def free_memory():
    gc.collect()
    torch.cuda.empty_cache()


def recorded(path):
    """{(module, shape): [forward, forward + backward]} from a file of peers' times."""
    found = {}
    for group, rows in json.load(open(path, encoding="utf-8")).items():
        kind, _, about = group.partition(" ")
        for name, times in rows.items() if about.startswith("module") else ():
            found[kind, tuple([int(n) for n in re.match(r"\w+\((\d+)\) B(\d+) L(\d+)", name).groups()])] = times
    return found


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--module", choices=sorted(USUAL))
    ap.add_argument("--shapes", nargs="*", default=[])
    ap.add_argument("--all", action="store_true")
    ap.add_argument("--dtype", default="bfloat16")
    ap.add_argument("--profile", action="store_true")
    ap.add_argument("--peers")
    ap.add_argument("--json")
    ap.add_argument("--seconds", type=float, default=math.inf)
    a = ap.parse_args()
    found = importlib.util.find_spec("mamba_ssm")
    upstream = import_modules(None) if found and "krait" not in (found.origin or "") else None
    ours, peers, out = import_modules(DROPIN), recorded(a.peers) if a.peers else {}, {}
    shapes = [tuple(int(n) for n in s.split(",")) for s in a.shapes] or (ALL if a.all else None)
    work = [(kind, shape) for kind in sorted(USUAL) if a.module in (None, kind) for shape in shapes or USUAL[kind]]
    work.sort(key=lambda one: math.prod(one[1]))
    began = time.monotonic()
    print("%-28s %32s %21s %8s %8s   host %15s" % ("ms", "krait fwd, both, anew", "mamba_ssm", "ratio", "", "krait fwd, both"))
    for kind, shape in work:
        if time.monotonic() - began > a.seconds:
            print("not begun: %s(%d) B%d L%d" % (kind, *shape))
            continue
        mine = time_module(ours[kind], shape, getattr(torch, a.dtype), a.profile)
        theirs = time_module(upstream[kind], shape, getattr(torch, a.dtype), a.profile)[:2] if upstream else peers.get((kind, shape))
        out["%s %d,%d,%d" % (kind, *shape)] = {"krait": mine, "mamba_ssm": theirs}
        ratios = " %10.3f %10.3f %8.2f %8.2f" % (*theirs, theirs[0] / mine[0], theirs[1] / mine[1]) if theirs else " " * 40
        text = "%10.3f %10.3f %10.3f" % tuple(mine[:3]) + ratios
        print("%-28s %s   %10.3f %8.3f" % ("%s(%d) B%d L%d" % (kind, *shape), text, *mine[3:]), flush=True)
    if a.json:
        json.dump(out, open(a.json, "w", encoding="utf-8"), indent=1)


if __name__ == "__main__":
    main()
