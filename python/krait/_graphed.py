"""krait.graphed: a module's forward and backward as CUDA graphs, one pair for each shape of its inputs."""

import warnings

import torch

from ._torch import autocast_dtype, is_traced

_MOST = 8  # shapes captured per module; others run as before


class _Part(torch.nn.Module):
    """The module as torch.cuda.make_graphed_callables wants one: its parameters, and its class's forward."""

    def __init__(self, module):
        super().__init__()
        self.inner = (module,)  # a tuple: not a child, whose hooks would be refused
        for i, p in enumerate(module.parameters()):
            self.register_parameter("p%d" % i, p)
        self.training = module.training

    def forward(self, *args):
        return type(self.inner[0]).forward(self.inner[0], *args)


def _why_not(module, args, kwargs):
    """Why this call cannot be captured, in a clause; None: it may be."""
    if kwargs or not args or not all([isinstance(a, torch.Tensor) for a in args]):
        return "its arguments are not all tensors, by position"
    if not all([a.is_cuda for a in args]) or not all([p.is_cuda for p in module.parameters()]):
        return "it is not on a GPU"
    for inside in module.modules():
        if inside is not module and (inside._forward_hooks or inside._forward_pre_hooks or inside._backward_hooks):
            return "modules inside have hooks"
    if any(b.requires_grad for b in module.buffers()):
        return "it has buffers with gradients"
    return None


class Graphed:
    """A module's forward that replays what was captured for these shapes. Copied and pickled with the module, without the graphs."""

    def __init__(self, module):
        self.module, self._captured, self._said = module, {}, set()

    def __getstate__(self):
        return {"module": self.module, "_captured": {}, "_said": set()}

    def _plain(self, args, kwargs, why=None):
        if why and why not in self._said:
            self._said.add(why)
            warnings.warn("krait.graphed: %s runs as it is: %s" % (type(self.module).__name__, why), stacklevel=4)
        return type(self.module).forward(self.module, *args, **kwargs)

    def _key(self, args):
        module = self.module
        differs = torch.is_grad_enabled()
        shapes = [(a.shape, a.stride(), a.dtype, a.device, differs and a.requires_grad) for a in args]
        return (*shapes, differs, module.training, autocast_dtype(args[0]), *[(p.data_ptr(), differs and p.requires_grad) for p in module.parameters()])

    def _capture(self, args):
        """A callable that replays. The first use of each kernel loads it, which no capture may: that is what the warm-up is for."""
        samples = tuple([torch.empty_like(a).copy_(a.detach()).requires_grad_(a.requires_grad and torch.is_grad_enabled()) for a in args])
        part = _Part(self.module)
        if torch.is_grad_enabled() and (any([a.requires_grad for a in samples]) or any([p.requires_grad for p in part.parameters()])):
            return torch.cuda.make_graphed_callables(part, samples, allow_unused_input=True)
        return _capture_forward(part, samples)

    def __call__(self, *args, **kwargs):
        if is_traced() or (args and isinstance(args[0], torch.Tensor) and args[0].is_cuda and torch.cuda.is_current_stream_capturing()):
            return self._plain(args, kwargs)
        why = _why_not(self.module, args, kwargs)
        if why:
            return self._plain(args, kwargs, why)
        key = self._key(args)
        found = self._captured.get(key)
        if found is None:
            if len(self._captured) >= _MOST:
                return self._plain(args, kwargs, "it has met more than %d different shapes" % _MOST)
            try:
                found = self._captured[key] = self._capture(args)
            except Exception as error:  # whatever the module does that no graph can hold
                torch.cuda.synchronize()
                found = self._captured[key] = "its calls cannot be captured: %s" % str(error).splitlines()[0]
        return self._plain(args, kwargs, found) if isinstance(found, str) else found(*args)


def _capture_forward(part, samples):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad():
        with torch.cuda.stream(side):
            for _ in range(3):
                part(*samples)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = part(*samples)

    def replay(*args):
        for sample, given in zip(samples, args):
            sample.copy_(given)
        graph.replay()
        return result
    return replay


def graphed(module):
    """The module, whose forward and backward are captured as CUDA graphs at the first call with given shapes, and replayed at later ones: what
    Python and autograd cost between kernels is paid once. Its outputs are buffers that the next call of the same shape overwrites: copy what you
    keep. For modules that do the same on every call: no data-dependent control flow, no dropout that must differ. Where a call cannot be
    captured it runs as before, and a warning says why, once."""
    if not isinstance(module, torch.nn.Module):
        raise TypeError("krait.graphed: %s is not a torch.nn.Module" % type(module).__name__)
    if "forward" in module.__dict__:
        raise ValueError("krait.graphed: the forward of this %s has been replaced already" % type(module).__name__)
    module.forward = Graphed(module)
    return module
