"""The Mamba 3 block as one autograd node: input projection, norms of B and C, time steps and decays, scan, output projection.

The scan's gradient is written straight into the columns of the input projection's. Saved tensors are the projections' inputs and outputs, time steps, decays and
what A's activation gives, and the normed B and C with their weights."""

from typing import NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, is_grad_enabled

from .._call import Call, signer
from .._torch import autocast_dtype, is_fake, is_traced, layout, once
from .mamba3 import BACKWARD, FORWARD
from .norms import GATED_NORM, GATED_NORM_BWD
from .product import matmul

_signature = signer(14)
_known = {}
_MOST_KNOWN = 256
_HALVES, _RMS = 1, 1  # KRAIT_MAMBA3_HALVES, KRAIT_GATED_NORM_RMS
_REAL = (torch.float32, torch.float16, torch.bfloat16)


class Weights(NamedTuple):
    in_proj: Tensor  # (columns, M): z, x, B, C, dt, A, trap, angles
    dt_bias: Tensor
    B_bias: Tensor  # (H, R, N)
    C_bias: Tensor
    B_norm: Tensor  # (N)
    C_norm: Tensor
    D: Tensor
    mimo_x: Optional[Tensor]  # (H, R, P)
    mimo_z: Optional[Tensor]
    mimo_o: Optional[Tensor]
    norm: Optional[Tensor]  # (H P)
    out_proj: Tensor  # (M, H P)
    cu_seqlens: Optional[Tensor] = None


class Options(NamedTuple):
    headdim: int
    groups: int
    softplus_A: bool
    A_floor: float
    norm_eps: float  # of B and C
    eps: float


def heavy_tail(x):
    """1 + x from 0 on, 1 / (1 - x) below."""
    return x.clamp(min=0) + 1 / (1 - x.clamp(max=0))


def _slope(activated, o):
    """The derivative of max(act(A), floor), from act(A): that of softplus is 1 - e^-softplus, that of the heavy tail its square below 1, from there on 1."""
    slope = torch.expm1(-activated).neg_() if o.softplus_A else activated.clamp(max=1).square_()
    return slope.mul_(activated >= o.A_floor)


class _Plan:
    """What a signature determines: sizes, and the packed calls."""

    def __init__(self, u, w, o):
        self.options, self.shape = o, u.shape[:2]
        self.rows, (self.heads, self.ranks, self.n) = u.shape[0] * u.shape[1], w.B_bias.shape
        inner, vectors = w.out_proj.shape[1], self.ranks * o.groups * self.n
        pairs = w.in_proj.shape[0] - 2 * inner - 2 * vectors - 3 * self.heads
        self.sizes, self.of_norm = [inner, inner, vectors, vectors, self.heads, self.heads, self.heads, pairs], slice(2 * inner, 2 * inner + 2 * vectors)
        self.has_gradients = any([t is not None and t.requires_grad for t in (u, *w)])
        self.norm, self.scan, self.norm_backward = Call(GATED_NORM), Call(FORWARD), Call(GATED_NORM_BWD)

    def heads_of(self, t):
        return t.unflatten(-1, (self.heads, self.options.headdim))

    def vectors_of(self, t):
        return t.unflatten(-1, (-1, self.n))

    def over_heads(self, angles):
        return angles.unsqueeze(2).expand(-1, -1, self.heads, -1)

    def norm_weight(self, w):
        """Of each vector of B, then of C."""
        copies = self.ranks * self.options.groups
        return torch.cat((w.B_norm,) * copies + (w.C_norm,) * copies)

    def scan_inputs(self, w, columns, normed, dt, log_decay):
        z, x, _, _, _, _, trap, angles = columns
        B, C = normed.view(*self.shape, -1).chunk(2, dim=-1)
        norm = None if w.norm is None else w.norm.view(self.heads, -1)
        return (self.heads_of(x), log_decay, dt, trap, self.vectors_of(B), self.vectors_of(C), w.B_bias, w.C_bias, self.over_heads(angles), w.D, self.heads_of(z),
                w.mimo_x, w.mimo_z, w.mimo_o, norm, None, None, None, None, w.cu_seqlens)

    def flags(self, w):
        return 0 if w.mimo_o is None else _HALVES


