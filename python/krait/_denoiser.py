"""Denoiser: libkrait's speech denoiser on numpy arrays and torch tensors."""

import os
import sys
import threading

import numpy as np

from . import _load, _sound, _weights

_MODEL_HZ = 16000


class Denoiser:
    """Removes noise from speech. denoiser(samples, rate) takes a numpy array or torch tensor with time as the last axis
    (other axes: independent channels or recordings), floating point in [-1, 1] or int16, and returns the same type, shape
    and rate. Frequencies above 8 kHz are removed too.

    device: "cpu", "cuda:0", ...; threads: CPU threads, 0 for all cores; weights: a safetensors file from `krait train`
    or `krait convert` instead of the built-in weights. Threads may share one Denoiser; their calls are serialized. A copy
    or unpickled one reopens the same model."""

    def __init__(self, device="cpu", threads=0, weights=None):
        device = str(device)  # a torch.device, too
        self._made_of = device, threads, weights
        self._lock = threading.Lock()
        self._model = self._session = None
        if device == "cpu":
            self._context = _load.cpu_context(threads)
        elif device == "cuda" or (device.startswith("cuda:") and device[5:].isdigit()):
            self._context = _load.cuda_context(int(device[5:] or 0))
        else:
            raise ValueError("krait.Denoiser: device is %r, must be 'cpu' or 'cuda:N'" % (device,))
        self._process = os.getpid()
        ffi, model, session = _load.ffi(), _load.ffi().new("krait_model **"), _load.ffi().new("krait_session **")
        self._check(_load.function("krait_model_open")(self._context, ffi.NULL, model) if weights is None else self._open_file(os.fspath(weights), model))
        self._model = ffi.gc(model, _load.lib().krait_model_close)
        self._check(_load.lib().krait_session_open(model[0], session))
        self._session = ffi.gc(session, lambda handle, model=self._model: _load.lib().krait_session_close(handle))

    def __reduce__(self):
        return Denoiser, self._made_of

    def _open_file(self, path, model):
        """Reads the file here: the wheel's libkrait opens no files. Keeps no tensors."""
        ffi = _load.ffi()
        metadata, tensors = _weights.read(path)
        if metadata.get("normalize", "none") != "none":
            raise ValueError("%s: weights need level normalization (normalize: %s); use them with krait enhance -w" % (path, metadata["normalize"]))
        items, kept = ffi.new("krait_model_tensor[]", max(len(tensors), 1)), []
        for item, (name, values) in zip(items, tensors.items()):
            kept.append((ffi.new("char[]", name.encode()), ffi.new("int64_t[]", list(values.shape) or 1), np.ascontiguousarray(values)))
            item.name, item.shape, item.n_dims, item.data = kept[-1][0], kept[-1][1], values.ndim, ffi.cast("const float *", kept[-1][2].ctypes.data)
        told = ffi.new("char[]", _weights.settings(metadata, path).encode())
        options = ffi.new("krait_model_options *", {"size": ffi.sizeof("krait_model_options"), "overrides": told})
        return _load.function("krait_model_open_tensors")(self._context, options, items, len(tensors), model)

    def stream(self):
        """A new independent Stream for live denoising: latency 0.35 s, or 31 ms with a streaming model's weights."""
        if os.getpid() != self._process:
            raise _load.KraitError("krait.Denoiser: created before a fork; create one in each process")
        return Stream(self)

    @staticmethod
    def _check(status):
        if status < 0:
            _load.fail(status)

    def _clean(self, x):
        """(n) float64 at 16 kHz -> the same, cleaned."""
        given = np.ascontiguousarray(x, dtype=np.float32)
        out = np.empty_like(given)
        ffi = _load.ffi()
        with self._lock:  # a session holds one stream's state
            self._check(_load.lib().krait_enhance_samples(self._session[0], ffi.cast("const float *", given.ctypes.data), ffi.cast("float *", out.ctypes.data), len(given),
                                                          ffi.NULL, ffi.NULL))
        return out.astype(np.float64)

    def __call__(self, samples, rate=_MODEL_HZ):
        if os.getpid() != self._process:
            raise _load.KraitError("krait.Denoiser: created before a fork; create one in each process")
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(samples, torch.Tensor):
            done = self(samples.detach().to("cpu", torch.float64 if samples.is_floating_point() else samples.dtype).numpy(), rate)
            return torch.from_numpy(done).to(samples.device, samples.dtype)
        samples = np.asarray(samples)
        rate = _checked_rate(rate)
        is_whole = samples.dtype == np.int16
        if samples.ndim == 0 or not (is_whole or samples.dtype.kind == "f"):
            raise TypeError("krait.Denoiser: samples are %s of shape %s, must be floating point or int16 with time as the last axis" % (samples.dtype, samples.shape))
        if samples.size == 0:
            return samples.copy()
        rows = samples.reshape(-1, samples.shape[-1]).astype(np.float64) / (32768 if is_whole else 1)
        if not np.isfinite(rows).all():
            raise ValueError("krait.Denoiser: samples contain NaN or infinity")
        out = np.empty_like(rows)
        for row, cleaned in zip(rows, out):
            at_model = _sound.resample(row, rate, _MODEL_HZ)
            cleaned[:] = _sound.resample(self._clean(at_model), _MODEL_HZ, rate, len(row))
        if is_whole:
            out = np.clip(np.rint(out * 32768), -32768, 32767)
        return out.astype(samples.dtype).reshape(samples.shape)


