#!/usr/bin/env python3
"""bench_attention.py LIBKRAIT.SO [LIBKRAIT.SO ...] [--only WORDS] [--no-torch]: attention on the GPU, TFLOP/s (decode:
GB/s) of each row of each library and of PyTorch (cuDNN and FlashAttention-2) in the same run, after a check of each row
against float32. Needs PyTorch with CUDA. Times are medians of CUDA events."""
import argparse, ctypes as ct, pathlib

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpu_bench import DTYPES, Call, Options, View

SIZES = "B Lq Lk H Hk D Dv Bk n_pages max_q max_k window_left window_right".split()
FLOATS = "scale softcap dropout".split()
READS = "q k v cu_seqlens_q cu_seqlens_k seqused_q seqused_k".split()
MORE = {"attention": "leftpad_k cache_batch_idx block_table alibi_slopes sinks rng out lse".split(), "attention_bwd": "alibi_slopes sinks rng out lse dout dlse dq dk dv dsinks".split()}
ARGS = {name: type(name, (ct.Structure,), {"_fields_": [("call", Call)] + [(s, ct.c_int64) for s in SIZES] + [(f, ct.c_float) for f in FLOATS] + [("reserved", ct.c_int32)] + [(v, View) for v in READS + more]})
        for name, more in MORE.items()}
TIERS = {"base": 1 << 16, "ampere": 1 << 17, "hopper": 1 << 18}
# B, H, Hk, Lq, Lk, D, causal: 16 K tokens, 2048 channels
FORWARD = [(2, 16, 16, 8192, 8192, 128, 1), (4, 16, 16, 4096, 4096, 128, 0), (2, 32, 32, 8192, 8192, 64, 1), (4, 32, 32, 4096, 4096, 64, 0), (16, 16, 16, 1024, 1024, 128, 1), (1, 16, 16, 16384, 16384, 128, 0)]
DECODE = [(32, 32, 8, 1, 4096, 128, 0), (1, 32, 8, 1, 65536, 128, 0)]


class Library:
    def __init__(self, path):
        self.lib, self.name = ct.CDLL(str(pathlib.Path(path).resolve())), pathlib.Path(path).name.replace("libkrait", "").replace(".so", "")
        self.lib.krait_error_detail.restype = ct.c_char_p
        self.contexts = {}

    def context(self, tier):
        if tier not in self.contexts:
            handle, options = ct.c_void_p(), Options(ct.sizeof(Options), 16, TIERS[tier], 1, 1)
            self.ok(self.lib.krait_ctx_open(ct.byref(options), ct.byref(handle)))
            self.contexts[tier] = handle
        return self.contexts[tier]

    def ok(self, status):
        if status < 0:
            raise RuntimeError(self.lib.krait_error_detail().decode())

    def call(self, tier, op, flags=0, **fields):
        ctx, a, need = self.context(tier), ARGS[op](), ct.c_uint64()
        a.call.size, a.call.flags = ct.sizeof(a), flags
        for key, v in fields.items():
            setattr(a, key, View(v.data_ptr(), (ct.c_int64 * 4)(*v.stride(), *([0] * (4 - v.dim()))), DTYPES[str(v.dtype)[6:]], 0) if isinstance(v, torch.Tensor) else v)
        self.ok(getattr(self.lib, f"krait_{op}_scratch_bytes")(ctx, ct.byref(a), ct.byref(need)))
        scratch = torch.empty(need.value + 1, dtype=torch.uint8, device="cuda")
        a.call.scratch, a.call.scratch_bytes, a.call.stream = scratch.data_ptr(), need.value, torch.cuda.current_stream().cuda_stream
        run, ref = getattr(self.lib, f"krait_{op}"), ct.byref(a)
        def go(keep=(scratch, fields, a)):
            self.ok(run(ctx, ref))
        return go


