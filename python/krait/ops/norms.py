"""Add + norm and gated norm, RMS or layer norm, forward and backward."""

from typing import List, Optional, Tuple

import torch
from torch import Tensor, is_grad_enabled

from . import composed
from .._call import Call, Operator, signer
from .._torch import autocast_dtype, call_after, custom_op, differentiable, is_traced, layout
from .product import linear

ADD_NORM = Operator("add_norm", "x weight bias residual x1 weight1 bias1 rowscale out out1 residual_out")
ADD_NORM_BWD = Operator("add_norm_bwd", "v weight weight1 rowscale dout dout1 dresidual_out dx dresidual dx1 dweight dbias dweight1 dbias1")
GATED_NORM = Operator("gated_norm", "x z weight bias out")
GATED_NORM_BWD = Operator("gated_norm_bwd", "x z weight bias dout dx dz dweight dbias")
_add_norm_signature, _gated_norm_signature = signer(8), signer(4)
_RMS, _GATE_FIRST = 1, 2  # KRAIT_NORM_RMS and KRAIT_GATED_NORM_RMS; KRAIT_GATED_NORM_GATE_FIRST


def _like(t, dtype=None):
    return torch.empty_like(t) if dtype is None else torch.empty_like(t, dtype=dtype)


def _fake_add_norm_bwd(v, weight, bias, weight1, bias1, rowscale, dout, dout1, dsum, x_dtype, residual_dtype, x1_dtype, eps, rms):
    return ([None if dtype is None else _like(v, dtype) for dtype in (x_dtype, residual_dtype, x1_dtype)]
            + [None if t is None else _like(t) for t in (weight, bias, weight1, bias1)])


@custom_op("add_norm_bwd", _fake_add_norm_bwd)
def _add_norm_bwd(v: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], weight1: Optional[Tensor],
                  bias1: Optional[Tensor], rowscale: Optional[Tensor], dout: Optional[Tensor], dout1: Optional[Tensor],
                  dsum: Optional[Tensor], x_dtype: torch.dtype, residual_dtype: Optional[torch.dtype],
                  x1_dtype: Optional[torch.dtype], eps: float, rms: bool) -> List[Tensor]:
    """-> gradients of x, residual, x1, weight, bias, weight1, bias1."""
    return _run_add_norm_bwd(Call(ADD_NORM_BWD), v, weight, bias, weight1, bias1, rowscale, dout, dout1, dsum, x_dtype, residual_dtype, x1_dtype, eps, rms)


def _run_add_norm_bwd(call, *inputs):
    v, weight, _, weight1, _, rowscale, dout, dout1, dsum, *_, eps, rms = inputs
    grads = _fake_add_norm_bwd(*inputs)
    tensors = (v, weight, weight1, rowscale, dout, dout1, dsum, *grads)
    if call.words is None:
        call.pack(tensors, _RMS if rms else 0, eps=eps)
    call.run(tensors)
    return grads


def rms_norm_gradients(call, rows, weight, dout, eps):
    """-> gradients of rows (R, M) and weight; call: determines their shapes."""
    call = call.follower(ADD_NORM_BWD, (rows.shape, rows.stride(), dout.stride()))
    grads = _run_add_norm_bwd(call, rows, weight, None, None, None, None, dout, None, None, rows.dtype, None, None, eps, True)
    return grads[0], grads[3]


def _setup_add_norm(ctx, inputs, output):
    x, weight, bias, residual, x1, weight1, bias1, rowscale, ctx.eps, ctx.rms, _, want_sum = inputs
    ctx.save_for_backward(output[2] if want_sum else x, weight, bias, weight1, bias1, rowscale)
    ctx.dtypes = [None if t is None else t.dtype for t in (x, residual, x1)]
    ctx.set_materialize_grads(False)


def _add_norm_gradients(ctx, dout, dout1=None, dsum=None):
    v, weight, bias, weight1, bias1, rowscale = ctx.saved_tensors
    inputs = v, weight, bias, weight1, bias1, rowscale, dout, dout1, dsum, *ctx.dtypes, ctx.eps, ctx.rms
    call = call_after(ctx, ADD_NORM_BWD, (layout(dout), layout(dout1), layout(dsum)))
    grads = _add_norm_bwd(*inputs) if call is None else _run_add_norm_bwd(call, *inputs)
    given = (*ctx.dtypes, weight, bias, weight1, bias1)
    dx, dresidual, dx1, dweight, dbias, dweight1, dbias1 = [None if t is None else g for t, g in zip(given, grads)]
    return dx, dweight, dbias, dresidual, dx1, dweight1, dbias1, None, None, None, None, None


