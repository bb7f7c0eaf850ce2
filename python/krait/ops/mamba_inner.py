"""The inner chain of a Mamba block: conv, projections, norms, scan and gate as one autograd node, then the output projection.

    x, z = halves of xz; x = silu(conv(x)); [dt | B | C] = x_proj x per token; delta = delta_proj dt;
    y = scan(x, delta, A, B, C, D) silu(z); out = out_proj y.

On the CPU the node is one C call, which keeps nothing but its inputs. On a GPU, and for what that call does not take, it is composed
here of torch's products and krait's operators; kept are then xz and the projected rows, with checkpoint_lvl 0 also conv output and delta.
Tensors (B, D, L) may be stored token after token (channel-last) or channel after channel: xz decides."""

from typing import List, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, is_grad_enabled

from .._call import Call, Operator, signer
from .._torch import autocast_dtype, custom_op, differentiable, is_traced, is_tracked, once
from .causal_conv1d import causal_conv1d, run_backward as run_conv_backward
from .norms import _add_norm_bwd, add_norm
from .selective_scan import ONE_GROUP, as_parameter, run_backward as run_scan_backward, scan_flags, selective_scan

_INPUTS = ("xz conv_weight conv_bias x_proj_weight dt_proj_weight A A_reverse Bmat Cmat Dvec delta_bias B_proj_bias C_proj_bias B_norm_weight "
           "C_norm_weight dt_norm_weight ")
_INNER = Operator("mamba_inner", _INPUTS + "out", Bmat=ONE_GROUP, Cmat=ONE_GROUP)
_INNER_BWD = Operator("mamba_inner_bwd", _INPUTS + "dout dxz dconv_weight dconv_bias dx_proj_weight ddt_proj_weight dA dA_reverse dB dC dDvec "
                      "ddelta_bias dB_proj_bias dC_proj_bias dB_norm_weight dC_norm_weight ddt_norm_weight",
                      Bmat=ONE_GROUP, Cmat=ONE_GROUP, dB=ONE_GROUP, dC=ONE_GROUP)
_signature = signer(16)


class _Weights(NamedTuple):
    conv: Tensor  # (D, W), or (D, 1, W) as modules have it
    conv_bias: Optional[Tensor]
    x_proj: Tensor
    delta_proj: Tensor
    A: Tensor
    A_reverse: Optional[Tensor]  # a second direction of the scan
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
    keep: bool  # conv output and delta are kept for the backward pass
    eps: float
    reverse: bool


def _check(xz, w):
    d, n = w.A.shape if w.A.dim() == 2 else (0, 0)
    wide, rank = n * (2 if w.A.is_complex() else 1), w.delta_proj.shape[-1]
    columns = rank + (wide if w.B is None else 0) + (wide if w.C is None else 0)
    fits = (xz.dim() == 3 and xz.shape[1] == 2 * d and w.conv.shape[0] == d and (w.conv.dim() == 2 or w.conv.shape[1:-1] == (1,)) and w.x_proj.shape == (columns, d)
            and w.delta_proj.shape == (d, rank) and (w.A_reverse is None or w.A_reverse.shape == (d, n)))
    vectors = ((w.conv_bias, d), (w.D, d), (w.delta_bias, d), (w.B_bias, wide), (w.C_bias, wide), (w.B_norm, wide), (w.C_norm, wide), (w.delta_norm, d))
    if not fits or any([t is not None and t.shape != (length,) for t, length in vectors]):
        given = ", ".join("%s %s" % (name, tuple(t.shape)) for name, t in zip(("xz", *w._fields), (xz, *w)) if t is not None)
        raise RuntimeError("mamba_inner: xz must be (B, 2D, L), conv1d_weight (D, 1, W), x_proj_weight (R + N for each of B and C that is not given, D), "
                           "delta_proj_weight (D, R), A (D, N), biases and norm weights as long as what they belong to; got " + given)


# ---- one C call -------------------------------------------------------------------------------------------------------
def _takes_one_call(xz, w):
    """Whether krait_mamba_inner takes it: a CPU, one group of B and C, no norm of complex rows."""
    if xz.is_cuda or (w.A.is_complex() and (w.B_norm is not None or w.C_norm is not None)):
        return False
    shape = xz.shape[0], w.A.shape[1], xz.shape[2] * (2 if w.A.is_complex() else 1)
    return all([t is None or t.shape == w.A.shape or t.shape == shape or t.shape == (shape[0], 1, *shape[1:]) for t in (w.B, w.C)])


