"""krait.Denoiser and python -m krait enhance: equal to the C call at the model's rate; rates, types, shapes, files;
errors."""

import copy
import json
import os
import pathlib
import pickle
import subprocess
import sys
import wave

import pytest

np = pytest.importorskip("numpy")
import krait  # noqa: E402
from krait import _load, _sound  # noqa: E402

RATE = 16000


@pytest.fixture(scope="module")
def denoiser():
    try:
        return krait.Denoiser(threads=1)
    except _load.KraitUnsupported as error:
        pytest.skip(str(error))


def speech(n=8000, seed=0, rate=RATE):
    """A pitched sound with gaps, in noise."""
    t = np.arange(n) / rate
    voice = sum(np.sin(2 * np.pi * 140 * k * t) / k for k in range(1, 12)) * (np.sin(2 * np.pi * 3 * t) > 0)
    return 0.05 * voice + 0.02 * np.random.default_rng(seed).normal(size=n)


def test_is_the_c_call(denoiser):
    ffi, lib = _load.ffi(), _load.lib()
    x = speech().astype(np.float32)
    want = np.empty_like(x)
    model, session = ffi.new("krait_denoiser **"), ffi.new("krait_denoiser_session **")
    assert lib.krait_denoiser_open(_load.cpu_context(1), ffi.NULL, model) == 0 and lib.krait_denoiser_session_open(model[0], session) == 0
    assert lib.krait_enhance_samples(session[0], ffi.cast("const float *", x.ctypes.data), ffi.cast("float *", want.ctypes.data), len(x), ffi.NULL, ffi.NULL) == 0
    lib.krait_denoiser_session_close(session)
    lib.krait_denoiser_close(model)
    got = denoiser(x, RATE)
    assert got.dtype == np.float32 and np.array_equal(got, want)
    assert 0.05 < np.abs(want).max() / np.abs(x).max() < 1.5 and not np.allclose(want, x, atol=1e-3)


GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "primeknet"


