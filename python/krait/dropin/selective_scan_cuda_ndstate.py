"""Drop-in for VMamba's selective_scan_cuda_ndstate on krait: one state per channel, A (D), B and C (B, G, L)."""

from krait.ops.low_level import ndstate_bwd as bwd, ndstate_fwd as fwd  # noqa: F401
