"""What differs between PyTorch releases, in one place: autocast queries, compilation, custom operators."""

import functools
import threading

import torch
from torch.autograd import forward_ad as _forward_ad

_compiler = getattr(torch, "compiler", None)
HAS_CUSTOM_OPS = hasattr(torch.library, "custom_op")


if HAS_CUSTOM_OPS:
    is_compiling = _compiler.is_compiling
else:
    def is_compiling():
        return False


if hasattr(torch, "get_autocast_dtype"):
    def autocast_dtype(t):
        """The dtype of the autocast region that we are in for tensors where t lives, None outside of one."""
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
    """Inside the formula every operator must be called as one: its tensors have no memory."""
    def run(ctx, *grads):
        _tracing.on = True
        try:
            return backward(ctx, *grads)
        finally:
            _tracing.on = False
    return run


_trace = torch._C._get_tracing_state
_functorch = getattr(torch._C, "_functorch", None)
_innermost = getattr(_functorch, "peek_interpreter_stack", None) or (lambda: None)


def _check_transforms():
    """torch.func's vmap runs an operator once per sample; it cannot differentiate one."""
    kinds = {str(interpreter.key()).rpartition(".")[2] for interpreter in _functorch.get_interpreter_stack()}
    if kinds & {"Grad", "Jvp"}:
        raise RuntimeError("krait: torch.func cannot differentiate its operators: use torch.autograd.grad or backward(), also for the gradient of each sample in turn; "
                           "torch.func.vmap without grad, vjp, jvp or jac works")
    return True


def is_traced():
    """Whether every operator must be called as one, because its tensors have no memory, or must be seen: compilation, torch.jit.trace, vmap."""
    if is_compiling() or _tracing.on:
        return True
    if _innermost() is not None:
        return _check_transforms()
    if _forward_ad._current_level >= 0:
        raise RuntimeError("krait: forward-mode derivatives are not implemented: use backward() or torch.autograd.grad")
    if _trace() is None:
        return False
    if not HAS_CUSTOM_OPS:
        raise RuntimeError("krait: torch.jit.trace records its operators from torch 2.4 on, this is torch %s" % torch.__version__)
    return True


def is_watched():
    """Whether something but eager autograd follows what is called: there torch's operators serve where they can."""
    return is_compiling() or _tracing.on or _innermost() is not None or _forward_ad._current_level >= 0 or _trace() is not None


def member(module, name):
    """module.name, a parameter or a module: nn.Module looks them up in Python, a microsecond for each, where the whole of a small block is
    some twenty. What parametrizations and pruning have moved elsewhere is found as usual."""
    for members in (module._parameters, module._modules):
        if name in members:
            return members[name]
    return getattr(module, name)


def call_after(ctx, operator, key):
    """The call of a gradient: kept with that of the forward pass, whose signature and `key` decide it; None in compiled code."""
    call = getattr(ctx, "call", None)
    return None if call is None else call.follower(operator, key)


def layout(t):
    """What a signature says of a gradient that comes in: autograd sees to its shape and type."""
    return None if t is None else t.stride()


def zeros_like(t):
    """A gradient of zeros without memory of its own."""
    return t.new_zeros(()).expand(t.shape)


def _with_placeholders(function):
    """Operators cannot return None: an empty tensor stands for it."""
    @functools.wraps(function)
    def complete(*args):
        result = function(*args)
        if not isinstance(result, (tuple, list)):
            return result
        return type(result)(args[0].new_empty(0) if t is None else t for t in result)
    return complete


class _Last(torch.autograd.Function):
    """The first n, gradients, as they are; theirs are refused, also where torch would take them for zero. The others are what they come from."""

    @staticmethod
    def forward(ctx, n, *tensors):
        return tuple([g.view_as(g) for g in tensors[:n]])

    @staticmethod
    def backward(ctx, *grads):
        raise RuntimeError("krait: second derivatives are not implemented: a gradient that one of its operators made cannot be differentiated")


def once(backward):
    """For an autograd node's backward(ctx, *douts): runs it without a graph, on gradients that are what their memory says."""
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
    """apply(call, *inputs) of an autograd node: forward(call, *inputs), then setup(ctx, inputs, output); gradients(ctx, *douts)
    once, not twice, with the call as ctx.call."""
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
    """For functions from tensors to tensors: also registers torch.ops.krait.<name>, which compiled code calls (results that
    are None are then empty tensors); eager code keeps the plain call. `mutates` names the arguments that it changes; `setup` and
    `backward` make the operator differentiable where code is compiled."""
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
