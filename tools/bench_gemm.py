#!/usr/bin/env python3
"""bench_gemm.py LIBKRAIT.SO [OUT.json]: matrix products of the hopper and the ampere tier and of cuBLAS in turn, bfloat16, each checked; then few rows (decoding) as a share
of a copy's rate, in a graph over 512 MB of weights. Shapes: 8192 cubed and the products of mamba-130m and mamba-2.8b at 16,384 rows. Needs PyTorch with CUDA."""
import ctypes as ct
import json
import sys

import torch
import triton

SQUARE = [(8192, 8192, 8192)]
M130 = [(16384, 3072, 768), (16384, 80, 1536), (16384, 1536, 48), (16384, 768, 1536)]
B28 = [(16384, 10240, 2560), (16384, 192, 5120), (16384, 5120, 160), (16384, 2560, 5120)]
FEW = [(8192, 8192), (50280, 768), (50280, 2560), (10240, 2560), (2560, 5120), (3072, 768)]
CAPS = {"ampere": 3 << 16, "hopper": 7 << 16}


class View(ct.Structure):
    _fields_ = [("data", ct.c_void_p), ("stride", ct.c_int64 * 4), ("dtype", ct.c_int32), ("reserved", ct.c_int32)]


class Gemm(ct.Structure):
    _fields_ = ([("size", ct.c_uint32), ("flags", ct.c_uint32), ("stream", ct.c_void_p), ("scratch", ct.c_void_p), ("scratch_bytes", ct.c_uint64)]
                + [(s, ct.c_int64) for s in "MNK"] + [("activation", ct.c_int32), ("scale", ct.c_float)] + [(v, View) for v in ("A", "Bmat", "bias", "residual", "out")]
                + [("P", ct.c_int64)] + [(v, View) for v in ("B2", "bias2", "row_scale", "factor")])


class Options(ct.Structure):
    _fields_ = [("size", ct.c_uint32), ("device", ct.c_int32), ("caps_mask", ct.c_uint64), ("n_threads", ct.c_int32), ("fallback", ct.c_int32)]


lib = ct.CDLL(sys.argv[1])
lib.krait_error_detail.restype = ct.c_char_p


def check(status):
    if status < 0:
        raise RuntimeError(lib.krait_error_detail().decode())


def context(caps):
    handle = ct.c_void_p()
    check(lib.krait_ctx_open(ct.byref(Options(ct.sizeof(Options), 16, caps, 1, 1)), ct.byref(handle)))
    return handle


class Product:
    def __init__(self, ctx, a, b, out):
        """b: (N, K) or, for weights (K, N), its transposed view."""
        view = lambda t: View(t.data_ptr(), (ct.c_int64 * 4)(*t.stride(), 0, 0), 2, 0)
        self.g, self.ctx, self.keep = Gemm(size=ct.sizeof(Gemm), M=a.shape[0], N=b.shape[0], K=a.shape[1], A=view(a), Bmat=view(b.t()), out=view(out)), ctx, (a, b, out)
        need = ct.c_uint64()
        check(lib.krait_gemm_scratch_bytes(ctx, ct.byref(self.g), ct.byref(need)))
        self.scratch = torch.empty(max(1, need.value), dtype=torch.uint8, device="cuda")
        self.g.scratch, self.g.scratch_bytes = self.scratch.data_ptr(), need.value

    def __call__(self):
        self.g.stream = torch.cuda.current_stream().cuda_stream
        check(lib.krait_gemm(self.ctx, ct.byref(self.g)))


def median_us(call):
    return 1e3 * triton.testing.do_bench(call, warmup=5, rep=25, return_mode="median")


def large(ctxs, shapes, results, transposed=False):
    for m, n, k in shapes:
        torch.manual_seed(0)
        a, out = torch.randn(m, k, device="cuda", dtype=torch.bfloat16), torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        b = (torch.randn(k, n, device="cuda", dtype=torch.bfloat16).t() if transposed else torch.randn(n, k, device="cuda", dtype=torch.bfloat16)) / k ** 0.5
        want, us, errors = a @ b.t(), {"cuBLAS": [], "hopper": [], "ampere": []}, {}
        calls = {tier: Product(ctx, a, b, out) for tier, ctx in ctxs.items()}
        for tier, call in calls.items():
            out.fill_(float("nan"))
            call()
            torch.cuda.synchronize()
            errors[tier] = float((out.double() - want.double()).norm() / want.double().norm())
        for _ in range(2):
            us["cuBLAS"].append(median_us(lambda: torch.matmul(a, b.t(), out=out)))
            for tier, call in calls.items():
                us[tier].append(median_us(call))
        best = {key: min(v) for key, v in us.items()}
        wrong = [t for t, e in errors.items() if not e < 4e-3]
        results["%d %d %d%s" % (m, n, k, " (K,N)" if transposed else "")] = best | {"wrong": wrong}
        print("%5d %5d %5d %s  cuBLAS %8.1f  hopper %8.1f (%.2f of cuBLAS)  ampere %8.1f (%.2f of cuBLAS, %.2f of hopper)  off by %s %s" %
              (m, n, k, "(K,N)" if transposed else "(N,K)", best["cuBLAS"], best["hopper"], best["cuBLAS"] / best["hopper"], best["ampere"], best["cuBLAS"] / best["ampere"],
               best["hopper"] / best["ampere"], " ".join("%.1e" % e for e in errors.values()), "WRONG " + " ".join(wrong) if wrong else ""), flush=True)
        del a, b, out, want
        torch.cuda.empty_cache()


def graph_s(calls):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for call in calls[:2]:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(7):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e-3)
    return sorted(times)[3] / len(calls)


def copy_rate():
    a = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    return 2 * a.numel() / (1e-3 * triton.testing.do_bench(lambda: b.copy_(a), warmup=5, rep=30, return_mode="median"))


def few(ctx, results):
    rate = copy_rate()
    print("a copy: %.0f GB/s" % (rate * 1e-9))
    results["copy GB/s"] = rate * 1e-9
    for n, k in FEW:
        copies = max(4, -(-512 * 2**20 // (2 * n * k)))
        weights, line = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(copies)], []
        for m in (1, 2, 4, 8):
            a, out = torch.randn(m, k, device="cuda", dtype=torch.bfloat16), torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
            moved = 2 * (n * k + m * k + m * n)
            ours = moved / graph_s([Product(ctx, a, w, out) for w in weights]) / rate
            theirs = moved / graph_s([lambda w=w: torch.matmul(a, w.t(), out=out) for w in weights]) / rate
            results["few %d %d M %d" % (n, k, m)] = [ours, theirs]
            line.append("M %d %.2f (%.2f)" % (m, ours, theirs))
        print("%5d %5d  share of a copy (cuBLAS): %s" % (n, k, "  ".join(line)), flush=True)
        del weights
        torch.cuda.empty_cache()


def main():
    results, ctxs = {}, {tier: context(caps) for tier, caps in CAPS.items()}
    large(ctxs, SQUARE + M130 + B28, results)
    large(ctxs, [SQUARE[0], B28[3]], results, transposed=True)
    few(ctxs["hopper"], results)
    if len(sys.argv) > 2:
        json.dump(results, open(sys.argv[2], "w"), indent=1)


main()
