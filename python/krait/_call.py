"""From torch tensors to one C call: packs args structs, chooses context and stream, provides scratch.

Each operator's packer is generated from the struct as cffi parsed it, so field names and order are the header's. A
call costs a few microseconds: an operator caches the signatures (shapes, strides, types) that it has checked and
packed, and a repeated call runs the library's plan of it, to which it gives addresses and little else."""

import functools
import mmap
import os
import re
import struct
import threading
from array import array

import torch

from . import _load
from ._torch import is_fake

_TENSOR_BYTES = 80  # krait_tensor: address; type, dimensions and flags (one word); four sizes; four strides
ABSENT = bytes(_TENSOR_BYTES)
_DIMS = 1 << 32     # of the word: one dimension,
_STRIDED = 1 << 48  # and KRAIT_TENSOR_STRIDED
_HEAD = struct.Struct("=II")    # krait_call: size, flags,
_TAIL = struct.Struct("=QQQ")  # stream, scratch, scratch_bytes
_EMPTY = 64                     # the address of a tensor without elements
_MOST_KNOWN = 1024              # signatures cached per operator
ANY = -1                        # size of an axis that may be missing: other tensors decide it
_NO_SCRATCH = 256               # an address with no bytes: a call that needs scratch says so, and gets none from its context
_MOST_FOLLOWERS = 32            # dependent calls cached per call
_LEAST_SCRATCH_BYTES = 1 << 16  # each thread keeps this much for CPU calls,
_MOST_SCRATCH_BYTES = 1 << 26   # and up to this much once a call has needed it
_HUGE_PAGES_BYTES = 1 << 22     # scratch of at least this size is mapped separately
_PRIMITIVES = {"int64_t": "q", "uint64_t": "Q", "int32_t": "i", "uint32_t": "I", "float": "f"}


class _Dtypes(dict):
    def __missing__(self, dtype):
        raise RuntimeError("krait: no operator takes tensors of type %s" % dtype)


DTYPES = _Dtypes({torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.float64: 3, torch.int32: 4,
                  torch.int64: 5, torch.complex64: 6})


class _Packers(dict):
    """By a tensor's number of dimensions: pack(address, word, *sizes, *strides) -> a krait_tensor."""

    def __missing__(self, n):
        if n <= 4:
            pad = "%dx" % (32 - 8 * n)
            self[n] = struct.Struct("=QQ" + ("q" * n + pad) * 2).pack
        else:  # the library says that this is too many
            self[n] = lambda address, word, *_: struct.pack("=QQ64x", address, word)
        return self[n]


_PACKERS = _Packers()


def _packers_without(axis, n_dims, size=1):
    """Like _PACKERS, for a tensor of n_dims dimensions that may omit `axis`, which then has this size and stride 0."""
    packers, whole = _Packers(), _PACKERS[n_dims]

    def pack(address, word, *numbers):
        sizes, strides = numbers[:n_dims - 1], numbers[n_dims - 1:]
        return whole(address, word + _DIMS, *sizes[:axis], size, *sizes[axis:], *strides[:axis], 0, *strides[axis:])

    packers[n_dims - 1] = pack
    return packers


def _host_bytes(n):
    """Scratch memory; large blocks use huge pages, since first-touch faults on small pages can cost more than the work."""
    if n < _HUGE_PAGES_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(n, dtype=torch.uint8)
    block = mmap.mmap(-1, n)
    try:
        block.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        pass  # the kernel has none
    return torch.frombuffer(block, dtype=torch.uint8)


class _OwnScratch(threading.local):
    """This thread's scratch for CPU calls, as CpuPlace.tail returns it."""

    def __init__(self):
        self.keep(_LEAST_SCRATCH_BYTES)

    def keep(self, n):
        self.buffer = _host_bytes(n)
        self.bytes, self.tail = n, (None, 0, self.buffer.data_ptr(), n)


