#!/usr/bin/env python3
"""bench_ssd.py LIBKRAIT.SO [--tiers hopper,ampere,base] [--peers PEERS.json] [--sweep] [--kernels]: Mamba-2's SSD and
its gradient on a GPU. Checks each tier against the equation as one matrix per head, in float64; then prints times,
medians of triton.testing.do_bench in ms, next to the peer's for the same shape if PEERS has it. --kernels: time per
kernel; --sweep: 118 more shapes that need few Triton compilations; --triton FOLDER: also times mamba_ssm's Triton
kernels (FOLDER/mamba_ssm/ops/triton) and lists the shapes that are slower than them. --share K/N: every Nth shape from
K on. --warm K/N: only compile every Nth configuration of each Triton kernel, so that N processes fill the cache for the
next run; then --prepare K/N: one shape per kind of sizes, every Nth kind (first 0/32 and 16/32 alone, which choose
configurations for both N, with TRITON_CACHE_AUTOTUNING=1); --plain: without D; --channels: D per channel instead of per
head, as in Mamba2."""
import argparse
import ctypes as ct
import itertools
import json
import pathlib
import sys
import time

import torch
import triton

DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.int32: 4}
INPUTS = "x dt A Bmat Cmat Dvec z dt_bias initial_states seq_idx"
GRADIENTS = {"x": "dx", "dt": "ddt", "A": "dA", "Bmat": "dB", "Cmat": "dC", "Dvec": "dDvec", "z": "dz", "dt_bias": "ddt_bias", "initial_states": "dinitial_states"}
SHAPES = [(8, 4096, 80, 64, 128), (1, 2048, 24, 64, 128), (1, 65536, 80, 64, 128), (32, 512, 24, 64, 128), (4, 4096, 128, 64, 64), (8, 2048, 64, 64, 256)]
CAPS = {"base": 1 << 16, "ampere": 3 << 16, "hopper": 7 << 16}


class View(ct.Structure):
    _fields_ = [("data", ct.c_void_p), ("stride", ct.c_int64 * 4), ("dtype", ct.c_int32), ("reserved", ct.c_int32)]


def struct(name, views):
    head = [("size", ct.c_uint32), ("flags", ct.c_uint32), ("stream", ct.c_void_p), ("scratch", ct.c_void_p), ("scratch_bytes", ct.c_uint64)]
    return type(name, (ct.Structure,), {"_fields_": head + [(s, ct.c_int64) for s in "BLHPNGS"] + [("dt_min", ct.c_float), ("dt_max", ct.c_float)] + [(v, View) for v in views.split()]})


class Options(ct.Structure):
    _fields_ = [("size", ct.c_uint32), ("device", ct.c_int32), ("caps_mask", ct.c_uint64), ("n_threads", ct.c_int32), ("fallback", ct.c_int32)]


ARGS = {"ssd": struct("ssd", INPUTS + " cu_seqlens A_reverse out final_states varlen_states"),
        "ssd_bwd": struct("ssd_bwd", INPUTS + " A_reverse dout dfinal_states dx dz ddt dA dA_reverse dB dC dDvec ddt_bias dinitial_states")}


class Op:
    """A call with its tensors and scratch."""

    def __init__(self, lib, caps, name, tensors, flags=1):
        handle, options = ct.c_void_p(), Options(ct.sizeof(Options), 16, caps, 1, 1)
        self.lib, self.keep, self.args, need = lib, tensors, ARGS[name](), ct.c_uint64()
        self.check(lib.krait_ctx_open(ct.byref(options), ct.byref(handle)))
        x, B, a = tensors["x"], tensors["Bmat"], self.args
        a.size, a.flags = ct.sizeof(a), flags
        a.B, a.L, a.H, a.P, a.G, a.N = *x.shape, *B.shape[2:]
        for key, t in tensors.items():
            setattr(a, key, View(t.data_ptr(), (ct.c_int64 * 4)(*t.stride(), *([0] * (4 - t.dim()))), DTYPES[t.dtype], 0))
        self.check(getattr(lib, "krait_%s_scratch_bytes" % name)(handle, ct.byref(a), ct.byref(need)))
        self.scratch = torch.empty(max(need.value, 1), dtype=torch.uint8, device="cuda")
        a.scratch, a.scratch_bytes = self.scratch.data_ptr(), need.value
        self.run, self.handle, self.ref = getattr(lib, "krait_" + name), handle, ct.byref(a)

    def check(self, status):
        if status < 0:
            raise RuntimeError(self.lib.krait_error_detail().decode())

    def __call__(self):
        self.args.stream = torch.cuda.current_stream().cuda_stream
        self.check(self.run(self.handle, self.ref))


