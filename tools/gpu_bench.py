#!/usr/bin/env python3
"""gpu_bench.py LIBKRAIT.SO [--only WORDS] [--tiers base,ampere] [--json OUT] [--sweep PEERS.json]: times the operators
on the GPU against the design's targets and the peers' times, after checking each against PyTorch on a small shape.
Needs PyTorch with CUDA. Times are medians of triton.testing.do_bench, like the peers'."""
import argparse, ctypes as ct, json, pathlib, re, sys

if "--no-torch" not in sys.argv:
    import torch, triton

DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2, "int32": 4, "complex64": 6}


class View(ct.Structure):
    _fields_ = [("data", ct.c_void_p), ("stride", ct.c_int64 * 4), ("dtype", ct.c_int32), ("reserved", ct.c_int32)]


class Call(ct.Structure):
    _fields_ = [("size", ct.c_uint32), ("flags", ct.c_uint32), ("stream", ct.c_void_p), ("scratch", ct.c_void_p), ("scratch_bytes", ct.c_uint64)]


class Options(ct.Structure):
    _fields_ = [("size", ct.c_uint32), ("device", ct.c_int32), ("caps_mask", ct.c_uint64), ("n_threads", ct.c_int32), ("fallback", ct.c_int32)]


def struct(name, sizes, tail, views):
    fields = [("call", Call)] + [(s, ct.c_int64) for s in sizes] + [(t, ct.c_int32 if t != "eps" else ct.c_float) for t in tail] + [(v, View) for v in views.split()]
    return type(name, (ct.Structure,), {"_fields_": fields})


ARGS = {
    "causal_conv1d": struct("conv", "BDLW", ["activation", "reserved"], "x weight bias seq_idx initial_states out final_states"),
    "causal_conv1d_bwd": struct("conv_bwd", "BDLW", ["activation", "reserved"], "x weight bias seq_idx initial_states dout dfinal_states dx dweight dbias dinitial_states"),
    "selective_scan": struct("scan", "BDLNGS", [], "u delta A Bmat Cmat Dvec z delta_bias initial_state seq_idx cu_seqlens A_reverse out last_state"),
    "selective_scan_bwd": struct("scan_bwd", "BDLNGS", [], "u delta A Bmat Cmat Dvec z delta_bias initial_state seq_idx cu_seqlens A_reverse dout dlast_state du ddelta dA dB dC dDvec dz ddelta_bias dinitial_state dA_reverse"),
    "add_norm": struct("add_norm", "RM", ["eps", "reserved"], "x x1 residual rowscale weight bias weight1 bias1 out out1 residual_out"),
    "add_norm_bwd": struct("add_norm_bwd", "RM", ["eps", "reserved"], "v rowscale weight weight1 dout dout1 dresidual_out dx dx1 dresidual dweight dbias dweight1 dbias1"),
    "gated_norm": struct("gated_norm", ["R", "M", "group_size"], ["eps", "reserved"], "x z weight bias out"),
    "state_update": struct("update", ["B", "H", "P", "N", "G", "n_states"], [], "state x dt A Bmat Cmat Dvec dt_bias z state_batch_indices out"),
}
lib = None


def open_ctx(caps):
    handle, options = ct.c_void_p(), Options(ct.sizeof(Options), 16, caps, 1, 1)
    status = lib.krait_ctx_open(ct.byref(options), ct.byref(handle))
    assert status >= 0, lib.krait_error_detail().decode()
    return handle


class Op:
    """One prepared call: fields, tensors kept alive, scratch."""

    def __init__(self, ctx, name, flags=0, **fields):
        self.args = a = ARGS[name]()
        self.keep = fields
        a.call.size, a.call.flags = ct.sizeof(a), flags
        for key, value in fields.items():
            if isinstance(value, torch.Tensor):
                view = View(value.data_ptr(), (ct.c_int64 * 4)(*value.stride(), *([0] * (4 - value.dim()))), DTYPES[str(value.dtype)[6:]], 0)
                setattr(a, key, view)
            elif value is not None:
                setattr(a, key, value)
        need = ct.c_uint64()
        self.ctx, self.name = ctx, name
        self.check(getattr(lib, f"krait_{name}_scratch_bytes")(ctx, ct.byref(a), ct.byref(need)))
        self.scratch = torch.empty(max(need.value, 1), dtype=torch.uint8, device="cuda")
        a.call.scratch, a.call.scratch_bytes = self.scratch.data_ptr(), need.value
        self.run = getattr(lib, f"krait_{name}")
        self.ref = ct.byref(a)

    def check(self, status):
        if status < 0:
            raise RuntimeError(f"{self.name}: {lib.krait_error_detail().decode()}")

    def __call__(self):
        self.args.call.stream = torch.cuda.current_stream().cuda_stream
        self.check(self.run(self.ctx, self.ref))


