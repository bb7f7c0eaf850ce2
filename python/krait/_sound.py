"""Audio as numpy arrays: reading and writing. WAV by the standard library, other formats by soundfile."""

import os
import tempfile

import numpy as np

from ._load import KraitError

_WAVE = {1: "PCM_U8", 2: "PCM_16", 3: "PCM_24", 4: "PCM_32"}


def _soundfile():
    try:
        import soundfile
        return soundfile
    except ImportError:
        return None


def _read_wave(path):
    import wave
    with wave.open(path, "rb") as file:
        width, channels, rate, n = file.getsampwidth(), file.getnchannels(), file.getframerate(), file.getnframes()
        data = np.frombuffer(file.readframes(n), dtype=np.uint8)
    if len(data) < n * width * channels < 0x7fffff00:  # writers to a pipe put the maximum size in the header
        raise wave.Error("truncated: the header announces more audio than the file contains")
    data = data[:len(data) // (width * channels) * width * channels].reshape(-1, width)
    if width == 1:
        samples = data[:, 0].astype(np.float64) / 128 - 1
    else:  # little-endian integers of 2 to 4 bytes, left-aligned in 32 bits
        wide = np.zeros((len(data), 4), dtype=np.uint8)
        wide[:, 4 - width:] = data
        samples = wide.view("<i4")[:, 0].astype(np.float64) / 2**31
    return samples.reshape(-1, channels).T, rate, _WAVE[width]


def read(path):
    """-> (channels, n) float64 in [-1, 1], the rate, the name of the sample format."""
    import wave
    soundfile = _soundfile()
    try:
        if soundfile:
            info = soundfile.info(path)
            samples, rate = soundfile.read(path, dtype="float64", always_2d=True)
            return samples.T, rate, info.subtype
        return _read_wave(path)
    except (wave.Error, EOFError, RuntimeError) as error:
        cure = "" if soundfile else "; other formats than integer WAV need the soundfile package"
        raise KraitError("%s: %s%s" % (path, str(error) or "empty, or truncated in its header", cure)) from None


def _write_wave(path, samples, rate, subtype):
    import wave
    width = {name: width for width, name in _WAVE.items()}.get(subtype, 2)
    top = 2.0 ** (8 * width - 1)
    whole = np.clip(np.rint(samples.T * top), -top, top - 1).astype("<i8")
    if width == 1:
        data = (whole + 128).astype(np.uint8).tobytes()
    else:
        data = np.ascontiguousarray(whole.reshape(-1, 1).view(np.uint8).reshape(-1, 8)[:, :width]).tobytes()
    with wave.open(path, "wb") as file:
        file.setnchannels(len(samples))
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(data)


def check_output(path):
    """Raises what can be detected before the work."""
    folder = os.path.dirname(path) or "."
    if os.path.splitext(path)[1].lower() != ".wav" and not _soundfile():
        raise KraitError("%s: other formats than .wav need the soundfile package" % path)
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        raise KraitError("cannot create %s: %s" % (path, "%s is not writable" % folder if os.path.isdir(folder) else "the folder %s does not exist" % folder))


def write(path, samples, rate, subtype, force=False):
    """Writes (channels, n) to path atomically, in the format of its extension."""
    ending = os.path.splitext(path)[1].lower()
    soundfile = _soundfile()
    check_output(path)
    handle, part = tempfile.mkstemp(prefix=".krait-", suffix=ending or ".wav", dir=os.path.dirname(path) or ".")
    os.close(handle)
    try:
        if soundfile:
            known = soundfile.available_subtypes(ending[1:].upper()) if ending[1:].upper() in soundfile.available_formats() else ()
            soundfile.write(part, samples.T, rate, subtype=subtype if subtype in known else None)
        else:
            _write_wave(part, samples, rate, subtype)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(part, 0o666 & ~mask)
        if force:
            os.replace(part, path)
        else:
            os.link(part, path)  # fails if the name exists by now
            os.unlink(part)
    except FileExistsError:
        os.unlink(part)
        raise KraitError("%s exists; -f replaces it" % path) from None
    except BaseException as error:
        os.unlink(part)
        if isinstance(error, (ValueError, TypeError, RuntimeError)) and not isinstance(error, KraitError):
            raise KraitError("cannot write %s: %s" % (path, error)) from None
        raise