def _fake_add_norm(x, weight, bias, residual, x1, weight1, bias1, rowscale, eps, rms, sum_in_fp32, want_sum):
    sum_dtype = residual.dtype if residual is not None else torch.float32 if sum_in_fp32 else x.dtype
    return _like(x), None if weight1 is None else _like(x), _like(x, sum_dtype) if want_sum else None


def _run_add_norm(call, *inputs):
    outputs = _fake_add_norm(*inputs)
    tensors = (*inputs[:8], *outputs)
    if call.words is None:
        x, eps, rms = inputs[0], *inputs[8:10]
        call.pack(tensors, _RMS if rms else 0, eps=eps)
    call.run(tensors)
    return outputs


@custom_op("add_norm", _fake_add_norm, setup=_setup_add_norm, backward=_add_norm_gradients, composed=composed.add_norm)
def _add_norm(x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], residual: Optional[Tensor],
              x1: Optional[Tensor], weight1: Optional[Tensor], bias1: Optional[Tensor], rowscale: Optional[Tensor],
              eps: float, rms: bool, sum_in_fp32: bool, want_sum: bool) -> Tuple[Tensor, Tensor, Tensor]:
    return _run_add_norm(Call(ADD_NORM), x, weight, bias, residual, x1, weight1, bias1, rowscale, eps, rms, sum_in_fp32, want_sum)


_apply_add_norm = differentiable("AddNorm", _run_add_norm, _setup_add_norm, _add_norm_gradients)


def _rows(t, width):
    return t if t is None or t.dim() == 2 else t.reshape(-1, width)


def _shaped(t, shape):
    return t if len(shape) == 2 else t.reshape(shape)


def _drop(x, p, rowscale):
    """x rowscale, then dropout -> (x, mask)."""
    if rowscale is not None:
        x = x * rowscale.reshape(-1, 1).to(x.dtype)
    mask = torch.rand(x.shape, device=x.device) >= p
    return x * mask.to(x.dtype) * (1 / (1 - p)), mask


def _check_add_norm(x, weight, bias, residual, x1, weight1, bias1, rowscale):
    shape = x.shape
    row = shape[-1:]
    assert residual is None or residual.shape == shape, "residual must have x's shape %s" % (tuple(shape),)
    assert x1 is None or x1.shape == shape, "x1 must have x's shape %s" % (tuple(shape),)
    assert ((weight is None or weight.shape == row) and (bias is None or bias.shape == row)
            and (weight1 is None or weight1.shape == row) and (bias1 is None or bias1.shape == row)), \
        "weight, bias, weight1 and bias1 must be (%d)" % row[0]
    assert bias1 is None or weight1 is not None, "bias1 needs weight1"
    assert rowscale is None or (x1 is None and rowscale.shape == shape[:-1]), "rowscale must have one value per row, and no x1"


def add_norm(x, weight, bias=None, residual=None, x1=None, weight1=None, bias1=None, eps=1e-6, dropout_p=0.0, rowscale=None,
             prenorm=False, residual_in_fp32=False, is_rms_norm=False, return_dropout_mask=False):
    """y, or (y, y1) with weight1; with prenorm the sum is appended, with return_dropout_mask the masks."""
    inputs, shape, width, traced = (x, weight, bias, residual, x1, weight1, bias1, rowscale), x.shape, x.shape[-1], is_traced(x)
    adds = prenorm or residual is not None or x1 is not None or rowscale is not None
    options = (float(eps), bool(is_rms_norm), bool(residual_in_fp32), bool(adds))
    key = None if traced else _add_norm_signature(inputs, options)
    call = None if traced else ADD_NORM.known.get(key)
    if call is None:
        _check_add_norm(*inputs)
        if not traced:
            call, (x, weight, bias, residual, x1, weight1, bias1, rowscale) = ADD_NORM.keep(_add_norm_signature, options, inputs)
    rows, rows1, residual, mask, mask1 = _rows(x, width), _rows(x1, width), _rows(residual, width), None, None
    rowscale = None if rowscale is None else rowscale.reshape(-1)
    if dropout_p > 0.0:
        rows, mask = _drop(rows, dropout_p, rowscale)
        call, rowscale = None if traced else Call(ADD_NORM, has_gradients=call.has_gradients), None
        if rows1 is not None:
            rows1, mask1 = _drop(rows1, dropout_p, None)
    tensors = (rows, weight, bias, residual, rows1, weight1, bias1, rowscale)
    if traced:
        out, out1, total = _add_norm(*tensors, *options)
    else:
        out, out1, total = (_apply_add_norm if call.has_gradients and is_grad_enabled() else _run_add_norm)(call, *tensors, *options)
    results = [_shaped(out, shape)]
    if weight1 is not None:
        results.append(_shaped(out1, shape))
    if prenorm:
        results.append(_shaped(total, shape))
    if return_dropout_mask:
        results += [None if m is None else m.reshape(shape) for m in (mask, mask1)]
    return results[0] if len(results) == 1 else tuple(results)


