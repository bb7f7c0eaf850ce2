"""checks.py NAME: one check of the Python side on a GPU. Prints lines; exit status 1 where a number is wrong."""
import sys

import torch

DEV = "cuda" if torch.cuda.is_available() else "cpu"  # the CPU: to try this script
wrong = 0


def relative(got, want):
    return float((got.double() - want.double()).norm() / (want.double().norm() + 1e-300))


def tell(what, error, limit):
    global wrong
    bad = not error <= limit
    wrong += bad
    print("%s %-62s %.1e (%.0e)" % ("WRONG" if bad else "ok   ", what, error, limit), flush=True)


def report():
    from mamba_ssm import Mamba2
    model = Mamba2(d_model=512).to(DEV)
    x = torch.randn(1, 1024, 512, device=DEV, requires_grad=True)
    y = model(x)
    print("output:", tuple(y.shape), y.device)
    y.square().mean().backward()
    tell("gradients are not finite", float(not (y.isfinite().all() and x.grad.isfinite().all() and all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters()))), 0)
    if DEV == "cuda":
        y_cpu = Mamba2(d_model=512)
        y_cpu.load_state_dict({k: v.cpu() for k, v in model.state_dict().items()})
        xc = x.detach().cpu().requires_grad_()
        out = y_cpu(xc)
        out.square().mean().backward()
        tell("output beside the CPU's", relative(y.detach().cpu(), out.detach()), 1e-5)
        tell("gradient of x beside the CPU's", relative(x.grad.cpu(), xc.grad), 1e-4)
        for (k, p), q in zip(model.named_parameters(), y_cpu.parameters()):
            tell("gradient of " + k, relative(p.grad.cpu(), q.grad), 1e-4)


def attention_reference(q, k, v, causal):
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    if causal:
        n, m = scores.shape[2:]
        scores = scores.masked_fill(torch.ones(n, m, dtype=torch.bool, device=q.device).triu(1 + m - n), float("-inf"))
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(3), v)


def wide_attention():
    """Base tier (KRAIT_TIER=base): gradients of heads of 129 to 256 channels."""
    from flash_attn import flash_attn_func
    for d in (136, 160, 192, 256, 128):
        for dtype, limit in ((torch.float32, 1e-5), (torch.bfloat16, 1.5e-2), (torch.float16, 2e-3)):
            for causal in (False, True):
                torch.manual_seed(d)
                leaf = [torch.randn(2, n, 3, d, device=DEV).to(dtype).requires_grad_() for n in (77, 130, 130)]
                twin = [t.detach().double().requires_grad_() for t in leaf]
                out = flash_attn_func(*leaf, causal=causal)
                want = attention_reference(*twin, causal)
                dout = torch.randn_like(out)
                got, wanted = torch.autograd.grad(out, leaf, dout), torch.autograd.grad(want, twin, dout.double())
                tell("D %d %s%s: out, dq, dk, dv" % (d, str(dtype)[6:], " causal" if causal else ""), max([relative(out.detach(), want.detach())] + [relative(g, w) for g, w in zip(got, wanted)]), limit)


def gated_norm():
    """The gated norm and its gradient at widths around what 48 KiB hold; on the tier KRAIT_TIER names."""
    from mamba_ssm.ops.triton.layernorm_gated import rmsnorm_fn
    for width in (5376, 5377, 5440, 5632, 5633, 5120):
        for dtype, limit in ((torch.float32, 2e-5), (torch.bfloat16, 2e-2)):
            for before in (True, False):
                torch.manual_seed(width)
                leaf = [torch.randn(37, width, device=DEV).to(dtype), torch.randn(width, device=DEV), torch.randn(37, width, device=DEV).to(dtype)]
                leaf = [t.requires_grad_() for t in leaf]
                x, w, z = twin = [t.detach().double().requires_grad_() for t in leaf]
                out = rmsnorm_fn(leaf[0], leaf[1], None, z=leaf[2], norm_before_gate=before)
                gate = torch.nn.functional.silu(z)
                y = x if before else x * gate
                want = y * (y.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w * (gate if before else 1)
                dout = torch.randn_like(out)
                got, wanted = torch.autograd.grad(out, leaf, dout), torch.autograd.grad(want, twin, dout.double())
                tell("M %d %s %s: out, dx, dweight, dz" % (width, str(dtype)[6:], "norm, gate" if before else "gate, norm"), max([relative(out.detach(), want.detach())] + [relative(g, v) for g, v in zip(got, wanted)]), limit)


def captured(module, x, dout):
    """Forward and both under a captured graph beside eager calls: the same bits."""
    def both():
        for p in (x, *module.parameters()):
            p.grad = None
        out = module(x)
        out.backward(dout)
        return [out.detach().clone(), x.grad.clone(), *[p.grad.clone() for p in module.parameters()]]

    def forward():
        with torch.no_grad():
            return module(x)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            eager = both()
            plain = forward().clone()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = forward()
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()
    first = torch.equal(out, plain)
    for p in (x, *module.parameters()):
        p.grad = None
    graph2 = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph2):
        out2 = module(x)
        out2.backward(dout)
    for p in (x, *module.parameters()):
        p.grad.zero_()
    graph2.replay()
    torch.cuda.synchronize()
    grads = [out2.detach(), x.grad, *[p.grad for p in module.parameters()]]
    return first, [torch.equal(a, b) for a, b in zip(grads, eager)], max(relative(a, b) for a, b in zip(grads, eager))


