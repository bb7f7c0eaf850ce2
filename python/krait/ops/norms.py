"""Add + norm and gated norm, RMS or layer norm, forward and backward."""

from typing import List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .._call import Operator, place
from .._torch import autocast_dtype, custom_op, differentiable, is_tracked

_ADD_NORM = Operator("add_norm")
_ADD_NORM_BWD = Operator("add_norm_bwd")
_GATED_NORM = Operator("gated_norm")
_GATED_NORM_BWD = Operator("gated_norm_bwd")
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
    grads = _fake_add_norm_bwd(v, weight, bias, weight1, bias1, rowscale, dout, dout1, dsum, x_dtype, residual_dtype, x1_dtype,
                               eps, rms)
    dx, dresidual, dx1, dweight, dbias, dweight1, dbias1 = grads
    _ADD_NORM_BWD.run(place(v, weight, weight1, rowscale, dout, dout1, dsum), _RMS if rms else 0, R=v.shape[0], M=v.shape[1],
                      eps=eps, v=v, rowscale=rowscale, weight=weight, weight1=weight1, dout=dout, dout1=dout1,
                      dresidual_out=dsum, dx=dx, dx1=dx1, dresidual=dresidual, dweight=dweight, dbias=dbias,
                      dweight1=dweight1, dbias1=dbias1)
    return grads


def _setup_add_norm(ctx, inputs, output):
    x, weight, bias, residual, x1, weight1, bias1, rowscale, ctx.eps, ctx.rms, _, want_sum = inputs
    ctx.save_for_backward(output[2] if want_sum else x, weight, bias, weight1, bias1, rowscale)
    ctx.dtypes = [None if t is None else t.dtype for t in (x, residual, x1)]
    ctx.set_materialize_grads(False)


def _add_norm_gradients(ctx, dout, dout1=None, dsum=None):
    v, weight, bias, weight1, bias1, rowscale = ctx.saved_tensors
    grads = _add_norm_bwd(v, weight, bias, weight1, bias1, rowscale, dout, dout1, dsum, *ctx.dtypes, ctx.eps, ctx.rms)
    given = (*ctx.dtypes, weight, bias, weight1, bias1)
    dx, dresidual, dx1, dweight, dbias, dweight1, dbias1 = [None if t is None else g for t, g in zip(given, grads)]
    return dx, dweight, dbias, dresidual, dx1, dweight1, dbias1, None, None, None, None, None


def _fake_add_norm(x, weight, bias, residual, x1, weight1, bias1, rowscale, eps, rms, sum_in_fp32, want_sum):
    sum_dtype = residual.dtype if residual is not None else torch.float32 if sum_in_fp32 else x.dtype
    return _like(x), None if weight1 is None else _like(x), _like(x, sum_dtype) if want_sum else None


@custom_op("add_norm", _fake_add_norm, setup=_setup_add_norm, backward=_add_norm_gradients)
def _add_norm(x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], residual: Optional[Tensor],
              x1: Optional[Tensor], weight1: Optional[Tensor], bias1: Optional[Tensor], rowscale: Optional[Tensor],
              eps: float, rms: bool, sum_in_fp32: bool, want_sum: bool) -> Tuple[Tensor, Tensor, Tensor]:
    out, out1, total = _fake_add_norm(x, weight, bias, residual, x1, weight1, bias1, rowscale, eps, rms, sum_in_fp32, want_sum)
    _ADD_NORM.run(place(x, weight, bias, residual, x1, weight1, bias1, rowscale), _RMS if rms else 0, R=x.shape[0],
                  M=x.shape[1], eps=eps, x=x, x1=x1, residual=residual, rowscale=rowscale, weight=weight, bias=bias,
                  weight1=weight1, bias1=bias1, out=out, out1=out1, residual_out=total)
    return out, out1, total


_apply_add_norm = differentiable("AddNorm", _add_norm, _setup_add_norm, _add_norm_gradients)


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
    assert rowscale is None or (x1 is None and rowscale.shape == shape[:-1]), "rowscale must have one value per row, and excludes x1"