class CpuPlace:
    """Where a call runs: a context, and the tail of krait_call (no stream, this thread's scratch)."""
    device = torch.device("cpu")
    _own = _OwnScratch()

    def __init__(self, context):
        self.context = context

    def tail(self, n):
        """For a call that needs n bytes of scratch -> (memory to keep alive during the call, stream, scratch, its bytes)."""
        own = self._own
        if n <= own.bytes:
            return own.tail
        if n > _MOST_SCRATCH_BYTES:
            scratch = _host_bytes(n)
            return scratch, 0, scratch.data_ptr(), n
        own.keep(n)
        return own.tail


class CudaPlace:
    """A GPU's context and current stream; scratch comes from torch's stream-aware allocator."""

    def __init__(self, context, index):
        self.context, self.device = context, torch.device("cuda", index)
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self._stream = functools.partial(raw, index) if raw else lambda: torch.cuda.current_stream(index).cuda_stream

    def tail(self, n):
        if not n:
            return None, self._stream(), _NO_SCRATCH, 0
        scratch = torch.empty(n, dtype=torch.uint8, device=self.device)
        return scratch, self._stream(), scratch.data_ptr(), n


_cpu_places = {}
_cuda_places = {}
META = CpuPlace(None)


def _forget_places():
    _cpu_places.clear()
    _cuda_places.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_places)


def _open_cpu_place(n_threads):
    _cpu_places[n_threads] = CpuPlace(_load.cpu_context(n_threads))
    return _cpu_places[n_threads]


def _refuse_devices(device, other):
    raise RuntimeError("krait: expected all tensors on %s, found one on %s" % (device, other.device))


def _open_cuda_place(index):
    try:
        context = _load.cuda_context(index)
    except _load.KraitError as error:
        raise _load.KraitError("%s; `python -m krait` reports the devices found, KRAIT_FALLBACK=cpu runs this on the CPU"
                               % error, error.status) from None
    _cuda_places[index] = CudaPlace(context, index)
    return _cuda_places[index]


def place(t, *others):
    """The place of t; the other tensors (or None) must be on the same device."""
    if t.is_cpu:
        for other in others:
            if other is not None and not other.is_cpu:
                _refuse_devices(t.device, other)
        n = torch.get_num_threads()
        return _cpu_places.get(n) or _open_cpu_place(n)
    if others:
        device = t.device
        for other in others:
            if other is not None and other.device != device:
                _refuse_devices(device, other)
    if t.is_cuda:
        index = t.get_device()
        return _cuda_places.get(index) or (META if is_fake(t) else _open_cuda_place(index))
    if t.is_meta:
        return META
    raise RuntimeError("krait: device %s is not supported, use cpu or cuda" % t.device)


def _flatten(ctype):
    """[(name, struct code or 'tensor')] of the fields after `call`."""
    fields = []
    for name, field in ctype.fields[1:]:
        kind = field.type.cname
        fields.append((name, "tensor" if kind == "krait_tensor" else _PRIMITIVES[kind]))
    return fields


def _tensor_text(name, packers):
    """The expression that packs one tensor except for its address."""
    return "(ABSENT if {0} is None else {1}[n := len(s := {0}.stride())](64, DTYPES[{0}.dtype] + n * DIMS + STRIDED, *{0}.shape, *s))".format(name, packers)


def _generate(fields, args_bytes, names, axes):
    """Source of pack(tensors, flags=0, *, number=0, ...) -> the args struct as bytes; `names`: those of its tensors that calls give."""
    numbers_of_call, parts, numbers = [], [], []
    values = {"ABSENT": ABSENT, "packers": _PACKERS, "DTYPES": DTYPES, "DIMS": _DIMS, "STRIDED": _STRIDED, "head": _HEAD.pack}
    values.update(("packers_" + name, _packers_without(*place)) for name, place in axes.items())

    def flush():
        if numbers:
            packer = "pack%d" % len(values)
            values[packer] = struct.Struct("=" + "".join(code for _, code in numbers)).pack
            parts.append("%s(%s)" % (packer, ", ".join("0" if n == "reserved" else n for n, _ in numbers)))
            numbers.clear()

    for name, code in fields:
        if code == "tensor":
            flush()
            parts.append("ABSENT" if name not in names else _tensor_text(name, "packers_" + name if name in axes else "packers"))
        else:
            numbers.append((name, code))
            if name != "reserved":
                numbers_of_call.append(name + "=0")
    flush()
    text = ("def pack(tensors, flags=0%s):\n"
            "    %s, = tensors\n"
            "    return b''.join((head(%d, flags), bytes(%d), %s))\n"
            % (", *, " * bool(numbers_of_call) + ", ".join(numbers_of_call), ", ".join(names), args_bytes, _TAIL.size, ",\n        ".join(parts)))
    return text, values