def norm_forward(x, weight, bias, eps, residual, x1, weight1, bias1, dropout_p, rowscale, out_dtype, residual_dtype, is_rms_norm, return_dropout_mask):
    """add_norm below autograd, x (M, D) -> y, y1, mean (None for RMS norms), rstd, the sum, masks for norm_backward, mask, mask1."""
    with torch.no_grad():
        y, *y1, total, mask, mask1 = add_norm(x, weight, bias, residual, x1, weight1, bias1, eps, dropout_p, rowscale, True, residual_dtype == torch.float32, is_rms_norm, True)
        wide = total.float()
        mean = None if is_rms_norm else wide.mean(-1)
        rstd = (wide if mean is None else wide - mean[:, None]).square().mean(-1).add(eps).rsqrt()
    masks = mask if mask1 is None else torch.stack([mask, mask1])
    shown = (mask, mask1) if return_dropout_mask else (None, None)
    return y if out_dtype is None else y.to(out_dtype), y1[0] if y1 else None, mean, rstd, total, masks, *shown


def norm_backward(dy, x, weight, bias, eps, dresidual, dy1, weight1, bias1, masks, dropout_p, rowscale, has_residual, has_x1, is_rms_norm, x_dtype,
                  recompute_output):
    """x: the forward's sum -> gradients of x, weight, bias, residual, x1, weight1, bias1, and y (None if not recomputed)."""
    x_dtype = x.dtype if x_dtype is None else x_dtype
    scale = None if dropout_p > 0.0 else rowscale
    dx, dsum, dx1, *parameters = _run_add_norm_bwd(Call(ADD_NORM_BWD), x, weight, bias, weight1, bias1, scale, dy, dy1, dresidual, x_dtype,
                                                   x.dtype if has_residual else None, x_dtype if has_x1 else None, float(eps), bool(is_rms_norm))
    if dropout_p > 0.0:
        kept = masks if has_x1 else masks[None]
        dx = dx * kept[0] / (1 - dropout_p) * (1 if rowscale is None else rowscale[:, None])
        dx, dx1 = dx.to(x_dtype), (dx1 * kept[1] / (1 - dropout_p)).to(x_dtype) if has_x1 else None
    y = add_norm(x, weight, bias, eps=eps, is_rms_norm=is_rms_norm).to(x_dtype) if recompute_output else None
    return dx, parameters[0], parameters[1], dsum, dx1, parameters[2], parameters[3], y


def add_norm_linear(x, norm_weight, norm_bias, linear_weight, linear_bias, residual=None, eps=1e-6, prenorm=False,
                    residual_in_fp32=False, is_rms_norm=False):
    """A linear layer of the normalised sum; weights follow autocast."""
    normed = add_norm(x, norm_weight, norm_bias, residual, eps=eps, prenorm=prenorm, residual_in_fp32=residual_in_fp32,
                      is_rms_norm=is_rms_norm)
    y, total = normed if prenorm else (normed, None)
    dtype = autocast_dtype(x)
    if dtype is not None:
        y = y.to(dtype)
    bias = linear_bias if linear_bias is None else linear_bias.to(y.dtype)
    out = linear(y, linear_weight.to(y.dtype), bias)
    return (out, total) if prenorm else out


