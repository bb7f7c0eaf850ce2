"""Gradients of a function by torch's autograd, and upstream's autograd functions by name, with working forward and backward."""

import torch


def _leaf(value):
    is_number = isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
    return value.detach().requires_grad_() if is_number else value


def gradients(function, inputs, grads):
    """The gradients of function's result (a tensor or several) at the tensors `inputs`, for `grads` of the same structure."""
    with torch.enable_grad():
        leaves = [_leaf(t) for t in inputs]
        outs = function(*leaves)
    outs, grads = (outs, grads) if isinstance(outs, (tuple, list)) else ((outs,), (grads,))
    pairs = [(out, grad) for out, grad in zip(outs, grads) if grad is not None]
    found = torch.autograd.grad([out for out, _ in pairs], leaves, [grad.to(out.dtype) for out, grad in pairs], allow_unused=True)
    return tuple(torch.zeros_like(t) if g is None else g for t, g in zip(leaves, found))


def function_by_name(name, call, doc=None):
    """A class for callers of upstream's autograd function: `apply` is `call`; forward(ctx, ...) and backward(ctx, ...), which other
    autograd functions call by hand, keep the graph of one call in ctx."""

    def forward(ctx, *args, **options):
        with torch.enable_grad():
            leaves = [_leaf(value) for value in args]
            outs = call(*leaves, **options)
        ctx.krait_leaves, ctx.krait_outs = leaves, outs if isinstance(outs, tuple) else (outs,)
        shown = tuple(out.detach() if isinstance(out, torch.Tensor) else out for out in ctx.krait_outs)
        return shown if isinstance(outs, tuple) else shown[0]

    def backward(ctx, *grads):
        pairs = [(out, grad) for out, grad in zip(ctx.krait_outs, grads) if grad is not None and isinstance(out, torch.Tensor) and out.requires_grad]
        places = [i for i, leaf in enumerate(ctx.krait_leaves) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        found = torch.autograd.grad([out for out, _ in pairs], [ctx.krait_leaves[i] for i in places], [grad for _, grad in pairs], allow_unused=True, retain_graph=True)
        result = [None] * len(ctx.krait_leaves)
        for i, grad in zip(places, found):
            result[i] = grad
        return result[0] if len(result) == 1 else tuple(result)

    members = dict(apply=staticmethod(call), forward=staticmethod(forward), backward=staticmethod(backward))
    return type(name, (), dict(members, __doc__=doc or "Upstream's autograd function by name: apply, forward and backward."))
