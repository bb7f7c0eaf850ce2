"""PrimeKnet-Mamba for training: the parameters of primeknet_twin.PrimeKnet run through fused operators on a GPU.

Activations are (batch, time, frequency, channel) from the encoder to the decoders, in float32: with bfloat16 the
gradient was noise (14 times the true norm, 13.8 relative error, on weights trained that way). Three operators are
Triton kernels (depthwise convolution along time and/or frequency, its weight gradient, selective scan); torch.compile
fuses the rest. Consecutive linear maps are multiplied together first (in_proj * proj_conv1, proj_conv2 * out_proj,
dt_proj * x_proj).
"""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

# ------------------------------------------------------------------------------------------------ depthwise convolution
# y[b,t,f,c] = sum_ij w[i,j,c] x[b, t + i*dil - pad_t, f + j - pad_f, c]; channel block k only uses taps j0[k] <= j < j1[k].


@triton.jit
def _dw_kernel(x, w, y, j0s, j1s, T, NF, C, KH, KW, dil, pad_t, pad_f, SIGN: tl.constexpr, BF: tl.constexpr,
               CB: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    t = (row % T).to(tl.int32)
    base = row - t                                              # b * T
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    cb = tl.program_id(2)
    c = cb * CB + tl.arange(0, CB)
    j0 = tl.load(j0s + cb)
    j1 = tl.load(j1s + cb)
    acc = tl.zeros((BF, CB), tl.float32)
    for i in range(KH):
        ti = t + SIGN * (i * dil - pad_t)
        if (ti >= 0) & (ti < T):
            p = x + (base + ti) * NF * C + c[None, :]
            for j in range(j0, j1):
                fi = f + SIGN * (j - pad_f)
                ok = (fi >= 0) & (fi < NF)
                v = tl.load(p + fi[:, None] * C, mask=ok[:, None], other=0.0).to(tl.float32)
                wv = tl.load(w + (i * KW + j) * C + c).to(tl.float32)
                acc += v * wv[None, :]
    tl.store(y + row * NF * C + f[:, None] * C + c[None, :], acc, mask=(f < NF)[:, None])


@triton.jit
def _dw_wgrad_kernel(x, g, part, j0s, j1s, ROWS, T, NF, C, KH, KW, dil, pad_t, pad_f, R: tl.constexpr, J: tl.constexpr,
                     BF: tl.constexpr, CB: tl.constexpr):
    chunk = tl.program_id(0).to(tl.int64)
    cb = tl.program_id(1)
    c = cb * CB + tl.arange(0, CB)
    j0 = tl.load(j0s + cb)
    j1 = tl.load(j1s + cb)
    out = part + chunk * KH * KW * C + c
    for i in range(KH):
        for j in range(j0, j1, J):
            a0 = tl.zeros((BF, CB), tl.float32)
            a1 = tl.zeros((BF, CB), tl.float32)
            a2 = tl.zeros((BF, CB), tl.float32)
            a3 = tl.zeros((BF, CB), tl.float32)
            for r in range(R):
                row = chunk * R + r
                t = (row % T).to(tl.int32)
                ti = t + i * dil - pad_t
                if (row < ROWS) & (ti >= 0) & (ti < T):
                    px = x + (row - t + ti) * NF * C + c[None, :]
                    pg = g + row * NF * C + c[None, :]
                    for fb in range(0, NF, BF):
                        f = fb + tl.arange(0, BF)
                        gv = tl.load(pg + f[:, None] * C, mask=(f < NF)[:, None], other=0.0).to(tl.float32)
                        fi = f + j - pad_f
                        a0 += gv * tl.load(px + fi[:, None] * C, mask=((fi >= 0) & (fi < NF))[:, None], other=0.0).to(tl.float32)
                        if J == 4:
                            f1 = fi + 1
                            a1 += gv * tl.load(px + f1[:, None] * C, mask=((f1 >= 0) & (f1 < NF))[:, None], other=0.0).to(tl.float32)
                            f2 = fi + 2
                            a2 += gv * tl.load(px + f2[:, None] * C, mask=((f2 >= 0) & (f2 < NF))[:, None], other=0.0).to(tl.float32)
                            f3 = fi + 3
                            a3 += gv * tl.load(px + f3[:, None] * C, mask=((f3 >= 0) & (f3 < NF))[:, None], other=0.0).to(tl.float32)
            o = out + (i * KW + j) * C
            tl.store(o, tl.sum(a0, 0))
            if J == 4:
                if j + 1 < j1:
                    tl.store(o + C, tl.sum(a1, 0))
                if j + 2 < j1:
                    tl.store(o + 2 * C, tl.sum(a2, 0))
                if j + 3 < j1:
                    tl.store(o + 3 * C, tl.sum(a3, 0))


def _dw_run(x, w, taps, dil, pad_t, pad_f, sign):
    b, t, f, c = x.shape
    kh, kw, _ = w.shape
    y = torch.empty_like(x)
    bf, cb = 16, c // taps.shape[1]
    _dw_kernel[(b * t, triton.cdiv(f, bf), c // cb)](x, w, y, taps[0], taps[1], t, f, c, kh, kw, dil, pad_t, pad_f,
                                                   SIGN=sign, BF=bf, CB=cb, num_warps=2)
    return y


@torch.library.custom_op("krait::dw", mutates_args=())
def dw_op(x: torch.Tensor, w: torch.Tensor, taps: torch.Tensor, dil: int, pad_t: int, pad_f: int) -> torch.Tensor:
    return _dw_run(x.contiguous(), w, taps, dil, pad_t, pad_f, 1)


@dw_op.register_fake
def _(x, w, taps, dil, pad_t, pad_f):
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@torch.library.custom_op("krait::dw_bwd", mutates_args=())
def dw_bwd_op(x: torch.Tensor, w: torch.Tensor, taps: torch.Tensor, g: torch.Tensor, dil: int, pad_t: int,
              pad_f: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, g = x.contiguous(), g.contiguous()
    b, t, f, c = x.shape
    kh, kw, _ = w.shape
    dx = _dw_run(g, w, taps, dil, pad_t, pad_f, -1)
    r, cb = 16, c // taps.shape[1]
    chunks = triton.cdiv(b * t, r)
    part = torch.zeros(chunks, kh, kw, c, dtype=torch.float32, device=x.device)
    _dw_wgrad_kernel[(chunks, c // cb)](x, g, part, taps[0], taps[1], b * t, t, f, c, kh, kw, dil, pad_t, pad_f,
                                      R=r, J=1 if kw == 1 else 4, BF=32, CB=cb, num_warps=4)
    return dx, part.sum(0)


@dw_bwd_op.register_fake
def _(x, w, taps, g, dil, pad_t, pad_f):
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), torch.empty(w.shape, dtype=torch.float32, device=x.device)


def _dw_setup(ctx, inputs, output):
    x, w, taps, ctx.dil, ctx.pad_t, ctx.pad_f = inputs
    ctx.save_for_backward(x, w, taps)


def _dw_backward(ctx, g):
    x, w, taps = ctx.saved_tensors
    dx, dw = dw_bwd_op(x, w, taps, g, ctx.dil, ctx.pad_t, ctx.pad_f)
    return dx, dw, None, None, None, None


dw_op.register_autograd(_dw_backward, setup_context=_dw_setup)

# ------------------------------------------------------------------------------------------------ selective scan
# Sequential in time; one program per (sequence, block of channels); the 16 states of each channel stay in registers.
# The forward pass stores every state; the backward pass walks back through them.


@triton.jit
def _softplus(v):
    return tl.where(v > 20.0, v, tl.log(1.0 + tl.exp(tl.minimum(v, 20.0))))


@triton.jit
def _scan_fwd_kernel(u, dt, A, BC, D, z, y, states, T, NF, DI, N: tl.constexpr, BD: tl.constexpr):
    seq = tl.program_id(0).to(tl.int64)
    b = seq // NF
    f = seq % NF
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    n = tl.arange(0, N)
    a = tl.load(A + d[:, None] * N + n[None, :])
    dd = tl.load(D + d)
    x = tl.zeros((BD, N), tl.float32)
    for t in range(T):
        pos = (b * T + t) * NF + f
        ut = tl.load(u + pos * DI + d).to(tl.float32)
        zt = tl.load(z + pos * DI + d).to(tl.float32)
        dtt = _softplus(tl.load(dt + pos * DI + d).to(tl.float32))
        bt = tl.load(BC + pos * 2 * N + n).to(tl.float32)
        ct = tl.load(BC + pos * 2 * N + N + n).to(tl.float32)
        x = tl.exp(dtt[:, None] * a) * x + (dtt * ut)[:, None] * bt[None, :]
        p = tl.sum(x * ct[None, :], 1) + dd * ut
        tl.store(y + pos * DI + d, p * zt * tl.sigmoid(zt))
        tl.store(states + (pos * DI + d)[:, None] * N + n[None, :], x)


@triton.jit
def _scan_bwd_kernel(u, dt, A, BC, D, z, states, dy, du, ddt, dz, dBC, dA, dD, T, NF, DI, POS, N: tl.constexpr,
                     BD: tl.constexpr):
    seq = tl.program_id(0).to(tl.int64)
    blk = tl.program_id(1)
    b = seq // NF
    f = seq % NF
    d = blk * BD + tl.arange(0, BD)
    n = tl.arange(0, N)
    a = tl.load(A + d[:, None] * N + n[None, :])
    dd = tl.load(D + d)
    carry = tl.zeros((BD, N), tl.float32)
    acc_a = tl.zeros((BD, N), tl.float32)
    acc_d = tl.zeros((BD,), tl.float32)
    for k in range(T):
        t = T - 1 - k
        pos = (b * T + t) * NF + f
        ut = tl.load(u + pos * DI + d).to(tl.float32)
        zt = tl.load(z + pos * DI + d).to(tl.float32)
        gy = tl.load(dy + pos * DI + d).to(tl.float32)
        raw = tl.load(dt + pos * DI + d).to(tl.float32)
        dtt = _softplus(raw)
        bt = tl.load(BC + pos * 2 * N + n).to(tl.float32)
        ct = tl.load(BC + pos * 2 * N + N + n).to(tl.float32)
        x = tl.load(states + (pos * DI + d)[:, None] * N + n[None, :]).to(tl.float32)
        s = tl.sigmoid(zt)
        p = tl.sum(x * ct[None, :], 1) + dd * ut
        g = gy * zt * s
        tl.store(dz + pos * DI + d, gy * p * s * (1.0 + zt * (1.0 - s)))
        dx = carry + g[:, None] * ct[None, :]
        dtu = dtt * ut
        kept = x - dtu[:, None] * bt[None, :]                   # exp(dt A) x_{t-1}
        dxb = tl.sum(dx * bt[None, :], 1)
        dxk = dx * kept
        ddelta = tl.sum(dxk * a, 1) + dxb * ut
        tl.store(ddt + pos * DI + d, ddelta * tl.sigmoid(raw))
        tl.store(du + pos * DI + d, dxb * dtt + g * dd)
        q = dBC + (blk * POS + pos) * 2 * N + n
        tl.store(q, tl.sum(dx * dtu[:, None], 0))
        tl.store(q + N, tl.sum(x * g[:, None], 0))
        acc_a += dxk * dtt[:, None]
        acc_d += g * ut
        carry = tl.exp(dtt[:, None] * a) * dx
    tl.store(dA + (seq * DI + d)[:, None] * N + n[None, :], acc_a)
    tl.store(dD + seq * DI + d, acc_d)


SCAN_BLOCK = 32


@torch.library.custom_op("krait::scan", mutates_args=())
def scan_op(u: torch.Tensor, dt: torch.Tensor, A: torch.Tensor, BC: torch.Tensor, D: torch.Tensor,
            z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    b, t, f, di = u.shape
    n = A.shape[1]
    u, dt, BC, z = u.contiguous(), dt.contiguous(), BC.contiguous(), z.contiguous()
    y = torch.empty_like(u)
    states = torch.empty(b, t, f, di, n, dtype=torch.float32, device=u.device)
    bd = min(SCAN_BLOCK, di)
    _scan_fwd_kernel[(b * f, di // bd)](u, dt, A, BC, D, z, y, states, t, f, di, N=n, BD=bd, num_warps=1)
    return y, states


@scan_op.register_fake
def _(u, dt, A, BC, D, z):
    return (torch.empty(u.shape, dtype=u.dtype, device=u.device),
            torch.empty(u.shape + (A.shape[1],), dtype=torch.float32, device=u.device))


@torch.library.custom_op("krait::scan_bwd", mutates_args=())
def scan_bwd_op(u: torch.Tensor, dt: torch.Tensor, A: torch.Tensor, BC: torch.Tensor, D: torch.Tensor, z: torch.Tensor,
                states: torch.Tensor, dy: torch.Tensor) -> tuple[
                    torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    b, t, f, di = u.shape
    n = A.shape[1]
    u, dt, BC, z, dy = u.contiguous(), dt.contiguous(), BC.contiguous(), z.contiguous(), dy.contiguous()
    du, ddt, dz = torch.empty_like(u), torch.empty_like(u), torch.empty_like(u)
    bd = min(SCAN_BLOCK, di)
    blocks = di // bd
    dBC = torch.empty((blocks,) + BC.shape, dtype=torch.float32, device=u.device)
    dA = torch.empty(b * f, di, n, dtype=torch.float32, device=u.device)
    dD = torch.empty(b * f, di, dtype=torch.float32, device=u.device)
    _scan_bwd_kernel[(b * f, blocks)](u, dt, A, BC, D, z, states, dy, du, ddt, dz, dBC, dA, dD, t, f, di, b * t * f,
                                      N=n, BD=bd, num_warps=1)
    return du, ddt, dA.sum(0), dBC.sum(0).to(BC.dtype), dD.sum(0), dz


@scan_bwd_op.register_fake
def _(u, dt, A, BC, D, z, states, dy):
    e = lambda v: torch.empty(v.shape, dtype=v.dtype, device=v.device)
    return e(u), e(u), e(A), e(BC), e(D), e(u)


def _scan_setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs, output[1])
    ctx.mark_non_differentiable(output[1])


def _scan_backward(ctx, dy, _):
    u, dt, A, BC, D, z, states = ctx.saved_tensors
    return scan_bwd_op(u, dt, A, BC, D, z, states, dy)


scan_op.register_autograd(_scan_backward, setup_context=_scan_setup)

# ------------------------------------------------------------------------------------------------ model


def _lin(x, w, b=None):
    return F.linear(x, w.flatten(1).to(x.dtype), None if b is None else b.to(x.dtype))


def _layer_norm(x, m):
    return F.layer_norm(x.float(), (x.shape[-1],), m.weight, m.bias, m.eps).to(x.dtype)


def _inst_norm_prelu(x, norm, prelu):
    v = x.float()
    mean = v.mean((1, 2), keepdim=True)
    var = ((v * v).mean((1, 2), keepdim=True) - mean * mean).clamp(min=0)
    v = (v - mean) * torch.rsqrt(var + norm.eps) * norm.weight + norm.bias
    return torch.where(v > 0, v, v * prelu.weight).to(x.dtype)


class FastPrimeKnet(torch.nn.Module):
    """Wraps a non-causal Mamba twin; call it with (mag, pha) of shape (B, T, F), get mask, real, imag of that shape."""

    def __init__(self, twin, dtype=torch.float32):
        super().__init__()
        self.twin, self.dtype = twin, dtype
        self._taps = {}

    def taps(self, kernels, device):
        """(2, blocks) first and last+1 tap of each kernel, centred in the widest one."""
        key = (tuple(kernels), str(device))
        if key not in self._taps:
            m = max(kernels)
            j0 = [(m - k) // 2 for k in kernels]
            self._taps[key] = torch.tensor([j0, [a + k for a, k in zip(j0, kernels)]], dtype=torch.int32, device=device)
        return self._taps[key]

    def prepare(self, device):
        c = self.twin.dense_encoder.dense_conv_1[0].weight.shape[0]
        for k in self.twin.sequence_block[0].freq_stage[0][1].kernels:
            self.taps((k,), device)
        self.taps(self.twin.sequence_block[0].freq_stage[0][1].kernels, device)
        for blocks in range(1, 8):
            self.taps((3,) * blocks, device)
            self.taps((1,) * blocks, device)
        self.block = c

    def dw_time(self, x, conv, pad):
        w = conv.weight[:, 0].t()[:, None, :].contiguous()
        return dw_op(x, w.to(x.dtype), self.taps((1,) * (x.shape[-1] // self.block), x.device), 1, pad, 0)

    def dense_block(self, x, block):
        skip = x
        for i, layer in enumerate(block.dense_block):
            dw, pw = layer[0], layer[1]
            w = dw.weight[:, 0].permute(1, 2, 0).contiguous()
            taps = self.taps((3,) * (i + 1), x.device)
            h = dw_op(skip, w.to(x.dtype), taps, 2 ** i, 2 ** i, 1)
            bias = pw.bias + pw.weight.flatten(1) @ dw.bias
            x = _inst_norm_prelu(_lin(h, pw.weight, bias), layer[2], layer[3])
            if i + 1 < len(block.dense_block):
                skip = torch.cat((x, skip), -1)
        return x

    def attention(self, x, m, axis):
        g = _lin(_layer_norm(x, m.norm), m.gate[0].weight, m.gate[0].bias)
        w = m.gate[1].weight[:, 0]
        if w.shape[1] == 1:
            g = g * w[:, 0].to(x.dtype)
        else:
            taps = self.taps((w.shape[1],) * (g.shape[-1] // self.block), x.device)
            g = dw_op(g, w.t()[None].contiguous().to(x.dtype), taps, 1, 0, w.shape[1] // 2)
        a, b = (g + m.gate[1].bias.to(x.dtype)).chunk(2, -1)
        g = a * b
        ca = _lin(g.float().mean(axis, keepdim=True), m.channel_attn[1].weight, m.channel_attn[1].bias)
        return x + m.beta[0, :, 0].to(x.dtype) * _lin(g * ca.to(x.dtype), m.pwconv.weight, m.pwconv.bias)

    def time_network(self, x, m):
        s = m.mamba
        h = _layer_norm(x, m.norm)
        d = s.d_inner
        w1 = s.in_proj.weight @ m.proj_conv1.weight[:, :, 0]
        b1 = s.in_proj.weight @ m.proj_conv1.bias
        u, z = _lin(h, w1[:d], b1[:d]), _lin(h, w1[d:], b1[d:])
        u = F.silu(self.dw_time(u, s.conv1d, s.d_conv - 1) + s.conv1d.bias.to(x.dtype))
        dt = _lin(u, s.dt_proj.weight @ s.x_proj.weight[:s.dt_rank], s.dt_proj.bias)
        bc = _lin(u, s.x_proj.weight[s.dt_rank:])
        y, _ = scan_op(u, dt, -torch.exp(s.A_log), bc, s.D, z)
        w2 = m.proj_conv2.weight[:, :, 0] @ s.out_proj.weight
        return x + m.beta[0, :, 0].to(x.dtype) * _lin(y, w2, m.proj_conv2.bias)

    def ffn(self, x, m):
        h = _lin(_layer_norm(x, m.norm), m.proj_conv1.weight, m.proj_conv1.bias)
        ks = m.kernels
        top = max(ks)

        def kernels(convs):
            return torch.cat([F.pad(c.weight[:, 0], ((top - k) // 2, (top - k) // 2)) for k, c in zip(ks, convs)], 0)

        dws = [getattr(m, "attn_%d" % k)[0] for k in ks]
        pws = [getattr(m, "attn_%d" % k)[1] for k in ks]
        cvs = [getattr(m, "conv_%d" % k) for k in ks]
        taps = self.taps(ks, x.device)
        att = dw_op(h, kernels(dws).t()[None].contiguous().to(x.dtype), taps, 1, 0, top // 2)
        cnv = dw_op(h, kernels(cvs).t()[None].contiguous().to(x.dtype), taps, 1, 0, top // 2)
        bias = torch.cat([p.bias + p.weight[:, :, 0] @ c.bias for p, c in zip(pws, dws)])
        att = _lin(att, torch.block_diag(*[p.weight[:, :, 0] for p in pws]), bias)
        h = att * (cnv + torch.cat([c.bias for c in cvs]).to(x.dtype))
        return x + m.beta[0, :, 0].to(x.dtype) * _lin(h, m.proj_conv2.weight, m.proj_conv2.bias)

    def upsample(self, x, conv):
        """ConvTranspose2d (1,3), stride (1,2) on (B, T, F', C) -> (B, T, 2F'+1, C)."""
        w = conv.weight[:, :, 0].permute(2, 1, 0).reshape(-1, conv.weight.shape[0])
        y0, y1, y2 = _lin(x, w).chunk(3, -1)
        even = F.pad(y0, (0, 0, 0, 1)) + F.pad(y2, (0, 0, 1, 0))
        odd = F.pad(y1, (0, 0, 0, 1))
        b, t, f, c = even.shape
        return torch.stack((even, odd), 3).reshape(b, t, 2 * f, c)[:, :, :2 * f - 1] + conv.bias.to(x.dtype)

    def forward(self, mag, pha):
        net = self.twin
        enc_dt, seq_dt, dec_dt = self.dtype if isinstance(self.dtype, tuple) else (self.dtype,) * 3
        enc = net.dense_encoder
        x = _lin(torch.stack((mag, pha), -1), enc.dense_conv_1[0].weight, enc.dense_conv_1[0].bias)
        x = _inst_norm_prelu(x, enc.dense_conv_1[1], enc.dense_conv_1[2]).to(enc_dt)
        x = self.dense_block(x, enc.dense_block)
        w = enc.dense_conv_2[0].weight[:, :, 0]
        n = (x.shape[2] - 3) // 2 * 2 + 1
        x = torch.cat((x[:, :, 0:n:2], x[:, :, 1:n + 1:2], x[:, :, 2:n + 2:2]), -1)
        x = _lin(x, w.permute(0, 2, 1).flatten(1), enc.dense_conv_2[0].bias)
        x = _inst_norm_prelu(x, enc.dense_conv_2[1], enc.dense_conv_2[2])
        x = x.to(seq_dt)
        for blk in net.sequence_block:
            y = x
            for ca, tn in blk.time_stage:
                y = self.time_network(self.attention(y, ca, 1), tn)
            x = y + x * blk.beta_t[0, :, 0].to(seq_dt)
            y = x
            for ca, ff in blk.freq_stage:
                y = self.ffn(self.attention(y, ca, 2), ff)
            x = y + x * blk.beta_f[0, :, 0].to(seq_dt)
        x = x.to(dec_dt)
        md = net.mask_decoder
        u = self.upsample(self.dense_block(x, md.dense_block), md.mask_conv[0]).float()
        u = _inst_norm_prelu(_lin(u, md.mask_conv[1].weight, md.mask_conv[1].bias), md.mask_conv[2], md.mask_conv[3])
        u = _lin(u, md.mask_conv[4].weight, md.mask_conv[4].bias)[..., 0]
        mask = md.lsigmoid.beta * torch.sigmoid(md.lsigmoid.slope[:, 0] * u)
        pd = net.phase_decoder
        v = self.upsample(self.dense_block(x, pd.dense_block), pd.phase_conv[0])
        v = _inst_norm_prelu(v, pd.phase_conv[1], pd.phase_conv[2]).float()
        re = _lin(v, pd.phase_conv_r.weight, pd.phase_conv_r.bias)[..., 0]
        im = _lin(v, pd.phase_conv_i.weight, pd.phase_conv_i.bias)[..., 0]
        return mask, re, im
