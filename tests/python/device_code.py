"""Compiles GPU code once for all workers of a test run. The driver compiles PTX at a process's first use and caches it
on disk; workers starting together would each compile everything. So they divide the work, and all wait for the last."""

import os
import tempfile
import time

import torch

_PATIENCE_S = 60


def _scan(dtype, length, complex_A=False):
    from krait.ops import selective_scan
    steps = length * (2 if complex_A else 1)
    A = torch.full((4, 8), -0.5, device="cuda", dtype=torch.complex64 if complex_A else torch.float32, requires_grad=True)
    u, B = torch.ones(1, 4, length, device="cuda", dtype=dtype), torch.ones(1, 8, steps, device="cuda", dtype=dtype)
    selective_scan(u, u, A, B, B).sum().backward()


def _conv(dtype):
    from krait.ops import causal_conv1d
    causal_conv1d(torch.ones(1, 8, 8, device="cuda", dtype=dtype), torch.ones(8, 4, device="cuda", requires_grad=True)).sum().backward()


def _norms(dtype):
    from krait.ops import add_norm
    add_norm(torch.ones(4, 64, device="cuda", dtype=dtype, requires_grad=True), torch.ones(64, device="cuda"), is_rms_norm=True).sum().backward()


def _pieces():
    """(function, arguments): each loads part of the device code, largest first."""
    types = torch.float32, torch.float16, torch.bfloat16
    for function, *arguments in ((_scan, 8), (_scan, 64), (_norms,), (_conv,)):
        for dtype in types:
            yield function, (dtype, *arguments)
    yield _scan, (torch.float32, 16, True)


def _claim(path):
    try:
        os.mkdir(path)
    except FileExistsError:
        return False
    return True


def compile_together(run_id):
    folder = os.path.join(tempfile.gettempdir(), "krait-device-code-" + run_id)
    os.makedirs(folder, exist_ok=True)
    pieces = list(_pieces())
    for i, (function, arguments) in enumerate(pieces):
        if _claim(os.path.join(folder, "piece%d" % i)):
            try:
                function(*arguments)
                torch.cuda.synchronize()
            except RuntimeError as error:  # a test will report it too
                print("device code: %s" % error)
            _claim(os.path.join(folder, "done%d" % i))
    give_up = time.monotonic() + _PATIENCE_S
    while time.monotonic() < give_up and not all([os.path.isdir(os.path.join(folder, "done%d" % i)) for i in range(len(pieces))]):
        time.sleep(0.05)
