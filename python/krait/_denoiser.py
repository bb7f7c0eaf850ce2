"""Denoiser: libkrait's speech denoiser on numpy arrays and torch tensors."""

import json
import math
import os
import sys
import threading
import warnings

import numpy as np

from . import _load, _sound

_MODEL_HZ = 16000
_NARROW, _LOOKS_BACK = 1, 2  # KRAIT_VOICE_NARROW, KRAIT_VOICE_LOOKS_BACK
_MOST_DEVICES, _MOST_THREADS = 64, 1024
_MOST_SENSIBLE = 32.0  # of floating-point samples
_FORM, _STREAM_FORM = "floating point or int16 with time as the last axis", "one-dimensional floating point or int16"


class Denoiser:
    """Removes noise from speech. denoiser(samples, rate) takes a numpy array or torch tensor with time as the last axis
    (other axes: independent channels or recordings), floating point in [-1, 1] or int16, and returns the same type, shape
    and rate. What lies above 8 kHz is kept, as loud as the model leaves what is below; band="16k" drops it. mix: how much of
    the output is cleaned, 1 to 0; limit: attenuate by at most so many dB; gate: silence where speech is less probable.

    device: "auto" (the first usable GPU, else the CPU, as krait enhance; the CPU if threads are given), "cpu", "cuda:0", ...; threads: CPU threads, 0 for all cores;
    progress(done, total), if given, is called from time to time with samples at the model's rate; what it raises stops the work. weights: a safetensors file from `krait train`
    or `krait convert` instead of the built-in weights (None or "builtin"; a file of that name is "./builtin"). Threads may share one Denoiser; their calls are serialized. A copy
    or unpickled one reopens the same model."""

    def __init__(self, device="auto", threads=0, weights=None):
        device = str(device)  # a torch.device, too
        self._made_of = device, threads, weights
        self._lock, self._process = threading.Lock(), os.getpid()
        self._context = _context(device, threads)
        self._handles = _load.Handles()
        self._model = self._open_model(weights)
        self._session = self._handles.open("denoiser_session", self._model[0])

    def __reduce__(self):
        return Denoiser, self._made_of

    def __repr__(self):
        device, threads, weights = self._made_of
        runs_on = _load.lib().krait_ctx_device(self._context) - _load.constant("KRAIT_DEVICE_CUDA")
        where = "cuda:%d" % runs_on if runs_on >= 0 else "cpu"
        return "<krait.Denoiser on %s%s, %s>" % (where, ", %d threads" % threads if threads else "", "built-in weights" if weights is None else "weights %s" % os.fsdecode(weights))

    def _open_model(self, weights):
        ffi = _load.ffi()
        if weights is None:
            return self._handles.open("denoiser", self._context, ffi.NULL)
        if not isinstance(weights, (str, bytes, os.PathLike)):
            raise TypeError("krait.Denoiser: weights is %s, must be the name of a safetensors file" % _named(weights))
        path = os.fsencode(weights)
        if not path or b"\0" in path:
            raise ValueError("krait.Denoiser: weights is %r, must be the name of a safetensors file" % (weights,))
        name = ffi.new("char[]", path)
        model = self._handles.open("denoiser", self._context, ffi.new("krait_denoiser_options *", {"size": ffi.sizeof("krait_denoiser_options"), "weights_path": name}))
        level = json.loads(ffi.string(_load.lib().krait_denoiser_json(model[0])).decode()).get("metadata", {}).get("normalize", "none")
        if level != "none":
            raise ValueError("%s: weights need level normalization (normalize: %s); use them with krait enhance -w" % (os.fsdecode(path), level))
        return model

    def stream(self):
        """A new independent Stream for live denoising: latency 0.35 s, or 25 ms with a streaming model's weights."""
        if os.getpid() != self._process:
            raise _load.KraitError("krait.Denoiser: created before a fork; create one in each process")
        return Stream(self)

    @staticmethod
    def _check(status):
        if status < 0:
            _load.fail(status)

    def _clean(self, x, rate, band, controls, progress=None):
        """(n) float64 at this rate -> the same, cleaned; band "16k": without what lies above 8 kHz."""
        given = np.ascontiguousarray(x, dtype=np.float32)
        out = np.empty_like(given)
        ffi = _load.ffi()
        mix, limit, gate = controls
        options = ffi.new("krait_voice_options *", {"size": ffi.sizeof("krait_voice_options"), "rate_hz": rate, "flags": (_NARROW if band == "16k" else 0) | (_LOOKS_BACK if gate > 0 else 0)})
        wanted = ffi.new("krait_voice_controls *", {"size": ffi.sizeof("krait_voice_controls"), "mix": mix, "limit_db": math.inf if limit is None else limit, "gate": gate})
        told = _Progress(progress)
        with self._lock:  # a session holds one stream's state
            status = _load.lib().krait_enhance_channel(self._session[0], options, wanted, ffi.cast("const float *", given.ctypes.data), ffi.cast("float *", out.ctypes.data), len(given),
                                                       told.function, ffi.NULL)
        if told.error is not None:
            raise told.error
        self._check(status)
        return out.astype(np.float64)

    def __call__(self, samples, rate=_MODEL_HZ, *, band="whole", mix=1.0, limit=None, gate=0.0, progress=None):
        if os.getpid() != self._process:
            raise _load.KraitError("krait.Denoiser: created before a fork; create one in each process")
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(samples, torch.Tensor):
            done = self(samples.detach().to("cpu", torch.float64 if samples.is_floating_point() else samples.dtype).numpy(), rate, band=band, mix=mix, limit=limit, gate=gate, progress=progress)
            return torch.from_numpy(done).to(samples.device, samples.dtype)
        samples, rate = _array(samples, "Denoiser", _FORM), _checked_rate(rate)
        if band not in ("whole", "16k"):
            raise ValueError("krait.Denoiser: band is %s, must be 'whole' or '16k'" % _named(band))
        controls = _checked_controls(mix, limit, gate)
        is_whole = samples.dtype == np.int16
        if samples.ndim == 0:
            raise TypeError("krait.Denoiser: samples are %s of shape %s, must be %s" % (samples.dtype, samples.shape, _FORM))
        if samples.size == 0:
            return samples.copy()
        rows = samples.reshape(-1, samples.shape[-1]).astype(np.float64) / (32768 if is_whole else 1)
        if not np.isfinite(rows).all():
            raise ValueError("krait.Denoiser: samples contain NaN or infinity")
        _warn_of_whole_numbers(rows)
        out = np.empty_like(rows)
        for i, (row, cleaned) in enumerate(zip(rows, out)):
            cleaned[:] = self._clean(row, rate, band, controls, progress and _of_row(progress, i, len(rows)))
        if is_whole:
            out = np.clip(np.rint(out * 32768), -32768, 32767)
        return out.astype(samples.dtype).reshape(samples.shape)