class Operator:
    """krait_<name>. `views`: the args struct's tensors in the order of a call's, inputs first; others are absent.
    `axes`: those that may omit an axis: name=(axis, dimensions with it), size one, or any with ANY third."""

    def __init__(self, name, views, **axes):
        self.name, self.known, self._checked = name, {}, set()
        self.views, self._axes = tuple(views.split()), axes

    def __getattr__(self, attribute):
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        self._bind()
        return self.__dict__[attribute]

    def _bind(self):
        """Sets what needs the library: pack, address word offsets, the two functions."""
        ffi = _load.ffi()
        ctype = ffi.typeof("krait_%s_args" % self.name)
        args_bytes, fields = ffi.sizeof(ctype), _flatten(ctype)
        packed_bytes = _HEAD.size + _TAIL.size + sum(_TENSOR_BYTES if code == "tensor" else struct.calcsize("=" + code) for _, code in fields)
        if packed_bytes != args_bytes:
            raise _load.KraitError("krait_%s_args: fields take %d bytes, the header says %d" % (self.name, packed_bytes, args_bytes))
        text, values = _generate(fields, args_bytes, self.views, self._axes)
        exec(compile(text, "<krait %s>" % self.name, "exec"), values)
        self.address_words = [ffi.offsetof(ctype, name) // 8 for name in self.views]
        slots = [name for name, code in fields if code == "tensor"]  # a plan's order of addresses
        self.slots, self.no_addresses = [slots.index(name) for name in self.views], array("Q", bytes(8 * len(slots)))
        self.scratch_of = ffi.cast("int32_t (*)(const krait_ctx *, const char *, const char *, uint64_t *)", _load.function("krait_scratch_bytes"))
        self.invoke = ffi.cast("int32_t (*)(const krait_ctx *, const char *)", _load.function("krait_" + self.name))
        self.run_plan = ffi.cast("int32_t (*)(const krait_plan *, const char *, uintptr_t, uintptr_t, uint64_t)", _load.function("krait_plan_run"))
        self.name_bytes = self.name.encode()
        self._check_shapes = ffi.cast("int32_t (*)(const char *, const char *)", _load.function("krait_shapes_check"))
        self.pack = values["pack"]

    def check(self, tensors, flags=0, **numbers):
        """Whether the tensors' shapes agree; numbers: the call's scalar fields. On a mismatch raises one error that lists
        all shapes. Outputs (last) may be omitted."""
        key = (flags, *numbers.items(), *[None if t is None else (t.shape, t.dtype) for t in tensors])
        if key not in self._checked:
            tensors = (*tensors, *[None] * (len(self.views) - len(tensors)))
            packed = self.pack(tensors, flags, **numbers)
            status = self._check_shapes(self.name_bytes, packed)
            if status < 0:
                self._refuse(status)
            if len(self._checked) >= _MOST_KNOWN:
                self._checked.clear()
            self._checked.add(key)

    @staticmethod
    def _refuse(status):
        """Raises the library's message with Python's argument names B, C and D."""
        try:
            _load.fail(status)
        except _load.KraitError as error:
            raise type(error)(re.sub(r"\b([BCD])(mat|vec)\b", r"\1", str(error)), error.status) from None

    def keep(self, signature, options, given, note=None):
        """-> (call, its tensors): those given, already of the right types, with the negative bit resolved. Looks up the
        cache again, since conversion changes the signature. Complex tensors are not cached: it omits the conjugate bit."""
        taken = tuple([t.resolve_neg() if t is not None and t.is_neg() else t for t in given])
        has_gradients = any([t is not None and t.requires_grad for t in taken])
        if any([t is not None and t.is_complex() for t in taken]):
            return Call(self, note, has_gradients), taken
        key = signature(taken, options)
        call = self.known.get(key)
        if call is None:
            if len(self.known) >= _MOST_KNOWN:
                self.known.clear()
            call = self.known[key] = Call(self, note, has_gradients)
        return call, taken

    def run(self, tensors, flags=0, **numbers):
        """A call that is not cached."""
        call = Call(self)
        call.pack(tensors, flags, **numbers)
        call.run(tensors)


def refuse_negative_bit(name, *tensors):
    """For tensors whose memory is written or read directly."""
    if any([t is not None and t.is_neg() for t in tensors]):
        raise RuntimeError("krait: %s: the negative bit of a tensor is set, pass t.resolve_neg()" % name)


def _no_address(operator, t):
    """The address of an empty tensor. Others without one never reach the library."""
    if t.numel() == 0:
        return _EMPTY
    if is_fake(t):
        raise TypeError("krait: %s: FakeTensors beside tensors with data: make the call under the tensors' FakeTensorMode" % operator)
    raise TypeError("krait: %s: a tensor of class %s and shape %s has no memory: its class hides it or it was freed; pass a plain tensor "
                    "(of a DTensor: t.to_local())" % (operator, type(t).__name__, tuple(t.shape)))


class _Plan:
    """The library's plan of a call in one place: checked, its implementation chosen."""
    __slots__ = ("handles", "handle", "scratch_bytes")

    def __init__(self, at, operator, words):
        self.handles = _load.Handles()
        self.handle = self.handles.open("plan", at.context, operator.name_bytes, _load.ffi().from_buffer(words), _load.ffi().NULL)[0]
        self.scratch_bytes = _load.lib().krait_plan_scratch_bytes(self.handle)


class Call:
    """A call packed once, except for addresses, that runs on any tensors of the same signature. `note`: the owner's;
    `has_gradients`: some input requires them; `present`: which arguments of its autograd node are tensors."""
    __slots__ = ("operator", "words", "addresses", "slots", "last", "note", "has_gradients", "present", "_plans", "_followers")

    def __init__(self, operator, note=None, has_gradients=False):
        self.operator, self.words, self.note, self.has_gradients, self.present = operator, None, note, has_gradients, None
        self._plans, self._followers = {}, {}

    def follower(self, operator, key=()):
        """A call determined by this one's signature and `key`; cached with it."""
        key = (operator.name, key)
        call = self._followers.get(key)
        if call is None:
            if len(self._followers) >= _MOST_FOLLOWERS:
                self._followers.clear()
            call = self._followers[key] = Call(operator)
        return call

    def pack(self, tensors, flags=0, **numbers):
        """numbers: the call's scalar fields."""
        place(*tensors)
        refuse_negative_bit(self.operator.name, *tensors)
        self.operator.check(tensors, flags, **numbers)
        words = array("Q", self.operator.pack(tensors, flags, **numbers))
        given = [i for i, t in enumerate(tensors) if t is not None]
        self.addresses = [(self.operator.address_words[i], i) for i in given]
        self.slots, self.last = [(self.operator.slots[i], i) for i in given], given[-1]
        self.words = words

    def implementation(self, at):
        """The name of the implementation that runs this call at `at`, or None."""
        if at.context is None:
            return None
        try:
            plan = _Plan(at, self.operator, self._filled([_EMPTY] * len(self.operator.views)))
        except RuntimeError:
            return None
        return _load.ffi().string(_load.lib().krait_plan_impl_name(plan.handle)).decode()

    def _filled(self, addresses):
        """The args struct with the tensors' addresses."""
        words = self.words[:]
        for word, i in self.addresses:
            words[word] = addresses[i]
        return words

    def run(self, tensors):
        """With fake outputs (which come last) there is nothing to compute: their shapes are the result."""
        last = tensors[self.last]
        if type(last) is not torch.Tensor and is_fake(last):
            return
        at = place(tensors[0])
        plan = self._plans.get(at)
        if plan is None:
            if at.context is None:
                return
            plan = self._open(at, [t if t is None else t.data_ptr() or _no_address(self.operator.name, t) for t in tensors])
        slots = self.operator.no_addresses[:]
        for slot, i in self.slots:
            slots[slot] = tensors[i].data_ptr()
        kept, stream, scratch, n_bytes = at.tail(plan.scratch_bytes)
        status = self.operator.run_plan(plan.handle, slots.tobytes(), stream, scratch, n_bytes)
        if status < 0:
            self._run_otherwise(status, at, [t if t is None else t.data_ptr() or _no_address(self.operator.name, t) for t in tensors])

    def run_at(self, at, addresses):
        """Like run, given addresses instead of tensors, and their place; no tensor may be empty."""
        plan = self._plans.get(at) or self._open(at, addresses)
        slots = self.operator.no_addresses[:]
        for slot, i in self.slots:
            slots[slot] = addresses[i]
        kept, stream, scratch, n_bytes = at.tail(plan.scratch_bytes)
        status = self.operator.run_plan(plan.handle, slots.tobytes(), stream, scratch, n_bytes)
        if status < 0:
            for _, i in self.slots:
                addresses[i] or self._refuse_null(i)
            self._run_otherwise(status, at, addresses)

    def _open(self, at, addresses):
        plan = self._plans[at] = _Plan(at, self.operator, self._filled(addresses))
        return plan

    def _refuse_null(self, i):
        raise TypeError("krait: %s: %s has no memory: it is empty, was freed, or its class hides it; pass a plain tensor" % (self.operator.name, self.operator.views[i]))

    def _run_otherwise(self, status, at, addresses):
        """What a plan refuses: tensors without elements, which have no address, and addresses with which another implementation runs that
        needs more scratch. The args struct says it all."""
        words, n_bytes = self._filled(addresses), _load.ffi().new("uint64_t *")
        if status in (_load.constant("KRAIT_ERR_SCRATCH"), _load.constant("KRAIT_ERR_ARGUMENT")):
            status = self.operator.scratch_of(at.context, self.operator.name_bytes, words.tobytes(), n_bytes)
            if status >= 0:
                kept, *tail = at.tail(n_bytes[0])
                words[1:4] = array("Q", tail)
                status = self.operator.invoke(at.context, words.tobytes())
        if status < 0:
            _load.fail(status)


def load(at, calls):
    """Loads the device code of packed calls side by side, before the first of them runs: a driver that has not cached a kernel translates it for
    up to a second. What cannot be loaded says so when it runs."""
    if at.device.type != "cuda":
        return
    plans = []
    for call in calls:
        try:
            plans.append(_Plan(at, call.operator, call._filled([4096 * (i + 1) for i in range(len(call.operator.views))])))
        except RuntimeError:
            pass
    ffi = _load.ffi()
    kept, _, scratch, n_bytes = at.tail(max([plan.scratch_bytes for plan in plans], default=0))
    _load.function("krait_plans_load")(ffi.new("krait_plan *[]", [plan.handle for plan in plans]), len(plans), ffi.cast("void *", scratch), n_bytes)


def signer(n_tensors):
    """-> signature(tensors, options): what a packed call depends on, and whether it needs an autograd node. Unrolled:
    a loop would cost as much as its body."""
    names = ["t%d" % i for i in range(n_tensors)]
    parts = ["None if {0} is None else ({0}.shape, {0}.stride(), {0}.dtype, {0}.is_cpu or {0}.device, {0}.requires_grad, {0}.is_neg())".format(name) for name in names]
    values = {}
    exec("def signature(tensors, options):\n    %s, = tensors\n    return (%s, *options)\n" % (", ".join(names), ", ".join(parts)), values)
    return values["signature"]
