"""The inner chain of a Mamba block: conv, projections, norms, scan and gate as one autograd node, followed by the output projection.

    x, z = halves of xz; x = silu(conv(x)); [dt | B | C] = x_proj x per token; delta = delta_proj dt;
    y = scan(x, delta, A, B, C, D) silu(z); out = out_proj y.

On the CPU the node is one C call, which saves nothing but its inputs. On a GPU, and where that call does not apply, it is composed
here of torch's products and krait's operators; saved are then xz, the projected rows and y, and, with checkpoint_lvl 0 or a small xz, conv output and delta.
Tensors (B, D, L) may be channel-last or channel-first: xz decides."""

from typing import List, NamedTuple, Optional

import torch
from torch import Tensor, is_grad_enabled

from .._call import Call, Operator, signer
from .._torch import autocast_dtype, call_after, custom_op, differentiable, is_traced, is_wide, once
from .causal_conv1d import BACKWARD as CONV_BACKWARD, FORWARD as CONV, causal_conv1d, run_backward_call as run_conv_backward, run_call as run_conv
from .norms import add_norm, rms_norm_gradients
from .product import linear, matmul
from .selective_scan import BACKWARD as SCAN_BACKWARD, FORWARD as SCAN, ONE_GROUP, as_parameter, scan_flags, selective_scan
from .selective_scan import run_backward_call as run_scan_backward, run_call as run_scan

_INPUTS = ("xz conv_weight conv_bias x_proj_weight dt_proj_weight A A_reverse Bmat Cmat Dvec delta_bias B_proj_bias C_proj_bias B_norm_weight "
           "C_norm_weight dt_norm_weight ")
_INNER = Operator("mamba_inner", _INPUTS + "out", Bmat=ONE_GROUP, Cmat=ONE_GROUP)
_INNER_BWD = Operator("mamba_inner_bwd", _INPUTS + "dout dxz dconv_weight dconv_bias dx_proj_weight ddt_proj_weight dA dA_reverse dB dC dDvec "
                      "ddelta_bias dB_proj_bias dC_proj_bias dB_norm_weight dC_norm_weight ddt_norm_weight",
                      Bmat=ONE_GROUP, Cmat=ONE_GROUP, dB=ONE_GROUP, dC=ONE_GROUP)
_signature = signer(16)
_KEPT_BYTES = 1 << 21  # an xz up to this size is too small for recomputing conv output and delta to pay


class _Weights(NamedTuple):
    conv: Tensor  # (D, W), or (D, 1, W) as in modules
    conv_bias: Optional[Tensor]
    x_proj: Tensor
    delta_proj: Tensor
    A: Tensor
    A_reverse: Optional[Tensor]  # a second scan, in reverse
    B: Optional[Tensor]
    C: Optional[Tensor]
    D: Optional[Tensor]
    delta_bias: Optional[Tensor]
    B_bias: Optional[Tensor]
    C_bias: Optional[Tensor]
    B_norm: Optional[Tensor]
    C_norm: Optional[Tensor]
    delta_norm: Optional[Tensor]


class _Options(NamedTuple):
    softplus: bool
    keep: bool  # save conv output and delta for the backward pass
    eps: float
    reverse: bool


def _one_group(t):
    return t[:, :1] if t is not None and t.dim() == 4 else t


def _check(xz, w):
    """Against the operator's signature, which has one group of B and C and no norms of complex ones; the composed parts check everything else."""
    if not is_traced():
        w = w._replace(B=_one_group(w.B), C=_one_group(w.C))
        w = w._replace(B_norm=None, C_norm=None) if w.A.is_complex() else w
        _INNER.check(_flat((xz, *w)), scan_flags(w.B, w.C, False, False, w.A_reverse))


# ---- one C call -------------------------------------------------------------------------------------------------------
def _takes_one_call(xz, w):
    """Whether krait_mamba_inner accepts it: CPU, one group of B and C, no norm of complex rows."""
    if xz.is_cuda or (w.A.is_complex() and (w.B_norm is not None or w.C_norm is not None)):
        return False
    shape = xz.shape[0], w.A.shape[1], xz.shape[2] * (2 if w.A.is_complex() else 1)
    return all([t is None or t.shape == w.A.shape or t.shape == shape or t.shape == (shape[0], 1, *shape[1:]) for t in (w.B, w.C)])


