"""The extension module's two functions. krait saves nothing between them but the last state, which stands in for `x`."""

import torch

from krait.ops.selective_scan import run_backward, run_forward


def fwd(u, delta, A, B, C, D, z, delta_bias, delta_softplus):
    """-> [out, x] or, with z, [out, x, out_z]; x[:, :, -1, 1::2] is the last state, as callers read it."""
    last = torch.empty(u.shape[0], *A.shape, dtype=A.dtype, device=u.device)
    out = torch.empty_like(u)
    run_forward(u, delta, A, B, C, D, None, delta_bias, None, None, None, None, delta_softplus, False, out, last)
    x = torch.stack([torch.zeros_like(last), last], dim=-1).flatten(-2).unsqueeze(2)
    if z is None:
        return [out, x]
    out_z = torch.empty_like(u)
    run_forward(u, delta, A, B, C, D, z, delta_bias, None, None, None, None, delta_softplus, False, out_z, None)
    return [out, x, out_z]


def bwd(u, delta, A, B, C, D, z, delta_bias, dout, x, out, dz, delta_softplus, recompute_out_z):
    """-> [du, ddelta, dA, dB, dC, dD, ddelta_bias[, dz[, out_z]]]."""
    du, ddelta, dA, dB, dC = [torch.empty_like(t) for t in (u, delta, A, B, C)]
    dD, dbias = [None if t is None else torch.empty_like(t) for t in (D, delta_bias)]
    if z is not None and dz is None:
        dz = torch.empty_like(z)
    run_backward(u, delta, A, B, C, D, z, delta_bias, None, None, None, None, dout, None, delta_softplus, False, du, ddelta, dA, dB,
                 dC, dD, None if z is None else dz, dbias, None, None)
    results = [du, ddelta, dA, dB, dC, dD, dbias]
    if z is not None:
        results.append(dz)
        if recompute_out_z:
            out_z = torch.empty_like(u)
            run_forward(u, delta, A, B, C, D, z, delta_bias, None, None, None, None, delta_softplus, False, out_z, None)
            results.append(out_z)
    return results