def scan_inputs(B, D, L, N, dtype, z=True, G=1, seed=0):
    g = torch.Generator(device="cuda").manual_seed(seed)
    normal = lambda *s: torch.randn(*s, device="cuda", generator=g, dtype=torch.float32)
    uniform = lambda *s: torch.rand(*s, device="cuda", generator=g, dtype=torch.float32)
    t = dict(u=normal(B, D, L).to(dtype), delta=(0.5 * uniform(B, D, L)).to(dtype), A=-0.5 * uniform(D, N) - 0.01, Bmat=normal(B, G, N, L).to(dtype), Cmat=normal(B, G, N, L).to(dtype),
             Dvec=normal(D), delta_bias=0.5 * uniform(D) - 2)
    if z:
        t["z"] = normal(B, D, L).to(dtype)
    return t


def scan_loop(t, reverse=False):
    """The recurrence in float64, differentiable."""
    u, delta, A, Bm, Cm = (t[k].double() for k in ("u", "delta", "A", "Bmat", "Cmat"))
    D, L = u.shape[1:]
    rep = D // Bm.shape[1]
    Bm, Cm = Bm.repeat_interleave(rep, 1), Cm.repeat_interleave(rep, 1)
    dt = torch.nn.functional.softplus(delta + t["delta_bias"].double()[None, :, None])
    x = torch.zeros(u.shape[0], D, A.shape[1], dtype=torch.float64, device=u.device)
    ys = [None] * L
    for i in (range(L - 1, -1, -1) if reverse else range(L)):
        x = torch.exp(dt[:, :, i, None] * A) * x + (dt * u)[:, :, i, None] * Bm[:, :, :, i]
        ys[i] = (x * Cm[:, :, :, i]).sum(-1)
    y = torch.stack(ys, -1) + u * t["Dvec"].double()[None, :, None]
    return (y * torch.nn.functional.silu(t["z"].double()) if "z" in t else y), x


def error(got, want):
    return ((got.double() - want).norm() / want.norm()).item()


def scan_call(ctx, t, G=1, flags=1, **more):
    B, D, L = t["u"].shape
    return Op(ctx, "selective_scan", flags, B=B, D=D, L=L, N=t["A"].shape[1], G=G, S=0, **t, **more)


def scan_bwd_call(ctx, t, dout, grads, G=1, flags=1):
    B, D, L = t["u"].shape
    return Op(ctx, "selective_scan_bwd", flags, B=B, D=D, L=L, N=t["A"].shape[1], G=G, S=0, **t, dout=dout, **grads)


GRADS = dict(u="du", delta="ddelta", A="dA", Bmat="dB", Cmat="dC", Dvec="dDvec", z="dz", delta_bias="ddelta_bias")