def floats(path):
    """The float32 tensors of a safetensors file of this tree."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    return {name: np.frombuffer(raw[start:][slice(*part["data_offsets"])], np.float32).reshape(part["shape"]) for name, part in json.loads(raw[8:start]).items() if name != "__metadata__"}


@pytest.mark.parametrize("kind", ["mamba", "gru", "lstm"])
def test_weights_of_a_file(kind):
    """The recorded forward pass of other weights, with other sizes."""
    ffi, golden = _load.ffi(), floats(GOLDEN / ("tiny-%s.golden.safetensors" % kind))
    denoiser = krait.Denoiser(threads=1, weights=GOLDEN / ("tiny-%s.weights.safetensors" % kind))
    given, want = np.ascontiguousarray(golden["golden.input_com"]), golden["golden.com"]
    got = np.empty_like(want)
    assert _load.lib().krait_primeknet_forward(denoiser._session[0], given.shape[0], given.shape[2], ffi.cast("const float *", given.ctypes.data), ffi.NULL, ffi.NULL,
                                               ffi.cast("float *", got.ctypes.data)) == 0
    assert np.linalg.norm(got - want) < 1e-5 * np.linalg.norm(want)
    stream = denoiser.stream()
    del denoiser  # a stream keeps what it needs
    x = speech(5000)
    assert len(np.concatenate([stream.push(x), stream.finish()])) == len(x)


def test_weights_refused(tmp_path):
    raw = (GOLDEN / "tiny-gru.weights.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + length])

    def written(change):
        changed = json.loads(json.dumps(header))
        change(changed)
        text = json.dumps(changed).encode()
        path = tmp_path / "changed.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length:])
        return path

    def told(**values):
        def change(h):
            h["__metadata__"]["config"] = json.dumps({**json.loads(h["__metadata__"]["config"]), **values})
        return change

    name = next(n for n in header if n.endswith("norm.weight"))
    assert krait.Denoiser(threads=1, weights=written(lambda h: None))(np.ones(500) * 0.1).shape == (500,)
    for change, error, says in ((lambda h: h["__metadata__"].pop("model"), _load.KraitError, "unknown which model"), (lambda h: h["__metadata__"].update(format="krait training 1"), _load.KraitError, "best.safetensors beside it"),
                                (lambda h: h.pop(name), _load.KraitError, "belong to no tensor"), (lambda h: h.update({"other": h.pop(name)}), _load.KraitError, name),
                                (lambda h: h[name]["data_offsets"].reverse(), _load.KraitError, "invalid byte range"), (lambda h: h[name].update(dtype="I8"), _load.KraitError, "its shape and type need"),
                                (lambda h: h[name]["shape"].append(2), _load.KraitError, "its shape and type need"), (lambda h: h["__metadata__"].update(model="other"), _load.KraitError, "unknown model 'other'"),
                                (lambda h: h["__metadata__"].update(config='{"a":'), _load.KraitError, "metadata 'config' is not JSON"), (lambda h: h["__metadata__"].update(normalize="rms"), ValueError, "level normalization"),
                                (told(frobnicate=1), _load.KraitError, "frobnicate"), (told(dense_channel=2.5), _load.KraitError, "dense_channel is not a whole number"),
                                (told(dense_channel="x=1"), _load.KraitError, "dense_channel"), (told(freq_block_kernel=[3, 4]), _load.KraitError, "freq_block_kernel"),
                                (told(freq_block_kernel=7), _load.KraitError, "freq_block_kernel"), (told(num_tsblock=7), _load.KraitError, "sequence_block")):
        with pytest.raises(error, match="changed.safetensors.*" + says.replace("[", "\\[")):
            krait.Denoiser(threads=1, weights=written(change))


def test_weights_that_are_none(tmp_path):
    """What is no file of weights is refused with its name and at once: truncated, absent, a folder, a device, a pipe that nobody writes to, and 20,000 tensors in the same 1 MiB."""
    path = tmp_path / "bad.safetensors"
    raw = (GOLDEN / "tiny-gru.weights.safetensors").read_bytes()
    tensors = {"t%d" % i: {"dtype": "F32", "shape": [1 << 18], "data_offsets": [0, 1 << 20]} for i in range(20000)}
    text = json.dumps({"__metadata__": {"model": "primeknet_mamba"}, **tensors}).encode()
    os.mkfifo(tmp_path / "pipe")
    for content, says in ((raw[:len(raw) // 2], "truncated"), (b"", "is empty"), (b"x", "too few"), (len(text).to_bytes(8, "little") + text + bytes(1 << 20), "overlap"), (b"PK\3\4" + bytes(60), "is a PyTorch file|damaged|zip"),
                          ((200000).to_bytes(8, "little") + b"[" * 200000, "neither safetensors"), ((200000).to_bytes(8, "little") + b'{"a":' + b"[" * 199995, "not JSON")):
        path.write_bytes(content)
        with pytest.raises(_load.KraitError, match="bad.safetensors.*(%s)" % says):
            krait.Denoiser(weights=path)
    for name, says in ((tmp_path / "none.safetensors", "none.safetensors: No such file"), (tmp_path, "is a folder"), ("/dev/zero", "/dev/zero is not a regular file"), (tmp_path / "pipe", "pipe is not a regular file")):
        with pytest.raises(_load.KraitError, match=says):
            krait.Denoiser(weights=name)
    for given, error in ((5, TypeError), ({"a": 1}, TypeError), ([], TypeError), ("", ValueError), ("a\0b", ValueError)):
        with pytest.raises(error, match="weights is .*must be the name of a safetensors file"):
            krait.Denoiser(weights=given)


def test_built_in_weights_by_name(denoiser):
    x = speech(4000)
    assert np.array_equal(krait.Denoiser(threads=1, weights="builtin")(x), denoiser(x))
    with pytest.raises(_load.KraitError, match="only the default model built in, not 'streaming'; .*krait convert streaming streaming.safetensors"):
        krait.Denoiser(weights="streaming")


def test_kinds_and_shapes(denoiser):
    x = speech(4000)
    want = denoiser(x)
    assert want.dtype == np.float64 and want.shape == x.shape
    both = denoiser(np.stack([x, x[::-1]])[:, None])
    assert both.shape == (2, 1, 4000) and np.array_equal(both[0, 0], want)
    whole = np.rint(x * 32768).astype(np.int16)
    got = denoiser(whole)
    assert got.dtype == np.int16 and np.abs(got / 32768 - denoiser(whole / 32768)).max() <= 0.51 / 32768
    assert denoiser(np.zeros((2, 0), np.float32)).shape == (2, 0)
    assert not denoiser(np.zeros(100)).any()


def test_torch(denoiser):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(speech(4000)).to(torch.float32).requires_grad_()
    got = denoiser(x[None], RATE)
    assert got.dtype == torch.float32 and got.shape == (1, 4000) and not got.requires_grad
    assert np.allclose(got[0].numpy(), denoiser(x.detach().numpy()), atol=1e-6)
    assert denoiser(x.detach().to(torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000])
def test_rates(denoiser, rate):
    """Same length, no delay; without what lies above 8 kHz if that is asked for."""
    n = rate // 2 + 7
    x = speech(n, rate=rate)
    whole, got = denoiser(x, rate), denoiser(x, rate, band="16k")
    assert got.shape == whole.shape == x.shape and np.abs(got - whole).max() > 1e-4 * (rate > RATE)
    for out in (whole, got):
        lag = np.argmax([np.dot(x[50 + k:n - 50 + k], out[50:n - 50]) for k in range(-40, 41)]) - 40
        assert lag == 0
    power = np.abs(np.fft.rfft(got * np.hanning(n))) ** 2
    above = np.arange(len(power)) * rate / n > 8200
    assert power[above].sum() < 1e-7 * power.sum()


def test_whole_band_and_mix(denoiser):
    """Noise above 8 kHz goes with the noise below; dry it is the input."""
    noise = 0.05 * np.random.default_rng(2).normal(size=24000).astype(np.float32)
    quiet = denoiser(noise, 48000)
    power = [np.abs(np.fft.rfft(x[6000:]))**2 for x in (noise, quiet)]
    kept_db = [10 * np.log10(power[1][part].sum() / power[0][part].sum()) for part in (slice(1125, 3000), slice(3400, 8000))]
    assert max(kept_db) < -10 and abs(kept_db[1] - kept_db[0]) < 6, kept_db
    assert np.allclose(denoiser(noise, 48000, mix=0), noise, atol=1e-6)
    assert np.allclose(denoiser(noise, 48000, limit=6.0206), (noise + denoiser(noise, 48000)) / 2, atol=1e-5)
    assert not denoiser(noise, 48000, gate=1).any()
    for bad in ({"band": "8k"}, {"mix": 2}, {"mix": None}, {"limit": -1}, {"gate": "much"}, {"gate": float("nan")}):
        with pytest.raises(ValueError, match="krait.Denoiser: %s is " % next(iter(bad))):
            denoiser(noise, 48000, **bad)


def test_progress_and_a_stop(denoiser):
    x = np.stack([speech(16000 * 8, rate=44100)] * 2)
    told = []
    out = denoiser(x, 44100, progress=lambda done, total: told.append((done, total)))
    assert np.array_equal(out, denoiser(x, 44100)) and len(told) >= 2
    assert told == sorted(told) and {total for _, total in told} == {told[0][1]} and told[-1][0] == told[-1][1]

    def stop(done, total):
        raise KeyboardInterrupt("enough")
    with pytest.raises(KeyboardInterrupt, match="enough"):
        denoiser(x, 44100, progress=stop)
    assert np.array_equal(denoiser(x[0], 44100), out[0])


def test_floats_in_the_range_of_int16(denoiser):
    x = speech(4000)
    with pytest.warns(UserWarning, match="must be in -1 to 1; divide by 32768, or pass int16"):
        denoiser(x * 32768)


def test_device_and_repr(denoiser):
    import torch
    automatic = krait.Denoiser()
    assert repr(automatic).startswith("<krait.Denoiser on %s" % ("cuda:0" if torch.cuda.is_available() else "cpu")) and "built-in weights" in repr(automatic)
    assert repr(denoiser) == "<krait.Denoiser on cpu, 1 threads, built-in weights>" and "late" in repr(denoiser.stream())


def test_copies(denoiser):
    x = speech(2000)
    for copied in (copy.deepcopy(denoiser), pickle.loads(pickle.dumps(krait.Denoiser("cpu", 1, GOLDEN / "tiny-gru.weights.safetensors")))):
        assert copied(x).shape == x.shape and copied._session is not denoiser._session
    assert np.array_equal(copy.deepcopy(denoiser)(x), denoiser(x)) and not np.array_equal(copied(x), denoiser(x))


def test_refusals(denoiser):
    with pytest.raises(_load.KraitError) as refused:  # no advice for C callers
        krait.Denoiser._check(_load.lib().krait_denoiser_session_open(_load.ffi().NULL, _load.ffi().NULL))
    assert "header" not in str(refused.value)
    for bad in (np.zeros(10, np.int32), np.float32(1), np.zeros(10, complex), None, "speech", {}, [[0.0], [0.0, 1.0]], object(), [True]):
        with pytest.raises(TypeError, match="krait.Denoiser: samples are"):
            denoiser(bad)
    for rate in (0, 999, 16000.5, "16000", True, 10**6, float("nan"), float("inf"), np.float32("nan"), None, 10**400, [16000]):
        with pytest.raises(ValueError, match="rate is .*must be an integer from 1000 to 768000 Hz"):
            denoiser(np.zeros(10), rate)
    assert denoiser(np.zeros(10), np.float32(16000)).shape == (10,)
    with pytest.raises(ValueError, match="NaN or infinity"):
        denoiser(np.array([0, np.nan]))
    for device in ("gpu", "", None, "cuda:", "cuda:-1", "cuda:99999999999", "cuda:\u0661", "cpu:0", "x" * 10**6, 3):
        with pytest.raises(ValueError, match="device is .{,60}, must be 'auto', 'cpu' or 'cuda:N'"):
            krait.Denoiser(device)
    for threads in (-1, 10**9, "4", 1.5, None, float("nan")):
        with pytest.raises(ValueError, match="threads is .*must be an integer from 0"):
            krait.Denoiser(threads=threads)


def test_stream(denoiser):
    """Any split gives the samples of a single push, each within the latency, and close to the whole recording's."""
    x, stream = speech(9001).astype(np.float32), denoiser.stream()
    assert stream.latency == 5600
    want = np.concatenate([stream.push(x), stream.finish()])
    assert want.dtype == np.float32 and np.linalg.norm(want - denoiser(x)) < 0.5 * np.linalg.norm(want)
    for piece in (160, 4001):
        got, heard = [np.empty(0, np.float32)], 0
        for i in range(0, len(x), piece):
            got.append(stream.push(x[i:i + piece]))
            heard += len(x[i:i + piece])
            assert 0 <= heard - sum(map(len, got)) < stream.latency
        assert np.array_equal(np.concatenate([*got, stream.finish()]), want)
    assert len(stream.finish()) == 0
    whole = np.rint(x[:1000] * 32768)
    assert len(stream.push(whole.astype(np.int16))) == len(denoiser.stream().push(whole / 32768)) == 0
    assert np.allclose(stream.finish(), denoiser(whole.astype(np.float32) / 32768), atol=1e-6)


