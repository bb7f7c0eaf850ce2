"""Drop-in for selective_scan_cuda on krait. Only the last state is saved between its functions, as `x`."""

from krait.ops.low_level import scan_bwd, scan_fwd as fwd  # noqa: F401


def bwd(u, delta, A, B, C, D, z, delta_bias, dout, x, out, dz, delta_softplus, recompute_out_z):
    """-> [du, ddelta, dA, dB, dC, dD, ddelta_bias[, dz[, out_z]]]."""
    results = scan_bwd(u, delta, A, B, C, D, z, delta_bias, dout, dz, delta_softplus)
    if z is not None and recompute_out_z:
        results.append(fwd(u, delta, A, B, C, D, z, delta_bias, delta_softplus)[2])
    return results
