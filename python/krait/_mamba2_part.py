"""The Mamba 2 block on one process's part of the tokens (_context_parallel.py), as one autograd node. Each operator writes its results where the next one
reads them, gradients too: the columns of the input projection's gradient are written by the norm's, the convolution's and the scan's. Only the scan waits
for the neighbour's."""

import torch
import torch.nn.functional as F

from ._context_parallel import active_link, give, run_conv, run_conv_gradient, take, when_gradients_end
from ._torch import autocast_dtype, once
from .ops.mamba2_block import Weights, cast, project_backward, rows_of
from .ops.norms import GATED_NORM, GATED_NORM_BWD, gated_flags
from .ops.product import in_shape, matmul
from .ops.ssd import BACKWARD as SSD_BWD, FORWARD as SSD, flags_of, limits


def _split(t, w, o):
    """Columns of the input projection -> z0, x0, z, xBC, dt."""
    h, channels = w.A.shape[0], w.conv.shape[0]
    return t.split([o.d_mlp, o.d_mlp, h * o.headdim, channels, h], dim=-1)


def _heads(xBC, w, o):
    """-> x (B, L, H, P), B and C (B, L, G, N)."""
    inner = w.A.shape[0] * o.headdim
    of_state = (xBC.shape[-1] - inner) // 2
    x, B, C = xBC.split([inner, of_state, of_state], dim=-1)
    return x.unflatten(-1, (-1, o.headdim)), B.unflatten(-1, (o.groups, -1)), C.unflatten(-1, (o.groups, -1))


def _state_shape(x, w, o):
    h = w.A.shape[0]
    return x.shape[0], h, o.headdim, (w.conv.shape[0] - h * o.headdim) // (2 * o.groups)


def _columns(t, like, begin):
    """The columns of t (B, L, columns) from `begin` on, as many as like's, as rows."""
    return rows_of(t)[:, begin:begin + like.shape[-1]]


def _per_head(t, o):
    return t.unflatten(-1, (-1, o.headdim))


def _run_scan(link, zx, heads, gate, w, o, out):
    """-> the state that it begins with, or None."""
    x, dt, B, C = heads
    final = torch.empty(_state_shape(zx, w, o), dtype=torch.float32, device=zx.device)
    state = take(link, final.shape, final, -1)
    SSD.run((x, dt, -torch.exp(w.A.float()), B, C, w.D, gate, w.dt_bias, state, None, None, out, final, None), flags_of(zx, True, False), **limits(o.low, o.high))
    give(link, final, 1)
    return state