def check_scan(ctx, backward):
    worst = {}
    for B, D, L, N, dtype, reverse in [(2, 130, 77, 16, torch.float32, 0), (1, 256, 1100, 16, torch.bfloat16, 0), (3, 5, 40, 3, torch.float16, 1), (1, 40, 700, 64, torch.float32, 1), (2, 33, 65, 128, torch.bfloat16, 0), (1, 16, 3137, 16, torch.float16, 0)]:
        t = scan_inputs(B, D, L, N, dtype)
        out, last = torch.full_like(t["u"], float("nan")), torch.full((B, D, N), float("nan"), device="cuda")
        flags = 1 | (8 if reverse else 0)
        scan_call(ctx, t, flags=flags, out=out, last_state=last)()
        names = [k for k in GRADS if k in t]
        leaf = {k: v.double().requires_grad_() for k, v in t.items()}
        want, x = scan_loop(leaf, reverse)
        key = f"B{B} D{D} L{L} N{N} {str(dtype)[6:]}{' reverse' if reverse else ''}"
        worst[key] = dict(out=error(out, want), last=error(last, x))
        if backward:
            dout = torch.randn_like(t["u"])
            grads = {GRADS[k]: torch.full_like(t[k], float("nan")) for k in names}
            want_grads = torch.autograd.grad(want, [leaf[k] for k in names], dout.double())
            call = scan_bwd_call(ctx, t, dout, grads, flags=flags)
            call()
            first = {k: v.clone() for k, v in grads.items()}
            call()
            worst[key].update({GRADS[k]: error(grads[GRADS[k]], w) for k, w in zip(names, want_grads)})
            worst[key]["repeats"] = float(all(torch.equal(first[k], grads[k]) for k in grads) - 1)
    for key, errors in worst.items():
        limit = 2e-2 if "bfloat16" in key else 3e-3 if "float16" in key else 3e-5
        bad = [k for k, e in errors.items() if not e <= limit or (k == "repeats" and e)]
        print(f"  {'WRONG ' if bad else 'ok    '}{key}: " + " ".join(f"{k} {e:.1e}" for k, e in errors.items()))


def median_ms(fn):
    fn()
    return triton.testing.do_bench(fn, warmup=10, rep=60, return_mode="median")


match, once, with_compile = "", False, False  # --match, --once, --compile


def timed(rows, name, aim, peer, fn, n_bytes=0):
    if not re.search(match, name):
        return
    try:
        ms = median_ms(fn) if not once else fn() or float("nan")
    except Exception as e:  # an unsupported call or too little memory: reported, not fatal
        print(f"  {name:58s} {e}")
        return
    rows.append(dict(name=name, ms=ms, aim=aim, peer=peer))
    print(f"  {name:58s} {ms:8.4f} ms  aim {aim or 0:7.4f} {'met ' if aim and ms <= aim else 'OVER' if aim else '    '}  peer {peer or 0:8.4f}  x{(peer or 0) / ms:5.2f}  {n_bytes / ms * 1e-6:6.0f} GB/s", flush=True)


SCANS = "no-torch" in " ".join(sys.argv) or [(8, 4096, 2048, 16, torch.bfloat16, .39, 1.5), (8, 4096, 2048, 16, torch.float32, .55, 1.8), (1, 1536, 65536, 16, torch.bfloat16, .5, 2.0), (402, 128, 100, 16, torch.float32, .06, .2),
         (1, 1152, 3137, 16, torch.float16, .05, .18), (1, 128, 1048576, 16, torch.bfloat16, 1.0, 3.0), (8, 4096, 2048, 64, torch.bfloat16, 1.5, 6.0), (1, 4096, 512, 16, torch.bfloat16, None, None)]


def bench_scan(ctx, rows, peers, backward):
    for B, D, L, N, dtype, aim_fwd, aim_bwd in SCANS:
        t = scan_inputs(B, D, L, N, dtype)
        peer = lambda d: peers.get(f"selscan B{B} D{D} L{L} N{N} {str(dtype)[6:]} {d}", {}).get("ms")
        out = torch.empty_like(t["u"])
        name, size = f"scan B{B} D{D} L{L} N{N} {str(dtype)[6:]}", t["u"].numel() * t["u"].element_size()
        timed(rows, name + " fwd", aim_fwd, peer("fwd"), scan_call(ctx, t, out=out), 4 * size)
        if backward:
            grads = {GRADS[k]: torch.empty_like(v) for k, v in t.items()}
            timed(rows, name + " bwd", aim_bwd, peer("bwd"), scan_bwd_call(ctx, t, torch.randn_like(out), grads), 7 * size)
            del grads
        del t, out
        torch.cuda.empty_cache()


def conv_tensors(B, D, L, dtype, last):
    x = torch.randn(B, L, D, device="cuda", dtype=dtype).transpose(1, 2) if last else torch.randn(B, D, L, device="cuda", dtype=dtype)
    return x, torch.randn(D, 4, device="cuda"), torch.randn(D, device="cuda")