def milliseconds(f, n=12):
    for _ in range(3):
        f()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(n + 1)]
    marks[0].record()
    for m in marks[1:]:
        f()
        m.record()
    torch.cuda.synchronize()
    times = sorted(a.elapsed_time(b) for a, b in zip(marks, marks[1:]))
    return times[len(times) // 2]


def inputs(B, H, Hk, Lq, Lk, D, dtype=torch.bfloat16, seed=0):
    g = torch.Generator(device="cuda").manual_seed(seed)
    make = lambda *s: torch.randn(*s, device="cuda", generator=g, dtype=torch.float32).to(dtype)
    return make(B, Lq, H, D), make(B, Lk, Hk, D), make(B, Lk, Hk, D)


def sizes(q, k):
    B, Lq, H, D = q.shape
    return dict(B=B, Lq=Lq, Lk=k.shape[1], H=H, Hk=k.shape[2], D=D, Dv=D, Bk=B)


def forward(lib, tier, q, k, v, causal, **more):
    out, lse = torch.full_like(q, float("nan")), torch.full((q.shape[0], q.shape[2], q.shape[1]), float("nan"), device="cuda")
    return lib.call(tier, "attention", causal, q=q, k=k, v=v, out=out, lse=lse, **{**sizes(q, k), **more}), out, lse


def backward(lib, tier, q, k, v, causal, out, lse, dout, flags=0):
    grads = [torch.full_like(t, float("nan")) for t in (q, k, v)]
    return lib.call(tier, "attention_bwd", causal | flags, q=q, k=k, v=v, out=out, lse=lse, dout=dout, dq=grads[0], dk=grads[1], dv=grads[2], **sizes(q, k)), grads


def expected(q, k, v, causal):
    q, k, v = (t.double().transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1 + k.shape[2] - q.shape[2]), float("-inf"))
    lse = s.logsumexp(-1)
    return (torch.nan_to_num((s - lse[..., None]).exp()) @ v).transpose(1, 2), lse


def error(got, want):
    return ((got.double() - want).norm() / want.norm()).item()


ANY_ORDER = 4


def check(lib, tier, with_backward, flags=0):
    shapes = [(2, 4, 2, 300, 411, 128, 1), (2, 3, 3, 517, 517, 64, 1), (1, 4, 1, 700, 1025, 128, 0), (2, 2, 2, 1000, 777, 64, 0), (1, 2, 2, 2048, 2048, 128, 1), (3, 8, 2, 1, 3000, 128, 0), (1, 2, 1, 333, 500, 96, 1)]
    worst = {}
    for B, H, Hk, Lq, Lk, D, causal in shapes:
        q, k, v = inputs(B, H, Hk, Lq, Lk, D)
        run, out, lse = forward(lib, tier, q, k, v, causal)
        run()
        leaves = [t.double().requires_grad_() for t in (q, k, v)]
        want, want_lse = expected(*leaves, causal)
        e = dict(out=error(out, want), lse=error(lse, want_lse))
        if with_backward:
            dout = torch.randn_like(out)
            go, grads = backward(lib, tier, q, k, v, causal, out, lse, dout, flags)
            go()
            first = [g.clone() for g in grads]
            go()
            e.update({n: error(g, w) for n, g, w in zip(("dq", "dk", "dv"), grads, torch.autograd.grad(want, leaves, dout.double()))})
            e["repeats"] = float(not all(torch.equal(a, b) for a, b in zip(first, grads)))
        for key, x in e.items():
            worst[key] = max(worst.get(key, 0), x if x == x else float("inf"))
    wrong = max(x for key, x in worst.items() if key != "repeats" or not flags) > 1e-2
    print(f"  {'WRONG' if wrong else 'ok   '} {lib.name:12s} {tier:7s}{' any order' if flags else ''} " + " ".join(f"{k} {x:.1e}" for k, x in worst.items()), flush=True)


def guarded(f):
    try:
        return f()
    except Exception as e:
        return f"({str(e)[:60]})"


def line(what, cells):
    print(f"{what:42s} " + "  ".join(f"{n} {x:6.0f}" if isinstance(x, float) else f"{n} {x}" for n, x in cells), flush=True)


def bench_forward(libraries, tiers, with_torch):
    for B, H, Hk, Lq, Lk, D, causal in FORWARD:
        q, k, v = inputs(B, H, Hk, Lq, Lk, D)
        flops = 4 * B * H * Lq * Lk * D * (0.5 if causal else 1) * 1e-9
        cells = [(f"{tier}{lib.name}", guarded(lambda: flops / milliseconds(forward(lib, tier, q, k, v, causal)[0]))) for tier in tiers for lib in libraries]
        for name, backend in (("cuDNN", SDPBackend.CUDNN_ATTENTION), ("FA2", SDPBackend.FLASH_ATTENTION)) if with_torch else ():
            with sdpa_kernel(backend):
                qt, kt, vt = (t.transpose(1, 2) for t in (q, k, v))
                cells.append((name, guarded(lambda: flops / milliseconds(lambda: F.scaled_dot_product_attention(qt, kt, vt, is_causal=bool(causal))))))
        line(f"forward B{B} H{H} L{Lq} D{D}{' causal' if causal else ''}, TFLOP/s", cells)