def _norm_of(o, width):
    return gated_flags(True, o.norm_before_gate), dict(group_size=width // o.groups, eps=o.eps)


def _forward(link, x, w, o, dtype):
    """-> out, saved tensors."""
    zx = x.contiguous()
    if w.in_proj is not None:
        zx = matmul(rows_of(cast(x, dtype)), cast(w.in_proj, dtype).t(), cast(w.in_bias, dtype)).view(*x.shape[:2], w.in_proj.shape[0])
    z0, x0, z, xBC, dt = _split(zx, w, o)
    convolved, before = run_conv(link, xBC, w.conv.squeeze(1), w.conv_bias, o.silu)
    xs, B, C = _heads(convolved, w, o)
    gated = zx.new_empty(*zx.shape[:2], o.d_mlp + z.shape[-1])
    y = gated[..., o.d_mlp:] if w.norm is None else zx.new_empty(z.shape)
    state = _run_scan(link, zx, (xs, dt, B, C), _per_head(z, o) if w.norm is None else None, w, o, _per_head(y, o))
    if o.d_mlp:
        torch.mul(F.silu(z0), x0, out=gated[..., :o.d_mlp])
    if w.norm is not None:
        flags, numbers = _norm_of(o, z.shape[-1])
        GATED_NORM.run((rows_of(y), _columns(zx, z, 2 * o.d_mlp), w.norm, None, _columns(gated, y, o.d_mlp)), flags, **numbers)
    out = gated
    if w.out_proj is not None:
        out = in_shape(matmul(rows_of(gated), cast(w.out_proj, dtype).t(), cast(w.out_bias, dtype)), *zx.shape[:2], w.out_proj.shape[0])
    return out, (zx, before, convolved, state, None if w.norm is None else y, None if w.out_proj is None else gated)


def _run_norm_gradient(zx, y, z, dgated, w, o, dz):
    """-> gradients of y and of the norm's weight."""
    dy, dweight = torch.empty_like(y), torch.empty_like(w.norm)
    flags, numbers = _norm_of(o, y.shape[-1])
    GATED_NORM_BWD.run((rows_of(y), _columns(zx, z, 2 * o.d_mlp), w.norm, None, _columns(dgated, y, o.d_mlp), rows_of(dy), dz, dweight, None), flags, **numbers)
    return dy, dweight


def _run_scan_gradient(link, zx, heads, gate, state, dy, w, o, dheads, dgate):
    """-> gradients of A's logarithm, of D and of dt's bias."""
    x, dt, B, C = heads
    dx, ddt, dB, dC = dheads
    A = -torch.exp(w.A.float())
    like = torch.empty(_state_shape(zx, w, o), dtype=torch.float32, device=zx.device)
    dA, dD, dbias = [None if t is None else torch.empty_like(t, dtype=torch.float32) for t in (A, w.D, w.dt_bias)]
    dstate = None if state is None else like
    SSD_BWD.run((x, dt, A, B, C, w.D, gate, w.dt_bias, state, None, dy, take(link, like.shape, like, 1), dx, ddt, dA, dB, dC, dD, dgate, dbias, dstate),
                flags_of(zx, True, False), **limits(o.low, o.high))
    if dstate is not None:
        give(link, dstate, -1)
    return [None if t is None else g.to(t.dtype) for t, g in ((w.A, dA * A), (w.D, dD), (w.dt_bias, dbias))]


def _inner_gradient(link, w, o, kept, dgated):
    """-> the gradient of the input projection's columns, and those of the weights between the projections by name."""
    zx, before, convolved, state, y, _ = kept
    dzx, dconvolved, grads = torch.empty_like(zx), torch.empty_like(convolved), {}
    z0, x0, z, xBC, dt = _split(zx, w, o)
    dz0, dx0, dz, dxBC, ddt = _split(dzx, w, o)
    dy, has_norm = dgated[..., o.d_mlp:], w.norm is not None
    if o.d_mlp:
        dmlp = dgated[..., :o.d_mlp]
        dz0.copy_(torch.ops.aten.silu_backward(dmlp * x0, z0))
        torch.mul(dmlp, F.silu(z0), out=dx0)
    if has_norm:
        dy, grads["norm"] = _run_norm_gradient(zx, y, z, dgated, w, o, _columns(dzx, z, 2 * o.d_mlp))
    x, B, C = _heads(convolved, w, o)
    dx, dB, dC = _heads(dconvolved, w, o)
    grads["A"], grads["D"], grads["dt_bias"] = _run_scan_gradient(
        link, zx, (x, dt, B, C), None if has_norm else _per_head(z, o), state, _per_head(dy, o), w, o, (dx, ddt, dB, dC), None if has_norm else _per_head(dz, o))
    dweight, grads["conv_bias"] = run_conv_gradient(link, before, xBC, w.conv.squeeze(1), w.conv_bias, o.silu, dconvolved, dxBC)
    grads["conv"] = dweight.view(w.conv.shape)
    return dzx, grads


def _backward(link, x, w, o, dtype, kept, dout, wanted):
    """-> gradients of x and of the weights, in their order."""
    zx, *_, gated = kept
    dgated, grads, dx = dout, {}, None
    if w.out_proj is not None:
        dgated, grads["out_proj"], grads["out_bias"] = project_backward(rows_of(dout.contiguous()), rows_of(gated), w.out_proj, w.out_bias, (wanted["out_proj"], wanted["out_bias"]), True)
        dgated = dgated.to(gated.dtype).view(gated.shape)
    dzx, inner = _inner_gradient(link, w, o, kept, dgated.contiguous())
    grads.update(inner)
    if w.in_proj is None:
        dx = dzx
    else:
        dx, grads["in_proj"], grads["in_bias"] = project_backward(rows_of(dzx), rows_of(x), w.in_proj, w.in_bias, (wanted["in_proj"], wanted["in_bias"]), wanted["x"])
        dx = None if dx is None else dx.view(x.shape).to(x.dtype)
    return [dx, *[grads.get(name) for name in Weights._fields]]


class _Part(torch.autograd.Function):

    @staticmethod
    def forward(ctx, link, o, dtype, x, *weights):
        out, kept = _forward(link, x, Weights(*weights), o, dtype)
        ctx.save_for_backward(x, *kept, *weights)
        ctx.link, ctx.options = link, (o, dtype)
        return out

    @staticmethod
    @once
    def backward(ctx, dout):
        x, *tensors = ctx.saved_tensors
        wanted = dict(zip(("x", *Weights._fields), ctx.needs_input_grad[3:]))
        with torch.autocast(x.device.type, enabled=False):
            grads = _backward(ctx.link, x, Weights(*tensors[6:]), *ctx.options, tensors[:6], dout, wanted)
        when_gradients_end(ctx.link)
        return (None, None, None, *grads)


def mamba2_part(x, w, o):
    """mamba2_block of the active link's part, of the logarithm of A and without final states: what the process before left is before it."""
    link, dtype = active_link(), autocast_dtype(x) if w.in_proj is not None or w.out_proj is not None else None
    if torch.is_grad_enabled() and any([t is not None and t.requires_grad for t in (x, *w)]):
        return _Part.apply(link, o, dtype, x, *w), None
    return _forward(link, x, w, o, dtype)[0], None
