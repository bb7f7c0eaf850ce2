"""The Mamba 2 block as one autograd node: input projection, convolution, scan, gated norm, MLP part, output projection.

Both products are those of product.py; everything between them is one C call each way (mamba2_inner). Small 16-bit blocks on a GPU, which are
host-bound, are one C call including the products. Either projection may be absent. Saved tensors are the products' inputs and outputs and the
outputs of convolution and scan. When traced, the inside is one custom operator."""

import math
from typing import List, NamedTuple, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, is_grad_enabled

from . import composed
from .._call import ANY, Call, Operator, load, place, signer
from .._torch import allows_tf32, autocast_dtype, custom_op, is_traced, is_wide, layout, once, zeros_like
from .product import in_shape, matmul, product_in
from .ssd import LEAST

_ONE_OF_HEAD = (1, 2, ANY)  # D may lack the channel axis: one value per head
_INPUTS = "x conv_weight conv_bias dt_bias A Dvec norm_weight initial_states seq_idx "
_FORWARD = Operator("mamba2_inner", _INPUTS + "out final_states xBC y", Dvec=_ONE_OF_HEAD)
_BACKWARD = Operator("mamba2_inner_bwd", _INPUTS + "xBC y dout dfinal_states dx dconv_weight dconv_bias ddt_bias dA dDvec dnorm_weight dinitial_states",
                     Dvec=_ONE_OF_HEAD, dDvec=_ONE_OF_HEAD)
_WHOLE_INPUTS = "x in_proj_weight in_proj_bias conv_weight conv_bias dt_bias A Dvec norm_weight out_proj_weight out_proj_bias initial_states seq_idx "
_WHOLE = Operator("mamba2_inner", _WHOLE_INPUTS + "out final_states zxbcdt xBC y gated", Dvec=_ONE_OF_HEAD)
_WHOLE_BACKWARD = Operator("mamba2_inner_bwd", _WHOLE_INPUTS + "zxbcdt xBC y gated dout dfinal_states dx din_proj_weight din_proj_bias dconv_weight dconv_bias "
                           "ddt_bias dA dDvec dnorm_weight dout_proj_weight dout_proj_bias dinitial_states", Dvec=_ONE_OF_HEAD, dDvec=_ONE_OF_HEAD)
_MOST_OF_WHOLE = 2e10  # multiplications of a block's products up to which it is one call: some 60 us on an H200
_NORM_BEFORE_GATE, _LOG_A, _TF32 = 1, 2, 4  # KRAIT_MAMBA2_*
_signature = signer(13)
_known = {}
_MOST_KNOWN = 1024


class Weights(NamedTuple):
    in_proj: Optional[Tensor]  # (columns, M); None: the input is already projected
    in_bias: Optional[Tensor]
    conv: Tensor  # (channels, W), or (channels, 1, W) as in modules
    conv_bias: Optional[Tensor]
    dt_bias: Optional[Tensor]
    A: Tensor  # (H), or its logarithm
    D: Optional[Tensor]  # (H) or (H, P)
    norm: Optional[Tensor]  # None: no norm
    out_proj: Optional[Tensor]
    out_bias: Optional[Tensor]
    initial_states: Optional[Tensor] = None
    seq_idx: Optional[Tensor] = None


class Options(NamedTuple):
    headdim: int
    groups: int
    d_mlp: int
    silu: bool
    norm_before_gate: bool
    eps: float
    low: float
    high: float
    log_A: bool  # the given A is log(-A)
    want_final: bool


# ---- the inside: one C call ---------------------------------------------------------------------------------------------
def _numbers(o):
    """Scalars, and the sizes that shapes leave open: how the columns of the inside are divided."""
    return dict(P=o.headdim, G=o.groups, activation=int(o.silu), eps=o.eps, dt_min=o.low,
                dt_max=0.0 if o.high == math.inf else o.high or LEAST)


def _flags(x, o):
    return (_NORM_BEFORE_GATE if o.norm_before_gate else 0) | (_LOG_A if o.log_A else 0) | (_TF32 if allows_tf32(x) else 0)


def _matrix(t):
    return t if t is None or t.dim() == 2 else t.squeeze(1)


