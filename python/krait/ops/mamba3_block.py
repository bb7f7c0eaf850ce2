"""The Mamba 3 block as one autograd node: input projection, norms of B and C, time steps and decays, scan, output projection.

The scan's gradient is written straight into the columns of the input projection's. Saved tensors are the projections' inputs and outputs, time steps, decays and
what A's activation gives, and the normed B and C with their weights."""

from typing import NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, is_grad_enabled

from .._call import Call, place, signer
from .._torch import autocast_dtype, is_fake, is_traced, once
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


class _Parts:
    """A call whose tensors are parts of a few others (`of`: of which, by position; None: absent): after the first time it runs by addresses, without views."""
    __slots__ = ("call", "of", "places")

    def __init__(self, call, of):
        self.call, self.of, self.places = call, of, None

    def run(self, whole, parts, flags, **numbers):
        """whole: the tensors, or None; parts: makes those of the call."""
        if self.places is None:
            tensors = parts()
            self.call.pack(tensors, flags, **numbers)
            self.places = [(i, j, t.data_ptr() - whole[j].data_ptr()) for i, (t, j) in enumerate(zip(tensors, self.of)) if t is not None]
        starts, addresses = [0 if t is None else t.data_ptr() for t in whole], [0] * len(self.of)
        for i, j, distance in self.places:
            addresses[i] = starts[j] + distance
        self.call.run_at(place(whole[0]), addresses)


# Of which tensors a call's are. Of the norm: rows, weight, normed; of its gradient, behind them: rows' gradient, normed's, the weight's. Of the scan: rows, log decays,
# dt, normed, biases of B and C, D, factors of x, z and the output, norm, cu_seqlens, result.
_NORM = (0, None, 1, None, 2)
_NORM_BACKWARD = (0, None, 1, None, 4, 3, None, 5, None)
_INPUTS = (0, 1, 2, 0, 3, 3, 4, 5, 0, 6, 0, 7, 8, 9, 10, None, None, None, None, 11)
_SCAN = (*_INPUTS, 12, None, None, None, None)
# Of its gradient, instead of the result: its gradient, those of rows, log decays, dt, normed, then of the weights in the same order.
_SCAN_BACKWARD = (*_SCAN, 13, 14, 15, 13, 16, 16, 17, 18, 13, 19, 13, 20, 21, 22, 23, None, None, None, None)


class _Plan:
    """What a signature determines: sizes, and the packed calls."""

    def __init__(self, u, w, o):
        self.options, self.shape = o, u.shape[:2]
        self.rows, (self.heads, self.ranks, self.n) = u.shape[0] * u.shape[1], w.B_bias.shape
        inner, vectors = w.out_proj.shape[1], self.ranks * o.groups * self.n
        pairs = w.in_proj.shape[0] - 2 * inner - 2 * vectors - 3 * self.heads
        self.sizes, self.of_norm = [inner, inner, vectors, vectors, self.heads, self.heads, self.heads, pairs], slice(2 * inner, 2 * inner + 2 * vectors)
        dt = self.of_norm.stop
        self.of_dt, self.of_A = [slice(dt + i * self.heads, dt + (i + 1) * self.heads) for i in (0, 1)]
        self.has_gradients = any([t is not None and t.requires_grad for t in (u, *w)])
        scan = Call(FORWARD)
        self.norm, self.scan, self.norm_backward = _Parts(Call(GATED_NORM), _NORM), _Parts(scan, _SCAN), _Parts(Call(GATED_NORM_BWD), _NORM_BACKWARD)
        self.scan_backward = _Parts(scan.follower(BACKWARD), _SCAN_BACKWARD)
        self.flags = 0 if w.mimo_o is None else _HALVES
        self.below_floor = float(torch.nextafter(torch.tensor(o.A_floor), torch.tensor(-1.0)))
        self.one, self.zero = torch.ones(1, device=u.device), torch.zeros(1, device=u.device)

    def slope(self, activated):
        """The derivative of max(act(A), floor), from act(A): that of softplus is 1 - e^-softplus, that of the heavy tail its square below 1, from there on 1."""
        above = F.threshold(activated, self.below_floor, 0)
        return torch.expm1(-above).neg_() if self.options.softplus_A else above.clamp_(max=1).square_()

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

    def norm_tensors(self, rows, weight, normed):
        return rows[:, self.of_norm], None, weight, None, normed

    def columns_of(self, rows):
        """z, x, B, C, dt, A, trap, angles."""
        return rows.view(*self.shape, -1).split(self.sizes, dim=-1)

    def scan_inputs(self, w, rows, normed, dt, log_decay):
        z, x, _, _, _, _, trap, angles = self.columns_of(rows)
        B, C = normed.view(*self.shape, -1).chunk(2, dim=-1)
        dt, log_decay = dt.view(*self.shape, -1), log_decay.view(*self.shape, -1)
        norm = None if w.norm is None else w.norm.view(self.heads, -1)
        return (self.heads_of(x), log_decay, dt, trap, self.vectors_of(B), self.vectors_of(C), w.B_bias, w.C_bias, self.over_heads(angles), w.D, self.heads_of(z),
                w.mimo_x, w.mimo_z, w.mimo_o, norm, None, None, None, None, w.cu_seqlens)

    def scan_gradients(self, drows, dnormed, ddt, dlog_decay, of_weights):
        dz, dx, _, _, _, _, dtrap, dangles = self.columns_of(drows)
        dB, dC = dnormed.view(*self.shape, -1).chunk(2, dim=-1)
        ddt, dlog_decay = ddt.view(*self.shape, -1), dlog_decay.view(*self.shape, -1)
        dB_bias, dC_bias, dD, dmimo_x, dmimo_z, dmimo_o, dnorm = of_weights
        return (self.heads_of(dx), dlog_decay, ddt, dtrap, self.vectors_of(dB), self.vectors_of(dC), dB_bias, dC_bias, self.over_heads(dangles), dD,
                self.heads_of(dz), dmimo_x, dmimo_z, dmimo_o, None if dnorm is None else dnorm.view(self.heads, -1), None, None, None, None)