# ---- gated norm -------------------------------------------------------------------------------------------------------
def gated_flags(rms, norm_before_gate):
    return (_RMS if rms else 0) | (0 if norm_before_gate else _GATE_FIRST)


def _fake_gated_bwd(x, z, weight, bias, dout, eps, group_size, rms, norm_before_gate):
    return [None if t is None else _like(t) for t in (x, z, weight, bias)]


@custom_op("gated_norm_bwd", _fake_gated_bwd)
def _gated_bwd(x: Tensor, z: Optional[Tensor], weight: Tensor, bias: Optional[Tensor], dout: Tensor, eps: float,
               group_size: int, rms: bool, norm_before_gate: bool) -> List[Tensor]:
    return _run_gated_bwd(Call(GATED_NORM_BWD), x, z, weight, bias, dout, eps, group_size, rms, norm_before_gate)


def _run_gated_bwd(call, x, z, weight, bias, dout, eps, group_size, rms, norm_before_gate):
    grads = _fake_gated_bwd(x, z, weight, bias, dout, eps, group_size, rms, norm_before_gate)
    tensors = (x, z, weight, bias, dout, *grads)
    if call.words is None:
        call.pack(tensors, gated_flags(rms, norm_before_gate), group_size=group_size, eps=eps)
    call.run(tensors)
    return grads


def _setup_gated(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:4])
    ctx.options = inputs[4:]


def _gated_gradients(ctx, dout):
    tensors = ctx.saved_tensors
    call = call_after(ctx, GATED_NORM_BWD, dout.stride())
    grads = _gated_bwd(*tensors, dout, *ctx.options) if call is None else _run_gated_bwd(call, *tensors, dout, *ctx.options)
    return (*[None if t is None else g for t, g in zip(tensors, grads)], None, None, None, None)


def _fake_gated(x, z, weight, bias, eps, group_size, rms, norm_before_gate):
    return _like(x)


def _run_gated(call, x, z, weight, bias, eps, group_size, rms, norm_before_gate):
    tensors = (x, z, weight, bias, _like(x))
    if call.words is None:
        call.pack(tensors, gated_flags(rms, norm_before_gate), group_size=group_size, eps=eps)
    call.run(tensors)
    return tensors[4]


@custom_op("gated_norm", _fake_gated, setup=_setup_gated, backward=_gated_gradients, composed=composed.gated_norm)
def _gated(x: Tensor, z: Optional[Tensor], weight: Tensor, bias: Optional[Tensor], eps: float, group_size: int, rms: bool,
           norm_before_gate: bool) -> Tensor:
    return _run_gated(Call(GATED_NORM), x, z, weight, bias, eps, group_size, rms, norm_before_gate)


_apply_gated = differentiable("GatedNorm", _run_gated, _setup_gated, _gated_gradients)


def _check_gated(x, z, weight, bias, group_size):
    width = x.shape[-1]
    assert width % group_size == 0, "group_size %d does not divide %d" % (group_size, width)
    assert z is None or z.shape == x.shape, "z must have x's shape"
    assert weight.shape == (width,) and (bias is None or bias.shape == (width,)), "weight and bias must be (%d)" % width


def gated_norm(x, weight, bias=None, z=None, eps=1e-6, group_size=None, norm_before_gate=True, is_rms_norm=False):
    """norm(x) weight + bias, gated by silu(z) after (or, with norm_before_gate=False, before) the norm."""
    shape, width = x.shape, x.shape[-1]
    options = (float(eps), width if group_size is None else group_size, bool(is_rms_norm), bool(norm_before_gate))
    if is_traced(x):
        _check_gated(x, z, weight, bias, options[1])
        return _shaped(_gated(_rows(x, width), _rows(z, width), weight, bias, *options), shape)
    inputs = (x, z, weight, bias)
    key = _gated_norm_signature(inputs, options)
    call = GATED_NORM.known.get(key)
    if call is None:
        _check_gated(*inputs, options[1])
        call, inputs = GATED_NORM.keep(_gated_norm_signature, options, inputs)
    x, z, weight, bias = inputs
    tensors = (_rows(x, width), _rows(z, width), weight, bias)
    return _shaped((_apply_gated if call.has_gradients and is_grad_enabled() else _run_gated)(call, *tensors, *options), shape)