def _outputs(x, conv, A, norm, o, keep):
    """-> out, final states, outputs of the convolution and of the scan; None where not wanted."""
    (b, length), h, p = x.shape[:2], A.shape[0], o.headdim
    channels = conv.shape[0]
    final = x.new_empty(b, h, p, (channels - h * p) // (2 * o.groups), dtype=torch.float32) if o.want_final else None
    return (x.new_empty(b, length, o.d_mlp + h * p), final, x.new_empty(b, length, channels) if keep else None,
            x.new_empty(b, length, h * p) if keep and norm is not None else None)


def _load_with_gradient(call, operator, tensors, x, o):
    """The device code of a packed call and of its gradient, of these tensors, whose shapes its results have."""
    if x.is_cuda and not is_traced(x):
        backward = Call(operator)
        backward.pack(tensors, _flags(x, o), **_numbers(o))
        load(place(x), (call, backward))


def _run_inner(call, inputs, o, keep):
    """inputs: as _INPUTS -> _outputs."""
    x, conv, _, _, A, _, norm = inputs[:7]
    outputs = _outputs(x, conv, A, norm, o, keep)
    if call.words is None:
        packed = (x, _matrix(conv), *inputs[2:])
        call.pack((*packed, *outputs), _flags(x, o), **_numbers(o))
        if keep:
            out, final, xBC, y = outputs
            _load_with_gradient(call, _BACKWARD, (*packed, xBC, y, out, final, *packed[:8]), x, o)
    call.run((*inputs, *outputs))
    return outputs


def _run_inner_backward(call, inputs, kept, dout, dfinal, o, wanted):
    """-> gradients of all inputs but seq_idx; wanted: for which of them; x's always."""
    grads = [torch.empty_like(t) if t is not None and w else None for t, w in zip(inputs[:8], (True, *wanted[1:8]))]
    x, conv, A = inputs[0], inputs[1], inputs[4]
    if call.words is None:
        call.pack((x, _matrix(conv), *inputs[2:], *kept, dout, dfinal, grads[0], _matrix(grads[1]), *grads[2:]), _flags(x, o), **_numbers(o))
    call.run((*inputs, *kept, dout, dfinal, *grads))
    return grads


# ---- the inside when traced ---------------------------------------------------------------------------------------------
def _none_if_empty(t):
    return None if t is None or t.numel() == 0 else t


def _fake_inner(x, conv, conv_bias, dt_bias, A, D, norm, initial_states, seq_idx, headdim, groups, d_mlp, silu, norm_before_gate, eps, low, high, want_final):
    o = Options(headdim, groups, d_mlp, silu, norm_before_gate, eps, low, high, False, want_final)
    return _outputs(x, conv, A, norm, o, True)


def _fake_inner_backward(x, conv, conv_bias, dt_bias, A, D, norm, initial_states, seq_idx, xBC, y, dout, dfinal, headdim, groups, d_mlp, silu,
                         norm_before_gate, eps, low, high):
    return [None if t is None else torch.empty_like(t) for t in (x, conv, conv_bias, dt_bias, A, D, norm, initial_states)]


@custom_op("mamba2_inner_bwd", _fake_inner_backward)
def _inner_backward(x: Tensor, conv: Tensor, conv_bias: Optional[Tensor], dt_bias: Optional[Tensor], A: Tensor, D: Optional[Tensor], norm: Optional[Tensor],
                    initial_states: Optional[Tensor], seq_idx: Optional[Tensor], xBC: Optional[Tensor], y: Optional[Tensor], dout: Tensor,
                    dfinal: Optional[Tensor], headdim: int, groups: int, d_mlp: int, silu: bool, norm_before_gate: bool, eps: float, low: float,
                    high: float) -> List[Tensor]:
    o = Options(headdim, groups, d_mlp, silu, norm_before_gate, eps, low, high, False, False)
    kept = _none_if_empty(xBC), _none_if_empty(y)
    return _run_inner_backward(Call(_BACKWARD), (x, conv, conv_bias, dt_bias, A, D, norm, initial_states, seq_idx), kept, dout, dfinal, o, (True,) * 8)


def _setup_inner(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:9], *output[2:])
    ctx.options = inputs[9:17]
    ctx.set_materialize_grads(False)


def _inner_gradients(ctx, dout, dfinal, dxBC, dy):
    tensors = ctx.saved_tensors
    x, conv, A = tensors[0], tensors[1], tensors[4]
    dout = x.new_zeros(x.shape[0], x.shape[1], ctx.options[2] + A.shape[0] * ctx.options[0]) if dout is None else dout
    grads = _inner_backward(*tensors, dout, _none_if_empty(dfinal), *ctx.options)
    grads = [None if t is None else g for t, g in zip(tensors, grads)]
    return (*grads, None, None, None, None, None, None, None, None, None, None)


