"""Drop-in for VMamba's selective_scan_cuda_core on krait: no z; nrows is ignored."""

from krait.ops.low_level import oflex_bwd as bwd, oflex_fwd  # noqa: F401


def fwd(u, delta, A, B, C, D, delta_bias, delta_softplus, nrows=1):
    """-> [out like u, x]."""
    return oflex_fwd(u, delta, A, B, C, D, delta_bias, delta_softplus, nrows, False)