class Stream:
    """Live audio, mono, 16 kHz, from Denoiser.stream(). push(samples) takes any number of samples (1-D, floating point
    in [-1, 1] or int16) and returns the finished ones as float32: often none for a short push, each at most `latency`
    samples after its input. finish() returns the rest and resets the stream."""

    def __init__(self, denoiser):
        self._process, self._lock = denoiser._process, threading.Lock()
        self._handles = _load.Handles(denoiser._handles)
        self._session = self._handles.open("denoiser_session", denoiser._model[0])
        self._stream = self._handles.open("denoiser_stream", self._session[0])
        self.latency = int(_load.lib().krait_denoiser_stream_latency(self._stream[0]))

    def __repr__(self):
        return "<stream of krait.Denoiser: 16 kHz, one channel, %d samples late>" % self.latency

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
        samples = _array(samples, "Denoiser.stream", _STREAM_FORM)
        if samples.ndim != 1:
            raise TypeError("krait.Denoiser.stream: samples are %s of shape %s, must be %s" % (samples.dtype, samples.shape, _STREAM_FORM))
        given = np.ascontiguousarray(samples / np.float32(32768) if samples.dtype == np.int16 else samples, dtype=np.float32)
        if not np.isfinite(given).all():
            raise ValueError("krait.Denoiser.stream: samples contain NaN or infinity")
        lib, pointer = _load.lib(), _load.ffi().cast("const float *", given.ctypes.data)
        return self._take(len(given), lambda out, room, n_out: lib.krait_denoiser_stream_push(self._stream[0], pointer, len(given), out, room, n_out))

    def finish(self):
        return self._take(0, lambda out, room, n_out: _load.lib().krait_denoiser_stream_finish(self._stream[0], out, room, n_out))


class _Progress:
    """progress(done, total) as the library calls it; keeps what it raised."""

    def __init__(self, progress):
        self._progress, self.error = progress, None
        self.function = _load.ffi().callback("krait_progress_fn", self._tell) if progress else _load.ffi().NULL

    def _tell(self, _, done, total):
        try:
            self._progress(done, total)
        except BaseException as error:  # raised again by the caller of the library
            self.error = error
            return 1
        return 0