def graph_block():
    from mamba_ssm import Mamba, Mamba2
    for kind, d, b, length in ((Mamba, 768, 8, 2048), (Mamba, 2560, 2, 2048), (Mamba, 64, 402, 100), (Mamba2, 768, 8, 2048), (Mamba2, 512, 1, 1024)):
        torch.manual_seed(0)
        module = kind(d, device=DEV, dtype=torch.bfloat16)
        x = torch.randn(b, length, d, device=DEV, dtype=torch.bfloat16, requires_grad=True)
        try:
            forward, both, error = captured(module, x, torch.randn_like(x))
        except Exception as e:
            tell("%s(%d) under a captured graph: %s" % (kind.__name__, d, str(e)[:120]), 1, 0)
            torch.cuda.synchronize()
            continue
        name = "%s(%d) B%d L%d captured: " % (kind.__name__, d, b, length)
        tell(name + "forward's bits", float(not forward), 0)
        tell(name + "forward and gradients (%d of %d tensors bit for bit)" % (sum(both), len(both)), error, 1e-2)


def big():
    """The SSD of 2^31 and more elements over a million tokens: the last tokens and heads beside the equation in float64."""
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined
    length, h, p, n = (1 << 20, 33, 64, 64) if DEV == "cuda" else (1 << 12, 5, 64, 64)
    torch.manual_seed(0)
    t = dict(x=torch.empty(1, length, h, p, device=DEV, dtype=torch.bfloat16).normal_(), dt=torch.rand(1, length, h, device=DEV) * 0.1 + 0.05, A=-torch.rand(h, device=DEV) - 1,
             B=torch.randn(1, length, 1, n, device=DEV, dtype=torch.bfloat16) / 3, C=torch.randn(1, length, 1, n, device=DEV, dtype=torch.bfloat16) / 3)
    print("%d elements of x" % t["x"].numel())
    t = {k: v.requires_grad_() for k, v in t.items()}
    out, final = mamba_chunk_scan_combined(t["x"], t["dt"], t["A"], t["B"], t["C"], 256, return_final_states=True)
    dout = torch.empty_like(out).normal_()
    out.backward(dout)
    if DEV == "cuda":
        torch.cuda.synchronize()
        print("%.1f GiB at most" % (torch.cuda.max_memory_allocated() / 2**30))
    n_last, kept = 2000, 1000
    for head in (0, h // 2, h - 1):
        tail = {k: (v[:, -n_last:, head] if k in ("x", "dt") else v[head] if k == "A" else v[:, -n_last:, 0]).detach().double().requires_grad_() for k, v in t.items()}
        a = (tail["dt"][0] * tail["A"]).cumsum(0)
        decay = (a[:, None] - a[None]).masked_fill(~torch.ones(n_last, n_last, dtype=torch.bool, device=DEV).tril(), float("-inf")).exp()
        y = (decay * (tail["C"][0] @ tail["B"][0].T) * tail["dt"][0]) @ tail["x"][0]
        state = torch.einsum("j,jp,jn->pn", decay[-1] * tail["dt"][0], tail["x"][0], tail["B"][0])
        tell("head %d: the last %d tokens" % (head, kept), relative(out[0, -kept:, head].detach(), y[-kept:].detach()), 1e-2)
        tell("head %d: the final state" % head, relative(final[0, head].detach(), state.detach()), 1e-2)
        dx, ddt = torch.autograd.grad(y, [tail["x"], tail["dt"]], dout[0, -n_last:, head].double())
        tell("head %d: dx of the last %d tokens" % (head, kept), relative(t["x"].grad[0, -kept:, head], dx[0, -kept:]), 1e-2)
    tell("values that are not finite", float(not (out.isfinite().all() and t["x"].grad.isfinite().all() and all(v.grad.isfinite().all() for v in t.values()))), 0)


def turned(v, angles):
    """Neighbours of (L, N), of which the first pairs turn by (L, M)."""
    m = angles.shape[1]
    x, y = v[:, 0:2 * m:2], v[:, 1:2 * m:2]
    pairs = torch.stack([angles.cos() * x - angles.sin() * y, angles.sin() * x + angles.cos() * y], -1)
    return torch.cat([pairs.flatten(1), v[:, 2 * m:]], 1)


def big_mamba3():
    """As big, of Mamba-3: rows of 2^31 and more elements over a million tokens."""
    from mamba_ssm.ops.triton.mamba3.mamba3_siso_combined import mamba3_siso_combined
    length, h, p, n, m = (1 << 20, 33, 64, 64, 16) if DEV == "cuda" else (1 << 12, 5, 64, 64, 16)
    torch.manual_seed(0)
    normal, rand = lambda *shape: torch.empty(1, length, *shape, device=DEV, dtype=torch.bfloat16).normal_(), lambda: torch.rand(1, h, length, device=DEV)
    t = dict(Q=normal(1, n) / 3, K=normal(1, n) / 3, V=normal(h, p), DT=rand() * 0.1 + 0.05, Trap=rand() * 4 - 2, Q_bias=torch.rand(h, n, device=DEV), K_bias=torch.rand(h, n, device=DEV),
             Angles=normal(1, m))
    t["ADT"] = -t["DT"] * (torch.rand(h, 1, device=DEV) + 1)
    t = {k: v.requires_grad_() for k, v in t.items()}
    out = mamba3_siso_combined(*[t[k] for k in ("Q", "K", "V", "ADT", "DT", "Trap", "Q_bias", "K_bias", "Angles")])
    dout = torch.empty_like(out).normal_()
    out.backward(dout)
    if DEV == "cuda":
        torch.cuda.synchronize()
        print("%d elements of V, %.1f GiB at most" % (t["V"].numel(), torch.cuda.max_memory_allocated() / 2**30))
    n_last, kept = 2000, 1000
    for head in (0, h // 2, h - 1):
        q, k, angles, v = [t[name][0, -n_last:, head if name == "V" else 0].detach().double() for name in ("Q", "K", "Angles", "V")]
        adt, dt, trap = [t[name][0, head, -n_last:].detach().double() for name in ("ADT", "DT", "Trap")]
        v.requires_grad_(), dt.requires_grad_()
        angle, own = (torch.pi * angles.tanh() * dt[:, None]).cumsum(0), trap.sigmoid() * dt
        before = own + torch.cat([((-trap).sigmoid() * dt)[1:], dt[:1] * 0])  # of a key for later tokens
        scores = turned(q + t["Q_bias"][head].double(), angle) @ turned(k + t["K_bias"][head].double(), angle).T
        a, later = adt.cumsum(0), torch.ones(n_last, n_last, dtype=torch.bool, device=DEV).tril(-1)
        y = ((a[:, None] - a[None]).masked_fill(~later, float("-inf")).exp() * scores * before + torch.diag(scores.diagonal() * own)) @ v
        tell("head %d: the last %d tokens" % (head, kept), relative(out[0, -kept:, head].detach(), y[-kept:].detach()), 1e-2)
        dv, ddt = torch.autograd.grad(y, [v, dt], dout[0, -n_last:, head].double())
        tell("head %d: dV of the last %d tokens" % (head, kept), relative(t["V"].grad[0, -kept:, head], dv[-kept:]), 1e-2)
        tell("head %d: dDT of the last %d tokens" % (head, kept), relative(t["DT"].grad[0, head, -kept:], ddt[-kept:]), 2e-2)
    tell("values that are not finite", float(not (out.isfinite().all() and all(v.grad.isfinite().all() for v in t.values()))), 0)


def compare():
    """compare GOT WANT LIMIT ...: recordings in float32, relative L2."""
    import numpy as np

    def read(path):
        raw = open(path, "rb").read()
        at = 12
        while raw[at:at + 4] != b"data":
            if raw[at:at + 4] == b"fmt ":
                kind, bits = int.from_bytes(raw[at + 8:at + 10], "little"), int.from_bytes(raw[at + 22:at + 24], "little")
            at += 8 + int.from_bytes(raw[at + 4:at + 8], "little")
        assert bits == 32, "%s has %d bits" % (path, bits)
        n = int.from_bytes(raw[at + 4:at + 8], "little")
        return np.frombuffer(raw[at + 8:at + 8 + n], np.float32).astype(np.float64)
    got, want = read(sys.argv[2]), read(sys.argv[3])
    assert got.shape == want.shape, (got.shape, want.shape)
    tell("samples of 40 s", float(np.linalg.norm(got - want) / np.linalg.norm(want)), float(sys.argv[4]))


globals()[sys.argv[1]]()
print("%s: %d wrong" % (sys.argv[1], wrong))
sys.exit(wrong > 0)