def _composed(x, conv, conv_bias, dt_bias, A, D, norm, initial_states, seq_idx, headdim, groups, d_mlp, silu, norm_before_gate, eps, low, high, want_final):
    """The inside in separate steps of plain torch; keeps nothing."""
    dim, channels = A.shape[0] * headdim, conv.shape[0]
    z0, x0, z, xBC, dt = x.split([d_mlp, d_mlp, dim, channels, A.shape[0]], dim=-1)
    xBC = composed.causal_conv1d(xBC.transpose(1, 2), _matrix(conv), conv_bias, seq_idx, None, silu, False, False)[0].transpose(1, 2)
    u, B, C = xBC.split([dim, (channels - dim) // 2, (channels - dim) // 2], dim=-1)
    gate = z if norm is None else None
    y, final, _ = composed.ssd(u.unflatten(-1, (-1, headdim)), dt, A, *[t.unflatten(-1, (groups, -1)) for t in (B, C)], D,
                               None if gate is None else gate.unflatten(-1, (-1, headdim)), dt_bias, initial_states, seq_idx, None, True, False, low, high, want_final)
    y = y.flatten(2)
    if norm is not None:
        y = composed.gated_norm(y.flatten(0, 1), z.flatten(0, 1), norm, None, eps, dim // groups, True, norm_before_gate).unflatten(0, y.shape[:2])
    return torch.cat((F.silu(z0) * x0, y), -1) if d_mlp else y, final, None, None


@custom_op("mamba2_inner", _fake_inner, setup=_setup_inner, backward=_inner_gradients, composed=_composed)
def _inner(x: Tensor, conv: Tensor, conv_bias: Optional[Tensor], dt_bias: Optional[Tensor], A: Tensor, D: Optional[Tensor], norm: Optional[Tensor],
           initial_states: Optional[Tensor], seq_idx: Optional[Tensor], headdim: int, groups: int, d_mlp: int, silu: bool, norm_before_gate: bool,
           eps: float, low: float, high: float, want_final: bool) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    o = Options(headdim, groups, d_mlp, silu, norm_before_gate, eps, low, high, False, want_final)
    return _run_inner(Call(_FORWARD), (x, conv, conv_bias, dt_bias, A, D, norm, initial_states, seq_idx), o, True)


def _traced(x, w, o):
    """The parts separately: torch's products, the inside as a custom operator."""
    _check(x, w, o)
    x = x if w.in_proj is None else F.linear(x, w.in_proj, w.in_bias)
    A = w.A if is_wide(x) else w.A.float()
    A = -torch.exp(A) if o.log_A else A
    seq_idx = None if w.seq_idx is None else w.seq_idx.to(torch.int32)
    out, final, *_ = _inner(x, w.conv, w.conv_bias, w.dt_bias, A, w.D, w.norm, w.initial_states, seq_idx, o.headdim, o.groups, o.d_mlp, o.silu,
                            o.norm_before_gate, o.eps, o.low, o.high, o.want_final)
    return out if w.out_proj is None else F.linear(out, w.out_proj, w.out_bias), final if o.want_final else None


# ---- the whole ----------------------------------------------------------------------------------------------------------
def _check(x, w, o):
    """Against the whole block's signature. seq_idx may have any integer type."""
    if w.A.dim() != 1 or w.conv.dim() not in (2, 3) or o.groups < 1:
        raise RuntimeError("mamba2: A must be (H), the convolution's weight (channels, W), with at least one group; got A %s, weight %s, %d groups"
                           % (tuple(w.A.shape), tuple(w.conv.shape), o.groups))
    if not is_traced():
        _WHOLE.check(_flat_conv(_whole_inputs(x, w, w.A, w.seq_idx)), _flags(x, o), **_numbers(o))


def _is_small(x, w):
    if not x.is_cuda or w.in_proj is None or w.out_proj is None or not x.numel() or x.dtype not in (torch.float16, torch.bfloat16):
        return False
    alike = all([t is None or t.dtype is x.dtype for t in (w.in_proj, w.in_bias, w.out_proj, w.out_bias)])
    return alike and x.shape[0] * x.shape[1] * (w.in_proj.numel() + w.out_proj.numel()) <= _MOST_OF_WHOLE


class _Plan:
    """What a signature determines."""
    __slots__ = ("options", "dtype", "shape", "has_gradients", "calls", "is_whole")

    def __init__(self, x, w, o, dtype):
        _check(x, w, o)
        self.options, self.dtype, self.shape = o, dtype, x.shape[:2]
        self.has_gradients = any([t is not None and t.requires_grad for t in (x, *w)])
        self.is_whole = dtype is None and _is_small(x, w)
        operator = _WHOLE if self.is_whole else _FORWARD
        self.calls = Call(operator), Call(operator)  # one saves nothing, the other saves for the gradient


def rows_of(t):
    return t.reshape(t.shape[0] * t.shape[1], t.shape[2])


def cast(t, dtype):
    return t if t is None or dtype is None else t.to(dtype)


def _whole_inputs(x, w, A, seq_idx):
    return x, w.in_proj, w.in_bias, w.conv, w.conv_bias, w.dt_bias, A, w.D, w.norm, w.out_proj, w.out_bias, w.initial_states, seq_idx


def _flat_conv(tensors):
    return (*tensors[:3], _matrix(tensors[3]), *tensors[4:])


def _forward_whole(plan, keep, x, w, A, seq_idx):
    o, call = plan.options, plan.calls[keep]
    gated, final, xBC, y = _outputs(x, w.conv, A, w.norm, o, keep)
    out = x.new_empty(*plan.shape, w.out_proj.shape[0])
    zx = x.new_empty(*plan.shape, w.in_proj.shape[0]) if keep else None
    inputs, outputs = _whole_inputs(x, w, A, seq_idx), (out, final, zx, xBC, y, gated if keep else None)
    if call.words is None:
        packed = _flat_conv(inputs)
        call.pack((*packed, *outputs), _flags(x, o), **_numbers(o))
        if keep:
            _load_with_gradient(call, _WHOLE_BACKWARD, (*packed, zx, xBC, y, gated, out, final, *packed[:12]), x, o)
    call.run((*inputs, *outputs))
    return out, final, (zx, A, seq_idx, xBC, y, gated, None, None)


def _backward_whole(plan, x, w, kept, dout, dfinal, wanted):
    o, (zx, A, seq_idx, xBC, y, gated, *_) = plan.options, kept
    inputs = _whole_inputs(x, w, A, seq_idx)
    grads = [torch.empty_like(t) if t is not None and want else None for t, want in zip(inputs[:12], wanted)]
    call = plan.calls[1].follower(_WHOLE_BACKWARD, (layout(dout), layout(dfinal), wanted))
    if call.words is None:
        call.pack((*_flat_conv(inputs), zx, xBC, y, gated, dout, dfinal, *_flat_conv(grads)), _flags(x, o), **_numbers(o))
    call.run((*inputs, zx, xBC, y, gated, dout, dfinal, *grads))
    return [*grads, None]


def _converted(weight, dtype):
    """A weight in autocast's type, to be kept for the gradient as autocast does; None: it needs no conversion."""
    return None if weight is None or dtype is None or weight.dtype is dtype else weight.to(dtype)


def _forward(plan, keep, x, w):
    """-> (out, final states, saved tensors)."""
    o, dtype = plan.options, plan.dtype
    if plan.is_whole:
        return _forward_whole(plan, keep, x, w, w.A if o.log_A else w.A.float(), None if w.seq_idx is None else w.seq_idx.to(torch.int32))
    zx, first, last = x, _converted(w.in_proj, dtype), _converted(w.out_proj, dtype)
    if w.in_proj is not None:
        zx = matmul(rows_of(cast(x, dtype)), (w.in_proj if first is None else first).t(), cast(w.in_bias, dtype)).view(*plan.shape, w.in_proj.shape[0])
    A = w.A if o.log_A else w.A.float()
    seq_idx = None if w.seq_idx is None else w.seq_idx.to(torch.int32)
    inputs = zx, w.conv, w.conv_bias, w.dt_bias, A, w.D, w.norm, w.initial_states, seq_idx
    gated, final, xBC, y = _run_inner(plan.calls[keep], inputs, o, keep)
    out = gated
    if w.out_proj is not None:
        out = in_shape(matmul(rows_of(cast(gated, dtype)), (w.out_proj if last is None else last).t(), cast(w.out_bias, dtype)), *plan.shape, w.out_proj.shape[0])
    return out, final, (zx, A, seq_idx, xBC, y, None if w.out_proj is None else gated, first, last)


def project_backward(d, rows, weight, bias, wanted, needs_rows, converted=None):
    """d: gradient of rows weight^T + bias, as rows; converted: the weight in d's type, if it is there -> gradients of rows, weight, bias."""
    kind = d.dtype
    return (matmul(d, weight.to(kind) if converted is None else converted) if needs_rows else None, product_in(weight.dtype, d.t(), rows.to(kind)) if wanted[0] else None,
            d.sum(0).to(bias.dtype) if bias is not None and wanted[1] else None)


def _backward(plan, x, w, kept, dout, dfinal, wanted):
    """-> gradients of x and of the weights; wanted: for which of them."""
    o, (zx, A, seq_idx, xBC, y, gated, first, last) = plan.options, kept
    grads = [None] * 13
    if dout is None:
        dout = zx.new_zeros(*plan.shape, (w.out_proj.shape[0] if w.out_proj is not None else o.d_mlp + A.shape[0] * o.headdim))
    if plan.is_whole:
        grads = _backward_whole(plan, x, w, kept, dout, dfinal, wanted)
        grads[6] = None if grads[6] is None else grads[6].to(w.A.dtype)
        return grads
    if w.out_proj is not None:
        rows = rows_of(dout)
        rows = rows.contiguous() if 0 in rows.stride() else rows  # else both products would copy an expanded tensor
        dout, grads[9], grads[10] = project_backward(rows, rows_of(gated), w.out_proj, w.out_bias, wanted[9:11], True, last)
        dout = dout.to(gated.dtype).view(gated.shape)
    inputs = zx, w.conv, w.conv_bias, w.dt_bias, A, w.D, w.norm, w.initial_states, seq_idx
    inside = (True, *wanted[3:9], wanted[11])
    call = plan.calls[1].follower(_BACKWARD, (layout(dout), layout(dfinal), inside, allows_tf32(x)))
    dzx, grads[3], grads[4], grads[5], dA, dD, grads[8], grads[11] = _run_inner_backward(call, inputs, (xBC, y), dout, dfinal, o, inside)
    grads[6] = None if dA is None else dA.to(w.A.dtype)
    grads[7] = dD
    if w.in_proj is None:
        grads[0] = dzx
    else:
        dx, grads[1], grads[2] = project_backward(rows_of(dzx), rows_of(x), w.in_proj, w.in_bias, wanted[1:3], wanted[0], first)
        grads[0] = None if dx is None else dx.view(x.shape).to(x.dtype)
    return grads


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx, plan, x, *weights):
        out, final, kept = _forward(plan, True, x, Weights(*weights))
        ctx.save_for_backward(x, *kept, *weights)
        ctx.plan = plan
        ctx.set_materialize_grads(False)
        return out if final is None else (out, final)

    @staticmethod
    @once
    def backward(ctx, dout, dfinal=None):
        x, *tensors = ctx.saved_tensors
        call = ctx.plan, x, Weights(*tensors[8:]), tensors[:8], dout, dfinal, ctx.needs_input_grad[1:]
        if autocast_dtype(x) is None:
            return (None, *_backward(*call))
        with torch.autocast(x.device.type, enabled=False):
            return (None, *_backward(*call))


def mamba2_block(x, w, o):
    """x (B, L, M), w: Weights, o: Options -> (out (B, L, M), or (B, L, d_mlp + H P) without out_proj; final states (B, H, P, N) float32 or None)."""
    if is_traced(x):
        return _traced(x, w, o)
    tensors, dtype = (x, *w), autocast_dtype(x) if w.in_proj is not None or w.out_proj is not None else None
    key = _signature(tensors, (*o, dtype, allows_tf32(x)))
    plan = _known.get(key)
    if plan is None:
        if any([t is not None and t.is_neg() for t in tensors]):
            x, *weights = [t if t is None else t.resolve_neg() for t in tensors]
            return mamba2_block(x, Weights(*weights), o)
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        plan = _known[key] = _Plan(x, w, o, dtype)
    if not is_grad_enabled():
        return _forward(plan, False, x, w)[:2]
    if plan.has_gradients:
        out = _Block.apply(plan, *tensors)
        return out if o.want_final else (out, None)
    with torch.no_grad():
        return _forward(plan, False, x, w)[:2]