class Kept(NamedTuple):
    rows: Tensor  # of in_proj
    normed: Tensor  # B and C
    norm_weight: Tensor
    raw_dt: Tensor  # before softplus
    dt: Tensor
    activated: Tensor  # act(A)
    log_decay: Tensor
    y: Tensor  # of the scan


def _decays(plan, rows, w):
    """-> dt before softplus, dt, act(A), log decays, in float32: 1 + A for A from 0 on, 1 / (1 - A) below, as sums of clamped values."""
    o, A = plan.options, rows[:, plan.of_A]
    raw_dt = torch.add(w.dt_bias.float(), rows[:, plan.of_dt])
    dt = F.softplus(raw_dt)
    if o.softplus_A:
        activated = F.softplus(A.float())
    else:
        activated = torch.addcdiv(A.clamp(min=0), plan.one, torch.sub(plan.one, A.clamp(max=0)))
    return raw_dt, dt, activated, torch.addcmul(plan.zero, activated.clamp(min=o.A_floor), dt, value=-1)


def _forward(plan, u, w):
    """-> (out, Kept)."""
    o = plan.options
    rows = matmul(u.reshape(plan.rows, -1), w.in_proj.t())
    normed, norm_weight = rows.new_empty(plan.rows, plan.of_norm.stop - plan.of_norm.start), plan.norm_weight(w)
    plan.norm.run((rows, norm_weight, normed), lambda: plan.norm_tensors(rows, norm_weight, normed), _RMS, group_size=plan.n, eps=o.norm_eps)
    raw_dt, dt, activated, log_decay = _decays(plan, rows, w)
    y = rows.new_empty(plan.rows, plan.heads * o.headdim)
    plan.scan.run((rows, log_decay, dt, normed, *w[2:4], *w[6:11], w.cu_seqlens, y),
                  lambda: (*plan.scan_inputs(w, rows, normed, dt, log_decay), y.view(*plan.shape, plan.heads, -1), None, None, None, None), plan.flags, eps=o.eps)
    return matmul(y, w.out_proj.t()).view(*plan.shape, -1), Kept(rows, normed, norm_weight, raw_dt, dt, activated, log_decay, y)


def _scan_gradients(plan, w, kept, dy, drows):
    """dy: of the scan's result -> gradients of the normed vectors, dt, log decays, and of the weights; writes those of in_proj's columns but for B, C, dt and A."""
    dnormed, ddt, dlog_decay = [torch.empty_like(t) for t in (kept.normed, kept.dt, kept.log_decay)]
    of_weights = [None if t is None else torch.empty_like(t, dtype=torch.float32) for t in (*w[2:4], *w[6:11])]
    plan.scan_backward.run(
        (kept.rows, kept.log_decay, kept.dt, kept.normed, *w[2:4], *w[6:11], w.cu_seqlens, dy, drows, dlog_decay, ddt, dnormed, *of_weights),
        lambda: (*plan.scan_inputs(w, kept.rows, kept.normed, kept.dt, kept.log_decay), dy.view(*plan.shape, plan.heads, -1), None, None, None, None,
                 *plan.scan_gradients(drows, dnormed, ddt, dlog_decay, of_weights)), plan.flags, eps=plan.options.eps)
    return dnormed, ddt, dlog_decay, of_weights


def _norm_gradients(plan, kept, dnormed, drows):
    """Writes those of B's and C's columns -> of the norms' weights."""
    dweight = torch.empty_like(kept.norm_weight)
    plan.norm_backward.run((kept.rows, kept.norm_weight, kept.normed, drows, dnormed, dweight), lambda: (
        kept.rows[:, plan.of_norm], None, kept.norm_weight, None, dnormed, drows[:, plan.of_norm], None, dweight, None), _RMS, group_size=plan.n, eps=plan.options.norm_eps)
    return dweight.view(2, -1, plan.n).sum(1)


def _decay_gradients(plan, kept, ddt, dlog_decay, drows):
    """Writes those of dt's and A's columns -> of dt_bias."""
    rate = kept.activated.clamp(min=plan.options.A_floor)
    draw = torch.ops.aten.softplus_backward(torch.addcmul(ddt, rate, dlog_decay, value=-1), kept.raw_dt, 1, 20)
    drows[:, plan.of_dt].copy_(draw)
    torch.addcmul(plan.zero, dlog_decay.mul_(kept.dt), plan.slope(kept.activated), value=-1, out=drows[:, plan.of_A])
    return draw.sum(0)


def _backward(plan, u, w, kept, dout, wanted):
    """-> gradients of u and of the weights; wanted: for which of them."""
    dout = dout.reshape(plan.rows, -1)
    dout = dout.contiguous() if 0 in dout.stride() else dout
    dy = matmul(dout, w.out_proj)
    drows = torch.empty_like(kept.rows)
    dnormed, ddt, dlog_decay, of_weights = _scan_gradients(plan, w, kept, dy, drows)
    dB_norm, dC_norm = _norm_gradients(plan, kept, dnormed, drows)
    ddt_bias = _decay_gradients(plan, kept, ddt, dlog_decay, drows)
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
