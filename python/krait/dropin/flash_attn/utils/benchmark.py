"""Times and memory of a function and its gradient."""

import torch
import torch.utils.benchmark as _benchmark


def _timed(run, repeats, desc, verbose):
    timer = _benchmark.Timer(stmt="run()", globals={"run": run}, num_threads=torch.get_num_threads())
    measurement = timer.timeit(repeats)
    if verbose:
        print(desc, measurement)
    return timer, measurement


def _call(fn, inputs, kwinputs, amp, amp_dtype):
    device = next((t.device.type for t in inputs if isinstance(t, torch.Tensor)), "cpu")
    with torch.autocast(device_type=device, dtype=amp_dtype, enabled=amp):
        out = fn(*inputs, **kwinputs)
    return out[0] if isinstance(out, tuple) else out


def _forget(inputs):
    for t in inputs:
        if isinstance(t, torch.Tensor):
            t.grad = None


def benchmark_forward(fn, *inputs, repeats=10, desc="", verbose=True, amp=False, amp_dtype=torch.float16, **kwinputs):
    """-> torch's timer, the measurement."""
    return _timed(lambda: _call(fn, inputs, kwinputs, amp, amp_dtype), repeats, desc + " forward", verbose)


def benchmark_backward(fn, *inputs, grad=None, repeats=10, desc="", verbose=True, amp=False, amp_dtype=torch.float16, **kwinputs):
    out = _call(fn, inputs, kwinputs, amp, amp_dtype)
    grad = torch.randn_like(out) if grad is None else grad

    def run():
        _forget(inputs)
        out.backward(grad, retain_graph=True)

    return _timed(run, repeats, desc + " backward", verbose)


def benchmark_combined(fn, *inputs, grad=None, repeats=10, desc="", verbose=True, amp=False, amp_dtype=torch.float16, **kwinputs):
    shape_of = _call(fn, inputs, kwinputs, amp, amp_dtype)
    grad = torch.randn_like(shape_of) if grad is None else grad

    def run():
        _forget(inputs)
        _call(fn, inputs, kwinputs, amp, amp_dtype).backward(grad)

    return _timed(run, repeats, desc + " forward + backward", verbose)


def benchmark_fwd_bwd(fn, *inputs, grad=None, **options):
    return benchmark_forward(fn, *inputs, **options), benchmark_backward(fn, *inputs, grad=grad, **options)


def benchmark_all(fn, *inputs, grad=None, **options):
    return (*benchmark_fwd_bwd(fn, *inputs, grad=grad, **options), benchmark_combined(fn, *inputs, grad=grad, **options))


def benchmark_memory(fn, *inputs, desc="", verbose=True, **kwinputs):
    """The most GPU memory that the call took, in GB."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    fn(*inputs, **kwinputs)
    torch.cuda.synchronize()
    used = torch.cuda.max_memory_allocated() / 1e9
    if verbose:
        print("%s: %.2f GB" % (desc, used))
    return used
