"""A whole model as one autograd node: krait's graph of it, forward and gradient, on the parameters that PyTorch has (krait/trainable.h)."""

import functools
import threading
from collections import OrderedDict

import torch

from . import _load
from ._call import CpuPlace, place
from ._torch import allows_tf32, autocast_dtype

_ALIGNED = 256          # bytes; a run's memory
_MOST_SHAPES = 8        # whose plans are kept; the least recently used goes first
_MOST_IDLE = 2          # runs of a shape, kept for its next calls,
_IDLE_SHARE = 1.5       # while all that are kept have at most this share of the largest of the last two shapes' memory
_ROLES = ("INPUT", "OUTPUT", "PARAMETER", "GRADIENT_OF_OUTPUT", "GRADIENT_OF_INPUT", "GRADIENT_OF_PARAMETER")
_HALVES = {torch.float16: "KRAIT_F16", torch.bfloat16: "KRAIT_BF16"}


def _flag(name):
    return _load.constant("KRAIT_TRAINABLE_" + name)


class Graph:
    """A planned graph on a device: for B windows of T frames."""

    def __init__(self, context, config, sizes, flags, halves=None, frozen=()):
        ffi = _load.ffi()
        self._handles = _load.Handles()
        names = [ffi.new("char[]", name.encode()) for name in frozen]
        text, list_of_names = ffi.new("char[]", config.encode()), ffi.new("char *[]", names)
        options = ffi.new("krait_trainable_options *", {
            "size": ffi.sizeof("krait_trainable_options"), "flags": flags, "config": text, "B": sizes[0], "T": sizes[1],
            "halves": _load.constant(_HALVES[halves]) if halves else 0, "n_frozen": len(names), "frozen": ffi.cast("const char *const *", list_of_names)})
        self.handle = self._handles.open("trainable", context, options)
        self.bytes = _load.lib().krait_trainable_bytes(self.handle[0])
        self.tensors = self._read_tensors()
        self.idle, self.lock = [], threading.Lock()

    def _read_tensors(self):
        """(role, name, shape) of each."""
        ffi, lib, tensors = _load.ffi(), _load.lib(), []
        roles = {_flag(name): name for name in _ROLES}
        info = ffi.new("krait_trainable_tensor *")
        for i in range(lib.krait_trainable_n_tensors(self.handle[0])):
            info.size = ffi.sizeof("krait_trainable_tensor")
            if lib.krait_trainable_tensor_at(self.handle[0], i, info) < 0:
                raise IndexError(i)
            tensors.append((roles[info.role], ffi.string(info.name).decode(), tuple(info.shape[0:info.n_dims])))
        return tensors

    def of_role(self, role):
        """(place in the list, name, shape) of those with this role."""
        return [(i, name, shape) for i, (r, name, shape) in enumerate(self.tensors) if r == role]

    def take(self, at):
        with self.lock:
            if self.idle:
                return self.idle.pop()
        return _Run(self, at)

    def give_back(self, run):
        with self.lock:
            if len(self.idle) < _MOST_IDLE:
                self.idle.append(run)


