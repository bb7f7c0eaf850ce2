"""Drop-in for VMamba's selective_scan_cuda_oflex that needs only krait: the output may be float32 when the input is not."""

from krait.ops.low_level import oflex_bwd as bwd, oflex_fwd as fwd  # noqa: F401
