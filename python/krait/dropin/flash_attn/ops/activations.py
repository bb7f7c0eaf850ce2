"""Gated and fused activations in plain torch."""

import torch
import torch.nn.functional as F

from krait._function import function_by_name


def swiglu(x, y):
    """silu(x) y."""
    return F.silu(x) * y


def gelu_bwd(g, x):
    """The gradient of GELU's tanh form."""
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(F.gelu(x, approximate="tanh"), x, g)[0]


def bias_gelu(y, bias):
    return F.gelu(y + bias, approximate="tanh")


def relu_bwd(g, x):
    return torch.where(x >= 0, g, 0.0).to(x.dtype)


def sqrelu_fwd(x):
    return F.relu(x).square()


def sqrelu_bwd(g, x):
    return (2.0 * g * F.relu(x)).to(x.dtype)


def gelu_fwd(x):
    return F.gelu(x, approximate="tanh")


def bias_gelu_back(g, y, bias):
    """-> gradients of y and bias."""
    grad = gelu_bwd(g, y + bias)
    return grad.to(y.dtype), grad.sum(0, dtype=bias.dtype)


bias_gelu_impl, fast_gelu_impl = bias_gelu, gelu_fwd
GeLUFunction = function_by_name("GeLUFunction", bias_gelu)
FastGeLUFunction = function_by_name("FastGeLUFunction", gelu_fwd)
SwiGLUFunction = function_by_name("SwiGLUFunction", swiglu)
