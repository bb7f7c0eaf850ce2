#!/usr/bin/env python3
"""Overhead of a Python call over the C call, on tiny CPU tensors with one thread: microseconds of CPU time over
interleaved repeats, the minimum (least disturbed by other load) and, for the overhead, also the median.

    PYTHONPATH=python:python/krait/dropin KRAIT_LIBRARY=build/src/libkrait.so tools/bench_python.py"""

import importlib
import statistics
import time

import torch

from causal_conv1d import causal_conv1d_fn, causal_conv1d_update
from causal_conv1d.causal_conv1d_varlen import causal_conv1d_varlen_states
from krait import _load
from mamba_ssm.ops.selective_scan_interface import mamba_inner_fn_no_out_proj, selective_scan_fn
from mamba_ssm.ops.triton.layer_norm import layer_norm_fn, rms_norm_fn
from mamba_ssm.ops.triton.layernorm_gated import rmsnorm_fn
from mamba_ssm.ops.triton.selective_state_update import selective_state_update

CALLS, REPEATS = 200, 41


def captured_call(module, attribute, function):
    """The bare C call with exactly the arguments `function` passes; keeps its tensors alive."""
    operator = getattr(importlib.import_module("krait.ops." + module), attribute)
    function()
    invoke, seen = operator.invoke, {}

    def spy(context, args):
        seen.update(context=context, args=args)
        return invoke(context, args)

    operator.known.clear()
    operator.invoke = spy
    kept = function()
    operator.known.clear()
    operator.invoke = invoke
    name = operator.name
    run, packed = _load.function("krait_" + name), _load.ffi().from_buffer("krait_%s_args *" % name, seen["args"])
    return lambda: (run(seen["context"], packed), kept)


def seconds(function):
    start = time.thread_time()
    for _ in range(CALLS):
        function()
    return (time.thread_time() - start) / CALLS


def cases():
    x, w, b = torch.randn(2, 8, 16), torch.randn(8, 4), torch.randn(8)
    state = torch.zeros(2, 8, 4)
    yield "causal_conv1d_fn", "causal_conv1d", "FORWARD", lambda: causal_conv1d_fn(x, w, b, activation="silu")
    yield "causal_conv1d_update", "causal_conv1d", "_UPDATE", lambda: causal_conv1d_update(x[..., 0], state, w, b, "silu")
    A, B, C, D, bias = -torch.rand(8, 4), torch.randn(2, 4, 16), torch.randn(2, 4, 16), torch.randn(8), torch.rand(8)
    yield "selective_scan_fn", "selective_scan", "FORWARD", lambda: selective_scan_fn(x, x, A, B, C, D, x, bias, True)
    ssm, row, dt, B1, C1 = torch.zeros(2, 8, 4), torch.randn(2, 8), torch.rand(2, 8), torch.randn(2, 4), torch.randn(2, 4)
    yield "selective_state_update", "state_update", "_UPDATE", lambda: selective_state_update(ssm, row, dt, A, B1, C1, D, None, bias, True)
    yield "rms_norm_fn", "norms", "_ADD_NORM", lambda: rms_norm_fn(row, b, None)
    yield "layer_norm_fn, residual", "norms", "_ADD_NORM", lambda: layer_norm_fn(row, b, b, residual=dt, prenorm=True)
    yield "rmsnorm_fn, gated", "norms", "_GATED_NORM", lambda: rmsnorm_fn(row, b, None, z=dt)
    tokens, ends, xz = torch.randn(16, 8), torch.tensor([0, 3, 16], dtype=torch.int32), torch.randn(2, 16, 16)
    project, widen, w3 = torch.randn(9, 8), torch.randn(8, 1), w[:, None]
    yield "causal_conv1d_varlen", "causal_conv1d", "_VARLEN", lambda: causal_conv1d_varlen_states(tokens, ends, 4)
    yield "mamba_inner_fn", "mamba_inner", "_INNER", lambda: mamba_inner_fn_no_out_proj(xz, w3, b, project, widen, A, None, None, D, bias)


def main():
    torch.set_num_threads(1)
    print("%-24s %9s %9s %9s %9s" % ("microseconds", "Python", "C", "above", "(median)"))
    for name, module, attribute, function in cases():
        try:
            bare = captured_call(module, attribute, function)
        except NotImplementedError as error:
            print("%-24s %s" % (name, error))
            continue
        pairs = [(seconds(function) * 1e6, seconds(bare) * 1e6) for _ in range(REPEATS)]
        whole, inner = [min(column) for column in zip(*pairs)]
        print("%-24s %9.2f %9.2f %9.2f %9.2f" % (name, whole, inner, whole - inner, statistics.median(p - q for p, q in pairs)))


if __name__ == "__main__":
    main()