def bench_varlen(libraries, tiers):
    """SeedVR's windows: 36 sequences of about 3.3 K tokens, 24 heads."""
    lengths = [3240 + 58 - 16 * (i % 5) for i in range(36)]
    total = sum(lengths)
    cu = torch.tensor([0] + lengths, device="cuda").cumsum(0).to(torch.int32)
    q, k, v = inputs(1, 24, 24, total, total, 128)
    flops = 4 * 24 * 128 * sum(n * n for n in lengths) * 1e-9
    more = dict(cu_seqlens_q=cu, cu_seqlens_k=cu, B=36, Bk=1, max_q=max(lengths), max_k=max(lengths))
    line("forward SeedVR 36 x 3.3K H24 D128, TFLOP/s", [(f"{tier}{lib.name}", guarded(lambda: flops / milliseconds(forward(lib, tier, q, k, v, 0, **more)[0]))) for tier in tiers for lib in libraries])


def bench_decode(libraries, tiers, with_torch):
    for B, H, Hk, Lq, Lk, D, _ in DECODE:
        q, k, v = inputs(B, H, Hk, Lq, Lk, D)
        bytes_ = 2 * k.numel() * 2 * 1e-6
        cells = [(f"{tier}{lib.name}", guarded(lambda: bytes_ / milliseconds(forward(lib, tier, q, k, v, 0)[0], 40))) for tier in tiers for lib in libraries]
        for page in (16, 64, 256):
            table = torch.randperm(B * Lk // page, device="cuda").to(torch.int32).reshape(B, -1)
            paged = [t.reshape(B * Lk // page, page, Hk, D) for t in (k, v)]
            more = dict(block_table=table, Bk=B * Lk // page, n_pages=Lk // page, Lk=page)
            cells += [(f"page {page} {tier}{lib.name}", guarded(lambda: bytes_ / milliseconds(forward(lib, tier, q, *paged, 0, **more)[0], 40))) for tier in tiers for lib in libraries]
        if with_torch:
            qt, kt, vt = (t.transpose(1, 2) for t in (q, k, v))
            cells.append(("SDPA", guarded(lambda: bytes_ / milliseconds(lambda: F.scaled_dot_product_attention(qt, kt, vt, enable_gqa=True), 40))))
        line(f"decode B{B} Hq{H} Hkv{Hk} L{Lk}, GB/s", cells)


def bench_backward(libraries, tiers, with_torch):
    for B, H, Hk, Lq, Lk, D, causal in FORWARD[:4]:
        q, k, v = inputs(B, H, Hk, Lq, Lk, D)
        dout, flops, cells = torch.randn_like(q), 10 * B * H * Lq * Lk * D * (0.5 if causal else 1) * 1e-9, []
        for tier in tiers:
            for lib in libraries:
                def one(flags):
                    run, out, lse = forward(lib, tier, q, k, v, causal)
                    run()
                    return flops / milliseconds(backward(lib, tier, q, k, v, causal, out, lse, dout, flags)[0], 6)
                cells += [(f"{tier}{lib.name}", guarded(lambda: one(0))), (f"{tier}{lib.name} any order", guarded(lambda: one(ANY_ORDER)))]
        for name, backend in (("cuDNN", SDPBackend.CUDNN_ATTENTION), ("FA2", SDPBackend.FLASH_ATTENTION)) if with_torch else ():
            with sdpa_kernel(backend):
                leaves = [t.transpose(1, 2).detach().requires_grad_() for t in (q, k, v)]
                def both():
                    out = F.scaled_dot_product_attention(*leaves, is_causal=bool(causal))
                    d = dout.transpose(1, 2)
                    return flops / milliseconds(lambda: torch.autograd.grad(out, leaves, d, retain_graph=True), 6)
                cells.append((name, guarded(both)))
        line(f"backward B{B} H{H} L{Lq} D{D}{' causal' if causal else ''}, TFLOP/s", cells)


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("libraries", nargs="+")
    p.add_argument("--only", default="check,forward,varlen,decode,backward")
    p.add_argument("--tiers", default="hopper,ampere")
    p.add_argument("--no-torch", action="store_true")
    p.add_argument("--forward-only", action="store_true", help="check without gradients")
    o = p.parse_args()
    libraries, tiers, only, with_torch = [Library(x) for x in o.libraries], o.tiers.split(","), o.only.split(","), not o.no_torch
    print(torch.cuda.get_device_name(), torch.__version__)
    if "check" in only:
        for lib in libraries:
            for tier in tiers:
                for flags in (0,) if o.forward_only else (0, ANY_ORDER):
                    guarded_result = guarded(lambda: check(lib, tier, not o.forward_only, flags))
                    if guarded_result:
                        print(f"  WRONG {lib.name} {tier} {guarded_result}", flush=True)
    if "forward" in only:
        bench_forward(libraries, tiers, with_torch)
    if "varlen" in only:
        bench_varlen(libraries, tiers)
    if "decode" in only:
        bench_decode(libraries, tiers, with_torch)
    if "backward" in only:
        bench_backward(libraries, tiers, with_torch)