def conv_want(x, w, b):
    y = torch.nn.functional.conv1d(torch.nn.functional.pad(x, (w.shape[1] - 1, 0)), w[:, None], b, groups=w.shape[0])
    return torch.nn.functional.silu(y)


def conv_call(ctx, x, w, b, out):
    B, D, L = x.shape
    return Op(ctx, "causal_conv1d", 0, B=B, D=D, L=L, W=w.shape[1], activation=1, x=x, weight=w, bias=b, out=out)


def conv_bwd_call(ctx, x, w, b, dout, dx, dw, db):
    B, D, L = x.shape
    return Op(ctx, "causal_conv1d_bwd", 0, B=B, D=D, L=L, W=w.shape[1], activation=1, x=x, weight=w, bias=b, dout=dout, dx=dx, dweight=dw, dbias=db)


def check_conv(ctx, backward):
    for B, D, L, dtype, last in [(2, 37, 77, torch.float32, 0), (3, 64, 2048, torch.bfloat16, 0), (2, 64, 333, torch.float16, 1), (2, 48, 100, torch.float32, 1), (402, 128, 100, torch.float32, 0), (8, 2048, 2048, torch.bfloat16, 1), (1, 1600, 65536, torch.bfloat16, 0)]:
        x, w, b = conv_tensors(B, D, L, dtype, last)
        out = torch.full_like(x, float("nan"))
        conv_call(ctx, x, w, b, out)()
        leaves = [v.double().requires_grad_() for v in (x, w, b)]
        want = conv_want(*leaves)
        errors = dict(out=error(out, want))
        if backward:
            dout, got = torch.randn_like(x), [torch.full_like(v, float("nan")) for v in (x, w, b)]
            conv_bwd_call(ctx, x, w, b, dout, *got)()
            errors.update({k: error(g, v) for k, g, v in zip(("dx", "dw", "db"), got, torch.autograd.grad(want, leaves, dout.double()))})
        limit = 4e-3 if dtype == torch.bfloat16 else 5e-4 if dtype == torch.float16 else 1e-5
        print(f"  {'ok    ' if all(e <= limit for e in errors.values()) else 'WRONG '}conv B{B} D{D} L{L} {str(dtype)[6:]} {'last' if last else 'first'}: " + " ".join(f"{k} {e:.1e}" for k, e in errors.items()))


CONVS = "no-torch" in " ".join(sys.argv) or [(8, 4096, 2048, torch.bfloat16, 0, .070, .110), (8, 4096, 2048, torch.bfloat16, 1, .072, None), (8, 4096, 2048, torch.float32, 0, None, None), (402, 128, 100, torch.float32, 0, .015, .04),
         (402, 128, 100, torch.float32, 1, None, None), (1, 1536, 65536, torch.bfloat16, 0, None, None), (1, 1536, 65536, torch.bfloat16, 1, None, None)]


def bench_conv(ctx, rows, peers, backward):
    for B, D, L, dtype, last, aim_fwd, aim_bwd in CONVS:
        x, w, b = conv_tensors(B, D, L, dtype, last)
        out, tail = torch.empty_like(x), " channel-last" if last else ""
        name = f"conv1d B{B} D{D} L{L} {str(dtype)[6:]}"
        peer = lambda d: peers.get(f"{name} {d}{tail}", {}).get("ms")
        size = x.numel() * x.element_size()
        timed(rows, name + " fwd" + tail, aim_fwd, peer("fwd"), conv_call(ctx, x, w, b, out), 2 * size)
        if backward:
            timed(rows, name + " bwd" + tail, aim_bwd, peer("bwd"), conv_bwd_call(ctx, x, w, b, torch.randn_like(x), out, torch.empty_like(w), torch.empty_like(b)), 3 * size)


def update_call(ctx, B, D, N):
    dtype = torch.bfloat16
    x, dt, z, out = (torch.randn(B, 1, D, device="cuda", dtype=dtype) for _ in range(4))
    state, A = torch.randn(B, 1, D, N, device="cuda"), -torch.rand(1, D, N, device="cuda")
    Bm, Cm = (torch.randn(B, 1, N, device="cuda", dtype=dtype) for _ in range(2))
    return Op(ctx, "state_update", 1, B=B, H=1, P=D, N=N, G=1, n_states=B, state=state, x=x, dt=dt, A=A, Bmat=Bm, Cmat=Cm, Dvec=torch.randn(1, D, device="cuda"), dt_bias=torch.randn(1, D, device="cuda"), z=z, out=out)


