"""A pytest plugin for tools/upstream-suites: draws cases of each test function, at first so that each value of every parameter
is seen, then at random, runs them in turn until the time is over, and writes one record per case. On a CPU it answers what the
tests ask of torch.cuda, and "cuda" means the CPU."""

import collections
import importlib.machinery
import importlib.util
import json
import math
import os
import random
import signal
import sys
import time
import types

import pytest
import torch
from torch.overrides import TorchFunctionMode

_PLAN = json.loads(os.environ["UPSTREAM_SAMPLE"])
_ON_CPU = _PLAN["device"] == "cpu"
_CASES_A_SECOND = 50  # drawn for a function, more than can be run
_MOST_SHARE = 2  # times its share of the time: what a function may use
_began, _n_functions = [None], [0]
_spent = collections.Counter()  # seconds, by function
_record_file = open(_PLAN["out"], "a", encoding="utf-8")


def _write(case, outcome, message=""):
    _record_file.write(json.dumps(dict(case=case, outcome=outcome, message=message)) + "\n")
    _record_file.flush()


# ---- cuda on a CPU ----------------------------------------------------------------------------------------------------
def _moved(value):
    is_cuda = (isinstance(value, str) and value.split(":")[0] == "cuda") or (isinstance(value, torch.device) and value.type == "cuda")
    return torch.device("cpu") if is_cuda else value


class _CudaIsCpu(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.cuda:
            return args[0]
        return function(*[_moved(value) for value in args], **{name: _moved(value) for name, value in (kwargs or {}).items()})


def _answer_for_cuda():
    answers = dict(get_device_capability=(9, 0), synchronize=None, manual_seed_all=None, manual_seed=None, empty_cache=None, get_device_name="none", device_count=1, current_device=0,
                   max_memory_allocated=0, memory_allocated=0, reset_peak_memory_stats=None, set_device=None,
                   get_device_properties=types.SimpleNamespace(total_memory=8 << 30, multi_processor_count=108, name="none", major=9, minor=0))
    for name, value in answers.items():
        setattr(torch.cuda, name, lambda *_, _value=value, **__: _value)
    torch.nn.Module.cuda = lambda self, device=None: self
    start = torch.autocast.__init__
    torch.autocast.__init__ = lambda self, device_type, *args, **options: start(self, "cpu" if device_type == "cuda" else device_type, *args, **options)
    _CudaIsCpu().__enter__()


def _stand_in_for_triton():
    """While files are imported: some need it for one test of kernels among many of functions. torch's compiler, which looks
    for it, has looked before."""
    if importlib.util.find_spec("triton") is None:
        for name in ("torch._dynamo", "torch._inductor.runtime.triton_compat"):
            importlib.import_module(name)
        module = types.ModuleType("triton")
        module.__file__ = None
        module.__spec__ = importlib.machinery.ModuleSpec("triton", None)
        sys.modules["triton"] = module


sys.path.append(_PLAN["folder"])
if _ON_CPU:
    _stand_in_for_triton()
    _answer_for_cuda()
    _is_available = torch.cuda.is_available
    torch.cuda.is_available = lambda: True  # while files are imported: conditions of skipif


# ---- the draw ---------------------------------------------------------------------------------------------------------
def _axis(mark):
    """-> names, [(values, marks)] of one parametrize."""
    names = mark.args[0] if len(mark.args) else mark.kwargs["argnames"]
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    rows = []
    for value in mark.args[1] if len(mark.args) > 1 else mark.kwargs["argvalues"]:
        is_set = hasattr(value, "marks") and hasattr(value, "values")
        values = value.values if is_set else (value,) if len(names) == 1 else tuple(value)
        rows.append((values, tuple(value.marks) if is_set else ()))
    return names, rows


def _label(value):
    return str(getattr(value, "__name__", value)).replace("torch.", "")


def _case(axes, number):
    """Combination `number` of the axes as a pytest.param."""
    values, marks, labels = [], [], []
    for names, rows in axes:
        number, at = divmod(number, len(rows))
        values += rows[at][0]
        marks += rows[at][1]
        labels += ["%s=%s" % (name, _label(value)) for name, value in zip(names, rows[at][0])]
    return pytest.param(*values, marks=marks, id=",".join(labels))


def _each_value_once(draw, sizes):
    """Numbers of combinations, as many as the longest axis has values: each value of every axis is in one of them."""
    orders, numbers = [draw.sample(range(size), size) for size in sizes], []
    for at in range(max(sizes)):
        number = 0
        for order in reversed(orders):
            number = number * len(order) + order[at % len(order)]
        numbers.append(number)
    return numbers


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc):
    own = metafunc.definition.own_markers
    marks = [mark for mark in own if mark.name == "parametrize"]
    axes = [_axis(mark) for mark in marks]
    total = math.prod(len(rows) for _, rows in axes)
    if not axes or total == 0 or any(mark.kwargs.get("indirect") for mark in marks):
        return
    own[:] = [mark for mark in own if mark.name != "parametrize"]
    draw = random.Random("%d %s" % (_PLAN["seed"], metafunc.function.__name__))
    most = max(20, int(_CASES_A_SECOND * _PLAN["seconds"]))
    firsts = _each_value_once(draw, [len(rows) for _, rows in axes])
    numbers = firsts + [number for number in draw.sample(range(total), min(total, most)) if number not in firsts]
    mine = numbers[_PLAN["part"]::_PLAN["parts"]]
    metafunc.parametrize([name for names, _ in axes for name in names], [_case(axes, number) for number in mine])