def _layout(shapes):
    """Offsets of floats, each aligned, and their number."""
    offsets, at = [], 0
    for shape in shapes:
        offsets.append(at)
        n = 1
        for size in shape:
            n *= size
        at += -(-n // 16) * 16
    return offsets, at


class _Run:
    """Memory of a graph from its forward to its backward. On a GPU, which replays what has the same addresses, inputs, outputs and gradients lie in
    buffers of the run and are copied; on a CPU, but for the outputs' gradients, they are the caller's."""

    def __init__(self, graph, at):
        self.graph, self._at = graph, at
        self._copies = not isinstance(at, CpuPlace)
        n_bytes = graph.bytes + _ALIGNED
        self._memory = torch.empty(n_bytes, dtype=torch.uint8, device=at.device)
        address = -(-self._memory.data_ptr() // _ALIGNED) * _ALIGNED
        self._handles = _load.Handles(graph._handles)
        ffi = _load.ffi()
        self._handle = self._handles.open("trainable_run", graph.handle[0], ffi.cast("void *", address))
        self._addresses = ffi.new("void *[]", len(graph.tensors))
        self._cast = functools.partial(ffi.cast, "void *")
        self._buffers = {}
        self._gradients = graph.of_role("GRADIENT_OF_INPUT") + graph.of_role("GRADIENT_OF_PARAMETER")
        self._offsets, self._n_gradients = _layout([shape for _, _, shape in self._gradients])

    def _new(self, key, n, keep):
        """Float memory: the run's own, which stays where it is, or new."""
        if not keep:
            return torch.empty(n, dtype=torch.float32, device=self._at.device)
        if key not in self._buffers:
            self._buffers[key] = torch.empty(n, dtype=torch.float32, device=self._at.device)
        return self._buffers[key]

    def _bind(self, i, t):
        self._addresses[i] = self._cast(t.data_ptr())
        return t

    def _buffer(self, i, shape, keep):
        return self._bind(i, self._new(i, _count(shape), keep).view(shape))

    def forward(self, x, parameters):
        """-> outputs; x contiguous."""
        graph = self.graph
        (i, _, _), = graph.of_role("INPUT")
        self._x = self._buffer(i, x.shape, True).copy_(x) if self._copies else self._bind(i, x)
        for (i, _, _), p in zip(graph.of_role("PARAMETER"), parameters):
            self._bind(i, p)
        outputs = [self._buffer(i, shape, self._copies) for i, _, shape in graph.of_role("OUTPUT")]
        self._seeds = [self._buffer(i, shape, True) for i, _, shape in graph.of_role("GRADIENT_OF_OUTPUT")]
        self._flat = self._new("gradients", self._n_gradients, self._copies) if self._gradients else None
        for (i, _, _), offset in zip(self._gradients, self._offsets):
            self._addresses[i] = self._cast(self._flat.data_ptr() + 4 * offset)
        self._call("forward", self._addresses)
        return tuple([out.clone() for out in outputs]) if self._copies else tuple(outputs)

    def _call(self, name, *arguments):
        stream = _load.ffi().cast("void *", int(self._at.tail(0)[1]))
        status = _load.function("krait_trainable_" + name)(self._handle[0], *arguments, stream)
        if status < 0:
            _load.fail(status)

    def backward(self, gradients):
        """gradients: of the outputs, None for zeros -> {name: gradient}."""
        for seed, g in zip(self._seeds, gradients):
            seed.zero_() if g is None else seed.copy_(g)
        self._call("backward")
        flat, self._flat, self._x = self._flat.clone() if self._copies else self._flat, None, None
        return {name: flat[offset:offset + _count(shape)].view(shape) for (_, name, shape), offset in zip(self._gradients, self._offsets)}


def _count(shape):
    n = 1
    for size in shape:
        n *= size
    return n


class _Taken:
    """A run that a node has until its backward, or until nobody can ask for that any more."""

    def __init__(self, run):
        self.run = run

    def release(self):
        run, self.run = self.run, None
        if run is not None:
            run.graph.give_back(run)

    __del__ = release


class _Node(torch.autograd.Function):

    @staticmethod
    def forward(ctx, take, x, *parameters):
        run = take()
        ctx.taken, ctx.graph, ctx.take = _Taken(run), run.graph, take
        outputs = run.forward(x, parameters)
        ctx.save_for_backward(x, *parameters, *outputs)
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *gradients):
        """A second time (retain_graph) the forward pass is run again, with the same result."""
        x, *saved = ctx.saved_tensors
        taken = ctx.taken if ctx.taken.run is not None else _Taken(ctx.take())
        parameters = saved[:len(saved) - len(gradients)]
        held = taken.run.forward(x, parameters) if taken is not ctx.taken else None  # the gradient reads the outputs
        by_name = taken.run.backward(gradients)
        del held
        taken.release()
        names = [name for _, name, _ in ctx.graph.of_role("PARAMETER")]
        (_, of_input, _), = ctx.graph.of_role("INPUT")
        return (None, by_name.get(of_input) if ctx.needs_input_grad[1] else None, *[by_name.get(name) for name in names])


class Model:
    """The graphs of one configuration, by device, shape and what gets a gradient."""

    def __init__(self, config):
        self.config, self._graphs, self._lock = config, OrderedDict(), threading.Lock()

    def graph(self, context, *key):
        key = (int(_load.ffi().cast("intptr_t", context)), *key)
        with self._lock:
            if key in self._graphs:
                self._graphs.move_to_end(key)
                return self._graphs[key]
            graph = self._graphs[key] = Graph(context, self.config, *key[1:])
            while len(self._graphs) > _MOST_SHAPES:
                self._graphs.popitem(last=False)
            return graph

    def _free_idle(self, room):
        """Gives the memory of idle runs back, of the least recently used shapes first, until those that are left have at most so many bytes."""
        with self._lock:
            newest_first = list(reversed(self._graphs.values()))
        for graph in newest_first:
            with graph.lock:
                while graph.idle and len(graph.idle) * graph.bytes > room:
                    graph.idle.pop()
                room -= len(graph.idle) * graph.bytes

    def _take(self, graph, at):
        """A run for a graph, whose new memory is not added to more than is reasonable."""
        if not graph.idle:
            with self._lock:
                largest = max([g.bytes for g in list(self._graphs.values())[-2:]])
            self._free_idle(_IDLE_SHARE * largest - graph.bytes)
        try:
            return graph.take(at)
        except torch.cuda.OutOfMemoryError:
            self._free_idle(0)
            return graph.take(at)

    def tensors(self):
        """(name, shape) of its parameters."""
        graph = Graph(_load.cpu_context(1), self.config, (1, 1), 0)
        return [(name, shape) for _, name, shape in graph.of_role("PARAMETER")]

    def run(self, x, names, parameters):
        """x (B,F,T,2) float32 -> mag, pha, com. parameters in the order of `names`, float32 on x's device."""
        at = place(x)
        dtype = autocast_dtype(x)
        halves = dtype if dtype in _HALVES else None
        flags = _flag("TF32") if allows_tf32(x) else 0
        x = x.resolve_neg().contiguous()
        wanted = torch.is_grad_enabled() and (x.requires_grad or any([p.requires_grad for p in parameters]))
        if not wanted:
            return self._run_without(at, x, parameters, flags, halves)
        frozen = tuple([name for name, p in zip(names, parameters) if not p.requires_grad])
        flags |= _flag("GRADIENT") | (_flag("INPUT_GRADIENT") if x.requires_grad else 0)
        graph = self.graph(at.context, (x.shape[0], x.shape[2]), flags, halves, frozen)
        return _Node.apply(functools.partial(self._take, graph, at), x, *parameters)

    def _run_without(self, at, x, parameters, flags, halves):
        """Without gradients a CPU runs one window after the other, in its caches."""
        one_by_one = isinstance(at, CpuPlace)
        graph = self.graph(at.context, (1 if one_by_one else x.shape[0], x.shape[2]), flags, None if one_by_one else halves, ())
        run = _Taken(self._take(graph, at))
        parts = [run.run.forward(part, parameters) for part in (x.split(1) if one_by_one else [x])]
        run.release()
        return tuple([torch.cat(of) for of in zip(*parts)]) if len(parts) > 1 else parts[0]
