"""Differences between PyTorch releases, in one place: autocast queries, compilation, custom operators."""

import functools
import threading

import torch
from torch.autograd import forward_ad as _forward_ad

try:
    from torch._subclasses import FakeTensor as _FakeTensor
except ImportError:
    _FakeTensor = ()

_compiler = getattr(torch, "compiler", None)
HAS_CUSTOM_OPS = hasattr(torch.library, "custom_op")


def is_fake(t):
    """Whether a tensor has a shape and no data."""
    return isinstance(t, _FakeTensor)


if HAS_CUSTOM_OPS:
    is_compiling = _compiler.is_compiling
else:
    def is_compiling():
        return False


if hasattr(torch, "get_autocast_dtype"):
    def autocast_dtype(t):
        """The dtype of the active autocast region for t's device, None outside one."""
        device_type = "cpu" if t.is_cpu else t.device.type
        if device_type == "meta" or not torch.is_autocast_enabled(device_type):
            return None
        return torch.get_autocast_dtype(device_type)
else:
    def autocast_dtype(t):
        if t.is_cuda:
            return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None
        if t.is_cpu:
            return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
        return None


class _Tracing(threading.local):
    on = False  # the backward formula of a compiled operator is being traced in this thread


_tracing = _Tracing()


def _traced(backward):
    """Inside the formula every operator must go through torch.ops: its tensors are fake."""
    def run(ctx, *grads):
        _tracing.on = True
        try:
            return backward(ctx, *grads)
        finally:
            _tracing.on = False
    return run


_trace = torch._C._get_tracing_state
_modes = torch._C._len_torch_dispatch_stack if HAS_CUSTOM_OPS else lambda: 0  # FakeTensorMode, make_fx, counters of operations
_functorch = getattr(torch._C, "_functorch", None)
_innermost = getattr(_functorch, "peek_interpreter_stack", None) or (lambda: None)


def _check_transforms():
    """torch.func.vmap runs an operator once per sample but cannot differentiate it."""
    kinds = {str(interpreter.key()).rpartition(".")[2] for interpreter in _functorch.get_interpreter_stack()}
    if kinds & {"Grad", "Jvp"}:
        raise RuntimeError("krait: torch.func cannot differentiate krait's operators: use torch.autograd.grad or backward(), "
                                              "for per-sample gradients one sample at a time; plain torch.func.vmap works")
    return True


def is_traced():
    """Whether operators must go through torch.ops, for fake tensors or to be recorded: compilation, dispatch modes, jit.trace, vmap."""
    if is_compiling() or _tracing.on or _modes():
        return True
    if _innermost() is not None:
        return _check_transforms()
    if _forward_ad._current_level >= 0:
        raise RuntimeError("krait: forward-mode derivatives are not implemented: use backward() or torch.autograd.grad")
    if _trace() is None:
        return False
    if not HAS_CUSTOM_OPS:
        raise RuntimeError("krait: torch.jit.trace needs torch 2.4 or later, this is torch %s" % torch.__version__)
    return True


def is_watched():
    """Whether anything but eager autograd follows the calls; torch's own operators are then preferred."""
    return is_compiling() or _tracing.on or _modes() or _innermost() is not None or _forward_ad._current_level >= 0 or _trace() is not None


def member(module, name):
    """module.name, a parameter or a module: nn.Module looks them up in Python, a microsecond for each, where the whole of a small block is
    some twenty. What parametrizations and pruning have moved elsewhere is found as usual."""
    for members in (module._parameters, module._modules):
        if name in members:
            return members[name]
    return getattr(module, name)


def call_after(ctx, operator, key):
    """The gradient's call, determined by the forward's signature and `key` and cached with it; None in compiled code."""
    call = getattr(ctx, "call", None)
    return None if call is None else call.follower(operator, key)


def layout(t):
    """An incoming gradient's part of a signature: autograd guarantees its shape and type."""
    return None if t is None else t.stride()


def zeros_like(t):
    """A zero gradient that allocates one element."""
    return t.new_zeros(()).expand(t.shape)


def _with_placeholders(function):
    """Operators cannot return None: an empty tensor replaces it."""
    @functools.wraps(function)
    def complete(*args):
        result = function(*args)
        if not isinstance(result, (tuple, list)):
            return result
        return type(result)(args[0].new_empty(0) if t is None else t for t in result)
    return complete


class _Last(torch.autograd.Function):
    """Passes the first n tensors, gradients, through and refuses to differentiate them; the others are their sources."""

    @staticmethod
    def forward(ctx, n, *tensors):
        return tuple([g.view_as(g) for g in tensors[:n]])

    @staticmethod
    def backward(ctx, *grads):
        raise RuntimeError("krait: second derivatives are not implemented: a gradient computed by krait cannot be differentiated")


def once(backward):
    """For an autograd node's backward(ctx, *douts): runs it without a graph, on gradients with conj and neg resolved."""
    @functools.wraps(backward)
    def run(ctx, *douts):
        if not torch.is_grad_enabled():
            return tuple(backward(ctx, *[g if g is None else g.resolve_conj().resolve_neg() for g in douts]))
        with torch.no_grad():
            grads = list(backward(ctx, *[g if g is None else g.resolve_conj().resolve_neg() for g in douts]))
        given = [i for i, g in enumerate(grads) if g is not None]
        sources = [g for g in douts if g is not None and g.requires_grad]
        for i, g in zip(given, _Last.apply(len(given), *[grads[i].detach().requires_grad_() for i in given], *sources)):
            grads[i] = g
        return tuple(grads)
    return run


def differentiable(name, forward, setup, gradients):
    """apply(call, *inputs) of an autograd node: forward(call, *inputs), then setup(ctx, inputs, output); gradients(ctx,
    *douts), not differentiable again, with the call as ctx.call."""
    def run(ctx, call, *inputs):
        output = forward(call, *inputs)
        setup(ctx, inputs, output)
        ctx.call = call
        return output

    def run_backward(ctx, *douts):
        return (None, *gradients(ctx, *douts))

    node = type(name, (torch.autograd.Function,), {"forward": staticmethod(run),
                                                   "backward": staticmethod(once(run_backward))})
    return node.apply


def custom_op(name, fake, mutates=(), setup=None, backward=None):
    """For functions from tensors to tensors: also registers torch.ops.krait.<name> for compiled code (where a None result
    becomes an empty tensor); eager code keeps the plain call. `mutates`: arguments modified in place; `setup` and
    `backward` make the operator differentiable in compiled code."""
    def wrap(function):
        if not HAS_CUSTOM_OPS:
            return function
        registered = torch.library.custom_op("krait::" + name, _with_placeholders(function), mutates_args=mutates)
        registered.register_fake(_with_placeholders(fake))
        if backward:
            registered.register_autograd(_traced(backward), setup_context=setup)
        operator = getattr(torch.ops.krait, name)

        @functools.wraps(function)
        def dispatch(*args):
            return operator(*args) if is_traced() else function(*args)
        return dispatch
    return wrap