def bench_update(ctx, rows, peers, backward):
    for B, D, N, aim in ((1, 4096, 16, .006), (64, 4096, 16, .03), (402, 1536, 4, None), (64, 4096, 64, None), (64, 1536, 128, None)):
        call = update_call(ctx, B, D, N)
        timed(rows, f"state_update B{B} D{D} N{N}", aim, peers.get(f"state_update B{B} D{D} N{N}", {}).get("ms"), call, B * D * N * 8)


NORMS = "no-torch" in " ".join(sys.argv) or [(16384, 768, torch.float32), (65536, 256, torch.bfloat16), (16384, 4096, torch.bfloat16), (8192, 8192, torch.bfloat16), (16384, 1001, torch.bfloat16), (16384, 1001, torch.float32)]


def norm_call(ctx, name, R, M, tensors, flags=0, **more):
    return Op(ctx, name, flags, R=R, M=M, eps=1e-5, **tensors, **more)


def bench_norm(ctx, rows, peers, backward):
    """With PyTorch in the same run: its norms, and with --compile the fused ones by torch.compile."""
    F = torch.nn.functional
    fused = torch.compile if with_compile else lambda f: None
    for R, M, dtype in NORMS:
        x, other, out, sum_out = (torch.randn(R, M, device="cuda", dtype=dtype) for _ in range(4))
        w, b = torch.randn(M, device="cuda", dtype=dtype), torch.randn(M, device="cuda", dtype=dtype)
        size, tail = x.numel() * x.element_size(), f" {R}x{M} {str(dtype)[6:]}"

        def add(x, other):
            v = x + other
            return v, F.layer_norm(v, (M,), w, b)
        leaves = [t.clone().requires_grad_() for t in (x, w, b)]
        y = F.layer_norm(leaves[0], (M,), *leaves[1:])
        calls = [("add + layer norm", norm_call(ctx, "add_norm", R, M, dict(x=x, residual=other, weight=w, bias=b, out=out, residual_out=sum_out)), 4, fused(add), (x, other)),
                 ("layer norm", norm_call(ctx, "add_norm", R, M, dict(x=x, weight=w, bias=b, out=out)), 2, lambda: F.layer_norm(x, (M,), w, b), ()),
                 ("RMS norm", norm_call(ctx, "add_norm", R, M, dict(x=x, weight=w, out=out), flags=1), 2, lambda: F.rms_norm(x, (M,), w), ()),
                 ("gated RMS norm", norm_call(ctx, "gated_norm", R, M, dict(x=x, z=other, weight=w, out=out), flags=1, group_size=M), 3, fused(lambda x, z: F.rms_norm(x, (M,), w) * F.silu(z)), (x, other))]
        if backward:
            grads = dict(dx=out, dweight=torch.empty_like(w), dbias=torch.empty_like(b))
            calls.append(("layer norm gradient", norm_call(ctx, "add_norm_bwd", R, M, dict(v=x, weight=w, dout=other, **grads)), 3, lambda: torch.autograd.grad(y, leaves, other, retain_graph=True), ()))
        for name, call, n, peer, inputs in calls:
            if re.search(match, name + tail):
                timed(rows, name + tail, None, median_ms(lambda: peer(*inputs)) if peer else None, call, n * size)


def small_calls(ctx):
    """A small call of every op with its result."""
    x = torch.randn(2, 64, 256, device="cuda", dtype=torch.bfloat16)
    x2, (w, b) = x.view(-1, 256), (torch.randn(64, 4, device="cuda"), torch.randn(64, device="cuda"))
    t, dout, out, out2 = scan_inputs(2, 64, 256, 16, torch.bfloat16), torch.randn_like(x), torch.empty_like(x), torch.empty_like(x2)
    grads = {GRADS[k]: torch.empty_like(v) for k, v in t.items()}
    update = update_call(ctx, 2, 64, 16)
    return [("selective_scan", scan_call(ctx, t, out=out), out), ("selective_scan_bwd", scan_bwd_call(ctx, t, dout, grads), grads["ddelta"]), ("causal_conv1d", conv_call(ctx, x, w, b, out), out),
            ("causal_conv1d_bwd", conv_bwd_call(ctx, x, w, b, dout, out, torch.empty_like(w), torch.empty_like(b)), out), ("state_update", update, update.keep["out"]),
            ("add_norm", norm_call(ctx, "add_norm", 128, 256, dict(x=x2, out=out2)), out2), ("gated_norm", norm_call(ctx, "gated_norm", 128, 256, dict(x=x2, z=dout.view(-1, 256), out=out2), group_size=256), out2),
            ("add_norm_bwd", norm_call(ctx, "add_norm_bwd", 128, 256, dict(v=x2, dout=dout.view(-1, 256), dx=out2)), out2)]