class Stream:
    """Live audio, mono, 16 kHz, from Denoiser.stream(). push(samples) takes any number of samples (1-D, floating point
    in [-1, 1] or int16) and returns the finished ones as float32: often none for a short push, each at most `latency`
    samples after its input. finish() returns the rest and resets the stream."""

    def __init__(self, denoiser):
        ffi, lib = _load.ffi(), _load.lib()
        self._process, self._lock = denoiser._process, threading.Lock()
        session, stream = ffi.new("krait_session **"), ffi.new("krait_stream **")
        denoiser._check(lib.krait_session_open(denoiser._model[0], session))
        self._session = ffi.gc(session, lambda handle, model=denoiser._model: lib.krait_session_close(handle))
        denoiser._check(lib.krait_stream_open(self._session[0], stream))
        self._stream = ffi.gc(stream, lambda handle, session=self._session: lib.krait_stream_close(handle))
        self.latency = int(lib.krait_stream_latency(self._stream[0]))

    def _take(self, n, call):
        """Runs call(out, room, n_out) -> its output."""
        if os.getpid() != self._process:
            raise _load.KraitError("krait.Denoiser.stream: created before a fork; create one in each process")
        ffi = _load.ffi()
        out, n_out = np.empty(n + self.latency, np.float32), ffi.new("int64_t *")
        with self._lock:
            Denoiser._check(call(ffi.cast("float *", out.ctypes.data), len(out), n_out))
        return out[:n_out[0]].copy()

    def push(self, samples):
        samples = np.asarray(samples)
        if samples.ndim != 1 or not (samples.dtype == np.int16 or samples.dtype.kind == "f"):
            raise TypeError("krait.Denoiser.stream: samples are %s of shape %s, must be one-dimensional floating point or int16" % (samples.dtype, samples.shape))
        given = np.ascontiguousarray(samples / np.float32(32768) if samples.dtype == np.int16 else samples, dtype=np.float32)
        if not np.isfinite(given).all():
            raise ValueError("krait.Denoiser.stream: samples contain NaN or infinity")
        lib, pointer = _load.lib(), _load.ffi().cast("const float *", given.ctypes.data)
        return self._take(len(given), lambda out, room, n_out: lib.krait_stream_push(self._stream[0], pointer, len(given), out, room, n_out))

    def finish(self):
        return self._take(0, lambda out, room, n_out: _load.lib().krait_stream_finish(self._stream[0], out, room, n_out))


def _checked_rate(rate):
    if isinstance(rate, (float, np.floating)) and rate == int(rate):
        rate = int(rate)
    if isinstance(rate, bool) or not isinstance(rate, (int, np.integer)) or not 1000 <= rate <= 768000:
        raise ValueError("krait.Denoiser: rate is %r, must be an integer from 1000 to 768000 Hz" % (rate,))
    return int(rate)


def enhance(options):
    """python -m krait enhance IN OUT."""
    if os.path.exists(options.output):
        if os.path.samefile(options.input, options.output):
            raise _load.KraitError("%s is the input; choose another output name" % options.output)
        if not options.force:
            raise _load.KraitError("%s exists; -f replaces it" % options.output)
    _sound.check_output(options.output)
    samples, rate, subtype = _sound.read(options.input)
    cleaned = Denoiser(options.device, options.threads)(samples, rate)
    _sound.write(options.output, cleaned, rate, subtype, options.force)
    print("%s -> %s: %.2f s, %d Hz, %d channel%s" % (options.input, options.output, samples.shape[1] / rate, rate, len(samples), "" if len(samples) == 1 else "s"))
    return 0