def _flat(tensors):
    """The tensors with the convolution's weight, the second, as a matrix."""
    xz, conv, *others = tensors
    return (xz, conv if conv is None or conv.dim() == 2 else conv.squeeze(1), *others)


def _fake_backward(xz, conv, conv_bias, x_proj, delta_proj, A, A_reverse, B, C, D, delta_bias, B_bias, C_bias, B_norm, C_norm, delta_norm, dout, softplus,
                   reverse, eps, wanted):
    tensors = (xz, conv, conv_bias, x_proj, delta_proj, A, A_reverse, B, C, D, delta_bias, B_bias, C_bias, B_norm, C_norm, delta_norm)
    return [torch.empty_like(t) if want else None for t, want in zip(tensors, wanted)]


@custom_op("mamba_inner_bwd", _fake_backward)
def _one_call_backward(xz: Tensor, conv: Tensor, conv_bias: Optional[Tensor], x_proj: Tensor, delta_proj: Tensor, A: Tensor, A_reverse: Optional[Tensor],
                       B: Optional[Tensor], C: Optional[Tensor], D: Optional[Tensor], delta_bias: Optional[Tensor], B_bias: Optional[Tensor],
                       C_bias: Optional[Tensor], B_norm: Optional[Tensor], C_norm: Optional[Tensor], delta_norm: Optional[Tensor], dout: Tensor,
                       softplus: bool, reverse: bool, eps: float, wanted: List[bool]) -> List[Tensor]:
    return _run_one_call_backward(Call(_INNER_BWD), xz, conv, conv_bias, x_proj, delta_proj, A, A_reverse, B, C, D, delta_bias, B_bias, C_bias, B_norm,
                                  C_norm, delta_norm, dout, softplus, reverse, eps, wanted)


def _run_one_call_backward(call, *inputs):
    grads = _fake_backward(*inputs)
    if not inputs[0].numel():  # no tokens: the gradients are empty sums, which torch's products refuse
        return [g if g is None else g.zero_() for g in grads]
    tensors = (*_flat(inputs[:16]), inputs[16], *_flat(grads))
    if call.words is None:
        A_reverse, B, C, *_, softplus, reverse, eps, _ = inputs[6:]
        call.pack(tensors, scan_flags(B, C, softplus, reverse, A_reverse), eps=eps)
    call.run(tensors)
    return grads


def _setup_one_call(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:16])
    ctx.options = inputs[16:]


def _one_call_gradients(ctx, dout):
    tensors = ctx.saved_tensors
    if hasattr(ctx, "call"):  # the eager node, after the call and its inputs, has the tensors that there are
        needed = iter(ctx.needs_input_grad[2:])
        wanted = [t is not None and next(needed) for t in tensors]
    else:
        wanted = [t is not None and needed for t, needed in zip(tensors, ctx.needs_input_grad)]
    inputs = (*tensors, dout, *ctx.options, wanted)
    call = call_after(ctx, _INNER_BWD, (dout.stride(), *wanted))
    grads = _one_call_backward(*inputs) if call is None else _run_one_call_backward(call, *inputs)
    return (*[g if want else None for g, want in zip(grads, wanted)], None, None, None)


def _fake_one_call(xz, conv, conv_bias, x_proj, delta_proj, A, A_reverse, B, C, D, delta_bias, B_bias, C_bias, B_norm, C_norm, delta_norm, softplus, reverse, eps):
    return torch.empty_like(xz[:, :A.shape[0]])


def _run_one_call(call, tensors, options):
    xz = tensors[0]
    if call.words is None:
        out = _fake_one_call(*tensors, *options)
        call.note = out.shape, out.stride()
        tensors = (*_flat(tensors), out)
        A_reverse, B, C = tensors[6:9]
        softplus, reverse, eps = options
        call.pack(tensors, scan_flags(B, C, softplus, reverse, A_reverse), eps=eps)
    else:
        tensors = (*tensors, xz.new_empty_strided(*call.note))
    call.run(tensors)
    return tensors[16]


def _composed(xz, *inputs):
    """In separate steps, each of which is composed."""
    softplus, reverse, eps = inputs[15:]
    return _forward(None, xz, _Weights(*inputs[:15]), _Options(softplus, False, eps, reverse))[0]


