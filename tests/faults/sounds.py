"""Writes recordings in every format of libsndfile, through libsndfile (ctypes), and reads them back."""
import ctypes
import ctypes.util
import math
import random

FORMATS = {"wav": 0x010002, "wav8": 0x010005, "wav24": 0x010003, "wavf": 0x010006, "ulaw": 0x010010, "gsm": 0x010020, "ima": 0x010012, "msadpcm": 0x010013, "aiff": 0x020002,
           "au": 0x030002, "g721": 0x030030, "caf": 0x180002, "alac": 0x180070, "flac": 0x170002, "vorbis": 0x200060, "opus": 0x200064, "mp3": 0x230082, "w64": 0x0B0002,
           "rf64": 0x220002, "voc": 0x080002, "voc8": 0x080005, "nist": 0x070002, "paf24": 0x050003, "svx": 0x060002}
EXTENSIONS = {"wav8": "wav", "wav24": "wav", "wavf": "wav", "ulaw": "wav", "gsm": "wav", "ima": "wav", "msadpcm": "wav", "g721": "au", "alac": "caf", "vorbis": "ogg", "voc8": "voc",
              "nist": "sph", "paf24": "paf"}


class Info(ctypes.Structure):
    _fields_ = [("frames", ctypes.c_int64), ("rate", ctypes.c_int), ("channels", ctypes.c_int), ("format", ctypes.c_int), ("sections", ctypes.c_int), ("seekable", ctypes.c_int)]


def library():
    name = ctypes.util.find_library("sndfile")
    lib = ctypes.CDLL(name)
    lib.sf_open.restype = ctypes.c_void_p
    lib.sf_open.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(Info)]
    for fn in (lib.sf_writef_float, lib.sf_readf_float):
        fn.restype, fn.argtypes = ctypes.c_int64, [ctypes.c_void_p, ctypes.POINTER(ctypes.c_float), ctypes.c_int64]
    lib.sf_close.argtypes = [ctypes.c_void_p]
    return lib


def noise(n, channels=1, seed=1):
    draw = random.Random(seed)
    return [0.2 * math.sin(0.05 * (i // channels)) + draw.uniform(-0.1, 0.1) for i in range(n * channels)]


def write(path, kind, samples, rate=16000, channels=1):
    """False if this libsndfile cannot write that."""
    lib, info = library(), Info(0, rate, channels, FORMATS[kind], 0, 0)
    file = lib.sf_open(str(path).encode(), 0x20, ctypes.byref(info))
    if not file:
        return False
    lib.sf_writef_float(file, (ctypes.c_float * len(samples))(*samples), len(samples) // channels)
    lib.sf_close(file)
    return True


def read(path):
    """(format, rate, channels, samples), or None."""
    lib, info = library(), Info()
    file = lib.sf_open(str(path).encode(), 0x10, ctypes.byref(info))
    if not file:
        return None
    data = (ctypes.c_float * (info.frames * info.channels + 16 * info.channels))()
    n = lib.sf_readf_float(file, data, info.frames + 16)
    lib.sf_close(file)
    return info.format, info.rate, info.channels, list(data[:n * info.channels])
