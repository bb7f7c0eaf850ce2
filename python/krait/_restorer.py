"""Restorer: SeedVR and SeedVR2 on frames as numpy arrays and torch tensors. Needs the whole libkrait (KRAIT_LIBRARY)."""

import os
import sys
import threading

import numpy as np

from . import _denoiser, _load

_FORM = "frames (T, height, width, 3) or one (height, width, 3), uint8 or floating point in 0 to 1"
_NUMBERS = ("shorter", "longest", "frames_per_batch", "overlap", "tile", "tile_overlap", "steps", "scale", "rescale", "condition_noise", "seed")


class Restorer:
    """Restores films. Restorer(folder) reads the models of a folder (docs/RESTORE.md); restorer(frames) takes a numpy array or torch tensor (T, height, width, 3), or one frame
    without the first axis, uint8 or floating point in 0 to 1, and returns the same type. restorer.each(frames) takes any iterable of frames and yields restored ones: for films of any length.

    Options of both: size=(width, height) or shorter, longest; pad; frames_per_batch (21, or fewer for the host's memory: docs/RESTORE.md), overlap (0), tile (whole frames), tile_overlap (128), colour ("wavelet", "adain", "lab", "none"), seed, steps, scale, rescale,
    condition_noise; progress(stage, share, done, total), where stage is "encode", "sample" or "decode": what it raises stops the work.

    device, threads: as of krait.Denoiser; precision: "bf16" (a GPU's default, from 8.0 on) or "fp32"; transformer, autoencoder: files, if the folder has several;
    memory: at most so many bytes of the device (0: what is free): which parts stay there and which are streamed is planned by it.
    Threads may share one Restorer; their calls are serialized."""

    def __init__(self, folder, device="auto", threads=0, precision=None, transformer=None, autoencoder=None, memory=0):
        if precision not in (None, "bf16", "fp32"):
            raise ValueError("krait.Restorer: precision is %r, must be 'bf16' or 'fp32'" % (precision,))
        if not hasattr(_load.lib(), "krait_restorer_open"):
            raise _load.KraitUnsupported("krait.Restorer needs the whole libkrait, of which %s is a part: install it (make install, or the Debian package) and set KRAIT_LIBRARY "
                                         "to its libkrait.so before krait is imported" % _load.library_path())
        ffi = _load.ffi()
        self._lock, self._process = threading.RLock(), os.getpid()
        self._context = _denoiser._context(str(device), threads, "Restorer")
        self._handles = _load.Handles()
        names = [ffi.NULL if path is None else ffi.new("char[]", os.fsencode(path)) for path in (folder, transformer, autoencoder)]
        options = ffi.new("krait_restorer_options *", {"size": ffi.sizeof("krait_restorer_options"), "path": names[0], "dit_path": names[1], "vae_path": names[2], "memory_bytes": int(memory),
                                                       "precision": _load.lib().KRAIT_PRECISION_FP32 if precision == "fp32" else 0})
        self._models = self._handles.open("restorer", self._context, options)
        self._folder = folder

    def __repr__(self):
        return "<krait.Restorer of %s>" % os.fsdecode(self._folder)

    def __call__(self, frames, **options):
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(frames, torch.Tensor):
            kept = frames.dtype if frames.is_floating_point() else torch.uint8
            given = frames.detach().to("cpu", torch.float32) if frames.is_floating_point() else frames.detach().cpu()
            return torch.from_numpy(self(given.numpy(), **options)).to(frames.device, kept)
        frames = _frames(frames)
        many = frames if frames.ndim == 4 else frames[None]
        if len(many) == 0:
            raise ValueError("krait.Restorer: no frames")
        with _Film(self, many.shape[1:3], many.dtype, options, len(many)) as film:
            done = np.concatenate([film.push(many), film.finish()])
        return (done if frames.ndim == 4 else done[0]).astype(frames.dtype)

    def each(self, frames, **options):
        """Yields as many restored frames as the iterable has; holds one batch."""
        film, torch = None, sys.modules.get("torch")
        try:
            for frame in frames:
                given = _frames(frame.detach().cpu().float().numpy() if torch is not None and isinstance(frame, torch.Tensor) and frame.is_floating_point() else frame)
                if given.ndim != 3:
                    raise TypeError("krait.Restorer.each: a frame has shape %s, must be (height, width, 3)" % (given.shape,))
                if film is None:
                    film = _Film(self, given.shape[:2], given.dtype, options, 0)
                yield from film.push(given[None])
            if film is not None:
                yield from film.finish()
        finally:
            if film is not None:
                film.close()