class Timing(ct.Structure):
    _fields_ = [("size", ct.c_uint32), ("n_runs", ct.c_int32), ("best_s", ct.c_double), ("median_s", ct.c_double), ("reference_s", ct.c_double), ("flops", ct.c_double), ("bytes", ct.c_double), ("exps", ct.c_double),
                ("row", ct.c_char_p), ("host_s", ct.c_double), ("n_copies", ct.c_int32), ("from_graph", ct.c_int32)]


class Limits(ct.Structure):
    _fields_ = [("size", ct.c_uint32), ("reserved", ct.c_uint32), ("copy_bytes_per_s", ct.c_double), ("exps_per_s", ct.c_double), ("flops_per_s", ct.c_double)]


def device_limits(ctx):
    limits = Limits(ct.sizeof(Limits))
    assert lib.krait_measure_limits(ctx, ct.byref(limits)) >= 0, lib.krait_error_detail().decode()
    return limits


OPS = ["selective_scan", "selective_scan_bwd", "causal_conv1d", "causal_conv1d_bwd", "causal_conv1d_update", "state_update", "add_norm", "add_norm_bwd", "gated_norm", "gated_norm_bwd"]
SMALL = {"s": b"B=2,D=64,L=256", "c": b"B=2,D=64,L=256", "u": b"B=2,D=64", "t": b"B=2,P=64", "n": b"R=128,M=256"}


def op_times(ctx, limits):
    """The figures of krait bench OP for every op: a small, host-bound call and the op's default shape. No peers."""
    for op in OPS:
        kind = "u" if op.endswith("conv1d_update") else "t" if op == "state_update" else "n" if "norm" in op else op[0]
        for shape in (SMALL[kind], None):
            t = Timing(ct.sizeof(Timing))
            if lib.krait_op_measure(ctx, op.encode(), shape, DTYPES["bfloat16"], ct.c_double(0.1), 0, ct.byref(t)) < 0:
                print(f"  {op}: {lib.krait_error_detail().decode()}")
                continue
            print(f"  {op:22s} {(shape or b'default').decode():16s} device {t.median_s * 1e6:8.2f} us, host {t.host_s * 1e6:6.2f} us, {t.bytes / t.best_s * 1e-9:5.0f} GB/s ({100 * t.bytes / t.best_s / limits.copy_bytes_per_s:3.0f} % of a copy), "
                  f"exponentials {100 * t.exps / t.best_s / limits.exps_per_s:3.0f} %", flush=True)


def same(what, got, want, limit=0.0):
    e = error(got, want.double())
    print(f"  {'ok    ' if e <= limit else 'WRONG '}{what}: {e:.1e}", flush=True)


