"""The parts of a transformer's layer as autograd nodes: RMS norms of a stream, causal attention with everything from its norm's output to its
result (projections, norms of heads, rotary embedding), and the gated product of an MLP. Projections that read one input are one product, in both
directions; what their parts are is read and written where it lies. Not for traced tensors."""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from .._call import Call, Operator
from .._torch import once, zeros_like
from .attention import BACKWARD, FORWARD, ROTARY
from .norms import ADD_NORM, ADD_NORM_BWD, GATED_NORM, GATED_NORM_BWD, add_norm
from .product import in_shape, matmul, product_in

_POINTWISE = Operator("pointwise", "x y out", x=(0, 4), y=(0, 4), out=(0, 4))
_RMS, _CAUSAL, _ANY_ORDER, _INVERSE = 1, 1, 4, 2
_PRODUCT, _GATE = 1, 4   # KRAIT_POINTWISE_*
_SILU = 1                # KRAIT_ACT_SILU
_known = {}
_MOST_KNOWN = 256


class Calls:
    """The calls of layers of one shape, type and device, by name: packed once."""

    def __init__(self):
        self._calls = {}

    def run(self, name, operator, tensors, flags=0, **numbers):
        call = self._calls.get(name)
        if call is None:
            call = Call(operator)
            call.pack(tensors, flags, **numbers)
            self._calls[name] = call
        call.run(tensors)


def calls_of(*key):
    """The calls of whatever determines their tensors' sizes, types and device."""
    if key not in _known:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[key] = Calls()
    return _known[key]


def _joined(parts, dtype):
    """Weights or biases one behind the other, of this type; None for none."""
    if parts[0] is None:
        return None
    first, at = parts[0].detach(), 0
    if len(parts) == 1:
        return first.to(dtype)
    out = torch.empty(sum([p.shape[0] for p in parts]), *first.shape[1:], dtype=dtype, device=first.device)
    for p in parts:
        out[at:at + p.shape[0]].copy_(p.detach())
        at += p.shape[0]
    return out


def _kept(joined, parts):
    """What a node keeps of joined weights: those of another type, as autocast does, so that its gradient need not convert them again."""
    return None if joined.dtype is parts[0].dtype else joined


def _weight_gradients(ctx, at, weights, dout, x):
    """Of weights that are one product, the first of them argument `at` of the node."""
    if not any(ctx.needs_input_grad[at:at + len(weights)]):
        return [None] * len(weights)
    pieces = product_in(weights[0].dtype, dout.t(), x).split([w.shape[0] for w in weights])
    return [g.to(w.dtype) if wanted else None for g, w, wanted in zip(pieces, weights, ctx.needs_input_grad[at:])]


def _bias_gradients(ctx, at, biases, dout):
    if biases[0] is None or not any(ctx.needs_input_grad[at:at + len(biases)]):
        return [None] * len(biases)
    pieces = dout.sum(0, dtype=biases[0].dtype).split([b.shape[0] for b in biases])
    return [g if wanted else None for g, wanted in zip(pieces, ctx.needs_input_grad[at:])]


def _rows(t):
    return t.view(-1, t.shape[-1])


class _Linear(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, weight, bias):
        joined = _joined((weight,), x.dtype)
        ctx.save_for_backward(x, weight, bias, _kept(joined, (weight,)))
        return in_shape(matmul(_rows(x), joined.t(), _joined((bias,), x.dtype)), *x.shape[:-1], weight.shape[0])

    @staticmethod
    @once
    def backward(ctx, dout):
        x, weight, bias, joined = ctx.saved_tensors
        dout = _rows(dout.contiguous())
        dx = matmul(dout, _joined((weight,), x.dtype) if joined is None else joined).view(x.shape) if ctx.needs_input_grad[0] else None
        return (dx, *_weight_gradients(ctx, 1, (weight,), dout, _rows(x)), *_bias_gradients(ctx, 2, (bias,), dout))


def linear(x, weight, bias):
    """A linear layer of x (B, L, D) contiguous in x's type; the parameters' gradients in theirs."""
    return _Linear.apply(x, weight, bias)


# ---- norms ----
def _of_weight(weight):
    """What a call depends on of a norm's weight, which layers may have of different kinds."""
    return weight.dtype, weight.stride()