def test_stream_of_a_streaming_model():
    """Any chunk size gives the whole recording's result, 500 samples late."""
    streaming = krait.Denoiser(weights=GOLDEN / "tiny-streaming.weights.safetensors")
    x = speech(9001).astype(np.float32)
    x *= 0.056 / np.sqrt(np.mean(x ** 2))  # a level that needs no normalization
    want, stream = streaming(x), streaming.stream()
    assert stream.latency == 500
    for piece in (100, 160, 3001):
        got, heard = [], 0
        for i in range(0, len(x), piece):
            got.append(stream.push(x[i:i + piece]))
            heard += len(x[i:i + piece])
            assert 0 <= heard - sum(map(len, got)) < stream.latency
        assert np.allclose(np.concatenate([*got, stream.finish()]), want, atol=1e-6)


def test_stream_refuses(denoiser):
    stream = denoiser.stream()
    for bad in (np.zeros(10, np.int32), np.zeros((2, 5)), np.zeros(10, complex)):
        with pytest.raises(TypeError, match="one-dimensional"):
            stream.push(bad)
    with pytest.raises(ValueError, match="NaN or infinity"):
        stream.push([0.0, np.nan])
    assert len(stream.push(np.zeros(0))) == 0 and len(stream.finish()) == 0


def run(*arguments, **kw):
    return subprocess.run([sys.executable, "-m", "krait", "enhance", *map(str, arguments)], capture_output=True, text=True, **kw)


