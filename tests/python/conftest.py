"""Import paths: the installed krait and its drop-ins if KRAIT_INSTALLED is set, else this tree's."""

import os
import sys

import pytest

_PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python")
if not os.environ.get("KRAIT_INSTALLED"):
    sys.path[:0] = [os.path.join(_PACKAGE), os.path.join(_PACKAGE, "krait", "dropin")]
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

torch = pytest.importorskip("torch", reason="the Python tests need torch")
torch.backends.cudnn.allow_tf32 = False  # float32 bounds; by default torch convolves in tf32 on a GPU


def _emulate():
    """KRAIT_EMULATED: calls on CPU tensors run on the library's emulated GPU; tools/test-python --emulated sets it up."""
    from krait import _call, _load
    context = _load.cuda_context(0)
    _call._open_cpu_place = lambda n_threads: _call._cpu_places.setdefault(n_threads, _call.CpuPlace(context))
    return context


EMULATED = _emulate() if os.environ.get("KRAIT_EMULATED") else None


def pytest_sessionfinish(session):
    """Fails if nothing ran on the emulated GPU."""
    if EMULATED is not None and session.testscollected:
        from krait import _load
        stats = _load.read_stats(EMULATED)
        print("\n%(n_calls)d calls on the emulated GPU, %(n_fallbacks)d of them by a lower tier or a slower implementation" % stats)
        if not stats["n_calls"]:
            session.exitstatus = 1


def _devices():
    if not torch.cuda.is_available():
        return ["cpu"]
    from krait import _load
    try:
        _load.cuda_context(0)
    except _load.KraitError as error:
        print("no GPU tests: %s" % error)
        return ["cpu"]
    return ["cpu", "cuda"]


DEVICES = _devices()


def pytest_sessionstart(session):
    """Each pytest-xdist worker gets its share of the cores, and of the device code that the GPU driver must compile."""
    worker = getattr(session.config, "workerinput", None)
    if worker:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // worker["workercount"]))
        if "cuda" in DEVICES:
            import device_code
            device_code.compile_together(worker["testrunuid"])


def pytest_generate_tests(metafunc):
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", DEVICES)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def _excuse(error, device):
    """Why this failure is not krait's: no GPU implementation for a call, or an old torch without float16 on the CPU."""
    from krait._load import KraitUnsupported
    if device == "cuda" and isinstance(error, KraitUnsupported):
        return "no GPU implementation: %s" % error
    if isinstance(error, RuntimeError) and "not implemented for 'Half'" in str(error) and torch.__version__ < "2.1":
        return "torch %s: %s" % (torch.__version__, error)
    return None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    """Turns such failures into skips with the reason."""
    outcome = yield
    device = getattr(getattr(item, "callspec", None), "params", {}).get("device")
    excuse = outcome.excinfo and _excuse(outcome.excinfo[1], device)
    if excuse:
        outcome._excinfo = (pytest.skip.Exception, pytest.skip.Exception(excuse), outcome.excinfo[2])
        if hasattr(outcome, "force_exception"):
            outcome.force_exception(pytest.skip.Exception(excuse))