def _part_of_plain_tests(items):
    """A test without parameters runs in the first part only."""
    return [item for item in items if hasattr(item, "callspec") or _PLAN["part"] == 0]


def pytest_collection_modifyitems(config, items):
    """One case of each function in turn."""
    turns = {}
    order = [(turns.setdefault(item.originalname, []).append(item) or len(turns[item.originalname]), at, item) for at, item in enumerate(_part_of_plain_tests(items))]
    items[:] = [item for _, _, item in sorted(order, key=lambda entry: entry[:2])]
    _n_functions[0] = len(turns)


# ---- the run ----------------------------------------------------------------------------------------------------------
def _name(nodeid):
    return nodeid.split("::", 1)[1]


def _is_over(item):
    """The time, or what a function with expensive cases may use of it."""
    passed = time.time() - _began[0]
    return passed > _PLAN["seconds"] or _spent[item.originalname] > _MOST_SHARE * passed / _n_functions[0]


def pytest_sessionfinish(session):
    _write("", "over")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    if _began[0] is None:
        _began[0] = time.time()
        if _ON_CPU:
            torch.cuda.is_available = _is_available
            if getattr(sys.modules.get("triton"), "__file__", "") is None:
                del sys.modules["triton"]
    if _is_over(item):
        return True
    _write(_name(item.nodeid), "began")
    return None


def pytest_sessionstart(session):
    """Test processes share one GPU's memory, of which kernels need some, too."""
    if not _ON_CPU and torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(0.9 / _PLAN["jobs"])


class _TooLong(BaseException):
    """Not an error of the test: a case that takes minutes here."""


def _give_up(*_):
    raise _TooLong()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, _PLAN["case_seconds"])
    outcome = yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    if outcome.excinfo is not None and issubclass(outcome.excinfo[0], _TooLong):
        outcome.force_exception(pytest.skip.Exception("longer than %g s" % _PLAN["case_seconds"]))
    elif outcome.excinfo is not None and issubclass(outcome.excinfo[0], torch.cuda.OutOfMemoryError):
        outcome.force_exception(pytest.skip.Exception("more than a job's share of the GPU's memory"))
    elif outcome.excinfo is not None and "DefaultCPUAllocator: can't allocate memory" in str(outcome.excinfo[1]):
        outcome.force_exception(pytest.skip.Exception("more than the machine's memory"))


def _free_memory():
    """For errors of the driver, whose cause it may be."""
    try:
        return "; %.1f GiB free" % (torch.cuda.mem_get_info()[0] / 2**30)
    except RuntimeError as error:
        return "; then " + str(error).split("\n")[0]


def _message(report):
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return str(report.longrepr)[-300:]
    text = crash.message.split("\n")[0][:300]
    return "%s (%s:%d)%s" % (text, os.path.basename(crash.path), crash.lineno, _free_memory() if "CUDA" in text and not _ON_CPU else "")


def pytest_runtest_logreport(report):
    _spent[_name(report.nodeid).split("[")[0]] += report.duration
    if report.skipped:
        _write(_name(report.nodeid), "skipped", str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else "expected to fail")
    elif report.failed:
        _write(_name(report.nodeid), "failed", _message(report))
    elif report.when == "call":
        _write(_name(report.nodeid), "passed")