@custom_op("mamba_inner", _fake_one_call, setup=_setup_one_call, backward=_one_call_gradients, composed=_composed)
def _one_call(xz: Tensor, conv: Tensor, conv_bias: Optional[Tensor], x_proj: Tensor, delta_proj: Tensor, A: Tensor, A_reverse: Optional[Tensor],
              B: Optional[Tensor], C: Optional[Tensor], D: Optional[Tensor], delta_bias: Optional[Tensor], B_bias: Optional[Tensor],
              C_bias: Optional[Tensor], B_norm: Optional[Tensor], C_norm: Optional[Tensor], delta_norm: Optional[Tensor], softplus: bool,
              reverse: bool, eps: float) -> Tensor:
    tensors = (xz, conv, conv_bias, x_proj, delta_proj, A, A_reverse, B, C, D, delta_bias, B_bias, C_bias, B_norm, C_norm, delta_norm)
    return _run_one_call(Call(_INNER), tensors, (softplus, reverse, eps))


_apply_one_call = differentiable("MambaInner", lambda call, *inputs: _run_one_call(call, inputs[:16], inputs[16:]), _setup_one_call, _one_call_gradients)


# ---- composed ---------------------------------------------------------------------------------------------------------
# `call` is the cached call of the whole chain, which holds those of its parts. In compiled code it is None, and the parts are custom operators.
# Rows are matrices of one token per row: (B L, columns).
def _is_channel_last(t):
    return t.stride(1) == 1 and t.shape[1] > 1


def _rows(t):
    """(B, D, L) -> (B L, D)."""
    return t.transpose(1, 2).reshape(-1, t.shape[1])


def _conv_of(call, x, w, o):
    weight = w.conv if w.conv.dim() == 2 else w.conv.squeeze(1)
    if call is None:
        return causal_conv1d(x, weight, w.conv_bias, activation="silu", reverse=o.reverse)
    return run_conv(call.follower(CONV), x, weight, w.conv_bias, None, None, True, o.reverse, False)[0]


def _delta_of(rows, w, shape, channel_last):
    """delta before its norm, (B, D, L) in the wanted layout."""
    b, d, length = shape
    dt = rows.narrow(1, 0, w.delta_proj.shape[1])
    if channel_last:
        return torch.mm(dt, w.delta_proj.t()).view(b, length, d).transpose(1, 2)
    return torch.mm(w.delta_proj, dt.t()).view(d, b, length).transpose(0, 1)


def _to_scan(columns, shape, is_complex):
    """(B L, N) -> (B, N, L); for complex A (B L, 2N) -> (B, N, 2L), real and imaginary parts interleaved."""
    b, _, length = shape
    if not is_complex:
        return columns.view(b, length, columns.shape[1]).transpose(1, 2)
    n = columns.shape[1] // 2
    return columns.reshape(b, length, n, 2).transpose(1, 2).reshape(b, n, 2 * length)