def _flat(tensors):
    """With the convolution's weight, which comes second, as a matrix."""
    xz, conv, *others = tensors
    return (xz, conv if conv.dim() == 2 else conv.squeeze(1), *others)


def _numbers(xz, conv, delta_proj, A, eps):
    b, two_d, length = xz.shape
    return dict(B=b, D=two_d // 2, L=length, N=A.shape[1], W=conv.shape[-1], R=delta_proj.shape[1], M=0, eps=eps)


def _fake_backward(xz, conv, conv_bias, x_proj, delta_proj, A, A_reverse, B, C, D, delta_bias, B_bias, C_bias, B_norm, C_norm, delta_norm, dout, softplus,
                   reverse, eps, wanted):
    tensors = (xz, conv, conv_bias, x_proj, delta_proj, A, A_reverse, B, C, D, delta_bias, B_bias, C_bias, B_norm, C_norm, delta_norm)
    return [torch.empty_like(t) if want else None for t, want in zip(tensors, wanted)]


@custom_op("mamba_inner_bwd", _fake_backward)
def _one_call_backward(xz: Tensor, conv: Tensor, conv_bias: Optional[Tensor], x_proj: Tensor, delta_proj: Tensor, A: Tensor, A_reverse: Optional[Tensor],
                       B: Optional[Tensor], C: Optional[Tensor], D: Optional[Tensor], delta_bias: Optional[Tensor], B_bias: Optional[Tensor],
                       C_bias: Optional[Tensor], B_norm: Optional[Tensor], C_norm: Optional[Tensor], delta_norm: Optional[Tensor], dout: Tensor,
                       softplus: bool, reverse: bool, eps: float, wanted: List[bool]) -> List[Tensor]:
    tensors = (xz, conv, conv_bias, x_proj, delta_proj, A, A_reverse, B, C, D, delta_bias, B_bias, C_bias, B_norm, C_norm, delta_norm)
    grads = _fake_backward(*tensors, dout, softplus, reverse, eps, wanted)
    _INNER_BWD.run((*_flat(tensors), dout, grads[0], None if grads[1] is None else grads[1].view(conv.shape[0], -1), *grads[2:]),
                   scan_flags(B, C, softplus, reverse, A_reverse), **_numbers(xz, conv, delta_proj, A, eps))
    return grads


def _setup_one_call(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:16])
    ctx.options = inputs[16:]


def _one_call_gradients(ctx, dout):
    tensors = ctx.saved_tensors
    wanted = [t is not None and needed for t, needed in zip(tensors, ctx.needs_input_grad[-19:])]  # eager nodes have the call before
    grads = _one_call_backward(*tensors, dout, *ctx.options, wanted)
    return (*[g if want else None for g, want in zip(grads, wanted)], None, None, None)


def _fake_one_call(xz, conv, conv_bias, x_proj, delta_proj, A, A_reverse, B, C, D, delta_bias, B_bias, C_bias, B_norm, C_norm, delta_norm, softplus, reverse, eps):
    return torch.empty_like(xz[:, :A.shape[0]])


def _run_one_call(call, tensors, options):
    xz = tensors[0]
    if call.words is None:
        out = _fake_one_call(*tensors, *options)
        call.note = out.shape, out.stride()
        tensors = (*_flat(tensors), out)
        _, conv, _, _, delta_proj, A, A_reverse, B, C = tensors[:9]
        softplus, reverse, eps = options
        call.pack(tensors, scan_flags(B, C, softplus, reverse, A_reverse), **_numbers(xz, conv, delta_proj, A, eps))
    else:
        tensors = (*tensors, xz.new_empty_strided(*call.note))
    call.run(tensors)
    return tensors[16]


@custom_op("mamba_inner", _fake_one_call, setup=_setup_one_call, backward=_one_call_gradients)
def _one_call(xz: Tensor, conv: Tensor, conv_bias: Optional[Tensor], x_proj: Tensor, delta_proj: Tensor, A: Tensor, A_reverse: Optional[Tensor],
              B: Optional[Tensor], C: Optional[Tensor], D: Optional[Tensor], delta_bias: Optional[Tensor], B_bias: Optional[Tensor],
              C_bias: Optional[Tensor], B_norm: Optional[Tensor], C_norm: Optional[Tensor], delta_norm: Optional[Tensor], softplus: bool,
              reverse: bool, eps: float) -> Tensor:
    tensors = (xz, conv, conv_bias, x_proj, delta_proj, A, A_reverse, B, C, D, delta_bias, B_bias, C_bias, B_norm, C_norm, delta_norm)
    return _run_one_call(Call(_INNER), tensors, (softplus, reverse, eps))