def long_calls(ctx):
    """More than 2^31 elements, forward and backward: the last rows must equal the same rows computed alone."""
    n, L, R, M = 8, 2**20, 2**20 + 2**9, 2**11
    D = 2**11 + 1
    small = scan_inputs(1, n, L, 4, torch.bfloat16)
    big = {k: v for k, v in small.items()}
    for k in ("u", "delta", "z"):
        big[k] = torch.empty(1, D, L, device="cuda", dtype=torch.bfloat16).normal_()
        big[k][:, -n:] = small[k]
    for k in ("A", "Dvec", "delta_bias"):
        big[k] = small[k].repeat((D + n - 1) // n, *([1] * (small[k].dim() - 1)))[-D:].contiguous()
        big[k][-n:] = small[k]
    out, alone = torch.empty_like(big["u"]), torch.empty_like(small["u"])
    scan_call(ctx, big, out=out)()
    scan_call(ctx, small, out=alone)()
    same(f"scan of {out.numel()} elements", out[:, -n:], alone, 1e-2)  # few channels are split along time
    dout = torch.randn_like(small["u"])
    out.normal_()[:, -n:] = dout
    grads = [{GRADS[k]: torch.empty_like(v) for k, v in t.items()} for t in (big, small)]
    scan_bwd_call(ctx, big, out, grads[0])()
    scan_bwd_call(ctx, small, dout, grads[1])()
    for k in ("du", "ddelta", "dz"):
        same(f"its gradient, {k}", grads[0][k][:, -n:], grads[1][k], 1e-2)
    x, dx = big["u"], grads[0]["du"]
    w, b = torch.randn(D, 4, device="cuda"), torch.randn(D, device="cuda")
    conv_bwd_call(ctx, x, w, b, out, dx, torch.empty_like(w), torch.empty_like(b))()
    conv_bwd_call(ctx, small["u"], w[-n:].contiguous(), b[-n:].contiguous(), dout, alone, torch.empty_like(w[-n:]), torch.empty_like(b[-n:]))()
    same("the convolution's gradient", dx[:, -n:], alone, 1e-3)
    conv_call(ctx, x, w, b, out)()
    conv_call(ctx, small["u"], w[-n:].contiguous(), b[-n:].contiguous(), alone)()
    same("the convolution", out[:, -n:], alone)
    x, dout, dx = (t.view(-1)[: R * M].view(R, M) for t in (x, out, dx))
    w = torch.randn(M, device="cuda")
    few = [t[-n:].contiguous() for t in (x, dout, dx)]
    for v, g, d, rows in ((x, dout, dx, R), (*few, n)):
        norm_call(ctx, "add_norm_bwd", rows, M, dict(v=v, weight=w, dout=g, dx=d, dweight=torch.empty_like(w)))()
    same(f"gradient of {R} norms of {M}", dx[-n:], few[2])
    for v, d, rows in ((x, dx, R), (few[0], few[2], n)):
        norm_call(ctx, "add_norm", rows, M, dict(x=v, weight=w, out=d))()
    same("the norms", dx[-n:], few[2])


def check_graphs(caps):
    """Captures every op's first call of a context into a graph, in the strictest mode; a replay must equal a call."""
    for name, call, result in small_calls(open_ctx(caps)):
        graph, state = torch.cuda.CUDAGraph(), call.keep.get("state")
        before = state.clone() if state is not None else None
        with torch.cuda.graph(graph):
            call()
        result.fill_(float("nan"))
        graph.replay()
        recorded = result.clone()
        if state is not None:
            state.copy_(before)
        call()
        same(f"{name} from a graph", recorded, result)


class Line(ct.Structure):
    _fields_ = [("size", ct.c_uint32), ("reserved", ct.c_int32), ("op", ct.c_char_p), ("row", ct.c_char_p), ("n_runs", ct.c_int64), ("n_refused", ct.c_int64), ("n_failures", ct.c_int64),
                ("worst", ct.c_double), ("first_failure", ct.c_char_p)]


def selftest(n_cases):
    """The library's own checker, every GPU implementation against the reference."""
    def report(user, line):
        l = line.contents
        print(f"  {'WRONG' if l.n_failures else 'ok   '} {l.op.decode():26s} {l.row.decode():12s} {l.n_runs:5d} runs {l.n_refused:5d} refused, worst {l.worst:5.2f} of the bound {l.first_failure.decode()[:300]}", flush=True)
    status = lib.krait_selftest(16, ct.c_int64(n_cases), ct.c_uint64(7), ct.CFUNCTYPE(None, ct.c_void_p, ct.POINTER(Line))(report), None)
    if status < 0:
        print(f"  selftest: {lib.krait_error_detail().decode()}")


def sweep(ctx, rows, path, backward):
    slower = []
    for p in json.loads(pathlib.Path(path).read_text()):
        B, D, L = p["B"], p["D"], p["L"]
        named = f"sweep {p['op']} B{B} D{D} L{L} {p.get('N', 4)}"
        if B * D * L > 3e8 or not re.search(match, named):
            continue
        if p["op"] == "selective_scan":
            t = scan_inputs(B, D, L, p["N"], torch.bfloat16)
            out = torch.empty_like(t["u"])
            pairs = [("fwd", scan_call(ctx, t, out=out))]
            if backward and p.get("bwd_ms"):
                pairs.append(("bwd", scan_bwd_call(ctx, t, torch.randn_like(out), {GRADS[k]: torch.empty_like(v) for k, v in t.items()})))
        else:
            x, w, b = conv_tensors(B, D, L, torch.bfloat16, 0)
            pairs = [("fwd", conv_call(ctx, x, w, b, torch.empty_like(x)))]
            if backward and p.get("bwd_ms"):
                pairs.append(("bwd", conv_bwd_call(ctx, x, w, b, torch.randn_like(x), torch.empty_like(x), torch.empty_like(w), torch.empty_like(b))))
        for direction, call in pairs:
            call()
            ms = triton.testing.do_bench(call, warmup=3, rep=12, return_mode="median")
            rows.append(dict(name=f"{named} {direction}", ms=ms, peer=p[f"{direction}_ms"]))
            if ms > p[f"{direction}_ms"]:
                slower.append(rows[-1])
    n = sum(r["name"].startswith("sweep") for r in rows)
    print(f"  {n} shapes, {len(slower)} slower than the peer")
    for r in sorted(slower, key=lambda r: r["peer"] / r["ms"])[:24]:
        print(f"    {r['name']:60s} {r['ms']:8.4f} ms, peer {r['peer']:8.4f}")


def main():
    global lib, match, once, with_compile
    p = argparse.ArgumentParser()
    p.add_argument("library")
    p.add_argument("--only", default="scan,conv,update,norm,host,graph,long")
    p.add_argument("--tiers", default="ampere,base")
    p.add_argument("--forward-only", action="store_true")
    p.add_argument("--match", default="", help="time only names that match this expression")
    p.add_argument("--compile", action="store_true", help="time torch.compile beside the fused norms")
    p.add_argument("--once", action="store_true", help="one call each, for a profiler")
    p.add_argument("--no-check", action="store_true")
    p.add_argument("--peers")
    p.add_argument("--sweep")
    p.add_argument("--json")
    p.add_argument("--no-torch", action="store_true", help="with --selftest only: for sanitizers")
    p.add_argument("--selftest", type=int, help="random calls per op through the library's checker")
    o = p.parse_args()
    match, once, with_compile = o.match, o.once, o.compile
    lib = ct.CDLL(str(pathlib.Path(o.library).resolve()))
    lib.krait_error_detail.restype = ct.c_char_p
    peers = json.loads(pathlib.Path(o.peers).read_text()) if o.peers else {}
    if o.no_torch:
        return selftest(o.selftest)
    backward, only, results = not o.forward_only, o.only.split(","), {}
    limits = device_limits(open_ctx(0))
    results["copy_gb_s"] = limits.copy_bytes_per_s * 1e-9
    print(f"{torch.cuda.get_device_name()}: copy {limits.copy_bytes_per_s * 1e-9:.0f} GB/s, {limits.flops_per_s * 1e-12:.1f} TFLOP/s, {limits.exps_per_s * 1e-12:.2f} T exponentials/s")
    if o.selftest:
        selftest(o.selftest)
    for tier in o.tiers.split(","):
        caps = {"base": 1 << 16, "ampere": 1 << 17, "hopper": 1 << 18}[tier]
        ctx, rows = open_ctx(caps), []
        print(f"tier {tier}")
        for word, check, bench in (("scan", check_scan, bench_scan), ("conv", check_conv, bench_conv), ("update", None, bench_update), ("norm", None, bench_norm)):
            if word in only and check and not o.no_check:
                check(ctx, backward)
            if word in only:
                bench(ctx, rows, peers, backward)
        if "host" in only:
            op_times(ctx, limits)
        if "graph" in only:
            check_graphs(caps)
        if "long" in only:
            long_calls(ctx)
        if o.sweep and tier == o.tiers.split(",")[0]:
            sweep(ctx, rows, o.sweep, backward)
        results[tier] = rows
    if o.json:
        pathlib.Path(o.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    sys.exit(main())