def _from_scan(t, is_complex):
    """The inverse of _to_scan, for gradients."""
    if not is_complex:
        return _rows(t)
    b, n, steps = t.shape
    return t.reshape(b, n, steps // 2, 2).transpose(1, 2).reshape(-1, 2 * n)


def _columns(rows, w):
    """-> (start, raw columns (B L, N), bias added) of B and of C; None where the matrix was given."""
    n, rank = w.A.shape[1] * (2 if w.A.is_complex() else 1), w.delta_proj.shape[1]
    places = []
    for given, bias, start in ((w.B, w.B_bias, rank), (w.C, w.C_bias, rows.shape[1] - n)):
        columns = None if given is not None else rows.narrow(1, start, n)
        places.append((start, columns if columns is None or bias is None else columns + bias.to(columns.dtype)))
    return places


def _matrix_of(given, columns, norm, shape, is_complex, eps):
    if given is not None:
        return given
    columns = columns if norm is None else add_norm(columns, norm, eps=eps, is_rms_norm=True)
    return _to_scan(columns, shape, is_complex)


def _normed_delta(delta, w, eps):
    if w.delta_norm is None:
        return delta
    return add_norm(delta.transpose(1, 2), w.delta_norm, eps=eps, is_rms_norm=True).transpose(1, 2)


def _scan_of(call, u, delta, B, C, z, w, o):
    tensors = u, delta, w.A, B, C, w.D, z, w.delta_bias, None, None, None, w.A_reverse
    if call is None:
        return selective_scan(*tensors[:8], o.softplus, reverse=o.reverse, A_reverse=w.A_reverse)
    call = call.follower(SCAN)
    return run_scan(call, *tensors, o.softplus, o.reverse, False)[0]


def _scan_inputs(u, rows, raw_delta, w, o):
    """-> (delta, B, C, the columns of B and C)."""
    is_complex, columns = w.A.is_complex(), _columns(rows, w)
    B, C = [_matrix_of(given, raw, norm, u.shape, is_complex, o.eps)
            for given, norm, (_, raw) in ((w.B, w.B_norm, columns[0]), (w.C, w.C_norm, columns[1]))]
    return _normed_delta(raw_delta, w, o.eps), B, C, columns


def _forward(call, xz, w, o):
    """-> (y, projected rows, conv output, delta before its norm)."""
    x, z = xz.chunk(2, dim=1)
    u = _conv_of(call, x, w, o)
    rows = torch.mm(_rows(u), w.x_proj.t())
    raw_delta = _delta_of(rows, w, u.shape, _is_channel_last(u))
    delta, B, C, _ = _scan_inputs(u, rows, raw_delta, w, o)
    return _scan_of(call, u, delta, B, C, z, w, o), rows, u, raw_delta


class _Gradients(dict):
    """Gradients by field name of _Weights; missing ones are None."""
    def __missing__(self, name):
        return None


def _home_of(matrix, given, norm, start, drows, shape, is_complex):
    """Where the scan writes the gradient of B or C: directly into that of the projected rows, if no step lies between."""
    if given is not None or norm is not None or is_complex:
        return torch.empty_like(matrix)
    return _to_scan(drows.narrow(1, start, matrix.shape[1]), shape, False)


def _columns_backward(call, d, given, raw, start, name, drows, w, o, grads):
    """From the gradient of B or C to those of its columns, bias and norm."""
    norm, bias = getattr(w, name + "_norm"), getattr(w, name + "_bias")
    if given is not None:
        grads[name] = d
        return
    columns = drows.narrow(1, start, raw.shape[1])
    if norm is not None or w.A.is_complex():
        d = _from_scan(d, w.A.is_complex())
        if norm is not None:
            d, grads[name + "_norm"] = rms_norm_gradients(call, raw, norm, d, o.eps)
        columns.copy_(d)
    if bias is not None:
        grads[name + "_bias"] = columns.sum(0).to(bias.dtype)


def _scan_backward(call, tensors, dy, w, o, dB, dC, dz, grads):
    """-> gradients of u and delta."""
    u, delta, B, C, z = tensors
    du, ddelta, grads["A"] = [torch.empty_like(t) for t in (u, delta, w.A)]
    for name in ("A_reverse", "D", "delta_bias"):
        given = getattr(w, name)
        grads[name] = None if given is None else torch.empty_like(given)
    inputs = u, delta, w.A, B, C, w.D, z, w.delta_bias, None, None, None, w.A_reverse, dy, None
    results = du, ddelta, grads["A"], dB, dC, grads["D"], dz, grads["delta_bias"], None, grads["A_reverse"]
    run_scan_backward(call.follower(SCAN_BACKWARD, dy.stride()), inputs, results, o.softplus, o.reverse)
    return du, ddelta


def _delta_backward(call, ddelta, raw_delta, rows, drows, w, o, grads):
    ddelta = _rows(ddelta)
    if w.delta_norm is not None:
        ddelta, grads["delta_norm"] = rms_norm_gradients(call, _rows(raw_delta), w.delta_norm, ddelta, o.eps)
    rank = w.delta_proj.shape[1]
    grads["delta_proj"] = torch.mm(ddelta.t(), rows.narrow(1, 0, rank))
    torch.mm(ddelta, w.delta_proj, out=drows.narrow(1, 0, rank))


def _add_product(du, drows, weight):
    """du (B, D, L) += weight^T drows^T."""
    b, d, length = du.shape
    is_matrix = _is_channel_last(du) and (b == 1 or length == 1 or du.stride(0) == length * du.stride(2))  # else its rows are a copy, as of (L, B, D)
    if is_matrix and du.dtype is drows.dtype:
        _rows(du).addmm_(drows, weight)
    else:
        du.add_(torch.mm(drows, weight).view(b, length, d).transpose(1, 2))


def _conv_backward(call, x, du, dx, w, o, grads):
    grads["conv"], grads["conv_bias"] = dweight, dbias = [None if t is None else torch.empty_like(t) for t in (w.conv, w.conv_bias)]
    weight, dweight = [t if t.dim() == 2 else t.squeeze(1) for t in (w.conv, dweight)]
    run_conv_backward(call.follower(CONV_BACKWARD), x, weight, w.conv_bias, None, None, du, None, True, o.reverse, dx, dweight, dbias, None)


def _backward(call, xz, rows, u, raw_delta, dy, w, o):
    """-> (gradient of xz, gradients of the weights)."""
    grads = _Gradients()
    x, z = xz.chunk(2, dim=1)
    dxz, drows, is_complex = torch.empty_like(xz), torch.empty_like(rows), w.A.is_complex()
    dx, dz = dxz.chunk(2, dim=1)
    if u is None:
        u = _conv_of(call, x, w, o)
        raw_delta = _delta_of(rows, w, u.shape, _is_channel_last(u))
    delta, B, C, ((start_B, raw_B), (start_C, raw_C)) = _scan_inputs(u, rows, raw_delta, w, o)
    dB = _home_of(B, w.B, w.B_norm, start_B, drows, u.shape, is_complex)
    dC = _home_of(C, w.C, w.C_norm, start_C, drows, u.shape, is_complex)
    du, ddelta = _scan_backward(call, (u, delta, B, C, z), dy, w, o, dB, dC, dz, grads)
    _columns_backward(call, dB, w.B, raw_B, start_B, "B", drows, w, o, grads)
    _columns_backward(call, dC, w.C, raw_C, start_C, "C", drows, w, o, grads)
    _delta_backward(call, ddelta, raw_delta, rows, drows, w, o, grads)
    grads["x_proj"] = torch.mm(drows.t(), _rows(u).to(drows.dtype))
    _add_product(du, drows, w.x_proj)
    _conv_backward(call, x, du, dx, w, o, grads)
    return dxz, grads


def _project(y, out_proj, out_bias):
    """(B, D, L) -> (B, L, M)."""
    rows, (b, _, length) = _rows(y), y.shape
    out = linear(rows, out_proj, out_bias)
    return out.view(b, length, out.shape[1])


def _project_backward(dout, y, out_proj, out_bias, wanted):
    """-> gradients of y, out_proj and out_bias, the last two where wanted."""
    dout, (b, d, length) = dout.reshape(-1, dout.shape[-1]), y.shape
    dout = dout.contiguous() if 0 in dout.stride() else dout  # else both products would copy an expanded tensor
    dweight = matmul(dout.t(), _rows(y).to(dout.dtype)) if wanted[0] else None
    dbias = dout.sum(0).to(out_bias.dtype) if out_bias is not None and wanted[1] else None
    dy = matmul(dout, out_proj.to(dout.dtype)).to(y.dtype).view(b, length, d).transpose(1, 2)
    return dy, None if dweight is None else dweight.to(out_proj.dtype), dbias


class _Composed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call, options, out_proj, out_bias, xz, *weights):
        y, rows, u, raw_delta = _forward(call, xz, _Weights(*weights), options)
        keep = options.keep or xz.numel() * xz.element_size() <= _KEPT_BYTES
        kept = (u, raw_delta) if keep else (None, None)
        ctx.save_for_backward(xz, rows, *kept, out_proj, out_bias, None if out_proj is None else y, *weights)
        ctx.call, ctx.options = call, options
        return y if out_proj is None else _project(y, out_proj, out_bias)

    @staticmethod
    @once
    def backward(ctx, dout):
        if autocast_dtype(dout) is None:
            return _Composed._gradients(ctx, dout)
        with torch.autocast(dout.device.type, enabled=False):
            return _Composed._gradients(ctx, dout)

    @staticmethod
    def _gradients(ctx, dy):
        xz, rows, u, raw_delta, out_proj, out_bias, y, *weights = ctx.saved_tensors
        dout_proj = dout_bias = None
        if y is not None:
            dy, dout_proj, dout_bias = _project_backward(dy, y, out_proj, out_bias, ctx.needs_input_grad[2:4])
        dxz, grads = _backward(ctx.call, xz, rows, u, raw_delta, dy, _Weights(*weights), ctx.options)
        return (None, None, dout_proj, dout_bias, dxz, *[grads[name] for name in _Weights._fields])


