"""silu(x) y on the two halves of one tensor, under upstream's path."""

import torch
import torch.nn.functional as F

from krait._function import function_by_name


def _swiglu_fwd(xy, out=None):
    """xy (..., 2 D) -> (..., D)."""
    x, y = xy.chunk(2, dim=-1)
    result = F.silu(x) * y
    return result if out is None else out.copy_(result)


def _swiglu_bwd(xy, dout, dxy=None, recompute_output=False, out=None):
    """-> gradient of xy[, the recomputed output]."""
    x, y = [t.float() for t in xy.chunk(2, dim=-1)]
    gate, g = torch.sigmoid(x), dout.float()
    result = torch.cat([gate * (1 + x * (1 - gate)) * y * g, x * gate * g], dim=-1).to(xy.dtype)
    dxy = result if dxy is None else dxy.copy_(result)
    return (dxy, _swiglu_fwd(xy, out)) if recompute_output else dxy


def swiglu(xy):
    return _swiglu_fwd(xy)


SwiGLU = function_by_name("SwiGLU", swiglu)
