"""Paths for the tests: the installed krait and its drop-ins where KRAIT_INSTALLED is set, else this tree's."""

import os
import sys

import pytest

_PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python")
if not os.environ.get("KRAIT_INSTALLED"):
    sys.path[:0] = [os.path.join(_PACKAGE), os.path.join(_PACKAGE, "krait", "dropin")]
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

torch = pytest.importorskip("torch", reason="the Python tests need torch")


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


def pytest_generate_tests(metafunc):
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", DEVICES)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    """A GPU that has no row for a call says so by KraitUnsupported: a skip that quotes it, not a failure."""
    outcome = yield
    from krait._load import KraitUnsupported
    device = getattr(getattr(item, "callspec", None), "params", {}).get("device")
    if device == "cuda" and outcome.excinfo is not None and issubclass(outcome.excinfo[0], KraitUnsupported):
        outcome.force_exception(pytest.skip.Exception("no GPU row: %s" % outcome.excinfo[1]))
