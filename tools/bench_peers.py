#!/usr/bin/env python3
"""Times krait beside other implementations of the same work in one run, on a GPU or a CPU.

    bench_peers.py attention|gemm|few-rows|ssd|scan|conv|norm [--krait PROGRAM] [--device cuda|cpu] [--dtype T]
    bench_peers.py mamba3 [--triton FOLDER]   Mamba-3's scan (SISO) by mamba_ssm's function, forward and both
    bench_peers.py modules [--device cuda|cpu] [--module Mamba|Mamba2|Mamba3] [--shapes D,B,L ...] [--all] [--profile] [--tf32]
    bench_peers.py memory [--dtype T] peak device memory of a training step of the modules and of attention
    bench_peers.py host [--device cuda|cpu]   overhead of a Python call over the C call, tiny tensors
    bench_peers.py language-models FILE.gguf ...  on a CPU, beside llama.cpp (the package xllamacpp)
    bench_peers.py denoiser WEIGHTS
    bench_peers.py train-lm [--module Mamba|Mamba2]  steps of mamba_ssm's language models, with torch's loss and krait's
    bench_peers.py train-step|train-module

Operators: `krait bench`'s time of each tier and of the peer: PyTorch (cuDNN, FlashAttention-2, cuBLAS, torch.compile)
and, with --triton FOLDER, mamba_ssm's Triton kernels; for ssd, scan and conv also times of an earlier run (--peers
FILE.json). What krait's implementations compute is checked by `krait selftest`, not here. Modules: the drop-ins and
mamba_ssm (GPU), mambapy and transformers (CPU), where installed; on a CPU with the same weights and checked results.
They need the package: PYTHONPATH=python:python/krait/dropin KRAIT_LIBRARY=build/src/libkrait.so. --json FILE keeps the
times. Medians on a GPU, the fastest of interleaved runs on a CPU."""
import argparse
import contextlib
import functools
import gc
import importlib
import importlib.util
import itertools
import json
import math
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

ROOT = pathlib.Path(__file__).resolve().parent.parent
DROPIN = str(ROOT / "python/krait/dropin")
results, options = {}, None


# ---- operators: krait's time by its program, the peer's in this process ----------------------------------------------
def krait_ms(op, shape, tier, more=()):
    command = [*shlex.split(options.krait), "bench", op, "--shape", shape, "--dtype", options.dtype, "--device", options.device, "--no-fallback", "--json", *more]
    command += ["--threads", str(options.threads)] if options.device == "cpu" else []
    done = subprocess.run(command + (["--tier", tier] if tier else []), capture_output=True, text=True)
    if done.returncode:
        return "(%s)" % (done.stderr.strip().splitlines() or ["failed"])[-1][:60]
    return 1e3 * json.loads(done.stdout)["median_s"]


def peer_ms(call):
    """The median: on a GPU with an empty L2 cache, as `krait bench` times."""
    try:
        call()
        if options.device == "cuda":
            import triton
            return triton.testing.do_bench(call, warmup=10, rep=50, return_mode="median")
        times = []
        while sum(times) < 0.5 or len(times) < 5:
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return 1e3 * statistics.median(times)
    except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
        return "(%s)" % str(error).splitlines()[0][:60]


def report(op, shape, peers, rate=None, more=()):
    """One line: milliseconds, or rate(ms) if given, of every tier and every peer."""
    times = {"krait" + (" " + tier if tier else ""): krait_ms(op, shape, tier, more) for tier in tiers()}
    times.update({name: call if isinstance(call, float) else peer_ms(call) for name, call in peers.items()})
    results["%s %s" % (op, shape)] = times
    shown = {name: t if isinstance(t, str) else "%.4g" % (rate(t) if rate else t) for name, t in times.items()}
    print("%-18s %-52s %s" % (op, shape, "  ".join("%s %s" % one for one in shown.items())), flush=True)


def tiers():
    return options.tiers.split(",") if options.device == "cuda" else [""]


def dtype():
    return getattr(torch, options.dtype)


def random(*shape, **how):
    return torch.randn(*shape, device=options.device, dtype=how.get("dtype", dtype()))