# ---- entries ----------------------------------------------------------------------------------------------------------
def _cast(t, dtype):
    return t if t is None or dtype is None else t.to(dtype)


def _in_kind(conv, conv_bias, x_proj, delta_proj, A, A_reverse, B, C, D, delta_bias, B_bias, C_bias, B_norm, C_norm, delta_norm, dtype, real):
    """Casts to the operators' types; drops the bias and norm of a matrix that was given, which have no effect."""
    kind = torch.promote_types(real, torch.complex64) if A.is_complex() else real
    return _Weights(
        conv, conv_bias, _cast(x_proj, dtype), _cast(delta_proj, dtype), as_parameter(A, kind),
        A_reverse if A_reverse is None else as_parameter(A_reverse, kind), B if B is None or B.dim() > 2 else as_parameter(B, kind),
        C if C is None or C.dim() > 2 else as_parameter(C, kind), D if D is None else as_parameter(D, real),
        delta_bias if delta_bias is None else as_parameter(delta_bias, real),
        B_bias if B is None else None, C_bias if C is None else None, B_norm if B is None else None, C_norm if C is None else None, delta_norm)


def _compose(call, tensors, o, out_proj, out_bias):
    if is_grad_enabled() and (call.has_gradients or (out_proj is not None and (out_proj.requires_grad or (out_bias is not None and out_bias.requires_grad)))):
        return _Composed.apply(call, o, out_proj, out_bias, *tensors)
    y = _forward(call, tensors[0], _Weights(*tensors[1:]), o)[0]
    return y if out_proj is None else _project(y, out_proj, out_bias)


