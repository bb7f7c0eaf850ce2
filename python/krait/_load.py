"""Finds libkrait-ops, reads its headers through cffi (ABI mode) and opens contexts. Knows nothing of torch."""

import os
import threading

_HERE = os.path.dirname(os.path.abspath(__file__))
_HEADERS = ("krait.h", "tensor.h", "ops.h", "train_ops.h", "plan.h", "enhance.h", "restore.h", "shared_lm.h", "trainable.h")
_lock = threading.Lock()
_state = {}
_contexts = {}


class KraitError(RuntimeError):
    """A library call failed; `status` is its KRAIT_ERR_* value."""

    def __init__(self, message, status=0):
        super().__init__(message)
        self.status = status


class KraitUnsupported(KraitError, NotImplementedError):
    """No implementation of the operator supports these arguments, or this library lacks the operator."""


def library_path():
    return os.environ.get("KRAIT_LIBRARY") or os.path.join(_HERE, "libkrait-ops.so")


def header_folder():
    """The headers installed with the package, else those of the enclosing source tree."""
    packed = os.path.join(_HERE, "include", "krait")
    return packed if os.path.isdir(packed) else os.path.join(_HERE, "..", "..", "include", "krait")


def _open_library():
    import cffi
    from . import _header
    texts = []
    for name in _HEADERS:
        with open(os.path.join(header_folder(), name), encoding="utf-8") as file:
            texts.append(file.read())
    declarations, constants = _header.read_headers(texts)
    ffi = cffi.FFI()
    ffi.cdef(declarations)
    path = library_path()
    try:
        lib = ffi.dlopen(path, ffi.RTLD_NOW | getattr(os, "RTLD_NODELETE", 0))  # its threads outlive the interpreter
    except OSError as error:
        raise KraitError("libkrait-ops cannot be loaded from %s: %s; build it (pip install ./python) or set KRAIT_LIBRARY "
                         "to libkrait-ops.so" % (path, error)) from None
    _state.update(ffi=ffi, lib=lib, constants=constants)


def _get(name):
    if name not in _state:
        with _lock:
            if name not in _state:
                _open_library()
    return _state[name]


def ffi():
    return _get("ffi")


def lib():
    return _get("lib")


def constant(name):
    return _get("constants")[name]


def function(name):
    """A function of the library; KraitUnsupported if this library is too old to have it."""
    try:
        return getattr(lib(), name)
    except AttributeError:
        raise KraitUnsupported("%s: function not found in %s; install a newer krait" % (name, library_path())) from None


def fail(status):
    """Raises the error of this thread's last failed call."""
    text = ffi().string(lib().krait_error_detail()).decode(errors="replace")
    of_a_call = status in (constant("KRAIT_ERR_ARGUMENT"), constant("KRAIT_ERR_SHAPE"))  # advice for C callers does not apply here
    cure = "" if of_a_call else ffi().string(lib().krait_status_cure(status)).decode(errors="replace")
    message = "krait: %s%s" % (text, " (%s)" % cure if cure else "")
    if status == constant("KRAIT_ERR_UNSUPPORTED"):
        raise KraitUnsupported(message, status)
    if status == constant("KRAIT_ERR_NO_MEMORY"):
        raise MemoryError(message)
    raise KraitError(message, status)


class Handles:
    """Owns C handles and closes them in reverse order of opening: once, and only in the process that opened them. In a
    cycle of references Python finalizes objects in any order, so what uses handles of `base` is closed with them, and
    its pointers are then NULL, which every function of the library refuses."""

    def __init__(self, base=None):
        self._opened, self._above, self._base, self._process = [], {}, base, os.getpid()
        if base is not None:
            base._above[id(self)] = self._opened

    def open(self, kind, *arguments):
        """krait_<kind>_open(*arguments, &handle) -> the handle's place, whose [0] is the pointer."""
        return self.opened_by("krait_%s_open" % kind, kind, *arguments)

    def opened_by(self, opener, kind, *arguments):
        place = ffi().new("krait_%s **" % kind)
        status = function(opener)(*arguments, place)
        if status < 0:
            fail(status)
        self._opened.append((function("krait_%s_close" % kind), place))
        return place

    @staticmethod
    def _close(opened):
        while opened:
            closer, place = opened.pop()
            closer(place)

    def close(self, getpid=os.getpid):
        if getpid() != self._process:
            return  # a forked child has no threads of its parent's, on which closing may wait
        for opened in list(self._above.values()):
            self._close(opened)
        self._close(self._opened)
        if self._base is not None:
            self._base._above.pop(id(self), None)

    __del__ = close


def version():
    return ffi().string(lib().krait_version()).decode()


def caps_text(caps):
    buffer = ffi().new("char[512]")
    lib().krait_caps_format(caps, buffer, 512)
    return ffi().string(buffer).decode()


def open_context(device, n_threads):
    """A krait_ctx*, never closed: callers cache it for the life of the process."""
    options = ffi().new("krait_ctx_options *", {"size": ffi().sizeof("krait_ctx_options"), "device": device,
                                                "n_threads": n_threads})
    handle = ffi().new("krait_ctx **")
    status = lib().krait_ctx_open(options, handle)
    if status < 0:
        fail(status)
    return handle[0]


def _cached(key, device, n_threads):
    with _lock_contexts:
        if key not in _contexts:
            _contexts[key] = open_context(device, n_threads)
        return _contexts[key]


_lock_contexts = threading.Lock()


def cpu_context(n_threads):
    """The CPU context with n_threads threads (KRAIT_THREADS, if set, overrides)."""
    context = _contexts.get(n_threads)
    if context is None:
        wanted = 0 if os.environ.get("KRAIT_THREADS") else n_threads
        context = _cached(n_threads, constant("KRAIT_DEVICE_CPU"), wanted)
    return context


def cuda_context(index):
    key = ("cuda", index)
    context = _contexts.get(key)
    if context is None:
        context = _cached(key, constant("KRAIT_DEVICE_CUDA") + index, 0)
    return context


def best_context():
    """The first usable GPU's, else the CPU's with all threads."""
    n = ffi().new("int32_t *")
    if lib().krait_device_count(n) >= 0:
        for index in range(n[0]):
            try:
                return cuda_context(index)
            except KraitError:
                continue  # one that no tier of device code supports
    return cpu_context(0)


def read_stats(context):
    stats = ffi().new("krait_ctx_stats *", {"size": ffi().sizeof("krait_ctx_stats")})
    status = lib().krait_ctx_read_stats(context, stats)
    if status < 0:
        fail(status)
    return {"n_calls": stats.n_calls, "n_fallbacks": stats.n_fallbacks}


def _forget_contexts():
    """A forked child lacks its parent's threads, so it opens its own contexts."""
    global _lock, _lock_contexts
    _lock, _lock_contexts = threading.Lock(), threading.Lock()
    _contexts.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_contexts)