class _Norm(torch.autograd.Function):
    """The norm of a stream in another type, and the stream, whose gradient is then added where the norm's is made."""

    @staticmethod
    def forward(ctx, calls, x, weight, eps, dtype):
        out = torch.empty(x.shape, dtype=dtype, device=x.device)
        calls.run(("norm", *_of_weight(weight), eps), ADD_NORM, (_rows(x), weight, None, None, None, None, None, None, _rows(out), None, None), _RMS, eps=eps)
        ctx.save_for_backward(x, weight)
        ctx.set_materialize_grads(False)
        ctx.calls, ctx.eps = calls, eps
        return out, x.view_as(x)

    @staticmethod
    @once
    def backward(ctx, dout, dstream):
        if dout is None:
            return None, dstream, None, None, None
        x, weight = ctx.saved_tensors
        _, of_x, of_weight, *_ = ctx.needs_input_grad
        dx = torch.empty_like(x) if of_x else None
        dweight = torch.empty_like(weight) if of_weight else None
        dstream = dstream if dstream is None else _rows(dstream.contiguous())
        tensors = (_rows(x), weight, None, None, _rows(dout.contiguous()), None, dstream, dx if dx is None else _rows(dx), None, None, dweight, None, None, None)
        ctx.calls.run(("norm_bwd", *_of_weight(weight), ctx.eps, dstream is None, of_x, of_weight), ADD_NORM_BWD, tensors, _RMS, eps=ctx.eps)
        return None, dx, dweight, None, None


def norm(calls, x, weight, eps, dtype):
    """x (B, L, D) -> its RMS norm in `dtype`, and x."""
    return _Norm.apply(calls, x, weight, eps, dtype)


def norm_of_sum(x, stream, weight, eps):
    """-> the RMS norm of x + stream in x's type, and the sum in the stream's."""
    return add_norm(x, weight, residual=stream, eps=eps, prenorm=True, is_rms_norm=True)


# ---- attention ----
class Heads(NamedTuple):
    """queries, keys: their number; size: features of each; scale: of the logits; eps: of the heads' norms, or None."""
    queries: int
    keys: int
    size: int
    scale: float
    eps: Optional[float]

    @property
    def turned(self):
        return self.queries + self.keys