class Kept(NamedTuple):
    rows: Tensor  # of in_proj
    normed: Tensor  # B and C
    norm_weight: Tensor
    dt: Tensor
    activated: Tensor  # act(A)
    log_decay: Tensor
    y: Tensor  # of the scan


def _forward(plan, u, w):
    """-> (out, Kept)."""
    o = plan.options
    rows = matmul(u.reshape(plan.rows, -1), w.in_proj.t())
    columns = rows.view(*plan.shape, -1).split(plan.sizes, dim=-1)
    normed, norm_weight = rows.new_empty(plan.rows, plan.of_norm.stop - plan.of_norm.start), plan.norm_weight(w)
    tensors = rows[:, plan.of_norm], None, norm_weight, None, normed
    if plan.norm.words is None:
        plan.norm.pack(tensors, _RMS, group_size=plan.n, eps=o.norm_eps)
    plan.norm.run(tensors)
    dt = F.softplus(columns[4].float() + w.dt_bias)
    A = columns[5].float()
    activated = F.softplus(A) if o.softplus_A else heavy_tail(A)
    log_decay, y = activated.clamp(min=o.A_floor).mul_(dt).neg_(), rows.new_empty(*plan.shape, plan.heads, o.headdim)
    tensors = (*plan.scan_inputs(w, columns, normed, dt, log_decay), y, None, None, None, None)
    if plan.scan.words is None:
        plan.scan.pack(tensors, plan.flags(w), eps=o.eps)
    plan.scan.run(tensors)
    y = y.view(plan.rows, -1)
    return matmul(y, w.out_proj.t()).view(*plan.shape, -1), Kept(rows, normed, norm_weight, dt, activated, log_decay, y)


def _scan_gradients(plan, w, kept, dout, dcolumns):
    """dout: of the scan's result -> gradients of the normed vectors, dt, log decays, and of the weights; writes those of in_proj's columns but for B, C, dt and A."""
    dnormed, ddt, dlog_decay = [torch.empty_like(t) for t in (kept.normed, kept.dt, kept.log_decay)]
    of_weights = [None if t is None else torch.empty_like(t, dtype=torch.float32) for t in (w.B_bias, w.C_bias, w.D, w.mimo_x, w.mimo_z, w.mimo_o, w.norm)]
    dz, dx, _, _, _, _, dtrap, dangles = dcolumns
    dB, dC = dnormed.view(*plan.shape, -1).chunk(2, dim=-1)
    dB_bias, dC_bias, dD, dmimo_x, dmimo_z, dmimo_o, dnorm = of_weights
    columns = kept.rows.view(*plan.shape, -1).split(plan.sizes, dim=-1)
    tensors = (*plan.scan_inputs(w, columns, kept.normed, kept.dt, kept.log_decay), dout, None, None, None, None,
               plan.heads_of(dx), dlog_decay, ddt, dtrap, plan.vectors_of(dB), plan.vectors_of(dC), dB_bias, dC_bias, plan.over_heads(dangles), dD, plan.heads_of(dz),
               dmimo_x, dmimo_z, dmimo_o, None if dnorm is None else dnorm.view(plan.heads, -1), None, None, None, None)
    call = plan.scan.follower(BACKWARD, layout(dout))
    if call.words is None:
        call.pack(tensors, plan.flags(w), eps=plan.options.eps)
    call.run(tensors)
    return dnormed, ddt, dlog_decay, of_weights


def _norm_gradients(plan, kept, dnormed, drows):
    """Writes those of B's and C's columns -> of the norms' weights."""
    dweight = torch.empty_like(kept.norm_weight)
    tensors = kept.rows[:, plan.of_norm], None, kept.norm_weight, None, dnormed, drows[:, plan.of_norm], None, dweight, None
    if plan.norm_backward.words is None:
        plan.norm_backward.pack(tensors, _RMS, group_size=plan.n, eps=plan.options.norm_eps)
    plan.norm_backward.run(tensors)
    return dweight.view(2, -1, plan.n).sum(1)