def add_norm(x, weight, bias=None, residual=None, x1=None, weight1=None, bias1=None, eps=1e-6, dropout_p=0.0, rowscale=None,
             prenorm=False, residual_in_fp32=False, is_rms_norm=False, return_dropout_mask=False):
    """y, or (y, y1) with weight1; with prenorm the sum is appended, with return_dropout_mask the masks."""
    _check_add_norm(x, weight, bias, residual, x1, weight1, bias1, rowscale)
    shape, width = x.shape, x.shape[-1]
    rows, rows1, residual = _rows(x, width), _rows(x1, width), _rows(residual, width)
    rowscale, mask, mask1 = None if rowscale is None else rowscale.reshape(-1), None, None
    if dropout_p > 0.0:
        rows, mask = _drop(rows, dropout_p, rowscale)
        rowscale = None
        if rows1 is not None:
            rows1, mask1 = _drop(rows1, dropout_p, None)
    tensors = (rows, weight, bias, residual, rows1, weight1, bias1)
    adds = prenorm or any([t is not None for t in (residual, rows1, rowscale)])
    run = _apply_add_norm if is_tracked(tensors) else _add_norm
    out, out1, total = run(*tensors, rowscale, float(eps), is_rms_norm, residual_in_fp32, adds)
    results = [_shaped(out, shape)]
    if weight1 is not None:
        results.append(_shaped(out1, shape))
    if prenorm:
        results.append(_shaped(total, shape))
    if return_dropout_mask:
        results += [None if m is None else m.reshape(shape) for m in (mask, mask1)]
    return results[0] if len(results) == 1 else tuple(results)


def add_norm_linear(x, norm_weight, norm_bias, linear_weight, linear_bias, residual=None, eps=1e-6, prenorm=False,
                    residual_in_fp32=False, is_rms_norm=False):
    """A linear map of the normalised sum; weights follow autocast."""
    normed = add_norm(x, norm_weight, norm_bias, residual, eps=eps, prenorm=prenorm, residual_in_fp32=residual_in_fp32,
                      is_rms_norm=is_rms_norm)
    y, total = normed if prenorm else (normed, None)
    dtype = autocast_dtype(x.device.type)
    if dtype is not None:
        y = y.to(dtype)
    bias = linear_bias if linear_bias is None else linear_bias.to(y.dtype)
    out = F.linear(y, linear_weight.to(y.dtype), bias)
    return (out, total) if prenorm else out


# ---- gated norm -------------------------------------------------------------------------------------------------------
def _gated_flags(rms, norm_before_gate):
    return (_RMS if rms else 0) | (0 if norm_before_gate else _GATE_FIRST)


def _fake_gated_bwd(x, z, weight, bias, dout, eps, group_size, rms, norm_before_gate):
    return [None if t is None else _like(t) for t in (x, z, weight, bias)]


@custom_op("gated_norm_bwd", _fake_gated_bwd)
def _gated_bwd(x: Tensor, z: Optional[Tensor], weight: Tensor, bias: Optional[Tensor], dout: Tensor, eps: float,
               group_size: int, rms: bool, norm_before_gate: bool) -> List[Tensor]:
    grads = _fake_gated_bwd(x, z, weight, bias, dout, eps, group_size, rms, norm_before_gate)
    dx, dz, dweight, dbias = grads
    _GATED_NORM_BWD.run(place(x, z, weight, bias, dout), _gated_flags(rms, norm_before_gate), R=x.shape[0], M=x.shape[1],
                        group_size=group_size, eps=eps, x=x, z=z, weight=weight, bias=bias, dout=dout, dx=dx, dz=dz,
                        dweight=dweight, dbias=dbias)
    return grads


def _setup_gated(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:4])
    ctx.options = inputs[4:]


def _gated_gradients(ctx, dout):
    tensors = ctx.saved_tensors
    grads = _gated_bwd(*tensors, dout, *ctx.options)
    return (*[None if t is None else g for t, g in zip(tensors, grads)], None, None, None, None)


def _fake_gated(x, z, weight, bias, eps, group_size, rms, norm_before_gate):
    return _like(x)


@custom_op("gated_norm", _fake_gated, setup=_setup_gated, backward=_gated_gradients)
def _gated(x: Tensor, z: Optional[Tensor], weight: Tensor, bias: Optional[Tensor], eps: float, group_size: int, rms: bool,
           norm_before_gate: bool) -> Tensor:
    out = _like(x)
    _GATED_NORM.run(place(x, z, weight, bias), _gated_flags(rms, norm_before_gate), R=x.shape[0], M=x.shape[1],
                    group_size=group_size, eps=eps, x=x, z=z, weight=weight, bias=bias, out=out)
    return out


_apply_gated = differentiable("GatedNorm", _gated, _setup_gated, _gated_gradients)


def gated_norm(x, weight, bias=None, z=None, eps=1e-6, group_size=None, norm_before_gate=True, is_rms_norm=False):
    """norm(x) weight + bias, gated by silu(z) after (or, with norm_before_gate=False, before) the norm."""
    shape, width = x.shape, x.shape[-1]
    group_size = width if group_size is None else group_size
    assert width % group_size == 0, "group_size %d does not divide %d" % (group_size, width)
    assert z is None or z.shape == shape, "z must have x's shape"
    assert weight.shape == (width,) and (bias is None or bias.shape == (width,)), "weight and bias must be (%d)" % width
    args = (_rows(x, width), _rows(z, width), weight, bias, float(eps), group_size, is_rms_norm, norm_before_gate)
    out = _apply_gated(*args) if is_tracked(args[:4]) else _gated(*args)
    return _shaped(out, shape)