class Projections(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    q_bias: Optional[Tensor] = None
    k_bias: Optional[Tensor] = None
    v_bias: Optional[Tensor] = None
    q_norm: Optional[Tensor] = None
    k_norm: Optional[Tensor] = None


_NONE = (None,) * 10  # the inputs of attention behind q, k and v
_FIRST = 6            # argument of the node that is projections.q


def _head_weights(heads, p):
    """The norms of heads as one vector over all of their features."""
    return torch.cat([p.q_norm.detach().repeat(heads.queries), p.k_norm.detach().repeat(heads.keys)])


class _Attention(torch.autograd.Function):

    @staticmethod
    def forward(ctx, calls, heads, x, cos, sin, is_kept, *projections):
        p, (B, L, D) = Projections(*projections), x.shape
        rows, all_heads = x.view(-1, D), heads.queries + 2 * heads.keys
        joined = _joined(p[:3], x.dtype)
        made = matmul(rows, joined.t(), _joined(p[3:6], x.dtype))
        qkv = made.view(B, L, all_heads, heads.size)
        qk, v = qkv[:, :, :heads.turned], qkv[:, :, heads.turned:]
        normed, n = None, heads.turned * heads.size
        if heads.eps is not None:
            qk = torch.empty(B, L, heads.turned, heads.size, dtype=x.dtype, device=x.device)
            normed = _head_weights(heads, p)
            calls.run(("head_norm", normed.dtype), GATED_NORM, (made[:, :n], None, normed, None, qk.view(-1, n)), _RMS, group_size=heads.size, eps=heads.eps)
        calls.run("rotary", ROTARY, (qk, cos, sin, None, None, qk))
        q, k = qk[:, :, :heads.queries], qk[:, :, heads.queries:]
        out = torch.empty(B, L, heads.queries, heads.size, dtype=x.dtype, device=x.device)
        lse = torch.empty(B, heads.queries, L, dtype=torch.float32, device=x.device)
        calls.run("attention", FORWARD, (q, k, v, *_NONE, out, lse), _CAUSAL, scale=heads.scale)
        ctx.save_for_backward(x, cos, sin, made, None if heads.eps is None else qk, out, lse, _kept(joined, p), *projections)
        ctx.set_materialize_grads(False)
        ctx.calls, ctx.heads = calls, heads
        kept = (k.transpose(1, 2), v.transpose(1, 2)) if is_kept else (None, None)
        return (out.view(B, L, -1), *kept)

    @staticmethod
    @once
    def backward(ctx, dout, dk_kept, dv_kept):
        x, cos, sin, made, qk, out, lse, joined, *projections = ctx.saved_tensors
        p, heads, calls, (B, L, D) = Projections(*projections), ctx.heads, ctx.calls, x.shape
        dout = zeros_like(out) if dout is None else dout
        dout = dout.contiguous().view(out.shape)
        whole = (B, L, heads.queries + 2 * heads.keys, heads.size)
        dmade = torch.empty_like(made)
        dqk, dv = dmade.view(whole)[:, :, :heads.turned], dmade.view(whole)[:, :, heads.turned:]
        v, n = made.view(whole)[:, :, heads.turned:], heads.turned * heads.size
        if qk is None:
            qk = made.view(whole)[:, :, :heads.turned]
        else:
            dqk = torch.empty_like(qk)
        (q, k), (dq, dk) = [(t[:, :, :heads.queries], t[:, :, heads.queries:]) for t in (qk, dqk)]
        any_order = 0 if torch.are_deterministic_algorithms_enabled() else _ANY_ORDER
        tensors = (q, k, v, *_NONE[3:], out, lse, dout, None, dq, dk, dv, None)
        calls.run(("attention_bwd", any_order), BACKWARD, tensors, _CAUSAL | any_order, scale=heads.scale)
        for to, more in ((dk, dk_kept), (dv, dv_kept)):
            if more is not None:
                to.add_(more.transpose(1, 2))
        calls.run("rotary_back", ROTARY, (dqk, cos, sin, None, None, dqk), _INVERSE)
        of_norms = [None, None]
        if heads.eps is not None:
            weights = _head_weights(heads, p)
            dweights = torch.empty_like(weights)
            calls.run(("head_norm_bwd", weights.dtype), GATED_NORM_BWD, (made[:, :n], None, weights, None, dqk.view(-1, n), dmade[:, :n], None, dweights, None), _RMS, group_size=heads.size,
                      eps=heads.eps)
            of_norms = [g.view(-1, heads.size).sum(0) for g in dweights.split([heads.queries * heads.size, heads.keys * heads.size])]
        dx = matmul(dmade, _joined(p[:3], x.dtype) if joined is None else joined).view(x.shape) if ctx.needs_input_grad[2] else None
        of_weights = _weight_gradients(ctx, _FIRST, p[:3], dmade, x.view(-1, D))
        return (None, None, dx, None, None, None, *of_weights, *_bias_gradients(ctx, _FIRST + 3, p[3:6], dmade), *of_norms)


def attention(calls, heads, x, cos, sin, projections, is_kept):
    """x (B, L, D) contiguous, cos and sin (L, size / 2) -> (B, L, queries size), and with is_kept the rotated keys and the values (B, keys, L, size)."""
    return _Attention.apply(calls, heads, x, cos, sin, is_kept, *projections)


# ---- gated product ----
def _of(t):
    """A matrix as the operator takes it."""
    return t[None, None]


def _halves(t):
    """A matrix's two halves of columns, one behind the other."""
    return t.view(1, t.shape[0], 2, -1).permute(2, 0, 1, 3)


class _Gated(torch.autograd.Function):

    @staticmethod
    def forward(ctx, calls, x, gate, up, gate_bias, up_bias):
        rows, n, joined = _rows(x), gate.shape[0], _joined((gate, up), x.dtype)
        both = matmul(rows, joined.t(), _joined((gate_bias, up_bias), x.dtype))
        out = torch.empty(rows.shape[0], n, dtype=x.dtype, device=x.device)
        calls.run(("gated", n, both.shape), _POINTWISE, (_of(both[:, :n]), _of(both[:, n:]), _of(out)), _PRODUCT, activation=_SILU, x_scale=1.0)
        ctx.save_for_backward(x, both, _kept(joined, (gate,)), gate, up, gate_bias, up_bias)
        ctx.calls = calls
        return out.view(*x.shape[:-1], n)

    @staticmethod
    @once
    def backward(ctx, dout):
        x, both, joined, gate, up, gate_bias, up_bias = ctx.saved_tensors
        calls = ctx.calls
        dout, dboth = _rows(dout.contiguous()), torch.empty_like(both)
        calls.run(("gated_bwd", both.shape), _POINTWISE, (_halves(both), _of(dout).expand(2, -1, -1, -1), _halves(dboth)), _GATE, activation=_SILU)
        dx = matmul(dboth, _joined((gate, up), x.dtype) if joined is None else joined).view(x.shape) if ctx.needs_input_grad[1] else None
        return (None, dx, *_weight_gradients(ctx, 2, (gate, up), dboth, _rows(x)), *_bias_gradients(ctx, 4, (gate_bias, up_bias), dboth))


def gated(calls, x, gate, up, gate_bias, up_bias):
    """silu(x gate^T) (x up^T) of x (B, L, D) contiguous."""
    return _Gated.apply(calls, x, gate, up, gate_bias, up_bias)