def small(sizes):
    """On a CPU: the same kinds of shapes, a hundredth of the work."""
    return sizes if options.device == "cuda" else [tuple(max(1, s // 16) if isinstance(s, int) and s >= 1024 else s for s in one) for one in sizes]


ATTENTION = [(2, 16, 16, 8192, 8192, 128, 1), (4, 16, 16, 4096, 4096, 128, 0), (2, 32, 32, 8192, 8192, 64, 1), (4, 32, 32, 4096, 4096, 64, 0), (16, 16, 16, 1024, 1024, 128, 1), (1, 16, 16, 16384, 16384, 128, 0)]
DECODE = [(32, 32, 8, 1, 4096, 128, 0), (1, 32, 8, 1, 65536, 128, 0)]


def attention():
    """TFLOP/s; with one query GB/s of keys and values."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    backends = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FA2": SDPBackend.FLASH_ATTENTION} if options.device == "cuda" else {"torch": SDPBackend.FLASH_ATTENTION}
    for B, H, Hk, Lq, Lk, D, causal in small(ATTENTION + DECODE):
        q, k, v = random(B, H, Lq, D), random(B, Hk, Lk, D), random(B, Hk, Lk, D)
        shape = "B=%d,H=%d,Hk=%d,Lq=%d,Lk=%d,D=%d,Dv=%d%s" % (B, H, Hk, Lq, Lk, D, D, ",causal" if causal else "")
        flops, moved = 4 * B * H * Lq * Lk * D * (0.5 if causal else 1), 2 * k.numel() * k.element_size()

        def under(backend, call):
            def run():
                with sdpa_kernel(backend):
                    return call()
            return run
        forward = {n: under(b, lambda: F.scaled_dot_product_attention(q, k, v, is_causal=bool(causal), enable_gqa=H != Hk)) for n, b in backends.items()}
        report("attention", shape, forward, (lambda ms: 1e-6 * moved / ms) if Lq == 1 else lambda ms: 1e-9 * flops / ms)
        if Lq > 1 and not options.forward_only:
            leaves, d = [t.detach().requires_grad_() for t in (q, k, v)], torch.randn_like(q)
            outs = {n: under(b, lambda: F.scaled_dot_product_attention(*leaves, is_causal=bool(causal)))() for n, b in backends.items()}
            report("attention_bwd", shape, {n: lambda out=out: torch.autograd.grad(out, leaves, d, retain_graph=True) for n, out in outs.items()}, lambda ms: 2.5e-9 * flops / ms)


PRODUCTS = [(8192, 8192, 8192), (16384, 3072, 768), (16384, 80, 1536), (16384, 1536, 48), (16384, 768, 1536), (16384, 10240, 2560), (16384, 192, 5120), (16384, 5120, 160), (16384, 2560, 5120)]
FEW = [(8192, 8192), (50280, 768), (50280, 2560), (10240, 2560), (2560, 5120), (3072, 768)]


def gemm():
    """TFLOP/s; 8192 cubed, and the products of mamba-130m and mamba-2.8b at 16,384 rows."""
    for m, n, k in small(PRODUCTS):
        a, b = random(m, k), random(n, k)
        report("gemm", "M=%d,N=%d,K=%d" % (m, n, k), {"torch": lambda: a @ b.t()}, lambda ms: 2e-9 * m * n * k / ms)


def few_rows():
    """GB/s of weights, as in decoding; on a GPU from memory, since the caches are emptied between calls."""
    for (n, k), m in itertools.product(small(FEW), (1, 2, 4, 8)):
        a, b = random(m, k), random(n, k)
        report("gemm", "M=%d,N=%d,K=%d" % (m, n, k), {"torch": lambda: a @ b.t()}, lambda ms: 1e-6 * a.element_size() * (n * k + m * k + m * n) / ms)


def recorded(group, name):
    """{direction: ms} of an earlier run's file: {group: {name: [forward, both]}} or {name: {"ms": ...}}."""
    if not options.peers:
        return [None, None]
    peers = json.loads(pathlib.Path(options.peers).read_text())
    if group:
        return peers.get(group, {}).get(name, [None, None])
    return [peers.get("%s %s" % (name, d), {}).get("ms") for d in ("fwd", "bwd")]


def with_recorded(op, shape, times, calls=(None, None)):
    """Forward and gradient, each beside a peer's call or recorded time."""
    for suffix, ms, call in list(zip(("", "_bwd"), times, calls))[:1 if options.forward_only else 2]:
        report(op + suffix, shape, {**({"Triton": call} if call else {}), **({"recorded": float(ms)} if ms else {})})


SSD = [(8, 4096, 80, 64, 128), (1, 2048, 24, 64, 128), (1, 65536, 80, 64, 128), (32, 512, 24, 64, 128), (4, 4096, 128, 64, 64), (8, 2048, 64, 64, 256)]
SSD_SWEEP = [(b, length, h, 64, n) for n, (b, length), h in itertools.product(
    (128, 64), ((1, 512), (1, 2048), (1, 4096), (1, 16384), (1, 65536), (2, 512), (4, 1024), (8, 2048), (16, 512), (64, 256), (2, 100), (2, 1000), (4, 3137), (8, 1500), (16, 99)), (8, 24, 48, 80)) if b * length * h <= 1 << 22]


def triton_ssd(shape):
    """Forward call and gradient of mamba_ssm's kernels, with chunks of 256 as in its module."""
    if not options.triton:
        return None, None
    if options.triton not in sys.path:
        sys.path.insert(0, options.triton)
    combined = importlib.import_module("mamba_ssm.ops.triton.ssd_combined")
    b, length, h, p, n = shape
    first = [random(b, length, h, p), random(b, length, h) - 2, -torch.rand(h, device="cuda") * 8 - 0.5, random(b, length, 1, n), random(b, length, 1, n)]
    rest = dict(D=random(h, dtype=torch.float32), dt_bias=random(h, dtype=torch.float32), dt_softplus=True)
    out = combined._mamba_chunk_scan_combined_fwd(*first, 256, **rest)[0]
    dout = torch.randn_like(out)
    return lambda: combined._mamba_chunk_scan_combined_fwd(*first, 256, **rest), lambda: combined._mamba_chunk_scan_combined_bwd(dout, *first, out, 256, **rest)


def ssd():
    for shape in small(SSD + (SSD_SWEEP if options.all else [])):
        name = "ssd B%d L%d H%d P%d N%d bf16" % shape
        with_recorded("ssd", "B=%d,L=%d,H=%d,P=%d,N=%d" % shape, recorded("ssd (mamba-ssm 2.3.2 Triton), fwd, bwd", name), triton_ssd(shape))


SCANS = [(8, 4096, 2048, 16), (1, 1536, 65536, 16), (402, 128, 100, 16), (1, 1152, 3137, 16), (1, 128, 1048576, 16), (8, 4096, 2048, 64), (1, 4096, 512, 16)]
CONVS = [(8, 4096, 2048), (402, 128, 100), (1, 1536, 65536)]


def scan():
    for shape in small(SCANS):
        with_recorded("selective_scan", "B=%d,D=%d,L=%d,N=%d" % shape, recorded(None, "selscan B%d D%d L%d N%d %s" % (*shape, options.dtype)))


def conv():
    """Beside torch's convolution; both layouts of krait's."""
    for B, D, L in small(CONVS):
        x, w, b = random(B, D, L), random(D, 1, 4), random(D)
        torchs = lambda: F.silu(F.conv1d(x, w, b, padding=3, groups=D)[..., :L])
        for last in ("", ",last"):
            report("causal_conv1d", "B=%d,D=%d,L=%d,W=4%s" % (B, D, L, last), {"torch": torchs, **({"recorded": float(ms)} if (ms := recorded(None, "conv1d B%d D%d L%d %s" % (B, D, L, options.dtype))[0]) else {})})


NORMS = [(16384, 768), (65536, 256), (16384, 4096), (8192, 8192), (16384, 1001)]


def norm():
    """Sum and layer norm in one, beside torch's and, with --all, torch.compile's."""
    for R, M in small(NORMS):
        x, other, w, b = random(R, M), random(R, M), random(M), random(M)

        def plain():
            v = x + other
            return v, F.layer_norm(v, (M,), w, b)
        report("add_norm", "R=%d,M=%d" % (R, M), {"torch": plain, **({"torch.compile": torch.compile(plain)} if options.all else {})})


# ---- modules ---------------------------------------------------------------------------------------------------------
USUAL = {"Mamba": ((768, 8, 2048), (2560, 2, 2048), (64, 402, 100)), "Mamba2": ((768, 8, 2048), (2560, 2, 4096), (512, 1, 1024)), "Mamba3": ((768, 8, 2048), (2560, 2, 4096))}
ON_CPU = {"Mamba": ((256, 1, 256),), "Mamba2": ((256, 1, 256),)}
EVERY = [(d, b, length) for d in (64, 256, 768, 2560) for b in (1, 8, 64) for length in (64, 512, 2048, 16384)]


def import_modules(folder):
    """{name: module of mamba_ssm} from a folder, or from Python's path; {} if not found."""
    packages = "mamba_ssm", "causal_conv1d", "selective_scan_cuda", "causal_conv1d_cuda"
    for name in [n for n in sys.modules if n.split(".")[0] in packages]:
        del sys.modules[name]
    kept = list(sys.path)
    sys.path[:] = [folder] + kept if folder else [p for p in kept if os.path.realpath(p or ".") != os.path.realpath(DROPIN)]
    found = importlib.util.find_spec("mamba_ssm")
    if not folder and (not found or "krait" in (found.origin or "")):
        sys.path[:] = kept
        return {}
    try:
        kinds = {"Mamba": "mamba_simple", "Mamba2": "mamba2", "Mamba3": "mamba3"}
        return {kind: getattr(importlib.import_module("mamba_ssm.modules." + name), kind) for kind, name in kinds.items()}
    except ImportError:
        return {}
    finally:
        sys.path[:] = kept


@contextlib.contextmanager
def without_dropins():
    """transformers uses packages of these names, if found, when its models are first imported."""
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] in ("mamba_ssm", "causal_conv1d")}
    sys.modules.update(mamba_ssm=None, causal_conv1d=None)
    try:
        yield
    finally:
        for name in ("mamba_ssm", "causal_conv1d"):
            del sys.modules[name]
        sys.modules.update(kept)


def mambapy_block(width):
    from mambapy.mamba import MambaBlock, MambaConfig
    return MambaBlock(MambaConfig(d_model=width, n_layers=1))


def transformers_mixer(width):
    with without_dropins():
        import transformers
        from transformers.models.mamba.modeling_mamba import MambaMixer
    return MambaMixer(transformers.MambaConfig(hidden_size=width, num_hidden_layers=1), 0)


def transformers_mixer2(width):
    with without_dropins():
        import transformers
        from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
    return Mamba2Mixer(transformers.Mamba2Config(hidden_size=width, num_hidden_layers=1, num_heads=width // 32, head_dim=64, n_groups=1, use_bias=False), 0)


CPU_PEERS = {"Mamba": {"mambapy": mambapy_block, "transformers": transformers_mixer}, "Mamba2": {"transformers": transformers_mixer2}}


def calls_of(module, shape):
    """Forward; forward and backward; the leaves of the graph."""
    d, b, length = shape
    x = random(b, length, d).requires_grad_()
    dout = torch.randn_like(x)

    def forward():
        with torch.no_grad():
            return module(x)

    def both():
        module(x).backward(dout)
    return forward, both, [x, *module.parameters()]


def host_ms(call, took_ms):
    """Of a loop of calls, until the last is launched."""
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
    rows = sorted(((e.self_device_time_total / n, e.count / n, e.key) for e in trace.key_averages() if e.self_device_time_total > 0), reverse=True)
    print("    %9.1f us in all" % sum(us for us, _, _ in rows))
    for us, count, name in rows[:24]:
        print("    %9.1f us x %-4.3g %s" % (us, count, name[:120]))


def time_on_gpu(kind, shape):
    """Forward, both, both into no gradients, host time of the first two: milliseconds, NaN where memory is short."""
    from triton.testing import do_bench
    times = [math.nan] * 5
    try:
        torch.manual_seed(0)
        *calls, leaves = calls_of(kind(shape[0], device="cuda", dtype=dtype()), shape)
        for i, call in enumerate(calls):
            call()
            times[i] = do_bench(call, warmup=10, rep=50, return_mode="median")
            times[3 + i] = host_ms(call, times[i])
            if options.profile:
                profile(call)
        times[2] = do_bench(call, warmup=10, rep=50, grad_to_none=leaves, return_mode="median")
    except torch.cuda.OutOfMemoryError:
        pass
    gc.collect()
    torch.cuda.empty_cache()
    return times


def import_siso(folder):
    """mamba_ssm's function of that folder."""
    import_modules(folder)
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("mamba_ssm.ops.triton.mamba3.mamba3_siso_combined").mamba3_siso_combined
    finally:
        sys.path.remove(folder)


def mamba3():
    """The drop-in's and, with --triton, mamba_ssm's own, whose autotuner takes minutes: milliseconds and relative differences; peak memory of both passes above what was there, MiB."""
    functions = {name: import_siso(folder) for name, folder in (("krait", DROPIN), ("Triton", options.triton)) if folder}
    for b, length, h, p, n in small([(8, 2048, 24, 64, 128), (2, 4096, 80, 64, 128)]):
        dt = torch.rand(b, h, length, device=options.device) * 0.1 + 0.001
        ones = torch.ones(h, n, device=options.device)
        given = [random(b, length, 1, n), random(b, length, 1, n), random(b, length, h, p), -dt * (torch.rand_like(dt) + 0.5), dt, random(b, h, length), ones, ones.clone(),
                 random(b, length, h, n // 4), torch.ones(h, device=options.device), random(b, length, h, p)]
        leaves, dout, outs = [t.requires_grad_() for t in given], random(b, length, h, p), {}
        for name, function in functions.items():
            both = lambda: torch.autograd.grad(function(*leaves), leaves, dout)
            with torch.no_grad():
                times = [peer_ms(lambda: function(*given))]
            times.append(peer_ms(both))
            if options.device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated() if options.device == "cuda" else 0
            grads = both()
            peak = (torch.cuda.max_memory_allocated() - before) / 2 ** 20 if options.device == "cuda" else 0
            outs[name] = [t.float() for t in (function(*leaves).detach(), *grads)]
            results["mamba3 B%d L%d H%d P%d N%d %s" % (b, length, h, p, n, name)] = times
            apart = ["%.1e" % ((x - y).norm() / y.norm()).item() for x, y in zip(outs[name], outs["krait"])]
            print("B%d L%d H%d P%d N%d %-7s" % (b, length, h, p, n, name), "%.3f; %.3f ms" % tuple(times), "%.0f MiB" % peak, *(apart if name != "krait" else []), flush=True)


def other_ways(kind, shape):
    """Both, with krait.graphed, and with autograd in the calling thread: milliseconds."""
    from triton.testing import do_bench
    import krait
    times = []
    for graphed, threads in ((True, True), (False, False)):
        torch.manual_seed(0)
        module = kind(shape[0], device="cuda", dtype=dtype())
        _, both, _ = calls_of(krait.graphed(module) if graphed else module, shape)
        with torch.autograd.set_multithreading_enabled(threads):
            both()
            times.append(do_bench(both, warmup=10, rep=50, return_mode="median"))
    return times


def time_on_cpu(name, kind, shape):
    """{who: [forward, both]} in milliseconds of processor time, of the same weights; results are compared first."""
    torch.manual_seed(0)
    blocks = {"krait": kind(shape[0])}
    x = torch.randn(shape[1], shape[2], shape[0])
    for who, make in CPU_PEERS[name].items():
        try:
            other = make(shape[0])
        except ImportError as error:
            print("%s left out: %s" % (who, error))
            continue
        other.load_state_dict(blocks["krait"].state_dict())
        with torch.no_grad():
            error = float((other(x) - blocks["krait"](x)).norm() / blocks["krait"](x).norm())
        if error > 1e-3:
            raise SystemExit("%s gives other results: relative error %.1e" % (who, error))
        blocks[who] = other
    best = {who: [math.inf, math.inf] for who in blocks}
    for _ in range(options.runs):
        for who, block in blocks.items():
            for i, call in enumerate(calls_of(block, shape)[:2]):
                start = time.process_time()
                call()
                best[who][i] = min(best[who][i], 1e3 * (time.process_time() - start))
    return best


def modules():
    upstream = import_modules(None) if options.device == "cuda" else {}
    ours = import_modules(DROPIN)
    shapes = [tuple(int(n) for n in s.split(",")) for s in options.shapes] or (EVERY if options.all else None)
    usual = USUAL if options.device == "cuda" else ON_CPU
    work = [(name, shape) for name in sorted(usual) if options.module in (None, name) for shape in shapes or usual[name]]
    print("ms: forward, both" + (", both into no gradients, host time of the first two; krait's both graphed, and in one thread" if options.device == "cuda" else " (processor time, %d threads)" % torch.get_num_threads()))
    for name, shape in sorted(work, key=lambda one: math.prod(one[1])):
        if options.device == "cuda":
            times = {"krait": time_on_gpu(ours[name], shape) + other_ways(ours[name], shape), **({"mamba_ssm": time_on_gpu(upstream[name], shape)} if upstream else {})}
        else:
            times = time_on_cpu(name, ours[name], shape)
        results["%s %d,%d,%d" % (name, *shape)] = times
        ratios = ["%.2f; %.2f times krait's" % (t[0] / times["krait"][0], t[1] / times["krait"][1]) for who, t in times.items() if who != "krait"]
        print("%-26s %s  %s" % ("%s(%d) B%d L%d" % (name, *shape), "  ".join("%s %s" % (who, " ".join("%.3f" % v for v in t)) for who, t in times.items()), "  ".join(ratios)), flush=True)


# ---- device memory of a training step --------------------------------------------------------------------------------
def step_mib(make):
    """Peak of a step's memory above what was there before it, outputs and gradients included: of torch's allocator, and of the whole device, in
    which krait's own memory counts as well. make() -> (forward, leaves)."""
    try:
        torch.manual_seed(0)
        forward, leaves = make()
        dout = torch.randn_like(forward())

        def step():
            forward().backward(dout)
            for leaf in leaves:
                leaf.grad = None
        step()  # device code is loaded, calls are packed
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before, free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        # the allocator keeps what it took until it is told otherwise
        return [(torch.cuda.max_memory_allocated() - before) / 2 ** 20, (free - torch.cuda.mem_get_info()[0]) / 2 ** 20]
    except torch.cuda.OutOfMemoryError:
        return [math.nan] * 2
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def module_step(kind, shape):
    d, b, length = shape
    module, x = kind(d, device="cuda", dtype=dtype()), random(b, length, d).requires_grad_()
    return lambda: module(x), [x, *module.parameters()]


def attention_step(attend, shape):
    leaves = [random(*shape).requires_grad_() for _ in range(3)]
    return lambda: attend(*leaves), leaves


def memory():
    upstream, ours = import_modules(None), import_modules(DROPIN)
    from krait.ops import scaled_dot_product_attention
    ways = {"krait": scaled_dot_product_attention, "torch": F.scaled_dot_product_attention}
    work = [("%s(%d) B%d L%d" % (name, *shape), {who: functools.partial(module_step, kinds[name], shape) for who, kinds in (("krait", ours), ("mamba_ssm", upstream)) if kinds})
            for name in sorted(USUAL) for shape in USUAL[name][:2]]
    work += [("attention B1 H16 L%d D%d causal" % (length, d), {who: functools.partial(attention_step, functools.partial(attend, is_causal=True), (1, 16, length, d)) for who, attend in ways.items()})
             for length in (8192, 32768) for d in (64, 128)]
    print("MiB above what was there: torch's allocator, device")
    for name, makes in work:
        results[name] = {who: step_mib(make) for who, make in makes.items()}
        print("%-36s %s" % (name, "  ".join("%s %.0f %.0f" % (who, *mib) for who, mib in results[name].items())), flush=True)


# ---- host time of a call from Python ---------------------------------------------------------------------------------
def captured_call(module, attribute, function):
    """The bare call of the library's plan with exactly the arguments `function` passes; keeps its tensors alive."""
    operator = getattr(importlib.import_module("krait.ops." + module), attribute)
    function()
    run_plan, seen = operator.run_plan, []

    def spy(*args):
        seen[:] = args
        return run_plan(*args)
    operator.run_plan = spy
    kept = function()
    operator.run_plan = run_plan
    return lambda: (run_plan(*seen), kept)


def host_cases():
    from causal_conv1d import causal_conv1d_fn, causal_conv1d_update
    from causal_conv1d.causal_conv1d_varlen import causal_conv1d_varlen_states
    from mamba_ssm.ops.selective_scan_interface import mamba_inner_fn_no_out_proj, selective_scan_fn
    from mamba_ssm.ops.triton.layer_norm import layer_norm_fn, rms_norm_fn
    from mamba_ssm.ops.triton.layernorm_gated import rmsnorm_fn
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update
    from flash_attn import flash_attn_func
    q = torch.randn(1, 64, 2, 64).to(torch.bfloat16 if options.device == "cuda" else torch.float32)
    yield "flash_attn_func", "attention", "FORWARD", lambda: flash_attn_func(q, q, q, causal=True)
    x, w, b, state = torch.randn(2, 8, 16), torch.randn(8, 4), torch.randn(8), torch.zeros(2, 8, 4)
    yield "causal_conv1d_fn", "causal_conv1d", "FORWARD", lambda: causal_conv1d_fn(x, w, b, activation="silu")
    yield "causal_conv1d_update", "causal_conv1d", "_UPDATE", lambda: causal_conv1d_update(x[..., 0], state, w, b, "silu")
    A, B, C, D, bias = -torch.rand(8, 4), torch.randn(2, 4, 16), torch.randn(2, 4, 16), torch.randn(8), torch.rand(8)
    yield "selective_scan_fn", "selective_scan", "FORWARD", lambda: selective_scan_fn(x, x, A, B, C, D, x, bias, True)
    ssm, row, dt, B1, C1 = torch.zeros(2, 8, 4), torch.randn(2, 8), torch.rand(2, 8), torch.randn(2, 4), torch.randn(2, 4)
    yield "selective_state_update", "state_update", "_UPDATE", lambda: selective_state_update(ssm, row, dt, A, B1, C1, D, None, bias, True)
    yield "rms_norm_fn", "norms", "_ADD_NORM", lambda: rms_norm_fn(row, b, None)
    yield "layer_norm_fn, residual", "norms", "_ADD_NORM", lambda: layer_norm_fn(row, b, b, residual=dt, prenorm=True)
    yield "rmsnorm_fn, gated", "norms", "GATED_NORM", lambda: rmsnorm_fn(row, b, None, z=dt)
    tokens, ends, xz = torch.randn(16, 8), torch.tensor([0, 3, 16], dtype=torch.int32), torch.randn(2, 16, 16)
    project, widen, w3 = torch.randn(9, 8), torch.randn(8, 1), w[:, None]
    yield "causal_conv1d_varlen", "causal_conv1d", "_VARLEN", lambda: causal_conv1d_varlen_states(tokens, ends, 4)
    yield "mamba_inner_fn", "mamba_inner", "_INNER", lambda: mamba_inner_fn_no_out_proj(xz, w3, b, project, widen, A, None, None, D, bias)


def host():
    """Of one thread's processor time on a CPU; on a GPU of the time until a loop of calls is launched."""
    clock, wait = (time.perf_counter, torch.cuda.synchronize) if options.device == "cuda" else (time.thread_time, lambda: None)

    def us(function, n=200):
        start = clock()
        for _ in range(n):
            function()
        took = clock() - start
        wait()
        return 1e6 * took / n
    sys.path.insert(0, DROPIN)
    torch.set_num_threads(1)
    print("%-24s %9s %9s %9s %9s" % ("microseconds", "Python", "C", "above", "(median)"))
    with torch.device(options.device):  # a mode that slows every call of torch's
        cases = list(host_cases())
    with torch.no_grad():
        for name, module, attribute, function in cases:
            bare = captured_call(module, attribute, function)
            pairs = [(us(function), us(bare)) for _ in range(options.runs * 8 + 1)]
            whole, inner = [min(column) for column in zip(*pairs)]
            results[name] = [whole, inner]
            print("%-24s %9.2f %9.2f %9.2f %9.2f" % (name, whole, inner, whole - inner, statistics.median(p - q for p, q in pairs)), flush=True)


# ---- language models on a CPU ----------------------------------------------------------------------------------------
def llama_cpp(path):
    """-> run(ids, n): {the likeliest tokens, seconds of the prompt, tokens a second}, by a server in this process."""
    import xllamacpp
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.verbosity = path, 1024, 1, -1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    server = xllamacpp.Server(params)

    def run(ids, n):
        answer = server.handle_completions({"prompt": ids, "n_predict": n, "temperature": 0, "top_k": 1, "n_probs": 1, "ignore_eos": True, "cache_prompt": False})
        answer = answer if isinstance(answer, dict) else json.loads(answer)
        times = answer["timings"]
        return [t["id"] for t in answer["choices"][0]["logprobs"]["content"]], times["prompt_ms"] / 1e3, 1e3 * (n - 1) / times["predicted_ms"]  # steps behind the first token
    return run


def krait_text(path, ids, n):
    command = [*shlex.split(options.krait), "generate", path, "--ids", "-p", " ".join(map(str, ids)), "-n", str(n), "--ignore-eos", "--json", "--device", "cpu", "--threads", str(options.threads)]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return answer["ids"], answer["first_token_s"], (n - 1) / answer["generate_s"]


def language_models():
    """Prompts of 512, then 32 likeliest tokens, in turn; medians. How many of the first tokens are the same."""
    if not options.files:
        raise SystemExit("bench_peers.py language-models: give GGUF files")
    ids, n = [5 + 7 * i % 89 for i in range(512)], 32
    for path in options.files:
        theirs, pairs = llama_cpp(path), []
        theirs(ids[:16], 2)
        for _ in range(options.runs):
            pairs.append((krait_text(path, ids, n), theirs(ids, n)))
        same = next((i for i, (a, b) in enumerate(zip(pairs[0][0][0], pairs[0][1][0])) if a != b), n)
        prompt, rate = ([statistics.median(pair[who][i] for pair in pairs) for who in (0, 1)] for i in (1, 2))
        results[path] = {"prompt_s": prompt, "tokens_per_s": rate, "same": same}
        print("%-32s prompt of %d: krait %.3f s, llama.cpp %.3f s, %.2f times as fast; tokens/s: %.1f, %.1f, %.2f times as fast; the first %d of %d tokens are the same"
              % (pathlib.Path(path).name, len(ids), *prompt, prompt[1] / prompt[0], *rate, rate[0] / rate[1], same, n), flush=True)


# ---- PrimeKnet on a CPU ----------------------------------------------------------------------------------------------
TRAINED = dict(fft_len=400, dense_channel=64, sigmoid_beta=2.0, dense_depth=3, num_tsblock=4, time_block_num=2, freq_block_kernel=[3, 11, 23, 31], freq_block_num=2, infer_type="masking", causal=True)
STAGES = {"mamba": dict(mamba_hidden_size=64, mamba_d_state=16, mamba_d_conv=4, mamba_expand=2), "gru": dict(gru_layers=2, gru_hidden_size=64), "lstm": dict(lstm_layers=2, lstm_hidden_size=64)}


def twin():
    sys.path.insert(0, str(ROOT / "tools"))
    return importlib.import_module("primeknet_twin")


def program_json(*arguments):
    return json.loads(subprocess.run([*shlex.split(options.krait), "bench", *arguments, "--device", "cpu", "--threads", str(torch.get_num_threads()), "--json"], check=True, capture_output=True, text=True).stdout)


def interleaved(ours, theirs):
    """The fastest of each, in seconds."""
    def timed(call):
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    pairs = [(timed(theirs), ours()) for _ in range(options.runs)]
    return min(o for _, o in pairs), min(t for t, _ in pairs)


def tell(name, ours, theirs):
    results[name] = {"krait": ours, "torch": theirs}
    print("%s, %d threads: krait %.3f s, PyTorch %s %.3f s, %.1f times as fast" % (name, torch.get_num_threads(), ours, torch.__version__, theirs, theirs / ours), flush=True)


def denoiser():
    """Two seconds of sound forward, beside the readable twin."""
    frames = 321
    net, meta = twin().load_model(options.files[0])
    com = torch.rand(1, json.loads(meta["config"])["fft_len"] // 2 + 1, frames, 2) - 0.5

    def forward():
        with torch.no_grad():
            net(com)
    tell("denoiser, %d frames" % frames, *interleaved(lambda: program_json("primeknet", "--weights", options.files[0], "--frames", str(frames), "--runs", "2")["best_s"], forward))


def train_step():
    """A step of the generator: krait's with all losses and transforms, the twin's with the mean of its outputs."""
    for stage, sizes in STAGES.items():
        net = twin().build("primeknet_" + stage, {**TRAINED, **sizes}).float()
        optimiser, com = torch.optim.AdamW(net.parameters(), lr=5e-4, betas=(0.8, 0.99)), torch.randn(1, 201, 161, 2)

        def step():
            optimiser.zero_grad(set_to_none=True)
            mag, _, out = net(com)
            (mag.mean() + out.square().mean()).backward()
            optimiser.step()
        krait = lambda: program_json("train", "+model=primeknet_%s_masking" % stage, "batch_size=1", "segment=16000", "shift=0", "loss.metric=0", "--runs", "1")["generator_ms"] / 1e3
        tell("training step, %s, one second" % stage, *interleaved(krait, step))


def train_module():
    """Training the tests' small PrimeKnet-Mamba in PyTorch: its Mamba as a loop over time, as the drop-in, and removed,
    a lower bound for any Mamba; all else is torch's."""
    sys.path[:0] = [DROPIN, str(ROOT / "tests/python")]
    from mamba_ssm import Mamba
    from test_training import CONFIG, load_twin

    class Absent(Mamba):
        def forward(self, hidden_states):
            return hidden_states

    def build(mamba_class, state=None):
        torch.manual_seed(3)
        model = load_twin(mamba_class).build("primeknet_mamba", dict(CONFIG, mamba_hidden_size=16))
        model.load_state_dict(state or model.state_dict())
        return model, torch.optim.Adam(model.parameters(), 1e-3)
    loop = build(None)
    models = {"loop": loop, "drop-in": build(Mamba, {k: t.clone() for k, t in loop[0].state_dict().items()}), "without": build(Absent, loop[0].state_dict())}
    generator, losses, spent = torch.Generator().manual_seed(1), {name: [] for name in models}, dict.fromkeys(models, 0.0)
    for _ in range(4 * options.runs):
        x = torch.randn(1, 201, 321, 2, generator=generator)
        for name, (model, optimiser) in models.items():
            start = time.process_time()
            optimiser.zero_grad()
            loss = (model(x)[2] - 0.3 * x).square().mean()
            loss.backward()
            optimiser.step()
            spent[name] += time.process_time() - start
            losses[name].append(float(loss.detach()))
    results.update(spent)
    print("losses %.5f to %.5f, at most %.1e apart; processor seconds: %s" % (losses["loop"][0], losses["loop"][-1], max(abs(a - b) for a, b in zip(losses["loop"], losses["drop-in"])),
                                                                             ", ".join("%s %.2f" % one for one in spent.items())))


def train_lm():
    """Tokens a second of training mamba-130m and mamba2-130m (float32 parameters, autocast, AdamW), by the mamba_ssm that is imported: on a GPU B 8, L 1024."""
    from mamba_ssm.models.config_mamba import MambaConfig
    from mamba_ssm.models.mixer_seq_simple import MambaLMHeadModel
    from krait.ops import cross_entropy
    batch, length, width, layers, vocabulary, steps = (8, 1024, 768, 24, 50277, 15) if options.device == "cuda" else (1, 64, 64, 2, 101, 3)
    wait = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    for layer in [options.module] if options.module else ["Mamba", "Mamba2"]:
        for name, loss_of in (("F.cross_entropy", F.cross_entropy), ("krait.ops.cross_entropy", cross_entropy)):
            torch.manual_seed(0)
            config = MambaConfig(d_model=width, n_layer=layers, vocab_size=vocabulary, ssm_cfg={"layer": "Mamba1" if layer == "Mamba" else layer}, rms_norm=True, residual_in_fp32=True, fused_add_norm=True)
            model, ids = MambaLMHeadModel(config, device=options.device), torch.randint(0, vocabulary, (batch, length + 1), device=options.device)
            optimiser, losses = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=options.device == "cuda"), []

            def step():
                with torch.autocast(options.device, torch.bfloat16):
                    losses.append(loss_of(model(ids[:, :-1]).logits.flatten(0, 1), ids[:, 1:].flatten()))
                losses[-1].backward()
                optimiser.step()
                optimiser.zero_grad(set_to_none=True)
            times = []
            for _ in range(4):  # the first one prepares
                wait()
                start = time.perf_counter()
                for _ in range(steps):
                    step()
                wait()
                times.append((time.perf_counter() - start) / steps)
            results["%s, %s" % (layer, name)] = best = statistics.median(times[1:])
            print("%-8s %-24s %.2f ms a step, %.0f tokens/s, losses %.4f to %.4f" % (layer, name, 1e3 * best, batch * length / best, losses[0].item(), losses[-1].item()))


def main():
    global options
    jobs = {job.__name__.replace("_", "-"): job for job in (attention, gemm, few_rows, ssd, scan, conv, norm, mamba3, modules, memory, host, language_models, denoiser, train_lm, train_step, train_module)}
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="\n".join(__doc__.splitlines()[1:]), formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=jobs)
    p.add_argument("files", nargs="*", help="denoiser: a safetensors file with its configuration; language-models: GGUF files")
    p.add_argument("--krait", default=str(ROOT / "build/krait"), help="the program, or a command that runs it")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cuda", "cpu"))
    p.add_argument("--dtype", help="default: bfloat16 on a GPU, float32 on a CPU")
    p.add_argument("--tiers", default="hopper,ampere,base", help="of a GPU's device code")
    p.add_argument("--threads", type=int, default=1, help="on a CPU")
    p.add_argument("--runs", type=int, default=5, help="on a CPU")
    p.add_argument("--peers", help="times of an earlier run")
    p.add_argument("--triton", help="folder with mamba_ssm")
    p.add_argument("--module", choices=sorted(USUAL))
    p.add_argument("--shapes", nargs="*", default=[])
    p.add_argument("--json")
    for flag in ("--all", "--profile", "--forward-only", "--tf32"):  # tf32: torch's setting for products of float32
        p.add_argument(flag, action="store_true")
    options = p.parse_args()
    options.dtype = options.dtype or ("bfloat16" if options.device == "cuda" else "float32")
    if options.what == "denoiser" and len(options.files) != 1:
        p.error("denoiser needs a file of weights")
    torch.set_num_threads(options.threads)
    torch.set_float32_matmul_precision("high" if options.tf32 else "highest")
    print(torch.cuda.get_device_name() if options.device == "cuda" else "CPU", "torch", torch.__version__, options.dtype)
    jobs[options.what]()
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