def write_wave(path, samples, rate, width=2):
    _sound._write_wave(str(path), samples, rate, {1: "PCM_U8", 2: "PCM_16", 3: "PCM_24", 4: "PCM_32"}[width])


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_wave_files(tmp_path, width):
    x = np.stack([speech(1000), -speech(1000, seed=1)])
    write_wave(tmp_path / "a.wav", x, 22050, width)
    with wave.open(str(tmp_path / "a.wav")) as file:
        assert (file.getsampwidth(), file.getnchannels(), file.getnframes()) == (width, 2, 1000)
    got, rate, name = _sound._read_wave(str(tmp_path / "a.wav"))
    assert rate == 22050 and name.startswith("PCM_") and np.abs(got - x).max() <= 0.51 * 2.0 ** (1 - 8 * width)


def test_enhance_a_file(denoiser, tmp_path):
    x = speech(6000, rate=22050)
    write_wave(tmp_path / "in.wav", x[None], 22050)
    done = run(tmp_path / "in.wav", "-o", tmp_path / "out.wav", "--threads", 1)
    assert done.returncode == 0 and "0.27 s, 22050 Hz, 1 channel" in done.stdout, done
    given, out = _sound._read_wave(str(tmp_path / "in.wav"))[0], _sound._read_wave(str(tmp_path / "out.wav"))[0]
    assert np.abs(out[0] - denoiser(given[0], 22050)).max() < 1e-4
    before = (tmp_path / "out.wav").read_bytes()
    given_name, out_name = tmp_path / "in.wav", tmp_path / "out.wav"
    for status, arguments, says in ((2, (given_name, "-o", out_name), "exists; -f replaces it"), (2, (given_name, "-o", given_name, "-f"), "is the input; choose another"), (1, (tmp_path / "none.wav", "-o", tmp_path / "x.wav"), "none.wav"),
                                    (2, (given_name, "-o", tmp_path / "no" / "x.wav"), "x.wav: the folder "), (2, (given_name, tmp_path / "x.wav"), "in.wav -o %s" % (tmp_path / "x.wav")), (2, (), "required: IN"),
                                    (2, (given_name, "--mix", "2"), "--mix: is '2', not a number from 0 to 1"), (2, (given_name, "--limit", "x"), "--limit: is 'x', not a number from 0 to 1000"), (2, (given_name, "--gate=nan"), "--gate: is 'nan'"),
                                    (2, (given_name, "--band", "8k"), "--band: invalid choice: '8k'"), (2, (given_name, "-w", "none.safetensors"), "none.safetensors"), (2, (given_name, "--device", "gpu"), "device is 'gpu'")):
        done = run(*arguments)
        assert done.returncode == status and "krait enhance: " in done.stderr and done.stderr.count("\n") == 1 and says in done.stderr and not done.stdout, done
    (tmp_path / "bad.wav").write_bytes(b"RIFF\x10\0\0\0WAVEfmt ")
    done = run(tmp_path / "bad.wav", "-o", tmp_path / "y.wav")
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "bad.wav" in done.stderr, done
    for n, says in ((0, "empty, or truncated"), (2000, "truncated: the header")):
        (tmp_path / "bad.wav").write_bytes((tmp_path / "in.wav").read_bytes()[:n])
        done = run(tmp_path / "bad.wav", "-o", tmp_path / "y.wav")
        assert done.returncode == 1 and done.stderr.count("\n") == 1 and says in done.stderr or _sound._soundfile(), done
    (tmp_path / "y.wav").unlink(missing_ok=True)  # soundfile reads files that are cut off
    raw = bytearray((tmp_path / "in.wav").read_bytes())
    raw[40:44] = b"\xff\xff\xff\x7f"  # as streaming writers set it
    (tmp_path / "bad.wav").write_bytes(raw)
    assert _sound._read_wave(str(tmp_path / "bad.wav"))[0].shape == given.shape
    assert (tmp_path / "out.wav").read_bytes() == before and sorted(os.listdir(tmp_path)) == ["bad.wav", "in.wav", "out.wav"]
    assert run(given_name, "-o", out_name, "-f", "--threads", 2).returncode == 0