def _decay_gradients(plan, kept, ddt, dlog_decay, dcolumns):
    """Writes those of dt's and A's columns -> of dt_bias. The slope of softplus is 1 - e^-dt."""
    less, rate = -kept.dt, kept.activated.clamp(min=plan.options.A_floor)
    less_dsum = torch.addcmul(ddt, rate, dlog_decay, value=-1).mul_(torch.expm1(less))
    torch.mul(less_dsum, -1, out=dcolumns[4])
    torch.mul(less.mul_(dlog_decay), _slope(kept.activated, plan.options), out=dcolumns[5])
    return less_dsum.sum((0, 1)).neg_()


def _backward(plan, u, w, kept, dout, wanted):
    """-> gradients of u and of the weights; wanted: for which of them."""
    dout = dout.reshape(plan.rows, -1)
    dout = dout.contiguous() if 0 in dout.stride() else dout
    dy = matmul(dout, w.out_proj).view(*plan.shape, plan.heads, plan.options.headdim)
    drows = torch.empty_like(kept.rows)
    dcolumns = drows.view(*plan.shape, -1).split(plan.sizes, dim=-1)
    dnormed, ddt, dlog_decay, of_weights = _scan_gradients(plan, w, kept, dy, dcolumns)
    dB_norm, dC_norm = _norm_gradients(plan, kept, dnormed, drows)
    ddt_bias = _decay_gradients(plan, kept, ddt, dlog_decay, dcolumns)
    of_weights = [g if g is None else g.to(t.dtype) for g, t in zip((ddt_bias, *of_weights), (w.dt_bias, w.B_bias, w.C_bias, w.D, w.mimo_x, w.mimo_z, w.mimo_o, w.norm))]
    du = matmul(drows, w.in_proj).view(u.shape) if wanted[0] else None
    din_proj = matmul(drows.t(), u.reshape(plan.rows, -1)) if wanted[1] else None
    dout_proj = matmul(dout.t(), kept.y) if wanted[12] else None
    return (du, din_proj, *of_weights[:3], dB_norm, dC_norm, *of_weights[3:], dout_proj, None)


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx, plan, u, *weights):
        out, kept = _forward(plan, u, Weights(*weights))
        ctx.save_for_backward(u, *kept, *weights)
        ctx.plan = plan
        return out

    @staticmethod
    @once
    def backward(ctx, dout):
        u, *tensors = ctx.saved_tensors
        n = len(Kept._fields)
        return (None, *_backward(ctx.plan, u, Weights(*tensors[n:]), Kept(*tensors[:n]), dout, ctx.needs_input_grad[1:]))


def _fits(u, w):
    """Whether the node accepts them: one type for the operands of products, the block's shapes."""
    if u.dim() != 3 or u.dtype not in _REAL or not u.numel() or w.B_bias.dim() != 3:
        return False
    alike = all([t.dtype is u.dtype for t in (w.in_proj, w.out_proj, w.B_norm, w.C_norm)])
    return alike and w.in_proj.shape[1] == u.shape[2] and all([t is None or (t.device == u.device and not t.is_neg()) for t in (u, *w)])


def mamba3_block(u, w, o):
    """u (B, L, M), w: Weights, o: Options -> (B, L, M), or None where the parts must be called separately: under autocast, while tracing, with tensors of mixed
    types."""
    if is_traced(u) or is_fake(u) or autocast_dtype(u) is not None:
        return None
    key = _signature((u, *w), o)
    plan = _known.get(key)
    if plan is None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        plan = _known[key] = _Plan(u, w, o) if _fits(u, w) else False
    if not plan:
        return None
    if plan.has_gradients and is_grad_enabled():
        return _Block.apply(plan, u, *w)
    with torch.no_grad():
        return _forward(plan, u, w)[0]