_apply_one_call = differentiable("MambaInner", lambda call, *inputs: _run_one_call(call, inputs[:16], inputs[16:]), _setup_one_call, _one_call_gradients)


# ---- composed ---------------------------------------------------------------------------------------------------------
def _is_channel_last(t):
    return t.stride(1) == 1 and t.shape[1] > 1


def _rms(rows, weight, eps):
    """RMS norm over the last axis of (B, L, F)."""
    return add_norm(rows, weight, eps=eps, is_rms_norm=True)


def _rms_backward(rows, weight, dout, eps):
    """-> (gradient of rows, gradient of weight)."""
    flat = rows.reshape(-1, rows.shape[-1])
    grads = _add_norm_bwd(flat, weight, None, None, None, None, dout.reshape(flat.shape), None, None, rows.dtype, None, None, eps,
                          True)
    return grads[0].view(rows.shape), grads[3]


def _conv_of(x, w, o):
    return causal_conv1d(x, w.conv, w.conv_bias, activation="silu", reverse=o.reverse)


def _delta_of(x_dbl, w, channel_last):
    """delta before its norm, (B, D, L) in the wanted layout."""
    rank = w.delta_proj.shape[1]
    dt = x_dbl[..., :rank]
    if channel_last:
        return F.linear(dt, w.delta_proj).transpose(1, 2)
    b, length, _ = x_dbl.shape
    return torch.mm(w.delta_proj, dt.reshape(b * length, rank).t()).view(-1, b, length).transpose(0, 1)