def inputs(b, length, h, p, n, g=1, dtype=torch.bfloat16, z=False, states=False, packed=False, channels=True):
    torch.manual_seed(0)
    t = {"x": torch.randn(b, length, h, p), "dt": torch.randn(b, length, h) - 2, "A": -torch.rand(h) * 8 - 0.5, "Bmat": torch.randn(b, length, g, n) / n ** 0.25,
         "Cmat": torch.randn(b, length, g, n) / n ** 0.25, "Dvec": torch.randn(h, p) if channels else torch.randn(h), "dt_bias": torch.randn(h) * 0.3}
    if z:
        t["z"] = torch.randn(b, length, h, p)
    if states:
        t["initial_states"] = torch.randn(b, h, p, n)
    t = {k: v.to("cuda", dtype if k in ("x", "Bmat", "Cmat", "z", "dt") else torch.float32) for k, v in t.items()}
    if packed:
        t["seq_idx"] = (torch.arange(length, device="cuda") // 77).to(torch.int32).expand(b, -1).contiguous()
    return t


def equation(x, dt, A, Bmat, Cmat, Dvec, dt_bias, z=None, initial_states=None, seq_idx=None):
    """out, final states; every pair of tokens."""
    heads = x.shape[2] // Bmat.shape[2]
    B, C = Bmat.repeat_interleave(heads, 2), Cmat.repeat_interleave(heads, 2)
    d = torch.nn.functional.softplus(dt + dt_bias)
    a = (d * A).cumsum(1)
    causal = torch.ones(x.shape[1], x.shape[1], device=x.device, dtype=torch.bool).tril()[None]
    if seq_idx is not None:
        causal = causal & (seq_idx[:, :, None] == seq_idx[:, None])
    decay = (a[:, :, None] - a[:, None]).masked_fill(~causal[..., None], float("-inf")).exp()
    y = torch.einsum("bihn,bjhn,bijh,bjh,bjhp->bihp", C, B, decay, d, x)
    final = torch.einsum("bjhn,bjh,bjhp->bhpn", B, decay[:, -1] * d, x)
    if initial_states is not None:
        y = y + torch.einsum("bihn,bih,bhpn->bihp", C, a.exp() if seq_idx is None else a.exp() * (seq_idx == 0)[..., None], initial_states)
        if seq_idx is None:
            final = final + a[:, -1].exp()[..., None, None] * initial_states
    y = y + (Dvec if Dvec.dim() == 2 else Dvec[:, None]) * x
    return (y if z is None else y * torch.nn.functional.silu(z)), final


def results(t):
    b, _, h, p = t["x"].shape
    return dict(out=torch.empty_like(t["x"]), final_states=torch.empty(b, h, p, t["Bmat"].shape[3], device="cuda"))


def gradients(t):
    return {GRADIENTS[k]: torch.empty_like(v) for k, v in t.items() if k in GRADIENTS}


def error(got, want):
    return float((got.double() - want).norm().detach() / (want.norm().detach() + 1e-30))


def check(lib, caps):
    for dtype, options in itertools.product((torch.bfloat16, torch.float16), ({}, dict(n=64, g=2), dict(n=48, p=40), dict(p=128, h=4), dict(z=True, states=True), dict(packed=True, states=True, g=2), dict(n=200, p=80, states=True), dict(n=256, z=True), dict(b=1, length=1000), dict(channels=False), dict(channels=False, packed=True, p=80))):
        t = inputs(**{**dict(b=2, length=300, h=6, p=64, n=128), **options}, dtype=dtype)
        exact = {k: v.double().requires_grad_() if v.is_floating_point() else v for k, v in t.items()}
        want, final = equation(**exact)
        dout, dfinal = torch.randn_like(t["x"]), torch.randn_like(final, dtype=torch.float32)
        torch.autograd.backward((want, final), (dout.double(), dfinal.double()))
        r, g = results(t), gradients(t)
        Op(lib, caps, "ssd", {**t, **r})()
        backward = Op(lib, caps, "ssd_bwd", {**t, "dout": dout, "dfinal_states": dfinal, **g})
        backward()
        first = {k: v.clone() for k, v in g.items()}
        backward()
        errors = {"out": error(r["out"], want), "final": error(r["final_states"], final), **{GRADIENTS[k]: error(g[GRADIENTS[k]], v.grad) for k, v in exact.items() if k in GRADIENTS}}
        limit = 1.5e-2 if dtype is torch.bfloat16 else 2e-3
        wrong = [k for k, e in errors.items() if not e <= limit] + [k for k in g if not torch.equal(g[k], first[k])]
        print("  %s %s %s: %s" % ("WRONG " + ",".join(wrong) if wrong else "ok", str(dtype)[6:], options, " ".join("%s %.0e" % e for e in errors.items())), flush=True)


def median(call):
    call()
    return triton.testing.do_bench(call, warmup=5, rep=40, return_mode="median")


def kernels(call):
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(3):
            call()
        torch.cuda.synchronize()
    return " ".join("%s %.3f" % (e.key, e.device_time_total / 3000) for e in profile.key_averages())


def peer_calls(combined, t, dout):
    """Triton's forward call and its gradient, with chunks of 256 as in upstream's module."""
    first, rest = [t[k] for k in ("x", "dt", "A", "Bmat", "Cmat")], dict(D=t.get("Dvec"), dt_bias=t["dt_bias"], dt_softplus=True)
    out = combined._mamba_chunk_scan_combined_fwd(*first, 256, **rest)[0]
    return (lambda: combined._mamba_chunk_scan_combined_fwd(*first, 256, **rest), lambda: combined._mamba_chunk_scan_combined_bwd(dout, *first, out, 256, **rest))


def load_peer(folder, share):
    """mamba_ssm.ops.triton.ssd_combined; share (k, n): every nth configuration of each kernel."""
    sys.path.insert(0, folder)
    from mamba_ssm.ops.triton import ssd_combined
    for module in [m for name, m in sys.modules.items() if name.startswith("mamba_ssm.ops.triton.")] if share else ():
        for kernel in vars(module).values():
            if isinstance(kernel, triton.runtime.Autotuner):
                kernel.configs = kernel.configs[share[0]::share[1]] or kernel.configs[:1]
    return ssd_combined


def sweep_shapes():
    """Two head shapes, which Triton autotunes separately; B = 1 and lengths not multiples of 16 it compiles
    separately."""
    return [(b, length, h, 64, n) for n, (b, length), h in itertools.product(
        (128, 64), ((1, 512), (1, 2048), (1, 4096), (1, 16384), (1, 65536), (2, 512), (4, 1024), (8, 2048), (16, 512), (64, 256), (2, 100), (2, 1000), (4, 3137), (8, 1500), (16, 99)),
        (8, 24, 48, 80)) if b * length * h <= 1 << 22]


def kinds_of_sweep():
    """The smallest shape of each kind of sizes that Triton compiles separately: 1, multiples of 16, others."""
    smallest = {}
    for shape in sorted(sweep_shapes(), key=lambda s: s[0] * s[1] * s[2]):
        b, length, h, _, n = shape
        smallest.setdefault((n, *[(v == 1, v % 16 == 0) for v in (b, length, h, -(-length // 256))]), shape)
    return sorted(smallest.values(), key=lambda s: -s[4])


def measure(lib, caps, shape, peers, options, combined, slower):
    t = inputs(*shape, channels=options.channels)
    if options.plain:
        del t["Dvec"]
    dout = torch.randn_like(t["x"])
    name, calls = "ssd B%d L%d H%d P%d N%d" % shape, {"ssd": results(t), "ssd_bwd": {"dout": dout, **gradients(t)}}
    line, others_ms = [], [median(call) for call in peer_calls(combined, t, dout)] if combined else []
    for i, (op, others) in enumerate(calls.items()):
        if op == "ssd_bwd" and options.forward_only:
            continue
        try:
            call = Op(lib, caps, op, {**t, **others})
            ms = median(call)
        except RuntimeError as e:
            line.append("%s: %s" % (op, str(e)[:90]))
            continue
        peer = others_ms[i] if combined else peers.get(name + " bf16", [None, None])[i]
        if peer and ms > peer:
            slower.append("%s %s %.3f (%.3f)" % (name, op, ms, peer))
        line.append("%.3f" % ms + (" (peer %.3f)" % peer if peer else ""))
        if options.kernels:
            line.append("[" + kernels(call) + "]")
        del call
        torch.cuda.empty_cache()
    print("  %-34s %s" % (name, "; ".join(line)), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--tiers", default="hopper,ampere")
    parser.add_argument("--peers")
    parser.add_argument("--n-shapes", type=int, default=len(SHAPES))
    parser.add_argument("--triton")
    parser.add_argument("--budget", type=float, default=1e9, help="start no shape after this many seconds")
    for flag in ("--share", "--warm", "--prepare"):
        parser.add_argument(flag, type=lambda s: tuple(map(int, s.split("/"))))
    for flag in ("--sweep", "--kernels", "--no-check", "--forward-only", "--plain", "--channels"):
        parser.add_argument(flag, action="store_true")
    options, start, slower = parser.parse_args(), time.monotonic(), []
    combined = load_peer(options.triton, options.warm) if options.triton else None
    if options.warm or options.prepare:
        k, n = options.prepare or (0, 1)
        for shape in kinds_of_sweep()[k::n] if options.prepare else [(2, 512, 8, 64, n) for n in (128, 64)]:
            t = inputs(*shape)
            for call in peer_calls(combined, t, torch.randn_like(t["x"])):
                call()
        return
    lib = ct.CDLL(str(pathlib.Path(options.library).resolve()))
    lib.krait_error_detail.restype = ct.c_char_p
    peers = json.loads(pathlib.Path(options.peers).read_text())["ssd (mamba-ssm 2.3.2 Triton), fwd, bwd"] if options.peers else {}
    print(torch.cuda.get_device_name())
    for tier in options.tiers.split(","):
        print("tier %s: forward; gradient, ms" % tier)
        if not options.no_check:
            check(lib, CAPS[tier])
        shapes = SHAPES[:options.n_shapes]
        if options.sweep:
            shapes = shapes + sweep_shapes()
        k, n = options.share or (0, 1)
        for i, shape in enumerate(shapes[k::n]):
            if time.monotonic() - start > options.budget:
                print("  out of time: %d of %d shapes" % (i, len(shapes[k::n])))
                break
            measure(lib, CAPS[tier], shape, peers, options, combined, slower)
    print("slower than the peer: %s" % ("; ".join(slower) or "none"))


if __name__ == "__main__":
    sys.exit(main())
