"""Differences between PyTorch releases, in one place: autocast queries, compilation, custom operators."""

import contextlib
import functools
import threading
import warnings

import torch
from torch.autograd import forward_ad as _forward_ad

try:
    from torch._subclasses import FakeTensor as _FakeTensor
except ImportError:
    _FakeTensor = ()

_compiler = getattr(torch, "compiler", None)
HAS_CUSTOM_OPS = hasattr(torch.library, "custom_op")
_HAS_FP32_PRECISION = hasattr(torch.backends.cuda.matmul, "fp32_precision")


def is_fake(t):
    """Whether a tensor has a shape and no data."""
    return isinstance(t, _FakeTensor)


if HAS_CUSTOM_OPS:
    is_compiling, is_dynamo = _compiler.is_compiling, _compiler.is_dynamo_compiling
else:
    def is_compiling():
        return False

    is_dynamo = is_compiling


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


class _Plain(threading.local):
    on = False  # in_plain_torch in this thread


_plain = _Plain()
_warned = set()


@contextlib.contextmanager
def in_plain_torch():
    """The operators inside run composed of torch's own, on any device: slow, differentiable any number of times."""
    before, _plain.on = _plain.on, True
    try:
        yield
    finally:
        _plain.on = before


def _warn_once(what):
    if what not in _warned:
        _warned.add(what)
        warnings.warn("krait: %s runs in plain torch, many times slower than the operators for float32" % what, stacklevel=4)


def is_wide(t):
    """Whether a tensor is of the type that only plain torch computes."""
    return t.dtype is torch.float64 and t.is_cpu


def _is_differentiated():
    """By torch.func.grad, vjp, jvp or jacrev, or in forward mode: the operators, which vmap runs sample by sample, have no such rules."""
    if _forward_ad._current_level >= 0:
        return True
    return _innermost() is not None and any(str(level.key()).endswith(("Grad", "Jvp")) for level in _functorch.get_interpreter_stack())


def _composes(t):
    """Whether an operator with this first argument must be composed of torch's own."""
    if is_wide(t):
        _warn_once("float64 on a CPU")
    elif not _plain.on:
        if is_compiling() or not _is_differentiated():
            return False
        _warn_once("torch.func and forward-mode differentiation")
    return True


def is_traced(t=None):
    """Whether operators must go through torch.ops, for fake tensors or to be recorded: compilation, dispatch modes, jit.trace, torch.func; or be
    composed of torch's own, as for the tensor t."""
    if (t is not None and is_wide(t)) or is_compiling() or _tracing.on or _modes() or _plain.on or _innermost() is not None or _forward_ad._current_level >= 0:
        return True
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
        raise RuntimeError("krait: second derivatives: a gradient computed by krait's operators cannot be differentiated; make the call under "
                           "krait.ops.in_plain_torch(), or pass float64 tensors on a CPU")


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
    *douts), not differentiable again, with the call as ctx.call. The node is given only the tensors that there are, which the call's
    signature determines: each argument costs the host, forward and backward."""
    def run(ctx, call, inputs, *_):
        output = forward(call, *inputs)
        setup(ctx, inputs, output)
        ctx.call = call
        return output

    def run_backward(ctx, *douts):
        grads = gradients(ctx, *douts)
        return (None, None, *[grads[i] for i in ctx.call.present])

    node = type(name, (torch.autograd.Function,), {"forward": staticmethod(run),
                                                   "backward": staticmethod(once(run_backward))})
    apply_node = super(torch.autograd.Function, node).apply  # without Function.apply's care for torch.func, which is_traced() has seen to

    def apply(call, *inputs):
        present = call.present
        if present is None:
            present = call.present = [i for i, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
        return apply_node(call, inputs, *[inputs[i] for i in present])
    return apply


def allows_tf32(t):
    """Whether torch's settings let products of this tensor round float32 factors to 11 significant bits (set_float32_matmul_precision, allow_tf32,
    fp32_precision: one setting by three names); by default they do not. Read at each call."""
    if not t.is_cuda or t.dtype is not torch.float32:
        return False
    settings = torch.backends.cuda.matmul
    return settings.fp32_precision == "tf32" if _HAS_FP32_PRECISION else settings.allow_tf32


def custom_op(name, fake, mutates=(), setup=None, backward=None, composed=None):
    """For functions from tensors to tensors: also registers torch.ops.krait.<name> for compiled code (where a None result
    becomes an empty tensor); eager code keeps the plain call. `mutates`: arguments modified in place; `setup` and
    `backward` make the operator differentiable in compiled code. `composed`: the same in plain torch."""
    def wrap(function):
        operator = _register(name, function, fake, mutates, setup, backward) if HAS_CUSTOM_OPS else function

        @functools.wraps(function)
        def dispatch(*args):
            if not is_traced(args[0]):
                return function(*args)
            if composed is not None and _composes(args[0]):
                return composed(*args)
            if composed is None and not is_compiling() and _is_differentiated():
                raise RuntimeError("krait: torch.func and forward-mode differentiation cannot be used with krait::%s: use backward() or torch.autograd.grad" % name)
            return operator(*args)
        return dispatch
    return wrap


def _register(name, function, fake, mutates, setup, backward):
    registered = torch.library.custom_op("krait::" + name, _with_placeholders(function), mutates_args=mutates)
    registered.register_fake(_with_placeholders(fake))
    if backward:
        registered.register_autograd(_traced(backward), setup_context=setup)
    return getattr(torch.ops.krait, name)