def _of_row(progress, row, n_rows):
    """The progress of one of several rows of the same length."""
    return lambda done, total: progress(row * total + done, n_rows * total)


def _warn_of_whole_numbers(rows):
    """Floating point in int16's range is a mistake that one hears only in the result."""
    most = float(np.abs(rows).max())
    if most > _MOST_SENSIBLE:
        warnings.warn("krait.Denoiser: samples reach %g: floating point must be in -1 to 1; divide by 32768, or pass int16" % most, stacklevel=3)


def _named(value):
    """What was given, for a sentence: short whatever it is."""
    text = repr(value)
    return "%s of %s" % (text if len(text) < 40 else text[:36] + "...", type(value).__name__)


def _whole(value):
    """The value as an int, or None."""
    if isinstance(value, (float, np.floating)):
        return int(value) if math.isfinite(value) and value == int(value) else None
    return int(value) if isinstance(value, (int, np.integer)) and not isinstance(value, bool) else None


def _checked_rate(rate):
    whole = _whole(rate)
    if whole is None or not 1000 <= whole <= 768000:
        raise ValueError("krait.Denoiser: rate is %s, must be an integer from 1000 to 768000 Hz" % _named(rate))
    return whole


def _checked_controls(mix, limit, gate):
    for name, value, most in (("mix", mix, 1), ("limit", 0 if limit is None else limit, 1000), ("gate", gate, 1)):
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)) or not 0 <= value <= most:
            raise ValueError("krait.Denoiser: %s is %s, must be a number from 0 to %d" % (name, _named(value), most))
    return float(mix), None if limit is None else float(limit), float(gate)


def _context(device, threads, who="Denoiser"):
    n = _whole(threads)
    if n is None or not 0 <= n <= _MOST_THREADS:
        raise ValueError("krait.%s: threads is %s, must be an integer from 0 (all cores) to %d" % (who, _named(threads), _MOST_THREADS))
    kind, _, index = device.partition(":")
    if device == "cpu" or (device == "auto" and n):
        return _load.cpu_context(n)
    if device == "auto":
        return _load.best_context()
    is_number = index.isascii() and index.isdigit() and len(index) <= 3
    if device == "cuda" or (kind == "cuda" and is_number and int(index) < _MOST_DEVICES):
        return _load.cuda_context(int(index or 0))
    raise ValueError("krait.%s: device is %s, must be 'auto', 'cpu' or 'cuda:N'" % (who, _named(device)))


def _array(samples, who, form):
    """Floating point or int16 samples as an array; another object's own error keeps its words."""
    try:
        array = np.asarray(samples)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError("krait.%s: samples are %s, not an array: %s" % (who, _named(samples), error)) from None
    if array.dtype != np.int16 and array.dtype.kind != "f":
        raise TypeError("krait.%s: samples are %s of shape %s, must be %s" % (who, array.dtype, array.shape, form))
    return array


def open_enhance(options):
    """Of python -m krait enhance: what stands in the way is said before the work. The Denoiser; options.output gets its default."""
    is_default = options.output is None
    if is_default:
        name, ending = os.path.splitext(options.input)
        options.output = name + ".enhanced" + ending
    if os.path.exists(options.output):
        if os.path.exists(options.input) and os.path.samefile(options.input, options.output):
            raise _load.KraitError("%s is the input; choose another output name" % options.output)
        if not options.force and not is_default:
            raise _load.KraitError("%s exists; -f replaces it" % options.output)
    options.force = options.force or is_default
    _sound.check_output(options.output)
    return Denoiser(options.device, options.threads, options.weights)


def _show_progress(done, total):
    print("\r%3d %%" % (100 * done // max(total, 1)), end="\r" if done < total else "\r     \r", file=sys.stderr, flush=True)


def enhance(denoiser, options):
    samples, rate, subtype = _sound.read(options.input)
    cleaned = denoiser(samples, rate, band=options.band, mix=options.mix, limit=options.limit, gate=options.gate, progress=_show_progress if sys.stderr.isatty() else None)
    _sound.write(options.output, cleaned, rate, subtype, options.force)
    print("%s -> %s: %.2f s, %d Hz, %d channel%s" % (options.input, options.output, samples.shape[1] / rate, rate, len(samples), "" if len(samples) == 1 else "s"))
    return 0