def _to_scan(rows, is_complex):
    """(B, L, N) -> (B, N, L); for complex A (B, L, 2N) -> (B, N, 2L), real and imaginary part side by side."""
    if not is_complex:
        return rows.transpose(1, 2)
    b, length, two_n = rows.shape
    return rows.reshape(b, length, two_n // 2, 2).transpose(1, 2).reshape(b, two_n // 2, 2 * length)


def _from_scan(t, is_complex):
    """The inverse of _to_scan, for gradients."""
    b, n, steps = t.shape
    if not is_complex:
        return t.transpose(1, 2)
    return t.reshape(b, n, steps // 2, 2).transpose(1, 2).reshape(b, steps // 2, 2 * n)


def _columns(x_dbl, w):
    """The raw B and C columns (B, L, N) of the projection, biases added; None where the argument was given."""
    n = w.A.shape[1] * (2 if w.A.is_complex() else 1)
    rank = w.delta_proj.shape[1]
    B = None if w.B is not None else x_dbl[..., rank:rank + n]
    C = None if w.C is not None else x_dbl[..., x_dbl.shape[-1] - n:]
    B = B if B is None or w.B_bias is None else B + w.B_bias.to(B.dtype)
    C = C if C is None or w.C_bias is None else C + w.C_bias.to(C.dtype)
    return B, C


def _matrix_of(given, columns, norm, is_complex, eps):
    if given is not None:
        return given
    return _to_scan(columns if norm is None else _rms(columns, norm, eps), is_complex)


def _normed_delta(delta, w, eps):
    if w.delta_norm is None:
        return delta
    return _rms(delta.transpose(1, 2), w.delta_norm, eps).transpose(1, 2)


def _scan_of(u, delta, B, C, z, w, o):
    return selective_scan(u, delta, w.A, B, C, w.D, z, w.delta_bias, o.softplus, reverse=o.reverse, A_reverse=w.A_reverse)


def _forward(xz, w, o):
    """-> (y, x_dbl, conv output, delta before its norm)."""
    x, z = xz.chunk(2, dim=1)
    u = _conv_of(x, w, o)
    x_dbl = F.linear(u.transpose(1, 2), w.x_proj)
    raw_delta = _delta_of(x_dbl, w, _is_channel_last(u))
    raw_B, raw_C = _columns(x_dbl, w)
    is_complex = w.A.is_complex()
    B = _matrix_of(w.B, raw_B, w.B_norm, is_complex, o.eps)
    C = _matrix_of(w.C, raw_C, w.C_norm, is_complex, o.eps)
    y = _scan_of(u, _normed_delta(raw_delta, w, o.eps), B, C, z, w, o)
    return y, x_dbl, u, raw_delta


def _sum_rows(t):
    return t.reshape(-1, t.shape[-1]).sum(0)


def _product(dout, rows):
    """Gradient of a weight: dout^T rows over all tokens."""
    return torch.mm(dout.reshape(-1, dout.shape[-1]).t(), rows.reshape(-1, rows.shape[-1]).to(dout.dtype))


class _Gradients(dict):
    """Gradients by the names of _Weights; missing ones are None."""
    def __missing__(self, name):
        return None


def _column_backward(dmatrix, raw, name, dx_dbl, start, w, o, grads):
    """Puts the gradient of the B or C columns into dx_dbl at `start`."""
    d = _from_scan(dmatrix, w.A.is_complex())
    norm = getattr(w, name + "_norm")
    if norm is not None:
        d, grads[name + "_norm"] = _rms_backward(raw, norm, d, o.eps)
    if getattr(w, name + "_bias") is not None:
        grads[name + "_bias"] = _sum_rows(d).to(getattr(w, name + "_bias").dtype)
    dx_dbl[..., start:start + d.shape[-1]] = d


def _scan_backward(u, delta, B, C, z, dy, dz, w, o, grads):
    """-> gradients of u, delta, B, C; that of z is written to dz."""
    du, ddelta, grads["A"], dB, dC = [torch.empty_like(t) for t in (u, delta, w.A, B, C)]
    for name in ("A_reverse", "D", "delta_bias"):
        given = getattr(w, name)
        grads[name] = None if given is None else torch.empty_like(given)
    run_scan_backward(u, delta, w.A, B, C, w.D, z, w.delta_bias, None, None, None, w.A_reverse, dy, None, o.softplus, o.reverse, du, ddelta,
                      grads["A"], dB, dC, grads["D"], dz, grads["delta_bias"], None, grads["A_reverse"])
    return du, ddelta, dB, dC


def _conv_backward(x, du, dx, w, o, grads):
    grads["conv"], grads["conv_bias"] = [None if t is None else torch.empty_like(t) for t in (w.conv, w.conv_bias)]
    run_conv_backward(x, w.conv, w.conv_bias, None, None, du, None, True, o.reverse, dx, grads["conv"], grads["conv_bias"], None)


def _backward(xz, x_dbl, u, raw_delta, dy, w, o):
    """-> (gradient of xz, gradients of the weights)."""
    grads = _Gradients()
    x, z = xz.chunk(2, dim=1)
    dxz = torch.empty_like(xz)
    dx, dz = dxz.chunk(2, dim=1)
    if u is None:
        u = _conv_of(x, w, o)
        raw_delta = _delta_of(x_dbl, w, _is_channel_last(u))
    is_complex, rank = w.A.is_complex(), w.delta_proj.shape[1]
    raw_B, raw_C = _columns(x_dbl, w)
    B = _matrix_of(w.B, raw_B, w.B_norm, is_complex, o.eps)
    C = _matrix_of(w.C, raw_C, w.C_norm, is_complex, o.eps)
    du, ddelta, dB, dC = _scan_backward(u, _normed_delta(raw_delta, w, o.eps), B, C, z, dy, dz, w, o, grads)
    dx_dbl = torch.empty_like(x_dbl)
    ddelta = ddelta.transpose(1, 2)
    if w.delta_norm is not None:
        ddelta, grads["delta_norm"] = _rms_backward(raw_delta.transpose(1, 2), w.delta_norm, ddelta, o.eps)
    grads["delta_proj"] = _product(ddelta, x_dbl[..., :rank])
    dx_dbl[..., :rank] = torch.matmul(ddelta, w.delta_proj)
    for name, given, raw, d in (("B", w.B, raw_B, dB), ("C", w.C, raw_C, dC)):
        if given is not None:
            grads[name] = d
        else:
            start = rank if name == "B" else x_dbl.shape[-1] - raw.shape[-1]
            _column_backward(d, raw, name, dx_dbl, start, w, o, grads)
    grads["x_proj"] = _product(dx_dbl, u.transpose(1, 2))
    du += torch.matmul(dx_dbl, w.x_proj).transpose(1, 2)
    _conv_backward(x, du, dx, w, o, grads)
    return dxz, grads


class _Composed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, xz, options, *weights):
        y, x_dbl, u, raw_delta = _forward(xz, _Weights(*weights), options)
        kept = (u, raw_delta) if options.keep else (None, None)
        ctx.save_for_backward(xz, x_dbl, *kept, *weights)
        ctx.options = options
        return y

    @staticmethod
    @once
    def backward(ctx, dy):
        xz, x_dbl, u, raw_delta, *weights = ctx.saved_tensors
        if autocast_dtype(xz) is None:
            dxz, grads = _backward(xz, x_dbl, u, raw_delta, dy, _Weights(*weights), ctx.options)
        else:
            with torch.autocast(xz.device.type, enabled=False):
                dxz, grads = _backward(xz, x_dbl, u, raw_delta, dy, _Weights(*weights), ctx.options)
        return (dxz, None, *[grads[name] for name in _Weights._fields])


# ---- entries ----------------------------------------------------------------------------------------------------------
def _cast(t, dtype):
    return t if t is None or dtype is None else t.to(dtype)


def _in_kind(conv, conv_bias, x_proj, delta_proj, A, A_reverse, B, C, D, delta_bias, B_bias, C_bias, B_norm, C_norm, delta_norm, dtype):
    """As the operators take them; the bias and the norm of a matrix that was given have no effect."""
    kind = torch.complex64 if A.is_complex() else torch.float32
    return _Weights(
        conv, conv_bias, _cast(x_proj, dtype), _cast(delta_proj, dtype), as_parameter(A, kind),
        A_reverse if A_reverse is None else as_parameter(A_reverse, kind), B if B is None or B.dim() > 2 else as_parameter(B, kind),
        C if C is None or C.dim() > 2 else as_parameter(C, kind), D if D is None else as_parameter(D, torch.float32),
        delta_bias if delta_bias is None else as_parameter(delta_bias, torch.float32),
        B_bias if B is None else None, C_bias if C is None else None, B_norm if B is None else None, C_norm if C is None else None, delta_norm)


def _compose(xz, w, o):
    w = w._replace(conv=w.conv if w.conv.dim() == 2 else w.conv.squeeze(1))
    return _Composed.apply(xz, o, *w) if is_tracked((xz, *w)) and not is_traced() else _forward(xz, w, o)[0]


def _inner(tensors, softplus, reverse, eps, keep, dtype):
    """The chain of xz and the weights, without its last projection."""
    options = softplus, reverse, eps
    if is_traced():
        xz, w = tensors[0], _in_kind(*tensors[1:], dtype)
        _check(xz, w)
        return _one_call(xz, *w, *options) if _takes_one_call(xz, w) else _compose(xz, w, _Options(softplus, keep, eps, reverse))
    key = _signature(tensors, (*options, keep, dtype))
    call = _INNER.known.get(key)
    if call is None:
        xz, w = tensors[0], _in_kind(*tensors[1:], dtype)
        _check(xz, w)
        call, tensors = _INNER.keep(key, tensors, (xz, *w), None if _takes_one_call(xz, w) else _compose)
    if call.note is _compose:
        return _compose(tensors[0], _Weights(*tensors[1:]), _Options(softplus, keep, eps, reverse))
    return _apply_one_call(call, *tensors, *options) if call.has_gradients and is_grad_enabled() else _run_one_call(call, tensors, options)


def _projected(y, out_proj, out_bias, dtype):
    return F.linear(y.transpose(1, 2), _cast(out_proj, dtype), _cast(out_bias, dtype))


def mamba_inner(xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias, A, B=None,
                C=None, D=None, delta_bias=None, B_proj_bias=None, C_proj_bias=None, delta_softplus=True, checkpoint_lvl=1,
                b_rms_weight=None, c_rms_weight=None, dt_rms_weight=None, b_c_dt_rms_eps=1e-6, reverse=False):
    """xz (B, 2D, L) -> (B, L, M), or (B, D, L) where out_proj_weight is None."""
    assert checkpoint_lvl in (0, 1), "checkpoint_lvl must be 0 or 1"
    dtype = autocast_dtype(xz)
    tensors = (xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, A, None, B, C, D, delta_bias, B_proj_bias, C_proj_bias,
               b_rms_weight, c_rms_weight, dt_rms_weight)
    y = _inner(tensors, bool(delta_softplus), bool(reverse), float(b_c_dt_rms_eps), checkpoint_lvl == 0, dtype)
    return y if out_proj_weight is None else _projected(y, out_proj_weight, out_proj_bias, dtype)


def bimamba_inner(xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias, A, A_b,
                  B=None, C=None, D=None, delta_bias=None, B_proj_bias=None, C_proj_bias=None, delta_softplus=True):
    """One convolution and projection, scanned forward with A and backward with A_b; the sum is projected out. Each scan adds D u,
    the operator does so once to the sum: it gets 2 D."""
    dtype = autocast_dtype(xz)
    tensors = (xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, A, A_b, B, C, D if D is None else D + D, delta_bias, B_proj_bias,
               C_proj_bias, None, None, None)
    return _projected(_inner(tensors, bool(delta_softplus), False, 0.0, False, dtype), out_proj_weight, out_proj_bias, dtype)
