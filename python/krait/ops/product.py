"""Matrix products with a weight: torch's, except float32 on CPUs with AMX, which torch does not use for float32, and on GPUs where parts of float32
factors on tensor cores are faster than torch's multiply-adds, or, where torch's settings let it round to tf32, float16 than tf32.
`product` always uses the library, so that a chain of separate calls is bitwise equal to the fused call."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from .._call import Call, Operator, place
from .._torch import allows_tf32, autocast_dtype, is_traced, is_watched, once

GEMM = Operator("gemm", "A Bmat bias residual out")
_FASTER = ("simd_amx_tiles", "hopper_tiles_halves", "hopper_tiles_tf32")  # implementations that are faster than torch
_TF32 = 1  # KRAIT_GEMM_TF32
_HAS_OUT_DTYPE = "out_dtype" in (torch.mm.__doc__ or "")
_unsafe_view = torch.ops.aten._unsafe_view.default
_calls = {}
_MOST_CALLS = 1024
_LEAST_SIDE, _LEAST = 64, 1 << 27  # min of M, N, K; multiply-adds: below these torch is as fast on a CPU,
_LEAST_SIDE_ON_GPU, _LEAST_ON_GPU = 256, 1 << 31  # and on a GPU, where smaller blocks wait for the host


def flags_of(a):
    return _TF32 if allows_tf32(a) else 0


def _new_call(a, b, bias):
    """The packed call if one of these implementations runs it, else None."""
    call, out = Call(GEMM), a.new_empty(a.shape[0], b.shape[1])
    call.pack((a, b, bias, None, out), flags_of(a))
    return call if call.implementation(place(a)) in _FASTER else None


def _call_of(a, b, bias):
    """-> a call of a b + bias faster than torch's, or None. Float32 matrices on one device."""
    key = a.device, allows_tf32(a), a.shape, a.stride(), b.shape, b.stride(), bias if bias is None else bias.stride()
    if key not in _calls:
        if len(_calls) >= _MOST_CALLS:
            _calls.clear()
        _calls[key] = _new_call(a, b, bias)
    return _calls[key]


def _is_wide(a, *others):
    """All float32 on one device, without negative bit."""
    if a.dtype is not torch.float32 or not (a.is_cpu or a.is_cuda):
        return False
    return all([t is None or (t.dtype is torch.float32 and t.device == a.device and not t.is_neg()) for t in (a, *others)])


def is_much(a, b, bias=None):
    """Whether the shapes match and the product is large."""
    (m, k), n = a.shape, b.shape[1]
    side, least = (_LEAST_SIDE, _LEAST) if a.is_cpu else (_LEAST_SIDE_ON_GPU, _LEAST_ON_GPU)
    return k == b.shape[0] and min(m, n, k) >= side and m * n * k >= least and (bias is None or bias.shape == (n,))


def matmul(a, b, bias=None):
    """a (M, K), b (K, N), bias (N) or None -> (M, N), without an autograd node."""
    if _is_wide(a, b, bias) and is_much(a, b, bias):
        a, b = [t.contiguous() if 0 in t.stride() else t for t in (a, b)]  # expanded tensors would be reread by every product
        call = _call_of(a, b, bias)
        if call is not None:
            out = a.new_empty(a.shape[0], b.shape[1])
            call.run((a, b, bias, None, out))
            return out
    return torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)


def product_in(dtype, a, b):
    """a b in this type; of 16-bit matrices in float32 by the product itself where torch can."""
    if _HAS_OUT_DTYPE and dtype is torch.float32 and a.is_cuda and a.dtype is not dtype:
        return torch.mm(a, b, out_dtype=dtype)
    return matmul(a, b).to(dtype)


def in_shape(rows, *shape):
    """A product's rows in another shape, and not as a view of them: autograd forbids to change what a node returns in place if it is a view."""
    return _unsafe_view(rows, shape)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, weight, bias):
        ctx.save_for_backward(rows, weight)
        return matmul(rows, weight.t(), bias)

    @staticmethod
    def backward(ctx, dout):
        rows, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        times = torch.mm if torch.is_grad_enabled() else matmul  # second derivatives go through torch
        return (times(dout, weight) if wanted[0] else None, times(dout.t(), rows) if wanted[1] else None, dout.sum(0) if wanted[2] else None)


def linear(x, weight, bias=None):
    """F.linear."""
    if x.dtype is not torch.float32 or is_watched() or (x.is_cuda and x.numel() * weight.shape[0] < _LEAST_ON_GPU):
        return F.linear(x, weight, bias)
    tensors = (x, weight) if bias is None else (x, weight, bias)
    plain = all([type(t) in (torch.Tensor, nn.Parameter) for t in tensors]) and _is_wide(*tensors) and weight.dim() == 2 and x.dim() > 1
    if not plain or (x.dim() > 2 and not x.is_contiguous()) or autocast_dtype(x) is not None or not x.shape[-1]:
        return F.linear(x, weight, bias)
    rows = x if x.dim() == 2 else x.view(-1, x.shape[-1])
    if not is_much(rows, weight.t(), bias) or _call_of(rows, weight.t(), bias) is None:
        return F.linear(x, weight, bias)
    out = _Linear.apply(rows, weight, bias)
    return out if x.dim() == 2 else out.view(*x.shape[:-1], weight.shape[0])


def is_plain(layer, kind=nn.Linear):
    """Whether a layer is of exactly this kind (its parameters may be parametrized), without hooks and with its class's forward:
    only then may its weight be used in its place."""
    exact = type(layer) is kind or ("parametrizations" in layer._modules and type(layer).__bases__ == (kind,))
    return (exact and not (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or getattr(layer, "_backward_pre_hooks", None))
            and "forward" not in layer.__dict__)


def apply(layer, x):
    """layer(x)."""
    return linear(x, layer.weight, layer.bias) if is_plain(layer) else layer(x)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, weight):
        ctx.save_for_backward(rows, weight)
        out = rows.new_empty(rows.shape[0], weight.shape[0])
        GEMM.run((rows, weight.t(), None, None, out))
        return out

    @staticmethod
    @once
    def backward(ctx, dout):
        rows, weight = ctx.saved_tensors
        return matmul(dout, weight), matmul(dout.t(), rows)


def product(rows, weight):
    """rows (M, K), weight (N, K) -> (M, N); torch's except for float32 on the CPU."""
    if not rows.is_cpu or rows.dtype != torch.float32 or weight.dtype != torch.float32 or is_traced():
        return F.linear(rows, weight)
    return _Product.apply(rows, weight)
