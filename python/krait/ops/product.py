"""Rows times a weight as the CPU's operators take it: every sum in their order, so that a chain of separate calls gives the bits of a call
that does the whole chain."""

import torch
import torch.nn.functional as F

from .._call import Operator
from .._torch import is_traced, once

_GEMM = Operator("gemm", "A Bmat bias residual out")


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, weight):
        ctx.save_for_backward(rows, weight)
        out = rows.new_empty(rows.shape[0], weight.shape[0])
        _GEMM.run((rows, weight.t(), None, None, out), M=rows.shape[0], N=weight.shape[0], K=rows.shape[1])
        return out

    @staticmethod
    @once
    def backward(ctx, dout):
        rows, weight = ctx.saved_tensors
        return dout @ weight, dout.t() @ rows


def product(rows, weight):
    """rows (M, K), weight (N, K) -> (M, N); torch's own but for float32 on the CPU."""
    if not rows.is_cpu or rows.dtype != torch.float32 or weight.dtype != torch.float32 or is_traced():
        return F.linear(rows, weight)
    return _Product.apply(rows, weight)