class _Film:
    """A stream of frames of one size and type."""

    def __init__(self, restorer, size, dtype, options, n_frames):
        ffi = _load.ffi()
        if os.getpid() != restorer._process:
            raise _load.KraitError("krait.Restorer: created before a fork; create one in each process")
        self._restorer, self._size, self._error, self._n_frames = restorer, tuple(size), None, n_frames
        self._dtype, self._given = (np.uint8 if dtype == np.uint8 else np.float32), dtype
        self._kept = []
        wanted = self._options(dict(options))
        self._handles = _load.Handles(restorer._handles)
        kind = _load.constant("KRAIT_U8" if self._dtype == np.uint8 else "KRAIT_F32")
        with restorer._lock:
            self._stream = self._handles.open("restore_stream", restorer._models[0], wanted, kind, size[1], size[0])
            out = ffi.new("int64_t[2]")
            status = _load.lib().krait_restorer_size(wanted, size[1], size[0], out, out + 1)
            if status < 0:
                _load.fail(status)
        self._out = (out[1], out[0])
        self._latency = int(_load.lib().krait_restore_stream_latency(self._stream[0]))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        with self._restorer._lock:
            self._handles.close()

    def _options(self, given):
        ffi = _load.ffi()
        values = {"size": ffi.sizeof("krait_restore_options")}
        width, height = given.pop("size", None) or (0, 0)
        values.update(width=width, height=height, is_padded=int(given.pop("pad", False)))
        colour, progress = given.pop("colour", None), given.pop("progress", None)
        if colour is not None:
            self._kept.append(ffi.new("char[]", str(colour).encode()))
            values["colour"] = self._kept[-1]
        if progress is not None:
            self._progress = progress
            self._kept.append(ffi.callback("int32_t(void *, const krait_restore_progress *)", self._tell))
            values["progress"] = self._kept[-1]
        for name in _NUMBERS:
            if given.get(name) is not None:
                values[name] = given[name]
            given.pop(name, None)
        if given:
            raise TypeError("krait.Restorer: unknown option %r; there are size, pad, colour, progress, %s" % (sorted(given)[0], ", ".join(_NUMBERS)))
        return ffi.new("krait_restore_options *", values)

    def _tell(self, _, told):
        try:
            self._progress(("encode", "sample", "decode")[told.stage], told.share, told.n_done, self._n_frames)
        except BaseException as error:  # raised again by the caller of the library
            self._error = error
            return 1
        return 0

    def _take(self, n, call):
        """Runs call(out, room, n_out) -> the frames that came."""
        ffi = _load.ffi()
        out, n_out = np.empty((n + self._latency, *self._out, 3), self._dtype), ffi.new("int64_t *")
        with self._restorer._lock:
            status = call(ffi.cast("void *", out.ctypes.data), len(out), n_out)
            if status < 0 and self._error is None:
                _load.fail(status)
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return out[:n_out[0]].copy()

    def push(self, frames):
        if frames.shape[1:3] != self._size or frames.dtype != self._given:
            raise ValueError("krait.Restorer: a frame is %s of %d x %d pixels, those before it %s of %d x %d" %
                             (frames.dtype, frames.shape[2], frames.shape[1], self._given, self._size[1], self._size[0]))
        given = np.ascontiguousarray(frames, self._dtype)
        if self._dtype == np.float32 and not np.isfinite(given).all():
            raise ValueError("krait.Restorer: frames contain NaN or infinity")
        pointer = _load.ffi().cast("const void *", given.ctypes.data)
        return self._take(len(given), lambda out, room, n_out: _load.lib().krait_restore_stream_push(self._stream[0], pointer, len(given), out, room, n_out))

    def finish(self):
        return self._take(0, lambda out, room, n_out: _load.lib().krait_restore_stream_finish(self._stream[0], out, room, n_out))


def _frames(frames):
    array = np.asarray(frames)
    if array.ndim not in (3, 4) or array.shape[-1] != 3 or not (array.dtype == np.uint8 or array.dtype.kind == "f"):
        raise TypeError("krait.Restorer: frames are %s of shape %s, must be %s" % (array.dtype, array.shape, _FORM))
    return array