def _chain(tensors, softplus, reverse, eps, keep, out_proj, out_bias):
    """xz and the weights -> (B, L, M), or (B, D, L) where out_proj is None."""
    options, dtype = (softplus, reverse, eps), autocast_dtype(tensors[0])
    if dtype is not None:
        out_proj, out_bias = _cast(out_proj, dtype), _cast(out_bias, dtype)
    if is_traced(tensors[0]):
        xz, w = tensors[0], _in_kind(*tensors[1:], dtype, torch.float64 if is_wide(tensors[0]) else torch.float32)
        _check(xz, w)
        y = _one_call(xz, *w, *options) if _takes_one_call(xz, w) else _forward(None, xz, w, _Options(softplus, keep, eps, reverse))[0]
        return y if out_proj is None else _project(y, out_proj, out_bias)
    signed = (*options, keep, dtype)
    call = _INNER.known.get(_signature(tensors, signed))
    if call is None:
        xz, w = tensors[0], _in_kind(*tensors[1:], dtype, torch.float32)
        _check(xz, w)
        call, tensors = _INNER.keep(_signature, signed, (xz, *w), None if _takes_one_call(xz, w) else _compose)
    if call.note is _compose:
        return _compose(call, tensors, _Options(softplus, keep, eps, reverse), out_proj, out_bias)
    y = _apply_one_call(call, *tensors, *options) if call.has_gradients and is_grad_enabled() else _run_one_call(call, tensors, options)
    return y if out_proj is None else _project(y, out_proj, out_bias)


def mamba_inner(xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias, A, B=None,
                C=None, D=None, delta_bias=None, B_proj_bias=None, C_proj_bias=None, delta_softplus=True, checkpoint_lvl=1,
                b_rms_weight=None, c_rms_weight=None, dt_rms_weight=None, b_c_dt_rms_eps=1e-6, reverse=False):
    """xz (B, 2D, L) -> (B, L, M), or (B, D, L) where out_proj_weight is None."""
    assert checkpoint_lvl in (0, 1), "checkpoint_lvl must be 0 or 1"
    tensors = (xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, A, None, B, C, D, delta_bias, B_proj_bias, C_proj_bias,
               b_rms_weight, c_rms_weight, dt_rms_weight)
    return _chain(tensors, bool(delta_softplus), bool(reverse), float(b_c_dt_rms_eps), checkpoint_lvl == 0, out_proj_weight, out_proj_bias)


def bimamba_inner(xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias, A, A_b,
                  B=None, C=None, D=None, delta_bias=None, B_proj_bias=None, C_proj_bias=None, delta_softplus=True):
    """One convolution and projection, scanned forward with A and backward with A_b; the sum is projected out. Each scan adds D u,
    the operator only once to the sum: it gets 2 D."""
    tensors = (xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, A, A_b, B, C, D if D is None else D + D, delta_bias, B_proj_bias,
               C_proj_bias, None, None, None)
    return _chain(tensors, bool(delta_softplus), False, 0.0, False, out_proj_weight, out_proj_bias)