def test_options_of_the_program(denoiser, tmp_path):
    """By the names that krait enhance has for them; without -o, NAME.enhanced.EXT, which is replaced."""
    x = speech(9000, rate=44100) + 0.01 * np.sin(2 * np.pi * 12000 / 44100 * np.arange(9000))
    write_wave(tmp_path / "in.wav", x[None], 44100, 3)
    given = _sound._read_wave(str(tmp_path / "in.wav"))[0]
    weights = GOLDEN / "tiny-gru.weights.safetensors"
    for options, of_denoiser, call in (((), denoiser, {}), (("--limit", 6, "--mix", 0.5), denoiser, {"limit": 6, "mix": 0.5}), (("--gate", 1), denoiser, {"gate": 1}), (("--band", "16k"), denoiser, {"band": "16k"}),
                                       (("--weights", weights), krait.Denoiser(threads=1, weights=weights), {})):
        done = run(tmp_path / "in.wav", "--threads", 1, *options)
        assert done.returncode == 0 and not done.stderr, done
        out, wanted = _sound._read_wave(str(tmp_path / "in.enhanced.wav"))[0], of_denoiser(given, 44100, **call)
        assert np.abs(out - wanted).max() < 1e-6 and (not options or np.abs(wanted - denoiser(given, 44100)).max() > 1e-4), options
    assert sorted(os.listdir(tmp_path)) == ["in.enhanced.wav", "in.wav"]


def test_readme_commands():
    """Every line of README.md and docs/PYTHON.md for this package is one that it can read."""
    import re
    import shlex
    from krait import __main__ as program
    root, found = pathlib.Path(__file__).resolve().parents[2], 0
    for name in ("README.md", "docs/PYTHON.md"):
        for line in re.findall(r"^[\w./]*python -m krait(.*)", (root / name).read_text(), re.M):
            options = program.parse(shlex.split(line, comments=True))
            assert options.command != "enhance" or options.output and not options.second, line
            found += 1
    assert found >= 4
